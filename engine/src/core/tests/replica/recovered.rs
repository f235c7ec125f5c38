//! A volume that comes back after a crash, with a peer that counts.
//!
//! Deliberately absent: the two hosts, which [`super::Pair`] is.

use super::*;

/// A volume comes back with what its host has recovered, and with a peer that counts.
fn come_back_with_a_peer() -> Pair {
    let mut pair = Pair::new();
    pair.owner.fill(pair.disk, 0, 12);
    pair.owner.flush(pair.disk);
    pair.owner.pass(50);
    pair.owner.sent.clear();
    pair.owner.lose_power();
    let mut due = spec(Policy::WriteBack, "disk");
    due.tuning.destage_after_ms = Some(1);
    let id = pair.owner.core.place(&due.name);
    assert_eq!(id, pair.disk);
    let settled = crate::settle::settle(&mut pair.owner.disks, id);
    let attached = pair.owner.core.attach(id, due, settled.expect("whole"));
    attached.expect("it fits");
    pair.owner.asked.clear();
    pair
}

#[test]
fn a_peer_that_counts_from_the_first_moment_on_has_what_was_recovered_before_all_else() {
    let mut pair = come_back_with_a_peer();
    pair.stop(true);
    let (early, ordered) = (pair.owner.flush(pair.disk), pair.owner.destage(pair.disk));
    pair.owner.pass(10_000);
    assert!(pair.owner.show(pair.disk).ready && pair.owner.show(pair.disk).peers[0].counts);
    assert_eq!(
        pair.owner.answer(early),
        None,
        "a flush of what was recovered"
    );
    assert_eq!(pair.owner.answer(ordered), None);
    pair.owner.write_bytes(pair.disk, 20, 0xb1);
    let flush = pair.owner.flush(pair.disk);
    pair.open();
    pair.owner.pass(1_000);
    assert_eq!(
        pair.owner.answer(flush),
        None,
        "it was started, and has nothing"
    );
    assert_eq!(pair.owner.count(writes_origin), 0);
    // All but the last batch.
    while pair.owner.sent.len() > 1 {
        assert_eq!(pair.carry(), Some(Some(Ok(()))));
    }
    assert_eq!(pair.owner.answer(flush), None);
    pair.carry_all();
    pair.owner.pass(1_000);
    for request in [early, ordered, flush] {
        assert_eq!(pair.owner.answer(request), Some(Ok(())));
    }
    assert!(pair.owner.count(writes_origin) > 0);
    pair.carry_all();
    assert_eq!(pair.have(), pair.owner.show(pair.disk).acked_serial);
}

#[test]
fn a_volume_that_comes_back_without_its_peer_destages_by_itself() {
    let mut pair = come_back_with_a_peer();
    pair.owner.send(Event::Tick);
    pair.owner.pass(10_000);
    assert!(
        pair.owner.count(writes_origin) > 0,
        "else the test before proves nothing"
    );
}

#[test]
fn a_peer_that_waited_for_memory_goes_on_when_there_is_some() {
    let mut pair = come_back_with_a_peer();
    pair.stop(true);
    pair.owner.pass(1_000);
    let scratch = &mut pair.owner.core.scratch;
    let taken: Vec<u32> = core::iter::from_fn(|| scratch.take_spare_piece()).collect();
    pair.open();
    pair.owner.pass(50);
    assert!(
        pair.owner.sent.is_empty(),
        "its bytes are on the device only"
    );
    for piece in taken {
        pair.owner.core.scratch.free_piece(piece);
    }
    pair.owner.send(Event::Tick);
    assert!(pair.carry_all() > 0);
    assert_eq!(pair.have(), Serial(12));
}
