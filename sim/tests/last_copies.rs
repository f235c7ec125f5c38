//! The only copies of dirty data rot: what is left is right, and what is not left is told.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (100), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::{every_seed, is_told_of_one, seeds};
use sim::scenario::last_copies;

#[test]
fn what_lost_its_last_copy_is_an_error_and_told_and_all_else_is_right() {
    if is_told_of_one(last_copies) {
        return;
    }
    let seeds = seeds(100, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("last copies", seeds, last_copies);
    assert!(counters.spoiled_blocks >= count, "{counters:?}");
    let met = counters.spoiled_sectors > 0 && counters.spoiled_told > 0;
    assert!(count < 20 || met, "{counters:?}");
}
