//! What a guest is told of its disk: feature bits and the configuration space (virtio 1.2, section
//! 5.2.4).
//!
//! Owns both, built from a [`Disk`]. Always true: what is offered is what [`Disk::parse`] takes;
//! fields of features that are not offered are zero; the guest can change the cache mode and
//! nothing else. Deliberately absent: feature bits of vhost-user and of dirty-page logging, which
//! the host adds, and what a changed cache mode leads to.

use crate::block::{Disk, SECTOR_BYTES};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Feature bits of block devices.
pub const SEG_MAX: u64 = 1 << 2;
pub const READ_ONLY: u64 = 1 << 5;
pub const BLK_SIZE: u64 = 1 << 6;
pub const FLUSH: u64 = 1 << 9;
pub const TOPOLOGY: u64 = 1 << 10;
pub const CONFIG_WCE: u64 = 1 << 11;
pub const MULTI_QUEUE: u64 = 1 << 12;
pub const DISCARD: u64 = 1 << 13;
pub const WRITE_ZEROES: u64 = 1 << 14;
/// Feature bits of all devices.
pub const INDIRECT_DESC: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const VERSION_1: u64 = 1 << 32;

/// Bytes that have a meaning here; a guest that reads on reads zeroes.
pub const CONFIG_BYTES: usize = 60;
const WRITEBACK_AT: usize = 32;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Space {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused0: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    unused1: [u8; 3],
}

const _: () = assert!(size_of::<Space>() == CONFIG_BYTES);
const _: () = assert!(core::mem::offset_of!(Space, writeback) == WRITEBACK_AT);

/// A guest wrote what it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{bytes} bytes at {offset} of the configuration; only the byte at 32 can be written")]
    Place { offset: u32, bytes: usize },
    #[error("cache mode {0}; 0 is write-through, 1 is write-back")]
    Mode(u8),
}

/// What is told beside the disk itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// Physical block, a multiple of the logical one by a power of two; also the unit of discards.
    pub physical_block_bytes: u32,
    /// Suggested largest request; 0 for none.
    pub optimal_bytes: u32,
    pub queues: u16,
    /// Whether the cache begins as write-back.
    pub writeback: bool,
}

/// The configuration space of one device.
#[derive(Clone, Debug)]
pub struct Config {
    space: Space,
}

/// Feature bits that fit the disk.
pub fn features(disk: &Disk, queues: u16) -> u64 {
    let always = SEG_MAX | BLK_SIZE | TOPOLOGY | INDIRECT_DESC | EVENT_IDX | VERSION_1;
    let bits = [
        (disk.read_only, READ_ONLY),
        (disk.flush, FLUSH | CONFIG_WCE),
        (queues > 1, MULTI_QUEUE),
        (disk.discard.is_some(), DISCARD),
        (disk.write_zeroes.is_some(), WRITE_ZEROES),
    ];
    let offered = bits.iter().filter(|(offered, _)| *offered);
    offered.fold(always, |all, (_, bit)| all | bit)
}

impl Config {
    pub fn new(disk: &Disk, hints: &Hints) -> Config {
        assert!(disk.block_bytes.is_power_of_two() && disk.block_bytes >= SECTOR_BYTES as u32);
        let blocks = hints.physical_block_bytes / disk.block_bytes;
        assert!(blocks.is_power_of_two());
        let mut space = Space::new_zeroed();
        space.capacity = U64::new(disk.capacity_sectors);
        space.seg_max = U32::new(disk.segments_max);
        space.blk_size = U32::new(disk.block_bytes);
        space.physical_block_exp = blocks.trailing_zeros() as u8;
        space.min_io_size = U16::new(blocks as u16);
        space.opt_io_size = U32::new(hints.optimal_bytes / disk.block_bytes);
        space.writeback = u8::from(disk.flush && hints.writeback);
        if hints.queues > 1 {
            space.num_queues = U16::new(hints.queues);
        }
        if let Some(limits) = disk.discard {
            space.max_discard_sectors = U32::new(limits.sectors_max);
            space.max_discard_seg = U32::new(limits.ranges_max.into());
            let alignment = hints.physical_block_bytes / SECTOR_BYTES as u32;
            space.discard_sector_alignment = U32::new(alignment);
        }
        if let Some(limits) = disk.write_zeroes {
            space.max_write_zeroes_sectors = U32::new(limits.sectors_max);
            space.max_write_zeroes_seg = U32::new(limits.ranges_max.into());
            space.write_zeroes_may_unmap = 1;
        }
        Config { space }
    }

    /// Reads from any offset.
    pub fn read(&self, offset: u32, into: &mut [u8]) {
        let rest = self.space.as_bytes().get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        into[count..].fill(0);
    }

    /// Takes what a guest writes. Says whether the cache is write-back from now on.
    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<bool, ConfigError> {
        let &[mode] = bytes else {
            let bytes = bytes.len();
            return Err(ConfigError::Place { offset, bytes });
        };
        if offset as usize != WRITEBACK_AT {
            return Err(ConfigError::Place { offset, bytes: 1 });
        }
        if mode > 1 {
            return Err(ConfigError::Mode(mode));
        }
        self.space.writeback = mode;
        Ok(mode == 1)
    }

    pub fn writeback(&self) -> bool {
        self.space.writeback == 1
    }

    /// The cache mode that holds until the guest says otherwise, after a reset for example.
    pub fn set_writeback(&mut self, writeback: bool) {
        self.space.writeback = u8::from(writeback);
    }

    /// The disk has grown; the host notifies the guest.
    pub fn set_capacity(&mut self, sectors: u64) {
        self.space.capacity = U64::new(sectors);
    }
}
