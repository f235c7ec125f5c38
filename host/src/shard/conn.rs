//! One NBD connection: its socket, its session, and what it may occupy.
//!
//! Owns the bytes between the socket and the session. Always true: a client occupies a bounded
//! number of requests, payload bytes and reply bytes, and is simply not read from while it is at
//! a bound; a connection's number is given again only when neither the kernel nor the engine
//! knows it any more. Deliberately absent: what a request means (`request`), and the protocol
//! (`frontend::nbd`).
//!
//! ```text
//!  Open --DISC--> Draining --all answered, or too long--> Dead --nothing in flight--> gone
//!    |---bad protocol--> Farewell --last bytes sent-------->|
//!    |---socket closed, time limit------------------------->|
//!    |---chooses a backup--> HandedOver --all sent: another thread has it--> Dead
//! ```

use super::control::Arrival;
use super::request::Task;
use super::writer::Seen;
use super::{Alarm, Decide, Shard, tag, timer};
use crate::backup::Backup;
use crate::backup::serve::Chosen;
use crate::frontend::nbd::Exports as _;
use crate::frontend::nbd::{self, Request, Session, Step, Tls};
use crate::latency::Kind;
use crate::peer::Peer;
use crate::ring::{self, Completed, Part, Span};
use crate::waiting::Ticket;
use engine::event::Event;
use engine::memory::{Area, Place};
use engine::types::{BufferId, ConnectionId, Time, VolumeId};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Requests of one connection that are not answered, and answers that are not sent.
pub(super) const REQUESTS_MAX: u16 = 256;
/// Payload bytes of one connection, unless a single request needs more.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;
/// Bytes of replies without payload that wait to be sent; error texts come here.
const REPLY_BYTES_MAX: usize = 256 << 10;
/// A receive buffer at first, and once a client fills it: one receive and one send then serve all
/// writes of 4 KiB that it has in flight at depth 32, where 32 KiB took four of each. With many
/// clients less, so that all of them together stay bounded.
const INPUT_BYTES_MIN: usize = 4 << 10;
const INPUT_BYTES_MAX: usize = 160 << 10;
const INPUT_BYTES_MANY: usize = 32 << 10;
const CLIENTS_MANY: usize = 256;
/// Buffers of one request: its bytes and the sectors at both edges.
pub(super) const BUFFERS_MAX: usize = 3;
/// A client must have chosen its export by then.
const HANDSHAKE_MILLIS_MAX: u64 = 30_000;
/// How long requests of a client that said goodbye may take.
const DRAIN_MILLIS_MAX: u64 = 30_000;
/// A client that holds buffers without moving for so long makes room when others need it.
pub(super) const STUCK_MILLIS_MAX: u64 = 30_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The client is done; its requests are still answered.
    Draining,
    /// Nothing more is answered; what is queued is still sent.
    Farewell,
    /// It has chosen a backup, which a thread of its own serves; what is queued is still sent.
    HandedOver,
    /// The socket is shut down; operations in flight end.
    Dead,
}

/// A write whose payload is arriving.
struct Taking {
    ticket: nbd::Ticket,
    buffer: BufferId,
    /// Where in the buffer the next byte goes.
    at: u64,
}

/// Replies in order, not handed to the socket yet.
#[derive(Default)]
struct Outbox {
    owned: Vec<u8>,
    parts: Vec<Part>,
    buffers: Vec<BufferId>,
    replies: usize,
    /// Requests among them that are measured, and when they were picked up.
    measured: Vec<(Kind, Time)>,
}

impl Outbox {
    fn bytes(&mut self, bytes: &[u8]) {
        let start = self.owned.len();
        self.owned.extend_from_slice(bytes);
        let end = self.owned.len();
        match self.parts.last_mut() {
            Some(Part::Owned(last)) if last.end == start => last.end = end,
            _ => self.parts.push(Part::Owned(start..end)),
        }
    }
}

/// What a client that has chosen a backup goes on with.
pub(super) type Taken = (Arc<Backup>, Chosen);

