//! The end of a plan: refcounts, L1, and the end of the file.
//!
//! Owns how many clusters a plan appends in the end. A new refcount block counts itself, and so
//! does a refcount table that has grown, so their number is found by trying. Always true: every
//! cluster that the plan has appended is counted once, and the file reaches its highest one; a
//! count that would leave its bounds says that the file is damaged, before anything is told.

use super::{Ended, Longer, Plan, Rank, View, Work, Writer, damaged};
use crate::adversary::{Bug, has};
use crate::format::mark::Mark;
use crate::format::refcount;
use crate::limits;
use crate::meta::{Sector, Tables};
use crate::resolve::{Stop, Wrong};
use crate::types::{Range, SECTOR_BYTES};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec;
use alloc::vec::Vec;

/// What a plan needs to count all that it has appended.
struct Room {
    /// One past its last cluster.
    append: u64,
    /// New blocks: their number and their cluster.
    blocks: Vec<(u64, u64)>,
    /// A larger refcount table: its first cluster, and how many.
    table: Option<(u64, u64)>,
}

impl Writer {
    pub(super) fn plan_end<T: Tables>(
        &mut self,
        view: &mut View<T>,
        out: &mut Vec<Work>,
    ) -> Result<(), Stop> {
        let room = self.room(view)?;
        let mut released = self.plan.released.clone();
        let mut refcount_table = view.header.refcount_table;
        let mut moved = false;
        if let Some((first, clusters)) = room.table {
            let old = refcount_table.at >> view.header.cluster_bits;
            let count = refcount_table.bytes >> view.header.cluster_bits;
            (old..old + count).for_each(|it| *released.entry(it).or_default() += 1);
            refcount_table = Range {
                at: view.cluster_of(first).at,
                bytes: clusters << view.header.cluster_bits,
            };
            moved = true;
        }
        let l1 = self.plan.longer.as_ref().map(Longer::range);
        let tables = (moved.then_some(refcount_table), l1);
        let (header, mark) = self.header(view, tables)?;
        let counts_more = room.append > self.plan.start || !released.is_empty();
        let announced = self.announced(view, counts_more)?;
        self.read_counts(view, &room, &released)?;
        let before = core::mem::take(&mut self.plan.counts);
        let mut counts = before.clone();
        let blocks = self.count(view, &room, &mut counts)?;
        let counted = counts.clone();
        self.uncount(view, &released, &mut counts)?;
        // From here on nothing is missing.
        let plan = &mut self.plan;
        plan.leave(view, out);
        for (at, bytes) in blocks {
            plan.put(at, bytes, Rank::Unused, out);
        }
        let may_leak = plan.announce(announced, out);
        let less = match plan.ordered {
            true => {
                plan.put_sectors(view, &changed(&before, counted.clone()), Rank::Count, out);
                changed(&counted, counts)
            }
            false => {
                plan.put_sectors(view, &counts, Rank::Count, out);
                BTreeMap::new()
            }
        };
        self.put_refcount_table(view, &room, refcount_table, out);
        let plan = &mut self.plan;
        if let Some(bytes) = header {
            plan.put(0, bytes, Rank::Hook, out);
        }
        let sectors = core::mem::take(&mut plan.l1);
        plan.put_sectors(view, &sectors, Rank::Refer, out);
        plan.put_longer(out);
        plan.put_sectors(view, &less, Rank::Release, out);
        plan.append = room.append;
        plan.reach_end(view, out);
        let blocks = room.blocks.into_iter();
        let at = |(number, cluster)| (number, view.cluster_of(cluster).at);
        plan.ended = Some(Ended {
            refcount_table,
            l1,
            mark,
            onto: plan.onto.take(),
            may_leak,
            blocks: blocks.map(at).collect(),
        });
        Ok(())
    }

