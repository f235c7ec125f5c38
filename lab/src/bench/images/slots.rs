//! Requests that the image is not asked for: the raw volume and the clone in turn.
//!
//! Owns the slots: raw, clone, raw again, and the same backwards. Always true: a slot counts only
//! if nothing went to an origin, no write was held back, and each read was found in RAM. Beside the
//! speed stands the processor time of the shard, which others who use the machine hardly change.

use super::host::{CLONE, Host, Origin, RAW, failed};
use super::options::Options;
use crate::bench::own_process::number;
use crate::bench::pipe::Pipe;
use crate::bench::rounds::{self, Compared, Spread};
use crate::bench::work::{BLOCK_BYTES, Carrier, Tally, Verb, Work};
use host::error::Result;
use host::sys;
use serde_json::{Value, json};
use std::ops::Range;
use std::time::Duration;

/// What the thread is called that answers guests.
const SHARD: &str = "tenuto-shard";
/// 32 MiB: what all rows read fits the RAM tier several times.
const HOT_BLOCKS_MAX: u64 = 8_192;
const WARM_DEPTH: usize = 32;
/// Both, and what is added for each of them.
const VOLUMES: [&str; 2] = [RAW, CLONE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    Write,
    ReadOwn,
    ReadBase,
}

impl Row {
    pub const ALL: [Row; 3] = [Row::Write, Row::ReadOwn, Row::ReadBase];

    pub fn name(self) -> &'static str {
        match self {
            Row::Write => "write",
            Row::ReadOwn => "read in RAM, of its own",
            Row::ReadBase => "read in RAM, of the base",
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Row::Write => "write",
            Row::ReadOwn => "read_own",
            Row::ReadBase => "read_base",
        }
    }

    fn verb(self) -> Verb {
        match self {
            Row::Write => Verb::Write,
            Row::ReadOwn | Row::ReadBase => Verb::Read,
        }
    }

    fn blocks(self, options: &Options) -> Range<u64> {
        let hot = HOT_BLOCKS_MAX.min(options.data_bytes / BLOCK_BYTES / 4);
        let first = match self {
            Row::ReadBase => 0,
            Row::ReadOwn => hot,
            Row::Write => 2 * hot,
        };
        first..first + hot
    }
}

/// What the daemon counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: u64,
    writes: u64,
    ram_hits: u64,
    origin: u64,
    held: u64,
}

impl Counts {
    fn now(host: &Host, name: &str) -> Result<Counts> {
        let volume = host.volume(name)?;
        Ok(Counts {
            reads: number(&volume["reads"]["requests"])?,
            writes: number(&volume["writes"]["requests"])?,
            ram_hits: number(&volume["reads"]["ram_hits"])?,
            origin: Origin::of(&volume)?.requests(),
            held: number(&volume["flow_control"]["held_writes"])?,
        })
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            ram_hits: self.ram_hits - before.ram_hits,
            origin: self.origin - before.origin,
            held: self.held - before.held,
        }
    }

    fn plus(self, more: Counts) -> Counts {
        Counts {
            reads: self.reads + more.reads,
            writes: self.writes + more.writes,
            ram_hits: self.ram_hits + more.ram_hits,
            origin: self.origin + more.origin,
            held: self.held + more.held,
        }
    }

    fn is_proven(&self) -> bool {
        let some = self.reads + self.writes > 0;
        some && self.origin + self.held == 0 && self.ram_hits == self.reads
    }
}

struct Visit {
    tally: Tally,
    counts: Counts,
    shard: Duration,
}

/// What came of one of the three in a round.
pub struct Slot {
    per_second: f64,
    p50_us: Option<f64>,
    shard: Duration,
    counts: Counts,
}

impl Slot {
    fn shard_us(&self) -> Option<f64> {
        let requests = self.counts.reads + self.counts.writes;
        (requests > 0).then(|| self.shard.as_secs_f64() * 1e6 / requests as f64)
    }

    fn document(&self) -> Value {
        json!({
            "iops": self.per_second,
            "p50_us": self.p50_us,
            "shard_cpu_us": self.shard_us(),
            "reads": self.counts.reads,
            "writes": self.counts.writes,
            "ram_hits": self.counts.ram_hits,
            "origin_requests": self.counts.origin,
            "held_writes": self.counts.held,
        })
    }
}

pub struct Line {
    pub row: Row,
    pub depth: usize,
    rounds: Vec<[Slot; 3]>,
}

/// A part of a slot, with its name in a document and in a table, and whether more is better.
pub type Figure = (&'static str, &'static str, bool, fn(&Slot) -> Option<f64>);

impl Line {
    /// What a guest sees, and what it costs.
    pub fn figures(&self) -> [Figure; 2] {
        let seen: Figure = match self.depth {
            1 => ("p50_us", "p50, us", false, |slot| slot.p50_us),
            _ => ("iops", "requests/s", true, |slot| Some(slot.per_second)),
        };
        let cost: Figure = ("shard_cpu_us", "shard, us of CPU", false, Slot::shard_us);
        [seen, cost]
    }

    pub fn proven(&self) -> impl Iterator<Item = &[Slot; 3]> + Clone {
        let proven = |round: &&[Slot; 3]| round.iter().all(|slot| slot.counts.is_proven());
        self.rounds.iter().filter(proven)
    }

    pub fn median(&self, at: usize, figure: Figure) -> Option<Spread> {
        rounds::median(self.proven(), at, figure.3)
    }

