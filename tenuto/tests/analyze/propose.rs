//! A table of rules proposed from a trace of a real file system, from the outside.
//!
//! Always true: where a file lies is found by its bytes in the image; the figures are computed a
//! second time here, from the requests as they were made, and what the engine says by replays of
//! parts of the trace.

use super::ntfs::{Mounted, bytes, empty_volume, may_mount, mounts, sectors};
use super::{directory, document, have, run};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use workload::rng::Rng;
use workload::trace::native::Writer;
use workload::trace::{NameId, Op, Record};

const BLOCK: usize = 4096;
const MS: u64 = 1_000_000;
/// Between two rounds of a trace.
const ROUND_MS: u64 = 60_000;
const ROUNDS: u64 = 10;
const SPLITTERS: [&str; 4] = ["rsync", "sfdisk", "qemu-storage-daemon", "mkswap"];

/// Files of the guest, their blocks, and in how many of the rounds all of these are written.
const FILES: [(&str, usize, u64); 8] = [
    ("srv/scratch/file", 25, ROUNDS),
    ("srv/scratch/wal/file", 1, 3),
    ("tmp/file", 10, ROUNDS),
    ("srv/db/file", 10, ROUNDS),
    ("srv/linked/file", 10, ROUNDS),
    ("home/ann/Documents/file", 10, ROUNDS),
    ("opt/pkg/file", 30, 1),
    ("srv/once/file", 40, 1),
];
/// Each write of these is flushed.
const FLUSHED: [&str; 2] = ["srv/scratch/wal/file", "srv/db/file"];

/// One request of the trace, and the file it is for.
#[derive(Clone, Copy)]
struct Made {
    millis: u64,
    op: Op,
    sector: u64,
    file: &'static str,
}

/// A guest's disk, and the sectors of each file's blocks.
fn image(place: &Path) -> HashMap<&'static str, Vec<u64>> {
    let tree = place.join("tree");
    let mut contents = HashMap::new();
    for (at, (name, blocks, _)) in FILES.into_iter().enumerate() {
        let mut content = vec![0; blocks * BLOCK];
        Rng::new(at as u64 + 1).fill(&mut content);
        let path = tree.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, &content).expect("written");
        contents.insert(name, content);
    }
    for directory in ["etc", "var/lib/dpkg/info"] {
        fs::create_dir_all(tree.join(directory)).expect("made");
    }
    fs::write(tree.join("etc/fstab"), "/dev/vda / ext4 defaults 0 1\n").expect("written");
    let list = tree.join("var/lib/dpkg/info/pkg.list");
    fs::write(list, "/.\n/opt\n/opt/pkg\n/opt/pkg/file\n").expect("written");
    let linked = tree.join("srv/linked/two");
    fs::write(&linked, "one file with two names").expect("written");
    fs::hard_link(linked, tree.join("etc/two")).expect("linked");
    let image = place.join("fs.img");
    let file = fs::File::create(&image).expect("made");
    file.set_len(64 << 20).expect("grown");
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-b", "4096", "-d"])
        .args([&tree, &image])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let bytes = fs::read(&image).expect("read");
    let blocks = bytes.chunks(BLOCK).enumerate();
    let places: HashMap<&[u8], u64> = blocks.map(|(at, it)| (it, at as u64 * 8)).collect();
    let sectors = contents.iter().map(|(name, content)| {
        let blocks = content.chunks(BLOCK);
        let sectors = blocks.map(|it| *places.get(it).expect("it is in the image"));
        (*name, sectors.collect())
    });
    sectors.collect()
}

/// The requests of a guest that starts, works, and starts again.
fn requests(sectors: &HashMap<&'static str, Vec<u64>>) -> Vec<Made> {
    let mut made = Vec::new();
    let mut ask = |millis, op, sector, file| {
        made.push(Made {
            millis,
            op,
            sector,
            file,
        });
    };
    ask(0, Op::Read, 0, "");
    for round in 0..ROUNDS {
        // Files come so far apart that a flush is of one of them.
        let mut millis = 1000 + round * ROUND_MS;
        for (file, _, rounds) in FILES {
            millis += 1000;
            for sector in sectors[file].iter().filter(|_| round < rounds) {
                ask(millis, Op::Write, *sector, file);
                millis += 10;
                if FLUSHED.contains(&file) {
                    ask(millis, Op::Flush, 0, file);
                }
            }
        }
    }
    let millis = ROUNDS * ROUND_MS + 1000;
    ask(millis, Op::Read, 0, "");
    // The start reads what it needs, of /tmp nothing.
    for sector in &sectors["srv/scratch/file"] {
        ask(millis + 1, Op::Read, *sector, "srv/scratch/file");
    }
    made
}

