//! How many extents the maps of dirty data have, and the maps that nothing needs any more.
//!
//! Always true: each extent is counted once, from when it is made until its map is taken apart,
//! which is done in small steps. Deliberately absent: how many there may be ([`super::share`]).

use crate::log::{Log, QuotaOwner};
use crate::map::{Change, ExtentMap};
use alloc::vec::Vec;

/// Extents of dropped maps that one step takes out of the accounts.
const SWEEP_EXTENTS: usize = 4096;

#[derive(Default)]
pub struct Extents {
    count: u64,
    /// Maps that are to be taken apart.
    dropped: Vec<ExtentMap>,
}

impl Extents {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A map has so many more, or fewer.
    #[inline]
    pub fn grow(&mut self, by: i64) {
        self.count = self.count.strict_add_signed(by);
    }

    /// A map has become part of another, which had `before` and has `after` by now.
    pub fn merged(&mut self, map: &ExtentMap, before: u64, after: u64) {
        assert!(self.count >= map.len() + before, "each was counted");
        self.count = self.count + after - before - map.len();
    }

    /// Drops a map: its extents keep nothing alive any more.
    pub fn free_later(&mut self, map: ExtentMap) {
        assert!(self.count >= map.len(), "each extent was counted");
        if !map.is_empty() {
            self.dropped.push(map);
        }
    }

    /// Nothing is left to be taken apart.
    pub fn is_swept(&self) -> bool {
        self.dropped.is_empty()
    }

    /// Takes the extents of dropped maps out of the accounts, in small steps.
    pub fn sweep(&mut self, log: &mut Log) {
        let mut left = SWEEP_EXTENTS;
        while left > 0 {
            let Some(map) = self.dropped.last_mut() else {
                return;
            };
            let Some(piece) = map.pop() else {
                self.dropped.pop();
                continue;
            };
            log.account(QuotaOwner::NONE, Change::Removed(piece));
            assert!(self.count > 0, "each extent was counted");
            self.count -= 1;
            left -= 1;
        }
    }

    /// That the count is right: `others` are those of all other maps.
    #[cfg(feature = "adversary")]
    pub fn check(&self, others: u64) {
        let dropped: u64 = self.dropped.iter().map(ExtentMap::len).sum();
        assert_eq!(self.count, others + dropped, "each extent is counted once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Content, Piece};
    use crate::types::{LogAddr, Span};

    #[test]
    fn a_map_that_was_dropped_counts_until_it_is_taken_apart() {
        let mut extents = Extents::default();
        let mut map = ExtentMap::new();
        for at in 0..3 {
            let (span, header) = (Span::new(at * 16, 8), LogAddr(at * 64));
            let content = Content::Zero {
                header,
                allocate: false,
            };
            map.insert(Piece { span, content }, &mut |_| {});
        }
        extents.grow(map.len() as i64);
        extents.free_later(map);
        extents.free_later(ExtentMap::new());
        assert_eq!(extents.count(), 3);
        assert!(!extents.is_swept());
    }

    #[test]
    fn a_merged_map_is_counted_once() {
        let mut extents = Extents::default();
        extents.grow(5);
        extents.merged(&ExtentMap::new(), 5, 4);
        assert_eq!(extents.count(), 4);
    }
}
