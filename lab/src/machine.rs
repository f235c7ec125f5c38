//! What a figure was measured on.
//!
//! Always true: what this machine does not tell is null, never guessed. The commit is that of the
//! source tree as it lies now, where it still lies where this binary was built.

use serde_json::{Value, json};
use std::fs;
use std::process::Command;

pub fn document() -> Value {
    json!({
        "cpu": cpu(),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "load_average": line("/proc/loadavg"),
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
    })
}

/// One line for people.
pub fn text() -> String {
    let or = |it: Option<String>| it.unwrap_or_else(|| "unknown".into());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (version, load) = (env!("CARGO_PKG_VERSION"), or(line("/proc/loadavg")));
    format!(
        "{}, {cores} cores, Linux {}, load {}, tenuto {version}, commit {}",
        or(cpu()),
        or(line("/proc/sys/kernel/osrelease")),
        load.split(' ').next().unwrap_or("unknown"),
        or(commit()),
    )
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned)
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let found = text.lines().find(|line| line.starts_with("model name"))?;
    Some(found.split_once(':')?.1.trim().to_owned())
}

fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR")]);
    git.args(["describe", "--always", "--dirty", "--exclude=*"]);
    let done = git.output().ok().filter(|done| done.status.success())?;
    let text = String::from_utf8(done.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
