//! The read tier: clean blocks of origins in RAM, behind the interface of the clean cache.
//!
//! Owns which block of which layer lies in which block of [`Area::Ram`](crate::memory::Area).
//! Always true: a block is found only after its bytes are complete, and never after the layer
//! under it was written since its read was issued. Eviction is a clock with two-bit counters.
//! Deliberately absent: flash; the lines on SSD come behind the same interface.

use crate::memory::{Area, Place};
use crate::types::BLOCK_BYTES;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hasher};
use hashbrown::HashMap;

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

/// What stands between epochs and origin. The read tier is its first form.
pub trait CleanCache {
    fn lookup(&mut self, key: Key) -> Lookup;
    /// Takes a place for a block that the fill will bring; `None` when all are busy.
    fn reserve(&mut self, key: Key, fill: u32) -> Option<u32>;
    /// The bytes are complete. False if the block was invalidated meanwhile.
    fn publish(&mut self, slot: u32) -> bool;
    /// The bytes will not come.
    fn abandon(&mut self, slot: u32);
    /// The layer was written: these blocks are stale, those on their way as well.
    fn invalidate(&mut self, layer: Layer, first_block: u64, blocks: u64);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Filling(u32),
    /// Was invalidated while its bytes were on their way.
    Stale,
    Valid,
}

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    state: SlotState,
    hits: u8,
}

/// Multiply-and-fold hashing with a seed that the host passes in.
#[derive(Clone)]
struct Seeded(u64);

struct SeededHasher(u64);

impl BuildHasher for Seeded {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

impl Hasher for SeededHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Blocks of origins in RAM.
pub struct RamTier {
    slots: Vec<Slot>,
    index: HashMap<Key, u32, Seeded>,
    hand: usize,
    used: u64,
}

const NO_KEY: Key = Key {
    layer: Layer(0),
    block: 0,
};
/// Counters have two bits.
const HITS_MAX: u8 = 3;

impl RamTier {
    pub fn new(blocks: u32, seed: u64) -> RamTier {
        let empty = Slot {
            key: NO_KEY,
            state: SlotState::Free,
            hits: 0,
        };
        RamTier {
            slots: alloc::vec![empty; blocks as usize],
            index: HashMap::with_hasher(Seeded(seed)),
            hand: 0,
            used: 0,
        }
    }

    pub fn place(slot: u32) -> Place {
        Place::new(Area::Ram, u64::from(slot) * BLOCK_BYTES)
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn blocks(&self) -> u64 {
        self.slots.len() as u64
    }

    pub fn index_bytes(&self) -> u64 {
        (self.slots.len() * size_of::<Slot>() + self.index.capacity() * size_of::<(Key, u32)>())
            as u64
    }

    /// Turns the hand until a slot is free. Two rounds of a full tier always end it, because
    /// each pass takes hits away; slots being filled are passed over.
    fn evict(&mut self) -> Option<u32> {
        let rounds = self.slots.len() * (usize::from(HITS_MAX) + 1);
        for _ in 0..rounds {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            match slot.state {
                SlotState::Free => return Some(at as u32),
                SlotState::Valid if slot.hits == 0 => {
                    let removed = self.index.remove(&slot.key);
                    assert_eq!(removed, Some(at as u32), "a valid block is in the index");
                    slot.state = SlotState::Free;
                    self.used -= 1;
                    return Some(at as u32);
                }
                SlotState::Valid => slot.hits -= 1,
                SlotState::Filling(_) | SlotState::Stale => {}
            }
        }
        None
    }

    fn drop_block(&mut self, slot_at: u32) {
        let slot = &mut self.slots[slot_at as usize];
        match slot.state {
            SlotState::Valid => {
                slot.state = SlotState::Free;
                self.used -= 1;
            }
            SlotState::Filling(_) => slot.state = SlotState::Stale,
            SlotState::Free | SlotState::Stale => return,
        }
        self.index.remove(&slot.key);
    }
}

impl CleanCache for RamTier {
    fn lookup(&mut self, key: Key) -> Lookup {
        let Some(&at) = self.index.get(&key) else {
            return Lookup::Miss;
        };
        let slot = &mut self.slots[at as usize];
        match slot.state {
            SlotState::Filling(fill) => Lookup::Filling(fill),
            _ => {
                slot.hits = (slot.hits + 1).min(HITS_MAX);
                Lookup::Hit(at)
            }
        }
    }

    fn reserve(&mut self, key: Key, fill: u32) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let at = self.evict()?;
        assert!(
            !self.index.contains_key(&key),
            "a block is filled once at a time"
        );
        self.slots[at as usize] = Slot {
            key,
            state: SlotState::Filling(fill),
            hits: 0,
        };
        self.index.insert(key, at);
        self.used += 1;
        Some(at)
    }

    fn publish(&mut self, slot_at: u32) -> bool {
        let slot = &mut self.slots[slot_at as usize];
        match slot.state {
            SlotState::Filling(_) => {
                slot.state = SlotState::Valid;
                true
            }
            SlotState::Stale => {
                slot.state = SlotState::Free;
                self.used -= 1;
                false
            }
            SlotState::Free | SlotState::Valid => unreachable!("only fills are published"),
        }
    }

    fn abandon(&mut self, slot_at: u32) {
        if self.publish(slot_at) {
            self.drop_block(slot_at);
        }
    }

    fn invalidate(&mut self, layer: Layer, first_block: u64, blocks: u64) {
        if blocks <= self.slots.len() as u64 {
            for block in first_block..first_block + blocks {
                if let Some(&slot) = self.index.get(&Key { layer, block }) {
                    self.drop_block(slot);
                }
            }
            return;
        }
        // A range larger than the tier is cheaper the other way round.
        for at in 0..self.slots.len() {
            let key = self.slots[at].key;
            let inside = key.block >= first_block && key.block < first_block + blocks;
            if key.layer == layer && inside {
                self.drop_block(at as u32);
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
        assert!(!tier.publish(slot));
        assert_eq!(tier.lookup(key(7)), Lookup::Miss);
        assert_eq!(tier.used(), 0);
    }

    #[test]
    fn blocks_that_are_hit_outlive_those_that_are_not() {
        let mut tier = RamTier::new(4, 9);
        for block in 0..4 {
            let slot = tier.reserve(key(block), 0).expect("room");
            assert!(tier.publish(slot));
        }
        assert!(matches!(tier.lookup(key(2)), Lookup::Hit(_)));
        for block in 10..13 {
            let slot = tier.reserve(key(block), 0).expect("room");
            assert!(tier.publish(slot));
        }
        assert!(matches!(tier.lookup(key(2)), Lookup::Hit(_)));
        assert_eq!(tier.lookup(key(0)), Lookup::Miss);
    }

    #[test]
    fn when_all_blocks_are_being_filled_there_is_no_room() {
        let mut tier = RamTier::new(2, 9);
        assert!(tier.reserve(key(0), 0).is_some() && tier.reserve(key(1), 0).is_some());
        assert_eq!(tier.reserve(key(2), 0), None);
    }
}
