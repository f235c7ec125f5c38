//! What a trace is made from.
//!
//! Owns the patterns and their parameters. Always true: what has passed [`Parameters::check`] can
//! be made. Deliberately absent: the figures behind a pattern.

use super::layout::{DISK_BYTES_MAX, DISK_BYTES_MIN};
use super::published::{self, SECOND_NS, WEEK_S};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A week of an office, Thursday 0:00 to Wednesday 24:00.
    Desktops,
    /// Knowledge workers, all day the same.
    Office,
    Boot,
    Login,
    Heavy,
    /// Task, knowledge and heavy workers, a few boots and logins.
    Mixed,
}

impl Pattern {
    pub const ALL: [Pattern; 6] = [
        Pattern::Desktops,
        Pattern::Office,
        Pattern::Boot,
        Pattern::Login,
        Pattern::Heavy,
        Pattern::Mixed,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Desktops => "desktops",
            Pattern::Office => "office",
            Pattern::Boot => "boot",
            Pattern::Login => "login",
            Pattern::Heavy => "heavy",
            Pattern::Mixed => "mixed",
        }
    }
}

pub const DESKTOPS_MAX: u32 = 10_000;
/// After the last arrival it takes so long.
const AFTER_ARRIVAL_NS: u64 = 2 * 60 * SECOND_NS;
const HOUR_NS: u64 = 3600 * SECOND_NS;
const WEEK_NS: u64 = WEEK_S * SECOND_NS;

#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    pub pattern: Pattern,
    pub desktops: u32,
    /// Of the desktops, those in use from day to day; of the office's week only.
    pub active: f64,
    pub seed: u64,
    /// What lies before is made as well, and not handed out.
    pub from_ns: u64,
    pub duration_ns: u64,
    /// Boots or logins come within so long, most of them in its middle.
    pub arrivals_ns: u64,
    pub disk_bytes: u64,
    /// Requests against what was published; boots are as they are.
    pub intensity: f64,
}

impl Parameters {
    pub fn new(pattern: Pattern) -> Parameters {
        let (arrivals_ns, duration_ns) = match pattern {
            Pattern::Desktops => (0, WEEK_NS),
            Pattern::Office | Pattern::Heavy | Pattern::Mixed => (HOUR_NS, HOUR_NS),
            Pattern::Boot => (HOUR_NS / 6, HOUR_NS / 6 + AFTER_ARRIVAL_NS),
            Pattern::Login => (HOUR_NS, HOUR_NS + AFTER_ARRIVAL_NS),
        };
        Parameters {
            pattern,
            desktops: published::DESKTOPS,
            active: f64::from(published::ACTIVE) / f64::from(published::DESKTOPS),
            seed: 1,
            from_ns: 0,
            duration_ns,
            arrivals_ns,
            disk_bytes: 40 << 30,
            intensity: 1.0,
        }
    }

    /// So long; arrivals become fewer minutes where they would not fit.
    pub fn with_duration(mut self, duration_ns: u64) -> Parameters {
        self.duration_ns = duration_ns;
        let most = duration_ns.saturating_sub(AFTER_ARRIVAL_NS);
        self.arrivals_ns = self.arrivals_ns.min(most);
        self
    }

    /// As long as the arrivals and what comes after the last one.
    pub fn after_arrivals(mut self) -> Parameters {
        if matches!(self.pattern, Pattern::Boot | Pattern::Login) {
            self.duration_ns = self.arrivals_ns.saturating_add(AFTER_ARRIVAL_NS);
        }
        self
    }

    pub(super) fn check(&self) -> Result<(), SynthError> {
        let wrong = |what| Err(SynthError { what });
        if !(1..=DESKTOPS_MAX).contains(&self.desktops) {
            return wrong("1 to 10,000 desktops can be made");
        }
        if !(0.0..=1.0).contains(&self.active) {
            return wrong("the active part is a share from 0 to 1");
        }
        if !(self.intensity > 0.0 && self.intensity <= 100.0) {
            return wrong("the intensity is above 0 and at most 100");
        }
        if !(DISK_BYTES_MIN..=DISK_BYTES_MAX).contains(&self.disk_bytes) {
            return wrong("a disk has 16 GiB to 1 TiB");
        }
        let end = self.from_ns.checked_add(self.duration_ns);
        if self.duration_ns == 0 || end.is_none_or(|end| end > WEEK_NS) {
            return wrong("a trace is longer than nothing and ends within a week");
        }
        Ok(())
    }
}

/// What cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthError {
    what: &'static str,
}

impl fmt::Display for SynthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl std::error::Error for SynthError {}
