//! Direct writes of an image that allocates: clusters are given before the acknowledgment.
//!
//! ```text
//! write ─▶ all of it has its place ─▶ written there (`direct`)
//!      └─▶ queued ─▶ (Stat ─▶ Header ─▶) Plan ─▶ Place ─▶ (Mark ─▶ Sync ─▶ Count)
//!             ─▶ (Sync ─▶ Hook ─▶) Sync ─▶ Refer ─▶ answered ─▶ (Sync ─▶ Release)
//! ```
//!
//! Owns the writes of a volume that need a plan, and the plan that is under way. What waits is
//! planned together, so that many writes share a sync; each step but *Plan* and *Place* is left
//! out where the plan has nothing for it. *Stat* and *Header* read the file anew behind a failed
//! sync, when it is not known which of its tables are on media. *Mark* says once in the header
//! that counts may be too high after a crash: the next host that opens the file for writing
//! frees what leaked. Once it says so, counts are written in *Place*.
//!
//! Always true: one plan of an image is under way, and no destage. A write is answered when the
//! file itself refers to it, so that the end of this process loses nothing that was acknowledged.
//! What refers to a cluster is written when the cluster and its count are synced, so that at each
//! instant the file is a right qcow2 file of old or new sectors, whose counts are at most too high.
//! Places and their bytes are decided once; a plan that fails is not made again with other places.
//! Deliberately absent: what becomes of a cluster ([`Planner`]), what is copied to it
//! ([`super::copied`]), and the order of writes that overlap ([`super::direct`]).

use super::Core;
use super::tables::read_of;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, IoError, Op, Purpose, Stat};
use crate::memory::{Place, Slice};
use crate::origin::{FileIndex, Lies, Missing, Planned, Planner, Rank, TABLE_BYTES_MAX, Work};
use crate::outbox::{AllocateIo, Cx, Pending, Timer};
use crate::types::{SECTOR_BYTES, Span, Time, VolumeId};
use crate::volume::allocation::{Allocation, Queued, Step};
use crate::volume::batch::step_of_planner;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Requests of one plan at once.
const DEPTH: usize = 16;

/// Steps of a plan in one turn of the engine.
const STEPS_MAX: usize = 512;

/// What a step has done.
#[derive(PartialEq, Eq)]
enum Went {
    On,
    Nowhere,
}

impl Core {
    /// A write that needs a plan.
    pub(super) fn allocate(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        call: u32,
        (span, source): (Span, Option<Place>),
    ) {
        let volume = self.volume(id);
        assert!(volume.allocates(), "a raw image has its places");
        assert!(
            volume.has_requests() && span.sectors > 0,
            "its write is under way"
        );
        let queued = Queued {
            call,
            span,
            source,
            since: cx.now,
            last: true,
        };
        if let Some(until) = volume.allocator_mut().enqueue(cx.now, queued) {
            cx.out.timer(until, Timer::Pace(id));
        }
        self.direct.allocates(id);
    }

    /// Where a write goes at once, if all of it has its place in the file.
    pub(super) fn placed(&mut self, id: VolumeId, span: Span) -> Option<Vec<(Span, u64)>> {
        let volume = self.volume(id);
        if volume.allocator().is_stale() || volume.is_replaying() {
            return None;
        }
        let places = self.planner(id)?.in_place(span)?;
        self.volume(id).allocator_mut().one_is_placed();
        Some(places)
    }

    /// Takes all plans as far as they go without waiting.
    pub(super) fn pump_allocations(&mut self, cx: &mut Cx<'_>) {
        for id in self.direct.take_allocating() {
            let mut steps = 0;
            while steps < STEPS_MAX && self.allocate_step(cx, id) == Went::On {
                steps += 1;
            }
            let busy = self.find(id).is_some_and(|it| !it.allocator().is_idle());
            if !busy {
                self.touch(id);
                continue;
            }
            self.direct.allocates(id);
            if steps == STEPS_MAX {
                // The others have their turn in between.
                cx.out.timer(cx.now, Timer::Pace(id));
            }
        }
    }

