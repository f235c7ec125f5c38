//! Clean blocks on the SSD: those of base images shared, found after a restart, never those of
//! another image; those of images that volumes write, never older than what was written.

use crate::common::{Rig, wait_until};
use serde_json::Value;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use workload::rng::Rng;

const MIB: u64 = 1 << 20;
/// Four times the read tier of these rigs, so that most of it cannot stay there.
const IMAGE_BYTES: u64 = 64 * MIB;
const PART: u64 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(300);

fn fill(path: &Path, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE_BYTES as usize];
    Rng::new(seed).fill(&mut bytes);
    std::fs::write(path, &bytes).expect("write the image");
    bytes
}

/// An image whose times are old enough to tell it from a later one.
pub fn settled(path: &Path) {
    let changed = std::fs::metadata(path).expect("the image is there").ctime();
    let old = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.expect("after 1970").as_secs() as i64 > changed + 4
    };
    wait_until("the image is older than the step of times", PATIENCE, old);
}

fn two_clones(rig: &mut Rig) -> (PathBuf, Vec<u8>) {
    let image = rig.image("gold.img", IMAGE_BYTES);
    let bytes = fill(&image, 1);
    settled(&image);
    rig.volume("one", &image, "ephemeral", "")
        .volume("two", &image, "ephemeral", "");
    (image, bytes)
}

fn read_all(rig: &Rig, volume: &str, expected: &[u8]) {
    read_parts(rig, volume, expected, 1);
}

/// Reads all, each part so many times before the next.
fn read_parts(rig: &Rig, volume: &str, expected: &[u8], times: u32) {
    let mut client = rig.connect(volume);
    for at in (0..IMAGE_BYTES).step_by(PART as usize) {
        for _ in 0..times {
            let found = client.read(at, PART as usize);
            let expected = &expected[at as usize..(at + PART) as usize];
            assert!(found == expected, "{volume} at {at} is wrong");
        }
    }
    client.disconnect();
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("a number: {value}"))
}

fn clean(rig: &Rig, what: &str) -> u64 {
    number(&rig.json(&["status"])["cache"]["clean"][what])
}

/// Reads all until it is on the SSD: what comes faster than that is written is left out.
fn read_until_written(rig: &Rig, bytes: &[u8]) {
    let all = || {
        read_all(rig, "one", bytes);
        clean(rig, "bytes") >= IMAGE_BYTES
    };
    wait_until("the whole image is on the SSD", PATIENCE, all);
}

/// Reads all through the second clone, which must not need the origin.
fn reads_without_the_origin(rig: &Rig, bytes: &[u8]) {
    read_all(rig, "two", bytes);
    let show = rig.show("two");
    assert_eq!(number(&show["origin"]["reads"]), 0, "{show}");
    assert!(number(&show["reads"]["ssd_hits"]) > 0, "{show}");
    assert_eq!(number(&show["ssd"]["read_bytes"]), IMAGE_BYTES, "{show}");
}

/// Fails when: each volume has an image of its own for the cache.
#[test]
fn what_one_clone_read_another_finds_on_the_ssd_after_a_stop_and_a_kill() {
    let mut rig = Rig::new();
    let (_, bytes) = two_clones(&mut rig);
    let daemon = rig.serve();
    read_until_written(&rig, &bytes);
    let status = rig.json(&["status"]);
    assert!(number(&status["cache"]["segments"]["fill"]) > 0, "{status}");
    daemon.stop();
    let daemon = rig.serve();
    reads_without_the_origin(&rig, &bytes);
    daemon.kill();
    let daemon = rig.serve();
    reads_without_the_origin(&rig, &bytes);
    daemon.stop();
    let inspected = rig.json(&["cache", "inspect", &rig.cache_path().to_string_lossy()]);
    assert_eq!(
        number(&inspected["clean"]["bytes"]),
        IMAGE_BYTES,
        "{inspected}"
    );
    let verified = rig.json(&["cache", "verify", &rig.cache_path().to_string_lossy()]);
    assert_eq!(
        number(&verified["clean_blocks"]),
        IMAGE_BYTES / 4096,
        "{verified}"
    );
    assert_eq!(number(&verified["bad_clean_blocks"]), 0, "{verified}");
}

