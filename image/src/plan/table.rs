//! The L2 table that a plan walks through.
//!
//! Owns its changed sectors, or all of it if it is new. Always true: one table at a time is held; a
//! new one is told of whole and at once, a table that was there by its changed sectors, through the
//! journal. A table that the L1 entry does not call its own is copied whole before it changes.

use super::{Longer, Plan, Rank, View, Work, damaged};
use crate::format::be64;
use crate::format::entry::{COPIED, L1, L2};
use crate::meta::{Sector, Tables};
use crate::resolve::{Stop, Wrong};
use crate::types::{Range, SECTOR_BYTES};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Sectors that did not change are written along between those that did, so that there are fewer
/// requests. Without a journal a guest waits for them, and they are written once.
const GAP_SECTORS: u64 = 16;
const GAP_SECTORS_ORDERED: u64 = 128;

#[derive(Debug)]
pub(super) struct Table {
    /// Its entry of L1.
    index: u64,
    at: u64,
    /// The entries were of a table that others use as well: none of their clusters is owned.
    shared: bool,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    New(Vec<u8>),
    Changed(BTreeMap<u64, Sector>),
}

/// How a cluster is found: the way down to its entry.
pub(super) struct Found {
    index: u64,
    /// The sector of L1 that has the entry, as the plan has it.
    l1: Sector,
    l1_at: u64,
    /// Where the table lies; zero where there is none.
    table_at: u64,
    /// The entry of L1 or the plan says that the table may be changed where it is.
    owned: bool,
    shared: bool,
    /// Bytes from the start of the table.
    offset: u64,
    /// The sector of the table that has the entry.
    sector: Sector,
    pub entry: L2,
}

impl Found {
    /// Where the file has the entry; zero where it has none.
    pub fn entry_at(&self) -> u64 {
        match self.table_at {
            0 => 0,
            at => at + self.offset,
        }
    }

    /// Whether the cluster of the entry is its own, and may be written in place.
    pub fn is_copied(&self) -> bool {
        self.entry.is_copied() && self.owned && !self.shared
    }
}

impl Plan {
    pub fn find<T: Tables>(&self, view: &mut View<T>, guest_at: u64) -> Result<Found, Stop> {
        let header = view.header;
        let index = guest_at / header.table_span_bytes();
        let number = (guest_at % header.table_span_bytes()) >> header.cluster_bits;
        let offset = number * header.l2_entry_bytes();
        let (l1_at, l1) = self.l1_sector(view, index)?;
        let word = L1(be64(&l1, (l1_at % SECTOR_BYTES) as usize));
        if word.has_reserved_bits() {
            return Err(damaged(l1_at, guest_at, word.0, Wrong::Reserved));
        }
        let mut found = Found {
            index,
            l1,
            l1_at,
            table_at: word.table_at(),
            owned: word.is_copied(),
            shared: false,
            offset,
            sector: [0; SECTOR_BYTES as usize],
            entry: L2 {
                word: 0,
                bitmap: 0,
                extended: header.is_extended(),
            },
        };
        if let Some(table) = self.table.as_ref().filter(|it| it.index == index) {
            (found.table_at, found.owned, found.shared) = (table.at, true, table.shared);
            found.sector = table.sector(view, offset)?;
        } else if found.table_at != 0 {
            if found.table_at >> header.cluster_bits >= self.start {
                return Err(damaged(l1_at, guest_at, word.0, Wrong::Outside));
            }
            found.sector = sector_of(view, found.table_at, offset)?;
        }
        let within = (offset % SECTOR_BYTES) as usize;
        found.entry.word = be64(&found.sector, within);
        if header.is_extended() {
            found.entry.bitmap = be64(&found.sector, within + 8);
        }
        Ok(found)
    }

    /// The sector of L1 that has this entry, as the plan has it, and where the entry lies.
    fn l1_sector<T: Tables>(&self, view: &mut View<T>, index: u64) -> Result<(u64, Sector), Stop> {
        if let Some(found) = self.longer.as_ref().and_then(|it| it.sector(index)) {
            return Ok(found);
        }
        let at = view.header.l1_at + index * 8;
        let sector = match self.l1.get(&(at / SECTOR_BYTES)) {
            Some(sector) => *sector,
            None => view.sector(view.header.l1(), at)?,
        };
        Ok((at, sector))
    }

    fn set_l1(&mut self, found: &Found, word: u64) {
        if let Some(bytes) = self.longer.as_mut().and_then(Longer::bytes_mut) {
            let at = found.index as usize * 8;
            bytes[at..at + 8].copy_from_slice(&word.to_be_bytes());
            return;
        }
        let sector = self.l1.entry(found.l1_at / SECTOR_BYTES);
        let sector = sector.or_insert(found.l1);
        let within = (found.l1_at % SECTOR_BYTES) as usize;
        sector[within..within + 8].copy_from_slice(&word.to_be_bytes());
    }

    /// Has at hand what it takes to change the entry.
    pub fn prepare<T: Tables>(&mut self, view: &mut View<T>, found: &Found) -> Result<(), Stop> {
        let here = self
            .table
            .as_ref()
            .is_some_and(|it| it.index == found.index);
        if here || found.owned || found.table_at == 0 {
            return Ok(());
        }
        let bytes = view.header.cluster_bytes();
        let copied = self.copied.take().filter(|it| it.0 == found.table_at);
        let (_, copied) = self
            .copied
            .insert(copied.unwrap_or((found.table_at, Vec::new())));
        while (copied.len() as u64) < bytes {
            copied.extend(sector_of(view, found.table_at, copied.len() as u64)?);
        }
        Ok(())
    }

