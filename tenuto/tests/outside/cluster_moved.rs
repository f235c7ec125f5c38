//! Copies on the SSD of a dead host, when the owner is dead as well: `recover --cache` on another
//! host brings what the copy has to the image.
//!
//! Always true: owner and member are killed with flushes under way, and their RAM is lost; the host
//! that recovers keeps nothing of the volume, and is under another boot; a refused copy leaves SSD
//! and image as they are. Deliberately absent: the SSD of the owner, see `cluster_surrogate`.

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use serde_json::Value;
use workload::check::Crash;
use workload::stamp;

use crate::cluster_copies::{Cluster, NO_COPY, ONE_COPY, load, name};
use crate::cluster_surrogate::files;
use crate::common::load::Load;
use crate::common::marks::Marks;
use crate::common::{EXIT_REFUSED, PATIENCE, seed, wait_until};

const TWO_COPIES: &str = "destage-after = \"never\"\nreplicas = 2";
/// A step of going on with a copy, as marks number it.
const STEP: u64 = 9;
/// What a recovery does to devices: it destages, writes and applies a journal, makes checkpoints.
const PHASES: [u64; 4] = [3, 4, 5, 6];
/// Copies that are made before one is caught while it is.
const LEARNERS_MAX: u32 = 20;
/// No recovery has so many steps: the loop would not end.
const STEPS_MAX: u64 = 40;

/// A cluster whose owner, host 0, and whose members are dead, with what the owner had flushed.
struct Dead {
    cluster: Cluster,
    load: Load,
    /// The host whose SSD is moved.
    member: usize,
    /// The host that gets it.
    at: usize,
}

impl Dead {
    fn of(hosts: usize, lines: &str, number: u64) -> Dead {
        let mut load = load(seed(number));
        let mut cluster = Cluster::without_fence(hosts, lines);
        cluster.write(0, &mut load, 200);
        let copies = if lines == TWO_COPIES { 2 } else { 1 };
        let members = cluster.has_copies(0, copies);
        let at = (1..hosts).find(|at| !members.contains(at));
        let dead = [&[0], &members[..]].concat();
        cluster.kill_under_load(0, &mut load, &dead, 200);
        let mut dead = Dead {
            cluster,
            load,
            member: members[0],
            at: at.expect("a host without a copy"),
        };
        dead.forget_ram();
        dead
    }

    /// The SSD of the member is in another machine, where the stage of that is not.
    fn forget_ram(&mut self) {
        self.cluster.hosts[self.member].rig.lose_stage();
        let rig = &self.cluster.hosts[self.at].rig;
        rig.go_to_boot(rig.boot() + 7);
    }

    fn cache(&self) -> PathBuf {
        self.cluster.hosts[self.member].rig.cache_path()
    }

    fn words(&self) -> [String; 4] {
        let cache = self.cache().display().to_string();
        ["recover".into(), "--cache".into(), cache, "--fenced".into()]
    }

    fn recover(&self) -> String {
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.cluster.hosts[self.at].rig.done(&words)
    }

    fn dry(&self) -> Value {
        let cache = self.cache().display().to_string();
        let words = ["recover", "--cache", &cache, "--dry-run"];
        self.cluster.hosts[self.at].rig.json(&words)
    }

    /// Nothing of the disk or of the SSD is changed; what was said.
    fn is_refused(&self) -> String {
        let cache = std::fs::read(self.cache()).expect("its cache");
        let before = files(&self.cluster);
        let words = self.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let rig = &self.cluster.hosts[self.at].rig;
        let said = rig.refused(&words, EXIT_REFUSED);
        assert!(files(&self.cluster) == before, "nothing is written: {said}");
        let same = std::fs::read(self.cache()).expect("its cache") == cache;
        assert!(same, "the SSD is as it was: {said}");
        let dry = self.dry();
        assert_eq!(dry["volumes"], Value::Array(Vec::new()), "{dry}");
        assert_eq!(dry["refused"][0]["name"], "disk", "{dry}");
        assert_eq!(dry["refused"][0]["copy"], true, "{dry}");
        assert!(dry["refused"][0]["dirty_bytes"].is_u64(), "{dry}");
        said
    }

    fn check(&mut self, at: usize, crash: Crash, when: &str) {
        self.cluster.check(at, &mut self.load, crash, when);
    }

    fn stop(mut self) {
        for at in 0..self.cluster.hosts.len() {
            self.cluster.stop_if_runs(at);
        }
    }
}

