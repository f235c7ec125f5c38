//! A destage under way: what of an epoch, or of an order, goes to the image.
//!
//! Always true: the phases are gone through in the order that stands in `core::destage`; what is
//! idle has no memory and nothing in flight.
//! Deliberately absent: who drives it.

use super::batch::{Batch, Plan, Task};
use super::jobs::Job;
use super::pace::Pace;
use super::resend::Resend;
use super::{Epoch, Replay, Volume};
use crate::adversary::{Bug, has};
use crate::event::Purpose;
use crate::fetch::Want;
use crate::format::journal::{self, JournalEntry};
use crate::format::record::EntryKind;
use crate::map::ExtentMap;
use crate::slab::Slab;
use crate::snapshot::State;
use crate::types::{SECTOR_BYTES, Serial, Span, Time};
use crate::window::READS_LINGER_NS;
use alloc::vec::Vec;

/// Sectors (1 GiB) of one entry of zeroes.
const ZERO_SECTORS_MAX: u64 = 1 << 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WaitLog {
        asked: bool,
    },
    /// Before a plan writes the image it is looked at, and the ledger says that it may.
    Look,
    Prepare,
    Journal,
    Table,
    /// The header of the image says that only its journal makes it whole.
    Guard,
    /// What a plan wrote at once, and the guard.
    ImageSync,
    JournalSync,
    /// All members of a group prepare their part of a cut before the first of them begins.
    Gate,
    Stat,
    Begin,
    Apply,
    ApplySync,
    /// All is there: whether that was the image is looked at once more.
    Seen,
    Finish,
}

/// A destage under way.
pub struct Destage {
    pub(crate) phase: Phase,
    pub(crate) upto: Serial,
    pub(crate) cursor: u64,
    pub(crate) jobs: Slab<Job>,
    /// Of the jobs, together: pieces of memory, and one for each that has none.
    pub(crate) width: usize,
    /// Something cannot be read: the phase starts again when no job is left.
    pub(crate) failed: bool,
    pub(crate) resend: Resend,
    /// What cannot be read, and when that is tried again.
    pub(crate) bad: Vec<Want>,
    pub(crate) reread_at: Time,
    /// An order wants it to be read at once, also where a request hangs when the order comes.
    pub(crate) reread_asked: bool,
    /// The ranges of the volume that it is of.
    pub(crate) damaged: Vec<Span>,
    /// Something failed for want of space.
    pub(crate) full: bool,
    pub(crate) retry_at: Time,
    pub(crate) entries: Vec<JournalEntry>,
    /// The same of a plan, kept until they are applied.
    pub(crate) planned: Vec<JournalEntry>,
    pub(crate) journal_at: u64,
    pub(crate) journal_sequence: u64,
    pub(crate) table: Vec<u8>,
    pub(crate) table_at: usize,
    /// The piece of the table that is being written.
    pub(crate) table_sent: usize,
    pub(crate) table_piece: Option<u32>,
    /// A request without a job is in flight: a sync or a stat.
    pub(crate) waiting: bool,
    /// Jobs write the origin, also while the ledger is written again in between.
    pub(crate) applying: bool,
    pub(crate) apply_until: Time,
    pub(crate) pace: Pace,
    /// Of an image that allocates.
    pub(crate) plan: Option<Plan>,
    /// As the volume was set when it began: the ledger says *cut* while bytes of the disk are
    /// written where they belong. A plan writes those at once, and its tables by a journal.
    pub(crate) in_place: bool,
    /// The image contradicts itself.
    pub(crate) contradicted: bool,
    /// The image may have a guard of this plan, or of one before it.
    pub(crate) guarded: bool,
    /// It is of no epoch.
    pub(crate) task: Option<Task>,
    /// Of the epoch, as [`Flow::moved`](crate::flow::Flow::moved) counts.
    pub(crate) moved_halves: u64,
}

impl Destage {
    pub fn moved_halves(&self) -> u64 {
        self.moved_halves
    }

    /// The origin is being written.
    pub fn applies(&self) -> bool {
        self.applying
    }

    /// A plan writes the image, where nothing refers to.
    pub fn is_planned(&self) -> bool {
        self.plan.is_some()
    }

    /// Ranges of the volume that could not be read when that was tried last.
    pub fn damaged(&self) -> &[Span] {
        &self.damaged
    }

    /// Something of the epoch could not be read, and is looked for.
    pub fn met_damage(&self) -> bool {
        !self.bad.is_empty()
    }

    /// Nothing of it is in flight, and it has no memory.
    pub(crate) fn is_idle(&self) -> bool {
        let reads = self.table_piece.is_some() || self.table_pieces() > 0;
        self.jobs.len() == 0 && self.width == 0 && !self.waiting && !reads
    }

    /// Pieces of memory that tables of a plan have.
    pub(crate) fn table_pieces(&self) -> usize {
        self.plan.as_ref().map_or(0, Plan::table_pieces)
    }

