//! A journal on its way to its image.
//!
//! Always true: an entry is in a job, is written, or is to be read again; what rests has nothing in
//! flight. Deliberately absent: the steps (`core::replay`).

use super::batch::Sources;
use super::destage::Destage;
use super::ledger::APPLY_MS_MAX;
use super::resend::{Pause, RETRY_MS};
use super::{Epoch, Volume};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Stat;
use crate::format::journal::JournalEntry;
use crate::format::ledger::{Ledger, Progress};
use crate::format::record::EntryKind;
use crate::memory::{Place, Slice};
use crate::slab::Slab;
use crate::types::{SECTOR_BYTES, Serial, Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Table,
    Stat,
    Begin,
    Copy,
    Sync,
    Seen,
    /// The ledger is told that the image has all of it.
    Reached,
    /// The guard is looked for, and cleared.
    Header,
    HeaderSync,
    Last,
    Finish,
}

/// Neighbouring entries that were read together.
pub(crate) struct Job {
    pub(crate) entries: Range<usize>,
    /// Where each of them lies in memory.
    pub(crate) places: Vec<Place>,
    pub(crate) pieces: Vec<u32>,
    pub(crate) reading: bool,
    /// Of the log, not of the journal.
    pub(crate) brought: bool,
    /// Writes that have not ended, queued ones included.
    pub(crate) writes: usize,
}

/// One request to the image, of neighbouring entries; without slices it zeroes.
pub(crate) struct Write {
    pub(crate) job: u32,
    pub(crate) entries: Range<usize>,
    pub(crate) span: Span,
    pub(crate) kind: EntryKind,
    pub(crate) slices: Vec<Slice>,
}

/// A journal on its way to the image.
pub struct Replay {
    pub(crate) step: Step,
    /// Header and table, as far as they were read.
    pub(crate) table: Vec<u8>,
    /// The piece that the next part of the table is read to.
    pub(crate) table_piece: Option<u32>,
    pub(crate) entries: Vec<JournalEntry>,
    pub(crate) upto: Serial,
    /// Entries before it are in a job, are written, or are in `again`.
    pub(crate) cursor: usize,
    pub(crate) again: Vec<Range<usize>>,
    /// What need not be read from the journal.
    pub(crate) sources: Sources,
    pub(crate) jobs: Slab<Job>,
    /// Jobs whose read has not ended.
    pub(crate) reads: usize,
    pub(crate) writes: VecDeque<Write>,
    /// Writes in flight.
    pub(crate) sent: usize,
    /// A request without a job is in flight.
    pub(crate) waiting: bool,
    pub(crate) damaged: bool,
    /// The image did not fit meanwhile: all entries are written again.
    pub(crate) rewrite: bool,
    pub(crate) pause: Pause,
    /// A write that is good does not tell that the next sync will be.
    pub(crate) sync_failed: bool,
    pub(crate) unreadable_since: Option<Time>,
    pub(crate) apply_until: Time,
    /// The image has a guard.
    pub(crate) guards: bool,
    /// It is of a plan of this life, which knows what changes.
    pub(crate) plan: bool,
    /// The same, of one that makes room for a larger disk.
    pub(crate) is_task: bool,
    /// The image has all of it, and the ledger says so.
    pub(crate) reached: bool,
    /// The first sector of the image, without the guard.
    pub(crate) header: Vec<u8>,
    /// What was seen of the image last.
    pub(crate) stat: Option<Stat>,
    pub(crate) header_piece: Option<u32>,
}

impl Replay {
    /// Of what a plan of this life has journaled.
    pub fn of_plan(entries: Vec<JournalEntry>, upto: Serial, now: Time) -> Replay {
        Replay {
            entries,
            apply_until: now.plus_millis(APPLY_MS_MAX / 3),
            guards: true,
            plan: true,
            ..Replay::new(Step::Copy, upto)
        }
    }

    /// Of nothing but the guard that an image may have.
    pub fn of_guard() -> Replay {
        Replay {
            guards: true,
            ..Replay::new(Step::Stat, Serial(0))
        }
    }

    /// The same journal of an image that has a guard.
    pub fn guarded(self) -> Replay {
        Replay {
            guards: true,
            ..self
        }
    }

    /// Of the journal that this ledger names.
    pub fn of(ledger: &Ledger) -> Replay {
        let Progress::Apply { upto, .. } = ledger.progress else {
            unreachable!("only a pending journal is replayed");
        };
        Replay::new(Step::Table, upto)
    }

    fn new(step: Step, upto: Serial) -> Replay {
        Replay {
            step,
            table: Vec::new(),
            table_piece: None,
            entries: Vec::new(),
            upto,
            cursor: 0,
            again: Vec::new(),
            sources: Sources::default(),
            jobs: Slab::default(),
            reads: 0,
            writes: VecDeque::new(),
            sent: 0,
            waiting: false,
            damaged: false,
            rewrite: false,
            pause: Pause::default(),
            sync_failed: false,
            unreadable_since: None,
            apply_until: Time(0),
            guards: false,
            plan: false,
            is_task: false,
            reached: false,
            header: Vec::new(),
            stat: None,
            header_piece: None,
        }
    }

