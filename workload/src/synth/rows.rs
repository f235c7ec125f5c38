//! What was published beside what was measured.
//!
//! Owns which figures a pattern is held against. Always true: a row stands only where the trace
//! covers what it speaks of; totals are scaled with desktops and intensity. Deliberately absent:
//! how they are measured.

use super::parameters::{Parameters, Pattern};
use super::published::{
    BOOT_BLOCKS, BOOT_READS, BOOT_WRITES, DAY_S, DESKTOPS, DIVERGED_BYTES, HEAVY, KNOWLEDGE,
    LARGE_READS_SEQUENTIAL, LARGE_WRITES_SEQUENTIAL, LARGE_WRITES_STRETCHES, LOGIN, PEAKS, Period,
    Phase, SECOND_NS, SMALL_READS_SEQUENTIAL, SMALL_WRITES_SEQUENTIAL, SMALL_WRITES_STRETCHES,
    TASK, WEEK_S, WEEK_WRITE_BYTES, WEEK_WRITES,
};
use super::statistics::{OfDesktop, Peak, Statistics, share};
use crate::trace::Names;

/// Measured figures are within so much of the published ones.
pub const DEVIATION_MAX: f64 = 0.10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Share,
    Requests,
    RequestsPerSecond,
    Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    pub unit: Unit,
    /// Published: one figure, or a range.
    pub low: f64,
    pub high: f64,
    pub measured: f64,
}

impl Row {
    /// From the nearer end of what was published; negative below it.
    pub fn deviation(&self) -> f64 {
        let nearest = self.measured.clamp(self.low, self.high);
        (self.measured - nearest) / nearest
    }

    pub fn is_near(&self) -> bool {
        self.deviation().abs() <= DEVIATION_MAX
    }
}

struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, name: impl Into<String>, unit: Unit, published: f64, measured: f64) {
        self.range(name, unit, (published, published), measured);
    }

    fn range(
        &mut self,
        name: impl Into<String>,
        unit: Unit,
        (low, high): (f64, f64),
        measured: f64,
    ) {
        self.0.push(Row {
            name: name.into(),
            unit,
            low,
            high,
            measured,
        });
    }
}

/// All that can be said of a trace of these parameters, whose [`Statistics::finish`] was called.
pub fn rows(parameters: &Parameters, statistics: &Statistics, disks: &Names) -> Vec<Row> {
    let mut rows = Rows(Vec::new());
    match parameters.pattern {
        Pattern::Desktops => office(&mut rows, parameters, statistics),
        Pattern::Boot => boots(&mut rows, statistics),
        Pattern::Login => {
            let seconds = statistics.desktops.iter();
            let seconds: f64 = seconds.map(span_s).sum();
            let requests = statistics.totals.requests() as f64 / parameters.intensity;
            let range = (LOGIN.low, LOGIN.high);
            let unit = Unit::RequestsPerSecond;
            rows.range("desktop, while it logs in", unit, range, requests / seconds);
            phase(&mut rows, &LOGIN, statistics);
        }
        Pattern::Office | Pattern::Heavy | Pattern::Mixed => {
            steady(&mut rows, parameters, statistics, disks);
        }
    }
    rows.0
}

fn span_s(desktop: &OfDesktop) -> f64 {
    (desktop.last_ns - desktop.first_ns) as f64 / SECOND_NS as f64
}

fn office(rows: &mut Rows, parameters: &Parameters, statistics: &Statistics) {
    let end_ns = parameters.from_ns + parameters.duration_ns;
    let from_start = parameters.from_ns == 0;
    if from_start && end_ns == WEEK_S * SECOND_NS {
        week(rows, statistics);
    }
    if from_start && end_ns >= DAY_S * SECOND_NS {
        let desktops = statistics.desktops.iter();
        let blocks: u64 = desktops.map(|desktop| desktop.diverged_in_a_day).sum();
        let bytes = blocks as f64 * 4096.0 / f64::from(parameters.desktops);
        let published = DIVERGED_BYTES * parameters.intensity;
        rows.add(
            "diverged in a day, each desktop",
            Unit::Bytes,
            published,
            bytes,
        );
    }
    for (period, measured) in PEAKS.iter().zip(&statistics.peaks) {
        if from_start && period.from_ns + period.duration_ns <= end_ns {
            peak(rows, parameters, period, measured);
        }
    }
}

fn week(rows: &mut Rows, statistics: &Statistics) {
    let totals = &statistics.totals;
    let written = totals.write_bytes;
    let rewritten = statistics.rewritten.map(|bytes| share(bytes, written));
    let unit = Unit::Share;
    rows.add(
        "writes, of requests",
        unit,
        WEEK_WRITES,
        totals.write_requests_share(),
    );
    rows.add(
        "writes, of bytes",
        unit,
        WEEK_WRITE_BYTES,
        totals.write_bytes_share(),
    );
    rows.add(
        "rewritten within 10 s, of bytes written",
        unit,
        0.08,
        rewritten[0],
    );
    rows.range("rewritten within 10 min", unit, (0.20, 0.30), rewritten[1]);
    rows.range("rewritten within 24 h", unit, (0.50, 0.55), rewritten[2]);
    placement(rows, statistics);
    let page_file = share(statistics.page_file_bytes, written);
    rows.range("page file, of bytes written", unit, (0.09, 0.10), page_file);
    // Disks are laid over each other: of fewer desktops the same image shows less of its rest.
    if statistics.desktops.len() != DESKTOPS as usize {
        return;
    }
    let [busy, next, rest] = statistics.locality();
    rows.add("requests to the busiest 5 % of space", unit, 0.95, busy);
    rows.add("to the next 10 %", unit, 0.04, next);
    rows.add("to the rest", unit, 0.01, rest);
}

