//! Records while they are open: what is appended, where in the stage it goes, and the seal.
//!
//! Always true: bytes and sums of a payload are in the stage before the entry that names them; an
//! item that does not fit is cut, and the caller goes on with the rest; a header block with
//! payload has its sum from the moment it is sealed, when nothing in it changes any more.
//! Deliberately absent: chunks and segments ([`super`]), and when a record is sealed ([`write`]).
//!
//! [`write`]: super::write

use super::{Log, OpenChunk, SegmentState, StreamKind, Tail, space};
use crate::adversary::{Bug, has};
use crate::format::footer::{self, FooterEntry};
use crate::format::record::{self, Entry, EntryKind, Identity, Shape};
use crate::format::stage;
use crate::map::Content;
use crate::memory::{Area, Place};
use crate::outbox::Cx;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, ChunkIndex, EpochNumber, Generation, Geometry, SECTOR_BYTES,
    SegmentIndex, Serial, Span, StreamSeq, Tag, Time, VolumeId,
};

pub(super) struct OpenRecord {
    pub(super) identity: Identity,
    shape: Shape,
    header_block: u32,
    entries: u16,
    payload_blocks: u16,
    /// Sectors of payload in the header block.
    inline_sectors: u64,
    pub(super) opened: Time,
}

impl OpenRecord {
    /// Whether an entry fits, with some of so many sectors of payload; so many blocks are left.
    fn has_room(&self, payload: u64, blocks_left: u32) -> bool {
        let blocks = match payload == 0 || self.takes_inline(payload) {
            true => 0,
            false => 1,
        };
        usize::from(self.entries) < self.shape.entries_max()
            && usize::from(self.payload_blocks) + blocks <= self.shape.sums_max()
            && blocks as u32 <= blocks_left
    }

    /// Whether so much payload fits into the header block still.
    fn takes_inline(&self, sectors: u64) -> bool {
        let room = record::INLINE_SECTORS - self.inline_sectors;
        self.shape == Shape::Inline && sectors <= room
    }

    /// Puts the entry of what is stored behind those before it.
    fn add(
        &mut self,
        cx: &mut Cx<'_>,
        place: Places,
        item: Item,
        stored: &Stored,
        sums: &[u32],
    ) -> Entry {
        let span = stored.span;
        let entry = Entry {
            kind: item.kind,
            volume: item.volume,
            generation: item.generation,
            serial: item.serial,
            span,
            first_block: if stored.blocks > 0 {
                self.payload_blocks
            } else {
                0
            },
            inline: stored.inline,
            more: item.more || span.sectors < item.span.sectors,
            epoch: item.epoch,
            tag: item.tag,
        };
        assert!(
            usize::from(self.entries) < self.shape.entries_max(),
            "an entry has a place in the header"
        );
        let bytes = record::encode_entry(&self.identity, &entry, sums);
        let entry_at = record::ENTRIES_AT + usize::from(self.entries) * record::ENTRY_BYTES;
        cx.memory.store(place.header.plus(entry_at as u64), &bytes);
        self.entries += 1;
        self.payload_blocks += stored.blocks as u16;
        self.inline_sectors += stored.inline.map_or(0, |_| span.sectors);
        entry
    }
}

/// Where in the stage the open record has its header, and its next payload block.
#[derive(Clone, Copy)]
struct Places {
    header: Place,
    next: Place,
}

impl OpenChunk {
    fn place(&self, slots_total: u32, geometry: Geometry) -> Places {
        let slot_at = stage::slot_at(self.slot.0, slots_total, geometry.chunk_blocks);
        let block = |n: u32| Place::new(Area::Stage, slot_at).plus(u64::from(n) * BLOCK_BYTES);
        let record = self.record.as_ref().expect("a record is open");
        Places {
            header: block(record.header_block),
            next: block(self.next_block),
        }
    }

    /// Copies as much of a payload as fits into the open record.
    fn store(
        &self,
        cx: &mut Cx<'_>,
        (place, geometry): (Places, Geometry),
        (span, source): (Span, Option<Place>),
        sums: &mut [u32],
    ) -> Stored {
        let record = self.record.as_ref().expect("a record is open");
        let room = u64::from(geometry.chunk_blocks - self.next_block);
        match source {
            Some(source) if record.takes_inline(span.sectors) => {
                put_inline(cx, record, place.header, (source, span), sums)
            }
            Some(source) => put_blocks(cx, record, (place, room), (source, span), sums),
            None => Stored::nothing(span),
        }
    }
}

/// What an append put where.
#[derive(Clone, Copy, Debug)]
pub struct Appended {
    pub span: Span,
    pub content: Content,
    pub seq: StreamSeq,
}

