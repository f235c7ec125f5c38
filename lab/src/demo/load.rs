//! The guests: they boot together and then work for a while.
//!
//! Owns what is asked of a disk and when, and the check of every answer. Always true: all runs
//! ask for the same requests in the same order on each lane, unless the time of a run is over; a
//! latency is the time from sending a request to its answer, with nothing taken out; a read that
//! returns wrong bytes ends the demonstration. Deliberately absent: anything about caches.

use super::content::{self, BLOCK, LANE_BLOCKS, LANES};
use super::run::Watch;
use super::side;
use crate::client::Client;
use crate::stats::{Disk, Kind, Sample};
use host::error::{Error, Result};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use workload::rng::Rng;

/// Connections to a disk: one of each lane, and one that tries whether it is there.
pub const CLIENTS: usize = LANES as usize + 1;
/// Work of one lane: a request every 33 ms on average, for four seconds.
const WORK_REQUESTS: u64 = 120;
const WORK_INTERVAL: Duration = Duration::from_micros(33_333);
/// A guest thinks this long after so many reads of its boot.
const BOOT_THINK: Duration = Duration::from_millis(2);
const BOOT_READS_BETWEEN_THINKS: usize = 16;
/// Writes between two flushes of a lane.
const WRITES_PER_FLUSH: u64 = 4;
/// Four of five requests to the window go to its first MiB: what is written is written again.
const HOT_BLOCKS: u64 = 256;
const BLOCKS_MAX: u64 = 8;

/// What one run of all guests came to.
pub struct Load {
    pub samples: Vec<Sample>,
    /// Until each guest has booted; all begin together.
    pub boots: Vec<Duration>,
    /// How long each then worked.
    pub works: Vec<Duration>,
    pub total: Duration,
    /// Requests done, and those that a run has.
    pub done: (u64, u64),
    /// How often each block of the window of each volume was written, by volume and lane.
    pub versions: Vec<Vec<Vec<u32>>>,
}

/// Requests that a run makes, for the progress bar.
pub fn requests(seed: u64, volumes: u64) -> u64 {
    volumes * (content::boot_reads(seed, 0).len() as u64 + LANES * WORK_REQUESTS)
}

/// Drives all volumes to the end of their work.
pub fn run(seed: u64, disks: &[side::Disk], watch: Watch<'_>) -> Result<Load> {
    let barrier = Barrier::new(disks.len() * LANES as usize);
    let kept = disks.len() - 1;
    let mut done = 0;
    let (mut boots, mut works) = (Vec::new(), Vec::new());
    let mut samples = Vec::new();
    let mut versions = Vec::new();
    let mut failed = None;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (volume, disk) in disks.iter().enumerate() {
            for lane in 0..LANES {
                let barrier = &barrier;
                running.push(scope.spawn(move || {
                    let mut lane = Lane::new(seed, volume as u64, lane, watch);
                    if volume == kept {
                        lane.disk = Disk::Kept;
                    }
                    lane.live(disk, barrier)
                }));
            }
        }
        for (at, lane) in running.into_iter().enumerate() {
            let lane = lane.join().expect("a panic ends the process");
            samples.extend(lane.samples);
            done += lane.done;
            if at.is_multiple_of(LANES as usize) {
                versions.push(Vec::new());
                boots.push(Duration::ZERO);
                works.push(Duration::ZERO);
            }
            let volume = at / LANES as usize;
            versions[volume].push(lane.versions);
            // A guest has done what the last of its lanes has done.
            boots[volume] = boots[volume].max(lane.booted);
            works[volume] = works[volume].max(lane.worked);
            failed = failed.take().or(lane.failed);
        }
    });
    watch.interrupt.check()?;
    if let Some(why) = failed {
        return Err(Error::failed(why));
    }
    Ok(Load {
        samples,
        boots,
        works,
        total: watch.began.elapsed(),
        done: (done, requests(seed, disks.len() as u64)),
        versions,
    })
}

/// One queue of one guest: a connection with one request in flight.
struct Lane<'a> {
    seed: u64,
    volume: u64,
    lane: u64,
    disk: Disk,
    watch: Watch<'a>,
    rng: Rng,
    done: u64,
    samples: Vec<Sample>,
    versions: Vec<u32>,
    buffer: Vec<u8>,
    expected: Vec<u8>,
    /// Since the start of the run.
    booted: Duration,
    /// Since the start of the work.
    worked: Duration,
    failed: Option<String>,
}

impl<'a> Lane<'a> {
    fn new(seed: u64, volume: u64, lane: u64, watch: Watch<'a>) -> Lane<'a> {
        Lane {
            seed,
            volume,
            lane,
            disk: Disk::Clone,
            watch,
            done: 0,
            rng: Rng::new(seed ^ (volume * LANES + lane + 1) << 40),
            samples: Vec::new(),
            versions: vec![0; LANE_BLOCKS as usize],
            buffer: vec![0; BLOCKS_MAX as usize * BLOCK],
            expected: vec![0; BLOCK],
            booted: Duration::ZERO,
            worked: Duration::ZERO,
            failed: None,
        }
    }

    /// A lane that fails still meets the others, or they would wait for ever.
    fn live(mut self, disk: &side::Disk, barrier: &Barrier) -> Lane<'a> {
        let mut client = Client::connect(&disk.socket, &disk.export);
        barrier.wait();
        let result = match &mut client {
            Ok(client) => self.boot(client),
            Err(error) => Err(format!("cannot connect: {error}")),
        };
        self.booted = self.watch.began.elapsed();
        barrier.wait();
        let begun = Instant::now();
        let result = result.and_then(|()| match &mut client {
            Ok(client) => self.work(client),
            Err(error) => Err(error.to_string()),
        });
        self.worked = begun.elapsed();
        let name = &disk.name;
        self.failed = result.err().map(|why| format!("volume {name}: {why}"));
        self
    }

