//! Figure 3 of the paper: requests that the storage gets for one of the guest.
//!
//! Owns the operations and where they go. Always true: each kind of operation meets empty caches of
//! data and of tables, but for those that are asked for again; all that it leaves behind, a flush
//! and a destage, is counted with it; one request is in flight unless more are asked for.
//! Operations lie as far apart as a table reaches, so that each one needs a table of its own, or
//! close together, so that a table is of use to many. Traces are replayed by the engine in virtual
//! time, the operations are not. Deliberately absent: how long anything takes.

mod report;

use super::experiments::{BASELINE, EXTENDED, EXTENDED_THROUGH, PLAIN, PLAIN_THROUGH};
use super::served::{Disk, Kind, Requests, Served};
use super::side::{self, Measured};
use super::trace::Trace;
use super::weeks::{serve, smallest};
use crate::bench::micro::serve::make_file;
use crate::bench::pipe::noise;
use crate::bench::range;
use crate::place::Place;
use crate::qemu;
use crate::replay::machine::Ask;
use engine::types::Policy;
use host::error::{Error, Result, cause};
pub use report::Report;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use workload::rng::Rng;

const BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// A cluster with subclusters, or two without.
const SPOT_BYTES: u64 = 128 << 10;
/// At each place there is one for each use.
const SPOTS: u64 = 4;
/// What one table maps of clusters with subclusters, and two tables of those without.
const FAR_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = 512 << 20;
/// A part of the working set; and, as in f14, more than all of it.
const CACHES: [(u64, u64); 2] = [(1, 5), (4, 1)];

#[derive(Clone, Debug)]
pub struct Options {
    /// Operations of each kind that are far apart, and of those that are close together.
    pub far: u64,
    pub near: u64,
    pub depth: usize,
    pub scale: f64,
    pub seed: u64,
    /// Beside the desktop's week.
    pub trace: Option<Arc<Trace>>,
    pub directory: PathBuf,
}

impl Options {
    pub const FAR: u64 = 64;
    pub const NEAR: u64 = 1024;

    fn check(&self) -> Result<()> {
        range::within("--scale", self.scale, 1.0..=10_000.0)?;
        range::within("--far", self.far, 1..=256)?;
        range::within("--near", self.near, 1..=65_536)?;
        range::within("--qd", self.depth, 1..=32)
    }

    /// Steps of which [`run`] tells.
    pub fn steps(&self) -> u64 {
        let traces = 1 + usize::from(self.trace.is_some());
        let operations = Apart::ALL.len() * Kind::ALL.len() * Operation::ALL.len();
        (operations + traces * CACHES.len() * TRACE_KINDS.len()) as u64
    }
}

/// How far operations are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    Far,
    Near,
}

impl Apart {
    const ALL: [Apart; 2] = [Apart::Far, Apart::Near];

    fn name(self) -> &'static str {
        match self {
            Apart::Far => "a table each",
            Apart::Near => "close together",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Apart::Far => FAR_BYTES,
            Apart::Near => SPOTS * SPOT_BYTES,
        }
    }
}

/// What a guest does, each with 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Into a clone without anything.
    FirstWrite,
    NewWrite,
    OverWrite,
    ReadDelta,
    ReadDeltaAgain,
    ReadBase,
    ReadBaseAgain,
}

impl Operation {
    const ALL: [Operation; 7] = [
        Operation::FirstWrite,
        Operation::NewWrite,
        Operation::OverWrite,
        Operation::ReadDelta,
        Operation::ReadDeltaAgain,
        Operation::ReadBase,
        Operation::ReadBaseAgain,
    ];

