//! The report of desktops: distributions of response times, and what each case carries.
//!
//! Always true: a curve is of one case with one number of users, its name says which.

use super::{Case, Outcome, Report};
use crate::plot::escape;
use crate::plot::{Axis, Curve, Scale, chart};
use crate::report::{self as frame, Table};

/// More points than pixels are of no use.
const POINTS: usize = 400;

pub fn page(report: &Report) -> String {
    let lead = format!("{}. {}.", report.headline(), report.machine());
    let table = Table {
        head: &Report::HEAD,
        rows: &report.rows(),
    };
    let findings: String = report
        .findings()
        .iter()
        .map(|line| format!("<li>{}</li>\n", escape(line)))
        .collect();
    let mut below = format!("<ul>{findings}</ul>\n");
    for case in &report.options.cases {
        below += &format!(
            "<h2>Response times, {}</h2>\n{}\n",
            escape(case.name()),
            distributions(report, *case)
        );
    }
    below += &format!(
        "<h2>Responses under 50 ms</h2>\n{}\n<h2>Time that 95 % did not exceed</h2>\n{}\n",
        by_users(report, "responses under 50 ms, %", Scale::Linear, |it| {
            Some(it.all.good() * 100.0)
        }),
        by_users(
            report,
            "95 % of responses within, ms",
            Scale::Logarithmic,
            |it| { it.all.quantile_us(950).map(|us| us.max(1) as f64 / 1e3) }
        ),
    );
    frame::page("desktops on a slow shared storage", &lead, &table, &below)
}

fn distributions(report: &Report, case: Case) -> String {
    let of_case = report.outcomes.iter().filter(|it| it.case == case);
    let curves: Vec<Curve> = of_case
        .enumerate()
        .map(|(number, outcome)| {
            let curve = outcome.all.curve();
            let step = curve.len().div_ceil(POINTS).max(1);
            let last = curve.len().saturating_sub(1);
            let points = curve.iter().enumerate();
            let points = points.filter(|(at, _)| at % step == 0 || *at == last);
            let points = points.map(|(_, point)| *point).collect();
            Curve::new(number, format!("{} users", outcome.users), points)
        })
        .collect();
    let x = Axis {
        name: "response time, ms",
        scale: Scale::Logarithmic,
    };
    let y = Axis {
        name: "responses within, %",
        scale: Scale::Linear,
    };
    chart(x, y, &curves)
}

fn by_users(
    report: &Report,
    name: &str,
    scale: Scale,
    figure: impl Fn(&Outcome) -> Option<f64>,
) -> String {
    let curves: Vec<Curve> = report
        .options
        .cases
        .iter()
        .enumerate()
        .map(|(number, case)| {
            let of_case = report.outcomes.iter().filter(|it| it.case == *case);
            let mut points: Vec<(f64, f64)> = of_case
                .filter_map(|it| Some((f64::from(it.users), figure(it)?)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve::new(number, case.name(), points)
        })
        .collect();
    let x = Axis {
        name: "users",
        scale: Scale::Linear,
    };
    chart(x, Axis { name, scale }, &curves)
}
