//! Volumes that stand at one point in time: crashes of a group, and orderly destages of it.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (60), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::{every_seed, noticed, seeds};
use sim::Sabotage;
use sim::scenario::{group, switching_group};

#[test]
fn the_volumes_of_a_group_stand_at_one_point_in_time() {
    let seeds = seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("group", seeds, group);
    assert!(
        counters.cuts_verified > count,
        "groups were destaged in order"
    );
}

#[test]
fn a_group_whose_policies_change_loses_nothing() {
    let seeds = seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("switching group", seeds, switching_group);
    assert!(counters.switches > 2 * count, "policies were changed");
}

#[test]
fn a_group_that_is_none_is_noticed() {
    let failure = noticed(Sabotage::NoGroups, group);
    assert!(
        failure.to_string().contains("acknowledged before"),
        "{failure}"
    );
}
