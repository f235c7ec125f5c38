//! Virtual time: events into the engine, its actions onto disks and back to guests.
//!
//! Owns the queue of what will happen, the requests to devices in flight and the faults of the
//! moment. Always true: nothing depends on anything but the seed; ties in time are broken by the
//! order in which they were made. Deliberately absent: lives and deaths of the daemon
//! ([`host`](crate::host)) and what is right ([`oracle`](crate::oracle)).

use crate::below::Below;
pub use crate::broken::Broken;
use crate::devices::{self, Devices, File};
use crate::disk::{Change, Disk, SyncPoint};
use crate::faults::Faults;
use crate::guest::Guest;
use crate::hosts::Idle;
use crate::images::Misfit;
use crate::made;
use crate::mapped;
use crate::memory::SimMemory;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::tops::Writing;
use crate::trace::Trace;
use engine::engine::{Config, Engine, device_bytes};
use engine::event::{Action, Device, Event, Io, IoError, Op, Purpose};
use engine::types::{IoId, Policy, Time, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use workload::stamp;

/// A run that takes more steps than this does not end by itself.
const STEPS_MAX: u64 = 4_000_000;
/// Ticks in a row at one instant; more of them move nothing.
const TICKS_MAX: u32 = 10_000;
/// How late a write of a killed daemon may land; on a slow loop device it was seconds.
pub const LATE_NS_MAX: u64 = 5_000_000_000;

/// Something in the future.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wake {
    Done(IoId),
    Guest(usize),
    /// A write of a killed daemon lands.
    Late(File, u64),
    /// The daemon looks at the image of a volume.
    Look(usize),
    /// The daemon looks for its cache file.
    Cache {
        found: bool,
    },
    /// An image is put back.
    PutBack(usize),
}

/// A request to a device under way.
struct Flight {
    io: Io,
    ticket: Option<u64>,
    result: Result<(), IoError>,
    flipped: bool,
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
    /// The checksum of clean blocks is always right.
    NoLineSums,
    /// A base image that was changed is taken for the one it was.
    SameIdentity,
    /// The volumes of a group are attached as if each stood alone.
    NoGroups,
    /// Another program that writes an image leaves its time of change as it was.
    SameTimes,
    /// A host takes what another one may hold dirty data of.
    TakesAll,
    /// The host panics at the end of a life, as an assert of the engine would.
    Panics,
    /// A destage is never answered.
    NoAnswer,
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
    /// Counts what guests ask and hear, so that both have an order over all volumes.
    clock: u64,
    ticks: u32,
    pub devices: Devices,
    pub memory: SimMemory,
    /// Images as they were when they came to rest, by their volumes.
    pub(crate) rests: BTreeMap<usize, Vec<u8>>,
    /// Those that were written since.
    pub(crate) disturbed: BTreeSet<usize>,
    /// How far the journal of each origin had got when this life began.
    pub(crate) journals: Vec<SyncPoint>,
    pub engine: Option<Engine>,
    pub machine: Uuid,
    pub boot: Uuid,
    /// Which of the hosts it is that serves, and those that do not.
    pub host: u32,
    pub(crate) idle: VecDeque<Idle>,
    flights: BTreeMap<IoId, Flight>,
    pub guests: Vec<Guest>,
    pub(crate) faults: Faults,
    pub(crate) images: Vec<Misfit>,
    pub(crate) tops: Vec<Writing>,
    /// The cache file has no name any more.
    pub(crate) cache_gone: bool,
    pub healthy: bool,
    /// Guest requests that may still be made in this phase.
    pub budget: u64,
    pub trigger: Option<Trigger>,
    pub struck: bool,
    pub parked: bool,
    /// A stage was removed at some time; volumes that were not there then may say so yet.
    pub stage_gone: bool,
    /// The life that ends had come through its recovery.
    pub(crate) served: bool,
    pub sabotage: Option<Sabotage>,
    /// The only copy of something was destroyed.
    pub(crate) spoiled: bool,
}

