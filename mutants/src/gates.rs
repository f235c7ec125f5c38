//! The suites that may notice a change, from the quickest.
//!
//! Owns their programs and how one is run. Always true: a suite that fails, or ends by itself
//! before its end, has noticed. One that is too slow has not: the machine may be busy.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

/// Memory a suite may have, in KiB.
const MEMORY_KIB: u64 = 6 << 20;
/// What a suite may take: so many times what it takes by itself, and a while.
const PATIENCE: u32 = 6;
const PATIENCE_LEAST: Duration = Duration::from_secs(15);
/// What says that a test has failed, long before its program ends.
const SIGNS: &[&str] = &["... FAILED", "again with TENUTO_SIM_FIRST", "SIGABRT"];

/// What a suite says of a change.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Passes,
    /// In its words.
    Fails(String),
    TooSlow,
}

pub struct Gate {
    pub name: String,
    program: PathBuf,
    seeds: u64,
    /// Where its tests expect to be.
    directory: PathBuf,
    pub takes: Duration,
    pub reaches: BTreeSet<u32>,
}

impl Gate {
    /// Runs it once as it is; it has to pass.
    pub fn new(name: &str, program: &Path, seeds: u64, directory: &Path) -> Gate {
        let mut gate = Gate {
            name: name.to_owned(),
            program: program.to_owned(),
            seeds,
            directory: directory.to_owned(),
            takes: Duration::from_secs(600),
            reaches: BTreeSet::new(),
        };
        let list = directory.join(format!("reached-{name}"));
        let _ = std::fs::remove_file(&list);
        let list = list.to_str().expect("a path in UTF-8");
        let answer = gate.run("TENUTO_REACHED", list);
        assert_eq!(answer, Answer::Passes, "{name} as it is");
        let lines = std::fs::read_to_string(list).unwrap_or_default();
        gate.reaches = lines.lines().filter_map(|it| it.parse().ok()).collect();
        let start = Instant::now();
        assert_eq!(gate.asks(0), Answer::Passes, "{name} as it is");
        gate.takes = start.elapsed();
        gate
    }

    /// What it says of a change; 0 is none.
    pub fn asks(&self, number: u32) -> Answer {
        self.run("TENUTO_MUTANT", &number.to_string())
    }

    fn run(&self, variable: &str, value: &str) -> Answer {
        // The shell becomes the program, so that what is killed is the program.
        let script = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" --nocapture 2>&1");
        let mut child = Command::new("bash")
            .args(["-c", &script])
            .arg(&self.program)
            .current_dir(&self.directory)
            .env(variable, value)
            .env("TENUTO_SIM_SEEDS", self.seeds.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let out = child.stdout.take().expect("its output");
        let child = Mutex::new(child);
        let kill = || child.lock().expect("no thread panics").kill();
        let patience = self.takes * PATIENCE + PATIENCE_LEAST;
        let (ended, wait) = mpsc::channel::<()>();
        let (said, hangs) = std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                let hangs = wait.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout);
                if hangs {
                    let _ = kill();
                }
                hangs
            });
            let said = sign(out);
            drop(ended);
            (said, watch.join().expect("no thread panics"))
        });
        let mut child = child.into_inner().expect("no thread panics");
        if said.is_some() {
            let _ = child.kill();
        }
        let status = child.wait().expect("a program that ends");
        match said {
            _ if hangs => Answer::TooSlow,
            Some(line) => Answer::Fails(line),
            None if status.success() => Answer::Passes,
            None => Answer::Fails(format!("{status}")),
        }
    }
}

/// The first line that says that a test has failed.
fn sign(out: ChildStdout) -> Option<String> {
    let lines = BufReader::new(out).split(b'\n').map_while(Result::ok);
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.find(|line| SIGNS.iter().any(|it| line.contains(it)))
}
