//! The Debian package, built, and used in a guest of its own under the real service manager.
//!
//! The guest's root file system is made of packages that are installed here. What an administrator
//! does in it is `packaging/tests/proof.sh`; it says one line for each thing that held.

#[path = "../tidy/links.rs"]
mod links;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::guest::{Machine, product};
use crate::common::{Rig, binary, have, is_root, run, skip, text_of};

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
        "./usr/share/doc/tenuto/getting-started.md",
        "./usr/share/doc/tenuto/recipes/libvirt.md",
        "./usr/share/doc/tenuto/examples/libvirt-hook",
        "./usr/share/bash-completion/completions/tenuto",
    ] {
        assert!(
            listed.contains(&format!(" {path}\n")),
            "{path} in\n{listed}"
        );
    }
    let control = run("dpkg-deb", &["--info", &package]);
    assert!(control.contains("Depends: libc6"), "{control}");
    let root = rig.dir.join("root");
    let root_text = root.display().to_string();
    run("dpkg-deb", &["--extract", &package, &root_text]);
    let listed = run("find", &[&root_text, "-name", "*.md"]);
    let documents: Vec<String> = listed.lines().map(str::to_owned).collect();
    let (broken, count) = links::broken(&root, &documents);
    assert!(
        broken.is_empty(),
        "links to nowhere:\n{}",
        broken.join("\n")
    );
    assert!(count >= 100, "only {count} links were found");
}

#[test]
fn the_package_is_built_where_cargo_builds() {
    let test = "the_package_is_built_where_cargo_builds";
    if !can_package(test) || !have(test, &["cargo"]) {
        return;
    }
    let rig = Rig::new();
    let target = rig.dir.join("elsewhere");
    let output = Command::new(packaging().join("deb.sh"))
        .args(["--binary", env!("CARGO_BIN_EXE_tenuto")])
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .expect("build the package");
    let said = text_of(&output);
    assert!(output.status.success(), "{said}");
    let package = String::from_utf8(output.stdout).expect("a path");
    let package = Path::new(package.trim());
    assert_eq!(package.parent(), Some(&*target.join("debian")), "{said}");
    assert!(package.exists(), "{said}");
}

/// Paths below a directory, without documents and manual pages, which the packages take as a whole.
fn installed_paths(root: &Path) -> Vec<String> {
    let text = root.display().to_string();
    let listed = run("find", &[&text, "-type", "f", "-printf", "/%P\n"]);
    let whole = ["/usr/share/doc/", "/usr/share/man/", "/usr/share/tenuto/"];
    let paths = listed.lines().map(str::to_owned);
    paths
        .filter(|path| !whole.iter().any(|it| path.starts_with(it)))
        .collect()
}

