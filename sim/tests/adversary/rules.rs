//! Which gate notices which broken rule, what survives and why, and where a unit test notices.
//!
//! Always true: each rule has a gate, or a unit test of the engine that breaks it, or stands among
//! the survivors with the reason. `docs/rules.md` is made of these lists. Deliberately absent: the
//! audit itself, which needs the feature `adversary`.

use super::Gate::{self, *};
use engine::adversary::Bug;
use image::adversary::Bug as ImageBug;
use std::ops::Range;
use vring::adversary::Bug as RingBug;

/// Seeds within which a gate notices, where nothing else is said.
pub const SEEDS_MAX: u64 = 60;

/// Rules whose breach no gate notices, and why.
pub const SURVIVORS: &[(Bug, &str)] = &[
    (
        Bug::SkipLedgerSyncAtFinish,
        "the checkpoint that frees the log says `destaged` as well; an intact journal is applied \
         once more to no effect, and a journal that the next destage has overwritten is written \
         anew from the log (100 seeds of each gate)",
    ),
    (
        Bug::SkipLedgerSyncAtRelease,
        "a ledger that still says dirty costs an empty drain and no data (200 seeds of Dying, \
         150 of Swarm)",
    ),
    (
        Bug::ForgetFooter,
        "the records say the same as the footer; the segment is only not evacuated (200 seeds of \
         its scenario)",
    ),
    (
        Bug::OpenReserve,
        "a second check of the same limit: a write is admitted by `Log::has_room`, which leaves \
         the reserve out by itself, and only zeroes pass without it (100 seeds of Swarm, 60 of \
         LargeWrites)",
    ),
    (
        Bug::DieOfUnfinished,
        "a write that has begun waits for slots of the stage only; meanwhile a checkpoint would \
         have to free what it covers, and all ready segments would have to be used. The log's own \
         test `nothing_is_freed_beside_a_write_that_is_not_whole` notices (150 seeds of Swarm, 60 \
         each of SmallLog, LargeWrites and BadCheckpoints)",
    ),
    (
        Bug::DieOfGivenUp,
        "as DieOfUnfinished, and the same test notices; the next whole write ends the state, and \
         that write waits at the head of its queue (94 seeds that aborted a write, of 300 with \
         the plan of its scenario)",
    ),
    (
        Bug::IgnoreFillLife,
        "blocks of a base with one identity never change, own blocks count by a name of the run \
         before only (`believed` in `engine/src/recover/fills.rs`), and overwritten blocks fail \
         their checksum (`DropLineSum`) (100 seeds of Swarm, 60 of NoSums)",
    ),
    (
        Bug::BelieveAfterFailedSync,
        "the simulator drops nothing of an image that is written in bypass when its sync fails \
         (`damage` in `sim/src/faults.rs`), because its guest would read the loss; so the RAM \
         tier stays right",
    ),
];