/// Fails when: what was flushed is lost with the owner and its SSD though the SSD of a member is
/// there, the word of an administrator is not asked for, or clients wait on.
#[test]
fn the_ssd_of_a_dead_member_has_what_the_lost_owner_had_flushed() {
    let mut dead = Dead::of(3, ONE_COPY, 91);
    let owner = &dead.cluster.hosts[0].rig;
    std::fs::remove_file(owner.cache_path()).expect("the SSD of the owner");
    owner.lose_stage();
    let dry = dead.dry();
    let volume = &dry["volumes"][0];
    assert_eq!(volume["name"], "disk", "{dry}");
    assert_eq!(volume["owner"], "host-a", "{dry}");
    assert_eq!(volume["copy_of"], name(dead.member), "{dry}");
    assert_eq!(volume["fenced"][0], "host-a", "{dry}");
    assert!(volume["dirty_bytes"].as_u64() > Some(0), "{dry}");
    let before = files(&dead.cluster);
    let cache = dead.cache().display().to_string();
    let rig = &dead.cluster.hosts[dead.at].rig;
    let said = rig.refused(&["recover", "--cache", &cache], EXIT_REFUSED);
    let words = ["host-a owns disk", "--fenced"];
    assert!(words.iter().all(|it| said.contains(it)), "{said}");
    let other = [
        "recover", "--cache", &cache, "--fenced", "--volume", "other",
    ];
    rig.refused(&other, 1);
    assert!(
        files(&dead.cluster) == before,
        "nothing is written without the word"
    );
    let later = dead.cluster.hosts[dead.at].client_later();
    // It looks for a host that has a copy, and finds none.
    dead.cluster.hosts[dead.at].waits_for("ownership", "taking");
    let told = dead.recover();
    assert!(told.contains("copy of volume disk"), "{told}");
    let client = later.join().expect("no panic").expect("served in the end");
    dead.cluster.leave(dead.at, client);
    dead.check(dead.at, Crash::PowerLoss, "from the copy");
    dead.cluster.write(dead.at, &mut dead.load, 100);
    let again = dead.recover();
    assert!(again.contains("no dirty data"), "{again}");
    dead.cluster.start(dead.member);
    dead.cluster.is_full(dead.at);
    dead.check(dead.at, Crash::Kill, "with the member back");
    dead.stop();
}

/// Fails when: an owner that is back with all it had, and a client at once, serves what it had or
/// writes it to the image, or cannot serve at all.
#[test]
fn an_owner_that_is_back_after_its_copy_was_used_goes_on_with_that() {
    let mut dead = Dead::of(3, ONE_COPY, 92);
    dead.recover();
    dead.cluster.hosts[dead.at].stop();
    // Its stage is there too, with writes that no flush has covered.
    dead.cluster.start(0);
    dead.check(0, Crash::PowerLoss, "where it was lost");
    dead.cluster.write(0, &mut dead.load, 100);
    dead.cluster.start(dead.member);
    dead.cluster.is_full(0);
    dead.check(0, Crash::Kill, "with a copy again");
    dead.stop();
}

