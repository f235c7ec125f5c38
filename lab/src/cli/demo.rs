//! `tenuto demo`: one command that shows what the product is for.

use super::tools;
use crate::demo::{self, Client, Options, Side};
use host::cli::{Context, output, progress};
use host::error::Result;
use std::time::Duration;

/// The time beside the bar goes on also while nothing else does.
const TICK: Duration = Duration::from_millis(250);

pub fn run(context: &Context, command: &tools::Demo) -> Result<()> {
    let options = Options {
        report: command.report.clone(),
        seed: command.seed,
        client: match command.client {
            _ if command.no_guests => Client::Builtin,
            tools::DemoClient::Auto => Client::Auto,
            tools::DemoClient::Qemu => Client::Qemu,
            tools::DemoClient::Builtin => Client::Builtin,
        },
        kernel: command.kernel.clone(),
        clones: command.guests.map(usize::from),
    };
    let bar = progress::counter(
        context.common.quiet,
        1,
        "{bar:40} {percent:>3} % {elapsed} {msg}",
    );
    bar.enable_steady_tick(TICK);
    let report = demo::run(&options, &bar);
    bar.finish_and_clear();
    let report = report?;
    let text = || {
        let notes: String = report
            .notes()
            .iter()
            .map(|note| format!("{note}\n"))
            .collect();
        let summary = report.summary().join("\n");
        let path = options.report.display();
        format!("{summary}\n\n{}\n{notes}plots: {path}\n", table(&report))
    };
    let mut document = report.document();
    document["report"] = options.report.display().to_string().into();
    context.output().document(&document, text)
}

/// All figures, each section below its name.
fn table(report: &demo::Report) -> String {
    let mut rows = Vec::new();
    for section in report.sections() {
        rows.push(vec![String::new()]);
        rows.push(vec![section.name.to_owned()]);
        for figure in section.figures {
            let mut row = vec![format!("  {}", figure.name)];
            row.extend(Side::ALL.map(|side| figure.text(side)));
            row.push(figure.ratio());
            rows.push(row);
        }
    }
    let names = Side::ALL.map(|side| side.name().to_uppercase());
    let [raw, qcow2, tenuto] = &names;
    let head = ["", raw, qcow2, tenuto, "TENUTO AGAINST RAW"];
    output::table(&head, &rows, &[1, 2, 3, 4])
}
