//! `tenuto image info|check|map` on files of QEMU's, on wrong ones, and new files under its tools.

use super::{has_qemu, must, run};
use host::lock::{Mode, Patience, acquire_image};
use image::create::{Backing, BackingFormat, Shape, create};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn tenuto(directory: &Path, arguments: &[&str]) -> Run {
    let done = run(directory, env!("CARGO_BIN_EXE_tenuto"), arguments);
    Run {
        code: done.status.code(),
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

fn document(directory: &Path, verb: &str, file: &str) -> Value {
    let done = tenuto(directory, &["image", verb, file, "--json"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    serde_json::from_str(&done.out).expect("one document")
}

/// A file of our own making.
fn write(directory: &Path, name: &str, size: u64, shape: Shape, backing: Option<Backing>) {
    let made = create(size, shape, backing).expect("a right size");
    let file = std::fs::File::create(directory.join(name)).expect("made");
    file.set_len(made.file_bytes).expect("sized");
    for extent in &made.extents {
        file.write_all_at(&extent.bytes, extent.at)
            .expect("written");
    }
}

/// A file of our own making over a qcow2 file.
fn over(directory: &Path, name: &str, below: &str) {
    let backing = Backing {
        name: below,
        format: BackingFormat::Qcow2,
    };
    write(directory, name, MIB, Shape::Plain, Some(backing));
}

fn patch(directory: &Path, name: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options()
        .write(true)
        .open(directory.join(name));
    file.expect("opened")
        .write_all_at(bytes, at)
        .expect("written");
}

#[test]
fn an_image_is_shown_checked_and_mapped() {
    if !has_qemu("an_image_is_shown_checked_and_mapped") {
        return;
    }
    let house = tempfile::tempdir().expect("a directory");
    let place = house.path();
    let img = |arguments: &[&str]| must(place, "qemu-img", arguments);
    img(&["create", "-q", "-f", "raw", "base", "1M"]);
    let options = "cluster_size=64k,extended_l2=on,compression_type=zstd";
    img(&[
        "create", "-q", "-f", "qcow2", "-o", options, "-b", "base", "-F", "raw", "top", "2M",
    ]);
    let io = [
        "-f",
        "qcow2",
        "-c",
        "write -P 1 64k 4k",
        "-c",
        "write -z 128k 2k",
        "top",
    ];
    must(place, "qemu-io", &io);
    must(
        place,
        "qemu-io",
        &["-f", "qcow2", "-c", "write -c -P 7 192k 64k", "top"],
    );
    img(&["snapshot", "-c", "before", "top"]);

    let shown = document(place, "info", "top");
    let facts = [
        ("format", Value::from("qcow2")),
        ("version", 3.into()),
        ("size_bytes", (2 * MIB).into()),
        ("cluster_bytes", 65_536.into()),
        ("unit_bytes", 2048.into()),
        ("compression", "zstd".into()),
        ("backing", "base".into()),
        ("backing_format", "raw".into()),
        ("guard", false.into()),
        ("chain_error", Value::Null),
    ];
    for (key, value) in facts {
        assert_eq!(shown[key], value, "{key}: {shown:#}");
    }
    assert_eq!(shown["snapshots"][0]["name"], "before");
    assert_eq!(shown["chain"][1]["file"], "base");
    let text = tenuto(place, &["image", "info", "top"]).out;
    assert!(
        text.contains("before (id 1)") && text.contains("base (raw, 1 MiB)"),
        "{text}"
    );

    let checked = document(place, "check", "top");
    assert_eq!(
        (&checked["corruptions"], &checked["leaks"]),
        (&0.into(), &0.into())
    );
    assert_eq!(checked["compressed_clusters"], 1);
    let text = tenuto(place, &["image", "check", "top"]).out;
    assert_eq!(
        text,
        "image top: no errors, no leaks; 2 of 32 clusters allocated\n"
    );

    let map = document(place, "map", "top");
    let kinds: Vec<(u64, &str, &Value)> = map["extents"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| {
            (
                it["length"].as_u64().expect("it"),
                it["kind"].as_str().expect("it"),
                &it["depth"],
            )
        })
        .collect();
    let (top, base) = (Value::from(0), Value::from(1));
    let seen = [
        (65_536, "data", &base),
        (4096, "data", &top),
        (61_440, "data", &base),
        (2048, "zero", &top),
        (63_488, "data", &base),
        (65_536, "compressed", &top),
        (MIB - 256 * 1024, "data", &base),
        (MIB, "none", &Value::Null),
    ];
    assert_eq!(kinds, seen, "{map:#}");
    let text = tenuto(place, &["image", "map", "top"]).out;
    assert_eq!(text.lines().count(), 9, "{text}");
}

#[test]
fn a_check_counts_leaks_and_ends_with_code_5_where_tables_are_wrong() {
    let house = tempfile::tempdir().expect("a directory");
    let place = house.path();
    write(place, "a", MIB, Shape::Plain, None);
    // The refcount of a cluster behind the last one, and the file as long as that.
    patch(place, "a", 2 * 65_536 + 8, &[0, 1]);
    let file = std::fs::File::options().write(true).open(place.join("a"));
    file.expect("opened").set_len(5 * 65_536).expect("sized");
    let checked = document(place, "check", "a");
    assert_eq!(
        (&checked["corruptions"], &checked["leaks"]),
        (&0.into(), &1.into())
    );
    let text = tenuto(place, &["image", "check", "a"]).out;
    assert!(
        text.contains("1 clusters leaked (64 KiB), which `qemu-img check -r leaks a`"),
        "{text}"
    );
    // An L2 table where the header is.
    patch(place, "a", 3 * 65_536, &[0x80, 0, 0, 0, 0, 0, 0x02, 0]);
    for json in [&[][..], &["--json"]] {
        let done = tenuto(place, &[&["image", "check", "a"], json].concat());
        assert_eq!(done.code, Some(5), "{}", done.err);
        assert!(
            done.err.contains("errors in its tables, one is that"),
            "{}",
            done.err
        );
        assert_eq!(done.err.lines().count(), 1);
    }
    let read = tenuto(place, &["image", "map", "a"]);
    assert_eq!(read.code, Some(5), "{}", read.err);
    assert!(
        read.err.contains("an L2 table inside a cluster"),
        "{}",
        read.err
    );
}

/// A file that is made wrong, the code that a map of it ends with, and words of its one line.
type Case = (&'static str, fn(&Path), i32, &'static str);

const REFUSED: [Case; 17] = [
    ("missing", |_| {}, 1, "image bad: cannot open it"),
    (
        "no backing",
        |it| over(it, "bad", "gone"),
        1,
        "gone: cannot open it: no such file",
    ),
    (
        "loop",
        |it| over(it, "bad", "bad"),
        2,
        "is a backing of itself",
    ),
    (
        "long loop",
        |it| {
            over(it, "bad", "b");
            over(it, "b", "bad");
        },
        2,
        "qemu-img rebase -u -b FILE",
    ),
    (
        "deep",
        |it| {
            for number in 0..70 {
                over(it, &format!("d{number}"), &format!("d{}", number + 1));
            }
            over(it, "bad", "d0");
        },
        2,
        "is file 64 of its chain",
    ),
    (
        "protocol",
        |it| over(it, "bad", "nbd://h/e"),
        2,
        "has its backing behind nbd:",
    ),
    (
        "json key",
        |it| {
            let file = r#"{"driver":"file","filename":"/x","locking":"off"}"#;
            let name = &format!(r#"json:{{"driver":"qcow2","file":{file}}}"#);
            over(it, "bad", name);
        },
        2,
        "whose key \"file.locking\" is not in this version",
    ),
    (
        "json driver",
        |it| {
            over(
                it,
                "bad",
                r#"json:{"driver":"raw","file":{"driver":"host_device","filename":"/x"}}"#,
            );
        },
        2,
        "whose key \"file.driver\"",
    ),
    (
        "json relative",
        |it| {
            over(it, "bad", r#"json:{"driver":"qcow2","file.filename":"x"}"#);
        },
        2,
        "depends on where a program was started",
    ),
    (
        "no json",
        |it| over(it, "bad", "json:{"),
        2,
        "which is no JSON",
    ),
    (
        "format",
        |it| {
            over(it, "bad", "b");
            // The format of its backing follows the header.
            patch(it, "bad", 112 + 8, b"vmdk\0");
            patch(it, "bad", 112 + 7, &[4]);
        },
        2,
        "says that its backing is \"vmdk\"",
    ),
    (
        "unstated",
        |it| {
            write(it, "c", MIB, Shape::Plain, None);
            over(it, "b", "c");
            over(it, "bad", "b");
            // No length: as if nothing was said.
            patch(it, "bad", 112, &[0, 0, 0, 9]);
        },
        2,
        "does not say what its backing",
    ),
    (
        "other format",
        |it| {
            std::fs::write(it.join("bad"), [&b"KDMV"[..], &[0; 8192]].concat()).expect("written");
        },
        2,
        "look like vmdk",
    ),
    (
        "feature",
        |it| {
            write(it, "bad", MIB, Shape::Plain, None);
            patch(it, "bad", 72, &[0x40]);
        },
        2,
        "needs features that are not known here: bit 62",
    ),
    (
        "encrypted",
        |it| {
            write(it, "bad", MIB, Shape::Plain, None);
            patch(it, "bad", 32, &[0, 0, 0, 1]);
        },
        2,
        "is encrypted, which is not read in this version",
    ),
    (
        "data file",
        |it| {
            write(it, "bad", MIB, Shape::Plain, None);
            patch(it, "bad", 79, &[4]);
        },
        2,
        "external data file, which is not read in this version",
    ),
    (
        "broken",
        |it| {
            write(it, "bad", MIB, Shape::Plain, None);
            patch(it, "bad", 40, &[0x7f]);
        },
        5,
        "has its L1 table at offset",
    ),
];

#[test]
fn an_image_that_cannot_be_read_is_refused_in_one_line_with_what_helps() {
    for (name, make, code, words) in REFUSED {
        let house = tempfile::tempdir().expect("a directory");
        make(house.path());
        let done = tenuto(house.path(), &["image", "map", "bad"]);
        assert_eq!(done.code, Some(code), "{name}: {}", done.err);
        assert!(done.err.contains(words), "{name}: {}", done.err);
        assert_eq!(
            (done.err.lines().count(), done.out.as_str()),
            (1, ""),
            "{name}: {}",
            done.err
        );
    }
    let house = tempfile::tempdir().expect("a directory");
    over(house.path(), "a", "gone");
    let shown = document(house.path(), "info", "a");
    let said = shown["chain_error"].as_str().expect("a reason");
    assert!(said.contains("which is the backing of image a"), "{said}");
    std::fs::write(house.path().join("r"), [0; 4096]).expect("written");
    assert_eq!(tenuto(house.path(), &["image", "check", "r"]).code, Some(2));
}

#[test]
fn a_relative_backing_is_found_from_the_name_that_was_given() {
    let house = tempfile::tempdir().expect("a directory");
    let place = house.path();
    for directory in ["a", "b"] {
        std::fs::create_dir(place.join(directory)).expect("made");
    }
    write(&place.join("a"), "base", MIB, Shape::Extended, None);
    over(&place.join("a"), "top", "base");
    std::os::unix::fs::symlink("../a/top", place.join("b/top")).expect("made");
    assert_eq!(
        document(place, "info", "a/top")["chain"][1]["file"],
        "a/base"
    );
    let through = document(place, "info", "b/top");
    assert!(
        through["chain_error"]
            .as_str()
            .is_some_and(|it| it.contains("b/base")),
        "{through}"
    );
    write(&place.join("b"), "base", 2 * MIB, Shape::Plain, None);
    assert_eq!(
        document(place, "info", "b/top")["chain"][1]["size_bytes"],
        2 * MIB
    );
}

#[test]
fn an_image_that_another_program_writes_is_not_read() {
    let house = tempfile::tempdir().expect("a directory");
    write(house.path(), "a", MIB, Shape::Plain, None);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(house.path().join("a"));
    let file = file.expect("opened");
    acquire_image(&file, "a", Mode::Exclusive, &mut Patience::none()).expect("free");
    let done = tenuto(house.path(), &["image", "info", "a"]);
    let pid = format!("pid {}", std::process::id());
    assert!(
        done.code == Some(4) && done.err.contains(&pid),
        "{}",
        done.err
    );
    drop(file);
    assert_eq!(tenuto(house.path(), &["image", "info", "a"]).code, Some(0));
}

#[test]
fn a_new_file_is_what_qemu_would_have_made() {
    if !has_qemu("a_new_file_is_what_qemu_would_have_made") {
        return;
    }
    let house = tempfile::tempdir().expect("a directory");
    let place = house.path();
    write(place, "base", MIB, Shape::Plain, None);
    for shape in [Shape::Plain, Shape::Extended] {
        for size in [512, 3 * MIB + 512, 1 << 40, 64 << 40] {
            for name in [None, Some("base")] {
                let backing = name.map(|name| Backing {
                    name,
                    format: BackingFormat::Qcow2,
                });
                write(place, "new", size, shape, backing);
                must(place, "qemu-img", &["check", "-q", "new"]);
                let info = must(place, "qemu-img", &["info", "--output=json", "new"]);
                let info: Value = serde_json::from_slice(&info.stdout).expect("a document");
                let (cluster, extended) = match shape {
                    Shape::Plain => (65_536, false),
                    Shape::Extended => (131_072, true),
                };
                let data = &info["format-specific"]["data"];
                assert_eq!(info["virtual-size"], size);
                assert_eq!(
                    (&info["cluster-size"], &data["extended-l2"]),
                    (&cluster.into(), &extended.into())
                );
                assert_eq!(info["backing-filename"].as_str(), name);
                assert_eq!(
                    info["backing-filename-format"].as_str(),
                    name.map(|_| "qcow2")
                );
            }
        }
    }
    // QEMU writes into it as into its own.
    let io = ["-f", "qcow2", "-c", "write -P 9 1M 70k", "new"];
    must(place, "qemu-io", &io);
    must(place, "qemu-img", &["check", "-q", "new"]);
    assert_eq!(document(place, "check", "new")["leaks"], 0);
}
