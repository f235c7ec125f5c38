//! Direct writes that wait for a place in their image, and the plan that gives it to them.
//!
//! Always true: one plan of a volume is under way; its steps come in order, and none is gone back
//! to. Deliberately absent: who carries it out (`core::allocate`).

use super::Volume;
use super::batch::{Batch, NextPieces, Plan, Source, next_pieces};
use crate::event::IoError;
use crate::memory::Place;
use crate::origin::{Piece, Rank, When, Work};
use crate::outbox::AllocateIo;
use crate::slab::Slab;
use crate::types::{SECTOR_BYTES, Span, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What one plan covers at most: data, and zeroes, which need only their tables.
const DATA_SECTORS_MAX: u64 = (16 << 20) / SECTOR_BYTES;
const ZERO_SECTORS_MAX: u64 = (1 << 30) / SECTOR_BYTES;
const CALLS_MAX: usize = 256;
/// A plan that took longer than this met a storage that hung, or had more to do than the next one.
const COMPANY_NS_MAX: u64 = 20_000_000;

/// The writes of a volume that allocate.
#[derive(Default)]
pub struct Allocator {
    queue: VecDeque<Queued>,
    plan: Option<Box<Allocation>>,
    /// A sync has failed: what the file has of its tables is read anew.
    stale: bool,
    /// There was a plan in this life.
    used: bool,
    /// One was cut short behind its counts.
    leaked: bool,
    company: Option<Company>,
}

/// What the next plan waits for. Guests that were answered together often write on together: one
/// plan of all costs less than two of the halves, each of which would wait for the other.
#[derive(Clone, Copy)]
pub(crate) struct Company {
    /// So many writes are all that there are.
    writes: usize,
    /// The wait is over then, unless one more comes before.
    pub(crate) until: Time,
    /// It is over then in any case.
    end: Time,
    pause_ns: u64,
}

impl Company {
    /// Behind a plan that took so long: half of that for one more write, and three quarters for
    /// all.
    pub(crate) fn behind(now: Time, took_ns: u64, writes: usize) -> Company {
        let took_ns = took_ns.min(COMPANY_NS_MAX);
        let pause_ns = took_ns / 2;
        Company {
            writes: writes.min(CALLS_MAX),
            until: after(now, pause_ns),
            end: after(now, took_ns / 4 * 3),
            pause_ns,
        }
    }

    pub(crate) fn one_came(&mut self, now: Time) {
        if now >= self.until {
            return;
        }
        self.until = after(now, self.pause_ns).min(self.end);
        assert!(self.until <= self.end && self.writes <= CALLS_MAX);
    }

    pub(crate) fn is_awaited(&self, now: Time, waiting: usize) -> bool {
        waiting < self.writes && now < self.until
    }
}

fn after(now: Time, nanos: u64) -> Time {
    Time(now.0.saturating_add(nanos))
}

/// A write, or a part of it.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub(crate) call: u32,
    pub(crate) span: Span,
    /// The place of its first byte; none for zeroes.
    pub(crate) source: Option<Place>,
    pub(crate) since: Time,
    /// Nothing of the write follows.
    pub(crate) last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Stat,
    Header,
    Plan,
    Place,
    Mark,
    CountSync,
    Count,
    HookSync,
    Hook,
    ReferSync,
    Refer,
    ReleaseSync,
    Release,
}

/// One plan on its way to the file.
pub(crate) struct Allocation {
    pub(crate) step: Step,
    /// What it covers, in the order of the disk, without overlap.
    pub(crate) parts: Vec<Queued>,
    pub(crate) plan: Plan,
    pub(crate) work: Vec<Work>,
    /// Ranges of the file that become zeroes in *Place*.
    pub(crate) zeroes: Vec<(u64, u64)>,
    pub jobs: Slab<Job>,
    /// A request without a job is in flight.
    pub(crate) waiting: bool,
    pub(crate) header_piece: Option<u32>,
    pub(crate) file_bytes: u64,
    pub(crate) failed: Option<IoError>,
    pub(crate) begun: Time,
    /// A table of this step was sent.
    pub(crate) tables_sent: bool,
}

/// One write to the file.
pub(crate) struct Job {
    pub piece: u32,
    pub batch: Batch,
    /// Reads that it waits for.
    pub waits: u32,
    /// One of them brings more than what is copied.
    pub joined: bool,
    /// That failed.
    pub again: bool,
}

