//! What alternating rounds say: medians, and how far they can be trusted.
//!
//! Always true: an interval is made of values that were measured, holds the median of what they
//! were drawn from with at least 90 %, and assumes no distribution (order statistics); with fewer
//! than five rounds there is none. Deliberately absent: means, which one bad round moves.

use serde_json::{Value, json};

/// What an interval holds the median with, at least.
const CONFIDENCE: f64 = 0.9;

/// Median of some values, and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub interval: Option<(f64, f64)>,
    pub rounds: usize,
}

impl Spread {
    /// `None` of no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let (low, high) = (values.get((count.max(1) - 1) / 2)?, values.get(count / 2)?);
        let median = (low + high) / 2.0;
        let interval = rank(count).map(|rank| (values[rank - 1], values[count - rank]));
        Some(Spread {
            median,
            interval,
            rounds: count,
        })
    }

    pub fn document(&self) -> Value {
        json!({
            "median": self.median,
            "interval_90": self.interval.map(|(low, high)| [low, high]),
            "rounds": self.rounds,
        })
    }

    /// As in a table, in a unit that is `factor` of this one.
    pub fn text(&self, factor: f64, digits: usize) -> String {
        let number = |value: f64| format!("{:.digits$}", value * factor);
        let median = number(self.median);
        match self.interval {
            Some((low, high)) => format!("{median} [{}, {}]", number(low), number(high)),
            None => median,
        }
    }
}

/// The largest rank, counted from either end, whose values enclose the median well enough: the
/// number of values below the median is binomial with one half.
fn rank(count: usize) -> Option<usize> {
    let mut outside = 0.0;
    let mut term = 0.5f64.powi(count as i32);
    let mut best = None;
    for below in 0..count.div_ceil(2) {
        outside += 2.0 * term;
        if 1.0 - outside < CONFIDENCE {
            break;
        }
        best = Some(below + 1);
        term *= (count - below) as f64 / (below + 1) as f64;
    }
    best
}

/// Values of one thing over another, round by round. A round without one of them is left out.
pub fn ratios(over: &[Option<f64>], under: &[Option<f64>]) -> Option<Spread> {
    let pairs = over.iter().zip(under);
    Spread::of(pairs.filter_map(|(over, under)| {
        let (over, under) = ((*over)?, (*under)?);
        (under > 0.0).then_some(over / under)
    }))
}

/// One thing beside another: the ratio of both, and of the base to itself.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub ratio: Option<Spread>,
    pub same: Option<Spread>,
}

/// Compares rounds of three slots: the base, the other, the base again.
pub fn compare(rounds: &[[Option<f64>; 3]]) -> Compared {
    let column = |at: usize| -> Vec<Option<f64>> { rounds.iter().map(|round| round[at]).collect() };
    let base = column(0);
    Compared {
        ratio: ratios(&column(1), &base),
        same: ratios(&column(2), &base),
    }
}

/// What a figure of the slots of these rounds says.
pub fn compared<'a, S: 'a>(
    rounds: impl Iterator<Item = &'a [S; 3]>,
    figure: impl Fn(&S) -> Option<f64>,
) -> Compared {
    let row = |round: &'a [S; 3]| round.each_ref().map(&figure);
    compare(&rounds.map(row).collect::<Vec<_>>())
}

/// The figure of the slots at this place.
pub fn median<'a, S: 'a>(
    rounds: impl Iterator<Item = &'a [S; 3]>,
    at: usize,
    figure: impl Fn(&S) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(rounds.filter_map(|round| figure(&round[at])))
}

/// All that is told of a figure; `other` is what the slot is called that is no base.
pub fn document<'a, S: 'a>(
    rounds: impl Iterator<Item = &'a [S; 3]> + Clone,
    other: &str,
    figure: impl Fn(&S) -> Option<f64>,
) -> Value {
    let compared = compared(rounds.clone(), &figure);
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let [base, beside] = [0, 1].map(|at| spread(median(rounds.clone(), at, &figure)));
    json!({
        "alone": base,
        other: beside,
        "ratio": spread(compared.ratio),
        "a_a_ratio": spread(compared.same),
    })
}

/// What is told of one round; `other` is as in [`document`].
pub fn round<S>(round: &[S; 3], proven: bool, other: &str, slot: impl Fn(&S) -> Value) -> Value {
    let [base, beside, again] = round.each_ref().map(slot);
    json!({
        "proven": proven,
        "alone": base,
        other: beside,
        "alone_again": again,
    })
}

/// As in a table, where there may be none.
pub fn cell(it: Option<Spread>, digits: usize) -> String {
    it.map_or("-".into(), |it| it.text(1.0, digits))
}

/// The order of three slots in a round, so that none is always first.
pub fn order(round: u32) -> [usize; 3] {
    let turn = round as usize % 3;
    [turn, (turn + 1) % 3, (turn + 2) % 3]
}

/// The same, and then backwards: what drifts evenly during a round is in each slot alike.
pub fn mirrored(round: u32) -> [usize; 6] {
    let [first, second, third] = order(round);
    [first, second, third, third, second, first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_rounds_give_the_fourth_from_each_end() {
        // P(at most 3 of 15 below) = 0.0176, of 4 = 0.0592: 0.965 and 0.882 inside.
        let spread = Spread::of((1..=15).map(f64::from)).expect("values");
        assert_eq!((spread.median, spread.interval), (8.0, Some((4.0, 12.0))));
        assert_eq!(rank(4), None);
        assert_eq!(rank(5), Some(1));
        assert_eq!(rank(100), Some(42));
    }

    #[test]
    fn what_drifts_evenly_is_in_each_slot_of_a_mirrored_round_alike() {
        for round in 0..6 {
            let mut sums = [0, 0, 0];
            for (drift, at) in mirrored(round).into_iter().enumerate() {
                sums[at] += drift;
            }
            assert_eq!(sums, [5, 5, 5], "round {round}");
        }
    }

    #[test]
    fn a_median_of_two_lies_between_them_and_of_none_is_none() {
        let spread = Spread::of([4.0, 1.0]).expect("values");
        assert_eq!((spread.median, spread.interval), (2.5, None));
        assert!(Spread::of([]).is_none());
    }

    #[test]
    fn a_round_without_one_of_both_is_left_out() {
        let spread = ratios(
            &[Some(1.0), None, Some(6.0)],
            &[Some(2.0), Some(1.0), Some(2.0)],
        );
        let spread = spread.expect("two rounds");
        assert_eq!((spread.median, spread.rounds), (1.75, 2));
    }
}