    /// The begin of the file, if it changes: another refcount table, a longer L1, a mark where
    /// there is none, another backing.
    /// A mark that is there names this plan, because the sector may be known from before.
    fn header<T: Tables>(
        &self,
        view: &mut View<T>,
        (refcount_table, l1): (Option<Range>, Option<Range>),
    ) -> Result<(Option<Vec<u8>>, Option<Mark>), Stop> {
        let mark = self.plan.mark;
        let onto = self.plan.onto.as_ref();
        let moves = refcount_table.is_some() || l1.is_some();
        if !moves && mark.is_none() && onto.is_none() {
            return Ok((None, None));
        }
        let mut sector = first_sector(view)?;
        if self.plan.ordered {
            let set = view.header.allocating(&sector, true);
            sector = set.ok_or(damaged(0, 0, 0, Wrong::Header))?;
        }
        if let Some(table) = refcount_table {
            let changed = view
                .header
                .with_refcount_table(&sector, table, !self.plan.ordered);
            sector = changed.ok_or(damaged(0, 0, 0, Wrong::Header))?;
        }
        if let Some(l1) = l1 {
            let changed = view.header.with_l1(&sector, l1);
            sector = changed.ok_or(damaged(0, 0, 0, Wrong::Header))?;
        }
        let there = Mark::of(&sector).map(|it| it.volume);
        let new = mark.filter(|it| onto.is_some() || there != Some(it.volume));
        let marked = match onto {
            Some(onto) => Some(self.moved(view, &sector, onto)?),
            None => new.and_then(|it| view.header.marked(&sector, &it)),
        };
        if let (true, None, Some(mark)) = (moves, &marked, &mark) {
            sector = view.header.with_mark(&sector, mark);
        }
        let put_in = new.filter(|_| marked.is_some());
        Ok((marked.or(moves.then_some(sector)), put_in))
    }

    /// The first sector with the bit that says that counts may be too high, if that is not set.
    fn announced<T: Tables>(
        &self,
        view: &mut View<T>,
        counts_more: bool,
    ) -> Result<Option<Vec<u8>>, Stop> {
        if !self.plan.ordered || !counts_more || view.header.may_leak() {
            return Ok(None);
        }
        let sector = first_sector(view)?;
        let set = view.header.allocating(&sector, true);
        set.ok_or(damaged(0, 0, 0, Wrong::Header)).map(Some)
    }

    /// Tries until all fits.
    fn room<T: Tables>(&self, view: &View<T>) -> Result<Room, Stop> {
        let cluster_bytes = view.header.cluster_bytes();
        let per_block = refcount::block_clusters(view.header);
        let full = || damaged(0, 0, self.plan.append, Wrong::Full);
        let last = |room: &Room| (room.append - 1) / per_block;
        let room = self.try_room(per_block, 0);
        if room.append == self.plan.start || last(&room) < view.header.refcount_table.bytes / 8 {
            return Ok(room);
        }
        let most = limits::REFCOUNT_TABLE_BYTES_MAX / cluster_bytes;
        let wanted = last(&room) + 1;
        let roomy = (wanted + wanted / 2 + 1) * 8;
        let mut clusters = roomy.div_ceil(cluster_bytes).min(most);
        while clusters <= most {
            let room = self.try_room(per_block, clusters);
            if room.append >= view.clusters_max() {
                break;
            }
            if last(&room) < clusters * cluster_bytes / 8 {
                return Ok(room);
            }
            clusters += 1;
        }
        Err(full())
    }

    /// With a new refcount table of so many clusters.
    fn try_room(&self, per_block: u64, table_clusters: u64) -> Room {
        let mut append = self.plan.append;
        let table = (table_clusters > 0).then_some((append, table_clusters));
        append += table_clusters;
        let mut blocks = Vec::new();
        if append > self.plan.start {
            let mut number = self.plan.start / per_block;
            while number <= (append - 1) / per_block {
                if self.block_at(number) == 0 {
                    blocks.push((number, append));
                    append += 1;
                }
                number += 1;
            }
        }
        Room {
            append,
            blocks,
            table,
        }
    }

    /// Where a refcount block lies that the file has; zero if it has none.
    fn block_at(&self, number: u64) -> u64 {
        let found = usize::try_from(number).ok();
        let found = found.and_then(|it| self.known().blocks.get(it));
        found.copied().unwrap_or(0)
    }