/// Where requests lie, by their size.
fn placement(rows: &mut Rows, statistics: &Statistics) {
    let [reads, writes] = &statistics.placement;
    for (name, published, of) in [
        (
            "small writes, sequential",
            SMALL_WRITES_SEQUENTIAL,
            writes[0],
        ),
        (
            "large writes, sequential",
            LARGE_WRITES_SEQUENTIAL,
            writes[1],
        ),
        ("small reads, sequential", SMALL_READS_SEQUENTIAL, reads[0]),
        ("large reads, sequential", LARGE_READS_SEQUENTIAL, reads[1]),
    ] {
        let measured = share(of.sequential, of.requests);
        rows.range(name, Unit::Share, published, measured);
    }
    for (name, published, of) in [
        (
            "stretches of 10 min, of small writes",
            SMALL_WRITES_STRETCHES,
            writes[0],
        ),
        (
            "stretches of 10 min, of large writes",
            LARGE_WRITES_STRETCHES,
            writes[1],
        ),
    ] {
        let measured = share(of.stretches, of.requests);
        rows.range(name, Unit::Share, published, measured);
    }
}

fn peak(rows: &mut Rows, parameters: &Parameters, period: &Period, measured: &Peak) {
    let scale = f64::from(parameters.desktops) / f64::from(DESKTOPS) * parameters.intensity;
    let totals = &measured.totals;
    let mut add = |what: &str, unit, published, measured| {
        rows.add(
            format!("{}: {what}", period.name),
            unit,
            published,
            measured,
        );
    };
    let requests = period.requests as f64 * scale;
    add(
        "requests",
        Unit::Requests,
        requests,
        totals.requests() as f64,
    );
    let most = period.requests_per_second_max as f64 * scale;
    let greatest = measured.requests_per_second_max as f64;
    add("most in a second", Unit::Requests, most, greatest);
    let most = period.passing_per_second_max as f64 * scale;
    let greatest = measured.passing_per_second_max as f64;
    add("most that pass a cache", Unit::Requests, most, greatest);
    let unit = Unit::Share;
    add(
        "writes, of requests",
        unit,
        period.write_requests,
        totals.write_requests_share(),
    );
    add(
        "writes, of bytes",
        unit,
        period.write_bytes,
        totals.write_bytes_share(),
    );
    add(
        "desktops with 5 % of it",
        unit,
        period.heavy_desktops,
        measured.heavy_desktops,
    );
    let by_desktop = share(measured.seen_by_desktop, totals.reads);
    add(
        "reads seen by the desktop",
        unit,
        period.seen_by_desktop,
        by_desktop,
    );
    let by_cluster = share(measured.seen_by_cluster, totals.reads);
    add(
        "reads seen by the cluster",
        unit,
        period.seen_by_cluster,
        by_cluster,
    );
}

fn boots(rows: &mut Rows, statistics: &Statistics) {
    let started = statistics.desktops.iter();
    let started = started
        .filter(|desktop| desktop.totals.reads > 0)
        .count()
        .max(1) as f64;
    let totals = &statistics.totals;
    let reads = totals.reads as f64 / started;
    rows.add("reads of a boot", Unit::Requests, BOOT_READS as f64, reads);
    let bytes = (BOOT_BLOCKS * 4096) as f64;
    rows.add(
        "bytes read",
        Unit::Bytes,
        bytes,
        totals.read_bytes as f64 / started,
    );
    rows.add(
        "writes, of requests",
        Unit::Share,
        BOOT_WRITES,
        totals.write_requests_share(),
    );
}

/// Shares and sizes of a phase.
fn phase(rows: &mut Rows, phase: &Phase, statistics: &Statistics) {
    let totals = &statistics.totals;
    rows.add(
        "writes, of requests",
        Unit::Share,
        phase.writes,
        totals.write_requests_share(),
    );
    let mean = |bytes: u64, requests: u64| bytes as f64 / (requests as f64).max(1.0);
    let read = mean(totals.read_bytes, totals.reads);
    rows.add("bytes of a read", Unit::Bytes, phase.read_bytes, read);
    let written = mean(totals.write_bytes, totals.writes);
    rows.add("bytes of a write", Unit::Bytes, phase.write_bytes, written);
}

fn steady(rows: &mut Rows, parameters: &Parameters, statistics: &Statistics, disks: &Names) {
    let seconds = parameters.duration_ns as f64 / SECOND_NS as f64 * parameters.intensity;
    for (kind, published) in [("task", TASK), ("knowledge", KNOWLEDGE), ("heavy", HEAVY)] {
        let of_kind = disks.all().iter().zip(&statistics.desktops);
        let of_kind = of_kind.filter(|(name, _)| name.starts_with(kind));
        let (mut count, mut requests) = (0, 0);
        for (_, desktop) in of_kind {
            count += 1;
            requests += desktop.totals.requests();
        }
        if count > 0 {
            let rate = requests as f64 / f64::from(count) / seconds;
            let range = (published.low, published.high);
            let unit = Unit::RequestsPerSecond;
            rows.range(format!("{kind} worker"), unit, range, rate);
        }
    }
    phase(rows, &HEAVY, statistics);
    let written = statistics.totals.write_bytes;
    let rewritten = statistics.rewritten.map(|bytes| share(bytes, written));
    let unit = Unit::Share;
    rows.add(
        "rewritten within 10 s, of bytes written",
        unit,
        0.08,
        rewritten[0],
    );
    if seconds >= 3600.0 {
        rows.range("rewritten within 10 min", unit, (0.20, 0.30), rewritten[1]);
    }
}
