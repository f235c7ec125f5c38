//! Flow control: guests are slowed before a volume is full, are told so, and are let go again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::load::{End, Load, Mix};
use crate::common::{Rig, SetWhenDropped, seed, wait_until};

const MIB: u64 = 1 << 20;
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a load against `disk` until `seen` says that it has gone on for long enough. No request
/// may fail meanwhile.
fn write_until(load: &mut Load, rig: &Rig, mut seen: impl FnMut() -> bool + Send) {
    let over = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let _over = SetWhenDropped(&over);
            wait_until("flow control begins", TURN_TIMEOUT, &mut seen);
        });
        let end = load.run(rig.connect("disk"), |counts| {
            written.store(counts.written_bytes, Ordering::SeqCst);
            !over.load(Ordering::SeqCst)
        });
        let end = end.expect("reads are right");
        watcher.join().expect("flow control was seen");
        assert_eq!(end, End::Enough);
    });
    assert_eq!(load.counts.refused, 0, "a slowed write is no failed write");
}

fn flow(rig: &Rig) -> serde_json::Value {
    rig.show("disk")["flow_control"].clone()
}

/// Fails when: flow control never holds a write (`NeverSlow`).
#[test]
fn writes_are_slowed_before_the_limit_none_fails_and_it_ends_by_itself() {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    let image = rig.image("disk.img", 64 * MIB);
    let lines = "dirty-limit = \"8MiB\"\ndestage-after = \"10m\"";
    rig.volume("disk", &image, "write-back", lines);
    let daemon = rig.serve();
    let idle = flow(&rig);
    assert_eq!(idle["active"], false);
    assert_eq!(idle["delay_us"], 0);
    assert!(idle["reason"].is_null());
    let mut load = Load::new(1, 64 * MIB, Promise::Prefix, seed(30));
    load.mix = Mix {
        sectors_max: 256,
        read_percent: 5,
        ..Mix::default()
    };
    write_until(&mut load, &rig, || {
        let flow = flow(&rig);
        if flow["active"] == true {
            assert!(flow["delay_us"].as_u64().is_some_and(|delay| delay > 0));
            assert_eq!(flow["reason"], "dirty-bytes");
        }
        flow["active"] == true
    });
    wait_until("flow control ends", TURN_TIMEOUT, || {
        let flow = flow(&rig);
        flow["active"] == false && flow["delay_us"] == 0 && flow["reason"].is_null()
    });
    assert!(
        flow(&rig)["held_writes"]
            .as_u64()
            .is_some_and(|held| held > 0)
    );

    // A limit that is far away by default, brought near while the volume runs.
    rig.done(&["volume", "set", "disk", "dirty-limit=64MiB"]);
    rig.done(&["volume", "set", "disk", "flow={ dirty-writes = 40 }"]);
    write_until(&mut load, &rig, || flow(&rig)["reason"] == "dirty-writes");
    wait_until("flow control ends", TURN_TIMEOUT, || {
        flow(&rig)["active"] == false
    });
    load.verify(Crash::Kill, &mut rig.connect("disk"))
        .expect("nothing is lost");
    daemon.stop();
}
