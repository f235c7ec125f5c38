//! Replays on two machines that somebody goes away from.
//!
//! Owns a trace that lasts longer than any test. Deliberately absent: how a program comes to a
//! machine, which is what the tests differ in.

use super::{Rig, end, wait_until};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(300);

/// One of the machines: a volume that the trace goes to, and where its agent is noted.
pub struct Side<'a> {
    pub rig: &'a Rig,
    pub volume: &'a str,
    pub noted: PathBuf,
}

/// Writes that a volume was asked for.
pub fn writes(rig: &Rig, name: &str) -> u64 {
    let count = rig.show(name)["writes"]["requests"].as_u64();
    count.expect("a count")
}

pub fn is_over(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// A request each half a second for ten minutes, in turns; it has begun on both.
pub fn long_replay(sides: &[Side<'_>; 2], begin: impl FnOnce(&Path) -> Child) -> (Child, [i32; 2]) {
    let trace = sides[0].rig.stage_dir().join("long.csv");
    let line = |at: u64| format!("{},pc,{},Write,0,4096,0\n", at * 5_000_000, at % 2);
    std::fs::write(&trace, (0..1200).map(line).collect::<String>()).expect("write the trace");
    let before = sides.each_ref().map(|it| writes(it.rig, it.volume));
    let child = begin(&trace);
    for (side, before) in sides.iter().zip(before) {
        wait_until("the first write", PATIENCE, || {
            writes(side.rig, side.volume) > before
        });
    }
    let pids = sides.each_ref().map(|side| {
        let text = std::fs::read_to_string(&side.noted).expect("its process was noted");
        text.trim().parse().expect("a number")
    });
    (child, pids)
}

/// An agent goes away, and then the one that orders a replay.
pub fn whoever_goes_away_ends_it_on_all(begin: impl Fn() -> (Child, [i32; 2])) {
    let (child, [left, right]) = begin();
    end(left);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("agent left: it ended before"), "{said}");
    wait_until("the other one has ended", PATIENCE, || is_over(right));
    let (mut child, pids) = begin();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_until("nobody goes on", PATIENCE, || pids.into_iter().all(is_over));
}
