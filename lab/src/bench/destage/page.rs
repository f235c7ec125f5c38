//! The report of a destage: guest and destage over the time of a slot.
//!
//! Always true: a point is the median over the rounds that count, of what was measured in one
//! interval of a slot.

use super::run::{Look, Slot};
use super::{Report, Round};
use crate::bench::rounds::Spread;
use crate::bench::work::BLOCK_BYTES;
use crate::plot::{Line, Scale, over_seconds};
use crate::report::{self as frame, Table};
use serde_json::{Value, json};
use std::time::Duration;

/// Intervals of a slot.
const INTERVALS: usize = 20;

type Points = Vec<(f64, f64)>;

pub fn page(report: &Report) -> String {
    let lead = format!("{}. {}.", report.headline(), report.machine());
    let table = Table {
        head: &Report::HEAD,
        rows: &report.rows(),
    };
    let line = |class, dashed, name: &str, points| Line {
        class,
        dashed,
        name: name.to_owned(),
        points,
    };
    let rates = [
        line("uncached", false, "alone", over_time(report, 0, rate)),
        line(
            "cached",
            false,
            "during a destage",
            over_time(report, 1, rate),
        ),
        line(
            "cached",
            true,
            "destaged, 4 KiB each",
            over_time(report, 1, destaged),
        ),
    ];
    let latencies = [
        line("uncached", false, "alone", over_time(report, 0, p50)),
        line(
            "cached",
            false,
            "during a destage",
            over_time(report, 1, p50),
        ),
    ];
    let plots = format!(
        "<h2>Requests of the guest</h2>\n{}\n<h2>Latency that the guest sees</h2>\n{}\n",
        over_seconds("requests per second", Scale::Linear, &rates),
        over_seconds("p50, us", Scale::Linear, &latencies),
    );
    frame::page("a guest during a destage", &lead, &table, &plots)
}

pub fn series(report: &Report) -> Value {
    json!({
        "interval_seconds": interval(report),
        "alone_iops": over_time(report, 0, rate),
        "during_destage_iops": over_time(report, 1, rate),
        "alone_p50_us": over_time(report, 0, p50),
        "during_destage_p50_us": over_time(report, 1, p50),
        "destaged_blocks_per_second": over_time(report, 1, destaged),
    })
}

fn interval(report: &Report) -> f64 {
    report.options.seconds / INTERVALS as f64
}

/// A figure of one kind of slot for each interval of it: its middle in seconds, the median.
fn over_time(report: &Report, at: usize, figure: fn(&Slot, f64) -> Vec<Option<f64>>) -> Points {
    let length = interval(report);
    let slots = report
        .proven()
        .map(|round: &Round| figure(&round[at], length));
    let slots: Vec<Vec<Option<f64>>> = slots.collect();
    let point = |number: usize| {
        let values = slots.iter().filter_map(|slot| slot[number]);
        let median = Spread::of(values)?.median;
        Some(((number as f64 + 0.5) * length, median))
    };
    (0..INTERVALS).filter_map(point).collect()
}

fn number(at: Duration, length: f64) -> usize {
    ((at.as_secs_f64() / length) as usize).min(INTERVALS - 1)
}

fn rate(slot: &Slot, length: f64) -> Vec<Option<f64>> {
    let mut counts = vec![0.0; INTERVALS];
    for sample in &slot.samples {
        counts[number(sample.at, length)] += 1.0;
    }
    counts
        .into_iter()
        .map(|count| Some(count / length))
        .collect()
}

fn p50(slot: &Slot, length: f64) -> Vec<Option<f64>> {
    let mut latencies = vec![Vec::new(); INTERVALS];
    for sample in &slot.samples {
        latencies[number(sample.at, length)].push(sample.latency.as_secs_f64() * 1e6);
    }
    let medians = latencies
        .into_iter()
        .map(|it| Spread::of(it).map(|it| it.median));
    medians.collect()
}

fn destaged(slot: &Slot, length: f64) -> Vec<Option<f64>> {
    let mut rates = vec![Vec::new(); INTERVALS];
    for pair in slot.looks.windows(2) {
        let [old, new]: [Look; 2] = [pair[0], pair[1]];
        let seconds = (new.at - old.at).as_secs_f64();
        if seconds > 0.0 {
            let blocks = (new.origin_bytes - old.origin_bytes) / BLOCK_BYTES;
            rates[number(new.at, length)].push(blocks as f64 / seconds);
        }
    }
    let means = rates.into_iter().map(|it| {
        let count = it.len() as f64;
        (count > 0.0).then(|| it.iter().sum::<f64>() / count)
    });
    means.collect()
}
