//! What the daemon counted, and what that comes to.
//!
//! Always true: figures of a run are sums over all its volumes; a latency that the daemon measured
//! is known by its class, and is given as the upper bound of that class.

use super::stats::Kind;
use crate::daemon::Daemon;
use crate::error::{Error, Result};
use engine::snapshot::{Histogram, OriginCounters, Snapshot};
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
    latency: [Histogram; 3],
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
        Ok(Totals::sum(&snapshot.engine))
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
            add(&mut sum.latency[0], &counters.read_latency);
            add(&mut sum.latency[1], &counters.write_latency);
            add(&mut sum.latency[2], &counters.flush_latency);
        }
        sum
    }

    pub fn origin_requests(&self) -> u64 {
        self.origin.reads + self.origin.writes + self.origin.syncs
    }

    /// The latency that so many of a hundred requests did not exceed.
    pub fn quantile(&self, kind: Kind, percent: u64) -> Option<Duration> {
        let class = self.latency[kind as usize].quantile_us(percent * 10);
        class.map(Duration::from_micros)
    }
}

fn add(sum: &mut Histogram, more: &Histogram) {
    for (sum, more) in sum.counts.iter_mut().zip(more.counts) {
        *sum += more;
    }
}

/// Quantile of all requests between looks: (middle in seconds, milliseconds).
pub fn latency_over_time(looks: &[Look], percent: u64) -> Vec<(f64, f64)> {
    let looks: Vec<&Look> = looks.iter().step_by(LOOKS_PER_POINT).collect();
    let points = looks.windows(2).filter_map(|pair| {
        let mut between = Histogram::default();
        let kinds = pair[1].totals.latency.iter().zip(&pair[0].totals.latency);
        for (now, before) in kinds {
            for (at, count) in between.counts.iter_mut().enumerate() {
                *count += now.counts[at] - before.counts[at];
            }
        }
        let micros = between.quantile_us(percent * 10)?;
        let middle = (pair[0].at + pair[1].at).as_secs_f64() / 2.0;
        Some((middle, micros as f64 / 1e3))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(seconds: u64, latencies_us: &[u64]) -> Look {
        let mut totals = Totals::default();
        for micros in latencies_us {
            totals.latency[0].add_ns(micros * 1000);
        }
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
        // 5 ms belongs to the class up to 8.192 ms.
        assert_eq!(points, [(2.0, 8.192)]);
    }
}
