//! Batches between the engine and other hosts.
//!
//! Owns streams, which say where the batches of a volume for a peer go; inlets, which say of which
//! session a copy takes batches; what other threads leave here for the shard; and the memory of a
//! batch until the engine has replied.
//!
//! ```text
//! other host ─▶ sink ─▶ mail ─▶ (waits for a buffer) ─▶ Replicate ─▶ reply ─▶ Ack · Failed ─▶ back
//! Send ─▶ bytes are copied ─▶ stream ─▶ other host      other host ─▶ sink ─▶ mail ─▶ Replicated
//! ```
//! Always true: a batch is given to the engine only by the inlet of its copy, session and host, and
//! answered only while that inlet is the one of then; batches of one copy reach the engine in the
//! order in which they came; so much of the buffers is theirs at most that guests always have the
//! rest; an acknowledgment counts for the stream of now, and for what that has sent; with each one
//! goes what the copy takes by then. What cannot be sent is dropped: who has opened the stream
//! hears of the end of its connection. Deliberately absent: connections (`cluster::data`), whether
//! a batch follows the one before it (the engine), and which copies there are (the daemon).

use super::former::{self, Former, Formers, Holder};
use super::{Decide, Shard};
use crate::buffer::{HostMemory, POOL_BYTES_DEFAULT};
use crate::cluster::data::{DataSink, Outlet, READS_MAX, answer_frame, batch_frame};
use crate::ring::Waker;
use engine::event::{self, BatchPart, Credit, Event, Refusal};
use engine::format::record::EntryKind;
use engine::memory::{Area, Memory, Place};
use engine::snapshot::{CopyRoom, CopySnapshot};
use engine::types::{BufferId, ConnectionId, PeerId, RequestId, Serial, Uuid, VolumeId};
use node::batch::{Batch, Part};
use node::message::Body;
use node::reads::{Blocks, Question};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// No client has this id, nor have commands: both halves are behind those of connections.
const COPIES: ConnectionId = ConnectionId(u32::MAX - 1);
/// Of the buffers.
const BUFFER_BYTES_MAX: u64 = POOL_BYTES_DEFAULT / 4;
/// Batches that wait. Connections hold less, so that it is met by none but a bug.
const BATCHES_MAX: usize = 1 << 16;
/// Acknowledgments that wait: of one copy the last one counts, and a host has fewer copies.
const ACKS_MAX: usize = 1 << 14;
/// Batches that one round takes, so that guests are not kept waiting.
const BATCHES_PER_ROUND: usize = 32;
/// Reads of other hosts that wait.
const QUESTIONS_MAX: usize = 256;

/// Where the batches of a volume for a peer go.
pub struct Stream {
    pub volume: VolumeId,
    pub peer: PeerId,
    pub host: Uuid,
    pub copy: Uuid,
    pub session: Uuid,
    /// Of the record by which the volume is owned; not 0.
    pub term: u64,
    pub to: Arc<dyn Outlet>,
}

/// Which batches a copy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inlet {
    pub copy: Uuid,
    pub session: Uuid,
    /// Who sends them.
    pub host: Uuid,
    /// The copy in this engine.
    pub volume: VolumeId,
    pub term: u64,
}

/// What is asked of the shard.
pub(super) enum Order {
    StreamOpen(Stream),
    StreamClose(VolumeId, PeerId),
    InletOpen(Inlet),
    InletClose(Uuid),
    FormerOpen(Former),
}

/// The same with who waits for it, and what is asked of the log for copies.
pub(super) enum Asked {
    Order(Order, oneshot::Sender<()>),
    Views(Vec<VolumeId>, oneshot::Sender<Vec<Option<CopySnapshot>>>),
    Find(String, oneshot::Sender<Option<VolumeId>>),
    Room(oneshot::Sender<CopyRoom>),
}

/// A batch, with what else came with it.
struct Came {
    from: Uuid,
    batch: Batch,
    payload: Vec<u8>,
    back: Arc<dyn Outlet>,
}

