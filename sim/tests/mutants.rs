//! The audit of the gates: each rule that the product's own code can break on demand is broken, and
//! the gate that is named for it here must notice within so many seeds.
//!
//! `TENUTO_BUGS=4` breaks every fourth rule; `TENUTO_BUG=SkipLogSync` tries all gates on this one,
//! or those with `TENUTO_GATE` in their names, with `TENUTO_SIM_SEEDS` seeds each. Always true: the
//! seed that notices passes while all rules are kept; each rule has a gate, or a unit test of the
//! engine that breaks it, or stands among the survivors; `docs/verification.md` says the same.
//! `TENUTO_RUN=SmallLog` with `TENUTO_SIM_FIRST` and `TENUTO_SIM_SEEDS` asks one gate while all
//! rules are kept. Built with the feature `adversary` alone.

mod adversary;

use adversary::{Gate, number};
use engine::adversary::{self as of_engine, Bug};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;
use vring::adversary::{self as of_rings, Bug as RingBug};

/// Seeds within which a gate notices, where nothing else is said.
const SEEDS_MAX: u64 = 60;
/// Seeds that run side by side, on the two cores of the machines that test.
const THREADS: u64 = 2;
/// Characters of a message that are printed.
const WORDS_MAX: usize = 140;

/// Rules whose breach no gate notices yet, and why.
const SURVIVORS: &[(Bug, &str)] = &[
    (
        Bug::SkipLedgerSyncAtFinish,
        "the checkpoint that forgets says `destaged` as well, an intact journal is applied once \
         more to no effect, and one that the next destage has written over is written anew from \
         the log; 100 seeds of each gate",
    ),
    (
        Bug::SkipLedgerSyncAtRelease,
        "a ledger that still says dirty costs a drain of nothing, no data; 200 seeds of Dying, \
         150 of Swarm",
    ),
    (
        Bug::ForgetFooter,
        "the records say the same, the segment is only not evacuated; 200 seeds of its scenario",
    ),
    (
        Bug::OpenReserve,
        "the second lock of a door: a write is admitted by `Log::has_room`, which leaves the \
         reserve out by itself, and only zeroes \
         pass without; 100 seeds of Swarm, 60 of LargeWrites",
    ),
    (
        Bug::DieOfUnfinished,
        "a write that has begun waits for slots of the stage only, and meanwhile a checkpoint \
         would have to free what it covers, and \
         all ready segments to be used; the log's own test \
         `nothing_is_freed_beside_a_write_that_is_not_whole` notices; 150 seeds of \
         Swarm, 60 each of SmallLog, LargeWrites and BadCheckpoints",
    ),
    (
        Bug::DieOfGivenUp,
        "as DieOfUnfinished, noticed by the same test; the next whole write ends it, and that \
         waits at the head of its queue; 94 seeds that gave up a write, of 300 with the plan of \
         its scenario",
    ),
    (
        Bug::IgnoreFillLife,
        "blocks of a base with one identity never change, own ones count by a name of the run \
         before only (`believed` in `engine/src/recover/fills.rs`), and what was overwritten fails \
         its checksum (`DropLineSum`); 100 seeds of Swarm, 60 of NoSums",
    ),
    (
        Bug::BelieveAfterFailedSync,
        "an image that is written past the log drops nothing here when its sync fails (`damage` in \
         `sim/src/faults.rs`), because its guest would read the loss; so the tier stays right",
    ),
];

/// Rules that a unit test of the engine breaks by itself, because no run has met them broken.
const OWN_TESTS: &[(Bug, &str)] = &[
    (
        Bug::ForgetPastLog,
        "a_flush_covers_what_a_life_past_a_dead_log_has_left_unsynced",
    ),
    (
        Bug::MoveZeroesOldestFirst,
        "zeroes_that_were_moved_cover_the_write_before_them_after_a_power_loss",
    ),
    (
        Bug::BelieveFailedRecovery,
        "what_a_failed_recovery_has_left_out_does_not_come_back_with_the_next_loss_of_power",
    ),
    (
        Bug::WriteOverSettled,
        "a_footer_that_alone_says_what_counts_is_not_written_over",
    ),
    (
        Bug::BelieveUnsyncedLedger,
        "a_ledger_is_durable_before_the_slot_before_it_is_written_over",
    ),
    (
        Bug::KeepOrphans,
        "blocks_of_a_layer_that_was_forgotten_are_not_found_under_its_number",
    ),
];

