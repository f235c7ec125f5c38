//! Rules that no gate of the simulator notices broken: for each, the one way on which it matters.
//!
//! Always true: a way is gone twice, and its promise holds while the rule is kept and does not
//! where it is broken. So these tests have been seen failing whenever they pass. The audit of the
//! simulator names them. Deliberately absent: rules that a gate of the audit notices.

use super::allocate::read_behind_a_failed_plan;
use super::planned::read_beside_a_torn_table;
use super::quiesce::{exchange_under_a_read, read_behind_a_smaller_disk, start_behind_a_snapshot};
use super::rebase::start_behind_a_move;
use super::replica::{Pair, count_behind_a_cut, delta_behind_a_gap, part_of_a_write};
use super::room::guest_beside_a_promise;
use super::{Disks, GEOMETRY, Host, config, memory, none, spec, syncs_origin, writes_journal};
use crate::adversary::{Bug, break_rule};
use crate::engine::Config;
use crate::event::{Admission, Device, Io, IoError, Op, Purpose, Stat};
use crate::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger};
use crate::map::Content;
use crate::media::Media;
use crate::types::{BLOCK_SECTORS, Policy, Span, VolumeId};
use alloc::vec::Vec;

/// Whether this way keeps its promise while all rules are kept, and not without this one.
fn notices(bug: Bug, way: fn() -> bool) {
    assert!(way(), "all rules are kept");
    break_rule(Some(bug));
    let holds = way();
    break_rule(None);
    assert!(!holds, "nobody notices {bug:?}");
}

fn is_dead(io: &Io) -> Option<IoError> {
    (io.device == Device::Cache && io.op != Op::Read).then_some(IoError::Failed)
}

/// A guest writes past a dead log, its daemon is killed, and the device is good again. The flush
/// of the next life finds an empty log, and covers the write all the same.
fn flush_after_a_life_past_the_log() -> bool {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 1);
    host.fail(is_dead);
    host.flush(disk);
    host.pass(15_000);
    assert!(host.show(disk).past_log);
    host.hold(syncs_origin);
    assert!(host.write(disk, 5, 1));

    let mut host = host.killed();
    host.hold(syncs_origin);
    let disk = host.attach_again(spec(Policy::WriteBack, "disk"));
    let flush = host.flush(disk);
    host.pass(1_000);
    let early = host.answer(flush);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(flush), Some(Ok(())));
    assert_eq!(host.show(disk).policy, Policy::WriteBack);
    early.is_none()
}

#[test]
fn a_flush_covers_what_a_life_past_a_dead_log_has_left_unsynced() {
    notices(Bug::ForgetPastLog, flush_after_a_life_past_the_log);
}

#[test]
fn nothing_is_read_by_tables_that_a_power_loss_may_have_torn() {
    notices(Bug::ReadTornTables, read_beside_a_torn_table);
}

#[test]
fn what_a_failed_plan_has_brought_to_the_file_is_read_when_that_is_read_anew() {
    notices(Bug::KeepBehindFailedPlan, read_behind_a_failed_plan);
}

#[test]
fn files_of_an_image_are_not_exchanged_under_a_read() {
    notices(Bug::ExchangeUnderReads, exchange_under_a_read);
}

#[test]
fn a_block_that_the_end_of_a_disk_cuts_is_whole_for_a_larger_disk_on_the_same_file() {
    notices(Bug::CutAtVolume, read_behind_a_smaller_disk);
}

#[test]
fn a_start_takes_the_file_that_a_snapshot_has_put_in_place_before_a_kill() {
    notices(Bug::RefuseSuccessor, start_behind_a_snapshot);
}

#[test]
fn a_start_takes_an_image_that_a_kill_has_left_on_another_file() {
    notices(Bug::ClaimMoving, start_behind_a_move);
}