impl Came {
    fn fail(self) {
        let Batch { copy, session, .. } = self.batch;
        // Where the connection has ended, its end says as much.
        self.back.send(answer_frame(Body::Failed { copy, session }));
    }
}

/// What other threads leave for the shard. A lock instead of a channel, because of the
/// acknowledgments of one copy only the last one is kept: so they are bounded, and none that counts
/// is ever dropped.
pub(super) struct Mail {
    letters: Mutex<Letters>,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct Letters {
    /// The shard has ended.
    closed: bool,
    batches: VecDeque<Came>,
    acks: Acks,
    /// With the host that asks.
    reads: VecDeque<(Uuid, Question, Arc<dyn Outlet>)>,
    /// With the host that has sent them.
    blocks: VecDeque<(Uuid, Blocks, Vec<u8>)>,
}

/// By copy and session: the last batch that is there, and what the copy takes.
type Acks = BTreeMap<(Uuid, Uuid), (u64, Credit)>;

impl Mail {
    pub fn new(waker: Arc<Waker>) -> Arc<Mail> {
        let letters = Mutex::default();
        Arc::new(Mail { letters, waker })
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, but only the first batches. Wakes the shard once more if there are others.
    fn take(&self) -> Letters {
        let mut letters = self.letters();
        let count = letters.batches.len().min(BATCHES_PER_ROUND);
        let batches = letters.batches.drain(..count).collect();
        if !letters.batches.is_empty() {
            self.waker.wake();
        }
        Letters {
            closed: letters.closed,
            batches,
            acks: std::mem::take(&mut letters.acks),
            reads: std::mem::take(&mut letters.reads),
            blocks: std::mem::take(&mut letters.blocks),
        }
    }

    fn close(&self) {
        let mut letters = self.letters();
        letters.closed = true;
        let closed = true;
        let left = std::mem::take(&mut *letters);
        letters.closed = closed;
        drop(letters);
        drop(left);
    }
}

impl DataSink for Mail {
    fn batch(&self, from: Uuid, batch: Batch, payload: Vec<u8>, back: Arc<dyn Outlet>) {
        let came = Came {
            from,
            batch,
            payload,
            back,
        };
        let mut letters = self.letters();
        if letters.closed {
            return;
        }
        if letters.batches.len() >= BATCHES_MAX {
            drop(letters);
            return came.fail();
        }
        letters.batches.push_back(came);
        drop(letters);
        self.waker.wake();
    }

    fn ack(&self, _from: Uuid, copy: Uuid, session: Uuid, number: u64, credit: Credit) {
        let mut letters = self.letters();
        let key = (copy, session);
        let full = letters.acks.len() >= ACKS_MAX && !letters.acks.contains_key(&key);
        if full || letters.closed {
            return;
        }
        let last = letters.acks.entry(key).or_default();
        if number >= last.0 {
            *last = (number, credit);
        }
        drop(letters);
        self.waker.wake();
    }

    fn read(&self, from: Uuid, read: Question, back: Arc<dyn Outlet>) {
        let mut letters = self.letters();
        if letters.closed || letters.reads.len() >= QUESTIONS_MAX {
            drop(letters);
            if let Question::Left(_) = read {
                former::refuse(&read, &*back);
            }
            return;
        }
        letters.reads.push_back((from, read, back));
        drop(letters);
        self.waker.wake();
    }

