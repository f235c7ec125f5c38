//! The one error of the host side: a kind, the object it is about, one line of text.
//!
//! Owns the mapping of kinds to exit codes, HTTP statuses and JSON names. Always true: every kind
//! has all three, and a message is one lower-case line that names the cause and what would be
//! right. Deliberately absent: backtraces and nested sources; what a cause had to say is already
//! in the line, because the line is all that an administrator sees.

use std::fmt;

/// What sort of failure it is. Scripts tell failures apart by this and by nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was tried and did not work.
    Failed,
    /// The named volume, image, device or host is not there.
    NotFound,
    /// Wrong arguments.
    Usage,
    /// Wrong configuration.
    Config,
    /// A form of the public interface that a later version fills.
    NotInThisVersion,
    /// No daemon answers on the socket.
    Unreachable,
    /// Would lose data, or disturb somebody who is connected.
    Refused,
    /// There is one of that name already.
    Exists,
    /// Bytes that should be there are not, or are wrong.
    Damaged,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Failed,
        Kind::NotFound,
        Kind::Usage,
        Kind::Config,
        Kind::NotInThisVersion,
        Kind::Unreachable,
        Kind::Refused,
        Kind::Exists,
        Kind::Damaged,
    ];

    /// The exit code of a command that ends with this kind.
    pub const fn exit_code(self) -> u8 {
        match self {
            Kind::Failed | Kind::NotFound => 1,
            Kind::Usage | Kind::Config | Kind::NotInThisVersion | Kind::Exists => 2,
            Kind::Unreachable => 3,
            Kind::Refused => 4,
            Kind::Damaged => 5,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Kind::Failed => "failed",
            Kind::NotFound => "not_found",
            Kind::Usage => "usage",
            Kind::Config => "config",
            Kind::NotInThisVersion => "not_in_this_version",
            Kind::Unreachable => "unreachable",
            Kind::Refused => "refused",
            Kind::Exists => "exists",
            Kind::Damaged => "damaged",
        }
    }

    pub const fn http_status(self) -> u16 {
        match self {
            Kind::Failed | Kind::Damaged => 500,
            Kind::NotFound => 404,
            Kind::Usage | Kind::Config => 400,
            Kind::NotInThisVersion => 501,
            Kind::Unreachable => 503,
            Kind::Refused | Kind::Exists => 409,
        }
    }

    /// The kind of this JSON name. Names that a newer daemon may use count as plain failure.
    pub fn from_name(name: &str) -> Kind {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .unwrap_or(Kind::Failed)
    }
}

/// What went wrong, ready to be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub kind: Kind,
    /// One line, lower case, without the leading `tenuto: `.
    pub message: String,
    /// The volume, file or device it is about, for scripts.
    pub object: Option<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        let message = without_secrets(&message.into());
        // A cause may come with lines of its own (a parser's excerpt, a foreign error text).
        let message = if message.contains(['\n', '\r']) {
            message.split_whitespace().collect::<Vec<_>>().join(" ")
        } else {
            message
        };
        Error {
            kind,
            message,
            object: None,
        }
    }

    pub fn about(mut self, object: impl Into<String>) -> Error {
        self.object = Some(without_secrets(&object.into()));
        self
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

    /// `what` is a noun phrase with its verb: "snapshots are", "`volume map` is".
    pub fn later(what: impl fmt::Display) -> Error {
        Error::new(
            Kind::NotInThisVersion,
            format!("{what} not in this version"),
        )
    }

    pub fn no_volume(name: &str) -> Error {
        Error::new(
            Kind::NotFound,
            format!("volume {name}: no such volume; `tenuto volume ls` names them"),
        )
        .about(name)
    }

    /// The document a command prints with `--json`, and an HTTP reply carries.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "error": {
                "kind": self.kind.name(),
                "message": self.message,
                "object": self.object,
            }
        })
    }

    /// Reads what [`Error::to_json`] wrote.
    pub fn from_json(document: &serde_json::Value) -> Option<Error> {
        let error = document.get("error")?;
        let text = |key: &str| error.get(key).and_then(|value| value.as_str());
        Some(Error {
            kind: Kind::from_name(text("kind")?),
            message: text("message")?.to_string(),
            object: text("object").map(str::to_string),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The text without what a URL in it may carry to prove who asks: user and password before the
/// host, and values that are called so. Nothing else of the text changes.
pub fn without_secrets(text: &str) -> String {
    const NAMES: [&str; 4] = ["password=", "token=", "secret=", "key="];
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = behind.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<'));
        let (url, next) = behind.split_at(end.unwrap_or(behind.len()));
        let (authority, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
        match authority.rsplit_once('@') {
            Some((_, host)) => shown.extend(["***@", host]),
            None => shown.push_str(authority),
        }
        for (number, part) in path.split_inclusive(['?', '&']).enumerate() {
            let name = NAMES
                .iter()
                .find(|name| number > 0 && part.starts_with(**name));
            match name {
                Some(name) if part.ends_with('&') => shown.extend([*name, "***&"]),
                Some(name) => shown.extend([*name, "***"]),
                None => shown.push_str(part),
            }
        }
        rest = next;
    }
    shown.push_str(rest);
    shown
}

/// The reason of an I/O error without Rust's "(os error N)", lower case.
pub fn cause(error: &std::io::Error) -> String {
    if error.raw_os_error() == Some(libc::EMFILE) {
        return format!(
            "too many open files, this process may have {}; raise LimitNOFILE= of its unit, or \
             `ulimit -n`",
            crate::ring::descriptors_max()
        );
    }
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let codes: Vec<u8> = Kind::ALL.into_iter().map(Kind::exit_code).collect();
        assert_eq!(codes, [1, 1, 2, 2, 2, 3, 4, 2, 5]);
    }

    #[test]
    fn every_kind_survives_the_way_through_json() {
        for kind in Kind::ALL {
            let error = Error::new(kind, "volume a: gone; look elsewhere").about("a");
            assert_eq!(Error::from_json(&error.to_json()), Some(error));
        }
    }

    #[test]
    fn a_message_stays_one_line_whatever_its_cause_said() {
        assert_eq!(Error::failed("a\n  b\r\nc").message, "a b c");
    }

    #[test]
    fn secrets_of_urls_are_not_shown() {
        let shown = without_secrets("origin \"nbd://me:pass@host:1/a@b\"; write s3://k:s@bucket");
        assert_eq!(
            shown,
            "origin \"nbd://***@host:1/a@b\"; write s3://***@bucket"
        );
        let shown = without_secrets("x https://h/p?a=1&token=abc&b=2 nbd+unix:///e?socket=/s y");
        assert_eq!(
            shown,
            "x https://h/p?a=1&token=***&b=2 nbd+unix:///e?socket=/s y"
        );
        let error = Error::failed("cannot open nbd://u:p@h/").about("nbd://u:p@h/");
        assert!(!error.to_json().to_string().contains("u:p"), "{error:?}");
    }

    #[test]
    fn an_io_cause_is_lower_case_and_without_its_number() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(cause(&error), "no such file or directory");
    }
}
