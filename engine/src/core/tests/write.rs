//! Which writes are taken, which wait, and what a stage charges and counts.

use super::{CAPACITY_BLOCKS, Host, fine, none, spec, writes_journal};
use crate::engine::{OpenError, Settled};
use crate::event::{Command, Device, Event, Io, IoError, Op, Purpose, Refusal};
use crate::format::record::MAX_SECTOR;
use crate::snapshot::State;
use crate::types::{BLOCK_BYTES, ConnectionId, Policy, SECTOR_BYTES, Serial, VolumeId};

fn writes_log(io: &Io) -> bool {
    io.purpose == Purpose::Log
}

#[test]
fn a_stage_counts_what_it_takes_of_the_log_and_what_it_replaces() {
    let (mut host, disk) = Host::write_back();
    host.write_sectors(disk, 0, 8);
    // Two blocks of the log for 9 sectors, 4 of which were there.
    host.write_sectors(disk, 4, 9);
    host.zero(disk, 100, 5);
    let shown = host.show(disk);
    // Zeroes have no bytes, however many they are.
    assert_eq!(shown.counters.ssd_write_bytes, 3 * BLOCK_BYTES);
    assert_eq!(shown.counters.writes.requests, 2);
    assert_eq!(shown.counters.writes.bytes, 17 * SECTOR_BYTES);
    assert_eq!(shown.counters.writes.elided_bytes, 4 * SECTOR_BYTES);
    assert_eq!(shown.counters.discards, 1);
    assert_eq!(shown.dirty_bytes, (13 + 40) * SECTOR_BYTES);
    assert_eq!(shown.dirty_writes, 3);
    assert_eq!(shown.dirty_extents, 3);
    assert_eq!(host.core.extents.count(), 3);
    assert_eq!(host.core.volume(disk).charge(), 1 + 2 + 1);
    assert_eq!(host.core.log.gauge().live, 1 + 2 + 1);
    // All of one extent is replaced: one less, and one more.
    host.write_sectors(disk, 4, 9);
    assert_eq!(host.core.extents.count(), 3);
    assert_eq!(
        host.show(disk).counters.writes.elided_bytes,
        13 * SECTOR_BYTES
    );
    host.destage(disk);
    assert_eq!(host.core.extents.count(), 0);
    assert_eq!(host.core.log.gauge().live, 0);
}

#[test]
fn a_volume_takes_as_much_as_its_limit_and_no_block_more() {
    let mut limited = spec(Policy::WriteBack, "disk");
    limited.tuning.dirty_limit_bytes = 20 * BLOCK_BYTES;
    let (mut host, disk) = Host::of(limited);
    host.hold(super::writes_journal);
    host.fill(disk, 0, 18);
    assert!(host.write(disk, 18, 2), "exactly as much");
    assert!(!host.write(disk, 30, 1));
    assert_eq!(host.show(disk).waiting_requests, 1);
    host.hold(none);
    host.pass(2_000);
    assert_eq!(host.show(disk).waiting_requests, 0);
}

#[test]
fn a_write_beyond_the_limit_is_taken_by_a_volume_that_is_clean() {
    let mut limited = spec(Policy::WriteBack, "disk");
    limited.tuning.dirty_limit_bytes = 20 * BLOCK_BYTES;
    let (mut host, disk) = Host::of(limited);
    assert!(host.write(disk, 0, 30));
}

#[test]
fn an_overlay_has_no_limit_of_what_is_dirty() {
    let mut overlay = spec(Policy::Ephemeral, "disk");
    overlay.tuning.dirty_limit_bytes = 20 * BLOCK_BYTES;
    let (mut host, disk) = Host::of(overlay);
    host.fill(disk, 0, 21);
}

#[test]
fn an_overlay_spills_from_the_first_block_beyond_its_share_of_ram() {
    let mut overlay = spec(Policy::Ephemeral, "disk");
    overlay.tuning.overlay_ram_bytes = 10 * BLOCK_BYTES;
    let (mut host, disk) = Host::of(overlay);
    let held = |host: &Host| {
        let overlay = host.show(disk).overlay.expect("it is one");
        (overlay.ram_blocks, overlay.ssd_blocks)
    };
    host.fill(disk, 0, 9);
    assert!(host.write(disk, 9, 1), "exactly as much");
    assert_eq!(held(&host), (10, 0));
    host.fill(disk, 10, 1);
    assert_eq!(held(&host), (10, 1));
}

