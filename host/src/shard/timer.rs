//! What the shard does later, and how long it spins before it sleeps.
//!
//! Always true: an alarm rings once, and one that is cancelled never; alarms ring in order of
//! their times. Deliberately absent: the clock itself, which the loop reads once per round.

use engine::types::Time;
use std::collections::BTreeMap;

/// Names an alarm that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    at: Time,
    number: u64,
}

/// Alarms in order of time.
#[derive(Debug)]
pub struct Timers<T> {
    alarms: BTreeMap<Key, T>,
    set: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Timers {
            alarms: BTreeMap::new(),
            set: 0,
        }
    }
}

impl<T> Timers<T> {
    pub fn set(&mut self, at: Time, what: T) -> Key {
        self.set += 1;
        let key = Key {
            at,
            number: self.set,
        };
        self.alarms.insert(key, what);
        key
    }

    pub fn cancel(&mut self, key: Key) {
        self.alarms.remove(&key);
    }

    /// The next alarm whose time has come.
    pub fn ring(&mut self, now: Time) -> Option<T> {
        let entry = self.alarms.first_entry()?;
        (entry.key().at <= now).then(|| entry.remove())
    }

    pub fn next(&self) -> Option<Time> {
        self.alarms.first_key_value().map(|(key, _)| key.at)
    }
}

/// Decides between spinning and sleeping from how long the shard lately had nothing to do.
///
/// A sleep and its wake-up cost 5-50 us; a client at queue depth 1 that answers within that time
/// is worth waiting for, one that thinks for a millisecond is not.
#[derive(Debug)]
pub struct Spin {
    /// Moving average of the gaps, weight 1/8.
    gap_ns: u64,
    enabled: bool,
}

impl Spin {
    /// No spin is longer, and no average above it leads to one.
    pub const NS_MAX: u64 = 40_000;
    /// One long pause must not be remembered for long when load comes back.
    const GAP_NS_MAX: u64 = 8 * Spin::NS_MAX;

    /// Without a second processor spinning only keeps the client from answering.
    pub fn new(processors: usize) -> Spin {
        Spin {
            gap_ns: Spin::GAP_NS_MAX,
            enabled: processors > 1,
        }
    }

    /// How long to spin now.
    pub fn nanos(&self) -> u64 {
        if self.enabled && self.gap_ns <= Spin::NS_MAX {
            Spin::NS_MAX
        } else {
            0
        }
    }

    /// Something came after this time without work.
    pub fn waited(&mut self, nanos: u64) {
        self.gap_ns = (self.gap_ns * 7 + nanos.min(Spin::GAP_NS_MAX)) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_ring_in_order_once_and_not_after_they_were_cancelled() {
        let mut timers = Timers::default();
        timers.set(Time(30), "c");
        let b = timers.set(Time(20), "b");
        timers.set(Time(10), "a");
        timers.set(Time(10), "a2");
        assert_eq!(timers.next(), Some(Time(10)));
        assert_eq!(timers.ring(Time(9)), None);
        assert_eq!(timers.ring(Time(25)), Some("a"));
        assert_eq!(timers.ring(Time(25)), Some("a2"));
        timers.cancel(b);
        assert_eq!(timers.ring(Time(25)), None);
        assert_eq!(timers.ring(Time(30)), Some("c"));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn spinning_starts_under_load_and_ends_when_the_load_does() {
        let mut spin = Spin::new(2);
        assert_eq!(spin.nanos(), 0);
        (0..40).for_each(|_| spin.waited(5_000));
        assert_eq!(spin.nanos(), Spin::NS_MAX);
        (0..3).for_each(|_| spin.waited(50_000_000));
        assert_eq!(spin.nanos(), 0);
        let mut alone = Spin::new(1);
        (0..40).for_each(|_| alone.waited(5_000));
        assert_eq!(alone.nanos(), 0);
    }
}
