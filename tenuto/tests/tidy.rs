//! The style as a test: who names whom, heads, lengths, bans, and documents that keep up.
//!
//! Owns the rules of STYLE.md and ARCHITECTURE.md that a machine can check. Always true: a rule
//! has no silent exception; what breaks one stands in [`OFFENDERS`] with its exact count, which
//! may only shrink; `docs/promises.md` is what the tests say of themselves. It works on plain text.

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/structure.rs"]
mod structure;
#[path = "tidy/workplace.rs"]
mod workplace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const LINE_CHARS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 1000;

/// File, rule, how often it is broken: lowered when the code gets better; new ones need a reason.
const OFFENDERS: &[(&str, &str, usize)] = &[
    // The many independent reads of recovery, before anything is served.
    ("host/src/files.rs", "clock or thread", 1),
    // What `stat` returns besides the origin's time.
    ("host/src/target.rs", "clock or thread", 1),
    // A kind of refusal that has the word in its name; no policy of a volume.
    ("host/src/frontend/nbd/reply.rs", "strangers", 1),
];

/// Crates and what they may name. `std` is a name like any other.
const CRATES: &[(&str, &[&str])] = &[
    (
        "engine",
        &[
            "core",
            "alloc",
            "rules",
            "hashbrown",
            "image",
            "thiserror",
            "zerocopy",
            "crc",
        ],
    ),
    ("rules", &["core"]),
    (
        "vring",
        &["core", "alloc", "rules", "thiserror", "zerocopy"],
    ),
    (
        "image",
        &["core", "alloc", "rules", "thiserror", "zerocopy"],
    ),
    (
        "node",
        &["core", "alloc", "engine", "thiserror", "zerocopy"],
    ),
    ("workload", &["core", "std", "crc_fast"]),
    (
        "split",
        &[
            "core",
            "std",
            "libc",
            "serde",
            "serde_json",
            "thiserror",
            "toml",
            "uuid",
        ],
    ),
    (
        "sim",
        &[
            "core", "std", "engine", "vring", "image", "workload", "crc_fast",
        ],
    ),
];

/// Crates that `host`, which has the daemon, does not know: they measure, play or test it.
const UNKNOWN_TO_THE_DAEMON: &[&str] = &["lab", "sim", "tenuto", "tenuto_fuzz"];

/// Modules of `host` and `lab`, or parts of them, and the modules they must not name.
const STRANGERS: &[(&str, &[&str])] = &[
    ("host/src/frontend", &["origin", "admin", "config"]),
    (
        "host/src/frontend/vhost_user",
        &["shard", "daemon", "ring", "buffer", "stage", "cachedev"],
    ),
    ("host/src/origin", &["frontend", "admin", "config", "shard"]),
    (
        "host/src/ring",
        &["frontend", "origin", "admin", "config", "shard"],
    ),
    (
        "host/src/buffer",
        &["frontend", "origin", "admin", "config", "shard"],
    ),
    ("host/src/shard", &["admin", "config"]),
    ("host/src/daemon", &["admin"]),
    ("host/src/admin", &["shard", "frontend"]),
    ("host/src/config", &["admin", "shard", "frontend"]),
    (
        "host/src/cluster",
        &["admin", "shard", "frontend", "daemon"],
    ),
    ("lab/src/bench", &["demo"]),
    ("lab/src/demo", &["bench"]),
    ("lab/src/replay", &["bench", "demo"]),
    (
        "lab/src/vhost_client",
        &["shard", "daemon", "admin", "config", "demo", "bench"],
    ),
];

/// Where clocks and threads may be: the loop that hands time to everybody else, start and stop,
/// and what is off the data path. A late write is waited for by the clock, before serving.
const CLOCKS_AND_THREADS: &[&str] = &[
    "host/src/shard",
    "host/src/daemon",
    "host/src/admin",
    "host/src/backup",
    "host/src/cli",
    "host/src/cluster",
    "host/src/unit",
    "host/src/vault",
    "host/src/frontend/vhost_user/connection.rs",
    "host/src/frontend/vhost_user/turn.rs",
    "host/src/lock.rs",
    "host/src/ublk/device.rs",
    "host/src/ublk/link.rs",
    "lab/src/bench",
    "lab/src/cli",
    "lab/src/demo",
    "lab/src/guest.rs",
    "lab/src/image_files.rs",
    "lab/src/in_process.rs",
    "lab/src/interrupt.rs",
    "lab/src/machine.rs",
    "lab/src/qemu.rs",
    "lab/src/replay/live.rs",
    "lab/src/replay/wire/",
    "lab/src/vhost_client",
];

