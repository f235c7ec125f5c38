//! Ways that are seldom gone: runs of all gates must come along each of them.
//!
//! All gates run for a few seeds, then those that come along the rarest ways, until nothing is
//! missing. `TENUTO_SIM_SEEDS` says how many seeds these may take ([`SELDOM_SEEDS_MAX`]). Always
//! true: a mark that no gate can reach is listed with the reason. Built with the feature
//! `adversary` alone.

mod adversary;

use adversary::{Gate, number};
use engine::adversary::{Mark, passed};
use sim::run;
use sim::scenario::{ALL, find};
use sim::trace::Counters;

/// Seeds of all gates.
const SEEDS: u64 = 6;
/// Seeds of those below, at most.
const SELDOM_SEEDS_MAX: u64 = 200;

/// Who comes along the rarest ways. What a new mark needs belongs here.
const SELDOM: [Gate; 6] = [
    Gate::Dying,
    Gate::LostWrites,
    Gate::DirectTops,
    Gate::Rests,
    Gate::Moves,
    Gate::EarlyDestages,
];

/// What they judge are other runs, and their options are those of [`Gate::Seeds`].
const AS_SEEDS: [Gate; 6] = [
    Gate::Pairs,
    Gate::TwoReplicas,
    Gate::FailingOwner,
    Gate::HandOvers,
    Gate::Rings,
    Gate::HeldWrites,
];

/// The runs of a seed: of all gates and scenarios, or of those that come along the rarest ways.
fn runs(seed: u64) -> Vec<sim::Options> {
    if seed >= SEEDS {
        return SELDOM.iter().map(|gate| gate.options(seed)).collect();
    }
    let gates = Gate::ALL.iter().filter(|gate| !AS_SEEDS.contains(gate));
    let scenarios = ALL.iter().map(|it| find(it.name).expect("one of all"));
    let scenarios: Vec<_> = scenarios.collect();
    let scenarios = scenarios.iter().map(|it| it.options(seed));
    gates
        .map(|gate| gate.options(seed))
        .chain(scenarios)
        .collect()
}

fn missing(counters: &Counters) -> Vec<String> {
    let marks = Mark::ALL.iter().filter(|mark| passed(**mark) == 0);
    let of_world = [
        ("a late write", counters.late_writes),
        ("a kill in a recovery", counters.kills_in_recovery),
        ("a power loss in a recovery", counters.losses_in_recovery),
        ("an origin without room", counters.origin_full),
        (
            "a scrub that drops clean blocks",
            counters.scrub_dropped_bytes,
        ),
    ];
    let never = of_world.into_iter().filter(|(_, count)| *count == 0);
    let marks = marks.map(|mark| format!("{mark:?}:{}", mark.what()));
    marks
        .chain(never.map(|(what, _)| what.to_owned()))
        .collect()
}

#[test]
fn every_way_that_is_seldom_gone_is_gone() {
    let seeds = number("TENUTO_SIM_SEEDS").unwrap_or(SELDOM_SEEDS_MAX);
    let seeds = seeds.clamp(SELDOM_SEEDS_MAX, 2000);
    let mut counters = Counters::default();
    let mut seed = 0;
    while seed < seeds && !missing(&counters).is_empty() {
        let runs = runs(seed);
        let (one, other) = runs.split_at(runs.len() / 2);
        let both = std::thread::scope(|scope| {
            let here = |part: &[sim::Options]| part.iter().map(run).collect::<Vec<_>>();
            let other = scope.spawn(move || here(other));
            let mut outcomes = here(one);
            outcomes.extend(other.join().expect("a run ends"));
            outcomes
        });
        // What fails where the device lies is the business of others.
        both.iter()
            .flatten()
            .for_each(|outcome| counters.add(&outcome.counters));
        // What fails there is the business of others as well.
        drop(sim::pair::run(&sim::pair::Options::from_seed(seed)));
        drop(sim::pair::run(&sim::pair::Options::with_two(seed)));
        drop(sim::pair::run(&sim::pair::Options::with_failing(seed)));
        drop(sim::handed::run(&sim::handed::Options::from_seed(seed)));
        seed += 1;
    }
    println!("{seed} seeds, {SEEDS} of them of all gates");
    for mark in Mark::ALL {
        println!("{:>12} {mark:?}:{}", passed(*mark), mark.what());
    }
    let missing = missing(&counters);
    assert!(missing.is_empty(), "no run came along: {missing:#?}");
}
