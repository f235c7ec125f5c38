//! The stage file: a header page, a table of slots, the slots.
//!
//! The file lives in memory that outlives the process and not the machine: `boot` says whether
//! what it holds can be trusted. Each slot names the chunk of the log that it mirrors and the
//! life of the segment; a slot entry that is not whole mirrors nothing, and nothing was
//! acknowledged from it yet.

use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, seal, zeroes};
use crate::types::{BLOCK_BYTES, ChunkIndex, Uuid};
use alloc::vec::Vec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One of the two copies of the header in the first page. A kill may strike in the middle of
/// either store; the other copy is whole then.
pub const HEADER_BYTES: usize = BLOCK_BYTES as usize / 2;
pub const HEADER_AT: [u64; 2] = [0, HEADER_BYTES as u64];
pub const SLOT_BYTES: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub prefix: Prefix,
    pub cache: [u8; 16],
    pub boot: [u8; 16],
    pub incarnation: U64,
    pub slots: U32,
    pub chunk_blocks: U32,
}

const _: () = assert!(size_of::<HeaderBytes>() == PREFIX_BYTES + 48);
const _: () = assert!(size_of::<HeaderBytes>() <= HEADER_BYTES);
const _: () = assert!(HEADER_AT[1] + HEADER_BYTES as u64 <= TABLE_AT);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SlotBytes {
    pub prefix: Prefix,
    pub incarnation: U64,
    pub segment_seq: U64,
    pub chunk: U32,
    pub stream: U32,
    pub reserved: [u8; 24],
}

const _: () = assert!(size_of::<SlotBytes>() == SLOT_BYTES);
const _: () = assert!(
    (BLOCK_BYTES as usize).is_multiple_of(SLOT_BYTES),
    "an entry lies in one page"
);

/// What the stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageHeader {
    pub cache: Uuid,
    pub boot: Uuid,
    /// The run of the engine that filled it.
    pub incarnation: u64,
    pub slots: u32,
    pub chunk_blocks: u32,
}

/// What a slot mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSlot {
    pub incarnation: u64,
    pub segment_seq: u64,
    pub chunk: ChunkIndex,
    pub stream: u16,
}

/// Where the table starts, and where slot `index` of a stage with `slots` slots starts.
pub const TABLE_AT: u64 = BLOCK_BYTES;

pub fn slot_at(index: u32, slots: u32, chunk_blocks: u32) -> u64 {
    // Behind the last slot the stage ends.
    assert!(index <= slots, "a slot lies in the stage");
    TABLE_AT
        + (u64::from(slots) * SLOT_BYTES as u64).next_multiple_of(BLOCK_BYTES)
        + u64::from(index) * u64::from(chunk_blocks) * BLOCK_BYTES
}

impl StageHeader {
    pub fn encode(&self) -> Vec<u8> {
        let header = HeaderBytes {
            prefix: Prefix::new(Kind::Stage),
            cache: self.cache.0,
            boot: self.boot.0,
            incarnation: U64::new(self.incarnation),
            slots: U32::new(self.slots),
            chunk_blocks: U32::new(self.chunk_blocks),
        };
        let mut bytes = block(HEADER_BYTES);
        bytes[..size_of::<HeaderBytes>()].copy_from_slice(header.as_bytes());
        seal(&mut bytes);
        debug_assert!(
            StageHeader::parse(&bytes).as_ref() == Ok(self),
            "what is written can be read"
        );
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<StageHeader, FormatError> {
        let block = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
        check(block, Kind::Stage)?;
        let (header, rest) = HeaderBytes::ref_from_prefix(block).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        Ok(StageHeader {
            cache: Uuid(header.cache),
            boot: Uuid(header.boot),
            incarnation: header.incarnation.get(),
            slots: header.slots.get(),
            chunk_blocks: header.chunk_blocks.get(),
        })
    }
}

impl StageSlot {
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let slot = SlotBytes {
            prefix: Prefix::new(Kind::Stage),
            incarnation: U64::new(self.incarnation),
            segment_seq: U64::new(self.segment_seq),
            chunk: U32::new(self.chunk.0),
            stream: U32::new(u32::from(self.stream)),
            reserved: [0; 24],
        };
        let mut bytes = [0; SLOT_BYTES];
        bytes.copy_from_slice(slot.as_bytes());
        seal(&mut bytes);
        debug_assert!(
            StageSlot::parse(&bytes).as_ref() == Ok(self),
            "what is written can be read"
        );
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<StageSlot, FormatError> {
        let block = bytes.get(..SLOT_BYTES).ok_or(FormatError::Short)?;
        check(block, Kind::Stage)?;
        let slot = SlotBytes::ref_from_bytes(block).map_err(|_| FormatError::Short)?;
        zeroes(&slot.reserved)?;
        Ok(StageSlot {
            incarnation: slot.incarnation.get(),
            segment_seq: slot.segment_seq.get(),
            chunk: ChunkIndex(slot.chunk.get()),
            stream: u16::try_from(slot.stream.get()).map_err(|_| FormatError::Field("stream"))?,
        })
    }
}
