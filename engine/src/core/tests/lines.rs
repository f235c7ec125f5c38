//! Which clean blocks are kept on the cache device.

use super::{Host, config, spec};
use crate::engine::Config;
use crate::event::{Admission, Command, Device, Io, Op, Purpose};
use crate::types::{Policy, VolumeId};

/// The budget of clean blocks: 3,276 blocks are remembered.
const INDEX_BYTES: u64 = 128 << 10;

fn reader(admission: Admission) -> (Host, VolumeId) {
    let mut host = Host::with(Config {
        index_bytes_max: INDEX_BYTES,
        ..config()
    });
    let mut spec = spec(Policy::WriteThrough, "disk");
    spec.tuning.admission = admission;
    let disk = host.attach(spec);
    (host, disk)
}

fn asks_origin(io: &Io) -> bool {
    matches!(io.device, Device::Origin(_)) && io.op == Op::Read
}

fn keeps(io: &Io) -> bool {
    io.purpose == Purpose::Fill && io.op == Op::Write
}

/// Reads each of these blocks once, and lets what is to be kept reach the device; how many came
/// from the image, and whether some were kept.
fn scan(host: &mut Host, disk: VolumeId, blocks: core::ops::Range<u64>) -> (usize, bool) {
    host.asked.clear();
    for block in blocks {
        assert!(host.read(disk, block, 1).is_some());
    }
    host.pass(1_000);
    let asked = core::mem::take(&mut host.asked);
    let from_origin = asked.iter().filter(|io| asks_origin(io)).count();
    (from_origin, asked.iter().any(keeps))
}

#[test]
fn a_block_that_is_read_twice_is_kept_though_the_tier_has_forgotten_it_long_since() {
    let (mut host, disk) = reader(Admission::Reuse);
    assert_eq!(scan(&mut host, disk, 0..4), (4, false));
    // The tier has 64 places, and remembers as many.
    assert_eq!(scan(&mut host, disk, 1000..1600), (600, false));
    assert_eq!(scan(&mut host, disk, 0..4), (4, true));
    assert_eq!(scan(&mut host, disk, 2000..2600), (600, false));
    assert_eq!(scan(&mut host, disk, 0..4), (0, false), "from the device");
}

#[test]
fn blocks_of_a_scan_that_is_larger_than_what_is_remembered_are_not_kept() {
    let (mut host, disk) = reader(Admission::Reuse);
    for _ in 0..2 {
        assert_eq!(scan(&mut host, disk, 0..16_000), (16_000, false));
    }
}

#[test]
fn where_all_are_kept_one_read_is_enough() {
    let (mut host, disk) = reader(Admission::All);
    assert_eq!(scan(&mut host, disk, 0..4), (4, true));
    scan(&mut host, disk, 1000..1100);
    assert_eq!(scan(&mut host, disk, 0..4), (0, false));
}

/// Fails when: a stop waits for a timer where nothing is left to wait for.
#[test]
fn a_daemon_that_has_clean_blocks_and_no_volume_stops_at_once() {
    let (mut host, disk) = reader(Admission::All);
    scan(&mut host, disk, 0..4);
    let detach = host.order(Command::Detach {
        volume: disk,
        discard_dirty: false,
    });
    host.pass(10_000);
    assert_eq!(host.answer(detach), Some(Ok(())));
    let begun = host.now;
    let stop = host.order(Command::Park);
    while host.answer(stop).is_none() {
        host.pass(50);
    }
    let millis = host.now.since(begun) / 1_000_000;
    assert!(millis <= 200, "{millis} ms");
}
