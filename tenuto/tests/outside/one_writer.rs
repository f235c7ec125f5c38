//! One client at a time writes a volume: who comes second reads, or is told who was first.

use crate::common::disk::{Device, Disk};
use crate::common::nbd::{CMD_WRITE, EPERM};
use crate::common::{Background, Daemon, PATIENCE, Rig, have, may_mount, run, wait_until};
use lab::vhost_client::{Client, ClientError, Options, Wait};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;
const SLOW: Duration = Duration::from_secs(60);
/// NBD_FLAG_READ_ONLY.
const READ_ONLY: u16 = 1 << 1;

fn rig(lines: &str) -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.guest_volume("disk", &image, "write-back", lines);
    let socket = rig.run_dir().join("disk.vhost.sock");
    (rig, socket)
}

fn guest(socket: &std::path::Path) -> Result<Client, ClientError> {
    let options = Options {
        queues: 1,
        slots: 16,
        slot_bytes: BLOCK as u32,
        wait: Wait::Events,
    };
    Client::connect(socket, options)
}

fn clients(rig: &Rig, count: u64) {
    wait_until("the clients are there", SLOW, || {
        rig.show("disk")["clients"] == count
    });
}

/// Whether `qemu-io`, another process than this one, can write the volume.
fn another_writes(rig: &Rig) -> bool {
    let done = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 9 1M 4k", &rig.uri("disk")])
        .output()
        .expect("run qemu-io");
    done.status.success()
}

fn info(rig: &Rig) -> serde_json::Value {
    let text = run("nbdinfo", &["--json", &rig.uri("disk")]);
    let info: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    info["exports"][0].clone()
}

/// Another process that has the volume for writing until this is dropped.
fn holder(rig: &Rig) -> Background {
    let socket = rig.dir.join("holder.sock");
    let (socket, uri) = (socket.display().to_string(), rig.uri("disk"));
    let holder = Background::start(
        "qemu-nbd",
        &["-k", &socket, "-f", "raw", "--persistent", &uri],
    );
    clients(rig, 1);
    holder
}

fn names(daemon: &Daemon, pid: u32) {
    daemon.says(&[&format!("process {pid} (qemu-nbd) writes it")]);
}

/// Fails when: a client of NBD may write beside a guest.
#[test]
fn beside_a_guest_on_rings_another_process_only_reads() {
    let name = "beside_a_guest_on_rings_another_process_only_reads";
    if !have(name, &["qemu-io", "nbdinfo"]) {
        return;
    }
    let (rig, socket) = rig("");
    let mut daemon = rig.serve();
    let mut first = guest(&socket).unwrap();
    first.write(0, 0, &[7; BLOCK]).unwrap();
    assert!(!another_writes(&rig), "a guest has it");
    let shown = info(&rig);
    assert_eq!(shown["is_read_only"], true, "{shown}");
    let us = format!("process {}", std::process::id());
    assert!(
        shown["description"].as_str().unwrap().contains(&us),
        "{shown}"
    );
    let read = ["-r", "-f", "raw", "-c", "read -P 7 0 4k"];
    let uri = rig.uri("disk");
    let read = [&read[..], &[&uri]].concat();
    assert!(!run("qemu-io", &read).contains("failed"));
    // The process of the guest is one client, however it comes.
    let mut same = rig.connect("disk");
    assert_eq!(same.flags & READ_ONLY, 0);
    same.write(BYTES / 2, &[8; BLOCK]);
    drop(same);
    // A guest whose daemon starts again is there as soon as its rings run again.
    daemon.kill();
    daemon = rig.serve();
    first.reconnect().unwrap();
    assert!(!another_writes(&rig), "it came back");
    first.stop().unwrap();
    clients(&rig, 0);
    assert!(another_writes(&rig), "nobody else writes any more");
    daemon.stop();
}

/// Fails when: a second client of NBD may write, or the rings of a guest start beside a client that
/// writes.
#[test]
fn whoever_comes_second_reads_or_hears_who_was_first_until_that_one_has_gone() {
    let name = "whoever_comes_second_reads_or_hears_who_was_first_until_that_one_has_gone";
    if !have(name, &["qemu-nbd"]) {
        return;
    }
    let (rig, socket) = rig("");
    let daemon = rig.serve();
    let first = holder(&rig);
    let mut second = rig.connect("disk");
    assert_eq!(second.flags & READ_ONLY, READ_ONLY);
    assert_eq!(second.try_write(0, &[1; BLOCK], 0), EPERM);
    assert_eq!(second.read(0, BLOCK), vec![0; BLOCK]);
    second.disconnect();
    let refused = guest(&socket);
    assert!(
        matches!(refused, Err(ClientError::Refused("SET_VRING_ENABLE"))),
        "{:?}",
        refused.err()
    );
    names(&daemon, first.pid());
    drop((first, refused));
    clients(&rig, 0);
    guest(&socket).unwrap().stop().unwrap();
    daemon.stop();
}

