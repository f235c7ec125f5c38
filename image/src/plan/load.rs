//! What a file must be known by before it is written.
//!
//! Owns the set of clusters that are never the target of a write of data, the places of the
//! refcount blocks, and the first cluster behind all that are counted. Always true: each byte of
//! the lists is looked at once, and what was seen is kept over a sector that is missing; work is
//! bounded by the size of the file. Two tables that share a cluster, a table that is not counted or
//! lies inside a cluster: the file is damaged, and nothing of it is written.
//!
//! ```text
//! L1 ─▶ refcount table ─▶ snapshots ─▶ their L1 tables ─▶ refcounts, from the end ─▶ Known
//! ```

use super::{View, damaged};
use crate::adversary::{Bug, has};
use crate::format::be64;
use crate::format::entry::L1;
use crate::format::refcount::{self, TableEntry};
use crate::format::snapshot;
use crate::limits;
use crate::meta::Tables;
use crate::resolve::{Stop, Wrong};
use crate::types::{Range, SECTOR_BYTES};
use alloc::vec::Vec;

/// Tables of snapshots that are remembered: 32 MiB of numbers.
const SNAPSHOT_TABLES_MAX: usize = 4 << 20;

/// What is known of a file that can be written.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Clusters of header and tables, in order.
    tables: Vec<u64>,
    /// Where each refcount block lies; zero where there is none.
    pub blocks: Vec<u64>,
    /// The first cluster behind all that are counted.
    pub append: u64,
}

impl Known {
    pub fn is_table(&self, cluster: u64) -> bool {
        self.tables.binary_search(&cluster).is_ok()
    }

    /// A plan has come to the file.
    pub fn accept(&mut self, append: u64, mut tables: Vec<u64>, blocks: &[(u64, u64)]) {
        tables.sort_unstable();
        assert!(append >= self.append && tables.iter().all(|it| *it >= self.append));
        self.tables.extend(tables);
        if !has(Bug::GiveTwice) {
            self.append = append;
        }
        for &(number, at) in blocks {
            self.set_block(number, at);
        }
        assert!(self.tables.is_sorted(), "what is new lies behind");
    }

    fn set_block(&mut self, number: u64, at: u64) {
        let number = number as usize;
        if self.blocks.len() <= number {
            self.blocks.resize(number + 1, 0);
        }
        self.blocks[number] = at;
    }
}

/// How far the file was looked at.
#[derive(Debug, Default)]
pub(super) struct Load {
    stage: Stage,
    known: Known,
    snapshots: Vec<Range>,
    snapshot_l1_bytes: u64,
    /// L2 tables of snapshots, which the active state may share.
    shared: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    L1 {
        done: u64,
    },
    Blocks {
        done: u64,
    },
    Snapshots {
        number: u32,
        done: u64,
    },
    SnapshotL1 {
        number: usize,
        done: u64,
    },
    /// Blocks that are not looked at, and what is left of the last of them.
    Highest {
        blocks: usize,
        left: u64,
    },
    Known,
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::L1 { done: 0 }
    }
}

impl Load {
    pub fn known(&self) -> Option<&Known> {
        (self.stage == Stage::Known).then_some(&self.known)
    }

    pub fn known_mut(&mut self) -> Option<&mut Known> {
        (self.stage == Stage::Known).then_some(&mut self.known)
    }

    pub fn go<T: Tables>(&mut self, view: &mut View<T>) -> Result<&Known, Stop> {
        loop {
            match self.stage {
                Stage::L1 { done } => self.l1(view, done)?,
                Stage::Blocks { done } => self.blocks(view, done)?,
                Stage::Snapshots { number, done } => self.snapshots(view, number, done)?,
                Stage::SnapshotL1 { number, done } => self.snapshot_l1(view, number, done)?,
                Stage::Highest { blocks, left } => self.highest(view, blocks, left)?,
                Stage::Known => return Ok(&self.known),
            }
        }
    }

