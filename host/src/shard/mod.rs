//! The thread that runs the engine.
//!
//! Owns the loop: completions of one io_uring become events, the engine's actions become
//! operations, replies leave in one send per connection and round. Always true: everything that
//! touches the engine, its memory or its files happens on this thread; nothing in the loop waits
//! for anything but the ring, and an idle shard sleeps until its next deadline. Deliberately
//! absent: decisions about data (`engine`), the protocol (`frontend`), how files are opened
//! (`origin`, `cachedev`).

pub mod align;
mod allocation;
mod arrival;
mod backup;
mod command;
mod conn;
pub mod control;
pub mod copies;
mod device;
pub mod former;
pub mod guest;
mod listen;
mod measure;
pub mod pooled;
pub mod record;
mod remote;
mod reopen;
mod request;
mod slots;
mod throttle;
mod timer;
mod worker;
mod writer;

use crate::buffer::HostMemory;
use crate::files::Files;
use crate::latency::Recorder;
use crate::lent::Piece;
use crate::marks::{self, Phase};
use crate::ring::{self, Completed, Ring, Span, Waker, Zeroes};
use align::RangeLock;
use backup::Backups;
use command::{Commands, Stopping};
use conn::Conn;
use control::{Handle, HostCounters, Requests};
use copies::Copies;
use device::{Ending, Running};
use engine::chart::{Cursor, Page};
use engine::engine::{Engine, OpenError, Settled};
use engine::event::{Action, Credit, Device, Event, IoError, Refusal, VolumeSpec};
use engine::image::Image;
use engine::layout::Part;
use engine::memory::Memory;
use engine::origin::Map;
use engine::sample::Samples;
use engine::snapshot::{CopyRoom, CopySnapshot, Snapshot};
use engine::types::{
    ConnectionId, IoId, Policy, RequestId, Serial, Span as Sectors, Tag, Time, Uuid, VolumeId,
};
use former::Formers;
use guest::Guest;
use listen::{ExportTable, Listener};
use pooled::Pooled;
use record::Recordings;
use remote::Remotes;
use reopen::Reopens;
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use throttle::Throttle;
use timer::{Spin, Timers};
use worker::{Pool, Word};

/// Connections at a time; what comes beyond is accepted and closed. Fits the lower half of a
/// connection's id.
const CONNECTIONS_MAX: usize = 4096;
/// Submission entries; more operations wait in the ring's backlog.
const RING_ENTRIES: u32 = 1024;
/// How long the memory of rings that have ended is waited for; some milliseconds are usual.
const RING_PATIENCE: Duration = Duration::from_secs(3);
const RING_PAUSE: Duration = Duration::from_millis(20);

/// What the shard needs of an engine. There is one product that has it; tests bring their own.
pub trait Decide: Send + 'static {
    type Settled: Send + 'static;

    fn place(&mut self, name: &str) -> VolumeId;
    fn attach(
        &mut self,
        now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Self::Settled,
        map: Option<Box<dyn Map>>,
    ) -> Result<(), OpenError>;
    fn apply(&mut self, now: Time, event: Event, memory: &mut dyn Memory);
    /// Another file has taken the place of an image that is empty for that.
    fn exchange(
        &mut self,
        now: Time,
        id: VolumeId,
        exchanged: (Box<dyn Map>, Image),
        memory: &mut dyn Memory,
    );
    /// The files of a volume that was attached without proof are open to be written.
    fn attach_proved(
        &mut self,
        now: Time,
        id: VolumeId,
        attached: (VolumeSpec, Self::Settled),
        memory: &mut dyn Memory,
    ) -> Result<(), OpenError>;
    fn poll_action(&mut self) -> Option<Action>;
    fn next_deadline(&self) -> Option<Time>;
    /// The policy in effect; `None` of a volume that is not there.
    fn policy(&self, volume: VolumeId) -> Option<Policy>;
    /// Whether clusters of its image were given past the log, and none of them can have leaked.
    fn has_allocated(&self, volume: VolumeId) -> bool;
    /// Whether a write of the run before was found, and is not to be done again.
    fn has_taken(&self, volume: VolumeId, tag: Tag) -> bool;
    fn layout(
        &self,
        volume: VolumeId,
        span: Sectors,
        parts_max: usize,
    ) -> Result<Vec<Part>, Refusal>;
    fn chart(&self, volume: VolumeId, from: Cursor) -> Result<Page, Refusal>;
    fn snapshot(&self, now: Time) -> Snapshot;
    /// What hosts have to know of one volume for its copies.
    fn copy(&self, volume: VolumeId) -> Option<CopySnapshot>;
    fn find(&self, name: &str) -> Option<VolumeId>;
    /// A volume that may be read from the host that had it before, and what that host has to have
    /// known of the image.
    fn former(&self, volume: VolumeId) -> Option<(Uuid, Serial)>;
    /// What the owner of a copy that is kept here may send.
    fn credit(&self, volume: VolumeId) -> Option<Credit>;
    fn copy_room(&self) -> CopyRoom;
    /// What guests have read since it was asked before.
    fn take_samples(&mut self) -> Samples;
}

