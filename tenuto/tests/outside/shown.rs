//! What is shown is what is so: latencies, states, and what is in effect.

use std::time::{Duration, Instant};

use lab::vhost_client::{self, Wait};
use serde_json::Value;

use crate::common::{Rig, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
/// Requests of each kind.
const ASKED: u64 = 24;
/// No machine copies a MiB and makes its checksums in that time.
const LEAST_US: f64 = 8.0;

/// How many requests of a kind are counted, and the median and the most, in microseconds.
fn told(shown: &Value, kind: &str) -> (u64, f64, f64) {
    let of_kind = &shown["latency_us"][kind];
    let classes = of_kind["classes_ns"].as_array().expect("classes");
    let count = |class: &Value| class[1].as_u64().expect("a count");
    let coarse = of_kind["counts"].as_array().expect("counts");
    let all = classes.iter().map(count).sum();
    assert_eq!(
        all,
        coarse
            .iter()
            .map(|it| it.as_u64().expect("a count"))
            .sum::<u64>()
    );
    let most = classes
        .last()
        .map_or(0, |class| class[0].as_u64().expect("a bound"));
    (
        all,
        of_kind["p50"].as_f64().unwrap_or(0.0),
        most as f64 / 1e3,
    )
}

/// The time that a client waited for all its requests together, in microseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64() * 1e6
}

/// What the daemon says of these requests holds against what their client has seen.
fn is_believable((all, median, most): (u64, f64, f64), waited_us: f64) {
    assert_eq!(all, ASKED);
    assert!(median >= LEAST_US, "a MiB in {median} us");
    assert!(most <= waited_us * 1.05, "{most} us of {waited_us} us");
    let half = median * (ASKED / 2) as f64 / 1.05;
    assert!(
        half <= waited_us,
        "half of them took {half} us of {waited_us} us"
    );
}

/// Fails when: a request counts as no time or as more than its client waited, or the figures go on
/// under another policy.
#[test]
fn latencies_are_from_pickup_to_publication_and_of_one_policy() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 32 * MIB);
    let gold = rig.image("gold.img", 32 * MIB);
    rig.guest_volume("disk", &image, "write-back", "");
    rig.volume("clone", &gold, "ephemeral", "");
    let daemon = rig.serve();
    assert_eq!(told(&rig.show("disk"), "write"), (0, 0.0, 0.0));
    assert_eq!(rig.show("disk")["latency_us"]["write"]["p50"], Value::Null);
    let chunk = vec![7; MIB as usize];
    let mut client = rig.connect("disk");
    let wrote = timed(|| (0..ASKED).for_each(|at| client.write(at * MIB, &chunk)));
    let read = timed(|| (0..ASKED).for_each(|at| drop(client.read(at * MIB, MIB as usize))));
    client.flush();
    // What is published is told once its send has ended, which the client does not wait for.
    wait_until("all are counted", PATIENCE, || {
        told(&rig.show("disk"), "flush").0 == 1
    });
    let shown = rig.show("disk");
    is_believable(told(&shown, "write"), wrote);
    is_believable(told(&shown, "read"), read);
    client.disconnect();
    // Another policy begins anew, and over rings the same is counted.
    rig.done(&["volume", "set", "disk", "policy=write-through", "--wait"]);
    assert_eq!(told(&rig.show("disk"), "write").0, 0);
    let options = vhost_client::Options {
        queues: 1,
        slots: 4,
        slot_bytes: MIB as u32,
        wait: Wait::Events,
    };
    let socket = rig.run_dir().join("disk.vhost.sock");
    let mut guest = vhost_client::Client::connect(&socket, options).expect("connected");
    let wrote = timed(|| {
        for at in 0..ASKED {
            guest.write(0, at * MIB / 512, &chunk).expect("written");
        }
    });
    guest.flush(0).expect("flushed");
    wait_until("all are counted", PATIENCE, || {
        told(&rig.show("disk"), "flush").0 == 1
    });
    is_believable(told(&rig.show("disk"), "write"), wrote);
    // The flushes of a clone, which do nothing, are in no other figure.
    let mut clone = rig.connect("clone");
    (0..ASKED).for_each(|_| clone.flush());
    wait_until("all are counted", PATIENCE, || {
        told(&rig.show("clone"), "flush").0 == ASKED
    });
    for (policy, flushes) in [("write-through", 1), ("ephemeral", ASKED)] {
        let line = format!("tenuto_flush_latency_seconds_count{{policy=\"{policy}\"}} {flushes}\n");
        // Distributions of the host are added up once a second.
        wait_until(&line, PATIENCE, || rig.get("/metrics").contains(&line));
    }
    drop((guest, clone));
    daemon.stop();
}
