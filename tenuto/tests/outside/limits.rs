//! Full, gone, broken: what a volume does at its limits and when a device fails.
//!
//! Full is not broken, a failing origin is waited for, and a failing cache device never lets a
//! volume go on as if nothing were owed.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::disk::{Device, Disk, Mounted};
use crate::common::load::{End, Load, Mix};
use crate::common::nbd;
use crate::common::{Rig, SetWhenDropped, may_mount, seed, text_of, wait_until};

const MIB: u64 = 1 << 20;
/// How long a request is watched that should be held or fail.
const WATCHED: Duration = Duration::from_secs(3);
const RESUME_TIMEOUT: Duration = Duration::from_secs(60);

fn small_cache(rig: &mut Rig) {
    let cache = rig.cache_path();
    rig.cache(
        &cache,
        "128MiB",
        "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"",
    );
}

/// A load that writes this much and never gets an error.
fn write_through_the_limit(load: &mut Load, rig: &Rig, bytes: u64) {
    load.mix = Mix {
        sectors_max: 1024,
        read_percent: 5,
        ..Mix::default()
    };
    let until = load.counts.written_bytes + bytes;
    let end = load
        .run(rig.connect("disk"), |counts| counts.written_bytes < until)
        .expect("reads are right");
    assert_eq!(
        (end, load.counts.refused),
        (End::Enough, 0),
        "full is not broken"
    );
}

/// Anybody who may touch an image can give it any time.
#[test]
fn an_image_from_the_far_future_is_served_and_written_like_any_other() {
    let mut rig = Rig::new();
    // Not every file system keeps such a time; this one does.
    let image = rig.stage_dir().join("far.img");
    std::fs::File::create(&image)
        .and_then(|file| file.set_len(8 * MIB))
        .expect("make an image");
    rig.volume("disk", &image, "write-back", "destage-after = \"10m\"");
    for seconds in [99_999_999_999, i64::MAX / 2] {
        let touched = Command::new("touch")
            .args(["-d", &format!("@{seconds}")])
            .arg(&image)
            .status();
        assert!(touched.expect("touch").success());
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        client.write(0, &[7; 4096]);
        client.disconnect();
        rig.done(&["volume", "destage", "disk", "--wait"]);
        daemon.stop();
        let bytes = std::fs::read(&image).expect("read the image");
        assert!(bytes[..4096].iter().all(|&byte| byte == 7));
    }
}

/// Fails when: `dirty-limit` is ignored.
#[test]
fn at_the_dirty_limit_writes_wait_for_destage_and_none_fails() {
    let mut rig = Rig::new();
    small_cache(&mut rig);
    let image = rig.image("disk.img", 64 * MIB);
    rig.volume(
        "disk",
        &image,
        "write-back",
        "dirty-limit = \"8MiB\"\ndestage-after = \"10m\"",
    );
    let daemon = rig.serve();
    let mut load = Load::new(1, 64 * MIB, Promise::Prefix, seed(20));
    let (most, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = SetWhenDropped(&over);
        let (over, rig, most) = (&over, &rig, &most);
        scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let dirty = rig.show("disk")["dirty_bytes"].as_u64().expect("a count");
                most.fetch_max(dirty, Ordering::SeqCst);
            }
        });
        write_through_the_limit(&mut load, rig, 96 * MIB);
    });
    let most = most.into_inner();
    // What is already accepted when the limit is met may go a little beyond it.
    assert!(
        most > 2 * MIB && most < 24 * MIB,
        "{most} dirty bytes at most"
    );
    load.verify(Crash::Kill, &mut rig.connect("disk"))
        .expect("nothing is lost");
    daemon.stop();
}

/// Fails when: a write that waits for room is answered "no space".
#[test]
fn a_log_smaller_than_the_data_written_is_no_error() {
    let mut rig = Rig::new();
    small_cache(&mut rig);
    let image = rig.image("disk.img", 192 * MIB);
    rig.volume("disk", &image, "write-back", "destage-after = \"10m\"");
    let daemon = rig.serve();
    let mut load = Load::new(1, 192 * MIB, Promise::Prefix, seed(21));
    write_through_the_limit(&mut load, &rig, 400 * MIB);
    load.verify(Crash::Kill, &mut rig.connect("disk"))
        .expect("nothing is lost");
    daemon.stop();
}

