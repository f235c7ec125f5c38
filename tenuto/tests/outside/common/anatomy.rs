//! Where the structures of docs/format.md lie in the files of a host, and their fields.
//!
//! Owns the search for each structure in cache device, ledger, journal and stage. Always true: the
//! fields are those of the tables of the document, so that none can be forgotten; a part is listed
//! only where a valid structure lies. Deliberately absent: what happens when one is damaged.

use engine::format::checkpoint::Checkpoint;
use engine::format::fill::{FillFooter, FillRecord};
use engine::format::footer::Footer;
use engine::format::journal::{Journal, payload_at};
use engine::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger};
use engine::format::record::{self, Record};
use engine::format::stage::{self, StageHeader, StageSlot};
use engine::format::superblock::{CHECKPOINT_AT, SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};

const BLOCK: usize = 4096;

/// A field as the table of its structure has it.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub at: usize,
    pub bytes: usize,
}

/// The fields of a structure, from the table under its heading.
pub fn fields(structure: &str) -> Vec<Field> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    let text = std::fs::read_to_string(path).expect("read the document");
    let heading = format!("### {structure}");
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let table = lines.take_while(|line| !line.starts_with('#'));
    let rows = table.filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let at = cells.next()?.parse().ok()?;
        let bytes = cells.next()?.parse().ok()?;
        let name = cells.next()?.trim_matches('`').to_owned();
        Some(Field { name, at, bytes })
    });
    let fields: Vec<Field> = rows.collect();
    assert!(!fields.is_empty(), "a table under {heading:?}");
    fields
}

/// One structure, or payload, at its place in a file.
#[derive(Clone, Debug)]
pub struct Part {
    /// The heading of its table; of payload a name of our own.
    pub structure: &'static str,
    /// Which one of its kind, in words.
    pub which: &'static str,
    pub at: usize,
    pub bytes: usize,
    /// What orders those of one kind: the larger is the newer.
    pub age: u64,
}

fn part(structure: &'static str, at: usize, bytes: usize, age: u64) -> Part {
    Part {
        structure,
        which: "",
        at,
        bytes,
        age,
    }
}

/// Everything valid on a cache device.
pub fn of_cache(device: &[u8]) -> Vec<Part> {
    let mut parts = Vec::new();
    for at in SUPERBLOCK_AT.map(|at| at as usize) {
        if Superblock::parse(&device[at..at + SUPERBLOCK_BYTES]).is_ok() {
            parts.push(part("Superblock", at, SUPERBLOCK_BYTES, 0));
        }
    }
    let first = &device[parts.first().expect("a superblock").at..][..SUPERBLOCK_BYTES];
    let superblock = Superblock::parse(first).expect("it was valid");
    let slot_bytes = superblock.checkpoint_slot_bytes;
    for slot in 0..2 {
        let at = (CHECKPOINT_AT + slot * slot_bytes) as usize;
        let bytes = &device[at..at + slot_bytes as usize];
        let length = Checkpoint::parse_length(&bytes[..BLOCK], slot_bytes);
        let Ok(length) = length.map(|length| length as usize) else {
            continue;
        };
        let Ok(checkpoint) = Checkpoint::parse(&bytes[..length], superblock.cache) else {
            continue;
        };
        let age = checkpoint.sequence;
        parts.push(part("Checkpoint header", at, length, age));
        if !checkpoint.volumes.is_empty() {
            parts.push(part("Checkpoint volume", at + BLOCK, 1024, age));
        }
        let table = at + BLOCK + checkpoint.volumes.len() * 1024;
        let live = bytes[table - at..length].chunks_exact(32);
        let used = live
            .clone()
            .position(|entry| entry.iter().any(|byte| *byte != 0));
        if let Some(used) = used {
            parts.push(part("Checkpoint segment", table + used * 32, 32, age));
        }
    }
    let geometry = superblock.geometry;
    let segment_bytes = geometry.segment_bytes() as usize;
    let log = &device[superblock.log_at as usize..];
    for (index, segment) in log.chunks_exact(segment_bytes).enumerate() {
        let at = superblock.log_at as usize + index * segment_bytes;
        of_segment(&mut parts, segment, at, &superblock);
    }
    parts
}

fn of_segment(parts: &mut Vec<Part>, segment: &[u8], at: usize, superblock: &Superblock) {
    let (geometry, cache) = (superblock.geometry, superblock.cache);
    let chunk = geometry.chunk_bytes() as usize;
    let end = segment.len() - chunk;
    let tail = &segment[end..];
    if let Ok(footer) = Footer::parse(tail, geometry, cache) {
        let age = footer.segment_seq;
        parts.push(part("Footer header", at + end, BLOCK, age));
        parts.push(part("Footer entry", at + end + BLOCK, 40, age));
    }
    if let Ok(footer) = FillFooter::parse(tail, geometry, cache) {
        let age = footer.life.segment_seq;
        parts.push(part("Fill footer header", at + end, BLOCK, age));
        parts.push(part("Fill run", at + end + BLOCK, 32, age));
    }
    let mut block = 0;
    while (block + 1) * BLOCK <= end {
        let here = &segment[block * BLOCK..(block + 1) * BLOCK];
        let place = at + block * BLOCK;
        block += 1;
        if let Ok(found) = record::parse_sealed(here) {
            of_record(parts, place, &found);
            block += found.sums.len();
        } else if let Ok(found) = FillRecord::parse(here, geometry, cache) {
            let age = found.life.segment_seq << 32 | block as u64;
            parts.push(part("Fill record", place, BLOCK, age));
            parts.push(part("Fill run", place + 64, 32, age));
            parts.push(part("clean payload", place + BLOCK, BLOCK, age));
            block = found.end_block() as usize;
        }
    }
}

