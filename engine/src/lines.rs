//! The index of clean blocks on the cache device: which block of which layer lies where.
//!
//! An entry is a run: blocks of one 64 KiB line that lie one behind the other, as a bitmap and
//! the place of the first. A line that was written in parts has several. Checksums are not here
//! but with the segments, one array each, so that they cost exactly four bytes a block. Always
//! true: all entries of a segment hang on its chain and leave together, before the segment may be
//! written again; memory is bounded from the start. An entry whose blocks were all dropped stays
//! on its chain, empty and found by nobody. Blocks of a layer that is written are dropped by
//! range, all of a layer that is gone by a sweep in steps. The first sketch kept checksums in the
//! entry: with room for 16 of them a half-filled line cost twice as much.

use crate::format::fill::LINE_BLOCKS;
use crate::types::{Geometry, SegmentIndex};
use alloc::vec::Vec;
use core::ops::Range;
use hashbrown::HashTable;

const NONE: u32 = (1 << CHAIN_BITS) - 1;
const CHAIN_BITS: u32 = 30;
/// Counters have two bits.
const HITS_MAX: u32 = 3;
/// Bytes of a bucket of the table, and how full it may be.
const BUCKET_BYTES: u64 = 5;

/// Blocks of one line in a row on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRun {
    pub layer: u16,
    pub line: u32,
    pub bitmap: u16,
    /// Block of the log at which the lowest bit of the bitmap lies.
    pub base: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    line: u32,
    layer: u16,
    bitmap: u16,
    base: u32,
    /// The next entry of the same segment, and two bits of hits above it.
    chain: u32,
}

const _: () = assert!(size_of::<Entry>() == 16);
const _: () = assert!(
    LINE_BLOCKS == u16::BITS as u64,
    "a bitmap has a bit for each block"
);
const _: () = assert!(HITS_MAX < 1 << (u32::BITS - CHAIN_BITS));

pub struct LineIndex {
    entries: Vec<Entry>,
    entries_max: usize,
    free: u32,
    table: HashTable<u32>,
    /// First entry of each segment's chain.
    chains: Vec<u32>,
    segment_blocks: u32,
    blocks: u64,
    /// Of these, by layer: most ranges that are dropped are of layers that have none.
    held: Vec<u32>,
    seed: u64,
}

