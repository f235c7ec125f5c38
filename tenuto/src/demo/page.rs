//! The report as one HTML file that needs nothing else.
//!
//! Owns the page and its plots. Always true: it follows the reader's light or dark preference, and
//! every axis has a name and a unit. The plots are drawn here and not by a library, because a
//! library fixes colours that a style sheet then cannot change.

use super::stats::{over_time, rate};
use super::{Report, host::Run};
use std::fmt::Write;
use std::time::Duration;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const INTERVAL: Duration = Duration::from_millis(500);
/// About so many ticks on an axis.
const TICKS: f64 = 8.0;

pub const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1e21;--paper:#fff;--faint:#d9dce1;--soft:#5c636e;\
--uncached:#c2410c;--cached:#1d6fb8}\
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--paper:#16181c;--faint:#343941;\
--soft:#9aa3af;--uncached:#fb923c;--cached:#60a5fa}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
max-width:900px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem 1rem .25rem 0;border-bottom:1px solid var(--faint);text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{width:100%;height:auto}svg text{fill:var(--soft);font:12px system-ui,sans-serif}\
.grid{stroke:var(--faint)}.axis{stroke:var(--soft)}\
.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}\
.uncached{stroke:var(--uncached)}.cached{stroke:var(--cached)}";

pub struct Line {
    /// Class of the style sheet: `uncached` or `cached`.
    pub class: &'static str,
    pub dashed: bool,
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    Logarithmic,
}

pub fn page(report: &Report) -> String {
    let mut rows = String::new();
    for row in report.rows() {
        let (name, uncached, cached) = (escape(&row.name), &row.uncached, &row.cached);
        let _ = writeln!(
            rows,
            "<tr><td>{name}</td><td>{uncached}</td><td>{cached}</td></tr>"
        );
    }
    let notes: String = report
        .notes()
        .iter()
        .map(|note| format!("<li>{}</li>\n", escape(note)))
        .collect();
    let headline = escape(&report.headline());
    let latency = plot(
        "guest latency, ms (logarithmic)",
        Scale::Logarithmic,
        &latency_lines(report),
    );
    let requests = plot(
        "requests at the origin per second",
        Scale::Linear,
        &request_lines(report),
    );
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Tenuto: demonstration</title><style>{STYLE}</style></head><body>\n\
         <h1>Tenuto: the same guests without and with the cache</h1>\n<p>{headline}.</p>\n\
         <table><tr><th></th><th>without cache</th><th>with cache</th></tr>\n{rows}</table>\n\
         <ul>\n{notes}</ul>\n\
         <h2>Latency that guests see</h2>\n{latency}\n\
         <p>All requests of half a second together; from sending a request to its answer.</p>\n\
         <h2>Requests at the origin</h2>\n{requests}\n\
         <p>Reads, writes and syncs of the images; the last part of the run with the cache is \
         the destage.</p>\n</body></html>\n"
    )
}

fn latency_lines(report: &Report) -> Vec<Line> {
    let line = |class, name, run: &Run, percent| Line {
        class,
        dashed: percent == 99,
        name,
        points: over_time(&run.load.samples, INTERVAL, percent),
    };
    vec![
        line("uncached", "without cache, p50", &report.uncached, 50),
        line("uncached", "without cache, p99", &report.uncached, 99),
        line("cached", "with cache, p50", &report.cached, 50),
        line("cached", "with cache, p99", &report.cached, 99),
    ]
}

fn request_lines(report: &Report) -> Vec<Line> {
    let line = |class, name, run: &Run| Line {
        class,
        dashed: false,
        name,
        points: rate(&run.origin_requests),
    };
    vec![
        line("uncached", "without cache", &report.uncached),
        line("cached", "with cache", &report.cached),
    ]
}

/// One plot over the seconds of a run.
pub fn plot(name: &str, scale: Scale, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x_max = points().map(|point| point.0).fold(1.0, f64::max);
    let y_max = points().map(|point| point.1).fold(1.0, f64::max);
    let least = points().map(|point| point.1).fold(y_max, f64::min);
    let (low, high) = match scale {
        Scale::Linear => (0.0, y_max * 1.05),
        Scale::Logarithmic => (
            least.max(1e-3).log10().floor(),
            y_max.log10().ceil().max(1.0),
        ),
    };
    let x = |seconds: f64| LEFT + seconds / x_max * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| {
        let value = match scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(1e-3).log10(),
        };
        let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y_ticks(scale, low, high) {
        let at = y(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for tick in ticks(x_max) {
        let at = x(tick);
        let _ = write!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 18.0
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">time, s</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{name}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 10.0,
        (TOP + bottom) / 2.0
    );
    for (at, line) in lines.iter().enumerate() {
        draw(&mut svg, line, at, &x, &y);
    }
    svg.push_str("</svg>");
    svg
}

/// A line and its entry in the legend above the plot.
fn draw(
    svg: &mut String,
    line: &Line,
    at: usize,
    x: &impl Fn(f64) -> f64,
    y: &impl Fn(f64) -> f64,
) {
    let class = format!(
        "line {}{}",
        line.class,
        if line.dashed { " dashed" } else { "" }
    );
    let points: Vec<String> = line
        .points
        .iter()
        .map(|&(seconds, value)| format!("{:.1},{:.1}", x(seconds), y(value)))
        .collect();
    let left = LEFT + at as f64 * 190.0;
    let _ = write!(
        svg,
        "<polyline class=\"{class}\" points=\"{}\"/>\
         <line class=\"{class}\" x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"16\" y2=\"16\"/>\
         <text x=\"{:.1}\" y=\"20\">{}</text>",
        points.join(" "),
        left + 28.0,
        left + 34.0,
        line.name
    );
}

fn y_ticks(scale: Scale, low: f64, high: f64) -> Vec<f64> {
    match scale {
        Scale::Linear => ticks(high),
        Scale::Logarithmic => (low as i32..=high as i32)
            .map(|power| 10f64.powi(power))
            .collect(),
    }
}

/// Round numbers from zero to at most `max`.
fn ticks(max: f64) -> Vec<f64> {
    let rough = max / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.iter().find(|step| *step * power >= rough);
    let step = step.unwrap_or(&10.0) * power;
    (0..=(max / step) as u32)
        .map(|at| f64::from(at) * step)
        .collect()
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(ticks(1.0).len(), 6);
        assert!(ticks(2100.0).iter().all(|&tick| tick <= 2100.0));
    }

    #[test]
    fn every_point_of_a_plot_lies_inside_its_frame() {
        let line = Line {
            class: "cached",
            dashed: false,
            name: "a",
            points: vec![(0.0, 0.0004), (10.0, 3.0), (25.0, 4000.0)],
        };
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let svg = plot("ms", scale, std::slice::from_ref(&line));
            let points = svg.split("points=\"").nth(1).expect("a line");
            let points = points.split('"').next().expect("ends");
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').expect("two numbers");
                let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{point}");
                assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
            }
        }
    }
}
