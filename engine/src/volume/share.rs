//! What a volume has of the log and of the map.
//!
//! Always true: what it keeps is what is left of its part.
//! Deliberately absent: how parts are made (`core::share`).

/// What the parts are made of.
#[derive(Clone, Copy)]
pub enum Pool {
    /// Blocks of the log.
    Log,
    /// Extents of the map.
    Map,
}

/// An amount of each pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub(crate) log: u64,
    pub(crate) map: u64,
}

impl Parts {
    pub(crate) fn of(self, pool: Pool) -> u64 {
        match pool {
            Pool::Log => self.log,
            Pool::Map => self.map,
        }
    }
}

/// What a volume has of the pools, as it was last counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    /// No caller can take it.
    pub(crate) part: Parts,
    /// Of that, what it does not use.
    pub(crate) kept: Parts,
}
