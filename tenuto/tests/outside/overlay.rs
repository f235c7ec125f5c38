//! Overlays of ephemeral volumes from outside: where their data lies, and when it is given up.

use std::time::Duration;

use serde_json::Value;

use crate::common::{EXIT_FAILED, Rig, nbd, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn total(map: &Value, place: &str) -> u64 {
    let bytes = &map["totals"][format!("{place}_bytes")];
    bytes.as_u64().expect("a total")
}

/// Where the byte at `offset` is read from.
fn place_of(map: &Value, offset: u64) -> (String, bool) {
    let extents = map["extents"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number");
    let covers = |extent: &&Value| {
        let (start, length) = (number(&extent["start"]), number(&extent["length"]));
        (start..start + length).contains(&offset)
    };
    let extent = extents.iter().find(covers).expect("no gap");
    let place = extent["where"].as_str().expect("a word").to_owned();
    (place, extent["zero"] == true)
}

/// The ranges follow one another from 0 to the size, and the totals are their sums.
fn adds_up(map: &Value) {
    let mut at = 0;
    let mut sums = std::collections::BTreeMap::new();
    for extent in map["extents"].as_array().expect("a list") {
        assert_eq!(extent["start"], at, "no gap and no overlap");
        let length = extent["length"].as_u64().expect("a length");
        let place = match extent["zero"] == true {
            true => "zero".to_owned(),
            false => extent["where"].as_str().expect("a word").to_owned(),
        };
        *sums.entry(place).or_insert(0) += length;
        at += length;
    }
    assert_eq!(map["size_bytes"], at);
    for place in ["stage", "log", "zero", "ram", "ssd", "origin"] {
        let sum = sums.get(place).copied().unwrap_or(0);
        assert_eq!(total(map, place), sum, "{place}");
    }
}

#[test]
fn the_map_says_where_each_range_is_read_from() {
    let mut rig = Rig::new();
    let image = rig.image("base.img", 64 * MIB);
    let other = rig.image("disk.img", 64 * MIB);
    rig.volume("clone", &image, "ephemeral", "");
    rig.volume("disk", &other, "write-back", "destage-after = \"1h\"");
    let daemon = rig.serve();
    let mut clone = rig.connect("clone");
    clone.write(MIB, &[7; 8192]);
    assert_eq!(clone.read(8 * MIB, 65_536), vec![0; 65_536]);
    let map = rig.json(&["volume", "map", "clone"]);
    adds_up(&map);
    assert_eq!(map["policy"], "ephemeral");
    assert_eq!(place_of(&map, MIB), ("stage".into(), false));
    assert_eq!(place_of(&map, MIB + 8191), ("stage".into(), false));
    assert_eq!(place_of(&map, MIB + 8192), ("origin".into(), false));
    assert_eq!(place_of(&map, 8 * MIB), ("ram".into(), false));
    assert_eq!(total(&map, "stage"), 8192);
    assert_eq!(total(&map, "ram"), 65_536);
    let mut disk = rig.connect("disk");
    disk.write(0, &[1; 4096]);
    disk.flush();
    assert_eq!(disk.command(nbd::CMD_TRIM, 0, 4 * MIB, 8192), 0);
    let map = rig.json(&["volume", "map", "disk"]);
    adds_up(&map);
    assert_eq!(place_of(&map, 0), ("log".into(), false), "flushed");
    assert!(place_of(&map, 4 * MIB).1, "discarded: {map}");
    assert_eq!(total(&map, "zero"), 8192);
    let table = rig.done(&["volume", "map", "disk", "--extents"]);
    assert!(
        table.contains("WHERE") && table.contains("START"),
        "{table}"
    );
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let map = rig.json(&["volume", "map", "disk"]);
    assert_eq!(total(&map, "origin"), 64 * MIB, "{map}");
    // A new daemon has nothing in RAM: the overlay is in the log, clean blocks on the SSD.
    drop((clone, disk));
    daemon.stop();
    let daemon = rig.serve();
    let map = rig.json(&["volume", "map", "clone"]);
    adds_up(&map);
    assert_eq!(place_of(&map, MIB), ("log".into(), false));
    assert_eq!(total(&map, "stage") + total(&map, "ram"), 0);
    rig.refused(&["volume", "map", "nobody"], EXIT_FAILED);
    daemon.stop();
}

fn overlay(rig: &Rig, volume: &str, key: &str) -> u64 {
    let shown = rig.show(volume);
    shown["overlay"][key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {shown}"))
}

/// Fails when: `overlay-ram` is ignored.
#[test]
fn an_overlay_beyond_its_ram_spills_and_the_others_keep_theirs() {
    let mut rig = Rig::new();
    let image = rig.image("base.img", 256 * MIB);
    rig.volume("small", &image, "ephemeral", "overlay-ram = \"2MiB\"");
    rig.volume("other", &image, "ephemeral", "overlay-ram = \"8MiB\"");
    let daemon = rig.serve();
    let (mut small, mut other) = (rig.connect("small"), rig.connect("other"));
    assert_eq!(rig.show("small")["overlay"]["age_seconds"], Value::Null);
    for at in 0..4 {
        other.write(at * MIB, &vec![9; MIB as usize]);
    }
    assert_eq!(overlay(&rig, "other", "ram_bytes"), 4 * MIB);
    assert_eq!(overlay(&rig, "other", "ssd_bytes"), 0);
    // Four times the RAM of all, in two rounds, so that it overwrites what it has spilled.
    for round in 0..2 {
        for at in 0..32 {
            small.write(at * MIB, &vec![round * 64 + at as u8; MIB as usize]);
        }
    }
    assert_eq!(overlay(&rig, "small", "ram_limit_bytes"), 2 * MIB);
    let ram = overlay(&rig, "small", "ram_bytes");
    assert!(ram <= 2 * MIB, "{ram} bytes in RAM");
    let both = ram + overlay(&rig, "small", "ssd_bytes");
    assert!((32 * MIB..33 * MIB).contains(&both), "{both} bytes in all");
    assert_eq!(overlay(&rig, "other", "ram_bytes"), 4 * MIB, "kept");
    assert_eq!(overlay(&rig, "other", "ssd_bytes"), 0);
    let map = rig.json(&["volume", "map", "other"]);
    assert_eq!(total(&map, "stage"), 4 * MIB, "{map}");
    for at in 0..32 {
        assert_eq!(small.read(at * MIB, 4096), vec![64 + at as u8; 4096]);
    }
    assert_eq!(overlay(&rig, "small", "hits"), 32);
    assert!(rig.show("small")["overlay"]["age_seconds"].is_u64());
    // The limit can be changed, and a kill takes nothing from either.
    rig.done(&["volume", "set", "small", "overlay-ram=8MiB"]);
    assert_eq!(overlay(&rig, "small", "ram_limit_bytes"), 8 * MIB);
    drop((small, other));
    daemon.kill();
    let daemon = rig.serve();
    let (mut small, mut other) = (rig.connect("small"), rig.connect("other"));
    for at in 0..32 {
        assert_eq!(small.read(at * MIB, 4096), vec![64 + at as u8; 4096]);
    }
    assert_eq!(other.read(3 * MIB, 4096), vec![9; 4096]);
    assert_eq!(overlay(&rig, "other", "ram_bytes"), 0);
    assert_eq!(overlay(&rig, "other", "ssd_bytes"), 4 * MIB);
    assert_eq!(rig.show("other")["overlay"]["age_seconds"], Value::Null);
    small.disconnect();
    rig.gone_clients("small");
    rig.done(&["volume", "reset", "small"]);
    assert_eq!(overlay(&rig, "small", "ssd_bytes"), 0);
    daemon.stop();
}

/// The checkpoints that are durable since the daemon started.
fn checkpoints(rig: &Rig) -> u64 {
    let status = rig.json(&["status"]);
    status["cache"]["checkpoints"].as_u64().expect("a count")
}

/// Fails when: the end of a guest is not noted.
#[test]
fn an_overlay_is_reset_when_its_guest_has_ended_in_order_and_another_comes() {
    const WRITTEN: [u8; 4096] = [7; 4096];
    const CLEAN: [u8; 4096] = [0; 4096];
    let mut rig = Rig::new();
    let image = rig.image("base.img", 8 * MIB);
    rig.volume("clone", &image, "ephemeral", "reset-on = \"disconnect\"");
    let mut daemon = rig.serve();
    let mut first = rig.connect("clone");
    first.write(0, &WRITTEN);
    // One of two that says goodbye is no end, nor is a connection that breaks, nor a restart.
    rig.connect("clone").disconnect();
    assert_eq!(first.read(0, 4096), WRITTEN);
    assert_eq!(rig.connect("clone").read(0, 4096), WRITTEN);
    drop(first);
    rig.gone_clients("clone");
    assert_eq!(rig.show("clone")["overlay"]["ended"], false);
    assert_eq!(rig.connect("clone").read(0, 4096), WRITTEN, "it broke");
    let kept = rig.connect("clone");
    daemon.kill();
    daemon = rig.serve();
    assert_eq!(rig.connect("clone").read(0, 4096), WRITTEN, "killed");
    drop(kept);
    let kept = rig.connect("clone");
    daemon.stop();
    daemon = rig.serve();
    drop(kept);
    let mut last = rig.connect("clone");
    assert_eq!(last.read(0, 4096), WRITTEN, "stopped in order");
    // An end is remembered over a kill, and nothing happens before somebody comes.
    let before = checkpoints(&rig);
    last.disconnect();
    rig.gone_clients("clone");
    assert_eq!(rig.show("clone")["overlay"]["ended"], true);
    assert_eq!(overlay(&rig, "clone", "ram_blocks"), 0);
    assert_eq!(overlay(&rig, "clone", "ssd_blocks"), 1, "after a restart");
    wait_until("the end is durable", PATIENCE, || {
        checkpoints(&rig) > before
    });
    daemon.kill();
    daemon = rig.serve();
    assert_eq!(overlay(&rig, "clone", "ssd_blocks"), 1, "not yet");
    let mut next = rig.connect("clone");
    // The reset is durable before the first answer.
    next.write(4096, &WRITTEN);
    daemon.kill();
    daemon = rig.serve();
    let mut next = rig.connect("clone");
    assert_eq!(next.read(0, 4096), CLEAN);
    assert_eq!(next.read(4096, 4096), WRITTEN, "no second reset");
    assert_eq!(rig.show("clone")["overlay"]["ended"], false);
    // Two that come at once are both let in.
    next.disconnect();
    rig.gone_clients("clone");
    let (mut one, mut two) = (rig.connect("clone"), rig.connect("clone"));
    assert_eq!(one.read(4096, 4096), CLEAN);
    two.write(0, &WRITTEN);
    assert_eq!(one.read(0, 4096), WRITTEN);
    // The order can be taken back while nobody is there.
    two.disconnect();
    one.disconnect();
    rig.gone_clients("clone");
    rig.done(&["volume", "set", "clone", "reset-on=command"]);
    assert_eq!(rig.connect("clone").read(0, 4096), WRITTEN);
    daemon.stop();
}

/// Fails when: every orderly disconnect ends the overlay, whatever `reset-on` says.
#[test]
fn without_reset_on_disconnect_an_overlay_outlives_its_guest() {
    let mut rig = Rig::new();
    let image = rig.image("base.img", 8 * MIB);
    rig.volume("clone", &image, "ephemeral", "");
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    client.write(0, &[7; 4096]);
    client.disconnect();
    rig.gone_clients("clone");
    assert_eq!(rig.connect("clone").read(0, 4096), [7; 4096]);
    daemon.stop();
}
