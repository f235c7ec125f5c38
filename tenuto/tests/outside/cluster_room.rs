//! Room for copies: members with a small cache. Owners are slowed or go elsewhere, and never lose a
//! copy that answers; guests of the members go on; what was flushed is there.
//!
//! Always true: a cache of 128 MiB has less room for copies than is written. Deliberately absent:
//! logs without limits (`cluster_copies`).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use workload::check::Crash;

use crate::cluster_copies::{Cluster, ONE_COPY, load, name};
use crate::cluster_units::Host;
use crate::common::load::Load;
use crate::common::nbd::Client;
use crate::common::{PATIENCE, SetWhenDropped, seed, wait_until};

/// A write of a member's own guest waits for no other host.
const WRITE_MAX: Duration = Duration::from_secs(5);
const BLOCK: usize = 4096;

fn small_cache(host: &mut Host) {
    let path = host.rig.cache_path();
    let lines = "ram = \"16MiB\"\nstage = \"16MiB\"\noverlay-ram = \"16MiB\"";
    host.rig.cache(&path, "128MiB", lines);
}

/// A volume that only this host names.
fn own_volume(host: &mut Host) -> PathBuf {
    let image = host.rig.image("own.img", 8 << 20);
    host.rig.volume("own", &image, "write-back", "replicas = 0");
    image
}

fn room(host: &Host) -> Value {
    host.rig.json(&["status"])["copy_room"].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Writes until more is dirty than the small cache has room for. How much.
fn fill(cluster: &Cluster, load: &mut Load) -> u64 {
    let most = number(&room(&cluster.hosts[1])["max_bytes"]);
    loop {
        cluster.write(0, load, 1_000);
        let dirty = number(&cluster.hosts[0].show()["dirty_bytes"]);
        if dirty > most {
            return dirty;
        }
    }
}

/// Writes and flushes of a guest until it is over: how many, and the longest.
fn write_beside(client: &mut Client, over: &AtomicBool) -> (u64, Duration) {
    let (mut writes, mut longest) = (0, Duration::ZERO);
    while !over.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let at = writes % 2048 * BLOCK as u64;
        client.write(at, &[writes as u8; BLOCK]);
        if writes % 16 == 0 {
            client.flush();
        }
        (writes, longest) = (writes + 1, longest.max(begun.elapsed()));
    }
    (writes, longest)
}

/// Fails when: a member takes all that comes, an owner goes on without one that has no room at the
/// moment, or a copy takes the room of the member's guests.
#[test]
fn an_owner_goes_as_fast_as_its_member_has_room_and_the_member_s_guest_goes_on() {
    let mut cluster = Cluster::with(2, ONE_COPY, |at, host| {
        if at == 1 {
            small_cache(host);
            own_volume(host);
        }
    });
    let mut load = load(seed(41));
    cluster.write(0, &mut load, 20);
    assert_eq!(cluster.is_full(0), 1);
    let over = AtomicBool::new(false);
    let most = number(&room(&cluster.hosts[1])["max_bytes"]);
    let (writes, longest) = std::thread::scope(|scope| {
        let socket = cluster.hosts[1].rig.socket("own");
        let over = &over;
        let beside = scope.spawn(move || {
            let mut client = Client::connect(&socket, "").expect("a client");
            write_beside(&mut client, over)
        });
        let _over = SetWhenDropped(over);
        for _ in 0..6 {
            cluster.write(0, &mut load, 1_500);
            let shown = room(&cluster.hosts[1]);
            assert!(number(&shown["taken_bytes"]) <= most, "{shown}");
            assert_eq!(cluster.copies(0)["state"], "full", "{}", cluster.copies(0));
        }
        over.store(true, Ordering::SeqCst);
        beside.join().expect("no panic")
    });
    println!("{writes} writes of the member's guest, the longest {longest:?}");
    assert!(writes > 100 && longest < WRITE_MAX);
    assert_eq!(load.counts.refused, 0);
    // More was written than there is room for, so that some is at the image.
    let written = cluster.hosts[0].show();
    assert!(number(&written["destaged_serial"]) > 0, "{written}");
    cluster.kill_under_load(0, &mut load, &[0], 100);
    std::fs::remove_file(cluster.hosts[0].rig.cache_path()).expect("its cache");
    cluster.check(1, &mut load, Crash::PowerLoss, "at the member");
    cluster.hosts[1].stop();
}

