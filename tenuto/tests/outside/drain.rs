//! Draining a host, from outside: under load, over a kill and a restart, and back.

use std::path::Path;
use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::load::{End, Load};
use crate::common::{EXIT_FAILED, Rig, count, wait_until};

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn rig() -> Rig {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    let disk = rig.image("disk.img", BYTES);
    rig.volume("disk", &disk, "write-back", "destage-after = \"never\"");
    for name in ["data", "log"] {
        let image = rig.image(&format!("{name}.img"), BYTES);
        rig.volume(name, &image, "write-back", "group = \"db\"");
    }
    let gold = rig.image("gold.img", BYTES);
    rig.volume("clone", &gold, "ephemeral", "");
    rig
}

/// The host next door takes an image that nobody owns, without a word, and writes it.
fn another_host_takes(image: &Path) {
    let mut other = Rig::new();
    other.volume("disk", image, "write-back", "");
    let daemon = other.serve();
    let shown = other.show("disk");
    assert_eq!(shown["state"], "clean", "{}", shown["effective_reason"]);
    other.connect("disk").write(0, &[1; 512]);
    daemon.stop();
}

fn policy(rig: &Rig, name: &str) -> String {
    rig.show(name)["effective_policy"].to_string()
}

/// Fails when: the drained state of the host is not persisted.
#[test]
fn a_host_is_drained_under_load_stays_so_over_kills_and_comes_back() {
    let rig = rig();
    let mut daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Sectors, 11);
    for name in ["data", "log"] {
        let mut client = rig.connect(name);
        client.write(8192, &[name.len() as u8; 4096]);
        client.disconnect();
    }
    rig.connect("clone").write(0, &[5; 4096]);
    let client = rig.connect("disk");
    let end = std::thread::scope(|scope| {
        let load = &mut load;
        let running = scope.spawn(move || load.run(client, |_| true));
        wait_until("there is something to drain", PATIENCE, || {
            rig.show("disk")["dirty_bytes"].as_u64() > Some(1 << 20)
        });
        let said = rig.json(&["drain"]);
        assert_eq!(said["complete"], true, "{said}");
        let notes = said["notes"].to_string();
        assert!(
            notes.contains("volume disk: 1 client still connected"),
            "{notes}"
        );
        for name in ["disk", "data", "log"] {
            let shown = rig.show(name);
            assert_eq!(shown["effective_policy"], "write-through", "{name}");
            assert_eq!(
                shown["policy"], "write-back",
                "{name}: what was ordered is kept"
            );
            let reason = shown["effective_reason"].as_str().expect("a reason");
            assert!(reason.contains("drain --undo"), "{reason}");
            assert_eq!(shown["dirty_bytes"], 0, "{name}");
        }
        assert_eq!(policy(&rig, "clone"), "\"ephemeral\"");
        let table = rig.done(&["volume", "ls"]);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().take(3).collect())
            .collect();
        let through = |name| vec![name, "write-through", "clean"];
        let [data, disk, log] = ["data", "disk", "log"].map(through);
        let clone = vec!["clone", "ephemeral", "overlay"];
        assert_eq!(rows, [clone, data, disk, log], "{table}");
        // A drained host takes on nothing.
        let image = rig.image("new.img", BYTES);
        let origin = format!("origin={}", image.display());
        for order in [
            vec!["volume", "add", "new", &origin, "format=raw"],
            vec!["volume", "set", "disk", "policy=write-back"],
        ] {
            let said = rig.refused(&order, EXIT_FAILED);
            assert!(said.contains("drain --undo"), "{said}");
        }
        daemon.signal(libc::SIGKILL);
        running.join().expect("the load's thread does not panic")
    });
    assert_eq!(end.expect("nothing was lost"), End::Broken);
    daemon.kill();
    assert_eq!(load.counts.refused, 0, "no request fails because of it");
    for _ in 0..count("TENUTO_DRILL_ROUNDS", 2) {
        daemon = rig.serve();
        wait_until("a restart does not end it", PATIENCE, || {
            ["disk", "data", "log"].map(|name| policy(&rig, name)) == ["\"write-through\""; 3]
        });
        assert_eq!(rig.json(&["status"])["drained"], true);
        daemon.kill();
    }
    // Killed without an orderly stop, the host owes nothing to anybody.
    let bytes = std::fs::read(rig.dir.join("disk.img")).expect("read the image");
    let found = load.model.verify(Crash::Kill, |range, part| {
        part.copy_from_slice(&bytes[range.start as usize * 512..][..part.len()]);
        Ok(())
    });
    found.unwrap_or_else(|violation| panic!("the image: {violation}"));
    for name in ["data", "log"] {
        let bytes = std::fs::read(rig.dir.join(format!("{name}.img"))).expect("read");
        assert_eq!(&bytes[8192..12288], &[name.len() as u8; 4096], "{name}");
    }
    daemon = rig.serve();
    rig.done(&["drain", "--undo"]);
    wait_until("the volumes are what they were", PATIENCE, || {
        ["disk", "data", "log"].map(|name| policy(&rig, name)) == ["\"write-back\""; 3]
    });
    assert_eq!(rig.json(&["status"])["drained"], false);
    rig.connect("disk").write(0, &[9; 4096]);
    assert_eq!(rig.show("disk")["dirty_bytes"], 4096);
    rig.done(&["drain"]);
    daemon.stop();
    for name in ["disk", "data"] {
        another_host_takes(&rig.dir.join(format!("{name}.img")));
    }
}

/// Fails when: what could not be drained is left out of the answer.
#[test]
fn what_cannot_be_drained_is_named_and_all_else_is_drained() {
    let mut rig = rig();
    let held = rig.image("held.img", BYTES);
    let mut elsewhere = Rig::new();
    elsewhere.volume("held", &held, "write-back", "destage-after = \"never\"");
    let daemon = elsewhere.serve();
    elsewhere.connect("held").write(0, &[3; 4096]);
    daemon.stop();
    rig.volume("held", &held, "write-back", "");
    let daemon = rig.serve();
    rig.connect("disk").write(0, &[4; 4096]);
    rig.connect("clone").write(0, &[5; 4096]);
    let said = rig.refused(&["drain"], EXIT_FAILED);
    assert!(said.contains("volume held"), "{said}");
    let image = std::fs::read(rig.dir.join("disk.img")).expect("read the image");
    assert_eq!(&image[..4096], &[4; 4096]);
    assert_eq!(policy(&rig, "disk"), "\"write-through\"");
    let shown = rig.done(&["status"]);
    assert!(shown.contains("drained"), "{shown}");
    // Its data comes home; attached again, it is drained as the others are.
    let other = elsewhere.serve();
    elsewhere.done(&["volume", "destage", "held", "--wait"]);
    elsewhere.done(&["volume", "rm", "held"]);
    other.stop();
    let said = rig.done(&["reload"]);
    assert!(said.contains("volume held: is not held any more"), "{said}");
    wait_until("it is drained", PATIENCE, || {
        policy(&rig, "held") == "\"write-through\""
    });
    daemon.stop();
}
