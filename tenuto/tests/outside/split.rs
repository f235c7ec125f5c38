//! A guest whose disk was split starts from the three disks, which a daemon serves.
//!
//! Always true: the guest has the table that the split wrote, and mounts it with the programs of a
//! distribution. Deliberately absent: how a disk is split, which the tests of that crate judge.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::guest::{Machine, with_libraries};
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, have, may_mount, run};

const DISK_BYTES: u64 = 96 << 20;
/// In each of them is a file; the names are those of their classes.
const PLACES: [(&str, &str); 4] = [
    ("etc", "system"),
    ("opt", "write-back"),
    ("var/cache", "never"),
    ("var/cache/debconf", "kept"),
];
const DISKS: [&str; 3] = ["guest-system", "guest-write-back", "guest-never"];
const PROGRAMS: [&str; 4] = ["rsync", "sfdisk", "qemu-storage-daemon", "mkswap"];

const WORK: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs run /run
for word in $(busybox cat /proc/cmdline); do
    case $word in tenuto.step=*) step=${word#tenuto.step=} ;; esac
done
say() { echo "guest: $*"; }
/e2/mount -a && say mounted
/e2/swapon -a && say "swaps $(busybox grep -c partition /proc/swaps)"
for place in /opt /var/cache /var/cache/debconf; do
    say "$place on $(busybox stat -c %d $place)"
done
busybox sha256sum -c /sums >/tmp/sums 2>&1 && say same || busybox grep -v OK /tmp/sums
for place in etc opt var/cache var/cache/debconf; do
    busybox test -e /$place/new && say "has $place"
    [ $step = first ] && echo new >/$place/new
done
busybox sync
/e2/swapoff -a
for place in /var/cache/debconf /var/cache /tmp /opt /.tenuto/system /.tenuto/never \
    /.tenuto/write-back; do
    busybox umount $place || say "left $place"
done
busybox mount -o remount,ro / && say unmounted
busybox poweroff -f
"#;

/// The disk of a guest with its programs, and data of each class.
fn image(machine: &Machine, rig: &Rig) -> PathBuf {
    let root = rig.dir.join("root");
    with_libraries(&root, &["mount", "swapon", "swapoff"]);
    for part in ["proc", "sys", "dev", "run", "tmp", "etc"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    for (place, name) in PLACES {
        fs::create_dir_all(root.join(place)).unwrap();
        fs::write(root.join(place).join("file"), name.repeat(5000)).unwrap();
    }
    let sums = format!(
        "cd {} && find etc opt var bin -type f | xargs sha256sum | sed 's#  #  /#' > sums",
        root.display()
    );
    run("sh", &["-c", &sums]);
    let swap = root.join("swapfile");
    fs::File::create(&swap)
        .and_then(|it| it.set_len(4 << 20))
        .unwrap();
    run("mkswap", &["-q", &swap.to_string_lossy()]);
    let table = "/dev/vda / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n";
    fs::write(root.join("etc/fstab"), table).unwrap();
    machine.program(&root, "work", WORK);
    let image = rig.dir.join("guest.img");
    Machine::image_of(&root, &image, DISK_BYTES);
    image
}

fn boot(rig: &Rig, machine: &Machine, step: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    for (number, name) in DISKS.iter().enumerate() {
        let drive = format!("if=none,id=d{number},format=raw,file={}", rig.uri(name));
        let device = format!("virtio-blk-pci,drive=d{number}");
        arguments.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    machine.run_with(&arguments, step)
}

fn sum(path: &Path) -> String {
    let said = run("sha256sum", &[&path.to_string_lossy()]);
    said.split(' ').next().unwrap().to_owned()
}

/// The places that a guest has something new in.
fn has(said: &[String]) -> Vec<&str> {
    said.iter()
        .filter_map(|it| it.strip_prefix("has "))
        .collect()
}

/// What every boot of the guest must say.
fn is_whole(said: &[String]) {
    for line in ["mounted", "swaps 1", "same"] {
        assert!(said.iter().any(|it| it == line), "{line}: {said:?}");
    }
    let on: Vec<&str> = said
        .iter()
        .filter_map(|it| it.split_once(" on "))
        .map(|it| it.1)
        .collect();
    // Three places, three disks; what is kept is on that of the system.
    assert_eq!(on.len(), 3, "{said:?}");
    assert!(
        on[0] != on[1] && on[1] != on[2] && on[0] != on[2],
        "{said:?}"
    );
}

/// Fails when: a guest does not find its data by the table of the split, a class is served by
/// another policy, or what may be lost with the SSD is written to the storage.
#[test]
fn a_guest_boots_from_three_disks_and_loses_with_the_ssd_what_its_rules_say() {
    let test = "a_guest_boots_from_three_disks_and_loses_with_the_ssd_what_its_rules_say";
    if !may_mount(test) || !have(test, &PROGRAMS) {
        return;
    }
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let image = image(&machine, &rig);
    let before = sum(&image);
    let out = rig.dir.join("out");
    let [image_name, out_name] = [&image, &out].map(|it| it.to_str().unwrap());
    let split = [
        "image", "split", image_name, "--rules", "linux", "-o", out_name,
    ];
    let with = |more: &[&'static str]| [&split[..], more].concat();
    let line = rig.refused(&split, EXIT_USAGE);
    assert!(
        line.contains("add --trust-image if you know where it comes from"),
        "{line}"
    );
    let line = rig.refused(&with(&["--trust-image"]), EXIT_REFUSED);
    assert!(
        line.contains("; --plan shows them, --yes goes on"),
        "{line}"
    );
    let plan = rig.json(&with(&["--trust-image", "--plan"]));
    assert_eq!(plan["classes"][1]["class"], "never");
    assert!(!out.exists(), "a plan makes nothing");
    let done = rig.json(&with(&["--trust-image", "--yes"]));
    assert_eq!(done["state"], "done");
    assert_eq!(sum(&image), before);

    let lines = fs::read_to_string(out.join("volumes.toml")).unwrap();
    let allow = format!(
        "[images]\nallow = [{out_name:?}, {:?}]\n",
        rig.dir.display()
    );
    rig.section(&allow).section(&lines);
    rig.write_config();
    rig.done(&["config", "--check"]);
    let daemon = rig.serve();
    let never = sum(&out.join("never.raw"));
    let said = boot(&rig, &machine, "first");
    is_whole(&said);
    assert_eq!(has(&said), [""; 0]);
    let [system, back, lost] = DISKS.map(|it| rig.show(it));
    assert_eq!(
        (&system["effective_policy"], &system["dirty_bytes"]),
        (&"write-through".into(), &0.into())
    );
    assert!(back["dirty_bytes"].as_u64() > Some(0) && lost["dirty_bytes"].as_u64() > Some(0));
    rig.done(&["volume", "destage", "guest-write-back", "--wait"]);
    assert_eq!(rig.show("guest-never")["origin"]["writes"], 0);

    // The host and its SSD are lost.
    daemon.kill();
    fs::remove_file(rig.cache_path()).unwrap();
    rig.lose_stage();
    let daemon = rig.serve();
    for name in ["guest-write-back", "guest-never"] {
        assert_eq!(rig.show(name)["state"], "held");
        let force = format!("--discard-dirty={name}");
        rig.done(&["volume", "accept-loss", name, &force]);
    }
    assert_eq!(sum(&out.join("never.raw")), never);
    let said = boot(&rig, &machine, "second");
    is_whole(&said);
    assert_eq!(has(&said), ["etc", "opt", "var/cache/debconf"]);
    assert_eq!(sum(&image), before);
    daemon.stop();
}
