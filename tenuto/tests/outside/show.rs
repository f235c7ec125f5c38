//! What `volume show --qemu` and its sisters print, given to those it is meant for.
//!
//! QEMU starts with the arguments as a shell reads them, whatever is in the names; the elements are
//! held against libvirt's schema where that is installed; a program in the place of `curl` gets the
//! requests for Firecracker. Deliberately absent: Cloud Hypervisor and Firecracker themselves.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::front_end::{FrontEnd, Ring};
use crate::common::guest::Machine;
use crate::common::{
    Background, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE, Rig, have, run, wait_until,
};

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

/// Volumes by export, below a run directory with every letter that means something to somebody.
fn odd_rig() -> Rig {
    let mut rig = Rig::new();
    let run_dir = rig.dir.join("it's, <a> \"b\" & $c = d");
    std::fs::create_dir(&run_dir).expect("make a directory");
    for (name, policy, export) in [
        ("both", "write-back", "[\"vhost-user\", \"nbd\"]"),
        ("rings", "write-back", "[\"vhost-user\"]"),
        ("net", "write-through", "[\"nbd\"]"),
    ] {
        volume(&mut rig, name, policy, export);
    }
    let path = rig.write_config();
    let plain = rig.run_dir().display().to_string();
    let odd = run_dir.display().to_string().replace('"', "\\\"");
    let text = std::fs::read_to_string(&path).expect("read it");
    std::fs::write(&path, text.replace(&plain, &odd)).expect("write it");
    rig
}

fn volume(rig: &mut Rig, name: &str, policy: &str, export: &str) {
    let image = rig.image(&format!("{name}.img"), BYTES);
    let image = image.display();
    rig.section(&format!(
        "[[volume]]\nname = \"{name}\"\norigin = \"{image}\"\nformat = \"raw\"\n\
         policy = \"{policy}\"\nexport = {export}\n"
    ));
}

/// The daemon on the configuration as it lies there.
struct Serving(Child);

