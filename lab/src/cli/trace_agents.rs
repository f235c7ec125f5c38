//! `tenuto trace replay --agents`: one trace against the volumes of several machines.
//!
//! Owns a program on each machine (`trace agent`, brought there by `ssh` or what is named instead)
//! and its pipes. Always true: every machine has all of its part before the first begins, so none
//! waits for another one; the first that fails ends the replay on all. Deliberately absent: the
//! words themselves, which are in `trace_agent`, and clocks: each machine goes by its own, from the
//! order to go.

use super::trace::{From, each, open};
use super::trace_agent::{CHUNK_BYTES_MAX, WORDS, hear, say};
use super::trace_live::{Options, text, without_volume};
use host::cli::Context;
use host::error::{Error, Kind, Result, cause};
use serde_json::{Value, json};
use std::io::{self, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use workload::trace::native::Writer;
use workload::trace::{Item, Record};

pub struct Agents<'a> {
    /// The machines, as `rsh` knows them.
    pub hosts: &'a [String],
    /// What runs a program on one of them, as `ssh` does.
    pub rsh: &'a str,
    /// What this program is called there.
    pub program: &'a str,
}

/// Which machine, and what came of it.
type Said = (usize, Word);

enum Word {
    Value(Value),
    /// What is no word of an agent, and why.
    Strange(String),
    /// It says nothing any more.
    End,
}

/// What `ssh` ends with when it cannot reach a machine, or loses it.
const EXIT_RSH: i32 = 255;
/// What a shell ends with that does not find a program.
const EXIT_NO_PROGRAM: i32 = 127;

struct Agent {
    host: String,
    /// The order that brings the program there, for messages.
    rsh: String,
    program: String,
    child: Child,
    /// Until all of its part of the trace is there.
    writer: Option<Writer<Part>>,
    /// From then on.
    input: Option<ChildStdin>,
    /// It has said something: the way there is good, and the program is there.
    spoke: bool,
    /// It was told to go.
    went: bool,
}

/// The way to one machine, in pieces that it knows the length of.
struct Part {
    input: ChildStdin,
    piece: Vec<u8>,
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.piece.len() + bytes.len()) as u64 > CHUNK_BYTES_MAX {
            self.flush()?;
        }
        let count = bytes.len().min(CHUNK_BYTES_MAX as usize);
        self.piece.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.piece.is_empty() {
            say(&mut self.input, &json!({ "trace": self.piece.len() }))?;
            self.input.write_all(&self.piece)?;
            self.piece.clear();
        }
        self.input.flush()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Its side of the pipe closes, and the program there ends by itself.
        (self.writer, self.input) = (None, None);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    /// Runs the program there. What it says goes to `said`.
    fn start(agents: &Agents<'_>, number: usize, said: &Sender<Said>) -> Result<Agent> {
        let host = &agents.hosts[number];
        let mut words = agents.rsh.split_whitespace();
        let rsh = words.next().ok_or_else(|| {
            Error::usage("--rsh: name a program that runs others on a machine, as ssh does")
        })?;
        let child = Command::new(rsh)
            .args(words)
            .arg(host)
            .args(agents.program.split_whitespace())
            .args(["trace", "agent"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| {
            Error::failed(format!("agent {host}: {rsh}: {}", cause(&error))).about(host)
        })?;
        let output = child.stdout.take().expect("a pipe");
        let said = said.clone();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let word = match hear(&mut output) {
                    Ok(Some(word)) => Word::Value(word),
                    Ok(None) => Word::End,
                    Err(error) => Word::Strange(cause(&error)),
                };
                let last = !matches!(word, Word::Value(_));
                // Nobody listens any more where the replay has ended.
                if said.send((number, word)).is_err() || last {
                    return;
                }
            }
        });
        Ok(Agent {
            host: host.clone(),
            rsh: agents.rsh.to_owned(),
            program: agents.program.to_owned(),
            child,
            writer: None,
            input: None,
            spoke: false,
            went: false,
        })
    }

    /// Says what is wanted of it; its part of the trace follows.
    fn plan(&mut self, volumes: &[&str], options: &Options) -> io::Result<()> {
        let mut input = self.child.stdin.take().expect("a pipe");
        let client = match options.by_rings {
            true => "vhost-user",
            false => "nbd",
        };
        let word = json!({
            "words": WORDS,
            "volumes": volumes,
            "speed": options.speed,
            "client": client,
            "overwrite": options.overwrite,
        });
        say(&mut input, &word)?;
        let piece = Vec::new();
        self.writer = Some(Writer::new(Part { input, piece })?);
        Ok(())
    }

    /// All of its part was sent.
    fn whole(&mut self) -> io::Result<()> {
        let writer = self.writer.take().expect("once");
        let input = self.input.insert(writer.finish()?.input);
        say(input, &json!({ "whole": true }))
    }

    /// Its own words.
    fn says(&self, theirs: Error) -> Error {
        let message = format!("agent {}: {}", self.host, theirs.message);
        Error::new(theirs.kind, message).about(&self.host)
    }

    /// It said something that no agent says: greetings of a shell, or of another program.
    fn strange(&self, why: &str) -> Error {
        let (host, program) = (&self.host, &self.program);
        let message = format!(
            "agent {host}: {why}; see that `{program} trace agent` runs there, and that no shell \
             or script there writes to its standard output before"
        );
        Error::failed(message).about(host)
    }

    /// It has gone away; what it wrote to standard error, which is ours too, says why.
    fn gone(&mut self) -> Error {
        // What is left of it may wait for us.
        (self.writer, self.input) = (None, None);
        let status = self.child.wait();
        let code = status.as_ref().ok().and_then(ExitStatus::code);
        let status = status.map_or_else(|error| cause(&error), |status| status.to_string());
        let (host, rsh, program) = (&self.host, &self.rsh, &self.program);
        let right = match code {
            // A program that a signal ends there ends `ssh` as a way that is cut.
            _ if self.spoke => format!(
                "it was killed there, or its way there was cut: see the log of that machine, and \
                 try `{rsh} {host} true`"
            ),
            Some(EXIT_RSH) => format!("its way there failed or was cut: try `{rsh} {host} true`"),
            Some(EXIT_NO_PROGRAM) => {
                format!("there is no {program}: install it there, or name it by --remote")
            }
            _ => format!("see whether `{program} trace agent` of this version runs there"),
        };
        let lost = match self.went {
            true => "; all figures of this replay are lost, the volumes hold what was written",
            false => "",
        };
        let message =
            format!("agent {host}: it ended before it was done ({status}); {right}{lost}");
        Error::failed(message).about(host)
    }
}