impl Decide for Engine {
    type Settled = Settled;

    fn place(&mut self, name: &str) -> VolumeId {
        Engine::place(self, name)
    }

    fn attach(
        &mut self,
        now: Time,
        id: VolumeId,
        spec: VolumeSpec,
        settled: Settled,
        map: Option<Box<dyn Map>>,
    ) -> Result<(), OpenError> {
        match map {
            Some(map) => Engine::attach_mapped(self, id, spec, settled, map),
            None => Engine::attach(self, now, id, spec, settled),
        }
    }

    fn attach_proved(
        &mut self,
        now: Time,
        id: VolumeId,
        (spec, settled): (VolumeSpec, Settled),
        memory: &mut dyn Memory,
    ) -> Result<(), OpenError> {
        Engine::attach_proved(self, now, id, spec, settled, memory)
    }

    fn apply(&mut self, now: Time, event: Event, memory: &mut dyn Memory) {
        Engine::apply(self, now, event, memory);
    }

    fn exchange(
        &mut self,
        now: Time,
        id: VolumeId,
        (map, image): (Box<dyn Map>, Image),
        memory: &mut dyn Memory,
    ) {
        Engine::exchange(self, now, id, map, image, memory);
    }

    fn poll_action(&mut self) -> Option<Action> {
        Engine::poll_action(self)
    }

    fn former(&self, volume: VolumeId) -> Option<(Uuid, Serial)> {
        Engine::former(self, volume)
    }

    fn next_deadline(&self) -> Option<Time> {
        Engine::next_deadline(self)
    }

    fn policy(&self, volume: VolumeId) -> Option<Policy> {
        Engine::policy(self, volume)
    }

    fn has_allocated(&self, volume: VolumeId) -> bool {
        Engine::has_allocated(self, volume)
    }

    fn has_taken(&self, volume: VolumeId, tag: Tag) -> bool {
        Engine::has_taken(self, volume, tag)
    }

    fn layout(
        &self,
        volume: VolumeId,
        span: Sectors,
        parts_max: usize,
    ) -> Result<Vec<Part>, Refusal> {
        Engine::layout(self, volume, span, parts_max)
    }

    fn chart(&self, volume: VolumeId, from: Cursor) -> Result<Page, Refusal> {
        Engine::chart(self, volume, from)
    }

    fn snapshot(&self, now: Time) -> Snapshot {
        Engine::snapshot_at(self, now)
    }

    fn copy(&self, volume: VolumeId) -> Option<CopySnapshot> {
        Engine::copy(self, volume)
    }

    fn find(&self, name: &str) -> Option<VolumeId> {
        Engine::find(self, name)
    }

    fn credit(&self, volume: VolumeId) -> Option<Credit> {
        Engine::credit(self, volume)
    }

    fn copy_room(&self) -> CopyRoom {
        Engine::copy_room(self)
    }

    fn take_samples(&mut self) -> Samples {
        Engine::take_samples(self)
    }
}

/// What tags of the ring mean: a kind and the number of a thing.
mod tag {
    pub const CONTROL: u64 = 1 << 32;
    pub const NOTHING: u64 = 2 << 32;
    pub const ACCEPT: u64 = 3 << 32;
    pub const RECEIVE: u64 = 4 << 32;
    pub const SEND: u64 = 5 << 32;
    pub const WATCH: u64 = 6 << 32;
    pub const DEVICE: u64 = 7 << 32;
    pub const REMOTE_RECEIVE: u64 = 8 << 32;
    pub const REMOTE_SEND: u64 = 9 << 32;
    pub const KICK: u64 = 10 << 32;
    pub const KICK_TAKEN: u64 = 11 << 32;
    pub const CALL: u64 = 12 << 32;
    pub const KIND: u64 = 0xff << 32;

