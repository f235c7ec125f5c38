//! Replay of a pending journal while its volume is served.
//!
//! ```text
//! Table ─▶ Stat ─▶ Begin ─▶ Copy ─▶ Sync ─▶ Seen ─▶ Finish
//!   └── damaged ────────────┴─▶ the log destages the cut again
//!
//! an image that allocates:
//! a plan:   Copy ─▶ Sync ─▶ Seen ─▶ Reached ─▶ Header ─▶ HeaderSync ─▶ Last ─▶ Finish
//! a start:  Stat ─▶ Header ─┬─▶ (no guard) done
//!                           └─▶ Reached ─▶ Header ─▶ HeaderSync ─▶ Last ─▶ Finish
//! ```
//!
//! Of an image that allocates the header has a guard, which says that only its journal makes it
//! whole. It is cleared when the ledger has said that the journal is not needed any more, and only
//! then; *Finish* comes behind it, so that whoever hears of the end finds a file that every program
//! opens. The journal of such an image has places that the log does not know, so one that cannot
//! be read is never given up: it is tried again for ever.
//!
//! A daemon that was killed in a destage has left a journal, and the log of its cache still has
//! all writes that are in it. Reads are answered from the log, so the volume is served at once,
//! and the journal is copied to the image meanwhile.
//!
//! Always true: until the ledger says *idle* no destage of the volume begins, so nothing writes
//! over the journal; the image gets what the journal has, never what the log has since, so that
//! journal and image together are one point in time after any crash; no entry is written before
//! its checksum matched; after a sync that failed all entries are written again. A journal that
//! is damaged, or that cannot be read for a minute, is given up: the log has what it had.
//! Deliberately absent: journals that this log does not have; [`settle`](crate::settle) applies
//! those before their volume is attached.

use super::Core;
use super::replay_source::Brought;
use crate::adversary::{Bug, has};
use crate::event::{Device, IoError, Op, Purpose, Stat};
use crate::format::ledger::Progress;
use crate::format::record::EntryKind;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending, ReplayIo, Timer};
use crate::settle::payload_bytes;
use crate::snapshot::State;
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Serial, Time, VolumeId};
use crate::volume::ledger::{APPLY_MS_MAX, LedgerStep};
use crate::volume::replay::{Job, Step};
use crate::volume::resend::RETRY_MS;
use alloc::vec::Vec;
use core::ops::Range;

/// Pieces of memory that one read of the journal fills: 1 MiB with chunks of 256 KiB.
const READ_PIECES_MAX: usize = 4;

/// Reads of the journal in flight.
const READS_MAX: usize = 4;

/// A journal that could not be read for so long is given up.
const UNREADABLE_MS: u64 = 60_000;

/// What no program but an administrator can put right is looked at again so much later.
pub(super) const FOREIGN_MS: u64 = 10_000;

const JOURNAL_DAMAGED: &str = "the journal beside the image cannot be read, and only it makes the \
                               image whole; restore it, and destage goes on";

