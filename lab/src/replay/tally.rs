//! What reached the devices: counts by kind, and requests to shared storage by the second.
//!
//! Always true: everything that a storage network would see as a request is in `requests`: data,
//! journal and ledger, reads and writes and zeroes; syncs and looks at a file's size are apart.

use engine::event::{Device, Io, Op, Purpose};
use engine::types::VolumeId;
use std::collections::BTreeMap;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub requests: u64,
    pub bytes: u64,
}

impl Count {
    pub fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn since(self, before: Count) -> Count {
        Count {
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub reads: Count,
    /// Data into images, zeroes included.
    pub writes: Count,
    pub journal: Count,
    /// Of the journal, what was read back to be applied.
    pub journal_reads: Count,
    pub ledger: Count,
    pub syncs: u64,
}

impl Origin {
    /// All that a storage network counts.
    pub fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests + self.beside()
    }

    /// Of journals and ledgers.
    pub fn beside(&self) -> u64 {
        self.journal.requests + self.ledger.requests
    }

    /// Counts what goes to shared storage; its place in [`Kinds`] if it is a request.
    fn add(&mut self, io: &Io) -> Option<usize> {
        let moves = matches!(
            io.op,
            Op::Read | Op::Unpack(_) | Op::Write | Op::Zero { .. }
        );
        self.syncs += u64::from(io.op == Op::Sync);
        if !moves {
            return None;
        }
        let (count, kind) = match (io.device, io.op) {
            (Device::Cache | Device::Former(_) | Device::Peer(..), _) => return None,
            (Device::Origin(_) | Device::Base(..), Op::Read | Op::Unpack(_)) => {
                (&mut self.reads, 0)
            }
            (Device::Origin(_) | Device::Base(..), _) => (&mut self.writes, 1),
            (Device::Journal(_), op) => {
                if op == Op::Read {
                    self.journal_reads.add(io.bytes);
                }
                (&mut self.journal, 2)
            }
            (Device::Ledger(_), _) => (&mut self.ledger, 3),
        };
        count.add(io.bytes);
        Some(kind)
    }

    pub fn since(&self, before: &Origin) -> Origin {
        Origin {
            reads: self.reads.since(before.reads),
            writes: self.writes.since(before.writes),
            journal: self.journal.since(before.journal),
            journal_reads: self.journal_reads.since(before.journal_reads),
            ledger: self.ledger.since(before.ledger),
            syncs: self.syncs - before.syncs,
        }
    }
}

/// Requests to shared storage, by what they are for: data read, data written, journal, ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(pub [u32; 4]);

impl Kinds {
    pub const NAMES: [&'static str; 4] = ["reads", "writes", "journal", "ledger"];

    pub fn all(self) -> u32 {
        self.0.iter().sum()
    }
}

/// Requests to shared storage in a part of the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    /// The first of its busiest seconds, and what that one consists of.
    pub busiest_at: usize,
    pub busiest: Kinds,
    /// By kind, as in [`Kinds`].
    pub requests: [u64; 4],
}

/// What was written to the cache device, by what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flash {
    /// Records with what guests wrote, headers and what fills up their blocks included.
    pub records: Count,
    pub footers: Count,
    /// Clean blocks, with headers and footers of their own.
    pub fills: Count,
    /// Zeroes into segments that were never written, once in the life of a cache.
    pub prepared: Count,
    /// Checkpoints, and data that moves.
    pub other: Count,
}

impl Flash {
    fn of(&mut self, purpose: Purpose) -> &mut Count {
        match purpose {
            Purpose::Log => &mut self.records,
            Purpose::Footer => &mut self.footers,
            Purpose::Fill => &mut self.fills,
            Purpose::Prepare => &mut self.prepared,
            _ => &mut self.other,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub origin: Origin,
    /// The same for each volume.
    pub by_volume: BTreeMap<VolumeId, Origin>,
    pub flash_reads: Count,
    pub flash_writes: Count,
    pub flash: Flash,
    /// Requests to shared storage in each second of virtual time.
    pub seconds: Vec<Kinds>,
}

impl Tally {
    pub fn add(&mut self, now_ns: u64, io: &Io) {
        let volume = match (io.device, io.op) {
            (Device::Cache, Op::Read) => return self.flash_reads.add(io.bytes),
            (Device::Cache, Op::Write) => {
                self.flash.of(io.purpose).add(io.bytes);
                return self.flash_writes.add(io.bytes);
            }
            (Device::Cache | Device::Former(_) | Device::Peer(..), _) => return,
            (Device::Origin(volume) | Device::Base(volume, _), _) => volume,
            (Device::Journal(volume) | Device::Ledger(volume), _) => volume,
        };
        self.by_volume.entry(volume).or_default().add(io);
        let Some(kind) = self.origin.add(io) else {
            return;
        };
        let second = (now_ns / NS_PER_SECOND) as usize;
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Kinds::default());
        }
        self.seconds[second].0[kind] += 1;
    }

    /// What a part of the time consists of.
    pub fn period(&self, from_second: usize, seconds: usize) -> Part {
        let end = from_second.saturating_add(seconds).min(self.seconds.len());
        let mut part = Part::default();
        for (at, kinds) in self.seconds.iter().enumerate().take(end).skip(from_second) {
            if kinds.all() > part.busiest.all() {
                part.busiest_at = at;
                part.busiest = *kinds;
            }
            for (sum, count) in part.requests.iter_mut().zip(kinds.0) {
                *sum += u64::from(count);
            }
        }
        part
    }
}
