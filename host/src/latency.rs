//! How long guests wait, by kind of request and by policy.
//!
//! Owns the counting. A time is from when the shard picks a request up, from a ring or a socket, to
//! when its answer is published: shown in the used ring, or taken by the socket. Always true: a
//! time is known to within a thirty-second part of itself, and never told as less than it was;
//! what was counted under one policy is never added to what was counted under another; counting
//! takes no memory and no lock, so that the shard counts while others read; who reads again without
//! anything new reads no class. Deliberately absent:
//! the clock, which is the shard's, and how long an origin takes, which the engine counts.

use engine::types::{Policy, Time};
use histogram::{AtomicHistogram, Config};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

/// A microsecond, in what is counted: powers of two, so that no class straddles the bounds of the
/// coarse ones, which are powers of two in microseconds.
const UNITS_PER_MICRO: u64 = 1024;
/// Each power of two has 32 classes: they are 3.1 % wide.
const STEP_BITS: u8 = 5;
/// 2^32 microseconds, 71 minutes: what takes longer is counted as that.
const POWER_MAX: u8 = 42;
/// Coarse classes: powers of two in microseconds.
pub const COARSE: usize = 32;

const CLASSES: Config = match Config::new(STEP_BITS, POWER_MAX) {
    Ok(config) => config,
    Err(_) => panic!("the bounds are in order"),
};

/// What guests ask for. Discards and zeroes are writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Flush];
}

/// The requests of one volume under one policy, as they are counted.
#[derive(Debug)]
pub struct Recorder {
    pub policy: Policy,
    /// When the counting began.
    pub since: Time,
    kinds: [AtomicHistogram; 3],
    /// How many were counted. One thread counts.
    counted: AtomicU64,
    /// What was read last, and how many had been counted before that: most volumes of a host rest,
    /// and to read all classes takes far longer than to see that there is nothing new.
    read: Mutex<(u64, Arc<[Distribution; 3]>)>,
}

impl Recorder {
    pub fn new(policy: Policy, since: Time) -> Recorder {
        Recorder {
            policy,
            since,
            kinds: std::array::from_fn(|_| AtomicHistogram::with_config(&CLASSES)),
            counted: AtomicU64::new(0),
            read: Mutex::default(),
        }
    }

    pub fn add(&self, kind: Kind, nanos: u64) {
        let micros = nanos / 1000;
        let units = micros
            .saturating_mul(UNITS_PER_MICRO)
            .saturating_add(nanos % 1000 * UNITS_PER_MICRO / 1000);
        let units = units.min((1 << POWER_MAX) - 1);
        let counted = self.kinds[kind as usize].increment(units);
        counted.expect("what is too long was cut");
        // Who sees this sees the class as well.
        self.counted.store(self.counted.load(Relaxed) + 1, Release);
    }

    /// A copy, of what was counted until `now`.
    pub fn read(&self, now: Time) -> Latency {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = self.counted.load(Acquire);
        if read.0 != counted {
            let kinds = Kind::ALL.map(|kind| Distribution::of(&self.kinds[kind as usize]));
            *read = (counted, Arc::new(kinds));
        }
        Latency {
            policy: self.policy,
            window_ns: now.since(self.since),
            kinds: read.1.clone(),
        }
    }
}

/// What was counted of one volume under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    pub policy: Policy,
    /// How long it was counted for.
    pub window_ns: u64,
    kinds: Arc<[Distribution; 3]>,
}

impl Latency {
    pub fn of(&self, kind: Kind) -> &Distribution {
        &self.kinds[kind as usize]
    }

    /// What came after `before`: all of it, where that is of another policy or of another life.
    pub fn since(&self, before: Option<&Latency>) -> Latency {
        let before = before.filter(|before| before.policy == self.policy);
        let kinds = match before {
            Some(before) if Arc::ptr_eq(&before.kinds, &self.kinds) => Default::default(),
            _ => Kind::ALL.map(|kind| {
                let now = self.of(kind);
                let newer = before.and_then(|before| now.since(before.of(kind)));
                newer.unwrap_or_else(|| now.clone())
            }),
        };
        Latency {
            kinds: Arc::new(kinds),
            ..self.clone()
        }
    }
}

