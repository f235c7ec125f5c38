//! Backups as the programs make them that people use: `nbdinfo`, `nbdcopy`, `qemu-img`.
//!
//! Always true: a backup is compared with the image itself, which is read as a file while it rests,
//! and an increment with what it must restore; what a guest writes has a number of its own, so that
//! no old block looks like a new one.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use workload::rng::Rng;

use crate::common::nbd::{CMD_TRIM, CMD_WRITE_ZEROES, Client, EPERM};
use crate::common::{
    EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, PATIENCE, Rig, SetWhenDropped, have, run, seed,
    wait_until,
};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 24 * MIB;
const GRAIN: u64 = 64 << 10;
/// Where the load writes; what lies behind it changes only when a test says so.
const LOADED: u64 = 4 * MIB;

fn uri(rig: &Rig, export: &str) -> String {
    format!(
        "nbd+unix:///{export}?socket={}",
        rig.all_exports().display()
    )
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// One random change in the first bytes of a disk.
fn change(client: &mut Client, random: &mut Rng, number: u64, bytes: u64) {
    let at = random.below(bytes / 4096 - 8) * 4096;
    let length = (1 + random.below(8)) * 4096;
    match random.below(6) {
        0 => assert_eq!(client.command(CMD_WRITE_ZEROES, 0, at, length as u32), 0),
        1 => assert_eq!(client.command(CMD_TRIM, 0, at, length as u32), 0),
        2 => client.write(at + 7, &[number as u8; 700]),
        _ => {
            let block: Vec<u8> = number.to_le_bytes().repeat(length as usize / 8);
            client.write(at, &block);
        }
    }
}

/// Changes a disk until told to stop, and counts what was answered.
fn load(rig: &Rig, volume: &str, seed: u64, stop: &AtomicBool, answered: &AtomicU64) {
    let mut client = rig.connect(volume);
    let mut random = Rng::new(seed);
    while !stop.load(Ordering::SeqCst) {
        let number = answered.load(Ordering::SeqCst) + 1;
        change(&mut client, &mut random, number, LOADED - MIB);
        client.write(LOADED - 4096, &number.to_le_bytes());
        answered.store(number, Ordering::SeqCst);
        // So that the log has room for all of a window, however slow the machine is.
        std::thread::park_timeout(Duration::from_millis(3));
    }
    client.disconnect();
}

/// The number that the load wrote last.
fn number_in(disk: &[u8]) -> u64 {
    let at = (LOADED - 4096) as usize;
    u64::from_le_bytes(disk[at..at + 8].try_into().expect("eight"))
}

/// Ranges that a program finds changed since a checkpoint.
fn changed(rig: &Rig, volume: &str, checkpoint: &str) -> Vec<(u64, u64)> {
    let context = format!("--map=qemu:dirty-bitmap:{checkpoint}");
    let backup = uri(rig, &format!("{volume}@backup"));
    let text = run("nbdinfo", &[&context, "--json", &backup]);
    let map: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let all = map.as_array().expect("extents").iter();
    let number = |it: &Value, key: &str| it[key].as_u64().expect("a number");
    let dirty = all.filter(|it| number(it, "type") & 1 != 0);
    dirty
        .map(|it| (number(it, "offset"), number(it, "length")))
        .collect()
}

/// Brings what has changed to an older backup.
fn add_increment(rig: &Rig, volume: &str, checkpoint: &str, backup: &Path) -> u64 {
    let file = fs::File::options().write(true).open(backup).expect("open");
    let mut client =
        Client::connect(&rig.all_exports(), &format!("{volume}@backup")).expect("open");
    let mut bytes = 0;
    for (offset, length) in changed(rig, volume, checkpoint) {
        for at in (offset..offset + length).step_by(MIB as usize) {
            let piece = MIB.min(offset + length - at);
            let data = client.read(at, piece as usize);
            file.write_all_at(&data, at).expect("write");
        }
        bytes += length;
    }
    client.disconnect();
    bytes
}

fn is_same(one: &Path, other: &[u8]) {
    let one = fs::read(one).expect("read it");
    assert_eq!(one.len(), other.len());
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    assert_eq!(differs, None, "the first byte that differs");
}

fn exports(rig: &Rig) -> BTreeSet<String> {
    let all = format!("nbd+unix:///?socket={}", rig.all_exports().display());
    let text = run("nbdinfo", &["--list", "--json", &all]);
    let list: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let names = list["exports"].as_array().expect("exports").iter();
    names
        .map(|it| it["export-name"].as_str().expect("a name").to_owned())
        .collect()
}

fn checkpoints(rig: &Rig, volume: &str) -> Vec<Value> {
    let document = rig.json(&["volume", "checkpoint", volume, "--list"]);
    document["checkpoints"].as_array().expect("a list").clone()
}

fn disk(lines: &str) -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", lines);
    (rig, image)
}

