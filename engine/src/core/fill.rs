//! Fills: clean blocks on their way into the read tier.
//!
//! Always true: a block that is missing is read from its origin once, however many ask for it; what
//! came from the cache device has the checksum that it was kept with, or is read from the origin;
//! while an origin does not answer, or answers with errors, its fills are held and tried again,
//! until the volume's `origin-timeout`. Deliberately absent: who asks ([`super::read`]), and which
//! blocks are on the device ([`super::lines`]).

use super::Core;
use super::read_op::{FILL_BLOCKS_MAX, clip};
use crate::adversary::{Bug, Mark, has, mark};
use crate::clean::is_base;
use crate::event::{Admission, Device, IoError, LEFT_BLOCKS_MAX, Op, Purpose, Refusal};
use crate::log::Log;
use crate::memory::{Place, Slice};
use crate::origin::{self, Extent, Lies, Resolved};
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Layer, Lookup, Published, RamTier};
use crate::types::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES, SegmentIndex, Span, Time, VolumeId};
use alloc::vec::Vec;
use core::ops::Range;

const _: () = assert!(
    FILL_BLOCKS_MAX <= LEFT_BLOCKS_MAX,
    "another host is asked for a fill at once"
);

/// Where blocks of a fill come from.
#[derive(Clone, Copy)]
enum Source {
    Origin(VolumeId),
    /// The host that had the volume before; its origin, where that has not all of them.
    Former(VolumeId),
    /// Blocks of the log in a row. Their segment is pinned.
    Device {
        base: u32,
        segment: SegmentIndex,
        tried: bool,
        /// They are to be written again.
        again: bool,
    },
}

/// Blocks on their way into the tier.
pub struct Fill {
    source: Source,
    layer: Layer,
    first_block: u64,
    slots: Vec<u32>,
    /// Where its bytes lie at the origin. Files that are read so are not written while it lasts.
    extents: Vec<Extent>,
    /// Requests to the origin that have not ended, and whether one of them failed.
    asked: u32,
    failed: bool,
    /// It will fail again.
    damaged: bool,
    /// Reads that want a part of it.
    waiters: Vec<(u32, Span)>,
    begun: Time,
    /// Its origin did not give it, and is asked again.
    pub(super) held: bool,
}

impl Fill {
    /// It is of another layer from now on.
    pub(super) fn rename(&mut self, from: Layer, to: Layer) {
        if self.layer == from {
            self.layer = to;
        }
    }

    /// The volume whose origin is read.
    pub(super) fn origin(&self) -> Option<VolumeId> {
        match self.source {
            Source::Origin(volume) | Source::Former(volume) => Some(volume),
            Source::Device { .. } => None,
        }
    }

    /// The places of its blocks.
    fn slices(&self) -> Vec<Slice> {
        let slice = |&slot: &u32| Slice {
            place: RamTier::place(slot),
            bytes: BLOCK_BYTES,
        };
        self.slots.iter().map(slice).collect()
    }

    /// The block behind the last one.
    pub(super) fn end_block(&self) -> u64 {
        self.first_block + self.slots.len() as u64
    }
}

impl Core {
    /// Cuts blocks that the tier does not have into those in a row on the device and those that
    /// only the origin has.
    pub(super) fn start_fills(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        part: Span,
        layer: Layer,
        blocks: Range<u64>,
    ) {
        let mut block = blocks.start;
        while block < blocks.end {
            let place = |block| self.lines.find(cx.now, Key { layer, block });
            let base = place(block);
            let mut upto = block + 1;
            // Between the blocks of two segments lies a footer: a row never goes over it.
            while upto < blocks.end && place(upto) == base.map(|base| base + (upto - block) as u32)
            {
                upto += 1;
            }
            let wanted = clip(part, block, upto);
            match base {
                Some(base) => {
                    let source = self.device_source(base, false);
                    self.start_fill(cx, (read, wanted), source, layer, block..upto, Vec::new());
                }
                None => self.fill_from_origin(cx, read, wanted, layer, block..upto),
            }
            block = upto;
        }
    }

