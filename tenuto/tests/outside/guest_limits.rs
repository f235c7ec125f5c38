//! `limit`: what a guest may ask of its volume in a second, on both front ends, changed while it
//! waits.

use crate::common::{Rig, wait_until};
use lab::vhost_client::{Client, Options, Wait};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(120);

fn rig(limit: &str) -> Rig {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 16 << 20);
    rig.section(&format!(
        "[[volume]]\nname = \"disk\"\norigin = \"{}\"\nformat = \"raw\"\n\
         policy = \"write-back\"\nlimit = {limit}\n",
        image.display()
    ));
    rig
}

/// The least time that so many requests, or bytes, take at so many in a second: what the thread may
/// do at once, and one round, come for nothing.
fn least(amount: f64, per_second: f64) -> Duration {
    Duration::from_secs_f64(amount / per_second) - Duration::from_millis(100)
}

/// Fails when: the limit is not that of all requests of a volume, or bytes or waits are not
/// counted.
#[test]
fn a_client_of_nbd_gets_no_more_than_the_limit() {
    let rig = rig("{ iops = \"200\" }");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let begun = Instant::now();
    for at in 0..150 {
        client.write(at * 4096, &[7; BLOCK]);
        client.read(at * 4096, BLOCK);
    }
    client.flush();
    assert!(
        begun.elapsed() >= least(300.0, 200.0),
        "{:?}",
        begun.elapsed()
    );
    rig.done(&[
        "volume",
        "set",
        "disk",
        "limit={ iops = 0, bandwidth = \"1MiB/s\" }",
    ]);
    let shown = rig.show("disk")["limit"].clone();
    // One client with one request at a time: nearly each of them waited, and that was the time.
    let waits = shown["waits"].as_u64().expect("a count");
    assert!((100..=301).contains(&waits), "{shown}");
    let waited = shown["waited_ms"].as_f64().expect("a time") / 1e3;
    let most = begun.elapsed().as_secs_f64();
    assert!(waited > 0.5 && waited <= most, "{shown} in {most} s");
    let page = rig.get("/metrics");
    for name in ["limit_waits_total", "limit_wait_seconds_total"] {
        let name = format!("tenuto_volume_{name}{{volume=\"disk\"}} ");
        assert!(page.contains(&name), "{name}: {page}");
    }
    assert_eq!(
        (&shown["iops"], &shown["bandwidth_bytes"]),
        (&0.into(), &(1 << 20).into())
    );
    let shown = rig.done(&["volume", "show", "disk"]);
    let limit = shown.lines().find(|line| line.starts_with("limit"));
    assert!(
        limit.is_some_and(|line| line.contains("1 MiB/s, its guest waited")),
        "{shown}"
    );
    let begun = Instant::now();
    for at in 0..24 {
        client.write(at * 65536, &[8; 65536]);
    }
    assert!(
        begun.elapsed() >= least(24.0 / 16.0, 1.0),
        "{:?}",
        begun.elapsed()
    );
    client.disconnect();
    daemon.stop();
}

/// Fails when: a guest that waits does not hear that its limit is another one, or an orderly stop
/// of the daemon waits for a limit.
#[test]
fn a_guest_that_waits_goes_on_when_its_limit_is_another_one() {
    let rig = rig("{ bandwidth = \"1KiB/s\" }");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // What is behind it waits for more than a quarter of an hour.
            client.write(0, &vec![7; 1 << 20]);
            client.write(0, &[8; BLOCK]);
            done.send(client).expect("it is waited for");
        });
        wait_until("the first is written", PATIENCE, || {
            rig.show("disk")["writes"]["requests"].as_u64() > Some(0)
        });
        rig.done(&["volume", "set", "disk", "limit={ bandwidth = 0 }"]);
        let client = waits
            .recv_timeout(PATIENCE)
            .expect("nothing limits it any more");
        rig.done(&["volume", "set", "disk", "limit={ iops = 1 }"]);
        client.disconnect();
    });
    daemon.stop();
}

/// Fails when: rings are not limited, or a ring that waits cannot be stopped.
#[test]
fn a_guest_on_rings_gets_no_more_than_the_limit_and_stops_at_once() {
    let rig = rig("{ iops = 100, bandwidth = \"100MiB\" }");
    let daemon = rig.serve();
    let options = Options {
        queues: 2,
        slots: 16,
        slot_bytes: BLOCK as u32,
        wait: Wait::Events,
    };
    let mut guest = Client::connect(&rig.run_dir().join("disk.vhost.sock"), options).unwrap();
    let begun = Instant::now();
    for at in 0..150 {
        guest.write(at % 2, u64::from(at) * 8, &[7; BLOCK]).unwrap();
    }
    assert!(
        begun.elapsed() >= least(150.0, 100.0),
        "{:?}",
        begun.elapsed()
    );
    let mut found = [0; BLOCK];
    guest.read(0, 149 * 8, &mut found).unwrap();
    assert_eq!(found, [7; BLOCK]);
    rig.done(&["volume", "set", "disk", "limit={ iops = 1, bandwidth = 0 }"]);
    guest.stop().unwrap();
    daemon.stop();
}
