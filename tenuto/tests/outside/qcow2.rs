//! Volumes on qcow2 images, judged by QEMU's own tools.
//!
//! Always true of each: what a client reads is what `qemu-img` reads of the same files; no file of
//! an image changes, whatever guests write.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{EXIT_DAMAGE, Rig, have, run, text_of, wait_until};

const MIB: u64 = 1 << 20;
/// A look comes every ten seconds; the machine may be slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// A new image and what is written to it by `qemu-io`.
fn image(dir: &Path, name: &str, options: &[&str], commands: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let shown = path.display().to_string();
    let mut create = vec!["create", "-q", "-f", "qcow2"];
    create.extend(&options[..options.len() - 1]);
    create.extend([&shown, options[options.len() - 1]]);
    run("qemu-img", &create);
    write(&path, commands);
    path
}

fn write(path: &Path, commands: &[&str]) {
    let mut arguments = vec!["-f", "qcow2"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    let shown = path.display().to_string();
    arguments.push(&shown);
    run("qemu-io", &arguments);
}

/// Only its ledger and its journal make it whole, and they are not there.
#[test]
fn an_image_under_a_guard_without_its_ledger_is_no_image_that_origin_replay_calls_well() {
    let test = "an image under a guard without its ledger";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let path = image(&rig.dir, "torn.qcow2", &["1M"], &["write -P 1 0 64k"]);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0x20], 72).unwrap();
    let before = fs::read(&path).unwrap();
    let replayed = rig.tenuto(&["origin", "replay", &path.display().to_string()]);
    let told = text_of(&replayed);
    assert_eq!(replayed.status.code(), Some(EXIT_DAMAGE), "{told}");
    assert!(told.contains("its ledger and its journal"), "{told}");
    assert_eq!(fs::read(&path).unwrap(), before, "it is not changed");
}

/// All of a volume is what QEMU reads of the image.
fn assert_same(rig: &Rig, volume: &str, format: &str, image: &Path) {
    let (uri, image) = (rig.uri(volume), image.display().to_string());
    run(
        "qemu-img",
        &["compare", "-U", "-f", "raw", "-F", format, &uri, &image],
    );
}

fn sums(images: &[PathBuf]) -> Vec<Vec<u8>> {
    images
        .iter()
        .map(|image| fs::read(image).unwrap())
        .collect()
}

/// A base with data, zeroes and nothing, and images of many kinds above it or copied from it.
fn kinds(dir: &Path) -> Vec<PathBuf> {
    let data = [
        "write -P 1 0 3M",
        "write -P 2 5M 64k",
        "write -z 6M 1M",
        "write -P 3 9M 4k",
        "write -P 4 15M 1M",
    ];
    let base = image(dir, "base.qcow2", &["-o", "cluster_size=64k", "16M"], &data);
    let shown = base.display().to_string();
    let raw = dir.join("raw.img");
    let raw_shown = raw.display().to_string();
    run(
        "qemu-img",
        &["convert", "-f", "qcow2", "-O", "raw", &shown, &raw_shown],
    );
    let mut all = vec![base];
    for (name, options) in [
        ("zlib", "compression_type=zlib"),
        ("zstd", "compression_type=zstd"),
        ("zstd2m", "compression_type=zstd,cluster_size=2M"),
    ] {
        let path = dir.join(format!("{name}.qcow2"));
        let target = path.display().to_string();
        let convert = ["convert", "-c", "-f", "qcow2", "-O", "qcow2", "-o", options];
        run("qemu-img", &[&convert[..], &[&shown, &target]].concat());
        all.push(path);
    }
    let change = ["write -P 7 1M 20k", "write -P 8 9M 1k", "write -z 2M 64k"];
    for (name, options, size) in [
        ("small", "cluster_size=512", "16M"),
        ("large", "cluster_size=2M", "16M"),
        ("extended", "extended_l2=on,cluster_size=128k", "16M"),
        ("halves", "extended_l2=on,cluster_size=16k", "16M"),
        ("old", "compat=0.10", "16M"),
        ("longer", "cluster_size=64k", "20M"),
        ("shorter", "cluster_size=64k", "10M"),
    ] {
        let options = ["-o", options, "-b", "base.qcow2", "-F", "qcow2", size];
        all.push(image(dir, &format!("{name}.qcow2"), &options, &change));
    }
    let on_raw = ["-b", "raw.img", "-F", "raw", "16M"];
    all.push(image(dir, "onraw.qcow2", &on_raw, &change));
    let mut below = "base.qcow2".to_owned();
    for depth in 0..8 {
        let name = format!("deep{depth}.qcow2");
        let at = format!("write -P {} {depth}M 12k", 0x40 + depth);
        let options = ["-b", &below, "-F", "qcow2", "16M"];
        let path = image(dir, &name, &options, &[&at]);
        below = name;
        if depth == 7 {
            all.push(path);
        }
    }
    all
}