/// Fails when: an image is known by its path alone.
#[test]
fn nothing_of_an_image_is_served_once_it_was_changed() {
    let mut rig = Rig::new();
    let (image, bytes) = two_clones(&mut rig);
    let daemon = rig.serve();
    read_until_written(&rig, &bytes);
    daemon.stop();
    let bytes = fill(&image, 2);
    settled(&image);
    let daemon = rig.serve();
    read_all(&rig, "two", &bytes);
    let show = rig.show("two");
    assert_eq!(number(&show["reads"]["ssd_hits"]), 0, "{show}");
    assert_eq!(number(&show["origin"]["read_bytes"]), IMAGE_BYTES, "{show}");
    daemon.stop();
}

/// Fails when: clean blocks are served without a check of their checksums (`DropLineSum`).
#[test]
fn a_rotten_clean_block_is_read_from_the_origin_again() {
    let mut rig = Rig::new();
    let (_, bytes) = two_clones(&mut rig);
    let daemon = rig.serve();
    read_until_written(&rig, &bytes);
    daemon.stop();
    let cache = rig.cache_path();
    let mut device = std::fs::read(&cache).expect("read the cache");
    let mut rotten = 0;
    for part in [5, 700, 9_000] {
        let block = &bytes[part * 4096..(part + 1) * 4096];
        let places = device.chunks_exact(4096).enumerate();
        let found: Vec<usize> = places
            .filter(|(_, it)| *it == block)
            .map(|(at, _)| at)
            .collect();
        for at in found {
            device[at * 4096 + 99] ^= 1;
            rotten += 1;
            let file = std::fs::File::options().write(true).open(&cache);
            let file = file.expect("open the cache");
            let changed = &device[at * 4096..(at + 1) * 4096];
            file.write_all_at(changed, at as u64 * 4096)
                .expect("change a byte");
        }
    }
    assert_eq!(rotten, 3, "each block is there once");
    let daemon = rig.serve();
    read_all(&rig, "two", &bytes);
    assert_eq!(clean(&rig, "bad_blocks"), 3);
    daemon.stop();
}

/// A write-back volume whose clean blocks go to the SSD when they are read for the first time.
fn own_volume(rig: &mut Rig, admission: &str) -> (PathBuf, Vec<u8>) {
    let image = rig.image("own.img", IMAGE_BYTES);
    let bytes = fill(&image, 3);
    settled(&image);
    let keys = format!("destage-after = \"never\"\nadmission = \"{admission}\"\n");
    rig.volume("own", &image, "write-back", &keys);
    (image, bytes)
}

fn origin_reads(rig: &Rig) -> u64 {
    number(&rig.show("own")["origin"]["reads"])
}

/// Reads all until a pass does not need the origin any more.
fn read_until_clean(rig: &Rig, bytes: &[u8]) {
    let all = || {
        let before = origin_reads(rig);
        // What is admitted for being asked for again is asked for twice.
        read_parts(rig, "own", bytes, 2);
        origin_reads(rig) == before && clean(rig, "bytes") >= IMAGE_BYTES
    };
    wait_until("a pass without the origin", PATIENCE, all);
    let show = rig.show("own");
    assert!(number(&show["reads"]["ssd_hits"]) > 0, "{show}");
}

/// Overwrites some blocks, whole ones and parts.
fn overwrite(rig: &Rig, bytes: &mut [u8], seed: u64) {
    let mut random = Rng::new(seed);
    let mut client = rig.connect("own");
    for _ in 0..200 {
        let sectors = 1 + random.below(40);
        let at = random.below(IMAGE_BYTES / 512 - sectors) * 512;
        let mut data = vec![0; sectors as usize * 512];
        random.fill(&mut data);
        client.write(at, &data);
        bytes[at as usize..at as usize + data.len()].copy_from_slice(&data);
    }
    client.flush();
    client.disconnect();
}

