//! Requests of any byte on an engine that knows sectors.
//!
//! Owns two pure pieces: how a byte range falls apart into whole sectors and edges, and the lock
//! that makes a read-modify-write of an edge atomic against every other write of the volume.
//! Always true: of two overlapping ranges in the lock at least one is not exclusive or waits, and
//! ranges that wait start in the order they came. Deliberately absent: buffers and events; the
//! requests themselves are moved on by `request`.

use engine::types::{SECTOR_BYTES, Span};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::ops::Range;

/// Waiting ranges that are compared one by one; those behind them wait without a look. Keeps the
/// work of one release bounded, whatever clients send.
const LOOK_MAX: usize = 256;

/// A sector of which only a part is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    pub sector: u64,
    /// Bytes of the sector that the request gives; the others stay as they are.
    pub fresh: Range<usize>,
}

/// A byte range in terms of sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Every sector that is touched.
    pub outer: Span,
    /// Sectors covered whole; may be none.
    pub inner: Span,
    /// Bytes between the start of `outer` and the first byte asked for.
    pub skip: usize,
    /// First and last sector where they are covered in part.
    pub edges: [Option<Edge>; 2],
}

impl Cut {
    /// `length` is not zero.
    pub fn new(offset: u64, length: u64) -> Cut {
        let end = offset + length;
        let (first, last) = (offset / SECTOR_BYTES, end.div_ceil(SECTOR_BYTES));
        let (whole, whole_end) = (offset.div_ceil(SECTOR_BYTES), end / SECTOR_BYTES);
        let skip = (offset % SECTOR_BYTES) as usize;
        let rest = (end % SECTOR_BYTES) as usize;
        let sector = SECTOR_BYTES as usize;
        let mut edges = [None, None];
        if skip > 0 {
            let fresh = skip..(skip + length.min(SECTOR_BYTES) as usize).min(sector);
            edges[0] = Some(Edge {
                sector: first,
                fresh,
            });
        }
        let alone = skip > 0 && first == last - 1;
        if rest > 0 && !alone {
            edges[1] = Some(Edge {
                sector: last - 1,
                fresh: 0..rest,
            });
        }
        Cut {
            outer: Span::new(first, last - first),
            inner: Span::new(whole.min(whole_end), whole_end.saturating_sub(whole)),
            skip,
            edges,
        }
    }

    pub fn is_aligned(&self) -> bool {
        self.edges.iter().all(Option::is_none)
    }

    pub fn outer_bytes(&self) -> u64 {
        self.outer.sectors * SECTOR_BYTES
    }
}

#[derive(Clone, Debug)]
struct Wait<K> {
    key: K,
    span: Span,
    exclusive: bool,
}

/// Ranges of one volume that are being written.
///
/// Whole-sector writes share their ranges with each other: what overlapping ones leave behind is
/// the client's affair, as on any disk. A read-modify-write has its range alone.
#[derive(Debug)]
pub struct RangeLock<K> {
    shared: HashMap<K, Span>,
    exclusive: Vec<(K, Span)>,
    waiting: VecDeque<Wait<K>>,
}

