//! From single measurements to figures.
//!
//! Always true: a quantile is a latency that was measured, and of few samples none is invented.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read while the guest boots.
    Boot,
    Read,
    Write,
    Flush,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Boot, Kind::Read, Kind::Write, Kind::Flush];

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Boot => "read at boot",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
        }
    }
}

/// Whose request it is. With the cache each has a policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Kept,
    Clone,
}

impl Disk {
    pub const ALL: [Disk; 2] = [Disk::Kept, Disk::Clone];
}

/// One request of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When it was answered, from the start of the run.
    pub at: Duration,
    pub disk: Disk,
    pub kind: Kind,
    pub latency: Duration,
}

/// What requests of guests took, from sending each to its answer.
pub struct Latency {
    /// By disk and kind: half of the requests took at most the first, 99 of 100 the second.
    quantiles: [[[Option<Duration>; 2]; 4]; 2],
    counts: [usize; 4],
    /// What half of all requests, and 99 of 100, took at most: (seconds, milliseconds).
    pub over_time: [Vec<(f64, f64)>; 2],
}

impl Latency {
    pub fn of(samples: &[Sample], interval: Duration) -> Latency {
        let of = |disk, kind| [50, 99].map(|percent| quantile_of(samples, disk, kind, percent));
        let count = |kind| samples.iter().filter(|it| it.kind == kind).count();
        Latency {
            quantiles: Disk::ALL.map(|disk| Kind::ALL.map(|kind| of(disk, kind))),
            counts: Kind::ALL.map(count),
            over_time: [50, 99].map(|percent| over_time(samples, interval, percent)),
        }
    }

    /// Of p50 and p99.
    pub fn quantiles(&self, disk: Disk, kind: Kind) -> [Option<Duration>; 2] {
        self.quantiles[disk as usize][kind as usize]
    }

    /// Requests of all disks.
    pub fn count(&self, kind: Kind) -> usize {
        self.counts[kind as usize]
    }
}

/// The latency that so many of a hundred samples do not exceed (nearest rank).
pub fn quantile(latencies: &mut [Duration], percent: usize) -> Option<Duration> {
    latencies.sort_unstable();
    let rank = (latencies.len() * percent).div_ceil(100).max(1);
    latencies.get(rank - 1).copied()
}

fn quantile_of(samples: &[Sample], disk: Disk, kind: Kind, percent: usize) -> Option<Duration> {
    let wanted = samples
        .iter()
        .filter(|it| (it.disk, it.kind) == (disk, kind));
    let mut latencies: Vec<Duration> = wanted.map(|sample| sample.latency).collect();
    quantile(&mut latencies, percent)
}

/// Quantile of all requests answered in each interval: (middle of it in seconds, milliseconds).
fn over_time(samples: &[Sample], interval: Duration, percent: usize) -> Vec<(f64, f64)> {
    let bin = |sample: &Sample| (sample.at.as_nanos() / interval.as_nanos()) as usize;
    let bins = samples.iter().map(bin).max().map_or(0, |last| last + 1);
    let mut latencies = vec![Vec::new(); bins];
    for sample in samples {
        latencies[bin(sample)].push(sample.latency);
    }
    let middle = |at: usize| (at as f64 + 0.5) * interval.as_secs_f64();
    let points = latencies.iter_mut().enumerate();
    points
        .filter_map(|(at, bin)| Some((middle(at), millis(quantile(bin, percent)?))))
        .collect()
}

/// Differences of a counter that was read now and then: (middle in seconds, per second).
pub fn rate(counts: &[(Duration, u64)]) -> Vec<(f64, f64)> {
    counts
        .windows(2)
        .filter(|pair| pair[1].0 > pair[0].0)
        .map(|pair| {
            let (from, to) = (pair[0].0.as_secs_f64(), pair[1].0.as_secs_f64());
            let count = pair[1].1.saturating_sub(pair[0].1);
            ((from + to) / 2.0, count as f64 / (to - from))
        })
        .collect()
}

/// The middle one; of an even number the lower of the two.
pub fn median(values: impl Iterator<Item = Duration>) -> Option<Duration> {
    quantile(&mut values.collect::<Vec<_>>(), 50)
}

pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn sample(at: u64, disk: Disk, kind: Kind, latency: u64) -> Sample {
        Sample {
            at: ms(at),
            disk,
            kind,
            latency: ms(latency),
        }
    }

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let mut hundred: Vec<Duration> = (1..=100).rev().map(ms).collect();
        assert_eq!(quantile(&mut hundred, 50), Some(ms(50)));
        assert_eq!(quantile(&mut hundred, 99), Some(ms(99)));
        assert_eq!(quantile(&mut [ms(7)], 1), Some(ms(7)));
        assert_eq!(quantile(&mut [], 50), None);
    }

    #[test]
    fn the_flushes_of_clones_are_not_mixed_with_those_of_the_kept_disk() {
        let samples = [
            sample(1, Disk::Kept, Kind::Flush, 5),
            sample(2, Disk::Clone, Kind::Flush, 1),
            sample(3, Disk::Clone, Kind::Flush, 1),
            sample(4, Disk::Kept, Kind::Write, 9),
        ];
        let latency = Latency::of(&samples, ms(500));
        let kept = latency.quantiles(Disk::Kept, Kind::Flush);
        assert_eq!(kept, [Some(ms(5)), Some(ms(5))]);
        let clone = latency.quantiles(Disk::Clone, Kind::Flush);
        assert_eq!(clone, [Some(ms(1)), Some(ms(1))]);
        assert_eq!(latency.quantiles(Disk::Clone, Kind::Read), [None, None]);
        assert_eq!(latency.count(Kind::Flush), 3);
    }

    #[test]
    fn intervals_without_requests_have_no_point() {
        let samples = [
            sample(100, Disk::Kept, Kind::Read, 5),
            sample(2_100, Disk::Clone, Kind::Write, 9),
        ];
        let points = over_time(&samples, ms(500), 99);
        assert_eq!(points, [(0.25, 5.0), (2.25, 9.0)]);
    }

    #[test]
    fn a_rate_is_the_difference_over_the_time_between() {
        let counts = [(ms(0), 10), (ms(500), 20), (ms(1_500), 20)];
        assert_eq!(rate(&counts), [(0.25, 20.0), (1.0, 0.0)]);
    }
}
