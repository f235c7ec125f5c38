//! Every bug that the simulator has found stays found.
//!
//! Thirty seeds of each, fewer where `TENUTO_SIM_SEEDS` asks for fewer than 300 in all.
//! `TENUTO_SIM_SCENARIO` with `TENUTO_SIM_SEED` runs one seed of one scenario and tells everything.

use sim::scenario::{ALL, SEEDS, find};
use sim::{Options, run};

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
    let failed = ALL.iter().filter(|scenario| {
        let outcome = scenario.run(asked.clamp(1, SEEDS));
        match &outcome {
            Ok(counters) => println!("{}: {} faults", scenario.name, counters.faults()),
            Err(failure) => println!("{failure} (scenario)"),
        }
        outcome.is_err()
    });
    assert_eq!(failed.count(), 0, "scenarios fail");
}

#[test]
fn scenarios_are_found_by_name_and_say_what_broke() {
    assert!(
        ALL.iter()
            .all(|it| find(it.name).is_some() && !it.broke.is_empty())
    );
    assert!(find("none").is_none());
}
