//! Where the bytes of a read lie, and the tables that a map needs before it can say so.
//!
//! ```text
//! locate ─▶ ready ─────────────────▶ fill, or read past the tier
//!       └─▶ missing ─▶ table read ─▶ supplied to the map ─▶ the read looks again
//! ```
//!
//! Always true: a read that waits for a table holds no place in the tier, so tables always find
//! one; a table is read once, however many wait for it; a read that has waited looks at everything
//! anew, because the tier may have the block by then. A table that its volume cannot get fails the
//! reads of that volume only; others on the same image ask for it themselves. Deliberately absent:
//! what tables mean ([`crate::origin`]).

use super::Core;
use super::read_op::{Behind, Goal, ReadOp, Table};
use crate::adversary::{Bug, has};
use crate::event::{Device, Op, Purpose, Refusal};
use crate::memory::Slice;
use crate::origin::{self, FileIndex, Lies, MapId, Missing, Resolved, TABLE_BYTES_MAX};
use crate::outbox::{Cx, Pending};
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, VolumeId};
use alloc::vec::Vec;

/// Tables that a read may ask for with each of its blocks. A chain of 64 files needs two of each.
const TABLES_PER_BLOCK_MAX: u64 = 1024;

/// Tables under way.
#[derive(Default)]
pub struct Tables {
    /// The reads that bring them.
    reads: Vec<u32>,
    /// Parts of reads that look again.
    ready: Vec<Behind>,
}

impl Core {
    /// Where a part of a read lies.
    pub(super) fn locate(&mut self, read: u32, part: Span) -> Resolved {
        let op = self.reading.read(read);
        if let Goal::Table(table) = &op.goal {
            let offset = part.sector * SECTOR_BYTES;
            let file = table.file();
            let lies = Lies::At { file, offset };
            return Resolved::Ready(alloc::vec![origin::Extent { span: part, lies }]);
        }
        let id = op.volume;
        let resolved = match self.volume(id).map() {
            None => origin::raw(part),
            Some(map) => self.maps.get(map).resolve(part),
        };
        let (extents, whole) = match &resolved {
            Resolved::Ready(extents) => (extents, true),
            Resolved::Missing(extents, _) => (extents, false),
            Resolved::Damaged => return resolved,
        };
        let end = origin::covered(part, extents).expect("extents in order");
        assert!((end == part.end()) == whole, "{part:?} in {extents:?}");
        resolved
    }

    /// What an image says of itself cannot be: the read ends with an error.
    pub(super) fn read_damaged(&mut self, read: u32) {
        let op = self.reading.read(read);
        op.result = Err(Refusal::Io);
        let id = op.volume;
        self.volume(id).counters.origin.errors += 1;
    }

    /// The same, unless a journal is being applied: then a table may be read that is half of one
    /// state and half of the other, and the part looks again later.
    pub(super) fn read_unresolved(&mut self, read: u32, part: Span) {
        let id = self.reading.read(read).volume;
        if !self.volume(id).is_replaying() {
            return self.read_damaged(read);
        }
        self.reading.read(read).waits += 1;
        self.hold_read(read, part);
    }

    /// A part of a read goes on when its map has seen this.
    pub(super) fn await_table(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        part: Span,
        past_tier: bool,
        missing: Missing,
    ) {
        let op = self.reading.read(read);
        op.tables += 1;
        if op.tables > TABLES_PER_BLOCK_MAX * op.span.blocks() {
            return self.read_damaged(read);
        }
        op.waits += 1;
        let id = op.volume;
        let map = self.volume(id).map().expect("raw images have no tables");
        let behind = Behind {
            read,
            part,
            past_tier,
        };
        for at in 0..self.tables.reads.len() {
            let under_way = self.reading.read(self.tables.reads[at]);
            if let Goal::Table(table) = &mut under_way.goal
                && (table.map, table.missing) == (map, missing)
            {
                table.waiters.push(behind);
                return;
            }
        }
        self.read_map_table(cx, id, (map, missing), behind);
    }

    fn read_map_table(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        (map, missing): (MapId, Missing),
        behind: Behind,
    ) {
        let Missing {
            file,
            offset,
            bytes,
            ..
        } = missing;
        assert!(offset.is_multiple_of(BLOCK_BYTES) && bytes.is_multiple_of(SECTOR_BYTES));
        assert!((1..=TABLE_BYTES_MAX).contains(&bytes), "{missing:?}");
        let identity = self.maps.get(map).tables()[usize::from(file.0)];
        let layer = self.lines.layers.base(identity);
        let table = Table {
            map,
            missing,
            layer,
            bytes: alloc::vec![0; bytes as usize],
            stale: false,
            waiters: alloc::vec![behind],
        };
        let span = Span::new(offset / SECTOR_BYTES, bytes / SECTOR_BYTES);
        let op = ReadOp::new(id, Goal::Table(table), span, cx.now);
        let read = self.reading.begin_read(op);
        self.volume(id).read_begins();
        self.tables.reads.push(read);
        self.read_clean(cx, read, span);
        self.part_of_read_ended(cx, read);
    }

