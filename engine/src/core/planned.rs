//! A destage of an image that allocates: its plan on its way to the file and to the journal.
//!
//! ```text
//! epoch ─▶ pieces of a cluster ─▶ planner ─▶ work ─▶ batches ─▶ memory ─┬▶ the file, at once
//!              ▲                     │                                  └▶ the journal
//!              └── table ◀─ missing ─┘
//! ```
//!
//! Always true: a plan is made in the order of the disk, and a table is read once for it; a batch
//! ([`super::batch`]) to the file lies where nothing in the file refers to ([`crate::origin`]); an
//! entry of the journal names a place of the file. Work waits for memory, never for the read tier
//! or the log, so that a destage makes room whatever else is full. What is read for a plan is of
//! the file as it was before: nothing of it is kept. Deliberately absent: what a plan decides
//! ([`Planner`]), and the phases around it ([`super::destage`]).

use super::Core;
use super::copied::CopyRead;
use super::jobs::write_journal;
use super::tables::{file_device, read_of};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, IoError, Op, Purpose, Refusal};
use crate::fetch::{Owner, Want};
use crate::format::journal::JournalEntry;
use crate::format::record::EntryKind;
use crate::map::Content;
use crate::memory::Slice;
use crate::origin::{Lies, Missing, Planned, Planner, TABLE_BYTES_MAX, When, Work};
use crate::outbox::{Cx, Pending, PlanIo, Timer};
use crate::snapshot::State;
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, VolumeId};
use crate::volume::batch::{Plan, Source, next_pieces, pieces_of, step_of_planner};
use crate::volume::destage::Phase;
use crate::volume::jobs::Job;
use alloc::vec::Vec;

/// Steps of a plan in one turn of the engine.
const STEPS_MAX: usize = 512;
/// A plan that met a contradiction in the image is made anew so much later.
const DAMAGED_MS: u64 = 60_000;

/// Why an epoch does not reach an image that contradicts itself.
const CONTRADICTS: &str = "the tables of the image contradict each other; look at it with \
                           `qemu-img check -U`, and destage goes on when it is repaired";

/// What a step of a plan has done.
#[derive(PartialEq, Eq)]
enum Went {
    On,
    /// It waits for a request, memory, or its turn; or there is nothing left.
    Nowhere,
}

impl Core {
    pub(super) fn planner(&mut self, id: VolumeId) -> Option<&mut dyn Planner> {
        let map = self.volume(id).map()?;
        self.maps.get(map).planner()
    }

    /// Takes the plan of a destage as far as it goes without waiting.
    pub(super) fn make_plan(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        assert!(
            !self.phase(id).applying,
            "a plan is made before it is applied"
        );
        if self.phase(id).plan.is_none() {
            assert!(self.phase(id).entries.is_empty(), "a plan begins anew");
            let upto = self.phase(id).upto;
            let mark = self.volume(id).mark(upto);
            let errand = self.phase(id).task.as_ref().map(|it| it.errand.clone());
            let planner = self.planner(id).expect("such an image has one");
            match errand {
                Some(errand) => planner.begin_errand(mark, &errand),
                None => planner.begin(mark),
            }
            self.phase(id).plan = Some(Plan::new());
        }
        let destage = self.phase(id);
        if cx.now >= destage.apply_until {
            // The ledger's word on the modification time runs out: write it again.
            destage.phase = Phase::Look;
            return true;
        }
        for _ in 0..STEPS_MAX {
            if self.plan_step(cx, id) == Went::Nowhere {
                return self.end_plan(cx, id);
            }
        }
        // The others have their turn in between.
        cx.out.timer(cx.now, Timer::Pace(id));
        false
    }

    fn plan(&mut self, id: VolumeId) -> &mut Plan {
        self.phase(id).plan.as_mut().expect("it is under way")
    }

    fn plan_step(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let depth = self.volume(id).destage_depth(cx.now);
        let piece_bytes = self.scratch.piece_bytes();
        let destage = self.phase(id);
        if destage.failed || destage.resend.is_resting(cx.now) {
            return Went::Nowhere;
        }
        let width = destage.width;
        let plan = self.plan(id);
        if !plan.ready.is_empty() {
            if width >= depth
                || self.is_paced(cx, id)
                || !self.has_turn(cx.now, id)
                || !self.has_place(cx.now, id)
            {
                return Went::Nowhere;
            }
            return self.start_batch(cx, id);
        }
        if let Some(work) = plan.work.pop_front() {
            self.sort_work(id, work, piece_bytes);
            return Went::On;
        }
        if !plan.ended {
            return match plan.missing {
                Some(_) => Went::Nowhere,
                None => self.plan_more(cx, id),
            };
        }
        plan.close(When::Now);
        plan.close(When::Journal);
        match plan.ready.is_empty() {
            true => Went::Nowhere,
            false => Went::On,
        }
    }