/// Fails when: writes at the last limit of an overlay wait for ever (`NeverAnswerFull`).
#[test]
fn an_ephemeral_volume_at_its_last_limit_answers_no_space_and_reads_go_on() {
    let mut rig = Rig::new();
    small_cache(&mut rig);
    let image = rig.image("base.img", 512 * MIB);
    let other = rig.image("other.img", 8 * MIB);
    rig.volume("clone", &image, "ephemeral", "overlay-timeout = \"1s\"");
    rig.volume("other", &other, "write-back", "");
    let daemon = rig.serve();
    let before = daemon.private_kib();
    let mut client = rig.connect("clone");
    let chunk = vec![7; MIB as usize];
    let full = (0..512).find(|number| match client.try_write(number * MIB, &chunk, 0) {
        0 => false,
        nbd::ENOSPC => true,
        error => panic!("write of chunk {number}: NBD error {error}"),
    });
    let full = full.expect("a cache of 128 MiB does not hold 512 MiB");
    assert!(full > 16, "only {full} MiB fit into RAM and spill");
    // Who operates it is told, in every place.
    let flags = rig.show("clone")["flags"].to_string();
    assert!(flags.contains("overlay-full"), "{flags}");
    let wrong = text_of(&rig.tenuto(&["status", "-x"]));
    assert!(
        wrong.contains("volume clone has no more room in its overlay"),
        "{wrong}"
    );
    let line = "tenuto_volume_overlay_refused_writes_total{volume=\"clone\"} 1\n";
    assert!(rig.get("/metrics").contains(line));
    wait_until("there is an event", RESUME_TIMEOUT, || {
        text_of(&rig.tenuto(&["events"])).contains("its overlay has no more room")
    });
    for number in 0..full {
        assert_eq!(
            client.read(number * MIB, 4096),
            vec![7; 4096],
            "chunk {number}"
        );
    }
    assert_eq!(client.read(500 * MIB, 4096), vec![0; 4096]);
    // The other volume has its reserve.
    let mut innocent = rig.connect("other");
    innocent.write(0, &[1; 65_536]);
    innocent.flush();
    let after = daemon.private_kib();
    assert!(
        after < before + (64 << 10),
        "grew from {before} to {after} KiB"
    );
    client.disconnect();
    rig.gone_clients("clone");
    rig.done(&["volume", "reset", "clone"]);
    let mut client = rig.connect("clone");
    assert_eq!(
        client.try_write(0, &chunk, 0),
        0,
        "room again after a reset"
    );
    let flags = rig.show("clone")["flags"].to_string();
    assert!(!flags.contains("overlay-full"), "{flags}");
    let log = daemon.stop();
    let line = "answered with `no space left`: its overlay has no more room";
    assert!(log.contains(line), "{log}");
}

