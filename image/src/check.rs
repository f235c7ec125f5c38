//! Whether the tables of a file agree: references against refcounts, as `qemu-img check` counts.
//!
//! Owns the verdict. A *corruption* can lose data: a cluster used and not counted, an entry without
//! a meaning, a COPIED bit that lies. A *leak* is a cluster counted and not used; it wastes space
//! and nothing else. Always true: the file is only read; memory is 16 MiB of counts, as much of
//! sectors, and pieces of 64 KiB, whatever the file says. A file of more clusters than one window
//! holds is gone through once for each window. Leaks are listed for who frees them.
//! Deliberately absent: writing, repair of corruptions, and backing files.

use crate::error::Error;
use crate::format::be64;
use crate::format::entry::{Cluster, L1, L2};
use crate::format::header::Header;
use crate::format::refcount::{self, TableEntry};
use crate::limits;
use crate::meta::{Sector, Sectors, Tables};
use crate::source::{self, Failed, Source};
use crate::types::{FileId, Range, SECTOR_BYTES};
use alloc::vec;
use alloc::vec::Vec;

/// Clusters whose references are counted at a time, in 4 bytes each.
const WINDOW_CLUSTERS: u64 = 4 << 20;
/// For refcounts that are looked up one by one.
const SECTORS_BYTES: u64 = 16 << 20;
const PIECE_BYTES: u64 = 64 << 10;
/// Findings that are told; the rest is only counted.
pub const FINDINGS_MAX: usize = 64;

const FILE: FileId = FileId(0);

/// What was found, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    #[error("cluster {cluster} is used {used} times and counted {counted} times")]
    Uncounted {
        cluster: u64,
        used: u64,
        counted: u64,
    },
    #[error("cluster {cluster} is counted {counted} times and used {used} times: space is lost")]
    Leak {
        cluster: u64,
        used: u64,
        counted: u64,
    },
    #[error("cluster {cluster} is used more often than its refcount can say")]
    Overflow { cluster: u64 },
    #[error("{what} of {bytes} bytes at {at:#x} lies behind the end of the file")]
    Outside {
        what: &'static str,
        at: u64,
        bytes: u64,
    },
    #[error("{what} at {at:#x} begins inside a cluster")]
    Misaligned { what: &'static str, at: u64 },
    #[error("the entry at {at:#x} has reserved bits set: {word:#018x}")]
    Reserved { at: u64, word: u64 },
    #[error("the entry at {at:#x} has a bitmap that contradicts it: {word:#018x}")]
    Bitmap { at: u64, word: u64 },
    #[error("the entry at {at:#x} says that a compressed cluster may be written in place")]
    CompressedCopied { at: u64 },
    #[error("the entry at {at:#x} is wrong about COPIED: its cluster is counted {counted} times")]
    Copied { at: u64, counted: u64 },
    #[error("the refcount block at {at:#x} is used {used} times")]
    BlockShared { at: u64, used: u64 },
    #[error("it {0}")]
    Table(Error),
}

impl Finding {
    pub const fn is_leak(&self) -> bool {
        matches!(self, Finding::Leak { .. })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub corruptions: u64,
    pub leaks: u64,
    /// Clusters with data in the active state; those of them that are compressed.
    pub allocated_clusters: u64,
    pub compressed_clusters: u64,
    /// The end of the last cluster that is used or counted.
    pub end_bytes: u64,
    /// The first ones.
    pub findings: Vec<Finding>,
}

/// A cluster that is counted more often than it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    pub cluster: u64,
    pub used: u64,
}

/// Goes through the whole file. Ends early only when it cannot be read, or is too large.
pub fn check<S: Source>(
    header: &Header,
    file_bytes: u64,
    source: &mut S,
) -> Result<Report, Failed<S::Error>> {
    check_and_list(header, file_bytes, source, 0).map(|(report, _)| report)
}