/// Where a disk of the trace goes: the machine, the volume, and its number there.
struct Place {
    agent: usize,
    volume: String,
    number: String,
}

/// The places of all volumes, in the order of the disks.
fn places(volumes: &[String], agents: &Agents<'_>) -> Result<Vec<Place>> {
    for (at, host) in agents.hosts.iter().enumerate() {
        // It would be an option of the program that it is given to.
        if host.is_empty() || host.starts_with('-') || agents.hosts[..at].contains(host) {
            let message = format!("--agents: {host:?} is no name of a machine, or named twice");
            return Err(Error::usage(message));
        }
    }
    let mut places: Vec<Place> = Vec::new();
    for volume in volumes {
        let wrong =
            |why: &str| Err(Error::usage(format!("--volume {volume}: {why}")).about(volume));
        let Some((host, name)) = volume.rsplit_once(':') else {
            return wrong("with --agents, name the machine too, as HOST:NAME");
        };
        let Some(agent) = agents.hosts.iter().position(|it| it == host) else {
            return wrong(&format!("{host} is none of --agents"));
        };
        let before = places.iter().filter(|it| it.agent == agent);
        places.push(Place {
            agent,
            volume: name.to_owned(),
            number: before.count().to_string(),
        });
    }
    let mut hosts = agents.hosts.iter().enumerate();
    match hosts.find(|(at, _)| places.iter().all(|it| it.agent != *at)) {
        None => Ok(places),
        Some((_, host)) => Err(Error::usage(format!(
            "--agents: {host} has no volume; give --volume {host}:NAME"
        ))),
    }
}

struct Machines {
    all: Vec<Agent>,
    said: Receiver<Said>,
    /// So that there is always one who could say something.
    _ours: Sender<Said>,
}

impl Machines {
    /// Returns when all are connected to their volumes.
    fn start(agents: &Agents<'_>, places: &[Place], options: &Options) -> Result<Machines> {
        let (ours, said) = channel();
        let all = (0..agents.hosts.len()).map(|at| Agent::start(agents, at, &ours));
        let mut machines = Machines {
            all: all.collect::<Result<_>>()?,
            said,
            _ours: ours,
        };
        for at in 0..machines.all.len() {
            let mine = places.iter().filter(|it| it.agent == at);
            let volumes: Vec<&str> = mine.map(|it| it.volume.as_str()).collect();
            let done = machines.all[at].plan(&volumes, options);
            machines.check(done)?;
        }
        machines.hear("connected")?;
        Ok(machines)
    }

