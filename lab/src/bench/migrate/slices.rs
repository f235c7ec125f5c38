//! What was measured around one move, and the time after it in slices.
//!
//! Always true: a slice has the requests that were answered in it; a rate is between two looks, at
//! the times at which they were made. Deliberately absent: more than one move, and the hosts.

use super::NEAR;
use crate::bench::work::Sample;
use serde_json::{Value, json};
use std::time::Duration;

pub const SLICES: usize = 10;
/// Parts of a slice in which it is looked for the time at which the guest is as fast as before.
const FINE: usize = 5;

/// Counters since the start of a daemon.
pub struct Look {
    pub at: Duration,
    pub remote_reads: u64,
    pub origin_reads: u64,
}

/// What becomes of the host before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It lives.
    With,
    /// It is killed, and started anew with nothing left.
    Without,
}

/// What was measured around one move.
pub struct Slot {
    pub kind: Kind,
    pub before: Vec<Sample>,
    /// Reads of the image in the time before the move.
    pub origin_reads_before: u64,
    /// From the order to move until it was carried out, until the other host may write the image,
    /// and until it has its copy; without remote reads a kill and a start are in the last one.
    pub moved: Duration,
    pub right: Duration,
    pub copied: Duration,
    pub samples: Vec<Sample>,
    pub looks: Vec<Look>,
    pub remote_bytes: u64,
    /// How long the image takes for a request, as the host measures it.
    pub origin_p50_us: Option<f64>,
}

pub struct Slice {
    pub requests: usize,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub remote_per_second: Option<f64>,
    pub origin_per_second: Option<f64>,
}

/// The latency that so many of a hundred did not exceed, in microseconds.
pub fn quantile_us(samples: &[Sample], percent: usize) -> Option<f64> {
    let mut all: Vec<Duration> = samples.iter().map(|it| it.latency).collect();
    let rank = (all.len() * percent).div_ceil(100).max(1);
    if rank > all.len() {
        return None;
    }
    let (_, found, _) = all.select_nth_unstable(rank - 1);
    Some(found.as_secs_f64() * 1e6)
}

/// Those of a part of the time.
fn part(samples: &[Sample], lasts: Duration, at: usize, parts: usize) -> &[Sample] {
    let edge = |at: usize| {
        let until = lasts.mul_f64(at as f64 / parts as f64);
        samples.partition_point(|sample| sample.at < until)
    };
    &samples[edge(at)..edge(at + 1)]
}

impl Slot {
    fn grown(&self, of: impl Fn(&Look) -> u64) -> u64 {
        match (self.looks.first(), self.looks.last()) {
            (Some(first), Some(last)) => of(last).saturating_sub(of(first)),
            _ => 0,
        }
    }

    pub fn remote_reads(&self) -> u64 {
        self.grown(|look| look.remote_reads)
    }

    pub fn origin_reads(&self) -> u64 {
        self.grown(|look| look.origin_reads)
    }

    /// The counters show that it was what it is called.
    pub fn is_proven(&self) -> bool {
        let remote = self.remote_bytes > 0 && self.remote_reads() > 0;
        let path = match self.kind {
            Kind::With => remote,
            Kind::Without => self.remote_bytes == 0 && self.origin_reads() > 0,
        };
        path && self.origin_reads_before == 0
    }

    pub fn before_us(&self) -> Option<f64> {
        quantile_us(&self.before, 50)
    }

    pub fn slice(&self, at: usize, lasts: Duration) -> Slice {
        let samples = part(&self.samples, lasts, at, SLICES);
        let rate = |of: fn(&Look) -> u64| {
            let (from, to) = (self.looks.get(at)?, self.looks.get(at + 1)?);
            let seconds = to.at.saturating_sub(from.at).as_secs_f64();
            (seconds > 0.0).then(|| of(to).saturating_sub(of(from)) as f64 / seconds)
        };
        Slice {
            requests: samples.len(),
            p50_us: quantile_us(samples, 50),
            p99_us: quantile_us(samples, 99),
            remote_per_second: rate(|look| look.remote_reads),
            origin_per_second: rate(|look| look.origin_reads),
        }
    }

    /// When the median latency was near that of before for the first time.
    pub fn near_after(&self, lasts: Duration) -> Option<f64> {
        let limit = self.before_us()? * NEAR;
        let parts = SLICES * FINE;
        let is_near = |at: &usize| {
            let median = quantile_us(part(&self.samples, lasts, *at, parts), 50);
            median.is_some_and(|median| median <= limit)
        };
        let found = (0..parts).find(is_near)?;
        Some(lasts.as_secs_f64() * found as f64 / parts as f64)
    }
}

impl Slice {
    pub fn document(&self) -> Value {
        json!({
            "requests": self.requests,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "remote_reads_per_second": self.remote_per_second,
            "origin_reads_per_second": self.origin_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request each millisecond, slow ones first.
    fn slot(slow: u64, all: u64) -> Slot {
        let sample = |at: u64| Sample {
            at: Duration::from_millis(at),
            latency: Duration::from_micros(if at < slow { 5000 } else { 100 }),
        };
        Slot {
            kind: Kind::With,
            before: vec![sample(slow)],
            origin_reads_before: 0,
            moved: Duration::ZERO,
            right: Duration::ZERO,
            copied: Duration::ZERO,
            samples: (0..all).map(sample).collect(),
            looks: Vec::new(),
            remote_bytes: 0,
            origin_p50_us: None,
        }
    }

    #[test]
    fn a_guest_is_as_fast_as_before_in_the_part_in_which_it_is() {
        let lasts = Duration::from_millis(1000);
        assert_eq!(slot(200, 1000).near_after(lasts), Some(0.2));
        assert_eq!(slot(0, 1000).near_after(lasts), Some(0.0));
        assert_eq!(slot(1000, 1000).near_after(lasts), None);
    }

    #[test]
    fn a_slice_has_what_was_answered_in_it() {
        let lasts = Duration::from_millis(1000);
        let slot = slot(160, 1000);
        let medians = [0, 1, 2].map(|at| slot.slice(at, lasts).p50_us);
        assert_eq!(medians, [Some(5000.0), Some(5000.0), Some(100.0)]);
        assert_eq!(slot.slice(9, lasts).requests, 100);
    }
}
