//! `tenuto events`: what happened to a daemon, and what happens.
//!
//! Always true: every event that the daemon still has is printed once, in its order; what it has
//! no more is counted on standard error. With `--follow` a daemon that goes away is waited for,
//! and the next one's events go on: numbers grow from one daemon to the next. Ends quietly when
//! nobody reads the lines any more, also while nothing happens. Deliberately absent: a memory of
//! its own; whoever must not miss an event keeps the last number and asks `--after` it.

use super::{Context, output};
use crate::admin::client::Client;
use crate::error::{Error, Kind, Result};
use crate::sys;
use clap::{Args, ValueEnum};
use serde_json::Value;
use std::time::Duration;

/// How long one question waits for an event; then the reader is looked after.
const WAIT_SECONDS: u64 = 5;
/// Before a daemon that is not there is asked again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Events {
    /// Go on with new events, until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Only events after the one with this number
    #[arg(
        long,
        value_name = "SEQ",
        default_value_t = 0,
        hide_default_value = true
    )]
    after: u64,
    /// Only events of this volume
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Only events of this severity and above
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Severity {
    Info,
    Warning,
    Error,
}

impl Severity {
    /// One that a newer daemon may know is shown, not hidden.
    fn of(event: &Value) -> Severity {
        match event["severity"].as_str() {
            Some("info") => Severity::Info,
            Some("warning") => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

pub fn run(context: &Context, command: &Events) -> Result<()> {
    let client = context.client()?;
    let mut after = command.after;
    let mut away = false;
    // One that is not there at the start is an error, as for every other command.
    let mut page = Some(look(&client, after, 0)?);
    loop {
        if let Some(page) = page {
            if away {
                tell("the daemon is back; its events go on");
                away = false;
            }
            if !print(context, command, &page)? {
                return Ok(());
            }
            after = page["next"].as_u64().unwrap_or(after);
        }
        if !command.follow {
            return Ok(());
        }
        page = match look(&client, after, WAIT_SECONDS) {
            Ok(page) => Some(page),
            Err(error) if error.kind == Kind::Unreachable => {
                if !away {
                    tell("the daemon does not answer; waiting for it");
                    away = true;
                }
                std::thread::sleep(RETRY);
                None
            }
            Err(error) => return Err(error),
        };
        if sys::reader_is_gone(&std::io::stdout()) {
            return Ok(());
        }
    }
}

fn look(client: &Client, after: u64, wait_seconds: u64) -> Result<Value> {
    let page = client.get(&format!("/v1/events?after={after}&wait={wait_seconds}"))?;
    match page["events"].is_array() {
        true => Ok(page),
        false => Err(Error::failed("events: the daemon's reply has none")),
    }
}

fn tell(line: &str) {
    eprintln!("tenuto: {line}");
}

/// Prints what was asked for. False when nobody reads it.
fn print(context: &Context, command: &Events, page: &Value) -> Result<bool> {
    if let Some(lost @ 1..) = page["lost"].as_u64() {
        tell(&format!(
            "{lost} earlier events are lost; the daemon keeps the newest only"
        ));
    }
    let color = context.output().color;
    let events = page["events"].as_array().map_or(&[][..], Vec::as_slice);
    for event in events.iter().filter(|event| command.wants(event)) {
        let line = match context.common.json {
            true => event.to_string(),
            false => line(event, color),
        };
        if !output::write_line(&line)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Events {
    fn wants(&self, event: &Value) -> bool {
        let volume = self.volume.as_deref();
        let same = volume.is_none_or(|volume| event["volume"] == volume);
        same && Severity::of(event) >= self.severity
    }
}

/// Time, severity, volume, what happened.
fn line(event: &Value, color: bool) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or("-");
    let code = match Severity::of(event) {
        Severity::Info => "0",
        Severity::Warning => "33",
        Severity::Error => "31",
    };
    let severity = match color {
        true => format!("\x1b[{code}m{:7}\x1b[0m", text("severity")),
        false => format!("{:7}", text("severity")),
    };
    let times = match event["count"].as_u64() {
        Some(count @ 2..) => format!(" ({count} times)"),
        _ => String::new(),
    };
    let (time, volume, kind, message) =
        (text("time"), text("volume"), text("kind"), text("message"));
    let words = format!("{volume}  {kind}: {message}{times}");
    // A message may quote a client; a terminal must not obey it.
    let words: String = words
        .chars()
        .filter(|letter| !letter.is_control())
        .collect();
    format!("{time}  {severity}  {words}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(severity: &str, volume: Option<&str>) -> Value {
        json!({
            "seq": 7, "time": "2026-01-02T03:04:05.678Z", "severity": severity, "kind": "state",
            "volume": volume, "message": "is \x1b[31mstalled", "count": 3,
        })
    }

    fn asked(volume: Option<&str>, severity: Severity) -> Events {
        Events {
            follow: false,
            after: 0,
            volume: volume.map(str::to_owned),
            severity,
        }
    }

    #[test]
    fn a_line_has_time_severity_volume_and_words_and_nothing_a_terminal_obeys() {
        assert_eq!(
            line(&event("warning", Some("desk-001")), false),
            "2026-01-02T03:04:05.678Z  warning  desk-001  state: is [31mstalled (3 times)"
        );
        assert_eq!(
            line(&json!({"seq": 1}), false),
            "-  -        -  -: -",
            "of an event that lacks everything"
        );
    }

    #[test]
    fn severities_above_the_one_asked_for_are_wanted_and_unknown_ones_too() {
        let all = asked(None, Severity::Warning);
        let wanted = ["info", "warning", "error", "disaster"]
            .map(|severity| all.wants(&event(severity, None)));
        assert_eq!(wanted, [false, true, true, true]);
        let one = asked(Some("a"), Severity::Info);
        let wanted = [Some("a"), Some("b"), None].map(|volume| one.wants(&event("info", volume)));
        assert_eq!(wanted, [true, false, false]);
    }
}
