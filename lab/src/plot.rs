//! Curves and bars as SVG inside a page.
//!
//! Owns axes, ticks and legends. Always true: every axis has a name and a unit, every curve a
//! name; colours are classes of the style sheet of the page, so that it can follow the reader's
//! light or dark preference; what is drawn lies inside its frame, and a description says what it
//! is to those who do not see it. The plots are drawn here and not by a library, because a library
//! fixes colours that a style sheet then cannot change.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 50.0;
/// About so many ticks on an axis.
const TICKS: f64 = 8.0;
const LEGEND_WIDTH: f64 = 190.0;
const LEGEND_HEIGHT: f64 = 18.0;
/// The least that a logarithmic axis shows.
const LOG_LEAST: f64 = 1e-3;
/// Classes `c0` to `c7`, each with a colour for light and for dark.
pub const COLOURS: usize = 8;
/// So many colours are told apart by everybody; curves of the others have dashes too.
const FULL: usize = 4;

/// The colours of curves and bars.
pub const STYLE: &str = "\
:root{--c0:#1d6fb8;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#a16207;--c5:#be185d;--c6:#0e7490;\
--c7:#4b5563}\
@media(prefers-color-scheme:dark){:root{--c0:#60a5fa;--c1:#fb923c;--c2:#4ade80;--c3:#c084fc;\
--c4:#facc15;--c5:#f472b6;--c6:#22d3ee;--c7:#9ca3af}}\
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}\
.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}\
.line.dotted{stroke-dasharray:2 3}\
.bar{stroke:none}.bar.c0{fill:var(--c0)}.bar.c1{fill:var(--c1)}.bar.c2{fill:var(--c2)}\
.bar.c3{fill:var(--c3)}";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    Linear,
    /// Linear, of things that come whole.
    Counts,
    Logarithmic,
}

/// An axis with its unit in the name.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    pub name: &'a str,
    pub scale: Scale,
}

#[derive(Clone, Debug)]
pub struct Curve {
    /// Class of the style sheet.
    pub class: String,
    pub dashed: bool,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// The curve of this number in its plot.
    pub fn new(number: usize, name: impl Into<String>, points: Vec<(f64, f64)>) -> Curve {
        Curve {
            // Colours come again, then in dots.
            class: match number {
                0..COLOURS => format!("c{number}"),
                _ => format!("c{} dotted", number % COLOURS),
            },
            dashed: number % COLOURS >= FULL,
            name: name.into(),
            points,
        }
    }
}

/// What an axis shows: from where to where.
#[derive(Clone, Copy, Debug)]
struct Span {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Span {
    fn new(scale: Scale, values: impl Iterator<Item = f64> + Clone, headroom: f64) -> Span {
        let most = values.clone().fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let positive = values.filter(|value| *value > 0.0);
        let (low, high) = match scale {
            Scale::Linear | Scale::Counts => (0.0, most * headroom),
            Scale::Logarithmic => {
                let low = positive.fold(most, f64::min).max(LOG_LEAST).log10().floor();
                (low, most.log10().ceil().max(low + 1.0))
            }
        };
        Span { scale, low, high }
    }

