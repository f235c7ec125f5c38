//! `/metrics`: the counters in Prometheus' text format, version 0.0.4.
//!
//! Always true: names carry their unit, which is seconds or bytes, counters end in `_total`, and a
//! metric of volumes has the label `volume` and nothing else, but for the one that tells the
//! policy; one of pools has `pool`. A volume has at most [`SERIES_MAX`] of them, so that a
//! thousand volumes are a scrape of less than 3 MB: distributions are those of the host, by
//! policy. Deliberately absent: a registry; the text is made from the same snapshot as `status`,
//! so the two cannot disagree.

use super::View;
use super::history::{History, Recent};
use crate::daemon::PoolShown;
use crate::latency::{COARSE, Kind};
use engine::snapshot::{CacheState, State, VolumeSnapshot};
use engine::types::Policy;
use std::fmt::{Display, Write};

type Metric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&VolumeSnapshot) -> u64,
);

const VOLUME_METRICS: &[Metric] = &[
    ("reads_total", "counter", "Read requests.", |v| {
        v.counters.reads.requests
    }),
    (
        "read_bytes_total",
        "counter",
        "Bytes read by guests.",
        |v| v.counters.reads.bytes,
    ),
    (
        "read_ram_hits_total",
        "counter",
        "Reads served from RAM.",
        |v| v.counters.reads.ram_hits,
    ),
    (
        "read_ssd_hits_total",
        "counter",
        "Reads served from SSD.",
        |v| v.counters.reads.ssd_hits,
    ),
    (
        "read_origin_total",
        "counter",
        "Reads that went to the origin.",
        |v| v.counters.reads.origin,
    ),
    (
        "read_remote_total",
        "counter",
        "Reads served by the host that had the volume before.",
        |v| v.counters.reads.remote,
    ),
    ("writes_total", "counter", "Write requests.", |v| {
        v.counters.writes.requests
    }),
    (
        "write_bytes_total",
        "counter",
        "Bytes written by guests.",
        |v| v.counters.writes.bytes,
    ),
    (
        "elided_bytes_total",
        "counter",
        "Bytes overwritten before destage.",
        |v| v.counters.writes.elided_bytes,
    ),
    ("flushes_total", "counter", "Flush requests.", |v| {
        v.counters.flushes
    }),
    ("discards_total", "counter", "Discard requests.", |v| {
        v.counters.discards
    }),
    (
        "dropped_discards_total",
        "counter",
        "Discards that the origin cannot do cheaply, and that were dropped.",
        |v| v.counters.dropped_discards,
    ),
    (
        "origin_zeroed_bytes_total",
        "counter",
        "Bytes of zeroes written at an origin that makes no holes.",
        |v| v.counters.origin.zeroed_bytes,
    ),
    (
        "origin_reads_total",
        "counter",
        "Reads at the origin.",
        |v| v.counters.origin.reads,
    ),
    (
        "origin_read_bytes_total",
        "counter",
        "Bytes read at the origin.",
        |v| v.counters.origin.read_bytes,
    ),
    (
        "origin_writes_total",
        "counter",
        "Writes at the origin.",
        |v| v.counters.origin.writes,
    ),
    (
        "origin_write_bytes_total",
        "counter",
        "Bytes written at the origin.",
        |v| v.counters.origin.write_bytes,
    ),
    (
        "origin_journal_bytes_total",
        "counter",
        "Bytes written to the journal.",
        |v| v.counters.origin.journal_bytes,
    ),
    (
        "origin_syncs_total",
        "counter",
        "Syncs of the origin.",
        |v| v.counters.origin.syncs,
    ),
    (
        "origin_errors_total",
        "counter",
        "Failed requests at the origin.",
        |v| v.counters.origin.errors,
    ),
    (
        "ssd_read_bytes_total",
        "counter",
        "Bytes read from the cache device.",
        |v| v.counters.ssd_read_bytes,
    ),
    (
        "ssd_write_bytes_total",
        "counter",
        "Bytes written to the cache device.",
        |v| v.counters.ssd_write_bytes,
    ),
    (
        "recalled_bytes_total",
        "counter",
        "Bytes that the cache device did not give, from a copy or from the journal.",
        |v| v.counters.recalled_bytes,
    ),
    (
        "checksum_errors_total",
        "counter",
        "Blocks with a wrong checksum.",
        |v| v.counters.checksum_errors,
    ),
    ("size_bytes", "gauge", "Size of the volume.", |v| {
        v.size_bytes
    }),
    (
        "dirty_bytes",
        "gauge",
        "Bytes that are not at the origin yet.",
        |v| v.dirty_bytes,
    ),
    (
        "dirty_writes",
        "gauge",
        "Writes that are not at the origin yet.",
        |v| v.dirty_writes,
    ),
    (
        "oldest_dirty_seconds",
        "gauge",
        "Age of the oldest dirty write.",
        |v| v.oldest_dirty_ns.unwrap_or(0) / 1_000_000_000,
    ),
    (
        "waiting_requests",
        "gauge",
        "Requests that wait: held by flow control, or for space.",
        |v| v.waiting_requests,
    ),
    (
        "flow_control_active",
        "gauge",
        "1 while flow control slows writes.",
        |v| u64::from(v.flow.active),
    ),
    (
        "flow_control_held_writes_total",
        "counter",
        "Writes that flow control has held.",
        |v| v.flow.held_writes,
    ),
    (
        "dirty_extents",
        "gauge",
        "Ranges that are not at the origin yet.",
        |v| v.dirty_extents,
    ),
    ("destaging", "gauge", "1 while a destage runs.", |v| {
        u64::from(v.destaging)
    }),
    (
        "healthy",
        "gauge",
        "1 unless stalled, held or damaged.",
        |v| u64::from(matches!(v.state, State::Clean | State::Dirty | State::Away)),
    ),
    (
        "stalled",
        "gauge",
        "1 while guests or dirty data wait for the origin.",
        |v| u64::from(v.state == State::Stalled),
    ),
    (
        "held",
        "gauge",
        "1 while going on would lose or invent data.",
        |v| u64::from(v.state == State::Held),
    ),
    (
        "damaged",
        "gauge",
        "1 while dirty blocks cannot be read any more.",
        |v| u64::from(v.state == State::Damaged),
    ),
];