const NEVER: &str = "destage-after = \"never\"";

/// Fails when: a backup lacks what was answered before its order, has a byte of what was written
/// after the cut, or an increment lacks a block that changed between two cuts.
#[test]
fn full_and_incremental_backups_under_load_are_the_images_at_their_cuts() {
    let test = "full_and_incremental_backups_under_load_are_the_images_at_their_cuts";
    if !have(test, &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let (rig, image) = disk("destage-after = \"1s\"");
    let daemon = rig.serve();
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let seed = seed(71);
    let full = rig.dir.join("full.img");
    std::thread::scope(|scope| {
        let _stop = SetWhenDropped(&stop);
        scope.spawn(|| load(&rig, "disk", seed, &stop, &answered));
        wait_until("the load runs", PATIENCE, || {
            answered.load(Ordering::SeqCst) > 50
        });
        let mut last = String::new();
        for (round, day) in ["monday", "tuesday", "wednesday"].into_iter().enumerate() {
            let least = answered.load(Ordering::SeqCst);
            rig.done(&["volume", "quiesce", "disk", "--checkpoint", day]);
            assert!(exports(&rig).contains("disk@backup"));
            let at_cut = fs::read(&image).expect("the image");
            assert!(number_in(&at_cut) >= least, "what was answered is in it");
            let backup = uri(&rig, "disk@backup");
            let copy = rig.dir.join(format!("{day}.img"));
            match round {
                0 => drop(run("nbdcopy", &[&backup, &shown(&full)])),
                _ => {
                    let bytes = add_increment(&rig, "disk", &last, &full);
                    assert!(bytes > 0 && bytes <= LOADED, "{bytes} of {LOADED}");
                }
            }
            let convert = ["convert", "-f", "raw", "-O", "raw", &backup];
            run("qemu-img", &[&convert[..], &[&shown(&copy)]].concat());
            // Guests have written since.
            let now = answered.load(Ordering::SeqCst);
            wait_until("the guest goes on", PATIENCE, || {
                answered.load(Ordering::SeqCst) > now + 20
            });
            is_same(&full, &at_cut);
            is_same(&copy, &at_cut);
            is_same(&image, &at_cut);
            rig.done(&["volume", "resume", "disk"]);
            assert!(!exports(&rig).contains("disk@backup"));
            let more = answered.load(Ordering::SeqCst);
            wait_until("the load goes on", PATIENCE, || {
                answered.load(Ordering::SeqCst) > more + 50
            });
            last = day.to_owned();
        }
        // An increment may skip one.
        let list = checkpoints(&rig, "disk");
        assert_eq!(list.len(), 3, "{list:?}");
        assert!(list.iter().all(|it| it["state"] == "valid"), "{list:?}");
    });
    daemon.stop();
}

/// Writes one block, which no other write of this test touches, and says which grain that is.
fn touch(client: &mut Client, grain: u64, kind: usize) -> u64 {
    let at = grain * GRAIN + 4096;
    match kind {
        0 => client.write(at, &[grain as u8 + 1; 4096]),
        1 => assert_eq!(client.command(CMD_WRITE_ZEROES, 0, at, 4096), 0),
        2 => assert_eq!(client.command(CMD_TRIM, 0, at, 4096), 0),
        _ => client.write(at + 1, &[grain as u8 + 1; 5]),
    }
    grain
}

fn grains(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
    let all = ranges.iter();
    all.flat_map(|(at, bytes)| at / GRAIN..(at + bytes).div_ceil(GRAIN))
        .collect()
}

/// Fails when: a kill, an orderly stop or a deletion takes a bit away, or a kind of change has
/// none.
#[test]
fn what_changed_is_known_after_a_kill_and_after_a_stop() {
    let test = "what_changed_is_known_after_a_kill_and_after_a_stop";
    if !have(test, &["nbdinfo"]) {
        return;
    }
    let (rig, image) = disk(NEVER);
    let mut daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &vec![0xaa; BYTES as usize / 2]);
    client.disconnect();
    rig.done(&["volume", "checkpoint", "disk", "monday"]);
    let full = rig.dir.join("full.img");
    rig.done(&["volume", "quiesce", "disk"]);
    fs::copy(&image, &full).expect("copy");
    rig.done(&["volume", "resume", "disk"]);
    let mut expected = BTreeSet::new();
    for (round, kind) in (0..12).zip([0, 1, 2, 3].into_iter().cycle()) {
        let mut client = rig.connect("disk");
        expected.insert(touch(&mut client, 3 + 11 * round, kind));
        if round == 5 {
            rig.done(&["volume", "checkpoint", "disk", "tuesday"]);
            rig.done(&["volume", "checkpoint", "disk", "--delete", "tuesday"]);
        }
        drop(client);
        daemon = match round % 3 {
            0 => {
                daemon.kill();
                rig.serve()
            }
            1 => {
                daemon.stop();
                rig.serve()
            }
            _ => daemon,
        };
    }
    rig.done(&["volume", "quiesce", "disk", "--checkpoint", "friday"]);
    let found = grains(&changed(&rig, "disk", "monday"));
    assert_eq!(found, expected, "these and no others");
    let map = rig.json(&["volume", "checkpoint", "disk", "--map", "monday"]);
    assert_eq!(map["changed_bytes"], expected.len() as u64 * GRAIN);
    add_increment(&rig, "disk", "monday", &full);
    is_same(&full, &fs::read(&image).expect("the image"));
    rig.done(&["volume", "resume", "disk"]);
    daemon.stop();
}