    pub fn accept(slot: u32) -> u64 {
        ACCEPT | u64::from(slot)
    }

    pub fn receive(slot: u32) -> u64 {
        RECEIVE | u64::from(slot)
    }

    pub fn send(slot: u32) -> u64 {
        SEND | u64::from(slot)
    }

    pub fn watch(slot: u32) -> u64 {
        WATCH | u64::from(slot)
    }

    pub fn remote_receive(slot: u32) -> u64 {
        REMOTE_RECEIVE | u64::from(slot)
    }

    pub fn remote_send(slot: u32) -> u64 {
        REMOTE_SEND | u64::from(slot)
    }

    /// Slots of guests have 15 bits. Above the kind lies which guest it is: one that is gone may
    /// still be waited for when its slot is another's.
    fn of_queue(guest: u32, queue: u16) -> u64 {
        let (life, slot) = (guest >> 16, guest & 0x7fff);
        u64::from(life) << 40 | u64::from(slot << 16 | u32::from(queue))
    }

    pub fn kick(guest: u32, queue: u16) -> u64 {
        KICK | of_queue(guest, queue)
    }

    pub fn kick_taken(guest: u32, queue: u16) -> u64 {
        KICK_TAKEN | of_queue(guest, queue)
    }

    /// By the number of the eventfd.
    pub fn call(fd: i32) -> u64 {
        CALL | u64::from(fd as u32)
    }

    pub fn device(slot: u32) -> u64 {
        DEVICE | u64::from(slot)
    }
}

/// What is due at some time.
enum Alarm {
    /// A client has not chosen its export.
    Handshake(u32),
    /// Requests of a client that said goodbye are not answered.
    Drain(u32),
    /// The simulated storage network answers.
    Delayed(u32, Box<Ending>),
    /// An origin without a connection is tried again.
    Connect(VolumeId),
    /// Writes that waited for `origin-quiet` may go.
    Remote(VolumeId),
    /// Accepting failed for want of descriptors or memory; try again.
    Accept(u32),
    /// The end of a ring waits for a signal that its guest does not take.
    Untold(ConnectionId, vring::Queue),
    /// Clients wait for buffers: look for others that sit on them.
    Starving,
    /// Jobs wait for a worker.
    Workers,
    /// A guest may ask for more.
    Limit(VolumeId),
    /// Another host has not answered a read.
    Former(u64),
    /// An orderly stop takes no longer.
    StopAnyway,
}

/// The host's side of a volume.
struct Volume {
    name: String,
    /// Byte ranges being written, by connection and ticket.
    ranges: RangeLock<(u32, u16)>,
    policy: Policy,
    /// Connections that wait to be let in.
    arriving: Vec<(u32, ConnectionId)>,
    /// Ledger and journal.
    beside: Vec<PathBuf>,
    /// How long its guests wait; none before the first came.
    latency: Option<Arc<Recorder>>,
    /// What its guest may ask for.
    throttle: Throttle,
    /// Of a member of a pool.
    pooled: Option<Pooled>,
}

/// Everything a shard starts from.
pub struct Parts<E> {
    pub engine: E,
    pub memory: HostMemory,
    pub files: Files,
}