/// What is appended, besides its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub span: Span,
    pub kind: EntryKind,
    /// The write goes on in a further item of the same serial.
    pub more: bool,
    pub epoch: EpochNumber,
    pub tag: Tag,
}

impl Log {
    /// Appends one item, or as much of it from its start as fits into the open record. `source`
    /// is where its first sector lies; zero items have none. Returns `None` when there is no
    /// room; `evacuating` may use the segments reserved for making room.
    pub fn append(
        &mut self,
        cx: &mut Cx<'_>,
        stream: StreamKind,
        item: Item,
        source: Option<Place>,
        evacuating: bool,
    ) -> Option<Appended> {
        assert!(item.span.sectors > 0, "an item covers something");
        assert_eq!(
            source.is_some(),
            item.kind == EntryKind::Write,
            "only writes carry bytes"
        );
        // What evacuation has opened of the reserve is for evacuation alone.
        let reserved = !evacuating && !has(Bug::OpenReserve);
        if reserved && self.ready.len() < space::SEGMENTS_RESERVED {
            return None;
        }
        let payload = source.map_or(0, |_| item.span.sectors);
        self.open_record(cx, stream, payload, evacuating)?;
        let first = self.geometry.chunk_addr(self.open_chunk_of(stream).chunk);
        let (slots_total, geometry) = (self.stage_slots_total, self.geometry);
        let open = self.streams[stream as usize]
            .open
            .as_mut()
            .expect("a record was opened");
        let place = open.place(slots_total, geometry);
        let mut sums = [0; record::SUMS_MAX];
        let stored = open.store(cx, (place, geometry), (item.span, source), &mut sums);
        let chunk = open.chunk;
        let record = open.record.as_mut().expect("a record was opened");
        let entry = record.add(cx, place, item, &stored, &sums[..stored.sums]);
        let seq = StreamSeq(record.identity.stream_seq);
        let block = match stored.blocks {
            0 => record.header_block,
            _ => open.next_block,
        };
        open.next_block += stored.blocks as u32;
        let addr = first.plus(u64::from(block) * BLOCK_SECTORS);
        let phase = stored.inline.map(u64::from);
        let content = match item.kind {
            EntryKind::Write => {
                Content::Data(addr.plus(phase.unwrap_or(entry.span.sector % BLOCK_SECTORS)))
            }
            EntryKind::Zero { allocate } => Content::Zero {
                header: addr,
                allocate,
            },
        };
        self.note_entry(
            (chunk, block),
            item,
            &entry,
            &sums[..stored.blocks as usize],
        );
        Some(Appended {
            span: entry.span,
            content,
            seq,
        })
    }

    fn open_chunk_of(&self, stream: StreamKind) -> &OpenChunk {
        let open = self.streams[stream as usize].open.as_ref();
        open.expect("a record was opened")
    }

    /// Remembers an entry for the footer, and the sums of its blocks for every read.
    fn note_entry(
        &mut self,
        (chunk, block): (ChunkIndex, u32),
        item: Item,
        entry: &Entry,
        sums: &[u32],
    ) {
        let span = entry.span;
        let segment = SegmentIndex(chunk.0 / self.geometry.segment_chunks);
        let in_segment =
            (chunk.0 % self.geometry.segment_chunks) * self.geometry.chunk_blocks + block;
        let entries_max = footer::entries_max(self.geometry);
        let segment = &mut self.segments[segment.0 as usize];
        assert!(
            segment.state == SegmentState::Open,
            "only open segments take entries"
        );
        assert!(span.sectors > 0 && span.sectors <= item.span.sectors);
        assert!(
            span.sectors <= u64::from(u32::MAX) && span.end() <= record::MAX_SECTOR,
            "an entry has room for its range"
        );
        assert!(
            item.kind == EntryKind::Write || (item.tag == Tag::NONE && sums.is_empty()),
            "zeroes have neither a tag nor blocks"
        );
        for (n, sum) in sums.iter().enumerate() {
            segment.sums[in_segment as usize + n] = *sum;
        }
        segment.entries.push(FooterEntry {
            volume: item.volume,
            generation: item.generation,
            serial: item.serial,
            span,
            kind: item.kind,
            block: in_segment,
            inline: entry.inline,
            more: entry.more,
            epoch: item.epoch,
        });
        assert!(
            segment.entries.len() <= entries_max,
            "the entries of a segment fit its footer"
        );
    }

