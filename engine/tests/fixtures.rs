//! The structures of version 1 as bytes in files: written again they must be the same, and read
//! they must say what they said.
//!
//! Always true: a file in `fixtures` is never changed. Other bytes are another version, with
//! files of its own; a program that no longer reads these no longer reads its users' data.

mod common;

use common::{BOOT, CACHE, VOLUME, checkpoint, entry, footer, identity, in_footer, ledger};
use common::{inline_entry, life, open_inline_record, open_record};
use engine::format::checkpoint::{Checkpoint, SegmentRecord, VolumeRecord};
use engine::format::fill::{FillFooter, FillRecord, Run};
use engine::format::footer::{Footer, body_blocks};
use engine::format::journal::{Journal, JournalEntry, payload_at};
use engine::format::ledger::{Ledger, Progress};
use engine::format::record::{self, EntryKind, Record, Shape};
use engine::format::stage::{StageHeader, StageSlot};
use engine::format::superblock::Superblock;
use engine::format::{FormatError, Kind};
use engine::image::{Image, Mark, Marked};
use engine::types::{ChunkIndex, Generation, Geometry, Policy, Serial, Span, Uuid, VolumeId};
use std::path::{Path, PathBuf};

const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 8,
    segment_chunks: 4,
    segments: 8,
};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(format!("v1-{name}"))
}

/// The bytes of a fixture, after these were compared with it.
fn golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let bytes = std::fs::read(path(name)).expect("a fixture");
    let differs = bytes.iter().zip(encoded).position(|(old, new)| old != new);
    assert_eq!(differs, None, "{name}: the first byte that differs");
    assert_eq!(bytes.len(), encoded.len(), "{name}: its length");
    bytes
}

#[test]
fn a_superblock_of_version_1_is_written_and_read_the_same() {
    let superblock = Superblock {
        inline_records: false,
        ..Superblock::new(CACHE, GEOMETRY, 16)
    };
    let bytes = golden("superblock", &superblock.encode());
    assert_eq!(Superblock::parse(&bytes), Ok(superblock));
}

/// The bit for payload in header blocks came later: what does not know it refuses the cache.
#[test]
fn a_superblock_with_payload_in_header_blocks_is_written_and_read_the_same() {
    let superblock = Superblock::new(CACHE, GEOMETRY, 16);
    let bytes = golden("superblock-inline", &superblock.encode());
    assert_eq!(Superblock::parse(&bytes), Ok(superblock));
    let mut unknown = superblock.encode();
    unknown[16] |= 2;
    engine::format::seal(&mut unknown);
    let refused = Superblock::parse(&unknown);
    assert_eq!(refused, Err(FormatError::Incompatible(2)));
}

fn volume(id: u32, policy: Policy) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        uuid: VOLUME,
        generation: Generation(7),
        base_generation: Generation(5),
        policy,
        destage_in_place: id == 1,
        journal_possible: id == 0,
        ended: false,
        staged: false,
        stage_lost: false,
        damaged: false,
        first_serial: Serial(1_000),
        serial_next: Serial(1_234_567_890_123),
        destaged: Serial(999),
        merged_upto: Serial(0),
        standing: Default::default(),
        size_bytes: 64 << 30,
        name: format!("desk-00{id}"),
        origin: "/mnt/nfs/vms/schöner-desk.img".into(),
        under: Default::default(),
    }
}

#[test]
fn a_checkpoint_of_version_1_is_written_and_read_the_same() {
    let checkpoint = checkpoint(
        vec![
            volume(0, Policy::WriteBack),
            volume(1, Policy::Uncached),
            volume(2, Policy::Ephemeral),
        ],
        vec![
            SegmentRecord {
                index: 1,
                seq: 50,
                first_stream_seq: 80,
                last_stream_seq: 90,
                stream: record::STREAM_WRITES,
                settled: true,
            },
            SegmentRecord {
                index: 3,
                seq: 54,
                first_stream_seq: 91,
                last_stream_seq: u64::MAX,
                stream: record::STREAM_OVERLAY,
                settled: false,
            },
        ],
    );
    let bytes = golden("checkpoint", &checkpoint.encode());
    assert_eq!(Checkpoint::parse(&bytes, CACHE), Ok(checkpoint));
}

