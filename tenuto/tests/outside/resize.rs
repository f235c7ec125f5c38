//! Volumes that become larger and smaller, from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use workload::check::{Crash, Promise};

use crate::common::load::{End, Load};
use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig, SetWhenDropped, count, have, run, seed};
use workload::rng::Rng;

const BYTES: u64 = 16 << 20;
const MORE: u64 = 1 << 20;

fn length(rig: &Rig) -> u64 {
    let image = rig.dir.join("disk.img");
    std::fs::metadata(image).expect("the image").len()
}

/// A life of the daemon in which the disk grows under load while it is destaged all the time, and
/// that a kill ends, in the middle of a change every second time.
fn live(rig: &Rig, load: &mut Load, round: u64, random: &mut Rng) {
    let daemon = rig.serve();
    let client = rig.connect("disk");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (daemon, over) = (&daemon, &over);
        let under_load = &mut *load;
        let running = scope.spawn(move || {
            let _over = SetWhenDropped(over);
            under_load.run(client, |_| true)
        });
        for _ in 0..6 {
            let old = length(rig);
            let shown = rig.json(&["volume", "resize", "disk", "+1MiB"]);
            assert_eq!(shown["size_bytes"], old + MORE);
            assert_eq!(length(rig), old + MORE);
        }
        assert!(
            !over.load(Ordering::SeqCst),
            "the load goes on all the time"
        );
        let dying = round.is_multiple_of(2).then(|| {
            let dying = scope.spawn(|| rig.tenuto(&["volume", "resize", "disk", "+1MiB"]));
            std::thread::park_timeout(Duration::from_millis(random.below(40)));
            dying
        });
        daemon.signal(libc::SIGKILL);
        let end = running.join().expect("the load's thread does not panic");
        let end = end.unwrap_or_else(|violation| panic!("under load: {violation}"));
        assert_eq!(end, End::Broken, "only a kill ends the load");
        dying.map(|it| it.join().expect("the command ends"));
    });
    daemon.kill();
}

/// Fails when: recovery does not write to the log what only the stage has (`LeaveInStage`).
#[test]
fn a_disk_grows_under_load_and_over_kills_and_nothing_is_lost() {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "destage-after = \"20ms\"");
    let mut random = Rng::new(seed(5));
    let mut load = Load::new(1, BYTES, Promise::Prefix, seed(5));
    for round in 0..count("TENUTO_DRILL_ROUNDS", 4) {
        live(&rig, &mut load, round, &mut random);
        let daemon = rig.serve();
        let size = length(&rig);
        assert_eq!(
            rig.show("disk")["size_bytes"],
            size,
            "the next life takes what is there"
        );
        let mut client = rig.connect("disk");
        let found = load.verify(Crash::Kill, &mut client);
        found.unwrap_or_else(|violation| panic!("round {round}: {violation}\n{}", daemon.log()));
        // Who comes now has the new space, and it is empty.
        assert_eq!(client.read(size - MORE, 4096), vec![0; 4096]);
        client.write(size - 4096, &[round as u8 + 1; 4096]);
        client.write(size - 4096, &[0; 4096]);
        client.disconnect();
        daemon.stop();
    }
    assert!(load.counts.answered > 0, "nothing was answered");
    assert_eq!(
        load.counts.refused, 0,
        "no request fails because of a change"
    );
}

fn smaller<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["volume", "resize", "disk", "8MiB"], rest].concat()
}

/// Fails when: blocks after the new end stay in the read cache.
#[test]
fn a_disk_becomes_smaller_only_by_force_and_what_was_behind_never_comes_back() {
    let name = "a_disk_becomes_smaller_only_by_force_and_what_was_behind_never_comes_back";
    if !have(name, &["nbdinfo"]) {
        return;
    }
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume(
        "disk",
        &image,
        "write-back",
        "destage-after = \"never\"\nadmission = \"all\"",
    );
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(0, &[1; 8192]);
    client.write(BYTES / 2 - 4096, &[2; 8192]);
    // At the image, and from there in the read tier.
    rig.done(&["volume", "destage", "disk", "--wait"]);
    for _ in 0..2 {
        assert_eq!(client.read(BYTES / 2, 4096), vec![2; 4096]);
    }
    client.write(0, &[1; 512]);
    let said = rig.refused(&smaller(&[]), EXIT_REFUSED);
    for part in ["last 8388608 bytes (8 MiB)", "--shrink"] {
        assert!(said.contains(part), "{said}");
    }
    let said = rig.refused(&smaller(&["--shrink"]), EXIT_REFUSED);
    assert!(said.contains("1 client is connected"), "{said}");
    client.disconnect();
    rig.gone_clients("disk");
    rig.done(&smaller(&["--shrink"]));
    assert_eq!(length(&rig), BYTES / 2);
    let size = run("nbdinfo", &["--size", &rig.uri("disk")]);
    assert_eq!(size.trim(), (BYTES / 2).to_string());
    let said = rig.done(&["volume", "resize", "disk", "16MiB"]);
    assert!(said.contains("has 16 MiB"), "{said}");
    let mut client = rig.connect("disk");
    assert_eq!(client.read(0, 8192), vec![1; 8192]);
    assert_eq!(client.read(BYTES / 2 - 4096, 4096), vec![2; 4096]);
    assert_eq!(
        client.read(BYTES / 2, 4096),
        vec![0; 4096],
        "a block that was cached"
    );
    let said = rig.json(&["volume", "resize", "disk", "16384KiB"]);
    assert!(said["notes"].to_string().contains("already"), "{said}");
    client.disconnect();
    daemon.stop();
}

#[test]
fn a_disk_that_cannot_change_its_size_says_why() {
    let mut rig = Rig::new();
    let image = rig.image("gold.img", BYTES);
    rig.volume("clone", &image, "ephemeral", "");
    let disk = rig.image("disk.img", BYTES);
    rig.volume("disk", &disk, "uncached", "");
    let daemon = rig.serve();
    for (arguments, part) in [
        (["clone", "32MiB"], "as large as its image"),
        (["disk", "1000"], "not a size"),
        (["disk", "many"], "as in 40GiB"),
        (["disk", "+"], "not a size"),
    ] {
        let [name, size] = arguments;
        let said = rig.refused(&["volume", "resize", name, size], EXIT_USAGE);
        assert!(said.contains(part), "{said}");
    }
    rig.done(&["volume", "resize", "disk", "+512"]);
    assert_eq!(length(&rig), BYTES + 512);
    let mut client = rig.connect("disk");
    client.write(BYTES, &[5; 512]);
    assert_eq!(client.read(BYTES, 512), vec![5; 512]);
    client.disconnect();
    daemon.stop();
}
