//! One row: its rounds, and whether its counters show what it claims.

use super::peer::{Peer, Program, device_bytes};
use super::serve::{Counters, Ours, direct, make_file};
use super::transport::Transport;
use super::{Against, Line, Options, Outcome};
use crate::bench::rounds::{Spread, compare, ratios};
use crate::bench::work::{BLOCK_BYTES, Carrier, Tally, Verb, Work};
use crate::place::Place;
use host::error::{Error, Kind, Result};
use host::sys;
use std::ops::Range;
use std::time::Duration;

/// 64 MiB: fit the RAM tier, and are dirty at most once.
pub const HOT_BLOCKS: u64 = 16_384;
/// Of so many reads from the SSD one may come from RAM.
const RAM_HITS_PART: u64 = 1000;
/// Ours, the peer, the peer again, the ceiling.
const SLOTS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    RamRead,
    StagedWrite,
    SsdRead,
    WriteFlush,
}

impl Row {
    pub const ALL: [Row; 4] = [
        Row::RamRead,
        Row::StagedWrite,
        Row::SsdRead,
        Row::WriteFlush,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Row::RamRead => "ram-read",
            Row::StagedWrite => "staged-write",
            Row::SsdRead => "ssd-read",
            Row::WriteFlush => "write-flush",
        }
    }

    /// Whom it is wanted against.
    pub const fn peer(self, transport: Transport, depth: usize) -> Against {
        match (self, transport) {
            (Row::RamRead, Transport::VhostUser { .. }) if depth > 1 => {
                Against::Server(Program::Qsd)
            }
            (_, Transport::VhostUser { .. }) | (Row::WriteFlush, _) => Against::Raw,
            (Row::RamRead | Row::StagedWrite, _) => Against::Server(Program::Nbdkit),
            (Row::SsdRead, _) => Against::Server(Program::QemuNbd),
        }
    }

    /// Whether it is answered from memory, by us and by others.
    pub const fn is_of_memory(self) -> bool {
        matches!(self, Row::RamRead | Row::StagedWrite)
    }

    const fn verb(self) -> Verb {
        match self {
            Row::RamRead | Row::SsdRead => Verb::Read,
            Row::StagedWrite => Verb::Write,
            Row::WriteFlush => Verb::Sealed,
        }
    }

    /// Blocks that are read or written, a power of two of them. Those before them are there to
    /// drive them out of RAM.
    pub fn range(self, options: &Options) -> Range<u64> {
        let blocks = 1 << (options.size_bytes / BLOCK_BYTES).ilog2();
        match self {
            Row::SsdRead => blocks..2 * blocks,
            _ => 0..HOT_BLOCKS,
        }
    }

    /// Why the counters do not show what was claimed, if they do not.
    fn unproven(self, it: &Counters) -> Option<String> {
        let wrong = match self {
            Row::RamRead => it.ram_hits < it.reads || it.origin_reads + it.ssd_hits > 0,
            // A handful of blocks that are asked for twice at once come from RAM.
            Row::SsdRead => {
                let few = it.reads / RAM_HITS_PART;
                let missed = it.read_bytes.saturating_sub(few * BLOCK_BYTES);
                it.ram_hits > few || it.device_read_bytes < missed
            }
            Row::StagedWrite => it.held_writes > 0 || it.writes == 0,
            Row::WriteFlush => it.flushes < it.writes || it.log_writes == 0,
        };
        wrong.then(|| format!("the counters do not show this path: {it:?}"))
    }
}

/// A row whose counters do not show its path in shorter slots is measured again with these.
const LONG_SLOT_SECONDS: f64 = 3.0;

/// Whom we are compared with, running.
struct Other {
    carrier: Box<dyn Carrier>,
    /// Ends when this is dropped.
    peer: Option<Peer>,
}

fn io_failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench micro: {error}"))
}

