//! A cache device that fails for good, under dirty and under clean volumes.
//!
//! The device is a file of our own FUSE server behind a loop device, so that it can be unplugged
//! while the daemon has it open, and come back. What only the stage has is brought to the origin;
//! what only the device has stops its volume.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::disk::{Device, Disk};
use crate::common::nbd;
use crate::common::{EXIT_REFUSED, Rig, may_mount, text_of, wait_until};

const MIB: u64 = 1 << 20;
/// The device is given up after ten seconds; then comes the destage.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

struct Bench {
    rig: Rig,
    disk: Disk,
    /// Before its file system: dropped in this order.
    _device: Device,
    place: PathBuf,
}

/// A small cache on a device that can be unplugged, and two write-back volumes.
fn prepare() -> Bench {
    let mut rig = Rig::new();
    let disk = Disk::new(160 << 20);
    let device = Device::new(&disk, &rig.dir.join("cache"));
    let place = device.path().to_owned();
    rig.cache(
        &place,
        "160MiB",
        "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"",
    );
    for name in ["disk", "clean"] {
        let image = rig.image(&format!("{name}.img"), 64 * MIB);
        rig.volume(name, &image, "write-back", "destage-after = \"10m\"");
    }
    rig.write_config();
    rig.done(&["cache", "create", &place.to_string_lossy()]);
    Bench {
        rig,
        disk,
        _device: device,
        place,
    }
}

fn is(rig: &Rig, name: &str, key: &str, value: &str) -> bool {
    rig.show(name)[key] == value
}

/// Fails when: a flush in bypass is answered before all dirty data is at the origin
/// (`AnswerBeforeRescue`).
#[test]
fn what_the_stage_still_has_survives_the_cache_device_and_guests_see_a_pause() {
    let test = "what_the_stage_still_has_survives_the_cache_device_and_guests_see_a_pause";
    if !may_mount(test) {
        return;
    }
    let bench = prepare();
    let rig = &bench.rig;
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 65_536]);
    client.flush();
    bench.disk.unplug(true);
    // In the stage only: the log cannot take it any more.
    client.write(MIB, &[2; 65_536]);
    client.stream.set_read_timeout(Some(TURN_TIMEOUT)).unwrap();
    client.flush();
    let shown = rig.show("disk");
    assert_eq!(shown["policy"], "write-back");
    assert_eq!(shown["effective_policy"], "uncached", "{shown}");
    let reason = shown["effective_reason"].as_str().unwrap();
    assert!(reason.contains("cache device fails"), "{reason}");
    assert_eq!(shown["dirty_bytes"], 0);
    let image = std::fs::read(rig.dir.join("disk.img")).unwrap();
    assert!(
        image[..65_536] == [1; 65_536],
        "what was flushed to the log"
    );
    assert!(
        image[MIB as usize..][..65_536] == [2; 65_536],
        "and what was not"
    );
    // Guests go on, also those of a volume that was clean.
    wait_until("the clean volume", TURN_TIMEOUT, || {
        is(rig, "clean", "effective_policy", "uncached")
    });
    let mut other = rig.connect("clean");
    other.write(0, &[3; 4096]);
    other.flush();
    client.write(2 * MIB, &[4; 4096]);
    client.flush();
    assert!(client.read(2 * MIB, 4096) == [4; 4096]);
    assert_eq!(rig.json(&["status"])["cache"]["state"], "failed");
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    let wrong = text_of(&wrong);
    assert!(wrong.contains("the cache device has failed"), "{wrong}");
    let image = std::fs::read(rig.dir.join("clean.img")).unwrap();
    assert!(image[..4096] == [3; 4096]);
    // The device comes back: so does the policy, by itself.
    bench.disk.unplug(false);
    for name in ["disk", "clean"] {
        wait_until("write-back again", TURN_TIMEOUT, || {
            is(rig, name, "effective_policy", "write-back")
        });
    }
    client.write(3 * MIB, &[5; 4096]);
    client.flush();
    assert!(rig.show("disk")["dirty_bytes"].as_u64() > Some(0));
    daemon.kill();
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    for (at, byte) in [(0, 1), (MIB, 2), (2 * MIB, 4), (3 * MIB, 5)] {
        assert!(client.read(at, 4096) == [byte; 4096], "at {at}");
    }
    daemon.stop();
}