/// Fails when: a destage that failed is not tried again.
#[test]
fn while_the_origin_fails_writes_go_on_and_destage_resumes_by_itself() {
    if !may_mount("while_the_origin_fails_writes_go_on_and_destage_resumes_by_itself") {
        return;
    }
    let mut rig = Rig::new();
    let bytes = 16 * MIB;
    let disk = Disk::new(bytes as usize);
    let image = rig.dir.join("disk.img");
    let _mounted = Mounted::new(&disk, &image);
    rig.volume("disk", &image, "write-back", "destage-after = \"1s\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 65_536]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    disk.unplug(true);
    for number in 0..64u64 {
        client.write(number * 8192, &[2; 8192]);
    }
    client.flush();
    assert_eq!(client.read(0, 8192), vec![2; 8192]);
    wait_until(
        "the state says that destage does not get on",
        RESUME_TIMEOUT,
        || rig.show("disk")["state"] == "stalled",
    );
    assert_eq!(rig.tenuto(&["status", "-x"]).status.code(), Some(1));
    client.write(65_536 * 8, &[3; 4096]);
    client.flush();
    disk.unplug(false);
    wait_until("destage resumes by itself", RESUME_TIMEOUT, || {
        rig.show("disk")["state"] == "clean"
    });
    assert_eq!(disk.bytes()[..8192], [2; 8192]);
    daemon.stop();
}

/// Fails when: a read is given the origin's error at once.
#[test]
fn a_read_that_misses_is_held_while_the_origin_fails() {
    if !may_mount("a_read_that_misses_is_held_while_the_origin_fails") {
        return;
    }
    let mut rig = Rig::new();
    let policies = ["uncached", "write-through", "write-back", "ephemeral"];
    let disks = policies.map(|policy| {
        let disk = Disk::new(16 << 20);
        let image = rig.dir.join(format!("{policy}.img"));
        let mounted = Mounted::new(&disk, &image);
        rig.volume(policy, &image, policy, "");
        (disk, mounted)
    });
    let daemon = rig.serve();
    let mut clients = policies.map(|policy| rig.connect(policy));
    for (disk, _) in &disks {
        disk.unplug(true);
    }
    for client in &mut clients {
        let sent = client.send(nbd::CMD_READ, 0, 8 * MIB, 4096, &[]);
        sent.expect("send a read");
    }
    for policy in policies {
        wait_until("the guest is seen to wait", RESUME_TIMEOUT, || {
            rig.show(policy)["state"] == "stalled"
        });
        let reason = rig.show(policy)["effective_reason"].to_string();
        assert!(reason.contains("reads wait"), "{policy}: {reason}");
    }
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    for (policy, client) in policies.iter().zip(&mut clients) {
        assert!(text_of(&wrong).contains(&format!("volume {policy} is stalled")));
        let timeout = client
            .stream
            .set_read_timeout(Some(Duration::from_millis(100)));
        timeout.expect("set a timeout");
        assert!(
            client.stream.read(&mut [0]).is_err(),
            "{policy}: a miss was answered without an origin"
        );
    }
    for (disk, _) in &disks {
        disk.unplug(false);
    }
    for (policy, client) in policies.iter().zip(&mut clients) {
        let timeout = client.stream.set_read_timeout(Some(RESUME_TIMEOUT));
        timeout.expect("set a timeout");
        let answer = client.answer().expect("an answer");
        assert_eq!(answer.error, 0, "{policy}");
        wait_until("nobody waits any more", RESUME_TIMEOUT, || {
            rig.show(policy)["state"] == "clean"
        });
    }
    daemon.stop();
}

/// What is full is told, and which: an origin is not an overlay.
/// Fails when: both have one error, or the volume is called clean meanwhile.
#[test]
fn an_origin_without_room_is_not_told_as_an_overlay_without_room() {
    if !may_mount("an_origin_without_room_is_not_told_as_an_overlay_without_room") {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(16 << 20);
    let image = rig.dir.join("disk.img");
    let _mounted = Mounted::new(&disk, &image);
    rig.volume("disk", &image, "uncached", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    disk.fill_up(true);
    assert_eq!(client.try_write(0, &[1; 4096], 0), nbd::ENOSPC);
    let shown = rig.show("disk");
    assert_eq!(shown["state"], "stalled", "{shown}");
    let reason = shown["effective_reason"].to_string();
    assert!(reason.contains("no space left at the origin"), "{reason}");
    disk.fill_up(false);
    client.write(0, &[1; 4096]);
    assert_eq!(rig.show("disk")["state"], "clean");
    let log = daemon.stop();
    let line = "volume disk: a write was answered with `no space left`: the storage of its origin";
    assert!(
        log.contains(line) && !log.contains("overlay has no"),
        "{log}"
    );
}

/// Fails when: FUA is ignored (`IgnoreFua`).
#[test]
fn a_failing_cache_device_acknowledges_no_flush_and_serves_no_stale_byte() {
    if !may_mount("a_failing_cache_device_acknowledges_no_flush_and_serves_no_stale_byte") {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(128 << 20);
    let device = Device::new(&disk, &rig.dir.join("cache"));
    let place = device.path().to_owned();
    rig.cache(
        &place,
        "128MiB",
        "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"",
    );
    let image = rig.image("disk.img", 16 * MIB);
    rig.volume("disk", &image, "write-back", "destage-after = \"10m\"");
    rig.write_config();
    rig.done(&["cache", "create", &place.to_string_lossy()]);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 65_536]);
    client.flush();
    disk.unplug(true);
    client
        .stream
        .set_read_timeout(Some(WATCHED))
        .expect("set a timeout");
    let bytes = [2; 65_536];
    client
        .send(nbd::CMD_WRITE, nbd::FLAG_FUA, 0, 65_536, &bytes)
        .expect("send a write");
    // Held or refused, both are honest; done would be a lie.
    if let Ok(answer) = client.answer() {
        assert_ne!(answer.error, 0, "a durable write without a device");
    }
    let mut other = rig.connect("disk");
    other
        .stream
        .set_read_timeout(Some(WATCHED))
        .expect("set a timeout");
    let read = nbd::request_header(nbd::CMD_READ, 0, 1, 0, 4096);
    other.stream.write_all(&read).expect("send a read");
    if let Ok(answer) = other.answer()
        && answer.error == 0
    {
        let mut found = [0; 4096];
        other.payload(&mut found).expect("a payload");
        assert!(
            found == [1; 4096] || found == [2; 4096],
            "stale bytes from the origin"
        );
    }
    drop((client, other));
    drop(daemon.kill());
    disk.unplug(false);
    let daemon = rig.serve();
    let found = rig.connect("disk").read(0, 4096);
    assert!(
        found == [1; 4096] || found == [2; 4096],
        "what was flushed is lost"
    );
    daemon.stop();
}

/// Fails when: `write-cache = "off"` is ignored (`IgnoreFua`).
#[test]
fn with_the_write_cache_off_an_acknowledged_write_is_durable() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 8 * MIB);
    rig.volume("disk", &image, "write-back", "write-cache = \"off\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(4096, &[8; 12_288]);
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(4096, 12_288), vec![8; 12_288]);
    daemon.stop();
}

/// Fails when: FUA is ignored (`IgnoreFua`).
#[test]
fn a_write_with_fua_is_durable_when_it_is_acknowledged() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 8 * MIB);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    assert_eq!(client.try_write(512, &[8; 1024], nbd::FLAG_FUA), 0);
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(512, 1024), vec![8; 1024]);
    daemon.stop();
}

#[test]
fn a_read_only_volume_refuses_writes_and_says_so() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 8 * MIB);
    rig.volume("disk", &image, "write-back", "read-only = true");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    assert_eq!(client.flags & 2, 2, "the read-only flag");
    assert_eq!(client.size, 8 * MIB);
    assert_eq!(client.try_write(0, &[1; 4096], 0), nbd::EPERM);
    assert_eq!(client.read(0, 4096), vec![0; 4096]);
    daemon.stop();
}
