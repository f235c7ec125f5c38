//! The oracle is awake: each rule that the host breaks on purpose makes seeds fail that pass
//! without it.

mod common;

use sim::{Options, Sabotage};

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
