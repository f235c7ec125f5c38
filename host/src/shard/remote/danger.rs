//! Which writes must wait, because earlier ones may still land behind them (rule 5.2.1).
//!
//! Always true: a range that was in flight when its connection ended is not written again before
//! its time; what is forgotten to save memory counts as everything. Deliberately absent: clocks.

use engine::types::Time;
use std::ops::Range;

/// Ranges that are remembered one by one.
const RANGES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(in crate::shard) struct Danger {
    everything_until: Time,
    ranges: Vec<(Range<u64>, Time)>,
}

impl Danger {
    /// Every write waits until then.
    pub fn add_everything(&mut self, until: Time) {
        self.everything_until = self.everything_until.max(until);
    }

    /// Writes of these bytes wait until then.
    pub fn add(&mut self, range: Range<u64>, until: Time) {
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push((range, until));
            return;
        }
        self.ranges.clear();
        // All that was in there was added before, so it ends before.
        self.add_everything(until);
    }

    /// `Err` says when these bytes may be written.
    pub fn judge(&mut self, now: Time, range: &Range<u64>) -> Result<(), Time> {
        self.ranges.retain(|(_, until)| *until > now);
        let meets = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let met = self.ranges.iter().filter(|(other, _)| meets(other));
        let until = met.map(|(_, until)| *until).max().unwrap_or_default();
        let until = until.max(self.everything_until);
        if until > now { Err(until) } else { Ok(()) }
    }

    /// Nothing can land any more.
    pub fn is_over(&self, now: Time) -> bool {
        self.everything_until <= now && self.ranges.iter().all(|(_, until)| *until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_in_flight_waits_and_only_so_long() {
        let mut danger = Danger::default();
        danger.add(4096..8192, Time(100));
        assert_eq!(danger.judge(Time(50), &(0..4096)), Ok(()));
        assert_eq!(danger.judge(Time(50), &(8191..9000)), Err(Time(100)));
        assert!(!danger.is_over(Time(99)));
        assert!(danger.is_over(Time(100)));
        assert_eq!(danger.judge(Time(100), &(4096..8192)), Ok(()));
        danger.add_everything(Time(200));
        assert_eq!(danger.judge(Time(150), &(0..1)), Err(Time(200)));
    }

    #[test]
    fn more_ranges_than_are_remembered_are_everything() {
        let mut danger = Danger::default();
        for at in 0..2000 {
            danger.add(at * 10..at * 10 + 1, Time(100 + at));
        }
        assert!(danger.judge(Time(1), &(1_000_000..1_000_001)).is_err());
        for at in 0..2000 {
            assert!(danger.judge(Time(1), &(at * 10..at * 10 + 1)).is_err());
        }
    }
}
