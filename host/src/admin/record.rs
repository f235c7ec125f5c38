//! Recordings of what guests ask for, as streams of the admin socket.
//!
//! Owns the recordings that run, each with a thread that takes requests from the machine and makes
//! frames of them, and the channel of frames between that thread and the connection.
//!
//! ```text
//! shard ─▶ its buffer ─▶ (thread asks every 50 ms) ─▶ frames ─▶ at most 4 chunks ─▶ connection
//! ```
//!
//! Always true: a reader that does not read stops its own thread, which then asks the machine no
//! more; what finds no room there meanwhile is counted and marked where it is missing. So a
//! recording takes a bounded amount of memory, and nobody but its reader waits for it. At least
//! once a second there is a frame, if only with a loss of nothing, so that a reader sees that all
//! is well. The last item of the format is sent at an end in order: one that was asked for, or
//! because no volume is left. A stream without it was cut with the daemon.
//! Deliberately absent: files, and how long a recording goes on; both are the reader's.

use super::{Admin, refuse_held};
use crate::error::{Error, Kind, Result, cause};
use hyper::body::{Body, Bytes, Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use workload::trace::Record;
use workload::trace::native::Writer;

/// Each costs some megabytes, and a little of the shard's time.
const RECORDINGS_MAX: usize = 4;
/// Of one recording; their names have to fit the address of a request.
const VOLUMES_MAX: usize = 1024;
/// Between two questions to the machine. What a buffer of the shard holds lasts ten times as long
/// at the rates of one host.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two frames at least, also where nothing happens.
const BEAT: Duration = Duration::from_secs(1);
/// Chunks between the thread and a connection that does not take them.
const CHUNKS_MAX: usize = 4;

/// What the machine records; it ends when this is dropped. Calls block.
pub trait Tap: Send {
    /// Gives out each request since the last call, with the place of its volume among those that
    /// were named, in their order. What it returns is how many were lost behind them.
    fn take(&mut self, each: &mut dyn FnMut(usize, &Record)) -> Result<u64>;
}

/// Asks a recording to end in order.
#[derive(Debug, PartialEq, Eq)]
struct End;

/// The recordings that run.
#[derive(Default)]
pub struct Recordings {
    /// A mutex, not a message: held only to look and to set. The data path never takes it.
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    ends: BTreeMap<u64, SyncSender<End>>,
    last: u64,
    /// The daemon stops: no more begin.
    over: bool,
}

impl Recordings {
    fn running(&self) -> MutexGuard<'_, Running> {
        // A panic ends the process; a poisoned lock is met by tests only.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Result<(u64, Receiver<End>)> {
        let mut running = self.running();
        if running.over {
            return Err(Error::failed("the daemon is stopping"));
        }
        if running.ends.len() >= RECORDINGS_MAX {
            return Err(Error::refused(format!(
                "{RECORDINGS_MAX} recordings run already, as many as may; end one of them first"
            )));
        }
        running.last += 1;
        let number = running.last;
        let (sender, end) = sync_channel(1);
        running.ends.insert(number, sender);
        Ok((number, end))
    }

    fn leave(&self, number: u64) {
        self.running().ends.remove(&number);
    }

    /// Lets a recording end in order: its stream ends when all that was recorded is in it.
    pub fn end(&self, number: u64) -> Result<()> {
        match self.running().ends.get(&number) {
            Some(sender) => {
                // Asked a second time it ends no sooner.
                let _ = sender.try_send(End);
                Ok(())
            }
            None => Err(Error::new(
                Kind::NotFound,
                format!("recording {number}: does not run"),
            )),
        }
    }

    /// The daemon stops: all streams are cut.
    pub fn end_all(&self) {
        let mut running = self.running();
        running.over = true;
        running.ends.clear();
    }
}

/// Leaves the list of recordings, however it ends.
struct Place {
    admin: Arc<Admin>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admin.recordings.leave(self.number);
    }
}

impl Admin {
    /// Begins to record volumes; the number of the recording and its stream. Blocks.
    pub fn record(self: &Arc<Admin>, mut names: Vec<String>) -> Result<(u64, Chunks)> {
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        self.check_recorded(&names)?;
        let (number, end) = self.recordings.enter()?;
        let place = Place {
            admin: self.clone(),
            number,
        };
        let tap = self.machine.record(&names)?;
        let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
        let recording = Recording {
            place,
            names,
            tap,
            chunks: sender,
            lost: 0,
        };
        let thread = std::thread::Builder::new().name("recording".into());
        let started = thread.spawn(move || recording.go(&end));
        started.map_err(|error| Error::failed(format!("recording: {}", cause(&error))))?;
        Ok((number, Chunks(chunks)))
    }

