//! What a seed decides before the run begins: the shape of the host and the rates of its faults.
//!
//! Always true: a plan follows from its seed, so a scenario can take one and change a line of it.
//! The sizes are small on purpose, so that a short run wraps the log many times and meets every
//! limit. Deliberately absent: anything that happens.

use crate::rng::Rng;
use engine::engine::Config;
use engine::event::{Admission, Purpose, ResetOn, Share, Tuning};
use engine::flow::FlowLimits;
use engine::types::{DestageMode, Geometry, Policy, Uuid};

/// The largest write and read: 128 KiB.
/// As little as a map takes at all.
const MAP_BYTES_MAX: u64 = 0;
const REQUEST_SECTORS_MAX: u64 = 256;
/// Segments that hold no data of guests: reserve, open ones, slack.
const SEGMENTS_RESERVED: u32 = 4;

/// Rates are in a thousand.
#[derive(Clone, Debug)]
pub struct Rates {
    pub cache_write_error: u64,
    pub cache_sync_error: u64,
    /// The same for checkpoints alone, if it is more: the place where they lie is bad.
    pub checkpoint_error: u64,
    /// Per guest request: an origin starts to fail, or to hang.
    pub origin_trouble: u64,
    /// Per restart: the recovery is hit by another crash.
    pub crash_in_recovery: u64,
    pub recovery_error: u64,
    pub disconnect: u64,
    /// Per guest request: the origins are judged as if power failed now.
    pub origin_check: u64,
    /// Per life: a volume is left out by the configuration.
    pub absent: u64,
    /// Per write or read of clean blocks: the cache device loses it, flips a bit of it, puts it
    /// elsewhere, or fails.
    pub rot: u64,
    /// Per guest request: the cache device dies for up to two minutes.
    pub cache_dies: u64,
    /// Per power loss: a base image is another one afterwards.
    pub new_image: u64,
    /// Per read of the log: it fails, or a bit is wrong; the third of a block is good.
    pub cache_read_error: u64,
    /// A block of clean ones that never arrived shows what was there before.
    pub stale: bool,
    /// A power loss may leave garbage in a sector that was being written.
    pub garbage: bool,
    /// An origin without space has none for image and ledger either.
    pub all_full: bool,
    /// Per guest request: the wall clock is set, or the host stood still.
    pub clock_jumps: u64,
    /// Per orderly stop: another program writes an image that is owed nothing.
    pub foreign: u64,
    /// Per guest request: an image loses its name, or is cut short where it lies.
    pub image_moved: u64,
    pub image_shrunk: u64,
    /// The same for a base that another program writes while volumes read it.
    pub base_written: u64,
    /// Per guest request: the cache file is removed.
    pub cache_gone: u64,
    /// Per end of a life: an image is another file afterwards.
    pub image_replaced: u64,
    /// How many times longer everything takes; all the time, or in every second burst.
    pub origin_slow: u64,
    pub cache_slow: u64,
    pub burst_ns: u64,
}

impl Rates {
    /// Whether the storage tells what images are known by, and daemons look at them.
    pub fn knows_images(&self) -> bool {
        self.image_moved + self.image_shrunk + self.base_written + self.image_replaced > 0
    }

    /// How often a read brings a bit that is not what the device has.
    pub fn flips(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::LineRead => self.rot,
            _ => 0,
        }
    }
}

/// What a guest, or its administrator, leaves alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spares {
    /// Requests that are not in whole blocks of 4 KiB.
    pub unaligned: bool,
    /// Discards and zeroes.
    pub zeroes: bool,
    /// Commands: destage, reset, tune, scrub.
    pub commands: bool,
    /// Writes that are durable by themselves.
    pub fua: bool,
}

#[derive(Clone, Debug)]
pub struct VolumePlan {
    pub name: String,
    pub policy: Policy,
    /// Its administrator changes the policy again and again, but for ephemeral.
    pub switches: bool,
    /// Index of its origin; only volumes that never write share one.
    pub origin: usize,
    pub journal_possible: bool,
    pub tuning: Tuning,
    /// Requests in flight at most.
    pub depth: usize,
    /// The largest write. One that is larger than the volume's share of the log may be taken in
    /// parts, each of which counts as a write.
    pub request_sectors_max: u64,
    /// As its administrator names it; empty = none.
    pub group: String,
    /// Mostly reads.
    pub reader: bool,
    /// Mostly discards.
    pub zeroes: bool,
    /// What its guest does not do at all.
    pub spares: Spares,
    /// An overlay whose administrator makes it the content of its image now and then.
    pub commits: bool,
    /// Its administrator changes its size again and again, mostly to no whole number of blocks.
    pub resizes: bool,
    /// An overlay whose guest sleeps now and then.
    pub sleeps: bool,
    /// Its image, and that of its group, is brought to rest now and then.
    pub rests: bool,
    /// Its image allocates, and moves to another file below it now and then.
    pub moves: bool,
    /// Its image allocates, and becomes smaller as well.
    pub cuts: bool,
}

