//! The result as one JSON document.
//!
//! Always true: keys end with their unit; shares are parts of one, and `null` of nothing; lists
//! over time have the end of each slot in seconds from the first request.

use super::Shown;
use crate::cli::trace::complaints;
use serde_json::{Value, json};
use workload::trace::analyze::blocks::BLOCK_BYTES;
use workload::trace::analyze::flow::{Mix, share};
use workload::trace::analyze::peaks::{Peak, Seen};
use workload::trace::analyze::rewrites::{INTERVALS_MS, Written};
use workload::trace::analyze::sizes::Sizes;

/// Paths that are named.
pub const PATHS: usize = 20;

pub fn document(shown: &Shown) -> Value {
    let report = &shown.report;
    let flow = &report.flow;
    let sources = shown.sources.iter();
    let traces: Vec<Value> = sources
        .map(|(name, format, found)| {
            json!({ "name": name, "format": format.name(), "not_understood": complaints(found) })
        })
        .collect();
    let sequentiality = &report.sequentiality;
    let mut document = json!({
        "traces": traces,
        "seconds": shown.seconds(),
        "lost": shown.lost,
        "images_without_disk": shown.images_without_disk,
    });
    extend(&mut document, mix(&flow.total));
    extend(
        &mut document,
        json!({
            "requests_per_second": per_second(flow.total.requests(), shown.seconds()),
            "flushes": flow.flushes,
            "discards": flow.discards,
            "discard_bytes": flow.discard_bytes,
            "block_bytes": BLOCK_BYTES,
            "blocks_looked_at_one_in": report.weight,
            "oversized_requests": report.oversized,
            "sequential_share": share(sequentiality.sequential, sequentiality.requests),
            "stream_share": share(sequentiality.in_streams, sequentiality.requests),
            "sizes": { "reads": sizes(&report.read_sizes), "writes": sizes(&report.write_sizes) },
            "peaks": peaks(shown, &report.peaks),
            "periods": peaks(shown, &report.periods),
            "reads_seen_before": seen(&report.seen),
            "rewrites": rewrites(shown),
            "divergence": divergence(shown),
            "working_set": working_set(shown),
            "miss_ratio": miss_ratio(shown),
            "categories": categories(shown),
            "durability": durability(shown),
            "paths": paths(shown),
            "disks": disks(shown),
            "over_time": over_time(shown),
        }),
    );
    if let Some(proposed) = &shown.proposed {
        extend(&mut document, json!({ "proposal": proposed.document }));
    }
    document
}

fn extend(document: &mut Value, more: Value) {
    if let (Value::Object(document), Value::Object(more)) = (document, more) {
        document.extend(more);
    }
}

pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn mix(mix: &Mix) -> Value {
    json!({
        "requests": mix.requests(),
        "reads": mix.reads,
        "writes": mix.writes,
        "read_bytes": mix.read_bytes,
        "write_bytes": mix.write_bytes,
        "write_share": mix.write_share(),
        "write_byte_share": mix.write_byte_share(),
    })
}

fn sizes(sizes: &Sizes) -> Value {
    let modes = sizes.modes(5).into_iter();
    let modes: Vec<Value> = modes
        .map(|(bytes, requests)| json!({ "bytes": bytes, "requests": requests }))
        .collect();
    let bars = sizes.histogram().into_iter();
    let histogram: Vec<Value> = bars
        .map(|bar| {
            json!({ "above_bytes": bar.above, "up_to_bytes": bar.up_to, "requests": bar.requests })
        })
        .collect();
    json!({ "mean_bytes": sizes.mean_bytes(), "modes": modes, "histogram": histogram })
}

fn seen(seen: &Seen) -> Value {
    json!({
        "by_disk": {
            "request_share": share(seen.disk_requests, seen.requests),
            "byte_share": share(seen.disk_bytes, seen.bytes),
        },
        "by_cluster": {
            "request_share": share(seen.cluster_requests, seen.requests),
            "byte_share": share(seen.cluster_bytes, seen.bytes),
        },
    })
}

fn peaks(shown: &Shown, peaks: &[Peak]) -> Vec<Value> {
    peaks.iter().map(|it| peak(shown, it)).collect()
}

fn peak(shown: &Shown, peak: &Peak) -> Value {
    let (start, end) = (seconds(peak.period.start_ns), seconds(peak.period.end_ns));
    let makers = peak.disks.iter();
    let makers: Vec<Value> = makers
        .map(|(disk, requests)| {
            let part = share(*requests, peak.total.mix.requests());
            json!({ "name": shown.disk(*disk), "requests": requests, "share": part })
        })
        .collect();
    let all = shown.categories.iter().zip(peak.categories);
    let mut categories: Vec<(&String, u64)> = all.filter(|it| it.1 > 0).collect();
    categories.sort_by_key(|it| std::cmp::Reverse(it.1));
    let categories: Vec<Value> = categories
        .into_iter()
        .map(|(name, requests)| json!({ "name": name, "requests": requests }))
        .collect();
    let mut document = json!({ "start_seconds": start, "end_seconds": end });
    extend(&mut document, mix(&peak.total.mix));
    let disks = shown.disks.all().len() as u64;
    extend(
        &mut document,
        json!({
            "requests_per_second": per_second(peak.total.mix.requests(), end - start),
            "disks_with_5_percent": peak.disks_with(5),
            "disks_with_5_percent_share": share(peak.disks_with(5) as u64, disks),
            "reads_seen_before": seen(&peak.total.seen),
            "disks": makers,
            "categories": categories,
        }),
    );
    document
}