/// Fails when: an entry of a table is misread, a backing that is shorter or longer than its image
/// is not cut, or a compressed cluster is not unpacked.
#[test]
fn images_of_many_kinds_are_read_as_qemu_reads_them_and_never_written() {
    let test = "images_of_many_kinds_are_read_as_qemu_reads_them_and_never_written";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let images = kinds(&rig.dir);
    for (number, image) in images.iter().enumerate() {
        rig.qcow2_volume(&format!("clone{number}"), image, "ephemeral", "");
        let lines = "read-only = true";
        rig.qcow2_volume(&format!("reader{number}"), image, "uncached", lines);
    }
    let before = sums(&images);
    let daemon = rig.serve();
    for (number, image) in images.iter().enumerate() {
        for volume in [format!("clone{number}"), format!("reader{number}")] {
            assert_same(&rig, &volume, "qcow2", image);
            // From the tier, or past it again.
            assert_same(&rig, &volume, "qcow2", image);
        }
        // Who copies a disk does not read what no file has.
        if number == 0 {
            assert_eq!(data_bytes(&rig, "clone0"), (3072 + 64 + 64 + 1024) << 10);
        }
        let mut client = rig.connect(&format!("clone{number}"));
        client.write(MIB, &[9; 4096]);
        client.flush();
        assert_eq!(client.read(MIB, 8192)[..4096], [9; 4096]);
    }
    assert!(!daemon.log().contains("error"), "{}", daemon.log());
    daemon.stop();
    assert!(before == sums(&images), "no image was written");
}

/// Bytes of a volume that its export calls data.
fn data_bytes(rig: &Rig, volume: &str) -> u64 {
    let map = ["map", "--output=json", "-f", "raw", &rig.uri(volume)];
    let map: serde_json::Value = serde_json::from_str(&run("qemu-img", &map)).expect("JSON");
    let extents = map.as_array().expect("a list of extents").iter();
    let data = extents.filter(|it| it["data"] == true);
    data.map(|it| it["length"].as_u64().expect("a length"))
        .sum()
}

