//! Ranges and names of files.
//!
//! Owns the numbers that must not be mixed up: where in the guest's disk, where in a file, which
//! file of a chain, and which file of all that are open.

/// What tables are read and kept in. An entry of any table lies within one.
pub const SECTOR_BYTES: u64 = 512;

/// The place of a file in its chain: 0 is the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIndex(pub u8);

/// The caller's number of an open file. A base that several chains stand on has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Bytes of the disk that a guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub at: u64,
    pub bytes: u64,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub at: u64,
    pub bytes: u64,
}

impl Span {
    /// One past its last byte; the end of all numbers where it would lie behind that.
    pub const fn end(self) -> u64 {
        self.at.saturating_add(self.bytes)
    }
}

impl Range {
    /// One past its last byte; the end of all numbers where it would lie behind that.
    pub const fn end(self) -> u64 {
        self.at.saturating_add(self.bytes)
    }

    /// Whether it ends at or before this length. A range that has no end does not.
    pub const fn is_inside(self, file_bytes: u64) -> bool {
        match self.at.checked_add(self.bytes) {
            Some(end) => end <= file_bytes,
            None => false,
        }
    }
}
