//! What the formats take at their bounds, and refuse one step beyond.
//!
//! Always true: what a structure refuses has a good checksum, so that it is its fields that are
//! looked at.

mod common;

use common::{CACHE, entry, life, open_record};
use engine::format::checkpoint::{self, Checkpoint, SegmentRecord, VolumeRecord};
use engine::format::fill::{self, FillFooter, FillRecord, Run};
use engine::format::footer::{self, Footer, body_blocks, entries_max};
use engine::format::journal::{self, Journal, JournalEntry, payload_at};
use engine::format::ledger::{Ledger, LedgerBytes, Progress};
use engine::format::record::{self, Entry, EntryKind, MAX_SECTOR};
use engine::format::stage;
use engine::format::superblock::{Superblock, SuperblockBytes};
use engine::format::{FormatError, seal};
use engine::types::{Generation, Geometry, Policy, Serial, Span, Tag, Uuid, VolumeId};
use std::mem::offset_of;

/// Segments whose footers have more entries and sums than a block holds.
const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 64,
    segment_chunks: 256,
    segments: 8,
};
const WRITE: EntryKind = EntryKind::Write;

/// Sets a field of a structure and seals it again.
fn with_field(bytes: &[u8], sealed: usize, at: usize, value: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    seal(&mut bytes[..sealed]);
    bytes
}

fn volume(id: u32, policy: Policy, flag: u32) -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(id),
        uuid: Uuid([9; 16]),
        generation: Generation(7),
        base_generation: Generation(5),
        policy,
        destage_in_place: flag & 1 != 0,
        journal_possible: flag & 2 != 0,
        ended: flag & 4 != 0,
        staged: flag & 8 != 0,
        stage_lost: flag & 16 != 0,
        damaged: flag & 32 != 0,
        first_serial: Serial(10),
        serial_next: Serial(30),
        destaged: Serial(20),
        merged_upto: Serial(0),
        standing: Default::default(),
        size_bytes: 1 << 30,
        name: "n".repeat(checkpoint::NAME_BYTES_MAX),
        origin: "o".repeat(checkpoint::ORIGIN_BYTES_MAX),
        under: Default::default(),
    }
}

fn a_checkpoint(volumes: Vec<VolumeRecord>) -> Checkpoint {
    let segment = |index, settled| SegmentRecord {
        index,
        seq: 50,
        first_stream_seq: 80,
        last_stream_seq: 90,
        stream: record::STREAM_WRITES,
        settled,
    };
    common::checkpoint(volumes, vec![segment(0, true), segment(7, false)])
}

#[test]
fn each_flag_of_a_volume_is_kept_with_any_other() {
    let policies = [
        Policy::Uncached,
        Policy::WriteBack,
        Policy::Ephemeral,
        Policy::WriteThrough,
    ];
    for policy in policies {
        let volumes = (0..64).map(|flag| volume(flag, policy, flag)).collect();
        let good = a_checkpoint(volumes);
        assert_eq!(Checkpoint::parse(&good.encode(), CACHE), Ok(good));
    }
}

#[test]
fn a_checkpoint_has_tables_of_bounded_size() {
    let bytes = a_checkpoint(Vec::new()).encode();
    let length = |at, value| {
        let bytes = with_field(&bytes, 4096, at, value);
        Checkpoint::parse_length(&bytes, u64::MAX)
    };
    let volumes = offset_of!(checkpoint::HeaderBytes, volumes);
    let segments = offset_of!(checkpoint::HeaderBytes, segments);
    let refused = Err(FormatError::Field("table sizes"));
    assert_eq!(length(volumes, 1 << 16), Ok(4096 + (1024 << 16) + 4096));
    assert_eq!(length(volumes, (1 << 16) + 1), refused);
    assert_eq!(length(volumes, u32::MAX), refused);
    assert_eq!(length(segments, 1 << 20), Ok(4096 + (32 << 20)));
    assert_eq!(length(segments, (1 << 20) + 1), refused);
    assert_eq!(length(segments, u32::MAX), refused);
    let exact = bytes.len() as u64;
    assert_eq!(Checkpoint::parse_length(&bytes, exact), Ok(exact));
    assert_eq!(Checkpoint::parse_length(&bytes, exact - 1), refused);
}

