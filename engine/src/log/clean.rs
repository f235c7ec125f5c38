//! Segments of clean blocks: filled one after the other, given back oldest first.
//!
//! ```text
//! Ready ─open─▶ Filling ─full─▶ Clean ─retire─▶ Retired ─unread─▶ Dead ─checkpoint─▶ Ready
//! ```
//!
//! Always true: a clean segment is opened only from what is left above the pool that writes may
//! need, and never while a write is staged in part; who retires one has dropped its lines before;
//! it comes back to use as every other does, by a checkpoint that lists it as free, so a crash
//! never finds newer bytes under an old footer that counts. Deliberately absent: any sync; a block
//! is believed by its sum.

use super::{Log, Segment, SegmentState};
use crate::format::fill::{FillFooter, Life, RECORD_BLOCKS_MAX, Run, runs_max};
use crate::format::footer::body_blocks;
use crate::types::{BLOCK_SECTORS, LogAddr, SegmentIndex, SegmentSeq, StreamSeq};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

struct Open {
    segment: SegmentIndex,
    next_block: u32,
    runs: Vec<Run>,
}

/// The clean side of the log.
#[derive(Default)]
pub struct Clean {
    open: Option<Open>,
    /// A full segment whose footer is not on its way yet.
    sealed: Option<(SegmentIndex, Vec<Run>)>,
    fifo: VecDeque<SegmentIndex>,
    retired: Vec<SegmentIndex>,
    /// Segments that are not back in use: filling, clean, retired or dead.
    held: usize,
    /// Of these, retired or dead.
    leaving: usize,
    /// A fill waits for a segment, and gets one only when another leaves.
    starved: bool,
}

/// Where a record of clean blocks goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillPlace {
    pub segment: SegmentIndex,
    pub life: Life,
    /// Its header; the blocks follow.
    pub block: u32,
}

impl Log {
    /// Ready segments that writes, evacuation and the streams should find.
    pub(super) fn low_water(&self) -> usize {
        let part = self.segments.len() / 16;
        part.clamp(super::space::SEGMENTS_RESERVED + 2, 64)
            .max(self.ready_wanted)
    }

    fn spare(&self) -> usize {
        (self.low_water() / 2).max(2)
    }

    /// Segments that clean data could give back.
    pub(super) fn clean_held(&self) -> usize {
        self.clean.held
    }

    /// How many blocks the next record can take. `None` where there is no segment for it now.
    pub fn fill_room(&mut self, segments_max: usize) -> Option<usize> {
        if self.clean.open.is_none() {
            self.open_fill(segments_max)?;
        }
        let open = self.clean.open.as_ref().expect("just opened");
        let left = body_blocks(self.geometry) - open.next_block;
        assert!(left >= 2, "a full segment was sealed");
        Some((left as usize - 1).min(RECORD_BLOCKS_MAX))
    }

    fn open_fill(&mut self, segments_max: usize) -> Option<()> {
        if self.clean.sealed.is_some() || self.unfinished > 0 {
            return None;
        }
        let floor = match self.has_unwritten_segment() {
            true => super::space::READY_WANTED.max(self.ready_wanted),
            false => self.low_water() + self.spare(),
        };
        let room = self.ready.len() > floor;
        let allowed = self.clean.held < segments_max;
        // While some segments were never used the next one is on its way.
        self.clean.starved = !allowed || (!room && !self.has_unwritten_segment());
        if !room || !allowed {
            return None;
        }
        let index = self.ready.pop_front().expect("there are more than enough");
        let seq = self.segment_seq_next;
        self.segment_seq_next = SegmentSeq(seq.0 + 1);
        let segment = &mut self.segments[index.0 as usize];
        assert!(
            segment.state == SegmentState::Ready && segment.live == 0 && segment.pins == 0,
            "nothing is left of its former life"
        );
        assert!(
            self.clean.open.is_none() && self.clean.leaving <= self.clean.held,
            "one segment is filled at a time"
        );
        *segment = Segment::empty(SegmentState::Filling);
        segment.seq = seq;
        segment.sums = alloc::vec![0; body_blocks(self.geometry) as usize];
        self.clean.held += 1;
        self.clean.open = Some(Open {
            segment: index,
            next_block: 0,
            runs: Vec::new(),
        });
        Some(())
    }

    /// Takes the place of a record with these runs, whose slots are counted from its first block.
    /// The segment is pinned until [`Log::unpin`].
    pub fn place_fill(&mut self, runs: &mut [Run], sums: &[u32]) -> FillPlace {
        let body = body_blocks(self.geometry);
        let runs_left = runs_max(self.geometry);
        let open = self.clean.open.as_mut().expect("there was room");
        let (index, block) = (open.segment, open.next_block);
        open.next_block += 1 + sums.len() as u32;
        assert!(open.next_block <= body, "a record lies in one segment");
        let segment = &mut self.segments[index.0 as usize];
        assert!(segment.state == SegmentState::Filling && !sums.is_empty());
        segment.pins += 1;
        let first = block as usize + 1;
        segment.sums[first..first + sums.len()].copy_from_slice(sums);
        for run in runs.iter_mut() {
            run.slot += block + 1;
        }
        assert!(
            runs.first().is_none_or(|run| run.slot == block + 1),
            "the blocks lie behind their header"
        );
        open.runs.extend_from_slice(runs);
        let life = Life {
            cache: self.cache,
            incarnation: self.incarnation,
            segment_seq: segment.seq.0,
        };
        if open.next_block + 2 > body || open.runs.len() + RECORD_BLOCKS_MAX > runs_left {
            self.seal_fill();
        }
        FillPlace {
            segment: index,
            life,
            block,
        }
    }

