//! A week of an office under four policies: what reaches shared storage at its peaks.
//!
//! Owns the comparison. Always true: every policy is given the same records, from the beginning of
//! the week on, so that at a peak caches and pending destages are what the days before have left;
//! the engine is that of the daemon, in virtual time; all requests to images, journals and ledgers
//! count. Deliberately absent: what desktops do (`workload::synth`) and how long storage takes.

mod limits;
pub mod page;
pub mod qcow2;

use crate::bench::split_disks::{DURABILITIES, SplitDisks};
use crate::machine;
use crate::replay::machine::{Machine, ReplayError, Sizes};
use crate::replay::offline::{Volume, asks};
use crate::replay::tally::{Kinds, Origin, Part as Tallied};
use crate::replay::watch::Watch;
use engine::event::Admission;
use engine::types::{DestageMode, Policy, SECTOR_BYTES, Time, VolumeId};
use host::error::{Error, Kind, Result};
use host::origin::san::Params;
use limits::{Looks, Reads};
use serde_json::{Value, json};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use workload::synth::{Class, Durability, Parameters, Pattern, Period, Synth, peaks};
use workload::trace::{Op, Record};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// By ranges and on split disks, so much apart is the same.
const APART_MAX: f64 = 0.05;

#[derive(Clone, Debug)]
pub struct Options {
    pub desktops: u32,
    pub seed: u64,
    pub cache_bytes: u64,
    pub ram_bytes: u64,
    pub destage_after_ms: u64,
    pub destage: DestageMode,
    pub admission: Admission,
    /// Desktops whose requests are played again to qcow2 images.
    pub qcow2_desktops: u32,
}

/// What all desktops have in one column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    NoCache,
    WriteThrough,
    WriteBack,
    /// By class of the data, a volume for each durability with the places of the whole disk.
    Differential,
    /// The same on the disks that a split makes, which have places of their own. It stands beside
    /// the one before and not in the table of the paper.
    SplitDisks,
}

impl Column {
    pub const ALL: [Column; 4] = [
        Column::NoCache,
        Column::WriteThrough,
        Column::WriteBack,
        Column::Differential,
    ];

    /// What is replayed.
    pub const RUN: [Column; 5] = [
        Column::NoCache,
        Column::WriteThrough,
        Column::WriteBack,
        Column::Differential,
        Column::SplitDisks,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Column::NoCache => "no cache",
            Column::WriteThrough => "write-through",
            Column::WriteBack => "write-back",
            Column::Differential => "differential",
            Column::SplitDisks => "split disks",
        }
    }

    /// Published for each peak: the busiest second and all requests, against no cache; Capo's
    /// table 3.
    fn published(self) -> [(f64, f64); 6] {
        let percent: [(u32, u32); 6] = match self {
            Column::NoCache => [(100, 100); 6],
            Column::WriteThrough => [(38, 59), (37, 56), (67, 87), (48, 74), (73, 88), (52, 92)],
            Column::WriteBack => [(29, 25), (26, 20), (45, 30), (31, 29), (57, 28), (41, 40)],
            Column::Differential | Column::SplitDisks => {
                [(30, 34), (35, 28), (61, 58), (44, 60), (69, 47), (62, 59)]
            }
        };
        percent.map(|(peak, total)| (f64::from(peak) / 100.0, f64::from(total) / 100.0))
    }

    /// What is asked of this product, for the mean of the peaks.
    pub fn wanted(self) -> Option<(f64, f64)> {
        match self {
            Column::NoCache => None,
            Column::WriteThrough => Some((0.525, 0.76)),
            Column::WriteBack => Some((0.25, 0.20)),
            Column::Differential | Column::SplitDisks => Some((0.501, 0.476)),
        }
    }
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    pub tallied: Tallied,
    /// Requests of desktops in the busiest second at shared storage: reads and writes.
    pub asked: [u32; 2],
    /// Reads of desktops in the whole peak, and where they were found.
    pub reads: Reads,
}

impl Cell {
    pub fn busiest_second(&self) -> u32 {
        self.tallied.busiest.all()
    }

