//! The log: segments of chunks on the cache device, mirrored at their tail by slots of the stage.
//!
//! Owns where every block of the log is, what it still keeps alive, and its checksum. One chunk
//! of an open segment is open per stream; a slot holds exactly the bytes that the chunk will have
//! on the device, so writing is one copy and reading back is one table look-up.
//!
//! Invariant: a serial is given only inside [`Log::append`], after its bytes and its entry are in
//! the stage. Invariant: a slot is used again only when its chunk is on the device (of the write
//! stream: covered by a sync). Invariant: a segment is used again only when nothing in it lives,
//! what replaced it is durable, no request to it is in flight, and a durable checkpoint lists it
//! as free.
//!
//! ```text
//! segment:  Unwritten ─prepare─▶ Ready ─open─▶ Open ─full─▶ Sealed ─footer─▶ Footered
//!                               ▲                                            │ nothing lives
//!                               └────────── checkpoint ── Dead ◀─────────────┘
//! ```
//!
//! Segments of clean blocks go another way, see `clean`.

mod append;
mod clean;
#[cfg(test)]
mod model;
mod quota;
mod space;
#[cfg(test)]
mod tests;
mod write;

pub use crate::format::record::StreamKind;
#[cfg(test)]
use append::Appended;
pub use append::Item;
use append::OpenRecord;
pub use quota::{QuotaOwner, Usage};
pub use space::{Adopted, content_of};
pub use write::Waiter;

use crate::adversary::{Bug, has};
use crate::format::footer::FooterEntry;
use crate::format::stage::{self, StageSlot};
use crate::map::Change;
use crate::memory::{Area, Place};
use crate::outbox::Cx;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, ChunkIndex, Geometry, LogAddr, SECTOR_BYTES, SegmentIndex,
    SegmentSeq, SlotIndex, StreamSeq, Time, Uuid,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    /// Never written: it is zeroed before its first use, because a sync into merely allocated
    /// blocks costs twice.
    Unwritten,
    Preparing,
    Ready,
    Open,
    Sealed,
    Footered,
    /// Takes clean blocks.
    Filling,
    /// Full of clean blocks, which can be read until it is needed otherwise.
    Clean,
    /// No line points to it any more; reads of it may still be under way.
    Retired,
    Dead,
}

struct Segment {
    state: SegmentState,
    stream: StreamKind,
    seq: SegmentSeq,
    first_stream_seq: StreamSeq,
    last_stream_seq: StreamSeq,
    /// Blocks that extents keep alive, at most.
    live: u32,
    /// Requests to the device in flight, and fetches that still need the bytes.
    pins: u32,
    /// Chunks that are open or not yet on the device.
    unwritten_chunks: u32,
    footer_in_flight: bool,
    /// Its footer was made by recovery and alone says which of its records count.
    settled: bool,
    /// Not all of it could be moved: evacuating it is tried again then, because a device may give
    /// later what it does not give now.
    stuck_until: Time,
    /// It died holding clean blocks.
    was_clean: bool,
    /// The newest record when it died; what replaced its content is durable with it.
    dead_after: StreamSeq,
    /// Entries, until the footer is written.
    entries: Vec<FooterEntry>,
    sums: Vec<u32>,
}

struct Slot {
    stream: StreamKind,
    chunk: Option<ChunkIndex>,
    /// No more records will be added.
    closed: bool,
    /// Blocks at its start that belong to sealed records.
    sealed: u32,
    issued: u32,
    written: u32,
    synced: u32,
    in_flight: u32,
    /// Of those, the ones that were issued before the last failure: they prove nothing any more,
    /// and nothing is written over them.
    late: u32,
    /// Its segment no longer waits for this chunk.
    counted: bool,
    /// It stands in the queue of slots that may be used again.
    reusable: bool,
    /// It goes to the device as soon as it is closed.
    spilling: bool,
    /// Live blocks of overlays in it, until it is safe on the device.
    quota_owners: Vec<(QuotaOwner, u64)>,
}

