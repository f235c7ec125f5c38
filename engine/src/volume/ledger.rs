//! The ledger of a volume as it is to be written next, and the step that it is written for.
//!
//! Always true: one step at a time.
//! Deliberately absent: how it is written (`core::ledger`).

use crate::format::ledger::Ledger;
use crate::types::Time;

/// Applying may change the origin's modification time up to so long after the ledger was written;
/// after a third of it the ledger is written again. A request may hang for the rest.
pub(crate) const APPLY_MS_MAX: u64 = 15 * 60_000;

/// What is written to the ledger, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerStep {
    /// The volume is claimed; then it needs a checkpoint to be ready.
    Claim,
    /// A destage may write places of the image that nothing in it refers to.
    Prepare,
    /// A destage may start to write the origin.
    Begin,
    /// All of a plan is at the image; its guard is left.
    Reached,
    /// A destage has ended.
    Finish,
    /// The size of the image may change.
    Resize,
    /// Another file may take the place of the image, or has done so.
    Exchange,
    /// The image stands on another file.
    Move,
    /// Nothing is dirty any more and the owner goes away.
    Release,
}

/// The ledger of a volume as it is, or is being written.
pub struct LedgerWriter {
    pub ledger: Ledger,
    pub step: Option<LedgerStep>,
    pub piece: Option<u32>,
    /// The last attempt failed: due again at housekeeping.
    pub failed: bool,
    /// It says what has to be on media before the volume is served, also of a direct one.
    pub unsaid: bool,
    /// Its image moves to another file: see [`super::rebase`].
    pub moves: bool,
    /// The header names another file below the image than the one that is open, for this life.
    pub below_unsaid: bool,
    /// How far the clock of the origin's file system is ahead of ours.
    pub clock_ahead_ns: u64,
    /// The time over there when it was read, and when that was. The wall clock here may be set back
    /// since.
    pub clock_there: (u64, Time),
}
