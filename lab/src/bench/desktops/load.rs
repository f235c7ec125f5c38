//! Desktops that do not wait for their storage: an open loop over many connections.
//!
//! Owns a connection for each desktop, and one thread that serves them all. Always true: a desktop
//! asks when its trace says so, whatever became of its earlier requests; a response counts from
//! that moment, however long its request waited on the way or in line; a desktop has no more in
//! flight than a disk of a guest has, and what is in line leaves in order; what is not answered in
//! the end counts with the time that it has waited. Deliberately absent: a look at the bytes of a
//! read; the drills and `trace replay` look at those.

use super::responses::Responses;
use crate::bench::pipe;
use crate::client;
use host::nbd::{self, RequestHead, command};
use host::origin::san::San;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::timerfd::TimerFd;
use workload::trace::{Op, Record, SECTOR_BYTES};

/// Of one desktop, as a disk of a guest has.
pub const IN_FLIGHT_MAX: usize = 32;
const INPUT_BYTES: usize = 256 << 10;
const EVENTS: usize = 256;
/// The event of the timer; desktops have their numbers.
const TIMER: u64 = u64::MAX;
/// After the last request, for those that are nearly answered.
const REST: Duration = Duration::from_millis(200);
/// Requests go out in pieces of so much, so that one desktop does not hold up the others.
const OUT_BYTES: usize = 1 << 20;

/// A request of a desktop: when it asked, and what.
#[derive(Clone, Copy)]
struct Ask {
    due_ns: u64,
    op: Op,
    offset: u64,
    bytes: u32,
}

struct Desktop {
    stream: UnixStream,
    /// What waits for a place in flight.
    line: VecDeque<Ask>,
    flight: [Option<Ask>; IN_FLIGHT_MAX],
    open: usize,
    out: Vec<u8>,
    sent: usize,
    /// Whether the kernel tells when there is room again.
    waits_for_room: bool,
    head: [u8; nbd::SIMPLE_REPLY_BYTES],
    head_bytes: usize,
    /// Bytes of a read that are still to come, and whose they are.
    body: usize,
    answered: usize,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub reads: Responses,
    pub writes: Responses,
    pub flushes: Responses,
    /// How late this thread took requests out of the trace.
    pub late: Responses,
    pub errors: u64,
    /// In line, on the way or in flight at the end.
    pub unanswered: u64,
    /// Bytes that are of no use to a reader of figures, but prove what was asked.
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl Told {
    /// Of all requests together.
    pub fn all(&self) -> Responses {
        let mut all = self.reads.clone();
        all.add_all(&self.writes);
        all.add_all(&self.flushes);
        all
    }

    fn add(&mut self, op: Op, micros: u64) {
        match op {
            Op::Read => self.reads.add(micros),
            Op::Write => self.writes.add(micros),
            Op::Flush | Op::Discard => self.flushes.add(micros),
        }
    }
}

pub struct Load {
    desktops: Vec<Desktop>,
    /// A network between desktops and the cache, where the cache is not on their host.
    path: Option<San>,
    /// On that network, in the order in which they leave it.
    on_the_way: VecDeque<(u64, usize, Ask)>,
    epoll: Epoll,
    timer: TimerFd,
    input: Vec<u8>,
    payload: Vec<u8>,
    begun: Instant,
    /// It may end before its time, once all is answered.
    ends_early: bool,
    told: Told,
}

impl Load {
    /// One desktop for each export.
    pub fn connect(socket: &Path, exports: &[String], path: Option<San>) -> io::Result<Load> {
        let epoll = Epoll::new()?;
        let mut desktops = Vec::new();
        for (number, export) in exports.iter().enumerate() {
            let stream = client::open(socket, export)?;
            stream.set_nonblocking(true)?;
            let readable = EpollEvent::new(EventSet::IN, number as u64);
            epoll.ctl(ControlOperation::Add, stream.as_raw_fd(), readable)?;
            desktops.push(Desktop::over(stream));
        }
        let timer = TimerFd::new()?;
        let ticks = EpollEvent::new(EventSet::IN, TIMER);
        epoll.ctl(ControlOperation::Add, timer.as_raw_fd(), ticks)?;
        Ok(Load {
            desktops,
            path,
            on_the_way: VecDeque::new(),
            epoll,
            timer,
            input: vec![0; INPUT_BYTES],
            payload: pipe::noise(),
            begun: Instant::now(),
            ends_early: false,
            told: Told::default(),
        })
    }

    /// The same, over before its time once all is answered.
    pub fn ending_early(self) -> Load {
        Load {
            ends_early: true,
            ..self
        }
    }

