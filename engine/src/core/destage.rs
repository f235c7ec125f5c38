//! Destage: the oldest epoch goes to the origin, sorted, in the order of rule 5.2.4.
//!
//! ```text
//! atomic:   WaitLog ─▶ Journal ─▶ Table ─▶ JournalSync ─▶ Gate
//! in place: WaitLog ───────────────────────────────────▶ Gate
//! both:     Gate ─▶ Stat ─▶ Begin ─▶ Apply ─▶ ApplySync ─▶ Seen ─▶ Finish
//! planned:  WaitLog ─▶ Look ─▶ Prepare ─▶ Journal ─▶ Table ─▶ Guard ─▶ ImageSync ─▶ JournalSync
//!           ─▶ Gate ─▶ Stat ─▶ Begin ─▶ (replay)
//! ```
//!
//! The epoch of an image that allocates is destaged by a plan ([`super::planned`]): what nothing in
//! the file refers to is written at once, the rest goes to the journal, and the journal is applied
//! as one that was found ([`super::replay`]). In place, bytes of the disk that have a place are
//! written there at once as well, and the ledger says *cut* from *Prepare* on.
//!
//! Always true: the ledger says *apply* only while a whole, synced journal lies beside it, and
//! *idle* only when the origin is synced; a phase that fails starts again from its own beginning,
//! never from an earlier one, so a journal is never overwritten while the ledger points to it.
//! A phase fails by a sync or by what cannot be read; a write that fails is sent again by itself
//! ([`super::resend`]).
//! The epoch stays readable until the ledger says it is destaged. *Stat* and *Seen* look at the
//! image: one that does not fit is not written, and no epoch ends there. Deliberately absent: when
//! the segments are used again; the checkpoint decides that.

use super::Core;
use super::jobs::JOB_PIECES_MAX;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, IoError, Op, Purpose, Refusal, Stat};
use crate::format::ledger::Progress;
use crate::log::Waiter;
use crate::outbox::{Cx, Pending};
use crate::snapshot::State;
use crate::types::{DestageMode, Policy, RequestId, Time, VolumeId};
use crate::volume::batch::journal_room;
use crate::volume::destage::Phase;
use crate::volume::ledger::{APPLY_MS_MAX, LedgerStep};
use crate::volume::pace::Pace;
use crate::volume::resend::RETRY_MS;
use crate::volume::runs::next_run;
use crate::volume::share::Pool;
use crate::volume::unread::REREAD_MS;
use crate::volume::{Destage, Epoch};
use alloc::vec::Vec;

/// Of the requests that an origin takes at once, one part of so many may go to a journal.
const JOURNAL_PART: usize = 4;

impl Core {
    pub(super) fn destage_command(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        // The last write that is dirty: serials above it carry nothing.
        let upto = volume
            .epochs
            .back()
            .map_or(volume.destaged(), |epoch| epoch.last_serial);
        if volume.policy == Policy::Ephemeral {
            cx.out.reply(request, Err(crate::event::Refusal::Policy));
            return;
        }
        if volume.is_replica() {
            // Its owner brings it home.
            cx.out.reply(request, Err(crate::event::Refusal::Gone));
            return;
        }
        if volume.rests() && self.group_owes(id) {
            cx.out.reply(request, Err(crate::event::Refusal::Busy));
            return;
        }
        let volume = self.volume(id);
        if volume.misfit().is_some() {
            cx.out.reply(request, Err(crate::event::Refusal::Held));
            return;
        }
        if volume.is_unproved() {
            cx.out.reply(request, Err(crate::event::Refusal::Unproved));
            return;
        }
        if volume.policy.is_direct() && volume.is_ready() && !volume.is_read_only() {
            // All of it is there; on stable media it is after a sync.
            self.sync_origin(cx, id, request);
            return;
        }
        if let Some(group) = volume.group() {
            if self.command_group(id, request, group) {
                for member in self.members(id) {
                    self.volume(member).read_bad_again(cx.now);
                    self.touch(member);
                }
            } else {
                cx.out.reply(request, Ok(()));
            }
            return;
        }
        if !volume.owes() || volume.destaged() >= upto {
            cx.out.reply(request, Ok(()));
            return;
        }
        volume.order_destage(request, upto);
        self.volume(id).read_bad_again(cx.now);
        // One that was under way hurries from now on.
        self.touch(id);
    }

