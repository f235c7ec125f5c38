//! `tenuto trace analyze`: what traces say about the disks they were taken from.
//!
//! Owns the arguments, and the passes over all traces with a bar. Always true: a trace is read
//! once, so that it may come through a pipe, and only for a proposal of rules three times; what
//! could not be understood or was not looked at is said. Deliberately absent: the analyses, which
//! are in the crate `workload`.

mod document;
mod engine;
mod page;
mod propose;
mod text;

use crate::cli::trace::{format_named, must_be_free};
use crate::cli::trace_replay::unsaid;
use crate::image_files::contents::Contents;
use crate::image_files::{self, ImageOf, Images};
use crate::inputs::{failed, no_trace, refused, unreadable};
use clap::Args;
use host::cli::Context;
use host::cli::progress::{Progress, Work};
use host::config::units::{parse_millis, parse_size, show_millis};
use host::error::{Error, Kind, Result, cause};
use propose::{Proposed, Proposing, Request, Wanted};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use workload::trace::analyze::categories::{Categories, CategoryId, OTHER, UNKNOWN};
use workload::trace::analyze::flow::Mix;
use workload::trace::analyze::merge::{Failed, Merged};
use workload::trace::analyze::peaks::Period;
use workload::trace::analyze::{Analysis, Options, Report};
use workload::trace::{Complaints, Format, Names, Reader, Record};

const BUFFER_BYTES: usize = 256 << 10;
/// A chunk of blocks takes so much while the tables that hold it grow.
const CHUNK_MEMORY_BYTES: u64 = 600;
/// Records between two looks at how far it is.
const LOOK_RECORDS: u64 = 1 << 16;
const MILLISECOND_NS: u64 = 1_000_000;

#[derive(Debug, Args)]
pub struct Analyze {
    /// The traces, one or several at the same time; - for standard input, as behind `zcat`
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// What they are in, where their beginning does not tell
    #[arg(long, value_name = "FORMAT", value_parser = format_named)]
    format: Option<Format>,
    /// Times of all traces are of one clock, and disks of the same name are the same disk;
    /// else traces begin together, each with its own disks
    #[arg(long)]
    shared_clock: bool,
    /// How many of the busiest periods are shown
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    peaks: u32,
    /// How long such a period is
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=525_600))]
    peak_minutes: u32,
    /// Show this period too, counted from the first request: 90m..2h; may be given several times.
    /// A time alone, as 1h (the default), is how long what --propose finds may be late
    #[arg(long = "period", value_name = "START..END|TIME", value_parser = period)]
    periods: Vec<Asked>,
    /// A table of name-space categories instead of the built-in one: lines CATEGORY PREFIX
    #[arg(long, value_name = "FILE")]
    categories: Option<PathBuf>,
    /// A table of how durable what is written has to be, instead of the built-in one: lines
    /// CLASS PREFIX
    #[arg(long, value_name = "FILE")]
    durability: Option<PathBuf>,
    /// The image of a disk: gives requests the path of their file (raw; ext2, ext3, ext4 or NTFS;
    /// read by debugfs, fiwalk and partx); may be given several times
    #[arg(long = "image", value_name = "DISK=IMAGE", value_parser = image_files::argument)]
    images: Vec<ImageOf>,
    /// What the table of blocks may take; beyond it a sample of the blocks is looked at
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = memory)]
    memory: u64,
    /// Write a report with plots too: one HTML file that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a table for `tenuto image split --rules`: directories of the images whose writes may
    /// be late or stay on the host by what the traces say of them. Needs --image; reads the traces
    /// three times. Nothing is applied
    #[arg(long, value_name = "FILE", requires = "images")]
    propose: Option<PathBuf>,
    /// A directory of the proposal saves at least so many requests, of all writes
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = min_share)]
    #[arg(requires = "propose")]
    min_share: f64,
    /// Replace a file of --propose that is there
    #[arg(long, requires = "propose")]
    force: bool,
}

/// What a `--period` is.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A part of the trace that is shown.
    Shown(Period),
    /// How late data of a proposal may be.
    LateMs(u64),
}

