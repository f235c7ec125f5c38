//! A volume with a replica on another host, and the proof that the oracle is awake.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (300), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::seeds;
use sim::pair::{Counters, Options, run};

#[test]
fn what_a_flush_promised_is_there_whichever_host_goes_on() {
    let mut counters = Counters::default();
    let mut failed = Vec::new();
    let seeds = seeds(300, 1);
    for seed in seeds.clone() {
        match run(&Options::from_seed(seed)) {
            Ok(of_seed) => counters.add(&of_seed),
            Err(what) => {
                println!(
                    "seed {seed}: {what}; again with TENUTO_SIM_FIRST={seed} TENUTO_SIM_SEEDS=1 \
                     cargo test -p sim --test pair"
                );
                failed.push(seed);
            }
        }
    }
    println!("pairs, seeds {seeds:?}: {counters:?}");
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    // Runs that never come here prove nothing.
    let count = seeds.end - seeds.start;
    if count >= 100 {
        assert!(counters.taken_over * 10 >= count && counters.with_flushes * 20 >= count);
        assert!(counters.resumed >= count && counters.counted >= count && counters.spoiled > 0);
        assert!(counters.owner_crashes >= count && counters.peer_crashes >= count);
        assert!(counters.lost_owners * 40 >= count, "{counters:?}");
    }
}
