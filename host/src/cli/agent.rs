//! The agent in a guest, by which its file systems are written out and held while its image comes
//! to rest.
//!
//! ```text
//! opened ─ answers ─▶ known ─ freeze ─▶ held ─┬─ the work has ended ─────▶ thawed
//!                                             └─ the limit, or a signal ─▶ thawed, and told so
//! ```
//! Always true: what was frozen is thawed before anything else is done, whatever ends first; a
//! guest that thawed by itself meanwhile, or that does not say that it was held to the end, is a
//! failure; what is no answer of an agent is an error, never a panic, and a line of it is bounded.
//! A process that is killed cannot thaw; then the guest stands until its agent is told to.
//!
//! Deliberately absent: what is done meanwhile, and the way to the agent of a guest of libvirt,
//! which keeps its socket.

use super::signals;
use crate::error::{Error, Result, cause};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// An agent that runs answers a greeting within this time.
const GREETING: Duration = Duration::from_secs(5);
/// The guest writes out all that its file systems have in memory.
const FREEZING: Duration = Duration::from_secs(120);
const THAWING: Duration = Duration::from_secs(30);
/// A line of it; answers to our commands have some ten bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// No text has this byte, so an agent that sees it forgets half a line of who came before.
const SENTINEL: u8 = 0xff;

/// How a guest was held.
#[derive(Debug)]
pub(super) struct Held {
    pub file_systems: u64,
    pub time: Duration,
}

/// Why what was to be done in the meantime is not worth what it was to be worth.
pub(super) enum Failed {
    /// The work itself has failed; its guest goes on.
    Work(Error),
    /// The work has ended or goes on, but its guest was not held to its end.
    Guest { error: Error, work: Work },
}

/// What is done while a guest is held.
pub(super) struct Work {
    ends: Receiver<Option<Result<Value>>>,
    /// Whether it has succeeded, once it has ended.
    succeeded: Option<bool>,
}

impl Work {
    /// Waits for its end for so long; whether it has succeeded. None: it goes on still.
    pub fn end_within(&mut self, time: Duration) -> Option<bool> {
        let until = Instant::now() + time;
        while self.succeeded.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            // Another signal changes nothing.
            let end = self.ends.recv_timeout(left).ok()?;
            self.succeeded = end.map(|end| end.is_ok());
        }
        self.succeeded
    }
}

/// Holds the guest of this agent while the work is done, for so long at most.
pub(super) fn hold(
    agent: &Path,
    limit: Duration,
    work: impl FnOnce() -> Result<Value> + Send + 'static,
) -> std::result::Result<(Value, Held), Failed> {
    let (told, tells) = sync_channel(2);
    let ended = told.clone();
    // If there is no receiver any more, the command is ending already.
    signals::on_end(move || drop(ended.send(None))).map_err(Failed::Work)?;
    let mut agent = Agent::open(agent).map_err(Failed::Work)?;
    let file_systems = agent.freeze().map_err(Failed::Work)?;
    let begun = Instant::now();
    std::thread::spawn(move || drop(told.send(Some(work()))));
    let end = tells.recv_timeout(limit);
    let thawed = agent.thaw();
    let held = Held {
        file_systems,
        time: begun.elapsed(),
    };
    let work = Work {
        succeeded: end
            .as_ref()
            .ok()
            .and_then(|end| Some(end.as_ref()?.is_ok())),
        ends: tells,
    };
    let failed = |error| Err(Failed::Guest { error, work });
    match (end, thawed) {
        (Ok(Some(Err(error))), Ok(_)) => Err(Failed::Work(error)),
        (_, Err(error)) => failed(error),
        (Ok(None), Ok(_)) => failed(Error::failed(
            "the command was to end before the image rested; its guest goes on",
        )),
        (Err(_), Ok(_)) => failed(Error::failed(format!(
            "its image did not rest within {} s, for which its guest may be held; allow more by \
             --agent-limit, or see `tenuto volume show` why its image is slow",
            limit.as_secs_f64()
        ))),
        (Ok(Some(Ok(_))), Ok(0)) if file_systems > 0 => failed(agent.error(
            "has thawed by itself before the image rested: the guest holds its file systems for \
             so long only",
        )),
        (Ok(Some(Ok(reply))), Ok(_)) => Ok((reply, held)),
    }
}

struct Agent {
    stream: UnixStream,
    place: String,
    /// What came and is not a whole line yet.
    taken: Vec<u8>,
}