    /// The entries of a job, and where each is to lie in memory.
    pub(crate) fn places_of(&mut self, job: u32) -> Vec<(usize, Place)> {
        let job = self.jobs.get(job);
        job.entries
            .clone()
            .zip(job.places.iter().copied())
            .collect()
    }

    /// Pieces of the destager's memory that it has.
    pub fn pieces(&mut self) -> usize {
        let held: usize = self.jobs.iter_mut().map(|job| job.pieces.len()).sum();
        let single = [self.table_piece, self.header_piece];
        held + single.iter().flatten().count()
    }

    /// Nothing of it is in flight.
    pub fn rests(&self) -> bool {
        let in_step = matches!(self.step, Step::Begin | Step::Reached | Step::Finish);
        self.jobs.len() == 0 && !self.waiting && !in_step
    }

    /// Entries that are to be copied next.
    pub(crate) fn next_entries(&self) -> Option<Range<usize>> {
        let rest = self.cursor..self.entries.len();
        let rest = Some(rest).filter(|rest| rest.start < rest.end);
        self.again.last().cloned().or(rest)
    }

    /// Entries up to here are in a job.
    pub(crate) fn advance(&mut self, upto: usize) {
        match self.again.last_mut() {
            Some(range) => {
                assert!(range.start < upto && upto <= range.end, "it goes forward");
                range.start = upto;
                if range.start == range.end {
                    self.again.pop();
                }
            }
            None => {
                assert!(self.cursor < upto && upto <= self.entries.len());
                self.cursor = upto;
            }
        }
    }

    pub(crate) fn begin_again(&mut self, now: Time) {
        assert_eq!(self.jobs.len(), 0, "no entry is on its way");
        (self.step, self.cursor, self.rewrite) = (Step::Copy, 0, false);
        self.again.clear();
        self.pause.rest(now, RETRY_MS);
    }

    /// Entries whose write has failed or was not sent are read and written again.
    pub(crate) fn writes_again(&mut self, entries: Range<usize>) {
        assert!(
            entries.start < entries.end && entries.end <= self.cursor,
            "they were on their way before"
        );
        self.again.push(entries);
    }

    /// The requests that write what a job has read, as few as its entries make.
    pub(crate) fn writes_of(&mut self, id: u32) -> VecDeque<Write> {
        let job = self.jobs.get(id);
        assert!(
            job.entries.len() == job.places.len() && !job.reading,
            "each entry was read to its place"
        );
        let mut writes: VecDeque<Write> = VecDeque::new();
        for (at, place) in job.entries.clone().zip(&job.places) {
            let (span, kind) = (self.entries[at].span, self.entries[at].kind);
            let slice = Slice {
                place: *place,
                bytes: span.sectors * SECTOR_BYTES,
            };
            let last = writes.back_mut();
            let Some(last) = last.filter(|last| last.span.end() == span.sector) else {
                writes.push_back(Write {
                    job: id,
                    entries: at..at + 1,
                    span,
                    kind,
                    slices: alloc::vec![slice],
                });
                continue;
            };
            last.entries.end = at + 1;
            last.span.sectors += span.sectors;
            let before = last.slices.last_mut().expect("a write of data has memory");
            match before.place.plus(before.bytes) == *place {
                true => before.bytes += slice.bytes,
                false => last.slices.push(slice),
            }
        }
        job.writes = writes.len();
        writes
    }
}

impl Volume {
    /// Nothing is asked of its image: it does not fit; or a journal that a start has found is not
    /// applied yet, so that its tables may be anything.
    pub(crate) fn is_unreadable(&self) -> bool {
        let torn = |it: &Replay| it.guards && !it.plan && !it.reached && it.upto > Serial(0);
        let torn = |it: &Replay| torn(it) && !has(Bug::ReadTornTables);
        self.misfit().is_some() || self.replay.as_ref().is_some_and(torn)
    }

    /// A journal is on its way to its image, or a guard is looked for.
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// Something of ours may be writing its image, or is about to.
    pub fn is_destaging(&self) -> bool {
        self.destage.is_some() || self.replay.is_some()
    }

    /// How many of the oldest epochs its pending journal has.
    pub(crate) fn journaled_epochs(&self) -> usize {
        let upto = self.replay.as_ref().map_or(Serial(0), |replay| replay.upto);
        self.epochs
            .partition_point(|epoch| epoch.last_serial <= upto)
    }

