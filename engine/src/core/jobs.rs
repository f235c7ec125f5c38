//! The requests of a destage: from the log into memory, and on to the journal or the origin.
//!
//! ```text
//! journal: runs ─▶ one piece of memory ─▶ one write, an entry of the table for each run
//! origin:  run ─▶ memory ─▶ one write
//! ```
//!
//! Always true: a job holds its memory until its write has ended; a run of the journal begins with
//! a block, and what fills that block up is zero; where the runs of a journal lie is told by the
//! table alone. Deliberately absent: which phase comes next ([`super::destage`]).

use super::Core;
use super::runs::{Run, next_run};
use crate::adversary::{Bug, has};
use crate::event::{Device, Op, Purpose};
use crate::fetch::{Owner, Want};
use crate::format::journal::JournalEntry;
use crate::format::record::EntryKind;
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::types::{BLOCK_BYTES, DestageMode, SECTOR_BYTES, Span, Time, VolumeId};
use alloc::vec::Vec;

/// A range, and where its bytes lie in the memory of its job.
#[derive(Clone, Copy)]
struct Part {
    span: Span,
    at: u64,
}

/// What goes from the log to the journal or the origin in one request. To the origin goes one
/// range; to the journal go as many as fill a piece of memory, each from a block of its own on.
pub(super) struct Job {
    parts: Vec<Part>,
    piece: Option<u32>,
    /// In the journal.
    offset: u64,
    bytes: u64,
}

impl Job {
    fn blocks(&self) -> u64 {
        self.parts.iter().map(|part| part.span.blocks()).sum()
    }
}

impl Core {
    /// Takes a run on its way. False when there is no memory for it now.
    pub(super) fn start_job(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        run: Run,
        applying: bool,
    ) -> bool {
        if let EntryKind::Zero { allocate } = run.kind {
            self.start_zero(cx, id, &run, allocate, applying);
            return true;
        }
        let Some(piece) = self.take_destage_piece(id) else {
            return false;
        };
        let place = self.scratch.piece(piece);
        let room = match applying {
            true => 0,
            false => self.scratch.piece_bytes(),
        };
        let (mut parts, mut wants) = (Vec::new(), Vec::with_capacity(run.parts.len()));
        let (mut next, mut bytes, mut cursor) = (Some(run), 0, 0);
        while let Some(run) = next.take() {
            parts.push(Part {
                span: run.span,
                at: bytes,
            });
            let mut to = place.plus(bytes);
            for (addr, sectors) in run.parts {
                wants.push(Want { addr, sectors, to });
                to = to.plus(sectors * SECTOR_BYTES);
            }
            cursor = run.span.end();
            bytes += run.span.sectors * SECTOR_BYTES;
            // In the journal each range begins with a block.
            let end = bytes.next_multiple_of(BLOCK_BYTES);
            if end < room {
                next = self.run_that_fits(id, cursor, room - end);
                bytes = if next.is_some() { end } else { bytes };
            }
        }
        self.turns.spend(cx.now, id, bytes);
        let destage = self.phase(id);
        destage.pace.spend(cx.now, wants.len() as u64);
        destage.cursor = cursor;
        let offset = destage.journal_at;
        if !applying {
            destage.journal_at += bytes.next_multiple_of(BLOCK_BYTES);
        }
        let job = destage.jobs.insert(Job {
            parts,
            piece: Some(piece),
            offset,
            bytes,
        });
        let owner = Owner::Destage { volume: id, job };
        let parts = (&mut self.log, &mut self.scratch);
        if !self
            .fetches
            .start(cx, parts, owner, Purpose::DestageRead, &wants)
        {
            self.job_fetched(cx, id, job, &[]);
        }
        true
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
        self.phase(id).cursor = run.span.end();
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
        let job = self.phase(id).jobs.insert(Job {
            parts: Vec::new(),
            piece: None,
            offset: 0,
            bytes: 0,
        });
        self.turns.spend(cx.now, id, BLOCK_BYTES);
        self.phase(id).pace.spend(cx.now, 1);
        let volume = self.volume(id);
        volume.origin_in_flight += 1;
        volume.counters.origin.writes += 1;
        let pending = Pending::Destage { volume: id, job };
        let (at, bytes) = (
            run.span.sector * SECTOR_BYTES,
            run.span.sectors * SECTOR_BYTES,
        );
        let (purpose, op) = (self.apply_purpose(id), Op::Zero { allocate });
        cx.order(pending, purpose, Device::Origin(id), op, at, bytes);
    }

    fn apply_purpose(&mut self, id: VolumeId) -> Purpose {
        match self.volume(id).effective_destage() {
            DestageMode::Atomic => Purpose::JournalApply,
            DestageMode::InPlace => Purpose::DestageWrite,
        }
    }

