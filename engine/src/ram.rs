//! The read tier: clean blocks of origins in RAM, behind the interface of the clean cache.
//!
//! Owns which block of which layer lies in which block of [`Area::Ram`](crate::memory::Area).
//! Always true: a block is found only after its bytes are complete, and never after the layer
//! under it was written since its read was issued; a slot is free, in the queues of eviction,
//! being filled, or pinned while it is written to flash. Deliberately absent: who leaves when it
//! is full, see `evict`; and flash, see `lines`.

use crate::adversary::{Bug, Mark, has, mark};
use crate::evict::S3Fifo;
use crate::memory::{Area, Memory, Place};
use crate::types::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES, Span};
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Blocks of the largest write that goes to the tier; larger ones are streams, which are seldom
/// read back soon.
pub const KEPT_BLOCKS_MAX: u64 = 64;
/// A block that is complete at once belongs to no fill.
const NO_FILL: u32 = u32::MAX;

/// Which image a clean block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layer(pub u64);

/// A block of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub layer: Layer,
    pub block: u64,
}

/// What the tier knows about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    Hit(u32),
    /// On its way: the fill that brings it.
    Filling(u32),
    Miss,
}

/// What became of a block whose bytes are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was invalidated meanwhile.
    Overtaken,
    New,
    /// It had left not long ago, or was expected.
    Again,
}

/// What stands between epochs and origin. The read tier is its first form.
pub trait CleanCache {
    fn lookup(&mut self, key: Key) -> Lookup;
    /// Takes a place for a block that the fill will bring; `None` when all are busy.
    fn reserve(&mut self, key: Key, fill: u32) -> Option<u32>;
    /// The bytes are complete.
    fn publish(&mut self, slot: u32) -> Published;
    /// The bytes will not come.
    fn abandon(&mut self, slot: u32);
    /// The layer was written: these blocks are stale, those on their way as well.
    fn invalidate(&mut self, layer: Layer, first_block: u64, blocks: u64);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Filling(u32),
    /// Was invalidated while its bytes were on their way, or while it was pinned.
    Stale,
    Valid,
    /// Valid, and being written to the cache device: it can be read and does not leave.
    Pinned,
}

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    state: SlotState,
}

/// Blocks of origins in RAM.
pub struct RamTier {
    slots: Vec<Slot>,
    /// Slots by the hash of their keys.
    index: HashTable<u32>,
    free: Vec<u32>,
    queues: S3Fifo,
    seed: u64,
}

const NO_KEY: Key = Key {
    layer: Layer(0),
    block: 0,
};

impl Key {
    /// Multiply-and-fold hashing with a seed that the host passes in.
    pub fn hash(self, seed: u64) -> u64 {
        [self.layer.0, self.block]
            .into_iter()
            .fold(seed, |hash, value| {
                let product = u128::from(hash ^ value) * 0x9e37_79b9_7f4a_7c15;
                (product >> 64) as u64 ^ product as u64
            })
    }
}

impl RamTier {
    /// The origin has these bytes: whole blocks of them go to the tier. No other write touches
    /// such a block, and no fill does, because both would overlap this one.
    pub fn keep_written(&mut self, memory: &mut dyn Memory, layer: Layer, span: Span, from: Place) {
        let first = span.sector.div_ceil(BLOCK_SECTORS);
        let end = span.end() / BLOCK_SECTORS;
        if end.saturating_sub(first) > KEPT_BLOCKS_MAX {
            return;
        }
        for block in first..end {
            let key = Key { layer, block };
            let found = self.lookup(key);
            assert_eq!(found, Lookup::Miss, "what is being written is not filled");
            let from = from.plus((block * BLOCK_SECTORS - span.sector) * SECTOR_BYTES);
            if !self.bring(memory, key, from) {
                return;
            }
        }
    }

    /// Takes a block whose bytes are there, unless the tier has it.
    pub fn keep(&mut self, memory: &mut dyn Memory, key: Key, from: Place) {
        if self.lookup(key) == Lookup::Miss {
            self.bring(memory, key, from);
        }
    }