pub(super) struct Conn {
    socket: OwnedFd,
    peer: Peer,
    /// It was shown an export that can be written.
    writes: bool,
    pub id: ConnectionId,
    pub session: Session,
    pub volume: Option<VolumeId>,
    pub life: Life,
    /// Given away while a receive is in flight.
    input: Vec<u8>,
    start: usize,
    end: usize,
    receiving: bool,
    sending: bool,
    watching: bool,
    hung_up: bool,
    taking: Option<Taking>,
    /// What it will hear when it is let in; nothing of it is read until then.
    pub arriving: Option<Vec<u8>>,
    /// The backup that it has chosen, and what it hears of that.
    backup: Option<(Arc<Backup>, Vec<u8>)>,
    /// The export that it waits for.
    awaits: Option<(String, Ticket)>,
    /// A request that waits for buffers.
    held_back: Option<Request>,
    pub tasks: Vec<Option<Task>>,
    pub tasks_live: usize,
    out: Outbox,
    sent_buffers: Vec<BufferId>,
    sent_replies: usize,
    sent_measured: Vec<(Kind, Time)>,
    /// Of requests that ended with the connection; the kernel may still write to them.
    leftovers: Vec<BufferId>,
    pub payload_bytes: u64,
    pub drive_queued: bool,
    send_queued: bool,
    /// When bytes last moved, and when some last came.
    progress: Time,
    pub received: Time,
    /// Of the handshake, or of the requests left after a goodbye.
    deadline: Option<timer::Key>,
}

impl Conn {
    /// Neither the kernel nor the engine will speak of it again.
    fn is_over(&self) -> bool {
        let busy = self.receiving || self.sending || self.watching || self.tasks_live > 0;
        self.life == Life::Dead && !busy
    }

    /// A client of this volume that is not gone.
    pub fn serves(&self, volume: VolumeId) -> bool {
        self.volume_served() == Some(volume)
    }

    pub fn volume_served(&self) -> Option<VolumeId> {
        self.volume.filter(|_| self.life != Life::Dead)
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Who may write this volume, if the client may. One that was cut off has the right until the
    /// last of its requests has ended: a late write of it must not land on one of the next client.
    pub fn writer(&self, volume: VolumeId) -> Option<&Peer> {
        let ended = self.life == Life::Dead && self.tasks_live == 0;
        (self.writes && self.volume == Some(volume) && !ended).then_some(&self.peer)
    }

    /// What the client has chosen, with its connection.
    pub fn take_over(&mut self) -> std::io::Result<Taken> {
        let (backup, reply) = self.backup.take().expect("it has chosen one");
        let none = nbd::Config {
            only: None,
            requests_max: REQUESTS_MAX,
            tls: Tls::Absent,
        };
        let chosen = Chosen {
            socket: self.socket.try_clone()?,
            peer: self.peer.clone(),
            session: std::mem::replace(&mut self.session, Session::new(none)),
            input: self.input[self.start..self.end].to_vec(),
            reply,
        };
        Ok((backup, chosen))
    }

    fn is_full(&self) -> bool {
        self.out.replies + self.sent_replies >= usize::from(REQUESTS_MAX)
            || self.payload_bytes >= PAYLOAD_BYTES_MAX
            || self.out.owned.len() >= REPLY_BYTES_MAX
    }

    /// Holds buffers and has not moved since `then`.
    pub fn is_stuck(&self, then: Time) -> bool {
        let moving = self.taking.is_some() || self.sending;
        self.life != Life::Dead && self.payload_bytes > 0 && moving && self.progress <= then
    }
}

impl<E: Decide> Shard<E> {
    /// Takes a new client in, or turns it away when there are too many.
    pub(super) fn welcome(&mut self, arrival: Arrival, only: Option<String>) {
        let Arrival { socket, peer, tls } = arrival;
        self.counters.connections_accepted += 1;
        if self.conns.len() >= super::CONNECTIONS_MAX || self.is_stopping() {
            self.counters.connections_refused += 1;
            return;
        }
        ring::set_nodelay(&socket);
        let slot = self.conns.next();
        // The upper half only makes numbers of different clients look different in a trace.
        let life = self.counters.connections_accepted as u32;
        let id = ConnectionId(life << 16 | slot);
        let config = nbd::Config {
            only,
            requests_max: REQUESTS_MAX,
            tls,
        };
        let deadline = self.now.plus_millis(HANDSHAKE_MILLIS_MAX);
        let mut conn = Box::new(Conn {
            peer,
            writes: false,
            socket,
            id,
            session: Session::new(config),
            volume: None,
            life: Life::Open,
            input: vec![0; INPUT_BYTES_MIN],
            start: 0,
            end: 0,
            receiving: false,
            sending: false,
            watching: true,
            hung_up: false,
            taking: None,
            arriving: None,
            backup: None,
            awaits: None,
            held_back: None,
            tasks: Vec::new(),
            tasks_live: 0,
            out: Outbox::default(),
            sent_buffers: Vec::new(),
            sent_replies: 0,
            sent_measured: Vec::new(),
            leftovers: Vec::new(),
            payload_bytes: 0,
            drive_queued: false,
            send_queued: false,
            progress: self.now,
            received: self.now,
            deadline: Some(self.timers.set(deadline, Alarm::Handshake(slot))),
        });
        self.ring.hangup(tag::watch(slot), conn.socket.as_raw_fd());
        // A client behind TLS was greeted before it.
        if tls == Tls::Absent {
            conn.out.bytes(&nbd::GREETING);
            self.queue_send(slot, &mut conn);
        }
        conn.drive_queued = true;
        self.to_drive.push_back(slot);
        assert_eq!(self.conns.insert(conn), slot, "the number was announced");
    }