/// Times of many volumes, those of each policy apart.
#[derive(Clone, Debug, Default)]
pub struct ByPolicy {
    all: Vec<(Policy, [Distribution; 3])>,
}

impl ByPolicy {
    pub fn add(&mut self, latency: &Latency) {
        let known = self.all.iter_mut().find(|it| it.0 == latency.policy);
        match known {
            Some((_, kinds)) => {
                for (sum, more) in kinds.iter_mut().zip(latency.kinds.iter()) {
                    sum.add(more);
                }
            }
            None => self.all.push((latency.policy, (*latency.kinds).clone())),
        }
    }

    /// What came after `before`.
    pub fn since(&self, before: &ByPolicy) -> ByPolicy {
        let newer = |(policy, kinds): &(Policy, [Distribution; 3])| {
            let kinds = Kind::ALL.map(|kind| {
                let now = &kinds[kind as usize];
                let newer = before.of(*policy, kind).and_then(|it| now.since(it));
                newer.unwrap_or_else(|| now.clone())
            });
            (*policy, kinds)
        };
        ByPolicy {
            all: self.all.iter().map(newer).collect(),
        }
    }

    pub fn of(&self, policy: Policy, kind: Kind) -> Option<&Distribution> {
        let mut all = self.all.iter();
        let (_, kinds) = all.find(|(known, _)| *known == policy)?;
        Some(&kinds[kind as usize])
    }

    /// Of the policy that takes longest: no figure is made of requests of several.
    pub fn slowest_us(&self, kind: Kind, per_mille: u64) -> Option<f64> {
        let all = self.all.iter();
        let times = all.filter_map(|(_, kinds)| kinds[kind as usize].quantile_us(per_mille));
        times.max_by(f64::total_cmp)
    }
}

/// How many requests took how long: classes by the most that a request in them took, in
/// nanoseconds. Those without a request are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    classes: BTreeMap<u64, u64>,
}

impl FromIterator<(u64, u64)> for Distribution {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(classes: I) -> Distribution {
        Distribution {
            classes: classes.into_iter().collect(),
        }
    }
}

impl Distribution {
    fn of(histogram: &AtomicHistogram) -> Distribution {
        let counted = histogram.load();
        let used = counted.iter().filter(|class| class.count() > 0);
        used.map(|class| (bound_ns(class.end()), class.count()))
            .collect()
    }

    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    pub fn total(&self) -> u64 {
        self.classes.values().sum()
    }

    /// In order: the most that a request of the class took, in nanoseconds, and how many did.
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.classes.iter().map(|(bound, count)| (*bound, *count))
    }

    pub fn add(&mut self, other: &Distribution) {
        for (bound, count) in other.classes() {
            *self.classes.entry(bound).or_default() += count;
        }
    }

    /// What came after `before`; `None` where that is no earlier look at the same.
    pub fn since(&self, before: &Distribution) -> Option<Distribution> {
        let mut left = self.clone();
        for (bound, count) in before.classes() {
            let now = left.classes.get_mut(&bound)?;
            *now = now.checked_sub(count)?;
        }
        left.classes.retain(|_, count| *count > 0);
        Some(left)
    }

    /// What so many of a thousand requests did not exceed, in microseconds.
    pub fn quantile_us(&self, per_mille: u64) -> Option<f64> {
        let rank = (self.total() * per_mille).div_ceil(1000).max(1);
        let mut below = 0;
        let found = self.classes().find(|(_, count)| {
            below += count;
            below >= rank
        });
        found.map(|(bound, _)| rounded(bound))
    }

    /// At place n those of 2^n to 2^(n+1) microseconds; the first also what was faster.
    pub fn coarse(&self) -> [u64; COARSE] {
        let mut coarse = [0; COARSE];
        for (bound, count) in self.classes() {
            // The bound of a class may be that of a coarse one, and belongs to what is below it.
            let micros = (bound.saturating_sub(1) / 1000).max(1);
            coarse[(micros.ilog2() as usize).min(COARSE - 1)] += count;
        }
        coarse
    }
}

/// The first whole nanosecond that no request of the class exceeded.
fn bound_ns(last_unit: u64) -> u64 {
    ((last_unit + 1) * 1000).div_ceil(UNITS_PER_MICRO)
}

