//! Overlays that become the content of an image that allocates.

use super::images::IMAGE;
use super::planned::{BLOCKS, Backwards, TABLE_AT, applies, attach_spec, guard, view, writes_now};
use super::{Host, fine, none, spec, writes_journal};
use crate::engine::Settled;
use crate::event::{Command, Device, Event, Io, IoError, Op, Refusal};
use crate::format::ledger::Progress;
use crate::image::{Image, Named};
use crate::origin::Map;
use crate::snapshot::State;
use crate::types::{Policy, RequestId, Uuid, VolumeId};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The same as who reads all its files knows it.
const READ: Image = Image { inode: 77, ..IMAGE };

fn attach(host: &mut Host, map: Backwards) -> VolumeId {
    let mut overlay = spec(Policy::Ephemeral, "disk");
    (overlay.commit, overlay.size_bytes) = (true, BLOCKS * 4096);
    attach_spec(host, map, overlay)
}

fn overlay() -> (Host, VolumeId) {
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::default());
    host.fill(disk, 0, 3);
    (host, disk)
}

fn commit(host: &mut Host, volume: VolumeId) -> RequestId {
    let order = host.order(Command::Commit { volume });
    host.pass(2_000);
    order
}

fn syncs_journal(io: &Io) -> bool {
    io.op == Op::Sync && matches!(io.device, Device::Journal(_))
}

/// Fails when: an overlay does not reach an image by a plan, or a guard is left.
#[test]
fn an_overlay_becomes_the_content_of_an_image_that_allocates() {
    let (mut host, disk) = overlay();
    let want = host.read(disk, 0, 4);
    let order = commit(&mut host, disk);
    assert_eq!(host.answer(order), Some(Ok(())), "{:?}", host.state(disk));
    let found: Vec<u8> = (0..4).flat_map(|it| view(&host, disk, it)).collect();
    assert_eq!((Some(found), guard(&host, disk)), (want, 0));
    assert_eq!(host.show(disk).dirty_bytes, 0);
    let again = commit(&mut host, disk);
    assert_eq!(host.answer(again), Some(Ok(())), "there is nothing to do");
}

/// Fails when: the plan of a commit that is given up stays, or its guard.
#[test]
fn a_commit_by_a_plan_that_fails_before_it_is_decided_is_given_up() {
    let full = |io: &Io| writes_journal(io).then_some(IoError::NoSpace);
    for (fails, why) in [
        (full as fn(&Io) -> Option<IoError>, Refusal::OriginFull),
        (
            |io| syncs_journal(io).then_some(IoError::Failed),
            Refusal::Io,
        ),
    ] {
        let (mut host, disk) = overlay();
        let want = host.read(disk, 0, 4);
        host.fail(fails);
        let order = commit(&mut host, disk);
        assert_eq!(host.answer(order), Some(Err(why)));
        assert_eq!(host.state(disk), (State::Clean, None));
        assert!((0..4).all(|it| view(&host, disk, it) == [0; 4096]));
        host.fail(fine);
        host.pass(2_000);
        assert_eq!((guard(&host, disk), host.read(disk, 0, 4)), (0, want));
        let order = commit(&mut host, disk);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
    let mut host = Host::new();
    let disk = attach(&mut host, Backwards::broken());
    host.fill(disk, 0, 3);
    let order = commit(&mut host, disk);
    assert_eq!(host.answer(order), Some(Err(Refusal::Contradicts)));
    assert_eq!(host.show(disk).dirty_bytes, 3 * 4096);
}

/// Fails when: a commit is given up under a request of its own.
#[test]
fn a_commit_that_fails_waits_for_the_tables_that_it_reads() {
    let (mut host, disk) = overlay();
    // Its table is another one.
    host.fill(disk, 5_000, 1);
    host.fail(|io| writes_now(io).then_some(IoError::NoSpace));
    host.hold(|io| io.op == Op::Read && io.offset == TABLE_AT + 4096);
    let order = commit(&mut host, disk);
    host.pass(120_000);
    assert_eq!(host.answer(order), None);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::OriginFull)));
    host.fail(fine);
    let order = commit(&mut host, disk);
    assert_eq!(host.answer(order), Some(Ok(())));
}

/// Fails when: a commit by a plan is forgotten where its volume goes, or begins anew behind it.
#[test]
fn a_volume_goes_in_the_middle_of_a_commit_by_a_plan() {
    for (holds, ends) in [
        (syncs_journal as fn(&Io) -> bool, Err(Refusal::Io)),
        (applies, Ok(())),
    ] {
        let (mut host, disk) = overlay();
        host.hold(holds);
        let order = commit(&mut host, disk);
        let gone = host.order(Command::Detach {
            volume: disk,
            discard_dirty: true,
        });
        host.pass(2_000);
        assert_eq!((host.answer(order), host.answer(gone)), (None, None));
        host.fail(|io| syncs_journal(io).then_some(IoError::Failed));
        host.hold(none);
        host.pass(2_000);
        assert_eq!(host.answer(order), Some(ends));
        assert_eq!((host.answer(gone), guard(&host, disk)), (Some(Ok(())), 0));
    }
}

/// Fails when: a guard that a kill has left keeps a commit from its begin, or is cleared before the
/// volume is ready and taken for the end of the commit.
#[test]
fn a_commit_begins_behind_the_guard_that_a_kill_has_left() {
    let (mut host, disk) = overlay();
    host.hold(syncs_journal);
    commit(&mut host, disk);
    assert_eq!(guard(&host, disk), 1);
    assert_eq!(host.ledger(disk).progress, Progress::Prepare);
    let mut host = host.killed();
    host.hold(|io| io.device == Device::Cache && io.op == Op::Sync);
    let disk = attach(&mut host, Backwards::default());
    let order = commit(&mut host, disk);
    assert_eq!(host.answer(order), None, "no checkpoint names it yet");
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(guard(&host, disk), 0);
}

/// Fails when: an overlay is lost with a commit that a kill cut short before it was decided, or is
/// laid over an image that another program has written since, now or at the start after the next.
#[test]
fn behind_a_commit_that_was_cut_short_the_ledger_tells_whose_the_image_is() {
    for (inode, misfits) in [(IMAGE.inode, false), (IMAGE.inode + 1, true)] {
        let mut host = Host::new();
        host.stat.image = Some(IMAGE);
        host.stat.named = Named::To(IMAGE);
        let disk = attach(&mut host, Backwards::default());
        host.fill(disk, 0, 3);
        host.hold(syncs_journal);
        commit(&mut host, disk);
        let ledger = host.ledger(disk);
        for _ in 0..2 {
            host = host.killed();
            host.stat.image = Some(READ);
            host.stat.named = Named::To(READ);
            let mut reader = spec(Policy::Ephemeral, "disk");
            (reader.size_bytes, reader.base_layer) = (BLOCKS * 4096, Some(Uuid([3; 16])));
            let image = Image { inode, ..IMAGE };
            let settled = Settled {
                ledger: Some(ledger.clone()),
                image: Some(READ),
                image_otherwise: Some(image),
                ..Settled::default()
            };
            let map: Box<dyn Map> = Box::new(Backwards::default());
            let attached = host.core.attach_mapped(disk, reader, settled, Some(map));
            attached.expect("it is served, or reset");
            host.send(Event::Tick);
            host.pass(1_000);
            let found = host.core.volume(disk).lies_on_another();
            assert_eq!(found, misfits);
            assert_eq!(host.show(disk).dirty_bytes, 3 * 4096);
        }
    }
}
