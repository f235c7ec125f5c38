//! Writes past the log into qcow2 images: what they ask of the storage.
//!
//! Always true: what a guest is told and what QEMU finds afterwards are compared with what was
//! written. Deliberately absent: kills, which [`super::qcow2_drills`] has.

use std::path::PathBuf;

use crate::common::{Daemon, Rig, have};
use crate::qcow2_written::{check, create, shown, write};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Of the origin of the volume: requests to read and to write, and bytes read.
fn asked(rig: &Rig) -> [u64; 3] {
    let origin = &rig.show("disk")["origin"];
    ["reads", "writes", "read_bytes"].map(|it| origin[it].as_u64().expect("a number"))
}

fn since(before: [u64; 3], after: [u64; 3]) -> [u64; 3] {
    [0, 1, 2].map(|it| after[it] - before[it])
}

/// A write-through volume on a clone of a base that is full of data, with clusters of 64 KiB.
fn serve_a_clone() -> (Rig, PathBuf, Daemon) {
    let mut rig = Rig::new();
    let base = create(&rig.dir, "base.qcow2", &["16M"]);
    write(&base, "qcow2", &["write -P 7 0 16M"]);
    let below = ["-b", "base.qcow2", "-F", "qcow2", "16M"];
    let image = create(&rig.dir, "disk.qcow2", &below);
    rig.qcow2_volume("disk", &image, "write-through", "");
    let daemon = rig.serve();
    (rig, image, daemon)
}

/// Whether QEMU reads these patterns.
fn reads(image: &std::path::Path, patterns: &[&str]) {
    let image = shown(image);
    for pattern in patterns {
        let arguments = ["-r", "-f", "qcow2", "-c", pattern, &image];
        crate::common::run("qemu-io", &arguments);
    }
}

/// Fails when: what is before and behind a short write is read in two requests, or more of the
/// tables is written than one range each.
#[test]
fn a_short_write_to_a_clone_reads_the_rest_of_its_cluster_at_once() {
    let test = "a_short_write_to_a_clone_reads_the_rest_of_its_cluster_at_once";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let (rig, image, daemon) = serve_a_clone();
    let mut client = rig.connect("disk");
    // The tables of the base and of the clone are read for it, and its own one is made.
    client.write(8 * KIB, &[1; 4096]);
    for (cluster, at) in [(16, 24 * KIB), (17, 512), (18, 60 * KIB)] {
        let before = asked(&rig);
        client.write(cluster * 64 * KIB + at, &[2; 4096]);
        let [reads, writes, bytes] = since(before, asked(&rig));
        assert_eq!(reads, 1, "cluster {cluster}");
        assert!(bytes <= 64 * KIB, "cluster {cluster}: {bytes}");
        // The cluster, its count, and what refers to it.
        assert_eq!(writes, 3, "cluster {cluster}");
    }
    // More than what is worth reading lies between.
    let before = asked(&rig);
    client.write(20 * 64 * KIB + 8 * KIB, &[3; 40 << 10]);
    let [reads_of_it, _, bytes] = since(before, asked(&rig));
    assert_eq!((reads_of_it, bytes), (2, 24 * KIB));
    client.disconnect();
    daemon.stop();
    check(&image);
    reads(
        &image,
        &[
            "read -P 7 0 8k",
            "read -P 1 8k 4k",
            "read -P 7 12k 1012k",
            "read -P 7 1M 24k",
            "read -P 2 1048k 4k",
            "read -P 7 1052k 36k",
            "read -P 7 1088k 512",
            "read -P 2 1114624 4k",
            "read -P 7 1118720 94720",
            "read -P 2 1212k 4k",
            "read -P 7 1216k 72k",
            "read -P 3 1288k 40k",
            "read -P 7 1328k 2M",
        ],
    );
}

/// Fails when: what a clone copies is read from the storage though the read tier has it, or is not
/// in the tier any more behind that.
#[test]
fn what_a_clone_has_read_stays_in_the_cache_when_its_cluster_is_copied() {
    let test = "what_a_clone_has_read_stays_in_the_cache_when_its_cluster_is_copied";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let (rig, image, daemon) = serve_a_clone();
    let mut client = rig.connect("disk");
    client.write(MIB, &[1; 4096]);
    let warm = 2 * MIB;
    assert_eq!(client.read(warm, 128 << 10), vec![7; 128 << 10]);
    let before = asked(&rig);
    client.write(warm + 20 * KIB, &[2; 4096]);
    client.write(warm + 64 * KIB + 512, &[3; 1024]);
    let reads_of_it = since(before, asked(&rig))[0];
    assert_eq!(reads_of_it, 0, "the tier has all of it");
    let mut want = vec![7; 128 << 10];
    want[20 << 10..24 << 10].fill(2);
    want[(64 << 10) + 512..(64 << 10) + 1536].fill(3);
    let before = asked(&rig);
    assert_eq!(client.read(warm, 64 << 10), want[..64 << 10]);
    assert_eq!(since(before, asked(&rig))[0], 0, "it has it still");
    assert_eq!(client.read(warm, 128 << 10), want);
    // The block of which a part was written, and nothing else.
    assert_eq!(since(before, asked(&rig))[0], 1);
    client.disconnect();
    daemon.stop();
    check(&image);
    reads(
        &image,
        &[
            "read -P 7 2M 20k",
            "read -P 2 2068k 4k",
            "read -P 7 2072k 40k",
            "read -P 3 2163200 1k",
            "read -P 7 2164224 64000",
        ],
    );
}
