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
    pub wanted: Policy,
    /// Those who ordered it.
    pub waiters: Vec<RequestId>,
    /// Asked for without an order too, and so not given up when it fails.
    pub configured: bool,
    pub(crate) step: Step,
}

impl Switch {
    /// One that was not ordered.
    pub fn towards(wanted: Policy) -> Switch {
        Switch {
            wanted,
            waiters: Vec::new(),
            configured: true,
            step: Step::Start,
        }
    }
}

impl Volume {
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