/// The same with the first leaks, at most so many, in the order of the file. A count behind the
/// end is listed as well, which `qemu-img check` does not see and the report does not name: the
/// power can go when the count is on media and what was to make the file longer is not.
pub fn check_and_list<S: Source>(
    header: &Header,
    file_bytes: u64,
    source: &mut S,
    leaks_max: usize,
) -> Result<(Report, Vec<Leak>), Failed<S::Error>> {
    let clusters = file_bytes.div_ceil(header.cluster_bytes());
    if clusters > limits::CHECKED_CLUSTERS_MAX {
        return Err(Failed::Format(Error::TooLarge {
            what: "number of clusters to check",
            found: clusters,
            most: limits::CHECKED_CLUSTERS_MAX,
        }));
    }
    let mut pass = Pass {
        header,
        file_bytes,
        clusters,
        source,
        counts: Vec::new(),
        start: 0,
        sectors: Sectors::new(SECTORS_BYTES),
        report: Report::default(),
        leaks: Vec::new(),
        leaks_max,
    };
    // A cluster that begins at the end of the file may be used in part.
    while pass.start <= clusters {
        let count = WINDOW_CLUSTERS.min(clusters + 1 - pass.start);
        pass.counts.clear();
        pass.counts.resize(count as usize, 0);
        pass.references().map_err(Failed::Read)?;
        pass.compare().map_err(Failed::Read)?;
        pass.start += count;
    }
    if pass.report.corruptions == 0 {
        pass.list_behind_end().map_err(Failed::Read)?;
    }
    Ok((pass.report, pass.leaks))
}

/// The sectors of refcounts, with their numbers, in which these clusters are counted as often as
/// they are used.
pub fn without_leaks<S: Source>(
    header: &Header,
    source: &mut S,
    leaks: &[Leak],
) -> Result<Vec<(u64, Sector)>, S::Error> {
    let order = header.refcount_order;
    let per_block = refcount::block_clusters(header);
    let mut changed: Vec<(u64, Sector)> = Vec::new();
    for &Leak { cluster, used } in leaks {
        let mut entry = [0; 8];
        source.read(
            header.refcount_table.at + cluster / per_block * 8,
            &mut entry,
        )?;
        let block = TableEntry(u64::from_be_bytes(entry)).block_at();
        let at = block + refcount::byte_of(order, cluster % per_block);
        let number = at / SECTOR_BYTES;
        if changed.last().is_none_or(|it| it.0 != number) {
            let mut sector = [0; SECTOR_BYTES as usize];
            source.read(number * SECTOR_BYTES, &mut sector)?;
            changed.push((number, sector));
        }
        let (_, sector) = changed.last_mut().expect("just put there");
        let per_sector = (SECTOR_BYTES * 8) >> order;
        refcount::set(sector, order, cluster % per_sector, used);
    }
    Ok(changed)
}

/// One way through the file. In the first one structure is judged as well.
struct Pass<'a, S: Source> {
    header: &'a Header,
    file_bytes: u64,
    clusters: u64,
    source: &'a mut S,
    /// References of the clusters from `start` on.
    counts: Vec<u32>,
    start: u64,
    sectors: Sectors,
    report: Report,
    leaks: Vec<Leak>,
    leaks_max: usize,
}