    /// The same for blocks that only the origin has. A read that does not know where they lie
    /// waits without a place in the tier.
    fn fill_from_origin(
        &mut self,
        cx: &mut Cx<'_>,
        read: u32,
        wanted: Span,
        layer: Layer,
        blocks: Range<u64>,
    ) {
        let volume = self.reading.read(read).volume;
        if self.volume(volume).is_unreadable() {
            self.reading.read(read).waits += 1;
            return self.hold_read(read, wanted);
        }
        match self.locate_blocks(read, &blocks) {
            Resolved::Ready(extents) => {
                self.fill_located(cx, (read, wanted), layer, blocks, extents);
            }
            Resolved::Missing(extents, missing) => {
                // The blocks before that which are known as a whole.
                let end = extents.last().map_or(0, |extent| extent.span.end());
                let known = blocks.start..(end / BLOCK_SECTORS).max(blocks.start);
                if !known.is_empty() {
                    let extents = origin::up_to(extents, known.end * BLOCK_SECTORS);
                    let wanted = clip(wanted, known.start, known.end);
                    self.fill_located(cx, (read, wanted), layer, known.clone(), extents);
                }
                let rest = clip(wanted, known.end, blocks.end);
                self.await_table(cx, read, rest, false, missing);
            }
            Resolved::Damaged => self.read_unresolved(read, wanted),
        }
    }

    /// The same where it is known where they lie. Blocks that a file below has belong to all
    /// volumes above it: they are looked for, and kept, in its layer.
    fn fill_located(
        &mut self,
        cx: &mut Cx<'_>,
        (read, wanted): (u32, Span),
        layer: Layer,
        blocks: Range<u64>,
        extents: Vec<Extent>,
    ) {
        let volume = self.reading.read(read).volume;
        let mut rest = extents;
        let mut block = blocks.start;
        while block < blocks.end {
            let owner = self.owner_of(read, layer, block, &rest);
            let mut upto = block + 1;
            while upto < blocks.end && self.owner_of(read, layer, upto, &rest) == owner {
                upto += 1;
            }
            let run = block..upto;
            // Most often they are one run.
            let behind = match upto < blocks.end {
                true => origin::from(rest.clone(), upto * BLOCK_SECTORS),
                false => Vec::new(),
            };
            let extents = origin::up_to(rest, upto * BLOCK_SECTORS);
            let wanted = clip(wanted, block, upto);
            match owner {
                Some(below) => self.read_layer(cx, read, wanted, below),
                None => {
                    let known = (layer, run, extents);
                    let (run, extents) = self.with_cluster(cx.now, read, known);
                    let source = match self.lines.remote.may_ask(layer, &run) {
                        true => Source::Former(volume),
                        false => Source::Origin(volume),
                    };
                    self.start_fill(cx, (read, wanted), source, layer, run, extents);
                }
            }
            (rest, block) = (behind, upto);
        }
    }

    /// The layer below that of a volume to which a block belongs. One that is not all in the volume
    /// is kept for no other.
    fn owner_of(
        &mut self,
        read: u32,
        layer: Layer,
        block: u64,
        extents: &[Extent],
    ) -> Option<Layer> {
        let op = self.reading.read(read);
        let (id, guests) = (op.volume, op.is_guests());
        let below = is_base(layer) && layer != self.volume(id).layer();
        if !guests || below {
            return None;
        }
        let span = Span::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
        let volume = self.volume(id);
        let whole = span.end() <= volume.sectors() || has(Bug::CutAtVolume);
        let map = volume.map().filter(|_| whole)?;
        let file = origin::owner_below(span, extents)?;
        let names = self.maps.get(map).layers();
        let name = *names.get(usize::from(file.0) - 1)?;
        Some(self.lines.layers.base(name))
    }

    /// Where blocks lie, as far as their volume goes.
    fn locate_blocks(&mut self, read: u32, blocks: &Range<u64>) -> Resolved {
        let op = self.reading.read(read);
        let (id, guests) = (op.volume, op.is_guests());
        let mut end = blocks.end * BLOCK_SECTORS;
        if guests {
            end = end.min(self.volume(id).sectors());
        }
        let first = blocks.start * BLOCK_SECTORS;
        self.locate(read, Span::new(first, end - first))
    }

