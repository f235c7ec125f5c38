//! How a host comes to what the record of its cluster says of a pool.
//!
//! A host knows two images of a pool and which of them each of its members has, so it carries out
//! one change at a time. Always true: what follows is one record of this host, written before the
//! first member moves by it; a member that has moved stays where it is unless the cluster goes
//! back; a record that is older than what this host has carried out changes nothing, because a
//! vault that was put back to an earlier state decides nothing. Deliberately absent: how the record
//! of the cluster comes to be; see [`super::shared`].

use super::order::{Asked, Rollout};
use super::record::{Phase, Record};
use std::collections::BTreeSet;

impl Record {
    /// Whether the vault has an older record than this host has carried out.
    pub fn is_ahead_of(&self, shared: &Record) -> bool {
        self.image.generation > shared.image.generation
    }

    /// Whether this host is where the cluster is.
    pub fn is_along(&self, shared: &Record) -> bool {
        self.image == shared.image && self.phase == shared.phase
    }

    /// Members that have the image before.
    fn left<'a>(&'a self, members: &'a [String]) -> impl Iterator<Item = &'a String> {
        members.iter().filter(|it| !self.has_moved(it))
    }

    /// What the record of this host becomes by that of its cluster. `members`: those here.
    pub fn follow(&self, shared: &Record, members: &[String], now_unix_ms: u64) -> Record {
        if self.is_ahead_of(shared) {
            return self.clone();
        }
        let busy = self.phase == Phase::Rolling && self.left(members).next().is_some();
        if self.image.generation == shared.image.generation {
            return self.go_along(shared, busy, members, now_unix_ms);
        }
        let mut next = self.clone();
        let same = self.image.path == shared.image.path;
        let back = self.previous.as_ref().map(|it| &it.path) == Some(&shared.image.path);
        if busy && !same && !back {
            // First those that are on their way come there.
            next.take_all(shared);
            return next;
        }
        let moved: BTreeSet<String> = match (same, busy) {
            (true, false) => members.iter().cloned().collect(),
            (true, true) => self.moved.clone(),
            (false, true) => self.left(members).cloned().collect(),
            (false, false) => BTreeSet::new(),
        };
        if !same {
            next.previous = Some(self.image.clone());
        } else if next.previous.is_none() {
            next.previous.clone_from(&shared.previous);
        }
        next.image = shared.image.clone();
        (next.phase, next.staged, next.moved) = (Phase::Rolling, None, moved);
        match shared.phase {
            Phase::Rolling => next.rollout = shared.rollout.clone(),
            Phase::Staged | Phase::Stable => next.take_all(shared),
        }
        next.rollout.since_unix_ms = now_unix_ms;
        if next.previous.is_none() {
            // It has the image, and none to come from.
            next.settle();
        }
        next
    }

    /// The image is the one that this host moves its members to, or that all of them have.
    fn go_along(
        &self,
        shared: &Record,
        busy: bool,
        members: &[String],
        now_unix_ms: u64,
    ) -> Record {
        let mut next = self.clone();
        match shared.phase {
            Phase::Rolling => {
                if self.phase != Phase::Rolling {
                    next.previous.clone_from(&shared.previous);
                    next.moved = members.iter().cloned().collect();
                    next.staged = None;
                }
                next.phase = Phase::Rolling;
                let since = match self.rollout.step == shared.rollout.step {
                    true => self.rollout.since_unix_ms,
                    false => now_unix_ms,
                };
                next.rollout = shared.rollout.clone();
                next.rollout.since_unix_ms = since;
            }
            Phase::Staged | Phase::Stable if busy => next.take_all(shared),
            phase => {
                if self.phase == Phase::Rolling {
                    next.settle();
                }
                next.phase = phase;
                next.staged.clone_from(&shared.staged);
                next.rollout = shared.rollout.clone();
                if shared.previous.is_none() {
                    next.previous = None;
                }
            }
        }
        next
    }

    /// All members are due.
    fn take_all(&mut self, shared: &Record) {
        let since_unix_ms = self.rollout.since_unix_ms;
        self.rollout = Rollout {
            back: shared.rollout.back,
            since_unix_ms,
            ..Rollout::of(Asked::default())
        };
    }
}
