//! Whether the image of a volume is this host's to write.
//!
//! ```text
//! (attached) ─▶ Given
//! (attached without proof) ─▶ Unproved ─ordered─▶ Emptying ─nothing under way─▶ Empty
//!                                ▲                                               │
//!                                └──────────── refused ──────────┬── attached ───┘
//!                                                                └─▶ Given
//! ```
//! Always true: before there is proof the image is read and nothing of it is written, and neither
//! is its ledger or its journal (rule C10); guests are served from the log all the same. What the
//! image has where the log has nothing is final, so reading it is safe. Requests wait while the
//! files of the volume are exchanged for those of its writer, and are refused by none of this.
//! Deliberately absent: what proof is; the machines of the cluster know.

use super::Volume;
use crate::types::RequestId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Right {
    #[default]
    Given,
    /// Another host may still write the image.
    Unproved,
    /// There is proof; requests to the image end.
    Emptying(RequestId),
    /// It is to be attached again.
    Empty,
}

impl Volume {
    /// It was just attached.
    pub fn begins(&mut self, unproved: bool) {
        assert!(self.is_attached(), "it has come");
        self.right = match unproved {
            true => Right::Unproved,
            false => Right::Given,
        };
    }

    /// Nothing of its image may be written.
    pub fn is_unproved(&self) -> bool {
        self.right != Right::Given
    }

    /// Nothing touches its files, and requests wait.
    pub fn is_empty_for_proof(&self) -> bool {
        self.right == Right::Empty
    }

    /// False if it has the right already, or is about to have it.
    pub fn begin_to_prove(&mut self, order: RequestId) -> bool {
        let begins = self.right == Right::Unproved && self.is_ready();
        if begins {
            self.right = Right::Emptying(order);
        }
        begins
    }

    /// No request begins; the rest of a write that has begun is no new one.
    pub(crate) fn holds_for_proof(&self) -> bool {
        self.prove_order().is_some() && !self.is_in_part()
    }

    /// Who waits for the end of what is under way.
    pub fn prove_order(&self) -> Option<RequestId> {
        match self.right {
            Right::Emptying(order) => Some(order),
            Right::Given | Right::Unproved | Right::Empty => None,
        }
    }

    /// Nothing is under way.
    pub fn empty_for_proof(&mut self) {
        assert!(self.prove_order().is_some(), "it was ordered");
        assert!(!self.has_requests() && !self.has_reads());
        self.right = Right::Empty;
        self.steps_back();
    }

    /// It could not be attached with the right to write: all is as before.
    pub fn stays_unproved(&mut self) {
        assert!(self.is_empty_for_proof(), "it was about to have it");
        self.right = Right::Unproved;
        self.has_come();
    }

    /// It goes: who waited for the proof.
    pub fn drop_proof(&mut self) -> Option<RequestId> {
        let order = self.prove_order()?;
        self.right = Right::Unproved;
        Some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ORDER, volume};

    #[test]
    fn a_volume_without_proof_is_emptied_once_and_may_stay_as_it_was() {
        let mut volume = volume();
        assert!(!volume.is_unproved() && !volume.begin_to_prove(ORDER));
        volume.has_come();
        volume.begins(true);
        assert!(volume.holds_destage() && !volume.begin_to_prove(ORDER));
        volume.open();
        assert!(volume.begin_to_prove(ORDER) && !volume.begin_to_prove(ORDER));
        assert!(volume.holds_for_proof() && volume.prove_order() == Some(ORDER));
        volume.set_left_in_part(8);
        assert!(!volume.holds_for_proof(), "a write that has begun ends");
        volume.set_left_in_part(0);
        volume.empty_for_proof();
        assert!(volume.is_empty_for_proof() && !volume.is_attached());
        volume.stays_unproved();
        assert!(volume.is_attached() && volume.holds_destage());
    }

    #[test]
    fn a_volume_that_goes_answers_who_waits_for_its_proof() {
        let mut volume = volume();
        volume.has_come();
        volume.begins(true);
        volume.open();
        assert!(volume.begin_to_prove(ORDER));
        assert_eq!(volume.drop_proof(), Some(ORDER));
        assert!(volume.is_unproved() && volume.drop_proof().is_none());
    }
}
