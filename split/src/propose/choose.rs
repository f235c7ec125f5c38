//! Which candidates are worth a line.
//!
//! Always true: those that save most come first; one that saves less than the least share of all
//! writes is left out, and one that saves nothing always is.

use super::judge::Judgement;

/// A table with more lines is none that a person reads.
pub const LINES_MAX: usize = 64;

/// Requests at the storage for the files of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// All of it written through.
    pub before: u64,
    /// By the class of the candidate.
    pub after: u64,
}

impl Cost {
    pub fn saved(self) -> u64 {
        self.before.saturating_sub(self.after)
    }
}

/// What is chosen, by place in the list of candidates, and what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    pub lines: Vec<usize>,
    pub left_out: Vec<usize>,
}

/// The least number of so many writes that is that share of them, which is a part of one.
pub fn least(writes: u64, share: f64) -> u64 {
    ((writes as f64 * share).ceil() as u64).max(1)
}

/// Candidates that save at least so many requests, the best first.
pub fn choose(judgement: &Judgement, costs: &[Cost], least_saved: u64) -> Chosen {
    assert_eq!(judgement.candidates.len(), costs.len(), "one cost for each");
    let mut order: Vec<usize> = (0..costs.len()).collect();
    let key = |at: &usize| (std::cmp::Reverse(costs[*at].saved()), *at);
    order.sort_by_key(key);
    let worth = |at: &usize| costs[*at].saved() >= least_saved.max(1);
    let (mut lines, mut left_out): (Vec<usize>, Vec<usize>) = order.into_iter().partition(worth);
    left_out.splice(0..0, lines.split_off(lines.len().min(LINES_MAX)));
    Chosen { lines, left_out }
}