    /// Asks the planner for the next cluster, or for what comes behind the last.
    fn plan_more(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let planner = self.planner(id).expect("such an image has one");
        let cluster = planner.cluster_bytes() / SECTOR_BYTES;
        let cursor = self.plan(id).cursor;
        let next = next_pieces(
            pieces_of(self.volume(id).destaged_map(), cursor),
            cursor,
            cluster,
        );
        let planner = self.planner(id).expect("just seen");
        let (planned, work) = step_of_planner(planner, next.as_ref());
        match planned {
            Planned::Done => {
                let plan = self.plan(id);
                assert!(plan.work.is_empty() && !plan.ended, "one step at a time");
                plan.work.extend(work);
                match next {
                    Some((_, end)) => plan.cursor = end,
                    None => plan.ended = true,
                }
                Went::On
            }
            Planned::Missing(missing) => {
                assert!(
                    (1..=TABLE_BYTES_MAX).contains(&missing.bytes),
                    "{missing:?}"
                );
                self.read_for_plan(cx, id, missing);
                Went::Nowhere
            }
            Planned::Damaged => {
                let destage = self.phase(id);
                (destage.failed, destage.contradicted) = (true, true);
                Went::Nowhere
            }
        }
    }

    /// The image says of itself what cannot be. Nothing that it refers to was written; all is
    /// planned anew after a while.
    pub(super) fn plan_contradicted(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if self.phase(id).task.is_some() {
            return self.refuse_task(cx, id, Refusal::Contradicts);
        }
        self.begin_phase_again(cx.now, id);
        let destage = self.phase(id);
        destage.contradicted = false;
        destage.retry_at = cx.now.plus_millis(DAMAGED_MS);
        let volume = self.volume(id);
        volume.counters.origin.errors += 1;
        if volume.is_committing() {
            return self.give_up_commit(cx, id, Refusal::Contradicts);
        }
        if volume.state() != State::Damaged {
            volume.stall_for(CONTRADICTS);
        }
        // Nothing tells when it will be repaired, so orders do not wait for that.
        for request in volume.take_destage_orders() {
            cx.out.reply(request, Err(Refusal::Contradicts));
        }
        self.refuse_group(cx, id, Refusal::Contradicts);
        self.refuse_quiesce(cx, id, Refusal::Contradicts);
    }

    fn sort_work(&mut self, id: VolumeId, work: Work, piece_bytes: u64) {
        match work {
            Work::Data { span, at, .. } if has(Bug::WriteAtOnce) => {
                let from = Source::Epoch(span);
                self.plan(id).add(When::Now, at, from, piece_bytes);
            }
            Work::Data { span, at, when } => {
                let when = match self.phase(id).in_place {
                    true => When::Now,
                    false => when,
                };
                self.plan(id)
                    .add(when, at, Source::Epoch(span), piece_bytes);
            }
            Work::Copy { extent, at } => {
                let from = Source::File(extent);
                self.plan(id).add(When::Now, at, from, piece_bytes);
            }
            Work::Table { at, bytes, rank } => {
                self.plan(id)
                    .add(rank.when(), at, Source::Bytes(bytes), piece_bytes);
            }
            Work::Zero { at, bytes } => self.volume(id).journal_zeroes(at, bytes),
        }
    }

    fn read_for_plan(&mut self, cx: &mut Cx<'_>, id: VolumeId, missing: Missing) {
        if !self.has_turn(cx.now, id) {
            return;
        }
        let piece_bytes = self.scratch.piece_bytes();
        let (mut slices, mut left) = (Vec::new(), missing.bytes);
        while left > 0 {
            let Some(piece) = self.take_destage_piece(id) else {
                return self.free_plan_pieces(id);
            };
            self.plan(id).pieces.push(piece);
            let bytes = left.min(piece_bytes);
            let place = self.scratch.piece(piece);
            slices.push(Slice { place, bytes });
            left -= bytes;
        }
        self.turns.spend(cx.now, id, missing.bytes);
        self.plan(id).missing = Some(missing);
        let bytes = missing.bytes;
        let device = file_device(id, missing.file);
        self.volume(id).count_plan_read(bytes);
        let (volume, io) = (id, PlanIo::Table);
        let pending = Pending::Plan { volume, io };
        let (purpose, at) = (Purpose::DestageRead, missing.offset);
        cx.transfer(pending, purpose, device, Op::Read, at, slices);
    }

    fn free_plan_pieces(&mut self, id: VolumeId) {
        for piece in core::mem::take(&mut self.plan(id).pieces) {
            self.scratch.free_destage_piece(piece);
        }
    }

