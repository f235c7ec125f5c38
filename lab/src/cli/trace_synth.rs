//! `tenuto trace synth`: a trace of desktops, and how near it is to what was published.
//!
//! Always true: the output is there as a whole or not at all; what is printed was measured from
//! the records that were written. Deliberately absent: the generator, which is in the crate
//! `workload`.

use crate::cli::trace::{must_be_free, unwritten};
use clap::Args;
use host::cli::arguments::{millis, size};
use host::cli::progress::counter;
use host::cli::{Context, output};
use host::config::units::human_bytes;
use host::error::{Error, Result};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use workload::synth::rows::{DEVIATION_MAX, Row, Unit, rows};
use workload::synth::statistics::{Placement, Statistics};
use workload::synth::{Class, Parameters, Pattern, Synth};
use workload::trace::native::Writer;

const MILLI_NS: u64 = 1_000_000;
/// Records between two looks at the bar.
const BAR_RECORDS: u64 = 1 << 16;

#[derive(Debug, Args)]
pub struct Command {
    /// desktops: a week of an office; office, heavy, mixed: workers, all day the same; boot, login
    #[arg(value_name = "PATTERN", value_parser = pattern)]
    pattern: Pattern,
    /// Where the trace goes, in the format of this program; - for standard output
    #[arg(value_name = "OUTPUT")]
    output: PathBuf,
    /// How many; 55 where nothing is said, as in the published office
    #[arg(long, value_name = "N")]
    desktops: Option<u32>,
    /// Of the desktops of an office those in daily use, from 0 to 1
    #[arg(long, value_name = "SHARE")]
    active: Option<f64>,
    /// Another trace of the same kind for each
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Length; a week of desktops begins on a Thursday at 0:00
    #[arg(long, value_name = "H")]
    hours: Option<f64>,
    /// Begin so much later, as if all before had been
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Boots and logins come within so much time
    #[arg(long, value_name = "TIME")]
    arrivals: Option<String>,
    /// Requests, against what was published
    #[arg(long, value_name = "X")]
    intensity: Option<f64>,
    /// Size of each disk
    #[arg(long, value_name = "SIZE")]
    disk: Option<String>,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

fn pattern(text: &str) -> std::result::Result<Pattern, String> {
    let found = Pattern::ALL
        .into_iter()
        .find(|pattern| pattern.name() == text);
    found.ok_or_else(|| {
        let all = Pattern::ALL.map(Pattern::name).join(", ");
        format!("known are {all}")
    })
}

impl Command {
    fn parameters(&self) -> Result<Parameters> {
        let mut parameters = Parameters::new(self.pattern);
        parameters.seed = self.seed;
        if let Some(from) = &self.from {
            parameters.from_ns = millis("--from", from)? * MILLI_NS;
            // What is left, where no length is asked for.
            let left = parameters.duration_ns.saturating_sub(parameters.from_ns);
            parameters = parameters.with_duration(left);
        }
        if let Some(hours) = self.hours {
            let nanos = hours * 3600.0 * 1000.0 * MILLI_NS as f64;
            parameters = parameters.with_duration(nanos as u64);
        }
        if let Some(arrivals) = &self.arrivals {
            parameters.arrivals_ns = millis("--arrivals", arrivals)? * MILLI_NS;
            if self.hours.is_none() && self.from.is_none() {
                parameters = parameters.after_arrivals();
            }
        }
        if let Some(disk) = &self.disk {
            parameters.disk_bytes = size("--disk", disk)?;
        }
        parameters.desktops = self.desktops.unwrap_or(parameters.desktops);
        parameters.active = self.active.unwrap_or(parameters.active);
        parameters.intensity = self.intensity.unwrap_or(parameters.intensity);
        Ok(parameters)
    }
}

pub fn run(context: &Context, command: &Command) -> Result<()> {
    let parameters = command.parameters()?;
    let synth = Synth::new(&parameters).map_err(|error| Error::usage(error.to_string()))?;
    let path = &command.output;
    let wrong = |error: io::Error| unwritten(path, &error);
    let template = "{prefix} [{bar:12}] {percent:>3} % {wide_msg}";
    let seconds = parameters.duration_ns / 1000 / MILLI_NS;
    let bar = counter(context.common.quiet, seconds, template);
    bar.set_prefix(format!("synth {}", path.display()));
    if path == Path::new("-") {
        // Standard output is the trace: what it is like is not said there.
        let written = write(synth, io::stdout().lock(), &bar);
        bar.finish_and_clear();
        return match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map(|_| ()).map_err(wrong),
        };
    }
    must_be_free(path, command.force)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let written = File::create(&part)
        .and_then(|file| write(synth, file, &bar))
        .and_then(|written| {
            written.file.sync_all()?;
            std::fs::rename(&part, path)?;
            Ok(written)
        })
        .inspect_err(|_| {
            // What is left of it helps nobody.
            let _ = std::fs::remove_file(&part);
        })
        .map_err(wrong)?;
    bar.finish_and_clear();
    let rows = rows(&parameters, &written.statistics, written.synth.disks());
    let document = document(&parameters, &written, &rows);
    context
        .output()
        .confirmation(&document, || text(path, &written, &rows))
}

/// What was made.
struct Written<W> {
    synth: Synth,
    statistics: Statistics,
    bytes: u64,
    file: W,
}

