//! One run: a daemon in this process, its images, its cache, and what is left when it ends.
//!
//! Always true: every run has the same simulated storage below it; everything lies in directories
//! of this process, which go away with it; the figures of the origin are those of the whole run,
//! the last destage included; the disk that is kept is compared with what was written to it, and
//! the image is read without the daemon.

use super::content::{self, BLOCK, LANE_BLOCKS, LANES};
use super::gold;
use super::guests::{Fleet, ROUNDS};
use super::load;
use super::measure::{Look, Totals};
use super::side::{Disk, Disks, Side};
use crate::guest::Machine;
use crate::guest::kit::Kit;
use crate::in_process::{STAGE_BYTES, settings, volume, watched};
use crate::interrupt::Interrupt;
use crate::place::{Place, make_cache};
use crate::qemu;
use crate::stats::Latency;
use engine::event::Command;
use engine::types::Policy;
use host::daemon::{Daemon, SanSettings, Settings, VolumeSettings};
use host::error::{Error, Result, cause};
use indicatif::ProgressBar;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const SAN: SanSettings = SanSettings {
    latency: Duration::from_millis(5),
    iops: Some(2_000),
    bandwidth_bytes: None,
};
const KEPT: &str = "kept";
const GOLD: &str = "gold";
pub const CACHE_BYTES: u64 = 256 << 20;
const UNUSED_CACHE_BYTES: u64 = 128 << 20;
pub const RAM_BYTES: u64 = 128 << 20;
/// Short, so that a run pays for its destage.
const DESTAGE_AFTER: Duration = Duration::from_secs(5);
/// Between two looks at the counters.
const LOOK: Duration = Duration::from_millis(250);
/// One point of latency for so long.
const POINT: Duration = Duration::from_millis(500);
/// Behind the last cluster of data of an overlay, for its tables and what it writes anew.
const OVERLAY_ROOM_BYTES: u64 = 64 << 20;
/// Images are copied in pieces of this size, and pieces of zeros are left out.
const COPY_BYTES: usize = 64 << 10;

/// Who asks the disks.
pub enum Driver<'a> {
    Client,
    /// Real guests on copies of this image.
    Guests {
        kit: &'a Kit,
        machine: Machine<'a>,
        gold: PathBuf,
    },
}

impl Driver<'_> {
    pub fn is_guests(&self) -> bool {
        matches!(self, Driver::Guests { .. })
    }

    const fn image_bytes(&self) -> u64 {
        match self {
            Driver::Client => content::IMAGE_BYTES,
            Driver::Guests { .. } => gold::IMAGE_BYTES,
        }
    }
}

/// What all runs have in common.
pub struct Plan<'a> {
    pub seed: u64,
    /// Throw-away disks on the gold image; one more disk is kept.
    pub clones: usize,
    pub driver: Driver<'a>,
}

/// Who can stop a run, and who is told how far it is.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    pub bar: &'a ProgressBar,
    pub interrupt: &'a Interrupt,
    /// When the guests began.
    pub began: Instant,
    /// Those that are not done by then are given up; the built-in client asks for no more.
    pub time: Duration,
}

impl Watch<'_> {
    pub fn deadline(&self) -> Instant {
        self.began + self.time
    }
}

/// What one run came to.
pub struct Run {
    pub work: Work,
    pub totals: Totals,
    /// The same over time.
    pub looks: Vec<Look>,
    /// As the client measured it; real guests do not tell it.
    pub latency: Option<Latency>,
    /// Until everything was at the origin after the last request.
    pub destage: Duration,
    /// Blocks of the kept disk that were compared, all of them equal.
    pub verified_blocks: u64,
    /// Those of them that are known to have been written.
    pub written_blocks: Option<u64>,
}

/// What the guests did, by the clock of the run.
pub struct Work {
    /// Start and end of each boot.
    pub boots: Vec<(Duration, Duration)>,
    /// Of each guest, from the start of the work to its end.
    pub works: Vec<Duration>,
    pub total: Duration,
    /// Rounds of guests, or requests of the client: done and asked for.
    pub done: (u64, u64),
    /// Of each request, where the driver measures it.
    samples: Vec<crate::stats::Sample>,
}

/// What the kept disk is compared with in the end.
enum Check<'a> {
    Versions(Vec<Vec<u32>>),
    Guest(Fleet<'a>),
}

/// What the image of the kept disk must be.
enum Expected {
    Versions(Vec<Vec<u32>>),
    Sum(String),
}