/// Where `unsafe` may be: the kernel's interfaces and the memory it shares with us.
const UNSAFE: &[&str] = &[
    "host/src/ring",
    "host/src/buffer",
    "host/src/lent.rs",
    "host/src/stage",
    "host/src/sys.rs",
    "host/src/ublk/buffers.rs",
    "host/src/frontend/vhost_user/guest_memory.rs",
    "host/src/frontend/vhost_user/mapping.rs",
    "host/src/frontend/vhost_user/lost.rs",
    "split/src/ntfs/mount.rs",
    "split/src/ntfs/xattr.rs",
    "split/src/sys.rs",
    "split/tests/ntfs/fixture.rs",
    "tenuto/tests/outside/common",
];

/// A file of the repository, with its path from the root.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// The lines that are not tests: a test file has none, others end at their test module.
    fn product(&self) -> &str {
        if self.is_test() {
            return "";
        }
        let cut = ["\n#[cfg(test)]\nmod tests {", "\n#[cfg(all(test"]
            .iter()
            .filter_map(|mark| self.text.find(mark))
            .min();
        &self.text[..cut.unwrap_or(self.text.len())]
    }

    fn is_test(&self) -> bool {
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        self.path
            .split('/')
            .any(|part| part == "tests" || part == "benches")
            || stem.ends_with("tests")
            || stem.ends_with("/model")
            || stem.ends_with("/bench")
    }

    /// Lines of the product without comments, with their number.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.product()
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(at, line)| (at + 1, line))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

/// All files with one of these endings, without what is built or found.
fn files(endings: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).expect("list a directory") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                let foreign = ["target", ".git", "corpus", "artifacts"].contains(&name.as_str());
                if !foreign {
                    left.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = std::fs::read_to_string(&path).expect("a text file");
                let path = path.strip_prefix(&root).expect("below the root");
                found.push(Source {
                    path: path.to_string_lossy().into_owned(),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty());
    found
}

fn rust() -> Vec<Source> {
    files(&[".rs"])
}

/// Holds what was found against the visible list, in both directions.
fn judge(rule: &str, found: Vec<(String, String)>) {
    let mut counts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, what) in &found {
        counts.entry(path).or_default().push(what);
    }
    let mut wrong = Vec::new();
    for (path, whats) in &counts {
        let known = OFFENDERS
            .iter()
            .find(|(known, of, _)| known == path && *of == rule);
        if whats.len() > known.map_or(0, |(.., count)| *count) {
            wrong.extend(whats.iter().map(|what| format!("{path}: {what}")));
        }
    }
    for (path, of, count) in OFFENDERS.iter().filter(|(_, of, _)| *of == rule) {
        let now = counts.get(path).map_or(0, Vec::len);
        if now < *count {
            wrong.push(format!(
                "{path}: {of}: {now} now, so lower the {count} in OFFENDERS"
            ));
        }
    }
    assert!(wrong.is_empty(), "{rule}:\n{}", wrong.join("\n"));
}

/// Whether `word` stands in `line` as a word of its own.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Whether `line` names something inside `module` of its own crate or of `host`.
fn names_module(line: &str, module: &str) -> bool {
    ["crate", "host"].iter().any(|name| {
        // `use crate::{admin, cli::Context};`, as far as it stands on one line.
        let group = line.split_once(&format!("{name}::{{"));
        has_word(line, &format!("{name}::{module}"))
            || group.is_some_and(|(_, rest)| has_word(rest, module))
    })
}

/// A file that nobody added builds here and nowhere else.
#[test]
fn every_file_is_in_the_repository() {
    let mut git = Command::new("git");
    git.arg("-C").arg(root());
    git.args(["ls-files", "--others", "--exclude-standard"]);
    // An archive of the sources has no repository, and nothing that could be missing in it.
    let Some(done) = git.output().ok().filter(|done| done.status.success()) else {
        return;
    };
    let text = String::from_utf8(done.stdout).expect("names in words");
    let found = text
        .lines()
        .map(|path| (path.to_owned(), "git add".to_owned()));
    judge("not in the repository", found.collect());
}