impl Serving {
    fn start(rig: &Rig) -> Serving {
        let child = Command::new(env!("CARGO_BIN_EXE_tenuto"))
            .arg("serve")
            .env("TENUTO_CONFIG", rig.config_path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the daemon");
        wait_until("the daemon answers", PATIENCE, || {
            rig.tenuto(&["status"]).status.success()
        });
        Serving(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts QEMU by a shell with these words behind its own, and leaves at once.
fn qemu_takes(printed: &str) {
    let line = format!(
        "exec qemu-system-x86_64 -accel tcg -nodefaults -display none -S -monitor stdio {printed}"
    );
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start a shell");
    let mut stdin = child.stdin.take().expect("a pipe");
    // One that has ended says why on its own.
    let _ = std::io::Write::write_all(&mut stdin, b"info block\ninfo qtree\nquit\n");
    let output = child.wait_with_output().expect("QEMU ends");
    let said = crate::common::text_of(&output);
    assert!(output.status.success(), "{line}\n{said}");
    let device = if printed.contains("vhost-user") {
        "vhost-user-blk-pci"
    } else {
        "virtio-blk-pci"
    };
    assert!(said.contains(&format!("dev: {device}")), "{said}");
}

/// A domain around these elements.
fn domain(disk: &str, memory: &str) -> String {
    format!(
        "<domain type='qemu'>\n<name>guest</name>\n<memory unit='MiB'>256</memory>\n{memory}\
         <os><type arch='x86_64'>hvm</type></os>\n<devices>\n{disk}</devices>\n</domain>\n"
    )
}

fn is_valid(rig: &Rig, disk: &str, memory: &str) {
    let path = rig.dir.join("domain.xml");
    let mut text = domain(disk, memory);
    // Older ones do not know that of NBD, and leave it out where they do not validate.
    let schema = std::fs::read_to_string(SCHEMA.replace("domain.rng", "domaincommon.rng"));
    let schema = schema.expect("the schema of domains");
    let nbd = schema.split("name=\"diskSourceNetworkProtocolNBD\"").nth(1);
    let nbd = nbd.and_then(|rest| rest.split("</define>").next());
    if !nbd.expect("NBD in the schema").contains("econnect") {
        text = text.replace("<reconnect delay='30'/>\n", "");
    }
    std::fs::write(&path, text).expect("write it");
    let path = path.display().to_string();
    run("xmllint", &["--noout", "--relaxng", SCHEMA, &path]);
}

#[test]
fn qemu_starts_with_the_printed_arguments_whatever_is_in_the_names() {
    let test = "qemu_starts_with_the_printed_arguments_whatever_is_in_the_names";
    if !have(test, &["qemu-system-x86_64"]) {
        return;
    }
    let rig = odd_rig();
    // Without a daemon they are the same, so that guests can be defined before it runs.
    let show = |arguments: &[&str]| {
        let all = [&["volume", "show"], arguments].concat();
        rig.done(&all)
    };
    let asked: [&[&str]; 5] = [
        &["both", "--qemu"],
        &["both", "--qemu", "--nbd"],
        &["rings", "--qemu", "--memory", "64MiB"],
        &["net", "--qemu"],
        &["net", "--qemu", "--nbd"],
    ];
    let before: Vec<String> = asked.iter().map(|asked| show(asked)).collect();
    let serving = Serving::start(&rig);
    for (asked, before) in asked.iter().zip(&before) {
        let printed = show(asked);
        assert_eq!(printed, *before, "{asked:?}");
        qemu_takes(printed.trim_end());
    }
    assert!(before[2].starts_with("-m 64M "), "{}", before[2]);
    let document = rig.json(&["volume", "show", "both", "--qemu"]);
    assert_eq!(document["qemu"], before[0].trim_end());
    let arguments = document["arguments"].as_array().expect("a list");
    assert_eq!(arguments.len(), 10, "{document}");
    let note = "-m, -object and -machine stand once for each guest";
    assert!(document["notes"].to_string().contains(note), "{document}");
    drop(serving);
}

#[test]
fn the_printed_elements_fit_the_schema_of_libvirt_whatever_is_in_the_names() {
    let test = "the_printed_elements_fit_the_schema_of_libvirt_whatever_is_in_the_names";
    if !have(test, &["xmllint"]) {
        return;
    }
    if !Path::new(SCHEMA).exists() {
        crate::common::skip(test, "the schema of libvirt is not installed");
        return;
    }
    let rig = odd_rig();
    let _serving = Serving::start(&rig);
    for name in ["both", "rings", "net"] {
        let document = rig.json(&["volume", "show", name, "--libvirt"]);
        let text = |key: &str| document[key].as_str().unwrap_or("").to_owned();
        let (disk, memory) = (text("libvirt"), text("memory_backing"));
        is_valid(&rig, &disk, &memory);
        let printed = rig.done(&["volume", "show", name, "--libvirt"]);
        assert_eq!(printed, memory + &disk);
    }
    let printed = rig.done(&["volume", "show", "both", "--libvirt", "--nbd"]);
    is_valid(&rig, &printed, "");
    // The path is what it was: read back by somebody else.
    let path = rig.dir.join("disk.xml");
    let disk = rig.json(&["volume", "show", "rings", "--libvirt"]);
    std::fs::write(&path, disk["libvirt"].as_str().expect("text")).expect("write it");
    let path = path.display().to_string();
    let read = run("xmllint", &["--xpath", "string(/disk/source/@path)", &path]);
    assert!(
        read.trim_end()
            .ends_with("it's, <a> \"b\" & $c = d/rings.vhost.sock"),
        "{read}"
    );
}

#[test]
fn several_disks_are_given_to_one_guest_in_one_call() {
    let test = "several_disks_are_given_to_one_guest_in_one_call";
    if !have(test, &["qemu-system-x86_64", "xmllint"]) {
        return;
    }
    let rig = odd_rig();
    let all = ["volume", "show", "net", "rings", "both"];
    let asked = [&all[..], &["--qemu", "--memory", "64MiB"]].concat();
    let before = rig.done(&asked);
    let serving = Serving::start(&rig);
    let printed = rig.done(&asked);
    assert_eq!(printed, before, "with a daemon and without one");
    assert_eq!(printed.matches("-object").count(), 1, "{printed}");
    assert_eq!(printed.matches("-chardev").count(), 2, "{printed}");
    assert_eq!(printed.matches("-blockdev").count(), 1, "{printed}");
    qemu_takes(printed.trim_end());
    let document = rig.json(&[&all[..], &["--libvirt", "--target", "vdb"]].concat());
    let text = |key: &str| document[key].as_str().unwrap_or("").to_owned();
    let (disks, memory) = (text("libvirt"), text("memory_backing"));
    assert_eq!(memory.matches("<memoryBacking>").count(), 1, "{memory}");
    let at = ["'vdb'", "'vdc'", "'vdd'"].map(|it| disks.find(it).expect("a target"));
    assert!(at.is_sorted(), "{disks}");
    if Path::new(SCHEMA).exists() {
        is_valid(&rig, &disks, &memory);
    }
    drop(serving);
}

#[test]
fn the_requests_for_firecracker_arrive_as_they_were_meant() {
    let rig = odd_rig();
    let printed = rig.done(&["volume", "show", "both", "rings", "--firecracker"]);
    let programs = rig.dir.join("programs");
    std::fs::create_dir(&programs).expect("make a directory");
    // Each of its arguments on a line of its own.
    let curl = programs.join("curl");
    std::fs::write(&curl, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").expect("write a program");
    run("chmod", &["+x", &curl.to_string_lossy()]);
    let path = std::env::var("PATH").expect("a path");
    let output = Command::new("sh")
        .args(["-e", "-c", &printed])
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("FIRECRACKER", "/run/a guest/api.sock")
        .output()
        .expect("start a shell");
    let said = crate::common::text_of(&output);
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines
            .iter()
            .filter(|it| **it == "/run/a guest/api.sock")
            .count(),
        2,
        "{said}"
    );
    let sent = lines.iter().filter(|it| it.starts_with('{'));
    let sent: Vec<serde_json::Value> = sent
        .map(|it| serde_json::from_str(it).expect("a document"))
        .collect();
    let document = rig.json(&["volume", "show", "both", "rings", "--firecracker"]);
    assert_eq!(document["drives"].as_array(), Some(&sent));
    for (drive, name) in sent.iter().zip(["both", "rings"]) {
        let socket = drive["socket"].as_str().expect("a path");
        let end = format!("it's, <a> \"b\" & $c = d/{name}.vhost.sock");
        assert!(socket.ends_with(&end), "{socket}");
        assert!(
            lines.contains(&&*format!("http://localhost/drives/{name}")),
            "{said}"
        );
        assert_eq!(drive["is_root_device"], name == "both");
        assert_eq!(drive["cache_type"], "Writeback");
    }
}

#[test]
fn what_cannot_be_given_to_a_guest_is_refused_by_name() {
    let rig = odd_rig();
    let refused = |arguments: &[&str], code, right: &str| {
        let said = rig.refused(&[&["volume", "show"], arguments].concat(), code);
        assert!(
            said.contains(right) && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    };
    refused(&["both", "net"], EXIT_USAGE, "name one volume");
    refused(
        &["both", "both", "--qemu"],
        EXIT_USAGE,
        "volume both: is named twice",
    );
    refused(
        &["both", "--libvirt", "--target", "sda"],
        EXIT_USAGE,
        "write vda, vdb",
    );
    refused(
        &["both", "--firecracker", "--nbd"],
        EXIT_USAGE,
        "speak no NBD",
    );
    refused(
        &["both", "--memory", "1GiB"],
        EXIT_USAGE,
        "goes with --qemu or --cloud-hypervisor",
    );
    refused(
        &["both", "--qemu", "--target", "vdb"],
        EXIT_USAGE,
        "goes with --libvirt or --firecracker",
    );
    refused(
        &["both", "--qemu", "--firecracker"],
        EXIT_USAGE,
        "cannot be used with",
    );
    refused(
        &["both", "net", "--firecracker"],
        EXIT_FAILED,
        "add \"vhost-user\" to its export",
    );
    refused(
        &["net", "--cloud-hypervisor"],
        EXIT_FAILED,
        "add \"vhost-user\" to its export",
    );
    // Its run directory has a letter that Cloud Hypervisor takes for its own.
    refused(
        &["both", "--cloud-hypervisor"],
        EXIT_FAILED,
        "use another run-dir",
    );
}

#[test]
fn a_volume_without_the_export_that_is_asked_for_is_refused_by_name() {
    let mut rig = Rig::new();
    volume(&mut rig, "rings", "write-back", "[\"vhost-user\"]");
    rig.write_config();
    let said = rig.refused(&["volume", "show", "rings", "--qemu", "--nbd"], EXIT_FAILED);
    assert_eq!(
        said,
        "tenuto: volume rings: is not exported over NBD; add \"nbd\" to its export\n"
    );
    let said = rig.refused(&["volume", "show", "rings", "--nbd"], EXIT_USAGE);
    assert!(said.contains("goes with --qemu or --libvirt"), "{said}");
    for (memory, right) in [
        ("0MiB", "write the guest's memory as in 4GiB"),
        ("1KiB", "write the guest's memory as in 4GiB"),
        ("much", "\"much\" is not a size; write bytes or"),
    ] {
        let asked = ["volume", "show", "rings", "--qemu", "--memory", memory];
        let said = rig.refused(&asked, EXIT_USAGE);
        assert!(said.contains(right), "{said}");
    }
    // What no file names, only the daemon can know.
    let said = rig.refused(&["volume", "show", "other", "--qemu"], EXIT_UNREACHABLE);
    assert!(said.contains("start the daemon"), "{said}");
}

#[test]
fn a_guest_boots_with_the_arguments_that_are_printed_for_its_disk() {
    let test = "a_guest_boots_with_the_arguments_that_are_printed_for_its_disk";
    let mut rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    volume(&mut rig, "root", "write-back", "[\"vhost-user\"]");
    machine.root_image(&rig.dir, &rig.dir.join("root.img"), 64 << 20);
    let daemon = rig.serve();
    // No name in here needs quoting.
    let printed = rig.done(&["volume", "show", "root", "--qemu", "--memory", "256MiB"]);
    let disk: Vec<&str> = printed.split_whitespace().collect();
    let said = machine.run_with(&disk, "write");
    assert!(said.iter().any(|line| line == "written"), "{said:?}");
    let write_cache = "write-cache write back";
    assert!(said.iter().any(|line| line == write_cache), "{said:?}");
    let said = machine.run_with(&disk, "check");
    assert!(said.iter().any(|line| line == "same 19"), "{said:?}");
    daemon.stop();
}

#[test]
fn a_guest_whose_memory_is_not_shared_is_told_of_in_the_log() {
    let test = "a_guest_whose_memory_is_not_shared_is_told_of_in_the_log";
    if !have(test, &["qemu-system-x86_64"]) {
        return;
    }
    let mut rig = Rig::new();
    volume(&mut rig, "disk", "write-back", "[\"vhost-user\"]");
    let daemon = rig.serve();
    let printed = rig.done(&["volume", "show", "disk", "--qemu", "--memory", "128MiB"]);
    // The firmware looks at the disk, and with that the memory is shared.
    let start = |printed: &str| {
        let line =
            format!("exec qemu-system-x86_64 -accel tcg -nodefaults -display none {printed}");
        Background::start("sh", &["-c", &line])
    };
    let says = |what: &str| wait_until(what, PATIENCE, || daemon.log().contains(what));
    let wrong = "the guest's memory is not shared with this daemon";
    let small = "the guest's memory is shared, but without huge pages";
    let guest = start(printed.trim_end());
    says(small);
    assert!(!daemon.log().contains(wrong), "{}", daemon.log());
    drop(guest);
    rig.gone_clients("disk");
    let guest = start(&printed.trim_end().replace("share=on", "share=off"));
    says(wrong);
    let log = daemon.log();
    let line = log
        .lines()
        .find(|line| line.contains(wrong))
        .expect("a line");
    assert!(line.contains("WARN") && line.contains(" disk: "), "{line}");
    let hint = log.lines().find(|line| line.contains(small));
    assert!(hint.is_some_and(|line| line.contains("INFO")), "{hint:?}");
    assert_eq!(log.matches(small).count(), 1, "said once: {log}");
    drop(guest);
}

#[test]
fn a_guest_that_shares_none_of_its_memory_is_told_of_once_with_the_fix() {
    let mut rig = Rig::new();
    volume(&mut rig, "disk", "write-back", "[\"vhost-user\"]");
    let daemon = rig.serve();
    // Its front end comes again and again.
    for _ in 0..3 {
        let front = FrontEnd::connect(&rig.run_dir().join("disk.vhost.sock")).unwrap();
        assert!(!front.start(&Ring::new(0, 64, 0)).unwrap());
        drop(front);
        rig.gone_clients("disk");
    }
    daemon.says(&["the front end has gone"]);
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|it| it.contains("share=on")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    let right = [
        "WARN",
        " disk: ",
        "memory-backend-memfd",
        "<access mode='shared'/>",
    ];
    assert!(right.iter().all(|it| lines[0].contains(it)), "{}", lines[0]);
    assert_eq!(log.matches("the front end has gone").count(), 1, "{log}");
}
