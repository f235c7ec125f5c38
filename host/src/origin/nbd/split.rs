//! How a request of the engine falls apart into requests that a server takes.
//!
//! Always true: the pieces cover the request exactly once and in order; each but an edge is a
//! multiple of the server's block, starts at one, and is no longer than it takes; an edge lies
//! inside one block. Deliberately absent: the read-modify-write of edges, which is the caller's.

use super::Export;

/// One request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub bytes: u32,
    /// Only a part of the server's block that it lies in.
    pub edge: bool,
}

/// The pieces of a range, in order.
pub fn split(export: &Export, offset: u64, bytes: u64) -> Vec<Piece> {
    let block = u64::from(export.block_bytes);
    let max = u64::from(export.request_bytes_max);
    let end = offset + bytes;
    let mut pieces = Vec::new();
    let mut at = offset;
    while at < end {
        let block_end = at / block * block + block;
        let whole = at.is_multiple_of(block) && block_end <= end;
        let upto = match whole {
            true => (at + max).min(end / block * block),
            false => block_end.min(end),
        };
        pieces.push(Piece {
            offset: at,
            bytes: (upto - at) as u32,
            edge: !whole,
        });
        at = upto;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_a_range_once_in_blocks_that_the_server_takes(
            offset in 0u64..200, sectors in 1u64..3000, block in 0u32..13, max in 1u32..40
        ) {
            let block_bytes = 1u32 << block;
            let unit = block_bytes.max(512);
            let export = Export {
                size_bytes: 1 << 30,
                read_only: false,
                flush: true,
                write_zeroes: true,
                block_bytes,
                request_bytes_max: max * unit,
            };
            let (offset, bytes) = (offset * 512, sectors * 512);
            let mut at = offset;
            for piece in split(&export, offset, bytes) {
                prop_assert_eq!(piece.offset, at);
                prop_assert!(piece.bytes > 0 && piece.bytes <= export.request_bytes_max);
                let block = u64::from(block_bytes);
                let last = at + u64::from(piece.bytes);
                if piece.edge {
                    prop_assert_eq!(at / block, (last - 1) / block);
                    prop_assert!(u64::from(piece.bytes) < block);
                } else {
                    prop_assert!(at.is_multiple_of(block) && last.is_multiple_of(block));
                }
                at = last;
            }
            prop_assert_eq!(at, offset + bytes);
        }
    }
}
