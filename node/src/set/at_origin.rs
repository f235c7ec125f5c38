//! Flushes that are answered when the origin has what they cover, because copies are missing and
//! the volume is set so.
//!
//! ```text
//! Degraded, and the origin may be written ─▶ the log obeys ─▶ the origin has all that may have
//!    been answered before ─▶ record with `at_origin` ─ Full again, or set otherwise ─▶ without
//! ```
//! Always true: while the newest record says `at_origin`, the origin has every flush that was
//! acknowledged, so that another host may go on with it alone; the log obeys from before that
//! record is made until after a record without it is decided. An owner that begins again, with more
//! than the origin has, is served only after a record without it. A copy that the owner lacks is
//! made meanwhile as ever. Deliberately absent: how the log obeys; what another host does with such
//! a record, which is [`crate::unit`].

use super::own_log::{self, OwnLog};
use super::{Set, rests};
use crate::broken::{Rule, has};
use crate::record::Member;
use engine::types::Serial;

/// How far the log and the record are with that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AtOrigin {
    /// As the volume is set.
    wanted: bool,
    /// The log does what it is to do.
    obeys: bool,
    /// The unit is not served before its record says otherwise.
    unbegun: bool,
    pub own_log: OwnLog,
}

impl AtOrigin {
    pub fn new(wanted: bool) -> AtOrigin {
        AtOrigin {
            wanted,
            obeys: false,
            unbegun: false,
            own_log: OwnLog::Good,
        }
    }

    pub fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    pub fn obeys(&self) -> bool {
        self.obeys
    }

    /// The log does by now, or does no more, what it is to do. True if it began just now: up to
    /// this moment it may have answered all that was written.
    pub fn obey(&mut self, obeys: bool) -> bool {
        let before = core::mem::replace(&mut self.obeys, obeys);
        obeys && !before
    }

    /// It is to do so, or not: what it did before has to be said anew.
    pub fn forget_unless(&mut self, answers: bool) {
        self.obeys &= answers;
    }

    pub fn is_unbegun(&self) -> bool {
        self.unbegun
    }

    /// False if the unit waits for a record.
    pub fn begin(&mut self, ahead: bool) -> bool {
        self.unbegun = ahead;
        !ahead
    }
}

/// It would be so, but for a backup window.
fn lacks(set: &Set, members: &[Member]) -> bool {
    let wanted = set.origin.wanted || own_log::is_past(set);
    wanted && set.may_drain() && set.degraded(members).is_some()
}

/// A backup window is in the way of that: what was promised for the time without a copy comes
/// before it.
pub fn breaks_window(set: &Set) -> bool {
    rests(set) && lacks(set, &set.record.members)
}

/// Before there is the right to write the origin, and while it rests, only copies can have a flush.
fn wants(set: &Set, members: &[Member]) -> bool {
    lacks(set, members) && !rests(set)
}

impl Set {
    /// Flushes are to be answered by what the origin has.
    pub fn answers_at_origin(&self) -> bool {
        let changing = self.changing().is_some_and(|record| record.at_origin);
        let named = self.record.at_origin || changing;
        !self.ended && (named || wants(self, &self.record.members))
    }

    /// The log does what [`Self::answers_at_origin`] says, as far as the set was told.
    pub fn obeys(&self) -> bool {
        self.origin.obeys()
    }

    /// What the next record says of that, if it names these members.
    pub(super) fn at_origin_with(&self, members: &[Member]) -> bool {
        let has_all = self.acknowledged <= self.destaged || has(Rule::OriginHasFlushes);
        // What is written without the log is acknowledged when the origin has it.
        let obeys = self.record.at_origin || self.origin.obeys || own_log::is_past(self);
        wants(self, members) && obeys && has_all
    }

    /// Of what is durable at the members, what may be acknowledged.
    pub(super) fn within_origin(&self, safe: Serial) -> Serial {
        let obeys = self.origin.obeys || self.record.at_origin;
        match obeys && self.answers_at_origin() {
            true => safe.min(self.destaged),
            false => safe,
        }
    }
}