    /// Asks what the records say, at their times, up to `lasts`. Calls `tick` a few times a second.
    pub fn run(
        mut self,
        records: impl Iterator<Item = Record>,
        lasts: Duration,
        mut tick: impl FnMut(Duration),
    ) -> io::Result<Told> {
        let lasts_ns = lasts.as_nanos() as u64;
        let mut records = records.peekable();
        let mut ticked = 0;
        self.begun = Instant::now();
        loop {
            let now = self.now();
            // One that is due before the end is sent, also where this loop wakes behind it: all
            // cases are asked the same.
            let due = |it: &Record| it.time_ns <= now && it.time_ns < lasts_ns;
            while let Some(record) = records.next_if(due) {
                self.told.late.add((now - record.time_ns) / 1000);
                self.arrive(&record)?;
            }
            self.leave_the_way(now)?;
            let is_over = self.ends_early && records.peek().is_none() && self.is_answered();
            if is_over || now >= lasts_ns + REST.as_nanos() as u64 {
                break;
            }
            if now >= ticked {
                ticked = now + 250_000_000;
                tick(Duration::from_nanos(now));
            }
            let next = records.peek().map(|it| it.time_ns);
            let next = next.filter(|time_ns| *time_ns < lasts_ns);
            let way = self.on_the_way.front().map(|it| it.0);
            let due = [next, way].into_iter().flatten().min();
            self.wait(due.unwrap_or(u64::MAX).min(now + 50_000_000))?;
        }
        Ok(self.ended())
    }

    fn is_answered(&self) -> bool {
        let mut desktops = self.desktops.iter();
        self.on_the_way.is_empty() && desktops.all(|it| it.line.is_empty() && it.open == 0)
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// A desktop has asked.
    fn arrive(&mut self, record: &Record) -> io::Result<()> {
        let at = record.disk.0 as usize;
        let bytes = record.sectors * SECTOR_BYTES as u32;
        let ask = Ask {
            due_ns: record.time_ns,
            op: record.op,
            offset: record.sector * SECTOR_BYTES,
            bytes,
        };
        match &mut self.path {
            Some(path) => {
                let end = path.admit(record.time_ns, bytes.into());
                self.on_the_way.push_back((end, at, ask));
                Ok(())
            }
            None => self.line_up(at, ask),
        }
    }

    fn leave_the_way(&mut self, now: u64) -> io::Result<()> {
        while let Some(&(end, at, ask)) = self.on_the_way.front() {
            if end > now {
                break;
            }
            self.on_the_way.pop_front();
            self.line_up(at, ask)?;
        }
        Ok(())
    }

    fn line_up(&mut self, at: usize, ask: Ask) -> io::Result<()> {
        self.desktops[at].line.push_back(ask);
        self.send(at)
    }

    /// Sends what has a place in flight, as far as the socket takes it.
    fn send(&mut self, at: usize) -> io::Result<()> {
        let desktop = &mut self.desktops[at];
        loop {
            desktop.fill(&self.payload, &mut self.told);
            let waits = !desktop.push()?;
            if waits != desktop.waits_for_room {
                desktop.waits_for_room = waits;
                let mut events = EventSet::IN;
                if waits {
                    events |= EventSet::OUT;
                }
                let event = EpollEvent::new(events, at as u64);
                let socket = desktop.stream.as_raw_fd();
                self.epoll.ctl(ControlOperation::Modify, socket, event)?;
            }
            if waits || !desktop.can_fill() {
                return Ok(());
            }
        }
    }

    /// Until `due`, or until a socket has something to say; takes what there is.
    fn wait(&mut self, due: u64) -> io::Result<()> {
        let mut events = [EpollEvent::default(); EVENTS];
        let mut count = self.epoll.wait(0, &mut events)?;
        // A timer costs more than a look: it is set only by who sleeps.
        let left = due.saturating_sub(self.now());
        if count == 0 && left > 0 {
            self.timer.reset(Duration::from_nanos(left), None)?;
            count = match self.epoll.wait(-1, &mut events) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                other => other?,
            };
        }
        for event in &events[..count] {
            if event.data() == TIMER {
                // It is armed again before the next wait; what it counted is of no use.
                let _ = self.timer.wait()?;
                continue;
            }
            let at = event.data() as usize;
            if event.event_set().contains(EventSet::IN) {
                self.receive(at)?;
            }
            self.send(at)?;
        }
        Ok(())
    }

    fn receive(&mut self, at: usize) -> io::Result<()> {
        let count = match self.desktops[at].stream.read(&mut self.input) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let now = self.begun.elapsed().as_nanos() as u64;
        self.desktops[at].take(&self.input[..count], now, &mut self.told)
    }

