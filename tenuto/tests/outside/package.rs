//! The Debian package, built, and used in a guest of its own under the real service manager.
//!
//! The guest's root file system is made of packages that are installed here. What an administrator
//! does in it is `packaging/tests/proof.sh`; it says one line for each thing that held.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::guest::{Machine, product};
use crate::common::{Rig, have, is_root, run, skip, text_of};

const PATIENCE: Duration = Duration::from_secs(420);
/// What the proof needs in its guest, with all that these depend on.
const PACKAGES: &str = "systemd libnbd-bin dash debianutils dpkg bash coreutils util-linux grep \
                        sed mawk procps tar gzip diffutils findutils hostname libc-bin";
/// Started instead of the init system's usual goal, and ends the guest whatever becomes of it.
const UNIT: &str = "[Unit]
DefaultDependencies=no
After=basic.target
Requires=basic.target
FailureAction=poweroff-immediate
[Service]
ExecStart=/proof
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
";
const INIT: &str = "#!/bin/bash\nexec /lib/systemd/systemd --unit=proof.service --show-status=no\n";

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// Builds the package of the binary under test.
fn package(version: &str, out: &Path) -> PathBuf {
    let script = packaging().join("deb.sh").display().to_string();
    let out = out.display().to_string();
    let binary = env!("CARGO_BIN_EXE_tenuto");
    let arguments = ["--binary", binary, "--version", version, "--out", &out];
    PathBuf::from(run(&script, &arguments).trim())
}

fn can_package(test: &str) -> bool {
    if !Path::new("/etc/debian_version").exists() {
        skip(test, "this is no Debian");
        return false;
    }
    have(test, &["dpkg-deb", "dpkg-shlibdeps", "strip"])
}

#[test]
fn the_package_holds_what_a_host_needs() {
    let test = "the_package_holds_what_a_host_needs";
    if !can_package(test) {
        return;
    }
    let rig = Rig::new();
    let package = package("0.1.0-1", &rig.dir).display().to_string();
    let listed = run("dpkg-deb", &["--contents", &package]);
    for path in [
        "./usr/bin/tenuto",
        "./lib/systemd/system/tenuto.service",
        "./lib/systemd/system/tenuto-device@.service",
        "./lib/udev/rules.d/60-tenuto.rules",
        "./etc/tenuto/tenuto.toml",
        "./usr/lib/sysusers.d/tenuto.conf",
        "./usr/lib/tmpfiles.d/tenuto.conf",
        "./usr/share/doc/tenuto/copyright",
        "./usr/share/doc/tenuto/operations.md",
        "./usr/share/bash-completion/completions/tenuto",
    ] {
        assert!(
            listed.contains(&format!(" {path}\n")),
            "{path} in\n{listed}"
        );
    }
    let control = run("dpkg-deb", &["--info", &package]);
    assert!(control.contains("Depends: libc6"), "{control}");
}

