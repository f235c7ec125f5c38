//! A guest moves between two QEMUs and back, under load, on one daemon.
//!
//! Its disk stays where it is; what moves is its memory, its rings among it. While that is copied
//! the daemon goes on writing there, and only the log of dirty pages tells. The guest reads into
//! memory that no processor touches, and looks at all of it again after each move.
//!
//! QEMU's emulation loses pages while it copies them, with its own disks too: until version 9.0 it
//! took over the log of what the processor wrote without telling the processor's table of pages,
//! so what is written to a page of that table, until it is emptied, may stay behind. Hence one
//! processor, and a kernel that empties the table at every call (`pti=on`). What is still lost
//! shows in memory that the processor writes: the kernel dies, or its clock stops, or the C
//! library finds its heap broken, or the program mistakes what it has just written or read in a
//! buffer that its processor fills as well. Such a guest tells nothing, and another one is tried;
//! one that finds wrong bytes where nothing but a disk writes tells all, and so does one that
//! still talks, which it does five times a second, and waits for its disks.

use serde_json::json;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::Duration;

use crate::common::guest::Machine;
use crate::common::vm::{Disk, PATIENCE, Screen, Shape, Vm};
use crate::common::{Rig, count, wait_until};
use crate::vhost_guest::{blocks_image, ext4_image, is_clean, sum_of, vhost};

/// With them the processor's table of pages never lives for longer than a call of the kernel.
pub const WORDS: &str = "pti=on";
/// What the C library says of a heap that is broken: only a processor writes there.
const HEAP: [&str; 4] = [
    "free(): ",
    "malloc(): ",
    "realloc(): ",
    "corrupted size vs. ",
];
/// How often everything that was read is looked at after a move. One round may have begun before.
pub const PASSES: u64 = 2;
/// Guests that may die of what QEMU loses.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE_MS_MAX: u64 = 2000;
/// A guest that runs and says nothing for so long has no clock any more.
const SILENCE: Duration = Duration::from_secs(60);
/// Slow enough that much is read while memory is copied.
const BYTES_PER_SECOND: u64 = 48 << 20;

/// What is known of a guest when something goes wrong.
#[derive(Default)]
pub struct Witness {
    screens: RefCell<Vec<Screen>>,
    /// QEMU lets it run.
    runs: Cell<bool>,
}

impl Witness {
    pub fn sees(&self, vm: &Vm) {
        self.screens.borrow_mut().push(vm.screen());
    }

    /// Whether the guest died of itself, and its program had seen nothing wrong before.
    fn only_the_kernel_died(&self) -> bool {
        let screens = self.screens.borrow();
        let says = |what: &str| {
            let mut all = screens.iter();
            all.any(|screen| screen.lock().unwrap().text.contains(what))
        };
        let library = says("tag: 1000");
        let broken = HEAP.iter().any(|it| says(it));
        let confused = says("guest: error: Stamped") || broken;
        let heard = screens.iter().map(|it| it.lock().unwrap().heard).max();
        let stands = self.runs.get() && heard.is_some_and(|heard| heard.elapsed() > SILENCE);
        let died = ["BUG: ", "Oops: ", "Kernel panic"]
            .iter()
            .any(|it| says(it));
        let wrong = says("guest: error: ") && !confused;
        (died || stands || confused) && !wrong && !library && !says("I/O error")
    }
}

/// Moves the guest to a QEMU of its own, and ends the one it was in.
pub fn move_on(vm: &mut Vm, machine: &Machine, dir: &Path, shape: &Shape, witness: &Witness) -> Vm {
    let place = shape.incoming.clone().expect("a place to wait at");
    let mut next = Vm::start(machine, dir, shape);
    witness.sees(&next);
    witness.runs.set(false);
    // It listens once it is there.
    let mut there = next.monitor();
    let mut here = vm.monitor();
    let limits = json!({ "max-bandwidth": BYTES_PER_SECOND, "downtime-limit": PAUSE_MS_MAX });
    here.run("migrate-set-parameters", limits);
    here.run(
        "migrate",
        json!({ "uri": format!("unix:{}", place.display()) }),
    );
    wait_until("the guest has moved", PATIENCE, || {
        assert_eq!(vm.complaint(), None);
        let state = here.run("query-migrate", json!({}));
        assert_ne!(state["status"], "failed", "{state}");
        state["status"] == "completed"
    });
    wait_until("the guest goes on", PATIENCE, || {
        there.run("query-status", json!({}))["status"] == "running"
    });
    witness.runs.set(true);
    next.wait_for("the guest speaks", |vm| !vm.said("least").is_empty());
    next
}

/// Fails when: pages that the daemon writes are not noted.
#[test]
fn a_guest_moves_under_load_and_finds_its_memory_and_its_disks_as_they_were() {
    attempts(a_guest_moves);
}

/// Tries a drill once more where the guest died of what QEMU lost.
pub fn attempts(drill: impl Fn(&Witness)) {
    for attempt in 1..=ATTEMPTS_MAX {
        let witness = Witness::default();
        let moves = AssertUnwindSafe(|| drill(&witness));
        let Err(why) = catch_unwind(moves) else {
            return;
        };
        if attempt == ATTEMPTS_MAX || !witness.only_the_kernel_died() {
            resume_unwind(why);
        }
        eprintln!("the guest died in attempt {attempt}, of what QEMU lost; once more");
    }
}

fn a_guest_moves(witness: &Witness) {
    let test = "a_guest_moves_under_load_and_finds_its_memory_and_its_disks_as_they_were";
    let mut rig = Rig::new();
    let Some(machine) = Machine::with_program(test, &rig.dir) else {
        return;
    };
    let images = [
        blocks_image(&rig, "blocks.img"),
        ext4_image(&rig, "ext4.img"),
    ];
    rig.guest_volume("blocks", &images[0], "write-back", "");
    rig.guest_volume("ext4", &images[1], "write-back", "");
    let daemon = rig.serve();
    let shape = |round: u64| Shape {
        name: format!("guest-{round}"),
        disks: vec![vhost(&rig, "blocks"), vhost(&rig, "ext4")] as Vec<Disk>,
        uses: &["blocks", "ext4"],
        step: "work",
        processors: 1,
        words: WORDS,
        incoming: (round > 0).then(|| rig.dir.join(format!("move-{round}"))),
    };
    let mut vm = Vm::start(&machine, &rig.dir, &shape(0));
    witness.sees(&vm);
    vm.wait_for("it has read everything", |vm| vm.number("passes") >= PASSES);
    for round in 1..=count("TENUTO_DRILL_ROUNDS", 6) {
        let next = move_on(&mut vm, &machine, &rig.dir, &shape(round), witness);
        std::mem::replace(&mut vm, next).kill();
        let goal = vm.number("passes") + PASSES;
        vm.wait_for("it has looked at everything", |vm| {
            vm.number("passes") >= goal
        });
        vm.goes_on(1);
    }
    let ended = vm.end();
    rig.done(&["volume", "destage", "--all", "--wait"]);
    daemon.stop();
    assert_eq!(ended.said("sum"), [format!("vda {}", sum_of(&images[0]))]);
    is_clean(&images[1], "ext4");
}
