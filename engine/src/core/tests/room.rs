//! Room for copies in the log of a member: what is promised, and who waits for it.
//!
//! Always true: 540 blocks of a host's log may be dirty, so copies may take 270.

use super::replica::{PEER, Pair, replica_spec};
use super::{CAPACITY_BLOCKS, Host, spec};
use crate::event::{Command, Refusal};
use crate::snapshot::CopyRoom;
use crate::types::{Policy, Serial, VolumeId};
use crate::volume::credit::PATIENCE_NS;
use alloc::format;
use alloc::string::String;

const BLOCK: u64 = 4096;

fn room(host: &Host) -> CopyRoom {
    host.core.snapshot(host.now).copy_room
}

/// Another owner comes to a host, with a disk of this name.
fn keep(host: &mut Host, name: &str) -> (VolumeId, Option<Result<(), Refusal>>) {
    let volume = host.core.place(name);
    let mut spec = replica_spec(Serial(0));
    spec.name = String::from(name);
    let order = host.order(Command::KeepReplica { volume, spec });
    host.pass(100);
    (volume, host.answer(order))
}

/// A pair whose peer counts, and in which nothing is under way.
fn counted() -> Pair {
    let mut pair = Pair::new();
    let counted = pair.count();
    pair.carry_all();
    assert_eq!(pair.owner.answer(counted), Some(Ok(())));
    pair
}

/// Writes block after block until one waits. How many did not.
fn write_until_one_waits(pair: &mut Pair) -> u64 {
    for block in 0..CAPACITY_BLOCKS {
        if !pair.owner.write(pair.disk, block, 1) {
            return block;
        }
        pair.carry_all();
    }
    panic!("no write waits");
}

/// Writes until the peer has no room for what it lacks.
fn fill_up(pair: &mut Pair) {
    for block in 0..4 * CAPACITY_BLOCKS {
        pair.owner.write(pair.disk, block, 1);
        pair.owner.pass(1_000);
        pair.carry_all();
        if pair.owner.show(pair.disk).peers[0].no_room {
            return;
        }
    }
    panic!("there is room without end");
}

#[test]
fn an_owner_whose_copy_has_no_room_waits_and_goes_on_when_it_has_destaged() {
    let mut pair = counted();
    pair.owner.hold(super::writes_origin);
    let written = write_until_one_waits(&mut pair);
    assert!(written * BLOCK <= room(&pair.member).max_bytes);
    assert!(room(&pair.member).taken_bytes <= room(&pair.member).max_bytes);
    let shown = pair.owner.show(pair.disk);
    assert_eq!(shown.waiting_requests, 1);
    // The peer has all that was sent to it, so that it is not late with anything.
    for _ in 0..5 {
        pair.owner.pass(100);
        pair.carry_all();
    }
    let shown = pair.owner.show(pair.disk);
    assert_eq!(shown.peers[0].durable, shown.peers[0].sent);
    pair.owner.hold(super::none);
    for _ in 0..20 {
        pair.owner.pass(100);
        pair.carry_all();
    }
    let shown = pair.owner.show(pair.disk);
    assert_eq!((shown.waiting_requests, shown.peers[0].no_room), (0, false));
    assert!(shown.destaged_serial > Serial(0));
    pair.take_over();
    pair.same(written, 1);
}

/// A guest of the member writes as much as it can. It leaves what was promised to the copy.
pub fn guest_beside_a_promise() -> bool {
    let mut pair = Pair::new();
    let neighbour = pair.member.attach(spec(Policy::WriteBack, "neighbour"));
    pair.member.hold(super::writes_origin);
    let promised = room(&pair.member).taken_bytes / BLOCK;
    assert!(promised > 0 && promised <= CAPACITY_BLOCKS / 2);
    let mut blocks = 0;
    while pair.member.write(neighbour, blocks, 1) {
        blocks += 1;
    }
    assert!(
        blocks >= CAPACITY_BLOCKS / 2,
        "its half is its own: {blocks}"
    );
    // What was promised comes all the same.
    pair.owner.fill(pair.disk, 0, 8);
    assert!(pair.carry_all() > 0);
    assert_eq!(pair.have(), pair.owner.show(pair.disk).acked_serial);
    blocks + promised <= CAPACITY_BLOCKS
}

#[test]
fn a_batch_beyond_the_credit_is_refused() {
    let mut pair = Pair::new();
    let volume = pair.replica;
    let promise = pair.member.core.volume(volume).room_promise_mut();
    promise.end();
    pair.member.core.recount(volume);
    pair.owner.fill(pair.disk, 0, 1);
    assert_eq!(pair.carry(), Some(Some(Err(Refusal::NoRoom))));
}