    /// Of a compressed cluster all is there once it is unpacked, so all of it that the cache does
    /// not have is filled.
    fn with_cluster(
        &mut self,
        now: Time,
        read: u32,
        (layer, blocks, extents): (Layer, Range<u64>, Vec<Extent>),
    ) -> (Range<u64>, Vec<Extent>) {
        let [
            Extent {
                span,
                lies: Lies::Packed { packed, .. },
            },
        ] = extents[..]
        else {
            return (blocks, extents);
        };
        let start = span
            .sector
            .saturating_sub(u64::from(packed.skip) / SECTOR_BYTES);
        let cluster = start / BLOCK_SECTORS
            ..(start + u64::from(packed.cluster_bytes) / SECTOR_BYTES).div_ceil(BLOCK_SECTORS);
        let volume = self.reading.read(read).volume;
        let sectors = self.volume(volume).sectors();
        // A block that is kept for others is all in the volume.
        let last = match is_base(layer) && layer != self.volume(volume).layer() {
            true => sectors / BLOCK_SECTORS,
            false => sectors.div_ceil(BLOCK_SECTORS),
        };
        let absent = |core: &mut Core, block: u64| {
            let key = Key { layer, block };
            core.ram.lookup(key) == Lookup::Miss && core.lines.find(now, key).is_none()
        };
        let mut wide = blocks.clone();
        while wide.start > cluster.start
            && wide.end - wide.start < FILL_BLOCKS_MAX
            && absent(self, wide.start - 1)
        {
            wide.start -= 1;
        }
        while wide.end < cluster.end.min(last)
            && wide.end - wide.start < FILL_BLOCKS_MAX
            && absent(self, wide.end)
        {
            wide.end += 1;
        }
        match self.locate_blocks(read, &wide) {
            // What lies above a part of it hides that.
            Resolved::Ready(all) if all.len() == 1 => (wide, all),
            Resolved::Ready(_) | Resolved::Missing(..) | Resolved::Damaged => (blocks, extents),
        }
    }

    /// A fill that a read waits for.
    fn start_fill(
        &mut self,
        cx: &mut Cx<'_>,
        (read, wanted): (u32, Span),
        source: Source,
        layer: Layer,
        blocks: Range<u64>,
        extents: Vec<Extent>,
    ) {
        let first = wanted.sector / BLOCK_SECTORS;
        let asked = first..wanted.end().div_ceil(BLOCK_SECTORS);
        self.reading.sample(read, layer, asked);
        match self.reserve_fill(cx.now, source, layer, blocks) {
            Some(fill) => {
                self.reading.fill(fill).extents = extents;
                self.join_fill(read, fill, wanted);
                self.issue(cx, fill);
            }
            // The tier is full of blocks on their way: read past it.
            None => self.read_origin(cx, read, wanted),
        }
    }

    /// Brings blocks of a segment that is given back into the tier, to be written again.
    pub(super) fn read_again(
        &mut self,
        cx: &mut Cx<'_>,
        layer: Layer,
        blocks: Range<u64>,
        base: u32,
    ) {
        let source = self.device_source(base, true);
        if let Some(fill) = self.reserve_fill(cx.now, source, layer, blocks) {
            self.issue(cx, fill);
        }
    }

    /// A read waits for a part of a fill.
    pub(super) fn join_fill(&mut self, read: u32, fill: u32, part: Span) {
        self.reading.fill(fill).waiters.push((read, part));
        self.reading.read(read).waits += 1;
    }

    fn device_source(&mut self, base: u32, again: bool) -> Source {
        Source::Device {
            base,
            segment: self.log.pin(Log::block_addr(base)),
            tried: false,
            again,
        }
    }

    /// A fill with places in the tier; `None` if there are not enough.
    fn reserve_fill(
        &mut self,
        begun: Time,
        source: Source,
        layer: Layer,
        blocks: Range<u64>,
    ) -> Option<u32> {
        let fill = self.reading.begin_fill(Fill {
            source,
            layer,
            first_block: blocks.start,
            slots: Vec::with_capacity((blocks.end - blocks.start) as usize),
            extents: Vec::new(),
            asked: 0,
            failed: false,
            damaged: false,
            waiters: Vec::new(),
            begun,
            held: false,
        });
        for block in blocks {
            match self.ram.reserve(Key { layer, block }, fill) {
                Some(slot) => self.reading.fill(fill).slots.push(slot),
                None => {
                    let fill = self.reading.end_fill(fill);
                    self.abandon(fill);
                    return None;
                }
            }
        }
        Some(fill)
    }

