//! `tenuto demo`: one command that shows what the product is for.

use super::{Context, output, tools};
use crate::demo::{self, Options};
use crate::error::Result;
use indicatif::{ProgressBar, ProgressStyle};

pub fn run(context: &Context, command: &tools::Demo) -> Result<()> {
    let options = Options {
        report: command.report.clone(),
        seed: command.seed,
    };
    // indicatif hides it where standard error is no terminal.
    let bar = match context.common.quiet {
        0 => ProgressBar::new(demo::requests(options.seed)),
        _ => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % {elapsed} {msg}")
        .expect("the template has only known keys");
    bar.set_style(style);
    let report = demo::run(&options, &bar);
    bar.finish_and_clear();
    let report = report?;
    let rows: Vec<Vec<String>> = report
        .rows()
        .into_iter()
        .map(|row| vec![row.name, row.uncached, row.cached])
        .collect();
    let text = || {
        let table = output::table(&["", "WITHOUT CACHE", "WITH CACHE"], &rows, &[1, 2]);
        let notes: String = report
            .notes()
            .iter()
            .map(|note| format!("{note}\n"))
            .collect();
        let path = options.report.display();
        format!("{}\n\n{table}\n{notes}plots: {path}\n", report.headline())
    };
    let mut document = report.document();
    document["report"] = options.report.display().to_string().into();
    context.output().document(&document, text)
}