use Gate::{
    BadCheckpoints, CleanBlocks, Dying, EarlyDestages, Group, HeldWrites, LargeWrites, LostWrites,
    NoSums, OwnBlocks, Resizes, Rings, Scenario, Seeds, ShortLives, ShortReads, ShortSwitches,
    SmallLog, SmallOverlay, Swarm, Switches, Troubled, WriteThrough,
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

    /// The unit test of the engine that breaks it.
    fn own_test(self) -> Option<&'static str> {
        let own = |(bug, _): &&(Bug, &str)| matches!(self, Rule::Engine(it) if it == *bug);
        OWN_TESTS.iter().find(own).map(|(_, test)| *test)
    }

    /// What notices, and within how many seeds.
    fn gate(self) -> (Gate, Range<u64>) {
        match self {
            Rule::Rings(_) => (Rings, 0..SEEDS_MAX),
            Rule::Engine(bug) => gate_of(bug),
        }
    }
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

/// The first of these seeds at which a gate notices a broken rule, and its words.
fn caught(honest: &mut Honest, rule: Rule, gate: Gate, of: Range<u64>) -> Option<(u64, String)> {
    let seeds = of.end;
    for first in of.step_by(THREADS as usize) {
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

/// All gates on one rule.
fn explore(name: &str) {
    let mut honest = Honest::default();
    let seeds = number("TENUTO_SIM_SEEDS").unwrap_or(SEEDS_MAX);
    let scenarios = sim::scenario::ALL.iter().map(|it| Scenario(it.name));
    let gates: Vec<Gate> = Gate::ALL.iter().copied().chain(scenarios).collect();
    let wanted = std::env::var("TENUTO_GATE").unwrap_or_default();
    let is_wanted = |gate: &&Gate| format!("{gate:?}").contains(&wanted);
    for rule in Rule::all().filter(|rule| rule.name() == name) {
        for gate in gates.iter().filter(is_wanted) {
            match caught(&mut honest, rule, *gate, 0..seeds) {
                Some((seed, words)) => println!("{gate:?}, seed {seed}: {words}"),
                None => println!("{gate:?}: nothing within {seeds} seeds"),
            }
        }
    }
}

/// One gate on seeds, while all rules are kept.
fn alone(name: &str, first: u64) {
    let scenarios = sim::scenario::ALL.iter().map(|it| Scenario(it.name));
    let gates = Gate::ALL.iter().copied().chain(scenarios);
    for gate in gates.filter(|gate| format!("{gate:?}").contains(name)) {
        for seed in first..first + number("TENUTO_SIM_SEEDS").unwrap_or(1) {
            if let Err(words) = gate.judge(seed) {
                println!("{gate:?}, seed {seed}: {words}");
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
    let _alone = SWITCH.lock().unwrap_or_else(|it| it.into_inner());
    // A broken rule may end in an assert of the engine, which a run tells in its own words.
    std::panic::set_hook(Box::new(|_| {}));
    if let (Ok(gate), Some(first)) = (std::env::var("TENUTO_RUN"), number("TENUTO_SIM_FIRST")) {
        return alone(&gate, first);
    }
    if let Ok(name) = std::env::var("TENUTO_BUG") {
        return explore(&name);
    }
    let part = number("TENUTO_BUGS").unwrap_or(1) as usize;
    let mut honest = Honest::default();
    let mut unnoticed = Vec::new();
    let of_gates = Rule::all().filter(|it| !it.survives() && it.own_test().is_none());
    for rule in of_gates.step_by(part) {
        let (gate, seeds) = rule.gate();
        let began = Instant::now();
        let Some((seed, words)) = caught(&mut honest, rule, gate, seeds.clone()) else {
            println!("{} passes seeds {seeds:?} of {gate:?}", rule.name());
            unnoticed.push(rule.name());
            continue;
        };
        let words: String = words.chars().take(WORDS_MAX).collect();
        let took = began.elapsed();
        println!("{}\n    in {took:.1?}: {words}", row(rule, gate, seed));
    }
    for (bug, test) in OWN_TESTS {
        println!("{bug:?} is broken by {test}");
    }
    for (bug, why) in SURVIVORS {
        println!("{bug:?} survives: {why}");
    }
    assert!(unnoticed.is_empty(), "nobody notices {unnoticed:?}");
}

#[test]
fn the_document_lists_each_rule_with_its_gate_and_each_survivor_with_its_reason() {
    let text = include_str!("../../docs/verification.md");
    let mut noticed = 0;
    for rule in Rule::all() {
        let row = format!("| `{}` | ", rule.name());
        let lines: Vec<&str> = text.lines().filter(|it| it.starts_with(&row)).collect();
        assert_eq!(lines.len(), 1, "{}: one line", rule.name());
        let why = SURVIVORS
            .iter()
            .find(|(bug, _)| format!("{bug:?}") == rule.name());
        let end = match (why, rule.own_test()) {
            (Some((_, why)), _) => format!(" | {why} |"),
            (None, Some(test)) => format!(" | `{test}` |"),
            (None, None) => {
                noticed += 1;
                let row = self::row(rule, rule.gate().0, 0);
                row[..row.len() - "0 |".len()].to_owned()
            }
        };
        assert!(
            lines[0].contains(&end),
            "{}: {}\n{end}",
            rule.name(),
            lines[0]
        );
    }
    let count = format!("{noticed} rules and the first\nseed that noticed each");
    assert!(text.contains(&count), "{count}");
}

#[test]
fn each_rule_that_a_unit_test_notices_is_broken_there() {
    let text = include_str!("../../engine/src/core/tests/broken.rs");
    for (bug, test) in OWN_TESTS {
        let (_, body) = text
            .split_once(&format!("fn {test}() {{"))
            .unwrap_or_else(|| panic!("there is no {test}"));
        let body = body.split_once('}').expect("it ends").0;
        // However its lines are broken.
        let body: String = body.split_whitespace().collect();
        let broken = format!("notices(Bug::{bug:?},");
        assert!(body.contains(&broken), "{test} does not break {bug:?}");
    }
}

/// The switch is one for the process, so one test at a time has it.
static SWITCH: Mutex<()> = Mutex::new(());

#[test]
fn gates_that_only_the_audit_has_pass_while_all_rules_are_kept() {
    let _alone = SWITCH.lock().unwrap_or_else(|it| it.into_inner());
    let seeds = number("TENUTO_SIM_SEEDS").map_or(20, |all| all.div_ceil(25));
    let first = number("TENUTO_SIM_FIRST").unwrap_or(0);
    let mut failed = 0;
    for gate in [
        ShortLives,
        SmallLog,
        LargeWrites,
        SmallOverlay,
        Troubled,
        EarlyDestages,
    ] {
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
fn gate_of(bug: Bug) -> (Gate, Range<u64>) {
    let gate = match bug {
        Bug::SkipSwitchSync | Bug::KeepLayer => Switches,
        Bug::SkipDirectSync
        | Bug::IgnoreDirectFua
        | Bug::FillUnderWrite
        | Bug::WriteSideBySide
        | Bug::KeepOverwritten => WriteThrough,
        Bug::BelieveAfterFailedSync | Bug::AnswerBeforeRescue | Bug::IgnoreLedger => Dying,
        Bug::SkipCheckpointSync | Bug::DropTailSum => ShortLives,
        Bug::OverwriteCheckpoint
        | Bug::FreeBeforeDurable
        | Bug::OpenReserve
        | Bug::DieOfUnfinished => SmallLog,
        Bug::TagParts => LargeWrites,
        Bug::TakeFailedOriginSync => Troubled,
        Bug::WriteOverLate => EarlyDestages,
        Bug::KeepQuietAboutSync
        | Bug::CountOldSync
        | Bug::SyncAgainOnly
        | Bug::ForgetFooter
        | Bug::ReuseSlotEarly => Scenario("two-syncs-of-the-cache-and-one-fails"),
        Bug::DropLineSum | Bug::KeepRetiredLines => CleanBlocks,
        Bug::IgnoreFillLife => NoSums,
        Bug::ServeStaleBase | Bug::KeepOvertakenFill | Bug::KeepOvertakenBatch => OwnBlocks,
        Bug::DropLogSum | Bug::IgnoreDurableUpto => LostWrites,
        Bug::AnnounceNoRun | Bug::ClearStageEarly => Scenario("a-kill-while-the-stage-is-renewed"),
        Bug::ForgetLostStage => Scenario("the-stage-is-gone-and-the-host-is-not"),
        Bug::KeepSlotName => Scenario("a-kill-while-a-slot-changes-hands"),
        Bug::SerialForEachPiece => Scenario("a-write-over-the-end-of-a-chunk"),
        Bug::KeepUnfinished | Bug::LeaveInFooters => {
            Scenario("a-write-that-was-dropped-comes-back")
        }
        Bug::LetGoForUnfinished => Scenario("an-overlay-is-let-go-for-a-write-in-part"),
        Bug::NeverAnswerFull => SmallOverlay,
        Bug::MixRuns => Scenario("a-run-that-leaves-only-its-second-record"),
        Bug::BeginWithoutRoom => Scenario("a-half-staged-write-holds-the-log"),
        Bug::LetGoFirstChunk => SmallOverlay,
        Bug::MakeTableTwice => Scenario("a-journal-whose-table-waits-for-its-turn"),
        Bug::PassGateEarly | Bug::SealAlone => Group,
        Bug::PassGateUnsynced => Scenario("a-disk-of-a-group-hangs-in-the-sync-of-its-journal"),
        Bug::KeepCutBlock | Bug::ShrinkDirty => Resizes,
        Bug::LayOverAny | Bug::ReplayToAny | Bug::LayOverAnyBase | Bug::KeepAfterLoss => {
            Scenario("an-image-is-replaced-between-two-lives")
        }
        Bug::ResetUnderSleeper => Scenario("a-guest-only-slept"),
        Bug::TrustGoneCache | Bug::KeepLossToItself => {
            Scenario("a-cache-file-is-removed-under-its-daemon")
        }
        Bug::AskMisfit => Scenario("an-image-loses-its-name-while-it-is-served"),
        Bug::SkipLastLook | Bug::KeepCutShort => {
            Scenario("an-image-is-cut-short-while-it-is-served")
        }
        Bug::GoOnBehindMisfit => Scenario("an-image-is-cut-short-in-the-middle-of-a-destage"),
        Bug::KeepChangedBase => Scenario("a-base-is-written-while-it-is-served"),
        Bug::SwitchInCut => Swarm,
        Bug::StartWithoutSync => ShortSwitches,
        Bug::DestagePastDurable => EarlyDestages,
        Bug::ReuseSegmentEarly => BadCheckpoints,
        Bug::BelieveKilledLayers => ShortReads,
        Bug::MoveWithNewSerial => Scenario("zeroes-of-one-record-and-a-write-between"),
        Bug::NeverSlow => HeldWrites,
        Bug::JudgeAtFirstRead => Swarm,
        _ => Seeds,
    };
    let seeds = match bug {
        // Those before them take minutes.
        Bug::LetGoForUnfinished => 126..132,
        Bug::StartWithoutSync => 238..246,
        _ => 0..SEEDS_MAX,
    };
    (gate, seeds)
}
