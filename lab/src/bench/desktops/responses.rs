//! How long requests took, as a distribution.
//!
//! Always true: what a limit is asked of is counted exactly; any other time is known to within a
//! thirty-second part of itself, and never told as less than it was.

/// Sixteen steps for each power of two are 6 % wide; thirty-two are 3 %.
const STEP_BITS: u32 = 5;
const STEPS: u64 = 1 << STEP_BITS;
/// Beyond an hour nobody tells times apart.
const MICROS_MAX: u64 = 3_600_000_000;

/// The limits that desktops are judged by.
pub const GOOD_US: u64 = 50_000;
pub const FAST_US: u64 = 5_000;

#[derive(Clone, Debug, Default)]
pub struct Responses {
    counts: Vec<u64>,
    total: u64,
    good: u64,
    fast: u64,
    most_us: u64,
}

/// The class of a time, in order.
fn class(micros: u64) -> usize {
    if micros < STEPS {
        return micros as usize;
    }
    let power = micros.ilog2() - STEP_BITS;
    ((u64::from(power) + 1) * STEPS + (micros >> power) - STEPS) as usize
}

/// The largest time of a class.
fn bound(class: usize) -> u64 {
    let (power, step) = (class as u64 / STEPS, class as u64 % STEPS);
    match power {
        0 => step,
        _ => ((STEPS + step + 1) << (power - 1)) - 1,
    }
}

impl Responses {
    pub fn add(&mut self, micros: u64) {
        let micros = micros.min(MICROS_MAX);
        let class = class(micros);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.total += 1;
        self.good += u64::from(micros < GOOD_US);
        self.fast += u64::from(micros < FAST_US);
        self.most_us = self.most_us.max(micros);
    }

    pub fn add_all(&mut self, other: &Responses) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.good += other.good;
        self.fast += other.fast;
        self.most_us = self.most_us.max(other.most_us);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// The part that took less than 50 ms.
    pub fn good(&self) -> f64 {
        self.good as f64 / self.total.max(1) as f64
    }

    /// The part that took less than 5 ms.
    pub fn fast(&self) -> f64 {
        self.fast as f64 / self.total.max(1) as f64
    }

    pub fn most_us(&self) -> u64 {
        self.most_us
    }

    /// What so many of a thousand did not exceed.
    pub fn quantile_us(&self, per_mille: u64) -> Option<u64> {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        found.map(|class| bound(class).min(self.most_us))
    }

    /// Milliseconds and the part of all, in percent, that took no longer.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let mut below = 0;
        let mut points = Vec::new();
        for (class, count) in self.counts.iter().enumerate() {
            if *count > 0 {
                below += count;
                let millis = bound(class).min(self.most_us).max(1) as f64 / 1e3;
                points.push((millis, 100.0 * below as f64 / self.total as f64));
            }
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order_without_gaps_and_narrow() {
        let mut last = class(0);
        for micros in 1..200_000u64 {
            let at = class(micros);
            assert!(at == last || at == last + 1, "{micros}");
            assert!(bound(at) >= micros && bound(at) - micros <= micros / STEPS);
            assert_eq!(class(bound(at)), at, "{micros}");
            last = at;
        }
        assert_eq!(class(bound(class(MICROS_MAX))), class(MICROS_MAX));
    }

    #[test]
    fn quantiles_and_parts_are_those_of_a_sorted_list() {
        let mut responses = Responses::default();
        let mut sorted: Vec<u64> = (0..10_000u64)
            .map(|at| (at * at * 7919) % 120_000)
            .collect();
        for micros in &sorted {
            responses.add(*micros);
        }
        sorted.sort_unstable();
        for per_mille in [1, 500, 800, 900, 950, 999, 1000] {
            let exact = sorted[(10_000 * per_mille / 1000) as usize - 1];
            let told = responses.quantile_us(per_mille).expect("there are some");
            assert!(told >= exact && told - exact <= exact / STEPS + 1);
        }
        let below = |limit| sorted.partition_point(|it| *it < limit) as f64 / 10_000.0;
        assert_eq!(responses.good(), below(GOOD_US));
        assert_eq!(responses.fast(), below(FAST_US));
        let curve = responses.curve();
        assert_eq!(curve.last().map(|point| point.1), Some(100.0));
    }

    #[test]
    fn of_nothing_nothing_is_told() {
        let responses = Responses::default();
        assert_eq!(responses.quantile_us(800), None);
        assert_eq!(responses.good(), 0.0);
        assert!(responses.curve().is_empty());
    }

    #[test]
    fn two_together_are_as_one() {
        let (mut one, mut two, mut both) = (
            Responses::default(),
            Responses::default(),
            Responses::default(),
        );
        for micros in [3, 40_000, 90_000_000] {
            one.add(micros);
            both.add(micros);
        }
        for micros in [4_999, 5_000, 50_000] {
            two.add(micros);
            both.add(micros);
        }
        one.add_all(&two);
        assert_eq!(one.curve(), both.curve());
        assert_eq!((one.good(), one.fast()), (both.good(), both.fast()));
        assert_eq!(one.total(), 6);
    }
}
