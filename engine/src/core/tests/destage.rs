//! When a destage is due, in which order it goes, and what is shown and told of it.

use super::{CAPACITY_BLOCKS, Host, fine, none, spec, writes_journal, writes_origin};
use crate::engine::Config;
use crate::event::{Command, Device, Io, IoError, Op, Purpose, Tuning, VolumeSpec};
use crate::format::ledger::{Ledger, Progress};
use crate::ram::{CleanCache, Key, Published, RamTier};
use crate::snapshot::State;
use crate::types::{DestageMode, Policy, RequestId, VolumeId};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// A log with so much in it is full.
const FULL_BLOCKS: u64 = CAPACITY_BLOCKS * 6 / 10;

const ERRORS: Option<&str> = Some("the origin answers with errors; destage is tried again");

fn aged(millis: u64, name: &str) -> VolumeSpec {
    let mut aged = spec(Policy::WriteBack, name);
    aged.tuning.destage_after_ms = Some(millis);
    aged
}

fn is_broken(io: &Io) -> Option<IoError> {
    writes_origin(io).then_some(IoError::Failed)
}

#[test]
fn dirty_data_is_destaged_when_it_comes_of_age_and_not_before() {
    let (mut host, disk) = Host::of(aged(60_000, "disk"));
    let opened = host.now;
    host.fill(disk, 0, 3);
    let core = &mut host.core;
    assert!(!core.is_destage_due(opened.plus_millis(59_999), disk));
    assert!(core.is_destage_due(opened.plus_millis(60_000), disk));
    host.pass(59_000);
    assert_eq!(host.state(disk), (State::Dirty, None));
    assert_eq!(host.count(writes_journal), 0);
    host.pass(30_000);
    assert_eq!(host.state(disk), (State::Clean, None));
}

#[test]
fn room_is_scarce_from_six_tenths_of_the_log_on() {
    let (mut host, disk) = Host::of(aged(600_000, "disk"));
    host.fill(disk, 0, FULL_BLOCKS - 1);
    assert!(!host.core.is_room_scarce(disk));
    host.fill(disk, FULL_BLOCKS, 1);
    assert!(host.core.is_room_scarce(disk));
}

#[test]
fn room_is_scarce_from_three_quarters_of_the_extents_on() {
    let (mut host, disk) = Host::of(aged(600_000, "disk"));
    for block in [10, 20, 30] {
        host.fill(disk, block, 1);
    }
    assert_eq!(host.core.extents.count(), 3);
    host.core.config.dirty_extents_max = 5;
    assert!(!host.core.is_room_scarce(disk));
    host.core.config.dirty_extents_max = 4;
    assert!(host.core.is_room_scarce(disk));
}

#[test]
fn one_without_an_age_stays_in_a_full_log_with_all_of_its_share() {
    let (mut host, aged) = Host::of(aged(600_000, "aged"));
    let stays = host.attach(spec(Policy::WriteBack, "stays"));
    let share = host
        .core
        .volume(stays)
        .part(crate::volume::share::Pool::Log);
    assert!((130..=CAPACITY_BLOCKS / 4).contains(&share), "{share}");
    host.fill(stays, 0, share);
    host.fill(aged, 0, FULL_BLOCKS - share);
    assert!(host.core.is_room_scarce(aged));
    assert!(!host.core.is_room_scarce(stays));
    host.fill(stays, share, 1);
    assert!(
        host.core.is_room_scarce(stays),
        "it has more than its share"
    );
}

#[test]
fn what_a_failed_sync_of_the_journal_covered_is_written_again() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(|io| {
        let sync = io.op == Op::Sync && matches!(io.device, Device::Journal(_));
        sync.then_some(IoError::Failed)
    });
    let order = host.destage(disk);
    assert_eq!(host.state(disk), (State::Stalled, ERRORS));
    assert_eq!(host.show(disk).counters.origin.errors, 1);
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    let written = host.count(writes_journal);
    host.fail(fine);
    host.pass(499);
    assert_eq!((host.count(writes_journal), host.answer(order)), (0, None));
    host.pass(200);
    assert_eq!(host.count(writes_journal), written);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk), (State::Clean, None));
}

