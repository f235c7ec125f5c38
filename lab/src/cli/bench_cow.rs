//! `tenuto bench cow`: the evaluation of the COWCache paper.
//!
//! Owns the offline half and the live one. Always true: a target that is missed is a line of the
//! report and no failure; a baseline that is not the paper's is one, and so is a live load of which
//! no round shows its path.

use super::tools::BenchCow;
use super::trace::{self, From};
use crate::bench::cow::{self, Comparison, Options, Part, Report, Trace, live};
use crate::report;
use host::cli::arguments::{latency, size};
use host::cli::progress;
use host::cli::{Context, output};
use host::error::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use workload::trace::{Format, Item};

const LIVE: &str = "live";

pub fn run(context: &Context, command: &BenchCow) -> Result<()> {
    if command.experiment == LIVE {
        return run_live(context, command);
    }
    if command.live.is_given() {
        return Err(Error::usage(
            "bench cow: --rounds, --seconds, --qd, --data, --cache, --origin-latency, \
             --origin-iops and --path belong to `bench cow live`",
        ));
    }
    let asked = |part: &Part| {
        let name = command.experiment.as_str();
        name == "all" || part.keys().contains(&name)
    };
    let trace = command.trace.as_deref();
    let trace = trace.map(|path| load(path, command.format));
    let options = Options {
        parts: Part::ALL.into_iter().filter(asked).collect(),
        scale: command.scale,
        seed: command.seed,
        trace: trace.transpose()?.map(Arc::new),
    };
    report::check(command.html.as_deref())?;
    let template = "{bar:40} {pos} of {len} loads, {elapsed}";
    let bar = progress::counter(context.common.quiet, options.steps(), template);
    let report = cow::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    if let Some(path) = &command.html {
        report::save(path, &report.page())?;
    }
    context
        .output()
        .document(&report.document(), || text(&report, command))
}

fn run_live(context: &Context, command: &BenchCow) -> Result<()> {
    if command.trace.is_some() || command.html.is_some() {
        return Err(Error::usage(
            "bench cow live: takes no --trace, and writes no --html",
        ));
    }
    let given = &command.live;
    let or = |it: &Option<String>, usual: &str| it.clone().unwrap_or_else(|| usual.into());
    let options = live::Options {
        rounds: given.rounds.unwrap_or(5),
        seconds: given.seconds.unwrap_or(0.3),
        depth: given.qd.unwrap_or(16),
        disk_bytes: size("--data", &or(&given.data, "1GiB"))?,
        cache_bytes: size("--cache", &or(&given.cache, "2GiB"))?,
        origin_latency: latency("--origin-latency", &or(&given.origin_latency, "1ms"))?,
        origin_iops: given.origin_iops.unwrap_or(2000),
        seed: command.seed,
        directory: given.path.clone().unwrap_or_else(std::env::temp_dir),
    };
    let template = "{bar:40} {pos} of {len} slots, {elapsed}";
    let bar = progress::counter(context.common.quiet, options.steps(), template);
    let report = live::run(&options, |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report?;
    context.output().document(&report.document(), || {
        let right = [2, 3, 4, 5, 6, 7, 8, 9, 10];
        let table = output::table(&live::Report::HEAD, &report.rows(), &right);
        let right = [3, 4, 5, 6, 7, 8, 9, 10];
        let paths = output::table(&live::Report::PATHS_HEAD, &report.paths(), &right);
        let notes: String = report.notes().iter().map(|it| format!("{it}\n")).collect();
        let (headline, machine) = (report.headline(), report.machine());
        format!("{headline}\n{machine}\n\n{table}\n{paths}\n{notes}")
    })?;
    match report.unproven().is_empty() {
        true => Ok(()),
        // The notes say what is missing; a second line would be noise.
        false => Err(Error::failed("")),
    }
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

fn text(report: &Report, command: &BenchCow) -> String {
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
    if let Some(path) = &command.html {
        text += &format!("plots: {}\n", path.display());
    }
    text
}
