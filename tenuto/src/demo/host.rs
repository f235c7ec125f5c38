//! One run: a daemon in this process, its images, its cache, and what is left when it ends.
//!
//! Always true: everything lies in directories of this process, which go away with it; the
//! figures of the origin are those of the whole run, the last destage included; the disk that
//! is kept is compared block by block with what was written to it.

use super::content::{self, BLOCK, LANE_BLOCKS, LANES};
use super::load::{self, Load};
use crate::cachedev;
use crate::daemon::{Daemon, SanSettings, Settings, VolumeSettings};
use crate::error::{Error, Result, cause};
use crate::files::Files;
use crate::lock::{self, Patience};
use crate::sys;
use engine::engine::{format_cache, geometry_for};
use engine::event::{Admission, Command};
use engine::flow::FlowLimits;
use engine::snapshot::OriginCounters;
use engine::types::{DestageMode, Policy, Uuid};
use indicatif::ProgressBar;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Throw-away disks on the gold image; one more disk is kept.
pub const CLONES: usize = 8;
pub const SAN: SanSettings = SanSettings {
    latency: Duration::from_millis(5),
    iops: Some(2_000),
    bandwidth_bytes: None,
};
const KEPT: &str = "kept";
const CACHE_BYTES: u64 = 1 << 30;
const RAM_BYTES: u64 = 128 << 20;
const STAGE_BYTES: u64 = 64 << 20;
/// Shared memory beyond the stage, which other programs may want.
const SHM_FREE_MIN: u64 = 512 << 20;
/// Between two looks at the counters.
const LOOK: Duration = Duration::from_millis(250);
const PREFIX: &str = "tenuto-demo-";

/// What one run came to.
pub struct Run {
    pub load: Load,
    pub origin: OriginCounters,
    /// Reads, writes and syncs of all images so far, over time.
    pub origin_requests: Vec<(Duration, u64)>,
    /// Until everything was at the origin after the last request.
    pub destage: Duration,
    /// Blocks of the kept disk that were compared, all of them equal.
    pub verified_blocks: u64,
    pub written_blocks: u64,
}

/// A directory that goes away with its owner.
pub struct Directory(PathBuf);

impl Directory {
    fn new(parent: &Path) -> Result<Directory> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        let made = fs::create_dir(&path);
        made.map_err(|error| {
            Error::failed(format!(
                "{}: {}; name a directory in which this user may make files",
                parent.display(),
                cause(&error)
            ))
        })?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is swept by the next demonstration.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what demonstrations left that were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok())
            && !lock::alive(pid)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Where the runs take place.
pub struct Place {
    disk: Directory,
    memory: Option<Directory>,
}

impl Place {
    pub fn new() -> Result<Place> {
        Place::below(&std::env::temp_dir())
    }

    /// With the files that should not lie in memory in a directory of this one.
    pub fn below(parent: &Path) -> Result<Place> {
        let shm = Path::new("/dev/shm");
        let roomy = File::open(shm)
            .ok()
            .and_then(|it| sys::free_bytes(&it).ok());
        let memory = match roomy {
            Some(free) if free >= SHM_FREE_MIN => Directory::new(shm).ok(),
            _ => None,
        };
        Ok(Place {
            disk: Directory::new(parent)?,
            memory,
        })
    }

    pub fn stage_dir(&self) -> &Path {
        let memory = self.memory.as_ref();
        memory.map_or(self.disk.0.as_path(), |memory| memory.0.as_path())
    }

    /// Whether what lies in `stage_dir` is in memory.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// A path for a file of a run; it goes away with the place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.0.join(name)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.disk.0.join(format!("{name}.img"))
    }
}

