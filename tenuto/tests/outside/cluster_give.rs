//! Volumes that go to a host which has a copy, with what is dirty: nothing is brought to the image
//! for it, and nothing that a client wrote is left behind, flushed or not.
//!
//! Always true: nothing goes to the image by itself, so an image that is as it was shows that the
//! data went with the volume. Deliberately absent: moves to hosts without a copy, see
//! `cluster_units`.

use std::process::Child;
use std::time::Duration;

use serde_json::Value;
use workload::check::Crash;
use workload::rng::Rng;

use crate::cluster_copies::{Cluster, NO_COPY, ONE_COPY, load, name};
use crate::common::load::{End, Load};
use crate::common::{EXIT_REFUSED, PATIENCE, count, seed, wait_until};

fn image(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(cluster.shared.path("disk.img")).expect("the image")
}

/// So many requests, of which the last are not flushed.
fn write(cluster: &Cluster, at: usize, load: &mut Load, requests: u64) {
    let before = load.counts.answered;
    let end = load.run(cluster.served(at), |counts| {
        counts.answered - before < requests
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    cluster.hosts[at].rig.gone_clients("disk");
}

/// Fails when: a volume is destaged before a host that has its copy serves it, or what was not
/// flushed stays behind.
#[test]
fn a_volume_goes_to_its_copy_without_a_destage() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(91));
    let before = image(&cluster);
    for (owner, other) in [(0, 1), (1, 0), (0, 1)] {
        write(&cluster, owner, &mut load, 200);
        assert_eq!(cluster.is_full(owner), other);
        let when = format!("from {} to {}", name(owner), name(other));
        cluster.check(other, &mut load, Crash::Kill, &when);
        let shown = cluster.hosts[other].show();
        assert!(shown["dirty_bytes"].as_u64() > Some(0), "{when}: {shown}");
        assert!(image(&cluster) == before, "{when}: its image was written");
    }
    // By the word of the host before, or because that one never got the right in its turn.
    wait_until("it may write the image", PATIENCE, || {
        let shown = cluster.hosts[1].show();
        shown["ownership"] == "owner" && shown["drain"]["holder"] == name(1)
    });
    let log = cluster.hosts[0].stop();
    assert!(log.contains("host-b has it now"), "{log}");
    cluster.hosts[1]
        .rig
        .done(&["volume", "destage", "disk", "--wait"]);
    cluster.check(1, &mut load, Crash::Kill, "when all is at the image");
    cluster.hosts[1].stop();
}

/// Fails when: an administrator cannot say where a volume is served next, or a client is cut off
/// by that.
#[test]
fn an_administrator_moves_a_volume() {
    let cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(92));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let moved = ["volume", "move", "disk", "--to", "host-b"];
    let client = cluster.served(0);
    let said = cluster.hosts[0].rig.refused(&moved, EXIT_REFUSED);
    assert!(said.contains("a client on host-a uses it"), "{said}");
    cluster.leave(0, client);
    let elsewhere = ["volume", "move", "disk", "--to", "host-x"];
    let said = cluster.hosts[0].rig.refused(&elsewhere, EXIT_REFUSED);
    assert!(said.contains("no link to a host host-x"), "{said}");
    let said = cluster.hosts[1].rig.refused(&moved, EXIT_REFUSED);
    assert!(said.contains("served by host-a; run this there"), "{said}");
    let before = image(&cluster);
    let said = cluster.hosts[0].rig.done(&moved);
    assert!(said.contains("host-b has it"), "{said}");
    cluster.hosts[1].waits_for("ownership", "owner");
    assert!(image(&cluster) == before, "its image was written");
    cluster.check(1, &mut load, Crash::Kill, "where it was moved to");
    cluster.stop();
}

/// Fails when: a volume without copies is not let go of by an administrator's order.
#[test]
fn an_administrator_lets_go_of_a_volume_without_copies() {
    let cluster = Cluster::new(2, NO_COPY);
    let mut load = load(seed(93));
    cluster.write(0, &mut load, 100);
    let moved = ["volume", "move", "disk", "--to", "host-b"];
    let said = cluster.hosts[0].rig.done(&moved);
    assert!(
        said.contains("host-b has no copy of it that is complete"),
        "{said}"
    );
    let shown = cluster.hosts[0].show();
    assert_eq!(shown["owner"], Value::Null, "{shown}");
    assert_eq!(shown["acked_serial"], shown["destaged_serial"], "{shown}");
    cluster.check(1, &mut load, Crash::Kill, "at the other host");
    cluster.stop();
}

/// Fails when: a kill while a volume is given away loses a flush, or leaves it with no host.
#[test]
fn rounds_of_kill_while_a_volume_is_given_away() {
    let seed = seed(94);
    let (mut random, mut load) = (Rng::new(seed), load(seed));
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut owner = 0;
    let mut ends = [0; 2];
    for round in 0..count("TENUTO_GIVE_ROUNDS", 6) {
        let other = 1 - owner;
        cluster.write(owner, &mut load, 30);
        assert_eq!(cluster.is_full(owner), other);
        let dead = if round % 2 == 0 { owner } else { other };
        let word = ["volume", "move", "disk", "--to", &name(other)];
        let mut order = cluster.hosts[owner].rig.spawn(&word);
        std::thread::sleep(Duration::from_millis(random.below(120)));
        cluster.hosts[dead].kill();
        let when = format!("round {round}: {} killed", name(dead));
        let lives = 1 - dead;
        cluster.check(lives, &mut load, Crash::PowerLoss, &when);
        cluster.start(dead);
        ends[usize::from(ended(&mut order, &when))] += 1;
        let after = format!("{when}, and started");
        cluster.check(lives, &mut load, Crash::Kill, &after);
        owner = lives;
    }
    println!("orders that failed and that were done: {ends:?}");
    cluster.stop();
}

/// Whether the command was done.
fn ended(order: &mut Child, when: &str) -> bool {
    let mut end = None;
    wait_until(when, PATIENCE, || {
        end = order.try_wait().expect("a child");
        end.is_some()
    });
    end.is_some_and(|end| end.success())
}
