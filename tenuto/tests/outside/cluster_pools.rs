//! Pools of a cluster: one order, and the members of all hosts go to another image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cluster_etcd::Etcd;
use crate::cluster_units::{BLOCK, Host, Shared, pair, see_each_other};
use crate::common::nbd::Client;
use crate::common::{PATIENCE, have, wait_until};

const BLOCKS: u64 = 512;
const SIZE: usize = BLOCK as usize;
/// An image whose last change is this long ago is not waited for.
const REST: Duration = Duration::from_millis(4_200);

fn block(id: u8, at: u64) -> Vec<u8> {
    let mut bytes = vec![id; SIZE];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes
}

fn gold(shared: &Shared, id: u8) -> PathBuf {
    let path = shared.path(&format!("gold-{id}.img"));
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| block(id, at)).collect();
    fs::write(&path, bytes).expect("an image");
    path
}

/// Two hosts with a pool of two desktops each, and images.
fn pools(shared: &Shared, vault: &str) -> ([Host; 2], Vec<PathBuf>) {
    let images: Vec<PathBuf> = (1..=3).map(|id| gold(shared, id)).collect();
    let lines = format!(
        "[[pool]]\nname = \"office\"\nimage = \"{}\"\nmembers = [\"desk-{{1..2}}\"]\n\
         [defaults]\nformat = \"raw\"\noverlay-ram = \"1MiB\"\n",
        images[0].display()
    );
    thread::sleep(REST);
    (pair(&shared.raw(), "raw", &lines, vault), images)
}

fn shown(host: &Host) -> Value {
    host.rig.json(&["pool", "show", "office"])
}

fn guest(host: &Host, name: &str) -> Client {
    Client::connect(&host.rig.all_exports(), name).expect("it is served")
}

fn found(host: &Host, name: &str, at: u64) -> Vec<u8> {
    let mut client = guest(host, name);
    let bytes = client.read(at * BLOCK, SIZE);
    client.disconnect();
    bytes
}

fn refresh(host: &Host, image: &Path, more: &[&str]) -> String {
    let image = image.display().to_string();
    let order = [&["pool", "refresh", "office", &image][..], more].concat();
    host.rig.done(&order)
}

fn is(hosts: &[Host], state: &str, image: &Path) {
    for host in hosts {
        wait_until("all hosts have heard of it", PATIENCE, || {
            let pool = shown(host);
            let there = pool["image"] == image.display().to_string();
            there && pool["state"] == state
        });
    }
}

fn have_moved(hosts: &[Host], moved: u64) {
    for host in hosts {
        wait_until("the members have moved", PATIENCE, || {
            shown(host)["members_moved"] == moved
        });
    }
}

/// One order, from the second host; guests of both go on until they have ended.
fn both_follow(hosts: &[Host; 2], images: &[PathBuf]) {
    let [one, two] = hosts;
    let mut runs = guest(one, "desk-1");
    runs.write(0, &block(99, 0));
    assert_eq!(runs.read(7 * BLOCK, SIZE), block(1, 7));
    let said = refresh(two, &images[1], &[]);
    assert!(said.contains("have"), "{said}");
    // Where it was ordered it is there at once.
    for name in ["desk-1", "desk-2"] {
        assert_eq!(found(two, name, 7), block(2, 7));
    }
    wait_until("the other host has heard of it", PATIENCE, || {
        found(one, "desk-2", 3) == block(2, 3)
    });
    assert_eq!(runs.read(0, SIZE), block(99, 0));
    assert_eq!(runs.read(8 * BLOCK, SIZE), block(1, 8));
    assert_eq!(shown(two)["state"], "rolling");
    wait_until("the other host says so", PATIENCE, || {
        let said = two.rig.done(&["pool", "show", "office"]);
        said.contains("host-a") && said.contains("1/2")
    });
    runs.disconnect();
    assert_eq!(found(one, "desk-1", 0), block(2, 0));
    is(hosts, "stable", &images[1]);
    have_moved(hosts, 2);
    // Either host may take it back, and let go of what was.
    one.rig.done(&["pool", "rollback", "office", "--wait"]);
    is(hosts, "stable", &images[0]);
    have_moved(hosts, 2);
    assert_eq!(found(two, "desk-1", 5), block(1, 5));
    two.rig.done(&["pool", "finish", "office"]);
    wait_until("the other host has heard of it", PATIENCE, || {
        shown(one)["previous"] == Value::Null
    });
    for host in hosts {
        assert!(host.rig.tenuto(&["status", "-x"]).status.success());
    }
}

