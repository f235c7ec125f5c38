//! Virtual time: events into the engine, its actions onto disks and back to guests.
//!
//! Owns the queue of what will happen, the requests to devices in flight and the faults of the
//! moment. Always true: nothing depends on anything but the seed; ties in time are broken by the
//! order in which they were made. Deliberately absent: lives and deaths of the daemon
//! ([`host`](crate::host)) and what is right ([`oracle`](crate::oracle)).

use crate::devices::{self, Devices, File};
use crate::disk::{Disk, SyncPoint};
use crate::guest::{Guest, Pending, Request};
use crate::memory::SimMemory;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::trace::Trace;
use engine::engine::{Config, Engine, device_bytes};
use engine::event::{Action, Command, Device, Event, Io, IoError, Op, Purpose, Refusal};
use engine::types::{ConnectionId, IoId, Policy, RequestId, Time, Uuid, VolumeId};
use std::collections::BTreeMap;
use workload::check::Kind;
use workload::stamp;

/// A run that takes more steps than this does not end by itself.
const STEPS_MAX: u64 = 4_000_000;
/// Ticks in a row at one instant; more of them move nothing.
const TICKS_MAX: u32 = 10_000;
/// Connections number as volume + this x (2 x count + whether it is the administrator's).
const CONNECTIONS: u32 = 1000;
/// How late a write of a killed daemon may land; on a slow loop device it was seconds.
pub const LATE_NS_MAX: u64 = 5_000_000_000;
/// The connection of commands to the whole host.
const HOST: u32 = CONNECTIONS - 1;

/// Why a run ended early: a broken promise, in words.
pub type Broken = String;

/// Something in the future.
#[derive(Clone, Copy, Debug)]
enum Wake {
    Done(IoId),
    Guest(usize),
    /// A write of a killed daemon lands.
    Late(File, u64),
}

/// A request to a device under way.
struct Flight {
    io: Io,
    ticket: Option<u64>,
    result: Result<(), IoError>,
    sync: Option<SyncPoint>,
    /// What a read found when it was issued, if it looked then.
    early: Option<Vec<u8>>,
}

/// A rule that the host breaks on purpose, to see the oracle notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A daemon starts before the late writes of the one before have landed (rule 5.2.1).
    NoFence,
    /// Syncs of the cache device do nothing.
    CacheSync,
    /// Syncs of journals do nothing.
    JournalSync,
    /// Syncs of ledgers do nothing.
    LedgerSync,
    /// Syncs of origins do nothing.
    OriginSync,
    /// A write of the log that seems to have succeeded has not touched the disk.
    LostLogWrite,
}

/// How an origin misbehaves at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    hangs_until: u64,
    fails_until: u64,
    full_until: u64,
}

/// The moment at which a life of the daemon is to end.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    pub purpose: Purpose,
    /// Requests with this purpose that still pass.
    pub left: u64,
    /// Strike when it ends rather than when it is asked for.
    pub at_end: bool,
}

/// What came of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Ran,
    /// Nothing will ever happen again.
    Idle,
    /// The daemon is to die here.
    Struck,
}

pub struct World {
    pub plan: Plan,
    pub rng: Rng,
    pub trace: Trace,
    pub now: u64,
    queue: BTreeMap<(u64, u64), Wake>,
    sequence: u64,
    ticks: u32,
    pub devices: Devices,
    pub memory: SimMemory,
    pub engine: Option<Engine>,
    pub machine: Uuid,
    pub boot: Uuid,
    flights: BTreeMap<IoId, Flight>,
    pub guests: Vec<Guest>,
    troubles: Vec<Trouble>,
    /// Time of the last fault that a guest may be told of.
    fault_at: u64,
    pub healthy: bool,
    /// Guest requests that may still be made in this phase.
    pub budget: u64,
    pub trigger: Option<Trigger>,
    pub struck: bool,
    pub parked: bool,
    pub sabotage: Option<Sabotage>,
}