    /// The block and the sector with the count of a cluster, if the file has them.
    fn count_at<T>(&self, view: &View<T>, cluster: u64) -> Option<(u64, u64)> {
        let per_block = refcount::block_clusters(view.header);
        let block = self.block_at(cluster / per_block);
        let byte = refcount::byte_of(view.header.refcount_order, cluster % per_block);
        (block != 0).then_some((block, block + byte))
    }

    /// How often a cluster that the file has is counted.
    pub(super) fn counted<T: Tables>(&self, view: &mut View<T>, cluster: u64) -> Result<u64, Stop> {
        let Some((block, at)) = self.count_at(view, cluster) else {
            return Ok(0);
        };
        let order = view.header.refcount_order;
        let per_sector = (SECTOR_BYTES * 8) >> order;
        let bytes = view.header.cluster_bytes();
        let sector = view.sector(Range { at: block, bytes }, at)?;
        Ok(refcount::get(&sector, order, cluster % per_sector))
    }

    /// Has all sectors of counts at hand that change.
    fn read_counts<T: Tables>(
        &mut self,
        view: &mut View<T>,
        room: &Room,
        released: &BTreeMap<u64, u64>,
    ) -> Result<(), Stop> {
        let per_sector = (SECTOR_BYTES * 8) >> view.header.refcount_order;
        let mut cluster = self.plan.start;
        while cluster < room.append {
            self.read_count(view, cluster)?;
            cluster = (cluster / per_sector + 1) * per_sector;
        }
        for &cluster in released.keys() {
            self.read_count(view, cluster)?;
        }
        Ok(())
    }

    fn read_count<T: Tables>(&mut self, view: &mut View<T>, cluster: u64) -> Result<(), Stop> {
        let Some((block, at)) = self.count_at(view, cluster) else {
            return Ok(());
        };
        if let Entry::Vacant(room) = self.plan.counts.entry(at / SECTOR_BYTES) {
            let bytes = view.header.cluster_bytes();
            room.insert(view.sector(Range { at: block, bytes }, at)?);
        }
        Ok(())
    }