/// Of volumes that have an overlay.
const OVERLAY_METRICS: &[Metric] = &[
    (
        "overlay_hits_total",
        "counter",
        "Reads that found something in the overlay.",
        |v| v.counters.overlay_hits,
    ),
    (
        "overlay_refused_writes_total",
        "counter",
        "Writes answered for want of room in the overlay.",
        |v| v.counters.overlay_refused,
    ),
    (
        "overlay_full",
        "gauge",
        "1 while its overlay has no more room.",
        |v| u64::from(v.overlay.is_some_and(|overlay| overlay.full)),
    ),
];

/// What one volume adds to a scrape at most.
pub const SERIES_MAX: usize = 60;

type ViewMetric = (
    &'static str,
    &'static str,
    fn(&View, &VolumeSnapshot) -> Option<u64>,
);

/// What the configuration knows of a volume; gauges.
const VIEW_METRICS: &[ViewMetric] = &[
    ("clients", "Connections of guests.", |view, volume| {
        Some(view.clients(volume.id))
    }),
    (
        "orphan",
        "1 while no configuration names it.",
        |view, volume| Some(u64::from(view.is_orphan(volume))),
    ),
    (
        "destage_after_seconds",
        "Age at which dirty data is to go to the origin; absent = never.",
        |view, volume| Some(view.configured(&volume.name)?.destage_after_ms? / 1000),
    ),
    (
        "replicas_wanted",
        "Copies on other hosts that it is to have; absent where it has and needs none.",
        |view, volume| Some(view.replication(volume)?.wanted.into()),
    ),
    (
        "replicas_real",
        "Complete copies on other hosts; absent where it has and needs none.",
        |view, volume| Some(view.replication(volume)?.real.into()),
    ),
];

pub fn text(view: &View, history: &History) -> String {
    let mut out = String::new();
    host(&mut out, view);
    pools(&mut out, view);
    let volumes = VOLUME_METRICS.iter().map(|metric| (metric, false));
    let overlays = OVERLAY_METRICS.iter().map(|metric| (metric, true));
    for ((name, kind, help, value), only_overlays) in volumes.chain(overlays) {
        let name = format!("tenuto_volume_{name}");
        head(&mut out, &name, kind, help);
        for volume in view.shown() {
            if !only_overlays || volume.overlay.is_some() {
                line(&mut out, &name, &volume.name, value(volume));
            }
        }
    }
    info(&mut out, view);
    of_the_view(&mut out, view);
    limits(&mut out, view);
    recent(&mut out, view, history);
    latencies(&mut out, history);
    out
}