#[test]
fn a_text_fills_its_field_and_no_more() {
    let mut good = a_checkpoint(vec![volume(0, Policy::WriteBack, 0)]);
    assert_eq!(
        Checkpoint::parse(&good.encode(), CACHE).as_ref(),
        Ok(&good),
        "a full name and a full origin"
    );
    good.volumes[0].name.pop();
    let mut bytes = good.encode();
    let at = 4096 + offset_of!(checkpoint::VolumeBytes, name_bytes);
    for length in [checkpoint::NAME_BYTES_MAX as u16 + 1, u16::MAX] {
        bytes[at..at + 2].copy_from_slice(&length.to_le_bytes());
        let sum = engine::format::checksum(&[&bytes[4096..]]);
        let sum_at = offset_of!(checkpoint::HeaderBytes, tables_checksum);
        let sealed = with_field(&bytes, 4096, sum_at, sum);
        let refused = Err(FormatError::Field("text length"));
        assert_eq!(Checkpoint::parse(&sealed, CACHE), refused);
    }
}

fn a_journal(entry: JournalEntry, total_bytes: u64) -> Journal {
    Journal {
        volume: Uuid([9; 16]),
        generation: Generation(7),
        sequence: 3,
        upto: Serial(1_002),
        total_bytes,
        entries: vec![entry],
    }
}

#[test]
fn the_payload_of_a_journal_lies_behind_its_table_and_before_its_end() {
    let table = payload_at(1);
    let reads = |kind, sectors: u64, offset, total| {
        let span = Span::new(8, sectors);
        let checksum = 1;
        let entry = JournalEntry {
            span,
            kind,
            offset,
            checksum,
        };
        let journal = a_journal(entry, total);
        let parsed = Journal::parse(&journal.encode());
        if parsed.is_ok() {
            assert_eq!(parsed, Ok(journal));
            return true;
        }
        assert_eq!(parsed, Err(FormatError::Field("entry payload")));
        false
    };
    assert!(reads(WRITE, 16, table, table + 8192));
    assert!(!reads(WRITE, 16, table, table + 8191), "past the end");
    assert!(!reads(WRITE, 16, table, table), "nothing of it");
    assert!(!reads(WRITE, 16, table + 4096, table), "behind the end");
    assert!(
        !reads(WRITE, 16, table - 4096, table + 8192),
        "in the table"
    );
    assert!(reads(WRITE, 16, table + 512, table + 16384));
    assert!(
        !reads(WRITE, 16, table + 256, table + 16384),
        "off a sector"
    );
    let largest = record::SUMS_MAX as u64 * 8;
    assert!(reads(WRITE, largest, table, table + largest * 512));
    let more = (largest + 8) * 512;
    assert!(!reads(WRITE, largest + 8, table, table + more), "too large");
    let zero = EntryKind::Zero { allocate: true };
    assert!(reads(zero, 1 << 20, 0, table));
    assert!(
        !reads(zero, 16, table, table + 8192),
        "zeroes have no bytes"
    );
}