#[test]
fn what_a_failed_sync_of_the_origin_covered_is_written_again() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(|io| super::syncs_origin(io).then_some(IoError::Failed));
    let order = host.destage(disk);
    assert_eq!(host.state(disk), (State::Stalled, ERRORS));
    assert_eq!(host.show(disk).counters.origin.errors, 1);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    assert_eq!(host.count(writes_origin), 1);
    host.fail(fine);
    host.pass(600);
    assert_eq!(host.count(writes_origin), 1);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    assert_eq!(host.state(disk), (State::Clean, None));
}

#[test]
fn a_volume_is_stalled_until_something_of_it_has_reached_its_origin() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(is_broken);
    let order = host.destage(disk);
    host.fill(disk, 10, 1);
    host.pass(5_000);
    assert_eq!(host.state(disk), (State::Stalled, ERRORS));
    assert_eq!(host.answer(order), None);
    host.fail(fine);
    host.pass(600);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk), (State::Dirty, None), "the newer write");
    assert_eq!(host.show(disk).dirty_bytes, 4096);
}

#[test]
fn want_of_space_for_a_journal_is_shown_as_such() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(|io| writes_journal(io).then_some(IoError::NoSpace));
    host.destage(disk);
    let (state, reason) = host.state(disk);
    assert_eq!(state, State::Stalled);
    assert!(reason.is_some_and(|it| it.starts_with("there is no space left")));
}

/// Eight pieces, four of them for the destager: the first volume has two, as it asks for, and
/// another one, which leaves the last one to volumes that have none.
#[test]
fn memory_of_the_destager_goes_to_who_stands_in_line() {
    let mut config = super::config();
    config.scratch_bytes = 256 * 4096 + 8 * super::GEOMETRY.chunk_bytes();
    assert!(config.scratch_bytes < Config::SCRATCH_BYTES_MIN);
    let mut host = Host::with(config);
    let disks = [("first", 10), ("other", 20)].map(|(name, blocks)| {
        let mut alone = spec(Policy::WriteBack, name);
        // They do not take turns.
        alone.storage = blocks;
        let disk = host.attach(alone);
        host.fill(disk, 0, blocks);
        host.flush(disk);
        disk
    });
    host.hold(writes_journal);
    for disk in disks {
        host.destage(disk);
    }
    let [first, other] = disks.map(Device::Journal);
    let written = |host: &Host, journal: Device| {
        let of_it = host.flights.iter().filter(|io| io.device == journal);
        of_it.map(|io| io.bytes / 4096).collect::<Vec<u64>>()
    };
    assert_eq!(written(&host, first), [10]);
    assert_eq!(written(&host, other), [8]);
    host.end(writes_journal);
    assert_eq!(written(&host, other), [8, 8], "no time has passed");
}

/// A journal that is written and not synced may be gone after a loss of power.
#[test]
fn no_origin_of_a_group_is_written_before_all_of_the_cut_is_prepared() {
    let of_other = |io: &Io| io.device == Device::Journal(VolumeId(1));
    let holds: [fn(&Io) -> bool; 2] = [
        |io| writes_journal(io) && io.device == Device::Journal(VolumeId(1)),
        |io| io.op == Op::Sync && io.device == Device::Journal(VolumeId(1)),
    ];
    for hold in holds {
        let mut host = Host::new();
        let disks = host.attach_pair();
        for disk in disks {
            host.fill(disk, 0, 3);
        }
        host.hold(hold);
        let order = host.destage(disks[0]);
        host.pass(10_000);
        assert!(host.flights.iter().any(of_other), "it is held");
        let begins = |ledger: Ledger| matches!(ledger.progress, Progress::Apply { .. });
        assert!(!disks.map(|disk| host.ledger(disk)).into_iter().any(begins));
        assert_eq!((host.count(writes_origin), host.answer(order)), (0, None));
        host.hold(none);
        assert_eq!(
            (host.count(writes_origin), host.answer(order)),
            (2, Some(Ok(())))
        );
    }
}

