//! A cache that gets another size, from outside.

use crate::common::{EXIT_REFUSED, EXIT_USAGE, Rig};
use engine::format::superblock::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};

const BYTES: u64 = 16 << 20;

fn rig() -> Rig {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(
        &cache,
        "192MiB",
        "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"16MiB\"",
    );
    let disk = rig.image("disk.img", BYTES);
    rig.volume("disk", &disk, "write-back", "destage-after = \"never\"");
    let gold = rig.image("gold.img", BYTES);
    rig.volume("clone", &gold, "ephemeral", "");
    rig
}

fn resize<'a>(cache: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["cache", "resize", cache], rest].concat()
}

/// Fails when: `cache resize` does not look for what would be lost.
#[test]
fn a_cache_with_data_that_is_nowhere_else_keeps_its_size() {
    let rig = rig();
    let cache = rig.cache_path().display().to_string();
    let daemon = rig.serve();
    rig.connect("disk").write(0, &[1; 8192]);
    rig.connect("clone").write(0, &[2; 4096]);
    let said = rig.refused(&resize(&cache, &["256MiB"]), EXIT_REFUSED);
    assert!(said.contains("in use"), "{said}");
    // Acknowledged, and in the stage only: a kill is no way around it.
    daemon.kill();
    let said = rig.refused(&resize(&cache, &["256MiB"]), EXIT_REFUSED);
    for part in ["disk (8192 bytes, 8 KiB)", "tenuto recover"] {
        assert!(said.contains(part), "{said}");
    }
    let daemon = rig.serve();
    rig.done(&["volume", "destage", "disk", "--wait"]);
    daemon.stop();
    let said = rig.refused(&resize(&cache, &["256MiB"]), EXIT_REFUSED);
    for part in ["clone (4096 bytes, 4 KiB)", "--discard-overlays"] {
        assert!(said.contains(part), "{said}");
    }
    for (size, part) in [
        ("1MiB", "too small"),
        ("big", "not a size"),
        ("192MiB", "already"),
    ] {
        let said = rig.refused(&resize(&cache, &[size]), EXIT_USAGE);
        assert!(said.contains(part), "{said}");
    }
    let length = std::fs::metadata(&cache).expect("the cache").len();
    assert_eq!(length, 192 << 20);
    let daemon = rig.serve();
    assert_eq!(rig.connect("clone").read(0, 4096), vec![2; 4096]);
    daemon.stop();
}

/// Fails when: the new layout has no table of volumes.
#[test]
fn a_cache_grows_and_shrinks_and_its_volumes_go_on() {
    let rig = rig();
    let cache = rig.cache_path().display().to_string();
    let daemon = rig.serve();
    rig.connect("disk").write(0, &[1; 8192]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let before = rig.show("disk");
    rig.connect("clone").write(0, &[2; 4096]);
    daemon.kill();
    for (round, size) in ["400MiB", "128MiB", "192MiB"].into_iter().enumerate() {
        let said = rig.json(&resize(&cache, &[size, "--discard-overlays"]));
        assert_eq!(said["uuid"].as_str().map(str::len), Some(36), "{said}");
        let size_bytes = said["size_bytes"].as_u64().expect("a number");
        let length = std::fs::metadata(&cache).expect("the cache").len();
        assert_eq!(length, size_bytes);
        let notes = said["notes"].to_string();
        assert_eq!(
            notes.contains("size = \\\"192MiB\\\""),
            size != "192MiB",
            "{notes}"
        );
        rig.done(&["cache", "verify", &cache]);
        let daemon = rig.serve();
        let shown = rig.show("disk");
        assert_eq!(shown["state"], "clean", "{shown}");
        assert_eq!(shown["uuid"], before["uuid"], "its ledger is still its own");
        let mut client = rig.connect("disk");
        assert_eq!(client.read(0, 4096), vec![1 + round as u8; 4096]);
        assert_eq!(
            rig.connect("clone").read(0, 4096),
            vec![0; 4096],
            "thrown away"
        );
        client.write(0, &[2 + round as u8; 8192]);
        rig.done(&["volume", "destage", "disk", "--wait"]);
        let status = rig.json(&["status"]);
        let log = status["cache"]["size_bytes"].as_u64().expect("a number");
        assert!(log <= size_bytes && log * 10 >= size_bytes * 8, "{log}");
        client.disconnect();
        daemon.stop();
    }
}

/// The cache as a program has made it that did not know payload in header blocks.
fn made_before(cache: &str) {
    let mut bytes = std::fs::read(cache).expect("the cache");
    let before = Superblock {
        inline_records: false,
        ..superblock(cache)
    };
    for at in SUPERBLOCK_AT {
        let at = at as usize;
        bytes[at..at + SUPERBLOCK_BYTES].copy_from_slice(&before.encode());
    }
    std::fs::write(cache, bytes).expect("its superblocks are written");
}

fn superblock(cache: &str) -> Superblock {
    let bytes = std::fs::read(cache).expect("the cache");
    Superblock::parse(&bytes[..SUPERBLOCK_BYTES]).expect("a superblock")
}

/// Fails when: a resize to the size that a cache has already is refused whatever it knows.
#[test]
fn a_cache_of_before_serves_and_is_laid_out_anew_in_its_own_size() {
    let rig = rig();
    let cache = rig.cache_path().display().to_string();
    rig.serve().stop();
    made_before(&cache);
    for inline_records in [false, true] {
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        client.write(1024, &[7; 1024]);
        client.flush();
        let said = rig.show("disk");
        daemon.kill();
        assert_eq!(superblock(&cache).inline_records, inline_records);
        let daemon = rig.serve();
        let read = rig.connect("disk").read(0, 4096);
        assert!(read[1024..2048].iter().all(|byte| *byte == 7), "{said}");
        rig.done(&["volume", "destage", "disk", "--wait"]);
        daemon.stop();
        match inline_records {
            false => drop(rig.done(&resize(&cache, &["192MiB"]))),
            true => {
                let said = rig.refused(&resize(&cache, &["192MiB"]), EXIT_USAGE);
                assert!(said.contains("already"), "{said}");
            }
        }
    }
}