/// Where the zeroes of a block lie, in each epoch that has some.
fn zeroes_of(host: &mut Host, disk: VolumeId, block: u64) -> Vec<Content> {
    let span = Span::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
    let mut found = Vec::new();
    for epoch in &host.core.volume(disk).epochs {
        epoch.map.get(span, |_, content| {
            found.extend(content.filter(|it| matches!(it, Content::Zero { .. })));
        });
    }
    found
}

/// Three epochs, none of which gets to the origin: zeroes, a write over a part of them, and zeroes
/// over that. Evacuation brings both zeroes into one record, and moves them out of it again.
fn zeroes_that_are_moved_twice() -> bool {
    let (mut host, disk) = Host::write_back();
    let overlay = host.attach(spec(Policy::Ephemeral, "overlay"));
    host.hold(writes_journal);
    host.zero(disk, 0, 3);
    host.destage(disk);
    host.fill(disk, 1, 1);
    // As a group does, or a switch.
    host.core.seal(disk);
    host.zero(disk, 1, 1);
    assert_eq!(host.core.volume(disk).epochs.len(), 3);

    let mut moved_together = 0;
    let mut before = zeroes_of(&mut host, disk, 1);
    let mut rng = workload::rng::Rng::new(1);
    for n in 0..4_000 {
        host.write(overlay, rng.below(400), 1);
        if n % 3 == 0 {
            // What dies at once, so that the segment of the zeroes is always the cheapest.
            host.write(disk, 300, 1);
        }
        host.pass(1);
        let now = zeroes_of(&mut host, disk, 1);
        if before[0] == before[1] && now != before {
            moved_together += 1;
        }
        before = now;
        if moved_together == 2 {
            break;
        }
    }
    assert_eq!(moved_together, 2);
    let flush = host.flush(disk);
    assert_eq!(host.answer(flush), Some(Ok(())));
    let mut host = host.without_power();
    let disk = host.attach_again(spec(Policy::WriteBack, "disk"));
    host.read(disk, 1, 1)
        .expect("it is read")
        .iter()
        .all(|byte| *byte == 0)
}

#[test]
fn zeroes_that_were_moved_cover_the_write_before_them_after_a_power_loss() {
    notices(Bug::MoveZeroesOldestFirst, zeroes_that_are_moved_twice);
}

/// Blocks of one volume are on their way to the device when it becomes uncached, and another one
/// gets the number that its layer had.
fn blocks_under_the_number_of_a_forgotten_layer() -> bool {
    let mut host = Host::with(Config {
        index_bytes_max: 1 << 20,
        ..config()
    });
    let [first, second] = ["first", "second"].map(|name| {
        let mut spec = spec(Policy::WriteThrough, name);
        spec.tuning.admission = Admission::All;
        host.attach(spec)
    });
    for (volume, byte) in [(first, 0xaa), (second, 0xbb)] {
        let image = [byte; 100 * 4096];
        let written = host.disks.write(Device::Origin(volume), 0, &image);
        written.expect("this one does not fail");
    }
    host.hold(|io| io.purpose == Purpose::Fill);
    assert_eq!(host.read(first, 0, 1).expect("it is read")[0], 0xaa);
    host.pass(1_000);
    assert!(host.flights.iter().any(|io| io.purpose == Purpose::Fill));
    host.switch(first, Policy::Uncached);
    host.pass(1_000);
    assert_eq!(host.read(second, 50, 1).expect("it is read")[0], 0xbb);
    host.hold(none);
    host.pass(1_000);
    host.read(second, 0, 1).expect("it is read")[0] == 0xbb
}

#[test]
fn blocks_of_a_layer_that_was_forgotten_are_not_found_under_its_number() {
    notices(
        Bug::KeepOrphans,
        blocks_under_the_number_of_a_forgotten_layer,
    );
}

/// Devices whose writes are noted and one of whose syncs may fail.
#[derive(Default)]
struct Noted {
    disks: Disks,
    writes: Vec<(Device, u64, Vec<u8>)>,
    synced: Vec<Device>,
    fails_at: Option<usize>,
}

