//! A cache device that dies under load, for a while or for the rest of a life.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (100), `TENUTO_SIM_FIRST` from which (0): they
//! take long, because a device is dead for minutes.

use engine::types::{DestageMode, Policy};
use sim::plan::Plan;
use sim::trace::Counters;
use sim::{Options, run};

const SEEDS: u64 = 100;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// All volumes that write may go past the log, and the log is small against the stage in some
/// seeds and large in others. In-place destage of what the log has lost is no promise.
fn options(seed: u64) -> Options {
    let mut plan = Plan::from_seed(seed);
    plan.rates.cache_dies = [3, 10][(seed % 2) as usize];
    for volume in &mut plan.volumes {
        volume.switches = volume.policy != Policy::Ephemeral;
        volume.tuning.destage = DestageMode::Atomic;
        volume.journal_possible = true;
    }
    plan.limit_requests();
    Options {
        operations: 1500,
        plan: Some(plan),
        verbose: number("TENUTO_SIM_VERBOSE").is_some(),
        ..Options::from_seed(seed)
    }
}

#[test]
fn a_cache_device_that_dies_breaks_no_promise() {
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let count = number("TENUTO_SIM_SEEDS").map_or(SEEDS, |all| all.div_ceil(3));
    let mut counters = Counters::default();
    let mut failed = 0;
    for seed in first..first + count {
        match run(&options(seed)) {
            Ok(outcome) => counters.add(&outcome.counters),
            Err(failure) => {
                println!("{failure} (a device that dies)");
                failed += 1;
            }
        }
    }
    println!(
        "{} deaths, seen past the log {} times, held {} times",
        counters.cache_deaths, counters.seen_past_log, counters.seen_held
    );
    assert_eq!(failed, 0, "seeds fail");
    assert!(counters.seen_past_log > 0, "no volume went past its log");
    assert!(counters.seen_held > 0, "no volume was held");
}
