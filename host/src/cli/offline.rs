//! What is done to a cache or an image while no daemon runs on it.
//!
//! Owns the dry recovery: the product's own recovery over the real devices, with everything it
//! writes kept in memory and thrown away. So `cache inspect`, `cache create` and
//! `recover --dry-run` say what a start would find, without changing a byte. Always true: the
//! cache device is locked meanwhile, so no daemon changes it under the reader.

use super::Context;
use super::live::{command_error, start_error, volume_error};
use super::progress::{self, Pending, Progress};
use super::surrogate::Owner;
use crate::buffer::{Arena, BUFFER_BYTES_MAX, BufferPool, HostMemory};
use crate::daemon::{DEFAULT_QUIET, Daemon, Exports, ImagePlaces, Settings, VolumeSettings};
use crate::drill;
use crate::error::{Error, Kind, Result, cause};
use crate::fault::{self, Fault};
use crate::files::Files;
use crate::inspect;
use crate::lock::Patience;
use crate::natural;
use crate::origin::Format;
use crate::origin::file::{self, Access};
use crate::origin::written;
use engine::engine::{Config, Engine, OpenError, Otherwise, Report, Settled};
use engine::event::{Admission, Command, Device, IoError, Stat};
use engine::flow::FlowLimits;
use engine::format::stage::{HEADER_BYTES, StageHeader};
use engine::format::superblock::Superblock;
use engine::media::Media;
use engine::snapshot::{CopySnapshot, State, VolumeSnapshot};
use engine::types::{BLOCK_BYTES, DestageMode, Policy, Serial, Uuid, VolumeId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long the late writes of a killed daemon may take to land.
const LATE_WRITES_WAIT: Duration = Duration::from_secs(120);
/// Blocks that a dry recovery may keep: more than a stage of the largest sensible size.
const WRITTEN_BLOCKS_MAX: usize = 1 << 20;
/// Memory of a daemon that only destages.
const RECOVER_RAM_BYTES: u64 = 64 << 20;
const IMAGE_RAM_BYTES: u64 = 16 << 20;
const SCRATCH_BYTES: u64 = 64 << 20;
const DIRTY_EXTENTS_MAX: u64 = 8 << 20;
/// Slots of a stage that is not there: recovery has to append a little.
const SLOTS_WITHOUT_STAGE: u32 = 16;

/// What a start of a daemon would find on a cache.
pub struct Found {
    pub report: Report,
    pub volumes: Vec<VolumeSnapshot>,
    /// What the log has of each.
    pub logged: BTreeMap<VolumeId, CopySnapshot>,
    /// The stage file of this boot, where it is.
    pub stage: Option<PathBuf>,
}

impl Found {
    /// Volumes whose data is nowhere but here. The log is told late that a destage has ended,
    /// so the ledgers beside the origins are asked as well; one that cannot be read says nothing.
    pub fn dirty(&self) -> Vec<&VolumeSnapshot> {
        let owes = |volume: &&VolumeSnapshot| {
            let dirty = volume.policy != Policy::Ephemeral && volume.dirty_bytes > 0;
            let newest = self.logged.get(&volume.id).map(|it| it.written);
            dirty && !is_at_origin(volume, newest.unwrap_or(volume.acked_serial))
        };
        self.volumes.iter().filter(owes).collect()
    }

    /// Volumes of which the log has lost something that it should have.
    pub fn damaged(&self) -> BTreeSet<VolumeId> {
        let logged = self.logged.iter().filter(|(_, it)| it.damaged);
        logged.map(|(id, _)| *id).collect()
    }
}

/// `newest`: of its writes.
fn is_at_origin(volume: &VolumeSnapshot, newest: Serial) -> bool {
    let beside = inspect::look_beside(Path::new(&volume.origin), None);
    let ledger = beside.ok().and_then(|beside| beside.ledger);
    ledger.is_some_and(|ledger| ledger.volume == volume.uuid && ledger.destaged >= newest)
}

/// Waits for the late writes of a dead owner and says so.
pub fn patience(progress: &mut dyn FnMut(&str)) -> Patience<'_> {
    Patience {
        wait: LATE_WRITES_WAIT,
        progress,
    }
}

