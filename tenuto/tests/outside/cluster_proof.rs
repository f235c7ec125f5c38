//! Volumes that are served from a copy before there is proof that their owner writes no more, and
//! what counts as proof.
//!
//! Always true: no program says that a host is dead, the owner is killed with flushes under way,
//! and what its image has meanwhile is compared byte by byte. Deliberately absent: owners that live
//! behind a broken link.

use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use workload::check::Crash;

use crate::cluster_copies::{Cluster, ONE_COPY, load};
use crate::common::load::{End, Load};
use crate::common::{PATIENCE, SetWhenDropped, seed, text_of, wait_until};

fn image(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(cluster.shared.path("disk.img")).expect("the image")
}

/// Ledgers and journals, with what they hold.
fn beside(cluster: &Cluster) -> Vec<(PathBuf, Vec<u8>)> {
    let names = std::fs::read_dir(cluster.shared.path("")).expect("its directory");
    let names = names.map(|entry| entry.expect("a name").path());
    let ours = |path: &PathBuf| path.display().to_string().contains("disk.img.tenuto-");
    let found = names.filter(ours);
    let mut found: Vec<_> = found
        .map(|path| {
            let bytes = std::fs::read(&path).expect("it is there");
            (path, bytes)
        })
        .collect();
    found.sort();
    found
}

/// The owner is killed while it destages under load, and the other host is served from its copy.
fn replaced(load: &mut Load) -> Cluster {
    let mut cluster = Cluster::without_fence(2, ONE_COPY);
    cluster.write(0, load, 200);
    cluster.is_full(0);
    cluster.hosts[0].rig.done(&["volume", "destage", "disk"]);
    cluster.kill_under_load(0, load, &[0], 200);
    cluster.check(1, load, Crash::PowerLoss, "before there is proof");
    let shown = cluster.hosts[1].show();
    assert_eq!(shown["ownership"], "waiting-for-proof", "{shown}");
    let drain = (
        &shown["owner"],
        &shown["drain"]["holder"],
        &shown["drain"]["proof"],
    );
    let wanted = (&"host-b".into(), &"host-a".into(), &serde_json::Value::Null);
    assert_eq!(drain, wanted, "{shown}");
    cluster
}

fn destage(cluster: &Cluster) -> Output {
    cluster.hosts[1]
        .rig
        .tenuto(&["volume", "destage", "disk", "--wait"])
}

fn has_proof(cluster: &Cluster, proof: &str) {
    wait_until("it has the right", PATIENCE, || {
        let shown = cluster.hosts[1].show();
        shown["ownership"] == "owner" && shown["drain"]["proof"] == proof
    });
    let drain = cluster.hosts[1].show()["drain"].clone();
    assert_eq!(drain["holder"], "host-b", "{drain}");
}

/// Fails when: a client waits for proof, something is written to the image before there is any, or
/// a host that is back does not say that it writes no more.
#[test]
fn a_copy_is_served_before_there_is_proof_and_a_host_that_is_back_is_proof() {
    let mut load = load(seed(51));
    let mut cluster = replaced(&mut load);
    let before = (image(&cluster), beside(&cluster));
    cluster.write(1, &mut load, 300);
    // Also where it is not waited for.
    let refused = cluster.hosts[1].rig.tenuto(&["volume", "destage", "disk"]);
    let said = text_of(&refused);
    assert!(
        !refused.status.success() && said.contains("host-a may still write"),
        "{said}"
    );
    let wrong = text_of(&cluster.hosts[1].rig.tenuto(&["status", "-x"]));
    assert!(wrong.contains("host-a may still write"), "{wrong}");
    // A daemon of it that is killed goes on as it was.
    cluster.kill_under_load(1, &mut load, &[1], 100);
    cluster.start(1);
    cluster.check(1, &mut load, Crash::Kill, "after a restart without proof");
    assert!(
        (image(&cluster), beside(&cluster)) == before,
        "its image was written"
    );
    let stays = cluster.served(1);
    cluster.start(0);
    has_proof(&cluster, "released by its host");
    cluster.hosts[0].waits_for("ownership", "away");
    cluster.leave(1, stays);
    let done = destage(&cluster);
    assert!(done.status.success(), "{}", text_of(&done));
    assert_eq!(cluster.hosts[1].show()["dirty_bytes"], 0);
    cluster.check(1, &mut load, Crash::Kill, "when all is at the image");
    assert_eq!(cluster.is_full(1), 0);
    cluster.hosts.iter_mut().for_each(|host| drop(host.stop()));
}

/// Fails when: a guest hears an error, or reads something old, when its volume gets the right to
/// write its image.
#[test]
fn a_volume_gets_the_right_to_write_its_image_under_load() {
    let mut load = load(seed(52));
    let mut cluster = replaced(&mut load);
    let client = cluster.served(1);
    let before = load.counts.answered;
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let end = std::thread::scope(|scope| {
        let rig = &cluster.hosts[1].rig;
        let order = scope.spawn(|| {
            let _over = SetWhenDropped(&over);
            wait_until("the load has begun", PATIENCE, || begun.load(SeqCst));
            rig.done(&["volume", "takeover", "disk", "--fenced"]);
            rig.done(&["volume", "destage", "disk", "--wait"])
        });
        let end = load.run(client, |counts| {
            begun.fetch_or(counts.answered - before > 200, SeqCst);
            !over.load(SeqCst)
        });
        order.join().expect("no panic");
        end
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    has_proof(&cluster, "fenced by an administrator");
    cluster.check(1, &mut load, Crash::Kill, "under load");
    cluster.kill_under_load(1, &mut load, &[1], 100);
    cluster.start(1);
    cluster.check(1, &mut load, Crash::Kill, "after a kill");
    cluster.hosts[1].stop();
}
