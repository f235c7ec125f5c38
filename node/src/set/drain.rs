//! The right of the owner to write the origin, and the way to it after a takeover.
//!
//! Always true: the right is in the record; the drainer of before is asked for its word each second
//! until there is proof, and its word counts only for this ownership; the ledger of the next epoch
//! is there before the record that names it. Deliberately absent: other proof, which the host has.

use super::{Action, Cx, Set};
use crate::broken::{Rule, has};
use crate::record::{Epoch, Holder};
use alloc::string::String;
use engine::types::Uuid;

impl Set {
    /// The record gives the right to write the origin to this boot of this host.
    pub fn may_drain(&self) -> bool {
        let drainer = match has(Rule::DrainerHasProof) {
            true => self.record.owner.as_ref(),
            false => self.record.drainer(),
        };
        !self.ended
            && drainer.is_some_and(|it| it.is_same_host(&self.me) && it.boot == self.me.boot)
    }

    /// The host that may still write the origin, if there is no proof that it does not.
    pub fn waits_for(&self) -> Option<&Holder> {
        let drainer = self.record.drainer();
        let other = drainer.filter(|it| it.host != self.me.host);
        other.filter(|_| !self.ended && !self.is_proved())
    }

    pub(super) fn is_proved(&self) -> bool {
        self.proved == Some(self.record.epoch)
    }

    /// What the host that may still write the origin says of that.
    pub(super) fn released(&mut self, from: Uuid, number: u64, epoch: Epoch) {
        let known = number >= self.record.given || has(Rule::ReleaseIsOfThisOwner);
        let fits = known && number <= self.record.number && epoch == self.record.epoch;
        if fits && self.waits_for().is_some_and(|it| it.host == from) {
            self.proved = Some(epoch);
        }
    }

    pub(super) fn prepare(&mut self, cx: &mut Cx<'_>) {
        let of = self.record.epoch;
        let epoch = Epoch {
            number: of.number + 1,
            nonce: cx.nonces.fresh(),
        };
        self.preparing = Some(epoch);
        cx.out.push(Action::Prepare { of, epoch });
    }

    pub(super) fn prepared(&mut self, cx: &mut Cx<'_>, made: Result<(), String>) {
        let (Some(epoch), Ok(())) = (self.preparing.take(), made) else {
            self.paused = true;
            return;
        };
        // The change of a moment ago may have ended what the proof was about.
        if self.change.is_none() && epoch.number == self.record.epoch.number + 1 {
            let mut record = self.draft(cx, self.record.members.clone());
            (record.epoch, record.drainer) = (epoch, None);
            self.propose(cx, record);
        }
    }
}