/// Fails when: members on another host than that of the order keep the image, a guest gets another
/// disk, or a host says that all is over before the others are there.
#[test]
fn an_order_on_one_host_reaches_the_members_of_all() {
    let shared = Shared::new();
    let (mut hosts, images) = pools(&shared, "beside");
    both_follow(&hosts, &images);
    // A host that misses two of them comes to the last one.
    hosts[1].kill();
    wait_until("it is down", PATIENCE, || {
        hosts[0].rig.json(&["peer", "ls"])["peers"][0]["state"] != "up"
    });
    for image in [&images[1], &images[2]] {
        refresh(&hosts[0], image, &["--wait"]);
    }
    hosts[1].start();
    assert_eq!(hosts[1].rig.done(&["config", "--check"]).lines().count(), 1);
    see_each_other(&hosts);
    is(&hosts, "stable", &images[2]);
    have_moved(&hosts, 2);
    assert_eq!(found(&hosts[1], "desk-2", 9), block(3, 9));
    // The host that has ordered a roll-out is gone: the other one goes on with it.
    let steps = ["--percent", "1", "--soak", "3s"];
    refresh(&hosts[1], &images[0], &steps);
    hosts[1].kill();
    is(&hosts[..1], "stable", &images[0]);
    assert_eq!(found(&hosts[0], "desk-1", 2), block(1, 2));
    hosts[1].start();
    wait_until("it follows", PATIENCE, || {
        found(&hosts[1], "desk-1", 2) == block(1, 2)
    });
    for host in &mut hosts {
        host.stop();
    }
}

/// Fails when: a vault that is not there, or was put back, gives members an image, or what is wrong
/// with it is not told.
#[test]
fn a_vault_that_does_not_answer_or_was_put_back_moves_no_member() {
    let shared = Shared::new();
    let (vault, away) = (shared.path("vault"), shared.path("away"));
    fs::create_dir(&vault).expect("a vault");
    let (mut hosts, images) = pools(&shared, &format!("dir:{}", vault.display()));
    refresh(&hosts[0], &images[1], &["--wait"]);
    is(&hosts, "stable", &images[1]);
    have_moved(&hosts, 2);
    // The state of now, to which it will be put back.
    let old = shared.path("old");
    let copy = |from: &Path, to: &Path| {
        let (from, to) = (from.display().to_string(), to.display().to_string());
        crate::common::run("cp", &["-a", &from, &to]);
    };
    copy(&vault, &old);
    refresh(&hosts[1], &images[2], &["--wait"]);
    is(&hosts, "stable", &images[2]);
    have_moved(&hosts, 2);
    fs::rename(&vault, &away).expect("it is away");
    let image = images[0].display().to_string();
    let order = ["pool", "refresh", "office", &image];
    let said = hosts[0].rig.refused(&order, 1);
    assert!(said.contains("mount the storage"), "{said}");
    wait_until("it is told", PATIENCE, || {
        !hosts[1].rig.tenuto(&["status", "-x"]).status.success()
    });
    assert_eq!(found(&hosts[1], "desk-1", 4), block(3, 4));
    hosts[1].stop();
    hosts[1].start();
    assert_eq!(found(&hosts[1], "desk-1", 4), block(3, 4));
    copy(&old, &vault);
    for host in &hosts {
        wait_until("it is told", PATIENCE, || {
            let said = host.rig.tenuto(&["status", "-x"]);
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            said.contains("pool office: ")
        });
        assert_eq!(found(host, "desk-2", 4), block(3, 4));
    }
    // An order makes it right again.
    refresh(&hosts[0], &images[0], &["--wait"]);
    wait_until("all follow", PATIENCE, || {
        hosts
            .iter()
            .all(|host| found(host, "desk-1", 6) == block(1, 6))
    });
    is(&hosts, "stable", &images[0]);
    wait_until("all is well", PATIENCE, || {
        let mut hosts = hosts.iter();
        hosts.all(|host| host.rig.tenuto(&["status", "-x"]).status.success())
    });
    for host in &mut hosts {
        host.stop();
    }
}

