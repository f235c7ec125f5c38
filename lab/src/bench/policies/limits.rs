//! What the requests of a peak at shared storage are, and where reads of desktops were found.
//!
//! Always true: all is counted, by what was sent and by the engine's own counters of its volumes.

use super::{Cell, Column, NS_PER_SECOND};
use crate::replay::machine::Machine;
use crate::replay::tally::Kinds;
use serde_json::{Map, Value, json};
use workload::synth::peaks;

/// Reads of desktops, and those of them that went to shared storage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub requests: u64,
    pub origin: u64,
}

impl Reads {
    fn now(machine: &Machine) -> Reads {
        let mut sum = Reads::default();
        for volume in &machine.snapshot().volumes {
            let reads = &volume.counters.reads;
            sum.requests += reads.requests;
            sum.origin += reads.origin;
        }
        sum
    }

    fn since(self, before: Reads) -> Reads {
        Reads {
            requests: self.requests - before.requests,
            origin: self.origin - before.origin,
        }
    }

    /// Of all reads, those that were found.
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.origin as f64 / self.requests.max(1) as f64
    }
}

/// Counters at the edges of the peaks.
#[derive(Default)]
pub struct Looks {
    pub of_peaks: [Reads; 6],
    begun: [Option<Reads>; 6],
    ended: [bool; 6],
}

impl Looks {
    /// Before what happens at this time.
    pub fn look(&mut self, machine: &Machine, time_ns: u64) {
        for (peak, period) in peaks().iter().enumerate() {
            if time_ns >= period.from_ns && self.begun[peak].is_none() {
                self.begun[peak] = Some(Reads::now(machine));
            }
            if time_ns >= period.from_ns + period.duration_ns && !self.ended[peak] {
                self.ended[peak] = true;
                let before = self.begun[peak].expect("it began before");
                self.of_peaks[peak] = Reads::now(machine).since(before);
            }
        }
    }
}

fn by_kind<T: Into<Value>>(counts: [T; 4]) -> Value {
    let names = Kinds::NAMES.iter().map(|name| (*name).to_owned());
    let values = counts.into_iter().map(Into::into);
    Value::Object(names.zip(values).collect::<Map<_, _>>())
}

pub fn document(cell: &Cell, peak: usize) -> Value {
    let from = peaks()[peak].from_ns / NS_PER_SECOND;
    json!({
        "requests": by_kind(cell.tallied.requests),
        "busiest_second": by_kind(cell.tallied.busiest.0),
        "busiest_second_of_peak": cell.tallied.busiest_at as u64 - from,
        "asked_in_busiest_second": { "reads": cell.asked[0], "writes": cell.asked[1] },
        "reads_of_desktops": cell.reads.requests,
        "reads_to_origin": cell.reads.origin,
        "hit_ratio": cell.reads.hit_ratio(),
    })
}

/// One line of text: the kinds in all and in the busiest second, and hits.
pub fn line(column: Column, peak: usize, cell: &Cell) -> String {
    let [reads, writes, journal, ledger] = cell.tallied.requests;
    let [reads_then, writes_then, journal_then, ledger_then] = cell.tallied.busiest.0;
    let from = peaks()[peak].from_ns / NS_PER_SECOND;
    format!(
        "{:10} {:13} all: {reads} reads, {writes} writes, {journal} journal, {ledger} ledger; \
         busiest second ({} s in): {reads_then}, {writes_then}, {journal_then}, {ledger_then}, \
         of desktops {} reads, {} writes then; {:.1} % of their reads found\n",
        peaks()[peak].name,
        column.name(),
        (cell.tallied.busiest_at as u64).saturating_sub(from),
        cell.asked[0],
        cell.asked[1],
        cell.reads.hit_ratio() * 100.0,
    )
}