    fn check_recorded(&self, names: &[String]) -> Result<()> {
        if names.is_empty() || names.len() > VOLUMES_MAX {
            let words = format!("trace: name 1 to {VOLUMES_MAX} volumes with volume=NAME");
            return Err(Error::usage(words));
        }
        let look = self.look()?;
        for name in names {
            if !self.is_configured(name) {
                return Err(Error::no_volume(name));
            }
            refuse_held(&look, name)?;
        }
        Ok(())
    }

    fn is_configured(&self, name: &str) -> bool {
        let known = self.known();
        known.volumes.iter().any(|volume| volume.name == name)
    }
}

/// Why a recording has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked,
    /// None of its volumes is there any more.
    NoVolume,
    NoReader,
    Stopping,
}

impl Why {
    const fn name(self) -> &'static str {
        match self {
            Why::Asked => "ended as asked",
            Why::NoVolume => "no volume is left",
            Why::NoReader => "its reader has gone",
            Why::Stopping => "the daemon stops",
        }
    }
}

/// One recording, on its thread.
struct Recording {
    place: Place,
    names: Vec<String>,
    tap: Box<dyn Tap>,
    chunks: mpsc::Sender<Bytes>,
    lost: u64,
}

type Frames = Writer<Vec<u8>>;

const TAKEN: &str = "memory takes everything";

impl Recording {
    fn go(mut self, end: &Receiver<End>) {
        let (number, names) = (self.place.number, self.names.join(", "));
        tracing::info!("recording {number} of {names}: begins");
        let mut frames = Writer::new(Vec::new()).expect(TAKEN);
        let why = self.pump(&mut frames, end);
        let requests = frames.records();
        if matches!(why, Why::Asked | Why::NoVolume) {
            let last = frames.finish().expect(TAKEN);
            // A reader that has gone meanwhile misses nothing.
            let _ = self.chunks.blocking_send(last.into());
        }
        let (lost, why) = (self.lost, why.name());
        tracing::info!("recording {number} of {names}: {requests} requests, {lost} lost; {why}");
    }

    fn pump(&mut self, frames: &mut Frames, end: &Receiver<End>) -> Why {
        // The head, so that the reader knows that it runs.
        if !self.send(frames) {
            return Why::NoReader;
        }
        let mut beat = Instant::now();
        loop {
            let word = end.recv_timeout(PAUSE);
            let is_beat = beat.elapsed() >= BEAT;
            let alone = is_beat && self.is_alone();
            if self.take(frames).is_err() {
                return Why::Stopping;
            }
            match word {
                Ok(End) => return Why::Asked,
                Err(RecvTimeoutError::Timeout) if alone => return Why::NoVolume,
                Err(_) => {}
            }
            if is_beat {
                frames.lost(0).expect(TAKEN);
                beat = Instant::now();
            }
            if !self.send(frames) {
                return Why::NoReader;
            }
            if word == Err(RecvTimeoutError::Disconnected) {
                return Why::Stopping;
            }
        }
    }

    fn is_alone(&self) -> bool {
        let admin = &self.place.admin;
        !self.names.iter().any(|name| admin.is_configured(name))
    }

    fn take(&mut self, frames: &mut Frames) -> Result<()> {
        let names = &self.names;
        let lost = self.tap.take(&mut |place, record| {
            frames.record(record, &names[place], None).expect(TAKEN);
        })?;
        if lost > 0 {
            frames.lost(lost).expect(TAKEN);
            self.lost += lost;
        }
        Ok(())
    }

    /// Sends what there is. Waits for the reader, and is false when that has gone.
    fn send(&self, frames: &mut Frames) -> bool {
        frames.flush().expect(TAKEN);
        let chunk = std::mem::take(frames.output());
        match chunk.is_empty() {
            true => !self.chunks.is_closed(),
            false => self.chunks.blocking_send(chunk.into()).is_ok(),
        }
    }
}

/// The stream of a recording, as a body of HTTP.
pub struct Chunks(mpsc::Receiver<Bytes>);

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.0.poll_recv(context);
        chunk.map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}
