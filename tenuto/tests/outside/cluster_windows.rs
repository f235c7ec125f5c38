//! Backup windows of clustered volumes: the image rests wherever the volume is served meanwhile.
//!
//! Always true: what is dirty goes to the image after a second by itself, so an image that is as it
//! was while older data is dirty shows that it rests; it is compared byte by byte, and its state is
//! one that the volume had. Deliberately absent: windows of a host that is in no cluster, see
//! `backup`.

use serde_json::Value;
use workload::check::Crash;

use crate::cluster_copies::{BYTES, Cluster, load, name};
use crate::common::load::{End, Load};
use crate::common::{EXIT_FAILED, EXIT_REFUSED, PATIENCE, Rig, have, run, seed, wait_until};

const ONE_COPY: &str = "destage-after = \"1s\"\nreplicas = 1";
const NO_COPY: &str = "destage-after = \"1s\"\nreplicas = 0";
/// What is dirty for so long would be at the image, if it did not rest.
const OLD_SECONDS: f64 = 4.0;

fn image(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(cluster.shared.path("disk.img")).expect("the image")
}

fn is_quiesced(shown: &Value) -> bool {
    let flags = shown["flags"].as_array().expect("a list");
    flags.iter().any(|flag| flag == "quiesced")
}

/// Quiesces the volume under load and goes on with it; the image as it was then.
fn quiesce_under_load(cluster: &Cluster, at: usize, load: &mut Load) -> Vec<u8> {
    let (before, mut at_cut) = (load.counts.answered, None);
    let rig = &cluster.hosts[at].rig;
    let end = load.run(cluster.served(at), |counts| {
        let answered = counts.answered - before;
        if answered >= 100 && at_cut.is_none() {
            rig.done(&["volume", "quiesce", "disk"]);
            at_cut = Some(image(cluster));
        }
        answered < 200
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    rig.gone_clients("disk");
    let cut = load.examine(&cluster.shared.path("disk.img"));
    assert!(cut.expect("a state that the volume had") > 0);
    at_cut.expect("it was quiesced")
}

/// The image is as it was, though older data is dirty at this host.
fn rests(cluster: &Cluster, at: usize, at_cut: &[u8], when: &str) {
    wait_until(&format!("it rests for long {when}"), PATIENCE, || {
        assert!(image(cluster) == at_cut, "{when}: its image was written");
        let shown = cluster.hosts[at].show();
        let old = shown["oldest_dirty_seconds"].as_f64() >= Some(OLD_SECONDS);
        is_quiesced(&shown) && old
    });
    assert!(image(cluster) == at_cut, "{when}: its image was written");
}

/// The window is closed at this host, and the image gets all.
fn resumed(cluster: &Cluster, at: usize, load: &mut Load, at_cut: &[u8]) {
    let rig = &cluster.hosts[at].rig;
    rig.done(&["volume", "resume", "disk"]);
    assert!(!is_quiesced(&cluster.hosts[at].show()));
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert!(image(cluster) != at_cut);
    cluster.check(at, load, Crash::Kill, "when all is at the image");
    let mut client = cluster.served(at);
    let disk: Vec<u8> = (0..BYTES >> 20)
        .flat_map(|at| client.read(at << 20, 1 << 20))
        .collect();
    cluster.leave(at, client);
    assert!(image(cluster) == disk, "the image has all");
    let said = rig.refused(&["volume", "resume", "disk"], EXIT_REFUSED);
    assert!(said.contains("no backup window of it is open"), "{said}");
}

/// Fails when: the host that takes the volume over does not know of the window, writes the image
/// before it is closed there, or never afterwards.
#[test]
fn an_open_window_outlives_its_owner() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(171));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    rests(&cluster, 0, &at_cut, "at its owner");
    cluster.kill_under_load(0, &mut load, &[0], 100);
    cluster.check(1, &mut load, Crash::PowerLoss, "at the other host");
    cluster.write(1, &mut load, 100);
    wait_until("it may write the image", PATIENCE, || {
        let shown = cluster.hosts[1].show();
        shown["ownership"] == "owner" && shown["drain"]["holder"] == name(1)
    });
    cluster.write(1, &mut load, 100);
    rests(&cluster, 1, &at_cut, "where it was taken over");
    let said = cluster.hosts[1]
        .rig
        .refused(&["volume", "destage", "disk", "--wait"], EXIT_FAILED);
    assert!(said.contains("resume"), "{said}");
    cluster.start(0);
    for verb in ["quiesce", "resume"] {
        wait_until("it is away there", PATIENCE, || {
            cluster.hosts[0].show()["owner"] == name(1)
        });
        let said = cluster.hosts[0]
            .rig
            .refused(&["volume", verb, "disk"], EXIT_REFUSED);
        assert!(said.contains("is served by host-b"), "{said}");
    }
    resumed(&cluster, 1, &mut load, &at_cut);
    cluster.stop();
}

