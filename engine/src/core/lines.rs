//! Clean blocks on the cache device: written from the read tier, found again after that tier has
//! let them go. Blocks of base images after a first miss, and also by a later daemon; blocks of
//! layers that a volume writes when they were asked for again: while they were in the tier, or as
//! long as the ghost remembers that they were read once, which is much longer.
//!
//! ```text
//! origin ─▶ tier ─admit─▶ queue ─record─▶ segment ─oldest─▶ given back
//!             ▲   (pinned until written)     │  ▲                │
//!             └────────── checked ───────────┘  └── hot blocks ──┘
//! ```
//!
//! Always true: nobody waits for any of this; a block that was read back is delivered only with
//! the checksum it was written with, and what fails that twice is forgotten and comes from the
//! origin; the lines of a segment are dropped in the step that retires it. What a block in the tier
//! loses its place for it loses its line for, in the same step ([`Core::forget_blocks`]), and a
//! block that lost its place on its way to the device never becomes a line. A device that fails is
//! left alone for a while.

use super::Core;
use super::layers::{Layers, is_base};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::format::fill::{FillRecord, LINE_BLOCKS, RECORD_BLOCKS_MAX, Run};
use crate::format::footer::body_blocks;
use crate::ghost::Ghost;
use crate::lines::{LineIndex, LineRun};
use crate::log::Log;
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Layer, Lookup, RamTier};
use crate::slab::Slab;
use crate::types::{BLOCK_BYTES, Geometry, SegmentIndex, SegmentSeq, Time, Uuid, VolumeId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Records on their way at once.
const BATCHES_MAX: u32 = 2;
/// How long a block waits for others to make a larger write.
const LINGER_MS: u64 = 200;
/// While guests wait for the device, one record in so long: 80 MiB/s at most.
const POLITE_MS: u64 = 5;
/// How long a device that failed is left alone.
const FAILED_MS: u64 = 1_000;
/// Blocks that found no room for so long are let go.
const STUCK_MS: u64 = 10_000;
/// Pinned blocks: 64 MiB, and never more than a quarter of the tier.
const QUEUE_MAX: u32 = 16_384;
/// Segments given back in one step.
const RETIRE_STEP: usize = 4;
/// Of a segment that is given back, one part of so many may be written again.
const REAPPEND_PART: u32 = 4;
/// Blocks (4 GiB) that are looked up one line at a time; a larger range takes all of its layer.
const RANGE_BLOCKS_MAX: u64 = 1 << 20;

const _: () = assert!(POLITE_MS < LINGER_MS && LINGER_MS < STUCK_MS);

/// A block of the tier that is to be written.
#[derive(Clone, Copy)]
struct Item {
    slot: u32,
    number: u16,
    block: u64,
    /// Its layer was forgotten meanwhile.
    orphan: bool,
    /// Whose miss brought it.
    volume: Option<VolumeId>,
}

struct Batch {
    items: Vec<Item>,
    runs: Vec<LineRun>,
    segment: SegmentIndex,
    header: u32,
}

/// A segment of clean blocks as recovery found it.
pub struct FoundFill {
    pub index: u32,
    pub seq: u64,
    pub runs: Vec<Run>,
    pub sums: Vec<u32>,
}

pub struct Lines {
    index: LineIndex,
    /// Blocks of layers that a volume writes, read once and not kept.
    once: Ghost,
    pub(super) layers: Layers,
    queue: VecDeque<Item>,
    queue_max: usize,
    oldest: Time,
    batches: Slab<Batch>,
    in_flight: u32,
    segments_max: usize,
    polite_at: Time,
    failed_until: Time,
    /// No room for the queue when it was last tried.
    stuck: bool,
    index_full: bool,
    counters: crate::snapshot::Lines,
    /// Footers of clean segments on their way.
    footers: u32,
}

/// How many segments clean data may hold so that its checksums stay within a budget. The rest of
/// it is for the index of lines, and for what was read once.
pub fn segments_max(geometry: Geometry, bytes: u64) -> usize {
    ((bytes - index_part(bytes) - once_part(bytes)) / (u64::from(body_blocks(geometry)) * 4))
        as usize
}

fn index_part(bytes: u64) -> u64 {
    bytes / 20 * 8
}

/// What remembers the blocks that were read once: where the budget is 0.2 % of the cache, one for
/// each five that the cache holds.
fn once_part(bytes: u64) -> u64 {
    bytes / 20
}

impl Lines {
    pub fn new(config: &crate::open::Config, geometry: Geometry) -> Lines {
        let bytes = config.index_bytes_max;
        Lines {
            index: LineIndex::new(index_part(bytes), geometry, config.hash_seed),
            once: Ghost::of_bytes(once_part(bytes)),
            layers: Layers::default(),
            queue: VecDeque::new(),
            queue_max: (config.ram_blocks / 4).min(QUEUE_MAX) as usize,
            oldest: Time(0),
            batches: Slab::default(),
            in_flight: 0,
            segments_max: segments_max(geometry, bytes),
            polite_at: Time(0),
            failed_until: Time(0),
            stuck: false,
            index_full: false,
            counters: crate::snapshot::Lines::default(),
            footers: 0,
        }
    }

    /// A footer of so many bytes goes to the device.
    fn footer_begins(&mut self, bytes: u64) {
        self.footers += 1;
        self.counters.write_bytes += bytes;
    }

    fn footer_ends(&mut self, ok: bool) {
        assert!(self.footers > 0, "only what was written ends");
        self.footers -= 1;
        self.counters.errors += u64::from(!ok);
    }

    pub fn footers(&self) -> u32 {
        self.footers
    }

    pub fn snapshot(&self) -> crate::snapshot::Lines {
        crate::snapshot::Lines {
            blocks: self.index.blocks(),
            ..self.counters
        }
    }

    pub fn index_bytes(&self) -> u64 {
        self.index.bytes() + self.layers.bytes() + self.once.bytes() as u64
    }

    /// The block with this hash came from its image. True if it did so before, not too long ago.
    pub fn came_before(&mut self, hash: u64) -> bool {
        let before = self.once.recall(hash);
        if !before {
            self.once.remember(hash);
        }
        before
    }

    /// Where the device holds this block, if it may be asked now.
    pub fn find(&self, now: Time, key: Key) -> Option<u32> {
        if now < self.failed_until {
            return None;
        }
        self.index.get(self.layers.number(key.layer)?, key.block)
    }

    /// Where the device holds a block of the layer with this number.
    pub fn place(&self, number: u16, block: u64) -> Option<u32> {
        self.index.get(number, block)
    }

    pub fn hit(&mut self, key: Key) {
        if let Some(number) = self.layers.number(key.layer) {
            self.index.hit(number, key.block);
        }
    }

    /// Blocks of base images of these names that the device holds.
    pub fn blocks_of(&self, names: &[Uuid]) -> u64 {
        let layers = names.iter().filter_map(|it| self.layers.find_base(*it));
        let numbers = layers.filter_map(|it| self.layers.number(it));
        numbers.map(|it| self.index.blocks_of(it)).sum()
    }

    /// The runs that a segment holds, in no order.
    pub fn runs_of(&self, segment: SegmentIndex) -> Vec<LineRun> {
        self.index.runs_of(segment)
    }

    /// The own layer that the run before has given this name.
    pub fn claim(&mut self, name: Uuid) -> Option<Layer> {
        let layer = self.layers.claim(name)?;
        let number = self.layers.number(layer)?;
        self.counters.kept_blocks += self.index.blocks_of(number);
        Some(layer)
    }

    pub fn count_read(&mut self, bytes: u64) {
        self.counters.read_bytes += bytes;
    }

    /// A block was not, twice, what had been written, or the device did not give it.
    pub fn drop_bad(&mut self, key: Key, failed: bool) {
        if let Some(number) = self.layers.number(key.layer) {
            self.index.drop_block(number, key.block);
            self.counters.bad_blocks += u64::from(!failed);
        }
    }

    pub fn device_failed(&mut self, now: Time) {
        self.counters.errors += 1;
        self.failed_until = now.plus_millis(FAILED_MS);
    }

    /// Something waits to be written, or to be swept out.
    pub fn has_chores(&self) -> bool {
        !self.queue.is_empty() || self.layers.is_sweeping()
    }

    /// These blocks of a layer are not what it holds any more.
    fn invalidate(&mut self, layer: Layer, first_block: u64, blocks: u64) {
        let Some(number) = self.layers.number(layer) else {
            return;
        };
        // A base has no other layer to go on with.
        if blocks <= RANGE_BLOCKS_MAX || is_base(layer) {
            self.index
                .drop_range(number, first_block..first_block + blocks);
        } else {
            self.forget(layer);
        }
    }

    /// Nothing of a layer counts any more, on the device or on its way there.
    fn forget(&mut self, layer: Layer) {
        let Some(number) = self.layers.forget(layer) else {
            return;
        };
        let batches = self.batches.iter_mut().flat_map(|batch| &mut batch.items);
        for item in self.queue.iter_mut().chain(batches) {
            item.orphan |= item.number == number;
        }
    }

    /// An orderly stop waits for this, for a while.
    pub fn is_busy(&self, now: Time) -> bool {
        let writable = !self.queue.is_empty() && !self.stuck && now >= self.failed_until;
        self.in_flight > 0 || writable
    }

    fn is_due(&self, now: Time, parking: bool, guests_wait: bool) -> bool {
        if self.queue.is_empty() || self.in_flight >= BATCHES_MAX || now < self.failed_until {
            return false;
        }
        let enough = self.queue.len() >= RECORD_BLOCKS_MAX
            || now >= self.oldest.plus_millis(LINGER_MS)
            || self.queue.len() >= self.queue_max;
        let polite = !guests_wait || now >= self.polite_at;
        parking || (enough && polite)
    }

    /// The oldest blocks, as many as the record takes, so that lines stay in one piece.
    fn take_items(&mut self, room: usize) -> Vec<Item> {
        let window = self.queue.len().min(4 * RECORD_BLOCKS_MAX);
        let items = &mut self.queue.make_contiguous()[..window];
        items.sort_unstable_by_key(|item| (item.number, item.block));
        let line = |item: &Item| (item.number, item.block / LINE_BLOCKS);
        let most = room.min(window);
        let mut count = most;
        while count < window && count > 0 && line(&items[count]) == line(&items[count - 1]) {
            count -= 1;
        }
        let count = if count == 0 { most } else { count };
        assert!(count <= room, "the record has room for all of them");
        self.queue.drain(..count).collect()
    }

    /// The runs of blocks that are to lie behind each other, slots counted from the first, and
    /// the numbers of their layers. A layer that somebody writes is named to nobody.
    fn runs_for(&self, items: &[Item]) -> (Vec<u16>, Vec<Run>) {
        let (mut numbers, mut runs): (Vec<u16>, Vec<Run>) = (Vec::new(), Vec::new());
        for (at, item) in items.iter().enumerate() {
            let line = item.block / LINE_BLOCKS;
            let bitmap = 1 << (item.block % LINE_BLOCKS);
            match (numbers.last(), runs.last_mut()) {
                (Some(last), Some(run)) if (*last, run.line) == (item.number, line) => {
                    run.bitmap |= bitmap;
                    continue;
                }
                _ => {}
            }
            let identity = self.layers.identity(item.number);
            numbers.push(item.number);
            runs.push(Run {
                layer: identity.unwrap_or(Uuid::NIL),
                own: identity.is_none(),
                line,
                slot: at as u32,
                bitmap,
            });
        }
        assert!(numbers.len() == runs.len(), "each run has its layer");
        (numbers, runs)
    }
}

impl Core {
    /// Puts what recovery found into the index; oldest segments first.
    pub fn adopt_fills(&mut self, found: Vec<FoundFill>) {
        for fill in found {
            let index = SegmentIndex(fill.index);
            let first = fill.index * self.log.geometry.segment_blocks() as u32;
            self.log.adopt_fill(index, SegmentSeq(fill.seq), fill.sums);
            for run in fill.runs {
                let layers = &mut self.lines.layers;
                let layer = match run.own {
                    true => layers.found(run.layer, self.given.take_layer()),
                    false => layers.base(run.layer),
                };
                let number = layers.number_or_new(layer);
                let (Some(layer), Ok(line)) = (number, u32::try_from(run.line)) else {
                    continue;
                };
                let base = first + run.slot;
                let run = LineRun {
                    layer,
                    line,
                    bitmap: run.bitmap,
                    base,
                };
                self.lines.index_full |= !self.lines.index.insert(run);
            }
        }
    }

    /// Blocks of a layer on the device, among so many entries of the index from `from` on, and
    /// whether there are more entries.
    pub fn clean_runs(&self, layer: Layer, from: u32, entries: u32) -> (Vec<u64>, bool) {
        match self.lines.layers.number(layer) {
            Some(number) => self.lines.index.listed(number, from, entries),
            None => (Vec::new(), false),
        }
    }

    /// Writes what waits, gives back what is needed otherwise. Cheap when there is nothing.
    pub(super) fn pump_lines(&mut self, cx: &mut Cx<'_>) {
        let lines = &mut self.lines;
        lines.layers.sweep(&mut lines.index);
        let excess = self.log.clean_excess();
        let full = core::mem::take(&mut self.lines.index_full);
        for _ in 0..excess.max(usize::from(full)).min(RETIRE_STEP) {
            self.retire_segment(cx);
        }
        if self.log.bury_retired() {
            self.checkpoint.wanted = true;
        }
        if self.lines.in_flight == 0 && self.log.fill_footer_due() {
            self.write_fill_footer(cx);
        }
        let parking = self.service.is_parking();
        while self.lines.is_due(cx.now, parking, self.log.guests_wait()) {
            self.lines.stuck = !self.write_batch(cx);
            if self.lines.stuck {
                let late = self.lines.oldest.plus_millis(STUCK_MS);
                if cx.now >= late {
                    self.release_queue();
                }
                return;
            }
        }
    }

    /// A layer was written: what the tier, the device and anybody on the way between them have of
    /// these blocks is stale.
    pub(super) fn forget_blocks(&mut self, layer: Layer, first_block: u64, blocks: u64) {
        self.ram.invalidate(layer, first_block, blocks);
        self.lines.invalidate(layer, first_block, blocks);
    }

    /// The same for all of a volume's own layer, which nobody asks for by this name any more.
    pub(super) fn forget_layer(&mut self, layer: Layer) {
        if !is_base(layer) {
            self.lines.forget(layer);
        }
    }

    /// A volume's own layer becomes that of a base image. What is kept of it stays.
    pub(super) fn promote_layer(&mut self, own: Layer, identity: Uuid) {
        let Some(base) = self.lines.layers.promote(own, identity) else {
            return self.forget_layer(own);
        };
        self.ram.rename(own, base);
        for fill in self.reading.fills() {
            fill.rename(own, base);
        }
    }

    /// A block of the tier is worth a place on the device.
    pub(super) fn admit(&mut self, now: Time, key: Key, slot: u32, volume: Option<VolumeId>) {
        let lines = &mut self.lines;
        let off = lines.segments_max == 0 || lines.index.is_off() || now < lines.failed_until;
        let beyond = key.block / LINE_BLOCKS > u64::from(u32::MAX);
        if off || beyond || lines.queue.len() >= lines.queue_max {
            return;
        }
        let Some(number) = lines.layers.number_or_new(key.layer) else {
            return;
        };
        if lines.index.get(number, key.block).is_some() || !self.ram.pin(slot) {
            return;
        }
        if lines.queue.is_empty() {
            lines.oldest = now;
        }
        lines.queue.push_back(Item {
            slot,
            number,
            block: key.block,
            orphan: false,
            volume,
        });
        assert!(lines.queue.len() <= lines.queue_max);
    }

    fn release_queue(&mut self) {
        for item in self.lines.queue.drain(..) {
            self.ram.unpin(item.slot);
        }
    }

    /// Writes one record. False if there is no room for it.
    fn write_batch(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(room) = self.log.fill_room(self.lines.segments_max) else {
            return false;
        };
        let Some(header) = self.scratch.take_block() else {
            return false;
        };
        let items = self.take_good_items(room);
        if items.is_empty() {
            self.scratch.free_block(header);
            return true;
        }
        let place = self.scratch.block(header);
        let mut slices = alloc::vec![Slice {
            place,
            bytes: BLOCK_BYTES
        }];
        let tier = items.iter().map(|item| RamTier::place(item.slot));
        slices.extend(tier.map(|place| Slice {
            place,
            bytes: BLOCK_BYTES,
        }));
        let blocks = slices[1..].iter();
        let sums: Vec<u32> = blocks
            .map(|slice| cx.memory.checksum(slice.place, BLOCK_BYTES))
            .collect();
        let (numbers, mut runs) = self.lines.runs_for(&items);
        assert!(
            runs.iter().map(Run::blocks).sum::<u32>() as usize == sums.len(),
            "each block of a run has its sum"
        );
        let at = self.log.place_fill(&mut runs, &sums);
        let first = at.segment.0 * self.log.geometry.segment_blocks() as u32;
        let record = FillRecord {
            life: at.life,
            block: at.block,
            runs,
            sums,
        };
        cx.memory.store(place, &record.encode());
        let of_run = |(run, layer): (&Run, u16)| LineRun {
            layer,
            line: run.line as u32,
            bitmap: run.bitmap,
            base: first + run.slot,
        };
        let runs = record.runs.iter().zip(numbers).map(of_run).collect();
        self.lines.counters.write_bytes += (1 + items.len() as u64) * BLOCK_BYTES;
        let batch = self.lines.batches.insert(Batch {
            items,
            runs,
            segment: at.segment,
            header,
        });
        self.lines.in_flight += 1;
        assert!(self.lines.in_flight <= BATCHES_MAX);
        assert!(self.lines.batches.len() == self.lines.in_flight as usize);
        self.lines.polite_at = cx.now.plus_millis(POLITE_MS);
        self.lines.oldest = cx.now;
        let offset = self.log.device_at(Log::block_addr(first + at.block));
        let pending = Pending::FillBatch { batch };
        let (purpose, device) = (Purpose::Fill, Device::Cache);
        cx.transfer(pending, purpose, device, Op::Write, offset, slices);
        true
    }

    /// The oldest blocks of the queue that are still worth writing.
    fn take_good_items(&mut self, room: usize) -> Vec<Item> {
        let mut items = self.lines.take_items(room);
        items.retain(|item| {
            let good = !item.orphan && self.ram.is_good(item.slot);
            if !good {
                self.ram.unpin(item.slot);
            }
            good
        });
        items
    }

    pub(super) fn batch_done(&mut self, cx: &mut Cx<'_>, batch: u32, ok: bool) {
        let batch = self.lines.batches.take(batch);
        self.lines.in_flight -= 1;
        assert!(self.lines.batches.len() == self.lines.in_flight as usize);
        self.scratch.free_block(batch.header);
        self.log.unpin(batch.segment);
        let mut stale: Vec<(u16, u64)> = Vec::new();
        let mut orphans: Vec<u16> = Vec::new();
        for item in batch.items {
            if item.orphan && !has(Bug::KeepOrphans) {
                mark(Mark::Orphan);
                orphans.push(item.number);
            } else if !self.ram.is_good(item.slot) && !has(Bug::KeepOvertakenBatch) {
                mark(Mark::OvertakenBatch);
                stale.push((item.number, item.block));
            }
            self.ram.unpin(item.slot);
            if let Some(volume) = item.volume.and_then(|id| self.find(id)) {
                volume.counters.ssd_write_bytes += BLOCK_BYTES;
            }
        }
        if !ok {
            self.lines.device_failed(cx.now);
            // Behind a header that is not there recovery finds nothing: the footer must tell.
            self.log.seal_fill();
            self.release_queue();
        } else if self.log.is_clean(batch.segment) {
            for run in batch.runs {
                if !orphans.contains(&run.layer) {
                    self.lines.index_full |= !self.lines.index.insert(run);
                }
            }
            // Written, discarded or destaged meanwhile: nobody may find these.
            for (number, block) in stale {
                self.lines.index.drop_block(number, block);
            }
        }
    }

    fn write_fill_footer(&mut self, cx: &mut Cx<'_>) {
        let Some(piece) = self.scratch.take_piece() else {
            return;
        };
        let Some((segment, bytes)) = self.log.take_fill_footer() else {
            self.scratch.free_piece(piece);
            return;
        };
        self.put_fill_footer(cx, segment, piece, &bytes);
    }

    pub(super) fn put_fill_footer(
        &mut self,
        cx: &mut Cx<'_>,
        segment: SegmentIndex,
        piece: u32,
        bytes: &[u8],
    ) {
        assert!(
            bytes.len() as u64 <= self.scratch.piece_bytes(),
            "a footer fits its piece"
        );
        let place = self.scratch.piece(piece);
        cx.memory.store(place, bytes);
        let bytes = bytes.len() as u64;
        self.lines.footer_begins(bytes);
        let at = self.log.device_at(self.log.footer_at(segment));
        let pending = Pending::FillFooter { segment, piece };
        let slices = alloc::vec![Slice { place, bytes }];
        let (purpose, device) = (Purpose::Fill, Device::Cache);
        cx.transfer(pending, purpose, device, Op::Write, at, slices);
    }

    /// A footer that could not be written is not missed: the records say the same.
    pub(super) fn fill_footer_done(&mut self, segment: SegmentIndex, piece: u32, ok: bool) {
        self.scratch.free_piece(piece);
        self.log.unpin(segment);
        self.lines.footer_ends(ok);
    }

    /// Gives the oldest clean segment back. Unless writes wait for it, what was asked for since it
    /// was written is written again.
    fn retire_segment(&mut self, cx: &mut Cx<'_>) {
        let pressed = self.log.is_pressed();
        let Some(segment) = self.log.retire_oldest() else {
            return;
        };
        mark(Mark::Retired);
        self.lines.counters.segments_retired += 1;
        if has(Bug::KeepRetiredLines) {
            return;
        }
        let runs = self.lines.index.retire(segment);
        let mut left = body_blocks(self.log.geometry) / REAPPEND_PART;
        if pressed || cx.now < self.lines.failed_until {
            return;
        }
        for (run, _) in runs.into_iter().filter(|(_, hits)| *hits > 0) {
            assert!(self.lines.queue.len() <= self.lines.queue_max);
            let room = self.lines.queue_max - self.lines.queue.len();
            if run.bitmap.count_ones() > left || room < LINE_BLOCKS as usize {
                return;
            }
            left -= run.bitmap.count_ones();
            self.reappend(cx, run);
        }
    }

    fn reappend(&mut self, cx: &mut Cx<'_>, run: LineRun) {
        let Some(layer) = self.lines.layers.layer(run.layer) else {
            return;
        };
        mark(Mark::Reappended);
        self.lines.counters.reappended_blocks += u64::from(run.bitmap.count_ones());
        let mut missing: Vec<(u64, u32)> = Vec::new();
        for (block, slot) in run.blocks() {
            match self.ram.lookup(Key { layer, block }) {
                Lookup::Hit(ram) => self.admit(cx.now, Key { layer, block }, ram, None),
                Lookup::Filling(_) => {}
                Lookup::Miss => missing.push((block, slot)),
            }
        }
        for part in missing.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (block, base) = part[0];
            self.read_again(cx, layer, block..block + part.len() as u64, base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_lines_and_what_was_read_once_share_one_budget() {
        let geometry = Geometry {
            chunk_blocks: 64,
            segment_chunks: 16,
            segments: 1_000,
        };
        let segment = u64::from(body_blocks(geometry)) * 4;
        for bytes in [0, 1 << 10, 1 << 20, 1 << 30] {
            let sums = segments_max(geometry, bytes) as u64 * segment;
            let others = index_part(bytes) + once_part(bytes);
            let once = Ghost::of_bytes(once_part(bytes)).bytes() as u64;
            assert!(sums + others <= bytes && sums + others + segment > bytes);
            assert!(once <= once_part(bytes), "{once} of {bytes}");
        }
    }
}
