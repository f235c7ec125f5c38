//! The log of the daemon: one line for an event, on standard error.
//!
//! Owns the form of a line and where it goes. Always true: a line is one line; no secret of a URL
//! is in it; a flood is bounded and counted by [`limit`]. In text a line has time, level and
//! message; where the journal reads, its priority and the message, because the journal has the
//! time; as JSON an object whose keys `time`, `level` and `message` are always there, and `volume`,
//! `path`, `origin`, `client` where the event is about one. Deliberately absent: files and their
//! rotation, which are the service manager's.

mod limit;

use crate::error::without_secrets;
use limit::{Cause, Limit};
use serde_json::{Map, Value};
use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// How often it is looked whether a flood has ended that nobody was told of.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// What an event can be about; limits are counted for each.
const OBJECTS: [&str; 4] = ["volume", "path", "origin", "client"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// Who reads the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub format: Format,
    /// Lines begin with their priority and have no time: sd-daemon(3).
    pub journal: bool,
    pub colors: bool,
}

impl Style {
    /// True where whoever reads standard error expects lines of the log and nothing else.
    pub fn is_for_programs(self) -> bool {
        self.format == Format::Json || self.journal
    }
}

/// Whether standard error is the journal's stream, as systemd says in `JOURNAL_STREAM`.
pub fn is_journal() -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|meta| stream == format!("{}:{}", meta.dev(), meta.ino()))
}

/// Begins to log. Called once.
pub fn start(style: Style, filter: EnvFilter) {
    let log = Log {
        style,
        limit: Arc::default(),
    };
    let limit = log.limit.clone();
    tracing_subscriber::registry().with(filter).with(log).init();
    // Without this thread a count is told with the next line of its cause.
    let sweeper = thread::Builder::new().name("tenuto-log".into());
    let _ = sweeper.spawn(move || {
        loop {
            thread::sleep(SWEEP_EVERY);
            for (cause, swallowed) in locked(&limit).sweep(Instant::now()) {
                tell_swallowed(style, &cause, swallowed);
            }
        }
    });
}

pub fn colors(asked: super::Color) -> bool {
    match asked {
        super::Color::Auto => std::io::stderr().is_terminal(),
        super::Color::Always => true,
        super::Color::Never => false,
    }
}

struct Log {
    style: Style,
    /// A mutex, not a message: a line is written by whoever has something to say, and it is held
    /// to count only.
    limit: Arc<Mutex<Limit>>,
}

fn locked(limit: &Mutex<Limit>) -> MutexGuard<'_, Limit> {
    limit.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::new(*event.metadata().level());
        event.record(&mut line);
        let object = OBJECTS
            .iter()
            .find_map(|key| line.fields.get(*key)?.as_str());
        let cause = (event.metadata().callsite(), object.unwrap_or("").to_owned());
        let Some(swallowed) = locked(&self.limit).may(Instant::now(), cause) else {
            return;
        };
        if swallowed > 0 {
            let _ = write!(line.message, "; {swallowed} more before");
            line.fields.insert("suppressed".into(), swallowed.into());
        }
        line.write(self.style);
    }
}

fn tell_swallowed(style: Style, cause: &Cause, swallowed: u64) {
    let mut line = Line::new(Level::WARN);
    let about = match cause.1.as_str() {
        "" => String::new(),
        object => format!(" about {object}"),
    };
    line.message = format!("{swallowed} more lines{about} were not written");
    line.fields.insert("suppressed".into(), swallowed.into());
    line.write(style);
}

/// An event taken apart.
struct Line {
    level: Level,
    message: String,
    fields: Map<String, Value>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => {
                let text = without_secrets(&format!("{value:?}"));
                self.fields.insert(name.into(), text.into());
            }
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().into(), value.into());
    }
}

impl Line {
    fn new(level: Level) -> Line {
        Line {
            level,
            message: String::new(),
            fields: Map::new(),
        }
    }

    fn write(mut self, style: Style) {
        let message = without_secrets(&self.message);
        self.message = message.replace(['\n', '\r'], " ");
        let mut line = String::new();
        if style.journal {
            let _ = write!(line, "<{}>", priority(self.level));
        }
        match style.format {
            Format::Json => self.json(&mut line),
            Format::Text if style.journal => line.push_str(&self.message),
            Format::Text => self.text(style.colors, &mut line),
        }
        line.push('\n');
        // One call, so that lines of two threads do not mix. Whoever does not read misses it.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn text(&self, colors: bool, line: &mut String) {
        let color = match self.level {
            Level::ERROR => 31,
            Level::WARN => 33,
            Level::INFO => 32,
            _ => 34,
        };
        let (time, level, message) = (now(), self.level, &self.message);
        let _ = match colors {
            true => write!(
                line,
                "\x1b[2m{time}\x1b[0m \x1b[{color}m{level:>5}\x1b[0m {message}"
            ),
            false => write!(line, "{time} {level:>5} {message}"),
        };
    }

    fn json(self, line: &mut String) {
        let mut object = Map::new();
        object.insert("time".into(), now().into());
        let level = self.level.as_str().to_ascii_lowercase();
        object.insert("level".into(), level.into());
        object.insert("message".into(), self.message.into());
        object.extend(self.fields);
        let _ = write!(line, "{}", Value::Object(object));
    }
}

fn now() -> String {
    let mut time = String::new();
    // A clock that cannot be shown is no reason to lose the line.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

/// Of syslog(3), as the journal reads it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