/// Larger than a quarter of the log: an eighth of it first, with a serial of its own over all its
/// chunks, and then the rest.
#[test]
fn a_write_that_no_log_could_take_whole_is_taken_in_parts() {
    let (mut host, disk) = Host::write_back();
    let part = CAPACITY_BLOCKS / 8 - 1;
    assert!(host.write(disk, 0, 2 * part + 8));
    let shown = host.show(disk);
    assert_eq!((shown.acked_serial, shown.dirty_writes), (Serial(2), 2));
}

#[test]
fn requests_of_a_lost_connection_that_own_nothing_are_given_back() {
    let mut limited = spec(Policy::WriteBack, "disk");
    limited.tuning.dirty_limit_bytes = 20 * BLOCK_BYTES;
    let (mut host, disk) = Host::of(limited);
    host.hold(super::writes_journal);
    host.fill(disk, 0, 20);
    let waiting = host.write_sectors(disk, 800, 8);
    assert_eq!(host.answer(waiting), None);
    let connection = ConnectionId(1);
    host.send(Event::Disconnect { connection });
    assert_eq!(host.answer(waiting), Some(Err(Refusal::Gone)));
    assert_eq!(host.show(disk).waiting_requests, 0);
}

#[test]
fn a_write_that_has_begun_ends_though_its_connection_is_lost() {
    let (mut host, disk) = Host::write_back();
    host.hold(writes_log);
    let begun = host.write_sectors(disk, 0, 100 * 8);
    let behind = host.write_sectors(disk, 8000, 8);
    assert!(host.core.volume(disk).left_in_part() > 0, "slots are short");
    let connection = ConnectionId(1);
    host.send(Event::Disconnect { connection });
    assert_eq!(host.answer(behind), Some(Err(Refusal::Gone)));
    assert_eq!(host.answer(begun), None);
    host.hold(none);
    assert_eq!(host.answer(begun), Some(Ok(())));
}

#[test]
fn a_write_that_is_given_up_in_part_holds_up_nobody() {
    let (mut host, disk) = Host::write_back();
    let other = host.attach(spec(Policy::WriteBack, "other"));
    host.hold(writes_log);
    host.write_sectors(disk, 0, 100 * 8);
    let behind = host.write_sectors(other, 0, 8);
    assert_eq!(host.core.log.unfinished, 1);
    assert_eq!(
        host.answer(behind),
        None,
        "nothing takes the room of the first"
    );
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    assert_eq!(host.core.log.unfinished, 0);
    host.hold(none);
    host.pass(100);
    assert_eq!(host.answer(gone), Some(Ok(())));
    assert_eq!(host.answer(behind), Some(Ok(())));
    assert_eq!(host.core.log.given_up, 0, "nothing is kept for it");
}

/// The limits leave room, but no segment is ready: only a destage can make some.
#[test]
fn a_write_without_room_in_segments_asks_for_a_destage() {
    let (mut host, disk) = Host::write_back();
    host.holds = |io| io.purpose == Purpose::Prepare;
    let mut block = 0;
    while host.write(disk, block, 1) {
        assert!(block < 200, "segments run out");
        block += 1;
    }
    assert!(host.core.volume(disk).wants_room());
    assert!(host.core.is_room_scarce(disk));
    assert_eq!(host.show(disk).waiting_requests, 1);
}

/// What went there is nobody's in the log, and the answer is that of the origin.
#[test]
fn writes_and_discards_past_the_log_are_answered_by_the_origin() {
    for policy in [Policy::Uncached, Policy::WriteThrough] {
        let (mut host, disk) = Host::of(spec(policy, "disk"));
        host.hold(|io| io.purpose == Purpose::GuestWrite);
        let (write, discard) = (host.write_sectors(disk, 0, 8), host.zero(disk, 100, 5));
        assert_eq!((host.answer(write), host.answer(discard)), (None, None));
        host.hold(none);
        assert_eq!(host.answer(write), Some(Ok(())));
        assert_eq!(host.answer(discard), Some(Ok(())));
        assert_eq!(host.show(disk).dirty_extents, 0);
        assert_eq!(host.count(writes_log), 0);
        assert_eq!(host.show(disk).counters.ssd_write_bytes, 0);
    }
}

#[test]
fn a_held_volume_takes_no_write() {
    let (mut host, disk) = Host::write_back();
    host.core.volume(disk).hold(None);
    let request = host.write_sectors(disk, 0, 8);
    assert_eq!(host.answer(request), Some(Err(Refusal::Held)));
    assert_eq!(host.show(disk).dirty_writes, 0);
}

fn puts_into_log(io: &Io) -> bool {
    writes_log(io) && io.op == Op::Write
}