/// Fails when: bits that may be incomplete are offered, or their loss is not told.
#[test]
fn checkpoints_are_lost_with_the_power_and_with_an_image_that_was_written_elsewhere() {
    let test = "checkpoints_are_lost_with_the_power_and_with_an_image_that_was_written_elsewhere";
    if !have(test, &["nbdinfo"]) {
        return;
    }
    let (rig, image) = disk(NEVER);
    let daemon = rig.serve();
    rig.done(&["volume", "checkpoint", "disk", "monday"]);
    rig.done(&["volume", "checkpoint", "disk", "tuesday"]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    let list = checkpoints(&rig, "disk");
    assert!(list.iter().all(|it| it["state"] == "lost"), "{list:?}");
    let reason = list[1]["reason"].as_str().expect("a reason");
    assert!(reason.contains("the host was off"), "{reason}");
    daemon.says(&["checkpoint tuesday is lost", "make a full backup"]);
    rig.done(&["volume", "quiesce", "disk", "--checkpoint", "wednesday"]);
    let said = run("nbdinfo", &["--json", &uri(&rig, "disk@backup")]);
    assert!(!said.contains("dirty-bitmap"), "{said}");
    rig.done(&["volume", "resume", "disk"]);
    let said = rig.refused(
        &["volume", "checkpoint", "disk", "--map", "monday"],
        EXIT_USAGE,
    );
    assert!(
        said.contains("is not known: what changed after a later"),
        "{said}"
    );
    daemon.stop();
    let daemon = rig.serve();
    assert_eq!(checkpoints(&rig, "disk")[2]["state"], "valid");
    daemon.stop();
    let file = fs::File::options().write(true).open(&image).expect("open");
    file.write_all_at(&[1], BYTES - 1).expect("write");
    drop(file);
    let daemon = rig.serve();
    let list = checkpoints(&rig, "disk");
    assert_eq!(list[2]["state"], "lost", "{list:?}");
    daemon.stop();
}

/// Fails when: a checkpoint counts whose window did not end by a resume.
#[test]
fn a_window_that_ends_with_the_daemon_leaves_no_checkpoint_and_takes_no_bit() {
    let (rig, _) = disk(NEVER);
    let mut daemon = rig.serve();
    rig.done(&["volume", "checkpoint", "disk", "monday"]);
    for killed in [true, false] {
        let mut client = rig.connect("disk");
        touch(&mut client, 5 + u64::from(killed), 0);
        rig.done(&["volume", "quiesce", "disk", "--checkpoint", "tuesday"]);
        assert_eq!(checkpoints(&rig, "disk")[1]["state"], "open");
        touch(&mut client, 15 + u64::from(killed), 0);
        drop(client);
        match killed {
            true => drop(daemon.kill()),
            false => drop(daemon.stop()),
        }
        daemon = rig.serve();
        let said = rig.refused(&["volume", "resume", "disk"], EXIT_FAILED);
        assert!(said.contains("its image does not rest"), "{said}");
        let list = checkpoints(&rig, "disk");
        assert_eq!(list.len(), 1, "{list:?}");
    }
    let map = rig.json(&["volume", "checkpoint", "disk", "--map", "monday"]);
    assert_eq!(map["changed_bytes"], 4 * GRAIN, "{map}");
    rig.done(&["volume", "checkpoint", "disk", "tuesday"]);
    daemon.stop();
}

fn word(client: &mut Client) -> u64 {
    u64::from_le_bytes(client.read(0, 8).try_into().expect("eight"))
}

/// Fails when: the disks of one guest are backed up at different moments.
#[test]
fn the_disks_of_a_group_are_backed_up_at_one_cut() {
    let mut rig = Rig::new();
    for name in ["one", "two"] {
        let image = rig.image(name, BYTES);
        let lines = format!("{NEVER}\ngroup = \"vm\"");
        rig.volume(name, &image, "write-back", &lines);
    }
    let daemon = rig.serve();
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let _stop = SetWhenDropped(&stop);
        scope.spawn(|| {
            let mut one = rig.connect("one");
            let mut two = rig.connect("two");
            while !stop.load(Ordering::SeqCst) {
                let number = answered.load(Ordering::SeqCst) + 1;
                one.write(0, &number.to_le_bytes());
                two.write(0, &number.to_le_bytes());
                answered.store(number, Ordering::SeqCst);
                std::thread::park_timeout(Duration::from_millis(1));
            }
        });
        for round in 0..3 {
            let least = answered.load(Ordering::SeqCst);
            wait_until("the guest writes", PATIENCE, || {
                answered.load(Ordering::SeqCst) > least + 20
            });
            let least = answered.load(Ordering::SeqCst);
            let name = format!("c{round}");
            rig.done(&["volume", "quiesce", "two", "--checkpoint", &name]);
            let backup = |name: &str| {
                let export = format!("{name}@backup");
                Client::connect(&rig.all_exports(), &export).expect("the backup")
            };
            let (mut one, mut two) = (backup("one"), backup("two"));
            let (first, second) = (word(&mut one), word(&mut two));
            assert!(first == second || first == second + 1, "{first}, {second}");
            assert!(second >= least);
            one.disconnect();
            two.disconnect();
            let order = ["volume", "resume", "one"];
            wait_until("the readers are gone", PATIENCE, || {
                rig.tenuto(&order).status.success()
            });
            for name in ["one", "two"] {
                assert_eq!(checkpoints(&rig, name).len(), round + 1);
            }
        }
    });
    daemon.stop();
}