struct OpenChunk {
    slot: SlotIndex,
    chunk: ChunkIndex,
    next_block: u32,
    record: Option<OpenRecord>,
}

struct Stream {
    segment: Option<SegmentIndex>,
    open: Option<OpenChunk>,
    next_seq: StreamSeq,
    free_slots: Vec<SlotIndex>,
    /// Slots whose chunk is safe on the device, oldest first: a read cache until they are needed.
    reusable: VecDeque<SlotIndex>,
    /// Overlay: closed slots that are not on the device, oldest first.
    unspilled: VecDeque<SlotIndex>,
    /// With fewer slots at hand than this the stream makes some.
    slots_low: usize,
}

/// A sealed record of the write stream that is not durable yet.
struct Tail {
    seq: StreamSeq,
    slot: SlotIndex,
    end_block: u32,
    written: bool,
}

pub struct Log {
    pub geometry: Geometry,
    cache: Uuid,
    log_at: u64,
    pub incarnation: u64,
    /// Small writes lie in the header blocks of their records.
    inline_records: bool,
    stage_slots_total: u32,
    segments: Vec<Segment>,
    /// Slot + 1 that mirrors a chunk, or 0.
    chunk_slot: Vec<u32>,
    chunk_live: Vec<u32>,
    slots: Vec<Slot>,
    streams: [Stream; 3],
    usages: BTreeMap<QuotaOwner, Usage>,
    quota_owners: u32,
    ready: VecDeque<SegmentIndex>,
    preparing: bool,
    /// Ready segments that a waiting write needs.
    ready_wanted: usize,
    footers_due: Vec<SegmentIndex>,
    footers_failed: Vec<SegmentIndex>,
    /// Segments whose last live block went; looked at once per step.
    maybe_dead: Vec<SegmentIndex>,
    segment_seq_next: SegmentSeq,
    tail: VecDeque<Tail>,
    pub durable: StreamSeq,
    announced: StreamSeq,
    write: write::WriteState,
    live_total: u64,
    clean: clean::Clean,
    /// Writes of which some entries are staged and some are not. While there is one, nothing
    /// dies: what the whole write would replace is still needed if the rest never comes.
    pub unfinished: u32,
    /// Writes that stay in part, as the newest of their volumes; nothing dies for the same reason.
    pub given_up: u32,
    pub counters: Counters,
}

/// Counted since the engine started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub cache_errors: u64,
    pub segments_reused: u64,
    pub evacuated_bytes: u64,
    pub write_bytes: u64,
    pub writes: u64,
    pub write_ns: u64,
}

/// What recovery knows when the log goes into service.
pub struct Start {
    pub cache: Uuid,
    pub geometry: Geometry,
    pub log_at: u64,
    pub incarnation: u64,
    pub stream_seq_next: u64,
    pub segment_seq_next: u64,
    pub unwritten_from: u32,
    pub stage_slots: u32,
    pub overlay_slots: u32,
    pub inline_records: bool,
}

impl Segment {
    /// A segment without data.
    fn empty(state: SegmentState) -> Segment {
        Segment {
            state,
            stream: StreamKind::Writes,
            seq: SegmentSeq(0),
            first_stream_seq: StreamSeq(0),
            last_stream_seq: StreamSeq(0),
            live: 0,
            pins: 0,
            unwritten_chunks: 0,
            footer_in_flight: false,
            settled: false,
            stuck_until: Time(0),
            was_clean: false,
            dead_after: StreamSeq(0),
            entries: Vec::new(),
            sums: Vec::new(),
        }
    }
}

impl Slot {
    /// A slot that mirrors nothing.
    fn empty(stream: StreamKind) -> Slot {
        Slot {
            stream,
            chunk: None,
            closed: false,
            sealed: 0,
            issued: 0,
            written: 0,
            synced: 0,
            in_flight: 0,
            late: 0,
            counted: false,
            reusable: false,
            spilling: false,
            quota_owners: Vec::new(),
        }
    }
}