/// Microseconds with no more digits than mean something.
fn rounded(nanos: u64) -> f64 {
    let step = match nanos {
        0..1_000 => 1,
        1_000..10_000 => 10,
        10_000..100_000 => 100,
        _ => 1000,
    };
    (nanos.div_ceil(step) * step) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(nanos: &[u64]) -> Latency {
        let recorder = Recorder::new(Policy::WriteBack, Time(5));
        nanos.iter().for_each(|it| recorder.add(Kind::Write, *it));
        recorder.read(Time(25))
    }

    #[test]
    fn a_time_is_known_to_within_five_percent_and_never_told_as_less() {
        let mut nanos: u64 = 100;
        while nanos < 60_000_000_000 {
            let latency = counted(&[nanos]);
            let (bound, count) = latency.of(Kind::Write).classes().next().expect("counted");
            assert_eq!(count, 1);
            assert!(bound >= nanos, "{nanos} is told as {bound}");
            assert!(
                (bound - nanos) * 100 <= nanos * 5,
                "{nanos} is told as {bound}"
            );
            let told = latency.of(Kind::Write).quantile_us(500).expect("counted");
            let told = (told * 1000.0).round() as u64;
            assert!(told >= nanos, "{nanos} is told as {told}");
            assert!(
                (told - nanos) * 100 <= nanos * 5,
                "{nanos} is told as {told}"
            );
            nanos += nanos / 7 + 1;
        }
        assert_eq!(counted(&[1]).window_ns, 20);
    }

    #[test]
    fn what_is_read_again_is_new_only_where_something_was_counted() {
        let recorder = Recorder::new(Policy::WriteBack, Time(0));
        recorder.add(Kind::Read, 3_000);
        let first = recorder.read(Time(1));
        let again = recorder.read(Time(2));
        assert!(Arc::ptr_eq(&first.kinds, &again.kinds));
        assert_eq!(again.window_ns, 2);
        assert!(again.since(Some(&first)).of(Kind::Read).is_empty());
        recorder.add(Kind::Read, 3_000);
        let newer = recorder.read(Time(3)).since(Some(&again));
        assert_eq!(newer.of(Kind::Read).total(), 1);
    }

    #[test]
    fn coarse_classes_hold_exactly_what_is_between_their_bounds() {
        for power in 1..31 {
            let micros = 1u64 << power;
            for (nanos, place) in [
                (micros * 1000 - 1, power - 1),
                (micros * 1000, power),
                (micros * 1999, power),
            ] {
                let coarse = counted(&[nanos]).of(Kind::Write).coarse();
                assert_eq!(coarse[place], 1, "{nanos} ns: {coarse:?}");
            }
        }
        assert_eq!(counted(&[0, 500, 999]).of(Kind::Write).coarse()[0], 3);
        assert_eq!(counted(&[u64::MAX]).of(Kind::Write).coarse()[COARSE - 1], 1);
    }

    #[test]
    fn what_is_new_is_told_apart_and_another_policy_begins_anew() {
        let before = counted(&[1_000, 2_000]);
        let now = counted(&[1_000, 2_000, 2_000, 9_000]);
        let newer = now.since(Some(&before));
        assert_eq!(
            newer.of(Kind::Write),
            counted(&[2_000, 9_000]).of(Kind::Write)
        );
        assert!(newer.of(Kind::Read).is_empty());
        // Counters that went back are of another life.
        assert_eq!(before.since(Some(&now)), before);
        let other = Latency {
            policy: Policy::Ephemeral,
            ..before.clone()
        };
        assert_eq!(now.since(Some(&other)), now);
        assert_eq!(now.since(None), now);
    }

    #[test]
    fn requests_of_several_policies_are_never_one_figure() {
        let mut all = ByPolicy::default();
        let slow = counted(&[5_000_000; 3]);
        let free = Latency {
            policy: Policy::Ephemeral,
            ..counted(&[1_000; 1000])
        };
        all.add(&slow);
        all.add(&free);
        all.add(&free);
        let slowest = all.slowest_us(Kind::Write, 500).expect("counted");
        assert!((5_000.0..5_250.0).contains(&slowest), "{slowest}");
        let free = all.of(Policy::Ephemeral, Kind::Write).expect("counted");
        assert_eq!(free.total(), 2000);
        assert_eq!(all.slowest_us(Kind::Flush, 500), None);
    }
}
