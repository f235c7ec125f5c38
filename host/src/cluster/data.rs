//! Batches, and reads of clean blocks, between two hosts: connections of their own, on a thread of
//! their own.
//!
//! ```text
//! sender ── Hello (data) ─▶ receiver ── Hello ─▶ sender
//! sender ── Batch, payload ─▶ receiver: sink          receiver ── Ack · Failed ─▶ sender: sink
//! sender ── Read ─▶ receiver: sink                    receiver ── Blocks, payload ─▶ sender: sink
//! ```
//! A host that sends makes the connection, at the addresses and with the certificates of links. The
//! thread of links lets it in, as any caller, and then hands it on, with its keys.
//! Always true: a host has one connection to each host that it sends to, and a newer one of the
//! same sender takes the place of the older; its end is told once; batches that wait to leave are
//! bounded in number, and a connection with one too many ends; of batches that came, and are not
//! answered or dropped, only so many bytes are held for each host, and nothing is read beyond. How
//! long a receiver may take is not limited here: one that is slow is no one that is gone, which its
//! link says. Deliberately absent: what is in a batch, and who may send one for which copy.

use super::greeting::{self, Unwelcome, count};
use super::shared::{LinkEvent, Refused, Shared};
use super::wire::{self, Ended, Movable};
use engine::event::Credit;
use engine::types::Uuid;
use node::batch::Batch;
use node::frame::{FEATURE_DATA, FEATURE_READS, FEATURE_RECALLS, Frame, VERSION_MAX};
use node::message::{Body, Message};
use node::reads::{Blocks, Question};
use rustls::ClientConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::server::TlsStream;

/// Reads of one host that have not been answered.
pub const READS_MAX: usize = 32;
/// Batches and reads that wait to leave for one host.
const BATCHES_MAX: usize = 256 + READS_MAX;
/// Answers that wait to leave for one host; no more batches of it are held.
const ANSWERS_MAX: usize = ROOM_KIB / BATCH_KIB_MIN;
/// What is held of the batches of one host, and what a small one counts.
const ROOM_KIB: usize = 32 << 10;
const BATCH_KIB_MIN: usize = 32;
/// How often connections are looked at, and after how many looks without a link to its host one is
/// over: a link that was exchanged for another one is up at once.
const LOOK: Duration = Duration::from_secs(1);
const WITHOUT_LINK_MAX: u32 = 3;

/// A way for frames to one host.
pub trait Outlet: Send + Sync {
    /// Takes a frame, with what follows it. False: it goes nowhere, nor does any other one.
    fn send(&self, frame: Vec<u8>) -> bool;
    /// Whether the other end is known to take this, one of the features of a `Hello`.
    fn takes(&self, _feature: u64) -> bool {
        false
    }
}

/// Who takes what other hosts send. Called by one thread, which must not be made to wait: it stops
/// to read by itself while too much of what it has given away is not dropped.
pub trait DataSink: Send + Sync {
    /// A batch of a host. Answers go to `back`, which is dropped when there is none to come.
    fn batch(&self, from: Uuid, batch: Batch, payload: Vec<u8>, back: Arc<dyn Outlet>);
    /// A copy there has all batches of this session up to this number, and takes this much.
    fn ack(&self, from: Uuid, copy: Uuid, session: Uuid, number: u64, credit: Credit);
    /// A host asks for clean blocks of a volume that went there, or for what a copy of its own has.
    /// Answers as to a batch.
    fn read(&self, from: Uuid, read: Question, back: Arc<dyn Outlet>);
    /// What a host has answered to such a question, with the bytes.
    fn blocks(&self, from: Uuid, blocks: Blocks, payload: Vec<u8>);
}

/// All connections for data.
pub struct Data {
    shared: Arc<Shared>,
    client: Arc<ClientConfig>,
    runtime: Handle,
    sink: OnceLock<Arc<dyn DataSink>>,
    /// A lock, because who opens a way needs it at once; held for moments.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outgoing: BTreeMap<Uuid, Arc<Queue>>,
    incoming: BTreeMap<Uuid, Arc<Queue>>,
    /// What may be held of the batches of a host, over all its connections.
    rooms: BTreeMap<Uuid, Arc<Semaphore>>,
    /// Looks at which a host had no link.
    without_link: BTreeMap<Uuid, u32>,
}

