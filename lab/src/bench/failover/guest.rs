//! A guest that writes, flushes, and knows what must be there.
//!
//! Owns the model of its disk and the choice of its requests. Always true: requests go over one
//! connection in the order in which they are submitted, as the model wants it; each sector that is
//! written carries its place and the number of the write; a request without an answer may have
//! happened or not. Deliberately absent: what becomes of the hosts.

use crate::client::{self, Client};
use host::error::{Error, Result, cause};
use host::nbd::{REQUEST_MAGIC, RequestHead, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, command};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use workload::check::{Crash, Found, Initial, Kind, Model, Promise};
use workload::rng::Rng;
use workload::stamp;

const TAG: u64 = 1;
const SECTOR_BYTES: u64 = stamp::SECTOR_BYTES as u64;
const BLOCK_SECTORS: u64 = 8;
/// Of the first writes, which reach all of the volume.
const PIECE_SECTORS: u64 = 128;
/// Writes in flight.
pub const DEPTH: u64 = 16;
/// A flush follows so many of them.
pub const WRITES_PER_FLUSH: u64 = 64;

/// How a run of the guest has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to stop, and has its answers.
    Stopped,
    /// Its connection broke.
    Broken,
}

/// What others see of a guest that runs.
#[derive(Default)]
pub struct Meter {
    pub stop: AtomicBool,
    /// Writes and flushes.
    pub answered: AtomicU64,
    longest_flush_us: AtomicU64,
}

impl Meter {
    /// The longest flush since this was asked for last. One that is under way counts when it is
    /// answered.
    pub fn take_longest_flush(&self) -> Duration {
        Duration::from_micros(self.longest_flush_us.swap(0, Ordering::SeqCst))
    }
}

/// A meter that stops its guest when it goes, also when what watches it has failed.
pub struct Stopping<'a>(pub &'a Meter);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

pub struct Guest {
    model: Model,
    random: Rng,
    frame: Vec<u8>,
    pub flushes: u64,
}

fn failed(error: io::Error) -> Error {
    Error::failed(format!("the guest of bench failover: {}", cause(&error)))
}

impl Guest {
    pub fn new(bytes: u64, seed: u64) -> Guest {
        Guest {
            model: Model::new(TAG, bytes / SECTOR_BYTES, Promise::Prefix, Initial::Zero),
            random: Rng::new(seed),
            frame: Vec::new(),
            flushes: 0,
        }
    }

    /// Writes all of the volume, and flushes it.
    pub fn fill(&mut self, socket: &Path, export: &str) -> Result<()> {
        let mut stream = client::open(socket, export).map_err(failed)?;
        let sectors = self.model.sectors();
        for first in (0..sectors).step_by(PIECE_SECTORS as usize) {
            let count = PIECE_SECTORS.min(sectors - first);
            let answered = self.write(&mut stream, &[(first, count)]);
            answered.map_err(failed)?;
        }
        self.flush(&mut stream).map(drop).map_err(failed)?;
        leave(stream);
        Ok(())
    }

    /// Writes at random until it is told to stop, or has no connection.
    pub fn run(&mut self, socket: &Path, export: &str, meter: &Meter) -> Result<End> {
        let mut stream = client::open(socket, export).map_err(failed)?;
        match self.go_on(&mut stream, meter) {
            Ok(()) => {
                leave(stream);
                Ok(End::Stopped)
            }
            Err(error) if is_end(&error) => Ok(End::Broken),
            Err(error) => Err(failed(error)),
        }
    }

    fn go_on(&mut self, stream: &mut UnixStream, meter: &Meter) -> io::Result<()> {
        let blocks = self.model.sectors() / BLOCK_SECTORS;
        while !meter.stop.load(Ordering::SeqCst) {
            for _ in 0..WRITES_PER_FLUSH / DEPTH {
                let mut block = || self.random.scaled(blocks) * BLOCK_SECTORS;
                let places: Vec<_> = (0..DEPTH).map(|_| (block(), BLOCK_SECTORS)).collect();
                self.write(stream, &places)?;
                meter.answered.fetch_add(DEPTH, Ordering::SeqCst);
            }
            let took = self.flush(stream)?.as_micros() as u64;
            meter.longest_flush_us.fetch_max(took, Ordering::SeqCst);
            meter.answered.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Writes to all of these places together: first sectors and how many.
    fn write(&mut self, stream: &mut UnixStream, places: &[(u64, u64)]) -> io::Result<()> {
        self.frame.clear();
        for &(sector, sectors) in places {
            let serial = self.model.submit(Kind::Stamp, sector, sectors, false);
            let length = (sectors * SECTOR_BYTES) as usize;
            let offset = sector * SECTOR_BYTES;
            self.ask(command::WRITE, serial, offset, length as u32);
            let at = self.frame.len();
            self.frame.resize(at + length, 0);
            stamp::fill(&mut self.frame[at..], TAG, sector, serial);
        }
        stream.write_all(&self.frame)?;
        for _ in places {
            let serial = answer(stream)?;
            self.model.acknowledge(serial);
        }
        Ok(())
    }

    fn flush(&mut self, stream: &mut UnixStream) -> io::Result<Duration> {
        let (point, begun) = (self.model.flush_begin(), Instant::now());
        self.frame.clear();
        self.ask(command::FLUSH, 0, 0, 0);
        stream.write_all(&self.frame)?;
        answer(stream)?;
        self.model.flush_done(point);
        self.flushes += 1;
        Ok(begun.elapsed())
    }

    fn ask(&mut self, command: u16, cookie: u64, offset: u64, length: u32) {
        let head = RequestHead {
            magic: REQUEST_MAGIC,
            flags: 0,
            command,
            cookie,
            offset,
            length,
        };
        self.frame.extend_from_slice(&head.encode());
    }

    /// Reads the whole volume and judges it: every write that was flushed must be there. Goes on
    /// from what it finds.
    pub fn check(&mut self, client: &mut Client) -> Result<Found> {
        let found = self.model.verify(Crash::PowerLoss, |range, bytes| {
            let read = client.read(range.start * SECTOR_BYTES, bytes);
            read.map_err(|error| format!("read of sectors {range:?}: {error}"))
        });
        found.map_err(|violation| {
            Error::failed(format!(
                "bench failover: a volume broke its promise: {violation}"
            ))
        })
    }
}

/// Whether the other end is gone.
fn is_end(error: &io::Error) -> bool {
    let ends = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
    ];
    ends.contains(&error.kind())
}

fn leave(mut stream: UnixStream) {
    // A goodbye that is not heard changes nothing.
    let _ = stream.write_all(&RequestHead::GOODBYE.encode());
}

/// Takes an answer without a payload; whose it is.
fn answer(stream: &mut UnixStream) -> io::Result<u64> {
    let mut head = [0; SIMPLE_REPLY_BYTES];
    stream.read_exact(&mut head)?;
    let (magic, rest) = head.split_first_chunk::<4>().expect("four bytes");
    let (error, cookie) = rest.split_first_chunk::<4>().expect("four more");
    if u32::from_be_bytes(*magic) != SIMPLE_REPLY_MAGIC {
        return Err(io::Error::other("the answer is no simple reply"));
    }
    match u32::from_be_bytes(*error) {
        0 => Ok(u64::from_be_bytes(cookie.try_into().expect("eight bytes"))),
        errno => Err(io::Error::other(format!("NBD error {errno}"))),
    }
}
