//! A cache device that dies under load, for a while or for the rest of a life.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (100), `TENUTO_SIM_FIRST` from which (0): they
//! take long, because a device is dead for minutes.

mod common;

use common::{every_seed, number, seeds};
use engine::types::{DestageMode, Policy};
use sim::Options;
use sim::plan::Plan;

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
    if common::is_told_of_one(options) {
        return;
    }
    let seeds = seeds(100, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("a device that dies", seeds, options);
    // One seed in a few dozen shows it, so fewer say nothing.
    assert!(
        count < 50 || counters.seen_past_log > 0,
        "no volume went past its log"
    );
    assert!(count < 100 || counters.seen_held > 0, "no volume was held");
}

/// Seed 84: a volume was changing its policy when the device died, and its ledger, which hung, came
/// back only after the device. Nobody asked again for what had to be written there next.
#[test]
fn a_volume_whose_ledger_hangs_for_longer_than_the_device_is_dead_writes_again() {
    let outcome = sim::run(&options(84));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Seed 951: a recovery left a piece out of a footer that alone spoke for its segment, and the
/// power went while it was written.
#[test]
fn a_power_loss_in_recovery_tears_no_footer_that_speaks_for_its_segment() {
    let outcome = sim::run(&options(951));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
