//! Every bug that the simulator has found stays found.
//!
//! Thirty seeds of each, fewer where `TENUTO_SIM_SEEDS` asks for fewer than 300 in all.
//! `TENUTO_SIM_SCENARIO` with `TENUTO_SIM_SEED` runs one seed of one scenario and tells everything.

use sim::scenario::{ALL, SEEDS, find};
use sim::{Options, run};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_scenario_keeps_every_promise() {
    if let (Ok(name), Ok(seed)) = (
        std::env::var("TENUTO_SIM_SCENARIO"),
        std::env::var("TENUTO_SIM_SEED"),
    ) {
        let scenario = find(&name).expect("a scenario of this name");
        let options = scenario.options(seed.parse().expect("a number"));
        let outcome = run(&Options {
            verbose: true,
            ..options
        });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        return;
    }
    let asked = std::env::var("TENUTO_SIM_SEEDS").ok();
    let asked = asked.map_or(SEEDS, |count| count.parse::<u64>().expect("a number") / 10);
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = || {
        while let Some(scenario) = ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            match scenario.run(asked.clamp(1, SEEDS)) {
                Ok(counters) => println!("{}: {} faults", scenario.name, counters.faults()),
                Err(failure) => {
                    println!("{failure} (scenario)");
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    // On the two cores of the machines that test.
    std::thread::scope(|scope| {
        scope.spawn(run);
        run();
    });
    assert_eq!(failed.into_inner(), 0, "scenarios fail");
}

#[test]
fn scenarios_are_found_by_name_and_say_what_broke() {
    assert!(
        ALL.iter()
            .all(|it| find(it.name).is_some() && !it.broke.is_empty())
    );
    assert!(find("none").is_none());
}
