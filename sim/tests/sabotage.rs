//! The oracle is awake: each rule that the host breaks on purpose makes seeds fail that pass
//! without it.

use sim::{Options, Sabotage, run};

/// Seeds that may pass before the broken rule must have been noticed.
const SEEDS_MAX: u64 = 60;

fn is_noticed(sabotage: Sabotage) {
    let failure = (0..SEEDS_MAX).find_map(|seed| {
        let honest = Options::from_seed(seed);
        let failure = run(&Options {
            sabotage: Some(sabotage),
            ..honest.clone()
        })
        .err();
        failure.filter(|_| run(&honest).is_ok())
    });
    let failure = failure.unwrap_or_else(|| panic!("{sabotage:?} passes {SEEDS_MAX} seeds"));
    println!("{sabotage:?}: {failure}");
}

#[test]
fn late_writes_without_the_fence_are_noticed() {
    is_noticed(Sabotage::NoFence);
}

#[test]
fn a_cache_device_that_does_not_sync_is_noticed() {
    is_noticed(Sabotage::CacheSync);
}

#[test]
fn a_journal_that_is_not_synced_is_noticed() {
    is_noticed(Sabotage::JournalSync);
}

#[test]
fn a_ledger_that_is_not_synced_is_noticed() {
    is_noticed(Sabotage::LedgerSync);
}

#[test]
fn an_origin_that_is_not_synced_is_noticed() {
    is_noticed(Sabotage::OriginSync);
}

#[test]
fn a_lost_write_of_the_log_is_noticed() {
    is_noticed(Sabotage::LostLogWrite);
}
