//! Disks with ext4 and xfs, split by the real programs: what a guest sees stays what it was.
//!
//! Always true: a test looks at the result by mounts of its own, in a mount name space that ends
//! with it. Deliberately absent: a guest that boots, which is a test of the whole product.

// Tests may unwrap; the lint knows that only of functions with `#[test]`, not of their helpers.
#![allow(clippy::unwrap_used)]

use split::{Error, Kind, Request, Result, Rules, Split, State, Watch};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const MIB: u64 = 1 << 20;
const GPT_AT: u64 = MIB;
const GPT_BYTES: u64 = 350 * MIB;
const WHOLE_BYTES: u64 = 420 * MIB;
/// Tells the child of a test what it has to do.
const CHILD: &str = "TENUTO_SPLIT_CHILD";
const PROGRAMS: [&str; 16] = [
    "blkid",
    "cp",
    "e2fsck",
    "losetup",
    "mke2fs",
    "mkfs.xfs",
    "mkswap",
    "mount",
    "qemu-img",
    "qemu-storage-daemon",
    "rsync",
    "setfattr",
    "sfdisk",
    "umount",
    "unshare",
    "xfs_repair",
];

/// Whether all is here; else a skip is noted for the runner, which never calls it passed.
fn can(test: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let has = |name: &str| {
        let path = format!("{path}:/usr/sbin:/sbin");
        path.split(':').any(|it| Path::new(it).join(name).is_file())
    };
    let is_root =
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let missing = PROGRAMS.iter().find(|it| !has(it));
    let why = match missing {
        Some(program) => format!("{program} is not installed"),
        None if !is_root || !Path::new("/dev/fuse").exists() => {
            "mounting needs root and /dev/fuse".to_owned()
        }
        None => return true,
    };
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("TENUTO_SKIPS") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        writeln!(file, "{test}: {why}").unwrap();
    }
    false
}

fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{}\n{out}{err}", output.status)
}

