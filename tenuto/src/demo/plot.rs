//! Lines over the seconds of a run, as SVG inside a page.
//!
//! Always true: every axis has a name and a unit, every line a name. The plots are drawn here and
//! not by a library, because a library fixes colours that a style sheet then cannot change.

use super::page::escape;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// About so many ticks on an axis.
const TICKS: f64 = 8.0;

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
    /// Linear, of things that come whole.
    Counts,
    Logarithmic,
}

/// One plot over the seconds of a run.
pub fn plot(name: &str, scale: Scale, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let x_max = points().map(|point| point.0).fold(1.0, f64::max);
    let y_max = points().map(|point| point.1).fold(1.0, f64::max);
    let least = points().map(|point| point.1).fold(y_max, f64::min);
    let (low, high) = match scale {
        Scale::Linear | Scale::Counts => (0.0, y_max * 1.05),
        Scale::Logarithmic => (
            least.max(1e-3).log10().floor(),
            y_max.log10().ceil().max(1.0),
        ),
    };
    let x = |seconds: f64| LEFT + seconds / x_max * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| {
        let value = match scale {
            Scale::Linear | Scale::Counts => value,
            Scale::Logarithmic => value.max(1e-3).log10(),
        };
        let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><title>{0}</title>",
        escape(&label(name, lines))
    );
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

/// What a plot shows, for those who do not see it: its lines and how far they go.
fn label(name: &str, lines: &[Line]) -> String {
    let mut text = format!("{name}, over time in seconds");
    for line in lines {
        let most = line.points.iter().map(|point| point.1).fold(0.0, f64::max);
        let _ = write!(text, "; {}: at most {most:.1}", line.name);
    }
    text
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
        Scale::Counts => ticks(high)
            .into_iter()
            .filter(|tick| tick.fract() == 0.0)
            .collect(),
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
    fn an_axis_of_counts_has_whole_numbers_only() {
        for most in 1..=20 {
            let ticks = y_ticks(Scale::Counts, 0.0, f64::from(most) * 1.05);
            assert!(ticks.len() > 1, "{most}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick.fract() == 0.0), "{ticks:?}");
        }
    }

    #[test]
    fn every_point_of_a_plot_lies_inside_its_frame() {
        let line = Line {
            class: "cached",
            dashed: false,
            name: "a",
            points: vec![(0.0, 0.0004), (10.0, 3.0), (25.0, 4000.0)],
        };
        for scale in [Scale::Linear, Scale::Counts, Scale::Logarithmic] {
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
