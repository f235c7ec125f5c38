//! Disks that become larger and smaller, to sizes that are no multiple of a block.

use super::{Host, fine, none, spec};
use crate::event::{Command, Device, Event, Io, IoError, Op, Purpose, Refusal};
use crate::snapshot::State;
use crate::types::{BufferId, Policy, SECTOR_BYTES, VolumeId};
use alloc::vec::Vec;

/// Ten blocks and three sectors; the shorter one ends in the middle of a block.
const LONG: u64 = 83;
const SHORT: u64 = 41;

fn disk(policy: Policy) -> (Host, VolumeId) {
    let mut odd = spec(policy, "disk");
    odd.size_bytes = LONG * SECTOR_BYTES;
    Host::of(odd)
}

fn resize(host: &mut Host, volume: VolumeId, sectors: u64) -> Option<Result<(), Refusal>> {
    let size_bytes = sectors * SECTOR_BYTES;
    let order = host.order(Command::Resize { volume, size_bytes });
    host.pass(1_000);
    host.answer(order)
}

/// The first byte of each sector. A write here gives each its own number.
fn read(host: &mut Host, volume: VolumeId, sectors: u64) -> Vec<u64> {
    let before = host.memory.buffer.clone();
    host.memory.buffer.fill(0xee);
    let request = host.request();
    host.send(Event::Read {
        volume,
        request,
        sector: 0,
        sectors,
        buffer: BufferId(0),
    });
    let read = core::mem::replace(&mut host.memory.buffer, before);
    assert_eq!(host.answer(request), Some(Ok(())));
    let sectors = read.chunks(SECTOR_BYTES as usize).take(sectors as usize);
    sectors.map(|sector| u64::from(sector[0])).collect()
}

fn numbers(upto: u64, end: u64) -> Vec<u64> {
    (0..end).map(|it| if it < upto { it } else { 0 }).collect()
}

#[test]
fn what_was_behind_the_end_of_a_smaller_disk_never_comes_back() {
    for policy in [Policy::WriteBack, Policy::WriteThrough, Policy::Uncached] {
        let (mut host, disk) = disk(policy);
        let written = host.write_sectors(disk, 0, LONG);
        assert_eq!(host.answer(written), Some(Ok(())));
        host.destage(disk);
        // It is kept clean from now on.
        for _ in 0..2 {
            assert_eq!(read(&mut host, disk, LONG), numbers(LONG, LONG));
        }
        assert_eq!(resize(&mut host, disk, SHORT), Some(Ok(())), "{policy:?}");
        assert_eq!(read(&mut host, disk, SHORT), numbers(SHORT, SHORT));
        assert_eq!(resize(&mut host, disk, LONG), Some(Ok(())), "{policy:?}");
        assert_eq!(read(&mut host, disk, LONG), numbers(SHORT, LONG));
    }
}

#[test]
fn a_disk_with_dirty_data_becomes_larger_and_not_smaller() {
    let (mut host, disk) = disk(Policy::WriteBack);
    let written = host.write_sectors(disk, 0, LONG);
    assert_eq!(host.answer(written), Some(Ok(())));
    for smaller in [LONG - 1, SHORT, 8, 1] {
        let refused = resize(&mut host, disk, smaller);
        assert_eq!(refused, Some(Err(Refusal::Dirty)), "{smaller} sectors");
    }
    assert_eq!(resize(&mut host, disk, LONG + 6), Some(Ok(())));
    let all = numbers(LONG, LONG + 6);
    assert_eq!(read(&mut host, disk, LONG + 6), all, "from the log");
    let order = host.destage(disk);
    assert_eq!(host.answer(order), Some(Ok(())));
    assert_eq!(host.state(disk).0, State::Clean);
    assert_eq!(read(&mut host, disk, LONG + 6), all, "from the image");
    let image = &host.disks.0[&Device::Origin(disk)];
    assert_eq!(image.len() as u64, (LONG + 6) * SECTOR_BYTES);
}

#[test]
fn an_image_that_cannot_change_leaves_its_disk_as_it_was() {
    let (mut host, disk) = disk(Policy::WriteThrough);
    let written = host.write_sectors(disk, 0, LONG);
    assert_eq!(host.answer(written), Some(Ok(())));
    host.fail(|io| (io.op == Op::Resize).then_some(IoError::NoSpace));
    for other in [SHORT, LONG + 6] {
        assert_eq!(
            resize(&mut host, disk, other),
            Some(Err(Refusal::OriginFull))
        );
        assert_eq!(read(&mut host, disk, LONG), numbers(LONG, LONG));
    }
    host.fail(fine);
    assert_eq!(resize(&mut host, disk, SHORT), Some(Ok(())));
}

#[test]
fn an_overlay_keeps_the_size_of_its_image() {
    let (mut host, disk) = disk(Policy::Ephemeral);
    for other in [SHORT, LONG + 6] {
        assert_eq!(resize(&mut host, disk, other), Some(Err(Refusal::Policy)));
    }
}

#[test]
fn who_resizes_a_volume_that_goes_is_answered() {
    for holds in [
        (|io| io.purpose == Purpose::Checkpoint) as fn(&Io) -> bool,
        |io| io.op == Op::Resize,
    ] {
        let (mut host, volume) = disk(Policy::WriteBack);
        host.hold(holds);
        let size_bytes = SHORT * SECTOR_BYTES;
        let order = host.order(Command::Resize { volume, size_bytes });
        let discard_dirty = true;
        let gone = host.order(Command::Detach {
            volume,
            discard_dirty,
        });
        host.pass(1_000);
        host.hold(none);
        host.pass(1_000);
        assert_eq!(host.answer(order), Some(Err(Refusal::Gone)));
        assert_eq!(host.answer(gone), Some(Ok(())));
    }
}
