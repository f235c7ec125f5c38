//! A real Linux guest that starts from a volume, in each policy.
//!
//! The root file system is on the volume; kernel and initramfs come from outside, because that is
//! what the volume cannot prove. The guest writes files, syncs, powers off, starts again and
//! finds every checksum right; then the image is compared with the live export.

use std::process::Command;
use std::time::Duration;

use crate::common::guest::Machine;
use crate::common::{Rig, run, text_of, wait_until};

const IMAGE_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(300);
/// Files that the guest's script leaves.
const FILES: &str = "same 19";

/// A rig with one volume on a fresh root image, and the machine to boot it.
fn prepare(test: &str, policy: &str, lines: &str) -> Option<(Rig, Machine)> {
    let mut rig = Rig::new();
    let machine = Machine::new(test, &rig.dir)?;
    let image = rig.dir.join("root.img");
    machine.root_image(&rig.dir, &image, IMAGE_BYTES);
    rig.volume("root", &image, policy, lines);
    Some((rig, machine))
}

fn says(said: &[String], line: &str) {
    assert!(
        said.iter().any(|it| it == line),
        "the guest did not say {line:?}: {said:?}"
    );
}

/// The image and the live export hold the same bytes.
fn image_is_current(rig: &Rig) {
    let image = rig.dir.join("root.img");
    // The image is locked against writers only; reading it needs `--force-share`.
    let output = Command::new("qemu-img")
        .args(["compare", "-U", "-f", "raw", "-F", "raw"])
        .arg(image)
        .arg(rig.uri("root"))
        .output()
        .expect("run qemu-img");
    assert!(
        output.status.success(),
        "qemu-img compare: {}",
        text_of(&output)
    );
}

/// Fails when: some of the writes to the image are left out.
#[test]
fn a_guest_boots_from_a_write_back_volume_and_finds_its_files_again() {
    let test = "a_guest_boots_from_a_write_back_volume_and_finds_its_files_again";
    let Some((rig, machine)) = prepare(test, "write-back", "") else {
        return;
    };
    let daemon = rig.serve();
    let said = machine.run(&rig.uri("root"), "write");
    says(&said, "write-cache write back");
    says(&said, "written");
    assert!(
        rig.show("root")["dirty_bytes"].as_u64() > Some(0),
        "nothing is at the origin yet"
    );
    // Half of the way with the daemon killed in between, as a guest may meet it.
    daemon.kill();
    let daemon = rig.serve();
    says(&machine.run(&rig.uri("root"), "check"), FILES);
    rig.done(&["volume", "destage", "root", "--wait"]);
    let shown = rig.show("root");
    assert_eq!(shown["dirty_bytes"], 0);
    assert_eq!(shown["state"], "clean");
    image_is_current(&rig);
    daemon.stop();
    // The image alone starts the guest, without the product.
    let image = rig.dir.join("root.img");
    says(&machine.run(&image.to_string_lossy(), "check"), FILES);
}

#[test]
fn a_guest_boots_from_an_uncached_volume_and_finds_its_files_again() {
    let test = "a_guest_boots_from_an_uncached_volume_and_finds_its_files_again";
    let Some((rig, machine)) = prepare(test, "uncached", "") else {
        return;
    };
    let daemon = rig.serve();
    says(&machine.run(&rig.uri("root"), "write"), "written");
    says(&machine.run(&rig.uri("root"), "check"), FILES);
    rig.done(&["volume", "destage", "root", "--wait"]);
    image_is_current(&rig);
    daemon.stop();
}

/// Fails when: writes past the log are answered and not written.
#[test]
fn a_guest_on_a_write_through_volume_sees_write_through_and_finds_its_files_again() {
    let test = "a_guest_on_a_write_through_volume_sees_write_through_and_finds_its_files_again";
    let Some((rig, machine)) = prepare(test, "write-through", "") else {
        return;
    };
    let daemon = rig.serve();
    // The disk as the product itself gives it to QEMU.
    let arguments = rig.done(&["volume", "show", "root", "--qemu"]);
    let disk: Vec<&str> = arguments.split_whitespace().collect();
    let said = machine.run_with(&disk, "write");
    says(&said, "write-cache write through");
    says(&said, "written");
    let shown = rig.show("root");
    assert_eq!(shown["effective_policy"], "write-through");
    assert_eq!(shown["dirty_bytes"], 0, "the log holds nothing of it");
    image_is_current(&rig);
    daemon.kill();
    let daemon = rig.serve();
    let said = machine.run_with(&disk, "check");
    says(&said, FILES);
    let reads = &rig.show("root")["reads"];
    assert!(
        reads["ram_hits"].as_u64() > Some(0),
        "reads come from the read tier: {reads}"
    );
    daemon.stop();
    let image = rig.dir.join("root.img");
    says(&machine.run(&image.to_string_lossy(), "check"), FILES);
}

