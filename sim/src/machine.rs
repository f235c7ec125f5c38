//! One host of several: the product's engine with memory and devices of its own, and how a disk is
//! opened there.
//!
//! Always true: requests to devices end in any order; a kill leaves the stage and what completed, a
//! loss of power only what was synced and any part of the rest; what is asked of the host that had
//! a volume before is kept aside, and ends when the world says so. Deliberately absent: why
//! something is done; the world decides.

use crate::devices::{self, Blocking, Devices, File, Origin};
use crate::disk::{Disk, Power, SyncPoint};
use crate::memory::SimMemory;
use crate::model::Change;
use crate::rng::Rng;
use engine::engine::{Config, Engine, OpenError, Otherwise, Settled, device_bytes, format_cache};
use engine::event::{
    Action, Admission, Batch, Command, Device, Event, Io, IoError, Op, Refusal, ResetOn, Share,
    Tuning, VolumeSpec,
};
use engine::flow::FlowLimits;
use engine::memory::{Area, Place, Slice};
use engine::snapshot::VolumeSnapshot;
use engine::types::{
    BufferId, ConnectionId, DestageMode, Geometry, IoId, PeerId, Policy, RequestId, Tag, Time,
    Uuid, VolumeId,
};
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

/// How large a host is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub segments: u32,
    /// Of the read tier.
    pub ram_blocks: u32,
    /// For clean blocks on the cache device; 0: none are kept there.
    pub index_bytes_max: u64,
}

impl Shape {
    /// One that keeps no clean blocks on its cache device.
    pub fn without_lines(segments: u32) -> Shape {
        Shape {
            segments,
            ram_blocks: 64,
            index_bytes_max: 0,
        }
    }
}

/// A batch on its way, with the bytes that it had when it left.
pub struct Sent {
    pub peer: PeerId,
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
    shape: Shape,
    pub devices: Devices,
    pub memory: SimMemory,
    pub rng: Rng,
    flights: BTreeMap<IoId, Flight>,
    pub now: u64,
    boot: u8,
    requests: u32,
    answers: BTreeMap<u32, Result<(), Refusal>>,
    pub sent: VecDeque<Sent>,
    /// Reads of the host that had a volume before.
    pub asks: Vec<Io>,
    /// The cache device takes nothing any more, and gives nothing.
    pub failing: bool,
    pub reads_fail: bool,
    /// Some of its blocks have wrong bits.
    pub rotten: bool,
}

/// Each third block of the device has a wrong bit.
fn spoil(bytes: &mut [u8], offset: u64) {
    for (block, at) in bytes.chunks_mut(4096).zip(offset / 4096..) {
        block[0] ^= u8::from(at % 3 == 0);
    }
}

fn config(shape: Shape, boot: u8) -> Config {
    Config {
        machine: Uuid([1; 16]),
        boot: Uuid([boot; 16]),
        host_name: "host".to_owned(),
        stage_slots: SLOTS,
        overlay_slots: 4,
        ram_blocks: shape.ram_blocks,
        scratch_bytes: Config::SCRATCH_BYTES_MIN,
        dirty_extents_max: 100_000,
        index_bytes_max: shape.index_bytes_max,
        map_bytes_max: 1 << 20,
        hash_seed: 7,
    }
}

impl Machine {
    /// A host with an empty cache. All caches have one name, so that a ledger fits each.
    pub fn new(rng: &mut Rng, shape: Shape) -> Result<Machine, String> {
        let geometry = geometry(shape.segments);
        let ram_bytes = u64::from(shape.ram_blocks) * 4096;
        let stage = Config::stage_bytes(geometry.chunk_bytes(), SLOTS + 4);
        let mut rng = rng.fork();
        let mut memory = SimMemory::new(stage, ram_bytes, Config::SCRATCH_BYTES_MIN, rng.fork());
        let mut devices = Devices {
            cache: Disk::new(vec![0; device_bytes(geometry) as usize]),
            ..Devices::default()
        };
        let mut now = 1_000_000_000;
        let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
        let made = format_cache(&mut media, Uuid([9; 16]), geometry);
        made.map_err(|error| format!("no cache: {error}"))?;
        let opened = Engine::open(config(shape, 2), &mut media, &mut memory);
        let (engine, _) = opened.map_err(|error| format!("no start: {error}"))?;
        Ok(Machine {
            engine,
            shape,
            devices,
            memory,
            rng,
            flights: BTreeMap::new(),
            now,
            boot: 2,
            requests: 0,
            answers: BTreeMap::new(),
            sent: VecDeque::new(),
            asks: Vec::new(),
            failing: false,
            reads_fail: false,
            rotten: false,
        })
    }

    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Blocking access without faults, and the engine.
    pub fn settle(&mut self, id: VolumeId) -> Result<Settled, String> {
        let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
        let settled = engine::engine::settle(&mut media, id);
        settled.map_err(|error| format!("not settled: {error}"))
    }

