//! `tenuto trace replay`: a trace against live volumes, or straight through the engine.
//!
//! Always true: what a figure counts is said beside it. Deliberately absent: the replays
//! themselves, which are in `replay`.

use super::trace::{From, each, open};
use super::trace_agents::{self, Agents};
use super::trace_live::{self, Options};
use crate::replay::machine::Sizes;
use crate::replay::offline::{self, Report};
use crate::replay::tally::{Count, Origin};
use clap::Args;
use engine::event::Admission;
use engine::snapshot::Histogram;
use engine::types::{DestageMode, Policy};
use host::cli::arguments::{latency, millis, size};
use host::cli::{Context, output};
use host::config::units::human_bytes;
use host::error::{Error, Result};
use host::origin::san::Params;
use serde_json::{Value, json};
use std::time::Instant;
use workload::trace::{Item, Op};

#[derive(Debug, Args)]
pub struct Replay {
    #[command(flatten)]
    from: From,
    /// Through the engine alone, in virtual time, over simulated devices
    #[arg(long)]
    offline: bool,
    /// A volume that the next disk of the trace is replayed against; once for each disk
    #[arg(long, value_name = "NAME", conflicts_with = "offline")]
    volume: Vec<String>,
    /// What the volumes hold may be overwritten
    #[arg(long, conflicts_with = "offline")]
    overwrite: bool,
    /// Machines whose volumes take part; --volume is HOST:NAME then
    #[arg(
        long,
        value_name = "HOST,…",
        value_delimiter = ',',
        conflicts_with = "offline"
    )]
    agents: Vec<String>,
    /// What runs a program on a machine
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh",
        requires = "agents"
    )]
    rsh: String,
    /// What tenuto is called there
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "tenuto",
        requires = "agents"
    )]
    remote: String,
    /// How requests reach the volumes: nbd, or vhost-user as those of guests do
    #[arg(long, default_value = "nbd", conflicts_with = "offline")]
    #[arg(value_parser = ["nbd", "vhost-user"])]
    client: String,
    /// Times of the trace are divided by this
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    speed: f64,
    #[command(flatten)]
    settings: Settings,
}

/// Of the simulated host; what a volume's key is called in the configuration is called so here.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Offline")]
pub struct Settings {
    /// Of every disk of the trace
    #[arg(long, default_value = "write-back")]
    #[arg(value_parser = ["uncached", "write-through", "write-back"])]
    policy: String,
    /// Destage through a journal (atomic) or directly (in-place)
    #[arg(long, value_name = "MODE", default_value = "atomic")]
    #[arg(value_parser = ["in-place", "atomic"])]
    destage: String,
    /// Age at which dirty data goes to the origin
    #[arg(long, value_name = "TIME", default_value = "10m")]
    destage_after: String,
    /// Dirty bytes of a volume at most
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    dirty_limit: String,
    /// Which blocks are kept on the cache device
    #[arg(long, default_value = "reuse", value_parser = ["reuse", "all"])]
    admission: String,
    /// Size of the cache device
    #[arg(long, value_name = "SIZE", default_value = "20GiB")]
    cache: String,
    /// Size of the read tier
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    ram: String,
    /// Size of the stage
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    stage: String,
    /// Of every request to the cache device, in microseconds
    #[arg(long, value_name = "US", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=3_600_000_000))]
    cache_latency: u64,
    /// Of every request to shared storage
    #[arg(long, value_name = "TIME", default_value = "5ms")]
    origin_latency: String,
    /// Requests in a second that shared storage takes; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    origin_iops: u64,
    /// Seed of hash functions
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The settings alone, as they are when nothing is said.
#[derive(Debug, clap::Parser)]
struct Unsaid {
    #[command(flatten)]
    settings: Settings,
}

/// What an offline replay has when nothing is said.
pub(super) fn unsaid() -> Result<offline::Options> {
    let Unsaid { settings } = clap::Parser::parse_from(["replay"]);
    Ok(offline::Options {
        sizes: settings.sizes()?,
        volume: settings.volume()?,
        speed: 1.0,
    })
}

impl Settings {
    fn sizes(&self) -> Result<Sizes> {
        Ok(Sizes {
            cache_bytes: size("--cache", &self.cache)?,
            ram_bytes: size("--ram", &self.ram)?,
            stage_bytes: size("--stage", &self.stage)?,
            overlay_ram_bytes: 0,
            map_bytes: 0,
            cache_latency_ns: self.cache_latency * 1000,
            san: Params {
                latency_ns: latency("--origin-latency", &self.origin_latency)?.as_nanos() as u64,
                iops: self.origin_iops,
                ..Params::default()
            },
            seed: self.seed,
        })
    }

