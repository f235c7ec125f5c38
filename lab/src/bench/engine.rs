//! The speed of the engine alone: overwrites of dirty blocks, scattered over a large volume.
//!
//! Owns a host without devices: the cache forgets what is written to it, every request to a device
//! is answered at once. Always true: the engine is the one that the daemon runs, and every step
//! that the shard takes for a write is taken (event, actions, reply, ticks when they are due);
//! the figures are measured twice, with payload copies and checksums left out and with the real
//! ones. Deliberately absent: threads, sockets and devices; `demo` shows those.

use crate::replay::blank::{Blank, STAT};
use crate::replay::memory::Payloadless;
use crate::replay::offline::Volume;
use engine::engine::{Config, Engine, Settled, format_cache, geometry_for, settle};
use engine::event::{Action, Admission, Device, Event, Io, Op, VolumeSpec};
use engine::types::{
    BLOCK_BYTES, BLOCK_SECTORS, BufferId, ConnectionId, DestageMode, Geometry, Policy, RequestId,
    Tag, Time, Uuid,
};
use host::buffer::{Arena, BufferPool, HostMemory};
use std::collections::VecDeque;
use std::io;
use std::time::Instant;
use workload::rng::Rng;

/// Nothing is stored, so the log can be larger than any disk here: it never has to be reused.
const LOG_BYTES: u64 = 512 << 30;
const STAGE_BYTES: u64 = 16 << 20;
const SCRATCH_BYTES: u64 = 64 << 20;
const BUFFERS_BYTES: u64 = 64 << 20;
/// Time between two writes on the clock of the engine.
const STEP_NS: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Dirty extents of one block each before measuring.
    pub extents: u64,
    /// Bytes of the volume over which they are scattered.
    pub span_bytes: u64,
    /// Overwrites that are measured.
    pub operations: u64,
    pub seed: u64,
}

/// What was measured with one kind of memory.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub extents: u64,
    pub fill_ns: f64,
    pub overwrite_ns: f64,
    /// Time on the processor, where the kernel tells: what others took is not in it.
    pub overwrite_cpu_ns: Option<f64>,
    /// Bytes of all maps and indexes for each dirty extent.
    pub bytes_per_extent: f64,
    pub log_writes: u64,
}

