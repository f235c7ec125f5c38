//! Random numbers that are the same everywhere.
//!
//! Owns one small generator (xoroshiro128++, seeded by splitmix64). Always true: what is drawn
//! depends on seed, purpose and index alone, so that a desktop is the same in every run.
//! Deliberately absent: any source of entropy.

use crate::rng::mixed;

#[derive(Clone, Debug)]
pub struct Random(u64, u64);

fn splitmix(state: &mut u64) -> u64 {
    let word = mixed(*state);
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word
}

impl Random {
    pub fn new(seed: u64, purpose: u64, index: u64) -> Random {
        let mut state = seed;
        let mut state = splitmix(&mut state) ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut state = splitmix(&mut state) ^ index;
        let (low, high) = (splitmix(&mut state), splitmix(&mut state));
        // The one state that never leaves itself.
        Random(low | 1, high)
    }

    pub fn next(&mut self) -> u64 {
        let (low, high) = (self.0, self.1);
        let drawn = low.wrapping_add(high).rotate_left(17).wrapping_add(low);
        let mixed = high ^ low;
        self.0 = low.rotate_left(49) ^ mixed ^ mixed << 21;
        self.1 = mixed.rotate_left(28);
        drawn
    }

    /// From 0 up to, not with, 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, not with, `end`; 0 where that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Normal with mean 0 and deviation 1, near enough: the sum of twelve.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }

    /// An index, each as likely as its weight.
    pub fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.share() * weights.iter().sum::<f64>();
        for (at, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return at;
            }
        }
        weights.len() - 1
    }
}
