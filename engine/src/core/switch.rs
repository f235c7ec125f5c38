//! Changing the policy of a volume while its guest goes on.
//!
//! ```text
//! away from write-back:    Start ─▶ Drain ─▶ Last ─▶ Release ─▶ Table ─▶ (new policy)
//! to write-back:           Start ─▶ Quiet ─▶ Sync ─▶ Name ─▶ Claim ─▶ (write-back)
//!                            ▲                 └─ fails ─▶ (as before), or Rest
//!                            └──────── a minute later ────────────────────┘
//! uncached, write-through: Start ─▶ (new policy)
//! ```
//!
//! *Drain* destages while the guest goes on; each round may leave at most half as much dirty data
//! as it began with, so it ends however fast the guest writes. From *Last* and *Quiet* on new
//! writes wait; reads and flushes never do. *Release* and *Claim* write the ledger, *Table* and
//! *Name* a checkpoint; *Sync* syncs the origin. When that fails those who ordered the switch are
//! refused; one that configuration or a device that is good again asks for is tried again after a
//! *Rest*, in which the guest goes on as before.
//!
//! Always true: the policy in effect changes at the end, in one step, and is what every
//! acknowledgment follows until then. The origin is written past the log only after the ledger
//! says that all of the log is there and a checkpoint no longer needs it; a checkpoint names a
//! volume write-back only when all that went past the log is synced, so that no flush, before
//! or after a kill, is left without its data; the ledger of a volume that goes past the log
//! says so ([`go_past_log`](crate::format::ledger::Ledger::go_past_log)), for a cache that does
//! not know the volume; the log takes a write only when checkpoint and ledger say so. Killed at
//! any time, a recovery finds a volume that either has dirty data, and is write-back until that
//! is destaged, or one that goes on by the way it had last. A switch to uncached gives the
//! layer a new identity. Deliberately absent: ephemeral volumes, which owe their origin nothing
//! and never change.

use super::Core;
use super::checkpoint::Waiter;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose, Refusal};
use crate::outbox::{Cx, Pending};
use crate::snapshot::State;
use crate::types::{Policy, RequestId, VolumeId};
use crate::volume::ledger::LedgerStep;
use crate::volume::switch::Step;

/// Blocks (1 MiB) that are few enough to hold writes for while they are destaged; of a small log
/// a small part.
const LAST_BLOCKS_MAX: u64 = 256;

const LAST_SHARE_OF_LOG: u64 = 64;

/// An origin that could not be synced is tried again so much later.
const REST_MS: u64 = 60_000;

const _: () = assert!(LAST_BLOCKS_MAX > 0 && LAST_SHARE_OF_LOG > 1);

