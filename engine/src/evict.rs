//! Who leaves a full cache: S3-FIFO over numbered slots.
//!
//! ```text
//! new ──▶ small ──hit again──▶ main ⟲ a lap for each hit
//!           │                    │
//!           ▼                    ▼
//!         ghost ──asked again──▶ main        gone
//! ```
//!
//! A new slot enters a small queue. What was hit there moves on to the main queue, the rest leaves
//! for the ghost: a memory of fingerprints that sends what is asked for again straight to the main
//! queue. One pass over a large image so costs the main queue nothing. Always true: a slot is in
//! one queue or in none, and only slots in a queue can be evicted; each step of an eviction takes
//! a hit away or a slot out of the small queue, so it ends. Deliberately absent: keys and bytes.

use crate::ghost::Ghost;
use alloc::vec::Vec;

/// Counters have two bits.
const HITS_MAX: u8 = 3;
/// The small queue has one part of so many.
const SMALL_PART: usize = 10;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    None,
    Small,
    Main,
}

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    queue: Queue,
    hits: u8,
}

/// A doubly linked list of slots, so that one can leave from the middle.
struct Fifo {
    newest: u32,
    oldest: u32,
    len: usize,
}

pub struct S3Fifo {
    links: Vec<Link>,
    small: Fifo,
    main: Fifo,
    /// What left the small queue unasked for.
    ghost: Ghost,
}

impl Fifo {
    const EMPTY: Fifo = Fifo {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };

