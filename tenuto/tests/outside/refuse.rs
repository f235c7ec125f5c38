//! What the product refuses, with the owner's name and the right exit code.
//!
//! Two daemons on one cache, two writers on one image, caches that are not what they should be:
//! each ends in one line and no change.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use workload::check::{Crash, Promise};
use workload::stamp::{self, Reading};

use crate::common::load::Load;
use crate::common::nbd::{Client, wait_for_server};
use crate::common::{
    Background, EXIT_DAMAGE, EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, Rig, have, seed,
    text_of, wait_until,
};

const BYTES: u64 = 8 << 20;
/// Somebody else has it: nothing would be lost and no flag forces it, so it is a plain failure.
const EXIT_IN_USE: i32 = EXIT_FAILED;
/// What `serve` was told to use is not a cache of this version: a mistake of the configuration.
const EXIT_NOT_OURS: i32 = EXIT_USAGE;
const DESTAGE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// A rig whose daemon would use the cache of another.
fn on_the_cache_of(other: &Rig) -> Rig {
    let mut rig = Rig::new();
    rig.host_name("host-b");
    rig.cache(
        &other.cache_path(),
        "256MiB",
        "ram = \"16MiB\"\nstage = \"16MiB\"",
    );
    rig
}

/// The start fails with this code; the log.
fn fails(rig: &Rig, code: i32) -> String {
    match rig.try_serve() {
        Ok(_) => panic!("the daemon started"),
        Err((status, log)) => {
            assert_eq!(status.code(), Some(code), "{log}");
            log
        }
    }
}

/// The same where an image is the reason.
fn fails_strictly(rig: &Rig, code: i32) -> String {
    let (status, log) = rig.try_serve_strict().err().expect("it does not start");
    assert_eq!(status.code(), Some(code), "{log}");
    log
}

fn names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Fails when: no lock is taken.
#[test]
fn a_second_daemon_on_the_same_cache_is_refused_with_the_owners_name() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    let mut daemon = rig.serve();
    let second = on_the_cache_of(&rig);
    let log = fails(&second, EXIT_IN_USE);
    names(
        &log,
        &[
            &format!("pid {}", daemon.pid()),
            &rig.cache_path().to_string_lossy(),
        ],
    );
    assert!(daemon.is_alive());
    rig.connect("disk").flush();
    daemon.stop();
}

/// Fails when: no lock is taken.
#[test]
fn a_second_daemon_on_the_same_image_is_refused_with_the_owners_name() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    let mut daemon = rig.serve();
    let mut second = Rig::new();
    second.volume("disk", &image, "write-back", "");
    let log = fails_strictly(&second, EXIT_IN_USE);
    names(
        &log,
        &[&format!("pid {}", daemon.pid()), &image.to_string_lossy()],
    );
    assert!(daemon.is_alive());
    daemon.stop();
}

/// Fails when: the configuration is not searched for a second writer.
#[test]
fn two_writers_on_one_image_in_one_configuration_are_refused() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("one", &image, "write-back", "")
        .volume("two", &image, "uncached", "");
    let log = fails(&rig, EXIT_USAGE);
    names(&log, &["tenuto.toml:", "one", "; give each its own image"]);
    assert!(!rig.cache_path().exists(), "nothing was started");
}

/// Fails when: QEMU's image locks are not taken.
#[test]
fn qemu_cannot_write_an_image_that_a_volume_uses() {
    if !have(
        "qemu_cannot_write_an_image_that_a_volume_uses",
        &["qemu-io"],
    ) {
        return;
    }
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    let foreign = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4k"])
        .arg(&image)
        .output()
        .expect("run qemu-io");
    assert!(
        !foreign.status.success(),
        "qemu-io wrote: {}",
        text_of(&foreign)
    );
    names(&text_of(&foreign), &["lock"]);
    daemon.stop();
}