/// Measures a row at each of these depths, with one start of everybody.
pub fn measure(
    place: &Place,
    options: &Options,
    row: Row,
    against: Against,
    depths: &[usize],
) -> Result<Vec<Line>> {
    let line = |depth, outcome| Line {
        row,
        depth,
        against,
        outcome,
    };
    let mut other = match start_other(place, options, row, against) {
        Ok(other) => other,
        // One that is not installed costs its row, not the others.
        Err(error) if error.kind == Kind::NotFound => {
            let again = |_| Err(Error::new(error.kind, error.message.clone()));
            return Ok(depths
                .iter()
                .map(|&depth| line(depth, again(depth)))
                .collect());
        }
        Err(error) => return Err(error),
    };
    let mut ours = Ours::start(place, options, row)?;
    let mut ceiling = options.transport.null(options).map_err(io_failed)?;
    // Of ours, of the peer, of the ceiling; a lap goes on from depth to depth, so that nothing is
    // read again that was read a moment ago.
    let mut works = [(); 3].map(|()| Work::only(row.verb(), row.range(options), 1));
    let mut lines = Vec::new();
    for &depth in depths {
        works.iter_mut().for_each(|work| work.depth = depth);
        let all = (&mut ours, &mut other, &mut ceiling);
        let mut outcome = rounds(options, row, &mut works, all)?;
        // Short slots of a busy machine show little of anything.
        if outcome.unproven.is_some() && options.seconds < LONG_SLOT_SECONDS {
            let mut longer = options.clone();
            longer.seconds = LONG_SLOT_SECONDS;
            let all = (&mut ours, &mut other, &mut ceiling);
            outcome = rounds(&longer, row, &mut works, all)?;
        }
        lines.push(line(depth, Ok(outcome)));
    }
    ours.stop()?;
    Ok(lines)
}

fn start_other(place: &Place, options: &Options, row: Row, against: Against) -> Result<Other> {
    let path = place.path("peer.img");
    let range = row.range(options);
    make_file(&path, range.end)?;
    let program = match against {
        Against::Server(program) => program,
        Against::Raw | Against::Auto => {
            return Ok(Other {
                carrier: Box::new(direct(&path)?),
                peer: None,
            });
        }
    };
    let (directory, memory) = (place.path(""), row.is_of_memory());
    let mut peer = Peer::start(program, &path, &directory, options.transport, memory)?;
    let mut carrier = peer.connect(options)?;
    if row == Row::RamRead {
        let depth = options.deepest().min(32);
        let mut warm = Work::only(Verb::Read, range.clone(), depth);
        warm.left = Some(range.end - range.start);
        let carried = carrier.carry(&mut warm, Duration::from_secs(3600));
        carried.map_err(io_failed)?;
    }
    Ok(Other {
        carrier,
        peer: Some(peer),
    })
}

/// What is remembered of each round.
#[derive(Default)]
struct Columns {
    figures: [Vec<Option<f64>>; SLOTS],
    p99_us: Vec<f64>,
    null_us: Vec<Option<f64>>,
    /// Of us, and of the peer.
    cpu_us: [Vec<f64>; 2],
}

/// Time on processors: of all our threads but this one, and of another process.
#[derive(Clone, Copy)]
struct Cpu {
    ours: Option<Duration>,
    other: Option<Duration>,
}

impl Cpu {
    fn now(other: Option<u32>) -> Cpu {
        let all = sys::process_cpu(None).ok();
        Cpu {
            ours: all.zip(sys::thread_cpu().ok()).map(|(all, own)| all - own),
            other: other.and_then(|pid| sys::process_cpu(Some(pid)).ok()),
        }
    }

    /// Microseconds of each request since then: ours, and the other's.
    fn since(self, before: Cpu, requests: usize) -> [Option<f64>; 2] {
        let each = |after: Option<Duration>, before: Option<Duration>| {
            let spent = after?.saturating_sub(before?);
            (requests > 0).then(|| spent.as_secs_f64() * 1e6 / requests as f64)
        };
        [each(self.ours, before.ours), each(self.other, before.other)]
    }
}

