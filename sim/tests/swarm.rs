//! Seeds that differ as much as they can: each has whole classes of guests, limits and faults, or
//! has
//! them not.
//!
//! Twice `TENUTO_SIM_SEEDS` says how many (200), `TENUTO_SIM_FIRST` from which (0),
//! `TENUTO_SIM_SEED` runs one and tells everything, `TENUTO_SIM_WITHOUT` takes features from it.

mod common;

use common::{every_seed, is_told_of_one, number, seeds};
use sim::swarm::{Case, Feature, Features, QCOW2};
use sim::{Options, Outcome, run};

fn without() -> Features {
    let names = std::env::var("TENUTO_SIM_WITHOUT").unwrap_or_default();
    let names = names.split(',').filter(|it| !it.is_empty());
    names
        .map(|it| it.parse::<Feature>().expect("a feature"))
        .collect()
}

fn options(seed: u64) -> Options {
    let case = Case {
        without: without(),
        ..Case::from_seed(seed)
    };
    let case = Case {
        operations: number("TENUTO_SIM_OPERATIONS").unwrap_or(case.operations),
        restarts: number("TENUTO_SIM_RESTARTS").map(|it| it as u32),
        ..case
    };
    case.options()
}

#[test]
fn every_seed_of_the_swarm_keeps_every_promise() {
    if is_told_of_one(options) {
        return;
    }
    let all = seeds(100, 1);
    let asked = 2 * (all.end - all.start);
    // A few more, so that the faults that are asked for as well come together.
    let count = asked + asked / 20;
    let counters = every_seed("swarm", all.start..all.start + count, options);
    // Few seeds may have few faults each.
    let faults = counters.faults();
    assert!(asked < 1000 || faults >= 50 * asked, "{faults} faults");
    assert!(count < 1000 || counters.is_rich(), "{counters:?}");
    let rich = QCOW2 == 0 || counters.images.tops.is_rich();
    assert!(count < 1000 || rich, "{:?}", counters.images.tops);
}

/// Features that came later: without them a seed is what it was.
const LATER: &str = "image-moved,image-shrunk,base-written,image-replaced,cache-gone,resizes,\
                     sleeps,qcow2";

/// What a long run has found, as it told it.
fn found_by_a_long_run(seed: u64, operations: u64, without: &str) -> Outcome {
    let without = without.split(',').chain(LATER.split(','));
    let case = Case {
        operations,
        without: without
            .map(|it| it.parse::<Feature>().expect("a feature"))
            .collect(),
        ..Case::from_seed(seed)
    };
    run(&case.options()).unwrap_or_else(|it| panic!("{it}"))
}

/// What was brought home while the cache device was dead stayed dirty on it, and the volume was
/// held when it came back from a life on another host.
#[test]
fn a_host_comes_back_to_what_its_dead_device_has_kept() {
    let without = "fua,commands,disconnects,few-extents,garbage,origin-full,recovery-errors";
    let outcome = found_by_a_long_run(396_381_244, 186, without);
    assert!(outcome.counters.visits > 0, "another host had it");
}

/// After a failure a chunk of the log was written once more while its first write was still on its
/// way; a sync was believed, and the power went: where the first write was, there was garbage.
#[test]
fn what_is_written_again_waits_for_the_write_before() {
    let without = "ephemeral,direct,in-place,few-extents,new-images";
    let outcome = found_by_a_long_run(413_711_724, 1000, without);
    assert!(outcome.counters.power_losses > 0, "the power went");
}

/// A volume came back to its log, and its daemon was stopped while its ledger was being claimed:
/// nothing was owed, but the ledger said so, and every other host refused it.
#[test]
fn what_is_claimed_while_its_daemon_stops_is_released() {
    let without = "ephemeral,switches,in-place,discards,unaligned,fua,commands,slow-origin,\
                   crashes-in-recovery,cache-errors,garbage,origin-full,foreign";
    let outcome = found_by_a_long_run(415_511_399, 423, without);
    assert!(outcome.counters.moves > 0, "another host had it");
}

