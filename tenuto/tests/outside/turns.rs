//! Neighbours: what one volume may take of the log and of a storage that others use too.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::export::{Export, Link};
use crate::common::{Daemon, PATIENCE, Rig, SetWhenDropped, nbd, wait_until};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;
/// Of each, before it is counted what both get: who was first has had the storage for itself.
const TURNS_BYTES: u64 = 8 * MIB;
/// Writes of a guest in flight.
const DEPTH: usize = 64;

/// A volume on an export that nothing can lie beside.
fn volume(rig: &mut Rig, name: &str, export: &Export, lines: &str) {
    let socket = rig.dir.join(format!("{name}.origin"));
    export.serve(&socket);
    let uri = PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()));
    let lines = format!("destage-after = \"10m\"\norigin-quiet = \"0s\"\n{lines}");
    rig.volume(name, &uri, "write-back", &lines);
}

/// Writes as fast as it can until it is told to stop: requests of one size, one in two places.
fn fill(rig: &Rig, name: &str, request_bytes: u64, over: &AtomicBool) {
    let mut client = rig.connect(name);
    let patience = client.stream.set_read_timeout(Some(PATIENCE));
    patience.expect("a longer timeout");
    let payload = vec![7; request_bytes as usize];
    let mut at = 0;
    while !over.load(Ordering::SeqCst) {
        for _ in 0..DEPTH {
            let length = payload.len() as u32;
            let sent = client.send(nbd::CMD_WRITE, 0, at, length, &payload);
            if over.load(Ordering::SeqCst) {
                return;
            }
            sent.expect("the daemon takes requests");
            at = (at + 2 * request_bytes) % DISK_BYTES;
        }
        for _ in 0..DEPTH {
            let answer = client.answer();
            if over.load(Ordering::SeqCst) {
                return;
            }
            assert_eq!(answer.expect("an answer").error, 0);
        }
    }
}

/// Whether a volume destages, and what of it has reached its origin so far.
fn destaged(rig: &Rig, name: &str) -> (bool, u64) {
    let show = rig.show(name);
    let flags = show["flags"].as_array().expect("a list");
    let destages = flags.iter().any(|flag| flag == "destaging");
    let bytes = show["origin"]["write_bytes"].as_u64();
    (destages, bytes.expect("a count"))
}

/// What both have destaged while both had something to destage: between looks that found both at
/// it. A machine that fills them more slowly than the storage empties them only looks longer.
fn destaged_together(rig: &Rig, sizes: [(&str, u64); 2], bytes: u64) -> [u64; 2] {
    let over = AtomicBool::new(false);
    let names = sizes.map(|(name, _)| name);
    std::thread::scope(|scope| {
        let _over = SetWhenDropped(&over);
        for (name, request_bytes) in sizes {
            let over = &over;
            scope.spawn(move || fill(rig, name, request_bytes, over));
        }
        wait_until("both are at their limit", PATIENCE, || {
            names
                .iter()
                .all(|name| rig.show(name)["flow_control"]["active"] == true)
        });
        let look = || names.map(|name| destaged(rig, name));
        let (first, mut last) = (look(), look());
        wait_until("both have had their turns", PATIENCE, || {
            last = look();
            [0, 1]
                .iter()
                .all(|&at| last[at].1 - first[at].1 >= TURNS_BYTES)
        });
        let mut sums = [0, 0];
        wait_until("enough is destaged", PATIENCE, || {
            let now = look();
            if last.iter().chain(&now).all(|(destages, _)| *destages) {
                for at in [0, 1] {
                    sums[at] += now[at].1 - last[at].1;
                }
            }
            last = now;
            sums.iter().sum::<u64>() >= bytes
        });
        sums
    })
}

fn slow_pair(lines: [&str; 2]) -> (Rig, Daemon) {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "256MiB", "ram = \"8MiB\"\nstage = \"16MiB\"");
    let link = Link::new(24 * MIB);
    for (name, lines) in [("light", lines[0]), ("heavy", lines[1])] {
        let export = Export::new(DISK_BYTES as usize).behind(&link);
        // Few requests at once, so that latency is low and guests fill faster than destage empties.
        let lines = format!("dirty-limit = \"16MiB\"\norigin-queue-depth = 8\n{lines}");
        volume(&mut rig, name, &export, &lines);
    }
    let daemon = rig.serve();
    (rig, daemon)
}

