//! Which writes a copy of a unit has, told without reading them: the forks of its history and its
//! end.
//!
//! ```text
//! term 3     ├──────────── serials from 3 << 42 ────────┤E
//! term 7                                       fork {upto E, first 7 << 42} └──────────▶ end
//! ```
//! Owns generations, forks, and the comparison of two histories. Always true: a generation is the
//! number of the record that gave ownership, with a counter of the owner's restarts under it, so no
//! two ownerships have the same one (correction 3). The first serial of a generation follows from
//! both, and a generation of a term has only serials of the range of this term: no serial is given
//! twice. A history is a prefix of another one only if all forks that both remember are equal and
//! its end is not above the next fork. Deliberately absent: the writes, and where copies lie.

use crate::broken::{Rule, has};
use alloc::vec::Vec;
use engine::types::Serial;

/// A history forgets its oldest forks beyond this number; a copy that knows only those begins anew.
pub const FORKS_MAX: usize = 32;
/// Serials of one term: at 100,000 writes a second they last for more than a year.
const TERM_SHIFT: u32 = 42;
/// Distance between the generations of two restarts. More writes than this are never on one host
/// without being durable there, so what was lost by a restart had lower serials.
const RESTART_SHIFT: u32 = 28;

/// Which ownership gave a serial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// Number of the record that gave ownership.
    pub term: u64,
    /// Of the owner's daemon under this record.
    pub restarts: u32,
}

impl Generation {
    /// The owner serves again under the same record.
    pub fn restarted(self) -> Generation {
        let restarts = self.restarts.checked_add(1);
        let restarts = restarts.expect("serials end long before restarts do");
        Generation { restarts, ..self }
    }

    /// No serial of it reaches this one: the owner needs a new record before.
    pub fn serials_end(self) -> Serial {
        Serial(self.term.saturating_add(1).saturating_mul(1 << TERM_SHIFT))
    }
}

/// Where an ownership has begun to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    pub generation: Generation,
    /// What was there before counts up to this serial.
    pub upto: Serial,
    /// First serial of the generation.
    pub first: Serial,
}

impl Fork {
    /// The fields fit together; they may be foreign.
    pub fn is_sane(&self) -> bool {
        let Generation { term, .. } = self.generation;
        let range = term.checked_mul(1 << TERM_SHIFT);
        let begins = range.is_some_and(|begins| begins <= self.first.0);
        begins && self.upto < self.first && self.first < self.generation.serials_end()
    }
}

/// What a copy has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// From the oldest to the newest, which is never forgotten. Empty: it was never opened.
    forks: Vec<Fork>,
    /// The last serial. A copy that is being filled knows the owner's forks before it gets there:
    /// those whose `upto` is above its end do not count yet.
    end: Serial,
}

/// What becomes of a copy that comes back (C12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Return {
    /// It gets what is above this serial.
    Resume(Serial),
    /// It has something that the owner has not, or too little: a new copy is made.
    Restart,
}

impl History {
    /// Of a copy that begins empty with everything up to this serial at the origin.
    pub fn empty(end: Serial) -> History {
        let forks = Vec::new();
        History { forks, end }
    }

    /// From foreign bytes: None if these forks cannot follow each other.
    pub fn checked(forks: Vec<Fork>, end: Serial) -> Option<History> {
        let pairs = || forks.iter().zip(forks.iter().skip(1));
        let grows = pairs().all(|(one, next)| {
            one.generation < next.generation && one.first < next.first && one.upto <= next.upto
        });
        let sane = grows && forks.len() <= FORKS_MAX && forks.iter().all(Fork::is_sane);
        sane.then_some(History { forks, end })
    }

    pub fn forks(&self) -> &[Fork] {
        &self.forks
    }

    pub fn end(&self) -> Serial {
        self.end
    }

    /// The forks that it has come to.
    fn reached(&self) -> &[Fork] {
        let count = self.forks.partition_point(|fork| fork.upto <= self.end);
        &self.forks[..count]
    }

    /// Of its last serial.
    pub fn generation(&self) -> Option<Generation> {
        self.reached().last().map(|fork| fork.generation)
    }

    /// The forks of this history for a copy that has it up to this serial.
    pub fn upto(&self, end: Serial) -> History {
        let forks = self.forks.clone();
        History { forks, end }
    }

    /// More of the same generation has become durable.
    pub fn grow(&mut self, end: Serial) {
        assert!(end >= self.end, "a history only grows");
        self.end = end;
    }

    /// The history of an owner that begins here. None: the term has no serials left, or is too
    /// high for any, and another record is needed.
    pub fn fork(&self, generation: Generation) -> Option<History> {
        let known = self.generation();
        assert!(
            known.is_none_or(|known| known < generation),
            "generations grow"
        );
        let begins = generation.term.checked_mul(1 << TERM_SHIFT)?;
        let after = (self.end.0 >> RESTART_SHIFT).checked_add(2)? << RESTART_SHIFT;
        let first = match generation.restarts {
            0 if begins > self.end.0 => begins,
            _ => after.max(begins),
        };
        // A log may give lower ones than these: then they tell forks apart all the same.
        let last = self.reached().last().map_or(0, |fork| fork.first.0);
        let first = first.max(last.checked_add(1 << RESTART_SHIFT)?);
        let fork = Fork {
            generation,
            upto: self.end,
            first: Serial(first),
        };
        if !fork.is_sane() {
            return None;
        }
        let mut forks = self.reached().to_vec();
        forks.push(fork);
        if forks.len() > FORKS_MAX {
            forks.remove(0);
        }
        let end = self.end;
        Some(History { forks, end })
    }

