//! What guests read again, and how much they write, of late.
//!
//! Owns a curve for each layer that is read: how many hits a second a cache of any size would have
//! for it. Clones of one image read one layer, whose blocks are in the cache once, so layers and
//! not volumes are what a cache is divided among. What is older counts for less: each
//! [`HALF_LIFE`] all figures are halved. Always true: memory is bounded by [`LAYERS_MAX`] curves of
//! at most [`SHARED_SAMPLES`] blocks; a rate is null before anything was measured. Nothing is kept
//! over a restart. Deliberately absent: what follows from it ([`super`]).

use super::divide::Point;
use engine::sample::{LayerId, Samples, THRESHOLD};
use engine::types::VolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use workload::trace::analyze::reuse::Reuse;

/// So long ago something counts for half.
pub const HALF_LIFE: Duration = Duration::from_secs(900);
/// Layers with a curve, at 32 KiB each, and 270 of one below several volumes; further ones are
/// counted and have none.
pub const LAYERS_MAX: usize = 2048;
/// Blocks of the sample of an image below many volumes, and of one that a volume has alone.
const SHARED_SAMPLES: usize = 4096;
const OWN_SAMPLES: usize = 256;

/// Less than this of a sample that was asked for before, and of the reads that should be in it.
const REPEATED_MIN: f64 = 0.01;
const SAMPLED_MIN: f64 = 0.8;

struct Layer {
    reuse: Reuse,
    /// Blocks that each volume read of it.
    readers: BTreeMap<VolumeId, f64>,
}

impl Layer {
    fn of(id: LayerId) -> Layer {
        let samples = match id.is_shared {
            true => SHARED_SAMPLES,
            false => OWN_SAMPLES,
        };
        Layer {
            reuse: Reuse::of_sample(samples, THRESHOLD),
            readers: BTreeMap::new(),
        }
    }

    fn blocks(&self) -> f64 {
        self.readers.values().sum()
    }
}

/// What one layer asks of a cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    pub layer: LayerId,
    /// Blocks a second that each volume reads of it.
    pub readers: Vec<(VolumeId, f64)>,
    pub curve: Vec<Point>,
}

/// What was found of late.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub demands: Vec<Demand>,
    /// Bytes a second.
    pub written: BTreeMap<VolumeId, f64>,
    /// Time that the figures are of; older ones count for less.
    pub seconds: f64,
    pub lost: u64,
}

impl Figures {
    pub fn write_rate(&self, volume: VolumeId) -> f64 {
        self.written.get(&volume).copied().unwrap_or_default()
    }
}

/// Bytes that a volume wrote.
#[derive(Clone, Copy)]
struct Written {
    counted: u64,
    bytes: f64,
}

#[derive(Default)]
pub struct Curves {
    layers: BTreeMap<LayerId, Layer>,
    written: BTreeMap<VolumeId, Written>,
    /// Seconds that the figures are of, as halved as they are, and until they are halved again.
    seconds: f64,
    until_half: f64,
    /// Of blocks of the sample that were not seen, and reads of layers without a curve.
    lost: u64,
}

impl Curves {
    /// What was read and written in so many seconds. `written`: bytes of each volume that takes
    /// writes, since some start.
    pub fn add(&mut self, samples: &Samples, written: &[(VolumeId, u64)], seconds: f64) {
        self.seconds += seconds;
        self.until_half += seconds;
        self.lost += samples.lost;
        for ((volume, id), blocks) in &samples.blocks {
            let room = self.layers.len() < LAYERS_MAX;
            if !room && !self.layers.contains_key(id) {
                self.lost += 1;
                continue;
            }
            let layer = self.layers.entry(*id).or_insert_with(|| Layer::of(*id));
            layer.reuse.count_reads(*blocks);
            *layer.readers.entry(*volume).or_default() += *blocks as f64;
        }
        for sample in &samples.kept {
            if let Some(layer) = self.layers.get_mut(&sample.layer) {
                layer.reuse.touch_hash(sample.hash, false);
            }
        }
        for &(volume, counted) in written {
            let first = Written {
                counted,
                bytes: 0.0,
            };
            let was = self.written.entry(volume).or_insert(first);
            // One that came anew counts from zero again.
            was.bytes += counted.saturating_sub(was.counted) as f64;
            was.counted = counted;
        }
        if self.until_half >= HALF_LIFE.as_secs_f64() {
            self.until_half = 0.0;
            self.halve();
        }
        let here: BTreeSet<VolumeId> = written.iter().map(|(volume, _)| *volume).collect();
        self.written.retain(|volume, _| here.contains(volume));
    }

    fn halve(&mut self) {
        self.seconds /= 2.0;
        for written in self.written.values_mut() {
            written.bytes /= 2.0;
        }
        self.layers.retain(|_, layer| {
            layer.reuse.age();
            layer.readers.values_mut().for_each(|blocks| *blocks /= 2.0);
            layer.readers.retain(|_, blocks| *blocks >= 1.0);
            layer.blocks() >= 1.0
        });
    }

    pub fn figures(&self) -> Figures {
        let written = self.written.iter().filter(|_| self.seconds > 0.0);
        Figures {
            demands: self.demands(),
            written: written
                .map(|(volume, it)| (*volume, it.bytes / self.seconds))
                .collect(),
            seconds: self.seconds,
            lost: self.lost,
        }
    }

    fn demands(&self) -> Vec<Demand> {
        let layers = self.layers.iter().filter(|_| self.seconds > 0.0);
        let demands = layers.map(|(&layer, of)| {
            let rate = of.blocks() / self.seconds;
            let found = of.reuse.curve();
            // What the sample has too few of counts as hits, and is chance where nothing repeats.
            let scan = found.repeated_ratio < REPEATED_MIN && found.sampled_ratio > SAMPLED_MIN;
            let points = found.points.into_iter().filter(|_| !scan);
            let points = points.map(|point| Point {
                blocks: point.blocks,
                hits: rate * (1.0 - point.miss_ratio),
            });
            let mut curve: Vec<Point> = Vec::new();
            for point in points {
                if curve.last().is_none_or(|last| point.hits > last.hits) {
                    curve.push(point);
                }
            }
            Demand {
                layer,
                readers: of
                    .readers
                    .iter()
                    .map(|(volume, blocks)| (*volume, blocks / self.seconds))
                    .collect(),
                curve,
            }
        });
        demands.collect()
    }
}
