//! Reuse distances and the miss ratio of an LRU cache of any size, from one pass.
//!
//! Owns a sample of the blocks, chosen by a hash of their place, and the order in which these were
//! last asked for (SHARDS of fixed size: Waldspurger et al., FAST '15). Always true: while all
//! blocks fit the sample the curve is exact at its points; later a distance in the sample counts as
//! so much longer as the sample is smaller, each reference as so many more, and what the sample has
//! too few or too many goes to the shortest distance (SHARDS-adj). Memory is fixed. Writes bring
//! blocks into the cache as reads do; the ratio is that of the reads. A sample that was chosen
//! before can be given, with the number of all ([`Reuse::of_sample`]); what was long ago can be
//! made to count for less ([`Reuse::age`]).

use super::blocks::{MixedMap, mixed};
use std::collections::BinaryHeap;

/// Of each power of two of distances, so many parts.
const PARTS_LOG2: u32 = 4;
const PARTS: u64 = 1 << PARTS_LOG2;
const BINS: usize = 61 << PARTS_LOG2;
/// The order is renumbered when so many places per sample are used up.
const PLACES_PER_SAMPLE: usize = 4;

#[derive(Debug)]
pub struct Reuse {
    samples_max: usize,
    /// Hashes below it are in the sample.
    threshold: u64,
    last: MixedMap<u64, u32>,
    largest: BinaryHeap<u64>,
    order: Order,
    /// Weights of distances.
    reads: Vec<f64>,
    reads_new: f64,
    reads_counted: f64,
    all: Vec<f64>,
    all_new: f64,
    all_counted: u64,
}

/// The miss ratio of reads in a cache of so many blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub blocks: u64,
    pub miss_ratio: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    pub points: Vec<Point>,
    /// Of reads whose block was never asked for before: no cache helps.
    pub first_ratio: f64,
    /// One when the curve is exact.
    pub sample_rate: f64,
    /// Reads of the sample, as it weighs them, beside all that there were.
    pub sampled_ratio: f64,
    /// Of the sample alone: reads whose block was asked for before.
    pub repeated_ratio: f64,
    /// In blocks, of all requests, where known: half, and nine tenths of the repeated ones.
    pub median_distance: Option<u64>,
    pub p90_distance: Option<u64>,
}

impl Reuse {
    pub fn new(samples_max: usize) -> Reuse {
        let samples_max = samples_max.max(16);
        Reuse {
            samples_max,
            threshold: u64::MAX,
            last: MixedMap::default(),
            largest: BinaryHeap::new(),
            order: Order::new(samples_max * PLACES_PER_SAMPLE),
            reads: vec![0.0; BINS],
            reads_new: 0.0,
            reads_counted: 0.0,
            all: vec![0.0; BINS],
            all_new: 0.0,
            all_counted: 0,
        }
    }

    /// Of blocks that were chosen before: their hashes are below this threshold.
    pub fn of_sample(samples_max: usize, threshold: u64) -> Reuse {
        Reuse {
            threshold,
            ..Reuse::new(samples_max)
        }
    }

    fn rate(&self) -> f64 {
        match self.threshold {
            u64::MAX => 1.0,
            threshold => threshold as f64 / 2f64.powi(64),
        }
    }

    pub fn touch(&mut self, disk: u32, block: u64, write: bool) {
        self.all_counted += 1;
        self.reads_counted += if write { 0.0 } else { 1.0 };
        let hash = mixed(block ^ mixed(u64::from(disk) ^ 0x2545_f491_4f6c_dd1d));
        self.touch_hash(hash, write);
    }

    /// So many blocks were read, in the sample or not.
    pub fn count_reads(&mut self, blocks: u64) {
        self.all_counted += blocks;
        self.reads_counted += blocks as f64;
    }

    /// A request for a block with this hash, which was counted.
    pub fn touch_hash(&mut self, hash: u64, write: bool) {
        if hash >= self.threshold {
            return;
        }
        let weight = 1.0 / self.rate();
        let distance = self.last.get(&hash).map(|place| self.order.take(*place));
        match distance {
            Some(distance) => {
                let bin = bin((distance as f64 * weight) as u64);
                self.all[bin] += weight;
                self.reads[bin] += if write { 0.0 } else { weight };
            }
            None => {
                self.all_new += weight;
                self.reads_new += if write { 0.0 } else { weight };
                self.largest.push(hash);
            }
        }
        if self.order.is_full() {
            self.renumber();
        }
        self.last.insert(hash, self.order.put());
        if self.last.len() > self.samples_max {
            self.shrink();
        }
    }

    /// What was counted so far counts for half. Which blocks were asked for stays known.
    pub fn age(&mut self) {
        let weights = self.reads.iter_mut().chain(&mut self.all);
        weights.for_each(|weight| *weight /= 2.0);
        self.reads_new /= 2.0;
        self.all_new /= 2.0;
        self.reads_counted /= 2.0;
    }