    fn l1<T: Tables>(&mut self, view: &mut View<T>, done: u64) -> Result<(), Stop> {
        let table = view.header.l1();
        for (at, word) in words(view, table, done)? {
            let to = L1(word).table_at();
            if to != 0 {
                let number = number_of(view, at, to, Wrong::TableMisaligned)?;
                self.known.tables.push(number);
            }
        }
        let done = done + SECTOR_BYTES;
        self.stage = match done < table.bytes {
            true => Stage::L1 { done },
            false => Stage::Blocks { done: 0 },
        };
        Ok(())
    }

    fn blocks<T: Tables>(&mut self, view: &mut View<T>, done: u64) -> Result<(), Stop> {
        let table = view.header.refcount_table;
        for (at, word) in words(view, table, done)? {
            let entry = TableEntry(word);
            if entry.has_reserved_bits() {
                return Err(damaged(at, 0, word, Wrong::Reserved));
            }
            if word == 0 {
                continue;
            }
            let number = number_of(view, at, word, Wrong::BlockMisaligned)?;
            if word >= view.file_bytes {
                return Err(damaged(at, 0, word, Wrong::Outside));
            }
            self.known.tables.push(number);
            self.known.set_block((at - table.at) / 8, word);
        }
        let done = done + SECTOR_BYTES;
        self.stage = match done < table.bytes {
            true => Stage::Blocks { done },
            false => Stage::Snapshots { number: 0, done: 0 },
        };
        Ok(())
    }

    fn snapshots<T: Tables>(
        &mut self,
        view: &mut View<T>,
        number: u32,
        done: u64,
    ) -> Result<(), Stop> {
        let start = view.header.snapshots_at;
        if number == view.header.snapshots {
            self.occupy(
                view,
                Range {
                    at: start,
                    bytes: done,
                },
            );
            let (number, done) = (0, 0);
            self.stage = Stage::SnapshotL1 { number, done };
            return Ok(());
        }
        let at = start + done;
        let all = Range {
            at: start,
            bytes: limits::SNAPSHOT_TABLE_BYTES_MAX,
        };
        let mut fixed = [0; snapshot::FIXED_BYTES];
        for (step, into) in (at..).step_by(8).zip(fixed.chunks_exact_mut(8)) {
            let sector = view.sector(all, step)?;
            let from = (step % SECTOR_BYTES) as usize;
            into.copy_from_slice(&sector[from..from + 8]);
        }
        let wrong = damaged(at, 0, be64(&fixed, 0), Wrong::Snapshot);
        let Ok(found) = snapshot::parse(&fixed, view.header, number, at) else {
            return Err(wrong);
        };
        let done = done + found.entry_bytes;
        let fits = found.l1.at % view.header.cluster_bytes() == 0
            && found.l1.bytes <= limits::L1_BYTES_MAX
            && found.l1.is_inside(view.file_bytes)
            && self.snapshot_l1_bytes + found.l1.bytes <= view.file_bytes
            && done <= all.bytes;
        if !fits {
            return Err(wrong);
        }
        self.snapshots.push(found.l1);
        self.snapshot_l1_bytes += found.l1.bytes;
        let number = number + 1;
        self.stage = Stage::Snapshots { number, done };
        Ok(())
    }

    fn snapshot_l1<T: Tables>(
        &mut self,
        view: &mut View<T>,
        number: usize,
        done: u64,
    ) -> Result<(), Stop> {
        let Some(&table) = self.snapshots.get(number) else {
            return self.seen_tables(view);
        };
        for (_, word) in words(view, table, done)? {
            let to = L1(word).table_at();
            if to != 0 && self.shared.len() < SNAPSHOT_TABLES_MAX {
                self.shared.push(to >> view.header.cluster_bits);
            }
        }
        let done = done + SECTOR_BYTES;
        self.stage = match done < table.bytes {
            true => Stage::SnapshotL1 { number, done },
            false => {
                self.occupy(view, table);
                let (number, done) = (number + 1, 0);
                Stage::SnapshotL1 { number, done }
            }
        };
        Ok(())
    }

    /// All clusters of a range have tables in them.
    fn occupy<T>(&mut self, view: &View<T>, range: Range) {
        if range.bytes > 0 {
            let bits = view.header.cluster_bits;
            let clusters = range.at >> bits..=(range.end() - 1) >> bits;
            self.known.tables.extend(clusters);
        }
    }