/// Fails when: QEMU's image locks are not looked at.
#[test]
fn an_image_that_another_program_writes_is_refused() {
    if !have(
        "an_image_that_another_program_writes_is_refused",
        &["qemu-nbd"],
    ) {
        return;
    }
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let socket = rig.dir.join("other.sock");
    let (path, place) = (image.to_string_lossy(), socket.to_string_lossy());
    let owner = Background::start("qemu-nbd", &["-t", "-f", "raw", "-k", &place, &path]);
    wait_for_server(&socket);
    rig.volume("disk", &image, "write-back", "");
    let log = fails_strictly(&rig, EXIT_IN_USE);
    names(&log, &["qemu-nbd", &path]);
    drop(owner);
    rig.serve().stop();
}

#[test]
fn several_ephemeral_volumes_share_an_image_and_a_writer_is_refused() {
    let mut rig = Rig::new();
    let image = rig.image("base.img", BYTES);
    rig.volume("one", &image, "ephemeral", "")
        .volume("two", &image, "ephemeral", "");
    let daemon = rig.serve();
    let origin = format!("origin={}", image.display());
    let refusal = rig.tenuto(&["volume", "add", "writer", &origin, "format=raw"]);
    assert!(
        [Some(EXIT_REFUSED), Some(EXIT_USAGE)].contains(&refusal.status.code()),
        "{}",
        text_of(&refusal)
    );
    rig.done(&[
        "volume",
        "add",
        "three",
        &origin,
        "format=raw",
        "policy=ephemeral",
    ]);
    daemon.stop();
}

/// Fails when: `cache create` takes a foreign file for a blank one.
#[test]
fn a_foreign_file_is_not_taken_for_a_cache() {
    let rig = Rig::new();
    std::fs::write(rig.cache_path(), vec![0x5a; 256 << 20]).unwrap();
    let log = fails(&rig, EXIT_NOT_OURS);
    let path = rig.cache_path().to_string_lossy().into_owned();
    names(&log, &[&path, "; make one with `tenuto cache create"]);
    let line = rig.refused(&["cache", "create", &path], EXIT_REFUSED);
    names(&line, &["of data that would be lost", "--force"]);
    let kept = std::fs::read(rig.cache_path()).unwrap();
    assert!(
        kept.iter().all(|&byte| byte == 0x5a),
        "the foreign file was changed"
    );
}

/// Fails when: the version is not compared.
#[test]
fn a_cache_of_another_version_is_refused_and_not_changed() {
    let rig = Rig::new();
    rig.serve().stop();
    // The version stands behind the magic in every copy of the superblock.
    let before = std::fs::read(rig.cache_path()).unwrap();
    let magic = before[..8].to_vec();
    assert_ne!(magic, [0; 8], "a superblock opens the cache");
    let file = std::fs::File::options()
        .write(true)
        .open(rig.cache_path())
        .unwrap();
    let mut copies = 0;
    for at in (0..before.len()).step_by(4096).take(64) {
        if before[at..at + 8] == magic[..] {
            file.write_all_at(&0xfffe_u16.to_le_bytes(), at as u64 + 8)
                .unwrap();
            copies += 1;
        }
    }
    assert!(copies > 0);
    let changed = std::fs::read(rig.cache_path()).unwrap();
    let log = fails(&rig, EXIT_NOT_OURS);
    names(&log, &["version", "; use the program that made it"]);
    assert!(
        std::fs::read(rig.cache_path()).unwrap() == changed,
        "the cache was changed"
    );
}