impl Core {
    /// Drives the replay of a volume as far as it goes without waiting.
    pub(super) fn pump_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        loop {
            let Some(volume) = self.find(id) else { return };
            let serves = volume.serves() || volume.applies_commit() || volume.applies_move();
            let begun = volume.is_in_part();
            let Some(replay) = volume.replay_if_any() else {
                return;
            };
            if replay.damaged || !serves {
                self.drop_copies(id);
            }
            if !serves {
                return;
            }
            let replay = self.volume(id).replay();
            if replay.damaged && replay.rests() && (!begun || replay.guards) {
                return self.give_up_replay(cx, id);
            }
            if replay.rewrite && replay.rests() {
                replay.begin_again(cx.now);
            }
            if replay.waiting || replay.damaged || replay.pause.is_under_way(cx.now) {
                return;
            }
            let goes_on = match replay.step {
                Step::Table => self.read_replay_table(cx, id),
                Step::Copy => self.start_copies(cx, id),
                Step::Stat | Step::Seen | Step::Last => self.order_replay(cx, id, Op::Stat),
                Step::Sync => self.order_replay(cx, id, Op::sync_unless(Bug::SkipReplaySync)),
                Step::HeaderSync => self.order_replay(cx, id, Op::Sync),
                Step::Header => self.read_header(cx, id),
                Step::Begin | Step::Reached | Step::Finish => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    fn order_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op) -> bool {
        let volume = self.volume(id);
        volume.replay().waiting = true;
        let purpose = match op {
            Op::Stat => Purpose::Ledger,
            _ => Purpose::JournalApply,
        };
        volume.counters.origin.syncs += u64::from(op != Op::Stat);
        let pending = Pending::Replay {
            volume: id,
            io: ReplayIo::Order,
        };
        cx.order(pending, purpose, Device::Origin(id), op, 0, 0);
        false
    }

    /// Sends writes, and reads what is to be written next.
    fn start_copies(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        loop {
            let depth = self.volume(id).destage_depth(cx.now);
            let replay = self.volume(id).replay();
            if replay.pause.is_under_way(cx.now) || replay.damaged {
                return false;
            }
            if cx.now >= replay.apply_until {
                // The ledger's word on the modification time runs out: write it again.
                replay.step = Step::Stat;
                return true;
            }
            let left = replay.next_entries().is_some();
            if !left && replay.jobs.len() == 0 {
                replay.step = Step::Sync;
                return true;
            }
            let writes = !replay.writes.is_empty() && replay.sent < depth;
            let reads = left && replay.reads < READS_MAX && replay.writes.len() < depth;
            if !(writes || reads) || !self.has_turn(cx.now, id) || !self.has_place(cx.now, id) {
                return false;
            }
            match writes {
                true => self.send_copy(cx, id),
                false if !self.read_entries(cx, id) => return false,
                false => {}
            }
        }
    }

    /// Reads the next entries whose payload lies together. False when there is no memory now.
    fn read_entries(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let (held, most) = (self.volume(id).held_pieces(), self.scratch.piece_bytes());
        let replay = self.volumes.known_mut(id).replay();
        let range = replay.next_entries().expect("checked by the caller");
        let first = replay.entries[range.start];
        if let EntryKind::Zero { .. } = first.kind {
            self.volume(id).zero_entry(range.start);
            return true;
        }
        let (mut places, mut pieces) = (Vec::new(), Vec::new());
        let (mut slices, mut end): (Vec<Slice>, _) = (Vec::new(), first.offset);
        for entry in &replay.entries[range.clone()] {
            let bytes = payload_bytes(entry) as u64;
            // What fills up a block lies between two of them.
            let gap = entry.offset.checked_sub(end);
            let Some(gap) = gap.filter(|gap| bytes > 0 && *gap < BLOCK_BYTES) else {
                break;
            };
            let fits = |last: &Slice| last.bytes + gap + bytes <= most;
            if !slices.last().is_some_and(fits) {
                let filled = slices.last().map_or(0, |last| last.bytes);
                if pieces.len() == READ_PIECES_MAX || filled + gap > most {
                    break;
                }
                let Some(piece) = self.scratch.take_destage_piece(held + pieces.len()) else {
                    break;
                };
                pieces.push(piece);
                if let Some(last) = slices.last_mut() {
                    last.bytes += gap;
                }
                slices.push(Slice {
                    place: self.scratch.piece(piece),
                    bytes: 0,
                });
            } else if let Some(last) = slices.last_mut() {
                last.bytes += gap;
            }
            let last = slices.last_mut().expect("there is one by now");
            places.push(last.place.plus(last.bytes));
            last.bytes += bytes;
            end = entry.offset + bytes;
        }
        // A journal consists of whole blocks.
        let rest = end.next_multiple_of(BLOCK_BYTES) - end;
        if let Some(last) = slices.last_mut().filter(|last| last.bytes + rest <= most) {
            last.bytes += rest;
            end += rest;
        }
        if pieces.is_empty() {
            self.turns.enqueue(id);
            return false;
        }
        assert!(pieces.len() == slices.len() && !places.is_empty());
        let upto = range.start + places.len();
        let job = replay.jobs.insert(Job {
            entries: range.start..upto,
            places,
            pieces,
            reading: true,
            brought: false,
            writes: 0,
        });
        replay.reads += 1;
        replay.advance(upto);
        self.bring_or_read(cx, id, job, first.offset..end, slices);
        true
    }

    fn bring_or_read(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        job: u32,
        payload: Range<u64>,
        slices: Vec<Slice>,
    ) {
        assert!(payload.start < payload.end, "entries have bytes");
        let brought = self.bring_entries(cx, id, job);
        let volume = self.volume(id);
        volume.replay().jobs.get(job).brought = brought != Brought::No;
        match brought {
            Brought::Later => {}
            Brought::Now => self.entries_there(cx, id, job),
            Brought::No => {
                volume.counters.origin.journal_requests += 1;
                self.replay_sent(cx.now, id, payload.end - payload.start);
                read_journal(cx, id, ReplayIo::Read { job }, payload.start, slices);
            }
        }
    }

    /// A request to the storage of a volume counts like one of a destage.
    fn replay_sent(&mut self, now: Time, id: VolumeId, bytes: u64) {
        let storage = self.volume(id).storage();
        self.turns.sent(now, id, storage, 1);
        self.turns.spend(now, id, bytes);
    }

    fn send_copy(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let write = volume
            .replay()
            .writes
            .pop_front()
            .expect("checked by the caller");
        volume.replay().sent += 1;
        volume.request_begins();
        volume.counters.origin.writes += 1;
        let pending = Pending::Replay {
            volume: id,
            io: ReplayIo::Write {
                job: write.job,
                first: write.entries.start as u32,
                upto: write.entries.end as u32,
            },
        };
        let (purpose, device) = (Purpose::JournalApply, Device::Origin(id));
        let at = write.span.sector * SECTOR_BYTES;
        let bytes = write.span.sectors * SECTOR_BYTES;
        if let EntryKind::Zero { allocate } = write.kind {
            self.replay_sent(cx.now, id, BLOCK_BYTES);
            cx.order(pending, purpose, device, Op::Zero { allocate }, at, bytes);
        } else {
            volume.counters.origin.write_bytes += bytes;
            self.replay_sent(cx.now, id, bytes);
            cx.transfer(pending, purpose, device, Op::Write, at, write.slices);
        }
    }

    /// A request of a replay has ended.
    pub(super) fn replay_done(
        &mut self,
        cx: &mut Cx<'_>,
        (id, io): (VolumeId, ReplayIo),
        (result, stat, started): (Result<(), IoError>, Option<Stat>, Time),
    ) {
        let ok = result.is_ok();
        match io {
            ReplayIo::Table { bytes } => self.replay_table_read(cx, id, bytes, ok),
            ReplayIo::Read { job } => self.entries_read(cx, id, job, ok),
            ReplayIo::Write { job, first, upto } => {
                let entries = first as usize..upto as usize;
                self.copied(cx, id, (job, entries), result, started);
            }
            ReplayIo::Order => self.replay_ordered(cx, id, ok, stat),
            ReplayIo::Header { writes } => self.header_done(cx, id, (ok, writes)),
        }
        // As many as have got memory before may do so again.
        self.touched.places(1);
    }

    fn entries_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, at: u32, ok: bool) {
        self.turns.done(cx.now, id, 1);
        if !ok {
            self.bring_again(id, at);
            return self.replay_read_failed(cx, id);
        }
        self.volume(id).replay().unreadable_since = None;
        self.entries_there(cx, id, at);
    }