/// Fails when: `shared = true` is ignored.
#[test]
fn a_shared_volume_has_several_writers() {
    let name = "a_shared_volume_has_several_writers";
    if !have(name, &["qemu-io", "qemu-nbd"]) {
        return;
    }
    let (rig, socket) = rig("shared = true");
    let daemon = rig.serve();
    let first = holder(&rig);
    let mut guests = [guest(&socket).unwrap(), guest(&socket).unwrap()];
    for (at, guest) in (0..).zip(&mut guests) {
        guest.write(0, at * 8, &[7; BLOCK]).unwrap();
    }
    let mut client = rig.connect("disk");
    assert_eq!(client.flags & READ_ONLY, 0);
    assert_eq!(client.read(0, 2 * BLOCK), vec![7; 2 * BLOCK]);
    assert!(another_writes(&rig));
    // For those who come from now on that can change.
    rig.done(&["volume", "set", "disk", "shared=false"]);
    assert!(!another_writes(&rig));
    drop((first, client));
    for guest in guests {
        guest.stop().unwrap();
    }
    daemon.stop();
}

/// Fails when: each connection is a client of its own.
#[test]
fn several_connections_of_one_process_are_one_client() {
    let name = "several_connections_of_one_process_are_one_client";
    if !have(name, &["nbdcopy"]) {
        return;
    }
    let (rig, _) = rig("");
    let daemon = rig.serve();
    let file = rig.image("file.img", BYTES);
    std::fs::write(&file, vec![5; BYTES as usize]).unwrap();
    let target = format!("nbd+unix:///disk?socket={}", rig.all_exports().display());
    run(
        "nbdcopy",
        &["--connections=4", &file.to_string_lossy(), &target],
    );
    assert_eq!(rig.connect("disk").read(0, BLOCK), vec![5; BLOCK]);
    daemon.stop();
}

/// A volume without a log, whose storage holds each write until it is let go.
fn slow(rig: &mut Rig, disk: &Disk) -> (Device, Daemon) {
    let device = Device::new(disk, &rig.dir.join("disk"));
    let lines = format!("journal = \"{}\"", rig.dir.display());
    rig.volume("disk", device.path(), "uncached", &lines);
    let daemon = rig.serve();
    disk.hold_writes(0, BYTES);
    (device, daemon)
}

/// Its write could land over one of the next client, where writes take no order.
///
/// Fails when: the right to write ends with the connection of a client.
#[test]
fn a_client_that_was_killed_has_the_right_until_its_last_write_has_ended() {
    let name = "a_client_that_was_killed_has_the_right_until_its_last_write_has_ended";
    if !may_mount(name) || !have(name, &["qemu-io", "nbdinfo"]) {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(BYTES as usize);
    let (_device, daemon) = slow(&mut rig, &disk);
    let write = ["-f", "raw", "-c", "write -P 9 1M 4k", &rig.uri("disk")];
    let first = Background::start("qemu-io", &write);
    assert!(disk.wait_parked(1, PATIENCE), "the origin is written");
    drop(first);
    clients(&rig, 0);
    assert_eq!(info(&rig)["is_read_only"], true, "its write is under way");
    disk.hold_no_more();
    disk.let_go();
    wait_until("another one may write", SLOW, || {
        info(&rig)["is_read_only"] == false
    });
    assert!(another_writes(&rig));
    daemon.stop();
}

/// Such a client sends what was not answered again, and newer writes behind it.
///
/// Fails when: connections of one process are one client also where one of them was cut off.
#[test]
fn a_client_that_connects_again_waits_for_the_last_write_of_its_dead_connection() {
    let name = "a_client_that_connects_again_waits_for_the_last_write_of_its_dead_connection";
    if !may_mount(name) {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(BYTES as usize);
    let (_device, daemon) = slow(&mut rig, &disk);
    let mut first = rig.connect("disk");
    let sent = first.send(CMD_WRITE, 0, 1 << 20, BLOCK as u32, &[9; BLOCK]);
    sent.expect("send a write");
    assert!(disk.wait_parked(1, PATIENCE), "the origin is written");
    let beside = rig.connect("disk");
    assert_eq!(beside.flags & READ_ONLY, 0, "a second connection may write");
    drop((first, beside));
    clients(&rig, 0);
    let again = rig.connect("disk");
    assert_ne!(again.flags & READ_ONLY, 0, "its write is under way");
    drop(again);
    disk.hold_no_more();
    disk.let_go();
    wait_until("it may write again", SLOW, || {
        rig.connect("disk").flags & READ_ONLY == 0
    });
    rig.connect("disk").write(1 << 20, &[7; BLOCK]);
    assert_eq!(rig.connect("disk").read(1 << 20, BLOCK), vec![7; BLOCK]);
    daemon.stop();
}
