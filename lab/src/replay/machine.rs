//! The engine in virtual time, over devices that take time and hold no data.
//!
//! Owns the clock, what is in flight, and the devices: a cache device of fixed latency, and shared
//! storage by the model that `bench` and the configuration use. Always true: time never goes back;
//! at one moment the ends of earlier operations come before deadlines, and deadlines before the
//! next request; the same calls give the same counts. What the engine wrote to read it again while
//! it runs, footers of segments, is given back to it; all else reads as whatever lies in memory.
//! Deliberately absent: faults, which `sim` has.

use super::blank::{Blank, STAT};
use super::memory::Payloadless;
use super::tally::Tally;
use super::watch::Watch;
use engine::engine::{Config, Engine, OpenError, format_cache, geometry_for, settle};
use engine::event::{Action, Command, Device, Event, Io, Op, Purpose, Refusal, Stat, VolumeSpec};
use engine::image::Image;
use engine::memory::Memory;
use engine::origin::Map;
use engine::snapshot::{Histogram, Snapshot};
use engine::types::{
    BLOCK_BYTES, BufferId, ConnectionId, IoId, RequestId, SECTOR_BYTES, Tag, Time, Uuid, VolumeId,
};
use host::error::Error;
use host::origin::san::{Params, San};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;

const SCRATCH_BYTES: u64 = 64 << 20;
/// As the daemon has it.
const DIRTY_EXTENTS_MAX: u64 = 8 << 20;
const INDEX_PART: u64 = 500;
const SLOTS_MIN: u64 = 8;
/// More than any host gives to a cache.
const MEMORY_BYTES_MAX: u64 = 1 << 40;
/// Requests that are not answered; more mean that something waits for ever.
const IN_FLIGHT_MAX: usize = 1 << 22;
/// The payload of every request: there is none.
const NOWHERE: BufferId = BufferId(0);
const CONNECTION: ConnectionId = ConnectionId(1);

/// Sizes as in the configuration, and how fast the devices are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub cache_bytes: u64,
    pub ram_bytes: u64,
    pub stage_bytes: u64,
    pub overlay_ram_bytes: u64,
    /// For tables of images that are not raw.
    pub map_bytes: u64,
    pub cache_latency_ns: u64,
    pub san: Params,
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("cannot set memory aside: {0}")]
    Memory(#[from] io::Error),
    #[error("{0}")]
    Sizes(String),
    #[error("the engine did not open: {0}")]
    Engine(#[from] OpenError),
    #[error("a request comes more than ten years after the first; look at the trace's times")]
    Late,
    #[error("more than {IN_FLIGHT_MAX} requests wait: the storage does not keep up")]
    Behind,
}

impl From<ReplayError> for Error {
    fn from(error: ReplayError) -> Error {
        let message = format!("replay: {error}");
        match error {
            ReplayError::Sizes(_) => Error::usage(message),
            _ => Error::failed(message),
        }
    }
}

/// What a guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Read { sector: u64, sectors: u64 },
    Write { sector: u64, sectors: u64 },
    Discard { sector: u64, sectors: u64 },
    Flush,
}

/// A request that is not answered yet.
#[derive(Clone, Copy)]
struct Waiting {
    since: Time,
    /// Index of its histogram; none for an order.
    kind: Option<usize>,
}

/// Ends of operations, soonest first and then in order of their begin.
type Ends = BinaryHeap<Reverse<(Time, u64, Ended)>>;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    io: IoId,
    stat: bool,
}

/// What came of the requests of guests.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Reads, writes, flushes and discards.
    pub latency: [Histogram; 3],
    pub refused: u64,
    pub first_refusal: Option<Refusal>,
    pub answered: u64,
}

pub struct Machine {
    engine: Engine,
    memory: Payloadless,
    now: Time,
    ends: Ends,
    begun: u64,
    san: San,
    cache_latency_ns: u64,
    waiting: Vec<Waiting>,
    unused: Vec<u32>,
    footers: HashMap<u64, Vec<u8>>,
    media: Blank,
    pub tally: Tally,
    /// Nothing is watched unless it is named.
    pub watch: Watch,
    pub answers: Answers,
}