impl<S: Source> Pass<'_, S> {
    fn is_first(&self) -> bool {
        self.start == 0
    }

    fn find(&mut self, finding: Finding) {
        match finding.is_leak() {
            true => self.report.leaks += 1,
            false => self.report.corruptions += 1,
        }
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        }
    }

    /// A finding that has nothing to do with the window.
    fn find_once(&mut self, finding: Finding) {
        if self.is_first() {
            self.find(finding);
        }
    }

    /// Counts a reference to each cluster of a range. The last cluster of a file may be cut.
    fn count(&mut self, what: &'static str, range: Range) {
        let Range { at, bytes } = range;
        if bytes == 0 {
            return;
        }
        let cluster_bytes = self.header.cluster_bytes();
        if range.end().saturating_sub(self.file_bytes) >= cluster_bytes {
            self.find_once(Finding::Outside { what, at, bytes });
            return;
        }
        let first = (at / cluster_bytes).max(self.start);
        let end = (range.end() - 1) / cluster_bytes + 1;
        let end = end.min(self.start + self.counts.len() as u64);
        let most = refcount::most(self.header.refcount_order).min(u64::from(u32::MAX));
        for cluster in first..end {
            let count = &mut self.counts[(cluster - self.start) as usize];
            if u64::from(*count) < most {
                *count += 1;
            } else {
                self.find(Finding::Overflow { cluster });
            }
        }
    }

    /// How often a cluster is counted; `None` where the table that says it is wrong.
    fn counted(&mut self, cluster: u64) -> Result<Option<u64>, S::Error> {
        let order = self.header.refcount_order;
        let per_block = refcount::block_clusters(self.header);
        let block = match self.block(cluster / per_block)? {
            None => return Ok(None),
            Some(0) => return Ok(Some(0)),
            Some(at) => at,
        };
        let number = cluster % per_block;
        let byte = block.saturating_add(refcount::byte_of(order, number));
        let per_sector = (SECTOR_BYTES * 8) >> order;
        let sector = self.sector(byte / SECTOR_BYTES)?;
        Ok(Some(refcount::get(&sector, order, number % per_sector)))
    }

    /// Where a refcount block lies, zero if there is none; `None` if the entry is wrong.
    fn block(&mut self, number: u64) -> Result<Option<u64>, S::Error> {
        let table = self.header.refcount_table;
        if number >= table.bytes / 8 {
            return Ok(Some(0));
        }
        let at = table.at + number * 8;
        let sector = self.sector(at / SECTOR_BYTES)?;
        let block = TableEntry(be64(&sector, (at % SECTOR_BYTES) as usize)).block_at();
        Ok(block
            .is_multiple_of(self.header.cluster_bytes())
            .then_some(block))
    }

    fn sector(&mut self, sector: u64) -> Result<[u8; SECTOR_BYTES as usize], S::Error> {
        if let Some(found) = self.sectors.sector(FILE, sector) {
            return Ok(*found);
        }
        let start = sector * SECTOR_BYTES / PIECE_BYTES * PIECE_BYTES;
        let mut bytes = vec![0; PIECE_BYTES as usize];
        self.source.read(start, &mut bytes)?;
        self.sectors.fill(FILE, start, &bytes, sector);
        let found = self.sectors.sector(FILE, sector);
        Ok(*found.expect("what was filled in is there"))
    }

    /// A table in pieces, with the place of each.
    fn table(
        &mut self,
        range: Range,
        mut each: impl FnMut(&mut Self, u64, &[u8]) -> Result<(), S::Error>,
    ) -> Result<(), S::Error> {
        let mut bytes = vec![0; PIECE_BYTES.min(range.bytes) as usize];
        let mut at = range.at;
        // What lies behind the end of the file is zeroes, which are entries without a meaning.
        let end = range
            .end()
            .min(self.file_bytes.next_multiple_of(SECTOR_BYTES));
        while at < end {
            let piece = &mut bytes[..PIECE_BYTES.min(range.end() - at) as usize];
            self.source.read(at, piece)?;
            each(self, at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// All that is referenced.
    fn references(&mut self) -> Result<(), S::Error> {
        let header = self.header;
        let whole = header.cluster_bytes();
        self.count(
            "the header",
            Range {
                at: 0,
                bytes: whole,
            },
        );
        self.l1("the L1 table", header.l1(), true)?;
        self.snapshots()?;
        self.count("the refcount table", header.refcount_table);
        if let Some(range) = header.encryption_header {
            self.count("the encryption header", range);
        }
        self.bitmaps()?;
        self.refcount_blocks()
    }

    fn l1(&mut self, what: &'static str, range: Range, active: bool) -> Result<(), S::Error> {
        self.count(what, range);
        self.table(range, |pass, start, bytes| {
            for (at, word) in words(start, bytes) {
                if word != 0 {
                    pass.l1_entry(at, L1(word), active)?;
                }
            }
            Ok(())
        })
    }

    fn l1_entry(&mut self, at: u64, entry: L1, active: bool) -> Result<(), S::Error> {
        let bytes = self.header.cluster_bytes();
        if entry.has_reserved_bits() {
            let word = entry.0;
            self.find_once(Finding::Reserved { at, word });
        }
        let table = Range {
            at: entry.table_at(),
            bytes,
        };
        self.count("an L2 table", table);
        if !table.at.is_multiple_of(bytes) {
            let (what, at) = ("an L2 table", table.at);
            self.find_once(Finding::Misaligned { what, at });
            return Ok(());
        }
        if active && table.at != 0 {
            self.copied(at, table.at, entry.is_copied())?;
        }
        self.table(table, |pass, start, bytes| {
            let step = pass.header.l2_entry_bytes() as usize;
            for (number, entry) in bytes.chunks_exact(step).enumerate() {
                let entry = L2 {
                    word: be64(entry, 0),
                    bitmap: be64(entry, 8),
                    extended: step == 16,
                };
                if entry.word != 0 || entry.bitmap != 0 {
                    pass.l2_entry(start + (number * step) as u64, entry, active)?;
                }
            }
            Ok(())
        })
    }

    fn l2_entry(&mut self, at: u64, entry: L2, active: bool) -> Result<(), S::Error> {
        let word = entry.word;
        let cluster = entry.cluster(self.header.cluster_bits);
        let compressed = matches!(cluster, Cluster::Compressed(_));
        if !compressed && entry.has_reserved_bits() {
            self.find_once(Finding::Reserved { at, word });
        }
        if entry.is_contradictory(cluster) {
            self.find_once(Finding::Bitmap { at, word });
        }
        let bytes = self.header.cluster_bytes();
        let data_at = match cluster {
            Cluster::Unallocated | Cluster::Zero(None) => return Ok(()),
            Cluster::Compressed(from) => {
                if entry.is_copied() {
                    self.find_once(Finding::CompressedCopied { at });
                }
                let Range { at, bytes } = Range {
                    at: from.at,
                    bytes: from.bytes,
                };
                self.count("a compressed cluster", Range { at, bytes });
                self.allocated(active, true);
                return Ok(());
            }
            Cluster::Zero(Some(at)) | Cluster::Data(at) => at,
        };
        let what = "a cluster of data";
        if data_at % bytes != 0 {
            self.find_once(Finding::Misaligned { what, at: data_at });
        }
        self.count(what, Range { at: data_at, bytes });
        self.allocated(active, false);
        match active {
            true => self.copied(at, data_at, entry.is_copied()),
            false => Ok(()),
        }
    }

    fn allocated(&mut self, active: bool, compressed: bool) {
        if self.is_first() && active {
            self.report.allocated_clusters += 1;
            self.report.compressed_clusters += u64::from(compressed);
        }
    }

    /// COPIED says that a cluster is counted once.
    fn copied(&mut self, at: u64, to: u64, copied: bool) -> Result<(), S::Error> {
        if !self.is_first() {
            return Ok(());
        }
        let counted = self.counted(to >> self.header.cluster_bits)?;
        if let Some(counted) = counted.filter(|it| (*it == 1) != copied) {
            self.find(Finding::Copied { at, counted });
        }
        Ok(())
    }

    fn snapshots(&mut self) -> Result<(), S::Error> {
        if self.header.snapshots == 0 {
            return Ok(());
        }
        let mut tables = Vec::new();
        let mut cut = Vec::new();
        let listed = source::snapshots(self.header, self.source, |it| {
            if !it.whole {
                cut.push((tables.len() as u32 + 1, it.at));
            }
            tables.push(it.l1);
        });
        let bytes = match listed {
            Ok(bytes) => bytes,
            Err(Failed::Read(error)) => return Err(error),
            Err(Failed::Format(error)) => {
                self.find_once(Finding::Table(error));
                return Ok(());
            }
        };
        for (number, at) in cut {
            let (of, what) = (self.header.snapshots, "without the sizes of version 3");
            self.find_once(Finding::Table(Error::Snapshot {
                number,
                of,
                at,
                what,
            }));
        }
        let at = self.header.snapshots_at;
        self.count("the snapshot table", Range { at, bytes });
        for l1 in tables {
            let what = "the L1 table of a snapshot";
            if l1.at % self.header.cluster_bytes() != 0 {
                self.find_once(Finding::Misaligned { what, at: l1.at });
            } else if l1.bytes > limits::L1_BYTES_MAX {
                self.find_once(Finding::Table(Error::TooLarge {
                    what,
                    found: l1.bytes,
                    most: limits::L1_BYTES_MAX,
                }));
            } else {
                self.l1(what, l1, false)?;
            }
        }
        Ok(())
    }

    fn bitmaps(&mut self) -> Result<(), S::Error> {
        let Some(bitmaps) = self.header.bitmaps else {
            return Ok(());
        };
        self.count("the bitmap directory", bitmaps.directory);
        let mut tables = Vec::new();
        let listed = source::bitmap_tables(self.header, self.source, |_, table| {
            tables.push(table);
            Ok(())
        });
        match listed {
            Ok(()) => {}
            Err(Failed::Read(error)) => return Err(error),
            Err(Failed::Format(error)) => self.find_once(Finding::Table(error)),
        }
        for table in tables {
            self.count("the table of a bitmap", table);
            self.table(table, |pass, start, bytes| {
                for (at, word) in words(start, bytes) {
                    pass.bitmap_entry(at, word);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn bitmap_entry(&mut self, at: u64, word: u64) {
        const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
        // Without an offset the lowest bit says whether all bits of it are set.
        let reserved = match word & OFFSET {
            0 => !OFFSET & !1,
            _ => !OFFSET,
        };
        let bytes = self.header.cluster_bytes();
        let data_at = word & OFFSET;
        if word & reserved != 0 || !data_at.is_multiple_of(bytes) {
            self.find_once(Finding::Reserved { at, word });
        } else if data_at != 0 {
            self.count("a cluster of a bitmap", Range { at: data_at, bytes });
        }
    }

    fn refcount_blocks(&mut self) -> Result<(), S::Error> {
        let table = self.header.refcount_table;
        self.table(table, |pass, start, bytes| {
            for (at, word) in words(start, bytes) {
                pass.refcount_block(at, TableEntry(word));
            }
            Ok(())
        })?;
        // Only now are all of them counted.
        self.table(table, |pass, start, bytes| {
            for (_, word) in words(start, bytes) {
                pass.block_is_used_once(TableEntry(word).block_at());
            }
            Ok(())
        })
    }

    fn refcount_block(&mut self, at: u64, entry: TableEntry) {
        let bytes = self.header.cluster_bytes();
        let (block, word) = (entry.block_at(), entry.0);
        let what = "a refcount block";
        if entry.has_reserved_bits() {
            self.find_once(Finding::Reserved { at, word });
        } else if block % bytes != 0 {
            self.find_once(Finding::Misaligned { what, at: block });
        } else if block / bytes >= self.clusters {
            let at = block;
            self.find_once(Finding::Outside { what, at, bytes });
        } else if block != 0 {
            self.count(what, Range { at: block, bytes });
        }
    }

    fn block_is_used_once(&mut self, at: u64) {
        let cluster = at / self.header.cluster_bytes();
        if at == 0 || cluster >= self.clusters || cluster < self.start {
            return;
        }
        let used = self.counts.get((cluster - self.start) as usize);
        if let Some(&used) = used.filter(|used| **used > 1) {
            let used = u64::from(used);
            self.find(Finding::BlockShared { at, used });
        }
    }

    /// References of the window against what the file counts.
    fn compare(&mut self) -> Result<(), S::Error> {
        let counts = core::mem::take(&mut self.counts);
        for (cluster, &used) in (self.start..).zip(&counts) {
            let used = u64::from(used);
            // Behind the end only what is used has to be counted.
            if used == 0 && cluster >= self.clusters {
                continue;
            }
            let Some(counted) = self.counted(cluster)? else {
                continue;
            };
            if used > 0 || counted > 0 {
                self.report.end_bytes = (cluster + 1) * self.header.cluster_bytes();
            }
            if used > counted {
                self.find(Finding::Uncounted {
                    cluster,
                    used,
                    counted,
                });
            } else if used < counted {
                if self.leaks.len() < self.leaks_max {
                    self.leaks.push(Leak { cluster, used });
                }
                self.find(Finding::Leak {
                    cluster,
                    used,
                    counted,
                });
            }
        }
        self.counts = counts;
        Ok(())
    }

    /// Lists what is counted behind the end of the file.
    fn list_behind_end(&mut self) -> Result<(), S::Error> {
        let ends_in_cluster = self.counts.last().is_some_and(|used| *used > 0);
        let first = self.clusters + u64::from(ends_in_cluster);
        let per_block = refcount::block_clusters(self.header);
        for number in first / per_block..self.header.refcount_table.bytes / 8 {
            if matches!(self.block(number)?, Some(0) | None) {
                continue;
            }
            let start = number * per_block;
            for cluster in first.max(start)..start + per_block {
                if self.leaks.len() >= self.leaks_max {
                    return Ok(());
                }
                if self.counted(cluster)?.is_some_and(|counted| counted > 0) {
                    self.leaks.push(Leak { cluster, used: 0 });
                }
            }
        }
        Ok(())
    }
}

/// Entries of eight bytes with their places.
fn words(start: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let entries = bytes.chunks_exact(8).map(|it| be64(it, 0));
    (start..).step_by(8).zip(entries)
}
