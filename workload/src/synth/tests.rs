//! What a trace of desktops keeps to, whatever its seed.

// Tests may unwrap; the lint knows that only of functions with `#[test]`, not of their helpers.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::trace::SECTOR_BYTES;

fn synth(pattern: Pattern, seed: u64, hours: f64) -> Synth {
    let mut parameters = Parameters::new(pattern);
    parameters.seed = seed;
    let duration_ns = (hours * 3600.0 * SECOND_NS as f64) as u64;
    Synth::new(&parameters.with_duration(duration_ns)).unwrap()
}

#[test]
fn records_come_in_order_and_lie_in_the_range_of_their_class() {
    for pattern in Pattern::ALL {
        let mut synth = synth(pattern, 7, 1.5);
        let (mut latest, mut records) = (0, 0_u64);
        while let Some(record) = synth.next() {
            let week = pattern == Pattern::Desktops;
            assert!(records > 0 || !week || record.time_ns == 0, "late");
            assert!(record.time_ns >= latest, "{pattern:?}: back in time");
            latest = record.time_ns;
            records += 1;
            if record.op == Op::Flush {
                continue;
            }
            let end = record.sector + u64::from(record.sectors);
            assert!(record.sectors > 0 && end * SECTOR_BYTES <= synth.disk_bytes());
            let class = synth.class_of(record.path.unwrap());
            let inside = |range: &Range<u64>| range.start <= record.sector && end <= range.end;
            assert!(
                synth.ranges(class).iter().any(inside),
                "{pattern:?} {record:?}"
            );
        }
        assert!(records > 10_000, "{pattern:?}: {records}");
    }
}

#[test]
fn the_same_parameters_give_the_same_trace_and_its_end_the_same_as_all_of_it() {
    let whole: Vec<Record> = synth(Pattern::Desktops, 3, 0.5).collect();
    assert!(whole.iter().copied().eq(synth(Pattern::Desktops, 3, 0.5)));
    assert!(!whole.iter().copied().eq(synth(Pattern::Desktops, 4, 0.5)));
    let mut parameters = synth(Pattern::Desktops, 3, 0.5).parameters().clone();
    parameters.from_ns = parameters.duration_ns / 2;
    parameters.duration_ns -= parameters.from_ns;
    let late: Vec<Record> = Synth::new(&parameters).unwrap().collect();
    let behind = whole
        .iter()
        .position(|record| record.time_ns >= parameters.from_ns);
    assert_eq!(whole[behind.unwrap() + 1..], late[1..]);
}

/// Generates all of it and holds it against what was published.
fn judge(parameters: &Parameters) {
    let mut synth = Synth::new(parameters).expect("parameters of a test");
    let mut statistics = synth.statistics();
    for record in synth.by_ref() {
        statistics.add(&record);
    }
    statistics.finish();
    let rows = rows::rows(parameters, &statistics, synth.disks());
    let of = (parameters.pattern, parameters.seed, parameters.desktops);
    for row in &rows {
        eprintln!(
            "{of:?} {:42} {:>14.4} {:>14.4} {:>14.4} {:>+8.1} %",
            row.name,
            row.low,
            row.high,
            row.measured,
            row.deviation() * 100.0,
        );
    }
    assert!(rows.len() >= 3, "{of:?}");
    let far: Vec<_> = rows.iter().filter(|row| !row.is_near()).collect();
    assert!(far.is_empty(), "{of:?}: {far:#?}");
}

/// How many seeds, of how many desktops: few of half the office, or as many of all of it as are
/// asked for.
fn size() -> (u64, u32) {
    let asked = std::env::var("TENUTO_SYNTH_SEEDS").ok();
    let asked = asked.map(|text| text.parse().expect("TENUTO_SYNTH_SEEDS is a number"));
    asked.map_or((2, 28), |seeds| (seeds, published::DESKTOPS))
}

#[test]
fn each_figure_of_an_office_week_is_within_a_tenth_of_the_published_one() {
    let (seeds, desktops) = size();
    for seed in 1..=seeds {
        let mut parameters = Parameters::new(Pattern::Desktops);
        parameters.seed = seed;
        parameters.desktops = desktops;
        judge(&parameters);
    }
}

#[test]
fn each_figure_of_a_phase_is_within_a_tenth_of_the_published_one() {
    let (seeds, desktops) = size();
    for pattern in Pattern::ALL {
        for seed in 1..=seeds {
            let mut parameters = Parameters::new(pattern);
            parameters.seed = seed;
            parameters.desktops = desktops;
            if pattern != Pattern::Desktops {
                judge(&parameters);
            }
        }
    }
}

#[test]
fn what_cannot_be_made_is_refused() {
    let wrong: [fn(&mut Parameters); 6] = [
        |parameters| parameters.desktops = 0,
        |parameters| parameters.active = 1.5,
        |parameters| parameters.intensity = f64::NAN,
        |parameters| parameters.disk_bytes = 1 << 30,
        |parameters| parameters.duration_ns = 0,
        |parameters| parameters.from_ns = u64::MAX,
    ];
    for (number, change) in wrong.into_iter().enumerate() {
        let mut parameters = Parameters::new(Pattern::Desktops);
        change(&mut parameters);
        assert!(Synth::new(&parameters).is_err(), "{number}");
    }
}
