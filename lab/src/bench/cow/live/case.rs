//! The loads of the live half, and what the paper has of each.
//!
//! Always true: loads are those of the offline half, on a smaller disk; a figure of the paper is
//! requests per second of COWCache for each of TRDCache, and is compared with, never a result; a
//! target is the least that is wanted of the same ratio. Deliberately absent: who serves them.

use crate::bench::cow::experiments::OLTP;
use crate::bench::cow::load::{Application, Ratio, Writes};
use crate::replay::machine::Ask;
use engine::types::Policy;
use workload::stacked::CLUSTER_BYTES;

const KIB: u64 = 1 << 10;
/// Least ratio that is wanted of 4 KiB in write-back, of OLTP in write-back, and in write-through.
const SMALL_WANTED: f64 = 4.4;
const OLTP_WANTED: f64 = 1.86;
const THROUGH_WANTED: f64 = 1.0;
/// From 80 to 40 % of allocating writes ours may change by so much.
pub const CHANGE_WANTED: f64 = 0.16;
/// OLTP uses so much of the disk, and has read it before it is measured.
pub const OLTP_SPAN_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// Random writes of so many bytes.
    Size(u64),
    /// 4 KiB, two writes for each read, with so many allocating writes of a thousand.
    Ratio(u64),
    Oltp(&'static Application),
}

/// One load in one policy.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub load: Load,
    pub policy: Policy,
}

const LOADS: [(&str, Load); 9] = [
    ("f10, 4 KiB", Load::Size(4 * KIB)),
    ("f10, 8 KiB", Load::Size(8 * KIB)),
    ("f10, 16 KiB", Load::Size(16 * KIB)),
    ("f10, 32 KiB", Load::Size(32 * KIB)),
    ("f10, 64 KiB", Load::Size(64 * KIB)),
    ("f11, 80 %", Load::Ratio(800)),
    ("f11, 40 %", Load::Ratio(400)),
    ("f12, OLTP 2 KiB", Load::Oltp(&OLTP[0])),
    ("f12, OLTP 8 KiB", Load::Oltp(&OLTP[2])),
];

impl Case {
    pub fn all() -> Vec<Case> {
        let of = |policy| {
            let case = move |(name, load)| Case { name, load, policy };
            LOADS.into_iter().map(case)
        };
        of(Policy::WriteBack)
            .chain(of(Policy::WriteThrough))
            .collect()
    }

    /// As many requests as make half of the clusters of the disk, the same for every side.
    pub fn asks(&self, disk_bytes: u64, seed: u64) -> Vec<Ask> {
        let count = disk_bytes / CLUSTER_BYTES / 2;
        match self.load {
            Load::Size(bytes) => {
                let unaligned = false;
                let load = Writes {
                    disk_bytes,
                    bytes,
                    unaligned,
                };
                load.asks(count, seed).collect()
            }
            Load::Ratio(cow_per_mille) => {
                let writes = 2;
                let load = Ratio {
                    disk_bytes,
                    cow_per_mille,
                    writes,
                };
                load.asks(count, seed).collect()
            }
            Load::Oltp(application) => {
                let load = Application {
                    span_bytes: OLTP_SPAN_BYTES.min(disk_bytes),
                    ..*application
                };
                load.asks(count, seed).take(count as usize).collect()
            }
        }
    }

    /// What is read before the time begins.
    pub fn warm_bytes(&self, disk_bytes: u64) -> u64 {
        match self.load {
            Load::Oltp(_) => OLTP_SPAN_BYTES.min(disk_bytes),
            Load::Size(_) | Load::Ratio(_) => 0,
        }
    }

    fn is_write_back(&self) -> bool {
        self.policy == Policy::WriteBack
    }

    pub fn policy_name(&self) -> &'static str {
        match self.is_write_back() {
            true => "write-back",
            false => "write-through",
        }
    }

    /// The least and the most that the paper has.
    pub fn paper(&self) -> (f64, f64) {
        match (self.load, self.is_write_back()) {
            // Equal where whole clusters are written: nothing is copied.
            (Load::Size(bytes), _) if bytes == CLUSTER_BYTES => (1.0, 1.0),
            (Load::Size(4096), true) => (SMALL_WANTED, SMALL_WANTED),
            (Load::Size(_), true) => (1.6, 4.4),
            (Load::Size(_), false) => (1.038, 1.109),
            (Load::Ratio(_), true) => (1.8, 3.4),
            (Load::Ratio(_), false) => (1.041, 1.07),
            (Load::Oltp(_), true) => (OLTP_WANTED, 2.23),
            (Load::Oltp(_), false) => (1.53, 1.87),
        }
    }

    /// The least ratio that is wanted.
    pub fn target(&self) -> Option<f64> {
        match (self.load, self.is_write_back()) {
            (_, false) => Some(THROUGH_WANTED),
            (Load::Size(4096), true) => Some(SMALL_WANTED),
            (Load::Oltp(_), true) => Some(OLTP_WANTED),
            (Load::Size(_) | Load::Ratio(_), true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_stays_inside_a_small_disk() {
        let disk_bytes = 256 << 20;
        for case in Case::all() {
            let asks = case.asks(disk_bytes, 1);
            assert_eq!(asks.len() as u64, disk_bytes / CLUSTER_BYTES / 2);
            for ask in asks {
                if let Ask::Read { sector, sectors } | Ask::Write { sector, sectors } = ask {
                    assert!((sector + sectors) * 512 <= disk_bytes, "{case:?} {ask:?}");
                }
            }
        }
    }
}
