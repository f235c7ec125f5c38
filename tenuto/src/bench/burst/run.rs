//! One run of the bursts: a daemon in this process, one volume, and a look at it now and then.
//!
//! Always true: a run begins with an empty cache and a new image, and ends when everything is at
//! the origin, so that no run pays for the one before.

use super::{Options, guest};
use crate::daemon::{Daemon, SanSettings, Settings, VolumeSettings};
use crate::demo::host::{Place, make_cache};
use crate::error::{Error, Result};
use engine::event::{Admission, Command};
use engine::flow::FlowLimits;
use engine::types::{DestageMode, Policy};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// An eighth of a midrange array, so that two cores can be four times as fast.
pub const SAN: SanSettings = SanSettings {
    latency: Duration::from_micros(500),
    iops: Some(2_000),
    bandwidth_bytes: Some(16 << 20),
};
/// Five times what the SAN takes: more than the four that are wanted, so that they can be seen.
pub const BURST_RATE: u32 = 10_000;
pub const SLOW_RATE: u32 = 200;
pub const DEPTH: usize = 32;
const SLOW_SECONDS: u64 = 280;
/// Three quarters of it are filled by 80 seconds of a burst.
const DIRTY_LIMIT_BYTES: f64 = 8.15 * 1073741824.0;
const CACHE_BYTES_MIN: u64 = 256 << 20;
const STAGE_BYTES: u64 = 64 << 20;
const LOOK: Duration = Duration::from_millis(100);
const VOLUME: &str = "database";

pub struct Case {
    pub name: &'static str,
    pub policy: Policy,
    /// Length of a burst before scaling.
    pub burst: u64,
}

/// A part of a run with one pattern of writes.
pub struct Phase {
    pub name: &'static str,
    pub from: Duration,
    pub to: Duration,
    pub rate: u32,
    pub sequential: bool,
}

/// One write of the guest: when it was answered, and after how long.
pub struct Write {
    pub at: Duration,
    pub latency: Duration,
}

/// Counters at one time.
pub struct Look {
    pub at: Duration,
    /// Bytes that have reached the origin, a journal counted by half.
    pub destaged_bytes: u64,
    pub log_writes: u64,
    pub log_write_ns: u64,
    pub active: bool,
    pub delay_ms: f64,
    /// Moving average of the origin's latency, as flow control sees it.
    pub origin_ms: f64,
    pub dirty_bytes: u64,
}

pub struct Run {
    pub name: &'static str,
    pub policy: Policy,
    pub phases: Vec<Phase>,
    pub writes: Vec<Write>,
    pub looks: Vec<Look>,
}

pub fn dirty_limit_bytes(scale: f64) -> u64 {
    (DIRTY_LIMIT_BYTES / scale) as u64
}

fn phases(case: &Case, scale: f64) -> Vec<Phase> {
    let parts = [
        ("burst 1", case.burst, BURST_RATE),
        ("slow 1", SLOW_SECONDS, SLOW_RATE),
        ("burst 2", case.burst, BURST_RATE),
        ("slow 2", SLOW_SECONDS, SLOW_RATE),
    ];
    let mut from = Duration::ZERO;
    let phases = parts.into_iter().map(|(name, seconds, rate)| {
        let to = from + Duration::from_secs(seconds).div_f64(scale);
        Phase {
            name,
            from: std::mem::replace(&mut from, to),
            to,
            rate,
            sequential: rate == BURST_RATE,
        }
    });
    phases.collect()
}

pub fn run(place: &Place, options: &Options, case: Case) -> Result<Run> {
    let limit = dirty_limit_bytes(options.scale);
    // A burst never comes to the block where it began while that is still dirty.
    let image_bytes = (4 * limit).next_multiple_of(1 << 20);
    let (image, cache_path) = (place.path("database.img"), place.path("cache"));
    let made = File::create(&image).and_then(|file| file.set_len(image_bytes));
    made.map_err(|error| Error::failed(format!("{}: {error}", image.display())))?;
    make_cache(&cache_path, (2 * limit).max(CACHE_BYTES_MIN))?;
    let run_dir = place.path("run");
    let daemon = Daemon::start(Settings {
        run_dir: run_dir.clone(),
        stage_dir: place.stage_dir().to_owned(),
        cache_path: cache_path.clone(),
        ram_bytes: 16 << 20,
        stage_bytes: STAGE_BYTES,
        overlay_ram_bytes: 16 << 20,
        index_ram_bytes: None,
        host_name: "bench".into(),
        group: None,
        nbd_tcp: None,
        adopt_orphans: true,
        state_dir: place.stage_dir().to_owned(),
        volumes: vec![volume(image.clone(), case.policy, options.destage, limit)],
    });
    let daemon = daemon.map_err(|error| Error::failed(error.to_string()))?;
    let phases = phases(&case, options.scale);
    let socket = run_dir.join("nbd.sock");
    let began = Instant::now();
    let watched = watched(&daemon, began, || {
        guest::write(&socket, VOLUME, &phases, (image_bytes, options.seed), began)
    });
    if case.policy == Policy::WriteBack && watched.is_ok() {
        let volume = daemon.volume_id(VOLUME).expect("it was added at the start");
        let destaged = daemon.handle().command(Command::Destage { volume });
        destaged.map_err(|error| Error::failed(format!("destage: {error}")))?;
    }
    let stopped = daemon.stop();
    let (writes, looks) = watched?;
    stopped.map_err(|error| Error::failed(format!("stop: {error}")))?;
    for path in [image, cache_path] {
        // The directory goes away anyway; this only keeps the peak low.
        let _ = fs::remove_file(path);
    }
    Ok(Run {
        name: case.name,
        policy: case.policy,
        phases,
        writes,
        looks,
    })
}

fn volume(origin: PathBuf, policy: Policy, destage: DestageMode, limit: u64) -> VolumeSettings {
    VolumeSettings {
        name: VOLUME.into(),
        origin,
        policy,
        read_only: false,
        write_cache: true,
        destage,
        destage_after: Some(Duration::from_secs(600)),
        journal_dir: None,
        origin_quiet: Duration::ZERO,
        origin_timeout: None,
        format_raw: true,
        dirty_limit_bytes: limit,
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

/// Does the work while another thread reads the counters.
fn watched<T>(
    daemon: &Daemon,
    began: Instant,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Look>)> {
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut looks = Vec::new();
            loop {
                looks.extend(look(daemon, began));
                if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                    return looks;
                }
            }
        });
        let result = work();
        drop(end);
        let looks = watcher.join().expect("a panic ends the process");
        Ok((result?, looks))
    })
}

fn look(daemon: &Daemon, began: Instant) -> Option<Look> {
    let snapshot = daemon.handle().snapshot().ok()?.engine;
    let volume = snapshot.volumes.first()?;
    let origin = &volume.counters.origin;
    let both = origin.write_bytes + origin.journal_bytes;
    Some(Look {
        at: began.elapsed(),
        destaged_bytes: match origin.journal_bytes {
            0 => both,
            _ => both / 2,
        },
        log_writes: snapshot.log_writes,
        log_write_ns: snapshot.log_write_ns,
        active: volume.flow.active,
        delay_ms: volume.flow.delay_ns as f64 / 1e6,
        origin_ms: volume.flow.latency_ns as f64 / 1e6,
        dirty_bytes: volume.dirty_bytes,
    })
}
