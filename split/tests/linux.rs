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
/// Where the root of a guest with a table begins; its swap lies behind it.
const ROOT_AT: u64 = MIB;
/// Tells the child of a test what it has to do.
const CHILD: &str = "TENUTO_SPLIT_CHILD";
const PROGRAMS: [&str; 18] = [
    "blkid",
    "chattr",
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
    "xfs_io",
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

    fn root_bytes(&self) -> u64 {
        match self.kind {
            "xfs" => 310 * MIB,
            _ => 48 * MIB,
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

    /// The same for clones.
    fn pool(&self, name: &str) -> Request {
        Request {
            rules: Rules::parse(POOL, "r").unwrap(),
            ..self.request(name)
        }
    }

    /// Bytes of the image, which nothing may change.
    fn sum(&self) -> String {
        run("sha256sum", &[text(&self.image)])
    }

    /// What differs between the image and what the guest sees, what is left, fstab, sizes.
    fn view(&self, name: &str, environment: &[(&str, &str)]) -> String {
        let (at, bytes) = match self.has_table {
            true => (ROOT_AT, self.root_bytes()),
            false => (0, self.root_bytes() + 12 * MIB),
        };
        let output = self.output(name);
        let [at, bytes] = [at, bytes].map(|it| it.to_string());
        let arguments = [text(&self.image), text(&output), self.kind, &at, &bytes];
        script("view.sh", &arguments, environment)
    }

    fn refused(&self, request: &Request) -> (Kind, String) {
        let changed = || std::fs::metadata(&self.image).unwrap().modified().unwrap();
        let before = changed();
        let done = Split::look(request).and_then(|mut it| it.run(&mut Steps::default()));
        let error = done.expect_err("must be refused");
        assert_eq!(changed(), before, "the image is not written");
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
    // Of a hole of 30 MiB nothing became data but what stands in its middle.
    let sectors = view
        .split_once("sparse ")
        .unwrap()
        .1
        .split(' ')
        .next()
        .unwrap();
    assert!(sectors.parse::<u64>().unwrap() < 2048, "{view}");
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

/// What a guest with systemd has that each clone is to have for itself.
const KEPT: &str = "\
mkdir -p var/lib/app/in var/lib/dbus usr/lib/systemd
echo state >var/lib/app/in/state; chown -R 33:33 var/lib/app; setfattr -n user.note -v n var/lib/app
echo words >etc/app.conf; chmod 640 etc/app.conf; touch -d '2005-05-05 05:05:05.5' etc/app.conf
echo first >var/cache/apt/number
echo 0123456789abcdef0123456789abcdef >etc/machine-id; cp etc/machine-id var/lib/dbus/
echo >usr/lib/systemd/systemd
touch -d '2010-10-10' etc var/lib/dbus var/cache/apt";
const POOL: &str = "\
base = \"linux\"
[pool]
name = \"office\"
members = \"desk-{1..2}\"
keep = [\"/var/lib/app\", \"/etc/*.conf\", \"/var/cache/apt/number\", \"/etc/machine-id\"]
";
/// What the guest makes anew is not what the image has.
const FORGOTTEN: [(&str, &str); 2] = [
    ("EXCLUDE", "--exclude=machine-id"),
    ("DIFF_EXCLUDE", "--exclude=machine-id"),
];

/// The disk of the first member is that which all members get.
fn own_disk_is_whole(output: &Path) {
    let [of_all, own] = ["keep.raw", "keep-desk-1.raw"].map(|it| output.join(it));
    run("cmp", &[text(&of_all), text(&own)]);
}

/// Reads a file of the system disk before anything is mounted on it.
fn on_system(scene: &Scene, output: &str, path: &str) -> String {
    let system = scene.output(output).join("system.qcow2");
    let raw = scene.output("system.raw");
    run(
        "qemu-img",
        &["convert", "-O", "raw", text(&system), text(&raw)],
    );
    let place = scene.output("place");
    std::fs::create_dir_all(&place).unwrap();
    let norecovery = if scene.kind == "xfs" {
        ",nouuid,norecovery"
    } else {
        ",noload"
    };
    let script = format!(
        "mount -o ro,loop,offset={ROOT_AT},sizelimit={}{norecovery} {} {} && cat {2}/{path}",
        scene.root_bytes(),
        text(&raw),
        text(&place),
    );
    run("unshare", &["-m", "--", "sh", "-c", &script])
}

/// Fails when: a path that outlives resets is not on the disk that each clone has for itself, a
/// file loses something by that, the guest does not see what it saw, or the clones have the ID of
/// one machine.
#[test]
fn what_outlives_the_reset_of_a_clone_is_on_a_disk_of_its_own() {
    if !can("what_outlives_the_reset_of_a_clone_is_on_a_disk_of_its_own") {
        return;
    }
    for kind in ["ext4", "xfs"] {
        let scene = Scene::new(kind, "gpt", KEPT);
        let sum = scene.sum();
        let done = split(&scene.pool("out"));
        assert_eq!(scene.sum(), sum, "the image is not written");
        let view = scene.view("out", &FORGOTTEN);
        assert_eq!(
            before(&view, "== fstab"),
            "var/cache/debconf\nvar/cache/debconf/config.dat\n",
            "what differs, and what is left of what moved"
        );
        let table = before(&view, "== allocated");
        let of_keep: Vec<&str> = table.lines().filter(|it| it.contains("/keep")).collect();
        let bind = "none bind,x-systemd.requires-mounts-for=/.tenuto/keep 0 0";
        assert_eq!(
            of_keep,
            [
                format!(
                    "LABEL=tenuto-keep /.tenuto/keep {kind} noatime,x-systemd.device-timeout=10s \
                     0 2"
                ),
                format!("/.tenuto/keep/etc/app.conf /etc/app.conf {bind}"),
                format!("/.tenuto/keep/var/cache/apt/number /var/cache/apt/number {bind}"),
                format!("/.tenuto/keep/var/lib/app /var/lib/app {bind}"),
            ]
        );
        // Who reads a file before the mounts finds what the image has.
        assert_eq!(on_system(&scene, "out", "etc/app.conf"), "words\n");
        assert_eq!(on_system(&scene, "out", "etc/machine-id"), "");
        own_disk_is_whole(&scene.output("out"));
        let report = done.report().json("done");
        let keep = &report["classes"][2];
        assert_eq!(
            (&keep["class"], &keep["files"]),
            (&"keep".into(), &3.into())
        );
        let mib = keep["file_system_bytes"].as_u64().unwrap() / MIB;
        assert_eq!(mib, if kind == "xfs" { 300 } else { 65 });
        assert_eq!(
            report["forgotten"].to_string(),
            "[\"/etc/machine-id\",\"/var/lib/dbus/machine-id\"]"
        );
        let note = report["warnings"][0].as_str().unwrap();
        assert!(note.starts_with("/etc/machine-id is not kept on a disk but made empty"));
    }
}

/// Fails when: a path is kept that would have no effect, or one that is not there is left out.
#[test]
fn what_cannot_outlive_a_reset_is_refused() {
    if !can("what_cannot_outlive_a_reset_is_refused") {
        return;
    }
    let scene = Scene::new("ext4", "gpt", "ln -s ../etc/hostname var/name");
    for (keep, kind, message) in [
        (
            "/etc/fstab",
            Kind::Usage,
            "image IMAGE: partition 1: /etc/fstab: cannot be kept over a reset: the guest reads it \
             before it mounts what its fstab names; take it out of keep",
        ),
        (
            "/usr/bin",
            Kind::Usage,
            "image IMAGE: partition 1: /usr/bin: cannot be kept over a reset: the guest reads it \
             before it mounts what its fstab names; take it out of keep",
        ),
        (
            "/srv/gone",
            Kind::Refused,
            "image IMAGE: /srv/gone: [pool] keeps it, and the image does not have it, so each \
             reset would take it; make it in the guest, or take it out of keep",
        ),
        (
            "/var/name",
            Kind::Refused,
            "image IMAGE: /var/name: /var/name is a symbolic link; name the path that it leads to",
        ),
    ] {
        let text = format!("[pool]\nkeep = [{keep:?}]\n");
        let request = Request {
            rules: Rules::parse(&text, "r").unwrap(),
            ..scene.request("out")
        };
        assert_eq!(scene.refused(&request), (kind, message.to_owned()));
        assert!(!scene.output("out").exists(), "nothing was made");
    }
}

/// What a child of a kill test is told: kill yourself when this state's work is done, or say each
/// state and go on.
struct Killed {
    when: Option<String>,
}

impl Watch for Killed {
    fn worked(&mut self, state: State) -> Result<()> {
        if self.when.as_deref() == Some(state.name()) {
            // Nothing is cleaned up: no destructor runs.
            std::process::abort();
        }
        Ok(())
    }

    fn reached(&mut self, state: State) -> Result<()> {
        println!("reached {}", state.name());
        Ok(())
    }
}

/// No test of its own: the process that the kill test starts and kills.
#[test]
fn a_child_of_the_kill_test() {
    let Some(task) = std::env::var_os(CHILD) else {
        return;
    };
    let task = task.into_string().unwrap();
    let [image, output, when] = task.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{task:?}");
    };
    let request = Request {
        image: image.into(),
        rules: Rules::parse(POOL, "r").unwrap(),
        output: output.into(),
        trusted: true,
        copy: false,
    };
    let when = (!when.is_empty()).then(|| when.to_owned());
    let mut split = Split::look(&request).unwrap();
    split.run(&mut Killed { when }).unwrap();
}

/// Starts a split in a process of its own.
fn child(scene: &Scene, output: &str, when: &str) -> std::process::Child {
    let output = scene.output(output);
    let task = format!("{}\n{}\n{when}", text(&scene.image), text(&output));
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_child_of_the_kill_test",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// All of a result that must not depend on kills: what the guest sees, its table, the lines.
fn result(scene: &Scene, output: &str) -> String {
    let view = scene.view(output, &FORGOTTEN);
    own_disk_is_whole(&scene.output(output));
    let lines = std::fs::read_to_string(scene.output(output).join("volumes.toml")).unwrap();
    let table = before(&view, "== allocated").to_owned();
    table + &lines.replace(text(&scene.output(output)), "OUT")
}

/// Fails when: a state is remembered before its work is done, or a step does not begin again from
/// what the state before it left; of a pool as well, whose first member has its disk at the end.
#[test]
fn a_split_that_is_killed_in_each_state_and_run_again_ends_the_same() {
    let test = "a_split_that_is_killed_in_each_state_and_run_again_ends_the_same";
    if !can(test) {
        return;
    }
    let scene = Scene::new("ext4", "gpt", KEPT);
    let sum = scene.sum();
    split(&scene.pool("whole"));
    let expected = result(&scene, "whole");

    // Killed when the work of each state is done and not remembered, one after the other.
    for state in ["copied", "verified", "emptied", "linked", "checked", "done"] {
        let status = child(&scene, "worked", state).wait().unwrap();
        assert!(!status.success(), "{state}");
    }
    split(&scene.pool("worked"));
    assert_eq!(result(&scene, "worked"), expected);

    // Killed in the middle of what follows each state: when its last mount is about to be made.
    for (state, mount) in [
        ("planned", "new"),
        ("copied", "new"),
        ("verified", "system"),
        ("emptied", "system"),
        ("linked", "guest"),
    ] {
        let mut child = child(&scene, "middle", "");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = format!("reached {state}");
        assert!(lines.any(|it| it.unwrap().ends_with(&line)), "{line}");
        let place = scene.output("middle").join("work").join(mount);
        while !place.exists() {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended after {state}"
            );
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    split(&scene.pool("middle"));
    assert_eq!(result(&scene, "middle"), expected);
    assert_eq!(scene.sum(), sum);
}

/// Fails when: a run goes on with another image, other rules, or in a directory of another.
#[test]
fn a_run_in_the_directory_of_another_is_refused() {
    if !can("a_run_in_the_directory_of_another_is_refused") {
        return;
    }
    let scene = Scene::new("ext4", "gpt", "");
    let mut split = Split::look(&scene.request("out")).unwrap();
    let stopped = split.run(&mut StopAt(State::Planned)).unwrap_err();
    assert_eq!(stopped.message, "stopped");
    let right = "; give another directory, or remove this one";
    let mut other = scene.request("out");
    other.rules.moves.pop();
    let message = format!("DIR/out/split.json: this split was begun with other rules{right}");
    assert_eq!(scene.refused(&other), (Kind::Usage, message));
    let mut other = scene.request("out");
    other.image = scene.dir.path().join("other.img");
    std::fs::copy(&scene.image, &other.image).unwrap();
    let message = format!("DIR/out/split.json: this split was begun from IMAGE{right}");
    assert_eq!(scene.refused(&other), (Kind::Usage, message));
    std::fs::File::options()
        .write(true)
        .open(&scene.image)
        .unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let message = format!(
        "DIR/out/split.json: this split was begun from IMAGE as it was before it was changed{right}"
    );
    assert_eq!(scene.refused(&scene.request("out")), (Kind::Usage, message));
    std::fs::create_dir(scene.output("full")).unwrap();
    std::fs::write(scene.output("full").join("notes"), "").unwrap();
    let message =
        "DIR/full: is not empty, and no split was begun there; give a new directory".to_owned();
    assert_eq!(
        scene.refused(&scene.request("full")),
        (Kind::Usage, message)
    );
}

/// Stops with an error when a state is reached.
struct StopAt(State);

impl Watch for StopAt {
    fn reached(&mut self, state: State) -> Result<()> {
        match state == self.0 {
            true => Err(Error::failed("stopped")),
            false => Ok(()),
        }
    }
}

/// Fails when: an image is split that would lose something, or a message does not say what to do.
#[test]
fn what_cannot_be_split_without_a_loss_is_refused() {
    if !can("what_cannot_be_split_without_a_loss_is_refused") {
        return;
    }
    let more = "ln usr/bin/program var/tmp/program\n\
                chattr +i var/tmp\n\
                echo 'tmpfs /var/log/journal tmpfs defaults 0 0' >>etc/fstab\n\
                sed -i 's/ext4 defaults/ext4 defaults,usrquota/' etc/fstab";
    let scene = Scene::new("ext4", "gpt", more);
    let split = Split::look(&scene.request("out")).unwrap();
    assert_eq!(
        split.refusals(),
        [
            "/var/log: /var/log/journal below it is a file system of its own; keep /var/log, or \
             move paths beside /var/log/journal",
            "/opt/app/data (write-back) and /var/log/third (stays) are one file with two names, \
             which two disks cannot have; move both or keep both",
            "/usr/bin/program (stays) and /var/tmp/program (never) are one file with two names, \
             which two disks cannot have; move both or keep both",
            "/var/tmp: is immutable; take the flag away with `chattr -i` in the guest",
            "the root has quotas, which do not count on other disks; take them away in the guest",
        ]
    );
    let (kind, message) = scene.refused(&scene.request("out"));
    assert_eq!(kind, Kind::Refused);
    let first = "image IMAGE: /var/log: /var/log/journal below it is a file system of its own; \
                 keep /var/log, or move paths beside /var/log/journal (and 4 more, which --plan \
                 shows)";
    assert_eq!(message, first);
    assert!(!scene.output("out").exists(), "nothing was made");
    let untrusted = Request {
        trusted: false,
        ..scene.request("out")
    };
    let message = "image IMAGE: partition 1: has ext4, which the kernel of this host would read, \
                   and a hostile one could take this host over; add --trust-image if you know \
                   where it comes from";
    assert_eq!(scene.refused(&untrusted), (Kind::Usage, message.to_owned()));
    let windows = Request {
        rules: Rules::load("windows-safe").unwrap(),
        ..scene.request("out")
    };
    let message = "image IMAGE: the rules are for Windows, and partition 1 has ext4, partition 2 \
                   has swap; give --rules linux";
    assert_eq!(scene.refused(&windows), (Kind::Usage, message.to_owned()));
    let usr = Request {
        rules: Rules::parse("[[move]]\npath = \"/usr\"\nclass = \"never\"\n", "r").unwrap(),
        ..scene.request("out")
    };
    let message = "image IMAGE: partition 1: /usr: cannot have a disk of its own in this version: \
                   the guest needs it before it mounts what its fstab names; take the line out, or \
                   name a path below it";
    assert_eq!(
        scene.refused(&usr),
        (Kind::NotInThisVersion, message.to_owned())
    );
    let nothing = Request {
        rules: Rules::parse("[[move]]\npath = \"/gone\"\nclass = \"never\"\n", "r").unwrap(),
        ..scene.request("out")
    };
    let message = "image IMAGE: has nothing that the rules move; leave it as it is, or give rules \
                   that name its paths";
    assert_eq!(scene.refused(&nothing), (Kind::Refused, message.to_owned()));
}

/// Fails when: a flag or a project is lost by a copy, or a swap file moves with its directory.
#[test]
fn what_a_copy_cannot_keep_is_refused_or_told() {
    if !can("what_a_copy_cannot_keep_is_refused_or_told") {
        return;
    }
    let more = "xfs_io -c 'chproj 7' opt/app\n\
                chattr +a var/cache/apt\n\
                mknod var/tmp/null c 1 3\n\
                mv swapfile var/tmp/\n\
                sed -i 's#/swapfile#/var/tmp/swapfile#' etc/fstab\n\
                echo '/dev/sdz9 none swap sw 0 0' >>etc/fstab\n\
                mkdir etc/selinux; echo SELINUX=enforcing >etc/selinux/config\n\
                rm -r opt/app/second; ln -s app opt/link";
    let scene = Scene::new("xfs", "none", more);
    let mut request = scene.request("out");
    let text = "base = \"linux\"\n[[move]]\npath = \"/opt/link\"\nclass = \"never\"\n";
    request.rules = Rules::parse(text, "r").unwrap();
    let split = Split::look(&request).unwrap();
    assert_eq!(
        split.refusals(),
        [
            "/opt/app: has project 7, whose quota a new disk does not know; keep it, or set \
             project 0 in the guest",
            "/var/cache/apt: is append-only; take the flag away with `chattr -a` in the guest",
            "/var/tmp/swapfile: the guest swaps to a file within /var/tmp; move it out of there \
             first",
        ]
    );
    let warnings = split.report().json("none");
    assert_eq!(
        warnings["warnings"].to_string(),
        "[\"/opt/link is a symbolic link, which stays as it is\",\
         \"device nodes move as they are (1, one is /var/tmp/null)\",\
         \"swap on /dev/sdz9 stays: it is not on this disk\",\
         \"the guest has SELinux: after its first start run `restorecon /.tenuto`\"]"
    );
    let at_risk = warnings["at_risk"].to_string();
    assert!(
        at_risk.contains("/home/anna b/.local/share/keyrings"),
        "{at_risk}"
    );
}

/// Fails when: a file system is read whose last writes are in its journal, or memory of a machine
/// that sleeps.
#[test]
fn a_guest_that_was_not_shut_down_is_refused() {
    if !can("a_guest_that_was_not_shut_down_is_refused") {
        return;
    }
    for kind in ["ext4", "xfs"] {
        // The mount is cut off with its journal full.
        let more = "sync -f .; echo late >var/late; sync var/late; xfs_io -x -c 'shutdown -f' .";
        let scene = Scene::new(kind, "gpt", more);
        let message = format!(
            "image IMAGE: partition 1: its {kind} was not unmounted and needs its journal; shut \
             the guest down cleanly first"
        );
        assert_eq!(
            scene.refused(&scene.request("out")),
            (Kind::Refused, message)
        );
    }
    let scene = Scene::new("ext4", "gpt", "");
    let image = std::fs::File::options()
        .write(true)
        .open(&scene.image)
        .unwrap();
    let mark_at = ROOT_AT + scene.root_bytes() + 4096 - 10;
    std::os::unix::fs::FileExt::write_all_at(&image, b"S1SUSPEND\0", mark_at).unwrap();
    let message = "image IMAGE: partition 2 holds a machine that sleeps; start the guest and shut \
                   it down";
    assert_eq!(
        scene.refused(&scene.request("out")),
        (Kind::Refused, message.to_owned())
    );
}

/// Fails when: the image of a running guest, or one that was split, is read.
#[test]
fn an_image_in_use_or_split_before_is_refused() {
    if !can("an_image_in_use_or_split_before_is_refused") {
        return;
    }
    let scene = Scene::new("ext4", "none", "").into_qcow2();
    let mut writer = writer(&scene);
    let (kind, message) = scene.refused(&scene.request("out"));
    drop(writer.stdin.take());
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert_eq!(kind, Kind::Refused);
    assert!(
        message.starts_with("image IMAGE: another program writes it ("),
        "{message}"
    );
    assert!(
        message.ends_with("); shut the guest down first"),
        "{message}"
    );

    let mut begun = Split::look(&scene.request("out")).unwrap();
    begun.run(&mut StopAt(State::Emptied)).unwrap_err();
    let lock = std::fs::File::open(scene.output("out")).unwrap();
    lock.lock().unwrap();
    let message = "DIR/out: another split works there; wait for its end".to_owned();
    assert_eq!(
        scene.refused(&scene.request("out")),
        (Kind::Failed, message)
    );
    drop(lock);
    split(&scene.request("out"));
    let again = Request {
        image: scene.output("out").join("system.qcow2"),
        ..scene.request("again")
    };
    let message = "image DIR/out/system.qcow2: the disk: has /.tenuto already: it was split \
                   before; give the image that it came from";
    assert_eq!(scene.refused(&again), (Kind::Refused, message.to_owned()));
}

/// A program that has the image open for writing, until it is killed.
fn writer(scene: &Scene) -> std::process::Child {
    let file = format!("driver=file,node-name=f,filename={}", text(&scene.image));
    let socket = format!(
        "addr.type=unix,addr.path={}",
        text(&scene.dir.path().join("nbd"))
    );
    let mut writer = Command::new("qemu-storage-daemon")
        .args([
            "--blockdev",
            &file,
            "--blockdev",
            "driver=qcow2,node-name=d,file=f",
        ])
        .args([
            "--nbd-server",
            &socket,
            "--export",
            "type=nbd,id=e,node-name=d,writable=on",
        ])
        .args(["--chardev", "stdio,id=m", "--monitor", "chardev=m"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The greeting comes when all is open.
    let mut greeting = String::new();
    let mut output = BufReader::new(writer.stdout.take().unwrap());
    output.read_line(&mut greeting).unwrap();
    assert!(greeting.contains("QMP"), "{greeting}");
    writer
}

/// Fails when: many mounts are made where links would do, the rules of a file are not followed, or
/// what is nested in another class is lost.
#[test]
fn rules_of_a_file_nested_paths_and_links_give_the_same_view() {
    if !can("rules_of_a_file_nested_paths_and_links_give_the_same_view") {
        return;
    }
    let more = "for number in $(seq 40); do\n\
                    mkdir -p home/u$number/.cache\n\
                    echo $number >home/u$number/.cache/file\n\
                done\n\
                mkdir -p srv/data/index; echo a >srv/data/a; echo b >srv/data/index/b";
    let scene = Scene::new("ext4", "gpt", more);
    let text = "base = \"linux\"\n[class.never]\nsize = \"512MiB\"\n\
                [[move]]\npath = \"/srv/data\"\nclass = \"write-through\"\n\
                [[move]]\npath = \"/srv/data/index\"\nclass = \"never\"\n\
                [[keep]]\npath = \"/var/tmp\"\n[[keep]]\npath = \"/opt/app/second\"\n\
                [[keep]]\npath = \"/opt\"\n[[keep]]\npath = \"/var/log\"\n";
    let request = Request {
        rules: Rules::parse(text, "r").unwrap(),
        ..scene.request("out")
    };
    split(&request);
    let exclude = "--exclude=/home/*/.cache";
    let view = scene.view(
        "out",
        &[("EXCLUDE", exclude), ("DIFF_EXCLUDE", "--exclude=.cache")],
    );
    let left = before(&view, "== fstab");
    assert!(
        left.contains("opt/app/data\n") && left.contains("var/log/third\n"),
        "{left}"
    );
    let table = before(&view, "== allocated");
    for line in [
        "LABEL=tenuto-wt /.tenuto/write-through ext4 noatime,x-systemd.device-timeout=10s 0 2\n",
        "/.tenuto/never/srv/data/index /srv/data/index none \
         bind,nofail,x-systemd.requires-mounts-for=/.tenuto/never 0 0\n",
    ] {
        assert!(table.contains(line), "{line}{table}");
    }
    assert!(
        !table.contains(".cache /home") && !table.contains("/var/tmp"),
        "{table}"
    );
    assert!(
        view.contains("never.raw") && view.contains(" MiB of 522\n"),
        "{view}"
    );
}
