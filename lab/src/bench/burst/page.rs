//! The report of the bursts as one HTML file that needs nothing else.
//!
//! Owns the curves over time and the page around them. Always true: a point is a mean over one
//! interval of the run.

use super::run::{Look, Run};
use super::{Report, WRITE_BYTES};
use crate::plot::{Line, Scale, over_seconds};
use crate::report::{self as frame, Table};
use crate::stats::millis;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(250);
const LATENCY: &str = "latency, ms (logarithmic)";

pub fn page(report: &Report) -> String {
    let lead = format!("{}. {}.", report.headline(), report.machine());
    let first = Table {
        head: &Report::FINDINGS_HEAD,
        rows: &report.findings(),
    };
    let phases = Table {
        head: &Report::HEAD,
        rows: &report.rows(),
    };
    let [uncached, short, sustained] = &report.runs[..] else {
        panic!("there are three runs");
    };
    let below = format!(
        "{}<h2>Short bursts, uncached and write-back</h2>\n{}\n{}\n\
         <h2>Sustained bursts, write-back</h2>\n{}\n{}\n",
        frame::table(&phases),
        over_seconds(
            "8 KiB writes per second",
            Scale::Linear,
            &short_rates(uncached, short)
        ),
        over_seconds(
            LATENCY,
            Scale::Logarithmic,
            &short_latencies(uncached, short)
        ),
        over_seconds("8 KiB writes per second", Scale::Linear, &rates(sustained)),
        over_seconds(LATENCY, Scale::Logarithmic, &latencies(sustained)),
    );
    frame::page("bursts of a database", &lead, &first, &below)
}

fn line(class: &'static str, dashed: bool, name: &'static str, points: Vec<(f64, f64)>) -> Line {
    Line {
        class,
        dashed,
        name: name.to_owned(),
        points,
    }
}

fn short_rates(uncached: &Run, cached: &Run) -> Vec<Line> {
    vec![
        line("uncached", false, "guest, uncached", guest_rate(uncached)),
        line("cached", false, "guest, write-back", guest_rate(cached)),
        line("cached", true, "to the origin", destage_rate(cached)),
    ]
}

fn short_latencies(uncached: &Run, cached: &Run) -> Vec<Line> {
    vec![
        line(
            "uncached",
            false,
            "guest, uncached",
            guest_latency(uncached),
        ),
        line("cached", false, "guest, write-back", guest_latency(cached)),
        line("cached", true, "write to the SSD", ssd_latency(cached)),
    ]
}

fn rates(run: &Run) -> Vec<Line> {
    vec![
        line("cached", false, "guest", guest_rate(run)),
        line("uncached", false, "to the origin", destage_rate(run)),
    ]
}

fn latencies(run: &Run) -> Vec<Line> {
    vec![
        line("cached", false, "guest", guest_latency(run)),
        line("cached", true, "write to the SSD", ssd_latency(run)),
        line("uncached", true, "flow control's delay", delay(run)),
    ]
}

/// Writes answered in each interval: middle of it in seconds, mean of `value`, how many.
fn bins(run: &Run) -> Vec<(f64, f64, f64)> {
    let bin = |at: Duration| (at.as_nanos() / INTERVAL.as_nanos()) as usize;
    let count = run.writes.iter().map(|write| bin(write.at) + 1).max();
    let mut sums = vec![(0.0, 0.0); count.unwrap_or(0)];
    for write in &run.writes {
        let sum = &mut sums[bin(write.at)];
        sum.0 += millis(write.latency);
        sum.1 += 1.0;
    }
    let middle = |at: usize| (at as f64 + 0.5) * INTERVAL.as_secs_f64();
    let points = sums.into_iter().enumerate();
    points
        .map(|(at, (sum, count))| (middle(at), sum, count))
        .collect()
}

pub fn guest_rate(run: &Run) -> Vec<(f64, f64)> {
    let bins = bins(run).into_iter();
    bins.map(|(at, _, count)| (at, count / INTERVAL.as_secs_f64()))
        .collect()
}

pub fn guest_latency(run: &Run) -> Vec<(f64, f64)> {
    let bins = bins(run).into_iter().filter(|bin| bin.2 > 0.0);
    bins.map(|(at, sum, count)| (at, sum / count)).collect()
}

/// What `value` makes of two looks at the counters, one after the other.
fn between(run: &Run, value: impl Fn(&Look, &Look) -> Option<f64>) -> Vec<(f64, f64)> {
    let pairs = run.looks.windows(2);
    pairs
        .filter_map(|pair| {
            let middle = (pair[0].at + pair[1].at).as_secs_f64() / 2.0;
            Some((middle, value(&pair[0], &pair[1])?))
        })
        .collect()
}

pub fn destage_rate(run: &Run) -> Vec<(f64, f64)> {
    between(run, |old, new| {
        let bytes = (new.destaged_bytes - old.destaged_bytes) as f64;
        let seconds = (new.at - old.at).as_secs_f64();
        (seconds > 0.0).then_some(bytes / WRITE_BYTES as f64 / seconds)
    })
}

pub fn ssd_latency(run: &Run) -> Vec<(f64, f64)> {
    between(run, |old, new| {
        let writes = new.log_writes - old.log_writes;
        let nanos = (new.log_write_ns - old.log_write_ns) as f64;
        (writes > 0).then_some(nanos / writes as f64 / 1e6)
    })
}

pub fn delay(run: &Run) -> Vec<(f64, f64)> {
    let looks = run.looks.iter().filter(|look| look.active);
    looks
        .map(|look| (look.at.as_secs_f64(), look.delay_ms))
        .collect()
}