    /// Makes sure a record with room for an entry, and for some of so many sectors of payload, is
    /// open.
    pub(super) fn open_record(
        &mut self,
        cx: &mut Cx<'_>,
        stream: StreamKind,
        payload: u64,
        evacuating: bool,
    ) -> Option<()> {
        if let Some(open) = &self.streams[stream as usize].open {
            if let Some(record) = &open.record {
                if record.has_room(payload, self.geometry.chunk_blocks - open.next_block) {
                    return Some(());
                }
                self.seal_open_record(cx, stream);
            }
            let open = self.streams[stream as usize]
                .open
                .as_ref()
                .expect("still open");
            // A header block alone is not worth it: two blocks are the least of a record.
            if open.next_block + 2 > self.geometry.chunk_blocks {
                self.close_chunk(stream);
            }
        }
        if self.footer_is_full(stream) {
            self.close_chunk(stream);
            self.seal_segment(stream);
        }
        if self.streams[stream as usize].open.is_none() {
            self.open_chunk(cx, stream, evacuating)?;
        }
        let small = (1..=record::INLINE_SECTORS).contains(&payload);
        let shape = match small && self.inline_records {
            true => Shape::Inline,
            false => Shape::Blocks,
        };
        self.begin_record(cx, stream, shape);
        Some(())
    }

    /// The head of a record, in a chunk that has room for it.
    fn begin_record(&mut self, cx: &mut Cx<'_>, stream: StreamKind, shape: Shape) {
        let geometry = self.geometry;
        let identity = self.next_identity(stream);
        let slots_total = self.stage_slots_total;
        let open = self.streams[stream as usize]
            .open
            .as_mut()
            .expect("a chunk was opened");
        assert!(open.record.is_none(), "one record is open at a time");
        assert!(
            open.next_block + 2 <= geometry.chunk_blocks,
            "a header and a block fit"
        );
        let slot_at = stage::slot_at(open.slot.0, slots_total, geometry.chunk_blocks);
        let header =
            Place::new(Area::Stage, slot_at).plus(u64::from(open.next_block) * BLOCK_BYTES);
        cx.memory.zero(header, BLOCK_BYTES);
        let head = record::encode_open(shape, &identity);
        cx.memory.store(header, &head);
        open.record = Some(OpenRecord {
            identity,
            shape,
            header_block: open.next_block,
            entries: 0,
            payload_blocks: 0,
            inline_sectors: 0,
            opened: cx.now,
        });
        open.next_block += 1;
    }

    /// The footer of the open segment has no room for the entries of one more record.
    fn footer_is_full(&self, kind: StreamKind) -> bool {
        let entries_max = footer::entries_max(self.geometry);
        self.streams[kind as usize].segment.is_some_and(|segment| {
            let entries = &self.segments[segment.0 as usize].entries;
            entries.len() + record::ENTRIES_MAX > entries_max
        })
    }

    fn next_identity(&mut self, kind: StreamKind) -> Identity {
        let durable_upto = self.durable.0;
        let stream = &mut self.streams[kind as usize];
        let seq = stream.next_seq;
        stream.next_seq = StreamSeq(seq.0 + 1);
        let segment = stream
            .segment
            .expect("an open chunk lies in an open segment");
        let segment = &mut self.segments[segment.0 as usize];
        assert!(
            segment.last_stream_seq < seq,
            "the records of a segment ascend"
        );
        assert!(
            kind != StreamKind::Writes || durable_upto < seq.0,
            "a new record is not durable"
        );
        if segment.first_stream_seq.0 == 0 {
            segment.first_stream_seq = seq;
        }
        segment.last_stream_seq = seq;
        let too_much = has(Bug::AnnounceTooMuch);
        Identity {
            cache: self.cache,
            stream: kind.code(),
            incarnation: self.incarnation,
            segment_seq: segment.seq.0,
            stream_seq: seq.0,
            durable_upto: if too_much { seq.0 } else { durable_upto },
        }
    }

