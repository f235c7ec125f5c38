//! What is known of each block of each disk: read before, written before, and when.
//!
//! Owns chunks of 64 blocks of 4 KiB, found by disk and place. Always true: a block takes two bits
//! and, from the first write into its chunk on, 4 bytes; only one whose sectors were last written
//! at different times takes 32 bytes more. So a gigabyte takes 1.1 MiB when it was written, and
//! 0.2 MiB when it was only read; a chunk of which a single block was touched 0.3 KiB. Chunks are
//! bounded: beyond `chunks_max` half of the places are forgotten, on all disks the same ones, and
//! what the others say counts twice ([`Blocks::weight`]), which keeps every sum true on average.
//! Divided blocks count among the chunks by the room they take, so that requests of odd sectors
//! take no more than others.
//! Times are exact to the millisecond for 24 days, then to two, and so on. Deliberately absent:
//! what the figures mean.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub const BLOCK_SECTORS: u64 = 8;
pub const BLOCK_BYTES: u64 = 4096;
pub const CHUNK_BLOCKS: u64 = 64;
pub const CHUNK_SECTORS: u64 = CHUNK_BLOCKS * BLOCK_SECTORS;

const MILLISECOND_NS: u64 = 1_000_000;
/// A stamp with this bit is a place in the table of divided blocks.
const DIVIDED: u32 = 1 << 31;
const NO_STAMPS: u32 = u32::MAX;
/// So many divided blocks take the room of a chunk: 32 bytes each, twice that while their table
/// grows, against some 600.
const DIVIDED_PER_CHUNK: usize = 8;
const HALVINGS_MAX: u32 = 40;

/// Mixes all bits of a key that a trace chose.
pub fn mixed(key: u64) -> u64 {
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// The hasher of maps with one or two integers as keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mixed(self.0.rotate_left(17) ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15));
    }
}

pub type MixedMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// Where a chunk is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkId(u32);

#[derive(Clone, Copy, Debug)]
struct Chunk {
    read: u64,
    written: u64,
    /// Its place in the table of stamps.
    stamps: u32,
}

/// What was known of a block before a request touched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Was {
    pub read: bool,
    pub written: bool,
    /// Some disk read it before it had written it: what a common base holds there was asked for.
    pub base_read: bool,
}

impl Was {
    pub fn seen_by_disk(self) -> bool {
        self.read || self.written
    }

    /// Another disk's read serves as well, as long as this one has not written there itself.
    pub fn seen_by_cluster(self) -> bool {
        self.seen_by_disk() || self.base_read
    }
}

#[derive(Debug)]
pub struct Blocks {
    places: MixedMap<(u32, u64), ChunkId>,
    chunks: Vec<Chunk>,
    stamps: Vec<[u32; CHUNK_BLOCKS as usize]>,
    divided: Vec<[u32; BLOCK_SECTORS as usize]>,
    divided_free: Vec<u32>,
    /// Per place, what was read of a common base.
    base: MixedMap<u64, u64>,
    chunks_max: usize,
    /// One place in 2 to the power of this is looked at.
    halvings: u32,
    /// A stamp is so many milliseconds, as a power of two.
    stamp_shift: u32,
}

impl Blocks {
    pub fn new(chunks_max: usize) -> Blocks {
        Blocks {
            places: MixedMap::default(),
            chunks: Vec::new(),
            stamps: Vec::new(),
            divided: Vec::new(),
            divided_free: Vec::new(),
            base: MixedMap::default(),
            chunks_max: chunks_max.clamp(1, NO_STAMPS as usize),
            halvings: 0,
            stamp_shift: 0,
        }
    }

    /// What is seen counts so often; one as long as everything is looked at.
    pub fn weight(&self) -> u64 {
        1 << self.halvings
    }

    /// What is kept, in chunks.
    fn room(&self) -> usize {
        self.chunks.len() + self.divided.len() / DIVIDED_PER_CHUNK
    }

    /// The chunk of a place on a disk; `None` where it is not looked at.
    pub fn chunk(&mut self, disk: u32, place: u64) -> Option<ChunkId> {
        if !looked_at(place, self.halvings) {
            return None;
        }
        // Blocks are divided in chunks that are there already, so this is looked at each time.
        while self.room() > self.chunks_max && self.halvings < HALVINGS_MAX {
            self.halve();
        }
        if let Some(id) = self.places.get(&(disk, place)) {
            return Some(*id);
        }
        while self.room() >= self.chunks_max && self.halvings < HALVINGS_MAX {
            self.halve();
        }
        if !looked_at(place, self.halvings) {
            return None;
        }
        let id = ChunkId(self.chunks.len() as u32);
        self.chunks.push(Chunk {
            read: 0,
            written: 0,
            stamps: NO_STAMPS,
        });
        self.places.insert((disk, place), id);
        Some(id)
    }