fn discard(host: &mut Host, volume: VolumeId) -> RequestId {
    host.order(Command::Detach {
        volume,
        discard_dirty: true,
    })
}

#[test]
fn a_destage_that_the_ledger_is_told_of_goes_to_its_end_before_the_volume_goes() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.hold(|io| io.purpose == Purpose::Ledger && io.op == Op::Write);
    host.destage(disk);
    let gone = discard(&mut host, disk);
    assert_eq!(host.answer(gone), None);
    host.hold(none);
    assert_eq!(host.count(writes_origin), 1);
    assert_eq!(host.answer(gone), Some(Ok(())));
}

#[test]
fn an_origin_that_is_written_in_part_is_written_whole_before_its_volume_goes() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(is_broken);
    host.destage(disk);
    let gone = discard(&mut host, disk);
    host.pass(5_000);
    assert_eq!(host.answer(gone), None);
    assert_eq!(host.count(|io| io.op == Op::Remove), 0, "its journal stays");
    host.fail(fine);
    host.pass(1_000);
    assert_eq!(host.count(|io| io.op == Op::Remove), 1);
    assert_eq!(host.answer(gone), Some(Ok(())));
}

/// Whole blocks that were destaged, and of one epoch no more than a quarter of the tier.
#[test]
fn a_part_of_what_was_destaged_is_expected_to_be_read() {
    let (mut host, disk) = Host::write_back();
    assert_eq!(host.core.ram.blocks(), 64);
    for (written, expected) in [
        ([10..11, 30..31], [10..11, 30..31]),
        ([100..120, 0..0], [100..116, 0..0]),
    ] {
        for blocks in written {
            host.fill(disk, blocks.start, blocks.end - blocks.start);
        }
        host.destage(disk);
        assert_eq!(host.state(disk), (State::Clean, None));
        let layer = host.core.volume(disk).layer();
        let ram = &mut host.core.ram;
        let found = (0..130).filter(|&block| is_expected(ram, Key { layer, block }));
        let found: Vec<u64> = found.collect();
        assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>());
    }
}

fn is_expected(ram: &mut RamTier, key: Key) -> bool {
    let slot = ram
        .reserve(key, 0)
        .expect("there is a place, or one is made");
    let again = ram.publish(slot) == Published::Again;
    ram.invalidate(key.layer, key.block, 1);
    again
}

#[test]
fn a_destage_that_has_not_touched_the_origin_is_given_up_with_its_volume() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(|io| writes_journal(io).then_some(IoError::NoSpace));
    host.destage(disk);
    host.asked.clear();
    let gone = discard(&mut host, disk);
    assert_eq!(host.answer(gone), Some(Ok(())), "its journal is not needed");
    assert_eq!(host.count(writes_origin), 0);

    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.hold(writes_journal);
    host.destage(disk);
    let gone = discard(&mut host, disk);
    assert_eq!(host.answer(gone), None, "its memory is in use");
    host.hold(none);
    assert_eq!(host.answer(gone), Some(Ok(())));
}

/// It would go on over an origin that lacks what it was held for.
#[test]
fn a_held_volume_whose_origin_fails_stays_held() {
    for state in [State::Held, State::Damaged] {
        let (mut host, disk) = Host::write_back();
        host.fill(disk, 0, 3);
        let volume = host.core.volume(disk);
        match state {
            State::Held => volume.hold(None),
            _ => volume.damage("it was held for this"),
        }
        host.fail(is_broken);
        host.destage(disk);
        host.pass(1_000);
        assert_eq!(host.state(disk).0, state);
    }
}

