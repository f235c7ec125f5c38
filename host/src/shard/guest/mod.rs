//! Guests whose rings the shard serves itself.
//!
//! Owns what of each connected front end the shard needs: memory, in-flight region, rings, and the
//! requests that are under way. Always true: a request has one task from its taking to its
//! completion, and its memory lives as long; an order is answered when it has been carried out, a
//! stop therefore when the last request of the ring has ended and the guest has its interrupt,
//! which the front end looks for right after the answer; whoever is to be called instead of
//! somebody else is called once, for what the other was told too late; nothing that a guest does
//! is waited for, but for a moment where its event is full. Deliberately absent: the messages of
//! the protocol (`frontend::vhost_user`), the rings themselves (`vring`), and what a request does
//! (the engine).
//!
//! ```text
//! open ─▶ memory, region ─▶ start (its first ring: let in) ─▶ … ─▶ stop (ring): drained ─▶ end
//! ```
//!
//! When the daemon stops nothing is drained: what has not been completed is in the in-flight
//! region, and the next daemon goes on with it.

pub mod kept;
mod serve;
pub mod side;
pub mod standby;

use super::control::{Answer, GuestOpen};
use super::pooled::Pooled;
use super::timer::Key;
use super::{Alarm, Decide, Shard};
use crate::frontend::vhost_user::capacity::LiveDisk;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::frontend::vhost_user::region::Region;
use crate::frontend::vhost_user::{DataError, RingStart};
use crate::latency::Kind;
use crate::peer::Peer;
use engine::event::{Event, Refusal};
use engine::types::{ConnectionId, Policy, RequestId, Time, VolumeId};
pub(super) use serve::Signal;
use serve::Task;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use vring::Queue;
use vring::block::Scratch;
use vring::chain::Batch;
use vring::memory::Segment;
use vring::rings::{Rings, Shared};

/// Lower half of the ids of guests: connections of NBD have none of these.
pub(super) const MARK: u32 = 0x8000;
/// Guests at a time.
pub(super) const GUESTS_MAX: usize = 0x7000;
/// Requests of one guest under way; further ones wait in its rings.
const TASKS_MAX: usize = 4096;
/// How long the end of a ring waits for the guest to be told of its last requests.
const TELL_MILLIS_MAX: u64 = 1_000;
/// Numbers the flush before a cache is switched off; requests have smaller ones.
const CACHE_OFF: u32 = u32::MAX;

/// What the control side of a front end asks for. Each is answered when it has been done.
pub(crate) enum Order {
    Memory(Arc<GuestMemory>, Answer<()>),
    Region(Arc<Region>, Answer<Result<(), DataError>>),
    Start(RingStart, Answer<Result<(), DataError>>),
    Signal(
        Queue,
        Option<Arc<OwnedFd>>,
        Option<Arc<OwnedFd>>,
        Answer<()>,
    ),
    Stop(Queue, Answer<u16>),
    WriteCache(bool, Answer<Result<(), DataError>>),
}

/// One of the queues of a guest.
#[derive(Default)]
struct Side {
    start: Option<RingStart>,
    /// The kernel waits for a kick, or takes one.
    kicks: bool,
    /// Something was completed and is not published.
    done: bool,
    /// Its wish to be kicked is not up to date.
    restless: bool,
    stopping: Option<Answer<u16>>,
    /// Until when that waits for a signal.
    tells_until: Option<Key>,
    /// Told once.
    broken: bool,
    /// Requests that are complete and not shown, and when they were taken.
    measured: Vec<(Kind, Time)>,
}

pub(super) struct Guest {
    id: ConnectionId,
    volume: VolumeId,
    peer: Peer,
    /// Others may write beside it.
    shared: bool,
    disk: LiveDisk,
    memory: Arc<GuestMemory>,
    region: Option<Arc<Region>>,
    rings: Option<Rings>,
    sides: Vec<Side>,
    /// Queues from here on were never started.
    sides_used: usize,
    tasks: Vec<Option<Task>>,
    free: Vec<u16>,
    /// Writes end when they are durable.
    through: bool,
    /// A ring has run: there is a guest.
    came: bool,
    /// The first ring, which waits until its volume lets the guest in.
    coming: Option<(RingStart, Answer<Result<(), DataError>>)>,
    /// Waits for a flush, to go on without a cache.
    cache_off: Option<Answer<Result<(), DataError>>>,
    /// Has more requests than we take at a time.
    full: bool,
    /// Events that are being signalled.
    signals: usize,
    /// The front end is gone.
    ended: Option<bool>,
    batch: Batch,
    scratch: Scratch,
    in_round: bool,
    /// Lists that are not used, for their memory.
    spare: Vec<Vec<Segment>>,
    /// Among those whose rings are looked at.
    restless: bool,
}