#[test]
fn a_damaged_cache_is_called_damaged_and_nobody_is_told_to_make_it_anew() {
    let rig = Rig::new();
    rig.serve().stop();
    let file = std::fs::File::options()
        .write(true)
        .open(rig.cache_path())
        .unwrap();
    let before = std::fs::read(rig.cache_path()).unwrap();
    // One copy no longer says whose it is, the other has a flipped bit behind its checksum.
    file.write_all_at(&[0; 8], 0).unwrap();
    file.write_all_at(&[before[4096 + 40] ^ 1], 4096 + 40)
        .unwrap();
    assert_eq!(before[..8], before[4096..4096 + 8], "there are two copies");
    let log = fails(&rig, EXIT_DAMAGE);
    names(&log, &["both copies of the superblock are damaged"]);
    assert!(!log.contains("cache create"), "{log}");
}

/// A volume with flushed data that is not at the origin, and the daemon stopped.
fn dirty(rig: &mut Rig, image: &Path) -> Load {
    dirty_with(rig, image, |_, _| {})
}

/// The same; `look` may read from the volume before the stop.
fn dirty_with(rig: &mut Rig, image: &Path, look: impl FnOnce(&Load, &mut Client)) -> Load {
    rig.volume("disk", image, "write-back", "destage-after = \"10m\"");
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Prefix, seed(9));
    load.run(rig.connect("disk"), |counts| counts.answered < 300)
        .expect("reads are right");
    let mut client = rig.connect("disk");
    load.flush(&mut client);
    look(&load, &mut client);
    client.disconnect();
    daemon.stop();
    load
}

/// Fails when: `cache create` does not look for dirty data.
#[test]
fn a_dirty_cache_is_not_formatted_and_its_loss_is_named() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    dirty(&mut rig, &image);
    let path = rig.cache_path().to_string_lossy().into_owned();
    let line = rig.refused(&["cache", "create", &path], EXIT_REFUSED);
    names(&line, &["disk", "MiB", "--"]);
}

/// Fails when: a ledger that says *dirty* is passed over, that of another cache and that of one
/// made anew.
#[test]
fn a_dirty_volume_whose_cache_is_gone_is_held_and_never_serves_the_stale_image() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    dirty(&mut rig, &image);
    std::fs::remove_file(rig.cache_path()).unwrap();
    rig.lose_stage();
    match rig.try_serve() {
        Err((status, log)) => {
            assert_eq!(status.code(), Some(EXIT_REFUSED), "{log}");
            names(&log, &["disk"]);
        }
        Ok(daemon) => {
            assert_eq!(rig.show("disk")["state"], "held");
            let status = rig.tenuto(&["status", "-x"]);
            assert_eq!(status.status.code(), Some(1), "{}", text_of(&status));
            names(&String::from_utf8_lossy(&status.stdout), &["disk"]);
            daemon.stop();
        }
    }
}

/// A dirty volume whose cache is gone, beside one that is well.
fn without_its_cache() -> (Rig, std::path::PathBuf, Load) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let load = dirty(&mut rig, &image);
    let other = rig.image("other.img", BYTES);
    rig.volume("other", &other, "write-back", "");
    std::fs::remove_file(rig.cache_path()).unwrap();
    rig.lose_stage();
    (rig, image, load)
}

/// Fails when: a held volume ends the start.
#[test]
fn a_held_volume_stops_no_other_and_says_what_is_lost() {
    let (rig, image, _) = without_its_cache();
    let before = std::fs::read(&image).unwrap();
    let daemon = rig.serve();
    let mut client = rig.connect("other");
    client.write(0, &[1; 4096]);
    client.flush();
    client.disconnect();
    let shown = rig.show("disk");
    assert_eq!(shown["state"], "held");
    assert_eq!(shown["dirty_bytes"], serde_json::Value::Null, "not known");
    let reason = shown["effective_reason"].as_str().expect("a reason");
    names(reason, &["disk", "dirty"]);
    assert_eq!(reason.matches("volume disk").count(), 1, "{reason}");
    names(
        shown["held"]["go_on"].as_str().unwrap(),
        &["accept-loss disk"],
    );
    assert!(shown["held"]["ledger_age_seconds"].is_u64(), "{shown}");
    let listed = rig.json(&["volume", "ls"]);
    let states: Vec<_> = listed["volumes"].as_array().unwrap().iter().collect();
    assert!(
        states
            .iter()
            .any(|it| it["name"] == "disk" && it["state"] == "held")
    );
    let wrong = rig.tenuto(&["status", "-x"]);
    assert_eq!(wrong.status.code(), Some(1));
    names(&text_of(&wrong), &["volume disk is held", "accept-loss"]);
    // Its clients are told so, on both sockets; nothing of the stale image is served.
    for socket in [rig.all_exports(), rig.socket("disk")] {
        let refused = Client::connect(&socket, "disk").err().expect("no export");
        names(&refused.to_string(), &["held", "tenuto status"]);
    }
    rig.refused(&["volume", "destage", "disk", "--wait"], EXIT_REFUSED);
    daemon.stop();
    assert!(std::fs::read(&image).unwrap() == before);
}