/// Tells on standard error what is waited for.
pub fn tell(line: &str) {
    eprintln!("tenuto: {line}");
}

/// One kind for each kind of a device's fault.
pub fn from_fault(fault: Fault) -> Error {
    let kind = match fault.kind {
        fault::Kind::NotFound => Kind::NotFound,
        fault::Kind::WouldLoseData | fault::Kind::InUse => Kind::Refused,
        fault::Kind::Foreign | fault::Kind::Invalid => Kind::Usage,
        fault::Kind::NoSpace | fault::Kind::Io => Kind::Failed,
    };
    Error::new(kind, fault.message)
}

/// Recovers in memory. `files` holds the locked cache.
pub fn peek(files: &Files, superblock: &Superblock, stage_dir: &Path) -> Result<Found> {
    let stage_path = stage_dir.join(format!("tenuto-{}", superblock.cache));
    let stage = open_stage(&stage_path)?;
    let header = stage.as_ref().and_then(header_of);
    let slots = header.map_or(SLOTS_WITHOUT_STAGE, |header| header.slots);
    let config = Config {
        machine: Uuid::NIL,
        boot: boot(),
        host_name: String::new(),
        stage_slots: slots.saturating_sub(1).max(1),
        overlay_slots: 1,
        ram_blocks: 1,
        scratch_bytes: SCRATCH_BYTES,
        dirty_extents_max: DIRTY_EXTENTS_MAX,
        index_bytes_max: 0,
        map_bytes_max: 0,
        hash_seed: 1,
    };
    let chunk_bytes = superblock.geometry.chunk_bytes();
    let wanted = Config::stage_bytes(chunk_bytes, config.stage_slots + config.overlay_slots);
    let mut memory = memory(stage.as_ref(), wanted)
        .map_err(|error| Error::failed(format!("cannot set memory aside: {}", cause(&error))))?;
    let mut media = Dry {
        files,
        written: HashMap::new(),
    };
    let (engine, report) = Engine::open(config, &mut media, &mut memory).map_err(open_error)?;
    let mut volumes = engine.known();
    volumes.sort_by(|a, b| natural::compare(&a.name, &b.name));
    let ids = volumes.iter().map(|volume| volume.id);
    let logged = ids.filter_map(|id| Some((id, engine.copy(id)?)));
    Ok(Found {
        report,
        logged: logged.collect(),
        volumes,
        stage: stage.map(|_| stage_path),
    })
}

pub fn open_error(error: OpenError) -> Error {
    let kind = match error {
        OpenError::Foreign(_) => Kind::Usage,
        OpenError::Damaged(_) => Kind::Damaged,
        OpenError::Refused(_)
        | OpenError::StageLost(_)
        | OpenError::Image(_)
        | OpenError::JournalFirst => Kind::Refused,
        OpenError::Io(_) => Kind::Failed,
    };
    Error::new(kind, error.to_string())
}

fn open_stage(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(inspect::unreadable(path, &error)),
    }
}

fn header_of(stage: &File) -> Option<StageHeader> {
    let mut bytes = vec![0; HEADER_BYTES];
    stage.read_exact_at(&mut bytes, 0).ok()?;
    StageHeader::parse(&bytes).ok()
}

/// The stage, of which nothing is changed, and small areas for the rest. One that is too short
/// for what it says is none.
fn memory(stage: Option<&File>, wanted: u64) -> std::io::Result<HostMemory> {
    let wanted = wanted.next_multiple_of(BLOCK_BYTES);
    let arena = match stage {
        Some(stage) if stage.metadata()?.len() >= wanted => Arena::private(stage, wanted)?,
        _ => Arena::anonymous(wanted)?,
    };
    let ram = Arena::anonymous(BLOCK_BYTES)?;
    let scratch = Arena::anonymous(SCRATCH_BYTES)?;
    let buffers = BufferPool::new(BUFFER_BYTES_MAX)?;
    Ok(HostMemory::new(arena, ram, scratch, buffers))
}

