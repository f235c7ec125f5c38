//! Runs of the search: from which worlds, how far, and what is found when a rule is left out.
//!
//! Always true: a state is looked at once; each bound is printed with what was reached.

use super::*;

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// What a test does before it searches: each step by the begin of its name, with all messages.
fn walk(bounds: Bounds, steps: &[&str]) -> World {
    leave_out(None);
    steps
        .iter()
        .fold(World::new(bounds.copies), |mut world, step| {
            let told = match *step {
                "0 is set" => Some(set::Event::AtOrigin(true)),
                "0 hears of a guest" => Some(set::Event::Standby(Some(id(1, 2)))),
                _ => None,
            };
            if let Some(told) = told {
                world.tell(0, Told::Set(told));
                return world;
            }
            let next = world.next(bounds);
            let names: Vec<String> = next.iter().map(|(name, _)| name.clone()).collect();
            let mut next = next.into_iter().filter(|(name, _)| name.starts_with(step));
            let next = next.next_back();
            let (_, next) = next.unwrap_or_else(|| panic!("no step: {step} of {names:?}"));
            assert_eq!(next.check(), None, "after {step}");
            next
        })
}

/// Searches all states; the number of them and whether those are all, or the steps to the first
/// that must not be.
fn search(
    bounds: Bounds,
    first: World,
    out: Option<Rule>,
    most: usize,
) -> Result<(usize, bool), Vec<String>> {
    leave_out(out);
    let mut from: HashMap<u64, Option<(u64, String)>> = HashMap::from([(hash(&first), None)]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        let here = hash(&world);
        for (step, next) in world.next(bounds) {
            let there = hash(&next);
            let std::collections::hash_map::Entry::Vacant(slot) = from.entry(there) else {
                continue;
            };
            slot.insert(Some((here, step)));
            let Some(why) = next.check() else {
                queue.push_back(next);
                continue;
            };
            let (mut steps, mut at) = (vec![why], there);
            while let Some(Some((before, step))) = from.get(&at) {
                steps.push(step.clone());
                at = *before;
            }
            steps.reverse();
            return Err(steps);
        }
        if from.len() > most {
            return Ok((from.len(), false));
        }
    }
    Ok((from.len(), true))
}

/// Of the models that found the corrections: 3 hosts, 2 writes, 1 takeover, 2 changes, 1 crash.
const BOUNDS: Bounds = Bounds {
    writes: 2,
    takeovers: 1,
    changes: 2,
    crashes: 1,
    proofs: 0,
    gives: 0,
    windows: 0,
    lags: false,
    origin: false,
    standby: false,
    copies: 1,
};

/// Without crashes, and with one change more.
const CALM: Bounds = Bounds {
    crashes: 0,
    changes: 3,
    ..BOUNDS
};

