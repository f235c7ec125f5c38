//! Single requests against other servers and against the bare device.
//!
//! Owns the rows: what is asked, of whom, and what the product must show for it to count. Always
//! true: ours, the peer, the peer again and the ceiling of the client take turns in short slots;
//! a row says by counters of the product and of the kernel which path was measured, and a row
//! without its proof or without its peer has no ratio; a peer that can be asked the way ours is
//! asked is asked that way.

pub mod peer;
mod report;
mod row;
pub mod serve;
pub mod transport;

use super::range;
use super::rounds::{Compared, Spread};
use crate::place::Place;
use host::error::{Error, Result};
use peer::Program;
pub use report::HEAD;
pub use row::Row;
use serde_json::Value;
use serve::Counters;
use std::path::{Path, PathBuf};
use transport::Transport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The peer that each row is wanted against.
    Auto,
    Raw,
    Server(Program),
}

#[derive(Clone, Debug)]
pub struct Options {
    /// A file on the device to be measured; it is not touched itself.
    pub path: PathBuf,
    pub against: Against,
    pub rows: Vec<Row>,
    pub depths: Vec<usize>,
    pub transport: Transport,
    pub rounds: u32,
    /// Of one slot.
    pub seconds: f64,
    /// Of the set that is read from the device.
    pub size_bytes: u64,
}

/// One row at one depth.
pub struct Line {
    pub row: Row,
    pub depth: usize,
    pub against: Against,
    pub outcome: Result<Outcome>,
}

/// Figures are requests per second, or microseconds at depth 1.
pub struct Outcome {
    /// What its slots took: longer ones than were asked for, where those showed nothing.
    pub seconds: f64,
    pub ours: Option<Spread>,
    pub peer: Option<Spread>,
    pub compared: Compared,
    pub ceiling: Option<Spread>,
    pub p99_us: Option<Spread>,
    /// Of all threads but the client's, and of the peer where it is another process.
    pub cpu_us: [Option<Spread>; 2],
    /// What one empty round trip takes of a row in microseconds, and the ratio without those.
    pub null_us: Option<Spread>,
    pub without_protocol: Option<Spread>,
    pub counters: Counters,
    /// Bytes that the kernel read for and wrote for the peer, in its slots.
    pub peer_device: Option<(u64, u64)>,
    /// Why the counters do not show what the row claims.
    pub unproven: Option<String>,
}

pub struct Report {
    options: Options,
    lines: Vec<Line>,
}

pub fn run(options: &Options) -> Result<Report> {
    check(options)?;
    let place = Place::below(&directory(&options.path)?)?;
    let mut lines = Vec::new();
    for &row in &options.rows {
        for (against, depths) in plan(options, row) {
            lines.extend(row::measure(&place, options, row, against, &depths)?);
        }
    }
    Ok(Report {
        options: options.clone(),
        lines,
    })
}

/// Against whom a row is measured, and at which depths.
fn plan(options: &Options, row: Row) -> Vec<(Against, Vec<usize>)> {
    let depths = match (row, options.transport) {
        // Its figure is the time of one; several in flight share syncs.
        (Row::WriteFlush, Transport::Nbd { .. }) => &[1][..],
        _ => &options.depths,
    };
    let mut plan: Vec<(Against, Vec<usize>)> = Vec::new();
    for &depth in depths {
        let against = match options.against {
            Against::Auto => row.peer(options.transport, depth),
            other => other,
        };
        match plan.last_mut() {
            Some((last, depths)) if *last == against => depths.push(depth),
            _ => plan.push((against, vec![depth])),
        }
    }
    plan
}

fn check(options: &Options) -> Result<()> {
    range::within("--seconds", options.seconds, 0.01..=60.0)?;
    range::at_least_one("--rounds", options.rounds)?;
    for depth in &options.depths {
        range::within("--qd", *depth, 1..=256)?;
    }
    match options.transport {
        Transport::Nbd { connections } => range::within("--connections", connections, 1..=16)?,
        Transport::VhostUser { queues, .. } => range::within("--queues", queues, 1..=4)?,
    }
    range::size_within("--size", options.size_bytes, 64 << 20..=64 << 30)
}

/// Where the files of the run lie: beside the file that was named.
fn directory(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    if !parent.is_dir() {
        return Err(Error::usage(format!(
            "--path {}: no such directory; name a file in one on the device to be measured",
            path.display()
        )));
    }
    Ok(parent.to_owned())
}

impl Report {
    pub fn rows(&self) -> Vec<Vec<String>> {
        let lines = self.lines.iter();
        lines.map(|line| report::cells(self, line)).collect()
    }

    pub fn headline(&self) -> String {
        report::headline(self)
    }

    /// What proves each row, or why it has no figure.
    pub fn notes(&self) -> Vec<String> {
        self.lines.iter().map(report::note).collect()
    }

    pub fn document(&self) -> Value {
        report::document(self)
    }

    /// Whether every row has its peer and its proof.
    pub fn is_complete(&self) -> bool {
        let good = |line: &Line| {
            let outcome = line.outcome.as_ref();
            outcome.is_ok_and(|it| it.unproven.is_none())
        };
        self.lines.iter().all(good)
    }
}