/// Runs all guests once, with the cache or straight on the storage.
pub fn run(place: &Place, seed: u64, cached: bool, bar: &ProgressBar) -> Result<Run> {
    let name = if cached { "cached" } else { "uncached" };
    bar.set_message(format!("{name}: images"));
    let volumes = make_volumes(place, seed, cached)?;
    let names: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
    let cache_path = place.disk.0.join("cache");
    make_cache(&cache_path, CACHE_BYTES)?;
    let run_dir = place.disk.0.join("run");
    let daemon = Daemon::start(Settings {
        run_dir: run_dir.clone(),
        stage_dir: place.stage_dir().to_owned(),
        state_dir: place.stage_dir().to_owned(),
        cache_path: cache_path.clone(),
        ram_bytes: RAM_BYTES,
        stage_bytes: STAGE_BYTES,
        overlay_ram_bytes: STAGE_BYTES,
        index_ram_bytes: None,
        host_name: "demo".into(),
        group: None,
        nbd_tcp: None,
        adopt_orphans: true,
        volumes: volumes.clone(),
    });
    let daemon = daemon.map_err(|error| Error::failed(error.to_string()))?;
    bar.set_message(format!("{name}: guests boot and work"));
    let ended = watched(&daemon, || {
        let load = load::run(seed, &run_dir.join("nbd.sock"), &names, bar)?;
        bar.set_message(format!("{name}: destage and comparison"));
        Ok((load, destage(&daemon)?))
    });
    let origin = origin_counters(&daemon);
    let stopped = daemon.stop();
    let ((load, destage), origin_requests) = ended?;
    stopped.map_err(|error| Error::failed(format!("stop: {error}")))?;
    let (verified_blocks, written_blocks) = verify(place, seed, &load)?;
    for volume in volumes {
        // Best effort: the directory goes away anyway, this only keeps the peak low.
        let _ = fs::remove_file(volume.origin);
    }
    let _ = fs::remove_file(cache_path);
    Ok(Run {
        load,
        origin: origin?,
        origin_requests,
        destage,
        verified_blocks,
        written_blocks,
    })
}

/// The disks of a run. Without the cache each guest has a private copy, as it would on a SAN.
fn make_volumes(place: &Place, seed: u64, cached: bool) -> Result<Vec<VolumeSettings>> {
    let make = |name: &str| -> Result<PathBuf> {
        let path = place.image(name);
        let made = File::create(&path).and_then(|file| content::make_image(seed, &file));
        made.map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
        Ok(path)
    };
    let kept = make(KEPT)?;
    let gold = cached.then(|| make("gold")).transpose()?;
    let mut volumes = Vec::new();
    for number in 0..CLONES {
        let name = format!("clone-{number}");
        let (origin, policy) = match &gold {
            Some(gold) => (gold.clone(), Policy::Ephemeral),
            None => (make(&name)?, Policy::Uncached),
        };
        volumes.push(volume(name, origin, policy));
    }
    let policy = match cached {
        true => Policy::WriteBack,
        false => Policy::Uncached,
    };
    volumes.push(volume(KEPT.into(), kept, policy));
    Ok(volumes)
}

fn volume(name: String, origin: PathBuf, policy: Policy) -> VolumeSettings {
    VolumeSettings {
        name,
        origin,
        policy,
        read_only: false,
        write_cache: true,
        destage: DestageMode::Atomic,
        destage_after: Some(Duration::from_secs(5)),
        journal_dir: None,
        origin_quiet: Duration::ZERO,
        origin_timeout: None,
        format_raw: true,
        dirty_limit_bytes: CACHE_BYTES / 4,
        flow: FlowLimits::default(),
        share: Default::default(),
        group: String::new(),
        origin_queue_depth: 32,
        admission: Admission::Reuse,
        overlay_timeout: Duration::from_secs(30),
        overlay_ram_bytes: 256 << 20,
        reset_on: engine::event::ResetOn::Command,
        qmp: None,
        export_nbd: true,
        san: Some(SAN),
    }
}