#[test]
fn a_range_ends_where_the_largest_image_does() {
    let zero = EntryKind::Zero { allocate: false };
    let in_journal = |span| {
        let entry = JournalEntry {
            span,
            kind: zero,
            offset: 0,
            checksum: 0,
        };
        Journal::parse(&a_journal(entry, payload_at(1)).encode()).map(|_| ())
    };
    let in_record = |span| {
        let mut block = open_record(&[entry(1_000, zero, span, 0, false)], &[]);
        record::seal_record(&mut block, 1, 0);
        record::parse_sealed(&block).map(|_| ())
    };
    let in_footer = |span| {
        let entry = common::in_footer(&entry(1_000, zero, span, 0, false), 1);
        let footer = common::footer(vec![entry], (0..body_blocks(GEOMETRY)).collect());
        Footer::parse(&footer.encode(), GEOMETRY, CACHE).map(|_| ())
    };
    let refused = Err(FormatError::Field("entry range"));
    let reads: [&dyn Fn(Span) -> Result<(), FormatError>; 3] =
        [&in_journal, &in_record, &in_footer];
    for reads in reads {
        let reads = |sector, sectors| reads(Span { sector, sectors });
        assert_eq!(reads(MAX_SECTOR - 16, 16), Ok(()));
        assert_eq!(reads(MAX_SECTOR - 1, 1), Ok(()));
        assert_eq!(reads(MAX_SECTOR - 16, 17), refused);
        assert_eq!(reads(MAX_SECTOR, 1), refused);
        assert_eq!(reads(MAX_SECTOR + 16, 8), refused);
        assert_eq!(reads(u64::MAX, 1), refused);
        assert_eq!(reads(8, 0), refused);
    }
}

#[test]
fn a_block_of_a_footer_lies_in_its_segment() {
    let body = body_blocks(GEOMETRY);
    let reads = |kind, block| {
        let entry = common::in_footer(&entry(1_000, kind, Span::new(8, 16), 0, false), block);
        let footer = common::footer(vec![entry], (0..body).collect());
        Footer::parse(&footer.encode(), GEOMETRY, CACHE).map(|_| ())
    };
    let refused = Err(FormatError::Field("entry block"));
    let zero = EntryKind::Zero { allocate: true };
    assert_eq!(reads(WRITE, body - 2), Ok(()));
    assert_eq!(reads(WRITE, body - 1), refused, "the second of two");
    assert_eq!(reads(zero, body - 1), Ok(()));
    assert_eq!(reads(zero, body), refused);
}

#[test]
fn a_volume_has_a_small_number() {
    let reads = |id| {
        let volume = volume(id, Policy::WriteBack, 0);
        Checkpoint::parse(&a_checkpoint(vec![volume]).encode(), CACHE).map(|_| ())
    };
    assert_eq!(reads((1 << 16) - 1), Ok(()));
    assert_eq!(reads(1 << 16), Err(FormatError::Field("volume id")));
}

#[test]
fn places_follow_from_the_sizes_of_tables() {
    assert_eq!(checkpoint::slot_bytes(3, 1000), 4096 + 36_864);
    let superblock = Superblock::new(CACHE, GEOMETRY, 1 << 16);
    let slot = 4096 + (1024 << 16) + 4096;
    assert_eq!(superblock.checkpoint_slot_bytes, slot);
    assert_eq!(
        superblock.log_at,
        (1 << 20) + (2 * slot).next_multiple_of(1 << 20)
    );
    let log = 8 * 256 * 64 * 4096;
    assert_eq!(superblock.device_bytes(), superblock.log_at + log);
    let table = (1024 * stage::SLOT_BYTES as u64).next_multiple_of(4096);
    assert_eq!([0, 1, 128, 129].map(payload_at), [4096, 8192, 8192, 12_288]);
    assert_eq!(stage::slot_at(0, 1024, 64), 4096 + table);
    assert_eq!(stage::slot_at(3, 1024, 64), 4096 + table + 3 * 64 * 4096);
}

#[test]
fn the_table_of_a_journal_is_bounded() {
    let at = offset_of!(journal::HeaderBytes, entries);
    let entries = |count: usize| {
        let bytes = Journal {
            entries: Vec::new(),
            ..a_journal(zero(), 4096)
        };
        let bytes = with_field(&bytes.encode(), 4096, at, count as u32);
        Journal::parse_entries(&bytes)
    };
    let refused = Err(FormatError::Field("journal entries"));
    assert_eq!(entries(0), Ok(0));
    assert_eq!(entries(journal::ENTRIES_MAX), Ok(journal::ENTRIES_MAX));
    assert_eq!(entries(journal::ENTRIES_MAX + 1), refused);
    assert_eq!(entries(journal::ENTRIES_MAX + 2), refused);
}