fn of_record(parts: &mut Vec<Part>, at: usize, found: &Record) {
    // One without entries only says how far the log was synced.
    if found.entries.is_empty() {
        return;
    }
    let age = found.identity.stream_seq;
    parts.push(part("Record head", at, BLOCK, age));
    parts.push(part("Record entry", at + record::ENTRIES_AT, 48, age));
    parts.push(part("record sums", at + found.shape.sums_at(), 4, age));
    let inline = found.entries.iter().find_map(|entry| entry.inline);
    if let Some(sector) = inline {
        parts.push(part(
            "inline payload",
            at + usize::from(sector) * 512,
            512,
            age,
        ));
    }
    if found.entries.iter().any(|entry| entry.blocks() > 0) {
        parts.push(part("dirty payload", at + BLOCK, BLOCK, age));
    }
}

/// Everything valid in a ledger.
pub fn of_ledger(file: &[u8]) -> Vec<Part> {
    let slots = (0..LEDGER_SLOTS as usize).map(|slot| slot * LEDGER_BYTES);
    let valid = slots.filter_map(|at| {
        let ledger = Ledger::parse(file.get(at..at + LEDGER_BYTES)?).ok()?;
        Some(part("Ledger", at, LEDGER_BYTES, ledger.sequence))
    });
    valid.collect()
}

/// Everything in a journal that is whole.
pub fn of_journal(file: &[u8]) -> Vec<Part> {
    let Ok(entries) = file.get(..BLOCK).map_or(Ok(0), Journal::parse_entries) else {
        return Vec::new();
    };
    let table = payload_at(entries) as usize;
    let Some(Ok(journal)) = file.get(..table).map(Journal::parse) else {
        return Vec::new();
    };
    let mut parts = vec![
        part("Journal header", 0, BLOCK, 0),
        part("Journal entry", BLOCK, 32, 0),
    ];
    let payload = journal.entries.iter().find(|entry| entry.offset > 0);
    parts.extend(payload.map(|it| part("journal payload", it.offset as usize, 512, 0)));
    parts
}

/// Everything valid in a stage that the newest run filled.
pub fn of_stage(file: &[u8]) -> Vec<Part> {
    let copies = stage::HEADER_AT.map(|at| at as usize);
    let valid = copies.map(|at| StageHeader::parse(&file[at..]).ok());
    let mut parts = Vec::new();
    for (at, header) in copies.into_iter().zip(&valid) {
        if let Some(header) = header {
            parts.push(part(
                "Stage header",
                at,
                stage::HEADER_BYTES,
                header.incarnation,
            ));
        }
    }
    let newest = valid.into_iter().flatten().max_by_key(|it| it.incarnation);
    let header = newest.expect("a header of a stage");
    for index in 0..header.slots {
        let at = stage::TABLE_AT as usize + index as usize * stage::SLOT_BYTES;
        let slot = StageSlot::parse(&file[at..at + stage::SLOT_BYTES]);
        let Some(slot) = slot.ok().filter(|it| it.incarnation == header.incarnation) else {
            continue;
        };
        let age = slot.segment_seq << 32 | u64::from(slot.chunk.0);
        parts.push(part("Stage slot", at, stage::SLOT_BYTES, age));
        let bytes = stage::slot_at(index, header.slots, header.chunk_blocks) as usize;
        let of_slot = of_slot(file, bytes, header.chunk_blocks as usize, slot.stream);
        parts.extend(of_slot);
    }
    parts
}

/// The records of one slot. Those of guests that were flushed may be on the device as well.
fn of_slot(file: &[u8], at: usize, blocks: usize, stream: u16) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut block = 0;
    while block < blocks {
        let place = at + block * BLOCK;
        let Ok(found) = record::parse_open(&file[place..place + BLOCK]) else {
            break;
        };
        let payload: u64 = found.entries.iter().map(|entry| entry.blocks()).sum();
        block += 1 + payload as usize;
        // Of two streams the newer one has the larger number by chance only.
        let age = u64::from(stream) << 48 | found.identity.stream_seq;
        parts.push(part("staged record head", place, BLOCK, age));
        parts.push(part(
            "staged record entry",
            place + record::ENTRIES_AT,
            48,
            age,
        ));
        if payload > 0 {
            parts.push(part("staged payload", place + BLOCK, BLOCK, age));
        }
    }
    parts
}