fn rewrites(shown: &Shown) -> Value {
    let intervals = INTERVALS_MS.map(|ms| ms / 1000);
    let days = shown.report.rewrites.days.iter().enumerate();
    let days: Vec<Value> = days
        .map(|(at, day)| {
            let mut document = json!({ "day": at + 1 });
            extend(&mut document, written(day));
            document
        })
        .collect();
    let mut document = json!({ "interval_seconds": intervals });
    extend(&mut document, written(&shown.report.rewrites.total()));
    extend(&mut document, json!({ "days": days }));
    document
}

fn written(written: &Written) -> Value {
    let shares = written.again.map(|bytes| share(bytes, written.bytes));
    json!({
        "written_bytes": written.bytes,
        "rewritten_bytes": written.again,
        "rewritten_share": shares,
        "left_to_write_share": shares.map(|share| share.map(|share| 1.0 - share)),
    })
}

fn divergence(shown: &Shown) -> Value {
    let divergence = &shown.report.divergence;
    let disks = shown.disks.all().len();
    let points: Vec<Value> = divergence
        .spread(disks)
        .into_iter()
        .map(|point| {
            json!({
                "second": seconds(point.end_ns),
                "mean_bytes": point.mean,
                "least_bytes": point.least,
                "most_bytes": point.most,
            })
        })
        .collect();
    let by_category = divergence.categories().into_iter();
    let by_category: Vec<Value> = by_category
        .map(|(end_ns, bytes)| {
            let mut document = json!({ "second": seconds(end_ns) });
            for (name, bytes) in shown.categories.iter().zip(bytes) {
                extend(&mut document, json!({ format!("{name}_bytes"): bytes }));
            }
            document
        })
        .collect();
    json!({ "over_time": points, "categories_over_time": by_category })
}

fn working_set(shown: &Shown) -> Value {
    let set = &shown.report.working_set;
    let total = set.total();
    let over_time: Vec<Value> = set
        .over_time()
        .into_iter()
        .map(|(end_ns, set)| {
            json!({
                "second": seconds(end_ns),
                "read_bytes": set.read,
                "written_bytes": set.written,
                "any_bytes": set.any,
            })
        })
        .collect();
    json!({
        "read_bytes": total.read,
        "written_bytes": total.written,
        "any_bytes": total.any,
        "over_time": over_time,
    })
}

fn miss_ratio(shown: &Shown) -> Value {
    let curve = &shown.report.curve;
    let points = curve.points.iter();
    let points: Vec<Value> = points
        .map(|point| {
            let bytes = point.blocks.saturating_mul(BLOCK_BYTES);
            json!({ "cache_bytes": bytes, "miss_ratio": point.miss_ratio })
        })
        .collect();
    let bytes = |blocks: Option<u64>| blocks.map(|blocks| blocks.saturating_mul(BLOCK_BYTES));
    json!({
        "exact": curve.sample_rate == 1.0,
        "sample_rate": curve.sample_rate,
        "first_reads_share": curve.first_ratio,
        "median_reuse_distance_bytes": bytes(curve.median_distance),
        "p90_reuse_distance_bytes": bytes(curve.p90_distance),
        "points": points,
    })
}

fn categories(shown: &Shown) -> Vec<Value> {
    let divergence = shown.report.divergence.categories();
    let divergence = divergence.last().map_or([0; 16], |it| it.1);
    let categories = shown.report.categories().into_iter();
    categories
        .map(|(id, total)| {
            let mut document = json!({ "name": shown.category(id) });
            extend(&mut document, mix(&total));
            let bytes = divergence[usize::from(id.0)];
            extend(&mut document, json!({ "divergence_bytes": bytes }));
            document
        })
        .collect()
}

fn durability(shown: &Shown) -> Vec<Value> {
    let all = &shown.report.flow.total;
    let classes = shown.durability.iter();
    classes
        .map(|(name, mix)| {
            json!({
                "class": name,
                "writes": mix.writes,
                "write_bytes": mix.write_bytes,
                "share_of_writes": share(mix.writes, all.writes),
                "share_of_write_bytes": share(mix.write_bytes, all.write_bytes),
            })
        })
        .collect()
}

fn paths(shown: &Shown) -> Vec<Value> {
    let paths = shown.report.paths(PATHS).into_iter();
    paths
        .map(|(id, total)| {
            let mut document = json!({ "path": shown.paths.name(id) });
            extend(&mut document, mix(&total));
            document
        })
        .collect()
}

fn disks(shown: &Shown) -> Vec<Value> {
    let divergence = shown.report.divergence.by_disk(shown.disks.all().len());
    let names = shown.disks.all().iter().enumerate();
    names
        .map(|(at, name)| {
            let total = shown.report.flow.by_disk.get(at).copied();
            let mut document = json!({ "name": name });
            extend(&mut document, mix(&total.unwrap_or_default()));
            extend(&mut document, json!({ "divergence_bytes": divergence[at] }));
            document
        })
        .collect()
}

fn over_time(shown: &Shown) -> Value {
    let slots = &shown.report.flow.over_time;
    let width = slots.width_ns();
    let list = slots.all().iter().zip(1..);
    let list: Vec<Value> = list
        .map(|(slot, number)| {
            let mut document = json!({ "second": seconds(width.saturating_mul(number)) });
            extend(&mut document, mix(slot));
            document
        })
        .collect();
    json!({ "slot_seconds": seconds(width), "slots": list })
}
