//! The writer of a ledger: one write and one sync at a time, then the step that it was for.
//!
//! ```text
//! write_ledger ─▶ written ─▶ synced ─▶ (claim: clock) ─▶ the step is taken
//!                   └── failed ─▶ (housekeeping) ─▶ written again
//! ```
//!
//! Always true: a ledger is written for a step, and no other step begins before it is taken; the
//! one that is removed is never written again. Deliberately absent: what a ledger says, which is
//! decided by who asks for the step.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose, Stat};
use crate::format::ledger::{LEDGER_BYTES, Ledger, Progress};
use crate::image::BELOW_ANY;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::types::{Time, VolumeId};
use crate::volume::Removal;
use crate::volume::ledger::{APPLY_MS_MAX, LedgerStep};

impl Core {
    /// Writes the ledger as its writer has it, then syncs it, then takes the step. One that
    /// is being removed is not written again, and its volume takes no step any more.
    pub(super) fn write_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId, step: LedgerStep) {
        let volume = self.volume(id);
        if volume.removal() != Removal::No {
            return;
        }
        let ledger_writer = volume
            .ledger_writer
            .as_mut()
            .expect("only claimed volumes get here");
        assert_eq!(ledger_writer.step, None, "one step of the ledger at a time");
        ledger_writer.step = Some(step);
        ledger_writer.ledger.sequence += 1;
        self.put_ledger(cx, id);
    }

    fn put_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(piece) = self.scratch.take_piece() else {
            self.volume(id)
                .ledger_writer
                .as_mut()
                .expect("checked by the caller")
                .failed = true;
            return;
        };
        let place = self.scratch.piece(piece);
        let ledger_writer = self
            .volume(id)
            .ledger_writer
            .as_mut()
            .expect("checked by the caller");
        assert!(
            ledger_writer.step.is_some() && ledger_writer.piece.is_none(),
            "a ledger is written once at a time, and for a step"
        );
        ledger_writer.failed = false;
        ledger_writer.piece = Some(piece);
        if ledger_writer.moves && !has(Bug::ClaimMoving) {
            ledger_writer.ledger.dirty = false;
            ledger_writer.ledger.image.below = BELOW_ANY;
        }
        if ledger_writer.below_unsaid {
            ledger_writer.ledger.image.below = BELOW_ANY;
        }
        let bytes = ledger_writer.ledger.encode();
        assert!(Ledger::parse(&bytes).is_ok(), "what is written can be read");
        cx.memory.store(place, &bytes);
        let at = Ledger::slot_at(ledger_writer.ledger.sequence);
        let slices = alloc::vec![Slice {
            place,
            bytes: LEDGER_BYTES as u64
        }];
        let pending = Pending::Ledger { volume: id };
        self.volume(id).counters.origin.journal_requests += 1;
        cx.transfer(
            pending,
            Purpose::Ledger,
            Device::Ledger(id),
            Op::Write,
            at,
            slices,
        );
    }

    pub(super) fn ledger_written(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let ledger_writer = self
            .volume(id)
            .ledger_writer
            .as_mut()
            .expect("a ledger was written");
        let piece = ledger_writer
            .piece
            .take()
            .expect("a ledger write holds a piece");
        ledger_writer.failed = !ok;
        let bug = unsynced_at(ledger_writer.step);
        self.scratch.free_piece(piece);
        if ok {
            let pending = Pending::LedgerSync { volume: id };
            let (device, op) = (Device::Ledger(id), Op::sync_unless(bug));
            cx.order(pending, Purpose::Ledger, device, op, 0, 0);
        } else {
            self.volume(id).counters.origin.errors += 1;
        }
    }

    pub(super) fn ledger_synced(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let volume = self.volume(id);
        let ledger_writer = volume.ledger_writer.as_mut().expect("a ledger was synced");
        if !ok {
            ledger_writer.failed = true;
            volume.counters.origin.errors += 1;
            return;
        }
        let generation = ledger_writer.ledger.generation;
        let step = ledger_writer.step.expect("a step was under way");
        // A claim ends when the time of the ledger is known as well.
        ledger_writer.step.take_if(|it| *it != LedgerStep::Claim);
        volume.finds_ledger(generation);
        match step {
            LedgerStep::Claim => {
                volume.request_begins();
                let pending = Pending::Clock { volume: id };
                cx.order(pending, Purpose::Ledger, Device::Ledger(id), Op::Stat, 0, 0);
            }
            LedgerStep::Prepare => self.destage_prepared(id),
            LedgerStep::Reached => self.replay_reached(id),
            LedgerStep::Begin if volume.replay.is_some() => self.replay_begun(id),
            LedgerStep::Finish if volume.replay.is_some() => self.replay_finished(cx, id),
            LedgerStep::Begin => self.destage_begun(cx, id),
            LedgerStep::Finish => self.destage_finished(cx, id),
            LedgerStep::Exchange => self.exchange_said(cx, id),
            LedgerStep::Move => self.move_said(cx, id),
            // Who has it written looks again.
            LedgerStep::Resize => {}
            LedgerStep::Release => {
                self.switch_released(id);
                self.bypass_released(cx, id);
            }
        }
    }

    /// The ledger was written a moment ago, so its time is the present one over there.
    pub(super) fn clock_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: Option<Stat>) {
        let volume = self.volume(id);
        volume.request_ends();
        let ledger_writer = volume.ledger_writer.as_mut().expect("a ledger was written");
        let Some(stat) = stat else {
            // Without it the next journal may not be replayed after a crash: all of it again.
            ledger_writer.failed = true;
            volume.counters.origin.errors += 1;
            return;
        };
        assert!(
            ledger_writer.step == Some(LedgerStep::Claim),
            "a claim asks for the time"
        );
        ledger_writer.step = None;
        ledger_writer.clock_ahead_ns = stat.mtime_ns.saturating_sub(stat.now_ns);
        ledger_writer.clock_there = (stat.mtime_ns, cx.now);
        if !self.switch_claimed(cx, id) && !self.commit_claimed(id) {
            self.open_for_requests(cx, id);
        }
    }

    /// A ledger that could not be written is due again.
    pub(super) fn retry_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if self.volume(id).ledger_failed() {
            mark(Mark::LedgerAgain);
            self.put_ledger(cx, id);
        }
    }

    /// Puts into the ledger how the image is, and until when writing it may change its time.
    pub(super) fn note_apply(&mut self, now: Time, id: VolumeId, stat: &Stat) {
        let ledger_writer = self.volume(id).ledger_writer.as_mut();
        let ledger_writer = ledger_writer.expect("write-back volumes have a ledger");
        let (there, read_at) = ledger_writer.clock_there;
        let clock = there.saturating_add(now.since(read_at));
        let clock = clock.max(stat.now_ns.saturating_add(ledger_writer.clock_ahead_ns));
        let ledger = &mut ledger_writer.ledger;
        ledger.origin_bytes = stat.size_bytes;
        if let Some(image) = stat.image {
            // It is written from here on. Who looks at it at the end may tell its time.
            ledger.image = image.kept().written();
        }
        ledger.mtime_before_ns = stat.mtime_ns;
        let began = clock.max(stat.mtime_ns);
        let limit = began.saturating_add(APPLY_MS_MAX * 1_000_000);
        // Until all of it is synced a power loss may bring back a time that was allowed before.
        let before = match ledger.progress {
            Progress::Idle => 0,
            Progress::Prepare | Progress::Cut(_) | Progress::Apply { .. } => ledger.mtime_limit_ns,
        };
        ledger.mtime_limit_ns = limit.max(before);
    }
}

/// What breaks when a ledger is not synced at this step.
fn unsynced_at(step: Option<LedgerStep>) -> Bug {
    match step.expect("a ledger is written for a step") {
        LedgerStep::Claim => Bug::SkipLedgerSyncAtClaim,
        LedgerStep::Prepare | LedgerStep::Begin => Bug::SkipLedgerSyncAtBegin,
        LedgerStep::Reached | LedgerStep::Finish | LedgerStep::Resize | LedgerStep::Exchange => {
            Bug::SkipLedgerSyncAtFinish
        }
        LedgerStep::Move => Bug::SkipLedgerSyncAtClaim,
        LedgerStep::Release => Bug::SkipLedgerSyncAtRelease,
    }
}
