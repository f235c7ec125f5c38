//! What clients ask for, as events of the engine.
//!
//! Owns each request from its header to its reply. Always true: a request is answered once;
//! writes that are not whole sectors read their edges, and hold their range alone meanwhile;
//! a failed part fails the whole request. Deliberately absent: how bytes come and go (`conn`).
//!
//! ```text
//!  begin -> [payload arrives] -> Waiting (range lock) -> [Edges are read] -> Main -> reply
//! ```

use super::align::Cut;
use super::conn::{Conn, Life};
use super::{Decide, Shard};
use crate::frontend::nbd::{Command, Error, Extent, Request, Ticket};
use crate::latency::Kind;
use crate::ring::Span;
use engine::event::{Event, Refusal};
use engine::memory::{Area, Memory, Place};
use engine::types::{BufferId, RequestId, SECTOR_BYTES, Span as Sectors, Tag, Time, VolumeId};
use workload::trace::Op;

/// A CACHE command reads its range in pieces of this size.
const CACHE_BYTES: u64 = 1 << 20;

/// Numbers of the parts of one request, above its ticket.
const PART_SHIFT: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// For payload, then for the range.
    Waiting,
    Edges,
    Main,
}

/// A request that is not answered.
pub(super) struct Task {
    command: Command,
    volume: VolumeId,
    cut: Cut,
    pub buffer: Option<BufferId>,
    edges: [Option<BufferId>; 2],
    phase: Phase,
    /// Replies of the engine that are still to come.
    pending: u32,
    error: Option<Error>,
    /// Known to the range lock of its volume.
    queued: bool,
    /// Next sector that a CACHE command reads.
    next: u64,
    /// The answer to a block status request.
    extents: Vec<Extent>,
    /// When its last byte was received.
    since: Time,
}

fn range(command: &Command) -> (u64, u64) {
    match *command {
        Command::Flush => (0, 1),
        Command::Read { offset, length }
        | Command::Write { offset, length, .. }
        | Command::Trim { offset, length, .. }
        | Command::WriteZeroes { offset, length, .. }
        | Command::BlockStatus { offset, length }
        | Command::Cache { offset, length } => (offset, u64::from(length)),
    }
}

/// What a recording says of a request: the sectors that it touches. Hints and questions are none.
fn recorded(command: &Command, cut: &Cut) -> Option<(Op, Sectors)> {
    match command {
        Command::Flush => Some((Op::Flush, Sectors::new(0, 0))),
        Command::Read { .. } => Some((Op::Read, cut.outer)),
        Command::Write { .. } => Some((Op::Write, cut.outer)),
        Command::Trim { .. } | Command::WriteZeroes { .. } => Some((Op::Discard, cut.outer)),
        Command::BlockStatus { .. } | Command::Cache { .. } => None,
    }
}

/// As what a request is measured. Nobody waits for hints and questions as for a disk.
fn measured(command: &Command) -> Option<Kind> {
    match command {
        Command::Flush => Some(Kind::Flush),
        Command::Read { .. } => Some(Kind::Read),
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } => {
            Some(Kind::Write)
        }
        Command::BlockStatus { .. } | Command::Cache { .. } => None,
    }
}

fn id(conn: &Conn, ticket: Ticket, part: u32) -> RequestId {
    RequestId {
        connection: conn.id,
        number: u32::from(ticket.0) | part << PART_SHIFT,
    }
}

fn task(conn: &mut Conn, ticket: Ticket) -> &mut Task {
    let task = conn.tasks[usize::from(ticket.0)].as_mut();
    task.expect("a ticket in use has a task")
}

impl Conn {
    /// What its requests under way change of a volume.
    pub(super) fn changes(&self, volume: VolumeId, into: &mut Vec<Sectors>) {
        for task in self.tasks.iter().flatten().filter(|it| it.volume == volume) {
            let changes = matches!(
                task.command,
                Command::Write { .. } | Command::WriteZeroes { .. } | Command::Trim { .. }
            );
            if changes {
                into.push(task.cut.outer);
            }
        }
    }

    /// What is answered to a block status request.
    pub(super) fn set_extents(&mut self, ticket: Ticket, extents: Vec<Extent>) {
        task(self, ticket).extents = extents;
    }
}