/// The present boot; without a name for it, one that no stage carries.
fn boot() -> Uuid {
    let kernels = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let text = drill::boot().unwrap_or_else(kernels);
    match uuid::Uuid::parse_str(text.trim()) {
        Ok(found) => Uuid(*found.as_bytes()),
        Err(_) => Uuid(*uuid::Uuid::new_v4().as_bytes()),
    }
}

/// The real devices, with all writes in memory.
struct Dry<'a> {
    files: &'a Files,
    written: HashMap<(Device, u64), Box<[u8]>>,
}

impl Dry<'_> {
    fn read_block(&self, device: Device, block: u64, bytes: &mut [u8]) -> IoResult {
        match (
            self.written.get(&(device, block)),
            self.files.target(device),
        ) {
            (Some(written), _) => bytes.copy_from_slice(written),
            (None, Some(target)) => target.read(block * BLOCK_BYTES, bytes)?,
            (None, None) => bytes.fill(0),
        }
        Ok(())
    }

    /// Calls `each` with the number, the start within it and the part of every block touched.
    fn pieces(
        offset: u64,
        bytes: u64,
        mut each: impl FnMut(u64, usize, usize) -> IoResult,
    ) -> IoResult {
        let mut at = offset;
        while at < offset + bytes {
            let start = (at % BLOCK_BYTES) as usize;
            let part = (BLOCK_BYTES as usize - start).min((offset + bytes - at) as usize);
            each(at / BLOCK_BYTES, start, part)?;
            at += part as u64;
        }
        Ok(())
    }

    fn change(&mut self, device: Device, block: u64, change: impl FnOnce(&mut [u8])) -> IoResult {
        let mut bytes = vec![0; BLOCK_BYTES as usize].into_boxed_slice();
        self.read_block(device, block, &mut bytes)?;
        change(&mut bytes);
        self.written.insert((device, block), bytes);
        match self.written.len() <= WRITTEN_BLOCKS_MAX {
            true => Ok(()),
            false => Err(IoError::NoSpace),
        }
    }
}

type IoResult = std::result::Result<(), IoError>;

impl Media for Dry<'_> {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> IoResult {
        let whole = bytes.len() as u64;
        let first = offset / BLOCK_BYTES;
        let last = (offset + whole).div_ceil(BLOCK_BYTES);
        if !(first..last).any(|block| self.written.contains_key(&(device, block))) {
            match self.files.target(device) {
                Some(target) => return target.read(offset, bytes),
                None => bytes.fill(0),
            }
            return Ok(());
        }
        let mut done = 0;
        let mut block_bytes = vec![0; BLOCK_BYTES as usize];
        Dry::pieces(offset, whole, |block, start, part| {
            self.read_block(device, block, &mut block_bytes)?;
            bytes[done..done + part].copy_from_slice(&block_bytes[start..start + part]);
            done += part;
            Ok(())
        })
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> IoResult {
        let mut done = 0;
        Dry::pieces(offset, bytes.len() as u64, |block, start, part| {
            let from = &bytes[done..done + part];
            done += part;
            self.change(device, block, |to| {
                to[start..start + part].copy_from_slice(from)
            })
        })
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> IoResult {
        Dry::pieces(offset, bytes, |block, start, part| {
            self.change(device, block, |to| to[start..start + part].fill(0))
        })
    }

    fn sync(&mut self, _device: Device) -> IoResult {
        Ok(())
    }

    fn stat(&mut self, device: Device) -> std::result::Result<Stat, IoError> {
        self.files.target(device).ok_or(IoError::Failed)?.stat()
    }
}