fn hash(seed: u64, layer: u16, line: u32) -> u64 {
    let key = u64::from(layer) << 32 | u64::from(line);
    let product = u128::from(seed ^ key) * 0x9e37_79b9_7f4a_7c15;
    ((product >> 64) as u64 ^ product as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

impl Entry {
    fn next(&self) -> u32 {
        self.chain & NONE
    }

    fn hits(&self) -> u32 {
        self.chain >> CHAIN_BITS
    }

    fn run(&self) -> LineRun {
        LineRun {
            layer: self.layer,
            line: self.line,
            bitmap: self.bitmap,
            base: self.base,
        }
    }

    fn is_of(&self, layer: u16, line: u32) -> bool {
        self.layer == layer && self.line == line
    }
}

impl LineRun {
    /// Where the block with this number in the line lies.
    fn slot(&self, bit: u32) -> u32 {
        assert!(self.bitmap >> bit & 1 == 1, "the run has the block");
        self.base + (self.bitmap & ((1 << bit) - 1)).count_ones()
    }

    /// The blocks of the run, ascending: number in the layer, block of the log.
    pub fn blocks(self) -> impl Iterator<Item = (u64, u32)> {
        let first = u64::from(self.line) * LINE_BLOCKS;
        (0..LINE_BLOCKS as u32)
            .filter(move |bit| self.bitmap >> bit & 1 == 1)
            .map(move |bit| (first + u64::from(bit), self.slot(bit)))
    }
}

/// The line of a block and its bit there; `None` beyond what an entry can name.
fn place(block: u64) -> Option<(u32, u32)> {
    let line = u32::try_from(block / LINE_BLOCKS).ok()?;
    Some((line, (block % LINE_BLOCKS) as u32))
}

impl LineIndex {
    /// As many entries as fit into `bytes`; none where the log is too long for their numbers.
    pub fn new(bytes: u64, geometry: Geometry, seed: u64) -> LineIndex {
        let mut buckets = 0u64;
        for power in 4..CHAIN_BITS {
            let needs = BUCKET_BYTES << power;
            if needs + (7 << power) / 8 * size_of::<Entry>() as u64 <= bytes {
                buckets = 1 << power;
            }
        }
        let blocks = geometry.segment_blocks() * u64::from(geometry.segments);
        if blocks > u64::from(u32::MAX) {
            buckets = 0;
        }
        let entries_max = (buckets * 7 / 8) as usize;
        LineIndex {
            entries: Vec::new(),
            entries_max,
            free: NONE,
            table: HashTable::with_capacity(entries_max),
            chains: alloc::vec![NONE; geometry.segments as usize],
            segment_blocks: geometry.segment_blocks() as u32,
            blocks: 0,
            held: Vec::new(),
            seed,
        }
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Of one layer.
    pub fn blocks_of(&self, layer: u16) -> u64 {
        self.held
            .get(usize::from(layer))
            .copied()
            .unwrap_or(0)
            .into()
    }

    pub fn is_off(&self) -> bool {
        self.entries_max == 0
    }

    pub fn bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<Entry>();
        let tables = self.table.allocation_size() + self.chains.len() * 4;
        (entries + tables + self.held.capacity() * 4) as u64
    }

    fn find(&self, layer: u16, line: u32, bit: u32) -> Option<u32> {
        self.find_any(layer, line, 1 << bit)
    }

    /// An entry of a line that has one of these bits.
    fn find_any(&self, layer: u16, line: u32, bits: u16) -> Option<u32> {
        let entries = &self.entries;
        let found = self.table.find(hash(self.seed, layer, line), |&at| {
            let entry = &entries[at as usize];
            entry.is_of(layer, line) && entry.bitmap & bits != 0
        });
        found.copied()
    }

    fn count(&mut self, layer: u16, added: u32) {
        let layer = usize::from(layer);
        if self.held.len() <= layer {
            self.held.resize(layer + 1, 0);
        }
        self.held[layer] += added;
        self.blocks += u64::from(added);
        assert!(
            u64::from(self.held[layer]) <= self.blocks,
            "blocks of a layer are blocks of the index"
        );
    }

    fn discount(&mut self, layer: u16, dropped: u32) {
        let held = &mut self.held[usize::from(layer)];
        assert!(*held >= dropped, "only what was counted is dropped");
        *held -= dropped;
        self.blocks -= u64::from(dropped);
        assert!(u64::from(*held) <= self.blocks);
    }

    /// The block of the log that holds this block of a layer.
    pub fn get(&self, layer: u16, block: u64) -> Option<u32> {
        let (line, bit) = place(block)?;
        let at = self.find(layer, line, bit)?;
        Some(self.entries[at as usize].run().slot(bit))
    }

    /// Somebody asked for the block and it was good.
    pub fn hit(&mut self, layer: u16, block: u64) {
        let found = place(block).and_then(|(line, bit)| self.find(layer, line, bit));
        if let Some(at) = found {
            let entry = &mut self.entries[at as usize];
            let hits = (entry.hits() + 1).min(HITS_MAX);
            entry.chain = entry.next() | hits << CHAIN_BITS;
        }
    }

    /// False when there is no room. The same block may be there twice: both are what the layer
    /// has.
    pub fn insert(&mut self, run: LineRun) -> bool {
        assert!(run.bitmap != 0, "a run has blocks");
        let segment = (run.base / self.segment_blocks) as usize;
        assert!(
            (run.base % self.segment_blocks) + run.bitmap.count_ones() <= self.segment_blocks,
            "a run lies in one segment"
        );
        let Some(at) = self.take_entry() else {
            return false;
        };
        assert!(self.entries.len() <= self.entries_max && at != NONE);
        self.entries[at as usize] = Entry {
            line: run.line,
            layer: run.layer,
            bitmap: run.bitmap,
            base: run.base,
            chain: self.chains[segment],
        };
        debug_assert!(self.chains[segment] != at, "an entry is on one chain");
        self.chains[segment] = at;
        self.count(run.layer, run.bitmap.count_ones());
        let (entries, seed) = (&self.entries, self.seed);
        self.table
            .insert_unique(hash(seed, run.layer, run.line), at, |&at| {
                let entry = &entries[at as usize];
                hash(seed, entry.layer, entry.line)
            });
        true
    }

    /// Blocks of a layer among so many entries from `from` on, and whether there are more entries.
    pub fn listed(&self, layer: u16, from: u32, entries: u32) -> (Vec<u64>, bool) {
        let part = self.entries.iter().skip(from as usize);
        let part = part.take(entries as usize);
        let of_layer = part.filter(|entry| entry.layer == layer && entry.bitmap != 0);
        let blocks = of_layer.flat_map(|entry| entry.run().blocks().map(|(block, _)| block));
        let more = u64::from(from) + u64::from(entries) < self.entries.len() as u64;
        (blocks.collect(), more)
    }

    fn take_entry(&mut self) -> Option<u32> {
        if self.free != NONE {
            let at = self.free;
            self.free = self.entries[at as usize].next();
            return Some(at);
        }
        if self.entries.len() == self.entries_max {
            return None;
        }
        if self.entries.len() == self.entries.capacity() {
            // An eighth more: doubling could take twice what the budget allows.
            let more = (self.entries.len() / 8).max(1024);
            let more = more.min(self.entries_max - self.entries.len());
            self.entries.reserve_exact(more);
        }
        self.entries.push(Entry {
            line: 0,
            layer: 0,
            bitmap: 0,
            base: 0,
            chain: NONE,
        });
        Some(self.entries.len() as u32 - 1)
    }

    /// Takes an entry out of the table; it stays on its chain.
    fn unlink(&mut self, at: u32) {
        let Entry { layer, line, .. } = self.entries[at as usize];
        let hash = hash(self.seed, layer, line);
        let Ok(entry) = self.table.find_entry(hash, |&other| other == at) else {
            unreachable!("an entry with blocks is in the table");
        };
        entry.remove();
    }

    /// The block cannot be read any more: nobody finds it again.
    pub fn drop_block(&mut self, layer: u16, block: u64) {
        self.drop_range(layer, block..block + 1);
    }

    /// These blocks are not what their layer holds any more: nobody finds them again.
    pub fn drop_range(&mut self, layer: u16, blocks: Range<u64>) {
        let mut at = blocks.start;
        while at < blocks.end && self.held.get(usize::from(layer)).is_some_and(|it| *it > 0) {
            let Some((line, from)) = place(at) else {
                return;
            };
            let next = (u64::from(line) + 1) * LINE_BLOCKS;
            let upto = LINE_BLOCKS - next.saturating_sub(blocks.end);
            self.drop_bits(layer, line, from..upto as u32);
            at = next;
        }
    }

    fn drop_bits(&mut self, layer: u16, line: u32, bits: Range<u32>) {
        assert!(
            bits.start < bits.end && bits.end <= LINE_BLOCKS as u32,
            "the blocks lie in one line"
        );
        let low = ((1u32 << bits.start) - 1) as u16;
        let upto = ((1u32 << bits.end) - 1) as u16;
        while let Some(at) = self.find_any(layer, line, upto & !low) {
            let run = self.entries[at as usize].run();
            let (below, above) = (run.bitmap & low, run.bitmap & !upto);
            let behind = run.base + (run.bitmap & upto).count_ones();
            let kept = if below != 0 { below } else { above };
            assert!(
                kept & upto & !low == 0 && kept != run.bitmap,
                "each step drops a block"
            );
            self.discount(layer, (run.bitmap & !kept).count_ones());
            let entry = &mut self.entries[at as usize];
            entry.bitmap = kept;
            if below == 0 {
                entry.base = behind;
            }
            if kept == 0 {
                self.unlink(at);
            } else if below != 0 && above != 0 {
                // Without room for another run these are forgotten as well.
                self.insert(LineRun {
                    bitmap: above,
                    base: behind,
                    ..run
                });
            }
        }
    }

    /// Drops what some of the entries, from `from` on, have of these layers. Where to go on;
    /// `None` after the last one.
    pub fn sweep(&mut self, from: usize, entries: usize, layers: &[u16]) -> Option<usize> {
        let end = (from + entries).min(self.entries.len());
        for at in from..end {
            let entry = self.entries[at];
            if entry.bitmap != 0 && layers.contains(&entry.layer) {
                self.discount(entry.layer, entry.bitmap.count_ones());
                self.entries[at].bitmap = 0;
                self.unlink(at as u32);
            }
        }
        (end < self.entries.len()).then_some(end)
    }

    /// The runs that a segment holds, in no order.
    pub fn runs_of(&self, segment: SegmentIndex) -> Vec<LineRun> {
        let mut at = self.chains[segment.0 as usize];
        let mut runs = Vec::new();
        while at != NONE {
            let entry = self.entries[at as usize];
            if entry.bitmap != 0 {
                assert!(
                    entry.base / self.segment_blocks == segment.0,
                    "a chain has entries of its segment"
                );
                runs.push(entry.run());
            }
            at = entry.next();
        }
        runs
    }

    /// Takes out all that lies in a segment; returns the runs, each with its hits.
    pub fn retire(&mut self, segment: SegmentIndex) -> Vec<(LineRun, u32)> {
        let mut at = core::mem::replace(&mut self.chains[segment.0 as usize], NONE);
        let mut runs = Vec::new();
        while at != NONE {
            let entry = self.entries[at as usize];
            if entry.bitmap != 0 {
                assert!(
                    entry.base / self.segment_blocks == segment.0,
                    "a chain has entries of its segment"
                );
                self.unlink(at);
                self.discount(entry.layer, entry.bitmap.count_ones());
                runs.push((entry.run(), entry.hits()));
            }
            self.entries[at as usize].bitmap = 0;
            self.entries[at as usize].chain = self.free;
            self.free = at;
            at = entry.next();
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::types::BLOCK_BYTES;
    use std::collections::BTreeMap;

    fn geometry(segments: u32) -> Geometry {
        Geometry {
            chunk_blocks: Geometry::CHUNK_BLOCKS,
            segment_chunks: Geometry::SEGMENT_CHUNKS,
            segments,
        }
    }

    fn run(layer: u16, line: u32, bitmap: u16, base: u32) -> LineRun {
        LineRun {
            layer,
            line,
            bitmap,
            base,
        }
    }

    #[test]
    fn a_dropped_block_leaves_its_neighbours_where_they_lie() {
        let mut index = LineIndex::new(1 << 20, geometry(12), 3);
        assert!(index.insert(run(1, 7, 0b1011_0110, 100)));
        assert_eq!(index.get(1, 7 * 16 + 4), Some(102));
        index.drop_block(1, 7 * 16 + 4);
        assert_eq!(index.get(1, 7 * 16 + 4), None);
        for (bit, slot) in [(1, 100), (2, 101), (5, 103), (7, 104)] {
            assert_eq!(index.get(1, 7 * 16 + bit), Some(slot));
        }
        index.drop_block(1, 7 * 16 + 1);
        assert_eq!(index.get(1, 7 * 16 + 2), Some(101));
        assert_eq!(index.blocks(), 3);
        assert_eq!(index.retire(SegmentIndex(0)).len(), 2);
        assert_eq!((index.blocks(), index.get(1, 7 * 16 + 2)), (0, None));
    }

    /// Against a plain map, with everything that the index can do.
    #[test]
    fn the_index_says_what_a_plain_map_says() {
        let blocks = 64 * 32;
        let mut index = LineIndex::new(40_000, geometry(12), 3);
        let mut model: BTreeMap<(u16, u64), u32> = BTreeMap::new();
        let mut rng = workload::rng::Rng::new(1);
        let mut random = move |below: u64| rng.below(below);
        let mut next = [0u32; 12];
        for _ in 0..20_000 {
            let segment = random(12) as u32;
            match random(10) {
                0..6 => {
                    let bitmap = random(1 << 16) as u16;
                    let one = run(random(2) as u16, random(40) as u32, bitmap, 0);
                    let known = one
                        .blocks()
                        .any(|(block, _)| model.contains_key(&(one.layer, block)));
                    let base = next[segment as usize];
                    if bitmap == 0 || known || base + bitmap.count_ones() > blocks {
                        continue;
                    }
                    let one = LineRun {
                        base: segment * blocks + base,
                        ..one
                    };
                    if index.insert(one) {
                        next[segment as usize] += bitmap.count_ones();
                        model.extend(one.blocks().map(|(block, at)| ((one.layer, block), at)));
                    }
                }
                6..8 => {
                    let key = (random(2) as u16, random(640));
                    index.drop_block(key.0, key.1);
                    model.remove(&key);
                }
                8 if random(20) == 0 => {
                    let layer = random(2) as u16;
                    let mut at = Some(0);
                    while let Some(from) = at {
                        at = index.sweep(from, 7, &[layer, 9]);
                    }
                    model.retain(|key, _| key.0 != layer);
                }
                8 => {
                    let (layer, first) = (random(2) as u16, random(640));
                    let blocks = first..first + random(40);
                    index.drop_range(layer, blocks.clone());
                    model.retain(|key, _| key.0 != layer || !blocks.contains(&key.1));
                }
                _ => {
                    for (one, _) in index.retire(SegmentIndex(segment)) {
                        for (block, at) in one.blocks() {
                            assert_eq!(model.remove(&(one.layer, block)), Some(at));
                        }
                    }
                    let inside = |at: &u32| at / blocks == segment;
                    assert!(!model.values().any(inside));
                    next[segment as usize] = 0;
                }
            }
            let key = (random(2) as u16, random(640));
            assert_eq!(index.get(key.0, key.1), model.get(&key).copied());
            assert_eq!(index.blocks(), model.len() as u64);
        }
    }

    /// The share of RAM that the index takes of what it makes findable, checksums included, when
    /// lines are filled to 85 %.
    #[test]
    fn the_index_takes_at_most_fourteen_hundredths_of_a_percent() {
        let segments = 512;
        let geometry = geometry(segments);
        let body = crate::format::footer::body_blocks(geometry);
        let mut index = LineIndex::new(1_300_000, geometry, 3);
        let (mut line, mut sums) = (0, 0u64);
        'full: for segment in 0..segments {
            sums += u64::from(body) * 4;
            let mut at = 0;
            while at < body {
                // 14, 14, 14, 13, 13 of 16 blocks: 85 %. A record of eight lines has a header.
                at += u32::from(line % 8 == 0);
                let blocks = if line % 5 < 3 { 14 } else { 13 };
                let blocks = blocks.min(body - at);
                let base = segment * geometry.segment_blocks() as u32 + at;
                let bitmap = (0xffffu32 >> (16 - blocks)) as u16;
                if blocks > 0 && !index.insert(run(0, line, bitmap, base)) {
                    break 'full;
                }
                at += blocks;
                line += 1;
            }
        }
        let bytes = index.bytes() + sums;
        let cached = index.blocks() * BLOCK_BYTES;
        let share = bytes as f64 / cached as f64 * 100.0;
        std::println!("index: {bytes} bytes for {cached} bytes in {line} lines: {share:.4} %");
        assert!(share <= 0.14, "{share:.4} %");
    }
}