/// Fails when: a reset begins a new generation and keeps the overlay.
#[test]
fn guests_on_ephemeral_volumes_of_one_image_do_not_see_each_other() {
    let test = "guests_on_ephemeral_volumes_of_one_image_do_not_see_each_other";
    let Some((mut rig, machine)) = prepare(test, "ephemeral", "") else {
        return;
    };
    let image = rig.dir.join("root.img");
    rig.volume("other", &image, "ephemeral", "");
    let before = run("sha256sum", &[&image.to_string_lossy()]);
    let daemon = rig.serve();
    says(&machine.run(&rig.uri("root"), "write"), "written");
    says(&machine.run(&rig.uri("other"), "clean"), "nothing-there");
    // A killed daemon takes nothing from an overlay, though nothing of it was ever flushed.
    daemon.kill();
    let daemon = rig.serve();
    says(&machine.run(&rig.uri("root"), "check"), FILES);
    rig.gone_clients("root");
    rig.done(&["volume", "reset", "root"]);
    says(&machine.run(&rig.uri("root"), "clean"), "nothing-there");
    daemon.stop();
    assert_eq!(
        run("sha256sum", &[&image.to_string_lossy()]),
        before,
        "the image is untouched"
    );
}

#[test]
fn a_guest_with_the_write_cache_off_sees_write_through() {
    let test = "a_guest_with_the_write_cache_off_sees_write_through";
    let Some((rig, machine)) = prepare(test, "write-back", "write-cache = \"off\"") else {
        return;
    };
    let daemon = rig.serve();
    let said = machine.run(&rig.uri("root"), "write");
    says(&said, "written");
    let shown = rig.show("root");
    // Without a flush of its own: every acknowledged write is in the log.
    assert_eq!(shown["acked_serial"], shown["durable_serial"]);
    daemon.stop();
}

/// Fails when: the overlay is not reset when the guest starts again.
#[test]
fn a_guest_that_reboots_finds_a_clean_disk() {
    let test = "a_guest_that_reboots_finds_a_clean_disk";
    let lines = |rig: &Rig| {
        let socket = rig.dir.join("qmp.sock");
        format!("reset-on = \"guest-reset\"\nqmp = \"{}\"", socket.display())
    };
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let image = rig.dir.join("root.img");
    machine.root_image(&rig.dir, &image, IMAGE_BYTES);
    let lines = lines(&rig);
    rig.volume("root", &image, "ephemeral", &lines);
    let memo = rig.image("memo.img", 1 << 20);
    let daemon = rig.serve();
    let monitor = format!(
        "unix:{},server=on,wait=off",
        rig.dir.join("qmp.sock").display()
    );
    let root = format!("if=none,id=disk,format=raw,file={}", rig.uri("root"));
    let memo = format!("if=none,id=memo,format=raw,file={}", memo.display());
    let disks = ["-drive", &root, "-device", "virtio-blk-pci,drive=disk"];
    let disks = [&disks[..], &["-drive", &memo]].concat();
    let disks = [&disks[..], &["-device", "virtio-blk-pci,drive=memo"]].concat();
    let said = machine.run_machine(&["-qmp", &monitor], &disks, "again");
    says(&said, "written");
    says(&said, "nothing-there");
    let overlay = &rig.show("root")["overlay"];
    assert_eq!(overlay["qmp"]["resets"], 1, "{overlay}");
    // Switched off by itself, it has ended: the next one starts from a clean disk as well.
    let said = machine.run_machine(&["-qmp", &monitor, "-no-reboot"], &disks[..4], "write");
    says(&said, "written");
    wait_until("its end was seen", PATIENCE, || {
        rig.show("root")["overlay"]["ended"] == true
    });
    says(&machine.run(&rig.uri("root"), "clean"), "nothing-there");
    daemon.stop();
}
