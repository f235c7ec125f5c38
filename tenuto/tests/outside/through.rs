//! Backup windows in which the image has what each flush covers, for storages that take snapshots.
//!
//! Always true: nothing goes to the image by itself, so what is found there was brought by a flush
//! or by the order. Deliberately absent: windows in which the image rests, see `backup` and
//! `cluster_windows`.

use serde_json::Value;
use workload::check::Crash;
use workload::rng::Rng;

use crate::cluster_copies::{Cluster, load};
use crate::common::nbd::Client;
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, have, run, seed, wait_until};
use crate::common::{PATIENCE, text_of};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 24 * MIB;
const NEVER: &str = "destage-after = \"never\"";
const THROUGH: [&str; 4] = ["volume", "quiesce", "disk", "--through"];
const RESUME: [&str; 3] = ["volume", "resume", "disk"];

fn has_flag(shown: &Value, flag: &str) -> bool {
    let flags = shown["flags"].as_array().expect("a list");
    flags.iter().any(|it| it == flag)
}

/// Writes and flushes; where the client writes, the image has it by then, or has it not.
fn flushed(rig: &Rig, client: &mut Client, random: &mut Rng, at_image: bool) {
    for _ in 0..20 {
        let at = random.below(BYTES / 4096) * 4096;
        let block = random.below(u64::MAX - 1).to_le_bytes().repeat(512);
        client.write(at, &block);
        client.flush();
        let image = std::fs::read(rig.dir.join("disk.img")).expect("the image");
        let there = image[at as usize..][..4096] == block;
        assert_eq!(there, at_image, "at {at}");
    }
}

/// Fails when: a flush in the window is answered before the image has what it covers, what was
/// written before it is not there, the window is lost with the daemon, or it never ends.
#[test]
fn the_image_has_each_flush_while_a_window_is_open_and_over_restarts() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", NEVER);
    let mut random = Rng::new(seed(181));
    let mut daemon = rig.serve();
    let mut client = rig.connect("disk");
    flushed(&rig, &mut client, &mut random, false);
    let said = rig.done(&THROUGH);
    assert!(said.contains("what each flush covers"), "{said}");
    let disk = client.read(0, BYTES as usize);
    assert!(std::fs::read(&image).expect("the image") == disk);
    flushed(&rig, &mut client, &mut random, true);
    let shown = rig.show("disk");
    assert_eq!(shown["policy"], "write-back", "{shown}");
    assert_eq!(shown["effective_policy"], "write-through", "{shown}");
    assert!(has_flag(&shown, "through") && !has_flag(&shown, "quiesced"));
    let reason = shown["effective_reason"].as_str().expect("words");
    assert!(reason.contains("a backup window is open"), "{reason}");
    let said = rig.refused(&["volume", "quiesce", "disk"], EXIT_REFUSED);
    assert!(said.contains("resume"), "{said}");
    let both = [&THROUGH[..], &["--checkpoint", "monday"]].concat();
    rig.refused(&both, EXIT_USAGE);
    rig.done(&THROUGH);
    for kill in [false, true] {
        client.disconnect();
        match kill {
            true => drop(daemon.kill()),
            false => drop(daemon.stop()),
        }
        daemon = rig.serve();
        client = rig.connect("disk");
        flushed(&rig, &mut client, &mut random, true);
    }
    rig.done(&RESUME);
    let shown = rig.show("disk");
    assert_eq!(shown["effective_policy"], "write-back", "{shown}");
    assert!(!has_flag(&shown, "through"));
    flushed(&rig, &mut client, &mut random, false);
    let said = rig.tenuto(&RESUME);
    assert!(!said.status.success(), "{}", text_of(&said));
    client.disconnect();
    drop(daemon.kill());
    daemon = rig.serve();
    client = rig.connect("disk");
    flushed(&rig, &mut client, &mut random, false);
    client.disconnect();
    daemon.stop();
}

/// Fails when: a volume is opened for both sorts of windows at once, or its policy allows none.
#[test]
fn one_window_is_open_at_a_time() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", NEVER);
    let other = rig.image("other.img", BYTES);
    rig.volume("other", &other, "write-through", "");
    let daemon = rig.serve();
    rig.done(&["volume", "quiesce", "disk"]);
    let said = rig.refused(&THROUGH, EXIT_REFUSED);
    assert!(said.contains("its image rests"), "{said}");
    rig.done(&RESUME);
    let said = rig.tenuto(&["volume", "quiesce", "other", "--through"]);
    assert!(!said.status.success() && text_of(&said).contains("write-through"));
    daemon.stop();
}

/// Fails when: one disk of a group goes on without the image.
#[test]
fn a_window_is_for_all_disks_of_a_group() {
    let mut rig = Rig::new();
    for name in ["disk", "other"] {
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(
            name,
            &image,
            "write-back",
            &format!("{NEVER}\ngroup = \"vm\""),
        );
    }
    let daemon = rig.serve();
    let mut clients = ["disk", "other"].map(|name| rig.connect(name));
    clients.iter_mut().for_each(|it| it.write(0, &[1; 4096]));
    rig.done(&THROUGH);
    clients.iter_mut().for_each(|it| it.write(4096, &[2; 4096]));
    for (client, name) in clients.iter_mut().zip(["disk", "other"]) {
        client.flush();
        let image = std::fs::read(rig.dir.join(format!("{name}.img"))).expect("it");
        assert_eq!((image[0], image[4096]), (1, 2), "{name}");
        assert!(has_flag(&rig.show(name), "through"));
    }
    rig.done(&["volume", "resume", "other"]);
    assert!(!has_flag(&rig.show("disk"), "through"));
    clients.into_iter().for_each(Client::disconnect);
    daemon.stop();
}

