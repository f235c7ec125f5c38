//! The report of durability by class, as a page.
//!
//! Always true: each plot is of one part that was measured; the notes of a part stand below it.

use super::Report;
use super::figure10::{Figure10, HEAD, ORIGIN_HEAD};
use super::figure13::{self, Figure13};
use super::two_hosts::{self, TwoHosts};
use crate::plot::{Line, Scale, bars, escape, over_seconds};
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
    if let Some(figure) = &report.figure13 {
        below += &of_users(figure);
    }
    if let Some(hosts) = &report.hosts {
        below += &of_hosts(hosts);
    }
    frame::page("durability by class of the data", &lead, &none, &below)
}

fn notes(lines: &[String]) -> String {
    let lines = lines.iter().map(|it| format!("<li>{}</li>\n", escape(it)));
    format!("<ul>{}</ul>\n", lines.collect::<String>())
}

fn of_classes(figure: &Figure10) -> String {
    let names = Class::DURABILITIES.map(Class::name);
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

fn of_users(figure: &Figure13) -> String {
    let [asked, sent] = figure.series();
    let line = |class, name: &str, points| Line {
        class,
        dashed: false,
        name: name.to_owned(),
        points,
    };
    let lines = [
        line("uncached", "asked of the caches", asked),
        line("cached", "asked of the storage", sent),
    ];
    let rows = figure.rows();
    let table = Table {
        head: &figure13::HEAD,
        rows: &rows,
    };
    format!(
        "<h2>Heavy users on disks by class</h2>\n<p>{}</p>\n{}\n{}{}",
        escape(&figure.headline()),
        over_seconds("requests per second", Scale::Linear, &lines),
        frame::table(&table),
        notes(&figure.notes()),
    )
}

fn of_hosts(hosts: &TwoHosts) -> String {
    let rows = hosts.rows();
    let table = Table {
        head: &two_hosts::HEAD,
        rows: &rows,
    };
    format!(
        "<h2>Two hosts, one share</h2>\n<p>{}</p>\n{}\n{}{}",
        escape(&hosts.headline()),
        bars(
            "requests at the share in the busiest second",
            &["reads", "writes"],
            &hosts.bars()
        ),
        frame::table(&table),
        notes(&hosts.notes()),
    )
}