/// The cache device was good again, but the origin could not be synced when its volume wanted to
/// come back to its log: nobody tried again.
#[test]
fn a_volume_comes_back_to_its_log_when_its_origin_is_good_again() {
    let without = "switches,in-place,disconnects,few-extents,power-losses";
    let outcome = found_by_a_long_run(431_528_021, 999, without);
    assert!(outcome.counters.cache_deaths > 0, "the device was dead");
}

/// Two reads of a footer failed in a row, and a scrub said that it was bad; a block that was as
/// unlucky was read once more.
#[test]
fn a_scrub_reads_a_footer_as_often_as_a_block() {
    let outcome = found_by_a_long_run(446_986_727, 1000, "garbage");
    assert!(outcome.counters.cache_read_errors > 1, "reads failed");
}

/// A disk that turned away from its log began epochs of its own in the middle of a cut of its
/// group; when it turned back, an ordered destage waited for parts that nobody had ordered.
#[test]
fn a_disk_of_a_group_that_switches_keeps_the_cuts_of_its_group() {
    let without = "garbage,origin-full,new-images";
    let outcome = found_by_a_long_run(463_501_086, 999, without);
    assert!(outcome.counters.switches > 0, "disks switched");
}

/// A recovery failed at the sync of its footers; the next one found a footer that only looked
/// durable, and came to its end. The next loss of power brought the older footer back, with
/// records that had been torn.
#[test]
fn what_a_failed_recovery_has_left_out_stays_out() {
    let outcome = found_by_a_long_run(563_820_711, 999, "foreign");
    assert!(outcome.counters.recovery_errors > 0, "recoveries failed");
}

/// A ledger of a killed daemon landed without its sync; the next one read it and wrote its own over
/// the slot before, and the power went: neither was whole.
#[test]
fn a_ledger_that_landed_late_is_there_when_the_next_one_is_lost() {
    let without = "direct,in-place,few-extents,never,cache-errors";
    let outcome = found_by_a_long_run(576_058_408, 1000, without);
    assert!(outcome.counters.power_losses > 0, "the power went");
}

/// A look was answered minutes after the destage that it was for, and the origins were judged then:
/// one of the next cut, and one whose image had been cut short before it was begun.
#[test]
fn a_group_is_judged_when_its_destage_is_answered() {
    let outcome = run(&Case::from_seed(7013).options()).unwrap_or_else(|it| panic!("{it}"));
    assert!(outcome.counters.images.shrunk > 0, "an image was cut short");
    assert!(outcome.counters.cuts_verified > 0, "cuts were judged");
}

/// Segments could not be read while the device failed, were never evacuated again, and guests
/// waited for room for ever.
#[test]
fn segments_that_a_failing_device_did_not_give_make_room_later() {
    let outcome = run(&Case::from_seed(21435).options()).unwrap_or_else(|it| panic!("{it}"));
    assert!(outcome.counters.evacuated_bytes > 0, "there were some");
}

/// A look came between the start of the daemon and the reset of an overlay whose image had been
/// replaced, and was told that the volume is held.
#[test]
fn an_overlay_on_another_base_is_held_until_its_reset() {
    let outcome = run(&Case::from_seed(20673).options()).unwrap_or_else(|it| panic!("{it}"));
    assert!(outcome.counters.images.overlays > 0, "there was one");
}

/// A count landed and the power went before the file became longer: the count behind the end was
/// not seen, and the next plan made it a leak.
#[test]
fn a_count_behind_the_end_of_an_image_is_freed() {
    let outcome = run(&Case::from_seed(781).options()).unwrap_or_else(|it| panic!("{it}"));
    assert!(
        outcome.counters.images.tops.freed > 0,
        "a cluster was freed"
    );
}

#[test]
fn the_same_case_gives_the_same_trace_and_another_seed_another() {
    let trace = |seed| run(&options(seed)).unwrap_or_else(|it| panic!("{it}"));
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3).trace_hash, trace(4).trace_hash);
}
