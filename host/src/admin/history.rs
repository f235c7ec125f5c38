//! How the daemon's figures went over the last day, for charts.
//!
//! Owns samples made of the differences between looks: of the host one a second for 10 minutes and
//! one in 10 s for a day, of each volume one in 5 s for 10 minutes and one in 5 min for a day.
//! Always true: memory is bounded, by 1 MiB for the host and 34 KiB for each of at most
//! [`VOLUMES_MAX`] volumes, which is reached after a day, and what the last look at each has
//! measured; times grow; what was not measured is
//! null. Nothing is kept over a restart. Deliberately absent: what an administrator may conclude.

use super::View;
use crate::error::{Error, Kind, Result};
use crate::latency::{self, ByPolicy, Latency};
use engine::snapshot::{Counters, Histogram, State, VolumeSnapshot};
use engine::types::{BLOCK_BYTES, Policy};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Volumes with a history of their own, at 34 KiB each; further ones count for the host only.
pub const VOLUMES_MAX: usize = 1024;
/// More than a chart has pixels; longer spans are told in coarser steps.
const POINTS_MAX: usize = 1440;
/// Up to here the fine samples are told, beyond it the coarse ones.
const FINE_SECONDS: u64 = 600;
pub const SECONDS_MAX: u64 = 24 * 3600;

/// How many samples become one: mean, or, of what a mean would hide, the largest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fold {
    Mean,
    Max,
}

/// What is kept of every volume, and in sum of the host. Names are part of the public interface.
const VOLUME_COLUMNS: [(&str, Fold); VOLUME_WIDTH] = [
    ("dirty_bytes", Fold::Mean),
    ("destage_bytes_per_second", Fold::Mean),
    ("reads_per_second", Fold::Mean),
    ("writes_per_second", Fold::Mean),
    ("flushes_per_second", Fold::Mean),
    ("read_bytes_per_second", Fold::Mean),
    ("write_bytes_per_second", Fold::Mean),
    ("ram_hits_per_second", Fold::Mean),
    ("ssd_hits_per_second", Fold::Mean),
    ("origin_hits_per_second", Fold::Mean),
    ("origin_reads_per_second", Fold::Mean),
    ("origin_writes_per_second", Fold::Mean),
    ("origin_p50_us", Fold::Mean),
    ("origin_p99_us", Fold::Max),
    ("read_p99_us", Fold::Max),
    ("write_p99_us", Fold::Max),
    ("flush_p99_us", Fold::Max),
    ("flow_delay_us", Fold::Max),
    ("waiting_requests", Fold::Max),
];
const VOLUME_WIDTH: usize = 19;
/// Reads, writes and flushes of guests follow it.
const ORIGIN_P99: usize = 13;
const DELAY: usize = 17;
type Values = [f32; VOLUME_WIDTH];

/// What is kept of the host alone.
const HOST_COLUMNS: [(&str, Fold); HOST_WIDTH - VOLUME_WIDTH] = [
    ("cache_used_bytes", Fold::Mean),
    ("cache_clean_bytes", Fold::Mean),
    ("ram_used_bytes", Fold::Mean),
    ("slowed_volumes", Fold::Max),
    ("troubled_volumes", Fold::Max),
];
const HOST_WIDTH: usize = VOLUME_WIDTH + 5;

/// One sample; a value that was not measured is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample<const N: usize> {
    unix_seconds: u32,
    values: [f32; N],
}

/// The newest samples, oldest first, in steps of so many seconds.
struct Ring<const N: usize> {
    step: u32,
    samples_max: usize,
    samples: Vec<Sample<N>>,
    /// Where the oldest lies once the ring is full.
    start: usize,
    folding: Folding<N>,
}

/// Samples of one step that has not ended.
struct Folding<const N: usize> {
    step: Option<u32>,
    values: [f32; N],
    counts: [u16; N],
}

