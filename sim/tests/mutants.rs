//! The audit of the gates: each rule that the product's own code can break on demand is broken, and
//! the gate that is named for it here must notice within so many seeds.
//!
//! `TENUTO_BUGS=4` breaks every fourth rule; `TENUTO_BUG=SkipLogSync` tries all gates on this one,
//! with `TENUTO_SIM_SEEDS` seeds each. Always true: the seed that notices passes while all rules are
//! kept; each rule has a gate or stands among the survivors. Built with the feature `adversary` alone.

use engine::adversary::{self as of_engine, Bug};
use engine::types::{DestageMode, Policy};
use sim::host::Ending;
use sim::plan::Plan;
use sim::scenario::{clean_blocks, find, group, own_blocks};
use sim::{Options, Sabotage, rings, run};
use std::collections::BTreeMap;
use std::time::Instant;
use vring::adversary::{self as of_rings, Bug as RingBug};

/// Seeds within which a gate notices, where nothing else is said.
const SEEDS_MAX: u64 = 24;
/// Seeds that run side by side, on the two cores of the machines that test.
const THREADS: u64 = 2;
/// Characters of a message that are printed.
const WORDS_MAX: usize = 140;
/// Runs that lie beside each other to say whether any write was held.
const HELD_SEEDS: u64 = 4;

/// Rules whose breach no gate notices yet, and why.
const SURVIVORS: &[(Bug, &str)] = &[
    (
        Bug::SkipLedgerSyncAtRelease,
        "200 seeds of dying devices: another sync comes in time",
    ),
    (Bug::ForgetFooter, "not noticed yet"),
    (Bug::DieOfUnfinished, "not noticed yet"),
    (Bug::LetGoFirstChunk, "not noticed yet"),
    (Bug::BelieveKilledLayers, "not noticed yet"),
    (Bug::IgnoreFillLife, "not noticed yet"),
    (Bug::BelieveAfterFailedSync, "not noticed yet"),
    (Bug::ForgetPastLog, "not noticed yet"),
    (Bug::StartWithoutSync, "not noticed yet"),
    (Bug::MoveZeroesOldestFirst, "not noticed yet"),
    (Bug::TagParts, "not noticed yet"),
];

/// What notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gate {
    /// Volumes of all policies, as a seed draws them.
    Seeds,
    /// All of them change their policy again and again.
    Switches,
    /// One write-through volume, small and under load.
    WriteThrough,
    /// The cache device dies for minutes.
    Dying,
    /// The disks of one machine.
    Group,
    /// Readers of a base image on a device that rots.
    CleanBlocks,
    /// Clean blocks of volumes that are written.
    OwnBlocks,
    /// A bug of the past, by its name.
    Scenario(&'static str),
    /// The device loses writes of the log and says nothing: what is missing must be told.
    LostWrites,
    /// Some guest is slowed.
    HeldWrites,
    /// A guest and a daemon that is killed between two stores.
    Rings,
    /// Lives of a request or two, each ended by a power loss.
    ShortLives,
    /// The least of logs under large writes, with syncs that fail, over kills and power losses.
    SmallLog,
    /// Origins that fail again and again under volumes that only destage.
    Troubled,
    /// Readers of a base image over kills, without any checksum of clean blocks.
    NoSums,
    /// Overlays that fill their cache, and have next to no stage.
    SmallOverlay,
}

use Gate::{
    CleanBlocks, Dying, Group, HeldWrites, LostWrites, NoSums, OwnBlocks, Rings, Scenario, Seeds,
    ShortLives, SmallLog, SmallOverlay, Switches, Troubled, WriteThrough,
};

/// A rule that is broken on demand.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Engine(Bug),
    Rings(RingBug),
}

impl Rule {
    fn all() -> impl Iterator<Item = Rule> {
        let engine = Bug::ALL.iter().map(|bug| Rule::Engine(*bug));
        engine.chain(RingBug::ALL.iter().map(|bug| Rule::Rings(*bug)))
    }

    fn name(self) -> String {
        match self {
            Rule::Engine(bug) => format!("{bug:?}"),
            Rule::Rings(bug) => format!("{bug:?}"),
        }
    }

