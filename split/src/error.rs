//! What goes wrong in a split.
//!
//! Always true: a message is one line in lower case that names the object, the cause and what would
//! be right; the kind alone says how a command ends.

use std::fmt;
use std::path::Path;

/// What sort of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was tried and did not work.
    Failed,
    /// The server of a disk has ended by itself; what it did may be done again.
    ServerEnded,
    /// Wrong arguments or rules, or a missing `--trust-image`.
    Usage,
    /// The image cannot be split without a loss.
    Refused,
    /// A form that a later version fills.
    NotInThisVersion,
}

/// A failure, ready to be printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: Kind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        let message = message.into();
        Error { kind, message }
    }

    pub fn failed(message: impl Into<String>) -> Error {
        Error::new(Kind::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Error {
        Error::new(Kind::Usage, message)
    }

    pub fn refused(message: impl Into<String>) -> Error {
        Error::new(Kind::Refused, message)
    }

    pub fn later(message: impl Into<String>) -> Error {
        Error::new(Kind::NotInThisVersion, message)
    }

    /// A file that could not be read, written, made or removed.
    pub fn io(path: &Path, error: &std::io::Error) -> Error {
        Error::failed(format!("{}: {}", path.display(), cause(error)))
    }
}

/// The reason without Rust's "(os error N)", in lower case.
pub fn cause(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_is_one_lower_case_line_with_its_file() {
        let source = std::io::Error::from_raw_os_error(libc::ENOENT);
        let error = Error::io(Path::new("/a"), &source);
        assert_eq!(error.to_string(), "/a: no such file or directory");
        assert_eq!(error.kind, Kind::Failed);
    }
}