    /// Runs `step` on a connection, and lets it go when it is over.
    pub(super) fn with_conn(&mut self, slot: u32, step: impl FnOnce(&mut Self, &mut Conn)) {
        let Some(mut conn) = self.conns.lend(slot) else {
            return;
        };
        step(self, &mut conn);
        let silent = conn.out.parts.is_empty() && !conn.sending;
        match conn.life {
            Life::Draining if silent && conn.tasks_live == 0 => self.kill(slot, &mut conn),
            Life::Farewell if silent => self.kill(slot, &mut conn),
            Life::HandedOver if silent && !conn.receiving => self.hand_over(slot, &mut conn),
            _ => {}
        }
        let over = conn.is_over();
        if over {
            self.free_all(&mut conn);
        }
        self.conns.restore(slot, conn);
        if over {
            self.conns.remove(slot);
        }
    }

    /// Moves a connection on as far as its input and its bounds allow.
    pub(super) fn drive(&mut self, slot: u32, conn: &mut Conn) {
        conn.drive_queued = false;
        while conn.life == Life::Open && !conn.receiving && !self.is_stopping() {
            if conn.arriving.is_some() {
                break;
            }
            if let Some(request) = conn.held_back.take() {
                self.begin(slot, conn, request);
                if conn.held_back.is_some() {
                    break;
                }
            } else if conn.taking.is_some() {
                if !self.take_payload(slot, conn) {
                    return self.receive(slot, conn);
                }
            } else if conn.is_full() {
                break;
            } else if conn.awaits.is_some() {
                if !self.await_over(slot, conn) || !self.parse(slot, conn) {
                    break;
                }
            } else if conn.start == conn.end {
                return self.receive(slot, conn);
            } else if !self.parse(slot, conn) {
                break;
            }
        }
        // At a bound nobody receives, so nobody else would notice that the client has gone.
        if conn.life == Life::Open && conn.hung_up && !conn.receiving {
            self.kill(slot, conn);
        }
    }

    /// Whether what a connection waits for is decided. Its handshake is timed again then.
    fn await_over(&mut self, slot: u32, conn: &mut Conn) -> bool {
        let name = conn.awaits.as_ref().map(|(name, _)| name.as_str());
        if name.is_some_and(|name| self.exports.is_away(name)) {
            return false;
        }
        conn.awaits = None;
        let deadline = self.now.plus_millis(HANDSHAKE_MILLIS_MAX);
        conn.deadline = Some(self.timers.set(deadline, Alarm::Handshake(slot)));
        true
    }

    /// Those who wait for this export hear what has become of it.
    pub(super) fn wake_awaiting(&mut self, name: &str) {
        let awaits = |conn: &Conn| conn.awaits.as_ref().is_some_and(|(it, _)| it == name);
        let all = self.conns.iter().filter(|(_, conn)| awaits(conn));
        let slots: Vec<u32> = all.map(|(slot, _)| slot).collect();
        self.to_drive.extend(slots);
    }

