//! `tenuto demo`: one command that shows what the product is for.

use super::{Context, output, progress, tools};
use crate::demo::{self, Client, Options};
use crate::error::Result;
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
    let rows: Vec<Vec<String>> = report
        .figures()
        .into_iter()
        .map(|figure| {
            let (uncached, cached, ratio) = (figure.text(0), figure.text(1), figure.ratio());
            vec![figure.name, uncached, cached, ratio]
        })
        .collect();
    let text = || {
        let table = output::table(&["", "WITHOUT CACHE", "WITH CACHE", ""], &rows, &[1, 2, 3]);
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
