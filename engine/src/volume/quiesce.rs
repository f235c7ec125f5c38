//! A rest of an image, or what comes before.
//!
//! Always true: nothing is exchanged before it was announced; a rest that is kept ends by order.
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
    upto: Serial,
    /// The last cut that the images of a group have by then.
    cut: u64,
    step: Step,
    /// Who waits for the end of this step.
    order: Option<RequestId>,
    /// A rest that other hosts know of: it never ends by itself.
    kept: bool,
    /// One that would have ended by itself.
    short: bool,
}

impl Volume {
    /// Its image is to have all that it has by now, and all cuts up to this one, and to rest then.
    pub fn begin_quiesce(&mut self, cut: u64, order: Option<RequestId>) {
        assert!(self.quiesce.is_none(), "one order at a time");
        let newest = self.epochs.back().map(|epoch| epoch.last_serial);
        let upto = newest.map_or(self.destaged(), |it| it.max(self.destaged()));
        self.want(upto);
        self.quiesce = Some(Quiesce {
            upto,
            cut,
            step: Step::Drain,
            order,
            kept: false,
            short: false,
        });
    }

    /// Its image rests, or is to.
    pub fn is_quiescing(&self) -> bool {
        self.quiesce.is_some()
    }

    pub(crate) fn quiesce_step(&self) -> Option<Step> {
        self.quiesce.map(|it| it.step)
    }

    /// The last cut that the images of its group have when they rest.
    pub fn quiesce_cut(&self) -> Option<u64> {
        self.quiesce.map(|it| it.cut)
    }

    /// Its image rests from here on: who waits for that.
    pub fn begin_rest(&mut self) -> Option<RequestId> {
        let quiesce = self.quiesce.as_mut()?;
        let early = matches!(quiesce.step, Step::Drain | Step::Rest);
        assert!(early, "what rests is not exchanged yet");
        quiesce.step = Step::Rest;
        quiesce.order.take()
    }

    /// It cannot come to rest: who waits for that.
    pub fn refuse_quiesce(&mut self) -> Option<RequestId> {
        let drains = self.quiesce.take_if(|it| it.step == Step::Drain);
        drains.and_then(|it| it.order)
    }

    /// Its rest is over where it has begun, and nothing is being exchanged.
    pub fn resume(&mut self) {
        self.quiesce.take_if(|it| it.step == Step::Rest);
    }

    /// Its rest is over before it was ordered to be.
    pub fn break_rest(&mut self) {
        let rest = self.quiesce.take();
        let rested = rest.is_some();
        let early = rest.is_none_or(|it| it.step == Step::Rest);
        assert!(early, "an exchange goes to its end");
        self.counters.rests_ended += u64::from(rested);
    }

    /// It goes: who waits for something of its rest.
    pub fn forget_quiesce(&mut self) -> Option<RequestId> {
        self.quiesce.take().and_then(|it| it.order)
    }

    /// Its ledger is to say that another file may take the place of the image, or that none may.
    pub(crate) fn tell_exchange(&mut self, step: Step, order: RequestId) {
        assert!(self.is_still(), "nothing writes image or ledger");
        assert!(matches!(step, Step::Announce | Step::Settle));
        let quiesce = self.quiesce.as_mut().expect("its image rests");
        (quiesce.step, quiesce.order) = (step, Some(order));
        self.written_ledger().announce(step == Step::Announce);
    }

    /// The ledger says so: who waits for that.
    pub fn exchange_is_told(&mut self) -> Option<RequestId> {
        let quiesce = self.quiesce.as_mut()?;
        let order = quiesce.order.take().expect("it was ordered");
        match quiesce.step {
            Step::Announce => quiesce.step = Step::Announced,
            step => {
                assert!(step == Step::Settle, "a ledger is written in two steps");
                self.quiesce = None;
            }
        }
        Some(order)
    }

    /// Requests to its image wait from here on, and what is in flight may take so long. False if
    /// no exchange was announced.
    pub fn begin_to_empty(&mut self, until: Time, order: RequestId) -> bool {
        let announced = |it: &&mut Quiesce| it.step == Step::Announced;
        let Some(quiesce) = self.quiesce.as_mut().filter(announced) else {
            return false;
        };
        assert!(quiesce.order.is_none(), "one order at a time");
        (quiesce.step, quiesce.order) = (Step::Empty { until }, Some(order));
        true
    }