    pub fn read(&mut self, id: ChunkId, place: u64, block: u64) -> Was {
        let bit = 1u64 << block;
        let was = self.was(id, place, bit);
        self.chunks[id.0 as usize].read |= bit;
        if !was.written && !was.base_read {
            *self.base.entry(place).or_default() |= bit;
        }
        was
    }

    /// Writes sectors `first..first + count` of a block. What was written before, and so long ago,
    /// goes to `again` as `(milliseconds, sectors)`.
    pub fn write(
        &mut self,
        id: ChunkId,
        place: u64,
        block: u64,
        sectors: std::ops::Range<usize>,
        time_ns: u64,
        mut again: impl FnMut(u64, u64),
    ) -> Was {
        let bit = 1u64 << block;
        let was = self.was(id, place, bit);
        let stamp = self.stamp(time_ns);
        let chunk = &mut self.chunks[id.0 as usize];
        chunk.written |= bit;
        if chunk.stamps == NO_STAMPS {
            chunk.stamps = self.stamps.len() as u32;
            self.stamps.push([0; CHUNK_BLOCKS as usize]);
        }
        let cell = &mut self.stamps[chunk.stamps as usize][block as usize];
        let shift = self.stamp_shift;
        let mut tell = |old: u32, sectors: u64| {
            if old > 0 {
                again(u64::from(stamp.saturating_sub(old)) << shift, sectors);
            }
        };
        let whole = sectors.len() == BLOCK_SECTORS as usize;
        if *cell & DIVIDED == 0 {
            let old = *cell;
            tell(old, sectors.len() as u64);
            if whole || old == stamp {
                *cell = stamp;
                return was;
            }
            let mut each = [old; BLOCK_SECTORS as usize];
            each[sectors].fill(stamp);
            let at = self.divided_free.pop().unwrap_or_else(|| {
                self.divided.push(each);
                (self.divided.len() - 1) as u32
            });
            self.divided[at as usize] = each;
            *cell = DIVIDED | at;
            return was;
        }
        let at = *cell & !DIVIDED;
        let each = &mut self.divided[at as usize];
        for old in &mut each[sectors] {
            tell(*old, 1);
            *old = stamp;
        }
        if each.iter().all(|it| *it == stamp) {
            *cell = stamp;
            self.divided_free.push(at);
        }
        was
    }

    /// When the oldest sector of a block was written, in milliseconds; `None` for never.
    pub fn oldest_write_ms(&self, id: ChunkId, block: u64) -> Option<u64> {
        let stamps = self
            .stamps
            .get(self.chunks[id.0 as usize].stamps as usize)?;
        let cell = stamps[block as usize];
        let oldest = match cell & DIVIDED {
            0 => cell,
            _ => {
                let each = self.divided[(cell & !DIVIDED) as usize].iter();
                each.copied().filter(|it| *it > 0).min()?
            }
        };
        let stamp = oldest.checked_sub(1)?;
        Some(u64::from(stamp) << self.stamp_shift)
    }

    fn was(&self, id: ChunkId, place: u64, bit: u64) -> Was {
        let chunk = self.chunks[id.0 as usize];
        Was {
            read: chunk.read & bit != 0,
            written: chunk.written & bit != 0,
            base_read: self.base.get(&place).is_some_and(|base| base & bit != 0),
        }
    }

    /// Never zero, which means never written.
    fn stamp(&mut self, time_ns: u64) -> u32 {
        let millis = time_ns / MILLISECOND_NS;
        while (millis >> self.stamp_shift) + 1 >= u64::from(DIVIDED) {
            self.stamp_shift += 1;
            let all = self.stamps.iter_mut().flatten();
            let undivided = all.filter(|stamp| **stamp & DIVIDED == 0);
            for stamp in undivided.chain(self.divided.iter_mut().flatten()) {
                // Rounded up: what was written stays written.
                *stamp = (*stamp).div_ceil(2);
            }
        }
        (millis >> self.stamp_shift) as u32 + 1
    }

