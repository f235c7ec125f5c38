//! An NBD client that costs little, so that it is not what is measured.
//!
//! Owns its connections to one export, each with many requests in flight, driven by one thread.
//! Always true: requests leave in one system call for each batch of answers, answers are taken
//! out of one buffer where they lie, and no request allocates. Deliberately absent: a look at the
//! bytes of a read; the drills look at those.

use super::work::{BLOCK_BYTES, Carrier, Slot, Tally, Verb, Work};
use crate::client;
use host::nbd::{self, RequestHead, command};
use host::sys;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use workload::rng::Rng;

/// Far more than all answers to a usual depth.
const INPUT_BYTES: usize = 512 << 10;
/// Of the largest write.
const PAYLOAD_BYTES: u64 = 64 << 10;

struct Lane {
    stream: UnixStream,
    out: Vec<u8>,
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of a read that are still to come, and whose they are.
    body: usize,
    answered: usize,
}

/// One or more connections as one queue.
pub struct Pipe {
    lanes: Vec<Lane>,
    slots: Vec<Slot>,
    payload: Vec<u8>,
    writes: u64,
}

impl Pipe {
    pub fn connect(socket: &Path, export: &str, connections: usize) -> io::Result<Pipe> {
        assert!(connections > 0, "a pipe has at least one connection");
        let streams = (0..connections).map(|_| client::open(socket, export));
        Ok(Pipe::over(streams.collect::<io::Result<_>>()?))
    }

    /// Over connections that have chosen their export.
    pub fn over(streams: Vec<UnixStream>) -> Pipe {
        let lane = |stream| Lane {
            stream,
            out: Vec::new(),
            input: vec![0; INPUT_BYTES],
            start: 0,
            end: 0,
            body: 0,
            answered: 0,
        };
        Pipe {
            lanes: streams.into_iter().map(lane).collect(),
            slots: Vec::new(),
            payload: noise().repeat((PAYLOAD_BYTES / BLOCK_BYTES) as usize),
            writes: 0,
        }
    }

    /// Puts a request behind the others of its connection. False if there are no more.
    fn ask(&mut self, number: usize, now: Instant, work: &mut Work) -> bool {
        let Some(slot) = work.next(now) else {
            return false;
        };
        assert!(slot.bytes <= PAYLOAD_BYTES, "a payload is there for it");
        self.slots[number] = slot;
        self.queue(number);
        true
    }

    fn queue(&mut self, number: usize) {
        let slot = self.slots[number];
        let (command, length) = match slot.verb {
            Verb::Read => (command::READ, slot.bytes),
            Verb::Sealed if slot.written => (command::FLUSH, 0),
            Verb::Write | Verb::Sealed => (command::WRITE, slot.bytes),
            Verb::Flush => (command::FLUSH, 0),
        };
        let head = RequestHead {
            magic: nbd::REQUEST_MAGIC,
            flags: 0,
            command,
            cookie: number as u64,
            offset: if length > 0 {
                slot.block * slot.bytes
            } else {
                0
            },
            length: length as u32,
        };
        let lanes = self.lanes.len();
        let lane = &mut self.lanes[number % lanes];
        lane.out.extend_from_slice(&head.encode());
        if command == command::WRITE {
            // Each write differs, so that nobody may keep one copy of all.
            self.writes += 1;
            self.payload[..8].copy_from_slice(&self.writes.to_le_bytes());
            lane.out.extend_from_slice(&self.payload[..length as usize]);
        }
    }

    /// Takes one answer. True when its request is over.
    fn settle(&mut self, number: usize, now: Instant, tally: &mut Tally) -> bool {
        let slot = &mut self.slots[number];
        if slot.verb == Verb::Sealed && !slot.written {
            slot.written = true;
            self.queue(number);
            return false;
        }
        tally.add(slot.sent, now);
        true
    }

    /// The first connection at or after `from` that has something to read.
    fn readable(&self, from: usize) -> io::Result<usize> {
        match self.lanes.len() {
            1 => Ok(0),
            count => {
                let order = (0..count).map(|step| &self.lanes[(from + step) % count].stream);
                Ok((from + sys::wait_readable(order)?) % count)
            }
        }
    }
}

impl Carrier for Pipe {
    fn carry(&mut self, work: &mut Work, lasts: Duration) -> io::Result<Tally> {
        let mut pace = Pace::new(work.per_second);
        let began = Instant::now();
        let until = began + lasts;
        let mut tally = Tally::new(began, lasts);
        self.slots.clear();
        self.slots.resize(work.depth, Slot::idle(began));
        let numbers = 0..work.depth;
        let mut open = numbers.filter(|&it| self.ask(it, began, work)).count();
        let mut lane = 0;
        while open > 0 {
            self.lanes.iter_mut().try_for_each(Lane::send)?;
            lane = self.readable(lane)?;
            self.lanes[lane].receive()?;
            let now = Instant::now();
            while let Some(number) = self.lanes[lane].answer(&self.slots)? {
                if !self.settle(number, now, &mut tally) {
                    continue;
                }
                let more = pace.due(now) < until && self.ask(number, pace.wait(now), work);
                open -= usize::from(!more);
            }
            lane = (lane + 1) % self.lanes.len();
        }
        Ok(tally)
    }
}

impl Lane {
    fn send(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        self.input.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        match self.stream.read(&mut self.input[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }

    /// The number of the next request whose answer is complete.
    fn answer(&mut self, slots: &[Slot]) -> io::Result<Option<usize>> {
        if self.body == 0 {
            let Some(head) = self.input[self.start..self.end].first_chunk::<16>() else {
                return Ok(None);
            };
            self.answered = judge(head, slots.len())?;
            self.start += head.len();
            let slot = &slots[self.answered];
            if slot.verb == Verb::Read {
                self.body = slot.bytes as usize;
            }
        }
        let taken = self.body.min(self.end - self.start);
        self.start += taken;
        self.body -= taken;
        Ok((self.body == 0).then_some(self.answered))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // A goodbye that is not heard changes nothing.
        let _ = self.stream.write_all(&RequestHead::GOODBYE.encode());
    }
}

/// Looks at the head of a simple reply and returns whose it is.
fn judge(head: &[u8; 16], slots: usize) -> io::Result<usize> {
    let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if word(0) != nbd::SIMPLE_REPLY_MAGIC {
        return Err(io::Error::other("the answer is no simple reply"));
    }
    if word(4) != 0 {
        return Err(io::Error::from_raw_os_error(word(4) as i32));
    }
    match word(12) as usize {
        number if word(8) == 0 && number < slots => Ok(number),
        _ => Err(io::Error::other("the answer belongs to no request")),
    }
}

/// Begins of requests, no closer together than asked.
struct Pace {
    gap: Duration,
    next: Option<Instant>,
}

impl Pace {
    fn new(per_second: Option<u32>) -> Pace {
        Pace {
            gap: per_second.map_or(Duration::ZERO, |rate| Duration::from_secs(1) / rate.max(1)),
            next: None,
        }
    }

    fn due(&self, now: Instant) -> Instant {
        self.next.map_or(now, |next| next.max(now))
    }

    /// Sleeps until the next one is due, and says when it began.
    fn wait(&mut self, now: Instant) -> Instant {
        if self.gap.is_zero() {
            return now;
        }
        let due = self.due(now);
        std::thread::sleep(due - now);
        self.next = Some(due + self.gap);
        Instant::now()
    }
}

/// A block that does not compress.
pub fn noise() -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    Rng::new(0).fill(&mut block);
    block
}
