//! The engine as the host sees it: open, attach, apply, poll.
//!
//! Always true: `open` returns only when what it accepted is durable; everything after it happens
//! in `apply`. Deliberately absent: every decision; they are in `core` and `recover`.

use crate::adversary::{Mark, mark};
use crate::chart::{Cursor, Page};
use crate::core::Core;
use crate::event::{Action, Event, Refusal, VolumeSpec};
use crate::format::ledger::Ledger;
use crate::format::superblock::{SUPERBLOCK_AT, Superblock};
use crate::layout::Part;
use crate::media::Media;
use crate::memory::Memory;
use crate::outbox::{Cx, Outbox};
use crate::snapshot::{Snapshot, VolumeSnapshot};
use crate::types::{BLOCK_BYTES, Geometry, Policy, Span, Tag, Time, Uuid, VolumeId};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

pub use crate::recover::{CacheInfo, VerifyReport, inspect, verify};
pub use crate::settle::{OriginInfo, Otherwise, Settled, inspect_origin, pending_journal};
pub use crate::settle::{settle, settle_for, settle_or};

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

/// One shard: one cache device and all volumes placed on it, owned by one thread.
pub struct Engine {
    core: Core,
    out: Outbox,
}

impl Engine {
    /// Reads superblock, log and stage, decides what is true, makes it durable.
    pub fn open(
        config: Config,
        media: &mut dyn Media,
        memory: &mut dyn Memory,
    ) -> Result<(Engine, Report), OpenError> {
        let (core, report) = crate::recover::recover(config, media, memory)?;
        Ok((
            Engine {
                core,
                out: Outbox::default(),
            },
            report,
        ))
    }

    /// The id under which the host registers the files of this volume: the one the volume had,
    /// if the log knows its name, else a fresh one.
    pub fn place(&mut self, name: &str) -> VolumeId {
        self.core.place(name)
    }

    /// The cache that this is the engine of.
    pub fn cache(&self) -> Uuid {
        self.core.cache
    }

    /// Volumes the log knows, attached or not.
    pub fn known(&self) -> Vec<VolumeSnapshot> {
        self.core.snapshot(Time(0)).volumes
    }

    /// Joins a volume to its recovered data. Requests are accepted at once and wait until the
    /// claim is durable; the host calls `apply` with a `Tick` to set that going.
    pub fn attach(
        &mut self,
        _now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        ledger: Settled,
    ) -> Result<(), OpenError> {
        self.core.attach(id, spec, ledger)
    }

    /// Takes one event. Never blocks, never fails.
    pub fn apply(&mut self, now: Time, event: Event, memory: &mut dyn Memory) {
        let mut cx = Cx {
            now,
            memory,
            out: &mut self.out,
        };
        self.core.apply(&mut cx, event);
    }

    /// The next thing the host must do; drained after each `apply`.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    /// When `Tick` is due if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        self.out.next_deadline()
    }

    /// The policy in effect; `None` of a volume that is not there.
    pub fn policy(&self, volume: VolumeId) -> Option<Policy> {
        let volume = self.core.volumes.get(volume.0 as usize)?.as_ref()?;
        Some(volume.policy)
    }

    /// Whether recovery has found this write of the run before: the volume holds it, synced, or has
    /// destaged it, and its guest need only be told so. A write that is not found may be there all
    /// the same, where an earlier recovery found it or much was written after it.
    pub fn has_taken(&self, volume: VolumeId, tag: Tag) -> bool {
        let found = self.core.taken.binary_search(&(volume, tag)).is_ok();
        if found {
            mark(Mark::TagFound);
        }
        found
    }

    /// Requests to devices whose `Done` has not come.
    pub fn in_flight(&self) -> usize {
        self.out.in_flight()
    }

    /// What a range of a volume holds at this moment, as far as the log decides it: up to
    /// `parts_max` parts from its start on, without a gap. Changes nothing, in bounded time.
    pub fn layout(
        &self,
        volume: VolumeId,
        span: Span,
        parts_max: usize,
    ) -> Result<Vec<Part>, Refusal> {
        self.core.layout(volume, span, parts_max)
    }

    /// One page of what of a volume lies where on this host; see [`crate::chart`].
    pub fn chart(&self, volume: VolumeId, from: Cursor) -> Result<Page, Refusal> {
        self.core.chart(volume, from)
    }

    pub fn snapshot(&self) -> Snapshot {
        self.core.snapshot(Time(0))
    }

    /// As `snapshot`, with ages as of `now`.
    pub fn snapshot_at(&self, now: Time) -> Snapshot {
        self.core.snapshot(now)
    }
}

/// Writes an empty cache of this shape: checkpoint first, then the superblocks, synced.
pub fn format_cache(
    media: &mut dyn Media,
    uuid: Uuid,
    geometry: Geometry,
) -> Result<(), OpenError> {
    crate::recover::format(
        media,
        Superblock::new(uuid, geometry, volumes_max(geometry)),
    )
}

/// Gives a cache that owes nothing another size: the same volumes, an empty log. Bytes behind the
/// new end are not touched; a larger device is there already.
pub fn resize_cache(media: &mut dyn Media, geometry: Geometry) -> Result<Superblock, OpenError> {
    crate::recover::relayout(media, geometry.segments)
}

/// Small caches, as the simulator uses them, have small volume tables.
fn volumes_max(geometry: Geometry) -> u32 {
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
    }
    let error = first.expect("two copies were read");
    Err(OpenError::Foreign(format!(
        "superblock is {error}; `tenuto cache create` makes a cache"
    )))
}

/// A ledger as it lies beside an origin, for hosts that show it.
pub type LedgerInfo = Ledger;
