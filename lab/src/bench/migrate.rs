//! What a guest finds at the host that it has moved to.
//!
//! Owns two hosts of a cluster over a simulated storage network, and a guest that moves. First the
//! guest reads at one host until all is cached there, moves, and reads on at the other one, beside
//! a host before that lives (with remote reads), and beside one that was killed and started anew,
//! so that it has nothing left (without). Then it is measured how long a move takes from the
//! guest's goodbye to its first answer, by what is dirty. Always true: each run of the first part
//! has two new hosts with empty caches; a round counts only if the counters of the product show
//! that blocks came from the host before with remote reads, that none did without, and that nothing
//! was read of the image before the move; every block that is read has the content that it must
//! have. Deliberately absent: a network between the hosts that is slower than loopback, and the
//! guest's own memory, which a manager of guests moves.

mod guest;
mod report;
mod run;
mod slices;
mod switch;

use super::range;
use super::rounds;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::place::Place;
use host::error::{Error, Result};
pub use report::{HEAD, SWITCH_HEAD};
use serde_json::Value;
use slices::{Kind, Slot};
use std::path::PathBuf;
use std::time::Duration;
use switch::{Stage, Switch};

/// What is asked of the product: so much of the reads of the image is left with remote reads.
pub const ORIGIN_PART_WANTED: f64 = 0.05;
/// From the goodbye to the first answer, however much is dirty.
pub const SWITCH_WANTED: Duration = Duration::from_millis(10);
/// The guest is as fast as before when it is slower by no more than this.
pub const NEAR: f64 = 1.1;
const SIZES_MAX: usize = 16;

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    /// In which the guest is watched after its move.
    pub seconds: f64,
    /// Of what the guest reads.
    pub size_bytes: u64,
    pub cache_bytes: u64,
    /// What is dirty when the guest moves, one after the other.
    pub dirty: Vec<u64>,
    pub origin_latency: Duration,
    pub seed: u64,
    pub directory: PathBuf,
}

/// With remote reads, without, with them again.
type Round = [Slot; 3];
const WITH: usize = 0;
const WITHOUT: usize = 1;
const AGAIN: usize = 2;

/// One amount of dirty data, and its moves.
struct Line {
    dirty_bytes: u64,
    moves: Vec<Switch>,
}

pub struct Report {
    options: Options,
    rounds: Vec<Round>,
    lines: Vec<Line>,
}

impl Options {
    /// Steps that are told while it runs.
    pub fn steps(&self) -> u64 {
        u64::from(self.rounds) * (3 + self.dirty.len() as u64)
    }

    fn dirty_max(&self) -> u64 {
        self.dirty.iter().copied().max().unwrap_or(0)
    }
}

pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    check(options)?;
    let interrupt = Interrupt::listen()?;
    let place = Place::below(&options.directory)?;
    let mut steps = 0;
    let measured = measure(&place, options, &interrupt, || {
        steps += 1;
        done(steps);
    });
    // What fails after the user's wish to stop fails because of it.
    interrupt.check()?;
    measured
}

fn check(options: &Options) -> Result<()> {
    range::at_least_one("--rounds", options.rounds)?;
    range::within("--rounds", options.rounds, 1..=1000)?;
    range::within("--seconds", options.seconds, 0.5..=600.0)?;
    range::size_within("--size", options.size_bytes, 16 << 20..=16 << 30)?;
    if options.dirty.len() > SIZES_MAX {
        let message = format!("--dirty: more than {SIZES_MAX} sizes; give fewer");
        return Err(Error::usage(message));
    }
    for &bytes in &options.dirty {
        range::size_within("--dirty", bytes, 0..=16 << 30)?;
    }
    let most = options.size_bytes.max(options.dirty_max());
    let least = (run::CACHE_PER_SIZE * most).max(256 << 20);
    range::size_at_least("--cache", options.cache_bytes, least)
}

fn measure(
    place: &Place,
    options: &Options,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Report> {
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let mut slots = [None, None, None];
        for at in rounds::order(round) {
            interrupt.check()?;
            let kind = if at == WITHOUT {
                Kind::Without
            } else {
                Kind::With
            };
            let slot = run::slot(place, options, (kind, u64::from(round)), interrupt);
            slots[at] = Some(slot?);
            done();
        }
        rounds.push(slots.map(|slot| slot.expect("each has its turn")));
    }
    let mut report = Report {
        options: options.clone(),
        rounds,
        lines: Vec::new(),
    };
    report.refuse_unproven()?;
    let line = |&dirty_bytes| Line {
        dirty_bytes,
        moves: Vec::new(),
    };
    report.lines = options.dirty.iter().map(line).collect();
    let mut stage = Stage::new(place, options)?;
    for round in 0..options.rounds as usize {
        for step in 0..report.lines.len() {
            interrupt.check()?;
            let count = report.lines.len();
            let line = &mut report.lines[(round + step) % count];
            line.moves.push(stage.switch(line.dirty_bytes)?);
            done();
        }
    }
    Ok(report)
}

fn is_proven(round: &Round) -> bool {
    round.iter().all(Slot::is_proven)
}

impl Report {
    fn proven(&self) -> impl Iterator<Item = &Round> + Clone {
        self.rounds.iter().filter(|round| is_proven(round))
    }

    /// A run of which no round is proven has no figure.
    fn refuse_unproven(&self) -> Result<()> {
        if self.proven().count() > 0 {
            return Ok(());
        }
        let last = self.rounds.last().expect("there is at least one round");
        Err(Error::failed(format!(
            "bench migrate: in none of {} rounds do the counters show that blocks came from the \
             host before with remote reads, and none without; of the last round: {}",
            self.rounds.len(),
            report::round_document(last)
        )))
    }

    pub fn headline(&self) -> String {
        report::headline(self)
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub fn rows(&self) -> Vec<Vec<String>> {
        report::rows(self)
    }

    pub fn switch_rows(&self) -> Vec<Vec<String>> {
        self.lines.iter().map(report::switch_row).collect()
    }

    /// What all rounds say together.
    pub fn findings(&self) -> Vec<String> {
        report::findings(self)
    }

    pub fn document(&self) -> Value {
        report::document(self)
    }
}
