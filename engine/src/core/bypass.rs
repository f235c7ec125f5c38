//! A cache device that fails for good: what is dirty goes to the origin while it can still be
//! read, and guests go on past the log.
//!
//! ```text
//! device:  Good ─first failure─▶ Doubtful ─ DOUBT_MS without a good sync ─▶ Failed
//!           ▲                        └──────── a good sync ────────┬──────────┘
//!           └──────────────────────────────────────────────────────┘
//!          gone ─▶ Failed; found again ─▶ Doubtful
//! volume:  None ─failed─▶ Emergency ─all is at the origin─▶ Release ─the ledger says so─▶ Bypassed
//!           ▲               └─ nobody else has a block ─▶ Held                           │
//!           └──── good again ──────────────┴──────────── good again: a switch ───────────┘
//! ```
//!
//! Only write-back volumes have a way to go; direct ones do not need the device, and ephemeral
//! ones live from RAM and answer no space at its end. In *Emergency* and *Release* writes wait, and
//! flushes wait for the origin instead of the log. The stage still has what the log could not
//! take, so most volumes lose nothing and their guests see a pause.
//!
//! Always true: the origin is written past the log only after the ledger says that all of it is
//! there; no checkpoint can say so, and none has to, because a recovery drops whatever of the log
//! the ledger counts as destaged. The ledger also says that the origin may hold what nobody synced
//! ([`PAST_LOG`]), so that who makes the volume write-back again syncs it first. A held volume
//! answers errors: neither its writes nor its flushes are acknowledged, nothing stale is read.
//! A volume with copies is in *Release* until no copy counts: what goes past the log is in none of
//! them, so the host first makes a record that says so. From then on its flushes are answered by
//! what the origin has, also when the device is good again, until the host says otherwise. Blocks
//! that neither the stage nor the device gives come from a copy ([`super::recall`]).
//! A cache file that lost its name goes the same way, though it answers, because it ends with the
//! process that has it open.
//! Deliberately absent: bad blocks of a device that takes writes; they are the business of `fetch`
//! and of the volume they belong to.

use super::Core;
use super::checkpoint::Waiter;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Refusal;
use crate::outbox::{Cx, Pending};
use crate::snapshot::{CacheState, State};
use crate::types::{Policy, RequestId, Time, VolumeId};
use crate::volume::ledger::LedgerStep;
use crate::volume::quiesce::{keeps_rest, want_end_of_rest};
use crate::volume::{Bypass, Volume};

/// How long a device may fail before guests stop waiting for it. Longer than the resets of a
/// controller usually take, shorter than the patience of a guest's file system.
pub const DOUBT_MS: u64 = 10_000;

/// What is known of the device.
#[derive(Default)]
pub struct Health {
    failing_since: Option<Time>,
    failed: bool,
    /// It has no name any more.
    gone: bool,
}

impl Health {
    pub fn is_failed(&self) -> bool {
        self.failed
    }

    /// Time alone may bring something to do.
    pub fn has_chores(&self) -> bool {
        self.failing_since.is_some()
    }

    pub fn state(&self) -> CacheState {
        match (self.failed, self.failing_since) {
            _ if self.gone => CacheState::Gone,
            (true, _) => CacheState::Failed,
            (false, Some(_)) => CacheState::Failing,
            (false, None) => CacheState::Good,
        }
    }
}

/// Its ledger says that its log owes nothing.
fn is_released(volume: &Volume) -> bool {
    let ledger = volume.ledger_writer();
    ledger.is_some_and(|it| it.is_past_log() && !it.is_busy())
}

impl Core {
    /// Learns from the end of a request to the cache device that carries something that must last.
    pub(super) fn observe_cache(&mut self, now: Time, pending: &Pending, ok: bool) {
        let lasting = matches!(
            pending,
            Pending::Log { .. }
                | Pending::CacheSync { .. }
                | Pending::Footer { .. }
                | Pending::Prepare { .. }
                | Pending::Checkpoint
                | Pending::CheckpointSync
        );
        if lasting && !ok {
            self.health.failing_since.get_or_insert(now);
        }
    }

    /// A sync has covered all that was written before it. One that found nothing of the log to
    /// cover proves little while the log cannot be written.
    pub(super) fn cache_synced(&mut self) {
        let failing = self.health.failing_since.is_some() && !self.health.gone;
        if !failing || self.log.has_unwritten() {
            return;
        }
        self.health.failing_since = None;
        self.forgive();
        if core::mem::take(&mut self.health.failed) {
            for id in self.volumes.ids() {
                self.leave_bypass(id);
            }
        }
    }

