//! The gates that the audit names and the marks are counted in: families of runs of the simulator.
//!
//! Always true: what a gate says follows from a seed. Deliberately absent: which rule it is for;
//! [`rules`] has that.

// The audit needs more of it than the marks do.
#![allow(dead_code)]

pub mod rules;

use engine::event::Admission;
use engine::types::{DestageMode, Policy};
use sim::host::Ending;
use sim::plan::Plan;
use sim::scenario::{
    bad_checkpoints, clean_blocks, commits, find, group, grows, last_copies, moves, own_blocks,
    resizes, rests,
};
use sim::swarm::Case;
use sim::{Options, Sabotage, handed, pair, rings, run};

/// Runs that lie beside each other to say whether any write was held.
const HELD_SEEDS: u64 = 4;

pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

macro_rules! gates {
    ($($(#[doc = $what:literal])+ $gate:ident,)*) => {
        /// What notices.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Gate {
            $($(#[doc = $what])+ $gate,)*
            /// A bug of the past, by its name.
            Scenario(&'static str),
        }

        impl Gate {
            /// All but the scenarios.
            pub const ALL: &[Gate] = &[$(Gate::$gate,)*];

            /// The lines about it.
            pub fn what(self) -> &'static str {
                match self {
                    $(Gate::$gate => concat!($($what),+),)*
                    Gate::Scenario(name) => find(name).expect("a scenario of this name").broke,
                }
            }
        }
    };
}

gates! {
    /// Volumes of all policies, as a seed draws them.
    Seeds,
    /// Volumes that change their policy again and again.
    Switches,
    /// One write-through volume, small and under load.
    WriteThrough,
    /// The cache device dies for minutes.
    Dying,
    /// Disks of one machine, in a group.
    Group,
    /// Readers of a base image on a device that damages clean blocks.
    CleanBlocks,
    /// Clean blocks of volumes that their guests write.
    OwnBlocks,
    /// The device loses writes of the log silently: recovery must report the loss.
    LostWrites,
    /// Flow control must hold a write.
    HeldWrites,
    /// A guest, and a daemon that is killed between two stores to shared memory.
    Rings,
    /// Starts that serve a request or two, each ended by a power loss.
    ShortLives,
    /// The smallest log under large writes, with failing syncs, over kills and power losses.
    SmallLog,
    /// As SmallLog with writes that are larger than the share of their volume: taken in parts, so
    /// that a crash, or an origin, may have the first parts of the last one.
    LargeWrites,
    /// Origins that fail again and again under write-back volumes.
    Troubled,
    /// Readers of a base image over kills, without any checksum of clean blocks.
    NoSums,
    /// The only copies of dirty data are damaged.
    LastCopies,
    /// Checkpoints seldom come through, beside clean blocks that take every segment.
    BadCheckpoints,
    /// A write-through volume that is read, over orderly stops and power losses after a few
    /// requests.
    ShortReads,
    /// A volume that changes its policy, over kills and power losses after a few requests.
    ShortSwitches,
    /// Writes in place to an origin that is much faster than the log, over power losses.
    EarlyDestages,
    /// Overlays that are committed to their images, over kills.
    Commits,
    /// Seeds that draw limits and faults at random, as `tenuto sim` does.
    Swarm,
    /// Overlays that fill their cache, and have next to no stage.
    SmallOverlay,
    /// Volumes that become larger and smaller.
    Resizes,
    /// Volumes on qcow2 files that allocate and become larger.
    Grows,
    /// Images that are brought to rest.
    Rests,
    /// Images that move to other files below them, and disks on them that become smaller.
    Moves,
    /// Volumes on qcow2 files that allocate, over kills and power losses.
    Tops,
    /// Write-through volumes on qcow2 files that allocate, of short requests, whose origins fail
    /// again and again.
    DirectTops,
    /// A volume with a replica on another host, over breaks of the link, kills and losses of power
    /// on both sides, up to a takeover.
    Pairs,
    /// With two replicas, and several owners.
    TwoReplicas,
    /// With replicas, and an owner whose cache device rots or fails.
    FailingOwner,
    /// A volume that goes from host to host and back, and is read from the host that had it before,
    /// over kills and losses of power on both sides.
    HandOvers,
}

use Gate::{
    BadCheckpoints, CleanBlocks, Commits, DirectTops, Dying, EarlyDestages, FailingOwner, Group,
    Grows, HandOvers, HeldWrites, LargeWrites, LastCopies, LostWrites, Moves, NoSums, OwnBlocks,
    Pairs, Resizes, Rests, Rings, Scenario, Seeds, ShortLives, ShortReads, ShortSwitches, SmallLog,
    SmallOverlay, Swarm, Switches, Tops, Troubled, TwoReplicas, WriteThrough,
};

/// A plan with all that write bent towards a life past the log.
fn bent(seed: u64, bend: impl Fn(&mut Plan)) -> Options {
    let mut plan = Plan::from_seed(seed);
    bend(&mut plan);
    plan.limit_requests();
    Options {
        operations: 1500,
        plan: Some(plan),
        ..Options::from_seed(seed)
    }
}

fn tops(plan: &mut Plan) {
    only_write_back(plan);
    for (at, volume) in plan.volumes.iter_mut().enumerate() {
        let modes = [DestageMode::Atomic, DestageMode::InPlace];
        (volume.tuning.destage, volume.journal_possible) = (modes[at % 2], true);
        (volume.resizes, volume.commits, volume.switches) = (false, false, at > 1);
    }
    give_tops(plan);
}

fn direct_tops(plan: &mut Plan) {
    plan.volumes.retain(|it| it.policy != Policy::Ephemeral);
    (plan.rates.image_shrunk, plan.rates.image_replaced) = (0, 0);
    plan.rates.origin_trouble = 60;
    plan.ram_blocks = 512;
    for volume in &mut plan.volumes {
        volume.policy = Policy::WriteThrough;
        (volume.switches, volume.resizes, volume.commits) = (false, false, false);
        (volume.rests, volume.journal_possible) = (false, true);
        (volume.depth, volume.request_sectors_max) = (64, 12);
    }
    give_tops(plan);
}

/// Each image that may allocate is a qcow2 file of its own kind.
fn give_tops(plan: &mut Plan) {
    for at in 0..plan.origins.len() {
        let file = 1 + at as u64 * 7919 + plan.origins[at].sectors;
        plan.origins[at].top = plan.may_allocate(at).then_some(file);
    }
}

fn tops_end() -> Vec<Ending> {
    let (kill, power) = (Ending::Kill, Ending::PowerLoss);
    vec![power, kill, power, kill, power, power]
}

fn switches(plan: &mut Plan) {
    for volume in &mut plan.volumes {
        volume.switches = volume.policy != Policy::Ephemeral;
    }
}

fn write_through(plan: &mut Plan) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    plan.volumes[0].policy = Policy::WriteThrough;
    plan.volumes[0].depth = 16;
    plan.origins[0].sectors = 512;
    plan.ram_blocks = 256;
}

/// Lives that end by these in turn.
fn ending(options: Options, endings: Vec<Ending>, operations: u64) -> Options {
    Options {
        restarts: endings.len() as u32,
        endings,
        operations,
        ..options
    }
}

fn only_write_back(plan: &mut Plan) {
    plan.volumes
        .retain(|it| it.policy == Policy::WriteBack && !it.switches);
}

fn small_log(plan: &mut Plan) {
    only_write_back(plan);
    plan.geometry.segments = 12;
    plan.geometry.segment_chunks = 4;
    plan.geometry.chunk_blocks = 8;
    // More, and the device counts as failed: then origins are written past the log.
    plan.rates.cache_sync_error = 20;
    plan.rates.origin_trouble = 0;
    for volume in &mut plan.volumes {
        volume.depth = 16;
        volume.tuning.destage_after_ms = Some(20);
    }
}

fn small_logs(seed: u64, request_sectors_max: u64) -> Options {
    let endings = vec![Ending::PowerLoss, Ending::Kill, Ending::PowerLoss];
    let mut options = ending(bent(seed, small_log), endings, 2000);
    let plan = options.plan.as_mut().expect("it has one");
    for volume in &mut plan.volumes {
        volume.request_sectors_max = request_sectors_max;
    }
    options
}

fn small_overlay(plan: &mut Plan) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    plan.volumes[0].policy = Policy::Ephemeral;
    plan.volumes[0].depth = 16;
    plan.volumes[0].tuning.overlay_timeout_ms = 1;
    plan.volumes[0].tuning.overlay_ram_bytes = 256 << 20;
    plan.origins[0].sectors = 5 * 2048;
    plan.geometry.segments = 12;
    plan.geometry.chunk_blocks = 8;
    plan.overlay_slots = 4;
}

/// What was not flushed in the second of two lives may be at the image, whose time of change is
/// still that of the first.
fn short_reads(seed: u64) -> Options {
    let orderly = Ending::Orderly { power_off: false };
    let endings = [orderly, Ending::PowerLoss].repeat(20);
    let mut options = ending(bent(seed, write_through), endings, 800);
    let plan = options.plan.as_mut().expect("it has one");
    plan.origins[0].sectors = [64, 128, 256][(seed % 3) as usize];
    plan.ram_blocks = 16;
    plan.index_bytes_max = 1 << 20;
    let volume = &mut plan.volumes[0];
    volume.reader = true;
    volume.depth = 4;
    volume.spares.fua = true;
    volume.spares.commands = true;
    volume.tuning.write_cache = true;
    volume.tuning.admission = Admission::All;
    plan.rates.rot = 0;
    plan.rates.absent = 0;
    plan.rates.crash_in_recovery = 0;
    options
}

fn short_switches(seed: u64) -> Options {
    let endings = [Ending::Kill, Ending::PowerLoss].repeat(20);
    let mut options = ending(bent(seed, write_through), endings, 1000);
    let plan = options.plan.as_mut().expect("it has one");
    let volume = &mut plan.volumes[0];
    volume.switches = true;
    volume.depth = 4;
    volume.tuning.write_cache = true;
    volume.tuning.destage_after_ms = None;
    plan.rates.absent = 0;
    plan.rates.crash_in_recovery = 0;
    options
}

/// What is not in the log yet is in the middle of its way to the origin when power fails.
fn early_destages(plan: &mut Plan) {
    plan.volumes.truncate(1);
    plan.origins.truncate(1);
    let volume = &mut plan.volumes[0];
    volume.policy = Policy::WriteBack;
    volume.switches = false;
    volume.journal_possible = false;
    volume.depth = 8;
    volume.tuning.destage = DestageMode::InPlace;
    volume.tuning.destage_after_ms = Some(1);
    volume.tuning.write_cache = true;
    volume.tuning.origin_queue_depth = 1;
    plan.rates.cache_slow = 100;
    plan.rates.origin_trouble = 0;
    plan.rates.crash_in_recovery = 0;
    plan.rates.absent = 0;
}

fn troubled(plan: &mut Plan) {
    only_write_back(plan);
    plan.rates.origin_trouble = 60;
    plan.rates.origin_check = 60;
    for volume in &mut plan.volumes {
        volume.tuning.destage_after_ms = Some(20);
    }
}

fn no_sums(seed: u64) -> Options {
    let orderly = Ending::Orderly { power_off: false };
    let endings = vec![Ending::Kill, Ending::KillInMemory, orderly, Ending::Kill];
    let mut options = ending(clean_blocks(seed), endings, 3000);
    options.sabotage = Some(Sabotage::NoLineSums);
    let rates = &mut options.plan.as_mut().expect("it has one").rates;
    (rates.rot, rates.cache_write_error, rates.cache_sync_error) = (0, 0, 0);
    (rates.crash_in_recovery, rates.recovery_error) = (0, 0);
    options
}

fn dying(plan: &mut Plan) {
    switches(plan);
    plan.rates.cache_dies = 10;
    for volume in &mut plan.volumes {
        volume.tuning.destage = DestageMode::Atomic;
        volume.journal_possible = true;
    }
}

impl Gate {
    pub fn options(self, seed: u64) -> Options {
        match self {
            Seeds | HeldWrites | Rings | Pairs | TwoReplicas | FailingOwner | HandOvers => {
                Options::from_seed(seed)
            }
            LostWrites => Options {
                sabotage: Some(Sabotage::LostLogWrite),
                ..Options::from_seed(seed)
            },
            Switches => bent(seed, switches),
            WriteThrough => bent(seed, write_through),
            Dying => bent(seed, dying),
            Group => group(seed),
            CleanBlocks => clean_blocks(seed),
            OwnBlocks => own_blocks(seed),
            Tops => ending(bent(seed, tops), tops_end(), 400),
            DirectTops => ending(bent(seed, direct_tops), tops_end(), 1000),
            ShortLives => ending(bent(seed, only_write_back), vec![Ending::PowerLoss; 6], 14),
            // No write is larger than the share of its volume, so none is taken in parts.
            SmallLog => small_logs(seed, 8),
            LargeWrites => Options {
                tearing: true,
                ..small_logs(seed, 256)
            },
            Troubled => ending(bent(seed, troubled), vec![Ending::PowerLoss; 4], 1500),
            NoSums => no_sums(seed),
            EarlyDestages => {
                let endings = vec![Ending::PowerLoss; 20];
                ending(bent(seed, early_destages), endings, 400)
            }
            Commits => commits(seed),
            Resizes => resizes(seed),
            Grows => grows(seed),
            Rests => rests(seed),
            Moves => moves(seed),
            LastCopies => last_copies(seed),
            ShortReads => short_reads(seed),
            ShortSwitches => short_switches(seed),
            BadCheckpoints => bad_checkpoints(seed),
            Swarm => Case::from_seed(seed).options(),
            SmallOverlay => {
                let endings = vec![Ending::KillInMemory; 4];
                ending(bent(seed, small_overlay), endings, 2000)
            }
            Scenario(name) => find(name).expect("a scenario of this name").options(seed),
        }
    }

    /// What it has to say about a seed.
    pub fn judge(self, seed: u64) -> Result<(), String> {
        if self == HeldWrites {
            let runs = (0..HELD_SEEDS).map(|at| run(&self.options(seed * HELD_SEEDS + at)));
            let held = runs.flatten().map(|it| it.counters.held_writes);
            return match held.sum::<u64>() {
                0 => Err(format!("no write was held in {HELD_SEEDS} runs")),
                _ => Ok(()),
            };
        }
        if self == Rings {
            return rings::run(&rings::Options::from_seed(seed)).map(|_| ());
        }
        if self == Pairs {
            return pair::run(&pair::Options::from_seed(seed)).map(|_| ());
        }
        if self == TwoReplicas {
            return pair::run(&pair::Options::with_two(seed)).map(|_| ());
        }
        if self == FailingOwner {
            return pair::run(&pair::Options::with_failing(seed)).map(|_| ());
        }
        if self == HandOvers {
            return handed::run(&handed::Options::from_seed(seed)).map(|_| ());
        }
        let outcome = run(&Options {
            verbose: number("TENUTO_SIM_VERBOSE").is_some(),
            ..self.options(seed)
        });
        match outcome {
            Ok(_) => Ok(()),
            Err(failure) if self == LostWrites && is_told(&failure.message) => Ok(()),
            Err(failure) => Err(failure.message),
        }
    }
}

/// What is missing was missed by the engine, before a guest could see it.
fn is_told(message: &str) -> bool {
    ["recovery claims damage"]
        .iter()
        .any(|it| message.contains(it))
}