/// What a table of rules takes as a time, in whole seconds.
const LATE_SECONDS_MAX: u64 = 1_000_000;
const LATE_MS: u64 = 3_600_000;

impl Analyze {
    fn shown_periods(&self) -> Vec<Period> {
        let shown = self.periods.iter().filter_map(|it| match it {
            Asked::Shown(period) => Some(*period),
            Asked::LateMs(_) => None,
        });
        shown.collect()
    }

    /// How late data may be, and whether what is asked for fits together.
    fn late_ms(&self) -> Result<u64> {
        let late = self.periods.iter().filter_map(|it| match it {
            Asked::Shown(_) => None,
            Asked::LateMs(millis) => Some(*millis),
        });
        let late: Vec<u64> = late.collect();
        let shown = |at: usize| show_millis(late[at]);
        match (&late[..], &self.propose) {
            ([], _) => Ok(LATE_MS),
            ([one], Some(_)) => Ok(*one),
            ([_], None) => Err(Error::usage(format!(
                "--period {}: a time alone is for --propose; write a period to be shown as \
                 90m..2h",
                shown(0)
            ))),
            _ => Err(Error::usage(format!(
                "--period {} and {}: a proposal has one; give one of them",
                shown(0),
                shown(1)
            ))),
        }
    }
}

fn min_share(text: &str) -> std::result::Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|it| it.parse::<f64>().ok());
    let percent = percent.filter(|it| (0.0..=100.0).contains(it));
    let share = percent.map(|it| it / 100.0);
    share.ok_or_else(|| "write it as 1%, from 0% to 100%".to_owned())
}

fn period(text: &str) -> std::result::Result<Asked, String> {
    if !text.contains("..") {
        let millis = parse_millis(text).filter(|it| it.is_multiple_of(1000));
        let millis = millis.filter(|it| (1..=LATE_SECONDS_MAX).contains(&(it / 1000)));
        return millis.map(Asked::LateMs).ok_or_else(|| {
            "write it as 90m..2h, or with --propose as 1h, in whole seconds up to 11d".to_owned()
        });
    }
    let moment = |text: &str| parse_millis(text)?.checked_mul(MILLISECOND_NS);
    let ends = text.split_once("..");
    let found = ends.and_then(|(start, end)| {
        let (start_ns, end_ns) = (moment(start)?, moment(end)?);
        (start_ns < end_ns).then_some(Asked::Shown(Period { start_ns, end_ns }))
    });
    found.ok_or_else(|| "write it as 90m..2h, the earlier moment first".to_owned())
}

fn memory(text: &str) -> std::result::Result<u64, String> {
    let size = parse_size(text).filter(|size| *size >= 1 << 20);
    size.ok_or_else(|| "write it as 2GiB; at least 1MiB".to_owned())
}

/// What the pass gives to those who show it.
pub struct Shown {
    pub report: Report,
    pub disks: Names,
    pub paths: Names,
    pub categories: Vec<String>,
    /// Requests by how durable what they write has to be; none without paths.
    pub durability: Vec<(String, Mix)>,
    pub sources: Vec<(String, Format, Complaints)>,
    pub lost: u64,
    /// Images of disks that no trace has.
    pub images_without_disk: Vec<String>,
    pub proposed: Option<Proposed>,
}

impl Shown {
    pub fn disk(&self, disk: u32) -> &str {
        self.disks.name(workload::trace::NameId(disk))
    }

    pub fn seconds(&self) -> f64 {
        self.report.last_ns as f64 / 1e9
    }

    pub fn category(&self, CategoryId(at): CategoryId) -> &str {
        let name = self.categories.get(usize::from(at));
        name.map_or("?", String::as_str)
    }
}