    pub fn requests(&self) -> u64 {
        self.tallied.requests.iter().sum()
    }
}

/// What one policy has sent to shared storage.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub column: Column,
    pub peaks: [Cell; 6],
    /// At shared storage, each second from the beginning on.
    pub by_second: Vec<Kinds>,
    /// Of the whole time up to the end of the last peak.
    pub origin: Origin,
    pub records: u64,
    pub refused: u64,
    pub flash_write_bytes: u64,
    pub index_bytes: u64,
    pub seconds: f64,
    /// Of the desktops that are played again.
    pub watch: Watch,
}

pub struct Report {
    pub options: Options,
    pub outcomes: Vec<Outcome>,
    pub qcow2: Played,
    disk_bytes: u64,
    machine: Value,
}

/// What became of the play to qcow2 images.
pub enum Played {
    NotAsked,
    /// What it needs is not there.
    Skipped(Error),
    Failed(Error),
    Done(qcow2::Measured),
}

impl Played {
    fn document(&self) -> Value {
        match self {
            Played::NotAsked => Value::Null,
            Played::Skipped(error) => json!({ "skipped": error.message }),
            Played::Failed(error) => json!({ "error": error.message }),
            Played::Done(measured) => measured.document(),
        }
    }
}

/// A part of a disk that is a volume.
struct Part {
    sectors: Range<u64>,
    volume: VolumeId,
}

/// Calls `progress` with the records that were replayed, of all policies, and of how many seconds.
pub fn run(options: &Options, progress: impl Fn(u64) + Sync) -> Result<Report> {
    let done = AtomicU64::new(0);
    let outcomes = Mutex::new(Vec::new());
    // As many at once as there are cores.
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed) as usize;
            let Some(column) = Column::RUN.get(at) else {
                return Ok(());
            };
            let outcome = replay(options, *column, |seconds| {
                progress(done.fetch_add(seconds, Ordering::Relaxed) + seconds);
            })?;
            outcomes
                .lock()
                .expect("nobody panics with it")
                .push(outcome);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(Column::RUN.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a panic ends the process"))
    })?;
    let mut outcomes = outcomes.into_inner().expect("nobody panics with it");
    outcomes.sort_by_key(|outcome| Column::RUN.iter().position(|it| *it == outcome.column));
    Ok(Report {
        options: options.clone(),
        outcomes,
        qcow2: Played::NotAsked,
        disk_bytes: Parameters::new(Pattern::Desktops).disk_bytes,
        machine: machine::document(),
    })
}

/// Seconds of virtual time that one policy goes through.
pub fn seconds_of(_options: &Options) -> u64 {
    peaks().iter().map(end_s).max().unwrap_or(0)
}

fn end_s(period: &Period) -> u64 {
    (period.from_ns + period.duration_ns) / NS_PER_SECOND
}

