//! What carries the requests of a replay to a live volume, and what comes of them.
//!
//! Owns the list of requests in flight, which the sender and the thread that takes the answers
//! share. Always true: a request stands in the list before it leaves, and goes when its answer is
//! there; when the connection has ended everybody who waits hears of it. Deliberately absent: when
//! a request leaves, and what it carries, which are the lane's.

mod nbd;
mod rings;

use engine::snapshot::Histogram;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use workload::trace::Op;

/// Answers that nobody gives end the replay.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request as a volume takes it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub op: Op,
    pub sector: u64,
    pub sectors: u64,
}

/// One connection to a volume, on which requests need not wait for each other.
pub trait Wire {
    /// Most sectors of one request.
    fn sectors_max(&self, op: Op) -> u64;

    /// Most requests in flight.
    fn in_flight_max(&self) -> usize;

    /// Sends a request that stands in the list; a write has its `payload`.
    fn send(&mut self, cookie: u64, request: &Request, payload: &[u8]) -> io::Result<()>;

    /// Ends the connection in order. Nothing is in flight.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// Reads sectors one request after the other.
pub trait Reader {
    fn sectors_max(&self) -> u64;

    fn read(&mut self, sector: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Where a volume takes requests.
#[derive(Clone, Debug)]
pub enum Door {
    Nbd { socket: PathBuf, export: String },
    VhostUser { socket: PathBuf },
}

impl Door {
    pub fn connect(&self, shared: &Arc<Shared>) -> io::Result<Box<dyn Wire>> {
        Ok(match self {
            Door::Nbd { socket, export } => Box::new(nbd::Nbd::connect(socket, export, shared)?),
            Door::VhostUser { socket } => Box::new(rings::Rings::connect(socket, shared)?),
        })
    }

    pub fn reader(&self) -> io::Result<Box<dyn Reader>> {
        Ok(match self {
            Door::Nbd { socket, export } => Box::new(nbd::reader(socket, export)?),
            Door::VhostUser { socket } => Box::new(rings::reader(socket)?),
        })
    }

    pub fn socket(&self) -> &PathBuf {
        match self {
            Door::Nbd { socket, .. } | Door::VhostUser { socket } => socket,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub request: Request,
    pub at: Instant,
}

/// What both threads of a connection see.
#[derive(Default)]
pub struct Flight {
    pub sent: HashMap<u64, Sent>,
    /// Of reads, writes, and all others.
    pub latency: [Histogram; 3],
    answered: u64,
    pub errors: u64,
    broken: Option<io::Error>,
}

#[derive(Default)]
pub struct Shared {
    flight: Mutex<Flight>,
    landed: Condvar,
}

impl Shared {
    pub fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer; an error where there will be none.
    pub fn wait<'a>(
        &'a self,
        flight: MutexGuard<'a, Flight>,
    ) -> io::Result<MutexGuard<'a, Flight>> {
        if let Some(why) = &flight.broken {
            return Err(io::Error::new(why.kind(), why.to_string()));
        }
        let answered = flight.answered;
        let waited = self.landed.wait_timeout(flight, PATIENCE);
        let (flight, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        match timeout.timed_out() && flight.answered == answered {
            true => Err(io::Error::other("no answer for a minute")),
            false => Ok(flight),
        }
    }

    /// The request that an answer belongs to.
    fn request(&self, cookie: u64) -> io::Result<Request> {
        let sent = self.flight().sent.get(&cookie).map(|sent| sent.request);
        sent.ok_or_else(|| io::Error::other("the answer belongs to no request"))
    }

    /// An answer is there as a whole.
    fn land(&self, cookie: u64, failed: bool) {
        let mut flight = self.flight();
        let Some(sent) = flight.sent.remove(&cookie) else {
            return;
        };
        flight.answered += 1;
        flight.errors += u64::from(failed);
        let kind = match sent.request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush | Op::Discard => 2,
        };
        flight.latency[kind].add_ns(sent.at.elapsed().as_nanos() as u64);
        drop(flight);
        self.landed.notify_all();
    }

    /// No more answers come.
    fn end(&self, ended: io::Result<()>) {
        let closed = || io::ErrorKind::UnexpectedEof.into();
        self.flight().broken = Some(ended.err().unwrap_or_else(closed));
        self.landed.notify_all();
    }
}
