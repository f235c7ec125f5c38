//! Volumes that lack their copy and are set to `on-degraded = "write-through"`: what is flushed is
//! at the image, and the host may be lost with its SSD.
//!
//! Always true: nothing goes to the image by itself, so what is found there was brought by a flush.
//! Deliberately absent: volumes that go on without, see `cluster_copies`.

use serde_json::Value;
use workload::check::Crash;

use crate::cluster_copies::{Cluster, NO_COPY, load, name};
use crate::common::load::Load;
use crate::common::{PATIENCE, seed, wait_until};

const THROUGH: &str = "destage-after = \"never\"\nreplicas = 1\non-degraded = \"write-through\"";

/// Waits until flushes of the volume at this host are answered by the image, or are not.
fn effective(cluster: &Cluster, at: usize, policy: &str) -> Value {
    let mut shown = Value::Null;
    wait_until(&format!("it is {policy}"), PATIENCE, || {
        shown = cluster.hosts[at].show();
        shown["effective_policy"] == policy
    });
    let through = policy == "write-through";
    assert_eq!(shown["replication"]["at_origin"], through, "{shown}");
    assert_eq!(shown["policy"], "write-back", "{shown}");
    shown
}

/// Its last host is lost with its SSD under load; what was flushed is served at the other one,
/// without an administrator.
fn lost_with_its_ssd(cluster: &mut Cluster, load: &mut Load, owner: usize, other: usize) {
    cluster.kill_under_load(owner, load, &[owner], 150);
    let rig = &cluster.hosts[owner].rig;
    std::fs::remove_file(rig.cache_path()).expect("its cache");
    rig.lose_stage();
    cluster.start(other);
    let when = format!("at {}", name(other));
    cluster.check(other, load, Crash::PowerLoss, &when);
    let proof = cluster.hosts[other].show()["drain"]["proof"].clone();
    assert_eq!(proof, "fenced by its program");
}

/// Fails when: a flush is answered before the image has what it covers, or a host that takes the
/// volume over asks for what the lost one may have had.
#[test]
fn what_is_flushed_without_a_copy_outlives_the_host_and_its_ssd() {
    let mut cluster = Cluster::new(2, THROUGH);
    let mut load = load(seed(141));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    effective(&cluster, 0, "write-back");
    cluster.write(0, &mut load, 100);
    let full = effective(&cluster, 0, "write-back");
    assert!(full["dirty_bytes"].as_u64() > Some(0), "{full}");
    cluster.kill_under_load(0, &mut load, &[1], 100);
    let shown = effective(&cluster, 0, "write-through");
    let reason = shown["effective_reason"].as_str().expect("words");
    assert!(reason.contains("when its image has them"), "{reason}");
    let promise = shown["promise"].as_str().expect("words");
    // All of it, where the guest has written nothing since.
    let all = "the origin has every acknowledged write";
    let flushed = promise.contains("it is on the origin") || promise.contains(all);
    assert!(flushed, "{promise}");
    cluster.write(0, &mut load, 100);
    // A daemon that begins again goes on so. Its log may not know yet that the image has all: it
    // makes sure of that first.
    let shown = effective(&cluster, 0, "write-through");
    assert_eq!(shown["dirty_bytes"], 0, "{shown}");
    cluster.hosts[0].kill();
    cluster.start(0);
    cluster.write(0, &mut load, 10);
    effective(&cluster, 0, "write-through");
    lost_with_its_ssd(&mut cluster, &mut load, 0, 1);
    // The one that took it over has no copy either.
    effective(&cluster, 1, "write-through");
    cluster.write(1, &mut load, 100);
    cluster.check(1, &mut load, Crash::Kill, "after it was taken over");
    cluster.hosts[1].stop();
}

/// Fails when: the way back to the log is taken before the copy has all, or is not taken; or a host
/// that begins again is believed to have no more than the image.
#[test]
fn a_volume_goes_on_at_its_image_until_its_copy_is_back() {
    let mut cluster = Cluster::new(2, THROUGH);
    let mut load = load(seed(142));
    cluster.write(0, &mut load, 100);
    cluster.is_full(0);
    cluster.kill_under_load(0, &mut load, &[1], 100);
    effective(&cluster, 0, "write-through");
    // With writes that no flush has covered, which its log has.
    cluster.kill_under_load(0, &mut load, &[0], 100);
    cluster.start(0);
    cluster.check(0, &mut load, Crash::Kill, "after the owner was killed");
    effective(&cluster, 0, "write-through");
    cluster.write(0, &mut load, 50);
    cluster.start(1);
    assert_eq!(cluster.is_full(0), 1);
    effective(&cluster, 0, "write-back");
    cluster.write(0, &mut load, 100);
    let shown = cluster.hosts[0].show();
    assert!(shown["dirty_bytes"].as_u64() > Some(0), "{shown}");
    cluster.destroy(0);
    cluster.check(1, &mut load, Crash::PowerLoss, "from the copy");
    cluster.hosts[1].stop();
}

/// Fails when: a change of `on-degraded` is not heard of while the volume is served.
#[test]
fn on_degraded_can_be_changed_live() {
    let mut cluster = Cluster::new(2, NO_COPY);
    let mut load = load(seed(143));
    cluster.hosts[1].kill();
    cluster.write(0, &mut load, 100);
    let set = |cluster: &Cluster, key: &str| {
        cluster.hosts[0].rig.done(&["volume", "set", "disk", key]);
    };
    set(&cluster, "replicas=1");
    cluster.is_degraded(0);
    effective(&cluster, 0, "write-back");
    for _ in 0..2 {
        set(&cluster, "on-degraded=write-through");
        effective(&cluster, 0, "write-through");
        cluster.write(0, &mut load, 50);
        assert_eq!(cluster.hosts[0].show()["dirty_bytes"], 0);
        set(&cluster, "on-degraded=continue");
        effective(&cluster, 0, "write-back");
        cluster.write(0, &mut load, 50);
        assert!(cluster.hosts[0].show()["dirty_bytes"].as_u64() > Some(0));
    }
    set(&cluster, "on-degraded=write-through");
    effective(&cluster, 0, "write-through");
    lost_with_its_ssd(&mut cluster, &mut load, 0, 1);
    cluster.hosts[1].stop();
}
