//! `tenuto trace analyze` as users see it, and held against a second opinion.
//!
//! The second opinion is `opinion/analyze.py`, which was written from the meaning of the figures
//! and shares nothing with the program. Without Python 3 it is left out, and says so.

#[path = "analyze/ntfs.rs"]
mod ntfs;
#[path = "analyze/propose.rs"]
mod propose;

use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use workload::rng::Rng;

fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    run_in(directory, None, arguments)
}

/// With these programs only, where a directory of them is given.
fn run_in(directory: &Path, programs: Option<&Path>, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenuto"));
    if let Some(programs) = programs {
        command.env("PATH", programs);
    }
    let output = command
        .args(arguments)
        .current_dir(directory)
        .env_remove("TENUTO_SOCKET")
        .env_remove("TENUTO_CONFIG")
        .output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.expect("the binary runs");
    (
        status.code().expect("it ends by itself"),
        String::from_utf8(stdout).expect("text"),
        String::from_utf8(stderr).expect("text"),
    )
}

/// A line for the runner, which counts skips from this file and never calls them passed.
fn skip(test: &str, why: &str) {
    use std::io::Write as _;
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("TENUTO_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        writeln!(file.expect("the file of skips"), "{test}: {why}").expect("noted");
    }
}

/// Whether these programs are here; notes a skip if not.
fn have(test: &str, programs: &[&str]) -> bool {
    let missing = |it: &&&str| Command::new(it).arg("-V").output().is_err();
    let missing = programs.iter().find(missing);
    if let Some(program) = missing {
        skip(test, &format!("{program} is not installed"));
    }
    missing.is_none()
}

