//! Journals that a killed daemon has left, and that are replayed while their volume is served.

use super::{Host, fine, none, spec, syncs_origin, writes_journal, writes_origin};
use crate::engine::{OpenError, Otherwise, settle_for};
use crate::event::{Command, Device, Io, IoError, Op, Refusal, Tuning};
use crate::format::ledger::Progress;
use crate::image::Finding;
use crate::snapshot::State;
use crate::types::{Policy, VolumeId};
use alloc::vec;
use alloc::vec::Vec;

const ORIGIN_BYTES: usize = 4 << 20;
/// Of the image before all writes.
const OLD: u8 = 0xaa;
/// Written by the destage that is killed, and after it.
const BLOCKS: u64 = 40;

fn reads_journal(io: &Io) -> bool {
    io.op == Op::Read && matches!(io.device, Device::Journal(_))
}

fn fails_every_other(io: &Io) -> Option<IoError> {
    let fails = writes_origin(io) && io.offset.is_multiple_of(4 * 4096);
    fails.then_some(IoError::Failed)
}

/// What the guest has written: `late` is what followed the beginning of the destage.
struct Written {
    journaled: Vec<u8>,
    late: Vec<u8>,
}

impl Written {
    /// All blocks as the guest has to see them.
    fn all(&self) -> Vec<u8> {
        let mut all = self.journaled.clone();
        for block in (0..BLOCKS as usize).step_by(8) {
            all[block * 4096..][..4096].copy_from_slice(&self.late);
        }
        all
    }
}

/// Every other block was written and is being destaged; half of them have reached the image. Then
/// the guest has written some of them again.
fn killed_in_a_destage() -> (Host, VolumeId, Written) {
    let (mut host, disk) = Host::write_back();
    let image = vec![OLD; ORIGIN_BYTES];
    host.disks.0.insert(Device::Origin(disk), image);
    let early = host.memory.buffer[..4096].to_vec();
    for block in (0..BLOCKS).step_by(2) {
        host.fill(disk, block, 1);
    }
    host.fail(fails_every_other);
    host.destage(disk);
    host.pass(2_000);
    let progress = host.ledger(disk).progress;
    assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
    let mut written = Written {
        journaled: vec![OLD; BLOCKS as usize * 4096],
        late: vec![0x5c; 4096],
    };
    for block in (0..BLOCKS as usize).step_by(2) {
        written.journaled[block * 4096..][..4096].copy_from_slice(&early);
    }
    host.memory.buffer[..4096].fill(0x5c);
    for block in (0..BLOCKS).step_by(8) {
        host.fill(disk, block, 1);
    }
    host.flush(disk);
    (host.killed(), disk, written)
}

impl Host {
    /// Attaches a volume, and leaves its journal to be replayed while it is served.
    fn attach_with_journal(&mut self, disk: VolumeId) {
        let cache = Some(self.core.superblock.cache);
        let settled = settle_for(&mut self.disks, disk, Otherwise::Refuse, cache);
        let settled = settled.expect("the ledger is whole");
        assert!(settled.journal_left);
        self.attach_as(disk, spec(Policy::WriteBack, "disk"), settled);
    }

    fn image(&self, disk: VolumeId) -> &[u8] {
        &self.disks.0[&Device::Origin(disk)][..BLOCKS as usize * 4096]
    }

    fn destages_to_its_end(&mut self, disk: VolumeId, written: &Written) {
        let order = self.destage(disk);
        self.pass(3_000);
        assert_eq!(self.answer(order), Some(Ok(())));
        assert_eq!(self.state(disk), (State::Clean, None));
        assert_eq!(self.ledger(disk).progress, Progress::Idle);
        assert_eq!(self.image(disk), written.all());
        assert_eq!(self.read(disk, 0, BLOCKS), Some(written.all()));
    }
}

#[test]
fn a_volume_is_served_while_its_journal_is_replayed() {
    let (mut host, disk, written) = killed_in_a_destage();
    host.hold(reads_journal);
    host.attach_with_journal(disk);
    assert_eq!(host.count(reads_journal), 1, "its header");
    assert_eq!(host.read(disk, 0, BLOCKS), Some(written.all()));
    assert!(host.write(disk, 0, 1), "and takes writes");
    let order = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.count(writes_journal), 0, "it is not written over");
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Ok(())));
    host.destages_to_its_end(disk, &written);
}

/// The late writes are not in the journal, so they are not at the image yet.
#[test]
fn the_image_gets_what_the_journal_has_and_not_what_was_written_since() {
    let (mut host, disk, written) = killed_in_a_destage();
    host.hold(writes_journal);
    host.attach_with_journal(disk);
    assert_eq!(host.ledger(disk).progress, Progress::Idle);
    assert_eq!(host.image(disk), written.journaled);
    assert!(host.show(disk).dirty_bytes > 0);
    host.hold(none);
    host.destages_to_its_end(disk, &written);
}

/// What the journal has is an epoch of its own after a recovery as well, so the next journal has
/// nothing of it.
#[test]
fn epochs_are_the_same_after_a_kill() {
    let (mut host, disk, _) = killed_in_a_destage();
    let serials = |host: &mut Host| {
        let epochs = &host.core.volume(disk).epochs;
        let serials = epochs.iter().map(|epoch| epoch.last_serial.0);
        serials.collect::<Vec<_>>()
    };
    assert_eq!(serials(&mut host), [BLOCKS / 2, BLOCKS / 2 + BLOCKS / 8]);
    host.hold(writes_journal);
    host.attach_with_journal(disk);
    assert_eq!(serials(&mut host), [BLOCKS / 2 + BLOCKS / 8]);
}