/// An empty cache of this size.
pub fn make_cache(path: &Path, bytes: u64) -> Result<()> {
    let failed = |why: String| Error::failed(format!("cache {}: {why}", path.display()));
    let geometry = geometry_for(bytes).map_err(failed)?;
    let claimed = cachedev::claim(path, false, &mut Patience::none());
    let target = claimed.and_then(|claimed| claimed.allocate(bytes));
    let target = target.map_err(|fault| failed(fault.to_string()))?;
    let uuid = Uuid(*uuid::Uuid::new_v4().as_bytes());
    let formatted = format_cache(&mut Files::new(target), uuid, geometry);
    formatted.map_err(|error| failed(error.to_string()))
}

/// Does the work while another thread reads the counters.
fn watched<T>(
    daemon: &Daemon,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<(Duration, u64)>)> {
    let began = Instant::now();
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut seen = Vec::new();
            loop {
                if let Ok(counters) = origin_counters(daemon) {
                    let requests = counters.reads + counters.writes + counters.syncs;
                    seen.push((began.elapsed(), requests));
                }
                if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return seen;
                }
            }
        });
        let result = work();
        drop(end);
        let seen = watcher.join().expect("a panic ends the process");
        Ok((result?, seen))
    })
}

/// All images together.
fn origin_counters(daemon: &Daemon) -> Result<OriginCounters> {
    let snapshot = daemon.handle().snapshot();
    let snapshot = snapshot.map_err(|error| Error::failed(error.to_string()))?;
    let mut sum = OriginCounters::default();
    for volume in snapshot.engine.volumes {
        let origin = volume.counters.origin;
        sum.reads += origin.reads;
        sum.read_bytes += origin.read_bytes;
        sum.writes += origin.writes;
        sum.write_bytes += origin.write_bytes;
        sum.journal_bytes += origin.journal_bytes;
        sum.syncs += origin.syncs;
        sum.errors += origin.errors;
    }
    Ok(sum)
}

fn destage(daemon: &Daemon) -> Result<Duration> {
    let begun = Instant::now();
    let volume = daemon.volume_id(KEPT).expect("it was added at the start");
    let destaged = daemon.handle().command(Command::Destage { volume });
    match daemon.volume_settings(KEPT).map(|it| it.policy) {
        // Nothing to destage: every write has been at its origin before its answer.
        Some(Policy::Uncached) => Ok(Duration::ZERO),
        _ => {
            destaged.map_err(|error| Error::failed(format!("destage: {error}")))?;
            Ok(begun.elapsed())
        }
    }
}

/// Compares the image of the kept disk, read without the daemon, with what was written.
fn verify(place: &Place, seed: u64, load: &Load) -> Result<(u64, u64)> {
    let path = place.image(KEPT);
    let unreadable = |error| Error::failed(format!("{}: {error}", path.display()));
    let file = File::open(&path).map_err(unreadable)?;
    let versions = load.versions.last().expect("the kept disk comes last");
    let (mut bytes, mut expected) = (vec![0; 256 * BLOCK], vec![0; BLOCK]);
    let mut written = 0;
    let window = content::lane_block(0);
    for first in (0..content::IMAGE_BLOCKS).step_by(256) {
        let read = file.read_exact_at(&mut bytes, first * BLOCK as u64);
        read.map_err(unreadable)?;
        for (at, got) in bytes.chunks_exact(BLOCK).enumerate() {
            let block = first + at as u64;
            let version = block.checked_sub(window).map_or(0, |inside| {
                let lane = (inside / LANE_BLOCKS).min(LANES - 1);
                versions[lane as usize][(inside % LANE_BLOCKS) as usize]
            });
            written += u64::from(version > 0);
            content::fill(seed, CLONES as u64, block, version, &mut expected);
            if got != expected {
                return Err(Error::failed(format!(
                    "{}: block {block} does not hold version {version}, the last that was written",
                    path.display()
                )));
            }
        }
    }
    Ok((content::IMAGE_BLOCKS, written))
}
