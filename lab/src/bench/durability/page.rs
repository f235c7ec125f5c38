//! The report of durability by class, as a page.
//!
//! Always true: each plot is of one part that was measured; the notes of a part stand below it.

use super::Report;
use super::figure10::{Figure10, HEAD, ORIGIN_HEAD};
use crate::plot::{bars, escape};
use crate::report::{self as frame, Table};
use split::Class;

pub fn page(report: &Report) -> String {
    let lead = format!("{}. {}.", report.headline(), report.machine());
    let none = Table {
        head: &[],
        rows: &[],
    };
    let mut below = String::new();
    if let Some(figure) = &report.figure10 {
        below += &of_classes(figure);
    }
    frame::page("durability by class of the data", &lead, &none, &below)
}

fn notes(lines: &[String]) -> String {
    let lines = lines.iter().map(|it| format!("<li>{}</li>\n", escape(it)));
    format!("<ul>{}</ul>\n", lines.collect::<String>())
}

fn of_classes(figure: &Figure10) -> String {
    let names = Class::ALL.map(Class::name);
    let [requests, bytes] = figure.bars();
    let rows = figure.rows();
    let first = Table {
        head: &HEAD,
        rows: &rows,
    };
    let origin = figure.origin_rows();
    let origin = match origin.is_empty() {
        true => String::new(),
        false => frame::table(&Table {
            head: &ORIGIN_HEAD,
            rows: &origin,
        }),
    };
    format!(
        "<h2>Writes by class</h2>\n{}\n{}\n{}{origin}{}",
        bars("write requests, %", &names, &requests),
        bars("bytes written, %", &names, &bytes),
        frame::table(&first),
        notes(&figure.notes()),
    )
}
