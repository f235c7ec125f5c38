//! What a volume at its wall costs another one that behaves.
//!
//! Owns alternating slots over one simulated SAN: a guest that writes and reads at a modest pace,
//! alone and beside a volume whose writes wait for destage. Always true: a round counts only if
//! the neighbour was held back through all of its slot and had nothing to destage in the others,
//! and the guest itself was never held back. Deliberately absent: shares that an administrator
//! gives; both volumes have the defaults.

use super::pipe::Pipe;
use super::range;
use super::rounds::{self, cell};
use super::work::{BLOCK_BYTES, Carrier, Share, Tally, Verb, Walk, Work};
use crate::in_process::{Host, Sizes, make_image, san, volume};
use crate::machine;
use crate::place::Place;
use engine::types::{DestageMode, Policy};
use host::error::{Error, Result};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is asked of the product: the median latency grows by no more.
pub const RATIO_WANTED: f64 = 1.2;
const GUEST: &str = "guest";
const NEIGHBOUR: &str = "neighbour";
const HOT: Range<u64> = 0..4_096;
const WRITTEN: Range<u64> = 4_096..8_192;
/// Scattered, so that the origin takes one request for each block.
const SPREAD: Range<u64> = 0..65_536;
const NEIGHBOUR_LIMIT_BYTES: u64 = 8 << 20;
const NEIGHBOUR_DEPTH: usize = 32;
const SIZES: Sizes = Sizes {
    cache_bytes: 1 << 30,
    ram_bytes: 128 << 20,
};
const LOOK: Duration = Duration::from_millis(50);
/// A load that never meets the wall, or never leaves it, is a mistake and no measurement.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The neighbour writes on in pieces of this length, and looks whether it shall end.
const PIECE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Options {
    pub origin_latency: Duration,
    pub origin_iops: u32,
    pub rounds: u32,
    pub seconds: f64,
    /// Requests of the guest in a second.
    pub per_second: u32,
    pub mode: DestageMode,
    pub directory: PathBuf,
}

/// What was measured in one slot.
struct Slot {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    requests: usize,
    /// Looks at the neighbour, and those that found it held back.
    looks: usize,
    held: usize,
    guest_held_writes: u64,
    neighbour_writes: u64,
    neighbour_destaged_bytes: u64,
    neighbour_delay_ms: f64,
}

type Round = [Slot; 3];

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
}

pub fn run(options: &Options) -> Result<Report> {
    range::within("--seconds", options.seconds, 0.05..=600.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    range::at_least_one("--origin-iops", options.origin_iops)?;
    range::at_least_one("--rate", options.per_second)?;
    let place = Place::below(&options.directory)?;
    let images = [GUEST, NEIGHBOUR].map(|name| place.stage_dir().join(format!("{name}.img")));
    let mut volumes = Vec::new();
    for (name, image) in [GUEST, NEIGHBOUR].into_iter().zip(&images) {
        make_image(image, SPREAD.end * BLOCK_BYTES)?;
        let mut settings = volume(name, image.clone(), Policy::WriteBack);
        settings.destage = options.mode;
        settings.san = Some(san(options.origin_latency, options.origin_iops));
        if name == NEIGHBOUR {
            settings.dirty_limit_bytes = NEIGHBOUR_LIMIT_BYTES;
        }
        volumes.push(settings);
    }
    let host = Host::start(&place, SIZES, volumes)?;
    let measured = measure(&host, options);
    host.stop()?;
    let report = Report {
        options: options.clone(),
        rounds: measured?,
    };
    if report.proven().count() == 0 {
        let last = report.rounds.last().expect("there is at least one round");
        return Err(Error::failed(format!(
            "bench neighbour: in none of {} rounds was the neighbour held back through its slot \
             and idle in the others; of the last round: {}",
            options.rounds,
            round_document(last)
        )));
    }
    Ok(report)
}

fn measure(host: &Host, options: &Options) -> Result<Vec<Round>> {
    let mut pipe = Pipe::connect(host.socket(), GUEST, 1).map_err(failed)?;
    let share = |per_mille, verb, range| Share {
        per_mille,
        verb,
        walk: Walk::new(range),
    };
    let shares = vec![
        share(500, Verb::Read, HOT),
        share(500, Verb::Write, WRITTEN),
    ];
    let mut work = Work::new(shares, 1);
    let mut warm = Work::only(Verb::Read, HOT, 32);
    warm.left = Some(2 * (HOT.end - HOT.start));
    pipe.carry(&mut warm, WAIT_MAX).map_err(failed)?;
    work.per_second = Some(options.per_second);
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut slots = [None, None, None];
        for at in rounds::order(round) {
            let mut slot = || look_on(host, || pipe.carry(&mut work, lasts));
            slots[at] = Some(match at {
                1 => beside(host, slot)?,
                _ => slot()?,
            });
        }
        rounds.push(slots.map(|slot| slot.expect("each has its turn")));
    }
    Ok(rounds)
}

/// Measures while the neighbour writes against its wall; returns when it owes nothing any more.
fn beside(host: &Host, slot: impl FnOnce() -> Result<Slot>) -> Result<Slot> {
    let over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut pipe = Pipe::connect(host.socket(), NEIGHBOUR, 1)?;
            let mut work = Work::only(Verb::Write, SPREAD, NEIGHBOUR_DEPTH);
            while !over.load(Ordering::SeqCst) {
                pipe.carry(&mut work, PIECE)?;
            }
            Ok(())
        });
        let slot = wait_for(host, |held, _| held).and_then(|()| slot());
        over.store(true, Ordering::SeqCst);
        let written: std::io::Result<()> = writer.join().expect("a panic ends the process");
        written.map_err(failed)?;
        slot
    });
    host.destage(NEIGHBOUR)?;
    wait_for(host, |held, dirty| !held && dirty == 0)?;
    result
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench neighbour: {error}"))
}

