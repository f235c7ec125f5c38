//! How long a guest waits when a host is gone.
//!
//! Owns two hosts and a volume with a copy, under a guest that writes, flushes and checks. In each
//! round first the peer is killed and comes back, then the owner is killed, the guest goes on at
//! the other host, and the killed one comes back as the peer: so the next round is the other way
//! round. Always true: hosts are killed with requests under way; what the guest finds at the other
//! host has every write that was flushed, or the run fails; a round says what the proof was that
//! the owner writes no more. Deliberately absent: the time in which a manager of guests notices
//! that a host is gone and starts the guest again, links that are cut, and a fence that takes
//! time: the program here says at once whether the process is gone.

mod guest;
mod report;
mod run;

use super::range;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::place::Place;
use host::error::Result;
pub use report::HEAD;
use run::{Round, Stage};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// What is asked of the product.
pub const FIRST_ANSWER_WANTED: Duration = Duration::from_secs(3);
pub const FLUSH_WANTED: Duration = Duration::from_millis(1500);
/// So much slower a guest may be until its copies are complete again.
pub const LOSS_WANTED: f64 = 0.2;

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    /// In which the guest is watched before its peer is killed.
    pub seconds: f64,
    pub cache_bytes: u64,
    /// Of the volume, all of which is dirty.
    pub size_bytes: u64,
    pub seed: u64,
    pub directory: PathBuf,
}

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
}

pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    range::within("--seconds", options.seconds, 0.1..=600.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    range::size_within("--size", options.size_bytes, 16 << 20..=16 << 30)?;
    let least = (run::CACHE_PER_SIZE * options.size_bytes).max(256 << 20);
    range::size_at_least("--cache", options.cache_bytes, least)?;
    let interrupt = Interrupt::listen()?;
    let place = Place::below(&options.directory)?;
    let measured = measure(&place, options, &interrupt, &mut done);
    // What fails after the user's wish to stop fails because of it.
    interrupt.check()?;
    measured
}

fn measure(
    place: &Place,
    options: &Options,
    interrupt: &Interrupt,
    done: &mut impl FnMut(u64),
) -> Result<Report> {
    let mut stage = Stage::new(place, options)?;
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        interrupt.check()?;
        rounds.push(stage.round(interrupt)?);
        done(u64::from(round) + 1);
    }
    Ok(Report {
        options: options.clone(),
        rounds,
    })
}

impl Report {
    pub fn headline(&self) -> String {
        report::headline(self)
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub fn rows(&self) -> Vec<Vec<String>> {
        report::rows(self)
    }

    /// What all rounds say together.
    pub fn findings(&self) -> Vec<String> {
        report::findings(self)
    }

    pub fn document(&self) -> Value {
        report::document(self)
    }
}