    /// Seals the open record: counts and checksum go into its header.
    pub(super) fn seal_open_record(&mut self, cx: &mut Cx<'_>, kind: StreamKind) {
        let Some(open) = self.streams[kind as usize].open.as_mut() else {
            return;
        };
        let Some(record) = open.record.take() else {
            return;
        };
        assert!(
            usize::from(record.entries) <= record.shape.entries_max()
                && usize::from(record.payload_blocks) <= record.shape.sums_max(),
            "a record fits its header"
        );
        let slot_at = stage::slot_at(
            open.slot.0,
            self.stage_slots_total,
            self.geometry.chunk_blocks,
        );
        let place =
            Place::new(Area::Stage, slot_at).plus(u64::from(record.header_block) * BLOCK_BYTES);
        let mut counts = [0; 4];
        counts[..2].copy_from_slice(&record.entries.to_le_bytes());
        counts[2..].copy_from_slice(&record.payload_blocks.to_le_bytes());
        cx.memory
            .store(place.plus(record::COUNTS_AT as u64), &counts);
        let sum = cx.memory.checksum(place, BLOCK_BYTES);
        cx.memory.store(
            place.plus(crate::format::CHECKSUM_AT as u64),
            &sum.to_le_bytes(),
        );
        if record.inline_sectors > 0 && !has(Bug::ForgetHeaderSum) {
            // From now on its bytes stay as they are, and reads of its payload are checked.
            let sum = cx.memory.checksum(place, BLOCK_BYTES);
            let first = self.geometry.chunk_addr(open.chunk);
            let addr = first.plus(u64::from(record.header_block) * BLOCK_SECTORS);
            let segment = self.geometry.segment_of(addr);
            let block = (addr.block() % self.geometry.segment_blocks()) as usize;
            let sums = &mut self.segments[segment.0 as usize].sums;
            assert!(sums[block] == 0, "a header block is sealed once");
            sums[block] = sum;
        }
        let end_block = record.header_block + 1 + u32::from(record.payload_blocks);
        assert_eq!(
            end_block, open.next_block,
            "a record ends where the next one starts"
        );
        let slot = open.slot;
        assert!(
            self.slots[slot.0 as usize].sealed == record.header_block,
            "a record begins where the one before it ends"
        );
        self.slots[slot.0 as usize].sealed = end_block;
        if kind == StreamKind::Writes {
            let seq = StreamSeq(record.identity.stream_seq);
            let last = self.tail.back().map_or(self.durable, |tail| tail.seq);
            assert!(last < seq, "the tail is in order of the stream");
            self.tail.push_back(Tail {
                seq,
                slot,
                end_block,
                written: false,
            });
            self.queue_slot(slot);
        }
    }
}

/// What of an item is in the stage, and where.
struct Stored {
    span: Span,
    /// Blocks of its own.
    blocks: u64,
    inline: Option<u8>,
    /// Sums that its entry covers.
    sums: usize,
}

impl Stored {
    /// An entry without payload.
    fn nothing(span: Span) -> Stored {
        Stored {
            span,
            blocks: 0,
            inline: None,
            sums: 0,
        }
    }
}

/// Copies a small payload into the header block.
fn put_inline(
    cx: &mut Cx<'_>,
    record: &OpenRecord,
    header: Place,
    (source, span): (Place, Span),
    sums: &mut [u32],
) -> Stored {
    let sector = record::INLINE_FROM + record.inline_sectors;
    assert!(
        sector + span.sectors <= BLOCK_SECTORS,
        "an inline payload ends with its header block"
    );
    let (place, bytes) = (
        header.plus(sector * SECTOR_BYTES),
        span.sectors * SECTOR_BYTES,
    );
    cx.memory.copy(source, place, bytes);
    sums[0] = cx.memory.checksum(place, bytes);
    Stored {
        span,
        blocks: 0,
        inline: Some(sector as u8),
        sums: 1,
    }
}

/// Copies as much of a payload as fits into blocks of its own, of which there are `room`, and its
/// sums into the header.
fn put_blocks(
    cx: &mut Cx<'_>,
    record: &OpenRecord,
    (place, room): (Places, u64),
    (source, mut span): (Place, Span),
    sums: &mut [u32],
) -> Stored {
    let taken = usize::from(record.payload_blocks);
    let room = room.min((record.shape.sums_max() - taken) as u64);
    let phase = span.sector % BLOCK_SECTORS;
    assert!(room > 0, "a record that was opened has room for a block");
    span.sectors = span.sectors.min(room * BLOCK_SECTORS - phase);
    let blocks = span.blocks();
    assert!(blocks <= room, "what is cut fits");
    copy_in(cx, source, place.next, span);
    let mut bytes = [0; record::SUMS_MAX * 4];
    for n in 0..blocks as usize {
        sums[n] = cx
            .memory
            .checksum(place.next.plus(n as u64 * BLOCK_BYTES), BLOCK_BYTES);
        bytes[n * 4..n * 4 + 4].copy_from_slice(&sums[n].to_le_bytes());
    }
    let sums_at = record.shape.sums_at() + taken * 4;
    cx.memory.store(
        place.header.plus(sums_at as u64),
        &bytes[..blocks as usize * 4],
    );
    Stored {
        span,
        blocks,
        inline: None,
        sums: blocks as usize,
    }
}

/// Copies the bytes of `span` to their phase in whole blocks; the rest of the blocks is zero.
fn copy_in(cx: &mut Cx<'_>, source: Place, to: Place, span: Span) {
    let phase = (span.sector % BLOCK_SECTORS) * SECTOR_BYTES;
    let bytes = span.sectors * SECTOR_BYTES;
    let whole = span.blocks() * BLOCK_BYTES;
    if phase > 0 {
        cx.memory.zero(to, phase);
    }
    cx.memory.copy(source, to.plus(phase), bytes);
    if whole > phase + bytes {
        cx.memory
            .zero(to.plus(phase + bytes), whole - phase - bytes);
    }
}
