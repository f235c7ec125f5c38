//! Runs of many seeds, as the suites share them.
//!
//! `TENUTO_SIM_SEEDS` says how many, `TENUTO_SIM_FIRST` from which (0); a suite that takes long
//! does a part of them. Always true: a seed that fails is told with its suite, the command that
//! runs it again, and the others still run.

// Not every suite needs all of it.
#![allow(dead_code)]

use sim::trace::Counters;
use sim::{Failure, Options, Sabotage, run};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that share the seeds; the machines that test have two cores.
const THREADS: usize = 2;
/// Failures after which no further seed is tried.
const FAILURES_MAX: usize = 50;
/// Seeds that may pass before a broken rule must have been noticed.
pub const SEEDS_MAX: u64 = 60;

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// One seed in `part` of those that are asked for, or `count`.
pub fn seeds(count: u64, part: u64) -> Range<u64> {
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let count = number("TENUTO_SIM_SEEDS").map_or(count, |all| all.div_ceil(part));
    first..first + count
}

/// Runs the one seed that `TENUTO_SIM_SEED` names, and tells everything. False where it names none.
pub fn is_told_of_one(options: impl Fn(u64) -> Options) -> bool {
    let Some(seed) = number("TENUTO_SIM_SEED") else {
        return false;
    };
    let outcome = run(&Options {
        verbose: true,
        ..options(seed)
    });
    println!("{outcome:?}");
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    true
}

/// Runs all of them; what they counted together. Panics if one fails.
pub fn every_seed(
    suite: &str,
    seeds: Range<u64>,
    options: impl Fn(u64) -> Options + Sync,
) -> Counters {
    let next = AtomicU64::new(seeds.start);
    let result: Mutex<(Counters, Vec<u64>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let failures = result.lock().expect("no test thread panics").1.len();
                    if seed >= seeds.end || failures >= FAILURES_MAX {
                        return;
                    }
                    let outcome = run(&options(seed));
                    let mut result = result.lock().expect("no test thread panics");
                    match outcome {
                        Ok(outcome) => result.0.add(&outcome.counters),
                        Err(failure) => {
                            let test = env!("CARGO_CRATE_NAME");
                            println!(
                                "{failure} ({suite}; again with TENUTO_SIM_FIRST={seed} \
                                 TENUTO_SIM_SEEDS=1 cargo test -p sim --test {test})"
                            );
                            result.1.push(seed);
                        }
                    }
                }
            });
        }
    });
    let (counters, failed) = result.into_inner().expect("no test thread panics");
    println!("{suite}, seeds {seeds:?}: {} faults", counters.faults());
    for (name, value) in counters.list() {
        println!("{value:>12} {name}");
    }
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    counters
}

/// The first seed that notices a broken rule, and passes without it.
pub fn noticed(sabotage: Sabotage, options: impl Fn(u64) -> Options) -> Failure {
    let failure = (0..SEEDS_MAX).find_map(|seed| {
        let honest = options(seed);
        let broken = Options {
            sabotage: Some(sabotage),
            ..honest.clone()
        };
        let failure = run(&broken).err();
        failure.filter(|_| run(&honest).is_ok())
    });
    let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} passes {SEEDS_MAX} seeds"));
    println!("{sabotage:?}: {failure}");
    failure
}
