//! The bytes of a qcow2 file: header, extensions, entries of its tables, refcounts, snapshots.
//!
//! Always true: parsing never panics and takes no memory beyond [`limits`](crate::limits).

pub mod entry;
pub mod extension;
pub mod header;
pub mod mark;
pub mod onto;
pub mod refcount;
pub mod snapshot;

/// A big-endian number at this place; zero where the bytes end before it does.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    let found = at.checked_add(8).and_then(|end| bytes.get(at..end));
    let mut number = [0; 8];
    number.copy_from_slice(found.unwrap_or(&[0; 8]));
    u64::from_be_bytes(number)
}

/// As [`be64`], of 32 bits.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    let found = at.checked_add(4).and_then(|end| bytes.get(at..end));
    let mut number = [0; 4];
    number.copy_from_slice(found.unwrap_or(&[0; 4]));
    u32::from_be_bytes(number)
}

/// As [`be64`], of 16 bits.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    let found = at.checked_add(2).and_then(|end| bytes.get(at..end));
    let mut number = [0; 2];
    number.copy_from_slice(found.unwrap_or(&[0; 2]));
    u16::from_be_bytes(number)
}
