//! `tenuto sim`: the adversary of the tests, for as long as somebody likes to watch.
//!
//! Owns the choice of seeds and the words around them. Always true: a seed that fails is made as
//! small as it gets and named with the class of what it broke and the command that replays it, also
//! when the engine panics; without `--seed` the first seed is printed, so that a whole run can be
//! repeated. Each try of a smaller case is a process of its own, because a release build does not
//! outlive a panic. Deliberately absent: what happens in a seed, which is in the crate `sim`,
//! named by nobody else.
//!
//! Exit codes: 5 where data was lost or wrong (safety), 1 where something did not end (liveness)
//! or the engine panicked (crash); the message and `class` in the document tell these two apart.

use super::tools;
use host::cli::{Context, output, progress};
use host::error::{Error, Kind, Result};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use sim::shrink::{runs_max, shrink};
use sim::swarm::Case;
use sim::trace::Counters;
use sim::{Class, Options, Sabotage};
use std::cell::RefCell;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

thread_local! {
    /// What runs on this thread, for the case that it panics.
    static UNDER_WAY: RefCell<Option<(Context, tools::Sim, Case, Passed)>> =
        const { RefCell::new(None) };
}

/// What a run had checked before it came to a case that broke a promise.
#[derive(Clone, Copy, Default)]
struct Passed {
    seeds: u64,
    faults: u64,
    acknowledged: u64,
    seconds: f64,
}

/// A case that broke a promise.
struct Finding {
    case: Case,
    class: Class,
    message: String,
    step: u64,
    /// What was done last.
    history: Vec<String>,
}

/// What all seeds did together.
#[derive(Default)]
struct Totals {
    first: u64,
    seeds: u64,
    counters: Counters,
    trace_hash: u64,
}

pub fn run(context: &Context, command: &tools::Sim) -> Result<()> {
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(command.seconds);
    let first = command.seed.unwrap_or_else(fresh_seed);
    let seeds = match (command.seed, command.seeds) {
        (Some(_), None) => 1,
        (_, seeds) => seeds.unwrap_or(u64::MAX),
    };
    tell_of_a_panic();
    let bar = bar(context, command);
    let mut totals = Totals {
        first,
        ..Totals::default()
    };
    let mut passed = Passed::default();
    let mut failure = None;
    for seed in (first..).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        // A seed that was asked for runs to its end.
        if command.seed.is_none() && Instant::now() >= deadline {
            break;
        }
        let case = case(command, seed);
        passed = totals.passed(begun.elapsed());
        UNDER_WAY.set(Some((context.clone(), command.clone(), case, passed)));
        let options = Options {
            verbose: context.common.verbose > 0,
            story: command.no_shrink,
            sabotage: command.breaks.as_deref().map(sabotage),
            ..case.options()
        };
        match sim::run(&options) {
            Ok(outcome) => totals.add(&outcome),
            Err(broken) => {
                failure = Some(Finding {
                    case,
                    class: broken.class,
                    message: broken.message,
                    step: broken.step,
                    history: broken.story,
                });
                break;
            }
        }
        bar.set_position(begun.elapsed().as_millis() as u64);
        bar.set_message(format!(
            "{} seeds, {} faults",
            totals.seeds,
            totals.counters.faults()
        ));
    }
    bar.finish_and_clear();
    if let Some(finding) = failure {
        return Err(conclude(context, command, finding, passed));
    }
    let took = begun.elapsed();
    let document = document(&totals, command, took);
    context
        .output()
        .document(&document, || text(&totals, command, took))
}

fn case(command: &tools::Sim, seed: u64) -> Case {
    Case {
        seed,
        operations: command.operations,
        restarts: command.restarts,
        without: command.without.iter().copied().collect(),
    }
}

fn sabotage(name: &str) -> Sabotage {
    match name {
        "cache-sync" => Sabotage::CacheSync,
        "answers" => Sabotage::NoAnswer,
        _ => Sabotage::Panics,
    }
}

impl Totals {
    fn add(&mut self, outcome: &sim::Outcome) {
        self.seeds += 1;
        self.counters.add(&outcome.counters);
        self.trace_hash = outcome.trace_hash;
    }

