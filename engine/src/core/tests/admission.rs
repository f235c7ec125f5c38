//! Which requests are refused, which wait for others, and for how long.

use super::{CAPACITY_BLOCKS, Host, config, none, spec, writes_journal};
use crate::event::{Event, Io, Op, Purpose, Refusal, VolumeSpec};
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, BufferId, ConnectionId, Policy, RequestId, SECTOR_BYTES, Tag,
    VolumeId,
};

fn writes_log(io: &Io) -> bool {
    io.purpose == Purpose::Log
}

fn writes_checkpoint(io: &Io) -> bool {
    io.purpose == Purpose::Checkpoint
}

fn limited(blocks: u64) -> VolumeSpec {
    let mut limited = spec(Policy::WriteBack, "disk");
    limited.tuning.dirty_limit_bytes = blocks * BLOCK_BYTES;
    // Only the limit itself calls the destager.
    limited.tuning.flow.dirty_bytes_percent = 1_000;
    limited
}

fn overlay() -> VolumeSpec {
    spec(Policy::Ephemeral, "overlay")
}

/// Writes single blocks until one has to wait, and says which request that is.
fn fill_up(host: &mut Host, disk: VolumeId) -> RequestId {
    for block in 0..2 * CAPACITY_BLOCKS {
        let (sector, sectors) = (block * BLOCK_SECTORS, BLOCK_SECTORS);
        let request = host.write_sectors(disk, sector, sectors);
        if host.answer(request).is_none() {
            return request;
        }
        assert_eq!(host.answer(request), Some(Ok(())));
    }
    panic!("it never fills up");
}

#[test]
fn writes_and_discards_stay_within_their_volume() {
    let (mut host, disk) = Host::write_back();
    let end = spec(Policy::WriteBack, "disk").size_bytes / SECTOR_BYTES;
    for (sector, sectors, answer) in [
        (0, 0, Err(Refusal::OutOfRange)),
        (end, 1, Err(Refusal::OutOfRange)),
        (end + 7, 1, Err(Refusal::OutOfRange)),
        (end - 8, 9, Err(Refusal::OutOfRange)),
        (end - 8, 12, Err(Refusal::OutOfRange)),
        (end - 8, 8, Ok(())),
        (end - 1, 1, Ok(())),
    ] {
        let write = host.write_sectors(disk, sector, sectors);
        assert_eq!(host.answer(write), Some(answer), "{sectors} at {sector}");
        let volume = disk;
        let request = host.request();
        host.send(Event::Discard {
            volume,
            request,
            sector,
            sectors,
            fua: false,
        });
        assert_eq!(host.answer(request), Some(answer), "{sectors} at {sector}");
    }
}

#[test]
fn a_volume_that_is_read_only_or_goes_takes_no_write() {
    let mut read_only = spec(Policy::WriteBack, "disk");
    read_only.read_only = true;
    let (mut host, disk) = Host::of(read_only);
    let write = host.write_sectors(disk, 0, 8);
    assert_eq!(host.answer(write), Some(Err(Refusal::ReadOnly)));

    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.hold(super::writes_origin);
    host.destage(disk);
    host.order(crate::event::Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    let write = host.write_sectors(disk, 0, 8);
    assert_eq!(host.answer(write), Some(Err(Refusal::Gone)));
}

#[test]
fn what_comes_before_a_volume_is_ready_waits_for_it() {
    for policy in [Policy::WriteBack, Policy::Ephemeral] {
        let mut host = Host::new();
        host.hold(writes_checkpoint);
        let disk = host.attach(spec(policy, "disk"));
        let (flush, write) = (host.flush(disk), host.write_sectors(disk, 0, 8));
        assert_eq!((host.answer(flush), host.answer(write)), (None, None));
        host.hold(none);
        assert_eq!(host.answer(flush), Some(Ok(())));
        assert_eq!(host.answer(write), Some(Ok(())));
        assert_eq!(host.show(disk).counters.flushes, 1);
    }
}

#[test]
fn a_write_that_would_fit_waits_behind_one_that_does_not() {
    let (mut host, disk) = Host::of(limited(20));
    host.hold(writes_journal);
    host.fill(disk, 0, 18);
    let large = host.write_sectors(disk, 400, 4 * BLOCK_SECTORS);
    let small = host.write_sectors(disk, 800, BLOCK_SECTORS);
    assert_eq!((host.answer(large), host.answer(small)), (None, None));
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(large), Some(Ok(())));
    assert_eq!(host.answer(small), Some(Ok(())));
}