/// Fails when: more is dirty than the only other host has room for, and nothing is destaged for it.
#[test]
fn a_copy_is_made_where_less_has_room_than_is_dirty() {
    let none = "destage-after = \"never\"\nreplicas = 0";
    let mut cluster = Cluster::with(2, none, |at, host| {
        if at == 1 {
            small_cache(host);
        }
    });
    let mut load = load(seed(42));
    let dirty = fill(&cluster, &mut load);
    let told = || cluster.hosts[0].rig.json(&["peer", "ls"])["peers"][0]["copy_room_bytes"].clone();
    wait_until("the other host tells its room", PATIENCE, || {
        told().as_u64().is_some_and(|room| room > 0 && room < dirty)
    });
    let shown = cluster.hosts[0].rig.done(&["peer", "ls"]);
    assert!(shown.contains("ROOM"), "{shown}");
    cluster.hosts[0]
        .rig
        .done(&["volume", "set", "disk", "replicas=1"]);
    assert_eq!(cluster.is_full(0), 1);
    cluster.write(0, &mut load, 200);
    cluster.destroy(0);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the member");
    cluster.hosts[1].stop();
}

/// Fails when: fewer copies count more than room.
#[test]
fn of_two_hosts_the_one_with_room_gets_the_copy() {
    let none = "destage-after = \"never\"\nreplicas = 0";
    let cluster = Cluster::with(3, none, |at, host| {
        if at == 1 {
            small_cache(host);
        }
    });
    let mut load = load(seed(43));
    let dirty = fill(&cluster, &mut load);
    wait_until("both tell their room", PATIENCE, || {
        let peers = cluster.hosts[0].rig.json(&["peer", "ls"])["peers"].clone();
        let room = |at: usize| peers[at]["copy_room_bytes"].as_u64().unwrap_or(0);
        room(0) > 0 && room(1) > dirty + (8 << 20)
    });
    cluster.hosts[0]
        .rig
        .done(&["volume", "set", "disk", "replicas=1"]);
    assert_eq!(name(cluster.is_full(0)), "host-c");
    cluster.stop();
}

/// Fails when: a copy goes to a host that `place` does not name, or a change of it is not heard of
/// while the volume is served.
#[test]
fn a_copy_goes_where_its_volume_says() {
    let lines = format!("{ONE_COPY}\nplace = [\"host-c\", \"host-x\"]");
    let mut cluster = Cluster::new(3, &lines);
    let mut load = load(seed(43));
    cluster.write(0, &mut load, 50);
    assert_eq!(cluster.is_full(0), 2);
    let set = |key: &str| cluster.hosts[0].rig.done(&["volume", "set", "disk", key]);
    set("place=host-a,host-c");
    set("replicas=2");
    wait_until("no other host is named", PATIENCE, || {
        cluster.copies(0)["reason"] == "`place` names too few hosts"
    });
    assert_eq!(cluster.copies(0)["real"], 1);
    set("replicas=1");
    set("place=host-c,host-x");
    assert_eq!(cluster.is_full(0), 2);
    cluster.kill_under_load(0, &mut load, &[2], 50);
    cluster.is_degraded(0);
    let mut reason = Value::Null;
    wait_until("the other host is no place for it", PATIENCE, || {
        reason = cluster.copies(0)["reason"].clone();
        let words = "of the hosts that `place` names none answers: host-c, host-x";
        reason.as_str().is_some_and(|it| it.starts_with(words))
    });
    let place = ["volume", "set", "disk", "place=any"];
    cluster.hosts[0].rig.done(&place);
    assert_eq!(cluster.is_full(0), 1, "{reason}");
    cluster.write(0, &mut load, 50);
    cluster.destroy(0);
    cluster.check(
        1,
        &mut load,
        Crash::PowerLoss,
        "at the host that was allowed",
    );
    cluster.hosts[1].stop();
}
