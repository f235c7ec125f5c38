//! The superblock: what a cache is and where its parts lie.
//!
//! Written twice by `cache create` (at 0 and at 4 KiB), changed only by `cache resize`, one copy
//! after the other, so that a torn write can never take a cache away. Two checkpoint slots follow
//! at 1 MiB, then the log.

use super::{FormatError, Kind, PREFIX_BYTES, Prefix, block, check, seal, uuid, zeroes};
use crate::types::{BLOCK_BYTES, Geometry, Uuid};
use alloc::vec::Vec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where the two copies lie.
pub const SUPERBLOCK_AT: [u64; 2] = [0, BLOCK_BYTES];
/// Where the first checkpoint slot lies.
pub const CHECKPOINT_AT: u64 = 1 << 20;
/// Features a program must know to touch the cache: records may have payload in their header
/// block.
const INLINE_RECORDS: u64 = 1 << 0;
const INCOMPATIBLE_KNOWN: u64 = INLINE_RECORDS;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuperblockBytes {
    pub prefix: Prefix,
    pub incompatible: U64,
    pub compatible: U64,
    pub cache: [u8; 16],
    pub shard: U32,
    pub chunk_blocks: U32,
    pub segment_chunks: U32,
    pub segments: U32,
    pub volumes_max: U32,
    pub reserved: U32,
    pub checkpoint_slot_bytes: U64,
    pub log_at: U64,
}

const _: () = assert!(size_of::<SuperblockBytes>() == PREFIX_BYTES + 72);
const _: () = assert!(size_of::<SuperblockBytes>() <= SUPERBLOCK_BYTES);
const _: () = assert!(
    SUPERBLOCK_AT[0] + SUPERBLOCK_BYTES as u64 <= SUPERBLOCK_AT[1]
        && SUPERBLOCK_AT[1] + SUPERBLOCK_BYTES as u64 <= CHECKPOINT_AT,
    "nothing lies over the superblock"
);

/// What a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub cache: Uuid,
    pub shard: u32,
    pub geometry: Geometry,
    pub volumes_max: u32,
    pub checkpoint_slot_bytes: u64,
    pub log_at: u64,
    /// Whether records may have payload in their header block. Caches of the first programs say
    /// no, until they are laid out anew.
    pub inline_records: bool,
}

impl Superblock {
    /// Lays out a cache: slots large enough for all volumes and segments, then the log.
    pub fn new(cache: Uuid, geometry: Geometry, volumes_max: u32) -> Superblock {
        let slot = super::checkpoint::slot_bytes(volumes_max, geometry.segments);
        let log_at = (CHECKPOINT_AT + 2 * slot).next_multiple_of(1 << 20);
        Superblock {
            cache,
            shard: 0,
            geometry,
            volumes_max,
            checkpoint_slot_bytes: slot,
            log_at,
            inline_records: true,
        }
    }

    pub fn device_bytes(&self) -> u64 {
        self.log_at + self.geometry.log_bytes()
    }

    pub fn encode(&self) -> Vec<u8> {
        let head = SuperblockBytes {
            prefix: Prefix::new(Kind::Superblock),
            incompatible: U64::new(match self.inline_records {
                true => INLINE_RECORDS,
                false => 0,
            }),
            compatible: U64::new(0),
            cache: self.cache.0,
            shard: U32::new(self.shard),
            chunk_blocks: U32::new(self.geometry.chunk_blocks),
            segment_chunks: U32::new(self.geometry.segment_chunks),
            segments: U32::new(self.geometry.segments),
            volumes_max: U32::new(self.volumes_max),
            reserved: U32::new(0),
            checkpoint_slot_bytes: U64::new(self.checkpoint_slot_bytes),
            log_at: U64::new(self.log_at),
        };
        let mut bytes = block(SUPERBLOCK_BYTES);
        bytes[..size_of::<SuperblockBytes>()].copy_from_slice(head.as_bytes());
        seal(&mut bytes);
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Superblock, FormatError> {
        if bytes.len() != SUPERBLOCK_BYTES {
            return Err(FormatError::Short);
        }
        check(bytes, Kind::Superblock)?;
        let (head, rest) =
            SuperblockBytes::ref_from_prefix(bytes).map_err(|_| FormatError::Short)?;
        zeroes(rest)?;
        zeroes(head.reserved.as_bytes())?;
        let unknown = head.incompatible.get() & !INCOMPATIBLE_KNOWN;
        if unknown != 0 {
            return Err(FormatError::Incompatible(unknown));
        }
        let geometry = Geometry {
            chunk_blocks: head.chunk_blocks.get(),
            segment_chunks: head.segment_chunks.get(),
            segments: head.segments.get(),
        };
        if !(4..=128).contains(&geometry.chunk_blocks) {
            return Err(FormatError::Field("chunk blocks"));
        }
        if !(2..=1024).contains(&geometry.segment_chunks) {
            return Err(FormatError::Field("segment chunks"));
        }
        // A segment holds several records at least.
        if super::footer::entries_max(geometry) < 4 * super::record::ENTRIES_MAX {
            return Err(FormatError::Field("footer room"));
        }
        if !(8..=1 << 20).contains(&geometry.segments) {
            return Err(FormatError::Field("segments"));
        }
        if !(1..=1 << 16).contains(&head.volumes_max.get()) {
            return Err(FormatError::Field("volumes"));
        }
        let expected = Superblock::new(uuid(head.cache), geometry, head.volumes_max.get());
        if head.shard.get() != 0 {
            return Err(FormatError::Field("shard"));
        }
        if head.checkpoint_slot_bytes.get() != expected.checkpoint_slot_bytes {
            return Err(FormatError::Field("checkpoint slot bytes"));
        }
        if head.log_at.get() != expected.log_at {
            return Err(FormatError::Field("log position"));
        }
        Ok(Superblock {
            inline_records: head.incompatible.get() & INLINE_RECORDS != 0,
            ..expected
        })
    }
}
