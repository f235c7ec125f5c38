//! Rules of the copies that a test may leave out, to see that the search over them notices.
//!
//! Always true: outside the tests of this crate every rule is kept, and the question costs nothing.
//! Deliberately absent: rules that the surroundings of a machine keep, as that a freeze lasts over
//! a restart; a test leaves those out in its own model.

/// A rule that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// C2, C20: a flush counts the members of an undecided record too.
    FlushesAskBoth,
    /// C8, correction 2: so does a cut.
    CutsAskBoth,
    /// H1, C8: a cut is durable at the members, not only at the owner.
    CutsAskMembers,
    /// Correction 1: a learner has each acknowledged flush before it is proposed.
    LearnerHasFlushes,
    /// H17: and each cut that was begun.
    LearnerHasCuts,
    /// H8, C5: after a freeze a copy takes nothing of the owner before.
    FreezeEndsStream,
    /// A restart between record and fork freezes again.
    RestartFreezes,
    /// C6: a member counts when it has taken the fork of its new owner.
    MembersTakeForks,
    /// Correction 3, H18: the forks of a copy that comes back are compared.
    ForksAreCompared,
    /// A copy that is not complete is no source.
    SourceIsComplete,
    /// The only copy with what the owner before has left is not evicted.
    LastCompleteStays,
    /// C7, C10: the right to write the origin is taken with proof.
    DrainerHasProof,
    /// C9: who says that it writes no more knew by which record.
    ReleaseIsOfThisOwner,
    /// C14, correction 9: a unit is given away with all that was written, flushed or not.
    GivenHasAll,
    /// Correction 8: the origin has each acknowledged flush before a record says so.
    OriginHasFlushes,
    /// H21: a backup window is told to be open when its record is decided.
    WindowIsInRecord,
    /// C18: who takes a unit over goes on with its backup window.
    WindowIsTaken,
}

#[cfg(not(test))]
pub(crate) const fn has(_: Rule) -> bool {
    false
}

#[cfg(test)]
pub(crate) use tests::{has, leave_out};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Rule;
    use core::cell::Cell;

    std::thread_local! {
        static OUT: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn has(rule: Rule) -> bool {
        OUT.get() == Some(rule)
    }

    /// For this thread.
    pub(crate) fn leave_out(rule: Option<Rule>) {
        OUT.set(rule);
    }
}