/// Of volumes whose guests had to wait for their limits.
fn limits(out: &mut String, view: &View) {
    let waited = view
        .shown()
        .filter_map(|volume| Some((volume, view.look.waits.get(&volume.id)?)));
    let waited: Vec<_> = waited.collect();
    let name = "tenuto_volume_limit_waits_total";
    let help = "Times that a guest had to wait for the limit of its volume.";
    head(out, name, "counter", help);
    for (volume, waits) in &waited {
        line(out, name, &volume.name, waits.count);
    }
    let name = "tenuto_volume_limit_wait_seconds_total";
    head(
        out,
        name,
        "counter",
        "Time of these waits, of those that have ended.",
    );
    for (volume, waits) in &waited {
        line(out, name, &volume.name, waits.nanos as f64 / 1e9);
    }
}

/// What a volume is, for joins: `… * on (volume) group_left (policy) tenuto_volume_info`.
fn info(out: &mut String, view: &View) {
    let name = "tenuto_volume_info";
    head(
        out,
        name,
        "gauge",
        "1; its label tells the policy in effect.",
    );
    for volume in view.shown() {
        let (volume, policy) = (&volume.name, volume.policy.name());
        let _ = writeln!(out, "{name}{{volume=\"{volume}\",policy=\"{policy}\"}} 1");
    }
}