    /// The bytes of a job are there: on to the journal, or to the origin.
    pub(super) fn job_fetched(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, bad: &[Want]) {
        if !bad.is_empty() {
            // It keeps what is bad by itself.
            self.mark_damaged(cx.now, id, core::iter::empty());
            self.hold_if_failed(cx, id);
            let destage = self.phase(id);
            destage.failed = true;
            destage.bad.extend_from_slice(bad);
            self.end_job(cx, id, job);
            return;
        }
        let purpose = self.apply_purpose(id);
        let destage = self.phase(id);
        let applying = destage.applying;
        let it = destage.jobs.get(job);
        let (offset, bytes, parts) = (it.offset, it.bytes, it.parts.clone());
        let piece = it.piece.expect("data jobs have memory");
        let place = self.scratch.piece(piece);
        let pending = Pending::Destage { volume: id, job };
        if applying {
            let at = parts[0].span.sector * SECTOR_BYTES;
            let volume = self.volume(id);
            volume.origin_in_flight += 1;
            volume.counters.origin.writes += 1;
            volume.counters.origin.write_bytes += bytes;
            let slices = alloc::vec![Slice { place, bytes }];
            cx.transfer(pending, purpose, Device::Origin(id), Op::Write, at, slices);
            return;
        }
        for Part { span, at } in parts {
            let bytes = span.sectors * SECTOR_BYTES;
            let from = place.plus(at);
            let entry = JournalEntry {
                span,
                kind: EntryKind::Write,
                offset: offset + at,
                checksum: cx.memory.checksum(from, bytes),
            };
            self.phase(id).entries.push(entry);
            let padded = bytes.next_multiple_of(BLOCK_BYTES);
            if padded > bytes {
                cx.memory.zero(from.plus(bytes), padded - bytes);
            }
        }
        let padded = bytes.next_multiple_of(BLOCK_BYTES);
        self.volume(id).counters.origin.journal_bytes += padded;
        write_journal(cx, id, pending, offset, place, padded);
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
        let applying = volume.destage.as_ref().is_some_and(|d| d.applying);
        if applying {
            volume.origin_in_flight -= 1;
            volume.counters.origin.latency.add_ns(cx.now.since(started));
        }
        if !ok {
            volume.counters.origin.errors += 1;
            self.phase(id).failed = true;
        } else {
            self.turns.moved(cx.now, id);
            self.count_moved(id, job);
        }
        self.end_job(cx, id, job);
    }

    /// Blocks that a job carries; a range of zeroes counts as one.
    pub(super) fn job_blocks(&mut self, id: VolumeId, job: u32) -> u64 {
        let job = self.phase(id).jobs.get(job);
        match job.piece {
            Some(_) => job.blocks(),
            None => 1,
        }
    }

    /// A job has reached the journal or the origin.
    fn count_moved(&mut self, id: VolumeId, job: u32) {
        let atomic = self.volume(id).effective_destage() == DestageMode::Atomic;
        let destage = self.phase(id);
        let job = destage.jobs.get(job);
        let halves = match (atomic, job.piece) {
            (true, Some(_)) => job.blocks(),
            (false, Some(_)) => 2 * job.blocks(),
            // A range of zeroes is no job of the journal.
            (_, None) => 2,
        };
        destage.moved_halves += halves;
        self.volume(id).flow.moved(halves);
    }

    fn end_job(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let job = self.phase(id).jobs.take(job);
        if let Some(piece) = job.piece {
            self.scratch.free_destage_piece(piece);
            self.give_destage_memory(cx);
        }
        self.pump_destage(cx, id);
    }

    /// Pieces of memory that a destage has, or a few more.
    pub(super) fn held_pieces(&mut self, id: VolumeId) -> usize {
        let destage = self.find(id).and_then(|volume| volume.destage.as_ref());
        destage.map_or(0, |it| {
            it.jobs.len() + usize::from(it.table_piece.is_some())
        })
    }

    /// Memory for one request, or a place in the line of those that wait for it.
    pub(super) fn take_destage_piece(&mut self, id: VolumeId) -> Option<u32> {
        let held = self.held_pieces(id);
        let piece = self.scratch.take_destage_piece(held);
        if piece.is_none() {
            self.turns.stand_in_line(id);
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
    place: Place,
    bytes: u64,
) {
    let slices = alloc::vec![Slice { place, bytes }];
    let (device, purpose) = (Device::Journal(id), Purpose::JournalWrite);
    cx.transfer(pending, purpose, device, Op::Write, offset, slices);
}
