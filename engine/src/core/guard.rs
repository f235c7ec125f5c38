//! The guard of an image that allocates: a bit in its header, which says that only the journal
//! makes the file whole, so that no other program takes it for a disk meanwhile.
//!
//! ```text
//! destage: all is written at once ─▶ header read ─▶ guard set ─▶ synced with the image
//! replay:  all is applied ─▶ ledger *prepare* ─▶ header read ─▶ guard cleared ─▶ synced ─▶ ledger
//!                                                                                        *idle*
//! ```
//!
//! Always true: the guard is durable before the ledger says *apply*, and is cleared only when the
//! ledger has said that the journal is not needed; one write of the header is in flight; a header
//! is written as it was read, but for the guard. Deliberately absent: what a header is
//! ([`Planner`](crate::origin::Planner)).

use super::Core;
use super::replay::FOREIGN_MS;
use crate::adversary::{Bug, has};
use crate::event::{Device, Op, Purpose, Stat};
use crate::format::ledger::Progress;
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending, PlanIo, ReplayIo};
use crate::types::{SECTOR_BYTES, Serial, Time, VolumeId};
use crate::volume::Replay;
use crate::volume::destage::Phase;
use crate::volume::ledger::LedgerStep;
use crate::volume::replay::Step;
use crate::volume::resend::RETRY_MS;

const FOREIGN: &str = "the file does not begin with the header of its image any more; restore it, \
                       and destage goes on";

impl Core {
    /// Reads the first sector of the file, to write it with the guard set.
    pub(super) fn order_guard(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let Some(piece) = self.take_destage_piece(id) else {
            return false;
        };
        let place = self.scratch.piece(piece);
        let destage = self.phase(id);
        assert!(
            destage.is_idle() || destage.jobs.len() == 0,
            "the guard comes behind all that a plan writes"
        );
        destage.waiting = true;
        destage.table_piece = Some(piece);
        self.send_guard(cx, id, Op::Read, place);
        false
    }

    fn send_guard(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op, place: Place) {
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.journal_requests += 1;
        let slice = Slice {
            place,
            bytes: SECTOR_BYTES,
        };
        let writes = op == Op::Write;
        let (volume, io) = (id, PlanIo::Guard { writes });
        let pending = Pending::Plan { volume, io };
        let (purpose, device) = (Purpose::DestageWrite, Device::Origin(id));
        cx.transfer(pending, purpose, device, op, 0, alloc::vec![slice]);
    }

    pub(super) fn guard_done(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        (ok, written): (bool, bool),
    ) {
        let volume = self.volume(id);
        volume.request_ends();
        let misfits = volume.misfit().is_some();
        let destage = self.phase(id);
        let piece = destage.table_piece.expect("it has a piece");
        let place = self.scratch.piece(piece);
        let mut foreign = false;
        if ok && !written && !misfits {
            let mut sector = alloc::vec![0; SECTOR_BYTES as usize];
            cx.memory.load(place, &mut sector);
            let planner = self.planner(id).expect("such an image has one");
            match planner.guarded(&sector, !has(Bug::SkipGuard)) {
                Some(sector) => {
                    cx.memory.store(place, &sector);
                    self.phase(id).guarded = true;
                    return self.send_guard(cx, id, Op::Write, place);
                }
                None => foreign = true,
            }
        }
        let destage = self.phase(id);
        (destage.waiting, destage.table_piece) = (false, None);
        self.scratch.free_destage_piece(piece);
        let destage = self.phase(id);
        if foreign {
            self.plan_contradicted(cx, id);
        } else if ok && written {
            destage.phase = Phase::ImageSync;
        } else {
            destage.retry_at = cx.now.plus_millis(RETRY_MS);
            self.volume(id).counters.origin.errors += u64::from(!ok);
        }
    }

    /// The image has all that the journal has: the ledger says so before the guard is cleared.
    pub(super) fn say_reached(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let replay = self.volume(id).replay();
        assert!(
            replay.guards && !replay.reached && replay.rests(),
            "all of it is at the image"
        );
        replay.step = Step::Reached;
        let upto = replay.upto;
        let stat = replay.stat.expect("the image was looked at");
        let writer = self.volume(id).written_ledger();
        writer.note_apply(cx.now, &stat);
        writer.reach(upto, Progress::Prepare);
        self.write_ledger(cx, id, LedgerStep::Reached);
    }

    pub(super) fn read_header(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let Some(piece) = self.take_destage_piece(id) else {
            return false;
        };
        let place = self.scratch.piece(piece);
        let replay = self.volume(id).replay();
        assert!(replay.header_piece.is_none() && !replay.waiting);
        replay.header_piece = Some(piece);
        self.send_header(cx, id, Op::Read, place);
        false
    }

