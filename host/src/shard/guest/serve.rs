//! The way of a request from a ring to the engine and back.
//!
//! ```text
//! kick ─▶ take ─▶ parse ─▶ (range) ─▶ engine ─▶ reply ─▶ status byte ─▶ publish ─▶ call
//! ```
//!
//! Always true: a round takes a bounded number of requests of each ring, so that no guest keeps the
//! others waiting; what was completed in a round is shown at its end at the latest, with one
//! interrupt for all of it; the thread sleeps only after each ring it took from has been asked to
//! kick and had nothing more. Payload is not copied here: the engine gets the guest's memory as a
//! buffer.

use super::{CACHE_OFF, Guest, MARK, Side, TASKS_MAX};
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::latency::Kind;
use crate::ring::{self, Completed};
use crate::shard::{Decide, Shard, tag};
use engine::event::{Event, Refusal};
use engine::types::{BufferId, ConnectionId, RequestId, SECTOR_BYTES, Span, Tag, Time, VolumeId};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use vring::block::{Command, Parsed, Reply, SectorRange, Status};
use vring::chain::Taken;
use vring::memory::Segment;
use vring::rings::Shared;
use vring::split::Broken;
use vring::{Head, Queue};
use workload::trace::Op;

/// Requests that one round takes of one ring.
const TAKE_MAX: usize = 64;
/// So many that are complete are shown before the round is over: a guest that looks by itself works
/// on them while we do on the rest.
const SHOWN_AT: usize = 8;
/// Events of one guest that are being signalled: two for each queue, and as many again that were
/// replaced meanwhile.
const SIGNALS_MAX: usize = 1024;

/// An event of a guest that is being signalled.
pub(in crate::shard) struct Signal {
    file: Arc<OwnedFd>,
    slot: u32,
    guest: ConnectionId,
    /// There is something new to be told since.
    again: bool,
}

/// What a request wants of the engine.
enum Want {
    Read(Span),
    Write(Span, Tag),
    Flush,
    Ranges {
        ranges: Vec<SectorRange>,
        zeroes: bool,
    },
}

/// A request that is under way.
pub(super) struct Task {
    queue: Queue,
    head: Head,
    reply: Reply,
    want: Want,
    buffer: Option<BufferId>,
    /// Where a read goes, to be noted as written.
    segments: Vec<Segment>,
    /// As it was when the request was taken.
    memory: Arc<GuestMemory>,
    pending: u32,
    status: Status,
    locked: bool,
    /// When it was taken.
    since: Time,
}

impl Want {
    /// As what it is measured.
    fn kind(&self) -> Kind {
        match self {
            Want::Read(_) => Kind::Read,
            Want::Flush => Kind::Flush,
            Want::Write(..) | Want::Ranges { .. } => Kind::Write,
        }
    }

    /// What it carries.
    fn bytes(&self) -> u64 {
        match self {
            Want::Read(span) | Want::Write(span, _) => span.sectors * SECTOR_BYTES,
            Want::Flush | Want::Ranges { .. } => 0,
        }
    }

    /// What it changes, at least.
    fn changes(&self) -> Option<Span> {
        match self {
            Want::Read(_) | Want::Flush => None,
            Want::Write(span, _) => Some(*span),
            Want::Ranges { ranges, .. } => {
                let first = ranges.iter().map(|range| range.sector).min()?;
                let end = ranges
                    .iter()
                    .map(|range| range.sector + range.sectors)
                    .max()?;
                Some(Span::new(first, end - first))
            }
        }
    }
}

impl<E: Decide> Shard<E> {
    pub(in crate::shard) fn serve_soon(&mut self, slot: u32, guest: &mut Guest) {
        if !guest.in_round {
            guest.in_round = true;
            self.to_serve.push_back(slot);
        }
    }

    /// Serves guests that have something, each once.
    pub(in crate::shard) fn serve_guests(&mut self) {
        for _ in 0..self.to_serve.len() {
            let slot = self.to_serve.pop_front().expect("just counted");
            self.with_guest(slot, |shard, guest| {
                guest.in_round = false;
                shard.serve(slot, guest);
            });
        }
    }

