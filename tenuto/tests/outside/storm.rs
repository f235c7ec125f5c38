//! Real guests that boot, work and shut down together on overlays of one image: what of it reaches
//! the image.
//!
//! A bare guest on an uncached volume is the measure: its requests at the origin in each second.
//! Then the cache is warmed by one guest, the daemon started anew, and several guests run at once
//! on ephemeral volumes of one image. `TENUTO_GUESTS` says how many (2). Where the machine was too
//! slow to bring all that the first one read to the SSD, they have done so themselves, and as many
//! on new volumes have another turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::guest::Machine;
use crate::common::{Rig, run};
use crate::lines::settled;

const IMAGE_BYTES: u64 = 64 << 20;
const GUESTS: usize = 2;
/// Each with new volumes.
const TURNS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);
/// Of what as many bare guests would ask for, in the busiest second and on the whole.
const READS_MAX_SHARE: f64 = 0.0055;
const READS_MEAN_SHARE: f64 = 0.0016;

/// Requests at the origin of some volumes, in all.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    reads: u64,
    writes: u64,
}

/// What was asked for while guests ran.
#[derive(Debug)]
struct Seen {
    max: Requests,
    all: Requests,
    seconds: f64,
}

fn guests() -> usize {
    let asked = std::env::var("TENUTO_GUESTS").ok();
    asked.map_or(GUESTS, |count| count.parse().expect("a number"))
}

fn requests(rig: &Rig, names: &[String]) -> Requests {
    let mut sum = Requests::default();
    for name in names {
        let origin = &rig.show(name)["origin"];
        sum.reads += origin["reads"].as_u64().unwrap();
        sum.writes += origin["writes"].as_u64().unwrap();
    }
    sum
}

/// Runs one guest on each volume at once, and counts second by second.
fn watch(rig: &Rig, machine: &Machine, names: &[String]) -> Seen {
    let over = AtomicBool::new(false);
    let begin = Instant::now();
    let first = requests(rig, names);
    let mut max = Requests::default();
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let (mut last, mut at) = (first, Instant::now());
            let mut max = Requests::default();
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(SECOND.saturating_sub(at.elapsed()));
                if at.elapsed() < SECOND {
                    continue;
                }
                at += SECOND;
                let now = requests(rig, names);
                max.reads = max.reads.max(now.reads - last.reads);
                max.writes = max.writes.max(now.writes - last.writes);
                last = now;
            }
            max
        });
        let guests: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(|| machine.run(&rig.uri(name), "write")))
            .collect();
        for guest in guests {
            let said = guest.join().expect("a guest's thread ends");
            assert!(said.iter().any(|line| line == "written"), "{said:?}");
        }
        over.store(true, Ordering::Relaxed);
        counting.thread().unpark();
        max = counting.join().expect("the counting thread ends");
    });
    let last = requests(rig, names);
    Seen {
        max,
        all: Requests {
            reads: last.reads - first.reads,
            writes: last.writes - first.writes,
        },
        seconds: begin.elapsed().as_secs_f64(),
    }
}

/// Whether so many guests have asked for as little as they may, of what as many bare ones would.
fn leaves_alone(many: &Seen, bare: &Seen, count: f64) -> bool {
    let share = |mine: f64, theirs: f64| mine / (theirs * count);
    let reads_max = share(many.max.reads as f64, bare.max.reads as f64);
    let per_second = |seen: &Seen| seen.all.reads as f64 / seen.seconds;
    let reads_mean = share(per_second(many), per_second(bare));
    println!("bare: {bare:?}");
    println!("{count} on overlays: {many:?}");
    println!(
        "of {count} bare guests: reads {:.2} % max, {:.2} % mean",
        reads_max * 100.0,
        reads_mean * 100.0
    );
    reads_max <= READS_MAX_SHARE && reads_mean <= READS_MEAN_SHARE
}

/// Fails when: each volume has an image of its own for the cache.
#[test]
fn guests_that_boot_work_and_stop_on_overlays_of_one_image_leave_the_image_alone() {
    let test = "guests_that_boot_work_and_stop_on_overlays_of_one_image_leave_the_image_alone";
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let count = guests();
    let (image, copy) = (rig.dir.join("gold.img"), rig.dir.join("bare.img"));
    machine.root_image(&rig.dir, &image, IMAGE_BYTES);
    std::fs::copy(&image, &copy).expect("copy the image");
    let before = run("sha256sum", &[&image.to_string_lossy()]);
    settled(&image);
    rig.volume("bare", &copy, "uncached", "");
    let names = |turn: usize| -> Vec<String> {
        let numbers = 0..count;
        numbers.map(|n| format!("desk-{turn}-{n}")).collect()
    };
    for name in (0..TURNS).flat_map(names) {
        rig.volume(&name, &image, "ephemeral", "");
    }
    rig.volume("first", &image, "ephemeral", "");
    let daemon = rig.serve();
    let bare = watch(&rig, &machine, &["bare".to_owned()]);
    assert!(bare.all.reads > 0 && bare.all.writes > 0, "{bare:?}");
    watch(&rig, &machine, &["first".to_owned()]);
    // What the first one read is on the SSD now; nothing is in RAM.
    daemon.stop();
    let left_alone = (0..TURNS).any(|turn| {
        let daemon = rig.serve();
        let many = watch(&rig, &machine, &names(turn));
        assert_eq!(many.all.writes, 0, "no write reaches the image");
        for name in names(turn) {
            let reads = &rig.show(&name)["reads"];
            let hits = ["ssd_hits", "ram_hits"].map(|key| reads[key].as_u64().expect("a count"));
            let hits: u64 = hits.iter().sum();
            assert!(hits > 0, "{name} was served by the cache");
        }
        daemon.stop();
        leaves_alone(&many, &bare, count as f64)
    });
    assert!(left_alone, "in none of {TURNS} turns");
    assert_eq!(
        run("sha256sum", &[&image.to_string_lossy()]),
        before,
        "the image is untouched"
    );
}

/// Fails when: each volume has an image of its own for the cache.
#[test]
fn a_second_guest_on_a_gold_image_reads_nothing_from_the_origin() {
    let test = "a_second_guest_on_a_gold_image_reads_nothing_from_the_origin";
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let image = rig.dir.join("gold.img");
    machine.root_image(&rig.dir, &image, IMAGE_BYTES);
    for name in ["one", "two"] {
        rig.volume(name, &image, "ephemeral", "");
    }
    let daemon = rig.serve();
    machine.run(&rig.uri("one"), "clean");
    let first = rig.show("one")["origin"]["reads"].as_u64().unwrap();
    assert!(first > 0, "the guests read all of it");
    machine.run(&rig.uri("two"), "clean");
    let shown = rig.show("two");
    assert!(shown["reads"]["requests"].as_u64().unwrap() > 0);
    assert_eq!(shown["origin"]["reads"], 0, "{shown}");
    daemon.stop();
}
