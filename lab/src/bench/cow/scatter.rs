//! Figure 4 of the paper: what it costs that a block lies in pieces, and how whole files are.
//!
//! Owns both halves. Always true: an access of 64 KiB is timed from its first request to its last
//! answer, on the bare file without a page cache; whole and scattered accesses take turns in one
//! run, whole ones twice, so that they stand against themselves; an extent is what a file has in
//! one piece for one piece of the disk, and `qemu-img map` says so of every file. Deliberately
//! absent: a disk that turns, which the paper has as well.

mod report;

use super::load::Writes;
use super::served::{Disk, Kind};
use crate::bench::micro::serve::make_file;
use crate::bench::pipe::noise;
use crate::bench::range;
use crate::place::Place;
use crate::qemu;
use engine::memory::{Area, Place as MemoryPlace};
use engine::types::BufferId;
use host::buffer::{Arena, BUFFER_BYTES_MAX, BufferPool, HostMemory};
use host::error::{Error, Result, cause};
use host::ring::{Completed, Ring, Span};
pub use report::Report;
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::rng::Rng;
use workload::stacked::CLUSTER_BYTES;

const BLOCK_BYTES: u64 = 4096;
const PIECES: usize = (CLUSTER_BYTES / BLOCK_BYTES) as usize;
/// Requests of the load in flight.
const DEPTH: usize = 16;

#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: u32,
    /// In each slot.
    pub accesses: u32,
    /// Of the bare file, and of the disk whose clones are written.
    pub disk_bytes: u64,
    pub cache_bytes: u64,
    pub seed: u64,
    pub directory: PathBuf,
}

impl Options {
    pub const ACCESSES: u32 = 500;

    fn check(&self) -> Result<()> {
        range::at_least_one("--rounds", self.rounds)?;
        range::size_within("--data", self.disk_bytes, 64 << 20..=64 << 30)?;
        range::size_at_least("--cache", self.cache_bytes, self.disk_bytes)
    }

    /// Steps of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        u64::from(self.rounds) + Kind::ALL.len() as u64
    }
}

/// How 64 KiB are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Whole,
    /// All pieces at once.
    Scattered,
    WholeAgain,
    /// One piece after another.
    OneByOne,
}

impl Way {
    const ALL: [Way; 4] = [Way::Whole, Way::Scattered, Way::WholeAgain, Way::OneByOne];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Read,
    Write,
}

impl Verb {
    const ALL: [Verb; 2] = [Verb::Read, Verb::Write];

    fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Write => "write",
        }
    }
}

/// Medians of the slots of a round in seconds, in the order of [`Way::ALL`].
type Round = [f64; 4];

/// What a file has after the load of f10.
struct Extents {
    kind: Kind,
    count: u64,
    bytes: u64,
    /// Of the guest.
    writes: u64,
}

impl Extents {
    fn mean_bytes(&self) -> f64 {
        self.bytes as f64 / self.count.max(1) as f64
    }

    /// Every write is in it.
    fn is_proven(&self) -> bool {
        self.count > 0 && self.bytes >= self.writes / 2 * BLOCK_BYTES
    }
}

fn failed(error: io::Error) -> Error {
    Error::failed(format!("bench cow f4: {}", cause(&error)))
}

/// The bare file, with a buffer for each piece and one for all.
struct Bare {
    file: File,
    ring: Ring,
    memory: HostMemory,
    whole: BufferId,
    pieces: Vec<BufferId>,
    completed: Vec<Completed>,
}

impl Bare {
    fn open(path: &Path) -> io::Result<Bare> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let none = || Arena::anonymous(BLOCK_BYTES);
        let mut buffers = BufferPool::new(BUFFER_BYTES_MAX)?;
        let mut buffer = |bytes: u64| {
            let buffer = buffers.allocate(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
            let content = noise().repeat((bytes / BLOCK_BYTES) as usize);
            buffers.bytes(buffer).copy_from_slice(&content);
            Ok::<_, io::Error>(buffer)
        };
        let whole = buffer(CLUSTER_BYTES)?;
        let pieces = (0..PIECES).map(|_| buffer(BLOCK_BYTES));
        let pieces = pieces.collect::<io::Result<Vec<BufferId>>>()?;
        Ok(Bare {
            file: options.open(path)?,
            ring: Ring::new(64)?,
            memory: HostMemory::new(none()?, none()?, none()?, buffers),
            whole,
            pieces,
            completed: Vec::new(),
        })
    }

    fn start(&mut self, verb: Verb, (buffer, bytes): (BufferId, u64), at: u64) {
        let place = MemoryPlace::new(Area::Buffer(buffer), 0);
        let span = Span::place(&self.memory, place, bytes);
        let fd = self.file.as_raw_fd();
        match verb {
            Verb::Read => self.ring.read(0, fd, at, &[span]),
            Verb::Write => self.ring.write(0, fd, at, &[span]),
        }
    }

    fn wait(&mut self, count: usize) -> io::Result<()> {
        let mut open = count;
        while open > 0 {
            self.ring.wait(None)?;
            self.ring.reap(&mut self.completed);
            open -= self.completed.len();
            for completed in self.completed.drain(..) {
                completed.result.map_err(io::Error::from_raw_os_error)?;
            }
        }
        Ok(())
    }