/// The loop and all it owns. Fields that the kernel may still use come last to be dropped.
struct Shard<E: Decide> {
    engine: E,
    now: Time,
    timers: Timers<Alarm>,
    spin: Spin,
    counters: HostCounters,
    control: Requests<E::Settled>,
    commands: Commands<E::Settled>,
    copies: Copies,
    stopping: Option<Stopping>,
    waker: Arc<Waker>,
    exports: ExportTable,
    listeners: Slots<Listener>,
    volumes: BTreeMap<VolumeId, Volume>,
    recordings: Recordings,
    backups: Backups,
    /// Device blocks being written, where they are larger than sectors.
    blocks: HashMap<Device, RangeLock<u32>>,
    running: Slots<Running>,
    /// Ledgers and journals that were exchanged while something was on its way into them.
    doubtful: BTreeSet<Device>,
    remotes: Remotes,
    reopens: Reopens,
    workers: Pool,
    words: mpsc::Receiver<Word>,
    /// [`Alarm::Workers`] is set.
    workers_minded: bool,
    /// Work of this round, in the order in which it is looked at.
    done: VecDeque<(IoId, Ending)>,
    /// What the engine is told besides.
    told: VecDeque<Event>,
    replies: VecDeque<(RequestId, Result<(), Refusal>)>,
    unlocked: Vec<(u32, u16)>,
    to_drive: VecDeque<u32>,
    to_send: Vec<u32>,
    submitted: Vec<Phase>,
    /// Connections that wait for buffers, in turn; and whether some came back.
    starving: VecDeque<u32>,
    freed: bool,
    /// Guests with something to take, to publish, and with rings that were taken from.
    to_serve: VecDeque<u32>,
    to_publish: Vec<u32>,
    restless: Vec<u32>,
    /// Eventfds of front ends that the kernel uses at present.
    files_of_guests: HashMap<u64, Arc<OwnedFd>>,
    signals: BTreeMap<RawFd, guest::Signal>,
    pieces: Vec<Piece>,
    /// Scratch lists, kept for their memory.
    spans: Vec<Span>,
    iovecs: Vec<libc::iovec>,
    completed: Vec<Completed>,
    ring: Ring,
    conns: Slots<Box<Conn>>,
    guests: Slots<Box<Guest>>,
    files: Files,
    zeroes: Zeroes,
    memory: HostMemory,
}

/// Whether this process may have a ring; the error says what to change.
pub fn probe() -> io::Result<()> {
    make_ring().map(drop)
}

/// The kernel gives back what a ring had locked some time after its process has ended, so one that
/// follows a killed daemon waits for that before it calls the limit too low.
fn make_ring() -> io::Result<Ring> {
    let begun = Instant::now();
    loop {
        match Ring::new(RING_ENTRIES) {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                if begun.elapsed() > RING_PATIENCE {
                    return Err(error);
                }
                thread::sleep(RING_PAUSE);
            }
            made => return made,
        }
    }
}

/// Starts the thread. It ends after `Handle::stop`.
pub fn start<E: Decide>(parts: Parts<E>) -> io::Result<(Handle<E::Settled>, JoinHandle<()>)> {
    let waker = Arc::new(Waker::new()?);
    let (handle, control, mail) = control::channel(waker.clone());
    let (sender, started) = mpsc::sync_channel(1);
    let thread = thread::Builder::new()
        .name("tenuto-shard".into())
        .spawn(move || {
            // The ring belongs to the thread that makes it.
            match Shard::new(parts, (control, Copies::new(mail)), waker) {
                Ok(shard) => {
                    let told = sender.send(Ok(()));
                    told.expect("the starter waits for this");
                    shard.run();
                }
                Err(error) => {
                    let told = sender.send(Err(error));
                    told.expect("the starter waits for this");
                }
            }
        })?;
    started.recv().map_err(io::Error::other)??;
    Ok((handle, thread))
}

impl<E: Decide> Shard<E> {
    fn new(
        parts: Parts<E>,
        (control, copies): (Requests<E::Settled>, Copies),
        waker: Arc<Waker>,
    ) -> io::Result<Shard<E>> {
        let (workers, words) = Pool::new(waker.clone());
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut shard = Shard {
            engine: parts.engine,
            now: Time(ring::monotonic_ns()),
            timers: Timers::default(),
            spin: Spin::new(processors),
            counters: HostCounters::default(),
            control,
            commands: Commands::default(),
            copies,
            stopping: None,
            waker,
            exports: ExportTable::default(),
            listeners: Slots::default(),
            volumes: BTreeMap::new(),
            recordings: Recordings::default(),
            backups: Backups::default(),
            blocks: HashMap::new(),
            running: Slots::default(),
            doubtful: BTreeSet::new(),
            remotes: Remotes::default(),
            reopens: Reopens::default(),
            workers,
            words,
            workers_minded: false,
            done: VecDeque::new(),
            told: VecDeque::new(),
            replies: VecDeque::new(),
            unlocked: Vec::new(),
            to_drive: VecDeque::new(),
            to_send: Vec::new(),
            submitted: Vec::new(),
            starving: VecDeque::new(),
            to_serve: VecDeque::new(),
            to_publish: Vec::new(),
            restless: Vec::new(),
            files_of_guests: HashMap::new(),
            signals: BTreeMap::new(),
            pieces: Vec::new(),
            freed: false,
            spans: Vec::new(),
            iovecs: Vec::new(),
            completed: Vec::new(),
            ring: make_ring()?,
            conns: Slots::default(),
            guests: Slots::default(),
            files: parts.files,
            zeroes: Zeroes::new()?,
            memory: parts.memory,
        };
        shard.ring.read_counter(tag::CONTROL, &shard.waker);
        shard.drain_actions();
        Ok(shard)
    }