    fn abandon(&mut self, fill: Fill) {
        fill.slots.iter().for_each(|slot| self.ram.abandon(*slot));
        if let Source::Device { segment, .. } = fill.source {
            self.log.unpin(segment);
        }
    }

    fn issue(&mut self, cx: &mut Cx<'_>, id: u32) {
        match self.reading.fill(id).source {
            Source::Origin(_) => self.issue_fill(cx, id),
            Source::Former(volume) => {
                let fill = self.reading.fill(id);
                let (at, slices) = (fill.first_block * BLOCK_BYTES, fill.slices());
                let (pending, purpose) = (Pending::FormerRead { fill: id }, Purpose::GuestRead);
                let device = Device::Former(volume);
                cx.transfer(pending, purpose, device, Op::Read, at, slices);
            }
            Source::Device { base, .. } => self.issue_line_read(cx, id, base),
        }
    }

    fn issue_line_read(&mut self, cx: &mut Cx<'_>, id: u32, base: u32) {
        let fill = self.reading.fill(id);
        let slices = fill.slices();
        let asker = fill.waiters.first().map(|(read, _)| *read);
        let bytes = slices.len() as u64 * BLOCK_BYTES;
        if let Some(read) = asker {
            let volume = self.reading.read(read).volume;
            self.volume(volume).counters.ssd_read_bytes += bytes;
        }
        self.lines.count_read(bytes);
        let at = self.log.device_at(Log::block_addr(base));
        let pending = Pending::LineRead { fill: id };
        let (purpose, device) = (Purpose::LineRead, Device::Cache);
        cx.transfer(pending, purpose, device, Op::Read, at, slices);
    }

    /// Blocks came from the device. What is wrong twice is forgotten and asked of the origin.
    pub(super) fn line_read(&mut self, cx: &mut Cx<'_>, id: u32, ok: bool) {
        let fill = self.reading.fill(id);
        let (layer, first) = (fill.layer, fill.first_block);
        let Source::Device {
            base,
            segment,
            tried,
            again,
        } = fill.source
        else {
            unreachable!("only such fills read the device");
        };
        let is_good = |at: usize, slot: u32| {
            let sum = cx.memory.checksum(RamTier::place(slot), BLOCK_BYTES);
            let right = sum == self.log.sum(Log::block_addr(base + at as u32));
            ok && (right || has(Bug::DropLineSum))
        };
        let slots = fill.slots.iter().enumerate();
        let bad: Vec<u64> = slots
            .filter(|(at, slot)| !is_good(*at, **slot))
            .map(|(at, _)| first + at as u64)
            .collect();
        if !bad.is_empty() && !tried {
            self.reading.fill(id).source = Source::Device {
                base,
                segment,
                tried: true,
                again,
            };
            self.issue_line_read(cx, id, base);
            return;
        }
        if bad.is_empty() {
            self.log.unpin(segment);
            let fill = self.reading.end_fill(id);
            if !fill.waiters.is_empty() {
                let blocks = first..first + fill.slots.len() as u64;
                blocks.for_each(|block| self.lines.hit(Key { layer, block }));
            }
            self.hand_out(cx, fill, true);
            return;
        }
        if !ok {
            self.lines.device_failed(cx.now);
        }
        for block in bad {
            mark(Mark::BadLine);
            self.lines.drop_bad(Key { layer, block }, !ok);
        }
        let mut fill = self.reading.end_fill(id);
        for (read, part) in core::mem::take(&mut fill.waiters) {
            self.read_anew(read, part);
        }
        self.abandon(fill);
    }

