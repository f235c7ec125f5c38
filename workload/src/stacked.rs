//! A copy-on-write disk that a cache below it takes for files: TRDCache of the COWCache paper.
//!
//! Owns the tables of a qcow2-like disk of 64 KiB clusters, and says which requests a guest's
//! request becomes on its files: a raw base, and over it one delta or, with snapshots, several.
//!
//! ```text
//! write, place new ─▶ table looked up twice ─▶ rest of the clusters read below ─▶ whole clusters
//!                                              written ─▶ (others begin) ─▶ table looked up, dirty
//! write, place there ─▶ table looked up ─▶ written in its place
//! read ─▶ table of each file from the top on ─▶ read where it lies
//! a table that is not in RAM: the oldest leaves, written if it is dirty ─▶ read whole
//! flush ─▶ every dirty table written whole, refcounts before L2
//! ```
//!
//! Always true: L1 and the refcount table are in RAM, so only L2 tables are missed; a table is read
//! and written whole; a new L2 table and a new refcount block bring all dirty tables to the file,
//! as in QEMU's driver, and nothing else but eviction and flush does; a place is given once and
//! never back; the same requests give the same answer. It is kinder than QEMU in one thing:
//! refcounts are not written before each L2 table that leaves, because the paper's table 1 has no
//! such writes. Deliberately absent: bytes, time, discards, compressed clusters.

mod tables;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use tables::{Tables, Used};

const SECTOR_BYTES: u64 = 512;
pub const CLUSTER_BYTES: u64 = 64 << 10;
/// Clusters that one L2 table maps.
const TABLE_ENTRIES: u64 = CLUSTER_BYTES / 8;
/// Clusters that one refcount block counts.
const BLOCK_ENTRIES: u32 = (CLUSTER_BYTES / 2) as u32;
/// Of the disk that one L2 table maps.
pub const TABLE_SPAN: u64 = TABLE_ENTRIES * CLUSTER_BYTES;
/// Header, refcount table, refcount block; L1 follows.
const FIRST_CLUSTERS: u32 = 3;
const REFCOUNT_BLOCK_AT: u64 = 2 * CLUSTER_BYTES;

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub disk_bytes: u64,
    /// For the L2 tables of each file.
    pub table_ram_bytes: u64,
    /// Requests that begin before a write that allocates looks up its table for the last time.
    pub in_flight: usize,
}

/// What a request on a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// L1, L2 tables and refcounts.
    Table,
    /// What the guest asked for, or a whole cluster around it.
    Data,
    /// The rest of a cluster, read for the sake of a write.
    Copy,
}

/// A request on one file: 0 is the base, the last one the delta that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub file: usize,
    pub what: What,
    pub write: bool,
    pub at: u64,
    pub bytes: u64,
}

/// What has happened since the begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of guests, flushes left out.
    pub requests: u64,
    /// Of L2 tables, and those that were not in RAM.
    pub lookups: u64,
    pub misses: u64,
    pub table_read_bytes: u64,
    pub table_write_bytes: u64,
    /// Writes that got a new place, of all writes.
    pub allocating_writes: u64,
    pub writes: u64,
    /// Read below for the sake of writes.
    pub copied_bytes: u64,
}

/// One file of the chain that has tables.
#[derive(Clone, Debug)]
struct Layer {
    /// Where each table lies; 0 where there is none.
    table_at: Vec<u64>,
    /// Of each table that is there, the cluster of the file for each of the disk; 0 is none.
    entries: Vec<Option<Box<[u32]>>>,
    tables: Tables,
    /// Of the file, in use.
    clusters: u32,
    /// The refcount block that counts what is allocated now.
    block_at: u64,
    block_dirty: bool,
}

impl Layer {
    fn new(shape: &Shape) -> Layer {
        let tables = shape.disk_bytes.div_ceil(TABLE_SPAN) as usize;
        let l1_clusters = (tables as u64 * 8).div_ceil(CLUSTER_BYTES);
        let most = shape.table_ram_bytes / CLUSTER_BYTES;
        Layer {
            table_at: vec![0; tables],
            entries: vec![None; tables],
            tables: Tables::new(tables, most as usize),
            clusters: FIRST_CLUSTERS + l1_clusters as u32,
            block_at: REFCOUNT_BLOCK_AT,
            block_dirty: false,
        }
    }

    /// Where a cluster of the disk lies in this file.
    fn place(&self, cluster: u64) -> Option<u64> {
        let (table, entry) = (cluster / TABLE_ENTRIES, cluster % TABLE_ENTRIES);
        let entries = self.entries[table as usize].as_ref()?;
        let place = entries[entry as usize];
        (place > 0).then_some(u64::from(place) * CLUSTER_BYTES)
    }
}

/// A part of the disk, in bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    at: u64,
    end: u64,
}

/// Consecutive clusters that are treated alike: of one table, all there or all new.
struct Run {
    part: Part,
    /// Where the first of its clusters lies.
    place: Option<u64>,
}