impl<E: Decide> Shard<E> {
    /// Takes a request that the session has let in.
    pub(super) fn begin(&mut self, slot: u32, conn: &mut Conn, request: Request) {
        let Request { ticket, command } = request;
        let volume = conn
            .volume
            .expect("requests follow the choice of an export");
        if measured(&command).is_some() && !self.may_take(volume, slot) {
            return self.hold_back(conn, request);
        }
        let (offset, length) = range(&command);
        let cut = Cut::new(offset, length);
        let edge = |at: usize| cut.edges[at].as_ref().map_or(0, |_| SECTOR_BYTES);
        let sizes = match command {
            Command::Read { .. } => [cut.outer_bytes(), 0, 0],
            Command::Write { .. } => [cut.outer_bytes(), edge(0), edge(1)],
            Command::WriteZeroes { .. } => [0, edge(0), edge(1)],
            Command::Cache { .. } => [cut.outer_bytes().min(CACHE_BYTES), 0, 0],
            Command::Flush | Command::Trim { .. } | Command::BlockStatus { .. } => [0; 3],
        };
        let Some([buffer, head, tail]) = self.allocate(slot, conn, sizes) else {
            return self.hold_back(conn, request);
        };
        if let Some((op, span)) = recorded(&command, &cut) {
            self.record(volume, op, span);
            let carries = matches!(op, Op::Read | Op::Write);
            if let Some(volume) = self.volumes.get_mut(&volume) {
                let bytes = if carries { length } else { 0 };
                volume.throttle.charge(self.now, bytes);
            }
        }
        let unaligned = !cut.is_aligned() && !matches!(command, Command::Flush);
        self.counters.unaligned += u64::from(unaligned);
        let (next, skip) = (cut.outer.sector, cut.skip as u64);
        let at = usize::from(ticket.0);
        if conn.tasks.len() <= at {
            conn.tasks.resize_with(at + 1, || None);
        }
        let before = conn.tasks[at].replace(Task {
            command,
            volume,
            cut,
            buffer,
            edges: [head, tail],
            phase: Phase::Waiting,
            pending: 0,
            error: None,
            queued: false,
            next,
            extents: Vec::new(),
            since: conn.received,
        });
        assert!(before.is_none(), "a ticket is in use once");
        conn.tasks_live += 1;
        match command {
            Command::Write { .. } => self.expect_payload(conn, ticket, skip),
            _ => self.ready(slot, conn, ticket),
        }
    }

    /// A request is complete: it takes its range, if it changes one.
    pub(super) fn ready(&mut self, slot: u32, conn: &mut Conn, ticket: Ticket) {
        let since = conn.received;
        let task = task(conn, ticket);
        task.since = since;
        let (span, alone) = match task.command {
            Command::Write { .. } | Command::WriteZeroes { .. } => {
                (task.cut.outer, !task.cut.is_aligned())
            }
            Command::Trim { .. } => (task.cut.inner, false),
            _ => return self.start(conn, ticket),
        };
        if span.sectors == 0 {
            // A trim inside one sector: there is nothing to give back.
            return self.finish(slot, conn, ticket);
        }
        let Some(volume) = self.volumes.get_mut(&task.volume) else {
            task.error = Some(Error::Shutdown);
            return self.finish(slot, conn, ticket);
        };
        task.queued = true;
        if volume.ranges.acquire((slot, ticket.0), span, alone) {
            self.start(conn, ticket);
        }
    }

    /// The range lock has come round to this request.
    pub(super) fn unlock(&mut self, slot: u32, ticket: Ticket) {
        self.with_conn(slot, |shard, conn| {
            if conn.life != Life::Dead {
                return shard.start(conn, ticket);
            }
            let task = shard.end_task(slot, conn, ticket);
            if let Some(buffer) = task.buffer {
                shard.leave_over(conn, buffer);
            }
        });
    }

    fn start(&mut self, conn: &mut Conn, ticket: Ticket) {
        let task = task(conn, ticket);
        let edges = task.edges;
        if edges.iter().all(Option::is_none) {
            return self.main(conn, ticket);
        }
        task.phase = Phase::Edges;
        task.pending = edges.iter().flatten().count() as u32;
        let volume = task.volume;
        let sectors = task.cut.edges.clone();
        for part in 0..2 {
            if let (Some(buffer), Some(edge)) = (edges[part], &sectors[part]) {
                self.feed(Event::Read {
                    volume,
                    request: id(conn, ticket, part as u32 + 1),
                    sector: edge.sector,
                    sectors: 1,
                    buffer,
                });
            }
        }
    }