#[test]
fn a_replay_that_is_killed_anywhere_begins_again() {
    let holds: [fn(&Io) -> bool; 3] = [reads_journal, writes_origin, syncs_origin];
    for hold in holds {
        let (mut host, disk, written) = killed_in_a_destage();
        host.hold(hold);
        host.attach_with_journal(disk);
        let progress = host.ledger(disk).progress;
        assert!(matches!(progress, Progress::Apply { .. }), "{progress:?}");
        let mut host = host.killed();
        host.attach_with_journal(disk);
        host.destages_to_its_end(disk, &written);
    }
}

#[test]
fn requests_of_a_replay_that_fail_are_sent_again() {
    let fails: [fn(&Io) -> Option<IoError>; 3] = [
        fails_every_other,
        |io| reads_journal(io).then_some(IoError::Failed),
        |io| syncs_origin(io).then_some(IoError::Failed),
    ];
    for fail in fails {
        let (mut host, disk, written) = killed_in_a_destage();
        host.fail(fail);
        host.attach_with_journal(disk);
        host.pass(5_000);
        assert_eq!(host.state(disk).0, State::Stalled);
        assert_eq!(host.read(disk, 0, 1), Some(written.late.clone()), "served");
        host.fail(fine);
        host.pass(2_000);
        host.destages_to_its_end(disk, &written);
    }
}

/// The log has what the journal had.
#[test]
fn a_journal_that_is_damaged_or_unreadable_is_given_up_while_its_volume_is_served() {
    for unreadable in [false, true] {
        let (mut host, disk, written) = killed_in_a_destage();
        if unreadable {
            host.fail(|io| reads_journal(io).then_some(IoError::Failed));
        } else {
            let journal = host.disks.0.get_mut(&Device::Journal(disk));
            *journal
                .expect("it is there")
                .last_mut()
                .expect("it has bytes") ^= 1;
        }
        host.attach_with_journal(disk);
        assert_eq!(host.read(disk, 0, BLOCKS), Some(written.all()));
        if unreadable {
            host.pass(59_000);
            assert_eq!(host.count(writes_journal), 0, "a storage may be away");
            host.pass(3_000);
        }
        host.pass(1_000);
        assert!(host.count(writes_journal) > 0, "its cut is written anew");
        host.destages_to_its_end(disk, &written);
    }
}

#[test]
fn a_journal_that_the_log_does_not_have_is_not_left_to_it() {
    let (host, disk, _) = killed_in_a_destage();
    let mut other = Host::new();
    let beside = host.disks.0.into_iter();
    let beside = beside.filter(|(device, _)| *device != Device::Cache);
    other.disks.0.extend(beside);
    let cache = Some(other.core.superblock.cache);
    let settled = settle_for(&mut other.disks, disk, Otherwise::Refuse, cache).expect("read");
    let wanted = spec(Policy::WriteBack, "disk");
    let refused = other.core.attach(disk, wanted, settled);
    assert_eq!(refused, Err(OpenError::JournalFirst));
}

#[test]
fn a_volume_that_is_given_up_waits_for_its_replay() {
    let (mut host, disk, written) = killed_in_a_destage();
    host.hold(writes_origin);
    host.attach_with_journal(disk);
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    host.pass(1_000);
    assert_eq!(host.answer(gone), None);
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(gone), Some(Ok(())));
    assert_eq!(host.image(disk), written.journaled);
}

/// Nothing of it is in flight, and some entries wait for the end of a pause.
#[test]
fn a_volume_whose_image_is_another_one_is_let_go_in_the_middle_of_its_replay() {
    let (mut host, disk, _) = killed_in_a_destage();
    host.hold(reads_journal);
    host.attach_with_journal(disk);
    let volume = host.core.volume(disk);
    volume.tune(Tuning {
        origin_queue_depth: 1,
        ..*volume.tuning()
    });
    host.fail(|io| writes_origin(io).then_some(IoError::Failed));
    host.hold(none);
    host.core.volume(disk).image_misfits(Finding::Replaced);
    let gone = host.order(Command::Suspend { volume: disk });
    assert_eq!(host.answer(gone), Some(Ok(())));
}

/// Its ledger is on its way, and what was to follow it is not there any more.
#[test]
fn a_volume_whose_device_failed_is_let_go_in_the_middle_of_a_step_of_its_ledger() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 7);
    let writes_ledger = |io: &Io| io.op == Op::Write && matches!(io.device, Device::Ledger(_));
    host.hold(writes_ledger);
    let order = host.destage(disk);
    host.pass(100);
    assert_eq!(host.answer(order), None, "its ledger is being written");
    host.core.volume(disk).enter_bypass();
    host.core.volume(disk).hold_in_bypass();
    let gone = host.order(Command::Detach {
        volume: disk,
        discard_dirty: true,
    });
    host.hold(none);
    host.pass(1_000);
    assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));
    assert_eq!(host.answer(gone), Some(Ok(())));
}
