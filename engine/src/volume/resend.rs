//! Writes that failed and are sent again, after pauses that grow.
//!
//! Always true: a pause ends by itself, and is never longer than the longest.
//! Deliberately absent: who sends them (`core::resend`).

use crate::types::{Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Pause before a phase that failed starts again, and longest one before a write is sent again.
pub(crate) const RETRY_MS: u64 = 500;
/// Pause after the first round that fails.
pub(crate) const FIRST_MS: u64 = 10;

const _: () = assert!(FIRST_MS > 0 && FIRST_MS < RETRY_MS);

/// Ranges of one write, each with its place behind `offset` in the journal. To the origin goes one.
pub(crate) struct Unsent {
    pub(crate) ranges: Vec<(Span, u64)>,
    pub(crate) offset: u64,
}

/// A pause after a failure. It doubles with each round that fails, and ends with the first request
/// that does not.
#[derive(Default)]
pub(crate) struct Pause {
    /// The last one; none since a request was good.
    ms: u64,
    until: Time,
}

impl Pause {
    pub fn is_under_way(&self, now: Time) -> bool {
        now < self.until
    }

    /// The last pause was the shortest: one round may fail at a storage that works.
    pub fn is_first(&self) -> bool {
        self.ms <= FIRST_MS
    }

    /// The last pause was the longest.
    pub fn is_longest(&self) -> bool {
        self.ms >= RETRY_MS
    }

    /// Begins the next one, and says when it ends; `None` if one is under way.
    pub fn longer(&mut self, now: Time) -> Option<Time> {
        if self.is_under_way(now) {
            return None;
        }
        assert!(self.ms <= RETRY_MS);
        self.ms = (self.ms * 2).clamp(FIRST_MS, RETRY_MS);
        self.until = now.plus_millis(self.ms);
        Some(self.until)
    }

    pub fn rest(&mut self, now: Time, ms: u64) {
        self.until = now.plus_millis(ms);
    }

    /// The next one is as long as they get.
    pub fn make_longest(&mut self) {
        self.ms = RETRY_MS;
    }

    /// A request was good.
    pub fn end(&mut self) {
        self.ms = 0;
    }
}

#[derive(Default)]
pub(crate) struct Resend {
    /// No more than a queue of the origin holds, and what a journal has of it in pieces.
    pub(crate) queue: VecDeque<Unsent>,
    pub(crate) pause: Pause,
    /// A write that is good does not tell that the next sync will be.
    pub(crate) sync_failed: bool,
}

impl Resend {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Nothing is sent before the pause is over.
    pub fn is_resting(&self, now: Time) -> bool {
        self.pause.is_under_way(now)
    }

    /// The last pause was the longest.
    pub fn is_hopeless(&self) -> bool {
        self.pause.is_longest()
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }

    pub fn stays_stalled(&mut self) {
        self.sync_failed = true;
    }

    pub fn synced(&mut self) {
        self.sync_failed = false;
    }
}
