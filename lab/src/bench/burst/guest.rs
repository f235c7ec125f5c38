//! The guest of the bursts: so many writes in flight, at a pace that the phases give.
//!
//! Always true: a write begins no earlier than its phase asks, and what came too late is not made
//! up for: a guest that was slowed has written less, as a benchmark in it would have.

use super::WRITE_BYTES;
use super::run::{DEPTH, Phase, Write};
use crate::client::Client;
use host::error::{Error, Result};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use workload::rng::Rng;

/// Where the next write goes, and when.
struct Pacer<'a> {
    phases: &'a [Phase],
    blocks: u64,
    phase: usize,
    next: Duration,
    sequential: u64,
    random: Rng,
}

impl Pacer<'_> {
    /// The time and the block of the next write; none when all phases are over.
    fn take(&mut self, now: Duration) -> Option<(Duration, u64)> {
        loop {
            let phase = self.phases.get(self.phase)?;
            let due = self.next.max(now).max(phase.from);
            if due >= phase.to {
                self.phase += 1;
                continue;
            }
            self.next = due + Duration::from_secs(1) / phase.rate;
            let block = if phase.sequential {
                self.sequential += 1;
                self.sequential % self.blocks
            } else {
                self.random.below(self.blocks)
            };
            return Some((due, block));
        }
    }
}

/// Writes through all phases; the times count from `began`.
pub fn write(
    socket: &Path,
    volume: &str,
    phases: &[Phase],
    (bytes, seed): (u64, u64),
    began: Instant,
) -> Result<Vec<Write>> {
    // Held for the moment of a choice; all writers share one sequence.
    let pacer = Mutex::new(Pacer {
        phases,
        blocks: bytes / WRITE_BYTES,
        phase: 0,
        next: Duration::ZERO,
        sequential: 0,
        random: Rng::new(seed),
    });
    let mut writes = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..DEPTH)
            .map(|_| scope.spawn(|| writer(socket, volume, &pacer, began)))
            .collect();
        for writer in writers {
            writes.extend(writer.join().expect("a panic ends the process")?);
        }
        Ok::<(), Error>(())
    })?;
    writes.sort_unstable_by_key(|write| write.at);
    Ok(writes)
}

fn writer(
    socket: &Path,
    volume: &str,
    pacer: &Mutex<Pacer<'_>>,
    began: Instant,
) -> Result<Vec<Write>> {
    let failed = |error| Error::failed(format!("volume {volume}: {error}"));
    let mut client = Client::connect(socket, volume).map_err(failed)?;
    let mut content = vec![0x5A; WRITE_BYTES as usize];
    let mut writes = Vec::new();
    loop {
        let next = pacer
            .lock()
            .expect("no writer panics")
            .take(began.elapsed());
        let Some((due, block)) = next else {
            return Ok(writes);
        };
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        content[..8].copy_from_slice(&block.to_le_bytes());
        let sent = Instant::now();
        client
            .write(block * WRITE_BYTES, &content)
            .map_err(failed)?;
        writes.push(Write {
            at: began.elapsed(),
            latency: sent.elapsed(),
        });
    }
}