    /// Feeds the session once. False if it takes no more requests for now.
    fn parse(&mut self, slot: u32, conn: &mut Conn) -> bool {
        let input = &conn.input[conn.start..conn.end];
        let seen = Seen {
            exports: &self.exports,
            conns: &self.conns,
            guests: &self.guests,
            peer: &conn.peer,
        };
        let (used, step) = conn.session.receive(&seen, input);
        conn.start += used;
        match step {
            None => return used > 0,
            Some(Step::Send(bytes)) => {
                conn.out.bytes(&bytes);
                self.queue_send(slot, conn);
            }
            Some(Step::Attach { export, reply }) => self.attached(slot, conn, &export, reply),
            Some(Step::Request(request)) => self.begin(slot, conn, request),
            Some(Step::StartTls { .. }) => panic!("a listener with TLS is not the shard's"),
            Some(Step::Await { name }) => {
                let ticket = self.exports.await_export(&name);
                conn.awaits = ticket.map(|ticket| (name, ticket));
                if let Some(key) = conn.deadline.take() {
                    self.timers.cancel(key);
                }
            }
            Some(Step::Close { reason, farewell }) => {
                if !reason.is_orderly() {
                    self.counters.protocol_errors += 1;
                    tracing::debug!("connection closed: {reason}");
                }
                if !farewell.is_empty() {
                    conn.out.bytes(&farewell);
                    self.queue_send(slot, conn);
                }
                conn.life = match reason {
                    nbd::Closing::Disconnect => Life::Draining,
                    _ => Life::Farewell,
                };
                let deadline = self.now.plus_millis(DRAIN_MILLIS_MAX);
                let old = conn.deadline.take();
                old.into_iter().for_each(|key| self.timers.cancel(key));
                conn.deadline = Some(self.timers.set(deadline, Alarm::Drain(slot)));
            }
        }
        true
    }

    /// A client has chosen its export.
    fn attached(&mut self, slot: u32, conn: &mut Conn, export: &nbd::Export, reply: Vec<u8>) {
        if let Some(key) = conn.deadline.take() {
            self.timers.cancel(key);
        }
        if let Some(backup) = self.exports.backup(&export.name) {
            conn.backup = Some((backup, reply));
            conn.life = Life::HandedOver;
            return;
        }
        conn.volume = self.exports.volume(&export.name);
        conn.writes = !export.read_only;
        if !conn.writes
            && let Some(writer) = self.other_writer(conn, &export.name)
        {
            let (name, peer) = (&export.name, &conn.peer);
            tracing::info!("volume {name}: {peer} may only read, because {writer} writes it");
        }
        self.come_in(slot, conn, reply);
    }

    /// Lets the payload of a write follow into its buffer.
    pub(super) fn expect_payload(&mut self, conn: &mut Conn, ticket: nbd::Ticket, at: u64) {
        let task = conn.tasks[usize::from(ticket.0)].as_ref();
        let buffer = task
            .and_then(|task| task.buffer)
            .expect("a write has a buffer");
        conn.taking = Some(Taking { ticket, buffer, at });
    }

    /// Moves payload that came with other input. True when the payload is complete.
    fn take_payload(&mut self, slot: u32, conn: &mut Conn) -> bool {
        let taking = conn.taking.as_mut().expect("a payload is being taken");
        let left = conn.session.payload_left() as usize;
        let count = left.min(conn.end - conn.start);
        let payload = &conn.input[conn.start..conn.start + count];
        let at = taking.at as usize;
        self.memory.buffers.bytes(taking.buffer)[at..at + count].copy_from_slice(payload);
        taking.at += count as u64;
        conn.start += count;
        conn.session.payload_taken(count as u32);
        if count < left {
            return false;
        }
        let ticket = taking.ticket;
        conn.taking = None;
        self.ready(slot, conn, ticket);
        true
    }

