//! What the machine or its administrator did not give: file sizes, an io_uring, an image, a state
//! directory of one's own. Each is told with what to change, and disturbs nothing else.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use crate::common::nbd::{self, Client};
use crate::common::{Daemon, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE, Rig, text_of, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

fn names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// The start fails with this code; the log.
fn fails(rig: &Rig, code: i32) -> String {
    ended(rig.try_serve(), code)
}

/// The same where no image may be missing.
fn fails_strictly(rig: &Rig, code: i32) -> String {
    ended(rig.try_serve_strict(), code)
}

fn ended(start: Result<Daemon, (ExitStatus, String)>, code: i32) -> String {
    let (status, log) = start.err().expect("it does not start");
    assert_eq!(status.code(), Some(code), "{log}");
    log
}

fn state(rig: &Rig, volume: &str) -> String {
    let shown = rig.show(volume);
    shown["state"].as_str().expect("a state").to_owned()
}

/// Fails when: the signal of that limit ends the daemon, or a cache that is larger is opened.
#[test]
fn a_write_behind_the_limit_of_file_sizes_is_an_error_of_its_guest_only() {
    let mut rig = Rig::new();
    // Larger than the limit, which is larger than the cache.
    let large = rig.image("large.img", 512 * MIB);
    let small = rig.image("small.img", 4 * MIB);
    rig.volume("large", &large, "uncached", "")
        .volume("small", &small, "write-back", "")
        .file_bytes_max(Some(300 * MIB));
    let mut daemon = rig.serve();
    let mut client = rig.connect("large");
    let error = client.try_write(400 * MIB, &[1; 4096], 0);
    assert_eq!(error, nbd::ENOSPC);
    assert_eq!(client.try_write(0, &[2; 4096], 0), 0, "before the limit");
    let mut other = rig.connect("small");
    other.write(0, &[3; 4096]);
    other.flush();
    assert_eq!(other.read(0, 4096), [3; 4096]);
    assert!(daemon.is_alive());
    daemon.says(&["large.img", "LimitFSIZE"]);
    daemon.stop();
    // A cache that is there, but behind the limit, would fail with each write.
    rig.file_bytes_max(Some(100 * MIB));
    names(&fails(&rig, EXIT_FAILED), &["cache", "LimitFSIZE"]);
    std::fs::remove_file(rig.cache_path()).unwrap();
    names(
        &fails(&rig, EXIT_FAILED),
        &["cache", "LimitFSIZE", "100 MiB"],
    );
    assert!(!rig.cache_path().exists(), "nothing stays behind");
}

/// Fails when: the cache is made before the kernel was asked for an io_uring.
#[test]
fn an_io_uring_that_is_refused_is_told_with_what_to_change_and_leaves_no_cache() {
    let mut rig = Rig::new();
    for (errno, cause) in [
        (libc::EPERM, "seccomp"),
        (libc::ENOSYS, "SystemCallFilter="),
        (libc::ENOMEM, "LimitMEMLOCK="),
    ] {
        rig.no_ring(Some(errno));
        let log = fails(&rig, EXIT_FAILED);
        let last = log.lines().last().expect("a line");
        names(last, &["io_uring", cause]);
        assert!(!rig.cache_path().exists(), "{last}");
    }
    rig.no_ring(None);
    rig.serve().stop();
}

/// Fails when: no lock is taken on the directory.
#[test]
fn two_daemons_do_not_share_a_state_directory() {
    let rig = Rig::new();
    let mut daemon = rig.serve();
    let second = Rig::new();
    let place = second.dir.join("state");
    std::fs::remove_dir(&place).unwrap();
    std::os::unix::fs::symlink(rig.dir.join("state"), &place).unwrap();
    let log = fails(&second, EXIT_FAILED);
    names(&log, &["state-dir", &format!("pid {}", daemon.pid())]);
    assert!(!second.cache_path().exists(), "nothing was started");
    assert!(daemon.is_alive());
    daemon.kill();
    second.serve().stop();
}

/// What clients are told of a volume that is held.
fn refused(rig: &Rig, volume: &str) {
    let refused = Client::connect(&rig.all_exports(), volume).err();
    names(&refused.expect("no export").to_string(), &["held"]);
}

/// Fails when: an image that cannot be opened ends the start, or is not tried again by itself.
#[test]
fn an_image_that_is_missing_or_busy_keeps_no_other_volume_away_and_is_served_when_it_is_free() {
    let mut rig = Rig::new();
    let [gone, busy, well] = ["gone", "busy", "well"].map(|name| rig.image(name, 4 * MIB));
    for (name, image) in [("gone", &gone), ("busy", &busy), ("well", &well)] {
        rig.volume(name, image, "write-back", "destage-after = \"never\"");
    }
    let daemon = rig.serve();
    rig.connect("gone").write(8192, &[7; 4096]);
    daemon.stop();
    let away = rig.dir.join("elsewhere");
    std::fs::rename(&gone, &away).unwrap();
    let mut owner = Rig::new();
    owner.volume("other", &busy, "uncached", "");
    let owner = owner.serve();

    let daemon = rig.serve();
    let mut client = rig.connect("well");
    client.write(0, &[1; 4096]);
    client.flush();
    for (name, why) in [
        ("gone", vec!["gone", "o such file"]),
        ("busy", vec!["busy", &format!("pid {}", owner.pid())]),
    ] {
        let shown = rig.show(name);
        assert_eq!(shown["state"], "held", "{shown}");
        names(shown["effective_reason"].as_str().expect("why"), &why);
        refused(&rig, name);
        let wrong = rig.tenuto(&["status", "-x"]);
        assert_eq!(wrong.status.code(), Some(1));
        names(&text_of(&wrong), &[name, "tried again"]);
        // There is no loss to accept: what is missing is the image.
        rig.refused(&["volume", "accept-loss", name], EXIT_REFUSED);
    }
    // One by the clock, the other by an order.
    owner.stop();
    wait_until("the busy one is served", PATIENCE, || {
        state(&rig, "busy") != "held"
    });
    rig.connect("busy").write(0, &[2; 4096]);
    std::fs::rename(&away, &gone).unwrap();
    rig.done(&["reload"]);
    assert_eq!(state(&rig, "gone"), "dirty");
    assert_eq!(
        rig.connect("gone").read(8192, 4096),
        [7; 4096],
        "nothing is lost"
    );
    daemon.stop();
}

/// Fails when: `--strict` is ignored.
#[test]
fn with_strict_an_image_that_cannot_be_opened_ends_the_start() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 4 * MIB);
    rig.volume("disk", &image, "write-back", "");
    let mut owner = Rig::new();
    owner.volume("other", &image, "uncached", "");
    let owner = owner.serve();
    let said = fails_strictly(&rig, EXIT_FAILED);
    names(&said, &["disk.img", &format!("pid {}", owner.pid())]);
    owner.stop();
    std::fs::remove_file(&image).unwrap();
    let started = fails_strictly(&rig, EXIT_USAGE);
    let checked = rig.refused(&["config", "--check"], EXIT_USAGE);
    for said in [started, checked] {
        names(&said, &["tenuto.toml:", "origin", "disk.img"]);
    }
    // What the file says wrong is no matter of an image.
    rig.forget_volumes();
    rig.volume("disk", Path::new("s3://bucket/prefix"), "write-back", "");
    names(&fails(&rig, EXIT_USAGE), &["tenuto.toml:", "s3"]);
}
