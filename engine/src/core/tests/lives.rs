//! What a host leaves on its devices for the next one, and for the reader of an origin alone.

use super::{Host, none, spec, syncs_origin, writes_journal, writes_origin};
use crate::engine::{OpenError, Settled, settle};
use crate::event::{Command, Device, Event, Io, Op, Purpose, ResetOn, VolumeSpec};
use crate::format::ledger::{Ledger, Progress};
use crate::types::{BLOCK_SECTORS, BufferId, DestageMode, Policy, Serial, Tag, VolumeId};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

const ORIGIN_BYTES: usize = 4 << 20;

/// Old bytes that no write of the tests has.
const OLD: u8 = 0xaa;

fn with_mode(mode: DestageMode) -> VolumeSpec {
    let mut disk = spec(Policy::WriteBack, "disk");
    disk.tuning.destage = mode;
    disk
}

/// Writes that lie alone, touch, cross blocks and pieces, are replaced in part, and zeroes. Returns
/// the origin as it has to be then.
fn write_all_kinds(host: &mut Host, disk: VolumeId) -> Vec<u8> {
    host.disks
        .0
        .insert(Device::Origin(disk), vec![OLD; ORIGIN_BYTES]);
    let mut wanted = vec![OLD; ORIGIN_BYTES];
    let source = host.memory.buffer.clone();
    let writes = [
        (3, 1),
        (17, 30),
        (100, 8),
        (111, 9),
        (400, 33 * 8),
        (500, 21),
        (1000, 20 * 8),
        (1160, 16 * 8),
        (2001, 60),
        (2061, 3),
        (3000, 7 * 8),
        (3100, 1),
        (4001, 150),
    ];
    for (sector, sectors) in writes {
        let request = host.write_sectors(disk, sector, sectors);
        assert_eq!(host.answer(request), Some(Ok(())), "{sectors} at {sector}");
        let (from, bytes) = ((sector * 512) as usize, (sectors * 512) as usize);
        wanted[from..from + bytes].copy_from_slice(&source[..bytes]);
    }
    for (block, blocks) in [(2, 1), (80, 3), (300, 100), (640, 64)] {
        host.zero(disk, block, blocks);
        let (from, bytes) = ((block * 4096) as usize, (blocks * 4096) as usize);
        wanted[from..from + bytes].fill(0);
    }
    assert_eq!(host.core.volume(disk).epochs.len(), 1, "it goes as a whole");
    wanted
}

fn origin(host: &mut Host, disk: VolumeId) -> Vec<u8> {
    let origin = host.disks.0.get(&Device::Origin(disk));
    origin.expect("it was made")[..ORIGIN_BYTES].to_vec()
}

fn assert_same(found: &[u8], wanted: &[u8]) {
    let differs = found
        .iter()
        .zip(wanted)
        .position(|(found, wanted)| found != wanted);
    assert_eq!(differs, None, "the first byte that differs");
}

#[test]
fn a_destage_brings_every_byte_to_its_place_and_no_other() {
    for mode in [DestageMode::Atomic, DestageMode::InPlace] {
        let (mut host, disk) = Host::of(with_mode(mode));
        let wanted = write_all_kinds(&mut host, disk);
        let order = host.destage(disk);
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Ok(())));
        assert_same(&origin(&mut host, disk), &wanted);
    }
}

/// Whatever of the origin was written by then.
#[test]
fn the_journal_beside_an_origin_makes_it_whole_without_the_cache() {
    for holds in [writes_origin as fn(&Io) -> bool, syncs_origin] {
        let (mut host, disk) = Host::of(with_mode(DestageMode::Atomic));
        let wanted = write_all_kinds(&mut host, disk);
        host.hold(holds);
        let order = host.destage(disk);
        assert_eq!(host.answer(order), None);
        let progress = host.ledger(disk).progress;
        assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
        let settled = settle(&mut host.disks, disk).expect("the journal is whole");
        assert!(settled.journal_entries_applied > 0);
        assert_same(&origin(&mut host, disk), &wanted);
    }
}

/// Its entries are gone from memory by then; it was made before.
#[test]
fn a_table_that_had_to_wait_for_memory_has_all_its_entries() {
    let (mut host, disk) = Host::of(with_mode(DestageMode::Atomic));
    host.disks
        .0
        .insert(Device::Origin(disk), vec![OLD; ORIGIN_BYTES]);
    for block in [3, 5, 9] {
        host.fill(disk, block, 1);
    }
    host.hold(|io| writes_journal(io) || writes_origin(io));
    host.destage(disk);
    let mut taken = Vec::new();
    while let Some(piece) = host.core.scratch.take_piece() {
        taken.push(piece);
    }
    host.end(writes_journal);
    host.pass(1_000);
    assert!(
        !host.flights.iter().any(writes_journal),
        "there is no memory"
    );
    for piece in taken {
        host.core.scratch.free_piece(piece);
    }
    host.hold(writes_origin);
    host.pass(1_000);
    let settled = settle(&mut host.disks, disk).expect("the journal is whole");
    assert_eq!(settled.journal_entries_applied, 3);
    let source = host.memory.buffer[..4096].to_vec();
    for block in [3, 5, 9] {
        assert_same(&origin(&mut host, disk)[block * 4096..][..4096], &source);
    }
}

