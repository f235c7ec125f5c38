//! Volumes that write qcow2 images, judged by QEMU's own tools.
//!
//! Always true of each: `qemu-img check` finds no error and no leak in an image that was destaged
//! to or recovered, and what QEMU reads of it is what guests wrote.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use workload::check::{Crash, Promise};
use workload::rng::Rng;

use crate::common::load::{Life, Load};
use crate::common::marks::Marks;
use crate::common::{
    EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, Rig, copy_with_neighbours, count, have, run, seed,
};

const MIB: u64 = 1 << 20;

pub fn shown(path: &Path) -> String {
    path.display().to_string()
}

pub fn create(dir: &Path, name: &str, options: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let (size, options) = options.split_last().expect("a size");
    let create = ["create", "-q", "-f", "qcow2"];
    run(
        "qemu-img",
        &[&create[..], options, &[&shown(&path), size]].concat(),
    );
    path
}

pub fn write(path: &Path, format: &str, commands: &[&str]) {
    let mut arguments = vec!["-f", format];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    let path = shown(path);
    arguments.push(&path);
    run("qemu-io", &arguments);
}

/// No error and no leak: each ends with another code.
pub fn check(image: &Path) {
    run("qemu-img", &["check", "-f", "qcow2", &shown(image)]);
}

pub fn assert_same(one: (&str, &Path), other: (&str, &Path)) {
    let formats = ["-f", one.0, "-F", other.0];
    let images = [&*shown(one.1), &*shown(other.1)];
    run(
        "qemu-img",
        &[&["compare"], &formats[..], &images[..]].concat(),
    );
}

pub fn convert(from: (&str, &Path), to: (&str, &Path), options: &[&str]) {
    let formats = ["-f", from.0, "-O", to.0];
    let names = [&*shown(from.1), &*shown(to.1)];
    let parts = [&["convert"], &formats[..], options, &names[..]];
    run("qemu-img", &parts.concat());
}

/// Of the header: the byte of the incompatible features that has the guard, and its bit.
const GUARD: (u64, u8) = (72, 0x20);
/// The phase of the marks in which a journal is applied.
pub const APPLY: u64 = 5;
/// So many more kills in that phase are tried where none met a guard.
pub const GUARD_ROUNDS_MAX: u64 = 12;

pub fn is_guarded(image: &Path) -> bool {
    let mut features = [0];
    let file = fs::File::open(image).expect("open the image");
    let read = file.read_exact_at(&mut features, GUARD.0);
    read.expect("read the header");
    features[0] & GUARD.1 != 0
}

/// What QEMU makes of an image as a kill left it: it refuses one with a guard, and finds no error
/// in any other one. Clusters that nothing refers to may be left of a destage.
pub fn is_refused_by_qemu(image: &Path) -> bool {
    let qemu = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).arg(image);
        let mut found = (None, String::new());
        // The locks of the killed daemon stay until its last request has ended.
        crate::common::wait_until("the image is free", PATIENCE, || {
            let output = command.output().expect("it is installed");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let free = !said.contains(" lock");
            found = (output.status.code(), said);
            free
        });
        found
    };
    if !is_guarded(image) {
        let (code, said) = qemu("qemu-img", &["check", "-f", "qcow2"]);
        // Fine, or leaks alone.
        assert!(matches!(code, Some(0 | 3)), "{image:?}: {code:?}: {said}");
        return false;
    }
    for (program, arguments) in [
        ("qemu-io", &["-r", "-f", "qcow2", "-c", "read 0 512"][..]),
        ("qemu-io", &["-f", "qcow2", "-c", "read 0 512"]),
        ("qemu-img", &["check", "-f", "qcow2"]),
    ] {
        let (code, said) = qemu(program, arguments);
        assert_ne!(code, Some(0), "{program} takes {image:?}");
        let why = ["tenuto origin replay", "2000000000000000"];
        assert!(why.iter().any(|why| said.contains(why)), "{said}");
    }
    true
}

/// What `qemu-img info` says of one file.
fn info(image: &Path) -> serde_json::Value {
    let text = run(
        "qemu-img",
        &["info", "-U", "--output=json", "-f", "qcow2", &shown(image)],
    );
    serde_json::from_str(&text).expect("JSON")
}

