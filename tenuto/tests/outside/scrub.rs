//! Scrub: damage is found where it lies, while guests go on; what can be had elsewhere is had from
//! there, what cannot is named.

use crate::common::{EXIT_DAMAGE, EXIT_REFUSED, Rig, wait_until};
use crate::lines::settled;
use crate::openapi::ask;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use workload::rng::Rng;

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// Far more than the stage, so that most of it is on the device alone; less than brings a destage.
const DIRTY: usize = 48 * MIB;
const CLEAN: usize = 32 * MIB;

struct House {
    rig: Rig,
    dirty: Vec<u8>,
    gold: Vec<u8>,
}

fn random(seed: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    Rng::new(seed).fill(&mut all);
    all
}

/// A volume with dirty data, and a clone of an image.
fn house() -> House {
    let mut rig = Rig::new();
    let gold = random(1, CLEAN);
    let image: PathBuf = rig.image("gold.img", CLEAN as u64);
    std::fs::write(&image, &gold).expect("write the image");
    settled(&image);
    let disk = rig.image("disk.img", DIRTY as u64);
    rig.volume("clone", &image, "ephemeral", "");
    rig.volume("disk", &disk, "write-back", "destage-after = \"never\"");
    let dirty = random(2, DIRTY);
    House { rig, dirty, gold }
}

impl House {
    /// Dirty data in the log, and the whole image on the SSD.
    fn fill(&self) {
        let mut client = self.rig.connect("disk");
        for (at, part) in (0..).zip(self.dirty.chunks(MIB)) {
            client.write(at * MIB as u64, part);
        }
        client.flush();
        client.disconnect();
        wait_until("the image is on the SSD", PATIENCE, || {
            self.read_clone();
            let status = self.rig.json(&["status"]);
            status["cache"]["clean"]["bytes"].as_u64() >= Some(CLEAN as u64)
        });
    }

    fn read_clone(&self) {
        let mut client = self.rig.connect("clone");
        for (at, part) in (0..).zip(self.gold.chunks(MIB)) {
            let found = client.read(at * MIB as u64, MIB);
            assert!(found == part, "the clone is wrong at {at} MiB");
        }
        client.disconnect();
    }

    fn scrub(&self) -> Output {
        let cache = self.rig.cache_path().display().to_string();
        self.rig.tenuto(&["cache", "scrub", &cache])
    }

    fn last(&self) -> Value {
        self.rig.json(&["status"])["cache"]["scrub"].clone()
    }

    /// Flips one bit wherever the device has this block.
    fn flip(&self, block: &[u8]) {
        let cache = std::fs::read(self.rig.cache_path()).expect("read the cache");
        let mut options = std::fs::File::options();
        let file = options.write(true).open(self.rig.cache_path());
        let file = file.expect("open the cache");
        let mut found = 0;
        for (at, there) in (0..).zip(cache.chunks_exact(4096)) {
            if there == block {
                file.write_all_at(&[there[1000] ^ 1], at * 4096 + 1000)
                    .expect("flip a bit");
                found += 1;
            }
        }
        assert!(found > 0, "the block is on the device");
        file.sync_all().expect("sync");
    }
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().expect("a number")
}

