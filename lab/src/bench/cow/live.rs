//! The live half of the evaluation of the COWCache paper: requests per second of guests.
//!
//! Owns the order of the slots and the base image. Always true: TRDCache, Tenuto and QEMU without
//! a cache are asked by turns in one run by the same client, TRDCache twice so that it stands
//! against itself; each slot has a new clone, an empty cache, and the same simulated storage below.
//! Deliberately absent: the paper's disk of 1 TiB with its RAM for tables, because this machine
//! would only fill it for hours: the tables of the small disk fit the 1 MiB that QEMU is given; a
//! device for the cache alone, so flash bytes are those that the daemon sends to it.

mod case;
pub(super) mod guest;
mod report;
pub(super) mod side;

use super::super::micro::serve::make_file;
use super::super::range;
use super::super::work::BLOCK_BYTES;
use crate::place::Place;
use crate::qemu;
use case::Case;
use host::error::{Error, Result, cause};
pub use report::Report;
use side::{Bench, Side, Slot};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const DISK_BYTES_MIN: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    pub seconds: f64,
    /// Requests in flight.
    pub depth: usize,
    /// Of the disk, all of it content of the base.
    pub disk_bytes: u64,
    pub cache_bytes: u64,
    pub origin_latency: Duration,
    pub origin_iops: u32,
    pub seed: u64,
    pub directory: PathBuf,
}

impl Options {
    fn check(&self) -> Result<()> {
        range::at_least_one("--rounds", self.rounds)?;
        range::at_least_one("--origin-iops", self.origin_iops)?;
        range::within("--seconds", self.seconds, 0.02..=60.0)?;
        range::within("--qd", self.depth, 1..=32)?;
        range::size_within("--data", self.disk_bytes, DISK_BYTES_MIN..=64 << 30)?;
        // All that a load writes stays dirty, what is copied too.
        range::size_at_least("--cache", self.cache_bytes, self.disk_bytes)
    }

    /// Slots of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        (Case::all().len() * Side::ALL.len()) as u64 * u64::from(self.rounds)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench cow live: {}", cause(&error)))
}

/// One load on all sides, round by round; slots are in the order of [`Side::ALL`].
struct Line {
    case: Case,
    rounds: Vec<[Slot; 5]>,
}

/// Calls `done` with the slots so far.
pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    options.check()?;
    let qemu_version = qemu::storage_version()?;
    let place = Place::below(&options.directory)?;
    let base = make_base(&place, options.disk_bytes)?;
    let bench = Bench {
        place: &place,
        options,
        base,
    };
    let cases = Case::all().into_iter();
    let mut lines: Vec<Line> = cases
        .map(|case| Line {
            case,
            rounds: Vec::new(),
        })
        .collect();
    let mut steps = 0;
    for round in 0..options.rounds {
        for line in &mut lines {
            let slots = measure(&bench, &line.case, round, || {
                steps += 1;
                done(steps);
            })?;
            line.rounds.push(slots);
        }
    }
    Ok(Report {
        options: options.clone(),
        qemu_version,
        lines,
    })
}

/// All sides once, each round from another one on. In the last round dirty data is destaged.
fn measure(bench: &Bench, case: &Case, round: u32, mut done: impl FnMut()) -> Result<[Slot; 5]> {
    let seed = bench.options.seed + u64::from(round);
    let destages = round + 1 == bench.options.rounds;
    let mut slots = [None; 5];
    for turn in 0..Side::ALL.len() {
        let at = (turn + round as usize) % Side::ALL.len();
        let side = Side::ALL[at];
        slots[at] = Some(bench.slot(case, side, seed, destages && side != Side::TrdcAgain)?);
        done();
    }
    Ok(slots.map(|slot| slot.expect("each has had its turn")))
}

/// A qcow2 file that is full of data.
fn make_base(place: &Place, bytes: u64) -> Result<PathBuf> {
    let (raw, base) = (place.path("base.raw"), place.path("base.qcow2"));
    make_file(&raw, bytes / BLOCK_BYTES)?;
    qemu::convert(&raw, &base)?;
    fs::remove_file(&raw).map_err(failed)?;
    Ok(base)
}