impl<const N: usize> Folding<N> {
    const EMPTY: Folding<N> = Folding {
        step: None,
        values: [0.0; N],
        counts: [0; N],
    };

    fn add(&mut self, values: &[f32; N], folds: &[Fold; N]) {
        for (at, &value) in values.iter().enumerate() {
            if value.is_nan() {
                continue;
            }
            self.values[at] = match folds[at] {
                Fold::Mean => self.values[at] + value,
                Fold::Max => self.values[at].max(value),
            };
            self.counts[at] = self.counts[at].saturating_add(1);
        }
    }

    fn end(&mut self, folds: &[Fold; N]) -> [f32; N] {
        let done = std::mem::replace(self, Folding::EMPTY);
        std::array::from_fn(|at| match (done.counts[at], folds[at]) {
            (0, _) => f32::NAN,
            (_, Fold::Max) => done.values[at],
            (count, Fold::Mean) => done.values[at] / f32::from(count),
        })
    }
}

impl<const N: usize> Ring<N> {
    fn new(step: u32, samples_max: usize) -> Ring<N> {
        Ring {
            step,
            samples_max,
            samples: Vec::new(),
            start: 0,
            folding: Folding::EMPTY,
        }
    }

    fn add(&mut self, unix_seconds: u32, values: &[f32; N], folds: &[Fold; N]) {
        let step = unix_seconds / self.step;
        if let Some(ended) = self.folding.step.filter(|ended| *ended != step) {
            let values = self.folding.end(folds);
            self.push(ended * self.step, values);
        }
        self.folding.step = Some(step);
        self.folding.add(values, folds);
    }

    fn push(&mut self, unix_seconds: u32, values: [f32; N]) {
        let newest = self.oldest_first().next_back();
        if newest.is_some_and(|newest| newest.unix_seconds >= unix_seconds) {
            // The clock was set back: nothing that was lies in the future.
            let past = |old: &&Sample<N>| old.unix_seconds < unix_seconds;
            let past: Vec<Sample<N>> = self.oldest_first().filter(past).copied().collect();
            (self.samples, self.start) = (past, 0);
        }
        let sample = Sample {
            unix_seconds,
            values,
        };
        if self.samples.len() < self.samples_max {
            assert_eq!(self.start, 0, "only a full ring begins elsewhere");
            if self.samples.len() == self.samples.capacity() {
                // Doubling would take room that is never used.
                let more = (self.samples.len() / 4).clamp(8, self.samples_max);
                let more = more.min(self.samples_max - self.samples.len());
                self.samples.reserve_exact(more);
            }
            self.samples.push(sample);
            return;
        }
        self.samples[self.start] = sample;
        self.start = (self.start + 1) % self.samples_max;
    }

    fn newest(&self) -> Option<&Sample<N>> {
        self.oldest_first().next_back()
    }

    fn oldest_first(&self) -> impl DoubleEndedIterator<Item = &Sample<N>> {
        let (newer, older) = self.samples.split_at(self.start);
        older.iter().chain(newer)
    }
}

/// Fine and coarse samples of one thing.
struct Track<const N: usize> {
    fine: Ring<N>,
    coarse: Ring<N>,
}

impl<const N: usize> Track<N> {
    fn new(fine_step: u32, coarse_step: u32) -> Track<N> {
        let samples = |seconds: u64, step: u32| (seconds / u64::from(step)) as usize;
        Track {
            fine: Ring::new(fine_step, samples(FINE_SECONDS, fine_step)),
            coarse: Ring::new(coarse_step, samples(SECONDS_MAX, coarse_step)),
        }
    }

    fn add(&mut self, unix_seconds: u32, values: &[f32; N], folds: &[Fold; N]) {
        self.fine.add(unix_seconds, values, folds);
        self.coarse.add(unix_seconds, values, folds);
    }