    fn serve(&mut self, slot: u32, guest: &mut Guest) {
        if guest.ended.is_some() || self.is_stopping() {
            return;
        }
        let most = self.allowance(guest.volume, slot | MARK, usize::from(u16::MAX));
        if most == 0 {
            return;
        }
        let mut batch = std::mem::take(&mut guest.batch);
        batch.clear();
        // A round is of those that an earlier daemon has begun, or of new ones.
        let again = guest.rings.as_ref().is_some_and(|rings| rings.again() > 0);
        let more = guest.take(&mut batch, most);
        let region = guest.region.as_ref().map_or(0, |region| region.number());
        let mut scratch = std::mem::take(&mut guest.scratch);
        let memory = guest.memory.clone();
        // Read once for all of them, and only where there are some.
        let mut now = None;
        for (taken, chain) in batch.iter() {
            let since = *now.get_or_insert_with(|| Time(ring::monotonic_ns()));
            match guest.disk.look().parse(&chain, &*memory, &mut scratch) {
                Parsed::Answer { status, reply } => {
                    let written = reply.finish(&*memory, status);
                    self.complete(slot, guest, taken.queue, taken.head, written);
                }
                Parsed::Run { command, reply } => {
                    let tag = tag_of(region, taken);
                    let write = matches!(command, Command::Write { .. });
                    if again && write && self.engine.has_taken(guest.volume, tag) {
                        self.counters.requests_found += 1;
                        let written = reply.finish(&*memory, Status::Ok);
                        self.complete(slot, guest, taken.queue, taken.head, written);
                        continue;
                    }
                    self.counters.requests_again += u64::from(again);
                    let (want, data) = want_of(command, tag);
                    let taken = (taken, since);
                    self.begin_task(slot, guest, (&memory, data), taken, want, reply);
                }
            }
        }
        let mut used = guest.sides[..guest.sides_used].iter();
        if used.any(|side| side.restless) && !std::mem::replace(&mut guest.restless, true) {
            self.restless.push(slot);
        }
        (guest.batch, guest.scratch) = (batch, scratch);
        self.tell_broken(slot, guest);
        if more {
            self.serve_soon(slot, guest);
        }
    }

    /// Tells a recording of a request; each range of a discard is one.
    fn record_want(&mut self, volume: VolumeId, want: &Want) {
        match want {
            Want::Read(span) => self.record(volume, Op::Read, *span),
            Want::Write(span, _) => self.record(volume, Op::Write, *span),
            Want::Flush => self.record(volume, Op::Flush, Span::new(0, 0)),
            Want::Ranges { ranges, .. } => {
                for range in ranges {
                    let span = Span::new(range.sector, range.sectors);
                    self.record(volume, Op::Discard, span);
                }
            }
        }
    }

    fn begin_task(
        &mut self,
        slot: u32,
        guest: &mut Guest,
        (memory, data): (&Arc<GuestMemory>, &[Segment]),
        (taken, since): (Taken, Time),
        want: Want,
        reply: Reply,
    ) {
        self.record_want(guest.volume, &want);
        let loans = &mut self.memory.loans;
        let buffer = match data.is_empty() {
            true => None,
            false => match memory.lend(data, &mut self.pieces, loans) {
                Some(buffer) => Some(buffer),
                None => {
                    let written = reply.finish(&**memory, Status::IoError);
                    return self.complete(slot, guest, taken.queue, taken.head, written);
                }
            },
        };
        let mut segments = guest.spare.pop().unwrap_or_default();
        if matches!(want, Want::Read(_)) {
            segments.extend_from_slice(data);
        }
        let task = Task {
            queue: taken.queue,
            head: taken.head,
            reply,
            want,
            buffer,
            segments,
            memory: memory.clone(),
            pending: 0,
            status: Status::Ok,
            locked: false,
            since,
        };
        let (changes, bytes) = (task.want.changes(), task.want.bytes());
        let at = guest.insert(task);
        // It may have been removed under a front end that came just before.
        let Some(volume) = self.volumes.get_mut(&guest.volume) else {
            return self.end_task_with(slot, guest, at, Status::IoError);
        };
        volume.throttle.charge(self.now, bytes);
        if let Some(span) = changes {
            guest.task(at).locked = true;
            if !volume.ranges.acquire((slot | MARK, at), span, false) {
                return;
            }
        }
        self.start_task(guest, at);
    }

