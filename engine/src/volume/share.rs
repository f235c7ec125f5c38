//! What a volume has of the log and of the map.
//!
//! Always true: what it keeps is what is left of its part.
//! Deliberately absent: how parts are made (`core::share`).

use super::Volume;

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
    part: Parts,
    /// Of that, what it does not use.
    kept: Parts,
}

impl Volume {
    /// What it uses of a pool.
    pub fn uses(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Log => self.charge(),
            Pool::Map => self.dirty_extents(),
        }
    }

    /// The part of a pool that no other volume can take.
    #[inline]
    pub fn part(&self, pool: Pool) -> u64 {
        self.own.part.of(pool)
    }

    /// What its part has still to give, as it was last counted.
    #[inline]
    pub fn kept(&self, pool: Pool) -> u64 {
        self.own.kept.of(pool)
    }

    /// It has these parts from here on; what they have to give.
    pub fn take_part(&mut self, part: Parts) -> Parts {
        self.own.part = part;
        self.recount_kept().1
    }

    /// Counts again what its part has to give: before, and now.
    pub fn recount_kept(&mut self) -> (Parts, Parts) {
        let left = |pool| self.own.part.of(pool).saturating_sub(self.uses(pool));
        let now = match self.takes_log() {
            true => Parts {
                log: left(Pool::Log),
                map: left(Pool::Map),
            },
            false => Parts::default(),
        };
        let part = self.own.part;
        assert!(
            now.log <= part.log && now.map <= part.map,
            "it keeps of its part"
        );
        (core::mem::replace(&mut self.own.kept, now), now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn only_a_volume_that_may_write_keeps_a_part() {
        let mut volume = volume();
        let part = Parts { log: 8, map: 4 };
        assert_eq!(volume.take_part(part), Parts::default());
        volume.has_come();
        assert_eq!(volume.recount_kept(), (Parts::default(), part));
        assert_eq!((volume.part(Pool::Log), volume.kept(Pool::Map)), (8, 4));
    }
}