/// What nobody flushes survives the host after a few milliseconds all the same, time and again.
#[test]
fn each_write_is_on_the_device_after_it_has_lingered() {
    let (mut host, disk) = Host::write_back();
    host.pass(1_000);
    for block in 0..4 {
        host.asked.clear();
        assert!(host.write(disk, block, 1));
        host.pass(4);
        assert_eq!(host.count(puts_into_log), 0, "others may join it");
        host.pass(2);
        assert_eq!(host.count(puts_into_log), 1, "block {block}");
        // Nothing else is due meanwhile.
        host.pass(21);
    }
}

fn syncs_log(io: &Io) -> bool {
    io.purpose == Purpose::Log && io.op == Op::Sync
}

/// A start after a kill writes again what no sync has covered; so there is never much of it. What
/// announces a sync is nothing to be synced, or an idle log would go on for ever.
#[test]
fn what_nobody_flushes_is_synced_soon_and_an_idle_log_rests() {
    let (mut host, disk) = Host::write_back();
    host.pass(1_000);
    for block in 0..3 {
        host.asked.clear();
        assert!(host.write(disk, block, 1));
        host.pass(100);
        assert_eq!(host.count(syncs_log), 0, "a flush may come");
        host.pass(10);
        assert_eq!(host.count(syncs_log), 1, "block {block}");
        host.pass(10_000);
        let syncs = host.asked.iter().filter(|io| syncs_log(io)).count();
        assert_eq!(
            (syncs, host.count(puts_into_log)),
            (0, 1),
            "it is announced"
        );
    }
}

/// An overlay has no promise to keep on the device, and so costs none of its writes.
#[test]
fn an_overlay_that_fits_into_ram_is_written_to_no_device() {
    let (mut host, overlay) = Host::of(spec(Policy::Ephemeral, "disk"));
    host.pass(1_000);
    host.asked.clear();
    host.fill(overlay, 0, 20);
    let flush = host.flush(overlay);
    host.pass(1_000);
    assert_eq!(host.answer(flush), Some(Ok(())));
    assert_eq!(host.count(puts_into_log), 0);
}

/// Everything but checkpoints, which are counted apart.
#[test]
fn bytes_that_the_log_writes_are_counted() {
    let (mut host, disk) = Host::write_back();
    let before = host.core.log.counters.write_bytes;
    host.asked.clear();
    host.fill(disk, 0, 100);
    host.flush(disk);
    host.pass(1_000);
    let is_footer = |io: &&Io| io.purpose == Purpose::Footer && io.op == Op::Write;
    assert!(
        host.asked.iter().filter(is_footer).count() > 2,
        "segments were full"
    );
    let is_counted = |io: &&Io| puts_into_log(io) || is_footer(io);
    let bytes: u64 = host
        .asked
        .iter()
        .filter(is_counted)
        .map(|io| io.bytes)
        .sum();
    assert_eq!(host.core.log.counters.write_bytes - before, bytes);
}

/// Reads do not wait for writes that arrived before them and have no room yet.
#[test]
fn reads_that_waited_for_their_volume_do_not_wait_for_writes_without_room() {
    let mut limited = spec(Policy::WriteBack, "disk");
    limited.tuning.dirty_limit_bytes = 20 * BLOCK_BYTES;
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 20);
    host.flush(disk);
    let mut host = host.killed();
    host.hold(|io| io.device == Device::Ledger(VolumeId(0)) || writes_journal(io));
    let disk = host.attach_again(limited);
    let write = host.write_sectors(disk, 400, 8);
    let read = host.ask(disk, 0, 1);
    assert_eq!((host.answer(write), host.answer(read)), (None, None));
    host.hold(writes_journal);
    host.pass(1);
    assert_eq!(
        (host.answer(write), host.answer(read)),
        (None, Some(Ok(())))
    );
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(write), Some(Ok(())));
}

/// The daemon stops while the ledger of a volume that goes away is being removed: it is not written
/// once more, by nobody who would find the volume gone when that has ended.
#[test]
fn a_ledger_that_is_being_removed_is_not_written_when_the_daemon_stops() {
    let (mut host, disk) = Host::write_back();
    host.pass(1_000);
    host.hold(|io| io.op == Op::Remove || (io.purpose == Purpose::Ledger && io.op == Op::Sync));
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: false,
    });
    assert_eq!(host.count(|io| io.op == Op::Remove), 1);
    let park = host.order(Command::Park);
    let writes_ledger = |io: &Io| io.purpose == Purpose::Ledger && io.op == Op::Write;
    assert_eq!(host.count(writes_ledger), 0);
    // The removal ends first, whatever else of the ledger is under way.
    host.hold(|io| io.op == Op::Sync && io.purpose == Purpose::Ledger);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(gone), Some(Ok(())));
    assert_eq!(host.answer(park), Some(Ok(())));
}

