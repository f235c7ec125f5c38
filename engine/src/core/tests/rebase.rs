//! Images that move to another file below them, and disks whose end goes.

use super::planned::{
    BLOCKS, Backwards, DATA_AT, attach_known, end_destage, guard, view, with_image,
};
use super::quiesce::IMAGE;
use super::{Host, none};
use crate::event::{Command, Device, Event, Io, IoError, Op, Purpose, Refusal};
use crate::format::ledger::Progress;
use crate::image::{BELOW_ANY, Image};
use crate::origin::{Move, Onto};
use crate::outbox::Cx;
use crate::settle::{Otherwise, settle_for};
use crate::types::{BLOCK_SECTORS, RequestId, Span, VolumeId};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The same on another file.
const MOVED: Image = Image { below: 8, ..IMAGE };

/// Blocks 6 and 7 become the image's own, and it may stand on nothing then.
fn order(host: &mut Host, volume: VolumeId, moves: bool) -> RequestId {
    let own = vec![Span::new(6 * BLOCK_SECTORS, 2 * BLOCK_SECTORS)];
    let onto = moves.then_some(Onto::Nothing);
    let order = Move {
        own,
        onto,
        changes: false,
    };
    host.order(Command::Rebase { volume, order })
}

fn applies(io: &Io) -> bool {
    io.purpose == Purpose::JournalApply
}

fn clean() -> (Host, VolumeId) {
    let mut host = Host::new();
    assert!(attach_known(&mut host, IMAGE));
    let disk = host.core.place("disk");
    host.fill(disk, 0, 2);
    end_destage(&mut host, disk);
    (host, disk)
}

fn exchange(host: &mut Host, volume: VolumeId) {
    host.stat.image = Some(MOVED);
    let mut cx = Cx {
        now: host.now,
        memory: &mut host.memory,
        out: &mut host.out,
    };
    let map = Box::new(Backwards::default());
    host.core.exchange(&mut cx, volume, map, MOVED);
    host.send(Event::Tick);
}

/// Fails when: a guest is served while its image moves, its ledger counts on the log or on the file
/// below meanwhile, or does not afterwards.
#[test]
fn an_image_that_moves_serves_nobody_until_its_ledger_is_claimed_again() {
    let (mut host, disk) = clean();
    let before = host.read(disk, 0, 2);
    host.hold(applies);
    let moves = order(&mut host, disk, true);
    host.pass(1_000);
    assert_eq!((host.answer(moves), guard(&host, disk)), (None, 1));
    let ledger = host.ledger(disk);
    assert!(!ledger.dirty && ledger.image.below == BELOW_ANY);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(moves), Some(Ok(())));
    assert_eq!(
        (guard(&host, disk), host.ledger(disk).progress),
        (0, Progress::Idle)
    );

    let write = host.write_sectors(disk, 64, 8);
    let flush = host.flush(disk);
    host.pass(1_000);
    assert_eq!(host.answer(write), None, "it waits");
    let (volume, size_bytes) = (disk, BLOCKS * 2048);
    let resize = host.order(Command::Resize { volume, size_bytes });
    let quiesce = host.order(Command::Quiesce { volume });
    assert_eq!(host.answer(resize), Some(Err(Refusal::Gone)));
    assert_eq!(host.answer(quiesce), Some(Err(Refusal::Busy)));
    let empty = host.order(Command::Empty { volume: disk });
    assert_eq!(host.answer(empty), Some(Ok(())));
    exchange(&mut host, disk);
    assert!(!host.ledger(disk).dirty);
    assert_eq!(host.answer(write), None);
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(end), Some(Ok(())));
    let ledger = host.ledger(disk);
    assert!(ledger.dirty && ledger.image.below == 8);
    assert_eq!(host.answer(write), Some(Ok(())));
    assert_eq!(host.answer(flush), Some(Ok(())));
    assert_eq!(host.read(disk, 0, 2), before);
    end_destage(&mut host, disk);
    assert_ne!(view(&host, disk, 8), vec![0; 4096]);
}

/// Fails when: a move waits for the guard of an image, and the guard for the move.
#[test]
fn a_move_that_is_ordered_before_a_guard_could_be_looked_at_comes_to_its_end() {
    let mut host = Host::new();
    host.fail(|io| applies(io).then_some(IoError::Failed));
    assert!(attach_known(&mut host, IMAGE));
    let disk = host.core.place("disk");
    host.pass(1_000);
    let moves = order(&mut host, disk, true);
    host.pass(1_000);
    assert_eq!(host.answer(moves), None);
    host.fail(super::fine);
    host.pass(120_000);
    assert_eq!(host.answer(moves), Some(Ok(())));
}