    /// Asks the engine for the request itself.
    fn main(&mut self, conn: &mut Conn, ticket: Ticket) {
        let request = id(conn, ticket, 0);
        let task = task(conn, ticket);
        task.phase = Phase::Main;
        let volume = task.volume;
        let (outer, inner) = (task.cut.outer, task.cut.inner);
        let buffer = || task.buffer.expect("data needs a buffer");
        let event = match task.command {
            Command::Read { .. } => Event::Read {
                volume,
                request,
                sector: outer.sector,
                sectors: outer.sectors,
                buffer: buffer(),
            },
            Command::Write { fua, .. } => Event::Write {
                volume,
                request,
                sector: outer.sector,
                sectors: outer.sectors,
                buffer: buffer(),
                fua,
                tag: Tag::NONE,
            },
            Command::Flush => Event::Flush { volume, request },
            Command::Trim { fua, .. } => Event::Discard {
                volume,
                request,
                sector: inner.sector,
                sectors: inner.sectors,
                fua,
            },
            Command::WriteZeroes { .. } => return self.main_zeroes(conn, ticket),
            Command::Cache { .. } => Event::Read {
                volume,
                request,
                sector: task.next,
                sectors: (outer.end() - task.next).min(CACHE_BYTES / SECTOR_BYTES),
                buffer: buffer(),
            },
            Command::BlockStatus { offset, length } => {
                task.pending = 1;
                let extents_max = conn.session.extents_max(ticket);
                let asked = (volume, outer, offset, u64::from(length), extents_max);
                return self.ask_allocation(conn, ticket, request, asked);
            }
        };
        task.pending = 1;
        self.feed(event);
    }

    /// Whole sectors as zeroes, edges as writes.
    fn main_zeroes(&mut self, conn: &mut Conn, ticket: Ticket) {
        let whole = id(conn, ticket, 0);
        let parts = [id(conn, ticket, 1), id(conn, ticket, 2)];
        let task = task(conn, ticket);
        let Command::WriteZeroes { fua, allocate, .. } = task.command else {
            panic!("called for this command only");
        };
        let (volume, inner) = (task.volume, task.cut.inner);
        let mut events = Vec::with_capacity(3);
        for (part, edge) in task.cut.edges.iter().enumerate() {
            if let (Some(buffer), Some(edge)) = (task.edges[part], edge) {
                events.push(Event::Write {
                    volume,
                    request: parts[part],
                    sector: edge.sector,
                    sectors: 1,
                    buffer,
                    fua,
                    tag: Tag::NONE,
                });
            }
        }
        if inner.sectors > 0 {
            events.push(Event::WriteZeroes {
                volume,
                request: whole,
                sector: inner.sector,
                sectors: inner.sectors,
                fua,
                allocate,
            });
        }
        task.pending = events.len() as u32;
        events.into_iter().for_each(|event| self.feed(event));
    }

    /// A reply of the engine.
    pub(super) fn take_reply(&mut self, request: RequestId, result: Result<(), Refusal>) {
        let slot = request.connection.0 & 0xffff;
        let ticket = Ticket(request.number as u16);
        self.with_conn(slot, |shard, conn| {
            assert_eq!(
                conn.id, request.connection,
                "a number outlives its requests"
            );
            let task = task(conn, ticket);
            assert!(task.pending > 0, "a request is replied to once");
            task.pending -= 1;
            if let Err(refusal) = result {
                shard.tell_full(task.volume, result);
                task.error.get_or_insert(Error::from(refusal));
            }
            if task.pending == 0 {
                shard.advance(slot, conn, ticket);
            }
        });
    }

    fn advance(&mut self, slot: u32, conn: &mut Conn, ticket: Ticket) {
        let task = task(conn, ticket);
        if task.error.is_some() {
            return self.finish(slot, conn, ticket);
        }
        match (task.phase, task.command) {
            (Phase::Edges, _) => {
                self.merge(conn, ticket);
                self.main(conn, ticket);
            }
            (Phase::Main, Command::Cache { .. }) => {
                task.next += CACHE_BYTES / SECTOR_BYTES;
                let more = task.next < task.cut.outer.end();
                match more && conn.life == Life::Open {
                    true => self.main(conn, ticket),
                    false => self.finish(slot, conn, ticket),
                }
            }
            _ => self.finish(slot, conn, ticket),
        }
    }

