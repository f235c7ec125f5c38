//! Clean blocks on a cache device that rots, wraps and loses power are never wrong, and the oracle
//! notices when a rule that keeps them right is broken.

use sim::host::Ending;
use sim::scenario::{clean_blocks, own_blocks};
use sim::trace::Counters;
use sim::{Options, Sabotage, run};

/// Seeds that may pass before the broken rule must have been noticed.
const SEEDS_MAX: u64 = 60;

fn seeds() -> u64 {
    let asked = std::env::var("TENUTO_SIM_SEEDS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(60)
}

#[test]
fn clean_blocks_of_a_rotten_device_are_never_wrong() {
    let mut counters = Counters::default();
    for seed in 0..seeds() {
        match run(&clean_blocks(seed)) {
            Ok(outcome) => counters.add(&outcome.counters),
            Err(failure) => panic!("clean blocks: {failure}"),
        }
    }
    for (name, value) in counters.list() {
        println!("{value:>12} {name}");
    }
    // A run that never comes here proves nothing.
    assert!(
        counters.lines_written > 0 && counters.lines_read > 0,
        "{counters:?}"
    );
    assert!(
        counters.lines_rotten > 0 && counters.lines_bad > 0,
        "{counters:?}"
    );
    assert!(
        counters.lines_retired > 0 && counters.lines_reappended > 0,
        "{counters:?}"
    );
    assert!(counters.images_renewed > 0, "{counters:?}");
}

#[test]
fn own_clean_blocks_of_volumes_that_are_written_are_never_stale() {
    let mut counters = Counters::default();
    for seed in 0..seeds().div_ceil(3) {
        match run(&own_blocks(seed)) {
            Ok(outcome) => counters.add(&outcome.counters),
            Err(failure) => panic!("own clean blocks: {failure}"),
        }
    }
    for (name, value) in counters.list() {
        println!("{value:>12} {name}");
    }
    assert!(
        counters.lines_written > 0 && counters.lines_read > 0,
        "{counters:?}"
    );
    assert!(
        counters.lines_retired > 0 && counters.lines_bad > 0,
        "{counters:?}"
    );
    assert!(counters.switches > 0 && counters.resets > 0, "{counters:?}");
    assert!(counters.lines_kept > 0, "{counters:?}");
}

/// While nothing but the daemon dies, blocks need no checksum to be right: segments come back to
/// use in an order that never leaves a line over newer bytes.
#[test]
fn the_order_of_segments_alone_keeps_clean_blocks_right_over_kills() {
    let mut counters = Counters::default();
    for seed in 0..seeds() {
        let mut options = clean_blocks(seed);
        options.sabotage = Some(Sabotage::NoLineSums);
        let orderly = Ending::Orderly { power_off: false };
        options.endings = vec![Ending::Kill, Ending::KillInMemory, orderly, Ending::Kill];
        options.restarts = 4;
        let rates = &mut options.plan.as_mut().expect("it has one").rates;
        (rates.rot, rates.cache_write_error, rates.cache_sync_error) = (0, 0, 0);
        (rates.crash_in_recovery, rates.recovery_error) = (0, 0);
        match run(&options) {
            Ok(outcome) => counters.add(&outcome.counters),
            Err(failure) => panic!("clean blocks without sums: {failure}"),
        }
    }
    assert!(
        counters.lines_read > 0 && counters.lines_retired > 0,
        "{counters:?}"
    );
}

fn is_noticed(sabotage: Sabotage) {
    let failure = (0..SEEDS_MAX).find_map(|seed| {
        let honest = clean_blocks(seed);
        let broken = Options {
            sabotage: Some(sabotage),
            ..honest.clone()
        };
        let failure = run(&broken).err();
        failure.filter(|_| run(&honest).is_ok())
    });
    let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} passes {SEEDS_MAX} seeds"));
    println!("{sabotage:?}: {failure}");
}

#[test]
fn clean_blocks_without_their_sums_are_noticed() {
    is_noticed(Sabotage::NoLineSums);
}

#[test]
fn lines_of_another_image_are_noticed() {
    is_noticed(Sabotage::SameIdentity);
}