    fn passed(&self, took: Duration) -> Passed {
        Passed {
            seeds: self.seeds,
            faults: self.counters.faults(),
            acknowledged: self.counters.acknowledged,
            seconds: took.as_secs_f64(),
        }
    }
}

/// Tells of a finding, as small as it gets.
fn conclude(context: &Context, command: &tools::Sim, finding: Finding, passed: Passed) -> Error {
    let small = match command.no_shrink {
        true => finding,
        false => smallest(context, command, finding),
    };
    let class = small.class;
    let kind = match class {
        Class::Safety => Kind::Damaged,
        Class::Liveness | Class::Crash => Kind::Failed,
    };
    let (seed, step) = (small.case.seed, small.step);
    let message = format!(
        "seed {seed} breaks {} in step {step}: {}; replay: {}",
        class.name(),
        small.message,
        replay(&small.case)
    );
    let error = Error::new(kind, message).about(format!("seed {seed}"));
    if context.common.json {
        let mut document = error.to_json();
        document["class"] = json!(class.name());
        document["seed"] = json!(seed);
        document["seeds_passed"] = json!(passed.seeds);
        document["faults_passed"] = json!(passed.faults);
        document["writes_passed"] = json!(passed.acknowledged);
        document["seconds_passed"] = json!(passed.seconds);
        document["step"] = json!(step);
        document["cause"] = json!(small.message);
        document["operations"] = json!(small.case.operations);
        document["restarts"] = json!(small.case.restarts());
        document["features"] = json!(small.case.features().to_string());
        document["replay"] = json!(replay(&small.case));
        document["history"] = json!(small.history);
        let _ = writeln!(std::io::stdout(), "{document}");
    } else {
        let before = format!(
            "before it {} seeds kept every promise: {} faults, {} acknowledged writes, {:.0} s",
            passed.seeds, passed.faults, passed.acknowledged, passed.seconds
        );
        let _ = writeln!(std::io::stdout(), "{}{before}", history(&small));
    }
    let _ = writeln!(std::io::stderr(), "tenuto: {}", error.message);
    // All is said.
    Error {
        message: String::new(),
        ..error
    }
}

fn history(finding: &Finding) -> String {
    let case = &finding.case;
    let mut text = format!(
        "seed {} with {} operations, {} restarts: {}\n",
        case.seed,
        case.operations,
        case.restarts(),
        case.features()
    );
    for line in &finding.history {
        text += line;
        text += "\n";
    }
    text
}

/// The smallest case found that fails in the same class, and how it came to that.
fn smallest(context: &Context, command: &tools::Sim, finding: Finding) -> Finding {
    let tries = runs_max(finding.step);
    let quiet = context.common.quiet + u8::from(context.common.verbose > 0);
    let bar = progress::counter(quiet, u64::from(tries), "{bar:40} {elapsed} {msg}");
    bar.set_message(format!("seed {} fails, shrinking it", finding.case.seed));
    let judge = |case: &Case| {
        bar.inc(1);
        try_alone(command, case).map(|it| it.class)
    };
    let small = shrink(finding.case, finding.class, tries, judge);
    bar.finish_and_clear();
    let again = try_alone(command, &small.case).filter(|it| it.class == finding.class);
    again.unwrap_or(finding)
}

/// Runs one case in a process of its own; what it breaks.
fn try_alone(command: &tools::Sim, case: &Case) -> Option<Finding> {
    let mut child = Command::new(std::env::current_exe().ok()?);
    child.args(["sim", "--json", "--no-shrink"]);
    child.args(case.arguments().split(' '));
    if let Some(rule) = &command.breaks {
        child.args(["--breaks", rule]);
    }
    let output = child.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let document: Value = serde_json::from_slice(&output.ok()?.stdout).ok()?;
    let class = document.get("class")?.as_str()?;
    let lines = document["history"].as_array().into_iter().flatten();
    Some(Finding {
        case: *case,
        class: Class::ALL.into_iter().find(|it| it.name() == class)?,
        message: document["cause"].as_str()?.to_owned(),
        step: document["step"].as_u64()?,
        history: lines
            .filter_map(|it| Some(it.as_str()?.to_owned()))
            .collect(),
    })
}