    /// One access of 64 KiB somewhere in the file.
    fn access(&mut self, verb: Verb, way: Way, bytes: u64, rng: &mut Rng) -> io::Result<Duration> {
        let mut block = || rng.scaled(bytes / BLOCK_BYTES) * BLOCK_BYTES;
        let places: Vec<u64> = (0..PIECES).map(|_| block()).collect();
        let begun = Instant::now();
        match way {
            Way::Whole | Way::WholeAgain => {
                let at = places[0] / CLUSTER_BYTES * CLUSTER_BYTES;
                self.start(verb, (self.whole, CLUSTER_BYTES), at);
                self.wait(1)?;
            }
            Way::Scattered => {
                for (piece, at) in places.into_iter().enumerate() {
                    self.start(verb, (self.pieces[piece], BLOCK_BYTES), at);
                }
                self.wait(PIECES)?;
            }
            Way::OneByOne => {
                for (piece, at) in places.into_iter().enumerate() {
                    self.start(verb, (self.pieces[piece], BLOCK_BYTES), at);
                    self.wait(1)?;
                }
            }
        }
        Ok(begun.elapsed())
    }

    /// The median of a slot in seconds.
    fn slot(&mut self, verb: Verb, way: Way, options: &Options, rng: &mut Rng) -> io::Result<f64> {
        let accesses = 0..options.accesses.max(1);
        let timed = accesses.map(|_| self.access(verb, way, options.disk_bytes, rng));
        let mut timed = timed.collect::<io::Result<Vec<Duration>>>()?;
        timed.sort_unstable();
        Ok(timed[timed.len() / 2].as_secs_f64())
    }
}

/// Calls `done` with the steps so far.
pub fn run(options: &Options, mut done: impl FnMut(u64)) -> Result<Report> {
    options.check()?;
    let qemu_version = qemu::storage_version()?;
    let place = Place::below(&options.directory)?;
    let mut steps = 0;
    let mut step = || {
        steps += 1;
        done(steps);
    };
    let raw = place.path("base.raw");
    make_file(&raw, options.disk_bytes / BLOCK_BYTES)?;
    let base = place.path("base.qcow2");
    qemu::convert(&raw, &base)?;
    let rounds = bare_rounds(&raw, options, &mut step).map_err(failed)?;
    fs::remove_file(&raw).map_err(failed)?;
    let mut extents = Vec::new();
    for kind in Kind::ALL {
        extents.push(written(&place, kind, options, &base)?);
        step();
    }
    Ok(Report {
        options: options.clone(),
        qemu_version,
        rounds,
        extents,
    })
}

/// Reads and writes of the bare file, in the order of [`Verb::ALL`].
fn bare_rounds(
    raw: &Path,
    options: &Options,
    step: &mut dyn FnMut(),
) -> io::Result<[Vec<Round>; 2]> {
    let mut bare = Bare::open(raw)?;
    let mut rng = Rng::new(options.seed);
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 0..options.rounds as usize {
        for (verb, rounds) in Verb::ALL.into_iter().zip(&mut rounds) {
            let mut round = [0.0; 4];
            for turn in 0..Way::ALL.len() {
                let at = (turn + number) % Way::ALL.len();
                round[at] = bare.slot(verb, Way::ALL[at], options, &mut rng)?;
            }
            rounds.push(round);
        }
        step();
    }
    Ok(rounds)
}

/// A new clone with the random writes of f10, as many as half of its clusters.
fn written(place: &Place, kind: Kind, options: &Options, base: &Path) -> Result<Extents> {
    let sizes = (options.disk_bytes, options.cache_bytes);
    let disk = Disk::new(place, kind, sizes, base)?;
    let load = Writes {
        disk_bytes: options.disk_bytes,
        bytes: BLOCK_BYTES,
        unaligned: false,
    };
    let count = options.disk_bytes / CLUSTER_BYTES / 2;
    let asks: Vec<_> = load.asks(count, options.seed).collect();
    let served = disk.serve()?;
    let carried = served.carry(&asks, DEPTH);
    served.stop()?;
    let (carried, _) = carried?;
    let (count, bytes) = extents(&qemu::map(disk.file())?)?;
    Ok(Extents {
        kind,
        count,
        bytes,
        writes: carried.writes,
    })
}

/// How many extents a map has, and their bytes.
fn extents(map: &str) -> Result<(u64, u64)> {
    let wrong = || Error::failed("bench cow f4: qemu-img map says what is no map");
    let map: Value = serde_json::from_str(map).map_err(|_| wrong())?;
    let (mut count, mut bytes) = (0, 0);
    let mut end = None;
    for run in map.as_array().ok_or_else(wrong)? {
        let number = |key: &str| run[key].as_u64();
        let Some(at) = number("offset").filter(|_| run["data"] == true) else {
            continue;
        };
        let (start, length) = (number("start"), number("length"));
        let (start, length) = (start.ok_or_else(wrong)?, length.ok_or_else(wrong)?);
        count += u64::from(end != Some((start, at)));
        bytes += length;
        end = Some((start + length, at + length));
    }
    Ok((count, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: what lies in one piece on the disk and in the file counts as two, or what lies
    /// apart in one of them counts as one.
    #[test]
    fn an_extent_is_in_one_piece_in_the_file_and_on_the_disk() {
        let run = |start: u64, length: u64, offset: u64, data: bool| {
            serde_json::json!({
                "start": start, "length": length, "offset": offset, "data": data, "depth": 0,
            })
        };
        let map = serde_json::json!([
            run(0, 100, 1000, true),
            run(100, 50, 1100, true),
            run(150, 50, 2000, true),
            run(200, 50, 2050, false),
            run(300, 10, 2050, true),
        ]);
        assert_eq!(extents(&map.to_string()).expect("a map"), (3, 210));
        assert!(extents("{}").is_err());
    }
}
