//! Clean blocks on a cache device that rots, wraps and loses power are never wrong, and the oracle
//! notices when a rule that keeps them right is broken.

mod common;

use common::{every_seed, noticed, seeds};
use sim::host::Ending;
use sim::scenario::{clean_blocks, own_blocks};
use sim::{Options, Sabotage};

/// Seeds from which on all that may happen has happened; one alone shows a part of it.
const ENOUGH: u64 = 20;

#[test]
fn clean_blocks_of_a_rotten_device_are_never_wrong() {
    let seeds = seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("clean blocks", seeds, clean_blocks);
    if count < ENOUGH {
        return;
    }
    // Runs that never come here prove nothing.
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
    assert!(
        counters.scrubbed_bytes > 0 && counters.scrub_dropped_bytes > 0,
        "{counters:?}"
    );
}

#[test]
fn own_clean_blocks_of_volumes_that_are_written_are_never_stale() {
    let seeds = seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("own clean blocks", seeds, own_blocks);
    if count < ENOUGH {
        return;
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

fn over_kills(seed: u64) -> Options {
    let mut options = clean_blocks(seed);
    options.sabotage = Some(Sabotage::NoLineSums);
    let orderly = Ending::Orderly { power_off: false };
    options.endings = vec![Ending::Kill, Ending::KillInMemory, orderly, Ending::Kill];
    options.restarts = 4;
    let rates = &mut options.plan.as_mut().expect("it has one").rates;
    (rates.rot, rates.cache_write_error, rates.cache_sync_error) = (0, 0, 0);
    (rates.crash_in_recovery, rates.recovery_error) = (0, 0);
    options
}

/// While nothing but the daemon dies, blocks need no checksum to be right: segments come back to
/// use in an order that never leaves a line over newer bytes.
#[test]
fn the_order_of_segments_alone_keeps_clean_blocks_right_over_kills() {
    let counters = every_seed("clean blocks without sums", seeds(60, 3), over_kills);
    assert!(
        counters.lines_read > 0 && counters.lines_retired > 0,
        "{counters:?}"
    );
}

#[test]
fn clean_blocks_without_their_sums_are_noticed() {
    noticed(Sabotage::NoLineSums, clean_blocks);
}

#[test]
fn lines_of_another_image_are_noticed() {
    noticed(Sabotage::SameIdentity, clean_blocks);
}
