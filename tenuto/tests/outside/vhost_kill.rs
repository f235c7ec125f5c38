//! The daemon under a guest is killed, stopped and started again, and the guest sees a pause.
//!
//! One guest with disks over vhost-user, sixteen requests at a time on one of them, files that are
//! flushed on two others. A kill counts only when the in-flight regions, which QEMU keeps, say that
//! requests had been taken and not ended. The second part is about what a killed daemon's request
//! does when it ends late: a read lands in memory that the guest has long used for something else.

use std::path::Path;
use std::time::Duration;

use crate::common::disk::{Device, Disk as Parking};
use crate::common::guest::Machine;
use crate::common::inside;
use crate::common::vm::{Shape, Vm};
use crate::common::{Rig, count, may_mount, seed, wait_until};
use crate::vhost_guest::{
    blocks_image, ext4_image, is_clean, is_there, serials, sum_of, vhost, xfs_image,
};
use workload::rng::Rng;

/// Everybody inside gets on by that much between two kills.
const STEPS: u64 = 2;
/// Kills that hit nothing do not count, and may not go on for ever.
const KILLS_MAX: u64 = 5;
const STOP_EVERY: u64 = 4;
const PARK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a daemon that waits is watched. It does not shorten a wait that is right.
const WATCHED: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_OUT: &str = "TENUTO_DRILL_NO_LOCK";

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn a_guest_sees_a_pause_and_never_an_error_when_its_daemon_is_killed_or_stopped() {
    let test = "a_guest_sees_a_pause_and_never_an_error_when_its_daemon_is_killed_or_stopped";
    let mut rig = Rig::new();
    let Some(machine) = Machine::with_program(test, &rig.dir) else {
        return;
    };
    let uses = ["blocks", "ext4", "xfs"];
    let images = [
        blocks_image(&rig, "blocks.img"),
        ext4_image(&rig, "ext4.img"),
        xfs_image(&rig, "xfs.img"),
    ];
    for (name, image) in uses.iter().zip(&images) {
        rig.guest_volume(name, image, "write-back", "destage-after = \"1s\"");
    }
    let rounds = count("TENUTO_DRILL_ROUNDS", 6);
    let mut random = Rng::new(seed(41));
    let mut daemon = rig.serve();
    let shape = Shape {
        name: "guest".to_owned(),
        disks: uses.iter().map(|name| vhost(&rig, name)).collect(),
        uses: &uses,
        step: "work",
        processors: 4,
        words: "",
        incoming: None,
    };
    let mut vm = Vm::start(&machine, &rig.dir, &shape);
    vm.goes_on(1);
    let (mut kills, mut hits, mut stops, mut requests) = (0, 0, 0, 0);
    while hits < rounds {
        assert!(
            kills < KILLS_MAX * rounds,
            "{hits} of {kills} kills hit anything"
        );
        vm.goes_on(random.below(STEPS) + 1);
        if (kills + stops) % STOP_EVERY == STOP_EVERY - 1 {
            daemon.stop();
            stops += 1;
        } else {
            daemon.kill();
            kills += 1;
            let found = vm.in_flight();
            hits += u64::from(found > 0);
            requests += found;
        }
        daemon = rig.serve();
    }
    vm.goes_on(STEPS);
    let ended = vm.end();
    eprintln!("{kills} kills, {hits} with {requests} requests in flight, {stops} orderly stops");
    rig.done(&["volume", "destage", "--all", "--wait"]);
    daemon.stop();
    assert_eq!(ended.said("sum"), [format!("vda {}", sum_of(&images[0]))]);
    is_clean(&images[1], "ext4");
    is_clean(&images[2], "xfs");
    let alone = Shape {
        name: "alone".to_owned(),
        disks: images.map(crate::common::vm::Disk::Image).into(),
        step: "check",
        ..shape
    };
    let alone = Vm::start(&machine, &rig.dir, &alone).wait_off();
    for disk in ["vda", "vdb", "vdc"] {
        let (kept, found) = (ended.said("kept"), alone.said("found"));
        is_there(&serials(&kept, disk), &serials(&found, disk));
    }
}

/// What keeps a late read from the guest's memory.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// The image is locked for one daemon alone, and the lock waits for the read.
    Lock,
    /// An image that others may read as well is not, so reads go by memory of the daemon's own.
    OwnMemory,
    /// Taken out.
    Nothing,
}