    pub(super) fn start_destage_if_due(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        if volume.is_destaging() {
            return;
        }
        if let Some(group) = volume.group() {
            self.start_group(cx, id, group);
            return;
        }
        if !volume.owes() || !volume.is_attached() || !volume.serves() {
            return;
        }
        // What a volume that goes still has is given up. Its ledger takes no step any more.
        if volume.is_detaching() {
            return;
        }
        if volume.holds_destage() || self.stays_at_rest(id) {
            return;
        }
        let volume = self.volume(id);
        // A write is destaged whole: its epoch stays open until all of it is staged.
        if volume.is_in_part() && volume.epochs.len() == 1 {
            return;
        }
        if self.waits_for_join(id) {
            return;
        }
        let volume = self.volume(id);
        let commanded = volume.is_commanded();
        // What a held volume has is not a prefix of its writes: it goes to the origin by order
        // only, never by itself.
        let held = volume.state() == State::Held;
        if commanded || (!held && self.is_destage_due(cx.now, id)) {
            self.begin_destage(id);
        }
    }

    /// What is dirty now is to be destaged, whatever the triggers say.
    pub(super) fn want_destage(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let newest = volume.epochs.back().map(|epoch| epoch.last_serial);
        if newest.is_some_and(|upto| volume.want(upto)) {
            self.touch(id);
        }
    }

    /// Whether age, bytes or want of space ask for a destage of a dirty volume.
    pub(super) fn is_destage_due(&mut self, now: Time, id: VolumeId) -> bool {
        let volume = self.volume(id);
        let oldest = volume.epochs.front().map_or(now, |epoch| epoch.opened);
        let after = volume.tuning().destage_after_ms;
        let aged = after.is_some_and(|after| now >= oldest.plus_millis(after));
        aged || self.is_room_scarce(id)
    }

    /// Whether bytes or want of space ask for it.
    pub(super) fn is_room_scarce(&mut self, id: VolumeId) -> bool {
        let gauge = self.log.gauge();
        let full = gauge.live * 10 >= gauge.capacity * 6;
        let low = self.log.is_low();
        let dirty_extents_full = self.extents.count() * 4 >= self.config.dirty_extents_max * 3;
        let volume = self.volume(id);
        let share = volume.part(Pool::Log);
        // A volume that is never destaged for its age stays in the log as long as there is room:
        // it gives way within its own limit, and where it has more than its share.
        let stays = volume.tuning().destage_after_ms.is_none() && volume.charge() <= share;
        let scarce = low || ((full || dirty_extents_full) && !stays);
        volume.flow.is_pressing() || volume.wants_room() || scarce
    }

    /// An overlay goes to its image as a whole. Its journal alone makes it safe, so nobody waits
    /// for the log.
    pub(super) fn destage_overlay(&mut self, id: VolumeId) {
        let first = match self.volume(id).plans() {
            true => Phase::Look,
            false => Phase::Journal,
        };
        self.begin_phase(id, first);
        self.touch(id);
    }

    /// Takes the oldest epoch on its way.
    pub(super) fn begin_destage(&mut self, id: VolumeId) {
        self.begin_phase(id, Phase::WaitLog { asked: false });
    }

    fn begin_phase(&mut self, id: VolumeId, phase: Phase) {
        let piece_bytes = self.scratch.piece_bytes();
        let cluster_bytes = self.planned_cluster(id);
        let volume = self.volume(id);
        let sequence = volume.ledger().map_or(0, |it| it.sequence);
        let in_place = volume.effective_destage() == DestageMode::InPlace;
        let epochs = volume.epochs.len() as u64;
        assert!(
            !volume.is_in_part() || epochs > 1,
            "a write is destaged as a whole"
        );
        let after_ms = volume.tuning().destage_after_ms;
        let epoch = volume.epochs.front_mut().expect("the volume is dirty");
        epoch.sealed = true;
        let room = journal_room(&epoch.map, piece_bytes, cluster_bytes);
        let pace = Pace::new(after_ms, epoch.map.len(), epochs);
        let upto = epoch.last_serial;
        volume.begin_destage(Destage {
            in_place,
            pace,
            ..Destage::new(phase, upto, sequence, room)
        });
    }
}

