//! Volumes that are served from a copy before there is proof that their image is written by no
//! other host.
//!
//! Always true: the image that the taker sees is what the owner before has left in the middle of a
//! destage, and changes once more afterwards, as by a late write.

use super::replica::Pair;
use super::{Host, none, spec, writes_origin};
use crate::event::{Command, Device, Event, Io, Op, Refusal, VolumeSpec};
use crate::open::OpenError;
use crate::outbox::Cx;
use crate::settle::{Settled, settle};
use crate::types::{Policy, VolumeId};
use alloc::vec::Vec;

const HOUR_MS: u64 = 3_600_000;

fn without_proof() -> Settled {
    Settled {
        unproved: true,
        ..Settled::default()
    }
}

/// What lies at the origin and beside it, up to the last byte that is none of nothing.
fn files(host: &Host, volume: VolumeId) -> Vec<Vec<u8>> {
    let devices = [
        Device::Origin(volume),
        Device::Ledger(volume),
        Device::Journal(volume),
    ];
    let bytes = devices.map(|device| host.disks.0.get(&device).cloned().unwrap_or_default());
    let whole = |bytes: Vec<u8>| {
        let end = bytes.iter().rposition(|byte| *byte != 0);
        bytes[..end.map_or(0, |end| end + 1)].to_vec()
    };
    bytes.into_iter().map(whole).collect()
}

fn reads_origin(io: &Io) -> bool {
    io.op == Op::Read && matches!(io.device, Device::Origin(_))
}

impl Host {
    fn attach_proved(
        &mut self,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
    ) -> Result<(), OpenError> {
        let mut cx = Cx {
            now: self.now,
            memory: &mut self.memory,
            out: &mut self.out,
        };
        let attached = self.core.attach_proved(&mut cx, id, spec, settled);
        self.send(Event::Tick);
        attached
    }
}

/// The owner has destaged block 1, and was lost while it brought block 2 to the image. Blocks 2 and
/// 3 are in the copy, which is served without proof.
fn lost_in_destage() -> Pair {
    let mut pair = Pair::new();
    let disk = pair.disk;
    pair.owner.write_bytes(disk, 1, 0xa1);
    pair.carry_all();
    let first = pair.owner.destage(disk);
    pair.owner.pass(2_000);
    assert_eq!(pair.owner.answer(first), Some(Ok(())));
    pair.owner.write_bytes(disk, 2, 0xa2);
    pair.owner.memory.buffer[..4096].fill(0xa6);
    pair.owner.write_sectors(disk, 6 * 8, 3);
    pair.owner.pass(50);
    pair.carry_all();
    pair.owner.hold(writes_origin);
    pair.owner.destage(disk);
    pair.owner.pass(2_000);
    assert!(
        pair.owner.flights.iter().any(writes_origin),
        "in the middle"
    );
    pair.owner.write_bytes(disk, 3, 0xa3);
    pair.owner.pass(50);
    pair.carry_all();
    pair.own_replica(4);
    pair.share_image();
    let volume = pair.replica;
    let spec = spec(Policy::WriteBack, "disk");
    pair.member.attach_as(volume, spec, without_proof());
    pair.member.pass(100);
    pair
}

fn has(host: &mut Host, volume: VolumeId, block: u64, byte: u8) -> bool {
    host.read(volume, block, 1) == Some(alloc::vec![byte; 4096])
}

#[test]
fn a_copy_is_served_without_proof_and_nothing_is_written_to_its_image() {
    let mut pair = lost_in_destage();
    let (host, volume) = (&mut pair.member, pair.replica);
    let before = files(host, volume);
    for (block, byte) in [(1, 0xa1), (2, 0xa2), (3, 0xa3), (7, 0)] {
        assert!(has(host, volume, block, byte), "block {block}");
    }
    host.write_bytes(volume, 4, 0xa4);
    let flush = host.flush(volume);
    host.pass(50);
    assert_eq!(host.answer(flush), Some(Ok(())));
    let destage = host.destage(volume);
    assert_eq!(host.answer(destage), Some(Err(Refusal::Unproved)));
    let rest = host.order(Command::Quiesce { volume });
    assert_eq!(host.answer(rest), Some(Err(Refusal::Unproved)));
    host.pass(HOUR_MS);
    assert!(files(host, volume) == before, "age is no right");
    assert!(has(host, volume, 4, 0xa4));
}

#[test]
fn a_volume_gets_the_right_to_write_its_image_while_its_guest_waits() {
    let mut pair = lost_in_destage();
    let volume = pair.replica;
    pair.member.write_bytes(volume, 4, 0xa4);
    // Half of it is from the image, half from the log; what is kept of it clean is neither.
    let half = pair.member.read(volume, 6, 1);
    // What was under way lands late.
    pair.owner.hold(none);
    pair.owner.pass(100);
    pair.share_image();
    let host = &mut pair.member;
    host.hold(reads_origin);
    let read = host.ask(volume, 9, 1);
    let proved = host.order(Command::Prove { volume });
    let again = host.order(Command::Prove { volume });
    assert_eq!(host.answer(again), Some(Err(Refusal::Busy)));
    let late = host.ask(volume, 2, 1);
    host.pass(1_000);
    assert_eq!(host.answer(proved), None, "a read is under way");
    assert_eq!(host.answer(late), None, "no request begins");
    host.hold(none);
    host.pass(100);
    assert_eq!(host.answer(proved), Some(Ok(())));
    assert_eq!(host.answer(read), Some(Ok(())));
    assert_eq!(host.answer(late), None);
    let settled = settle(&mut host.disks, volume).expect("whole");
    let attached = host.attach_proved(volume, spec(Policy::WriteBack, "disk"), settled);
    assert!(attached.is_ok());
    host.pass(100);
    assert_eq!(host.answer(late), Some(Ok(())));
    let destage = host.destage(volume);
    host.pass(5_000);
    assert_eq!(host.answer(destage), Some(Ok(())));
    let origin = &host.disks.0[&Device::Origin(volume)];
    for (block, byte) in [(1, 0xa1), (2, 0xa2), (3, 0xa3), (4, 0xa4)] {
        assert_eq!(origin[block * 4096], byte, "block {block}");
    }
    for (block, byte) in [(1, 0xa1), (2, 0xa2), (3, 0xa3), (4, 0xa4)] {
        assert!(has(host, volume, block, byte), "block {block}");
    }
    assert!(half.is_some_and(|half| half[0] == 0xa6 && host.read(volume, 6, 1) == Some(half)));
}