impl Guest {
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether it matters to nobody who else writes.
    pub fn shares(&self) -> bool {
        self.shared || self.disk.is_read_only()
    }

    fn tasks_live(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// A front end that is not gone.
    pub fn serves(&self, volume: VolumeId) -> bool {
        self.volume == volume && self.ended.is_none()
    }

    /// Who may write this volume, if the guest may.
    pub fn writer(&self, volume: VolumeId) -> Option<&Peer> {
        let comes = self.came || self.coming.is_some();
        let writes = self.serves(volume) && comes && !self.disk.is_read_only();
        writes.then_some(&self.peer)
    }

    /// The same with a guest in it.
    pub fn is_in(&self, volume: VolumeId) -> bool {
        self.serves(volume) && self.came
    }
}

/// Which guest a connection is, if it is one.
pub(super) fn slot_of(connection: ConnectionId) -> Option<u32> {
    (connection.0 & MARK != 0).then_some(connection.0 & (MARK - 1))
}

/// The same of a key of range locks.
pub(super) fn slot_of_key(key: u32) -> Option<u32> {
    (key & MARK != 0).then_some(key & (MARK - 1))
}

/// Guests of a volume that wait with their first ring, and whether one of them goes on.
pub(super) fn who_waits<'a>(
    guests: impl Iterator<Item = &'a Guest>,
    volume: VolumeId,
) -> (Vec<(u32, ConnectionId)>, bool) {
    let (mut waiting, mut one_goes_on) = (Vec::new(), false);
    for guest in guests.filter(|it| it.serves(volume)) {
        if let Some((start, _)) = &guest.coming {
            waiting.extend(slot_of(guest.id).map(|slot| (slot, guest.id)));
            one_goes_on |= start.goes_on;
        }
    }
    (waiting, one_goes_on)
}

impl<E: Decide> Shard<E> {
    /// A front end has a device of this volume.
    pub(super) fn guest_open(&mut self, open: GuestOpen, answer: Answer<Result<u32, DataError>>) {
        let GuestOpen {
            volume,
            disk,
            queues,
            memory,
            peer,
            shared,
        } = open;
        let refused = if self.is_stopping() {
            Some(DataError::Stopped)
        } else if !self.volumes.contains_key(&volume) {
            Some(DataError::Refused("its volume has been removed".into()))
        } else if self.guests.len() >= GUESTS_MAX {
            let many = format!("{GUESTS_MAX} front ends are served, and no more");
            Some(DataError::Refused(many))
        } else {
            None
        };
        if let Some(refused) = refused {
            let _ = answer.send(Err(refused));
            return;
        }
        let slot = self.guests.next();
        self.counters.connections_accepted += 1;
        let life = self.counters.connections_accepted as u32;
        let id = ConnectionId(life << 16 | MARK | slot);
        let guest = Box::new(Guest {
            id,
            volume,
            peer,
            shared,
            disk,
            memory,
            region: None,
            rings: None,
            sides: (0..queues).map(|_| Side::default()).collect(),
            sides_used: 0,
            tasks: Vec::new(),
            free: Vec::new(),
            through: false,
            came: false,
            coming: None,
            cache_off: None,
            full: false,
            signals: 0,
            ended: None,
            batch: Batch::default(),
            scratch: Scratch::default(),
            in_round: false,
            spare: Vec::new(),
            restless: false,
        });
        self.measure(volume);
        assert_eq!(self.guests.insert(guest), slot, "the number was announced");
        // Nobody may wait for it any more.
        if answer.send(Ok(slot)).is_err() {
            self.guest_end(slot, false);
        }
    }

    /// Runs a ring. The first one of a guest is its arrival: only now is it known whether the
    /// guest begins, or goes on with what it did before.
    fn begin_ring(
        &mut self,
        slot: u32,
        guest: &mut Guest,
        start: RingStart,
        answer: Answer<Result<(), DataError>>,
    ) {
        let volume = guest.volume;
        if let Err(taken) = self.may_write(guest, guest.came || start.goes_on) {
            let _ = answer.send(Err(taken));
            return;
        }
        // The guest itself is lent out, and not among them.
        let alone = self.clients_in(volume) == 0;
        let Some(known) = self.volumes.get_mut(&volume) else {
            let removed = DataError::Refused("its volume has been removed".into());
            let _ = answer.send(Err(removed));
            return;
        };
        let waits = !known.arriving.is_empty();
        if alone && !waits && !guest.came {
            if let Some(pooled) = known.pooled.as_ref().filter(|it| it.is_due()) {
                pooled.guest_waits(start.goes_on);
                guest.coming = Some((start, answer));
                return;
            }
            known.pooled.iter().for_each(Pooled::client_comes);
        }
        if guest.came || known.policy != Policy::Ephemeral || !(alone || waits) {
            let started = self.start_ring(slot, guest, start);
            guest.came |= started.is_ok();
            let _ = answer.send(started);
            return;
        }
        known.arriving.push((slot, guest.id));
        let goes_on = start.goes_on;
        guest.coming = Some((start, answer));
        if !waits {
            self.send_arrival(volume, goes_on);
        }
    }

