//! The way of a read: epochs, then the read tier, then the clean blocks on the cache device, then
//! the origin.
//!
//! Always true: a part covered by an epoch comes from the log, whatever the tiers hold; a block
//! that is missing is read from its origin once, however many ask for it; while an origin does not
//! answer, or answers with errors, reads of it are held and tried again, until the volume's
//! `origin-timeout`, whatever the policy. Uncached
//! volumes read past the tier, so that a switch never finds blocks of another time, and so does
//! everybody where a write is on its way to the origin past the log: a fill would bring half of it.

use super::Core;
use super::fill::FILL_BLOCKS_MAX;
use super::layers::is_base;
use crate::adversary::{Mark, mark};
use crate::event::{Device, IoError, Op, Purpose, Refusal};
use crate::fetch::{Owner, Want};
use crate::map::Content;
use crate::memory::{Area, Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Lookup, RamTier};
use crate::snapshot::State;
use crate::types::{
    BLOCK_SECTORS, BufferId, Policy, RequestId, SECTOR_BYTES, Span, Time, VolumeId,
};
use crate::volume::{WaitKind, Waiting};
use alloc::vec::Vec;

/// A read under way.
pub struct ReadOp {
    pub volume: VolumeId,
    pub result: Result<(), Refusal>,
    request: RequestId,
    span: Span,
    buffer: BufferId,
    started: Time,
    /// Fetches, fills and origin reads it waits for, and one while it is being taken apart.
    pub(super) waits: u32,
    /// Its origin did not give a part of it, and is asked again.
    pub(super) held: bool,
}

impl Core {
    pub(super) fn read(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (sector, sectors): (u64, u64),
        buffer: BufferId,
    ) {
        let Some(volume) = self.find(id) else {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        };
        volume.counters.reads.requests += 1;
        volume.counters.reads.bytes += sectors * SECTOR_BYTES;
        if sectors == 0 || sector >= volume.sectors() || sectors > volume.sectors() - sector {
            cx.out.reply(request, Err(Refusal::OutOfRange));
            return;
        }
        if volume.state == State::Held {
            cx.out.reply(request, Err(Refusal::Held));
            return;
        }
        let span = Span::new(sector, sectors);
        if !volume.serves() {
            let kind = WaitKind::Read { span, buffer };
            self.wait(cx, id, Waiting::new(request, kind, cx.now));
            return;
        }
        self.start_read(cx, id, request, span, buffer, cx.now);
    }

    pub(super) fn start_read(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        span: Span,
        buffer: BufferId,
        started: Time,
    ) {
        let volume = self.volume(id);
        let uncached = volume.policy == Policy::Uncached;
        volume.reads_in_flight += 1;
        let parts = volume.resolve(span);
        if volume.policy == Policy::Ephemeral && parts.iter().any(|(_, part)| part.is_some()) {
            volume.counters.overlay_hits += 1;
        }
        let op = ReadOp {
            volume: id,
            result: Ok(()),
            request,
            span,
            buffer,
            started,
            waits: 1,
            held: false,
        };
        let read = self.reads.insert(op);
        let mut wants = Vec::new();
        for (part, content) in parts {
            let to = target(buffer, span, part.sector);
            match content {
                Some(Content::Data(addr)) => {
                    wants.push(Want {
                        addr,
                        sectors: part.sectors,
                        to,
                    });
                }
                Some(Content::Zero { .. }) => cx.memory.zero(to, part.sectors * SECTOR_BYTES),
                None if uncached || self.is_being_written(id, part) => {
                    self.read_origin(cx, read, part);
                }
                None => self.read_clean(cx, read, part),
            }
        }
        if !wants.is_empty() {
            let counters = &mut self.volume(id).counters;
            counters.reads.ssd_hits += 1;
            let parts = (&mut self.log, &mut self.scratch);
            let owner = Owner::Read(read);
            if self
                .fetches
                .start(cx, parts, owner, Purpose::GuestRead, &wants)
            {
                self.reads.get(read).waits += 1;
            } else {
                let reads = &mut self.volume(id).counters.reads;
                reads.ssd_hits -= 1;
                reads.ram_hits += 1;
            }
        }
        self.read_progress(cx, read);
    }

    /// One of the things a read waits for has ended.
    pub(super) fn read_progress(&mut self, cx: &mut Cx<'_>, read: u32) {
        let op = self.reads.get(read);
        op.waits -= 1;
        if op.waits > 0 {
            return;
        }
        let op = self.reads.take(read);
        let volume = self.volume(op.volume);
        volume.reads_in_flight -= 1;
        volume.reads_held -= u32::from(op.held);
        cx.out.reply(op.request, op.result);
        self.detach_progress(cx, op.volume);
    }

