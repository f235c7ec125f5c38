//! Two copies of dirty data on other hosts: any two of three hosts are lost, at once or one after
//! the other, and what was flushed is there.
//!
//! Always true: a host is killed with flushes under way, and what it had on its SSD is removed
//! where a test says that it is lost. Deliberately absent: what one copy shows as well, see
//! `cluster_copies`.

use workload::check::Crash;
use workload::rng::Rng;

use crate::cluster_copies::{Cluster, NO_COPY, load, name};
use crate::common::{PATIENCE, count, seed, wait_until};

pub(crate) const TWO_COPIES: &str = "destage-after = \"never\"\nreplicas = 2";

/// Fails when: a flush is answered before two other hosts have it on media.
#[test]
fn two_of_three_hosts_are_lost_at_once() {
    for last in [2, 1] {
        let mut cluster = Cluster::new(3, TWO_COPIES);
        let mut load = load(seed(61));
        cluster.write(0, &mut load, 100);
        assert_eq!(cluster.has_copies(0, 2), [1, 2]);
        let promise = cluster.hosts[0].show()["promise"].to_string();
        let both = ["host-b", "host-c"].map(|host| promise.contains(host));
        assert!(
            both == [true; 2] && promise.contains("have a copy"),
            "{promise}"
        );
        cluster.write(0, &mut load, 200);
        let lost = 3 - last;
        cluster.kill_under_load(0, &mut load, &[0, lost], 200);
        for at in [0, lost] {
            let cache = cluster.hosts[at].rig.cache_path();
            std::fs::remove_file(cache).expect("its cache");
            cluster.hosts[at].rig.lose_stage();
        }
        let when = format!("{} alone", name(last));
        cluster.check(last, &mut load, Crash::PowerLoss, &when);
        cluster.is_degraded(last);
        assert_eq!(cluster.copies(last)["real"], 0);
        cluster.write(last, &mut load, 100);
        cluster.hosts[last].stop();
    }
}

/// Fails when: the host that takes a volume over forgets the other copy, so that it alone has what
/// was flushed until a new copy is made.
#[test]
fn hosts_are_lost_one_after_the_other() {
    let mut cluster = Cluster::new(3, TWO_COPIES);
    let mut load = load(seed(62));
    cluster.write(0, &mut load, 300);
    assert_eq!(cluster.has_copies(0, 2), [1, 2]);
    cluster.destroy(0);
    // Both copies end at the last flush, and the second host is lost as soon as it has the volume.
    let client = cluster.served(1);
    cluster.destroy(1);
    drop(client);
    cluster.check(2, &mut load, Crash::PowerLoss, "at the third host");
    cluster.is_degraded(2);
    cluster.hosts[2].stop();
}

/// Fails when: a member that has less than the new owner, or more, is not brought to the same.
#[test]
fn a_host_that_takes_over_goes_on_with_the_other_copy() {
    let mut cluster = Cluster::new(3, TWO_COPIES);
    let mut load = load(seed(63));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.has_copies(0, 2), [1, 2]);
    cluster.kill_under_load(0, &mut load, &[0], 200);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the second host");
    wait_until("the third host has all", PATIENCE, || {
        cluster.copies(1)["real"] == 1
    });
    let copies = cluster.copies(1);
    assert_eq!(
        (&copies["state"], &copies["wanted"]),
        (&"degraded".into(), &2.into())
    );
    cluster.write(1, &mut load, 200);
    cluster.start(0);
    assert_eq!(cluster.has_copies(1, 2), [0, 2]);
    cluster.kill_under_load(1, &mut load, &[1, 0], 200);
    cluster.check(2, &mut load, Crash::PowerLoss, "at the third host");
    cluster.hosts[2].stop();
}

/// Fails when: a change of `replicas` between one and two is not heard of while it is served.
#[test]
fn a_second_copy_can_be_switched_on_and_off_live() {
    let mut cluster = Cluster::new(3, NO_COPY);
    let mut load = load(seed(64));
    cluster.write(0, &mut load, 200);
    for (number, hosts) in [(2, 2), (1, 1), (2, 2)] {
        let key = format!("replicas={number}");
        cluster.hosts[0].rig.done(&["volume", "set", "disk", &key]);
        assert_eq!(cluster.has_copies(0, number).len(), hosts);
        cluster.write(0, &mut load, 100);
    }
    cluster.destroy(0);
    cluster.destroy(1);
    cluster.check(2, &mut load, Crash::PowerLoss, "at the third host");
    cluster.hosts[2].stop();
}

