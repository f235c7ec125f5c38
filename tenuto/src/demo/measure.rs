//! What the daemon counted, and what that comes to.
//!
//! Always true: figures of a run are sums over all its volumes; a latency that the daemon measured
//! is given as the upper bound of its class, which is 3 % wide.

use super::stats::Kind;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use crate::latency::{self, ByPolicy};
use engine::snapshot::{OriginCounters, Snapshot};
use std::time::Duration;

/// Bytes of a cached block.
const BLOCK_BYTES: u64 = 4096;
/// Looks that make one point of latency: too few requests give no quantile.
const LOOKS_PER_POINT: usize = 4;

/// All volumes together, since the start of the daemon.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub origin: OriginCounters,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    /// On the SSD, payload.
    pub flash_read_bytes: u64,
    pub flash_write_bytes: u64,
    /// In use now: read tier, overlays, maps.
    pub ram_bytes: u64,
    latency: ByPolicy,
}

/// Totals at a time of the run.
pub struct Look {
    pub at: Duration,
    pub totals: Totals,
}

impl Totals {
    pub fn of(daemon: &Daemon) -> Result<Totals> {
        let snapshot = daemon.handle().snapshot();
        let snapshot = snapshot.map_err(|error| Error::failed(error.to_string()))?;
        let mut sum = Totals::sum(&snapshot.engine);
        let recorders = snapshot.volumes.iter().filter_map(|it| it.latency.as_ref());
        recorders.for_each(|it| sum.latency.add(&it.read(snapshot.now)));
        Ok(sum)
    }

    fn sum(engine: &Snapshot) -> Totals {
        let mut sum = Totals {
            ram_bytes: engine.index_bytes + engine.ram_blocks_used * BLOCK_BYTES,
            ..Totals::default()
        };
        for volume in &engine.volumes {
            let counters = &volume.counters;
            sum.origin.reads += counters.origin.reads;
            sum.origin.read_bytes += counters.origin.read_bytes;
            sum.origin.writes += counters.origin.writes;
            sum.origin.write_bytes += counters.origin.write_bytes;
            sum.origin.journal_bytes += counters.origin.journal_bytes;
            sum.origin.syncs += counters.origin.syncs;
            sum.origin.errors += counters.origin.errors;
            sum.reads += counters.reads.requests;
            sum.read_bytes += counters.reads.bytes;
            sum.writes += counters.writes.requests;
            sum.write_bytes += counters.writes.bytes;
            sum.flushes += counters.flushes;
            sum.flash_read_bytes += counters.ssd_read_bytes;
            sum.flash_write_bytes += counters.ssd_write_bytes;
            let overlay = volume.overlay.map_or(0, |overlay| overlay.ram_blocks);
            sum.ram_bytes += overlay * BLOCK_BYTES;
        }
        sum
    }

    pub fn origin_requests(&self) -> u64 {
        self.origin.reads + self.origin.writes + self.origin.syncs
    }

    /// The latency that so many of a hundred requests did not exceed, of the policy that takes
    /// longest: the flushes of throw-away clones, which do nothing, are no part of another figure.
    pub fn quantile(&self, kind: Kind, percent: u64) -> Option<Duration> {
        let micros = self.latency.slowest_us(measured(kind), percent * 10)?;
        Some(Duration::from_secs_f64(micros / 1e6))
    }
}

fn measured(kind: Kind) -> latency::Kind {
    match kind {
        Kind::Read => latency::Kind::Read,
        Kind::Write => latency::Kind::Write,
        Kind::Flush => latency::Kind::Flush,
    }
}

/// Quantile of what came between looks: (middle in seconds, milliseconds), of the policy and the
/// kind that takes longest.
pub fn latency_over_time(looks: &[Look], percent: u64) -> Vec<(f64, f64)> {
    let looks: Vec<&Look> = looks.iter().step_by(LOOKS_PER_POINT).collect();
    let points = looks.windows(2).filter_map(|pair| {
        let between = pair[1].totals.latency.since(&pair[0].totals.latency);
        let times = Kind::ALL.map(|kind| between.slowest_us(measured(kind), percent * 10));
        let micros = times.into_iter().flatten().max_by(f64::total_cmp)?;
        let middle = (pair[0].at + pair[1].at).as_secs_f64() / 2.0;
        Some((middle, micros / 1e3))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Recorder;
    use engine::types::{Policy, Time};

    fn look(seconds: u64, latencies_us: &[u64]) -> Look {
        let mut totals = Totals::default();
        let recorder = Recorder::new(Policy::WriteBack, Time(0));
        for micros in latencies_us {
            recorder.add(latency::Kind::Read, micros * 1000);
        }
        totals.latency.add(&recorder.read(Time(0)));
        Look {
            at: Duration::from_secs(seconds),
            totals,
        }
    }

    #[test]
    fn a_point_counts_only_what_came_since_the_point_before() {
        let mut looks = vec![look(0, &[100])];
        looks.extend((1..LOOKS_PER_POINT as u64).map(|at| look(at, &[100])));
        looks.push(look(4, &[100, 5_000]));
        let points = latency_over_time(&looks, 50);
        let [(2.0, millis)] = points[..] else {
            panic!("{points:?}");
        };
        assert!((5.0..5.25).contains(&millis), "{millis}");
    }
}
