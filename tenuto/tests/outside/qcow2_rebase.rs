//! Images that get another backing, or one file less, and disks that become smaller, judged by
//! QEMU's own tools.
//!
//! Always true of each: the disk reads as before behind every kill, through the backing before or
//! the other one; no file but the image changes; `qemu-img check` finds no error and no leak when
//! the next life has ended.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use workload::rng::Rng;

use crate::common::marks::Marks;
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, count, have, run, seed, wait_until};
use crate::qcow2_grown::change;
use crate::qcow2_written::{
    APPLY, GUARD_ROUNDS_MAX, assert_same, check, convert, create, is_guarded, shown, write,
};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 24 * MIB;
const SMALL_BYTES: u64 = 10 * MIB + 512 * 37;
/// Phases of the marks, and about so many entries of each: ledger and header, journal, what is
/// applied, steps of the host.
const PHASES: [(u64, u64); 4] = [(3, 24), (4, 4), (5, 6), (8, 4)];
const PATIENCE: Duration = Duration::from_secs(240);

/// What is ordered, and how many files the chain has behind it.
const ORDERS: [(&[&str], usize); 5] = [
    (&["merge", "disk"], 2),
    (&["rebase", "disk", "DIR/other.img"], 2),
    (&["resize", "disk", "SMALL", "--shrink"], 3),
    (&["rebase", "disk", "--flatten"], 1),
    (&["merge", "disk", "--remove"], 2),
];

/// An image over one that was frozen, over a base of another kind.
struct Disk {
    image: PathBuf,
    shadow: PathBuf,
}

fn disk(rig: &Rig, round: u64, random: &mut Rng) -> Disk {
    let dir = &rig.dir;
    let base = dir.join("base.qcow2");
    if !base.exists() {
        create(dir, "base.qcow2", &["20M"]);
        write(&base, "qcow2", &["write -P 9 0 12M", "write -P 4 15M 100k"]);
        let other = dir.join("other.img");
        convert(("qcow2", &base), ("raw", &other), &[]);
        write(
            &other,
            "raw",
            &["write -P 5 3M 2M", "write -P 6 14M 1M", "write -P 0 1M 70k"],
        );
    }
    let options: &[&str] = match round % 3 {
        0 => &["-o", "extended_l2=on,cluster_size=128k"],
        1 => &["-o", "cluster_size=4k"],
        _ => &[],
    };
    let below = ["-b", "base.qcow2", "-F", "qcow2", "24M"];
    let name = format!("disk-{round}.qcow2");
    let image = create(dir, &name, &[options, &below].concat());
    let shadow = image.with_extension("raw");
    convert(("qcow2", &image), ("raw", &shadow), &[]);
    let origin = format!("origin={}", shown(&image));
    rig.done(&["volume", "add", "disk", &origin, "destage-after=never"]);
    let anywhere = |random: &mut Rng, length: u64| 512 * random.below((DISK_BYTES - length) / 512);
    let mut client = rig.connect("disk");
    change(&mut client, &shadow, random, anywhere);
    rig.done(&["volume", "snapshot", "disk", "s1"]);
    change(&mut client, &shadow, random, anywhere);
    client.disconnect();
    rig.gone_clients("disk");
    Disk { image, shadow }
}

fn files_of(rig: &Rig) -> usize {
    let chain = rig.show("disk")["image"]["chain"].clone();
    chain.as_array().expect("a chain").len()
}

/// What a client reads is in the first bytes of the shadow, and zeroes behind them.
fn assert_reads(rig: &Rig, disk: &Disk, bytes: u64) {
    let mut client = rig.connect("disk");
    let shadow = fs::read(&disk.shadow).expect("read the shadow");
    for at in (0..bytes).step_by(MIB as usize) {
        let length = MIB.min(bytes - at);
        let found = client.read(at, length as usize);
        let wanted = &shadow[at as usize..(at + length) as usize];
        assert!(found == wanted, "{:?}: differs in {at}", disk.image);
    }
    client.disconnect();
    rig.gone_clients("disk");
}

/// A daemon to be, and the marks of where it may be killed.
fn marked() -> (Rig, Marks) {
    let mut rig = Rig::new();
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &shown(marks.path()));
    (rig, marks)
}

/// Gives an order and waits for its end, or that of the daemon; whether it was done.
fn ordered(rig: &Rig, words: &[&str]) -> bool {
    let mut order = rig.spawn(&[&["volume"], words].concat());
    let mut status = None;
    wait_until("the order or its end", PATIENCE, || {
        status = order.try_wait().expect("look at the order");
        status.is_some()
    });
    status.is_some_and(|it| it.success())
}

