//! Where checkpoints go, when they are written again, and who is told.

use super::{Host, fine, none, spec};
use crate::event::{Command, Event, Io, IoError, Op, Purpose, Refusal};
use crate::format::superblock::CHECKPOINT_AT;
use crate::snapshot::CacheState;
use crate::types::Policy;
use alloc::vec::Vec;

fn writes_checkpoint(io: &Io) -> bool {
    io.purpose == Purpose::Checkpoint && io.op == Op::Write
}

/// The newest one stays whole whatever becomes of the next.
#[test]
fn a_checkpoint_never_goes_where_the_newest_one_lies() {
    let (mut host, _) = Host::write_back();
    let slot_bytes = host.core.superblock.checkpoint_slot_bytes;
    for _ in 0..4 {
        let newest = host.core.checkpoint.sequence;
        host.asked.clear();
        host.core.checkpoint.wanted = true;
        host.pass(100);
        assert_eq!(host.core.checkpoint.sequence, newest + 1);
        let written = host.asked.iter().filter(|io| writes_checkpoint(io));
        let slots: Vec<u64> = written
            .map(|io| (io.offset - CHECKPOINT_AT) / slot_bytes)
            .collect();
        assert_eq!(slots, [(newest + 1) % 2]);
    }
}

#[test]
fn a_checkpoint_that_failed_is_written_again_after_a_pause() {
    let (mut host, overlay) = Host::of(spec(Policy::Ephemeral, "disk"));
    host.fill(overlay, 0, 1);
    host.pass(1_000);
    host.fail(|io| writes_checkpoint(io).then_some(IoError::Failed));
    host.asked.clear();
    let reset = host.order(Command::Reset { volume: overlay });
    assert_eq!(host.count(writes_checkpoint), 1);
    host.fail(fine);
    host.pass(99);
    assert_eq!(
        (host.count(writes_checkpoint), host.answer(reset)),
        (0, None)
    );
    host.pass(1);
    assert_eq!(host.answer(reset), Some(Ok(())));
}

/// It answers, but it ends with the process that has it open.
#[test]
fn what_lies_in_a_cache_file_that_is_gone_goes_to_its_origin_until_it_is_found_again() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.pass(1_000);
    let told = host.order(Command::CacheGone { gone: true });
    assert_eq!(host.answer(told), Some(Ok(())));
    host.pass(10_000);
    let shown = host.show(disk);
    assert_eq!((shown.dirty_bytes, shown.policy), (0, Policy::Uncached));
    assert!(shown.past_log && shown.reason.is_some_and(|why| why.contains("was removed")));
    let state = |host: &Host| host.core.snapshot(host.now).cache_state;
    assert_eq!(state(&host), CacheState::Gone, "however well it answers");
    host.order(Command::CacheGone { gone: false });
    host.pass(10_000);
    assert_eq!(state(&host), CacheState::Good);
    assert_eq!(host.show(disk).policy, Policy::WriteBack);
}

/// A switch that is given up takes its own name off the checkpoint that is under way.
#[test]
fn others_who_wait_for_a_checkpoint_are_told_when_a_switch_has_been_given_up() {
    for under_way in [true, false] {
        give_up_a_switch(under_way);
    }
}

/// The checkpoint that both wait for is under way, or comes behind the one that is.
fn give_up_a_switch(under_way: bool) {
    let (mut host, disk) = Host::of(spec(Policy::WriteThrough, "disk"));
    let overlay = host.attach(spec(Policy::Ephemeral, "overlay"));
    let logged = host.attach(spec(Policy::WriteBack, "logged"));
    host.fill(overlay, 0, 1);
    host.pass(1_000);
    host.hold(writes_checkpoint);
    host.core.checkpoint.wanted = true;
    host.send(Event::Tick);
    // These wait for the one behind it.
    let switch = host.switch(disk, Policy::WriteBack);
    let reset = host.order(Command::Reset { volume: overlay });
    if under_way {
        host.end(writes_checkpoint);
    }
    host.fail(|io| (io.purpose == Purpose::Log).then_some(IoError::Failed));
    host.fill(logged, 0, 1);
    host.flush(logged);
    host.pass(11_000);
    assert_eq!(host.core.snapshot(host.now).cache_state, CacheState::Failed);
    assert_eq!(host.answer(switch), Some(Err(Refusal::CacheFailed)));
    assert_eq!(host.answer(reset), None);
    if !under_way {
        host.end(writes_checkpoint);
        assert_eq!(host.answer(reset), None);
    }
    host.end(writes_checkpoint);
    assert_eq!(host.answer(reset), Some(Ok(())));
    assert_eq!(host.show(disk).policy, Policy::WriteThrough);
    assert_eq!(host.show(disk).switching_to, None);
}

fn syncs_checkpoint(io: &Io) -> bool {
    io.purpose == Purpose::Checkpoint && io.op == Op::Sync
}

