//! Pools: clones of one image go to another one, each when its guest has ended.

use crate::common::disk::{Device, Disk};
use crate::common::marks::Marks;
use crate::common::nbd::{Client, FLAG_FUA};
use crate::common::{PATIENCE, Rig, have, may_mount, run, wait_until};
use lab::vhost_client::{Client as Guest, Options, Wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;
/// Steps of a refresh at which a daemon can die.
const EXCHANGE: u64 = 8;
/// No refresh of a few members has so many.
const STEPS_MAX: u64 = 64;
const LONG: Duration = Duration::from_secs(120);
/// An image whose last change is this long ago is not waited for.
const REST: Duration = Duration::from_millis(4_200);

/// A block as image `id` has it.
fn block(id: u8, at: u64) -> Vec<u8> {
    let mut bytes = vec![id; BLOCK];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes
}

fn image(rig: &Rig, id: u8) -> PathBuf {
    let path = rig.dir.join(format!("gold-{id}.img"));
    let blocks = BYTES / BLOCK as u64;
    let bytes: Vec<u8> = (0..blocks).flat_map(|at| block(id, at)).collect();
    fs::write(&path, bytes).expect("write an image");
    path
}

/// A pool of so many members, and images 1 to `images`, at rest.
fn pool(members: usize, images: u8, lines: &str) -> (Rig, Vec<PathBuf>) {
    let mut rig = Rig::new();
    let images: Vec<PathBuf> = (1..=images).map(|id| image(&rig, id)).collect();
    rig.section(&format!(
        "[[pool]]\nname = \"office\"\nimage = \"{}\"\nmembers = [\"desk-{{1..{members}}}\"]\n\
         [defaults]\nformat = \"raw\"\n{lines}\n",
        images[0].display()
    ));
    std::thread::sleep(REST);
    (rig, images)
}

fn shown(rig: &Rig) -> Value {
    rig.json(&["pool", "show", "office"])
}

fn member(rig: &Rig, name: &str) -> Value {
    let pool = shown(rig);
    let members = pool["members"].as_array().expect("a list").clone();
    let found = members.into_iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {pool}"))
}

fn refresh(rig: &Rig, image: &Path, more: &[&str]) -> String {
    let image = image.display().to_string();
    let order = [&["pool", "refresh", "office", &image][..], more].concat();
    rig.done(&order)
}

fn refused(rig: &Rig, image: &Path, more: &[&str], code: i32) -> String {
    let image = image.display().to_string();
    let order = [&["pool", "refresh", "office", &image][..], more].concat();
    rig.refused(&order, code)
}

fn connect(rig: &Rig, name: &str) -> Client {
    Client::connect(&rig.all_exports(), name).expect("it is served")
}

/// What a new client of a volume finds, which says goodbye.
fn found(rig: &Rig, name: &str, at: u64) -> Vec<u8> {
    let mut client = connect(rig, name);
    let bytes = client.read(at * BLOCK as u64, BLOCK);
    client.disconnect();
    bytes
}

fn has_moved(rig: &Rig, moved: u64) {
    wait_until("the members have moved", PATIENCE, || {
        shown(rig)["members_moved"] == moved
    });
}

/// Fails when: a guest sees its disk become another one, or one that starts after a refresh finds
/// the image before, or something that its forerunner has written.
#[test]
fn members_move_when_their_guests_have_ended_and_before_the_next_one_is_answered() {
    let (rig, images) = pool(3, 2, "");
    let daemon = rig.serve();
    let mut guest = connect(&rig, "desk-1");
    guest.write(0, &block(99, 0));
    let said = refresh(&rig, &images[1], &[]);
    assert!(said.contains("2 of 3 members have"), "{said}");
    assert_eq!(found(&rig, "desk-2", 5), block(2, 5));
    // The guest that runs keeps its image and what it wrote.
    assert_eq!(guest.read(0, BLOCK), block(99, 0));
    assert_eq!(guest.read(5 * BLOCK as u64, BLOCK), block(1, 5));
    assert_eq!(member(&rig, "desk-1")["in_use"], true);
    assert_eq!(shown(&rig)["state"], "rolling");
    guest.disconnect();
    assert_eq!(found(&rig, "desk-1", 0), block(2, 0));
    has_moved(&rig, 3);
    wait_until("all is over", PATIENCE, || shown(&rig)["state"] == "stable");
    // One after the other without a pause, to and fro: none is answered from the image before.
    for turn in 0..12_u8 {
        let mut guest = connect(&rig, "desk-3");
        let (now, then) = (2 - turn % 2, 1 + turn % 2);
        guest.write(7 * BLOCK as u64, &block(98, 7));
        refresh(&rig, &images[usize::from(then) - 1], &[]);
        assert_eq!(guest.read(0, BLOCK), block(now, 0));
        guest.disconnect();
        let mut next = connect(&rig, "desk-3");
        assert_eq!(next.read(7 * BLOCK as u64, BLOCK), block(then, 7));
        next.disconnect();
        wait_until("all is over", PATIENCE, || shown(&rig)["state"] == "stable");
    }
    daemon.stop();
}

/// Fails when: a guest that lost its connection, also with the daemon, finds another disk when it
/// comes back.
#[test]
fn a_guest_that_may_come_back_finds_its_disk() {
    let (rig, images) = pool(2, 2, "reset-on = \"disconnect\"");
    let mut daemon = rig.serve();
    let mut guest = connect(&rig, "desk-1");
    guest.write(0, &block(99, 0));
    guest.command(3, 0, 0, 0);
    daemon.kill();
    drop(guest);
    daemon = rig.serve();
    refresh(&rig, &images[1], &[]);
    has_moved(&rig, 1);
    assert_eq!(member(&rig, "desk-1")["in_use"], true);
    let mut back = connect(&rig, "desk-1");
    assert_eq!(back.read(0, BLOCK), block(99, 0));
    assert_eq!(back.read(BLOCK as u64, BLOCK), block(1, 1));
    // Cut off by its own end, without a word.
    drop(back);
    wait_until("it has gone", PATIENCE, || {
        rig.show("desk-1")["clients"] == 0
    });
    assert_eq!(shown(&rig)["members_moved"], 1);
    // Who knows that it does not come back says so.
    rig.done(&["volume", "reset", "desk-1"]);
    has_moved(&rig, 2);
    assert_eq!(found(&rig, "desk-1", 0), block(2, 0));
    // No guest outlives its host.
    let guest = connect(&rig, "desk-2");
    rig.go_to_boot(1);
    daemon.kill();
    drop(guest);
    rig.lose_stage();
    let daemon = rig.serve();
    refresh(&rig, &images[0], &["--wait"]);
    assert_eq!(found(&rig, "desk-2", 3), block(1, 3));
    daemon.stop();
}

/// Fails when: a guest on rings sees its disk become another one, also after a kill of the daemon,
/// or one that begins after a refresh is answered from the image before.
#[test]
fn a_guest_on_rings_goes_on_with_its_disk_and_one_that_begins_finds_the_new_image() {
    let (rig, images) = pool(1, 2, "");
    let larger = rig.dir.join("gold-3.img");
    fs::copy(&images[1], &larger).expect("copy an image");
    let file = fs::File::options().write(true).open(&larger);
    file.and_then(|file| file.set_len(2 * BYTES))
        .expect("size it");
    std::thread::sleep(REST);
    let mut daemon = rig.serve();
    let socket = rig.run_dir().join("desk-1.vhost.sock");
    let guest = || {
        let options = Options {
            queues: 2,
            slots: 16,
            slot_bytes: BLOCK as u32,
            wait: Wait::Events,
        };
        Guest::connect(&socket, options).expect("it is served")
    };
    let mut first = guest();
    first.write(0, 0, &block(99, 0)).expect("it is written");
    refresh(&rig, &images[1], &[]);
    let mut bytes = vec![0; BLOCK];
    first.read(1, 8, &mut bytes).expect("it is read");
    assert_eq!(bytes, block(1, 1));
    daemon.kill();
    daemon = rig.serve();
    first.reconnect().expect("it comes back");
    first.read(0, 0, &mut bytes).expect("it is read");
    assert_eq!(bytes, block(99, 0));
    first.stop().expect("its rings stop");
    wait_until("it has gone", PATIENCE, || {
        rig.show("desk-1")["clients"] == 0
    });
    // It may sleep: the next one tells.
    assert_eq!(shown(&rig)["members_moved"], 0);
    let mut next = guest();
    next.read(1, 0, &mut bytes).expect("it is read");
    assert_eq!(bytes, block(2, 0));
    has_moved(&rig, 1);
    wait_until("all is over", PATIENCE, || shown(&rig)["state"] == "stable");
    next.stop().expect("its rings stop");
    refresh(&rig, &larger, &[]);
    let mut third = guest();
    third.read(0, 8, &mut bytes).expect("it is read");
    assert_eq!(bytes, block(2, 1));
    third
        .write(0, (2 * BYTES - BLOCK as u64) / 512, &block(5, 5))
        .expect("the disk is larger");
    third.stop().expect("its rings stop");
    daemon.stop();
}

/// Fails when: a kill in the middle of a refresh leaves a member with something between the two
/// images, or with what a guest before wrote, or the refresh does not go on.
#[test]
fn a_kill_at_each_step_leaves_each_member_with_one_of_the_images() {
    let (mut rig, images) = pool(2, 2, "reset-on = \"disconnect\"");
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &marks.path().display().to_string());
    for step in 1..STEPS_MAX {
        let deaths = step - 1;
        let (from, to) = if deaths % 2 == 0 { (1, 2) } else { (2, 1) };
        let daemon = rig.serve();
        let mut guest = connect(&rig, "desk-1");
        guest.write(0, &block(99, 0));
        guest.disconnect();
        marks.arm(EXCHANGE, step);
        let image = images[usize::from(to) - 1_usize].display().to_string();
        let done = rig.tenuto(&["pool", "refresh", "office", &image, "--wait"]);
        marks.disarm();
        if done.status.success() {
            daemon.stop();
            assert!(deaths >= 5, "it died {deaths} times only");
            return;
        }
        daemon.kill();
        let daemon = rig.serve();
        for name in ["desk-1", "desk-2"] {
            let mut guest = connect(&rig, name);
            let bytes = guest.read(0, 2 * BLOCK);
            guest.disconnect();
            let id = bytes[BLOCK + 8];
            assert!(id == from || id == to, "{name} has {id} after step {step}");
            // Before the switch the guest before may be one that comes back.
            let first = if id == from && bytes[8] == 99 { 99 } else { id };
            let whole = [block(first, 0), block(id, 1)].concat();
            assert!(bytes == whole, "{name}, step {step}");
        }
        if shown(&rig)["state"] == "stable" && shown(&rig)["image"] != image.as_str() {
            // It died before the switch.
            refresh(&rig, Path::new(&image), &[]);
        }
        wait_until("it goes on", LONG, || {
            let pool = shown(&rig);
            pool["state"] == "stable" && pool["image"] == image.as_str()
        });
        assert_eq!(found(&rig, "desk-1", 0), block(to, 0));
        assert_eq!(found(&rig, "desk-2", 2), block(to, 2));
        daemon.stop();
    }
    panic!("a refresh of two members has not so many steps");
}