    /// The engine lets a guest in, or its volume goes away.
    pub(super) fn let_guest_in(&mut self, slot: u32, id: ConnectionId, welcome: bool) {
        self.with_guest(slot, |shard, guest| {
            if guest.id != id {
                return;
            }
            let Some((start, answer)) = guest.coming.take() else {
                return;
            };
            let started = match welcome {
                true => shard.start_ring(slot, guest, start),
                false => Err(DataError::Refused("its volume goes away".into())),
            };
            guest.came |= started.is_ok();
            let _ = answer.send(started);
        });
    }

    /// Runs `step` on a guest that is there.
    pub(super) fn with_guest(&mut self, slot: u32, step: impl FnOnce(&mut Self, &mut Guest)) {
        let Some(mut guest) = self.guests.lend(slot) else {
            return;
        };
        step(self, &mut guest);
        let over = guest.ended.is_some() && guest.tasks_live() == 0 && guest.cache_off.is_none();
        let (volume, in_order) = (guest.volume, guest.ended == Some(true) && guest.came);
        let id = guest.id;
        self.guests.restore(slot, guest);
        if over {
            self.guests.remove(slot);
            self.cancel_signals(id);
            self.restless.retain(|&other| other != slot);
            if in_order {
                self.went_out(volume, true);
            }
        }
    }

    pub(super) fn guest_order(&mut self, slot: u32, order: Order) {
        self.with_guest(slot, |shard, guest| match order {
            Order::Memory(memory, answer) => {
                guest.memory = memory;
                let _ = answer.send(());
            }
            Order::Region(region, answer) => {
                let opened = Rings::open(region.layout(), &*region);
                let opened = opened.map(|rings| {
                    guest.rings = Some(rings);
                    guest.region = Some(region);
                    // It may be for fewer queues than the one before.
                    guest.sides_used = 0;
                });
                let _ = answer.send(opened.map_err(DataError::from));
            }
            Order::Start(start, answer) => {
                shard.begin_ring(slot, guest, start, answer);
            }
            Order::Signal(queue, call, error, answer) => {
                shard.set_signals(slot, guest, queue, (call, error));
                let _ = answer.send(());
            }
            // Whoever asks hears that nothing is served any more.
            Order::Stop(..) if shard.is_parked() => {}
            Order::Stop(queue, answer) => {
                guest.sides[usize::from(queue.0)].stopping = Some(answer);
                shard.stop_ring(guest, queue);
            }
            Order::WriteCache(write_back, answer) => shard.set_cache(guest, write_back, answer),
        });
    }

    /// A guest that had a cache finds all that it wrote before durable when it has none.
    fn set_cache(
        &mut self,
        guest: &mut Guest,
        write_back: bool,
        answer: Answer<Result<(), DataError>>,
    ) {
        let had = !std::mem::replace(&mut guest.through, !write_back);
        if write_back || !had || guest.rings.is_none() {
            let _ = answer.send(Ok(()));
            return;
        }
        guest.cache_off = Some(answer);
        let (volume, connection) = (guest.volume, guest.id);
        let number = CACHE_OFF;
        let request = RequestId { connection, number };
        self.feed(Event::Flush { volume, request });
    }

    fn cache_is_off(guest: &mut Guest, result: Result<(), Refusal>) {
        let Some(answer) = guest.cache_off.take() else {
            return;
        };
        let refused = || DataError::Refused("what was written could not be flushed".into());
        // Every write goes through from here on, whatever became of the earlier ones.
        let _ = answer.send(result.map_err(|_| refused()));
    }

    /// The front end is gone; what it has under way still ends.
    pub(super) fn guest_end(&mut self, slot: u32, in_order: bool) {
        self.with_guest(slot, |_, guest| guest.ended = Some(in_order));
    }

