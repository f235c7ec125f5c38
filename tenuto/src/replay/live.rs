//! A trace against a live volume, at the times of the trace.
//!
//! Owns one connection to each volume: this thread sends, another takes the answers. Always true:
//! a request leaves at its time whether earlier ones are answered or not, but for two reasons that
//! are counted: so many are in flight that no more are, or it touches what a write in flight
//! touches, which no file system would do; every sector that is written carries its name, and the
//! last write of each is told from all others when the volume is read back. Deliberately absent:
//! what the volume is for: its content is gone.

use super::machine::SECTORS_MAX;
use crate::demo::client;
use crate::nbd::{self, RequestHead, command};
use engine::snapshot::Histogram;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use workload::stamp::{self, Reading};
use workload::trace::{Op, Record, SECTOR_BYTES};

const IN_FLIGHT_MAX: usize = 1024;
/// Answers that nobody gives end the replay.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK_SECTORS: u64 = 8;
/// Read back in pieces of this size at most.
const VERIFY_SECTORS: u64 = 512;
const READ_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Sent {
    kind: Kind,
    sector: u64,
    sectors: u64,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Other,
}

/// What both threads of a connection see.
#[derive(Default)]
struct Flight {
    sent: HashMap<u64, Sent>,
    latency: [Histogram; 3],
    answered: u64,
    errors: u64,
    broken: Option<io::Error>,
}

#[derive(Default)]
struct Shared {
    flight: Mutex<Flight>,
    landed: Condvar,
}

impl Shared {
    fn flight(&self) -> MutexGuard<'_, Flight> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One volume under replay.
pub struct Lane {
    stream: UnixStream,
    shared: Arc<Shared>,
    answers: Option<JoinHandle<()>>,
    size_sectors: u64,
    tag: u64,
    cookie: u64,
    serial: u64,
    frame: Vec<u8>,
    /// Serial of the last write of each sector, by block; what was discarded is zero.
    written: HashMap<u64, [Option<u64>; BLOCK_SECTORS as usize]>,
    pub told: Told,
}

/// What came of a lane.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub requests: u64,
    pub bytes: u64,
    /// Beyond the end of the volume, and so not sent.
    pub outside: u64,
    /// Waited for a place, or for a write that they overlap.
    pub crowded: u64,
    pub overlapping: u64,
    /// How late requests left.
    pub lag: Histogram,
    pub lag_max: Duration,
    pub errors: u64,
    pub latency: [Histogram; 3],
    pub verified_sectors: u64,
    pub wrong_sectors: u64,
    pub first_wrong: Option<u64>,
}

impl Lane {
    /// `tag` tells the data of this replay from that of others.
    pub fn connect(socket: &Path, name: &str, size_bytes: u64, tag: u64) -> io::Result<Lane> {
        let stream = client::open(socket, name)?;
        let shared = Arc::new(Shared::default());
        let (input, seen) = (stream.try_clone()?, shared.clone());
        // A slow volume is no reason to give up while others are answered.
        input.set_read_timeout(None)?;
        let answers = std::thread::Builder::new()
            .name("replay-answers".into())
            .spawn(move || take_answers(input, &seen))?;
        Ok(Lane {
            stream,
            shared,
            answers: Some(answers),
            size_sectors: size_bytes / SECTOR_BYTES,
            tag,
            cookie: 0,
            serial: 0,
            frame: Vec::new(),
            written: HashMap::new(),
            told: Told::default(),
        })
    }

    /// Sends a request of the trace that is due at `due`.
    pub fn send(&mut self, record: &Record, due: Instant) -> io::Result<()> {
        let (mut sector, end) = (record.sector, record.sector + u64::from(record.sectors));
        if end > self.size_sectors {
            self.told.outside += 1;
            return Ok(());
        }
        self.told.requests += 1;
        self.told.bytes += u64::from(record.sectors) * SECTOR_BYTES;
        loop {
            let sectors = (end - sector).min(SECTORS_MAX);
            self.wait_for_place(record.op, sector, sectors)?;
            let lag = Instant::now().saturating_duration_since(due);
            self.told.lag.add_ns(lag.as_nanos() as u64);
            self.told.lag_max = self.told.lag_max.max(lag);
            self.put(record.op, sector, sectors)?;
            sector += sectors;
            if sector >= end {
                return Ok(());
            }
        }
    }