impl Log {
    /// A log without data: recovery adds the segments it found by [`Log::adopt`].
    pub fn new(start: Start) -> Log {
        let geometry = start.geometry;
        let slots_total = start.stage_slots + start.overlay_slots;
        let segment = |index: u32| {
            Segment::empty(if index < start.unwritten_from {
                SegmentState::Ready
            } else {
                SegmentState::Unwritten
            })
        };
        let slot = |index: u32| {
            Slot::empty(if index < start.stage_slots {
                StreamKind::Writes
            } else {
                StreamKind::Overlay
            })
        };
        let stream = |slots: core::ops::Range<u32>| Stream {
            segment: None,
            open: None,
            next_seq: StreamSeq(start.stream_seq_next),
            slots_low: (slots.len() / 4).clamp(2, 16),
            free_slots: slots.rev().map(SlotIndex).collect(),
            reusable: VecDeque::new(),
            unspilled: VecDeque::new(),
        };
        Log {
            geometry,
            cache: start.cache,
            log_at: start.log_at,
            incarnation: start.incarnation,
            inline_records: start.inline_records,
            stage_slots_total: slots_total,
            segments: (0..geometry.segments).map(segment).collect(),
            chunk_slot: alloc::vec![0; geometry.chunks() as usize],
            chunk_live: alloc::vec![0; geometry.chunks() as usize],
            slots: (0..slots_total).map(slot).collect(),
            streams: [
                stream(0..start.stage_slots),
                stream(start.stage_slots..slots_total),
                stream(0..0),
            ],
            usages: BTreeMap::new(),
            quota_owners: 0,
            ready: VecDeque::new(),
            preparing: false,
            ready_wanted: 0,
            footers_due: Vec::new(),
            footers_failed: Vec::new(),
            maybe_dead: Vec::new(),
            segment_seq_next: SegmentSeq(start.segment_seq_next),
            tail: VecDeque::new(),
            durable: StreamSeq(start.stream_seq_next - 1),
            announced: StreamSeq(start.stream_seq_next - 1),
            write: write::WriteState::default(),
            live_total: 0,
            clean: clean::Clean::default(),
            unfinished: 0,
            given_up: 0,
            counters: Counters::default(),
        }
    }

    /// Opens the next chunk of the stream's segment in a slot of its own.
    fn open_chunk(&mut self, cx: &mut Cx<'_>, kind: StreamKind, evacuating: bool) -> Option<()> {
        if !self.has_slot(kind) {
            return None;
        }
        if self.streams[kind as usize].segment.is_none() {
            self.open_segment(kind, evacuating)?;
        }
        let segment_at = self.streams[kind as usize]
            .segment
            .expect("a segment was opened");
        let slot_at = self.take_slot(kind).expect("checked above");
        let segment = &mut self.segments[segment_at.0 as usize];
        let position = segment.sums.len() as u32 / self.geometry.chunk_blocks;
        assert!(
            segment.state == SegmentState::Open && position + 1 < self.geometry.segment_chunks,
            "the last chunk is for the footer"
        );
        let chunk = ChunkIndex(self.geometry.first_chunk(segment_at).0 + position);
        segment
            .sums
            .resize(((position + 1) * self.geometry.chunk_blocks) as usize, 0);
        segment.unwritten_chunks += 1;
        let slot = &mut self.slots[slot_at.0 as usize];
        *slot = Slot {
            chunk: Some(chunk),
            spilling: kind == StreamKind::Spill,
            ..Slot::empty(kind.stored())
        };
        assert_eq!(self.chunk_slot[chunk.0 as usize], 0, "a chunk has one slot");
        self.chunk_slot[chunk.0 as usize] = slot_at.0 + 1;
        let entry = StageSlot {
            incarnation: self.incarnation,
            segment_seq: segment.seq.0,
            chunk,
            stream: kind.code(),
        };
        let entry_at = stage::TABLE_AT + u64::from(slot_at.0) * stage::SLOT_BYTES as u64;
        // The slot names nobody while its first header is blanked: what it mirrored before is
        // safe on the device, and would be looked for here in vain.
        let nobody = [0; stage::SLOT_BYTES];
        if !has(Bug::KeepSlotName) {
            cx.memory.store(Place::new(Area::Stage, entry_at), &nobody);
        }
        let first = stage::slot_at(
            slot_at.0,
            self.stage_slots_total,
            self.geometry.chunk_blocks,
        );
        cx.memory.zero(Place::new(Area::Stage, first), BLOCK_BYTES);
        cx.memory
            .store(Place::new(Area::Stage, entry_at), &entry.encode());
        let stream = &mut self.streams[kind as usize];
        stream.open = Some(OpenChunk {
            slot: slot_at,
            chunk,
            next_block: 0,
            record: None,
        });
        Some(())
    }

