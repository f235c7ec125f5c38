//! A rest of an image, or what comes before.
//!
//! Always true: nothing is exchanged before it was announced.
//! Deliberately absent: the steps (`core::quiesce`).

use super::{Bypass, Volume};
use crate::event::Refusal;
use crate::snapshot::State;
use crate::types::{Policy, RequestId, Serial, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Drain,
    Rest,
    Announce,
    Announced,
    Empty { until: Time },
    Exchanged,
    Settle,
}

/// A rest of an image, or what comes before.
#[derive(Clone, Copy, Debug)]
pub struct Quiesce {
    /// What the image has by then, of a volume that stands alone.
    pub(crate) upto: Serial,
    /// The last cut that the images of a group have by then.
    pub(crate) cut: u64,
    pub(crate) step: Step,
    /// Who waits for the end of this step.
    pub(crate) order: Option<RequestId>,
}

impl Volume {
    /// Its image rests.
    pub fn rests(&self) -> bool {
        self.quiesce.is_some_and(|it| it.step != Step::Drain)
    }

    /// No request to its image begins.
    pub fn holds_for_exchange(&self) -> bool {
        let empties = |it: &Quiesce| matches!(it.step, Step::Empty { .. });
        self.quiesce.as_ref().is_some_and(empties) || self.is_moving()
    }

    /// Another file takes the place of its image, or did so a moment ago.
    pub fn is_exchanging(&self) -> bool {
        let early = |it: &Quiesce| matches!(it.step, Step::Drain | Step::Rest);
        self.quiesce.as_ref().is_some_and(|it| !early(it)) || self.is_moving()
    }

    /// Of a volume that stands alone: its image has all that was written before it was to rest.
    pub(crate) fn is_drained(&self) -> bool {
        self.quiesce.is_some_and(|it| self.destaged() >= it.upto)
    }

    /// Why its image cannot be brought to rest.
    pub(crate) fn quiesce_refusal(&self, failed: bool) -> Option<Refusal> {
        match self.state() {
            _ if self.is_gone() => Some(Refusal::Gone),
            _ if self.policy != Policy::WriteBack || self.read_only => Some(Refusal::Policy),
            _ if self.switch.is_some() => Some(Refusal::Policy),
            _ if self.resize.is_some() || self.quiesce.is_some() => Some(Refusal::Busy),
            _ if self.image.rebase.is_some() => Some(Refusal::Busy),
            _ if self.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ if failed || self.bypass != Bypass::None => Some(Refusal::CacheFailed),
            _ => None,
        }
    }

    /// Nothing of a destage is on its way, and nothing of its ledger.
    pub(crate) fn is_still(&self) -> bool {
        self.is_ready() && !self.is_destaging() && !self.is_ledger_busy()
    }
}
