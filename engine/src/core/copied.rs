//! What a write of an image that allocates copies to its new cluster.
//!
//! Owns how the bytes of a batch come together: what the read tier has, what is read of the file,
//! and last what the guest wrote. Always true: what is copied is what the image has at that place
//! of the disk; nothing that was read of the file for it is kept: only blocks which the tier had
//! before are there afterwards as well, and of a large copy none; what cannot be read but is not
//! copied either fails no write. Deliberately absent: which parts are copied, and where to
//! ([`crate::origin::Planner`]).

use super::Core;
use super::read_op::clip;
use crate::adversary::{Bug, Mark, has, mark};
use crate::memory::{Place, Slice};
use crate::origin::{Extent, Lies};
use crate::outbox::{AllocateIo, Cx};
use crate::ram::{CleanCache, KEPT_BLOCKS_MAX, Key, Lookup, RamTier};
use crate::types::{BLOCK_SECTORS, Policy, SECTOR_BYTES, Span, VolumeId};
use crate::volume::allocation::Job;
use crate::volume::batch::{Batch, Part, Source};
use alloc::vec::Vec;

/// What is written of a cluster is read as well, if that makes one read of two.
const GAP_BYTES_MAX: u64 = 32 << 10;

/// A read of what a batch copies: so many bytes, to this place of the batch.
pub(super) struct CopyRead {
    pub lies: Lies,
    pub at: u64,
    pub bytes: u64,
    /// It brings more than what is copied.
    pub joined: bool,
}

impl CopyRead {
    fn of(lies: Lies, part: &Part) -> CopyRead {
        CopyRead {
            lies,
            at: part.at,
            bytes: part.bytes,
            joined: false,
        }
    }

    /// What a batch copies, of which parts that lie close together are one read, or of which each
    /// is read by itself.
    pub fn all_of(batch: &Batch, joins: bool) -> Vec<CopyRead> {
        let mut reads: Vec<CopyRead> = Vec::new();
        for part in &batch.parts {
            let Source::File(extent) = part.from else {
                continue;
            };
            let last = reads.last_mut().filter(|_| joins);
            if extent.lies != Lies::Nowhere && !last.is_some_and(|it| it.join(extent.lies, part)) {
                reads.push(CopyRead::of(extent.lies, part));
            }
        }
        reads
    }

    /// Brings this part as well, where it lies in the file as it does in the batch, and what
    /// is between them is little: that is written over before the batch is sent.
    fn join(&mut self, other: Lies, part: &Part) -> bool {
        let (
            Lies::At { file, offset },
            Lies::At {
                file: same,
                offset: next,
            },
        ) = (self.lies, other)
        else {
            return false;
        };
        assert!(part.at >= self.at + self.bytes, "parts come in order");
        let gap = part.at - (self.at + self.bytes);
        let fits = file == same && next == offset + self.bytes + gap;
        if fits && gap <= GAP_BYTES_MAX {
            self.bytes += gap + part.bytes;
            self.joined |= gap > 0;
        }
        fits && gap <= GAP_BYTES_MAX
    }
}

impl Core {
    /// Brings what a batch copies into memory; it is written when all of it is there.
    pub(super) fn put_together(&mut self, cx: &mut Cx<'_>, id: VolumeId, piece: u32, batch: Batch) {
        assert!(batch.bytes > 0, "a batch has bytes");
        let place = self.scratch.piece(piece);
        let mut reads: Vec<CopyRead> = Vec::new();
        let mut joins = false;
        for part in &batch.parts {
            let Source::File(extent) = part.from else {
                continue;
            };
            if extent.lies == Lies::Nowhere {
                continue;
            }
            if self.copy_from_tier(cx, id, extent, place.plus(part.at)) {
                joins = false;
                continue;
            }
            let last = reads.last_mut().filter(|_| joins);
            if !last.is_some_and(|last| last.join(extent.lies, part)) {
                reads.push(CopyRead::of(extent.lies, part));
            }
            joins = true;
        }
        let waits = reads.len() as u32;
        let joined = reads.iter().any(|it| it.joined);
        let job = self.allocation(id).jobs.insert(Job {
            piece,
            batch,
            waits,
            joined,
            again: false,
        });
        self.read_copies(cx, id, job, reads);
        if waits == 0 {
            self.send_allocation(cx, id, job);
        }
    }

    fn read_copies(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32, reads: Vec<CopyRead>) {
        let piece = self.allocation(id).jobs.get(job).piece;
        let place = self.scratch.piece(piece);
        for CopyRead {
            lies, at, bytes, ..
        } in reads
        {
            assert!(at + bytes <= self.scratch.piece_bytes(), "it has its place");
            let place = place.plus(at);
            let slices = alloc::vec![Slice { place, bytes }];
            let io = AllocateIo::Read { job };
            self.read_to_allocate(cx, id, io, lies, slices);
        }
    }