fn fails_log_sync(io: &Io) -> Option<IoError> {
    let syncs = io.purpose == Purpose::Log && io.op == Op::Sync;
    syncs.then_some(IoError::Failed)
}

/// An overlay with something in it, and an order to reset it whose checkpoint does not end.
fn resetting() -> (Host, crate::types::RequestId) {
    let (mut host, overlay) = Host::of(spec(Policy::Ephemeral, "overlay"));
    host.fill(overlay, 0, 3);
    host.pass(1_000);
    host.hold(writes_checkpoint);
    let reset = host.order(Command::Reset { volume: overlay });
    (host, reset)
}

#[test]
fn nobody_is_told_of_a_checkpoint_whose_sync_failed() {
    let (mut host, reset) = resetting();
    let (sequence, written) = (
        host.core.checkpoint.sequence,
        host.core.snapshot(host.now).checkpoints,
    );
    host.asked.clear();
    host.fail(|io| syncs_checkpoint(io).then_some(IoError::Failed));
    host.hold(none);
    assert_eq!(host.answer(reset), None);
    assert_eq!(host.core.checkpoint.sequence, sequence);
    host.fail(fine);
    host.asked.clear();
    host.pass(200);
    assert!(host.count(writes_checkpoint) > 0, "not synced again only");
    assert_eq!(host.answer(reset), Some(Ok(())));
    let shown = host.core.snapshot(host.now).checkpoints;
    assert_eq!(shown - written, host.core.checkpoint.sequence - sequence);
}

/// The device says it once, and it may be this that is lost.
#[test]
fn a_checkpoint_that_any_failed_sync_may_have_taken_is_written_again() {
    for fails_too in [false, true] {
        let (mut host, overlay) = Host::of(spec(Policy::Ephemeral, "overlay"));
        let logged = host.attach(spec(Policy::WriteBack, "logged"));
        host.fill(overlay, 0, 3);
        host.pass(1_000);
        host.hold(writes_checkpoint);
        let reset = host.order(Command::Reset { volume: overlay });
        let sequence = host.core.checkpoint.sequence;
        host.fail(fails_log_sync);
        host.fill(logged, 0, 1);
        host.flush(logged);
        host.fail(match fails_too {
            true => |io| writes_checkpoint(io).then_some(IoError::Failed),
            false => fine,
        });
        host.asked.clear();
        host.hold(none);
        assert_eq!(host.answer(reset), None);
        assert_eq!(host.core.checkpoint.sequence, sequence);
        assert_eq!(host.count(syncs_checkpoint), 0);
        host.fail(fine);
        host.pass(200);
        assert_eq!(host.answer(reset), Some(Ok(())));
    }
}

#[test]
fn what_an_overlay_held_is_free_after_its_reset() {
    let (mut host, reset) = resetting();
    assert!(host.core.log.gauge().live > 0, "a crash brings it back");
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(reset), Some(Ok(())));
    assert_eq!(host.core.log.gauge().live, 0);
    assert_eq!(host.core.extents.count(), 0);
}

/// None before the segments that were never used are used up: each one is a write to flash.
#[test]
fn a_checkpoint_brings_room_back_when_it_is_short_and_not_before() {
    let (mut host, disk) = Host::write_back();
    host.pass(1_000);
    let before = host.core.checkpoint.written;
    for round in 0..120 {
        assert!(host.write(disk, 0, 20), "round {round}, and no time passes");
        let order = host.destage(disk);
        assert_eq!(host.answer(order), Some(Ok(())), "round {round}");
        let written = host.core.checkpoint.written - before;
        match round {
            0..20 => assert_eq!(written, 0, "there is room"),
            _ => assert!(written <= round, "once for several segments"),
        }
    }
    assert!(host.core.checkpoint.written > before);
}

/// The device says once that a sync failed, whoever asked: what the log had written may be lost.
#[test]
fn the_log_is_written_again_after_a_checkpoints_sync_has_failed() {
    let writes_log = |io: &&Io| io.purpose == Purpose::Log && io.op == Op::Write;
    let (mut host, disk) = Host::write_back();
    host.asked.clear();
    host.fill(disk, 0, 7);
    host.pass(100);
    let written: Vec<u64> = host
        .asked
        .iter()
        .filter(writes_log)
        .map(|io| io.offset)
        .collect();
    assert!(!written.is_empty(), "written, and not synced");
    host.fail(|io| syncs_checkpoint(io).then_some(IoError::Failed));
    host.asked.clear();
    host.core.checkpoint.wanted = true;
    host.send(Event::Tick);
    assert!(host.asked.iter().any(syncs_checkpoint), "it failed");
    host.fail(fine);
    let flush = host.flush(disk);
    host.pass(1_000);
    assert_eq!(host.answer(flush), Some(Ok(())));
    let mut again = host.asked.iter().filter(writes_log).map(|io| io.offset);
    assert!(again.any(|at| at == written[0]), "not synced only");
}