#[test]
fn a_write_that_is_slowed_is_taken_when_its_delay_is_over() {
    let mut slowed = spec(Policy::WriteBack, "disk");
    slowed.tuning.flow.dirty_writes = Some(4);
    let (mut host, disk) = Host::of(slowed);
    host.hold(writes_journal);
    let write = fill_up(&mut host, disk);
    let delay_ns = host.show(disk).flow.delay_ns;
    assert!(delay_ns > 0, "so many writes are dirty");
    assert_eq!(host.answer(write), None);
    host.pass(delay_ns.div_ceil(1_000_000));
    assert_eq!(host.answer(write), Some(Ok(())));
    assert_eq!(host.show(disk).flow.held_writes, 1);
}

#[test]
fn who_waits_for_room_calls_the_destager_at_once() {
    let (mut host, disk) = Host::of(limited(20));
    host.fill(disk, 0, 20);
    host.hold(writes_journal);
    assert_eq!(host.count(writes_journal), 0);
    assert!(!host.write(disk, 30, 1));
    assert_eq!(host.count(writes_journal), 1, "no time has passed");
}

#[test]
fn who_waits_for_the_stage_alone_calls_no_destager() {
    let (mut host, disk) = Host::write_back();
    host.hold(writes_log);
    let waiting = fill_up(&mut host, disk);
    assert!(!host.show(disk).destaging);
    assert!(!host.core.is_room_scarce(disk));
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(waiting), Some(Ok(())));
}

#[test]
fn who_waits_no_more_calls_no_destager() {
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.purpose == Purpose::Prepare || writes_journal(io));
    let waiting = fill_up(&mut host, disk);
    assert!(host.core.is_room_scarce(disk));
    let connection = ConnectionId(1);
    host.send(Event::Disconnect { connection });
    assert_eq!(host.answer(waiting), Some(Err(Refusal::Gone)));
    assert!(!host.core.is_room_scarce(disk));
}

/// It may need the last segment; then it would wait for ever, and everybody behind it.
#[test]
fn nothing_is_taken_of_the_room_that_a_write_in_part_counts_on() {
    let (mut host, disk) = Host::write_back();
    let overlay = host.attach(overlay());
    host.hold(writes_log);
    let begun = host.write_sectors(disk, 0, 100 * BLOCK_SECTORS);
    assert_eq!(host.answer(begun), None, "slots are short");
    let behind = host.write_sectors(overlay, 0, 8);
    assert_eq!(host.answer(behind), None, "though its slots are free");
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(begun), Some(Ok(())));
    assert_eq!(host.answer(behind), Some(Ok(())));
}

#[test]
fn the_map_never_holds_more_extents_than_it_may() {
    for (most, blocks) in [(19, 135), (40, 10), (30, 60)] {
        let mut small = config();
        small.dirty_extents_max = most;
        let mut host = Host::with(small);
        let disk = host.attach(spec(Policy::WriteBack, "disk"));
        host.hold(writes_journal);
        let taken = (0..9).filter(|&at| host.write(disk, at * blocks, blocks));
        assert!(taken.count() > 0 || blocks > 100, "an empty map has room");
        assert!(
            host.core.extents.count() <= most,
            "{}",
            host.core.extents.count()
        );
        assert!(host.core.extents.count() > 0);
    }
}

#[test]
fn an_overlay_without_room_answers_no_space_after_its_time_and_is_read_on() {
    let (mut host, disk) = Host::of(overlay());
    let first = fill_up(&mut host, disk);
    host.pass(10_000);
    let second = host.write_sectors(disk, 80_000, 8);
    host.pass(19_900);
    assert_eq!(host.answer(first), None);
    host.pass(100);
    assert_eq!(host.answer(first), Some(Err(Refusal::NoSpace)));
    assert_eq!(host.answer(second), None, "it has its own time");
    host.pass(9_900);
    assert_eq!(host.answer(second), None);
    host.pass(100);
    assert_eq!(host.answer(second), Some(Err(Refusal::NoSpace)));
    assert!(host.read(disk, 5, 1).is_some());
}