/// Fails when: the host gives an exchange up and the volume does not go on as before, a start
/// after a kill refuses what is dirty because the header names the other file, or the disk becomes
/// larger meanwhile.
#[test]
fn a_move_that_the_host_does_not_end_leaves_the_volume_as_it_was() {
    let (mut host, disk) = clean();
    let moves = order(&mut host, disk, true);
    host.pass(1_000);
    assert_eq!(host.answer(moves), Some(Ok(())));
    let end = host.order(Command::EndExchange { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(end), Some(Ok(())));
    assert!(host.ledger(disk).dirty);
    // The other file may have something behind the end.
    let (volume, size_bytes) = (disk, (BLOCKS + 1) * 4096);
    let larger = host.order(Command::Resize { volume, size_bytes });
    assert_eq!(host.answer(larger), Some(Err(Refusal::Busy)));
    host.fill(disk, 9, 1);
    end_destage(&mut host, disk);
    // What is open is seen at each destage, and the header names another file.
    assert_eq!(host.ledger(disk).image.below, BELOW_ANY);
    host.fill(disk, 3, 1);
    let mut host = host.killed();
    assert!(attach_known(&mut host, MOVED));
    let disk = host.core.place("disk");
    end_destage(&mut host, disk);
    assert_eq!(host.ledger(disk).image.below, MOVED.below);
}

/// Fails when: a plan that fails is tried for ever, or its volume is not served again.
#[test]
fn a_move_whose_journal_cannot_be_written_is_refused_and_guests_go_on() {
    for moves in [true, false] {
        let (mut host, disk) = clean();
        host.fail(|io| {
            let journal = matches!(io.device, Device::Journal(_)) && io.op == Op::Write;
            journal.then_some(IoError::NoSpace)
        });
        let refused = order(&mut host, disk, moves);
        host.pass(120_000);
        assert_eq!(host.answer(refused), Some(Err(Refusal::OriginFull)));
        host.fail(super::fine);
        host.pass(1_000);
        let ledger = host.ledger(disk);
        assert!(ledger.dirty && ledger.image.below == IMAGE.below);
        host.fill(disk, 9, 1);
        end_destage(&mut host, disk);
        let again = order(&mut host, disk, false);
        host.pass(1_000);
        assert_eq!(host.answer(again), Some(Ok(())), "moves: {moves}");
    }
}

/// Fails when: parts become the image's own beside what is dirty, or keep a volume from serving.
#[test]
fn parts_become_the_images_own_while_it_is_clean_and_served() {
    let (mut host, disk) = clean();
    host.fill(disk, 0, 1);
    let dirty = order(&mut host, disk, false);
    assert_eq!(host.answer(dirty), Some(Err(Refusal::Dirty)));
    end_destage(&mut host, disk);
    host.hold(applies);
    let own = order(&mut host, disk, false);
    host.pass(1_000);
    host.fill(disk, 3, 1);
    assert!(host.read(disk, 3, 1).is_some(), "it is served");
    assert_eq!(host.answer(own), None);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(own), Some(Ok(())));
    end_destage(&mut host, disk);
    let outside = Move {
        own: vec![Span::new(BLOCKS * BLOCK_SECTORS, 8)],
        onto: None,
        changes: false,
    };
    let volume = disk;
    let outside = host.order(Command::Rebase {
        volume,
        order: outside,
    });
    assert_eq!(host.answer(outside), Some(Err(Refusal::OutOfRange)));
}

/// Fails when: an order waits for an image that does not fit, for which its volume is held; or the
/// volume is not served when it fits again.
#[test]
fn an_order_on_an_image_that_does_not_fit_any_more_is_refused() {
    for moves in [true, false] {
        let (mut host, disk) = clean();
        let syncs = |io: &Io| io.op == Op::Sync && matches!(io.device, Device::Journal(_));
        host.hold(syncs);
        let refused = order(&mut host, disk, moves);
        host.pass(1_000);
        assert_eq!(host.answer(refused), None);
        host.stat.image = Some(MOVED);
        host.hold(none);
        host.pass(2_000);
        assert_eq!(host.answer(refused), Some(Err(Refusal::Held)), "{moves}");
        host.stat.image = Some(IMAGE);
        let look = host.order(Command::Look { volume: disk });
        host.pass(1_000);
        assert_eq!(host.answer(look), Some(Ok(())));
        assert!(host.ledger(disk).dirty);
        host.fill(disk, 9, 1);
        end_destage(&mut host, disk);
    }
}

