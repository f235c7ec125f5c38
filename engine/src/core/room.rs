//! Room in the log for copies of other hosts' volumes: how much there is, and what each is
//! promised.
//!
//! ```text
//! log and map     ├── parts of guests: half ──┤├── in common: half ─────────────────────┤
//! copies take of it                            ├ what they have ┤├ promised ┤   at most half
//! ```
//! Copies together have and are promised at most half of the log and half of the map, so that
//! guests always have their parts; what was promised is no other one's to take, a guest's included,
//! so that a copy never waits for room; what was not promised goes to the first that asks. A copy
//! is promised a window ahead of what has come: as much as a link carries in some milliseconds, and
//! together no more than an eighth, so that copies without writes hold little. One that has more
//! than an even share leaves a quarter of what copies may have to those that have less, so that the
//! copy of a slow owner does not stop the others.
//!
//! Always true: a promise is kept. What an owner who is gone has left here keeps its room, and a
//! new copy is refused instead. Deliberately absent: the counts of one copy (`volume::credit`); a
//! replica that is to be a volume of this host, which takes room as these do.

use super::share::{Budgets, Shares};
use crate::event::{Credit, LogRoom};
use crate::snapshot::CopyRoom;
use crate::types::{BLOCK_BYTES, Time};
use crate::volume::Volume;
use crate::volume::replica::PARTS_MAX;
use crate::volume::share::Pool;

/// Of log and map; the rest are parts of guests.
const COPIES_PART: u64 = 2;
/// All windows together are this part of what copies may have.
const WINDOWS_PART: u64 = 8;
/// What those with more than their share leave to the others.
const LEFT_PART: u64 = 4;
/// More than a link of 100 Gbit/s carries in a millisecond: 16 MiB.
const WINDOW_BLOCKS_MAX: u64 = 4096;

/// What the largest batch takes, of which the payload fits a piece of memory: with less than that a
/// copy may be stuck.
pub fn batch_max(piece_bytes: u64) -> LogRoom {
    let blocks = piece_bytes / BLOCK_BYTES;
    let parts = PARTS_MAX as u64;
    LogRoom {
        blocks: blocks + 3 * parts,
        extents: blocks / 2 + 4 * parts,
    }
}

impl Budgets {
    /// What all copies together may have.
    fn copies_max(&self) -> LogRoom {
        LogRoom {
            blocks: self.log.capacity / COPIES_PART,
            extents: self.map.capacity / COPIES_PART,
        }
    }
}

impl Shares {
    fn copies_have(&self) -> LogRoom {
        let of = |pool| self.taken_by_copies(pool);
        LogRoom {
            blocks: of(Pool::Log),
            extents: of(Pool::Map),
        }
    }

    /// What can be promised now.
    fn free_for_copies(&self, budgets: Budgets) -> LogRoom {
        let rest = |pool| {
            let budget = budgets.of(pool);
            let held = budget.used + self.kept_by_all(pool);
            budget.capacity.saturating_sub(held)
        };
        let rest = LogRoom {
            blocks: rest(Pool::Log),
            extents: rest(Pool::Map),
        };
        let left = budgets.copies_max().less(self.copies_have());
        left.with(rest, u64::min)
    }

    /// Another copy may begin, whose largest batch takes so much.
    pub fn has_room_for_copy(&self, budgets: Budgets, batch_max: LogRoom) -> bool {
        self.free_for_copies(budgets).holds(batch_max)
    }

    /// What a copy may still be promised.
    fn free_for(&self, volume: &Volume, budgets: Budgets) -> LogRoom {
        let has = LogRoom {
            blocks: volume.taken_by_copy(Pool::Log),
            extents: volume.taken_by_copy(Pool::Map),
        };
        let (max, copies) = (budgets.copies_max(), self.copies().max(1));
        let left = |has: u64, max: u64| match copies > 1 && has >= max / copies {
            true => max / LEFT_PART,
            false => 0,
        };
        self.free_for_copies(budgets).less(has.with(max, left))
    }

    /// A copy is promised what there is, up to its window; for an owner that is short that is as
    /// much as its largest batch.
    pub fn renew_credit(
        &mut self,
        now: Time,
        volume: &mut Volume,
        budgets: Budgets,
        batch_max: LogRoom,
    ) {
        if !volume.is_copy() || volume.is_frozen() {
            return;
        }
        let asked = volume.room_promise_mut().take_asked();
        let left = volume.room_promise().left();
        let free = self.free_for(volume, budgets);
        let windows = WINDOWS_PART * self.copies().max(1);
        let window = budgets.copies_max().with(batch_max, |max, batch| {
            let least = if asked { batch } else { 0 };
            (max / windows).min(WINDOW_BLOCKS_MAX).max(least)
        });
        let more = window.less(left).with(free, u64::min);
        let promise = volume.room_promise_mut();
        promise.renew(more);
        if asked && more == LogRoom::default() && !left.holds(batch_max) {
            promise.asked_in_vain(now);
        } else {
            promise.moves();
        }
        self.recount(volume);
        let (have, max) = (self.copies_have(), budgets.copies_max());
        assert!(
            more.blocks == 0 || have.blocks <= max.blocks,
            "copies are promised their part of the log"
        );
        assert!(
            more.extents == 0 || have.extents <= max.extents,
            "and of the map"
        );
    }

    /// What the owner of a copy is told.
    pub fn credit(&self, volume: &Volume, budgets: Budgets) -> Option<Credit> {
        if !volume.is_copy() {
            return volume.is_replica().then_some(Credit::ALL);
        }
        let has = LogRoom {
            blocks: volume.taken_by_copy(Pool::Log),
            extents: volume.taken_by_copy(Pool::Map),
        };
        Some(Credit {
            upto: volume.room_promise().upto(),
            most: has.plus(self.free_for(volume, budgets)),
        })
    }

    pub fn show_copy_room(&self, budgets: Budgets, batch_max: LogRoom) -> CopyRoom {
        // A copy needs both: the one that is shorter counts.
        let (max, has) = (budgets.copies_max(), self.copies_have());
        let free = self.free_for_copies(budgets);
        let by_map = match max.extents {
            0 => 0,
            all => u128::from(free.extents) * u128::from(max.blocks) / u128::from(all),
        };
        let free = u128::from(free.blocks).min(by_map) as u64;
        CopyRoom {
            max_bytes: max.blocks * BLOCK_BYTES,
            taken_bytes: has.blocks * BLOCK_BYTES,
            free_bytes: free * BLOCK_BYTES,
            begins: self.has_room_for_copy(budgets, batch_max),
        }
    }
}
