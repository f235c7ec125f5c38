//! What the requests of a destage carry, and what is counted of them.

use super::{Host, none, spec, syncs_origin, writes_journal, writes_origin};
use crate::event::VolumeSpec;
use crate::types::{BLOCK_BYTES, DestageMode, Policy};

fn in_place() -> VolumeSpec {
    let mut spec = spec(Policy::WriteBack, "disk");
    spec.tuning.destage = DestageMode::InPlace;
    spec
}

/// A block counts twice, however it gets there, and a range of zeroes as one block.
#[test]
fn what_has_moved_is_twice_what_the_epoch_has() {
    for spec in [spec(Policy::WriteBack, "disk"), in_place()] {
        let (mut host, disk) = Host::of(spec);
        assert!(host.write(disk, 0, 5));
        host.zero(disk, 100, 50);
        host.hold(syncs_origin);
        host.destage(disk);
        let destage = host.core.volume(disk).destage();
        let moved = destage.expect("its sync is held").moved_halves();
        assert_eq!(moved, 2 * (5 + 1));
        assert_eq!(host.core.volume(disk).charge(), 5 + 1);
    }
}

#[test]
fn ranges_that_fit_go_to_the_journal_in_one_request() {
    let (mut host, disk) = Host::write_back();
    for block in [10, 20, 30] {
        host.fill(disk, block, 1);
    }
    host.destage(disk);
    // The payload in one, and the table, which lies before it.
    assert_eq!(host.count(|io| writes_journal(io) && io.offset > 0), 1);
    let counters = host.show(disk).counters.origin;
    assert_eq!(
        (counters.writes, counters.write_bytes),
        (3, 3 * BLOCK_BYTES)
    );
    assert_eq!((counters.syncs, counters.errors), (2, 0));
}

/// How long a range of zeroes took tells how slow the origin is, as any other request does.
#[test]
fn zeroes_are_a_sample_of_the_latency_of_an_origin() {
    let (mut host, disk) = Host::of(in_place());
    host.zero(disk, 100, 50);
    host.hold(writes_origin);
    host.destage(disk);
    host.pass(20);
    host.hold(none);
    host.fill(disk, 0, 1);
    host.pass(200);
    assert_eq!(host.show(disk).flow.latency_ns, 20_000_000);
}

/// Four pieces of memory are one request; an extent lies in one of them, and a chunk of the log
/// has seven blocks of data.
#[test]
fn what_touches_goes_to_the_origin_in_large_requests() {
    let (mut host, disk) = Host::write_back();
    assert!(host.write(disk, 64, 84));
    host.asked.clear();
    host.destage(disk);
    let sizes = host.asked.iter().filter(|io| writes_origin(io));
    let sizes: alloc::vec::Vec<u64> = sizes.map(|io| io.bytes / BLOCK_BYTES).collect();
    assert_eq!(sizes, [28, 28, 28]);
    let counters = host.show(disk).counters.origin;
    assert_eq!(
        (counters.writes, counters.write_bytes),
        (3, 84 * BLOCK_BYTES)
    );
}

#[test]
fn a_request_that_fills_a_piece_of_memory_is_one() {
    let (mut host, disk) = Host::write_back();
    // Seven blocks in a chunk of the log, and one in the next: as much as a piece holds.
    assert!(host.write(disk, 0, 8));
    host.asked.clear();
    host.destage(disk);
    let writes = host.asked.iter().filter(|io| writes_origin(io));
    let slices: alloc::vec::Vec<usize> = writes.map(|io| io.slices.len()).collect();
    assert_eq!(slices, [1]);
}

/// A range of zeroes is one of the writes at an origin, and none of its bytes go there.
#[test]
fn zeroes_are_counted_as_a_write_without_bytes() {
    let (mut host, disk) = Host::of(in_place());
    host.fill(disk, 0, 1);
    host.zero(disk, 100, 50);
    host.zero(disk, 300, 50);
    host.asked.clear();
    host.destage(disk);
    let counters = host.show(disk).counters.origin;
    assert_eq!((counters.writes, counters.write_bytes), (3, BLOCK_BYTES));
    let zeroes = host.asked.iter().filter(|io| {
        let zeroes = matches!(io.op, crate::event::Op::Zero { .. });
        zeroes && writes_origin(io)
    });
    let places: alloc::vec::Vec<_> = zeroes.map(|io| (io.offset, io.bytes)).collect();
    assert_eq!(
        places,
        [
            (100 * BLOCK_BYTES, 50 * BLOCK_BYTES),
            (300 * BLOCK_BYTES, 50 * BLOCK_BYTES)
        ]
    );
}

/// The memory of the destager had bytes of others before.
#[test]
fn what_fills_up_a_block_of_a_journal_is_zero() {
    let (mut host, disk) = Host::write_back();
    host.write_sectors(disk, 3, 1);
    host.write_sectors(disk, 50, 2);
    host.flush(disk);
    host.memory.scratch.fill(0xee);
    host.hold(writes_origin);
    host.destage(disk);
    let journal = &host.disks.0[&crate::event::Device::Journal(disk)];
    let left = journal.windows(16).any(|bytes| bytes == [0xee; 16]);
    assert!(!left, "bytes of others are in the journal");
}
