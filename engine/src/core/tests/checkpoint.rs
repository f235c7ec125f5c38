//! Where checkpoints go, when they are written again, and who is told.

use super::{Host, fine, spec};
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

/// A switch that is given up takes its own name off the checkpoint that is under way.
#[test]
fn others_who_wait_for_a_checkpoint_are_told_when_a_switch_has_been_given_up() {
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
    host.end(writes_checkpoint);
    host.fail(|io| (io.purpose == Purpose::Log).then_some(IoError::Failed));
    host.fill(logged, 0, 1);
    host.flush(logged);
    host.pass(11_000);
    assert_eq!(host.core.snapshot(host.now).cache_state, CacheState::Failed);
    assert_eq!(host.answer(switch), Some(Err(Refusal::CacheFailed)));
    assert_eq!(host.answer(reset), None);
    host.end(writes_checkpoint);
    assert_eq!(host.answer(reset), Some(Ok(())));
    assert_eq!(host.show(disk).policy, Policy::WriteThrough);
    assert_eq!(host.show(disk).switching_to, None);
}