    /// False if there is no place.
    fn bring(&mut self, memory: &mut dyn Memory, key: Key, from: Place) -> bool {
        let Some(slot) = self.reserve(key, NO_FILL) else {
            return false;
        };
        memory.copy(from, RamTier::place(slot), BLOCK_BYTES);
        let published = self.publish(slot);
        assert!(published != Published::Overtaken, "nothing came between");
        true
    }

    pub fn new(blocks: u32, seed: u64) -> RamTier {
        let empty = Slot {
            key: NO_KEY,
            state: SlotState::Free,
        };
        RamTier {
            slots: alloc::vec![empty; blocks as usize],
            index: HashTable::with_capacity(blocks as usize),
            free: (0..blocks).rev().collect(),
            queues: S3Fifo::new(blocks as usize),
            seed,
        }
    }

    pub fn place(slot: u32) -> Place {
        Place::new(Area::Ram, u64::from(slot) * BLOCK_BYTES)
    }

    pub fn used(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    pub fn blocks(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Blocks of a layer that can be read, among so many places from `from` on.
    pub fn blocks_of(
        &self,
        layer: Layer,
        from: u32,
        places: u32,
    ) -> impl Iterator<Item = u64> + '_ {
        let there = |slot: &&Slot| matches!(slot.state, SlotState::Valid | SlotState::Pinned);
        let slots = self.slots.iter().skip(from as usize).take(places as usize);
        slots
            .filter(there)
            .filter(move |slot| slot.key.layer == layer)
            .map(|slot| slot.key.block)
    }

    pub fn index_bytes(&self) -> u64 {
        let slots = self.slots.len() * (size_of::<Slot>() + size_of::<u32>());
        (slots + self.index.allocation_size() + self.queues.bytes()) as u64
    }

    fn find(&self, key: Key) -> Option<u32> {
        let same = |slot: &u32| self.slots[*slot as usize].key == key;
        self.index.find(key.hash(self.seed), same).copied()
    }

    fn unindex(&mut self, slot: u32) {
        let hash = self.slots[slot as usize].key.hash(self.seed);
        let Ok(entry) = self.index.find_entry(hash, |&other| other == slot) else {
            unreachable!("a block with content is in the index");
        };
        entry.remove();
    }

    /// All that is of one layer is of another one from now on. Looks at every block.
    pub fn rename(&mut self, from: Layer, to: Layer) {
        assert!(from != to, "a layer has another name afterwards");
        for slot in 0..self.slots.len() as u32 {
            let Slot { key, state } = self.slots[slot as usize];
            if key.layer != from || matches!(state, SlotState::Free | SlotState::Stale) {
                continue;
            }
            self.unindex(slot);
            let key = Key { layer: to, ..key };
            assert!(self.find(key).is_none(), "the other one is new");
            self.slots[slot as usize].key = key;
            let (slots, seed) = (&self.slots, self.seed);
            self.index.insert_unique(key.hash(seed), slot, |&slot| {
                slots[slot as usize].key.hash(seed)
            });
        }
    }

    fn release(&mut self, slot: u32) {
        let slot_now = &mut self.slots[slot as usize];
        assert!(slot_now.state != SlotState::Free, "a slot is freed once");
        slot_now.state = SlotState::Free;
        self.free.push(slot);
        assert!(self.free.len() <= self.slots.len());
    }

    fn evict(&mut self) -> Option<u32> {
        let (slots, seed) = (&self.slots, self.seed);
        let slot = self
            .queues
            .evict(|slot| slots[slot as usize].key.hash(seed))?;
        assert!(
            slots[slot as usize].state == SlotState::Valid,
            "what is filled or pinned stays"
        );
        self.unindex(slot);
        Some(slot)
    }

    /// Keeps a block where it is until `unpin`. False if it is gone already.
    pub fn pin(&mut self, slot: u32) -> bool {
        let valid = self.slots[slot as usize].state == SlotState::Valid;
        if valid {
            debug_assert!(self.find(self.slots[slot as usize].key) == Some(slot));
            self.queues.remove(slot);
            self.slots[slot as usize].state = SlotState::Pinned;
        }
        valid
    }

    /// Whether a pinned block is still what its layer holds.
    pub fn is_good(&self, slot: u32) -> bool {
        self.slots[slot as usize].state == SlotState::Pinned
    }

    pub fn unpin(&mut self, slot: u32) {
        match self.slots[slot as usize].state {
            SlotState::Pinned => {
                self.slots[slot as usize].state = SlotState::Valid;
                self.queues.put_back(slot);
            }
            SlotState::Stale => self.release(slot),
            _ => unreachable!("only pinned blocks are unpinned"),
        }
    }

    /// Somebody has asked for a block. True if it is the first time for a while.
    pub fn hit(&mut self, slot: u32) -> bool {
        self.queues.hit(slot)
    }

    /// The block was written a moment ago: should it be read it counts as asked for again.
    pub fn expect(&mut self, key: Key) {
        self.queues.expect(key.hash(self.seed));
    }

    fn drop_block(&mut self, slot: u32) {
        match self.slots[slot as usize].state {
            SlotState::Valid => {
                self.unindex(slot);
                self.queues.remove(slot);
                self.release(slot);
            }
            SlotState::Filling(_) if has(Bug::KeepOvertakenFill) => {}
            SlotState::Filling(_) | SlotState::Pinned => {
                self.unindex(slot);
                self.slots[slot as usize].state = SlotState::Stale;
            }
            SlotState::Free | SlotState::Stale => {}
        }
    }
}

impl CleanCache for RamTier {
    fn lookup(&mut self, key: Key) -> Lookup {
        let Some(slot) = self.find(key) else {
            return Lookup::Miss;
        };
        match self.slots[slot as usize].state {
            SlotState::Filling(fill) => Lookup::Filling(fill),
            _ => Lookup::Hit(slot),
        }
    }

