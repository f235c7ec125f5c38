//! `docs/format.md` held against the structures: names, offsets, sizes and kinds.
//!
//! Always true: both sides are complete, because each has to fill its structure without a gap.
//! Deliberately not checked: what the words of the document mean.

use engine::format::{
    Kind, MAGIC, PREFIX_BYTES, Prefix, VERSION, checkpoint, fill, footer, journal, ledger, record,
    stage, superblock,
};
use std::mem::{offset_of, size_of};

/// A field as it lies in its structure.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
    name: String,
}

/// A structure: the heading of its table, its size, its fields.
struct Layout {
    heading: &'static str,
    bytes: usize,
    fields: Vec<Field>,
}

fn field_bytes<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layout {
    ($heading:literal, $structure:ty, $($field:ident),+) => {
        Layout {
            heading: $heading,
            bytes: size_of::<$structure>(),
            fields: vec![$(Field {
                offset: offset_of!($structure, $field),
                size: field_bytes(|structure: &$structure| &structure.$field),
                name: stringify!($field).to_owned(),
            }),+],
        }
    };
}

#[rustfmt::skip]
fn on_the_cache_device() -> Vec<Layout> {
    vec![
        layout!("Prefix", Prefix, magic, version, kind, checksum),
        layout!(
            "Superblock", superblock::SuperblockBytes,
            prefix, incompatible, compatible, cache, shard, chunk_blocks, segment_chunks, segments,
            volumes_max, reserved, checkpoint_slot_bytes, log_at
        ),
        layout!(
            "Checkpoint header", checkpoint::HeaderBytes,
            prefix, cache, boot, sequence, incarnation, stream_seq_next, segment_seq_next,
            unwritten_from, volumes, segments, tables_checksum, generation_next, reserved
        ),
        layout!(
            "Checkpoint volume", checkpoint::VolumeBytes,
            uuid, id, generation, base_generation, policy, flags, first_serial, serial_next,
            destaged, size_bytes, name_bytes, origin_bytes, name, origin, lineage, term,
            void_above, under_inode,
            under_birth_ns, under_bytes, under_mtime_ns, merged_upto, void_below, role,
            reserved
        ),
        layout!(
            "Checkpoint segment", checkpoint::SegmentBytes,
            seq, first_stream_seq, last_stream_seq, state, stream, reserved
        ),
        layout!(
            "Record head", record::HeadBytes,
            prefix, identity, shard, stream, cache, incarnation, segment_seq, stream_seq,
            durable_upto, entries, payload_blocks, reserved
        ),
        layout!(
            "Record entry", record::EntryBytes,
            checksum, kind, flags, first_block, volume, generation, serial, sector, sectors,
            region, counter
        ),
        layout!(
            "Footer header", footer::HeaderBytes,
            prefix, cache, shard, stream, body_checksum, incarnation, segment_seq,
            first_stream_seq, last_stream_seq, durable_upto, entries, sums
        ),
        layout!(
            "Footer entry", footer::EntryBytes,
            volume, generation, serial, sector, sectors, block, kind, flags, inline, reserved
        ),
        layout!(
            "Fill record", fill::RecordBytes,
            prefix, cache, incarnation, segment_seq, block, runs, sums, reserved
        ),
        layout!(
            "Fill footer header", fill::FooterBytes,
            prefix, cache, incarnation, segment_seq, body_checksum, runs, sums, reserved
        ),
        layout!("Fill run", fill::RunBytes, layer, line, slot, bitmap, flags),
    ]
}

#[rustfmt::skip]
fn elsewhere() -> Vec<Layout> {
    vec![
        layout!(
            "Stage header", stage::HeaderBytes,
            prefix, cache, boot, incarnation, slots, chunk_blocks
        ),
        layout!(
            "Stage slot", stage::SlotBytes,
            prefix, incarnation, segment_seq, chunk, stream, reserved
        ),
        layout!(
            "Ledger", ledger::LedgerBytes,
            prefix, incompatible, compatible, sequence, volume, cache, machine, boot, generation,
            state, flags, destaged, upto, journal_sequence, journal_bytes, origin_bytes,
            mtime_before_ns, mtime_limit_ns, replicas, owner_bytes, owner, image_inode,
            image_birth_ns, image_bytes, image_mtime_ns, image_below,
            mark_serial, mark_generation
        ),
        layout!(
            "Journal header", journal::HeaderBytes,
            prefix, volume, sequence, upto, total_bytes, generation, entries, table_checksum,
            reserved
        ),
        layout!(
            "Journal entry", journal::EntryBytes,
            sector, offset, sectors, checksum, kind, flags, reserved
        ),
    ]
}

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    std::fs::read_to_string(path).expect("the document of the format")
}

/// The text under a heading, up to the next one.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let start = document
        .split_once(&format!("\n### {heading}\n"))
        .unwrap_or_else(|| panic!("the document has no heading {heading:?}"))
        .1;
    start.split("\n#").next().unwrap_or(start)
}

/// The rows of a section's table, without its head.
fn rows(section: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let inside = line.trim_matches('|').split('|');
        inside.map(|cell| cell.trim().to_owned()).collect()
    };
    let lines = section.lines().filter(|line| line.starts_with('|'));
    lines.skip(2).map(cells).collect()
}