/// A volume on an image that others may read, whose reads find no room in RAM on their way.
fn past_the_read_tier<'a>(rig: &'a mut Rig, image: &Path) -> &'a mut Rig {
    let cache = rig.cache_path();
    let lines = "ram = \"0MiB\"\nstage = \"16MiB\"\noverlay-ram = \"16MiB\"";
    rig.cache(&cache, "256MiB", lines);
    rig.guest_volume("disk", image, "ephemeral", "")
}

/// A read of a killed daemon is still under way when the next one starts. What the guest says of
/// the memory in the end.
fn late_read(test: &str, rule: Rule) -> Option<Result<(), String>> {
    if !may_mount(test) {
        return None;
    }
    let mut rig = Rig::new();
    let machine = Machine::with_program(test, &rig.dir)?;
    let disk = Parking::new(inside::DISK_BYTES as usize);
    disk.fill(0, &inside::library());
    let device = Device::new(&disk, &rig.dir.join("disk"));
    let journal = format!("journal = \"{}\"", rig.dir.display());
    match rule {
        Rule::OwnMemory => past_the_read_tier(&mut rig, device.path()),
        Rule::Lock | Rule::Nothing => rig.guest_volume("disk", device.path(), "uncached", &journal),
    };
    let daemon = rig.serve();
    disk.hold_reads(inside::LATE_AT, inside::LATE_AT + inside::LATE_BYTES);
    let shape = Shape {
        name: "guest".to_owned(),
        disks: vec![vhost(&rig, "disk")],
        uses: &["blocks"],
        step: "late",
        processors: 1,
        words: "",
        incoming: None,
    };
    let mut vm = Vm::start(&machine, &rig.dir, &shape);
    vm.wait_for("the guest reads", |vm| vm.said("reading").len() == 1);
    assert!(disk.wait_parked(1, PARK_TIMEOUT), "the origin is read");
    if rule == Rule::Nothing {
        let marks = rig.dir.join("marks");
        rig.env(LOCK_OUT, "1");
        rig.env("TENUTO_MARKS", marks.to_str().expect("a plain path"));
    }
    let late = disk.parked();
    disk.hold_no_more();
    daemon.kill();
    assert!(vm.in_flight() > 0, "the guest has no answer");
    assert_eq!(disk.parked(), late, "the kill must not take the reads back");
    let second = rig.start();
    let waits = rule == Rule::Lock;
    let has_read = |vm: &Vm| vm.said("ours").len() == 1;
    let daemon = if second.is_ready_within(if waits { WATCHED } else { START_TIMEOUT }) {
        assert!(!waits, "it serves while a read is under way");
        vm.wait_for("its read has ended", has_read);
        assert_eq!(disk.let_go(), late);
        second.daemon()
    } else {
        assert!(waits, "without the rule it waits for nothing");
        wait_until("the daemon says what it waits for", START_TIMEOUT, || {
            second.log().contains("waiting")
        });
        assert!(!has_read(&vm));
        assert_eq!(disk.let_go(), late);
        let daemon = second.wait();
        let daemon = daemon.unwrap_or_else(|(status, log)| panic!("{status}\n{log}"));
        vm.wait_for("its read has ended", has_read);
        daemon
    };
    vm.tell();
    let result = vm.try_wait_for("the guest has looked", START_TIMEOUT, |vm| {
        vm.said("over").len() == 1
    });
    if result.is_ok() {
        vm.wait_off();
    }
    daemon.stop();
    Some(result)
}

/// Fails when: a lock that no living process holds counts as free.
#[test]
fn a_late_read_of_a_killed_daemon_changes_nothing_in_a_guests_memory() {
    let test = "a_late_read_of_a_killed_daemon_changes_nothing_in_a_guests_memory";
    if let Some(result) = late_read(test, Rule::Lock) {
        result.expect("nobody writes in the guest's memory");
    }
}

/// Fails when: reads of an image that others read too go straight to the guest.
#[test]
fn a_late_read_of_an_image_that_others_read_too_changes_nothing_and_is_not_waited_for() {
    let test = "a_late_read_of_an_image_that_others_read_too_changes_nothing_and_is_not_waited_for";
    if let Some(result) = late_read(test, Rule::OwnMemory) {
        result.expect("nobody writes in the guest's memory");
    }
}

#[test]
fn a_late_read_of_a_killed_daemon_does_damage_without_the_lock() {
    let test = "a_late_read_of_a_killed_daemon_does_damage_without_the_lock";
    if let Some(result) = late_read(test, Rule::Nothing) {
        eprintln!("seen: {}", result.expect_err("the late read must be seen"));
    }
}