impl Machine {
    pub fn start(sizes: Sizes) -> Result<Machine, ReplayError> {
        for (bytes, what) in [(sizes.ram_bytes, "RAM"), (sizes.stage_bytes, "stage")] {
            if bytes > MEMORY_BYTES_MAX {
                let message = format!("{bytes} bytes of {what} are too many; at most 1 TiB");
                return Err(ReplayError::Sizes(message));
            }
        }
        let geometry = geometry_for(sizes.cache_bytes).map_err(ReplayError::Sizes)?;
        let chunk = geometry.chunk_bytes();
        let slots = |bytes: u64| (bytes / chunk).max(SLOTS_MIN) as u32;
        let config = Config {
            machine: Uuid([1; 16]),
            boot: Uuid([2; 16]),
            host_name: "replay".into(),
            stage_slots: slots(sizes.stage_bytes),
            overlay_slots: slots(sizes.overlay_ram_bytes),
            ram_blocks: (sizes.ram_bytes / BLOCK_BYTES) as u32,
            scratch_bytes: SCRATCH_BYTES,
            dirty_extents_max: DIRTY_EXTENTS_MAX,
            index_bytes_max: geometry.log_bytes() / INDEX_PART,
            map_bytes_max: sizes.map_bytes,
            hash_seed: sizes.seed,
        };
        let stage = Config::stage_bytes(chunk, config.stage_slots + config.overlay_slots);
        let ram = u64::from(config.ram_blocks).max(1) * BLOCK_BYTES;
        let mut memory = Payloadless::new(stage, ram, SCRATCH_BYTES)?;
        let mut media = Blank::default();
        format_cache(&mut media, Uuid([3; 16]), geometry)?;
        let (engine, _) = Engine::open(config, &mut media, &mut memory)?;
        let mut machine = Machine {
            engine,
            memory,
            now: Time(1),
            ends: Ends::new(),
            begun: 0,
            san: San::new(sizes.san),
            cache_latency_ns: sizes.cache_latency_ns,
            waiting: Vec::new(),
            unused: Vec::new(),
            footers: HashMap::new(),
            media,
            tally: Tally::default(),
            watch: Watch::default(),
            answers: Answers::default(),
        };
        machine.apply(Event::Tick);
        Ok(machine)
    }

    pub fn attach(&mut self, spec: VolumeSpec) -> Result<VolumeId, ReplayError> {
        let volume = self.engine.place(&spec.name);
        let settled = settle(&mut self.media, volume)?;
        self.engine.attach(self.now, volume, spec, settled)?;
        self.apply(Event::Tick);
        Ok(volume)
    }

    /// The same, on an image of a format.
    pub fn attach_mapped(
        &mut self,
        spec: VolumeSpec,
        map: Box<dyn Map>,
    ) -> Result<VolumeId, ReplayError> {
        let volume = self.engine.place(&spec.name);
        let settled = settle(&mut self.media, volume)?;
        self.engine.attach_mapped(volume, spec, settled, map)?;
        self.apply(Event::Tick);
        Ok(volume)
    }

    /// Another file takes the place of the image of a volume that is empty for that.
    pub fn exchange(&mut self, volume: VolumeId, map: Box<dyn Map>) {
        let (now, image) = (self.now, Image::default());
        self.engine
            .exchange(now, volume, map, image, &mut self.memory);
        self.apply(Event::Tick);
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot_at(self.now)
    }

    /// Requests and orders without an answer.
    pub fn in_flight(&self) -> usize {
        self.waiting.len() - self.unused.len()
    }

    /// Sends a request at its time; everything due before happens before.
    pub fn ask(&mut self, at: Time, volume: VolumeId, ask: Ask) -> Result<(), ReplayError> {
        self.run_until(at);
        let kind = match ask {
            Ask::Read { .. } => 0,
            Ask::Write { .. } => 1,
            Ask::Discard { .. } | Ask::Flush => 2,
        };
        let request = self.enter(Some(kind))?;
        self.apply(match ask {
            Ask::Read { sector, sectors } => Event::Read {
                volume,
                request,
                sector,
                sectors,
                buffer: NOWHERE,
            },
            Ask::Write { sector, sectors } => Event::Write {
                volume,
                request,
                sector,
                sectors,
                buffer: NOWHERE,
                fua: false,
                tag: Tag::NONE,
            },
            Ask::Discard { sector, sectors } => Event::Discard {
                volume,
                request,
                sector,
                sectors,
                fua: false,
            },
            Ask::Flush => Event::Flush { volume, request },
        });
        Ok(())
    }

    /// Gives an order now; its answer is not waited for.
    pub fn order(&mut self, command: Command) -> Result<(), ReplayError> {
        let request = self.enter(None)?;
        self.apply(Event::Admin { request, command });
        Ok(())
    }

    /// Lets time pass.
    pub fn run_until(&mut self, at: Time) {
        while self.step(at) {}
        self.now = self.now.max(at);
    }

