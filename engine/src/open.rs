//! What opening a cache takes and gives: configuration, shape, report, errors.
//!
//! Always true: an error says that nothing was changed. Deliberately absent: the opening itself
//! ([`recover`](crate::recover)), and how volumes join ([`settle`](crate::settle)).

use crate::format::FormatError;
use crate::format::superblock::{SUPERBLOCK_AT, Superblock};
use crate::media::Media;
use crate::types::{BLOCK_BYTES, Geometry, Uuid};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Volumes that one cache can hold.
pub const VOLUMES_MAX: u32 = 4096;

/// What the host tells the engine at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Stable identity of this machine, and of its present boot.
    pub machine: Uuid,
    pub boot: Uuid,
    pub host_name: String,
    /// Slots of the stage for logged writes, and for ephemeral overlays; one chunk each.
    pub stage_slots: u32,
    pub overlay_slots: u32,
    /// Blocks of the read tier in `Area::Ram`.
    pub ram_blocks: u32,
    /// Bytes of `Area::Scratch`; at least [`Config::SCRATCH_BYTES_MIN`].
    pub scratch_bytes: u64,
    /// Limit of dirty extents over all volumes.
    pub dirty_extents_max: u64,
    /// Limit of the memory that finds clean blocks on the cache device; none are kept there if
    /// it is too small for a segment.
    pub index_bytes_max: u64,
    /// RAM for the tables of all images that are not raw.
    pub map_bytes_max: u64,
    pub hash_seed: u64,
}

impl Config {
    pub const SCRATCH_BYTES_MIN: u64 = 4 << 20;

    /// Size of `Area::Stage` for the slots asked for: header page, slot table, slots.
    pub fn stage_bytes(chunk_bytes: u64, slots: u32) -> u64 {
        BLOCK_BYTES
            + (u64::from(slots) * 64).next_multiple_of(BLOCK_BYTES)
            + u64::from(slots) * chunk_bytes
    }
}

/// What recovery found, shown by `status` and `recover`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub stage_found: bool,
    pub segments_scanned: u64,
    pub records_replayed: u64,
    pub entries_replayed: u64,
    pub tail_bytes_discarded: u64,
    pub damage: Vec<String>,
}

/// Why a cache cannot be opened or a volume not attached. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not a cache, or one of another version.
    #[error("{0}")]
    Foreign(String),
    #[error("{0}")]
    Damaged(String),
    /// Going on would lose data, or take it from its owner.
    #[error("{0}")]
    Refused(String),
    /// The stage is gone in the boot that needed it; the log goes on once that is accepted.
    #[error("{0}")]
    StageLost(String),
    /// The image is not the one that dirty data or a journal belongs to.
    #[error("{0}")]
    Image(String),
    /// The journal was left to a log that does not have what it has: it is settled first.
    #[error("a journal is pending whose writes the log does not have")]
    JournalFirst,
    #[error("input/output error on {0}")]
    Io(&'static str),
}

/// Small caches, as the simulator uses them, have small volume tables.
pub fn volumes_max(geometry: Geometry) -> u32 {
    if geometry.segment_bytes() < 1 << 20 {
        64
    } else {
        VOLUMES_MAX
    }
}

/// The shape of a cache on a device of this many bytes, or why there is none.
pub fn geometry_for(bytes: u64) -> Result<Geometry, String> {
    let mut geometry = Geometry {
        chunk_blocks: Geometry::CHUNK_BLOCKS,
        segment_chunks: Geometry::SEGMENT_CHUNKS,
        segments: SEGMENTS_MIN,
    };
    let smallest = device_bytes(geometry);
    if bytes < smallest {
        return Err(format!(
            "{bytes} bytes are too small for a cache; at least {} MiB",
            smallest.div_ceil(1 << 20)
        ));
    }
    let guess = (bytes / geometry.segment_bytes()).min(1 << 20) as u32;
    geometry.segments = guess;
    while device_bytes(geometry) > bytes {
        geometry.segments -= 1;
    }
    assert!(geometry.segments >= SEGMENTS_MIN, "the smallest one fits");
    Ok(geometry)
}

/// Fewer segments leave no room for reserve, evacuation and two streams.
const SEGMENTS_MIN: u32 = 12;

/// The bytes a cache of this shape needs on its device.
pub fn device_bytes(geometry: Geometry) -> u64 {
    Superblock::new(Uuid::NIL, geometry, volumes_max(geometry)).device_bytes()
}

/// Reads the superblock: the first good copy of the two.
pub fn read_superblock(media: &mut dyn Media) -> Result<Superblock, OpenError> {
    let mut first = None;
    for at in SUPERBLOCK_AT {
        let mut bytes = alloc::vec![0; crate::format::superblock::SUPERBLOCK_BYTES];
        let read = media.read(crate::event::Device::Cache, at, &mut bytes);
        read.map_err(|_| OpenError::Io("the cache device"))?;
        match Superblock::parse(&bytes) {
            Ok(superblock) => return Ok(superblock),
            Err(error) => first = first.or(Some(error)),
        }
        // The other copy may be of before.
        if let Some(FormatError::Incompatible(_)) = first {
            break;
        }
    }
    let error = first.expect("a copy was read");
    Err(OpenError::Foreign(format!(
        "superblock is {error}; `tenuto cache create` makes a cache"
    )))
}
