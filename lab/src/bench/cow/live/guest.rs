//! A guest in a closed loop: so many requests in flight, of any size, over NBD.
//!
//! Owns one connection for each request in flight, with the client of this crate and a thread.
//! Always true: every side is asked in the same order; a request that was answered after the end
//! does not count. Deliberately absent: a look at the bytes of a read; the drills look at those.

use crate::bench::pipe::noise;
use crate::client::Client;
use crate::replay::machine::Ask;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use workload::stacked::CLUSTER_BYTES;

const SECTOR_BYTES: u64 = 512;
/// A load lasts until so many were answered, however slow the machine is: writes are among them.
const REQUESTS_MIN: u64 = 32;
/// Of one read that warms.
const PIECE_BYTES: u64 = 1 << 20;

/// What came of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// Answered in time.
    pub requests: u64,
    pub took: Duration,
    /// Of all that was sent.
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    /// Clusters of 64 KiB that were written for the first time.
    pub clusters: u64,
}

impl Carried {
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }
}

/// Reads the beginning of an export.
pub fn warm(socket: &Path, export: &str, bytes: u64) -> io::Result<()> {
    let mut client = Client::connect(socket, export)?;
    let mut piece = vec![0; PIECE_BYTES as usize];
    (0..bytes)
        .step_by(PIECE_BYTES as usize)
        .try_for_each(|offset| client.read(offset, &mut piece))
}

/// Until all are answered, or the time is over and some were.
pub fn carry(
    (socket, export): (&Path, &str),
    asks: &[Ask],
    depth: usize,
    lasts: Duration,
) -> io::Result<Carried> {
    let clients: io::Result<Vec<Client>> = (0..depth)
        .map(|_| Client::connect(socket, export))
        .collect();
    let (next, answered) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (start, longer) = (Barrier::new(depth + 1), AtomicBool::new(false));
    let (next, answered, start, longer) = (&next, &answered, &start, &longer);
    let (took, failed) = std::thread::scope(|scope| {
        let loops = clients?.into_iter().map(|mut client| {
            scope.spawn(move || {
                let mut bytes = payload(asks);
                start.wait();
                let until = Instant::now() + lasts;
                let few = || answered.load(Ordering::Relaxed) < REQUESTS_MIN;
                while Instant::now() < until || few() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(ask) = asks.get(number) else {
                        break;
                    };
                    send(&mut client, *ask, number, &mut bytes)?;
                    let late = Instant::now() > until;
                    if !late || few() {
                        answered.fetch_add(1, Ordering::Relaxed);
                        longer.fetch_or(late, Ordering::Relaxed);
                    }
                }
                Ok(())
            })
        });
        let loops: Vec<_> = loops.collect();
        start.wait();
        let begun = Instant::now();
        let ends: Vec<io::Result<()>> = loops
            .into_iter()
            .map(|it| it.join().expect("a panic ends the process"))
            .collect();
        // One that ends before the time has answered all.
        let took = match longer.load(Ordering::Relaxed) {
            true => begun.elapsed(),
            false => begun.elapsed().min(lasts),
        };
        Ok::<_, io::Error>((took, ends.into_iter().find_map(Result::err)))
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let sent = next.load(Ordering::Relaxed).min(asks.len());
    Ok(Carried {
        requests: answered.load(Ordering::Relaxed),
        took,
        ..counted(&asks[..sent])
    })
}

/// As long as the longest request.
fn payload(asks: &[Ask]) -> Vec<u8> {
    let sectors = |ask: &Ask| match ask {
        Ask::Read { sectors, .. } | Ask::Write { sectors, .. } => *sectors,
        Ask::Discard { .. } | Ask::Flush => 0,
    };
    let longest = asks.iter().map(sectors).max().unwrap_or_default() * SECTOR_BYTES;
    let block = noise();
    let mut bytes = block.repeat((longest as usize).div_ceil(block.len()));
    bytes.truncate(longest as usize);
    bytes
}

fn send(client: &mut Client, ask: Ask, number: usize, bytes: &mut [u8]) -> io::Result<()> {
    match ask {
        Ask::Read { sector, sectors } => {
            let length = (sectors * SECTOR_BYTES) as usize;
            client.read(sector * SECTOR_BYTES, &mut bytes[..length])
        }
        Ask::Write { sector, sectors } => {
            let length = (sectors * SECTOR_BYTES) as usize;
            // Each write differs, so that no side may keep one copy of all.
            bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
            client.write(sector * SECTOR_BYTES, &bytes[..length])
        }
        Ask::Flush => client.flush(),
        Ask::Discard { .. } => unreachable!("no load discards"),
    }
}

fn counted(asks: &[Ask]) -> Carried {
    let mut carried = Carried::default();
    let mut clusters = HashSet::new();
    for ask in asks {
        match ask {
            Ask::Write { sector, sectors } => {
                carried.writes += 1;
                carried.write_bytes += sectors * SECTOR_BYTES;
                let of = |sector: u64| sector * SECTOR_BYTES / CLUSTER_BYTES;
                clusters.extend(of(*sector)..=of(sector + sectors - 1));
            }
            Ask::Flush => carried.flushes += 1,
            Ask::Read { .. } | Ask::Discard { .. } => {}
        }
    }
    carried.clusters = clusters.len() as u64;
    carried
}
