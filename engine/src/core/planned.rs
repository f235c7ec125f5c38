//! A destage of an image that allocates: its plan on its way to the file and to the journal.
//!
//! ```text
//! epoch ─▶ pieces of a cluster ─▶ planner ─▶ work ─▶ batches ─▶ memory ─┬▶ the file, at once
//!              ▲                     │                                  └▶ the journal
//!              └── table ◀─ missing ─┘
//! ```
//!
//! Always true: a plan is made in the order of the disk, and a table is read once for it; a batch
//! is one request, and says what it carries so that it can be put together again after a failure;
//! a batch to the file lies where nothing in the file refers to ([`crate::origin`]); an entry of the
//! journal names a place of the file. Work waits for memory, never for the read tier or the log, so
//! that a destage makes room whatever else is full. What is read for a plan is of the file as it
//! was before: nothing of it is kept. Deliberately absent: what a plan decides
//! ([`Planner`]), and the phases around it ([`super::destage`]).

use super::Core;
use super::destage::Phase;
use super::jobs::{Job, write_journal};
use super::resend::RETRY_MS;
use crate::event::{Device, Op, Purpose};
use crate::fetch::{Owner, Want};
use crate::format::journal::{self, JournalEntry};
use crate::format::record::EntryKind;
use crate::map::{Content, ExtentMap};
use crate::memory::Slice;
use crate::origin::{Extent, FileIndex, Lies, Missing, Piece, Planned, Planner, When, Work};
use crate::outbox::{Cx, Pending, Timer};
use crate::snapshot::State;
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, Time, VolumeId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Steps of a plan in one turn of the engine.
const STEPS_MAX: usize = 512;
/// Sectors that one entry of a journal zeroes.
const ZERO_SECTORS_MAX: u64 = 1 << 21;
/// A plan that met a contradiction in the image is made anew so much later.
const DAMAGED_MS: u64 = 60_000;

/// Why an epoch does not reach an image that contradicts itself.
const CONTRADICTS: &str = "the tables of the image contradict each other; look at it with \
                           `qemu-img check`, and destage goes on when it is repaired";

/// Where the bytes of a part come from.
#[derive(Clone, Debug)]
enum From {
    Epoch(Span),
    File(Extent),
    Bytes(Vec<u8>),
}

/// Some bytes of a batch.
#[derive(Clone, Debug)]
struct Part {
    /// Where they lie in the batch.
    at: u64,
    bytes: u64,
    from: From,
    /// Where they belong in the file.
    place: u64,
}

/// What one request carries.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    when: When,
    /// Where it goes: a place of the file, or of the journal once it has one.
    at: Option<u64>,
    bytes: u64,
    parts: Vec<Part>,
}

impl Batch {
    const fn empty(when: When) -> Batch {
        Batch {
            when,
            at: None,
            bytes: 0,
            parts: Vec::new(),
        }
    }

    /// It goes to the file itself.
    pub fn goes_to_file(&self) -> bool {
        self.when == When::Now
    }

    /// Where in it the next part begins; `None` if that has to be another batch.
    fn next_at(&self, place: u64, from: &From, piece_bytes: u64) -> Option<u64> {
        let at = match (self.when, from) {
            (When::Now, _) => self.bytes,
            (When::Journal, From::Bytes(_)) => self.bytes,
            (When::Journal, _) => self.bytes.next_multiple_of(BLOCK_BYTES),
        };
        let follows = match (self.when, self.at) {
            (When::Now, Some(start)) => start + self.bytes == place,
            _ => true,
        };
        (follows && at < piece_bytes).then_some(at)
    }

    /// Data blocks of the epoch in it.
    pub fn blocks(&self) -> u64 {
        let blocks = |part: &Part| match part.from {
            From::Epoch(span) => span.blocks(),
            From::File(_) | From::Bytes(_) => 0,
        };
        self.parts.iter().map(blocks).sum()
    }
}

