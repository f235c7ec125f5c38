//! `tenuto trace record`: what guests ask of live volumes, as a trace.
//!
//! Owns the file and when it ends: at the time that was asked for, at a signal, when it is full,
//! or with the last of its volumes. Always true: a file that is there is replaced only by
//! `--force`, and only when the daemon has begun to record; what came is in the file a second later
//! in whole frames, so that it can be read at any moment and after any end; all that guests had
//! asked for when the end was asked for is in it; it is never larger than `--limit`. A trace
//! without its last item was cut: the daemon went away, or this program was killed. Deliberately
//! absent: how requests are noted, which is in `shard::record`.

use super::trace::{must_be_free, unwritten};
use clap::Args;
use host::admin::client::{Bytes, Client, Next, Stream};
use host::cli::Context;
use host::cli::arguments::{millis, size};
use host::cli::progress::counter;
use host::config::keys::check_name;
use host::config::units::human_bytes;
use host::error::{Error, Kind, Result, cause};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use workload::trace::native::{NAME_BYTES_MAX, Reader, Writer};
use workload::trace::summary::Summary;
use workload::trace::{Complaints, Item, Names, Op, SECTOR_BYTES, TraceError};

/// What one item with a new name and the end behind it take at most.
const ITEM_BYTES_MAX: u64 = NAME_BYTES_MAX as u64 + 96;
const LIMIT_BYTES_MIN: u64 = 64 << 10;
/// What is written is in the file after so long; the stream has something to read as often.
const FLUSH: Duration = Duration::from_secs(1);
/// How long a daemon may take to hear that a recording shall end.
const ASK_MAX: Duration = Duration::from_secs(10);
/// How long the rest of a recording may take to come that was asked to end.
const REST_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub struct Command {
    /// Name of the volume, or of several; each becomes a disk of the trace
    #[arg(value_name = "NAME", required = true)]
    name: Vec<String>,
    /// Where the trace goes, in the format of this program; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End after this time; without it at Ctrl-C
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,
    /// The same in seconds
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    seconds: Option<u64>,
    /// End when the file is full
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    limit: String,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Duration,
    Signal,
    Full,
    /// All volumes were removed.
    Removed,
    /// Somebody else has ended it at the daemon.
    Ended,
    /// The daemon is not there any more, or does not answer.
    Gone,
}

impl Why {
    const fn name(self) -> &'static str {
        match self {
            Why::Duration => "duration",
            Why::Signal => "signal",
            Why::Full => "full",
            Why::Removed => "removed",
            Why::Ended => "ended",
            Why::Gone => "daemon_gone",
        }
    }
}

/// The stream of a daemon, as something that is read: it ends when it was asked to, and all that
/// was recorded by then has come.
struct Live<'a> {
    client: &'a Client,
    stream: Stream,
    interrupt: Signal,
    terminate: Signal,
    /// When it is to end, or what is left of it has to be there.
    deadline: Option<Instant>,
    asked: Option<Why>,
    /// What came and was not read yet.
    chunk: Bytes,
}

