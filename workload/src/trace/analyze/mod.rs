//! What a trace, or a set of them, says about the disks it was taken from.
//!
//! Owns one pass over requests in the order of time, and hands each to the analyses, one a file:
//! what Capo (Shamma et al., FAST '11, section 3) found out about desktops, for any trace, and
//! what a cache wants to know. Always true: memory is bounded by the different blocks (`blocks`),
//! by slots of time (`slots`, `peaks`) and by a sample (`reuse`), never by the length of a trace;
//! what is no longer counted exactly says so. Deliberately absent: files, words, plots.

pub mod blocks;
pub mod categories;
pub mod directories;
pub mod divergence;
pub mod flow;
pub mod merge;
#[cfg(test)]
mod naive;
pub mod peaks;
pub mod places;
pub mod reuse;
pub mod rewrites;
pub mod sizes;
pub mod slots;
#[cfg(test)]
mod tests;
pub mod walked;
pub mod working_set;

use super::{NameId, Names, Op, Record, SECTOR_BYTES};
use blocks::{BLOCK_SECTORS, Blocks, CHUNK_BLOCKS, CHUNK_SECTORS, Was};
use categories::{CATEGORIES_MAX, Categories, CategoryId, UNKNOWN};
use directories::{ByDirectory, Directories, Here, is_before};
use divergence::Divergence;
use flow::{Flow, Mix};
use peaks::{Cell, Peak, Peaks, Period, Seen};
use reuse::{Curve, Reuse};
use rewrites::Rewrites;
use sizes::{Sequentiality, Sizes};
use working_set::WorkingSet;

/// No guest asks for more at once; a larger request is counted, and its blocks are not looked at.
pub const REQUEST_SECTORS_MAX: u32 = (64 << 20) / SECTOR_BYTES as u32;

#[derive(Clone, Debug)]
pub struct Options {
    pub peak_ns: u64,
    pub peaks: usize,
    pub periods: Vec<Period>,
    /// Blocks in the sample of the reuse distances.
    pub samples: usize,
    /// Chunks of blocks that are kept, see [`blocks`].
    pub chunks_max: usize,
    /// Figures by directory, with rewrites within so long.
    pub directory_period_ms: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            peak_ns: 15 * 60 * 1_000_000_000,
            peaks: 6,
            periods: Vec::new(),
            samples: 512 << 10,
            chunks_max: 8 << 20,
            directory_period_ms: None,
        }
    }
}

/// Everything that one pass finds.
#[derive(Debug)]
pub struct Analysis {
    options: Options,
    blocks: Blocks,
    flow: Flow,
    sizes: [Sizes; 2],
    sequentiality: Sequentiality,
    peaks: Peaks,
    seen: Seen,
    rewrites: Rewrites,
    divergence: Divergence,
    working_set: WorkingSet,
    reuse: Reuse,
    directories: Option<Directories>,
    by_path: Vec<Mix>,
    last_ns: u64,
    oversized: u64,
}

/// The result.
#[derive(Debug)]
pub struct Report {
    pub flow: Flow,
    pub read_sizes: Sizes,
    pub write_sizes: Sizes,
    pub sequentiality: Sequentiality,
    /// The busiest first.
    pub peaks: Vec<Peak>,
    /// Periods that were named.
    pub periods: Vec<Peak>,
    pub seen: Seen,
    pub rewrites: Rewrites,
    pub divergence: Divergence,
    pub working_set: WorkingSet,
    pub curve: Curve,
    /// By place in the list of paths; empty where none is known.
    pub by_path: Vec<Mix>,
    /// Where they were asked for.
    pub directories: Option<ByDirectory>,
    pub last_ns: u64,
    /// One place in so many was looked at for what concerns blocks; one means all.
    pub weight: u64,
    /// Requests whose blocks were not looked at because they are too large.
    pub oversized: u64,
}

impl Analysis {
    pub fn new(options: Options) -> Analysis {
        Analysis {
            blocks: Blocks::new(options.chunks_max),
            flow: Flow::default(),
            sizes: Default::default(),
            sequentiality: Sequentiality::default(),
            peaks: Peaks::new(options.peak_ns, &options.periods),
            seen: Seen::default(),
            rewrites: Rewrites::default(),
            divergence: Divergence::default(),
            working_set: WorkingSet::default(),
            reuse: Reuse::new(options.samples),
            directories: options.directory_period_ms.map(Directories::new),
            by_path: Vec::new(),
            last_ns: 0,
            oversized: 0,
            options,
        }
    }