    fn receive(&mut self, slot: u32, conn: &mut Conn) {
        assert_eq!(
            conn.start, conn.end,
            "input is used up before more is received"
        );
        let most = match self.conns.len() {
            CLIENTS_MANY.. => INPUT_BYTES_MANY,
            _ => INPUT_BYTES_MAX,
        };
        if conn.end == conn.input.len() && conn.end < most {
            conn.input = vec![0; most];
        }
        (conn.start, conn.end) = (0, 0);
        let memory = &self.memory;
        let payload = conn.taking.as_ref().map(|taking| {
            let left = u64::from(conn.session.payload_left());
            Span::place(
                memory,
                Place::new(Area::Buffer(taking.buffer), taking.at),
                left,
            )
        });
        conn.receiving = true;
        let (fd, input) = (conn.socket.as_raw_fd(), std::mem::take(&mut conn.input));
        self.ring.receive(tag::receive(slot), fd, payload, input, 0);
    }

    pub(super) fn finish_receive(&mut self, slot: u32, completed: Completed) {
        self.with_conn(slot, |shard, conn| {
            conn.receiving = false;
            conn.input = completed.owned;
            if conn.life == Life::Dead {
                return;
            }
            let Ok(count @ 1..) = completed.result else {
                return shard.kill(slot, conn);
            };
            (conn.progress, conn.received) = (shard.now, shard.now);
            let mut rest = count as usize;
            if let Some(taking) = &mut conn.taking {
                let taken = rest.min(conn.session.payload_left() as usize);
                conn.session.payload_taken(taken as u32);
                taking.at += taken as u64;
                rest -= taken;
            }
            conn.end = rest;
            shard.drive(slot, conn);
        });
    }

    pub(super) fn finish_watch(&mut self, slot: u32) {
        self.with_conn(slot, |shard, conn| {
            conn.watching = false;
            conn.hung_up = true;
            if conn.life == Life::Open && !conn.receiving {
                shard.kill(slot, conn);
            }
        });
    }

    /// Puts a reply without payload, or the head of one with payload, behind the others.
    pub(super) fn answer(&mut self, slot: u32, conn: &mut Conn, head: &[u8]) {
        conn.out.bytes(head);
        conn.out.replies += 1;
        self.queue_send(slot, conn);
    }

    /// The last answer is of a request that is measured.
    pub(super) fn answer_measured(&self, conn: &mut Conn, kind: Kind, since: Time) {
        conn.out.measured.push((kind, since));
    }

    /// Adds payload to the last answer; the buffer is freed when it was sent.
    pub(super) fn answer_payload(&self, conn: &mut Conn, span: Span, buffer: BufferId) {
        conn.out.parts.push(Part::Span(span));
        conn.out.buffers.push(buffer);
    }

    /// Tells a client that it has its export.
    pub(super) fn answer_attach(&mut self, slot: u32, conn: &mut Conn, reply: &[u8]) {
        conn.out.bytes(reply);
        self.queue_send(slot, conn);
    }

    fn queue_send(&mut self, slot: u32, conn: &mut Conn) {
        if !conn.send_queued {
            conn.send_queued = true;
            self.to_send.push(slot);
        }
    }

    /// Sends everything that was queued in this round, one operation per connection.
    pub(super) fn flush_sends(&mut self) {
        let mut slots = std::mem::take(&mut self.to_send);
        for slot in slots.drain(..) {
            self.with_conn(slot, |shard, conn| {
                conn.send_queued = false;
                shard.send(slot, conn);
            });
        }
        slots.append(&mut self.to_send);
        self.to_send = slots;
    }

    fn send(&mut self, slot: u32, conn: &mut Conn) {
        if conn.sending || conn.life == Life::Dead || conn.out.parts.is_empty() {
            return;
        }
        let owned = std::mem::take(&mut conn.out.owned);
        let fd = conn.socket.as_raw_fd();
        self.ring.send(tag::send(slot), fd, owned, &conn.out.parts);
        conn.out.parts.clear();
        conn.sending = true;
        conn.sent_replies = std::mem::take(&mut conn.out.replies);
        std::mem::swap(&mut conn.sent_buffers, &mut conn.out.buffers);
        std::mem::swap(&mut conn.sent_measured, &mut conn.out.measured);
    }

