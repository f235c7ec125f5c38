//! A guest that has nothing but a volume: firmware, boot loader, kernel, initramfs and root file
//! system all come from it, over vhost-user.
//!
//! The daemon is killed while the guest starts, once for each stage that reads in its own way, and
//! again while it works; later the same disk starts a second guest, which checks what the first
//! one left, and in the end a third one without the product.

use crate::common::vm::{Disk, Ended, Shape, Vm};
use crate::common::{Daemon, Rig, boot, count, run};
use crate::vhost_guest::{is_there, serials, vhost};

const WORDS: &str = "tenuto.step=work tenuto.disks=vda1:root";
/// Bytes that were read when the daemon is killed: by the boot loader, which reads kernel and
/// initramfs through the firmware, in the middle of that, and near its end.
const KILLED_AT: [u64; 3] = [64 << 10, 2 << 20, 6 << 20];
const STEPS: u64 = 3;

fn read_so_far(rig: &Rig) -> u64 {
    rig.show("root")["reads"]["bytes"]
        .as_u64()
        .expect("a number")
}

/// Starts the guest; the daemon under it dies on the way, at each of these.
fn start(rig: &Rig, name: &str, mut daemon: Daemon, deaths: &[u64]) -> (Vm, Daemon) {
    let shape = Shape {
        name: name.to_owned(),
        disks: vec![vhost(rig, "root")],
        uses: &[],
        step: "",
        processors: 2,
        words: "",
        incoming: None,
    };
    let mut vm = Vm::start_from_disk(&rig.dir, &shape);
    for (number, after) in deaths.iter().enumerate() {
        // Its counters begin anew with each daemon.
        let before = number.checked_sub(1).map_or(0, |number| deaths[number]);
        vm.wait_for("it reads", |_| read_so_far(rig) >= after - before);
        assert!(vm.said("disk").is_empty(), "its kernel runs already");
        daemon.kill();
        daemon = rig.serve();
    }
    (vm, daemon)
}

fn works(vm: &mut Vm) {
    vm.wait_for("it works", |vm| !vm.said("working").is_empty());
    vm.goes_on(STEPS);
}

fn is_left_there(before: &Ended, after: &Ended) {
    let (kept, found) = (before.said("kept"), after.said("found"));
    is_there(&serials(&kept, "vda1"), &serials(&found, "vda1"));
}

/// Fails when: recovery takes nothing of a large volume from the log.
#[test]
fn a_guest_boots_from_a_volume_while_its_daemon_is_killed() {
    let test = "a_guest_boots_from_a_volume_while_its_daemon_is_killed";
    let mut rig = Rig::new();
    let Some(machine) = boot::machine(test, &rig.dir) else {
        return;
    };
    let image = rig.dir.join("root.img");
    boot::image(&machine, &rig.dir, &image, WORDS);
    rig.guest_volume("root", &image, "write-back", "destage-after = \"1s\"");
    let daemon = rig.serve();
    let (mut vm, mut daemon) = start(&rig, "first", daemon, &KILLED_AT);
    works(&mut vm);
    let disk = vm.said("disk").concat();
    assert!(disk.contains("cache=write back"), "{disk}");
    for _ in 0..count("TENUTO_DRILL_ROUNDS", 10).div_ceil(5) {
        daemon.kill();
        daemon = rig.serve();
        vm.goes_on(STEPS);
    }
    let first = vm.end();
    // The same disk again, by the next daemon.
    daemon.stop();
    let (mut vm, daemon) = start(&rig, "second", rig.serve(), &[]);
    works(&mut vm);
    let second = vm.end();
    is_left_there(&first, &second);
    rig.done(&["volume", "destage", "--all", "--wait"]);
    daemon.stop();
    let partition = rig.dir.join("left.ext4");
    boot::partition_of(&image, &partition);
    run("e2fsck", &["-f", "-n", &partition.to_string_lossy()]);
    let alone = Shape {
        name: "alone".to_owned(),
        disks: vec![Disk::Image(image)],
        uses: &[],
        step: "",
        processors: 2,
        words: "",
        incoming: None,
    };
    let mut alone = Vm::start_from_disk(&rig.dir, &alone);
    works(&mut alone);
    is_left_there(&second, &alone.end());
}