#[test]
fn what_dead_owners_have_left_keeps_its_room_and_new_copies_are_refused() {
    let mut pair = counted();
    pair.owner.hold(super::writes_origin);
    write_until_one_waits(&mut pair);
    let (volume, term) = (pair.replica, 4);
    let frozen = pair.member.order(Command::Freeze { volume, term });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    let has = pair.member.show(volume).dirty_bytes;
    assert_eq!(
        keep(&mut pair.member, "disk@9").1,
        Some(Err(Refusal::NoRoom))
    );
    assert_eq!(pair.member.show(volume).dirty_bytes, has);
    let neighbour = pair.member.attach(spec(Policy::WriteBack, "neighbour"));
    for block in 0..CAPACITY_BLOCKS / 2 {
        assert!(pair.member.write(neighbour, block, 1), "its half is free");
    }
    // It is forgotten, and there is room.
    let discard_dirty = true;
    let order = pair.member.order(Command::Detach {
        volume,
        discard_dirty,
    });
    pair.member.pass(500);
    assert_eq!(pair.member.answer(order), Some(Ok(())));
    let order = pair.member.destage(neighbour);
    pair.member.pass(2_000);
    assert_eq!(pair.member.answer(order), Some(Ok(())));
    assert_eq!(keep(&mut pair.member, "disk@9").1, Some(Ok(())));
}

#[test]
fn an_owner_that_asks_in_vain_for_long_is_told_that_there_is_no_room() {
    let mut pair = counted();
    pair.owner.hold(super::writes_origin);
    fill_up(&mut pair);
    let told = |pair: &Pair| {
        let shown = pair.member.show(pair.replica);
        shown.replica.expect("it is one").no_room
    };
    let rounds = PATIENCE_NS / 100_000_000;
    for round in 0..rounds + 5 {
        assert!(round > rounds / 2 || !told(&pair), "not at once");
        pair.owner.write(pair.disk, round, 1);
        pair.owner.pass(100);
        pair.member.pass(100);
        pair.carry_all();
    }
    assert!(told(&pair) && pair.owner.show(pair.disk).peers[0].no_room);
    // The owner comes anew.
    pair.stop(true);
    pair.open();
    assert!(!told(&pair));
}

#[test]
fn one_copy_leaves_the_others_a_part() {
    let mut pair = counted();
    let (other, kept) = keep(&mut pair.member, "disk@9");
    assert_eq!(kept, Some(Ok(())));
    pair.owner.hold(super::writes_origin);
    write_until_one_waits(&mut pair);
    let credit = pair.member.core.credit(other).expect("it is a copy");
    let window = pair.member.core.volume(other).room_promise().left();
    assert!(credit.most.blocks >= window.blocks && window.blocks > 0);
    let all = room(&pair.member).max_bytes / BLOCK;
    assert!(credit.most.blocks >= all / 4, "{credit:?}");
    assert_eq!(pair.owner.show(pair.disk).peers[0].peer, PEER);
}

#[test]
fn what_is_fetched_to_be_served_here_takes_room_as_a_guest() {
    let mut host = Host::new();
    for at in 0..9 {
        let (volume, kept) = keep(&mut host, &format!("disk@{at}"));
        if kept == Some(Err(Refusal::NoRoom)) {
            let mut spec = replica_spec(Serial(0));
            (spec.name, spec.fetched) = (String::from("own"), true);
            let order = host.order(Command::KeepReplica { volume, spec });
            host.pass(100);
            assert_eq!(host.answer(order), Some(Ok(())));
            assert!(!host.core.volume(volume).is_copy());
            return;
        }
    }
    panic!("copies have room without end");
}

#[test]
fn a_frozen_replica_lets_go_of_what_the_origin_has() {
    let mut pair = Pair::new();
    let (disk, volume) = (pair.disk, pair.replica);
    pair.owner.write_bytes(disk, 3, 0xa1);
    pair.carry_all();
    pair.stop(false);
    pair.owner.write_bytes(disk, 4, 0xa2);
    pair.open();
    pair.carry_all();
    let frozen = pair.member.order(Command::Freeze { volume, term: 4 });
    pair.member.pass(100);
    assert_eq!(pair.member.answer(frozen), Some(Ok(())));
    for (upto, told, left) in [
        (3, Err(Refusal::OutOfRange), 2),
        (1, Ok(()), 1),
        (1, Ok(()), 1),
        (2, Ok(()), 0),
    ] {
        let upto = Serial(upto);
        let order = pair.member.order(Command::TellDestaged { volume, upto });
        assert_eq!(pair.member.answer(order), Some(told));
        assert_eq!(pair.member.core.volume(volume).epochs.len(), left);
        assert_eq!(pair.have(), Serial(2));
    }
    let (volume, upto) = (disk, Serial(1));
    let order = pair.owner.order(Command::TellDestaged { volume, upto });
    assert_eq!(pair.owner.answer(order), Some(Err(Refusal::Gone)));
}