    fn push(&mut self, links: &mut [Link], slot: u32) {
        assert!(self.is_consistent(), "an empty list has no ends");
        let link = &mut links[slot as usize];
        link.newer = NONE;
        link.older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => links[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Both ends are there, or none and no slot.
    fn is_consistent(&self) -> bool {
        (self.newest == NONE) == (self.len == 0) && (self.oldest == NONE) == (self.len == 0)
    }

    fn remove(&mut self, links: &mut [Link], slot: u32) {
        assert!(self.len > 0, "a list that has the slot is not empty");
        let Link { newer, older, .. } = links[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => links[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links[older as usize].newer = newer,
        }
        self.len -= 1;
        assert!(self.is_consistent(), "an empty list has no ends");
    }
}

impl S3Fifo {
    pub fn new(slots: usize) -> S3Fifo {
        assert!(slots < NONE as usize, "a slot has a number");
        let free = Link {
            newer: NONE,
            older: NONE,
            queue: Queue::None,
            hits: 0,
        };
        S3Fifo {
            links: alloc::vec![free; slots],
            small: Fifo::EMPTY,
            main: Fifo::EMPTY,
            ghost: Ghost::new(slots),
        }
    }

    pub fn bytes(&self) -> usize {
        self.links.len() * size_of::<Link>() + self.ghost.bytes()
    }

    /// A slot has content now, whose key has this hash. True if it had left not long ago.
    pub fn insert(&mut self, slot: u32, hash: u64) -> bool {
        let again = self.ghost.recall(hash);
        self.links[slot as usize].hits = 0;
        self.enter(slot, if again { Queue::Main } else { Queue::Small });
        again
    }

    /// A slot that was taken out with its content comes back; what was asked for meanwhile, or
    /// before, has earned its place.
    pub fn put_back(&mut self, slot: u32) {
        let hit = core::mem::take(&mut self.links[slot as usize].hits) > 0;
        self.enter(slot, if hit { Queue::Main } else { Queue::Small });
    }

    /// True if it is the first hit since the slot entered its queue.
    pub fn hit(&mut self, slot: u32) -> bool {
        let link = &mut self.links[slot as usize];
        let first = link.hits == 0;
        link.hits = (link.hits + 1).min(HITS_MAX);
        first
    }

    /// A key that is not here is worth a place in the main queue, should somebody ask for it.
    pub fn expect(&mut self, hash: u64) {
        self.ghost.remember(hash);
    }

    /// A slot is out of the queues; nothing is remembered of it.
    pub fn remove(&mut self, slot: u32) {
        match self.links[slot as usize].queue {
            Queue::Small => self.small.remove(&mut self.links, slot),
            Queue::Main => self.main.remove(&mut self.links, slot),
            Queue::None => return,
        }
        self.links[slot as usize].queue = Queue::None;
    }

    /// Takes out the slot that is worth least. `hash` tells the hash of a slot's key.
    pub fn evict(&mut self, hash: impl Fn(u32) -> u64) -> Option<u32> {
        loop {
            let small_max = self.links.len() / SMALL_PART;
            let from_small = self.small.len > small_max || self.main.len == 0;
            let slot = match from_small {
                true => self.small.oldest,
                false => self.main.oldest,
            };
            if slot == NONE {
                return None;
            }
            let queue = if from_small {
                Queue::Small
            } else {
                Queue::Main
            };
            assert!(
                self.links[slot as usize].queue == queue,
                "a slot knows its queue"
            );
            self.remove(slot);
            let link = &mut self.links[slot as usize];
            let hits = link.hits;
            match (from_small, hits) {
                (true, 0) => {
                    self.ghost.remember(hash(slot));
                    return Some(slot);
                }
                (true, _) => link.hits = 0,
                (false, 0) => return Some(slot),
                (false, _) => link.hits = hits - 1,
            }
            self.enter(slot, Queue::Main);
        }
    }

    fn enter(&mut self, slot: u32, queue: Queue) {
        assert!(
            self.links[slot as usize].queue == Queue::None,
            "a slot is in one queue at most"
        );
        match queue {
            Queue::Small => self.small.push(&mut self.links, slot),
            Queue::Main => self.main.push(&mut self.links, slot),
            Queue::None => unreachable!("a slot enters a queue"),
        }
        self.links[slot as usize].queue = queue;
        assert!(self.small.len + self.main.len <= self.links.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of keys that are their own hashes, spread.
    struct Keys {
        queues: S3Fifo,
        keys: Vec<Option<u64>>,
    }

    fn spread(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    impl Keys {
        fn new(slots: usize) -> Keys {
            Keys {
                queues: S3Fifo::new(slots),
                keys: alloc::vec![None; slots],
            }
        }

        /// True if it was there.
        fn ask(&mut self, key: u64) -> bool {
            if let Some(slot) = self.keys.iter().position(|&held| held == Some(key)) {
                self.queues.hit(slot as u32);
                return true;
            }
            let free = self.keys.iter().position(Option::is_none);
            let keys = &self.keys;
            let slot = free.map(|slot| slot as u32).or_else(|| {
                self.queues
                    .evict(|slot| spread(keys[slot as usize].expect("a key")))
            });
            let slot = slot.expect("a slot");
            self.keys[slot as usize] = Some(key);
            self.queues.insert(slot, spread(key));
            false
        }
    }

    #[test]
    fn one_pass_over_much_does_not_push_out_what_is_used() {
        let mut cache = Keys::new(100);
        for _ in 0..3 {
            (0..50).for_each(|key| {
                cache.ask(key);
            });
        }
        (1000..3000).for_each(|key| {
            cache.ask(key);
        });
        let kept = (0..50).filter(|&key| cache.ask(key)).count();
        assert!(kept >= 45, "{kept} of 50 are left");
    }

    #[test]
    fn what_is_asked_for_again_after_it_left_comes_to_stay() {
        let mut cache = Keys::new(100);
        (0..200).for_each(|key| {
            cache.ask(key);
        });
        // It left a moment ago unasked for; now it goes to the main queue.
        assert!(!cache.ask(95));
        (1000..1100).for_each(|key| {
            cache.ask(key);
        });
        assert!(cache.ask(95));
    }

    #[test]
    fn queues_hold_exactly_what_was_inserted_and_neither_removed_nor_evicted() {
        let mut queues = S3Fifo::new(32);
        let mut held = alloc::vec![false; 32];
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = spread(state ^ (state >> 29)).wrapping_add(1);
            let slot = (state >> 40) as u32 % 32;
            match (state >> 33) % 4 {
                0 if !held[slot as usize] => {
                    queues.insert(slot, spread(u64::from(slot)));
                    held[slot as usize] = true;
                }
                1 => {
                    queues.hit(slot);
                }
                2 if held[slot as usize] && state >> 63 == 1 => {
                    queues.remove(slot);
                    queues.put_back(slot);
                }
                2 => {
                    queues.remove(slot);
                    held[slot as usize] = false;
                }
                3 => match queues.evict(|slot| spread(u64::from(slot))) {
                    Some(slot) => {
                        assert!(core::mem::take(&mut held[slot as usize]));
                    }
                    None => assert!(held.iter().all(|held| !held)),
                },
                _ => {}
            }
            let inside = held.iter().filter(|held| **held).count();
            assert_eq!(queues.small.len + queues.main.len, inside);
        }
    }
}
