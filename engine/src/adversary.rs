//! Rules that can be broken on purpose, and marks on ways that are seldom gone.
//!
//! Owns the list of both. A test that is built with the feature `adversary` breaks one rule at a
//! time and must see a gate notice; and it counts which marks its runs have passed. Always true:
//! without the feature [`has`] is constantly false and [`mark`] is empty, so the product carries
//! nothing of either. The switch is one for the process, because there is no thread here to ask;
//! so a test sets it before it starts a run and not while one goes on. The unit tests of this
//! crate, which run side by side, have one for each thread, with the feature or without it.
//! Deliberately absent: gates.

#[cfg(feature = "adversary")]
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

rules::list! {
    /// A rule that is broken, with the rule of the design before the colon.
    Bug {
        /// 8: a flush is answered before the peers that count have what it covers.
        AcknowledgeBeforePeers,
        /// 8: a flush that is to be answered at the origin is answered before.
        AnswerBeforeOrigin,
        /// 8: a destage begins with writes that a peer lacks.
        DestagePastPeers,
        /// 8: a peer counts before it has what flushes were answered for.
        CountForgettingFlushes,
        /// 8: a peer counts before it has what a destage has begun with.
        CountForgettingCuts,
        /// 8: a replica is frozen, and what it says it has is not durable.
        FreezeUnsynced,
        /// 8: a delta counts before its last part is there.
        CountPartialDelta,
        /// 8: a recovery leaves out only the last of the deltas that a replica has in part.
        CountOlderPartialDelta,
        /// 8: a delta that comes in parts goes into the epoch of those before it.
        MergePartialDelta,
        /// 8: what a replica has beyond its end counts for the next owner.
        CountVoidSerials,
        /// 8: a delta is taken that does not begin where the replica ends.
        SkipGapCheck,
        /// 8: a crash brings back what a copy has of before writes that it never got.
        LeaveOutUncovered,
        /// 8: batches behind one that was refused are taken.
        GoOnBehindRefused,
        /// 8: a replica with a part of a delta goes on for another owner.
        GoOnWhenTorn,
        /// 8: the bytes of a batch are not compared with their checksums.
        BelieveBatch,
        /// 13.C16: what the image has got since is asked of the host that had the volume before.
        StaleRemoteRead,
        /// 8: the image is written past the log while copies count.
        BypassPeers,
        /// 8: what the log does not give is asked of a peer that has not all that was written.
        RecallBehind,
        /// 8: what newer writes have replaced is asked of a peer, which gives the newer ones.
        RecallReplaced,
        /// 13.C16: what a journal brought to the image meanwhile is asked of the host before.
        ReadUnreached,
        /// 13.C16: a host serves what it has left to one that does not know what it has missed.
        ServeOtherTime,
        /// 8: a batch leaves without room that its peer has promised.
        SendBeyondCredit,
        /// 8: guests take room that was promised to a copy.
        TakePromisedRoom,
        /// 5.2.5: the log takes its records for durable without a sync of the device.
        SkipLogSync,
        /// 5.2.4: a checkpoint counts without a sync of the device.
        SkipCheckpointSync,
        /// 5.2.4: a journal is not synced before the ledger points to it.
        SkipJournalSync,
        /// 5.2.4: the ledger's word "apply", or its cut, is not synced before the origin changes.
        SkipLedgerSyncAtBegin,
        /// 5.2.4: the origin is not synced before the ledger says "done".
        SkipOriginSync,
        /// 5.2.4: the ledger's word "done" is not synced before the log forgets.
        SkipLedgerSyncAtFinish,
        /// 5.2.4: a claim of the ledger is not synced before writes are taken.
        SkipLedgerSyncAtClaim,
        /// 5.2.4: the ledger's word that the log is empty is not synced before it is bypassed.
        SkipLedgerSyncAtRelease,
        /// 5.2.4: a replayed journal is not synced before the ledger says "done".
        SkipReplaySync,
        /// 5.2.6: what recovery accepted is not synced before it is served.
        SkipRecoverySync,
        /// 2: what bypassed the log is not synced before a volume becomes write-back.
        SkipSwitchSync,
        /// 7: what refers to a cluster is written before the cluster is synced.
        ReferUnsynced,
        /// 2: a flush that bypasses the log does not sync the origin.
        SkipDirectSync,
        /// 2: a flush is answered before the log has what it covers.
        AcknowledgeBeforeLog,
        /// 2: a write with FUA, or without a write cache, is answered as any other.
        IgnoreFua,
        /// 2: a write with FUA that bypasses the log is answered without a sync.
        IgnoreDirectFua,
        /// 5.2.5: after a failure the log is rewritten while stale writes are still in flight.
        WriteOverLate,
        /// 5.2.5: after a failed sync of the log nothing is written again, it is synced again only.
        SyncAgainOnly,
        /// 5.2.5: a sync that was under way when another one failed counts.
        CountOldSync,
        /// 5.2.5: the failed sync of a checkpoint is not reported to the log.
        KeepQuietAboutSync,
        /// 5.2.5: after a failed sync of the origin a destage does not begin again.
        TakeFailedOriginSync,
        /// 5.2.5: a slot of the stage is used again when its chunk is written, not synced.
        ReuseSlotEarly,
        /// 5.2.5: a footer that a failed sync took along is not written again.
        ForgetFooter,
        /// 5.1: the checksum over the header of a record is not compared.
        DropRecordSum,
        /// 5.1: the payload of a record in the tail counts as whole.
        DropTailSum,
        /// 5.1: a header block that holds payload has no sum when it is sealed.
        ForgetHeaderSum,
        /// 5.1: a recovery sums a header block that holds payload as it found it, and seals it.
        SumOpenHeader,
        /// 2: clean blocks are served without a check of their checksums.
        DropLineSum,
        /// 2: blocks of the log are served without a check of their checksums.
        DropLogSum,
        /// 2: a block counts as damaged after a single bad read.
        JudgeAtFirstRead,
        /// 5.1: the durable mark in records is ignored, so damage counts as a torn tail.
        IgnoreDurableUpto,
        /// 5.1: a record says that it is durable itself.
        AnnounceTooMuch,
        /// 2: records behind a hole in the tail are accepted.
        AcceptBehindHole,
        /// 5.2.6: records of any earlier run in a segment count.
        MixRuns,
        /// 2: records that were open when the daemon died are not looked for.
        IgnoreOpenRecords,
        /// 5.2.6: what only the stage has is not written to the log at recovery.
        LeaveInStage,
        /// 5.1: the slots of the stage are cleared before the new checkpoint is written.
        ClearStageEarly,
        /// 2: the stage of the new run is not named before its checkpoint.
        AnnounceNoRun,
        /// 2: the loss of a stage that this boot needs is not reported.
        ForgetLostStage,
        /// 2: a slot still names its old chunk while its first header is blanked.
        KeepSlotName,
        /// 5.2.6: serials that were seen but not accepted are given again.
        ReuseSerials,
        /// 2: each piece of a write has a serial of its own.
        SerialForEachPiece,
        /// 2: a write with missing pieces counts after a crash.
        KeepUnfinished,
        /// 5.2.6: what recovery leaves out stays in the footers on the device.
        LeaveInFooters,
        /// 5.2.5: a footer that a failed recovery has left is synced again, and not written again.
        BelieveFailedRecovery,
        /// 5.2.5: the authoritative footer of a segment is overwritten.
        WriteOverSettled,
        /// 5.2.5: a ledger without a confirmed sync is read, and its older slot overwritten.
        BelieveUnsyncedLedger,
        /// 5.2.6: entries that a reset has voided count again.
        CountVoided,
        /// 5.2.4: recovery takes serials that the ledger counts as destaged.
        IgnoreLedger,
        /// 5.1: recovery goes on from the older checkpoint.
        TakeOldCheckpoint,
        /// 5.1: a checkpoint is written over the newest one.
        OverwriteCheckpoint,
        /// 5.2.3: what later records replace is left out of a footer, though they may get lost.
        ElideAcrossRecords,
        /// 5.2.7: a segment is used again before a checkpoint lists it as free.
        ReuseSegmentEarly,
        /// 5.2.7: a segment is free before what replaced it is durable.
        FreeBeforeDurable,
        /// 2: a segment is freed for a write that is only partially staged.
        DieOfUnfinished,
        /// 2: a chunk of an overlay is dropped unwritten for a partially staged write.
        LetGoForUnfinished,
        /// 2: the first chunk of an overlay's segment is dropped unwritten.
        LetGoFirstChunk,
        /// 5.2.4: an epoch goes to the origin before the log has it.
        DestagePastDurable,
        /// 5.2.4: the ledger says "apply" of a journal that was not written.
        ApplyWithoutJournal,
        /// 5.2.4: a pending journal is not finished before its volume is served.
        SkipReplay,
        /// 5.2.4: the table of a journal is made anew after it has waited.
        MakeTableTwice,
        /// 5.1: a group writes the first origin before the last is prepared.
        PassGateEarly,
        /// 5.1: a group writes the first origin before the journal of the last is synced.
        PassGateUnsynced,
        /// 5.1: the epoch of one disk is sealed without those of its group.
        SealAlone,
        /// 5.1: a disk that enters bypass seals its epoch in the middle of a cut.
        SwitchInCut,
        /// 5.2.10: a discard is answered and forgotten.
        ForgetDiscard,
        /// 5.2.10: a discard does not go to the origin with its epoch.
        ForgetDiscardAtDestage,
        /// 5.1: a read finds the oldest epoch first.
        ReadOldestFirst,
        /// 5.2.7: blocks that a destage has replaced stay in the read cache.
        ServeStaleBase,
        /// 5.2.7: a fill that a write has overtaken is kept.
        KeepOvertakenFill,
        /// 5.2.7: clean blocks that were replaced on their way to the device are found there.
        KeepOvertakenBatch,
        /// 5.2.7: clean blocks of a layer that was forgotten meanwhile are found on the device.
        KeepOrphans,
        /// 5.2.7: after a switch to uncached the layer is the one it was.
        KeepLayer,
        /// 5.1: own clean blocks count after an unclean end as well.
        BelieveKilledLayers,
        /// 5.2.7: clean blocks of any earlier generation of their segment count.
        IgnoreFillLife,
        /// 5.2.7: lines of a segment that is given back are still found.
        KeepRetiredLines,
        /// 5.2.7: the block that the end of a smaller volume cuts stays in the read cache.
        KeepCutBlock,
        /// 7: while an image moves to another file its ledger goes on as before.
        ClaimMoving,
        /// 7: an image moves to another file before the parts that differ are its own.
        MoveBeforeOwn,
        /// 7: guests are served behind a move before the ledger counts on the log again.
        ServeMoved,
        /// 7: behind a move an image is read by the map of the files before.
        KeepMovedMap,
        /// 7: what a file below has behind the end of a disk shows when that grows.
        ExposeBelow,
        /// 7: the header of an image says a size for which there is no room.
        SizeBeforeRoom,
        /// 7: the header with the new size is not synced before a guest is told.
        SkipSizeSync,
        /// 7: a start believes the size of an image that a killed daemon has not synced.
        BelieveUnsyncedSize,
        /// 7: an image is called at rest before it has what was written.
        RestUnfinished,
        /// 7: an image is written while it rests.
        DestageAtRest,
        /// 7: files of an image are exchanged while requests to the old ones are on their way.
        ExchangeUnderReads,
        /// 7: the ledger does not say that another file may take the place of the image.
        RefuseSuccessor,
        /// 2: a volume becomes smaller though it has dirty data.
        ShrinkDirty,
        /// 5.2.7: blocks are filled while a write that bypasses the log is in flight to them.
        FillUnderWrite,
        /// 5.1: overlapping writes that bypass the log go to the origin concurrently.
        WriteSideBySide,
        /// 5.2.7: after a failed sync in bypass the read cache still counts.
        BelieveAfterFailedSync,
        /// 5.2.7: a volume that bypasses the log keeps older clean blocks of a written range.
        KeepOverwritten,
        /// 2: a flush in bypass is answered before all dirty data is at the origin.
        AnswerBeforeRescue,
        /// 2: the origin is not marked as unsynced after writes in bypass.
        ForgetPastLog,
        /// 2: a volume that was direct when it was killed is write-back at once.
        StartWithoutSync,
        /// 5.2.8: what evacuation moves gets a new serial.
        MoveWithNewSerial,
        /// 5.2.6: zeroes that evacuation moves have the serial of the oldest of their record.
        MoveZeroesOldestFirst,
        /// 5.2.8: guests write into the segments that are reserved for evacuation.
        OpenReserve,
        /// 5.2.2: a write begins though the log has no room for all of it.
        BeginWithoutRoom,
        /// 2: writes at the hard limit of an overlay wait for ever.
        NeverAnswerFull,
        /// 2: a reset is answered before it is durable.
        AnswerResetEarly,
        /// 5.2.4: a volume takes writes before its ledger names it.
        ServeUnclaimed,
        /// 5.2.1: a write that was not recovered whole counts as already applied for its ring.
        TagUnfinished,
        /// 5.2.1: a part of a write that is too large for its volume counts as the write.
        TagParts,
        /// 5.2.2: what an aborted write would have replaced is reused at once.
        DieOfGivenUp,
        /// 2: dirty data is laid over an image that it does not belong to.
        LayOverAny,
        /// 2: a journal is applied to an image that it was not made for.
        ReplayToAny,
        /// 2: an overlay lies over another base than the one it was written on.
        LayOverAnyBase,
        /// 2: what the log has of a volume comes back after its loss was accepted.
        KeepAfterLoss,
        /// 2: an overlay is reset though its guest has only slept.
        ResetUnderSleeper,
        /// 2: a loss that was accepted is not in the ledger before a direct volume is served.
        KeepLossToItself,
        /// 2: a cache file that lost its name is written as before.
        TrustGoneCache,
        /// 2: a volume goes on with an image that it has seen not to fit.
        AskMisfit,
        /// 5.2.4: an image is not looked at between its last write and the word that all is there.
        SkipLastLook,
        /// 5.2.4: a destage goes on where it was when its image was cut short and put back.
        GoOnBehindMisfit,
        /// 5.2.7: what was read of an image while it was cut short is kept.
        KeepCutShort,
        /// 5.2.7: what was read of a base before another program wrote it is kept.
        KeepChangedBase,
        /// 7: what a plan wrote at once is not synced before the ledger points to its journal.
        SkipPlanSync,
        /// 7: what a journal has of an image that allocates is written at once.
        WriteAtOnce,
        /// 7: data of an image that allocates is written in place without a word of the ledger.
        CutUnsaid,
        /// 7: the header of an image that allocates says nothing while its journal is applied.
        SkipGuard,
        /// 7: an image says that it has more than its ledger.
        MarkAhead,
        /// 7: the guard is cleared before the ledger says that the journal is not needed.
        ClearGuardEarly,
        /// 7: tables are read while a journal that a start has found is not applied.
        ReadTornTables,
        /// 7: tables that a plan has changed are kept.
        KeepTables,
        /// 7: a map is not told that its file has grown.
        ForgetGrowth,
        /// 7: a block that the written file has a part of is kept for all volumes on its base.
        ShareMixedBlock,
        /// 7: a block that the end of a disk cuts is kept for all volumes on its base.
        CutAtVolume,
        /// 7: a block that was copied is kept while a part of it is being written.
        KeepCopiedUnderWrite,
        /// 7: what was read behind a plan that failed is kept when its file is read anew.
        KeepBehindFailedPlan,
        /// 2: flow control never holds a write.
        NeverSlow,
    }
}