    /// The range lock has come round to a request of a guest.
    pub(in crate::shard) fn unlock_guest(&mut self, slot: u32, at: u16) {
        self.with_guest(slot, |shard, guest| shard.start_task(guest, at));
    }

    fn start_task(&mut self, guest: &mut Guest, at: u16) {
        let (volume, fua, connection) = (guest.volume, guest.through, guest.id);
        let request = RequestId {
            connection,
            number: u32::from(at),
        };
        let task = guest.task(at);
        let buffer = || task.buffer.expect("data has a buffer");
        let event = match &task.want {
            Want::Read(span) => Event::Read {
                volume,
                request,
                sector: span.sector,
                sectors: span.sectors,
                buffer: buffer(),
            },
            Want::Write(span, tag) => Event::Write {
                volume,
                request,
                sector: span.sector,
                sectors: span.sectors,
                buffer: buffer(),
                fua,
                tag: *tag,
            },
            Want::Flush => Event::Flush { volume, request },
            Want::Ranges { ranges, zeroes } => {
                let event = |range| range_event(volume, request, range, *zeroes, fua);
                let events: Vec<Event> = ranges.iter().map(event).collect();
                task.pending = events.len() as u32;
                events.into_iter().for_each(|event| self.feed(event));
                return;
            }
        };
        task.pending = 1;
        self.feed(event);
    }

    /// A reply of the engine to a request of a guest.
    pub(in crate::shard) fn guest_reply(
        &mut self,
        slot: u32,
        request: RequestId,
        result: Result<(), Refusal>,
    ) {
        self.with_guest(slot, |shard, guest| {
            assert_eq!(
                guest.id, request.connection,
                "a number outlives its requests"
            );
            let at = request.number as u16;
            if request.number == CACHE_OFF {
                return Self::cache_is_off(guest, result);
            }
            let volume = guest.volume;
            let task = guest.task(at);
            assert!(task.pending > 0, "a request is replied to once");
            task.pending -= 1;
            if result.is_err() {
                task.status = Status::IoError;
                shard.tell_full(volume, result);
            }
            if task.pending == 0 {
                let status = task.status;
                shard.end_task_with(slot, guest, at, status);
            }
        });
    }

    fn end_task_with(&mut self, slot: u32, guest: &mut Guest, at: u16, status: Status) {
        let mut task = guest.remove(at);
        if task.locked
            && let Some(volume) = self.volumes.get_mut(&guest.volume)
        {
            volume.ranges.release((slot | MARK, at), &mut self.unlocked);
        }
        for segment in &task.segments {
            task.memory.mark(segment.at, u64::from(segment.bytes));
        }
        task.segments.clear();
        guest.spare.push(std::mem::take(&mut task.segments));
        if let Some(buffer) = task.buffer {
            self.memory.loans.give_back(buffer);
        }
        if std::mem::take(&mut guest.full) {
            self.serve_soon(slot, guest);
        }
        let written = task.reply.finish(&*task.memory, status);
        let side = &mut guest.sides[usize::from(task.queue.0)];
        side.measured.push((task.want.kind(), task.since));
        self.complete(slot, guest, task.queue, task.head, written);
    }

    fn complete(&mut self, slot: u32, guest: &mut Guest, queue: Queue, head: Head, written: u32) {
        let rings = guest.rings.as_mut().expect("requests come from rings");
        rings.complete(queue, head, written);
        if rings.unshown(queue) >= SHOWN_AT
            && let Some(region) = &guest.region
        {
            let shared = Shared {
                guest: &*guest.memory,
                region: &**region,
            };
            // What is broken is told with the rest of the round.
            let _ = rings.show(queue, &shared);
            self.took_shown(guest, queue);
        }
        guest.sides[usize::from(queue.0)].done = true;
        self.to_publish.push(slot);
    }

    /// Shows the guests what was completed in this round.
    pub(in crate::shard) fn publish_guests(&mut self) {
        let mut slots = std::mem::take(&mut self.to_publish);
        slots.sort_unstable();
        slots.dedup();
        for slot in slots.drain(..) {
            self.with_guest(slot, |shard, guest| shard.publish(slot, guest));
        }
        self.to_publish = slots;
    }