    /// All tables were found: each has its clusters for itself.
    fn seen_tables<T: Tables>(&mut self, view: &mut View<T>) -> Result<(), Stop> {
        let (at, bytes) = (0, 1);
        self.occupy(view, Range { at, bytes });
        self.occupy(view, view.header.l1());
        self.occupy(view, view.header.refcount_table);
        self.known.tables.sort_unstable();
        let twice = self.known.tables.windows(2).find(|it| it[0] == it[1]);
        if let Some(twice) = twice {
            let at = twice[0] << view.header.cluster_bits;
            return Err(damaged(at, 0, at, Wrong::TablesShared));
        }
        self.stage = Stage::Highest {
            blocks: self.known.blocks.len(),
            left: view.header.cluster_bytes(),
        };
        Ok(())
    }

    /// The last counts that are left.
    fn highest<T: Tables>(
        &mut self,
        view: &mut View<T>,
        blocks: usize,
        left: u64,
    ) -> Result<(), Stop> {
        let cluster_bytes = view.header.cluster_bytes();
        let Some(block) = blocks.checked_sub(1) else {
            // Not even the header is counted.
            return Err(damaged(0, 0, 0, Wrong::Uncounted));
        };
        let at = self.known.blocks[block];
        if at == 0 || left == 0 {
            let (blocks, left) = (block, cluster_bytes);
            self.stage = Stage::Highest { blocks, left };
            return Ok(());
        }
        let left = left - SECTOR_BYTES;
        let range = Range {
            at,
            bytes: cluster_bytes,
        };
        let sector = view.sector(range, at + left)?;
        let order = view.header.refcount_order;
        let per_sector = (SECTOR_BYTES * 8) >> order;
        let counted = (0..per_sector).rev();
        let last = counted
            .into_iter()
            .find(|it| refcount::get(&sector, order, *it) != 0);
        let Some(last) = last else {
            self.stage = Stage::Highest { blocks, left };
            return Ok(());
        };
        let before = block as u64 * refcount::block_clusters(view.header);
        let append = before + left / SECTOR_BYTES * per_sector + last + 1;
        if append >= view.clusters_max() {
            return Err(damaged(at + left, 0, append, Wrong::Outside));
        }
        self.known.append = append;
        self.finish(view)
    }

    fn finish<T: Tables>(&mut self, view: &mut View<T>) -> Result<(), Stop> {
        let append = self.known.append;
        if let Some(&last) = self.known.tables.last().filter(|it| **it >= append) {
            let at = last << view.header.cluster_bits;
            return Err(damaged(at, 0, at, Wrong::Uncounted));
        }
        let shared = core::mem::take(&mut self.shared);
        let tables = &mut self.known.tables;
        tables.extend(shared.into_iter().filter(|it| *it < append));
        tables.sort_unstable();
        tables.dedup();
        tables.shrink_to_fit();
        self.snapshots = Vec::new();
        self.stage = Stage::Known;
        Ok(())
    }
}

/// The entries of one sector of a table, which begins `done` bytes into it, with their places.
fn words<T: Tables>(
    view: &mut View<T>,
    table: Range,
    done: u64,
) -> Result<impl Iterator<Item = (u64, u64)> + use<T>, Stop> {
    let start = table.at + done;
    let count = table.bytes.saturating_sub(done).min(SECTOR_BYTES) / 8;
    let sector = match count {
        0 => [0; SECTOR_BYTES as usize],
        _ => view.sector(table, start)?,
    };
    Ok((0..count).map(move |it| (start + it * 8, be64(&sector, it as usize * 8))))
}

/// The cluster that an entry points to.
fn number_of<T>(view: &View<T>, at: u64, to: u64, why: Wrong) -> Result<u64, Stop> {
    match to.is_multiple_of(view.header.cluster_bytes()) {
        true => Ok(to >> view.header.cluster_bits),
        false => Err(damaged(at, 0, to, why)),
    }
}
