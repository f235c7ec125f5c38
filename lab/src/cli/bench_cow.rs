//! `tenuto bench cow`: the evaluation of the COWCache paper.
//!
//! Always true: a target that is missed is a line of the report and no failure; a baseline that is
//! not the paper's is one.

use super::tools::BenchCow;
use super::trace::{self, From};
use crate::bench::cow::{self, Comparison, Options, Part, Report, Trace};
use crate::report;
use host::cli::progress;
use host::cli::{Context, output};
use host::error::Result;
use std::path::Path;
use std::sync::Arc;
use workload::trace::{Format, Item};

pub fn run(context: &Context, command: &BenchCow) -> Result<()> {
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
