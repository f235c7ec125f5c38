//! How the rounds of a switch end, who waits meanwhile, and what those are told who ordered it.

use super::{CAPACITY_BLOCKS, Host, fine, none, spec, syncs_origin, writes_journal, writes_origin};
use crate::event::{Command, Device, Event, Io, IoError, Purpose, Refusal};
use crate::snapshot::State;
use crate::types::{Policy, RequestId, VolumeId};

/// So many dirty blocks are few: they are destaged while writes wait.
const FEW_BLOCKS: u64 = CAPACITY_BLOCKS / 64;

fn is_unsyncable(io: &Io) -> Option<IoError> {
    syncs_origin(io).then_some(IoError::Failed)
}

fn to_through(host: &mut Host, disk: VolumeId) -> RequestId {
    host.switch(disk, Policy::WriteThrough)
}

#[test]
fn a_guest_writes_half_as_much_as_was_dirty_while_a_switch_drains() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 40);
    host.hold(writes_journal);
    let order = to_through(&mut host, disk);
    host.fill(disk, 100, 20);
    assert!(!host.write(disk, 200, 1));
    assert_eq!(host.show(disk).waiting_requests, 1);
    assert_eq!(host.show(disk).switching_to, Some(Policy::WriteThrough));
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(order), Some(Ok(())));
    let shown = host.show(disk);
    assert_eq!(
        (shown.policy, shown.waiting_requests),
        (Policy::WriteThrough, 0)
    );
}

#[test]
fn one_write_is_taken_while_a_switch_drains_however_large_it_is() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 40);
    host.hold(writes_journal);
    to_through(&mut host, disk);
    assert!(host.write(disk, 100, 30));
    assert!(!host.write(disk, 200, 1));
}

#[test]
fn nobody_waits_for_a_switch_whose_origin_takes_nothing() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 40);
    host.fail(|io| writes_origin(io).then_some(IoError::Failed));
    to_through(&mut host, disk);
    // The second round of writes that fails, and not the first, tells.
    host.pass(10);
    assert_eq!(host.show(disk).state, State::Stalled);
    host.fill(disk, 100, 60);
}

#[test]
fn what_is_dirty_when_a_round_begins_is_apart_from_what_comes() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 20);
    host.hold(writes_journal);
    host.destage(disk);
    host.fill(disk, 50, 20);
    to_through(&mut host, disk);
    assert!(
        host.core
            .volume(disk)
            .epochs
            .iter()
            .all(|epoch| epoch.sealed)
    );
    // Half of both is room for new ones; the open epoch of before takes nothing of it.
    host.fill(disk, 100, 20);
    assert!(!host.write(disk, 200, 1));
}

#[test]
fn writes_wait_for_the_last_few_blocks_of_a_switch() {
    for (dirty, waits) in [(FEW_BLOCKS, true), (FEW_BLOCKS + 1, false)] {
        let (mut host, disk) = Host::write_back();
        host.fill(disk, 0, dirty);
        host.hold(writes_journal);
        let order = to_through(&mut host, disk);
        assert_eq!(host.write(disk, 100, 1), !waits, "{dirty} blocks");
        host.hold(none);
        host.pass(200);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
}

#[test]
fn an_order_back_ends_a_switch_that_has_given_nothing_up() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 40);
    host.hold(writes_journal);
    let away = to_through(&mut host, disk);
    let back = host.switch(disk, Policy::WriteBack);
    assert_eq!(host.answer(away), Some(Ok(())));
    assert_eq!(host.answer(back), Some(Ok(())));
    assert_eq!(host.show(disk).switching_to, None);
    host.fill(disk, 100, 40);
}

#[test]
fn a_volume_that_goes_or_that_nobody_attached_is_not_switched() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.hold(writes_origin);
    host.destage(disk);
    host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    let order = to_through(&mut host, disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));

    let (mut host, disk) = Host::write_back();
    // As recovery knows a volume that no configuration names.
    let volume = host.core.volume(disk);
    volume.begin_suspend(order);
    volume.let_go();
    let order = to_through(&mut host, disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));
}