#[derive(Clone, Debug)]
pub struct OriginPlan {
    pub sectors: u64,
    /// Stamped with this tag before the run; `None` = zeroes.
    pub tag: Option<u64>,
    /// Its image is a qcow2 file over a raw base, made from this seed; `None` = raw.
    pub top: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub geometry: Geometry,
    pub stage_slots: u32,
    pub overlay_slots: u32,
    pub ram_blocks: u32,
    pub dirty_extents_max: u64,
    pub index_bytes_max: u64,
    pub origins: Vec<OriginPlan>,
    pub volumes: Vec<VolumePlan>,
    pub rates: Rates,
    /// Hosts that serve the volumes in turn, each with a cache of its own.
    pub hosts: usize,
    /// Writes of more than 8 KiB.
    pub large: bool,
    /// At the end all volumes are detached.
    pub detaches: bool,
}

impl VolumePlan {
    /// Some of its writes go to the origin past the log.
    pub fn goes_direct(&self) -> bool {
        self.switches || self.policy.is_direct()
    }
}

impl Plan {
    pub fn from_seed(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x91A7);
        let geometry = Geometry {
            chunk_blocks: rng.pick(&[8, 8, 12, 16]),
            segment_chunks: rng.range(4, 9) as u32,
            segments: rng.range(12, 41) as u32,
        };
        let mut plan = Plan {
            geometry,
            stage_slots: rng.range(6, 25) as u32,
            overlay_slots: rng.range(4, 17) as u32,
            ram_blocks: rng.pick(&[16, 64, 256]),
            dirty_extents_max: rng.pick(&[300, 1000, 100_000]),
            index_bytes_max: rng.pick(&[0, 3_000, 20_000, 1 << 20]),
            origins: Vec::new(),
            volumes: Vec::new(),
            rates: rates(&mut rng),
            hosts: 1,
            large: true,
            detaches: false,
        };
        plan.add(&mut rng, Policy::WriteBack, DestageMode::Atomic);
        for (policy, mode) in [
            (Policy::WriteBack, DestageMode::InPlace),
            (Policy::Uncached, DestageMode::Atomic),
            (Policy::WriteBack, DestageMode::Atomic),
        ] {
            if rng.chance(450) {
                plan.add(&mut rng, policy, mode);
            }
        }
        if rng.chance(600) {
            plan.add(&mut rng, Policy::Ephemeral, DestageMode::Atomic);
            if rng.chance(600) {
                let mut clone = plan.volumes[plan.volumes.len() - 1].clone();
                clone.name = format!("v{}", plan.volumes.len());
                plan.volumes.push(clone);
            }
        }
        if rng.chance(450) {
            plan.add(&mut rng, Policy::WriteThrough, DestageMode::Atomic);
        }
        if rng.chance(600) {
            let first = rng.pick(&[Policy::WriteBack, Policy::WriteThrough, Policy::Uncached]);
            let mode = rng.pick(&[DestageMode::Atomic, DestageMode::InPlace]);
            plan.add(&mut rng, first, mode);
            plan.volumes.last_mut().expect("just added").switches = true;
        }
        plan.limit_requests();
        plan
    }

    /// Whether the image of an origin may be one that allocates: one volume writes it, with a place
    /// for its journal, and it has one file all the time.
    pub fn may_allocate(&self, origin: usize) -> bool {
        let becomes = self.rates.image_shrunk + self.rates.image_replaced;
        let mut mine = self.volumes.iter().filter(|it| it.origin == origin);
        let alone = mine.next().filter(|_| mine.next().is_none());
        alone.is_some_and(|it| {
            let writes = it.policy != Policy::Ephemeral && it.journal_possible;
            // Only by way of its log does it become larger.
            let resizes = it.resizes && it.goes_direct();
            writes && !resizes && !it.commits && becomes == 0
        })
    }

    /// Whether the image of an origin has other files to move to.
    pub fn moves(&self, origin: usize) -> bool {
        let mut mine = self.volumes.iter().filter(|it| it.origin == origin);
        self.origins[origin].top.is_some() && mine.any(|it| it.moves)
    }

    /// Fits the writes of the guests to the log; to be called after the plan was changed.
    pub fn limit_requests(&mut self) {
        let writers = self
            .volumes
            .iter()
            .filter(|volume| volume.switches || !volume.policy.is_direct());
        let geometry = self.geometry;
        let usable = u64::from(geometry.segments - SEGMENTS_RESERVED);
        let chunks = usable * u64::from(geometry.segment_chunks - 1);
        let capacity = chunks * u64::from(geometry.chunk_blocks - 2) * 3 / 4;
        let writers: Vec<_> = writers.collect();
        let reserved = |it: &&VolumePlan| it.tuning.share.min_bytes.div_ceil(4096);
        let reserved: u64 = writers.iter().copied().map(|it| reserved(&it)).sum();
        // What a volume of no weight has.
        let rest = (capacity / 2).saturating_sub(reserved);
        let share = (rest / 2 / writers.len().max(1) as u64).min(capacity / 8);
        // Unaligned, a write touches one block more than it has.
        let sectors = (share.max(4) - 2) * engine::types::BLOCK_SECTORS;
        for volume in &mut self.volumes {
            let most = if self.large { REQUEST_SECTORS_MAX } else { 16 };
            volume.request_sectors_max = sectors.min(most);
        }
    }

    fn add(&mut self, rng: &mut Rng, policy: Policy, destage: DestageMode) {
        let name = format!("v{}", self.volumes.len());
        let odd = if rng.chance(300) { rng.below(8) } else { 0 };
        let sectors = rng.range(1, 5) * 2048 + odd;
        let tag = rng.chance(700).then_some(1000 + self.origins.len() as u64);
        self.origins.push(OriginPlan {
            sectors,
            tag,
            top: None,
        });
        let log_bytes = self.geometry.log_bytes();
        let tuning = Tuning {
            write_cache: rng.chance(850),
            destage_after_ms: rng.pick(&[Some(20), Some(200), Some(2000), Some(600_000), None]),
            destage,
            flow: flow(rng),
            dirty_limit_bytes: rng.pick(&[log_bytes / 8, log_bytes / 4, log_bytes]),
            origin_queue_depth: rng.pick(&[1, 4, 32]),
            admission: rng.pick(&[Admission::Reuse, Admission::All]),
            overlay_timeout_ms: rng.pick(&[1, 100, 5000]),
            overlay_ram_bytes: overlay_ram(self.overlay_slots, self.volumes.len()),
            reset_on: match self.overlay_slots % 2 {
                0 => ResetOn::Command,
                _ => ResetOn::Disconnect,
            },
            origin_timeout_ms: None,
            share: share(rng, log_bytes),
            group_members: 0,
        };
        self.volumes.push(VolumePlan {
            name,
            policy,
            switches: false,
            origin: self.origins.len() - 1,
            journal_possible: destage == DestageMode::Atomic || rng.chance(500),
            tuning,
            depth: rng.pick(&[1, 2, 4, 8, 16]),
            request_sectors_max: REQUEST_SECTORS_MAX,
            group: String::new(),
            reader: false,
            zeroes: false,
            spares: Spares::default(),
            commits: false,
            resizes: false,
            sleeps: false,
            rests: false,
            moves: false,
            cuts: false,
        });
    }

    /// The configuration of a daemon that starts on this host.
    pub fn config(&self, machine: Uuid, boot: Uuid, hash_seed: u64) -> Config {
        Config {
            machine,
            boot,
            host_name: "host-a".to_owned(),
            stage_slots: self.stage_slots,
            overlay_slots: self.overlay_slots,
            ram_blocks: self.ram_blocks,
            scratch_bytes: Config::SCRATCH_BYTES_MIN,
            dirty_extents_max: self.dirty_extents_max,
            index_bytes_max: self.index_bytes_max,
            map_bytes_max: MAP_BYTES_MAX,
            hash_seed,
        }
    }
}

