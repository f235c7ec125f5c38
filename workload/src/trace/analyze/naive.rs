//! The same figures as everybody would compute them, sector by sector and with all of the trace in
//! memory, and small random traces to hold both against each other.

use crate::rng::Rng;
use crate::trace::{NameId, Op, Record};
use std::collections::{BTreeMap, BTreeSet};

/// A few disks that ask for a small and a large part of their places, over some hours.
pub fn records(seed: u64, count: usize, disks: u64) -> Vec<Record> {
    let mut random = Rng::new(seed << 32);
    let mut time_ns = 0;
    let records = (0..count).map(|_| {
        time_ns += match random.below(20) {
            0 => random.below(900_000_000_000),
            _ => random.below(5_000_000_000),
        };
        let op = match random.below(20) {
            0 => Op::Flush,
            1 => Op::Discard,
            2..=9 => Op::Read,
            _ => Op::Write,
        };
        let sectors = match random.below(3) {
            0 => 8,
            1 => 1 + random.below(40),
            _ => 8 * (1 + random.below(90)),
        };
        let bound = if random.below(4) == 0 { 1 << 30 } else { 3000 };
        let sector = random.below(bound) / (1 + 7 * random.below(2)) * 8 % bound;
        Record {
            time_ns,
            disk: NameId(random.below(disks) as u32),
            op,
            sector: sector + random.below(2) * random.below(8),
            sectors: if op == Op::Flush { 0 } else { sectors as u32 },
            path: None,
        }
    });
    records.collect()
}

/// What is held against the analyses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub written: u64,
    pub again: Vec<u64>,
    /// Of reads: requests and bytes that the disk had seen, that the cluster had.
    pub seen: [u64; 4],
    /// Bytes of different blocks: read, written, any.
    pub set: [u64; 3],
    pub divergence: Vec<u64>,
}

pub fn figures(records: &[Record], disks: usize, intervals_ms: &[u64]) -> Figures {
    let mut figures = Figures {
        again: vec![0; intervals_ms.len()],
        divergence: vec![0; disks],
        ..Figures::default()
    };
    let mut last: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
    let mut base = BTreeSet::new();
    for record in records {
        let disk = record.disk.0;
        let sectors = record.sector..record.sector + u64::from(record.sectors);
        let blocks: BTreeSet<u64> = sectors.clone().map(|sector| sector / 8).collect();
        if record.op == Op::Write {
            for sector in sectors {
                figures.written += 512;
                let now = record.time_ns / 1_000_000;
                let Some(before) = last.insert((disk, sector), now) else {
                    continue;
                };
                for (sum, interval) in figures.again.iter_mut().zip(intervals_ms) {
                    *sum += if now - before <= *interval { 512 } else { 0 };
                }
            }
            written.extend(blocks.iter().map(|block| (disk, *block)));
        } else if record.op == Op::Read {
            let by_disk =
                |block: &u64| read.contains(&(disk, *block)) || written.contains(&(disk, *block));
            let by_cluster = |block: &u64| by_disk(block) || base.contains(block);
            figures.seen[0] += u64::from(blocks.iter().all(by_disk));
            figures.seen[2] += u64::from(blocks.iter().all(by_cluster));
            for sector in sectors {
                figures.seen[1] += 512 * u64::from(by_disk(&(sector / 8)));
                figures.seen[3] += 512 * u64::from(by_cluster(&(sector / 8)));
            }
            for block in blocks {
                read.insert((disk, block));
                if !written.contains(&(disk, block)) {
                    base.insert(block);
                }
            }
        }
    }
    for (disk, _) in &written {
        figures.divergence[*disk as usize] += 4096;
    }
    let any: BTreeSet<_> = read.union(&written).collect();
    figures.set = [read.len(), written.len(), any.len()].map(|count| count as u64 * 4096);
    figures
}
