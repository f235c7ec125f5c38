//! What arrives at shared storage when the images there are qcow2 clones instead of raw images.
//!
//! Owns the counts and their table. Always true: formats are QEMU's own, and nothing of them is
//! modelled here; they are given what each policy has sent to the images of some desktops in the
//! six peaks; a raw image must cause one request for each, or there is no figure. Deliberately
//! absent: time, and requests that QEMU could join if several were in flight.

mod play;
mod storage;
mod tables;

use super::{Column, Outcome};
use crate::place::Place;
use crate::qemu;
use crate::replay::tally::Count;
use crate::replay::watch::{Sent, Verb};
use host::error::{Error, Result};
use play::Player;
use serde_json::{Value, json};
use std::time::Instant;
use storage::Note;
use workload::synth::peaks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Qcow2,
    /// With subclusters, of which a write copies less.
    Extended,
}

impl Format {
    pub const QCOW2: [Format; 2] = [Format::Qcow2, Format::Extended];

    pub const fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Extended => "qcow2, extended_l2",
        }
    }
}

/// What an image holds when a peak begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What the days before have written.
    Week,
    /// Nothing: a clone just made.
    First,
    /// All that the peak itself writes, from the pass before.
    Second,
}

impl State {
    pub const fn name(self) -> &'static str {
        match self {
            State::Week => "as the week left it",
            State::First => "new clone",
            State::Second => "same peak again",
        }
    }
}

/// Of some desktops in one peak.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub asked: Count,
    pub reads: Count,
    pub writes: Count,
    /// Of them, of the image's own tables.
    pub table_reads: u64,
    pub table_writes: u64,
    /// Of the reads, those of the base for the sake of a write.
    pub copied: Count,
    pub flushes: u64,
    /// To journals and ledgers, the same for every format.
    pub beside: u64,
    by_second: Vec<u32>,
}

fn add(count: &mut Count, bytes: u64) {
    count.requests += 1;
    count.bytes += bytes;
}

impl Counts {
    fn ask(&mut self, sent: &Sent) {
        if sent.verb != Verb::Flush {
            add(&mut self.asked, sent.bytes);
        }
    }

    fn at(&mut self, second: usize) {
        if self.by_second.len() <= second {
            self.by_second.resize(second + 1, 0);
        }
        self.by_second[second] += 1;
    }

    fn beside(&mut self, second: usize) {
        self.beside += 1;
        self.at(second);
    }

    /// A request that arrived because of one of this kind; `own`, of the image's own tables.
    fn arrive(&mut self, second: usize, cause: Verb, note: &Note, own: bool) {
        match note.verb {
            Verb::Flush => {
                self.flushes += 1;
                return;
            }
            Verb::Read => {
                add(&mut self.reads, note.bytes);
                self.table_reads += u64::from(own);
                if note.export != 0 && cause == Verb::Write {
                    add(&mut self.copied, note.bytes);
                }
            }
            Verb::Write => {
                add(&mut self.writes, note.bytes);
                self.table_writes += u64::from(own);
            }
        }
        self.at(second);
    }

