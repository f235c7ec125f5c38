//! Many seeds, each a host with its guests through faults and restarts.
//!
//! `TENUTO_SIM_SEEDS` says how many (200), `TENUTO_SIM_FIRST` from which (0), `TENUTO_SIM_SEED`
//! runs one and tells everything, `TENUTO_SIM_OPERATIONS` sets its length. Always true: a failing
//! seed is printed with the command that replays it.

mod common;

use common::{every_seed, is_told_of_one, number, seeds};
use sim::{Options, run};

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
    if is_told_of_one(options) {
        return;
    }
    let seeds = seeds(200, 1);
    let count = seeds.end - seeds.start;
    let counters = every_seed("all policies", seeds, options);
    // Runs that never slow a guest would say nothing of those that do.
    assert!(count < 50 || counters.held_writes > 10 * count);
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| run(&Options::from_seed(seed)).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1).trace_hash, trace(2).trace_hash);
}
