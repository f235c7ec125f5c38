//! The requests of one disk with their times: a desktop's week, or a trace of a file.
//!
//! Always true: a trace has one disk, which ends behind its last request; times begin at zero and
//! do not go back. Deliberately absent: files and formats; the caller brings the records.

use crate::replay::machine::Ask;
use crate::replay::offline::asks;
use host::config::units::human_bytes;
use host::error::{Error, Result};
use std::collections::HashSet;
use workload::stacked::TABLE_SPAN;
use workload::synth::{Parameters, Pattern, Synth, SynthError};
use workload::trace::Record;

const SECTOR_BYTES: u64 = 512;
/// Of a block of the cache.
const BLOCK_SECTORS: u64 = 8;
/// Up to this scale a week has all of its requests.
const WEEK_SCALE: f64 = 10.0;

/// A request with its time.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub at_ns: u64,
    pub ask: Ask,
}

#[derive(Debug)]
pub struct Trace {
    pub description: String,
    pub disk_bytes: u64,
    pub requests: Vec<Timed>,
    /// Of blocks of 4 KiB, read or written.
    pub working_set_bytes: u64,
}

impl Trace {
    /// A week of a desktop in daily use; of a scale above 10 it has fewer requests.
    pub fn desktop(seed: u64, scale: f64) -> Result<Trace> {
        let parameters = Parameters {
            desktops: 1,
            active: 1.0,
            seed,
            intensity: (WEEK_SCALE / scale).min(1.0),
            ..Parameters::new(Pattern::Desktops)
        };
        let failed = |error: SynthError| Error::usage(format!("bench cow: {error}"));
        let synth = Synth::new(&parameters).map_err(failed)?;
        Trace::of("the synthetic week of one desktop", synth)
    }

    /// All requests of a trace of one disk.
    pub fn of(name: &str, records: impl IntoIterator<Item = Record>) -> Result<Trace> {
        let (mut requests, mut blocks) = (Vec::new(), HashSet::new());
        let (mut disk, mut end, mut at_ns) = (None, 0, 0);
        for record in records {
            if *disk.get_or_insert(record.disk) != record.disk {
                return Err(Error::usage(format!(
                    "{name}: has several disks; give a trace of one"
                )));
            }
            at_ns = record.time_ns.max(at_ns);
            for ask in asks(record.op, record.sector, record.sectors.into()) {
                requests.push(Timed { at_ns, ask });
            }
            let sectors_end = record.sector + u64::from(record.sectors);
            end = sectors_end.max(end);
            blocks.extend(record.sector / BLOCK_SECTORS..sectors_end.div_ceil(BLOCK_SECTORS));
        }
        if end == 0 {
            return Err(Error::usage(format!("{name}: has no requests")));
        }
        let working_set_bytes = blocks.len() as u64 * BLOCK_SECTORS * SECTOR_BYTES;
        let description = format!(
            "{name}, {} requests, a working set of {}",
            requests.len(),
            human_bytes(working_set_bytes)
        );
        Ok(Trace {
            description,
            disk_bytes: (end * SECTOR_BYTES).next_multiple_of(TABLE_SPAN),
            requests,
            working_set_bytes,
        })
    }

    pub fn duration_ns(&self) -> u64 {
        self.requests.last().map_or(0, |it| it.at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::trace::{NameId, Op};

    #[test]
    fn a_trace_of_two_disks_or_of_nothing_is_refused_by_its_name() {
        let record = |disk| Record {
            time_ns: 0,
            disk: NameId(disk),
            op: Op::Write,
            sector: 9,
            sectors: 8,
            path: None,
        };
        let two = Trace::of("two.csv", [record(0), record(1)]).expect_err("two disks");
        assert!(two.to_string().contains("two.csv: has several disks"));
        let none = Trace::of("none.csv", []).expect_err("nothing");
        assert!(none.to_string().contains("none.csv: has no requests"));
        let one = Trace::of("one.csv", [record(0), record(0)]).expect("one disk");
        // Two blocks, and a disk as long as one table maps.
        assert_eq!(one.working_set_bytes, 8192);
        assert_eq!(one.disk_bytes, TABLE_SPAN);
    }
}