impl Allocator {
    /// A write, or a part of it, waits for a place. Until when the next plan waits for more.
    pub(crate) fn enqueue(&mut self, now: Time, queued: Queued) -> Option<Time> {
        assert!(queued.span.sectors > 0, "a write has something");
        self.queue.push_back(queued);
        let company = self.company.as_mut()?;
        company.one_came(now);
        Some(company.until)
    }

    pub(crate) fn plan(&self) -> Option<&Allocation> {
        self.plan.as_deref()
    }

    pub(crate) fn planning(&mut self) -> &mut Allocation {
        self.plan.as_mut().expect("a plan is under way")
    }

    /// What the file has of its tables is to be read anew before it is planned with.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// What waits, where nothing is to be planned any more.
    pub(crate) fn take_queue(&mut self) -> VecDeque<Queued> {
        core::mem::take(&mut self.queue)
    }

    /// Whether a plan may begin now. `may_come`: others may write along with what waits.
    pub fn is_due(&self, now: Time, may_come: bool) -> bool {
        let awaited = |it: Company| it.is_awaited(now, self.queue.len());
        let waits = may_come && self.company.is_some_and(awaited) && !self.is_full();
        !self.queue.is_empty() && !waits
    }

    /// A plan begins, of what waits; its first step.
    pub(crate) fn begin(&mut self, now: Time) -> Step {
        assert!(self.plan.is_none(), "one plan of a volume at a time");
        self.company = None;
        let step = match self.stale {
            true => Step::Stat,
            false => Step::Plan,
        };
        let mut plan = Box::new(Allocation::new(step, now));
        plan.take_from(&mut self.queue);
        assert!(!plan.parts.is_empty(), "a plan is of something");
        self.plan = Some(plan);
        self.used = true;
        step
    }

    /// The file refers to all of the plan, which has answered so many writes. Until when the next
    /// one waits for more, if something waits.
    pub fn is_answered(&mut self, now: Time, answered: usize) -> Option<Time> {
        let begun = self.planning().begun;
        let writes = self.queue.len() + answered;
        let company = Company::behind(now, now.since(begun), writes);
        self.company = Some(company);
        (!self.queue.is_empty()).then_some(company.until)
    }

    /// All of the plan is done.
    pub fn end(&mut self) {
        let plan = self.plan.take().expect("a plan is under way");
        assert!(plan.parts.is_empty(), "its writes were answered");
    }

    /// Forgets a plan that nothing is in flight of. Behind *Place* the file may have a part of its
    /// tables: it is read anew.
    pub(crate) fn drop_plan(&mut self) -> Box<Allocation> {
        let plan = self.plan.take().expect("it is under way");
        assert!(plan.jobs.len() == 0 && plan.header_piece.is_none());
        assert!(plan.plan.table_pieces() == 0, "no table is being read");
        let changed = plan.has_changed_tables();
        self.stale |= changed;
        self.leaked |= changed;
        plan
    }

    /// These writes have failed: what waits of them is not written either.
    pub(crate) fn drop_writes_of(&mut self, parts: &[Queued]) {
        let others = |it: &Queued| parts.iter().all(|part| part.call != it.call);
        self.queue.retain(others);
    }

    /// What a plan had taken waits again, before all else.
    pub(crate) fn put_back(&mut self, parts: Vec<Queued>) {
        assert!(self.plan.is_none(), "its plan was dropped");
        for part in parts.into_iter().rev() {
            self.queue.push_front(part);
        }
    }

    /// The tables were read anew.
    pub fn is_read_anew(&mut self) {
        assert!(self.plan.is_some(), "a plan has read them");
        self.stale = false;
    }

    /// Nothing waits, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.plan.is_none()
    }

    /// What waits is as much as one plan may cover.
    pub(crate) fn is_full(&self) -> bool {
        let mut data = 0;
        let full = |it: &Queued| {
            data += it.source.map_or(0, |_| it.span.sectors);
            data >= DATA_SECTORS_MAX
        };
        self.queue.iter().any(full)
    }

    /// A write has found its place without a plan: it does not come to the next one.
    pub fn one_is_placed(&mut self) {
        if let Some(company) = &mut self.company {
            company.writes = company.writes.saturating_sub(1);
        }
    }

    /// There were plans, and each has come to its end.
    pub fn has_ended(&self) -> bool {
        self.used && !self.leaked && self.is_idle()
    }

    /// What the file has of its tables may be another than what is known.
    pub fn doubt(&mut self) {
        self.stale = true;
    }

    /// Pieces of memory that it holds.
    pub fn pieces(&self) -> usize {
        self.plan.as_ref().map_or(0, |it| {
            it.jobs.len() + it.plan.table_pieces() + usize::from(it.header_piece.is_some())
        })
    }
}

