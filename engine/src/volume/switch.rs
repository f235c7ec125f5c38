//! A change of policy that is under way.
//!
//! Always true: new writes wait from *Last* and *Quiet* on, reads never.
//! Deliberately absent: the steps (`core::switch`).

use super::Volume;
use crate::snapshot::State;
use crate::types::{Policy, RequestId, Serial, Time};
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Start,
    Rest {
        until: Time,
    },
    /// What is dirty up to here is being destaged; behind it so many blocks may become dirty.
    Drain {
        upto: Serial,
        room: u64,
    },
    Last,
    Release,
    Table,
    Quiet,
    Sync,
    Name,
    /// A checkpoint names it; a change of size may still write the ledger.
    Named,
    Claim,
}

/// A change of policy under way.
pub struct Switch {
    wanted: Policy,
    /// Those who ordered it.
    waiters: Vec<RequestId>,
    /// Asked for without an order too, and so not given up when it fails.
    configured: bool,
    step: Step,
}

impl Switch {
    /// One that was not ordered.
    fn towards(wanted: Policy) -> Switch {
        Switch {
            wanted,
            waiters: Vec::new(),
            configured: true,
            step: Step::Start,
        }
    }
}

impl Volume {
    /// The configuration wants another policy than it has as it is attached.
    pub fn begin_switch(&mut self, wanted: Policy) {
        assert!(!self.is_ready(), "it has just come");
        self.switch = Some(Switch::towards(wanted));
    }

    /// What was turned away from the log by a device that failed comes back to it.
    pub fn switch_back(&mut self) {
        let towards = || Switch::towards(Policy::WriteBack);
        self.switch.get_or_insert_with(towards);
    }

    /// An administrator's order.
    pub fn order_switch(&mut self, wanted: Policy, request: RequestId) {
        assert!(self.is_attached(), "orders are for volumes that are there");
        assert!(!self.is_detaching(), "a volume that goes keeps its policy");
        let switch = self.switch.get_or_insert_with(|| Switch {
            configured: false,
            ..Switch::towards(wanted)
        });
        switch.configured &= wanted == switch.wanted;
        switch.wanted = wanted;
        switch.waiters.push(request);
        let early = matches!(switch.step, Step::Drain { .. } | Step::Last);
        let rests = matches!(switch.step, Step::Rest { .. });
        if rests || early && wanted == Policy::WriteBack {
            // Nothing has been given up yet.
            switch.step = Step::Start;
        }
    }

    pub fn is_switching(&self) -> bool {
        self.switch.is_some()
    }

    /// The policy that it is on its way to.
    pub fn switches_to(&self) -> Option<Policy> {
        self.switch.as_ref().map(|switch| switch.wanted)
    }

    pub(crate) fn switch_step(&self) -> Option<Step> {
        self.switch.as_ref().map(|switch| switch.step)
    }

    pub(crate) fn switch_goes_to(&mut self, step: Step) {
        let switch = self.switch.as_mut().expect("a switch is under way");
        assert!(switch.step != step, "a step comes to its end");
        switch.step = step;
    }

    /// The ledger says that nothing is held: what is wanted, of a switch that has waited for that.
    pub fn switch_has_released(&mut self) -> Option<Policy> {
        let switch = self.switch.as_mut()?;
        if switch.step != Step::Release {
            return None;
        }
        assert!(self.epochs.is_empty(), "the origin has what the log had");
        switch.step = Step::Table;
        Some(switch.wanted)
    }

    /// The sync before it has failed. Who has ordered it, if that is refused; one that was not
    /// ordered alone rests so long.
    pub fn switch_sync_failed(&mut self, until: Time) -> Vec<RequestId> {
        let switch = self.switch.as_mut().expect("a switch is under way");
        assert!(switch.step == Step::Sync, "it has waited for that");
        if switch.wanted != Policy::WriteBack {
            // A later order, which needs no sync.
            switch.step = Step::Start;
            return Vec::new();
        }
        switch.step = Step::Rest { until };
        let refused = core::mem::take(&mut switch.waiters);
        self.switch.take_if(|switch| !switch.configured);
        refused
    }

