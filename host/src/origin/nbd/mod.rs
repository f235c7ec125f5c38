//! An NBD export as an origin: the client's side of the protocol.
//!
//! Owns what is believed about an export and the two pure machines that speak to its server,
//! [`handshake`] and [`session`]; [`client`] drives them over a blocking socket before a volume is
//! served, the shard drives the session over its ring. Always true: no length and no cookie of a
//! server is used before it is compared with what was asked for; whatever a server says, the
//! answer is an error and the end of the connection, never a panic. Deliberately absent: TRIM,
//! because it promises no zeroes (zeroing without NO_HOLE lets the server give space back just as
//! well); FUA, because a flush follows; TLS; more than one connection.

pub mod client;
pub mod handshake;
pub mod open;
pub mod session;
pub mod split;
#[cfg(test)]
mod tests;
pub mod uri;

use crate::nbd::{PAYLOAD_BYTES_MAX, export_flag};
use engine::types::SECTOR_BYTES;

/// The largest minimum block that is served, by read-modify-write of the edges.
pub const BLOCK_BYTES_MAX: u32 = 4096;

/// Why a conversation cannot go on: the server's words make no sense, or say no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

impl Broken {
    fn new(why: impl Into<String>) -> Broken {
        Broken(why.into())
    }
}

/// What a server has told about an export, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    pub size_bytes: u64,
    pub read_only: bool,
    pub flush: bool,
    pub write_zeroes: bool,
    /// Offsets and lengths are multiples of this power of two.
    pub block_bytes: u32,
    /// Longest request; a multiple of `block_bytes`.
    pub request_bytes_max: u32,
}

impl Export {
    /// `blocks` are the minimum and the maximum that the server told, if it did.
    pub fn new(size_bytes: u64, flags: u16, blocks: Option<(u32, u32)>) -> Result<Export, Broken> {
        let has = |flag| flags & export_flag::HAS_FLAGS != 0 && flags & flag != 0;
        let (block_bytes, max) = blocks.unwrap_or((1, PAYLOAD_BYTES_MAX));
        if !block_bytes.is_power_of_two() || max < block_bytes {
            return Err(Broken::new(format!(
                "the server tells a minimum block of {block_bytes} and a maximum of {max} bytes, \
                 which makes no sense"
            )));
        }
        if block_bytes > BLOCK_BYTES_MAX {
            return Err(Broken::new(format!(
                "the server takes blocks of {block_bytes} bytes only; at most {BLOCK_BYTES_MAX} \
                 are served, so let it export smaller ones"
            )));
        }
        let unit = block_bytes.max(SECTOR_BYTES as u32);
        let max = max.min(PAYLOAD_BYTES_MAX) / unit * unit;
        if max == 0 {
            return Err(Broken::new(
                "the server takes requests of less than 512 bytes only",
            ));
        }
        let bytes = u64::from(unit);
        if size_bytes == 0 || !size_bytes.is_multiple_of(bytes) || size_bytes > 1 << 60 {
            return Err(Broken::new(format!(
                "has {size_bytes} bytes; a raw image has one or more whole sectors of {unit} bytes"
            )));
        }
        Ok(Export {
            size_bytes,
            read_only: has(export_flag::READ_ONLY),
            flush: has(export_flag::SEND_FLUSH),
            write_zeroes: has(export_flag::SEND_WRITE_ZEROES),
            block_bytes,
            request_bytes_max: max,
        })
    }

    /// Whether what was cut for the one export fits the other.
    pub fn stands_in_for(&self, old: &Export) -> Result<(), String> {
        if self.size_bytes != old.size_bytes {
            return Err(format!(
                "has {} bytes and had {} when it was attached",
                self.size_bytes, old.size_bytes
            ));
        }
        let less = (self.read_only && !old.read_only)
            || (old.flush && !self.flush)
            || (old.write_zeroes && !self.write_zeroes)
            || self.block_bytes > old.block_bytes
            || self.request_bytes_max < old.request_bytes_max;
        match less {
            true => Err("can do less than when it was attached".into()),
            false => Ok(()),
        }
    }
}