#[test]
fn a_volume_whose_image_does_not_fit_goes_on_without_the_right() {
    let mut pair = lost_in_destage();
    let (host, volume) = (&mut pair.member, pair.replica);
    let before = files(host, volume);
    let proved = host.order(Command::Prove { volume });
    host.pass(100);
    assert_eq!(host.answer(proved), Some(Ok(())));
    let mut other = spec(Policy::WriteBack, "disk");
    other.size_bytes /= 2;
    let settled = Settled::default();
    assert!(host.attach_proved(volume, other, settled).is_err());
    host.pass(100);
    assert!(has(host, volume, 2, 0xa2) && has(host, volume, 1, 0xa1));
    host.write_bytes(volume, 4, 0xa4);
    host.pass(HOUR_MS);
    assert!(files(host, volume) == before);
    let again = host.order(Command::Prove { volume });
    host.pass(100);
    assert_eq!(host.answer(again), Some(Ok(())));
}

#[test]
fn a_volume_that_is_given_away_in_the_middle_gets_no_right() {
    let mut pair = lost_in_destage();
    let (host, volume) = (&mut pair.member, pair.replica);
    let before = files(host, volume);
    host.hold(reads_origin);
    host.ask(volume, 9, 1);
    let proved = host.order(Command::Prove { volume });
    let gone = host.order(Command::Suspend { volume });
    assert_eq!(host.answer(gone), Some(Err(Refusal::Busy)));
    let deposed = host.order(Command::Depose { volume });
    assert_eq!(host.answer(proved), Some(Err(Refusal::Gone)));
    host.hold(none);
    host.pass(100);
    assert_eq!(host.answer(deposed), Some(Ok(())));
    assert!(files(host, volume) == before);
}

#[test]
fn a_volume_without_proof_is_none_of_this_host_s_without_a_copy() {
    let (mut host, disk) = Host::write_back();
    let spec = spec(Policy::WriteBack, "other");
    let id = host.core.place("other");
    assert!(host.core.attach(id, spec, without_proof()).is_err());
    let proved = host.order(Command::Prove { volume: disk });
    assert_eq!(host.answer(proved), Some(Err(Refusal::Busy)));
}

#[test]
fn a_volume_without_proof_can_be_given_away_and_is_served_without_proof_after_a_loss_of_power() {
    let mut pair = lost_in_destage();
    let volume = pair.replica;
    pair.member.write_bytes(volume, 4, 0xa4);
    let flush = pair.member.flush(volume);
    pair.member.pass(50);
    assert_eq!(pair.member.answer(flush), Some(Ok(())));
    let before = files(&pair.member, volume);
    let mut host = pair.member;
    host.lose_power();
    let found = host.core.place("disk");
    host.attach_as(found, spec(Policy::WriteBack, "disk"), without_proof());
    host.pass(100);
    for (block, byte) in [(1, 0xa1), (2, 0xa2), (3, 0xa3), (4, 0xa4)] {
        assert!(has(&mut host, found, block, byte), "block {block}");
    }
    let gone = host.order(Command::Depose { volume: found });
    host.pass(100);
    assert_eq!(host.answer(gone), Some(Ok(())));
    assert!(files(&host, found) == before);
}

/// Fails when: the host that takes a volume over with a backup window writes its image when it gets
/// the right to.
#[test]
fn a_rest_that_is_kept_outlasts_the_proof() {
    let mut pair = lost_in_destage();
    let volume = pair.replica;
    pair.owner.hold(none);
    pair.owner.pass(100);
    pair.share_image();
    let host = &mut pair.member;
    let begins = true;
    let kept = host.order(Command::KeepRest { volume, begins });
    assert_eq!(host.answer(kept), Some(Ok(())));
    host.write_bytes(volume, 4, 0xa4);
    let proved = host.order(Command::Prove { volume });
    host.pass(100);
    assert_eq!(host.answer(proved), Some(Ok(())));
    let settled = settle(&mut host.disks, volume).expect("whole");
    let attached = host.attach_proved(volume, spec(Policy::WriteBack, "disk"), settled);
    assert!(attached.is_ok());
    host.count(writes_origin);
    host.pass(HOUR_MS);
    assert!(host.show(volume).rests && host.count(writes_origin) == 0);
    let resume = host.order(Command::Resume { volume });
    assert_eq!(host.answer(resume), Some(Ok(())));
    let destage = host.destage(volume);
    host.pass(5_000);
    assert_eq!(host.answer(destage), Some(Ok(())));
}
