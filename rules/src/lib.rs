//! The form of rules that can be broken on purpose, and the switch that breaks one.
//!
//! Owns no rule: each crate that a test may break has its own list. Always true: a rule has one
//! line about it, which is its documentation as well.
#![no_std]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A list whose items know the line about them.
#[macro_export]
macro_rules! list {
    ($(#[$about:meta])* $name:ident { $(#[doc = $what:literal] $item:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $(#[doc = $what] $item,)* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$item,)*];

            /// The line about it.
            pub const fn what(self) -> &'static str {
                match self { $($name::$item => $what,)* }
            }
        }
    };
}

/// The switch of a crate for its list: constantly off without its feature `adversary`.
#[macro_export]
macro_rules! switch {
    ($name:ident) => {
        #[cfg(feature = "adversary")]
        static BROKEN: $crate::Switch = $crate::Switch::new();

        /// Whether this rule is broken at the moment.
        #[cfg(not(feature = "adversary"))]
        #[inline(always)]
        pub const fn has(_: $name) -> bool {
            false
        }

        /// Whether this rule is broken at the moment.
        #[cfg(feature = "adversary")]
        pub fn has(bug: $name) -> bool {
            BROKEN.is_set(bug as usize)
        }

        /// Breaks this rule and keeps all others.
        #[cfg(feature = "adversary")]
        pub fn break_rule(bug: Option<$name>) {
            BROKEN.set(bug.map(|bug| bug as usize));
        }
    };
}

/// Which rule of a list is broken, for all of the process.
#[derive(Debug)]
pub struct Switch(AtomicUsize);

impl Switch {
    /// All rules are kept.
    pub const fn new() -> Switch {
        Switch(AtomicUsize::new(usize::MAX))
    }

    /// Whether the rule with this number is broken.
    pub fn is_set(&self, rule: usize) -> bool {
        self.0.load(Relaxed) == rule
    }

    /// Breaks this rule and keeps all others.
    pub fn set(&self, rule: Option<usize>) {
        self.0.store(rule.unwrap_or(usize::MAX), Relaxed);
    }
}

impl Default for Switch {
    fn default() -> Switch {
        Switch::new()
    }
}
