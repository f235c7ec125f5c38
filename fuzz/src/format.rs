//! Targets for the structures on devices: each is built or taken raw, damaged, repaired, parsed.
//!
//! Invariants: parsing returns and never panics; what was parsed can be written again and then
//! reads the same; what the geometry of an accepted cache implies can be computed.

use crate::repair;
use crate::source::Source;
use engine::format::Kind;
use engine::format::checkpoint::{
    Checkpoint, NAME_BYTES_MAX, ORIGIN_BYTES_MAX, Role, SegmentRecord, Standing, VolumeRecord,
};
use engine::format::footer::{self, Footer, FooterEntry};
use engine::format::journal::{self, Journal, JournalEntry};
use engine::format::ledger::{LEDGER_BYTES, Ledger, OWNER_BYTES_MAX, Progress};
use engine::format::record::{self, Entry, EntryKind, Identity, Record, Shape};
use engine::format::stage::{SLOT_BYTES, StageHeader, StageSlot};
use engine::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use engine::types::{
    ChunkIndex, EpochNumber, Generation, Geometry, Policy, SECTOR_BYTES, Serial, Span, Tag, Uuid,
    VolumeId,
};

/// A structure made of the input: built well and then damaged, or raw bytes with a right start.
/// Returns whether its checksums shall be repaired.
pub(crate) fn make(
    source: &mut Source,
    kind: Kind,
    length: usize,
    build: impl FnOnce(&mut Source) -> Vec<u8>,
) -> (Vec<u8>, bool) {
    let choice = source.byte();
    let mut bytes = if choice & 1 == 0 {
        build(source)
    } else {
        let mut raw = source.take(length).to_vec();
        raw.resize(length, 0);
        repair::stamp(&mut raw, kind);
        raw
    };
    if choice & 2 == 0 {
        source.damage(&mut bytes);
    }
    (bytes, choice & 12 != 0)
}

fn span(source: &mut Source) -> Span {
    let sector = match source.flag() {
        true => source.number() % (record::MAX_SECTOR + 1),
        false => u64::from(source.byte()),
    };
    let sectors = match source.flag() {
        true => u64::from(source.u32()),
        false => u64::from(source.byte()),
    };
    Span::new(sector, sectors)
}

fn entry_kind(source: &mut Source) -> EntryKind {
    match source.byte() % 3 {
        0 => EntryKind::Write,
        1 => EntryKind::Zero { allocate: false },
        _ => EntryKind::Zero { allocate: true },
    }
}

pub fn superblock(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (mut bytes, repaired) = make(source, Kind::Superblock, SUPERBLOCK_BYTES, |source| {
        let geometry = Geometry {
            chunk_blocks: u32::from(source.byte()),
            segment_chunks: u32::from(source.u16()) % 1100,
            segments: source.u32() % (1 << 21),
        };
        let volumes_max = source.u32() % (1 << 17);
        Superblock::new(Uuid(source.bytes16()), geometry, volumes_max).encode()
    });
    if repaired {
        repair::seal(&mut bytes, SUPERBLOCK_BYTES);
    }
    let Ok(parsed) = Superblock::parse(&bytes) else {
        return false;
    };
    assert_eq!(Superblock::parse(&parsed.encode()), Ok(parsed));
    // Whatever shape a superblock may have, the rest of the engine computes with it.
    let geometry = parsed.geometry;
    assert!(parsed.device_bytes() > geometry.log_bytes());
    assert!(geometry.chunks() > geometry.segments);
    assert!(footer::body_blocks(geometry) > 0);
    assert!(
        footer::entries_max(geometry) > 0,
        "a segment of {geometry:?} holds an entry"
    );
    true
}

pub fn checkpoint(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let cache = Uuid(source.bytes16());
    let (mut bytes, repaired) = make(source, Kind::Checkpoint, 3 * 4096, |source| {
        built_checkpoint(source, cache).encode()
    });
    if repaired {
        repair::checkpoint(&mut bytes);
    }
    let length = Checkpoint::parse_length(&bytes, bytes.len() as u64);
    let Ok(parsed) = Checkpoint::parse(&bytes, cache) else {
        return false;
    };
    assert_eq!(length, Ok(parsed.encode().len() as u64));
    assert_eq!(Checkpoint::parse(&parsed.encode(), cache), Ok(parsed));
    true
}

