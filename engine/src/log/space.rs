//! Segments: opening, preparing, footers, death, and their return to use.
//!
//! Always true: of the ready segments the last [`SEGMENTS_RESERVED`] are opened for evacuation
//! only, so that making room never waits for room. What may be dirty altogether is bounded below
//! what evacuation can compact into the rest.

use super::{Log, SegmentState, StreamKind};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::format::checkpoint::SegmentRecord;
use crate::format::footer::{Footer, FooterEntry};
use crate::format::record::{EntryKind, STREAM_FILL};
use crate::map::Content;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::scratch::Scratch;
use crate::snapshot::SegmentCounts;
use crate::types::{
    BLOCK_SECTORS, ChunkIndex, Geometry, LogAddr, SegmentIndex, SegmentSeq, StreamSeq, Time,
};
use alloc::vec::Vec;

/// Segments that only evacuation may open.
pub const SEGMENTS_RESERVED: usize = 2;
/// Segments prepared ahead of use.
pub(super) const READY_WANTED: usize = 4;

/// How full the log is, in blocks that extents keep alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    pub live: u64,
    /// What all volumes together may keep alive.
    pub capacity: u64,
}

/// A segment as recovery found it, complete on the device.
pub struct Adopted {
    pub index: SegmentIndex,
    pub stream: StreamKind,
    pub seq: SegmentSeq,
    pub first_stream_seq: StreamSeq,
    pub last_stream_seq: StreamSeq,
    pub sums: Vec<u32>,
    pub settled: bool,
}

impl Log {
    pub fn gauge(&self) -> Gauge {
        Gauge {
            live: self.live_total,
            capacity: self.geometry.dirty_blocks_max(),
        }
    }

    pub(super) fn open_segment(&mut self, kind: StreamKind, evacuating: bool) -> Option<()> {
        let free_for_all = evacuating || has(Bug::OpenReserve);
        let reserve = if free_for_all { 0 } else { SEGMENTS_RESERVED };
        if self.ready.len() <= reserve {
            return None;
        }
        let index = self.ready.pop_front()?;
        let seq = self.segment_seq_next;
        self.segment_seq_next = SegmentSeq(seq.0 + 1);
        let segment = &mut self.segments[index.0 as usize];
        assert_eq!(
            segment.state,
            SegmentState::Ready,
            "only ready segments are opened"
        );
        assert!(
            segment.live == 0 && segment.pins == 0,
            "nothing is left of its former life"
        );
        segment.state = SegmentState::Open;
        segment.stream = kind.stored();
        segment.seq = seq;
        segment.first_stream_seq = StreamSeq(0);
        segment.last_stream_seq = StreamSeq(0);
        segment.unwritten_chunks = 0;
        segment.stuck_until = Time(0);
        segment.settled = false;
        segment.entries.clear();
        segment.sums.clear();
        self.streams[kind as usize].segment = Some(index);
        Some(())
    }

    pub(super) fn seal_segment(&mut self, kind: StreamKind) {
        let stream = &mut self.streams[kind as usize];
        assert!(stream.open.is_none(), "its last chunk is closed first");
        let Some(index) = stream.segment.take() else {
            return;
        };
        let segment = &mut self.segments[index.0 as usize];
        assert!(
            segment.state == SegmentState::Open,
            "only open segments are sealed"
        );
        segment.state = SegmentState::Sealed;
        self.footer_if_due(index);
    }

    pub(super) fn footer_if_due(&mut self, index: SegmentIndex) {
        let segment = &self.segments[index.0 as usize];
        if segment.state == SegmentState::Sealed && segment.unwritten_chunks == 0 {
            self.footers_due.push(index);
        }
    }

    /// Writes footers that are due, prepares segments, finds dead ones.
    pub fn pump_space(&mut self, cx: &mut Cx<'_>, scratch: &mut Scratch) {
        while let Some(index) = self.footers_due.last().copied() {
            if self.segments[index.0 as usize].footer_in_flight {
                self.footers_due.pop();
                continue;
            }
            if !self.write_footer(cx, scratch, index) {
                break;
            }
            self.footers_due.pop();
        }
        // One more than writes should find is for clean blocks.
        if self.ready.len() <= READY_WANTED.max(self.ready_wanted)
            && !self.preparing
            && !self.is_backing_off()
        {
            self.prepare(cx, scratch);
        }
        let mut at = 0;
        let whole = self.is_whole() || has(Bug::DieOfUnfinished);
        while at < self.maybe_dead.len() && whole {
            let index = self.maybe_dead[at];
            let newest = self.newest();
            let segment = &mut self.segments[index.0 as usize];
            let emptied = segment.state == SegmentState::Footered && segment.live == 0;
            if emptied && segment.pins == 0 {
                assert!(
                    segment.unwritten_chunks == 0 && !segment.footer_in_flight,
                    "nothing is written to a dead segment"
                );
                segment.state = SegmentState::Dead;
                segment.dead_after = newest;
            } else if emptied {
                at += 1;
                continue;
            }
            self.maybe_dead.swap_remove(at);
        }
    }

