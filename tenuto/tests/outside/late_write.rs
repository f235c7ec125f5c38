//! Writes of a killed daemon that land seconds later.
//!
//! A disk parks writes that were submitted, the daemon is killed, and the writes land when the
//! test says so. With the locks on the open file descriptions that carry the I/O, the next daemon
//! waits until then. Each test runs a second time with that rule taken out of the daemon, and
//! must see the damage.

use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::disk::{Device, Disk};
use crate::common::load::{Load, Mix};
use crate::common::nbd::CMD_FLUSH;
use crate::common::{PATIENCE, Rig, may_mount, seed, wait_until};

/// How long a daemon that waits is watched. It does not shorten a wait that is right.
const WATCHED: Duration = Duration::from_secs(2);
/// Late writes to the log without the rule, of which one must do damage.
const TRIES_TO_SEE_IT: u64 = 30;
const LOCK_OUT: &str = "TENUTO_DRILL_NO_LOCK";

/// What the second daemon did while a write of the first one was still under way.
enum Second {
    Waited,
    WentOn,
}

/// Kills the daemon, starts another, and lets the late writes land: at once if it waits, else
/// after `meanwhile` was done with it. Returns the daemon that serves in the end.
fn succeed(
    rig: &Rig,
    disk: &Disk,
    daemon: crate::common::Daemon,
    lock: bool,
    mut meanwhile: impl FnMut(&Rig),
) -> (crate::common::Daemon, Second) {
    let late = disk.parked();
    assert!(late > 0, "no write is parked");
    disk.hold_no_more();
    daemon.kill();
    assert_eq!(
        disk.parked(),
        late,
        "the kill must not take the writes back"
    );
    let second = rig.start();
    // Without the rule it is ready as soon as the machine lets it; with it, not before the end.
    let watched = if lock { WATCHED } else { PATIENCE };
    if second.is_ready_within(watched) {
        meanwhile(rig);
        assert_eq!(disk.let_go(), late);
        return (second.daemon(), Second::WentOn);
    }
    wait_until("the daemon says what it waits for", PATIENCE, || {
        second.log().contains("waiting")
    });
    assert_eq!(disk.let_go(), late);
    let daemon = second
        .wait()
        .unwrap_or_else(|(status, log)| panic!("{status}\n{log}"));
    meanwhile(rig);
    (daemon, Second::Waited)
}

/// The cache: a log write of the old daemon lands in a segment that the new one has reused.
fn late_log_write(lock: bool, seed: u64) -> Result<(), String> {
    let mut rig = Rig::new();
    let disk = Disk::new(128 << 20);
    let device = Device::new(&disk, &rig.dir.join("cache"));
    let place = device.path().to_owned();
    rig.cache(
        &place,
        "128MiB",
        "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"",
    );
    let bytes = 32 << 20;
    let image = rig.image("disk.img", bytes);
    rig.volume(
        "disk",
        &image,
        "write-back",
        "destage = \"in-place\"\ndestage-after = \"1s\"",
    );
    rig.write_config();
    rig.done(&["cache", "create", &place.to_string_lossy()]);
    let daemon = rig.serve();
    let mut load = Load::new(1, bytes, Promise::Prefix, seed);
    load.mix = Mix {
        sectors_max: 1024,
        ..Mix::default()
    };
    let mut client = rig.connect("disk");
    load.write_at(&mut client, 0, 64);
    load.flush(&mut client);
    disk.hold_writes(0, 128 << 20);
    load.write_at(&mut client, 1000, 512);
    client.send(CMD_FLUSH, 0, 0, 0, &[]).expect("send a flush");
    assert!(disk.wait_parked(1, PATIENCE), "the flush writes the log");
    if !lock {
        let marks = rig.dir.join("marks");
        rig.env(LOCK_OUT, "1");
        rig.env("TENUTO_MARKS", marks.to_str().expect("a plain path"));
    }
    let (daemon, second) = succeed(&rig, &disk, daemon, lock, |rig| {
        let mut client = rig.connect("disk");
        load.verify(Crash::Kill, &mut client)
            .expect("a kill loses nothing");
        // More than the log holds, so that every segment is written again.
        let until = load.counts.written_bytes + (320 << 20);
        load.run(client, |counts| counts.written_bytes < until)
            .expect("reads are right");
        let mut client = rig.connect("disk");
        load.flush(&mut client);
    });
    assert_eq!(matches!(second, Second::Waited), lock);
    // Only what is on the device counts now.
    daemon.kill();
    rig.lose_stage();
    let daemon = rig
        .try_serve()
        .map_err(|(status, log)| format!("{status}\n{log}"))?;
    let mut client = rig.connect("disk");
    load.verify(Crash::PowerLoss, &mut client)
        .map_err(|violation| violation.to_string())?;
    daemon.stop();
    Ok(())
}

