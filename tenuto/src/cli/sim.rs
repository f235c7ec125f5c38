//! `tenuto sim`: the adversary of the tests, for as long as somebody likes to watch.
//!
//! Owns the choice of seeds and the words around them. Always true: a seed that fails is named
//! with the command that replays it, also when the engine panics; without `--seed` the first
//! seed is printed, so that a whole run can be repeated. Deliberately absent: what happens in a
//! seed, which is in the crate `sim`, named by nobody else.

use super::{Context, output, progress, tools};
use crate::error::{Error, Result};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use sim::trace::Counters;
use sim::{Failure, Options};
use std::cell::Cell;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime};

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// What all seeds did together.
#[derive(Default)]
struct Totals {
    first: u64,
    seeds: u64,
    counters: Counters,
    trace_hash: u64,
}

pub fn run(context: &Context, command: &tools::Sim) -> Result<()> {
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(command.seconds);
    let first = command.seed.unwrap_or_else(fresh_seed);
    let seeds = match (command.seed, command.seeds) {
        (Some(_), None) => 1,
        (_, seeds) => seeds.unwrap_or(u64::MAX),
    };
    tell_the_seed_of_a_panic(context.common.json);
    let bar = bar(context, command);
    let mut totals = Totals {
        first,
        ..Totals::default()
    };
    let mut failure = None;
    for seed in (first..).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        // A seed that was asked for runs to its end.
        if command.seed.is_none() && Instant::now() >= deadline {
            break;
        }
        SEED.set(seed);
        let options = Options {
            operations: command.operations,
            verbose: context.common.verbose > 0,
            ..Options::from_seed(seed)
        };
        match sim::run(&options) {
            Ok(outcome) => totals.add(&outcome),
            Err(broken) => {
                failure = Some(broken);
                break;
            }
        }
        bar.set_position(begun.elapsed().as_millis() as u64);
        bar.set_message(format!(
            "{} seeds, {} faults",
            totals.seeds,
            totals.counters.faults()
        ));
    }
    bar.finish_and_clear();
    conclude(context, command, &totals, begun.elapsed(), failure)
}

impl Totals {
    fn add(&mut self, outcome: &sim::Outcome) {
        self.seeds += 1;
        self.counters.add(&outcome.counters);
        self.trace_hash = outcome.trace_hash;
    }
}

fn conclude(
    context: &Context,
    command: &tools::Sim,
    totals: &Totals,
    took: Duration,
    failure: Option<Failure>,
) -> Result<()> {
    if let Some(failure) = failure {
        let replay = replay(failure.seed, command.operations);
        return Err(Error::failed(format!(
            "seed {} fails in step {}: {}; replay: {replay}",
            failure.seed, failure.step, failure.message
        )));
    }
    let output = context.output();
    let document = document(totals, command, took);
    output.document(&document, || text(totals, command, took))
}

fn replay(seed: u64, operations: u64) -> String {
    format!("tenuto sim --seed {seed} --operations {operations} -v")
}

/// Counts that say how much was checked; the others but `STEPS` are faults and deeds.
const STEPS: &str = "steps";

fn text(totals: &Totals, command: &tools::Sim, took: Duration) -> String {
    let rows: Vec<Vec<String>> = totals
        .counters
        .list()
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value.to_string()])
        .collect();
    let hash = match totals.seeds {
        1 => format!("trace hash {:016x}\n", totals.trace_hash),
        _ => String::new(),
    };
    format!(
        "{} seeds from {} in {:.1} s, {} faults; every promise was kept\n{hash}\n{}",
        totals.seeds,
        totals.first,
        took.as_secs_f64(),
        totals.counters.faults(),
        output::table(&["WHAT", "COUNT"], &rows, &[1]),
    ) + &match totals.seeds {
        0 => String::new(),
        _ => format!(
            "\nthe first again: {}\n",
            replay(totals.first, command.operations)
        ),
    }
}

fn document(totals: &Totals, command: &tools::Sim, took: Duration) -> Value {
    let counters: Map<String, Value> = totals
        .counters
        .list()
        .into_iter()
        .filter(|(name, _)| *name != STEPS)
        .map(|(name, value)| (name.replace(' ', "_"), json!(value)))
        .collect();
    json!({
        "first_seed": totals.first,
        "seeds": totals.seeds,
        "operations_per_seed": command.operations,
        "seconds": took.as_secs_f64(),
        "faults": totals.counters.faults(),
        "steps": totals.counters.steps,
        "trace_hash": (totals.seeds == 1).then(|| format!("{:016x}", totals.trace_hash)),
        "counters": counters,
    })
}

fn bar(context: &Context, command: &tools::Sim) -> ProgressBar {
    let common = &context.common;
    let still = common.verbose > 0 || command.seed.is_some();
    let quiet = common.quiet + u8::from(still);
    progress::counter(quiet, command.seconds * 1000, "{bar:40} {elapsed} {msg}")
}

/// Small, so that it is easy to type again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64 % 1_000_000_000)
}

/// A release build aborts on a panic, and nobody would know the seed: an assert of the engine is
/// a finding like any other and ends with the same line and exit code.
fn tell_the_seed_of_a_panic(json: bool) {
    std::panic::set_hook(Box::new(move |panic| {
        let words = panic.payload_as_str().unwrap_or("without words");
        let place = panic.location().map(ToString::to_string);
        let place = place.unwrap_or_default();
        let seed = SEED.get();
        let error = Error::failed(format!(
            "seed {seed} panics at {place}: {words}; replay: tenuto sim --seed {seed} -v"
        ));
        super::report(&error, json);
        let _ = std::io::stdout().flush();
        std::process::exit(i32::from(error.kind.exit_code()));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_run_name_the_command_that_repeats_it() {
        let outcome = sim::run(&Options {
            operations: 100,
            ..Options::from_seed(7)
        })
        .expect("seed 7 keeps every promise");
        let mut totals = Totals {
            first: 7,
            ..Totals::default()
        };
        totals.add(&outcome);
        let command = tools::Sim {
            seed: None,
            seconds: 1,
            seeds: None,
            operations: 100,
        };
        let text = text(&totals, &command, Duration::from_secs(1));
        assert!(text.starts_with("1 seeds from 7"), "{text}");
        assert!(text.contains("tenuto sim --seed 7 --operations 100"));
        let document = document(&totals, &command, Duration::from_secs(1));
        assert_eq!(document["seeds"], 1);
        assert!(document["counters"]["volumes_verified"].as_u64() > Some(0));
    }
}