/// `origin replay IMAGE`.
pub fn replay(context: &Context, image: &Path, journal: Option<&Path>) -> Result<()> {
    let before = inspect::look_beside(image, journal)?;
    let request = file::Request {
        path: image.to_path_buf(),
        access: Access::Bytes,
        format: Format::Auto,
        allow: Vec::new(),
        journal_place: journal.map(Path::to_path_buf),
        ledger_place: None,
        quiet: DEFAULT_QUIET,
        create: false,
        keeps_end: false,
        epoch: None,
    };
    let mut progress = tell;
    let opened = file::open(&request, &mut patience(&mut progress)).map_err(from_fault)?;
    let volume = VolumeId(0);
    let mut files = Files::without_cache();
    files.insert_volume(volume, opened);
    files
        .settle(
            volume,
            Otherwise::TakeCopy,
            None,
            &mut patience(&mut progress),
        )
        .and_then(Settled::without_log)
        .map_err(open_error)?;
    let mut unguarded = false;
    if let Some(opened) = files.remove_volume(volume) {
        unguarded = opened.clear_guard().map_err(from_fault)?;
        let torn = opened.is_torn();
        opened.close();
        if torn {
            return Err(Error::new(Kind::Damaged, written::torn(image).message));
        }
    }
    let after = inspect::look_beside(image, journal)?;
    let replayed = before.pending() && !after.pending();
    let document = json!({
        "image": image.display().to_string(),
        "replayed": replayed,
        "guard_cleared": unguarded,
        "state": inspect::beside_json(&after),
    });
    context.output().confirmation(&document, || {
        let image = image.display();
        match (replayed, unguarded) {
            (true, _) => format!("{image}: the journal is finished, the image is consistent\n"),
            (false, true) => format!("{image}: no journal was pending; its guard is cleared\n"),
            (false, false) => format!("{image}: no journal was pending\n"),
        }
    })
}

/// Where a dead host's cache finds what belongs to it.
pub struct Places {
    pub stage_dir: PathBuf,
    pub state_dir: PathBuf,
    /// Of ledgers and journals that do not lie beside their origins.
    pub journal: Option<PathBuf>,
    /// Where files below images may lie.
    pub images: ImagePlaces,
    /// The host of a cluster whose volumes they are.
    pub owner: Option<Owner>,
}

/// The directory of sockets that no client knows.
pub fn run_dir() -> PathBuf {
    std::env::temp_dir().join(format!("tenuto-recover-{}", std::process::id()))
}

/// Destages these volumes of a cache to their origins, by the daemon's own way, with sockets
/// that no client knows. Returns what did not work, by volume. `look` is told now and then
/// whether an origin answers with errors or not at all, and may end the process.
pub fn destage_all(
    cache: &Path,
    places: &Places,
    volumes: &[&VolumeSnapshot],
    progress: &mut Progress,
    look: &mut (dyn FnMut(bool) + Send),
) -> Result<Vec<(String, Error)>> {
    let run_dir = run_dir();
    let settings = Settings {
        run_dir: run_dir.clone(),
        stage_dir: places.stage_dir.clone(),
        state_dir: places.state_dir.clone(),
        clustered: places.owner.is_some(),
        cache_path: cache.to_path_buf(),
        ram_bytes: RECOVER_RAM_BYTES,
        stage_bytes: RECOVER_RAM_BYTES,
        overlay_ram_bytes: 0,
        index_ram_bytes: None,
        image_ram_bytes: IMAGE_RAM_BYTES,
        host_name: crate::lock::host_name(),
        group: None,
        nbd_tcp: None,
        nbd_tls: None,
        // Each volume that was asked for is added by name, and no other.
        adopt_orphans: false,
        strict: true,
        pools: Vec::new(),
        images: places.images.clone(),
        volumes: Vec::new(),
    };
    let daemon = Daemon::start(settings).map_err(start_error);
    let daemon = Arc::new(daemon.inspect_err(|_| remove_directory(&run_dir))?);
    let joined = places.owner.as_ref().map_or(Ok(()), |it| it.join(&daemon));
    if let Err(error) = joined {
        let _ = daemon.stop();
        remove_directory(&run_dir);
        return Err(error);
    }
    let mut failures = Vec::new();
    let tried = AtomicUsize::new(0);
    let left = || {
        let snapshot = daemon.handle().snapshot().ok()?;
        let known = &snapshot.engine.volumes;
        look(known.iter().any(|volume| volume.state == State::Stalled));
        pending(known, volumes, tried.load(Ordering::Relaxed))
    };
    progress::watch(progress, left, || {
        for volume in volumes {
            if let Err(error) = destage_one(&daemon, volume, places) {
                failures.push((volume.name.clone(), error));
            }
            tried.fetch_add(1, Ordering::Relaxed);
        }
    });
    daemon.leave_cluster();
    let stopped = daemon.stop();
    remove_directory(&run_dir);
    match stopped {
        Ok(()) => Ok(failures),
        Err(error) => Err(Error::failed(format!("cache {}: {error}", cache.display()))),
    }
}