impl World {
    pub fn new(plan: Plan, seed: u64, sabotage: Option<Sabotage>, verbose: bool) -> World {
        let mut rng = Rng::new(seed);
        let stage = Config::stage_bytes(
            plan.geometry.chunk_bytes(),
            plan.stage_slots + plan.overlay_slots,
        );
        let ram = u64::from(plan.ram_blocks) * engine::types::BLOCK_BYTES;
        let memory = SimMemory::new(stage, ram, Config::SCRATCH_BYTES_MIN, rng.fork());
        let mut devices = Devices {
            cache: Disk::new(vec![0; device_bytes(plan.geometry) as usize]),
            ..Devices::default()
        };
        for origin in &plan.origins {
            let mut image = vec![0; origin.sectors as usize * stamp::SECTOR_BYTES];
            if let Some(tag) = origin.tag {
                stamp::fill(&mut image, tag, 0, 0);
            }
            let skew_ns = rng.pick(&[0, 3_600_000_000_000]);
            let image = Disk::new(image);
            devices.origins.push(devices::Origin {
                image,
                skew_ns,
                ..Default::default()
            });
        }
        let numbered = plan.volumes.iter().enumerate();
        let guests = numbered.map(|(at, volume)| {
            Guest::new(
                volume.clone(),
                &plan.origins[volume.origin],
                1 + at as u64,
                rng.fork(),
            )
        });
        World {
            guests: guests.collect(),
            troubles: vec![Trouble::default(); plan.origins.len()],
            machine: Uuid(rng.bytes16()),
            boot: Uuid(rng.bytes16()),
            plan,
            rng,
            trace: Trace::new(verbose),
            now: 1,
            queue: BTreeMap::new(),
            sequence: 0,
            ticks: 0,
            devices,
            memory,
            engine: None,
            flights: BTreeMap::new(),
            fault_at: 0,
            healthy: false,
            budget: 0,
            trigger: None,
            struck: false,
            parked: false,
            sabotage,
        }
    }