/// Fails when: the name is not asked for a second time.
#[test]
fn a_loss_is_accepted_by_name_and_the_volume_goes_on() {
    let (rig, image, _) = without_its_cache();
    let daemon = rig.serve();
    let before = std::fs::read(&image).unwrap();
    let generation = |rig: &Rig| rig.show("disk")["generation"].as_u64().unwrap();
    let old = generation(&rig);
    let line = rig.refused(&["volume", "accept-loss", "disk"], EXIT_REFUSED);
    names(&line, &["bytes", "age", "--discard-dirty=disk"]);
    rig.refused(
        &["volume", "accept-loss", "disk", "--discard-dirty=other"],
        EXIT_USAGE,
    );
    rig.refused(&["volume", "accept-loss", "other"], EXIT_USAGE);
    assert_eq!(rig.show("disk")["state"], "held");
    rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    let mut client = rig.connect("disk");
    assert!(
        client.read(0, BYTES as usize) == before,
        "the last destaged state"
    );
    assert!(generation(&rig) > old, "a new generation");
    // In the ledger before the first reply: a start after a kill finds it, and new data with it.
    client.write(4096, &[7; 4096]);
    client.flush();
    daemon.kill();
    let daemon = rig.serve();
    assert_eq!(rig.tenuto(&["status", "-x"]).status.code(), Some(EXIT_DONE));
    assert_eq!(rig.connect("disk").read(4096, 4096), vec![7; 4096]);
    daemon.stop();
}

/// The volume went on with the serials of what was lost, and far beyond them; so serials do not
/// tell that what the old cache has is at the origin.
/// Fails when: the ledger does not keep that a loss was accepted.
#[test]
fn a_cache_that_was_given_up_is_not_dropped_when_it_turns_up() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    dirty(&mut rig, &image);
    let (kept, since) = (rig.dir.join("cache.kept"), rig.dir.join("cache.since"));
    std::fs::rename(rig.cache_path(), &kept).unwrap();
    rig.lose_stage();
    let daemon = rig.serve();
    let lost = rig.show("disk")["destaged_serial"].as_u64().unwrap_or(0);
    rig.done(&["volume", "accept-loss", "disk", "--discard-dirty=disk"]);
    let mut client = rig.connect("disk");
    for number in 0..1000 {
        client.write(number % 16 * 4096, &[number as u8; 4096]);
    }
    client.flush();
    rig.done(&["volume", "destage", "disk", "--wait"]);
    assert!(rig.show("disk")["destaged_serial"].as_u64() >= Some(lost + 1000));
    client.disconnect();
    daemon.stop();
    std::fs::rename(rig.cache_path(), &since).unwrap();
    std::fs::rename(&kept, rig.cache_path()).unwrap();
    rig.lose_stage();
    let daemon = rig.serve();
    let shown = rig.show("disk");
    assert_eq!(shown["state"], "held", "{shown}");
    daemon.says(&["dirty bytes of an older generation"]);
    daemon.stop();
}