impl Core {
    /// An administrator's order.
    pub(super) fn switch(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        wanted: Policy,
        journal_possible: bool,
    ) {
        let failed = self.health.is_failed();
        let volume = self.volume(id);
        let ephemeral = wanted == Policy::Ephemeral || volume.policy == Policy::Ephemeral;
        let refusal = match volume.state() {
            _ if volume.is_detaching() || !volume.is_attached() => Some(Refusal::Gone),
            _ if ephemeral && wanted != volume.policy => Some(Refusal::Policy),
            // A plan has its journal.
            _ if volume.is_mapped() && wanted == Policy::WriteBack && !journal_possible => {
                Some(Refusal::Policy)
            }
            _ if volume.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ if failed && wanted == Policy::WriteBack => Some(Refusal::CacheFailed),
            _ if volume.bypass().holds_writes() => Some(Refusal::CacheFailed),
            _ if volume.is_unproved() && wanted != volume.policy => Some(Refusal::Unproved),
            _ if volume.has_peers() && wanted != volume.policy => Some(Refusal::Busy),
            _ if volume.is_quiescing() && wanted != volume.policy => Some(Refusal::Busy),
            _ => None,
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        if wanted == Policy::WriteBack && volume.policy.is_direct() {
            volume.journal_place_found(journal_possible);
        }
        volume.order_switch(wanted, request);
    }

    /// The device is good again: what is write-back by its administrator's order becomes so.
    pub(super) fn switch_back(&mut self, id: VolumeId) {
        self.volume(id).switch_back();
        self.touch(id);
    }

    /// Takes a switch as far as it goes without waiting.
    pub(super) fn pump_switch(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        while self.switch_step(cx, id) {}
    }

    /// One step; false if there is none, or it waits.
    fn switch_step(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let Some(volume) = self.find(id) else {
            return false;
        };
        let Some(step) = volume.switch_step().filter(|_| volume.serves()) else {
            return false;
        };
        match step {
            Step::Start => self.start_switch(cx, id),
            Step::Rest { until } => {
                let over = cx.now >= until;
                if over {
                    self.volume(id).switch_goes_to(Step::Start);
                }
                over
            }
            Step::Drain { upto, .. } => {
                let done = volume.epochs.front().is_none_or(|e| e.last_serial > upto);
                if done {
                    self.next_round(id);
                }
                done
            }
            Step::Last if volume.is_dirty() => {
                self.want_destage(id);
                false
            }
            Step::Last => {
                let writes = volume.is_destaging() || volume.is_replaying();
                let busy = writes || volume.is_in_part();
                !busy && self.release_ledger(cx, id)
            }
            // A sync of a switch that was given up says nothing of what was written since.
            Step::Quiet
                if !volume.writes_directly()
                    && volume.allocator().is_idle()
                    && !volume.syncs_for_switch() =>
            {
                self.volume(id).switch_goes_to(Step::Sync);
                let volume = self.volume(id);
                volume.sync_of_switch_begins();
                volume.request_begins();
                volume.counters.origin.syncs += 1;
                let (pending, device) = (Pending::SwitchSync { volume: id }, Device::Origin(id));
                let op = Op::sync_unless(Bug::SkipSwitchSync);
                cx.order(pending, Purpose::GuestWrite, device, op, 0, 0);
                false
            }
            Step::Named => {
                self.claim_by_switch(cx, id);
                false
            }
            Step::Release | Step::Table | Step::Name | Step::Claim | Step::Quiet | Step::Sync => {
                false
            }
        }
    }

    fn start_switch(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let volume = self.volume(id);
        assert!(
            !volume.is_detaching() && volume.is_attached(),
            "a volume that goes keeps its policy"
        );
        let wanted = volume.switches_to().expect("it starts");
        let owned = volume.policy == Policy::WriteBack && !volume.is_read_only();
        if wanted == volume.policy {
            self.end_switch(cx, id, wanted);
        } else if owned {
            self.next_round(id);
        } else if wanted == Policy::WriteBack && !volume.is_read_only() {
            self.volume(id).switch_goes_to(Step::Quiet);
        } else {
            self.end_switch(cx, id, wanted);
        }
        true
    }

    /// Begins to destage what is dirty now, or goes on to the end when that is little.
    fn next_round(&mut self, id: VolumeId) {
        let few = LAST_BLOCKS_MAX.min(self.log.gauge().capacity / LAST_SHARE_OF_LOG);
        let volume = self.volume(id);
        let charge = volume.charge();
        let Some(epoch) = volume.epochs.back().filter(|_| charge > few) else {
            self.volume(id).switch_goes_to(Step::Last);
            return;
        };
        let (upto, open) = (epoch.last_serial, !epoch.sealed);
        self.want_destage(id);
        let volume = self.volume(id);
        // A write that has begun belongs to the epoch it began in.
        if has(Bug::SwitchInCut) {
            volume.epochs.back_mut().expect("just seen").sealed = true;
        } else if open && !self.is_between(&self.members(id)) {
            self.seal(id);
        }
        mark(Mark::SwitchDrains);
        let room = (charge / 2).max(few);
        self.volume(id).switch_goes_to(Step::Drain { upto, room });
        self.touch(id);
    }

    /// Everything is at the origin and synced: the ledger says so. False while it is busy.
    fn release_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let volume = self.volume(id);
        assert!(
            !volume.is_dirty(),
            "the log holds nothing that the origin has not"
        );
        if volume.is_ledger_busy() {
            return false;
        }
        volume.written_ledger().release_past_log();
        self.volume(id).switch_goes_to(Step::Release);
        self.write_ledger(cx, id, LedgerStep::Release);
        false
    }