    fn later(&mut self, after: u64, wake: Wake) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), wake);
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) -> Result<Step, Broken> {
        self.trace.counters.steps += 1;
        if self.trace.counters.steps > STEPS_MAX {
            return Err(format!("the run does not end within {STEPS_MAX} steps"));
        }
        let due = self
            .engine
            .as_ref()
            .and_then(Engine::next_deadline)
            .map(|time| time.0);
        let first = self.queue.keys().next().copied();
        match (due, first) {
            (None, None) => return Ok(Step::Idle),
            (Some(due), first) if first.is_none_or(|(time, _)| due <= time) => {
                self.tick(due)?;
            }
            (_, first) => {
                let key = first.expect("the other cases have none");
                let wake = self.queue.remove(&key).expect("the key was just seen");
                self.advance(key.0);
                self.ticks = 0;
                self.wake(wake)?;
            }
        }
        Ok(if self.struck { Step::Struck } else { Step::Ran })
    }

    fn advance(&mut self, time: u64) {
        self.now = self.now.max(time);
        self.trace.time(self.now);
    }

    fn tick(&mut self, due: u64) -> Result<(), Broken> {
        self.ticks = if due > self.now { 0 } else { self.ticks + 1 };
        if self.ticks > TICKS_MAX {
            return Err(format!(
                "{TICKS_MAX} ticks at one instant did not move the deadline"
            ));
        }
        self.advance(due);
        self.apply(Event::Tick)
    }

    fn wake(&mut self, wake: Wake) -> Result<(), Broken> {
        match wake {
            Wake::Done(id) => self.complete(id),
            Wake::Guest(volume) => self.wake_guest(volume),
            Wake::Late(file, ticket) => {
                self.land(file, ticket);
                Ok(())
            }
        }
    }

    /// Gives the engine an event and carries out what it asks for.
    pub fn apply(&mut self, event: Event) -> Result<(), Broken> {
        self.trace.event(&event);
        let Some(engine) = &mut self.engine else {
            return Ok(());
        };
        engine.apply(Time(self.now), event, &mut self.memory);
        self.drain()
    }

    pub fn drain(&mut self) -> Result<(), Broken> {
        // The kill struck within the step: what it decided never left the process.
        if self.memory.is_killed() {
            self.struck = true;
            return Ok(());
        }
        while let Some(action) = self.engine.as_mut().and_then(Engine::poll_action) {
            self.trace.action(&action);
            match action {
                Action::Io(io) => self.start_io(io)?,
                Action::Reply { request, result } => self.reply(request, result)?,
            }
            if self.struck {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Strikes when the trigger says so.
    fn passes(&mut self, purpose: Purpose, at_end: bool) {
        if let Some(trigger) = &mut self.trigger
            && trigger.purpose == purpose
            && trigger.at_end == at_end
        {
            if trigger.left == 0 {
                self.trace.note(format_args!("trigger: {purpose:?}"));
                self.struck = true;
            }
            trigger.left = trigger.left.saturating_sub(1);
        }
    }

    fn start_io(&mut self, io: Io) -> Result<(), Broken> {
        self.check_io(&io)?;
        let result = self.fate(&io);
        let mut flight = Flight {
            ticket: None,
            result,
            sync: None,
            early: None,
            io,
        };
        let io = &flight.io;
        let memory = &self.memory;
        let file = self.devices.file(io.device);
        let disk = self.devices.disk(file);
        if let Some(change) =
            devices::change(io.op, io.offset, io.bytes, || memory.gather(&io.slices))
        {
            flight.ticket = Some(disk.start(change));
        }
        if io.op == Op::Sync {
            flight.sync = Some(disk.sync_point());
        }
        if io.op == Op::Read && self.rng.chance(500) {
            let mut bytes = vec![0; io.bytes as usize];
            disk.read(io.offset, &mut bytes, &mut self.rng);
            flight.early = Some(bytes);
        }
        let latency = self.latency(io);
        let (id, purpose) = (io.id, io.purpose);
        if self.flights.insert(id, flight).is_some() {
            return Err(format!("two requests to devices are called {id}"));
        }
        self.later(latency, Wake::Done(id));
        self.passes(purpose, false);
        Ok(())
    }

    /// What the engine may ask of a device at all.
    fn check_io(&mut self, io: &Io) -> Result<(), Broken> {
        let bytes: u64 = io.slices.iter().map(|slice| slice.bytes).sum();
        if matches!(io.op, Op::Read | Op::Write) && bytes != io.bytes {
            return Err(format!("the slices do not add up: {io:?}"));
        }
        let changes = matches!(io.op, Op::Write | Op::Zero { .. } | Op::Remove);
        let end = io.offset + io.bytes;
        if io.device == Device::Cache {
            let aligned = io.offset.is_multiple_of(4096) && io.bytes.is_multiple_of(4096);
            if !aligned || end > self.devices.cache.size() {
                return Err(format!("not in whole blocks of the cache device: {io:?}"));
            }
            return Ok(());
        }
        let origin = self
            .devices
            .file(io.device)
            .origin()
            .expect("not the cache device");
        let owned = |guest: &&Guest| guest.plan.origin == origin;
        let guest = self
            .guests
            .iter()
            .find(owned)
            .expect("each origin has a volume");
        if changes && guest.plan.policy == Policy::Ephemeral {
            return Err(format!(
                "the base of an ephemeral volume is written: {io:?}"
            ));
        }
        let inside = !changes || end <= guest.model.sectors() * stamp::SECTOR_BYTES as u64;
        if matches!(io.device, Device::Origin(_))
            && !(inside && io.offset.is_multiple_of(512) && io.bytes.is_multiple_of(512))
        {
            return Err(format!("not in whole sectors of the origin: {io:?}"));
        }
        Ok(())
    }

    /// Whether a request will fail.
    fn fate(&mut self, io: &Io) -> Result<(), IoError> {
        if self.healthy {
            return Ok(());
        }
        let rates = &self.plan.rates;
        let counters = &mut self.trace.counters;
        let Some(origin) = self.devices.file(io.device).origin() else {
            let (rate, counter) = match io.op {
                Op::Write | Op::Zero { .. } => {
                    (rates.cache_write_error, &mut counters.cache_write_errors)
                }
                Op::Sync => (rates.cache_sync_error, &mut counters.cache_sync_errors),
                Op::Read | Op::Stat | Op::Remove => return Ok(()),
            };
            if self.rng.chance(rate) {
                *counter += 1;
                self.fault_at = self.now;
                return Err(IoError::Failed);
            }
            return Ok(());
        };
        let trouble = self.troubles[origin];
        if self.now < trouble.fails_until && self.rng.chance(700) {
            counters.origin_errors += 1;
            self.fault_at = self.now;
            return Err(IoError::Failed);
        }
        let journal = matches!(io.device, Device::Journal(_)) && io.op == Op::Write;
        if journal && self.now < trouble.full_until {
            counters.origin_full += 1;
            self.fault_at = self.now;
            return Err(IoError::NoSpace);
        }
        Ok(())
    }

    fn latency(&mut self, io: &Io) -> u64 {
        let rng = &mut self.rng;
        let slow = rng.chance(20);
        match self.devices.file(io.device).origin() {
            None if slow => rng.range(200_000, 20_000_000),
            None => rng.range(20_000, 200_000),
            Some(origin) => {
                let time = match slow {
                    true => rng.range(5_000_000, 300_000_000),
                    false => rng.range(300_000, 5_000_000),
                };
                self.troubles[origin].hangs_until.saturating_sub(self.now) + time
            }
        }
    }

    /// A request to a device ends.
    fn complete(&mut self, id: IoId) -> Result<(), Broken> {
        let flight = self.flights.remove(&id).expect("a request ends once");
        let Flight {
            io,
            ticket,
            result,
            sync,
            early,
        } = flight;
        let file = self.devices.file(io.device);
        let time = self.devices.stamp(file, self.now);
        let memory = &mut self.memory;
        let disk = self.devices.disk(file);
        if let Some(ticket) = ticket {
            if io.op == Op::Write {
                disk.refresh(ticket, &memory.gather(&io.slices), &mut self.rng);
            }
            let lost = self.sabotage == Some(Sabotage::LostLogWrite)
                && io.purpose == Purpose::Log
                && self.rng.chance(20);
            disk.finish(ticket, result.is_err() || lost, time, &mut self.rng);
        }
        let lies = matches!(
            (self.sabotage, file),
            (Some(Sabotage::CacheSync), File::Cache)
                | (Some(Sabotage::JournalSync), File::Journal(_))
                | (Some(Sabotage::LedgerSync), File::Ledger(_))
                | (Some(Sabotage::OriginSync), File::Image(_))
        );
        match (sync, result) {
            (Some(_), Ok(())) if lies => {}
            (Some(point), Ok(())) => disk.sync_done(point),
            (Some(point), Err(_)) => disk.sync_failed(point, &mut self.rng),
            (None, _) => {}
        }
        if io.op == Op::Read {
            let bytes = early.unwrap_or_else(|| {
                let mut bytes = vec![0; io.bytes as usize];
                disk.read(io.offset, &mut bytes, &mut self.rng);
                bytes
            });
            // A read that fails leaves the memory half changed.
            let upto = if result.is_ok() {
                bytes.len()
            } else {
                bytes.len() / 2
            };
            memory.scatter(&io.slices, &bytes[..upto]);
        }
        let statted = io.op == Op::Stat && result.is_ok();
        let stat = statted.then(|| self.devices.stat(file, self.now));
        self.passes(io.purpose, true);
        if self.struck {
            return Ok(());
        }
        self.apply(Event::Done {
            io: id,
            result,
            stat,
        })
    }

    /// Forgets what was under way; returns the writes that may still land.
    pub fn orphaned(&mut self) -> Vec<(File, u64)> {
        self.flights.clear();
        self.queue.retain(|_, wake| matches!(wake, Wake::Late(..)));
        // Those of an earlier life, when nothing fences them, are on their way already.
        let on_its_way = |&(file, ticket): &(File, u64)| {
            let same =
                |wake: &Wake| matches!(wake, Wake::Late(at, it) if (*at, *it) == (file, ticket));
            self.queue.values().any(same)
        };
        let mut late = Vec::new();
        for file in self.devices.files() {
            let flying = self.devices.disk(file).flying();
            late.extend(flying.into_iter().map(|ticket| (file, ticket)));
        }
        late.retain(|it| !on_its_way(it));
        late
    }

    /// Schedules a late write.
    pub fn land_later(&mut self, (file, ticket): (File, u64)) {
        let after = self.rng.below(LATE_NS_MAX);
        self.later(after, Wake::Late(file, ticket));
    }

    /// A write of a killed daemon lands now, unless a power loss has taken it.
    pub fn land(&mut self, file: File, ticket: u64) {
        let time = self.devices.stamp(file, self.now);
        let disk = self.devices.disk(file);
        if disk.flying().contains(&ticket) {
            disk.finish(ticket, false, time, &mut self.rng);
            self.trace.counters.late_writes += 1;
            self.trace.note(format_args!("late write lands: {file:?}"));
        }
    }

    /// Ends all faults of devices, for good or until the guests go on.
    pub fn heal(&mut self, healthy: bool) {
        self.healthy = healthy;
        self.troubles.fill(Trouble::default());
    }

    pub fn wake_guests(&mut self) {
        for volume in 0..self.guests.len() {
            self.later(1, Wake::Guest(volume));
        }
    }

    fn wake_guest(&mut self, volume: usize) -> Result<(), Broken> {
        if self.guests[volume].id.is_none() {
            return Ok(());
        }
        self.read_on(volume)?;
        while self.budget > 0 && self.guests[volume].whole.is_none() {
            let disconnect = self.plan.rates.disconnect;
            let Some(request) = self.guests[volume].next(disconnect) else {
                break;
            };
            self.budget -= 1;
            self.trace.counters.operations += 1;
            self.make_trouble();
            self.submit(volume, request)?;
            if self.struck {
                return Ok(());
            }
            if self.rng.chance(self.plan.rates.origin_check) {
                self.check_origins(false)?;
            }
            let pause = self.guests[volume].pause_ns();
            if pause > 1 {
                self.later(pause, Wake::Guest(volume));
                break;
            }
        }
        Ok(())
    }

    fn make_trouble(&mut self) {
        if self.healthy || !self.rng.chance(self.plan.rates.origin_trouble) {
            return;
        }
        let origin = self.rng.below(self.troubles.len() as u64) as usize;
        let trouble = &mut self.troubles[origin];
        let until = self.now + self.rng.below(5_000_000_000);
        match self.rng.below(3) {
            0 => trouble.hangs_until = until + self.rng.below(10_000_000_000),
            1 => trouble.fails_until = until,
            _ => trouble.full_until = until,
        }
        self.trace
            .note(format_args!("origin {origin}: {trouble:?}"));
    }

    fn request_id(&mut self, volume: usize, admin: bool) -> RequestId {
        let guest = &mut self.guests[volume];
        let connection = volume as u32 + CONNECTIONS * (2 * guest.connection + u32::from(admin));
        RequestId {
            connection: ConnectionId(connection),
            number: guest.number(),
        }
    }

    /// Parks the cache for an orderly stop.
    pub fn park(&mut self) -> Result<(), Broken> {
        let request = RequestId {
            connection: ConnectionId(HOST),
            number: 0,
        };
        self.apply(Event::Admin {
            request,
            command: Command::Park,
        })
    }

    pub fn submit(&mut self, volume: usize, request: Request) -> Result<(), Broken> {
        let id = self.guests[volume].id.expect("the volume is attached");
        match request {
            Request::Read { sector, sectors } => {
                let point = self.guests[volume].model.read_begin(sector, sectors);
                let buffer = self.buffer(sectors, 0xEE);
                self.trace.counters.reads += 1;
                self.read(volume, sector, sectors, Pending::Read { point, buffer })
            }
            Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } => {
                self.change(volume, id, request)
            }
            Request::Outside => {
                let sector = self.guests[volume].model.sectors() - 1;
                let buffer = self.buffer(2, 0xEE);
                self.read(volume, sector, 2, Pending::Outside { buffer })
            }
            Request::Flush => {
                let point = self.guests[volume].model.flush_begin();
                let request = self.request_id(volume, false);
                self.guests[volume]
                    .pending
                    .insert(request.number, Pending::Flush { point });
                self.trace.counters.flushes += 1;
                self.apply(Event::Flush {
                    volume: id,
                    request,
                })
            }
            Request::Disconnect => {
                let connection = self.request_id(volume, false).connection;
                self.guests[volume].disconnected();
                self.trace.counters.disconnects += 1;
                self.apply(Event::Disconnect { connection })
            }
            Request::Destage | Request::Reset | Request::Tune(_) => {
                self.command(volume, id, request)
            }
        }
    }

    fn buffer(&mut self, sectors: u64, filler: u8) -> engine::types::BufferId {
        self.memory
            .buffer_add(vec![filler; sectors as usize * stamp::SECTOR_BYTES])
    }

    pub fn read(
        &mut self,
        volume: usize,
        sector: u64,
        sectors: u64,
        pending: Pending,
    ) -> Result<(), Broken> {
        let request = self.request_id(volume, false);
        let buffer = pending.buffer().expect("a read has a buffer");
        self.guests[volume].pending.insert(request.number, pending);
        let id = self.guests[volume].id.expect("the volume is attached");
        self.apply(Event::Read {
            volume: id,
            request,
            sector,
            sectors,
            buffer,
        })
    }

    pub fn read_part(&mut self, volume: usize, sector: u64, sectors: u64) -> Result<(), Broken> {
        let buffer = self.buffer(sectors, 0xEE);
        self.read(volume, sector, sectors, Pending::Part { sector, buffer })
    }

    fn change(&mut self, at: usize, volume: VolumeId, request: Request) -> Result<(), Broken> {
        let id = self.request_id(at, false);
        let tag = self.guests[at].tag;
        let guest = &mut self.guests[at];
        let (event, pending) = match request {
            Request::Write {
                sector,
                sectors,
                fua,
            } => {
                let serial = guest.submit(Kind::Stamp, sector, sectors, fua);
                let mut bytes = vec![0; sectors as usize * stamp::SECTOR_BYTES];
                stamp::fill(&mut bytes, tag, sector, serial);
                let buffer = self.memory.buffer_add(bytes);
                let pending = Pending::Write {
                    serial,
                    sector,
                    sectors,
                    buffer: Some(buffer),
                };
                (
                    Event::Write {
                        volume,
                        request: id,
                        sector,
                        sectors,
                        buffer,
                        fua,
                    },
                    pending,
                )
            }
            Request::Discard {
                sector,
                sectors,
                fua,
            } => {
                let serial = guest.submit(Kind::Zero, sector, sectors, fua);
                let pending = Pending::Write {
                    serial,
                    sector,
                    sectors,
                    buffer: None,
                };
                (
                    Event::Discard {
                        volume,
                        request: id,
                        sector,
                        sectors,
                        fua,
                    },
                    pending,
                )
            }
            Request::WriteZeroes {
                sector,
                sectors,
                fua,
                allocate,
            } => {
                let serial = guest.submit(Kind::Zero, sector, sectors, fua);
                let pending = Pending::Write {
                    serial,
                    sector,
                    sectors,
                    buffer: None,
                };
                let event = Event::WriteZeroes {
                    volume,
                    request: id,
                    sector,
                    sectors,
                    fua,
                    allocate,
                };
                (event, pending)
            }
            other => unreachable!("{other:?} changes nothing"),
        };
        match &pending {
            Pending::Write {
                serial,
                buffer: Some(_),
                ..
            } => {
                self.trace.counters.writes += 1;
                self.trace.note(format_args!("v{at}: write #{serial}"));
            }
            Pending::Write { serial, .. } => {
                self.trace.counters.zeroes += 1;
                self.trace.note(format_args!("v{at}: zeroes #{serial}"));
            }
            _ => {}
        }
        self.guests[at].pending.insert(id.number, pending);
        self.apply(event)
    }

    fn command(&mut self, at: usize, volume: VolumeId, request: Request) -> Result<(), Broken> {
        let id = self.request_id(at, true);
        let guest = &mut self.guests[at];
        let (command, pending) = match request {
            Request::Destage => {
                let origin = guest
                    .origin
                    .as_mut()
                    .expect("only such volumes are destaged");
                let point = origin.flush_begin();
                self.trace.counters.destages += 1;
                (Command::Destage { volume }, Pending::Destage { point })
            }
            Request::Reset => {
                guest.model.reset_begin();
                self.trace.counters.resets += 1;
                (Command::Reset { volume }, Pending::Reset)
            }
            Request::Tune(tuning) => {
                guest.tune_begin(&tuning);
                (Command::Tune { volume, tuning }, Pending::Tune(tuning))
            }
            other => unreachable!("{other:?} is no command"),
        };
        guest.pending.insert(id.number, pending);
        self.apply(Event::Admin {
            request: id,
            command,
        })
    }

    /// Hands an answer to the guest that waits for it.
    fn reply(&mut self, id: RequestId, result: Result<(), Refusal>) -> Result<(), Broken> {
        let volume = (id.connection.0 % CONNECTIONS) as usize;
        if volume == HOST as usize {
            self.parked = result.is_ok();
            return result.map_err(|refusal| format!("park was refused: {refusal}"));
        }
        let guest = &mut self.guests[volume];
        let known = guest
            .pending
            .remove(&id.number)
            .or_else(|| guest.gone.remove(&id.number));
        let pending = known.ok_or_else(|| format!("{id:?} was answered, but nobody asked"))?;
        let bytes = pending
            .buffer()
            .map(|buffer| self.memory.buffer_remove(buffer));
        if let Err(refusal) = result {
            self.check_refusal(volume, &pending, refusal)?;
        }
        self.answer(volume, pending, result, bytes.unwrap_or_default())
            .map_err(|broken| format!("v{volume}: {broken}"))?;
        let pause = self.guests[volume].pause_ns();
        self.later(pause, Wake::Guest(volume));
        Ok(())
    }

    fn answer(
        &mut self,
        volume: usize,
        pending: Pending,
        result: Result<(), Refusal>,
        bytes: Vec<u8>,
    ) -> Result<(), Broken> {
        let guest = &mut self.guests[volume];
        match pending {
            Pending::Read { point, .. } if result.is_ok() => {
                guest
                    .model
                    .read_done(&point, &bytes)
                    .map_err(|it| it.to_string())?;
            }
            Pending::Write { serial, .. } if result.is_ok() => guest.acknowledge(serial),
            Pending::Flush { point } if result.is_ok() => guest.model.flush_done(point),
            Pending::Destage { point } if result.is_ok() => {
                let origin = guest
                    .origin
                    .as_mut()
                    .expect("only such volumes are destaged");
                origin.flush_done(point);
                self.check_origins(true)?;
            }
            Pending::Reset => guest.model.reset_done(result.is_ok()),
            Pending::Tune(tuning) => {
                guest.tune_done(if result.is_ok() { tuning } else { guest.tuning });
            }
            Pending::Part { sector, .. } => self.part_read(volume, sector, result, &bytes)?,
            Pending::Outside { .. } if result.is_ok() => {
                return Err("a read beyond the end was answered".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the engine may refuse this.
    fn check_refusal(
        &mut self,
        volume: usize,
        pending: &Pending,
        refusal: Refusal,
    ) -> Result<(), Broken> {
        let policy = self.guests[volume].plan.policy;
        let allowed = match (pending, refusal) {
            (Pending::Outside { .. }, it) => it == Refusal::OutOfRange,
            (Pending::Write { .. }, Refusal::NoSpace) => policy == Policy::Ephemeral,
            (Pending::Write { .. }, Refusal::Io) => policy == Policy::Uncached && self.fault_at > 0,
            (Pending::Reset, _) => false,
            (_, Refusal::Io) => self.fault_at > 0,
            _ => false,
        };
        if !matches!(pending, Pending::Outside { .. }) {
            self.trace.counters.refused += 1;
        }
        let why = || {
            format!(
                "v{volume} ({}): {pending:?} refused: {refusal}",
                policy.name()
            )
        };
        if allowed { Ok(()) } else { Err(why()) }
    }
}
