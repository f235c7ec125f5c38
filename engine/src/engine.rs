//! The engine: joins stage, log, maps, destage and recovery behind `apply`.

use crate::event::{Action, Event, VolumeSpec};
use crate::media::Media;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::types::{Time, Uuid, VolumeId};
use alloc::string::String;

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
    pub hash_seed: u64,
}

impl Config {
    pub const SCRATCH_BYTES_MIN: u64 = 4 << 20;

    /// Size of `Area::Stage` for the slots asked for: header page, slot table, slots.
    pub fn stage_bytes(chunk_bytes: u64, slots: u32) -> u64 {
        crate::types::BLOCK_BYTES
            + (u64::from(slots) * 64).next_multiple_of(crate::types::BLOCK_BYTES)
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
    pub damage: alloc::vec::Vec<String>,
}

/// Why a cache cannot be opened or a volume not attached. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Foreign(String),
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Refused(String),
    #[error("input/output error on {0}")]
    Io(&'static str),
}

/// One shard: one cache device and all volumes placed on it, owned by one thread.
pub struct Engine {
    _todo: (),
}

/// A ledger that was read and whose pending journal was finished.
#[derive(Clone, Debug)]
pub struct Settled {
    _todo: (),
}

/// Reads the ledger beside the origin of `volume` and finishes a pending journal, on any thread
/// that holds the origin's lock, before `attach`. Also what `origin replay` does.
pub fn settle(_media: &mut dyn Media, _volume: VolumeId) -> Result<Settled, OpenError> {
    todo!()
}

impl Engine {
    /// Reads superblock, log and stage, decides what is true, makes it durable.
    pub fn open(
        _config: Config,
        _media: &mut dyn Media,
        _memory: &mut dyn Memory,
    ) -> Result<(Engine, Report), OpenError> {
        todo!()
    }

    /// The id under which the host registers the files of this volume: the one the volume had,
    /// if the log knows its name, else a fresh one.
    pub fn place(&mut self, _name: &str) -> VolumeId {
        todo!()
    }

    /// Names, origins and dirty state of volumes the log knows; some may not be attached.
    pub fn known(&self) -> alloc::vec::Vec<crate::snapshot::VolumeSnapshot> {
        todo!()
    }

    /// Joins a volume to its recovered data. Requests are accepted at once and wait until the
    /// claim is durable.
    pub fn attach(
        &mut self,
        _now: Time,
        _id: VolumeId,
        _spec: VolumeSpec,
        _ledger: Settled,
    ) -> Result<(), OpenError> {
        todo!()
    }

    /// Takes one event. Never blocks, never fails.
    pub fn apply(&mut self, _now: Time, _event: Event, _memory: &mut dyn Memory) {
        todo!()
    }

    /// The next thing the host must do; drained after each `apply`.
    pub fn poll_action(&mut self) -> Option<Action> {
        todo!()
    }

    /// When `Tick` is due if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        todo!()
    }

    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
}

/// Writes an empty cache of this shape: superblock and checkpoint, synced. `bytes` is the size of
/// the device; see [`geometry_for`].
pub fn format_cache(
    _media: &mut dyn Media,
    _uuid: Uuid,
    _geometry: crate::types::Geometry,
) -> Result<(), OpenError> {
    todo!()
}

/// The shape of a cache on a device of this many bytes, or why there is none.
pub fn geometry_for(_bytes: u64) -> Result<crate::types::Geometry, String> {
    todo!()
}

/// The bytes a cache of this shape needs on its device.
pub fn device_bytes(_geometry: crate::types::Geometry) -> u64 {
    todo!()
}
