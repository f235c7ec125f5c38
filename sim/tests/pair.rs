//! A volume with replicas on other hosts, and the proof that the oracle is awake.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (300), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::seeds;
use sim::pair::{Counters, Options, run};

fn judge(name: &str, options: impl Fn(u64) -> Options) -> (u64, Counters) {
    let mut counters = Counters::default();
    let mut failed = Vec::new();
    let seeds = seeds(300, 1);
    for seed in seeds.clone() {
        match run(&options(seed)) {
            Ok(of_seed) => counters.add(&of_seed),
            Err(what) => {
                println!(
                    "{name}, seed {seed}: {what}; again with TENUTO_SIM_FIRST={seed} \
                     TENUTO_SIM_SEEDS=1 cargo test -p sim --test pair"
                );
                failed.push(seed);
            }
        }
    }
    println!("{name}, seeds {seeds:?}: {counters:?}");
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    (seeds.end - seeds.start, counters)
}

#[test]
fn what_a_flush_promised_is_there_whichever_host_goes_on() {
    let (count, counters) = judge("one copy", Options::from_seed);
    // Runs that never come here prove nothing.
    if count >= 100 {
        assert!(
            counters.takeovers.all * 10 >= count && counters.takeovers.with_flushes * 20 >= count
        );
        assert!(
            counters.takeovers.before_proof * 40 >= count,
            "{counters:?}"
        );
        assert!(counters.resumed >= count && counters.counted >= count && counters.spoiled > 0);
        assert!(counters.owner_crashes >= count && counters.peer_crashes >= count);
        assert!(counters.failing.lost_owners * 40 >= count, "{counters:?}");
    }
}

#[test]
fn what_was_acknowledged_is_there_when_the_cache_device_of_the_owner_fails() {
    let (count, counters) = judge("a failing device", Options::with_failing);
    if count >= 100 {
        assert!(counters.failing.devices * 2 >= count, "{counters:?}");
        assert!(counters.failing.past_log * 4 >= count, "{counters:?}");
        assert!(counters.failing.lost_owners * 8 >= count, "{counters:?}");
        assert!(counters.failing.rotten * 8 >= count, "{counters:?}");
        assert!(counters.failing.recalled >= count, "{counters:?}");
    }
}

#[test]
fn with_two_copies_it_is_there_over_several_losses() {
    let (count, counters) = judge("two copies", Options::with_two);
    if count >= 100 {
        assert!(counters.takeovers.all >= count && counters.takeovers.with_flushes * 2 >= count);
        assert!(counters.takeovers.before_proof * 4 >= count, "{counters:?}");
        assert!(counters.resumed >= count && counters.counted >= count && counters.spoiled > 0);
    }
}