    fn send_header(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op, place: Place) {
        let volume = self.volume(id);
        volume.replay().waiting = true;
        volume.request_begins();
        volume.counters.origin.journal_requests += 1;
        let pending = Pending::Replay {
            volume: id,
            io: ReplayIo::Header {
                writes: op == Op::Write,
            },
        };
        let slice = Slice {
            place,
            bytes: SECTOR_BYTES,
        };
        let (purpose, device) = (Purpose::JournalApply, Device::Origin(id));
        cx.transfer(pending, purpose, device, op, 0, alloc::vec![slice]);
    }

    /// The first sector was read, or written without the guard.
    pub(super) fn header_done(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        (ok, written): (bool, bool),
    ) {
        let volume = self.volume(id);
        volume.request_ends();
        let misfits = volume.misfit().is_some();
        let replay = volume.replay();
        replay.waiting = false;
        let piece = replay.header_piece.take().expect("it has a piece");
        let place = self.scratch.piece(piece);
        if !ok || misfits {
            let replay = self.volume(id).replay();
            replay.pause.rest(cx.now, RETRY_MS);
            self.scratch.free_destage_piece(piece);
            return self.replay_stalls(id);
        }
        if written {
            self.scratch.free_destage_piece(piece);
            self.volume(id).replay().step = Step::HeaderSync;
            return;
        }
        let mut sector = alloc::vec![0; SECTOR_BYTES as usize];
        cx.memory.load(place, &mut sector);
        let cleared = self.planner(id).and_then(|it| it.guarded(&sector, false));
        let Some(cleared) = cleared else {
            self.scratch.free_destage_piece(piece);
            return self.header_is_foreign(cx.now, id);
        };
        assert_eq!(
            cleared.len(),
            sector.len(),
            "a header stays as long as it is"
        );
        let set = cleared != sector;
        let volume = self.volume(id);
        volume.replay().header.clone_from(&cleared);
        let ledger = volume.written_ledger().ledger();
        let idle = matches!(ledger.progress, Progress::Idle | Progress::Cut(_));
        let destaged = ledger.destaged;
        let replay = volume.replay();
        if replay.reached {
            // Also where it is clear by now: a sync that has failed, or a life before, may have
            // left it so in memory alone.
            let ahead = u64::from(has(Bug::MarkAhead));
            let mark = self.volume(id).mark(Serial(destaged.0 + ahead));
            let planner = self.planner(id).expect("such an image has one");
            let marked = planner.marked(&cleared, mark);
            cx.memory.store(place, &marked);
            let replay = self.volume(id).replay();
            replay.header = marked;
            replay.header_piece = Some(piece);
            return self.send_header(cx, id, Op::Write, place);
        }
        self.scratch.free_destage_piece(piece);
        match set || !idle {
            true => self.say_reached(cx, id),
            false => self.end_guard(cx, id),
        }
    }

    /// What lies at the beginning of the file is not the header of this image.
    fn header_is_foreign(&mut self, now: Time, id: VolumeId) {
        let volume = self.volume(id);
        volume.replay().pause.rest(now, FOREIGN_MS);
        volume.counters.origin.errors += 1;
        volume.stall_for(FOREIGN);
        self.turns.rest(id);
    }

    /// The image behind its last write.
    pub(super) fn header_seen(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) {
        if !self.judge_image(cx, id, stat) {
            self.volume(id).replay().step = Step::Header;
            return;
        }
        let replay = self.volume(id).replay();
        assert!(replay.reached, "the ledger said so before");
        replay.stat = Some(*stat);
        self.end_replay(cx, id, stat);
    }

    /// A guard was looked for, and there was none.
    fn end_guard(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let replay = self.volume(id).end_guard();
        self.image_written(id, &replay);
        self.resume_behind_replay(cx, id);
    }

    /// The map of the image learns what has become of it.
    pub(super) fn image_written(&mut self, id: VolumeId, replay: &Replay) {
        if !replay.guards {
            return;
        }
        if !replay.plan {
            let stat = replay.stat.expect("the image was looked at");
            let planner = self.planner(id).expect("such an image has one");
            let known = planner.read_anew(&replay.header, stat.size_bytes);
            assert!(known, "its header was looked at");
            return self.forget_tables(id, None);
        }
        let planner = self.planner(id).expect("such an image has one");
        let ranges = planner.reached();
        self.forget_tables(id, Some(&ranges));
        if replay.is_task {
            self.task_reached(id);
        }
    }
}
