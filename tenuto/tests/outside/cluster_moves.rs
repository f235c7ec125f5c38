//! Guests that move between two hosts while they run, by front ends of our own: what a guest wrote
//! and was answered is there when either host dies, and nothing goes to the image for it.
//!
//! Always true: the volume is `destage-after = "never"`, so that what is in the image was brought
//! there for a move; a front end is connected on both hosts at a time, as QEMU's are, and its rings
//! run on one. `TENUTO_MOVE_MIB` (0) is written besides before each move. Deliberately absent: QEMU
//! itself, see `vhost_hosts`.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use crate::cluster_copies::{BYTES, Cluster, NO_COPY, ONE_COPY, name};
use crate::cluster_units::Host;
use crate::common::front_end::{Asleep, FrontEnd, Polite};
use crate::common::{PATIENCE, count, have, wait_until};

const BLOCK: usize = 4096;
/// Of the configuration of the device: its sectors, and whether its cache is write back.
const CAPACITY: u32 = 0;
const WCE: u32 = 32;
/// A ring that is stopped and started again with the same memory.
const PLACES: u64 = 64;

fn socket(cluster: &Cluster, at: usize) -> PathBuf {
    cluster.hosts[at].rig.run_dir().join("disk.vhost.sock")
}

fn guest(cluster: &Cluster, at: usize) -> Polite {
    Polite::connect(&socket(cluster, at)).expect("it is served")
}

/// A front end on a host that does not serve the volume is shown it.
fn comes(cluster: &Cluster, at: usize) -> FrontEnd {
    let front = FrontEnd::connect(&socket(cluster, at)).expect("it is shown");
    let sectors = front.config(CAPACITY, 8).expect("a configuration");
    assert_eq!(sectors, (BYTES / 512).to_le_bytes());
    wait_until("it asks for nothing more", PATIENCE, || {
        let shown = cluster.hosts[at].show();
        let reason = shown["ownership_reason"].as_str().unwrap_or_default();
        shown["ownership"] == "away" && reason.ends_with("; a guest that runs there may move here")
    });
    front
}

/// Waits until another host has a copy, by a record that the vault has.
fn has_copy(cluster: &Cluster, at: usize, other: usize) {
    wait_until("the other host has a copy", PATIENCE, || {
        let copies = cluster.copies(at);
        let members = copies["members"].as_array().cloned().unwrap_or_default();
        let mut there = members.iter().filter(|it| it["host"] == name(other));
        // A member of a record that is being made is shown, and is not real yet.
        let real = copies["real"].as_u64().map(|it| it as usize + 1);
        real == Some(members.len()) && there.any(|it| it["state"] == "streaming")
    });
}

fn owns(cluster: &Cluster, at: usize) {
    wait_until("it has the volume", PATIENCE, || {
        let shown = cluster.hosts[at].show();
        shown["owner"] == name(at) && shown["ownership"] != "away"
    });
}

/// Moves the guest; also what is left of its front end, which its daemon has closed.
fn moves(cluster: &Cluster, guest: Polite, from: usize, to: usize) -> (Polite, FrontEnd) {
    let next = comes(cluster, to);
    has_copy(cluster, from, to);
    let dirty = cluster.hosts[from].show()["dirty_bytes"].clone();
    let (left, asleep) = guest.depart();
    let begun = Instant::now();
    let mut guest = asleep.arrive(next).expect("its ring starts");
    guest.read(0, BLOCK);
    println!("{dirty} dirty bytes: {} ms", begun.elapsed().as_millis());
    owns(cluster, to);
    (guest, left)
}

fn image_is_untouched(cluster: &Cluster) -> bool {
    let image = std::fs::File::open(cluster.shared.path("disk.img")).expect("an image");
    let mut bytes = vec![0; (PLACES as usize) * BLOCK];
    image.read_exact_at(&mut bytes, 0).expect("it is read");
    bytes.iter().all(|byte| *byte == 0)
}