#[test]
fn an_order_to_destage_a_volume_without_a_log_syncs_its_origin() {
    for policy in [Policy::Uncached, Policy::WriteThrough] {
        let (mut host, disk) = Host::of(spec(policy, "disk"));
        host.asked.clear();
        let order = host.destage(disk);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert_eq!(host.count(super::syncs_origin), 1);
        let mut read_only = spec(policy, "read only");
        read_only.read_only = true;
        let disk = host.attach(read_only);
        host.asked.clear();
        let order = host.destage(disk);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert_eq!(host.count(super::syncs_origin), 0, "it has nothing");
    }
}

#[test]
fn a_write_is_destaged_as_a_whole() {
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.purpose == Purpose::Log);
    let begun = host.write_sectors(disk, 0, 100 * 8);
    assert!(host.core.volume(disk).left_in_part() > 0);
    let order = host.destage(disk);
    host.pass(1_000);
    assert!(!host.show(disk).destaging);
    host.hold(none);
    host.pass(200);
    assert_eq!(host.answer(begun), Some(Ok(())));
    assert_eq!(host.answer(order), Some(Ok(())));
}

/// By its time a recovery tells whether anybody else has written the image.
#[test]
fn the_ledger_allows_for_a_long_destage_and_is_written_again_in_time() {
    const MINUTE_MS: u64 = 60_000;
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(is_broken);
    host.destage(disk);
    let limit = host.ledger(disk).mtime_limit_ns;
    assert!(limit >= 15 * MINUTE_MS * 1_000_000);
    host.pass(4 * MINUTE_MS);
    assert_eq!(host.ledger(disk).mtime_limit_ns, limit);
    host.pass(2 * MINUTE_MS);
    let longer = host.ledger(disk).mtime_limit_ns;
    assert!(longer >= limit + 5 * MINUTE_MS * 1_000_000);
    host.fail(fine);
    host.pass(600);
    assert_eq!(host.state(disk), (State::Clean, None));
}

#[test]
fn what_failed_is_sent_again_after_a_pause_that_grows_to_half_a_second() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.fail(is_broken);
    let order = host.destage(disk);
    assert_eq!(host.show(disk).counters.origin.errors, 1);
    assert_eq!(host.state(disk), (State::Dirty, None), "one failure");
    host.asked.clear();
    for pause in [10, 20, 40, 80, 160, 320, 500, 500, 500] {
        host.pass(pause - 1);
        assert_eq!(host.count(writes_origin), 0, "not within {pause} ms");
        host.pass(1);
        assert_eq!(host.count(writes_origin), 1, "after {pause} ms");
        assert_eq!(host.state(disk), (State::Stalled, ERRORS));
    }
    host.fail(fine);
    host.pass(500);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk), (State::Clean, None));
}

/// Fails every 30th write to an origin, and every fifth to a journal.
fn is_flaky(io: &Io) -> Option<IoError> {
    static ORIGIN: AtomicU64 = AtomicU64::new(0);
    static JOURNAL: AtomicU64 = AtomicU64::new(0);
    let (counter, one_in) = match io {
        io if writes_origin(io) => (&ORIGIN, 30),
        io if writes_journal(io) => (&JOURNAL, 5),
        _ => return None,
    };
    let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
    count.is_multiple_of(one_in).then_some(IoError::Failed)
}