/// A trace of those requests that are wanted.
fn write_trace(path: &Path, made: &[Made], wanted: impl Fn(&Made) -> bool) {
    let file = fs::File::create(path).expect("made");
    let mut writer = Writer::new(file).expect("begun");
    for it in made.iter().filter(|it| wanted(it)) {
        let record = Record {
            time_ns: it.millis * MS,
            disk: NameId(0),
            op: it.op,
            sector: it.sector,
            sectors: if it.op == Op::Flush { 0 } else { 8 },
            path: None,
        };
        writer.record(&record, "vm", None).expect("written");
    }
    writer.finish().expect("ended");
}

/// What a directory is written like: writes, rewritten within 10 s, 10 min and an hour, flushed.
fn counted(made: &[Made], directory: &str) -> [u64; 5] {
    let mut counts = [0; 5];
    let mut last: HashMap<u64, u64> = HashMap::new();
    let writes = made.iter().enumerate().filter(|it| it.1.op == Op::Write);
    for (at, it) in writes {
        let before = last.insert(it.sector, it.millis);
        if !it.file.starts_with(directory) {
            continue;
        }
        counts[0] += 1;
        for (place, bound) in [10_000, 600_000, 3_600_000].into_iter().enumerate() {
            let is_again = before.is_some_and(|then| it.millis - then <= bound);
            counts[1 + place] += u64::from(is_again);
        }
        let soon = |later: &&Made| later.millis <= it.millis + 50;
        let mut after = made[at..].iter().take_while(soon);
        counts[4] += u64::from(after.any(|it| it.op == Op::Flush));
    }
    counts
}

fn line<'a>(lines: &'a Value, path: &str) -> &'a Value {
    let mut all = lines.as_array().expect("lines").iter();
    let found = all.find(|it| it["path"] == path);
    found.unwrap_or_else(|| panic!("{path} is not in {lines}"))
}

fn said(value: &Value) -> &str {
    value.as_str().expect("words")
}

fn near(value: &Value, part: u64, whole: u64) {
    let (found, share) = (value.as_f64().expect("a share"), part as f64 / whole as f64);
    assert!((found - share).abs() < 1e-9, "{found}, counted {share}");
}

/// Requests at the storage of a replay of a part of the trace.
fn replayed(place: &Path, made: &[Made], more: &[&str], wanted: impl Fn(&Made) -> bool) -> u64 {
    write_trace(&place.join("part.trace"), made, wanted);
    let asked = ["trace", "replay", "part.trace", "--offline"];
    let found = document(place, &[&asked[..], more].concat());
    found["origin"]["requests"].as_u64().expect("a count")
}