fn zero() -> JournalEntry {
    JournalEntry {
        span: Span::new(0, 8),
        kind: EntryKind::Zero { allocate: false },
        offset: 0,
        checksum: 0,
    }
}

fn a_ledger(progress: Progress, destaged: u64) -> Ledger {
    Ledger {
        destaged: Serial(destaged),
        progress,
        ..common::ledger()
    }
}

#[test]
fn a_ledger_goes_on_from_what_is_destaged() {
    let reads = |upto, destaged| {
        let apply = Progress::Apply {
            upto: Serial(upto),
            journal_sequence: 3,
            journal_bytes: 12_288,
        };
        let both = [Progress::Cut(Serial(upto)), apply].map(|progress| {
            let ledger = a_ledger(progress, destaged);
            Ledger::parse(&ledger.encode()) == Ok(ledger)
        });
        assert_eq!(both[0], both[1]);
        both[0]
    };
    assert!(reads(1_000, 999));
    assert!(reads(1_000, 1_000), "a cut of nothing new");
    assert!(!reads(1_000, 1_001));
}

fn a_footer(entries: usize) -> Footer {
    let entry = entry(1_000, WRITE, Span::new(16, 8), 0, false);
    let entries = vec![common::in_footer(&entry, 1); entries];
    common::footer(entries, (0..body_blocks(GEOMETRY)).collect())
}

#[test]
fn a_footer_fills_its_chunk_and_no_more() {
    let most = entries_max(GEOMETRY);
    let chunk = GEOMETRY.chunk_bytes() as usize;
    let bytes = a_footer(most).encode();
    assert!(bytes.len() <= chunk, "{} of {chunk}", bytes.len());
    assert!(a_footer(most + 1).encode().len() > chunk);
    let parsed = Footer::parse_header(&bytes, GEOMETRY, CACHE);
    assert_eq!(parsed.map(|it| it.1), Ok(bytes.len() as u64));
    assert_eq!(Footer::parse(&bytes, GEOMETRY, CACHE), Ok(a_footer(most)));
    let at = offset_of!(footer::HeaderBytes, entries);
    for count in [most as u32 + 1, most as u32 + 2, u32::MAX] {
        let bytes = with_field(&bytes, 4096, at, count);
        let parsed = Footer::parse_header(&bytes, GEOMETRY, CACHE).map(|it| it.1);
        assert_eq!(parsed, Err(FormatError::Field("footer counts")), "{count}");
    }
}

fn a_run() -> Run {
    Run {
        layer: Uuid([9; 16]),
        own: false,
        line: 1,
        slot: 1,
        bitmap: 1,
    }
}

#[test]
fn a_footer_of_clean_blocks_fills_its_chunk_and_no_more() {
    let most = fill::runs_max(GEOMETRY);
    let footer = |runs| FillFooter {
        life: life(),
        runs: vec![a_run(); runs],
        sums: (0..body_blocks(GEOMETRY)).collect(),
    };
    let good = footer(most);
    let bytes = good.encode();
    assert!(bytes.len() <= GEOMETRY.chunk_bytes() as usize);
    assert!(bytes.len() % 4096 == 0);
    let parsed = FillFooter::parse_header(&bytes, GEOMETRY, CACHE);
    assert_eq!(parsed, Ok((life(), bytes.len() as u64)));
    assert_eq!(FillFooter::parse(&bytes, GEOMETRY, CACHE), Ok(good));
    let least = 4096 + (32 + 4 * body_blocks(GEOMETRY) as usize).next_multiple_of(4096);
    assert_eq!(footer(1).encode().len(), least);
    let parsed = FillFooter::parse(&footer(most + 1).encode(), GEOMETRY, CACHE);
    assert_eq!(parsed, Err(FormatError::Field("fill counts")));
}

