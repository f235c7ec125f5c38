//! Volumes whose image goes to another host.

use super::{Host, writes_origin};
use crate::event::{Command, Device, Io, Op, Refusal};
use crate::format::ledger::Ledger;

fn ledger(host: &Host, disk: crate::types::VolumeId) -> Ledger {
    let bytes = &host.disks.0[&Device::Ledger(disk)];
    let ledger = Ledger::parse_file(bytes).expect("whole");
    ledger.expect("there is one")
}

#[test]
fn a_clean_volume_is_let_go_of_when_its_ledger_says_so_and_a_dirty_one_is_not() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 7);
    let early = host.order(Command::Suspend { volume: disk });
    assert_eq!(host.answer(early), Some(Err(Refusal::Dirty)));
    let destaged = host.destage(disk);
    host.pass(1_000);
    assert_eq!(host.answer(destaged), Some(Ok(())));
    assert!(ledger(&host, disk).dirty, "it may be written at any time");
    host.hold(|io: &Io| io.op == Op::Write && matches!(io.device, Device::Ledger(_)));
    let gone = host.order(Command::Suspend { volume: disk });
    host.pass(1_000);
    assert_eq!(host.answer(gone), None, "its ledger is on its way");
    host.hold(super::none);
    host.pass(1_000);
    assert_eq!(host.answer(gone), Some(Ok(())));
    assert!(!ledger(&host, disk).dirty);
    assert!(!host.core.volume(disk).is_attached());
}

#[test]
fn a_volume_that_was_given_away_writes_no_more_and_keeps_what_is_dirty() {
    let (mut host, disk) = Host::write_back();
    host.fill(disk, 0, 7);
    host.hold(writes_origin);
    let destaged = host.destage(disk);
    host.pass(5_000);
    assert!(host.flights.iter().any(writes_origin));
    let gone = host.order(Command::Depose { volume: disk });
    assert_eq!(host.answer(gone), None, "a write is under way");
    host.hold(super::none);
    host.pass(1_000);
    assert_eq!(host.answer(destaged), Some(Err(Refusal::Held)));
    assert_eq!(host.answer(gone), Some(Ok(())));
    host.pass(10_000);
    let volume = host.core.volume(disk);
    assert!(!volume.is_attached() && volume.is_dirty());
    assert!(ledger(&host, disk).dirty, "its data is here");
}
