//! Policies that change under load, and write-through, with every volume of a host at it.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (100), `TENUTO_SIM_FIRST` from which (0).

mod common;

use engine::types::Policy;
use sim::Options;
use sim::plan::Plan;
use sim::scenario::{grows, resizes, rests};
use sim::trace::Counters;

/// The options of a seed with its first volumes changed.
fn bent(seed: u64, bend: fn(&mut Plan)) -> Options {
    let mut plan = Plan::from_seed(seed);
    bend(&mut plan);
    plan.limit_requests();
    Options {
        operations: 1500,
        plan: Some(plan),
        ..Options::from_seed(seed)
    }
}

fn every_seed(suite: &str, bend: fn(&mut Plan)) -> Counters {
    common::every_seed(suite, common::seeds(100, 1), |seed| bent(seed, bend))
}

/// One volume whose policy changes all the time, and one beside it.
fn switching(plan: &mut Plan) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    let mut other = plan.volumes[0].clone();
    other.name = "v1".to_owned();
    other.origin = 1;
    plan.volumes.push(other);
    plan.origins.push(plan.origins[0].clone());
    for volume in &mut plan.volumes {
        volume.switches = true;
    }
    plan.volumes[1].policy = Policy::WriteThrough;
}

/// Write-through alone, with writes that overlap, many reads of few blocks, and a small tier.
fn write_through(plan: &mut Plan) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    plan.volumes[0].policy = Policy::WriteThrough;
    plan.volumes[0].depth = 16;
    plan.origins[0].sectors = 512;
    plan.ram_blocks = 256;
}

#[test]
fn policies_change_under_load_and_no_promise_is_broken() {
    let counters = every_seed("switches", switching);
    println!("{} switches", counters.switches);
    assert!(counters.switches > 0, "nothing was switched");
}

#[test]
fn write_through_volumes_keep_every_promise() {
    let counters = every_seed("write-through", write_through);
    assert!(counters.writes > 0 && counters.reads > 0, "there is a load");
}

#[test]
fn volumes_of_every_policy_become_larger_and_smaller_and_nothing_is_lost_or_comes_back() {
    if common::is_told_of_one(resizes) {
        return;
    }
    let seeds = common::seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = common::every_seed("resizes", seeds, resizes);
    let sizes = &counters.sizes;
    assert!(
        sizes.changed > 4 * count && sizes.shrunk > count,
        "{counters:?}"
    );
    // That takes the order while something is dirty, and an end of the daemon in the middle.
    let (refused, cut) = (sizes.refused, sizes.cut_short);
    assert!(count < 20 || (refused > 0 && cut > 0), "{counters:?}");
}

/// Fails when: an image is called at rest before it has all that was written, or while something of
/// a destage goes on; it is written before it is resumed; or disks of a group rest at other cuts.
#[test]
fn images_rest_with_all_that_was_written_before_and_are_not_touched_until_they_are_resumed() {
    if common::is_told_of_one(rests) {
        return;
    }
    let seeds = common::seeds(40, 3);
    let count = seeds.end - seeds.start;
    let counters = common::every_seed("rests", seeds, rests);
    let rests = &counters.images.rests;
    assert!(
        rests.begun > 2 * count && rests.kept > count,
        "{counters:?}"
    );
    assert!(count < 20 || rests.ended > 0, "{counters:?}");
}

/// Fails when: a larger disk shows what a base has behind the old end, its size comes before its
/// room, or a kill in between leaves anything but the old disk or the new one.
#[test]
fn images_that_allocate_become_larger_under_load_and_are_right_behind_every_end() {
    if common::is_told_of_one(grows) {
        return;
    }
    let seeds = common::seeds(40, 3);
    let count = seeds.end - seeds.start;
    let counters = common::every_seed("grows", seeds, grows);
    let sizes = &counters.sizes;
    assert!(
        sizes.changed > 4 * count && sizes.shrunk == 0,
        "{counters:?}"
    );
    assert!(count < 20 || sizes.cut_short > 0, "{counters:?}");
}