pub struct Stacked {
    shape: Shape,
    layers: Vec<Layer>,
    /// Tables of the top that writes under way will change, in the order of their begin.
    links: VecDeque<u32>,
    counts: Counts,
}

impl Stacked {
    /// A base and an empty delta over it.
    pub fn new(shape: Shape) -> Stacked {
        assert!(shape.disk_bytes > 0, "a disk has bytes");
        Stacked {
            layers: vec![Layer::new(&shape)],
            shape,
            links: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Base and deltas.
    pub fn files(&self) -> usize {
        self.layers.len() + 1
    }

    /// The delta becomes read-only, and an empty one lies over it.
    pub fn snapshot(&mut self, out: &mut Vec<Request>) {
        self.flush(out);
        self.layers.push(Layer::new(&self.shape));
    }

    pub fn read(&mut self, sector: u64, sectors: u64, out: &mut Vec<Request>) {
        self.counts.requests += 1;
        let whole = self.part(sector, sectors);
        self.read_below(self.layers.len(), whole, What::Data, out);
    }

    pub fn write(&mut self, sector: u64, sectors: u64, out: &mut Vec<Request>) {
        self.counts.requests += 1;
        self.counts.writes += 1;
        let mut left = self.part(sector, sectors);
        let mut allocates = false;
        while left.at < left.end {
            let top = self.layers.len();
            let table = self.table_for_write(left.at, out);
            let run = self.run(top, left);
            match run.place {
                Some(place) => {
                    let at = place + run.part.at % CLUSTER_BYTES;
                    let bytes = run.part.end - run.part.at;
                    push(out, top, What::Data, true, at, bytes);
                }
                None => {
                    self.allocate_run(run.part, out);
                    self.links.push_back(table);
                    allocates = true;
                }
            }
            left.at = run.part.end;
        }
        self.counts.allocating_writes += u64::from(allocates);
        while self.links.len() > self.shape.in_flight {
            self.link(out);
        }
    }

    /// Everything that was written is durable afterwards, when the files are synced.
    pub fn flush(&mut self, out: &mut Vec<Request>) {
        while !self.links.is_empty() {
            self.link(out);
        }
        self.write_refcounts(out);
        self.write_tables(out);
    }

    fn part(&self, sector: u64, sectors: u64) -> Part {
        let (at, bytes) = (sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
        assert!(
            bytes > 0 && at + bytes <= self.shape.disk_bytes,
            "{sectors} sectors at {sector} lie outside the disk"
        );
        let end = at + bytes;
        Part { at, end }
    }

    /// The file of `top`, 0 being the base.
    fn layer(&mut self, top: usize) -> &mut Layer {
        &mut self.layers[top - 1]
    }

    /// The begin of a part that one lookup in this file tells about.
    fn run(&self, file: usize, whole: Part) -> Run {
        let layer = &self.layers[file - 1];
        let first = whole.at / CLUSTER_BYTES;
        let place = layer.place(first);
        let table_end = (first / TABLE_ENTRIES + 1) * TABLE_ENTRIES;
        let end = whole.end.div_ceil(CLUSTER_BYTES).min(table_end);
        let alike = |cluster: &u64| {
            let far = (cluster - first) * CLUSTER_BYTES;
            layer.place(*cluster) == place.map(|place| place + far)
        };
        let last = (first + 1..end).take_while(alike).last().unwrap_or(first);
        let part = Part {
            at: whole.at,
            end: whole.end.min((last + 1) * CLUSTER_BYTES),
        };
        Run { part, place }
    }

    /// Reads a part as it is seen below a file that is not looked at itself: from `files` down.
    fn read_below(&mut self, files: usize, whole: Part, what: What, out: &mut Vec<Request>) {
        let mut left = whole;
        while left.at < left.end {
            if files == 0 {
                return push(out, 0, what, false, left.at, left.end - left.at);
            }
            self.look_up(files, (left.at / TABLE_SPAN) as u32, out);
            let run = self.run(files, left);
            match run.place {
                Some(place) => {
                    let at = place + run.part.at % CLUSTER_BYTES;
                    push(out, files, what, false, at, run.part.end - run.part.at);
                }
                None => self.read_below(files - 1, run.part, what, out),
            }
            left.at = run.part.end;
        }
    }

    /// A table is looked at. One that is not there has nothing to be read.
    fn look_up(&mut self, file: usize, table: u32, out: &mut Vec<Request>) {
        self.counts.lookups += 1;
        let layer = self.layer(file);
        if layer.table_at[table as usize] == 0 {
            return;
        }
        let Used::Came { left } = layer.tables.use_one(table) else {
            return;
        };
        let at = layer.table_at[table as usize];
        self.counts.misses += 1;
        self.leave(file, left, out);
        self.counts.table_read_bytes += CLUSTER_BYTES;
        push(out, file, What::Table, false, at, CLUSTER_BYTES);
    }

    fn leave(&mut self, file: usize, left: Option<(u32, bool)>, out: &mut Vec<Request>) {
        if let Some((table, true)) = left {
            let at = self.layer(file).table_at[table as usize];
            self.write_whole(file, at, out);
        }
    }

    fn write_whole(&mut self, file: usize, at: u64, out: &mut Vec<Request>) {
        assert!(
            at > 0 && at.is_multiple_of(CLUSTER_BYTES),
            "a table's place"
        );
        self.counts.table_write_bytes += CLUSTER_BYTES;
        push(out, file, What::Table, true, at, CLUSTER_BYTES);
    }

    /// The table of a place that is written; it is made where there is none.
    fn table_for_write(&mut self, at: u64, out: &mut Vec<Request>) -> u32 {
        let (table, top) = ((at / TABLE_SPAN) as u32, self.layers.len());
        self.look_up(top, table, out);
        if self.layer(top).table_at[table as usize] > 0 {
            return table;
        }
        self.counts.misses += 1;
        let place = u64::from(self.allocate(out)) * CLUSTER_BYTES;
        self.write_refcounts(out);
        let layer = self.layer(top);
        layer.table_at[table as usize] = place;
        layer.entries[table as usize] = Some(vec![0; TABLE_ENTRIES as usize].into());
        if let Used::Came { left } = layer.tables.use_one(table) {
            self.leave(top, left, out);
        }
        self.layer(top).tables.change(table);
        self.write_tables(out);
        // The sector of L1 that says where it lies.
        let at = u64::from(FIRST_CLUSTERS) * CLUSTER_BYTES + u64::from(table) * 8;
        self.counts.table_write_bytes += SECTOR_BYTES;
        let at = at / SECTOR_BYTES * SECTOR_BYTES;
        push(out, top, What::Table, true, at, SECTOR_BYTES);
        table
    }

    /// New places for all clusters of a run, whose rest comes from below.
    fn allocate_run(&mut self, part: Part, out: &mut Vec<Request>) {
        let top = self.layers.len();
        self.look_up(top, (part.at / TABLE_SPAN) as u32, out);
        let first = part.at / CLUSTER_BYTES;
        let end = part.end.div_ceil(CLUSTER_BYTES);
        let disk_end = self.shape.disk_bytes;
        let head = Part {
            at: first * CLUSTER_BYTES,
            end: part.at,
        };
        let tail = Part {
            at: part.end,
            end: (end * CLUSTER_BYTES).min(disk_end),
        };
        for rest in [head, tail] {
            if rest.at < rest.end {
                self.counts.copied_bytes += rest.end - rest.at;
                self.read_below(top - 1, rest, What::Copy, out);
            }
        }
        for cluster in first..end {
            let place = self.allocate(out);
            let (table, entry) = (cluster / TABLE_ENTRIES, cluster % TABLE_ENTRIES);
            let entries = self.layer(top).entries[table as usize].as_mut();
            entries.expect("the table was made")[entry as usize] = place;
            let at = u64::from(place) * CLUSTER_BYTES;
            push(out, top, What::Data, true, at, CLUSTER_BYTES);
        }
    }

    /// The next cluster of the top file. One that no refcount block counts yet becomes one.
    fn allocate(&mut self, out: &mut Vec<Request>) -> u32 {
        let top = self.layers.len();
        if self.layer(top).clusters.is_multiple_of(BLOCK_ENTRIES) {
            self.write_tables(out);
            self.write_refcounts(out);
            let layer = self.layer(top);
            layer.block_at = u64::from(layer.clusters) * CLUSTER_BYTES;
            layer.clusters += 1;
        }
        let layer = self.layer(top);
        layer.block_dirty = true;
        layer.clusters += 1;
        layer.clusters - 1
    }

    /// The write that is under way for longest has its data at the file.
    fn link(&mut self, out: &mut Vec<Request>) {
        let table = self.links.pop_front().expect("asked by the caller");
        let top = self.layers.len();
        self.look_up(top, table, out);
        self.layer(top).tables.change(table);
    }

    fn write_refcounts(&mut self, out: &mut Vec<Request>) {
        let top = self.layers.len();
        let layer = self.layer(top);
        if core::mem::take(&mut layer.block_dirty) {
            let at = layer.block_at;
            self.write_whole(top, at, out);
        }
    }

    fn write_tables(&mut self, out: &mut Vec<Request>) {
        let top = self.layers.len();
        for table in self.layer(top).tables.clean() {
            let at = self.layer(top).table_at[table as usize];
            self.write_whole(top, at, out);
        }
    }
}

/// Data that lies behind the request before it joins it.
fn push(out: &mut Vec<Request>, file: usize, what: What, write: bool, at: u64, bytes: u64) {
    if let Some(last) = out.last_mut()
        && (last.file, last.what, last.write) == (file, what, write)
        && what != What::Table
        && last.at + last.bytes == at
    {
        last.bytes += bytes;
        return;
    }
    out.push(Request {
        file,
        what,
        write,
        at,
        bytes,
    });
}
