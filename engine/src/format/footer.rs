//! The footer of a segment: its entries sorted by volume and sector, and the sums of its blocks.
//!
//! Lies in the last chunk of the segment and is written when all records of the segment have
//! been. It makes recovery and evacuation read one place instead of every record. Nothing
//! depends on it: without a footer the records are read one by one.

use super::record::{EntryKind, MAX_SECTOR, flags_of, inline_at, split_flags};
use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, seal, zeroes};
use crate::types::{BLOCK_BYTES, EpochNumber, Generation, Geometry, Serial, Span, Uuid, VolumeId};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const HEADER_BYTES: usize = BLOCK_BYTES as usize;
const ENTRY_BYTES: usize = 40;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub prefix: Prefix,
    pub cache: [u8; 16],
    pub shard: U16,
    pub stream: U16,
    pub body_checksum: U32,
    pub incarnation: U64,
    pub segment_seq: U64,
    pub first_stream_seq: U64,
    pub last_stream_seq: U64,
    pub durable_upto: U64,
    pub entries: U32,
    pub sums: U32,
}

const _: () = assert!(size_of::<HeaderBytes>() == PREFIX_BYTES + 72);
const _: () = assert!(size_of::<HeaderBytes>() <= HEADER_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EntryBytes {
    pub volume: U32,
    pub generation: U32,
    pub serial: U64,
    pub sector: U64,
    pub sectors: U32,
    pub block: U32,
    pub kind: u8,
    pub flags: u8,
    pub inline: u8,
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<EntryBytes>() == ENTRY_BYTES);

/// One entry of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    pub volume: VolumeId,
    pub generation: Generation,
    pub serial: Serial,
    pub span: Span,
    pub kind: EntryKind,
    /// Block within the segment: first payload block, or the record's header of an entry without.
    pub block: u32,
    /// Where in the header block its payload begins, in sectors, if it lies there.
    pub inline: Option<u8>,
    /// The write goes on in a further entry of the same serial.
    pub more: bool,
    pub epoch: EpochNumber,
}

impl FooterEntry {
    /// Blocks that it needs to be whole; of zeroes the header that says so.
    pub fn blocks_needed(&self) -> u64 {
        match (self.kind, self.inline) {
            (EntryKind::Write, None) => self.span.blocks(),
            (EntryKind::Write, Some(_)) | (EntryKind::Zero { .. }, _) => 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    pub cache: Uuid,
    pub stream: u16,
    pub incarnation: u64,
    pub segment_seq: u64,
    pub first_stream_seq: u64,
    pub last_stream_seq: u64,
    pub durable_upto: u64,
    pub entries: Vec<FooterEntry>,
    /// One checksum per block of the segment before the footer; of header blocks without payload,
    /// 0.
    pub sums: Vec<u32>,
}

/// Blocks of a segment before its footer.
pub fn body_blocks(geometry: Geometry) -> u32 {
    (geometry.segment_chunks - 1) * geometry.chunk_blocks
}

/// Entries that fit into a footer; the segment is sealed when it has so many.
pub fn entries_max(geometry: Geometry) -> usize {
    let taken = HEADER_BYTES + body_blocks(geometry) as usize * 4;
    let room = (geometry.chunk_bytes() as usize).saturating_sub(taken);
    room / ENTRY_BYTES
}

impl Footer {
    /// Bytes to write at the start of the last chunk; a multiple of a block.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.entries.len() * ENTRY_BYTES + self.sums.len() * 4;
        let mut bytes = block(HEADER_BYTES + body.next_multiple_of(BLOCK_BYTES as usize));
        let mut at = HEADER_BYTES;
        for entry in &self.entries {
            let (kind, flags) = entry.kind.codes_at(entry.inline);
            let flags = flags_of(flags, entry.more, entry.epoch);
            let record = EntryBytes {
                volume: U32::new(entry.volume.0),
                generation: U32::new(entry.generation.0),
                serial: U64::new(entry.serial.0),
                sector: U64::new(entry.span.sector),
                sectors: U32::new(entry.span.sectors as u32),
                block: U32::new(entry.block),
                kind,
                flags,
                inline: entry.inline.unwrap_or(0),
                reserved: [0; 5],
            };
            bytes[at..at + ENTRY_BYTES].copy_from_slice(record.as_bytes());
            at += ENTRY_BYTES;
        }
        for sum in &self.sums {
            bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            at += 4;
        }
        assert!(at == HEADER_BYTES + body, "the counts say what follows");
        let header = HeaderBytes {
            prefix: Prefix::new(Kind::Footer),
            cache: self.cache.0,
            shard: U16::new(0),
            stream: U16::new(self.stream),
            body_checksum: U32::new(super::checksum(&[&bytes[HEADER_BYTES..]])),
            incarnation: U64::new(self.incarnation),
            segment_seq: U64::new(self.segment_seq),
            first_stream_seq: U64::new(self.first_stream_seq),
            last_stream_seq: U64::new(self.last_stream_seq),
            durable_upto: U64::new(self.durable_upto),
            entries: U32::new(self.entries.len() as u32),
            sums: U32::new(self.sums.len() as u32),
        };
        bytes[..size_of::<HeaderBytes>()].copy_from_slice(header.as_bytes());
        seal(&mut bytes[..HEADER_BYTES]);
        bytes
    }

    /// The header alone: who the footer is and how many bytes it has in all.
    pub fn parse_header(
        bytes: &[u8],
        geometry: Geometry,
        cache: Uuid,
    ) -> Result<(Footer, u64), FormatError> {
        let block = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
        check(block, Kind::Footer)?;
        let (header, rest) = HeaderBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        if header.cache != cache.0 {
            return Err(FormatError::Foreign);
        }
        if header.shard.get() != 0 {
            return Err(FormatError::Field("shard"));
        }
        let entries = header.entries.get() as usize;
        if entries > entries_max(geometry) || header.sums.get() != body_blocks(geometry) {
            return Err(FormatError::Field("footer counts"));
        }
        let body = entries * ENTRY_BYTES + header.sums.get() as usize * 4;
        let bytes = HEADER_BYTES + body.next_multiple_of(BLOCK_BYTES as usize);
        let footer = Footer {
            cache,
            stream: header.stream.get(),
            incarnation: header.incarnation.get(),
            segment_seq: header.segment_seq.get(),
            first_stream_seq: header.first_stream_seq.get(),
            last_stream_seq: header.last_stream_seq.get(),
            durable_upto: header.durable_upto.get(),
            entries: Vec::new(),
            sums: Vec::new(),
        };
        Ok((footer, bytes as u64))
    }

    pub fn parse(bytes: &[u8], geometry: Geometry, cache: Uuid) -> Result<Footer, FormatError> {
        let (mut footer, length) = Footer::parse_header(bytes, geometry, cache)?;
        let (header, _) = HeaderBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        let body = bytes
            .get(HEADER_BYTES..length as usize)
            .ok_or(FormatError::Short)?;
        if super::checksum(&[body]) != header.body_checksum.get() {
            return Err(FormatError::Checksum);
        }
        let count = header.entries.get() as usize;
        let (entries, sums) = body.split_at(count * ENTRY_BYTES);
        for bytes in entries.chunks_exact(ENTRY_BYTES) {
            footer.entries.push(parse_entry(bytes, geometry)?);
        }
        let sums_bytes = header.sums.get() as usize * 4;
        footer.sums.extend(
            sums[..sums_bytes]
                .chunks_exact(4)
                .map(|sum| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])),
        );
        Ok(footer)
    }
}