    /// What a copy with this history is to do to follow this one. `destaged`: what the origin has
    /// for certain.
    pub fn follow(&self, copy: &History, destaged: Serial) -> Return {
        let follows = match copy.generation() {
            // Nothing was ever written to it.
            None => copy.end <= destaged,
            Some(_) => self.contains(copy),
        };
        match follows && copy.end >= destaged {
            true => Return::Resume(copy.end),
            false => Return::Restart,
        }
    }

    /// All writes of the other one are in this one, and in the same order.
    pub fn contains(&self, other: &History) -> bool {
        if has(Rule::ForksAreCompared) {
            return true;
        }
        let (ours, theirs) = (self.reached(), other.reached());
        let Some(newest) = theirs.last() else {
            return false;
        };
        let Some(at) = ours.iter().position(|fork| fork == newest) else {
            return false;
        };
        let mut pairs = ours[..=at].iter().rev().zip(theirs.iter().rev());
        let limit = ours.get(at + 1).map_or(self.end, |next| next.upto);
        pairs.all(|(one, other)| one == other) && other.end <= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(term: u64, restarts: u32) -> Generation {
        Generation { term, restarts }
    }

    fn begun(term: u64) -> History {
        let history = History::empty(Serial(0)).fork(of(term, 0));
        history.expect("serials are left")
    }

    /// Schedule 3: a restart of A and a takeover by B both take what A had up to the same end.
    #[test]
    fn a_restart_and_a_takeover_never_give_the_same_generation_or_serial() {
        let mut before = begun(1);
        before.grow(Serial((1 << TERM_SHIFT) + 20));
        let restarted = before.fork(of(1, 1)).expect("serials are left");
        let taken = before.fork(of(2, 0)).expect("serials are left");
        let (a, b) = (restarted.forks()[1], taken.forks()[1]);
        assert_ne!(a.generation, b.generation);
        assert!(a.first < b.first && a.generation.serials_end() <= b.first);
        assert_eq!(restarted.follow(&taken, Serial(0)), Return::Restart);
        assert_eq!(taken.follow(&restarted, Serial(0)), Return::Restart);
        assert_eq!(taken.follow(&before, Serial(0)), Return::Resume(before.end));
    }

    /// H18: A had 120, unflushed, when B took over at 100.
    #[test]
    fn a_copy_that_has_more_than_the_fork_begins_anew() {
        let first = 1 << TERM_SHIFT;
        let mut old = begun(1);
        old.grow(Serial(first + 100));
        let taken = old.fork(of(2, 0)).expect("serials are left");
        assert!(taken.contains(&old));
        old.grow(Serial(first + 120));
        assert_eq!(taken.follow(&old, Serial(0)), Return::Restart);
        let newer = taken.forks()[1].first;
        assert!(newer > old.end(), "no serial is given twice");
        assert_eq!(
            taken.follow(&History::empty(Serial(5)), Serial(5)),
            Return::Resume(Serial(5))
        );
        assert_eq!(
            taken.follow(&History::empty(Serial(5)), Serial(6)),
            Return::Restart
        );
    }

    #[test]
    fn the_whole_list_of_forks_is_compared() {
        let mut history = begun(1);
        for term in 2..40 {
            history.grow(Serial(
                history
                    .end()
                    .0
                    .max(history.forks().last().map_or(0, |f| f.first.0))
                    + 1,
            ));
            history = history.fork(of(term, 0)).expect("serials are left");
        }
        assert_eq!(history.forks().len(), FORKS_MAX);
        let mut other = history.clone();
        assert!(history.contains(&other));
        other.forks[3].upto = Serial(other.forks[3].upto.0 - 1);
        assert!(!history.contains(&other), "an old fork differs");
        // A copy that has forgotten what the owner still knows is compared as far as it goes.
        let short = History::checked(history.forks()[9..].to_vec(), history.end());
        assert!(history.contains(&short.expect("is sane")));
        let mut wrong = history.forks().to_vec();
        wrong.swap(1, 2);
        assert_eq!(History::checked(wrong, history.end()), None);
    }

    /// The log of an owner gives serials as it likes, as long as they grow.
    #[test]
    fn forks_of_low_serials_can_be_said_to_others() {
        let mut history = History::empty(Serial(3)).fork(of(2, 0)).expect("serials");
        for restarts in 1..40 {
            history.grow(Serial(3 + u64::from(restarts)));
            history = history.fork(of(2, restarts)).expect("serials");
            let said = History::checked(history.forks().to_vec(), history.end());
            assert_eq!(said, Some(history.clone()));
        }
    }

    #[test]
    fn a_term_without_serials_needs_another_record() {
        let mut history = begun(1);
        history.grow(Serial((2 << TERM_SHIFT) - 1));
        assert_eq!(history.fork(of(1, 1)), None);
        assert!(history.fork(of(2, 0)).is_some());
        assert_eq!(History::empty(Serial(0)).fork(of(1 << 22, 0)), None);
    }
}