#[test]
fn every_file_opens_with_what_it_owns() {
    let bare = |source: &Source| !source.text.starts_with("//!");
    let found = rust().into_iter().filter(bare);
    judge(
        "file head",
        found
            .map(|source| (source.path, "has no //! head".into()))
            .collect(),
    );
}

#[test]
fn lines_functions_and_files_are_short() {
    let mut found = Vec::new();
    for source in rust() {
        for (at, line) in source.text.lines().enumerate() {
            let chars = line.chars().count();
            if chars > LINE_CHARS_MAX && !line.contains("http") {
                found.push((
                    source.path.clone(),
                    format!("{}: {chars} characters", at + 1),
                ));
            }
        }
        for (name, at, lines) in functions(source.product()) {
            if lines > FUNCTION_LINES_MAX {
                found.push((
                    source.path.clone(),
                    format!("{at}: fn {name} has {lines} lines"),
                ));
            }
        }
        let lines = source.product().lines().count();
        if lines > FILE_LINES_MAX {
            found.push((source.path, format!("has {lines} lines without tests")));
        }
    }
    judge("length", found);
}

/// Name, first line and length of each function, by the indentation that the formatter gives.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.trim_start().split(' ').collect();
        let Some(place) = words.iter().position(|word| *word == "fn") else {
            continue;
        };
        let qualifiers = [
            "pub",
            "pub(crate)",
            "pub(super)",
            "const",
            "async",
            "unsafe",
            "extern",
        ];
        let only = words[..place].iter();
        if !only
            .clone()
            .all(|word| qualifiers.contains(word) || word.starts_with('"'))
        {
            continue;
        }
        let name = words
            .get(place + 1)
            .unwrap_or(&"")
            .split(['(', '<'])
            .next()
            .unwrap_or("");
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[at..].iter().position(|other| **other == end);
        let next = lines[at..]
            .iter()
            .position(|other| other.trim_end().ends_with(';'));
        match (body, next) {
            // A declaration without a body ends before any closing brace of its depth.
            (Some(body), Some(next)) if !lines[at..=at + next].join("").contains('{') => {
                let _ = body;
            }
            (Some(body), _) => found.push((name.to_owned(), at + 1, body + 1)),
            (None, _) => {}
        }
    }
    found
}

#[test]
fn crates_name_only_what_they_may() {
    let all = [
        "std",
        "core",
        "alloc",
        "rules",
        "engine",
        "vring",
        "flate2",
        "ruzstd",
        "workload",
        "sim",
        "host",
        "lab",
        "tenuto",
        "libc",
        "io_uring",
        "tokio",
        "axum",
        "clap",
        "serde",
        "serde_json",
        "hashbrown",
        "thiserror",
        "zerocopy",
        "crc",
        "crc_fast",
        "hyper",
        "toml",
        "tracing",
        "uuid",
        "vhost",
        "vm_memory",
        "vmm_sys_util",
        "indicatif",
    ];
    let mut found = Vec::new();
    for source in rust() {
        for (name, may) in CRATES {
            if !source.path.starts_with(&format!("{name}/src/")) {
                continue;
            }
            for (at, line) in source.code() {
                for other in all
                    .iter()
                    .filter(|other| *other != name && !may.contains(other))
                {
                    if line.contains(&format!("{other}::")) && has_word(line, other) {
                        let own = line.contains(&format!("crate::{other}"))
                            || line.contains(&format!("super::{other}"))
                            || line.contains(&format!("self::{other}"));
                        if !own {
                            found.push((source.path.clone(), format!("{at}: names {other}")));
                        }
                    }
                }
            }
        }
    }
    judge("crate", found);
}

#[test]
fn the_pure_crates_have_no_std_and_no_unsafe_code() {
    for name in ["rules", "engine", "vring", "image", "node"] {
        let path = root().join(name).join("src/lib.rs");
        let text = std::fs::read_to_string(path).expect("a pure crate");
        assert!(text.contains("#![no_std]") && text.contains("#![forbid(unsafe_code)]"));
    }
}

