//! The NBD clients that people use, against the real server.
//!
//! Each brings its own idea of the protocol: libnbd, QEMU, fio. What they write is compared with
//! what they read, with a raw file, or with the image after a destage.

use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::nbd::{
    Allocation, CMD_TRIM, CMD_WRITE_ZEROES, Client, FLAG_NO_HOLE, Mapper, STATE_ZERO,
};
use crate::common::{Rig, have, run, seed};
use workload::rng::Rng;

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
        Rng::new(seed(12)).fill(&mut bytes[1 << 20..9 << 20]);
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
fn random_commands(random: &mut Rng, count: usize, zeroes: bool) -> Vec<String> {
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
    let mut random = Rng::new(seed(13));
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

/// Fails when: a discard is answered and forgotten (`ForgetDiscard`).
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

/// Fails when: holes of the origin are called data.
#[test]
fn block_status_shows_what_is_allocated() {
    if !have(
        "block_status_shows_what_is_allocated",
        &["nbdinfo", "qemu-img"],
    ) {
        return;
    }
    for policy in ["uncached", "write-back", "ephemeral"] {
        let rig = with_volume(policy);
        let image = rig.dir.join("disk.img");
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[3; 1 << 20], 8 << 20).unwrap();
        file.sync_all().unwrap();
        let mut model = std::fs::read(&image).unwrap();
        let mut daemon = rig.serve();
        let mut random = Rng::new(seed(14));
        for round in 0..4 {
            change(&mut rig.connect("disk"), &mut random, &mut model);
            check_maps(&rig, policy, &model);
            match round {
                0 if policy == "write-back" => {
                    rig.done(&["volume", "destage", "disk", "--wait"]);
                }
                1 => {
                    daemon.kill();
                    daemon = rig.serve();
                }
                _ => {}
            }
            check_maps(&rig, policy, &model);
        }
        daemon.stop();
    }
}

/// Writes, zeroes and discards in the first half of the volume, a discard of what the image had,
/// and one large write.
fn change(client: &mut Client, random: &mut Rng, model: &mut [u8]) {
    let mut zero = |client: &mut Client, command, flags, at: u64, length: u64| {
        assert_eq!(client.command(command, flags, at, length as u32), 0);
        model[at as usize..(at + length) as usize].fill(0);
    };
    for _ in 0..40 {
        let at = random.below(16 << 20);
        let length = 1 + random.below(100_000);
        match random.below(4) {
            0 => zero(client, CMD_WRITE_ZEROES, FLAG_NO_HOLE, at, length),
            1 => zero(client, CMD_WRITE_ZEROES, 0, at, length),
            2 => zero(
                client,
                CMD_TRIM,
                0,
                at / 512 * 512,
                length.next_multiple_of(512),
            ),
            _ => {}
        }
    }
    zero(client, CMD_TRIM, 0, HOLE.start, HOLE.end - HOLE.start);
    for _ in 0..40 {
        let at = random.below(16 << 20);
        let bytes = vec![1 + random.below(254) as u8; 1 + random.below(100_000) as usize];
        client.write(at, &bytes);
        model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }
    client.write(DATA.start, &[9; 1 << 20]);
    model[DATA.start as usize..DATA.end as usize].fill(9);
}

/// Discarded in every round, written in every round, and never touched.
const HOLE: Range<u64> = 18 << 20..19 << 20;
const DATA: Range<u64> = 20 << 20..21 << 20;
const UNTOUCHED: Range<u64> = 24 << 20..32 << 20;

/// What each client is told of the volume, against its bytes.
fn check_maps(rig: &Rig, policy: &str, model: &[u8]) {
    let ours = Mapper::connect(&rig.all_exports(), "disk").map(BYTES);
    let text = run("nbdinfo", &["--map", "--json", &uri(rig)]);
    let map: serde_json::Value = serde_json::from_str(&text).expect("nbdinfo prints JSON");
    let parts = map.as_array().expect("a list of extents").iter();
    let number = |part: &serde_json::Value, key: &str| part[key].as_u64().unwrap();
    let libnbd = parts.map(|part| (number(part, "length"), number(part, "type") as u32));
    let text = run(
        "qemu-img",
        &["map", "--output=json", "-f", "raw", &rig.uri("disk")],
    );
    let map: serde_json::Value = serde_json::from_str(&text).expect("qemu-img prints JSON");
    let parts = map.as_array().expect("a list of extents").iter();
    let qemu = parts.map(|part| {
        let zero = if part["zero"] == true { STATE_ZERO } else { 0 };
        (number(part, "length"), zero)
    });
    for (who, map) in [
        ("we", ours),
        ("nbdinfo", libnbd.collect()),
        ("qemu-img", qemu.collect()),
    ] {
        check_map(&format!("{policy}: {who}"), &map, model);
    }
}

