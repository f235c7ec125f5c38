//! Why fewer reads are hits behind a snapshot.
//!
//! Owns the division of reads into those of blocks that were dirty when a snapshot came, which are
//! destaged by it, and all others. Always true: the same reads are divided with snapshots and
//! without them; dirty are blocks that were written so lately that their age had not yet brought
//! them to the storage; a read that goes to the storage for any of its blocks is no hit.
//! Deliberately absent: a guest with several reads under way, whose answers could not be told from
//! each other.

use super::side::Side;
use super::trace::Timed;
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
    /// So long what was written stays dirty.
    dirty_ns: u64,
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
        let since = begun.saturating_sub(self.dirty_ns);
        let dirty = since..begun;
        Writes::blocks(sector, sectors)
            .filter_map(|block| self.written_ns.get(&block))
            .any(|at| dirty.contains(at))
    }
}

/// The reads of each part so far.
pub struct Division {
    writes: Writes,
    pub parts: Vec<Divided>,
}

impl Division {
    pub fn new(part_ns: u64, destage_after_ms: u64) -> Division {
        let writes = Writes {
            written_ns: HashMap::new(),
            part_ns,
            dirty_ns: destage_after_ms * NS_PER_MS,
        };
        Division {
            writes,
            parts: Vec::new(),
        }
    }

    /// Asks for it, and waits for the answer of a read.
    pub fn ask(&mut self, side: &mut Side, timed: &Timed) -> Result<()> {
        let at = (timed.at_ns / self.writes.part_ns) as usize;
        let parts = self.parts.len().max(at + 1);
        self.parts.resize(parts, Divided::default());
        self.writes.add(timed.at_ns, timed.ask);
        let Ask::Read { sector, sectors } = timed.ask else {
            return side.ask_timed(timed);
        };
        let before = side.reads().1;
        side.ask_timed(timed)?;
        side.wait_idle()?;
        let hit = side.reads().1 == before;
        let part = &mut self.parts[at];
        let reads = match self.writes.was_dirty(timed.at_ns, (sector, sectors)) {
            true => &mut part.dirty,
            false => &mut part.others,
        };
        reads.all += 1;
        reads.hits += u64::from(hit);
        Ok(())
    }
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
