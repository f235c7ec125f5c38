//! What guests ask for in each experiment of the COWCache paper.
//!
//! Always true: a seed gives one load, on either side; a load says of itself how much of it is
//! the paper's and how much a stand-in. Deliberately absent: times. The next request comes when
//! fewer than the depth are under way, as in the paper's closed loops.

use crate::replay::machine::Ask;
use workload::rng::Rng;
use workload::stacked::CLUSTER_BYTES;

const SECTOR_BYTES: u64 = 512;
const CLUSTER_SECTORS: u64 = CLUSTER_BYTES / SECTOR_BYTES;
/// Of the paper's disk.
pub const DISK_BYTES: u64 = 1 << 40;

fn write(sector: u64, bytes: u64) -> Ask {
    let sectors = bytes / SECTOR_BYTES;
    Ask::Write { sector, sectors }
}

fn read(sector: u64, bytes: u64) -> Ask {
    let sectors = bytes / SECTOR_BYTES;
    Ask::Read { sector, sectors }
}

/// Random writes of one size over the whole disk, each at a multiple of it; `unaligned` ones cross
/// from one cluster to the next.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    pub disk_bytes: u64,
    pub bytes: u64,
    pub unaligned: bool,
}

impl Writes {
    pub fn asks(self, count: u64, seed: u64) -> impl Iterator<Item = Ask> {
        let mut rng = Rng::new(seed);
        // The last one has no cluster behind it to cross into.
        let places = self.disk_bytes / self.bytes - u64::from(self.unaligned);
        (0..count).map(move |_| {
            let mut sector = rng.scaled(places) * (self.bytes / SECTOR_BYTES);
            if self.unaligned {
                sector += rng.range(1, 16) * 8;
            }
            write(sector, self.bytes)
        })
    }
}

/// Clusters of a disk, or of its beginning, that were written.
struct Written {
    is: Vec<u64>,
    all: Vec<u32>,
    clusters: u64,
}

impl Written {
    fn new(clusters: u64) -> Written {
        Written {
            is: vec![0; clusters.div_ceil(64) as usize],
            all: Vec::new(),
            clusters,
        }
    }

    /// A random cluster that was not written before; it is from now on.
    fn fresh(&mut self, rng: &mut Rng) -> u64 {
        assert!((self.all.len() as u64) < self.clusters, "one is left");
        loop {
            let cluster = rng.scaled(self.clusters);
            let (word, bit) = ((cluster / 64) as usize, 1 << (cluster % 64));
            if self.is[word] & bit == 0 {
                self.is[word] |= bit;
                self.all.push(cluster as u32);
                return cluster;
            }
        }
    }

    /// One that is written before in so many of a thousand cases, else a fresh one.
    fn next(&mut self, fresh_per_mille: u64, rng: &mut Rng) -> u64 {
        let full = self.all.len() as u64 == self.clusters;
        let fresh = rng.chance(fresh_per_mille) || self.all.is_empty();
        match fresh && !full {
            true => self.fresh(rng),
            false => u64::from(self.all[rng.scaled(self.all.len() as u64) as usize]),
        }
    }
}

/// Random reads and writes of 4 KiB with a stated share of writes that allocate.
#[derive(Clone, Copy, Debug)]
pub struct Ratio {
    pub disk_bytes: u64,
    pub cow_per_mille: u64,
    /// Of three requests.
    pub writes: u64,
}

impl Ratio {
    pub fn asks(self, count: u64, seed: u64) -> impl Iterator<Item = Ask> {
        const BYTES: u64 = 4096;
        let clusters = self.disk_bytes / CLUSTER_BYTES;
        let (mut rng, mut written) = (Rng::new(seed), Written::new(clusters));
        (0..count).map(move |_| {
            if rng.scaled(3) >= self.writes {
                return read(rng.scaled(self.disk_bytes / BYTES) * 8, BYTES);
            }
            let cluster = written.next(self.cow_per_mille, &mut rng);
            write(cluster * CLUSTER_SECTORS + rng.scaled(16) * 8, BYTES)
        })
    }
}

/// Applications that read, write and sync. Names and sizes are the paper's; how often each happens
/// is chosen so that both sides write about what the paper prints of them.
#[derive(Clone, Copy, Debug)]
pub struct Application {
    pub name: &'static str,
    /// At scale 1.
    pub writes: u64,
    pub write_bytes: u64,
    pub read_bytes: u64,
    /// For a thousand writes.
    pub reads: u64,
    pub cow_per_mille: u64,
    /// The part of the disk that is used.
    pub span_bytes: u64,
    pub writes_per_sync: u64,
}

impl Application {
    pub fn asks(self, count: u64, seed: u64) -> impl Iterator<Item = Ask> {
        let (mut rng, mut written) = (
            Rng::new(seed),
            Written::new(self.span_bytes / CLUSTER_BYTES),
        );
        let mut owed = 0;
        (1..=count).flat_map(move |number| {
            let mut asks = Vec::new();
            owed += self.reads;
            for _ in 0..owed / 1000 {
                let at = rng.scaled(self.span_bytes / self.read_bytes);
                asks.push(read(at * self.read_bytes / SECTOR_BYTES, self.read_bytes));
            }
            owed %= 1000;
            let cluster = written.next(self.cow_per_mille, &mut rng);
            let inside = (CLUSTER_BYTES / self.write_bytes).max(1);
            let at = rng.scaled(inside) * self.write_bytes / SECTOR_BYTES;
            asks.push(write(cluster * CLUSTER_SECTORS + at, self.write_bytes));
            if number.is_multiple_of(self.writes_per_sync) {
                asks.push(Ask::Flush);
            }
            asks
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_are_not_aligned_cross_into_the_next_cluster() {
        let load = Writes {
            disk_bytes: DISK_BYTES,
            bytes: CLUSTER_BYTES,
            unaligned: true,
        };
        for ask in load.asks(1000, 1) {
            let Ask::Write { sector, sectors } = ask else {
                panic!("{ask:?}");
            };
            assert!(!sector.is_multiple_of(CLUSTER_SECTORS) && sectors == CLUSTER_SECTORS);
            assert!((sector + sectors) * SECTOR_BYTES <= DISK_BYTES);
        }
    }

    #[test]
    fn the_stated_share_of_writes_goes_to_new_clusters() {
        for cow_per_mille in [800, 400] {
            let load = Ratio {
                disk_bytes: DISK_BYTES,
                cow_per_mille,
                writes: 2,
            };
            let (mut seen, mut writes, mut new) = (std::collections::HashSet::new(), 0, 0);
            for ask in load.asks(30_000, 1) {
                if let Ask::Write { sector, .. } = ask {
                    writes += 1;
                    new += u64::from(seen.insert(sector / CLUSTER_SECTORS));
                }
            }
            let share = 1000 * new / writes;
            assert!(share.abs_diff(cow_per_mille) < 15, "{share}");
            assert!(writes.abs_diff(20_000) < 400, "{writes} of 30,000");
        }
    }
}