    fn reserve(&mut self, key: Key, fill: u32) -> Option<u32> {
        assert!(self.find(key).is_none(), "a block is filled once at a time");
        let slot = self.free.pop().or_else(|| self.evict())?;
        self.slots[slot as usize] = Slot {
            key,
            state: SlotState::Filling(fill),
        };
        let (slots, seed) = (&self.slots, self.seed);
        self.index.insert_unique(key.hash(seed), slot, |&slot| {
            slots[slot as usize].key.hash(seed)
        });
        assert!(
            self.index.len() + self.free.len() <= self.slots.len(),
            "a free slot is not found"
        );
        Some(slot)
    }

    fn publish(&mut self, slot: u32) -> Published {
        match self.slots[slot as usize].state {
            SlotState::Filling(_) => {
                self.slots[slot as usize].state = SlotState::Valid;
                let hash = self.slots[slot as usize].key.hash(self.seed);
                match self.queues.insert(slot, hash) {
                    true => Published::Again,
                    false => Published::New,
                }
            }
            SlotState::Stale => {
                mark(Mark::OvertakenFill);
                self.release(slot);
                Published::Overtaken
            }
            _ => unreachable!("only fills are published"),
        }
    }

    fn abandon(&mut self, slot: u32) {
        assert!(
            matches!(
                self.slots[slot as usize].state,
                SlotState::Filling(_) | SlotState::Stale
            ),
            "only fills are abandoned"
        );
        self.drop_block(slot);
        self.release(slot);
    }