    /// Its jobs are all to be done, once more.
    pub(crate) fn begin_jobs(&mut self) {
        assert!(self.is_idle(), "no range is on its way twice");
        self.failed = false;
        self.resend.clear();
        self.cursor = 0;
        self.moved_halves = 0;
    }

    /// What the origin is to be written from is not complete and synced yet.
    pub fn is_preparing(&self) -> bool {
        match self.phase {
            Phase::WaitLog { .. } | Phase::Look | Phase::Prepare => true,
            Phase::Journal | Phase::Table | Phase::Guard | Phase::ImageSync => true,
            Phase::JournalSync => !has(Bug::PassGateUnsynced),
            _ => false,
        }
    }
}

impl Destage {
    /// One that comes behind the ledger of this sequence, with so much room for its table.
    pub(crate) fn new(phase: Phase, upto: Serial, sequence: u64, room: u64) -> Destage {
        Destage {
            phase,
            upto,
            cursor: 0,
            jobs: Slab::default(),
            width: 0,
            failed: false,
            resend: Resend::default(),
            bad: Vec::new(),
            reread_at: Time(0),
            reread_asked: false,
            damaged: Vec::new(),
            full: false,
            retry_at: Time(0),
            entries: Vec::new(),
            planned: Vec::new(),
            journal_at: room,
            journal_sequence: sequence + 1,
            table: Vec::new(),
            table_at: 0,
            table_sent: 0,
            table_piece: None,
            waiting: false,
            applying: false,
            apply_until: Time(0),
            pace: Pace::new(None, 0, 1),
            plan: None,
            in_place: false,
            contradicted: false,
            guarded: false,
            task: None,
            moved_halves: 0,
        }
    }
}

impl Volume {
    pub fn destage(&self) -> Option<&Destage> {
        self.destage.as_ref()
    }

    /// A destage, if one is under way.
    pub fn destage_if_any(&mut self) -> Option<&mut Destage> {
        self.destage.as_mut()
    }

    /// The destage that is under way.
    pub fn destaging(&mut self) -> &mut Destage {
        self.destage.as_mut().expect("a destage is under way")
    }

    /// An epoch, or the plan of an order, is on its way from here on.
    pub fn begin_destage(&mut self, destage: Destage) {
        assert!(
            self.replay.is_none(),
            "a pending journal is not written over"
        );
        assert!(self.destage.is_none(), "one destage of a volume at a time");
        self.destage = Some(destage);
    }

    /// The journal of a plan is decided: it goes to the image as one that a start has found.
    pub fn apply_plan(&mut self, now: Time) {
        let mut destage = self.destage.take().expect("a destage is under way");
        assert!(destage.is_idle() && destage.guarded, "the plan is written");
        let plan = destage.plan.take().expect("it was planned");
        let mut replay = Replay::of_plan(destage.planned, destage.upto, now);
        replay.is_task = destage.task.is_some();
        replay.sources = plan.sources;
        assert!(self.replay.is_none(), "one journal of a volume at a time");
        self.replay = Some(replay);
    }

    /// The ledger says that the oldest epoch is at the origin: it is not dirty any more.
    pub fn end_destage(&mut self) -> Epoch {
        let destage = self.destage.take().expect("a destage is under way");
        assert!(
            destage.phase == Phase::Finish && destage.is_idle(),
            "a destage ends when all of it is there"
        );
        let epoch = self.epochs.pop_front().expect("an epoch was destaged");
        assert!(epoch.sealed, "what is on its way takes no writes");
        assert_eq!(
            epoch.last_serial, destage.upto,
            "the epoch that was begun is the one that ends"
        );
        assert!(destage.upto > self.destaged() || epoch.map.is_empty());
        self.reach(destage.upto);
        epoch
    }

    /// The image does not fit. What was written of it may be cut off: then all of it is written
    /// again when it fits.
    pub fn destage_again_behind_misfit(&mut self, cut: bool) {
        let written = |it: &&mut Destage| it.applies() || cut && it.is_planned();
        if let Some(destage) = self.destage.as_mut().filter(written) {
            destage.failed = true;
        }
    }

    /// Lets a destage pass the gate that its group has reached. False if it does not stand there.
    pub(crate) fn open_gate(&mut self) -> bool {
        let destage = self.destage_if_any();
        let waits = destage.filter(|destage| destage.phase == Phase::Gate);
        waits.map(|destage| destage.phase = Phase::Stat).is_some()
    }

    /// What is being destaged.
    pub(crate) fn destaged_map(&self) -> &ExtentMap {
        if let Some(task) = self.destage().and_then(|it| it.task.as_ref()) {
            return &task.map;
        }
        let epoch = self.epochs.front();
        &epoch.expect("an epoch is being destaged").map
    }

    /// The ledger says that a plan may write to the image. One that was under way goes on.
    pub(crate) fn destage_prepared(&mut self) {
        let destage = self.destaging();
        assert!(
            destage.phase == Phase::Prepare,
            "the ledger was written for it"
        );
        destage.phase = Phase::Journal;
    }