/// Fails when: the window is lost where the volume goes to another host with its copy, or with a
/// restart or a kill of the daemon.
#[test]
fn an_open_window_goes_with_its_volume_and_outlives_the_daemon() {
    let mut cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(172));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    cluster.hosts[0]
        .rig
        .done(&["volume", "move", "disk", "--to", "host-b"]);
    cluster.hosts[1].waits_for("ownership", "owner");
    cluster.write(1, &mut load, 100);
    rests(&cluster, 1, &at_cut, "where it was moved to");
    cluster.hosts[1].stop();
    cluster.start(1);
    cluster.write(1, &mut load, 50);
    rests(&cluster, 1, &at_cut, "after a restart");
    cluster.kill_under_load(1, &mut load, &[1], 50);
    cluster.start(1);
    cluster.check(1, &mut load, Crash::Kill, "after a kill");
    rests(&cluster, 1, &at_cut, "after a kill");
    resumed(&cluster, 1, &mut load, &at_cut);
    cluster.stop();
}

/// Fails when: a volume without copies is let go of in its window, which would write its image, or
/// is not afterwards; or its window is lost with its daemon.
#[test]
fn a_volume_without_copies_stays_with_its_owner_while_a_window_is_open() {
    let mut cluster = Cluster::new(2, NO_COPY);
    let mut load = load(seed(173));
    cluster.write(0, &mut load, 100);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    let moved = ["volume", "move", "disk", "--to", "host-b"];
    let said = cluster.hosts[0].rig.refused(&moved, EXIT_REFUSED);
    assert!(
        said.contains("a backup window of it is open on host-a"),
        "{said}"
    );
    let later = cluster.hosts[1].client_later();
    wait_until("it is told why it waits", PATIENCE, || {
        let reason = cluster.hosts[1].show()["ownership_reason"].clone();
        reason
            .as_str()
            .is_some_and(|it| it.contains("backup window"))
    });
    rests(&cluster, 0, &at_cut, "while another host asks for it");
    cluster.hosts[0].stop();
    cluster.start(0);
    rests(&cluster, 0, &at_cut, "after a restart");
    cluster.hosts[0].kill();
    cluster.start(0);
    rests(&cluster, 0, &at_cut, "after a kill");
    cluster.hosts[0].rig.done(&["volume", "resume", "disk"]);
    let client = later.join().expect("no panic").expect("it is served");
    cluster.leave(1, client);
    assert!(image(&cluster) != at_cut);
    cluster.check(1, &mut load, Crash::Kill, "at the host that has waited");
    cluster.stop();
}

