//! What each volume would get of RAM, SSD and log if the host were divided by what they gain.
//!
//! ```text
//! reads of guests ─ sampled ─▶ curves, one for each layer ─┐
//! bytes written ───────────────────────────────────────────┼─▶ [`advise`] ─▶ parts, with reasons
//! sizes of the tiers, weights, policies ───────────────────┘        └─▶ weight of `share = "auto"`
//! ```
//!
//! The tiers are not divided: what is read most is in them, of any volume. So the parts of RAM and
//! SSD are what that comes to when it is done as well as can be, and tell who needs what; the part
//! of the log is what a volume may owe, by its rate of writing and its age limit. Always true: the
//! parts of a tier sum to no more than it has; a figure that was not measured is null; a volume
//! that gains nothing is named, with why. Deliberately absent: policies are never changed; reads
//! that find dirty data or an overlay are not in the curves, because no tier of clean blocks has a
//! part in them.

pub mod curves;
pub mod divide;
#[cfg(test)]
mod tests;

use crate::config::units::human_bytes;
use curves::{Demand, Figures};
use divide::{Point, by_gain, by_weight, hits_at};
use engine::types::{BLOCK_BYTES, Policy, VolumeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Fewer reads of blocks say nothing of a curve.
const BLOCKS_MIN: f64 = 1000.0;
/// Less of the reads than this is no gain.
const GAIN_MIN: f64 = 0.02;
/// A cache is called large enough that has so much of what could be had.
const ENOUGH: f64 = 0.9;
/// Bytes a second that are no load.
const WRITES_MIN: f64 = 1024.0;
/// What is never destaged for its age is planned for this time.
const NEVER: Duration = Duration::from_secs(3600);
/// The weights that `share = "auto"` gives.
const WEIGHTS: (f64, f64) = (10.0, 1000.0);
const WEIGHT_OF_THE_MEAN: f64 = 100.0;
/// The sizes of a tier that are compared, in halves of what it has.
const SIZES: [u64; 4] = [1, 2, 4, 8];

/// A volume, as far as it is known beside its reads.
#[derive(Clone, Debug)]
pub struct Known {
    pub id: VolumeId,
    pub name: String,
    pub policy: Policy,
    pub weight: u32,
    /// Age at which dirty data leaves; `None`: never.
    pub destage_after: Option<Duration>,
}

/// What the host has.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub ram_bytes: u64,
    /// Of the cache device, what clean blocks may have.
    pub ssd_bytes: u64,
    pub dirty_bytes: u64,
}

/// Of a tier: its share of all reads, by its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub bytes: u64,
    pub hit_ratio: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct VolumeAdvice {
    pub name: String,
    pub policy: Policy,
    pub read_bytes_per_second: f64,
    pub write_bytes_per_second: f64,
    /// Of its reads, what a cache of any size would have; null where too few were seen.
    pub again_ratio: Option<f64>,
    /// Of its reads, what the parts below have.
    pub hit_ratio: Option<f64>,
    pub ram_bytes: u64,
    pub ssd_bytes: u64,
    /// Of both, what it has in common with other volumes.
    pub shared_bytes: u64,
    pub dirty_bytes: u64,
    pub weight: u32,
    /// Whether the cache is good for anything here; null where that is not known.
    pub gains: Option<bool>,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Time that the figures are of; older ones count for less.
    pub seconds: f64,
    pub lost: u64,
    pub ram: Vec<Size>,
    /// With the RAM that there is.
    pub ssd: Vec<Size>,
    pub volumes: Vec<VolumeAdvice>,
}

/// What a volume has of its layers.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    reads: f64,
    again: f64,
    hits: f64,
    ram: f64,
    both: f64,
    shared: f64,
    /// Blocks for all that is read again.
    wanted: f64,
}

/// All demands, and what each has of the two tiers.
struct Divided {
    demands: Vec<Demand>,
    weighted: Vec<Vec<Point>>,
    ram: Vec<u64>,
    both: Vec<u64>,
}

fn blocks(bytes: u64) -> u64 {
    bytes / BLOCK_BYTES
}