/// Fails when: blocks that a destage has replaced stay in the read cache (`ServeStaleBase`).
#[test]
fn a_volume_larger_than_the_ram_tier_is_read_again_from_the_ssd_and_never_stale() {
    for admission in ["all", "reuse"] {
        let mut rig = Rig::new();
        let (_, mut bytes) = own_volume(&mut rig, admission);
        let daemon = rig.serve();
        read_until_clean(&rig, &bytes);
        for seed in 0..2 {
            overwrite(&rig, &mut bytes, seed);
            read_all(&rig, "own", &bytes);
            rig.done(&["volume", "destage", "own", "--wait"]);
            read_all(&rig, "own", &bytes);
            read_until_clean(&rig, &bytes);
        }
        rig.done(&["volume", "set", "own", "policy=write-through", "--wait"]);
        read_until_clean(&rig, &bytes);
        overwrite(&rig, &mut bytes, 7);
        read_all(&rig, "own", &bytes);
        read_until_clean(&rig, &bytes);
        rig.done(&["volume", "set", "own", "policy=uncached", "--wait"]);
        overwrite(&rig, &mut bytes, 8);
        rig.done(&["volume", "set", "own", "policy=write-back", "--wait"]);
        read_until_clean(&rig, &bytes);
        daemon.kill();
        let daemon = rig.serve();
        read_all(&rig, "own", &bytes);
        daemon.stop();
    }
}

#[test]
fn admission_is_changed_while_a_volume_runs() {
    let mut rig = Rig::new();
    let (_, bytes) = own_volume(&mut rig, "reuse");
    let daemon = rig.serve();
    read_all(&rig, "own", &bytes);
    assert_eq!(clean(&rig, "bytes"), 0, "one pass asks for nothing twice");
    rig.done(&["volume", "set", "own", "admission=all", "--wait"]);
    let all = || {
        read_all(&rig, "own", &bytes);
        clean(&rig, "bytes") > IMAGE_BYTES / 2
    };
    wait_until("most of the image is on the SSD", PATIENCE, all);
    daemon.stop();
}

/// Fails when: own clean blocks count after an unclean end as well (`BelieveKilledLayers`).
#[test]
fn clean_blocks_of_a_written_image_outlive_an_orderly_stop_and_no_change_of_the_image() {
    let mut rig = Rig::new();
    let (image, mut bytes) = own_volume(&mut rig, "all");
    let daemon = rig.serve();
    overwrite(&rig, &mut bytes, 1);
    rig.done(&["volume", "destage", "own", "--wait"]);
    read_until_clean(&rig, &bytes);
    // Some of it is dirty when the daemon stops.
    overwrite(&rig, &mut bytes, 2);
    settled(&image);
    daemon.stop();
    let daemon = rig.serve();
    read_all(&rig, "own", &bytes);
    let show = rig.show("own");
    assert_eq!(number(&show["origin"]["reads"]), 0, "{show}");
    assert!(number(&show["reads"]["ssd_hits"]) > 0, "{show}");
    overwrite(&rig, &mut bytes, 3);
    rig.done(&["volume", "destage", "own", "--wait"]);
    read_all(&rig, "own", &bytes);
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(clean(&rig, "bytes"), 0, "a kill keeps nothing");
    read_until_clean(&rig, &bytes);
    settled(&image);
    daemon.stop();
    // Another program changes the image while nobody holds it.
    let file = std::fs::File::options().write(true).open(&image);
    let file = file.expect("open the image");
    for at in [0, IMAGE_BYTES / 2, IMAGE_BYTES - 4096] {
        bytes[at as usize..at as usize + 4096].fill(0x5A);
        file.write_all_at(&[0x5A; 4096], at)
            .expect("change the image");
    }
    drop(file);
    settled(&image);
    let daemon = rig.serve();
    read_all(&rig, "own", &bytes);
    daemon.stop();
}