    /// The same, but a journal of this cache is left to the engine.
    pub fn settle_own(&mut self, id: VolumeId) -> Result<Settled, String> {
        let (otherwise, cache) = (Otherwise::Refuse, self.engine.cache());
        let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
        let settled = engine::engine::settle_for(&mut media, id, otherwise, Some(cache));
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
        self.asks.clear();
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
        let opened = Engine::open(config(self.shape, self.boot), &mut media, &mut self.memory);
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
                Action::Send {
                    peer,
                    number,
                    batch,
                    ..
                } => {
                    let sent = self.pack(peer, number, batch);
                    self.sent.push_back(sent);
                }
            }
        }
    }

    /// Takes the bytes of a batch, which are there now and perhaps not later.
    fn pack(&self, peer: PeerId, number: u64, mut batch: Batch) -> Sent {
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
            peer,
            number,
            batch,
            bytes,
        }
    }

    /// A guest writes, or zeroes. The request, and where the bytes are until that is answered.
    pub fn write(
        &mut self,
        volume: VolumeId,
        change: Change,
        fua: bool,
    ) -> (RequestId, Option<BufferId>) {
        let request = self.request();
        let (sector, sectors) = (change.sector, change.sectors);
        if change.stamp == 0 {
            self.apply(Event::WriteZeroes {
                volume,
                request,
                sector,
                sectors,
                fua,
                allocate: false,
            });
            return (request, None);
        }
        let bytes = change.stamp.to_le_bytes().repeat(64 * sectors as usize);
        let buffer = self.memory.buffer_add(bytes);
        self.apply(Event::Write {
            volume,
            request,
            sector,
            sectors,
            buffer,
            fua,
            tag: Tag::NONE,
        });
        (request, Some(buffer))
    }

    /// A guest reads. The request, and where the bytes come to.
    pub fn begin_read(
        &mut self,
        volume: VolumeId,
        sector: u64,
        sectors: u64,
    ) -> (RequestId, BufferId) {
        let buffer = self.memory.buffer_add(vec![0xee; (sectors * 512) as usize]);
        let request = self.request();
        self.apply(Event::Read {
            volume,
            request,
            sector,
            sectors,
            buffer,
        });
        (request, buffer)
    }

    /// Brings a batch to a replica that is kept here: the request, and where its bytes are until
    /// that is answered.
    pub fn take(&mut self, replica: VolumeId, sent: Sent) -> (RequestId, BufferId) {
        let buffer = self.memory.buffer_add(sent.bytes);
        let mut batch = sent.batch;
        for place in batch.parts.iter_mut().filter_map(|it| it.source.as_mut()) {
            place.area = Area::Buffer(buffer);
        }
        let (request, volume) = (self.request(), replica);
        self.apply(Event::Replicate {
            volume,
            request,
            batch,
        });
        (request, buffer)
    }

    /// The host that had the volume before has given all that was asked for, or nothing.
    pub fn end_ask(&mut self, ask: &Io, bytes: Result<&[u8], IoError>) {
        if let Ok(bytes) = bytes {
            self.memory.scatter(&ask.slices, bytes);
        }
        let (io, result, stat) = (ask.id, bytes.map(drop), None);
        self.apply(Event::Done { io, result, stat });
    }

    fn start(&mut self, io: Io) {
        if let Device::Former(_) | Device::Peer(..) = io.device {
            assert!(io.op == Op::Read, "another host is read");
            self.asks.push(io);
            return;
        }
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
        let reads = io.op == Op::Read;
        let fails = file == File::Cache && self.failing && (!reads || self.reads_fail);
        if let Some(ticket) = ticket {
            disk.finish(ticket, fails, time, &mut self.rng);
        }
        if let Some(point) = sync.filter(|_| !fails) {
            disk.sync_done(point);
        }
        if reads && !fails {
            let mut bytes = vec![0; io.bytes as usize];
            disk.read(io.offset, &mut bytes, &mut self.rng);
            if self.rotten && file == File::Cache {
                spoil(&mut bytes, io.offset);
            }
            self.memory.scatter(&io.slices, &bytes);
        }
        let stat = (io.op == Op::Stat).then(|| self.devices.stat(file, self.now));
        let result = if fails { Err(IoError::Failed) } else { Ok(()) };
        let io = io.id;
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
        let (request, buffer) = self.begin_read(volume, 0, sectors);
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

pub fn tuning(rng: &mut Rng) -> Tuning {
    Tuning {
        write_cache: rng.chance(800),
        destage_after_ms: Some(rng.pick(&[5, 50, 2_000, 600_000])),
        destage: rng.pick(&[
            DestageMode::Atomic,
            DestageMode::Atomic,
            DestageMode::InPlace,
        ]),
        dirty_limit_bytes: rng.pick(&[256 << 10, 1 << 30]),
        flow: FlowLimits::default(),
        origin_queue_depth: 8,
        admission: Admission::Reuse,
        overlay_timeout_ms: 30_000,
        overlay_ram_bytes: 1 << 20,
        reset_on: ResetOn::Command,
        origin_timeout_ms: None,
        share: Share::default(),
        group_members: 0,
    }
}

/// The order was carried out.
pub fn expect(answer: Result<Result<(), Refusal>, String>) -> Result<(), String> {
    answer?.map_err(|refusal| format!("an order is refused: {refusal}"))
}

pub fn image(inode: u64, sectors: u64) -> Origin {
    let mut image = Disk::new(vec![0; sectors as usize * 512]);
    image.served = true;
    Origin {
        image,
        inode,
        ..Origin::default()
    }
}

/// Opens a disk on the image at this place.
pub fn attach(
    machine: &mut Machine,
    name: &str,
    (place, sectors): (usize, u64),
    tuning: Tuning,
) -> Result<VolumeId, String> {
    let id = machine.engine().place(name);
    machine.devices.places.insert(id, place);
    let settled = machine.settle(id)?;
    attach_settled(machine, (id, name), (place, sectors), (settled, tuning))
}

pub fn attach_settled(
    machine: &mut Machine,
    (id, name): (VolumeId, &str),
    place: (usize, u64),
    with: (Settled, Tuning),
) -> Result<VolumeId, String> {
    let opened = open(machine, (id, name), place, with);
    opened.map_err(|error| format!("not attached: {error}"))?;
    Ok(id)
}

/// The same where a journal of this cache is left to the engine, if its log has what that has.
pub fn attach_own(
    machine: &mut Machine,
    of: (VolumeId, &str),
    place: (usize, u64),
    (former, tuning): (bool, Tuning),
) -> Result<VolumeId, String> {
    let mut settled = machine.settle_own(of.0)?;
    settled.former = former;
    match open(machine, of, place, (settled, tuning)) {
        Err(OpenError::JournalFirst) => {
            let mut settled = machine.settle(of.0)?;
            settled.former = former;
            attach_settled(machine, of, place, (settled, tuning))
        }
        Err(error) => Err(format!("not attached: {error}")),
        Ok(()) => Ok(of.0),
    }
}

fn open(
    machine: &mut Machine,
    (id, name): (VolumeId, &str),
    place: (usize, u64),
    (settled, tuning): (Settled, Tuning),
) -> Result<(), OpenError> {
    let (now, spec) = (Time(machine.now), spec(name, place, tuning));
    machine.engine().attach(now, id, spec, settled)?;
    machine.apply(Event::Tick);
    Ok(())
}

/// The same for a disk that was opened without proof, after the reply to [`Command::Prove`].
pub fn attach_proved(
    machine: &mut Machine,
    (id, name): (VolumeId, &str),
    (place, sectors): (usize, u64),
    (settled, tuning): (Settled, Tuning),
) -> Result<(), String> {
    let spec = spec(name, (place, sectors), tuning);
    let (now, memory) = (Time(machine.now), &mut machine.memory);
    let attached = machine.engine.attach_proved(now, id, spec, settled, memory);
    attached.map_err(|error| format!("not attached with proof: {error}"))?;
    machine.apply(Event::Tick);
    Ok(())
}

fn spec(name: &str, (place, sectors): (usize, u64), tuning: Tuning) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        origin: format!("/images/{name}.raw"),
        new_uuid: Uuid([7 + place as u8; 16]),
        policy: Policy::WriteBack,
        size_bytes: sectors * 512,
        read_only: false,
        base_layer: None,
        journal_possible: true,
        commit: false,
        storage: 0,
        group: String::new(),
        tuning,
    }
}