    /// The entries of a job are to be read once more.
    pub(super) fn bring_again(&mut self, id: VolumeId, at: u32) {
        let replay = self.volume(id).replay();
        replay.reads -= 1;
        let job = replay.jobs.get(at);
        assert!(job.reading, "a read ends once");
        job.reading = false;
        let entries = job.entries.clone();
        replay.writes_again(entries);
        self.end_copy(id, at);
    }

    /// The entries of a job are in memory.
    pub(super) fn entries_there(&mut self, cx: &mut Cx<'_>, id: VolumeId, at: u32) {
        let replay = self.volume(id).replay();
        let job = replay.jobs.get(at);
        let entries = &replay.entries[job.entries.clone()];
        let whole = entries.iter().zip(&job.places).all(|(entry, place)| {
            let sum = cx.memory.checksum(*place, payload_bytes(entry) as u64);
            sum == entry.checksum
        });
        if !whole && job.brought {
            return self.entries_differ(id, at);
        }
        assert!(job.reading, "a read ends once");
        job.reading = false;
        replay.reads -= 1;
        if !whole {
            replay.damaged = true;
            return self.end_copy(id, at);
        }
        let writes = replay.writes_of(at);
        replay.writes.extend(writes);
    }

    pub(super) fn replay_read_failed(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let replay = self.volume(id).replay();
        let since = *replay.unreadable_since.get_or_insert(cx.now);
        replay.damaged |= cx.now >= since.plus_millis(UNREADABLE_MS);
        self.replay_rests(cx, id, false);
    }