    pub(super) fn plan_table_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        self.volume(id).request_ends();
        let missing = self.plan(id).missing.take().expect("it was asked for");
        if ok {
            let mut bytes = alloc::vec![0; missing.bytes as usize];
            let parts = bytes.chunks_mut(self.scratch.piece_bytes() as usize);
            for (part, piece) in parts.zip(self.plan(id).pieces.clone()) {
                cx.memory.load(self.scratch.piece(piece), part);
            }
            let planner = self.planner(id).expect("such an image has one");
            planner.supply(missing, &bytes);
            self.turns.moved(cx.now, id);
            self.volume(id).go_on_after_success();
        } else {
            self.volume(id).counters.origin.errors += 1;
            self.rest_after_failure(cx, id);
        }
        self.free_plan_pieces(id);
    }

    /// A request that only plans make has ended.
    pub(super) fn plan_io_done(
        &mut self,
        cx: &mut Cx<'_>,
        (volume, io): (VolumeId, PlanIo),
        result: Result<(), IoError>,
    ) {
        let ok = result.is_ok();
        if result == Err(IoError::Damaged) && !self.phase(volume).is_idle() {
            let destage = self.phase(volume);
            (destage.failed, destage.contradicted) = (true, true);
        }
        match io {
            PlanIo::Table => self.plan_table_read(cx, volume, ok),
            PlanIo::Read { job } => self.plan_read_done(cx, volume, job, ok),
            PlanIo::Guard { writes } => self.guard_done(cx, volume, (ok, writes)),
        }
    }

    /// Brings the first of the batches that are ready into memory.
    fn start_batch(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let mut job = Job::at(0);
        if !self.grow(id, &mut job) {
            self.turns.enqueue(id);
            return Went::Nowhere;
        }
        let destage = self.phase(id);
        let plan = destage.plan.as_mut().expect("it is under way");
        let mut batch = plan.ready.pop_front().expect("checked by the caller");
        let padded = match batch.when {
            When::Now => batch.bytes,
            When::Journal => batch.bytes.next_multiple_of(BLOCK_BYTES),
        };
        if batch.when == When::Journal && batch.at.is_none() {
            batch.at = Some(destage.journal_at);
            destage.journal_at += padded;
        }
        job.offset = batch.at.expect("each batch has a place by now");
        assert!(
            batch.bytes > 0 && padded <= self.scratch.piece_bytes(),
            "a batch fits its memory"
        );
        job.fill(padded);
        let reads = CopyRead::all_of(&batch, batch.goes_to_file());
        job.waits = reads.len() as u32;
        job.joined = reads.iter().any(|it| it.joined);
        job.batch = Some(batch);
        self.turns.spend(cx.now, id, padded);
        let job = self.insert_job(cx.now, id, job);
        match reads.is_empty() {
            true => self.complete_batch(cx, id, job),
            false => {
                self.phase(id).pace.spend(cx.now, reads.len() as u64);
                self.read_for_batch(cx, (id, job), reads);
            }
        }
        Went::On
    }

    fn read_for_batch(
        &mut self,
        cx: &mut Cx<'_>,
        (id, job): (VolumeId, u32),
        reads: Vec<CopyRead>,
    ) {
        let place = self.phase(id).jobs.get(job).slices()[0].place;
        for CopyRead {
            lies, at, bytes, ..
        } in reads
        {
            let (device, offset, op) = read_of(id, lies);
            self.volume(id).count_plan_read(bytes);
            let (volume, io) = (id, PlanIo::Read { job });
            let pending = Pending::Plan { volume, io };
            let place = place.plus(at);
            let slices = alloc::vec![Slice { place, bytes }];
            cx.transfer(pending, Purpose::DestageRead, device, op, offset, slices);
        }
    }

    /// A read for a batch has ended. Where one has failed that brought more than what is copied,
    /// which may be what cannot be read, each part is read by itself.
    pub(super) fn plan_read_done(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, ok: bool) {
        let volume = self.volume(id);
        volume.request_ends();
        volume.counters.origin.errors += u64::from(!ok);
        let it = self.phase(id).jobs.get(job);
        assert!(it.waits > 0, "what is there was waited for");
        it.waits -= 1;
        it.cut |= !ok;
        if it.waits > 0 {
            return;
        }
        let joined = core::mem::take(&mut it.joined);
        match it.cut {
            false => self.complete_batch(cx, id, job),
            true if joined => {
                mark(Mark::CopiedApart);
                it.cut = false;
                let batch = it.batch.as_ref().expect("it is of a plan");
                let reads = CopyRead::all_of(batch, false);
                it.waits = reads.len() as u32;
                self.read_for_batch(cx, (id, job), reads);
            }
            true => self.end_batch(cx, id, job),
        }
    }

    /// What a batch copies is there; all else is laid over it: a read may have brought more.
    fn complete_batch(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let it = self.phase(id).jobs.get(job);
        let (place, padded) = (it.slices()[0].place, it.bytes());
        it.waits = 1;
        let batch = it.batch.take().expect("it is of a plan");
        let (mut wants, mut filled) = (Vec::new(), 0);
        for part in &batch.parts {
            cx.memory.zero(place.plus(filled), part.at - filled);
            filled = part.at + part.bytes;
            let mut to = place.plus(part.at);
            match &part.from {
                Source::Bytes(bytes) => cx.memory.store(to, bytes),
                Source::File(extent) if extent.lies == Lies::Nowhere => {
                    cx.memory.zero(to, part.bytes);
                }
                Source::File(_) => {}
                Source::Epoch(span) => {
                    self.volume(id).destaged_map().get(*span, |part, content| {
                        let Some(Content::Data(addr)) = content else {
                            unreachable!("an epoch keeps its data while it is on its way");
                        };
                        let sectors = part.sectors;
                        wants.push(Want { addr, sectors, to });
                        to = to.plus(sectors * SECTOR_BYTES);
                    })
                }
            }
        }
        cx.memory.zero(place.plus(filled), padded - filled);
        self.phase(id).jobs.get(job).batch = Some(batch);
        self.phase(id).pace.spend(cx.now, wants.len().max(1) as u64);
        let owner = Owner::Destage { volume: id, job };
        let parts = (&mut self.log, &mut self.scratch);
        let purpose = Purpose::DestageRead;
        if wants.is_empty() || !self.fetches.start(cx, parts, owner, purpose, &wants) {
            self.batch_filled(cx, id, job);
        }
    }

    /// All that a batch carries is there, or cannot be read.
    pub(super) fn batch_filled(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let it = self.phase(id).jobs.get(job);
        assert!(it.waits == 1, "what is there was waited for");
        it.waits = 0;
        let cut = it.cut;
        let batch = it.batch.as_ref().expect("it is of a plan");
        let to_file = batch.goes_to_file();
        let misfits = to_file && self.volume(id).misfit().is_some();
        match cut || misfits {
            true => self.end_batch(cx, id, job),
            false => self.send_planned(cx, id, job),
        }
    }

    /// A batch is not sent: something of it cannot be read, or its image is another one.
    fn end_batch(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let cut = self.phase(id).jobs.get(job).cut;
        self.volume(id).keep_batch(job);
        if cut && !self.phase(id).failed {
            self.rest_after_failure(cx, id);
        }
        self.end_job(cx, id, job);
    }

    fn send_planned(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let destage = self.phase(id);
        let it = destage.jobs.get(job);
        let (slices, at, bytes) = (it.slices(), it.offset, it.bytes());
        let batch = it.batch.as_mut().expect("it is of a plan");
        let when = batch.when;
        let told = core::mem::replace(&mut batch.told, when == When::Journal);
        let parts = batch.parts.iter();
        let parts: Vec<_> = parts
            .map(|part| (part.at, part.bytes, part.place, part.from.clone()))
            .collect();
        let pending = Pending::Destage { volume: id, job };
        assert!(at.is_multiple_of(SECTOR_BYTES) && bytes > 0);
        if when == When::Now {
            let volume = self.volume(id);
            volume.request_begins();
            volume.counters.origin.writes += 1;
            volume.counters.origin.write_bytes += bytes;
            let (purpose, device) = (Purpose::DestageWrite, Device::Origin(id));
            cx.transfer(pending, purpose, device, Op::Write, at, slices);
            return;
        }
        let place = slices[0].place;
        for (from, bytes, lies_at, source) in parts.into_iter().filter(|_| !told) {
            self.plan(id).sources.keep(at + from, source);
            let entry = JournalEntry {
                span: Span::new(lies_at / SECTOR_BYTES, bytes / SECTOR_BYTES),
                kind: EntryKind::Write,
                offset: at + from,
                checksum: cx.memory.checksum(place.plus(from), bytes),
            };
            self.phase(id).entries.push(entry);
        }
        self.volume(id).counters.origin.journal_bytes += bytes;
        self.volume(id).counters.origin.journal_requests += 1;
        write_journal(cx, id, pending, at, slices);
    }

    /// Goes on to the table when all of the plan is written.
    fn end_plan(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let destage = self.phase(id);
        if destage.jobs.len() > 0 || self.plan(id).missing.is_some() {
            return false;
        }
        let destage = self.phase(id);
        if destage.failed {
            let damaged = destage.met_damage();
            match destage.contradicted {
                true => self.plan_contradicted(cx, id),
                false => self.begin_phase_again(cx.now, id),
            }
            return damaged;
        }
        let done = self.plan(id).is_at_end();
        assert!(self.plan(id).table_pieces() == 0, "no table is being read");
        if done {
            let destage = self.phase(id);
            assert!(destage.is_idle(), "a plan ends when all of it is written");
            destage.phase = Phase::Table;
        }
        done
    }
}