impl<K> Default for RangeLock<K> {
    fn default() -> Self {
        RangeLock {
            shared: HashMap::new(),
            exclusive: Vec::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> RangeLock<K> {
    /// True if the range is held now; else `release` will hand it out in its turn.
    #[must_use]
    pub fn acquire(&mut self, key: K, span: Span, exclusive: bool) -> bool {
        let crowded = self.waiting.len() >= LOOK_MAX;
        let behind = self.waiting.iter().any(|wait| wait.span.overlaps(span));
        if crowded || behind || !self.is_free(span, exclusive) {
            self.waiting.push_back(Wait {
                key,
                span,
                exclusive,
            });
            return false;
        }
        self.hold(key, span, exclusive);
        true
    }

    fn is_free(&self, span: Span, exclusive: bool) -> bool {
        let behind_one = self.exclusive.iter().any(|(_, held)| held.overlaps(span));
        let beside_many = || self.shared.values().any(|held| held.overlaps(span));
        !(behind_one || (exclusive && beside_many()))
    }

    fn hold(&mut self, key: K, span: Span, exclusive: bool) {
        if exclusive {
            self.exclusive.push((key, span));
        } else {
            let before = self.shared.insert(key, span);
            assert!(before.is_none(), "a request holds one range");
        }
    }

    /// Gives a held range back; the keys of ranges that are held now go to `granted`.
    pub fn release(&mut self, key: K, granted: &mut impl Extend<K>) {
        if self.shared.remove(&key).is_none() {
            let found = self.exclusive.iter().position(|(held, _)| *held == key);
            let at = found.expect("only a range that is held is released");
            self.exclusive.swap_remove(at);
        }
        self.grant(granted);
    }

    /// Forgets a range that waits. Returns false if it is held already.
    pub fn withdraw(&mut self, key: K, granted: &mut impl Extend<K>) -> bool {
        let Some(at) = self.waiting.iter().position(|wait| wait.key == key) else {
            return false;
        };
        self.waiting.remove(at);
        self.grant(granted);
        true
    }

    fn grant(&mut self, granted: &mut impl Extend<K>) {
        let mut at = 0;
        while at < self.waiting.len().min(LOOK_MAX) {
            let wait = &self.waiting[at];
            let mut earlier = self.waiting.iter().take(at);
            let behind = earlier.any(|other| other.span.overlaps(wait.span));
            if behind || !self.is_free(wait.span, wait.exclusive) {
                at += 1;
                continue;
            }
            let wait = self.waiting.remove(at).expect("the index was just used");
            self.hold(wait.key, wait.span, wait.exclusive);
            granted.extend([wait.key]);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.shared.is_empty() && self.exclusive.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_aligned_range_has_no_edges() {
        let cut = Cut::new(1024, 4096);
        assert!(cut.is_aligned());
        assert_eq!(
            (cut.outer, cut.inner, cut.skip),
            (Span::new(2, 8), Span::new(2, 8), 0)
        );
    }

    #[test]
    fn a_range_inside_one_sector_is_one_edge() {
        let cut = Cut::new(700, 100);
        assert_eq!((cut.outer, cut.skip), (Span::new(1, 1), 188));
        assert_eq!(cut.inner.sectors, 0);
        let edge = Edge {
            sector: 1,
            fresh: 188..288,
        };
        assert_eq!(cut.edges, [Some(edge), None]);
    }

    proptest! {
        #[test]
        fn edges_and_whole_sectors_cover_a_range_exactly_once(
            offset in 0u64..5000, length in 1u64..5000
        ) {
            let cut = Cut::new(offset, length);
            let mut covered = vec![0; 12_000];
            for edge in cut.edges.iter().flatten() {
                for at in edge.fresh.clone() {
                    covered[edge.sector as usize * 512 + at] += 1;
                }
            }
            let inner = cut.inner.sector * 512..cut.inner.end() * 512;
            inner.for_each(|at| covered[at as usize] += 1);
            for (at, &count) in covered.iter().enumerate() {
                let asked = (offset..offset + length).contains(&(at as u64));
                prop_assert_eq!(count, u8::from(asked), "byte {}", at);
            }
            prop_assert_eq!(cut.outer.sector * 512 + cut.skip as u64, offset);
            prop_assert!(cut.outer.end() * 512 >= offset + length);
            prop_assert!(cut.outer.end() * 512 < offset + length + 512);
        }

        #[test]
        fn an_exclusive_range_is_alone_and_everybody_gets_a_turn(
            steps in prop::collection::vec((0u64..20, 1u64..6, any::<bool>(), 0usize..8), 1..200)
        ) {
            let mut lock = RangeLock::default();
            let (mut held, mut spans) = (Vec::<usize>::new(), Vec::new());
            for (key, (sector, sectors, exclusive, release)) in steps.into_iter().enumerate() {
                spans.push((Span::new(sector, sectors), exclusive));
                if lock.acquire(key, spans[key].0, exclusive) {
                    held.push(key);
                }
                if !held.is_empty() && release < 4 {
                    let done = held.remove(release % held.len());
                    lock.release(done, &mut held);
                }
                for (at, &a) in held.iter().enumerate() {
                    for &b in &held[at + 1..] {
                        let (one, other) = (spans[a], spans[b]);
                        prop_assert!(!one.0.overlaps(other.0) || !(one.1 || other.1));
                    }
                }
            }
            let mut turns = held.len();
            while let Some(done) = held.pop() {
                lock.release(done, &mut held);
                turns += 1;
                prop_assert!(turns < 1000, "the lock hands ranges out for ever");
            }
            prop_assert!(lock.is_idle());
        }
    }

    #[test]
    fn a_later_writer_does_not_overtake_one_that_waits() {
        let mut lock = RangeLock::default();
        assert!(lock.acquire(1, Span::new(0, 4), false));
        assert!(!lock.acquire(2, Span::new(2, 4), true));
        assert!(!lock.acquire(3, Span::new(5, 2), false));
        assert!(lock.acquire(4, Span::new(7, 2), false));
        let mut granted = Vec::new();
        lock.release(1, &mut granted);
        assert_eq!(granted, [2]);
        lock.release(2, &mut granted);
        assert_eq!(granted, [2, 3]);
    }

    #[test]
    fn a_range_that_is_withdrawn_lets_those_behind_it_go() {
        let mut lock = RangeLock::default();
        assert!(lock.acquire(1, Span::new(0, 1), false));
        assert!(!lock.acquire(2, Span::new(0, 4), true));
        assert!(!lock.acquire(3, Span::new(3, 1), false));
        let mut granted = Vec::new();
        assert!(lock.withdraw(2, &mut granted));
        assert_eq!(granted, [3]);
        assert!(!lock.withdraw(1, &mut granted));
    }

    #[test]
    fn a_crowd_keeps_its_order_beyond_the_bound_of_the_look() {
        let mut lock = RangeLock::default();
        assert!(lock.acquire(0, Span::new(0, 1), true));
        for key in 1..1000 {
            assert!(!lock.acquire(key, Span::new(0, 1), true));
        }
        let mut granted = Vec::new();
        for key in 0..1000 {
            lock.release(key, &mut granted);
        }
        assert_eq!(granted, (1..1000).collect::<Vec<_>>());
    }
}