/// Fails when: the disk reads otherwise on the other backing, a kill leaves an image that is wrong
/// or a volume that does not go on, or a file below changes.
#[test]
fn a_kill_at_each_step_of_another_backing_leaves_the_same_disk() {
    let test = "a_kill_at_each_step_of_another_backing_leaves_the_same_disk";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let (rig, marks) = marked();
    let mut random = Rng::new(seed(51));
    let (mut killed, mut moved) = (0, 0);
    let rounds = count("TENUTO_DRILL_ROUNDS", 15);
    for round in 0..rounds {
        let (order, files) = ORDERS[round as usize % ORDERS.len()];
        let mut daemon = rig.serve();
        let disk = disk(&rig, round, &mut random);
        let below = ["base.qcow2", "other.img"].map(|it| rig.dir.join(it));
        let before = below.each_ref().map(|it| fs::read(it).expect("read it"));
        let (phase, entries) = random.pick(&PHASES);
        // Each order once without a kill.
        if round >= ORDERS.len() as u64 {
            marks.arm(phase, 1 + random.below(entries));
        }
        let words: Vec<String> = order
            .iter()
            .map(|it| it.replace("DIR", &shown(&rig.dir)))
            .map(|it| it.replace("SMALL", &SMALL_BYTES.to_string()))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = ordered(&rig, &words);
        marks.disarm();
        let when = format!("round {round}, phase {phase}, {words:?}");
        match done {
            true => assert!(daemon.is_alive(), "{when}: {}", daemon.log()),
            false => wait_until(&when, PATIENCE, || !daemon.is_alive()),
        }
        (killed, moved) = (killed + u64::from(!done), moved + u64::from(done));
        daemon.kill();
        if round % 2 == 1 {
            // As on another host, which has only the SSD and the storage.
            rig.done(&["recover", "--cache", &shown(&rig.cache_path())]);
            check(&disk.image);
        }
        let daemon = rig.serve();
        let found = files_of(&rig);
        assert!(
            found == files || found == 3 && !done,
            "{when}: {found} files"
        );
        let size = rig.show("disk")["size_bytes"].as_u64().expect("a size");
        let shrinks = order[0] == "resize";
        let small = size == SMALL_BYTES;
        assert!(
            small || size == DISK_BYTES && !(shrinks && done),
            "{when}: {size}"
        );
        let there = if shrinks { SMALL_BYTES } else { DISK_BYTES };
        assert_reads(&rig, &disk, there);
        let mut client = rig.connect("disk");
        change(&mut client, &disk.shadow, &mut random, |random, length| {
            512 * random.below((SMALL_BYTES - length) / 512)
        });
        client.disconnect();
        rig.gone_clients("disk");
        rig.done(&["volume", "destage", "disk", "--wait"]);
        assert_reads(&rig, &disk, there);
        rig.done(&["volume", "rm", "disk"]);
        daemon.stop();
        check(&disk.image);
        if !shrinks {
            assert_same(("qcow2", &disk.image), ("raw", &disk.shadow));
        }
        let now = below.each_ref().map(|it| fs::read(it).expect("read it"));
        assert!(before == now, "{when}: a file below has changed");
        let frozen = disk.image.with_extension("s1.qcow2");
        let removed = order.contains(&"--remove") && done;
        assert_eq!(frozen.exists(), !removed, "{when}: {frozen:?}");
        fs::remove_file(&disk.shadow).expect("remove the shadow");
    }
    assert!(
        moved >= 5 && (killed > 0 || rounds < 10),
        "{killed} killed, {moved} moved"
    );
}

/// Fails when: a header that a loss of power has torn while it got another name keeps the journal
/// away that makes it whole.
#[test]
fn a_header_that_is_torn_in_a_move_is_made_whole_by_the_next_start() {
    let test = "a_header_that_is_torn_in_a_move_is_made_whole_by_the_next_start";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let (rig, marks) = marked();
    let mut random = Rng::new(seed(53));
    let mut torn = 0;
    for round in 0..GUARD_ROUNDS_MAX {
        let daemon = rig.serve();
        let disk = disk(&rig, round, &mut random);
        let other = shown(&rig.dir.join("other.img"));
        // So that no other journal is pending.
        rig.done(&["volume", "destage", "disk", "--wait"]);
        marks.arm(APPLY, 1);
        ordered(&rig, &["rebase", "disk", &*other, "--unsafe"]);
        marks.disarm();
        daemon.kill();
        let tears = is_guarded(&disk.image);
        if tears {
            // Half of it as it was, and half of nothing.
            let file = fs::File::options().write(true).open(&disk.image);
            let zeroes = vec![0xff; 1536];
            let written = file.and_then(|it| it.write_all_at(&zeroes, 512));
            written.expect("tear the header");
            torn += 1;
        }
        let daemon = rig.serve();
        let show = rig.show("disk");
        assert_eq!(show["state"], "clean", "round {round}: {show}");
        assert_eq!(files_of(&rig), 2, "round {round}");
        rig.done(&["volume", "rm", "disk"]);
        daemon.stop();
        check(&disk.image);
        if torn == 2 {
            return;
        }
    }
    panic!("{torn} headers were torn");
}

