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
use crate::adversary::{Bug, Mark, mark};
use crate::event::{Device, Op, Purpose, Stat};
use crate::format::ledger::LEDGER_BYTES;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::types::VolumeId;
use crate::volume::Removal;
use crate::volume::ledger::LedgerStep;

impl Core {
    /// Writes the ledger as its writer has it, then syncs it, then takes the step. One that
    /// is being removed is not written again, and its volume takes no step any more.
    pub(super) fn write_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId, step: LedgerStep) {
        let volume = self.volume(id);
        if volume.removal() != Removal::No {
            return;
        }
        volume.written_ledger().begin(step);
        self.put_ledger(cx, id);
    }

    fn put_ledger(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(piece) = self.scratch.take_piece() else {
            return self.volume(id).written_ledger().lacks_memory();
        };
        let place = self.scratch.piece(piece);
        let (bytes, at) = self.volume(id).written_ledger().begin_write(piece);
        cx.memory.store(place, &bytes);
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
        let (piece, step) = self.volume(id).written_ledger().write_ended(ok);
        self.scratch.free_piece(piece);
        if ok {
            let pending = Pending::LedgerSync { volume: id };
            let (device, op) = (Device::Ledger(id), Op::sync_unless(unsynced_at(step)));
            cx.order(pending, Purpose::Ledger, device, op, 0, 0);
        } else {
            self.volume(id).counters.origin.errors += 1;
        }
    }

    pub(super) fn ledger_synced(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let volume = self.volume(id);
        if !ok {
            return volume.ledger_fails();
        }
        match volume.ledger_is_synced() {
            LedgerStep::Claim => {
                volume.request_begins();
                let pending = Pending::Clock { volume: id };
                cx.order(pending, Purpose::Ledger, Device::Ledger(id), Op::Stat, 0, 0);
            }
            LedgerStep::Prepare => self.volume(id).destage_prepared(),
            LedgerStep::Reached => self.volume(id).replay_reached(),
            LedgerStep::Begin if volume.is_replaying() => self.volume(id).replay_begun(),
            LedgerStep::Finish if volume.is_replaying() => self.replay_finished(cx, id),
            LedgerStep::Begin => self.destage_begun(cx, id),
            LedgerStep::Finish => {
                let epoch = self.volume(id).end_destage();
                self.origin_reached(cx, id, alloc::vec![epoch]);
            }
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
        let Some(stat) = stat else {
            // Without it the next journal may not be replayed after a crash: all of it again.
            return volume.ledger_fails();
        };
        volume.ledger_clock_is_read(cx.now, &stat);
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
}

/// What breaks when a ledger is not synced at this step.
fn unsynced_at(step: LedgerStep) -> Bug {
    match step {
        LedgerStep::Claim => Bug::SkipLedgerSyncAtClaim,
        LedgerStep::Prepare | LedgerStep::Begin => Bug::SkipLedgerSyncAtBegin,
        LedgerStep::Reached | LedgerStep::Finish | LedgerStep::Resize | LedgerStep::Exchange => {
            Bug::SkipLedgerSyncAtFinish
        }
        LedgerStep::Move => Bug::SkipLedgerSyncAtClaim,
        LedgerStep::Release => Bug::SkipLedgerSyncAtRelease,
    }
}
