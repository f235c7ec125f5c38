//! A failing case made small: without all that it fails without.
//!
//! Always true: the same case and the same judge give the same small case, after at most so many
//! runs; what is left fails in the same class as the case that was given. Features go one by one,
//! because each draws numbers of its own and leaves those of the others alone; operations and
//! restarts change the whole course of a run, so several counts are tried. Tried and given up:
//! leaving single requests out, which changes every draw after them and finds another run rather
//! than a smaller one. Deliberately absent: how a case is run.

use crate::broken::Class;
use crate::swarm::{Case, Features};

/// Runs at most, and steps of all of them together by the first one's; some seconds.
const RUNS_MAX: u64 = 150;
const STEPS_MAX: u64 = 20_000_000;

/// How many runs a case is worth that failed in this step.
pub fn runs_max(step: u64) -> u32 {
    (STEPS_MAX / step.max(1)).clamp(10, RUNS_MAX) as u32
}

/// What became of a failing case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    pub case: Case,
    pub runs: u32,
}

struct Shrinker<J> {
    class: Class,
    runs_max: u32,
    case: Case,
    runs: u32,
    judge: J,
}

/// Makes a case that fails in this class small, within so many runs. `judge` runs a case and says
/// in which class it fails.
pub fn shrink(
    case: Case,
    class: Class,
    runs_max: u32,
    judge: impl FnMut(&Case) -> Option<Class>,
) -> Shrunk {
    let mut shrinker = Shrinker {
        class,
        runs_max,
        case,
        runs: 0,
        judge,
    };
    loop {
        let before = shrinker.case;
        shrinker.fewer_operations();
        shrinker.fewer_restarts();
        shrinker.fewer_features();
        if shrinker.case == before || shrinker.runs >= runs_max {
            let Shrinker { case, runs, .. } = shrinker;
            return Shrunk { case, runs };
        }
    }
}

impl<J: FnMut(&Case) -> Option<Class>> Shrinker<J> {
    /// Goes on with this case if it fails as well.
    fn take(&mut self, case: Case) -> bool {
        if self.runs >= self.runs_max || case == self.case {
            return false;
        }
        self.runs += 1;
        let fails = (self.judge)(&case) == Some(self.class);
        if fails {
            self.case = case;
        }
        fails
    }

    fn fewer_operations(&mut self) {
        while self.case.operations > 1 {
            let now = self.case.operations;
            let parts = [10, 20, 25, 33, 40, 50, 60, 75, 85, 95];
            let counts = parts.map(|part| now * part / 100);
            let counts = counts.into_iter().chain([now - 1]);
            let case = self.case;
            let mut cases = counts.map(|operations| Case { operations, ..case });
            if !cases.any(|case| case.operations > 0 && self.take(case)) {
                return;
            }
        }
    }

    fn fewer_restarts(&mut self) {
        for restarts in 0..self.case.restarts() {
            let restarts = Some(restarts);
            if self.take(Case {
                restarts,
                ..self.case
            }) {
                return;
            }
        }
    }

    fn fewer_features(&mut self) {
        for feature in self.case.features().list() {
            let without: Features = self.case.without.with(feature);
            self.take(Case {
                without,
                ..self.case
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Options, run};
    use crate::world::Sabotage;

    #[test]
    fn what_a_failure_does_not_need_is_taken_away() {
        let case = Case {
            without: Features::default(),
            ..Case::from_seed(4)
        };
        let needed = case.features().list().nth(2).expect("a seed has features");
        let judge = |case: &Case| {
            let fails = case.features().has(needed) && case.operations >= 17;
            fails.then_some(Class::Safety)
        };
        let small = shrink(case, Class::Safety, 150, judge);
        assert_eq!(small.case.features(), [needed].into_iter().collect());
        assert_eq!((small.case.operations, small.case.restarts()), (17, 0));
        assert!(small.runs < 150);
    }

    #[test]
    fn a_failure_of_another_class_is_none() {
        let case = Case::from_seed(4);
        let judge = |case: &Case| match case.operations {
            1000 => Some(Class::Safety),
            _ => Some(Class::Crash),
        };
        let small = shrink(case, Class::Safety, 150, judge);
        assert_eq!(small.case.operations, 1000);
    }

    #[test]
    fn a_real_failure_becomes_small_and_fails_again() {
        let judge = |case: &Case| {
            let options = Options {
                sabotage: Some(Sabotage::CacheSync),
                ..case.options()
            };
            run(&options).err().map(|it| it.class)
        };
        let failing = (0..60)
            .map(Case::from_seed)
            .find(|case| judge(case) == Some(Class::Safety));
        let case = failing.expect("a device that does not sync is noticed");
        let small = shrink(case, Class::Safety, 40, judge);
        assert_eq!(judge(&small.case), Some(Class::Safety));
        let features = |case: &Case| case.features().list().count();
        assert!(features(&small.case) < features(&case), "{small:?}");
        let few = shrink(case, Class::Safety, 8, judge);
        assert_eq!(
            few,
            shrink(case, Class::Safety, 8, judge),
            "always the same"
        );
    }
}
