//! Volumes that stand at one point in time: crashes of a group, and orderly destages of it.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (60), `TENUTO_SIM_FIRST` from which (0).

use sim::scenario::group;
use sim::trace::Counters;
use sim::{Options, Sabotage, run};

const SEEDS: u64 = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn the_volumes_of_a_group_stand_at_one_point_in_time() {
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let count = number("TENUTO_SIM_SEEDS").map_or(SEEDS, |all| all.div_ceil(3));
    let mut counters = Counters::default();
    let mut failed = 0;
    for seed in first..first + count {
        match run(&group(seed)) {
            Ok(outcome) => counters.add(&outcome.counters),
            Err(failure) => {
                println!("{failure} (group)");
                failed += 1;
            }
        }
    }
    println!("{} cuts at the origins judged", counters.cuts_verified);
    assert_eq!(failed, 0, "seeds fail");
    assert!(
        counters.cuts_verified > count,
        "groups were destaged in order"
    );
}

#[test]
fn a_group_that_is_none_is_noticed() {
    let failure = (0..60).find_map(|seed| {
        let alone = Options {
            sabotage: Some(Sabotage::NoGroups),
            ..group(seed)
        };
        let failure = run(&alone).err();
        failure.filter(|_| run(&group(seed)).is_ok())
    });
    let failure = failure.expect("volumes that stand alone pass for a group");
    println!("{failure}");
    assert!(
        failure.to_string().contains("acknowledged before"),
        "{failure}"
    );
}