/// Fails when: all weights count as 100.
#[test]
fn volumes_destage_to_one_storage_by_their_weights_whatever_their_request_sizes() {
    let weights = ["share = { weight = 100 }", "share = { weight = 300 }"];
    let (rig, daemon) = slow_pair(weights);
    let share = &rig.show("heavy")["share"];
    assert_eq!(
        (&share["weight"], &share["min_bytes"]),
        (&300.into(), &0.into())
    );
    let [light, heavy] = destaged_together(&rig, [("light", 65_536), ("heavy", 16_384)], 128 * MIB);
    let ratio = heavy as f64 / light as f64;
    assert!((2.2..3.8).contains(&ratio), "{heavy} and {light}: {ratio}");
    // And the other way round, while it runs.
    rig.done(&["volume", "set", "light", "share={ weight = 900 }"]);
    assert_eq!(rig.show("light")["share"]["weight"], 900);
    let [light, heavy] = destaged_together(&rig, [("light", 65_536), ("heavy", 16_384)], 128 * MIB);
    let ratio = light as f64 / heavy as f64;
    assert!((2.2..3.8).contains(&ratio), "{light} and {heavy}: {ratio}");
    daemon.stop();
}

/// Fails when: `share.min` is ignored.
#[test]
fn room_that_a_volume_has_reserved_is_there_while_its_neighbour_has_filled_the_log() {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"16MiB\"");
    // Nothing that either writes reaches its origin.
    for (name, lines) in [("greedy", ""), ("owner", "share = { min = \"24MiB\" }")] {
        let export = Export::new(DISK_BYTES as usize);
        export.hold_writes(0, DISK_BYTES);
        volume(&mut rig, name, &export, lines);
    }
    let daemon = rig.serve();
    assert_eq!(rig.show("owner")["share"]["min_bytes"], 24 * MIB);
    let mut greedy = rig.connect("greedy");
    let payload = vec![7; MIB as usize];
    for number in 0..64 {
        greedy
            .send(nbd::CMD_WRITE, 0, number * MIB, MIB as u32, &payload)
            .expect("the daemon takes requests");
    }
    wait_until("the neighbour waits", PATIENCE, || {
        let show = rig.show("greedy");
        show["waiting_requests"].as_u64() > Some(0) && show["flow_control"]["delay_us"] == 1_000_000
    });
    let mut owner = rig.connect("owner");
    for number in 0..23 {
        owner.write(number * MIB, &payload);
    }
    owner.flush();
    // What is not there cannot be reserved.
    let message = rig.refused(&["volume", "set", "greedy", "share={ min = \"24MiB\" }"], 2);
    assert!(message.contains("more than half of the log"), "{message}");
    daemon.kill();
}

/// Fails when: reserves are not added up.
#[test]
fn reserves_that_are_more_than_half_of_the_log_are_refused_with_their_line() {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "");
    for name in ["a", "b"] {
        let image = rig.image(&format!("{name}.img"), MIB);
        rig.volume(
            name,
            &image,
            "write-back",
            "share = { min = \"20MiB\", weight = 200 }",
        );
    }
    let config = rig.write_config();
    let path = config.to_str().expect("a path in words");
    let message = rig.refused(&["config", "--check", path], 2);
    assert!(
        message.contains(": share: min = \"20MiB\" and those of other volumes are more than half")
            && message.contains("write at most min = \"8MiB\""),
        "{message}"
    );
}

/// How long many writes take that are flushed one by one.
fn write_and_flush(client: &mut nbd::Client) -> Duration {
    let begun = Instant::now();
    for number in 0..200 {
        client.write(number % 64 * 65_536, &[number as u8; 4096]);
        client.flush();
    }
    begun.elapsed()
}

/// Fails when: a volume that waits holds up the others.
#[test]
fn writes_go_on_while_a_neighbour_is_at_its_limit() {
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "128MiB", "ram = \"8MiB\"\nstage = \"8MiB\"");
    let slow = Export::new(DISK_BYTES as usize).behind(&Link::new(MIB));
    volume(&mut rig, "noisy", &slow, "");
    let image = rig.image("quiet.img", 8 * MIB);
    rig.volume("quiet", &image, "write-back", "destage-after = \"1s\"");
    let daemon = rig.serve();
    let mut client = rig.connect("quiet");
    let alone = write_and_flush(&mut client);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetWhenDropped(&over);
        scope.spawn(|| fill(&rig, "noisy", 65_536, &over));
        wait_until("the neighbour is at its limit", PATIENCE, || {
            let show = rig.show("noisy");
            show["waiting_requests"].as_u64() > Some(0)
                && show["flow_control"]["delay_us"].as_u64() > Some(500_000)
        });
        // From now on it waits for ever, and so would who waits behind it.
        slow.hold_writes(0, DISK_BYTES);
        let beside = write_and_flush(&mut client);
        // Half a minute of delays is one in each request, however slow the machine is.
        let bound = Duration::from_secs(30) + 20 * alone;
        assert!(beside < bound, "{beside:?}, and {alone:?} alone");
        assert!(rig.show("noisy")["waiting_requests"].as_u64() > Some(0));
        assert_eq!(rig.show("quiet")["flow_control"]["held_writes"], 0);
        over.store(true, Ordering::SeqCst);
        daemon.kill();
    });
}

