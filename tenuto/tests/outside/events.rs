//! `events` as scripts read it: one line each, over restarts, until the reader has enough.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{EXIT_UNREACHABLE, Rig, wait_until};

const MIB: u64 = 1 << 20;
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

fn prepare() -> Rig {
    let mut rig = Rig::new();
    for name in ["one", "two"] {
        let image = rig.image(&format!("{name}.img"), 16 * MIB);
        rig.volume(name, &image, "write-back", "");
    }
    rig
}

fn lines(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).expect("a document on each line");
    text.lines().map(parse).collect()
}

#[test]
fn events_are_lines_that_can_be_asked_for_by_number_volume_and_severity() {
    let rig = prepare();
    rig.write_config();
    rig.refused(&["events"], EXIT_UNREACHABLE);
    let daemon = rig.serve();
    rig.done(&["volume", "destage", "one", "--wait"]);
    rig.done(&["volume", "set", "two", "destage-after=1h"]);
    let all = lines(&rig.done(&["events", "--json"]));
    let numbers: Vec<u64> = all
        .iter()
        .filter_map(|event| event["seq"].as_u64())
        .collect();
    assert_eq!(numbers.len(), all.len());
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(all.iter().any(|event| event["kind"] == "start"), "{all:?}");
    // By number: what comes after the first one.
    let after = numbers[0].to_string();
    let rest = lines(&rig.done(&["events", "--json", "--after", &after]));
    assert_eq!(rest[..all.len() - 1], all[1..]);
    let one = lines(&rig.done(&["events", "--json", "--volume", "one"]));
    assert!(
        !one.is_empty() && one.iter().all(|event| event["volume"] == "one"),
        "{one:?}"
    );
    // A refused order is a warning; nothing here is an error.
    rig.refused(&["volume", "reset", "two"], 4);
    let warnings = rig.done(&["events", "--severity", "warning"]);
    assert!(
        warnings.contains("warning") && warnings.contains("two"),
        "{warnings}"
    );
    assert!(!warnings.contains("  info"), "{warnings}");
    daemon.stop();
}

#[test]
fn a_follower_goes_on_with_the_next_daemon_and_ends_with_its_reader() {
    let rig = prepare();
    let daemon = rig.serve();
    let mut follower = rig.spawn(&["events", "--follow", "--json"]);
    let mut out = BufReader::new(follower.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let event: Value = serde_json::from_str(&line).expect("an event");
        (event["seq"].as_u64().unwrap(), event["kind"].clone())
    };
    let (mut last, mut kind) = next();
    assert_eq!(kind, "start");
    daemon.kill();
    let daemon = rig.serve();
    // Numbers go on, and the new daemon's start is among them.
    let start = Instant::now();
    loop {
        let (number, now) = next();
        assert!(number > last, "{number} after {last}");
        (last, kind) = (number, now);
        assert!(start.elapsed() < TURN_TIMEOUT);
        if kind == "start" {
            break;
        }
    }
    // Nothing more happens, and the reader goes: so does the follower.
    drop(out);
    wait_until("the follower ends", TURN_TIMEOUT, || {
        follower.try_wait().unwrap().is_some()
    });
    let output = follower.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the daemon does not answer"), "{said}");
    assert!(said.contains("the daemon is back"), "{said}");
    daemon.stop();
}