    /// Lets time pass until everything is answered, or until `at`; false if something waits.
    pub fn settle_until(&mut self, at: Time) -> bool {
        while self.in_flight() > 0 {
            if !self.step(at) {
                return false;
            }
        }
        true
    }

    /// Lets time pass until fewer requests than this are without an answer; false if nothing
    /// happens any more.
    pub fn wait_below(&mut self, requests: usize) -> bool {
        while self.in_flight() >= requests {
            if !self.step(Time(u64::MAX)) {
                return false;
            }
        }
        true
    }

    /// The next thing that happens on its own, if that is not after `limit`.
    fn step(&mut self, limit: Time) -> bool {
        let end = self.ends.peek().map(|Reverse((at, _, _))| *at);
        let due = self.engine.next_deadline();
        let ends_first = match (end, due) {
            (None, None) => return false,
            (Some(end), due) => due.is_none_or(|due| end <= due),
            (None, Some(_)) => false,
        };
        let at = if ends_first { end } else { due };
        let at = at.expect("one of them is there");
        if at > limit {
            return false;
        }
        self.now = self.now.max(at);
        if !ends_first {
            self.apply(Event::Tick);
            return true;
        }
        let Reverse((_, _, ended)) = self.ends.pop().expect("it was seen");
        let stat = ended.stat.then(|| self.stat());
        self.apply(Event::Done {
            io: ended.io,
            result: Ok(()),
            stat,
        });
        true
    }

    /// Clocks of host and storage are one; nobody else writes an image.
    fn stat(&self) -> Stat {
        Stat {
            now_ns: STAT.now_ns + self.now.0,
            ..STAT
        }
    }

    fn enter(&mut self, kind: Option<usize>) -> Result<RequestId, ReplayError> {
        let waiting = Waiting {
            since: self.now,
            kind,
        };
        let number = match self.unused.pop() {
            Some(number) => {
                self.waiting[number as usize] = waiting;
                number
            }
            None if self.waiting.len() >= IN_FLIGHT_MAX => return Err(ReplayError::Behind),
            None => {
                self.waiting.push(waiting);
                self.waiting.len() as u32 - 1
            }
        };
        Ok(RequestId {
            connection: CONNECTION,
            number,
        })
    }

    fn apply(&mut self, event: Event) {
        self.engine.apply(self.now, event, &mut self.memory);
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Io(io) => self.begin(io),
                Action::Reply { request, result } => self.reply(request, result),
                Action::Send { .. } => unreachable!("there are no peers"),
            }
        }
    }

    fn reply(&mut self, request: RequestId, result: Result<(), Refusal>) {
        let waiting = self.waiting[request.number as usize];
        self.unused.push(request.number);
        if let Some(kind) = waiting.kind {
            self.answers.answered += 1;
            self.answers.latency[kind].add_ns(self.now.since(waiting.since));
        }
        if let Err(refusal) = result {
            self.answers.refused += 1;
            self.answers.first_refusal.get_or_insert(refusal);
        }
    }

    fn begin(&mut self, io: Io) {
        self.tally.add(self.now.0, &io);
        self.watch.add(self.now.0, &io);
        if io.device == Device::Cache {
            self.keep_footer(&io);
        }
        let end = match io.device {
            Device::Cache => self.now.0 + self.cache_latency_ns,
            _ => self.san.admit(self.now.0, io.bytes),
        };
        self.begun += 1;
        let ended = Ended {
            io: io.id,
            stat: io.op == Op::Stat,
        };
        self.ends.push(Reverse((Time(end), self.begun, ended)));
    }

    /// A write of a footer is kept until its place is written again; a read of one finds it.
    fn keep_footer(&mut self, io: &Io) {
        match (io.purpose, io.op) {
            (Purpose::Footer, Op::Write) => {
                let mut bytes = vec![0; io.bytes as usize];
                let mut at = 0;
                for slice in &io.slices {
                    let end = at + slice.bytes as usize;
                    self.memory.load(slice.place, &mut bytes[at..end]);
                    at = end;
                }
                self.footers.insert(io.offset, bytes);
            }
            (Purpose::Evacuate, Op::Read) => {
                let Some(bytes) = self.footers.get(&io.offset) else {
                    return;
                };
                let mut at = 0;
                for slice in &io.slices {
                    let end = (at + slice.bytes as usize).min(bytes.len());
                    self.memory.store(slice.place, &bytes[at..end]);
                    at = end;
                }
            }
            _ => {}
        }
    }
}

/// Sectors of one request at most, as every NBD server takes; larger ones of a trace are cut.
pub const SECTORS_MAX: u64 = (32 << 20) / SECTOR_BYTES;
