//! Many seeds, each a host with its guests through faults and restarts.
//!
//! `TENUTO_SIM_SEEDS` says how many (200), `TENUTO_SIM_FIRST` from which (0), `TENUTO_SIM_SEED`
//! runs one and tells everything, `TENUTO_SIM_OPERATIONS` sets its length. Always true: a failing
//! seed is printed with the command that replays it.

use sim::trace::Counters;
use sim::{Failure, Options, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that share the seeds; the machines that test have two cores.
const THREADS: usize = 2;
/// Failures after which no further seed is tried.
const FAILURES_MAX: usize = 50;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

fn options(seed: u64) -> Options {
    let mut options = Options::from_seed(seed);
    if let Some(operations) = number("TENUTO_SIM_OPERATIONS") {
        options.operations = operations;
    }
    options.tearing = number("TENUTO_SIM_TEARING").is_some();
    options
}

#[test]
fn every_seed_keeps_every_promise() {
    if let Some(seed) = number("TENUTO_SIM_SEED") {
        let outcome = run(&Options {
            verbose: true,
            ..options(seed)
        });
        println!("{outcome:?}");
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        return;
    }
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let count = number("TENUTO_SIM_SEEDS").unwrap_or(200);
    let next = AtomicU64::new(first);
    let result: Mutex<(Counters, Vec<Failure>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let failures = result.lock().expect("no test thread panics").1.len();
                    if seed >= first + count || failures >= FAILURES_MAX {
                        return;
                    }
                    let outcome = run(&options(seed));
                    let mut result = result.lock().expect("no test thread panics");
                    match outcome {
                        Ok(outcome) => result.0.add(&outcome.counters),
                        Err(failure) => {
                            println!("{failure}");
                            result.1.push(failure);
                        }
                    }
                }
            });
        }
    });
    let (counters, failures) = result.into_inner().expect("no test thread panics");
    println!("{count} seeds from {first}: {} faults", counters.faults());
    for (name, value) in counters.list() {
        println!("{value:>12} {name}");
    }
    // Runs that never slow a guest would say nothing of those that do.
    assert!(count < 50 || counters.held_writes > 10 * count);
    let seeds: Vec<u64> = failures.iter().map(|failure| failure.seed).collect();
    assert!(failures.is_empty(), "{} seeds fail: {seeds:?}", seeds.len());
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| run(&Options::from_seed(seed)).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1).trace_hash, trace(2).trace_hash);
}
