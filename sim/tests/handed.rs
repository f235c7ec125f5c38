//! A volume that goes from host to host, and is read from the host before, and the proof that the
//! oracle is awake.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (300), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::seeds;
use sim::handed::{Counters, Options, run};

#[test]
fn what_comes_from_the_host_before_is_what_the_image_has() {
    let mut counters = Counters::default();
    let mut failed = Vec::new();
    let seeds = seeds(300, 1);
    for seed in seeds.clone() {
        match run(&Options::from_seed(seed)) {
            Ok(of_seed) => counters.add(&of_seed),
            Err(what) => {
                println!(
                    "seed {seed}: {what}; again with TENUTO_SIM_FIRST={seed} TENUTO_SIM_SEEDS=1 \
                     cargo test -p sim --test handed"
                );
                failed.push(seed);
            }
        }
    }
    println!("handed, seeds {seeds:?}: {counters:?}");
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    // Runs that never come here prove nothing.
    let count = seeds.end - seeds.start;
    if count < 100 {
        return;
    }
    let Counters {
        writes,
        reads,
        hand_overs,
        in_destage,
        unproved,
        ..
    } = counters;
    assert!(writes >= 70 * count && reads >= 75 * count && hand_overs == 6 * count);
    assert!(in_destage * 3 >= count && unproved >= count, "{counters:?}");
    assert!(counters.flushes >= 15 * count && counters.destages >= 8 * count);
    assert!(counters.served >= 5 * count && counters.remote >= 5 * count);
    assert!(counters.refused >= 80 * count, "{counters:?}");
    let (owners, again) = (counters.owner_crashes, counters.asks_again);
    assert!(
        owners * 3 >= 2 * count && again * 3 >= count,
        "{counters:?}"
    );
    assert!(counters.peer_crashes * 3 >= count && counters.rests * 20 >= count);
}