    /// Something failed: a pause, unless one has begun since it was sent.
    fn replay_rests(&mut self, cx: &mut Cx<'_>, id: VolumeId, full: bool) {
        let volume = self.volume(id);
        volume.counters.origin.errors += 1;
        let pause = &mut volume.replay().pause;
        if let Some(until) = pause.longer(cx.now) {
            cx.out.timer(until, Timer::Pace(id));
        }
        if full || !pause.is_first() {
            volume.stall(full);
        }
        self.turns.rest(id);
    }

    pub(super) fn replay_stalls(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        volume.counters.origin.errors += 1;
        volume.stall(false);
        self.turns.rest(id);
    }

    fn copied(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        (at, entries): (u32, Range<usize>),
        result: Result<(), IoError>,
        started: Time,
    ) {
        self.turns.done(cx.now, id, 1);
        let volume = self.volume(id);
        volume.request_ends();
        volume.counters.origin.latency.add_ns(cx.now.since(started));
        let replay = volume.replay();
        assert!(replay.sent > 0 && replay.jobs.get(at).writes > 0);
        replay.sent -= 1;
        replay.jobs.get(at).writes -= 1;
        if result.is_ok() {
            replay.pause.end();
            if volume.state() == State::Stalled && !volume.replay().sync_failed {
                volume.recover();
            }
            self.turns.moved(cx.now, id);
        } else {
            replay.writes_again(entries);
            self.replay_rests(cx, id, result == Err(IoError::NoSpace));
        }
        self.end_copy(id, at);
    }

    /// Nothing is written any more, or not now: what has not been sent is read again.
    pub(super) fn drop_copies(&mut self, id: VolumeId) {
        let Some(replay) = self.volume(id).replay_if_any() else {
            return;
        };
        let writes = core::mem::take(&mut replay.writes);
        for write in writes {
            let replay = self.volume(id).replay();
            replay.jobs.get(write.job).writes -= 1;
            replay.writes_again(write.entries);
            self.end_copy(id, write.job);
        }
    }

    /// Lets a job go that has nothing in flight.
    fn end_copy(&mut self, id: VolumeId, at: u32) {
        let replay = self.volume(id).replay();
        let job = replay.jobs.get(at);
        if job.reading || job.writes > 0 {
            return;
        }
        for piece in replay.jobs.take(at).pieces {
            self.scratch.free_destage_piece(piece);
        }
        let replay = self.volume(id).replay();
        assert!(
            replay.reads <= replay.jobs.len(),
            "what is read belongs to a job"
        );
    }

    /// A stat or the sync has ended.
    fn replay_ordered(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool, stat: Option<Stat>) {
        let now = cx.now;
        let replay = self.volume(id).replay();
        replay.waiting = false;
        match (replay.step, stat.filter(|_| ok)) {
            (Step::Sync, _) if ok => {
                replay.sync_failed = false;
                replay.step = Step::Seen;
            }
            // What a failed sync covered may be gone: all of it is written again.
            (Step::Sync, _) => {
                replay.sync_failed = true;
                replay.begin_again(now);
                self.replay_stalls(id);
            }
            (Step::HeaderSync, _) if ok => replay.step = Step::Last,
            (Step::HeaderSync, _) => {
                replay.step = Step::Header;
                replay.pause.rest(now, RETRY_MS);
                self.replay_stalls(id);
            }
            (Step::Stat, Some(stat)) => self.begin_replay(cx, id, &stat),
            (Step::Seen, Some(stat)) => self.replay_seen(cx, id, &stat),
            (Step::Last, Some(stat)) => self.header_seen(cx, id, &stat),
            _ => {
                replay.pause.rest(now, RETRY_MS);
                self.replay_stalls(id);
            }
        }
    }

