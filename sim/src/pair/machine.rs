//! One host of a pair: the product's engine with memory and devices of its own.
//!
//! Always true: requests to devices end in any order; a kill leaves the stage and what completed, a
//! loss of power only what was synced and any part of the rest. Deliberately absent: why something
//! is done; the pair decides.

use crate::devices::{self, Blocking, Devices, File, Origin};
use crate::disk::{Disk, Power, SyncPoint};
use crate::memory::SimMemory;
use crate::rng::Rng;
use engine::engine::{Config, Engine, device_bytes, format_cache};
use engine::event::{Action, Batch, Command, Event, Io, Op, Refusal};
use engine::memory::{Area, Place, Slice};
use engine::snapshot::VolumeSnapshot;
use engine::types::{BufferId, ConnectionId, Geometry, IoId, RequestId, Time, Uuid, VolumeId};
use std::collections::{BTreeMap, VecDeque};

const SLOTS: u32 = 12;
/// Steps in which an order must be answered while nothing fails.
const STEPS_MAX: u32 = 20_000;

const fn geometry(segments: u32) -> Geometry {
    Geometry {
        chunk_blocks: 8,
        segment_chunks: 4,
        segments,
    }
}

/// A batch on its way, with the bytes that it had when it left.
pub struct Sent {
    pub number: u64,
    pub batch: Batch,
    pub bytes: Vec<u8>,
}

struct Flight {
    io: Io,
    ticket: Option<u64>,
    sync: Option<SyncPoint>,
}

pub struct Machine {
    engine: Engine,
    pub devices: Devices,
    pub memory: SimMemory,
    pub rng: Rng,
    flights: BTreeMap<IoId, Flight>,
    pub now: u64,
    boot: u8,
    requests: u32,
    answers: BTreeMap<u32, Result<(), Refusal>>,
    pub sent: VecDeque<Sent>,
}

fn config(boot: u8) -> Config {
    Config {
        machine: Uuid([1; 16]),
        boot: Uuid([boot; 16]),
        host_name: "host".to_owned(),
        stage_slots: SLOTS,
        overlay_slots: 4,
        ram_blocks: 64,
        scratch_bytes: Config::SCRATCH_BYTES_MIN,
        dirty_extents_max: 100_000,
        index_bytes_max: 0,
        map_bytes_max: 1 << 20,
        hash_seed: 7,
    }
}

impl Machine {
    /// A host with an empty cache. All caches of a pair have one name, so that a ledger fits each.
    pub fn new(rng: &mut Rng, segments: u32) -> Result<Machine, String> {
        let geometry = geometry(segments);
        let stage = Config::stage_bytes(geometry.chunk_bytes(), SLOTS + 4);
        let mut rng = rng.fork();
        let mut memory = SimMemory::new(stage, 64 * 4096, Config::SCRATCH_BYTES_MIN, rng.fork());
        let mut devices = Devices {
            cache: Disk::new(vec![0; device_bytes(geometry) as usize]),
            ..Devices::default()
        };
        let mut now = 1_000_000_000;
        let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
        let made = format_cache(&mut media, Uuid([9; 16]), geometry);
        made.map_err(|error| format!("no cache: {error}"))?;
        let opened = Engine::open(config(2), &mut media, &mut memory);
        let (engine, _) = opened.map_err(|error| format!("no start: {error}"))?;
        Ok(Machine {
            engine,
            devices,
            memory,
            rng,
            flights: BTreeMap::new(),
            now,
            boot: 2,
            requests: 0,
            answers: BTreeMap::new(),
            sent: VecDeque::new(),
        })
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Blocking access without faults, and the engine.
    pub fn settle(&mut self, id: VolumeId) -> Result<engine::engine::Settled, String> {
        let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
        let settled = engine::engine::settle(&mut media, id);
        settled.map_err(|error| format!("not settled: {error}"))
    }

    pub fn show(&self, id: VolumeId) -> Option<VolumeSnapshot> {
        let shown = self.engine.snapshot().volumes;
        shown.into_iter().find(|it| it.id == id)
    }

    /// The daemon is gone: killed, or with the host's power.
    pub fn crash(&mut self, power: bool) -> Result<(), String> {
        self.flights.clear();
        self.sent.clear();
        self.answers.clear();
        let lost = match power {
            true => Power::Lost,
            false => Power::Kept,
        };
        self.devices.cache.power_loss(lost, power, &mut self.rng);
        for origin in &mut self.devices.origins {
            let Origin {
                image,
                journal,
                ledger,
                ..
            } = origin;
            for disk in [image, journal, ledger] {
                disk.power_loss(Power::Kept, false, &mut self.rng);
            }
        }
        match power {
            true => self.memory.power_loss(false),
            false => self.memory.restart(),
        }
        self.boot = self.boot.wrapping_add(u8::from(power));
        let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
        let opened = Engine::open(config(self.boot), &mut media, &mut self.memory);
        let (engine, report) = opened.map_err(|error| format!("no start: {error}"))?;
        if !report.damage.is_empty() {
            return Err(format!("nothing was damaged: {:?}", report.damage));
        }
        self.engine = engine;
        Ok(())
    }

    pub fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId {
            connection: ConnectionId(1),
            number: self.requests,
        }
    }

