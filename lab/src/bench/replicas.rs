//! What copies of each write on other hosts cost.
//!
//! Owns three hosts and four volumes side by side: write-back without a copy, the same with one and
//! with two, and write-through. Each load has alternating slots on them, the last one without a
//! copy again. Always true: a slot ends with a flush that counts, so that the hosts with copies
//! have all of it; a round counts only if the counters show that copies were made of all that was
//! written with some, and of nothing else; processor time is that of the daemons, the client's is
//! in no figure. Deliberately absent: a network: all hosts are on this machine and share its
//! processors.

mod load;
mod report;
mod run;

use super::hosts::Hosts;
use super::limit::Limited;
use super::range;
use super::rounds::Spread;
use super::wire;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::place::Place;
use engine::types::BLOCK_BYTES;
use host::error::{Error, Result, cause};
pub use load::Load;
use run::{Round, Stage};
use serde_json::Value;
use std::path::PathBuf;

/// What is asked of the product: so much of the speed is left with a copy, and with two.
pub const RATIO_WANTED: f64 = 0.95;
pub const RATIO_OF_TWO_WANTED: f64 = 0.90;
/// A write and its flush take so many microseconds more, beside one round trip.
pub const MORE_US_WANTED: f64 = 25.0;

#[derive(Clone, Debug)]
pub struct Options {
    pub loads: Vec<Load>,
    pub rounds: u32,
    /// Of one slot.
    pub seconds: f64,
    pub cache_bytes: u64,
    /// Of what is written of each volume.
    pub size_bytes: u64,
    /// Bytes a second of the cache device of each host.
    pub device_rate: Option<u64>,
    pub directory: PathBuf,
}

/// One load and its rounds.
struct Line {
    load: Load,
    rounds: Vec<Round>,
}

pub struct Report {
    options: Options,
    lines: Vec<Line>,
    limited: Limited,
    round_trip_us: Option<Spread>,
}

pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    check(options)?;
    let interrupt = Interrupt::listen()?;
    let place = Place::below(&options.directory)?;
    let limited = Limited::to(options.device_rate, place.directory());
    let measured = measure(&place, options, limited, &interrupt, &mut done);
    // What fails after the user's wish to stop fails because of it.
    interrupt.check()?;
    measured
}

fn measure(
    place: &Place,
    options: &Options,
    mut limited: Limited,
    interrupt: &Interrupt,
    done: &mut impl FnMut(u64),
) -> Result<Report> {
    let failed = |error| Error::failed(format!("bench replicas: {}", cause(&error)));
    let round_trip_us = wire::round_trip_us().map_err(failed)?;
    let volumes = run::volumes(place, options)?;
    let hosts = Hosts::start_three(place, options.cache_bytes, run::SIZES, &volumes)?;
    let stage = Stage::new(hosts, options, interrupt)?;
    stage.limit(&mut limited)?;
    let (mut lines, mut number) = (Vec::new(), 0);
    for &load in &options.loads {
        let (mut guests, mut rounds) = (stage.guests(load)?, Vec::new());
        for round in 0..options.rounds {
            rounds.push(stage.round(&mut guests, round, interrupt)?);
            number += 1;
            done(number);
        }
        lines.push(Line { load, rounds });
    }
    let report = Report {
        options: options.clone(),
        lines,
        limited,
        round_trip_us,
    };
    report.refuse_unproven()?;
    Ok(report)
}

fn check(options: &Options) -> Result<()> {
    range::within("--seconds", options.seconds, 0.05..=600.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    range::size_within("--size", options.size_bytes, 2 << 20..=64 << 30)?;
    let least = (run::CACHE_PER_SIZE * options.size_bytes).max(256 << 20);
    range::size_at_least("--cache", options.cache_bytes, least)?;
    match options.device_rate {
        Some(rate) => range::size_within("--device-rate", rate, 1 << 20..=1 << 40),
        None => Ok(()),
    }
}

impl Report {
    /// A load of which no round is proven has no figure.
    fn refuse_unproven(&self) -> Result<()> {
        for line in &self.lines {
            if line.proven().count() == 0 {
                let last = line.rounds.last().expect("there is at least one round");
                return Err(Error::failed(format!(
                    "bench replicas: {}: in none of {} rounds do the counters show that copies \
                     were made of all that was written with some and of nothing else; of the last \
                     round: {}",
                    line.load.name(),
                    line.rounds.len(),
                    last.document(line.load)
                )));
            }
        }
        Ok(())
    }

    pub fn headline(&self) -> String {
        report::headline(self)
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub fn rows(&self) -> Vec<Vec<String>> {
        self.lines
            .iter()
            .map(|it| report::speed(self, it))
            .collect()
    }

    pub fn costs(&self) -> Vec<Vec<String>> {
        self.lines.iter().flat_map(report::costs).collect()
    }

    pub fn document(&self) -> Value {
        report::document(self)
    }
}

impl Line {
    fn proven(&self) -> impl Iterator<Item = &Round> + Clone {
        self.rounds.iter().filter(|round| round.is_proven())
    }
}

pub use report::{COSTS_HEAD, HEAD};

/// Blocks of 4 KiB are what costs are told of.
const _: () = assert!(BLOCK_BYTES == super::work::BLOCK_BYTES);