/// What waits to be written to a connection, and how that ends.
struct Queue {
    frames: mpsc::Sender<Vec<u8>>,
    ended: AtomicBool,
    close: Notify,
    /// What the other end has said that it takes.
    takes: AtomicU64,
}

impl Queue {
    fn new(frames_max: usize) -> (Arc<Queue>, mpsc::Receiver<Vec<u8>>) {
        let (frames, taken) = mpsc::channel(frames_max);
        let queue = Queue {
            frames,
            ended: AtomicBool::new(false),
            close: Notify::new(),
            takes: AtomicU64::new(0),
        };
        (Arc::new(queue), taken)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.close.notify_one();
    }
}

impl Outlet for Queue {
    fn send(&self, frame: Vec<u8>) -> bool {
        if self.ended.load(Ordering::Relaxed) {
            return false;
        }
        let sent = self.frames.try_send(frame).is_ok();
        if !sent {
            // What follows would leave a gap.
            self.end();
        }
        sent
    }

    fn takes(&self, feature: u64) -> bool {
        self.takes.load(Ordering::Relaxed) & feature != 0
    }
}

/// The way back of one batch. While it is there, so is what the batch holds of its host's room.
struct Answer {
    queue: Arc<Queue>,
    _room: OwnedSemaphorePermit,
}

impl Outlet for Answer {
    fn send(&self, frame: Vec<u8>) -> bool {
        self.queue.send(frame)
    }
}

/// Looks after all connections for as long as it is polled.
pub async fn run(data: Arc<Data>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        data.look();
    }
}