/// Fails when: a directory gets another class than its figures say, a figure is another one than
/// its requests give, or `image split` does not take the table.
#[test]
fn a_trace_proposes_rules_that_a_split_takes() {
    let test = "a_trace_proposes_rules_that_a_split_takes";
    if !have(test, &["mkfs.ext4", "debugfs", "partx"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let made = requests(&image(place));
    write_trace(&place.join("vm.trace"), &made, |_| true);
    let asked = ["trace", "analyze", "vm.trace", "--image", "vm=fs.img"];
    let asked = [&asked[..], &["--propose", "rules.toml"]].concat();
    let found = &document(place, &asked)["proposal"];

    let moves = found["moves"].as_array().expect("lines").iter();
    let moves: Vec<(&str, &str)> = moves
        .map(|it| (said(&it["path"]), said(&it["class"])))
        .collect();
    let expected = [
        ("/srv/scratch", "write-back"),
        ("/tmp", "never"),
        ("/opt/pkg", "write-back"),
    ];
    assert_eq!(moves, expected, "{found}");
    assert_eq!(found["keeps"][0]["path"], "/srv/scratch/wal");
    // A fifth of what is written in /srv is that of its database.
    let asking = serde_json::json!(["/srv", "/srv/db"]);
    assert_eq!(found["asks_for_durability"], asking);
    for (path, words) in [
        ("/srv/linked", "/srv/linked/two and /etc/two are one file"),
        (concat!("/", "home/ann/Documents"), "users' own data"),
        ("/srv/once", "no name, package or rewriting"),
    ] {
        let why = said(&line(&found["stays"], path)["why"]);
        assert!(why.contains(words), "{why}");
    }
    assert_eq!(found["starts"], 2);
    assert_eq!(line(&found["moves"], "/tmp")["reads_after_start"], 0);
    figures_are_those_of_the_requests(found, &made);
    engine_says_the_same_of_parts(place, found, &made);
    the_file_has_them(place, found, &asked);
    split_takes_it(test, place);
}

fn figures_are_those_of_the_requests(found: &Value, made: &[Made]) {
    let all = counted(made, "")[0];
    assert_eq!(found["writes"], all);
    for (path, directory) in [
        ("/srv/db", "srv/db"),
        ("/srv/scratch/wal", "srv/scratch/wal"),
        ("/srv/linked", "srv/linked"),
        ("/tmp", "tmp"),
        ("/opt/pkg", "opt/pkg"),
        ("/srv", "srv"),
    ] {
        let [writes, short, long, hour, flushed] = counted(made, directory);
        if writes * 100 < all {
            // Of the tail nothing is said.
            continue;
        }
        let line = line(&found["directories"], path);
        assert_eq!(line["writes"], writes, "{path}");
        assert_eq!(line["write_bytes"], writes * BLOCK as u64);
        near(&line["share_of_writes"], writes, all);
        near(&line["rewritten_share"]["within_10s"], short, writes);
        near(&line["rewritten_share"]["within_10m"], long, writes);
        near(&line["rewritten_share"]["within_period"], hour, writes);
        near(&line["flushed_share"], flushed, writes);
    }
    // What it keeps does not count for the line.
    let scratch = counted(made, "srv/scratch/file");
    assert_eq!(line(&found["moves"], "/srv/scratch")["writes"], scratch[0]);
}

fn engine_says_the_same_of_parts(place: &Path, found: &Value, made: &[Made]) {
    let through = ["--policy", "write-through"];
    let back = ["--policy", "write-back", "--destage-after", "1h"];
    let in_class = |it: &Made, class: &str| match it.file {
        "srv/scratch/file" | "opt/pkg/file" => class == "write-back",
        "tmp/file" => class == "never",
        _ => class == "system",
    };
    let mut sums = BTreeMap::<&str, u64>::new();
    for class in ["system", "write-back", "never"] {
        let classes = found["classes"].as_array().expect("classes");
        let line = classes.iter().find(|it| it["class"] == class);
        let line = line.expect("each class has one");
        let part = |it: &Made| in_class(it, class) || it.op == Op::Flush;
        let before = replayed(place, made, &through, part);
        assert_eq!(line["before"]["requests"], before, "{class}: {line}");
        let after = match class {
            "system" => before,
            "never" => line["after"]["beside"].as_u64().expect("a count"),
            _ => replayed(place, made, &back, part),
        };
        assert_eq!(line["after"]["requests"], after, "{class}: {line}");
        *sums.entry("before").or_default() += before;
        *sums.entry("after").or_default() += after;
    }
    assert_eq!(found["origin_requests_before"], sums["before"]);
    assert_eq!(found["origin_requests_after"], sums["after"]);
    // Each of the writes is one at the storage when it is written through.
    let scratch = line(&found["moves"], "/srv/scratch");
    let before = scratch["origin_requests_before"].as_u64().expect("a count");
    assert!(before >= 250, "{scratch}");
}

fn the_file_has_them(place: &Path, found: &Value, asked: &[&str]) {
    let table = fs::read_to_string(place.join("rules.toml")).expect("written");
    let line = line(&found["moves"], "/srv/scratch");
    let share = line["share_of_writes"].as_f64().expect("a share") * 100.0;
    for words in [
        format!("# {share:.1} % of the writes"),
        format!(
            "{} requests at the storage before, {} after",
            line["origin_requests_before"], line["origin_requests_after"]
        ),
        "[[move]]\npath = \"/srv/scratch\"\nclass = \"write-back\"\n".to_owned(),
        "#   /srv/db: ".to_owned(),
    ] {
        assert!(table.contains(&words), "{words}: {table}");
    }
    let (code, _, err) = run(place, asked);
    assert!(code == 4 && err.contains("give --force"), "{err}");
    let (code, out, err) = run(place, &[asked, &["--force", "--min-share", "30%"]].concat());
    assert!(
        code == 0 && out.contains("/srv/scratch  write-back"),
        "{out}{err}"
    );
    let fewer = fs::read_to_string(place.join("rules.toml")).expect("written");
    assert_eq!(fewer.matches("[[move]]").count(), 1, "{fewer}");
    fs::write(place.join("rules.toml"), table).expect("written");
}

fn split_takes_it(test: &str, place: &Path) {
    if !may_mount(test) {
        return;
    }
    if !have(test, &SPLITTERS) {
        return;
    }
    let asked = [
        "image",
        "split",
        "fs.img",
        "--rules",
        "rules.toml",
        "-o",
        "out",
    ];
    let plan = document(place, &[&asked[..], &["--trust-image", "--plan"]].concat());
    assert_eq!(plan["refusals"], serde_json::json!([]), "{plan}");
    let scratch = line(&plan["moved"], "/srv/scratch");
    assert_eq!(scratch["kept"], serde_json::json!(["/srv/scratch/wal"]));
    assert_eq!(line(&plan["moved"], "/tmp")["class"], "never");
    assert_eq!(line(&plan["moved"], "/opt/pkg")["class"], "write-back");
    assert!(!place.join("out").exists(), "a plan makes nothing");
}

/// Fails when: a wrong use is taken, its line does not say what would be right, or a file is made
/// where nothing is proposed.
#[test]
fn a_proposal_that_cannot_be_made_is_said_in_one_line() {
    let test = "a_proposal_that_cannot_be_made_is_said_in_one_line";
    if !have(test, &["mkfs.ext4", "debugfs", "partx"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let made = requests(&image(place));
    write_trace(&place.join("vm.trace"), &made, |it| {
        it.file == "srv/once/file"
    });
    for (arguments, code, words) in [
        ("vm.trace --propose r.toml", 2, "--image"),
        (
            "- --image vm=fs.img --propose r.toml",
            2,
            "reads the traces three times",
        ),
        (
            "vm.trace --image vm=fs.img --propose none/r.toml",
            1,
            "no such directory",
        ),
        (
            "vm.trace --image vm=fs.img --propose r.toml --min-share 1",
            2,
            "write it as 1%",
        ),
        (
            "vm.trace --image vm=fs.img --period 1h",
            2,
            "a time alone is for --propose",
        ),
        (
            "vm.trace --image vm=fs.img --propose r.toml --period 5",
            2,
            "90m..2h",
        ),
        (
            "vm.trace --image vm=fs.img --propose r.toml",
            1,
            "r.toml: is not written, no directory may be late by its figures",
        ),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (ended, _, err) = run(place, &[&["trace", "analyze"][..], &arguments].concat());
        assert!(
            ended == code && err.contains(words),
            "{arguments:?}: {ended}: {err}"
        );
        assert!(!place.join("r.toml").exists(), "{arguments:?}");
    }
    let asked = "trace analyze vm.trace --image vm=fs.img --propose r.toml --json";
    let (code, out, err) = run(place, &asked.split(' ').collect::<Vec<&str>>());
    assert_eq!((code, &*err), (1, ""));
    let found: Value = serde_json::from_str(&out).expect("one document");
    let nothing = "no directory may be late by its figures";
    assert_eq!(found["proposal"]["nothing"], nothing);
    assert!(found["proposal"]["file"].is_null());
}

/// Fails when: a file that the image has not any more counts as there, or the period of the command
/// is not that of the table.
#[test]
fn paths_of_a_trace_that_are_gone_from_the_image_are_counted() {
    let test = "paths_of_a_trace_that_are_gone_from_the_image_are_counted";
    if !have(test, &["mkfs.ext4", "debugfs", "partx"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    image(place);
    let file = fs::File::create(place.join("vm.trace")).expect("made");
    let mut writer = Writer::new(file).expect("begun");
    for at in 0..100 {
        let record = Record {
            time_ns: at * 10_000 * MS,
            disk: NameId(0),
            op: Op::Write,
            sector: 8000 + at % 2 * 8,
            sectors: 8,
            path: None,
        };
        let name = ["/srv/scratch/file", "/srv/scratch/was"][at as usize % 2];
        writer.record(&record, "vm", Some(name)).expect("written");
    }
    writer.finish().expect("ended");
    let asked = ["trace", "analyze", "vm.trace", "--image", "vm=fs.img"];
    let more = ["--propose", "r.toml", "--period", "19s"];
    let (code, _, err) = run(place, &[&asked[..], &more].concat());
    assert_eq!(code, 1, "each is rewritten after 20 s: {err}");
    let more = ["--propose", "r.toml", "--period", "120s"];
    let found = document(place, &[&asked[..], &more].concat());
    let directories = &found["proposal"]["directories"];
    near(&line(directories, "/srv/scratch")["gone_share"], 50, 100);
    let table = fs::read_to_string(place.join("r.toml")).expect("written");
    assert!(table.contains("destage-after = \"2m\"\n"), "{table}");
    assert!(table.contains("gone 50.0 %"), "{table}");
}

/// Fails when: directories or second names of NTFS are not known to a proposal, or its paths are
/// written as those of Linux.
#[test]
fn an_ntfs_image_gets_a_table_for_windows() {
    let test = "an_ntfs_image_gets_a_table_for_windows";
    if !mounts(test) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let image = place.join("fs.img");
    empty_volume(&image, 16);
    let files = [
        "Users/Ann/AppData/Local/Temp/file",
        "Users/Ann/AppData/Local/App/file",
        "Users/Ann/Documents/file",
        "Data/linked/file",
    ];
    let contents: Vec<Vec<u8>> = (1..=4).map(|seed| bytes(seed, 10 * BLOCK)).collect();
    {
        let mounted = Mounted::new(&image, place.join("mount"));
        for (name, content) in files.iter().zip(&contents) {
            let path = mounted.place.join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, content).expect("written");
        }
        let linked = mounted.place.join(files[3]);
        fs::hard_link(linked, mounted.place.join("second")).expect("linked");
    }
    let volume = fs::read(&image).expect("read");
    let mut made = Vec::new();
    for round in 0..ROUNDS {
        for (file, content) in files.into_iter().zip(&contents) {
            made.extend(sectors(&volume, content).into_iter().map(|sector| Made {
                millis: round * ROUND_MS,
                op: Op::Write,
                sector,
                file,
            }));
        }
    }
    write_trace(&place.join("vm.trace"), &made, |_| true);
    let asked = ["trace", "analyze", "vm.trace", "--image", "vm=fs.img"];
    let found = document(place, &[&asked[..], &["--propose", "r.toml"]].concat());
    let found = &found["proposal"];
    assert_eq!(found["family"], "windows");
    assert_eq!(found["moves"].as_array().map(Vec::len), Some(2), "{found}");
    let temp = line(&found["moves"], "\\Users\\Ann\\AppData\\Local\\Temp");
    assert_eq!(
        (&temp["class"], &temp["writes"]),
        (&"never".into(), &100.into())
    );
    let app = line(&found["moves"], "\\Users\\Ann\\AppData\\Local\\App");
    assert_eq!(app["class"], "write-back");
    let linked = line(&found["stays"], "\\Data\\linked");
    let why = linked["why"].as_str().expect("words");
    assert!(why.contains("are one file with two names"), "{why}");
    let table = fs::read_to_string(place.join("r.toml")).expect("written");
    let words = "path = '\\Users\\Ann\\AppData\\Local\\Temp'\nclass = \"never\"\n";
    assert!(table.contains(words), "{table}");
}