/// Waits until the neighbour is as asked: held back or not, and its dirty bytes.
fn wait_for(host: &Host, wanted: impl Fn(bool, u64) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let volume = host.volume(NEIGHBOUR)?;
        if wanted(volume.flow.active, volume.dirty_bytes) {
            return Ok(());
        }
        if begun.elapsed() > WAIT_MAX {
            return Err(Error::failed(
                "volume neighbour: does not come to its wall, or not away from it",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Does the work and looks at the neighbour meanwhile.
fn look_on(host: &Host, work: impl FnOnce() -> std::io::Result<Tally>) -> Result<Slot> {
    let before = (host.volume(GUEST)?, host.volume(NEIGHBOUR)?);
    let over = AtomicBool::new(false);
    let (tally, (looks, held, delay)) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut looks, mut held, mut delay) = (0, 0, 0);
            while !over.load(Ordering::SeqCst) {
                if let Ok(volume) = host.volume(NEIGHBOUR) {
                    looks += 1;
                    held += usize::from(volume.flow.active);
                    delay = delay.max(volume.flow.delay_ns);
                }
                std::thread::sleep(LOOK);
            }
            (looks, held, delay)
        });
        let tally = work();
        over.store(true, Ordering::SeqCst);
        (tally, watcher.join().expect("a panic ends the process"))
    });
    let tally = tally.map_err(failed)?;
    let after = (host.volume(GUEST)?, host.volume(NEIGHBOUR)?);
    let (old, new) = (&before.1.counters, &after.1.counters);
    Ok(Slot {
        p50_us: tally.quantile_us(50),
        p99_us: tally.quantile_us(99),
        requests: tally.samples().len(),
        looks,
        held,
        guest_held_writes: after.0.flow.held_writes - before.0.flow.held_writes,
        neighbour_writes: new.writes.requests - old.writes.requests,
        neighbour_destaged_bytes: new.origin.write_bytes - old.origin.write_bytes,
        neighbour_delay_ms: delay as f64 / 1e6,
    })
}

impl Slot {
    fn is_quiet(&self) -> bool {
        self.held == 0 && self.neighbour_writes == 0 && self.neighbour_destaged_bytes == 0
    }

    fn document(&self) -> Value {
        json!({
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "requests": self.requests,
            "held_writes": self.guest_held_writes,
            "neighbour_held_part": self.held as f64 / self.looks.max(1) as f64,
            "neighbour_delay_ms_max": self.neighbour_delay_ms,
            "neighbour_writes": self.neighbour_writes,
            "neighbour_destaged_bytes": self.neighbour_destaged_bytes,
        })
    }
}

fn is_proven(round: &Round) -> bool {
    let beside = &round[1];
    let wall = beside.held == beside.looks && beside.neighbour_writes > 0;
    let unheld = round.iter().all(|slot| slot.guest_held_writes == 0);
    wall && unheld && round[0].is_quiet() && round[2].is_quiet()
}

fn round_document(round: &Round) -> Value {
    rounds::round(round, is_proven(round), "beside", Slot::document)
}

impl Report {
    fn proven(&self) -> impl Iterator<Item = &Round> + Clone {
        self.rounds.iter().filter(|round| is_proven(round))
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "4 KiB requests of the guest: {} a second, one in flight, half of them reads from RAM, \
             half writes; its neighbour writes {} in flight against a dirty limit of {} MiB; \
             simulated SAN of both: {} ms, {} requests/s; destage {}; {} of {} rounds of 3 x {} s \
             with proof that the neighbour was held back",
            options.per_second,
            NEIGHBOUR_DEPTH,
            NEIGHBOUR_LIMIT_BYTES >> 20,
            options.origin_latency.as_secs_f64() * 1e3,
            options.origin_iops,
            options.mode.name(),
            self.proven().count(),
            self.rounds.len(),
            options.seconds,
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 6] = ["", "ALONE", "BESIDE", "RATIO", "A/A", "WANTED"];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, of: &dyn Fn(&Slot) -> Option<f64>, wanted: &str| {
            let compared = rounds::compared(self.proven(), of);
            let median = |at| rounds::median(self.proven(), at, of);
            vec![
                name.to_owned(),
                cell(median(0), 1),
                cell(median(1), 1),
                cell(compared.ratio, 2),
                cell(compared.same, 2),
                wanted.to_owned(),
            ]
        };
        let wanted = format!("<= {RATIO_WANTED}");
        vec![
            row("p50, us", &|slot| slot.p50_us, &wanted),
            row("p99, us", &|slot| slot.p99_us, "-"),
        ]
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        let figure = |of: fn(&Slot) -> Option<f64>| rounds::document(self.proven(), "beside", of);
        json!({
            "benchmark": "neighbour",
            "machine": machine::document(),
            "parameters": {
                "origin_latency_us": options.origin_latency.as_micros() as u64,
                "origin_iops": options.origin_iops,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "guest_requests_per_second": options.per_second,
                "neighbour_queue_depth": NEIGHBOUR_DEPTH,
                "neighbour_dirty_limit_bytes": NEIGHBOUR_LIMIT_BYTES,
                "destage": options.mode.name(),
            },
            "rounds_proven": self.proven().count(),
            "p50_us": figure(|slot| slot.p50_us),
            "p99_us": figure(|slot| slot.p99_us),
            "ratio_wanted": RATIO_WANTED,
            "rounds": self.rounds.iter().map(round_document).collect::<Vec<Value>>(),
        })
    }
}