    /// Asks again for what origins did not give. Of an image that does not fit nothing is asked;
    /// who lets go of the volume does not wait for it.
    pub(super) fn retry_held_reads(&mut self, cx: &mut Cx<'_>) {
        for id in self.reading.take_held_fills() {
            let Source::Origin(source) = self.reading.fill(id).source else {
                unreachable!("only such fills are held");
            };
            match self.fate_of_held(source) {
                Held::Asks => self.issue_fill(cx, id),
                Held::Waits => self.reading.hold_fill_again(id),
                Held::Ends => {
                    let fill = self.reading.end_fill(id);
                    self.volume(source).held_read_ends(fill.held);
                    self.hand_out(cx, fill, false);
                }
            }
        }
        for (read, part) in self.reading.take_held_reads() {
            let volume = self.reading.read(read).volume;
            match self.fate_of_held(volume) {
                Held::Asks => self.read_part_again(cx, read, part),
                Held::Waits => self.reading.hold_read_again(read, part),
                Held::Ends => {
                    self.reading.read(read).result = Err(Refusal::Io);
                    self.part_of_read_ended(cx, read);
                }
            }
        }
    }

    fn fate_of_held(&mut self, id: VolumeId) -> Held {
        let volume = self.volume(id);
        match (volume.is_unreadable(), volume.goes()) {
            (false, _) => Held::Asks,
            (true, true) => Held::Ends,
            (true, false) => Held::Waits,
        }
    }

    fn hold_fill(&mut self, source: VolumeId, id: u32) {
        if self.reading.hold_fill(id) {
            self.volume(source).read_is_held();
        }
    }

    pub(super) fn issue_fill(&mut self, cx: &mut Cx<'_>, id: u32) {
        let fill = self.reading.fill(id);
        let Source::Origin(volume) = fill.source else {
            unreachable!("only such fills read the origin");
        };
        let first = fill.first_block * BLOCK_SECTORS;
        let (slots, extents) = (fill.slots.clone(), core::mem::take(&mut fill.extents));
        (fill.failed, fill.damaged) = (false, false);
        let end = first + slots.len() as u64 * BLOCK_SECTORS;
        let covered = extents.last().map_or(first, |extent| extent.span.end());
        assert!(
            first < covered && covered <= end,
            "a fill has where its blocks lie"
        );
        // The tail is zeroed, so that what the place had before cannot leak.
        let tail = Span::new(covered, end - covered);
        places(&slots, first, tail, |place, bytes| {
            cx.memory.zero(place, bytes)
        });
        let mut asked = 0;
        for extent in &extents {
            if extent.lies == Lies::Nowhere {
                places(&slots, first, extent.span, |place, bytes| {
                    cx.memory.zero(place, bytes);
                });
                continue;
            }
            let mut slices = Vec::with_capacity(slots.len());
            places(&slots, first, extent.span, |place, bytes| {
                slices.push(Slice { place, bytes });
            });
            asked += 1;
            let pending = Pending::Fill { fill: id };
            self.ask_origin(cx, volume, extent.lies, slices, pending);
        }
        let fill = self.reading.fill(id);
        fill.extents = extents;
        fill.asked = asked;
        if asked == 0 {
            self.fill_over(cx, id);
        }
    }

    /// The host that had the volume before has given all blocks of a fill; else they come from the
    /// origin.
    pub(super) fn former_read(&mut self, cx: &mut Cx<'_>, id: u32, ok: bool) {
        let fill = self.reading.fill(id);
        let Source::Former(volume) = fill.source else {
            unreachable!("only such fills ask another host");
        };
        let (layer, asked) = (fill.layer, fill.slots.len() as u32);
        let missing = if ok { 0 } else { asked };
        self.lines.remote.answered(layer, asked, missing);
        if ok {
            mark(Mark::RemoteRead);
            let fill = self.reading.end_fill(id);
            let reads = &mut self.volume(volume).counters.reads;
            reads.remote_bytes += u64::from(asked) * BLOCK_BYTES;
            self.hand_out(cx, fill, true);
        } else {
            self.reading.fill(id).source = Source::Origin(volume);
            match self.volume(volume).is_unreadable() {
                true => self.hold_fill(volume, id),
                false => self.issue_fill(cx, id),
            }
        }
        self.touch_if_awaited(volume);
    }

    pub(super) fn filled(
        &mut self,
        cx: &mut Cx<'_>,
        id: u32,
        result: Result<(), IoError>,
        started: Time,
    ) {
        let Source::Origin(source) = self.reading.fill(id).source else {
            unreachable!("only such fills read the origin");
        };
        let volume = self.volume(source);
        volume.request_ends();
        volume.counters.origin.latency.add_ns(cx.now.since(started));
        volume.origin_answered(cx.now, result);
        let again = volume.may_read_again(result);
        let fill = self.reading.fill(id);
        fill.asked -= 1;
        fill.failed |= result.is_err();
        fill.damaged |= !again;
        if fill.asked == 0 {
            self.fill_over(cx, id);
        }
        self.touch_if_awaited(source);
    }