pub fn run(context: &Context, command: &Analyze) -> Result<()> {
    crate::report::check(command.html.as_deref())?;
    let late_ms = command.late_ms()?;
    if let Some(path) = &command.propose {
        must_be_free(path, command.force)?;
        propose::check(path, &command.traces)?;
    }
    let shown = analyze(context, command, late_ms)?;
    if let Some(path) = &command.html {
        crate::report::save(path, &page::page(&shown))?;
    }
    if let Some(proposed) = &shown.proposed {
        proposed.save()?;
    }
    let document = document::document(&shown);
    context
        .output()
        .document(&document, || text::text(&shown))?;
    match &shown.proposed {
        Some(proposed) => proposed.result(context.common.json),
        None => Ok(()),
    }
}

/// Gives each request of all traces, with the path that its trace or the image of its disk knows.
fn pass(
    context: &Context,
    command: &Analyze,
    verb: &'static str,
    images: &mut Images,
    mut take: impl FnMut(&Request) -> Result<()>,
) -> Result<Merged<Input>> {
    images.begin_again();
    let opened = Opened::new(command)?;
    let (consumed, total) = (opened.consumed, opened.total_bytes);
    let wrong = |it: Failed| failed(&command.traces[it.source], cause(&it.error));
    let mut merged = Merged::new(opened.readers, command.shared_clock).map_err(wrong)?;
    let work = Work {
        verb,
        object: object(command),
        counted: "of the traces read",
    };
    let mut progress = Progress::new(context, work, total);
    let mut records = 0u64;
    while let Some(mut record) = merged.next_record().map_err(wrong)? {
        let is_own_path = record.path.is_some();
        let has_image = images.has(merged.disks(), record.disk);
        if !is_own_path && has_image {
            let found = images.path(merged.disks(), record.disk, record.sector);
            record.path = found.map(|it| it.id(merged.paths_mut()));
        }
        take(&Request {
            record,
            paths: merged.paths(),
            is_own_path,
            has_image,
        })?;
        records += 1;
        if records.is_multiple_of(LOOK_RECORDS) {
            progress.set(consumed.get(), total);
        }
    }
    progress.finish();
    Ok(merged)
}

fn analyze(context: &Context, command: &Analyze, late_ms: u64) -> Result<Shown> {
    let classes = table(command.durability.as_deref(), Categories::durability)?;
    let table = table(command.categories.as_deref(), Categories::default)?;
    let mut contents = command.propose.is_some().then(Contents::default);
    let mut images = Images::read(&command.images, contents.as_mut())?;
    let mut proposing = contents.map(Proposing::new).transpose()?;
    let mut analysis = Analysis::new(Options {
        peak_ns: u64::from(command.peak_minutes) * 60_000 * MILLISECOND_NS,
        peaks: command.peaks as usize,
        periods: command.shown_periods(),
        chunks_max: (command.memory / CHUNK_MEMORY_BYTES) as usize,
        directory_period_ms: proposing.as_ref().map(|_| late_ms),
        ..Options::default()
    });
    let mut known = Known::new(&table);
    let merged = pass(context, command, "analyze", &mut images, |request| {
        let category = known.category(&request.record, request.paths);
        let here = proposing.as_mut().and_then(|it| it.here(request));
        analysis.add_in(&request.record, category, here);
        Ok(())
    })?;
    let sources = merged.sources();
    let report = analysis.finish();
    let images_without_disk = images.without_disk();
    let mut again = |take: &mut dyn FnMut(&Request) -> Result<()>| {
        pass(context, command, "replay", &mut images, take).map(drop)
    };
    let proposed = match (proposing, &command.propose) {
        (Some(proposing), Some(path)) => {
            let wanted = Wanted {
                path: path.clone(),
                min_share: command.min_share,
                late_ms,
                options: unsaid()?,
            };
            Some(proposing.finish(&wanted, &report, &mut again)?)
        }
        _ => None,
    };
    Ok(Shown {
        durability: durability(&report, &classes, merged.paths()),
        sources: sources
            .map(|(name, format, found)| (name.to_owned(), format, found.clone()))
            .collect(),
        lost: merged.lost(),
        images_without_disk,
        disks: merged.disks().clone(),
        paths: merged.paths().clone(),
        categories: table.names().to_vec(),
        proposed,
        report,
    })
}