/// The two disks have room for one write less than this.
const LAST: u64 = 4001;

/// Writes A to one disk, then B to the other, and so on, each when the one before is acknowledged.
fn write_in_turn(clients: &mut [nbd::Client; 2], from: u64, to: u64) {
    for number in from..to {
        let mut block = [0; 512];
        block[..8].copy_from_slice(&number.to_le_bytes());
        clients[(number % 2) as usize].write(number / 2 * 512, &block);
    }
}

/// How many of these writes are there, if what is there has no gap over both disks.
fn written_in_turn(mut read: impl FnMut(usize, u64) -> [u8; 8], numbers: u64) -> u64 {
    let there = |number: u64| {
        let found = u64::from_le_bytes(read((number % 2) as usize, number / 2 * 512));
        assert!(
            found == 0 || found == number,
            "{found} in the place of {number}"
        );
        found == number
    };
    let there: Vec<bool> = (1..numbers).map(there).collect();
    let count = there.iter().take_while(|it| **it).count();
    assert!(!there[count..].contains(&true), "a gap after {count}");
    count as u64
}

/// Fails when: an order to one disk is not for the others.
#[test]
fn the_disks_of_a_group_stand_at_one_point_in_time_at_their_images_and_after_a_kill() {
    let mut rig = Rig::new();
    let images = ["one.img", "two.img"].map(|name| rig.image(name, MIB));
    let lines = "group = \"vm\"\ndestage-after = \"10m\"";
    rig.volume("one", &images[0], "write-back", lines);
    rig.volume("two", &images[1], "write-back", lines);
    let daemon = rig.serve();
    assert_eq!(rig.show("one")["group"], "vm");
    assert!(rig.show("one")["group_reason"].is_null());
    let mut clients = ["one", "two"].map(|name| rig.connect(name));
    write_in_turn(&mut clients, 1, 201);
    // An order to one is for both.
    rig.done(&["volume", "destage", "two", "--wait"]);
    let at_image = |disk: usize, at: u64| {
        let bytes = std::fs::read(&images[disk]).expect("the image is there");
        bytes[at as usize..at as usize + 8]
            .try_into()
            .expect("eight bytes")
    };
    assert_eq!(written_in_turn(at_image, 401), 200);
    let message = rig.refused(&["volume", "set", "one", "policy=write-through"], 4);
    assert!(
        message.contains("volumes of a group are write-back"),
        "{message}"
    );
    // Orders to one while both are written: whenever one has ended the images stand at one point.
    let mut stood = vec![200];
    for from in (201..LAST).step_by(800) {
        std::thread::scope(|scope| {
            scope.spawn(|| write_in_turn(&mut clients, from, LAST.min(from + 800)));
            rig.done(&["volume", "destage", "one", "--wait"]);
            stood.push(written_in_turn(at_image, LAST));
        });
    }
    assert!(stood.is_sorted(), "nothing goes back: {stood:?}");
    daemon.kill();
    let daemon = rig.serve();
    let mut clients = ["one", "two"].map(|name| rig.connect(name));
    let read = |disk: usize, at: u64| {
        let bytes = clients[disk].read(at, 512);
        bytes[..8].try_into().expect("eight bytes")
    };
    assert_eq!(
        written_in_turn(read, LAST),
        LAST - 1,
        "a kill loses nothing"
    );
    rig.done(&["volume", "destage", "one", "--wait"]);
    assert_eq!(written_in_turn(at_image, LAST), LAST - 1);
    daemon.stop();
}

#[test]
fn a_group_takes_write_back_volumes_only() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", MIB);
    rig.volume("disk", &image, "write-through", "group = \"vm\"");
    let config = rig.write_config();
    let path = config.to_str().expect("a path in words");
    let message = rig.refused(&["config", "--check", path], 2);
    assert!(
        message.contains(": group: volumes of a group are write-back, this one is write-through"),
        "{message}"
    );
}
