//! Another file below an image, or none: an order that is under way.
//!
//! Always true: what its plan has decided is not refused any more.
//! Deliberately absent: the steps (`core::rebase`).

use super::Volume;
use super::batch::Task;
use crate::adversary::{Bug, has};
use crate::event::Refusal;
use crate::image::Image;
use crate::origin::{Errand, Move};
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
    order: Move,
    step: Step,
    /// Who waits for the end of this step, and is refused then.
    request: Option<RequestId>,
    refusal: Option<Refusal>,
}

impl Rebase {
    fn moves(&self) -> bool {
        self.order.onto.is_some()
    }
}

impl Volume {
    /// Its image is to have more of the disk alone, or to stand on another file.
    pub fn order_rebase(&mut self, order: Move, request: RequestId) {
        assert!(!self.is_rebasing(), "one order at a time");
        assert!(!self.is_dirty(), "nothing is dirty from here on");
        self.image.rebase = Some(Rebase {
            order,
            step: Step::Wait,
            request: Some(request),
            refusal: None,
        });
    }

    pub fn is_rebasing(&self) -> bool {
        self.image.rebase.is_some()
    }

    pub(crate) fn rebase_step(&self) -> Option<Step> {
        self.image.rebase.as_ref().map(|it| it.step)
    }

    /// Who waits for the end of a step of it.
    pub fn rebase_order(&self) -> Option<RequestId> {
        self.image.rebase.as_ref().and_then(|it| it.request)
    }

    fn rebase(&mut self) -> &mut Rebase {
        self.image.rebase.as_mut().expect("an order was given")
    }

    /// Nothing is in its way any more: the plan that it is.
    pub(crate) fn plan_rebase(&mut self) -> Task {
        let rebase = self.rebase();
        assert!(rebase.step == Step::Wait, "it is planned once");
        assert!(rebase.request.is_some(), "an order waits for its plan");
        rebase.step = Step::Plan;
        let (onto, own) = (rebase.order.onto.clone(), &rebase.order.own[..]);
        let early = onto.is_some() && has(Bug::MoveBeforeOwn);
        let own = if early { &[][..] } else { own };
        let (moves, task) = (rebase.moves(), Task::new(Errand::Own(onto), own));
        self.written_ledger().begin_move(moves);
        task
    }

    /// The plan is at the image. Whether the image moves, and whether the disk may be another one.
    pub fn rebase_is_reached(&mut self) -> (bool, bool) {
        let rebase = self.rebase();
        assert!(rebase.step == Step::Plan, "it has waited for that");
        rebase.step = Step::Reached;
        (rebase.moves(), rebase.order.changes)
    }

    /// Its guard is left as well: who has ordered it. One that moves goes on.
    pub fn end_rebase_plan(&mut self) -> RequestId {
        let rebase = self.rebase();
        assert!(rebase.step == Step::Reached, "all of it is at the image");
        let request = rebase.request.take().expect("it was ordered");
        match rebase.moves() {
            true => rebase.step = Step::Moved,
            false => self.image.rebase = None,
        }
        request
    }

    /// Its plan was given up: who is refused. None where the ledger is to be claimed first.
    pub fn refuse_rebase(&mut self, refusal: Refusal) -> Option<RequestId> {
        let rebase = self.rebase();
        assert!(rebase.step != Step::Moved, "what is decided is not refused");
        if rebase.moves() && rebase.step != Step::Wait {
            rebase.refusal = Some(refusal);
            return None;
        }
        let request = rebase.request.expect("it was ordered");
        self.image.rebase = None;
        Some(request)
    }

    /// The host has what is open of the other files. False if its plan is not at the image.
    pub fn begin_to_move(&mut self, request: RequestId) -> bool {
        let moved = |it: &&mut Rebase| it.step == Step::Moved;
        let Some(rebase) = self.image.rebase.as_mut().filter(moved) else {
            return false;
        };
        assert!(rebase.request.is_none(), "one order at a time");
        (rebase.step, rebase.request) = (Step::Empty, Some(request));
        true
    }

    /// Nothing of the image is on its way: who waits for that.
    pub fn is_empty_to_move(&mut self) -> Option<RequestId> {
        let rebase = self.rebase();
        assert!(rebase.step == Step::Empty, "it has waited for that");
        rebase.request.take()
    }

    /// The host has exchanged what is open.
    pub fn image_is_moved(&mut self, image: &Image) {
        let rebase = self.rebase();
        assert!(
            rebase.step == Step::Empty && rebase.request.is_none(),
            "the host was told"
        );
        rebase.step = Step::Exchanged;
        self.sees_written(image);
        self.written_ledger().image_is_moved(image);
    }

    /// The host has come to the end of a move: who had waited for it, and whether the host has
    /// given it up. None if there is nothing to end.
    pub fn end_move(&mut self, request: RequestId) -> Option<(Option<RequestId>, bool)> {
        let open =
            |it: &&mut Rebase| matches!(it.step, Step::Moved | Step::Empty | Step::Exchanged);
        let rebase = self.image.rebase.as_mut().filter(open)?;
        assert!(
            rebase.moves() && rebase.refusal.is_none(),
            "its plan is at the image"
        );
        let given_up = rebase.step != Step::Exchanged;
        let before = rebase.request.replace(request);
        if given_up {
            self.written_ledger().move_is_left();
        }
        Some((before, given_up))
    }

    /// The ledger is to say as before that the log may have more than the image.
    pub fn claim_again(&mut self) {
        let rebase = self.rebase();
        assert!(rebase.step != Step::Claim, "it is claimed once");
        rebase.step = Step::Claim;
        // The image of one that was refused stands where it stood.
        let refused = rebase.refusal.is_some();
        let stays_on = refused.then_some(self.seen_image().below);
        self.written_ledger().end_move(stays_on);
    }

    /// The ledger says so: who has ordered it, and the answer.
    pub fn move_is_told(&mut self) -> (RequestId, Result<(), Refusal>) {
        let rebase = self.image.rebase.take().expect("it was under way");
        assert!(rebase.step == Step::Claim, "its ledger is written once");
        let answer = rebase.refusal.map_or(Ok(()), Err);
        (rebase.request.expect("it was ordered"), answer)
    }

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