    fn blocks(&self, from: Uuid, blocks: Blocks, payload: Vec<u8>) {
        let mut letters = self.letters();
        // More than was asked for is dropped, and what was asked for is late then.
        if letters.closed || letters.blocks.len() >= READS_MAX {
            return;
        }
        letters.blocks.push_back((from, blocks, payload));
        drop(letters);
        self.waker.wake();
    }
}

/// A stream that is open.
struct Open {
    stream: Stream,
    /// The number of the last batch.
    sent: u64,
}

/// A batch that the engine has.
struct Running {
    copy: Uuid,
    /// Of the inlet that has taken it.
    opening: u64,
    session: Uuid,
    term: u64,
    number: u64,
    /// All up to there is durable with it.
    durable: Serial,
    buffer: Option<BufferId>,
    back: Arc<dyn Outlet>,
}

/// All that the shard knows of copies here and elsewhere.
pub(super) struct Copies {
    mail: Arc<Mail>,
    streams: BTreeMap<(VolumeId, PeerId), Open>,
    /// By the copy at their other ends.
    ends: BTreeMap<Uuid, (VolumeId, PeerId)>,
    /// With a number that no other one has had.
    inlets: BTreeMap<Uuid, (u64, Inlet)>,
    openings: u64,
    /// Batches for which there is no memory, in the order in which they came.
    waiting: VecDeque<Came>,
    running: BTreeMap<u32, Running>,
    next: u32,
    buffer_bytes: u64,
    pub formers: Formers,
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.mail.close();
    }
}

impl Copies {
    pub fn new(mail: Arc<Mail>) -> Copies {
        Copies {
            mail,
            streams: BTreeMap::new(),
            ends: BTreeMap::new(),
            inlets: BTreeMap::new(),
            openings: 0,
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            next: 0,
            buffer_bytes: 0,
            formers: Formers::default(),
        }
    }

    pub fn owns(request: RequestId) -> bool {
        request.connection == COPIES
    }

    pub fn carry_out(&mut self, order: Order) {
        match order {
            Order::StreamOpen(stream) => {
                assert!(stream.term > 0, "an owner has a term");
                let key = (stream.volume, stream.peer);
                self.close_stream(key);
                if let Some(other) = self.ends.insert(stream.copy, key) {
                    self.streams.remove(&other);
                }
                self.streams.insert(key, Open { stream, sent: 0 });
                assert_eq!(self.streams.len(), self.ends.len(), "a stream has one end");
            }
            Order::StreamClose(volume, peer) => self.close_stream((volume, peer)),
            Order::InletOpen(inlet) => {
                self.openings += 1;
                self.inlets.insert(inlet.copy, (self.openings, inlet));
            }
            Order::InletClose(copy) => {
                self.inlets.remove(&copy);
            }
            Order::FormerOpen(former) => self.formers.open(former),
        }
    }

    fn close_stream(&mut self, key: (VolumeId, PeerId)) {
        if let Some(open) = self.streams.remove(&key) {
            self.ends.remove(&open.stream.copy);
        }
    }

    /// The engine does not know this volume any more.
    pub fn forget(&mut self, volume: VolumeId) {
        self.formers.forget(volume);
        self.streams.retain(|(of, _), _| *of != volume);
        self.ends.retain(|_, (of, _)| *of != volume);
        self.inlets.retain(|_, (_, inlet)| inlet.volume != volume);
    }

    /// Who has what a volume has sent to this peer.
    pub fn holder(&self, volume: VolumeId, peer: PeerId) -> Option<Holder> {
        let stream = &self.streams.get(&(volume, peer))?.stream;
        Some(Holder {
            host: stream.host,
            copy: stream.copy,
            session: stream.session,
            to: stream.to.clone(),
        })
    }

    /// The copy that is asked for what it has, if this is its owner.
    fn kept_for(&self, from: Uuid, question: &Question) -> Option<VolumeId> {
        let Question::Copy(recall) = question else {
            return None;
        };
        let (_, inlet) = self.inlets.get(&recall.copy)?;
        let is_its = inlet.session == recall.session && inlet.host == from;
        is_its.then_some(inlet.volume)
    }

    fn inlet_of(&self, came: &Came) -> Option<(u64, Inlet)> {
        let (opening, inlet) = *self.inlets.get(&came.batch.copy)?;
        // Within a session its owner makes newer records, which the copy may hear of later.
        let is_its = inlet.session == came.batch.session && inlet.host == came.from;
        is_its.then_some((opening, inlet))
    }