    pub(super) fn finish_send(&mut self, slot: u32, completed: Completed) {
        self.with_conn(slot, |shard, conn| {
            conn.sending = false;
            conn.sent_replies = 0;
            let mut sent = std::mem::take(&mut conn.sent_buffers);
            sent.drain(..).for_each(|buffer| shard.free(conn, buffer));
            conn.sent_buffers = sent;
            if conn.out.owned.is_empty() {
                conn.out.owned = completed.owned;
                conn.out.owned.clear();
            }
            if completed.result.is_err() {
                return shard.kill(slot, conn);
            }
            conn.progress = shard.now;
            if let Some(volume) = conn.volume {
                shard.took(volume, &mut conn.sent_measured, shard.now);
            }
            if !conn.out.parts.is_empty() {
                shard.queue_send(slot, conn);
            }
            if conn.life == Life::Open {
                shard.drive(slot, conn);
            }
        });
    }

    /// A buffer for each size that is not zero, or `None` and the connection is driven again when
    /// there are some.
    pub(super) fn allocate(
        &mut self,
        slot: u32,
        conn: &mut Conn,
        sizes: [u64; BUFFERS_MAX],
    ) -> Option<[Option<BufferId>; BUFFERS_MAX]> {
        let bytes: u64 = sizes.iter().sum();
        if conn.payload_bytes > 0 && conn.payload_bytes + bytes > PAYLOAD_BYTES_MAX {
            return None;
        }
        // In turn, so that a large request is not starved by small ones.
        let first = self.starving.front() == Some(&slot);
        let mut got = [None; BUFFERS_MAX];
        if first || self.starving.is_empty() {
            let pool = &mut self.memory.buffers;
            for (got, bytes) in got.iter_mut().zip(sizes).filter(|(_, bytes)| *bytes > 0) {
                *got = pool.allocate(bytes);
            }
        }
        let mut wanted = got.iter().zip(sizes);
        if wanted.all(|(got, bytes)| bytes == 0 || got.is_some()) {
            conn.payload_bytes += bytes;
            if first {
                self.starving.pop_front();
                self.freed = true;
            }
            return Some(got);
        }
        let unused = got.into_iter().flatten();
        unused.for_each(|buffer| self.memory.buffers.free(buffer));
        if self.starving.is_empty() {
            self.timers.set(self.now.plus_millis(1000), Alarm::Starving);
        }
        if !self.starving.contains(&slot) {
            self.starving.push_back(slot);
        }
        None
    }

    pub(super) fn hold_back(&mut self, conn: &mut Conn, request: Request) {
        conn.held_back = Some(request);
    }

    pub(super) fn free(&mut self, conn: &mut Conn, buffer: BufferId) {
        conn.payload_bytes -= self.memory.buffers.length(buffer);
        self.memory.buffers.free(buffer);
        self.freed = true;
    }

    /// Keeps a buffer until the connection is over.
    pub(super) fn leave_over(&mut self, conn: &mut Conn, buffer: BufferId) {
        conn.leftovers.push(buffer);
    }

    fn free_all(&mut self, conn: &mut Conn) {
        let mut buffers = std::mem::take(&mut conn.sent_buffers);
        buffers.append(&mut conn.out.buffers);
        buffers.append(&mut conn.leftovers);
        buffers
            .into_iter()
            .for_each(|buffer| self.free(conn, buffer));
        assert_eq!(
            conn.payload_bytes, 0,
            "a connection leaves no buffer behind"
        );
    }

    /// Another thread has its socket, which stays open.
    pub(super) fn let_socket_go(&mut self, slot: u32, conn: &mut Conn) {
        assert!(
            conn.tasks_live == 0 && conn.volume.is_none(),
            "it has only negotiated"
        );
        conn.life = Life::Dead;
        if conn.watching {
            self.ring.cancel(tag::NOTHING, tag::watch(slot));
        }
    }

    /// Cuts a connection off. What the engine has begun for it runs to its end.
    pub(super) fn kill(&mut self, slot: u32, conn: &mut Conn) {
        if conn.life == Life::Dead {
            return;
        }
        let ended = conn.life == Life::Draining;
        conn.life = Life::Dead;
        ring::shutdown(&conn.socket);
        if let Some(key) = conn.deadline.take() {
            self.timers.cancel(key);
        }
        conn.held_back = None;
        if self.starving.contains(&slot) {
            self.starving.retain(|&other| other != slot);
            self.freed = true;
        }
        self.withdraw_all(slot, conn);
        if let Some(volume) = conn.volume {
            let connection = conn.id;
            self.feed(Event::Disconnect { connection });
            if ended {
                self.went_out(volume, false);
            }
        }
    }
}