/// With the whole phase, a storage that fails one write in 30 would get none of 300 through.
#[test]
fn only_the_writes_that_fail_are_sent_again() {
    for mode in [DestageMode::Atomic, DestageMode::InPlace] {
        let mut flaky = spec(Policy::WriteBack, "disk");
        flaky.tuning.destage = mode;
        let (mut host, disk) = Host::of(flaky);
        for block in 0..300 {
            host.fill(disk, 2 * block, 1);
        }
        host.zero(disk, 1000, 1);
        host.asked.clear();
        host.fail(is_flaky);
        let order = host.destage(disk);
        host.pass(10_000);
        assert_eq!(host.answer(order), Some(Ok(())), "{mode:?}");
        assert_eq!(host.state(disk), (State::Clean, None));
        let asked = core::mem::take(&mut host.asked);
        let sent = |what: fn(&Io) -> bool| asked.iter().filter(|io| what(io)).count() as u64;
        let errors = host.show(disk).counters.origin.errors;
        assert!(errors >= 10, "{errors}");
        let (origin, journal) = (sent(writes_origin), sent(writes_journal));
        let journal_errors = journal / 5;
        assert_eq!(origin, 301 + errors - journal_errors, "{mode:?}");
        // Each of the written blocks, what failed of them, and the table.
        let journaled = host.show(disk).counters.origin.journal_bytes / 4096;
        let most = 300 + journal_errors * 4 * 7 + 4;
        assert!(journaled <= most, "{journaled} blocks of {most}");
        let image = &host.disks.0[&Device::Origin(disk)];
        for block in 0..300 {
            let at = 2 * block * 4096;
            assert_eq!(image[at..at + 4096], host.memory.buffer[..4096]);
        }
    }
}

/// A journal of which parts were written twice is as whole as any.
#[test]
fn a_journal_with_writes_that_were_sent_again_is_replayed() {
    let (mut host, disk) = Host::write_back();
    for block in 0..100 {
        host.fill(disk, 2 * block, 1);
    }
    host.fail(|io| is_flaky(io).or(is_broken(io)));
    host.destage(disk);
    host.pass(5_000);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    let settled = crate::settle::settle(&mut host.disks, disk).expect("it is whole");
    assert_eq!(settled.journal_entries_applied, 100);
    let image = &host.disks.0[&Device::Origin(disk)];
    for block in 0..100 {
        let at = 2 * block * 4096;
        assert_eq!(image[at..at + 4096], host.memory.buffer[..4096]);
    }
}

/// Blocks apart from each other are a request each.
#[test]
fn an_origin_is_asked_for_as_much_at_once_as_its_volume_allows() {
    for depth in [1, 4] {
        let mut narrow = spec(Policy::WriteBack, "disk");
        narrow.tuning.origin_queue_depth = depth;
        narrow.tuning.destage = crate::types::DestageMode::InPlace;
        let (mut host, disk) = Host::of(narrow);
        for block in 0..20 {
            host.fill(disk, 2 * block, 1);
        }
        host.zero(disk, 100, 1);
        host.hold(writes_origin);
        let order = host.destage(disk);
        let at_once = |host: &Host| host.flights.iter().filter(|io| writes_origin(io)).count();
        for _ in 0..20 {
            assert_eq!(at_once(&host).min(2), (depth as usize).min(2));
            assert!(at_once(&host) <= depth as usize);
            host.end(writes_origin);
        }
        host.hold(none);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert_eq!(host.show(disk).counters.origin.writes, 21);
    }
}

#[test]
fn a_request_that_fails_ends_a_round_of_a_destage() {
    let mut narrow = spec(Policy::WriteBack, "disk");
    narrow.tuning.origin_queue_depth = 1;
    narrow.tuning.destage = crate::types::DestageMode::InPlace;
    let (mut host, disk) = Host::of(narrow);
    for block in 0..20 {
        host.fill(disk, 2 * block, 1);
    }
    host.asked.clear();
    host.fail(is_broken);
    host.destage(disk);
    assert_eq!(
        host.count(writes_origin),
        1,
        "the others wait for the pause"
    );
}

#[test]
fn what_a_journal_is_asked_for_is_told_from_what_an_origin_is() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 3);
    host.destage(disk);
    let purposes = |device: Device| {
        let of_it = host.asked.iter().filter(move |io| io.device == device);
        of_it.map(|io| io.purpose).collect::<Vec<_>>()
    };
    let journal = purposes(Device::Journal(disk));
    assert!(!journal.is_empty() && journal.iter().all(|it| *it == Purpose::JournalWrite));
    let origin = purposes(Device::Origin(disk));
    assert!(!origin.contains(&Purpose::JournalWrite));
}