/// One of each: a piece of a write, its last piece, a discard, a write of zeroes.
fn a_record() -> Record {
    let zero = |allocate| EntryKind::Zero { allocate };
    Record {
        shape: Shape::Blocks,
        identity: identity(),
        entries: vec![
            entry(1_000, EntryKind::Write, Span::new(13, 11), 0, true),
            entry(1_000, EntryKind::Write, Span::new(24, 8), 2, false),
            entry(1_001, zero(false), Span::new(1 << 33, 4096), 0, false),
            entry(1_002, zero(true), Span::new(0, 1), 0, false),
        ],
        sums: vec![0x1111_1111, 0x2222_2222, 0x3333_3333],
    }
}

/// It as it lies in the stage while it is open.
fn an_open_record() -> Vec<u8> {
    let record = a_record();
    open_record(&record.entries, &record.sums)
}

#[test]
fn an_open_record_of_version_1_is_written_and_read_the_same() {
    let bytes = golden("record-open", &an_open_record());
    assert_eq!(record::parse_open(&bytes), Ok(a_record()));
    assert!(record::parse_sealed(&bytes).is_err());
}

#[test]
fn a_sealed_record_of_version_1_is_written_and_read_the_same() {
    let mut block = an_open_record();
    record::seal_record(&mut block, 4, 3);
    let bytes = golden("record", &block);
    assert_eq!(record::parse_sealed(&bytes), Ok(a_record()));
}

/// Two small writes in the header block, and one that did not fit there.
fn an_inline_record() -> Record {
    Record {
        shape: Shape::Inline,
        identity: identity(),
        entries: vec![
            inline_entry(1_000, Span::new(15, 2), 3),
            inline_entry(1_001, Span::new(1 << 33, 3), 5),
            entry(1_002, EntryKind::Write, Span::new(6, 4), 0, false),
        ],
        sums: vec![0x1111_1111, 0x2222_2222],
    }
}

fn an_open_inline_record() -> Vec<u8> {
    let record = an_inline_record();
    let small = [(record.entries[0], 0xA1), (record.entries[1], 0xB2)];
    open_inline_record(&small, &record.entries[2..], &record.sums)
}

#[test]
fn a_record_with_payload_in_its_header_block_is_written_and_read_the_same() {
    let bytes = golden("record-inline-open", &an_open_inline_record());
    assert_eq!(record::parse_open(&bytes), Ok(an_inline_record()));
    assert!(record::parse_sealed(&bytes).is_err());
    let mut block = an_open_inline_record();
    record::seal_record(&mut block, 3, 2);
    let bytes = golden("record-inline", &block);
    assert_eq!(record::parse_sealed(&bytes), Ok(an_inline_record()));
}

/// Of the stage, where nothing seals it: each entry is bound to its own payload.
#[test]
fn payload_in_a_header_block_counts_with_all_its_bytes() {
    let whole = an_open_inline_record();
    for (sector, entries) in [(3, 0), (4, 0), (5, 1), (6, 1), (7, 1)] {
        let mut torn = whole.clone();
        torn[sector * 512 + 100] ^= 1;
        let found = record::parse_open(&torn).map(|it| it.entries.len());
        assert_eq!(found, Ok(entries), "sector {sector}");
    }
    // An inline entry where it does not belong, and in a record of the other shape.
    let mut record = an_inline_record();
    record.entries[1].inline = Some(6);
    record.entries[1].span.sectors = 2;
    let small = [(record.entries[0], 0xA1), (record.entries[1], 0xB2)];
    let moved = open_inline_record(&small, &[], &record.sums);
    let found = record::parse_open(&moved).map(|it| it.entries.len());
    assert_eq!(found, Ok(1), "they lie one after the other");
    let mut other = whole;
    other[10] = Kind::Record as u8;
    let found = record::parse_open(&other).map(|it| it.entries.len());
    assert_eq!(found, Ok(0));
}