    /// What is not live any more is not needed any more, also by a recovery.
    pub(super) fn is_whole(&self) -> bool {
        self.unfinished == 0 && (self.given_up == 0 || has(Bug::DieOfGivenUp))
    }

    fn write_footer(
        &mut self,
        cx: &mut Cx<'_>,
        scratch: &mut Scratch,
        index: SegmentIndex,
    ) -> bool {
        let Some(piece) = scratch.take_piece() else {
            return false;
        };
        let bytes = self.footer_of(index).encode();
        assert!(
            bytes.len() as u64 <= self.geometry.chunk_bytes(),
            "a footer fits its chunk"
        );
        let place = scratch.piece(piece);
        cx.memory.store(place, &bytes);
        let segment = &mut self.segments[index.0 as usize];
        assert!(
            segment.state == SegmentState::Sealed && segment.unwritten_chunks == 0,
            "a footer speaks of what is on the device"
        );
        segment.footer_in_flight = true;
        segment.pins += 1;
        let at = self.device_at(self.footer_at(index));
        let slices = alloc::vec![Slice {
            place,
            bytes: bytes.len() as u64
        }];
        let pending = Pending::Footer {
            segment: index,
            piece,
        };
        self.counters.write_bytes += bytes.len() as u64;
        cx.transfer(
            pending,
            Purpose::Footer,
            Device::Cache,
            Op::Write,
            at,
            slices,
        );
        true
    }

    /// Where the footer of a segment lies.
    pub fn footer_at(&self, index: SegmentIndex) -> LogAddr {
        let chunk = self.geometry.first_chunk(index).0 + self.geometry.segment_chunks - 1;
        self.geometry.chunk_addr(ChunkIndex(chunk))
    }

    fn footer_of(&mut self, index: SegmentIndex) -> Footer {
        let body = crate::format::footer::body_blocks(self.geometry) as usize;
        let durable_upto = self.durable.0;
        let (cache, incarnation) = (self.cache, self.incarnation);
        let first_chunk = self.geometry.first_chunk(index).0;
        let segment = &mut self.segments[index.0 as usize];
        if has(Bug::ElideAcrossRecords) {
            let chunk =
                |entry: &FooterEntry| first_chunk + entry.block / self.geometry.chunk_blocks;
            let lives = |entry: &FooterEntry| self.chunk_live[chunk(entry) as usize] > 0;
            segment.entries.retain(lives);
        }
        assert!(
            segment.sums.len() <= body,
            "the sums are those of the blocks before the footer"
        );
        segment.sums.resize(body, 0);
        segment
            .entries
            .sort_unstable_by_key(|e| (e.volume, e.span.sector, e.serial));
        Footer {
            cache,
            stream: segment.stream.code(),
            incarnation,
            segment_seq: segment.seq.0,
            first_stream_seq: segment.first_stream_seq.0,
            last_stream_seq: segment.last_stream_seq.0,
            durable_upto,
            entries: segment.entries.clone(),
            sums: segment.sums.clone(),
        }
    }

    pub fn footer_done(
        &mut self,
        scratch: &mut Scratch,
        index: SegmentIndex,
        piece: u32,
        ok: bool,
    ) {
        scratch.free_piece(piece);
        self.unpin(index);
        let segment = &mut self.segments[index.0 as usize];
        assert!(
            segment.footer_in_flight && segment.state == SegmentState::Sealed,
            "one footer of a segment is in flight"
        );
        segment.footer_in_flight = false;
        if !ok {
            self.counters.cache_errors += 1;
            self.footers_failed.push(index);
            return;
        }
        segment.state = SegmentState::Footered;
        if segment.live == 0 {
            self.maybe_dead.push(index);
        }
        self.footer_written(index);
    }