/// Fails when: a second copy is asked for that is gone, or a copy that lives is kept for good.
#[test]
fn one_of_two_copies_is_enough_and_the_other_is_let_go_of() {
    let mut dead = Dead::of(4, TWO_COPIES, 93);
    let mut others = 1..4;
    let other = others.find(|at| ![dead.member, dead.at].contains(at));
    let other = other.expect("the host with the other copy");
    dead.cluster.start(other);
    let kept = |dead: &Dead| {
        let status = dead.cluster.hosts[other].rig.json(&["status"]);
        status["copies"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(kept(&dead), 1, "it is back with its copy");
    dead.recover();
    wait_until("the other copy is let go of", PATIENCE, || kept(&dead) == 0);
    dead.check(
        other,
        Crash::PowerLoss,
        "at the host that had the other copy",
    );
    dead.stop();
}

/// Fails when: a copy that the owner has gone on without is written over what is newer.
#[test]
fn a_copy_that_the_owner_went_on_without_is_refused() {
    let mut load = load(seed(94));
    let mut cluster = Cluster::without_fence(3, ONE_COPY);
    cluster.write(0, &mut load, 200);
    let member = cluster.is_full(0);
    let at = 3 - member;
    cluster.kill_under_load(0, &mut load, &[member], 200);
    wait_until("the third host has a copy", PATIENCE, || {
        cluster.copies(0)["state"] == "full" && cluster.is_full(0) == at
    });
    cluster.write(0, &mut load, 100);
    cluster.kill_under_load(0, &mut load, &[0], 200);
    let mut dead = Dead {
        cluster,
        load,
        member,
        at,
    };
    dead.cluster.hosts[member].rig.lose_stage();
    let said = dead.is_refused();
    assert!(said.contains("does not name this copy"), "{said}");
    dead.check(at, Crash::PowerLoss, "at the host that has the copy now");
    dead.stop();
}

/// Fails when: a copy that was being made, and that no flush relied on, counts as one.
#[test]
fn a_copy_that_was_not_complete_yet_is_refused() {
    let mut load = load(seed(95));
    let mut cluster = Cluster::without_fence(3, NO_COPY);
    cluster.write(0, &mut load, 2000);
    let mut caught = None;
    for round in 0..LEARNERS_MAX {
        let set = ["volume", "set", "disk", "replicas=1"];
        cluster.hosts[0].rig.done(&set);
        // The copy is made for some tenths of a second.
        let mut at = 0;
        wait_until("another host has something of it", PATIENCE, || {
            let kept = |at: &usize| {
                let status = cluster.hosts[*at].rig.get("/v1/status");
                let states = ["learner", "member"].map(|it| format!("\"state\":\"{it}\""));
                states.iter().any(|it| status.contains(it))
            };
            at = (1..3).find(kept).unwrap_or(0);
            at > 0
        });
        [0, at].iter().for_each(|at| cluster.hosts[*at].kill());
        cluster.hosts[at].rig.lose_stage();
        let cache = cluster.hosts[at].rig.cache_path().display().to_string();
        let words = ["recover", "--cache", &cache, "--dry-run"];
        let dry = cluster.hosts[3 - at].rig.json(&words);
        if dry["volumes"].as_array().is_some_and(Vec::is_empty) {
            println!("caught in round {round}");
            caught = Some(at);
            break;
        }
        [0, at].iter().for_each(|at| cluster.start(*at));
        cluster.are_up();
        let set = ["volume", "set", "disk", "replicas=0"];
        cluster.hosts[0].rig.done(&set);
        wait_until("it is no copy any more", PATIENCE, || {
            let kept = cluster.hosts[at].rig.json(&["status"])["copies"].clone();
            kept.as_array().is_some_and(Vec::is_empty)
        });
    }
    let member = caught.expect("a copy that is caught while it is made");
    let mut dead = Dead {
        cluster,
        load,
        member,
        at: 3 - member,
    };
    let said = dead.is_refused();
    assert!(said.contains("does not name this copy"), "{said}");
    dead.cluster.hosts[0].rig.lose_stage();
    dead.cluster.start(0);
    dead.check(0, Crash::PowerLoss, "at the owner, which has all of it");
    dead.stop();
}

/// Fails when: a copy with a block that cannot be read is written to the image as far as it goes.
#[test]
fn a_damaged_copy_is_refused_before_anything_is_written() {
    let mut dead = Dead::of(3, ONE_COPY, 96);
    let mut options = std::fs::File::options();
    let cache = options.read(true).write(true).open(dead.cache());
    let cache = cache.expect("its cache");
    let bytes = std::fs::read(dead.cache()).expect("its cache");
    let blocks = bytes.chunks_exact(4096).enumerate();
    let stamped = |block: &[u8]| {
        let mut sectors = block.chunks_exact(512);
        sectors.all(|it| matches!(stamp::read(it), stamp::Reading::Stamped { .. }))
    };
    let found: Vec<u64> = blocks
        .filter(|(_, block)| stamped(block))
        .map(|(at, _)| at as u64 * 4096)
        .collect();
    let place = found[found.len() / 2];
    let good = bytes[place as usize];
    cache.write_all_at(&[good ^ 1], place).expect("a bad block");
    let said = dead.is_refused();
    assert!(said.contains("this copy is damaged"), "{said}");
    cache.write_all_at(&[good], place).expect("the good block");
    dead.recover();
    dead.check(
        dead.at,
        Crash::PowerLoss,
        "from the copy, which is whole again",
    );
    dead.stop();
}

/// Fails when: a word about the owner is believed that its link, or its answer, contradicts.
#[test]
fn a_copy_of_an_owner_that_lives_is_refused() {
    let mut dead = Dead::of(3, ONE_COPY, 97);
    // It does not name the volume for now, and so does nothing about it.
    let config = dead.cluster.hosts[0].rig.config_path();
    let named = std::fs::read_to_string(&config).expect("its configuration");
    let without = named.split("[[volume]]").next().expect("what is before it");
    std::fs::write(&config, without).expect("written");
    dead.cluster.hosts[0].rig.lose_stage();
    dead.cluster.start(0);
    let third = dead.at;
    wait_until("the owner is up", PATIENCE, || {
        let peers = dead.cluster.hosts[third].rig.json(&["peer", "ls"])["peers"].clone();
        let peers = peers.as_array().cloned().unwrap_or_default();
        let up = |it: &Value| it["host"] == "host-a" && it["state"] == "up";
        peers.iter().any(up)
    });
    let said = dead.is_refused();
    assert!(said.contains("host-a lives"), "{said}");
    dead.cluster.hosts[third].stop();
    let said = dead.is_refused();
    assert!(said.contains("host-a answers at"), "{said}");
    dead.cluster.hosts[0].stop();
    std::fs::write(&config, named).expect("written");
    dead.recover();
    dead.cluster.start(third);
    dead.check(third, Crash::PowerLoss, "from the copy");
    dead.stop();
}

/// Fails when: the copy of a host that was frozen for another one is of no use when that is lost
/// too, or the word is asked for about one of both only.
#[test]
fn a_copy_that_a_lost_taker_had_named_is_used_by_a_word_about_both() {
    let mut load = load(seed(98));
    let mut cluster = Cluster::without_fence(4, ONE_COPY);
    cluster.write(0, &mut load, 200);
    let member = cluster.is_full(0);
    let mut others = (1..4).filter(|at| *at != member);
    let (taker, at) = (others.next().expect("one"), others.next().expect("two"));
    cluster.kill_under_load(0, &mut load, &[0], 200);
    cluster.destroy_dead(0);
    cluster.check(taker, &mut load, Crash::PowerLoss, "at the taker");
    cluster.write(taker, &mut load, 100);
    let full = cluster.has_copies(taker, 1);
    assert_eq!(full, [member], "the copy that was frozen is a member again");
    cluster.kill_under_load(taker, &mut load, &[taker, member], 200);
    cluster.destroy_dead(taker);
    let mut dead = Dead {
        cluster,
        load,
        member,
        at,
    };
    dead.forget_ram();
    let cache = dead.cache().display().to_string();
    let rig = &dead.cluster.hosts[at].rig;
    let said = rig.refused(&["recover", "--cache", &cache], EXIT_REFUSED);
    for host in [name(0), name(taker)] {
        assert!(said.contains(&host), "{said}");
    }
    dead.recover();
    dead.check(at, Crash::PowerLoss, "from the copy");
    dead.stop();
}

/// Runs it until the mark kills it; false: it came to its end before.
fn dies(dead: &mut Dead, marks: &Marks, phase: u64, nth: u64) -> bool {
    let shown = marks.path().display().to_string();
    marks.arm(phase, nth);
    let words = dead.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let rig = &mut dead.cluster.hosts[dead.at].rig;
    rig.env("TENUTO_MARKS", &shown);
    let output = rig.tenuto(&words);
    rig.forget_env("TENUTO_MARKS");
    marks.disarm();
    match output.status.signal() {
        Some(_) => true,
        None => {
            let said = crate::common::text_of(&output);
            assert!(output.status.success(), "step {nth} of {phase}: {said}");
            false
        }
    }
}

/// Fails when: a recovery that is killed between its record and the last write to the image cannot
/// be finished by running it again, there or on another host, or brings less than was flushed.
#[test]
fn a_recovery_from_a_copy_that_is_killed_at_any_step_is_finished_by_the_next() {
    let place = tempfile::tempdir().expect("a directory");
    let marks = Marks::new(&place.path().join("marks"));
    let mut kills = 0;
    // Each first death, and then one at each later step of what goes on.
    for first in 1..=4 {
        let mut dead = Dead::of(3, ONE_COPY, 100 + first);
        assert!(dies(&mut dead, &marks, STEP, first), "it has step {first}");
        kills += 1;
        if first % 2 == 0 {
            // The SSD goes to a host that remembers nothing.
            let state = dead.cluster.hosts[dead.at].rig.state_dir();
            for entry in std::fs::read_dir(state).expect("its state").flatten() {
                if entry.file_name().to_string_lossy().starts_with("recover-") {
                    std::fs::remove_dir_all(entry.path()).expect("forgotten");
                }
            }
        }
        let mut steps = 1..STEPS_MAX;
        match first {
            1 => {
                kills += steps
                    .find(|nth| !dies(&mut dead, &marks, STEP, *nth))
                    .expect("an end")
                    - 1
            }
            2 => {
                for phase in PHASES {
                    kills += u64::from(dies(&mut dead, &marks, phase, 1));
                    kills += u64::from(dies(&mut dead, &marks, phase, 3));
                }
            }
            _ => {}
        }
        dead.recover();
        dead.check(dead.at, Crash::PowerLoss, &format!("after death {first}"));
        dead.stop();
    }
    println!("{kills} deaths");
    assert!(kills >= 10, "it died {kills} times");
}