    fn invalidate(&mut self, layer: Layer, first_block: u64, blocks: u64) {
        if blocks <= self.slots.len() as u64 {
            for block in first_block..first_block + blocks {
                if let Some(slot) = self.find(Key { layer, block }) {
                    self.drop_block(slot);
                }
            }
            return;
        }
        // A range larger than the tier is cheaper the other way round.
        for slot in 0..self.slots.len() {
            let key = self.slots[slot].key;
            let inside = key.block >= first_block && key.block < first_block + blocks;
            if key.layer == layer && inside {
                self.drop_block(slot as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> Key {
        Key {
            layer: Layer(1),
            block,
        }
    }

    #[test]
    fn a_block_invalidated_on_its_way_is_not_published() {
        let mut tier = RamTier::new(4, 9);
        let slot = tier.reserve(key(7), 0).expect("room");
        tier.invalidate(Layer(1), 7, 1);
        assert_eq!(tier.lookup(key(7)), Lookup::Miss);
        assert_eq!(tier.publish(slot), Published::Overtaken);
        assert_eq!(tier.lookup(key(7)), Lookup::Miss);
        assert_eq!(tier.used(), 0);
    }

    #[test]
    fn blocks_that_are_hit_outlive_those_that_are_not() {
        let mut tier = RamTier::new(4, 9);
        for block in 0..4 {
            let slot = tier.reserve(key(block), 0).expect("room");
            assert_eq!(tier.publish(slot), Published::New);
        }
        let Lookup::Hit(slot) = tier.lookup(key(2)) else {
            panic!("it was just published");
        };
        assert!(tier.hit(slot) && !tier.hit(slot));
        for block in 10..13 {
            let slot = tier.reserve(key(block), 0).expect("room");
            assert_eq!(tier.publish(slot), Published::New);
        }
        assert!(matches!(tier.lookup(key(2)), Lookup::Hit(_)));
        assert_eq!(tier.lookup(key(0)), Lookup::Miss);
    }

    #[test]
    fn a_pinned_block_is_found_and_stays_until_it_is_given_back() {
        let mut tier = RamTier::new(2, 9);
        let slot = tier.reserve(key(7), 0).expect("room");
        assert!(tier.publish(slot) == Published::New && tier.pin(slot));
        assert!(!tier.pin(slot));
        for block in 10..13 {
            let other = tier.reserve(key(block), 0).expect("room");
            assert!(other != slot && tier.publish(other) == Published::New);
        }
        assert_eq!(tier.lookup(key(7)), Lookup::Hit(slot));
        assert!(tier.is_good(slot));
        tier.invalidate(Layer(1), 7, 1);
        assert!(!tier.is_good(slot));
        assert_eq!(tier.lookup(key(7)), Lookup::Miss);
        assert!(!tier.slots.is_empty() && tier.free.is_empty());
        tier.unpin(slot);
        assert_eq!(tier.free, [slot]);
    }

    /// Fails when: a block is found under the layer that it was of, or not under the new one.
    #[test]
    fn blocks_of_a_layer_that_is_renamed_are_found_under_the_new_name() {
        let mut tier = RamTier::new(4, 9);
        let other = Key {
            layer: Layer(2),
            block: 7,
        };
        for (fill, key) in [key(7), key(8), other].into_iter().enumerate() {
            let slot = tier.reserve(key, fill as u32).expect("room");
            if key.block == 7 {
                assert_eq!(tier.publish(slot), Published::New);
            }
        }
        tier.rename(Layer(1), Layer(9));
        let renamed = |block| Key {
            layer: Layer(9),
            block,
        };
        assert!(matches!(tier.lookup(renamed(7)), Lookup::Hit(_)));
        assert_eq!(tier.lookup(renamed(8)), Lookup::Filling(1));
        assert!(matches!(tier.lookup(other), Lookup::Hit(_)));
        assert_eq!(tier.lookup(key(7)), Lookup::Miss);
        assert_eq!(tier.lookup(key(8)), Lookup::Miss);
    }

    #[test]
    fn when_all_blocks_are_being_filled_there_is_no_room() {
        let mut tier = RamTier::new(2, 9);
        assert!(tier.reserve(key(0), 0).is_some() && tier.reserve(key(1), 0).is_some());
        assert_eq!(tier.reserve(key(2), 0), None);
    }
}