/// Fails when: guests wait for a backup for ever, the image is written before the record says so,
/// or the one who resumes is not told.
#[test]
fn a_window_that_the_log_has_no_room_for_is_broken_loudly() {
    let lines = "destage-after = \"1s\"\nreplicas = 1\ndirty-limit = \"16MiB\"";
    let cluster = Cluster::new(2, lines);
    let mut load = load(seed(174));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    let term = cluster.hosts[0].show()["term"].as_u64();
    let mut looked = 0;
    let end = load.run(cluster.served(0), |counts| {
        let looks = counts.answered >= looked + 50;
        looked = if looks { counts.answered } else { looked };
        !looks || is_quiesced(&cluster.hosts[0].show())
    });
    assert_eq!(end.expect("reads are right"), End::Enough);
    cluster.hosts[0].rig.gone_clients("disk");
    let shown = cluster.hosts[0].show();
    assert!(shown["term"].as_u64() > term, "its record says so: {shown}");
    let said = cluster.hosts[0]
        .rig
        .refused(&["volume", "resume", "disk"], EXIT_REFUSED);
    assert!(said.contains("may be of no single moment"), "{said}");
    wait_until("an event tells of it", PATIENCE, || {
        cluster.hosts[0]
            .rig
            .done(&["events"])
            .contains("is of no single moment")
    });
    cluster.hosts[0]
        .rig
        .done(&["volume", "destage", "disk", "--wait"]);
    assert!(image(&cluster) != at_cut);
    cluster.check(0, &mut load, Crash::Kill, "afterwards");
    cluster.stop();
}

/// Fails when: a window keeps flushes from the image that have to be there, as the copy is missing;
/// or one is opened then.
#[test]
fn a_window_gives_way_to_what_was_promised_without_a_copy() {
    let through = "destage-after = \"never\"\nreplicas = 1\non-degraded = \"write-through\"";
    let mut cluster = Cluster::new(2, through);
    let mut load = load(seed(175));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    cluster.kill_under_load(0, &mut load, &[1], 100);
    let at_origin = |cluster: &Cluster| {
        wait_until("flushes go to the image", PATIENCE, || {
            cluster.hosts[0].show()["effective_policy"] == "write-through"
        });
    };
    at_origin(&cluster);
    cluster.write(0, &mut load, 50);
    assert!(image(&cluster) != at_cut && !is_quiesced(&cluster.hosts[0].show()));
    let rig = &cluster.hosts[0].rig;
    let said = rig.refused(&["volume", "resume", "disk"], EXIT_REFUSED);
    assert!(said.contains("copies are missing"), "{said}");
    let said = rig.refused(&["volume", "quiesce", "disk"], EXIT_REFUSED);
    assert!(said.contains("--through"), "{said}");
    cluster.start(1);
    assert_eq!(cluster.is_full(0), 1);
    wait_until("flushes go to the log", PATIENCE, || {
        cluster.hosts[0].show()["effective_policy"] == "write-back"
    });
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    assert!(image(&cluster) == at_cut);
    resumed(&cluster, 0, &mut load, &at_cut);
    cluster.stop();
}

/// Fails when: a program that reads the backup finds another image than that of the cut, at the
/// host that opened the window or at the one that the volume has moved to.
#[test]
fn a_backup_is_read_at_the_host_that_serves_the_volume() {
    let test = "a_backup_is_read_at_the_host_that_serves_the_volume";
    if !have(test, &["nbdcopy"]) {
        return;
    }
    let cluster = Cluster::new(2, ONE_COPY);
    let mut load = load(seed(176));
    cluster.write(0, &mut load, 100);
    assert_eq!(cluster.is_full(0), 1);
    let at_cut = quiesce_under_load(&cluster, 0, &mut load);
    let read = |rig: &Rig| {
        let socket = rig.all_exports();
        let backup = format!("nbd+unix:///disk@backup?socket={}", socket.display());
        let copy = rig.dir.join("copy.img");
        run("nbdcopy", &[&backup, &copy.display().to_string()]);
        assert!(std::fs::read(&copy).expect("it") == at_cut, "of the cut");
    };
    read(&cluster.hosts[0].rig);
    cluster.hosts[0]
        .rig
        .done(&["volume", "move", "disk", "--to", "host-b"]);
    cluster.write(1, &mut load, 100);
    cluster.hosts[1].waits_for("ownership", "owner");
    wait_until("its backup is shown", PATIENCE, || {
        let socket = cluster.hosts[1].rig.all_exports();
        crate::common::nbd::Client::connect(&socket, "disk@backup").is_ok()
    });
    read(&cluster.hosts[1].rig);
    resumed(&cluster, 1, &mut load, &at_cut);
    cluster.stop();
}