/// What its file asks for is not given up because the origin was bad when the daemon started.
#[test]
fn a_volume_becomes_write_back_when_its_origin_can_be_synced_again() {
    let test = "a_volume_becomes_write_back_when_its_origin_can_be_synced_again";
    if !may_mount(test) {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(64 << 20);
    let device = Device::new(&disk, &rig.dir.join("origin"));
    rig.volume("disk", device.path(), "uncached", "");
    let daemon = rig.serve();
    rig.connect("disk").write(0, &[1; 4096]);
    daemon.stop();
    rig.forget_volumes();
    rig.volume("disk", device.path(), "write-back", "");
    disk.unplug(true);
    let daemon = rig.serve();
    wait_until("the reason", TURN_TIMEOUT, || {
        let reason = rig.show("disk")["effective_reason"].to_string();
        reason.contains("the origin could not be synced")
    });
    assert!(is(&rig, "disk", "effective_policy", "uncached"));
    disk.unplug(false);
    let mut client = rig.connect("disk");
    client.write(4096, &[2; 4096]);
    wait_until("write-back", 2 * TURN_TIMEOUT, || {
        is(&rig, "disk", "effective_policy", "write-back")
    });
    assert_eq!(client.read(0, 8192), [[1; 4096], [2; 4096]].concat());
    daemon.stop();
}

/// How many of the 24 writes are there: a prefix of them, over the state before.
fn writes_there(client: &mut nbd::Client) -> u64 {
    let mut tops = (0..24).map(|at| client.read(at * MIB, 4096));
    let first = tops.next().expect("there are some");
    assert!(first == [1; 4096] || first == [2; 4096], "never empty");
    let rest: Vec<bool> = tops.map(|bytes| bytes == [2; 4096]).collect();
    let there = rest.iter().take_while(|it| **it).count();
    assert!(rest[there..].iter().all(|it| !it), "no prefix: {rest:?}");
    assert!(there == 0 || first == [2; 4096], "no prefix");
    assert!(there < 23, "everything was destaged; nothing was lost");
    u64::from(first == [2; 4096]) + there as u64
}

/// Fails when: a flush is answered before the log has what it covers (`AcknowledgeBeforeLog`).
#[test]
fn dirty_data_that_only_the_failed_device_has_stops_its_volume_until_it_is_given_up_by_name() {
    let test =
        "dirty_data_that_only_the_failed_device_has_stops_its_volume_until_it_is_given_up_by_name";
    if !may_mount(test) {
        return;
    }
    let bench = prepare();
    let rig = &bench.rig;
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 65_536]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    // Three times the stage: most of it is on the device only.
    for at in 0..24 {
        client.write(at * MIB, &[2; MIB as usize]);
    }
    client.flush();
    bench.disk.unplug(true);
    client.write(30 * MIB, &[3; 4096]);
    client.stream.set_read_timeout(Some(TURN_TIMEOUT)).unwrap();
    let answer = client.command(nbd::CMD_FLUSH, 0, 0, 0);
    assert_ne!(answer, 0, "a flush that nothing stands for");
    let shown = rig.show("disk");
    assert_eq!(shown["state"], "held", "{shown}");
    assert!(shown["dirty_bytes"].as_u64() >= Some(24 * MIB), "{shown}");
    assert_ne!(client.try_write(0, &[4; 4096], 0), 0, "it stands still");
    let mut bytes = [0; 4096];
    client
        .try_read(0, &mut bytes)
        .expect_err("nothing stale is read");
    // Another volume is not stopped.
    wait_until("the clean volume", TURN_TIMEOUT, || {
        is(rig, "clean", "effective_policy", "uncached")
    });
    rig.connect("clean").write(0, &[5; 4096]);
    drop(client);
    rig.gone_clients("disk");
    let line = rig.refused(&["volume", "accept-loss", "disk"], EXIT_REFUSED);
    assert!(line.contains("--discard-dirty=disk"), "{line}");
    rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    wait_until("the volume goes on", TURN_TIMEOUT, || {
        is(rig, "disk", "effective_policy", "uncached")
    });
    let mut client = rig.connect("disk");
    let destaged = writes_there(&mut client);
    client.write(4096, &[6; 4096]);
    client.flush();
    drop(client);
    // What the device had is void for good, also when it comes back with another daemon.
    daemon.kill();
    bench.disk.unplug(false);
    let daemon = rig.serve();
    let held = rig.show("disk");
    if held["state"] == "held" {
        rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    }
    let mut client = rig.connect("disk");
    assert_eq!(writes_there(&mut client), destaged);
    assert!(client.read(4096, 4096) == vec![6; 4096]);
    daemon.stop();
    assert!(bench.place.exists());
}