    /// Its line, as the place where it is broken has it.
    fn what(self) -> &'static str {
        match self {
            Rule::Engine(bug) => bug.what().trim(),
            Rule::Rings(bug) => bug.what().trim(),
        }
    }

    fn set(self, broken: bool) {
        match self {
            Rule::Engine(bug) => of_engine::break_rule(broken.then_some(bug)),
            Rule::Rings(bug) => of_rings::break_rule(broken.then_some(bug)),
        }
    }

    fn survives(self) -> bool {
        SURVIVORS
            .iter()
            .any(|(bug, _)| matches!(self, Rule::Engine(it) if it == *bug))
    }

    /// What notices, and within how many seeds.
    fn gate(self) -> (Gate, u64) {
        match self {
            Rule::Rings(_) => (Rings, SEEDS_MAX),
            Rule::Engine(bug) => gate_of(bug),
        }
    }
}

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
    plan.rates.cache_sync_error = 200;
    plan.rates.origin_trouble = 0;
    for volume in &mut plan.volumes {
        volume.depth = 16;
        volume.tuning.destage_after_ms = Some(20);
    }
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
    const ALL: &[Gate] = &[
        Seeds,
        Switches,
        WriteThrough,
        Dying,
        Group,
        CleanBlocks,
        OwnBlocks,
        LostWrites,
        HeldWrites,
        Rings,
        ShortLives,
        SmallLog,
        Troubled,
        NoSums,
        SmallOverlay,
    ];

    fn options(self, seed: u64) -> Options {
        match self {
            Seeds | HeldWrites | Rings => Options::from_seed(seed),
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
            ShortLives => ending(bent(seed, only_write_back), vec![Ending::PowerLoss; 6], 14),
            SmallLog => {
                let endings = vec![Ending::PowerLoss, Ending::Kill, Ending::PowerLoss];
                let mut options = ending(bent(seed, small_log), endings, 2000);
                let plan = options.plan.as_mut().expect("it has one");
                // No write is larger than the share of its volume, so none is taken in parts.
                plan.volumes
                    .iter_mut()
                    .for_each(|it| it.request_sectors_max = 8);
                options
            }
            Troubled => ending(bent(seed, troubled), vec![Ending::PowerLoss; 4], 1500),
            NoSums => no_sums(seed),
            SmallOverlay => {
                let endings = vec![Ending::KillInMemory; 4];
                ending(bent(seed, small_overlay), endings, 2000)
            }
            Scenario(name) => find(name).expect("a scenario of this name").options(seed),
        }
    }

    /// What it has to say about a seed.
    fn judge(self, seed: u64) -> Result<(), String> {
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

/// Its answers to seeds while all rules are kept, each asked for once.
#[derive(Default)]
struct Honest(BTreeMap<(Gate, u64), bool>);

impl Honest {
    fn passes(&mut self, gate: Gate, seed: u64) -> bool {
        *self
            .0
            .entry((gate, seed))
            .or_insert_with(|| gate.judge(seed).is_ok())
    }
}

/// The first seed below `seeds` at which a gate notices a broken rule, and its words.
fn caught(honest: &mut Honest, rule: Rule, gate: Gate, seeds: u64) -> Option<(u64, String)> {
    for first in (0..seeds).step_by(THREADS as usize) {
        rule.set(true);
        let batch: Vec<_> = std::thread::scope(|scope| {
            let threads = (first..seeds.min(first + THREADS))
                .map(|seed| scope.spawn(move || (seed, gate.judge(seed))));
            let threads: Vec<_> = threads.collect();
            let results = threads.into_iter().map(|it| it.join().expect("a run ends"));
            results.collect()
        });
        rule.set(false);
        for (seed, outcome) in batch {
            if let Err(words) = outcome
                && honest.passes(gate, seed)
            {
                return Some((seed, words));
            }
        }
    }
    None
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// All gates on one rule.
fn explore(name: &str) {
    let mut honest = Honest::default();
    let seeds = number("TENUTO_SIM_SEEDS").unwrap_or(SEEDS_MAX);
    let scenarios = sim::scenario::ALL.iter().map(|it| Scenario(it.name));
    let gates: Vec<Gate> = Gate::ALL.iter().copied().chain(scenarios).collect();
    for rule in Rule::all().filter(|rule| rule.name() == name) {
        for gate in &gates {
            match caught(&mut honest, rule, *gate, seeds) {
                Some((seed, words)) => println!("{gate:?}, seed {seed}: {words}"),
                None => println!("{gate:?}: nothing within {seeds} seeds"),
            }
        }
    }
}

/// A row of the table in `docs/verification.md`.
fn row(rule: Rule, gate: Gate, seed: u64) -> String {
    let (of, broken) = rule
        .what()
        .split_once(": ")
        .expect("a rule of the design comes first");
    let gate = match gate {
        Scenario(name) => format!("scenario `{name}`"),
        other => format!("{other:?}"),
    };
    format!("| `{}` | {of} | {broken} | {gate} | {seed} |", rule.name())
}

#[test]
fn every_broken_rule_is_noticed_by_its_gate() {
    // A broken rule may end in an assert of the engine, which a run tells in its own words.
    std::panic::set_hook(Box::new(|_| {}));
    if let Ok(name) = std::env::var("TENUTO_BUG") {
        return explore(&name);
    }
    let part = number("TENUTO_BUGS").unwrap_or(1) as usize;
    let mut honest = Honest::default();
    let mut unnoticed = Vec::new();
    for rule in Rule::all().filter(|it| !it.survives()).step_by(part) {
        let (gate, seeds) = rule.gate();
        let began = Instant::now();
        let Some((seed, words)) = caught(&mut honest, rule, gate, seeds) else {
            println!("{} passes {seeds} seeds of {gate:?}", rule.name());
            unnoticed.push(rule.name());
            continue;
        };
        let words: String = words.chars().take(WORDS_MAX).collect();
        let took = began.elapsed();
        println!("{}\n    in {took:.1?}: {words}", row(rule, gate, seed));
    }
    for (bug, why) in SURVIVORS {
        println!("{bug:?} survives: {why}");
    }
    assert!(unnoticed.is_empty(), "nobody notices {unnoticed:?}");
}

#[test]
fn gates_that_only_the_audit_has_pass_while_all_rules_are_kept() {
    let seeds = number("TENUTO_SIM_SEEDS").map_or(20, |all| all.div_ceil(25));
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let mut failed = 0;
    for gate in [ShortLives, SmallLog, SmallOverlay, Troubled] {
        for seed in first..first + seeds {
            if let Err(words) = gate.judge(seed) {
                println!("{gate:?}, seed {seed}: {words}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 0, "seeds fail");
}

/// The gate of each rule, and the seeds within which it notices.
fn gate_of(bug: Bug) -> (Gate, u64) {
    let gate = match bug {
        Bug::SkipSwitchSync | Bug::KeepLayer => Switches,
        Bug::SkipDirectSync
        | Bug::IgnoreDirectFua
        | Bug::FillUnderWrite
        | Bug::WriteSideBySide
        | Bug::KeepOverwritten => WriteThrough,
        Bug::BelieveAfterFailedSync
        | Bug::AnswerBeforeRescue
        | Bug::ForgetPastLog
        | Bug::IgnoreLedger
        | Bug::SkipLedgerSyncAtRelease => Dying,
        Bug::SkipCheckpointSync => ShortLives,
        Bug::OverwriteCheckpoint
        | Bug::ReuseSegmentEarly
        | Bug::FreeBeforeDurable
        | Bug::OpenReserve
        | Bug::DieOfUnfinished => SmallLog,
        Bug::TakeFailedOriginSync => Troubled,
        Bug::KeepQuietAboutSync
        | Bug::CountOldSync
        | Bug::SyncAgainOnly
        | Bug::ForgetFooter
        | Bug::ReuseSlotEarly => Scenario("two-syncs-of-the-cache-and-one-fails"),
        Bug::DropLineSum | Bug::KeepRetiredLines | Bug::JudgeAtFirstRead => CleanBlocks,
        Bug::IgnoreFillLife => NoSums,
        Bug::ServeStaleBase
        | Bug::KeepOvertakenFill
        | Bug::KeepOvertakenBatch
        | Bug::KeepOrphans
        | Bug::BelieveKilledLayers => OwnBlocks,
        Bug::DropLogSum | Bug::IgnoreDurableUpto => LostWrites,
        Bug::AnnounceNoRun | Bug::ClearStageEarly => Scenario("a-kill-while-the-stage-is-renewed"),
        Bug::KeepSlotName => Scenario("a-kill-while-a-slot-changes-hands"),
        Bug::SerialForEachPiece => Scenario("a-write-over-the-end-of-a-chunk"),
        Bug::KeepUnfinished | Bug::LeaveInFooters => {
            Scenario("a-write-that-was-dropped-comes-back")
        }
        Bug::LetGoForUnfinished => Scenario("an-overlay-is-let-go-for-a-write-in-part"),
        Bug::NeverAnswerFull => SmallOverlay,
        Bug::BeginWithoutRoom => Scenario("a-half-staged-write-holds-the-log"),
        Bug::LetGoFirstChunk => Scenario("the-first-chunk-of-an-overlay-is-let-go"),
        Bug::MakeTableTwice => Scenario("a-journal-whose-table-waits-for-its-turn"),
        Bug::PassGateEarly | Bug::SealAlone => Group,
        Bug::StartWithoutSync => Scenario("a-kill-before-a-start-as-write-back"),
        Bug::MoveZeroesOldestFirst | Bug::MoveWithNewSerial => {
            Scenario("zeroes-of-one-record-and-a-write-between")
        }
        Bug::NeverSlow => HeldWrites,
        _ => Seeds,
    };
    let seeds = match bug {
        Bug::LetGoForUnfinished => 180,
        Bug::KeepOrphans => 120,
        _ => SEEDS_MAX,
    };
    (gate, seeds)
}