/// Fails when: what an image has below it, or in its own clusters, is missing in a backup.
#[test]
fn a_qcow2_volume_is_backed_up_through_its_whole_chain() {
    let test = "a_qcow2_volume_is_backed_up_through_its_whole_chain";
    if !have(test, &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = rig.image("base.img", BYTES);
    let mut random = Rng::new(seed(72));
    let mut shadow = vec![0; BYTES as usize];
    random.fill(&mut shadow[..8 << 20]);
    let file = fs::File::options().write(true).open(&base).expect("open");
    file.write_all_at(&shadow[..8 << 20], 0)
        .expect("write the base");
    drop(file);
    let top = rig.dir.join("top.qcow2");
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
    run(
        "qemu-img",
        &[&create[..], &[&shown(&base), &shown(&top)]].concat(),
    );
    rig.qcow2_volume("disk", &top, "write-back", NEVER);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let mut write = |client: &mut Client, at: u64, byte: u8| {
        let at = at as usize;
        shadow[at..at + 70_000].fill(byte);
        client.write(at as u64, &[byte; 70_000]);
        shadow.clone()
    };
    let at_cut = write(&mut client, 5 * MIB + 512, 7);
    rig.done(&["volume", "quiesce", "disk", "--checkpoint", "monday"]);
    let late = write(&mut client, 9 * MIB, 8);
    let full = rig.dir.join("full.img");
    run("nbdcopy", &[&uri(&rig, "disk@backup"), &shown(&full)]);
    is_same(&full, &at_cut);
    let text = run("nbdinfo", &["--map", "--totals", &uri(&rig, "disk@backup")]);
    assert!(text.contains("hole,zero"), "{text}");
    rig.done(&["volume", "resume", "disk"]);
    // Another file with the same disk is no change.
    rig.done(&["volume", "snapshot", "disk", "before"]);
    daemon.kill();
    let daemon = rig.serve();
    let list = checkpoints(&rig, "disk");
    assert_eq!(list[0]["state"], "valid", "{list:?}");
    rig.done(&["volume", "quiesce", "disk", "--checkpoint", "tuesday"]);
    let bytes = add_increment(&rig, "disk", "monday", &full);
    assert_eq!(bytes, 2 * GRAIN);
    is_same(&full, &late);
    rig.done(&["volume", "resume", "disk"]);
    drop(client);
    daemon.stop();
}

/// Fails when: a resume pulls the image from under a backup that is being read.
#[test]
fn a_resume_waits_for_who_reads_a_backup_unless_it_is_forced() {
    let (rig, _) = disk(NEVER);
    let daemon = rig.serve();
    rig.done(&["volume", "quiesce", "disk"]);
    let mut reader = Client::connect(&rig.all_exports(), "disk@backup").expect("the backup");
    reader.read(0, 4096);
    let said = rig.refused(&["volume", "resume", "disk"], EXIT_REFUSED);
    assert!(said.contains("reads disk@backup"), "{said}");
    assert!(said.contains("--force"), "{said}");
    reader.read(MIB, 4096);
    let said = rig.refused(&["volume", "rm", "disk"], EXIT_REFUSED);
    assert!(said.contains("client(s) connected"), "{said}");
    rig.done(&["volume", "resume", "disk", "--force"]);
    let late = reader.send(0, 0, 0, 4096, &[]);
    assert!(late.is_err() || reader.answer().is_err(), "it was cut off");
    assert!(Client::connect(&rig.all_exports(), "disk@backup").is_err());
    rig.done(&["volume", "quiesce", "disk"]);
    rig.done(&["volume", "resume", "disk"]);
    daemon.stop();
}

/// Fails when: a client gets a byte that was written after the cut, once the log needs its room and
/// the rest ends by itself; or a checkpoint of such a window counts.
#[test]
fn a_window_that_ends_by_itself_sends_nothing_newer_and_leaves_no_checkpoint() {
    let (rig, image) = disk("destage-after = \"1s\"\ndirty-limit = \"4MiB\"");
    let daemon = rig.serve();
    rig.done(&["volume", "checkpoint", "disk", "monday"]);
    let mut writer = rig.connect("disk");
    writer.write(0, &[1; 4096]);
    rig.done(&["volume", "quiesce", "disk", "--checkpoint", "tuesday"]);
    let mut reader = Client::connect(&rig.all_exports(), "disk@backup").expect("the backup");
    assert_eq!(reader.read(0, 4096), [1; 4096]);
    // All of it, until some of it is in the image.
    let mut rounds = 0;
    while fs::read(&image).expect("the image")[..4096] == [1; 4096] {
        rounds += 1;
        assert!(rounds < 1000, "the rest ends when there is no room");
        for at in (0..BYTES).step_by(256 << 10) {
            writer.write(at, &[2; 256 << 10]);
        }
    }
    let mut bytes = vec![0; 4096];
    let sent = reader.send(0, 0, 0, 4096, &[]).is_ok();
    if sent
        && let Ok(answer) = reader.answer()
        && answer.error == 0
    {
        reader.payload(&mut bytes).expect("what was announced");
        assert_eq!(bytes, [1; 4096], "what was written after the cut was sent");
    }
    assert!(Client::connect(&rig.all_exports(), "disk@backup").is_err());
    let said = rig.refused(&["volume", "resume", "disk"], EXIT_FAILED);
    assert!(said.contains("its image does not rest"), "{said}");
    assert!(said.contains("there is no checkpoint tuesday"), "{said}");
    let list = checkpoints(&rig, "disk");
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["changed_bytes"], BYTES, "{list:?}");
    drop(writer);
    daemon.stop();
}

