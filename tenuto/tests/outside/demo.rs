//! The demonstration from the outside: by itself, beside qcow2 overlays, with real guests, without
//! other programs, and interrupted.
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
const RUN_TIMEOUT: Duration = Duration::from_secs(800);
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

/// A number of the document for scripts.
fn number(document: &Value, path: &str) -> f64 {
    let value = document.pointer(path).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{path} in {document}"))
}

/// The document on standard output.
fn document(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", text_of(output));
    serde_json::from_slice(&output.stdout).expect("one document")
}

/// The storage sees less of what the guests did, in whatever way they did it.
fn spares_the_storage(document: &Value) {
    let at = |side: &str, what: &str| number(document, &format!("/{side}/origin/{what}"));
    for side in ["uncached", "qcow2"] {
        // The second clone finds in the cache what the first one read.
        assert!(at("cached", "reads") < 0.75 * at(side, "reads"));
        assert!(at("cached", "writes") < at(side, "writes") / 2.0);
        assert!(at("cached", "syncs") < at(side, "syncs") / 2.0);
        assert_eq!(number(document, &format!("/{side}/ssd/write_bytes")), 0.0);
    }
    assert!(number(document, "/cached/ssd/write_bytes") > 0.0);
}

#[test]
fn the_demonstration_boots_guests_and_compares_the_kept_disk() {
    let test = "the_demonstration_boots_guests_and_compares_the_kept_disk";
    if !can_boot(test) || !have(test, &["qemu-nbd", "qemu-img"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let client = ["--client", "qemu", "--guests", "2"];
    let form = ["--json", "--html", "page.html"];
    let (output, _) = run(place, demo(place, &[&client[..], &form].concat()));
    let document = document(&output);
    assert_eq!(document["driver"], "qemu");
    assert_eq!(document["guests"], 3);
    for side in ["uncached", "qcow2", "cached"] {
        assert_eq!(document[side]["boots"].as_array().map(Vec::len), Some(3));
        for path in ["boot_median_seconds", "rounds/done", "reads", "flushes"] {
            assert!(number(&document, &format!("/{side}/{path}")) > 0.0);
        }
        // Only a client that is its own clock tells latencies.
        assert!(document[side]["latency_us"].is_null());
        assert_eq!(number(&document, &format!("/{side}/origin/errors")), 0.0);
        // 96 MiB, by the checksum that the guest's disk had.
        let verified = format!("/{side}/verified_blocks");
        assert_eq!(number(&document, &verified), 24_576.0);
    }
    spares_the_storage(&document);
    let page = std::fs::read_to_string(place.join("page.html")).expect("the page");
    needs_nothing_else(&page);
    assert!(page.contains("3 real Linux guests"));
}

#[test]
fn the_demonstration_measures_each_policy_beside_qcow2_overlays() {
    let test = "the_demonstration_measures_each_policy_beside_qcow2_overlays";
    if !have(test, &["qemu-nbd", "qemu-img"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let arguments = ["--client", "builtin", "--guests", "2", "--json"];
    let (output, _) = run(place, demo(place, &arguments));
    let document = document(&output);
    assert_eq!(document["driver"], "built-in client");
    assert!(document["not_measured"].is_null());
    for side in ["uncached", "qcow2", "cached"] {
        for disk in ["kept", "clones"] {
            for kind in ["read_at_boot", "read", "write", "flush"] {
                let of = |quantile| {
                    let path = format!("/{side}/latency_us/{disk}/{kind}/{quantile}");
                    number(&document, &path)
                };
                let (p50, p99) = (of("p50"), of("p99"));
                assert!(0.0 < p50 && p50 <= p99, "{side}/{disk}/{kind}");
                // On raw images each request goes to a storage that takes 5 ms.
                let is_far = side == "uncached";
                assert!(!is_far || p50 >= 5_000.0, "{side}/{disk}/{kind}: {p50}");
            }
        }
        assert_eq!(number(&document, &format!("/{side}/origin/errors")), 0.0);
        // 256 MiB, block by block.
        let verified = format!("/{side}/verified_blocks");
        assert_eq!(number(&document, &verified), 65_536.0);
    }
    spares_the_storage(&document);
    let page = std::fs::read_to_string(place.join("tenuto-demo.html")).expect("the page");
    needs_nothing_else(&page);
    assert!(page.contains("qcow2 overlays served by QEMU"));
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
    let missing = "not measured: qemu-nbd is not installed";
    assert!(text.contains(missing), "{text}");
    // What the storage no longer sees comes first, then latencies by policy, then times.
    let mut lines = text.lines();
    for name in [
        "At the storage",
        "  reads ",
        "  syncs ",
        "A request takes, p50 / p99, ms",
        "  kept disk (write-back), flush ",
        "  clone (ephemeral), flush ",
        "Times, s",
        "On the host",
        "  SSD written, MiB",
    ] {
        let line = lines.find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is missing, or too early: {text}"));
        let is_clone = name.contains("(ephemeral), flush");
        assert!(!is_clone || line.contains("does nothing"), "{line}");
    }
    let page = std::fs::read_to_string(place.join("tenuto-demo.html")).expect("the page");
    needs_nothing_else(&page);
    assert!(page.contains("is not on the PATH") && page.contains(missing));
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
            !qemu_with(place, "file.driver=nbd").is_empty()
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
        let mut command = demo(place, &["--client", "builtin", "--guests", "1"]);
        let mut next = Ended(command.spawn().expect("start the demonstration"));
        wait_until("what was left is swept", PATIENCE, || {
            left_behind(place, pid).is_empty()
        });
        crate::common::signal(next.0.id() as i32, libc::SIGINT);
        wait_until("it ends", PATIENCE, || {
            next.0.try_wait().expect("ask for it").is_some()
        });
        assert_eq!(left_behind(place, next.0.id()), [""; 0]);
    }
}