    pub(crate) fn apply_purpose(&mut self) -> Purpose {
        match self.destaging().in_place {
            false => Purpose::JournalApply,
            true => Purpose::DestageWrite,
        }
    }

    /// Blocks that a job carries; a range of zeroes counts as one.
    pub(crate) fn job_blocks(&mut self, job: u32) -> u64 {
        let job = self.destaging().jobs.get(job);
        match (&job.batch, job.pieces.len()) {
            (Some(batch), _) => batch.blocks(),
            (None, 0) => 1,
            (None, _) => job.blocks(),
        }
    }

    /// A job has reached the journal or the origin.
    pub(crate) fn count_moved(&mut self, job: u32) {
        let destage = self.destaging();
        let in_place = destage.in_place;
        let job = destage.jobs.get(job);
        let batch = job.batch.as_ref();
        let halves = match (in_place, job.pieces.len()) {
            // What the journal has of a plan is moved once more when that is applied.
            _ if batch.is_some_and(Batch::goes_to_file) => 2 * batch.map_or(0, Batch::blocks),
            _ if batch.is_some() => batch.map_or(0, Batch::blocks),
            // A range of zeroes is no job of the journal.
            (_, 0) => 2,
            (false, _) => job.blocks(),
            (true, _) => 2 * job.blocks(),
        };
        destage.moved_halves += halves;
        self.flow.moved(halves);
    }

    /// An order to destage makes what is bad be read at once, whenever it was read last.
    pub(crate) fn read_bad_again(&mut self, now: Time) {
        let destage = self.destage_if_any();
        if let Some(destage) = destage.filter(|destage| destage.met_damage()) {
            (destage.reread_asked, destage.retry_at) = (true, now);
        }
    }

    /// A write of a destage is good.
    pub(crate) fn go_on_after_success(&mut self) {
        let destage = self.destaging();
        destage.full = false;
        destage.resend.pause.end();
        let failed = destage.resend.sync_failed;
        if self.state() == State::Stalled && !failed {
            self.recover();
        }
    }

    /// A range of zeroes is an entry of the journal and no more.
    pub(crate) fn journal_zeroes(&mut self, at: u64, bytes: u64) {
        assert!(at.is_multiple_of(SECTOR_BYTES) && bytes.is_multiple_of(SECTOR_BYTES));
        let entries = &mut self.destaging().entries;
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

    /// A batch that failed, or was not sent, is put together again.
    pub(crate) fn keep_batch(&mut self, job: u32) {
        let destage = self.destaging();
        let batch = destage.jobs.get(job).batch.take();
        let batch = batch.expect("it is of a plan");
        let plan = destage.plan.as_mut().expect("it is under way");
        plan.put_back(batch);
    }

    /// Whether two entries of the journal write one place: then the order would decide, and the
    /// image maps two clusters of the disk to one of the file.
    pub(crate) fn entries_overlap(&mut self) -> bool {
        let entries = &self.destaging().entries;
        let mut spans: Vec<Span> = entries.iter().map(|entry| entry.span).collect();
        spans.sort_unstable_by_key(|span| span.sector);
        let overlap = |pair: &[Span]| pair[0].end() > pair[1].sector;
        spans.windows(2).any(overlap) || spans.len() > journal::ENTRIES_MAX
    }

    /// Requests that the destager of a volume may have at the origin. Reads of its guest go first:
    /// while there are some it keeps a quarter, and more the fuller the volume is.
    pub(crate) fn destage_depth(&self, now: Time) -> usize {
        let depth = self.tuning().origin_queue_depth.max(1) as usize;
        if self
            .guest_read_at()
            .is_none_or(|at| now.since(at) > READS_LINGER_NS)
        {
            return depth;
        }
        let fill = self.dirty_fill() as usize;
        let kept = (depth * (250 + fill * 3 / 4) / 1000).max(1);
        assert!(kept <= depth, "a part is no more than the whole");
        kept
    }

    /// Pieces of the destager's memory that it has, or a few more.
    pub fn held_pieces(&mut self) -> usize {
        let destage = self.destage.as_ref();
        let destage = destage.map_or(0, |it| {
            it.width + usize::from(it.table_piece.is_some()) + it.table_pieces()
        });
        let replay = self.replay.as_mut().map_or(0, Replay::pieces);
        destage + replay + self.allocator.pieces()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn a_destage_ends_with_the_epoch_that_it_began_with() {
        let mut volume = volume();
        volume.open_epoch(Time(1), crate::types::Serial(0)).sealed = true;
        let mut destage = Destage::new(Phase::Finish, Serial(0), 3, 0);
        assert_eq!(destage.journal_sequence, 4, "behind that of the ledger");
        destage.applying = true;
        volume.begin_destage(destage);
        volume.destage_again_behind_misfit(false);
        assert!(volume.destaging().failed && volume.is_destaging());
        assert!(volume.end_destage().map.is_empty());
        assert!(!volume.is_dirty() && !volume.is_destaging());
    }
}