    /// The walk has come to the table of this entry, which is about to change: the one before is
    /// told of, and a new one gets its cluster.
    pub fn enter<T: Tables>(&mut self, view: &mut View<T>, found: &Found, out: &mut Vec<Work>) {
        if self
            .table
            .as_ref()
            .is_some_and(|it| it.index == found.index)
        {
            return;
        }
        self.leave(view, out);
        let cluster_bytes = view.header.cluster_bytes();
        if found.owned && found.table_at != 0 {
            self.table = Some(Table {
                index: found.index,
                at: found.table_at,
                shared: false,
                bytes: Bytes::Changed(BTreeMap::new()),
            });
            return;
        }
        let bytes = match found.table_at {
            0 => vec![0; cluster_bytes as usize],
            at => {
                self.release(at >> view.header.cluster_bits);
                self.copied.take().expect("it was read").1
            }
        };
        assert_eq!(bytes.len() as u64, cluster_bytes, "a table is a cluster");
        let cluster = self.allocate();
        self.tables.push(cluster);
        let at = view.cluster_of(cluster).at;
        self.table = Some(Table {
            index: found.index,
            at,
            shared: found.table_at != 0,
            bytes: Bytes::New(bytes),
        });
        self.set_l1(found, at | COPIED);
    }

    /// Changes the entry, in the table that was entered.
    pub fn set(&mut self, found: &Found, entry: L2) {
        let table = self.table.as_mut().expect("it was entered");
        assert_eq!(table.index, found.index, "it was entered");
        let sector = match &mut table.bytes {
            Bytes::New(bytes) => &mut bytes[..],
            Bytes::Changed(sectors) => sectors
                .entry((table.at + found.offset) / SECTOR_BYTES)
                .or_insert(found.sector),
        };
        let at = found.offset as usize % sector.len();
        sector[at..at + 8].copy_from_slice(&entry.word.to_be_bytes());
        if entry.extended {
            sector[at + 8..at + 16].copy_from_slice(&entry.bitmap.to_be_bytes());
        }
    }

    /// Tells of the table that the walk is in.
    pub fn leave<T: Tables>(&mut self, view: &mut View<T>, out: &mut Vec<Work>) {
        let Some(table) = self.table.take() else {
            return;
        };
        match table.bytes {
            Bytes::New(bytes) => self.put(table.at, bytes, Rank::Unused, out),
            Bytes::Changed(sectors) => self.put_sectors(view, &sectors, Rank::Refer, out),
        }
    }

    /// Sectors through the journal, neighbours together. A gap is bridged if it is small, in the
    /// same cluster, and at hand.
    pub fn put_sectors<T: Tables>(
        &mut self,
        view: &mut View<T>,
        sectors: &BTreeMap<u64, Sector>,
        rank: Rank,
        out: &mut Vec<Work>,
    ) {
        let per_cluster = view.header.cluster_bytes() / SECTOR_BYTES;
        let gap_max = match self.ordered {
            true => GAP_SECTORS_ORDERED,
            false => GAP_SECTORS,
        };
        let mut run: Option<(u64, Vec<u8>)> = None;
        for (&number, sector) in sectors {
            if let Some((first, bytes)) = &mut run {
                let next = *first + bytes.len() as u64 / SECTOR_BYTES;
                // What lies between may be another by an earlier rank.
                let bridged = rank != Rank::Release && number - next <= gap_max;
                let near =
                    number == next || bridged && (next - 1) / per_cluster == number / per_cluster;
                let gap = (next..number).map(|it| view.peek(it));
                if let Some(gap) = near.then(|| gap.collect::<Option<Vec<_>>>()).flatten() {
                    gap.iter().for_each(|it| bytes.extend(it));
                    bytes.extend(sector);
                    continue;
                }
            }
            let before = run.replace((number, sector.to_vec()));
            if let Some((first, bytes)) = before {
                self.put(first * SECTOR_BYTES, bytes, rank, out);
            }
        }
        if let Some((first, bytes)) = run {
            self.put(first * SECTOR_BYTES, bytes, rank, out);
        }
    }

    /// A cluster loses a reference.
    pub fn release(&mut self, cluster: u64) {
        assert!(cluster < self.start, "what a plan appends it does not free");
        *self.released.entry(cluster).or_default() += 1;
    }
}

impl Table {
    fn sector<T: Tables>(&self, view: &mut View<T>, offset: u64) -> Result<Sector, Stop> {
        match &self.bytes {
            Bytes::New(bytes) => {
                let start = (offset / SECTOR_BYTES * SECTOR_BYTES) as usize;
                let mut sector = [0; SECTOR_BYTES as usize];
                sector.copy_from_slice(&bytes[start..start + SECTOR_BYTES as usize]);
                Ok(sector)
            }
            Bytes::Changed(sectors) => match sectors.get(&((self.at + offset) / SECTOR_BYTES)) {
                Some(sector) => Ok(*sector),
                None => sector_of(view, self.at, offset),
            },
        }
    }
}

/// A sector of an L2 table, this far into it.
fn sector_of<T: Tables>(view: &mut View<T>, table_at: u64, offset: u64) -> Result<Sector, Stop> {
    let range = Range {
        at: table_at,
        bytes: view.header.cluster_bytes(),
    };
    view.sector(range, table_at + offset)
}