    fn run(mut self) {
        while !self.is_finished() {
            self.pause();
            self.round();
        }
        let in_use = self.running.len() > 0 || self.conns.len() > 0 || !self.remotes.is_idle();
        self.close_remotes();
        if in_use {
            // A device did not answer in time. The kernel may still use this memory.
            tracing::warn!("stopping with requests to devices in flight");
            std::mem::forget(self);
            return;
        }
        for id in self
            .volumes
            .keys()
            .filter(|id| self.engine.has_allocated(**id))
        {
            if let Some(files) = self.files.volume(*id) {
                files.end_allocations();
            }
        }
    }

    /// Everything that happened since the last round.
    fn round(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        self.ring.reap(&mut completed);
        for completed in completed.drain(..) {
            self.dispatch(completed);
        }
        self.completed = completed;
        while let Some(alarm) = self.timers.ring(self.now) {
            self.sound(alarm);
        }
        if self.engine.next_deadline().is_some_and(|at| at <= self.now) {
            self.feed(Event::Tick);
        }
        self.look_at_guests();
        self.serve_guests();
        self.settle();
        self.publish_guests();
        self.flush_sends();
    }

    fn dispatch(&mut self, completed: Completed) {
        let slot = completed.tag as u32;
        match completed.tag & tag::KIND {
            tag::CONTROL => {
                self.ring.read_counter(tag::CONTROL, &self.waker);
                self.collect_outcomes();
                self.collect_links();
                self.take_requests();
                self.take_mail();
            }
            tag::ACCEPT => self.finish_accept(slot, completed.result),
            tag::RECEIVE => self.finish_receive(slot, completed),
            tag::SEND => self.finish_send(slot, completed),
            tag::WATCH => self.finish_watch(slot),
            tag::DEVICE => self.finish_io(slot, completed),
            tag::REMOTE_RECEIVE => self.finish_remote_receive(slot, completed),
            tag::REMOTE_SEND => self.finish_remote_send(slot, completed),
            tag::KICK => self.finish_kick(slot >> 16, slot as u16, &completed),
            tag::KICK_TAKEN => self.finish_kick_taken(slot >> 16, slot as u16, &completed),
            tag::CALL => self.finish_call(slot),
            tag::NOTHING => {}
            other => panic!("no operation has a tag of kind {other:#x}"),
        }
    }

    fn sound(&mut self, alarm: Alarm) {
        match alarm {
            Alarm::Handshake(slot) => {
                self.counters.handshakes_timed_out += 1;
                self.with_conn(slot, |shard, conn| shard.kill(slot, conn));
            }
            Alarm::Drain(slot) => self.with_conn(slot, |shard, conn| shard.kill(slot, conn)),
            Alarm::Delayed(slot, ending) => self.report_io(slot, *ending),
            Alarm::Connect(volume) => self.connect(volume),
            Alarm::Remote(volume) => self.pump_remote(volume),
            Alarm::Accept(slot) => self.accept(slot),
            Alarm::Untold(guest, queue) => self.tell_no_longer(guest, queue),
            Alarm::Starving => self.relieve(),
            Alarm::Workers => self.relieve_workers(),
            Alarm::Limit(volume) => self.end_limit(volume),
            Alarm::Former(number) => {
                let late = self.copies.formers.is_late(number);
                self.done
                    .extend(late.map(|io| former::ended(&io, Err(IoError::Away))));
            }
            Alarm::StopAnyway => self.stop_anyway(),
        }
    }

    /// Cuts off clients that sit on buffers without moving, as long as others wait for some.
    fn relieve(&mut self) {
        if self.starving.is_empty() {
            return;
        }
        let then = Time(
            self.now
                .0
                .saturating_sub(conn::STUCK_MILLIS_MAX * 1_000_000),
        );
        let stuck = self.conns.iter().filter(|(_, conn)| conn.is_stuck(then));
        let stuck: Vec<u32> = stuck.map(|(slot, _)| slot).collect();
        for slot in stuck {
            tracing::warn!("closing a client that holds buffers and makes no progress");
            self.with_conn(slot, |shard, conn| shard.kill(slot, conn));
        }
        self.timers.set(self.now.plus_millis(1000), Alarm::Starving);
    }

