//! The binary as scripts see it: exit codes, one-line errors, documents. No daemon runs here.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

struct Run {
    code: i32,
    out: String,
    err: String,
}

fn run(directory: &Path, arguments: &[&str]) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_tenuto"))
        .args(arguments)
        .current_dir(directory)
        .env_remove("TENUTO_SOCKET")
        .env_remove("TENUTO_CONFIG")
        .env("XDG_RUNTIME_DIR", directory)
        .output()
        .expect("the binary runs");
    Run {
        code: status.code().expect("it ends by itself"),
        out: String::from_utf8(stdout).expect("text"),
        err: String::from_utf8(stderr).expect("text"),
    }
}

/// A directory with an image and a configuration that is right.
fn house() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().display();
    std::fs::write(directory.path().join("a.img"), vec![0; 1 << 20]).expect("written");
    let text = format!(
        "[host]\nrun-dir = \"{place}/run\"\nstate-dir = \"{place}\"\nstage-dir = \"{place}\"\n\
         [cache]\npath = \"{place}/cache\"\nsize = \"256MiB\"\n\
         [[volume]]\nname = \"a\"\norigin = \"{place}/a.img\"\n"
    );
    std::fs::write(directory.path().join("t.toml"), text).expect("written");
    directory
}

fn assert_one_line_error(run: &Run) {
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    let message = run.err.strip_prefix("tenuto: ").expect("the prefix");
    assert!(!message.starts_with(char::is_uppercase), "{message}");
}

#[test]
fn a_right_configuration_is_checked_and_explained_and_nothing_is_started() {
    let house = house();
    let done = run(house.path(), &["config", "--check", "t.toml"]);
    assert_eq!((done.code, done.err.as_str()), (0, ""));
    assert_eq!(done.out, "t.toml: ok, 1 volume, 0 more added at run time\n");
    let done = run(
        house.path(),
        &["-c", "t.toml", "config", "--explain", "--json"],
    );
    assert_eq!(done.code, 0);
    let document: Value = serde_json::from_str(&done.out).expect("one document");
    let keys = document["keys"].as_array().expect("a list");
    assert!(
        keys.iter()
            .any(|row| row["key"] == "size" && row["from"] == "line 7")
    );
    assert!(!house.path().join("run").exists() && !house.path().join("cache").exists());
}

#[test]
fn a_wrong_configuration_ends_every_command_that_needs_it_with_code_2_and_its_line() {
    let house = house();
    std::fs::write(house.path().join("w.toml"), "[cache]\nsize = \"64GB\"\n").expect("written");
    for arguments in [
        &["config", "--check", "w.toml"][..],
        &["-c", "w.toml", "serve"],
        &["-c", "w.toml", "status"],
        &["volume", "ls", "--config", "w.toml"],
    ] {
        let done = run(house.path(), arguments);
        assert_eq!(done.code, 2, "{arguments:?}");
        assert_one_line_error(&done);
        assert!(
            done.err
                .starts_with("tenuto: w.toml:2: size: \"64GB\" is not a size; ")
        );
        assert_eq!(done.out, "");
    }
    let done = run(house.path(), &["config", "--check", "gone.toml"]);
    assert_eq!(done.code, 2);
    assert!(
        done.err
            .starts_with("tenuto: gone.toml: cannot be read: no such file")
    );
}

#[test]
fn without_a_daemon_commands_end_with_code_3_and_the_name_of_the_socket() {
    let house = house();
    let socket = house.path().join("run/tenuto.sock");
    for arguments in [
        &["status"][..],
        &["status", "-x"],
        &["volume", "ls"],
        &["volume", "show", "a"],
        &["volume", "add", "b", "origin=b.img"],
        &["volume", "set", "a", "dirty-limit=2MiB"],
        &["volume", "rm", "a"],
        &["volume", "destage", "--all", "--wait"],
        &["volume", "flush", "a"],
        &["volume", "reset", "a"],
        &["reload"],
        &["trace", "record", "a", "--output", "x"],
    ] {
        let all: Vec<&str> = ["-c", "t.toml"].iter().chain(arguments).copied().collect();
        let done = run(house.path(), &all);
        assert_eq!(done.code, 3, "{arguments:?}: {}", done.err);
        assert_one_line_error(&done);
        assert!(
            done.err.contains(&socket.display().to_string()),
            "{}",
            done.err
        );
    }
    let done = run(
        house.path(),
        &["status", "--socket", "other.sock", "--json"],
    );
    assert_eq!(done.code, 3);
    let document: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(document["error"]["kind"], "unreachable");
    assert_eq!(document["error"]["object"], "other.sock");
    assert!(done.err.starts_with("tenuto: other.sock: "));
}

