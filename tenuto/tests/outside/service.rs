//! The daemon as a service: what it tells its manager, and the unit it comes with.
//!
//! The manager is played here by a socket; the real one is in `package`.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::disk::{Device, Disk};
use crate::common::export::Export;
use crate::common::nbd::CMD_WRITE;
use crate::common::thread::Stopped;
use crate::common::{Rig, have, may_mount, text_of};

const PATIENCE: Duration = Duration::from_secs(60);
/// Asked for so often, a sign of life comes ten times in a second.
const WATCHDOG_USEC: &str = "300000";
/// `systemd-analyze security` rates from 0 to 10; below 3.5 it says "OK" for a root service that
/// talks to the network.
const EXPOSURE_MAX: f64 = 3.5;

/// The manager's end.
struct Manager(UnixDatagram);

impl Manager {
    fn new(rig: &mut Rig) -> Manager {
        let path = rig.dir.join("notify");
        let socket = UnixDatagram::bind(&path).expect("bind the socket");
        rig.env("NOTIFY_SOCKET", &path.to_string_lossy());
        rig.env("WATCHDOG_USEC", WATCHDOG_USEC);
        Manager(socket)
    }

    /// The next message, if it comes within this time.
    fn hears(&self, time: Duration) -> Option<String> {
        let mut bytes = [0; 4096];
        self.0.set_read_timeout(Some(time)).expect("a timeout");
        let length = self.0.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Waits for a message that has this line.
    fn waits_for(&self, line: &str) -> String {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let heard = self.hears(Duration::from_secs(1));
            if let Some(heard) = heard.filter(|heard| heard.lines().any(|said| said == line)) {
                return heard;
            }
        }
        panic!("{line} was not said");
    }

    /// Signs of life within this time.
    fn signs(&self, time: Duration) -> usize {
        let end = Instant::now() + time;
        let mut signs = 0;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let heard = self.hears(left.max(Duration::from_millis(1)));
            signs += usize::from(heard.is_some_and(|heard| heard == "WATCHDOG=1"));
        }
        signs
    }
}

/// Fails when: signs of life are sent without asking the loop.
#[test]
fn a_loop_that_hangs_gives_no_sign_of_life_and_slow_devices_stop_none() {
    let test = "a_loop_that_hangs_gives_no_sign_of_life_and_slow_devices_stop_none";
    if !may_mount(test) {
        return;
    }
    let mut rig = Rig::new();
    let manager = Manager::new(&mut rig);
    let disk = Disk::new(160 << 20);
    let device = Device::new(&disk, &rig.dir.join("cache"));
    let small = "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"";
    rig.cache(device.path(), "160MiB", small);
    let export = Export::new(16 << 20);
    let socket = rig.dir.join("origin.sock");
    export.serve(&socket);
    let far = PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()));
    let near = rig.image("near.img", 16 << 20);
    rig.volume("far", &far, "uncached", "");
    rig.volume("near", &near, "write-back", "");
    rig.write_config();
    rig.done(&["cache", "create", &device.path().to_string_lossy()]);
    let daemon = rig.serve();
    manager.waits_for("READY=1");
    assert!(manager.signs(Duration::from_secs(2)) >= 5);

    // A write to each, neither answered: the origin and the cache device hang.
    export.hold_writes(0, 16 << 20);
    disk.hold_writes(0, 160 << 20);
    let mut clients = ["far", "near"].map(|volume| rig.connect(volume));
    for client in &mut clients {
        let sent = client.send(CMD_WRITE, 0, 0, 4096, &[7; 4096]);
        sent.expect("send a write");
    }
    assert!(export.wait_parked(1, PATIENCE), "the origin hangs");
    assert!(disk.wait_parked(1, PATIENCE), "the cache device hangs");
    assert!(manager.signs(Duration::from_secs(2)) >= 5);
    disk.hold_no_more();
    disk.let_go();
    export.hold_no_more();
    export.let_go();

    let stopped = Stopped::new(daemon.pid(), "tenuto-shard");
    // One may have been under way.
    assert!(manager.signs(Duration::from_millis(500)) <= 3);
    assert_eq!(manager.signs(Duration::from_secs(2)), 0);
    drop(stopped);
    manager.waits_for("WATCHDOG=1");
    drop(clients);
    daemon.stop();
}

#[test]
fn the_manager_is_told_of_start_reload_and_stop() {
    let mut rig = Rig::new();
    let manager = Manager::new(&mut rig);
    let image = rig.image("disk.img", 16 << 20);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    manager.waits_for("READY=1");
    let status = "STATUS=1 volumes, 0 B not at their origins";
    manager.waits_for(status);
    rig.connect("disk").write(0, &[7; 4096]);

    daemon.signal(libc::SIGHUP);
    let reloading = manager.waits_for("RELOADING=1");
    let time = reloading
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    let time: u64 = time.and_then(|time| time.parse().ok()).expect("a time");
    assert!(time > 0);
    manager.waits_for("READY=1");
    manager.waits_for("STATUS=1 volumes, 4 KiB not at their origins");

    daemon.signal(libc::SIGTERM);
    manager.waits_for("STOPPING=1");
    daemon.stop();
}

/// A unit with the program that is there to be found.
fn unit(rig: &Rig, name: &str) -> PathBuf {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    // Of a template, one that is made of it.
    let source = packaging.join(name.replace("@disk", "@"));
    let text = std::fs::read_to_string(source).expect("read the unit");
    let text = text.replace("/usr/bin/tenuto", env!("CARGO_BIN_EXE_tenuto"));
    let path = rig.dir.join(name);
    std::fs::write(&path, text).expect("write the unit");
    path
}

#[test]
fn the_unit_of_a_block_device_is_valid() {
    if !have("the_unit_of_a_block_device_is_valid", &["systemd-analyze"]) {
        return;
    }
    let rig = Rig::new();
    let mut command = Command::new("systemd-analyze");
    command
        .args(["verify", "--man=no"])
        .arg(unit(&rig, "tenuto-device@disk.service"));
    let verified = command.output().expect("run systemd-analyze");
    assert!(verified.status.success(), "{}", text_of(&verified));
    assert!(verified.stderr.is_empty(), "{}", text_of(&verified));
}

#[test]
fn the_unit_is_valid_and_leaves_little_open() {
    let test = "the_unit_is_valid_and_leaves_little_open";
    if !have(test, &["systemd-analyze"]) {
        return;
    }
    let rig = Rig::new();
    let unit = unit(&rig, "tenuto.service");
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let output = command.args(arguments).arg(&unit).output();
        output.expect("run systemd-analyze")
    };
    let verified = analyze(&["verify", "--man=no"]);
    assert!(verified.status.success(), "{}", text_of(&verified));
    assert!(verified.stderr.is_empty(), "{}", text_of(&verified));
    let rated = analyze(&["security", "--offline=true", "--no-pager"]);
    let text = String::from_utf8_lossy(&rated.stdout).into_owned();
    let level = text
        .lines()
        .find_map(|line| line.split_once("exposure level for")?.1.split_once(": "))
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<f64>().ok());
    let level = level.unwrap_or_else(|| panic!("no level in\n{text}"));
    assert!(level <= EXPOSURE_MAX, "{level} is too open:\n{text}");
    // What the stage needs to outlive the daemon.
    let text = std::fs::read_to_string(&unit).expect("read the unit");
    for key in ["PrivateIPC=yes", "RemoveIPC=yes", "PrivateDevices=yes"] {
        assert!(!text.lines().any(|line| line == key), "{key}");
    }
}
