//! What the log of the owner is good for while its device fails.
//!
//! Always true: while it fails the own copy is not complete, because what it has may be gone; once
//! the origin has everything the record comes to name no other copy, and only then the origin is
//! written without the log. Meanwhile no copy is begun, and none joins. Deliberately absent: the
//! device, which the engine watches.

use super::Set;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OwnLog {
    #[default]
    Good,
    /// Its device fails, and what it has may be there no more. It is being brought to the origin.
    Fails,
    /// The origin has all of it, and is written without the log as soon as the record says so.
    Past,
}

pub fn of(set: &Set) -> OwnLog {
    set.origin.own_log
}

pub(super) fn is_good(set: &Set) -> bool {
    of(set) == OwnLog::Good
}

/// What the own copy should have is in the log, or at the origin.
pub(super) fn has_copy(set: &Set) -> bool {
    match of(set) {
        OwnLog::Good => true,
        OwnLog::Fails => false,
        OwnLog::Past => set.acknowledged <= set.destaged,
    }
}

/// The origin has all that was acknowledged, and is about to be written without the log.
pub(super) fn is_past(set: &Set) -> bool {
    of(set) == OwnLog::Past && has_copy(set)
}
