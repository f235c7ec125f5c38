//! Epochs that peers have ended become one.
//!
//! Always true: a host with peers ends an epoch for each of them that comes back.

use super::super::checkpoint::Waiter;
use super::super::evacuate::epoch_of;
use super::replica::Pair;
use super::{Host, none, spec};
use crate::event::{Command, Credit, Io, Purpose};
use crate::types::{PeerId, Policy, Serial, VolumeId};

const ROUNDS: u8 = 9;
const BLOCKS: u64 = 20;

fn epochs(host: &mut Host, id: VolumeId) -> usize {
    host.core.volume(id).epochs.len()
}

fn moves(host: &mut Host, id: VolumeId) -> bool {
    let volume = host.core.volume(id);
    volume.epochs.iter().any(|epoch| epoch.joins)
}

fn writes_checkpoint(io: &Io) -> bool {
    io.purpose == Purpose::Checkpoint
}

/// The peer goes, and comes back when every other one of these blocks was written again.
fn round(pair: &mut Pair, blocks: u64, byte: u8) {
    pair.stop(false);
    for block in 0..blocks {
        pair.owner.write_bytes(pair.disk, 2 * block, byte);
    }
    pair.open();
    pair.carry_all();
}

fn settle(pair: &mut Pair) {
    for host in [&mut pair.owner, &mut pair.member] {
        host.pass(500);
    }
    pair.carry_all();
}

/// What three rounds have left, before a checkpoint says that it is to be one.
fn three_rounds(blocks: u64) -> Pair {
    let mut pair = Pair::new();
    pair.owner.hold(writes_checkpoint);
    for byte in 1..=3 {
        round(&mut pair, blocks, byte);
    }
    pair.stop(false);
    pair.owner.pass(100);
    assert!(moves(&mut pair.owner, pair.disk), "it is named");
    pair
}

#[test]
fn what_is_written_again_and_again_takes_little_more_than_once_its_room() {
    let mut pair = Pair::new();
    for byte in 0..ROUNDS {
        round(&mut pair, BLOCKS, byte);
        settle(&mut pair);
    }
    let (disk, replica) = (pair.disk, pair.replica);
    for (host, id) in [(&mut pair.owner, disk), (&mut pair.member, replica)] {
        assert!(epochs(host, id) <= 4, "{}", epochs(host, id));
        let charge = host.core.volume(id).charge();
        assert!(charge < u64::from(ROUNDS) * BLOCKS / 2, "{charge}");
    }
    pair.take_over();
    pair.same(0, 2 * BLOCKS);
}

/// Without it what was replaced, and is gone, would be missing in an epoch that a destage takes.
#[test]
fn what_has_become_one_is_one_for_a_recovery() {
    let mut pair = three_rounds(BLOCKS);
    let disk = pair.disk;
    assert_eq!(epochs(&mut pair.owner, disk), 3, "nothing moves yet");
    pair.owner.hold(none);
    pair.owner.pass(500);
    assert_eq!(epochs(&mut pair.owner, disk), 1);
    let before = pair.owner.read(disk, 0, 2 * BLOCKS);
    pair.owner = pair.owner.without_power();
    assert_eq!(epochs(&mut pair.owner, disk), 1, "the checkpoint says so");
    pair.owner.attach_again(spec(Policy::WriteBack, "disk"));
    pair.owner.pass(500);
    assert_eq!(pair.owner.read(disk, 0, 2 * BLOCKS), before);
}

#[test]
fn while_they_move_all_is_there_and_who_wants_one_of_them_waits() {
    let blocks = 100;
    let mut pair = three_rounds(blocks);
    let disk = pair.disk;
    let before = pair.owner.read(disk, 0, 2 * blocks);
    moves_some(&mut pair.owner, disk);
    let mut steps = 0;
    let order = pair.owner.destage(disk);
    while moves(&mut pair.owner, disk) {
        assert!(!pair.owner.core.volume(disk).is_destaging());
        assert_eq!(pair.owner.read(disk, 0, 2 * blocks), before);
        steps += 1;
    }
    assert!(steps > 0, "in small steps");
    pair.owner.hold(none);
    pair.owner.pass(1_000);
    assert_eq!(pair.owner.answer(order), Some(Ok(())));
    assert_eq!(pair.owner.read(disk, 0, 2 * blocks), before);
}