/// Fails when: `reload` reports success and does nothing.
#[test]
fn a_held_volume_is_tried_again_by_reload() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let mut load = dirty(&mut rig, &image);
    let kept = rig.dir.join("cache.kept");
    std::fs::rename(rig.cache_path(), &kept).unwrap();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.show("disk")["state"], "held");
    // Its cache turns up: the data comes home beside the running daemon, which holds no lock.
    let path = kept.to_string_lossy().into_owned();
    rig.done(&["recover", "--cache", &path]);
    let said = rig.done(&["reload"]);
    names(&said, &["disk", "not held"]);
    load.verify(Crash::PowerLoss, &mut rig.connect("disk"))
        .expect("everything flushed is there");
    daemon.stop();
}

/// Fails when: volumes that the configuration does not name are not attached.
#[test]
fn a_dirty_volume_that_nobody_names_is_kept_shown_and_destaged() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let mut load = dirty(&mut rig, &image);
    rig.forget_volumes();
    let daemon = rig.serve();
    // It is destaged without being asked, and forgotten when nothing is owed any more.
    let mut flags = Vec::new();
    wait_until("the orphan is destaged", DESTAGE_TIMEOUT, || {
        let listed = rig.json(&["volume", "ls"]);
        let volumes = listed["volumes"].as_array().expect("a list of volumes");
        let orphan = volumes.iter().find(|volume| volume["name"] == "disk");
        flags.extend(orphan.map(|volume| volume["flags"].clone()));
        orphan.is_none_or(|volume| volume["dirty_bytes"] == 0)
    });
    let orphan = |flags: &serde_json::Value| flags.as_array().unwrap().contains(&"orphan".into());
    assert!(flags.iter().all(orphan), "shown as an orphan: {flags:?}");
    daemon.says(&["disk"]);
    daemon.stop();
    // By itself, without the cache: the image holds everything.
    let mut plain = Rig::new();
    plain.volume("disk", &image, "uncached", "");
    let daemon = plain.serve();
    load.verify(Crash::PowerLoss, &mut plain.connect("disk"))
        .expect("everything is destaged");
    daemon.stop();
}

/// Fails when: `recover` destages no volume and reports success.
#[test]
fn recover_brings_the_data_of_a_dead_hosts_cache_to_its_origin() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let load = dirty(&mut rig, &image);
    rig.lose_stage();
    let before = std::fs::read(&image).unwrap();
    let path = rig.cache_path().to_string_lossy().into_owned();
    rig.done(&["recover", "--cache", &path, "--dry-run"]);
    assert!(
        std::fs::read(&image).unwrap() == before,
        "a dry run changes nothing"
    );
    rig.done(&["recover", "--cache", &path]);
    let cut = load.examine(&image).expect("the image is a prefix");
    assert_eq!(
        cut + 1,
        load.model.next_serial(),
        "everything flushed is at the origin"
    );
}

/// Fails when: `--volume` is ignored.
#[test]
fn recover_brings_home_only_the_volume_it_is_asked_for() {
    let mut rig = Rig::new();
    let (image, other) = (rig.image("disk.img", BYTES), rig.image("other.img", BYTES));
    rig.volume("other", &other, "write-back", "destage-after = \"10m\"");
    dirty_with(&mut rig, &image, |_, _| {
        let mut client = rig_client(&image);
        client.write(0, &[5; 8192]);
        client.flush();
    });
    rig.lose_stage();
    let before = std::fs::read(&image).unwrap();
    let path = rig.cache_path().to_string_lossy().into_owned();
    rig.done(&["recover", "--cache", &path, "--volume", "other"]);
    assert_eq!(std::fs::read(&other).unwrap()[..8192], [5; 8192]);
    assert!(
        std::fs::read(&image).unwrap() == before,
        "the other one is left alone"
    );
    rig.done(&["recover", "--cache", &path]);
    assert!(std::fs::read(&image).unwrap() != before);
}

