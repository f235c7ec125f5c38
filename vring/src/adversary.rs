//! Rules of the rings that can be broken on purpose.
//!
//! Owns their list. A test that is built with the feature `adversary` breaks one at a time and must
//! see a gate notice. Always true: without the feature [`has`] is constantly false, so the product
//! carries nothing of it; the switch is one for the process. Deliberately absent: gates, and the
//! rules of the engine, which has its own.

rules::list! {
    /// A rule that is broken, with the rule of the design before the colon.
    Bug {
        /// 5.2.1: a head that a repair has found ended is run again all the same.
        RunHeadTwice,
        /// 5.2.1: what runs again does so newest first.
        RunNewestFirst,
        /// 5.2.1: a head is taken before the region says so.
        TakeUnmarked,
        /// 5.2.1: the flag of a request that has ended stays in the region.
        KeepFlag,
        /// 5.2.1: counters of requests that have ended are given again.
        ReuseCounters,
    }
}

rules::switch!(Bug);