    /// Counts what was appended; gives the new blocks with their places.
    fn count<T: Tables>(
        &self,
        view: &View<T>,
        room: &Room,
        counts: &mut BTreeMap<u64, Sector>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Stop> {
        let order = view.header.refcount_order;
        let per_block = refcount::block_clusters(view.header);
        let per_sector = (SECTOR_BYTES * 8) >> order;
        let new = |&(_, cluster): &(u64, u64)| {
            let range = view.cluster_of(cluster);
            (range.at, vec![0; range.bytes as usize])
        };
        let mut blocks: Vec<(u64, Vec<u8>)> = room.blocks.iter().map(new).collect();
        for cluster in self.plan.start..room.append {
            let Some((_, at)) = self.count_at(view, cluster) else {
                let number = cluster / per_block;
                let block = room.blocks.iter().position(|it| it.0 == number);
                let block = block.ok_or(damaged(0, 0, cluster, Wrong::Uncounted))?;
                refcount::set(&mut blocks[block].1, order, cluster % per_block, 1);
                continue;
            };
            let sector = counts.get_mut(&(at / SECTOR_BYTES)).expect("it was read");
            if refcount::get(sector, order, cluster % per_sector) != 0 {
                return Err(damaged(at, 0, cluster, Wrong::Uncounted));
            }
            let count = u64::from(!has(Bug::LeaveUncounted));
            refcount::set(sector, order, cluster % per_sector, count);
        }
        Ok(blocks)
    }

    /// Counts what was released.
    fn uncount<T: Tables>(
        &self,
        view: &View<T>,
        released: &BTreeMap<u64, u64>,
        counts: &mut BTreeMap<u64, Sector>,
    ) -> Result<(), Stop> {
        let order = view.header.refcount_order;
        let per_sector = (SECTOR_BYTES * 8) >> order;
        for (&cluster, &times) in released {
            let wrong = |at| damaged(at, 0, cluster, Wrong::Uncounted);
            let (_, at) = self.count_at(view, cluster).ok_or(wrong(0))?;
            let sector = counts.get_mut(&(at / SECTOR_BYTES)).expect("it was read");
            let counted = refcount::get(sector, order, cluster % per_sector);
            let count = counted.checked_sub(times).ok_or(wrong(at))?;
            refcount::set(sector, order, cluster % per_sector, count);
        }
        Ok(())
    }

    /// Entries of new blocks, or all of a new table.
    fn put_refcount_table<T: Tables>(
        &mut self,
        view: &mut View<T>,
        room: &Room,
        table: Range,
        out: &mut Vec<Work>,
    ) {
        if room.blocks.is_empty() {
            return;
        }
        let known = self.load.known().expect("each step loads it first");
        let old = known.blocks.iter().copied();
        let new = room.blocks.iter();
        let new = new.map(|(number, cluster)| (*number, view.cluster_of(*cluster).at));
        let put = |into: &mut [u8], first: u64| {
            let last = first + into.len() as u64 / 8;
            let listed = (0..).zip(old.clone()).chain(new.clone());
            for (number, at) in listed.filter(|it| it.1 != 0 && (first..last).contains(&it.0)) {
                let place = ((number - first) * 8) as usize;
                into[place..place + 8].copy_from_slice(&at.to_be_bytes());
            }
        };
        let bits = view.header.cluster_bits;
        let appended = room.blocks.iter().map(|it| it.1);
        self.plan.tables.extend(appended);
        if room.table.is_some() {
            let mut bytes = vec![0; table.bytes as usize];
            put(&mut bytes, 0);
            let clusters = table.at >> bits..table.end() >> bits;
            self.plan.tables.extend(clusters);
            return self.plan.put(table.at, bytes, Rank::Unused, out);
        }
        let mut sectors = BTreeMap::new();
        for (number, _) in &room.blocks {
            let first = number / 64 * 64;
            let at = (table.at + first * 8) / SECTOR_BYTES;
            sectors.entry(at).or_insert_with(|| {
                let mut sector = [0; SECTOR_BYTES as usize];
                put(&mut sector, first);
                sector
            });
        }
        self.plan.put_sectors(view, &sectors, Rank::Hook, out);
    }
}

fn first_sector<T: Tables>(view: &mut View<T>) -> Result<Vec<u8>, Stop> {
    let (at, bytes) = (0, view.header.cluster_bytes());
    Ok(view.sector(Range { at, bytes }, 0)?.to_vec())
}

/// The sectors that are others than before.
fn changed(
    before: &BTreeMap<u64, Sector>,
    mut now: BTreeMap<u64, Sector>,
) -> BTreeMap<u64, Sector> {
    now.retain(|number, sector| before.get(number) != Some(sector));
    now
}

impl Plan {
    /// The header says that counts may be too high, if it is given. Whether it is.
    fn announce(&mut self, sector: Option<Vec<u8>>, out: &mut Vec<Work>) -> bool {
        let Some(sector) = sector else {
            return false;
        };
        let rank = match has(Bug::AnnounceLate) {
            true => Rank::Hook,
            false => Rank::Mark,
        };
        self.put(0, sector, rank, out);
        true
    }

    /// The file ends no earlier than its highest cluster: its last sector is written, if neither
    /// the file nor the plan comes so far. Nothing lies there but what a cluster does not use.
    fn reach_end<T>(&mut self, view: &View<T>, out: &mut Vec<Work>) {
        let end = self.append << view.header.cluster_bits;
        let reached = self
            .end_bytes
            .max(view.file_bytes.next_multiple_of(SECTOR_BYTES));
        if reached < end {
            let at = end - SECTOR_BYTES;
            let bytes = SECTOR_BYTES;
            self.wrote(Range { at, bytes });
            out.push(Work::Table {
                at,
                bytes: vec![0; SECTOR_BYTES as usize],
                rank: Rank::Unused,
            });
        }
    }
}
