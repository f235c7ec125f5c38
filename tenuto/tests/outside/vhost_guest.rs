//! Guests with disks over vhost-user: what they see, what they leave, and each other.
//!
//! The guest's root is in its RAM, or on the disk itself where that is what is to be shown. Its
//! disks hold file systems that were made outside; when it has ended, their images alone are
//! checked by the tools of the file systems, and by another guest without the product.

use std::path::{Path, PathBuf};

use crate::common::guest::Machine;
use crate::common::inside;
use crate::common::vm::{Disk, Shape, Vm};
use crate::common::{Rig, run};

const EXT4_BYTES: u64 = 96 << 20;
/// As small as that file system may be.
const XFS_BYTES: u64 = 320 << 20;
const STEPS: u64 = 8;

pub fn vhost(rig: &Rig, volume: &str) -> Disk {
    Disk::Vhost(rig.run_dir().join(format!("{volume}.vhost.sock")))
}

/// An image with a library for `blocks`.
pub fn blocks_image(rig: &Rig, name: &str) -> PathBuf {
    use std::os::unix::fs::FileExt;
    let image = rig.image(name, inside::DISK_BYTES);
    let file = std::fs::File::options().write(true).open(&image);
    file.and_then(|file| file.write_all_at(&inside::library(), 0))
        .expect("write the library");
    image
}

pub fn ext4_image(rig: &Rig, name: &str) -> PathBuf {
    let image = rig.image(name, EXT4_BYTES);
    let options = "lazy_itable_init=0,lazy_journal_init=0";
    let path = image.to_string_lossy();
    run(
        "mkfs.ext4",
        &["-q", "-F", "-b", "4096", "-E", options, &path],
    );
    image
}

pub fn xfs_image(rig: &Rig, name: &str) -> PathBuf {
    let image = rig.image(name, XFS_BYTES);
    run("mkfs.xfs", &["-q", &image.to_string_lossy()]);
    image
}

/// The file system on an image is without a fault.
pub fn is_clean(image: &Path, kind: &str) {
    let path = image.to_string_lossy();
    match kind {
        "ext4" => run("e2fsck", &["-f", "-n", &path]),
        _ => run("xfs_repair", &["-n", &path]),
    };
}

/// What a guest said of a disk with the word `found` or `kept`, at last.
pub fn serials(said: &[String], disk: &str) -> Vec<u64> {
    let last = said.iter().rev().find_map(|line| line.strip_prefix(disk));
    let last = last.unwrap_or_else(|| panic!("nothing of {disk} in {said:?}"));
    let numbers = last.split_whitespace();
    numbers.map(|it| it.parse().expect("a number")).collect()
}

/// Everything that was flushed is there.
pub fn is_there(kept: &[u64], found: &[u64]) {
    assert_eq!(kept.len(), found.len());
    let lost = kept
        .iter()
        .zip(found)
        .position(|(kept, found)| found < kept);
    assert_eq!(lost, None, "of {kept:?} there is {found:?}");
}

/// The sum of an image as the guest makes it of its disk.
pub fn sum_of(image: &Path) -> String {
    let bytes = std::fs::read(image).expect("read the image");
    let parts = bytes.chunks(1 << 20);
    format!("{:016x}", parts.fold(0, inside::sum))
}

/// Fails when: every disk is called write back.
#[test]
fn a_guest_sees_the_disk_that_it_was_promised_and_leaves_clean_file_systems() {
    let test = "a_guest_sees_the_disk_that_it_was_promised_and_leaves_clean_file_systems";
    let mut rig = Rig::new();
    let Some(machine) = Machine::with_program(test, &rig.dir) else {
        return;
    };
    let images = [
        ("back", "write-back", "", blocks_image(&rig, "back.img")),
        (
            "off",
            "write-back",
            "write-cache = \"off\"",
            ext4_image(&rig, "off.img"),
        ),
        ("xfs", "write-back", "", xfs_image(&rig, "xfs.img")),
        (
            "through",
            "write-through",
            "",
            ext4_image(&rig, "through.img"),
        ),
    ];
    for (name, policy, lines, image) in &images {
        rig.guest_volume(name, image, policy, lines);
    }
    let daemon = rig.serve();
    let uses = ["blocks", "ext4", "xfs", "ext4"];
    let shape = Shape {
        name: "guest".to_owned(),
        disks: images.iter().map(|(name, ..)| vhost(&rig, name)).collect(),
        uses: &uses,
        step: "work",
        processors: 4,
        words: "",
        incoming: None,
    };
    let mut vm = Vm::start(&machine, &rig.dir, &shape);
    vm.goes_on(STEPS);
    let ended = vm.end();
    for (number, cache) in ["back", "through", "back", "through"].iter().enumerate() {
        let disk = &ended.said("disk")[number];
        let serial = images[number].0;
        for part in [
            &format!("serial={serial} "),
            &format!("cache=write {cache} "),
            "logical=512 ",
            "physical=4096 ",
            "queues=4",
        ] {
            assert!(disk.contains(part), "{part:?} is not in {disk:?}");
        }
        assert!(!disk.contains("discard=0 "), "{disk}");
    }
    rig.done(&["volume", "destage", "--all", "--wait"]);
    daemon.stop();
    let sum = ended.said("sum");
    assert_eq!(sum, [format!("vda {}", sum_of(&images[0].3))]);
    for (kind, (.., image)) in uses.iter().zip(&images).skip(1) {
        is_clean(image, kind);
    }
    let alone = Shape {
        name: "alone".to_owned(),
        disks: images.iter().map(|it| Disk::Image(it.3.clone())).collect(),
        step: "check",
        ..shape
    };
    let alone = Vm::start(&machine, &rig.dir, &alone).wait_off();
    for disk in ["vda", "vdb", "vdc", "vdd"] {
        let (kept, found) = (ended.said("kept"), alone.said("found"));
        is_there(&serials(&kept, disk), &serials(&found, disk));
    }
}
