//! `trace replay --agents`: one trace against the volumes of two daemons, as on two machines.
//!
//! What runs a program "there" is a script that stands in for `ssh`: it gives the program the
//! configuration of the machine that is named, and notes its process.

use crate::common::agents::{Side, long_replay, whoever_goes_away_ends_it_on_all};
use crate::common::{Daemon, Rig, seed};
use serde_json::Value;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use workload::rng::Rng;

const BYTES: u64 = 64 << 20;

struct Machines {
    left: Rig,
    right: Rig,
    _daemons: [Daemon; 2],
    rsh: String,
}

fn machines() -> Machines {
    let [left, right] = [["one", "two"], ["three", "four"]].map(|names| {
        let mut rig = Rig::new();
        for name in names {
            let image = rig.image(&format!("{name}.img"), BYTES);
            rig.volume(name, &image, "write-back", "");
        }
        rig.write_config();
        rig
    });
    let text = format!(
        "#!/bin/sh\nhost=$1; shift\ncase $host in\nleft) export TENUTO_CONFIG={};;\n\
         right) export TENUTO_CONFIG={};;\n\
         full) export TENUTO_CONFIG={} TMPDIR=/dev/null;;\n\
         *) echo \"$host: no such machine\" >&2; exit 255;;\nesac\n\
         echo $$ > {}/$host.pid\nexec \"$@\"\n",
        left.config_path().display(),
        right.config_path().display(),
        right.config_path().display(),
        left.stage_dir().display(),
    );
    let path = left.stage_dir().join("rsh");
    std::fs::write(&path, text).expect("write the script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("make it a program");
    Machines {
        _daemons: [left.serve(), right.serve()],
        rsh: path.display().to_string(),
        left,
        right,
    }
}

impl Machines {
    fn arguments<'a>(&'a self, trace: &'a Path, more: &str) -> Vec<String> {
        let trace = trace.to_str().expect("a name");
        let tenuto = env!("CARGO_BIN_EXE_tenuto");
        let begin = format!("trace replay {trace} --rsh {} --remote {tenuto}", self.rsh);
        let words = begin.split(' ').chain(more.split(' '));
        words.map(str::to_owned).collect()
    }

    fn json(&self, trace: &Path, more: &str) -> Value {
        let arguments = self.arguments(trace, &format!("--json {more}"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        serde_json::from_str(&self.left.done(&arguments)).expect("JSON")
    }

    fn refused(&self, trace: &Path, more: &str, code: i32) -> String {
        let arguments = self.arguments(trace, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.left.refused(&arguments, code)
    }

    fn long_replay(&self) -> (Child, [i32; 2]) {
        let side = |rig, volume, host: &str| Side {
            rig,
            volume,
            noted: self.left.stage_dir().join(format!("{host}.pid")),
        };
        let sides = [
            side(&self.left, "one", "left"),
            side(&self.right, "three", "right"),
        ];
        long_replay(&sides, |trace| {
            let volumes = "--volume left:one --volume right:three --overwrite";
            let arguments = self.arguments(trace, &format!("--agents left,right {volumes}"));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.left.spawn(&arguments)
        })
    }
}

/// Three disks, whose requests meet.
fn trace(rig: &Rig, seed: u64) -> PathBuf {
    let mut random = Rng::new(seed);
    let (mut text, mut ticks) = (String::new(), 0);
    for at in 0..6000 {
        ticks += random.below(100_000);
        let disk = at % 3;
        let op = ["Read", "Write", "Write"][random.below(3) as usize];
        let (sector, sectors) = (random.below(4096) * 8, 1 + random.below(64));
        let (offset, bytes) = (sector * 512, sectors * 512);
        writeln!(text, "{ticks},pc,{disk},{op},{offset},{bytes},0").expect("to memory");
    }
    let path = rig.stage_dir().join("three.csv");
    std::fs::write(&path, text).expect("write the trace");
    path
}

#[test]
fn a_trace_is_replayed_on_two_machines_at_once() {
    let machines = machines();
    let trace = trace(&machines.left, seed(17));
    let volumes = "--volume right:three --volume left:two --volume right:four";
    let more = format!("--speed 20 --agents left,right {volumes} --overwrite");
    let document = machines.json(&trace, &more);
    let told = document["volumes"].as_array().expect("volumes");
    let names: Vec<&str> = told.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["right:three", "left:two", "right:four"]);
    for volume in told {
        assert_eq!(volume["requests"], 2000, "{volume}");
        for key in ["wrong_sectors", "errors", "outside"] {
            assert_eq!(volume[key], 0, "{volume}");
        }
        assert!(volume["verified_sectors"].as_u64() > Some(1000), "{volume}");
    }
    let apart = document["begun_apart_ms_max"].as_f64();
    assert!(apart.is_some_and(|ms| ms < 10_000.0), "{document}");
    for (rig, name, sent) in [
        (&machines.left, "one", false),
        (&machines.left, "two", true),
        (&machines.right, "three", true),
        (&machines.right, "four", true),
    ] {
        let writes = rig.show(name)["writes"]["requests"].as_u64();
        assert_eq!(writes > Some(0), sent, "{name}");
    }
}

#[test]
fn a_replay_that_a_machine_cannot_take_part_in_does_not_begin() {
    let machines = machines();
    let trace = trace(&machines.left, seed(19));
    let three = "--volume left:one --volume left:two --volume right:three";
    for (more, code, says) in [
        (format!("--agents left,right {three}"), 4, "--overwrite"),
        (
            "--agents left --volume one --overwrite".to_owned(),
            2,
            "HOST:NAME",
        ),
        (
            format!("--agents left --overwrite {three}"),
            2,
            "right is none of --agents",
        ),
        (
            "--agents left,right --volume left:one --overwrite".to_owned(),
            2,
            "right has no volume",
        ),
        (
            "--agents=-oX --volume=-oX:one --overwrite".to_owned(),
            2,
            "no name of a machine",
        ),
        (
            "--agents left,right --volume left:one --volume right:one --overwrite".to_owned(),
            1,
            "agent right: volume one",
        ),
        (
            "--agents left,right --volume left:one --volume right:three --overwrite".to_owned(),
            2,
            "has no volume",
        ),
        (
            "--agents full --volume full:three --volume full:four --volume full:three --overwrite"
                .to_owned(),
            1,
            "TMPDIR names another place",
        ),
        (
            "--agents left,there --volume left:one --volume there:two --overwrite".to_owned(),
            1,
            "there: no such machine",
        ),
    ] {
        let said = machines.refused(&trace, &more, code);
        assert!(said.contains(says), "{more}: {said}");
    }
    for (rig, name) in [(&machines.left, "one"), (&machines.right, "three")] {
        assert_eq!(rig.show(name)["writes"]["requests"], 0, "{name}");
    }
}

#[test]
fn a_machine_that_goes_away_ends_the_replay_on_all() {
    let machines = machines();
    whoever_goes_away_ends_it_on_all(|| machines.long_replay());
}

/// The part of a machine whose disks are idle at first begins later.
#[test]
fn each_request_leaves_at_its_time_in_the_whole_trace() {
    let machines = machines();
    let path = machines.left.stage_dir().join("late.csv");
    let text = "0,pc,0,Write,0,4096,0\n30000000,pc,1,Write,0,4096,0\n";
    std::fs::write(&path, text).expect("write the trace");
    let volumes = "--volume left:one --volume right:three --overwrite";
    let document = machines.json(&path, &format!("--agents left,right {volumes}"));
    let seconds = document["seconds"].as_f64().expect("seconds");
    assert!(seconds >= 3.0, "{document}");
}