    fn boot(&mut self, client: &mut Client) -> std::result::Result<(), String> {
        let reads = content::boot_reads(self.seed, self.volume).into_iter();
        let mine = reads.skip(self.lane as usize).step_by(LANES as usize);
        for (number, (block, blocks)) in mine.enumerate() {
            if self.is_late() {
                break;
            }
            self.read(client, Kind::Boot, block, blocks)?;
            if number % BOOT_READS_BETWEEN_THINKS == BOOT_READS_BETWEEN_THINKS - 1 {
                std::thread::sleep(BOOT_THINK);
            }
        }
        Ok(())
    }

    fn work(&mut self, client: &mut Client) -> std::result::Result<(), String> {
        let boot = content::boot_reads(self.seed, self.volume);
        let first = content::lane_block(self.lane);
        let begun = Instant::now();
        let mut writes = 0;
        for number in 0..WORK_REQUESTS {
            if self.is_late() {
                break;
            }
            // Requests come when they come: a slow disk does not lower the demand, it is late.
            let jitter = WORK_INTERVAL.mul_f64(self.rng.below(1000) as f64 / 1000.0);
            let due = begun + WORK_INTERVAL * number as u32 + jitter;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (kind, blocks) = (self.rng.below(8), 1 + self.rng.below(4));
            match kind {
                0 => {
                    let (block, blocks) = boot[self.rng.below(boot.len() as u64) as usize];
                    self.read(client, Kind::Read, block, blocks)?;
                }
                1 => {
                    let at = self.somewhere(blocks);
                    self.read(client, Kind::Read, first + at, blocks)?;
                }
                _ => {
                    let at = self.somewhere(blocks);
                    self.write(client, at, blocks)?;
                    writes += 1;
                    if writes % WRITES_PER_FLUSH == 0 {
                        let sent = Instant::now();
                        let result = client.flush();
                        self.timed(Kind::Flush, sent, result)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The time of the run is over; what was not done is told of.
    fn is_late(&self) -> bool {
        Instant::now() > self.watch.deadline()
    }

    fn has_done(&mut self) {
        self.done += 1;
        self.watch.bar.inc(1);
    }

    /// A block of this lane's part of the window from which so many blocks fit.
    fn somewhere(&mut self, blocks: u64) -> u64 {
        let room = match self.rng.below(5) {
            0 => LANE_BLOCKS,
            _ => HOT_BLOCKS,
        };
        self.rng.below(room - blocks)
    }

    fn read(
        &mut self,
        client: &mut Client,
        kind: Kind,
        block: u64,
        blocks: u64,
    ) -> std::result::Result<(), String> {
        let bytes = blocks as usize * BLOCK;
        let sent = Instant::now();
        let result = client.read(block * BLOCK as u64, &mut self.buffer[..bytes]);
        self.timed(kind, sent, result)?;
        self.has_done();
        for (at, got) in self.buffer[..bytes].chunks_exact(BLOCK).enumerate() {
            let block = block + at as u64;
            let inside = block.checked_sub(content::lane_block(self.lane));
            let version = inside.and_then(|at| self.versions.get(at as usize));
            let version = version.copied().unwrap_or(0);
            content::fill(self.seed, self.volume, block, version, &mut self.expected);
            if got != self.expected {
                return Err(format!(
                    "block {block} does not hold what was written to it"
                ));
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        client: &mut Client,
        at: u64,
        blocks: u64,
    ) -> std::result::Result<(), String> {
        let bytes = blocks as usize * BLOCK;
        let first = content::lane_block(self.lane) + at;
        for (number, block) in self.buffer[..bytes].chunks_exact_mut(BLOCK).enumerate() {
            let version = &mut self.versions[at as usize + number];
            *version += 1;
            let number = first + number as u64;
            content::fill(self.seed, self.volume, number, *version, block);
        }
        let sent = Instant::now();
        let result = client.write(first * BLOCK as u64, &self.buffer[..bytes]);
        self.has_done();
        self.timed(Kind::Write, sent, result)
    }

    fn timed(
        &mut self,
        kind: Kind,
        sent: Instant,
        result: std::io::Result<()>,
    ) -> std::result::Result<(), String> {
        let latency = sent.elapsed();
        self.samples.push(Sample {
            at: self.watch.began.elapsed(),
            disk: self.disk,
            kind,
            latency,
        });
        if self.watch.interrupt.came() {
            return Err("interrupted".into());
        }
        result.map_err(|error| format!("{}: {error}", kind.name()))
    }
}
