//! Every bug that the simulator has found stays found.
//!
//! `TENUTO_SIM_SCENARIO` with `TENUTO_SIM_SEED` runs one seed of one scenario and tells everything.

use sim::scenario::{ALL, find};
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
    let failed = ALL.iter().filter(|scenario| {
        let outcome = scenario.run();
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