    /// The ledger names a journal that a run before has left. `guarded`: the image may have a
    /// guard.
    pub fn finds_journal(&mut self, ledger: Option<&Ledger>, guarded: bool) {
        assert!(!self.is_destaging(), "it has just come");
        let found = ledger.map(Replay::of);
        self.replay = match guarded {
            true => Some(found.map_or_else(Replay::of_guard, Replay::guarded)),
            false => found,
        };
    }

    /// A journal that is on its way to its image.
    pub fn pending_journal(&self) -> Option<&Replay> {
        self.replay.as_ref()
    }

    /// A replay, if one is under way.
    pub(crate) fn replay_if_any(&mut self) -> Option<&mut Replay> {
        self.replay.as_mut()
    }

    /// The replay that is under way, and the epoch of the log that has a part of what it writes.
    pub(crate) fn replay_from_log(&mut self) -> (&mut Replay, Option<&Epoch>) {
        let replay = self.replay.as_mut().expect("a replay is under way");
        let upto = replay.upto;
        let epoch = self.epochs.front();
        (replay, epoch.filter(|epoch| epoch.last_serial <= upto))
    }

    /// The ledger says that the image has the journal.
    pub(crate) fn end_replay(&mut self) -> Replay {
        let replay = self.replay.take().expect("a replay is under way");
        assert!(replay.rests_finished(), "all of it is at the image");
        assert!(
            replay.cursor == replay.entries.len() && replay.again.is_empty(),
            "each entry was written"
        );
        replay
    }

    /// A guard was looked for, and there was none.
    pub(crate) fn end_guard(&mut self) -> Replay {
        let replay = self.replay.take().expect("a replay is under way");
        assert!(replay.guards && replay.header_piece.is_none());
        assert!(
            replay.jobs.len() == 0 && !replay.waiting,
            "nothing is in flight"
        );
        replay
    }

    /// The journal cannot be used, and the log has all that it had: up to where.
    pub(crate) fn lose_journal(&mut self) -> Serial {
        let replay = self.replay.take().expect("a replay is under way");
        assert!(
            replay.rests() && replay.table_piece.is_none() && !self.is_in_part(),
            "nothing of it is on its way"
        );
        assert!(!replay.guards, "an image with a guard needs its journal");
        self.written_ledger().journal_is_lost(replay.upto);
        replay.upto
    }

    pub(crate) fn replay(&mut self) -> &mut Replay {
        self.replay.as_mut().expect("a replay is under way")
    }

    /// Gives up a destage of which nothing is in flight. The guard that its plan may have set is
    /// cleared by itself.
    pub(crate) fn drop_destage(&mut self) -> Option<Destage> {
        let destage = self.destage.take();
        if destage.as_ref().is_some_and(|it| it.guarded) {
            assert!(self.replay.is_none(), "a destage or a replay");
            self.replay = Some(Replay::of_guard());
        }
        destage
    }

    /// What was copied to an image that misfits is written again when it fits.
    pub(crate) fn write_replay_again(&mut self) {
        if let Some(replay) = &mut self.replay {
            // Behind that a look comes before the end once more.
            replay.rewrite |= replay.cursor > 0 && !replay.reached;
        }
    }

    /// Gives up a replay whose image is another one, if nothing of it is in flight.
    pub(crate) fn abandon_replay(&mut self) {
        let rests = self.replay.as_ref().is_some_and(Replay::rests);
        if rests && self.misfit().is_some() {
            self.replay = None;
        }
    }

    /// The ledger says that nothing needs the journal any more.
    pub(crate) fn replay_reached(&mut self) {
        let replay = self.replay();
        assert!(
            replay.step == Step::Reached,
            "the ledger was written for it"
        );
        (replay.step, replay.reached) = (Step::Header, true);
    }

    /// The ledger is written: entries may be.
    pub(crate) fn replay_begun(&mut self) {
        let replay = self.replay();
        assert!(replay.step == Step::Begin, "the ledger was written for it");
        if replay.cursor == 0 {
            mark(Mark::JournalReplayed);
        }
        replay.step = Step::Copy;
        if has(Bug::SkipReplay) {
            replay.cursor = replay.entries.len();
        }
    }

    /// A range of zeroes is one request, and nothing is read for it.
    pub(crate) fn zero_entry(&mut self, at: usize) {
        let replay = self.replay();
        let job = replay.jobs.insert(Job {
            entries: at..at + 1,
            places: Vec::new(),
            pieces: Vec::new(),
            reading: false,
            brought: false,
            writes: 1,
        });
        let (span, kind) = (replay.entries[at].span, replay.entries[at].kind);
        replay.writes.push_back(Write {
            job,
            entries: at..at + 1,
            span,
            kind,
            slices: Vec::new(),
        });
        replay.advance(at + 1);
    }
}

impl Replay {
    pub(crate) fn rests_finished(&self) -> bool {
        self.step == Step::Finish && self.jobs.len() == 0 && !self.waiting
    }
}
