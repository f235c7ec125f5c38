//! What a load asks for, and what came of it.
//!
//! Owns the choice of the next request and the record of those that were answered. Always true:
//! a walk visits every block of its range once before it comes back to one, in an order that no
//! device can guess, or one after the other; a record holds times that were measured, and grows
//! only up to the room it was made with for a slot of usual length. Deliberately absent: who
//! carries the requests.

use std::ops::Range;
use std::time::{Duration, Instant};
use workload::rng::Rng;

pub const BLOCK_BYTES: u64 = 4096;
/// Samples that a record has room for before it must grow.
const SAMPLES_MIN: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Flush,
    /// A write and the flush behind it, timed as one.
    Sealed,
}

/// Blocks of a range, each once for each lap.
#[derive(Clone, Debug)]
pub struct Walk {
    first: u64,
    /// Length of the range; a power of two where the order is scattered.
    blocks: u64,
    /// Of one block.
    bytes: u64,
    scattered: bool,
    at: u64,
}

impl Walk {
    /// The first power of two of the blocks of `range`, in scattered order.
    pub fn new(range: Range<u64>) -> Walk {
        Walk::scattered(range, BLOCK_BYTES)
    }

    /// The same with blocks of this size.
    pub fn scattered(range: Range<u64>, bytes: u64) -> Walk {
        let walk = Walk::ascending(range, bytes);
        Walk {
            blocks: 1 << walk.blocks.ilog2(),
            scattered: true,
            ..walk
        }
    }

    /// One block of this size after the other.
    pub fn ascending(range: Range<u64>, bytes: u64) -> Walk {
        let blocks = range.end - range.start;
        assert!(blocks > 0, "a walk has somewhere to go");
        Walk {
            first: range.start,
            blocks,
            bytes,
            scattered: false,
            at: 0,
        }
    }

    pub fn next(&mut self) -> u64 {
        let number = self.at % self.blocks;
        self.at += 1;
        self.first
            + match self.scattered {
                true => scatter(number, self.blocks - 1),
                false => number,
            }
    }
}

/// A bijection of the numbers up to `mask`: odd factors and shifts to the right can be undone.
fn scatter(number: u64, mask: u64) -> u64 {
    let half = (mask.count_ones() / 2).max(1);
    let mut mixed = number;
    for factor in [0x9E37_79B9_7F4A_7C15_u64, 0xBF58_476D_1CE4_E5B9] {
        mixed = mixed.wrapping_mul(factor | 1) & mask;
        mixed ^= mixed >> half;
    }
    mixed
}

/// One kind of request and its part of all.
#[derive(Clone, Debug)]
pub struct Share {
    pub per_mille: u32,
    pub verb: Verb,
    pub walk: Walk,
}

/// A closed loop of so many requests in flight.
#[derive(Clone, Debug)]
pub struct Work {
    shares: Vec<Share>,
    pub depth: usize,
    /// At most so many of each second begin; only where one is in flight.
    pub per_second: Option<u32>,
    /// So many more, and no others.
    pub left: Option<u64>,
    random: Rng,
}

impl Work {
    pub fn new(shares: Vec<Share>, depth: usize) -> Work {
        let sum: u32 = shares.iter().map(|share| share.per_mille).sum();
        assert_eq!(sum, 1000, "the shares make a whole");
        assert!(depth > 0, "something is in flight");
        Work {
            shares,
            depth,
            per_second: None,
            left: None,
            random: Rng::new(0),
        }
    }

    /// One kind of request over one range.
    pub fn only(verb: Verb, range: Range<u64>, depth: usize) -> Work {
        Work::along(verb, Walk::new(range), depth)
    }

    /// One kind of request along this walk.
    pub fn along(verb: Verb, walk: Walk, depth: usize) -> Work {
        let per_mille = 1000;
        Work::new(
            vec![Share {
                per_mille,
                verb,
                walk,
            }],
            depth,
        )
    }

    /// Of its largest request.
    pub fn bytes_max(&self) -> u64 {
        let bytes = self.shares.iter().map(|share| share.walk.bytes);
        bytes.max().expect("the shares make a whole")
    }

    /// The next request, which is sent now.
    pub fn next(&mut self, sent: Instant) -> Option<Slot> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let mut left = self.random.scaled(1000) as u32;
        let chosen = self.shares.iter().position(|share| {
            let inside = left < share.per_mille;
            left = left.saturating_sub(share.per_mille);
            inside
        });
        let share = &mut self.shares[chosen.expect("the shares make a whole")];
        Some(Slot {
            verb: share.verb,
            block: share.walk.next(),
            bytes: share.walk.bytes,
            written: false,
            sent,
        })
    }
}