fn parse_entry(bytes: &[u8], geometry: Geometry) -> Result<FooterEntry, FormatError> {
    let record = EntryBytes::ref_from_bytes(bytes).map_err(|_| FormatError::Short)?;
    zeroes(&record.reserved)?;
    let (flags, more, epoch) = split_flags(record.flags);
    let (kind, inline) = EntryKind::parse_at(record.kind, flags)?;
    let span = Span::new(record.sector.get(), u64::from(record.sectors.get()));
    if span.sectors == 0 || span.sector > MAX_SECTOR || span.sectors > MAX_SECTOR - span.sector {
        return Err(FormatError::Field("entry range"));
    }
    let inline = match (inline, record.inline) {
        (true, sector) => Some(inline_at(u64::from(sector), span.sectors)?),
        (false, 0) => None,
        (false, _) => return Err(FormatError::Field("inline payload")),
    };
    let entry = FooterEntry {
        volume: VolumeId(record.volume.get()),
        generation: Generation(record.generation.get()),
        serial: Serial(record.serial.get()),
        span,
        kind,
        block: record.block.get(),
        inline,
        more,
        epoch,
    };
    if u64::from(entry.block) + entry.blocks_needed() > u64::from(body_blocks(geometry)) {
        return Err(FormatError::Field("entry block"));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_of_another_shard_is_refused() {
        let geometry = Geometry {
            chunk_blocks: 64,
            segment_chunks: 4,
            segments: 12,
        };
        let footer = Footer {
            cache: Uuid([3; 16]),
            stream: 1,
            incarnation: 1,
            segment_seq: 5,
            first_stream_seq: 1,
            last_stream_seq: 2,
            durable_upto: 1,
            entries: Vec::new(),
            sums: (0..body_blocks(geometry)).collect(),
        };
        let mut bytes = footer.encode();
        assert_eq!(
            Footer::parse(&bytes, geometry, footer.cache),
            Ok(footer.clone())
        );
        bytes[PREFIX_BYTES + 16] = 1;
        seal(&mut bytes[..HEADER_BYTES]);
        let parsed = Footer::parse(&bytes, geometry, footer.cache);
        assert_eq!(parsed, Err(FormatError::Field("shard")));
    }
}