    /// Counts what has no answer.
    fn ended(mut self) -> Told {
        let now = self.now();
        let waiting = self.desktops.iter().flat_map(|desktop| {
            let flying = desktop.flight.iter().flatten();
            flying.chain(&desktop.line)
        });
        let on_the_way = self.on_the_way.iter().map(|(_, _, ask)| ask);
        for ask in waiting.chain(on_the_way) {
            self.told.unanswered += 1;
            self.told.add(ask.op, now.saturating_sub(ask.due_ns) / 1000);
        }
        for desktop in &mut self.desktops {
            // A goodbye that is not heard changes nothing.
            let _ = desktop.stream.write(&RequestHead::GOODBYE.encode());
        }
        self.told
    }
}

impl Desktop {
    fn over(stream: UnixStream) -> Desktop {
        Desktop {
            stream,
            line: VecDeque::new(),
            flight: [None; IN_FLIGHT_MAX],
            open: 0,
            out: Vec::new(),
            sent: 0,
            waits_for_room: false,
            head: [0; nbd::SIMPLE_REPLY_BYTES],
            head_bytes: 0,
            body: 0,
            answered: 0,
        }
    }

    fn can_fill(&self) -> bool {
        !self.line.is_empty() && self.open < IN_FLIGHT_MAX && self.out.len() < OUT_BYTES
    }

    /// Puts requests behind what is to be sent.
    fn fill(&mut self, payload: &[u8], told: &mut Told) {
        while self.can_fill() {
            let ask = self.line.pop_front().expect("it has one");
            let places = self.flight.iter();
            let place = places.take_while(|it| it.is_some()).count();
            let (command, offset) = match ask.op {
                Op::Read => (command::READ, ask.offset),
                Op::Write => (command::WRITE, ask.offset),
                Op::Discard => (command::TRIM, ask.offset),
                Op::Flush => (command::FLUSH, 0),
            };
            let head = RequestHead {
                magic: nbd::REQUEST_MAGIC,
                flags: 0,
                command,
                cookie: place as u64,
                offset,
                length: if ask.op == Op::Flush { 0 } else { ask.bytes },
            };
            self.out.extend_from_slice(&head.encode());
            match ask.op {
                Op::Write => {
                    told.write_bytes += u64::from(ask.bytes);
                    let mut left = ask.bytes as usize;
                    while left > 0 {
                        let part = left.min(payload.len());
                        // No two writes are alike, so that nobody may keep one copy of all.
                        let from = self.out.len();
                        self.out.extend_from_slice(&payload[..part]);
                        let name = ask.due_ns.to_le_bytes();
                        let named = part.min(name.len());
                        self.out[from..from + named].copy_from_slice(&name[..named]);
                        left -= part;
                    }
                }
                Op::Read => told.read_bytes += u64::from(ask.bytes),
                Op::Flush | Op::Discard => {}
            }
            self.flight[place] = Some(ask);
            self.open += 1;
        }
    }

    /// Writes to the socket; true when all is out.
    fn push(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Takes the answers in what was received.
    fn take(&mut self, mut input: &[u8], now: u64, told: &mut Told) -> io::Result<()> {
        while !input.is_empty() {
            if self.body > 0 {
                let part = self.body.min(input.len());
                self.body -= part;
                input = &input[part..];
            } else {
                let part = (self.head.len() - self.head_bytes).min(input.len());
                self.head[self.head_bytes..self.head_bytes + part].copy_from_slice(&input[..part]);
                self.head_bytes += part;
                input = &input[part..];
                if self.head_bytes < self.head.len() {
                    return Ok(());
                }
                self.head_bytes = 0;
                self.judge(told)?;
            }
            if self.body == 0 {
                let ask = self.flight[self.answered].take();
                let ask = ask.ok_or_else(|| io::Error::other("a request was answered twice"))?;
                self.open -= 1;
                told.add(ask.op, now.saturating_sub(ask.due_ns) / 1000);
            }
        }
        Ok(())
    }

    /// Looks at the head of an answer, and how much follows it.
    fn judge(&mut self, told: &mut Told) -> io::Result<()> {
        let head = self.head;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != nbd::SIMPLE_REPLY_MAGIC {
            return Err(io::Error::other("the answer is no simple reply"));
        }
        let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
        let place = usize::try_from(cookie).unwrap_or(usize::MAX);
        let Some(ask) = self.flight.get(place).copied().flatten() else {
            return Err(io::Error::other("the answer belongs to no request"));
        };
        self.answered = place;
        let failed = word(4) != 0;
        told.errors += u64::from(failed);
        if ask.op == Op::Read && !failed {
            self.body = ask.bytes as usize;
        }
        Ok(())
    }
}
