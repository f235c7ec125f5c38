//! Figures over time in a bounded number of slots.
//!
//! Always true: slots have the same width, a whole number of times the first one; when the last of
//! them is passed, neighbours become one, so that memory does not grow with the length of a trace
//! and every sum stays what it was. Deliberately absent: what is in a slot.

/// So many slots at most; half of them at least, once a trace is long enough.
pub const SLOTS_MAX: usize = 512;
const WIDTH_FIRST_NS: u64 = 1_000_000_000;

/// What a slot holds.
pub trait Figures: Default {
    /// Takes in the slot behind this one.
    fn join(&mut self, next: Self);
}

impl Figures for u64 {
    fn join(&mut self, next: u64) {
        *self = self.saturating_add(next);
    }
}

impl<const N: usize> Figures for [u64; N]
where
    [u64; N]: Default,
{
    fn join(&mut self, next: [u64; N]) {
        for (sum, next) in self.iter_mut().zip(next) {
            sum.join(next);
        }
    }
}

/// By place in a list, as that of the disks; missing ones are zero.
impl Figures for Vec<u64> {
    fn join(&mut self, next: Vec<u64>) {
        if self.len() < next.len() {
            self.resize(next.len(), 0);
        }
        for (sum, next) in self.iter_mut().zip(next) {
            sum.join(next);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots<T> {
    width_ns: u64,
    all: Vec<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            width_ns: WIDTH_FIRST_NS,
            all: Vec::new(),
        }
    }
}

impl<T: Figures> Slots<T> {
    /// The slot of a moment.
    pub fn at(&mut self, time_ns: u64) -> &mut T {
        while time_ns / self.width_ns >= SLOTS_MAX as u64 {
            self.halve();
        }
        let at = (time_ns / self.width_ns) as usize;
        if self.all.len() <= at {
            self.all.resize_with(at + 1, T::default);
        }
        &mut self.all[at]
    }

    /// The clock of a trace is 64 bits wide, so the width cannot outgrow it.
    fn halve(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let mut halved = Vec::with_capacity(SLOTS_MAX);
        let mut all = std::mem::take(&mut self.all).into_iter();
        while let Some(mut slot) = all.next() {
            if let Some(next) = all.next() {
                slot.join(next);
            }
            halved.push(slot);
        }
        self.all = halved;
    }
}

impl<T> Slots<T> {
    pub fn width_ns(&self) -> u64 {
        self.width_ns
    }

    pub fn all(&self) -> &[T] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_few_and_lose_nothing() {
        let mut slots = Slots::<u64>::default();
        for second in 0..100_000u64 {
            *slots.at(second * 1_000_000_000) += second;
        }
        assert!(slots.all().len() <= SLOTS_MAX && slots.all().len() > SLOTS_MAX / 4);
        assert_eq!(slots.all().iter().sum::<u64>(), 100_000 * 99_999 / 2);
        let seconds = slots.width_ns() / 1_000_000_000;
        let first: u64 = (0..seconds).sum();
        assert_eq!(slots.all()[0], first);
    }

    #[test]
    fn the_last_moment_of_a_clock_has_a_slot() {
        let mut slots = Slots::<Vec<u64>>::default();
        slots.at(0).push(3);
        slots.at(u64::MAX).resize(2, 5);
        let sums = slots.all().iter().flatten().sum::<u64>();
        assert_eq!(sums, 13);
    }
}