#[test]
fn the_spec_of_rpm_names_every_file_that_is_installed() {
    let test = "the_spec_of_rpm_names_every_file_that_is_installed";
    if !have(test, &["rpmspec"]) {
        return;
    }
    let rig = Rig::new();
    let root = rig.dir.join("root");
    let units = "/usr/lib/systemd/system";
    let rules = "/usr/lib/udev/rules.d";
    let output = Command::new(packaging().join("install.sh"))
        .args([&root, Path::new(env!("CARGO_BIN_EXE_tenuto"))])
        .env("UNITS", units)
        .env("RULES", rules)
        .env("ZSH", "zsh/site-functions")
        .output()
        .expect("install");
    assert!(output.status.success(), "{}", text_of(&output));
    let spec = packaging().join("tenuto.spec").display().to_string();
    // As the macros of systemd have them, which are not on each machine with rpm.
    let macros = [
        format!("_unitdir {units}"),
        format!("_udevrulesdir {rules}"),
        "_sysusersdir /usr/lib/sysusers.d".into(),
        "_tmpfilesdir /usr/lib/tmpfiles.d".into(),
        "_sharedstatedir /var/lib".into(),
        "_sysconfdir /etc".into(),
    ];
    let defines = macros.iter().flat_map(|it| ["--define", it]);
    let arguments: Vec<&str> = ["-P"].into_iter().chain(defines).chain([&*spec]).collect();
    let read = run("rpmspec", &arguments);
    let version = env!("CARGO_PKG_VERSION");
    let same = read
        .lines()
        .any(|it| it.starts_with("Version:") && it.ends_with(version));
    assert!(same, "the version of the workspace is {version}");
    let files = read.split("\n%files\n").nth(1).expect("a list of files");
    let files: Vec<&str> = files
        .lines()
        .filter_map(|it| it.split(' ').next_back())
        .collect();
    for path in installed_paths(&root) {
        assert!(
            files.contains(&&*path),
            "{path} is not in\n{}",
            files.join("\n")
        );
    }
    for whole in ["/usr/share/doc/tenuto/", "/usr/share/tenuto/"] {
        assert!(
            files.contains(&whole),
            "{whole} is not in\n{}",
            files.join("\n")
        );
    }
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

/// A guest with the service manager, a package and these files, which runs a script as its proof.
struct Host {
    rig: Rig,
    machine: Machine,
    root: PathBuf,
}

impl Host {
    fn new(test: &str, packages: &str) -> Option<Host> {
        let programs = ["nbdcopy", "systemd-analyze", "mkfs.ext4", "tar", "ldconfig"];
        if !can_package(test) || !have(test, &programs) {
            return None;
        }
        let rig = Rig::new();
        let machine = Machine::new(test, &rig.dir)?;
        let root = rig.dir.join("guest");
        let made = Command::new(packaging().join("tests/root.sh"))
            .arg(&root)
            .args(packages.split_whitespace())
            .output()
            .expect("make a root file system");
        assert!(made.status.success(), "{}", text_of(&made));
        Some(Host { rig, machine, root })
    }

    fn copy(&self, from: &Path, to: &str) {
        let to = self.root.join(to);
        std::fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    }

    /// What the script says until the guest is off.
    fn prove(&self) -> Vec<String> {
        let unit = self.root.join("etc/systemd/system/proof.service");
        std::fs::write(unit, UNIT).expect("write a unit");
        self.machine.program(&self.root, "work", INIT);
        let image = self.rig.dir.join("guest.img");
        Machine::image_of(&self.root, &image, 4 << 30);
        let disk = format!("if=none,id=disk,format=raw,file={}", image.display());
        self.machine.run_for(
            PATIENCE,
            &["-no-reboot", "-m", "512"],
            &["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"],
            "proof",
        )
    }
}

/// Fails when: a command of the first hour does not do what the page says.
#[test]
fn the_first_hour_runs_in_a_guest_from_its_package_on() {
    let test = "the_first_hour_runs_in_a_guest_from_its_package_on";
    if !have(test, &["apt-get", "qemu-img"]) {
        return;
    }
    let Some(host) = Host::new(test, &format!("{PACKAGES} apt qemu-utils")) else {
        return;
    };
    host.copy(
        &package("0.1.0-1", &host.rig.dir),
        "root/tenuto_0.1.0-1_all.deb",
    );
    host.copy(&packaging().join("tests/first-hour.sh"), "proof");
    host.copy(&packaging().join("tests/fences.sh"), "fences.sh");
    let page = packaging().join("../docs/getting-started.md");
    host.copy(&page, "getting-started.md");
    std::fs::create_dir_all(host.root.join("srv/vms")).expect("make a directory");
    for name in ["desk-001", "gold"] {
        let image = host.root.join(format!("srv/vms/{name}.qcow2"));
        let image = image.display().to_string();
        run("qemu-img", &["create", "-q", "-f", "qcow2", &image, "64M"]);
    }
    let said = host.prove();
    let text = said.join("\n");
    assert!(!text.contains("FAILED"), "{text}");
    let ran = said.iter().filter(|it| it.starts_with("ok: ")).count();
    assert!(ran >= 18, "only {ran} commands were run:\n{text}");
    for command in [
        "apt install ./tenuto_*.deb",
        "systemctl enable --now tenuto",
    ] {
        let is_there = said.iter().any(|it| it.ends_with(command));
        assert!(is_there, "{command} was not run:\n{text}");
    }
}

/// Fails when: a purge removes dirty data, and says that it keeps it.
#[test]
fn a_host_lives_with_the_package_from_its_installation_to_its_purge() {
    let test = "a_host_lives_with_the_package_from_its_installation_to_its_purge";
    let Some(host) = Host::new(test, PACKAGES) else {
        return;
    };
    host.copy(&package("0.1.0-1", &host.rig.dir), "root/first.deb");
    host.copy(&package("0.1.0-2", &host.rig.dir), "root/second.deb");
    host.copy(&packaging().join("tests/proof.sh"), "proof");
    let said = host.prove();
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

/// Fails when: a disk of Proxmox VE loses data in the hands of its plugin, or the plugin promises
/// what it does not do.
#[test]
fn the_plugin_for_proxmox_ve_works_with_a_real_daemon() {
    let test = "the_plugin_for_proxmox_ve_works_with_a_real_daemon";
    if !have(test, &["prove"]) {
        return;
    }
    let script = packaging().join("tests/proxmox.sh");
    let ran = Command::new("bash")
        .arg(script)
        .env("TENUTO_BINARY", binary())
        .env("TENUTO_TEST_SECONDS", PATIENCE.as_secs().to_string())
        .output()
        .expect("run the tests of the plugin");
    let said = text_of(&ran) + &String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("Result: PASS"), "{said}");
}