impl Data {
    pub fn new(shared: Arc<Shared>, client: Arc<ClientConfig>, runtime: Handle) -> Data {
        Data {
            shared,
            client,
            runtime,
            sink: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the process; a poisoned lock is met by tests only.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_sink(&self, sink: Arc<dyn DataSink>) {
        // The first one stays: a daemon has one shard.
        let _ = self.sink.set(sink);
    }

    pub fn outlet(self: &Arc<Self>, host: Uuid) -> Arc<dyn Outlet> {
        let mut state = self.state();
        if let Some(queue) = state.outgoing.get(&host) {
            return queue.clone();
        }
        let (queue, frames) = Queue::new(BATCHES_MAX);
        state.outgoing.insert(host, queue.clone());
        state.without_link.remove(&host);
        drop(state);
        let task = send_to(self.clone(), host, queue.clone(), frames);
        // On a runtime that has ended it is dropped, and `frames` with it: the queue is closed.
        self.runtime.spawn(task);
        queue
    }

    /// Ends connections of hosts that are no members any more, or whose links are down for long.
    fn look(&self) {
        let mut state = self.state();
        let State {
            outgoing,
            incoming,
            without_link,
            ..
        } = &mut *state;
        let hosts: BTreeSet<Uuid> = outgoing.keys().chain(incoming.keys()).copied().collect();
        without_link.retain(|host, _| hosts.contains(host));
        for host in hosts {
            let looks = without_link.entry(host).or_default();
            *looks = match self.shared.is_up(host) {
                true => 0,
                false => *looks + 1,
            };
            if *looks >= WITHOUT_LINK_MAX || !self.shared.is_member(host) {
                let both = [outgoing.get(&host), incoming.get(&host)];
                both.into_iter().flatten().for_each(|queue| queue.end());
            }
        }
    }

    /// Takes a caller over from the thread of links, which has heard who it is.
    pub fn take(
        self: &Arc<Self>,
        mut stream: TlsStream<Movable>,
        host: Uuid,
        version: u16,
        from: SocketAddr,
    ) {
        let Ok(socket) = stream.get_mut().0.leave() else {
            return;
        };
        let data = self.clone();
        self.runtime.spawn(async move {
            if stream.get_mut().0.enter(socket).is_ok() {
                data.receive(stream, host, version, from).await;
            }
        });
    }

    async fn receive(
        self: Arc<Self>,
        mut stream: TlsStream<Movable>,
        host: Uuid,
        version: u16,
        from: SocketAddr,
    ) {
        let sink = match self.sink.get() {
            Some(sink) if version == VERSION_MAX => sink.clone(),
            sink => {
                let why = match sink {
                    Some(_) => "sends batches of another version; upgrade one of both hosts",
                    None => "comes before this host takes batches",
                };
                let why = why.to_owned();
                return greeting::close_with(&mut stream, &Frame::Refused { why }).await;
            }
        };
        let features = FEATURE_DATA | FEATURE_READS | FEATURE_RECALLS;
        let hello = self.shared.hello(features).encode(version);
        if wire::write_soon(&mut stream, &hello).await.is_err() {
            return;
        }
        let (queue, answers) = Queue::new(ANSWERS_MAX);
        let (older, room) = {
            let mut state = self.state();
            let room = state.rooms.entry(host);
            let room = room.or_insert_with(|| Arc::new(Semaphore::new(ROOM_KIB)));
            let room = room.clone();
            (state.incoming.insert(host, queue.clone()), room)
        };
        if let Some(older) = older {
            older.end();
        }
        let (reader, writer) = split(stream);
        let why = tokio::select! {
            ended = take_batches(reader, version, (host, sink), &queue, room) => {
                if matches!(ended, Ended::Frame(_)) {
                    count(&self.shared.refused.frames, from, &ended.to_string());
                }
                ended.to_string()
            }
            ended = send_all(writer, answers) => ended.to_string(),
            () = queue.close.notified() => "it is not needed any more".into(),
        };
        tracing::debug!("cluster: batches of {host} end: {why}");
        queue.end();
        let mut state = self.state();
        if is_same(state.incoming.get(&host), &queue) {
            state.incoming.remove(&host);
        }
    }

    /// Makes a connection and sends what is queued; says why that is over.
    async fn send_all_to(
        &self,
        host: Uuid,
        queue: &Queue,
        frames: mpsc::Receiver<Vec<u8>>,
    ) -> String {
        let mut why = "no address is known".to_owned();
        for address in self.shared.addresses(host) {
            let mut stream = match wire::call(address, host, self.client.clone()).await {
                Ok(stream) => stream,
                Err(ended) => {
                    why = format!("{address}: {ended}");
                    continue;
                }
            };
            let shown = stream.get_ref().1.peer_certificates();
            let Some(certificate) = shown.and_then(<[_]>::first).cloned() else {
                continue;
            };
            let asked = (host, FEATURE_DATA);
            match greeting::greet(&self.shared, &mut stream, &certificate, asked).await {
                Ok((hello, version)) => {
                    if !greeting::is_for_data(&hello) || version != VERSION_MAX {
                        return format!("{address}: does not take batches of this version");
                    }
                    queue.takes.store(hello.features, Ordering::Relaxed);
                    let (reader, writer) = split(stream);
                    return tokio::select! {
                        why = self.hear_answers(reader, version, host) => why,
                        ended = send_all(writer, frames) => ended.to_string(),
                    };
                }
                Err(Unwelcome::Ended(ended)) => why = format!("{address}: {ended}"),
                Err(Unwelcome::Frame(wrong) | Unwelcome::Host(wrong)) => {
                    return format!("{address}: {wrong}");
                }
                Err(Unwelcome::Refused(wrong)) => return format!("it refuses: {wrong}"),
            }
        }
        why
    }

    async fn hear_answers(
        &self,
        mut reader: impl AsyncRead + Unpin,
        version: u16,
        host: Uuid,
    ) -> String {
        loop {
            let answer = match wire::read_answer(&mut reader, version).await {
                Ok(answer) => answer,
                Err(ended) => {
                    if matches!(ended, Ended::Frame(_)) {
                        Refused::add(&self.shared.refused.frames);
                    }
                    return ended.to_string();
                }
            };
            let frame = match answer {
                wire::Answer::Frame(frame) => frame,
                wire::Answer::Blocks(blocks) => {
                    let payload = wire::read_bytes(&mut reader, blocks.payload_bytes()).await;
                    let payload = match payload {
                        Ok(payload) => payload,
                        Err(ended) => return ended.to_string(),
                    };
                    if let Some(sink) = self.sink.get() {
                        sink.blocks(host, blocks, payload);
                    }
                    continue;
                }
            };
            if let Frame::Refused { why } = frame {
                return why;
            }
            match answer_of(&frame) {
                Some(Body::Ack {
                    copy,
                    session,
                    batch,
                    credit,
                    ..
                }) => {
                    if let Some(sink) = self.sink.get() {
                        sink.ack(host, copy, session, batch, credit);
                    }
                }
                Some(body) => self.shared.tell(LinkEvent::Data { host, body }),
                None => {
                    Refused::add(&self.shared.refused.frames);
                    return format!("{:?} is no answer to a batch", frame.kind());
                }
            }
        }
    }
}

/// What a receiver says of a batch.
fn answer_of(frame: &Frame) -> Option<Body> {
    let Frame::Unit(bytes) = frame else {
        return None;
    };
    let Message { unit, body } = Message::parse(bytes).ok()?;
    match body {
        Body::Ack { copy, .. } | Body::Failed { copy, .. } if copy == unit => Some(body),
        _ => None,
    }
}

/// The frame that answers a batch.
pub fn answer_frame(body: Body) -> Vec<u8> {
    let (Body::Ack { copy, .. } | Body::Failed { copy, .. }) = body else {
        panic!("batches have two answers");
    };
    let message = Message { unit: copy, body };
    Frame::Unit(message.encode()).encode(VERSION_MAX)
}

/// The frame of a batch, to which its payload is added.
pub fn batch_frame(batch: &Batch) -> Vec<u8> {
    batch.encode(VERSION_MAX)
}

/// From the first batch for a host until its end was told.
async fn send_to(data: Arc<Data>, host: Uuid, queue: Arc<Queue>, frames: mpsc::Receiver<Vec<u8>>) {
    let why = tokio::select! {
        why = data.send_all_to(host, &queue, frames) => why,
        () = queue.close.notified() => "it takes nothing, or is gone".into(),
    };
    tracing::debug!("cluster: batches to {host} end: {why}");
    queue.end();
    let mut state = data.state();
    if is_same(state.outgoing.get(&host), &queue) {
        state.outgoing.remove(&host);
    }
    drop(state);
    // Who hears it may open another one at once.
    data.shared.tell(LinkEvent::DataDown { host });
}

async fn take_batches(
    mut reader: impl AsyncRead + Unpin,
    version: u16,
    (host, sink): (Uuid, Arc<dyn DataSink>),
    queue: &Arc<Queue>,
    room: Arc<Semaphore>,
) -> Ended {
    loop {
        let data = match wire::read_data(&mut reader, version).await {
            Ok(data) => data,
            Err(ended) => return ended,
        };
        let bytes = match &data {
            wire::Data::Batch(batch) => batch.payload_bytes(),
            wire::Data::Read(_) => 0,
        };
        let held = bytes.div_ceil(1024).max(BATCH_KIB_MIN) as u32;
        let held = room.clone().acquire_many_owned(held).await;
        let held = held.expect("a room is never closed");
        let batch = match data {
            wire::Data::Batch(batch) => batch,
            wire::Data::Read(read) => {
                let back = Answer {
                    queue: queue.clone(),
                    _room: held,
                };
                sink.read(host, read, Arc::new(back));
                continue;
            }
        };
        let payload = match wire::read_bytes(&mut reader, bytes).await {
            Ok(payload) => payload,
            Err(ended) => return ended,
        };
        let back = Answer {
            queue: queue.clone(),
            _room: held,
        };
        sink.batch(host, batch, payload, Arc::new(back));
    }
}

async fn send_all(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> Ended {
    while let Some(bytes) = queue.recv().await {
        if let Err(ended) = wire::write(&mut writer, &bytes).await {
            return ended;
        }
    }
    Ended::Io(std::io::ErrorKind::BrokenPipe.into())
}

fn is_same(known: Option<&Arc<Queue>>, queue: &Arc<Queue>) -> bool {
    known.is_some_and(|known| Arc::ptr_eq(known, queue))
}
