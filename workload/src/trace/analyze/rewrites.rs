//! How much of what is written was written a short while ago (Capo, figure 5).
//!
//! Always true: sectors are counted, not blocks, and a written byte counts as rewritten within an
//! interval when the write before it to the same place is not older than the interval. So bytes
//! that need to be written, when each write waits for the interval and a newer one takes its
//! place, are all less the rewritten ones. A day is 24 hours from the first record on.

use crate::trace::SECTOR_BYTES;

pub const INTERVALS_MS: [u64; 6] = [
    10_000,
    60_000,
    600_000,
    3_600_000,
    6 * 3_600_000,
    24 * 3_600_000,
];
const DAY_NS: u64 = 24 * 3_600_000_000_000;
/// More days are counted as the last one.
const DAYS_MAX: usize = 3660;

/// Of a day, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub bytes: u64,
    /// Of these, by interval of [`INTERVALS_MS`]; each holds the shorter ones.
    pub again: [u64; INTERVALS_MS.len()],
}

impl Written {
    fn add(&mut self, other: &Written) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (sum, more) in self.again.iter_mut().zip(other.again) {
            *sum = sum.saturating_add(more);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrites {
    pub days: Vec<Written>,
}

impl Rewrites {
    pub fn day(&mut self, time_ns: u64) -> &mut Written {
        let at = ((time_ns / DAY_NS) as usize).min(DAYS_MAX - 1);
        if self.days.len() <= at {
            self.days.resize(at + 1, Written::default());
        }
        &mut self.days[at]
    }

    pub fn total(&self) -> Written {
        let mut total = Written::default();
        for day in &self.days {
            total.add(day);
        }
        total
    }
}

impl Written {
    pub fn sectors(&mut self, sectors: u64, weight: u64) {
        let bytes = (sectors * SECTOR_BYTES).saturating_mul(weight);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Of them, these were written so long ago.
    pub fn again(&mut self, ago_ms: u64, sectors: u64, weight: u64) {
        let bytes = (sectors * SECTOR_BYTES).saturating_mul(weight);
        for (sum, interval) in self.again.iter_mut().zip(INTERVALS_MS) {
            if ago_ms <= interval {
                *sum = sum.saturating_add(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_own_end_and_the_shorter_ones() {
        let mut rewrites = Rewrites::default();
        let day = rewrites.day(0);
        day.sectors(10, 1);
        day.again(10_000, 3, 1);
        day.again(10_001, 2, 2);
        rewrites.day(DAY_NS).sectors(1, 1);
        assert_eq!(rewrites.days.len(), 2);
        let total = rewrites.total();
        assert_eq!(total.bytes, 11 * 512);
        assert_eq!(total.again[..2], [3 * 512, 7 * 512]);
        assert_eq!(total.again[5], 7 * 512);
    }
}