    /// A read of what a batch copies has ended.
    pub(super) fn copy_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let plan = self.allocation(id);
        let failed = plan.has_failed();
        let it = plan.jobs.get(job);
        assert!(it.waits > 0, "what is there was waited for");
        it.waits -= 1;
        if it.waits > 0 {
            return;
        }
        let again = core::mem::take(&mut it.again);
        if failed || self.volume(id).misfit().is_some() {
            return self.end_allocation_job(id, job);
        }
        if !again {
            return self.send_allocation(cx, id, job);
        }
        let it = self.allocation(id).jobs.get(job);
        let reads = CopyRead::all_of(&it.batch, false);
        assert!(!reads.is_empty() && it.joined, "parts were read together");
        (it.joined, it.waits) = (false, reads.len() as u32);
        mark(Mark::CopiedApart);
        self.read_copies(cx, id, job, reads);
    }

    /// Takes a part that is copied from the read tier, if that has all of it. Its guest has read it
    /// and will again, so its whole blocks are from now on there as blocks of the volume: the copy
    /// changes where they lie, not what they are.
    fn copy_from_tier(&mut self, cx: &mut Cx<'_>, id: VolumeId, extent: Extent, to: Place) -> bool {
        let volume = self.volume(id);
        if volume.policy != Policy::WriteThrough {
            return false;
        }
        let (own, map) = (volume.layer(), volume.map().expect("it allocates"));
        let file = match extent.lies {
            Lies::At { file, .. } | Lies::Packed { file, .. } => file,
            Lies::Nowhere => unreachable!("zeroes are not copied"),
        };
        let above = usize::from(file.0).checked_sub(1);
        let name = above.and_then(|it| self.maps.get(map).layers().get(it).copied());
        let below = name.and_then(|it| self.lines.layers.find_base(it));
        let span = extent.span;
        let blocks = span.sector / BLOCK_SECTORS..span.end().div_ceil(BLOCK_SECTORS);
        let mut hit = |layer, block| match self.ram.lookup(Key { layer, block }) {
            Lookup::Hit(slot) => Some(slot),
            Lookup::Filling(_) | Lookup::Miss => None,
        };
        let mut find = |block| hit(own, block).or_else(|| hit(below?, block));
        let slots: Option<Vec<u32>> = blocks.clone().map(&mut find).collect();
        let Some(slots) = slots else { return false };
        assert!(!slots.is_empty(), "what is copied has sectors");
        let place_of = |sector: u64| to.plus((sector - span.sector) * SECTOR_BYTES);
        for (block, slot) in blocks.clone().zip(slots) {
            let part = clip(span, block, block + 1);
            let skip = (part.sector - block * BLOCK_SECTORS) * SECTOR_BYTES;
            let from = RamTier::place(slot).plus(skip);
            cx.memory
                .copy(from, place_of(part.sector), part.sectors * SECTOR_BYTES);
        }
        mark(Mark::CopiedFromTier);
        if blocks.end - blocks.start > KEPT_BLOCKS_MAX {
            return true;
        }
        for block in blocks {
            let whole = Span::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
            let written =
                self.volume(id).is_being_written(whole) && !has(Bug::KeepCopiedUnderWrite);
            if clip(span, block, block + 1) == whole && !written {
                let key = Key { layer: own, block };
                self.ram.keep(cx.memory, key, place_of(whole.sector));
            }
        }
        true
    }

    /// The parts of a batch that no read brings.
    pub(super) fn complete(&mut self, cx: &mut Cx<'_>, id: VolumeId, job: u32) {
        let piece = self.allocation(id).jobs.get(job).piece;
        let place = self.scratch.piece(piece);
        let plan = self.allocation(id);
        assert_eq!(plan.jobs.get(job).waits, 0, "all that is read is there");
        let parts = core::mem::take(&mut plan.jobs.get(job).batch.parts);
        for part in &parts {
            let mut to = place.plus(part.at);
            match &part.from {
                Source::Bytes(bytes) => cx.memory.store(to, bytes),
                Source::File(extent) if extent.lies == Lies::Nowhere => {
                    cx.memory.zero(to, part.bytes);
                }
                Source::File(_) => {}
                Source::Epoch(span) => {
                    for (from, bytes) in plan.sources(*span) {
                        cx.memory.copy(from, to, bytes);
                        to = to.plus(bytes);
                    }
                }
            }
        }
    }
}
