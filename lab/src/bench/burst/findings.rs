//! What the bursts say about the product, each beside what is wanted of it.
//!
//! Always true: a finding is drawn from what was measured in these runs; where a run was too short
//! to show one it is null, and never met.

use super::run::{Look, Phase, Run, dirty_limit_bytes};
use super::{Report, figures};
use crate::bench::rounds::Spread;
use crate::stats::millis;
use serde_json::{Value, json};

const RATIO_WANTED: f64 = 4.0;
const LATENCY_MS_WANTED: f64 = 1000.0;
const DELAY_WANTED: (f64, f64) = (1.0, 4.0);
/// Above this part of the limit the delay may be any.
const FILL_MAX: f64 = 0.9;

struct Findings {
    /// Writes per second of the short bursts, write-back over uncached, the smaller of both.
    burst_ratio: Option<f64>,
    longest_write_ms: Option<f64>,
    /// Median, and the largest, of the delay over the origin's latency in the sustained burst.
    delay: Option<(f64, f64)>,
    released: Option<bool>,
}

fn of(report: &Report) -> Findings {
    let [uncached, short, sustained] = &report.runs[..] else {
        panic!("there are three runs");
    };
    let rate = |run: &Run, phase: &Phase| figures(run, phase).writes_per_second;
    let bursts = uncached.phases.iter().zip(&short.phases);
    let bursts = bursts.filter(|(phase, _)| phase.sequential);
    let ratios = bursts.filter_map(|(slow, fast)| {
        let slow = rate(uncached, slow);
        (slow > 0.0).then(|| rate(short, fast) / slow)
    });
    let writes = short.writes.iter().chain(&sustained.writes);
    let delays = delays(sustained, dirty_limit_bytes(report.options.scale));
    let most = delays.iter().copied().fold(0.0, f64::max);
    Findings {
        burst_ratio: ratios.reduce(f64::min),
        longest_write_ms: writes.map(|write| millis(write.latency)).reduce(f64::max),
        delay: Spread::of(delays).map(|it| (it.median, most)),
        released: released(sustained),
    }
}

/// The delay in parts of the origin's latency, at each look in a burst that found it active.
fn delays(run: &Run, limit_bytes: u64) -> Vec<f64> {
    let in_burst = |look: &&Look| {
        let mut bursts = run.phases.iter().filter(|phase| phase.sequential);
        bursts.any(|phase| look.at >= phase.from && look.at < phase.to)
    };
    let below = |look: &&Look| (look.dirty_bytes as f64) < limit_bytes as f64 * FILL_MAX;
    let looks = run.looks.iter().filter(in_burst).filter(below);
    let looks = looks.filter(|look| look.active && look.origin_ms > 0.0);
    looks.map(|look| look.delay_ms / look.origin_ms).collect()
}

/// Whether flow control, once it was active, was no more when the second burst began.
fn released(run: &Run) -> Option<bool> {
    let second = run.phases.iter().filter(|phase| phase.sequential).nth(1)?;
    let before: Vec<&Look> = run.looks.iter().filter(|it| it.at < second.from).collect();
    let seen = before.iter().any(|look| look.active);
    seen.then(|| before.last().is_some_and(|look| !look.active))
}

pub fn rows(report: &Report) -> Vec<Vec<String>> {
    let it = of(report);
    let text = |value: Option<String>| value.unwrap_or_else(|| "not seen".into());
    let row = |name: &str, value: Option<String>, wanted: String| {
        vec![name.to_owned(), text(value), wanted]
    };
    let delay = it
        .delay
        .map(|(median, most)| format!("{median:.2}, at most {most:.2}"));
    vec![
        row(
            "short bursts, write-back over uncached",
            it.burst_ratio.map(|ratio| format!("{ratio:.2} x")),
            format!(">= {RATIO_WANTED} x"),
        ),
        row(
            "longest write of the write-back runs",
            it.longest_write_ms.map(|ms| format!("{ms:.1} ms")),
            format!("< {LATENCY_MS_WANTED} ms"),
        ),
        row(
            "delay in sustained bursts, in latencies of the origin",
            delay,
            format!("{} to {}", DELAY_WANTED.0, DELAY_WANTED.1),
        ),
        row(
            "flow control released before the next burst",
            it.released.map(|yes| if yes { "yes" } else { "no" }.into()),
            "yes".into(),
        ),
    ]
}

pub fn document(report: &Report) -> Value {
    let it = of(report);
    json!({
        "burst_ratio": it.burst_ratio,
        "burst_ratio_wanted": RATIO_WANTED,
        "longest_write_ms": it.longest_write_ms,
        "longest_write_ms_wanted": LATENCY_MS_WANTED,
        "delay_in_origin_latencies": it.delay.map(|it| json!({ "median": it.0, "max": it.1 })),
        "delay_wanted": [DELAY_WANTED.0, DELAY_WANTED.1],
        "released_before_next_burst": it.released,
    })
}