fn built_checkpoint(source: &mut Source, cache: Uuid) -> Checkpoint {
    let segments_total = source.u32() % 64;
    let volumes = (0..source.byte() % 3).map(|_| volume(source)).collect();
    let segments = (0..segments_total)
        .flat_map(|index| source.flag().then(|| segment(source, index)))
        .collect();
    Checkpoint {
        cache,
        boot: Uuid(source.bytes16()),
        sequence: source.number(),
        incarnation: source.number(),
        stream_seq_next: source.number(),
        segment_seq_next: source.number(),
        generation_next: source.u32(),
        unwritten_from: source.u32(),
        segments_total,
        volumes,
        segments,
    }
}

fn segment(source: &mut Source, index: u32) -> SegmentRecord {
    SegmentRecord {
        index,
        seq: source.number(),
        first_stream_seq: source.number(),
        last_stream_seq: source.number(),
        stream: source.u16(),
        settled: source.flag(),
    }
}

fn volume(source: &mut Source) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(source.u32() >> (source.byte() % 32)),
        uuid: Uuid(source.bytes16()),
        generation: Generation(source.u32()),
        base_generation: Generation(source.u32()),
        policy: source.pick(&[
            Policy::Uncached,
            Policy::WriteThrough,
            Policy::WriteBack,
            Policy::Ephemeral,
        ]),
        destage_in_place: source.flag(),
        journal_possible: source.flag(),
        ended: source.flag(),
        staged: source.flag(),
        stage_lost: source.flag(),
        damaged: source.flag(),
        first_serial: Serial(source.number()),
        serial_next: Serial(source.number()),
        destaged: Serial(source.number()),
        merged_upto: Serial(source.number()),
        standing: Standing {
            role: match source.below(4) {
                0 => Role::Own,
                1 => Role::Replica,
                2 => Role::Frozen,
                _ => Role::Taken,
            },
            lineage: Uuid(source.bytes16()),
            term: source.number(),
            void: (Serial(source.number()), Serial(source.number())),
        },
        size_bytes: source.number(),
        name: source.text(NAME_BYTES_MAX),
        origin: source.text(ORIGIN_BYTES_MAX),
        under: Default::default(),
    }
}

/// Payload that a header block may hold, at its end.
const INLINE_BYTES: usize = record::INLINE_SECTORS as usize * 512;

pub fn record(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (mut bytes, repaired) = make(source, Kind::Record, record::HEADER_BYTES, |source| {
        let record = built_record(source);
        let mut inline = source.take(INLINE_BYTES).to_vec();
        inline.resize(INLINE_BYTES, 0);
        encode_record(&record, &inline)
    });
    if source.flag() {
        repair::stamp(&mut bytes, Kind::InlineRecord);
    }
    if repaired {
        repair::record(&mut bytes);
    }
    let open = record::parse_open(&bytes);
    let Ok(parsed) = record::parse_sealed(&bytes) else {
        return false;
    };
    let open = open.expect("a sealed record is an open one as well");
    assert!(
        open.entries.starts_with(&parsed.entries),
        "the stage shows no less than the log"
    );
    assert!(open.sums.starts_with(&parsed.sums));
    let inline = &bytes[record::HEADER_BYTES - INLINE_BYTES..record::HEADER_BYTES];
    let again = record::parse_sealed(&encode_record(&parsed, inline));
    assert_eq!(again, Ok(parsed));
    true
}

fn built_record(source: &mut Source) -> Record {
    let identity = Identity {
        cache: Uuid(source.bytes16()),
        stream: source.u16() % 4,
        incarnation: source.number(),
        segment_seq: source.number(),
        stream_seq: source.number(),
        durable_upto: source.number(),
    };
    let mut entries = Vec::new();
    let shape = source.pick(&[Shape::Blocks, Shape::Inline]);
    let (mut blocks, mut sector) = (0, record::INLINE_FROM);
    for _ in 0..source.below(shape.entries_max() + 1) {
        let mut entry = Entry {
            kind: entry_kind(source),
            volume: VolumeId(source.u32()),
            generation: Generation(source.u32()),
            serial: Serial(source.number()),
            span: span(source),
            first_block: 0,
            inline: None,
            more: source.flag(),
            epoch: EpochNumber::of(source.u16() as u8),
            tag: Tag::NONE,
        };
        if entry.kind == EntryKind::Write && source.flag() {
            entry.tag = Tag {
                region: source.u32().max(1),
                counter: source.number(),
            };
        }
        let room = record::HEADER_BYTES as u64 / 512 - sector;
        if shape == Shape::Inline && entry.kind == EntryKind::Write && room > 0 && source.flag() {
            // One that is too long is refused.
            entry.span.sectors = 1 + entry.span.sectors % (room + 1);
            entry.span.sector = entry.span.sector.min(record::MAX_SECTOR - room);
            entry.inline = Some(sector as u8);
            sector = (sector + entry.span.sectors).min(record::HEADER_BYTES as u64 / 512);
        }
        if entry.blocks() + blocks > shape.sums_max() as u64 {
            break;
        }
        if entry.blocks() > 0 {
            entry.first_block = blocks as u16;
        }
        blocks += entry.blocks();
        entries.push(entry);
    }
    let sums = (0..blocks).map(|_| source.u32()).collect();
    Record {
        shape,
        identity,
        entries,
        sums,
    }
}