/// Fails when: a clone is no image for QEMU, has another disk than its image, takes the place of a
/// file, or stays where its volume was not attached.
#[test]
fn a_clone_is_a_new_file_on_its_image_and_is_there_only_with_its_volume() {
    let test = "a_clone_is_a_new_file_on_its_image_and_is_there_only_with_its_volume";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let gold = create(&rig.dir, "gold.qcow2", &["48M"]);
    write(&gold, "qcow2", &["write -P 5 1M 2M", "write -P 6 30M 512"]);
    let raw = rig.image("raw.img", 20 * MIB);
    write(&raw, "raw", &["write -P 7 3M 1M"]);
    let daemon = rig.serve();
    for (name, base, format, plain) in [
        ("extended", &gold, "qcow2", false),
        ("plain", &gold, "qcow2", true),
        ("onraw", &raw, "raw", false),
    ] {
        let clone = rig.dir.join(format!("{name}.qcow2"));
        let (origin, base_name) = (format!("origin={}", clone.display()), shown(base));
        let mut add = vec!["volume", "add", name, "--clone-of", &base_name, &origin];
        add.extend(["policy=ephemeral", "export=nbd"]);
        if plain {
            add.push("--plain");
        }
        let start = Instant::now();
        let document = rig.json(&add);
        eprintln!("{name}: attached after {:?}", start.elapsed());
        assert_eq!(document["image"]["format"], "qcow2", "{document}");
        check(&clone);
        let told = info(&clone);
        assert_eq!(told["backing-filename"], shown(base), "{told}");
        assert_eq!(told["backing-filename-format"], format, "{told}");
        let cluster = if plain { 64 << 10 } else { 128 << 10 };
        assert_eq!(told["cluster-size"], cluster, "{told}");
        let data = &told["format-specific"]["data"];
        assert_eq!(data["extended-l2"], !plain, "{told}");
        let uri = rig.uri(name);
        let compare = ["compare", "-U", "-f", "raw", "-F", format];
        run("qemu-img", &[&compare[..], &[&uri, &base_name]].concat());
        let (raw_only, gold_only) = match format {
            "raw" => (7, 0),
            _ => (0, 5),
        };
        let mut client = rig.connect(name);
        assert_eq!(client.read(3 * MIB, 512), [raw_only; 512]);
        assert_eq!(client.read(2 * MIB, 512), [gold_only; 512]);
        client.disconnect();
        let before = fs::read(&clone).unwrap();
        let line = rig.refused(
            &["volume", "add", "again", "--clone-of", &base_name, &origin],
            EXIT_USAGE,
        );
        assert!(line.contains("exists already"), "{line}");
        assert!(fs::read(&clone).unwrap() == before);
    }
    let fresh = rig.dir.join("fresh.qcow2");
    let (origin, base) = (format!("origin={}", fresh.display()), shown(&gold));
    let missing = shown(&rig.dir.join("none.qcow2"));
    for (keys, part) in [
        (
            vec!["--clone-of", &missing, "policy=ephemeral"],
            "none.qcow2",
        ),
        (vec!["--clone-of", &base, "format=raw"], "is a qcow2 file"),
        (vec!["--plain", "policy=ephemeral"], "--clone-of"),
    ] {
        let add = [&["volume", "add", "fresh", &origin][..], &keys].concat();
        let line = rig.refused(&add, EXIT_USAGE);
        assert!(line.contains(part), "{part:?} is missing in: {line}");
        let left = fs::read_dir(&rig.dir).unwrap();
        let left = left.filter(|it| {
            let name = it.as_ref().unwrap().file_name();
            name.to_string_lossy().contains("fresh")
        });
        assert_eq!(left.count(), 0, "nothing is left of it: {line}");
    }
    daemon.stop();
}

