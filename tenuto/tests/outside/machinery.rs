//! The tools of the outside tests, proven without the product.
//!
//! A drill that never loses anything proves nothing: these tests show that the disk with a power
//! switch does lose what was not synced, keeps what was, and lets single writes land late, and
//! that a guest notices a changed byte.

use std::os::unix::fs::FileExt;

use workload::check::{Crash, Promise, Violation};

use crate::common::disk::{Disk, FileSystem, Mounted};
use crate::common::guest::Machine;
use crate::common::load::{End, Load};
use crate::common::nbd::Client;
use crate::common::{Background, PATIENCE, Rig, have, may_mount, run, wait_until};
use workload::rng::Rng;

#[test]
fn a_power_cut_keeps_synced_bytes_and_loses_some_of_the_others() {
    if !may_mount("a_power_cut_keeps_synced_bytes_and_loses_some_of_the_others") {
        return;
    }
    let rig = Rig::new();
    let mut random = Rng::new(1);
    let (mut lost, mut kept) = (0, 0);
    for round in 1..=6u8 {
        let disk = Disk::new(4 << 20);
        let mounted = Mounted::new(&disk, &rig.dir.join(format!("disk-{round}")));
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(mounted.path())
            .unwrap();
        file.write_all_at(&[round; 8192], 0).unwrap();
        file.sync_data().unwrap();
        file.write_all_at(&[round + 100; 65_536], 1 << 20).unwrap();
        disk.cut_power();
        // The page cache may take the write; the sync must not succeed.
        let _ = file.write_all_at(&[7; 512], 0);
        assert!(file.sync_data().is_err());
        disk.restore_power(&mut random);
        let bytes = disk.bytes();
        assert!(bytes[..8192].iter().all(|&byte| byte == round));
        for sector in bytes[1 << 20..(1 << 20) + 65_536].chunks(512) {
            assert!(
                sector.iter().all(|&byte| byte == sector[0]),
                "torn inside a sector"
            );
            if sector[0] == 0 { lost += 1 } else { kept += 1 }
        }
    }
    assert!(lost > 0 && kept > 0, "{lost} sectors lost, {kept} kept");
}

#[test]
fn a_file_system_on_the_disk_survives_a_power_cut_with_what_was_synced() {
    if !may_mount("a_file_system_on_the_disk_survives_a_power_cut_with_what_was_synced") {
        return;
    }
    let rig = Rig::new();
    let disk = Disk::new(32 << 20);
    let base = rig.dir.join("disk");
    FileSystem::make(&disk, &base);
    let mut random = Rng::new(2);
    for round in 0..4u8 {
        let system = FileSystem::mount(&disk, &base);
        if round > 0 {
            let before = std::fs::read(system.path().join("synced")).unwrap();
            assert_eq!(before, vec![round - 1; 100_000]);
        }
        let file = std::fs::File::create(system.path().join("new")).unwrap();
        file.write_all_at(&[round; 100_000], 0).unwrap();
        file.sync_all().unwrap();
        std::fs::rename(system.path().join("new"), system.path().join("synced")).unwrap();
        std::fs::File::open(system.path())
            .unwrap()
            .sync_all()
            .unwrap();
        std::fs::write(system.path().join(format!("loose-{round}")), [1; 50_000]).unwrap();
        disk.cut_power();
        drop((file, system));
        disk.restore_power(&mut random);
    }
}

#[test]
fn a_held_write_lands_late_and_only_then() {
    if !may_mount("a_held_write_lands_late_and_only_then") {
        return;
    }
    let rig = Rig::new();
    let disk = Disk::new(1 << 20);
    let mounted = Mounted::new(&disk, &rig.dir.join("disk"));
    disk.hold_writes(8192, 12_288);
    let path = mounted.path().to_owned();
    let writer = std::thread::spawn(move || {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[9; 4096], 8192).unwrap();
        file.sync_all().unwrap();
    });
    assert!(disk.wait_parked(1, PATIENCE));
    assert_eq!(disk.bytes()[8192], 0);
    assert_eq!(disk.let_go(), 1);
    writer.join().unwrap();
    assert_eq!(disk.bytes()[8192], 9);
}