/// Fails when: a scrub does not count bad dirty blocks.
#[test]
fn a_scrub_finds_what_is_bad_in_dirty_and_clean_data_under_a_daemon() {
    let house = house();
    let mut daemon = Some(house.rig.serve());
    house.fill();
    assert!(house.last().is_null(), "none was ordered yet");
    let good = house.scrub();
    assert!(good.status.success(), "{}", said(&good));
    assert!(said(&good).contains(": no damage; "), "{}", said(&good));
    let seen = house.last();
    let stage = 16 * MIB as u64;
    let least = (DIRTY + CLEAN) as u64 - stage;
    assert!(number(&seen, "checked_bytes") >= least, "{seen}");
    assert_eq!(seen["complete"], true);

    let (dirty_at, clean_at) = (3 * MIB, 5 * MIB);
    house.flip(&house.dirty[dirty_at..dirty_at + 4096]);
    house.flip(&house.gold[clean_at..clean_at + 4096]);
    let bad = house.scrub();
    assert_eq!(bad.status.code(), Some(EXIT_DAMAGE), "{}", said(&bad));
    assert!(
        said(&bad).contains(
            "4 KiB of dirty data cannot be read any more, and `tenuto status -x` names the \
             volumes"
        ),
        "{}",
        said(&bad)
    );
    assert!(
        said(&bad).contains("4 KiB of clean data forgotten, which its origins have"),
        "{}",
        said(&bad)
    );
    let seen = house.last();
    assert_eq!(number(&seen, "damaged_bytes"), 4096, "{seen}");
    assert_eq!(number(&seen, "dropped_bytes"), 4096, "{seen}");
    assert_eq!(house.rig.show("disk")["state"], "damaged");
    assert_eq!(house.rig.show("clone")["state"], "clean");
    let wrong = house.rig.tenuto(&["status", "-x"]);
    assert!(said(&wrong).contains("volume disk"), "{}", said(&wrong));
    let status = said(&house.rig.tenuto(&["status"]));
    assert!(status.contains("4 KiB damaged"), "{status}");

    let order = house.rig.tenuto(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(order.status.code(), Some(EXIT_DAMAGE), "{}", said(&order));
    let range = format!("4096 bytes at offset {dirty_at}");
    assert!(said(&order).contains(&range), "{}", said(&order));
    let wrong = said(&house.rig.tenuto(&["status", "-x"]));
    assert!(wrong.contains(&range), "{wrong}");

    // The clone never sees it; the disk is well again when the block is overwritten.
    house.read_clone();
    let mut client = house.rig.connect("disk");
    client.write(dirty_at as u64, &house.dirty[dirty_at..dirty_at + 4096]);
    client.flush();
    client.disconnect();
    house.rig.done(&["volume", "destage", "disk", "--wait"]);
    assert_eq!(house.rig.show("disk")["state"], "clean");
    let again = house.scrub();
    assert!(again.status.success(), "{}", said(&again));
    daemon.take().expect("it runs").stop();
}

/// Fails when: without a daemon, bad blocks are not counted.
#[test]
fn a_scrub_runs_beside_guests_once_and_ends_with_the_daemon() {
    let house = house();
    let daemon = house.rig.serve();
    house.fill();
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| house.scrub());
        let other = scope.spawn(|| house.scrub());
        // Guests go on, and what they write meanwhile is theirs.
        let mut client = house.rig.connect("disk");
        for at in 0..200u64 {
            client.write(at * 4096, &[at as u8; 4096]);
            client.flush();
            assert_eq!(client.read(at * 4096, 4096), vec![at as u8; 4096]);
        }
        client.disconnect();
        (one.join().expect("one"), other.join().expect("other"))
    });
    for output in [one, other] {
        assert!(output.status.success(), "{}", said(&output));
    }
    let cache = house.rig.cache_path().display().to_string();
    let refused = house.rig.refused(
        &["--socket", "/nowhere", "cache", "scrub", &cache],
        EXIT_REFUSED,
    );
    assert!(
        refused
            .trim_end()
            .ends_with("stop it first, or name its --socket to have it scrub beside its guests"),
        "{refused}"
    );
    let (code, begun) = ask(&house.rig, "POST", "/v1/cache/scrub", "");
    assert_eq!((code, &begun["running"]), (200, &true.into()), "{begun}");
    daemon.stop();

    // Without a daemon the device is read as it lies there.
    let still = house.scrub();
    assert!(still.status.success(), "{}", said(&still));
    assert!(said(&still).contains("no damage"), "{}", said(&still));
    house.flip(&house.dirty[20 * MIB..20 * MIB + 4096]);
    let bad = house.scrub();
    assert_eq!(bad.status.code(), Some(EXIT_DAMAGE), "{}", said(&bad));
}
