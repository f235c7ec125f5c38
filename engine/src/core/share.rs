//! What a volume has of the log and of the map of dirty extents.
//!
//! Half of both is divided among the volumes that write, and nobody can take another's part: each
//! has what it reserved; of the rest one half goes evenly, one half by weight. The other half goes
//! to who comes, and when it is short in turn, by bytes and weight. So one that cannot destage
//! stops itself only, and one with little weight is never without a share. Copies of other hosts'
//! volumes have no part: what they were promised is theirs, of the other half ([`super::room`]).
//!
//! What the parts of all volumes still have to give is counted when one of them changes
//! ([`Shares::recount`]), because a host has thousands and each write asks.
//!
//! Always true: all parts together are at most half of a budget (rule 5.2.8); a write within its
//! volume's part waits for no other volume; none takes what a copy was promised. That reserves fit
//! is for the host to check; too many shrink. Deliberately absent: the volume's own limit, and
//! room in segments.

use crate::adversary::{Bug, has};
use crate::event::Share;
use crate::round_robin::{RoundRobin, WEIGHT_MAX};
use crate::types::{BLOCK_BYTES, Time, VolumeId};
use crate::volume::share::{Parts, Pool};
use crate::volume::{Volume, Volumes};

/// Room that the heaviest of those who wait gets in one round.
const QUANTUM_BYTES: u64 = 1 << 20;

/// Room that nobody takes for so long is for who comes first.
const PATIENCE_NS: u64 = 50_000_000;

const _: () = assert!(
    QUANTUM_BYTES >= WEIGHT_MAX as u64,
    "the lightest gets something"
);

/// Of all volumes that may hold dirty data.
#[derive(Clone, Copy, Default)]
pub struct Reserved {
    writers: u64,
    weights: u64,
    blocks: u64,
    /// What their parts still have to give, and what copies were promised.
    kept: Parts,
    copies: u64,
    /// What copies were promised, and that with what they use.
    promised: Parts,
    copied: Parts,
}

/// Something that all volumes take from.
#[derive(Clone, Copy)]
pub struct Budget {
    pub capacity: u64,
    pub used: u64,
}

/// All that volumes take from.
#[derive(Clone, Copy)]
pub struct Budgets {
    pub log: Budget,
    pub map: Budget,
}

impl Budgets {
    pub fn of(&self, pool: Pool) -> Budget {
        match pool {
            Pool::Log => self.log,
            Pool::Map => self.map,
        }
    }
}

/// Where there is room for a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    None,
    /// Only in what is nobody's own.
    Common,
    Own,
}

fn min_blocks(share: Share) -> u64 {
    share.min_bytes.div_ceil(BLOCK_BYTES)
}

/// The part of a pool of `capacity` that nobody can take from a volume that writes.
fn part(reserved: &Reserved, volume: &Volume, log_capacity: u64, capacity: u64) -> u64 {
    let log_half = (log_capacity / 2).max(1);
    let Reserved {
        writers,
        weights,
        blocks,
        ..
    } = *reserved;
    // A volume that was attached with a reserve that does not fit any more has less.
    let min = min_blocks(volume.tuning().share) * log_half / blocks.max(log_half);
    let rest = log_half.saturating_sub(blocks);
    let weight = u64::from(volume.tuning().share.weight);
    let even = rest / 2 / writers.max(1);
    let weighted = rest / 2 * weight / weights.max(weight);
    let of_log = u128::from(min + even + weighted);
    (of_log * u128::from(capacity / 2) / u128::from(log_half)) as u64
}

/// What the parts of all volumes have to give, and who may take of the room in common.
pub struct Shares {
    /// What the volumes that may hold dirty data have reserved.
    reserved: Reserved,
    /// Whose waiting writes may take of the room in common.
    admission: RoundRobin,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            reserved: Reserved::default(),
            admission: RoundRobin::new(QUANTUM_BYTES, PATIENCE_NS),
        }
    }
}

impl Shares {
    /// What the parts of other volumes than this one have to give.
    fn kept_by_others(&self, volume: &Volume, pool: Pool) -> u64 {
        let (all, own) = (self.reserved.kept.of(pool), volume.kept(pool));
        assert!(own <= all, "what a volume keeps is counted");
        all - own
    }

    /// To be called when a volume has come or gone, or takes from the pools in another way.
    pub fn count_writers(&mut self, volumes: &mut Volumes, budgets: Budgets) {
        let mut reserved = Reserved::default();
        for volume in volumes.iter().filter(|v| v.takes_log()) {
            if volume.is_copy() {
                reserved.copies += 1;
                continue;
            }
            reserved.writers += 1;
            reserved.weights += u64::from(volume.tuning().share.weight);
            reserved.blocks += min_blocks(volume.tuning().share);
        }
        let capacity = [budgets.log.capacity, budgets.map.capacity];
        for volume in volumes.iter_mut() {
            let [log, map] = match volume.is_copy() {
                true => [0, 0],
                false => capacity.map(|it| part(&reserved, volume, capacity[0], it)),
            };
            let counted = volume.take_part(Parts { log, map });
            exchange(&mut reserved.kept, Parts::default(), counted.kept);
            exchange(&mut reserved.promised, Parts::default(), counted.promised);
            exchange(&mut reserved.copied, Parts::default(), counted.copy);
        }
        let Parts { log, map } = reserved.promised;
        assert!(
            reserved.kept.log - log <= capacity[0] / 2
                && reserved.kept.map - map <= capacity[1] / 2,
            "all parts together are half of a pool"
        );
        self.reserved = reserved;
    }

