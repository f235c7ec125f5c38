//! Fill records and fill footers: clean blocks of layers in segments of their own.
//!
//! A *line* is an aligned 64 KiB of a layer; a *run* names blocks of one line that lie one behind
//! the other in a segment. A record is one header block with runs and sums, then its blocks; it
//! starts where its segment starts or where the record before it ends, nowhere else, so that no
//! payload is ever taken for a header. The footer repeats all runs and sums of its segment.
//! Nothing here was synced when it counts: each block is believed by its sum only, at every read.

use super::footer::body_blocks;
use super::record::MAX_SECTOR;
use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, seal, uuid, zeroes};
use crate::types::{BLOCK_BYTES, BLOCK_SECTORS, Geometry, Uuid};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of a line: as many as a run's bitmap has bits.
pub const LINE_BLOCKS: u64 = 16;
pub const HEADER_BYTES: usize = BLOCK_BYTES as usize;
const HEAD_BYTES: usize = 64;
const RUN_BYTES: usize = 32;
/// Blocks of one record: each may need a run and a sum in the header block.
pub const RECORD_BLOCKS_MAX: usize = (HEADER_BYTES - HEAD_BYTES) / (RUN_BYTES + 4);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordBytes {
    pub prefix: Prefix,
    pub cache: [u8; 16],
    pub incarnation: U64,
    pub segment_seq: U64,
    pub block: U32,
    pub runs: U16,
    pub sums: U16,
    pub reserved: U64,
}

const _: () = assert!(size_of::<RecordBytes>() == HEAD_BYTES && PREFIX_BYTES == 16);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FooterBytes {
    pub prefix: Prefix,
    pub cache: [u8; 16],
    pub incarnation: U64,
    pub segment_seq: U64,
    pub body_checksum: U32,
    pub runs: U32,
    pub sums: U32,
    pub reserved: U32,
}

const _: () = assert!(size_of::<FooterBytes>() == HEAD_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RunBytes {
    pub layer: [u8; 16],
    pub line: U64,
    pub slot: U32,
    pub bitmap: U16,
    pub flags: U16,
}

const _: () = assert!(size_of::<RunBytes>() == RUN_BYTES);
const _: () = assert!(
    HEAD_BYTES + RECORD_BLOCKS_MAX * (RUN_BYTES + 4) <= HEADER_BYTES,
    "a full record fits its header"
);

/// The layer is one that a volume writes. A program that does not know the bit refuses the run.
const FLAG_OWN: u16 = 1;

/// Blocks of a line that lie in a row: the lowest bit of the bitmap at `slot`, the next one
/// behind it, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Identity of the layer: of an image at one moment of its life.
    pub layer: Uuid,
    /// A volume writes the layer.
    pub own: bool,
    pub line: u64,
    /// Block within the segment.
    pub slot: u32,
    pub bitmap: u16,
}

