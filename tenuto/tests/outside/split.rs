//! A guest whose disk was split starts from its disks, which a daemon serves: as one machine, and
//! as clones of a pool.
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
pub const UUID: &str = "6fd2c93b-4a1e-4d7c-9a55-0c1b6e2f8d31";
pub const PROGRAMS: [&str; 4] = ["rsync", "sfdisk", "qemu-storage-daemon", "mkswap"];

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

/// A clone says what it finds, and writes its step everywhere.
const WORK_OF_CLONE: &str = r#"#!/bin/busybox sh
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for word in $(busybox cat /proc/cmdline); do
    case $word in tenuto.step=*) step=${word#tenuto.step=} ;; esac
done
say() { echo "guest: $*"; }
/e2/mount -a && say mounted
for file in /var/lib/app/state /etc/app.conf /etc/machine-id /etc/other /var/cache/file; do
    say "$file $(busybox cat $file)"
    echo $step >$file
done
echo new >/var/lib/app/$step
say "app $(busybox ls /var/lib/app | busybox tr '\n' ' ')"
echo other >/etc/new
busybox mv /etc/new /etc/app.conf 2>/dev/null || say busy
busybox sync
for place in /etc/app.conf /etc/machine-id /var/lib/app /var/cache /.tenuto/never /.tenuto/keep; do
    busybox umount $place || say "left $place"
done
busybox mount -o remount,ro / && say unmounted
busybox poweroff -f
"#;
const RULES_OF_POOL: &str = "\
[[move]]
path = \"/var/cache\"
class = \"never\"
[pool]
name = \"office\"
members = \"desk-{1..2}\"
keep = [\"/var/lib/app\", \"/etc/app.conf\", \"/etc/machine-id\"]
";
/// What a clone is started again and again for.
const KEPT: [&str; 3] = ["/var/lib/app/state", "/etc/app.conf", "/etc/machine-id"];
const LOST: [&str; 2] = ["/etc/other", "/var/cache/file"];

/// The disk of a guest with its programs, and files that clones keep and lose.
fn image_of_clones(machine: &Machine, rig: &Rig) -> PathBuf {
    let root = rig.dir.join("root");
    with_libraries(&root, &["mount"]);
    for part in ["proc", "sys", "dev", "run", "etc"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    for file in KEPT.iter().chain(&LOST) {
        let place = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, "first\n").unwrap();
    }
    fs::write(root.join("etc/fstab"), "/dev/vda / ext4 defaults 0 1\n").unwrap();
    machine.program(&root, "work", WORK_OF_CLONE);
    let image = rig.dir.join("gold.img");
    Machine::image_of(&root, &image, DISK_BYTES);
    image
}

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
    boot_from(rig, machine, &DISKS.map(str::to_owned), step)
}

/// Boots from disks of the daemon, the first of which has the root.
pub fn boot_from(rig: &Rig, machine: &Machine, disks: &[String], step: &str) -> Vec<String> {
    // A machine has a UUID; by default QEMU gives none.
    let uuid = ["-uuid", UUID].map(str::to_owned);
    let mut arguments = Vec::from(uuid);
    for (number, name) in disks.iter().enumerate() {
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

/// Starts a clone, which must find what it kept at its last step, and the rest as it was at first.
/// Names of later steps sort behind those of earlier ones, and before `state`.
fn finds(rig: &Rig, machine: &Machine, member: &str, kept: &str, step: &str) {
    let disks = ["", "-never", "-keep"].map(|it| format!("{member}{it}"));
    let said = boot_from(rig, machine, &disks, step);
    assert_eq!(said[0], "mounted", "{member}: {said:?}");
    for (files, content) in [(&KEPT[..], kept), (&LOST, "first")] {
        for file in files {
            let line = format!("{file} {content}");
            assert!(said.contains(&line), "{member}: {line}: {said:?}");
        }
    }
    // What is made new in a kept directory stays as well; a kept file cannot be replaced.
    let all = match kept {
        "first" => format!("app {step} state "),
        _ => format!("app {kept} {step} state "),
    };
    let (all, busy) = (all.trim(), "busy");
    assert!(said.iter().any(|it| it.trim() == all), "{all}: {said:?}");
    assert!(said.iter().any(|it| it == busy), "{said:?}");
}

/// Where the disks go of an image that is split by this table for a pool, and the order for it.
pub(crate) fn order_of_pool(rig: &Rig, image: &Path, table: &str) -> (PathBuf, Vec<String>) {
    let (out, rules) = (rig.dir.join("out"), rig.dir.join("rules.toml"));
    fs::write(&rules, table).unwrap();
    let [image, to, rules] = [image, &out, &rules].map(|it| it.to_str().unwrap());
    let words = ["image", "split", image, "--rules", rules, "-o", to];
    let words = words.into_iter().chain(["--trust-image"]);
    let words = words.map(str::to_owned).collect();
    (out, words)
}

/// Has the volumes that the lines of a split name, whose clones are reset when their guests end.
pub(crate) fn take_lines(rig: &mut Rig, out: &Path) -> String {
    let lines = fs::read_to_string(out.join("volumes.toml")).unwrap();
    let allow = format!(
        "[images]\nallow = [{out:?}, {:?}]\n[defaults]\nreset-on = \"disconnect\"\n",
        rig.dir.display()
    );
    rig.section(&allow).section(&lines);
    rig.write_config();
    lines
}

/// Gives another member a disk of its own, as the lines of the split say it.
fn second_member(rig: &mut Rig, lines: &str, out: &Path) {
    let command = lines.lines().find_map(|it| it.strip_prefix("# cp "));
    let command = format!("cp {}", command.unwrap().replace("NAME", "desk-2"));
    run("sh", &["-c", &command]);
    let origin = out.join("keep-desk-2.raw");
    rig.section(&format!(
        "[[volume]]\nname = \"desk-2-keep\"\norigin = {origin:?}\nformat = \"raw\"\n\
         policy = \"write-through\"\n"
    ));
    rig.write_config();
}

/// Fails when: what a clone keeps is lost at its reset or with its host, is that of another clone,
/// or something else outlives a reset; or when the lines of a split are no configuration.
#[test]
fn clones_keep_over_a_reset_what_their_rules_say_and_nothing_else() {
    let test = "clones_keep_over_a_reset_what_their_rules_say_and_nothing_else";
    if !may_mount(test) || !have(test, &PROGRAMS) {
        return;
    }
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let image = image_of_clones(&machine, &rig);
    let (out, split) = order_of_pool(&rig, &image, RULES_OF_POOL);
    let split: Vec<&str> = split.iter().map(String::as_str).collect();
    let line = rig.refused(&split, EXIT_REFUSED);
    assert!(
        line.contains("a reset of a clone throws away all that it wrote, but in 3 paths with "),
        "{line}"
    );
    rig.done(&[&split[..], &["--yes"]].concat());
    let lines = take_lines(&mut rig, &out);
    rig.done(&["config", "--check"]);
    second_member(&mut rig, &lines, &out);
    rig.done(&["config", "--check"]);
    let shared = ["system.qcow2", "never.raw", "keep.raw"].map(|it| out.join(it));
    let before = shared.each_ref().map(|it| sum(it));

    let daemon = rig.serve();
    finds(&rig, &machine, "desk-1", "first", "a1");
    finds(&rig, &machine, "desk-2", "first", "a2");
    let kept = rig.show("desk-1-keep");
    assert_eq!(
        (&kept["effective_policy"], &kept["dirty_bytes"]),
        (&"write-through".into(), &0.into())
    );
    assert_eq!(rig.show("desk-1-never")["effective_policy"], "ephemeral");
    finds(&rig, &machine, "desk-1", "a1", "a3");
    // The host and its SSD are lost.
    daemon.kill();
    fs::remove_file(rig.cache_path()).unwrap();
    rig.lose_stage();
    let daemon = rig.serve();
    finds(&rig, &machine, "desk-2", "a2", "a4");
    daemon.stop();
    assert_eq!(
        shared.each_ref().map(|it| sum(it)),
        before,
        "no clone writes them"
    );
}