/// Fails when: a guest finds something else where it has moved to, the image is written for a move,
/// or the guest is served without the cache that it believes in.
#[test]
fn a_guest_moves_there_and_back_with_all_that_it_wrote() {
    for lines in [NO_COPY, ONE_COPY] {
        let cluster = Cluster::for_guests(2, lines);
        let mut guest = guest(&cluster, 0);
        // Of QEMUs that the guest has left, and that are not ended.
        let mut idle = Vec::new();
        let mut expected = vec![0; PLACES as usize];
        for round in 1..=4u8 {
            let (from, to) = (usize::from(round + 1) % 2, usize::from(round) % 2);
            for place in 0..PLACES / 4 {
                let at = (place * 4 + u64::from(round) % 4) % PLACES;
                guest.write(at * BLOCK as u64, &[round; BLOCK]);
                expected[at as usize] = round;
            }
            for more in 0..2 * count("TENUTO_MOVE_MIB", 0) {
                guest.write((1 << 20) + (more << 19), &[round; 1 << 19]);
            }
            if round % 2 == 0 {
                guest.flush();
            }
            let (moved, left) = moves(&cluster, guest, from, to);
            guest = moved;
            drop(left);
            idle.push(comes(&cluster, from));
            for (at, byte) in expected.iter().enumerate() {
                assert_eq!(
                    guest.read((at * BLOCK) as u64, BLOCK),
                    vec![*byte; BLOCK],
                    "round {round}, place {at}"
                );
            }
            assert_eq!(guest.config(WCE, 1), [1], "round {round}");
            assert_eq!(cluster.hosts[from].show()["ownership"], "away");
        }
        assert!(image_is_untouched(&cluster), "{lines}");
        drop(idle);
        guest.leave();
        let rig = &cluster.hosts[0].rig;
        rig.gone_clients("disk");
        wait_until("it may write the image", PATIENCE, || {
            cluster.hosts[0].show()["ownership"] == "owner"
        });
        rig.done(&["volume", "destage", "disk", "--wait"]);
        let image = std::fs::read(cluster.shared.path("disk.img")).expect("an image");
        for (at, byte) in expected.iter().enumerate() {
            assert_eq!(image[at * BLOCK], *byte, "place {at}");
        }
        cluster.stop();
    }
}

/// Fails when: a ring is said to have stopped before what it wrote is at the host with the copy.
#[test]
fn what_a_guest_was_answered_is_there_when_its_old_host_dies() {
    let mut cluster = Cluster::for_guests(2, NO_COPY);
    let mut guest = guest(&cluster, 0);
    guest.write(0, &[1; BLOCK]);
    let next = comes(&cluster, 1);
    has_copy(&cluster, 0, 1);
    for at in 1..PLACES {
        guest.write(at * BLOCK as u64, &[2; BLOCK]);
    }
    let (_left, asleep) = guest.depart();
    cluster.destroy(0);
    let mut guest = asleep.arrive(next).expect("its ring starts");
    owns(&cluster, 1);
    assert_eq!(guest.read(0, BLOCK), [1; BLOCK]);
    for at in 1..PLACES {
        assert_eq!(guest.read(at * BLOCK as u64, BLOCK), [2; BLOCK], "{at}");
    }
    guest.leave();
    cluster.hosts[1].rig.gone_clients("disk");
    cluster.hosts[1].stop();
}

/// Fails when: the copy that a host gets for a guest takes the place of another one, or there are
/// too few or too many afterwards.
#[test]
fn a_guest_moves_to_a_host_without_its_copy_and_has_one_all_the_time() {
    let cluster = Cluster::for_guests(3, ONE_COPY);
    let mut guest = guest(&cluster, 0);
    guest.write(0, &[1; BLOCK]);
    guest.flush();
    let peer = cluster.is_full(0);
    let to = 3 - peer;
    let next = comes(&cluster, to);
    has_copy(&cluster, 0, to);
    let copies = cluster.copies(0);
    assert_eq!(copies["state"], "full", "{copies}");
    assert_eq!(copies["real"], 2, "{copies}");
    guest.write(BLOCK as u64, &[2; BLOCK]);
    let (left, asleep) = guest.depart();
    let mut guest = asleep.arrive(next).expect("its ring starts");
    assert_eq!(guest.read(0, BLOCK), [1; BLOCK]);
    assert_eq!(guest.read(BLOCK as u64, BLOCK), [2; BLOCK]);
    drop(left);
    guest.write(2 * BLOCK as u64, &[3; BLOCK]);
    guest.flush();
    assert_ne!(cluster.is_full(to), to);
    wait_until("no copy is left over", PATIENCE, || {
        let kept = |host: &Host| host.rig.json(&["status"])["copies"].clone();
        let kept = cluster.hosts.iter().map(kept);
        let count = kept.map(|it| it.as_array().map_or(0, Vec::len));
        count.sum::<usize>() == 1
    });
    guest.leave();
    cluster.stop();
}

/// Fails when: a guest of an image that has no copies is served elsewhere before all is in it.
#[test]
fn a_guest_of_a_qcow2_image_moves_after_a_destage() {
    if !have(
        "a_guest_of_a_qcow2_image_moves_after_a_destage",
        &["qemu-img"],
    ) {
        return;
    }
    let cluster = Cluster::for_guests_of_qcow2(2, NO_COPY);
    let mut guest = guest(&cluster, 0);
    guest.write(0, &[1; BLOCK]);
    guest.flush();
    guest.write(BLOCK as u64, &[2; BLOCK]);
    let next = comes(&cluster, 1);
    let (left, asleep) = guest.depart();
    let mut guest = asleep.arrive(next).expect("its ring starts");
    assert_eq!(guest.read(0, BLOCK), [1; BLOCK]);
    assert_eq!(guest.read(BLOCK as u64, BLOCK), [2; BLOCK]);
    assert_eq!(guest.config(WCE, 1), [1]);
    assert_eq!(cluster.hosts[1].show()["dirty_bytes"], 0);
    drop(left);
    guest.leave();
    cluster.stop();
}