    /// Waits for a word with this key from each, and returns them in the order of the machines.
    fn hear(&mut self, key: &str) -> Result<Vec<Value>> {
        let mut words = vec![Value::Null; self.all.len()];
        while words.iter().any(Value::is_null) {
            let (number, word) = self.said.recv().expect("one sender is ours");
            let agent = &mut self.all[number];
            agent.spoke |= matches!(word, Word::Value(_));
            match word {
                Word::Value(word) if word.get(key).is_some() => words[number] = word,
                Word::Value(word) => {
                    let theirs = Error::from_json(&word);
                    let strange = || Error::failed("it says what nobody asked");
                    return Err(agent.says(theirs.unwrap_or_else(strange)));
                }
                // One that has said it all is through.
                _ if !words[number].is_null() => {}
                Word::Strange(why) => return Err(agent.strange(&why)),
                Word::End => return Err(agent.gone()),
            }
        }
        Ok(words)
    }

    /// A machine that takes nothing more says why, if it still says something.
    fn check(&mut self, done: io::Result<()>) -> Result<()> {
        match done {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => return Err(Error::failed(format!("agents: {}", cause(&error)))),
        }
        loop {
            let (number, word) = self.said.recv().expect("one sender is ours");
            let agent = &mut self.all[number];
            match word {
                // Anything else it said before.
                Word::Value(word) => {
                    if let Some(theirs) = Error::from_json(&word) {
                        return Err(agent.says(theirs));
                    }
                }
                Word::Strange(why) => return Err(agent.strange(&why)),
                Word::End => return Err(agent.gone()),
            }
        }
    }

    fn record(&mut self, record: &Record, place: &Place) -> Result<()> {
        let writer = self.all[place.agent].writer.as_mut().expect("until `go`");
        let done = writer.record(record, &place.number, None);
        self.check(done)
    }

    /// Gives the order to go when all have their parts. Returns within which time they began.
    fn go(&mut self) -> Result<Duration> {
        for at in 0..self.all.len() {
            let done = self.all[at].whole();
            self.check(done)?;
        }
        self.hear("loaded")?;
        let go = Instant::now();
        for at in 0..self.all.len() {
            let input = self.all[at].input.as_mut().expect("it was whole");
            let done = say(input, &json!({ "go": true }));
            self.all[at].went = true;
            self.check(done)?;
        }
        self.hear("begun")?;
        // Each began between the order and its answer.
        Ok(go.elapsed())
    }
}

pub fn run(
    context: &Context,
    from: &From,
    volumes: &[String],
    options: &Options,
    agents: &Agents<'_>,
) -> Result<()> {
    let places = places(volumes, agents)?;
    let mut reader = open(from)?;
    let mut machines = Machines::start(agents, &places, options)?;
    let summary = each(from, &mut reader, |reader, item| {
        let Item::Record(record) = item else {
            return Ok(());
        };
        match places.get(record.disk.0 as usize) {
            Some(place) => machines.record(record, place),
            None => Err(without_volume(reader.disks().name(record.disk))),
        }
    })?;
    let apart = machines.go()?;
    let ended = machines.hear("volumes")?;
    let mut reports = vec![Value::Null; places.len()];
    let (mut judged, mut seconds) = (Ok(()), 0.0_f64);
    for (agent, ended) in ended.iter().enumerate() {
        seconds = seconds.max(ended["seconds"].as_f64().unwrap_or(0.0));
        let mine = (0..places.len()).filter(|at| places[*at].agent == agent);
        for (at, told) in mine.zip(ended["volumes"].as_array().into_iter().flatten()) {
            reports[at] = told.clone();
            reports[at]["name"] = json!(volumes[at]);
        }
        let worst = |it: &Result<()>| it.as_ref().is_err_and(|it| it.kind == Kind::Damaged);
        if let Some(theirs) = Error::from_json(&ended["failed"])
            && !worst(&judged)
        {
            judged = Err(machines.all[agent].says(theirs));
        }
    }
    let document = json!({
        "replay": "live",
        "speed": options.speed,
        "seconds": seconds,
        "agents": agents.hosts,
        "begun_apart_ms_max": apart.as_secs_f64() * 1e3,
        "volumes": reports,
        "lost": summary.lost,
        "not_understood": reader.complaints().bad,
    });
    context.output().document(&document, || text(&document))?;
    judged
}
