//! All that a run has shown, for people and for programs.

use super::options::Options;
use super::paper::Calibrated;
use super::section::Section;
use crate::machine;
use serde_json::{Value, json};

pub struct Report {
    pub options: Options,
    pub calibrated: Vec<Calibrated>,
    pub sections: Vec<Section>,
}

impl Report {
    /// What was run, in a sentence.
    pub fn headline(&self) -> String {
        let scale = self.options.scale;
        let seed = self.options.seed;
        format!(
            "the COWCache paper against Tenuto's engine in virtual time: counts of requests and \
             bytes, not speed; numbers of requests divided by {scale}, seed {seed}"
        )
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    /// Targets that are met, and all of them.
    pub fn met(&self) -> (usize, usize) {
        let all = self.sections.iter().flat_map(|it| &it.comparisons);
        let told: Vec<bool> = all.filter_map(|it| it.is_met()).collect();
        (told.iter().filter(|met| **met).count(), told.len())
    }

    pub fn document(&self) -> Value {
        let calibrated = self.calibrated.iter().map(Calibrated::document);
        let sections = self.sections.iter().map(Section::document);
        let (met, targets) = self.met();
        json!({
            "benchmark": "cow",
            "scale": self.options.scale,
            "seed": self.options.seed,
            "layer": "engine in virtual time, no devices",
            "calibration": calibrated.collect::<Vec<_>>(),
            "experiments": sections.collect::<Vec<_>>(),
            "targets": targets,
            "targets_met": met,
            "machine": machine::document(),
        })
    }
}