    /// Whose volume and peer have all batches up to this number by now.
    fn acknowledged(&self, copy: Uuid, session: Uuid, number: u64) -> Option<(VolumeId, PeerId)> {
        let key = self.ends.get(&copy)?;
        let open = self.streams.get(key)?;
        let is_its = open.stream.session == session && number <= open.sent;
        is_its.then_some(*key)
    }

    fn enter(&mut self, running: Running) -> RequestId {
        while self.running.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.running.insert(number, running);
        RequestId {
            connection: COPIES,
            number,
        }
    }
}

impl<E: Decide> Shard<E> {
    /// Who does not wait for the answer any more loses nothing by it.
    pub(super) fn asked_of_copies(&mut self, asked: Asked) {
        match asked {
            Asked::Order(order, answer) => {
                self.copies.carry_out(order);
                let _ = answer.send(());
            }
            Asked::Views(volumes, answer) => {
                let views = volumes.into_iter().map(|it| self.engine.copy(it));
                let _ = answer.send(views.collect());
            }
            Asked::Find(name, answer) => {
                let _ = answer.send(self.engine.find(&name));
            }
            Asked::Room(answer) => {
                let _ = answer.send(self.engine.copy_room());
            }
        }
    }

    /// The engine sends a batch. Its bytes are there until the next event.
    pub(super) fn send_batch(
        &mut self,
        (volume, peer): (VolumeId, PeerId),
        number: u64,
        batch: &event::Batch,
    ) {
        let Some(open) = self.copies.streams.get_mut(&(volume, peer)) else {
            return;
        };
        open.sent = number;
        open.stream
            .to
            .send(sent_frame(&self.memory, &open.stream, number, batch));
    }

    /// Looks into the mail.
    pub(super) fn take_mail(&mut self) {
        let Letters {
            batches,
            acks,
            reads,
            blocks,
            ..
        } = self.copies.mail.take();
        for answer in blocks {
            let answered = self.copies.formers.answered(&mut self.memory, answer);
            if let Some((io, result, alarm)) = answered {
                self.timers.cancel(alarm);
                self.done.push_back(former::ended(&io, result));
            }
        }
        for (from, question, back) in reads {
            let asked = (question, self.copies.kept_for(from, &question));
            let event = self.copies.formers.serve(&mut self.memory, asked, back);
            event.into_iter().for_each(|event| self.feed(event));
        }
        for ((copy, session), (number, credit)) in acks {
            if let Some((volume, peer)) = self.copies.acknowledged(copy, session, number) {
                self.feed(Event::Replicated {
                    volume,
                    peer,
                    number,
                    credit,
                });
            }
        }
        if self.is_stopping() {
            // Links end soon, and what is sent again then is not lost.
            return;
        }
        for came in batches {
            self.take_batch(came);
        }
    }

    fn take_batch(&mut self, came: Came) {
        // What says only how far the origin is may make the room that others wait for.
        let small = came.payload.is_empty();
        let copy = came.batch.copy;
        let mut waiting = self.copies.waiting.iter();
        let behind = waiting.any(|other| !small || other.batch.copy == copy);
        let left = match behind {
            true => Some(came),
            false => self.give_batch(came),
        };
        self.copies.waiting.extend(left);
    }

    /// Some memory is free.
    pub(super) fn give_waiting(&mut self) {
        while let Some(came) = self.copies.waiting.pop_front() {
            if let Some(left) = self.give_batch(came) {
                return self.copies.waiting.push_front(left);
            }
        }
    }

