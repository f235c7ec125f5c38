//! `tenuto bench cow`: the evaluation of the COWCache paper.
//!
//! Owns the offline half and what real daemons and devices are asked. Always true: a target that is
//! missed is a line of the report and no failure; a baseline that is not the paper's is one, and so
//! is an experiment whose counters do not show its path; what was asked for in one command is one
//! report.

use super::tools::{BenchCow, BenchCowLive};
use super::trace::{self, From};
use crate::bench::cow::{
    self, Chapter, Comparison, Options, Part, Report, Trace, live, recovery, requests, scatter,
};
use crate::report;
use host::cli::arguments::{latency, size};
use host::cli::progress;
use host::cli::{Context, output};
use host::error::{Error, Result};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::trace::{Format, Item};

/// What asks real daemons, in the order of a report.
const LIVE: [&str; 4] = ["f3", "f4", "live", "recovery"];

pub fn run(context: &Context, command: &BenchCow) -> Result<()> {
    check(command)?;
    let asked = |name: &str| command.experiments.iter().any(|it| it == name);
    let parts = |part: &Part| asked("all") || part.keys().iter().any(|key| asked(key));
    let trace = command.trace.as_deref();
    let trace = trace.map(|path| load(path, command.format)).transpose()?;
    let options = Options {
        parts: Part::ALL.into_iter().filter(parts).collect(),
        scale: command.scale,
        seed: command.seed,
        trace: trace.map(Arc::new),
    };
    report::check(command.html.as_deref())?;
    let offline = match options.parts.is_empty() {
        true => None,
        false => Some(counted(context, "loads", options.steps(), |done| {
            cow::run(&options, done)
        })?),
    };
    let chapters = LIVE.into_iter().filter(|name| asked(name));
    let chapters = chapters.map(|name| chapter(context, command, name, &options));
    let chapters = chapters.collect::<Result<Vec<Chapter>>>()?;
    if let Some(path) = &command.html {
        report::save(path, &cow::page(offline.as_ref(), &chapters))?;
    }
    context
        .output()
        .document(&document(&offline, &chapters), || {
            let offline = offline.as_ref().map_or(String::new(), text);
            let chapters: Vec<String> = chapters.iter().map(chapter_text).collect();
            let page = command.html.as_ref();
            let page = page.map_or(String::new(), |it| format!("plots: {}\n", it.display()));
            format!("{offline}{}{page}", chapters.join("\n"))
        })?;
    match chapters.iter().all(|it| it.unproven.is_empty()) {
        true => Ok(()),
        // The notes say what is missing; a second line would be noise.
        false => Err(Error::failed("")),
    }
}

fn check(command: &BenchCow) -> Result<()> {
    let asked = |name: &&String| LIVE.contains(&name.as_str());
    if command.live.is_given() && !command.experiments.iter().any(|it| asked(&it)) {
        return Err(Error::usage(
            "bench cow: only --scale, --seed, --trace, --format and --html are for what is not f3, \
             f4, live or recovery",
        ));
    }
    let others = ["f4", "live", "recovery"];
    let no_trace = |name: &String| others.contains(&name.as_str());
    if command.trace.is_some() && command.experiments.iter().all(no_trace) {
        return Err(Error::usage(
            "bench cow: f4, live and recovery take no --trace",
        ));
    }
    Ok(())
}

/// One document where one thing was asked for, or a list of them.
fn document(offline: &Option<Report>, chapters: &[Chapter]) -> Value {
    let offline = offline.iter().map(Report::document);
    let chapters = chapters.iter().map(|it| it.document.clone());
    let mut all: Vec<Value> = offline.chain(chapters).collect();
    match all.len() {
        1 => all.remove(0),
        _ => json!({ "benchmark": "cow", "reports": all }),
    }
}

/// Runs something with a bar of its steps.
fn counted<T>(
    context: &Context,
    steps: &str,
    count: u64,
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T>,
) -> Result<T> {
    let template = format!("{{bar:40}} {{pos}} of {{len}} {steps}, {{elapsed}}");
    let bar = progress::counter(context.common.quiet, count, &template);
    let done = work(&mut |done| bar.set_position(done));
    bar.finish_and_clear();
    done
}

fn chapter(
    context: &Context,
    command: &BenchCow,
    name: &str,
    offline: &Options,
) -> Result<Chapter> {
    let (given, seed) = (&command.live, command.seed);
    match name {
        "f3" => {
            let options = requests_options(given, offline);
            let report = counted(context, "steps", options.steps(), |done| {
                requests::run(&options, done)
            });
            Ok(report?.chapter())
        }
        "f4" => {
            let options = scatter_options(given, seed)?;
            let report = counted(context, "steps", options.steps(), |done| {
                scatter::run(&options, done)
            });
            Ok(report?.chapter())
        }
        "recovery" => {
            let options = recovery_options(given)?;
            let report = counted(context, "slots", options.steps(), |done| {
                recovery::run(&options, done)
            });
            Ok(report?.chapter())
        }
        _ => {
            let options = live_options(given, seed)?;
            let report = counted(context, "slots", options.steps(), |done| {
                live::run(&options, done)
            });
            Ok(report?.chapter())
        }
    }
}