/// Fails when: the image of a volume with a copy lacks a flush in the window, or the window is
/// believed to be open at a host that knows nothing of it.
#[test]
fn a_window_of_a_volume_with_copies_is_of_the_host_that_has_opened_it() {
    let mut cluster = Cluster::new(2, "destage-after = \"never\"\nreplicas = 1");
    let mut load = load(seed(182));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    cluster.hosts[0].rig.done(&THROUGH);
    let all_is_there = |cluster: &Cluster| {
        let shown = cluster.hosts[0].show();
        assert!(has_flag(&shown, "through"), "{shown}");
        assert_eq!(shown["dirty_bytes"], 0, "{shown}");
    };
    cluster.write(0, &mut load, 100);
    all_is_there(&cluster);
    cluster.hosts[0].kill();
    cluster.start(0);
    cluster.write(0, &mut load, 100);
    all_is_there(&cluster);
    assert_eq!(cluster.is_full(0), 1);
    let moved = ["volume", "move", "disk", "--to", "host-b"];
    cluster.hosts[0].rig.done(&moved);
    cluster.hosts[1].waits_for("ownership", "owner");
    cluster.write(1, &mut load, 100);
    let shown = cluster.hosts[1].show();
    assert!(!has_flag(&shown, "through") && shown["dirty_bytes"].as_u64() > Some(0));
    let said = cluster.hosts[1].rig.refused(&RESUME, EXIT_REFUSED);
    assert!(said.contains("no backup window of it is open"), "{said}");
    assert_eq!(cluster.is_full(1), 0);
    // It comes back to the host that had the window, which is not open there any more.
    let back = ["volume", "move", "disk", "--to", "host-a"];
    cluster.hosts[1].rig.done(&back);
    cluster.hosts[0].waits_for("ownership", "owner");
    cluster.write(0, &mut load, 100);
    let shown = cluster.hosts[0].show();
    assert!(!has_flag(&shown, "through") && shown["dirty_bytes"].as_u64() > Some(0));
    cluster.hosts[0].rig.refused(&RESUME, EXIT_REFUSED);
    cluster.check(0, &mut load, Crash::Kill, "in the end");
    cluster.stop();
}

/// Fails when: a host that was killed in its window goes on with it, though another host had the
/// volume meanwhile.
#[test]
fn a_window_is_not_found_again_after_another_host_had_the_volume() {
    let mut cluster = Cluster::new(2, "destage-after = \"never\"\nreplicas = 1");
    let mut load = load(seed(183));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    cluster.hosts[0].rig.done(&THROUGH);
    cluster.kill_under_load(0, &mut load, &[0], 100);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    cluster.write(1, &mut load, 50);
    cluster.start(0);
    assert_eq!(cluster.is_full(1), 0);
    cluster.hosts[1]
        .rig
        .done(&["volume", "move", "disk", "--to", "host-a"]);
    cluster.hosts[0].waits_for("ownership", "owner");
    assert!(!has_flag(&cluster.hosts[0].show(), "through"));
    cluster.hosts[0].rig.refused(&RESUME, EXIT_REFUSED);
    cluster.check(0, &mut load, Crash::Kill, "in the end");
    cluster.stop();
}

/// Fails when: a start of the daemon writes a qcow2 image in a window of a clustered volume.
#[test]
fn a_qcow2_image_rests_over_a_restart_of_the_daemon() {
    let test = "a_qcow2_image_rests_over_a_restart_of_the_daemon";
    if !have(test, &["qemu-img"]) {
        return;
    }
    let mut cluster = Cluster::new(2, "");
    cluster.hosts.iter_mut().for_each(|host| drop(host.stop()));
    let image = cluster.shared.path("disk.qcow2");
    let path = image.display().to_string();
    run("qemu-img", &["create", "-q", "-f", "qcow2", &path, "64M"]);
    for host in &mut cluster.hosts {
        host.rig.forget_volumes();
        host.rig
            .qcow2_volume("disk", &image, "write-back", "destage-after = \"1s\"");
        host.rig.write_config();
    }
    (0..2).for_each(|at| cluster.start(at));
    cluster.are_up();
    let mut load = load(seed(184));
    cluster.write(0, &mut load, 100);
    cluster.hosts[0].rig.done(&["volume", "quiesce", "disk"]);
    let at_cut = std::fs::read(&image).expect("the image");
    cluster.write(0, &mut load, 100);
    for kill in [false, true] {
        match kill {
            true => cluster.hosts[0].kill(),
            false => drop(cluster.hosts[0].stop()),
        }
        cluster.start(0);
        cluster.write(0, &mut load, 20);
        wait_until("it rests for long", PATIENCE, || {
            assert!(std::fs::read(&image).expect("the image") == at_cut);
            let shown = cluster.hosts[0].show();
            let old = shown["oldest_dirty_seconds"].as_f64() >= Some(4.0);
            old && has_flag(&shown, "quiesced")
        });
    }
    run("qemu-img", &["check", "-q", "-U", &path]);
    cluster.hosts[0].rig.done(&RESUME);
    cluster.hosts[0]
        .rig
        .done(&["volume", "destage", "disk", "--wait"]);
    assert!(std::fs::read(&image).expect("the image") != at_cut);
    cluster.check(0, &mut load, Crash::Kill, "in the end");
    cluster.stop();
}
