//! What a qcow2 clone costs more than a raw image.
//!
//! Owns the four parts of the measurement, which can be chosen: requests that no image is asked
//! for; destages into new clones; the guard under a desktop's load; memory. Always true: the daemon
//! is a process of its own, both images have the same content, cache and policy, a clone is made as
//! users make it, and raw against raw stands beside each ratio.

mod destages;
mod host;
mod memory;
mod options;
mod report;
mod slots;
mod window;

use super::range;
use crate::place::Place;
use ::host::error::Result;
use host::Host;
pub use options::{Options, Part};
pub use report::Report;

const RAM_BYTES: u64 = 256 << 20;
/// A desktop writes at least once in an age of so many seconds.
const SCALE_MAX: f64 = 600.0;
const FILL_MIN: u64 = 512 << 20;

impl Options {
    fn check(&self) -> Result<()> {
        range::at_least_one("--rounds", self.rounds)?;
        range::at_least_one("--destages", self.destages)?;
        range::within("--seconds", self.seconds, 0.02..=60.0)?;
        for depth in &self.depths {
            range::within("--qd", *depth, 1..=256)?;
        }
        range::size_within("--cache", self.cache_bytes, 512 << 20..=1 << 40)?;
        range::size_within("--data", self.data_bytes, 64 << 20..=host::DISK_BYTES / 2)?;
        let blocks = self.data_bytes / super::work::BLOCK_BYTES;
        // None is written twice before a destage.
        range::within("--writes", self.writes, 1..=blocks)?;
        range::within("--desktop-seconds", self.desktop_seconds, 0.5..=86_400.0)?;
        range::within("--scale", self.scale, 1.0..=SCALE_MAX)?;
        if !self.has(Part::Index) {
            return Ok(());
        }
        // In a smaller one the log keeps more than the rest for itself.
        range::size_within("--fill", self.fill_bytes, FILL_MIN..=1 << 40)?;
        range::size_at_least("--data", self.data_bytes, self.fill_bytes)
    }

    /// Steps of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        let of = |part: Part| match part {
            Part::Requests => {
                u64::from(self.rounds) * (slots::Row::ALL.len() * self.depths.len()) as u64
            }
            Part::Destage => u64::from(self.destages),
            Part::Guard | Part::Index => 1,
        };
        self.parts.iter().map(|part| of(*part)).sum()
    }
}

/// Calls `done` with the steps so far.
pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    options.check()?;
    let place = Place::below(&options.directory)?;
    let mut steps = 0;
    let mut step = || {
        steps += 1;
        done(steps);
    };
    let host = Host::with_images(&place, options.cache_bytes, RAM_BYTES, options.data_bytes)?;
    let mut report = Report {
        options: options.clone(),
        lines: Vec::new(),
        destages: None,
        window: None,
        memory: None,
    };
    if options.has(Part::Requests) {
        report.lines = slots::run(&host, options, &mut step)?;
    }
    if options.has(Part::Destage) {
        report.destages = Some(destages::run(&host, options, &mut step)?);
    }
    if options.has(Part::Guard) {
        report.window = Some(window::run(&host, options)?);
        step();
    }
    host.stop()?;
    if options.has(Part::Index) {
        report.memory = Some(memory::run(&place, options)?);
        step();
    }
    Ok(report)
}
