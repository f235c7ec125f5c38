//! What the daemon counted.
//!
//! Always true: figures of a run are sums over all its volumes. Deliberately absent: latencies,
//! which the client measures where it sends a request and waits for the answer.

use engine::snapshot::Snapshot;
use host::daemon::Daemon;
use host::error::{Error, Result};
use std::time::Duration;

/// Bytes of a cached block.
const BLOCK_BYTES: u64 = 4096;

/// Requests at the storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub journal_bytes: u64,
    pub syncs: u64,
    pub errors: u64,
}

impl Origin {
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.syncs
    }
}

/// All volumes together, since the start of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub origin: Origin,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    /// On the SSD, payload.
    pub flash_read_bytes: u64,
    pub flash_write_bytes: u64,
    /// In use now: read tier, overlays, maps.
    pub ram_bytes: u64,
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
            sum.writes += counters.writes.requests;
            sum.flushes += counters.flushes;
            sum.flash_read_bytes += counters.ssd_read_bytes;
            sum.flash_write_bytes += counters.ssd_write_bytes;
            let overlay = volume.overlay.map_or(0, |overlay| overlay.ram_blocks);
            sum.ram_bytes += overlay * BLOCK_BYTES;
        }
        sum
    }
}