fn replay(options: &Options, column: Column, progress: impl Fn(u64)) -> Result<Outcome> {
    let begun = Instant::now();
    let end = seconds_of(options);
    let parameters = Parameters {
        desktops: options.desktops,
        seed: options.seed,
        duration_ns: end * NS_PER_SECOND,
        ..Parameters::new(Pattern::Desktops)
    };
    let synth = Synth::new(&parameters).map_err(|error| Error::usage(error.to_string()))?;
    let mut machine = Machine::start(Sizes {
        cache_bytes: options.cache_bytes,
        ram_bytes: options.ram_bytes,
        stage_bytes: 256 << 20,
        overlay_ram_bytes: 0,
        map_bytes: 0,
        cache_latency_ns: 100_000,
        san: Params {
            latency_ns: 5_000_000,
            ..Params::default()
        },
        seed: options.seed,
    })?;
    let mut disks = Disks::new(options, column, &synth, &mut machine)?;
    disks.watch(options, &mut machine);
    let (mut records, mut second) = (0, 0);
    let mut asked = vec![[0_u32; 2]; end as usize];
    let mut looks = Looks::default();
    for record in synth {
        records += 1;
        let now = record.time_ns / NS_PER_SECOND;
        looks.look(&machine, record.time_ns);
        let kind = usize::from(record.op == Op::Write);
        asked[now as usize][kind] += u32::from(record.op != Op::Flush);
        disks.ask(&mut machine, &record)?;
        if now >= second + 600 {
            progress(now - second);
            second = now;
        }
    }
    machine.run_until(Time(end * NS_PER_SECOND));
    looks.look(&machine, u64::MAX);
    progress(end.saturating_sub(second));
    let snapshot = machine.snapshot();
    let mut cells = [Cell::default(); 6];
    for ((cell, period), reads) in cells.iter_mut().zip(peaks()).zip(looks.of_peaks) {
        let from = (period.from_ns / NS_PER_SECOND) as usize;
        let seconds = (period.duration_ns / NS_PER_SECOND) as usize;
        cell.tallied = machine.tally.period(from, seconds);
        cell.asked = asked[cell.tallied.busiest_at];
        cell.reads = reads;
    }
    Ok(Outcome {
        column,
        peaks: cells,
        by_second: std::mem::take(&mut machine.tally.seconds),
        origin: machine.tally.origin,
        records,
        refused: machine.answers.refused,
        flash_write_bytes: machine.tally.flash_writes.bytes,
        index_bytes: snapshot.index_bytes,
        seconds: begun.elapsed().as_secs_f64(),
        watch: std::mem::take(&mut machine.watch),
    })
}

/// The volumes of all desktops.
enum Disks {
    /// In the order of their sectors.
    Ranges(Vec<Vec<Part>>),
    /// In the order of the durabilities.
    Split(Box<SplitDisks>, Vec<[VolumeId; 3]>),
}

impl Disks {
    fn new(
        options: &Options,
        column: Column,
        synth: &Synth,
        machine: &mut Machine,
    ) -> Result<Disks> {
        let desktops = 0..options.desktops;
        if column != Column::SplitDisks {
            let disks = desktops.map(|at| volumes(options, column, synth, machine, at * 3));
            return Ok(Disks::Ranges(disks.collect::<Result<_>>()?));
        }
        let split = SplitDisks::new(synth);
        let mut disks = Vec::new();
        for desktop in desktops {
            let mut volumes = [VolumeId(0); 3];
            for (at, durability) in DURABILITIES.into_iter().enumerate() {
                let spec =
                    settings(options, durability).spec(desktop * 3 + at as u32, split.bytes(at));
                volumes[at] = machine.attach(spec)?;
            }
            disks.push(volumes);
        }
        Ok(Disks::Split(Box::new(split), disks))
    }

    /// Notes what the desktops ask that are played again. Places of split disks are none of the
    /// whole disk.
    fn watch(&self, options: &Options, machine: &mut Machine) {
        let Disks::Ranges(disks) = self else { return };
        for desktop in qcow2::sampled(options.desktops, options.qcow2_desktops) {
            let parts = disks[desktop as usize].iter();
            machine.watch.disk(parts.map(|part| part.volume));
        }
    }

    fn ask(
        &mut self,
        machine: &mut Machine,
        record: &Record,
    ) -> std::result::Result<(), ReplayError> {
        let (at, desktop) = (Time(record.time_ns), record.disk.0 as usize);
        match self {
            Disks::Ranges(disks) => ask(machine, &disks[desktop], record),
            Disks::Split(split, disks) => {
                for piece in split.route(record) {
                    for ask in asks(record.op, piece.sector, piece.sectors) {
                        machine.ask(at, disks[desktop][piece.disk], ask)?;
                    }
                }
                Ok(())
            }
        }
    }
}

fn usual(options: &Options) -> Volume {
    Volume {
        policy: Policy::WriteBack,
        destage: options.destage,
        destage_after_ms: Some(options.destage_after_ms),
        dirty_limit_bytes: 64 << 30,
        origin_queue_depth: 32,
        admission: options.admission,
    }
}

/// Of a volume for data of this durability.
fn settings(options: &Options, durability: Durability) -> Volume {
    let usual = usual(options);
    match durability {
        Durability::WriteThrough => Volume {
            policy: Policy::WriteThrough,
            ..usual
        },
        Durability::WriteBack => usual,
        Durability::NoWriteBack => Volume {
            destage_after_ms: None,
            ..usual
        },
    }
}

