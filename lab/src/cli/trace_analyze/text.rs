//! The result for a terminal: what matters, short.
//!
//! Always true: a figure that is a sample says so; sections without anything to say are left out.

use super::Shown;
use super::document::per_second;
use super::propose::Proposed;
use host::cli::output;
use host::config::units::{human_bytes, human_seconds};
use workload::trace::SECTOR_BYTES;
use workload::trace::analyze::blocks::BLOCK_BYTES;
use workload::trace::analyze::flow::{Mix, share};
use workload::trace::analyze::peaks::Peak;
use workload::trace::analyze::rewrites::{INTERVALS_MS, Written};
use workload::trace::analyze::sizes::Sizes;

/// More disks, days and paths are in the document only.
const ROWS: usize = 10;
/// The parts of the working set at which the miss ratio is shown, in percent.
const CACHE_PERCENTS: [u64; 6] = [1, 2, 5, 10, 25, 50];

pub fn text(shown: &Shown) -> String {
    let mut text = output::fields(&summary(shown));
    let report = &shown.report;
    let mut section = |title: &str, table: Option<String>| {
        if let Some(table) = table {
            text += &format!("\n{title}\n{table}");
        }
    };
    section("Busiest periods", peaks(shown, &report.peaks));
    section("Periods asked for", peaks(shown, &report.periods));
    section(
        "Written bytes that were written before within",
        rewrites(shown),
    );
    section(
        "Reads that miss in an LRU cache (writes fill it too)",
        misses(shown),
    );
    section("Name space", categories(shown));
    section("Writes by durability", durability(shown));
    section("Busiest files", paths(shown));
    section("Disks", disks(shown));
    section(
        "Proposed rules",
        shown.proposed.as_ref().map(Proposed::text),
    );
    text
}

pub fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(share) => format!("{:.1} %", share * 100.0),
    }
}

/// `x / y` of the same unit.
fn pair(first: Option<f64>, second: Option<f64>) -> String {
    match (first, second) {
        (Some(first), Some(second)) => {
            format!("{:.1} / {:.1} %", first * 100.0, second * 100.0)
        }
        _ => "-".to_owned(),
    }
}

/// By requests, by bytes.
fn both(mix: &Mix) -> String {
    pair(mix.write_share(), mix.write_byte_share())
}