rules::list! {
    /// A way that is seldom gone.
    Mark {
        /// A flush is durable here, and waits for a peer.
        WaitedForPeer,
        /// A flush is durable here, and waits for the origin.
        WaitedForOrigin,
        /// A destage waits until a peer has what it begins with.
        DestageWaitedForPeer,
        /// Too much is queued for a peer: it gets epochs again.
        PeerFellBehind,
        /// Epochs that a peer had ended have become one.
        Joined,
        /// A peer that counts has no room for what it lacks.
        PeerHasNoRoom,
        /// A batch leaves out writes that the image has, and the copy never got.
        LeftOut,
        /// A guest's write waits for that.
        WaitedForRoomOfPeer,
        /// A peer gets an epoch as one delta.
        SentEpoch,
        /// What is left of a delta is dropped by its replica.
        DroppedPartialDelta,
        /// A replica has a part of a delta of the owner before, and is begun anew.
        TornReplica,
        /// A replica becomes a volume of its host.
        TookOver,
        /// A block came from the host that had the volume before.
        RemoteRead,
        /// Bytes that the log does not give are asked of a peer.
        Recalled,
        /// A peer has given them.
        GaveRecalled,
        /// A host gave what is left of a volume that went.
        ServedLeft,
        /// What a write copies to its new cluster was in the read tier.
        CopiedFromTier,
        /// A read of more than what is copied has failed, and what is copied is read alone.
        CopiedApart,
        /// A direct write of an image that allocates has got its place.
        Allocated,
        /// A tail that was torn is dropped.
        TornTail,
        /// Records below the last sync are missing.
        Damage,
        /// Records of a run without any other trace lie among those of a later run.
        OtherRun,
        /// A footer counts no more, because its segment was not synced.
        LateFooter,
        /// A footer is one of a recovery that never began its run.
        DoubtedFooter,
        /// A write of which pieces are missing is dropped.
        UnfinishedWrite,
        /// Records that only the stage had are written to the log.
        SavedFromStage,
        /// Clean blocks are found record by record.
        FillWithoutFooter,
        /// A segment is in use for the second time.
        LogWrapped,
        /// A footer goes to the device again after a sync that failed.
        FooterAgain,
        /// What no good sync covers is written again.
        WrittenAgain,
        /// A chunk of an overlay that the device did not keep is written again.
        SpilledAgain,
        /// A chunk of an overlay leaves RAM.
        Spilled,
        /// A chunk of an overlay without live data is dropped unwritten.
        LetGo,
        /// A record that marks what is durable is written after an idle time.
        Announced,
        /// A checkpoint fails and is written again.
        CheckpointFailed,
        /// Live data is moved out of a segment.
        Moved,
        /// Zeroes are moved out of a segment.
        MovedZeroes,
        /// A volume reaches its own limit.
        DirtyLimit,
        /// The log has no room for a write.
        LogFull,
        /// A write waits too long at the hard limit of an overlay.
        NoSpace,
        /// A write is staged in part and waits for the rest.
        StagedInPart,
        /// A write that is staged in part waits as a whole again, because the device fails.
        Rewound,
        /// A phase of a destage that failed begins again.
        DestageAgain,
        /// The disks of one machine are sealed in one step.
        CutOfGroup,
        /// A disk that is prepared waits for another one of its group.
        GateWaits,
        /// A policy changes while writes wait for that.
        SwitchedUnderLoad,
        /// A switch destages in rounds while the guest goes on.
        SwitchDrains,
        /// An emergency destage from a failing device begins.
        Rescue,
        /// Guests write in bypass.
        PastLog,
        /// Dirty data is only on a device that cannot be read.
        Held,
        /// A volume leaves bypass because its device works again.
        BackFromPast,
        /// Clean blocks that an orderly stop has named are found again.
        KeptLayer,
        /// A ledger that could not be written is due again.
        LedgerAgain,
        /// What a recovery found dirty is at the origin by then.
        ReachedMeanwhile,
        /// A read that its origin did not give waits for another try.
        ReadHeld,
        /// A fill that its origin did not give waits for another try.
        FillHeld,
        /// A clean block is wrong twice, and asked of the origin.
        BadLine,
        /// A write has overtaken a fill.
        OvertakenFill,
        /// A layer is forgotten while blocks of it are on their way to the device.
        Orphan,
        /// Blocks are replaced on their way to the device.
        OvertakenBatch,
        /// The oldest clean segment is given back.
        Retired,
        /// Clean blocks that are asked for are written again.
        Reappended,
        /// A write that bypasses the log waits for one that it overlaps.
        OverlapWaits,
        /// An overlay is reset at the first attach of the next guest.
        ResetAtArrival,
        /// A pending journal is finished.
        JournalReplayed,
        /// A block of the log is read again by itself.
        ReadAgain,
        /// A plan makes room for a larger disk.
        RoomMade,
        /// A plan has given back the end of a disk that becomes smaller.
        EndCut,
        /// Parts of a disk have become their image's own.
        MadeOwn,
        /// The header of an image names another file below it.
        ImageMoved,
        /// The plan of a move was given up, and its ledger is claimed again.
        MoveRefused,
        /// The host has not exchanged what is open behind a move.
        MoveLeft,
        /// The images of a volume and its group are to rest.
        Quiesced,
        /// A rest has ended because the log needed its room.
        RestEnded,
        /// Newer writes have covered what was damaged.
        Mended,
        /// An overlay becomes the content of its image.
        Committed,
        /// A write of a killed daemon is found by its tag.
        TagFound,
    }
}