#[test]
fn a_footer_that_names_header_blocks_with_payload_is_written_and_read_the_same() {
    let mut sums = vec![0; body_blocks(GEOMETRY) as usize];
    sums[..3].copy_from_slice(&[0x8888_8888, 0x1111_1111, 0x2222_2222]);
    let entries = an_inline_record().entries;
    let footer = footer(
        vec![
            in_footer(&entries[2], 1),
            in_footer(&entries[0], 0),
            in_footer(&entries[1], 0),
        ],
        sums,
    );
    let bytes = golden("footer-inline", &footer.encode());
    assert_eq!(Footer::parse(&bytes, GEOMETRY, CACHE), Ok(footer.clone()));
    for (inline, sectors) in [(2, 2), (7, 2), (8, 1)] {
        let mut wrong = footer.clone();
        wrong.entries[1].inline = Some(5);
        wrong.entries[1].span.sectors = sectors;
        let mut bytes = wrong.encode();
        bytes[4096 + 40 + 34] = inline;
        let body = engine::format::checksum(&[&bytes[4096..]]).to_le_bytes();
        bytes[36..40].copy_from_slice(&body);
        engine::format::seal(&mut bytes[..4096]);
        let refused = Footer::parse(&bytes, GEOMETRY, CACHE);
        let expected = Err(FormatError::Field("inline payload"));
        assert_eq!(refused, expected, "{inline}, {sectors} sectors");
    }
}

#[test]
fn a_footer_of_version_1_is_written_and_read_the_same() {
    let mut sums = vec![0; body_blocks(GEOMETRY) as usize];
    sums[1..4].copy_from_slice(&[0x1111_1111, 0x2222_2222, 0x3333_3333]);
    let entries = a_record().entries;
    let footer = footer(
        vec![
            in_footer(&entries[3], 0),
            in_footer(&entries[0], 1),
            in_footer(&entries[1], 3),
            in_footer(&entries[2], 0),
        ],
        sums,
    );
    let bytes = golden("footer", &footer.encode());
    assert_eq!(Footer::parse(&bytes, GEOMETRY, CACHE), Ok(footer));
}

fn fill_record() -> FillRecord {
    let run = |line, slot, bitmap| Run {
        layer: Uuid(*b"image at one day"),
        own: false,
        line,
        slot,
        bitmap,
    };
    FillRecord {
        life: life(),
        block: 4,
        runs: vec![run(3, 5, 0b1000_0000_0000_0001), run(1 << 30, 7, 0b10)],
        sums: vec![0x5555_5555, 0x6666_6666, 0x7777_7777],
    }
}

#[test]
fn a_fill_record_of_version_1_is_written_and_read_the_same() {
    let bytes = golden("fill-record", &fill_record().encode());
    let parsed = FillRecord::parse(&bytes, GEOMETRY, CACHE);
    assert_eq!(parsed, Ok(fill_record()));
}

#[test]
fn a_fill_footer_of_version_1_is_written_and_read_the_same() {
    let mut sums = vec![0; body_blocks(GEOMETRY) as usize];
    sums[5..8].copy_from_slice(&fill_record().sums);
    let footer = FillFooter {
        life: fill_record().life,
        runs: fill_record().runs,
        sums,
    };
    let bytes = golden("fill-footer", &footer.encode());
    assert_eq!(FillFooter::parse(&bytes, GEOMETRY, CACHE), Ok(footer));
}

/// The flag for layers that a volume writes came later: what does not know it refuses the run.
#[test]
fn a_fill_record_with_runs_of_an_own_layer_is_written_and_read_the_same() {
    let mut record = fill_record();
    record.runs[1].own = true;
    record.runs[1].layer = Uuid::NIL;
    let bytes = golden("fill-record-own", &record.encode());
    assert_eq!(
        FillRecord::parse(&bytes, GEOMETRY, CACHE),
        Ok(record.clone())
    );
    let mut unknown = record.encode();
    unknown[64 + 32 + 30] |= 2;
    engine::format::seal(&mut unknown);
    let refused = FillRecord::parse(&unknown, GEOMETRY, CACHE);
    assert_eq!(refused, Err(FormatError::Incompatible(2)));
}

