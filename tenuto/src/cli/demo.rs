//! `tenuto demo`: one command that shows what the product is for.

use super::{Context, output, progress, tools};
use crate::demo::{self, Options};
use crate::error::Result;

pub fn run(context: &Context, command: &tools::Demo) -> Result<()> {
    let options = Options {
        report: command.report.clone(),
        seed: command.seed,
    };
    let bar = progress::counter(
        context.common.quiet,
        demo::requests(options.seed),
        "{bar:40} {percent:>3} % {elapsed} {msg}",
    );
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