/// Whose life a structure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub cache: Uuid,
    pub incarnation: u64,
    pub segment_seq: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillRecord {
    pub life: Life,
    /// Block of the segment at which this header lies.
    pub block: u32,
    pub runs: Vec<Run>,
    /// Checksums of the blocks behind the header.
    pub sums: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillFooter {
    pub life: Life,
    pub runs: Vec<Run>,
    /// One checksum per block of the segment before the footer; 0 where no run lies.
    pub sums: Vec<u32>,
}

/// Runs that fit into the footer of a segment.
pub fn runs_max(geometry: Geometry) -> usize {
    let taken = HEADER_BYTES + body_blocks(geometry) as usize * 4;
    (geometry.chunk_bytes() as usize).saturating_sub(taken) / RUN_BYTES
}

impl Run {
    pub fn blocks(&self) -> u32 {
        self.bitmap.count_ones()
    }

    fn encode(&self) -> RunBytes {
        RunBytes {
            layer: self.layer.0,
            line: U64::new(self.line),
            slot: U32::new(self.slot),
            bitmap: U16::new(self.bitmap),
            flags: U16::new(if self.own { FLAG_OWN } else { 0 }),
        }
    }

    fn parse(bytes: &[u8], geometry: Geometry) -> Result<Run, FormatError> {
        let record = RunBytes::ref_from_bytes(bytes).map_err(|_| FormatError::Short)?;
        let flags = record.flags.get();
        if flags & !FLAG_OWN != 0 {
            return Err(FormatError::Incompatible(u64::from(flags & !FLAG_OWN)));
        }
        let run = Run {
            layer: uuid(record.layer),
            own: flags & FLAG_OWN != 0,
            line: record.line.get(),
            slot: record.slot.get(),
            bitmap: record.bitmap.get(),
        };
        if run.bitmap == 0 || run.line > MAX_SECTOR / (BLOCK_SECTORS * LINE_BLOCKS) {
            return Err(FormatError::Field("run"));
        }
        if u64::from(run.slot) + u64::from(run.blocks()) > u64::from(body_blocks(geometry)) {
            return Err(FormatError::Field("run slot"));
        }
        Ok(run)
    }
}

fn put(bytes: &mut [u8], runs: &[Run], sums: &[u32]) {
    let (head, tail) = bytes.split_at_mut(runs.len() * RUN_BYTES);
    assert!(tail.len() >= sums.len() * 4, "all sums have their place");
    for (to, run) in head.chunks_exact_mut(RUN_BYTES).zip(runs) {
        to.copy_from_slice(run.encode().as_bytes());
    }
    for (to, sum) in tail.chunks_exact_mut(4).zip(sums) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

fn get(
    bytes: &[u8],
    (runs, sums): (usize, usize),
    geometry: Geometry,
) -> Result<(Vec<Run>, Vec<u32>), FormatError> {
    let (head, rest) = bytes.split_at(runs * RUN_BYTES);
    let (tail, rest) = rest.split_at(sums * 4);
    zeroes(rest)?;
    let runs = head
        .chunks_exact(RUN_BYTES)
        .map(|run| Run::parse(run, geometry));
    let runs = runs.collect::<Result<_, _>>()?;
    let sum = |sum: &[u8]| u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
    Ok((runs, tail.chunks_exact(4).map(sum).collect()))
}

impl FillRecord {
    /// The header block.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.sums.len() <= RECORD_BLOCKS_MAX && self.runs.len() <= self.sums.len(),
            "a record fits its header"
        );
        let mut bytes = block(HEADER_BYTES);
        let head = RecordBytes {
            prefix: Prefix::new(Kind::FillRecord),
            cache: self.life.cache.0,
            incarnation: U64::new(self.life.incarnation),
            segment_seq: U64::new(self.life.segment_seq),
            block: U32::new(self.block),
            runs: U16::new(self.runs.len() as u16),
            sums: U16::new(self.sums.len() as u16),
            reserved: U64::new(0),
        };
        bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        put(&mut bytes[HEAD_BYTES..], &self.runs, &self.sums);
        seal(&mut bytes);
        bytes
    }

    pub fn parse(bytes: &[u8], geometry: Geometry, cache: Uuid) -> Result<FillRecord, FormatError> {
        let bytes = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
        check(bytes, Kind::FillRecord)?;
        let (head, body) = RecordBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        zeroes(head.reserved.as_bytes())?;
        if head.cache != cache.0 {
            return Err(FormatError::Foreign);
        }
        let counts = (usize::from(head.runs.get()), usize::from(head.sums.get()));
        if counts.1 == 0 || counts.1 > RECORD_BLOCKS_MAX || counts.0 > counts.1 {
            return Err(FormatError::Field("fill counts"));
        }
        let (runs, sums) = get(body, counts, geometry)?;
        let record = FillRecord {
            life: Life {
                cache,
                incarnation: head.incarnation.get(),
                segment_seq: head.segment_seq.get(),
            },
            block: head.block.get(),
            runs,
            sums,
        };
        // Its blocks lie behind it, in the order of its runs.
        let body = body_blocks(geometry);
        if record.block >= body || record.end_block() > body {
            return Err(FormatError::Field("fill place"));
        }
        let mut at = record.block + 1;
        for run in &record.runs {
            if run.slot != at {
                return Err(FormatError::Field("run slot"));
            }
            at += run.blocks();
        }
        if at != record.end_block() {
            return Err(FormatError::Field("fill counts"));
        }
        Ok(record)
    }

    /// The block behind its last one.
    pub fn end_block(&self) -> u32 {
        self.block + 1 + self.sums.len() as u32
    }
}

