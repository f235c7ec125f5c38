//! Lines over the seconds of a run.
//!
//! Owns what the reports of measurements have in common: time below, one value up. How it is
//! drawn is in `plot`.

use crate::plot::{Axis, Curve, chart};

pub use crate::plot::Scale;

pub struct Line {
    /// Class of the style sheet: `uncached`, `overlays` or `cached`.
    pub class: &'static str,
    pub dashed: bool,
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// One plot over the seconds of a run.
pub fn plot(name: &str, scale: Scale, lines: &[Line]) -> String {
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