/// A module of the engine has the name of a crate, so that manifests tell more than names do.
#[test]
fn of_the_pure_crates_only_the_engine_knows_another_one() {
    let pure = ["engine", "vring", "image"];
    let known = [("engine", &["image"][..]), ("vring", &[]), ("image", &[])];
    for (name, known) in known {
        let manifest = std::fs::read_to_string(root().join(name).join("Cargo.toml"));
        let manifest = manifest.expect("a crate");
        let keys = manifest.lines().map(|it| it.split(['.', ' ']).next());
        let others: Vec<&str> = keys.flatten().filter(|it| pure.contains(it)).collect();
        assert_eq!(others, known, "what {name} depends on");
    }
}

#[test]
fn the_daemon_does_not_know_the_lab() {
    let mut found = Vec::new();
    for source in rust() {
        if !source.path.starts_with("host/src/") {
            continue;
        }
        for (at, line) in source.code() {
            for name in UNKNOWN_TO_THE_DAEMON {
                if has_word(line, name) && line.contains(&format!("{name}::")) {
                    found.push((source.path.clone(), format!("{at}: names {name}")));
                }
            }
        }
    }
    let manifest = std::fs::read_to_string(root().join("host/Cargo.toml")).expect("a crate");
    for line in manifest.lines() {
        let key = line.split(['.', ' ', '=']).next().unwrap_or("");
        if UNKNOWN_TO_THE_DAEMON.contains(&key.replace('-', "_").as_str()) {
            found.push(("host/Cargo.toml".to_owned(), format!("depends on {key}")));
        }
    }
    judge("daemon", found);
}

#[test]
fn modules_do_not_name_strangers() {
    let mut found = Vec::new();
    for source in rust() {
        let crates = ["host/src/", "lab/src/"];
        let inside = crates.iter().find_map(|it| source.path.strip_prefix(it));
        let Some(inside) = inside else {
            continue;
        };
        let in_cli = inside.starts_with("cli");
        let mut strangers = match in_cli || inside == "lib.rs" {
            true => vec![],
            false => vec!["cli"],
        };
        for (name, list) in STRANGERS {
            let file = source.path.strip_suffix(".rs").unwrap_or(&source.path);
            if *name == file || source.path.starts_with(&format!("{name}/")) {
                strangers.extend_from_slice(list);
            }
        }
        for (at, line) in source.code() {
            for stranger in strangers
                .iter()
                .filter(|stranger| names_module(line, stranger))
            {
                found.push((source.path.clone(), format!("{at}: names {stranger}")));
            }
            if !in_cli && has_word(line, "sim") && line.contains("sim::") {
                found.push((source.path.clone(), format!("{at}: names the simulator")));
            }
            if inside.starts_with("frontend/") && has_word(line, "Policy") {
                found.push((source.path.clone(), format!("{at}: names a policy")));
            }
            if inside.starts_with("frontend/vhost_user/") && line.contains("engine::") {
                found.push((source.path.clone(), format!("{at}: names the engine")));
            }
        }
    }
    judge("strangers", found);
}

#[test]
fn the_data_path_has_no_clock_and_no_thread() {
    let mut found = Vec::new();
    for source in rust() {
        let product = [
            "rules/src/",
            "engine/src/",
            "vring/src/",
            "image/src/",
            "workload/src/",
            "sim/src/",
            "host/src/",
            "lab/src/",
            "tenuto/src/",
        ];
        let allowed = CLOCKS_AND_THREADS
            .iter()
            .any(|place| source.path.starts_with(place));
        if allowed || !product.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (at, line) in source.code() {
            for word in ["Instant::now", "SystemTime::now", "thread::"] {
                if line.contains(word) {
                    found.push((source.path.clone(), format!("{at}: {word}")));
                }
            }
        }
    }
    judge("clock or thread", found);
}