    /// From zero to one.
    fn part(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Linear | Scale::Counts => value,
            Scale::Logarithmic => value.max(LOG_LEAST).log10(),
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => ticks(self.high),
            Scale::Counts => ticks(self.high)
                .into_iter()
                .filter(|tick| tick.fract() == 0.0)
                .collect(),
            Scale::Logarithmic => (self.low as i32..=self.high as i32)
                .map(|power| 10f64.powi(power))
                .collect(),
        }
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

/// A tick without the digits that a sum of tenths leaves.
fn shown(tick: f64) -> String {
    let text = format!("{tick:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text as it stands in a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn legend_rows(count: usize) -> f64 {
    let each_row = ((WIDTH - LEFT - RIGHT) / LEGEND_WIDTH).floor();
    (count as f64 / each_row).ceil().max(1.0)
}

/// Where an entry of the legend begins.
fn legend_place(at: usize) -> (f64, f64) {
    let each_row = ((WIDTH - LEFT - RIGHT) / LEGEND_WIDTH) as usize;
    let x = LEFT + (at % each_row) as f64 * LEGEND_WIDTH;
    (x, 16.0 + (at / each_row) as f64 * LEGEND_HEIGHT)
}

/// Curves over an axis.
pub fn chart(x: Axis<'_>, y: Axis<'_>, curves: &[Curve]) -> String {
    let top = 22.0 + LEGEND_HEIGHT * legend_rows(curves.len());
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT + top - BOTTOM);
    let points = || curves.iter().flat_map(|curve| curve.points.iter());
    let across = Span::new(x.scale, points().map(|point| point.0), 1.0);
    let up = Span::new(y.scale, points().map(|point| point.1), 1.05);
    let place_x = |value: f64| LEFT + across.part(value) * (right - LEFT);
    let place_y = |value: f64| bottom - up.part(value) * (bottom - top);
    let mut svg = opening(HEIGHT + top, &description(x, y, curves));
    for tick in up.ticks() {
        let at = place_y(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            shown(tick)
        );
    }
    for tick in across.ticks() {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            place_x(tick),
            bottom + 18.0,
            shown(tick)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        bottom + 40.0,
        escape(x.name),
        (top + bottom) / 2.0,
        escape(y.name)
    );
    for (at, curve) in curves.iter().enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", place_x(point.0), place_y(point.1)))
            .collect();
        draw(&mut svg, curve, at, &points.join(" "));
    }
    svg.push_str("</svg>");
    svg
}

pub struct Line {
    /// Class of the style sheet: `uncached`, `overlays` or `cached`.
    pub class: &'static str,
    pub dashed: bool,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// One plot over the seconds of a run.
pub fn over_seconds(name: &str, scale: Scale, lines: &[Line]) -> String {
    let curves: Vec<Curve> = lines
        .iter()
        .map(|line| Curve {
            class: line.class.to_owned(),
            dashed: line.dashed,
            name: line.name.clone(),
            points: line.points.clone(),
        })
        .collect();
    let time = Axis {
        name: "time, s",
        scale: Scale::Linear,
    };
    chart(time, Axis { name, scale }, &curves)
}

fn opening(height: f64, description: &str) -> String {
    let description = escape(description);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{description}\"><title>{description}</title>"
    )
}

/// What a plot shows, for those who do not see it: its curves and how far they go.
fn description(x: Axis<'_>, y: Axis<'_>, curves: &[Curve]) -> String {
    let mut text = format!("{}, over {}", y.name, x.name);
    for curve in curves {
        let most = curve.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let _ = write!(text, "; {}: at most {most:.1}", curve.name);
    }
    text
}

/// A curve and its entry in the legend above the plot.
fn draw(svg: &mut String, curve: &Curve, at: usize, points: &str) {
    let dashed = if curve.dashed { " dashed" } else { "" };
    let class = format!("line {}{dashed}", curve.class);
    let (left, y) = legend_place(at);
    let _ = write!(
        svg,
        "<polyline class=\"{class}\" points=\"{points}\"/>\
         <line class=\"{class}\" x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\
         <text x=\"{:.1}\" y=\"{}\">{}</text>",
        left + 28.0,
        left + 34.0,
        y + 4.0,
        escape(&curve.name)
    );
}

/// Bars from left to right, in rows with a bar for each of the names in each.
pub fn bars(x: &str, names: &[&str], rows: &[(String, Vec<f64>)]) -> String {
    const LABELS: f64 = 150.0;
    const BAR: f64 = 12.0;
    let row_height = BAR * names.len() as f64 + 10.0;
    let top = 34.0;
    let bottom = top + row_height * rows.len() as f64;
    let right = WIDTH - RIGHT;
    let values = || rows.iter().flat_map(|row| row.1.iter().copied());
    let span = Span::new(Scale::Linear, values(), 1.05);
    let place = |value: f64| LABELS + span.part(value) * (right - LABELS);
    let mut text = format!("{x}: {}", names.join(", "));
    for (name, values) in rows {
        let values: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
        let _ = write!(text, "; {name}: {}", values.join(", "));
    }
    let mut svg = opening(bottom + BOTTOM, &text);
    for tick in span.ticks() {
        let at = place(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            shown(tick)
        );
    }
    for (at, (name, values)) in rows.iter().enumerate() {
        let y = top + 5.0 + at as f64 * row_height;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LABELS - 8.0,
            y + row_height / 2.0 - 1.0,
            escape(name)
        );
        for (number, value) in values.iter().enumerate() {
            let _ = write!(
                svg,
                "<rect class=\"bar c{number}\" x=\"{LABELS}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"{}\"/>",
                y + number as f64 * BAR,
                place(*value) - LABELS,
                BAR - 1.0
            );
        }
    }
    for (at, name) in names.iter().enumerate() {
        let (left, y) = legend_place(at);
        let _ = write!(
            svg,
            "<rect class=\"bar c{at}\" x=\"{left}\" y=\"{}\" width=\"20\" height=\"10\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            y - 5.0,
            left + 26.0,
            y + 4.0,
            escape(name)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LABELS}\" x2=\"{LABELS}\" y1=\"{top}\" y2=\"{bottom}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text></svg>",
        (LABELS + right) / 2.0,
        bottom + 40.0,
        escape(x)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks(25.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]);
        assert_eq!(ticks(1.0).len(), 6);
        assert!(ticks(2100.0).iter().all(|&tick| tick <= 2100.0));
        assert_eq!(shown(0.1 * 3.0), "0.3");
        assert_eq!(shown(1000.0), "1000");
    }

    #[test]
    fn an_axis_of_counts_has_whole_numbers_only() {
        for most in 1..=20 {
            let span = Span::new(Scale::Counts, std::iter::once(f64::from(most)), 1.05);
            let ticks = span.ticks();
            assert!(ticks.len() > 1, "{most}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick.fract() == 0.0), "{ticks:?}");
        }
    }

    #[test]
    fn every_point_of_a_plot_lies_inside_its_frame() {
        let curves: Vec<Curve> = (0..9)
            .map(|at| {
                Curve::new(
                    at,
                    "a <b>",
                    vec![(0.0, 0.0004), (10.0, 3.0), (25.0, 4000.0)],
                )
            })
            .collect();
        let scales = [Scale::Linear, Scale::Counts, Scale::Logarithmic];
        for (x, y) in scales
            .iter()
            .flat_map(|x| scales.iter().map(move |y| (*x, *y)))
        {
            let axis = |scale| Axis { name: "ms", scale };
            let svg = chart(axis(x), axis(y), &curves);
            assert!(!svg.contains("<b>") && svg.contains("a &lt;b&gt;"));
            let points = svg.split("points=\"").nth(1).expect("a line");
            let points = points.split('"').next().expect("ends");
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').expect("two numbers");
                let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{point}");
                assert!(y > 76.0 && y < HEIGHT + 76.0 - BOTTOM + 0.1, "{point}");
            }
        }
    }

    #[test]
    fn nothing_at_all_is_drawn_as_well() {
        let axis = Axis {
            name: "s",
            scale: Scale::Logarithmic,
        };
        for curves in [vec![], vec![Curve::new(0, "a", vec![])]] {
            assert!(!chart(axis, axis, &curves).contains("NaN"));
        }
        assert!(!bars("s", &["a"], &[("x".to_owned(), vec![0.0])]).contains("NaN"));
    }
}
