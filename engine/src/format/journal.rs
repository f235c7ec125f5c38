//! The redo journal beside an origin: header, table, payload.
//!
//! Holds the last state of every sector between two serials, so that applying it any number of
//! times gives the same image. Written whole and synced before the ledger says *apply*; each
//! piece of payload carries its checksum, so that a replay never writes wrong bytes.

use super::record::{EntryKind, MAX_SECTOR};
use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, seal, zeroes};
use crate::types::{BLOCK_BYTES, Generation, SECTOR_BYTES, Serial, Span, Uuid};
use alloc::vec::Vec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const HEADER_BYTES: usize = BLOCK_BYTES as usize;
const ENTRY_BYTES: usize = 32;
/// Bound of one journal's table; a destage larger than this is cut by serial.
pub const ENTRIES_MAX: usize = 1 << 24;

/// Sectors of one piece of payload: the largest chunk.
const PIECE_SECTORS_MAX: u64 = super::record::SUMS_MAX as u64 * crate::types::BLOCK_SECTORS;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub prefix: Prefix,
    pub volume: [u8; 16],
    pub sequence: U64,
    pub upto: U64,
    pub total_bytes: U64,
    pub generation: U32,
    pub entries: U32,
    pub table_checksum: U32,
    pub reserved: U32,
}

const _: () = assert!(size_of::<HeaderBytes>() == PREFIX_BYTES + 56);
const _: () = assert!(size_of::<HeaderBytes>() <= HEADER_BYTES);
const _: () = assert!(ENTRIES_MAX <= u32::MAX as usize, "a count fits its field");

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryBytes {
    pub sector: U64,
    pub offset: U64,
    pub sectors: U32,
    pub checksum: U32,
    pub kind: u8,
    pub flags: u8,
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<EntryBytes>() == ENTRY_BYTES);

/// One range of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pub span: Span,
    pub kind: EntryKind,
    /// Where its payload lies in the journal, in whole sectors; what is written together begins
    /// with a block. Of a zero entry, 0.
    pub offset: u64,
    pub checksum: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    pub volume: Uuid,
    pub generation: Generation,
    pub sequence: u64,
    pub upto: Serial,
    /// Header, table and payload together.
    pub total_bytes: u64,
    pub entries: Vec<JournalEntry>,
}

/// Bytes of header and table for so many entries: where the payload starts.
pub fn payload_at(entries: usize) -> u64 {
    HEADER_BYTES as u64 + (entries as u64 * ENTRY_BYTES as u64).next_multiple_of(BLOCK_BYTES)
}

impl Journal {
    /// Header and table.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = block(payload_at(self.entries.len()) as usize);
        assert!(self.entries.len() <= ENTRIES_MAX);
        let mut at = HEADER_BYTES;
        for entry in &self.entries {
            let (kind, flags) = entry.kind.codes();
            let record = EntryBytes {
                sector: U64::new(entry.span.sector),
                offset: U64::new(entry.offset),
                sectors: U32::new(entry.span.sectors as u32),
                checksum: U32::new(entry.checksum),
                kind,
                flags,
                reserved: [0; 6],
            };
            bytes[at..at + ENTRY_BYTES].copy_from_slice(record.as_bytes());
            at += ENTRY_BYTES;
        }
        let header = HeaderBytes {
            prefix: Prefix::new(Kind::Journal),
            volume: self.volume.0,
            sequence: U64::new(self.sequence),
            upto: U64::new(self.upto.0),
            total_bytes: U64::new(self.total_bytes),
            generation: U32::new(self.generation.0),
            entries: U32::new(self.entries.len() as u32),
            table_checksum: U32::new(super::checksum(&[&bytes[HEADER_BYTES..]])),
            reserved: U32::new(0),
        };
        bytes[..size_of::<HeaderBytes>()].copy_from_slice(header.as_bytes());
        seal(&mut bytes[..HEADER_BYTES]);
        bytes
    }

    /// How many entries the table behind this header has.
    pub fn parse_entries(bytes: &[u8]) -> Result<usize, FormatError> {
        Ok(parse_header(bytes)?.entries.get() as usize)
    }

    /// Header and table; the payload is checked piece by piece where it is read.
    pub fn parse(bytes: &[u8]) -> Result<Journal, FormatError> {
        let header = *parse_header(bytes)?;
        let count = header.entries.get() as usize;
        let end = payload_at(count);
        let table = bytes
            .get(HEADER_BYTES..end as usize)
            .ok_or(FormatError::Short)?;
        if super::checksum(&[table]) != header.table_checksum.get() {
            return Err(FormatError::Checksum);
        }
        let mut entries = Vec::with_capacity(count);
        for bytes in table.chunks_exact(ENTRY_BYTES).take(count) {
            entries.push(parse_entry(bytes, end, header.total_bytes.get())?);
        }
        Ok(Journal {
            volume: Uuid(header.volume),
            generation: Generation(header.generation.get()),
            sequence: header.sequence.get(),
            upto: Serial(header.upto.get()),
            total_bytes: header.total_bytes.get(),
            entries,
        })
    }
}

fn parse_header(bytes: &[u8]) -> Result<&HeaderBytes, FormatError> {
    let block = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    check(block, Kind::Journal)?;
    let (header, rest) = HeaderBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
    zeroes(rest)?;
    zeroes(header.reserved.as_bytes())?;
    if header.entries.get() as usize > ENTRIES_MAX {
        return Err(FormatError::Field("journal entries"));
    }
    Ok(header)
}

fn parse_entry(bytes: &[u8], payload_at: u64, total: u64) -> Result<JournalEntry, FormatError> {
    let record = EntryBytes::ref_from_bytes(bytes).map_err(|_| FormatError::Short)?;
    zeroes(&record.reserved)?;
    let kind = EntryKind::of(record.kind, record.flags)?;
    let span = Span::new(record.sector.get(), u64::from(record.sectors.get()));
    if span.sectors == 0 || span.sector > MAX_SECTOR || span.sectors > MAX_SECTOR - span.sector {
        return Err(FormatError::Field("entry range"));
    }
    let offset = record.offset.get();
    let fits = match kind {
        EntryKind::Zero { .. } => offset == 0,
        EntryKind::Write => {
            span.sectors <= PIECE_SECTORS_MAX
                && offset >= payload_at
                && offset % SECTOR_BYTES == 0
                && total >= offset
                && total - offset >= span.sectors * SECTOR_BYTES
        }
    };
    if !fits {
        return Err(FormatError::Field("entry payload"));
    }
    Ok(JournalEntry {
        span,
        kind,
        offset,
        checksum: record.checksum.get(),
    })
}