type RecentMetric = (&'static str, fn(&Recent) -> Option<f64>);

const RECENT: [RecentMetric; 4] = [
    ("read", |it| it.read_p99_seconds),
    ("write", |it| it.write_p99_seconds),
    ("flush", |it| it.flush_p99_seconds),
    ("origin", |it| it.origin_p99_seconds),
];

/// Of one volume a figure for each kind of request is enough.
fn recent(out: &mut String, view: &View, history: &History) {
    let all: Vec<(&str, Recent)> = view
        .shown()
        .filter_map(|volume| Some((volume.name.as_str(), history.recent(&volume.name)?)))
        .collect();
    for (what, value) in RECENT {
        let name = format!("tenuto_volume_{what}_latency_p99_seconds");
        let help = format!(
            "99 of 100 {what} requests of the last seconds took at most this; absent without one."
        );
        head(out, &name, "gauge", &help);
        for (volume, recent) in &all {
            if let Some(seconds) = value(recent) {
                line(out, &name, volume, seconds);
            }
        }
    }
}

/// All requests since the start, by the policy that they were measured under.
fn latencies(out: &mut String, history: &History) {
    let (guests, origin) = history.latencies();
    for (what, kind) in [
        ("read", Kind::Read),
        ("write", Kind::Write),
        ("flush", Kind::Flush),
    ] {
        let name = format!("tenuto_{what}_latency_seconds");
        let help = format!("From the pickup of {what} requests to their answers.");
        head(out, &name, "histogram", &help);
        // Also of policies without a guest: series that are there from the start have rates.
        for policy in [
            Policy::Uncached,
            Policy::WriteThrough,
            Policy::WriteBack,
            Policy::Ephemeral,
        ] {
            let measured = guests.of(policy, kind);
            let counts = measured.map_or([0; COARSE], |it| it.coarse());
            let labels = format!("policy=\"{}\"", policy.name());
            buckets(out, &name, &labels, &counts);
        }
    }
    let name = "tenuto_origin_latency_seconds";
    head(out, name, "histogram", "Latency of origin requests.");
    buckets(out, name, "", &origin.counts);
}

/// What of a volume its snapshot alone does not tell, and times.
fn of_the_view(out: &mut String, view: &View) {
    for (name, help, value) in VIEW_METRICS {
        let name = format!("tenuto_volume_{name}");
        head(out, &name, "gauge", help);
        for volume in view.shown() {
            if let Some(value) = value(view, volume) {
                line(out, &name, &volume.name, value);
            }
        }
    }
    for (name, kind, help, value) in VOLUME_SECONDS {
        let name = format!("tenuto_volume_{name}");
        head(out, &name, kind, help);
        for volume in view.shown() {
            line(out, &name, &volume.name, value(volume));
        }
    }
}

/// Times, in seconds and no other unit.
type Seconds<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

const VOLUME_SECONDS: &[Seconds<VolumeSnapshot>] = &[
    (
        "flow_control_delay_seconds",
        "gauge",
        "How long a write is held before it is admitted.",
        |v| v.flow.delay_ns as f64 / 1e9,
    ),
    (
        "origin_latency_average_seconds",
        "gauge",
        "Moving average of the origin's latency, as flow control sees it.",
        |v| v.flow.latency_ns as f64 / 1e9,
    ),
];

const HOST_SECONDS: &[Seconds<View>] = &[
    ("recovery_seconds", "gauge", "Time of recovery.", |v| {
        v.look.recovery.ms as f64 / 1e3
    }),
    (
        "log_write_seconds_total",
        "counter",
        "Time of all writes to the log.",
        |v| v.look.engine.log_write_ns as f64 / 1e9,
    ),
];

type HostMetric = (&'static str, &'static str, &'static str, fn(&View) -> u64);

const HOST_METRICS: &[HostMetric] = &[
    ("uptime_seconds", "gauge", "Seconds since start.", |v| {
        v.uptime.as_secs()
    }),
    ("cache_size_bytes", "gauge", "Size of the log.", |v| {
        v.look.engine.log_bytes
    }),
    ("cache_live_bytes", "gauge", "Live bytes in the log.", |v| {
        v.look.engine.live_bytes
    }),
    (
        "dirty_bytes",
        "gauge",
        "Bytes of all volumes that are not at their origins, overlays included.",
        |v| {
            v.look
                .engine
                .volumes
                .iter()
                .map(|volume| volume.dirty_bytes)
                .sum()
        },
    ),
    (
        "dirty_bytes_max",
        "gauge",
        "What all volumes together may keep dirty.",
        |v| v.look.engine.dirty_bytes_max,
    ),
    (
        "copy_room_bytes_max",
        "gauge",
        "What copies of other hosts' volumes together may take of the log.",
        |v| v.look.engine.copy_room.max_bytes,
    ),
    (
        "copy_room_taken_bytes",
        "gauge",
        "What they take, with what was promised to their owners.",
        |v| v.look.engine.copy_room.taken_bytes,
    ),
    (
        "copy_room_free_bytes",
        "gauge",
        "What can be promised to them now.",
        |v| v.look.engine.copy_room.free_bytes,
    ),
    ("volumes", "gauge", "Volumes that are shown.", |v| {
        v.shown().count() as u64
    }),
    (
        "orphans",
        "gauge",
        "Volumes with dirty data that no configuration names.",
        |v| v.shown().filter(|volume| v.is_orphan(volume)).count() as u64,
    ),
    ("ram_bytes", "gauge", "Size of the read tier.", |v| {
        v.look.engine.ram_blocks * engine::types::BLOCK_BYTES
    }),
    ("ram_used_bytes", "gauge", "Read tier in use.", |v| {
        v.look.engine.ram_blocks_used * engine::types::BLOCK_BYTES
    }),
    ("stage_slots", "gauge", "Slots of the stage.", |v| {
        u64::from(v.look.engine.stage_slots)
    }),
    ("overlay_slots", "gauge", "Slots of overlays in RAM.", |v| {
        u64::from(v.look.engine.overlay_slots)
    }),
    (
        "checkpoints_total",
        "counter",
        "Checkpoints written.",
        |v| v.look.engine.checkpoints,
    ),
    ("log_writes_total", "counter", "Writes to the log.", |v| {
        v.look.engine.log_writes
    }),
    ("index_bytes", "gauge", "RAM of the maps.", |v| {
        v.look.engine.index_bytes
    }),
    ("segments_free", "gauge", "Free segments.", |v| {
        u64::from(v.look.engine.segments.free)
    }),
    ("segments_sealed", "gauge", "Sealed segments.", |v| {
        u64::from(v.look.engine.segments.sealed)
    }),
    (
        "segments_fill",
        "gauge",
        "Segments with clean blocks of base images.",
        |v| u64::from(v.look.engine.segments.fill),
    ),
    (
        "clean_bytes",
        "gauge",
        "Clean bytes on the cache device.",
        |v| v.look.engine.lines.blocks * engine::types::BLOCK_BYTES,
    ),
    (
        "clean_read_bytes_total",
        "counter",
        "Clean bytes read from the cache device.",
        |v| v.look.engine.lines.read_bytes,
    ),
    (
        "clean_write_bytes_total",
        "counter",
        "Clean bytes written to the cache device.",
        |v| v.look.engine.lines.write_bytes,
    ),
    (
        "clean_bad_blocks_total",
        "counter",
        "Clean blocks that were dropped because their checksum did not match.",
        |v| v.look.engine.lines.bad_blocks,
    ),
    (
        "clean_errors_total",
        "counter",
        "Failed requests for clean blocks.",
        |v| v.look.engine.lines.errors,
    ),
    (
        "ram_blocks_used",
        "gauge",
        "Blocks in the read tier.",
        |v| v.look.engine.ram_blocks_used,
    ),
    ("stage_slots_busy", "gauge", "Stage slots in use.", |v| {
        u64::from(v.look.engine.stage_slots_busy)
    }),
    (
        "overlay_slots_busy",
        "gauge",
        "Overlay slots in use.",
        |v| u64::from(v.look.engine.overlay_slots_busy),
    ),
    (
        "recovery_tail_bytes_discarded",
        "gauge",
        "Torn tail.",
        |v| v.look.recovery.tail_bytes_discarded,
    ),
    (
        "cache_failed",
        "gauge",
        "1 while volumes do without the cache device.",
        |v| {
            u64::from(matches!(
                v.look.engine.cache_state,
                CacheState::Failed | CacheState::Gone
            ))
        },
    ),
    ("cache_errors_total", "counter", "Failed requests.", |v| {
        v.look.engine.cache_errors
    }),
    ("evacuated_bytes_total", "counter", "Bytes moved.", |v| {
        v.look.engine.evacuated_bytes
    }),
    (
        "segments_reused_total",
        "counter",
        "Segments reused.",
        |v| v.look.engine.segments_reused,
    ),
];

fn host(out: &mut String, view: &View) {
    for (name, kind, help, value) in HOST_METRICS {
        head(out, &format!("tenuto_{name}"), kind, help);
        let _ = writeln!(out, "tenuto_{name} {}", value(view));
    }
    for (name, kind, help, value) in HOST_SECONDS {
        head(out, &format!("tenuto_{name}"), kind, help);
        let _ = writeln!(out, "tenuto_{name} {}", value(view));
    }
    head(
        out,
        "tenuto_build_info",
        "gauge",
        "1; its label tells the version.",
    );
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(out, "tenuto_build_info{{version=\"{version}\"}} 1");
    for (name, help, value) in &view.look.counters {
        let kind = match name.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
        head(out, &format!("tenuto_{name}"), kind, help);
        let _ = writeln!(out, "tenuto_{name} {value}");
    }
}

type PoolMetric = (&'static str, &'static str, fn(&PoolShown) -> u64);

const POOL_METRICS: [PoolMetric; 4] = [
    ("pool_members", "Members of a pool.", |pool| {
        pool.members.len() as u64
    }),
    (
        "pool_members_moved",
        "Members that have the image of their pool.",
        |pool| {
            let now = pool.record.image.generation;
            let moved = pool.members.iter().filter(|it| it.generation == now);
            moved.count() as u64
        },
    ),
    (
        "pool_members_unhealthy",
        "Members that something is wrong with.",
        |pool| {
            let ill = pool.members.iter().filter(|it| it.trouble.is_some());
            ill.count() as u64
        },
    ),
    (
        "pool_went_back",
        "1 while a pool has the image before again, by itself.",
        |pool| u64::from(pool.record.rollout.went_back.is_some()),
    ),
];

fn pools(out: &mut String, view: &View) {
    let pools = &view.look.pools;
    for (name, help, value) in POOL_METRICS.iter().filter(|_| !pools.is_empty()) {
        head(out, &format!("tenuto_{name}"), "gauge", help);
        for (pool, shown) in pools {
            let _ = writeln!(out, "tenuto_{name}{{pool=\"{pool}\"}} {}", value(shown));
        }
    }
}

// Writing to a String cannot fail, so the results below carry nothing.

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(out: &mut String, name: &str, volume: &str, value: impl Display) {
    let _ = writeln!(out, "{name}{{volume=\"{volume}\"}} {value}");
}

/// Bucket `i` of ours ends at 2^(i+1) microseconds. The sum is not kept, so it is not shown.
fn buckets(out: &mut String, name: &str, labels: &str, counts: &[u64]) {
    let mut below = 0;
    let comma = if labels.is_empty() { "" } else { "," };
    for (power, count) in counts.iter().enumerate() {
        below += count;
        let seconds = (2u64 << power) as f64 / 1e6;
        let _ = writeln!(
            out,
            "{name}_bucket{{{labels}{comma}le=\"{seconds}\"}} {below}"
        );
    }
    let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {below}");
    let _ = match labels {
        "" => writeln!(out, "{name}_count {below}"),
        _ => writeln!(out, "{name}_count{{{labels}}} {below}"),
    };
}
