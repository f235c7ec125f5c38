//! One run of the bursts: a daemon in this process, one volume, and a look at it now and then.
//!
//! Always true: a run begins with an empty cache and a new image, and ends when everything is at
//! the origin, so that no run pays for the one before.

use super::{Options, guest};
use crate::in_process::{Host, Sizes, make_image, volume, watched};
use crate::place::Place;
use engine::types::Policy;
use host::daemon::{SanSettings, VolumeSettings};
use host::error::Result;
use std::fs;
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
const RAM_BYTES: u64 = 16 << 20;
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
    let image = place.path("database.img");
    make_image(&image, image_bytes)?;
    let sizes = Sizes {
        cache_bytes: (2 * limit).max(CACHE_BYTES_MIN),
        ram_bytes: RAM_BYTES,
    };
    let volume = VolumeSettings {
        destage: options.destage,
        destage_after: Some(Duration::from_secs(600)),
        dirty_limit_bytes: limit,
        san: Some(SAN),
        ..volume(VOLUME, image.clone(), case.policy)
    };
    let host = Host::start(place, sizes, vec![volume])?;
    let phases = phases(&case, options.scale);
    let began = Instant::now();
    let watched = watched(
        LOOK,
        || look(&host, began),
        || {
            let target = (image_bytes, options.seed);
            guest::write(host.socket(), VOLUME, &phases, target, began)
        },
    );
    if case.policy == Policy::WriteBack && watched.is_ok() {
        host.destage(VOLUME)?;
    }
    let stopped = host.stop();
    let (writes, looks) = watched?;
    stopped?;
    // The directory goes away anyway; this only keeps the peak low.
    let _ = fs::remove_file(image);
    Ok(Run {
        name: case.name,
        policy: case.policy,
        phases,
        writes,
        looks,
    })
}

fn look(host: &Host, began: Instant) -> Option<Look> {
    let snapshot = host.snapshot().ok()?;
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