    /// The host has looked for the cache file under its name.
    pub(super) fn cache_gone(&mut self, cx: &mut Cx<'_>, request: RequestId, gone: bool) {
        let gone = gone && !has(Bug::TrustGoneCache);
        self.health.gone = gone;
        if gone {
            self.health.failing_since.get_or_insert(cx.now);
            self.health.failed = true;
        }
        cx.out.reply(request, Ok(()));
        self.look_at_cache(cx);
    }

    /// Why a volume does without the log.
    pub(super) fn bypass_reason(&self, volume: &Volume) -> Option<&'static str> {
        volume.bypass().reason(self.health.gone)
    }

    /// What a device did not give while it failed says nothing of what it has. Who reads what is
    /// bad all the same tells again; a destage that met damage does so by itself.
    fn forgive(&mut self) {
        for volume in self.volumes.iter_mut() {
            volume.forget_damage();
            volume.recover_if_read();
        }
    }

    /// Looks at the device now and then while it fails.
    pub(super) fn look_at_cache(&mut self, cx: &mut Cx<'_>) {
        let Some(since) = self.health.failing_since else {
            return;
        };
        // These find out that the device is good again.
        if !self.health.gone {
            self.checkpoint.wanted = true;
            self.log.want_sync();
        }
        self.health.failed |= cx.now >= since.plus_millis(DOUBT_MS);
        if !self.health.failed {
            return;
        }
        for id in self.volumes.ids() {
            if self.volumes.get(id).is_some() {
                self.enter_bypass(cx, id);
                self.touch(id);
            }
        }
    }

    /// Takes a volume out of the log, if it needs it and is not on its way already.
    fn enter_bypass(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let here = volume.is_attached() && volume.is_ready() && !volume.is_detaching();
        // Another host may still write the image.
        let waits = volume.is_unproved();
        if !here || waits || volume.is_read_only() || volume.policy == Policy::Ephemeral {
            return;
        }
        if keeps_rest(volume) {
            return want_end_of_rest(volume);
        }
        self.abort_switch(cx, id);
        let volume = self.volume(id);
        let logs = volume.policy == Policy::WriteBack && volume.state() != State::Held;
        if !logs || !volume.is_with_log() {
            return;
        }
        mark(Mark::Rescue);
        volume.enter_bypass();
        if has(Bug::AnswerBeforeRescue) {
            self.answer_log_waiters(cx, id, Ok(()));
        }
        self.rewind_unfinished(id);
        // Its image is about to be written, also where the log has nothing of it.
        self.refuse_quiesce(cx, id, Refusal::CacheFailed);
        self.ends_rest(id);
        let volume = self.volume(id);
        if let Some(epoch) = volume.epochs.back() {
            let upto = epoch.last_serial;
            volume.want(upto);
        }
    }

    /// The rest of a write that is staged in part finds no room any more: all of it waits again,
    /// for the way past the log or for a device that is good again.
    fn rewind_unfinished(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        if !volume.is_in_part() {
            return;
        }
        mark(Mark::Rewound);
        volume.rewind_first();
        self.give_up_unfinished(id);
    }

    /// A change of policy cannot be brought to its end. Of a volume that was becoming write-back
    /// the last checkpoint may say so by now, so its ledger has to say that it is not.
    fn abort_switch(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        if !volume.switch_waits_for_log() {
            return;
        }
        let (orders, configured) = volume.drop_switch();
        self.checkpoint.forget(Waiter::Switch(id));
        for request in orders {
            cx.out.reply(request, Err(Refusal::CacheFailed));
        }
        if !self.volume(id).policy.is_direct() {
            return;
        }
        if !self.volume(id).has_ledger() {
            let volume = self.volumes.known(id);
            let ledger_writer = self.ledger_writer_of(volume, None, false);
            self.volume(id).keep_ledger(ledger_writer);
        }
        let volume = self.volume(id);
        let back = volume.bypass() == Bypass::Bypassed || configured;
        volume.begin_release(back);
        self.release_past_log(cx, id);
    }

    /// Goes on when nothing of the volume is only in the log any more.
    pub(super) fn pump_bypass(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let here = self.find(id).filter(|volume| !volume.is_detaching());
        let Some(volume) = here else { return };
        let writes = volume.is_destaging() || volume.is_replaying();
        let done = volume.epochs.is_empty() && !writes;
        match volume.bypass() {
            Bypass::Emergency | Bypass::Held if done => {
                volume.begin_release(true);
                self.release_past_log(cx, id);
            }
            Bypass::Release { .. } => match is_released(volume) {
                true => self.bypass_released(cx, id),
                // The ledger was busy when it was asked for.
                false => self.release_past_log(cx, id),
            },
            _ => {}
        }
    }

    fn release_past_log(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        if volume.is_exchanging() {
            // Nothing writes the image before that has ended.
            return;
        }
        assert!(!volume.is_dirty(), "the origin has what the log has");
        if volume.is_ledger_busy() {
            return;
        }
        volume.written_ledger().release_past_log();
        self.write_ledger(cx, id, LedgerStep::Release);
    }

    /// The ledger says that the log has nothing that counts.
    pub(super) fn bypass_released(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let releases = matches!(volume.bypass(), Bypass::Release { .. });
        if !releases || volume.is_detaching() {
            return;
        }
        // Another step of the ledger has ended; ours is still to come. The device may be good by
        // now, and then nobody else looks.
        if !is_released(volume) {
            return self.release_past_log(cx, id);
        }
        if volume.relies_on_peers() && !has(Bug::BypassPeers) {
            // Another host may go on with what they have, until a record says otherwise.
            return;
        }
        mark(Mark::PastLog);
        volume.bypass_is_released();
        if volume.policy.is_direct() {
            // A checkpoint may be on its way that says otherwise.
            volume.logged_policy = volume.policy;
        } else {
            volume.policy = Policy::Uncached;
            volume.recover();
            volume.flow.reset();
            self.renew_layer(id);
        }
        self.answer_log_waiters(cx, id, Ok(()));
        self.count_writers();
        self.open_for_requests(cx, id);
        if !self.health.failed {
            self.leave_bypass(id);
        }
    }

    /// What the destager needs cannot be read: nobody else has it. The other disks of a machine
    /// wait for the one, so they are held with it.
    pub(super) fn hold_if_failed(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        for member in self.members(id) {
            self.hold(cx, member);
        }
    }

    fn hold(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        if volume.bypass() != Bypass::Emergency {
            return;
        }
        mark(Mark::Held);
        volume.hold_in_bypass();
        let waiting = volume.take_waiting();
        for it in waiting {
            cx.out.reply(it.request, Err(Refusal::Held));
        }
        self.answer_log_waiters(cx, id, Err(Refusal::Held));
    }

    /// Answers the flushes of a volume that wait for the log.
    fn answer_log_waiters(&mut self, cx: &mut Cx<'_>, id: VolumeId, result: Result<(), Refusal>) {
        for request in self.log.take_guests(id) {
            cx.out.reply(request, result);
        }
    }

    /// The device is good again: everything staged is in the log, or will be.
    fn leave_bypass(&mut self, id: VolumeId) {
        assert!(!self.health.failed, "the device is good again");
        let here = self.find(id).filter(|volume| !volume.is_detaching());
        let Some(volume) = here else { return };
        match volume.bypass() {
            Bypass::None | Bypass::Release { .. } => return,
            Bypass::Emergency => volume.leave_bypass(),
            Bypass::Held => {
                volume.leave_bypass();
                volume.recover();
            }
            Bypass::Bypassed => {
                mark(Mark::BackFromPast);
                self.switch_back(id);
            }
        }
        self.touch(id);
    }

    /// Checkpoints that nobody can write are not waited for, where the ledger is enough.
    pub(super) fn do_without_checkpoint(&mut self, cx: &mut Cx<'_>) {
        if !self.health.failed {
            return;
        }
        for waiter in self.checkpoint.take_waiters() {
            match waiter {
                Waiter::Attach(volume) => self.attach_past_log(cx, volume),
                Waiter::Detach(request, id) => {
                    self.volumes.left(id);
                    cx.out.reply(request, Ok(()));
                }
                Waiter::Park(request) => self.park_without_cache(cx, request),
                Waiter::Join(volume) => self.forget_join(volume),
                // A switch is given up at the next look at the device, if that is still bad then;
                // overlays need the checkpoint.
                other => self.checkpoint.wait(other),
            }
        }
    }

    /// A volume that joins while the device fails. One that owes something waits for the device.
    fn attach_past_log(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        let logs = volume.policy == Policy::WriteBack && volume.has_ledger();
        // A guard of the life before is looked for by a volume that has its log.
        let replays = volume.is_mapped() && volume.is_replaying();
        if volume.policy == Policy::Ephemeral || volume.owes() || replays {
            self.checkpoint.wait(Waiter::Attach(id));
        } else if logs {
            let (orders, _) = volume.drop_switch();
            volume.begin_release(true);
            for request in orders {
                cx.out.reply(request, Err(Refusal::CacheFailed));
            }
            self.release_past_log(cx, id);
        } else {
            self.claim(cx, id);
        }
    }

    /// An orderly stop: only what nobody owes may stay behind in a log that nobody can write.
    fn park_without_cache(&mut self, cx: &mut Cx<'_>, request: RequestId) {
        let owes = self.volumes.iter().any(|volume| volume.owes());
        let result = if owes {
            Err(Refusal::CacheFailed)
        } else {
            Ok(())
        };
        cx.out.reply(request, result);
    }
}
