//! The figures of copies, for people and for programs.

use super::run::{AGAIN, ALONE, COPIED, Slot, THROUGH, TWICE, median, ratio};
use super::{Line, MORE_US_WANTED, RATIO_OF_TWO_WANTED, RATIO_WANTED, Report};
use crate::bench::rounds::{Spread, cell};
use crate::machine;
use serde_json::{Value, json};

pub const HEAD: [&str; 10] = [
    "",
    "NO COPY",
    "ONE COPY",
    "ONE / NO",
    "TWO / NO",
    "A/A",
    "WRITE-THROUGH",
    "THROUGH / NO",
    "WANTED, ONE",
    "WANTED, TWO",
];

pub const COSTS_HEAD: [&str; 7] = [
    "FOR EACH 4 KIB WRITTEN",
    "OWNER, CPU US",
    "MEMBERS, CPU US",
    "WIRE, BYTES",
    "OWNER'S DEVICE, BYTES",
    "MEMBERS' DEVICES, BYTES",
    "ORIGIN, BYTES",
];

type Cost = fn(&Slot) -> Option<f64>;

/// Name in a document, what it is, and digits in a table.
const COSTS: [(&str, Cost, usize); 6] = [
    ("owner_cpu_us", Slot::owner_cpu_us, 2),
    ("member_cpu_us", Slot::member_cpu_us, 2),
    ("wire_bytes", Slot::wire_bytes, 0),
    ("owner_device_bytes", Slot::owner_device_bytes, 0),
    ("member_device_bytes", Slot::member_device_bytes, 0),
    ("origin_bytes", Slot::origin_bytes, 0),
];

/// What a write and its flush may take with a copy.
fn wanted_us(report: &Report, line: &Line) -> Option<f64> {
    let alone = median(line.proven(), ALONE, |slot| slot.figure(line.load))?;
    Some(alone.median + report.round_trip_us?.median + MORE_US_WANTED)
}

pub fn headline(report: &Report) -> String {
    let (options, lines) = (&report.options, &report.lines);
    let proven: usize = lines.iter().map(|line| line.proven().count()).sum();
    let all: usize = lines.iter().map(|line| line.rounds.len()).sum();
    format!(
        "three hosts on this machine over loopback; four volumes of {} MiB in a cache of {} MiB: \
         write-back with no copy, with one and with two, write-through; slots of {} s with a flush \
         at the end, {proven} of {all} rounds proven; {}; an empty round trip takes {} us",
        options.size_bytes >> 20,
        options.cache_bytes >> 20,
        options.seconds,
        report.limited.words(),
        cell(report.round_trip_us, 1),
    )
}

pub fn speed(report: &Report, line: &Line) -> Vec<String> {
    let load = line.load;
    let digits = usize::from(load.is_time());
    let figure = |slot: &Slot| slot.figure(load);
    let at = |at: usize| cell(median(line.proven(), at, figure), digits);
    let over = |over: usize| cell(ratio(line.proven(), (over, ALONE), figure), 2);
    let wanted = match load.is_time() {
        true => wanted_us(report, line).map_or("-".into(), |us| format!("<= {us:.0} us")),
        false => format!(">= {RATIO_WANTED} x"),
    };
    vec![
        load.name().into(),
        at(ALONE),
        at(COPIED),
        over(COPIED),
        over(TWICE),
        over(AGAIN),
        at(THROUGH),
        over(THROUGH),
        wanted,
        match load.is_time() {
            true => "-".into(),
            false => format!(">= {RATIO_OF_TWO_WANTED} x"),
        },
    ]
}

/// One row without a copy, one with it, one with two.
pub fn costs(line: &Line) -> Vec<Vec<String>> {
    let row = |(at, words): (usize, &str)| {
        let mut cells = vec![format!("{}, {words}", line.load.key())];
        cells.extend(COSTS.map(|(_, of, digits)| cell(median(line.proven(), at, of), digits)));
        cells
    };
    let kinds = [
        (ALONE, "no copy"),
        (COPIED, "one copy"),
        (TWICE, "two copies"),
    ];
    kinds.map(row).into()
}

fn line_document(report: &Report, line: &Line) -> Value {
    let load = line.load;
    let spread = |it: Option<Spread>| it.map(|it| it.document());
    let figure = |slot: &Slot| slot.figure(load);
    let at = |at: usize| spread(median(line.proven(), at, figure));
    let over = |over: usize| spread(ratio(line.proven(), (over, ALONE), figure));
    let costs = |at: usize| {
        let mut document = json!({});
        for (name, of, _) in COSTS {
            document[name] = json!(spread(median(line.proven(), at, of)));
        }
        document
    };
    json!({
        "load": load.key(),
        "figure": load.figure(),
        "rounds_proven": line.proven().count(),
        "alone": at(ALONE),
        "copied": at(COPIED),
        "twice": at(TWICE),
        "write_through": at(THROUGH),
        "ratio": over(COPIED),
        "twice_ratio": over(TWICE),
        "a_a_ratio": over(AGAIN),
        "write_through_ratio": over(THROUGH),
        "ratio_wanted": (!load.is_time()).then_some(RATIO_WANTED),
        "twice_ratio_wanted": (!load.is_time()).then_some(RATIO_OF_TWO_WANTED),
        "us_wanted": load.is_time().then(|| wanted_us(report, line)).flatten(),
        "each_4_kib": {
            "alone": costs(ALONE), "copied": costs(COPIED), "twice": costs(TWICE),
        },
        "rounds": line.rounds.iter().map(|it| it.document(load)).collect::<Vec<Value>>(),
    })
}

pub fn document(report: &Report) -> Value {
    let options = &report.options;
    let lines = report.lines.iter();
    let proven: usize = lines.clone().map(|line| line.proven().count()).sum();
    json!({
        "benchmark": "replicas",
        "machine": machine::document(),
        "parameters": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "cache_bytes": options.cache_bytes,
            "size_bytes": options.size_bytes,
            "device_rate": options.device_rate,
            "hosts": 3,
        },
        "rounds_proven": proven,
        "device": report.limited.document(),
        "round_trip_us": report.round_trip_us.map(|it| it.document()),
        "loads": lines.map(|line| line_document(report, line)).collect::<Vec<Value>>(),
    })
}