    /// A sync covers the footer: nobody needs its entries in memory any more.
    pub(super) fn footer_synced(&mut self, index: SegmentIndex) {
        let segment = &mut self.segments[index.0 as usize];
        if segment.state == SegmentState::Footered || segment.state == SegmentState::Dead {
            segment.entries = Vec::new();
        }
    }

    /// A failed sync may have taken the footer along: it is written again.
    pub(super) fn footer_again(&mut self, index: SegmentIndex) {
        let segment = &mut self.segments[index.0 as usize];
        let there = segment.state == SegmentState::Footered && !segment.entries.is_empty();
        if there && !has(Bug::ForgetFooter) {
            mark(Mark::FooterAgain);
            assert!(!segment.footer_in_flight, "the one before has ended");
            segment.state = SegmentState::Sealed;
            self.footers_due.push(index);
        }
    }

    /// Footers that could not be written are due again.
    pub fn retry_footers(&mut self) {
        self.footers_due.append(&mut self.footers_failed);
    }

    fn prepare(&mut self, cx: &mut Cx<'_>, scratch: &mut Scratch) {
        assert!(!self.preparing, "one segment is prepared at a time");
        let unwritten = self
            .segments
            .iter()
            .position(|s| s.state == SegmentState::Unwritten);
        let Some(index) = unwritten else { return };
        let Some(piece) = scratch.take_piece() else {
            return;
        };
        let index = SegmentIndex(index as u32);
        let place = scratch.piece(piece);
        let bytes = self.geometry.chunk_bytes();
        cx.memory.zero(place, bytes);
        self.segments[index.0 as usize].state = SegmentState::Preparing;
        self.preparing = true;
        let at = self.device_at(LogAddr(
            u64::from(index.0) * self.geometry.segment_sectors(),
        ));
        let slices = alloc::vec![Slice { place, bytes }; self.geometry.segment_chunks as usize];
        let pending = Pending::Prepare {
            segment: index,
            piece,
        };
        cx.transfer(
            pending,
            Purpose::Prepare,
            Device::Cache,
            Op::Write,
            at,
            slices,
        );
    }

    pub fn prepare_done(
        &mut self,
        cx: &mut Cx<'_>,
        scratch: &mut Scratch,
        index: SegmentIndex,
        piece: u32,
        ok: bool,
    ) {
        scratch.free_piece(piece);
        let segment = &mut self.segments[index.0 as usize];
        assert!(self.preparing && segment.state == SegmentState::Preparing);
        self.preparing = false;
        if ok {
            segment.state = SegmentState::Ready;
            self.ready.push_back(index);
        } else {
            segment.state = SegmentState::Unwritten;
            self.counters.cache_errors += 1;
            self.back_off(cx);
        }
    }

    /// Takes over a segment that recovery found; extents are accounted afterwards.
    pub fn adopt(&mut self, adopted: Adopted) {
        let segment = &mut self.segments[adopted.index.0 as usize];
        assert!(
            segment.state == SegmentState::Ready,
            "a segment is found once"
        );
        assert!(
            adopted.sums.len() == crate::format::footer::body_blocks(self.geometry) as usize,
            "each block before the footer has its sum"
        );
        segment.state = SegmentState::Footered;
        segment.stream = adopted.stream;
        segment.seq = adopted.seq;
        segment.first_stream_seq = adopted.first_stream_seq;
        segment.last_stream_seq = adopted.last_stream_seq;
        segment.sums = adopted.sums;
        segment.settled = adopted.settled;
        self.maybe_dead.push(adopted.index);
    }

