//! What the product is for, in a minute: guests on a slow storage network, with it and without.
//!
//! Owns the two runs and the comparison of them. Always true: every number was measured in this
//! run; both runs make the same requests through real sockets, on a simulated storage network
//! with the same limits. Deliberately absent: real guests, which a later version boots where
//! QEMU and a kernel are; here the built-in client drives the disks.

pub(crate) mod client;
mod content;
pub(crate) mod host;
mod load;
pub(crate) mod page;
pub(crate) mod stats;

use crate::error::{Error, Result, cause};
use host::{CLONES, Place, Run, SAN};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use stats::{Kind, millis, quantile_of};
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Options {
    pub report: PathBuf,
    pub seed: u64,
}

/// Both runs and what they are compared by.
pub struct Report {
    uncached: Run,
    cached: Run,
    seed: u64,
}

/// One line of the table.
pub struct Row {
    pub name: String,
    pub uncached: String,
    pub cached: String,
}

/// Requests of both runs, for the length of a progress bar.
pub fn requests(seed: u64) -> u64 {
    2 * load::requests(seed, CLONES as u64 + 1)
}

/// Runs everything and writes the report.
pub fn run(options: &Options, bar: &ProgressBar) -> Result<Report> {
    let place = Place::new()?;
    let report = Report {
        uncached: host::run(&place, options.seed, false, bar)?,
        cached: host::run(&place, options.seed, true, bar)?,
        seed: options.seed,
    };
    let page = page::page(&report);
    let written = std::fs::write(&options.report, page);
    written.map_err(|error| {
        let path = options.report.display();
        Error::failed(format!("{path}: {}; name another --report", cause(&error)))
    })?;
    Ok(report)
}

impl Report {
    pub fn headline(&self) -> String {
        format!(
            "{CLONES} throw-away clones of one image and one disk that is kept; simulated SAN: \
             {} ms, {} requests/s for all",
            SAN.latency.as_millis(),
            SAN.iops.unwrap_or(0)
        )
    }

    /// What drove the disks and what was checked.
    pub fn notes(&self) -> Vec<String> {
        let run = &self.cached;
        vec![
            "the built-in client drives the disks through NBD sockets; no guest was booted".into(),
            "every read was compared with what had been written".into(),
            format!(
                "destaged the kept disk in {:.1} s; its image holds exactly what was written: {} \
                 blocks compared, {} of them written",
                run.destage.as_secs_f64(),
                run.verified_blocks,
                run.written_blocks
            ),
        ]
    }

    pub fn rows(&self) -> Vec<Row> {
        let row = |name: &str, value: &dyn Fn(&Run) -> String| Row {
            name: name.into(),
            uncached: value(&self.uncached),
            cached: value(&self.cached),
        };
        let mut rows = vec![
            row("boot of all guests, s", &|run| {
                format!("{:.1}", run.load.boot.as_secs_f64())
            }),
            row("origin reads", &|run| run.origin.reads.to_string()),
            row("origin reads, MiB", &|run| mib(run.origin.read_bytes)),
            row("origin writes", &|run| run.origin.writes.to_string()),
            row("origin writes, MiB", &|run| mib(run.origin.write_bytes)),
            row("journal beside the image, MiB", &|run| {
                mib(run.origin.journal_bytes)
            }),
            row("origin syncs", &|run| run.origin.syncs.to_string()),
        ];
        for kind in Kind::ALL {
            for percent in [50, 99] {
                let name = format!("{} p{percent}, ms", kind.name());
                rows.push(row(&name, &|run| {
                    let latency = quantile_of(&run.load.samples, kind, percent);
                    latency.map_or("-".into(), |latency| format!("{:.2}", millis(latency)))
                }));
            }
        }
        rows.push(row("requests of the guests", &|run| {
            run.load.samples.len().to_string()
        }));
        rows
    }

    pub fn document(&self) -> Value {
        json!({
            "seed": self.seed,
            "guests": CLONES + 1,
            "driver": "built-in client",
            "san": {
                "latency_ms": SAN.latency.as_millis() as u64,
                "requests_per_second": SAN.iops,
            },
            "uncached": document(&self.uncached),
            "cached": document(&self.cached),
        })
    }
}

fn document(run: &Run) -> Value {
    let latency = |kind| {
        let micros = |percent| {
            let latency = quantile_of(&run.load.samples, kind, percent);
            latency.map(|latency| latency.as_micros() as u64)
        };
        json!({ "p50": micros(50), "p99": micros(99) })
    };
    let bytes: u64 = run.load.samples.iter().map(|sample| sample.bytes).sum();
    json!({
        "boot_seconds": run.load.boot.as_secs_f64(),
        "seconds": run.load.total.as_secs_f64(),
        "requests": run.load.samples.len(),
        "bytes": bytes,
        "latency_us": {
            "read": latency(Kind::Read),
            "write": latency(Kind::Write),
            "flush": latency(Kind::Flush),
        },
        "origin": {
            "reads": run.origin.reads,
            "read_bytes": run.origin.read_bytes,
            "writes": run.origin.writes,
            "write_bytes": run.origin.write_bytes,
            "journal_bytes": run.origin.journal_bytes,
            "syncs": run.origin.syncs,
            "errors": run.origin.errors,
        },
        "destage_seconds": run.destage.as_secs_f64(),
        "verified_blocks": run.verified_blocks,
        "written_blocks": run.written_blocks,
    })
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
