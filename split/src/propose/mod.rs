//! A table of rules from what a trace says of the directories of an image.
//!
//! The way of a proposal: [`classed`] says what a table has for a path, [`facts`] has what is in
//! the image, [`judge`] says of each directory whether it may be late and why, the caller lets the
//! engine count what each would save, [`choose`] takes those that save enough, and [`text`] writes
//! the table.
//!
//! Always true: nothing is relaxed that asks for durability, that is known as users' own data, or
//! that has a file with a second name elsewhere; a table that is written is one that
//! [`Rules`](crate::Rules) reads. Deliberately absent: traces, the engine, and any use of it.

pub mod choose;
pub mod classed;
pub mod facts;
pub mod judge;
#[cfg(test)]
mod tests;
pub mod text;

use std::ops::{AddAssign, SubAssign};

/// Of writes that a flush follows soon, in percent: beyond, a directory asks for durability.
pub const ASKS_PERCENT: u64 = 20;
/// Of written bytes that were written before within the period, in percent.
pub const REWRITTEN_PERCENT: u64 = 50;

/// What a trace says of the files of a directory; who reads traces fills it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub writes: u64,
    pub bytes: u64,
    /// Of the bytes, those whose rewrites were looked at.
    pub looked_bytes: u64,
    /// Of these, written before within 10 s, 10 min and the period.
    pub rewritten: [u64; 3],
    /// Writes that a flush follows within 50 ms.
    pub flushed: u64,
    /// Writes to files that packages brought.
    pub owned: u64,
    /// Writes to files that are not in the image any more.
    pub gone: u64,
    /// Reads, after a start of the guest, of what was written before it.
    pub reads_after_start: u64,
    /// The guest started after some of the writes.
    pub has_start: bool,
}

impl Figures {
    pub fn asks_for_durability(&self) -> bool {
        is_above(self.flushed, self.writes, ASKS_PERCENT)
    }

    /// Most of what is written is written again within the period.
    pub fn is_rewritten(&self) -> bool {
        is_above(self.rewritten[2], self.looked_bytes, REWRITTEN_PERCENT)
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, more: Figures) {
        self.writes += more.writes;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.looked_bytes = self.looked_bytes.saturating_add(more.looked_bytes);
        for (sum, bytes) in self.rewritten.iter_mut().zip(more.rewritten) {
            *sum = sum.saturating_add(bytes);
        }
        self.flushed += more.flushed;
        self.owned += more.owned;
        self.gone += more.gone;
        self.reads_after_start += more.reads_after_start;
        self.has_start |= more.has_start;
    }
}

/// Takes away a part of what was added.
impl SubAssign for Figures {
    fn sub_assign(&mut self, part: Figures) {
        self.writes -= part.writes;
        // Sums of bytes at their limit say nothing any more.
        self.bytes = self.bytes.saturating_sub(part.bytes);
        self.looked_bytes = self.looked_bytes.saturating_sub(part.looked_bytes);
        for (sum, bytes) in self.rewritten.iter_mut().zip(part.rewritten) {
            *sum = sum.saturating_sub(bytes);
        }
        self.flushed -= part.flushed;
        self.owned -= part.owned;
        self.gone -= part.gone;
        self.reads_after_start = self
            .reads_after_start
            .saturating_sub(part.reads_after_start);
    }
}

fn is_above(part: u64, whole: u64, percent: u64) -> bool {
    u128::from(part) * 100 > u128::from(whole) * u128::from(percent)
}
