//! Overlays that become the content of their images, over kills and power losses in all of it.
//!
//! A third of `TENUTO_SIM_SEEDS` says how many seeds (60), `TENUTO_SIM_FIRST` from which (0).

mod common;

use common::{every_seed, is_told_of_one, noticed, seeds};
use sim::Sabotage;
use sim::host::Ending;
use sim::scenario::commits;

#[test]
fn a_commit_is_whole_or_not_at_all() {
    if is_told_of_one(commits) {
        return;
    }
    let seeds = seeds(60, 3);
    let count = seeds.end - seeds.start;
    let counters = every_seed("commits", seeds, commits);
    assert!(counters.commits > 2 * count, "overlays were committed");
    let (cut, decided) = (counters.commits_cut_short, counters.commits_decided);
    // Of those that are cut short some were decided and some were not.
    assert!(count < 20 || (decided > 0 && cut > decided), "{counters:?}");
}

#[test]
fn a_commit_without_the_sync_of_its_journal_is_noticed() {
    // Every second seed has a neighbour, whose journal would be noticed as well. A daemon that dies
    // alone leaves what it has written.
    noticed(Sabotage::JournalSync, |seed| {
        let mut options = commits(2 * seed);
        options.endings.fill(Ending::PowerLoss);
        options
    });
}