    /// The origin has answered all that a fill asked of it.
    fn fill_over(&mut self, cx: &mut Cx<'_>, id: u32) {
        let fill = self.reading.fill(id);
        let Source::Origin(source) = fill.source else {
            unreachable!("only such fills read the origin");
        };
        let (failed, damaged, begun) = (fill.failed, fill.damaged, fill.begun);
        if failed && !damaged && self.volume(source).may_hold(begun, cx.now) {
            mark(Mark::FillHeld);
            return self.hold_fill(source, id);
        }
        let fill = self.reading.end_fill(id);
        self.volume(source).held_read_ends(fill.held);
        self.hand_out(cx, fill, !failed);
    }

    /// The end of a fill: its blocks go to the reads that wait, stay in the tier, and go on to the
    /// device.
    fn hand_out(&mut self, cx: &mut Cx<'_>, fill: Fill, ok: bool) {
        for (read, part) in &fill.waiters {
            let op = self.reading.read(*read);
            let (asker, guests) = (op.volume, op.is_guests());
            let origin = fill.origin();
            if !ok && origin.is_some_and(|origin| origin != asker) {
                // Only the volume that asked cannot have it.
                op.waits += 1;
                self.read_anew(*read, *part);
                continue;
            }
            if !ok {
                op.result = Err(Refusal::Io);
            } else {
                let first = part.sector / BLOCK_SECTORS;
                let last = (part.end() - 1) / BLOCK_SECTORS;
                for block in first..=last {
                    let slot = fill.slots[(block - fill.first_block) as usize];
                    self.deliver(cx, *read, slot, block, *part);
                }
            }
            let reads = &mut self.volume(asker).counters.reads;
            match fill.source {
                _ if !guests => {}
                Source::Origin(_) => reads.origin += 1,
                Source::Former(_) => reads.remote += 1,
                Source::Device { .. } => reads.ssd_hits += 1,
            }
        }
        let onward = match fill.source {
            Source::Origin(volume) | Source::Former(volume) => Some(Some(volume)),
            Source::Device { again, .. } => again.then_some(None),
        };
        let first_time = match fill.source {
            Source::Origin(volume) if !is_base(fill.layer) => {
                self.volume(volume).tuning().admission == Admission::All
            }
            // What another host has kept was worth it there.
            Source::Origin(_) | Source::Former(_) | Source::Device { .. } => true,
        };
        let (layer, seed) = (fill.layer, self.config.hash_seed);
        let blocks = fill.first_block..;
        for (slot, block) in fill.slots.into_iter().zip(blocks) {
            if !ok {
                self.ram.abandon(slot);
                continue;
            }
            let key = Key { layer, block };
            let worth = match self.ram.publish(slot) {
                Published::Overtaken => false,
                Published::New => first_time || self.lines.came_before(key.hash(seed)),
                Published::Again => true,
            };
            if let Some(volume) = onward.filter(|_| worth) {
                self.lines.admit(cx.now, &mut self.ram, (key, slot), volume);
            }
        }
        for (read, _) in fill.waiters {
            self.part_of_read_ended(cx, read);
        }
    }
}

/// What becomes of a read that its origin did not give.
enum Held {
    Asks,
    Waits,
    Ends,
}

/// The places of a span in the slots of a fill that begins at sector `first`.
fn places(slots: &[u32], first: u64, span: Span, mut each: impl FnMut(Place, u64)) {
    let mut sector = span.sector;
    while sector < span.end() {
        let slot = slots[((sector - first) / BLOCK_SECTORS) as usize];
        let phase = (sector - first) % BLOCK_SECTORS;
        let sectors = (BLOCK_SECTORS - phase).min(span.end() - sector);
        let place = RamTier::place(slot).plus(phase * SECTOR_BYTES);
        each(place, sectors * SECTOR_BYTES);
        sector += sectors;
    }
}
