//! One bit for each 64 KiB of a disk: it may have changed since some moment, or has not.
//!
//! Always true: what the bitmap does not know counts as changed, also what lies behind the end of
//! the disk that it was made for; a bit goes from 0 to 1 and never back. Deliberately absent: when
//! bits are set.

use crate::frontend::nbd::{Extent, ExtentState};

/// Bytes of a disk that one bit is for; as QEMU has it where nothing else is asked for.
pub const GRAIN_BYTES: u64 = 64 << 10;
/// Of the largest disk that is tracked: 16 TiB.
pub const BITMAP_BYTES_MAX: u64 = (16 << 40) / GRAIN_BYTES / 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    /// Bits of the first grains, the lowest bit first.
    pub words: Vec<u64>,
    /// Of the disk that they are for.
    pub size_bytes: u64,
}

/// Words for a disk of this size.
pub const fn words_for(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(GRAIN_BYTES).div_ceil(64)
}

impl Bitmap {
    /// Nothing has changed of a disk of this size.
    pub fn new(size_bytes: u64) -> Bitmap {
        Bitmap {
            words: vec![0; words_for(size_bytes) as usize],
            size_bytes,
        }
    }

    pub fn of(words: Vec<u64>, size_bytes: u64) -> Bitmap {
        assert_eq!(
            words.len() as u64,
            words_for(size_bytes),
            "a bit for each grain"
        );
        Bitmap { words, size_bytes }
    }

    pub fn is_changed(&self, grain: u64) -> bool {
        if grain >= self.size_bytes.div_ceil(GRAIN_BYTES) {
            return true;
        }
        self.words[(grain / 64) as usize] >> (grain % 64) & 1 != 0
    }

    pub fn set(&mut self, grain: u64) {
        self.words[(grain / 64) as usize] |= 1 << (grain % 64);
    }

    /// What either of two says has changed, of a disk of this size.
    pub fn or(&self, other: &Bitmap, size_bytes: u64) -> Bitmap {
        let mut both = self.resized(size_bytes);
        let other = other.resized(size_bytes);
        for (word, more) in both.words.iter_mut().zip(other.words) {
            *word |= more;
        }
        both
    }

    /// The same of a disk of another size.
    pub fn resized(&self, size_bytes: u64) -> Bitmap {
        let mut other = Bitmap::new(size_bytes);
        let common = self.words.len().min(other.words.len());
        other.words[..common].copy_from_slice(&self.words[..common]);
        // Nothing is known of what lies behind the end.
        let grains = size_bytes.div_ceil(GRAIN_BYTES);
        for grain in self.size_bytes.div_ceil(GRAIN_BYTES)..grains {
            other.set(grain);
        }
        other
    }

    /// Bytes of the grains that have changed.
    pub fn changed_bytes(&self) -> u64 {
        let grains = self.size_bytes.div_ceil(GRAIN_BYTES);
        let changed = (0..grains).filter(|grain| self.is_changed(*grain));
        changed
            .map(|grain| GRAIN_BYTES.min(self.size_bytes - grain * GRAIN_BYTES))
            .sum()
    }

    /// Lengths of what follows from a place on, each with whether it has changed; at most so many.
    pub fn ranges(&self, at: u64, bytes: u64, most: usize) -> Vec<(u64, bool)> {
        let (mut at, end) = (at, at + bytes);
        let mut ranges: Vec<(u64, bool)> = Vec::new();
        while at < end {
            let changed = self.is_changed(at / GRAIN_BYTES);
            let length = ((at / GRAIN_BYTES + 1) * GRAIN_BYTES).min(end) - at;
            let full = ranges.len() == most;
            match ranges.last_mut() {
                Some(last) if last.1 == changed => last.0 += length,
                _ if full => break,
                _ => ranges.push((length, changed)),
            }
            at += length;
        }
        ranges
    }

    /// The same for a client of NBD.
    pub fn extents(&self, at: u64, bytes: u64, extents_max: usize) -> Vec<Extent> {
        let ranges = self.ranges(at, bytes, extents_max).into_iter();
        let extents = ranges.map(|(length, changed)| {
            let state = match changed {
                true => ExtentState::Changed,
                false => ExtentState::Same,
            };
            Extent { length, state }
        });
        extents.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 * GRAIN_BYTES + 512;

    #[test]
    fn what_lies_behind_the_end_counts_as_changed() {
        let mut bitmap = Bitmap::new(SIZE);
        bitmap.set(3);
        let larger = bitmap.resized(200 * GRAIN_BYTES);
        let changed = |grain| larger.is_changed(grain);
        assert!((0..11).all(|grain| changed(grain) == (grain == 3)));
        assert!((11..200).all(changed) && bitmap.is_changed(11));
        let both = bitmap.or(&Bitmap::new(GRAIN_BYTES), SIZE);
        assert_eq!(both.changed_bytes(), SIZE - GRAIN_BYTES);
    }

    #[test]
    fn extents_add_up_to_what_was_asked_for_and_are_cut_at_their_bound() {
        let mut bitmap = Bitmap::new(SIZE);
        bitmap.set(1);
        bitmap.set(2);
        let lengths = |extents: Vec<Extent>| -> Vec<u64> {
            extents.iter().map(|extent| extent.length).collect()
        };
        let all = bitmap.extents(512, SIZE - 512, 100);
        let expected = [GRAIN_BYTES - 512, 2 * GRAIN_BYTES, 7 * GRAIN_BYTES + 512];
        assert_eq!(lengths(all), expected);
        assert_eq!(lengths(bitmap.extents(512, SIZE - 512, 1)), expected[..1]);
    }
}