#[test]
fn nothing_banned_is_in_the_product() {
    // Put together here, or this file would break its own rule.
    let bans = [
        (
            format!(".unwrap{}", "()"),
            "say with `expect` why it cannot happen",
        ),
        (format!("todo{}", "!("), "no stubs"),
        (format!("unimplemented{}", "!("), "no stubs"),
        (format!("dbg{}", "!("), "no debugging prints"),
    ];
    let mut found = Vec::new();
    for source in rust() {
        for (at, line) in source.code() {
            for (ban, why) in &bans {
                if line.contains(ban.as_str()) {
                    found.push((source.path.clone(), format!("{at}: {ban}: {why}")));
                }
            }
        }
        if !source.path.starts_with("tenuto/tests/tidy") {
            let marks = [
                format!("TO{}", "DO"),
                format!("FIX{}", "ME"),
                format!("XX{}", "X"),
            ];
            for (at, line) in source.text.lines().enumerate() {
                if marks.iter().any(|mark| has_word(line, mark)) {
                    found.push((source.path.clone(), format!("{}: unfinished", at + 1)));
                }
            }
        }
    }
    judge("ban", found);
}

#[test]
fn unsafe_code_is_where_the_kernel_is() {
    let mut found = Vec::new();
    for source in rust() {
        if UNSAFE.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (at, line) in source.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let opens = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
            if opens.iter().any(|open| code.contains(open)) && !code.contains('"') {
                found.push((source.path.clone(), format!("{}: unsafe", at + 1)));
            }
        }
    }
    judge("unsafe", found);
}

/// Names of all tests in the sources, and of scenarios of the simulator.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for source in rust() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.trim() != "#[test]" {
                continue;
            }
            let name = lines[at + 1..]
                .iter()
                .map(|line| line.trim())
                .find_map(|line| line.strip_prefix("fn "))
                .and_then(|rest| rest.split('(').next());
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

