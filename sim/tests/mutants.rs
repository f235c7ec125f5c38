//! The audit of the gates: each rule that the product's own code can break on demand is broken, and
//! the gate that is named for it here must notice within so many seeds.
//!
//! `TENUTO_BUGS=4` breaks every fourth rule, from `TENUTO_BUGS_FIRST` modulo 4 on;
//! `TENUTO_BUG=SkipLogSync` tries all gates on this one, or those with `TENUTO_GATE` in their
//! names, with `TENUTO_SIM_SEEDS` seeds each. Always true: the seed that notices passes while all
//! rules are kept. Which gate is for which rule stands in `adversary/rules.rs`.
//! `TENUTO_RUN=SmallLog` with `TENUTO_SIM_FIRST` and `TENUTO_SIM_SEEDS` asks one gate while all
//! rules are kept. Built with the feature `adversary` alone.

mod adversary;

use adversary::Gate::{
    self, EarlyDestages, LargeWrites, Scenario, ShortLives, SmallLog, SmallOverlay, Troubled,
};
use adversary::number;
use adversary::rules::{OWN_TESTS, Rule, SEEDS_MAX, SURVIVORS};
use engine::adversary as of_engine;
use image::adversary as of_image;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;
use vring::adversary as of_rings;

/// Seeds that run side by side, on the two cores of the machines that test.
const THREADS: u64 = 2;
/// Characters of a message that are printed.
const WORDS_MAX: usize = 140;

/// Breaks this rule alone, or keeps it again.
fn set(rule: Rule, broken: bool) {
    match rule {
        Rule::Engine(bug) => of_engine::break_rule(broken.then_some(bug)),
        Rule::Rings(bug) => of_rings::break_rule(broken.then_some(bug)),
        Rule::Image(bug) => of_image::break_rule(broken.then_some(bug)),
    }
}

/// Its answers to seeds while all rules are kept, each asked for once.
#[derive(Default)]
struct Honest(BTreeMap<(Gate, u64), bool>);

impl Honest {
    fn passes(&mut self, gate: Gate, seed: u64) -> bool {
        *self
            .0
            .entry((gate, seed))
            .or_insert_with(|| gate.judge(seed).is_ok())
    }
}

/// The first of these seeds at which a gate notices a broken rule, and its words.
fn caught(honest: &mut Honest, rule: Rule, gate: Gate, of: Range<u64>) -> Option<(u64, String)> {
    let seeds = of.end;
    for first in of.step_by(THREADS as usize) {
        set(rule, true);
        let batch: Vec<_> = std::thread::scope(|scope| {
            let threads = (first..seeds.min(first + THREADS))
                .map(|seed| scope.spawn(move || (seed, gate.judge(seed))));
            let threads: Vec<_> = threads.collect();
            let results = threads.into_iter().map(|it| it.join().expect("a run ends"));
            results.collect()
        });
        set(rule, false);
        for (seed, outcome) in batch {
            if let Err(words) = outcome
                && honest.passes(gate, seed)
            {
                return Some((seed, words));
            }
        }
    }
    None
}

/// All gates on one rule.
fn explore(name: &str) {
    let mut honest = Honest::default();
    let seeds = number("TENUTO_SIM_SEEDS").unwrap_or(SEEDS_MAX);
    let scenarios = sim::scenario::ALL.iter().map(|it| Scenario(it.name));
    let gates: Vec<Gate> = Gate::ALL.iter().copied().chain(scenarios).collect();
    let wanted = std::env::var("TENUTO_GATE").unwrap_or_default();
    let is_wanted = |gate: &&Gate| format!("{gate:?}").contains(&wanted);
    for rule in Rule::all().filter(|rule| rule.name() == name) {
        for gate in gates.iter().filter(is_wanted) {
            match caught(&mut honest, rule, *gate, 0..seeds) {
                Some((seed, words)) => println!("{gate:?}, seed {seed}: {words}"),
                None => println!("{gate:?}: nothing within {seeds} seeds"),
            }
        }
    }
}

/// One gate on seeds, while all rules are kept.
fn alone(name: &str, first: u64) {
    let scenarios = sim::scenario::ALL.iter().map(|it| Scenario(it.name));
    let gates = Gate::ALL.iter().copied().chain(scenarios);
    for gate in gates.filter(|gate| format!("{gate:?}").contains(name)) {
        for seed in first..first + number("TENUTO_SIM_SEEDS").unwrap_or(1) {
            if let Err(words) = gate.judge(seed) {
                println!("{gate:?}, seed {seed}: {words}");
            }
        }
    }
}

#[test]
fn every_broken_rule_is_noticed_by_its_gate() {
    let _alone = SWITCH.lock().unwrap_or_else(|it| it.into_inner());
    // A broken rule may end in an assert of the engine, which a run tells in its own words.
    std::panic::set_hook(Box::new(|_| {}));
    if let (Ok(gate), Some(first)) = (std::env::var("TENUTO_RUN"), number("TENUTO_SIM_FIRST")) {
        return alone(&gate, first);
    }
    if let Ok(name) = std::env::var("TENUTO_BUG") {
        return explore(&name);
    }
    let part = number("TENUTO_BUGS").unwrap_or(1) as usize;
    let first = number("TENUTO_BUGS_FIRST").unwrap_or(0) as usize % part;
    println!("one in {part} of the rules, from {first} on");
    let mut honest = Honest::default();
    let mut unnoticed = Vec::new();
    let of_gates = Rule::all().filter(|it| it.survives().is_none() && it.own_test().is_none());
    for rule in of_gates.skip(first).step_by(part) {
        let (gate, seeds) = rule.gate();
        let began = Instant::now();
        let Some((seed, words)) = caught(&mut honest, rule, gate, seeds.clone()) else {
            println!("{} passes seeds {seeds:?} of {gate:?}", rule.name());
            unnoticed.push(rule.name());
            continue;
        };
        let words: String = words.chars().take(WORDS_MAX).collect();
        let took = began.elapsed();
        let (name, (_, wrong)) = (rule.name(), rule.what());
        println!("{name}: {wrong}\n    {gate:?}, seed {seed}, in {took:.1?}: {words}");
    }
    for (bug, test, _) in OWN_TESTS {
        println!("{bug:?} is broken by {test}");
    }
    for (bug, why) in SURVIVORS {
        println!("{bug:?} survives: {why}");
    }
    assert!(unnoticed.is_empty(), "no gate notices {unnoticed:?}");
}

/// The switch is one for the process, so one test at a time has it.
static SWITCH: Mutex<()> = Mutex::new(());

#[test]
fn gates_that_only_the_audit_has_pass_while_all_rules_are_kept() {
    let _alone = SWITCH.lock().unwrap_or_else(|it| it.into_inner());
    let seeds = number("TENUTO_SIM_SEEDS").map_or(20, |all| all.div_ceil(25));
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let mut failed = 0;
    for gate in [
        ShortLives,
        SmallLog,
        LargeWrites,
        SmallOverlay,
        Troubled,
        EarlyDestages,
    ] {
        for seed in first..first + seeds {
            if let Err(words) = gate.judge(seed) {
                println!("{gate:?}, seed {seed}: {words}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 0, "seeds fail");
}