/// The volumes of a disk, in the order of their sectors; their numbers begin with this one.
fn volumes(
    options: &Options,
    column: Column,
    synth: &Synth,
    machine: &mut Machine,
    mut number: u32,
) -> Result<Vec<Part>> {
    let disk_bytes = synth.disk_bytes();
    let mut parts = Vec::new();
    let mut add = |settings: Volume, ranges: &[Range<u64>]| {
        let volume = machine.attach(settings.spec(number, disk_bytes))?;
        number += 1;
        parts.extend(ranges.iter().map(|sectors| Part {
            sectors: sectors.clone(),
            volume,
        }));
        Ok::<(), Error>(())
    };
    let policy = match column {
        Column::NoCache => Policy::Uncached,
        Column::WriteThrough => Policy::WriteThrough,
        Column::WriteBack | Column::Differential | Column::SplitDisks => Policy::WriteBack,
    };
    if column == Column::Differential {
        for durability in DURABILITIES {
            let classes = Class::ALL.into_iter();
            let classes = classes.filter(|class| class.durability() == durability);
            let ranges: Vec<_> = classes
                .flat_map(|class| synth.ranges(class).iter().cloned())
                .collect();
            add(settings(options, durability), &ranges)?;
        }
    } else {
        let whole = 0..disk_bytes / SECTOR_BYTES;
        let settings = Volume {
            policy,
            ..usual(options)
        };
        add(settings, std::slice::from_ref(&whole))?;
    }
    parts.sort_by_key(|part| part.sectors.start);
    Ok(parts)
}

/// A record, cut where it goes from one volume to the next.
fn ask(
    machine: &mut Machine,
    parts: &[Part],
    record: &Record,
) -> std::result::Result<(), ReplayError> {
    let at = Time(record.time_ns);
    let (mut sector, end) = (record.sector, record.sector + u64::from(record.sectors));
    let first = parts.partition_point(|part| part.sectors.end <= sector);
    if record.sectors == 0 {
        // A flush is the whole disk's.
        let mut seen = Vec::new();
        for part in parts {
            if !seen.contains(&part.volume) {
                seen.push(part.volume);
                for ask in asks(record.op, 0, 0) {
                    machine.ask(at, part.volume, ask)?;
                }
            }
        }
        return Ok(());
    }
    for part in &parts[first..] {
        if sector >= end {
            break;
        }
        let upto = end.min(part.sectors.end);
        for ask in asks(record.op, sector, upto - sector) {
            machine.ask(at, part.volume, ask)?;
        }
        sector = upto;
    }
    Ok(())
}

impl Report {
    fn cell(&self, column: Column, peak: usize) -> Cell {
        let found = self.outcomes.iter().find(|it| it.column == column);
        found.map_or(Cell::default(), |it| it.peaks[peak])
    }

    /// Busiest second and total of a column against no cache.
    fn part(&self, column: Column, peak: usize) -> (f64, f64) {
        let (cell, whole) = (self.cell(column, peak), self.cell(Column::NoCache, peak));
        (
            f64::from(cell.busiest_second()) / f64::from(whole.busiest_second().max(1)),
            cell.requests() as f64 / whole.requests().max(1) as f64,
        )
    }

