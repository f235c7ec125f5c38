//! The requests of a destage: from the log into memory, and on to the journal or the origin.
//!
//! ```text
//! journal: runs ─▶ a few pieces of memory ─▶ one write, an entry of the table for each run
//! origin:  run ─▶ a few pieces of memory ─▶ one write
//! ```
//!
//! Always true: a job holds its memory until its write has ended; no extent lies in two pieces, so
//! that one checksum covers it, and only whole blocks go before another piece; a run of the journal
//! begins with a block, and what fills that block up is zero; where the runs of a journal lie is
//! told by the table alone. Deliberately absent: which phase comes next ([`super::destage`]).

use super::Core;
use super::merge_damage::is_covered;
use crate::adversary::{Bug, has};
use crate::event::{Device, Op, Purpose};
use crate::fetch::{Owner, Want};
use crate::format::journal::JournalEntry;
use crate::format::record::EntryKind;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::types::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES, Span, Time, VolumeId};
use crate::volume::batch::Batch;
use crate::volume::jobs::{Job, Part};
use crate::volume::runs::{Run, next_run};
use alloc::vec::Vec;

/// Pieces of memory that one request fills: 1 MiB with chunks of 256 KiB. A storage that counts
/// requests is asked for fewer.
pub(super) const JOB_PIECES_MAX: usize = 4;

impl Core {
    /// Takes a run on its way, and says how far it got. `None` when there is no memory for it now.
    pub(super) fn start_job(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        run: Run,
        applying: bool,
    ) -> Option<u64> {
        if let EntryKind::Zero { allocate } = run.kind {
            self.start_zero(cx, id, &run, allocate, applying);
            return Some(run.span.end());
        }
        assert!(run.span.sectors > 0, "a run has sectors");
        let (from, mut job) = (run.span.sector, Job::at(self.phase(id).journal_at));
        if !self.grow(id, &mut job) {
            self.turns.enqueue(id);
            return None;
        }
        let (wants, cursor) = match applying {
            true => self.fill_for_origin(id, &mut job, run),
            false => self.fill_for_journal(id, &mut job, run),
        };
        assert!(cursor > from, "each job goes on");
        if !applying {
            self.phase(id).journal_at += job.bytes();
        }
        self.fetch_job(cx, id, job, &wants);
        Some(cursor)
    }

    /// Reads what a job carries.
    pub(super) fn fetch_job(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: Job, wants: &[Want]) {
        assert!(!job.parts.is_empty(), "a job carries something");
        debug_assert!(
            wants.iter().map(|want| want.sectors).sum::<u64>()
                == job.parts.iter().map(|part| part.span.sectors).sum::<u64>(),
            "all that a job carries is read"
        );
        self.turns.spend(cx.now, id, job.bytes());
        self.phase(id).pace.spend(cx.now, wants.len() as u64);
        let job = self.insert_job(cx.now, id, job);
        let owner = Owner::Destage { volume: id, job };
        let parts = (&mut self.log, &mut self.scratch);
        if !self
            .fetches
            .start(cx, parts, owner, Purpose::DestageRead, wants)
        {
            self.job_fetched(cx, id, job, &[]);
        }
    }

    pub(super) fn insert_job(&mut self, now: Time, id: VolumeId, job: Job) -> u32 {
        let width = job.width();
        let storage = self.volume(id).storage();
        self.turns.sent(now, id, storage, width as u32);
        let destage = self.phase(id);
        destage.width += width;
        let job = destage.jobs.insert(job);
        assert!(
            destage.jobs.len() <= destage.width,
            "each job has a width of one at least"
        );
        job
    }

    /// Gives a job that is being filled one more piece of memory, if it may have it and there is
    /// one.
    pub(super) fn grow(&mut self, id: VolumeId, job: &mut Job) -> bool {
        if job.pieces.len() >= JOB_PIECES_MAX {
            return false;
        }
        let held = self.volume(id).held_pieces() + job.pieces.len();
        let Some(piece) = self.scratch.take_destage_piece(held) else {
            return false;
        };
        job.pieces.push(piece);
        job.slices.push(Slice {
            place: self.scratch.piece(piece),
            bytes: 0,
        });
        assert!(job.pieces.len() == job.slices.len());
        true
    }

