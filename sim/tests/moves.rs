//! Images that move to other files below them, and disks that become smaller, over crashes.
//!
//! `TENUTO_SIM_SEEDS` says how many seeds (40), `TENUTO_SIM_FIRST` from which (0).

mod common;

use sim::scenario::moves;

/// Fails when: an image is found on anything but the file before or the other one; its disk is
/// another one there; a file below is written; a plan leaves an error or a leak; the end of a disk
/// that becomes smaller comes back, or takes more along than itself.
#[test]
fn images_move_to_other_files_and_become_smaller_and_their_disks_stay_what_they_are() {
    if common::is_told_of_one(moves) {
        return;
    }
    let seeds = common::seeds(40, 3);
    let count = seeds.end - seeds.start;
    let counters = common::every_seed("moves", seeds, moves);
    let (moves, sizes) = (&counters.images.moves, &counters.sizes);
    assert!(moves.done > 2 * count && sizes.shrunk > 0, "{counters:?}");
    let [flattened, merged, reached] = [moves.flattened, moves.merged, moves.reached];
    let all = [flattened, merged, moves.given_up, moves.cut_short, reached];
    assert!(count < 20 || all.iter().all(|it| *it > 0), "{counters:?}");
}