    pub fn mean(&self, column: Column) -> (f64, f64) {
        let parts: Vec<_> = (0..6).map(|peak| self.part(column, peak)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| parts.iter().map(of).sum::<f64>() / 6.0;
        (mean(|part| part.0), mean(|part| part.1))
    }

    /// Of each peak and of all: the row by ranges, that of split disks, and how far they are apart.
    pub fn split_rows(&self) -> Vec<Vec<String>> {
        let row = |name: &str, of: &dyn Fn(Column) -> (f64, f64)| {
            let (ranges, disks) = (of(Column::Differential), of(Column::SplitDisks));
            let mut row = vec![name.to_owned()];
            for (ranges, disks) in [(ranges.0, disks.0), (ranges.1, disks.1)] {
                row.extend([
                    percent(ranges),
                    percent(disks),
                    percent(apart(ranges, disks)),
                ]);
            }
            row
        };
        let named = peaks().into_iter().enumerate();
        let mut rows: Vec<Vec<String>> = named
            .map(|(peak, period)| row(period.name, &|column| self.part(column, peak)))
            .collect();
        rows.push(row("mean", &|column| self.mean(column)));
        rows
    }

    /// Whether the differential row is the same on split disks.
    pub fn split_line(&self) -> String {
        let [ranges, disks] = [Column::Differential, Column::SplitDisks].map(|it| self.mean(it));
        let (busiest, total) = (apart(ranges.0, disks.0), apart(ranges.1, disks.1));
        let is_same = busiest.max(total) <= APART_MAX;
        format!(
            "differential by ranges and on split disks: {} apart in the busiest second, {} in \
             total (wanted: at most {}): {}",
            percent(busiest),
            percent(total),
            percent(APART_MAX),
            if is_same { "reached" } else { "not reached" }
        )
    }

    pub fn head(&self) -> Vec<String> {
        let mut head = vec!["peak".to_owned()];
        for column in Column::ALL {
            head.push(format!("{}: busiest second", column.name()));
            head.push("total".to_owned());
        }
        head
    }

    /// Busiest second and total, each with its part of no cache and the published part.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let published = Column::ALL.map(Column::published);
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (peak, period) in peaks().iter().enumerate() {
            let mut row = vec![period.name.to_owned()];
            for (at, column) in Column::ALL.into_iter().enumerate() {
                let cell = self.cell(column, peak);
                let (busiest, total) = self.part(column, peak);
                let (paper_busiest, paper_total) = published[at][peak];
                if column == Column::NoCache {
                    row.push(cell.busiest_second().to_string());
                    row.push(cell.requests().to_string());
                } else {
                    row.push(versus(busiest, paper_busiest));
                    row.push(versus(total, paper_total));
                }
            }
            rows.push(row);
        }
        let mut mean = vec!["mean".to_owned(), "100 %".into(), "100 %".into()];
        for (at, column) in Column::ALL.into_iter().enumerate().skip(1) {
            let (busiest, total) = self.mean(column);
            let paper = published[at];
            let of = |pick: fn(&(f64, f64)) -> f64| paper.iter().map(pick).sum::<f64>() / 6.0;
            mean.push(versus(busiest, of(|cell| cell.0)));
            mean.push(versus(total, of(|cell| cell.1)));
        }
        rows.push(mean);
        if let Played::Done(measured) = &self.qcow2 {
            rows.push(measured.line());
        }
        let mut wanted = vec!["wanted at most".to_owned(), String::new(), String::new()];
        for column in Column::ALL.into_iter().skip(1) {
            let (busiest, total) = column.wanted().unwrap_or_default();
            wanted.push(percent(busiest));
            wanted.push(percent(total));
        }
        rows.push(wanted);
        rows
    }

    /// Requests that [`Report::play`] plays.
    pub fn to_play(&self) -> u64 {
        qcow2::requests(&self.outcomes, self.disk_bytes)
    }

    /// Plays what was sent in the peaks again, to qcow2 images; `progress` is told of more of it.
    pub fn play(&mut self, progress: &dyn Fn(u64)) {
        let options = &self.options;
        let desktops = qcow2::sampled(options.desktops, options.qcow2_desktops);
        if desktops.is_empty() {
            return;
        }
        let disks = (options.seed, self.disk_bytes);
        self.qcow2 = match qcow2::run(disks, desktops, &self.outcomes, progress) {
            Ok(measured) => Played::Done(measured),
            Err(error) if error.kind == Kind::NotFound => Played::Skipped(error),
            Err(error) => Played::Failed(error),
        };
    }