/// Images that are written, each with what it holds before.
fn kinds(dir: &Path) -> Vec<PathBuf> {
    let base = create(dir, "base.qcow2", &["-o", "cluster_size=64k", "16M"]);
    let data = ["write -P 1 0 3M", "write -z 6M 1M", "write -P 3 9M 4k"];
    write(&base, "qcow2", &data);
    let mut all = Vec::new();
    for (name, options) in [
        ("extended", "extended_l2=on,cluster_size=128k"),
        ("halves", "extended_l2=on,cluster_size=16k"),
        ("plain", "cluster_size=64k"),
        ("small", "cluster_size=4k"),
        ("large", "cluster_size=2M"),
        ("wide", "refcount_bits=64"),
        ("bits", "refcount_bits=1"),
        ("lazy", "lazy_refcounts=on"),
    ] {
        let name = format!("{name}.qcow2");
        let options = ["-o", options, "-b", "base.qcow2", "-F", "qcow2", "16M"];
        let image = create(dir, &name, &options);
        write(&image, "qcow2", &["write -P 8 9M 1k", "write -z 2M 64k"]);
        all.push(image);
    }
    let longer = ["-b", "base.qcow2", "-F", "qcow2", "20M"];
    all.push(create(dir, "longer.qcow2", &longer));
    all.push(create(dir, "alone.qcow2", &["16M"]));
    let packed = dir.join("packed.qcow2");
    convert(("qcow2", &base), ("qcow2", &packed), &["-c"]);
    all.push(packed);
    let kept = create(dir, "kept.qcow2", &["16M"]);
    write(&kept, "qcow2", &["write -P 4 1M 1M"]);
    run("qemu-img", &["snapshot", "-c", "before", &shown(&kept)]);
    all.push(kept);
    all
}

/// Writes and zeroes of random places and lengths, to the volume and to a raw copy of it.
fn change(
    client: &mut crate::common::nbd::Client,
    shadow: &fs::File,
    bytes: u64,
    random: &mut Rng,
) {
    for number in 0..80_u8 {
        let sectors = 1 + random.below([4, 64, 600][usize::from(number) % 3]);
        let sector = random.below(bytes / 512 - sectors);
        let zero = number % 5 == 4;
        let data = vec![if zero { 0 } else { number | 0x80 }; (sectors * 512) as usize];
        match zero {
            true => {
                let (offset, length) = (sector * 512, (sectors * 512) as u32);
                // NBD_CMD_WRITE_ZEROES
                assert_eq!(client.command(6, 0, offset, length), 0);
            }
            false => client.write(sector * 512, &data),
        }
        shadow.write_all_at(&data, sector * 512).unwrap();
    }
    client.flush();
}

/// Fails when: a table, a refcount or the rest of a cluster is written wrong, or a length is that
/// of another moment.
#[test]
fn what_guests_write_is_what_qemu_reads_of_each_kind_of_image() {
    let test = "what_guests_write_is_what_qemu_reads_of_each_kind_of_image";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut random = Rng::new(seed(11));
    let mut rig = Rig::new();
    let images = kinds(&rig.dir);
    let name = |image: &Path| image.file_stem().unwrap().to_string_lossy().into_owned();
    let mut shadows = Vec::new();
    for image in &images {
        let shadow = image.with_extension("raw");
        convert(("qcow2", image), ("raw", &shadow), &[]);
        shadows.push(shadow);
        rig.qcow2_volume(&name(image), image, "write-back", "");
    }
    for _ in 0..2 {
        let daemon = rig.serve();
        for (image, shadow) in images.iter().zip(&shadows) {
            let volume = name(image);
            let file = fs::File::options().write(true).open(shadow).unwrap();
            let bytes = file.metadata().unwrap().len();
            for mode in ["atomic", "in-place"] {
                rig.done(&["volume", "set", &volume, &format!("destage={mode}")]);
                assert_eq!(rig.show(&volume)["effective_destage"], mode);
                let mut client = rig.connect(&volume);
                change(&mut client, &file, bytes, &mut random);
                client.disconnect();
                rig.done(&["volume", "destage", &volume, "--wait"]);
                let uri = rig.uri(&volume);
                run(
                    "qemu-img",
                    &["compare", "-f", "raw", "-F", "raw", &uri, &shown(shadow)],
                );
            }
        }
        daemon.stop();
        for (image, shadow) in images.iter().zip(&shadows) {
            check(image);
            assert_same(("qcow2", image), ("raw", shadow));
        }
    }
    let kept = shown(&rig.dir.join("kept.qcow2"));
    run("qemu-img", &["snapshot", "-a", "before", &kept]);
    let was = ["-c", "read -P 4 1M 1M", "-c", "read -P 0 2M 1M"];
    run("qemu-io", &[&["-f", "qcow2"], &was[..], &[&kept]].concat());
}

