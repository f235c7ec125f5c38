//! What a small write into a new clone costs at the origin, its destage included.
//!
//! Always true: each clone is new, and its blocks are written once, scattered, before the destage
//! that is ordered; all that is asked of image, journal and ledger from the first write on counts,
//! by the counters of the daemon; beside it stands what the kernel says that the process had
//! written during the destage, which includes the cache. A round counts only if no data went to an
//! origin before the destage, and none is dirty behind it.

use super::host::{Host, Origin, RAW};
use super::options::Options;
use crate::bench::own_process::number;
use crate::bench::rounds::{self, Compared, Spread};
use crate::bench::work::{BLOCK_BYTES, Verb, Work};
use host::error::Result;
use serde_json::{Value, json};
use std::fs;

const DEPTH: usize = 32;

/// One destage.
pub struct Cost {
    writes: u64,
    origin: Origin,
    /// Of the process: read and written.
    kernel: Option<(u64, u64)>,
    /// Written to the origin before the destage was ordered.
    early_bytes: u64,
    /// Bytes written over before that.
    elided: u64,
    /// Left behind it.
    dirty_bytes: u64,
}

impl Cost {
    fn is_proven(&self) -> bool {
        self.early_bytes + self.elided + self.dirty_bytes == 0
    }

    fn each(&self, of: u64) -> f64 {
        of as f64 / self.writes as f64
    }

    /// Bytes written to image and journal for one write.
    fn bytes(&self) -> Option<f64> {
        Some(self.each(self.origin.bytes()))
    }

    fn requests(&self) -> Option<f64> {
        Some(self.each(self.origin.requests()))
    }

    fn read_bytes(&self) -> Option<f64> {
        Some(self.each(self.origin.read_bytes))
    }

    fn syncs(&self) -> Option<f64> {
        Some(self.origin.syncs as f64)
    }

    fn kernel_bytes(&self) -> Option<f64> {
        self.kernel.map(|(_, written)| self.each(written))
    }

    fn document(&self) -> Value {
        let origin = &self.origin;
        json!({
            "guest_writes": self.writes,
            "reads": origin.reads,
            "read_bytes": origin.read_bytes,
            "writes": origin.writes,
            "write_bytes": origin.write_bytes,
            "journal_bytes": origin.journal_bytes,
            "journal_requests": origin.journal_requests,
            "syncs": origin.syncs,
            "kernel_read_bytes": self.kernel.map(|it| it.0),
            "kernel_write_bytes": self.kernel.map(|it| it.1),
            "early_bytes": self.early_bytes,
            "elided_bytes": self.elided,
            "dirty_bytes": self.dirty_bytes,
        })
    }
}

/// A part of a destage: its name in a document and in a table, digits, and what is wanted of it.
pub type Figure = (
    &'static str,
    &'static str,
    usize,
    Option<f64>,
    fn(&Cost) -> Option<f64>,
);

pub const BYTES_WANTED: f64 = 5.0 * 1024.0;
pub const REQUESTS_WANTED: f64 = 1.2;

pub const FIGURES: [Figure; 5] = [
    (
        "origin_bytes_per_write",
        "bytes written to image and journal",
        0,
        Some(BYTES_WANTED),
        Cost::bytes,
    ),
    (
        "origin_requests_per_write",
        "requests to image, journal, ledger",
        3,
        Some(REQUESTS_WANTED),
        Cost::requests,
    ),
    (
        "origin_read_bytes_per_write",
        "bytes read of image and base",
        0,
        None,
        Cost::read_bytes,
    ),
    (
        "kernel_write_bytes_per_write",
        "bytes written, by the kernel, cache too",
        0,
        None,
        Cost::kernel_bytes,
    ),
    ("syncs", "syncs of one destage", 0, None, Cost::syncs),
];

pub struct Destages(Vec<[Cost; 3]>);

impl Destages {
    fn is_proven(round: &[Cost; 3]) -> bool {
        round.iter().all(Cost::is_proven)
    }

    pub fn proven(&self) -> impl Iterator<Item = &[Cost; 3]> + Clone {
        self.0.iter().filter(|round| Destages::is_proven(round))
    }

    pub fn median(&self, at: usize, figure: Figure) -> Option<Spread> {
        rounds::median(self.proven(), at, figure.4)
    }

    pub fn compared(&self, figure: Figure) -> Compared {
        rounds::compared(self.proven(), figure.4)
    }

    pub fn document(&self) -> Value {
        let told = |round: &[Cost; 3]| {
            let [raw, clone, again] = round.each_ref().map(Cost::document);
            let proven = Destages::is_proven(round);
            json!({ "proven": proven, "raw": raw, "clone": clone, "raw_again": again })
        };
        let mut document = json!({
            "rounds_proven": self.proven().count(),
            "rounds": self.0.iter().map(told).collect::<Vec<Value>>(),
        });
        for figure in FIGURES {
            let compared = self.compared(figure);
            let spread = |it: Option<Spread>| it.map(|it| it.document());
            document[figure.0] = json!({
                "raw": spread(self.median(0, figure)),
                "clone": spread(self.median(1, figure)),
                "ratio": spread(compared.ratio),
                "a_a_ratio": spread(compared.same),
                "wanted": figure.3,
            });
        }
        document
    }
}

/// `done` is told of each round.
pub fn run(host: &Host, options: &Options, mut done: impl FnMut()) -> Result<Destages> {
    let blocks = 0..options.data_bytes / BLOCK_BYTES;
    let mut of_raw = Work::only(Verb::Write, blocks.clone(), DEPTH);
    let mut rounds = Vec::new();
    for round in 0..options.destages {
        let mut costs = [None, None, None];
        for at in rounds::order(round) {
            costs[at] = Some(match at {
                1 => of_new_clone(host, options, round)?,
                _ => cost(host, RAW, &mut of_raw, options)?,
            });
        }
        rounds.push(costs.map(|cost| cost.expect("each has its turn")));
        done();
    }
    Ok(Destages(rounds))
}

fn of_new_clone(host: &Host, options: &Options, round: u32) -> Result<Cost> {
    let name = format!("new-{round}");
    host.add_clone(&name, &[])?;
    let blocks = 0..options.data_bytes / BLOCK_BYTES;
    let mut work = Work::only(Verb::Write, blocks, DEPTH);
    let cost = cost(host, &name, &mut work, options)?;
    host.remove(&name)?;
    fs::remove_file(host.image(&name)).map_err(super::host::failed)?;
    Ok(cost)
}

fn cost(host: &Host, name: &str, work: &mut Work, options: &Options) -> Result<Cost> {
    let begin = host.volume(name)?;
    work.left = Some(options.writes);
    host.finish(name, work)?;
    host.client(name)?.flush().map_err(super::host::failed)?;
    let (before, moved) = (host.volume(name)?, host.device_bytes());
    host.destage(name)?;
    let (after, moved_then) = (host.volume(name)?, host.device_bytes());
    let kernel = moved.zip(moved_then);
    let elided = |it: &Value| number(&it["writes"]["elided_bytes"]);
    Ok(Cost {
        writes: options.writes,
        origin: Origin::of(&after)?.since(Origin::of(&begin)?),
        kernel: kernel.map(|(old, new)| (new.0 - old.0, new.1.saturating_sub(old.1))),
        early_bytes: Origin::of(&before)?.since(Origin::of(&begin)?).bytes(),
        elided: elided(&after)? - elided(&begin)?,
        dirty_bytes: number(&after["dirty_bytes"])?,
    })
}