    /// The newest samples of so many seconds, by columns.
    fn document(&self, seconds: u64, columns: &[(&'static str, Fold)]) -> Value {
        let ring = match seconds <= FINE_SECONDS {
            true => &self.fine,
            false => &self.coarse,
        };
        let newest = ring.oldest_first().next_back();
        let newest = newest.map_or(0, |sample| u64::from(sample.unix_seconds));
        let since = (newest + u64::from(ring.step)).saturating_sub(seconds);
        let samples = ring.oldest_first();
        let samples: Vec<&Sample<N>> = samples
            .filter(|sample| u64::from(sample.unix_seconds) >= since)
            .collect();
        let folds: [Fold; N] = std::array::from_fn(|at| columns[at].1);
        let merged = samples.len().div_ceil(POINTS_MAX).max(1);
        let groups: Vec<Sample<N>> = samples
            .chunks(merged)
            .map(|group| merge(group, &folds))
            .collect();
        let mut document = Map::new();
        let times = groups.iter().map(|sample| json!(sample.unix_seconds));
        document.insert("time".into(), times.collect());
        for (at, (name, _)) in columns.iter().enumerate() {
            let values = groups.iter().map(|sample| number(sample.values[at]));
            document.insert((*name).into(), values.collect());
        }
        json!({
            "step_seconds": ring.step as usize * merged,
            "columns": document,
        })
    }
}

fn merge<const N: usize>(group: &[&Sample<N>], folds: &[Fold; N]) -> Sample<N> {
    let mut folding = Folding::EMPTY;
    for sample in group {
        folding.add(&sample.values, folds);
    }
    Sample {
        unix_seconds: group[0].unix_seconds,
        values: folding.end(folds),
    }
}

/// With no more digits than mean something.
fn number(value: f32) -> Value {
    match value {
        _ if value.is_nan() => Value::Null,
        _ if value.fract() == 0.0 || value >= 100.0 => json!(value.round() as u64),
        _ => json!((f64::from(value) * 100.0).round() / 100.0),
    }
}

struct VolumeTrack {
    before: Counters,
    measured: Option<Latency>,
    /// The look in which it was last seen.
    seen: u64,
    /// None of those beyond the bound.
    track: Option<Track<VOLUME_WIDTH>>,
}

struct Kept {
    host: Track<HOST_WIDTH>,
    /// Of all volumes since the start, also of those that are gone: counts that only grow.
    guests: ByPolicy,
    origin: Histogram,
    volumes: BTreeMap<String, VolumeTrack>,
    looks: u64,
}

pub struct History {
    /// A mutex, not a message: held to add a look or to copy columns, by the administrator's side
    /// only.
    kept: Mutex<Kept>,
}

impl Default for History {
    fn default() -> History {
        History {
            kept: Mutex::new(Kept {
                host: Track::new(1, 10),
                guests: ByPolicy::default(),
                origin: Histogram::default(),
                volumes: BTreeMap::new(),
                looks: 0,
            }),
        }
    }
}

/// Latencies of a volume in the last seconds; `None` where there was no request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recent {
    pub read_p99_seconds: Option<f64>,
    pub write_p99_seconds: Option<f64>,
    pub flush_p99_seconds: Option<f64>,
    pub origin_p99_seconds: Option<f64>,
}

/// What a look adds, in counts since the look before.
#[derive(Default)]
struct Sum {
    rates: [f64; 11],
    origin: Histogram,
    /// Of guests; what policies have in common is no figure.
    guests: ByPolicy,
}

impl Sum {
    fn between(volume: &VolumeSnapshot, before: &Counters) -> Sum {
        let now = &volume.counters;
        let past = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let (reads, were) = (&now.reads, &before.reads);
        let destaged = match volume.policy {
            Policy::WriteBack => past(now.origin.write_bytes, before.origin.write_bytes),
            // What passes the log on its way to the origin is no destage.
            Policy::Uncached | Policy::WriteThrough | Policy::Ephemeral => 0.0,
        };
        Sum {
            rates: [
                destaged,
                past(reads.requests, were.requests),
                past(now.writes.requests, before.writes.requests),
                past(now.flushes, before.flushes),
                past(reads.bytes, were.bytes),
                past(now.writes.bytes, before.writes.bytes),
                past(reads.ram_hits, were.ram_hits),
                past(reads.ssd_hits, were.ssd_hits),
                past(reads.origin, were.origin),
                past(now.origin.reads, before.origin.reads),
                past(now.origin.writes, before.origin.writes),
            ],
            origin: newer(&now.origin.latency, &before.origin.latency),
            guests: ByPolicy::default(),
        }
    }