impl Agent {
    fn open(path: &Path) -> Result<Agent> {
        let place = path.display().to_string();
        let stream = UnixStream::connect(path).map_err(|error| {
            let why = cause(&error);
            Error::failed(format!(
                "agent {place}: {why}; name the socket of `-chardev socket` that QEMU gives the \
                 guest as org.qemu.guest_agent.0"
            ))
            .about(&place)
        })?;
        let mut agent = Agent {
            stream,
            place,
            taken: Vec::new(),
        };
        agent.greet()?;
        Ok(agent)
    }

    fn error(&self, what: &str) -> Error {
        Error::failed(format!("agent {}: {what}", self.place)).about(&self.place)
    }

    /// What was asked for by others, or in vain, is not answered after this.
    fn greet(&mut self) -> Result<()> {
        let id = u64::from(std::process::id()) << 20 | self.stream_number();
        let until = Instant::now() + GREETING;
        self.write(&[SENTINEL], until)?;
        let command = "guest-sync-delimited";
        self.say(&json!({"execute": command, "arguments": {"id": id}}), until)?;
        loop {
            let line = self.line(until)?.ok_or_else(|| {
                self.error(
                    "no agent answers; see that qemu-guest-agent runs in the guest, and that no \
                     other program (libvirt) uses this socket",
                )
            })?;
            let line = line.rsplit(|byte| *byte == SENTINEL).next().unwrap_or(&[]);
            let answer = serde_json::from_slice::<Value>(line).unwrap_or_default();
            if answer["return"].as_u64() == Some(id) {
                return Ok(());
            }
        }
    }

    /// Differs from one run to the next, as what an agent still has to say to another one does.
    fn stream_number(&self) -> u64 {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        time.map_or(0, |time| u64::from(time.subsec_micros()))
    }

    /// How many file systems it has frozen. After a failure none is.
    fn freeze(&mut self) -> Result<u64> {
        if self.ask("guest-fsfreeze-status", GREETING)? == "frozen" {
            let why = "its file systems are frozen already; another backup may be under way";
            return Err(self.error(why));
        }
        let frozen = self.ask("guest-fsfreeze-freeze", FREEZING);
        let frozen = frozen.and_then(|count| {
            let count = count.as_u64();
            count.ok_or_else(|| self.error("does not say how many file systems it has frozen"))
        });
        if frozen.is_err() {
            // It may have frozen some, or still be about to.
            let _ = self.thaw();
        }
        frozen
    }

    /// How many file systems it has thawed.
    fn thaw(&mut self) -> Result<u64> {
        let greeted = self.greet();
        let thawed = greeted.and_then(|()| self.ask("guest-fsfreeze-thaw", THAWING));
        let count = thawed.map_err(|error| {
            let stands = "the guest may still stand; send guest-fsfreeze-thaw to its agent";
            Error::failed(format!("{}; {stands}", error.message)).about(&self.place)
        })?;
        Ok(count.as_u64().unwrap_or(0))
    }

    fn ask(&mut self, command: &str, patience: Duration) -> Result<Value> {
        let until = Instant::now() + patience;
        self.say(&json!({"execute": command}), until)?;
        loop {
            let line = self.line(until)?;
            let line = line.ok_or_else(|| self.error(&format!("does not answer {command}")))?;
            let Ok(mut answer) = serde_json::from_slice::<Value>(&line) else {
                return Err(self.error("says what is no JSON; is it the socket of an agent?"));
            };
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("no reason");
                let why: String = why.chars().take(200).collect();
                return Err(self.error(&format!("refuses {command}: {why}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn say(&mut self, command: &Value, until: Instant) -> Result<()> {
        self.write(format!("{command}\n").as_bytes(), until)
    }

    fn write(&mut self, bytes: &[u8], until: Instant) -> Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let patience = Some(left.max(Duration::from_millis(1)));
        let written = self.stream.set_write_timeout(patience);
        let written = written.and_then(|()| self.stream.write_all(bytes));
        written.map_err(|error| self.error(&cause(&error)))
    }

    /// The next line that is not empty, or none in time.
    fn line(&mut self, until: Instant) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.taken.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.taken.drain(..=end).collect();
                match line.trim_ascii().is_empty() {
                    true => continue,
                    false => return Ok(Some(line)),
                }
            }
            if self.taken.len() > LINE_BYTES_MAX {
                return Err(self.error("says a line that is too long; is it an agent's socket?"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let mut bytes = [0; 4096];
            let read = self.stream.set_read_timeout(Some(left));
            match read.and_then(|()| self.stream.read(&mut bytes)) {
                Ok(0) => return Err(self.error("has closed its socket; is its guest running?")),
                Ok(count) => self.taken.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(self.error(&cause(&error))),
            }
        }
    }
}
