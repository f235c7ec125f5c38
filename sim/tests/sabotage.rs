//! The oracle is awake: each rule that the host breaks on purpose makes seeds fail that pass
//! without it.

mod common;

use sim::host::Ending;
use sim::swarm::Case;
use sim::{Class, Options, Sabotage};

fn is_noticed(sabotage: Sabotage) {
    common::noticed(sabotage, Options::from_seed);
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

/// The first case of the swarm that notices.
fn of_swarm(sabotage: Sabotage) -> sim::Failure {
    common::noticed(sabotage, |seed| Case::from_seed(seed).options())
}

#[test]
fn an_image_that_another_program_wrote_without_a_trace_is_noticed() {
    let failure = common::noticed(Sabotage::SameTimes, |seed| {
        let mut options = sim::scenario::own_blocks(seed);
        let stop = Ending::Orderly { power_off: false };
        (options.endings, options.restarts) = (vec![stop; 8], 8);
        let plan = options.plan.as_mut().expect("it has one");
        plan.rates.foreign = 800;
        options
    });
    assert_eq!(failure.class, Class::Safety);
}

#[test]
fn a_host_that_takes_what_another_one_holds_is_noticed() {
    let failure = common::noticed(Sabotage::TakesAll, |seed| {
        let mut options = Case::from_seed(seed).options();
        let plan = options.plan.as_mut().expect("a case has one");
        plan.hosts = 2;
        (options.endings, options.restarts) = (vec![Ending::Visit; 3], 3);
        options
    });
    assert_eq!(failure.class, Class::Safety);
}

#[test]
fn an_order_that_is_never_answered_is_a_matter_of_liveness() {
    assert_eq!(of_swarm(Sabotage::NoAnswer).class, Class::Liveness);
}

#[test]
fn a_panic_is_a_crash() {
    assert_eq!(of_swarm(Sabotage::Panics).class, Class::Crash);
}