impl<'a> Live<'a> {
    fn begin(client: &'a Client, path: &str, lasts: Option<Duration>) -> Result<Live<'a>> {
        let stream = client.follow(path)?;
        let listen = |kind| {
            let _inside = stream.enter();
            signal(kind).map_err(|error| Error::failed(format!("signals: {}", cause(&error))))
        };
        Ok(Live {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            client,
            stream,
            deadline: lasts.and_then(|lasts| Instant::now().checked_add(lasts)),
            asked: None,
            chunk: Bytes::new(),
        })
    }

    /// Bytes, or none when the stream is over.
    fn fill(&mut self) -> io::Result<()> {
        while self.chunk.is_empty() {
            let (interrupt, terminate) = (&mut self.interrupt, &mut self.terminate);
            let deadline = self.deadline;
            let over = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let other = async {
                tokio::select! {
                    _ = interrupt.recv() => Why::Signal,
                    _ = terminate.recv() => Why::Signal,
                    () = over => Why::Duration,
                }
            };
            match self.stream.next(other) {
                Next::Bytes(bytes) => self.chunk = bytes,
                Next::End => return Ok(()),
                // The rest does not come, or is not wanted any more.
                Next::Other(_) if self.asked.is_some() => return Ok(()),
                Next::Other(why) => {
                    self.asked = Some(why);
                    self.deadline = Instant::now().checked_add(REST_MAX);
                    let place = self.stream.location.clone().unwrap_or_default();
                    // A daemon that cannot be asked any more ends the stream by itself.
                    let _ = self.client.delete(&place, ASK_MAX);
                }
            }
        }
        Ok(())
    }
}

impl Read for Live<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.fill()?;
        let count = bytes.len().min(self.chunk.len());
        bytes[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}

/// A file, and how large it has become.
struct Counted<W> {
    output: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// What came of it.
struct Recorded {
    why: Why,
    summary: Summary,
    disks: Names,
    bytes: u64,
    seconds: f64,
}

impl Recorded {
    fn text(&self, path: &Path, removed: &[String]) -> String {
        let (requests, lost) = (self.summary.requests(), self.summary.lost);
        let (bytes, seconds) = (human_bytes(self.bytes), self.seconds);
        let mut text = format!(
            "{}: {requests} requests in {seconds:.1} s, {bytes}; {lost} lost\n",
            path.display()
        );
        match self.why {
            Why::Full => text += "the file is full: it ends there; --limit gives it more room\n",
            Why::Removed => text += "it ends there: no volume of it is left\n",
            Why::Ended => text += "it was ended at the daemon\n",
            _ if removed.is_empty() => {}
            _ => text += &format!("{}: removed while it was recorded\n", removed.join(", ")),
        }
        text
    }