/// Runs a script in a mount name space of its own; what it printed.
fn script(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/linux")
        .join(name);
    let mut command = Command::new("unshare");
    command.args(["-m", "--", "bash"]).arg(path).args(arguments);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert!(
        output.status.success(),
        "{name} {arguments:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with the image of a guest.
struct Scene {
    dir: tempfile::TempDir,
    image: PathBuf,
    kind: &'static str,
    has_table: bool,
}

impl Scene {
    /// `more` is done in the root of the guest.
    fn new(kind: &'static str, table: &str, more: &str) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("guest.img");
        let arguments = [image.to_str().unwrap(), kind, table];
        script("build.sh", &arguments, &[("MORE", more)]);
        Scene {
            dir,
            image,
            kind,
            has_table: table != "none",
        }
    }

    fn into_qcow2(mut self) -> Scene {
        let new = self.dir.path().join("guest.qcow2");
        run(
            "qemu-img",
            &["convert", "-O", "qcow2", text(&self.image), text(&new)],
        );
        std::fs::remove_file(&self.image).unwrap();
        self.image = new;
        self
    }

    fn output(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn request(&self, name: &str) -> Request {
        Request {
            image: self.image.clone(),
            rules: Rules::load("linux").unwrap(),
            output: self.output(name),
            trusted: true,
            copy: false,
        }
    }

    /// Bytes of the image, which nothing may change.
    fn sum(&self) -> String {
        run("sha256sum", &[text(&self.image)])
    }

    /// What differs between the image and what the guest sees, what is left, fstab, sizes.
    fn view(&self, name: &str, environment: &[(&str, &str)]) -> String {
        let (at, bytes) = match self.has_table {
            true => (GPT_AT, GPT_BYTES),
            false => (0, WHOLE_BYTES),
        };
        let output = self.output(name);
        let [at, bytes] = [at, bytes].map(|it| it.to_string());
        let arguments = [text(&self.image), text(&output), self.kind, &at, &bytes];
        script("view.sh", &arguments, environment)
    }

    fn refused(&self, request: &Request) -> (Kind, String) {
        let before = self.sum();
        let done = Split::look(request).and_then(|mut it| it.run(&mut Steps::default()));
        let error = done.expect_err("must be refused");
        assert_eq!(self.sum(), before);
        let message = error.message.replace(text(&self.image), "IMAGE");
        (error.kind, message.replace(text(self.dir.path()), "DIR"))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        said(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[derive(Default)]
struct Steps(Vec<State>);

impl Watch for Steps {
    fn reached(&mut self, state: State) -> Result<()> {
        self.0.push(state);
        Ok(())
    }
}

fn split(request: &Request) -> Split {
    let mut split = Split::look(request).unwrap();
    split.run(&mut Steps::default()).unwrap();
    split
}

/// The part of a view before its title.
fn before<'a>(view: &'a str, title: &str) -> &'a str {
    view.split_once(title).unwrap().0
}

const TABLE: &str = "\
# Disks by how durable their data must be (tenuto image split).
LABEL=tenuto-wb /.tenuto/write-back KIND noatime,x-systemd.device-timeout=10s 0 2
LABEL=tenuto-never /.tenuto/never KIND noatime,nofail,x-systemd.device-timeout=10s 0 2
/ /.tenuto/system none bind 0 0
/.tenuto/never/home/anna\\040b/.cache /home/anna\\040b/.cache none \
bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0
/.tenuto/write-back/home/anna\\040b/.config /home/anna\\040b/.config none \
bind,x-systemd.requires-mounts-for=/.tenuto/write-back 0 0
/.tenuto/write-back/home/anna\\040b/.local/share /home/anna\\040b/.local/share none \
bind,x-systemd.requires-mounts-for=/.tenuto/write-back 0 0
/.tenuto/never/home/bob/.cache /home/bob/.cache none \
bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0
/.tenuto/write-back/opt /opt none bind,x-systemd.requires-mounts-for=/.tenuto/write-back 0 0
/.tenuto/never/tmp /tmp none bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0
/.tenuto/never/var/cache /var/cache none \
bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0
/.tenuto/system/var/cache/debconf /var/cache/debconf none \
bind,nofail,x-systemd.requires-mounts-for=/.tenuto/system 0 0
/.tenuto/write-back/var/log /var/log none \
bind,x-systemd.requires-mounts-for=/.tenuto/write-back 0 0
/.tenuto/never/var/tmp /var/tmp none \
bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0
LABEL=tenuto-swap none swap sw,nofail 0 0
";

/// Splits a guest, and judges all that is left of it.
fn stays_the_same(scene: &Scene, copy: bool) {
    let before_it = scene.sum();
    let request = Request {
        copy,
        ..scene.request("out")
    };
    let done = split(&request);
    assert_eq!(scene.sum(), before_it, "the image is not written");
    let view = scene.view("out", &[]);
    assert_eq!(
        before(&view, "== fstab"),
        "var/cache/debconf\nvar/cache/debconf/config.dat\n",
        "what differs, and what is left of what moved"
    );
    let kind = scene.kind;
    let head = format!("# the table of the guest\nLABEL=root / {kind} defaults 0 1\n");
    let table = before(&view, "== allocated")
        .split_once("== fstab\n")
        .unwrap()
        .1;
    assert_eq!(table, head + &TABLE.replace("KIND", kind));
    let report = done.report().json("done");
    assert_eq!(report["classes"][0]["class"], "write-back");
    assert_eq!(
        report["classes"][1]["swap_bytes"].as_u64().unwrap() % MIB,
        0
    );
    let info = run(
        "qemu-img",
        &[
            "info",
            "--output=json",
            text(&request.output.join("system.qcow2")),
        ],
    );
    assert_eq!(info.contains("backing-filename"), !copy);
    run(
        "qemu-img",
        &["check", "-q", text(&request.output.join("system.qcow2"))],
    );
    assert!(!request.output.join("work").exists());
    swap_is_there(&request.output.join("never.raw"));
    // A hole of 30 MiB did not become data.
    let allocated = std::fs::metadata(request.output.join("write-back.raw")).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&allocated);
    assert!(blocks * 512 < 100 * MIB, "{blocks} blocks");
}

fn swap_is_there(disk: &Path) {
    let table = run("sfdisk", &["-J", text(disk)]);
    let table: serde_json::Value = serde_json::from_str(&table).unwrap();
    let swap = &table["partitiontable"]["partitions"][1];
    let [at, bytes] = ["start", "size"].map(|it| (swap[it].as_u64().unwrap() * 512).to_string());
    let found = run(
        "blkid",
        &["-p", "-o", "export", "-O", &at, "-S", &bytes, text(disk)],
    );
    assert!(
        found.contains("TYPE=swap") && found.contains("LABEL=tenuto-swap"),
        "{found}"
    );
}

/// Fails when: a file, a name, a hole, a time, a right, an attribute or a second name of a file is
/// lost, the image is written, or data stays where it was.
#[test]
fn a_guest_on_ext4_sees_the_same_after_its_disk_is_split() {
    if can("a_guest_on_ext4_sees_the_same_after_its_disk_is_split") {
        stays_the_same(&Scene::new("ext4", "gpt", ""), false);
    }
}

/// Fails when: the same goes wrong for xfs, a disk without partitions, or a file for swap.
#[test]
fn a_guest_on_xfs_without_partitions_sees_the_same_after_its_disk_is_split() {
    if can("a_guest_on_xfs_without_partitions_sees_the_same_after_its_disk_is_split") {
        stays_the_same(&Scene::new("xfs", "none", "").into_qcow2(), false);
    }
}

/// Fails when: the system disk of `--copy` needs the image.
#[test]
fn a_copied_system_disk_does_not_need_the_image() {
    if can("a_copied_system_disk_does_not_need_the_image") {
        stays_the_same(&Scene::new("ext4", "dos", "").into_qcow2(), true);
    }
}
