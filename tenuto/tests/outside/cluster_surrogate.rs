//! The SSD of a dead host in another one: `recover --cache` brings what only it has to the images.
//!
//! Always true: the owner is killed with flushes under way and its RAM is lost; the host that
//! recovers is under another boot; and whether anything was written is seen in the files.
//! Deliberately absent: caches of hosts that are in no cluster.

use std::path::PathBuf;

use serde_json::Value;
use workload::check::Crash;

use crate::cluster_copies::{Cluster, NO_COPY, ONE_COPY, load};
use crate::common::load::Load;
use crate::common::{EXIT_REFUSED, PATIENCE, seed, wait_until};

pub(crate) fn files(cluster: &Cluster) -> Vec<(PathBuf, Vec<u8>)> {
    let names = std::fs::read_dir(cluster.shared.path("")).expect("its directory");
    let names = names.map(|entry| entry.expect("a name").path());
    let mut found: Vec<_> = names
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(&path).expect("it is there")))
        .collect();
    found.sort();
    found
}

/// The owner is gone with its RAM, and what it has not destaged is on its SSD only.
fn stranded(lines: &str, load: &mut Load, dead: &[usize]) -> Cluster {
    let mut cluster = Cluster::without_fence(2, lines);
    cluster.write(0, load, 200);
    if lines == ONE_COPY {
        cluster.is_full(0);
    }
    cluster.kill_under_load(0, load, dead, 200);
    cluster.hosts[0].rig.lose_stage();
    // It is another machine, with a boot of its own.
    let rig = &cluster.hosts[1].rig;
    rig.go_to_boot(rig.boot() + 7);
    cluster
}

fn cache(cluster: &Cluster) -> String {
    cluster.hosts[0].rig.cache_path().display().to_string()
}

fn recover(cluster: &Cluster) -> String {
    let cache = cache(cluster);
    let words = ["recover", "--cache", &cache, "--fenced"];
    cluster.hosts[1].rig.done(&words)
}

/// Fails when: the SSD of a dead host is of no use without its host, the word of an administrator
/// is not asked for, or the owner that is back goes on with what it had.
#[test]
fn the_ssd_of_a_dead_host_is_recovered_by_another_one() {
    let mut load = load(seed(81));
    let mut cluster = stranded(NO_COPY, &mut load, &[0]);
    let (cache, before) = (cache(&cluster), files(&cluster));
    let rig = &cluster.hosts[1].rig;
    let dry = rig.json(&["recover", "--cache", &cache, "--dry-run"]);
    let volume = &dry["volumes"][0];
    let shown = (&volume["name"], &volume["owner"], &volume["needs_fenced"]);
    assert_eq!(
        shown,
        (&"disk".into(), &"host-a".into(), &true.into()),
        "{dry}"
    );
    let said = rig.refused(&["recover", "--cache", &cache], EXIT_REFUSED);
    assert!(
        said.contains("host-a owns disk") && said.contains("--fenced"),
        "{said}"
    );
    assert!(
        files(&cluster) == before,
        "nothing is written without the word"
    );
    // A client of the other host waits for it meanwhile.
    let later = cluster.hosts[1].client_later();
    cluster.hosts[1].waits_for("ownership", "waiting-for-proof");
    let needs = cluster.hosts[1].show()["depends_on"].clone();
    assert_eq!(needs[0]["host"], "host-a", "{needs}");
    recover(&cluster);
    let client = later.join().expect("no panic").expect("served in the end");
    cluster.leave(1, client);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    assert_eq!(
        cluster.hosts[1].show()["depends_on"],
        Value::Array(Vec::new())
    );
    cluster.write(1, &mut load, 100);
    let again = recover(&cluster);
    assert!(again.contains("no dirty data"), "{again}");
    cluster.start(0);
    cluster.hosts[0].waits_for("ownership", "away");
    cluster.check(0, &mut load, Crash::Kill, "where it was first");
    cluster.stop();
}

/// Fails when: a silent host with a copy is waited for by who recovers the owner's SSD.
#[test]
fn an_ssd_is_recovered_without_the_host_that_had_the_copy() {
    let mut load = load(seed(82));
    let mut cluster = stranded(ONE_COPY, &mut load, &[0, 1]);
    recover(&cluster);
    cluster.start(1);
    cluster.check(1, &mut load, Crash::PowerLoss, "from the image");
    cluster.start(0);
    wait_until("no host keeps an old copy", PATIENCE, || {
        let kept = cluster.hosts[1].rig.json(&["status"])["copies"].clone();
        kept.as_array().is_some_and(Vec::is_empty) || cluster.copies(1)["state"] == "full"
    });
    cluster.write(1, &mut load, 100);
    cluster.stop();
}

/// Fails when: what another host has gone on without is written over what is newer.
#[test]
fn an_ssd_that_another_host_went_on_without_is_refused() {
    let mut load = load(seed(83));
    let mut cluster = stranded(ONE_COPY, &mut load, &[0]);
    let rig = &cluster.hosts[1].rig;
    rig.go_to_boot(0);
    cluster.check(1, &mut load, Crash::PowerLoss, "from the copy");
    let before = files(&cluster);
    let cache = cache(&cluster);
    let words = ["recover", "--cache", &cache, "--fenced"];
    let said = cluster.hosts[1].rig.refused(&words, EXIT_REFUSED);
    assert!(said.contains("host-b owns it with another cache"), "{said}");
    assert!(files(&cluster) == before, "nothing is written");
    cluster.check(1, &mut load, Crash::Kill, "afterwards");
    cluster.hosts[1].stop();
}

/// Fails when: an image of a cluster is written with the configuration of a host that is in none.
#[test]
fn an_ssd_of_a_cluster_is_refused_outside_of_it() {
    let mut load = load(seed(84));
    let cluster = stranded(NO_COPY, &mut load, &[0]);
    let alone = crate::common::Rig::new();
    alone.write_config();
    let cache = cache(&cluster);
    let said = alone.refused(&["recover", "--cache", &cache, "--fenced"], EXIT_REFUSED);
    assert!(said.contains("belongs to a cluster"), "{said}");
    let dry = alone.json(&["recover", "--cache", &cache, "--dry-run"]);
    assert_eq!(dry["volumes"], Value::Array(Vec::new()), "{dry}");
    assert_eq!(dry["refused"][0]["name"], "disk", "{dry}");
}