/// A client of the volume "other" of the rig that this image belongs to.
fn rig_client(image: &Path) -> Client {
    let dir = image.parent().expect("images lie in the rig");
    Client::connect(&dir.join("run/nbd.sock"), "other").expect("connect")
}

/// Fails when: the checksum of a block of the log is not compared (`DropLogSum`).
#[test]
fn a_flipped_bit_in_dirty_data_is_an_error_of_its_own_volume_only() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    let other = rig.image("other.img", BYTES);
    rig.volume("other", &other, "write-back", "");
    // The oldest write that still shows on the volume: the end of the log, where damage could
    // be taken for a torn tail, is far from it.
    let mut oldest = (u64::MAX, 0);
    let mut load = dirty_with(&mut rig, &image, |_, client| {
        let bytes = client.read(0, BYTES as usize);
        for sector in bytes.chunks_exact(512) {
            if let Reading::Stamped { sector, serial, .. } = stamp::read(sector) {
                oldest = oldest.min((serial, sector));
            }
        }
    });
    rig.lose_stage();
    let flipped = flip(&rig, oldest);
    let path = rig.cache_path().to_string_lossy().into_owned();
    let verdict = rig.tenuto(&["cache", "verify", &path]);
    assert_eq!(
        verdict.status.code(),
        Some(EXIT_DAMAGE),
        "{}",
        text_of(&verdict)
    );
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    let mut sector = [0; 512];
    let read = client.try_read(flipped * 512, &mut sector);
    assert_eq!(read, Err(crate::common::nbd::EIO), "never wrong bytes");
    assert_eq!(rig.show("disk")["state"], "damaged");
    let mut client = rig.connect("other");
    client.write(0, &[1; 4096]);
    client.flush();
    assert_eq!(client.read(0, 4096), [1; 4096]);
    // Overwritten as a whole block it is well again.
    let mut client = rig.connect("disk");
    load.write_at(&mut client, flipped / 8 * 8, 8);
    assert!(client.try_read(flipped * 512, &mut sector).is_ok());
    daemon.stop();
}

/// Flips one bit of this sector of this write in the log; which sector. What was moved in the log
/// lies there more than once, and only one place counts: all are hit.
fn flip(rig: &Rig, (serial, sector): (u64, u64)) -> u64 {
    let cache = std::fs::read(rig.cache_path()).unwrap();
    let is_it = |bytes: &[u8]| {
        matches!(stamp::read(bytes), Reading::Stamped { sector: at, serial: of, .. }
            if (of, at) == (serial, sector))
    };
    let file = std::fs::File::options()
        .write(true)
        .open(rig.cache_path())
        .unwrap();
    let mut found = 0;
    for (index, bytes) in cache.chunks_exact(512).enumerate() {
        if is_it(bytes) {
            file.write_all_at(&[bytes[300] ^ 1], index as u64 * 512 + 300)
                .unwrap();
            found += 1;
        }
    }
    assert!(found > 0, "the log holds it");
    sector
}

/// Fails when: a flush is answered before the log has what it covers (`AcknowledgeBeforeLog`).
#[test]
fn a_torn_tail_is_counted_and_not_an_error() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "destage-after = \"10m\"");
    let daemon = rig.serve();
    let mut load = Load::new(1, BYTES, Promise::Prefix, seed(10));
    let end = load.run(rig.connect("disk"), |counts| {
        if counts.answered > 400 {
            daemon.signal(libc::SIGKILL);
        }
        true
    });
    end.expect("reads are right");
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    let status = rig.json(&["status"]);
    assert!(
        status["recovery"]["tail_bytes_discarded"].is_u64(),
        "{status}"
    );
    load.verify(Crash::PowerLoss, &mut rig.connect("disk"))
        .expect("everything flushed is there");
    assert_eq!(rig.tenuto(&["status", "-x"]).status.code(), Some(EXIT_DONE));
    daemon.stop();
}