#[test]
fn a_write_back_volume_without_room_is_never_out_of_space() {
    let (mut host, disk) = Host::of(limited(20));
    host.hold(writes_journal);
    host.fill(disk, 0, 20);
    let waiting = host.write_sectors(disk, 400, 8);
    host.pass(120_000);
    assert_eq!(host.answer(waiting), None);
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(waiting), Some(Ok(())));
}

/// Given up in the middle it would hide what lies under it until a crash, and lose it then.
#[test]
fn a_write_of_an_overlay_that_has_begun_is_not_out_of_space() {
    let (mut host, disk) = Host::of(overlay());
    host.hold(writes_log);
    let begun = host.write_sectors(disk, 0, 100 * BLOCK_SECTORS);
    assert!(host.core.volume(disk).left_in_part() > 0);
    host.pass(60_000);
    assert_eq!(host.answer(begun), None);
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(begun), Some(Ok(())));
}

#[test]
fn an_epoch_takes_a_quarter_of_the_room_and_no_block_more() {
    let (mut host, disk) = Host::of(limited(40));
    host.fill(disk, 0, 11);
    let epochs = &host.core.volume(disk).epochs;
    let charges: alloc::vec::Vec<u64> = epochs.iter().map(|epoch| epoch.charge).collect();
    assert_eq!(charges, [10, 1]);
}

/// One entry for some of it, and no sector left out between two of them.
#[test]
fn a_long_discard_is_dirty_as_a_whole_and_fills_an_epoch() {
    for (sector, sectors, epochs) in [
        (8, 3 << 32, 2),
        (0, 3 << 32, 2),
        (0, 1 << 21, 2),
        (0, (1 << 21) - 1, 1),
    ] {
        let mut large = spec(Policy::WriteBack, "disk");
        large.size_bytes = 8 << 40;
        let (mut host, disk) = Host::of(large);
        let request = host.request();
        host.send(Event::Discard {
            volume: disk,
            request,
            sector,
            sectors,
            fua: false,
        });
        assert_eq!(host.answer(request), Some(Ok(())));
        assert_eq!(host.show(disk).dirty_bytes, sectors * SECTOR_BYTES);
        host.write_sectors(disk, sector, 8);
        let found = host.core.volume(disk).epochs.len();
        // Each entry of a discard that is longer than an epoch may be has one.
        assert_eq!(found.min(2), epochs, "{sectors} sectors");
    }
}

fn write_fua(host: &mut Host, volume: VolumeId, fua: bool) -> RequestId {
    let request = host.request();
    host.send(Event::Write {
        volume,
        request,
        sector: 0,
        sectors: 8,
        buffer: BufferId(0),
        fua,
        tag: Tag::NONE,
    });
    request
}

#[test]
fn what_must_be_durable_is_answered_after_a_sync_of_the_log() {
    for (cached, fua) in [(true, true), (false, false), (false, true)] {
        let mut disk = spec(Policy::WriteBack, "disk");
        disk.tuning.write_cache = cached;
        let (mut host, disk) = Host::of(disk);
        host.hold(|io| io.purpose == Purpose::Log && io.op == Op::Sync);
        let write = write_fua(&mut host, disk, fua);
        host.pass(1_000);
        assert_eq!(host.answer(write), None);
        host.hold(none);
        assert_eq!(host.answer(write), Some(Ok(())));
    }
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.purpose == Purpose::Log && io.op == Op::Sync);
    host.fill(disk, 0, 1);
    let flush = host.flush(disk);
    host.pass(1_000);
    assert_eq!(host.answer(flush), None);
    host.hold(none);
    assert_eq!(host.answer(flush), Some(Ok(())));
    let again = host.flush(disk);
    assert_eq!(host.answer(again), Some(Ok(())), "there is nothing new");
}
