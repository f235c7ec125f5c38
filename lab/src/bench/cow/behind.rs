//! Why fewer reads are hits behind a snapshot.
//!
//! Owns the division of reads into those of blocks that were dirty when a snapshot came, which are
//! destaged by it, and all others. Always true: the same reads are divided with snapshots and
//! without them; dirty are blocks that were written so lately that their age had not yet brought
//! them to the storage; a read that goes to the storage for any of its blocks is no hit.
//! Deliberately absent: a guest with several reads under way, whose answers could not be told from
//! each other.

use super::experiments::PLAIN;
use super::side::Side;
use super::trace::{Timed, Trace};
use super::weeks::{DESTAGE_AFTER_MS, part, play, setup};
use crate::replay::machine::Ask;
use host::error::Result;
use std::collections::HashMap;

const NS_PER_MS: u64 = 1_000_000;
const BLOCK_SECTORS: u64 = 8;

/// Reads of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    pub all: u64,
    pub hits: u64,
}

impl Reads {
    fn text(self) -> String {
        match self.all {
            0 => "-".into(),
            all => format!("{:.3}", self.hits as f64 / all as f64),
        }
    }
}

/// Reads of a part of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// Of blocks that were dirty at its begin.
    pub dirty: Reads,
    pub others: Reads,
}

/// When blocks were written.
struct Writes {
    written_ns: HashMap<u64, u64>,
    part_ns: u64,
}

impl Writes {
    fn blocks(sector: u64, sectors: u64) -> impl Iterator<Item = u64> {
        sector / BLOCK_SECTORS..(sector + sectors).div_ceil(BLOCK_SECTORS)
    }

    fn add(&mut self, at_ns: u64, ask: Ask) {
        if let Ask::Write { sector, sectors } = ask {
            let blocks = Writes::blocks(sector, sectors);
            self.written_ns.extend(blocks.map(|block| (block, at_ns)));
        }
    }

    /// Whether a block was written shortly before this part began, and not since.
    fn was_dirty(&self, at_ns: u64, (sector, sectors): (u64, u64)) -> bool {
        let begun = at_ns / self.part_ns * self.part_ns;
        let since = begun.saturating_sub(DESTAGE_AFTER_MS * NS_PER_MS);
        let dirty = since..begun;
        Writes::blocks(sector, sectors)
            .filter_map(|block| self.written_ns.get(&block))
            .any(|at| dirty.contains(at))
    }
}

/// The reads of each part, with a snapshot between them or without.
pub fn divided(trace: &Trace, sizes: (u64, u64), frozen: bool, seed: u64) -> Result<Vec<Divided>> {
    let mut side = Side::new(&setup(trace, PLAIN, sizes, seed))?;
    let part_ns = part(trace).0;
    let mut parts: Vec<Divided> = Vec::new();
    let mut writes = Writes {
        written_ns: HashMap::new(),
        part_ns,
    };
    play(&mut side, trace, frozen, &mut |side, timed: &Timed| {
        let at = (timed.at_ns / part_ns) as usize;
        parts.resize(parts.len().max(at + 1), Divided::default());
        writes.add(timed.at_ns, timed.ask);
        let Ask::Read { sector, sectors } = timed.ask else {
            return side.ask_timed(timed);
        };
        let before = side.reads().1;
        side.ask_timed(timed)?;
        side.wait_idle()?;
        let hit = side.reads().1 == before;
        let reads = match writes.was_dirty(timed.at_ns, (sector, sectors)) {
            true => &mut parts[at].dirty,
            false => &mut parts[at].others,
        };
        reads.all += 1;
        reads.hits += u64::from(hit);
        Ok(())
    })?;
    side.finish()?;
    Ok(parts)
}

/// Both runs in a sentence; the first part has no snapshot before it.
pub fn note(name: &str, without: &[Divided], with: &[Divided]) -> String {
    let parts = without.iter().zip(with).enumerate().skip(1);
    let parts = parts.map(|(at, (without, with))| {
        let of = |kind: fn(&Divided) -> Reads| {
            let (without, with) = (kind(without), kind(with));
            format!("{}: {} and {}", with.all, without.text(), with.text())
        };
        let [dirty, others] = [of(|it| it.dirty), of(|it| it.others)];
        format!("{name} {} ({dirty}; {others})", at + 1)
    });
    let parts: Vec<String> = parts.collect();
    format!(
        "Reads of blocks that were dirty when the {name} began, and other reads, one at a time, \
         with their hit ratios without and with a snapshot each: {}.",
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::trace::{NameId, Op, Record};

    const MINUTE_NS: u64 = 60_000_000_000;

    /// Fails when: a read of what a snapshot has destaged is not told from others, or what was
    /// written long before it, or after it, counts as dirty.
    #[test]
    fn reads_of_what_was_dirty_at_a_snapshot_are_told_from_others() {
        let record = |minute: u64, op: Op, place: u64| Record {
            time_ns: minute * MINUTE_NS,
            disk: NameId(0),
            op,
            sector: place * 1024,
            sectors: 8,
            path: None,
        };
        // Parts are a little longer than an hour, so that the last request is in the seventh.
        let records = [
            record(1, Op::Write, 1),
            record(40, Op::Write, 2),
            record(59, Op::Write, 3),
            record(60, Op::Write, 4),
            record(62, Op::Read, 1),
            record(63, Op::Read, 3),
            record(64, Op::Write, 3),
            record(65, Op::Read, 3),
            record(66, Op::Read, 4),
            record(420, Op::Read, 4),
        ];
        let trace = Trace::of("ten requests", records).expect("one disk");
        let sizes = (256 << 20, 256 << 20);
        let without = divided(&trace, sizes, false, 1).expect("it runs");
        let with = divided(&trace, sizes, true, 1).expect("it runs");
        assert_eq!(without[1].dirty, Reads { all: 2, hits: 2 });
        assert_eq!((with[1].dirty.all, with[1].others.all), (2, 2));
        assert_eq!(with[1].others, without[1].others, "nothing else changes");
    }
}