/// Words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn documents_name_only_tests_that_exist() {
    let tests = tests();
    let mut missing = Vec::new();
    let mut named = 0;
    for source in files(&[".md"]) {
        for word in quoted(&source.text) {
            let letters = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
            // A test is a sentence: four words or more.
            if word.matches('_').count() >= 3 && word.chars().all(letters) {
                named += 1;
                if !tests.contains(word) {
                    missing.push(format!("{}: {word}", source.path));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
    assert!(named >= 10, "the documents name {named} tests only");
}

#[test]
fn every_promise_names_its_test() {
    let text = std::fs::read_to_string(root().join("docs/guarantees.md")).expect("guarantees");
    let tests = tests();
    let mut bare = Vec::new();
    let mut rows = 0;
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| ---");
    let promises = text
        .lines()
        .skip_while(|line| !line.starts_with("## The promises"));
    for row in promises
        .filter(is_row)
        .filter(|row| !row.starts_with("| promise"))
    {
        rows += 1;
        if !quoted(row).any(|word| tests.contains(word)) {
            bare.push(row);
        }
    }
    assert!(
        bare.is_empty(),
        "promises without a test:\n{}",
        bare.join("\n")
    );
    assert!(rows >= 10, "{rows} promises only");
}

/// Words that hide who acts: say guest, client, operator, the next daemon.
const VAGUE_WORDS: &[&str] = &["whoever", "nobody", "somebody"];

/// How often they may stand in the comments of a crate. The numbers may only fall: lower one when
/// its crate has become better by more than [`VAGUE_SLACK`].
const VAGUE_COMMENTS: &[(&str, usize)] = &[
    ("engine", 118),
    ("fuzz", 2),
    ("host", 196),
    ("lab", 41),
    ("mutants", 2),
    ("sim", 15),
    ("tenuto", 60),
    ("vring", 9),
    ("workload", 13),
];

/// So many fewer are no reason to change the number yet.
const VAGUE_SLACK: usize = 20;

#[test]
fn documents_and_comments_say_who_acts() {
    let vague = |line: &str| {
        let line = line.to_lowercase();
        VAGUE_WORDS.iter().filter(|it| has_word(&line, it)).count()
    };
    let mut found = Vec::new();
    for source in files(&[".md"]) {
        for (at, line) in source.text.lines().enumerate().filter(|it| vague(it.1) > 0) {
            found.push(format!("{}:{}: {line}", source.path, at + 1));
        }
    }
    assert!(found.is_empty(), "name who acts:\n{}", found.join("\n"));
    let mut comments: BTreeMap<String, usize> = BTreeMap::new();
    for source in rust() {
        let of_source = source.text.lines().filter_map(|line| line.split_once("//"));
        let count = of_source.map(|(_, comment)| vague(comment)).sum::<usize>();
        let name = source.path.split('/').next().expect("a crate").to_owned();
        *comments.entry(name).or_default() += count;
    }
    for (name, count) in comments {
        let known = VAGUE_COMMENTS.iter().find(|(it, _)| *it == name);
        let known = known.map_or(0, |(_, known)| *known);
        let words = format!("{name}: {count} of {VAGUE_WORDS:?} in comments, {known} known");
        assert!(count <= known, "{words}: name who acts");
        assert!(count + VAGUE_SLACK >= known, "{words}: lower the number");
    }
}

/// Tests from outside that a promise names and that do not say which mistake they notice: those
/// that take a rule out themselves, and those below this number. It may only fall.
const SILENT_TESTS: usize = 8;

const PROMISES: &str = "# Mistakes that the tests of the promises notice

<!-- Generated by tenuto/tests/tidy.rs from the lines `Fails when:` above the tests. Change them
there, then write this anew: TENUTO_WRITE_DOCUMENTS=1 cargo test --workspace --test tidy -->

Each test of [guarantees.md](guarantees.md) that drives the real binary was run against a product
with one mistake, and failed. A name in brackets is a rule of [rules.md](rules.md); the other
mistakes were made for this proof and are not in the source. A line says that the test notices this
mistake, not that it notices others; [survivors.md](survivors.md) lists mistakes that are known to
pass. Tests that take a rule out themselves (`..._does_damage_without_...`, `..._notices_...`,
`..._show_a_missing_...`) have no line.

| suite | test | fails when |
| --- | --- | --- |
";

/// What the comment above a test says after `Fails when:`, with the name of the test.
fn mistakes(source: &Source) -> Vec<(String, String)> {
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, it)| **it == "#[test]") {
        let above = lines[..at].iter().rev();
        let above: Vec<&str> = above.map_while(|it| it.strip_prefix("///")).collect();
        let text: Vec<&str> = above.iter().rev().map(|it| it.trim()).collect();
        let text = text.join(" ");
        let Some((_, mistake)) = text.split_once("Fails when: ") else {
            continue;
        };
        let after = lines[at..].iter().find_map(|it| it.strip_prefix("fn "));
        let name = after.and_then(|it| it.split('(').next()).expect("a test");
        let mistake = mistake.trim_end_matches('.');
        assert!(!mistake.contains('|'), "{name}: {mistake}");
        found.push((name.to_owned(), mistake.to_owned()));
    }
    found
}

#[test]
fn the_document_of_promises_is_what_the_tests_say_of_themselves() {
    let promises = std::fs::read_to_string(root().join("docs/guarantees.md")).expect("guarantees");
    let named: BTreeSet<&str> = quoted(&promises).collect();
    let (mut made, mut silent) = (PROMISES.to_owned(), BTreeSet::new());
    let outside = |source: &Source| source.path.contains("/tests/outside/");
    for source in rust().into_iter().filter(outside) {
        let mistakes = mistakes(&source);
        let suite = source.path.rsplit(['/', '.']).nth(1).expect("a name");
        for (name, mistake) in &mistakes {
            made += &format!("| {suite} | `{name}` | {mistake} |\n");
        }
        let tests = source.text.split("#[test]\nfn ").skip(1);
        let tests = tests.filter_map(|it| it.split('(').next());
        let says = |name: &str| mistakes.iter().any(|(it, _)| it == name);
        let quiet = tests.filter(|it| named.contains(it) && !says(it));
        silent.extend(quiet.map(str::to_owned));
    }
    let path = root().join("docs/promises.md");
    if std::env::var_os("TENUTO_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, &made).expect("write it");
    }
    let stands = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == stands,
        "docs/promises.md is not what the tests say; write it anew with TENUTO_WRITE_DOCUMENTS=1 \
         cargo test --workspace --test tidy"
    );
    let count = silent.len();
    assert_eq!(count, SILENT_TESTS, "without a line: {silent:#?}");
}

/// Lines in the fenced blocks of the documents that a reader would type.
fn typed_lines() -> Vec<(String, String)> {
    let mut typed = Vec::new();
    for source in files(&[".md"]) {
        let mut fenced = false;
        for line in source.text.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                let line = line.split(" #").next().unwrap_or("").trim();
                let line = line.strip_prefix("$ ").unwrap_or(line);
                typed.push((source.path.clone(), line.to_owned()));
            }
        }
    }
    typed
}

