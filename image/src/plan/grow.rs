//! A plan that makes room for a larger disk.
//!
//! Owns how L1 gets more entries. Where its last cluster has room for them they are zeroed there,
//! by way of the journal, because nothing says what lies behind a table; else all of it moves to
//! new clusters, written at once, and the old ones lose their reference. Always true: until the
//! journal is applied the header names L1 as it was, and afterwards as it is; the size of the disk
//! is not changed by a plan, it follows when there is room. Deliberately absent: how what is behind
//! the old end of the disk ([`exposed`]) becomes zeroes, which is planned like any range of zeroes.

use super::{Plan, Rank, View, Work, Writer, damaged};
use crate::adversary::{Bug, has};
use crate::chain::{Chain, File};
use crate::meta::{Sector, Tables};
use crate::resolve::{Stop, Wrong};
use crate::types::{FileIndex, Range, SECTOR_BYTES, Span};
use alloc::vec::Vec;

/// L1 when the plan is at the file.
#[derive(Debug)]
pub(super) struct Longer {
    range: Range,
    /// All of it, if it has moved.
    bytes: Option<Vec<u8>>,
}

impl Longer {
    pub fn range(&self) -> Range {
        self.range
    }

    pub fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        self.bytes.as_mut()
    }

    /// The sector that has an entry, and where the entry lies, of one that has moved.
    pub fn sector(&self, index: u64) -> Option<(u64, Sector)> {
        let bytes = self.bytes.as_ref()?;
        let at = (index * 8 / SECTOR_BYTES * SECTOR_BYTES) as usize;
        let mut sector = [0; SECTOR_BYTES as usize];
        sector.copy_from_slice(&bytes[at..at + SECTOR_BYTES as usize]);
        Some((self.range.at + index * 8, sector))
    }
}

/// What of a disk of this size is behind the end that its top file says, and may be anything: there
/// the top has entries, or a file below it goes on.
pub fn exposed(chain: &Chain, size_bytes: u64) -> Span {
    let top = chain.file(FileIndex(0));
    let header = top.header().expect("the top is a qcow2 file");
    let below = chain.files().get(1).map_or(0, File::size_bytes);
    let entries = u64::from(header.l1_entries) * header.table_span_bytes();
    let end = size_bytes.min(entries.max(below)).max(header.size_bytes);
    Span {
        at: header.size_bytes,
        bytes: end - header.size_bytes,
    }
}

impl Writer {
    /// The plan that has just begun gives L1 so many entries.
    pub fn lengthen(&mut self, l1_entries: u32) {
        assert!(self.plan.planned == 0 && self.plan.longer.is_none());
        self.plan.l1_wanted = Some(l1_entries);
    }

    pub(super) fn make_longer<T: Tables>(&mut self, view: &mut View<T>) -> Result<(), Stop> {
        let old = view.header.l1();
        let wanted = self.plan.l1_wanted.map_or(0, |it| u64::from(it) * 8);
        if wanted <= old.bytes || self.plan.longer.is_some() {
            return Ok(());
        }
        let cluster_bytes = view.header.cluster_bytes();
        match wanted <= old.bytes.next_multiple_of(cluster_bytes) {
            true => self.plan.lengthen_in_place(view, wanted),
            false => self.plan.move_l1(view, wanted),
        }
    }
}

impl Plan {
    fn lengthen_in_place<T: Tables>(
        &mut self,
        view: &mut View<T>,
        wanted: u64,
    ) -> Result<(), Stop> {
        let old = view.header.l1();
        let mut at = old.end() / SECTOR_BYTES * SECTOR_BYTES;
        let within = (old.end() - at) as usize;
        let mut zeroed = Vec::new();
        if within > 0 {
            let mut sector = view.sector(old, at)?;
            sector[within..].fill(0);
            zeroed.push((at / SECTOR_BYTES, sector));
            at += SECTOR_BYTES;
        }
        while at < old.at + wanted {
            zeroed.push((at / SECTOR_BYTES, [0; SECTOR_BYTES as usize]));
            at += SECTOR_BYTES;
        }
        if !has(Bug::KeepBehindTable) {
            self.l1.extend(zeroed);
        }
        self.longer = Some(Longer {
            range: Range {
                at: old.at,
                bytes: wanted,
            },
            bytes: None,
        });
        Ok(())
    }

    fn move_l1<T: Tables>(&mut self, view: &mut View<T>, wanted: u64) -> Result<(), Stop> {
        let (old, bits) = (view.header.l1(), view.header.cluster_bits);
        while (self.l1_copied.len() as u64) < old.bytes {
            let at = old.at + self.l1_copied.len() as u64;
            let sector = view.sector(old, at)?;
            self.l1_copied.extend(sector);
        }
        let whole = wanted.next_multiple_of(view.header.cluster_bytes());
        let clusters = whole >> bits;
        if self.append + clusters + 2 >= view.clusters_max() {
            return Err(damaged(old.at, 0, self.append, Wrong::Full));
        }
        let mut bytes = core::mem::take(&mut self.l1_copied);
        bytes.truncate(old.bytes as usize);
        bytes.resize(whole as usize, 0);
        let first = self.append;
        self.append += clusters;
        self.tables.extend(first..self.append);
        for cluster in old.at >> bits..=(old.end() - 1) >> bits {
            self.release(cluster);
        }
        self.longer = Some(Longer {
            range: Range {
                at: view.cluster_of(first).at,
                bytes: wanted,
            },
            bytes: Some(bytes),
        });
        Ok(())
    }

    /// Tells of an L1 that has moved.
    pub(super) fn put_longer(&mut self, out: &mut Vec<Work>) {
        let Some(Longer { range, bytes }) = self.longer.take() else {
            return;
        };
        if let Some(bytes) = bytes {
            self.put(range.at, bytes, Rank::Unused, out);
        }
    }
}
