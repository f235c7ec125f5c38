//! One slot of the load, with or without a destage beside it.
//!
//! Owns the daemon, its volume and the guest. Always true: a slot begins with nothing on its way
//! to the origin; what a destage shall move is written before its slot, scattered, so that it does
//! not merge into a few large requests; when a slot has ended its destage is waited for.

use super::Options;
use crate::bench::pipe::Pipe;
use crate::bench::work::{BLOCK_BYTES, Carrier, Sample, Share, Verb, Walk, Work};
use crate::client::Client;
use crate::in_process::{Host, Sizes, make_image, san, volume};
use crate::place::Place;
use engine::snapshot::{OriginCounters, VolumeSnapshot};
use engine::types::Policy;
use host::error::{Error, Result};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the guest reads again and again: 64 MiB, which stay in the RAM tier.
const HOT: Range<u64> = 0..16_384;
/// What it writes.
const WRITTEN: Range<u64> = 16_384..32_768;
/// What was written before, and is destaged.
const BACKLOG: Range<u64> = 32_768..98_304;
/// What no cache has.
const COLD: Range<u64> = 98_304..229_376;
const IMAGE_BYTES: u64 = COLD.end * BLOCK_BYTES;
const RAM_BYTES: u64 = 256 << 20;
const NAME: &str = "disk";
/// The destage must outlast its slot: what the origin takes in a slot, and a half more.
const BACKLOG_FACTOR: f64 = 1.5;
const WARM_BYTES: usize = 1 << 20;
const FILL_DEPTH: usize = 32;
const LOOK: Duration = Duration::from_millis(20);
/// A destage that was ordered goes on within this time, or something is wrong.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Looks that miss the destage, at the edges of its phases, before a slot does not count.
const LOOKS_PERCENT_MIN: usize = 95;

/// The state of the destage at one time.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: Duration,
    pub destaging: bool,
    pub origin_bytes: u64,
}

/// What was measured in one slot.
#[derive(Debug)]
pub struct Slot {
    pub per_second: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub samples: Vec<Sample>,
    pub looks: Vec<Look>,
    /// Of this slot.
    pub origin: OriginCounters,
    pub ram_hits: u64,
    pub origin_reads: u64,
    pub held_writes: u64,
}

impl Slot {
    /// Nothing went to the origin.
    pub fn is_quiet(&self) -> bool {
        self.origin.writes == 0
            && self.origin.journal_bytes == 0
            && self.looks.iter().all(|look| !look.destaging)
    }

    /// A destage ran from begin to end.
    pub fn is_destaging(&self) -> bool {
        let seen = self.looks.iter().filter(|look| look.destaging).count();
        let moved = self.origin.write_bytes + self.origin.journal_bytes;
        moved > 0 && seen * 100 >= self.looks.len() * LOOKS_PERCENT_MIN
    }

    pub fn document(&self) -> Value {
        let seen = self.looks.iter().filter(|look| look.destaging).count();
        json!({
            "iops": self.per_second,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "requests": self.samples.len(),
            "ram_hits": self.ram_hits,
            "origin_reads": self.origin_reads,
            "origin_writes": self.origin.writes,
            "destaged_bytes": self.origin.write_bytes,
            "journal_bytes": self.origin.journal_bytes,
            "origin_syncs": self.origin.syncs,
            "held_writes": self.held_writes,
            "destaging_part": seen as f64 / self.looks.len().max(1) as f64,
        })
    }
}

/// Where the slots take place.
pub struct Stage {
    host: Host,
    image: PathBuf,
    pipe: Pipe,
    load: Work,
    backlog: Work,
}

impl Stage {
    pub fn new(place: &Place, options: &Options) -> Result<Stage> {
        // The device of the cache has no other work, where there is memory for the image.
        let image = place.stage_dir().join("disk.img");
        make_image(&image, IMAGE_BYTES)?;
        let mut settings = volume(NAME, image.clone(), Policy::WriteBack);
        settings.destage = options.mode;
        settings.san = Some(san(options.origin_latency, options.origin_iops));
        let sizes = Sizes {
            cache_bytes: options.cache_bytes,
            ram_bytes: RAM_BYTES,
        };
        let host = Host::start(place, sizes, vec![settings])?;
        warm(&host).map_err(failed)?;
        let mut stage = Stage {
            pipe: Pipe::connect(host.socket(), NAME, 1).map_err(failed)?,
            host,
            image,
            load: load(options),
            backlog: Work::only(Verb::Write, BACKLOG, FILL_DEPTH),
        };
        // Once around the log: its first lap writes zeroes ahead, later ones do not.
        let mut first = Work::only(Verb::Write, WRITTEN, FILL_DEPTH);
        first.left = Some(options.cache_bytes / BLOCK_BYTES);
        stage.finish(&mut first)?;
        stage.host.destage(NAME)?;
        Ok(stage)
    }

    pub fn stop(self) -> Result<()> {
        drop(self.pipe);
        let stopped = self.host.stop();
        // The directory goes away anyway.
        let _ = std::fs::remove_file(self.image);
        stopped
    }

