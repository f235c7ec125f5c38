//! One disk of a synthetic desktop made into three, one for each durability.
//!
//! Owns which of them a request goes to. Always true: each disk has the ranges of its durability
//! one behind the other and nothing else, as the disks of `image split` have; each sector of the
//! desktop is on one of them; a flush goes to the disk that the desktop wrote last, because a file
//! system flushes its own. Deliberately absent: the journals of three file systems, which the
//! requests of one have not.

use engine::types::SECTOR_BYTES;
use std::ops::Range;
use workload::synth::{Class, Durability, Synth};
use workload::trace::{Op, Record};

/// The disks of a desktop, in this order.
pub const DURABILITIES: [Durability; 3] = [
    Durability::WriteThrough,
    Durability::WriteBack,
    Durability::NoWriteBack,
];

struct Stretch {
    sectors: Range<u64>,
    disk: usize,
    /// Where it begins on that disk.
    at: u64,
}

/// How the disk of every desktop is split.
pub struct SplitDisks {
    stretches: Vec<Stretch>,
    sectors: [u64; 3],
    /// By desktop, the disk of its last write.
    last: Vec<usize>,
}

/// A request to one of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub disk: usize,
    pub sector: u64,
    pub sectors: u64,
}

impl SplitDisks {
    pub fn new(synth: &Synth) -> SplitDisks {
        let (mut stretches, mut sectors) = (Vec::new(), [0; 3]);
        for class in Class::ALL {
            let disk = DURABILITIES.iter().position(|it| *it == class.durability());
            let disk = disk.expect("all durabilities have a disk");
            for range in synth.ranges(class) {
                stretches.push(Stretch {
                    sectors: range.clone(),
                    disk,
                    at: sectors[disk],
                });
                sectors[disk] += range.end - range.start;
            }
        }
        stretches.sort_by_key(|it| it.sectors.start);
        SplitDisks {
            stretches,
            sectors,
            last: vec![0; synth.parameters().desktops as usize],
        }
    }

    pub fn bytes(&self, disk: usize) -> u64 {
        self.sectors[disk] * SECTOR_BYTES
    }

    /// A request, cut where it goes from one disk to the next.
    pub fn route(&mut self, record: &Record) -> Vec<Piece> {
        let desktop = record.disk.0 as usize;
        if record.op == Op::Flush {
            let disk = self.last[desktop];
            return vec![Piece {
                disk,
                sector: 0,
                sectors: 0,
            }];
        }
        let (mut sector, end) = (record.sector, record.sector + u64::from(record.sectors));
        let first = self
            .stretches
            .partition_point(|it| it.sectors.end <= sector);
        let mut pieces: Vec<Piece> = Vec::new();
        for it in &self.stretches[first..] {
            if sector >= end || sector < it.sectors.start {
                break;
            }
            let upto = end.min(it.sectors.end);
            pieces.push(Piece {
                disk: it.disk,
                sector: it.at + sector - it.sectors.start,
                sectors: upto - sector,
            });
            sector = upto;
        }
        if let (Op::Write, Some(piece)) = (record.op, pieces.last()) {
            self.last[desktop] = piece.disk;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::synth::{Parameters, Pattern};
    use workload::trace::NameId;

    fn record(op: Op, sector: u64, sectors: u32) -> Record {
        Record {
            time_ns: 0,
            disk: NameId(0),
            op,
            sector,
            sectors,
            path: None,
        }
    }

    /// Fails when: a request goes to the disk of another durability or to a wrong place there, one
    /// that crosses a border is not cut, or a flush goes to another disk than the write before it.
    #[test]
    fn a_request_goes_to_the_disk_of_its_class_and_a_flush_to_that_of_the_last_write() {
        let synth = Synth::new(&Parameters::new(Pattern::Heavy)).expect("it can be made");
        let mut disks = SplitDisks::new(&synth);
        let range = |class: Class| synth.ranges(class)[0].clone();
        let (metadata, user) = (range(Class::Metadata), range(Class::User));
        let piece = |disk, sector, sectors| Piece {
            disk,
            sector,
            sectors,
        };
        // Data of users lies behind the metadata on the disk that writes through.
        let behind = metadata.end - metadata.start;
        let found = disks.route(&record(Op::Write, user.start + 8, 16));
        assert_eq!(found, [piece(0, behind + 8, 16)]);
        assert_eq!(disks.route(&record(Op::Flush, 0, 0)), [piece(0, 0, 0)]);
        let page_file = range(Class::PageFile);
        let found = disks.route(&record(Op::Write, page_file.start - 8, 24));
        let profile = range(Class::Profile);
        assert_eq!(profile.end, page_file.start);
        let written_back = disks.bytes(1) / SECTOR_BYTES;
        assert_eq!(found, [piece(1, written_back - 8, 8), piece(2, 0, 16)]);
        assert_eq!(disks.route(&record(Op::Flush, 0, 0)), [piece(2, 0, 0)]);
        // A read changes no disk for flushes.
        disks.route(&record(Op::Read, metadata.start, 8));
        assert_eq!(disks.route(&record(Op::Flush, 0, 0)), [piece(2, 0, 0)]);
        let all: u64 = (0..3).map(|at| disks.bytes(at)).sum();
        assert!(all <= synth.disk_bytes() && all > synth.disk_bytes() / 100 * 99);
    }
}