#[test]
fn a_run_of_clean_blocks_has_some_and_lies_in_an_image() {
    let reads = |change: fn(&mut Run)| {
        let mut run = a_run();
        change(&mut run);
        let record = FillRecord {
            life: life(),
            block: 0,
            sums: vec![1; run.blocks().max(1) as usize],
            runs: vec![run],
        };
        FillRecord::parse(&record.encode(), GEOMETRY, CACHE)
    };
    let refused = Err(FormatError::Field("run"));

    assert!(reads(|_| {}).is_ok());
    assert_eq!(reads(|run| run.bitmap = 0), refused);
    assert_eq!(reads(|run| run.line = u64::MAX), refused);
    let behind = reads(|run| run.line = MAX_SECTOR / (8 * fill::LINE_BLOCKS) + 1);
    assert_eq!(behind, refused);
}

#[test]
fn a_record_has_as_many_blocks_as_a_chunk() {
    let sums = [5; record::SUMS_MAX + 16];
    // Two entries of which the second has so many blocks.
    let reads = |first: u16, second: u16| {
        let write = |serial, blocks, from| {
            let span = Span::new(8, u64::from(blocks) * 8);
            entry(serial, WRITE, span, from, false)
        };
        let entries = [write(1_000, first, 0), write(1_001, second, first)];
        let mut block = open_record(&entries, &sums);
        let all = (first + second).min(record::SUMS_MAX as u16);
        record::seal_record(&mut block, 2, all);
        record::parse_sealed(&block).map(|it| it.entries.len())
    };
    let most = record::SUMS_MAX as u16;
    assert_eq!(reads(most - 2, 2), Ok(2));
    let refused = Err(FormatError::Field("entry payload"));
    assert_eq!(reads(most - 2, 3), refused);
    assert_eq!(reads(most - 2, 8), refused);
}

#[test]
fn the_smallest_footer_of_a_cache_has_room_for_four_records() {
    let reads = |segment_chunks| {
        let geometry = Geometry {
            chunk_blocks: 4,
            segment_chunks,
            segments: 8,
        };
        let room = entries_max(geometry);
        (
            room,
            Superblock::parse(&Superblock::new(CACHE, geometry, 1).encode()),
        )
    };
    let four = 4 * record::ENTRIES_MAX;
    let (room, parsed) = reads(129);
    assert_eq!((room, parsed.is_ok()), (four, true));
    let (room, parsed) = reads(132);
    assert!(room < four, "{room} entries");
    assert_eq!(parsed, Err(FormatError::Field("footer room")));
}

#[test]
fn writes_alone_have_tags() {
    let reads = |kind, blocks, region, counter| {
        let span = Span::new(8, 8);
        let tag = Tag { region, counter };
        let entry = Entry {
            tag,
            ..entry(1_000, kind, span, 0, false)
        };
        let mut block = open_record(&[entry], &[5; 1][..blocks]);
        record::seal_record(&mut block, 1, blocks as u16);
        record::parse_sealed(&block).map(|it| it.entries[0].tag)
    };
    let refused = Err(FormatError::Field("entry tag"));
    let zero = EntryKind::Zero { allocate: true };
    let (region, counter) = (3, 4);
    assert_eq!(
        reads(WRITE, 1, region, counter),
        Ok(Tag { region, counter })
    );
    assert_eq!(reads(WRITE, 1, 0, 0), Ok(Tag::NONE));
    assert_eq!(reads(WRITE, 1, 0, counter), refused, "a counter of nothing");
    assert_eq!(reads(zero, 0, 0, 0), Ok(Tag::NONE));
    assert_eq!(reads(zero, 0, region, counter), refused);
    assert_eq!(reads(zero, 0, 0, counter), refused);
}

#[test]
fn a_record_has_a_bounded_number_of_entries() {
    let reads = |entries, blocks| {
        let mut block = open_record(&[], &[]);
        record::seal_record(&mut block, entries, blocks);
        record::parse_sealed(&block).map(|it| it.entries.len())
    };
    let refused = Err(FormatError::Field("record counts"));
    assert_eq!(reads(0, 0), Ok(0));
    let zeroes = EntryKind::Zero { allocate: false };
    let full = [entry(1_000, zeroes, Span::new(8, 8), 0, false); record::ENTRIES_MAX];
    let mut block = open_record(&full, &[]);
    record::seal_record(&mut block, record::ENTRIES_MAX as u16, 0);
    let most = record::parse_sealed(&block).map(|it| it.entries.len());
    assert_eq!(most, Ok(record::ENTRIES_MAX));
    assert_eq!(reads(record::ENTRIES_MAX as u16 + 1, 0), refused);
    assert_eq!(reads(u16::MAX, 0), refused);
    assert_eq!(reads(0, record::SUMS_MAX as u16 + 1), refused);
    assert_eq!(reads(0, u16::MAX), refused);
}

