//! The evaluation of the COWCache paper, as far as an engine in virtual time can say it.
//!
//! Owns which experiments there are and the order of a run. Always true: the baseline is held
//! against the paper's table 1 before anything is compared with it; both sides are the same engine
//! ([`side`]); figures of the paper stand beside ours and are named so; the number of requests is
//! the paper's divided by the scale, and stands in the report. Deliberately absent: guests, devices
//! and time. How fast a guest is, and which policy it needs for that, is for a run on real devices.

mod experiments;
mod load;
mod page;
mod paper;
mod report;
mod section;
mod side;

use super::range;
use experiments::Runner;
use host::error::Result;
pub use paper::Calibrated;
pub use report::Report;
pub use section::SIDES_LEGEND;
pub use section::{Comparison, SIDES_HEAD};

/// What one run is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Tables,
    Sizes,
    Ratios,
    Oltp,
    Applications,
    Memory,
}

impl Part {
    pub const ALL: [Part; 6] = [
        Part::Tables,
        Part::Sizes,
        Part::Ratios,
        Part::Oltp,
        Part::Applications,
        Part::Memory,
    ];

    /// What the paper calls it; a figure and a table may be of one run.
    pub fn keys(self) -> &'static [&'static str] {
        match self {
            Part::Tables => &["f9", "t1"],
            Part::Sizes => &["f10"],
            Part::Ratios => &["f11"],
            Part::Oltp => &["f12", "t2"],
            Part::Applications => &["f13"],
            Part::Memory => &["memory"],
        }
    }

    /// Loads that it runs, those of each side counted.
    fn steps(self) -> u64 {
        match self {
            Part::Tables => 10,
            Part::Sizes => 27,
            Part::Ratios => 18,
            Part::Oltp => 12,
            Part::Applications => 9,
            Part::Memory => 4,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub parts: Vec<Part>,
    /// Numbers of requests are divided by it.
    pub scale: f64,
    pub seed: u64,
}

impl Options {
    fn check(&self) -> Result<()> {
        range::within("--scale", self.scale, 1.0..=10_000.0)
    }

    /// Steps of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        self.parts.iter().map(|part| part.steps()).sum()
    }
}

/// Calls `done` with the steps so far.
pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    options.check()?;
    let calibrated = paper::calibrate(options.seed)?;
    let mut steps = 0;
    let mut step = || {
        steps += 1;
        done(steps);
    };
    let mut sections = Vec::new();
    for part in &options.parts {
        let mut runner = Runner {
            options,
            step: &mut step,
        };
        sections.push(runner.run(*part)?);
    }
    Ok(Report {
        options: options.clone(),
        calibrated,
        sections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_runs_small_and_says_what_the_paper_says() {
        let options = Options {
            parts: Part::ALL.into(),
            scale: 2000.0,
            seed: 1,
        };
        let mut steps = 0;
        let report = run(&options, |done| steps = done).expect("it runs");
        assert_eq!(steps, options.steps());
        assert_eq!(report.sections.len(), Part::ALL.len());
        for section in &report.sections {
            let told = section.comparisons.iter().all(|it| it.ratio().is_finite());
            assert!(told && !section.cases.is_empty(), "{}", section.name);
        }
        let page = report.page();
        for part in Part::ALL {
            for key in part.keys() {
                assert!(page.contains(key), "{key}");
            }
        }
        assert!(page.contains("paper") && page.contains("<svg"));
    }
}
