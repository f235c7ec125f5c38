//! What is run of the paper, and how much of it.
//!
//! Always true: every experiment has the paper's name. Deliberately absent: what it consists of.

use super::trace::Trace;
use crate::bench::range;
use host::error::Result;
use std::sync::Arc;

/// What one run is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Tables,
    Sizes,
    Ratios,
    Oltp,
    Applications,
    Days,
    Caches,
    Memory,
}

impl Part {
    pub const ALL: [Part; 8] = [
        Part::Tables,
        Part::Sizes,
        Part::Ratios,
        Part::Oltp,
        Part::Applications,
        Part::Days,
        Part::Caches,
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
            Part::Days => &["f14"],
            Part::Caches => &["f15"],
            Part::Memory => &["memory"],
        }
    }

    /// Loads that it runs, those of each side counted.
    pub fn steps(self) -> u64 {
        match self {
            Part::Tables => 10,
            Part::Sizes => 39,
            Part::Ratios => 18,
            Part::Oltp => 12,
            Part::Applications => 9,
            Part::Days => 6,
            Part::Caches => 9,
            Part::Memory => 5,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub parts: Vec<Part>,
    /// Numbers of requests are divided by it.
    pub scale: f64,
    pub seed: u64,
    /// Instead of the desktop's week.
    pub trace: Option<Arc<Trace>>,
}

impl Options {
    pub fn check(&self) -> Result<()> {
        range::within("--scale", self.scale, 1.0..=10_000.0)
    }

    /// Steps of which a run tells.
    pub fn steps(&self) -> u64 {
        self.parts.iter().map(|part| part.steps()).sum()
    }
}
