//! `tenuto trace info|convert`: block traces of this program and of others.
//!
//! Always true: what could not be understood is shown with its place, and an output file is there
//! as a whole or not at all. Deliberately absent: the formats, which are in the crate `workload`.

use super::trace_agent;
use super::trace_analyze::{self, Analyze};
use super::trace_replay::{self, Replay};
use super::{trace_record, trace_synth};
use crate::inputs::{self, failed, is_pipe};
use clap::{Args, Subcommand};
use host::cli::{Context, output};
use host::config::units::human_bytes;
use host::error::{Error, Kind, Result, cause};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use workload::trace::native::Writer;
use workload::trace::summary::Summary;
use workload::trace::{Complaints, Format, Item, Op, Reader, Record, SECTOR_BYTES};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what a trace is: format, disks, requests, what could not be understood
    Info(From),
    /// Write a trace in another format
    Convert(Convert),
    /// Analyze traces: peaks, sizes, rewrites, what was seen before, working set, miss ratio
    Analyze(Analyze),
    /// Record the requests of live volumes
    Record(trace_record::Command),
    /// Replay a trace against volumes, or through the engine alone
    Replay(Box<Replay>),
    /// Replay this machine's part of a trace; `trace replay --agents` runs it
    Agent,
    /// Make a trace of desktops
    Synth(trace_synth::Command),
}

#[derive(Debug, Args)]
pub struct From {
    /// The trace; - for standard input, as behind `zcat`
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// What it is in, where its beginning does not tell
    #[arg(long, value_name = "FORMAT", value_parser = format_named)]
    format: Option<Format>,
}

impl From {
    pub(super) fn file(path: &Path, format: Option<Format>) -> From {
        From {
            trace: path.to_owned(),
            format,
        }
    }
}

#[derive(Debug, Args)]
pub struct Convert {
    #[command(flatten)]
    from: From,
    /// Where it goes; - for standard output
    #[arg(value_name = "OUTPUT")]
    output: PathBuf,
    /// What it becomes: tenuto, or fio (version 3) and msr for other programs
    #[arg(long, value_name = "FORMAT", default_value = "tenuto")]
    #[arg(value_parser = ["tenuto", "fio", "msr"])]
    to: String,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

pub(super) fn format_named(text: &str) -> std::result::Result<Format, String> {
    let found = Format::ALL.into_iter().find(|format| format.name() == text);
    found.ok_or_else(|| {
        let all = Format::ALL.map(Format::name).join(", ");
        format!("known are {all}")
    })
}

pub fn run(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Info(from) => info(context, &from),
        Command::Convert(command) => convert(context, &command),
        Command::Analyze(command) => trace_analyze::run(context, &command),
        Command::Record(command) => trace_record::run(context, &command),
        Command::Replay(command) => trace_replay::run(context, &command),
        Command::Agent => trace_agent::run(context),
        Command::Synth(command) => trace_synth::run(context, &command),
    }
}

/// A file that is to become a trace is not there yet, or may be replaced.
pub(super) fn must_be_free(path: &Path, force: bool) -> Result<()> {
    if force || path == Path::new("-") || !path.exists() {
        return Ok(());
    }
    let place = path.display().to_string();
    let message = format!("{place}: it is there already; give --force to replace it");
    Err(Error::new(Kind::Refused, message).about(place))
}

/// A trace that could not be written.
pub(super) fn unwritten(path: &Path, error: &io::Error) -> Error {
    let right = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there, or name a file elsewhere"
        }
        _ => "name a file that can be written",
    };
    failed(path, format_args!("{}; {right}", cause(error)))
}

pub(super) fn open(from: &From) -> Result<Reader<Box<dyn BufRead>>> {
    inputs::trace(&from.trace, from.format)
}

/// Every item of a trace.
pub(super) fn each(
    from: &From,
    reader: &mut Reader<Box<dyn BufRead>>,
    mut take: impl FnMut(&Reader<Box<dyn BufRead>>, &Item) -> Result<()>,
) -> Result<Summary> {
    let mut summary = Summary::default();
    while let Some(item) = reader
        .next_item()
        .map_err(|error| failed(&from.trace, cause(&error)))?
    {
        summary.add(&item);
        take(reader, &item)?;
    }
    Ok(summary)
}

fn info(context: &Context, from: &From) -> Result<()> {
    let mut reader = open(from)?;
    let summary = each(from, &mut reader, |_, _| Ok(()))?;
    let document = document(&reader, &summary);
    context
        .output()
        .document(&document, || text(&reader, &summary))
}