/// Four of the largest reserves are less than half of what may be dirty.
fn share(rng: &mut Rng, log_bytes: u64) -> Share {
    Share {
        min_bytes: rng.pick(&[0, 0, 4096, log_bytes / 64]),
        weight: rng.pick(&[1, 100, 100, 300, 10_000]),
    }
}

/// Low enough that guests are slowed often.
fn flow(rng: &mut Rng) -> FlowLimits {
    FlowLimits {
        dirty_writes: rng.pick(&[None, None, Some(20), Some(200)]),
        dirty_bytes_percent: rng.pick(&[10, 50, 75, 100]),
        destage_time_ms: rng.pick(&[50, 1_000, 300_000]),
    }
}

fn rates(rng: &mut Rng) -> Rates {
    let errors = rng.pick(&[0, 0, 2, 10]);
    Rates {
        cache_write_error: errors,
        cache_sync_error: rng.pick(&[0, 0, 10, 50]),
        checkpoint_error: 0,
        origin_trouble: rng.pick(&[0, 2, 6]),
        crash_in_recovery: 350,
        recovery_error: if errors > 0 { 2 } else { 0 },
        disconnect: 2,
        origin_check: 10,
        absent: 60,
        rot: rng.pick(&[0, 20, 100]),
        cache_dies: 0,
        new_image: 300,
        cache_read_error: 0,
        stale: false,
        garbage: false,
        all_full: false,
        clock_jumps: 0,
        foreign: 0,
        image_moved: 0,
        image_shrunk: 0,
        base_written: 0,
        image_replaced: 0,
        cache_gone: 0,
        origin_slow: 1,
        cache_slow: 1,
        burst_ns: 0,
    }
}

/// RAM of one overlay: all there is, a part of it, or none, so that it spills from its first write.
/// Not drawn, so that the seeds of scenarios stay what they were.
fn overlay_ram(slots: u32, volume: usize) -> u64 {
    [256 << 20, 64 << 10, 0][(slots as usize + volume) % 3]
}