/// Fails when: a destage that is cut short leaves an image that QEMU takes and that is torn, or one
/// that `origin replay` or the next start does not make whole.
#[test]
fn a_kill_in_the_middle_of_a_destage_leaves_an_image_that_is_made_whole() {
    let test = "a_kill_in_the_middle_of_a_destage_leaves_an_image_that_is_made_whole";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    kill_in_destages("atomic");
}

/// Fails when: a destage in place that is cut short leaves tables that QEMU finds wrong, or one
/// that the next start does not bring to its end.
#[test]
fn a_kill_in_the_middle_of_a_destage_in_place_leaves_right_tables_and_loses_nothing() {
    let test = "a_kill_in_the_middle_of_a_destage_in_place_leaves_right_tables_and_loses_nothing";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    kill_in_destages("in-place");
}

/// Until a kill met an image with its guard. Between two destages in place an image is of no single
/// moment; its tables are right all the same.
fn kill_in_destages(mode: &str) {
    let bytes = 48 * MIB;
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    create(&rig.dir, "base.qcow2", &["48M"]);
    let options = ["-o", "extended_l2=on,cluster_size=128k"];
    let below = ["-b", "base.qcow2", "-F", "qcow2", "48M"];
    let image = create(&rig.dir, "disk.qcow2", &[&options[..], &below].concat());
    let keys = format!("destage-after = \"1s\"\ndestage = \"{mode}\"");
    rig.qcow2_volume("disk", &image, "write-back", &keys);
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &shown(marks.path()));
    let mut load = Load::new(1, bytes, Promise::Prefix, seed(12));
    let mut random = Rng::new(12);
    let rounds = count("TENUTO_DRILL_ROUNDS", 6);
    let (mut round, mut guards) = (0, 0);
    while round < rounds || guards == 0 {
        assert!(round < rounds + GUARD_ROUNDS_MAX, "no kill met a guard");
        let daemon = rig.serve();
        // Within a destage, its journal, or applying that; else at any moment.
        let nth = 1 + random.below(12);
        let arm = || match (round < rounds, round % 4) {
            (true, 3) => {}
            (true, phase) => marks.arm(3 + phase, nth),
            (false, _) => marks.arm(APPLY, 1),
        };
        let life = match round < rounds {
            true => Life::Answers(200 + random.below(400)),
            false => Life::UntilMark,
        };
        load.run_until_killed(&rig, "disk", (daemon, life), arm);
        marks.disarm();
        let raw = rig.dir.join("copy.raw");
        let examine = |image: &Path| {
            if mode == "in-place" {
                return;
            }
            convert(("qcow2", image), ("raw", &raw), &[]);
            let prefix = load.examine(&raw);
            prefix.unwrap_or_else(|violation| panic!("round {round}: {image:?}: {violation}"));
        };
        match is_refused_by_qemu(&image) {
            true => guards += 1,
            false => examine(&image),
        }
        // Beside its backing, which the copy names as well.
        let copy = rig.dir.join("copy.qcow2");
        copy_with_neighbours(&image, &copy);
        rig.done(&["origin", "replay", &shown(&copy)]);
        check(&copy);
        examine(&copy);
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        load.verify(Crash::Kill, &mut client)
            .unwrap_or_else(|violation| panic!("round {round}: {violation}"));
        client.disconnect();
        rig.done(&["volume", "destage", "disk", "--wait"]);
        daemon.stop();
        check(&image);
        round += 1;
    }
}

/// Fails when: dirty data of a dead host goes past the tables of its image.
#[test]
fn the_data_of_a_dead_host_reaches_a_qcow2_image_through_its_tables() {
    let test = "the_data_of_a_dead_host_reaches_a_qcow2_image_through_its_tables";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = create(&rig.dir, "base.qcow2", &["16M"]);
    write(&base, "qcow2", &["write -P 1 0 8M"]);
    let below = ["-b", "base.qcow2", "-F", "qcow2", "16M"];
    let image = create(&rig.dir, "disk.qcow2", &below);
    rig.qcow2_volume("disk", &image, "write-back", "destage-after = \"never\"");
    let shadow = image.with_extension("raw");
    convert(("qcow2", &image), ("raw", &shadow), &[]);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let file = fs::File::options().write(true).open(&shadow).unwrap();
    change(&mut client, &file, 16 * MIB, &mut Rng::new(seed(13)));
    client.disconnect();
    daemon.kill();
    rig.done(&["recover", "--cache", &shown(&rig.cache_path())]);
    check(&image);
    assert_same(("qcow2", &image), ("raw", &shadow));
}

