//! What the daemon writes to its log: its form, its amount under a flood, and no secrets in it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::disk::{Device, Disk};
use crate::common::nbd;
use crate::common::{Background, EXIT_USAGE, Rig, have, may_mount, text_of, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const FLOOD: usize = 3_000;

#[test]
fn lines_for_programs_are_json_with_stable_keys() {
    let mut rig = Rig::new();
    rig.host_line("log-format = \"json\"");
    let image = rig.image("disk.img", 16 << 20);
    rig.volume("disk", &image, "write-back", "");
    let log = rig.serve().stop();
    let lines: Vec<&str> = log.lines().filter(|line| *line != "ready").collect();
    assert!(lines.len() >= 3, "{log}");
    for line in lines {
        let line: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}:{log}"));
        let keys: Vec<&String> = line.as_object().expect("an object").keys().collect();
        assert_eq!(keys[..3], ["time", "level", "message"]);
        assert!(
            line["time"]
                .as_str()
                .is_some_and(|time| time.ends_with('Z'))
        );
        assert_eq!(line["level"], "info");
    }
}

#[test]
fn lines_for_the_journal_have_their_priority_and_no_time() {
    let mut rig = Rig::new();
    let image = rig.image("disk.img", 16 << 20);
    rig.volume("disk", &image, "write-back", "");
    let config = rig.write_config();
    let path = rig.dir.join("journal");
    let journal = File::create(&path).expect("make a file");
    let meta = journal.metadata().expect("its number");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_tenuto"))
        .args(["serve", "-c"])
        .arg(&config)
        .env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()))
        .stdout(Stdio::null())
        .stderr(journal)
        .spawn()
        .expect("start the daemon");
    let said = || std::fs::read_to_string(&path).expect("read the log");
    wait_until("ready", PATIENCE, || said().contains("<6>ready\n"));
    let pid = daemon.id() as i32;
    crate::common::end(pid);
    assert!(daemon.wait().expect("its end").success());
    for line in said().lines() {
        assert!(line.starts_with("<6>"), "{line}");
        assert!(!line.contains("INFO") && !line.contains("20"), "{line}");
    }
}

/// Sends so many writes at once and takes the answers.
fn flood(rig: &Rig, volume: &str) {
    let mut client = rig.connect(volume);
    for round in 0..FLOOD / 100 {
        for write in 0..100 {
            let offset = ((round * 100 + write) % 4_000 * 4096) as u64;
            let sent = client.send(nbd::CMD_WRITE, 0, offset, 4096, &[7; 4096]);
            sent.expect("send a write");
        }
        for _ in 0..100 {
            assert_ne!(client.answer().expect("an answer").error, 0);
        }
    }
}

/// Fails when: each line is written.
#[test]
fn a_flood_of_failures_and_of_hostile_clients_leaves_few_lines() {
    let test = "a_flood_of_failures_and_of_hostile_clients_leaves_few_lines";
    if !may_mount(test) || !have(test, &["nbdkit"]) {
        return;
    }
    let mut rig = Rig::new();
    let disk = Disk::new(16 << 20);
    let device = Device::new(&disk, &rig.dir.join("origin"));
    rig.volume("device", device.path(), "uncached", "");
    let socket = rig.dir.join("origin.sock");
    let image = rig.image("far.img", 16 << 20);
    let (socket_text, image_text) = (socket.display().to_string(), image.display().to_string());
    let _server = Background::start(
        "nbdkit",
        &[
            "-f",
            "-U",
            &socket_text,
            "--filter=error",
            "file",
            &image_text,
            "error-pwrite=EIO",
            "error-pwrite-rate=100%",
        ],
    );
    nbd::wait_for_server(&socket);
    let far = PathBuf::from(format!("nbd+unix:///?socket={socket_text}"));
    rig.volume("far", &far, "uncached", "");
    let start = Instant::now();
    let daemon = rig.serve();
    let before = daemon.log().lines().count();

    disk.unplug(true);
    flood(&rig, "device");
    flood(&rig, "far");
    for _ in 0..FLOOD {
        // Whoever is cut off while it still talks has said enough.
        if let Ok(mut stream) = nbd::greet(&rig.all_exports()) {
            let _ = stream.write_all(&[0xff; 64]);
        }
    }
    disk.unplug(false);
    // What was swallowed is told also when the flood has ended.
    let told = |object: &str| {
        let log = daemon.log();
        log.lines().any(|line| {
            line.contains(object) && (line.contains("more before") || line.contains("more lines"))
        })
    };
    wait_until("the device's lines are counted", PATIENCE, || {
        told(&device.path().display().to_string())
    });
    wait_until("the server's lines are counted", PATIENCE, || {
        told("nbd+unix")
    });
    let lines = daemon.log().lines().count() - before;
    // Two causes: ten lines at once, one in a second, and one that counts.
    let bound = 2 * (10 + start.elapsed().as_secs() as usize + 5);
    assert!(
        lines <= bound,
        "{lines} lines, {bound} at most:\n{}",
        daemon.log()
    );
    daemon.stop();
}

/// Fails when: URLs are shown as they are.
#[test]
fn no_output_shows_the_password_of_a_url() {
    let rig_with = |origin: &str| {
        let mut rig = Rig::new();
        rig.volume("disk", Path::new(origin), "write-back", "");
        rig.write_config();
        rig
    };
    let silent = |rig: &Rig, arguments: &[&str]| {
        for json in [&[][..], &["--json"]] {
            let output = rig.tenuto(&[arguments, json].concat());
            let text = text_of(&output);
            assert!(
                !text.contains("sesame") && !text.contains("alibaba"),
                "{text}"
            );
            assert_ne!(output.status.code(), Some(0), "{text}");
        }
    };
    let urls = [
        "nbd://alibaba:sesame@127.0.0.1:1/x",
        "s3://alibaba:sesame@bucket/x",
    ];
    for url in urls {
        let rig = rig_with(url);
        for arguments in [
            &["config", "--check"][..],
            &["config", "--explain"],
            &["serve", "--strict"],
            &["status"],
            &["origin", "inspect", url],
            &["origin", "replay", url],
        ] {
            silent(&rig, arguments);
        }
    }
    let mut rig = Rig::new();
    rig.host_line("log-format = \"json\"");
    let image = rig.image("disk.img", 16 << 20);
    rig.volume("disk", &image, "write-back", "");
    let daemon = rig.serve();
    for url in urls {
        silent(&rig, &["volume", "add", "other", &format!("origin={url}")]);
        rig.refused(
            &["volume", "set", "disk", &format!("origin={url}")],
            EXIT_USAGE,
        );
    }
    let status = rig.json(&["status"]).to_string() + &daemon.stop();
    assert!(!status.contains("sesame"), "{status}");
}
