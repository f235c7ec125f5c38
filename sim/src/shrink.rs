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

/// Runs at most, however long each of them takes.
pub const RUNS_MAX: u32 = 150;

/// What became of a failing case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shrunk {
    pub case: Case,
    pub runs: u32,
}

struct Shrinker<J> {
    class: Class,
    case: Case,
    runs: u32,
    judge: J,
}

/// Makes a case that fails in this class small. `judge` runs a case and says in which class it fails.
pub fn shrink(case: Case, class: Class, judge: impl FnMut(&Case) -> Option<Class>) -> Shrunk {
    let mut shrinker = Shrinker {
        class,
        case,
        runs: 0,
        judge,
    };
    loop {
        let before = shrinker.case;
        shrinker.fewer_operations();
        shrinker.fewer_restarts();
        shrinker.fewer_features();
        if shrinker.case == before || shrinker.runs >= RUNS_MAX {
            let Shrinker { case, runs, .. } = shrinker;
            return Shrunk { case, runs };
        }
    }
}

impl<J: FnMut(&Case) -> Option<Class>> Shrinker<J> {
    /// Goes on with this case if it fails as well.
    fn take(&mut self, case: Case) -> bool {
        if self.runs >= RUNS_MAX || case == self.case {
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
            let counts = [
                now / 10,
                now / 4,
                now / 2,
                now * 3 / 4,
                now * 9 / 10,
                now - 1,
            ];
            let with = |operations| Case {
                operations,
                ..self.case
            };
            let cases = counts.map(with);
            if !cases
                .into_iter()
                .any(|case| case.operations > 0 && self.take(case))
            {
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
    use crate::swarm::Feature;
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
        let small = shrink(case, Class::Safety, judge);
        assert_eq!(small.case.features(), [needed].into_iter().collect());
        assert_eq!((small.case.operations, small.case.restarts()), (17, 0));
        assert!(small.runs < RUNS_MAX);
    }

    #[test]
    fn a_failure_of_another_class_is_none() {
        let case = Case::from_seed(4);
        let judge = |case: &Case| match case.operations {
            1000 => Some(Class::Safety),
            _ => Some(Class::Crash),
        };
        let small = shrink(case, Class::Safety, judge);
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
        let small = shrink(case, Class::Safety, judge);
        assert_eq!(small, shrink(case, Class::Safety, judge), "always the same");
        assert_eq!(judge(&small.case), Some(Class::Safety));
        assert!(small.case.operations < 500, "{small:?}");
        let features = |case: &Case| case.features().list().count();
        assert!(features(&small.case) < features(&case) / 2, "{small:?}");
        assert!(small.case.features().has(Feature::PowerLosses) || small.case.operations > 0);
    }
}
