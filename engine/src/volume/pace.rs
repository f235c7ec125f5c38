//! When the next request of a destage may start that only age asks for.
//!
//! Always true: the more extents a request carries, the longer the next one waits.
//! Deliberately absent: what is not held up (`core::stride`).

use crate::types::Time;

/// Journal and origin are each written over this part of the age limit at most.
const PART_OF_AGE: u64 = 8;
/// A guest may have to wait for a destage under way, so it is not drawn out for ever.
const PHASE_MS_MAX: u64 = 30_000;
/// So many requests that were held up for want of memory or turns may follow at once.
const CATCH_UP: u64 = 8;

/// When the next request of a destage may start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    gap_ns: u64,
    pub(crate) next: Time,
    pub(crate) timer: Option<Time>,
}

impl Pace {
    /// Of an epoch of so many extents, each of which has its part of the time: a request takes as
    /// much as the extents that it carries. The more epochs there are, it and those behind it, the
    /// less time each has.
    pub fn new(age_ms: Option<u64>, extents: u64, epochs: u64) -> Pace {
        let phase_ms = (age_ms.unwrap_or(0) / PART_OF_AGE).min(PHASE_MS_MAX);
        let phase_ms = phase_ms / epochs.max(1);
        Pace {
            gap_ns: phase_ms * 1_000_000 / extents.max(1),
            next: Time(0),
            timer: None,
        }
    }

    /// A request with so many extents starts.
    pub fn spend(&mut self, now: Time, extents: u64) {
        assert!(extents > 0, "a request carries something");
        let earliest = Time(now.0.saturating_sub(self.gap_ns * CATCH_UP));
        self.next = Time(self.next.max(earliest).0 + self.gap_ns * extents);
    }
}