/// The origin: a write of the old daemon lands over what the new one has written there.
fn late_origin_write(policy: &str, lock: bool) -> Result<(), String> {
    let mut rig = Rig::new();
    let bytes = 8 << 20;
    let disk = Disk::new(bytes as usize);
    let device = Device::new(&disk, &rig.dir.join("disk"));
    // Nothing can lie beside a device.
    let lines = format!(
        "destage = \"in-place\"\ndestage-after = \"10m\"\njournal = \"{}\"",
        rig.dir.display()
    );
    rig.volume("disk", device.path(), policy, &lines);
    let daemon = rig.serve();
    let mut load = Load::new(1, bytes, Promise::Sectors, seed(8));
    let mut client = rig.connect("disk");
    load.write_at(&mut client, 2048, 64);
    load.flush(&mut client);
    disk.hold_writes(2048 * 512, (2048 + 64) * 512);
    if policy == "uncached" {
        load.write_unanswered(&mut client, 2048, 64);
    } else {
        rig.done(&["volume", "destage", "disk"]);
    }
    assert!(disk.wait_parked(1, PATIENCE), "the origin is written");
    if !lock {
        let marks = rig.dir.join("marks");
        rig.env(LOCK_OUT, "1");
        rig.env("TENUTO_MARKS", marks.to_str().expect("a plain path"));
    }
    let (daemon, second) = succeed(&rig, &disk, daemon, lock, |rig| {
        let mut client = rig.connect("disk");
        load.verify(Crash::Kill, &mut client)
            .expect("a kill loses nothing");
        load.write_at(&mut client, 2048, 64);
        load.flush(&mut client);
        if policy != "uncached" {
            rig.done(&["volume", "destage", "disk", "--wait"]);
        }
    });
    assert_eq!(matches!(second, Second::Waited), lock);
    daemon.stop();
    // A fresh start: nothing in RAM hides what the origin holds.
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    load.verify(Crash::Kill, &mut client)
        .map_err(|violation| violation.to_string())?;
    daemon.stop();
    Ok(())
}

/// Fails when: no lock is taken or waited for.
#[test]
fn a_late_write_to_the_cache_changes_nothing() {
    if may_mount("a_late_write_to_the_cache_changes_nothing") {
        late_log_write(true, seed(7)).expect("nothing is lost or changed");
    }
}

#[test]
fn a_late_write_to_the_cache_does_damage_without_the_lock() {
    if may_mount("a_late_write_to_the_cache_does_damage_without_the_lock") {
        // Where it lands what was written meanwhile may be overwritten already.
        let first = seed(7);
        let seen = (first..first + TRIES_TO_SEE_IT).find_map(|seed| {
            let damage = late_log_write(false, seed).err()?;
            Some(format!("seed {seed}: {damage}"))
        });
        eprintln!("seen: {}", seen.expect("the late write must be seen"));
    }
}

/// Fails when: a lock that no living process holds counts as free.
#[test]
fn a_late_write_to_an_uncached_origin_changes_nothing() {
    if may_mount("a_late_write_to_an_uncached_origin_changes_nothing") {
        late_origin_write("uncached", true).expect("nothing is lost or changed");
    }
}

/// Fails when: a lock that no living process holds counts as free.
#[test]
fn a_late_destage_changes_nothing() {
    if may_mount("a_late_destage_changes_nothing") {
        late_origin_write("write-back", true).expect("nothing is lost or changed");
    }
}

#[test]
fn a_late_write_to_an_origin_does_damage_without_the_lock() {
    if may_mount("a_late_write_to_an_origin_does_damage_without_the_lock") {
        for policy in ["uncached", "write-back"] {
            let damage = late_origin_write(policy, false).expect_err("the late write must be seen");
            eprintln!("{policy}: seen: {damage}");
        }
    }
}