/// With payload for the end of the header block, if the record has some there.
fn encode_record(record: &Record, inline: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; record::HEADER_BYTES];
    let head = record::encode_open(record.shape, &record.identity);
    bytes[..record::ENTRIES_AT].copy_from_slice(&head);
    if record.shape == Shape::Inline {
        bytes[record::HEADER_BYTES - INLINE_BYTES..].copy_from_slice(inline);
    }
    for (at, entry) in record.entries.iter().enumerate() {
        let first = usize::from(entry.first_block);
        let of_payload = entry.inline.map(|sector| {
            let from = usize::from(sector) * 512;
            let end = from + entry.span.sectors as usize * 512;
            let payload = &bytes[from..end.min(bytes.len())];
            engine::format::checksum(&[payload])
        });
        let sums = match &of_payload {
            Some(sum) => core::slice::from_ref(sum),
            None => &record.sums[first..first + entry.blocks() as usize],
        };
        let place = record::ENTRIES_AT + at * record::ENTRY_BYTES;
        let encoded = record::encode_entry(&record.identity, entry, sums);
        bytes[place..place + record::ENTRY_BYTES].copy_from_slice(&encoded);
    }
    for (at, sum) in record.sums.iter().enumerate() {
        let place = record.shape.sums_at() + at * 4;
        bytes[place..place + 4].copy_from_slice(&sum.to_le_bytes());
    }
    record::seal_record(
        &mut bytes,
        record.entries.len() as u16,
        record.sums.len() as u16,
    );
    bytes
}

pub fn footer(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let geometry = source.pick(&[
        Geometry {
            chunk_blocks: 64,
            segment_chunks: 32,
            segments: 8,
        },
        Geometry {
            chunk_blocks: 8,
            segment_chunks: 4,
            segments: 8,
        },
        Geometry {
            chunk_blocks: 4,
            segment_chunks: 2,
            segments: 8,
        },
    ]);
    let cache = Uuid(source.bytes16());
    let (mut bytes, repaired) = make(source, Kind::Footer, 4 * 4096, |source| {
        built_footer(source, geometry, cache).encode()
    });
    if repaired {
        repair::footer(&mut bytes, geometry, cache);
    }
    if let Ok((_, length)) = Footer::parse_header(&bytes, geometry, cache) {
        assert!(
            length <= geometry.chunk_bytes(),
            "a footer lies in one chunk"
        );
    }
    let Ok(parsed) = Footer::parse(&bytes, geometry, cache) else {
        return false;
    };
    for entry in &parsed.entries {
        assert!(entry.block < footer::body_blocks(geometry));
    }
    assert_eq!(Footer::parse(&parsed.encode(), geometry, cache), Ok(parsed));
    true
}

fn built_footer(source: &mut Source, geometry: Geometry, cache: Uuid) -> Footer {
    let entries = (0..source.below(footer::entries_max(geometry) + 1).min(40))
        .map(|_| {
            let mut entry = FooterEntry {
                volume: VolumeId(source.u32()),
                generation: Generation(source.u32()),
                serial: Serial(source.number()),
                span: span(source),
                kind: entry_kind(source),
                block: source.u32() % (footer::body_blocks(geometry) + 8),
                inline: None,
                more: source.flag(),
                epoch: EpochNumber::of(source.u16() as u8),
            };
            if entry.kind == EntryKind::Write && source.flag() {
                entry.inline = Some(source.below(9).max(3) as u8);
                entry.span.sectors = 1 + entry.span.sectors % 6;
            }
            entry
        })
        .collect();
    Footer {
        cache,
        stream: source.u16(),
        incarnation: source.number(),
        segment_seq: source.number(),
        first_stream_seq: source.number(),
        last_stream_seq: source.number(),
        durable_upto: source.number(),
        entries,
        sums: (0..footer::body_blocks(geometry)).collect(),
    }
}

