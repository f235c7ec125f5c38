//! What a destage costs the guest whose data it moves.
//!
//! Owns alternating slots of one load on one volume over a simulated SAN: alone, during a destage,
//! alone again. Always true: a round counts only if the counters of the product say that the
//! destage ran through all of its slot and that nothing reached the origin in the others; nothing
//! of the product is tuned for it. Deliberately absent: reads of what was destaged a moment ago,
//! which the guest's set of reads leaves out.

mod page;
mod run;

use super::range;
use super::rounds::{self, Compared, Spread};
use crate::machine;
use crate::place::Place;
use engine::types::DestageMode;
use host::error::{Error, Result};
use run::{Slot, Stage};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What is asked of the product: neither figure loses more.
const LOSS_WANTED: f64 = 0.2;

#[derive(Clone, Debug)]
pub struct Options {
    pub origin_latency: Duration,
    pub origin_iops: u32,
    pub rounds: u32,
    /// Of one slot.
    pub seconds: f64,
    /// Requests of the guest in flight.
    pub depth: usize,
    /// Writes of a hundred requests.
    pub writes_percent: u32,
    /// Reads that no cache has, of a thousand requests.
    pub misses_per_mille: u32,
    pub cache_bytes: u64,
    pub mode: DestageMode,
    /// Where the cache lies.
    pub directory: PathBuf,
    pub html: Option<PathBuf>,
}

/// Slots in the order alone, during a destage, alone again.
type Round = [Slot; 3];

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
    origin_in_memory: bool,
}

pub fn run(options: &Options) -> Result<Report> {
    check(options)?;
    crate::report::check(options.html.as_deref())?;
    let place = Place::below(&options.directory)?;
    let mut stage = Stage::new(&place, options)?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut slots = [None, None, None];
        for at in rounds::order(round) {
            slots[at] = Some(match at {
                1 => stage.beside(options, round)?,
                _ => stage.alone(options)?,
            });
        }
        rounds.push(slots.map(|slot| slot.expect("each has its turn")));
    }
    stage.stop()?;
    let report = Report {
        options: options.clone(),
        rounds,
        origin_in_memory: place.has_memory(),
    };
    if let Some(path) = &options.html {
        crate::report::save(path, &page::page(&report))?;
    }
    if report.proven().count() == 0 {
        let last = report.rounds.last().expect("there is at least one round");
        return Err(Error::failed(format!(
            "bench destage: in none of {} rounds did the destage run through all of its slot and \
             in no other; of the last round: {}",
            options.rounds,
            round_document(last)
        )));
    }
    Ok(report)
}

