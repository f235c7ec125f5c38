//! What guests ask for.
//!
//! Owns the shares of each load, and how fast it is said to be. Always true: a load writes only the
//! first part of a volume that the options name, so that what is dirty has a bound.
//! Deliberately absent: the loads' own programs; these are their requests.

use crate::bench::work::{BLOCK_BYTES, Share, Verb, Walk, Work};

const STREAM_JOBS: u64 = 2;
const STREAM_DEPTH: usize = 8;
/// Of a page of the database, and of a record of its log.
const PAGE_BYTES: u64 = 32 << 10;
const RECORD_BYTES: u64 = 14 << 10;
const DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// 64 KiB sequential writes, two jobs with 8 in flight each.
    Fio,
    /// A database: pages of 32 KiB read and written at random, its log written in order.
    Jetstress,
    /// A block written and flushed, one at a time.
    WriteFlush,
    /// Blocks written at random, 16 in flight.
    Write,
}

impl Load {
    /// Of one write of [`Load::Fio`].
    pub const STREAM_BYTES: u64 = 64 << 10;
    pub const ALL: [Load; 4] = [Load::Fio, Load::Jetstress, Load::WriteFlush, Load::Write];

    pub const fn key(self) -> &'static str {
        match self {
            Load::Fio => "fio",
            Load::Jetstress => "jetstress",
            Load::WriteFlush => "write-flush",
            Load::Write => "write",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Load::Fio => "64 KiB sequential writes, 2 x 8 in flight, MiB/s",
            Load::Jetstress => "32 KiB random, 14 KiB sequential, 16 in flight, requests/s",
            Load::WriteFlush => "4 KiB write + flush, 1 in flight, p50 us",
            Load::Write => "4 KiB random writes, 16 in flight, requests/s",
        }
    }

    /// The unit of its figure.
    pub const fn figure(self) -> &'static str {
        match self {
            Load::Fio => "mib_per_second",
            Load::Jetstress | Load::Write => "iops",
            Load::WriteFlush => "p50_us",
        }
    }

    pub const fn is_time(self) -> bool {
        matches!(self, Load::WriteFlush)
    }

    /// One piece of work for each connection, over so many bytes of a volume.
    pub fn works(self, bytes: u64) -> Vec<Work> {
        let blocks = bytes / BLOCK_BYTES;
        match self {
            Load::Fio => {
                let each = bytes / Load::STREAM_BYTES / STREAM_JOBS;
                let job = |at: u64| {
                    let walk = Walk::ascending(at * each..(at + 1) * each, Load::STREAM_BYTES);
                    Work::along(Verb::Write, walk, STREAM_DEPTH)
                };
                (0..STREAM_JOBS).map(job).collect()
            }
            Load::Jetstress => vec![database(bytes)],
            Load::WriteFlush => vec![Work::only(Verb::Sealed, 0..blocks, 1)],
            Load::Write => vec![Work::only(Verb::Write, 0..blocks, DEPTH)],
        }
    }
}

/// Five reads and three writes of pages to two of the log, which has the last eighth.
fn database(bytes: u64) -> Work {
    let log = bytes / 8 * 7;
    let share = |per_mille, verb, walk| Share {
        per_mille,
        verb,
        walk,
    };
    let pages = || Walk::scattered(0..log / PAGE_BYTES, PAGE_BYTES);
    let records = log.div_ceil(RECORD_BYTES)..bytes / RECORD_BYTES;
    let shares = vec![
        share(500, Verb::Read, pages()),
        share(300, Verb::Write, pages()),
        share(200, Verb::Write, Walk::ascending(records, RECORD_BYTES)),
    ];
    Work::new(shares, DEPTH)
}
