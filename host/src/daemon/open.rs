//! From a path to a recovered engine.
//!
//! Owns the order: lock the cache device, read its superblock, map the stage, set memory aside,
//! recover. Always true: nothing of the cache is read before its lock is held, because writes of
//! a killed daemon may land until then (rule 5.2.1).

use super::{DEFAULT_QUIET, Settings, StartError, VolumeSettings, host};
use crate::buffer::{Arena, BufferPool, HostMemory, POOL_BYTES_DEFAULT};
use crate::cachedev;
use crate::fault::{Fault, Kind};
use crate::files::Files;
use crate::lock::Patience;
use crate::marks;
use crate::origin::written;
use crate::shard::Parts;
use crate::stage::Stage;
use crate::target::Target;
use engine::engine::{Config, Engine, OpenError, Report};
use engine::event::Admission;
use engine::flow::FlowLimits;
use engine::format::FormatError;
use engine::format::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use engine::snapshot::VolumeSnapshot;
use engine::types::{BLOCK_BYTES, DestageMode, Policy};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How long the last writes of a dead owner may take to land.
pub(super) const LATE_WRITES_WAIT: Duration = Duration::from_secs(120);
/// Working memory of destage, evacuation and recovery.
const SCRATCH_BYTES: u64 = 64 << 20;
/// Dirty extents of all volumes; at 24 bytes each this is 192 MiB.
const DIRTY_EXTENTS_MAX: u64 = 8 << 20;
/// The index of clean blocks takes at most one part of so many of the cache: 0.2 %. Checksums alone
/// are half of that.
const INDEX_PART: u64 = 500;
/// Fewer slots than this leave no room for a log write beside the chunk being filled.
const SLOTS_MIN: u64 = 8;

pub(super) struct Opened {
    pub parts: Parts<Engine>,
    pub stage: Stage,
    pub report: Report,
}

pub(super) fn open(settings: &Settings) -> Result<Opened, StartError> {
    marks::start().map_err(|error| StartError::Io(format!("cannot map TENUTO_MARKS: {error}")))?;
    let mut progress = |waiting: &str| tracing::info!("{waiting}");
    let mut patience = Patience {
        wait: LATE_WRITES_WAIT,
        progress: &mut progress,
    };
    let cache = cachedev::open(&settings.cache_path, &mut patience)?;
    let superblock = superblock(&cache)?;
    let chunk_bytes = superblock.geometry.chunk_bytes();
    let slots = |bytes: u64| (bytes / chunk_bytes).max(SLOTS_MIN) as u32;
    let config = Config {
        machine: host::machine(&settings.host_name),
        boot: host::boot(),
        host_name: settings.host_name.clone(),
        stage_slots: slots(settings.stage_bytes),
        overlay_slots: slots(settings.overlay_ram_bytes),
        ram_blocks: (settings.ram_bytes / BLOCK_BYTES) as u32,
        scratch_bytes: SCRATCH_BYTES,
        dirty_extents_max: DIRTY_EXTENTS_MAX,
        index_bytes_max: settings
            .index_ram_bytes
            .unwrap_or(superblock.geometry.log_bytes() / INDEX_PART),
        map_bytes_max: settings.image_ram_bytes,
        hash_seed: u64::from_le_bytes(host::fresh().0[..8].try_into().expect("eight bytes")),
    };
    let wanted = Config::stage_bytes(chunk_bytes, config.stage_slots + config.overlay_slots);
    let (stage, arena) = Stage::open(&settings.stage_dir, superblock.cache, wanted)?;
    let mut memory = memory(&config, arena).map_err(|error| {
        StartError::Io(format!("cannot set memory aside: {error}; lower cache.ram"))
    })?;
    let mut files = Files::new(cache);
    let (engine, report) = Engine::open(config, &mut files, &mut memory)
        .map_err(|error| refused(&settings.cache_path, error))?;
    Ok(Opened {
        parts: Parts {
            engine,
            memory,
            files,
        },
        stage,
        report,
    })
}

