//! Progress of work that takes a while, and that it is the daemon's and not the command's.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::export::{Export, Link};
use crate::common::{Rig, binary, have, run, text_of, wait_until};

const MIB: u64 = 1 << 20;
/// A destage of this much over this line takes some seconds.
const DIRTY_BYTES: u64 = 24 * MIB;
const LINE_BYTES_PER_SECOND: u64 = 6 * MIB;

/// A volume on a slow origin, and what makes it dirty.
fn prepare() -> (Rig, Export) {
    let mut rig = Rig::new();
    let export = Export::new(64 << 20).behind(&Link::new(LINE_BYTES_PER_SECOND));
    let socket = rig.dir.join("origin");
    export.serve(&socket);
    let uri = PathBuf::from(format!("nbd+unix:///?socket={}", socket.display()));
    let lines = "destage-after = \"10m\"\norigin-quiet = \"0s\"";
    rig.volume("disk", &uri, "write-back", lines);
    (rig, export)
}

fn make_dirty(rig: &Rig) {
    let mut client = rig.connect("disk");
    for at in (0..DIRTY_BYTES).step_by(MIB as usize) {
        client.write(at, &[7; MIB as usize]);
    }
    client.disconnect();
}

#[test]
fn a_long_destage_tells_how_far_it_is_on_standard_error_and_its_result_alone_on_the_other() {
    let (rig, _export) = prepare();
    let daemon = rig.serve();
    make_dirty(&rig);
    let began = Instant::now();
    let output = rig.tenuto(&["volume", "destage", "disk", "--wait", "--json"]);
    let seconds = began.elapsed().as_secs();
    assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
    let result: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(result["dirty_bytes"], 0);
    let said = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(!lines.is_empty(), "a destage of {seconds} s says something");
    assert!(
        lines.len() as u64 <= seconds + 1,
        "{} lines in {seconds} s",
        lines.len()
    );
    let mut last = 0;
    for line in &lines {
        let progress = &line["progress"];
        assert_eq!(
            (&progress["verb"], &progress["object"]),
            (&"destage".into(), &"disk".into())
        );
        let done = progress["done_bytes"].as_u64().unwrap();
        let total = progress["total_bytes"].as_u64().unwrap();
        assert!(last <= done && done <= total, "{last}, {done} of {total}");
        assert!(total <= DIRTY_BYTES, "{total}");
        last = done;
    }
    assert!(last > 0, "it moves: {said}");
    // What ends soon says nothing.
    let output = rig.tenuto(&["volume", "destage", "--all", "--wait", "--json"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    daemon.stop();
}

#[test]
fn an_interrupt_ends_the_waiting_and_not_the_destage() {
    let (rig, export) = prepare();
    let daemon = rig.serve();
    make_dirty(&rig);
    export.hold_writes(0, DIRTY_BYTES);
    let waiting = rig.spawn(&["volume", "destage", "disk", "--wait"]);
    assert!(export.wait_parked(1, Duration::from_secs(30)));
    run("sh", &["-c", &format!("kill -INT {}", waiting.id())]);
    let output: Output = waiting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the daemon goes on with it"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    export.let_go();
    wait_until(
        "the destage ends by itself",
        Duration::from_secs(60),
        || rig.show("disk")["dirty_bytes"] == 0,
    );
    daemon.stop();
}

#[test]
fn on_a_terminal_a_bar_shows_bytes_rate_and_time_and_goes_away() {
    let test = "on_a_terminal_a_bar_shows_bytes_rate_and_time_and_goes_away";
    if !have(test, &["script"]) {
        return;
    }
    let (rig, _export) = prepare();
    let daemon = rig.serve();
    make_dirty(&rig);
    let program = binary();
    let log = rig.dir.join("typescript");
    let line = format!("{program} volume destage disk --wait");
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &line, &log.to_string_lossy()])
        .env("TENUTO_CONFIG", rig.config_path())
        .env("TERM", "xterm")
        .env_remove("TENUTO_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let seen = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["destage disk", "of 24 MiB", "MiB/s", " s left"] {
        assert!(seen.contains(part), "{part} in {seen:?}");
    }
    let end = seen.rsplit('\u{1b}').next().unwrap_or_default();
    assert!(end.contains("volume disk: is at the origin"), "{end:?}");
    daemon.stop();
}
