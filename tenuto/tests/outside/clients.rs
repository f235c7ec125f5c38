//! The NBD clients that people use, against the real server.
//!
//! Each brings its own idea of the protocol: libnbd, QEMU, fio. What they write is compared with
//! what they read, with a raw file, or with the image after a destage.

use std::path::Path;

use crate::common::random::Random;
use crate::common::{Rig, have, run, seed};

const BYTES: u64 = 32 << 20;

fn with_volume(policy: &str) -> Rig {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, policy, "destage-after = \"2s\"");
    rig
}

/// A URI of the volume as libnbd has it.
fn uri(rig: &Rig) -> String {
    format!("nbd+unix:///disk?socket={}", rig.all_exports().display())
}

#[test]
fn nbdinfo_sees_size_flags_and_block_sizes_of_every_export() {
    if !have(
        "nbdinfo_sees_size_flags_and_block_sizes_of_every_export",
        &["nbdinfo"],
    ) {
        return;
    }
    let mut rig = with_volume("write-back");
    let base = rig.image("base.img", 4 << 20);
    rig.volume("clone", &base, "ephemeral", "")
        .volume("fixed", &base, "ephemeral", "");
    let daemon = rig.serve();
    let text = run("nbdinfo", &["--json", &uri(&rig)]);
    let info: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], BYTES);
    for flag in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_cache",
        "can_multi_conn",
    ] {
        assert_eq!(export[flag], true, "{flag} in {export}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_preferred"], 4096);
    assert!(
        export["contexts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it == "base:allocation")
    );
    let all = format!("nbd+unix:///?socket={}", rig.all_exports().display());
    let list: serde_json::Value =
        serde_json::from_str(&run("nbdinfo", &["--list", "--json", &all])).unwrap();
    let names: Vec<_> = list["exports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["export-name"])
        .collect();
    for name in ["disk", "clone", "fixed"] {
        assert!(names.iter().any(|it| *it == name), "{name} in {names:?}");
    }
    // Its own socket has the volume as the default export.
    let own = format!("nbd+unix:///?socket={}", rig.socket("disk").display());
    assert_eq!(run("nbdinfo", &["--size", &own]).trim(), BYTES.to_string());
    daemon.stop();
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_unchanged() {
    if !have("nbdcopy_brings_an_image_in_and_out_unchanged", &["nbdcopy"]) {
        return;
    }
    for policy in ["uncached", "write-back", "ephemeral"] {
        let rig = with_volume(policy);
        let daemon = rig.serve();
        let (from, back) = (rig.dir.join("from.img"), rig.dir.join("back.img"));
        let mut bytes = vec![0; BYTES as usize];
        Random::new(seed(12)).fill(&mut bytes[1 << 20..9 << 20]);
        std::fs::write(&from, &bytes).unwrap();
        run("nbdcopy", &["--flush", &from.to_string_lossy(), &uri(&rig)]);
        std::fs::File::create(&back)
            .unwrap()
            .set_len(BYTES)
            .unwrap();
        run("nbdcopy", &[&uri(&rig), &back.to_string_lossy()]);
        assert!(
            std::fs::read(&back).unwrap() == bytes,
            "{policy}: the copy differs"
        );
        daemon.stop();
    }
}

/// What `qemu-io` is asked to do, chosen at random: unaligned reads, writes, FUA and flushes, and
/// zeroes where the driver between can do them.
fn random_commands(random: &mut Random, count: usize, zeroes: bool) -> Vec<String> {
    let mut commands = Vec::new();
    for _ in 0..count {
        let length = 1 + random.below(200_000);
        let offset = random.below(BYTES - length);
        let pattern = 1 + random.below(254);
        commands.push(match random.below(10) {
            5 | 6 => format!("read {offset} {length}"),
            7 if zeroes => format!("write -z {offset} {length}"),
            8 if zeroes => format!("write -z -u {offset} {length}"),
            9 => "flush".to_owned(),
            4 => format!("write -f -P {pattern} {offset} {}", length.min(5000)),
            _ => format!("write -P {pattern} {offset} {length}"),
        });
    }
    commands
}

/// Runs the commands in one session on one image.
fn qemu_io(options: &[&str], commands: &[String], image: &str) {
    let mut arguments = options.to_vec();
    for command in commands {
        arguments.extend_from_slice(&["-c", command]);
    }
    arguments.push(image);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed"), "{said}");
}

#[test]
fn qemu_io_sees_the_same_bytes_as_in_a_raw_file() {
    if !have(
        "qemu_io_sees_the_same_bytes_as_in_a_raw_file",
        &["qemu-io", "qemu-img"],
    ) {
        return;
    }
    let mut random = Random::new(seed(13));
    for policy in ["uncached", "write-back", "ephemeral"] {
        let rig = with_volume(policy);
        let daemon = rig.serve();
        let reference = rig.image("reference.img", BYTES);
        // Every read is compared with the raw file by QEMU itself.
        let both = format!(
            "driver=blkverify,test.driver=raw,test.file.driver=nbd,test.file.server.type=unix,\
             test.file.server.path={},test.file.export=disk,raw.driver=file,raw.filename={}",
            rig.all_exports().display(),
            reference.display()
        );
        qemu_io(
            &["--image-opts"],
            &random_commands(&mut random, 100, false),
            &both,
        );
        // Zeroes, which that driver cannot do, on each by itself.
        let commands = random_commands(&mut random, 100, true);
        for image in [&*reference.to_string_lossy(), &rig.uri("disk")] {
            qemu_io(&["-f", "raw", "-d", "unmap"], &commands, image);
        }
        same_as_export(&rig, &reference);
        // After a kill and a start as well.
        daemon.kill();
        let daemon = rig.serve();
        same_as_export(&rig, &reference);
        if policy != "ephemeral" {
            rig.done(&["volume", "destage", "disk", "--wait"]);
            let image = std::fs::read(rig.dir.join("disk.img")).unwrap();
            let same = image == std::fs::read(&reference).unwrap();
            assert!(same, "{policy}: the image differs");
        }
        daemon.stop();
    }
}

fn same_as_export(rig: &Rig, reference: &Path) {
    run(
        "qemu-img",
        &[
            "compare",
            "-f",
            "raw",
            "-F",
            "raw",
            &reference.to_string_lossy(),
            &rig.uri("disk"),
        ],
    );
}

#[test]
fn a_discarded_range_reads_as_zeroes_and_stays_so() {
    if !have(
        "a_discarded_range_reads_as_zeroes_and_stays_so",
        &["qemu-io"],
    ) {
        return;
    }
    let rig = with_volume("write-back");
    let daemon = rig.serve();
    let commands = [
        "write -P 7 0 4M",
        "flush",
        "discard 1M 1M",
        "read -P 0 1M 1M",
        "write -z -u 2097153 4095",
        "read -P 0 2097153 4095",
        "read -P 7 2097152 1",
        "read -P 7 2101248 4096",
    ];
    let arguments = |commands: &[&str]| {
        let mut all: Vec<String> = ["-f", "raw", "-d", "unmap"].map(str::to_owned).to_vec();
        for command in commands {
            all.extend(["-c".to_owned(), (*command).to_owned()]);
        }
        all.push(rig.uri("disk"));
        all
    };
    let said = run(
        "qemu-io",
        &arguments(&commands)
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    assert!(!said.contains("failed"), "{said}");
    rig.done(&["volume", "destage", "disk", "--wait"]);
    daemon.kill();
    let daemon = rig.serve();
    let again = [
        "read -P 0 1M 1M",
        "read -P 7 2M 1",
        "read -P 0 2097153 4095",
        "read -P 7 0 1M",
    ];
    let said = run(
        "qemu-io",
        &arguments(&again)
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    assert!(!said.contains("failed"), "{said}");
    daemon.stop();
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !have("fio_verifies_what_it_wrote", &["fio"]) {
        return;
    }
    for policy in ["uncached", "write-back"] {
        let rig = with_volume(policy);
        let daemon = rig.serve();
        let target = format!("--uri={}", uri(&rig));
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &target,
                "--rw=randwrite",
                "--bsrange=512-64k",
                "--bs_unaligned=0",
                "--iodepth=16",
                "--size=24m",
                "--io_size=48m",
                "--fsync=64",
                "--verify=crc32c",
                // Else it leaves a file where the tests run.
                "--verify_state_save=0",
                "--verify_fatal=1",
                "--verify_backlog=256",
                "--minimal",
            ],
        );
        daemon.stop();
    }
}

#[test]
fn block_status_shows_what_is_allocated() {
    if !have("block_status_shows_what_is_allocated", &["nbdinfo"]) {
        return;
    }
    let rig = with_volume("write-back");
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(1 << 20, &[5; 1 << 20]);
    client.disconnect();
    let map = run("nbdinfo", &["--map", "--json", &uri(&rig)]);
    let map: serde_json::Value = serde_json::from_str(&map).expect("nbdinfo prints JSON");
    let parts = map.as_array().expect("a list of extents");
    let end = parts
        .iter()
        .map(|part| part["length"].as_u64().unwrap())
        .sum::<u64>();
    assert_eq!(end, BYTES, "the map covers the volume");
    let holds_data = |at: u64| {
        parts.iter().any(|part| {
            let from = part["offset"].as_u64().unwrap();
            let to = from + part["length"].as_u64().unwrap();
            (from..to).contains(&at) && part["type"].as_u64().unwrap() & 1 == 0
        })
    };
    assert!(holds_data(1 << 20) && holds_data((2 << 20) - 512), "{map}");
    daemon.stop();
}

#[test]
fn a_flush_on_one_connection_covers_writes_on_another() {
    let rig = with_volume("write-back");
    let daemon = rig.serve();
    let (mut one, mut two) = (rig.connect("disk"), rig.connect("disk"));
    assert_eq!(one.flags & 1 << 8, 1 << 8, "multi-conn is offered");
    one.write(8192, &[9; 4096]);
    two.flush();
    let shown = rig.show("disk");
    assert_eq!(shown["acked_serial"], shown["durable_serial"]);
    assert_eq!(two.read(8192, 4096), vec![9; 4096]);
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    assert_eq!(rig.connect("disk").read(8192, 4096), vec![9; 4096]);
    daemon.stop();
}

#[test]
fn tcp_serves_the_same_exports() {
    if !have("tcp_serves_the_same_exports", &["nbdinfo"]) {
        return;
    }
    let mut rig = with_volume("write-back");
    // A port that was free a moment ago; nobody else asks for one in this range meanwhile.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    rig.section(&format!("[listen]\nnbd = \"127.0.0.1:{port}\"\n"));
    let daemon = rig.serve();
    let size = run(
        "nbdinfo",
        &["--size", &format!("nbd://127.0.0.1:{port}/disk")],
    );
    assert_eq!(size.trim(), BYTES.to_string());
    daemon.stop();
}