/// Fails when: a setting or a size that this version does not give to such an image is taken, or is
/// refused without a word of what would be right.
#[test]
fn what_a_volume_does_not_do_with_an_image_that_it_writes_is_refused() {
    let test = "what_a_volume_does_not_do_with_an_image_that_it_writes_is_refused";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let dir = &rig.dir;
    let good = create(dir, "good.qcow2", &["-o", "cluster_size=64k", "8M"]);
    let origin = format!("origin={}", good.display());
    let daemon = rig.serve();
    for (key, part) in [
        ("image-guard=off", "image-guard"),
        ("bitmaps=invalidate", "bitmaps"),
    ] {
        let before = fs::read(&good).unwrap();
        let line = rig.refused(&["volume", "add", "w", &origin, key], EXIT_USAGE);
        for part in [part, "not in this version"] {
            assert!(line.contains(part), "{part:?} is missing in: {line}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(fs::read(&good).unwrap() == before, "{key}: it is changed");
    }
    rig.done(&["volume", "add", "good", &origin]);
    crate::common::wait_until("it was looked for a guard", PATIENCE, || {
        rig.show("good")["image"]["guard"] == false
    });
    let above = create(
        dir,
        "above.qcow2",
        &["-b", "good.qcow2", "-F", "qcow2", "-u", "8M"],
    );
    let origin = format!("origin={}", above.display());
    let line = rig.refused(&["volume", "add", "above", &origin], EXIT_REFUSED);
    for part in ["good.qcow2", "volume good of this daemon"] {
        assert!(line.contains(part), "{part:?} is missing in: {line}");
    }
    daemon.stop();
    assert!(
        Command::new("qemu-img")
            .args(["check", &shown(&good)])
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// Fails when: a file below an image is written by another volume, or it is not said which volume
/// stands on it; or a file of another program is said to be one of a volume.
#[test]
fn a_file_that_a_volume_stands_on_is_refused_to_another_one_with_its_name() {
    let test = "a_file_that_a_volume_stands_on_is_refused_to_another_one_with_its_name";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = create(&rig.dir, "base.qcow2", &["8M"]);
    let below = ["-b", "base.qcow2", "-F", "qcow2", "8M"];
    let image = create(&rig.dir, "disk.qcow2", &below);
    rig.qcow2_volume("top", &image, "write-back", "");
    let daemon = rig.serve();
    // Whatever it is called.
    let alias = rig.dir.join("alias.qcow2");
    std::os::unix::fs::symlink(&base, &alias).unwrap();
    for name in [&base, &alias] {
        let origin = format!("origin={}", name.display());
        let add = ["volume", "add", "d", &origin, "policy=write-back"];
        let line = rig.refused(&add, EXIT_REFUSED);
        assert!(line.contains(&shown(name)), "{line}");
        assert!(line.contains("volume top of this daemon"), "{line}");
    }
    let other = create(&rig.dir, "other.qcow2", &["8M"]);
    let file = fs::File::open(&other).unwrap();
    file.lock_shared().unwrap();
    let origin = format!("origin={}", other.display());
    let add = ["volume", "add", "d", &origin, "policy=write-back"];
    let line = rig.refused(&add, EXIT_FAILED);
    assert!(line.contains("in use by"), "{line}");
    assert!(!line.contains("of this daemon"), "{line}");
    daemon.stop();
}

/// Fails when: the clusters of a write that a crash has cut short stay allocated for ever, or they
/// are freed in an image that says nothing of them.
#[test]
fn clusters_that_leaked_are_freed_where_the_image_says_so() {
    let test = "clusters_that_leaked_are_freed_where_the_image_says_so";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    for (policy, says) in [
        ("write-through", true),
        ("write-back", true),
        ("uncached", false),
    ] {
        let mut rig = Rig::new();
        let image = create(&rig.dir, "disk.qcow2", &["8M"]);
        write(&image, "qcow2", &["write -P 1 0 64k"]);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(&image)
            .unwrap();
        let number = |at: u64| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at).unwrap();
            u64::from_be_bytes(bytes)
        };
        let end = file.metadata().unwrap().len().next_multiple_of(65_536);
        file.set_len(end + 65_536).unwrap();
        let block = number(number(48));
        file.write_all_at(&[0, 1], block + end / 65_536 * 2)
            .unwrap();
        if says {
            file.write_all_at(&(number(88) | 1 << 62).to_be_bytes(), 88)
                .unwrap();
        }
        let leaks = || {
            let check = ["check", "-f", "qcow2", &shown(&image)];
            let done = Command::new("qemu-img").args(check).output().unwrap();
            done.status.code() == Some(3)
        };
        assert!(leaks(), "{policy}: there is something to free");
        rig.qcow2_volume("disk", &image, policy, "");
        rig.serve().stop();
        assert_eq!(leaks(), !says, "{policy}");
        assert_eq!(
            number(88) >> 62 & 1,
            0,
            "{policy}: it says nothing any more"
        );
    }
}

/// Fails when: a drain leaves what such a volume owes in the log, or its writes go there since.
#[test]
fn a_drained_volume_on_a_qcow2_image_writes_it_past_the_log() {
    let test = "a_drained_volume_on_a_qcow2_image_writes_it_past_the_log";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let image = create(&rig.dir, "disk.qcow2", &["8M"]);
    rig.qcow2_volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(1 << 20, &[0x31; 4096]);
    client.flush();
    assert_eq!(rig.show("disk")["dirty_bytes"], 4096);
    rig.done(&["drain"]);
    assert_eq!(rig.show("disk")["effective_policy"], "write-through");
    client.write(3 << 20, &[0x33; 4096]);
    assert_eq!(rig.show("disk")["dirty_bytes"], 0);
    // A kill takes nothing along that was answered, flushed or not.
    daemon.kill();
    let read = |pattern: &str| {
        let image = shown(&image);
        run(
            "qemu-io",
            &["-r", "-U", "-f", "qcow2", "-c", pattern, &image],
        );
    };
    read("read -P 0x31 1M 4k");
    read("read -P 0x33 3M 4k");
    let daemon = rig.serve();
    // The switch of a start goes on beside its guests.
    crate::common::wait_until("it is drained again", PATIENCE, || {
        rig.show("disk")["effective_policy"] == "write-through"
    });
    rig.done(&["drain", "--undo"]);
    crate::common::wait_until("it is write-back again", PATIENCE, || {
        rig.show("disk")["effective_policy"] == "write-back"
    });
    daemon.stop();
    check(&image);
}

/// A look comes every ten seconds; the machine may be slow.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Fails when: what an image that is written stands on is not looked at, or dirty data is laid over
/// another disk than its guest saw.
#[test]
fn a_file_below_an_image_that_is_written_which_changes_holds_its_volume() {
    let test = "a_file_below_an_image_that_is_written_which_changes_holds_its_volume";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = create(&rig.dir, "base.qcow2", &["8M"]);
    write(&base, "qcow2", &["write -P 5 0 4M"]);
    let below = ["-b", "base.qcow2", "-F", "qcow2", "8M"];
    let image = create(&rig.dir, "disk.qcow2", &below);
    rig.qcow2_volume("disk", &image, "write-back", "destage-after = \"never\"");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(MIB, &[9; 4096]);
    client.flush();
    let aside = rig.dir.join("aside.qcow2");
    fs::rename(&base, &aside).unwrap();
    fs::copy(&aside, &base).unwrap();
    let is_held = |held: bool| {
        crate::common::wait_until("the look at its image", PATIENCE, || {
            (rig.show("disk")["state"] == "held") == held
        });
    };
    is_held(true);
    client.disconnect();
    daemon.stop();
    let daemon = rig.serve();
    is_held(true);
    daemon.stop();
    fs::rename(&aside, &base).unwrap();
    let daemon = rig.serve();
    is_held(false);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    daemon.stop();
    check(&image);
}