    /// Nothing more goes into the open segment; its footer is due.
    pub fn seal_fill(&mut self) {
        let Some(open) = self.clean.open.take() else {
            return;
        };
        assert!(self.clean.sealed.is_none(), "one footer is due at a time");
        let segment = &mut self.segments[open.segment.0 as usize];
        assert!(segment.state == SegmentState::Filling);
        segment.state = SegmentState::Clean;
        self.clean.fifo.push_back(open.segment);
        self.clean.sealed = Some((open.segment, open.runs));
    }

    pub fn fill_footer_due(&self) -> bool {
        self.clean.sealed.is_some()
    }

    /// The footer of the sealed segment, and where it goes; the segment is pinned. `None` if it
    /// was retired meanwhile.
    pub fn take_fill_footer(&mut self) -> Option<(SegmentIndex, Vec<u8>)> {
        let (index, runs) = self.clean.sealed.take()?;
        Some((index, self.fill_footer_of(index, runs)?))
    }

    /// Full segments, whose footers can be written anew.
    pub fn clean_segments(&self) -> Vec<SegmentIndex> {
        self.clean.fifo.iter().copied().collect()
    }

    /// A footer with these runs for a full segment, which is pinned. `None` if it was retired.
    pub fn fill_footer_of(&mut self, index: SegmentIndex, runs: Vec<Run>) -> Option<Vec<u8>> {
        let segment = &mut self.segments[index.0 as usize];
        if segment.state != SegmentState::Clean {
            return None;
        }
        segment.pins += 1;
        let life = Life {
            cache: self.cache,
            incarnation: self.incarnation,
            segment_seq: segment.seq.0,
        };
        let sums = segment.sums.clone();
        Some(FillFooter { life, runs, sums }.encode())
    }

    /// Whether lines may point into the segment.
    pub fn is_clean(&self, index: SegmentIndex) -> bool {
        let state = self.segments[index.0 as usize].state;
        matches!(state, SegmentState::Filling | SegmentState::Clean)
    }

    /// Takes over a segment that recovery found; oldest first.
    pub fn adopt_fill(&mut self, index: SegmentIndex, seq: SegmentSeq, sums: Vec<u32>) {
        let segment = &mut self.segments[index.0 as usize];
        assert_eq!(segment.state, SegmentState::Ready, "found once");
        assert_eq!(sums.len(), body_blocks(self.geometry) as usize);
        *segment = Segment::empty(SegmentState::Clean);
        segment.seq = seq;
        segment.sums = sums;
        self.clean.held += 1;
        self.clean.fifo.push_back(index);
    }

    /// Writes may soon wait for what clean data holds.
    pub fn is_pressed(&self) -> bool {
        self.ready.len() < self.low_water() && !self.has_unwritten_segment()
    }

    /// How many segments clean data should give back now: for writes, which come first, or for
    /// newer clean data.
    pub fn clean_excess(&self) -> usize {
        let clean = &self.clean;
        assert!(clean.leaving <= clean.held, "only what is held leaves");
        if clean.held == clean.leaving {
            return 0;
        }
        let pool = match self.has_unwritten_segment() {
            true => 0,
            false => self.low_water() + self.spare(),
        };
        let short = pool.saturating_sub(self.ready.len() + clean.leaving);
        let turn = match clean.starved && clean.leaving == 0 {
            true => self.spare().min(clean.held / 2).max(1),
            false => 0,
        };
        short.max(turn).min(clean.held - clean.leaving)
    }

    /// Takes the oldest segment out of the clean ones. Its lines are to be dropped at once.
    pub fn retire_oldest(&mut self) -> Option<SegmentIndex> {
        if self.clean.fifo.is_empty() {
            self.seal_fill();
        }
        let index = self.clean.fifo.pop_front()?;
        let segment = &mut self.segments[index.0 as usize];
        assert_eq!(segment.state, SegmentState::Clean);
        segment.state = SegmentState::Retired;
        self.clean.retired.push(index);
        self.clean.leaving += 1;
        assert!(
            self.clean.leaving <= self.clean.held,
            "only what is held leaves"
        );
        self.clean.starved = false;
        Some(index)
    }

    /// Retired segments that nobody reads any more are dead. True if there are new ones.
    pub fn bury_retired(&mut self) -> bool {
        let segments = &mut self.segments;
        let before = self.clean.retired.len();
        self.clean.retired.retain(|index| {
            let segment = &mut segments[index.0 as usize];
            assert!(segment.state == SegmentState::Retired && segment.live == 0);
            if segment.pins == 0 {
                segment.state = SegmentState::Dead;
                segment.dead_after = StreamSeq(0);
                segment.was_clean = true;
            }
            segment.pins > 0
        });
        self.clean.retired.len() < before
    }

    /// A dead clean segment is back in use.
    pub(super) fn clean_freed(&mut self) {
        assert!(self.clean.leaving > 0, "what is free has left before");
        self.clean.held -= 1;
        self.clean.leaving -= 1;
        assert!(self.clean.leaving <= self.clean.held);
    }

    /// Where a block of the log lies, counted from its first one.
    pub fn block_addr(block: u32) -> LogAddr {
        LogAddr(u64::from(block) * BLOCK_SECTORS)
    }
}