    fn publish(&mut self, slot: u32, guest: &mut Guest) {
        for at in 0..guest.sides_used {
            let queue = Queue(at as u16);
            if !std::mem::take(&mut guest.sides[at].done) {
                continue;
            }
            let Some(region) = &guest.region else {
                continue;
            };
            let shared = Shared {
                guest: &*guest.memory,
                region: &**region,
            };
            let rings = guest.rings.as_mut().expect("with a region there are rings");
            // What is broken is told below.
            if rings.publish(queue, &shared) == Ok(true) {
                let call = guest.sides[at].start.as_ref();
                if let Some(call) = call.and_then(|start| start.call.clone()) {
                    self.signal(slot, guest, call);
                }
            }
            self.took_shown(guest, queue);
            self.stop_ring(guest, queue);
        }
        self.tell_broken(slot, guest);
    }

    /// What was completed in this ring is shown now.
    fn took_shown(&mut self, guest: &mut Guest, queue: Queue) {
        let measured = &mut guest.sides[usize::from(queue.0)].measured;
        if !measured.is_empty() {
            let now = Time(ring::monotonic_ns());
            self.took(guest.volume, measured, now);
        }
    }

    /// Says once that a guest has broken a ring.
    fn tell_broken(&mut self, slot: u32, guest: &mut Guest) {
        for at in 0..guest.sides_used {
            let rings = guest.rings.as_ref();
            let Some(reason) = rings.and_then(|rings| rings.broken(Queue(at as u16))) else {
                continue;
            };
            let side = &mut guest.sides[at];
            if std::mem::replace(&mut side.broken, true) {
                continue;
            }
            self.counters.protocol_errors += 1;
            tracing::warn!("queue {at} of a guest is broken: {reason}");
            if let Some(error) = side.start.as_ref().and_then(|start| start.error.clone()) {
                self.signal(slot, guest, error);
            }
        }
    }

    /// Looks at the rings that do not kick, because they were taken from lately: whoever else keeps
    /// the thread busy, they get their turn.
    pub(in crate::shard) fn look_at_guests(&mut self) {
        for at in 0..self.restless.len() {
            let slot = self.restless[at];
            if self.guests.get(slot).is_some_and(|guest| guest.has_more()) {
                self.with_guest(slot, |shard, guest| shard.serve_soon(slot, guest));
            }
        }
    }

    /// Whether one of them has something.
    pub(in crate::shard) fn guests_have_more(&self) -> bool {
        let mut guests = self
            .restless
            .iter()
            .filter_map(|&slot| self.guests.get(slot));
        !self.is_stopping() && guests.any(|guest| guest.has_more())
    }

    /// Asks rings that were taken from to kick again. True if one has something already.
    pub(in crate::shard) fn let_guests_kick(&mut self) -> bool {
        let mut found = false;
        let mut slots = std::mem::take(&mut self.restless);
        for slot in slots.drain(..) {
            self.with_guest(slot, |shard, guest| {
                guest.restless = false;
                if guest.ask_for_kicks() {
                    found = true;
                    shard.serve_soon(slot, guest);
                }
            });
        }
        // Nobody was added meanwhile; only its memory is kept.
        self.restless = slots;
        found
    }

    pub(super) fn wait_for_kick(&mut self, guest: &mut Guest, queue: Queue) {
        let side = &mut guest.sides[usize::from(queue.0)];
        let Some(start) = side.start.as_ref().filter(|_| !side.kicks) else {
            return;
        };
        side.kicks = true;
        let tag = tag::kick(guest.id.0, queue.0);
        self.ring.readable(tag, start.kick.as_raw_fd());
        self.files_of_guests.insert(tag, start.kick.clone());
    }

    /// Nobody waits for kicks of this ring any more; nor for the count of one that its guest has
    /// taken away again, which would never come.
    pub(super) fn cancel_kick(&mut self, guest: ConnectionId, queue: Queue) {
        let waits = [
            tag::kick(guest.0, queue.0),
            tag::kick_taken(guest.0, queue.0),
        ];
        for wait in waits {
            if self.files_of_guests.contains_key(&wait) {
                self.ring.cancel(tag::NOTHING, wait);
            }
        }
    }

