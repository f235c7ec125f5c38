//! A guest of QEMU moves between two hosts and back, under load.
//!
//! Its memory goes from QEMU to QEMU, and its disks from daemon to daemon: one of them with a copy
//! on the other host all the time, and one that gets a copy there for the move. What QEMU itself
//! may lose is told apart as in `vhost_migration`.

use std::path::Path;

use crate::cluster_copies::{Cluster, NO_COPY, ONE_COPY, name};
use crate::common::guest::Machine;
use crate::common::vm::{Shape, Vm};
use crate::common::{PATIENCE, Rig, count, wait_until};
use crate::vhost_guest::{blocks_image, ext4_image, is_clean, sum_of, vhost};
use crate::vhost_migration::{PASSES, WORDS, Witness, attempts, move_on};

const DISKS: [&str; 2] = ["blocks", "ext4"];

/// Fails when: a guest that has moved to another host finds its disks other than it left them, or
/// cannot move on.
#[test]
fn a_guest_moves_between_hosts_under_load_and_finds_its_disks_as_they_were() {
    attempts(a_guest_moves);
}

fn a_guest_moves(witness: &Witness) {
    let test = "a_guest_moves_between_hosts_under_load_and_finds_its_disks_as_they_were";
    let place = Rig::new();
    let Some(machine) = Machine::with_program(test, &place.dir) else {
        return;
    };
    let images = [
        blocks_image(&place, "blocks.img"),
        ext4_image(&place, "ext4.img"),
    ];
    let cluster = Cluster::with(2, NO_COPY, |_, host| {
        host.rig.forget_volumes();
        host.rig
            .guest_volume(DISKS[0], &images[0], "write-back", ONE_COPY);
        host.rig
            .guest_volume(DISKS[1], &images[1], "write-back", NO_COPY);
    });
    let host = |round: u64| &cluster.hosts[(round % 2) as usize].rig;
    let shape = |round: u64| Shape {
        name: format!("guest-{round}"),
        disks: DISKS.iter().map(|name| vhost(host(round), name)).collect(),
        uses: &DISKS,
        step: "work",
        processors: 1,
        words: WORDS,
        incoming: (round > 0).then(|| place.dir.join(format!("move-{round}"))),
    };
    let mut vm = Vm::start(&machine, &place.dir, &shape(0));
    witness.sees(&vm);
    vm.wait_for("it has read everything", |vm| vm.number("passes") >= PASSES);
    for round in 1..=count("TENUTO_DRILL_ROUNDS", 2) {
        let next = move_on(&mut vm, &machine, &place.dir, &shape(round), witness);
        std::mem::replace(&mut vm, next).kill();
        for disk in DISKS {
            let shown = host(round).show(disk);
            assert_eq!(shown["owner"], name((round % 2) as usize), "{shown}");
        }
        let goal = vm.number("passes") + PASSES;
        vm.wait_for("it has looked at everything", |vm| {
            vm.number("passes") >= goal
        });
        vm.goes_on(1);
    }
    let ended = vm.end();
    is_at_home(&cluster, &images[0]);
    assert_eq!(ended.said("sum"), [format!("vda {}", sum_of(&images[0]))]);
    is_clean(&images[1], "ext4");
    cluster.stop();
}

/// Brings everything to the images, at whichever host has it.
fn is_at_home(cluster: &Cluster, image: &Path) {
    assert!(image.exists());
    for disk in DISKS {
        let mut hosts = cluster.hosts.iter();
        let owner = hosts.find(|host| host.rig.show(disk)["ownership"] != "away");
        let owner = owner.expect("one has it");
        wait_until("its guest is gone", PATIENCE, || {
            let shown = owner.rig.show(disk);
            shown["clients"] == 0 && shown["ownership"] == "owner"
        });
        owner.rig.done(&["volume", "destage", disk, "--wait"]);
    }
}