/// Fails when: a guest that stays cannot go on, or the copy for it is kept.
#[test]
fn a_guest_that_does_not_move_goes_on_where_it_was() {
    let cluster = Cluster::for_guests(2, NO_COPY);
    let mut guest = guest(&cluster, 0);
    guest.write(0, &[1; BLOCK]);
    let next = comes(&cluster, 1);
    has_copy(&cluster, 0, 1);
    let (left, asleep) = guest.depart();
    let mut guest = asleep.arrive(left).expect("its ring starts again");
    guest.write(BLOCK as u64, &[2; BLOCK]);
    drop(next);
    wait_until("no copy is kept for it", PATIENCE, || {
        cluster.copies(0)["members"]
            .as_array()
            .is_none_or(|it| it.len() < 2)
    });
    assert_eq!(guest.read(0, BLOCK), [1; BLOCK]);
    assert_eq!(guest.read(BLOCK as u64, BLOCK), [2; BLOCK]);
    assert_eq!(guest.config(WCE, 1), [1]);
    guest.leave();
    cluster.stop();
}

/// Fails when: the daemon of either side forgets a guest that moves, or a write cache that was
/// switched off is on where its guest goes on.
#[test]
fn a_guest_without_a_cache_moves_between_daemons_that_are_killed() {
    let mut cluster = Cluster::for_guests(2, ONE_COPY);
    let guest = guest(&cluster, 0);
    cluster.is_full(0);
    drop(comes(&cluster, 1));
    // The one to which it goes, before and after it is there.
    cluster.hosts[1].kill();
    cluster.start(1);
    // What was said of it before, on the host that it leaves and on the other one, is outdated.
    let (guest, _left) = moves(&cluster, guest, 0, 1);
    let (mut guest, _left) = moves(&cluster, guest, 1, 0);
    guest.configure(WCE, &[0]);
    guest.write(0, &[1; BLOCK]);
    let next = comes(&cluster, 1);
    has_copy(&cluster, 0, 1);
    // The one that it leaves, once nothing runs there.
    let (_left, asleep): (FrontEnd, Asleep) = guest.depart();
    cluster.hosts[0].kill();
    cluster.start(0);
    let mut guest = asleep.arrive(next).expect("its ring starts");
    owns(&cluster, 1);
    assert_eq!(guest.read(0, BLOCK), [1; BLOCK]);
    assert_eq!(guest.config(WCE, 1), [0]);
    guest.write(BLOCK as u64, &[2; BLOCK]);
    let shown = cluster.hosts[1].show();
    assert_eq!(shown["acked_serial"], shown["durable_serial"], "{shown}");
    cluster.hosts[1].kill();
    cluster.start(1);
    let mut guest = guest
        .lost()
        .wake(&socket(&cluster, 1))
        .expect("it is served");
    assert_eq!(guest.read(BLOCK as u64, BLOCK), [2; BLOCK]);
    assert_eq!(guest.config(WCE, 1), [0]);
    guest.leave();
    cluster.hosts[1].rig.gone_clients("disk");
    cluster.stop();
}

/// Fails when: a guest that moves while a backup reads its image waits for that, or the host that
/// it moves to writes the image.
#[test]
fn a_backup_window_goes_with_a_guest_that_moves() {
    for replicas in ["replicas = 0", "replicas = 1"] {
        let lines = format!("destage-after = \"1s\"\n{replicas}");
        let cluster = Cluster::for_guests(2, &lines);
        let mut guest = guest(&cluster, 0);
        guest.write(BYTES / 2, &[1; BLOCK]);
        cluster.hosts[0].rig.done(&["volume", "quiesce", "disk"]);
        guest.write(0, &[2; BLOCK]);
        let (moved, left) = moves(&cluster, guest, 0, 1);
        guest = moved;
        assert_eq!(guest.read(0, BLOCK), [2; BLOCK]);
        assert_eq!(guest.read(BYTES / 2, BLOCK), [1; BLOCK]);
        guest.write(BLOCK as u64, &[3; BLOCK]);
        guest.flush();
        wait_until("it rests for long", PATIENCE, || {
            assert!(image_is_untouched(&cluster), "{lines}");
            let shown = cluster.hosts[1].show();
            let old = shown["oldest_dirty_seconds"].as_f64() >= Some(4.0);
            old && shown["ownership"] == "owner" && shown["flags"].to_string().contains("quiesced")
        });
        drop(left);
        let rig = &cluster.hosts[1].rig;
        rig.done(&["volume", "resume", "disk"]);
        rig.done(&["volume", "destage", "disk", "--wait"]);
        let image = std::fs::read(cluster.shared.path("disk.img")).expect("an image");
        let at = [0, BLOCK, BYTES as usize / 2].map(|at| image[at]);
        assert_eq!(at, [2, 3, 1], "{lines}");
        guest.leave();
        cluster.stop();
    }
}
