//! A guest that libvirt defines and runs from what `volume show --libvirt` prints.
//!
//! A libvirtd of the test's own serves one session in directories of the test: it needs no root and
//! touches nothing of the machine's. As root it runs as another user, because for root libvirtd is
//! always the machine's own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::guest::{KERNEL_WORDS, Machine};
use crate::common::{Background, Daemon, Rig, have, is_root, text_of, wait_until};

const PATIENCE: Duration = Duration::from_secs(180);
const NOBODY: &str = "65534";
const RESET: &str = "reset-on = \"disconnect\"\n";
/// By which a guest is known that is defined again.
const GUEST: &str = "7f2d41a6-3c5e-4f0b-9d18-6a1e52c0b7d4";

/// libvirtd and the guests of its session.
struct Libvirt {
    dir: PathBuf,
    _daemon: Background,
}

/// The words before a program that is to be in the session, and its variables.
fn session(dir: &Path) -> (Vec<String>, Vec<(String, String)>) {
    let mut words = vec!["env".to_owned()];
    if is_root() {
        let ids = [format!("--reuid={NOBODY}"), "--clear-groups".into()];
        words = vec!["setpriv".into()];
        words.extend(ids);
    }
    let places = [
        "HOME",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
    ];
    let place = |name: &str| (name.to_owned(), dir.join(name).display().to_string());
    (words, places.map(place).to_vec())
}

impl Libvirt {
    fn start(dir: PathBuf) -> Libvirt {
        let (words, variables) = session(&dir);
        for (_, place) in &variables {
            std::fs::create_dir_all(place).expect("make a directory");
        }
        if is_root() {
            let owner = format!("{NOBODY}:0");
            let dir = dir.display().to_string();
            crate::common::run("chown", &["-R", &owner, &dir]);
        }
        let mut all: Vec<String> = variables
            .iter()
            .map(|(key, to)| format!("{key}={to}"))
            .collect();
        all.extend(words);
        all.push("libvirtd".into());
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let libvirt = Libvirt {
            _daemon: Background::start("env", &all),
            dir,
        };
        wait_until("libvirtd answers", PATIENCE, || {
            libvirt.virsh(&["list"]).status.success()
        });
        libvirt
    }

    fn virsh(&self, arguments: &[&str]) -> Output {
        let (words, variables) = session(&self.dir);
        Command::new(&words[0])
            .args(&words[1..])
            .args(["virsh", "--quiet", "--connect", "qemu:///session"])
            .args(arguments)
            .envs(variables)
            .output()
            .expect("run virsh")
    }