/// Rules that a unit test of the engine breaks by itself, because no run has met them broken: the
/// test, and the sequence in which the rule matters.
pub const OWN_TESTS: &[(Bug, &str, &str)] = &[
    (
        Bug::CountForgettingCuts,
        "a_peer_counts_only_with_what_a_destage_has_begun_with",
        "nothing was flushed, a destage writes the image, and a peer that lacks those writes \
         begins to count: a takeover would find the image ahead of the replica",
    ),
    (
        Bug::MergePartialDelta,
        "what_is_left_of_a_write_leaves_those_before_it_alone",
        "a peer has all, gets some parts of one large write, and is taken over from: the rest of \
         that write never comes",
    ),
    (
        Bug::BypassPeers,
        "the_image_is_not_written_past_the_log_while_a_copy_counts",
        "another host takes the volume over while its owner writes the image past its log, and \
         neither knows of the other: the pair has one host at a time that serves",
    ),
    (
        Bug::SkipGapCheck,
        "a_delta_behind_a_gap_is_refused",
        "a host loses a batch on its way, and sends the next one by the same link",
    ),
    (
        Bug::TakePromisedRoom,
        "no_guest_takes_room_that_was_promised_to_a_copy",
        "an origin takes no writes, a guest fills the log of its host up to the last block, and \
         the owner of a copy there sends what it was promised room for: the log holds more than \
         can be compacted",
    ),
    (
        Bug::ForgetPastLog,
        "a_flush_covers_what_a_life_past_a_dead_log_has_left_unsynced",
        "the cache device is dead, a write goes to the origin, the daemon is killed, the device is \
         good again: the next flush finds an empty log and is answered without a sync of the \
         origin",
    ),
    (
        Bug::ReadTornTables,
        "nothing_is_read_by_tables_that_a_power_loss_may_have_torn",
        "a power loss tears a table that a journal was being applied to, and a block that the \
         journal says nothing of is read by the next life before the journal is replayed: the torn \
         table gives other bytes",
    ),
    (
        Bug::KeepBehindFailedPlan,
        "what_a_failed_plan_has_brought_to_the_file_is_read_when_that_is_read_anew",
        "one of two tables of a plan is written and the other fails, a reader finds what was there \
         before, and finds it again when the file is read anew",
    ),
    (
        Bug::ExchangeUnderReads,
        "files_of_an_image_are_not_exchanged_under_a_read",
        "a read of the image is under way when a snapshot puts another file in its place: its \
         answer is taken for one of the new file",
    ),
    (
        Bug::CutAtVolume,
        "a_block_that_the_end_of_a_disk_cuts_is_whole_for_a_larger_disk_on_the_same_file",
        "a disk ends within a block of the file below it and reads what it has of that: a larger \
         disk on the same file finds zeroes behind it",
    ),
    (
        Bug::RefuseSuccessor,
        "a_start_takes_the_file_that_a_snapshot_has_put_in_place_before_a_kill",
        "a daemon is killed between the moment at which a snapshot has put a new file in the place \
         of an image and the ledger that knows it: the next start holds the volume",
    ),
    (
        Bug::MoveZeroesOldestFirst,
        "zeroes_that_were_moved_cover_the_write_before_them_after_a_power_loss",
        "zeroes, a write over a part of them, and zeroes over that are in three epochs, none of \
         them destaged; evacuation brings both zeroes into one record and moves them again: after \
         a power loss the write is back",
    ),
    (
        Bug::BelieveFailedRecovery,
        "what_a_failed_recovery_has_left_out_does_not_come_back_with_the_next_loss_of_power",
        "the first record after the last sync is torn, the recovery's footer leaves it out, and \
         the sync of that footer fails; the next recovery reads it and completes, and the next \
         power loss brings back the footer before it",
    ),
    (
        Bug::WriteOverSettled,
        "a_footer_that_alone_says_what_counts_is_not_written_over",
        "a write in pieces is recovered and destaged, and the segment with its last piece is used \
         again; the next recovery finds the rest in a footer and leaves it out there; a power loss \
         tears that footer, and all dirty data in its segment is damaged",
    ),
    (
        Bug::BelieveUnsyncedLedger,
        "a_ledger_is_durable_before_the_slot_before_it_is_written_over",
        "a ledger lands after the death of its daemon, without a sync; the next daemon reads it \
         and writes its own into the other slot; the power fails, neither slot is whole, and the \
         volume is held",
    ),
    (
        Bug::KeepOrphans,
        "blocks_of_a_layer_that_was_forgotten_are_not_found_under_its_number",
        "blocks are on their way to the device when their volume becomes uncached; another volume \
         gets the number of their layer and reads them as its own",
    ),
];

/// A rule that is broken on demand.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Engine(Bug),
    Rings(RingBug),
    Image(ImageBug),
}

impl Rule {
    pub fn all() -> impl Iterator<Item = Rule> {
        let engine = Bug::ALL.iter().map(|bug| Rule::Engine(*bug));
        let rings = RingBug::ALL.iter().map(|bug| Rule::Rings(*bug));
        let image = ImageBug::ALL.iter().map(|bug| Rule::Image(*bug));
        engine.chain(rings).chain(image)
    }

    pub fn name(self) -> String {
        match self {
            Rule::Engine(bug) => format!("{bug:?}"),
            Rule::Rings(bug) => format!("{bug:?}"),
            Rule::Image(bug) => format!("{bug:?}"),
        }
    }

    /// The number of the rule, and what is done wrong: the line where the breach is listed.
    pub fn what(self) -> (&'static str, &'static str) {
        let line = match self {
            Rule::Engine(bug) => bug.what(),
            Rule::Rings(bug) => bug.what(),
            Rule::Image(bug) => bug.what(),
        };
        let (number, wrong) = line.split_once(": ").expect("a number comes first");
        (number.trim(), wrong)
    }