    /// Who waits for this step of an exchange, and is answered now.
    pub fn take_exchange_order(&mut self) -> Option<RequestId> {
        self.quiesce.as_mut().and_then(|it| it.order.take())
    }

    /// It was not empty in time: the exchange is as it was announced.
    pub fn stay_announced(&mut self) {
        let quiesce = self.quiesce.as_mut().expect("it was to be empty");
        assert!(matches!(quiesce.step, Step::Empty { .. }) && quiesce.order.is_none());
        quiesce.step = Step::Announced;
    }

    /// The host has exchanged the files.
    pub fn image_is_exchanged(&mut self) {
        let quiesce = self.quiesce.as_mut().expect("it is empty");
        assert!(
            matches!(quiesce.step, Step::Empty { .. }),
            "the host was told"
        );
        quiesce.step = Step::Exchanged;
    }

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
            _ if self.is_unproved() => Some(Refusal::Unproved),
            _ if failed || self.bypass != Bypass::None => Some(Refusal::CacheFailed),
            _ => None,
        }
    }

    /// Nothing of a destage is on its way, and nothing of its ledger.
    pub(crate) fn is_still(&self) -> bool {
        self.is_ready() && !self.is_destaging() && !self.is_ledger_busy()
    }
}

/// The image of a volume rests until an order ends that; `begins`: from now on, if it does not yet.
/// False if it does not.
pub(crate) fn keep_rest(volume: &mut Volume, begins: bool) -> bool {
    if begins && volume.quiesce.is_none() {
        volume.quiesce = Some(Quiesce {
            upto: volume.destaged(),
            cut: 0,
            step: Step::Rest,
            order: None,
            kept: false,
            short: false,
        });
        assert!(volume.is_drained(), "nothing is on its way to the image");
    }
    let rest = volume.quiesce.as_mut();
    let rest = rest.filter(|it| it.step == Step::Rest);
    rest.map(|it| it.kept = true).is_some()
}

/// It rests, and no need of this host ends that.
pub(crate) fn keeps_rest(volume: &Volume) -> bool {
    let kept = volume.quiesce.filter(|it| it.kept);
    let rests = kept.is_none_or(|it| it.step == Step::Rest);
    assert!(rests, "what is kept is not exchanged");
    kept.is_some()
}

/// The log needs the room of a rest that is kept.
pub(crate) fn want_end_of_rest(volume: &mut Volume) {
    assert!(keeps_rest(volume), "others end by themselves");
    if let Some(rest) = &mut volume.quiesce {
        rest.short = true;
    }
}

pub(crate) fn rest_is_short(volume: &Volume) -> bool {
    let short = volume.quiesce.is_some_and(|it| it.short);
    assert!(!short || keeps_rest(volume), "others end at once");
    short
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ORDER, volume};
    use super::*;

    #[test]
    fn a_rest_that_has_begun_ends_by_an_order_or_by_need() {
        let mut volume = volume();
        volume.begin_quiesce(0, Some(ORDER));
        volume.resume();
        assert!(volume.is_quiescing() && !volume.rests());
        assert_eq!(volume.begin_rest(), Some(ORDER));
        assert!(volume.rests() && volume.refuse_quiesce().is_none());
        volume.break_rest();
        assert!(!volume.is_quiescing() && volume.counters.rests_ended == 1);
    }

    #[test]
    fn a_rest_that_is_kept_says_that_it_is_short_and_goes_on() {
        let mut volume = volume();
        assert!(!keep_rest(&mut volume, false), "nothing rests");
        assert!(keep_rest(&mut volume, true) && volume.rests() && volume.is_drained());
        assert!(keeps_rest(&volume) && !rest_is_short(&volume));
        want_end_of_rest(&mut volume);
        assert!(volume.rests() && rest_is_short(&volume));
        volume.break_rest();
        assert!(!keeps_rest(&volume) && volume.counters.rests_ended == 1);
        volume.begin_quiesce(0, None);
        assert!(!keep_rest(&mut volume, true), "it drains first");
        volume.begin_rest();
        assert!(
            !keeps_rest(&volume) && !rest_is_short(&volume),
            "it ends by itself"
        );
    }

    #[test]
    fn nothing_is_emptied_that_was_not_announced() {
        let mut volume = volume();
        volume.begin_quiesce(0, None);
        volume.begin_rest();
        assert!(!volume.begin_to_empty(Time(9), ORDER));
        assert!(!volume.holds_for_exchange());
    }
}