impl FillFooter {
    /// Bytes to write at the start of the last chunk; a multiple of a block.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.runs.len() * RUN_BYTES + self.sums.len() * 4;
        let mut bytes = block(HEADER_BYTES + body.next_multiple_of(HEADER_BYTES));
        put(&mut bytes[HEADER_BYTES..], &self.runs, &self.sums);
        let head = FooterBytes {
            prefix: Prefix::new(Kind::FillFooter),
            cache: self.life.cache.0,
            incarnation: U64::new(self.life.incarnation),
            segment_seq: U64::new(self.life.segment_seq),
            body_checksum: U32::new(super::checksum(&[&bytes[HEADER_BYTES..]])),
            runs: U32::new(self.runs.len() as u32),
            sums: U32::new(self.sums.len() as u32),
            reserved: U32::new(0),
        };
        bytes[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        seal(&mut bytes[..HEADER_BYTES]);
        bytes
    }

    /// The header alone: whose footer it is and how many bytes it has in all.
    pub fn parse_header(
        bytes: &[u8],
        geometry: Geometry,
        cache: Uuid,
    ) -> Result<(Life, u64), FormatError> {
        let (life, runs, sums, _) = parse_footer_head(bytes, geometry, cache)?;
        let body = runs * RUN_BYTES + sums * 4;
        Ok((
            life,
            (HEADER_BYTES + body.next_multiple_of(HEADER_BYTES)) as u64,
        ))
    }

    pub fn parse(bytes: &[u8], geometry: Geometry, cache: Uuid) -> Result<FillFooter, FormatError> {
        let (_, length) = FillFooter::parse_header(bytes, geometry, cache)?;
        let (life, runs, sums, body_checksum) = parse_footer_head(bytes, geometry, cache)?;
        let body = bytes
            .get(HEADER_BYTES..length as usize)
            .ok_or(FormatError::Short)?;
        if super::checksum(&[body]) != body_checksum {
            return Err(FormatError::Checksum);
        }
        let (runs, sums) = get(body, (runs, sums), geometry)?;
        Ok(FillFooter { life, runs, sums })
    }
}

fn parse_footer_head(
    bytes: &[u8],
    geometry: Geometry,
    cache: Uuid,
) -> Result<(Life, usize, usize, u32), FormatError> {
    let block = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    check(block, Kind::FillFooter)?;
    let (head, rest) = FooterBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
    zeroes(rest)?;
    zeroes(head.reserved.as_bytes())?;
    if head.cache != cache.0 {
        return Err(FormatError::Foreign);
    }
    let runs = head.runs.get() as usize;
    if runs > runs_max(geometry) || head.sums.get() != body_blocks(geometry) {
        return Err(FormatError::Field("fill counts"));
    }
    let life = Life {
        cache,
        incarnation: head.incarnation.get(),
        segment_seq: head.segment_seq.get(),
    };
    let sums = head.sums.get() as usize;
    Ok((life, runs, sums, head.body_checksum.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        chunk_blocks: 8,
        segment_chunks: 4,
        segments: 12,
    };
    const CACHE: Uuid = Uuid([7; 16]);

    fn record() -> FillRecord {
        let run = |line, slot, bitmap| Run {
            layer: Uuid([9; 16]),
            own: line == 2,
            line,
            slot,
            bitmap,
        };
        FillRecord {
            life: Life {
                cache: CACHE,
                incarnation: 3,
                segment_seq: 5,
            },
            block: 8,
            runs: alloc::vec![run(1, 9, 0b1001), run(2, 11, 0b111)],
            sums: alloc::vec![1, 2, 3, 4, 5],
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_only_at_its_place() {
        let good = record();
        let found = FillRecord::parse(&good.encode(), GEOMETRY, CACHE);
        assert_eq!(found, Ok(good.clone()));
        let mut crossing = good.clone();
        crossing.block = 20;
        let found = FillRecord::parse(&crossing.encode(), GEOMETRY, CACHE);
        assert_eq!(found, Err(FormatError::Field("fill place")));
        let mut moved = good;
        moved.runs[1].slot += 1;
        let found = FillRecord::parse(&moved.encode(), GEOMETRY, CACHE);
        assert_eq!(found, Err(FormatError::Field("run slot")));
    }

    #[test]
    fn a_footer_with_a_changed_byte_anywhere_is_not_believed() {
        let footer = FillFooter {
            life: record().life,
            runs: record().runs,
            sums: (0..body_blocks(GEOMETRY)).collect(),
        };
        let bytes = footer.encode();
        assert_eq!(FillFooter::parse(&bytes, GEOMETRY, CACHE), Ok(footer));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(
                FillFooter::parse(&changed, GEOMETRY, CACHE).is_err(),
                "byte {at}"
            );
        }
    }
}