/// A root directory with the program, a cache and the scripts of the package, as they are
/// installed. The stage of the cache.
fn installed(root: &Path) -> PathBuf {
    product(root);
    let places = [
        "usr/bin",
        "usr/share/tenuto",
        "etc/tenuto",
        "dev/shm",
        "run/tenuto",
        "mnt",
    ];
    for place in places.into_iter().chain(["var/lib/tenuto"]) {
        std::fs::create_dir_all(root.join(place)).expect("make a directory");
    }
    std::fs::rename(root.join("bin/tenuto"), root.join("usr/bin/tenuto")).expect("move it");
    let from = |name: &str, to: &str| {
        std::fs::copy(packaging().join(name), root.join(to))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    from("tenuto.toml", "etc/tenuto/tenuto.toml");
    for script in ["dirty", "stage"] {
        from(
            &format!("debian/{script}"),
            &format!("usr/share/tenuto/{script}"),
        );
    }
    for script in ["prerm", "postrm"] {
        from(&format!("debian/{script}"), script);
    }
    inside(root, "/bin/busybox --install -s /bin");
    let made = "tenuto cache create /var/lib/tenuto/cache --size 128MiB";
    let made = inside(root, made);
    let uuid = made.trim().rsplit(' ').next().expect("a uuid");
    root.join(format!("dev/shm/tenuto-{uuid}"))
}

/// What a line of the shell says that is run where this is the root directory.
fn inside(root: &Path, line: &str) -> String {
    let line = format!("export PATH=/bin:/usr/bin; {line}");
    run(
        "chroot",
        &[&root.to_string_lossy(), "/bin/busybox", "sh", "-c", &line],
    )
}

/// Fails when: a purge takes every stage that it finds, or that of another cache, or one that has
/// dirty data.
#[test]
fn a_purge_removes_the_stage_of_its_own_cache_only_and_none_with_dirty_data() {
    let test = "a_purge_removes_the_stage_of_its_own_cache_only_and_none_with_dirty_data";
    if !is_root() {
        skip(test, "another root directory needs root");
        return;
    }
    if !have(test, &["busybox", "strip", "ldd", "chroot"]) {
        return;
    }
    let rig = Rig::new();
    let root = rig.dir.join("root");
    let own = installed(&root);
    let state = root.join("var/lib/tenuto");
    let others = [
        "dev/shm/tenuto-00000000-0000-4000-8000-000000000001",
        "mnt/disk.img",
        "mnt/disk.img.tenuto",
    ];
    let others = others.map(|name| root.join(name));
    for file in others.iter().chain([&own]) {
        std::fs::write(file, "what it holds").expect("write a file");
    }
    let all_there = |files: &[PathBuf]| files.iter().all(|file| file.exists());
    inside(&root, "sh /prerm remove");
    // As where something is dirty.
    std::fs::write(state.join("dirty"), "volume disk: 4096 bytes").expect("write a note");
    inside(&root, "sh /postrm purge 2>&1");
    assert!(all_there(&others) && own.exists() && state.join("cache").exists());
    std::fs::remove_file(state.join("dirty")).expect("remove the note");
    inside(&root, "sh /postrm remove");
    assert!(own.exists() && state.exists(), "it is removed, not purged");
    inside(&root, "sh /postrm purge");
    assert!(!own.exists(), "the stage of its own cache is left");
    assert!(!state.exists(), "its state is left");
    assert!(all_there(&others), "of another it has taken something");
    // Without a note of whose it is no stage is taken.
    inside(&root, "mkdir -p /var/lib/tenuto && sh /postrm purge");
    assert!(all_there(&others));
}

/// Fails when: a purge removes dirty data, and says that it keeps it.
#[test]
fn a_host_lives_with_the_package_from_its_installation_to_its_purge() {
    let test = "a_host_lives_with_the_package_from_its_installation_to_its_purge";
    let programs = ["nbdcopy", "systemd-analyze", "mkfs.ext4", "tar", "ldconfig"];
    if !can_package(test) || !have(test, &programs) {
        return;
    }
    let rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    let root = rig.dir.join("guest");
    let script = packaging().join("tests/root.sh");
    let made = Command::new(script)
        .arg(&root)
        .args(PACKAGES.split_whitespace())
        .output()
        .expect("make a root file system");
    assert!(made.status.success(), "{}", text_of(&made));
    let copy = |from: &Path, to: &str| {
        std::fs::copy(from, root.join(to)).unwrap_or_else(|error| panic!("{to}: {error}"));
    };
    copy(&package("0.1.0-1", &rig.dir), "root/first.deb");
    copy(&package("0.1.0-2", &rig.dir), "root/second.deb");
    copy(&packaging().join("tests/proof.sh"), "proof");
    let unit = root.join("etc/systemd/system/proof.service");
    std::fs::write(unit, UNIT).expect("write a unit");
    machine.program(&root, "work", INIT);
    let image = rig.dir.join("guest.img");
    Machine::image_of(&root, &image, 4 << 30);
    let disk = format!("if=none,id=disk,format=raw,file={}", image.display());
    let said = machine.run_for(
        PATIENCE,
        &["-no-reboot", "-m", "512"],
        &["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"],
        "proof",
    );
    for line in [
        "started as it was installed",
        "sandbox: ",
        "killed with dirty data and back",
        "frozen and restarted by the watchdog",
        "upgraded in place with its stage",
        "a purge keeps dirty data: ",
        "purged, the image is whole and nothing lies beside it",
    ] {
        let held = said.iter().any(|said| said.starts_with(line));
        assert!(held, "{line:?} was not said:\n{}", said.join("\n"));
    }
}