    /// A guest has kicked, or nobody waits for that any more.
    pub(in crate::shard) fn finish_kick(&mut self, slot: u32, queue: u16, completed: &Completed) {
        let file = self.files_of_guests.remove(&completed.tag);
        let kicked = completed.result.is_ok();
        self.with_guest(slot, |shard, guest| {
            if tag::kick(guest.id.0, queue) != completed.tag {
                return;
            }
            let side = &mut guest.sides[usize::from(queue)];
            side.kicks = false;
            let Some(file) = file.filter(|_| kicked && side.start.is_some()) else {
                return shard.wait_for_kick(guest, Queue(queue));
            };
            // The counter is taken before the next wait, which would end at once.
            side.kicks = true;
            shard.take_kick(guest.id, queue, file);
            shard.serve_soon(slot, guest);
        });
    }

    fn take_kick(&mut self, guest: ConnectionId, queue: u16, file: Arc<OwnedFd>) {
        let tag = tag::kick_taken(guest.0, queue);
        self.ring.read_eventfd(tag, file.as_raw_fd());
        self.files_of_guests.insert(tag, file);
    }

    pub(in crate::shard) fn finish_kick_taken(
        &mut self,
        slot: u32,
        queue: u16,
        completed: &Completed,
    ) {
        self.files_of_guests.remove(&completed.tag);
        self.with_guest(slot, |shard, guest| {
            if tag::kick_taken(guest.id.0, queue) != completed.tag {
                return;
            }
            guest.sides[usize::from(queue)].kicks = false;
            shard.wait_for_kick(guest, Queue(queue));
            // A kick between the two that were taken as one is for what came after we looked.
            shard.serve_soon(slot, guest);
        });
    }

    /// Signals an event once at a time: its guest can make that wait as long as it likes. What
    /// comes meanwhile is one more signal afterwards.
    pub(super) fn signal(&mut self, slot: u32, guest: &mut Guest, file: Arc<OwnedFd>) {
        let fd = file.as_raw_fd();
        if let Some(signal) = self.signals.get_mut(&fd) {
            signal.again = true;
            return;
        }
        // Only one that changes its events while none of them ends has so many.
        if guest.signals >= SIGNALS_MAX {
            return;
        }
        guest.signals += 1;
        self.ring.write_eventfd(tag::call(fd), fd);
        let signal = Signal {
            file,
            slot,
            guest: guest.id,
            again: false,
        };
        self.signals.insert(fd, signal);
    }

    pub(in crate::shard) fn finish_call(&mut self, fd: u32) {
        let signal = self.signals.remove(&(fd as RawFd));
        let signal = signal.expect("a signal ends once");
        self.with_guest(signal.slot, |shard, guest| {
            if guest.id == signal.guest {
                guest.signals -= 1;
                if signal.again {
                    shard.signal(signal.slot, guest, signal.file);
                }
                for at in 0..guest.sides_used {
                    shard.stop_ring(guest, Queue(at as u16));
                }
            }
        });
    }

    /// Nobody waits any more until this event takes a signal.
    pub(super) fn cancel_signal(&mut self, fd: RawFd) {
        if let Some(signal) = self.signals.get_mut(&fd) {
            signal.again = false;
            self.ring.cancel(tag::NOTHING, tag::call(fd));
        }
    }

    /// Nobody takes what a guest that is gone was told.
    pub(super) fn cancel_signals(&mut self, guest: ConnectionId) {
        let of_guest = self.signals.iter().filter(|(_, it)| it.guest == guest);
        let of_guest: Vec<RawFd> = of_guest.map(|(fd, _)| *fd).collect();
        for fd in of_guest {
            self.ring.cancel(tag::NOTHING, tag::call(fd));
        }
    }
}

/// What a request wants, and where its payload is.
fn want_of(command: Command<'_>, tag: Tag) -> (Want, &[Segment]) {
    match command {
        Command::Read {
            sector,
            sectors,
            data,
        } => (Want::Read(Span::new(sector, sectors)), data),
        Command::Write {
            sector,
            sectors,
            data,
        } => (Want::Write(Span::new(sector, sectors), tag), data),
        Command::Flush => (Want::Flush, &[][..]),
        Command::Discard { ranges } => {
            let (ranges, zeroes) = (ranges.to_vec(), false);
            (Want::Ranges { ranges, zeroes }, &[][..])
        }
        Command::WriteZeroes { ranges } => {
            let (ranges, zeroes) = (ranges.to_vec(), true);
            (Want::Ranges { ranges, zeroes }, &[][..])
        }
    }
}