    /// Gives up the block with the largest hash, and with it all larger ones.
    fn shrink(&mut self) {
        if let Some(hash) = self.largest.pop() {
            self.threshold = hash;
            if let Some(place) = self.last.remove(&hash) {
                self.order.take(place);
            }
        }
    }

    /// The order stays; its places begin with zero again.
    fn renumber(&mut self) {
        let mut places: Vec<&mut u32> = self.last.values_mut().collect();
        // The one that is about to be put has no place now, but an old number.
        places.sort_unstable();
        let held: Vec<bool> = places.iter().map(|it| self.order.holds(**it)).collect();
        self.order.clear();
        for (place, held) in places.into_iter().zip(held) {
            if held {
                *place = self.order.put();
            }
        }
    }

    pub fn curve(&self) -> Curve {
        let total = self.reads_counted;
        let sampled: f64 = self.reads.iter().sum::<f64>() + self.reads_new;
        let mut curve = Curve {
            sample_rate: self.rate(),
            median_distance: quantile(&self.all, 0.5),
            p90_distance: quantile(&self.all, 0.9),
            ..Curve::default()
        };
        if self.reads_counted < 1.0 {
            return curve;
        }
        curve.sampled_ratio = sampled / total;
        let repeated: f64 = self.reads.iter().sum();
        curve.repeated_ratio = if sampled > 0.0 {
            repeated / sampled
        } else {
            0.0
        };
        curve.first_ratio = (self.reads_new / total).clamp(0.0, 1.0);
        let last = self.reads.iter().rposition(|weight| *weight > 0.0);
        let mut hits = total - sampled;
        curve.points.push(Point {
            blocks: 0,
            miss_ratio: 1.0,
        });
        for at in 0..=last.unwrap_or(0) {
            hits += self.reads[at];
            let blocks = least_of(at + 1);
            let miss_ratio = 1.0 - (hits / total).clamp(0.0, 1.0);
            curve.points.push(Point { blocks, miss_ratio });
        }
        curve
    }

    /// How many requests for blocks there were.
    pub fn counted(&self) -> u64 {
        self.all_counted
    }
}

impl Curve {
    /// In a cache of so many blocks: what the next smaller point says.
    pub fn at(&self, blocks: u64) -> Option<f64> {
        let next = self.points.partition_point(|point| point.blocks <= blocks);
        self.points
            .get(next.checked_sub(1)?)
            .map(|it| it.miss_ratio)
    }
}

/// The distance that this part of the repeated requests does not exceed.
fn quantile(bins: &[f64], part: f64) -> Option<u64> {
    let total: f64 = bins.iter().sum();
    let mut sum = 0.0;
    let at = bins.iter().position(|weight| {
        sum += weight;
        total > 0.0 && sum >= total * part
    })?;
    Some(least_of(at + 1) - 1)
}

/// Distances below 16 by themselves, then 16 parts of each power of two.
fn bin(distance: u64) -> usize {
    if distance < PARTS {
        return distance as usize;
    }
    let power = distance.ilog2();
    let part = (distance >> (power - PARTS_LOG2)) & (PARTS - 1);
    ((power - PARTS_LOG2 + 1) << PARTS_LOG2) as usize + part as usize
}

/// The least distance of a bin.
fn least_of(bin: usize) -> u64 {
    let bin = bin as u64;
    if bin < PARTS {
        return bin;
    }
    let power = (bin >> PARTS_LOG2) as u32 + PARTS_LOG2 - 1;
    let part = bin & (PARTS - 1);
    // The end of the last bin is beyond every distance.
    u64::try_from(u128::from(PARTS + part) << (power - PARTS_LOG2)).unwrap_or(u64::MAX)
}

/// Places in the order in which they were put, and how many are behind one (a Fenwick tree).
#[derive(Debug)]
struct Order {
    /// At place `i` (from one on) the places held in the range that ends there.
    sums: Vec<u32>,
    held: Vec<bool>,
    next: u32,
    count: u32,
}