fn document(directory: &Path, arguments: &[&str]) -> Value {
    let (code, out, err) = run(directory, &[arguments, &["--json"]].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("one document")
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Several disks over a bit more than a day: popular places, scans, odd beginnings and lengths.
fn trace(seed: u64, lines: u64) -> String {
    let mut rng = Rng::new(seed);
    let mut text = String::new();
    let mut ticks = 128_166_372_003_061_629;
    let mut scan = 0;
    for _ in 0..lines {
        ticks += match rng.below(30) {
            0 => rng.below(2_000_000_000) * 10,
            _ => rng.below(60_000_000),
        };
        let disk = rng.below(4);
        let op = ["Read", "Write", "Write"][rng.below(3) as usize];
        let (offset, bytes) = match rng.below(5) {
            0 => {
                scan += 65_536;
                (scan, 65_536)
            }
            1 => (rng.below(1 << 33), 1 + rng.below(20_000)),
            _ => {
                let place = rng.below(2000) * 4096;
                let place = place + rng.below(3) % 2 * 512;
                (place, 4096 * (1 + rng.below(8)))
            }
        };
        // Every fiftieth comes late.
        let late = if rng.below(50) == 0 { 900_000 } else { 0 };
        let when = ticks - late;
        writeln!(text, "{when},vm,{disk},{op},{offset},{bytes},10").expect("memory");
    }
    text
}

fn close(ours: &Value, other: &Value, what: &str) {
    let (a, b) = (ours.as_f64(), other.as_f64());
    let (a, b) = (a.expect(what), b.expect(what));
    assert!(
        (a - b).abs() <= 1e-9 * b.abs().max(1.0),
        "{what}: {a}, the other says {b}"
    );
}

#[test]
fn a_second_opinion_finds_the_same_figures() {
    if !have("a_second_opinion_finds_the_same_figures", &["python3"]) {
        return;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/opinion/analyze.py");
    for seed in [1, 20261122] {
        let directory = directory();
        std::fs::write(directory.path().join("t.csv"), trace(seed, 4000)).expect("written");
        let ours = document(directory.path(), &["trace", "analyze", "t.csv"]);
        // At the points of our curve, because it says nothing between them.
        let points = ours["miss_ratio"]["points"].as_array().expect("points");
        let points: Vec<&Value> = points.iter().step_by(points.len() / 8).collect();
        let sizes = points.iter().map(|it| it["cache_bytes"].to_string());
        let output = Command::new("python3")
            .arg(&script)
            .arg(directory.path().join("t.csv"))
            .args(sizes)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let other: Value = serde_json::from_slice(&output.stdout).expect("one document");
        compare(&ours, &other);
        for (at, point) in points.iter().enumerate() {
            close(
                &point["miss_ratio"],
                &other["miss_ratios"][at],
                &format!("{point}"),
            );
        }
    }
}

fn compare(ours: &Value, other: &Value) {
    for key in [
        "requests",
        "reads",
        "writes",
        "read_bytes",
        "write_bytes",
        "write_share",
        "write_byte_share",
    ] {
        close(&ours[key], &other[key], key);
    }
    for at in 0..6 {
        let (ours, other) = (
            &ours["rewrites"]["rewritten_bytes"][at],
            &other["rewritten_bytes"],
        );
        close(ours, &other[at], &format!("rewritten, interval {at}"));
    }
    let seen = &ours["reads_seen_before"];
    for (who, key) in [
        ("by_disk", "seen_by_disk"),
        ("by_cluster", "seen_by_cluster"),
    ] {
        close(&seen[who]["request_share"], &other[key][0], key);
        close(&seen[who]["byte_share"], &other[key][1], key);
    }
    for key in ["read", "written", "any"] {
        let set = &ours["working_set"][format!("{key}_bytes")];
        close(set, &other[format!("{key}_set_bytes")], key);
    }
    let disks = ours["disks"].as_array().expect("disks");
    assert_eq!(disks.len(), 4);
    let mut most: f64 = 0.0;
    for disk in disks {
        let name = disk["name"].as_str().expect("a name");
        close(
            &disk["divergence_bytes"],
            &other["divergence_bytes"][name],
            name,
        );
        most = most.max(disk["divergence_bytes"].as_f64().expect("bytes"));
    }
    let last = ours["divergence"]["over_time"]
        .as_array()
        .and_then(|it| it.last());
    assert_eq!(last.expect("a point")["most_bytes"].as_f64(), Some(most));
    let days = ours["rewrites"]["days"].as_array().expect("days");
    let written: f64 = days
        .iter()
        .filter_map(|it| it["written_bytes"].as_f64())
        .sum();
    close(&written.into(), &other["write_bytes"], "the days together");
    assert!(days.len() > 1, "the trace is longer than a day");
}

const PATHS: &str = "fio version 3 iolog\n0 a add\n0 a open\n0 a read 0 4096\n\
    1000 a write 0 4096\n2000000 a read 0 8192\n9000000 a write 4096 4096\n9000001 a close\n";

#[test]
fn peaks_periods_and_words_are_there() {
    let directory = directory();
    std::fs::write(directory.path().join("a.log"), PATHS).expect("written");
    let asked = [
        "trace",
        "analyze",
        "a.log",
        "--period",
        "1s..3s",
        "--peak-minutes",
        "1",
    ];
    let shown = document(directory.path(), &asked);
    assert_eq!(shown["traces"][0]["format"], "fio");
    assert_eq!(shown["periods"][0]["reads"], 1);
    assert_eq!(
        shown["periods"][0]["reads_seen_before"]["by_disk"]["byte_share"],
        0.5
    );
    assert_eq!(
        shown["periods"][0]["reads_seen_before"]["by_disk"]["request_share"],
        0.0
    );
    assert_eq!(shown["peaks"][0]["requests"], 4);
    assert_eq!(shown["peaks"][0]["disks_with_5_percent"], 1);
    let (code, out, _) = run(directory.path(), &asked);
    assert_eq!(code, 0);
    for words in [
        "Busiest periods",
        "Periods asked for",
        "Reads that miss",
        "00:00:01",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

#[test]
fn a_report_has_its_plots_and_asks_for_nothing_from_elsewhere() {
    let directory = directory();
    std::fs::write(directory.path().join("t.csv"), trace(3, 2000)).expect("written");
    let arguments = ["trace", "analyze", "t.csv", "--html", "t.html"];
    let (code, _, err) = run(directory.path(), &arguments);
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(directory.path().join("t.html")).expect("written");
    for title in [
        "Requests",
        "Share of writes",
        "Who makes the peaks",
        "Sizes of requests",
        "Writes that a newer one replaces",
        "Divergence from the base",
        "Working set",
        "Reads that miss",
    ] {
        assert!(page.contains(&format!("<h2>{title}</h2>")), "{title}");
    }
    assert_eq!(
        page.matches("<svg ").count(),
        page.matches("</svg>").count()
    );
    assert!(page.matches("<svg ").count() >= 9 && page.contains("prefers-color-scheme:dark"));
    for outside in ["http:", "https:", "<script", "@import", "NaN", "inf"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn several_traces_are_several_machines() {
    let directory = directory();
    for name in ["a.csv", "b.csv"] {
        let text = "1,100,28,4096,0\n1,200,2a,4096,8\n";
        std::fs::write(directory.path().join(name), text).expect("written");
    }
    let shown = document(directory.path(), &["trace", "analyze", "a.csv", "b.csv"]);
    assert_eq!(shown["disks"][0]["name"], "a");
    assert_eq!(shown["disks"][1]["name"], "b");
    let seen = &shown["reads_seen_before"];
    assert_eq!(seen["by_disk"]["byte_share"], 0.0);
    assert_eq!(seen["by_cluster"]["byte_share"], 0.5);
    assert_eq!(
        shown["divergence"]["over_time"].as_array().map(Vec::len),
        Some(101)
    );
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let directory = directory();
    let place = directory.path();
    std::fs::write(place.join("a.csv"), "1,100,28,4096,0\n").expect("written");
    std::fs::write(place.join("bad"), "system /windows\nmail\n").expect("written");
    for (arguments, code, words) in [
        ("trace analyze none", 1, "none: "),
        ("trace analyze bad", 1, "no format that is known"),
        ("trace analyze a.csv --categories bad", 1, "line 2"),
        ("trace analyze a.csv --durability bad", 1, "line 2"),
        ("trace analyze - -", 2, "standard input"),
        ("trace analyze a.csv --period 2h..90m", 2, "90m..2h"),
        ("trace analyze a.csv --memory 5", 2, "1MiB"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (ended, _, err) = run(place, &arguments);
        assert_eq!(ended, code, "{err}");
        assert!(err.contains(words), "{err}");
    }
}

/// A file system with one file of random bytes, and where in it these bytes lie.
fn file_system(place: &Path) -> (Vec<u8>, usize) {
    let mut rng = Rng::new(5);
    let content: Vec<u8> = (0..300_000).map(|_| rng.word() as u8).collect();
    let home = place.join("tree/opt/ann");
    std::fs::create_dir_all(&home).expect("made");
    std::fs::write(home.join("a file"), &content).expect("written");
    let image = place.join("fs.img");
    let file = std::fs::File::create(&image).expect("made");
    file.set_len(32 << 20).expect("grown");
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-d"])
        .arg(place.join("tree"))
        .arg(&image)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let bytes = std::fs::read(&image).expect("read");
    let blocks = bytes.chunks(1024);
    let at = blocks.enumerate().find(|it| it.1 == &content[..1024]);
    let at = at.expect("the file is in it").0 * 1024;
    (bytes, at)
}

#[test]
fn requests_find_the_file_of_an_image() {
    let programs = ["mkfs.ext4", "debugfs", "partx"];
    if !have("requests_find_the_file_of_an_image", &programs) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let (bytes, offset) = file_system(place);
    // The same once more, in the first partition of a disk.
    let start = 2048 * 512;
    let mut disk = vec![0; start];
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    let sectors = (bytes.len() / 512) as u32;
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend_from_slice(&bytes);
    std::fs::write(place.join("disk.img"), disk).expect("written");
    for (image, offset) in [("fs.img", offset), ("disk.img", offset + start)] {
        let sector = offset / 512;
        let text = format!(
            "1,1,2a,1024,{sector}\n1,2,28,512,{}\n1,3,2a,4096,{}\n",
            sector + 1,
            offset / 512 + 40_000
        );
        std::fs::write(place.join("vm.csv"), text).expect("written");
        let image = format!("vm={image}");
        let asked = [
            "trace", "analyze", "vm.csv", "--image", &image, "--image", "x=fs.img",
        ];
        let shown = document(place, &asked);
        let paths = shown["paths"].as_array().expect("paths");
        assert_eq!(paths.len(), 1, "{paths:?}");
        assert_eq!(paths[0]["path"], "/opt/ann/a file");
        assert_eq!(paths[0]["requests"], 2);
        assert_eq!(shown["categories"][0]["name"], "programs");
        assert_eq!(shown["categories"][1]["name"], "unknown");
        assert_eq!(shown["images_without_disk"][0], "x");
        std::fs::write(place.join("late"), "late /usr\n").expect("written");
        let own = [&asked[..], &["--durability", "late"]].concat();
        for (asked, class) in [(&asked[..], "write-back"), (&own, "write-through")] {
            let shown = document(place, asked);
            let classes = shown["durability"].as_array().expect("classes");
            let of = |name: &str| classes.iter().find(|it| it["class"] == name);
            let found = of(class).expect("the file's");
            assert_eq!(
                (&found["writes"], &found["write_bytes"]),
                (&1.into(), &1024.into())
            );
            assert_eq!(found["share_of_writes"], 0.5);
            assert_eq!(of("without a path").expect("the other")["writes"], 1);
            assert_eq!(classes.len(), 2);
        }
        let (_, out, _) = run(place, &own);
        assert!(out.contains("Writes by durability"), "{out}");
    }
    let asked = ["trace", "analyze", "vm.csv", "--image", "vm=vm.csv"];
    let (code, _, err) = run(place, &asked);
    assert!(code == 1 && err.contains("no ext2"), "{err}");
}
