//! The report as one HTML file.

use super::chapter::Chapter;
use super::paper::Calibrated;
use super::report::Report;
use super::section::{Comparison, SIDES_HEAD, SIDES_LEGEND, Section};
use crate::plot::escape;
use crate::report::{self as frame, Table};

/// The offline half where there is one, and the chapters that were asked for with it.
pub fn page(report: Option<&Report>, chapters: &[Chapter]) -> String {
    let chapters: String = chapters.iter().map(Chapter::html).collect();
    let Some(report) = report else {
        let lead = "the COWCache paper against Tenuto, on this machine";
        return frame::page("copy-on-write", lead, &EMPTY, &chapters);
    };
    let lead = format!("{}. {}.", report.headline(), report.machine());
    let rows: Vec<Vec<String>> = report.calibrated.iter().map(Calibrated::cells).collect();
    let table = Table {
        head: &Calibrated::HEAD,
        rows: &rows,
    };
    let sections: String = report.sections.iter().map(section).collect();
    let below = format!(
        "<p class=\"small\">The baseline TRDCache, a million random writes of 64 KiB, against \
         the paper's table 1.</p>\n<p class=\"small\">{}</p>\n{sections}{chapters}",
        escape(SIDES_LEGEND)
    );
    frame::page("copy-on-write", &lead, &table, &below)
}

/// Every chapter has its own tables.
const EMPTY: Table<'_> = Table {
    head: &[],
    rows: &[],
};

fn section(section: &Section) -> String {
    let (compared, sides) = (
        section.comparisons.iter().map(Comparison::cells).collect(),
        section.sides(),
    );
    let compared: Vec<Vec<String>> = compared;
    let head = &Comparison::HEAD;
    let compared = match compared.is_empty() {
        true => String::new(),
        false => frame::table(&Table {
            head,
            rows: &compared,
        }),
    };
    let sides = frame::table(&Table {
        head: &SIDES_HEAD,
        rows: &sides,
    });
    let plots = section.plots.iter();
    let plots: String = plots
        .map(|(title, svg)| format!("<h3>{}</h3>\n{svg}\n", escape(title)))
        .collect();
    let notes = section.notes.iter();
    let notes: String = notes
        .map(|note| format!("<p class=\"small\">{}</p>\n", escape(note)))
        .collect();
    format!(
        "<h2>{}: {}</h2>\n<p>{}</p>\n{plots}{compared}{sides}{notes}",
        escape(section.name),
        escape(section.title),
        escape(&section.input),
    )
}
