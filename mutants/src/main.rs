//! Every small change of the engine, built at once and tried one by one.
//!
//! `cargo mutants` builds for each change, so a few thousand of them take days. Here all are in one
//! program, each behind its number, and a suite is asked about one in a second or two. Always true:
//! changes come in an order that is mixed but always the same, so what a run has tried is a sample
//! of all; each answer is a line of the file of results, which a later run goes on with.
//!
//! `cargo run --release --manifest-path mutants/Cargo.toml -- [--seeds N] [--gates NAME,…]
//! [--survivors] [PREFIX…]`

mod gates;
mod places;
mod render;
mod tree;
mod values;

use gates::{Answer, Gate};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tree::{Mutant, Tree};

/// What is changed when nobody says.
const PREFIXES: &[&str] = &["engine/src/"];
/// Changes that are tried side by side.
const THREADS: usize = 2;
/// Package, program, and the seeds it has when one is asked for.
const GATES: &[(&str, &str, u64)] = &[
    ("engine", "engine", 1),
    ("engine", "bounds", 1),
    ("engine", "fixtures", 1),
    ("engine", "recovery", 1),
    ("engine", "relayout", 1),
    ("engine", "settle", 1),
    ("sim", "scenarios", 1),
    ("sim", "policies", 1),
    ("sim", "seeds", 1),
    ("sim", "commits", 1),
    ("sim", "lines", 3),
    ("sim", "groups", 1),
    ("sim", "dying", 1),
    ("sim", "last_copies", 1),
    ("sim", "swarm", 2),
];

/// A suite did not end in its time, and none noticed.
const TOO_SLOW: &str = "too slow";
/// What a run with `--survivors` tries again.
const NOT_NOTICED: &[&str] = &["survived", "not reached", TOO_SLOW];

struct Arguments {
    seeds: u64,
    /// The suites that are asked; all where none is named.
    gates: Vec<String>,
    /// Try only what an earlier run has not noticed.
    survivors: bool,
    prefixes: Vec<String>,
}

fn arguments() -> Arguments {
    let mut arguments = Arguments {
        seeds: 4,
        gates: Vec::new(),
        survivors: false,
        prefixes: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => {
                let seeds = words.next().and_then(|it| it.parse().ok());
                arguments.seeds = seeds.expect("--seeds has a number");
            }
            "--gates" => {
                let names = words.next().expect("--gates has names");
                arguments.gates = names.split(',').map(str::to_owned).collect();
            }
            "--survivors" => arguments.survivors = true,
            _ => arguments.prefixes.push(word),
        }
    }
    if arguments.prefixes.is_empty() {
        arguments.prefixes = PREFIXES.iter().map(|&it| it.to_owned()).collect();
    }
    arguments
}

fn main() {
    let arguments = arguments();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = here.parent().expect("the repository");
    let root = here.join("target/tree");
    let results = here.join("target/results.jsonl");
    let mut tree = Tree::new(repository, &root, &arguments.prefixes);
    println!("{} changes", tree.mutants.len());
    list(&tree, &here.join("target/changes.txt"));
    tree.settle();
    let before = read(&results);
    let outcome = |it: &Mutant| before.get(&it.name).map(String::as_str);
    let is_left = |it: &&Mutant| match outcome(it) {
        None => true,
        Some(old) => arguments.survivors && NOT_NOTICED.contains(&old),
    };
    let left = tree.mutants.iter().filter(is_left);
    let left: Vec<&Mutant> = left
        .filter(|it| !tree.left_out.contains(&it.number))
        .collect();
    println!("{} to try", left.len());
    let gates = gates(&tree, &root, &arguments);
    try_all(&gates, left, &results);
    tell(&tree, &read(&results));
}

/// Numbers and names, for who asks a suite by hand with `TENUTO_MUTANT`.
fn list(tree: &Tree, path: &Path) {
    let line = |it: &Mutant| format!("{} {}\n", it.number, it.name);
    let text: String = tree.mutants.iter().map(line).collect();
    std::fs::write(path, text).expect("a list of changes");
}

/// Outcomes by the names of changes; the last word counts.
fn read(results: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let outcomes = lines.filter_map(Result::ok).filter_map(|line| {
        let name = line["name"].as_str()?.to_owned();
        Some((name, line["outcome"].as_str()?.to_owned()))
    });
    outcomes.collect()
}

fn gates(tree: &Tree, root: &Path, arguments: &Arguments) -> Vec<Gate> {
    let Arguments {
        seeds,
        gates: asked,
        ..
    } = arguments;
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|it| it == name);
    let programs = tree.tests(&["engine", "sim"]);
    let mut gates = Vec::new();
    for (package, name, times) in GATES.iter().filter(|it| is_asked(it.1)) {
        let program: &PathBuf = programs.get(*name).expect("a program of each suite");
        let gate = Gate::new(name, program, seeds * times, &root.join(package));
        let reaches = gate.reaches.len();
        println!("{name}: {:.1?}, reaches {reaches}", gate.takes);
        gates.push(gate);
    }
    gates.sort_by_key(|it| it.takes);
    gates
}

fn try_all(gates: &[Gate], mut left: Vec<&Mutant>, results: &Path) {
    // An order that has nothing to do with where they stand.
    left.sort_by_key(|it| it.number.wrapping_mul(0x9e37_79b1));
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(results);
    let file = Mutex::new(file.expect("a file of results"));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(mutant) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (outcome, said) = try_one(gates, mutant.number);
                    let name = &mutant.name;
                    let line = json!({"name": name, "outcome": outcome, "said": said});
                    let mut file = file.lock().expect("no thread panics");
                    writeln!(file, "{line}").expect("a line of results");
                }
            });
        }
    });
}

/// Which suite noticed and what it said.
fn try_one(gates: &[Gate], number: u32) -> (String, String) {
    let mut outcome = "not reached";
    for gate in gates.iter().filter(|it| it.reaches.contains(&number)) {
        match gate.asks(number) {
            Answer::Fails(said) => return (gate.name.clone(), said),
            Answer::TooSlow => outcome = TOO_SLOW,
            Answer::Passes if outcome == TOO_SLOW => {}
            Answer::Passes => outcome = "survived",
        }
    }
    (outcome.to_owned(), String::new())
}

fn tell(tree: &Tree, outcomes: &BTreeMap<String, String>) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for mutant in &tree.mutants {
        let outcome = if tree.left_out.contains(&mutant.number) {
            "does not build"
        } else {
            outcomes
                .get(&mutant.name)
                .map_or("not tried", String::as_str)
        };
        *counts.entry(outcome).or_default() += 1;
        if NOT_NOTICED.contains(&outcome) {
            println!("{outcome}: {}", mutant.name);
        }
    }
    for (outcome, count) in counts {
        println!("{count:>8} {outcome}");
    }
}
