//! A read under way, and what it is for: the types that its parts share.
//!
//! Always true: a read waits for as many things as it counts, and ends when it counts none.
//! Deliberately absent: the way of a read ([`super::read`]), fills ([`super::fill`]) and tables
//! ([`super::tables`]).

use crate::event::Refusal;
use crate::memory::{Area, Place};
use crate::origin::{FileIndex, MapId, Missing};
use crate::ram::Layer;
use crate::types::{BLOCK_SECTORS, BufferId, RequestId, SECTOR_BYTES, Span, Time, VolumeId};
use alloc::vec::Vec;

/// Blocks of one origin read into the tier.
pub const FILL_BLOCKS_MAX: u64 = 64;

/// A read under way.
pub struct ReadOp {
    pub volume: VolumeId,
    pub result: Result<(), Refusal>,
    pub goal: Goal,
    /// Of the volume; of its file for a table.
    pub span: Span,
    pub started: Time,
    /// Tables that it has waited for.
    pub tables: u64,
    /// Fetches, fills and origin reads it waits for, and one while it is being taken apart.
    pub waits: u32,
    /// Its origin did not give a part of it, and is asked again.
    pub held: bool,
}

/// What a read is for.
pub enum Goal {
    Guest {
        request: RequestId,
        buffer: BufferId,
    },
    Table(Table),
}

impl ReadOp {
    pub fn new(volume: VolumeId, goal: Goal, span: Span, started: Time) -> ReadOp {
        ReadOp {
            volume,
            result: Ok(()),
            goal,
            span,
            started,
            tables: 0,
            waits: 1,
            held: false,
        }
    }

    /// Whether it counts among the reads of its volume.
    pub fn is_guests(&self) -> bool {
        matches!(self.goal, Goal::Guest { .. })
    }
}

/// A table on its way to its map.
pub struct Table {
    pub map: MapId,
    pub missing: Missing,
    /// Whose clean blocks it is read as.
    pub layer: Layer,
    pub bytes: Vec<u8>,
    /// The file was written since it was asked for.
    pub stale: bool,
    pub waiters: Vec<Behind>,
}

impl Table {
    pub fn file(&self) -> FileIndex {
        self.missing.file
    }
}

/// A part of a read that goes on behind a table.
pub struct Behind {
    pub read: u32,
    pub part: Span,
    pub past_tier: bool,
}

/// The part of a range that lies in blocks `first..end`.
pub fn clip(part: Span, first: u64, end: u64) -> Span {
    let from = part.sector.max(first * BLOCK_SECTORS);
    let upto = part.end().min(end * BLOCK_SECTORS);
    Span::new(from, upto - from)
}

/// Where a sector of a request lies in its buffer.
pub fn target(buffer: BufferId, span: Span, sector: u64) -> Place {
    Place::new(Area::Buffer(buffer), (sector - span.sector) * SECTOR_BYTES)
}