impl Core {
    /// Drives the destage of a volume as far as it goes without waiting.
    pub(super) fn pump_destage(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        loop {
            let Some(volume) = self.find(id) else { return };
            let (misfits, commits) = (volume.misfit().is_some(), volume.is_committing());
            let Some(destage) = volume.destage_if_any().filter(|_| !misfits) else {
                return;
            };
            let (in_vain, why) = (destage.is_in_vain(), destage.why_in_vain());
            if commits && in_vain {
                return self.give_up_commit(cx, id, why);
            }
            if destage.task.is_some() && in_vain {
                return self.give_up_task(cx, id);
            }
            if cx.now < destage.retry_at || destage.waiting {
                return;
            }
            // What could not be read is looked for in newer writes before it is read again.
            let stuck = !destage.bad.is_empty() && !destage.failed && destage.jobs.len() == 0;
            if stuck && self.is_damaged_still(cx.now, id) {
                return self.refuse_for_damage(cx, id);
            }
            let plans = self.volume(id).plans();
            let destage = self.phase(id);
            let goes_on = match destage.phase {
                Phase::WaitLog { asked } => self.wait_for_log(cx, id, asked),
                Phase::Journal if plans => self.make_plan(cx, id),
                Phase::Journal | Phase::Apply => self.start_jobs(cx, id),
                Phase::Guard => self.order_guard(cx, id),
                Phase::ImageSync => self.order_sync(cx, id, Device::Origin(id)),
                Phase::Table => self.write_table(cx, id),
                Phase::JournalSync => self.order_sync(cx, id, Device::Journal(id)),
                Phase::ApplySync => self.order_sync(cx, id, Device::Origin(id)),
                Phase::Gate => self.pass_gate(id),
                Phase::Look | Phase::Stat | Phase::Seen => {
                    destage.waiting = true;
                    let pending = Pending::Stat { volume: id };
                    cx.order(pending, Purpose::Ledger, Device::Origin(id), Op::Stat, 0, 0);
                    false
                }
                Phase::Prepare | Phase::Begin | Phase::Finish => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    pub(super) fn phase(&mut self, id: VolumeId) -> &mut Destage {
        self.volume(id).destaging()
    }

    fn wait_for_log(&mut self, cx: &mut Cx<'_>, id: VolumeId, asked: bool) -> bool {
        let volume = self.volume(id);
        let epoch = volume.epochs.front();
        let seq = epoch.expect("an epoch is being destaged").last_seq;
        // A log that fails never gets there, and what it has lost by then no recovery misses: the
        // ledger will be ahead of it.
        let upto = self.phase(id).upto;
        if !self.volume(id).is_replicated(upto) && !has(Bug::DestagePastPeers) {
            // A takeover from a peer would find the image ahead of what the peer has.
            mark(Mark::DestageWaitedForPeer);
            return false;
        }
        let ready = self.log.durable >= seq || has(Bug::DestagePastDurable);
        if !ready && !self.health.is_failed() {
            if !asked {
                self.phase(id).phase = Phase::WaitLog { asked: true };
                self.log.wait_durable(cx, seq, Waiter::Volume(id));
            }
            return false;
        }
        self.volume(id).begin_with(upto);
        let plans = self.volume(id).plans();
        let destage = self.phase(id);
        destage.phase = match destage.in_place {
            _ if plans => Phase::Look,
            false if !has(Bug::ApplyWithoutJournal) => Phase::Journal,
            _ => Phase::Gate,
        };
        true
    }

    /// Starts jobs up to the queue depth; at the end of the epoch goes to the next phase.
    fn start_jobs(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let piece_bytes = self.scratch.piece_bytes();
        loop {
            let depth = self.volume(id).destage_depth(cx.now);
            let destage = self.phase(id);
            // Each request to the journal fills its memory.
            let depth = match destage.applying {
                true => depth,
                false => depth.div_ceil(JOURNAL_PART),
            };
            if destage.width >= depth || destage.failed || destage.resend.is_resting(cx.now) {
                break;
            }
            let applying = destage.applying;
            if applying && cx.now >= destage.apply_until {
                // The ledger's word on the modification time runs out: write it again.
                destage.phase = Phase::Stat;
                return true;
            }
            let (cursor, again) = (destage.cursor, !destage.resend.is_empty());
            let pieces = if applying { JOB_PIECES_MAX as u64 } else { 1 };
            // What has no turn now is not put together for nothing: it tries again at each event.
            if (!again && self.volume(id).destaged_map().at_or_after(cursor).is_none())
                || self.is_paced(cx, id)
                || !self.has_turn(cx.now, id)
                || !self.has_place(cx.now, id)
            {
                break;
            }
            if again {
                if !self.send_again(cx, id) {
                    break;
                }
                continue;
            }
            let run = next_run(self.volume(id).destaged_map(), cursor, pieces * piece_bytes);
            let run = run.expect("something was there");
            let Some(cursor) = self.start_job(cx, id, run, applying) else {
                break;
            };
            self.phase(id).cursor = cursor;
        }
        self.end_jobs(cx, id)
    }

    /// Goes to the next phase if the jobs of this one are at their end.
    fn end_jobs(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let cursor = self.phase(id).cursor;
        let map_end = self.volume(id).destaged_map().at_or_after(cursor).is_none();
        let now = cx.now;
        let destage = self.phase(id);
        if destage.jobs.len() > 0 {
            return false;
        }
        if destage.failed {
            let damaged = destage.met_damage();
            self.begin_phase_again(now, id);
            return damaged;
        }
        if !map_end || !destage.resend.is_empty() {
            return false;
        }
        assert!(destage.is_idle(), "a phase ends when all of it is there");
        destage.cursor = 0;
        destage.phase = match destage.phase {
            Phase::Journal => Phase::Table,
            _ => Phase::ApplySync,
        };
        true
    }

    /// What an image that allocates plans in one step.
    pub(super) fn planned_cluster(&mut self, id: VolumeId) -> Option<u64> {
        let plans = self.volume(id).plans();
        let planner = self.planner(id).filter(|_| plans);
        planner.map(|planner| planner.cluster_bytes())
    }

    pub(super) fn begin_phase_again(&mut self, now: Time, id: VolumeId) {
        let piece_bytes = self.scratch.piece_bytes();
        let cluster_bytes = self.planned_cluster(id);
        let room = journal_room(self.volume(id).destaged_map(), piece_bytes, cluster_bytes);
        let volume = self.volume(id);
        let commits = volume.is_committing();
        let destage = volume.destaging();
        let ordered = commits || destage.task.is_some();
        let (damaged, full) = (!destage.bad.is_empty(), destage.full);
        // An order that is given up tells of it.
        destage.full &= ordered;
        mark(Mark::DestageAgain);
        destage.retry_at = now.plus_millis(if damaged { 0 } else { RETRY_MS });
        destage.reread_at = now.plus_millis(REREAD_MS);
        match destage.phase {
            Phase::Journal
            | Phase::Table
            | Phase::Guard
            | Phase::ImageSync
            | Phase::JournalSync => {
                destage.phase = Phase::Journal;
                destage.plan = None;
                destage.begin_jobs();
                destage.entries.clear();
                destage.table = Vec::new();
                destage.journal_at = room;
                destage.table_at = 0;
            }
            Phase::Apply | Phase::ApplySync => {
                destage.phase = Phase::Apply;
                destage.begin_jobs();
            }
            // A look at the origin may come between jobs, which go on.
            Phase::WaitLog { .. }
            | Phase::Look
            | Phase::Prepare
            | Phase::Gate
            | Phase::Stat
            | Phase::Begin
            | Phase::Seen
            | Phase::Finish => {}
        }
        if !damaged {
            destage.resend.stays_stalled();
            volume.stall(full);
        }
        // Nobody waits for it meanwhile.
        self.turns.rest(id);
    }

    /// A request of a destage has failed for want of space.
    pub(super) fn note_full(&mut self, pending: &Pending, result: Result<(), IoError>) {
        if let Pending::Destage { volume, .. } | Pending::JournalTable { volume } = *pending
            && result == Err(IoError::NoSpace)
        {
            self.phase(volume).full = true;
        }
    }

    /// Whether a volume may send its next request to its origin; if not, it stands in line.
    pub(super) fn has_turn(&mut self, now: Time, id: VolumeId) -> bool {
        let volume = self.volume(id);
        let (storage, weight) = (volume.storage(), volume.tuning().share.weight);
        self.turns.ask(now, id, storage, weight)
    }

    fn order_sync(&mut self, cx: &mut Cx<'_>, id: VolumeId, device: Device) -> bool {
        let destage = self.phase(id);
        assert!(destage.is_idle(), "a sync covers what has ended");
        destage.waiting = true;
        let prepares = destage.is_preparing();
        let (purpose, bug) = match device {
            Device::Journal(_) => (Purpose::JournalWrite, Bug::SkipJournalSync),
            _ if prepares => (Purpose::DestageWrite, Bug::SkipPlanSync),
            _ => (Purpose::DestageWrite, Bug::SkipOriginSync),
        };
        self.volume(id).counters.origin.syncs += 1;
        let pending = Pending::DestageSync { volume: id };
        cx.order(pending, purpose, device, Op::sync_unless(bug), 0, 0);
        false
    }

    pub(super) fn destage_synced(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let now = cx.now;
        self.turns.moved(now, id);
        let destage = self.phase(id);
        assert!(destage.waiting, "one sync is in flight");
        destage.waiting = false;
        if !ok && !has(Bug::TakeFailedOriginSync) {
            // What a failed sync covered may be gone: it is written again, not synced again.
            self.volume(id).counters.origin.errors += 1;
            return self.begin_phase_again(now, id);
        }
        destage.resend.synced();
        match destage.phase {
            Phase::ImageSync => destage.phase = Phase::JournalSync,
            Phase::JournalSync => {
                // What no epoch has waits for no others.
                destage.phase = match destage.task {
                    Some(_) => Phase::Stat,
                    None => Phase::Gate,
                };
            }
            Phase::ApplySync => {
                // A storage that tells nothing of its images is not asked.
                if self.volume(id).seen_image().is_unknown() || has(Bug::SkipLastLook) {
                    return self.finish_destage(cx, id);
                }
                self.phase(id).phase = Phase::Seen;
            }
            phase => unreachable!("no sync is ordered in {phase:?}"),
        }
    }

    /// The origin has the epoch: the ledger is to say so.
    fn finish_destage(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let destage = self.phase(id);
        destage.phase = Phase::Finish;
        let upto = destage.upto;
        self.volume(id).written_ledger().finish(upto);
        self.write_ledger(cx, id, LedgerStep::Finish);
    }

    /// The image after its last write. Of one that does not fit nothing was reached: all of it is
    /// written again when it does.
    fn seen_at_end(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat, fits: bool) {
        if !fits || self.phase(id).failed {
            let now = cx.now;
            self.phase(id).phase = Phase::Apply;
            self.begin_phase_again(now, id);
            return;
        }
        if let Some(image) = stat.image {
            let volume = self.volume(id);
            volume.written_ledger().sees_image(&image);
            volume.sees_mark(&image);
        }
        self.finish_destage(cx, id);
    }

    pub(super) fn stat_done(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: Option<Stat>) {
        let now = cx.now;
        let is_task = self.phase(id).task.is_some();
        let prepared = is_task || self.is_prepared(id);
        let replans = self
            .members(id)
            .into_iter()
            .any(|it| self.volume(it).plans());
        // A volume that goes on with its image must not ask once more for what is here.
        let fits = stat.map(|stat| self.judge_image(cx, id, &stat));
        let destage = self.phase(id);
        assert!(
            destage.waiting && matches!(destage.phase, Phase::Look | Phase::Stat | Phase::Seen),
            "a look at the image was asked for"
        );
        destage.waiting = false;
        let (Some(stat), Some(fits)) = (stat, fits) else {
            self.begin_phase_again(now, id);
            return;
        };
        if destage.phase == Phase::Seen {
            return self.seen_at_end(cx, id, &stat, fits);
        }
        if !fits {
            // One that is applied already goes on when its image fits again.
            let applying = destage.applying;
            if self.volume(id).is_committing() && !applying {
                self.give_up_commit(cx, id, Refusal::Io);
            }
            return;
        }
        if let Some(planner) = self.planner(id).filter(|_| !has(Bug::ForgetGrowth)) {
            planner.grown(stat.size_bytes);
        }
        if self.phase(id).phase == Phase::Look {
            return self.prepare(cx, id, &stat);
        }
        let destage = self.phase(id);
        if destage.plan.is_some() && destage.failed {
            // What it wrote may be gone.
            destage.phase = Phase::Journal;
            return self.begin_phase_again(now, id);
        }
        if !prepared && replans {
            // A member has to write its part once more.
            destage.phase = Phase::Gate;
            return;
        }
        assert!(prepared, "no origin is written before its group is ready");
        let journaled = destage.plan.is_some() || !destage.in_place;
        destage.phase = Phase::Begin;
        destage.apply_until = now.plus_millis(APPLY_MS_MAX / 3);
        let (upto, journal_sequence, journal_bytes) =
            (destage.upto, destage.journal_sequence, destage.journal_at);
        let writer = self.volume(id).written_ledger();
        writer.note_apply(now, &stat);
        writer.apply(match journaled {
            true => Progress::Apply {
                upto,
                journal_sequence,
                journal_bytes,
            },
            false => Progress::Cut(upto),
        });
        self.write_ledger(cx, id, LedgerStep::Begin);
    }

    /// The image is the one that it was: the ledger says that a plan may write to it.
    fn prepare(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) {
        let now = cx.now;
        let destage = self.phase(id);
        destage.phase = Phase::Prepare;
        destage.apply_until = now.plus_millis(APPLY_MS_MAX / 3);
        let (in_place, upto) = (destage.in_place, destage.upto);
        let writer = self.volume(id).written_ledger();
        writer.note_apply(now, stat);
        writer.prepare(upto, in_place);
        self.write_ledger(cx, id, LedgerStep::Prepare);
    }

    /// The ledger says that the origin may be written now.
    pub(super) fn destage_begun(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let destage = self.phase(id);
        assert!(
            destage.phase == Phase::Begin,
            "the ledger was written for it"
        );
        if destage.plan.is_some() {
            return self.volume(id).apply_plan(cx.now);
        }
        destage.phase = Phase::Apply;
        destage.applying = true;
    }

    /// The ledger says that these epochs, the oldest, are at the origin: what was waiting for that
    /// goes on.
    pub(super) fn origin_reached(&mut self, cx: &mut Cx<'_>, id: VolumeId, epochs: Vec<Epoch>) {
        let volume = self.volume(id);
        assert!(
            volume.destaged() < volume.serial_next(),
            "only writes that were given a serial are destaged"
        );
        assert!(
            volume
                .epochs
                .front()
                .is_none_or(|epoch| epoch.last_serial > volume.destaged()),
            "what is at the origin is not dirty"
        );
        let all = volume.has_reached_all();
        if volume.state() == State::Stalled || volume.epochs.is_empty() {
            volume.recover();
            volume.forget_damage();
        }
        let layer = volume.layer();
        for request in volume.take_reached_orders() {
            cx.out.reply(request, Ok(()));
        }
        if self.volume(id).replication.is_waited_for() {
            self.peers_have_more(cx, id);
        }
        if all {
            self.end_given_up(id);
        }
        for epoch in epochs {
            if !has(Bug::ServeStaleBase) {
                self.lines.forget_destaged(&mut self.ram, layer, &epoch.map);
            }
            self.extents.free_later(epoch.map);
        }
        self.recount(id);
        self.volume(id).recover_if_read();
        self.commit_destaged(cx, id);
        self.touch(id);
    }
}