    /// After recovery: all segments that were written once and hold nothing are ready.
    pub fn collect_ready(&mut self) {
        assert!(self.ready.is_empty(), "they are collected once");
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.state == SegmentState::Ready {
                self.ready.push_back(SegmentIndex(index as u32));
            }
        }
    }

    /// Segments that a checkpoint written now would free.
    pub fn freeable(&self) -> usize {
        let dead = |s: &&super::Segment| s.state == SegmentState::Dead && self.is_replaced(s);
        self.segments.iter().filter(dead).count()
    }

    /// Whether what a dead segment held is durable elsewhere, or not wanted any more.
    fn is_replaced(&self, segment: &super::Segment) -> bool {
        segment.dead_after <= self.durable || has(Bug::FreeBeforeDurable)
    }

    /// Whether a write of so many blocks can be staged to its end, whatever else happens. What
    /// it needs is remembered, so that room is made for it.
    pub fn has_room(&mut self, kind: StreamKind, blocks: u64) -> bool {
        let geometry = self.geometry;
        let stream = &self.streams[kind as usize];
        let in_chunk = stream.open.as_ref().map_or(0, |open| {
            u64::from(geometry.chunk_blocks - open.next_block).saturating_sub(2)
        });
        if blocks <= in_chunk {
            return true;
        }
        // A header in each chunk, and perhaps a block cut in two by its end.
        let wanted = blocks.div_ceil(u64::from(geometry.chunk_blocks) - 2) + 1;
        let per_segment = u64::from(geometry.segment_chunks - 1);
        let opened = stream.segment.map_or(per_segment, |segment| {
            let sums = self.segments[segment.0 as usize].sums.len() as u64;
            sums / u64::from(geometry.chunk_blocks)
        });
        let ready = self.ready.len().saturating_sub(SEGMENTS_RESERVED) as u64;
        // The last chunks of the open segment are not counted on where its footer may fill up.
        let crowded = stream.segment.is_some_and(|segment| {
            self.segments[segment.0 as usize].entries.len() * 2
                > crate::format::footer::entries_max(geometry)
        });
        assert!(opened <= per_segment, "the last chunk is for the footer");
        let left = if crowded { 0 } else { per_segment - opened };
        let enough = left + ready * per_segment >= wanted;
        let segments = wanted.div_ceil(per_segment) as usize;
        self.ready_wanted = if enough {
            0
        } else {
            segments + SEGMENTS_RESERVED + 1
        };
        enough
    }

    /// Room is short: fewer ready segments than evacuation and the streams should have.
    pub fn is_low(&self) -> bool {
        // What clean data holds is room: it is given back first.
        self.ready.len() + self.clean_held() < self.low_water() && !self.has_unwritten_segment()
    }

    pub(super) fn has_unwritten_segment(&self) -> bool {
        let last = self.segments.last();
        last.is_some_and(|s| s.state == SegmentState::Unwritten)
    }

    pub fn has_dead(&self) -> bool {
        self.segments.iter().any(|s| s.state == SegmentState::Dead)
    }

    /// The segment table of a checkpoint, and the segments it lists as free.
    pub fn table(&self) -> (Vec<SegmentRecord>, Vec<SegmentIndex>) {
        let (mut live, mut freed) = (Vec::new(), Vec::new());
        for (index, segment) in self.segments.iter().enumerate() {
            match segment.state {
                SegmentState::Unwritten | SegmentState::Preparing | SegmentState::Ready => {}
                SegmentState::Dead if self.is_replaced(segment) => {
                    freed.push(SegmentIndex(index as u32));
                }
                state => live.push(SegmentRecord {
                    index: index as u32,
                    seq: segment.seq.0,
                    first_stream_seq: segment.first_stream_seq.0,
                    last_stream_seq: match state {
                        SegmentState::Open => u64::MAX,
                        _ => segment.last_stream_seq.0,
                    },
                    stream: match state {
                        SegmentState::Filling | SegmentState::Clean | SegmentState::Retired => {
                            STREAM_FILL
                        }
                        _ => segment.stream.code(),
                    },
                    settled: segment.settled,
                }),
            }
        }
        (live, freed)
    }

    pub fn unwritten_from(&self) -> u32 {
        let unwritten = |s: &super::Segment| {
            matches!(s.state, SegmentState::Unwritten | SegmentState::Preparing)
        };
        let used = self.segments.iter().rposition(|s| !unwritten(s));
        used.map_or(0, |at| at as u32 + 1)
    }

    pub fn segment_seq_next(&self) -> SegmentSeq {
        self.segment_seq_next
    }

    /// A durable checkpoint lists these segments as free.
    pub fn free(&mut self, freed: &[SegmentIndex]) {
        for &index in freed {
            let segment = &mut self.segments[index.0 as usize];
            assert_eq!(
                segment.state,
                SegmentState::Dead,
                "only dead segments are freed"
            );
            assert!(segment.live == 0 && segment.pins == 0);
            segment.state = SegmentState::Ready;
            segment.sums = Vec::new();
            if core::mem::take(&mut segment.was_clean) {
                self.clean_freed();
            }
            self.ready.push_back(index);
            mark(Mark::LogWrapped);
            self.counters.segments_reused += 1;
            // A slot may still mirror a chunk of the former life.
            let first = self.geometry.first_chunk(index).0;
            for chunk in first..first + self.geometry.segment_chunks {
                assert!(self.chunk_live[chunk as usize] == 0, "nothing in it lives");
                self.forget_mirror(ChunkIndex(chunk));
            }
        }
    }

    fn forget_mirror(&mut self, chunk: ChunkIndex) {
        let Some(slot_at) = self.chunk_slot[chunk.0 as usize].checked_sub(1) else {
            return;
        };
        self.chunk_slot[chunk.0 as usize] = 0;
        let slot = &mut self.slots[slot_at as usize];
        assert!(
            slot.chunk == Some(chunk),
            "a chunk and its slot name each other"
        );
        assert!(
            slot.reusable && slot.in_flight == 0,
            "a freed segment is on the device"
        );
        let stream = &mut self.streams[slot.stream as usize];
        stream.reusable.retain(|slot| slot.0 != slot_at);
        stream.free_slots.push(crate::types::SlotIndex(slot_at));
    }

    /// The segment that is cheapest to empty: the fewest live blocks, and not one that was tried in
    /// vain just now.
    pub fn victim(&self, now: Time) -> Option<SegmentIndex> {
        let body = crate::format::footer::body_blocks(self.geometry);
        let candidates = self.segments.iter().enumerate().filter(|(_, s)| {
            let partly = s.live > 0 && s.live < body * 9 / 10;
            s.state == SegmentState::Footered && now >= s.stuck_until && partly
        });
        let (index, _) = candidates.min_by_key(|(_, s)| s.live)?;
        Some(SegmentIndex(index as u32))
    }

    pub fn live_of(&self, index: SegmentIndex) -> u32 {
        self.segments[index.0 as usize].live
    }

    /// Whether the footer of the segment is on the device and counts.
    pub fn is_footered(&self, index: SegmentIndex) -> bool {
        self.segments[index.0 as usize].state == SegmentState::Footered
    }

    /// How many segments have one.
    pub fn footered(&self) -> u64 {
        let all = self.segments.iter();
        all.filter(|it| it.state == SegmentState::Footered).count() as u64
    }

    pub fn mark_stuck(&mut self, index: SegmentIndex, until: Time) {
        self.segments[index.0 as usize].stuck_until = until;
    }

    pub fn counts(&self) -> SegmentCounts {
        let mut counts = SegmentCounts::default();
        for segment in &self.segments {
            match (segment.state, segment.stream) {
                (SegmentState::Unwritten | SegmentState::Preparing | SegmentState::Ready, _) => {
                    counts.free += 1;
                }
                (SegmentState::Open, StreamKind::Writes) => counts.write += 1,
                (SegmentState::Filling | SegmentState::Clean | SegmentState::Retired, _) => {
                    counts.fill += 1;
                }
                (_, StreamKind::Overlay) => counts.overlay += 1,
                _ => counts.sealed += 1,
            }
        }
        counts
    }

    /// Slots in all and slots that mirror a chunk which is not safe on the device.
    pub fn slots_of(&self, kind: StreamKind) -> (u32, u32) {
        let mine = self.slots.iter().filter(|slot| slot.stream == kind).count();
        let stream = &self.streams[kind as usize];
        let idle = stream.free_slots.len() + stream.reusable.len();
        assert!(idle <= mine, "a slot is idle once");
        (mine as u32, (mine - idle) as u32)
    }

    /// Memory of the tables: checksums, chunk index, segments.
    pub fn index_bytes(&self) -> u64 {
        let sums: usize = self.segments.iter().map(|s| s.sums.capacity() * 4).sum();
        (sums + self.chunk_slot.len() * 8 + self.segments.len() * size_of::<super::Segment>())
            as u64
    }
}

/// Where the content of a footer's entry lies.
pub fn content_of(geometry: Geometry, segment: SegmentIndex, entry: &FooterEntry) -> Content {
    let first = LogAddr(u64::from(segment.0) * geometry.segment_sectors());
    let block = first.plus(u64::from(entry.block) * BLOCK_SECTORS);
    match entry.kind {
        EntryKind::Write => {
            let phase = entry.inline.map(u64::from);
            Content::Data(block.plus(phase.unwrap_or(entry.span.sector % BLOCK_SECTORS)))
        }
        EntryKind::Zero { allocate } => Content::Zero {
            header: block,
            allocate,
        },
    }
}