    fn document(&self, path: &Path, volumes: &[String], removed: &[String]) -> Value {
        let count = |op: Op| {
            let count = self.summary.of(op);
            let bytes = count.sectors.saturating_mul(SECTOR_BYTES);
            json!({ "requests": count.requests, "bytes": bytes })
        };
        let of = |name: &String| {
            let disks = self.disks.all().iter().zip(&self.summary.disks);
            let mut known = disks.filter(|(disk, _)| *disk == name);
            let requests = known.next().map_or(0, |(_, disk)| disk.requests);
            json!({ "name": name, "requests": requests, "removed": removed.contains(name) })
        };
        json!({
            "output": path.display().to_string(),
            "ended": self.why.name(),
            "seconds": self.seconds,
            "bytes": self.bytes,
            "requests": self.summary.requests(),
            "lost": self.summary.lost,
            "reads": count(Op::Read),
            "writes": count(Op::Write),
            "discards": count(Op::Discard),
            "flushes": self.summary.of(Op::Flush).requests,
            "volumes": volumes.iter().map(of).collect::<Vec<Value>>(),
        })
    }
}

fn is_pipe(path: &Path) -> bool {
    path == Path::new("-")
}

fn lasts(command: &Command) -> Result<Option<Duration>> {
    let lasts = match (&command.duration, command.seconds) {
        (Some(text), _) => Duration::from_millis(millis("--duration", text)?),
        (None, Some(seconds)) => Duration::from_secs(seconds),
        (None, None) => return Ok(None),
    };
    match lasts.is_zero() {
        true => Err(Error::usage(
            "trace record: a recording takes some time; give more than 0",
        )),
        false => Ok(Some(lasts)),
    }
}

pub fn run(context: &Context, command: &Command) -> Result<()> {
    let path = &command.output;
    let lasts = lasts(command)?;
    let limit_bytes = size("--limit", &command.limit)?;
    if limit_bytes < LIMIT_BYTES_MIN {
        let least = human_bytes(LIMIT_BYTES_MIN);
        let message = format!("--limit {}: give at least {least}", command.limit);
        return Err(Error::usage(message));
    }
    let mut seen = BTreeSet::new();
    let volumes = command.name.iter();
    let volumes: Vec<String> = volumes.filter(|name| seen.insert(*name)).cloned().collect();
    for name in &volumes {
        check_name(name).map_err(|_| Error::no_volume(name))?;
    }
    must_be_free(path, command.force)?;
    let client = context.client()?;
    let query = format!("/v1/trace?volume={}", volumes.join("&volume="));
    let live = Live::begin(&client, &query, lasts)?;
    let bar = bar(context, path, lasts);
    let recorded = match is_pipe(path) {
        true => record(live, io::stdout().lock(), limit_bytes, &bar),
        false => create(path, command.force).and_then(|file| record(live, file, limit_bytes, &bar)),
    };
    bar.finish_and_clear();
    let mut recorded = match recorded {
        // Nobody reads it any more.
        Err(error) if is_pipe(path) && error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
        recorded => recorded.map_err(|error| unwritten(path, &error))?,
    };
    if recorded.why == Why::Gone {
        let requests = recorded.summary.requests();
        let message = format!(
            "{}: the daemon has gone or does not answer; the {requests} requests until then are \
             in the file",
            path.display()
        );
        return Err(Error::new(Kind::Unreachable, message).about(path.display().to_string()));
    }
    let removed = removed(&client, &volumes);
    if recorded.why == Why::Ended && removed.len() == volumes.len() {
        recorded.why = Why::Removed;
    }
    let document = recorded.document(path, &volumes, &removed);
    let text = || recorded.text(path, &removed);
    match is_pipe(path) {
        // Standard output is the trace.
        true => {
            eprint!("{}", text());
            Ok(())
        }
        false => context.output().confirmation(&document, text),
    }
}

fn bar(context: &Context, path: &Path, lasts: Option<Duration>) -> ProgressBar {
    let template = match lasts {
        Some(_) => "{prefix} [{bar:12}] {percent:>3} % {wide_msg}",
        None => "{prefix} {elapsed} {wide_msg}",
    };
    let length = lasts.map_or(1, |lasts| lasts.as_secs().max(1));
    let bar = counter(context.common.quiet, length, template);
    bar.set_prefix(format!("record {}", path.display()));
    bar
}

fn create(path: &Path, force: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    options.open(path)
}

/// Those of the volumes that are not there any more.
fn removed(client: &Client, volumes: &[String]) -> Vec<String> {
    // A daemon that has just gone says nothing of them.
    let all = client.get("/v1/volumes").unwrap_or_default();
    let Some(all) = all["volumes"].as_array() else {
        return Vec::new();
    };
    let gone = |name: &&String| all.iter().all(|volume| volume["name"] != **name);
    volumes.iter().filter(gone).cloned().collect()
}

/// Writes what comes until it is over.
fn record(
    live: Live<'_>,
    output: impl Write,
    limit_bytes: u64,
    bar: &ProgressBar,
) -> io::Result<Recorded> {
    let begun = Instant::now();
    let mut reader = Reader::open(live).map_err(wrong)?;
    let counted = Counted { output, bytes: 0 };
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, counted))?;
    // From the beginning on it is a trace, if one of nothing.
    writer.flush()?;
    let (mut disks, mut paths) = (Names::default(), Names::default());
    let mut complaints = Complaints::default();
    let mut summary = Summary::default();
    let mut flushed = Instant::now();
    let full = loop {
        let item = reader.next_item((&mut disks, &mut paths), &mut complaints)?;
        let Some(item) = item else { break false };
        if writer.bytes() + ITEM_BYTES_MAX > limit_bytes {
            break true;
        }
        match item {
            Item::Record(record) => writer.record(&record, disks.name(record.disk), None)?,
            // There is a loss of nothing each second: the time to look up.
            Item::Lost(0) => {
                if flushed.elapsed() >= FLUSH / 2 {
                    writer.flush()?;
                    flushed = Instant::now();
                    bar.set_position(begun.elapsed().as_secs());
                    let (requests, lost) = (summary.requests(), summary.lost);
                    let bytes = human_bytes(writer.bytes());
                    bar.set_message(format!("{requests} requests, {bytes}, {lost} lost"));
                }
            }
            Item::Lost(lost) => writer.lost(lost)?,
        }
        summary.add(&item);
    };
    let asked = reader.input().asked;
    let why = match asked {
        _ if full => Why::Full,
        _ if complaints != Complaints::default() => Why::Gone,
        Some(why) => why,
        None => Why::Ended,
    };
    let seconds = begun.elapsed().as_secs_f64();
    let counted = match why {
        Why::Gone => writer.give_up()?,
        _ => writer.finish()?,
    };
    let bytes = counted.get_ref().bytes;
    Ok(Recorded {
        why,
        summary,
        disks,
        bytes,
        seconds,
    })
}

fn wrong(error: TraceError) -> io::Error {
    match error {
        TraceError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}