    fn has_slot(&self, kind: StreamKind) -> bool {
        let stream = &self.streams[kind.stored() as usize];
        !stream.free_slots.is_empty() || !stream.reusable.is_empty()
    }

    fn take_slot(&mut self, kind: StreamKind) -> Option<SlotIndex> {
        let stream = &mut self.streams[kind.stored() as usize];
        if let Some(slot) = stream.free_slots.pop() {
            let chunk = self.slots[slot.0 as usize].chunk;
            let mirror = chunk.map(|chunk| self.chunk_slot[chunk.0 as usize]);
            assert!(mirror != Some(slot.0 + 1), "a free slot mirrors nothing");
            return Some(slot);
        }
        let slot_at = stream.reusable.pop_front()?;
        let slot = &self.slots[slot_at.0 as usize];
        assert!(
            slot.closed && slot.in_flight == 0,
            "only safe slots are used again"
        );
        let chunk = slot.chunk.expect("a reusable slot mirrors a chunk");
        assert!(
            slot.reusable && self.chunk_slot[chunk.0 as usize] == slot_at.0 + 1,
            "a chunk and its slot name each other"
        );
        self.chunk_slot[chunk.0 as usize] = 0;
        Some(slot_at)
    }

    /// Closes the open chunk; the last one before the footer seals the segment.
    fn close_chunk(&mut self, kind: StreamKind) {
        let Some(open) = self.streams[kind as usize].open.take() else {
            return;
        };
        assert!(
            open.record.is_none(),
            "records are sealed before their chunk is closed"
        );
        let slot = &mut self.slots[open.slot.0 as usize];
        assert!(
            !slot.closed && slot.chunk == Some(open.chunk) && slot.sealed == open.next_block,
            "a chunk is closed once, and all of it is sealed"
        );
        slot.closed = true;
        if kind != StreamKind::Writes {
            self.streams[kind as usize].unspilled.push_back(open.slot);
        }
        let last = open.chunk.0 % self.geometry.segment_chunks + 2 == self.geometry.segment_chunks;
        if last {
            self.seal_segment(kind);
        }
        self.slot_progress(open.slot);
    }

    /// Where the bytes at `addr` lie in the stage, while a slot mirrors them.
    pub fn staged(&self, addr: LogAddr) -> Option<Place> {
        let chunk = self.geometry.chunk_of(addr);
        let slot = self.chunk_slot[chunk.0 as usize].checked_sub(1)?;
        debug_assert!(self.slots[slot as usize].chunk == Some(chunk));
        let at = stage::slot_at(slot, self.stage_slots_total, self.geometry.chunk_blocks);
        let offset = addr.0 - self.geometry.chunk_addr(chunk).0;
        Some(Place::new(Area::Stage, at + offset * SECTOR_BYTES))
    }