    /// One range, as far as it fits; from one piece to the next between two blocks only.
    fn fill_for_origin(&mut self, id: VolumeId, job: &mut Job, run: Run) -> (Vec<Want>, u64) {
        let piece_bytes = self.scratch.piece_bytes();
        let mut wants = Vec::with_capacity(run.parts.len());
        let mut span = Span::new(run.span.sector, 0);
        let place = job.end();
        for (addr, sectors) in run.parts {
            let bytes = sectors * SECTOR_BYTES;
            if job.filled() + bytes > piece_bytes {
                let whole = [span.sector, span.sectors];
                let whole = whole.iter().all(|it| it.is_multiple_of(BLOCK_SECTORS));
                if !whole || !self.grow(id, job) {
                    break;
                }
            }
            let to = job.end();
            wants.push(Want { addr, sectors, to });
            job.fill(bytes);
            span.sectors += sectors;
        }
        assert!(
            span.sectors > 0 && job.bytes() == span.sectors * SECTOR_BYTES,
            "memory holds the range as a whole"
        );
        assert!(job.filled() <= piece_bytes);
        job.parts.push(Part { span, place, at: 0 });
        (wants, span.end())
    }

    /// As many ranges as fit; what does not fit in a piece is cut, and goes on in the next.
    fn fill_for_journal(&mut self, id: VolumeId, job: &mut Job, run: Run) -> (Vec<Want>, u64) {
        let piece_bytes = self.scratch.piece_bytes();
        let (mut wants, mut cursor) = (Vec::with_capacity(run.parts.len()), 0);
        let (mut next, mut at) = (Some(run), 0);
        while let Some(run) = next.take() {
            let place = job.end();
            let span = run.span;
            job.parts.push(Part { span, place, at });
            let mut to = place;
            for (addr, sectors) in run.parts {
                wants.push(Want { addr, sectors, to });
                to = to.plus(sectors * SECTOR_BYTES);
            }
            cursor = span.end();
            let bytes = (span.sectors * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES);
            job.fill(bytes);
            at += bytes;
            next = match piece_bytes - job.filled() {
                0 => self.run_for_next_piece(id, job, cursor),
                room => self.run_that_fits(id, cursor, room),
            };
        }
        assert!(
            at == job.bytes(),
            "places in the journal and in memory go on together"
        );
        (wants, cursor)
    }

    fn run_for_next_piece(&mut self, id: VolumeId, job: &mut Job, cursor: u64) -> Option<Run> {
        let run = self.run_that_fits(id, cursor, self.scratch.piece_bytes())?;
        self.grow(id, job).then_some(run)
    }

    /// The run of data behind a job of the journal, or as much of it as there is room for.
    fn run_that_fits(&mut self, id: VolumeId, cursor: u64, room: u64) -> Option<Run> {
        let piece_bytes = self.scratch.piece_bytes();
        let epoch = self.volume(id).epochs.front();
        let map = &epoch.expect("an epoch is being destaged").map;
        let run = next_run(map, cursor, piece_bytes)?;
        (run.kind == EntryKind::Write).then(|| run.up_to(room / SECTOR_BYTES))
    }

    /// A range of zeroes is an entry of the journal, and one request to the origin.
    fn start_zero(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        run: &Run,
        allocate: bool,
        applying: bool,
    ) {
        if has(Bug::ForgetDiscardAtDestage) {
            return;
        }
        if !applying {
            let entry = JournalEntry {
                span: run.span,
                kind: run.kind,
                offset: 0,
                checksum: 0,
            };
            self.phase(id).entries.push(entry);
            return;
        }
        let mut job = Job::at(0);
        job.zeroes = Some(run.span);
        let job = self.insert_job(cx.now, id, job);
        self.turns.spend(cx.now, id, BLOCK_BYTES);
        self.phase(id).pace.spend(cx.now, 1);
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.writes += 1;
        let pending = Pending::Destage { volume: id, job };
        let (device, at) = volume.written_at(run.span);
        let bytes = run.span.sectors * SECTOR_BYTES;
        let (purpose, op) = (self.volume(id).apply_purpose(), Op::Zero { allocate });
        cx.order(pending, purpose, device, op, at, bytes);
    }