fn program(rig: &Rig, name: &str, text: &str) -> String {
    let path = rig.dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it run");
    path.display().to_string()
}

/// Fails when: members go on to an image that a health program does not like, or those that have it
/// do not get the one before again.
#[test]
fn a_pool_goes_back_by_itself_when_its_canary_is_ill() {
    let (rig, images) = pool(4, 2, "");
    let health = program(&rig, "health", "[ \"$1\" != desk-2 ]");
    let daemon = rig.serve();
    let image = images[1].display().to_string();
    let order = [
        "pool", "refresh", "office", &image, "--wait", "--soak", "0s",
    ];
    let order = [&order[..], &["--canary", "desk-2", "--health", &health]].concat();
    let order = [&order[..], &["--max-failed", "0"]].concat();
    let said = rig.refused(&order, 1);
    let words = "pool office: went back to the image before: desk-2: ";
    assert!(said.contains(words), "{said}");
    wait_until("it is over", PATIENCE, || shown(&rig)["state"] == "stable");
    assert_eq!(shown(&rig)["generation"], 3);
    for name in ["desk-1", "desk-2", "desk-3", "desk-4"] {
        assert_eq!(found(&rig, name, 4), block(1, 4), "{name}");
    }
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    let wrong = String::from_utf8_lossy(&wrong.stdout).into_owned();
    let words = "pool office went back to the image before: desk-2: ";
    assert!(wrong.contains(words), "{wrong}");
    let metrics = rig.get("/metrics");
    for line in [
        "tenuto_pool_members_moved{pool=\"office\"} 4",
        "tenuto_pool_went_back{pool=\"office\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    let words = "pool office: goes back to ";
    wait_until("it is told", PATIENCE, || {
        rig.done(&["events"]).contains(words)
    });
    rig.done(&["pool", "finish", "office"]);
    assert!(rig.tenuto(&["status", "-x"]).status.success());
    daemon.stop();
}

/// Fails when: a step begins before the soak of the one before is over, or what is staged only
/// changes a member.
#[test]
fn a_refresh_is_staged_rolled_out_by_steps_and_taken_back() {
    let (rig, images) = pool(20, 2, "");
    let mut daemon = rig.serve();
    let said = refresh(&rig, &images[1], &["--stage-only"]);
    assert!(said.contains("is staged"), "{said}");
    assert_eq!(found(&rig, "desk-7", 0), block(1, 0));
    let gone = "there is no image before";
    rig.done(&["pool", "rollback", "office"]);
    assert!(
        rig.refused(&["pool", "rollback", "office"], 2)
            .contains(gone)
    );
    refresh(&rig, &images[1], &["--at", "2999-01-01T00:00:00Z"]);
    assert_eq!(shown(&rig)["state"], "staged");
    // A long soak: the second step does not come.
    let steps = ["--canary", "desk-3", "--percent", "50", "--soak", "1h"];
    refresh(&rig, &images[1], &steps);
    has_moved(&rig, 1);
    assert_eq!(found(&rig, "desk-3", 0), block(2, 0));
    daemon.stop();
    daemon = rig.serve();
    assert_eq!(shown(&rig)["members_moved"], 1);
    assert_eq!(found(&rig, "desk-3", 0), block(2, 0));
    assert_eq!(found(&rig, "desk-4", 0), block(1, 0));
    rig.done(&["pool", "rollback", "office", "--wait"]);
    assert_eq!(found(&rig, "desk-3", 0), block(1, 0));
    // Once more would be the way to the image that was not wanted.
    let said = rig.refused(&["pool", "rollback", "office"], 2);
    assert!(said.contains("already"), "{said}");
    // Half of them after a moment, all after another one.
    refresh(&rig, &images[1], &["--percent", "50", "--soak", "2s"]);
    let half = shown(&rig)["members_moved"].as_u64().expect("a number");
    assert!((4..=16).contains(&half), "{half} of 20");
    wait_until("all is over", LONG, || shown(&rig)["state"] == "stable");
    assert_eq!(found(&rig, "desk-20", 0), block(2, 0));
    let said = rig.done(&["pool", "finish", "office"]);
    assert!(said.contains("all 20 members have"), "{said}");
    // The file names the first image still; the record is what counts.
    fs::remove_file(&images[0]).expect("it is not needed any more");
    daemon.stop();
    let daemon = rig.serve();
    assert_eq!(found(&rig, "desk-9", 0), block(2, 0));
    rig.done(&["config", "--check"]);
    assert_eq!(rig.done(&["reload"]).lines().count(), 1);
    rig.done(&["volume", "set", "desk-9", "overlay-timeout=40s"]);
    daemon.stop();
}

/// Fails when: an image that has changed since it was staged is switched to.
#[test]
fn what_was_staged_is_looked_at_again_when_its_time_has_come() {
    let (rig, images) = pool(2, 2, "");
    let daemon = rig.serve();
    refresh(&rig, &images[1], &["--at", "2999-01-01T00:00:00Z"]);
    daemon.stop();
    let path = rig.dir.join("state/pools/office.json");
    let text = fs::read_to_string(&path).expect("a record");
    let record: Value = serde_json::from_str(&text).expect("JSON");
    let at = record["rollout"]["asked"]["at_unix_ms"].to_string();
    fs::write(&path, text.replace(&at, "1")).expect("write the record");
    fs::remove_file(&images[1]).expect("remove the image");
    let daemon = rig.serve();
    wait_until("it is told", PATIENCE, || {
        !shown(&rig)["went_back"].is_null()
    });
    assert_eq!(shown(&rig)["state"], "stable");
    assert_eq!(found(&rig, "desk-1", 3), block(1, 3));
    assert!(!rig.tenuto(&["status", "-x"]).status.success());
    rig.done(&["pool", "finish", "office"]);
    assert!(rig.tenuto(&["status", "-x"]).status.success());
    daemon.stop();
}

/// Fails when: an order that cannot be is taken, or its message does not say what would be right.
#[test]
fn orders_that_cannot_be_are_refused_with_words() {
    let (rig, images) = pool(2, 2, "");
    let daemon = rig.serve();
    let small = rig.image("small.img", BYTES / 2);
    let missing = rig.dir.join("missing.img");
    std::thread::sleep(REST);
    let cases: [(&Path, &[&str], &str); 4] = [
        (&images[0], &[], "is its image already"),
        (&small, &[], "give it one as large"),
        (&missing, &[], "no such file or directory"),
        (
            &images[1],
            &["--canary", "desk-9"],
            "it has no member desk-9",
        ),
    ];
    for (image, more, words) in cases {
        let said = refused(&rig, image, more, 2);
        assert!(said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = rig.refused(&["pool", "refresh", "offise", "/x"], 1);
    assert!(said.contains("pool offise: not known"), "{said}");
    let said = rig.refused(
        &["pool", "refresh", "office", "/x", "--percent", "50,10"],
        2,
    );
    assert!(said.contains("numbers that grow"), "{said}");
    let guest = connect(&rig, "desk-1");
    refresh(&rig, &images[1], &[]);
    let said = refused(&rig, &images[0], &[], 2);
    assert!(said.contains("its members move to"), "{said}");
    let said = rig.refused(&["pool", "finish", "office"], 2);
    assert!(said.contains("desk-1 has the image before still"), "{said}");
    guest.disconnect();
    daemon.stop();
    // A member would get a wrong image.
    fs::write(rig.dir.join("state/pools/office.json"), "{").expect("write it");
    let (_, log) = rig.try_serve().err().expect("it does not start");
    assert!(log.contains("is no record of pool office"), "{log}");
}

/// Fails when: overlays of guests are thrown away without being asked for, are lost before `pool
/// finish`, or a kill leaves a member without a whole image.
#[test]
fn overlays_in_qcow2_files_are_exchanged_for_empty_ones() {
    if !have(
        "overlays_in_qcow2_files_are_exchanged_for_empty_ones",
        &["qemu-img", "qemu-io"],
    ) {
        return;
    }
    let mut rig = Rig::new();
    let images: Vec<PathBuf> = (1..=2).map(|id| image(&rig, id)).collect();
    for name in ["desk-1", "desk-2"] {
        let (below, overlay) = (images[0].display().to_string(), overlay(&rig, name));
        let overlay = overlay.display().to_string();
        let create = [
            "create", "-q", "-f", "qcow2", "-F", "raw", "-b", &below, &overlay,
        ];
        run("qemu-img", &create);
        rig.qcow2_volume(name, Path::new(&overlay), "write-back", "");
    }
    rig.section(&format!(
        "[[pool]]\nname = \"office\"\nimage = \"{}\"\nclone = \"qcow2\"\nmembers = [\"desk-*\"]\n",
        images[0].display()
    ));
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &marks.path().display().to_string());
    std::thread::sleep(REST);
    let mut daemon = rig.serve();
    write_own(&rig, "desk-1");
    let said = refused(&rig, &images[1], &[], 4);
    assert!(said.contains("--discard-changes"), "{said}");
    let in_the_way = overlay(&rig, "desk-2").with_extension("qcow2.prev");
    fs::write(&in_the_way, "of others").expect("write it");
    let said = refused(&rig, &images[1], &["--discard-changes"], 2);
    assert!(said.contains("is in the way"), "{said}");
    rig.done(&["pool", "finish", "office"]);
    assert!(in_the_way.exists(), "a file of others");
    fs::remove_file(&in_the_way).expect("remove it");
    // What guests read through their overlays is read ahead as well.
    let mut guest = connect(&rig, "desk-2");
    guest.read(100 * BLOCK as u64, 32 * BLOCK);
    guest.disconnect();
    refresh(&rig, &images[1], &["--stage-only", "--discard-changes"]);
    let ahead = |key: &str| shown(&rig)["read_ahead"][key].clone();
    wait_until("it is read", PATIENCE, || ahead("over") == true);
    assert!(ahead("read_bytes").as_u64() >= Some(32 * BLOCK as u64));
    rig.done(&["pool", "rollback", "office"]);
    let mut deaths = 0;
    for step in 1..STEPS_MAX {
        marks.arm(EXCHANGE, step);
        let image = images[1].display().to_string();
        let order = [
            "pool",
            "refresh",
            "office",
            &image,
            "--wait",
            "--discard-changes",
        ];
        let done = rig.tenuto(&order);
        marks.disarm();
        if done.status.success() {
            assert!(
                step > 6 && deaths >= 6,
                "{step} steps, {deaths} deaths of a way back"
            );
            break;
        }
        daemon.kill();
        daemon = rig.serve();
        finish_what_was_begun(&rig, &images[1]);
        assert_eq!(found(&rig, "desk-1", 0), block(2, 0), "step {step}");
        assert_eq!(found(&rig, "desk-2", 1), block(2, 1), "step {step}");
        // What the guest had is beside its new overlay.
        let former = overlay(&rig, "desk-1").with_extension("qcow2.prev");
        let read = format!("read -P {} 4096 512", 77);
        let former = former.display().to_string();
        let said = run("qemu-io", &["-r", "-f", "qcow2", "-c", &read, &former]);
        assert!(!said.contains("failed"), "step {step}: {said}");
        marks.arm(EXCHANGE, step);
        let back = rig.tenuto(&["pool", "rollback", "office", "--wait"]);
        marks.disarm();
        if !back.status.success() {
            deaths += 1;
            daemon.kill();
            daemon = rig.serve();
            let done = || shown(&rig)["state"] == "stable";
            wait_until("it goes on", LONG, done);
        }
        assert_eq!(found(&rig, "desk-1", 0), block(1, 0), "back, step {step}");
        // What the guest had is in its disk again.
        assert_eq!(found(&rig, "desk-1", 1), [77; BLOCK], "back, step {step}");
        assert!(Path::new(&former).exists(), "back, step {step}");
        rig.done(&["pool", "finish", "office"]);
        assert!(!Path::new(&former).exists());
        assert!(!Path::new(&former.replace(".prev", ".tenuto-next")).exists());
    }
    daemon.stop();
    for name in ["desk-1", "desk-2"] {
        let overlay = overlay(&rig, name).display().to_string();
        run("qemu-img", &["check", "-q", &overlay]);
        let info = run("qemu-img", &["info", "--output=json", &overlay]);
        assert!(info.contains("gold-2.img"), "{info}");
    }
}

fn overlay(rig: &Rig, name: &str) -> PathBuf {
    rig.dir.join(format!("{name}.qcow2"))
}

fn write_own(rig: &Rig, name: &str) {
    let mut guest = connect(rig, name);
    let written = guest.try_write(BLOCK as u64, &[77; BLOCK], FLAG_FUA);
    assert_eq!(written, 0);
    guest.disconnect();
}

fn finish_what_was_begun(rig: &Rig, image: &Path) {
    let pool = shown(rig);
    if pool["state"] == "stable" && pool["image"] != image.display().to_string() {
        refresh(rig, image, &["--discard-changes"]);
    }
    wait_until("it goes on", LONG, || shown(rig)["state"] == "stable");
}

/// Fails when: clones of one image read it more than once from the origin, also after a refresh.
#[test]
fn a_hundred_clones_read_the_new_image_once() {
    let (rig, images) = pool(100, 2, "overlay-ram = \"1MiB\"");
    let daemon = rig.serve();
    refresh(&rig, &images[1], &["--wait"]);
    let boot = 256;
    for name in (1..=100).map(|number| format!("desk-{number}")) {
        let mut guest = connect(&rig, &name);
        for at in 0..boot {
            assert_eq!(guest.read(at * BLOCK as u64, BLOCK), block(2, at), "{name}");
        }
        guest.disconnect();
    }
    let read: u64 = (1..=100)
        .map(|number| origin_read_bytes(&rig, number))
        .sum();
    let once = boot * BLOCK as u64;
    assert!(read >= once && read <= once + once / 50, "{read} of {once}");
    daemon.stop();
}

fn origin_read_bytes(rig: &Rig, number: u64) -> u64 {
    let shown = rig.show(&format!("desk-{number}"));
    shown["origin"]["read_bytes"].as_u64().expect("a number")
}

fn origin_reads(rig: &Rig) -> u64 {
    (1..=3).map(|number| origin_read_bytes(rig, number)).sum()
}

/// Fails when: what guests have read of an image is read of the next one after the switch only, or
/// an administrator or a client sees that it is read.
#[test]
fn what_members_have_read_is_read_of_the_next_image_before_they_move() {
    let (rig, images) = pool(3, 3, "overlay-ram = \"1MiB\"");
    let mut daemon = rig.serve();
    let boot: Vec<u64> = (0..64).chain(600..664).chain([1_999]).collect();
    let started = |id: u8, name: &str| {
        let mut guest = connect(&rig, name);
        for at in &boot {
            assert_eq!(
                guest.read(at * BLOCK as u64, BLOCK),
                block(id, *at),
                "{name}"
            );
        }
        guest.disconnect();
    };
    started(1, "desk-1");
    let said = refresh(&rig, &images[1], &["--stage-only"]);
    assert!(said.contains("is staged"), "{said}");
    let ahead = |key: &str| shown(&rig)["read_ahead"][key].clone();
    wait_until("it is read", PATIENCE, || ahead("over") == true);
    assert_eq!(ahead("read_bytes"), boot.len() * BLOCK);
    assert_eq!(ahead("total_bytes"), boot.len() * BLOCK);
    assert!(rig.done(&["pool", "show", "office"]).contains("read ahead"));
    let volumes = rig.json(&["volume", "ls"]);
    assert_eq!(volumes["volumes"].as_array().map(Vec::len), Some(3));
    assert!(rig.tenuto(&["status", "-x"]).status.success());
    assert!(!rig.get("/metrics").contains("office:"));
    let before = origin_reads(&rig);
    refresh(&rig, &images[1], &["--wait"]);
    started(2, "desk-1");
    started(2, "desk-2");
    assert_eq!(origin_reads(&rig), before, "nothing is left to be read");
    assert_eq!(shown(&rig)["read_ahead"], Value::Null);
    // The same in one step, and by a daemon that finds it begun.
    refresh(&rig, &images[2], &["--at", "2999-01-01T00:00:00Z"]);
    daemon.kill();
    daemon = rig.serve();
    wait_until("it is read", PATIENCE, || ahead("over") == true);
    rig.done(&["pool", "rollback", "office"]);
    assert_eq!(shown(&rig)["read_ahead"], Value::Null);
    // What is given up may go while the next one comes.
    for turn in 0..10 {
        refresh(&rig, &images[turn % 2 * 2], &["--stage-only"]);
        rig.done(&["pool", "rollback", "office"]);
    }
    let before = origin_reads(&rig);
    refresh(&rig, &images[2], &["--prefetch", "all", "--wait"]);
    started(3, "desk-3");
    assert_eq!(found(&rig, "desk-1", 1_000), block(3, 1_000));
    assert_eq!(origin_reads(&rig), before, "all of it was read");
    refresh(&rig, &images[0], &["--prefetch", "none", "--wait"]);
    assert_eq!(found(&rig, "desk-2", 1_500), block(1, 1_500));
    assert!(origin_reads(&rig) > before, "nothing was read ahead");
    // The log keeps nothing of a reading that a kill has ended.
    refresh(&rig, &images[1], &["--stage-only"]);
    wait_until("it is read", PATIENCE, || ahead("over") == true);
    daemon.kill();
    let daemon = rig.serve();
    rig.done(&["pool", "rollback", "office"]);
    daemon.stop();
    let cache = rig.cache_path().display().to_string();
    let known = rig.done(&["cache", "inspect", &cache]);
    assert!(
        known.contains("desk-1") && !known.contains("office:"),
        "{known}"
    );
}

/// Fails when: members move to an image that storage does not give, or an order that waits for it
/// cannot be taken back.
#[test]
fn an_image_that_cannot_be_read_ahead_is_not_switched_to() {
    let test = "an_image_that_cannot_be_read_ahead_is_not_switched_to";
    if !may_mount(test) {
        return;
    }
    let (rig, _) = pool(2, 1, "origin-timeout = \"3s\"");
    let disk = Disk::new(BYTES as usize);
    for at in 0..BYTES / BLOCK as u64 {
        disk.fill(at as usize * BLOCK, &block(2, at));
    }
    let device = Device::new(&disk, &rig.dir.join("far"));
    let daemon = rig.serve();
    let mut guest = connect(&rig, "desk-1");
    guest.read(1_024 * BLOCK as u64, 8 * BLOCK);
    guest.disconnect();
    let far = device.path().to_owned();
    // Its first block is looked at before anything is read ahead.
    disk.hold_reads(1_024 * BLOCK as u64, 1_032 * BLOCK as u64);
    std::thread::scope(|scope| {
        let order = scope.spawn(|| refused(&rig, &far, &[], 2));
        wait_until("it is staged", PATIENCE, || {
            shown(&rig)["read_ahead"]["total_bytes"] == 8 * BLOCK
        });
        assert_eq!(found(&rig, "desk-2", 3), block(1, 3));
        rig.done(&["pool", "rollback", "office"]);
        let said = order.join().expect("it ends");
        assert!(said.contains("given up by `pool rollback`"), "{said}");
    });
    disk.let_go();
    // It answers what it had begun, and then with errors.
    for at in [1_200, 1_500] {
        found(&rig, "desk-1", at);
    }
    disk.hold_reads(1_200 * BLOCK as u64, 1_201 * BLOCK as u64);
    std::thread::scope(|scope| {
        let order = scope.spawn(|| refused(&rig, &far, &[], 1));
        assert!(disk.wait_parked(1, PATIENCE), "it is read");
        disk.unplug(true);
        disk.let_go();
        let said = order.join().expect("it ends");
        assert!(said.contains("cannot be read at byte 6144000"), "{said}");
    });
    assert_eq!(shown(&rig)["state"], "stable");
    assert_eq!(found(&rig, "desk-1", 3), block(1, 3));
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    disk.unplug(false);
    wait_until("it is read again", PATIENCE, || {
        let far = far.display().to_string();
        let done = rig.tenuto(&["pool", "refresh", "office", &far, "--wait"]);
        done.status.success()
    });
    assert_eq!(found(&rig, "desk-1", 1_024), block(2, 1_024));
    daemon.stop();
}

/// Fails when: a volume that comes while another one goes, which waits for the cache device, gets
/// the number of that one: the host has its files under it, and ends.
#[test]
fn a_volume_that_comes_does_not_take_the_number_of_one_that_goes() {
    let test = "a_volume_that_comes_does_not_take_the_number_of_one_that_goes";
    if !may_mount(test) {
        return;
    }
    let (mut rig, images) = pool(1, 3, "");
    let disk = Disk::new(160 << 20);
    let device = Device::new(&disk, &rig.dir.join("device"));
    let sizes = "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"";
    rig.cache(device.path(), "160MiB", sizes);
    rig.write_config();
    rig.done(&["cache", "create", &device.path().to_string_lossy()]);
    let daemon = rig.serve();
    found(&rig, "desk-1", 3);
    refresh(&rig, &images[1], &["--stage-only"]);
    let is_read = || shown(&rig)["read_ahead"]["over"] == true;
    wait_until("it is read", PATIENCE, is_read);
    disk.hold_writes(0, u64::MAX);
    rig.done(&["pool", "rollback", "office"]);
    assert!(disk.wait_parked(1, PATIENCE), "its volume goes");
    std::thread::scope(|scope| {
        let order = scope.spawn(|| refresh(&rig, &images[2], &["--stage-only"]));
        // By then the next ones have come.
        std::thread::sleep(Duration::from_secs(1));
        disk.let_go();
        order.join().expect("it is done");
    });
    wait_until("it is read", PATIENCE, is_read);
    refresh(&rig, &images[2], &["--wait"]);
    assert_eq!(found(&rig, "desk-1", 3), block(3, 3));
    daemon.stop();
}