    /// The ledger says that nobody holds anything: now the checkpoint.
    pub(super) fn switch_released(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let Some(wanted) = volume.switch_has_released() else {
            return;
        };
        volume.logged_policy = if wanted.is_direct() {
            wanted
        } else {
            // Another order came in between; it begins from here.
            Policy::WriteThrough
        };
        self.checkpoint.wait(Waiter::Switch(id));
    }

    /// A checkpoint names the new policy.
    pub(super) fn switch_named(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        match volume.switch_step() {
            Some(Step::Table) => {
                let policy = volume.logged_policy;
                self.end_switch(cx, id, policy);
            }
            // As in a crash here: the next life finds the way from what the ledger says.
            Some(Step::Name) if self.service.is_stopping() => return,
            Some(Step::Name) => {
                self.volume(id).switch_goes_to(Step::Named);
            }
            _ => {}
        }
        self.touch(id);
    }

    /// Takes the ledger, unless it is being written for something else.
    fn claim_by_switch(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volumes.known(id);
        if self.service.is_stopping() || volume.is_ledger_busy() {
            return;
        }
        let ledger_writer = self.ledger_writer_of(volume, volume.ledger().cloned(), true);
        self.volume(id).keep_ledger(ledger_writer);
        self.volume(id).switch_goes_to(Step::Claim);
        self.write_ledger(cx, id, LedgerStep::Claim);
    }

    /// The ledger says that the log may hold newer data than the origin. False if it was not a
    /// switch that wanted to know.
    pub(super) fn switch_claimed(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        if self.volume(id).switch_step() != Some(Step::Claim) {
            return false;
        }
        self.end_switch(cx, id, Policy::WriteBack);
        true
    }

    /// What went past the log is on stable media, or may be gone.
    pub(super) fn switch_synced(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let volume = self.volume(id);
        volume.sync_of_switch_ends();
        volume.request_ends();
        let ours = volume.switch_step() == Some(Step::Sync);
        if !ok {
            // The guest has to hear of it, and to write again what it had not flushed.
            volume.counters.origin.errors += 1;
            volume.sync_failed();
            volume.allocator_mut().doubt();
            self.renew_layer(id);
        }
        let volume = self.volume(id);
        if ours && ok {
            volume.logged_policy = Policy::WriteBack;
            self.volume(id).switch_goes_to(Step::Name);
            self.checkpoint.wait(Waiter::Switch(id));
        } else if ours {
            let until = cx.now.plus_millis(REST_MS);
            for request in volume.switch_sync_failed(until) {
                cx.out.reply(request, Err(Refusal::Io));
            }
        }
    }

    /// From the next request on the volume has this policy.
    fn end_switch(&mut self, cx: &mut Cx<'_>, id: VolumeId, policy: Policy) {
        let volume = self.volume(id);
        let before = volume.policy;
        assert!(!policy.is_direct() || !volume.is_dirty() || before == policy);
        assert!(
            before == policy || !volume.is_in_part(),
            "a policy changes between two writes"
        );
        if before != policy && volume.has_waiting() {
            mark(Mark::SwitchedUnderLoad);
        }
        volume.policy = policy;
        volume.logged_policy = policy;
        volume.leave_bypass();
        for request in volume.switch_is_over(policy) {
            cx.out.reply(request, Ok(()));
        }
        let renewed = policy == Policy::Uncached && before != policy;
        if renewed && !has(Bug::KeepLayer) {
            self.renew_layer(id);
        }
        self.checkpoint.wanted |= before != policy;
        self.count_writers();
        self.touch(id);
    }
}