fn replay(case: &Case) -> String {
    format!("tenuto sim {} -v", case.arguments())
}

/// Counts that say how much was checked; the others but `STEPS` are faults and deeds.
const STEPS: &str = "steps";

fn text(totals: &Totals, command: &tools::Sim, took: Duration) -> String {
    let rows: Vec<Vec<String>> = totals
        .counters
        .list()
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value.to_string()])
        .collect();
    let hash = match totals.seeds {
        1 => format!("trace hash {:016x}\n", totals.trace_hash),
        _ => String::new(),
    };
    format!(
        "{} seeds from {} in {:.1} s, {} faults; every promise was kept\n{hash}\n{}",
        totals.seeds,
        totals.first,
        took.as_secs_f64(),
        totals.counters.faults(),
        output::table(&["WHAT", "COUNT"], &rows, &[1]),
    ) + &match totals.seeds {
        0 => String::new(),
        _ => format!(
            "\nthe first again: {}\n",
            replay(&case(command, totals.first))
        ),
    }
}

fn document(totals: &Totals, command: &tools::Sim, took: Duration) -> Value {
    let counters: Map<String, Value> = totals
        .counters
        .list()
        .into_iter()
        .filter(|(name, _)| *name != STEPS)
        .map(|(name, value)| (name.replace(' ', "_"), json!(value)))
        .collect();
    json!({
        "first_seed": totals.first,
        "seeds": totals.seeds,
        "operations_per_seed": command.operations,
        "seconds": took.as_secs_f64(),
        "faults": totals.counters.faults(),
        "steps": totals.counters.steps,
        "trace_hash": (totals.seeds == 1).then(|| format!("{:016x}", totals.trace_hash)),
        "counters": counters,
    })
}

fn bar(context: &Context, command: &tools::Sim) -> ProgressBar {
    let common = &context.common;
    let still = common.verbose > 0 || command.seed.is_some();
    let quiet = common.quiet + u8::from(still);
    progress::counter(quiet, command.seconds * 1000, "{bar:40} {elapsed} {msg}")
}

/// Small, so that it is easy to type again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64 % 1_000_000_000)
}

/// A release build aborts on a panic, and nobody would know the seed: an assert of the engine is
/// a finding like any other and ends with the same words and exit code.
fn tell_of_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.payload_as_str().unwrap_or("without words");
        let place = panic.location().map(ToString::to_string);
        let message = format!("panic at {}: {words}", place.unwrap_or_default());
        let code = match UNDER_WAY.take() {
            Some((context, command, case, passed)) => {
                let finding = Finding {
                    case,
                    class: Class::Crash,
                    message,
                    // How far it came is lost with it.
                    step: 0,
                    history: Vec::new(),
                };
                conclude(&context, &command, finding, passed)
                    .kind
                    .exit_code()
            }
            None => {
                let error = Error::failed(message);
                host::cli::report(&error, false);
                error.kind.exit_code()
            }
        };
        let _ = std::io::stdout().flush();
        std::process::exit(i32::from(code));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_run_name_the_command_that_repeats_it() {
        let outcome = sim::run(&Options {
            operations: 100,
            ..Options::from_seed(7)
        })
        .expect("seed 7 keeps every promise");
        let mut totals = Totals {
            first: 7,
            ..Totals::default()
        };
        totals.add(&outcome);
        let command = tools::Sim {
            seed: None,
            seconds: 1,
            seeds: None,
            operations: 100,
            restarts: None,
            without: Vec::new(),
            no_shrink: false,
            breaks: None,
        };
        let text = text(&totals, &command, Duration::from_secs(1));
        assert!(text.starts_with("1 seeds from 7"), "{text}");
        assert!(text.contains("tenuto sim --seed 7 --operations 100"));
        let document = document(&totals, &command, Duration::from_secs(1));
        assert_eq!(document["seeds"], 1);
        assert!(document["counters"]["volumes_verified"].as_u64() > Some(0));
    }
}
