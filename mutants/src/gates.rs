//! The suites that may notice a change, from the quickest.
//!
//! Owns their programs and how one is run. Always true: a suite that passes, and reaches the
//! place, is the only thing that counts as not noticed; one that fails, hangs or eats the memory
//! has noticed.

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
        let noticed = gate.run("TENUTO_REACHED", list);
        assert!(noticed.is_none(), "{name} fails as it is: {noticed:?}");
        let lines = std::fs::read_to_string(list).unwrap_or_default();
        gate.reaches = lines.lines().filter_map(|it| it.parse().ok()).collect();
        let start = Instant::now();
        assert!(gate.run("TENUTO_MUTANT", "0").is_none(), "{name} fails");
        gate.takes = start.elapsed();
        gate
    }

    /// What it says of a change; nothing where it passes.
    pub fn asks(&self, number: u32) -> Option<String> {
        self.run("TENUTO_MUTANT", &number.to_string())
    }

    fn run(&self, variable: &str, value: &str) -> Option<String> {
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
        if hangs {
            return Some(format!("did not end in {patience:.0?}"));
        }
        let ended = (!status.success()).then(|| format!("{status}"));
        said.or(ended)
    }
}

/// The first line that says that a test has failed.
fn sign(out: ChildStdout) -> Option<String> {
    let lines = BufReader::new(out).split(b'\n').map_while(Result::ok);
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.find(|line| SIGNS.iter().any(|it| line.contains(it)))
}