fn directory(given: &BenchCowLive) -> PathBuf {
    given.path.clone().unwrap_or_else(std::env::temp_dir)
}

fn size_or(option: &str, given: &Option<String>, usual: &str) -> Result<u64> {
    size(option, given.as_deref().unwrap_or(usual))
}

fn live_options(given: &BenchCowLive, seed: u64) -> Result<live::Options> {
    let origin_latency = given.origin_latency.as_deref().unwrap_or("1ms");
    Ok(live::Options {
        rounds: given.rounds.unwrap_or(5),
        seconds: given.seconds.unwrap_or(0.3),
        depth: given.qd.unwrap_or(16),
        disk_bytes: size_or("--data", &given.data, "1GiB")?,
        cache_bytes: size_or("--cache", &given.cache, "2GiB")?,
        origin_latency: latency("--origin-latency", origin_latency)?,
        origin_iops: given.origin_iops.unwrap_or(2000),
        seed,
        directory: directory(given),
    })
}

fn requests_options(given: &BenchCowLive, offline: &Options) -> requests::Options {
    requests::Options {
        far: given.far.unwrap_or(requests::Options::FAR),
        near: given.near.unwrap_or(requests::Options::NEAR),
        depth: given.qd.unwrap_or(1),
        scale: offline.scale,
        seed: offline.seed,
        trace: offline.trace.clone(),
        directory: directory(given),
    }
}

fn scatter_options(given: &BenchCowLive, seed: u64) -> Result<scatter::Options> {
    Ok(scatter::Options {
        rounds: given.rounds.unwrap_or(5),
        accesses: scatter::Options::ACCESSES,
        disk_bytes: size_or("--data", &given.data, "1GiB")?,
        cache_bytes: size_or("--cache", &given.cache, "2GiB")?,
        seed,
        directory: directory(given),
    })
}

fn recovery_options(given: &BenchCowLive) -> Result<recovery::Options> {
    let usual: Vec<String> = recovery::Options::PIECES
        .split(',')
        .map(String::from)
        .collect();
    let pieces = given.pieces.as_ref().unwrap_or(&usual).iter();
    let program = std::env::current_exe();
    Ok(recovery::Options {
        rounds: given.rounds.unwrap_or(5),
        dirty_bytes: size_or("--size", &given.size, "512MiB")?,
        piece_bytes: pieces
            .map(|it| size("--pieces", it))
            .collect::<Result<_>>()?,
        program: program.map_err(|error| Error::failed(format!("bench cow: {error}")))?,
        directory: directory(given),
        cache_directory: given.cache_path.clone(),
    })
}

fn load(path: &Path, format: Option<Format>) -> Result<Trace> {
    let from = From::file(path, format);
    let mut reader = trace::open(&from)?;
    let mut records = Vec::new();
    trace::each(&from, &mut reader, |_, item| {
        if let Item::Record(record) = item {
            records.push(*record);
        }
        Ok(())
    })?;
    Trace::of(&path.display().to_string(), records)
}

fn chapter_text(chapter: &Chapter) -> String {
    let mut text = format!("{}\n{}\n", chapter.headline, chapter.machine);
    for grid in &chapter.grids {
        let right: Vec<usize> = (grid.words..grid.head.len()).collect();
        text += &format!("\n{}", output::table(grid.head, &grid.rows, &right));
    }
    let notes: String = chapter.notes.iter().map(|it| format!("{it}\n")).collect();
    format!("{text}\n{notes}")
}

fn text(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report.calibrated.iter().map(|it| it.cells()).collect();
    let right: Vec<usize> = (0..cow::Calibrated::HEAD.len()).collect();
    let calibrated = output::table(&cow::Calibrated::HEAD, &rows, &right);
    let mut text = format!(
        "{}\n{}\n\nthe baseline against the paper's table 1, a million requests\n{calibrated}",
        report.headline(),
        report.machine()
    );
    for section in &report.sections {
        text += &format!("\n{}: {}\n{}\n", section.name, section.title, section.input);
        if !section.comparisons.is_empty() {
            let rows: Vec<Vec<String>> = section.comparisons.iter().map(|it| it.cells()).collect();
            let table = output::table(&Comparison::HEAD, &rows, &[2, 3, 4, 5, 6]);
            text += &format!("\n{table}");
        }
        let right: Vec<usize> = (2..cow::SIDES_HEAD.len()).collect();
        let table = output::table(&cow::SIDES_HEAD, &section.sides(), &right);
        text += &format!("\n{table}\n");
        for note in &section.notes {
            text += &format!("{note}\n");
        }
    }
    let (met, targets) = report.met();
    text += &format!("\n{}\ntargets met: {met} of {targets}\n", cow::SIDES_LEGEND);
    text
}
