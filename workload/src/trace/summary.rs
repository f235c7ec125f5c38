//! What a trace is, in a few numbers.
//!
//! Always true: everything is counted in one pass and in memory that depends on disks alone.

use super::{Item, NameId, Op, Record};

/// Requests and bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub requests: u64,
    pub sectors: u64,
}

/// Of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub requests: u64,
    /// The end of the request that lies last: the disk is at least so large.
    pub end: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// In the order of [`Op::ALL`].
    pub counts: [Count; 4],
    pub disks: Vec<Disk>,
    pub lost: u64,
    pub with_path: u64,
    pub last_ns: u64,
}

impl Summary {
    pub fn add(&mut self, item: &Item) {
        let record = match item {
            Item::Lost(lost) => {
                self.lost = self.lost.saturating_add(*lost);
                return;
            }
            Item::Record(record) => record,
        };
        let Record { disk, op, .. } = *record;
        let at = Op::ALL.iter().position(|it| *it == op);
        let count = &mut self.counts[at.expect("all are listed")];
        count.requests += 1;
        count.sectors = count.sectors.saturating_add(record.sectors.into());
        let NameId(disk) = disk;
        if self.disks.len() <= disk as usize {
            self.disks.resize(disk as usize + 1, Disk::default());
        }
        let disk = &mut self.disks[disk as usize];
        disk.requests += 1;
        disk.end = disk.end.max(record.sector + u64::from(record.sectors));
        self.with_path += u64::from(record.path.is_some());
        self.last_ns = self.last_ns.max(record.time_ns);
    }

    pub fn requests(&self) -> u64 {
        self.counts.iter().map(|count| count.requests).sum()
    }

    pub fn of(&self, op: Op) -> Count {
        let at = Op::ALL.iter().position(|it| *it == op);
        self.counts[at.expect("all are listed")]
    }
}