    fn put(&mut self, op: Op, sector: u64, sectors: u64) -> io::Result<()> {
        let (command, kind) = match op {
            Op::Read => (command::READ, Kind::Read),
            Op::Write => (command::WRITE, Kind::Write),
            Op::Flush => (command::FLUSH, Kind::Other),
            Op::Discard => (command::TRIM, Kind::Other),
        };
        self.cookie += 1;
        let flush = op == Op::Flush;
        let head = RequestHead {
            magic: nbd::REQUEST_MAGIC,
            flags: 0,
            command,
            cookie: self.cookie,
            offset: if flush { 0 } else { sector * SECTOR_BYTES },
            length: if flush {
                0
            } else {
                (sectors * SECTOR_BYTES) as u32
            },
        };
        self.frame.clear();
        self.frame.extend_from_slice(&head.encode());
        if matches!(op, Op::Write | Op::Discard) {
            self.serial += 1;
            let serial = (op == Op::Write).then_some(self.serial);
            self.note(sector, sectors, serial);
        }
        if op == Op::Write {
            let from = self.frame.len();
            self.frame.resize(from + head.length as usize, 0);
            stamp::fill(&mut self.frame[from..], self.tag, sector, self.serial);
        }
        let sent = Sent {
            kind,
            sector,
            sectors,
            at: Instant::now(),
        };
        self.shared.flight().sent.insert(self.cookie, sent);
        self.stream.write_all(&self.frame)
    }

    fn note(&mut self, sector: u64, sectors: u64, serial: Option<u64>) {
        for sector in sector..sector + sectors {
            let block = self.written.entry(sector / BLOCK_SECTORS);
            let block = block.or_insert([Some(0); BLOCK_SECTORS as usize]);
            block[(sector % BLOCK_SECTORS) as usize] = serial;
        }
    }

    /// Waits until there is a place, and no write in flight that this one overlaps.
    fn wait_for_place(&mut self, op: Op, sector: u64, sectors: u64) -> io::Result<()> {
        let changes = matches!(op, Op::Write | Op::Discard);
        let overlaps = |sent: &Sent| {
            let meets = sent.sector < sector + sectors && sector < sent.sector + sent.sectors;
            meets && changes && sent.kind != Kind::Read && sent.sectors > 0
        };
        let (mut flight, mut crowded, mut overlapping) = (self.shared.flight(), 0, 0);
        loop {
            let full = flight.sent.len() >= IN_FLIGHT_MAX;
            let meets = flight.sent.values().any(overlaps);
            if !full && !meets {
                break;
            }
            crowded |= u64::from(full);
            overlapping |= u64::from(meets);
            flight = wait(&self.shared, flight)?;
        }
        drop(flight);
        self.told.crowded += crowded;
        self.told.overlapping += overlapping;
        Ok(())
    }

    /// Waits until all that was sent is answered.
    pub fn settle(&mut self) -> io::Result<()> {
        let mut flight = self.shared.flight();
        while !flight.sent.is_empty() {
            flight = wait(&self.shared, flight)?;
        }
        self.told.errors = flight.errors;
        self.told.latency = flight.latency;
        Ok(())
    }

    /// Ends the connection in order.
    pub fn close(&mut self) -> io::Result<()> {
        self.stream.write_all(&RequestHead::GOODBYE.encode())?;
        if let Some(answers) = self.answers.take() {
            answers.join().expect("a panic ends the process");
        }
        Ok(())
    }