    /// Whether what lies at `addr` is in RAM only. What is logged leaves that when a sync covers
    /// it; an overlay, of which nothing is owed to stable media, when it is written.
    pub fn is_staged_only(&self, addr: LogAddr) -> bool {
        let chunk = self.geometry.chunk_of(addr);
        let Some(slot) = self.chunk_slot[chunk.0 as usize].checked_sub(1) else {
            return false;
        };
        let block = (addr.0 - self.geometry.chunk_addr(chunk).0) / BLOCK_SECTORS;
        let slot = &self.slots[slot as usize];
        block
            >= u64::from(match slot.stream {
                StreamKind::Writes => slot.synced,
                StreamKind::Overlay | StreamKind::Spill => slot.written,
            })
    }

    /// Checksum that the block of the log at `addr` must have.
    pub fn sum(&self, addr: LogAddr) -> u32 {
        self.sums(addr, 1)[0]
    }

    /// Checksums of so many blocks from the one at `addr` on, all of one segment.
    pub fn sums(&self, addr: LogAddr, blocks: u64) -> &[u32] {
        let segment = self.geometry.segment_of(addr);
        let first = (addr.block() % self.geometry.segment_blocks()) as usize;
        &self.segments[segment.0 as usize].sums[first..first + blocks as usize]
    }

    /// Byte position of `addr` on the cache device.
    pub fn device_at(&self, addr: LogAddr) -> u64 {
        self.log_at + addr.0 * SECTOR_BYTES
    }

    /// Keeps a segment from being used again while a request to it is in flight.
    pub fn pin(&mut self, addr: LogAddr) -> SegmentIndex {
        let segment = self.geometry.segment_of(addr);
        let pinned = &mut self.segments[segment.0 as usize];
        assert!(
            !matches!(
                pinned.state,
                SegmentState::Unwritten | SegmentState::Preparing | SegmentState::Ready
            ),
            "a segment without content has no requests"
        );
        pinned.pins += 1;
        segment
    }

    pub fn unpin(&mut self, segment: SegmentIndex) {
        let segment = &mut self.segments[segment.0 as usize];
        assert!(segment.pins > 0, "a pin is given back once");
        segment.pins -= 1;
    }

    /// Follows a change of an extent map: what it keeps alive, where, and for which overlay.
    /// Returns the change of the charge in blocks.
    pub fn account(&mut self, quota_owner: QuotaOwner, change: Change) -> i64 {
        let (piece, sign) = match change {
            Change::Added(piece) => (piece, 1),
            Change::Removed(piece) => (piece, -1),
        };
        let charge = piece.content.charge(piece.span);
        let chunk = self.geometry.chunk_of(piece.content.addr());
        self.hold(quota_owner, chunk, charge, sign > 0);
        let segment = &mut self.segments[(chunk.0 / self.geometry.segment_chunks) as usize];
        let chunk_live = &mut self.chunk_live[chunk.0 as usize];
        if sign > 0 {
            assert!(
                matches!(
                    segment.state,
                    SegmentState::Open | SegmentState::Sealed | SegmentState::Footered
                ),
                "what lives lies in a segment with records"
            );
            segment.live += charge;
            *chunk_live += charge;
            self.live_total += u64::from(charge);
        } else {
            assert!(
                segment.live >= charge,
                "only what was counted is taken back"
            );
            segment.live -= charge;
            *chunk_live -= charge;
            self.live_total -= u64::from(charge);
            if segment.live == 0 {
                self.maybe_dead
                    .push(SegmentIndex(chunk.0 / self.geometry.segment_chunks));
            }
        }
        assert!(
            *chunk_live <= segment.live && u64::from(segment.live) <= self.live_total,
            "what lives in a chunk lives in its segment"
        );
        sign * i64::from(charge)
    }

    /// The newest record of the write stream: durable means everything staged so far is.
    pub fn newest(&self) -> StreamSeq {
        StreamSeq(self.streams[StreamKind::Writes as usize].next_seq.0 - 1)
    }
}