#[test]
fn nothing_goes_to_a_journal_or_an_origin_before_the_log_has_it() {
    for mode in [DestageMode::Atomic, DestageMode::InPlace] {
        let (mut host, disk) = Host::of(with_mode(mode));
        host.hold(|io| io.purpose == Purpose::Log && io.op == Op::Sync);
        host.fill(disk, 0, 3);
        let order = host.destage(disk);
        host.pass(1_000);
        assert_eq!(host.count(|io| writes_journal(io) || writes_origin(io)), 0);
        host.hold(none);
        assert_eq!(host.answer(order), Some(Ok(())));
    }
}

#[test]
fn a_block_that_is_destaged_is_read_as_it_was_written() {
    let (mut host, disk) = Host::write_back();
    host.disks
        .0
        .insert(Device::Origin(disk), vec![OLD; ORIGIN_BYTES]);
    for _ in 0..3 {
        assert_eq!(host.read(disk, 10, 4), Some(vec![OLD; 4 * 4096]));
    }
    assert!(
        host.show(disk).counters.reads.ram_hits > 0,
        "it is kept in RAM"
    );
    assert!(host.write(disk, 11, 2));
    host.destage(disk);
    let source = host.memory.buffer[..2 * 4096].to_vec();
    for _ in 0..3 {
        let read = host.read(disk, 10, 4).expect("it can be read");
        assert_same(&read[4096..3 * 4096], &source);
        assert_same(&read[..4096], &[OLD; 4096]);
        assert_same(&read[3 * 4096..], &[OLD; 4096]);
    }
}

/// The host tells by it which requests of a guest that was in flight have been taken.
#[test]
fn a_write_is_found_by_its_tag_and_one_in_parts_by_its_last() {
    for blocks in [3, 202] {
        let (mut host, disk) = Host::write_back();
        let request = host.request();
        let tag = Tag {
            region: 5,
            counter: 77,
        };
        host.send(Event::Write {
            volume: disk,
            request,
            sector: 0,
            sectors: blocks * BLOCK_SECTORS,
            buffer: BufferId(0),
            fua: true,
            tag,
        });
        host.pass(100);
        assert_eq!(host.answer(request), Some(Ok(())));
        host.lose_power();
        assert!(
            host.core.given.has_already(disk, tag),
            "its write was found"
        );
    }
}

#[test]
fn a_start_finds_the_newest_checkpoint_however_long_it_is() {
    let mut host = Host::new();
    let mut disks = Vec::new();
    for n in 0..40 {
        let mut long = spec(
            Policy::WriteThrough,
            &format!("disk {n} {}", "n".repeat(100)),
        );
        long.origin = String::from("o").repeat(690 + n);
        disks.push(host.attach(long));
    }
    host.core.checkpoint.wanted = true;
    host.asked.clear();
    host.pass(100);
    let written = |io: &Io| io.purpose == Purpose::Checkpoint && io.op == Op::Write;
    assert!(
        host.count(written) > 1,
        "it is longer than a piece of memory"
    );
    let order = host.switch(disks[39], Policy::Uncached);
    host.pass(100);
    assert_eq!(host.answer(order), Some(Ok(())));
    let sequence = host.core.checkpoint.sequence;
    let shown = host.core.snapshot(host.now);
    assert!(shown.checkpoints > 2 && shown.checkpoints <= sequence);
    for _ in 0..2 {
        host.lose_power();
        // What a recovery writes itself is newer.
        assert!(host.core.checkpoint.sequence >= sequence);
        for (n, disk) in disks.iter().enumerate() {
            let found = host.show(*disk);
            assert_eq!(found.origin.len(), 690 + n);
            let policy = if n == 39 {
                Policy::Uncached
            } else {
                Policy::WriteThrough
            };
            assert_eq!(found.policy, policy);
        }
    }
}