    /// Gives a batch to the engine, or back if there is no memory for it.
    fn give_batch(&mut self, came: Came) -> Option<Came> {
        let Some((opening, inlet)) = self.copies.inlet_of(&came) else {
            came.fail();
            return None;
        };
        let bytes = came.payload.len() as u64;
        assert_eq!(
            bytes,
            came.batch.payload_bytes() as u64,
            "it was read whole"
        );
        let mut buffer = None;
        if bytes > 0 {
            if self.copies.buffer_bytes + bytes > BUFFER_BYTES_MAX {
                return Some(came);
            }
            let Some(got) = self.memory.buffers.allocate(bytes) else {
                return Some(came);
            };
            self.memory
                .buffers
                .bytes(got)
                .copy_from_slice(&came.payload);
            self.copies.buffer_bytes += bytes;
            buffer = Some(got);
        }
        let Came { batch, back, .. } = came;
        let request = self.copies.enter(Running {
            copy: batch.copy,
            opening,
            session: batch.session,
            term: batch.term,
            number: batch.number,
            durable: if batch.ends { batch.upto } else { batch.after },
            buffer,
            back,
        });
        self.feed(Event::Replicate {
            volume: inlet.volume,
            request,
            batch: given(&batch, buffer),
        });
        None
    }

    /// The engine has a batch durably, or does not take it.
    pub(super) fn finish_batch(&mut self, request: RequestId, result: Result<(), Refusal>) {
        let ended = self.copies.running.remove(&request.number);
        let ended = ended.expect("a batch is replied to once");
        if let Some(buffer) = ended.buffer {
            self.copies.buffer_bytes -= self.memory.buffers.length(buffer);
            self.memory.buffers.free(buffer);
            self.freed = true;
        }
        let Running { copy, session, .. } = ended;
        let inlet = self.copies.inlets.get(&copy);
        let inlet = inlet.filter(|(opening, _)| *opening == ended.opening);
        let Some((_, Inlet { volume, .. })) = inlet else {
            return;
        };
        let credit = self.engine.credit(*volume).unwrap_or_default();
        ended.back.send(answer_frame(match result {
            Ok(()) => Body::Ack {
                copy,
                session,
                term: ended.term,
                durable: ended.durable,
                batch: ended.number,
                credit,
            },
            Err(_) => Body::Failed { copy, session },
        }));
    }
}

/// A batch of the engine as it leaves.
fn sent_frame(memory: &HostMemory, stream: &Stream, number: u64, batch: &event::Batch) -> Vec<u8> {
    let part = |part: &BatchPart| Part {
        span: part.span,
        kind: part.kind,
        sum: part.sum,
    };
    let head = Batch {
        number,
        term: stream.term,
        copy: stream.copy,
        session: stream.session,
        after: batch.after,
        upto: batch.upto,
        destaged: batch.destaged,
        part: batch.part,
        ends: batch.ends,
        begins_epoch: batch.begins_epoch,
        parts: batch.parts.iter().map(part).collect(),
    };
    let mut frame = batch_frame(&head);
    let mut at = frame.len();
    frame.resize(at + head.payload_bytes(), 0);
    for (part, sent) in batch.parts.iter().zip(&head.parts) {
        if sent.kind == EntryKind::Write {
            let bytes = sent.bytes() as usize;
            let place = part.source.expect("a write is sent with its bytes");
            memory.load(place, &mut frame[at..at + bytes]);
            at += bytes;
        }
    }
    assert_eq!(at, frame.len(), "the head says what follows it");
    frame
}

/// A batch as the engine takes it, with its bytes in this buffer.
fn given(batch: &Batch, buffer: Option<BufferId>) -> event::Batch {
    let mut at = 0;
    let mut part = |part: &Part| {
        let bytes = part.bytes();
        let offset = at;
        at += bytes;
        let place = |buffer| Place::new(Area::Buffer(buffer), offset);
        BatchPart {
            span: part.span,
            kind: part.kind,
            source: buffer.filter(|_| bytes > 0).map(place),
            sum: part.sum,
        }
    };
    event::Batch {
        after: batch.after,
        upto: batch.upto,
        part: batch.part,
        ends: batch.ends,
        begins_epoch: batch.begins_epoch,
        destaged: batch.destaged,
        parts: batch.parts.iter().map(&mut part).collect(),
    }
}
