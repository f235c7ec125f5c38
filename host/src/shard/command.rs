//! Requests of other threads, carried out on the shard.
//!
//! Owns commands that wait for the engine's reply, and the steps of an orderly stop: no new
//! requests, park, cut the clients off, wait for devices. Always true: a volume's files are let
//! go only after the engine has said that nothing touches them any more.

use super::control::{
    Answer, Attach, AttachError, Exchange, ExportAs, HostCounters, HostSnapshot, Needs, Request,
    VolumeClients,
};
use super::guest::who_waits;
use super::pooled::Pooled;
use super::throttle::Throttle;
use super::{Alarm, Decide, Shard, Volume};
use crate::backup::Window;
use crate::buffer::POOL_BYTES_DEFAULT;
use crate::origin::file::{OpenVolume, Origin};
use crate::origin::nbd::open::Leavings;
use engine::engine::OpenError;
use engine::event::{Command, Event, Refusal};
use engine::types::{
    BufferId, ConnectionId, PeerId, Policy, RequestId, SECTOR_BYTES, Span, VolumeId,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

/// Requests of other threads that one round takes, so that clients are not kept waiting.
const REQUESTS_PER_ROUND: usize = 32;
/// How long a stop waits for devices once the data is safe.
const STOP_MILLIS_MAX: u64 = 5_000;
/// No client has this id: their lower halves are below the bound of connections.
const CONTROL: ConnectionId = ConnectionId(u32::MAX);

/// Who waits for the reply to a command.
pub(super) enum Waiter<S> {
    Handle(Command, Answer<Result<(), Refusal>>),
    /// A new image, which takes the place of the one that is empty by then.
    Exchange(Box<Exchange>, Answer<Result<(), Refusal>>),
    /// The files of a volume that may be written, in the place of those that were only read.
    Prove(Box<Attach<S>>, Answer<Result<(), AttachError>>),
    /// A window of these volumes, which is open when the engine has replied.
    Window(Vec<VolumeId>, Arc<Window>, Answer<Result<(), Refusal>>),
    /// Clients of a volume that is made ready for them.
    Arrival(VolumeId),
    /// Who reads ahead, into a buffer that is looked at by none.
    Ahead(BufferId, Answer<Result<(), Refusal>>),
    Nobody,
    Stop,
}

/// Commands that the engine has not replied to.
pub(super) struct Commands<S> {
    waiters: BTreeMap<u32, Waiter<S>>,
    next: u32,
}

impl<S> Default for Commands<S> {
    fn default() -> Self {
        Commands {
            waiters: BTreeMap::new(),
            next: 0,
        }
    }
}

/// Whether the engine was ordered this by a command.
pub(super) fn is_ours(request: RequestId) -> bool {
    request.connection == CONTROL
}

impl<S> Commands<S> {
    /// The window that a command is to open.
    pub(super) fn window_of(&self, request: RequestId) -> Option<(&[VolumeId], &Arc<Window>)> {
        match self.waiters.get(&request.number)? {
            Waiter::Window(members, window, _) => Some((members, window)),
            _ => None,
        }
    }

    pub(super) fn enter(&mut self, waiter: Waiter<S>) -> RequestId {
        while self.waiters.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.waiters.insert(number, waiter);
        RequestId {
            connection: CONTROL,
            number,
        }
    }
}

/// An orderly stop on its way.
pub(super) struct Stopping {
    answer: Option<Answer<Result<(), Refusal>>>,
    parked: bool,
    overdue: bool,
}

impl<E: Decide> Shard<E> {
    /// Looks into the control channel.
    pub(super) fn take_requests(&mut self) {
        for _ in 0..REQUESTS_PER_ROUND {
            // What the engine has let go of is let go of here before anything else is told.
            if !self.replies.is_empty() {
                break;
            }
            match self.control.try_recv() {
                Ok(request) => self.carry_out(request),
                Err(_) => return,
            }
        }
        self.waker.wake();
    }

    /// An asker who does not wait for the answer any more loses nothing by it.
    fn carry_out(&mut self, request: Request<E::Settled>) {
        match request {
            Request::Place(name, answer) => {
                let _ = answer.send(self.engine.place(&name));
            }
            Request::Attach(attach, answer) => {
                let _ = answer.send(self.attach(*attach));
            }
            Request::Command(command, answer) => self.begin_command(command, answer),
            Request::Backup(order) => self.backup_order(order),
            Request::Exchange(exchange, answer) => self.begin_exchange(exchange, answer),
            Request::Prove(attach, answer) => self.begin_proof(attach, answer),
            Request::FindImage(volume, answer) => {
                let files = self.files.volume(volume);
                let _ = answer.send(files.and_then(|files| files.mapped.clone()));
            }
            Request::FindSides(volume, answer) => {
                let _ = answer.send(self.files.volume(volume).map(OpenVolume::sides));
            }
            Request::TakeSides(volume, made, answer) => {
                self.take_sides(volume, *made);
                let _ = answer.send(());
            }
            Request::MoveStage(file, answer) => self.move_stage(&file, answer),
            Request::Ping(answer) => drop(answer.send(())),
            Request::Snapshot(answer) => {
                self.measure_policies();
                let _ = answer.send(self.snapshot());
            }
            Request::Samples(answer) => drop(answer.send(self.engine.take_samples())),
            Request::Chart(volume, from, answer) => {
                let _ = answer.send(self.engine.chart(volume, from));
            }
            Request::ReadAhead(volume, part, answer) => read_ahead(self, volume, part, answer),
            Request::Listen(listener, scope, answer) => {
                self.listen(listener, scope, None);
                let _ = answer.send(());
            }
            Request::HandOn(listener, scope, to, answer) => {
                self.listen(listener, scope, Some(to));
                let _ = answer.send(());
            }
            Request::Welcome(arrival) => self.welcome(*arrival, None),
            Request::Unlisten(scope, answer) => {
                self.unlisten(|other| *other == scope);
                let _ = answer.send(());
            }
            Request::Export(name, shown, answer) => {
                self.show_export(&name, shown);
                let _ = answer.send(());
            }
            Request::Limit(volume, limit, answer) => {
                self.set_limit(volume, limit);
                let _ = answer.send(());
            }
            Request::Clients(volume, answer) => drop(answer.send(self.clients(volume))),
            Request::ClientsIn(volume, answer) => drop(answer.send(self.clients_in(volume))),
            Request::LetIn(volume) => let_in(self, volume),
            Request::Disconnect(volume, answer) => {
                self.disconnect(volume);
                let _ = answer.send(());
            }
            Request::GuestOpen(open, answer) => self.guest_open(*open, answer),
            Request::Guest(slot, order) => self.guest_order(slot, order),
            Request::GuestEnd(slot, in_order) => self.guest_end(slot, in_order),
            Request::Record(order) => self.record_order(order),
            Request::Copies(asked) => self.asked_of_copies(asked),
            Request::Stop(answer) => self.stop(answer),
        }
    }

    fn begin_exchange(&mut self, exchange: Box<Exchange>, answer: Answer<Result<(), Refusal>>) {
        let volume = exchange.id;
        let request = self.commands.enter(Waiter::Exchange(exchange, answer));
        let command = Command::Empty { volume };
        self.feed(Event::Admin { request, command });
    }

    fn begin_proof(
        &mut self,
        attach: Box<Attach<E::Settled>>,
        answer: Answer<Result<(), AttachError>>,
    ) {
        let volume = attach.id;
        if self.files.volume(volume).is_none() {
            // They are being opened again, or the volume is gone.
            let _ = answer.send(Err(Refusal::Busy.into()));
            return;
        }
        let request = self.commands.enter(Waiter::Prove(attach, answer));
        let command = Command::Prove { volume };
        self.feed(Event::Admin { request, command });
    }

    fn begin_command(&mut self, command: Command, answer: Answer<Result<(), Refusal>>) {
        if let Command::Detach { volume, .. } = command {
            self.give_up_remote(volume, true);
        }
        let request = self.commands.enter(Waiter::Handle(command.clone(), answer));
        self.feed(Event::Admin { request, command });
    }

    /// Nothing changes the stage meanwhile: all that does runs on this thread.
    fn move_stage(&mut self, file: &File, answer: Answer<io::Result<()>>) {
        let _ = answer.send(self.memory.move_stage(file));
    }

    fn attach(&mut self, attach: Attach<E::Settled>) -> Result<(), OpenError> {
        let Attach {
            id,
            spec,
            mut files,
            settled,
            map,
            exports,
            limit,
            needs,
            lives,
            pooled,
        } = attach;
        let volume = Volume {
            name: spec.name.clone(),
            ranges: Default::default(),
            policy: spec.policy,
            arriving: Vec::new(),
            beside: beside(&files),
            latency: None,
            throttle: Throttle::of(limit),
            pooled,
        };
        self.add_remote(id, &mut files);
        self.files.insert_volume(id, files);
        if let Err(error) = self.engine.attach(self.now, id, spec, settled, map) {
            self.let_files_go(id);
            return Err(error);
        }
        self.order_needs(id, needs);
        for (name, export) in exports {
            self.exports.set(&name, export, volume.policy);
            self.wake_awaiting(&name);
        }
        self.recordings.attached(id, &volume.name);
        self.backups.joined(id, lives);
        self.volumes.insert(id, volume);
        // Sets going what the volume claims before it answers anybody.
        self.feed(Event::Tick);
        Ok(())
    }

    /// Nothing is promised to a guest before all that it needs has it as well.
    fn order_needs(&mut self, volume: VolumeId, needs: Needs) {
        let counts = |peer: PeerId| Command::StopPeer {
            volume,
            peer,
            counts: true,
        };
        let on = needs.at_origin;
        let at_origin = on.then_some(Command::AnswerAtOrigin { volume, on });
        let through = needs.through;
        let through = through.then_some(Command::FlushThrough { volume, on: true });
        let begins = needs.rests;
        let rests = begins.then_some(Command::KeepRest { volume, begins });
        let peers = needs.peers.into_iter().map(counts);
        // First, because nothing may begin before.
        let orders = rests.into_iter().chain(peers);
        for command in orders.chain(at_origin).chain(through) {
            let request = self.commands.enter(Waiter::Nobody);
            self.feed(Event::Admin { request, command });
        }
    }

    fn show_export(&mut self, name: &str, shown: ExportAs) {
        match shown {
            ExportAs::Set(export) => {
                let (volume, size_bytes) = (export.volume, export.size_bytes);
                if let Some(known) = self.volumes.get(&volume) {
                    self.exports.set(name, export, known.policy);
                    let all = self.conns.iter_mut();
                    let of_volume = all.filter(|conn| conn.volume == Some(volume));
                    of_volume.for_each(|conn| conn.session.grow(size_bytes));
                }
            }
            ExportAs::Held => self.exports.hold(name),
            ExportAs::Away(waiting) => self.exports.set_away(name, waiting),
            ExportAs::Nothing => self.exports.remove(name),
        }
        self.wake_awaiting(name);
    }

    /// Lets a volume go after the engine has.
    fn forget(&mut self, volume: VolumeId) -> Leavings {
        self.exports.remove_volume(volume);
        self.disconnect(volume);
        self.drop_blocks(volume);
        self.volumes.remove(&volume);
        self.copies.forget(volume);
        self.recordings.forgotten(volume);
        self.backups.forget(volume);
        self.let_files_go(volume)
    }

    /// Closes the files of a volume. What is left to be done there may block.
    fn let_files_go(&mut self, volume: VolumeId) -> Leavings {
        self.reopens.forget(volume);
        match self.files.remove_volume(volume) {
            Some(files) => self.drop_remote(volume, files),
            None => Leavings::default(),
        }
    }

    pub(super) fn finish_command(&mut self, request: RequestId, result: Result<(), Refusal>) {
        let waiter = self.commands.waiters.remove(&request.number);
        match waiter.expect("a command is replied to once") {
            Waiter::Handle(command, answer) => {
                match (command, result) {
                    (
                        Command::Detach { volume, .. }
                        | Command::Suspend { volume }
                        | Command::Depose { volume },
                        Ok(()),
                    ) => {
                        return answer_after(self.forget(volume), answer);
                    }
                    (Command::Detach { volume, .. }, Err(_)) => {
                        self.give_up_remote(volume, false);
                    }
                    (Command::Switch { volume, policy, .. }, Ok(())) => {
                        if let Some(known) = self.volumes.get_mut(&volume) {
                            known.policy = policy;
                            self.exports.renew(volume, policy);
                        }
                    }
                    _ => {}
                }
                let _ = answer.send(result);
            }
            Waiter::Exchange(exchange, answer) => {
                let done = result.and_then(|()| self.exchange(*exchange));
                let _ = answer.send(done);
            }
            Waiter::Window(_, _, answer) => {
                let _ = answer.send(result);
            }
            Waiter::Prove(attach, answer) => {
                let done = match result {
                    Ok(()) => self.attach_proved(*attach),
                    Err(refusal) => Err(refusal.into()),
                };
                let _ = answer.send(done);
            }
            Waiter::Arrival(volume) => self.arrived(volume, result.is_ok()),
            Waiter::Ahead(buffer, answer) => {
                self.memory.buffers.free(buffer);
                let _ = answer.send(result);
            }
            Waiter::Nobody => {}
            Waiter::Stop => self.parked(result),
        }
    }

    /// Nothing of the image is on its way. Files that are lost just now are not exchanged.
    fn exchange(&mut self, exchange: Exchange) -> Result<(), Refusal> {
        let Exchange {
            id,
            origin,
            mapped,
            map,
            image,
        } = exchange;
        self.backups.written(id);
        let mut files = self.files.remove_volume(id).ok_or(Refusal::Io)?;
        files.origin = Origin::File(origin);
        files.mapped = Some(mapped);
        self.files.insert_volume(id, files);
        let exchanged = (map, image);
        self.engine
            .exchange(self.now, id, exchanged, &mut self.memory);
        self.feed(Event::Tick);
        Ok(())
    }

    /// Nothing is under way on the files that were only read.
    fn attach_proved(&mut self, attach: Attach<E::Settled>) -> Result<(), AttachError> {
        let Attach {
            id,
            spec,
            files,
            settled,
            ..
        } = attach;
        let besides = beside(&files);
        self.reopens.forget(id);
        let read = self.files.remove_volume(id);
        self.files.insert_volume(id, files);
        let proved = (spec, settled);
        let done = self
            .engine
            .attach_proved(self.now, id, proved, &mut self.memory);
        match (&done, read) {
            (Err(_), Some(read)) => {
                self.files.remove_volume(id);
                self.files.insert_volume(id, read);
            }
            (Ok(()), _) => {
                if let Some(volume) = self.volumes.get_mut(&id) {
                    volume.beside = besides;
                }
            }
            _ => {}
        }
        self.feed(Event::Tick);
        Ok(done?)
    }

    pub(super) fn clients(&self, volume: VolumeId) -> u64 {
        self.connections_of(volume) + self.guests_of(volume)
    }

    /// Those that may have asked for something.
    pub(super) fn clients_in(&self, volume: VolumeId) -> u64 {
        self.connections_of(volume) + self.guests_in(volume)
    }

    fn connections_of(&self, volume: VolumeId) -> u64 {
        let all = self.conns.iter();
        all.filter(|(_, conn)| conn.serves(volume)).count() as u64
    }

    fn disconnect(&mut self, volume: VolumeId) {
        let all = self.conns.iter();
        let found = all.filter(|(_, conn)| conn.serves(volume));
        let found: Vec<u32> = found.map(|(slot, _)| slot).collect();
        for slot in found {
            self.with_conn(slot, |shard, conn| shard.kill(slot, conn));
        }
    }

    fn snapshot(&self) -> HostSnapshot {
        let in_flight = self
            .conns
            .iter()
            .map(|(_, conn)| conn.tasks_live as u64)
            .sum::<u64>();
        let in_flight = in_flight + self.guest_tasks();
        // In one pass each: this runs on the data path, and hosts have a thousand volumes.
        let mut exports = self.exports.names_by_volume();
        let mut clients = BTreeMap::new();
        for volume in self
            .conns
            .iter()
            .filter_map(|(_, conn)| conn.volume_served())
        {
            *clients.entry(volume).or_default() += 1;
        }
        for volume in self.guest_volumes() {
            *clients.entry(volume).or_default() += 1;
        }
        let volumes = self.volumes.keys().map(|volume| VolumeClients {
            volume: *volume,
            latency: self.volumes[volume].latency.clone(),
            clients: clients.remove(volume).unwrap_or_default(),
            waits: self.volumes[volume].throttle.waits(),
            exports: exports.remove(volume).unwrap_or_default(),
        });
        let volumes = volumes.collect();
        let mut engine = self.engine.snapshot(self.now);
        self.remotes.mark(&mut engine);
        self.reopens.mark(&mut engine);
        HostSnapshot {
            engine,
            host: HostCounters {
                connections: (self.conns.len() + self.guests.len()) as u64,
                requests_in_flight: in_flight,
                buffer_bytes_used: self.memory.buffers.used_bytes(),
                buffer_bytes: POOL_BYTES_DEFAULT,
                device_requests_in_flight: (self.running.len() + self.remotes.requests()) as u64,
                ..self.counters
            },
            volumes,
            now: self.now,
        }
    }

    fn stop(&mut self, answer: Answer<Result<(), Refusal>>) {
        if self.stopping.is_some() {
            // The first asker is answered when it is done; a second one has nothing to add.
            let _ = answer.send(Ok(()));
            return;
        }
        self.stopping = Some(Stopping {
            answer: Some(answer),
            parked: false,
            overdue: false,
        });
        self.unlisten(|_| true);
        let request = self.commands.enter(Waiter::Stop);
        let command = Command::Park;
        self.feed(Event::Admin { request, command });
    }

    fn parked(&mut self, result: Result<(), Refusal>) {
        let all: Vec<u32> = self.conns.iter().map(|(slot, _)| slot).collect();
        for slot in all {
            self.with_conn(slot, |shard, conn| shard.kill(slot, conn));
        }
        let stopping = self.stopping.as_mut().expect("only a stop parks");
        stopping.parked = true;
        if let Some(answer) = stopping.answer.take() {
            let _ = answer.send(result);
        }
        self.let_guests_go();
        self.park_remotes();
        self.timers
            .set(self.now.plus_millis(STOP_MILLIS_MAX), Alarm::StopAnyway);
    }

    pub(super) fn stop_anyway(&mut self) {
        let stopping = self.stopping.as_mut().expect("only a stop has this alarm");
        stopping.overdue = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    pub(super) fn is_parked(&self) -> bool {
        self.stopping
            .as_ref()
            .is_some_and(|stopping| stopping.parked)
    }

    /// Parked, and nothing in flight that uses memory of ours; or it takes too long.
    pub(super) fn is_finished(&self) -> bool {
        let Some(stopping) = &self.stopping else {
            return false;
        };
        let devices = self.running.len() == 0 && self.remotes.is_idle();
        let quiet = devices && self.conns.len() == 0;
        stopping.parked && (stopping.overdue || (quiet && self.listeners.len() == 0))
    }
}

/// Removing files may block, so that a thread does it; whoever asked hears of it afterwards.
fn answer_after(leavings: Leavings, answer: Answer<Result<(), Refusal>>) {
    if leavings.files.is_none() {
        let _ = answer.send(Ok(()));
        return;
    }
    let thread = thread::Builder::new().name("tenuto-release".into());
    let started = thread.spawn(move || {
        leavings.remove();
        let _ = answer.send(Ok(()));
    });
    if let Err(error) = started {
        // Its asker hears that the shard has stopped, and the next start waits once more.
        tracing::warn!("cannot start a thread: {error}");
    }
}

fn beside(files: &OpenVolume) -> Vec<PathBuf> {
    let paths = [&files.journal_path, &files.ledger_path];
    paths.into_iter().flatten().cloned().collect()
}

/// Reads what no client has asked for.
fn read_ahead<E: Decide>(
    shard: &mut Shard<E>,
    volume: VolumeId,
    part: Span,
    answer: Answer<Result<(), Refusal>>,
) {
    let known = shard.volumes.contains_key(&volume) && !shard.is_stopping();
    let bytes = part.sectors * SECTOR_BYTES;
    let buffer = known.then(|| shard.memory.buffers.allocate(bytes));
    let Some(Some(buffer)) = buffer else {
        let refusal = if known { Refusal::Busy } else { Refusal::Gone };
        let _ = answer.send(Err(refusal));
        return;
    };
    let request = shard.commands.enter(Waiter::Ahead(buffer, answer));
    shard.feed(Event::Read {
        volume,
        request,
        sector: part.sector,
        sectors: part.sectors,
        buffer,
    });
}

/// Those who waited with rings for the image of a member come in.
fn let_in<E: Decide>(shard: &mut Shard<E>, id: VolumeId) {
    let (waiting, goes_on) = who_waits(shard.guests.iter().map(|(_, it)| &**it), id);
    let Some(volume) = shard.volumes.get_mut(&id) else {
        for (slot, guest) in waiting {
            shard.let_guest_in(slot, guest, false);
        }
        return;
    };
    if waiting.is_empty() || !volume.arriving.is_empty() {
        return;
    }
    volume.pooled.iter().for_each(Pooled::client_comes);
    volume.arriving = waiting;
    match volume.policy {
        Policy::Ephemeral => shard.send_arrival(id, goes_on),
        _ => shard.arrived(id, true),
    }
}
