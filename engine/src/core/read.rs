//! The way of a read: epochs, then the read tier, then the clean blocks on the cache device, then
//! the origin.
//!
//! Always true: a part covered by an epoch comes from the log, whatever the tiers hold; a block
//! that is missing is read from its origin once, however many ask for it; while an origin does not
//! answer, or answers with errors, reads of it are held and tried again, until the volume's
//! `origin-timeout`, whatever the policy. Uncached volumes read past the tier, so that a switch
//! never finds blocks of another time, and so does every volume where a write is on its way to the
//! origin past the log: a fill would bring half of it.

use super::Core;
use super::read_op::{FILL_BLOCKS_MAX, Goal, ReadOp, clip, target};
use crate::adversary::{Mark, mark};
use crate::clean::is_base;
use crate::event::{IoError, Purpose, Refusal};
use crate::fetch::{Owner, Want};
use crate::map::Content;
use crate::memory::Slice;
use crate::origin::{Lies, Resolved};
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Layer, Lookup, RamTier};
use crate::snapshot::State;
use crate::types::{
    BLOCK_SECTORS, BufferId, Policy, RequestId, SECTOR_BYTES, Span, Time, VolumeId,
};
use crate::volume::{WaitKind, Waiting};
use alloc::vec::Vec;

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
        if volume.state() == State::Held {
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
        volume.read_begins();
        let parts = volume.resolve(span);
        if volume.policy == Policy::Ephemeral && parts.iter().any(|(_, part)| part.is_some()) {
            volume.counters.overlay_hits += 1;
        }
        let goal = Goal::Guest { request, buffer };
        let read = self
            .reading
            .begin_read(ReadOp::new(id, goal, span, started));
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
                None => self.read_uncovered(cx, read, part),
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
                self.reading.read(read).waits += 1;
            } else {
                let reads = &mut self.volume(id).counters.reads;
                reads.ssd_hits -= 1;
                reads.ram_hits += 1;
            }
        }
        self.part_of_read_ended(cx, read);
    }

    /// A part that no epoch covers: through the tier, or past it.
    pub(super) fn read_uncovered(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let op = self.reading.read(read);
        let (id, guests) = (op.volume, op.is_guests());
        let uncached = self.volume(id).policy == Policy::Uncached;
        match guests && (uncached || self.volume(id).is_being_written(part)) {
            true => self.read_origin(cx, read, part),
            false => self.read_clean(cx, read, part),
        }
    }

    /// One of the things a read waits for has ended.
    pub(super) fn part_of_read_ended(&mut self, cx: &mut Cx<'_>, read: u32) {
        let op = self.reading.read(read);
        assert!(op.waits > 0, "a read that has ended waits for nothing");
        op.waits -= 1;
        if op.waits > 0 {
            return;
        }
        let op = self.reading.end_read(read);
        let volume = self.volume(op.volume);
        volume.read_ends(op.held);
        match op.goal {
            Goal::Guest { request, .. } => cx.out.reply(request, op.result),
            Goal::Table(table) => self.map_table_read(cx, (read, op.volume), table, op.result),
        }
        self.touch_if_awaited(op.volume);
    }

    /// Whose clean blocks a read takes.
    pub(super) fn layer_of_read(&mut self, read: u32) -> Layer {
        let op = self.reading.read(read);
        match &op.goal {
            Goal::Table(table) => table.layer,
            Goal::Guest { .. } => {
                let id = op.volume;
                self.volume(id).layer()
            }
        }
    }

    /// From the tier, joined to a fill, or by a new fill.
    pub(super) fn read_clean(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let layer = self.layer_of_read(read);
        self.read_layer(cx, read, part, layer);
    }

    /// The same of blocks of this layer: its own, or one below that has them.
    pub(super) fn read_layer(&mut self, cx: &mut Cx<'_>, read: u32, part: Span, layer: Layer) {
        let op = self.reading.read(read);
        let (id, guests) = (op.volume, op.is_guests());
        let first = part.sector / BLOCK_SECTORS;
        let last = (part.end() - 1) / BLOCK_SECTORS;
        let mut block = first;
        let mut hit = false;
        while block <= last {
            match self.ram.lookup(Key { layer, block }) {
                Lookup::Hit(slot) => {
                    hit = true;
                    self.reading.sample(read, layer, block..block + 1);
                    self.deliver(cx, read, slot, block, part);
                    if self.ram.hit(slot) && !is_base(layer) {
                        self.lines.admit(
                            cx.now,
                            &mut self.ram,
                            (Key { layer, block }, slot),
                            Some(id),
                        );
                    }
                    block += 1;
                }
                Lookup::Filling(fill) => {
                    let end = self.reading.fill(fill).end_block().min(last + 1);
                    // Parts of a fill that were invalidated meanwhile are asked for anew.
                    let mut upto = block + 1;
                    while upto < end
                        && self.ram.lookup(Key { layer, block: upto }) == Lookup::Filling(fill)
                    {
                        upto += 1;
                    }
                    let span = clip(part, block, upto);
                    self.reading.sample(read, layer, block..upto);
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
                    self.start_fills(cx, read, part, layer, block..upto);
                    block = upto;
                }
            }
        }
        if hit && guests {
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
        let op = self.reading.read(read);
        assert!(
            wanted.sector >= op.span.sector && wanted.end() <= op.span.end(),
            "a block goes to the part of the buffer that asked for it"
        );
        let offset = (wanted.sector - block * BLOCK_SECTORS) * SECTOR_BYTES;
        let from = RamTier::place(slot).plus(offset);
        let bytes = wanted.sectors * SECTOR_BYTES;
        match &mut op.goal {
            Goal::Guest { buffer, .. } => {
                let to = target(*buffer, op.span, wanted.sector);
                cx.memory.copy(from, to, bytes);
            }
            Goal::Table(table) => {
                let at = ((wanted.sector - op.span.sector) * SECTOR_BYTES) as usize;
                cx.memory
                    .load(from, &mut table.bytes[at..at + bytes as usize]);
            }
        }
    }

    /// Reads exactly these sectors from the origin, past the tier. A table has no place to be read
    /// to but the tier, and waits for one.
    pub(super) fn read_origin(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let op = self.reading.read(read);
        if !op.is_guests() {
            op.waits += 1;
            return self.hold_read(read, part);
        }
        let id = op.volume;
        self.volume(id).counters.reads.origin += 1;
        self.read_past_tier(cx, read, part);
    }

    /// A part of a read is tried again later.
    pub(super) fn hold_read(&mut self, read: u32, part: Span) {
        let (id, first) = self.reading.hold_read(read, part);
        if first {
            self.volume(id).read_is_held();
        }
    }

    pub(super) fn read_past_tier(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        let id = self.reading.read(read).volume;
        if self.volume(id).is_unreadable() {
            self.reading.read(read).waits += 1;
            return self.hold_read(read, part);
        }
        let (extents, missing) = match self.locate(read, part) {
            Resolved::Ready(extents) => (extents, None),
            Resolved::Missing(extents, missing) => (extents, Some(missing)),
            Resolved::Damaged => return self.read_unresolved(read, part),
        };
        let from = extents.last().map_or(part.sector, |it| it.span.end());
        let rest = Span::new(from, part.end() - from);
        let op = self.reading.read(read);
        let Goal::Guest { buffer, .. } = op.goal else {
            unreachable!("a table is read through the tier");
        };
        let span = op.span;
        for extent in extents {
            let part = extent.span;
            let place = target(buffer, span, part.sector);
            let bytes = part.sectors * SECTOR_BYTES;
            if extent.lies == Lies::Nowhere {
                cx.memory.zero(place, bytes);
                continue;
            }
            self.reading.read(read).waits += 1;
            let slices = alloc::vec![Slice { place, bytes }];
            let pending = Pending::OriginRead { read, part };
            self.ask_origin(cx, id, extent.lies, slices, pending);
        }
        if let Some(missing) = missing {
            self.await_table(cx, read, rest, true, missing);
        }
    }

    /// Asks once more for a part that its origin did not give, or that found no place in the tier.
    pub(super) fn read_part_again(&mut self, cx: &mut Cx<'_>, read: u32, part: Span) {
        match self.reading.read(read).is_guests() {
            true => self.read_past_tier(cx, read, part),
            false => self.read_clean(cx, read, part),
        }
        self.part_of_read_ended(cx, read);
    }

    pub(super) fn origin_read_done(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        part: Span,
        result: Result<(), IoError>,
        started: Time,
    ) {
        let op = self.reading.read(read);
        let (id, begun) = (op.volume, op.started);
        let volume = self.volume(id);
        volume.request_ends();
        volume.counters.origin.latency.add_ns(cx.now.since(started));
        volume.origin_answered(cx.now, result);
        let again = volume.may_read_again(result);
        if result.is_err() {
            if again && self.volume(id).may_hold(begun, cx.now) {
                mark(Mark::ReadHeld);
                return self.hold_read(read, part);
            }
            self.reading.read(read).result = Err(Refusal::Io);
        }
        self.part_of_read_ended(cx, read);
    }
}
