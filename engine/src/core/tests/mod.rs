//! The core against devices that keep what they are given, and do what a test asks of them.
//!
//! A test says what a host sends, which requests to devices fail and which do not end yet, and
//! looks at what is asked of the devices, at the answers, and at what is shown. Always true: time
//! passes only where a test says so; everything that is not held has ended before it goes on.
//! Deliberately absent: chance and crashes, which are the simulator's.

mod admission;
mod allocate;
mod broken;
mod checkpoint;
mod commits;
mod damage;
mod destage;
mod handed;
mod images;
mod jobs;
mod join;
mod kept_rest;
mod lines;
mod lives;
mod origin;
mod planned;
mod proof;
mod quiesce;
mod rebase;
mod replay;
mod replica;
mod resize;
mod room;
mod switch;
mod write;

use super::Core;
use crate::engine::{Config, Settled, format_cache};
use crate::event::{Action, Command, Device, Event, Io, IoError, Op, Purpose, Refusal, Stat};
use crate::event::{Tuning, VolumeSpec};
use crate::flow::FlowLimits;
use crate::format::ledger::Ledger;
use crate::format::stage;
use crate::media::Media;
use crate::memory::Memory;
use crate::memory::model::Bytes;
use crate::outbox::{Cx, Outbox};
use crate::snapshot::{State, VolumeSnapshot};
use crate::types::{
    BLOCK_SECTORS, BufferId, ConnectionId, DestageMode, Geometry, Policy, RequestId, Tag, Time,
    Uuid, VolumeId,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

const SLOTS: u32 = 10;
const MIB: u64 = 1 << 20;

/// 44 segments of 3 chunks with 7 blocks of data: 540 blocks may be dirty.
const GEOMETRY: Geometry = Geometry {
    chunk_blocks: 8,
    segment_chunks: 4,
    segments: 44,
};
const CAPACITY_BLOCKS: u64 = 540;

/// Devices as long as what was written to them.
#[derive(Clone, Default)]
struct Disks(BTreeMap<Device, Vec<u8>>);

impl Media for Disks {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        let disk = self.0.entry(device).or_default();
        let end = offset as usize + bytes.len();
        disk.resize(disk.len().max(end), 0);
        bytes.copy_from_slice(&disk[offset as usize..end]);
        Ok(())
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let disk = self.0.entry(device).or_default();
        let end = offset as usize + bytes.len();
        disk.resize(disk.len().max(end), 0);
        disk[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.write(device, offset, &vec![0; bytes as usize])
    }

    fn sync(&mut self, _: Device) -> Result<(), IoError> {
        Ok(())
    }

    fn stat(&mut self, _: Device) -> Result<Stat, IoError> {
        Ok(STAT)
    }
}

const STAT: Stat = Stat {
    size_bytes: 64 * MIB,
    mtime_ns: 1,
    now_ns: 1,
    print: None,
    image: None,
    named: crate::image::Named::Unknown,
};

/// A host with its devices, at one moment.
struct Host {
    core: Core,
    out: Outbox,
    memory: Bytes,
    disks: Disks,
    now: Time,
    /// Requests to devices that have not ended, and all since the test looked last.
    flights: Vec<Io>,
    asked: Vec<Io>,
    answers: BTreeMap<u32, Result<(), Refusal>>,
    requests: u32,
    /// Which of them do not end, and which fail.
    holds: fn(&Io) -> bool,
    fails: fn(&Io) -> Option<IoError>,
    /// What a look at an image finds.
    stat: Stat,
    /// Batches that wait for a test to carry them.
    sent: VecDeque<replica::Sent>,
}

fn config() -> Config {
    Config {
        machine: Uuid([1; 16]),
        boot: Uuid([2; 16]),
        host_name: String::from("host"),
        stage_slots: SLOTS,
        overlay_slots: SLOTS,
        ram_blocks: 64,
        scratch_bytes: Config::SCRATCH_BYTES_MIN,
        dirty_extents_max: 100_000,
        index_bytes_max: 0,
        map_bytes_max: 1 << 20,
        hash_seed: 7,
    }
}

/// Nothing of it is destaged but by order or for want of room, and nobody is slowed.
fn spec(policy: Policy, name: &str) -> VolumeSpec {
    let tuning = Tuning {
        write_cache: true,
        destage_after_ms: None,
        destage: DestageMode::Atomic,
        dirty_limit_bytes: 1 << 40,
        flow: FlowLimits {
            dirty_writes: Some(1_000_000),
            dirty_bytes_percent: 100,
            ..FlowLimits::default()
        },
        origin_queue_depth: 32,
        admission: crate::event::Admission::Reuse,
        overlay_timeout_ms: 30_000,
        overlay_ram_bytes: 256 * MIB,
        reset_on: crate::event::ResetOn::Command,
        origin_timeout_ms: None,
        share: crate::event::Share::default(),
        group_members: 0,
    };
    VolumeSpec {
        name: name.into(),
        origin: String::from("/images/disk.raw"),
        new_uuid: Uuid([name.len() as u8 + 3; 16]),
        policy,
        size_bytes: 64 * MIB,
        read_only: false,
        base_layer: None,
        journal_possible: true,
        commit: false,
        storage: 0,
        group: String::new(),
        tuning,
    }
}

/// Holds nothing, fails nothing.
fn none(_: &Io) -> bool {
    false
}

fn fine(_: &Io) -> Option<IoError> {
    None
}

/// As a host finds it that was without power. The buffer has another byte in each sector.
fn memory(config: &Config) -> Bytes {
    let slots = config.stage_slots + config.overlay_slots;
    let stage = stage::slot_at(slots, slots, GEOMETRY.chunk_blocks);
    Bytes {
        stage: vec![0; stage as usize],
        ram: vec![0; config.ram_blocks as usize * 4096],
        scratch: vec![0; config.scratch_bytes as usize],
        buffer: (0..MIB).map(|at| (at / 512 % 251) as u8).collect(),
    }
}

impl Host {
    fn new() -> Host {
        Host::with(config())
    }

    fn with(config: Config) -> Host {
        let memory = memory(&config);
        let mut disks = Disks::default();
        format_cache(&mut disks, Uuid([9; 16]), GEOMETRY).expect("made");
        let host = Host::open(config, disks, memory);
        assert_eq!(host.core.log.gauge().capacity, CAPACITY_BLOCKS);
        host
    }

    /// A host that finds this on its devices.
    fn open(config: Config, mut disks: Disks, mut memory: Bytes) -> Host {
        let opened = crate::recover::recover(config, &mut disks, &mut memory);
        let (core, _) = opened.expect("the cache opens");
        Host {
            core,
            out: Outbox::default(),
            memory,
            disks,
            now: Time(1_000_000_000),
            flights: Vec::new(),
            asked: Vec::new(),
            answers: BTreeMap::new(),
            requests: 0,
            holds: none,
            fails: fine,
            stat: STAT,
            sent: VecDeque::new(),
        }
    }

    /// The daemon is killed, and another one starts beside its stage.
    fn killed(self) -> Host {
        let config = self.core.config.clone();
        Host::open(config, self.disks, self.memory)
    }

    /// The same after a loss of power: devices have what they were given, and RAM is gone.
    fn without_power(mut self) -> Host {
        self.memory.stage.fill(0);
        let boot = Uuid([4; 16]);
        let config = Config {
            boot,
            ..self.core.config.clone()
        };
        Host::open(config, self.disks, self.memory)
    }

    /// A host with one volume that is ready.
    fn of(spec: VolumeSpec) -> (Host, VolumeId) {
        let mut host = Host::new();
        let id = host.attach(spec);
        (host, id)
    }

    fn write_back() -> (Host, VolumeId) {
        Host::of(spec(Policy::WriteBack, "disk"))
    }

    /// Two disks of one machine.
    fn attach_pair(&mut self) -> [VolumeId; 2] {
        ["a", "b"].map(|name| {
            let mut member = spec(Policy::WriteBack, name);
            member.group = "vm".into();
            member.tuning.group_members = 2;
            self.attach(member)
        })
    }

    fn attach(&mut self, spec: VolumeSpec) -> VolumeId {
        let id = self.core.place(&spec.name);
        self.attach_as(id, spec, Settled::default());
        id
    }

    /// The same for a volume that has a ledger.
    fn attach_again(&mut self, spec: VolumeSpec) -> VolumeId {
        let id = self.core.place(&spec.name);
        let settled = crate::settle::settle(&mut self.disks, id);
        self.attach_as(id, spec, settled.expect("the ledger is whole"));
        id
    }

    fn attach_as(&mut self, id: VolumeId, spec: VolumeSpec, settled: Settled) {
        let attached = self.core.attach(id, spec, settled);
        attached.expect("it fits");
        self.send(Event::Tick);
    }

    /// The power goes, with all that is held, and comes back.
    fn lose_power(&mut self) {
        self.memory = memory(&self.core.config);
        let mut config = self.core.config.clone();
        config.boot.0[0] = config.boot.0[0].wrapping_add(1);
        let opened = crate::recover::recover(config, &mut self.disks, &mut self.memory);
        (self.core, _) = opened.expect("what was written here can be read");
        self.out = Outbox::default();
        self.flights.clear();
        (self.holds, self.fails) = (none, fine);
    }

    fn apply(&mut self, event: Event) {
        let mut cx = Cx {
            now: self.now,
            memory: &mut self.memory,
            out: &mut self.out,
        };
        self.core.apply(&mut cx, event);
        while let Some(action) = self.out.poll() {
            match action {
                Action::Reply { request, result } => {
                    let before = self.answers.insert(request.number, result);
                    assert_eq!(before, None, "one answer for each request");
                }
                Action::Send {
                    peer,
                    number,
                    batch,
                    ..
                } => {
                    let sent = replica::Sent::of(&self.memory, peer, number, batch);
                    self.sent.push_back(sent);
                }
                Action::Io(io) => {
                    self.asked.push(io.clone());
                    self.flights.push(io);
                }
            }
        }
    }

    /// Lets everything end that is not held, in the order in which it was asked.
    fn run(&mut self) {
        for _ in 0..100_000 {
            let Some(at) = self.flights.iter().position(|io| !(self.holds)(io)) else {
                return;
            };
            let io = self.flights.remove(at);
            let result = (self.fails)(&io).map_or(Ok(()), Err);
            if result.is_ok() {
                self.carry(&io);
            }
            let stat = (io.op == Op::Stat).then_some(self.stat);
            let io = io.id;
            self.apply(Event::Done { io, result, stat });
        }
        panic!("it comes to no end: {:?}", self.asked.last());
    }

    fn carry(&mut self, io: &Io) {
        let mut at = io.offset;
        for slice in &io.slices {
            let mut bytes = self.memory.get(slice.place, slice.bytes).to_vec();
            let done = match io.op {
                Op::Read | Op::Unpack(_) => self.disks.read(io.device, at, &mut bytes),
                _ => self.disks.write(io.device, at, &bytes),
            };
            done.expect("this one does not fail");
            if matches!(io.op, Op::Read | Op::Unpack(_)) {
                self.memory.store(slice.place, &bytes);
            }
            at += slice.bytes;
        }
        if io.op == Op::Resize {
            let disk = self.disks.0.entry(io.device).or_default();
            disk.resize(io.bytes as usize, 0);
        }
        if matches!(io.op, Op::Zero { .. }) {
            let zeroed = self.disks.zero(io.device, io.offset, io.bytes);
            zeroed.expect("this one does not fail");
        }
    }

    fn send(&mut self, event: Event) {
        self.apply(event);
        self.run();
    }

    /// Lets so many milliseconds pass, with every timer in them.
    fn pass(&mut self, millis: u64) {
        let end = self.now.plus_millis(millis);
        self.run();
        while let Some(at) = self.out.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.send(Event::Tick);
        }
        self.now = end;
    }

    /// From now on these do not end; what was held before and is not now ends.
    fn hold(&mut self, holds: fn(&Io) -> bool) {
        self.holds = holds;
        self.run();
    }

    /// The first of these ends, though it is held.
    fn end(&mut self, which: fn(&Io) -> bool) {
        let at = self.flights.iter().position(which);
        let io = self.flights.remove(at.expect("one is held"));
        self.carry(&io);
        let (io, result, stat) = (io.id, Ok(()), None);
        self.send(Event::Done { io, result, stat });
    }

    fn fail(&mut self, fails: fn(&Io) -> Option<IoError>) {
        self.fails = fails;
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId {
            connection: ConnectionId(1),
            number: self.requests,
        }
    }

    fn answer(&self, request: RequestId) -> Option<Result<(), Refusal>> {
        self.answers.get(&request.number).copied()
    }

    fn write_sectors(&mut self, volume: VolumeId, sector: u64, sectors: u64) -> RequestId {
        let request = self.request();
        self.send(Event::Write {
            volume,
            request,
            sector,
            sectors,
            buffer: BufferId(0),
            fua: false,
            tag: Tag::NONE,
        });
        request
    }

    /// Writes whole blocks, and says whether that was acknowledged.
    fn write(&mut self, volume: VolumeId, block: u64, blocks: u64) -> bool {
        let (sector, sectors) = (block * BLOCK_SECTORS, blocks * BLOCK_SECTORS);
        let request = self.write_sectors(volume, sector, sectors);
        self.answer(request) == Some(Ok(()))
    }

    /// The same for so many single blocks, all of which must be taken.
    fn fill(&mut self, volume: VolumeId, first: u64, blocks: u64) {
        for block in first..first + blocks {
            assert!(self.write(volume, block, 1), "block {block} of {volume}");
        }
    }

    /// Asks for whole blocks, at the start of the buffer.
    fn ask(&mut self, volume: VolumeId, block: u64, blocks: u64) -> RequestId {
        let request = self.request();
        self.send(Event::Read {
            volume,
            request,
            sector: block * BLOCK_SECTORS,
            sectors: blocks * BLOCK_SECTORS,
            buffer: BufferId(0),
        });
        request
    }

    /// Reads whole blocks to the start of the buffer, which has other bytes before.
    fn read(&mut self, volume: VolumeId, block: u64, blocks: u64) -> Option<Vec<u8>> {
        let bytes = (blocks * 4096) as usize;
        let before = self.memory.buffer.clone();
        self.memory.buffer[..bytes].fill(0xee);
        let request = self.ask(volume, block, blocks);
        let read = core::mem::replace(&mut self.memory.buffer, before);
        (self.answer(request) == Some(Ok(()))).then(|| read[..bytes].to_vec())
    }

    fn zero(&mut self, volume: VolumeId, block: u64, blocks: u64) -> RequestId {
        let request = self.request();
        self.send(Event::Discard {
            volume,
            request,
            sector: block * BLOCK_SECTORS,
            sectors: blocks * BLOCK_SECTORS,
            fua: false,
        });
        request
    }

    fn flush(&mut self, volume: VolumeId) -> RequestId {
        let request = self.request();
        self.send(Event::Flush { volume, request });
        request
    }

    fn order(&mut self, command: Command) -> RequestId {
        let request = self.request();
        self.send(Event::Admin { request, command });
        request
    }

    fn destage(&mut self, volume: VolumeId) -> RequestId {
        self.order(Command::Destage { volume })
    }

    fn switch(&mut self, volume: VolumeId, policy: Policy) -> RequestId {
        self.order(Command::Switch {
            volume,
            policy,
            journal_possible: true,
        })
    }

    fn show(&self, id: VolumeId) -> VolumeSnapshot {
        let shown = self.core.snapshot(self.now).volumes;
        let found = shown.into_iter().find(|it| it.id == id);
        found.expect("the volume is there")
    }

    fn state(&self, id: VolumeId) -> (State, Option<&'static str>) {
        let shown = self.show(id);
        (shown.state, shown.reason)
    }

    fn ledger(&mut self, id: VolumeId) -> Ledger {
        self.core.volume(id).written_ledger().ledger().clone()
    }

    /// Requests to devices of this kind since the test counted last.
    fn count(&mut self, what: fn(&Io) -> bool) -> usize {
        let asked = core::mem::take(&mut self.asked);
        asked.iter().filter(|io| what(io)).count()
    }
}

fn writes_origin(io: &Io) -> bool {
    let applies = matches!(io.purpose, Purpose::JournalApply | Purpose::DestageWrite);
    applies && io.op != Op::Sync && matches!(io.device, Device::Origin(_))
}

fn writes_journal(io: &Io) -> bool {
    io.purpose == Purpose::JournalWrite && io.op == Op::Write
}

fn syncs_origin(io: &Io) -> bool {
    io.op == Op::Sync && matches!(io.device, Device::Origin(_))
}