    /// The next request in the order of time, of a category if its path is known.
    pub fn add(&mut self, record: &Record, category: Option<CategoryId>) {
        self.add_in(record, category, None);
    }

    /// The same, in a directory if figures by directory are wanted and it is known.
    pub fn add_in(&mut self, record: &Record, category: Option<CategoryId>, here: Option<Here>) {
        assert!(record.time_ns >= self.last_ns, "records come in order");
        self.last_ns = record.time_ns;
        let directories = self.directories.as_mut();
        let start_ns = directories.and_then(|it| it.add(record, here));
        let bytes = u64::from(record.sectors) * SECTOR_BYTES;
        let write = match record.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush => {
                self.flow.flushes += 1;
                return;
            }
            Op::Discard => {
                self.flow.discards += 1;
                self.flow.discard_bytes = self.flow.discard_bytes.saturating_add(bytes);
                return;
            }
        };
        let NameId(disk) = record.disk;
        let category = category.unwrap_or(UNKNOWN);
        self.flow
            .request(record.time_ns, disk, category, write, bytes);
        self.sizes[usize::from(write)].add(record.sectors);
        self.sequentiality
            .add(disk, write, record.sector, record.sectors);
        if let Some(NameId(path)) = record.path {
            let path = path as usize;
            if self.by_path.len() <= path {
                self.by_path.resize(path + 1, Mix::default());
            }
            self.by_path[path].add(write, bytes);
        }
        let mut cell = Cell::default();
        cell.mix.add(write, bytes);
        if record.sectors > REQUEST_SECTORS_MAX {
            self.oversized += 1;
        } else {
            let found = Found {
                here,
                start_ns,
                ..Found::default()
            };
            cell.seen = self.look(record, category, write, found);
            self.seen.add(&cell.seen);
        }
        self.peaks.request(record.time_ns, disk, category, &cell);
    }

    /// Goes over the chunks of a request; what was seen before of a read.
    fn look(
        &mut self,
        record: &Record,
        category: CategoryId,
        write: bool,
        mut found: Found,
    ) -> Seen {
        let (start, end) = (record.sector, record.sector + u64::from(record.sectors));
        for place in start / CHUNK_SECTORS..end.div_ceil(CHUNK_SECTORS) {
            let first = start.max(place * CHUNK_SECTORS);
            let last = end.min((place + 1).saturating_mul(CHUNK_SECTORS));
            self.look_at_chunk(record, category, write, (place, first, last), &mut found);
        }
        match write {
            true => Seen::default(),
            false => {
                let directories = self.directories.as_mut().filter(|_| found.old);
                if let (Some(directories), Some(here)) = (directories, found.here) {
                    directories.read_after_start(here.directory, self.blocks.weight());
                }
                found.seen
            }
        }
    }

    /// The sectors of a request in one chunk.
    fn look_at_chunk(
        &mut self,
        record: &Record,
        category: CategoryId,
        write: bool,
        (place, first, last): (u64, u64, u64),
        found: &mut Found,
    ) {
        let NameId(disk) = record.disk;
        let time_ns = record.time_ns;
        let id = self.blocks.chunk(disk, place);
        let weight = self.blocks.weight();
        // A request is looked at where its beginning is, lest large ones count more often.
        if id.is_some() && place == record.sector / CHUNK_SECTORS {
            found.judged = weight;
        }
        for block in first / BLOCK_SECTORS..last.div_ceil(BLOCK_SECTORS) {
            self.reuse.touch(disk, block, write);
            let Some(id) = id else {
                continue;
            };
            let sectors = Range {
                start: first.max(block * BLOCK_SECTORS),
                end: last.min((block + 1).saturating_mul(BLOCK_SECTORS)),
            };
            let count = sectors.end - sectors.start;
            let within = block % CHUNK_BLOCKS;
            let was = if write {
                let base = (block * BLOCK_SECTORS) as usize;
                let range = sectors.start as usize - base..sectors.end as usize - base;
                let day = self.rewrites.day(time_ns);
                day.sectors(count, weight);
                let mut by_directory = self.directories.as_mut().zip(found.here);
                if let Some((directories, here)) = &mut by_directory {
                    directories.looked(here.directory, count, weight);
                }
                let again = |ago, sectors| {
                    day.again(ago, sectors, weight);
                    if let Some((directories, here)) = &mut by_directory {
                        directories.again(here.directory, ago, sectors, weight);
                    }
                };
                let was = self.blocks.write(id, place, within, range, time_ns, again);
                if !was.written {
                    self.divergence.first_write(time_ns, disk, category, weight);
                }
                was
            } else {
                if let Some(start_ns) = found.start_ns {
                    let written = self.blocks.oldest_write_ms(id, within);
                    found.old |= written.is_some_and(|it| is_before(it, start_ns));
                }
                let was = self.blocks.read(id, place, within);
                found.read(count * SECTOR_BYTES * weight, was);
                was
            };
            self.working_set.touch(time_ns, write, was, weight);
        }
        if place == (record.sector + u64::from(record.sectors) - 1) / CHUNK_SECTORS {
            found.end();
        }
    }

    pub fn finish(self) -> Report {
        let [read_sizes, write_sizes] = self.sizes;
        Report {
            periods: self.peaks.named(),
            peaks: self.peaks.busiest(self.options.peaks),
            flow: self.flow,
            read_sizes,
            write_sizes,
            sequentiality: self.sequentiality,
            seen: self.seen,
            rewrites: self.rewrites,
            divergence: self.divergence,
            working_set: self.working_set,
            curve: self.reuse.curve(),
            directories: self.directories.map(Directories::finish),
            by_path: self.by_path,
            last_ns: self.last_ns,
            weight: self.blocks.weight(),
            oversized: self.oversized,
        }
    }
}