#[test]
fn commands_in_the_documents_exist() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, line) in typed_lines() {
        let line = line.replace("cargo run --release -- ", "tenuto ");
        if let Some(rest) = line.strip_prefix("tenuto ") {
            let verb = |word: &&str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-');
            let verbs: Vec<&str> = rest
                .split_whitespace()
                .take_while(|word| !word.starts_with('-') && verb(word))
                .take(2)
                .collect();
            let flags: Vec<&str> = rest
                .split_whitespace()
                .filter(|word| word.starts_with("--") && word.len() > 2)
                .map(|word| word.split('=').next().unwrap_or(word))
                .collect();
            if seen.insert((verbs.join(" "), flags.join(" "))) {
                wrong.extend(try_help(&verbs, &flags).map(|why| format!("{path}: {line}: {why}")));
            }
        } else if line.starts_with("./") {
            let program = line.split_whitespace().next().unwrap_or("");
            if !root().join(program).is_file() {
                wrong.push(format!("{path}: {line}: no such program"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!seen.is_empty(), "no command is documented");
}

/// Why these verbs with these flags are not what the binary knows.
fn try_help(verbs: &[&str], flags: &[&str]) -> Option<String> {
    // The second word may be an argument, as in `volume show root`.
    for count in (1..=verbs.len()).rev() {
        let output = Command::new(env!("CARGO_BIN_EXE_tenuto"))
            .args(&verbs[..count])
            .arg("--help")
            .output()
            .expect("run tenuto");
        if output.status.success() {
            let help = String::from_utf8_lossy(&output.stdout).into_owned();
            return flags
                .iter()
                .find(|flag| !has_word(&help.replace('-', "_"), &flag.replace('-', "_")))
                .map(|flag| format!("{flag} is unknown"));
        }
    }
    Some("no such command".into())
}

#[test]
fn vendored_files_are_what_was_published() {
    let place = root().join("host/src/admin/page");
    let output = Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(&place)
        .output()
        .expect("run sha256sum");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let checked = said.lines().count();
    assert_eq!(checked, 3, "script, style and licence: {said}");
}

/// The longest part without a placeholder of the first text after each place that refuses or finds
/// damage. Where a message is made elsewhere, that place is one of these.
fn messages(source: &Source) -> Vec<String> {
    const MARKS: [&str; 6] = [
        "Error::refused(",
        "OpenError::Refused(",
        "OpenError::Damaged(",
        "Kind::WouldLoseData,",
        "Kind::Refused,",
        "Kind::Damaged,",
    ];
    let text = source.product();
    let mut found = Vec::new();
    for mark in MARKS {
        for (at, _) in text.match_indices(mark) {
            let behind = &text[at + mark.len()..];
            let (Some(start), end) = (behind.find('"'), behind.find(';')) else {
                continue;
            };
            if start > 100 || end.is_some_and(|end| end < start) {
                continue;
            }
            let literal = &behind[start + 1..];
            let literal = &literal[..literal.find('"').expect("it ends")];
            let lines: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
            let text = lines.concat();
            let longest = text
                .split(['{', '}'])
                .step_by(2)
                .max_by_key(|part| part.len());
            let ends = [':', ';', ',', ')', ' '];
            found.extend(longest.map(|part| part.trim_matches(ends).to_owned()));
        }
    }
    found
}

#[test]
fn every_refusal_and_every_damage_has_its_line_in_the_operations() {
    let document = std::fs::read_to_string(root().join("docs/operations.md")).expect("read it");
    let plain = |text: &str| text.replace('`', "");
    let document = plain(&document);
    let mut count = 0;
    let mut missing = Vec::new();
    for source in rust()
        .iter()
        .filter(|source| source.path != "host/src/error.rs")
    {
        for message in messages(source) {
            count += 1;
            if !document.contains(&plain(&message)) {
                missing.push(format!("{}: {message:?}", source.path));
            }
        }
    }
    assert!(count >= 20, "only {count} messages were found");
    assert!(
        missing.is_empty(),
        "docs/operations.md says nothing of\n{}",
        missing.join("\n")
    );
}