impl Figures {
    /// Writes that one core of its own would take.
    pub fn per_second(&self) -> f64 {
        1e9 / self.overwrite_cpu_ns.unwrap_or(self.overwrite_ns)
    }
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("cannot set memory aside: {0}")]
    Memory(#[from] io::Error),
    #[error("the engine did not open: {0}")]
    Engine(#[from] engine::engine::OpenError),
    #[error("{0}")]
    Options(String),
    #[error("write {0} was refused: {1}")]
    Refused(u64, engine::event::Refusal),
}

/// Fills the map and measures overwrites; `real` = with payload copies and CRC-32C.
pub fn run(options: Options, real: bool) -> Result<Figures, BenchError> {
    let blocks = options.span_bytes / BLOCK_BYTES;
    if options.extents == 0 || options.operations == 0 || blocks < options.extents {
        return Err(BenchError::Options(format!(
            "{} extents do not fit {} blocks; use at least one extent, one operation and a larger \
             span",
            options.extents, blocks
        )));
    }
    let geometry = geometry_for(LOG_BYTES).map_err(BenchError::Options)?;
    let room = geometry.log_bytes() / BLOCK_BYTES / 8;
    if options.extents > room / 2 {
        return Err(BenchError::Options(format!(
            "{} extents are too many for the log of this measurement; use at most {}",
            options.extents,
            room / 2
        )));
    }
    let mut host = Host::start(options, geometry, real)?;
    let mut rng = Rng::new(options.seed);
    // A stride of its own for each extent: scattered, and no block twice.
    let stride = blocks / options.extents;
    let place = |extent: u64| extent * stride * BLOCK_SECTORS;
    // In random order, so that the map does not profit from sorted insertion.
    let mut order: Vec<u32> = (0..options.extents as u32).collect();
    rng.shuffle(&mut order);
    let begun = Instant::now();
    for &extent in &order {
        host.write(place(u64::from(extent)))?;
    }
    let fill_ns = begun.elapsed().as_nanos() as f64 / options.extents as f64;
    let snapshot = host.engine.snapshot();
    let extents: u64 = snapshot.volumes.iter().map(|it| it.dirty_extents).sum();
    let index_bytes = snapshot.index_bytes;
    let cpu_begun = cpu_ns();
    let begun = Instant::now();
    for _ in 0..options.operations {
        host.write(place(rng.scaled(options.extents)))?;
    }
    let each = |ns: u64| ns as f64 / options.operations as f64;
    let overwrite_ns = each(begun.elapsed().as_nanos() as u64);
    let cpu = cpu_begun.and_then(|before| cpu_ns()?.checked_sub(before));
    Ok(Figures {
        extents,
        fill_ns,
        overwrite_ns,
        overwrite_cpu_ns: cpu.map(each),
        bytes_per_extent: index_bytes as f64 / extents.max(1) as f64,
        log_writes: host.log_writes,
    })
}

/// Nanoseconds this thread has been on a processor (proc(5), schedstat).
fn cpu_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The engine with everything it needs and nothing else.
struct Host {
    engine: Engine,
    memory: Payloadless,
    volume: engine::types::VolumeId,
    buffer: BufferId,
    now: Time,
    writes: u64,
    log_writes: u64,
    done: VecDeque<Io>,
}

impl Host {
    fn start(options: Options, geometry: Geometry, real: bool) -> Result<Host, BenchError> {
        let slots = (STAGE_BYTES / geometry.chunk_bytes()) as u32;
        let config = Config {
            machine: Uuid([1; 16]),
            boot: Uuid([2; 16]),
            host_name: "bench".into(),
            stage_slots: slots,
            overlay_slots: slots,
            ram_blocks: 1024,
            scratch_bytes: SCRATCH_BYTES,
            // So many that nothing presses for a destage: sealed epochs keep what newer ones
            // overwrite.
            dirty_extents_max: (options.extents + options.operations) * 4,
            index_bytes_max: 0,
            map_bytes_max: 0,
            hash_seed: options.seed,
        };
        let stage = Config::stage_bytes(geometry.chunk_bytes(), 2 * slots);
        let mut buffers = BufferPool::new(BUFFERS_BYTES)?;
        let buffer = buffers.allocate(BLOCK_BYTES).expect("the pool is empty");
        buffers.bytes(buffer).fill(0x5A);
        let arenas = (
            Arena::anonymous(stage)?,
            Arena::anonymous(u64::from(config.ram_blocks) * BLOCK_BYTES)?,
            Arena::anonymous(SCRATCH_BYTES)?,
        );
        let host = HostMemory::new(arenas.0, arenas.1, arenas.2, buffers);
        let mut memory = Payloadless::over(host, real);
        let mut media = Blank::default();
        format_cache(&mut media, Uuid([3; 16]), geometry)?;
        let (mut engine, _) = Engine::open(config, &mut media, &mut memory)?;
        let volume = engine.place("disk-0");
        let settled: Settled = settle(&mut media, volume)?;
        engine.attach(Time(1), volume, spec(options), settled)?;
        let mut host = Host {
            engine,
            memory,
            volume,
            buffer,
            now: Time(1),
            writes: 0,
            log_writes: 0,
            done: VecDeque::new(),
        };
        host.apply(Event::Tick)?;
        Ok(host)
    }

    fn write(&mut self, sector: u64) -> Result<(), BenchError> {
        self.now.0 += STEP_NS;
        self.writes += 1;
        let request = RequestId {
            connection: ConnectionId(1),
            number: self.writes as u32,
        };
        self.apply(Event::Write {
            volume: self.volume,
            request,
            sector,
            sectors: BLOCK_SECTORS,
            buffer: self.buffer,
            fua: false,
            tag: Tag::NONE,
        })?;
        if self.engine.next_deadline().is_some_and(|at| at <= self.now) {
            self.apply(Event::Tick)?;
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), BenchError> {
        self.engine.apply(self.now, event, &mut self.memory);
        loop {
            while let Some(action) = self.engine.poll_action() {
                match action {
                    Action::Io(io) => self.done.push_back(io),
                    Action::Reply {
                        result: Err(refusal),
                        ..
                    } => return Err(BenchError::Refused(self.writes, refusal)),
                    Action::Reply { .. } => {}
                    Action::Send { .. } => unreachable!("there are no peers"),
                }
            }
            let Some(io) = self.done.pop_front() else {
                return Ok(());
            };
            self.log_writes += u64::from(io.device == Device::Cache && io.op == Op::Write);
            let stat = (io.op == Op::Stat).then_some(STAT);
            let done = Event::Done {
                io: io.id,
                result: Ok(()),
                stat,
            };
            self.engine.apply(self.now, done, &mut self.memory);
        }
    }
}

fn spec(options: Options) -> VolumeSpec {
    let volume = Volume {
        policy: Policy::WriteBack,
        destage: DestageMode::Atomic,
        destage_after_ms: None,
        dirty_limit_bytes: u64::MAX / 4,
        origin_queue_depth: 1,
        admission: Admission::Reuse,
    };
    volume.spec(0, options.span_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_measurement_leaves_as_many_extents_as_it_was_asked_for() {
        for real in [false, true] {
            let options = Options {
                extents: 2_000,
                span_bytes: 1 << 40,
                operations: 4_000,
                seed: 1,
            };
            let figures = run(options, real).expect("the engine takes every write");
            assert_eq!(figures.extents, 2_000);
            assert!(figures.bytes_per_extent > 0.0);
            assert!(figures.log_writes > 0);
        }
    }

    #[test]
    fn more_extents_than_blocks_are_refused_in_words() {
        let options = Options {
            extents: 100,
            span_bytes: 4096,
            operations: 1,
            seed: 1,
        };
        let refused = run(options, false).expect_err("one block is not a hundred");
        assert!(refused.to_string().contains("do not fit"), "{refused}");
    }
}
