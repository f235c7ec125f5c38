//! The report of the four policies, with plots.

use super::qcow2::Measured;
use super::{Column, NS_PER_SECOND, Played, Report};
use crate::plot::escape;
use crate::plot::{Axis, Curve, Scale, bars, chart};
use crate::replay::tally::Kinds;
use crate::report::{Table, page, table};
use workload::synth::peaks;

/// Points of a curve of a peak, and of the week.
const PEAK_STEP_S: usize = 5;
const WEEK_STEP_S: usize = 600;

/// Requests a second, the busiest second of each step, over time in `unit` seconds.
fn curves(report: &Report, from: usize, seconds: usize, step: usize, unit: f64) -> Vec<Curve> {
    let outcomes = report.outcomes.iter().enumerate();
    let points = |seconds: &[Kinds]| -> Vec<(f64, f64)> {
        let steps = seconds.chunks(step).enumerate();
        steps
            .map(|(at, chunk)| {
                let most = chunk.iter().map(|kinds| kinds.all()).max().unwrap_or(0);
                ((at * step) as f64 / unit, f64::from(most))
            })
            .collect()
    };
    outcomes
        .map(|(at, it)| {
            let end = (from + seconds).min(it.by_second.len());
            let part = it.by_second.get(from..end).unwrap_or_default();
            Curve::new(at, it.column.name(), points(part))
        })
        .collect()
}

fn section(title: &str, body: &str) -> String {
    format!("<h2>{title}</h2>\n{body}")
}

/// Each policy's part of what is sent without a cache, by peak.
fn parts(report: &Report, what: &str, pick: fn((f64, f64)) -> f64) -> String {
    let names = Column::ALL.map(Column::name);
    let of_peak = |peak: usize| Column::ALL.map(|column| pick(report.part(column, peak)) * 100.0);
    let rows: Vec<(String, Vec<f64>)> = peaks()
        .iter()
        .enumerate()
        .map(|(peak, period)| (period.name.to_owned(), of_peak(peak).to_vec()))
        .collect();
    section(
        &format!("The {what} of each peak, against no cache"),
        &bars(&format!("% of the {what} without a cache"), &names, &rows),
    )
}

/// Requests at shared storage over time, in each peak and in the week.
fn charts(report: &Report) -> String {
    let y = Axis {
        name: "requests/s at shared storage, most in each step",
        scale: Scale::Linear,
    };
    let mut html = String::new();
    for period in peaks() {
        let from = (period.from_ns / NS_PER_SECOND) as usize;
        let seconds = (period.duration_ns / NS_PER_SECOND) as usize;
        let x = Axis {
            name: "time in the peak (min)",
            scale: Scale::Linear,
        };
        let curves = curves(report, from, seconds, PEAK_STEP_S, 60.0);
        html.push_str(&section(period.name, &chart(x, y, &curves)));
    }
    let x = Axis {
        name: "time since Thursday 0:00 (h)",
        scale: Scale::Linear,
    };
    let week = report.outcomes.iter().map(|it| it.by_second.len()).max();
    let curves = curves(report, 0, week.unwrap_or(0), WEEK_STEP_S, 3600.0);
    html + &section("The week", &chart(x, y, &curves))
}

pub fn html(report: &Report) -> String {
    let limits = Table {
        head: &[
            "peak",
            "policy",
            "reads",
            "writes",
            "journal",
            "ledger",
            "busiest second: reads",
            "writes",
            "journal",
            "ledger",
            "reads found",
        ],
        rows: &limits(report),
    };
    let below = [
        section("Requests at shared storage in each peak", &table(&limits)),
        split(report),
        parts(report, "busiest second", |part| part.0),
        parts(report, "requests", |part| part.1),
        formats(report),
        charts(report),
    ]
    .concat();
    let head = report.head();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows = report.rows();
    let first = Table {
        head: &head,
        rows: &rows,
    };
    let lead = format!(
        "{} desktops, seed {}, in virtual time. Requests at shared storage in each peak; with a \
         cache, the part of those without, and the published part in brackets.",
        report.options.desktops, report.options.seed,
    );
    page(
        "a week of an office under four policies",
        &lead,
        &first,
        &below,
    )
}

/// The differential row by ranges of one disk, and on split disks.
fn split(report: &Report) -> String {
    let rows = report.split_rows();
    let rows = table(&Table {
        head: &Report::SPLIT_HEAD,
        rows: &rows,
    });
    let line = escape(&report.split_line());
    section(
        "By ranges, and on split disks",
        &format!("{rows}<p>{line}</p>"),
    )
}

/// qcow2 against raw, where it was asked for.
fn formats(report: &Report) -> String {
    let title = "qcow2 at the storage instead of raw";
    match (&report.qcow2, report.qcow2_line()) {
        (Played::Done(measured), _) => {
            let head = &Measured::HEAD;
            let rows = &measured.rows();
            let lead = escape(&measured.headline());
            section(
                title,
                &format!("<p>{lead}</p>{}", table(&Table { head, rows })),
            )
        }
        (_, Some(line)) => section(title, &format!("<p>{}</p>", escape(&line))),
        (_, None) => String::new(),
    }
}

fn limits(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (peak, period) in peaks().iter().enumerate() {
        for it in &report.outcomes {
            let cell = &it.peaks[peak];
            let mut row = vec![period.name.to_owned(), it.column.name().to_owned()];
            row.extend(cell.tallied.requests.iter().map(u64::to_string));
            row.extend(cell.tallied.busiest.0.iter().map(u32::to_string));
            row.push(format!("{:.1} %", cell.reads.hit_ratio() * 100.0));
            rows.push(row);
        }
    }
    rows
}