    /// Reads back every block that was written, through a connection of its own.
    pub fn verify(&mut self, socket: &Path, name: &str) -> io::Result<()> {
        let mut client = client::Client::connect(socket, name)?;
        let mut blocks: Vec<u64> = self.written.keys().copied().collect();
        blocks.sort_unstable();
        let mut bytes = vec![0; (VERIFY_SECTORS * SECTOR_BYTES) as usize];
        let mut at = 0;
        while let Some(&first) = blocks.get(at) {
            let most = (VERIFY_SECTORS / BLOCK_SECTORS) as usize;
            let run = blocks[at..].iter().take(most).enumerate();
            let count = run
                .take_while(|(n, block)| **block == first + *n as u64)
                .count();
            let from = first * BLOCK_SECTORS;
            let upto = ((first + count as u64) * BLOCK_SECTORS).min(self.size_sectors);
            let bytes = &mut bytes[..((upto - from) * SECTOR_BYTES) as usize];
            client.read(from * SECTOR_BYTES, bytes)?;
            for (sector, found) in (from..upto).zip(bytes.chunks_exact(SECTOR_BYTES as usize)) {
                self.judge(sector, found);
            }
            at += count;
        }
        Ok(())
    }

    fn judge(&mut self, sector: u64, found: &[u8]) {
        let block = &self.written[&(sector / BLOCK_SECTORS)];
        let right = match block[(sector % BLOCK_SECTORS) as usize] {
            // It was there before.
            Some(0) => return,
            Some(serial) => {
                let tag = self.tag;
                stamp::read(found)
                    == Reading::Stamped {
                        tag,
                        sector,
                        serial,
                    }
            }
            None => stamp::read(found) == Reading::Zero,
        };
        self.told.verified_sectors += 1;
        if !right {
            self.told.wrong_sectors += 1;
            self.told.first_wrong.get_or_insert(sector);
        }
    }
}

/// Waits for an answer; an error where there will be none.
fn wait<'a>(
    shared: &'a Shared,
    flight: MutexGuard<'a, Flight>,
) -> io::Result<MutexGuard<'a, Flight>> {
    if let Some(why) = &flight.broken {
        return Err(io::Error::new(why.kind(), why.to_string()));
    }
    let answered = flight.answered;
    let waited = shared.landed.wait_timeout(flight, PATIENCE);
    let (flight, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
    match timeout.timed_out() && flight.answered == answered {
        true => Err(io::Error::other("no answer for a minute")),
        false => Ok(flight),
    }
}

fn take_answers(mut stream: UnixStream, shared: &Shared) {
    let ended = answers(&mut stream, shared);
    let mut flight = shared.flight();
    let closed = || io::ErrorKind::UnexpectedEof.into();
    flight.broken = Some(ended.err().unwrap_or_else(closed));
    shared.landed.notify_all();
}

fn answers(stream: &mut UnixStream, shared: &Shared) -> io::Result<()> {
    let mut input = io::BufReader::with_capacity(READ_BYTES, stream);
    let mut head = [0; 16];
    loop {
        match input.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != nbd::SIMPLE_REPLY_MAGIC {
            return Err(io::Error::other("the answer is no simple reply"));
        }
        let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
        let sent = shared.flight().sent.get(&cookie).copied();
        let sent = sent.ok_or_else(|| io::Error::other("the answer belongs to no request"))?;
        let failed = word(4) != 0;
        if sent.kind == Kind::Read && !failed {
            let bytes = sent.sectors * SECTOR_BYTES;
            io::copy(&mut input.by_ref().take(bytes), &mut io::sink())?;
        }
        let mut flight = shared.flight();
        flight.sent.remove(&cookie);
        flight.answered += 1;
        flight.errors += u64::from(failed);
        let kind = sent.kind as usize;
        flight.latency[kind].add_ns(sent.at.elapsed().as_nanos() as u64);
        drop(flight);
        shared.landed.notify_all();
    }
}