    /// Why no gate notices.
    pub fn survives(self) -> Option<&'static str> {
        let own = |(bug, _): &&(Bug, &str)| matches!(self, Rule::Engine(it) if it == *bug);
        SURVIVORS.iter().find(own).map(|(_, why)| *why)
    }

    /// The unit test of the engine that breaks it, and the sequence in which it matters.
    pub fn own_test(self) -> Option<(&'static str, &'static str)> {
        let own = |(bug, ..): &&(Bug, &str, &str)| matches!(self, Rule::Engine(it) if it == *bug);
        OWN_TESTS
            .iter()
            .find(own)
            .map(|(_, test, way)| (*test, *way))
    }

    /// What notices, and within how many seeds.
    pub fn gate(self) -> (Gate, Range<u64>) {
        match self {
            Rule::Rings(_) => (Rings, 0..SEEDS_MAX),
            Rule::Image(ImageBug::KeepBehindTable) => (Grows, 0..SEEDS_MAX),
            Rule::Image(ImageBug::LeaveBare | ImageBug::KeepCutEntry) => (Moves, 0..SEEDS_MAX),
            Rule::Image(_) => (Tops, 0..SEEDS_MAX),
            Rule::Engine(bug) => gate_of(bug),
        }
    }
}

/// The gate of each rule, and the seeds within which it notices.
fn gate_of(bug: Bug) -> (Gate, Range<u64>) {
    let gate = match bug {
        Bug::AcknowledgeBeforePeers
        | Bug::AnswerBeforeOrigin
        | Bug::DestagePastPeers
        | Bug::CountForgettingFlushes
        | Bug::FreezeUnsynced
        | Bug::CountPartialDelta
        | Bug::CountVoidSerials
        | Bug::GoOnBehindRefused
        | Bug::BelieveBatch
        | Bug::SendBeyondCredit => Pairs,
        Bug::GoOnWhenTorn | Bug::CountOlderPartialDelta | Bug::LeaveOutUncovered => TwoReplicas,
        Bug::RecallBehind | Bug::RecallReplaced => FailingOwner,
        Bug::StaleRemoteRead | Bug::ReadUnreached | Bug::ServeOtherTime => HandOvers,
        Bug::SkipSwitchSync | Bug::KeepLayer => Switches,
        Bug::ElideAcrossRecords => Swarm,
        Bug::SkipDirectSync
        | Bug::IgnoreDirectFua
        | Bug::FillUnderWrite
        | Bug::WriteSideBySide
        | Bug::KeepOverwritten => WriteThrough,
        Bug::BelieveAfterFailedSync | Bug::AnswerBeforeRescue | Bug::IgnoreLedger => Dying,
        Bug::SkipCheckpointSync | Bug::DropTailSum => ShortLives,
        Bug::ForgetHeaderSum => Seeds,
        Bug::SumOpenHeader => Commits,
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
        Bug::LetGoFirstChunk => LostWrites,
        Bug::MakeTableTwice => Scenario("a-journal-whose-table-waits-for-its-turn"),
        Bug::PassGateEarly | Bug::SealAlone => Group,
        Bug::PassGateUnsynced => Scenario("a-disk-of-a-group-hangs-in-the-sync-of-its-journal"),
        Bug::KeepCutBlock | Bug::ShrinkDirty => Resizes,
        Bug::ExposeBelow | Bug::SizeBeforeRoom | Bug::SkipSizeSync | Bug::BelieveUnsyncedSize => {
            Grows
        }
        Bug::RestUnfinished | Bug::DestageAtRest => Rests,
        Bug::ClaimMoving | Bug::MoveBeforeOwn | Bug::ServeMoved | Bug::KeepMovedMap => Moves,
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
        Bug::SkipPlanSync
        | Bug::WriteAtOnce
        | Bug::CutUnsaid
        | Bug::SkipGuard
        | Bug::ClearGuardEarly
        | Bug::MarkAhead
        | Bug::KeepTables
        | Bug::ForgetGrowth
        | Bug::ReferUnsynced
        | Bug::ShareMixedBlock => Tops,
        Bug::KeepCopiedUnderWrite => DirectTops,
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
        // A run of a pair is short, and few end in the moment that matters.
        Bug::AnswerBeforeOrigin
        | Bug::DestagePastPeers
        | Bug::FreezeUnsynced
        | Bug::CountVoidSerials => 0..1000,
        // One seed in some hundred notices it; the first ones take minutes.
        Bug::LeaveOutUncovered => 150..220,
        Bug::RecallBehind => 740..750,
        Bug::RecallReplaced => 95..110,
        Bug::LetGoForUnfinished => 105..111,
        // It needs two pieces of one write in segments of which one dies.
        Bug::ElideAcrossRecords => 200..240,
        Bug::LetGoFirstChunk => 50..60,
        // A size that is lost is rare: one seed in some hundred.
        Bug::BelieveUnsyncedSize => 120..180,
        // The write has to come between two steps of a plan.
        Bug::KeepCopiedUnderWrite => 60..120,
        _ => 0..SEEDS_MAX,
    };
    (gate, seeds)
}