fn check(options: &Options) -> Result<()> {
    range::within("--seconds", options.seconds, 0.05..=600.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    range::within("--qd", options.depth, 1..=256)?;
    range::at_least_one("--origin-iops", options.origin_iops)?;
    range::within("--misses", options.misses_per_mille, 0..=500)?;
    range::within("--writes", options.writes_percent, 0..=50)?;
    range::size_at_least("--cache", options.cache_bytes, 512 << 20)
}

impl Report {
    fn proven(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| is_proven(round))
    }

    fn compared(&self, figure: impl Fn(&Slot) -> Option<f64>) -> Compared {
        rounds::compared(self.proven(), figure)
    }

    fn medians(&self, figure: impl Fn(&Slot) -> Option<f64>) -> [Option<Spread>; 2] {
        let of = |at: usize| Spread::of(self.proven().filter_map(|round| figure(&round[at])));
        [of(0), of(1)]
    }

    pub fn headline(&self) -> String {
        let options = &self.options;
        format!(
            "4 KiB requests, {} in flight, {} % of them writes, {} of a thousand reads that only \
             the origin has, all others reads from RAM; simulated SAN: {} ms, {} requests/s, {}; \
             destage {}, default pacing; {} of {} rounds of 3 x {} s with proof that it ran",
            options.depth,
            options.writes_percent,
            options.misses_per_mille,
            options.origin_latency.as_secs_f64() * 1e3,
            options.origin_iops,
            match self.origin_in_memory {
                true => "image in memory",
                false => "image on the device of the cache",
            },
            options.mode.name(),
            self.proven().count(),
            self.rounds.len(),
            options.seconds,
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const HEAD: [&'static str; 6] = ["", "ALONE", "DESTAGE", "LOSS %", "A/A %", "WANTED"];

    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, digits, of: &dyn Fn(&Slot) -> Option<f64>, sign: f64| {
            let [alone, beside] = self.medians(of);
            let compared = self.compared(of);
            let plain = |it: Option<Spread>| it.map_or("-".into(), |it| it.text(1.0, digits));
            let loss =
                |it: Option<Spread>| it.map_or("-".into(), |it| loss(it, sign).text(100.0, 1));
            vec![
                name.to_owned(),
                plain(alone),
                plain(beside),
                loss(compared.ratio),
                loss(compared.same),
                format!("<= {:.0}", LOSS_WANTED * 100.0),
            ]
        };
        vec![
            row("requests/s", 0, &|slot| Some(slot.per_second), -1.0),
            row("p50, us", 1, &|slot| slot.p50_us, 1.0),
            row("p99, us", 1, &|slot| slot.p99_us, 1.0),
        ]
    }

    /// What proves that a destage ran where it should.
    pub fn proof(&self) -> String {
        let sum = |at: &[usize], of: &dyn Fn(&Slot) -> u64| -> u64 {
            let rounds = self.proven();
            rounds
                .map(|round| at.iter().map(|&at| of(&round[at])).sum::<u64>())
                .sum()
        };
        let part = |name: &str, at: &[usize]| {
            format!(
                "{name}: {} origin writes of {} MiB, journal {} MiB, writes held back {}",
                sum(at, &|slot| slot.origin.writes),
                sum(at, &|slot| slot.origin.write_bytes) >> 20,
                sum(at, &|slot| slot.origin.journal_bytes) >> 20,
                sum(at, &|slot| slot.held_writes),
            )
        };
        format!(
            "{}\n{}\n",
            part("alone", &[0, 2]),
            part("during a destage", &[1])
        )
    }

    pub fn document(&self) -> Value {
        let options = &self.options;
        let figure = |of: &dyn Fn(&Slot) -> Option<f64>, sign: f64| {
            let [alone, beside] = self.medians(of);
            let compared = self.compared(of);
            let spread = |it: Option<Spread>| it.map(|it| it.document());
            json!({
                "alone": spread(alone),
                "during_destage": spread(beside),
                "ratio": spread(compared.ratio),
                "loss": spread(compared.ratio.map(|it| loss(it, sign))),
                "a_a_ratio": spread(compared.same),
                "loss_wanted": LOSS_WANTED,
            })
        };
        json!({
            "benchmark": "destage",
            "machine": machine::document(),
            "parameters": {
                "origin_latency_us": options.origin_latency.as_micros() as u64,
                "origin_iops": options.origin_iops,
                "origin_in_memory": self.origin_in_memory,
                "rounds": options.rounds,
                "seconds": options.seconds,
                "queue_depth": options.depth,
                "writes_percent": options.writes_percent,
                "misses_per_mille": options.misses_per_mille,
                "destage": options.mode.name(),
                "cache_bytes": options.cache_bytes,
            },
            "rounds_proven": self.proven().count(),
            "iops": figure(&|slot| Some(slot.per_second), -1.0),
            "p50_us": figure(&|slot| slot.p50_us, 1.0),
            "p99_us": figure(&|slot| slot.p99_us, 1.0),
            "rounds": self.rounds.iter().map(round_document).collect::<Vec<Value>>(),
            "series": page::series(self),
            "report": options.html.as_ref().map(|path| path.display().to_string()),
        })
    }
}

fn is_proven(round: &Round) -> bool {
    let quiet = [0, 2].iter().all(|&at| round[at].is_quiet());
    quiet && round[1].is_destaging()
}

/// A ratio as the part that is lost: fewer requests, or more time.
fn loss(ratio: Spread, sign: f64) -> Spread {
    let part = |value: f64| sign * (value - 1.0);
    Spread {
        median: part(ratio.median),
        interval: ratio.interval.map(|(low, high)| match sign > 0.0 {
            true => (part(low), part(high)),
            false => (part(high), part(low)),
        }),
        ..ratio
    }
}

fn round_document(round: &Round) -> Value {
    rounds::round(round, is_proven(round), "during_destage", Slot::document)
}
