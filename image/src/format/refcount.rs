//! Refcounts: how often each cluster of a file is used.
//!
//! Owns the entries of the refcount table and the counts in a block, of 1 to 64 bits each.

use super::{be16, be32, be64};
use crate::format::header::Header;

const OFFSET: u64 = 0xffff_ffff_ffff_fe00;

/// An entry of the refcount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry(pub u64);

impl TableEntry {
    /// Where the block lies; zero where there is none.
    pub const fn block_at(self) -> u64 {
        self.0 & OFFSET
    }

    pub const fn has_reserved_bits(self) -> bool {
        self.0 & !OFFSET != 0
    }
}

/// How many clusters one block is about.
pub const fn block_clusters(header: &Header) -> u64 {
    (header.cluster_bytes() * 8) >> header.refcount_order
}

/// The highest count that fits.
pub const fn most(order: u32) -> u64 {
    match order {
        6 => u64::MAX,
        order => (1 << (1 << order)) - 1,
    }
}

/// Where in a block the byte lies in which this count begins.
pub const fn byte_of(order: u32, number: u64) -> u64 {
    (number << order) / 8
}

/// The count with this number among `bytes`; zero behind their end. Counts of less than a byte fill
/// it from the lowest bit.
pub fn get(bytes: &[u8], order: u32, number: u64) -> u64 {
    assert!(order <= 6, "the header was parsed");
    let at = byte_of(order, number) as usize;
    match order {
        0..=2 => {
            let byte = u64::from(bytes.get(at).copied().unwrap_or(0));
            let shift = (number << order) % 8;
            byte >> shift & most(order)
        }
        3 => u64::from(bytes.get(at).copied().unwrap_or(0)),
        4 => u64::from(be16(bytes, at)),
        5 => u64::from(be32(bytes, at)),
        _ => be64(bytes, at),
    }
}

/// Writes a count. It must fit, and lie inside.
pub fn set(bytes: &mut [u8], order: u32, number: u64, count: u64) {
    assert!(order <= 6 && count <= most(order));
    let at = byte_of(order, number) as usize;
    match order {
        0..=2 => {
            let shift = (number << order) % 8;
            let mask = (most(order) << shift) as u8;
            bytes[at] = bytes[at] & !mask | (count << shift) as u8;
        }
        _ => {
            let width = 1 << (order - 3);
            let number = count.to_be_bytes();
            bytes[at..at + width].copy_from_slice(&number[8 - width..]);
        }
    }
}
