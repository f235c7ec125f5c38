//! How far disks have gone from their base over time (Capo, figures 6 and 7).
//!
//! Always true: a block of 4 KiB diverges with the first write into it, whole, as it does in an
//! overlay, and counts for the category of the file that this write belongs to. Disks that have
//! written nothing yet count as zero. Deliberately absent: what a base holds; a trace does not say.

use super::blocks::BLOCK_BYTES;
use super::categories::{CATEGORIES_MAX, CategoryId};
use super::slots::Slots;

#[derive(Clone, Debug, Default)]
pub struct Divergence {
    by_disk: Slots<Vec<u64>>,
    by_category: Slots<[u64; CATEGORIES_MAX]>,
}

/// Bytes at the end of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub end_ns: u64,
    pub mean: f64,
    pub least: u64,
    pub most: u64,
}

impl Divergence {
    pub fn first_write(&mut self, time_ns: u64, disk: u32, category: CategoryId, weight: u64) {
        let bytes = BLOCK_BYTES * weight;
        let disks = self.by_disk.at(time_ns);
        let disk = disk as usize;
        if disks.len() <= disk {
            disks.resize(disk + 1, 0);
        }
        disks[disk] += bytes;
        self.by_category.at(time_ns)[usize::from(category.0)] += bytes;
    }

    /// Over time: mean, least and most of so many disks.
    pub fn spread(&self, disks: usize) -> Vec<Point> {
        let mut sums = vec![0u64; disks];
        let slots = self.by_disk.all().iter().zip(1..);
        slots
            .map(|(slot, number)| {
                for (sum, more) in sums.iter_mut().zip(slot) {
                    *sum += more;
                }
                Point {
                    end_ns: self.by_disk.width_ns().saturating_mul(number),
                    mean: sums.iter().sum::<u64>() as f64 / disks.max(1) as f64,
                    least: sums.iter().copied().min().unwrap_or(0),
                    most: sums.iter().copied().max().unwrap_or(0),
                }
            })
            .collect()
    }

    /// Over time, of all disks together: the end of the slot, and bytes by category.
    pub fn categories(&self) -> Vec<(u64, [u64; CATEGORIES_MAX])> {
        let mut sums = [0; CATEGORIES_MAX];
        let slots = self.by_category.all().iter().zip(1..);
        slots
            .map(|(slot, number)| {
                for (sum, more) in sums.iter_mut().zip(slot) {
                    *sum += more;
                }
                let end_ns = self.by_category.width_ns().saturating_mul(number);
                (end_ns, sums)
            })
            .collect()
    }

    /// Of each disk at the end.
    pub fn by_disk(&self, disks: usize) -> Vec<u64> {
        let mut sums = vec![0; disks];
        for slot in self.by_disk.all() {
            for (sum, more) in sums.iter_mut().zip(slot) {
                *sum += more;
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_wrote_nothing_is_the_least() {
        let mut divergence = Divergence::default();
        let second = 1_000_000_000;
        divergence.first_write(0, 1, CategoryId(2), 1);
        divergence.first_write(second, 1, CategoryId(2), 1);
        divergence.first_write(second, 2, CategoryId(0), 2);
        let points = divergence.spread(3);
        assert_eq!(points.len(), 2);
        assert_eq!((points[0].least, points[0].most), (0, 4096));
        assert_eq!((points[1].least, points[1].most), (0, 8192));
        assert_eq!(points[1].mean, 16384.0 / 3.0);
        assert_eq!(points[1].end_ns, 2 * second);
        let (_, categories) = divergence.categories()[1];
        assert_eq!(categories[..3], [8192, 0, 8192]);
        assert_eq!(divergence.by_disk(3), [0, 8192, 8192]);
    }
}