    pub(super) fn allocation(&mut self, id: VolumeId) -> &mut Allocation {
        self.volume(id).allocator_mut().planning()
    }

    fn allocate_step(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let Some(volume) = self.find(id) else {
            return Went::Nowhere;
        };
        let Some(plan) = volume.allocator().plan() else {
            return self.begin_allocation(cx, id);
        };
        let idle = plan.jobs.len() == 0 && !plan.waiting && plan.plan.missing.is_none();
        let misfits = volume.misfit().is_some();
        if let Some(error) = plan.failed.filter(|_| idle) {
            return self.fail_allocation(cx, id, error);
        }
        if misfits && idle {
            return self.put_allocation_off(id);
        }
        if plan.failed.is_some() || misfits || plan.waiting {
            return Went::Nowhere;
        }
        match plan.step {
            Step::Stat => self.order_allocation(cx, id, Op::Stat),
            Step::Header => self.read_first_sector(cx, id),
            Step::Plan => self.plan_allocation(cx, id),
            step if step.is_sync() => {
                self.volume(id).counters.origin.syncs += 1;
                let op = match step {
                    Step::ReferSync => Op::sync_unless(Bug::ReferUnsynced),
                    _ => Op::Sync,
                };
                self.order_allocation(cx, id, op)
            }
            _ => self.write_allocation(cx, id),
        }
    }