    fn volume(&self) -> Result<offline::Volume> {
        Ok(offline::Volume {
            policy: match self.policy.as_str() {
                "uncached" => Policy::Uncached,
                "write-through" => Policy::WriteThrough,
                _ => Policy::WriteBack,
            },
            destage: match self.destage.as_str() {
                "atomic" => DestageMode::Atomic,
                _ => DestageMode::InPlace,
            },
            destage_after_ms: Some(millis("--destage-after", &self.destage_after)?),
            dirty_limit_bytes: size("--dirty-limit", &self.dirty_limit)?,
            origin_queue_depth: 32,
            admission: match self.admission.as_str() {
                "all" => Admission::All,
                _ => Admission::Reuse,
            },
        })
    }
}

pub fn run(context: &Context, command: &Replay) -> Result<()> {
    if !command.speed.is_finite() || command.speed <= 0.0 {
        return Err(Error::usage(format!(
            "--speed {}: give a number above zero",
            command.speed
        )));
    }
    if command.offline {
        return offline(context, command);
    }
    if command.volume.is_empty() {
        return Err(Error::usage(
            "trace replay: say where to: --offline for the engine alone, or --volume NAME",
        ));
    }
    let options = Options {
        overwrite: command.overwrite,
        by_rings: command.client == "vhost-user",
        speed: command.speed,
    };
    if command.agents.is_empty() {
        return trace_live::run(context, &command.from, &command.volume, &options);
    }
    let agents = Agents {
        hosts: &command.agents,
        rsh: &command.rsh,
        program: &command.remote,
    };
    trace_agents::run(context, &command.from, &command.volume, &options, &agents)
}

fn offline(context: &Context, command: &Replay) -> Result<()> {
    let options = offline::Options {
        sizes: command.settings.sizes()?,
        volume: command.settings.volume()?,
        speed: command.speed,
    };
    let mut reader = open(&command.from)?;
    let begun = Instant::now();
    let mut replay = offline::Replay::new(options)?;
    let summary = each(&command.from, &mut reader, |_, item| match item {
        Item::Record(record) => Ok(replay.take(record)?),
        Item::Lost(_) => Ok(()),
    })?;
    let report = replay.finish()?;
    let took = begun.elapsed().as_secs_f64();
    let rate = report.requests.iter().sum::<u64>() as f64 / took.max(1e-9);
    let mut document = document(&report);
    document["wall_seconds"] = json!(took);
    document["requests_per_second"] = json!(rate);
    document["lost"] = json!(summary.lost);
    document["not_understood"] = json!(reader.complaints().bad);
    document["settings"] = json!({
        "policy": command.settings.policy,
        "destage": command.settings.destage,
        "destage_after": command.settings.destage_after,
        "dirty_limit": command.settings.dirty_limit,
        "admission": command.settings.admission,
        "cache": command.settings.cache,
        "ram": command.settings.ram,
        "stage": command.settings.stage,
        "cache_latency_us": command.settings.cache_latency,
        "origin_latency": command.settings.origin_latency,
        "origin_iops": command.settings.origin_iops,
        "seed": command.settings.seed,
        "speed": command.speed,
    });
    context.output().document(&document, || {
        let replayed = ("replayed", format!("in {took:.2} s, {rate:.0} requests/s"));
        let lost = (summary.lost > 0).then(|| lost(summary.lost));
        text(&report, replayed, lost)
    })?;
    match report.complete {
        true => Ok(()),
        false => Err(Error::failed(
            "replay: the end of the trace was not at the origin within a day of virtual time; \
             give shared storage more with --origin-iops",
        )),
    }
}

fn origin(it: &Origin) -> Value {
    let count = |count: Count| json!({ "requests": count.requests, "bytes": count.bytes });
    json!({
        "requests": it.requests(),
        "reads": count(it.reads),
        "writes": count(it.writes),
        "journal": count(it.journal),
        "ledger": count(it.ledger),
        "syncs": it.syncs,
    })
}

pub(super) fn quantiles(histogram: &Histogram) -> Value {
    json!({
        "p50": histogram.quantile_us(500),
        "p99": histogram.quantile_us(990),
        "p999": histogram.quantile_us(999),
    })
}

fn document(report: &Report) -> Value {
    let (reads, writes) = (report.counters.reads, report.counters.writes);
    let counts: Vec<(String, Value)> = Op::ALL
        .iter()
        .enumerate()
        .map(|(at, op)| {
            let count = json!({ "requests": report.requests[at], "bytes": report.bytes[at] });
            (format!("{}s", op.name()), count)
        })
        .collect();
    let requests: serde_json::Map<String, Value> = counts.into_iter().collect();
    json!({
        "replay": "offline",
        "trace": requests,
        "trace_seconds": report.trace_seconds,
        "volumes": report.volumes,
        "complete": report.complete,
        "refused": report.refused,
        "first_refusal": report.first_refusal,
        "reads": {
            "requests": reads.requests,
            "bytes": reads.bytes,
            "ram_hits": reads.ram_hits,
            "ssd_hits": reads.ssd_hits,
            "origin": reads.origin,
            "hit_ratio": hit_ratio(report),
        },
        "writes": {
            "requests": writes.requests,
            "bytes": writes.bytes,
            "elided_bytes": writes.elided_bytes,
        },
        "origin_in_trace": origin(&report.origin_in_trace),
        "origin": origin(&report.origin),
        "origin_busiest_second": report.origin_busiest_second,
        "flash_read_bytes": report.flash_read_bytes,
        "flash_write_bytes": report.flash_write_bytes,
        "index_bytes": report.index_bytes,
        "cached_bytes": report.cached_bytes,
        "dirty_bytes": report.dirty_bytes,
        "latency_us": {
            "read": quantiles(&report.latency[0]),
            "write": quantiles(&report.latency[1]),
            "flush": quantiles(&report.latency[2]),
        },
    })
}

/// Reads that shared storage was not asked for.
fn hit_ratio(report: &Report) -> Option<f64> {
    let reads = report.counters.reads;
    let requests = reads.requests;
    (requests > 0).then(|| 1.0 - reads.origin as f64 / requests as f64)
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
    }
}