/// Runs all guests once.
pub fn run(place: &Place, plan: &Plan<'_>, side: Side, watch: Watch<'_>) -> Result<Run> {
    let (bar, name) = (watch.bar, side.name());
    bar.set_message(format!("{name}: images"));
    let volumes = make_volumes(place, plan, side)?;
    let cache_path = place.path("cache");
    // Uncached volumes need one that is there, and no room in it.
    let cache_bytes = match side {
        Side::Raw | Side::Qcow2 => UNUSED_CACHE_BYTES,
        Side::Tenuto => CACHE_BYTES,
    };
    make_cache(&cache_path, cache_bytes)?;
    watch.interrupt.check()?;
    let daemon = Daemon::start(Settings {
        overlay_ram_bytes: STAGE_BYTES,
        ..settings("demo", place, RAM_BYTES, volumes.clone())
    });
    let daemon = daemon.map_err(|error| Error::failed(error.to_string()))?;
    let ended = serve(place, plan, side, &daemon, watch);
    let stopped = daemon.stop();
    let (mut run, expected) = ended?;
    stopped.map_err(|error| Error::failed(format!("stop: {error}")))?;
    (run.verified_blocks, run.written_blocks) = compare(place, plan, &expected)?;
    for volume in volumes {
        // Best effort: the directory goes away anyway, this only keeps the peak low.
        let _ = fs::remove_file(volume.origin);
    }
    let _ = fs::remove_file(cache_path);
    Ok(run)
}

/// From the first guest to the last, on a daemon that is there.
fn serve(
    place: &Place,
    plan: &Plan<'_>,
    side: Side,
    daemon: &Daemon,
    watch: Watch<'_>,
) -> Result<(Run, Expected)> {
    let (bar, name) = (watch.bar, side.name());
    let disks = Disks::open(side, plan, &place.path("run"), &names(plan.clones))?;
    bar.set_message(format!("{name}: guests boot and work"));
    let watch = Watch {
        began: Instant::now(),
        ..watch
    };
    let look = || {
        let totals = Totals::of(daemon).ok()?;
        let at = watch.began.elapsed();
        Some(Look { at, totals })
    };
    let ((work, check, destage, totals), looks) = watched(LOOK, look, || {
        let (work, check) = drive(plan, &disks.all, watch)?;
        bar.set_message(format!("{name}: destage and comparison"));
        let destage = destage(daemon)?;
        Ok((work, check, destage, Totals::of(daemon)?))
    })?;
    // What the guest reads to compare its disk is no part of the figures.
    let expected = match check {
        Check::Versions(versions) => Expected::Versions(versions),
        Check::Guest(fleet) => Expected::Sum(fleet.finish()?),
    };
    let samples = &work.samples;
    let run = Run {
        latency: (!samples.is_empty()).then(|| Latency::of(samples, POINT)),
        work,
        totals,
        looks,
        destage,
        verified_blocks: 0,
        written_blocks: None,
    };
    Ok((run, expected))
}

/// Of the guests' disks; the kept one comes last.
fn names(clones: usize) -> Vec<String> {
    let mut names: Vec<String> = (0..clones).map(|it| format!("clone-{it}")).collect();
    names.push(KEPT.into());
    names
}

/// Lets all guests boot and work.
fn drive<'a>(plan: &'a Plan<'a>, disks: &'a [Disk], watch: Watch<'a>) -> Result<(Work, Check<'a>)> {
    let Driver::Guests { machine, .. } = &plan.driver else {
        let load = load::run(plan.seed, disks, watch)?;
        let boots = load.boots.into_iter().map(|end| (Duration::ZERO, end));
        let work = Work {
            boots: boots.collect(),
            works: load.works,
            total: load.total,
            done: load.done,
            samples: load.samples,
        };
        let kept = load.versions.into_iter().next_back();
        let kept = kept.expect("the kept disk comes last");
        return Ok((work, Check::Versions(kept)));
    };
    let mut fleet = Fleet::new(machine, disks, watch);
    let boots = fleet.boot()?;
    let begun = Instant::now();
    let worked = fleet.work()?;
    let since = |at: Instant| at.saturating_duration_since(watch.began);
    let work = Work {
        boots: boots
            .iter()
            .map(|boot| (since(boot.started), since(boot.ended)))
            .collect(),
        works: worked
            .iter()
            .map(|(at, _)| at.saturating_duration_since(begun))
            .collect(),
        total: worked
            .iter()
            .map(|(at, _)| since(*at))
            .max()
            .unwrap_or_default(),
        done: (
            worked.iter().map(|(_, rounds)| rounds).sum(),
            ROUNDS * disks.len() as u64,
        ),
        samples: Vec::new(),
    };
    Ok((work, Check::Guest(fleet)))
}

