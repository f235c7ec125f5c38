//! Files of a running host that somebody removes: the stage, the cache, ledgers, sockets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::nbd::Client;
use crate::common::{EXIT_REFUSED, Rig, text_of, wait_until};

const BYTES: u64 = 16 << 20;
/// Within ten seconds it is to be noticed; a busy machine may take longer to do the rest.
const NOTICED: Duration = Duration::from_secs(120);

fn names(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{word:?} in {line}");
    }
}

fn wrong(rig: &Rig) -> String {
    text_of(&rig.tenuto(&["status", "-x"]))
}

fn state(rig: &Rig, volume: &str) -> String {
    rig.show(volume)["state"].as_str().unwrap().to_owned()
}

/// A volume of each policy that differs here, on images of their own.
fn rig_of_three() -> Rig {
    let mut rig = Rig::new();
    for (name, policy) in [
        ("disk", "write-back"),
        ("clone", "ephemeral"),
        ("plain", "write-through"),
    ] {
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(name, &image, policy, "");
    }
    rig
}

/// Fails when: a stage that is gone counts as lost with the power (`ForgetLostStage`).
#[test]
fn a_stage_that_is_gone_in_its_boot_holds_what_may_miss_writes_until_the_loss_is_accepted() {
    let rig = rig_of_three();
    let daemon = rig.serve();
    for name in ["disk", "clone", "plain"] {
        let mut client = rig.connect(name);
        client.write(0, &[1; 8192]);
        client.flush();
        client.write(1 << 20, &[2; 4096]);
    }
    daemon.kill();
    rig.remove_stage();
    // Also by a start that came to nothing.
    rig.serve().kill();
    let daemon = rig.serve();
    assert_eq!(state(&rig, "disk"), "held");
    assert_eq!(state(&rig, "clone"), "held");
    assert_eq!(state(&rig, "plain"), "clean");
    names(
        &wrong(&rig),
        &[
            "volume disk is held: acknowledged writes may be missing, because the stage is gone",
            "volume clone is held: its overlay is lost, because the stage is gone",
            "tenuto volume accept-loss disk",
        ],
    );
    let refused = Client::connect(&rig.socket("disk"), "disk").err();
    names(&refused.expect("no export").to_string(), &["held"]);
    let line = rig.refused(&["volume", "accept-loss", "disk"], EXIT_REFUSED);
    names(&line, &["what was flushed is kept", "--discard-dirty=disk"]);
    rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    rig.done(&["volume", "reset", "clone"]);
    assert_eq!(rig.connect("disk").read(0, 8192), vec![1; 8192]);
    let newer = rig.connect("disk").read(1 << 20, 4096);
    assert!(newer == [0; 4096] || newer == [2; 4096]);
    assert_eq!(rig.connect("clone").read(0, 8192), vec![0; 8192]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(
        std::fs::read(rig.dir.join("disk.img")).unwrap()[..8192],
        [1; 8192]
    );
    rig.connect("disk").write(4096, &[3; 4096]);
    rig.connect("clone").write(4096, &[3; 4096]);
    // A stage that is there holds nothing.
    daemon.kill();
    let daemon = rig.serve();
    for name in ["disk", "clone"] {
        assert_eq!(rig.connect(name).read(4096, 4096), vec![3; 4096]);
    }
    // After an orderly stop the stage has nothing but overlays.
    daemon.stop();
    rig.remove_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![3; 4096]);
    assert_eq!(state(&rig, "clone"), "held");
    rig.done(&["volume", "accept-loss", "clone", "--discard-dirty=clone"]);
    rig.connect("disk").write(0, &[4; 4096]);
    // After a loss of power the stage is gone as it must be.
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![3; 4096]);
    assert_eq!(state(&rig, "clone"), "clean");
    daemon.stop();
}

/// The events of a kind, in words.
fn events(rig: &Rig, kind: &str) -> String {
    let output = rig.done(&["events", "--json"]);
    let lines = output.lines().filter(|line| line.contains(kind));
    lines.collect::<Vec<_>>().join("\n")
}

/// Fails when: the sockets of volumes are not made again, or that of the orders is not.
#[test]
fn sockets_that_are_removed_are_made_again_and_who_is_connected_stays() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.guest_volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let sockets: Vec<PathBuf> = std::fs::read_dir(rig.run_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(sockets.len(), 4, "{sockets:?}");
    let answers = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_ok();
    let mut client = rig.connect("disk");
    for round in 0..2u8 {
        std::fs::remove_dir_all(rig.run_dir()).unwrap();
        if round == 0 {
            daemon.signal(libc::SIGHUP);
        }
        wait_until("all sockets are there", NOTICED, || {
            sockets.iter().all(answers)
        });
        client.write(0, &[round; 4096]);
        client.flush();
        assert_eq!(rig.connect("disk").read(0, 4096), vec![round; 4096]);
    }
    wait_until("it is told", NOTICED, || {
        let told = events(&rig, "files");
        told.contains("nbd.sock: was removed") && told.contains("disk.vhost.sock")
    });
    assert_eq!(rig.tenuto(&["status", "-x"]).status.code(), Some(0));
    client.disconnect();
    daemon.stop();
    assert!(!sockets.iter().any(|path| path.exists()));
}