/// Of a write that a failing device took in part a recovery drops the rest, and has to find what it
/// had replaced; no longer than until the origin has all.
#[test]
fn what_a_write_in_part_has_replaced_is_kept_until_the_origin_has_the_rest() {
    let (mut host, disk) = Host::write_back();
    host.hold(|io| io.purpose == Purpose::Log);
    let begun = host.write_sectors(disk, 0, 100 * 8);
    assert!(host.core.volume(disk).left_in_part() > 0);
    host.fail(|io| (io.purpose == Purpose::Log).then_some(IoError::Failed));
    host.hold(writes_origin);
    host.pass(11_000);
    assert_eq!(host.core.log.given_up, 1);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(begun), Some(Ok(())), "past the log");
    assert_eq!(host.core.log.given_up, 0);
}

/// A guest reads from the storage of the first two, and nobody knows yet what that can do.
#[test]
fn destages_on_one_storage_share_what_it_takes_beside_reads() {
    let mut host = Host::new();
    let disks = [("a", 1), ("b", 1), ("c", 2)].map(|(name, storage)| {
        let mut one = spec(Policy::WriteBack, name);
        (one.storage, one.tuning.destage) = (storage, DestageMode::InPlace);
        let disk = host.attach(one);
        for block in 0..10 {
            host.fill(disk, 2 * block, 1);
        }
        host.flush(disk);
        disk
    });
    let mut guest = spec(Policy::WriteBack, "guest");
    guest.storage = 1;
    let guest = host.attach(guest);
    host.hold(|io| writes_origin(io) || io.purpose == Purpose::GuestRead);
    host.ask(guest, 100, 1);
    for disk in disks {
        host.destage(disk);
    }
    let written = |host: &Host| {
        disks.map(|disk| {
            let of_it = |io: &&Io| writes_origin(io) && io.device == Device::Origin(disk);
            host.flights.iter().filter(of_it).count()
        })
    };
    assert_eq!(written(&host), [4, 0, 10]);
    for ended in 1..=10 {
        host.end(|io| writes_origin(io) && io.device == Device::Origin(VolumeId(0)));
        let [first, second, _] = written(&host);
        let left = 10 - ended;
        assert_eq!(first, left.min(4), "a place is given to the next");
        assert_eq!(second, if left > 0 { 0 } else { 4 }, "in turn");
    }
    host.pass(100);
    assert_eq!(written(&host), [0, 10, 10], "nobody reads any more");
}

/// The ledger named a journal that was never written, or a cut of a destage that had one.
#[test]
fn a_destage_ends_as_it_was_begun_whatever_is_set_meanwhile() {
    use DestageMode::{Atomic, InPlace};
    for (before, after) in [(InPlace, Atomic), (Atomic, InPlace)] {
        let mut odd = spec(Policy::WriteBack, "disk");
        odd.tuning.destage = before;
        let (mut host, volume) = Host::of(odd);
        assert!(host.write(volume, 0, 2));
        host.hold(|io| io.op == Op::Stat && matches!(io.device, Device::Origin(_)));
        let order = host.destage(volume);
        host.pass(1_000);
        let tuning = Tuning {
            destage: after,
            ..*host.core.volume(volume).tuning()
        };
        let tune = host.order(Command::Tune { volume, tuning });
        assert_eq!(host.answer(tune), Some(Ok(())));
        host.hold(writes_origin);
        host.pass(1_000);
        let progress = host.ledger(volume).progress;
        match before {
            InPlace => assert!(matches!(progress, Progress::Cut(_)), "{progress:?}"),
            Atomic => assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}"),
        }
        host.hold(none);
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
}