/// A region without a number has requests without tags.
fn tag_of(region: u32, taken: Taken) -> Tag {
    match region {
        0 => Tag::NONE,
        region => Tag {
            region,
            counter: taken.counter.0,
        },
    }
}

fn range_event(
    volume: VolumeId,
    request: RequestId,
    range: &SectorRange,
    zeroes: bool,
    fua: bool,
) -> Event {
    let (sector, sectors) = (range.sector, range.sectors);
    match zeroes {
        true => Event::WriteZeroes {
            volume,
            request,
            sector,
            sectors,
            fua,
            allocate: !range.unmap,
        },
        false => Event::Discard {
            volume,
            request,
            sector,
            sectors,
            fua,
        },
    }
}

impl Guest {
    /// What its requests under way change of a volume.
    pub(in crate::shard) fn changes(&self, volume: VolumeId, into: &mut Vec<Span>) {
        if self.volume == volume {
            let tasks = self.tasks.iter().flatten();
            into.extend(tasks.filter_map(|task| task.want.changes()));
        }
    }

    /// Takes what there is, within bounds, and `most` of it. True if there may be more.
    fn take(&mut self, batch: &mut vring::chain::Batch, mut most: usize) -> bool {
        let (Some(region), Some(rings)) = (&self.region, self.rings.as_mut()) else {
            return false;
        };
        let shared = Shared {
            guest: &*self.memory,
            region: &**region,
        };
        let mut room = TASKS_MAX - (self.tasks.len() - self.free.len());
        if rings.again() > 0 {
            let given = rings.take_again(&shared, TAKE_MAX.min(room).min(most), batch);
            self.full = room == 0;
            return given > 0;
        }
        let mut more = false;
        for (at, side) in self.sides[..self.sides_used].iter_mut().enumerate() {
            if side.start.is_none() || side.stopping.is_some() {
                continue;
            }
            if room == 0 {
                self.full = true;
                break;
            }
            if most == 0 {
                more = true;
                break;
            }
            let wanted = TAKE_MAX.min(room).min(most);
            let taken: Result<usize, Broken> = rings.take(Queue(at as u16), &shared, wanted, batch);
            side.restless |= matches!(taken, Ok(1..));
            more |= taken == Ok(wanted);
            room -= taken.unwrap_or(0);
            most -= taken.unwrap_or(0);
        }
        more
    }

    /// Whether a ring that does not kick has something that would be taken.
    fn has_more(&self) -> bool {
        let (Some(region), Some(rings)) = (&self.region, &self.rings) else {
            return false;
        };
        let shared = Shared {
            guest: &*self.memory,
            region: &**region,
        };
        let runs = |side: &Side| side.restless && side.start.is_some() && side.stopping.is_none();
        let sides = self.sides[..self.sides_used].iter().enumerate();
        let mut running = sides.filter(|(_, side)| runs(side));
        let open = self.ended.is_none() && !self.full;
        open && running.any(|(at, _)| rings.has_more(Queue(at as u16), &shared))
    }

    /// True if some ring has something already.
    fn ask_for_kicks(&mut self) -> bool {
        let (Some(region), Some(rings)) = (&self.region, self.rings.as_mut()) else {
            return false;
        };
        let shared = Shared {
            guest: &*self.memory,
            region: &**region,
        };
        let mut found = false;
        for (at, side) in self.sides[..self.sides_used].iter_mut().enumerate() {
            let Side {
                restless, start, ..
            } = side;
            if std::mem::take(restless) && start.is_some() {
                found |= rings.ask_for_kick(Queue(at as u16), &shared) == Ok(true);
            }
        }
        found
    }

    fn insert(&mut self, task: Task) -> u16 {
        match self.free.pop() {
            Some(at) => {
                self.tasks[usize::from(at)] = Some(task);
                at
            }
            None => {
                self.tasks.push(Some(task));
                u16::try_from(self.tasks.len() - 1).expect("queues are bounded")
            }
        }
    }

    fn task(&mut self, at: u16) -> &mut Task {
        let task = self.tasks[usize::from(at)].as_mut();
        task.expect("a number in use has a task")
    }

    fn remove(&mut self, at: u16) -> Task {
        let task = self.tasks[usize::from(at)].take();
        self.free.push(at);
        task.expect("a request ends once")
    }
}
