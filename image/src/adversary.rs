//! Rules of writing a file that can be broken on purpose.
//!
//! Owns their list. A test that is built with the feature `adversary` breaks one at a time and must
//! see a gate notice. Always true: without the feature [`has`] is constantly false, so the product
//! carries nothing of it; the switch is one for the process. Deliberately absent: gates, and the
//! rules of the engine, which has its own.

rules::list! {
    /// A rule that is broken, with the rule of the design before the colon.
    Bug {
        /// 7: a cluster that a plan appends is not counted.
        LeaveUncounted,
        /// 7: the entry of a cluster does not say that it is used once.
        ForgetCopied,
        /// 7: what is discarded over a file below stays nothing in the table.
        LeaveHole,
        /// 7: clusters that a plan has appended are given to the next one as well.
        GiveTwice,
        /// 7: the header says that clusters may leak when they are counted, not before.
        AnnounceLate,
        /// 7: entries that L1 gets where it lies are what was behind it.
        KeepBehindTable,
        /// 7: a part that is to be a file's own and reads as zeroes stays nothing in the table.
        LeaveBare,
        /// 7: clusters of the end of a disk are given back, and their entries stay.
        KeepCutEntry,
    }
}

rules::switch!(Bug);
