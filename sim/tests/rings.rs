//! Rings whose daemon is killed between any two stores, many times a seed, and the proof that the
//! oracle is awake.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (2,000), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::{SEEDS_MAX, seeds};
use sim::rings::{Counters, Options, Sabotage, run};

#[test]
fn every_request_is_answered_once_wherever_the_daemon_is_killed() {
    let mut counters = Counters::default();
    let mut failed = Vec::new();
    let seeds = seeds(2000, 1);
    for seed in seeds.clone() {
        match run(&Options::from_seed(seed)) {
            Ok(of_seed) => counters.add(&of_seed),
            Err(what) => {
                println!(
                    "{what}; again with TENUTO_SIM_FIRST={seed} TENUTO_SIM_SEEDS=1 \
                     cargo test -p sim --test rings"
                );
                failed.push(seed);
            }
        }
    }
    println!("rings, seeds {seeds:?}: {counters:?}");
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    // Runs that never come here prove nothing.
    let count = seeds.end - seeds.start;
    assert!(counters.requests >= 100 * count && counters.kills >= 50 * count);
    assert!(counters.kills_in_repair >= 5 * count && counters.run_again >= 20 * count);
    assert!(counters.found_in_stage >= 5 * count && counters.interrupts >= 20 * count);
}

fn is_noticed(sabotage: Sabotage) {
    let noticed = (0..SEEDS_MAX).find_map(|seed| {
        let honest = Options::from_seed(seed);
        let broken = Options {
            sabotage: Some(sabotage),
            ..honest
        };
        run(&broken).err().filter(|_| run(&honest).is_ok())
    });
    let noticed = noticed.unwrap_or_else(|| panic!("{sabotage:?} passes {SEEDS_MAX} seeds"));
    println!("{sabotage:?}: {noticed}");
}

#[test]
fn an_in_flight_region_that_is_ignored_is_noticed() {
    is_noticed(Sabotage::RegionIgnored);
}

#[test]
fn a_counter_that_is_written_after_its_flag_is_noticed() {
    is_noticed(Sabotage::CounterAfterFlag);
}

#[test]
fn a_used_index_that_is_not_repaired_is_noticed() {
    is_noticed(Sabotage::UsedIndexNotRepaired);
}

#[test]
fn a_last_batch_head_that_is_not_set_is_noticed() {
    is_noticed(Sabotage::LastBatchHeadNotSet);
}

#[test]
fn flags_that_go_after_the_used_index_are_noticed() {
    is_noticed(Sabotage::FlagsAfterUsedIndex);
}

#[test]
fn an_order_by_queue_is_noticed() {
    is_noticed(Sabotage::OrderByQueue);
}

#[test]
fn counters_that_are_given_twice_are_noticed() {
    is_noticed(Sabotage::CountersForgotten);
}
