//! Warnings about devices, at a bearable rate.
//!
//! Owns when the last one was written for each path and how many were swallowed since. Always
//! true: the first failure of a device is told at once, and none is left uncounted: the next line
//! says how many came between. At most [`PATHS_MAX`] devices are told apart.

use engine::types::Time;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A device that is gone fails thousands of requests in a second.
const PAUSE_MS: u64 = 1_000;
const PATHS_MAX: usize = 1_024;

#[derive(Default)]
pub struct Complaints {
    told: BTreeMap<PathBuf, Told>,
}

struct Told {
    at: Time,
    swallowed: u64,
}

impl Complaints {
    /// Whether to write a line about this device now, and how many were not written before it.
    pub fn may(&mut self, now: Time, path: &Path) -> Option<u64> {
        if let Some(told) = self.told.get_mut(path) {
            if now < told.at.plus_millis(PAUSE_MS) {
                told.swallowed += 1;
                return None;
            }
            told.at = now;
            return Some(std::mem::take(&mut told.swallowed));
        }
        if self.told.len() == PATHS_MAX {
            self.told.pop_first();
        }
        let (at, swallowed) = (now, 0);
        self.told.insert(path.to_owned(), Told { at, swallowed });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_those_within_a_second_are_counted() {
        let mut complaints = Complaints::default();
        let (disk, other) = (Path::new("/disk"), Path::new("/other"));
        let second = |n: u64| Time(n * 1_000_000_000);
        assert_eq!(complaints.may(second(1), disk), Some(0));
        assert_eq!(complaints.may(second(1), disk), None);
        assert_eq!(complaints.may(Time(second(2).0 - 1), disk), None);
        assert_eq!(complaints.may(second(1), other), Some(0));
        assert_eq!(complaints.may(second(2), disk), Some(2));
        assert_eq!(complaints.may(second(9), disk), Some(0));
    }
}