    /// Forgets every second place.
    fn halve(&mut self) {
        self.halvings += 1;
        let halvings = self.halvings;
        self.base.retain(|place, _| looked_at(*place, halvings));
        self.places.retain(|key, _| looked_at(key.1, halvings));
        let old = std::mem::take(&mut self.chunks);
        let old_stamps = std::mem::take(&mut self.stamps);
        let old_divided = std::mem::take(&mut self.divided);
        self.divided_free.clear();
        for id in self.places.values_mut() {
            let mut chunk = old[id.0 as usize];
            if chunk.stamps != NO_STAMPS {
                let mut stamps = old_stamps[chunk.stamps as usize];
                for stamp in stamps.iter_mut().filter(|it| **it & DIVIDED != 0) {
                    self.divided.push(old_divided[(*stamp & !DIVIDED) as usize]);
                    *stamp = DIVIDED | (self.divided.len() - 1) as u32;
                }
                chunk.stamps = self.stamps.len() as u32;
                self.stamps.push(stamps);
            }
            *id = ChunkId(self.chunks.len() as u32);
            self.chunks.push(chunk);
        }
    }
}

/// Places are chosen by a hash of their number, so that all disks are looked at in the same ones.
fn looked_at(place: u64, halvings: u32) -> bool {
    mixed(place ^ 0x5bd1_e995).trailing_zeros() >= halvings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = MILLISECOND_NS;

    fn again(blocks: &mut Blocks, sectors: std::ops::Range<usize>, millis: u64) -> Vec<(u64, u64)> {
        let id = blocks.chunk(0, 0).expect("looked at");
        let mut seen = Vec::new();
        blocks.write(id, 0, 5, sectors, millis * MS, |ago, count| {
            seen.push((ago, count));
        });
        seen
    }

    #[test]
    fn sectors_of_a_block_have_times_of_their_own() {
        let mut blocks = Blocks::new(10);
        assert_eq!(again(&mut blocks, 0..8, 100), []);
        assert_eq!(again(&mut blocks, 2..4, 150), [(50, 2)]);
        assert_eq!(again(&mut blocks, 3..5, 200), [(50, 1), (100, 1)]);
        assert_eq!(blocks.divided.len() - blocks.divided_free.len(), 1);
        let all = again(&mut blocks, 0..8, 300);
        assert_eq!(all.iter().map(|it| it.1).sum::<u64>(), 8);
        assert_eq!(all.iter().map(|it| it.0).max(), Some(200));
        assert_eq!(
            blocks.divided.len(),
            blocks.divided_free.len(),
            "given back"
        );
        assert_eq!(again(&mut blocks, 7..8, 300), [(0, 1)]);
    }

    #[test]
    fn times_get_coarser_and_never_get_lost() {
        let mut blocks = Blocks::new(10);
        again(&mut blocks, 0..8, 0);
        again(&mut blocks, 0..1, 7);
        let month = 40 * 24 * 3600 * 1000;
        let seen = again(&mut blocks, 0..8, month);
        assert_eq!(seen.iter().map(|it| it.1).sum::<u64>(), 8);
        assert!(seen.iter().all(|it| it.0.abs_diff(month) <= 16), "{seen:?}");
    }

    #[test]
    fn divided_blocks_count_towards_the_bound() {
        let mut blocks = Blocks::new(64);
        for place in 0..32 {
            for block in 0..CHUNK_BLOCKS {
                // As the chunk is asked for with every request: a halving gives new numbers.
                if let Some(id) = blocks.chunk(0, place) {
                    blocks.write(id, place, block, 1..3, MS, |_, _| {});
                }
            }
        }
        assert!(blocks.weight() >= 4, "{}", blocks.weight());
        assert!(blocks.room() <= 64 + 1, "{}", blocks.room());
    }

    #[test]
    fn halving_keeps_what_is_still_looked_at() {
        let mut blocks = Blocks::new(64);
        for place in 0..1000 {
            for disk in 0..2 {
                if let Some(id) = blocks.chunk(disk, place) {
                    blocks.read(id, place, 1);
                    blocks.write(id, place, 2, 1..3, (place + 1) * MS, |_, _| {});
                }
            }
        }
        assert!(blocks.weight() >= 32, "{}", blocks.weight());
        let mut kept = 0;
        for place in 0..1000 {
            let Some(id) = blocks.chunk(1, place) else {
                continue;
            };
            kept += 1;
            let was = blocks.read(id, place, 1);
            assert!(was.read && was.base_read && !was.written, "{place}");
            let mut seen = Vec::new();
            let at = 5000 * MS;
            let was = blocks.write(id, place, 2, 0..8, at, |ago, count| seen.push((ago, count)));
            assert!(was.written && !was.read);
            assert_eq!(seen, [(4999 - place, 1), (4999 - place, 1)]);
        }
        assert!(kept > 0 && blocks.chunks.len() <= 64);
    }
}