    /// The paper's names, and more.
    fn name(self) -> &'static str {
        match self {
            Operation::FirstWrite => "new-wt, empty clone",
            Operation::NewWrite => "new-wt",
            Operation::OverWrite => "over-wt",
            Operation::ReadDelta => "rd-delta",
            Operation::ReadDeltaAgain => "rd-delta, again",
            Operation::ReadBase => "rd-base",
            Operation::ReadBaseAgain => "rd-base, again",
        }
    }

    /// What is overwritten and read of the delta is in one spot, the others have theirs.
    fn spot(self) -> u64 {
        match self {
            Operation::FirstWrite => 0,
            Operation::NewWrite => 1,
            Operation::OverWrite | Operation::ReadDelta | Operation::ReadDeltaAgain => 2,
            Operation::ReadBase | Operation::ReadBaseAgain => 3,
        }
    }

    fn is_write(self) -> bool {
        let writes = [
            Operation::FirstWrite,
            Operation::NewWrite,
            Operation::OverWrite,
        ];
        writes.contains(&self)
    }

    fn is_again(self) -> bool {
        matches!(self, Operation::ReadDeltaAgain | Operation::ReadBaseAgain)
    }

    /// The most that the paper has of QEMU.
    fn paper(self) -> Option<f64> {
        match self {
            Operation::FirstWrite | Operation::NewWrite => Some(13.0),
            Operation::OverWrite | Operation::ReadDelta => Some(2.0),
            Operation::ReadBase => Some(3.0),
            Operation::ReadDeltaAgain | Operation::ReadBaseAgain => None,
        }
    }

    /// The most that is wanted of a side: QEMU as in the paper, ours in write-back.
    fn target(self, kind: Kind) -> Option<f64> {
        match kind {
            Kind::Qemu(_) => self.paper(),
            Kind::Tenuto(_, Policy::WriteBack) => match self {
                Operation::FirstWrite | Operation::NewWrite => Some(1.2),
                _ => Some(1.0),
            },
            Kind::Tenuto(..) => None,
        }
    }

    /// One request at each place, in an order that no file has.
    fn asks(self, apart: Apart, count: u64, seed: u64) -> Vec<Ask> {
        let mut places: Vec<u64> = (0..count).collect();
        let mut rng = Rng::new(seed);
        for at in (1..places.len()).rev() {
            places.swap(at, rng.scaled(at as u64 + 1) as usize);
        }
        let ask = |place: u64| {
            // Inside of its cluster, so that there is something to copy before it and behind it.
            let byte = place * apart.bytes() + self.spot() * SPOT_BYTES + 5 * BLOCK_BYTES;
            let (sector, sectors) = (byte / SECTOR_BYTES, BLOCK_BYTES / SECTOR_BYTES);
            match self.is_write() {
                true => Ask::Write { sector, sectors },
                false => Ask::Read { sector, sectors },
            }
        };
        places.into_iter().map(ask).collect()
    }
}

/// What one kind of operation came to on one side.
struct Row {
    apart: Apart,
    operation: Operation,
    kind: Kind,
    /// Of the guest.
    count: u64,
    requests: Requests,
    proven: bool,
}

impl Row {
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.count as f64
    }

    fn is_met(&self) -> Option<bool> {
        let target = self.operation.target(self.kind)?;
        Some(self.each(self.requests.all()) <= target)
    }

    /// Whether the counters show that this was the path.
    fn shows_its_path(&self) -> bool {
        let (requests, count) = (&self.requests, self.count);
        let moved = match self.operation.is_write() {
            true => requests.asked_writes >= count && requests.write_bytes >= count * BLOCK_BYTES,
            false if self.operation.is_again() && matches!(self.kind, Kind::Tenuto(..)) => {
                requests.cache_hits >= count
            }
            false => requests.asked_reads >= count && requests.read_bytes >= count * BLOCK_BYTES,
        };
        let cached = matches!(self.kind, Kind::Qemu(_)) && requests.cache_hits > 0;
        moved && !cached && requests.dirty_bytes == 0
    }
}

/// A trace in a cache of a size, on every side.
struct Replayed {
    trace: String,
    cache_bytes: u64,
    sides: Vec<(side::Kind, Measured)>,
}

const TRACE_KINDS: [side::Kind; 6] = [
    side::Kind::Stacked(Policy::Uncached),
    BASELINE,
    PLAIN,
    EXTENDED,
    PLAIN_THROUGH,
    EXTENDED_THROUGH,
];

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench cow f3: {}", cause(&error)))
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
    let mut rows = Vec::new();
    for apart in Apart::ALL {
        let count = match apart {
            Apart::Far => options.far,
            Apart::Near => options.near,
        };
        let (bytes, base) = make_base(&place, apart, count)?;
        for kind in Kind::ALL {
            let disk = Disk::new(&place, kind, (bytes, CACHE_BYTES), &base)?;
            rows.extend(operate(&disk, kind, (apart, count), options, &mut step)?);
        }
        fs::remove_file(&base).map_err(failed)?;
    }
    let desktop = Arc::new(Trace::desktop(options.seed, options.scale)?);
    let mut replayed = Vec::new();
    for trace in [desktop].into_iter().chain(options.trace.clone()) {
        for (times, of) in CACHES {
            let cache_bytes = smallest(trace.working_set_bytes * times / of);
            replayed.push(replay(&trace, cache_bytes, options.seed, &mut step)?);
        }
    }
    Ok(Report {
        options: options.clone(),
        qemu_version,
        rows,
        replayed,
    })
}