/// Changed so lately an image has no identity that outlives the daemon.
fn age(dir: &Path, names: &[&str]) {
    let past = std::time::SystemTime::now() - Duration::from_secs(60);
    for name in names {
        let file = fs::File::options().write(true).open(dir.join(name));
        file.unwrap().set_modified(past).unwrap();
    }
    let last = dir.join(names[names.len() - 1]);
    wait_until("the change of its times is past", PATIENCE, || {
        let changed = fs::metadata(&last).unwrap();
        let changed = std::os::unix::fs::MetadataExt::ctime(&changed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs() as i64 > changed + 4
    });
}

/// Fails when: the identity of a file ignores what lies below it, so that a block of which it has
/// a part is taken for the one over the file before.
#[test]
fn what_was_kept_of_an_image_counts_no_more_when_a_file_far_below_is_another_one() {
    let test = "what_was_kept_of_an_image_counts_no_more_when_a_file_far_below_is_another_one";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    for (name, pattern) in [("one.qcow2", 1), ("other.qcow2", 2)] {
        image(
            &rig.dir,
            name,
            &["8M"],
            &[&format!("write -P {pattern} 0 8M")],
        );
    }
    let options = ["-b", "one.qcow2", "-F", "qcow2", "8M"];
    let middle = image(&rig.dir, "middle.qcow2", &options, &["write -P 5 2M 64k"]);
    let options = [
        "-o",
        "cluster_size=512",
        "-b",
        "middle.qcow2",
        "-F",
        "qcow2",
        "8M",
    ];
    // Blocks of the cache of which only a part is its own.
    let writes: Vec<String> = (0..256)
        .map(|it| format!("write -P 6 {}k 512", it * 32))
        .collect();
    let writes: Vec<&str> = writes.iter().map(String::as_str).collect();
    let gold = image(&rig.dir, "gold.qcow2", &options, &writes);
    age(
        &rig.dir,
        &["one.qcow2", "other.qcow2", "middle.qcow2", "gold.qcow2"],
    );
    let cache = rig.cache_path();
    rig.cache(&cache, "256MiB", "ram = \"64MiB\"");
    rig.qcow2_volume("disk", &gold, "ephemeral", "");
    let read = |rig: &Rig| {
        let daemon = rig.serve();
        assert_same(rig, "disk", "qcow2", &gold);
        let read = rig.show("disk")["origin"]["read_bytes"].as_u64().unwrap();
        daemon.stop();
        read
    };
    let first = read(&rig);
    let again = read(&rig);
    assert!(first >= 8 * MIB && again < MIB, "{first}, {again}");
    let middle = middle.display().to_string();
    let rebase = ["rebase", "-u", "-b", "other.qcow2", "-F", "qcow2", &middle];
    run("qemu-img", &rebase);
    let anew = read(&rig);
    assert!(anew >= MIB, "{anew}");
}

/// Fails when: clones of one image have no common layer, or tables are read for each of them.
#[test]
fn clones_of_an_image_read_each_of_its_blocks_once_and_find_them_after_a_restart() {
    let test = "clones_of_an_image_read_each_of_its_blocks_once_and_find_them_after_a_restart";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    image(&rig.dir, "base.qcow2", &["64M"], &["write -P 5 0 24M"]);
    let options = ["-b", "base.qcow2", "-F", "qcow2", "64M"];
    let gold = image(&rig.dir, "gold.qcow2", &options, &["write -P 6 8M 4M"]);
    run(
        "qemu-img",
        &["snapshot", "-c", "before", &gold.display().to_string()],
    );
    age(&rig.dir, &["base.qcow2", "gold.qcow2"]);
    let cache = rig.cache_path();
    rig.cache(&cache, "256MiB", "ram = \"64MiB\"");
    for name in ["one", "two", "three"] {
        rig.qcow2_volume(name, &gold, "ephemeral", "");
    }
    let read = |rig: &Rig, name: &str| {
        assert_same(rig, name, "qcow2", &gold);
        rig.show(name)["origin"]["read_bytes"].as_u64().unwrap()
    };
    let daemon = rig.serve();
    let first = read(&rig, "one");
    assert!(first >= 24 * MIB, "{first}");
    for name in ["two", "three"] {
        assert_eq!(read(&rig, name), 0, "all of it is in the cache");
    }
    let shown = rig.show("one");
    let image = &shown["image"];
    let chain = [&gold, &rig.dir.join("base.qcow2")].map(|path| path.display().to_string());
    assert_eq!(image["format"], "qcow2", "{image}");
    assert_eq!(image["chain"], serde_json::json!(chain), "{image}");
    assert_eq!(image["snapshots"], serde_json::json!(["before"]), "{image}");
    assert_eq!(image["unit_bytes"], 65536, "{image}");
    assert!(image["metadata_ram_bytes"].as_u64() > Some(0), "{image}");
    let on_ssd = |rig: &Rig| rig.show("one")["image"]["metadata_ssd_bytes"].as_u64();
    // A table of each file, and both indexes of those.
    wait_until("the tables are on the SSD", PATIENCE, || {
        on_ssd(&rig) >= Some(4 * 4096)
    });
    daemon.stop();
    let daemon = rig.serve();
    assert!(on_ssd(&rig) >= Some(4 * 4096), "they are found again");
    let again = read(&rig, "two");
    assert!(
        again < MIB,
        "{again} bytes were read again; before: {shown}"
    );
    daemon.stop();
}

/// Fails when: what an overlay has is not laid over what the image says, or not found again.
#[test]
fn an_overlay_over_a_qcow2_image_survives_a_kill_and_goes_with_a_reset() {
    let test = "an_overlay_over_a_qcow2_image_survives_a_kill_and_goes_with_a_reset";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let gold = image(&rig.dir, "gold.qcow2", &["32M"], &["write -P 5 0 8M"]);
    let shadow = rig.dir.join("shadow.qcow2");
    fs::copy(&gold, &shadow).unwrap();
    rig.qcow2_volume("clone", &gold, "ephemeral", "");
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    for (offset, bytes, byte) in [
        (3 * MIB + 512, 1024, 7_u8),
        (7 * MIB + 2048, 2 * MIB, 8),
        (30 * MIB, 4096, 9),
    ] {
        client.write(offset, &vec![byte; bytes as usize]);
        write(&shadow, &[&format!("write -P {byte} {offset} {bytes}")]);
    }
    client.flush();
    assert_same(&rig, "clone", "qcow2", &shadow);
    daemon.kill();
    let daemon = rig.serve();
    assert_same(&rig, "clone", "qcow2", &shadow);
    rig.done(&["volume", "reset", "clone"]);
    assert_same(&rig, "clone", "qcow2", &gold);
    daemon.stop();
}

/// Fails when: the files below an image are not looked at, or a change of one is passed over.
#[test]
fn a_file_below_that_is_replaced_or_written_holds_the_volumes_above_it() {
    let test = "a_file_below_that_is_replaced_or_written_holds_the_volumes_above_it";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = image(&rig.dir, "base.qcow2", &["16M"], &["write -P 5 0 4M"]);
    let options = ["-b", "base.qcow2", "-F", "qcow2", "16M"];
    let gold = image(&rig.dir, "gold.qcow2", &options, &["write -P 6 8M 1M"]);
    rig.qcow2_volume("clone", &gold, "ephemeral", "");
    let daemon = rig.serve();
    let is_held = |held: bool| {
        wait_until("the look at its image", PATIENCE, || {
            (rig.show("clone")["state"] == "held") == held
        });
    };
    let aside = rig.dir.join("aside.qcow2");
    fs::rename(&base, &aside).unwrap();
    fs::copy(&aside, &base).unwrap();
    is_held(true);
    let told = text_of(&rig.tenuto(&["status", "-x"]));
    assert!(told.contains("clone") && told.contains("image"), "{told}");
    fs::rename(&aside, &base).unwrap();
    is_held(false);
    assert_eq!(rig.connect("clone").read(0, 4096), [5; 4096]);
    // As a program does that takes no lock.
    let mut bytes = fs::read(&base).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&base, bytes).unwrap();
    is_held(true);
    daemon.stop();
}
