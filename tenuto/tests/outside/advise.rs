//! `tenuto advise`: what each volume would have of the cache, by what its guests did.

use serde_json::Value;

use crate::common::{EXIT_FAILED, PATIENCE, Rig, nbd, wait_until};

const MIB: u64 = 1 << 20;
/// What clones read again and again: half of the read tier.
const SET_BYTES: u64 = 32 * MIB;
const SCAN_BYTES: u64 = 64 * MIB;
const ROUNDS: u64 = 5;

fn read(client: &mut nbd::Client, bytes: u64) {
    for at in (0..bytes).step_by(MIB as usize) {
        client.read(at, MIB as usize);
    }
}

fn of<'a>(document: &'a Value, name: &str) -> &'a Value {
    let volumes = document["volumes"].as_array().expect("a list");
    let found = volumes.iter().find(|volume| volume["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {document}"))
}

fn number(volume: &Value, key: &str) -> f64 {
    let number = volume[key].as_f64();
    number.unwrap_or_else(|| panic!("{key}: {volume}"))
}

/// Fails when: reads are not found again, clones are taken for several images, or a volume that
/// reads everything once is not named.
#[test]
fn clones_are_told_what_they_share_and_a_scan_that_it_gains_nothing() {
    let mut rig = Rig::new();
    let gold = rig.image("gold.img", SET_BYTES);
    let scan = rig.image("scan.img", SCAN_BYTES);
    let disk = rig.image("disk.img", SCAN_BYTES);
    let cache = rig.cache_path();
    rig.cache(&cache, "512MiB", "ram = \"64MiB\"");
    for clone in ["clone-1", "clone-2"] {
        rig.volume(clone, &gold, "ephemeral", "");
    }
    rig.volume("scan", &scan, "write-through", "");
    rig.volume("disk", &disk, "write-back", "share = \"auto\"");
    let daemon = rig.serve();
    let share = &rig.show("disk")["share"];
    assert_eq!(
        (&share["auto"], &share["weight"]),
        (&true.into(), &100.into())
    );
    for clone in ["clone-1", "clone-2"] {
        let mut client = rig.connect(clone);
        (0..ROUNDS).for_each(|_| read(&mut client, SET_BYTES));
    }
    read(&mut rig.connect("scan"), SCAN_BYTES);
    let mut client = rig.connect("disk");
    for at in (0..SCAN_BYTES).step_by(MIB as usize) {
        client.write(at, &[7; MIB as usize]);
    }
    // What the last second has shown is known a second later.
    wait_until("all was looked at", PATIENCE, || {
        let document = rig.json(&["advise"]);
        let (disk, scan) = (of(&document, "disk"), of(&document, "scan"));
        let clone = of(&document, "clone-2");
        disk["gains"] == true && scan["gains"] == false && clone["gains"] == true
    });
    let document = rig.json(&["advise"]);
    let (one, two) = (of(&document, "clone-1"), of(&document, "clone-2"));
    for clone in [one, two] {
        // Of ten rounds of both all but the first.
        let again = number(clone, "again_ratio");
        assert!((0.88..0.92).contains(&again), "{clone}");
        assert!(number(clone, "hit_ratio") > again * 0.9, "{clone}");
    }
    let both = number(one, "ram_bytes") + number(two, "ram_bytes");
    let set = SET_BYTES as f64;
    assert!((0.9 * set..1.3 * set).contains(&both), "{one} {two}");
    assert_eq!(of(&document, "scan")["ram_bytes"], 0);
    assert_eq!(of(&document, "disk")["auto"], true);
    assert!(number(of(&document, "disk"), "dirty_bytes") > 0.0);
    let text = rig.done(&["advise"]);
    assert!(text.contains("the cache gives nothing to: scan"), "{text}");
    assert!(text.contains("what it reads again fits"), "{text}");
    let text = rig.done(&["advise", "disk"]);
    assert!(!text.contains("scan"), "{text}");
    let line = rig.refused(&["advise", "nix"], EXIT_FAILED);
    assert!(line.contains("volume nix: no such volume"), "{line}");
    daemon.stop();
}