    fn join(&mut self, other: &Counts) {
        let pairs = [
            (&mut self.asked, other.asked),
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.copied, other.copied),
        ];
        for (sum, more) in pairs {
            sum.requests += more.requests;
            sum.bytes += more.bytes;
        }
        self.table_reads += other.table_reads;
        self.table_writes += other.table_writes;
        self.flushes += other.flushes;
        self.beside += other.beside;
        let length = self.by_second.len().max(other.by_second.len());
        self.by_second.resize(length, 0);
        for (sum, more) in self.by_second.iter_mut().zip(&other.by_second) {
            *sum += more;
        }
    }

    /// All that a storage network counts, as in the table of the policies.
    pub fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests + self.beside
    }

    pub fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }

    pub fn busiest_second(&self) -> u32 {
        self.by_second.iter().copied().max().unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
pub struct Row {
    pub format: Format,
    pub state: State,
    pub peaks: [Counts; 6],
}

impl Row {
    fn new(format: Format, state: State) -> Row {
        Row {
            format,
            state,
            peaks: Default::default(),
        }
    }

    fn all(&self) -> Counts {
        let mut sum = Counts::default();
        self.peaks.iter().for_each(|counts| sum.join(counts));
        sum
    }
}

/// Peaks in the order of time, which is not that of the table.
fn by_time() -> [usize; 6] {
    let mut order = [0, 1, 2, 3, 4, 5];
    order.sort_by_key(|peak| peaks()[*peak].from_ns);
    order
}

/// The desktops whose requests are played, spread evenly: those in use come first in an office.
pub fn sampled(desktops: u32, wanted: u32) -> Vec<u32> {
    let wanted = wanted.min(desktops);
    let place = |at: u32| (2 * u64::from(at) + 1) * u64::from(desktops) / (2 * u64::from(wanted));
    (0..wanted).map(|at| place(at) as u32).collect()
}

pub struct Measured {
    version: String,
    desktops: Vec<u32>,
    columns: Vec<(Column, Vec<Row>)>,
    compared_bytes: u64,
    left_out: u64,
    seconds: f64,
}

/// Requests that [`run`] plays.
pub fn requests(outcomes: &[Outcome], disk_bytes: u64) -> u64 {
    let disks = outcomes.iter().flat_map(|outcome| &outcome.watch.disks);
    let of = disks.map(|disk| play::requests(&play::steps(disk, disk_bytes)));
    of.sum()
}

/// Plays the requests of these desktops; `progress` is told of more of them.
pub fn run(
    (seed, disk_bytes): (u64, u64),
    desktops: Vec<u32>,
    outcomes: &[Outcome],
    progress: &dyn Fn(u64),
) -> Result<Measured> {
    let begun = Instant::now();
    let version = qemu::version()?;
    let place = Place::new()?;
    let (mut columns, mut compared_bytes) = (Vec::new(), 0);
    for outcome in outcomes {
        let mut sum: Vec<Row> = Vec::new();
        for disk in &outcome.watch.disks {
            let player = Player {
                directory: place.directory(),
                seed,
                disk,
                disk_bytes,
                steps: &play::steps(disk, disk_bytes),
                progress,
            };
            let (rows, compared) = player.play()?;
            compared_bytes += compared;
            prove(outcome.column, &rows)?;
            if sum.is_empty() {
                sum = rows;
                continue;
            }
            for (sum, row) in sum.iter_mut().zip(&rows) {
                for (sum, counts) in sum.peaks.iter_mut().zip(&row.peaks) {
                    sum.join(counts);
                }
            }
        }
        if !sum.is_empty() {
            columns.push((outcome.column, sum));
        }
    }
    Ok(Measured {
        version,
        desktops,
        columns,
        compared_bytes,
        left_out: outcomes.iter().map(|outcome| outcome.watch.left_out).sum(),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// A raw image is asked once for each request, or the counting is wrong.
fn prove(column: Column, rows: &[Row]) -> Result<()> {
    let raw = rows.iter().filter(|row| row.format == Format::Raw);
    for (peak, counts) in raw.flat_map(|row| row.peaks.iter().enumerate()) {
        let (asked, reads, writes) = (counts.asked, counts.reads, counts.writes);
        let arrived = (reads.requests + writes.requests, reads.bytes + writes.bytes);
        if arrived != (asked.requests, asked.bytes) {
            return Err(Error::failed(format!(
                "{}, {}: {} requests of {} bytes were sent to a raw image and {} of {} arrived",
                column.name(),
                peaks()[peak].name,
                asked.requests,
                asked.bytes,
                arrived.0,
                arrived.1,
            )));
        }
    }
    Ok(())
}

fn times(part: f64) -> String {
    format!("{part:.3}")
}

fn ratio(part: f64, whole: f64) -> f64 {
    part / whole.max(1.0)
}

impl Measured {
    pub const HEAD: [&'static str; 12] = [
        "policy",
        "image",
        "state",
        "requests",
        "of raw",
        "MiB",
        "of raw",
        "table reads",
        "table writes",
        "reads to copy",
        "flushes",
        "busiest second",
    ];

    fn find(&self, column: Column, format: Format, state: State) -> &Row {
        let rows = self.columns.iter().find(|(it, _)| *it == column);
        let (_, rows) = rows.expect("every column was played");
        let found = rows
            .iter()
            .find(|row| (row.format, row.state) == (format, state));
        found.expect("every format was played")
    }

    fn raw(&self, column: Column) -> &Row {
        self.find(column, Format::Raw, State::Week)
    }

    /// Against raw images, mean of the peaks: busiest second and all requests.
    pub fn mean(&self, column: Column, format: Format, state: State) -> (f64, f64) {
        let (row, raw) = (self.find(column, format, state), self.raw(column));
        let pairs = row.peaks.iter().zip(&raw.peaks);
        let (mut busiest, mut total) = (0.0, 0.0);
        for (counts, raw) in pairs {
            let seconds = (counts.busiest_second(), raw.busiest_second());
            busiest += ratio(seconds.0.into(), seconds.1.into()) / 6.0;
            total += ratio(counts.requests() as f64, raw.requests() as f64) / 6.0;
        }
        (busiest, total)
    }

    /// The line of the table of policies.
    pub fn line(&self) -> Vec<String> {
        let mut line = vec!["qcow2 / raw".to_owned()];
        for column in Column::ALL {
            let (busiest, total) = self.mean(column, Format::Qcow2, State::Week);
            line.extend([times(busiest), times(total)]);
        }
        line
    }

    /// All six peaks together.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        for (column, rows) in &self.columns {
            let raw = self.raw(*column).all();
            for row in rows {
                let all = row.all();
                // Peaks are not at the same time.
                let busiest = row.peaks.iter().map(Counts::busiest_second).max();
                let requests = ratio(all.requests() as f64, raw.requests() as f64);
                lines.push(vec![
                    column.name().to_owned(),
                    row.format.name().to_owned(),
                    match row.format {
                        Format::Raw => String::new(),
                        _ => row.state.name().to_owned(),
                    },
                    all.requests().to_string(),
                    times(requests),
                    (all.bytes() >> 20).to_string(),
                    times(ratio(all.bytes() as f64, raw.bytes() as f64)),
                    all.table_reads.to_string(),
                    all.table_writes.to_string(),
                    all.copied.requests.to_string(),
                    all.flushes.to_string(),
                    busiest.unwrap_or(0).to_string(),
                ]);
            }
        }
        lines
    }

    pub fn headline(&self) -> String {
        let names = self.desktops.iter().map(|at| format!("desk-{:03}", at + 1));
        let names: Vec<String> = names.collect();
        let left = match self.left_out {
            0 => String::new(),
            left => format!("; {left} requests were too many to be kept and are left out"),
        };
        format!(
            "qcow2 at the storage instead of raw, the six peaks of {} ({}), clusters of 64 KiB, \
             {}; {} MiB read back and equal, images checked; {:.0} s{left}",
            match names.len() {
                1 => "one desktop".to_owned(),
                count => format!("{count} desktops"),
            },
            names.join(", "),
            self.version,
            self.compared_bytes >> 20,
            self.seconds,
        )
    }

    pub fn document(&self) -> Value {
        let columns = self.columns.iter().map(|(column, rows)| {
            let rows = rows.iter().map(|row| {
                let (busiest, total) = self.mean(*column, row.format, row.state);
                json!({
                    "format": row.format.name(),
                    "state": row.state.name(),
                    "mean_busiest_ratio": busiest,
                    "mean_requests_ratio": total,
                    "peaks": row.peaks.iter().enumerate().map(of_peak).collect::<Vec<_>>(),
                })
            });
            json!({ "policy": column.name(), "images": rows.collect::<Vec<_>>() })
        });
        json!({
            "qemu": self.version,
            "cluster_bytes": 65_536,
            "desktops": self.desktops.iter().map(|at| at + 1).collect::<Vec<_>>(),
            "compared_bytes": self.compared_bytes,
            "left_out": self.left_out,
            "wall_seconds": self.seconds,
            "policies": columns.collect::<Vec<_>>(),
        })
    }
}

fn of_peak((peak, counts): (usize, &Counts)) -> Value {
    json!({
        "peak": peaks()[peak].name,
        "sent": counts.asked.requests,
        "requests": counts.requests(),
        "reads": counts.reads.requests,
        "read_bytes": counts.reads.bytes,
        "writes": counts.writes.requests,
        "write_bytes": counts.writes.bytes,
        "table_reads": counts.table_reads,
        "table_writes": counts.table_writes,
        "copy_reads": counts.copied.requests,
        "copy_read_bytes": counts.copied.bytes,
        "flushes": counts.flushes,
        "journal_and_ledger": counts.beside,
        "busiest_second": counts.busiest_second(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::watch::Disk;

    fn note(export: usize, verb: Verb) -> Note {
        Note {
            export,
            verb,
            offset: 0,
            bytes: 4096,
        }
    }

    #[test]
    fn desktops_are_taken_evenly_and_never_more_than_there_are() {
        assert_eq!(sampled(10, 2), [2, 7]);
        assert_eq!(sampled(55, 3), [9, 27, 45]);
        assert_eq!(sampled(2, 16), [0, 1]);
        assert!(sampled(55, 0).is_empty());
    }

    #[test]
    fn a_read_of_the_base_is_a_copy_only_where_a_write_caused_it() {
        let mut counts = Counts::default();
        counts.arrive(3, Verb::Read, &note(1, Verb::Read), false);
        counts.arrive(3, Verb::Write, &note(1, Verb::Read), false);
        counts.arrive(3, Verb::Write, &note(0, Verb::Write), false);
        counts.arrive(4, Verb::Flush, &note(0, Verb::Write), true);
        counts.arrive(4, Verb::Flush, &note(0, Verb::Flush), false);
        counts.beside(4);
        assert_eq!((counts.copied.requests, counts.table_writes), (1, 1));
        assert_eq!((counts.requests(), counts.flushes), (5, 1));
        assert_eq!((counts.busiest_second(), counts.bytes()), (3, 4 * 4096));
    }

    #[test]
    fn a_raw_image_that_was_asked_more_often_than_it_should_is_no_measurement() {
        let mut row = Row::new(Format::Raw, State::Week);
        let sent = Sent {
            time_ns: 0,
            verb: Verb::Read,
            offset: 0,
            bytes: 4096,
        };
        row.peaks[2].ask(&sent);
        row.peaks[2].arrive(0, Verb::Read, &note(0, Verb::Read), false);
        assert!(prove(Column::NoCache, &[row.clone()]).is_ok());
        row.peaks[2].arrive(0, Verb::Read, &note(0, Verb::Read), false);
        let error = prove(Column::NoCache, &[row]).expect_err("one too many");
        assert!(error.message.contains("Tue 9:15"), "{}", error.message);
    }

    #[test]
    fn before_a_peak_only_what_reaches_a_block_for_the_first_time_is_played() {
        let first = peaks()[by_time()[0]].from_ns;
        let sent = |time_ns, verb, block: u64| Sent {
            time_ns,
            verb,
            offset: block * 4096,
            bytes: 8192,
        };
        let image = vec![
            sent(0, Verb::Write, 7),
            sent(1, Verb::Read, 100),
            sent(2, Verb::Write, 7),
            sent(3, Verb::Write, 8),
            sent(first, Verb::Write, 20),
            sent(first + 1, Verb::Flush, 0),
        ];
        let disk = Disk {
            image,
            beside_ns: Vec::new(),
        };
        let steps = play::steps(&disk, 1 << 30);
        assert_eq!(steps.len(), 6);
        // Two writes that allocate into each format, and two requests in seven passes.
        assert_eq!(play::requests(&steps), 2 * 2 + 7 * 2);
    }
}