impl Order {
    fn new(places: usize) -> Order {
        Order {
            sums: vec![0; places + 1],
            held: vec![false; places],
            next: 0,
            count: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.next as usize == self.held.len()
    }

    fn holds(&self, place: u32) -> bool {
        self.held[place as usize]
    }

    fn clear(&mut self) {
        self.sums.fill(0);
        self.held.fill(false);
        (self.next, self.count) = (0, 0);
    }

    fn put(&mut self) -> u32 {
        let place = self.next;
        self.next += 1;
        self.count += 1;
        self.held[place as usize] = true;
        let mut at = place as usize + 1;
        while at < self.sums.len() {
            self.sums[at] += 1;
            at += at & at.wrapping_neg();
        }
        place
    }

    /// Gives a place up; how many were put behind it and are still held.
    fn take(&mut self, place: u32) -> u32 {
        assert!(self.held[place as usize], "a place is given up once");
        let mut upto = 0;
        let mut at = place as usize + 1;
        while at > 0 {
            upto += self.sums[at];
            at &= at - 1;
        }
        let behind = self.count - upto;
        self.held[place as usize] = false;
        self.count -= 1;
        let mut at = place as usize + 1;
        while at < self.sums.len() {
            self.sums[at] -= 1;
            at += at & at.wrapping_neg();
        }
        behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(1);
        mixed(*state)
    }

    /// An LRU cache as everybody would write it.
    fn misses(touches: &[(u64, bool)], blocks: usize) -> f64 {
        let mut cache: Vec<u64> = Vec::new();
        let (mut reads, mut missed) = (0, 0);
        for (block, write) in touches {
            let at = cache.iter().position(|it| it == block);
            reads += u64::from(!write);
            missed += u64::from(!write && at.is_none());
            if let Some(at) = at {
                cache.remove(at);
            } else if cache.len() == blocks && blocks > 0 {
                cache.remove(0);
            }
            if blocks > 0 {
                cache.push(*block);
            }
        }
        missed as f64 / reads as f64
    }

    /// Popular blocks more often than others, and scans between.
    fn touches(count: u64, blocks: u64, seed: u64) -> Vec<(u64, bool)> {
        let mut state = seed << 32;
        let mut scan = 0;
        let touches = (0..count).map(|_| {
            let kind = random(&mut state) % 10;
            let block = match kind {
                0 => {
                    scan += 1;
                    scan % blocks
                }
                1..=6 => random(&mut state) % (blocks / 20 + 1),
                _ => random(&mut state) % blocks,
            };
            (block, random(&mut state).is_multiple_of(3))
        });
        touches.collect()
    }

    #[test]
    fn bins_follow_each_other() {
        for distance in (0..5000).chain([1 << 40, u64::MAX]) {
            let bin = bin(distance);
            assert!(bin < BINS);
            assert!(
                least_of(bin) <= distance && distance <= least_of(bin + 1),
                "{distance}"
            );
        }
    }

    #[test]
    fn a_curve_of_all_blocks_is_that_of_a_real_cache() {
        for seed in 0..20 {
            let touches = touches(2000, 150, seed);
            // Few places, so that they are renumbered often.
            let mut reuse = Reuse::new(150);
            for (block, write) in &touches {
                reuse.touch(7, *block, *write);
            }
            let curve = reuse.curve();
            assert_eq!(curve.sample_rate, 1.0);
            for point in &curve.points {
                let exact = misses(&touches, point.blocks as usize);
                let off = (point.miss_ratio - exact).abs();
                assert!(off < 1e-9, "seed {seed}: {point:?} is {exact}");
            }
        }
    }

    #[test]
    fn a_sample_that_was_chosen_before_gives_the_same_curve() {
        let threshold = u64::MAX >> 4;
        let (mut all, mut sample) = (Reuse::new(1 << 20), Reuse::of_sample(1 << 20, threshold));
        all.threshold = threshold;
        for (block, _) in touches(50_000, 20_000, 3) {
            all.touch(0, block, false);
            let hash = mixed(block ^ mixed(0x2545_f491_4f6c_dd1d));
            sample.count_reads(1);
            if hash < threshold {
                sample.touch_hash(hash, false);
            }
        }
        assert_eq!(all.curve(), sample.curve());
        assert!(sample.curve().sample_rate < 0.07);
    }

    #[test]
    fn what_is_old_counts_for_less_and_what_is_new_for_all() {
        let mut reuse = Reuse::new(1 << 10);
        // Each is read once: no cache helps.
        (0..600).for_each(|block| reuse.touch(0, block, false));
        assert_eq!(reuse.curve().first_ratio, 1.0);
        (0..10).for_each(|_| reuse.age());
        // From now on ten blocks are read again and again.
        (0..600).for_each(|at| reuse.touch(0, at % 10, false));
        let curve = reuse.curve();
        assert!(curve.at(10).expect("a point") < 0.05, "{curve:?}");
        assert!(curve.first_ratio < 0.01);
    }

    /// The bound is the one that the documents state.
    #[test]
    fn a_sampled_curve_is_close_to_the_exact_one() {
        for seed in 0..5 {
            let touches = touches(400_000, 60_000, seed);
            let (mut exact, mut sampled) = (Reuse::new(100_000), Reuse::new(2_048));
            for (block, write) in &touches {
                exact.touch(0, *block, *write);
                sampled.touch(0, *block, *write);
            }
            let (exact, sampled) = (exact.curve(), sampled.curve());
            assert!(exact.sample_rate == 1.0 && sampled.sample_rate < 0.1);
            let points = exact.points.iter().filter(|it| it.blocks >= 600);
            let off: Vec<f64> = points
                .map(|it| (sampled.at(it.blocks).expect("a point") - it.miss_ratio).abs())
                .collect();
            let mean = off.iter().sum::<f64>() / off.len() as f64;
            assert!(off.len() > 10 && mean < 0.02, "seed {seed}: {mean}");
        }
    }
}