impl Volume {
    /// Its direct writes that allocate.
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    pub fn allocator_mut(&mut self) -> &mut Allocator {
        assert!(
            self.allocator.is_idle() || self.map.is_some(),
            "raw images have all places"
        );
        &mut self.allocator
    }

    /// Its image is written past the log, and allocates.
    pub fn allocates(&self) -> bool {
        self.map.is_some() && self.policy.is_direct() && !self.read_only
    }
}

impl Allocation {
    pub(crate) fn new(step: Step, begun: Time) -> Allocation {
        Allocation {
            step,
            begun,
            parts: Vec::new(),
            plan: Plan::new(),
            work: Vec::new(),
            zeroes: Vec::new(),
            jobs: Slab::default(),
            waiting: false,
            header_piece: None,
            file_bytes: 0,
            failed: None,
            tables_sent: false,
        }
    }

    /// Takes what one plan may cover off the queue.
    pub(crate) fn take_from(&mut self, queue: &mut VecDeque<Queued>) {
        let (mut data, mut zeroes) = (DATA_SECTORS_MAX, ZERO_SECTORS_MAX);
        while let Some(first) = queue.front_mut() {
            let room = match first.source {
                Some(_) => &mut data,
                None => &mut zeroes,
            };
            let sectors = first.span.sectors.min(*room);
            if sectors == 0 || self.parts.len() == CALLS_MAX {
                break;
            }
            *room -= sectors;
            let whole = sectors == first.span.sectors;
            let span = Span::new(first.span.sector, sectors);
            let last = first.last && whole;
            self.parts.push(Queued {
                span,
                last,
                ..*first
            });
            if whole {
                queue.pop_front();
                continue;
            }
            first.span = Span::new(span.end(), first.span.sectors - sectors);
            first.source = first.source.map(|place| place.plus(sectors * SECTOR_BYTES));
        }
        self.parts.sort_unstable_by_key(|part| part.span.sector);
        let overlap = |pair: &[Queued]| pair[0].span.end() > pair[1].span.sector;
        assert!(
            !self.parts.is_empty() && !self.parts.windows(2).any(overlap),
            "writes that overlap come one after the other"
        );
    }

    /// The pieces of the first cluster that is not planned yet, and where that cluster ends.
    pub(crate) fn next_pieces(&self, cluster: u64) -> Option<NextPieces> {
        let cursor = self.plan.cursor;
        let from = self.parts.partition_point(|it| it.span.end() <= cursor);
        let pieces = self.parts[from..].iter().map(|part| Piece {
            span: part.span,
            zero: part.source.is_none(),
        });
        next_pieces(pieces, cursor, cluster)
    }