    /// Tells the engine what happened and starts what it wants.
    fn feed(&mut self, event: Event) {
        self.backups.before(&event);
        self.engine.apply(self.now, event, &mut self.memory);
        self.drain_actions();
    }

    /// Says that a guest has no more room, and where it would be right to make some.
    fn tell_full(&self, volume: VolumeId, result: Result<(), Refusal>) {
        let right = match result {
            Err(Refusal::NoSpace) => {
                "its overlay has no more room; reset it, or give it or the cache more"
            }
            Err(Refusal::OriginFull) => {
                "the storage of its origin has no more room; make room there"
            }
            _ => return,
        };
        let name = self.volumes.get(&volume).map(|known| known.name.as_str());
        let name = name.unwrap_or_default();
        tracing::warn!(
            volume = name,
            "volume {name}: a write was answered with `no space left`: {right}"
        );
    }

    fn drain_actions(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                // Parked: what the engine would still do is done after the next start.
                Action::Io(_) if self.is_parked() => {}
                Action::Io(io) => self.start_io(io),
                Action::Reply { request, result } => {
                    self.note_rest(request, &result);
                    self.replies.push_back((request, result));
                }
                Action::Send {
                    volume,
                    peer,
                    number,
                    batch,
                } => self.send_batch((volume, peer), number, &batch),
            }
        }
    }

    /// Follows the consequences of this round to their end. They are finite: each step uses up
    /// input that has been received, or an operation that has completed.
    fn settle(&mut self) {
        loop {
            if let Some(event) = self.done_event() {
                self.feed(event);
            } else if let Some((request, result)) = self.replies.pop_front() {
                match guest::slot_of(request.connection) {
                    _ if command::is_ours(request) => self.finish_command(request, result),
                    _ if Copies::owns(request) => self.finish_batch(request, result),
                    _ if Formers::owns(request) => {
                        let (formers, memory) = (&mut self.copies.formers, &mut self.memory);
                        formers.served(memory, request, result.is_ok());
                        self.freed = true;
                    }
                    Some(slot) => self.guest_reply(slot, request, result),
                    None => self.take_reply(request, result),
                }
            } else if let Some((slot, ticket)) = self.unlocked.pop() {
                match guest::slot_of_key(slot) {
                    Some(slot) => self.unlock_guest(slot, ticket),
                    None => self.unlock(slot, crate::frontend::nbd::Ticket(ticket)),
                }
            } else if let Some(slot) = self.to_drive.pop_front() {
                self.with_conn(slot, |shard, conn| shard.drive(slot, conn));
            } else if self.freed {
                self.freed = false;
                self.to_drive.extend(self.starving.front());
                self.give_waiting();
            } else {
                return;
            }
        }
    }

    /// Hands operations to the kernel and waits for something to do: first by spinning, where
    /// that has paid off lately, then asleep.
    fn pause(&mut self) {
        if !self.submitted.is_empty() {
            self.submit();
            self.submitted.drain(..).for_each(marks::middle);
        }
        let idle_since = Time(ring::monotonic_ns());
        let deadline = [self.timers.next(), self.engine.next_deadline()];
        let deadline = deadline.into_iter().flatten().min();
        let left = deadline.map(|at| at.since(idle_since));
        let busy = left == Some(0) || !self.to_serve.is_empty();
        if !busy && !self.spin_for(left) && !self.let_guests_kick() {
            self.counters.sleeps += 1;
            let waited = self.ring.wait(left.map(Duration::from_nanos));
            waited.expect("a ring that was set up can be waited for");
        } else {
            self.submit();
        }
        self.now = Time(ring::monotonic_ns());
        self.spin.waited(self.now.since(idle_since));
    }

    fn submit(&mut self) {
        let submitted = self.ring.submit();
        submitted.expect("a ring that was set up takes operations");
    }

    /// True if something came while spinning.
    fn spin_for(&mut self, left: Option<u64>) -> bool {
        let nanos = self.spin.nanos().min(left.unwrap_or(u64::MAX));
        if nanos == 0 {
            return false;
        }
        self.submit();
        let start = Instant::now();
        while !self.ring.ready() && !self.guests_have_more() {
            if start.elapsed().as_nanos() as u64 >= nanos {
                return false;
            }
            std::hint::spin_loop();
        }
        true
    }
}

#[cfg(test)]
mod copies_tests;
#[cfg(test)]
mod tests;