/// Fails when: a stop lets go of the ledger of a volume whose plan has a step of it before it.
#[test]
fn a_stop_in_the_middle_of_a_plan_leaves_its_ledger_to_the_next_start() {
    let looks: fn(&Io) -> bool = |io| io.op == Op::Stat;
    let syncs: fn(&Io) -> bool = |io| io.op == Op::Sync && matches!(io.device, Device::Journal(_));
    let claims: fn(&Io) -> bool = |io| io.op == Op::Write && matches!(io.device, Device::Ledger(_));
    let both: fn(&Io) -> bool = |io| {
        let ledger = matches!(io.device, Device::Ledger(_)) && io.op == Op::Write;
        let journal = matches!(io.device, Device::Journal(_)) && io.op == Op::Sync;
        ledger || journal || io.op == Op::Stat
    };
    for held in [looks, syncs] {
        let (mut host, disk) = clean();
        host.hold(held);
        order(&mut host, disk, false);
        host.pass(1_000);
        host.hold(both);
        host.order(Command::Park);
        host.pass(1_000);
        // What the plan waited for comes while the ledger is on its way.
        host.hold(claims);
        host.pass(1_000);
        host.hold(none);
        host.pass(10_000);
        let mut host = host.killed();
        assert!(attach_known(&mut host, IMAGE));
        let disk = host.core.place("disk");
        host.fill(disk, 9, 1);
        end_destage(&mut host, disk);
    }
}

/// A kill while the journal of a move is applied; the next start finds the image on either file.
pub(super) fn start_behind_a_move() -> bool {
    let (mut host, disk) = clean();
    host.hold(applies);
    order(&mut host, disk, true);
    host.pass(1_000);
    assert_eq!(guard(&host, disk), 1);
    let mut host = host.killed();
    host.hold(none);
    // Its header has to be whole before it is opened.
    let cache = Some(host.core.superblock.cache);
    let settled = settle_for(&mut host.disks, disk, Otherwise::Refuse, cache);
    let whole = settled.is_ok_and(|it| !it.journal_left);
    whole && attach_known(&mut host, MOVED) && host.show(disk).misfit.is_none()
}

/// Fails when: a disk becomes smaller in its header before its end is given back, or while it is
/// dirty.
#[test]
fn the_end_of_a_disk_goes_before_its_size() {
    let (mut host, disk) = with_image();
    host.fill(disk, BLOCKS - 2, 2);
    let volume = disk;
    let size_bytes = BLOCKS * 2048;
    let dirty = host.order(Command::Resize { volume, size_bytes });
    assert_eq!(host.answer(dirty), Some(Err(Refusal::Dirty)));
    end_destage(&mut host, disk);
    host.hold(applies);
    let order = host.order(Command::Resize { volume, size_bytes });
    host.pass(1_000);
    assert_eq!((host.answer(order), guard(&host, disk)), (None, 1));
    let said = |host: &Host| -> Vec<u8> { host.disks.0[&Device::Origin(disk)][8..16].to_vec() };
    assert_eq!(said(&host), [0; 8]);
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(said(&host), size_bytes.to_be_bytes());
    assert_eq!(host.show(disk).size_bytes, size_bytes);
    assert_eq!(view(&host, disk, BLOCKS - 1), vec![0; 4096]);
    assert!(host.disks.0[&Device::Origin(disk)].len() as u64 >= DATA_AT);
    host.fill(disk, 0, 1);
    end_destage(&mut host, disk);
}

/// Fails when: a header that could not be written is not written again where nothing else is to be
/// done.
#[test]
fn the_header_of_a_smaller_disk_is_written_again_on_an_idle_host() {
    let (mut host, disk) = clean();
    host.pass(60_000);
    host.fail(|io| {
        let header = io.purpose == Purpose::Ledger && io.op == Op::Write;
        (header && matches!(io.device, Device::Origin(_))).then_some(IoError::Failed)
    });
    let (volume, size_bytes) = (disk, BLOCKS * 2048);
    let order = host.order(Command::Resize { volume, size_bytes });
    host.pass(300);
    assert_eq!(host.answer(order), None);
    host.fail(super::fine);
    host.pass(60_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.show(disk).size_bytes, size_bytes);
}

/// Fails when: a plan that is decided and fails is not tried again where nothing else is to be
/// done.
#[test]
fn parts_become_the_images_own_on_an_idle_host_when_its_storage_is_good_again() {
    let (mut host, disk) = clean();
    host.pass(60_000);
    host.fail(|io| (applies(io) && io.op == Op::Sync).then_some(IoError::Failed));
    let own = order(&mut host, disk, false);
    host.pass(300);
    assert_eq!(host.answer(own), None);
    host.fail(super::fine);
    host.pass(120_000);
    assert_eq!(host.answer(own), Some(Ok(())));
}