    /// The bytes of a job are there: on to the journal, or to the origin.
    pub(super) fn job_fetched(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, bad: &[Want]) {
        if !bad.is_empty() {
            // It keeps what is bad by itself.
            self.volume(id).meets_damage(cx.now, core::iter::empty());
            if !is_covered(self.volume(id), bad) {
                self.hold_if_failed(cx, id);
            }
            let destage = self.phase(id);
            destage.failed = true;
            destage.bad.extend_from_slice(bad);
            let it = destage.jobs.get(job);
            if it.batch.is_some() {
                it.cut = true;
                return self.batch_filled(cx, id, job);
            }
            self.end_job(cx, id, job);
            return;
        }
        if self.phase(id).jobs.get(job).batch.is_some() {
            return self.batch_filled(cx, id, job);
        }
        let purpose = self.volume(id).apply_purpose();
        let misfits = self.volume(id).misfit().is_some();
        let destage = self.phase(id);
        let applying = destage.applying;
        if applying && misfits {
            self.keep_unsent(id, job);
            return self.end_job(cx, id, job);
        }
        let destage = self.phase(id);
        let it = destage.jobs.get(job);
        let (offset, bytes) = (it.offset, it.bytes());
        let (slices, parts, again) = (it.slices.clone(), it.parts.clone(), it.again);
        let pending = Pending::Destage { volume: id, job };
        if applying {
            assert!(
                parts.len() == 1 && bytes == parts[0].span.sectors * SECTOR_BYTES,
                "one range as a whole goes to the origin"
            );
            let volume = self.volume(id);
            let (device, at) = volume.written_at(parts[0].span);
            volume.request_begins();
            volume.counters.origin.writes += 1;
            volume.counters.origin.write_bytes += bytes;
            cx.transfer(pending, purpose, device, Op::Write, at, slices);
            return;
        }
        for Part { span, place, at } in parts {
            let bytes = span.sectors * SECTOR_BYTES;
            if !again {
                let entry = JournalEntry {
                    span,
                    kind: EntryKind::Write,
                    offset: offset + at,
                    checksum: cx.memory.checksum(place, bytes),
                };
                self.phase(id).entries.push(entry);
            }
            let padded = bytes.next_multiple_of(BLOCK_BYTES);
            if padded > bytes {
                cx.memory.zero(place.plus(bytes), padded - bytes);
            }
        }
        self.volume(id).counters.origin.journal_bytes += bytes;
        self.volume(id).counters.origin.journal_requests += 1;
        write_journal(cx, id, pending, offset, slices);
    }

    pub(super) fn job_done(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        job: u32,
        ok: bool,
        started: Time,
    ) {
        let volume = self.volume(id);
        let destage = volume.destaging();
        let batch = destage.jobs.get(job).batch.as_ref();
        let planned = batch.is_some();
        let now = batch.is_some_and(Batch::goes_to_file);
        let applying = destage.applying || now;
        if applying {
            assert!(volume.has_requests(), "only what was sent ends");
            volume.request_ends();
            volume.counters.origin.latency.add_ns(cx.now.since(started));
        }
        if !ok {
            volume.counters.origin.errors += 1;
            match planned {
                true => self.volume(id).keep_batch(job),
                false => self.keep_unsent(id, job),
            }
            self.rest_after_failure(cx, id);
        } else {
            self.turns.moved(cx.now, id);
            self.volume(id).count_moved(job);
            self.volume(id).go_on_after_success();
        }
        self.end_job(cx, id, job);
    }

    pub(super) fn end_job(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let destage = self.phase(id);
        let job = destage.jobs.take(job);
        destage.width -= job.width();
        assert!(destage.jobs.len() <= destage.width);
        self.turns.done(cx.now, id, job.width() as u32);
        for piece in &job.pieces {
            self.scratch.free_destage_piece(*piece);
        }
        // As many as have got some before may do so again.
        self.touched.places(job.width());
        self.touch(id);
    }

    /// Memory for one request, or a place in the line of those that wait for it.
    pub(super) fn take_destage_piece(&mut self, id: VolumeId) -> Option<u32> {
        let held = self.volume(id).held_pieces();
        let piece = self.scratch.take_destage_piece(held);
        if piece.is_none() {
            self.turns.enqueue(id);
        }
        piece
    }
}

/// Writes memory to the journal beside an origin.
pub(super) fn write_journal(
    cx: &mut Cx<'_>,
    id: VolumeId,
    pending: Pending,
    offset: u64,
    slices: Vec<Slice>,
) {
    assert!(
        offset.is_multiple_of(BLOCK_BYTES),
        "a journal is written in whole blocks"
    );
    let (device, purpose) = (Device::Journal(id), Purpose::JournalWrite);
    cx.transfer(pending, purpose, device, Op::Write, offset, slices);
}