    /// To be called when what a volume holds dirty has changed.
    pub fn recount(&mut self, volume: &mut Volume) {
        let (before, now) = volume.recount_kept();
        exchange(&mut self.reserved.kept, before.kept, now.kept);
        exchange(&mut self.reserved.promised, before.promised, now.promised);
        exchange(&mut self.reserved.copied, before.copy, now.copy);
    }

    /// That nobody was forgotten.
    #[cfg(feature = "adversary")]
    pub fn check(&mut self, volumes: &mut Volumes, budgets: Budgets) {
        let sums = |of: &Reserved| (of.kept, of.promised, of.copied);
        let counted = sums(&self.reserved);
        self.count_writers(volumes, budgets);
        assert_eq!(counted, sums(&self.reserved), "all changes are counted");
    }

    /// What a volume may have of a pool in all: its part, and what is left when the others have
    /// theirs.
    pub fn most(&self, volume: &Volume, budgets: Budgets, pool: Pool) -> u64 {
        let budget = budgets.of(pool);
        let others = self.kept_by_others(volume, pool);
        let free = (volume.uses(pool) + budget.capacity).saturating_sub(budget.used + others);
        volume.part(pool).max(free)
    }

    /// Whether a volume may take `need` more of a pool.
    pub fn room_for(&self, volume: &Volume, budgets: Budgets, pool: Pool, need: u64) -> Room {
        // All parts together are half of the budget, so below it none is in danger.
        let budget = budgets.of(pool);
        let promised = self.reserved.promised.of(pool);
        if budget.used + promised + need <= budget.capacity / 2 {
            return Room::Own;
        }
        if volume.uses(pool) + need <= volume.part(pool) {
            return Room::Own;
        }
        let mut others = self.kept_by_others(volume, pool);
        if has(Bug::TakePromisedRoom) {
            others -= promised;
        }
        if budget.used + need + others <= budget.capacity {
            Room::Common
        } else {
            Room::None
        }
    }

    /// What no volume may take that it was not given to.
    pub fn kept_by_all(&self, pool: Pool) -> u64 {
        self.reserved.kept.of(pool)
    }

    pub fn copies(&self) -> u64 {
        self.reserved.copies
    }

    /// What all copies use, and were promised.
    pub fn taken_by_copies(&self, pool: Pool) -> u64 {
        self.reserved.copied.of(pool)
    }

    /// Whether a volume may take of the room in common: at once while no other waits for it, else
    /// in turn.
    pub fn may_take_common(&mut self, now: Time, id: VolumeId, room: Room, weight: u32) -> bool {
        if room == Room::Own || (room == Room::Common && !self.admission.is_contended(now)) {
            return true;
        }
        if !self.admission.is_at_work(now, id) {
            // What it did not take in time is not its own any more.
            self.admission.rest(id);
        }
        self.admission.join(now, id, 0, weight);
        room == Room::Common && self.admission.may(now, id)
    }

    /// A volume is at work in the common room: its turn is used.
    pub fn spend(&mut self, now: Time, id: VolumeId, blocks: u64) {
        if self.admission.is_at_work(now, id) {
            self.admission.spend(now, id, blocks * BLOCK_BYTES);
        }
    }

    pub fn forget(&mut self, id: VolumeId) {
        self.admission.forget(id);
    }
}

/// One of those that a sum is made of has changed.
fn exchange(all: &mut Parts, before: Parts, now: Parts) {
    assert!(
        before.log <= all.log && before.map <= all.map,
        "what a volume keeps is counted"
    );
    all.log = all.log + now.log - before.log;
    all.map = all.map + now.map - before.map;
    assert!(all.log >= now.log && all.map >= now.map);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_room_goes_in_turn_only_while_it_is_short() {
        let mut shares = Shares::default();
        let (one, other) = (VolumeId(1), VolumeId(2));
        assert!(shares.may_take_common(Time(0), one, Room::Common, 100));
        assert!(!shares.may_take_common(Time(0), one, Room::None, 100));
        assert!(!shares.may_take_common(Time(0), other, Room::None, 100));
        assert!(shares.may_take_common(Time(0), one, Room::Common, 100));
        shares.spend(Time(0), one, 1 << 20);
        assert!(!shares.may_take_common(Time(0), one, Room::Common, 100));
        assert!(shares.may_take_common(Time(0), other, Room::Own, 100));
        shares.forget(one);
    }
}