    /// What there is to say of qcow2 where there is no table of it.
    pub fn qcow2_line(&self) -> Option<String> {
        match &self.qcow2 {
            Played::NotAsked | Played::Done(_) => None,
            Played::Skipped(error) => {
                Some(format!("qcow2 at the storage: skipped: {}", error.message))
            }
            Played::Failed(error) => {
                Some(format!("qcow2 at the storage: failed: {}", error.message))
            }
        }
    }

    pub fn proof(&self) -> String {
        let lines = self.outcomes.iter().map(|it| {
            format!(
                "{}: {} requests of desktops, {} refused; at shared storage {} reads, {} writes, \
                 {} of journals, {} of ledgers; {:.0} s, {:.0} requests/s\n",
                it.column.name(),
                it.records,
                it.refused,
                it.origin.reads.requests,
                it.origin.writes.requests,
                it.origin.journal.requests,
                it.origin.ledger.requests,
                it.seconds,
                it.records as f64 / it.seconds.max(1e-9),
            )
        });
        let mut text: String = lines.collect();
        text.push('\n');
        for it in &self.outcomes {
            for (peak, cell) in it.peaks.iter().enumerate() {
                text.push_str(&limits::line(it.column, peak, cell));
            }
        }
        text
    }

    pub fn document(&self) -> Value {
        let outcomes: Vec<Value> = self
            .outcomes
            .iter()
            .map(|it| {
                let cells: Vec<Value> = it
                    .peaks
                    .iter()
                    .enumerate()
                    .map(|(peak, cell)| {
                        let (busiest, total) = self.part(it.column, peak);
                        let (paper_busiest, paper_total) = it.column.published()[peak];
                        json!({
                            "peak": peaks()[peak].name,
                            "busiest_second": cell.busiest_second(),
                            "requests": cell.requests(),
                            "limits": limits::document(cell, peak),
                            "busiest_ratio": busiest,
                            "requests_ratio": total,
                            "published_busiest_ratio": paper_busiest,
                            "published_requests_ratio": paper_total,
                        })
                    })
                    .collect();
                let (busiest, total) = self.mean(it.column);
                json!({
                    "policy": it.column.name(),
                    "peaks": cells,
                    "mean_busiest_ratio": busiest,
                    "mean_requests_ratio": total,
                    "requests_of_desktops": it.records,
                    "refused": it.refused,
                    "origin": {
                        "reads": it.origin.reads.requests,
                        "writes": it.origin.writes.requests,
                        "journal": it.origin.journal.requests,
                        "ledger": it.origin.ledger.requests,
                        "syncs": it.origin.syncs,
                    },
                    "flash_write_bytes": it.flash_write_bytes,
                    "index_bytes": it.index_bytes,
                    "wall_seconds": it.seconds,
                })
            })
            .collect();
        json!({
            "benchmark": "policies",
            "desktops": self.options.desktops,
            "seed": self.options.seed,
            "cache_bytes": self.options.cache_bytes,
            "ram_bytes": self.options.ram_bytes,
            "destage_after_ms": self.options.destage_after_ms,
            "admission": match self.options.admission {
                Admission::All => "all",
                Admission::Reuse => "reuse",
            },
            "destage": match self.options.destage {
                DestageMode::Atomic => "atomic",
                DestageMode::InPlace => "in-place",
            },
            "policies": outcomes,
            "qcow2": self.qcow2.document(),
            "differential": self.split_document(),
            "machine": self.machine,
        })
    }

    fn split_document(&self) -> Value {
        json!({
            "by_ranges": self.mean(Column::Differential),
            "split_disks": self.mean(Column::SplitDisks),
            "line": self.split_line(),
        })
    }

    pub const SPLIT_HEAD: [&'static str; 7] = [
        "peak",
        "busiest second: by ranges",
        "split disks",
        "apart",
        "total: by ranges",
        "split disks",
        "apart",
    ];
}

/// Of two figures of one thing, how far the second is from the first, as part of that.
fn apart(first: f64, second: f64) -> f64 {
    (second - first).abs() / first.max(f64::MIN_POSITIVE)
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Ours, and what was published in brackets.
fn versus(ours: f64, paper: f64) -> String {
    format!("{:.1} % ({:.0})", ours * 100.0, paper * 100.0)
}