fn write<W: Write>(mut synth: Synth, output: W, bar: &ProgressBar) -> io::Result<Written<W>> {
    let mut statistics = synth.statistics();
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, output))?;
    let from_ns = synth.parameters().from_ns;
    let mut records = 0;
    while let Some(record) = synth.next() {
        statistics.add(&record);
        let path = record.path.map(|path| synth.paths().name(path));
        writer.record(&record, synth.disks().name(record.disk), path)?;
        records += 1;
        if records % BAR_RECORDS == 0 {
            bar.set_position((record.time_ns - from_ns) / 1000 / MILLI_NS);
            bar.set_message(format!("{records} requests"));
        }
    }
    statistics.finish();
    let bytes = writer.bytes();
    let output = writer.finish()?;
    let file = output
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?;
    Ok(Written {
        synth,
        statistics,
        bytes,
        file,
    })
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Share => "share",
        Unit::Requests => "requests",
        Unit::RequestsPerSecond => "requests/s",
        Unit::Bytes => "bytes",
    }
}

fn document<W>(parameters: &Parameters, written: &Written<W>, rows: &[Row]) -> Value {
    let totals = &written.statistics.totals;
    let classes: Vec<Value> = Class::ALL
        .into_iter()
        .map(|class| {
            let ranges = written.synth.ranges(class).iter();
            let ranges: Vec<Value> = ranges
                .map(|range| json!([range.start * 512, range.end * 512]))
                .collect();
            json!({ "name": class.name(), "bytes": ranges })
        })
        .collect();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.name,
                "unit": unit(row.unit),
                "published": [row.low, row.high],
                "measured": row.measured,
                "deviation": row.deviation(),
                "near": row.is_near(),
            })
        })
        .collect();
    json!({
        "pattern": parameters.pattern.name(),
        "seed": parameters.seed,
        "desktops": parameters.desktops,
        "intensity": parameters.intensity,
        "from_seconds": parameters.from_ns as f64 / 1e9,
        "seconds": parameters.duration_ns as f64 / 1e9,
        "disk_bytes": parameters.disk_bytes,
        "base_bytes": written.synth.base_bytes(),
        "classes": classes,
        "reads": { "requests": totals.reads, "bytes": totals.read_bytes },
        "writes": { "requests": totals.writes, "bytes": totals.write_bytes },
        "flushes": written.statistics.flushes,
        "measures": measures(&written.statistics),
        "rows": rows,
    })
}

/// What was counted, whether or not something was published on it.
fn measures(statistics: &Statistics) -> Value {
    let diverged: u64 = statistics.desktops.iter().map(|one| one.diverged).sum();
    let seconds = |period: &workload::synth::Period| period.from_ns / 1000 / MILLI_NS;
    let peaks: Vec<Value> = statistics
        .peaks
        .iter()
        .zip(workload::synth::peaks())
        .filter(|(peak, _)| peak.totals.requests() > 0)
        .map(|(peak, period)| {
            json!({
                "name": period.name,
                "from_seconds": seconds(&period),
                "seconds": period.duration_ns / 1000 / MILLI_NS,
                "requests": peak.totals.requests(),
                "requests_per_second_max": peak.requests_per_second_max,
                "passing_per_second_max": peak.passing_per_second_max,
                "writes": peak.totals.writes,
                "write_bytes": peak.totals.write_bytes,
                "read_bytes": peak.totals.read_bytes,
                "reads_seen_by_desktop": peak.seen_by_desktop,
                "reads_seen_by_cluster": peak.seen_by_cluster,
                "heavy_desktops": peak.heavy_desktops,
            })
        })
        .collect();
    let placement = |of: [Placement; 2]| -> Vec<Value> {
        of.iter()
            .map(|of| {
                json!({
                    "requests": of.requests,
                    "sequential": of.sequential,
                    "stretches": of.stretches,
                })
            })
            .collect()
    };
    let [reads, writes] = statistics.placement;
    json!({
        // Small ones, then large ones.
        "placement": { "reads": placement(reads), "writes": placement(writes) },
        "rewritten_bytes": statistics.rewritten,
        "page_file_bytes": statistics.page_file_bytes,
        "diverged_bytes": diverged * 4096,
        "locality": statistics.locality(),
        "peaks": peaks,
    })
}

fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Share => format!("{:.1} %", value * 100.0),
        Unit::Requests => format!("{value:.0}"),
        Unit::RequestsPerSecond => format!("{value:.1}/s"),
        Unit::Bytes => human_bytes(value as u64),
    }
}

fn text<W>(path: &Path, written: &Written<W>, rows: &[Row]) -> String {
    let totals = &written.statistics.totals;
    let mut text = format!(
        "{}: {} requests, {}\nreads {}, {}; writes {}, {}; flushes {}\n\n",
        path.display(),
        totals.requests() + written.statistics.flushes,
        human_bytes(written.bytes),
        totals.reads,
        human_bytes(totals.read_bytes),
        totals.writes,
        human_bytes(totals.write_bytes),
        written.statistics.flushes,
    );
    if rows.is_empty() {
        text.push_str("nothing was published on so short a part of a week\n");
        return text;
    }
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    let head = ["WHAT", "PUBLISHED", "MEASURED", "DEVIATION"];
    text.push_str(&output::table(&head, &lines, &[1, 2, 3]));
    let far = rows.iter().filter(|row| !row.is_near()).count();
    if far > 0 {
        let limit = DEVIATION_MAX * 100.0;
        text.push_str(&format!("\nmore than {limit:.0} % off: {far}\n"));
    }
    text
}

fn line(row: &Row) -> Vec<String> {
    let published = match row.low == row.high {
        true => figure(row.unit, row.low),
        false => format!(
            "{} to {}",
            figure(row.unit, row.low),
            figure(row.unit, row.high)
        ),
    };
    let mark = if row.is_near() { "" } else { " !" };
    vec![
        row.name.clone(),
        published,
        figure(row.unit, row.measured),
        format!("{:+.1} %{mark}", row.deviation() * 100.0),
    ]
}