    /// Takes what waits, unless something else has the image.
    fn begin_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let volume = self.volume(id);
        let goes = volume.goes();
        if volume.misfit().is_some() && goes {
            let queue = volume.allocator_mut().take_queue();
            for it in queue.iter().filter(|it| it.last) {
                self.call_done(cx, it.call, Err(IoError::Away), it.since);
            }
            return Went::Nowhere;
        }
        // A change of size writes the header.
        let written = volume.is_replaying() || volume.is_destaging() || volume.is_resizing();
        let free = volume.misfit().is_none() && !written;
        let served = !volume.has_waiting();
        // No other comes where writes wait for these, or where one plan has all that it may.
        let may_come = !goes && served;
        if !free || !volume.allocator().is_due(cx.now, may_come) {
            return Went::Nowhere;
        }
        assert!(volume.policy.is_direct(), "the log has its own plans");
        let step = volume.allocator_mut().begin(cx.now);
        if step == Step::Plan {
            self.allocation_planner(id).begin_ordered();
        }
        Went::On
    }

    fn allocation_planner(&mut self, id: VolumeId) -> &mut dyn Planner {
        self.planner(id).expect("such an image has one")
    }

    /// The next step that has something to do. The writes are answered once the file refers to
    /// them.
    fn next_step(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let piece_bytes = self.scratch.piece_bytes();
        let plan = self.allocation(id);
        assert!(plan.jobs.len() == 0 && plan.plan.ready.is_empty() && plan.zeroes.is_empty());
        let before = plan.step;
        let mut next = before.next();
        while let Some(step) = next.filter(|it| !plan.needs(*it)) {
            next = step.next();
        }
        if let Some(step) = next {
            plan.step = step;
            if step >= Step::Place {
                plan.load(piece_bytes);
            }
        }
        let end = plan.end_bytes();
        if next == Some(Step::Plan) {
            self.allocation_planner(id).begin_ordered();
        }
        if next == Some(Step::Refer) {
            // Tables that are read from here on may refer to all of it.
            self.allocation_planner(id).grown(end);
        }
        let referred = |step: Option<Step>| step.is_none_or(|it| it > Step::Refer);
        if referred(next) && !referred(Some(before)) {
            self.answer_allocation(cx, id);
        }
        if next.is_none()
            && let Some(volume) = self.find(id)
        {
            volume.allocator_mut().end();
        }
    }

    /// The file refers to all of it.
    fn answer_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let plan = self.allocation(id);
        let end = plan.end_bytes();
        let parts = core::mem::take(&mut plan.parts);
        let work = core::mem::take(&mut plan.work);
        mark(Mark::Allocated);
        let mut tables: Vec<(Rank, u64, &[u8])> = Vec::new();
        for work in &work {
            if let Work::Table { at, bytes, rank } = work {
                assert!(!bytes.is_empty(), "a table has bytes");
                tables.push((*rank, *at, bytes));
            }
        }
        tables.sort_by_key(|it| it.0);
        let tables: Vec<(u64, &[u8])> = tables.into_iter().map(|it| (it.1, it.2)).collect();
        let planner = self.allocation_planner(id);
        planner.grown(end);
        let ranges = planner.written_through(&tables);
        // Releases are written after the answer.
        self.allocation(id).work = work;
        if !ranges.is_empty() {
            self.forget_tables(id, Some(&ranges));
        }
        let answered = parts.iter().filter(|it| it.last);
        let allocator = self.volume(id).allocator_mut();
        if let Some(until) = allocator.is_answered(cx.now, answered.clone().count()) {
            cx.out.timer(until, Timer::Pace(id));
        }
        for part in answered {
            self.call_done(cx, part.call, Ok(()), part.since);
        }
    }

    /// What was placed is forgotten, and so is what was not planned yet of its writes. Behind
    /// *Place* the file may have a part of the tables: it is read anew.
    fn fail_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId, error: IoError) -> Went {
        let plan = self.drop_allocation(id);
        self.volume(id).allocator_mut().drop_writes_of(&plan.parts);
        if plan.step.is_sync() {
            // What was written before may be lost, and the guest has to hear of it.
            self.volume(id).sync_failed();
            self.renew_layer(id);
        }
        let calls = plan.parts.iter().map(|part| (part.call, part.since));
        let calls: BTreeMap<u32, Time> = calls.collect();
        for (call, since) in calls {
            self.call_done(cx, call, Err(error), since);
        }
        Went::On
    }

    /// The image is not the one that it was. Its writes wait until it is, and are planned anew.
    fn put_allocation_off(&mut self, id: VolumeId) -> Went {
        let plan = self.drop_allocation(id);
        self.volume(id).allocator_mut().put_back(plan.parts);
        Went::On
    }

    /// Forgets a plan that nothing is in flight of.
    fn drop_allocation(&mut self, id: VolumeId) -> Box<Allocation> {
        let plan = self.volume(id).allocator_mut().drop_plan();
        self.allocation_planner(id).begin_ordered();
        plan
    }

    fn plan_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        if self.allocation(id).plan.missing.is_some() {
            return Went::Nowhere;
        }
        let planner = self.allocation_planner(id);
        let cluster = planner.cluster_bytes() / SECTOR_BYTES;
        let next = self.allocation(id).next_pieces(cluster);
        let (planned, work) = step_of_planner(self.allocation_planner(id), next.as_ref());
        match planned {
            Planned::Done => {
                let plan = self.allocation(id);
                plan.work.extend(work);
                match next {
                    Some((_, end)) => plan.plan.cursor = end,
                    None => self.next_step(cx, id),
                }
                Went::On
            }
            Planned::Missing(missing) => {
                assert!((1..=TABLE_BYTES_MAX).contains(&missing.bytes));
                self.read_table_to_allocate(cx, id, missing)
            }
            Planned::Damaged => {
                self.volume(id).counters.origin.errors += 1;
                self.allocation(id).failed = Some(IoError::Damaged);
                Went::On
            }
        }
    }

    fn read_table_to_allocate(&mut self, cx: &mut Cx<'_>, id: VolumeId, missing: Missing) -> Went {
        let piece_bytes = self.scratch.piece_bytes();
        let (mut slices, mut left) = (Vec::new(), missing.bytes);
        while left > 0 {
            let held = self.volume(id).held_pieces();
            let Some(piece) = self.scratch.take_destage_piece(held) else {
                for piece in core::mem::take(&mut self.allocation(id).plan.pieces) {
                    self.scratch.free_destage_piece(piece);
                }
                return Went::Nowhere;
            };
            self.allocation(id).plan.pieces.push(piece);
            let bytes = left.min(piece_bytes);
            let place = self.scratch.piece(piece);
            slices.push(Slice { place, bytes });
            left -= bytes;
        }
        self.allocation(id).plan.missing = Some(missing);
        let lies = Lies::At {
            file: missing.file,
            offset: missing.offset,
        };
        self.read_to_allocate(cx, id, AllocateIo::Table, lies, slices);
        Went::On
    }

    pub(super) fn read_to_allocate(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        io: AllocateIo,
        lies: Lies,
        slices: Vec<Slice>,
    ) {
        let (device, at, op) = read_of(id, lies);
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.reads += 1;
        volume.counters.origin.read_bytes += slices.iter().map(|it| it.bytes).sum::<u64>();
        let pending = Pending::Allocate { volume: id, io };
        cx.transfer(pending, Purpose::GuestWrite, device, op, at, slices);
    }

    fn order_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op) -> Went {
        let volume = self.volume(id);
        volume.request_begins();
        self.allocation(id).waiting = true;
        let (volume, io) = (id, AllocateIo::Order);
        let pending = Pending::Allocate { volume, io };
        cx.order(pending, Purpose::GuestWrite, Device::Origin(id), op, 0, 0);
        Went::On
    }

    fn read_first_sector(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let held = self.volume(id).held_pieces();
        let Some(piece) = self.scratch.take_destage_piece(held) else {
            return Went::Nowhere;
        };
        let place = self.scratch.piece(piece);
        let plan = self.allocation(id);
        (plan.waiting, plan.header_piece) = (true, Some(piece));
        let (file, offset) = (FileIndex::TOP, 0);
        let bytes = SECTOR_BYTES;
        let slices = alloc::vec![Slice { place, bytes }];
        let lies = Lies::At { file, offset };
        self.read_to_allocate(cx, id, AllocateIo::Header, lies, slices);
        Went::On
    }

    /// Sends what this step writes; the next step follows when all of it is there.
    fn write_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> Went {
        let plan = self.allocation(id);
        if plan.jobs.len() >= DEPTH {
            return Went::Nowhere;
        }
        if let Some((at, bytes)) = plan.zeroes.pop() {
            plan.waiting = true;
            let volume = self.volume(id);
            volume.request_begins();
            volume.counters.origin.writes += 1;
            let (volume, io) = (id, AllocateIo::Order);
            let pending = Pending::Allocate { volume, io };
            let (purpose, device) = (Purpose::GuestWrite, Device::Origin(id));
            let op = Op::Zero { allocate: false };
            cx.order(pending, purpose, device, op, at, bytes);
            return Went::On;
        }
        if plan.plan.ready.is_empty() {
            if plan.jobs.len() > 0 {
                return Went::Nowhere;
            }
            self.next_step(cx, id);
            return Went::On;
        }
        if plan.reads_first() {
            return Went::Nowhere;
        }
        let held = self.volume(id).held_pieces();
        let Some(piece) = self.scratch.take_destage_piece(held) else {
            return Went::Nowhere;
        };
        let plan = self.allocation(id);
        let batch = plan.plan.ready.pop_front().expect("just seen");
        plan.tables_sent |= batch.has_tables();
        self.put_together(cx, id, piece, batch);
        Went::On
    }

    pub(super) fn send_allocation(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        self.complete(cx, id, job);
        let it = self.allocation(id).jobs.get(job);
        let (at, bytes, piece) = (it.batch.at, it.batch.bytes, it.piece);
        let at = at.expect("what goes to the file has a place");
        assert!(at.is_multiple_of(SECTOR_BYTES) && bytes > 0);
        let place = self.scratch.piece(piece);
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.writes += 1;
        volume.counters.origin.write_bytes += bytes;
        let (volume, io) = (id, AllocateIo::Write { job });
        let pending = Pending::Allocate { volume, io };
        let slices = alloc::vec![Slice { place, bytes }];
        let (purpose, device) = (Purpose::GuestWrite, Device::Origin(id));
        cx.transfer(pending, purpose, device, Op::Write, at, slices);
    }

    /// A request of a plan has ended.
    pub(super) fn allocate_done(
        &mut self,
        cx: &mut Cx<'_>,
        (id, io): (VolumeId, AllocateIo),
        (result, stat, _): (Result<(), IoError>, Option<Stat>, Time),
    ) {
        let volume = self.volume(id);
        assert!(volume.has_requests(), "a volume counts its requests");
        volume.request_ends();
        volume.counters.origin.errors += u64::from(result.is_err());
        let plan = self.allocation(id);
        if let Err(error) = result
            && !plan.reads_apart(io)
        {
            plan.failed.get_or_insert(error);
        }
        match io {
            AllocateIo::Table => self.allocation_table_read(cx, id, result.is_ok()),
            AllocateIo::Header => self.first_sector_read(cx, id, result.is_ok()),
            AllocateIo::Read { job } => self.copy_read(cx, id, job),
            AllocateIo::Write { job } => self.end_allocation_job(id, job),
            AllocateIo::Order => {
                plan.waiting = false;
                match plan.step {
                    Step::Stat => {
                        let Some(stat) = stat else { return };
                        (plan.file_bytes, plan.step) = (stat.size_bytes, Step::Header);
                        // It may be another file by now, which nothing more is asked of.
                        if !self.judge_image(cx, id, &stat) {
                            self.allocation(id).step = Step::Stat;
                        }
                    }
                    step if step.is_sync() && result.is_ok() => self.next_step(cx, id),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn end_allocation_job(&mut self, id: VolumeId, job: u32) {
        let job = self.allocation(id).jobs.take(job);
        assert!(
            job.waits == 0,
            "a read may still bring something to its memory"
        );
        self.scratch.free_destage_piece(job.piece);
    }

    fn allocation_table_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let plan = self.allocation(id);
        let missing = plan.plan.missing.take().expect("it was asked for");
        let pieces = core::mem::take(&mut plan.plan.pieces);
        if ok {
            let mut bytes = alloc::vec![0; missing.bytes as usize];
            let parts = bytes.chunks_mut(self.scratch.piece_bytes() as usize);
            for (part, piece) in parts.zip(&pieces) {
                cx.memory.load(self.scratch.piece(*piece), part);
            }
            self.allocation_planner(id).supply(missing, &bytes);
            // Writes and reads that follow need it as well. The header is another's to change.
            let map = self.volume(id).map().expect("it allocates");
            if missing.offset > 0 {
                self.maps.get(map).supply(missing, &bytes);
            }
        }
        for piece in pieces {
            self.scratch.free_destage_piece(piece);
        }
    }

    fn first_sector_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        let plan = self.allocation(id);
        plan.waiting = false;
        let piece = plan.header_piece.take().expect("it has a piece");
        let file_bytes = plan.file_bytes;
        let mut sector = alloc::vec![0; SECTOR_BYTES as usize];
        cx.memory.load(self.scratch.piece(piece), &mut sector);
        self.scratch.free_destage_piece(piece);
        if !ok {
            return;
        }
        if !self.allocation_planner(id).read_anew(&sector, file_bytes) {
            self.allocation(id).failed = Some(IoError::Damaged);
            return;
        }
        self.forget_tables(id, None);
        // A part of what failed may be on the disk, and readers have found what was there before.
        if !has(Bug::KeepBehindFailedPlan) {
            self.renew_layer(id);
        }
        self.volume(id).allocator_mut().is_read_anew();
        self.next_step(cx, id);
    }
}