    /// A part that no epoch covers: from the tier, joined to a fill, or by a new fill.
    fn read_clean(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let id = self.reads.get(read).volume;
        let layer = self.volume(id).layer;
        let first = part.sector / BLOCK_SECTORS;
        let last = (part.end() - 1) / BLOCK_SECTORS;
        let mut block = first;
        let mut hit = false;
        while block <= last {
            match self.ram.lookup(Key { layer, block }) {
                Lookup::Hit(slot) => {
                    hit = true;
                    self.deliver(cx, read, slot, block, part);
                    if self.ram.hit(slot) && !is_base(layer) {
                        self.admit(cx.now, Key { layer, block }, slot, Some(id));
                    }
                    block += 1;
                }
                Lookup::Filling(fill) => {
                    let end = self.fills.get(fill).end_block().min(last + 1);
                    // Parts of a fill that were invalidated meanwhile are asked for anew.
                    let mut upto = block + 1;
                    while upto < end
                        && self.ram.lookup(Key { layer, block: upto }) == Lookup::Filling(fill)
                    {
                        upto += 1;
                    }
                    let span = clip(part, block, upto);
                    self.join_fill(read, fill, span);
                    block = upto;
                }
                Lookup::Miss => {
                    let mut upto = block + 1;
                    while upto <= last
                        && upto - block < FILL_BLOCKS_MAX
                        && self.ram.lookup(Key { layer, block: upto }) == Lookup::Miss
                    {
                        upto += 1;
                    }
                    self.start_fills(cx, read, part, block..upto);
                    block = upto;
                }
            }
        }
        if hit {
            self.volume(id).counters.reads.ram_hits += 1;
        }
    }

    /// Copies what `part` wants of a block to the buffer of a read.
    pub(super) fn deliver(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        slot: u32,
        block: u64,
        part: Span,
    ) {
        let wanted = clip(part, block, block + 1);
        let op = self.reads.get(read);
        let offset = (wanted.sector - block * BLOCK_SECTORS) * SECTOR_BYTES;
        let from = RamTier::place(slot).plus(offset);
        let to = target(op.buffer, op.span, wanted.sector);
        cx.memory.copy(from, to, wanted.sectors * SECTOR_BYTES);
    }

    /// Reads exactly these sectors from the origin into the buffer, past the tier.
    pub(super) fn read_origin(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let op = self.reads.get(read);
        op.waits += 1;
        let id = op.volume;
        self.volume(id).counters.reads.origin += 1;
        self.issue_origin_read(cx, read, part);
    }

    pub(super) fn issue_origin_read(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let op = self.reads.get(read);
        let (id, place) = (op.volume, target(op.buffer, op.span, part.sector));
        let bytes = part.sectors * SECTOR_BYTES;
        let volume = self.volume(id);
        volume.origin_in_flight += 1;
        volume.counters.origin.reads += 1;
        volume.counters.origin.read_bytes += bytes;
        volume.guest_read_at = Some(cx.now);
        let storage = volume.storage;
        self.windows.read_sent(cx.now, storage);
        let at = part.sector * SECTOR_BYTES;
        let slices = alloc::vec![Slice { place, bytes }];
        let pending = Pending::OriginRead { read, part };
        cx.transfer(
            pending,
            Purpose::GuestRead,
            Device::Origin(id),
            Op::Read,
            at,
            slices,
        );
    }

    pub(super) fn origin_read_done(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        part: Span,
        result: Result<(), IoError>,
        started: Time,
    ) {
        let op = self.reads.get(read);
        let (id, begun) = (op.volume, op.started);
        let volume = self.volume(id);
        volume.origin_in_flight -= 1;
        volume.counters.origin.latency.add_ns(cx.now.since(started));
        volume.origin_answered(cx.now, result);
        if result.is_err() {
            if self.may_hold(id, begun, cx.now) {
                mark(Mark::ReadHeld);
                self.held_reads.push((read, part));
                let first = !core::mem::replace(&mut self.reads.get(read).held, true);
                self.volume(id).reads_held += u32::from(first);
                return;
            }
            self.reads.get(read).result = Err(Refusal::Io);
        }
        self.read_progress(cx, read);
    }
}

/// The part of a range that lies in blocks `first..end`.
pub(super) fn clip(part: Span, first: u64, end: u64) -> Span {
    let from = part.sector.max(first * BLOCK_SECTORS);
    let upto = part.end().min(end * BLOCK_SECTORS);
    Span::new(from, upto - from)
}

/// Where a sector of a request lies in its buffer.
fn target(buffer: BufferId, span: Span, sector: u64) -> Place {
    Place::new(Area::Buffer(buffer), (sector - span.sector) * SECTOR_BYTES)
}