    /// Carries a work that ends by itself.
    fn finish(&mut self, work: &mut Work) -> Result<()> {
        let carried = self.pipe.carry(work, Duration::from_secs(24 * 3600));
        carried.map(drop).map_err(failed)
    }

    pub fn alone(&mut self, options: &Options) -> Result<Slot> {
        self.wait("end", |volume| !volume.destaging)?;
        self.measure(Duration::from_secs_f64(options.seconds))
    }

    /// A slot from the begin of a destage, or, in every other round, from its first write to the
    /// image: with a journal the two parts of it ask for different things.
    pub fn beside(&mut self, options: &Options, round: u32) -> Result<Slot> {
        let blocks = options.seconds * f64::from(options.origin_iops) * BACKLOG_FACTOR;
        let mut backlog = self.backlog.clone();
        backlog.left = Some(blocks.ceil() as u64);
        self.finish(&mut backlog)?;
        backlog.left = None;
        self.backlog = backlog;
        let written = |volume: &VolumeSnapshot| volume.counters.origin.writes;
        let before = written(&self.host.volume(NAME)?);
        let end = self.host.destage_begin(NAME)?;
        self.wait("begin", |volume| volume.destaging)?;
        if round % 2 == 1 {
            self.wait("write", |volume| written(volume) > before)?;
        }
        let slot = self.measure(Duration::from_secs_f64(options.seconds));
        end()?;
        self.wait("end", |volume| !volume.destaging)?;
        slot
    }

    fn wait(&self, what: &str, is_so: impl Fn(&VolumeSnapshot) -> bool) -> Result<()> {
        let begun = Instant::now();
        while !is_so(&self.host.volume(NAME)?) {
            if begun.elapsed() > WAIT_MAX {
                let message = format!("volume {NAME}: its destage does not {what}");
                return Err(Error::failed(message));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn measure(&mut self, lasts: Duration) -> Result<Slot> {
        let before = self.host.volume(NAME)?;
        let (pipe, load, host) = (&mut self.pipe, &mut self.load, &self.host);
        let (end, ended) = channel::<()>();
        let (tally, looks) = std::thread::scope(|scope| {
            let began = Instant::now();
            let watcher = scope.spawn(move || {
                let mut looks = Vec::new();
                loop {
                    looks.extend(look(host, began));
                    if ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                        return looks;
                    }
                }
            });
            let tally = pipe.carry(load, lasts);
            drop(end);
            (tally, watcher.join().expect("a panic ends the process"))
        });
        let tally = tally.map_err(failed)?;
        let after = self.host.volume(NAME)?;
        Ok(Slot {
            per_second: tally.per_second(),
            p50_us: tally.quantile_us(50),
            p99_us: tally.quantile_us(99),
            samples: tally.samples().to_vec(),
            looks,
            origin: since(&before, &after),
            ram_hits: after.counters.reads.ram_hits - before.counters.reads.ram_hits,
            origin_reads: after.counters.reads.origin - before.counters.reads.origin,
            held_writes: after.flow.held_writes - before.flow.held_writes,
        })
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("volume {NAME}: {error}"))
}

fn load(options: &Options) -> Work {
    let share = |per_mille, verb, range: Range<u64>| Share {
        per_mille,
        verb,
        walk: Walk::new(range),
    };
    let (writes, misses) = (options.writes_percent * 10, options.misses_per_mille);
    let shares = vec![
        share(1000 - writes - misses, Verb::Read, HOT),
        share(writes, Verb::Write, WRITTEN),
        share(misses, Verb::Read, COLD),
    ];
    Work::new(shares, options.depth)
}

/// Brings what is read into the RAM tier.
fn warm(host: &Host) -> std::io::Result<()> {
    let mut client = Client::connect(host.socket(), NAME)?;
    let mut bytes = vec![0; WARM_BYTES];
    let end = HOT.end * BLOCK_BYTES;
    // Twice, because what was asked for once leaves first.
    for _ in 0..2 {
        for offset in (HOT.start * BLOCK_BYTES..end).step_by(WARM_BYTES) {
            client.read(offset, &mut bytes)?;
        }
    }
    Ok(())
}

fn look(host: &Host, began: Instant) -> Option<Look> {
    let volume = host.volume(NAME).ok()?;
    let origin = &volume.counters.origin;
    Some(Look {
        at: began.elapsed(),
        destaging: volume.destaging,
        origin_bytes: origin.write_bytes + origin.journal_bytes,
    })
}

fn since(before: &VolumeSnapshot, after: &VolumeSnapshot) -> OriginCounters {
    let (old, new) = (&before.counters.origin, &after.counters.origin);
    OriginCounters {
        reads: new.reads - old.reads,
        read_bytes: new.read_bytes - old.read_bytes,
        writes: new.writes - old.writes,
        write_bytes: new.write_bytes - old.write_bytes,
        journal_bytes: new.journal_bytes - old.journal_bytes,
        journal_requests: new.journal_requests - old.journal_requests,
        syncs: new.syncs - old.syncs,
        zeroed_bytes: new.zeroed_bytes - old.zeroed_bytes,
        errors: new.errors - old.errors,
        latency: new.latency,
    }
}
