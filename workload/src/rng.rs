//! The only source of chance: of the simulator, of loads, and of tests.
//!
//! Owns xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64. Always true: the same seed
//! gives the same numbers on every machine; this file needs nothing but the standard library, since
//! the program inside a guest is built with it. Deliberately absent: any other entropy.

/// Between two states of splitmix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64 (Steele and others, 2014) of one number: neighbours become far apart.
pub fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(STEP);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut at = seed;
        let state = [(); 4].map(|()| {
            let word = mixed(at);
            at = at.wrapping_add(STEP);
            word
        });
        Rng { state }
    }

    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `end`, which must not be 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    /// A number below `end` as well, without a division, for loops that are measured.
    pub fn scaled(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            part.copy_from_slice(&word[..part.len()]);
        }
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.scaled(at as u64 + 1) as usize);
        }
    }

    /// A number in `first..end`.
    pub fn range(&mut self, first: u64, end: u64) -> u64 {
        first + self.below(end - first)
    }

    /// True `in_thousand` times out of a thousand.
    pub fn chance(&mut self, in_thousand: u64) -> bool {
        self.below(1000) < in_thousand
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn bytes16(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.word().to_le_bytes());
        bytes[8..].copy_from_slice(&self.word().to_le_bytes());
        bytes
    }

    /// An independent generator, so that one part of a run can change without the others.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_others() {
        let run = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| rng.word()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    /// Seeds that are written down somewhere, with what they found, mean this sequence.
    #[test]
    fn a_seed_keeps_its_meaning() {
        let mut rng = Rng::new(1);
        let words = [(); 4].map(|()| rng.word());
        assert_eq!(
            words,
            [
                0xb3f2_af6d_0fc7_10c5,
                0x853b_5596_4736_4cea,
                0x92f8_9756_082a_4514,
                0x642e_1c7b_c266_a3a7
            ]
        );
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_all_of_it() {
        let mut rng = Rng::new(3);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[rng.range(10, 20) as usize - 10] = true;
        }
        assert_eq!(seen, [true; 10]);
    }
}