/// The storage of a plan as it is before the run: an unformatted cache and stamped images.
fn devices_of(plan: &Plan, rng: &mut Rng) -> Devices {
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
        let base = devices.origins.len();
        let over = |[top, below]: [Vec<u8>; 2]| (top, Below::one(below));
        let (image, below) = match origin.top {
            Some(seed) if plan.moves(base) => Below::made(&image, seed),
            Some(seed) => over(made::files(&image, seed)),
            None if mapped::is_mapped(plan, base) => {
                over(mapped::files(&image, origin.tag.unwrap_or(0)))
            }
            None => (image, Below::default()),
        };
        let mut image = Disk::new(image);
        image.keeps_head = origin.top.is_some();
        image.served = plan.hosts > 1;
        let mut inode = 0;
        if plan.rates.knows_images() || below.has_choice() {
            inode = 1000 * (devices.origins.len() as u64 + 1);
            image.touch(devices::MADE_NS);
        }
        devices.origins.push(devices::Origin {
            image,
            below,
            top: origin.top.is_some(),
            skew_ns,
            inode,
            ..Default::default()
        });
    }
    devices
}

impl World {
    pub fn new(plan: Plan, seed: u64, sabotage: Option<Sabotage>, verbose: bool) -> World {
        let mut rng = Rng::new(seed);
        let stage = Config::stage_bytes(
            plan.geometry.chunk_bytes(),
            plan.stage_slots + plan.overlay_slots,
        );
        let ram = u64::from(plan.ram_blocks) * engine::types::BLOCK_BYTES;
        let memory_of = |rng: &mut Rng| {
            let scratch = Config::SCRATCH_BYTES_MIN;
            let mut memory = SimMemory::new(stage, ram, scratch, rng.fork());
            memory.no_ram_sums = sabotage == Some(Sabotage::NoLineSums);
            memory
        };
        let memory = memory_of(&mut rng);
        let devices = devices_of(&plan, &mut rng);
        let numbered = plan.volumes.iter().enumerate();
        let guests = numbered.map(|(at, volume)| {
            Guest::new(
                volume.clone(),
                &plan.origins[volume.origin],
                1 + at as u64,
                rng.fork(),
            )
        });
        let mut world = World {
            guests: guests.collect(),
            host: 0,
            idle: VecDeque::new(),
            faults: Faults::new(plan.origins.len()),
            images: vec![Misfit::default(); plan.origins.len()],
            tops: vec![Writing::default(); plan.origins.len()],
            rests: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            cache_gone: false,
            machine: Uuid(rng.bytes16()),
            boot: Uuid(rng.bytes16()),
            plan,
            rng,
            trace: Trace::new(verbose),
            now: 1,
            queue: BTreeMap::new(),
            sequence: 0,
            clock: 0,
            ticks: 0,
            devices,
            memory,
            journals: Vec::new(),
            engine: None,
            flights: BTreeMap::new(),
            healthy: false,
            budget: 0,
            trigger: None,
            struck: false,
            parked: false,
            stage_gone: false,
            served: false,
            sabotage,
            spoiled: false,
        };
        for number in 1..world.plan.hosts as u32 {
            let memory = memory_of(&mut world.rng);
            let idle = Idle::new(&mut world, memory, number);
            world.idle.push_back(idle);
        }
        world
    }