    fn add(&mut self, other: &Sum, guests: Option<&Latency>) {
        for (sum, rate) in self.rates.iter_mut().zip(other.rates) {
            *sum += rate;
        }
        self.origin.add(&other.origin);
        if let Some(guests) = guests {
            self.guests.add(guests);
        }
    }

    /// All columns of a volume, from the rates and what is a state and no rate.
    fn values(&self, seconds: f64, dirty_bytes: u64, delay_ns: u64, waiting: u64) -> Values {
        let mut values = [f32::NAN; VOLUME_WIDTH];
        values[0] = dirty_bytes as f32;
        for (value, rate) in values[1..].iter_mut().zip(self.rates) {
            *value = (rate / seconds) as f32;
        }
        let quantiles = [
            self.origin.quantile_us(500).map(|us| us as f64),
            self.origin.quantile_us(990).map(|us| us as f64),
            self.guests.slowest_us(latency::Kind::Read, 990),
            self.guests.slowest_us(latency::Kind::Write, 990),
            self.guests.slowest_us(latency::Kind::Flush, 990),
        ];
        for (value, quantile) in values[12..].iter_mut().zip(quantiles) {
            *value = quantile.map_or(f32::NAN, |micros| micros as f32);
        }
        values[DELAY] = (delay_ns / 1000) as f32;
        values[DELAY + 1] = waiting as f32;
        values
    }
}

fn newer(now: &Histogram, before: &Histogram) -> Histogram {
    let past = |at: usize| now.counts[at].saturating_sub(before.counts[at]);
    Histogram {
        counts: std::array::from_fn(past),
    }
}

const VOLUME_FOLDS: [Fold; VOLUME_WIDTH] = {
    let mut folds = [Fold::Mean; VOLUME_WIDTH];
    let mut at = 0;
    while at < VOLUME_WIDTH {
        folds[at] = VOLUME_COLUMNS[at].1;
        at += 1;
    }
    folds
};

fn host_columns() -> [(&'static str, Fold); HOST_WIDTH] {
    std::array::from_fn(|at| match at.checked_sub(VOLUME_WIDTH) {
        None => VOLUME_COLUMNS[at],
        Some(at) => HOST_COLUMNS[at],
    })
}

impl History {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a look that comes so long after the one before. The first one of a volume is only
    /// remembered: there is nothing to compare it with.
    pub fn add(&self, view: &View, unix_seconds: u32, seconds: f64) {
        assert!(seconds > 0.0, "looks are some time apart");
        let mut kept = self.kept();
        let Kept {
            host,
            volumes,
            looks,
            guests,
            origin,
        } = &mut *kept;
        *looks += 1;
        let mut all = Sum::default();
        let (mut dirty, mut delay, mut waiting) = (0, 0, 0);
        let (mut slowed, mut troubled) = (0, 0);
        for volume in view.shown() {
            if volume.policy != Policy::Ephemeral {
                // An overlay is owed to nobody.
                dirty += volume.dirty_bytes;
            }
            delay = delay.max(volume.flow.delay_ns);
            waiting += volume.waiting_requests;
            slowed += u32::from(volume.flow.active);
            troubled += u32::from(!matches!(volume.state, State::Clean | State::Dirty));
            let Some(known) = volumes.get_mut(&volume.name) else {
                let measured = view.look.latency.get(&volume.id).cloned();
                if let Some(measured) = &measured {
                    guests.add(measured);
                }
                origin.add(&volume.counters.origin.latency);
                let within = volumes.len() < VOLUMES_MAX;
                let known = VolumeTrack::new(volume, measured, *looks, within);
                volumes.insert(volume.name.clone(), known);
                continue;
            };
            let measured = view.look.latency.get(&volume.id);
            let newer = measured.map(|now| now.since(known.measured.as_ref()));
            let mut sum = Sum::between(volume, &known.before);
            all.add(&sum, newer.as_ref());
            if let Some(newer) = &newer {
                sum.guests.add(newer);
                guests.add(newer);
            }
            origin.add(&sum.origin);
            (known.before, known.seen) = (volume.counters, *looks);
            known.measured = measured.cloned();
            if let Some(track) = &mut known.track {
                let waits = volume.waiting_requests;
                let values = sum.values(seconds, volume.dirty_bytes, volume.flow.delay_ns, waits);
                track.add(unix_seconds, &values, &VOLUME_FOLDS);
            }
        }
        volumes.retain(|_, known| known.seen == *looks);
        let shared = all.values(seconds, dirty, delay, waiting);
        let engine = &view.look.engine;
        let own = [
            engine.live_bytes as f32,
            (engine.lines.blocks * BLOCK_BYTES) as f32,
            (engine.ram_blocks_used * BLOCK_BYTES) as f32,
            slowed as f32,
            troubled as f32,
        ];
        let values = std::array::from_fn(|at| match at.checked_sub(VOLUME_WIDTH) {
            None => shared[at],
            Some(at) => own[at],
        });
        host.add(unix_seconds, &values, &host_columns().map(|(_, fold)| fold));
    }

    /// The last sample of a volume; `None` where it has none.
    pub fn recent(&self, volume: &str) -> Option<Recent> {
        let kept = self.kept();
        let track = kept.volumes.get(volume)?.track.as_ref()?;
        let values = &track.fine.newest()?.values;
        let seconds = |at: usize| {
            let micros = f64::from(values[at]);
            (!micros.is_nan()).then_some(micros.round() / 1e6)
        };
        Some(Recent {
            origin_p99_seconds: seconds(ORIGIN_P99),
            read_p99_seconds: seconds(ORIGIN_P99 + 1),
            write_p99_seconds: seconds(ORIGIN_P99 + 2),
            flush_p99_seconds: seconds(ORIGIN_P99 + 3),
        })
    }

    /// Of all requests since the start: those of guests, and those at origins.
    pub fn latencies(&self) -> (ByPolicy, Histogram) {
        let kept = self.kept();
        (kept.guests.clone(), kept.origin)
    }

    /// The last seconds of the host or of a volume.
    pub fn document(&self, volume: Option<&str>, seconds: u64) -> Result<Value> {
        if seconds == 0 || seconds > SECONDS_MAX {
            return Err(Error::usage(format!(
                "seconds: {seconds} is not kept; write 1 to {SECONDS_MAX}"
            )));
        }
        let kept = self.kept();
        let mut document = match volume {
            None => kept.host.document(seconds, &host_columns()),
            Some(name) => {
                let known = kept.volumes.get(name);
                let track = known.and_then(|known| known.track.as_ref());
                let track = track.ok_or_else(|| no_history(name))?;
                track.document(seconds, &VOLUME_COLUMNS)
            }
        };
        document["volume"] = json!(volume);
        Ok(document)
    }
}

impl VolumeTrack {
    fn new(
        volume: &VolumeSnapshot,
        measured: Option<Latency>,
        look: u64,
        within: bool,
    ) -> VolumeTrack {
        VolumeTrack {
            before: volume.counters,
            measured,
            seen: look,
            track: within.then(|| Track::new(5, 300)),
        }
    }
}

fn no_history(name: &str) -> Error {
    let message = format!(
        "volume {name}: has no history; it is not there, or was attached after {VOLUMES_MAX} others"
    );
    Error::new(Kind::NotFound, message).about(name)
}
