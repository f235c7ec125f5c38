//! What a volume has of the log and of the map.
//!
//! Always true: what it keeps is what is left of its part; a copy has no part, and keeps what it
//! was promised. Deliberately absent: how parts are made (`core::share`), and how much is promised
//! (`core::room`).

use super::Volume;
use crate::event::LogRoom;

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

/// What no other volume may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What it does not use yet.
    pub(crate) kept: Parts,
    /// That of a copy, which was promised it; and all of a copy, with what that uses.
    pub(crate) promised: Parts,
    pub(crate) copy: Parts,
}

/// What a volume has of the pools, as it was last counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    /// No caller can take it.
    part: Parts,
    counted: Counted,
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
        self.own.counted.kept.of(pool)
    }

    /// What a copy has of a pool, with what it was promised.
    pub fn taken_by_copy(&self, pool: Pool) -> u64 {
        self.own.counted.copy.of(pool)
    }

    /// It has these parts from here on; what they have to give.
    pub fn take_part(&mut self, part: Parts) -> Counted {
        self.own.part = part;
        self.recount_kept().1
    }

    /// Counts again what no other one may take: before, and now.
    pub fn recount_kept(&mut self) -> (Counted, Counted) {
        let now = match self.takes_log() {
            true if self.is_copy() => self.count_copy(),
            true => Counted {
                kept: self.count_part(),
                ..Counted::default()
            },
            false => Counted::default(),
        };
        (core::mem::replace(&mut self.own.counted, now), now)
    }

    fn count_part(&self) -> Parts {
        let part = self.own.part;
        let left = |pool| part.of(pool).saturating_sub(self.uses(pool));
        let kept = Parts {
            log: left(Pool::Log),
            map: left(Pool::Map),
        };
        assert!(
            kept.log <= part.log && kept.map <= part.map,
            "it keeps of its part"
        );
        kept
    }

    fn count_copy(&self) -> Counted {
        let LogRoom { blocks, extents } = self.room_promise().held();
        let held = Parts {
            log: blocks,
            map: extents,
        };
        Counted {
            kept: held,
            promised: held,
            copy: Parts {
                log: blocks + self.uses(Pool::Log),
                map: extents + self.uses(Pool::Map),
            },
        }
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
        assert_eq!(volume.take_part(part), Counted::default());
        volume.has_come();
        let kept = Counted {
            kept: part,
            ..Counted::default()
        };
        assert_eq!(volume.recount_kept(), (Counted::default(), kept));
        assert_eq!((volume.part(Pool::Log), volume.kept(Pool::Map)), (8, 4));
    }
}
