//! `tenuto trace agent`: this machine's part of a replay that another machine orders.
//!
//! Owns the words that both ends speak over a pair of pipes, one line of JSON each, and the part of
//! the trace, which lies in a file without a name until the order to go. Always true: volumes are
//! there before a byte of the trace is sent; nothing leaves before the order to go; when the other
//! end goes away the replay ends. Deliberately absent: who may order it, which is the business of
//! what brings the pipes here (`ssh`).
//!
//! ```text
//! them: plan                   trace, trace, whole             go
//! us:         connected (or why not)              loaded          begun  ended (or why not)
//! ```

use super::trace_live::{self, Ended, Options, Play};
use host::cli::Context;
use host::error::{Error, Result, cause};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;
use workload::trace::{Format, Item, Reader};

/// Words that another version does not know would be misunderstood.
pub(super) const WORDS: u64 = 1;
/// No line of theirs is longer; the longest tells of every volume of a machine, a kilobyte each.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Of what is no word so much is shown.
const SHOWN_CHARS_MAX: usize = 80;
/// More of the trace is not sent at once.
pub(super) const CHUNK_BYTES_MAX: u64 = 1 << 20;

pub(super) fn say(output: &mut impl Write, word: &Value) -> io::Result<()> {
    writeln!(output, "{word}")?;
    output.flush()
}

/// The next line; `None` at the end.
pub(super) fn hear(input: &mut impl BufRead) -> io::Result<Option<Value>> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => match serde_json::from_slice(&line) {
            Ok(word) => Ok(Some(word)),
            Err(_) => Err(io::Error::other(format!(
                "{:?} is no word of a replay",
                shown(&line)
            ))),
        },
        Some(_) => Err(io::Error::other("a line without an end")),
    }
}

/// The beginning of a line that somebody else wrote.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().take(SHOWN_CHARS_MAX).collect()
}

/// What the other machine wants.
fn plan(word: &Value) -> Result<(Vec<String>, Options)> {
    let wrong = |what: &str| Error::failed(format!("trace agent: {what}"));
    if word["words"] != WORDS {
        let theirs = &word["words"];
        return Err(wrong(&format!(
            "the other end speaks version {theirs}, this one {WORDS}; use the same tenuto at both"
        )));
    }
    let names = word["volumes"].as_array().map(|names| {
        let names = names.iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<Vec<String>>>()
    });
    let names = names.flatten().filter(|names| !names.is_empty());
    let speed = word["speed"].as_f64().filter(|speed| *speed > 0.0);
    let (Some(names), Some(speed)) = (names, speed) else {
        return Err(wrong("a plan without volumes or speed"));
    };
    let options = Options {
        overwrite: word["overwrite"] == true,
        by_rings: word["client"] == "vhost-user",
        speed,
    };
    Ok((names, options))
}

/// What became of the pipe to the other end.
fn broken(error: io::Error) -> Error {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the other end went away".to_owned(),
        _ => cause(&error),
    };
    Error::failed(format!("trace agent: {why}"))
}

/// The next line, where one has to come.
fn next(input: &mut impl BufRead) -> Result<Value> {
    let word = hear(input).map_err(broken)?;
    word.ok_or_else(|| broken(io::ErrorKind::UnexpectedEof.into()))
}

/// The part of the trace, as a file that nobody else sees.
fn load(input: &mut impl BufRead) -> Result<File> {
    let full = |error: io::Error| {
        let (place, why) = (std::env::temp_dir(), cause(&error));
        Error::failed(format!(
            "trace agent: {}: {why}; this machine's part of the trace lies there, TMPDIR names \
             another place",
            place.display()
        ))
    };
    let mut spool = tempfile::tempfile().map_err(full)?;
    let mut piece = Vec::new();
    loop {
        let word = next(input)?;
        if word["whole"] == true {
            break;
        }
        let bytes = word["trace"].as_u64();
        let bytes = bytes.filter(|bytes| *bytes <= CHUNK_BYTES_MAX);
        let strange = || broken(io::Error::other("neither trace nor its end"));
        piece.resize(bytes.ok_or_else(strange)? as usize, 0);
        input.read_exact(&mut piece).map_err(broken)?;
        spool.write_all(&piece).map_err(full)?;
    }
    spool.rewind().map_err(full)?;
    Ok(spool)
}

/// Sends what the file holds, each request to the volume whose number its disk is named by.
fn send(play: &mut Play, part: File, gone: &Receiver<()>) -> Result<()> {
    let wrong = |why: String| Error::failed(format!("trace agent: its part of the trace: {why}"));
    let input = BufReader::with_capacity(1 << 20, part);
    let reader = Reader::open(input, Some(Format::Native));
    let mut reader = reader.map_err(|error| wrong(error.to_string()))?;
    let item = |reader: &mut Reader<_>| reader.next_item().map_err(|error| wrong(cause(&error)));
    while let Some(item) = item(&mut reader)? {
        let Item::Record(mut record) = item else {
            continue;
        };
        // The reader counts from the first record of this part, the plan from that of all.
        record.time_ns = record
            .time_ns
            .saturating_add(reader.first_ns().unwrap_or(0));
        let name = reader.disks().name(record.disk);
        let number = name.parse::<usize>().ok();
        let number = number.filter(|number| *number < play.volumes());
        let number = number.ok_or_else(|| wrong(format!("disk {name} has no volume")))?;
        play.send(number, &record, |due| {
            let wait = due.saturating_duration_since(Instant::now());
            match gone.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => Ok(()),
                _ => Err(Error::failed(
                    "trace agent: the machine that ordered the replay is gone",
                )),
            }
        })?;
    }
    match reader.complaints().cut || reader.complaints().bad > 0 {
        true => Err(wrong("it was damaged on its way".into())),
        false => Ok(()),
    }
}

fn play(
    context: &Context,
    mut input: impl BufRead + Send + 'static,
    output: &mut impl Write,
) -> Result<Ended> {
    let (names, options) = plan(&next(&mut input)?)?;
    let mut play = trace_live::connect(context, &names, &options)?;
    say(output, &json!({ "connected": names.len() })).map_err(broken)?;
    let part = load(&mut input)?;
    say(output, &json!({ "loaded": true })).map_err(broken)?;
    if next(&mut input)?["go"] != true {
        return Err(broken(io::Error::other("no order to go")));
    }
    play.begin();
    say(output, &json!({ "begun": true })).map_err(broken)?;
    let (end, gone) = channel();
    // It ends with the process, or with the other end's side of the pipe, which they keep open as
    // long as they wait for us. They say nothing any more, so whatever comes is the end.
    std::thread::spawn(move || {
        let _ = input.read(&mut [0]);
        drop(end);
    });
    send(&mut play, part, &gone)?;
    play.settle()
}

pub fn run(context: &Context) -> Result<()> {
    let mut output = io::stdout().lock();
    let word = match play(context, BufReader::new(io::stdin()), &mut output) {
        Ok(ended) => {
            let failed = ended.judged.err().map(|error| error.to_json());
            json!({ "volumes": ended.volumes, "seconds": ended.seconds, "failed": failed })
        }
        Err(error) => error.to_json(),
    };
    say(&mut output, &word).map_err(|error| {
        let why = cause(&error);
        Error::failed(format!("trace agent: nobody hears how it ended: {why}"))
    })
}
