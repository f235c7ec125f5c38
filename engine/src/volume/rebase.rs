//! Another file below an image, or none: an order that is under way.
//!
//! Always true: what its plan has decided is not refused any more.
//! Deliberately absent: the steps (`core::rebase`).

use super::Volume;
use crate::event::Refusal;
use crate::origin::Move;
use crate::types::RequestId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    Plan,
    /// The plan is at the image.
    Reached,
    Moved,
    Empty,
    Exchanged,
    Claim,
}

/// One that is under way.
#[derive(Clone, Debug)]
pub struct Rebase {
    pub(crate) order: Move,
    pub(crate) step: Step,
    /// Who waits for the end of this step, and is refused then.
    pub(crate) request: Option<RequestId>,
    pub(crate) refusal: Option<Refusal>,
}

impl Rebase {
    pub fn request(&self) -> Option<RequestId> {
        self.request
    }

    pub(crate) fn moves(&self) -> bool {
        self.order.onto.is_some()
    }
}

impl Volume {
    /// Its image moves to another file.
    pub fn is_moving(&self) -> bool {
        self.image.rebase.as_ref().is_some_and(Rebase::moves)
    }

    /// Its plan is not at the image yet, which stands where it stood.
    pub(crate) fn plans_move(&self) -> bool {
        let early = |it: &Rebase| matches!(it.step, Step::Wait | Step::Plan | Step::Reached);
        self.image.rebase.as_ref().is_some_and(early)
    }

    /// What is left of the plan before, for which the move waits, or what its own plan has decided,
    /// goes to the image.
    pub(crate) fn applies_move(&self) -> bool {
        self.plans_move() && self.is_ready() && self.misfit().is_none()
    }
}