impl Media for Noted {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        self.disks.read(device, offset, bytes)
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.writes.push((device, offset, bytes.to_vec()));
        self.disks.write(device, offset, bytes)
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.write(device, offset, &alloc::vec![0; bytes as usize])
    }

    fn sync(&mut self, device: Device) -> Result<(), IoError> {
        self.synced.push(device);
        match self.fails_at == Some(self.synced.len()) {
            true => Err(IoError::Failed),
            false => Ok(()),
        }
    }

    fn stat(&mut self, device: Device) -> Result<Stat, IoError> {
        self.disks.stat(device)
    }
}

/// The first record behind the last sync is torn, and its segment has a footer already. The first
/// recovery writes a footer without it, and the sync of that fails. The second one reads that
/// footer, and comes to its end; then the power goes again, and of the device remains what was
/// written since.
fn footer_of_a_recovery_that_failed() -> bool {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 7);
    let flush = host.flush(disk);
    assert_eq!(host.answer(flush), Some(Ok(())));
    host.hold(|io| io.device == Device::Cache && io.op == Op::Sync);
    host.fill(disk, 7, 33);
    let mut torn = None;
    let span = Span::new(7 * BLOCK_SECTORS, BLOCK_SECTORS);
    host.core.volume(disk).epochs[0]
        .map
        .get(span, |_, content| torn = content);
    let Some(Content::Data(addr)) = torn else {
        panic!("block 7 is in the log");
    };
    let at = host.core.log.device_at(addr);
    let zeroes = host.disks.zero(Device::Cache, at, 4096);
    zeroes.expect("this one does not fail");
    let config = Config {
        boot: crate::types::Uuid([4; 16]),
        ..host.core.config.clone()
    };

    let mut media = Noted {
        disks: host.disks,
        fails_at: Some(2),
        ..Noted::default()
    };
    let mut ram = memory(&config);
    let mut durable = media.disks.clone();
    assert!(crate::recover::recover(config.clone(), &mut media, &mut ram).is_err());
    assert!(!media.writes.is_empty(), "a footer, behind the first sync");
    (media.fails_at, media.writes) = (None, Vec::new());
    let second = crate::recover::recover(config.clone(), &mut media, &mut ram);
    assert!(second.is_ok());
    for (device, offset, bytes) in &media.writes {
        let written = durable.write(*device, *offset, bytes);
        written.expect("this one does not fail");
    }

    let mut host = Host::open(config.clone(), durable, memory(&config));
    let disk = host.attach_again(spec(Policy::WriteBack, "disk"));
    let is_zero = |block: &Vec<u8>| block.iter().all(|byte| *byte == 0);
    assert_eq!(host.read(disk, 1, 1).as_ref().map(is_zero), Some(false));
    host.read(disk, 7, 1).as_ref().map(is_zero) == Some(true)
}

#[test]
fn what_a_failed_recovery_has_left_out_does_not_come_back_with_the_next_loss_of_power() {
    notices(Bug::BelieveFailedRecovery, footer_of_a_recovery_that_failed);
}

/// A ledger was written and its daemon killed before the sync. The next daemon reads it, and the
/// power goes while it writes its own over the slot before: of the two, one must be whole.
fn ledger_of_a_life_without_its_sync() -> bool {
    let (host, disk) = Host::write_back();
    let device = Device::Ledger(disk);
    let mut durable = host.disks.clone();
    let mut media = Noted {
        disks: host.disks,
        ..Noted::default()
    };
    let mut bytes = alloc::vec![0; LEDGER_BYTES * LEDGER_SLOTS as usize];
    media.read(device, 0, &mut bytes).expect("there is one");
    let mut ledger = Ledger::parse_file(&bytes).expect("whole").expect("claimed");
    ledger.sequence += 1;
    let written = media.write(device, Ledger::slot_at(ledger.sequence), &ledger.encode());
    written.expect("this one does not fail");
    let settled = crate::settle::settle(&mut media, disk).expect("whole");
    assert_eq!(settled.ledger.as_ref(), Some(&ledger));

    if media.synced.contains(&device) {
        durable = media.disks;
    }
    let torn = durable.write(device, Ledger::slot_at(ledger.sequence + 1), &[0xaa; 512]);
    torn.expect("this one does not fail");
    durable.read(device, 0, &mut bytes).expect("it is there");
    Ledger::parse_file(&bytes) == Ok(Some(ledger))
}

