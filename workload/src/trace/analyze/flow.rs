//! Requests and bytes over time, in all and by category.
//!
//! Always true: shares of writes are of reads and writes; flushes and discards are counted beside
//! them.

use super::categories::{CATEGORIES_MAX, CategoryId};
use super::slots::{Figures, Slots};

/// Reads and writes, by count and by bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

impl Mix {
    pub fn add(&mut self, write: bool, bytes: u64) {
        let (count, sum) = match write {
            true => (&mut self.writes, &mut self.write_bytes),
            false => (&mut self.reads, &mut self.read_bytes),
        };
        *count += 1;
        *sum = sum.saturating_add(bytes);
    }

    pub fn add_all(&mut self, other: &Mix) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.write_bytes = self.write_bytes.saturating_add(other.write_bytes);
    }

    /// Takes away a part of what was added.
    pub fn remove(&mut self, part: &Mix) {
        self.reads -= part.reads;
        self.writes -= part.writes;
        // Sums at their limit say nothing any more.
        self.read_bytes = self.read_bytes.saturating_sub(part.read_bytes);
        self.write_bytes = self.write_bytes.saturating_sub(part.write_bytes);
    }

    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    pub fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }

    /// Of requests; `None` without any.
    pub fn write_share(&self) -> Option<f64> {
        share(self.writes, self.requests())
    }

    /// Of bytes.
    pub fn write_byte_share(&self) -> Option<f64> {
        share(self.write_bytes, self.bytes())
    }
}

impl Figures for Mix {
    fn join(&mut self, next: Mix) {
        self.reads += next.reads;
        self.writes += next.writes;
        self.read_bytes = self.read_bytes.saturating_add(next.read_bytes);
        self.write_bytes = self.write_bytes.saturating_add(next.write_bytes);
    }
}

/// `None` of nothing.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[derive(Clone, Debug, Default)]
pub struct Flow {
    pub over_time: Slots<Mix>,
    pub total: Mix,
    pub by_category: [Mix; CATEGORIES_MAX],
    /// By place in the list of disks.
    pub by_disk: Vec<Mix>,
    pub flushes: u64,
    pub discards: u64,
    pub discard_bytes: u64,
}

impl Flow {
    pub fn request(
        &mut self,
        time_ns: u64,
        disk: u32,
        category: CategoryId,
        write: bool,
        bytes: u64,
    ) {
        let disk = disk as usize;
        if self.by_disk.len() <= disk {
            self.by_disk.resize(disk + 1, Mix::default());
        }
        let mixes = [
            self.over_time.at(time_ns),
            &mut self.total,
            &mut self.by_category[usize::from(category.0)],
            &mut self.by_disk[disk],
        ];
        for mix in mixes {
            mix.add(write, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_reads_and_writes() {
        let mut flow = Flow::default();
        assert_eq!(flow.total.write_share(), None);
        flow.request(0, 0, CategoryId(0), true, 1000);
        flow.request(9_000_000_000, 1, CategoryId(1), false, 3000);
        assert_eq!(flow.total.write_share(), Some(0.5));
        assert_eq!(flow.total.write_byte_share(), Some(0.25));
        assert_eq!(flow.by_disk[1].reads, 1);
        assert_eq!(flow.by_category[1].read_bytes, 3000);
        assert_eq!(flow.over_time.all().len(), 10);
    }
}