#[test]
fn the_stamped_load_is_verified_and_a_lost_write_is_seen() {
    let test = "the_stamped_load_is_verified_and_a_lost_write_is_seen";
    if !have(test, &["qemu-nbd"]) {
        return;
    }
    let rig = Rig::new();
    let image = rig.image("disk.img", 16 << 20);
    let (socket, at) = (rig.dir.join("nbd.sock"), image.to_string_lossy());
    let place = socket.to_string_lossy();
    let arguments = [
        "-f", "raw", "-t", "-e", "4", "-x", "disk", "-k", &place, &at,
    ];
    let server = Background::start("qemu-nbd", &arguments);
    wait_until("qemu-nbd listens", PATIENCE, || {
        Client::connect(&socket, "disk").is_ok()
    });
    let mut load = Load::new(1, 16 << 20, Promise::Sectors, 3);
    // Of a read beside a write of the same sector this server promises nothing.
    load.mix.read_percent = 0;
    let client = Client::connect(&socket, "disk").unwrap();
    let end = load.run(client, |counts| counts.answered < 2000).unwrap();
    assert_eq!((end, load.counts.refused), (End::Enough, 0));
    let before = std::fs::read(&image).unwrap();
    let mut client = Client::connect(&socket, "disk").unwrap();
    load.verify(Crash::Kill, &mut client).unwrap();
    let client = Client::connect(&socket, "disk").unwrap();
    load.run(client, |counts| counts.answered < 2200).unwrap();
    // The server's image goes back to what it was: acknowledged writes are lost.
    std::fs::write(&image, before).unwrap();
    let mut client = Client::connect(&socket, "disk").unwrap();
    let lost = load.verify(Crash::Kill, &mut client).unwrap_err();
    assert!(matches!(lost, Violation::Stale { .. }), "{lost}");
    drop(server);
}

#[test]
fn a_guest_finds_its_files_again_and_notices_a_changed_byte() {
    let test = "a_guest_finds_its_files_again_and_notices_a_changed_byte";
    let rig = Rig::new();
    let Some(machine) = Machine::new(test, &rig.dir) else {
        return;
    };
    if !have(test, &["qemu-nbd"]) {
        return;
    }
    let image = rig.dir.join("root.img");
    machine.root_image(&rig.dir, &image, 48 << 20);
    let socket = rig.dir.join("nbd.sock");
    let (at, disk) = (socket.to_string_lossy(), image.to_string_lossy());
    let arguments = [
        "-f",
        "raw",
        "-t",
        "-x",
        "disk",
        "--discard=unmap",
        "-k",
        &at,
        &disk,
    ];
    let server = Background::start("qemu-nbd", &arguments);
    wait_until("qemu-nbd listens", PATIENCE, || {
        Client::connect(&socket, "disk").is_ok()
    });
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let written = machine.run(&uri, "write");
    assert!(written.contains(&"written".to_owned()), "{written:?}");
    assert!(
        written.contains(&"write-cache write back".to_owned()),
        "{written:?}"
    );
    let same = machine.run(&uri, "check");
    assert!(same.contains(&"same 19".to_owned()), "{same:?}");
    drop(server);
    // One byte in the middle of a file: found by its checksum.
    let damaged = rig.dir.join("damaged.img");
    let place = damaged.to_string_lossy();
    std::fs::copy(&image, &damaged).unwrap();
    let block: u64 = run("debugfs", &["-R", "bmap /data/first-2 0", &place])
        .trim()
        .parse()
        .unwrap();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&damaged)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, block * 4096 + 7).unwrap();
    file.write_all_at(&[!byte[0]], block * 4096 + 7).unwrap();
    let found = machine.run(&place, "check");
    assert!(
        !found.iter().any(|line| line.starts_with("same")),
        "{found:?}"
    );
}