#[test]
fn a_ledger_is_durable_before_the_slot_before_it_is_written_over() {
    notices(
        Bug::BelieveUnsyncedLedger,
        ledger_of_a_life_without_its_sync,
    );
}

/// Where the footer of a segment lies.
fn footer_of(host: &Host, segment: u32) -> Vec<u8> {
    let chunk = GEOMETRY.chunk_bytes() as usize;
    let segment_bytes = chunk * GEOMETRY.segment_chunks as usize;
    let at = host.core.superblock.log_at as usize + (segment as usize + 1) * segment_bytes - chunk;
    host.disks.0[&Device::Cache][at..at + chunk].to_vec()
}

/// A write in pieces lies in the first segment and those behind it, with blocks of another volume
/// before it. It is recovered and destaged, what lies behind is used again, and the daemon is
/// killed. The footer of the first segment says alone what is there, and a piece of a write without
/// its last one is in it.
fn settled_footer_with_a_piece() -> bool {
    let (mut host, disk) = Host::write_back();
    let other = spec(Policy::WriteBack, "another");
    let another = host.attach(other.clone());
    host.fill(another, 0, 3);
    assert!(host.write(disk, 0, 40));
    host.flush(disk);
    let mut host = host.without_power();
    let disk = host.attach_again(spec(Policy::WriteBack, "disk"));
    let another = host.attach_again(other);
    let order = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    host.core.checkpoint.wanted = true;
    host.pass(1_000);
    assert_eq!(host.show(another).dirty_bytes, 3 * 4096);
    let before = footer_of(&host, 0);
    let host = host.without_power();
    footer_of(&host, 0) == before
}

#[test]
fn a_footer_that_alone_says_what_counts_is_not_written_over() {
    notices(Bug::WriteOverSettled, settled_footer_with_a_piece);
}

#[test]
fn a_peer_counts_only_with_what_a_destage_has_begun_with() {
    notices(Bug::CountForgettingCuts, count_behind_a_cut);
}

#[test]
fn what_is_left_of_a_write_leaves_those_before_it_alone() {
    notices(Bug::MergePartialDelta, part_of_a_write);
}

#[test]
fn a_delta_behind_a_gap_is_refused() {
    notices(Bug::SkipGapCheck, delta_behind_a_gap);
}

/// The device of the owner dies under what the peer has as well. True if the image is not written
/// past the log while the peer counts.
fn past_the_log_with_a_copy() -> bool {
    let mut pair = Pair::new();
    let disk = pair.disk;
    pair.owner.write_bytes(disk, 3, 0xa1);
    pair.owner.flush(disk);
    pair.carry_all();
    let count = pair.count();
    assert_eq!(pair.owner.answer(count), Some(Ok(())));
    pair.owner.fail(is_dead);
    pair.owner.write_bytes(disk, 4, 0xa2);
    let flush = pair.owner.flush(disk);
    for _ in 0..30 {
        pair.owner.pass(1_000);
        pair.carry_all();
    }
    let shown = pair.owner.core.copy(disk).expect("it is there");
    assert!(shown.past_log && !shown.dirty && shown.at_origin);
    let waits = !pair.owner.show(disk).past_log;
    pair.stop(false);
    pair.owner.pass(1_000);
    assert!(pair.owner.show(disk).past_log);
    assert_eq!(pair.owner.answer(flush), Some(Ok(())));
    waits
}

#[test]
fn the_image_is_not_written_past_the_log_while_a_copy_counts() {
    notices(Bug::BypassPeers, past_the_log_with_a_copy);
}

#[test]
fn no_guest_takes_room_that_was_promised_to_a_copy() {
    notices(Bug::TakePromisedRoom, guest_beside_a_promise);
}