    fn done(&self, arguments: &[&str]) -> String {
        let output = self.virsh(arguments);
        let said = text_of(&output);
        assert!(output.status.success(), "virsh {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Libvirt {
    /// A guest outlives its libvirtd.
    fn drop(&mut self) {
        self.virsh(&["destroy", "guest"]);
    }
}

/// A guest with this disk that does one step.
fn domain(machine: &Machine, printed: &str, console: &Path, step: &str) -> String {
    let start = printed.find("<disk").expect("a disk");
    let (memory, disk) = printed.split_at(start);
    let [kernel, initramfs] = machine.files();
    format!(
        "<domain type='qemu'>\n<name>guest</name>\n<uuid>{GUEST}</uuid>\n\
         <memory unit='MiB'>256</memory>\n{memory}\
         <os><type arch='x86_64'>hvm</type>\n<kernel>{}</kernel>\n<initrd>{}</initrd>\n\
         <cmdline>{KERNEL_WORDS} tenuto.step={step}</cmdline></os>\n\
         <features><acpi/></features>\n<on_reboot>destroy</on_reboot>\n<devices>\n\
         <emulator>/usr/bin/qemu-system-x86_64</emulator>\n{disk}\
         <serial type='file'><source path='{}'/></serial>\n</devices>\n</domain>\n",
        kernel.display(),
        initramfs.display(),
        console.display(),
    )
}

/// A guest of libvirt on a volume of this policy over this export. They go in this order: a guest
/// that is left is ended while its libvirtd can still be asked.
struct Stage {
    libvirt: Libvirt,
    daemon: Daemon,
    machine: Machine,
    rig: Rig,
    printed: String,
}

impl Stage {
    fn new(test: &str, (policy, lines): (&str, &str), export: &str) -> Option<Stage> {
        let programs = ["libvirtd", "virt-qemu-run", "virsh", "setpriv", "chown"];
        if !have(test, &programs) {
            return None;
        }
        let mut rig = Rig::new();
        let machine = Machine::new(test, &rig.dir)?;
        let image = rig.dir.join("root.img");
        machine.root_image(&rig.dir, &image, 64 << 20);
        let image = image.display();
        rig.section(&format!(
            "[[volume]]\nname = \"root\"\norigin = \"{image}\"\nformat = \"raw\"\n\
             policy = \"{policy}\"\nexport = [\"{export}\"]\n{lines}"
        ));
        if is_root() {
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&rig.dir, open).expect("open the directory");
        }
        let daemon = rig.serve();
        let libvirt = Libvirt::start(rig.dir.join("libvirt"));
        let printed = rig.done(&["volume", "show", "root", "--libvirt"]);
        Some(Stage {
            rig,
            machine,
            libvirt,
            daemon,
            printed,
        })
    }

    fn console(&self, step: &str) -> PathBuf {
        self.libvirt.dir.join("HOME").join(step)
    }

    /// What the guest said in this step.
    fn said(&self, step: &str) -> String {
        let console = std::fs::read(self.console(step)).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }

    /// The guest begins this step and comes so far that it says this.
    fn run(&self, step: &str, said: &str) {
        let xml = self.libvirt.dir.join("guest.xml");
        let domain = domain(&self.machine, &self.printed, &self.console(step), step);
        std::fs::write(&xml, domain).expect("write it");
        self.libvirt.done(&["define", &xml.display().to_string()]);
        self.libvirt.done(&["start", "guest"]);
        wait_until(said, PATIENCE, || {
            self.said(step).contains(&format!("guest: {said}"))
        });
    }

    fn is_off(&self) -> bool {
        self.libvirt.done(&["domstate", "guest"]) == "shut off"
    }

    fn end(self) {
        self.libvirt.done(&["undefine", "guest"]);
        drop(self.libvirt);
        self.daemon.stop();
    }
}

/// A volume over this export carries a guest that writes, is looked at again, and is ended from
/// outside.
fn run_a_guest(test: &str, export: &str) {
    let Some(stage) = Stage::new(test, ("write-back", ""), export) else {
        return;
    };
    let off = || wait_until("the guest is off", PATIENCE, || stage.is_off());
    stage.run("write", "written");
    off();
    let written = stage.rig.show("root")["writes"]["requests"].as_u64();
    assert!(written > Some(0), "the guest wrote to another disk");
    // One that is ended in the middle lets go of its disk, and the next one has it.
    stage.run("check", "write-cache");
    stage.libvirt.done(&["destroy", "guest"]);
    stage.rig.gone_clients("root");
    stage.run("check", "same 19");
    off();
    stage.end();
}

/// The highest turn in which the guest found all its files whole.
fn turns(said: &str) -> Option<u64> {
    let lines = said
        .lines()
        .filter_map(|it| it.trim().strip_prefix("guest: whole "));
    lines.filter_map(|it| it.parse().ok()).max()
}

/// Fails when: an overlay is reset while its guest sleeps in a file.
#[test]
fn a_guest_that_libvirt_saves_and_starts_again_goes_on_over_its_overlay() {
    let test = "a_guest_that_libvirt_saves_and_starts_again_goes_on_over_its_overlay";
    let Some(stage) = Stage::new(test, ("ephemeral", RESET), "vhost-user") else {
        return;
    };
    stage.run("linger", "whole 1");
    for _ in 0..2 {
        let before = turns(&stage.said("linger"));
        assert!(before.is_some());
        stage.libvirt.done(&["managedsave", "guest"]);
        assert!(stage.is_off());
        stage.rig.gone_clients("root");
        stage.libvirt.done(&["start", "guest"]);
        wait_until("the guest goes on", PATIENCE, || {
            let said = stage.said("linger");
            assert!(!said.contains("guest: torn"), "{said}");
            turns(&said) > before.map(|it| it + 2)
        });
    }
    stage.libvirt.done(&["destroy", "guest"]);
    stage.end();
}

#[test]
fn a_guest_of_libvirt_runs_on_its_rings() {
    run_a_guest("a_guest_of_libvirt_runs_on_its_rings", "vhost-user");
}

#[test]
fn a_guest_of_libvirt_runs_over_nbd() {
    run_a_guest("a_guest_of_libvirt_runs_over_nbd", "nbd");
}