fn object(command: &Analyze) -> String {
    match &command.traces[..] {
        [one] => one.display().to_string(),
        all => format!("{} traces", all.len()),
    }
}

fn durability(report: &Report, classes: &Categories, paths: &Names) -> Vec<(String, Mix)> {
    if report.by_path.is_empty() {
        return Vec::new();
    }
    let mixes = report.by_class(classes, paths).into_iter();
    let named = classes.names().iter().enumerate().zip(mixes);
    let mut written: Vec<(String, Mix)> = Vec::new();
    for ((at, name), mix) in named.filter(|(_, mix)| mix.writes > 0) {
        let name = match CategoryId(at as u8) {
            UNKNOWN => "without a path",
            OTHER => "write-through",
            _ => name,
        };
        // A table may have a line for what is written through.
        match written.iter_mut().find(|it| it.0 == name) {
            Some((_, sum)) => sum.add_all(&mix),
            None => written.push((name.to_owned(), mix)),
        }
    }
    written.sort_by_key(|(_, mix)| std::cmp::Reverse(mix.writes));
    written
}

fn table(path: Option<&Path>, own: impl FnOnce() -> Categories) -> Result<Categories> {
    let Some(path) = path else {
        return Ok(own());
    };
    let text =
        std::fs::read_to_string(path).map_err(|error| unreadable(path, &error, "a table"))?;
    Categories::parse(&text).map_err(|error| failed(path, error))
}

/// The category of each path, looked up once.
struct Known<'a> {
    table: &'a Categories,
    by_path: Vec<CategoryId>,
}

impl<'a> Known<'a> {
    fn new(table: &'a Categories) -> Known<'a> {
        Known {
            table,
            by_path: Vec::new(),
        }
    }

    fn category(&mut self, record: &Record, paths: &Names) -> Option<CategoryId> {
        let path = record.path?.0 as usize;
        for name in &paths.all()[self.by_path.len()..] {
            self.by_path.push(self.table.of(name));
        }
        self.by_path.get(path).copied()
    }
}

type Input = Box<dyn BufRead>;

/// All traces, and how much was read of them.
struct Opened {
    readers: Vec<(String, Reader<Input>)>,
    consumed: Rc<Cell<u64>>,
    /// Unknown behind a pipe.
    total_bytes: Option<u64>,
}

impl Opened {
    fn new(command: &Analyze) -> Result<Opened> {
        let piped = command.traces.iter().filter(|it| *it == Path::new("-"));
        if piped.count() > 1 {
            let message = "-: standard input can be one of the traces only";
            return Err(Error::new(Kind::Usage, message.to_owned()));
        }
        let mut opened = Opened {
            readers: Vec::new(),
            consumed: Rc::default(),
            total_bytes: Some(0),
        };
        for path in &command.traces {
            let input = opened.input(path)?;
            let reader = Reader::open(input, command.format);
            let reader = reader.map_err(|error| refused(path, &error))?;
            opened.readers.push((name(path), reader));
        }
        Ok(opened)
    }

    fn input(&mut self, path: &Path) -> Result<Input> {
        let counted = Rc::clone(&self.consumed);
        if path == Path::new("-") {
            self.total_bytes = None;
            let input = io::stdin();
            return Ok(Box::new(BufReader::new(Counted { input, counted })));
        }
        let input = File::open(path).map_err(|error| no_trace(path, &error))?;
        let metadata = input.metadata().map_err(|error| no_trace(path, &error))?;
        self.total_bytes = match metadata.is_file() {
            true => self.total_bytes.map(|total| total + metadata.len()),
            false => None,
        };
        let input = Counted { input, counted };
        Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, input)))
    }
}

/// What its disks are called: the file without directory and ending.
fn name(path: &Path) -> String {
    match path.file_stem() {
        Some(stem) if path != Path::new("-") => stem.to_string_lossy().into_owned(),
        _ => "disk".to_owned(),
    }
}

/// Counts what is read.
struct Counted<R> {
    input: R,
    counted: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.input.read(buffer)?;
        self.counted.set(self.counted.get() + bytes as u64);
        Ok(bytes)
    }
}