pub fn ledger(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let mut file = Vec::new();
    for _ in 0..source.byte() % 4 {
        let (mut bytes, repaired) = make(source, Kind::Ledger, LEDGER_BYTES, |source| {
            built_ledger(source).encode()
        });
        if repaired {
            repair::seal(&mut bytes, LEDGER_BYTES);
        }
        if let Ok(parsed) = Ledger::parse(&bytes) {
            assert_eq!(Ledger::parse(&parsed.encode()), Ok(parsed));
        }
        file.extend(bytes);
    }
    if let Ok(Some(newest)) = Ledger::parse_file(&file) {
        let slots = file.chunks(LEDGER_BYTES).take(2);
        let whole = slots.filter_map(|slot| Ledger::parse(slot).ok());
        assert_eq!(whole.map(|slot| slot.sequence).max(), Some(newest.sequence));
        return true;
    }
    false
}

fn built_ledger(source: &mut Source) -> Ledger {
    let progress = match source.byte() % 3 {
        0 => Progress::Idle,
        1 => Progress::Cut(Serial(source.number())),
        _ => Progress::Apply {
            upto: Serial(source.number()),
            journal_sequence: source.number(),
            journal_bytes: source.number(),
        },
    };
    Ledger {
        sequence: source.number(),
        volume: Uuid(source.bytes16()),
        cache: Uuid(source.bytes16()),
        machine: Uuid(source.bytes16()),
        boot: Uuid(source.bytes16()),
        owner: source.text(OWNER_BYTES_MAX),
        generation: Generation(source.u32()),
        destaged: Serial(source.number()),
        progress,
        dirty: source.flag(),
        origin_bytes: source.number(),
        mtime_before_ns: source.number(),
        mtime_limit_ns: source.number(),
        may_succeed: source.flag(),
        compatible: source.number(),
        image: Default::default(),
    }
}

pub fn journal(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (mut bytes, repaired) = make(source, Kind::Journal, 2 * 4096, |source| {
        built_journal(source).encode()
    });
    if repaired {
        repair::journal(&mut bytes);
    }
    let count = Journal::parse_entries(&bytes);
    let Ok(parsed) = Journal::parse(&bytes) else {
        return false;
    };
    assert_eq!(count, Ok(parsed.entries.len()));
    for entry in parsed
        .entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Write)
    {
        assert!(entry.offset >= journal::payload_at(parsed.entries.len()));
        assert!(entry.offset + entry.span.sectors * SECTOR_BYTES <= parsed.total_bytes);
    }
    assert_eq!(Journal::parse(&parsed.encode()), Ok(parsed));
    true
}

fn built_journal(source: &mut Source) -> Journal {
    let count = source.below(40);
    let mut offset = journal::payload_at(count);
    let entries = (0..count)
        .map(|_| {
            let (kind, mut span) = (entry_kind(source), span(source));
            // A piece of payload is at most as long as the largest chunk, or refused.
            if kind == EntryKind::Write && span.sectors > 1024 && source.byte() < 250 {
                span.sectors %= 1024;
            }
            let checksum = source.u32();
            let mut entry = JournalEntry {
                span,
                kind,
                offset: 0,
                checksum,
            };
            if kind == EntryKind::Write {
                entry.offset = offset;
                offset += (span.sectors * SECTOR_BYTES).next_multiple_of(4096);
            }
            entry
        })
        .collect();
    Journal {
        volume: Uuid(source.bytes16()),
        generation: Generation(source.u32()),
        sequence: source.number(),
        upto: Serial(source.number()),
        total_bytes: if source.byte().is_multiple_of(4) {
            source.number()
        } else {
            offset
        },
        entries,
    }
}

pub fn stage(input: &[u8]) -> bool {
    let source = &mut Source::new(input);
    let (mut header, repaired) = make(source, Kind::Stage, 4096, |source| {
        StageHeader {
            cache: Uuid(source.bytes16()),
            boot: Uuid(source.bytes16()),
            incarnation: source.number(),
            slots: source.u32(),
            chunk_blocks: source.u32(),
        }
        .encode()
    });
    if repaired {
        repair::seal(&mut header, 4096);
    }
    let first = StageHeader::parse(&header);
    if let Ok(parsed) = first {
        assert_eq!(StageHeader::parse(&parsed.encode()), Ok(parsed));
    }
    let (mut slot, repaired) = make(source, Kind::Stage, SLOT_BYTES, |source| {
        StageSlot {
            incarnation: source.number(),
            segment_seq: source.number(),
            chunk: ChunkIndex(source.u32()),
            stream: source.u16(),
        }
        .encode()
        .to_vec()
    });
    if repaired {
        repair::seal(&mut slot, SLOT_BYTES);
    }
    let second = StageSlot::parse(&slot);
    if let Ok(parsed) = second {
        assert_eq!(StageSlot::parse(&parsed.encode()), Ok(parsed));
    }
    first.is_ok() && second.is_ok()
}