#[test]
fn a_ledger_of_version_1_is_written_and_read_the_same() {
    let ledger = ledger();
    let applying = Ledger {
        sequence: 13,
        progress: Progress::Apply {
            upto: Serial(1_002),
            journal_sequence: 3,
            journal_bytes: 12_288,
        },
        ..ledger.clone()
    };
    // The slots of a file: the even sequence lies first.
    let file = [ledger.encode(), applying.encode()].concat();
    let bytes = golden("ledger", &file);
    assert_eq!(Ledger::parse(&bytes[..4096]), Ok(ledger));
    assert_eq!(Ledger::parse_file(&bytes), Ok(Some(applying)));
}

#[test]
fn a_journal_of_version_1_is_written_and_read_the_same() {
    let journal = Journal {
        volume: VOLUME,
        generation: Generation(7),
        sequence: 3,
        upto: Serial(1_002),
        total_bytes: payload_at(2) + 4096,
        entries: vec![
            JournalEntry {
                span: Span::new(13, 8),
                kind: EntryKind::Write,
                offset: payload_at(2),
                checksum: 0x4444_4444,
            },
            JournalEntry {
                span: Span::new(1 << 33, 4096),
                kind: EntryKind::Zero { allocate: true },
                offset: 0,
                checksum: 0,
            },
        ],
    };
    let bytes = golden("journal", &journal.encode());
    assert_eq!(Journal::parse(&bytes), Ok(journal));
}

#[test]
fn a_stage_of_version_1_is_written_and_read_the_same() {
    let header = StageHeader {
        cache: CACHE,
        boot: BOOT,
        incarnation: 9,
        slots: 4,
        chunk_blocks: GEOMETRY.chunk_blocks,
    };
    let bytes = golden("stage-header", &header.encode());
    assert_eq!(StageHeader::parse(&bytes), Ok(header));
    let slot = StageSlot {
        incarnation: 9,
        segment_seq: 54,
        chunk: ChunkIndex(14),
        stream: record::STREAM_OVERLAY,
    };
    let bytes = golden("stage-slot", &slot.encode());
    assert_eq!(StageSlot::parse(&bytes), Ok(slot));
}

/// Where nothing was before: a file without it is one whose image is not known.
#[test]
fn an_image_lies_in_a_ledger_and_in_a_checkpoint_where_it_always_will() {
    let image = Image {
        device: 0,
        inode: 12,
        birth_ns: 1_000,
        size_bytes: 8192,
        mtime_ns: 2_000,
        lasts: true,
        below: 0,
        marked: Marked::Unknown,
    };
    let words: Vec<u8> = [12u64, 1_000, 8192, 2_000]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let ledger = Ledger { image, ..ledger() };
    let bytes = ledger.encode();
    assert_eq!(bytes[236..268], words);
    assert_eq!(Ledger::parse(&bytes).as_ref(), Ok(&ledger));
    assert_eq!(bytes[268..276], [0; 8]);
    let below = Image {
        below: 0x0102_0304,
        ..image
    };
    let above = Ledger {
        image: below,
        ..self::ledger()
    };
    let bytes = above.encode();
    assert_eq!(bytes[268..276], 0x0102_0304_u64.to_le_bytes());
    assert_eq!(Ledger::parse(&bytes), Ok(above));
    assert_eq!(bytes[276..288], [0; 12]);
    let mark = Mark {
        volume: ledger.volume,
        generation: Generation(5),
        serial: Serial(0x0708),
    };
    let marked = Image {
        marked: Marked::By(mark),
        ..image
    };
    let marked = Ledger {
        image: marked,
        ..self::ledger()
    };
    let bytes = marked.encode();
    assert_eq!(bytes[276..284], 0x0708_u64.to_le_bytes());
    assert_eq!(bytes[284..288], 5_u32.to_le_bytes());
    assert_eq!(Ledger::parse(&bytes), Ok(marked));
    let overlay = VolumeRecord {
        under: image,
        ..volume(0, Policy::Ephemeral)
    };
    let checkpoint = checkpoint(vec![overlay], Vec::new());
    let bytes = checkpoint.encode();
    assert_eq!(bytes[4096 + 964..][..32], words);
    assert_eq!(Checkpoint::parse(&bytes, CACHE), Ok(checkpoint));
}