/// A request in flight.
#[derive(Clone, Copy)]
pub struct Slot {
    pub verb: Verb,
    pub block: u64,
    /// Of a block.
    pub bytes: u64,
    /// The write of a sealed one is answered, its flush is not.
    pub written: bool,
    pub sent: Instant,
}

impl Slot {
    pub fn idle(now: Instant) -> Slot {
        Slot {
            verb: Verb::Flush,
            block: 0,
            bytes: BLOCK_BYTES,
            written: false,
            sent: now,
        }
    }
}

/// One answered request: when, from the start of the slot, and after how long.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: Duration,
    pub latency: Duration,
}

/// What came of one slot.
#[derive(Debug)]
pub struct Tally {
    began: Instant,
    lasts: Duration,
    samples: Vec<Sample>,
}

impl Tally {
    pub fn new(began: Instant, lasts: Duration) -> Tally {
        Tally {
            began,
            lasts,
            samples: Vec::with_capacity(SAMPLES_MIN),
        }
    }

    /// Counts a request; one that was answered after the end does not count.
    pub fn add(&mut self, sent: Instant, answered: Instant) {
        let at = answered - self.began;
        if at <= self.lasts {
            let latency = answered - sent;
            self.samples.push(Sample { at, latency });
        }
    }

    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// As if both had been one; times of its samples stay those of its own slot.
    pub fn join(&mut self, other: Tally) {
        self.lasts += other.lasts;
        self.samples.extend(other.samples);
    }

    pub fn per_second(&self) -> f64 {
        self.samples.len() as f64 / self.lasts.as_secs_f64()
    }

    /// The latency that so many of a hundred did not exceed, in microseconds.
    pub fn quantile_us(&self, percent: usize) -> Option<f64> {
        let mut nanos: Vec<Duration> = self.samples.iter().map(|it| it.latency).collect();
        let rank = (nanos.len() * percent).div_ceil(100).max(1);
        if rank > nanos.len() {
            return None;
        }
        let (_, found, _) = nanos.select_nth_unstable(rank - 1);
        Some(found.as_secs_f64() * 1e6)
    }
}

/// Whoever carries a load: our server, another one, or the bare device.
pub trait Carrier {
    fn carry(&mut self, work: &mut Work, lasts: Duration) -> std::io::Result<Tally>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_block_once_before_it_comes_back() {
        for blocks in [1, 2, 8, 1 << 13, 1 << 16] {
            let mut walk = Walk::new(100..100 + blocks);
            let mut seen: Vec<u64> = (0..blocks).map(|_| walk.next()).collect();
            let first = seen[0];
            seen.sort_unstable();
            assert_eq!(seen, (100..100 + blocks).collect::<Vec<u64>>());
            assert_eq!(walk.next(), first);
        }
    }

    #[test]
    fn an_ascending_walk_takes_all_of_its_blocks_and_begins_again() {
        let mut walk = Walk::ascending(7..10, 512);
        let seen: Vec<u64> = (0..4).map(|_| walk.next()).collect();
        assert_eq!(seen, [7, 8, 9, 7]);
    }

    #[test]
    fn shares_are_drawn_as_often_as_they_say() {
        let share = |per_mille, verb| Share {
            per_mille,
            verb,
            walk: Walk::new(0..16),
        };
        let shares = vec![share(700, Verb::Read), share(300, Verb::Write)];
        let (mut work, now) = (Work::new(shares, 1), Instant::now());
        let reads = (0..10_000)
            .filter(|_| work.next(now).is_some_and(|it| it.verb == Verb::Read))
            .count();
        assert!((6_800..7_200).contains(&reads), "{reads}");
    }

    #[test]
    fn what_is_answered_after_the_end_does_not_count() {
        let began = Instant::now();
        let mut tally = Tally::new(began, Duration::from_secs(1));
        let at = |millis| began + Duration::from_millis(millis);
        tally.add(at(0), at(10));
        tally.add(at(900), at(1_100));
        assert_eq!(tally.samples().len(), 1);
        assert_eq!(tally.quantile_us(50), Some(10_000.0));
        assert_eq!(tally.per_second(), 1.0);
    }
}