#[test]
fn who_ordered_write_back_hears_that_the_origin_cannot_be_synced() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    host.fail(is_unsyncable);
    let order = host.switch(disk, Policy::WriteBack);
    assert_eq!(host.answer(order), Some(Err(Refusal::Io)));
    let shown = host.show(disk);
    assert_eq!(
        (shown.policy, shown.switching_to),
        (Policy::WriteThrough, None)
    );
    assert_eq!(
        (shown.counters.origin.syncs, shown.counters.origin.errors),
        (1, 1)
    );
    host.fail(fine);
    let (first, second) = (host.flush(disk), host.flush(disk));
    assert_eq!(
        host.answer(first),
        Some(Err(Refusal::Io)),
        "the guest has to know"
    );
    assert_eq!(host.answer(second), Some(Ok(())));
}

#[test]
fn a_later_order_that_needs_no_sync_is_not_refused_for_want_of_one() {
    let (mut host, disk) = Host::of(spec(Policy::Uncached, "disk"));
    host.hold(syncs_origin);
    let back = host.switch(disk, Policy::WriteBack);
    let through = to_through(&mut host, disk);
    host.fail(is_unsyncable);
    host.hold(none);
    assert_eq!(host.answer(back), Some(Ok(())));
    assert_eq!(host.answer(through), Some(Ok(())));
    assert_eq!(host.show(disk).policy, Policy::WriteThrough);
    assert_eq!(host.show(disk).counters.origin.syncs, 1);
}

#[test]
fn a_switch_that_nobody_ordered_is_tried_again_each_minute() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    host.fail(is_unsyncable);
    host.core.switch_back(disk);
    host.send(Event::Tick);
    host.pass(100);
    assert_eq!(host.count(syncs_origin), 1);
    let reason = host.show(disk).reason;
    assert!(
        reason.is_some_and(|it| it.contains("each minute")),
        "{reason:?}"
    );
    // It began with the event that followed, so a minute is over so much earlier.
    host.pass(59_899);
    assert_eq!(host.count(syncs_origin), 0);
    host.pass(1);
    assert_eq!(host.count(syncs_origin), 1);
    host.fail(fine);
    host.pass(60_000);
    assert_eq!(host.show(disk).policy, Policy::WriteBack);
}

/// The next life finds by the ledger that nothing in the log counts.
#[test]
fn a_host_that_stops_claims_no_volume_for_its_switch() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    host.hold(|io| io.purpose == Purpose::Checkpoint);
    let order = host.switch(disk, Policy::WriteBack);
    let park = host.order(Command::Park);
    host.asked.clear();
    host.hold(none);
    host.pass(100);
    assert_eq!(host.answer(park), Some(Ok(())));
    assert_eq!(host.answer(order), None);
    assert_eq!(host.count(|io| io.purpose == Purpose::Ledger), 0);
    assert_eq!(host.show(disk).policy, Policy::WriteThrough);
}

fn is_checkpoint(io: &Io) -> bool {
    io.purpose == Purpose::Checkpoint
}

fn fails_log(io: &Io) -> Option<IoError> {
    (io.purpose == Purpose::Log).then_some(IoError::Failed)
}

/// Nobody else may have the bytes that were read before somebody wrote past this host.
#[test]
fn a_volume_that_becomes_uncached_and_no_other_forgets_what_is_kept_of_it() {
    use Policy::{Uncached, WriteBack, WriteThrough};
    for (before, after, forgets) in [
        (WriteThrough, Uncached, true),
        (WriteBack, Uncached, true),
        (Uncached, Uncached, false),
        (Uncached, WriteThrough, false),
        (Uncached, WriteBack, false),
        (WriteThrough, WriteBack, false),
        (WriteBack, WriteThrough, false),
        (WriteBack, WriteBack, false),
    ] {
        let (mut host, disk) = Host::of(spec(before, "disk"));
        let layer = host.core.volume(disk).layer();
        let order = host.switch(disk, after);
        host.pass(200);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert_eq!(host.show(disk).policy, after);
        let renewed = host.core.volume(disk).layer() != layer;
        assert_eq!(renewed, forgets, "{before:?} to {after:?}");
    }
}