    /// The policy is in effect: who has ordered it. An order that came in between begins from here.
    pub fn switch_is_over(&mut self, policy: Policy) -> Vec<RequestId> {
        let switch = self.switch.as_mut().expect("a switch is under way");
        if switch.wanted != policy {
            switch.step = Step::Start;
            return Vec::new();
        }
        let done = self.switch.take().map(|switch| switch.waiters);
        assert!(!self.is_switching(), "it is over");
        done.unwrap_or_default()
    }

    /// It keeps its policy: who had ordered another one, and whether its configuration wants it to
    /// be write-back still.
    pub fn drop_switch(&mut self) -> (Vec<RequestId>, bool) {
        let Some(switch) = self.switch.take() else {
            return (Vec::new(), false);
        };
        let back = switch.wanted == Policy::WriteBack && switch.configured;
        (switch.waiters, back)
    }

    /// New writes wait for the end of a switch; one that has begun is finished.
    pub fn holds_writes(&self) -> bool {
        let goes_on = |step| matches!(step, Step::Start | Step::Rest { .. } | Step::Drain { .. });
        let held = |switch: &Switch| !goes_on(switch.step);
        let switching = self.switch.as_ref().is_some_and(held);
        !self.is_in_part() && (switching || self.bypass.holds_writes())
    }

    /// Why a switch that was not ordered is not at its end.
    pub fn switch_reason(&self) -> Option<&'static str> {
        let rests = |switch: &Switch| matches!(switch.step, Step::Rest { .. });
        let rests = self.switch.as_ref().is_some_and(rests);
        rests.then_some(
            "the origin could not be synced, so write-back has to wait; it is tried each minute",
        )
    }

    /// A switch is under way that a log which fails would keep waiting.
    pub fn switch_waits_for_log(&self) -> bool {
        let waits = |switch: &Switch| !matches!(switch.step, Step::Named | Step::Claim);
        self.switch.as_ref().is_some_and(waits)
    }

    /// Whether a switch leaves room for so many more dirty blocks. While the origin does not take
    /// them there is no end to wait for, and the volume's own limit counts alone.
    pub fn has_switch_room(&self, blocks: u64) -> bool {
        let Some(Step::Drain { upto, room }) = self.switch.as_ref().map(|switch| switch.step)
        else {
            return true;
        };
        let fresh = self.epochs.iter().filter(|epoch| epoch.last_serial > upto);
        let fresh: u64 = fresh.map(|epoch| epoch.charge).sum();
        let stuck = matches!(self.state(), State::Stalled | State::Damaged);
        stuck || fresh == 0 || fresh + blocks <= room
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::types::ConnectionId;

    fn request(number: u32) -> RequestId {
        RequestId {
            connection: ConnectionId(1),
            number,
        }
    }

    #[test]
    fn an_order_that_comes_in_between_begins_where_the_one_before_ends() {
        let mut volume = volume();
        volume.has_come();
        volume.order_switch(Policy::Uncached, request(1));
        volume.switch_goes_to(Step::Release);
        volume.order_switch(Policy::WriteBack, request(2));
        assert!(volume.switch_is_over(Policy::Uncached).is_empty());
        assert_eq!(volume.switch_step(), Some(Step::Start));
        let done = volume.switch_is_over(Policy::WriteBack);
        assert_eq!(done, [request(1), request(2)]);
    }

    #[test]
    fn what_configuration_wants_is_tried_again_and_an_order_is_refused() {
        let mut volume = volume();
        volume.begin_switch(Policy::WriteBack);
        volume.switch_goes_to(Step::Sync);
        let until = Time(7);
        assert!(volume.switch_sync_failed(until).is_empty());
        assert_eq!(volume.switch_step(), Some(Step::Rest { until }));
        assert_eq!(volume.drop_switch(), (Vec::new(), true));
        volume.has_come();
        volume.order_switch(Policy::WriteBack, request(1));
        volume.switch_goes_to(Step::Sync);
        assert_eq!(volume.switch_sync_failed(until), [request(1)]);
        assert!(!volume.is_switching());
    }
}