/// A moment of the trace.
pub fn moment(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let seconds = seconds % 60;
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        days => format!("{days} d {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

pub fn summary(shown: &Shown) -> Vec<(&'static str, String)> {
    let report = &shown.report;
    let flow = &report.flow;
    let total = &flow.total;
    let rate = per_second(total.requests(), shown.seconds());
    let rate = rate.map_or("-".to_owned(), |rate| format!("{rate:.1} a second"));
    let set = report.working_set.total();
    let sequential = &report.sequentiality;
    let mut rows = vec![
        ("disks", shown.disks.all().len().to_string()),
        ("time", human_seconds(shown.seconds() as u64)),
        ("requests", format!("{}, {rate}", total.requests())),
        (
            "reads",
            count(total.reads, total.read_bytes, &report.read_sizes),
        ),
        (
            "writes",
            count(total.writes, total.write_bytes, &report.write_sizes),
        ),
        ("flushes", flow.flushes.to_string()),
        (
            "discards",
            format!("{}, {}", flow.discards, human_bytes(flow.discard_bytes)),
        ),
        (
            "writes' share",
            format!("{} of requests / bytes", both(total)),
        ),
        (
            "sequential",
            format!(
                "{} after the last request, {} in one of 32 streams",
                percent(share(sequential.sequential, sequential.requests)),
                percent(share(sequential.in_streams, sequential.requests))
            ),
        ),
        (
            "different blocks",
            format!(
                "{} ({} read, {} written)",
                human_bytes(set.any),
                human_bytes(set.read),
                human_bytes(set.written)
            ),
        ),
        ("reads seen before", seen(shown)),
        ("diverged", diverged(shown)),
    ];
    rows.extend(doubts(shown));
    rows
}

fn count(requests: u64, bytes: u64, sizes: &Sizes) -> String {
    let mut text = format!("{requests}, {}", human_bytes(bytes));
    if let Some(mean) = sizes.mean_bytes() {
        let modes = sizes.modes(3).into_iter();
        let modes: Vec<String> = modes.map(|(size, _)| human_bytes(size)).collect();
        text += &format!(
            "; {} each, most often {}",
            human_bytes(mean as u64),
            modes.join(", ")
        );
    }
    text
}

fn seen(shown: &Shown) -> String {
    let seen = &shown.report.seen;
    let of = |requests, bytes| pair(share(requests, seen.requests), share(bytes, seen.bytes));
    let mut text = format!(
        "{} by the same disk, of requests / bytes",
        of(seen.disk_requests, seen.disk_bytes)
    );
    if shown.disks.all().len() > 1 {
        let cluster = of(seen.cluster_requests, seen.cluster_bytes);
        text += &format!("; {cluster} by any, if all have one base");
    }
    text
}

fn diverged(shown: &Shown) -> String {
    let mut points = shown.report.divergence.spread(shown.disks.all().len());
    match points.pop() {
        None => "0 B".to_owned(),
        Some(last) if shown.disks.all().len() == 1 => human_bytes(last.most),
        Some(last) => format!(
            "{} a disk ({} to {})",
            human_bytes(last.mean as u64),
            human_bytes(last.least),
            human_bytes(last.most)
        ),
    }
}

/// What makes figures less sure.
fn doubts(shown: &Shown) -> Vec<(&'static str, String)> {
    let report = &shown.report;
    let mut rows = Vec::new();
    if report.weight > 1 {
        let how = format!(
            "of blocks: one place in {} was looked at; --memory gives room for more",
            report.weight
        );
        rows.push(("sample", how));
    }
    if report.oversized > 0 {
        let most = workload::trace::analyze::REQUEST_SECTORS_MAX;
        let most = human_bytes(u64::from(most) * SECTOR_BYTES);
        let how = format!(
            "{} of more than {most}: counted, blocks not",
            report.oversized
        );
        rows.push(("oversized", how));
    }
    if shown.lost > 0 {
        rows.push(("lost", format!("{} were not recorded", shown.lost)));
    }
    for disk in &shown.images_without_disk {
        let how = format!("of {disk}: no trace has a disk of that name");
        rows.push(("image", how));
    }
    for (name, _, found) in &shown.sources {
        if found.bad > 0 {
            let how = format!("{} of {name}; `trace info` names the first", found.bad);
            rows.push(("not understood", how));
        }
        if found.backwards > 0 {
            let how = format!(
                "{} of {name}: taken for those of that moment",
                found.backwards
            );
            rows.push(("back in time", how));
        }
        if found.cut {
            rows.push(("cut", format!("{name} ends in the middle")));
        }
    }
    rows
}

fn peaks(shown: &Shown, peaks: &[Peak]) -> Option<String> {
    let several = shown.disks.all().len() > 1;
    let head = peak_head(several);
    let rows: Vec<Vec<String>> = peaks.iter().map(|it| peak(shown, it, several)).collect();
    let right: Vec<usize> = (2..head.len()).collect();
    (!rows.is_empty()).then(|| output::table(&head, &rows, &right))
}

pub fn peak_head(several: bool) -> Vec<&'static str> {
    let mut head = vec!["FROM", "TO", "PER SECOND", "WRITES", "SEEN BEFORE"];
    if several {
        head.extend(["BY ANY", "DISKS >= 5 %"]);
    }
    head
}

pub fn peak(shown: &Shown, peak: &Peak, several: bool) -> Vec<String> {
    let (start, end) = (peak.period.start_ns, peak.period.end_ns);
    let rate = per_second(peak.total.mix.requests(), (end - start) as f64 / 1e9);
    let seen = &peak.total.seen;
    let of = |requests, bytes| pair(share(requests, seen.requests), share(bytes, seen.bytes));
    let mut row = vec![
        moment(start),
        moment(end),
        rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
        both(&peak.total.mix),
        of(seen.disk_requests, seen.disk_bytes),
    ];
    if several {
        row.push(of(seen.cluster_requests, seen.cluster_bytes));
        let busy = peak.disks_with(5);
        let part = share(busy as u64, shown.disks.all().len() as u64);
        row.push(format!("{busy} ({})", percent(part)));
    }
    row
}

fn rewrites(shown: &Shown) -> Option<String> {
    let rewrites = &shown.report.rewrites;
    let total = rewrites.total();
    let names = INTERVALS_MS.map(host::config::units::show_millis);
    let mut head = vec!["DAY", "WRITTEN"];
    head.extend(names.iter().map(String::as_str));
    let row = |name: String, written: &Written| {
        let mut row = vec![name, human_bytes(written.bytes)];
        row.extend(
            written
                .again
                .map(|bytes| percent(share(bytes, written.bytes))),
        );
        row
    };
    let mut rows = Vec::new();
    if rewrites.days.len() > 1 {
        let days = rewrites.days.iter().zip(1..).take(ROWS);
        rows.extend(days.map(|(day, number)| row(number.to_string(), day)));
    }
    rows.push(row("all".to_owned(), &total));
    let right: Vec<usize> = (1..head.len()).collect();
    (total.bytes > 0).then(|| output::table(&head, &rows, &right))
}

fn misses(shown: &Shown) -> Option<String> {
    let curve = &shown.report.curve;
    let any = shown.report.working_set.total().any / BLOCK_BYTES;
    let mut rows = Vec::new();
    for part in CACHE_PERCENTS {
        let blocks = any * part / 100;
        if let Some(ratio) = curve.at(blocks) {
            let size = human_bytes(blocks * BLOCK_BYTES);
            rows.push(vec![size, format!("{part} %"), percent(Some(ratio))]);
        }
    }
    let all = human_bytes(any * BLOCK_BYTES);
    rows.push(vec![
        all,
        "100 %".to_owned(),
        percent(Some(curve.first_ratio)),
    ]);
    let mut table = output::table(&["CACHE", "OF ALL BLOCKS", "MISSES"], &rows, &[0, 1, 2]);
    if curve.sample_rate < 1.0 {
        table += &format!(
            "from a sample of {} of the blocks; within 2 points on average\n",
            percent(Some(curve.sample_rate))
        );
    }
    (curve.points.len() > 1).then_some(table)
}

fn mixes(name: &str, rows: &[(String, Mix, Option<u64>)], all: u64) -> String {
    let with_divergence = rows.iter().any(|it| it.2.is_some());
    let mut head = vec![name, "REQUESTS", "OF ALL", "BYTES", "WRITES"];
    if with_divergence {
        head.push("DIVERGED");
    }
    let rows = rows.iter().map(|(name, mix, diverged)| {
        let mut row = vec![
            name.clone(),
            mix.requests().to_string(),
            percent(share(mix.requests(), all)),
            human_bytes(mix.bytes()),
            both(mix),
        ];
        row.extend(diverged.map(human_bytes));
        row
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let right: Vec<usize> = (1..head.len()).collect();
    output::table(&head, &rows, &right)
}

fn categories(shown: &Shown) -> Option<String> {
    let report = &shown.report;
    if report.by_path.is_empty() {
        return None;
    }
    let divergence = report.divergence.categories();
    let divergence = divergence.last().map_or([0; 16], |it| it.1);
    let rows = report.categories().into_iter().map(|(id, mix)| {
        let name = shown.category(id).to_owned();
        (name, mix, Some(divergence[usize::from(id.0)]))
    });
    let rows: Vec<_> = rows.collect();
    Some(mixes("CATEGORY", &rows, report.flow.total.requests()))
}

fn durability(shown: &Shown) -> Option<String> {
    let all = &shown.report.flow.total;
    let rows = shown.durability.iter().map(|(name, mix)| {
        vec![
            name.clone(),
            mix.writes.to_string(),
            percent(share(mix.writes, all.writes)),
            human_bytes(mix.write_bytes),
            percent(share(mix.write_bytes, all.write_bytes)),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let head = ["CLASS", "WRITES", "OF ALL", "BYTES", "OF ALL"];
    (!rows.is_empty()).then(|| output::table(&head, &rows, &[1, 2, 3, 4]))
}

fn paths(shown: &Shown) -> Option<String> {
    let report = &shown.report;
    let rows = report.paths(ROWS).into_iter();
    let rows = rows.map(|(id, mix)| (shown.paths.name(id).to_owned(), mix, None));
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then(|| mixes("FILE", &rows, report.flow.total.requests()))
}

fn disks(shown: &Shown) -> Option<String> {
    let names = shown.disks.all();
    if names.len() < 2 {
        return None;
    }
    let report = &shown.report;
    let divergence = report.divergence.by_disk(names.len());
    let mut rows: Vec<(String, Mix, Option<u64>)> = names
        .iter()
        .zip(divergence)
        .enumerate()
        .map(|(at, (name, diverged))| {
            let mix = report.flow.by_disk.get(at).copied();
            (name.clone(), mix.unwrap_or_default(), Some(diverged))
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.1.requests()));
    let more = rows.len().saturating_sub(ROWS);
    rows.truncate(ROWS);
    let mut table = mixes("DISK", &rows, report.flow.total.requests());
    if more > 0 {
        table += &format!("and {more} more\n");
    }
    Some(table)
}