/// As if the checkpoint were there, and some have moved.
fn moves_some(host: &mut Host, id: VolumeId) {
    host.core.checkpoint.forget(Waiter::Join(id));
    host.core.replicas.joining.push_back(id);
    host.core.move_joins(30);
    assert!(moves(host, id), "some have not moved");
}

#[test]
fn a_peer_gets_none_that_move_and_an_evacuation_finds_what_has_moved() {
    let mut pair = three_rounds(100);
    let (disk, peer) = (pair.disk, PeerId(9));
    moves_some(&mut pair.owner, disk);
    let volume = pair.owner.core.volume(disk);
    for (serial, at) in [(volume.epochs[1].last_serial, 0), (volume.acked(), 2)] {
        assert_eq!(
            epoch_of(volume, serial).start,
            0,
            "from the oldest that may have it"
        );
        assert!(epoch_of(volume, serial).end > at);
    }
    let start = Command::StartPeer {
        volume: disk,
        peer,
        have: Serial(0),
        credit: Credit::ALL,
    };
    let started = pair.owner.order(start);
    assert_eq!(pair.owner.answer(started), Some(Ok(())));
    while moves(&mut pair.owner, disk) {
        assert!(pair.owner.sent.is_empty(), "not whole");
        pair.owner.read(disk, 0, 1);
    }
    pair.owner.hold(none);
    pair.owner.pass(500);
    let ends = pair.owner.sent.iter().map(|sent| sent.batch.upto);
    let acked = pair.owner.show(disk).acked_serial;
    assert!(ends.eq([acked]), "one delta, and the newest of each block");
}

#[test]
fn what_the_origin_has_goes_when_it_has_all_that_becomes_one() {
    let mut pair = three_rounds(100);
    let disk = pair.disk;
    moves_some(&mut pair.owner, disk);
    let volume = pair.owner.core.volume(disk);
    let [first, .., last] = &volume.epochs.make_contiguous()[..] else {
        panic!("three epochs");
    };
    let (first, last) = (first.last_serial, last.last_serial);
    assert!(volume.replica_destaged(first).is_empty());
    assert_eq!(volume.replica_destaged(last).len(), 3);
}

#[test]
fn a_destage_that_is_wanted_first_takes_them_apart() {
    let mut pair = three_rounds(BLOCKS);
    let order = pair.owner.destage(pair.disk);
    pair.owner.pass(1_000);
    assert_eq!(pair.owner.answer(order), Some(Ok(())));
    assert!(!moves(&mut pair.owner, pair.disk));
}

#[test]
fn a_replica_lets_go_of_what_moves_and_is_settled_when_it_has_moved() {
    let mut pair = Pair::new();
    for byte in 1..=3 {
        round(&mut pair, 1, byte);
    }
    pair.stop(false);
    pair.owner.write_bytes(pair.disk, 2, 4);
    pair.open();
    pair.member.hold(writes_checkpoint);
    pair.carry_all();
    pair.member.pass(100);
    assert!(moves(&mut pair.member, pair.replica), "it is named");
    let order = pair.owner.destage(pair.disk);
    pair.owner.pass(1_000);
    assert_eq!(pair.owner.answer(order), Some(Ok(())));
    pair.carry_all();
    assert!(!pair.member.core.volume(pair.replica).is_dirty());
    pair.member.hold(none);
    pair.member.pass(500);
    for byte in 1..=3 {
        round(&mut pair, 100, byte);
    }
    settle(&mut pair);
    pair.take_over();
    pair.same(0, 200);
}