impl From {
    /// Takes the first bytes off.
    fn split(&mut self, bytes: u64) -> From {
        let sectors = bytes / SECTOR_BYTES;
        match self {
            From::Epoch(span) => {
                let first = Span::new(span.sector, sectors);
                *span = Span::new(first.end(), span.sectors - sectors);
                From::Epoch(first)
            }
            From::File(extent) => {
                let mut first = *extent;
                first.span.sectors = sectors;
                extent.span = Span::new(first.span.end(), extent.span.sectors - sectors);
                match &mut extent.lies {
                    Lies::At { offset, .. } => *offset += bytes,
                    Lies::Packed { packed, .. } => packed.skip += bytes as u32,
                    Lies::Nowhere => {}
                }
                From::File(first)
            }
            From::Bytes(all) => {
                let rest = all.split_off(bytes as usize);
                From::Bytes(core::mem::replace(all, rest))
            }
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            From::Epoch(span) => span.sectors * SECTOR_BYTES,
            From::File(extent) => extent.span.sectors * SECTOR_BYTES,
            From::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// A plan under way.
pub(super) struct Plan {
    /// What lies before it is planned.
    cursor: u64,
    ended: bool,
    work: VecDeque<Work>,
    /// To the file, and to the journal.
    growing: [Batch; 2],
    ready: VecDeque<Batch>,
    /// A table that is being read, and the memory that it goes to.
    missing: Option<Missing>,
    pieces: Vec<u32>,
}

impl Plan {
    fn new() -> Plan {
        Plan {
            cursor: 0,
            ended: false,
            work: VecDeque::new(),
            growing: [Batch::empty(When::Now), Batch::empty(When::Journal)],
            ready: VecDeque::new(),
            missing: None,
            pieces: Vec::new(),
        }
    }

    fn is_at_end(&self) -> bool {
        let grows = self.growing.iter().any(|batch| !batch.parts.is_empty());
        self.ended && self.work.is_empty() && self.ready.is_empty() && !grows
    }

    /// Pieces of the destager's memory that a table has.
    pub fn table_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// A batch that failed goes first.
    pub fn put_back(&mut self, batch: Batch) {
        self.ready.push_front(batch);
    }

    fn close(&mut self, when: When) {
        let batch = &mut self.growing[when as usize];
        if !batch.parts.is_empty() {
            let batch = core::mem::replace(batch, Batch::empty(when));
            self.ready.push_back(batch);
        }
    }

    /// Adds bytes for this place of the file to the batch that grows, or to the next ones.
    fn add(&mut self, when: When, mut place: u64, mut from: From, piece_bytes: u64) {
        while from.bytes() > 0 {
            let batch = &self.growing[when as usize];
            let Some(at) = batch.next_at(place, &from, piece_bytes) else {
                self.close(when);
                continue;
            };
            let bytes = from.bytes().min(piece_bytes - at);
            assert!(bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES));
            let first = from.split(bytes);
            let batch = &mut self.growing[when as usize];
            if when == When::Now {
                batch.at.get_or_insert(place);
            }
            batch.bytes = at + bytes;
            batch.parts.push(Part {
                at,
                bytes,
                from: first,
                place,
            });
            place += bytes;
        }
    }
}

/// Upper bound of the entries that a plan journals for an epoch.
pub(super) fn entries_max(map: &ExtentMap, piece_bytes: u64, cluster_bytes: u64) -> usize {
    let cluster = cluster_bytes / SECTOR_BYTES;
    let (mut parts, mut clusters, mut last) = (0, 0, None);
    for piece in map.pieces_from(0) {
        let (first, end) = (
            piece.span.sector / cluster,
            piece.span.end().div_ceil(cluster),
        );
        parts += end - first + piece.span.sectors * SECTOR_BYTES / piece_bytes;
        clusters += end - first - u64::from(last == Some(first));
        last = Some(end - 1);
    }
    // Of each cluster its entry, its table's entry, and refcounts of what it had and gets.
    let entries = 2 * parts + 8 * clusters + 256;
    entries.min(journal::ENTRIES_MAX as u64) as usize
}

/// What a step of a plan has done.
#[derive(PartialEq, Eq)]
enum Went {
    On,
    /// It waits for a request, memory, or its turn; or there is nothing left.
    Nowhere,
}

impl Core {
    pub(super) fn planner(&mut self, id: VolumeId) -> Option<&mut dyn Planner> {
        let map = self.volume(id).map?;
        self.maps.get(map).planner()
    }

    /// The image of the volume is written by plans.
    pub(super) fn plans(&mut self, id: VolumeId) -> bool {
        self.volume(id).policy == crate::types::Policy::WriteBack && self.volume(id).map.is_some()
    }

    /// Takes the plan of a destage as far as it goes without waiting.
    pub(super) fn pump_plan(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        if self.phase(id).plan.is_none() {
            let planner = self.planner(id);
            planner.expect("such an image has one").begin();
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
        let depth = self.destage_depth(cx.now, id);
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
        let next = next_pieces(self.destaged_map(id), cursor, cluster);
        let mut work = Vec::new();
        let planner = self.planner(id).expect("just seen");
        let planned = match &next {
            Some((pieces, _)) => planner.plan(pieces, &mut work),
            None => planner.end(&mut work),
        };
        match planned {
            Planned::Done => {
                let plan = self.plan(id);
                plan.work.extend(work);
                match next {
                    Some((_, end)) => plan.cursor = end,
                    None => plan.ended = true,
                }
                Went::On
            }
            Planned::Missing(missing) => {
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
    pub(super) fn plan_contradicted(&mut self, now: Time, id: VolumeId) {
        self.begin_phase_again(now, id);
        let destage = self.phase(id);
        destage.contradicted = false;
        destage.retry_at = now.plus_millis(DAMAGED_MS);
        let volume = self.volume(id);
        volume.counters.origin.errors += 1;
        if volume.state != State::Damaged {
            volume.state = State::Stalled;
            volume.reason = Some(CONTRADICTS);
        }
    }

    fn sort_work(&mut self, id: VolumeId, work: Work, piece_bytes: u64) {
        match work {
            Work::Data { span, at, when } => {
                self.plan(id).add(when, at, From::Epoch(span), piece_bytes);
            }
            Work::Copy { extent, at } => {
                let from = From::File(extent);
                self.plan(id).add(When::Now, at, from, piece_bytes);
            }
            Work::Table { at, bytes, when } => {
                self.plan(id).add(when, at, From::Bytes(bytes), piece_bytes);
            }
            Work::Zero { at, bytes } => self.journal_zeroes(id, at, bytes),
        }
    }

    /// A range of zeroes is an entry of the journal and no more.
    fn journal_zeroes(&mut self, id: VolumeId, at: u64, bytes: u64) {
        assert!(at.is_multiple_of(SECTOR_BYTES) && bytes.is_multiple_of(SECTOR_BYTES));
        let entries = &mut self.phase(id).entries;
        let mut span = Span::new(at / SECTOR_BYTES, bytes / SECTOR_BYTES);
        let kind = EntryKind::Zero { allocate: false };
        if let Some(last) = entries.last_mut()
            && last.kind == kind
            && last.span.end() == span.sector
            && last.span.sectors + span.sectors <= ZERO_SECTORS_MAX
        {
            last.span.sectors += span.sectors;
            return;
        }
        while span.sectors > 0 {
            let sectors = span.sectors.min(ZERO_SECTORS_MAX);
            entries.push(JournalEntry {
                span: Span::new(span.sector, sectors),
                kind,
                offset: 0,
                checksum: 0,
            });
            span = Span::new(span.sector + sectors, span.sectors - sectors);
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
        self.count_plan_read(id, bytes);
        let pending = Pending::PlanTable { volume: id };
        let (purpose, at) = (Purpose::DestageRead, missing.offset);
        cx.transfer(pending, purpose, device, Op::Read, at, slices);
    }

    fn free_plan_pieces(&mut self, id: VolumeId) {
        for piece in core::mem::take(&mut self.plan(id).pieces) {
            self.scratch.free_destage_piece(piece);
        }
    }

    fn count_plan_read(&mut self, id: VolumeId, bytes: u64) {
        let volume = self.volume(id);
        volume.origin_in_flight += 1;
        volume.counters.origin.reads += 1;
        volume.counters.origin.read_bytes += bytes;
    }

    pub(super) fn plan_table_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        self.volume(id).origin_in_flight -= 1;
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
            self.go_on_after_success(id);
        } else {
            self.volume(id).counters.origin.errors += 1;
            self.rest_after_failure(cx, id);
        }
        self.free_plan_pieces(id);
        self.give_destage_turns(cx);
        self.pump_destage(cx, id);
        self.detach_progress(cx, id);
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
        } else {
            job.again = batch.when == When::Journal;
        }
        let place = job.end();
        job.offset = batch.at.expect("each batch has a place by now");
        job.fill(padded);
        let (mut wants, mut reads) = (Vec::new(), Vec::new());
        let mut filled = 0;
        for part in &batch.parts {
            cx.memory.zero(place.plus(filled), part.at - filled);
            filled = part.at + part.bytes;
            let mut to = place.plus(part.at);
            match &part.from {
                From::Bytes(bytes) => cx.memory.store(to, bytes),
                From::File(extent) if extent.lies == Lies::Nowhere => {
                    cx.memory.zero(to, part.bytes);
                }
                From::File(extent) => reads.push((*extent, to)),
                From::Epoch(span) => self.destaged_map(id).get(*span, |part, content| {
                    let Some(Content::Data(addr)) = content else {
                        unreachable!("an epoch keeps its data while it is on its way");
                    };
                    let sectors = part.sectors;
                    wants.push(Want { addr, sectors, to });
                    to = to.plus(sectors * SECTOR_BYTES);
                }),
            }
        }
        cx.memory.zero(place.plus(filled), padded - filled);
        job.batch = Some(batch);
        job.waits = 1 + reads.len() as u32;
        self.turns.spend(cx.now, id, padded);
        let steps = wants.len() + reads.len();
        self.phase(id).pace.spend(cx.now, steps.max(1) as u64);
        let job = self.insert_job(cx.now, id, job);
        for (extent, to) in reads {
            self.read_for_batch(cx, (id, job), &extent, to);
        }
        let owner = Owner::Destage { volume: id, job };
        let parts = (&mut self.log, &mut self.scratch);
        let purpose = Purpose::DestageRead;
        if wants.is_empty() || !self.fetches.start(cx, parts, owner, purpose, &wants) {
            self.batch_part_there(cx, id, job);
        }
        Went::On
    }

    fn read_for_batch(
        &mut self,
        cx: &mut Cx<'_>,
        (id, job): (VolumeId, u32),
        extent: &Extent,
        place: crate::memory::Place,
    ) {
        let (file, at, op) = match extent.lies {
            Lies::At { file, offset } => (file, offset, Op::Read),
            Lies::Packed {
                file,
                offset,
                packed,
            } => (file, offset, Op::Unpack(packed)),
            Lies::Nowhere => unreachable!("nothing is read for it"),
        };
        let bytes = extent.span.sectors * SECTOR_BYTES;
        self.count_plan_read(id, bytes);
        let pending = Pending::PlanRead { volume: id, job };
        let slices = alloc::vec![Slice { place, bytes }];
        let device = file_device(id, file);
        cx.transfer(pending, Purpose::DestageRead, device, op, at, slices);
    }

    /// A read for a batch has ended.
    pub(super) fn plan_read_done(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, ok: bool) {
        let volume = self.volume(id);
        volume.origin_in_flight -= 1;
        if !ok {
            volume.counters.origin.errors += 1;
            self.phase(id).jobs.get(job).cut = true;
        }
        self.batch_part_there(cx, id, job);
    }

    /// One of the things that a batch waits for is there. When all are, it is written.
    pub(super) fn batch_part_there(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let it = self.phase(id).jobs.get(job);
        it.waits -= 1;
        if it.waits > 0 {
            return;
        }
        let cut = it.cut;
        let batch = it.batch.as_ref().expect("it is of a plan");
        let to_file = batch.goes_to_file();
        let misfits = to_file && self.volume(id).misfit().is_some();
        if cut || misfits {
            self.keep_batch(id, job);
            if cut && !self.phase(id).failed {
                self.rest_after_failure(cx, id);
            }
            self.end_job(cx, id, job);
            return self.detach_progress(cx, id);
        }
        self.send_planned(cx, id, job);
    }

    /// A batch that failed, or was not sent, is put together again.
    pub(super) fn keep_batch(&mut self, id: VolumeId, job: u32) {
        let destage = self.phase(id);
        let batch = destage.jobs.get(job).batch.take();
        let batch = batch.expect("it is of a plan");
        let plan = destage.plan.as_mut().expect("it is under way");
        plan.put_back(batch);
    }

    fn send_planned(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let destage = self.phase(id);
        let it = destage.jobs.get(job);
        let (again, slices, at) = (it.again, it.slices(), it.offset);
        let batch = it.batch.as_ref().expect("it is of a plan");
        let (when, bytes) = (batch.when, it.bytes());
        let parts = batch.parts.iter();
        let parts: Vec<_> = parts
            .map(|part| (part.at, part.bytes, part.place))
            .collect();
        let pending = Pending::Destage { volume: id, job };
        if when == When::Now {
            let volume = self.volume(id);
            volume.origin_in_flight += 1;
            volume.counters.origin.writes += 1;
            volume.counters.origin.write_bytes += bytes;
            let (purpose, device) = (Purpose::DestageWrite, Device::Origin(id));
            cx.transfer(pending, purpose, device, Op::Write, at, slices);
            return;
        }
        let place = slices[0].place;
        for (from, bytes, lies_at) in parts.into_iter().filter(|_| !again) {
            let entry = JournalEntry {
                span: Span::new(lies_at / SECTOR_BYTES, bytes / SECTOR_BYTES),
                kind: EntryKind::Write,
                offset: at + from,
                checksum: cx.memory.checksum(place.plus(from), bytes),
            };
            self.phase(id).entries.push(entry);
        }
        self.volume(id).counters.origin.journal_bytes += bytes;
        write_journal(cx, id, pending, at, slices);
    }

    /// Goes on to the table when all of the plan is written.
    fn end_plan(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let now = cx.now;
        let destage = self.phase(id);
        if destage.jobs.len() > 0 || self.plan(id).missing.is_some() {
            return false;
        }
        let destage = self.phase(id);
        if destage.failed {
            let damaged = destage.met_damage();
            match destage.contradicted {
                true => self.plan_contradicted(now, id),
                false => self.begin_phase_again(now, id),
            }
            self.detach_progress(cx, id);
            return damaged;
        }
        let done = self.plan(id).is_at_end();
        if done {
            let destage = self.phase(id);
            assert!(destage.is_idle(), "a plan ends when all of it is written");
            destage.phase = Phase::Table;
        }
        done
    }

    /// Whether two entries of the journal write one place: then the order would decide, and the
    /// image maps two clusters of the disk to one of the file.
    pub(super) fn entries_overlap(&mut self, id: VolumeId) -> bool {
        let entries = &self.phase(id).entries;
        let mut spans: Vec<Span> = entries.iter().map(|entry| entry.span).collect();
        spans.sort_unstable_by_key(|span| span.sector);
        let overlap = |pair: &[Span]| pair[0].end() > pair[1].sector;
        spans.windows(2).any(overlap) || spans.len() > journal::ENTRIES_MAX
    }

    /// Reads the first sector of the file, to write it with the guard set.
    pub(super) fn order_guard(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let Some(piece) = self.take_destage_piece(id) else {
            return false;
        };
        let place = self.scratch.piece(piece);
        let destage = self.phase(id);
        destage.waiting = true;
        destage.table_piece = Some(piece);
        self.send_guard(cx, id, Op::Read, place);
        false
    }

    fn send_guard(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op, place: crate::memory::Place) {
        self.volume(id).origin_in_flight += 1;
        let slice = Slice {
            place,
            bytes: SECTOR_BYTES,
        };
        let pending = Pending::Guard { volume: id };
        let (purpose, device) = (Purpose::DestageWrite, Device::Origin(id));
        cx.transfer(pending, purpose, device, op, 0, alloc::vec![slice]);
    }

    pub(super) fn guard_done(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let volume = self.volume(id);
        volume.origin_in_flight -= 1;
        let misfits = volume.misfit().is_some();
        let destage = self.phase(id);
        let piece = destage.table_piece.expect("it has a piece");
        let place = self.scratch.piece(piece);
        let written = self.phase(id).guarded;
        let mut foreign = false;
        if ok && !written && !misfits {
            let mut sector = alloc::vec![0; SECTOR_BYTES as usize];
            cx.memory.load(place, &mut sector);
            let planner = self.planner(id).expect("such an image has one");
            match planner.guarded(&sector, true) {
                Some(sector) => {
                    cx.memory.store(place, &sector);
                    let destage = self.phase(id);
                    (destage.guarded, destage.perhaps_guarded) = (true, true);
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
            self.plan_contradicted(cx.now, id);
        } else if ok && destage.guarded {
            destage.phase = Phase::ImageSync;
        } else {
            destage.guarded = false;
            destage.retry_at = cx.now.plus_millis(RETRY_MS);
            self.volume(id).counters.origin.errors += u64::from(!ok);
        }
        self.give_destage_turns(cx);
        self.pump_destage(cx, id);
        self.detach_progress(cx, id);
    }
}

/// The device that a file of an image is.
pub(super) fn file_device(id: VolumeId, file: FileIndex) -> Device {
    match file {
        FileIndex::TOP => Device::Origin(id),
        file => Device::Base(id, file),
    }
}

/// What an epoch has of the first cluster from `cursor` on, and where that cluster ends.
fn next_pieces(map: &ExtentMap, cursor: u64, cluster: u64) -> Option<(Vec<Piece>, u64)> {
    let first = map.at_or_after(cursor)?;
    let end = (first.span.sector.max(cursor) / cluster + 1) * cluster;
    let mut pieces: Vec<Piece> = Vec::new();
    for piece in map.pieces_from(cursor) {
        let from = piece.span.sector.max(cursor);
        if from >= end {
            break;
        }
        let span = Span::new(from, piece.span.end().min(end) - from);
        let zero = !matches!(piece.content, Content::Data(_));
        match pieces.last_mut() {
            Some(last) if last.span.end() == span.sector && last.zero == zero => {
                last.span.sectors += span.sectors;
            }
            _ => pieces.push(Piece { span, zero }),
        }
    }
    assert!(!pieces.is_empty(), "what was found is in its cluster");
    Some((pieces, end))
}