    /// Where the guests' bytes of a span lie, part by part.
    pub fn sources(&self, span: Span) -> Vec<(Place, u64)> {
        let from = self
            .parts
            .partition_point(|it| it.span.end() <= span.sector);
        let (mut at, mut found) = (span.sector, Vec::new());
        for part in &self.parts[from..] {
            if at == span.end() {
                break;
            }
            let source = part.source.expect("data has a source");
            assert!(part.span.sector <= at, "what is placed was asked for");
            let end = part.span.end().min(span.end());
            let skip = (at - part.span.sector) * SECTOR_BYTES;
            found.push((source.plus(skip), (end - at) * SECTOR_BYTES));
            at = end;
        }
        assert_eq!(at, span.end(), "what is placed was asked for");
        found
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn has(&self, rank: Rank) -> bool {
        let of_rank = |work: &Work| matches!(work, Work::Table { rank: it, .. } if *it == rank);
        self.work.iter().any(of_rank)
    }

    /// Something is written where nothing in the file refers to.
    fn places(&self) -> bool {
        let places = |work: &Work| match work {
            Work::Data { when, .. } => *when == When::Now,
            Work::Copy { .. } => true,
            Work::Table { rank, .. } => *rank == Rank::Unused,
            Work::Zero { .. } => false,
        };
        self.work.iter().any(places)
    }

    /// The header says already that counts may be too high, so they need no order with what is
    /// placed.
    fn counts_early(&self) -> bool {
        !self.has(Rank::Mark)
    }

    /// The step in which tables of this rank are written.
    fn step_of(&self, rank: Rank) -> Step {
        match rank {
            Rank::Unused => Step::Place,
            Rank::Mark => Step::Mark,
            Rank::Count if self.counts_early() => Step::Place,
            Rank::Count => Step::Count,
            Rank::Hook => Step::Hook,
            Rank::Refer => Step::Refer,
            Rank::Release => Step::Release,
        }
    }

    /// Tables of the file may have changed in this step or before.
    pub(crate) fn has_changed_tables(&self) -> bool {
        match self.step {
            Step::Stat | Step::Header | Step::Plan => false,
            Step::Place => self.tables_sent && self.has(Rank::Count) && self.counts_early(),
            _ => true,
        }
    }

    /// A read of more than what is copied has failed: its parts are read one by one.
    pub(crate) fn reads_apart(&mut self, io: AllocateIo) -> bool {
        let AllocateIo::Read { job } = io else {
            return false;
        };
        let job = self.jobs.get(job);
        job.again |= job.joined;
        job.joined
    }

    /// The next batch has tables, and something that is copied is not there yet: what cannot be
    /// read then leaves nothing counted.
    pub(crate) fn reads_first(&self) -> bool {
        let tables = self.plan.ready.front().is_some_and(Batch::has_tables);
        tables && self.jobs.iter().any(|job| job.waits > 0)
    }

    /// Whether there is something to do in this step.
    pub(crate) fn needs(&self, step: Step) -> bool {
        match step {
            Step::Stat | Step::Header | Step::Plan | Step::Place => true,
            Step::Mark | Step::CountSync => self.has(Rank::Mark),
            Step::Count => self.has(Rank::Count) && !self.counts_early(),
            Step::HookSync | Step::Hook => self.has(Rank::Hook),
            Step::ReferSync => {
                let before = self.places() || self.has(Rank::Count) || self.has(Rank::Hook);
                before && self.has(Rank::Refer)
            }
            Step::Refer => self.has(Rank::Refer),
            Step::ReleaseSync | Step::Release => self.has(Rank::Release),
        }
    }

    /// Sorts what this step writes into batches.
    pub(crate) fn load(&mut self, piece_bytes: u64) {
        let step = self.step;
        assert!(
            self.plan.ready.is_empty() && self.zeroes.is_empty(),
            "a step is loaded once"
        );
        for work in &self.work {
            let (place, from) = match work {
                Work::Data { span, at, .. } if step == Step::Place => (*at, Source::Epoch(*span)),
                Work::Copy { extent, at } if step == Step::Place => (*at, Source::File(*extent)),
                Work::Zero { at, bytes } if step == Step::Place => {
                    // Clusters of a long discard often lie together.
                    match self.zeroes.last_mut() {
                        Some(last) if last.0 + last.1 == *at => last.1 += bytes,
                        _ => self.zeroes.push((*at, *bytes)),
                    }
                    continue;
                }
                Work::Table { at, bytes, rank } if self.step_of(*rank) == step => {
                    (*at, Source::Bytes(bytes.clone()))
                }
                _ => continue,
            };
            self.plan.add(When::Now, place, from, piece_bytes);
        }
        self.plan.close(When::Now);
    }

    /// Where the file ends at least when it has what is placed.
    pub(crate) fn end_bytes(&self) -> u64 {
        let end = |work: &Work| match work {
            Work::Data { span, at, .. } => at + span.sectors * SECTOR_BYTES,
            Work::Copy { extent, at } => at + extent.span.sectors * SECTOR_BYTES,
            Work::Table { at, bytes, .. } => at + bytes.len() as u64,
            Work::Zero { .. } => 0,
        };
        self.work.iter().map(end).max().unwrap_or(0)
    }
}

impl Step {
    /// The one behind it.
    pub(crate) fn next(self) -> Option<Step> {
        match self {
            Step::Stat => Some(Step::Header),
            Step::Header => Some(Step::Plan),
            Step::Plan => Some(Step::Place),
            Step::Place => Some(Step::Mark),
            Step::Mark => Some(Step::CountSync),
            Step::CountSync => Some(Step::Count),
            Step::Count => Some(Step::HookSync),
            Step::HookSync => Some(Step::Hook),
            Step::Hook => Some(Step::ReferSync),
            Step::ReferSync => Some(Step::Refer),
            Step::Refer => Some(Step::ReleaseSync),
            Step::ReleaseSync => Some(Step::Release),
            Step::Release => None,
        }
    }

    pub(crate) fn is_sync(self) -> bool {
        match self {
            Step::CountSync | Step::HookSync | Step::ReferSync | Step::ReleaseSync => true,
            Step::Stat | Step::Header | Step::Plan | Step::Place | Step::Mark => false,
            Step::Count | Step::Hook | Step::Refer | Step::Release => false,
        }
    }
}
