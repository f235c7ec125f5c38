//! Several guests at once over vhost-user, of whom one starts again and one is killed.
//!
//! Each has disks of its own. One is reset by its monitor in the middle of its work, another's QEMU
//! is killed and started again at once, the third must not notice. What the first two had flushed
//! is what they find.

use serde_json::json;

use crate::common::Rig;
use crate::common::guest::Machine;
use crate::common::vm::{Shape, Vm};
use crate::vhost_guest::{blocks_image, ext4_image, is_clean, is_there, serials, sum_of, vhost};

const STEPS: u64 = 4;
const USES: [&str; 2] = ["blocks", "ext4"];
const GUESTS: [&str; 3] = ["reset", "killed", "quiet"];

fn disks(guest: &str) -> [String; 2] {
    USES.map(|kind| format!("{guest}-{kind}"))
}

/// Waits until a guest that came back works, and compares what it found with what it had flushed.
fn comes_back(vm: &mut Vm, lives: usize, kept: &[String]) {
    vm.wait_for("it works again", |vm| vm.said("working").len() == lives);
    let found = vm.said("found");
    for disk in ["vda", "vdb"] {
        let kept = serials(kept, disk);
        assert!(kept.iter().sum::<u64>() > 0, "nothing was flushed");
        is_there(&kept, &serials(&found, disk));
    }
    vm.goes_on(STEPS);
}

/// Fails when: some of the writes to the image are left out.
#[test]
fn a_guest_that_is_reset_or_killed_finds_its_disks_and_its_neighbours_notice_nothing() {
    let test = "a_guest_that_is_reset_or_killed_finds_its_disks_and_its_neighbours_notice_nothing";
    let mut rig = Rig::new();
    let Some(machine) = Machine::with_program(test, &rig.dir) else {
        return;
    };
    let images = GUESTS.map(|guest| {
        let [blocks, ext4] = disks(guest);
        let blocks = (blocks_image(&rig, &format!("{blocks}.img")), blocks);
        let ext4 = (ext4_image(&rig, &format!("{ext4}.img")), ext4);
        for (image, name) in [&blocks, &ext4] {
            rig.guest_volume(name, image, "write-back", "destage-after = \"1s\"");
        }
        [blocks.0, ext4.0]
    });
    let daemon = rig.serve();
    let shape = |guest: &str| Shape {
        name: guest.to_owned(),
        disks: disks(guest).map(|disk| vhost(&rig, &disk)).into(),
        uses: &USES,
        step: "work",
        processors: 2,
        words: "",
        incoming: None,
    };
    let start = |guest| Vm::start(&machine, &rig.dir, &shape(guest));
    let mut guests = GUESTS.map(start);
    guests.iter_mut().for_each(|vm| vm.goes_on(STEPS));
    let [mut reset, killed, mut quiet] = guests;

    let kept = reset.said("kept");
    reset.monitor().run("system_reset", json!({}));
    let before = killed.kill().said("kept");
    let mut killed = start("killed");
    quiet.goes_on(STEPS);
    comes_back(&mut reset, 2, &kept);
    comes_back(&mut killed, 1, &before);
    quiet.goes_on(STEPS);

    let ended = [reset, killed, quiet].map(Vm::end);
    rig.done(&["volume", "destage", "--all", "--wait"]);
    daemon.stop();
    for (ended, [blocks, ext4]) in ended.iter().zip(&images) {
        assert_eq!(ended.said("sum"), [format!("vda {}", sum_of(blocks))]);
        is_clean(ext4, "ext4");
    }
}