#[test]
fn wrong_arguments_end_with_code_2_and_a_document_where_one_was_asked_for() {
    let house = house();
    for arguments in [
        &["volume", "show"][..],
        &["volume", "set", "a"],
        &["volume", "set", "a", "dirty-limit"],
        &["frobnicate"],
        &["status", "--frob"],
        &["config"],
        &["volume", "destage"],
        &["cache", "create", "c", "--size", "64GB"],
        &["cache", "create", "c"],
        &["volume", "add", "a/b", "origin=/x"],
    ] {
        let done = run(house.path(), arguments);
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.err);
        assert_one_line_error(&done);
        let all: Vec<&str> = arguments.iter().chain(&["--json"]).copied().collect();
        let done = run(house.path(), &all);
        let document: Value = serde_json::from_str(&done.out).expect("one document");
        assert_eq!(document["error"]["kind"], "usage", "{arguments:?}");
        assert!(document["error"].get("object").is_some());
    }
}

#[test]
fn a_split_says_what_is_wrong_before_it_looks_at_a_disk() {
    let house = house();
    std::fs::write(house.path().join("r.toml"), "base = \"unix\"\n").expect("written");
    for (words, message) in [
        (
            "a.img --rules none -o out",
            "rules none: cannot be read: no such file or directory; give linux, windows-safe or \
             windows-capo, or a file",
        ),
        (
            "a.img --rules r.toml -o out",
            "r.toml: base: \"unix\" is no table; give linux, windows-safe or windows-capo",
        ),
        (
            "gone.img --rules linux -o out",
            "image gone.img: no such file or directory; give a raw or qcow2 image",
        ),
        (
            "a.img --rules linux -o out --appliance",
            "`image split --appliance` is not in this version",
        ),
        (
            "a.img --rules linux -o .",
            "HERE: is not empty, and no split was begun there; give a new directory",
        ),
    ] {
        let words: Vec<&str> = ["image", "split"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        let done = run(house.path(), &words);
        assert_eq!(done.code, 2, "{words:?}: {}", done.err);
        let here = house.path().display().to_string();
        let said = done.err.replace(&here, "HERE");
        assert_eq!(said, format!("tenuto: {message}\n"));
        assert!(!house.path().join("out").exists());
    }
}

#[test]
fn verbs_of_later_versions_say_so_and_end_with_code_2() {
    let house = house();
    for arguments in ["volume takeover a", "bench storm"] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let done = run(house.path(), &words);
        assert_eq!(done.code, 2, "{arguments}: {}", done.err);
        assert_one_line_error(&done);
        assert!(
            done.err.ends_with(" is not in this version\n"),
            "{}",
            done.err
        );
    }
}