fn documented(document: &str, heading: &str) -> Vec<Field> {
    let number = |cell: &str| -> usize {
        cell.parse()
            .unwrap_or_else(|_| panic!("{heading}: {cell:?} is not a number"))
    };
    let rows = rows(section(document, heading));
    rows.iter()
        .map(|cells| {
            assert_eq!(cells.len(), 4, "{heading}: {cells:?}");
            assert!(!cells[3].is_empty(), "{heading}: {cells:?} means nothing");
            Field {
                offset: number(&cells[0]),
                size: number(&cells[1]),
                name: cells[2].trim_matches('`').to_owned(),
            }
        })
        .collect()
}

#[test]
fn every_field_lies_where_the_document_says() {
    let document = document();
    for layout in on_the_cache_device().into_iter().chain(elsewhere()) {
        let mut end = 0;
        for field in &layout.fields {
            assert_eq!(field.offset, end, "{}: {}", layout.heading, field.name);
            end += field.size;
        }
        assert_eq!(end, layout.bytes, "{}: its end", layout.heading);
        let documented = documented(&document, layout.heading);
        assert_eq!(documented, layout.fields, "{}", layout.heading);
    }
}

#[test]
fn every_table_of_fields_in_the_document_has_a_structure() {
    let known: Vec<&str> = on_the_cache_device()
        .iter()
        .chain(&elsewhere())
        .map(|layout| layout.heading)
        .collect();
    let document = document();
    let mut found = 0;
    for heading in document
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
    {
        if section(&document, heading).contains("| offset |") {
            found += 1;
            assert!(known.contains(&heading), "{heading} has no structure");
        }
    }
    assert_eq!(found, known.len());
}

#[test]
fn kinds_and_what_their_checksums_cover_are_as_documented() {
    let kinds = [
        (Kind::Superblock, "superblock", superblock::SUPERBLOCK_BYTES),
        (Kind::Checkpoint, "checkpoint header", 4096),
        (Kind::Record, "record header", record::HEADER_BYTES),
        (Kind::Footer, "footer header", footer::HEADER_BYTES),
        (Kind::Ledger, "ledger slot", ledger::LEDGER_BYTES),
        (Kind::Journal, "journal header", journal::HEADER_BYTES),
        (Kind::Stage, "stage header copy", stage::HEADER_BYTES),
        (Kind::Stage, "stage slot entry", stage::SLOT_BYTES),
        (Kind::FillRecord, "fill record", fill::HEADER_BYTES),
        (Kind::FillFooter, "fill footer header", fill::HEADER_BYTES),
        (
            Kind::InlineRecord,
            "inline record header",
            record::HEADER_BYTES,
        ),
        // Both are laid out by the crate that decides in a cluster.
        (Kind::VaultRecord, "record of a clustered volume", 4096),
        (Kind::Pointer, "pointer to a unit", 4096),
    ];
    let rows = rows(section(&document(), "Kinds"));
    let found: Vec<[String; 3]> = rows
        .into_iter()
        .map(|cells| [cells[0].clone(), cells[1].clone(), cells[2].clone()])
        .collect();
    let expected = kinds.map(|(kind, name, bytes)| {
        [
            (kind as u16).to_string(),
            name.to_owned(),
            bytes.to_string(),
        ]
    });
    assert_eq!(found, expected);
}

#[test]
fn places_and_bounds_are_as_documented() {
    let document = document();
    let says = |text: &str| {
        let flat = document.replace('\n', " ");
        assert!(flat.contains(text), "the document does not say {text:?}");
    };
    assert_eq!(MAGIC, *b"TENUTO\r\n");
    says("`TENUTO` and the bytes 13 and 10");
    says(&format!("version of the structure, {VERSION} |"));
    says(&format!("starts with the same {PREFIX_BYTES} bytes"));
    assert_eq!(superblock::SUPERBLOCK_AT, [0, 4096]);
    assert_eq!(superblock::CHECKPOINT_AT, 1 << 20);
    says("| 0 and 4 KiB | superblock, twice the same |");
    says("| 1 MiB | checkpoint slot 0, and behind it slot 1 |");
    let (entries, sums) = (record::ENTRIES_MAX, record::SUMS_MAX);
    says(&format!(
        "From byte {} on, {entries} places",
        record::ENTRIES_AT
    ));
    says(&format!("From byte {} on, {sums} places", record::SUMS_AT));
    says(&format!("entries, at most {entries}; of an"));
    says(&format!("behind the header, at most {sums}; of an"));
    let (entries, sums) = (record::INLINE_ENTRIES_MAX, record::INLINE_SUMS_MAX);
    says(&format!("64 places; of an inline record {entries}."));
    says(&format!(
        "from byte {} on, {sums} places",
        record::INLINE_SUMS_AT
    ));
    says("from byte 1536 on, lies the payload of its entries of kind 3");
    assert_eq!(record::INLINE_FROM, 3);
    says("a write of at most 5 sectors");
    let blocks = fill::RECORD_BLOCKS_MAX;
    says(&format!("blocks behind the header, 1 to {blocks} |"));
    assert_eq!(fill::LINE_BLOCKS, 16);
    says("an aligned 64 KiB of a layer, 16 blocks");
    assert_eq!(record::MAX_SECTOR, 1 << 42);
    says("ends at or below sector 2^42");
    assert_eq!((stage::HEADER_AT, stage::TABLE_AT), ([0, 2048], 4096));
    says("two copies of the header (at 0 and 2048), at 4096 the table");
    assert_eq!(journal::ENTRIES_MAX, 1 << 24);
    says("entries of the table, at most 2^24");
    assert_eq!(
        (ledger::Ledger::slot_at(2), ledger::Ledger::slot_at(3)),
        (0, 4096)
    );
    says("two slots at 0 and 4096; sequence *n* lies in slot *n* mod 2");
}
