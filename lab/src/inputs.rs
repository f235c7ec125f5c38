//! Files that a user names: traces and tables.
//!
//! Always true: what is wrong with one is one line with its path, and says what to name instead.
//! Deliberately absent: what is in them.

use host::error::{Error, Kind, Result, cause};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use workload::trace::{Format, Reader, TraceError};

/// A trace is read in pieces of so much.
const BUFFER_BYTES: usize = 1 << 20;

/// The path of standard input and output.
pub fn is_pipe(path: &Path) -> bool {
    path == Path::new("-")
}

/// A trace, from its beginning.
pub fn trace(path: &Path, format: Option<Format>) -> Result<Reader<Box<dyn BufRead>>> {
    let input: Box<dyn BufRead> = match is_pipe(path) {
        true => Box::new(BufReader::new(io::stdin())),
        false => {
            let file = File::open(path).map_err(|error| no_trace(path, &error))?;
            Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
        }
    };
    Reader::open(input, format).map_err(|error| refused(path, &error))
}

/// A file that is not there, or cannot be read at all; `right` is what to name instead.
pub fn unreadable(path: &Path, error: &io::Error, right: &str) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        _ => Kind::Failed,
    };
    let (place, why) = (path.display().to_string(), cause(error));
    let message = format!("{place}: {why}; name {right} that exists and can be read");
    Error::new(kind, message).about(place)
}

pub fn no_trace(path: &Path, error: &io::Error) -> Error {
    unreadable(path, error, "a trace")
}

/// A file that does not begin as a trace does.
pub fn refused(path: &Path, error: &TraceError) -> Error {
    match error {
        TraceError::Io(error) => no_trace(path, error),
        TraceError::Version(_) => failed(path, format_args!("{error}; use a newer one")),
        TraceError::Unknown => {
            let all = Format::ALL.map(Format::name).join(", ");
            failed(path, format_args!("{error}; name it with --format: {all}"))
        }
    }
}

pub fn failed(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::failed(format!("{}: {why}", path.display())).about(path.display().to_string())
}