#[test]
fn a_record_of_clean_blocks_ends_with_its_segment() {
    let body = body_blocks(GEOMETRY);
    let reads = |block, sums: usize| {
        let record = FillRecord {
            life: life(),
            block,
            runs: vec![Run {
                slot: block + 1,
                ..a_run()
            }],
            sums: vec![1; sums],
        };
        let parsed = FillRecord::parse(&record.encode(), GEOMETRY, CACHE);
        parsed.map(|it| it.end_block())
    };
    assert_eq!(reads(body - 2, 1), Ok(body));
    let line = Run {
        bitmap: u16::MAX,
        ..a_run()
    };
    let full = FillRecord {
        life: life(),
        block: 0,
        runs: (0..7)
            .map(|n| Run {
                slot: 1 + 16 * n,
                ..line
            })
            .collect(),
        sums: vec![1; 7 * 16],
    };
    assert_eq!(full.sums.len(), fill::RECORD_BLOCKS_MAX);
    let parsed = FillRecord::parse(&full.encode(), GEOMETRY, CACHE);
    assert_eq!(parsed, Ok(full));
    assert_eq!(reads(body - 1, 1), Err(FormatError::Field("run slot")));
    let record = FillRecord {
        life: life(),
        block: 0,
        runs: vec![a_run()],
        sums: vec![1],
    };
    let bytes = record.encode();
    let at = offset_of!(fill::RecordBytes, sums);
    for count in [0, fill::RECORD_BLOCKS_MAX as u16 + 1, u16::MAX] {
        let mut bytes = bytes.clone();
        bytes[at..at + 2].copy_from_slice(&count.to_le_bytes());
        seal(&mut bytes);
        let parsed = FillRecord::parse(&bytes, GEOMETRY, CACHE);
        assert_eq!(parsed, Err(FormatError::Field("fill counts")), "{count}");
    }
}

#[test]
fn two_ledgers_that_follow_each_other_lie_in_two_places() {
    let places = [0, 1, 2, 3, u64::MAX].map(Ledger::slot_at);
    assert_eq!(places, [0, 4096, 0, 4096, 4096]);
}

#[test]
fn a_structure_of_another_version_or_kind_is_not_read() {
    let good = Superblock::new(CACHE, GEOMETRY, 1).encode();
    let reads = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        seal(&mut bytes);
        Superblock::parse(&bytes).map(|_| ())
    };
    assert_eq!(reads(8, 1), Ok(()));
    assert_eq!(reads(0, b't'), Err(FormatError::Magic));
    assert_eq!(reads(8, 2), Err(FormatError::Version(2)));
    assert_eq!(reads(9, 1), Err(FormatError::Version(257)));
    assert_eq!(reads(10, 2), Err(FormatError::Kind));
    assert_eq!(reads(good.len() - 1, 1), Err(FormatError::Reserved));
    let at = offset_of!(SuperblockBytes, reserved);
    assert_eq!(reads(at, 1), Err(FormatError::Reserved));
    let at = offset_of!(SuperblockBytes, incompatible);
    assert_eq!(reads(at, 4), Err(FormatError::Incompatible(4)));
}

#[test]
fn a_ledger_with_a_feature_that_came_later_is_refused() {
    let bytes = a_ledger(Progress::Idle, 999).encode();
    assert!(Ledger::parse(&bytes).is_ok());
    let at = offset_of!(LedgerBytes, incompatible);
    let bytes = with_field(&bytes, bytes.len(), at, 4);
    assert_eq!(Ledger::parse(&bytes), Err(FormatError::Incompatible(4)));
}