    pub(crate) fn clock(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The volumes of the group of one, itself included.
    pub fn members(&self, volume: usize) -> impl Iterator<Item = usize> {
        let group = &self.guests[volume].plan.group;
        let mine = move |other: &usize| {
            *other == volume || (!group.is_empty() && self.guests[*other].plan.group == *group)
        };
        (0..self.guests.len()).filter(mine)
    }

    pub(crate) fn later(&mut self, after: u64, wake: Wake) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), wake);
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) -> Result<Step, Broken> {
        self.trace.counters.steps += 1;
        if self.trace.counters.steps > STEPS_MAX {
            return Err(Broken::stuck(format!(
                "the run does not end within {STEPS_MAX} steps"
            )));
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
            return Err(Broken::stuck(format!(
                "{TICKS_MAX} ticks at one instant did not move the deadline"
            )));
        }
        self.advance(due);
        self.apply(Event::Tick)
    }

    fn wake(&mut self, wake: Wake) -> Result<(), Broken> {
        match wake {
            Wake::Done(id) => self.complete(id),
            Wake::Guest(volume) => self.wake_guest(volume),
            Wake::Cache { found } => self.see_cache(found),
            Wake::Look(volume) => self.look_in_turn(volume),
            Wake::PutBack(origin) => {
                self.put_back_if_seen(origin);
                Ok(())
            }
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
                Action::Send { .. } => unreachable!("there are no peers"),
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
                self.trace
                    .tell(format_args!("the end strikes at a request: {purpose:?}"));
                self.struck = true;
            }
            trigger.left = trigger.left.saturating_sub(1);
        }
    }

    fn start_io(&mut self, io: Io) -> Result<(), Broken> {
        self.check_io(&io)?;
        let fate = self.fate(&io);
        let mut flight = Flight {
            ticket: None,
            result: fate.result,
            flipped: fate.flipped,
            sync: None,
            early: None,
            io,
        };
        let dead = self.is_dead(&flight.io);
        let io = &flight.io;
        let memory = &self.memory;
        let file = self.devices.file(io.device);
        let disk = self.devices.disk(file);
        // A dead device takes nothing, not even in part.
        if let Some(change) =
            devices::change(io.op, io.offset, io.bytes, || memory.gather(&io.slices))
            && !dead
        {
            flight.ticket = Some(disk.start(change));
        }
        if matches!(io.op, Op::Sync | Op::Resize) {
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
            return Err(format!("two requests to devices are called {id}").into());
        }
        self.later(latency, Wake::Done(id));
        self.passes(purpose, false);
        Ok(())
    }

    /// Requests to devices that have not ended.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Io> {
        self.flights.values().map(|it| &it.io)
    }

    /// What the engine may ask of a device at all.
    fn check_io(&mut self, io: &Io) -> Result<(), Broken> {
        let bytes: u64 = io.slices.iter().map(|slice| slice.bytes).sum();
        if matches!(io.op, Op::Read | Op::Write) && bytes != io.bytes {
            return Err(format!("the slices do not add up: {io:?}").into());
        }
        if io.device == Device::Cache && io.op == Op::Write {
            let meets = |other: &&Flight| {
                let other = &other.io;
                let apart =
                    io.offset + io.bytes <= other.offset || other.offset + other.bytes <= io.offset;
                other.device == Device::Cache && other.op == Op::Write && !apart
            };
            // Power that goes while the older one is on its way may take what a sync has covered.
            if let Some(other) = self.flights.values().find(meets) {
                return Err(format!("{io:?} is written over {:?}", other.io).into());
            }
        }
        let changes = matches!(io.op, Op::Write | Op::Zero { .. } | Op::Remove);
        let end = io.offset + io.bytes;
        if io.device == Device::Cache {
            let aligned = io.offset.is_multiple_of(4096) && io.bytes.is_multiple_of(4096);
            if !aligned || end > self.devices.cache.size() {
                return Err(format!("not in whole blocks of the cache device: {io:?}").into());
            }
            return Ok(());
        }
        let origin = self
            .devices
            .file(io.device)
            .origin()
            .expect("not the cache device");
        let owned = |guest: &Guest| guest.plan.origin == origin;
        let owner = self.guests.iter().position(owned);
        let owner = owner.expect("each origin has a volume");
        let guest = &self.guests[owner];
        if changes && guest.plan.policy == Policy::Ephemeral && guest.commit.is_none() {
            return Err(format!("the base of an ephemeral volume is written: {io:?}").into());
        }
        self.check_fits(io)?;
        let top = self.devices.origins[origin].top;
        if top {
            self.check_planned(io, origin)?;
        }
        if matches!(io.device, Device::Ledger(_)) {
            self.check_below(io, origin)?;
        }
        let guest = &self.guests[owner];
        // What a plan writes at once is there before any journal is.
        let changes = changes && (!top || io.purpose == Purpose::JournalApply);
        let (group, switches) = (&guest.plan.group, guest.plan.switches);
        let grouped = !group.is_empty() && self.sabotage != Some(Sabotage::NoGroups);
        let cuts = changes && matches!(io.device, Device::Origin(_)) && !guest.plans_move();
        if cuts && grouped && !switches {
            self.check_journals(origin, group)?;
        }
        let inside = !changes || top || end <= guest.model.sectors() * stamp::SECTOR_BYTES as u64;
        if matches!(io.device, Device::Origin(_))
            && !(inside && io.offset.is_multiple_of(512) && io.bytes.is_multiple_of(512))
        {
            return Err(format!("not in whole sectors of the origin: {io:?}").into());
        }
        Ok(())
    }

    /// No origin of a group is written before the journals of all its disks are durable: from then
    /// on origins and journals together have a whole cut.
    fn check_journals(&self, written: usize, group: &str) -> Result<(), Broken> {
        // A plan of a move is no part of a cut.
        let cuts = self.guests.iter().filter(|it| !it.plans_move());
        let others = cuts.map(|it| &it.plan);
        let others = others.filter(|it| it.group == *group && it.origin != written);
        for other in others {
            let journal = &self.devices.origins[other.origin].journal;
            if journal.is_unsynced_since(self.journals[other.origin]) {
                return Err(format!(
                    "origin {written} of a group is written while the journal of origin {} is not \
                     durable",
                    other.origin
                )
                .into());
            }
        }
        Ok(())
    }

    /// A request to a device ends.
    fn complete(&mut self, id: IoId) -> Result<(), Broken> {
        let flight = self.flights.remove(&id).expect("a request ends once");
        let Flight {
            io,
            ticket,
            result,
            flipped,
            sync,
            early,
        } = flight;
        let file = self.devices.file(io.device);
        let time = self.devices.stamp(file, self.now);
        let worst = self.damage(file);
        if let (Op::Remove, File::Ledger(origin), Ok(())) = (io.op, file, result) {
            // The journal goes along.
            let journal = self.devices.disk(File::Journal(origin));
            let ticket = journal.start(Change::Cut);
            journal.finish(ticket, false, time, &mut self.rng);
        }
        let memory = &mut self.memory;
        let disk = self.devices.disk(file);
        // What a write replaces is valid too, for whoever looks only at the bytes.
        let stale = (io.purpose == Purpose::Fill && self.plan.rates.stale).then(|| {
            let mut bytes = vec![0; io.bytes as usize];
            disk.read_landed(io.offset, &mut bytes);
            bytes
        });
        if let Some(ticket) = ticket {
            if io.op == Op::Write {
                disk.refresh(ticket, &memory.gather(&io.slices), &mut self.rng);
            }
            let lost = self.sabotage == Some(Sabotage::LostLogWrite)
                && io.purpose == Purpose::Log
                && self.rng.chance(20);
            disk.finish(ticket, result.is_err() || lost, time, &mut self.rng);
        }
        if io.purpose == Purpose::Fill && self.rng.chance(self.plan.rates.rot) {
            self.trace.counters.lines_rotten += 1;
            let stale = stale.as_deref();
            devices::rot(disk, io.offset, (io.bytes, stale), time, &mut self.rng);
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
            (Some(point), Err(_)) => disk.sync_failed(point, worst, &mut self.rng),
            (None, _) => {}
        }
        if io.op == Op::Read {
            self.deliver(&io, file, result, early, flipped);
        }
        let statted = io.op == Op::Stat && result.is_ok();
        let stat = statted.then(|| self.devices.stat(file, self.now));
        self.note_image(&io, file, result);
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

    /// What a read brings to memory.
    fn deliver(
        &mut self,
        io: &Io,
        file: File,
        result: Result<(), IoError>,
        early: Option<Vec<u8>>,
        flipped: bool,
    ) {
        let mut bytes = early.unwrap_or_else(|| {
            let mut bytes = vec![0; io.bytes as usize];
            self.devices
                .disk(file)
                .read(io.offset, &mut bytes, &mut self.rng);
            bytes
        });
        self.cut_short(file, io.offset, &mut bytes);
        if flipped {
            devices::flip(&mut bytes, &mut self.rng);
        }
        if self.rng.chance(self.plan.rates.flips(io.purpose)) {
            devices::flip(&mut bytes, &mut self.rng);
            self.trace.counters.lines_rotten += 1;
        }
        // A read that fails leaves the memory half changed.
        let upto = if result.is_ok() {
            bytes.len()
        } else {
            bytes.len() / 2
        };
        self.memory.scatter(&io.slices, &bytes[..upto]);
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
            self.trace
                .tell(format_args!("a late write lands: {file:?}"));
        }
    }
}