#[test]
fn a_new_policy_is_in_the_next_checkpoint_though_one_was_wanted_before() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    host.pass(1_000);
    host.hold(is_checkpoint);
    host.core.checkpoint.wanted = true;
    host.send(Event::Tick);
    // This one comes too late for it.
    host.core.checkpoint.wanted = true;
    let order = host.switch(disk, Policy::Uncached);
    assert_eq!(host.answer(order), Some(Ok(())));
    host.hold(none);
    host.lose_power();
    assert_eq!(host.show(disk).policy, Policy::Uncached);
}

#[test]
fn overlays_keep_their_policy_and_held_volumes_theirs() {
    for (before, after) in [
        (Policy::Ephemeral, Policy::WriteBack),
        (Policy::Ephemeral, Policy::Uncached),
        (Policy::WriteBack, Policy::Ephemeral),
        (Policy::Uncached, Policy::Ephemeral),
    ] {
        let (mut host, disk) = Host::of(spec(before, "disk"));
        let order = host.switch(disk, after);
        assert_eq!(host.answer(order), Some(Err(Refusal::Policy)));
        assert_eq!(host.show(disk).policy, before);
    }
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.core.volume(disk).hold(None);
    let order = to_through(&mut host, disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Held)));
    assert_eq!(host.show(disk).dirty_bytes, 3 * 4096);
}

#[test]
fn nobody_switches_to_a_log_that_fails_nor_a_volume_that_leaves_one() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    let leaves = host.attach(spec(Policy::WriteBack, "leaves"));
    host.fill(leaves, 0, 3);
    host.hold(writes_origin);
    host.fail(fails_log);
    host.flush(leaves);
    host.pass(11_000);
    let order = host.switch(disk, Policy::WriteBack);
    assert_eq!(host.answer(order), Some(Err(Refusal::CacheFailed)));
    let order = host.switch(disk, Policy::Uncached);
    assert_eq!(host.answer(order), Some(Ok(())), "this one needs no log");
    let order = to_through(&mut host, leaves);
    assert_eq!(host.answer(order), Some(Err(Refusal::CacheFailed)));
}

#[test]
fn a_volume_that_becomes_write_back_learns_whether_a_journal_is_possible() {
    for journal_possible in [true, false] {
        let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
        let volume = disk;
        for policy in [Policy::Uncached, Policy::WriteBack] {
            // What the first one says has nothing to do with the log.
            let journal_possible = journal_possible == (policy == Policy::WriteBack);
            let order = host.order(Command::Switch {
                volume,
                policy,
                journal_possible,
            });
            assert_eq!(host.answer(order), Some(Ok(())));
        }
        assert_eq!(host.show(disk).journal_possible, journal_possible);
    }
}

#[test]
fn an_order_leaves_a_configured_switch_to_go_on_and_another_ends_it() {
    for other in [false, true] {
        let (mut host, disk) = Host::of(spec(Policy::Uncached, "disk"));
        host.core.switch_back(disk);
        host.hold(syncs_origin);
        host.send(Event::Tick);
        host.pass(100);
        if other {
            to_through(&mut host, disk);
        }
        let order = host.switch(disk, Policy::WriteBack);
        host.fail(is_unsyncable);
        host.hold(none);
        assert_eq!(host.answer(order), Some(Err(Refusal::Io)));
        let goes_on = (!other).then_some(Policy::WriteBack);
        assert_eq!(host.show(disk).switching_to, goes_on);
    }
}