/// Fails when: a client of a backup can write, or finds what is not its own.
#[test]
fn a_backup_cannot_be_written_and_names_nothing_but_itself() {
    let test = "a_backup_cannot_be_written_and_names_nothing_but_itself";
    if !have(test, &["nbdinfo"]) {
        return;
    }
    let (mut rig, _) = disk(NEVER);
    let other = rig.image("other.img", BYTES);
    rig.volume("other", &other, "write-back", NEVER);
    let ephemeral = rig.image("base.img", BYTES);
    rig.volume("clone", &ephemeral, "ephemeral", "");
    let daemon = rig.serve();
    let none = rig.refused(&["volume", "checkpoint", "clone", "monday"], EXIT_USAGE);
    assert!(
        none.contains("only a write-back volume is quiesced"),
        "{none}"
    );
    rig.done(&["volume", "checkpoint", "other", "secret"]);
    rig.done(&["volume", "checkpoint", "disk", "monday"]);
    for wrong in ["../x", "a/b", ""] {
        rig.refused(
            &["volume", "quiesce", "disk", "--checkpoint", wrong],
            EXIT_USAGE,
        );
    }
    let again = ["volume", "quiesce", "disk", "--checkpoint", "monday"];
    let said = rig.refused(&again, EXIT_USAGE);
    assert!(said.contains("has a checkpoint monday already"), "{said}");
    for absent in ["--delete", "--map"] {
        let order = ["volume", "checkpoint", "disk", absent, "sunday"];
        let said = rig.refused(&order, EXIT_USAGE);
        assert!(said.contains("has no checkpoint sunday"), "{said}");
    }
    assert!(Client::connect(&rig.all_exports(), "disk@backup").is_err());
    rig.done(&["volume", "quiesce", "disk"]);
    let order = ["volume", "checkpoint", "disk", "--delete", "monday"];
    let said = rig.refused(&order, EXIT_USAGE);
    assert!(said.contains("a backup window is open"), "{said}");
    for unknown in ["other@backup", "disk@", "@backup", "disk@backup@backup"] {
        assert!(
            Client::connect(&rig.all_exports(), unknown).is_err(),
            "{unknown}"
        );
    }
    // The socket of one volume shows its backup, and no other one.
    assert!(Client::connect(&rig.socket("disk"), "disk@backup").is_ok());
    assert!(Client::connect(&rig.socket("other"), "disk@backup").is_err());
    let text = run("nbdinfo", &["--json", &uri(&rig, "disk@backup")]);
    let info: Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let export = &info["exports"][0];
    assert_eq!(export["is_read_only"], true);
    assert_eq!(export["can_multi_conn"], true);
    let contexts = export["contexts"].to_string();
    assert!(contexts.contains("qemu:dirty-bitmap:monday"), "{contexts}");
    assert!(!contexts.contains("secret"), "{contexts}");
    let mut client = Client::connect(&rig.all_exports(), "disk@backup").expect("the backup");
    assert_eq!(client.try_write(0, &[1; 4096], 0), EPERM);
    assert_eq!(client.command(CMD_TRIM, 0, 0, 4096), EPERM);
    assert_eq!(client.command(CMD_WRITE_ZEROES, 0, 0, 4096), EPERM);
    assert_ne!(client.try_read(BYTES - 512, &mut [0; 1024]), Ok(()));
    assert_eq!(client.read(BYTES - 512, 512), [0; 512]);
    client.disconnect();
    wait_until("no client reads", PATIENCE, || {
        rig.tenuto(&["volume", "resume", "disk"]).status.success()
    });
    daemon.stop();
}