fn most(default: usize) -> usize {
    let most = std::env::var("TENUTO_SEARCH_STATES");
    most.ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// The first host goes on alone: the second one was left out.
const ALONE: [&str; 4] = [
    "1 is unfit for 0",
    "0 links 2",
    "link 2 arrives",
    "0 hears how 2 was decided",
];

/// So too, and flushes are answered by what the origin has from then on.
const AT_ORIGIN: [&str; 5] = [
    "0 is set",
    "1 is unfit for 0",
    "0 links 2",
    "link 2 arrives",
    "0 hears how 2 was decided",
];

/// The guest of the first host may move to the third one, which has a copy by now as well.
const STANDBY: [&str; 8] = [
    "0 hears of a guest",
    "0 writes 1",
    "0 sends to 1",
    "0 chooses 2",
    "0 sends to 2",
    "2 is live for 0",
    "0 links 2",
    "link 2 arrives",
];

/// The third host took the unit over, with all messages.
const TAKEN: [&str; 8] = [
    "0 writes 1",
    "0 sends to 1",
    "0 acknowledges",
    "2 takes with 1",
    "2 links 2",
    "link 2 arrives",
    "2 hears how 2 was decided",
    "2 asks 1",
];

/// Of two copies one was taken over.
const ONE_OF_TWO: [&str; 8] = [
    "0 writes 1",
    "0 sends to 1",
    "0 sends to 2",
    "0 acknowledges",
    "1 takes with 1",
    "1 links 2",
    "link 2 arrives",
    "1 hears how 2 was decided",
];

/// A backup window is open, and an administrator reads the image.
const WINDOW: [&str; 7] = [
    "0 writes 1",
    "0 sends to 1",
    "0 opens a window",
    "0 links 2",
    "link 2 arrives",
    "0 hears how 2 was decided",
    "0 has opened it",
];

#[test]
fn no_order_of_steps_loses_a_flush_or_puts_the_origin_ahead_of_a_copy() {
    let learns = Bounds {
        changes: 3,
        takeovers: 1,
        ..BOUNDS
    };
    let lags = Bounds {
        lags: true,
        ..BOUNDS
    };
    let again = Bounds {
        takeovers: 2,
        changes: 4,
        ..BOUNDS
    };
    let proved = Bounds { proofs: 1, ..again };
    let gives = Bounds { gives: 2, ..lags };
    let origin = Bounds {
        origin: true,
        ..learns
    };
    let standby = Bounds {
        standby: true,
        changes: 4,
        ..gives
    };
    let two = Bounds {
        copies: 2,
        ..BOUNDS
    };
    let both = Bounds { copies: 2, ..again };
    let window = Bounds {
        windows: 1,
        ..learns
    };
    let read = Bounds {
        windows: 1,
        proofs: 1,
        gives: 1,
        ..again
    };
    let fenced = [&TAKEN[..], &["0 crashes", "2 has proof", "2 has prepared"]].concat();
    for (name, bounds, steps, default) in [
        ("as begun", BOUNDS, &[][..], 30_000),
        ("with a log that lags", lags, &[], 15_000),
        ("with a learner", learns, &ALONE, 15_000),
        ("after a takeover", again, &TAKEN, 15_000),
        ("with proof", proved, &fenced, 10_000),
        ("given away", gives, &[], 15_000),
        ("at the origin", origin, &AT_ORIGIN, 15_000),
        ("with a standby", standby, &STANDBY[..1], 15_000),
        ("moved to it", standby, &STANDBY, 15_000),
        ("with a backup window", window, &[], 15_000),
        ("while an image is read", read, &WINDOW, 15_000),
        ("with two copies", two, &[], 15_000),
        ("after one of two was taken over", both, &ONE_OF_TWO, 15_000),
    ] {
        let found = search(bounds, walk(bounds, steps), None, most(default));
        let (states, whole) = found.unwrap_or_else(|steps| panic!("{}", steps.join("\n")));
        println!("{name}: {states} states, whole: {whole}");
    }
}

#[test]
fn a_rule_of_the_copies_that_is_left_out_is_noticed() {
    let lags = Bounds {
        lags: true,
        takeovers: 1,
        ..BOUNDS
    };
    let gives = Bounds { gives: 1, ..lags };
    let twice = Bounds {
        takeovers: 2,
        ..CALM
    };
    let again = Bounds {
        crashes: 1,
        ..twice
    };
    let sent = ["0 writes 1", "0 sends to 1"];
    let two = Bounds { copies: 2, ..CALM };
    let origin = Bounds {
        origin: true,
        ..CALM
    };
    let window = Bounds {
        windows: 1,
        ..BOUNDS
    };
    let read = Bounds {
        proofs: 1,
        changes: 4,
        ..window
    };
    let dead = [&WINDOW[..], &["0 crashes"]].concat();
    for (rule, bounds, steps) in [
        (Rule::FlushesAskBoth, CALM, &ALONE[..]),
        (Rule::CutsAskBoth, CALM, &ALONE),
        (Rule::CutsAskMembers, CALM, &[]),
        (Rule::LearnerHasFlushes, CALM, &ALONE),
        (Rule::LearnerHasCuts, CALM, &ALONE),
        (Rule::FreezeEndsStream, CALM, &[]),
        (Rule::RestartFreezes, BOUNDS, &[]),
        (Rule::MembersTakeForks, two, &sent),
        (Rule::ForksAreCompared, lags, &sent),
        (Rule::SourceIsComplete, twice, &TAKEN),
        (Rule::LastCompleteStays, again, &TAKEN),
        (Rule::DrainerHasProof, CALM, &[]),
        (Rule::GivenHasAll, gives, &[]),
        (Rule::OriginHasFlushes, origin, &AT_ORIGIN),
        (Rule::WindowIsInRecord, window, &[]),
        (Rule::WindowIsTaken, read, &dead),
    ] {
        let found = search(bounds, walk(bounds, steps), Some(rule), 100_000);
        let steps = found.err();
        let steps = steps.unwrap_or_else(|| panic!("{rule:?} is not noticed"));
        println!("{rule:?}: {} steps: {}", steps.len() - 1, steps.join("; "));
    }
}
