//! The evaluation of the COWCache paper: its figures and tables, and ours beside them.
//!
//! Owns which experiments there are and the order of a run. Always true: the baseline is held
//! against the paper's table 1 before anything is compared with it; both sides are the same engine
//! ([`side`]); figures of the paper stand beside ours and are named so; the number of requests is
//! the paper's divided by the scale, and stands in the report. Most of it is an engine in virtual
//! time, without guests, devices and time. Real daemons are asked by [`live`], [`requests`] (of
//! which the traces are replayed), [`scatter`] and [`recovery`]. Deliberately absent: figures 1, 2
//! and 5 to 8, which measure nothing.

mod behind;
mod chapter;
mod experiments;
pub mod live;
mod load;
mod options;
mod page;
mod paper;
pub mod recovery;
mod report;
pub mod requests;
pub mod scatter;
mod section;
mod served;
mod side;
mod trace;
mod weeks;

pub use chapter::Chapter;
use experiments::Runner;
use host::error::Result;
pub use options::{Options, Part};
pub use page::page;
pub use paper::Calibrated;
pub use report::Report;
pub use section::SIDES_LEGEND;
pub use section::{Comparison, SIDES_HEAD};
pub use trace::Trace;

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
    use std::sync::Arc;
    use workload::trace::{NameId, Op, Record};

    /// A write and a read every hour of four days.
    fn small_trace() -> Trace {
        let record = |at: u64| Record {
            time_ns: at * 1_800_000_000_000,
            disk: NameId(0),
            op: [Op::Write, Op::Read][at as usize % 2],
            sector: at * 1000,
            sectors: 16,
            path: None,
        };
        Trace::of("a small trace", (0..192).map(record)).expect("it has one disk")
    }

    #[test]
    fn every_experiment_runs_small_and_says_what_the_paper_says() {
        let options = Options {
            parts: Part::ALL.into(),
            scale: 2000.0,
            seed: 1,
            trace: Some(Arc::new(small_trace())),
        };
        let mut steps = 0;
        let report = run(&options, |done| steps = done).expect("it runs");
        assert_eq!(steps, options.steps());
        assert_eq!(report.sections.len(), Part::ALL.len());
        for section in &report.sections {
            let told = section.comparisons.iter().all(|it| it.ratio().is_finite());
            assert!(told && !section.cases.is_empty(), "{}", section.name);
        }
        let page = page(Some(&report), &[]);
        for part in Part::ALL {
            for key in part.keys() {
                assert!(page.contains(key), "{key}");
            }
        }
        assert!(page.contains("paper") && page.contains("<svg"));
    }
}