    pub fn compared(&self, figure: Figure) -> Compared {
        rounds::compared(self.proven(), figure.3)
    }

    pub fn document(&self) -> Value {
        let told = |round: &[Slot; 3]| {
            let proven = round.iter().all(|slot| slot.counts.is_proven());
            let [raw, clone, again] = round.each_ref().map(Slot::document);
            json!({ "proven": proven, "raw": raw, "clone": clone, "raw_again": again })
        };
        let mut document = json!({
            "row": self.row.key(),
            "queue_depth": self.depth,
            "rounds_proven": self.proven().count(),
            "rounds": self.rounds.iter().map(told).collect::<Vec<Value>>(),
        });
        for figure in self.figures() {
            let compared = self.compared(figure);
            let spread = |it: Option<Spread>| it.map(|it| it.document());
            document[figure.0] = json!({
                "raw": spread(self.median(0, figure)),
                "clone": spread(self.median(1, figure)),
                "ratio": spread(compared.ratio),
                "a_a_ratio": spread(compared.same),
            });
        }
        document
    }
}

/// `done` is told of each round.
pub fn run(host: &Host, options: &Options, mut done: impl FnMut()) -> Result<Vec<Line>> {
    host.add_clone(CLONE, &[])?;
    prepare(host, options)?;
    let mut pipes = [host.pipe(RAW)?, host.pipe(CLONE)?];
    let mut lines = Vec::new();
    for row in Row::ALL {
        for &depth in &options.depths {
            if row != Row::Write {
                warm(host, row, options)?;
            }
            let mut rounds = Vec::new();
            for round in 0..options.rounds {
                rounds.push(measure(host, &mut pipes, (row, depth), options, round)?);
                done();
            }
            lines.push(Line { row, depth, rounds });
        }
    }
    drop(pipes);
    for name in VOLUMES {
        host.destage(name)?;
    }
    host.remove(CLONE)?;
    Ok(lines)
}

/// Brings the log once around, whose first lap writes zeroes ahead, and gives the clone, and the
/// raw image beside it, the blocks that are its own.
fn prepare(host: &Host, options: &Options) -> Result<()> {
    let mut lap = Work::only(Verb::Write, Row::Write.blocks(options), WARM_DEPTH);
    lap.left = Some(options.cache_bytes / BLOCK_BYTES);
    host.finish(RAW, &mut lap)?;
    for name in VOLUMES {
        let blocks = Row::ReadOwn.blocks(options);
        let mut own = Work::only(Verb::Write, blocks.clone(), WARM_DEPTH);
        own.left = Some(blocks.end - blocks.start);
        host.finish(name, &mut own)?;
        host.destage(name)?;
    }
    Ok(())
}

/// Nothing is dirty, because a read looks through that first, and one volume can have more of it.
/// Reads twice, because what was asked for once leaves RAM first.
fn warm(host: &Host, row: Row, options: &Options) -> Result<()> {
    for name in VOLUMES {
        host.destage(name)?;
        let blocks = row.blocks(options);
        let mut warm = Work::only(Verb::Read, blocks.clone(), WARM_DEPTH);
        warm.left = Some(2 * (blocks.end - blocks.start));
        host.finish(name, &mut warm)?;
    }
    Ok(())
}

fn measure(
    host: &Host,
    pipes: &mut [Pipe; 2],
    (row, depth): (Row, usize),
    options: &Options,
    round: u32,
) -> Result<[Slot; 3]> {
    let mut work = Work::only(row.verb(), row.blocks(options), depth);
    let lasts = Duration::from_secs_f64(options.seconds);
    let mut slots = [None, None, None];
    for at in rounds::mirrored(round) {
        // Raw, clone, raw again.
        let volume = at % 2;
        let name = VOLUMES[volume];
        let (before, cpu) = (Counts::now(host, name)?, shard_cpu(host)?);
        let tally = pipes[volume].carry(&mut work, lasts).map_err(failed)?;
        let visit = Visit {
            tally,
            shard: shard_cpu(host)?.saturating_sub(cpu),
            counts: Counts::now(host, name)?.since(before),
        };
        let old: Option<Visit> = slots[at].take();
        slots[at] = Some(match old {
            Some(old) => old.join(visit),
            None => visit,
        });
    }
    Ok(slots.map(|visit| visit.expect("each has its turn").slot()))
}

fn shard_cpu(host: &Host) -> Result<Duration> {
    sys::named_threads_cpu(host.served.pid(), SHARD).map_err(failed)
}

impl Visit {
    fn join(mut self, again: Visit) -> Visit {
        self.tally.join(again.tally);
        self.shard += again.shard;
        self.counts = self.counts.plus(again.counts);
        self
    }

    fn slot(self) -> Slot {
        Slot {
            per_second: self.tally.per_second(),
            p50_us: self.tally.quantile_us(50),
            shard: self.shard,
            counts: self.counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_in_which_an_origin_was_asked_or_a_read_missed_is_no_measurement() {
        let reads = Counts {
            reads: 10,
            ram_hits: 10,
            ..Counts::default()
        };
        assert!(reads.is_proven());
        assert!(
            !Counts {
                ram_hits: 9,
                ..reads
            }
            .is_proven()
        );
        assert!(!Counts { origin: 1, ..reads }.is_proven());
        assert!(!Counts { held: 1, ..reads }.is_proven());
        assert!(!Counts::default().is_proven(), "nothing was asked");
    }
}