    /// The read of a table has ended.
    pub(super) fn map_table_read(
        &mut self,
        cx: &mut Cx<'_>,
        (read, id): (u32, VolumeId),
        table: Table,
        result: Result<(), Refusal>,
    ) {
        self.tables.reads.retain(|other| *other != read);
        // The file was written meanwhile: who waits asks again.
        if result.is_ok() && !table.stale {
            let map = self.maps.get(table.map);
            map.supply(table.missing, &table.bytes);
        }
        for behind in table.waiters {
            let op = self.reading.read(behind.read);
            match result {
                // Another volume asks for it itself.
                Err(refusal) if op.volume == id => {
                    op.result = Err(refusal);
                    self.part_of_read_ended(cx, behind.read);
                }
                _ => self.tables.ready.push(behind),
            }
        }
    }

    /// Tables of the first file of an image have changed: these bytes of it, or all. What is kept
    /// of them is stale, and so is what is being read.
    pub(super) fn forget_tables(&mut self, id: VolumeId, ranges: Option<&[(u64, u64)]>) {
        if has(Bug::KeepTables) {
            return;
        }
        let map = self.volume(id).map().expect("raw images have no tables");
        let identity = self.maps.get(map).tables()[0];
        let layer = self.lines.layers.base(identity);
        let all = [(0, u64::MAX / 2)];
        for (at, bytes) in ranges.unwrap_or(&all) {
            assert!(*bytes > 0, "what has changed has bytes");
            let first = at / BLOCK_BYTES;
            let end = (at + bytes).div_ceil(BLOCK_BYTES);
            self.lines
                .forget_blocks(&mut self.ram, layer, first, end - first);
        }
        for read in &self.tables.reads {
            if let Goal::Table(table) = &mut self.reading.read(*read).goal {
                table.stale |= table.map == map && table.file() == FileIndex::TOP;
            }
        }
    }

    /// A part of a read looks again at the next turn.
    pub(super) fn read_anew(&mut self, read: u32, part: Span) {
        self.tables.ready.push(Behind {
            read,
            part,
            past_tier: false,
        });
    }

    /// Reads whose tables have come look where their bytes lie.
    pub(super) fn continue_reads(&mut self, cx: &mut Cx<'_>) {
        while !self.tables.ready.is_empty() {
            for behind in core::mem::take(&mut self.tables.ready) {
                let Behind { read, part, .. } = behind;
                match behind.past_tier {
                    true => self.read_past_tier(cx, read, part),
                    // Writes that go past the log may have begun meanwhile.
                    false => self.read_uncovered(cx, read, part),
                }
                self.part_of_read_ended(cx, read);
            }
        }
    }

    /// Asks a file of an image for bytes, on behalf of a guest.
    pub(super) fn ask_origin(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        lies: Lies,
        slices: Vec<Slice>,
        pending: Pending,
    ) {
        let (device, offset, op) = read_of(id, lies);
        let bytes: u64 = slices.iter().map(|slice| slice.bytes).sum();
        assert!(bytes > 0, "an extent has sectors");
        let volume = self.volume(id);
        volume.request_begins();
        volume.counters.origin.reads += 1;
        volume.counters.origin.read_bytes += bytes;
        volume.guest_reads(cx.now);
        let storage = volume.storage();
        self.turns.read_sent(cx.now, storage);
        cx.transfer(pending, Purpose::GuestRead, device, op, offset, slices);
    }
}

/// The device that a file of an image is.
pub(super) fn file_device(id: VolumeId, file: FileIndex) -> Device {
    match file {
        FileIndex::TOP => Device::Origin(id),
        file => Device::Base(id, file),
    }
}

/// How bytes are read that lie in a file of an image.
pub(super) fn read_of(id: VolumeId, lies: Lies) -> (Device, u64, Op) {
    match lies {
        Lies::At { file, offset } => (file_device(id, file), offset, Op::Read),
        Lies::Packed {
            file,
            offset,
            packed,
        } => (file_device(id, file), offset, Op::Unpack(packed)),
        Lies::Nowhere => unreachable!("nothing is read for it"),
    }
}