fn info(image: &Path) -> String {
    run("qemu-img", &["info", "-U", &shown(image)])
}

/// Fails when: an order that cannot be is begun, its message does not help, or an unsafe one
/// compares.
#[test]
fn what_cannot_be_rebased_is_refused_and_left_alone() {
    let test = "what_cannot_be_rebased_is_refused_and_left_alone";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let mut random = Rng::new(seed(52));
    let daemon = rig.serve();
    let disk = disk(&rig, 2, &mut random);
    let raw = rig.image("raw.img", DISK_BYTES);
    let origin = format!("origin={}", shown(&raw));
    rig.done(&["volume", "add", "raw", &origin]);
    let base = shown(&rig.dir.join("base.qcow2"));
    let missing = shown(&rig.dir.join("missing.img"));
    let image = shown(&disk.image);
    let client = rig.connect("disk");
    for words in [&["merge", "disk"][..], &["rebase", "disk", &base]] {
        let line = rig.refused(&[&["volume"], words].concat(), EXIT_REFUSED);
        assert!(line.contains("client"), "{line}");
    }
    client.disconnect();
    rig.gone_clients("disk");
    for (words, code, part) in [
        (
            &["rebase", "disk", &missing][..],
            EXIT_USAGE,
            "name an image that is there",
        ),
        (&["rebase", "disk", &image], EXIT_USAGE, "its image itself"),
        (
            &["rebase", "disk", "/etc/hostname"],
            EXIT_USAGE,
            "[images] allow",
        ),
        (&["rebase", "disk"], EXIT_USAGE, "--flatten"),
        (&["rebase", "raw", &base], EXIT_USAGE, "raw"),
        (&["merge", "raw"], EXIT_USAGE, "raw"),
    ] {
        let line = rig.refused(&[&["volume"], words].concat(), code);
        assert!(line.contains(part), "{words:?}: {line}");
    }
    assert_eq!(files_of(&rig), 3);
    assert_reads(&rig, &disk, DISK_BYTES);
    rig.done(&["volume", "set", "disk", "policy=write-through", "--wait"]);
    let line = rig.refused(&["volume", "merge", "disk"], EXIT_USAGE);
    assert!(line.contains("policy=write-back"), "{line}");
    rig.done(&["volume", "set", "disk", "policy=write-back", "--wait"]);

    // What another file stands on stays, however that names it.
    let frozen = disk.image.with_extension("s1.qcow2");
    let filename = shown(&frozen);
    let json = format!(r#"json:{{"driver":"qcow2","file":{{"filename":"{filename}"}}}}"#);
    let above = ["-u", "-b", &*json, "-F", "qcow2", "24M"];
    let above = create(&rig.dir, "above.qcow2", &above);
    let said = rig.done(&["volume", "merge", "disk", "--remove"]);
    assert!(said.contains("above.qcow2 stands on it"), "{said}");
    assert!(frozen.exists() && files_of(&rig) == 2);
    fs::remove_file(above).expect("remove it");
    assert_reads(&rig, &disk, DISK_BYTES);

    // As QEMU does it, the disk reads what lies below now.
    let other = shown(&rig.dir.join("other.img"));
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let copy = disk.image.with_extension("copy");
    fs::copy(&disk.image, &copy).expect("copy it");
    let rebase = ["rebase", "-u", "-b", &*other, "-F", "raw"];
    run("qemu-img", &[&rebase[..], &[&shown(&copy)]].concat());
    convert(("qcow2", &copy), ("raw", &disk.shadow), &[]);
    rig.done(&["volume", "rebase", "disk", &other, "--unsafe"]);
    assert_reads(&rig, &disk, DISK_BYTES);
    assert!(info(&disk.image).contains("other.img"));
    rig.done(&["volume", "rm", "disk"]);
    daemon.stop();
    check(&disk.image);
    assert_same(("qcow2", &disk.image), ("raw", &disk.shadow));
}
