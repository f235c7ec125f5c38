//! Sectors of tables that were read: a bounded store with one clock.
//!
//! Owns the memory for tables of all files of its owner. Always true: never more sectors than its
//! capacity; a sector that was asked for again survives the next round of the clock; what is
//! forgotten is asked for again and nothing else happens. Deliberately absent: reading, and what
//! the sectors mean.
//!
//! Progress: a call of [`resolve`](crate::resolve::resolve) on the deepest chain needs 128 sectors.
//! One fill brings 1/256 of the capacity beside the sector that was wanted, so what was asked for
//! before stays until the call has all it needs, at any capacity from [`SECTORS_MIN`] on. What a
//! plan has written may push a part of that out, once for each plan.

use crate::types::{FileId, Range, SECTOR_BYTES};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub type Sector = [u8; SECTOR_BYTES as usize];

/// Room for all that one call needs, and as much again.
pub const SECTORS_MIN: usize = 512;

/// Sectors of tables that are at hand. Sectors have numbers from the start of their file.
pub trait Tables {
    /// `None` asks the caller of [`resolve`](crate::resolve::resolve) to read it.
    fn sector(&mut self, file: FileId, sector: u64) -> Option<&Sector>;
}

#[derive(Clone, Debug)]
struct Slot {
    file: FileId,
    sector: u64,
    asked: bool,
    bytes: Box<Sector>,
}

/// A bounded store of sectors.
#[derive(Clone, Debug)]
pub struct Sectors {
    slots: Vec<Slot>,
    index: BTreeMap<(FileId, u64), usize>,
    hand: usize,
    capacity: usize,
}

impl Sectors {
    /// For so many bytes of sectors, at least [`SECTORS_MIN`] of them. Memory is taken as it fills.
    pub fn new(bytes_max: u64) -> Sectors {
        Sectors {
            slots: Vec::new(),
            index: BTreeMap::new(),
            hand: 0,
            capacity: capacity_of(bytes_max),
        }
    }

    /// Gives it another bound. What is beyond that is forgotten.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.capacity = capacity_of(bytes_max);
        if self.slots.len() > self.capacity {
            self.slots.truncate(self.capacity);
            self.slots.shrink_to_fit();
            self.renumber();
        }
        self.hand = 0;
        assert!(self.slots.len() <= self.capacity && self.index.len() == self.slots.len());
    }

    pub fn bytes(&self) -> u64 {
        self.slots.len() as u64 * SECTOR_BYTES
    }

    /// Takes what was read for [`Missing`](crate::resolve::Missing): whole sectors from offset `at`
    /// of the file, and which of them was wanted. Neighbours are kept as far as one fill may.
    pub fn fill(&mut self, file: FileId, at: u64, bytes: &[u8], wanted: u64) {
        assert!(
            at.is_multiple_of(SECTOR_BYTES) && (bytes.len() as u64).is_multiple_of(SECTOR_BYTES)
        );
        let first = at / SECTOR_BYTES;
        let (sectors, _) = bytes.as_chunks::<{ SECTOR_BYTES as usize }>();
        let count = sectors.len() as u64;
        assert!((first..first + count).contains(&wanted), "it was asked for");
        let beside = (self.capacity / 256) as u64;
        // What follows is likely wanted next; what precedes it is kept if there is room left.
        let before = beside.saturating_sub(first + count - 1 - wanted);
        let keep = wanted.saturating_sub(before)..=wanted.saturating_add(beside);
        for (number, sector) in (first..).zip(sectors) {
            if number != wanted && keep.contains(&number) {
                self.put(file, number, sector, false);
            }
        }
        self.put(file, wanted, &sectors[(wanted - first) as usize], true);
        assert!(self.slots.len() <= self.capacity && self.index.len() == self.slots.len());
    }

    /// Takes what was written to a file: sectors that are at hand become the new ones. Those of a
    /// range that is short are at hand from now on.
    pub fn overwrite(&mut self, file: FileId, at: u64, bytes: &[u8]) {
        let (sectors, rest) = bytes.as_chunks::<{ SECTOR_BYTES as usize }>();
        assert!(at.is_multiple_of(SECTOR_BYTES) && rest.is_empty());
        let short = sectors.len() <= self.capacity / 16;
        for (number, sector) in (at / SECTOR_BYTES..).zip(sectors) {
            if short || self.index.contains_key(&(file, number)) {
                self.put(file, number, sector, false);
            }
        }
    }

    fn put(&mut self, file: FileId, sector: u64, bytes: &Sector, asked: bool) {
        if let Some(&at) = self.index.get(&(file, sector)) {
            *self.slots[at].bytes = *bytes;
            self.slots[at].asked |= asked;
            return;
        }
        if self.slots.len() < self.capacity {
            self.index.insert((file, sector), self.slots.len());
            self.slots.push(Slot {
                file,
                sector,
                asked,
                bytes: Box::new(*bytes),
            });
            return;
        }
        while core::mem::take(&mut self.slots[self.hand].asked) {
            self.hand = (self.hand + 1) % self.capacity;
        }
        let slot = &mut self.slots[self.hand];
        self.index.remove(&(slot.file, slot.sector));
        *slot.bytes = *bytes;
        (slot.file, slot.sector, slot.asked) = (file, sector, asked);
        self.index.insert((file, sector), self.hand);
        self.hand = (self.hand + 1) % self.capacity;
    }

    /// Forgets all sectors of this file: another writer has changed it, or it was closed.
    pub fn forget(&mut self, file: FileId) {
        self.slots.retain(|slot| slot.file != file);
        self.hand = 0;
        self.renumber();
    }

    /// Forgets all sectors of this file that have a byte of the range: they were written.
    pub fn forget_range(&mut self, file: FileId, range: Range) {
        let first = range.at / SECTOR_BYTES;
        let end = range.end().div_ceil(SECTOR_BYTES);
        let found = self.index.range((file, first)..(file, end.max(first)));
        let found: Vec<(FileId, u64)> = found.map(|(key, _)| *key).collect();
        for key in found {
            let at = self.index.remove(&key).expect("it was found");
            self.slots.swap_remove(at);
            if let Some(moved) = self.slots.get(at) {
                self.index.insert((moved.file, moved.sector), at);
            }
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        assert_eq!(self.index.len(), self.slots.len());
    }

    fn renumber(&mut self) {
        self.index.clear();
        for (at, slot) in self.slots.iter().enumerate() {
            self.index.insert((slot.file, slot.sector), at);
        }
    }
}

fn capacity_of(bytes_max: u64) -> usize {
    let sectors = usize::try_from(bytes_max / SECTOR_BYTES).unwrap_or(usize::MAX);
    sectors.max(SECTORS_MIN)
}

impl Tables for Sectors {
    fn sector(&mut self, file: FileId, sector: u64) -> Option<&Sector> {
        let at = *self.index.get(&(file, sector))?;
        let slot = &mut self.slots[at];
        slot.asked = true;
        Some(&slot.bytes)
    }
}