impl Report {
    /// Categories with requests, the busiest first.
    pub fn categories(&self) -> Vec<(CategoryId, Mix)> {
        let all = (0..CATEGORIES_MAX as u8).map(CategoryId);
        let mixes = all.zip(self.flow.by_category);
        let mut used: Vec<_> = mixes.filter(|it| it.1.requests() > 0).collect();
        used.sort_by_key(|it| (std::cmp::Reverse(it.1.requests()), it.0));
        used
    }

    /// Requests by another table, in its order, for each path by its place in the list; those
    /// without a path are of the first.
    pub fn by_class(&self, table: &Categories, paths: &Names) -> Vec<Mix> {
        let mut classes = vec![Mix::default(); table.names().len()];
        let mut without = self.flow.total;
        for (path, mix) in paths.all().iter().zip(&self.by_path) {
            classes[usize::from(table.of(path).0)].add_all(mix);
            without.remove(mix);
        }
        classes[usize::from(UNKNOWN.0)].add_all(&without);
        classes
    }

    /// The busiest paths with their place in the list.
    pub fn paths(&self, count: usize) -> Vec<(NameId, Mix)> {
        let mixes = (0..).map(NameId).zip(self.by_path.iter().copied());
        let mut used: Vec<_> = mixes.filter(|it| it.1.requests() > 0).collect();
        used.sort_by_key(|it| (std::cmp::Reverse(it.1.requests()), it.0));
        used.truncate(count);
        used
    }
}

struct Range {
    start: u64,
    end: u64,
}

/// What was seen before of one read.
#[derive(Debug, Default)]
struct Found {
    seen: Seen,
    /// The weight of the request, if its beginning is looked at.
    judged: u64,
    new_to_disk: bool,
    new_to_cluster: bool,
    here: Option<Here>,
    /// The last start of the guest, where directories are looked at.
    start_ns: Option<u64>,
    /// Of what was written before it.
    old: bool,
}

impl Found {
    fn read(&mut self, bytes: u64, was: Was) {
        self.seen.bytes += bytes;
        match was.seen_by_disk() {
            true => self.seen.disk_bytes += bytes,
            false => self.new_to_disk = true,
        }
        match was.seen_by_cluster() {
            true => self.seen.cluster_bytes += bytes,
            false => self.new_to_cluster = true,
        }
    }

    fn end(&mut self) {
        self.seen.requests = self.judged;
        self.seen.disk_requests = if self.new_to_disk { 0 } else { self.judged };
        self.seen.cluster_requests = if self.new_to_cluster { 0 } else { self.judged };
    }
}
