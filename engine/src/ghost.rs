//! What was asked for and is not here any more: fingerprints of a bounded number of keys.
//!
//! Always true: memory is bounded from the start; a key is recalled at most once each time it was
//! remembered, and of those that share a bucket the oldest is forgotten. A fingerprint has 16 bits
//! beside the bucket, so about one of 8,000 keys is taken for one that was remembered: whoever
//! asks must be right either way. Deliberately absent: the keys themselves.

use alloc::vec::Vec;

/// Fingerprints that share a bucket.
const WAYS: usize = 8;
/// An empty way; no key has it.
const NONE: u16 = 0;

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Bucket([u16; WAYS]);

const _: () = assert!(
    64 % size_of::<Bucket>() == 0,
    "a bucket lies in one cache line"
);

pub struct Ghost {
    buckets: Vec<Bucket>,
}

impl Ghost {
    pub fn new(keys: usize) -> Ghost {
        let buckets = keys.div_ceil(WAYS);
        Ghost {
            buckets: alloc::vec![Bucket([NONE; WAYS]); buckets],
        }
    }

    /// As many keys as fit into so much memory.
    pub fn of_bytes(bytes: u64) -> Ghost {
        let ghost = Ghost::new(bytes as usize / size_of::<Bucket>() * WAYS);
        assert!(
            ghost.bytes() as u64 <= bytes,
            "memory is bounded from the start"
        );
        ghost
    }

    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// The upper half of a hash chooses the bucket, the lowest bits are what is kept in it.
    fn find(&mut self, hash: u64) -> Option<(&mut [u16; WAYS], u16)> {
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        let bucket = self.buckets.get_mut(bucket as usize)?;
        Some((&mut bucket.0, (hash as u16).max(NONE + 1)))
    }

    pub fn remember(&mut self, hash: u64) {
        if let Some((bucket, print)) = self.find(hash) {
            assert!(print != NONE, "an empty way is that of no key");
            // Not `rotate_right`, which calls out for so few.
            bucket.copy_within(..WAYS - 1, 1);
            bucket[0] = print;
        }
    }

    /// True, once, if it was remembered.
    pub fn recall(&mut self, hash: u64) -> bool {
        let Some((bucket, print)) = self.find(hash) else {
            return false;
        };
        let Some(at) = bucket.iter().position(|&way| way == print) else {
            return false;
        };
        bucket.copy_within(at + 1.., at);
        bucket[WAYS - 1] = NONE;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn a_key_is_recalled_once_each_time_it_was_remembered() {
        let mut ghost = Ghost::new(64);
        assert!(!ghost.recall(spread(1)));
        ghost.remember(spread(1));
        ghost.remember(spread(1));
        let recalled = [(); 3].map(|()| ghost.recall(spread(1)));
        assert_eq!(recalled, [true, true, false]);
    }

    #[test]
    fn the_oldest_of_a_bucket_is_forgotten() {
        let mut ghost = Ghost::new(WAYS);
        let keys = 1..=WAYS as u64 + 2;
        keys.clone().for_each(|key| ghost.remember(key));
        let left: Vec<u64> = keys.filter(|key| ghost.recall(*key)).collect();
        assert_eq!(left, (3..=WAYS as u64 + 2).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_recalled_leaves_the_others_in_their_order() {
        let mut ghost = Ghost::new(WAYS);
        (1..=WAYS as u64).for_each(|key| ghost.remember(key));
        assert!(ghost.recall(4));
        // Into the way that is free now, and then for the oldest.
        (11..=12).for_each(|key| ghost.remember(key));
        let left: Vec<u64> = (1..=12).filter(|key| ghost.recall(*key)).collect();
        assert_eq!(left, [2, 3, 5, 6, 7, 8, 11, 12]);
    }

    #[test]
    fn a_hash_without_a_fingerprint_has_one_all_the_same() {
        let mut ghost = Ghost::new(WAYS);
        assert!(!ghost.recall(0), "an empty way is nobody's");
        ghost.remember(0);
        assert!(ghost.recall(0));
    }

    #[test]
    fn most_of_as_many_keys_as_there_is_room_for_are_remembered() {
        let mut ghost = Ghost::new(1 << 14);
        (0..1 << 14).for_each(|key| ghost.remember(spread(key)));
        let left = (0..1 << 14).filter(|&key| ghost.recall(spread(key)));
        let left = left.count();
        assert!(left > (1 << 14) * 4 / 5, "{left}");
        let taken = (1 << 20..1 << 21).filter(|&key| ghost.recall(spread(key)));
        let taken = taken.count();
        assert!(taken < 300, "{taken} of a million were never remembered");
    }

    #[test]
    fn memory_is_bounded_and_without_any_nothing_is_remembered() {
        assert_eq!(Ghost::of_bytes(1000).bytes(), 992);
        for bytes in [0, 15] {
            let mut none = Ghost::of_bytes(bytes);
            none.remember(7);
            assert!(!none.recall(7) && none.bytes() == 0);
        }
    }
}