/// Curves with the weights of who reads: the mean, by what each reads.
fn weighted(demands: &[Demand], volumes: &[Known]) -> Vec<Vec<Point>> {
    let weights = volumes.iter();
    let weights = weights.map(|known| (known.id, f64::from(known.weight)));
    let weights: BTreeMap<VolumeId, f64> = weights.collect();
    let weight_of = |id: VolumeId| weights.get(&id).copied().unwrap_or(WEIGHT_OF_THE_MEAN);
    let curves = demands.iter().map(|demand| {
        let all: f64 = demand.readers.iter().map(|(_, rate)| rate).sum();
        let sum = demand.readers.iter();
        let sum: f64 = sum.map(|(id, rate)| rate * weight_of(*id)).sum();
        let weight = if all > 0.0 { sum / all } else { 0.0 };
        let weigh = |point: &Point| Point {
            hits: point.hits * weight,
            ..*point
        };
        demand.curve.iter().map(weigh).collect()
    });
    curves.collect()
}

impl Divided {
    fn of(demands: Vec<Demand>, volumes: &[Known], sizes: Sizes) -> Divided {
        let weighted = weighted(&demands, volumes);
        let ram = by_gain(&weighted, blocks(sizes.ram_bytes));
        let all = blocks(sizes.ram_bytes).saturating_add(blocks(sizes.ssd_bytes));
        Divided {
            ram,
            both: by_gain(&weighted, all),
            demands,
            weighted,
        }
    }

    fn parts(&self, id: VolumeId) -> Parts {
        let mut parts = Parts::default();
        for (at, demand) in self.demands.iter().enumerate() {
            let all: f64 = demand.readers.iter().map(|(_, rate)| rate).sum();
            let own = demand.readers.iter().find(|(reader, _)| *reader == id);
            let Some((_, rate)) = own.filter(|(_, rate)| *rate > 0.0) else {
                continue;
            };
            let part = rate / all;
            let last = demand.curve.last();
            let (ram, both) = (self.ram[at], self.both[at].max(self.ram[at]));
            parts.reads += rate;
            parts.again += last.map_or(0.0, |point| point.hits) * part;
            parts.hits += hits_at(&demand.curve, both) * part;
            parts.ram += ram as f64 * part;
            parts.both += both as f64 * part;
            parts.wanted += enough(&demand.curve) as f64 * part;
            if demand.readers.len() > 1 {
                parts.shared += both as f64 * part;
            }
        }
        parts
    }

    /// Of all reads, what so many blocks have.
    fn hit_ratio(&self, capacity: u64) -> Option<f64> {
        let parts = by_gain(&self.weighted, capacity);
        let readers = self.demands.iter().flat_map(|demand| &demand.readers);
        let all: f64 = readers.map(|(_, rate)| rate).sum();
        let hits = self.demands.iter().zip(parts);
        let hits: f64 = hits.map(|(of, part)| hits_at(&of.curve, part)).sum();
        (all > 0.0).then(|| (hits / all).clamp(0.0, 1.0))
    }
}

/// Blocks with which a curve has enough of what it can have.
fn enough(curve: &[Point]) -> u64 {
    let all = curve.last().map_or(0.0, |point| point.hits);
    let found = curve.iter().find(|point| point.hits >= all * ENOUGH);
    found.map_or(0, |point| point.blocks)
}