fn check_map(who: &str, map: &Allocation, model: &[u8]) {
    let mut at = 0;
    for &(length, flags) in map {
        let upto = at + length;
        let bytes = &model[at as usize..upto as usize];
        let zero = flags & STATE_ZERO != 0;
        assert!(
            !zero || bytes.iter().all(|&byte| byte == 0),
            "{who}: data at {at}..{upto} is called zero"
        );
        for known in [HOLE, UNTOUCHED] {
            let meets = at.max(known.start) < upto.min(known.end);
            assert!(zero || !meets, "{who}: {at}..{upto} should be zero");
        }
        at = upto;
    }
    assert_eq!(at, BYTES, "{who}: the map covers the volume");
}

#[test]
fn a_sparse_volume_is_copied_to_a_sparse_file() {
    let test = "a_sparse_volume_is_copied_to_a_sparse_file";
    if !have(test, &["qemu-img"]) {
        return;
    }
    for policy in ["uncached", "write-back", "ephemeral"] {
        let rig = with_volume(policy);
        let daemon = rig.serve();
        let mut client = rig.connect("disk");
        client.write(4 << 20, &[7; 1 << 20]);
        client.write(12 << 20, &[7; 1 << 20]);
        // Written and taken back: gone from the copy as well.
        assert_eq!(client.command(CMD_TRIM, 0, 12 << 20, 1 << 20), 0);
        client.disconnect();
        let copy = rig.dir.join("copy.img");
        let (volume, place) = (rig.uri("disk"), copy.to_string_lossy().into_owned());
        run(
            "qemu-img",
            &["convert", "-f", "raw", "-O", "raw", &volume, &place],
        );
        // The tool finds zeroes by itself as well, but only in what it has read.
        let read = rig.show("disk")["reads"]["bytes"].as_u64().unwrap();
        assert!(read < 4 << 20, "{policy}: {read} bytes were read");
        same_as_export(&rig, &copy);
        let used = std::fs::metadata(&copy).unwrap().blocks() * 512;
        assert!(
            (1 << 20..2 << 20).contains(&used),
            "{policy}: the copy has {used} bytes"
        );
        daemon.stop();
    }
}

/// Fails when: what the log holds is ignored, only the origin.
#[test]
fn data_is_never_called_zero_while_it_is_destaged() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", BYTES);
    rig.volume("disk", &image, "write-back", "destage-after = \"1ms\"");
    let daemon = rig.serve();
    // Up to here the volume holds data, without a hole, in an image that had none.
    let filled = AtomicU64::new(0);
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut mapper = Mapper::connect(&rig.all_exports(), "disk");
            let mut asked = 0;
            while filled.load(Ordering::Acquire) < BYTES {
                let upto = filled.load(Ordering::Acquire);
                if upto == 0 {
                    continue;
                }
                let extents = mapper.ask(0, upto as u32);
                let data = |(_, flags): &(u64, u32)| flags & STATE_ZERO == 0;
                assert!(extents.iter().all(data), "of {upto}: {extents:?}");
                asked += 1;
            }
            asked
        });
        let mut client = rig.connect("disk");
        while filled.load(Ordering::Acquire) < BYTES && !asking.is_finished() {
            let at = filled.load(Ordering::Acquire);
            client.write(at, &[1; 64 << 10]);
            filled.store(at + (64 << 10), Ordering::Release);
            client.flush();
        }
        asking.join().expect("no data is called zero")
    });
    assert!(asked > 50, "{asked} questions are few");
    let shown = rig.show("disk");
    let destages = shown["origin"]["syncs"].as_u64().unwrap();
    assert!(destages > 20, "{destages} syncs of the origin are few");
    daemon.stop();
}

/// Fails when: a flush is answered before the log has what it covers (`AcknowledgeBeforeLog`).
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