fn document(reader: &Reader<Box<dyn BufRead>>, summary: &Summary) -> Value {
    let count = |op: Op| {
        let count = summary.of(op);
        let bytes = count.sectors.saturating_mul(SECTOR_BYTES);
        json!({ "requests": count.requests, "bytes": bytes })
    };
    let disks = reader.disks().all().iter().zip(&summary.disks);
    let disks: Vec<Value> = disks
        .map(|(name, disk)| {
            json!({
                "name": name,
                "requests": disk.requests,
                "end_bytes": disk.end.saturating_mul(SECTOR_BYTES),
            })
        })
        .collect();
    json!({
        "format": reader.format().name(),
        "requests": summary.requests(),
        "seconds": summary.last_ns as f64 / 1e9,
        "reads": count(Op::Read),
        "writes": count(Op::Write),
        "discards": count(Op::Discard),
        "flushes": summary.of(Op::Flush).requests,
        "with_path": summary.with_path,
        "lost": summary.lost,
        "disks": disks,
        "not_understood": complaints(reader.complaints()),
    })
}

pub(super) fn complaints(found: &Complaints) -> Value {
    let kept = found.kept.iter();
    let kept: Vec<Value> = kept
        .map(|(place, why)| json!({ "place": place, "why": why }))
        .collect();
    json!({
        "count": found.bad,
        "first": kept,
        "backwards": found.backwards,
        "cut": found.cut,
    })
}

fn text(reader: &Reader<Box<dyn BufRead>>, summary: &Summary) -> String {
    let seconds = summary.last_ns as f64 / 1e9;
    let mut rows = vec![
        ("format", reader.format().name().to_owned()),
        ("requests", summary.requests().to_string()),
        ("time", humantime(seconds)),
    ];
    for (name, op) in [
        ("reads", Op::Read),
        ("writes", Op::Write),
        ("discards", Op::Discard),
    ] {
        let count = summary.of(op);
        let bytes = human_bytes(count.sectors.saturating_mul(SECTOR_BYTES));
        rows.push((name, format!("{}, {bytes}", count.requests)));
    }
    rows.push(("flushes", summary.of(Op::Flush).requests.to_string()));
    if summary.with_path > 0 {
        rows.push(("with a path", summary.with_path.to_string()));
    }
    rows.push(("lost", summary.lost.to_string()));
    let disks = reader.disks().all().iter().zip(&summary.disks);
    let disks: Vec<String> = disks
        .map(|(name, disk)| {
            let end = human_bytes(disk.end.saturating_mul(SECTOR_BYTES));
            format!("{name} ({} requests, at least {end})", disk.requests)
        })
        .collect();
    rows.push(("disks", disks.len().to_string()));
    for disk in disks.iter().take(DISKS_SHOWN) {
        rows.push(("", disk.clone()));
    }
    if disks.len() > DISKS_SHOWN {
        rows.push(("", format!("and {} more", disks.len() - DISKS_SHOWN)));
    }
    let found = reader.complaints();
    rows.push(("not understood", found.bad.to_string()));
    let place = match reader.format() {
        Format::Native => "frame",
        _ => "line",
    };
    for (number, why) in &found.kept {
        rows.push(("", format!("{place} {number}: {why}")));
    }
    if found.backwards > 0 {
        rows.push(("back in time", found.backwards.to_string()));
    }
    if found.cut {
        rows.push(("cut", "the file ends in the middle".to_owned()));
    }
    output::fields(&rows)
}

/// More are counted only.
const DISKS_SHOWN: usize = 10;

fn humantime(seconds: f64) -> String {
    if seconds < 120.0 {
        return format!("{seconds:.3} s");
    }
    let whole = std::time::Duration::from_secs(seconds as u64);
    humantime::format_duration(whole).to_string()
}

/// One of the formats that are written.
enum Sink<W: Write> {
    Native(Box<Writer<W>>),
    Text { output: W, msr: bool, known: usize },
}

impl<W: Write> Sink<W> {
    fn new(mut output: W, to: &str) -> io::Result<Sink<W>> {
        Ok(match to {
            "tenuto" => Sink::Native(Box::new(Writer::new(output)?)),
            "fio" => {
                output.write_all(b"fio version 3 iolog\n")?;
                Sink::Text {
                    output,
                    msr: false,
                    known: 0,
                }
            }
            _ => Sink::Text {
                output,
                msr: true,
                known: 0,
            },
        })
    }

