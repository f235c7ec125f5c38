//! A request of a destage: what it carries, and the memory for that.
//!
//! Always true: a job has at least a width of one, and memory for all that it carries.
//! Deliberately absent: how jobs are filled and sent (`core::jobs`).

use super::batch::Batch;
use crate::memory::{Place, Slice};
use crate::types::{SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// A range, and where its bytes lie in memory and in its job.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub span: Span,
    pub(crate) place: Place,
    pub at: u64,
}

/// What goes from the log to the journal or the origin in one request. To the origin goes one
/// range; to the journal go as many as fill the memory, each from a block of its own on. A range of
/// zeroes has no memory.
pub(crate) struct Job {
    pub parts: Vec<Part>,
    /// The range of one that has no memory.
    pub zeroes: Option<Span>,
    pub(crate) pieces: Vec<u32>,
    pub(crate) slices: Vec<Slice>,
    /// In the journal.
    pub offset: u64,
    /// It has failed before.
    pub again: bool,
    /// What it carries of a plan.
    pub batch: Option<Batch>,
    /// Reads that a batch waits for, and whether one of them failed.
    pub waits: u32,
    pub cut: bool,
    /// One of them brings more than what is copied.
    pub joined: bool,
}

impl Job {
    /// One that carries nothing yet, and goes to this place if it goes to a journal.
    pub fn at(offset: u64) -> Job {
        Job {
            parts: Vec::new(),
            zeroes: None,
            pieces: Vec::new(),
            slices: Vec::new(),
            offset,
            again: false,
            batch: None,
            waits: 0,
            cut: false,
            joined: false,
        }
    }

    pub fn add(&mut self, span: Span, place: Place, at: u64) {
        self.parts.push(Part { span, place, at });
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.parts.iter().map(|part| part.span.blocks()).sum()
    }

    pub fn slices(&self) -> Vec<Slice> {
        self.slices.clone()
    }

    pub fn bytes(&self) -> u64 {
        self.slices.iter().map(|slice| slice.bytes).sum()
    }

    /// The sector of the volume whose bytes lie at this place.
    pub(crate) fn sector_at(&self, place: Place) -> Option<u64> {
        let mut before = 0;
        let mut slices = self.slices.iter();
        let at = slices.find_map(|slice| {
            let begins = slice.place;
            let inside = begins.area == place.area
                && (begins.offset..begins.offset + slice.bytes).contains(&place.offset);
            let first = before;
            before += slice.bytes;
            inside.then(|| first + place.offset - begins.offset)
        })?;
        let has = |part: &&Part| {
            let bytes = part.span.sectors * SECTOR_BYTES;
            (part.at..part.at + bytes).contains(&at)
        };
        let part = self.parts.iter().find(has)?;
        assert!(at >= part.at && (at - part.at).is_multiple_of(SECTOR_BYTES));
        Some(part.span.sector + (at - part.at) / SECTOR_BYTES)
    }

    /// What it takes of the queue of the origin, and of the memory of the destager.
    pub(crate) fn width(&self) -> usize {
        self.pieces.len().max(1)
    }

    /// Where the next byte goes: behind the others in its piece.
    pub fn end(&self) -> Place {
        let last = self.slices.last().expect("a job of data has memory");
        last.place.plus(last.bytes)
    }

    /// Bytes in its last piece.
    pub(crate) fn filled(&self) -> u64 {
        self.slices.last().map_or(0, |slice| slice.bytes)
    }

    pub fn fill(&mut self, bytes: u64) {
        let last = self.slices.last_mut().expect("a job of data has memory");
        assert!(bytes > 0, "what is added has bytes");
        last.bytes += bytes;
    }
}