    pub fn answer(&mut self, request: RequestId) -> Option<Result<(), Refusal>> {
        self.answers.remove(&request.number)
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(Time(self.now), event, &mut self.memory);
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Io(io) => self.start(io),
                Action::Reply { request, result } => {
                    self.answers.insert(request.number, result);
                }
                Action::Send { number, batch, .. } => {
                    let sent = self.pack(number, batch);
                    self.sent.push_back(sent);
                }
            }
        }
    }

    /// Takes the bytes of a batch, which are there now and perhaps not later.
    fn pack(&self, number: u64, mut batch: Batch) -> Sent {
        let mut bytes = Vec::new();
        for part in &mut batch.parts {
            let Some(place) = &mut part.source else {
                continue;
            };
            let slice = Slice {
                place: *place,
                bytes: part.span.sectors * 512,
            };
            *place = Place::new(Area::Buffer(BufferId(0)), bytes.len() as u64);
            bytes.extend(self.memory.gather(&[slice]));
        }
        Sent {
            number,
            batch,
            bytes,
        }
    }

    fn start(&mut self, io: Io) {
        let file = self.devices.file(io.device);
        let memory = &self.memory;
        let disk = self.devices.disk(file);
        let content = || memory.gather(&io.slices);
        let change = devices::change(io.op, io.offset, io.bytes, content);
        let flight = Flight {
            ticket: change.map(|change| disk.start(change)),
            sync: matches!(io.op, Op::Sync | Op::Resize).then(|| disk.sync_point()),
            io,
        };
        self.flights.insert(flight.io.id, flight);
    }

    /// Some request to a device ends. False if there is none.
    pub fn complete(&mut self) -> bool {
        let ids: Vec<IoId> = self.flights.keys().copied().collect();
        if ids.is_empty() {
            return false;
        }
        let id = self.rng.pick(&ids);
        let Flight { io, ticket, sync } = self.flights.remove(&id).expect("just listed");
        let file = self.devices.file(io.device);
        let time = self.devices.stamp(file, self.now);
        if let (Op::Remove, File::Ledger(origin)) = (io.op, file) {
            // The journal goes along.
            let journal = self.devices.disk(File::Journal(origin));
            let ticket = journal.start(crate::disk::Change::Cut);
            journal.finish(ticket, false, time, &mut self.rng);
        }
        let disk = self.devices.disk(file);
        if let Some(ticket) = ticket {
            disk.finish(ticket, false, time, &mut self.rng);
        }
        if let Some(point) = sync {
            disk.sync_done(point);
        }
        if io.op == Op::Read {
            let mut bytes = vec![0; io.bytes as usize];
            disk.read(io.offset, &mut bytes, &mut self.rng);
            self.memory.scatter(&io.slices, &bytes);
        }
        let stat = (io.op == Op::Stat).then(|| self.devices.stat(file, self.now));
        let (io, result) = (io.id, Ok(()));
        self.apply(Event::Done { io, result, stat });
        true
    }

    /// Time goes on, and whatever is due by then happens.
    pub fn pass(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(at) = self.engine.next_deadline().filter(|at| at.0 <= end) {
            self.now = self.now.max(at.0);
            self.apply(Event::Tick);
        }
        self.now = end;
    }

    /// An order, brought to its answer while nothing else happens.
    pub fn order(&mut self, command: Command) -> Result<Result<(), Refusal>, String> {
        let request = self.request();
        let what = format!("{command:?}");
        self.apply(Event::Admin { request, command });
        for _ in 0..STEPS_MAX {
            if let Some(answer) = self.answer(request) {
                return Ok(answer);
            }
            if !self.complete() {
                self.pass(1_000_000);
            }
        }
        Err(format!("never answered: {what}"))
    }

    /// All of a disk of so many sectors.
    pub fn read(&mut self, volume: VolumeId, sectors: u64) -> Result<Vec<u8>, String> {
        let buffer = self.memory.buffer_add(vec![0xee; (sectors * 512) as usize]);
        let request = self.request();
        self.apply(Event::Read {
            volume,
            request,
            sector: 0,
            sectors,
            buffer,
        });
        for _ in 0..STEPS_MAX {
            if let Some(answer) = self.answer(request) {
                answer.map_err(|refusal| format!("not read: {refusal}"))?;
                return Ok(self.memory.buffer_remove(buffer));
            }
            if !self.complete() {
                self.pass(1_000_000);
            }
        }
        Err("a read is never answered".to_owned())
    }
}
