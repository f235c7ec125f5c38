//! What directories are written like: how soon again, how soon flushed, what a start reads of it.
//!
//! Owns the figures by directory, for a proposal of which of them may be late. Always true: a
//! request counts for one directory, so that sums of several count nothing twice; bytes of rewrites
//! come from the blocks that are looked at, and so does what they are shares of. A start of a guest
//! is a read of the first sector of its disk, which firmware and kernels do and running guests do
//! not; such reads within a minute are one start. Deliberately absent: what the directories are
//! called, which the caller knows, and what follows from the figures.

use super::blocks::MixedMap;
use crate::trace::{Op, Record, SECTOR_BYTES};
use std::collections::VecDeque;

/// A write that a flush follows within so long asks to be durable.
pub const FLUSHED_NS: u64 = 50_000_000;
/// Intervals of rewrites; the third is the caller's.
pub const INTERVALS_MS: [u64; 2] = [10_000, 600_000];
/// Firmware, boot loader and kernel each read the first sector.
const START_NS: u64 = 60_000_000_000;
/// Writes that may still be flushed, by disk; of more the oldest count as flushed.
const RECENT_MAX: usize = 1 << 16;
const MILLISECOND_NS: u64 = 1_000_000;

/// A directory by the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryId(pub u32);

/// Where a request belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    pub directory: DirectoryId,
    /// The file came with a package.
    pub owned: bool,
    /// The file is not in the image any more.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub writes: u64,
    pub bytes: u64,
    /// Of the bytes, those in blocks that are looked at, each as often as it counts.
    pub looked_bytes: u64,
    /// Of these, written before within the intervals and the caller's period.
    pub rewritten: [u64; 3],
    /// Writes that a flush of their disk follows within 50 ms.
    pub flushed: u64,
    /// Writes to files of packages.
    pub owned: u64,
    /// Writes to files that are not there any more.
    pub gone: u64,
    /// Reads after a start of blocks that were written before it.
    pub reads_after_start: u64,
    /// A start came after a write.
    pub has_start: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Started {
    /// The first read of the last start.
    since_ns: u64,
    /// The last read of the first sector.
    read_ns: u64,
    count: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Directories {
    period_ms: u64,
    figures: Vec<Figures>,
    recent: MixedMap<u32, VecDeque<(u64, DirectoryId)>>,
    started: MixedMap<u32, Started>,
    /// By disk and directory.
    first_writes: MixedMap<(u32, u32), u64>,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByDirectory {
    /// By number.
    pub figures: Vec<Figures>,
    pub starts: u64,
}

impl Directories {
    pub fn new(period_ms: u64) -> Directories {
        Directories {
            period_ms,
            ..Directories::default()
        }
    }

    fn of(&mut self, DirectoryId(number): DirectoryId) -> &mut Figures {
        let at = number as usize;
        if self.figures.len() <= at {
            self.figures.resize(at + 1, Figures::default());
        }
        &mut self.figures[at]
    }

    /// The next request in the order of time. The start before which a write is old, for a read.
    pub fn add(&mut self, record: &Record, here: Option<Here>) -> Option<u64> {
        let (disk, now) = (record.disk.0, record.time_ns);
        match (record.op, here) {
            (Op::Flush, _) => self.flush(disk, now),
            (Op::Write, Some(here)) => self.write(record, here),
            (Op::Read, _) => return self.read(record),
            (Op::Write, None) | (Op::Discard, _) => {}
        }
        None
    }

    fn write(&mut self, record: &Record, here: Here) {
        let (disk, now) = (record.disk.0, record.time_ns);
        let figures = self.of(here.directory);
        figures.writes += 1;
        let bytes = u64::from(record.sectors) * SECTOR_BYTES;
        figures.bytes = figures.bytes.saturating_add(bytes);
        figures.owned += u64::from(here.owned);
        figures.gone += u64::from(here.gone);
        let key = (disk, here.directory.0);
        self.first_writes.entry(key).or_insert(now);
        let recent = self.recent.entry(disk).or_default();
        while recent.front().is_some_and(|it| it.0 + FLUSHED_NS < now) {
            recent.pop_front();
        }
        recent.push_back((now, here.directory));
        let lost = (recent.len() > RECENT_MAX).then(|| recent.pop_front());
        if let Some((_, directory)) = lost.flatten() {
            self.of(directory).flushed += 1;
        }
    }

    fn flush(&mut self, disk: u32, now: u64) {
        let recent = self.recent.get_mut(&disk).map(std::mem::take);
        for (at, directory) in recent.into_iter().flatten() {
            if now - at <= FLUSHED_NS {
                self.of(directory).flushed += 1;
            }
        }
    }

    fn read(&mut self, record: &Record) -> Option<u64> {
        let (disk, now) = (record.disk.0, record.time_ns);
        if record.sector == 0 {
            let started = self.started.entry(disk).or_default();
            if started.count == 0 || now - started.read_ns > START_NS {
                started.since_ns = now;
                started.count += 1;
            }
            started.read_ns = now;
        }
        self.started.get(&disk).map(|it| it.since_ns)
    }

    /// Written bytes of blocks that are looked at.
    pub fn looked(&mut self, directory: DirectoryId, sectors: u64, weight: u64) {
        let bytes = (sectors * SECTOR_BYTES).saturating_mul(weight);
        let figures = self.of(directory);
        figures.looked_bytes = figures.looked_bytes.saturating_add(bytes);
    }

    /// Of them, these were written so long ago.
    pub fn again(&mut self, directory: DirectoryId, ago_ms: u64, sectors: u64, weight: u64) {
        let bytes = (sectors * SECTOR_BYTES).saturating_mul(weight);
        let [short, long] = INTERVALS_MS;
        let intervals = [short, long, self.period_ms];
        let sums = &mut self.of(directory).rewritten;
        for (sum, _) in sums.iter_mut().zip(intervals).filter(|it| ago_ms <= it.1) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// A read found what was written before the last start.
    pub fn read_after_start(&mut self, directory: DirectoryId, weight: u64) {
        self.of(directory).reads_after_start += weight;
    }

    pub fn finish(mut self) -> ByDirectory {
        for ((disk, directory), first) in std::mem::take(&mut self.first_writes) {
            let started = self.started.get(&disk);
            if started.is_some_and(|it| first < it.since_ns) {
                self.of(DirectoryId(directory)).has_start = true;
            }
        }
        ByDirectory {
            figures: self.figures,
            starts: self.started.values().map(|it| it.count).sum(),
        }
    }
}

/// Whether a block whose oldest sector was written then is older than a start.
pub fn is_before(written_ms: u64, start_ns: u64) -> bool {
    written_ms < start_ns / MILLISECOND_NS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::NameId;
    use crate::trace::analyze::{Analysis, Options};

    const MS: u64 = MILLISECOND_NS;
    const HOUR_MS: u64 = 3_600_000;

    fn record(millis: u64, op: Op, sector: u64) -> Record {
        Record {
            time_ns: millis * MS,
            disk: NameId(0),
            op,
            sector,
            sectors: if op == Op::Flush { 0 } else { 8 },
            path: None,
        }
    }

    /// Each request with the number of its directory.
    fn found(requests: &[(u64, Op, u64, u32)]) -> ByDirectory {
        let mut analysis = Analysis::new(Options {
            directory_period_ms: Some(HOUR_MS),
            ..Options::default()
        });
        for (millis, op, sector, directory) in requests {
            let here = Here {
                directory: DirectoryId(*directory),
                owned: *directory == 1,
                gone: *directory == 2,
            };
            analysis.add_in(&record(*millis, *op, *sector), None, Some(here));
        }
        analysis.finish().directories.expect("asked for")
    }

    /// Fails when: an interval leaves out its end, or rewrites count for another directory.
    #[test]
    fn rewrites_count_by_interval_for_the_directory_that_writes_again() {
        let all = found(&[
            (0, Op::Write, 80, 0),
            (10_000, Op::Write, 80, 0),
            (610_000, Op::Write, 80, 1),
            (610_000 + HOUR_MS, Op::Write, 80, 1),
            (610_001 + 2 * HOUR_MS, Op::Write, 80, 1),
            (610_002 + 2 * HOUR_MS, Op::Write, 800, 2),
        ]);
        let [first, second, third] = &all.figures[..] else {
            panic!("{all:?}");
        };
        assert_eq!((first.writes, first.bytes), (2, 8192));
        assert_eq!(first.rewritten, [4096; 3]);
        assert_eq!(second.looked_bytes, 3 * 4096);
        assert_eq!(second.rewritten, [0, 4096, 2 * 4096]);
        assert_eq!((second.owned, second.gone), (3, 0));
        assert_eq!((third.owned, third.gone, third.rewritten), (0, 1, [0; 3]));
    }

    /// Fails when: a flush counts for writes that are older than 50 ms, or counts one twice.
    #[test]
    fn a_write_is_flushed_by_the_next_flush_within_fifty_milliseconds() {
        let all = found(&[
            (0, Op::Write, 8, 0),
            (1, Op::Write, 16, 1),
            (51, Op::Flush, 0, 0),
            (52, Op::Flush, 0, 0),
            (60, Op::Write, 24, 0),
        ]);
        let flushed: Vec<u64> = all.figures.iter().map(|it| it.flushed).collect();
        assert_eq!(flushed, [0, 1]);
    }

    /// Fails when: reads before a start count, or those of what was written after it.
    #[test]
    fn reads_after_a_start_count_when_they_find_what_was_written_before_it() {
        let read = |millis, sector, directory| (millis, Op::Read, sector, directory);
        let all = found(&[
            read(0, 0, 9),
            (1, Op::Write, 80, 0),
            (1, Op::Write, 160, 1),
            read(2, 80, 0),
            // One start, although the first sector is read twice.
            read(100_000, 0, 9),
            read(100_500, 0, 9),
            (100_600, Op::Write, 240, 2),
            (100_600, Op::Write, 160, 1),
            read(100_700, 160, 1),
            read(100_700, 240, 2),
            read(100_700, 80, 0),
            read(100_800, 80, 0),
        ]);
        assert_eq!(all.starts, 2);
        let figures = all.figures.iter();
        let seen: Vec<_> = figures
            .map(|it| (it.reads_after_start, it.has_start))
            .collect();
        assert_eq!(seen[..3], [(2, true), (0, true), (0, false)]);
    }
}