/// A volume that nobody destages by itself, with two dirty blocks.
fn rig_of_a_dirty_volume() -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "destage-after = \"never\"");
    (rig, image)
}

fn block_of(image: &Path, block: usize) -> Vec<u8> {
    std::fs::read(image).unwrap()[block * 4096..][..4096].to_vec()
}

/// Fails when: it is not looked at whether the cache file has its name, or a stop in order leaves
/// in that file what is dirty.
#[test]
fn what_lies_in_a_cache_file_that_was_removed_goes_to_its_origin_and_guests_go_on() {
    let (rig, image) = rig_of_a_dirty_volume();
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 4096]);
    client.flush();
    client.write(4096, &[2; 4096]);
    assert_eq!(block_of(&image, 0), [0; 4096]);
    std::fs::remove_file(rig.cache_path()).unwrap();
    wait_until("guests go on without it", NOTICED, || {
        rig.show("disk")["effective_policy"] == "uncached"
    });
    assert_eq!(block_of(&image, 0), [1; 4096]);
    assert_eq!(block_of(&image, 1), [2; 4096]);
    names(
        &wrong(&rig),
        &["/cache: was removed or replaced while it is in use"],
    );
    wait_until("it is told", NOTICED, || {
        events(&rig, "files").contains("was removed or replaced")
    });
    client.write(8192, &[3; 4096]);
    client.flush();
    assert_eq!(block_of(&image, 2), [3; 4096]);
    client.disconnect();
    daemon.stop();
    // A new cache is made, and nothing is missing.
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(12_288, &[4; 4096]);
    client.flush();
    // Removed a moment before an orderly stop.
    std::fs::rename(rig.cache_path(), rig.dir.join("elsewhere")).unwrap();
    client.disconnect();
    let log = daemon.stop();
    names(&log, &["to their origins first"]);
    assert_eq!(block_of(&image, 3), [4; 4096]);
    let daemon = rig.serve();
    assert_eq!(state(&rig, "disk"), "clean");
    daemon.stop();
}

/// Fails when: ledger and journal are not looked for when they are synced, or not while they are at
/// rest.
#[test]
fn a_ledger_and_a_journal_that_are_removed_are_written_again_before_anything_is_at_the_origin() {
    let (rig, image) = rig_of_a_dirty_volume();
    let (ledger, journal) = (
        rig.dir.join("disk.img.tenuto"),
        rig.dir.join("disk.img.tenuto-journal"),
    );
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 4096]);
    std::fs::remove_file(&ledger).unwrap();
    std::fs::remove_file(&journal).unwrap();
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert!(ledger.exists() && journal.exists());
    assert_eq!(block_of(&image, 0), [1; 4096]);
    // At rest.
    client.write(4096, &[2; 4096]);
    client.flush();
    std::fs::remove_file(&ledger).unwrap();
    wait_until("the ledger is there", NOTICED, || ledger.exists());
    wait_until("it is told", NOTICED, || {
        events(&rig, "files").contains("disk.img.tenuto was removed; it is written again")
    });
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(state(&rig, "disk"), "dirty", "{}", wrong(&rig));
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![2; 4096]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(block_of(&image, 1), [2; 4096]);
    daemon.stop();
}

/// Fails when: no stage is made again, or the new file has nothing of the old one and gets nothing.
#[test]
fn a_stage_that_is_removed_is_made_again_and_a_kill_loses_nothing() {
    let rig = rig_of_three();
    let daemon = rig.serve();
    for name in ["disk", "clone"] {
        rig.connect(name).write(0, &[1; 4096]);
    }
    rig.remove_stage();
    let there = || std::fs::read_dir(rig.stage_dir()).unwrap().count() == 1;
    wait_until("the stage is there", NOTICED, || {
        there() && events(&rig, "files").contains("it is made again")
    });
    for name in ["disk", "clone"] {
        rig.connect(name).write(4096, &[2; 4096]);
    }
    daemon.kill();
    let daemon = rig.serve();
    for name in ["disk", "clone"] {
        let read = rig.connect(name).read(0, 8192);
        assert!(
            read[..4096] == [1; 4096] && read[4096..] == [2; 4096],
            "{name}"
        );
    }
    assert_eq!(rig.tenuto(&["status", "-x"]).status.code(), Some(0));
    daemon.stop();
}