/// What it covers has to be there before it is asked for.
#[test]
fn the_sync_of_a_switch_comes_once_and_after_the_writes_past_the_log() {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    host.hold(|io| io.purpose == Purpose::GuestWrite && io.op != crate::event::Op::Sync);
    let write = host.write_sectors(disk, 0, 8);
    host.asked.clear();
    let first = host.switch(disk, Policy::WriteBack);
    host.pass(1_000);
    assert_eq!((host.answer(write), host.count(syncs_origin)), (None, 0));
    host.hold(syncs_origin);
    assert_eq!(host.answer(write), Some(Ok(())));
    let again = host.switch(disk, Policy::WriteBack);
    assert_eq!((host.answer(first), host.answer(again)), (None, None));
    host.hold(none);
    host.pass(200);
    assert_eq!(host.count(syncs_origin), 1);
    assert_eq!(host.answer(first), Some(Ok(())));
    assert_eq!(host.answer(again), Some(Ok(())));
    // Nothing of it is in flight any more.
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: false,
    });
    host.pass(200);
    assert_eq!(host.answer(gone), Some(Ok(())));
}

#[test]
fn a_switch_cuts_no_write_that_has_begun() {
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.purpose == Purpose::Log);
    let begun = host.write_sectors(disk, 0, 100 * 8);
    assert!(host.core.volume(disk).left_in_part() > 0);
    let order = to_through(&mut host, disk);
    assert!(!host.core.volume(disk).epochs[0].sealed);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(begun), Some(Ok(())));
    assert_eq!(host.answer(order), Some(Ok(())));
}

/// Fails when: the end of a sync that was asked for by a switch that was given up counts for the
/// next one.
#[test]
fn a_sync_of_a_switch_that_was_given_up_says_nothing_of_the_next_one() {
    let (mut host, disk) = Host::of(spec(Policy::Uncached, "disk"));
    assert!(host.write(disk, 0, 1));
    host.hold(syncs_origin);
    let first = host.switch(disk, Policy::WriteBack);
    host.order(Command::CacheGone { gone: true });
    host.pass(10_000);
    assert_eq!(host.answer(first), Some(Err(Refusal::CacheFailed)));
    host.order(Command::CacheGone { gone: false });
    host.pass(10_000);
    assert!(host.write(disk, 1, 1));
    let second = host.switch(disk, Policy::WriteBack);
    host.end(syncs_origin);
    let shown = host.show(disk);
    assert_eq!(
        (shown.policy, host.answer(second)),
        (Policy::Uncached, None)
    );
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(second), Some(Ok(())));
}

/// The ledger is all that a daemon finds whose cache was made anew.
fn on_a_new_cache(mut host: Host, disk: VolumeId) -> Host {
    let ledger = host.disks.0.remove(&Device::Ledger(disk));
    let mut host = Host::new();
    let ledger = ledger.expect("it was claimed");
    host.disks.0.insert(Device::Ledger(disk), ledger);
    host
}

/// Fails when: a volume that goes past the log, by an order or from its start, does not say so
/// beside its origin.
#[test]
fn a_flush_on_a_new_cache_covers_what_the_life_before_wrote_past_the_log() {
    for ordered in [true, false] {
        let (mut host, disk) = Host::write_back();
        host.fill(disk, 0, 1);
        let order = host.switch(disk, Policy::Uncached);
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Ok(())));
        if !ordered {
            let back = host.switch(disk, Policy::WriteBack);
            host.pass(1_000);
            assert_eq!(host.answer(back), Some(Ok(())));
            host.order(Command::Park);
            host.pass(1_000);
            host = host.killed();
            host.attach_again(spec(Policy::Uncached, "disk"));
        }
        host.hold(syncs_origin);
        assert!(host.write(disk, 5, 1));

        let mut host = on_a_new_cache(host, disk);
        host.hold(syncs_origin);
        let disk = host.attach_again(spec(Policy::WriteBack, "disk"));
        let flush = host.flush(disk);
        host.pass(1_000);
        assert_eq!(host.answer(flush), None, "by order: {ordered}");
        host.hold(none);
        host.pass(1_000);
        assert_eq!(host.answer(flush), Some(Ok(())));
        assert_eq!(host.show(disk).policy, Policy::WriteBack);
    }
}