    fn take(&mut self, reader: &Reader<Box<dyn BufRead>>, item: &Item) -> io::Result<()> {
        let record = match (item, &mut *self) {
            (Item::Record(record), _) => record,
            (Item::Lost(lost), Sink::Native(writer)) => return writer.lost(*lost),
            // The formats of others have no word for it; it was counted.
            (Item::Lost(_), Sink::Text { .. }) => return Ok(()),
        };
        let disk = reader.disks().name(record.disk);
        match self {
            Sink::Native(writer) => {
                let path = record.path.map(|path| reader.paths().name(path));
                writer.record(record, disk, path)
            }
            Sink::Text {
                output, msr: true, ..
            } => as_msr(output, record, disk),
            Sink::Text { output, known, .. } => {
                // A file is named before it is used.
                let all = reader.disks().all();
                for name in &all[*known..] {
                    let name = name.replace(char::is_whitespace, "_");
                    writeln!(output, "0 {name} add\n0 {name} open")?;
                }
                *known = all.len();
                as_fio(output, record, disk)
            }
        }
    }

    fn finish(self) -> io::Result<W> {
        match self {
            Sink::Native(writer) => writer.finish(),
            Sink::Text { mut output, .. } => {
                output.flush()?;
                Ok(output)
            }
        }
    }
}

fn as_fio(output: &mut impl Write, record: &Record, disk: &str) -> io::Result<()> {
    let action = match record.op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Discard => "trim",
        Op::Flush => "sync",
    };
    let (offset, bytes) = place(record);
    let disk = disk.replace(char::is_whitespace, "_");
    let micros = record.time_ns / 1000;
    writeln!(output, "{micros} {disk} {action} {offset} {bytes}")
}

/// It knows reads and writes only.
fn as_msr(output: &mut impl Write, record: &Record, disk: &str) -> io::Result<()> {
    let op = match record.op {
        Op::Read => "Read",
        Op::Write => "Write",
        Op::Discard | Op::Flush => return Ok(()),
    };
    let (host, number) = match disk.rsplit_once(',') {
        Some((host, number)) if number.parse::<u64>().is_ok() => (host.to_owned(), number),
        _ => (disk.replace(',', "_"), "0"),
    };
    let (offset, bytes) = place(record);
    let ticks = record.time_ns / 100;
    writeln!(output, "{ticks},{host},{number},{op},{offset},{bytes},0")
}

fn place(record: &Record) -> (u64, u64) {
    let offset = record.sector.saturating_mul(SECTOR_BYTES);
    (offset, u64::from(record.sectors) * SECTOR_BYTES)
}

fn convert(context: &Context, command: &Convert) -> Result<()> {
    let path = &command.output;
    must_be_free(path, command.force)?;
    let mut reader = open(&command.from)?;
    let wrong = |error: io::Error| unwritten(path, &error);
    if is_pipe(path) {
        let output = BufWriter::new(io::stdout().lock());
        let written = write(command, &mut reader, output);
        return match written {
            Err(error) if error.message.contains("roken pipe") => Ok(()),
            other => other.map(|_| ()),
        };
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let output = File::create(&part).map_err(wrong)?;
    let written = write(
        command,
        &mut reader,
        BufWriter::with_capacity(1 << 20, output),
    )
    .and_then(|(summary, output)| {
        let file = output
            .into_inner()
            .map_err(|error| wrong(error.into_error()))?;
        file.sync_all().map_err(wrong)?;
        std::fs::rename(&part, path).map_err(wrong)?;
        Ok(summary)
    })
    .inspect_err(|_| {
        // What is left of it helps nobody.
        let _ = std::fs::remove_file(&part);
    })?;
    let document = document(&reader, &written);
    context.output().confirmation(&document, || {
        let bad = reader.complaints().bad;
        let lines = match bad {
            0 => String::new(),
            bad => format!("; {bad} lines were not understood, `trace info` names the first"),
        };
        let requests = written.requests();
        format!("{}: {requests} requests{lines}\n", path.display())
    })
}

fn write<W: Write>(
    command: &Convert,
    reader: &mut Reader<Box<dyn BufRead>>,
    output: W,
) -> Result<(Summary, W)> {
    let wrong = |error: io::Error| unwritten(&command.output, &error);
    let mut sink = Sink::new(output, &command.to).map_err(wrong)?;
    let summary = each(&command.from, reader, |reader, item| {
        sink.take(reader, item).map_err(wrong)
    })?;
    Ok((summary, sink.finish().map_err(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_with_what_helps() {
        let error = unwritten(Path::new("a.trace"), &io::ErrorKind::StorageFull.into());
        assert!(
            error
                .message
                .ends_with("; make room there, or name a file elsewhere")
        );
    }
}