    fn start_ring(
        &mut self,
        slot: u32,
        guest: &mut Guest,
        start: RingStart,
    ) -> Result<(), DataError> {
        let (Some(region), Some(rings)) = (&guest.region, guest.rings.as_mut()) else {
            return Err(DataError::Refused(
                "the rings have no in-flight region".into(),
            ));
        };
        let shared = Shared {
            guest: &*guest.memory,
            region: &**region,
        };
        rings.start(start.queue, start.setup, start.base, &shared)?;
        let queue = start.queue;
        guest.sides_used = guest.sides_used.max(usize::from(queue.0) + 1);
        let side = &mut guest.sides[usize::from(queue.0)];
        side.start = Some(start);
        (side.restless, side.done, side.broken) = (true, true, false);
        // It calls once, for what was shown and perhaps not told before.
        self.to_publish.push(slot);
        self.wait_for_kick(guest, queue);
        self.serve_soon(slot, guest);
        Ok(())
    }

    /// Whom a ring calls. A front end can have used entries shown, and told to an event that it
    /// does not look at any more: QEMU starts its rings with one that nobody reads.
    fn set_signals(
        &mut self,
        slot: u32,
        guest: &mut Guest,
        queue: Queue,
        (call, error): (Option<Arc<OwnedFd>>, Option<Arc<OwnedFd>>),
    ) {
        let side = guest.sides.get_mut(usize::from(queue.0));
        let Some(start) = side.and_then(|side| side.start.as_mut()) else {
            return;
        };
        let before = std::mem::replace(&mut start.call, call.clone());
        start.error = error;
        let same = |other: &Arc<OwnedFd>| before.is_some_and(|it| Arc::ptr_eq(&it, other));
        if let Some(call) = call.filter(|call| !same(call)) {
            self.signal(slot, guest, call);
        }
    }

    /// Stops a ring that is to be stopped, has nothing under way and nothing to tell.
    fn stop_ring(&mut self, guest: &mut Guest, queue: Queue) {
        let side = &mut guest.sides[usize::from(queue.0)];
        if side.stopping.is_none() {
            return;
        }
        let call = side.start.as_ref().and_then(|start| start.call.as_ref());
        if call.is_some_and(|call| self.signals.contains_key(&call.as_raw_fd())) {
            let at = self.now.plus_millis(TELL_MILLIS_MAX);
            let alarm = Alarm::Untold(guest.id, queue);
            let timers = &mut self.timers;
            side.tells_until
                .get_or_insert_with(|| timers.set(at, alarm));
            return;
        }
        let base = match guest.rings.as_mut() {
            Some(rings) if rings.is_running(queue) => rings.stop(queue),
            _ => Some(0),
        };
        let Some(base) = base else { return };
        side.start = None;
        if let Some(key) = side.tells_until.take() {
            self.timers.cancel(key);
        }
        self.cancel_kick(guest.id, queue);
        let answer = side.stopping.take().expect("just seen");
        let _ = answer.send(base);
    }

    /// A guest has not taken a signal for too long: its event is full, so it is told already.
    pub(super) fn tell_no_longer(&mut self, id: ConnectionId, queue: Queue) {
        let slot = slot_of(id).expect("guests alone are told");
        self.with_guest(slot, |shard, guest| {
            if guest.id != id {
                return;
            }
            let side = &mut guest.sides[usize::from(queue.0)];
            side.tells_until = None;
            let call = side.start.as_ref().and_then(|start| start.call.as_ref());
            if let Some(call) = call.map(|call| call.as_raw_fd()) {
                shard.cancel_signal(call);
            }
        });
    }

    /// The daemon stops: whoever waits for the end of a ring hears that there is none.
    pub(super) fn let_guests_go(&mut self) {
        let all: Vec<u32> = self.guests.iter().map(|(slot, _)| slot).collect();
        for slot in all {
            self.with_guest(slot, |_, guest| {
                guest.sides.iter_mut().for_each(|side| side.stopping = None);
                (guest.coming, guest.cache_off) = (None, None);
            });
        }
    }

    /// Requests of guests that are under way.
    pub(super) fn guest_tasks(&self) -> u64 {
        let all = self.guests.iter();
        all.map(|(_, guest)| guest.tasks_live() as u64).sum()
    }

    /// The volume of each guest that is connected.
    pub(super) fn guest_volumes(&self) -> impl Iterator<Item = VolumeId> {
        let all = self.guests.iter();
        let all = all.filter(|(_, guest)| guest.ended.is_none());
        all.map(|(_, guest)| guest.volume)
    }

    /// Guests of a volume whose rings have run.
    pub(super) fn guests_in(&self, volume: VolumeId) -> u64 {
        let all = self.guests.iter();
        all.filter(|(_, guest)| guest.is_in(volume)).count() as u64
    }

    /// Connections of a volume by rings.
    pub(super) fn guests_of(&self, volume: VolumeId) -> u64 {
        let all = self.guests.iter();
        all.filter(|(_, guest)| guest.serves(volume)).count() as u64
    }
}