fn memory(config: &Config, stage: Arena) -> io::Result<HostMemory> {
    let ram = u64::from(config.ram_blocks).max(1) * BLOCK_BYTES;
    let ram = Arena::anonymous(ram)?;
    let scratch = Arena::anonymous(config.scratch_bytes)?;
    let buffers = BufferPool::new(POOL_BYTES_DEFAULT)?;
    Ok(HostMemory::new(stage, ram, scratch, buffers))
}

/// Either of the two copies will do.
fn superblock(cache: &Target) -> Result<Superblock, StartError> {
    let mut found = None;
    for at in SUPERBLOCK_AT {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let read = cache.read(at, &mut bytes);
        read.map_err(|_| StartError::Io(format!("cache {}: cannot be read", cache.name())))?;
        match Superblock::parse(&bytes) {
            Ok(superblock) => return Ok(superblock),
            // What says that it is a cache counts, also where the other copy has lost that.
            Err(error) => found = found.filter(|it| *it != FormatError::Magic).or(Some(error)),
        }
        // The other copy may be of before.
        if let Some(FormatError::Incompatible(_)) = found {
            break;
        }
    }
    let error = found.expect("a copy was read");
    let right = match error {
        FormatError::Magic => "; make one with `tenuto cache create`",
        FormatError::Version(_) | FormatError::Incompatible(_) => "; use the program that made it",
        _ => "; both copies of the superblock are damaged",
    };
    let name = cache.name();
    let message = format!("cache {name}: {error}{right}");
    Err(match error {
        FormatError::Magic | FormatError::Version(_) | FormatError::Incompatible(_) => {
            StartError::Cache(message)
        }
        _ => StartError::Damaged(message),
    })
}

fn refused(path: &std::path::Path, error: OpenError) -> StartError {
    let message = format!("cache {}: {error}", path.display());
    match error {
        OpenError::Io(_) => StartError::Io(message),
        OpenError::Damaged(_) => StartError::Damaged(message),
        _ => StartError::Cache(message),
    }
}

impl From<Fault> for StartError {
    fn from(fault: Fault) -> StartError {
        let message = fault.to_string();
        match fault.kind {
            Kind::InUse => StartError::InUse(message),
            Kind::NotFound | Kind::Invalid => StartError::Settings(message),
            Kind::Foreign | Kind::WouldLoseData => StartError::Cache(message),
            Kind::NoSpace | Kind::Io => StartError::Io(message),
        }
    }
}

/// Volumes with dirty data that nobody names any more: they are destaged, and shown to nobody.
pub(super) fn orphans(engine: &Engine, settings: &Settings) -> Vec<VolumeSettings> {
    if !settings.adopt_orphans {
        return Vec::new();
    }
    let known = engine.known().into_iter();
    // A replica is another host's to bring to its image.
    let own = known.filter(|volume| volume.replica.is_none());
    let left = own.filter(|volume| {
        let named = settings
            .volumes
            .iter()
            .any(|other| other.name == volume.name);
        !named && volume.policy == Policy::WriteBack && volume.dirty_bytes > 0
    });
    left.map(orphan).collect()
}

fn orphan(volume: VolumeSnapshot) -> VolumeSettings {
    let origin = PathBuf::from(volume.origin);
    let ledger = written::ledger_beside(&origin);
    let format = written::format_in_log(&origin, volume.size_bytes, ledger.as_ref());
    VolumeSettings {
        name: volume.name,
        origin,
        policy: volume.policy,
        read_only: false,
        shared: false,
        write_cache: true,
        replicas: 0,
        on_degraded: Default::default(),
        place: None,
        destage: DestageMode::Atomic,
        destage_after: Some(Duration::ZERO),
        journal_dir: None,
        origin_quiet: DEFAULT_QUIET,
        origin_timeout: None,
        format,
        dirty_limit_bytes: volume.dirty_bytes,
        flow: FlowLimits::default(),
        share: Default::default(),
        block_bytes: 512,
        limit: Default::default(),
        group: String::new(),
        origin_queue_depth: 32,
        admission: Admission::Reuse,
        overlay_timeout: Duration::ZERO,
        overlay_ram_bytes: 0,
        reset_on: engine::event::ResetOn::Command,
        qmp: None,
        exports: super::Exports::NONE,
        san: None,
        epoch: None,
        unproved: false,
        needs: Default::default(),
    }
}