#[test]
fn help_version_and_completions_go_to_standard_output() {
    let house = house();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["version"],
        &["version", "--json"],
        &["volume", "--help"],
        &["help", "cache"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let done = run(house.path(), arguments);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{arguments:?}");
        assert!(done.out.contains("tenuto"), "{arguments:?}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run(house.path(), &["completions", shell]).out;
        assert!(script.contains("desktops"), "verbs of bench in {shell}");
        assert!(
            !script.contains("storm"),
            "{shell} offers what is not there"
        );
    }
    let bench = run(house.path(), &["bench", "--help"]).out;
    assert!(
        bench.contains("desktops") && !bench.contains("storm"),
        "{bench}"
    );
    let add = run(house.path(), &["volume", "create", "--help"]).out;
    assert!(add.contains("\nExamples:\n  tenuto volume add "), "{add}");
    let help = run(house.path(), &["--help"]).out;
    for verb in [
        "serve", "volume", "status", "config", "cache", "recover", "origin", "top",
    ] {
        assert!(
            help.contains(&format!("\n  {verb} ")),
            "{verb} is not in the help"
        );
    }
}

#[test]
fn an_image_without_ledger_is_inspected_and_a_damaged_ledger_ends_with_code_5() {
    let house = house();
    let done = run(house.path(), &["origin", "inspect", "a.img", "--json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let document: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(document["ledger"], Value::Null);
    assert_eq!(document["journal_pending"], false);
    std::fs::write(house.path().join("a.img.tenuto"), vec![7; 8192]).expect("written");
    let done = run(house.path(), &["origin", "inspect", "a.img"]);
    assert_eq!(done.code, 5, "{}", done.err);
    assert_one_line_error(&done);
    let done = run(house.path(), &["origin", "inspect", "gone.img"]);
    assert_eq!(done.code, 1);
}

#[test]
fn a_cache_is_never_made_over_data_that_somebody_may_want() {
    let house = house();
    std::fs::write(house.path().join("data"), vec![7; 1 << 20]).expect("written");
    let before = std::fs::read(house.path().join("data")).expect("read");
    let done = run(
        house.path(),
        &["cache", "create", "data", "--size", "256MiB"],
    );
    assert_eq!(done.code, 4, "{}", done.err);
    assert_one_line_error(&done);
    assert!(done.err.contains("--force"), "{}", done.err);
    assert_eq!(
        std::fs::read(house.path().join("data")).expect("read"),
        before
    );
    let done = run(house.path(), &["cache", "inspect", "data"]);
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(
        done.err.contains("`tenuto cache create data`"),
        "{}",
        done.err
    );
    let text = std::fs::read_to_string(house.path().join("t.toml")).expect("read");
    let text = text.replace("/cache\"", "/data\"");
    std::fs::write(house.path().join("t.toml"), text).expect("written");
    let done = run(house.path(), &["-c", "t.toml", "serve"]);
    assert_eq!(done.code, 2, "{}", done.err);
    assert_one_line_error(&done);
    assert!(
        done.err.contains("make one with `tenuto cache create "),
        "{}",
        done.err
    );
}

/// Three requests as MSR writes them, one line that is none.
const MSR: &str = "128166372003061629,hm,1,Read,383496192,32768,413\n\
    128166372003061639,hm,1,Write,4096,4096,413\n\
    nonsense\n\
    128166372016382155,hm,0,Write,2822144,8192,10\n";

#[test]
fn a_trace_is_shown_with_what_was_not_understood() {
    let house = house();
    std::fs::write(house.path().join("hm.csv"), MSR).expect("written");
    let done = run(house.path(), &["trace", "info", "hm.csv", "--json"]);
    assert_eq!(done.code, 0, "{}", done.err);
    let shown: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(shown["format"], "msr");
    assert_eq!(shown["requests"], 3);
    assert_eq!(shown["reads"]["bytes"], 32768);
    assert_eq!(shown["writes"]["requests"], 2);
    assert_eq!(shown["disks"][0]["name"], "hm,1");
    assert_eq!(shown["not_understood"]["count"], 1);
    assert_eq!(shown["not_understood"]["first"][0]["place"], 3);
    let done = run(house.path(), &["trace", "info", "hm.csv"]);
    assert!(
        done.out.contains("line 3: not seven values"),
        "{}",
        done.out
    );
    for (arguments, code) in [
        (["trace", "info", "none.csv"], 1),
        (["trace", "info", "t.toml"], 1),
    ] {
        let done = run(house.path(), &arguments);
        assert_eq!(done.code, code);
        assert_one_line_error(&done);
    }
    let done = run(house.path(), &["trace", "info", "hm.csv", "--format", "x"]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("vscsistats"), "{}", done.err);
}

#[test]
fn a_trace_goes_through_formats_and_comes_back_the_same() {
    let house = house();
    std::fs::write(house.path().join("hm.csv"), MSR).expect("written");
    let good = |arguments: &str| {
        let words: Vec<&str> = arguments.split(' ').collect();
        let done = run(house.path(), &words);
        assert_eq!(done.code, 0, "{arguments}: {}", done.err);
        done.out
    };
    let read = |name: &str| std::fs::read_to_string(house.path().join(name)).expect("a file");
    good("trace convert hm.csv hm.trace");
    good("trace convert hm.trace back.csv --to msr");
    let expected = "0,hm,1,Read,383496192,32768,0\n\
        10,hm,1,Write,4096,4096,0\n\
        13320526,hm,0,Write,2822144,8192,0\n";
    assert_eq!(read("back.csv"), expected);
    let fio = good("trace convert hm.trace - --to fio");
    assert!(fio.starts_with("fio version 3 iolog\n0 hm,1 add\n0 hm,1 open\n0 hm,1 read 383"));
    // What is there is replaced only when that is asked for, and a failure leaves nothing.
    let done = run(house.path(), &["trace", "convert", "hm.csv", "hm.trace"]);
    assert_eq!(done.code, 4);
    assert!(done.err.contains("--force"), "{}", done.err);
    good("trace convert hm.csv hm.trace --force");
    let done = run(house.path(), &["trace", "convert", "t.toml", "new.trace"]);
    assert_eq!(done.code, 1);
    let left = std::fs::read_dir(house.path()).expect("a directory");
    let left = left.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().contains("new") || name.to_string_lossy().ends_with(".part")
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn a_trace_of_desktops_is_made_with_its_statistics_and_whole_or_not_at_all() {
    let house = house();
    let made = |arguments: &str| {
        let words: Vec<&str> = arguments.split(' ').collect();
        run(house.path(), &words)
    };
    let done = made("trace synth boot b.trace --desktops 3 --arrivals 1m");
    assert_eq!(done.code, 0, "{}", done.err);
    let row = done
        .out
        .lines()
        .find(|line| line.starts_with("reads of a boot"));
    let cells: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(cells[4..], ["7163", "7163", "+0.0", "%"], "{}", done.out);
    let info = made("trace info b.trace --json");
    let info: Value = serde_json::from_str(&info.out).expect("one document");
    assert_eq!(info["reads"]["requests"], 3 * 7163);
    let disks = info["disks"].as_array().expect("a list");
    let named = |disk: &&Value| {
        disk["name"]
            .as_str()
            .is_some_and(|it| it.starts_with("desk-00"))
    };
    assert_eq!(disks.iter().filter(named).count(), 3);
    assert_eq!(info["not_understood"]["count"], 0);
    // The same once more, as a document; other bytes for another seed only.
    let again = "trace synth boot c.trace --desktops 3 --arrivals 1m";
    let done = made(&format!("{again} --json"));
    let document: Value = serde_json::from_str(&done.out).expect("one document");
    assert_eq!(document["rows"][0]["measured"], 7163.0);
    let read = |name: &str| std::fs::read(house.path().join(name)).expect("a file");
    assert_eq!(read("b.trace"), read("c.trace"));
    let done = made(&format!("{again} --seed 2 --force"));
    assert_eq!(done.code, 0, "{}", done.err);
    assert_ne!(read("b.trace"), read("c.trace"));
    for (arguments, code) in [
        ("trace synth boot b.trace", 4),
        ("trace synth nothing n.trace", 2),
        ("trace synth boot n.trace --desktops 0", 2),
        ("trace synth boot n.trace --arrivals soon", 2),
        ("trace synth boot none/n.trace --desktops 1", 1),
    ] {
        let done = made(arguments);
        assert_eq!(done.code, code, "{arguments}: {}", done.err);
    }
    assert!(!house.path().join("n.trace").exists());
}

/// What the simulator says of a seed whose host breaks a rule on purpose.
fn broken(rule: &str, arguments: &[&str]) -> (Run, Value) {
    let directory = tempfile::tempdir().expect("a directory");
    let begin = ["sim", "--json", "--breaks", rule];
    let found = run(directory.path(), &[&begin[..], arguments].concat());
    let document = serde_json::from_str(&found.out).expect("one document");
    (found, document)
}

#[test]
fn the_simulator_tells_the_classes_of_broken_promises_apart() {
    let cases = [("asserts", "crash", 1), ("answers", "liveness", 1)];
    for (rule, class, code) in cases {
        let (found, document) = broken(rule, &["--seed", "3", "--no-shrink"]);
        assert_eq!(
            (found.code, &document["class"]),
            (code, &Value::from(class))
        );
        assert_one_line_error(&found);
        assert!(
            found.err.contains(&format!("breaks {class}")),
            "{}",
            found.err
        );
        assert!(
            document["replay"]
                .as_str()
                .expect("text")
                .starts_with("tenuto sim --seed 3 ")
        );
    }
}

#[test]
fn a_failing_seed_is_shrunk_and_its_command_fails_again_in_the_same_way() {
    let (found, small) = broken("asserts", &["--seed", "3"]);
    assert_eq!(found.code, 1);
    assert_eq!(
        (&small["operations"], &small["features"]),
        (&Value::from(1), &Value::from(""))
    );
    let (_, whole) = broken("asserts", &["--seed", "3", "--no-shrink"]);
    assert!(
        whole["features"].as_str().expect("text").len() > 10,
        "{whole}"
    );

    // The first of them passes all the same.
    let safety = ["--seed", "5", "--seeds", "60", "--seconds", "600"];
    let (found, small) = broken("cache-sync", &safety);
    assert_eq!(
        (found.code, &small["class"]),
        (5, &Value::from("safety")),
        "{}",
        found.err
    );
    assert!(!small["history"].as_array().expect("lines").is_empty());
    // The seeds before it count for what they checked.
    let seed = small["seed"].as_u64().expect("a number");
    assert_eq!(small["seeds_passed"], seed - 5);
    let writes = small["writes_passed"].as_u64();
    assert_eq!(writes > Some(0), seed > 5, "{small}");
    let replay = small["replay"].as_str().expect("text");
    let words: Vec<&str> = replay.split(' ').skip(2).filter(|it| *it != "-v").collect();
    let (_, again) = broken("cache-sync", &[&words[..], &["--no-shrink"]].concat());
    for same in ["class", "seed", "step", "cause", "features", "history"] {
        assert_eq!(again[same], small[same], "{same}");
    }
}

#[test]
fn the_simulator_knows_the_features_that_it_can_leave_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let done = run(
        directory.path(),
        &[
            "sim",
            "--seed",
            "3",
            "--operations",
            "50",
            "--without",
            "hosts,rot",
        ],
    );
    assert_eq!(done.code, 0, "{}", done.err);
    let wrong = run(directory.path(), &["sim", "--without", "nothing"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("tiny-log"), "{}", wrong.err);
}

#[test]
fn a_trace_goes_through_the_engine_and_says_what_storage_would_see() {
    let house = house();
    std::fs::write(house.path().join("hm.csv"), MSR).expect("written");
    let replayed = |policy: &str| {
        let arguments = [
            "trace",
            "replay",
            "hm.csv",
            "--offline",
            "--json",
            "--policy",
            policy,
        ];
        let done = run(house.path(), &arguments);
        assert_eq!(done.code, 0, "{}", done.err);
        let document: Value = serde_json::from_str(&done.out).expect("one document");
        assert_eq!(document["complete"], true);
        assert_eq!(document["refused"], 0);
        document
    };
    let bare = replayed("uncached");
    let requests = |it: &Value, kind: &str| it["trace"][kind]["requests"].as_u64();
    assert_eq!(
        bare["origin"]["reads"]["requests"].as_u64(),
        requests(&bare, "reads")
    );
    assert_eq!(
        bare["origin"]["writes"]["requests"].as_u64(),
        requests(&bare, "writes")
    );
    let back = replayed("write-back");
    assert!(back["origin"]["journal"]["requests"].as_u64() > Some(0));
    assert_eq!(
        replayed("write-back")["origin"],
        back["origin"],
        "the same twice"
    );
    let done = run(
        house.path(),
        &["trace", "replay", "hm.csv", "--offline", "--speed", "0"],
    );
    assert_eq!(done.code, 2, "{}", done.err);
    let done = run(house.path(), &["trace", "replay", "hm.csv"]);
    assert_eq!(done.code, 2, "{}", done.err);
}

/// A page that cannot be written is told of before the work, not after it.
#[test]
fn a_page_that_cannot_be_written_is_refused_first() {
    let house = house();
    let begun = std::time::Instant::now();
    for arguments in [
        "bench policies --desktops 55 --html none/week.html",
        "bench desktops --seconds 600 --html none/desktops.html",
        "bench destage --html none/destage.html",
        "bench burst --html none/burst.html",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let done = run(house.path(), &words);
        assert_eq!(done.code, 1, "{arguments}: {}", done.err);
        assert_one_line_error(&done);
        assert!(done.err.contains("none/"), "{arguments}: {}", done.err);
        assert!(done.err.contains("name another file"), "{}", done.err);
    }
    assert!(begun.elapsed().as_secs() < 60, "it was found at the end");
}

#[test]
fn a_size_or_a_time_beyond_all_machines_is_told_and_never_a_panic() {
    let house = house();
    std::fs::write(house.path().join("hm.csv"), MSR).expect("written");
    for wrong in [
        ["--origin-latency", "9999999999h"],
        ["--origin-latency", "2h"],
        ["--cache-latency", "99999999999999999"],
        ["--destage-after", "99999999999h"],
        ["--ram", "9999TiB"],
        ["--stage", "9999TiB"],
        ["--cache", "1MiB"],
    ] {
        let arguments = ["trace", "replay", "hm.csv", "--offline", wrong[0], wrong[1]];
        let done = run(house.path(), &arguments);
        assert_eq!(done.code, 2, "{wrong:?}: {}", done.err);
        assert_one_line_error(&done);
    }
    for line in ["ram = \"9999TiB\"", "stage = \"2TiB\""] {
        std::fs::write(house.path().join("big.toml"), format!("[cache]\n{line}\n"))
            .expect("written");
        let done = run(house.path(), &["config", "--check", "big.toml"]);
        assert_eq!(done.code, 2, "{line}: {}", done.err);
        assert!(done.err.contains("at most \"1TiB\""), "{}", done.err);
    }
    let late = "0,hm,1,Write,0,4096,0\n184467440737095515,hm,1,Write,0,4096,0\n";
    std::fs::write(house.path().join("late.csv"), late).expect("written");
    let done = run(house.path(), &["trace", "replay", "late.csv", "--offline"]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains("ten years"), "{}", done.err);
}
