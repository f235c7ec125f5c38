//! A part of the blocks that guests read, from which the host computes what caches of other sizes
//! would have had.
//!
//! ```text
//! read of a block ─ its hash is low? ─▶ kept ─ taken by the host, once a second ─▶ curves
//!        └──────── counted, all of them ─▶ counts ──────┘
//! ```
//!
//! Always true: a block is in the sample whenever it is read, or never; memory is bounded, and what
//! did not fit is counted; nothing that an answer depends on is decided here. Reads of what a
//! volume still owes its image, of an overlay, and past the cache are not in it: the tiers of clean
//! blocks have no part in them. Deliberately absent: distances and curves, which need no engine.

use crate::clean::is_base;
use crate::ram::{Key, Layer};
use crate::types::VolumeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// One block in so many is in the sample, as a power of two.
pub const ONE_IN_LOG2: u32 = 6;
/// Hashes below it are in the sample.
pub const THRESHOLD: u64 = 1 << (64 - ONE_IN_LOG2);
/// Reads that are kept until they are taken.
const KEPT_MAX: usize = 16384;

/// Whose clean blocks were read: of a volume alone, or of an image below several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId {
    pub number: u64,
    pub is_shared: bool,
}

impl LayerId {
    fn of(layer: Layer) -> LayerId {
        LayerId {
            number: layer.0,
            is_shared: is_base(layer),
        }
    }
}

/// A read of a block that is in the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub layer: LayerId,
    /// Names the block, and is below [`THRESHOLD`].
    pub hash: u64,
}

/// What was read since it was asked before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// In the order in which they were read.
    pub kept: Vec<Sample>,
    /// Blocks that were read, in the sample or not.
    pub blocks: BTreeMap<(VolumeId, LayerId), u64>,
    /// Of the sample, for which there was no room.
    pub lost: u64,
}

/// Chooses what is in the sample.
#[derive(Default)]
pub(crate) struct Sampler {
    seed: u64,
    samples: Samples,
    /// Whose blocks were read last, and how many that are not in the samples yet: most reads go on
    /// with the same ones.
    last: Option<((VolumeId, LayerId), u64)>,
}

impl Sampler {
    pub fn new(seed: u64) -> Sampler {
        Sampler {
            seed,
            ..Sampler::default()
        }
    }

    pub fn read(&mut self, volume: VolumeId, layer: Layer, blocks: Range<u64>) {
        assert!(!blocks.is_empty(), "a read takes something");
        let id = LayerId::of(layer);
        let count = blocks.end - blocks.start;
        match &mut self.last {
            Some((of, counted)) if *of == (volume, id) => *counted += count,
            _ => {
                self.count();
                self.last = Some(((volume, id), count));
            }
        }
        for block in blocks {
            let hash = Key { layer, block }.hash(self.seed);
            if hash >= THRESHOLD {
                continue;
            }
            match self.samples.kept.len() < KEPT_MAX {
                true => self.samples.kept.push(Sample { layer: id, hash }),
                false => self.samples.lost += 1,
            }
        }
    }

    fn count(&mut self) {
        if let Some((of, counted)) = self.last.take() {
            *self.samples.blocks.entry(of).or_default() += counted;
        }
    }

    pub fn take(&mut self) -> Samples {
        self.count();
        let samples = core::mem::take(&mut self.samples);
        assert!(samples.kept.len() <= KEPT_MAX, "memory is bounded");
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Layer {
        Layer(3)
    }

    #[test]
    fn a_block_is_in_the_sample_always_or_never_and_one_in_64_is() {
        let mut sampler = Sampler::new(7);
        let volume = VolumeId(1);
        sampler.read(volume, own(), 0..64_000);
        let first = sampler.take();
        for block in 0..64_000 {
            sampler.read(volume, own(), block..block + 1);
        }
        let again = sampler.take();
        assert_eq!(first, again, "whatever the size of requests");
        assert_eq!(first.blocks[&(volume, LayerId::of(own()))], 64_000);
        let kept = first.kept.len();
        assert!((900..1100).contains(&kept), "{kept} of 64,000");
        assert_eq!(sampler.take(), Samples::default());
    }

    #[test]
    fn layers_are_apart_and_what_does_not_fit_is_counted() {
        let mut sampler = Sampler::new(7);
        let base = Layer(1 << 32);
        sampler.read(VolumeId(1), own(), 0..10_000);
        sampler.read(VolumeId(2), base, 0..10_000);
        let samples = sampler.take();
        let (shared, private): (Vec<Sample>, Vec<Sample>) =
            samples.kept.iter().partition(|it| it.layer.is_shared);
        let hashes = |of: &[Sample]| of.iter().map(|it| it.hash).collect::<Vec<_>>();
        assert_ne!(hashes(&shared), hashes(&private));
        let many = (KEPT_MAX as u64 + 1_000) << ONE_IN_LOG2;
        sampler.read(VolumeId(1), own(), 0..many);
        let samples = sampler.take();
        assert_eq!(samples.kept.len(), KEPT_MAX);
        assert!((500..1_500).contains(&samples.lost), "{}", samples.lost);
    }
}
