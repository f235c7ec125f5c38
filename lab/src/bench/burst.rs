//! Bursts of a database: what guests see while the origin is behind, over a simulated SAN.
//!
//! Owns three runs: short bursts without and with the cache, and bursts so long that flow control
//! must slow them. The pattern is that of FVP (FAST '15, section 8.1 and 8.2, figures 5 and 6):
//! writes of 8 KiB, a sequential burst, then a slow random pace, twice. Always true: every figure
//! comes from requests through a real socket; times and the dirty limit are divided by one scale,
//! rates are not. Deliberately absent: a disk behind the SAN that would be slow by itself.

mod findings;
mod guest;
mod page;
mod run;

use super::range;
use crate::machine;
use crate::place::Place;
use crate::stats::{millis, quantile};
use engine::types::{DestageMode, Policy};
use host::error::Result;
use run::{Case, Run};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Of one write.
const WRITE_BYTES: u64 = 8192;

#[derive(Clone, Debug)]
pub struct Options {
    pub scale: f64,
    pub destage: DestageMode,
    pub html: PathBuf,
    pub seed: u64,
}

pub struct Report {
    runs: Vec<Run>,
    options: Options,
}

/// Runs everything and writes the report.
pub fn run(options: &Options) -> Result<Report> {
    range::within("--scale", options.scale, 1.0..=1000.0)?;
    crate::report::check(Some(&options.html))?;
    let place = Place::new()?;
    let case = |name, policy, burst| Case {
        name,
        policy,
        burst,
    };
    let cases = [
        case("short, uncached", Policy::Uncached, 40),
        case("short, write-back", Policy::WriteBack, 40),
        case("sustained, write-back", Policy::WriteBack, 160),
    ];
    let runs: Result<Vec<Run>> = cases
        .into_iter()
        .map(|case| run::run(&place, options, case))
        .collect();
    let report = Report {
        runs: runs?,
        options: options.clone(),
    };
    crate::report::save(&options.html, &page::page(&report))?;
    Ok(report)
}

impl Report {
    pub fn headline(&self) -> String {
        let san = run::SAN;
        format!(
            "8 KiB writes, {} in flight, bursts of {} writes/s; simulated SAN: {} ms, \
             {} requests/s, {} MiB/s; destage {}; times divided by {}, dirty limit {} MiB",
            run::DEPTH,
            run::BURST_RATE,
            millis(san.latency),
            san.iops.unwrap_or(0),
            san.bandwidth_bytes.unwrap_or(0) >> 20,
            self.options.destage.name(),
            self.options.scale,
            run::dirty_limit_bytes(self.options.scale) >> 20,
        )
    }

    pub const HEAD: [&'static str; 8] = [
        "",
        "WRITES/S",
        "P50 MS",
        "P99 MS",
        "MAX MS",
        "DESTAGED/S",
        "SLOWED S",
        "DELAY MS",
    ];

    /// One row for each phase of each run.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let rows = self.runs.iter().flat_map(|run| {
            run.phases.iter().map(|phase| {
                let figures = figures(run, phase);
                let latency = |it: Option<Duration>| {
                    it.map_or("-".into(), |latency| format!("{:.2}", millis(latency)))
                };
                vec![
                    format!("{}: {}", run.name, phase.name),
                    format!("{:.0}", figures.writes_per_second),
                    latency(figures.p50),
                    latency(figures.p99),
                    latency(figures.longest),
                    format!("{:.0}", figures.destaged_per_second),
                    format!("{:.1}", figures.slowed.as_secs_f64()),
                    format!("{:.1}", figures.delay_ms),
                ]
            })
        });
        rows.collect()
    }

    pub fn machine(&self) -> String {
        machine::text()
    }

    pub const FINDINGS_HEAD: [&'static str; 3] = ["", "MEASURED", "WANTED"];

    /// What the runs say together, beside what is wanted.
    pub fn findings(&self) -> Vec<Vec<String>> {
        findings::rows(self)
    }

    pub fn document(&self) -> Value {
        let runs: Vec<Value> = self.runs.iter().map(document).collect();
        json!({
            "benchmark": "burst",
            "scale": self.options.scale,
            "destage": self.options.destage.name(),
            "seed": self.options.seed,
            "write_bytes": WRITE_BYTES,
            "in_flight": run::DEPTH,
            "burst_writes_per_second": run::BURST_RATE,
            "slow_writes_per_second": run::SLOW_RATE,
            "dirty_limit_bytes": run::dirty_limit_bytes(self.options.scale),
            "san": {
                "latency_us": run::SAN.latency.as_micros() as u64,
                "requests_per_second": run::SAN.iops,
                "bytes_per_second": run::SAN.bandwidth_bytes,
            },
            "machine": machine::document(),
            "findings": findings::document(self),
            "runs": runs,
            "report": self.options.html.display().to_string(),
        })
    }
}

struct Figures {
    writes_per_second: f64,
    p50: Option<Duration>,
    p99: Option<Duration>,
    longest: Option<Duration>,
    destaged_per_second: f64,
    /// How long flow control was active, and its longest delay.
    slowed: Duration,
    delay_ms: f64,
}

fn figures(run: &Run, phase: &run::Phase) -> Figures {
    let inside = |at: Duration| at >= phase.from && at < phase.to;
    let writes = run.writes.iter().filter(|write| inside(write.at));
    let mut latencies: Vec<Duration> = writes.map(|write| write.latency).collect();
    let seconds = (phase.to - phase.from).as_secs_f64();
    let looks: Vec<&run::Look> = run.looks.iter().filter(|look| inside(look.at)).collect();
    let destaged = match (looks.first(), looks.last()) {
        (Some(first), Some(last)) => last.destaged_bytes - first.destaged_bytes,
        _ => 0,
    };
    let slowed = looks.windows(2).filter(|pair| pair[0].active);
    Figures {
        writes_per_second: latencies.len() as f64 / seconds,
        p50: quantile(&mut latencies, 50),
        p99: quantile(&mut latencies, 99),
        longest: latencies.iter().max().copied(),
        destaged_per_second: destaged as f64 / WRITE_BYTES as f64 / seconds,
        slowed: slowed.map(|pair| pair[1].at - pair[0].at).sum(),
        delay_ms: looks.iter().map(|look| look.delay_ms).fold(0.0, f64::max),
    }
}

fn document(run: &Run) -> Value {
    let micros = |it: Option<Duration>| it.map(|it| it.as_micros() as u64);
    let phases: Vec<Value> = run
        .phases
        .iter()
        .map(|phase| {
            let figures = figures(run, phase);
            json!({
                "name": phase.name,
                "from_seconds": phase.from.as_secs_f64(),
                "to_seconds": phase.to.as_secs_f64(),
                "writes_per_second": figures.writes_per_second,
                "latency_us": {
                    "p50": micros(figures.p50),
                    "p99": micros(figures.p99),
                    "max": micros(figures.longest),
                },
                "destaged_writes_per_second": figures.destaged_per_second,
                "slowed_seconds": figures.slowed.as_secs_f64(),
                "delay_ms_max": figures.delay_ms,
            })
        })
        .collect();
    json!({
        "name": run.name,
        "policy": run.policy.name(),
        "phases": phases,
        "series": {
            "guest_writes_per_second": page::guest_rate(run),
            "destaged_writes_per_second": page::destage_rate(run),
            "guest_latency_ms": page::guest_latency(run),
            "ssd_latency_ms": page::ssd_latency(run),
            "delay_ms": page::delay(run),
        },
    })
}