/// A qcow2 file that has data at every place, and the size of its disk.
fn make_base(place: &Place, apart: Apart, count: u64) -> Result<(u64, PathBuf)> {
    let (raw, base) = (place.path("base.raw"), place.path("base.qcow2"));
    let piece = SPOTS * SPOT_BYTES;
    make_file(&raw, 0)?;
    let file = OpenOptions::new().write(true).open(&raw).map_err(failed)?;
    let bytes = count * apart.bytes();
    file.set_len(bytes).map_err(failed)?;
    let data = noise().repeat((piece / BLOCK_BYTES) as usize);
    for number in 0..count {
        let at = number * apart.bytes();
        file.write_all_at(&data, at).map_err(failed)?;
    }
    qemu::convert(&raw, &base)?;
    fs::remove_file(&raw).map_err(failed)?;
    Ok((bytes, base))
}

/// All operations on one clone, each with empty caches; what is overwritten and read of the delta
/// is written before.
fn operate(
    disk: &Disk,
    kind: Kind,
    (apart, count): (Apart, u64),
    options: &Options,
    step: &mut dyn FnMut(),
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut served: Option<Served> = None;
    for operation in Operation::ALL {
        if operation == Operation::NewWrite {
            stop(served.take())?;
            prepare(disk, apart, count, options)?;
        }
        if !operation.is_again() {
            stop(served.take())?;
            served = Some(disk.serve()?);
        }
        let now = served.as_ref().expect("it has been started");
        let asks = operation.asks(apart, count, options.seed);
        let (carried, requests) = now.carry(&asks, options.depth)?;
        let mut row = Row {
            apart,
            operation,
            kind,
            count: carried.requests,
            requests,
            proven: false,
        };
        row.proven = row.count == count && row.shows_its_path();
        rows.push(row);
        step();
    }
    stop(served)?;
    Ok(rows)
}

fn stop(served: Option<Served>) -> Result<()> {
    served.map_or(Ok(()), Served::stop)
}

/// The delta gets what it is to have, at every place.
fn prepare(disk: &Disk, apart: Apart, count: u64, options: &Options) -> Result<()> {
    let before = disk.allocated_bytes()?;
    let served = disk.serve()?;
    let asks = Operation::OverWrite.asks(apart, count, options.seed + 1);
    let done = served.carry(&asks, options.depth);
    served.stop()?;
    done?;
    match disk.allocated_bytes()? >= before + count * BLOCK_BYTES {
        true => Ok(()),
        false => Err(Error::failed(
            "bench cow f3: the delta does not have what was written to it",
        )),
    }
}

fn replay(trace: &Trace, cache_bytes: u64, seed: u64, step: &mut dyn FnMut()) -> Result<Replayed> {
    let mut sides = Vec::new();
    for kind in TRACE_KINDS {
        let limit = cache_bytes / 4;
        let (measured, _) = serve(trace, kind, (cache_bytes, limit), false, seed)?;
        sides.push((kind, measured));
        step();
    }
    Ok(Replayed {
        trace: trace.description.clone(),
        cache_bytes,
        sides,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_one_kind_have_tables_or_clusters_of_their_own_and_miss_those_of_another() {
        for (apart, unit) in [(Apart::Far, FAR_BYTES), (Apart::Near, SPOT_BYTES)] {
            let byte = |ask: &Ask| match ask {
                Ask::Read { sector, .. } | Ask::Write { sector, .. } => sector * SECTOR_BYTES,
                Ask::Flush | Ask::Discard { .. } => panic!("{ask:?}"),
            };
            let units = |operation: Operation| -> Vec<u64> {
                let asks = operation.asks(apart, 50, 1);
                let mut units: Vec<u64> = asks.iter().map(|ask| byte(ask) / unit).collect();
                units.sort_unstable();
                units.dedup();
                units
            };
            for operation in Operation::ALL {
                assert_eq!(units(operation).len(), 50, "{operation:?}");
            }
            let clusters = |operation: Operation| -> Vec<u64> {
                let asks = operation.asks(apart, 50, 2);
                asks.iter().map(|ask| byte(ask) / SPOT_BYTES).collect()
            };
            let new = clusters(Operation::NewWrite);
            for other in [
                Operation::FirstWrite,
                Operation::OverWrite,
                Operation::ReadBase,
            ] {
                assert!(clusters(other).iter().all(|it| !new.contains(it)));
            }
        }
    }
}
