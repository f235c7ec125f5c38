//! The memory that the host keeps and the engine arranges.
//!
//! Owns the vocabulary of places and the five synchronous operations on them. Always true: an
//! operation is complete, checksums included, when the call returns, so that a serial is sealed
//! in one step of the engine. Deliberately absent: anything that can take time; that is an
//! [`Action`](crate::event::Action).
//!
//! The first sketch made stage copies actions of their own. Their checksums then needed an event
//! to come back by, a write was half accepted in between, and every state had a twin; as calls
//! they have none of it.

#[cfg(test)]
pub mod model;

use crate::types::BufferId;

/// A region of host memory. All of them start at a page boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Shared memory that outlives the process: header page, slot table, slots.
    Stage,
    /// The read tier, in 4 KiB blocks.
    Ram,
    /// Working memory for destage, evacuation, control blocks and bounced reads.
    Scratch,
    /// Payload of one guest request; offset 0 is the request's first sector.
    Buffer(BufferId),
}

/// A position in an area, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub area: Area,
    pub offset: u64,
}

impl Place {
    pub const fn new(area: Area, offset: u64) -> Place {
        Place { area, offset }
    }

    pub const fn plus(self, bytes: u64) -> Place {
        Place {
            area: self.area,
            offset: self.offset + bytes,
        }
    }
}

/// Consecutive bytes of one area: one element of a scatter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub place: Place,
    pub bytes: u64,
}

/// What the engine may do with bytes. Ranges lie inside their areas; an implementation panics on
/// one that does not, because only a bug of the engine can produce it.
///
/// Writes to [`Area::Stage`] become visible in program order: after a kill the stage holds a
/// prefix of them, the last one perhaps in part.
pub trait Memory {
    /// Copies between places that do not overlap.
    fn copy(&mut self, from: Place, to: Place, bytes: u64);
    fn zero(&mut self, to: Place, bytes: u64);
    /// Stores control bytes (headers, entries, ledgers).
    fn store(&mut self, to: Place, bytes: &[u8]);
    /// Loads control bytes.
    fn load(&self, from: Place, bytes: &mut [u8]);
    /// Bytes of [`Area::Stage`], where a former run may have left more than is asked for now.
    fn stage_bytes(&self) -> u64;
    /// CRC-32C (Castagnoli, as in iSCSI) of the bytes.
    fn checksum(&self, from: Place, bytes: u64) -> u32;
}
