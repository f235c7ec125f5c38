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
        let destage = host.core.volume(disk).destage.as_ref();
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
