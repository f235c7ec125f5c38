//! A copy of the repository with all changes in it.
//!
//! Owns the copy and what the compiler says of it. Always true: the repository itself is only
//! read; a change that does not build is left out of the copy and told.

use crate::places::{self, Place};
use crate::render::{File, change_at};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Rounds with the compiler; each may tell what the one before could not yet see.
const ROUNDS_MAX: usize = 30;
/// Files whose changes say nothing: the switches of the audit, and tests.
const NOT_CHANGED: &[&str] = &["adversary.rs", "tests.rs", "model.rs"];

/// Where the switch is made known.
const HEAD: &str = "engine/src/lib.rs";

/// One change, as it is told.
#[derive(Clone, Debug)]
pub struct Mutant {
    pub number: u32,
    /// File, function, and what is changed; stays the same while the file does.
    pub name: String,
}

struct Source {
    path: PathBuf,
    text: String,
    places: Vec<Place>,
    first: Vec<u32>,
}

pub struct Tree {
    root: PathBuf,
    /// The crate's head, where it is not among the sources.
    head: String,
    sources: Vec<Source>,
    pub mutants: Vec<Mutant>,
    pub left_out: BTreeSet<u32>,
}

impl Tree {
    /// Copies the repository and finds what can be changed in files whose path begins so.
    pub fn new(repository: &Path, root: &Path, prefixes: &[String]) -> Tree {
        let files = run(Command::new("git").arg("ls-files").current_dir(repository));
        let files = String::from_utf8(files.stdout).expect("paths in UTF-8");
        let mut tree = Tree {
            root: root.to_owned(),
            head: String::new(),
            sources: Vec::new(),
            mutants: Vec::new(),
            left_out: BTreeSet::new(),
        };
        for path in files.lines() {
            let Ok(bytes) = std::fs::read(repository.join(path)) else {
                continue;
            };
            let name = path.rsplit('/').next().unwrap_or(path);
            let is_test = NOT_CHANGED.contains(&name) || path.contains("/tests/");
            let is_asked = prefixes.iter().any(|it| path.starts_with(it.as_str()));
            if is_asked && name.ends_with(".rs") && !is_test {
                let text = String::from_utf8(bytes).expect("source in UTF-8");
                tree.add(path, text);
            } else if path == HEAD {
                tree.head = String::from_utf8(bytes).expect("source in UTF-8");
            } else {
                write(&root.join(path), &bytes);
            }
        }
        tree
    }

    fn add(&mut self, path: &str, text: String) {
        let mut places = places::of(&text).expect("source that parses");
        places.sort_by_key(|it| (it.range.start, !it.range.is_empty(), Reverse(it.range.end)));
        let mut first = Vec::new();
        let mut seen = BTreeMap::<String, u32>::new();
        for place in &places {
            first.push(self.mutants.len() as u32 + 1);
            for change in &place.changes {
                let name = format!("{path} {}: {}", place.function, change.about);
                // The same change in the same function has its place in the order.
                let nth = seen.entry(name.clone()).or_default();
                *nth += 1;
                self.mutants.push(Mutant {
                    number: self.mutants.len() as u32 + 1,
                    name: format!("{name} #{nth} (line {})", place.line),
                });
            }
        }
        let path = PathBuf::from(path);
        self.sources.push(Source {
            path,
            text,
            places,
            first,
        });
    }

    /// Writes the files, and leaves out what does not build until all does.
    pub fn settle(&mut self) {
        let switch = include_str!("mutant.rs.txt");
        let count = self.mutants.len() + 1;
        let switch = format!("{switch}\nconst COUNT: usize = {count};\n");
        write(&self.root.join("engine/src/mutant.rs"), switch.as_bytes());
        for round in 0..ROUNDS_MAX {
            let texts = self.write();
            let errors = self.errors(&texts);
            println!("round {round}: {} do not build", self.left_out.len());
            if errors.is_empty() {
                return;
            }
            self.left_out.extend(errors);
        }
        panic!("does not build after {ROUNDS_MAX} rounds");
    }

    fn write(&self) -> BTreeMap<PathBuf, String> {
        let mut texts = BTreeMap::new();
        for source in &self.sources {
            let file = File::new(&source.text, &source.places, &source.first, &self.left_out);
            texts.insert(source.path.clone(), file.render());
        }
        let head = texts.entry(PathBuf::from(HEAD));
        let head = head.or_insert_with(|| self.head.clone());
        head.push_str("\npub mod mutant;\n");
        for (path, text) in &texts {
            write(&self.root.join(path), text.as_bytes());
        }
        texts
    }

    /// The changes that the compiler complains about.
    fn errors(&self, texts: &BTreeMap<PathBuf, String>) -> BTreeSet<u32> {
        let mut check = self.cargo("check");
        check.args(["-p", "engine", "--lib", "--message-format=json"]);
        let output = check.output().expect("cargo runs");
        let mut changes = BTreeSet::new();
        let mut others = Vec::new();
        for message in messages(&output) {
            let message = &message["message"];
            if message["level"] != "error" {
                continue;
            }
            let spans = message["spans"].as_array().cloned().unwrap_or_default();
            let change = spans.iter().find_map(|span| {
                let path = PathBuf::from(span["file_name"].as_str()?);
                let byte = span["byte_start"].as_u64()? as usize;
                change_at(texts.get(&path)?, byte)
            });
            match change {
                Some(change) => _ = changes.insert(change),
                None if !spans.is_empty() => others.push(message["rendered"].to_string()),
                None => {}
            }
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_told = output.status.success() || !changes.is_empty();
        assert!(is_told, "{}\n{errors}", others.join("\n"));
        changes
    }

    /// Builds the tests; their programs by name.
    pub fn tests(&self, packages: &[&str]) -> BTreeMap<String, PathBuf> {
        let mut build = self.cargo("test");
        build.args(["--release", "--no-run", "--message-format=json"]);
        for package in packages {
            build.args(["-p", package]);
        }
        let output = run(&mut build);
        let mut programs = BTreeMap::new();
        for message in messages(&output) {
            if let Some(program) = message["executable"].as_str() {
                let name = message["target"]["name"].as_str().unwrap_or_default();
                programs.insert(name.to_owned(), PathBuf::from(program));
            }
        }
        programs
    }

    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.arg(command).current_dir(&self.root);
        // Nobody reads warnings of such a text.
        cargo.env("RUSTFLAGS", "--cap-lints allow");
        cargo.env("CARGO_TARGET_DIR", self.root.join("target"));
        cargo
    }
}

fn messages(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().map(serde_json::from_str);
    messages.filter_map(Result::ok).collect()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a program that runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{errors}");
    output
}

/// Writes what has changed, so that nothing else is built again.
fn write(path: &Path, bytes: &[u8]) {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return;
    }
    let parent = path.parent().expect("a file has a directory");
    std::fs::create_dir_all(parent).expect("a directory");
    std::fs::write(path, bytes).expect("a file");
}