/// Fails when: what a guest writes to a clone is not in its file as QEMU reads it.
#[test]
fn a_guest_boots_under_qemu_alone_from_the_clone_that_it_wrote_while_its_daemon_was_killed() {
    let test =
        "a_guest_boots_under_qemu_alone_from_the_clone_that_it_wrote_while_its_daemon_was_killed";
    let rig = Rig::new();
    let Some(machine) = boot::machine(test, &rig.dir) else {
        return;
    };
    let raw = rig.dir.join("root.img");
    boot::image(&machine, &rig.dir, &raw, WORDS);
    let gold = rig.dir.join("gold.qcow2");
    let [from, to] = [&raw, &gold].map(|path| path.display().to_string());
    let convert = ["convert", "-c", "-f", "raw", "-O", "qcow2", &from, &to];
    run("qemu-img", &convert);
    let daemon = rig.serve();
    let clone = rig.dir.join("root.qcow2");
    let origin = format!("origin={}", clone.display());
    let add = ["volume", "add", "root", "--clone-of", &to, &origin];
    let keys = [
        "policy=write-back",
        "export=vhost-user,nbd",
        "destage-after=1s",
    ];
    rig.done(&[&add[..], &keys].concat());
    let (mut vm, mut daemon) = start(&rig, "first", daemon, &[]);
    works(&mut vm);
    for _ in 0..count("TENUTO_DRILL_ROUNDS", 10).div_ceil(5) {
        daemon.kill();
        daemon = rig.serve();
        vm.goes_on(STEPS);
        rig.done(&["volume", "destage", "root", "--wait"]);
    }
    let first = vm.end();
    rig.done(&["volume", "destage", "root", "--wait"]);
    daemon.stop();
    let clone_name = clone.display().to_string();
    run("qemu-img", &["check", "-f", "qcow2", &clone_name]);
    let alone = Shape {
        name: "alone".to_owned(),
        disks: vec![Disk::Qcow2(clone)],
        uses: &[],
        step: "",
        processors: 2,
        words: "",
        incoming: None,
    };
    let mut alone = Vm::start_from_disk(&rig.dir, &alone);
    works(&mut alone);
    is_left_there(&first, &alone.end());
    let compare = ["compare", "-f", "raw", "-F", "qcow2", &from, &to];
    run("qemu-img", &compare);
}

/// Fails when: a block of a compressed image is another one after a restart of the daemon.
#[test]
fn a_guest_boots_from_a_clone_of_a_compressed_qcow2_image() {
    let test = "a_guest_boots_from_a_clone_of_a_compressed_qcow2_image";
    let mut rig = Rig::new();
    let Some(machine) = boot::machine(test, &rig.dir) else {
        return;
    };
    let raw = rig.dir.join("root.img");
    boot::image(&machine, &rig.dir, &raw, WORDS);
    let gold = rig.dir.join("gold.qcow2");
    let [from, to] = [&raw, &gold].map(|path| path.display().to_string());
    let convert = ["convert", "-c", "-f", "raw", "-O", "qcow2", &from, &to];
    run("qemu-img", &convert);
    rig.qcow2_guest("root", &gold, "ephemeral", "");
    let daemon = rig.serve();
    let (mut vm, daemon) = start(&rig, "first", daemon, &KILLED_AT[..1]);
    works(&mut vm);
    let first = vm.end();
    daemon.kill();
    let (mut vm, daemon) = start(&rig, "second", rig.serve(), &[]);
    works(&mut vm);
    // The overlay has what the first one left, and the image nothing.
    is_left_there(&first, &vm.end());
    daemon.stop();
    let [raw, gold] = [from, to];
    let compare = ["compare", "-f", "raw", "-F", "qcow2", &raw, &gold];
    run("qemu-img", &compare);
}
