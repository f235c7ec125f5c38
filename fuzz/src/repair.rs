//! Makes the checksums of damaged structures right again, so that what lies behind is reached.
//!
//! Always true: only checksum fields are changed. Deliberately absent: any judgement; a repaired
//! structure may still be nonsense, and that is the point.

use engine::format::{self, MAGIC, VERSION, checkpoint, fill, footer, journal, record};
use engine::types::{Geometry, Span, Uuid};
use std::mem::offset_of;

/// Magic, version and kind, as every structure begins.
pub fn stamp(bytes: &mut [u8], kind: format::Kind) {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(kind as u16).to_le_bytes());
    if let Some(place) = bytes.get_mut(..head.len()) {
        place.copy_from_slice(&head);
    }
}

/// The checksum over the first `length` bytes.
pub fn seal(bytes: &mut [u8], length: usize) {
    if let Some(structure) = bytes.get_mut(..length) {
        format::seal(structure);
    }
}

fn put(bytes: &mut [u8], at: usize, sum: u32) {
    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The checksum of the bytes behind a 4 KiB header up to `end`, stored in the header at `at`.
fn sum_body(bytes: &mut [u8], at: usize, end: u64) {
    let end = usize::try_from(end).unwrap_or(usize::MAX);
    if let Some(body) = bytes.get(4096..end) {
        let sum = format::checksum(&[body]);
        put(bytes, at, sum);
        seal(bytes, 4096);
    }
}

pub fn checkpoint(bytes: &mut [u8]) {
    seal(bytes, 4096);
    if let Ok(end) = checkpoint::Checkpoint::parse_length(bytes, bytes.len() as u64) {
        sum_body(
            bytes,
            offset_of!(checkpoint::HeaderBytes, tables_checksum),
            end,
        );
    }
}

pub fn footer(bytes: &mut [u8], geometry: Geometry, cache: Uuid) {
    seal(bytes, 4096);
    if let Ok((_, end)) = footer::Footer::parse_header(bytes, geometry, cache) {
        sum_body(bytes, offset_of!(footer::HeaderBytes, body_checksum), end);
    }
}

pub fn fill_footer(bytes: &mut [u8], geometry: Geometry, cache: Uuid) {
    seal(bytes, 4096);
    if let Ok((_, end)) = fill::FillFooter::parse_header(bytes, geometry, cache) {
        sum_body(bytes, offset_of!(fill::FooterBytes, body_checksum), end);
    }
}

pub fn journal(bytes: &mut [u8]) {
    seal(bytes, 4096);
    if let Ok(entries) = journal::Journal::parse_entries(bytes) {
        let end = journal::payload_at(entries);
        sum_body(bytes, offset_of!(journal::HeaderBytes, table_checksum), end);
    }
}

/// The identity, each entry bound to its payload sums, and the whole block.
pub fn record(bytes: &mut [u8]) {
    use record::{ENTRIES_AT, ENTRY_BYTES, HeadBytes, Shape};
    if bytes.len() < record::HEADER_BYTES {
        return;
    }
    let shape = match bytes[offset_of!(format::Prefix, kind)] == format::Kind::InlineRecord as u8 {
        true => Shape::Inline,
        false => Shape::Blocks,
    };
    let identity = offset_of!(HeadBytes, identity);
    let sum = format::checksum(&[&bytes[identity + 4..offset_of!(HeadBytes, entries)]]);
    put(bytes, identity, sum);
    let incarnation = copied(bytes, offset_of!(HeadBytes, incarnation), 8);
    let stream_seq = copied(bytes, offset_of!(HeadBytes, stream_seq), 8);
    let mut next_block = 0;
    for index in 0..shape.entries_max() {
        let at = ENTRIES_AT + index * ENTRY_BYTES;
        let entry = copied(bytes, at + 4, ENTRY_BYTES - 4);
        let blocks = payload_blocks(&bytes[at..at + ENTRY_BYTES]);
        if next_block + blocks > shape.sums_max() {
            break;
        }
        let sums = match inline_sum(bytes, at) {
            Some(sum) => sum.to_le_bytes().to_vec(),
            None => copied(bytes, shape.sums_at() + next_block * 4, blocks * 4),
        };
        let sum = format::checksum(&[&incarnation, &stream_seq, &entry, &sums]);
        put(bytes, at, sum);
        next_block += blocks;
    }
    seal(bytes, record::HEADER_BYTES);
}

/// The sum of the payload that an entry has in the header block, if it claims one that fits.
fn inline_sum(bytes: &[u8], entry: usize) -> Option<u32> {
    use record::EntryBytes;
    let field = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let sector = field(entry + offset_of!(EntryBytes, first_block));
    let sectors = field(entry + offset_of!(EntryBytes, sectors));
    // Kind 3 is a write whose payload lies in the header block.
    let is_inline = bytes[entry + offset_of!(EntryBytes, kind)] == 3;
    let payload = bytes.get(sector * 512..(sector + sectors) * 512);
    let payload = payload.filter(|_| is_inline)?;
    Some(format::checksum(&[payload]))
}

fn copied(bytes: &[u8], at: usize, count: usize) -> Vec<u8> {
    bytes[at..at + count].to_vec()
}

/// How many blocks an entry of a record claims; more than there can be where it overflows.
fn payload_blocks(entry: &[u8]) -> usize {
    use record::EntryBytes;
    let sector = offset_of!(EntryBytes, sector);
    let sectors = offset_of!(EntryBytes, sectors);
    let sector = u64::from_le_bytes(entry[sector..sector + 8].try_into().expect("8 bytes"));
    let sectors = u32::from_le_bytes(entry[sectors..sectors + 4].try_into().expect("4 bytes"));
    // Kind 1 is a write; entries without payload have none to be bound to.
    if entry[offset_of!(EntryBytes, kind)] != 1 {
        return 0;
    }
    if sector > record::MAX_SECTOR {
        return record::SUMS_MAX + 1;
    }
    Span::new(sector, u64::from(sectors)).blocks() as usize
}
