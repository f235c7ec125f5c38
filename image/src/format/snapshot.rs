//! The table of internal snapshots: entries of different lengths, one behind the other.
//!
//! Always true: an entry that was parsed has an L1 table within its limits. Deliberately absent:
//! the table as a whole, which is read entry by entry.

use super::{be16, be32, be64};
use crate::error::Error;
use crate::format::header::Header;
use crate::limits;
use crate::types::Range;
use alloc::string::String;

/// The part of an entry that says how long it is.
pub const FIXED_BYTES: usize = 40;
/// Two sizes, which version 3 always has behind the fixed part.
const EXTRA_BYTES_MIN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub l1: Range,
    pub id: String,
    pub name: String,
    /// Seconds since 1970.
    pub taken_seconds: u32,
    /// Size of the saved state of a machine, zero if there is none.
    pub state_bytes: u64,
    /// Size of the disk when it was taken; zero in old files.
    pub disk_bytes: u64,
    /// It has the sizes that each entry of version 3 has.
    pub whole: bool,
    /// Where it lies. The next begins behind its bytes.
    pub at: u64,
    pub entry_bytes: u64,
}

/// How long the entry is whose fixed part this is: no more than any entry may be.
pub fn bytes_wanted(fixed: &[u8]) -> usize {
    let extra = be32(fixed, 36).min(limits::SNAPSHOT_EXTRA_BYTES_MAX);
    FIXED_BYTES + extra as usize + usize::from(be16(fixed, 12)) + usize::from(be16(fixed, 14))
}

/// The entry at the start of `bytes`, which lies at offset `at` of the file and has the number
/// `number`. `bytes` are as many as [`bytes_wanted`].
pub fn parse(bytes: &[u8], header: &Header, number: u32, at: u64) -> Result<Snapshot, Error> {
    let wrong = |what| Error::Snapshot {
        number: number.saturating_add(1),
        of: header.snapshots,
        at,
        what,
    };
    let l1 = Range {
        at: be64(bytes, 0),
        bytes: u64::from(be32(bytes, 8)) * 8,
    };
    let extra_bytes = be32(bytes, 36);
    if extra_bytes > limits::SNAPSHOT_EXTRA_BYTES_MAX {
        return Err(wrong("more than 1024 bytes of extra data"));
    }
    let extra_bytes = extra_bytes as usize;
    let extra = bytes.get(FIXED_BYTES..).unwrap_or_default();
    let extra = &extra[..extra.len().min(extra_bytes)];
    let (id_bytes, name_bytes) = (usize::from(be16(bytes, 12)), usize::from(be16(bytes, 14)));
    let id_at = FIXED_BYTES + extra_bytes;
    let text = |at: usize, length: usize| {
        let found = bytes.get(at..at + length).unwrap_or_default();
        String::from_utf8_lossy(found).into_owned()
    };
    let end = id_at + id_bytes + name_bytes;
    let state_bytes = match extra.len() >= 8 {
        true => be64(extra, 0),
        false => u64::from(be32(bytes, 32)),
    };
    Ok(Snapshot {
        l1,
        id: text(id_at, id_bytes),
        name: text(id_at + id_bytes, name_bytes),
        taken_seconds: be32(bytes, 16),
        state_bytes,
        disk_bytes: be64(extra, 8),
        whole: header.version < 3 || extra_bytes >= EXTRA_BYTES_MIN,
        at,
        entry_bytes: end.next_multiple_of(8) as u64,
    })
}