/// What a volume may owe: what it writes until its oldest data has to leave.
fn dirty_need(known: &Known, write_rate: f64) -> u64 {
    let holds = matches!(known.policy, Policy::WriteBack);
    let seconds = known.destage_after.unwrap_or(NEVER).as_secs_f64();
    match holds {
        true => (write_rate * seconds) as u64,
        false => 0,
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

/// Whether the cache is good for a volume, and why.
fn judge(known: &Known, parts: &Parts, write_rate: f64, seconds: f64) -> (Option<bool>, String) {
    let holds = matches!(known.policy, Policy::WriteBack | Policy::Ephemeral);
    let writes = write_rate >= WRITES_MIN;
    if known.policy == Policy::Uncached {
        let words = "uncached: nothing is held or kept for it, and its reads are not looked at";
        return (None, words.into());
    }
    if parts.reads * seconds < BLOCKS_MIN {
        return match holds && writes {
            true => (Some(true), "reads little; its writes are held".into()),
            false => (None, "too little was read or written to say".into()),
        };
    }
    let again = parts.again / parts.reads;
    if again < GAIN_MIN {
        let read = format!("{} of what it reads was read before", percent(again));
        return match holds && writes {
            true => (Some(true), format!("its writes are held; {read}")),
            false => {
                let words = "gains nothing; policy = \"uncached\" leaves the cache to others";
                (Some(false), format!("{words}: {read}"))
            }
        };
    }
    let hits = parts.hits / parts.reads;
    let words = match hits >= again * ENOUGH {
        true => format!("what it reads again fits: {} of its reads", percent(hits)),
        false => {
            let more = (parts.wanted - parts.both).max(1.0) * BLOCK_BYTES as f64;
            format!(
                "{} more would have {} of its reads instead of {}",
                human_bytes(more as u64),
                percent(again * ENOUGH),
                percent(hits)
            )
        }
    };
    (Some(true), words)
}

pub fn advise(figures: Figures, volumes: &[Known], sizes: Sizes) -> Advice {
    let weights = weights(&figures, volumes);
    let needs = volumes.iter().map(|known| {
        let need = dirty_need(known, figures.write_rate(known.id));
        (need, known.weight)
    });
    let dirty = by_weight(&needs.collect::<Vec<_>>(), sizes.dirty_bytes);
    let (seconds, lost, written) = (figures.seconds, figures.lost, figures.written);
    let divided = Divided::of(figures.demands, volumes, sizes);
    let of_volumes = volumes.iter().zip(dirty).zip(weights);
    let of_volumes = of_volumes.map(|((known, dirty_bytes), weight)| {
        let parts = divided.parts(known.id);
        let write_rate = written.get(&known.id).copied().unwrap_or_default();
        let seen = parts.reads * seconds >= BLOCKS_MIN;
        let ratio = |of: f64| seen.then(|| (of / parts.reads).clamp(0.0, 1.0));
        let bytes = |blocks: f64| blocks as u64 * BLOCK_BYTES;
        let (gains, reason) = judge(known, &parts, write_rate, seconds);
        VolumeAdvice {
            name: known.name.clone(),
            policy: known.policy,
            read_bytes_per_second: parts.reads * BLOCK_BYTES as f64,
            write_bytes_per_second: write_rate,
            again_ratio: ratio(parts.again),
            hit_ratio: ratio(parts.hits),
            ram_bytes: bytes(parts.ram),
            ssd_bytes: bytes(parts.both - parts.ram),
            shared_bytes: bytes(parts.shared),
            dirty_bytes,
            weight,
            gains,
            reason,
        }
    });
    let at = |base: u64, bytes: u64| {
        SIZES.map(|halves| {
            let bytes = (bytes / 2).saturating_mul(halves);
            let capacity = blocks(base).saturating_add(blocks(bytes));
            Size {
                bytes,
                hit_ratio: divided.hit_ratio(capacity),
            }
        })
    };
    Advice {
        seconds,
        lost,
        ram: at(0, sizes.ram_bytes).to_vec(),
        ssd: at(sizes.ram_bytes, sizes.ssd_bytes).to_vec(),
        volumes: of_volumes.collect(),
    }
}

/// The weights in the log that fit what volumes write: 100 for one that writes as much as the mean
/// of those that write.
pub fn weights(figures: &Figures, volumes: &[Known]) -> Vec<u32> {
    let writers = volumes.iter();
    let writers = writers.filter(|known| known.policy == Policy::WriteBack);
    let rates = writers.map(|known| figures.write_rate(known.id));
    let rates: Vec<f64> = rates.filter(|rate| *rate >= WRITES_MIN).collect();
    let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    let weight = |known: &Known| match mean > 0.0 {
        true => figures.write_rate(known.id) / mean * WEIGHT_OF_THE_MEAN,
        false => WEIGHT_OF_THE_MEAN,
    };
    let weights = volumes.iter().map(weight);
    weights
        .map(|weight| weight.clamp(WEIGHTS.0, WEIGHTS.1).round() as u32)
        .collect()
}