fn rounds(
    options: &Options,
    row: Row,
    [mine, theirs, top]: &mut [Work; 3],
    (ours, other, ceiling): (&mut Ours, &mut Other, &mut Box<dyn Carrier>),
) -> Result<Outcome> {
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut null = Work::only(Verb::Flush, 0..1, 1);
    let mut columns = Columns::default();
    let mut counters = Counters::default();
    let pid = other.peer.as_ref().map(Peer::pid);
    let mut device = (0, 0);
    let depth = mine.depth;
    let figure = |tally: &Tally| match depth {
        1 => tally.quantile_us(50),
        _ => Some(tally.per_second()),
    };
    for round in 0..options.rounds as usize {
        for step in 0..SLOTS {
            let at = (round + step) % SLOTS;
            let before = (ours.counters()?, device_bytes(pid), Cpu::now(pid));
            let tally = match at {
                0 => ours.pipe.carry(mine, lasts),
                1 | 2 => other.carrier.carry(theirs, lasts),
                _ => ceiling.carry(top, lasts),
            };
            let tally = tally.map_err(io_failed)?;
            let cpu_us = Cpu::now(pid).since(before.2, tally.samples().len());
            columns.figures[at].push(figure(&tally));
            match at {
                0 => {
                    columns.cpu_us[0].extend(cpu_us[0]);
                    counters = counters.plus(ours.counters()?.since(before.0));
                    columns.p99_us.extend(tally.quantile_us(99));
                }
                1 | 2 => {
                    columns.cpu_us[1].extend(cpu_us[1]);
                    let moved = before.1.zip(device_bytes(pid));
                    let (read, written) = moved.map_or((0, 0), |(old, new)| {
                        (new.0 - old.0, new.1.saturating_sub(old.1))
                    });
                    device = (device.0 + read, device.1 + written);
                }
                _ => {}
            }
        }
        if row == Row::WriteFlush && depth == 1 {
            let tally = ours.clean.carry(&mut null, lasts / 2).map_err(io_failed)?;
            columns.null_us.push(tally.quantile_us(50));
        }
    }
    Ok(outcome(row, options.seconds, columns, counters, device))
}

fn outcome(
    row: Row,
    seconds: f64,
    columns: Columns,
    counters: Counters,
    device: (u64, u64),
) -> Outcome {
    let [ours, peer, again, ceiling] = &columns.figures;
    let all = |column: &[Option<f64>]| Spread::of(column.iter().copied().flatten());
    let table: Vec<[Option<f64>; 3]> = (0..ours.len())
        .map(|round| [peer[round], ours[round], again[round]])
        .collect();
    // A write and the flush behind it are two round trips.
    let bare: Vec<Option<f64>> = ours
        .iter()
        .zip(&columns.null_us)
        .map(|(ours, null)| Some((*ours)? - 2.0 * (*null)?))
        .collect();
    Outcome {
        seconds,
        ours: all(ours),
        peer: all(peer),
        compared: compare(&table),
        ceiling: all(ceiling),
        p99_us: Spread::of(columns.p99_us),
        cpu_us: columns.cpu_us.map(Spread::of),
        null_us: all(&columns.null_us),
        without_protocol: ratios(&bare, peer),
        counters,
        peer_device: Some(device),
        unproven: row.unproven(&counters),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails when: blocks from RAM have no limit or are not allowed at all, or it is not looked at
    /// what the device has read.
    #[test]
    fn a_handful_of_blocks_from_ram_leaves_a_row_of_the_ssd_proven_and_more_does_not() {
        let reads = 10_000;
        let counted = |ram_hits: u64| Counters {
            reads,
            read_bytes: reads * BLOCK_BYTES,
            ram_hits,
            device_read_bytes: (reads - ram_hits) * BLOCK_BYTES,
            ..Counters::default()
        };
        for ram_hits in [0, 7, 10] {
            assert_eq!(Row::SsdRead.unproven(&counted(ram_hits)), None);
        }
        assert!(Row::SsdRead.unproven(&counted(11)).is_some());
        // Read from somewhere else.
        let elsewhere = Counters {
            device_read_bytes: 0,
            ..counted(0)
        };
        assert!(Row::SsdRead.unproven(&elsewhere).is_some());
    }
}