/// Whatever the policy: a read waits for its origin and is given when that answers, and until then
/// the volume is not called clean.
#[test]
fn reads_of_every_policy_wait_for_a_failing_origin_and_that_is_shown() {
    use Policy::{Ephemeral, Uncached, WriteBack, WriteThrough};
    for policy in [Uncached, WriteThrough, WriteBack, Ephemeral] {
        let (mut host, disk) = Host::of(spec(policy, "disk"));
        host.fail(|io| (io.purpose == Purpose::GuestRead).then_some(IoError::Failed));
        let read = host.ask(disk, 3, 1);
        host.pass(90_000);
        assert_eq!(host.answer(read), None, "{policy:?}");
        let (state, reason) = host.state(disk);
        assert_eq!(state, State::Stalled, "{policy:?}");
        assert!(reason.is_some_and(|reason| reason.contains("reads wait")));
        host.fail(fine);
        host.pass(1_000);
        assert_eq!(host.answer(read), Some(Ok(())), "{policy:?}");
        assert_eq!(host.state(disk), (State::Clean, None), "{policy:?}");
    }
}

/// Which of the two is full decides what its owner has to do.
#[test]
fn an_origin_without_room_is_told_as_that_until_it_takes_a_write() {
    for policy in [Policy::Uncached, Policy::WriteThrough] {
        let (mut host, disk) = Host::of(spec(policy, "disk"));
        host.fail(|io| (io.purpose == Purpose::GuestWrite).then_some(IoError::NoSpace));
        let write = host.write_sectors(disk, 0, 8);
        assert_eq!(host.answer(write), Some(Err(Refusal::OriginFull)));
        let (state, reason) = host.state(disk);
        assert_eq!(state, State::Stalled);
        assert!(reason.is_some_and(|reason| reason.contains("no space left at the origin")));
        host.fail(fine);
        assert!(host.write(disk, 0, 1));
        assert_eq!(host.state(disk), (State::Clean, None));
    }
}

#[test]
fn a_discard_is_dropped_before_the_map_where_the_origin_writes_zeroes() {
    let (mut host, disk) = Host::write_back();
    host.write_sectors(disk, 0, 8);
    host.send(Event::Zeroed {
        volume: disk,
        bytes: BLOCK_BYTES,
    });
    host.zero(disk, 0, 1);
    let shown = host.show(disk);
    assert_eq!(shown.counters.discards, 1);
    assert_eq!(shown.counters.dropped_discards, 1);
    assert_eq!(shown.counters.origin.zeroed_bytes, BLOCK_BYTES);
    assert_eq!(shown.dirty_bytes, 8 * SECTOR_BYTES, "the write alone");
    assert_eq!(shown.dirty_writes, 1);
}

/// Fails when: a volume is forgotten while a read of its guest is at its origin.
#[test]
fn a_read_that_comes_while_the_ledger_is_removed_is_answered_before_its_volume_goes() {
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.op == Op::Remove);
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: false,
    });
    host.hold(|io| io.op == Op::Remove || io.op == Op::Read);
    let read = host.ask(disk, 0, 1);
    host.hold(|io| io.op == Op::Read);
    assert_eq!((host.answer(read), host.answer(gone)), (None, None));
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(read), Some(Ok(())));
    assert_eq!(host.answer(gone), Some(Ok(())));
}

#[test]
fn a_disk_is_no_longer_than_the_log_can_name() {
    let longest = MAX_SECTOR * SECTOR_BYTES;
    let of_bytes = |size_bytes| {
        let mut long = spec(Policy::WriteBack, "disk");
        long.size_bytes = size_bytes;
        let mut host = Host::new();
        let id = host.core.place("disk");
        let attached = host.core.attach(id, long, Settled::default());
        host.send(Event::Tick);
        (host, id, attached)
    };
    let (mut host, disk, attached) = of_bytes(longest);
    assert_eq!(attached, Ok(()));
    let order = host.order(Command::Resize {
        volume: disk,
        size_bytes: longest + SECTOR_BYTES,
    });
    assert_eq!(host.answer(order), Some(Err(Refusal::OutOfRange)));
    let last = host.write_sectors(disk, MAX_SECTOR - 1, 1);
    assert_eq!(host.answer(last), Some(Ok(())));
    let (_, _, attached) = of_bytes(longest + SECTOR_BYTES);
    assert!(
        matches!(attached, Err(OpenError::Refused(_))),
        "{attached:?}"
    );
}