/// Whether this rule is broken at the moment.
#[cfg(not(any(test, feature = "adversary")))]
#[inline(always)]
pub const fn has(_: Bug) -> bool {
    false
}

/// Whether this rule is broken at the moment.
#[cfg(any(test, feature = "adversary"))]
pub fn has(bug: Bug) -> bool {
    switch::is_set(bug)
}

/// Breaks this rule and keeps all others.
#[cfg(any(test, feature = "adversary"))]
pub fn break_rule(bug: Option<Bug>) {
    switch::set(bug);
}

#[cfg(feature = "adversary")]
static PASSED: [AtomicU64; Mark::ALL.len()] = [const { AtomicU64::new(0) }; Mark::ALL.len()];

/// A run comes along here.
#[cfg(not(feature = "adversary"))]
#[inline(always)]
pub const fn mark(_: Mark) {}

/// A run comes along here.
#[cfg(feature = "adversary")]
pub fn mark(mark: Mark) {
    PASSED[mark as usize].fetch_add(1, Relaxed);
}

/// How often all runs together have passed a mark.
#[cfg(feature = "adversary")]
pub fn passed(mark: Mark) -> u64 {
    PASSED[mark as usize].load(Relaxed)
}

/// Which rule is broken, for all of the process.
#[cfg(all(feature = "adversary", not(test)))]
mod switch {
    use super::Bug;

    static BROKEN: rules::Switch = rules::Switch::new();

    pub fn is_set(bug: Bug) -> bool {
        BROKEN.is_set(bug as usize)
    }

    pub fn set(bug: Option<Bug>) {
        BROKEN.set(bug.map(|bug| bug as usize));
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
use tests as switch;