fn origin_text(it: &Origin) -> String {
    format!(
        "{} requests: {} reads {}, {} writes {}, {} journal {}, {} ledger; {} syncs",
        it.requests(),
        it.reads.requests,
        human_bytes(it.reads.bytes),
        it.writes.requests,
        human_bytes(it.writes.bytes),
        it.journal.requests,
        human_bytes(it.journal.bytes),
        it.ledger.requests,
        it.syncs,
    )
}

/// A trace that is not all of what was asked for says so.
pub(super) fn lost(requests: u64) -> (&'static str, String) {
    ("lost", format!("{requests} were not recorded"))
}

type Row = (&'static str, String);

fn text(report: &Report, replayed: Row, lost: Option<Row>) -> String {
    let (reads, writes) = (report.counters.reads, report.counters.writes);
    let total: u64 = report.requests.iter().sum();
    let part = |of: u64| percent(of, reads.requests);
    let (ram, ssd, missed) = (
        part(reads.ram_hits),
        part(reads.ssd_hits),
        part(reads.origin),
    );
    let written = human_bytes(report.flash_write_bytes);
    let read = human_bytes(report.flash_read_bytes);
    let (index, cached) = (
        human_bytes(report.index_bytes),
        human_bytes(report.cached_bytes),
    );
    let (volumes, seconds) = (report.volumes, report.trace_seconds);
    let each = 100.0 * report.origin.requests() as f64 / total.max(1) as f64;
    let dirty = human_bytes(report.dirty_bytes);
    let mut rows = vec![
        (
            "trace",
            format!("{total} requests to {volumes} disks, {seconds:.1} s"),
        ),
        ("reads", format!("RAM {ram}, SSD {ssd}, origin {missed}")),
        (
            "overwritten before destage",
            percent(writes.elided_bytes, writes.bytes),
        ),
        ("origin in trace", origin_text(&report.origin_in_trace)),
        ("origin with the rest", origin_text(&report.origin)),
        ("for each 100 requests", format!("{each:.1} at the origin")),
        (
            "busiest second",
            format!("{} at the origin", report.origin_busiest_second),
        ),
        ("flash", format!("{written} written, {read} read")),
        (
            "index",
            format!("{index} for {cached} of clean blocks and {dirty} dirty"),
        ),
    ];
    if report.refused > 0 {
        let first = report.first_refusal.as_deref().unwrap_or("");
        rows.push(("refused", format!("{}, the first: {first}", report.refused)));
    }
    rows.extend(lost);
    rows.push(replayed);
    output::fields(&rows)
}