    /// Puts the old bytes around a write, or zeroes into an edge.
    fn merge(&mut self, conn: &mut Conn, ticket: Ticket) {
        let task = task(conn, ticket);
        for (part, edge) in task.cut.edges.iter().enumerate() {
            let (Some(old), Some(edge)) = (task.edges[part], edge) else {
                continue;
            };
            let old = Place::new(Area::Buffer(old), 0);
            let (from, to) = (edge.fresh.start as u64, edge.fresh.end as u64);
            let Some(buffer) = task.buffer else {
                self.memory.zero(old.plus(from), to - from);
                continue;
            };
            let offset = (edge.sector - task.cut.outer.sector) * SECTOR_BYTES;
            let new = Place::new(Area::Buffer(buffer), offset);
            if from > 0 {
                self.memory.copy(old, new, from);
            }
            if to < SECTOR_BYTES {
                self.memory
                    .copy(old.plus(to), new.plus(to), SECTOR_BYTES - to);
            }
        }
    }

    /// Answers a request and gives back what it held.
    fn finish(&mut self, slot: u32, conn: &mut Conn, ticket: Ticket) {
        let task = self.end_task(slot, conn, ticket);
        let Task {
            command,
            buffer,
            error,
            extents,
            since,
            ..
        } = task;
        if conn.life == Life::Dead || conn.life == Life::Farewell {
            buffer
                .into_iter()
                .for_each(|buffer| self.free(conn, buffer));
            return;
        }
        match (command, error, buffer) {
            (Command::Read { length, .. }, None, Some(buffer)) => {
                let head = conn.session.read_reply(ticket);
                self.answer(slot, conn, head.as_bytes());
                let place = Place::new(Area::Buffer(buffer), task.cut.skip as u64);
                let span = Span::place(&self.memory, place, u64::from(length));
                self.answer_payload(conn, span, buffer);
            }
            (Command::BlockStatus { .. }, None, _) => {
                let reply = conn.session.status_reply(ticket, &extents);
                self.answer(slot, conn, &reply);
            }
            (_, error, buffer) => {
                buffer
                    .into_iter()
                    .for_each(|buffer| self.free(conn, buffer));
                let head = conn.session.reply(ticket, error.map_or(Ok(()), Err));
                self.answer(slot, conn, head.as_bytes());
            }
        }
        if let Some(kind) = measured(&command) {
            self.answer_measured(conn, kind, since);
        }
        if !conn.drive_queued {
            conn.drive_queued = true;
            self.to_drive.push_back(slot);
        }
    }

    /// Takes a task off the books, with its lock and edges, but not its buffer.
    fn end_task(&mut self, slot: u32, conn: &mut Conn, ticket: Ticket) -> Task {
        let at = usize::from(ticket.0);
        let task = conn.tasks[at].take().expect("a request ends once");
        conn.tasks_live -= 1;
        if task.queued
            && let Some(volume) = self.volumes.get_mut(&task.volume)
        {
            volume.ranges.release((slot, ticket.0), &mut self.unlocked);
        }
        for edge in task.edges.into_iter().flatten() {
            self.free(conn, edge);
        }
        task
    }

    /// Drops the requests of a dead connection that the engine does not know.
    pub(super) fn withdraw_all(&mut self, slot: u32, conn: &mut Conn) {
        for at in 0..conn.tasks.len() {
            let Some(task) = &mut conn.tasks[at] else {
                continue;
            };
            if task.phase != Phase::Waiting {
                continue;
            }
            let key = (slot, at as u16);
            let volume = self.volumes.get_mut(&task.volume);
            if task.queued
                && let Some(volume) = volume
                && !volume.ranges.withdraw(key, &mut self.unlocked)
            {
                // Granted in this very round: `unlock` finds that the connection is dead.
                continue;
            }
            task.queued = false;
            let task = self.end_task(slot, conn, Ticket(at as u16));
            if let Some(buffer) = task.buffer {
                self.leave_over(conn, buffer);
            }
        }
    }
}