/// What is left of these volumes: of those that were tried nothing, of the one under way what is
/// dirty now, of the others all.
fn pending(known: &[VolumeSnapshot], volumes: &[&VolumeSnapshot], tried: usize) -> Option<Pending> {
    let (over, waiting) = volumes.split_at_checked(tried)?;
    let gone = over.iter().map(|volume| volume.dirty_bytes).sum();
    let under_way = |volume: &&VolumeSnapshot| {
        let now = known.iter().find(|known| known.name == volume.name);
        now.map_or(Pending::new(volume.dirty_bytes, 0, None), |now| {
            let origin = &now.counters.origin;
            let atomic = now.effective_destage == DestageMode::Atomic;
            let journal = atomic.then_some(origin.journal_bytes);
            Pending::new(now.dirty_bytes, origin.write_bytes, journal)
        })
    };
    let left = waiting.iter().map(under_way);
    Some(left.fold(Pending::new(0, gone, None), Pending::and))
}

fn remove_directory(path: &Path) {
    // Only sockets were in it; what is left of them is no harm.
    let _ = std::fs::remove_dir_all(path);
}

/// Brings a volume home and lets go of it: its ledger then says that nobody owes anything.
fn destage_one(daemon: &Daemon, volume: &VolumeSnapshot, places: &Places) -> Result<()> {
    let name = &volume.name;
    let settings = settings_of(volume, places);
    match &places.owner {
        Some(owner) => owner.serve(daemon, settings)?,
        None => daemon
            .volume_add(settings)
            .map_err(|error| volume_error(name, error))?,
    }
    let id = daemon
        .volume_id(name)
        .ok_or_else(|| Error::no_volume(name))?;
    let destaged = daemon.handle().command(Command::Destage { volume: id });
    destaged.map_err(|error| command_error(name, error))?;
    let removed = daemon.volume_remove(name, false);
    removed.map_err(|error| volume_error(name, error))
}

fn settings_of(volume: &VolumeSnapshot, places: &Places) -> VolumeSettings {
    let origin = PathBuf::from(&volume.origin);
    let beside = inspect::look_beside(&origin, places.journal.as_deref());
    let ledger = beside.ok().and_then(|beside| beside.ledger);
    let format = written::format_in_log(&origin, volume.size_bytes, ledger.as_ref());
    VolumeSettings {
        name: volume.name.clone(),
        origin,
        policy: volume.policy,
        read_only: false,
        shared: false,
        write_cache: true,
        replicas: 0,
        on_degraded: Default::default(),
        place: None,
        destage: volume.effective_destage,
        destage_after: None,
        journal_dir: places.journal.clone(),
        origin_quiet: DEFAULT_QUIET,
        origin_timeout: None,
        format,
        dirty_limit_bytes: volume.dirty_bytes.max(1 << 20),
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
        exports: Exports::NONE,
        san: None,
        epoch: None,
        unproved: false,
        needs: Default::default(),
    }
}
