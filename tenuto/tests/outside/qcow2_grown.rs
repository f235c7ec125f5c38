//! Disks of qcow2 images that become larger under their guests, judged by QEMU's own tools.
//!
//! Always true of each: the disk has the old size or the new one behind every kill, what is new
//! reads as zeroes, and `qemu-img check` finds no error and no leak when the next life has ended.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use workload::rng::Rng;

use crate::common::marks::Marks;
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, count, have, nbd, seed};
use crate::qcow2_written::{assert_same, check, convert, create, shown, write};

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;
/// Requests of each phase of the marks that a change of size makes, about: ledger and header,
/// journal, what is applied.
const PHASES: [(u64, u64); 3] = [(3, 20), (4, 4), (5, 6)];

/// An image, the size that it gets, and what is between.
struct Growing {
    image: PathBuf,
    shadow: PathBuf,
    old: u64,
    new: u64,
}

/// Of three kinds: L1 has to move, and a file below is longer; the end cuts a cluster, and a raw
/// file below is longer; L1 becomes longer where it lies.
fn growing(rig: &Rig, number: u64) -> Growing {
    let name = format!("disk-{number}.qcow2");
    let (old, new, options) = match number % 3 {
        0 => {
            let below = create(&rig.dir, "long.qcow2", &["1040M"]);
            write(&below, "qcow2", &["write -P 7 1000M 35M"]);
            let below = ["-b", "long.qcow2", "-F", "qcow2", "-o", "cluster_size=4k"];
            (1021 * MIB, 1037 * MIB, below.to_vec())
        }
        1 => {
            let below = rig.image("long.img", 80 * MIB);
            write(&below, "raw", &["write -P 8 30M 40M"]);
            (
                40 * MIB + 5 * KIB,
                90 * MIB,
                vec!["-b", "long.img", "-F", "raw"],
            )
        }
        _ => {
            let options = vec!["-o", "extended_l2=on,cluster_size=128k"];
            (1000 * MIB, 3000 * MIB, options)
        }
    };
    let size = old.to_string();
    let image = create(&rig.dir, &name, &[&options[..], &[&size]].concat());
    write(
        &image,
        "qcow2",
        &["write -P 1 0 1M", &format!("write -P 2 {} 1M", old - MIB)],
    );
    let shadow = image.with_extension("raw");
    convert(("qcow2", &image), ("raw", &shadow), &[]);
    Growing {
        image,
        shadow,
        old,
        new,
    }
}

/// Writes of some length at random places, also to the shadow.
pub fn change(
    client: &mut nbd::Client,
    shadow: &Path,
    random: &mut Rng,
    place: impl Fn(&mut Rng, u64) -> u64,
) {
    let shadow = File::options().write(true).open(shadow);
    let shadow = shadow.expect("open the shadow");
    for _ in 0..12 {
        let bytes = vec![1 + random.below(255) as u8; 512 * (1 + random.below(40)) as usize];
        let at = place(random, bytes.len() as u64);
        client.write(at, &bytes);
        shadow.write_all_at(&bytes, at).expect("write the shadow");
    }
}

/// Writes that are dirty when the order comes.
fn dirty(client: &mut nbd::Client, shadow: &Path, old: u64, random: &mut Rng) {
    change(client, shadow, random, |random, length| {
        match random.chance(500) {
            true => old - length - 512 * random.below(200),
            false => 512 * random.below(4 * MIB / 512),
        }
    });
}

/// Fails when: what a file below has behind the old end shows, a kill leaves another size or an
/// image that is wrong, dirty data is lost, or an L1 that has moved leaks.
#[test]
fn a_dirty_qcow2_disk_grows_and_a_kill_at_each_step_leaves_the_old_or_the_new_one() {
    let test = "a_dirty_qcow2_disk_grows_and_a_kill_at_each_step_leaves_the_old_or_the_new_one";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &shown(marks.path()));
    let mut random = Rng::new(seed(31));
    let (mut killed, mut grown) = (0, 0);
    for round in 0..count("TENUTO_DRILL_ROUNDS", 12) {
        let disk = growing(&rig, round);
        let origin = format!("origin={}", shown(&disk.image));
        let daemon = rig.serve();
        rig.done(&["volume", "add", "disk", &origin, "destage-after=never"]);
        let mut client = rig.connect("disk");
        dirty(&mut client, &disk.shadow, disk.old, &mut random);
        // The first of each kind lives.
        let (phase, most) = PHASES[(round / 3 % 3) as usize];
        let nth = 1 + random.below(most);
        if round >= 3 {
            marks.arm(phase, nth);
        }
        let said = rig.tenuto(&["volume", "resize", "disk", &disk.new.to_string()]);
        marks.disarm();
        let done = said.status.success();
        let when = format!("round {round}, entry {nth} of phase {phase}");
        if round < 3 {
            assert!(done, "{when}: {said:?}");
            assert_eq!(client.read(0, 512).len(), 512, "the guest goes on");
        }
        killed += u64::from(!done);
        drop(client);
        daemon.kill();

        let daemon = rig.serve();
        let size = rig.show("disk")["size_bytes"].as_u64().expect("a size");
        let right = size == disk.new || size == disk.old && !done;
        assert!(right, "{when}: {size} bytes, told {said:?}");
        grown += u64::from(size == disk.new);
        let shadow = File::options().write(true).open(&disk.shadow);
        let sized = shadow.and_then(|it| it.set_len(size));
        sized.expect("size the shadow");
        let mut client = rig.connect("disk");
        dirty(&mut client, &disk.shadow, size, &mut random);
        client.disconnect();
        rig.gone_clients("disk");
        rig.done(&["volume", "destage", "disk", "--wait"]);
        rig.done(&["volume", "rm", "disk"]);
        daemon.stop();
        check(&disk.image);
        assert_same(("qcow2", &disk.image), ("raw", &disk.shadow));
        fs::remove_file(&disk.shadow).expect("remove the shadow");
    }
    assert!(killed > 0 && grown > 3, "{killed} killed, {grown} grown");
}

/// Fails when: a size that the image cannot have is taken, or is refused without a word of what
/// would be right.
#[test]
fn a_size_that_a_qcow2_image_cannot_have_is_refused_with_what_would_be_right() {
    let test = "a_size_that_a_qcow2_image_cannot_have_is_refused_with_what_would_be_right";
    if !have(test, &["qemu-img"]) {
        return;
    }
    let rig = Rig::new();
    let image = create(&rig.dir, "disk.qcow2", &["-o", "cluster_size=4k", "64M"]);
    let read = create(&rig.dir, "read.qcow2", &["64M"]);
    let daemon = rig.serve();
    let origin = format!("origin={}", shown(&image));
    rig.done(&["volume", "add", "disk", &origin]);
    let origin = format!("origin={}", shown(&read));
    rig.done(&["volume", "add", "read", &origin, "read-only=true"]);
    for (name, size, code, part) in [
        ("disk", "9TiB", EXIT_USAGE, "with larger clusters"),
        ("disk", "32MiB", EXIT_REFUSED, "--shrink"),
        ("read", "65MiB", EXIT_REFUSED, "tenuto volume show"),
    ] {
        let said = rig.refused(&["volume", "resize", name, size], code);
        assert!(said.contains(part), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let shown = rig.json(&["volume", "resize", "disk", "+64MiB"]);
    assert_eq!(shown["size_bytes"], 128 * MIB);
    daemon.stop();
    check(&image);
}
