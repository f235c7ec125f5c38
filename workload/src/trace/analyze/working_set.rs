//! How many different blocks are asked for, over time.
//!
//! Always true: blocks of 4 KiB, each disk's own; counted when they are read, written, or either
//! for the first time.

use super::blocks::{BLOCK_BYTES, Was};
use super::slots::Slots;

const READ: usize = 0;
const WRITTEN: usize = 1;
const ANY: usize = 2;

/// Bytes of different blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub read: u64,
    pub written: u64,
    pub any: u64,
}

#[derive(Clone, Debug, Default)]
pub struct WorkingSet {
    new: Slots<[u64; 3]>,
}

impl WorkingSet {
    pub fn touch(&mut self, time_ns: u64, write: bool, was: Was, weight: u64) {
        let known = if write { was.written } else { was.read };
        if known {
            return;
        }
        let new = self.new.at(time_ns);
        new[if write { WRITTEN } else { READ }] += BLOCK_BYTES * weight;
        if !was.seen_by_disk() {
            new[ANY] += BLOCK_BYTES * weight;
        }
    }

    /// Over time: the end of a slot, and what was touched until then.
    pub fn over_time(&self) -> Vec<(u64, Set)> {
        let mut set = Set::default();
        let slots = self.new.all().iter().zip(1..);
        slots
            .map(|(new, number)| {
                set.read += new[READ];
                set.written += new[WRITTEN];
                set.any += new[ANY];
                (self.new.width_ns().saturating_mul(number), set)
            })
            .collect()
    }

    pub fn total(&self) -> Set {
        self.over_time().last().map_or(Set::default(), |it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_once_as_read_once_as_written_and_once_at_all() {
        let mut set = WorkingSet::default();
        let mut was = Was {
            read: false,
            written: false,
            base_read: false,
        };
        set.touch(0, true, was, 1);
        was.written = true;
        set.touch(1, true, was, 1);
        set.touch(5_000_000_000, false, was, 1);
        was.read = true;
        set.touch(6_000_000_000, false, was, 1);
        let expected = Set {
            read: 4096,
            written: 4096,
            any: 4096,
        };
        assert_eq!(set.total(), expected);
        assert_eq!(set.over_time()[0].1.read, 0);
    }
}