/// Fails when: a volume goes to a host with a copy without the others, or its old owner does not
/// become one of them.
#[test]
fn a_volume_moves_among_three_hosts_that_all_have_it() {
    let mut cluster = Cluster::new(3, TWO_COPIES);
    let mut load = load(seed(66));
    for (owner, other) in [(0, 1), (1, 2), (2, 0)] {
        cluster.write(owner, &mut load, 100);
        assert_eq!(cluster.has_copies(owner, 2).len(), 2);
        let when = format!("from {} to {}", name(owner), name(other));
        cluster.check(other, &mut load, Crash::Kill, &when);
    }
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.has_copies(0, 2), [1, 2]);
    cluster.destroy(0);
    cluster.destroy(2);
    cluster.check(1, &mut load, Crash::PowerLoss, "after the moves");
    cluster.hosts[1].stop();
}

/// Fails when: a volume with one of two copies goes on by its logs, though it is to be at its image
/// then, or a host without a copy waits for one, though the image has all.
#[test]
fn with_one_of_two_copies_flushes_are_at_the_image_if_that_is_wanted() {
    let lines = format!("{TWO_COPIES}\non-degraded = \"write-through\"");
    let mut cluster = Cluster::new(3, &lines);
    let mut load = load(seed(67));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.has_copies(0, 2), [1, 2]);
    cluster.kill_under_load(0, &mut load, &[2], 100);
    wait_until("flushes are at the image", PATIENCE, || {
        cluster.hosts[0].show()["effective_policy"] == "write-through"
    });
    assert_eq!(cluster.copies(0)["real"], 1);
    cluster.write(0, &mut load, 200);
    cluster.destroy(0);
    cluster.destroy(1);
    // It has an old copy, which is none any more, and the image has all.
    cluster.start(2);
    cluster.hosts[2]
        .rig
        .done(&["volume", "takeover", "disk", "--fenced"]);
    cluster.check(2, &mut load, Crash::PowerLoss, "from the image");
    cluster.hosts[2].stop();
}

/// Fails when: more copies than two are not made, or a host among them goes on without the rest.
#[test]
fn of_eight_hosts_the_last_one_has_it() {
    let mut cluster = Cluster::new(8, "destage-after = \"never\"\nreplicas = 7");
    let mut load = load(seed(68));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.has_copies(0, 7), [1, 2, 3, 4, 5, 6, 7]);
    cluster.write(0, &mut load, 100);
    let dead: Vec<usize> = (0..7).collect();
    cluster.kill_under_load(0, &mut load, &dead, 100);
    cluster.check(7, &mut load, Crash::PowerLoss, "at the last host");
    cluster.hosts[7].stop();
}

/// Fails when: what was flushed depends on which hosts are killed, or which comes back first.
#[test]
fn rounds_of_kill_with_two_copies() {
    let seed = seed(65);
    let (mut random, mut load) = (Rng::new(seed), load(seed));
    let mut cluster = Cluster::new(3, TWO_COPIES);
    let mut owner = 0;
    cluster.write(owner, &mut load, 20);
    for round in 0..count("TENUTO_TWO_ROUNDS", 5) {
        let others = cluster.has_copies(owner, 2);
        let one = others[random.below(2) as usize];
        // Each kind in turn at first, whatever the dice say.
        let kind = if round < 5 { round } else { random.below(5) };
        let dead = match kind {
            0 => vec![owner],
            1 => vec![owner, one],
            2 => vec![one],
            3 => others,
            _ => vec![0, 1, 2],
        };
        cluster.kill_under_load(owner, &mut load, &dead, 50 + random.below(300));
        let when = format!("round {round}, {dead:?} killed at {}", name(owner));
        let lives = |at: &usize| !dead.contains(at);
        let next = (0..3).find(lives).unwrap_or(random.below(3) as usize);
        if !lives(&next) {
            cluster.start(next);
        }
        if dead.contains(&owner) {
            cluster.check(next, &mut load, Crash::PowerLoss, &when);
        }
        for at in dead.into_iter().filter(|at| *at != next) {
            cluster.start(at);
        }
        let after = format!("{when}, then at {}", name(next));
        cluster.check(next, &mut load, Crash::Kill, &after);
        cluster.write(next, &mut load, 20);
        owner = next;
    }
    cluster.stop();
}