/// The stage is gone, and the host is not.
#[test]
fn a_stage_is_missed_by_what_was_served_and_not_after_an_orderly_stop() {
    let specs = || {
        let spec = |policy, name| super::spec(policy, name);
        [
            spec(Policy::WriteBack, "disk"),
            spec(Policy::Ephemeral, "overlay"),
            spec(Policy::Ephemeral, "empty"),
            spec(Policy::WriteThrough, "direct"),
        ]
    };
    let lost = |stop: bool| {
        let mut host = Host::new();
        let ids = specs().map(|spec| host.attach(spec));
        host.fill(ids[0], 0, 3);
        host.fill(ids[1], 0, 3);
        host.pass(1_000);
        if stop {
            let park = host.order(Command::Park);
            host.pass(1_000);
            assert_eq!(host.answer(park), Some(Ok(())));
        }
        host.memory.stage.fill(0);
        let mut host = host.killed();
        specs().map(|spec| {
            let id = host.core.place(&spec.name);
            let settled = settle(&mut host.disks, id).expect("it can be read");
            let held = host.core.attach(id, spec.clone(), settled.clone());
            let lost = matches!(held, Err(OpenError::StageLost(_)));
            if lost {
                let accepted = Settled {
                    without_stage: true,
                    ..settled
                };
                host.core.attach(id, spec, accepted).expect("accepted");
            }
            lost
        })
    };
    assert_eq!(lost(false), [true, true, true, false]);
    assert_eq!(lost(true), [false, true, false, false]);
}

#[test]
fn the_last_checkpoint_of_a_host_that_stops_is_the_one_that_is_found() {
    let (mut host, disk) = Host::write_back();
    for round in 0..3 {
        host.fill(disk, 10 * round, 3);
        let park = host.order(Command::Park);
        host.pass(1_000);
        assert_eq!(host.answer(park), Some(Ok(())));
        let (sequence, dirty) = (host.core.checkpoint.sequence, host.show(disk).dirty_bytes);
        host.lose_power();
        assert!(host.core.checkpoint.sequence >= sequence);
        assert_eq!(host.show(disk).dirty_bytes, dirty);
        let ledger = settle(&mut host.disks, disk).expect("it can be read");
        let id = host.core.place("disk");
        host.core
            .attach(id, spec(Policy::WriteBack, "disk"), ledger)
            .expect("it fits");
        host.send(Event::Tick);
        assert!(host.show(disk).ready);
    }
}

#[test]
fn an_end_that_is_taken_back_stays_so_after_a_kill() {
    let overlay = || {
        let mut overlay = spec(Policy::Ephemeral, "overlay");
        overlay.tuning.reset_on = ResetOn::Disconnect;
        overlay
    };
    let (mut host, volume) = Host::of(overlay());
    host.fill(volume, 0, 1);
    let wanted = host.read(volume, 0, 1);
    let why = ResetOn::Disconnect;
    let left = host.order(Command::Leave { volume, why });
    assert_eq!(host.answer(left), Some(Ok(())));
    // It had only slept; nobody hears of it before that is durable.
    host.hold(|io| io.purpose == Purpose::Checkpoint);
    let goes_on = true;
    let back = host.order(Command::Arrive { volume, goes_on });
    assert_eq!(host.answer(back), None);
    host.hold(none);
    assert_eq!(host.answer(back), Some(Ok(())));
    assert_eq!(host.read(volume, 0, 1), wanted);
    let mut host = host.killed();
    let volume = host.attach(overlay());
    let goes_on = false;
    let next = host.order(Command::Arrive { volume, goes_on });
    assert_eq!(host.answer(next), Some(Ok(())));
    assert_eq!(
        host.read(volume, 0, 1),
        wanted,
        "no end is left to be minded"
    );
}

/// A ledger beside an image comes back from a backup with it, and names a cut that is long there.
#[test]
fn a_ledger_that_is_older_than_the_log_names_no_cut_that_was_reached() {
    let (mut host, disk) = Host::of(with_mode(DestageMode::InPlace));
    host.fill(disk, 0, 1);
    host.hold(writes_origin);
    host.destage(disk);
    let old = host.disks.0[&Device::Ledger(disk)].clone();
    let of_old = Ledger::parse_file(&old).expect("whole").expect("written");
    let upto = Serial(of_old.destaged.0 + 1);
    assert_eq!(of_old.progress, Progress::Cut(upto));
    host.hold(none);
    host.fill(disk, 1, 1);
    host.destage(disk);
    host.order(Command::Park);
    host.pass(1_000);
    let mut host = host.killed();
    let destaged = host.core.volume(disk).destaged();
    assert!(destaged > upto, "the checkpoint names both writes");
    host.disks.0.insert(Device::Ledger(disk), old);
    let disk = host.attach_again(with_mode(DestageMode::InPlace));
    let written = Ledger::parse_file(&host.disks.0[&Device::Ledger(disk)]);
    let written = written.expect("it can be read").expect("it was claimed");
    assert_eq!(
        (written.progress, written.destaged),
        (Progress::Idle, destaged)
    );
}

/// Fails when: an order to reset is refused until a checkpoint names the volume.
#[test]
fn a_volume_that_has_just_come_is_reset_when_it_is_there() {
    let mut host = Host::new();
    host.hold(|io| io.purpose == Purpose::Checkpoint);
    let disk = host.attach(spec(Policy::Ephemeral, "disk"));
    let order = host.order(Command::Reset { volume: disk });
    assert_eq!(host.answer(order), None);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert!(host.write(disk, 0, 1));
}
