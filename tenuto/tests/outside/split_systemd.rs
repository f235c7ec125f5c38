//! A clone whose PID 1 is the systemd of this host, on the disks of a split.
//!
//! Always true: what is mounted and when follows from the table that the split wrote, read by
//! systemd's own generator; nothing of the guest mounts anything itself. Deliberately absent: what
//! clones keep in general, which another file shows with less.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::guest::{Machine, libraries, with_libraries};
use crate::common::{Rig, have, may_mount, run, skip};
use crate::split::{PROGRAMS, UUID, boot_from, order_of_pool, take_lines};

const DISK_BYTES: u64 = 256 << 20;
/// Directories of systemd, with its generators, rules and programs.
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd", "/usr/lib/udev"];
const IN_GUEST: [&str; 7] = [
    "mount",
    "umount",
    "systemctl",
    "journalctl",
    "udevadm",
    "fsck",
    "e2fsck",
];
const MACHINE_ID: &str = "0123456789abcdef0123456789abcdef";
const RULES: &str = "\
[pool]
name = \"office\"
members = \"desk\"
keep = [\"/var/lib/app\", \"/etc/app.conf\", \"/etc/machine-id\"]
";

const WORK: &str = "#!/bin/busybox sh
exec /usr/lib/systemd/systemd --unit=test.target --show-status=false
";
const TARGET: &str = "[Unit]
Requires=basic.target probe.service
";
/// Before anything is mounted.
const EARLY: &str = "[Unit]
DefaultDependencies=no
Before=local-fs-pre.target
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/busybox sh -c 'echo \"guest: early $$(cat /etc/app.conf)\"'
";
/// As services start by default.
const PROBE: &str = "[Unit]
After=basic.target
[Service]
Type=oneshot
StandardOutput=tty
TTYPath=/dev/ttyS0
ExecStart=/bin/busybox sh /probe
";
const SAY: &str = r#"say() { echo "guest: $*"; }
say "state $(busybox cat /var/lib/app/state)"
say "conf $(busybox cat /etc/app.conf)"
say "id $(busybox cat /etc/machine-id)"
say failed $(systemctl list-units --failed --no-legend --plain)
echo kept >/var/lib/app/state
echo kept >/etc/app.conf
busybox sync
busybox mount -o remount,ro /
say unmounted
systemctl poweroff -ff
"#;

/// A guest with the programs of systemd, which has them where they are on this host.
fn image(machine: &Machine, rig: &Rig) -> PathBuf {
    let root = rig.dir.join("root");
    for part in [
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "var/lib/app",
        "etc/systemd/system/sysinit.target.wants",
    ] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    for directory in SYSTEMD {
        let to = root.join(directory.trim_start_matches('/'));
        run("cp", &["-a", "-T", directory, &to.to_string_lossy()]);
    }
    for (name, target) in [
        ("bin", "usr/bin"),
        ("e2", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("usr/sbin/init", "../lib/systemd/systemd"),
        ("usr/sbin/fsck.ext4", "../bin/e2fsck"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    with_libraries(&root, &IN_GUEST);
    for directory in SYSTEMD {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            // Scripts and files of words have none.
            if fs::read(&path).is_ok_and(|it| it.starts_with(b"\x7fELF")) {
                libraries(&root, &path.to_string_lossy());
            }
        }
    }
    let units = Path::new("etc/systemd/system");
    let machine_id = format!("{MACHINE_ID}\n");
    for (path, text) in [
        (units.join("test.target"), TARGET),
        (units.join("early.service"), EARLY),
        (units.join("probe.service"), PROBE),
        ("probe".into(), SAY),
        ("etc/passwd".into(), "root:x:0:0:root:/:/bin/sh\n"),
        ("etc/group".into(), "root:x:0:\n"),
        ("etc/os-release".into(), "ID=guest\n"),
        ("etc/fstab".into(), "/dev/vda / ext4 defaults 0 1\n"),
        ("etc/machine-id".into(), &machine_id),
        ("etc/app.conf".into(), "first\n"),
        ("var/lib/app/state".into(), "first\n"),
    ] {
        fs::write(root.join(path), text).unwrap();
    }
    let wants = root.join(units).join("sysinit.target.wants/early.service");
    symlink("../early.service", wants).unwrap();
    machine.program(&root, "work", WORK);
    let image = rig.dir.join("gold.img");
    Machine::image_of(&root, &image, DISK_BYTES);
    image
}

/// Fails when: what is kept is not there for a service that starts as services do, the ID of a
/// clone is that of the image or another at its next start, a service fails because of the mounts,
/// or one that reads a kept file before finds none.
#[test]
fn a_clone_with_systemd_has_what_it_keeps_before_its_services_and_an_id_of_its_own() {
    let test = "a_clone_with_systemd_has_what_it_keeps_before_its_services_and_an_id_of_its_own";
    if !may_mount(test) || !have(test, &PROGRAMS) || !have(test, &IN_GUEST) {
        return;
    }
    if !Path::new("/usr/lib/systemd/systemd").is_file() {
        return skip(test, "systemd is not installed");
    }
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let image = image(&machine, &rig);
    let (out, split) = order_of_pool(&rig, &image, RULES);
    let split: Vec<&str> = split.iter().map(String::as_str).collect();
    rig.done(&[&split[..], &["--yes"]].concat());
    take_lines(&mut rig, &out);
    let daemon = rig.serve();
    let id = format!("id {}", UUID.replace('-', ""));
    for kept in ["first", "kept"] {
        let said = boot_from(
            &rig,
            &machine,
            &["desk", "desk-keep"].map(str::to_owned),
            kept,
        );
        let said: Vec<&str> = said.iter().map(|it| it.trim()).collect();
        let [state, conf] = ["state", "conf"].map(|it| format!("{it} {kept}"));
        assert_eq!(said[..4], ["early first", &state, &conf, &id]);
        // Services that this guest lacks programs for may fail.
        let failed = said[4].strip_prefix("failed").expect("it is told");
        assert!(
            ![".mount", "machine-id"]
                .iter()
                .any(|it| failed.contains(it)),
            "{failed}"
        );
    }
    daemon.stop();
}
