//! The demonstration from the outside: with real guests, without anything, and interrupted.
//!
//! Each runs in a directory of its own that is also its place for temporary files, so that what is
//! left behind is seen.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{binary, have, skip, text_of, wait_until};

/// Alone it takes half a minute; emulated guests may share two cores with a build.
const RUN_TIMEOUT: Duration = Duration::from_secs(400);
const PATIENCE: Duration = Duration::from_secs(60);
/// A guest that nobody ends takes three seconds to notice that its disk is gone.
const AT_ONCE: Duration = Duration::from_secs(1);

fn demo(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .arg("demo")
        .args(arguments)
        .current_dir(directory)
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("tenuto-t")
        .tempdir()
        .expect("make a directory")
}

/// What the demonstration with this process id has in shared memory and in its directory.
fn left_behind(directory: &Path, pid: u32) -> Vec<String> {
    let name = format!("tenuto-demo-{pid}");
    let places = [directory, Path::new("/dev/shm")];
    let left = places.iter().map(|place| place.join(&name));
    left.filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect()
}

/// Every QEMU that has this directory on its command line.
fn guests_of(directory: &Path) -> BTreeSet<u32> {
    qemu_with(directory, "")
}

/// Those of them that have this there, too.
fn qemu_with(directory: &Path, word: &str) -> BTreeSet<u32> {
    let mark = directory.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").expect("list processes");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with("/")
            && line.contains("qemu-system")
            && line.contains(&mark)
            && line.contains(word)
    })
    .collect()
}

/// The machine has what the demonstration needs for guests; notes a skip if not.
fn can_boot(test: &str) -> bool {
    if !have(test, &["qemu-system-x86_64", "busybox", "mke2fs"]) {
        return false;
    }
    let kernels = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let readable = kernels
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"))
        .any(|entry| std::fs::File::open(entry.path()).is_ok());
    if !readable {
        skip(test, "no readable kernel in /boot");
    }
    readable
}

fn run(directory: &Path, mut command: Command) -> (Output, u32) {
    let child = command.spawn().expect("start the demonstration");
    let pid = child.id();
    let begun = Instant::now();
    let output = child.wait_with_output().expect("its output");
    assert!(begun.elapsed() < RUN_TIMEOUT, "{}", text_of(&output));
    assert_eq!(left_behind(directory, pid), [""; 0]);
    assert_eq!(guests_of(directory), BTreeSet::new());
    (output, pid)
}

/// Nothing in the page makes a reader's program ask a network for anything.
fn needs_nothing_else(page: &str) {
    for word in [
        "http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link",
    ] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert!(page.contains("prefers-color-scheme:dark"));
}

#[test]
fn the_demonstration_boots_guests_and_compares_the_kept_disk() {
    let test = "the_demonstration_boots_guests_and_compares_the_kept_disk";
    if !can_boot(test) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let arguments = [
        "--client",
        "qemu",
        "--guests",
        "2",
        "--json",
        "--html",
        "page.html",
    ];
    let (output, _) = run(place, demo(place, &arguments));
    assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["driver"], "qemu");
    assert_eq!(document["guests"], 3);
    let number = |side: &str, path: &str| {
        let value = document.pointer(&format!("/{side}/{path}"));
        let value = value.and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{side}/{path} in {document}"))
    };
    for side in ["uncached", "cached"] {
        assert_eq!(document[side]["boots"].as_array().map(Vec::len), Some(3));
        for path in [
            "boot_median_seconds",
            "rounds/done",
            "reads",
            "writes",
            "flushes",
        ] {
            assert!(number(side, path) > 0.0, "{side}/{path} in {document}");
        }
        for kind in ["read", "write", "flush"] {
            assert!(number(side, &format!("latency_us/{kind}/p99")) > 0.0);
        }
        assert_eq!(number(side, "origin/errors"), 0.0);
        // 96 MiB, by the checksum that the guest's disk had.
        assert_eq!(number(side, "verified_blocks"), 24_576.0);
    }
    // The second clone finds in the cache what the first one read.
    assert!(number("cached", "origin/reads") < 0.75 * number("uncached", "origin/reads"));
    assert!(number("cached", "origin/writes") < number("uncached", "origin/writes") / 2.0);
    assert_eq!(number("uncached", "ssd/write_bytes"), 0.0);
    assert!(number("cached", "ssd/write_bytes") > 0.0);
    let page = std::fs::read_to_string(place.join("page.html")).expect("the page");
    needs_nothing_else(&page);
    assert!(page.contains("3 real Linux guests"));
}

#[test]
fn the_demonstration_without_other_programs_says_what_is_missing() {
    let directory = directory();
    let place = directory.path();
    let mut command = demo(place, &["--guests", "2"]);
    command.env("PATH", "");
    let (output, _) = run(place, command);
    assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("no guest was booted: qemu-system-"), "{text}");
    assert!(text.contains("is not on the PATH"), "{text}");
    for name in [
        "origin reads",
        "origin writes",
        "flush p99, ms",
        "SSD written, MiB",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
    let page = std::fs::read_to_string(place.join("tenuto-demo.html")).expect("the page");
    needs_nothing_else(&page);
    assert!(page.contains("is not on the PATH"));
    // Who asks for guests is told why there are none.
    let mut command = demo(place, &["--client", "qemu"]);
    command.env("PATH", "");
    let (output, _) = run(place, command);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    assert!(text_of(&output).contains("is not on the PATH"));
}

/// Ends a child that a failed test leaves.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_demonstration_that_is_interrupted_leaves_nothing_behind() {
    let test = "a_demonstration_that_is_interrupted_leaves_nothing_behind";
    if !can_boot(test) {
        return;
    }
    for signal in [libc::SIGINT, libc::SIGKILL] {
        let directory = directory();
        let place = directory.path();
        let mut command = demo(place, &["--client", "qemu", "--guests", "1"]);
        let mut child = Ended(command.spawn().expect("start the demonstration"));
        let pid = child.0.id();
        // One with a disk: what is only tried for a moment ends by itself.
        wait_until("a guest runs", PATIENCE, || {
            !qemu_with(place, "nbd+unix").is_empty()
        });
        // SAFETY: plain call with a process id that is ours until it is waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "signal it");
        let mut status = None;
        wait_until("it ends", PATIENCE, || {
            status = child.0.try_wait().expect("ask for it");
            status.is_some()
        });
        wait_until("its guests end with it", AT_ONCE, || {
            guests_of(place).is_empty()
        });
        if signal == libc::SIGINT {
            assert_eq!(status.and_then(|it| it.code()), Some(1));
            assert_eq!(left_behind(place, pid), [""; 0]);
            assert!(!place.join("tenuto-demo.html").exists());
            continue;
        }
        // What a killed one could not remove, the next one does.
        assert_ne!(left_behind(place, pid), [""; 0]);
        let mut command = demo(place, &["--guests", "1"]);
        command.env("PATH", "");
        run(place, command);
        assert_eq!(left_behind(place, pid), [""; 0]);
    }
}