/// Fails when: the canaries of one host only are waited for or asked about, the others move before
/// that, or a pool does not go back on all hosts.
#[test]
fn a_canary_that_is_ill_takes_the_pool_back_on_all_hosts() {
    let shared = Shared::new();
    let (mut hosts, images) = pools(&shared, "beside");
    let health = shared.path("health");
    // Well while there is this file.
    let well = shared.path("well");
    let text = format!("#!/bin/sh\n[ -e {} ]\n", well.display());
    fs::write(&health, text).expect("a program");
    fs::set_permissions(&health, fs::Permissions::from_mode(0o755)).expect("make it run");
    let mut runs = guest(&hosts[1], "desk-1");
    runs.read(0, SIZE);
    let program = health.display().to_string();
    let order = ["--canary", "desk-1", "--soak", "0s", "--max-failed", "1"];
    let order = [&order[..], &["--health", &program]].concat();
    refresh(&hosts[0], &images[1], &order);
    assert_eq!(found(&hosts[0], "desk-1", 3), block(2, 3));
    // The canary of the other host has a guest, so no step follows, and no other member moves.
    wait_until("the other host has heard of it", PATIENCE, || {
        shown(&hosts[1])["state"] == "rolling"
    });
    wait_until("that of this host is known to be ill", PATIENCE, || {
        let pool = shown(&hosts[0]);
        let rows = pool["hosts"].as_array().expect("a list");
        rows.iter()
            .any(|it| it["unhealthy"][0]["member"] == "desk-1")
    });
    // A step that does not wait for the other host comes within a round.
    thread::sleep(Duration::from_secs(3));
    let pool = shown(&hosts[0]);
    assert_eq!(pool["generation"], 2, "{pool}");
    assert_eq!(pool["rollout"]["percent"], Value::Null, "{pool}");
    for host in &hosts {
        assert_eq!(found(host, "desk-2", 3), block(1, 3));
    }
    assert_eq!(runs.read(5 * BLOCK, SIZE), block(1, 5));
    runs.disconnect();
    is(&hosts, "stable", &images[0]);
    for host in &hosts {
        let why = shown(host)["went_back"].as_str().map(str::to_owned);
        let why = why.expect("it is told");
        assert!(why.contains("desk-1 on host-"), "{why}");
        assert!(why.contains("and 1 more"), "{why}");
        wait_until("it has the image before", PATIENCE, || {
            found(host, "desk-1", 3) == block(1, 3)
        });
        assert!(!host.rig.tenuto(&["status", "-x"]).status.success());
    }
    // The same with a canary that is well goes on to all members.
    fs::write(&well, "").expect("a file");
    refresh(&hosts[1], &images[1], &order);
    is(&hosts, "stable", &images[1]);
    for host in &hosts {
        assert_eq!(found(host, "desk-2", 3), block(2, 3));
    }
    for host in &mut hosts {
        host.stop();
    }
}

/// Fails when: a pool that is never refreshed is told to be wrong because no record can lie beside
/// its image, or an order does not say so.
#[test]
fn a_vault_that_cannot_be_made_is_told_by_the_order_that_needs_it() {
    let shared = Shared::new();
    let taken = shared.path("gold-1.img.tenuto.d");
    fs::write(&taken, "of others").expect("a file");
    let (mut hosts, images) = pools(&shared, "beside");
    // Two looks into the vault, if it were there.
    thread::sleep(Duration::from_secs(6));
    for host in &hosts {
        assert!(host.rig.tenuto(&["status", "-x"]).status.success());
        assert_eq!(shown(host)["trouble"], Value::Null);
    }
    let image = images[1].display().to_string();
    let said = hosts[0]
        .rig
        .refused(&["pool", "refresh", "office", &image], 1);
    assert!(
        said.contains("gold-1.img.tenuto.d: cannot make it"),
        "{said}"
    );
    assert_eq!(found(&hosts[1], "desk-1", 3), block(1, 3));
    fs::remove_file(&taken).expect("it is free");
    refresh(&hosts[0], &images[1], &["--wait"]);
    wait_until("the other host follows", PATIENCE, || {
        found(&hosts[1], "desk-1", 3) == block(2, 3)
    });
    for host in &mut hosts {
        host.stop();
    }
}

/// Fails when: an etcd does not do as a vault of pools, or two orders at once both count.
#[test]
fn an_etcd_has_the_records_of_pools_as_well() {
    if !have("an_etcd_has_the_records_of_pools_as_well", &["etcd"]) {
        return;
    }
    let etcd = Etcd::started(1);
    let shared = Shared::new();
    let (mut hosts, images) = pools(&shared, &etcd.vault());
    both_follow(&hosts, &images);
    let order = |host: &Host, image: &Path| {
        let image = image.display().to_string();
        host.rig
            .tenuto(&["pool", "refresh", "office", &image])
            .status
    };
    let orders = thread::scope(|scope| {
        let one = scope.spawn(|| order(&hosts[0], &images[1]));
        let two = scope.spawn(|| order(&hosts[1], &images[2]));
        [one, two].map(|it| it.join().expect("it ends"))
    });
    assert!(orders.iter().any(|it| it.success()), "{orders:?}");
    wait_until("all hosts have the same", PATIENCE, || {
        let [one, two] = [0, 1].map(|at| shown(&hosts[at]));
        let stable = [&one, &two].iter().all(|it| it["state"] == "stable");
        stable && one["image"] == two["image"] && one["generation"] == two["generation"]
    });
    have_moved(&hosts, 2);
    let [one, two] = [0, 1].map(|at| found(&hosts[at], "desk-1", 11));
    assert_eq!(one, two);
    for host in &mut hosts {
        host.stop();
    }
}