    /// The image is the one of the journal: the ledger says until when it may be written.
    fn begin_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) {
        if !self.judge_image(cx, id, stat) {
            return;
        }
        let replay = self.volume(id).replay();
        assert!(replay.step == Step::Stat, "the image was looked at");
        replay.stat = Some(*stat);
        if replay.upto == Serial(0) && replay.entries.is_empty() {
            replay.step = Step::Header;
            return;
        }
        replay.step = Step::Begin;
        replay.apply_until = cx.now.plus_millis(APPLY_MS_MAX / 3);
        self.volume(id).written_ledger().note_apply(cx.now, stat);
        self.write_ledger(cx, id, LedgerStep::Begin);
    }

    /// The image after its last write. One that does not fit is written again when it does.
    fn replay_seen(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) {
        if !self.judge_image(cx, id, stat) {
            return self.volume(id).replay().begin_again(cx.now);
        }
        let replay = self.volume(id).replay();
        replay.stat = Some(*stat);
        match replay.guards {
            true if has(Bug::ClearGuardEarly) => {
                (replay.step, replay.reached) = (Step::Header, true);
            }
            true => self.say_reached(cx, id),
            false => self.end_replay(cx, id, stat),
        }
    }

    pub(super) fn end_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) {
        let volume = self.volume(id);
        volume.replay().step = Step::Finish;
        let upto = volume.replay().upto;
        if let Some(image) = stat.image {
            volume.written_ledger().sees_image(&image);
            volume.sees_mark(&image);
        }
        volume.written_ledger().reach(upto, Progress::Idle);
        self.write_ledger(cx, id, LedgerStep::Finish);
    }

    /// The ledger says that the image stands at the journal's cut.
    pub(super) fn replay_finished(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let replay = self.volume(id).end_replay();
        self.image_written(id, &replay);
        self.resume_behind_replay(cx, id);
        self.touched.held_reads();
    }

    /// Goes on with what waited for a replay.
    pub(super) fn resume_behind_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let destaged = volume.ledger().map_or(Serial(0), |it| it.destaged);
        volume.reach(destaged);
        let upto = volume.destaged();
        let epochs = volume.epochs.iter();
        let there = epochs.take_while(|epoch| epoch.last_serial <= upto).count();
        let epochs: Vec<_> = volume.epochs.drain(..there).collect();
        self.origin_reached(cx, id, epochs);
    }

    /// The journal cannot be used. The log has all that it had, so its cut is reached by a destage
    /// as one in place that was cut short, with a journal that is written anew.
    fn give_up_replay(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if self.volume(id).replay().guards {
            return self.read_journal_again(cx.now, id);
        }
        let mut volume = self.volumes.take(id).expect("checked by the caller");
        let upto = volume.lose_journal();
        self.merge_epochs(&mut volume, 0, upto);
        volume.want(upto);
        self.volumes.put(id, volume);
        self.recount(id);
        self.touch(id);
    }
}

impl Core {
    /// The journal alone has all of what it has.
    fn read_journal_again(&mut self, now: Time, id: VolumeId) {
        let volume = self.volume(id);
        let replay = volume.replay();
        replay.damaged = false;
        replay.unreadable_since = None;
        replay.table.clear();
        if !replay.plan {
            replay.step = Step::Table;
            replay.entries.clear();
        }
        replay.cursor = 0;
        replay.again.clear();
        replay.pause.rest(now, FOREIGN_MS);
        volume.counters.origin.errors += 1;
        volume.stall_for(JOURNAL_DAMAGED);
        self.turns.rest(id);
    }
}

pub(super) fn read_journal(
    cx: &mut Cx<'_>,
    id: VolumeId,
    io: ReplayIo,
    offset: u64,
    slices: Vec<Slice>,
) {
    let pending = Pending::Replay { volume: id, io };
    let (device, purpose) = (Device::Journal(id), Purpose::JournalApply);
    cx.transfer(pending, purpose, device, Op::Read, offset, slices);
}