/// The disks of a run, all on the one storage.
fn make_volumes(place: &Place, plan: &Plan<'_>, side: Side) -> Result<Vec<VolumeSettings>> {
    let make = |name: &str| -> Result<PathBuf> {
        let path = place.image(name);
        let made = File::create(&path).and_then(|file| match &plan.driver {
            Driver::Client => content::make_image(plan.seed, &file),
            Driver::Guests { gold, .. } => copy(gold, &file),
        });
        made.map_err(|error| Error::failed(format!("{}: {}", path.display(), cause(&error))))?;
        Ok(path)
    };
    let (clone_policy, kept_policy) = match side {
        Side::Raw | Side::Qcow2 => (Policy::Uncached, Policy::Uncached),
        Side::Tenuto => (Policy::Ephemeral, Policy::WriteBack),
    };
    let kept = make(KEPT)?;
    let gold = (side != Side::Raw).then(|| make(GOLD)).transpose()?;
    let mut volumes = Vec::new();
    for name in names(plan.clones).into_iter().take(plan.clones) {
        let origin = match (&gold, side) {
            (Some(gold), Side::Tenuto) => gold.clone(),
            (Some(_), _) => make_overlay(place, plan, &name)?,
            (None, _) => make(&name)?,
        };
        volumes.push(disk(&name, origin, clone_policy));
    }
    if let (Some(gold), Side::Qcow2) = (gold, side) {
        volumes.push(VolumeSettings {
            read_only: true,
            ..disk(GOLD, gold, Policy::Uncached)
        });
    }
    volumes.push(disk(KEPT, kept, kept_policy));
    Ok(volumes)
}

/// An empty overlay over the gold image, with the room that it can come to need.
fn make_overlay(place: &Place, plan: &Plan<'_>, name: &str) -> Result<PathBuf> {
    let path = place.image(name);
    let bytes = plan.driver.image_bytes();
    let first = place.image(&names(plan.clones)[0]);
    if path != first {
        // An empty one is like another.
        let copied = File::create(&path).and_then(|file| copy(&first, &file));
        copied.map_err(|error| Error::failed(format!("{}: {}", path.display(), cause(&error))))?;
        return Ok(path);
    }
    qemu::overlay(
        &path,
        bytes,
        &place.path("run").join("nbd.sock"),
        GOLD,
        "cluster_size=65536",
    )?;
    let grown = File::options().write(true).open(&path);
    let grown = grown.and_then(|file| file.set_len(bytes + OVERLAY_ROOM_BYTES));
    grown.map_err(|error| Error::failed(format!("{}: {}", path.display(), cause(&error))))?;
    Ok(path)
}

/// Copies an image and leaves holes where it is zero.
fn copy(from: &Path, to: &File) -> std::io::Result<()> {
    let from = File::open(from)?;
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut bytes = vec![0; COPY_BYTES];
    for at in (0..length).step_by(COPY_BYTES) {
        let piece = &mut bytes[..COPY_BYTES.min((length - at) as usize)];
        from.read_exact_at(piece, at)?;
        if piece.iter().any(|&byte| byte != 0) {
            to.write_all_at(piece, at)?;
        }
    }
    Ok(())
}

fn disk(name: &str, origin: PathBuf, policy: Policy) -> VolumeSettings {
    VolumeSettings {
        destage_after: Some(DESTAGE_AFTER),
        dirty_limit_bytes: CACHE_BYTES / 4,
        san: Some(SAN),
        ..volume(name, origin, policy)
    }
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

/// Compares the image of the kept disk, read without the daemon, with what it must be.
fn compare(place: &Place, plan: &Plan<'_>, expected: &Expected) -> Result<(u64, Option<u64>)> {
    let path = place.image(KEPT);
    match (expected, &plan.driver) {
        (Expected::Versions(versions), _) => {
            let (blocks, written) = compare_blocks(&path, plan, versions)?;
            Ok((blocks, Some(written)))
        }
        (Expected::Sum(sum), Driver::Guests { kit, .. }) => {
            let found = gold::sum(kit, &path)?;
            if found != *sum {
                return Err(Error::failed(format!(
                    "{}: has the checksum {found}, and the guest's disk had {sum}",
                    path.display()
                )));
            }
            Ok((gold::IMAGE_BYTES / BLOCK as u64, None))
        }
        (Expected::Sum(_), Driver::Client) => unreachable!("a client says no checksum"),
    }
}

fn compare_blocks(path: &Path, plan: &Plan<'_>, versions: &[Vec<u32>]) -> Result<(u64, u64)> {
    let unreadable = |error| Error::failed(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(unreadable)?;
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
            content::fill(plan.seed, plan.clones as u64, block, version, &mut expected);
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
