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
//! loses its place for it loses its line for, in the same step ([`Lines::forget_blocks`]), and a
//! block that lost its place on its way to the device never becomes a line. A device that fails is
//! left alone for a while.

use super::layers::{Layers, is_base};
use super::remote::Remote;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::format::fill::{FillRecord, LINE_BLOCKS, RECORD_BLOCKS_MAX, Run, runs_max};
use crate::format::footer::body_blocks;
use crate::ghost::Ghost;
use crate::lines::{LineIndex, LineRun};
use crate::log::Log;
use crate::map::{Content, ExtentMap};
use crate::memory::Slice;
use crate::outbox::{Cx, Pending};
use crate::ram::{CleanCache, Key, Layer, Lookup, RamTier};
use crate::scratch::Scratch;
use crate::slab::Slab;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, Geometry, SegmentIndex, SegmentSeq, Serial, Time, Uuid, VolumeId,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

/// Footers of named layers on their way at once.
const FOOTERS_MAX: u32 = 4;
/// Of what the read tier remembers, one part of so many may come from one epoch.
const EXPECTED_PART: u64 = 4;
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

/// What was asked for in a segment that was given back, the first last.
#[derive(Default)]
pub struct Retired {
    runs: Vec<LineRun>,
    /// Blocks of it that may still be written again.
    left: u32,
}

/// Blocks in a row that lie on the device from `base` on, and are to be read into the tier.
pub struct Again {
    pub layer: Layer,
    pub blocks: Range<u64>,
    pub base: u32,
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
    pub layers: Layers,
    pub remote: Remote,
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
            remote: Remote::default(),
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
            self.forget_layer(layer);
        }
    }

    /// Nothing of a layer counts any more, on the device or on its way there, unless it is a base.
    pub fn forget_layer(&mut self, layer: Layer) {
        if is_base(layer) {
            return;
        }
        self.remote.ends(layer);
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

impl Lines {
    /// Puts what recovery found into the index; oldest segments first.
    pub fn adopt(
        &mut self,
        log: &mut Log,
        found: Vec<FoundFill>,
        mut new_layer: impl FnMut() -> Layer,
    ) {
        for fill in found {
            let index = SegmentIndex(fill.index);
            let first = fill.index * log.geometry.segment_blocks() as u32;
            log.adopt_fill(index, SegmentSeq(fill.seq), fill.sums);
            for run in fill.runs {
                let layers = &mut self.layers;
                let layer = match run.own {
                    true => layers.found(run.layer, new_layer()),
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
                self.index_full |= !self.index.insert(run);
            }
        }
    }

    /// Blocks of a layer on the device, among so many entries of the index from `from` on, and
    /// whether there are more entries.
    pub fn listed(&self, layer: Layer, from: u32, entries: u32) -> (Vec<u64>, bool) {
        match self.layers.number(layer) {
            Some(number) => self.index.listed(number, from, entries),
            None => (Vec::new(), false),
        }
    }

    /// Sweeps a little, and tells how many segments are to be given back in this step.
    pub fn sweep(&mut self, log: &Log) -> usize {
        self.layers.sweep(&mut self.index);
        let full = core::mem::take(&mut self.index_full);
        log.clean_excess().max(usize::from(full)).min(RETIRE_STEP)
    }

    /// Writes what waits. Cheap when there is nothing.
    pub fn write(
        &mut self,
        cx: &mut Cx<'_>,
        (ram, log, scratch): (&mut RamTier, &mut Log, &mut Scratch),
        parking: bool,
    ) {
        if self.in_flight == 0 && log.fill_footer_due() {
            self.write_footer(cx, log, scratch);
        }
        while self.is_due(cx.now, parking, log.guests_wait()) {
            self.stuck = !self.write_batch(cx, (ram, log, scratch));
            assert!(self.in_flight <= BATCHES_MAX, "what is due has room");
            if self.stuck {
                let late = self.oldest.plus_millis(STUCK_MS);
                if cx.now >= late {
                    self.release_queue(ram);
                }
                return;
            }
        }
    }

    /// A layer was written: what the tier, the device and anybody on the way between them have of
    /// these blocks is stale.
    pub fn forget_blocks(
        &mut self,
        ram: &mut RamTier,
        layer: Layer,
        first_block: u64,
        blocks: u64,
    ) {
        ram.invalidate(layer, first_block, blocks);
        self.remote.was_written(layer, first_block, blocks);
        self.invalidate(layer, first_block, blocks);
    }

    /// What of this layer, which is new, is not here may be asked of the host that had its volume
    /// before. Since that host knew the image, it has got these maps, and all behind `since` is in
    /// them.
    pub fn ask_former(&mut self, layer: Layer, since: Serial, maps: &[ExtentMap]) {
        self.remote.comes(layer, since);
        let maps = maps.iter().filter(|_| !has(Bug::ReadUnreached));
        for piece in maps.flat_map(|map| map.pieces_from(0)) {
            let first = piece.span.sector / BLOCK_SECTORS;
            self.remote.was_written(layer, first, piece.span.blocks());
        }
    }

    /// A volume's own layer becomes that of a base image. What is kept of it stays. Returns its new
    /// name; `None` where it is forgotten, because that image has a layer.
    pub fn promote(&mut self, ram: &mut RamTier, own: Layer, identity: Uuid) -> Option<Layer> {
        self.remote.ends(own);
        let base = self.layers.promote(own, identity);
        match base {
            Some(base) => ram.rename(own, base),
            None => self.forget_layer(own),
        }
        base
    }

    /// The origin has an epoch: what is kept clean of its blocks is stale. Whole blocks of data are
    /// worth a place on the device as soon as they are read.
    pub fn forget_destaged(&mut self, ram: &mut RamTier, layer: Layer, map: &ExtentMap) {
        let mut expected = ram.blocks() / EXPECTED_PART;
        for piece in map.pieces_from(0) {
            let first = piece.span.sector / BLOCK_SECTORS;
            self.forget_blocks(ram, layer, first, piece.span.blocks());
            if !matches!(piece.content, Content::Data(_)) {
                continue;
            }
            for block in piece.span.sector.div_ceil(BLOCK_SECTORS)..piece.span.end() / BLOCK_SECTORS
            {
                if expected == 0 {
                    break;
                }
                expected -= 1;
                ram.expect(Key { layer, block });
            }
        }
    }

    /// A block of the tier is worth a place on the device.
    pub fn admit(
        &mut self,
        now: Time,
        ram: &mut RamTier,
        (key, slot): (Key, u32),
        volume: Option<VolumeId>,
    ) {
        let off = self.segments_max == 0 || self.index.is_off() || now < self.failed_until;
        let beyond = key.block / LINE_BLOCKS > u64::from(u32::MAX);
        if off || beyond || self.queue.len() >= self.queue_max {
            return;
        }
        let Some(number) = self.layers.number_or_new(key.layer) else {
            return;
        };
        if self.index.get(number, key.block).is_some() || !ram.pin(slot) {
            return;
        }
        if self.queue.is_empty() {
            self.oldest = now;
        }
        self.queue.push_back(Item {
            slot,
            number,
            block: key.block,
            orphan: false,
            volume,
        });
        assert!(self.queue.len() <= self.queue_max);
    }

    fn release_queue(&mut self, ram: &mut RamTier) {
        for item in self.queue.drain(..) {
            ram.unpin(item.slot);
        }
    }

    /// Writes one record. False if there is no room for it.
    fn write_batch(
        &mut self,
        cx: &mut Cx<'_>,
        (ram, log, scratch): (&mut RamTier, &mut Log, &mut Scratch),
    ) -> bool {
        let Some(room) = log.fill_room(self.segments_max) else {
            return false;
        };
        let Some(header) = scratch.take_block() else {
            return false;
        };
        let items = self.take_good_items(ram, room);
        if items.is_empty() {
            scratch.free_block(header);
            return true;
        }
        let place = scratch.block(header);
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
        let (numbers, mut runs) = self.runs_for(&items);
        assert!(
            runs.iter().map(Run::blocks).sum::<u32>() as usize == sums.len(),
            "each block of a run has its sum"
        );
        let at = log.place_fill(&mut runs, &sums);
        let first = at.segment.0 * log.geometry.segment_blocks() as u32;
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
        self.counters.write_bytes += (1 + items.len() as u64) * BLOCK_BYTES;
        let batch = self.batches.insert(Batch {
            items,
            runs,
            segment: at.segment,
            header,
        });
        self.in_flight += 1;
        assert!(self.in_flight <= BATCHES_MAX);
        assert!(self.batches.len() == self.in_flight as usize);
        self.polite_at = cx.now.plus_millis(POLITE_MS);
        self.oldest = cx.now;
        let offset = log.device_at(Log::block_addr(first + at.block));
        let pending = Pending::FillBatch { batch };
        let (purpose, device) = (Purpose::Fill, Device::Cache);
        cx.transfer(pending, purpose, device, Op::Write, offset, slices);
        true
    }

    /// The oldest blocks of the queue that are still worth writing.
    fn take_good_items(&mut self, ram: &mut RamTier, room: usize) -> Vec<Item> {
        let mut items = self.take_items(room);
        items.retain(|item| {
            let good = !item.orphan && ram.is_good(item.slot);
            if !good {
                ram.unpin(item.slot);
            }
            good
        });
        items
    }

    /// A record is written. Returns by whose misses its blocks came.
    pub fn batch_done(
        &mut self,
        now: Time,
        (ram, log, scratch): (&mut RamTier, &mut Log, &mut Scratch),
        batch: u32,
        ok: bool,
    ) -> Vec<VolumeId> {
        let batch = self.batches.take(batch);
        self.in_flight -= 1;
        assert!(self.batches.len() == self.in_flight as usize);
        scratch.free_block(batch.header);
        log.unpin(batch.segment);
        let mut stale: Vec<(u16, u64)> = Vec::new();
        let (mut orphans, mut askers): (Vec<u16>, Vec<VolumeId>) = (Vec::new(), Vec::new());
        for item in batch.items {
            if item.orphan && !has(Bug::KeepOrphans) {
                mark(Mark::Orphan);
                orphans.push(item.number);
            } else if !ram.is_good(item.slot) && !has(Bug::KeepOvertakenBatch) {
                mark(Mark::OvertakenBatch);
                stale.push((item.number, item.block));
            }
            ram.unpin(item.slot);
            askers.extend(item.volume);
        }
        if !ok {
            self.device_failed(now);
            // Behind a header that is not there recovery finds nothing: the footer must tell.
            log.seal_fill();
            self.release_queue(ram);
        } else if log.is_clean(batch.segment) {
            for run in batch.runs {
                if !orphans.contains(&run.layer) {
                    self.index_full |= !self.index.insert(run);
                }
            }
            // Written, discarded or destaged meanwhile: nobody may find these.
            for (number, block) in stale {
                self.index.drop_block(number, block);
            }
        }
        askers
    }

    fn write_footer(&mut self, cx: &mut Cx<'_>, log: &mut Log, scratch: &mut Scratch) {
        let Some(piece) = scratch.take_piece() else {
            return;
        };
        let Some((segment, bytes)) = log.take_fill_footer() else {
            scratch.free_piece(piece);
            return;
        };
        self.put_footer(cx, (log, scratch), (segment, piece), &bytes);
    }

    fn put_footer(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&Log, &Scratch),
        (segment, piece): (SegmentIndex, u32),
        bytes: &[u8],
    ) {
        assert!(
            bytes.len() as u64 <= scratch.piece_bytes(),
            "a footer fits its piece"
        );
        let place = scratch.piece(piece);
        cx.memory.store(place, bytes);
        let bytes = bytes.len() as u64;
        self.footer_begins(bytes);
        let at = log.device_at(log.footer_at(segment));
        let pending = Pending::FillFooter { segment, piece };
        let slices = alloc::vec![Slice { place, bytes }];
        let (purpose, device) = (Purpose::Fill, Device::Cache);
        cx.transfer(pending, purpose, device, Op::Write, at, slices);
    }

    /// A footer that could not be written is not missed: the records say the same.
    pub fn footer_done(
        &mut self,
        (log, scratch): (&mut Log, &mut Scratch),
        segment: SegmentIndex,
        piece: u32,
        ok: bool,
    ) {
        scratch.free_piece(piece);
        log.unpin(segment);
        self.footer_ends(ok);
    }

    /// Gives the oldest clean segment back. Unless writes wait for it, what was asked for since it
    /// was written may be written again.
    pub fn retire(&mut self, now: Time, log: &mut Log) -> Retired {
        let pressed = log.is_pressed();
        let Some(segment) = log.retire_oldest() else {
            return Retired::default();
        };
        mark(Mark::Retired);
        self.counters.segments_retired += 1;
        if has(Bug::KeepRetiredLines) {
            return Retired::default();
        }
        let runs = self.index.retire(segment);
        if pressed || now < self.failed_until {
            return Retired::default();
        }
        let hot = runs.into_iter().filter(|(_, hits)| *hits > 0);
        let mut runs: Vec<LineRun> = hot.map(|(run, _)| run).collect();
        runs.reverse();
        Retired {
            runs,
            left: body_blocks(log.geometry) / REAPPEND_PART,
        }
    }

    /// Writes the next run of a segment that was given back again. Returns the blocks of it that
    /// are to be read for that, and where they lie; `None` when there is no more to do.
    pub fn reappend(
        &mut self,
        now: Time,
        ram: &mut RamTier,
        retired: &mut Retired,
    ) -> Option<Vec<Again>> {
        let run = retired.runs.pop()?;
        assert!(self.queue.len() <= self.queue_max);
        let room = self.queue_max - self.queue.len();
        if run.bitmap.count_ones() > retired.left || room < LINE_BLOCKS as usize {
            return None;
        }
        retired.left -= run.bitmap.count_ones();
        let Some(layer) = self.layers.layer(run.layer) else {
            return Some(Vec::new());
        };
        mark(Mark::Reappended);
        self.counters.reappended_blocks += u64::from(run.bitmap.count_ones());
        let mut missing: Vec<(u64, u32)> = Vec::new();
        for (block, slot) in run.blocks() {
            match ram.lookup(Key { layer, block }) {
                Lookup::Hit(tier) => self.admit(now, ram, (Key { layer, block }, tier), None),
                Lookup::Filling(_) => {}
                Lookup::Miss => missing.push((block, slot)),
            }
        }
        assert!(
            missing.len() <= LINE_BLOCKS as usize,
            "a run is of one line"
        );
        let parts = missing.chunk_by(|a, b| a.0 + 1 == b.0);
        let again = parts.map(|part| Again {
            layer,
            blocks: part[0].0..part[0].0 + part.len() as u64,
            base: part[0].1,
        });
        Some(again.collect())
    }

    /// Writes the footers anew of segments with blocks of named layers, or of what has become a
    /// base. True when all are there.
    pub fn write_names(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&mut Log, &mut Scratch),
        segments: &mut Vec<SegmentIndex>,
    ) -> bool {
        while self.footers < FOOTERS_MAX {
            let Some(segment) = segments.pop() else {
                return self.footers == 0;
            };
            let runs = self.named_runs(log.geometry, segment);
            if !runs.iter().any(|run| run.own) && !self.has_promoted(segment) {
                continue;
            }
            let Some(piece) = scratch.take_piece() else {
                segments.push(segment);
                return false;
            };
            match log.fill_footer_of(segment, runs) {
                Some(bytes) => self.put_footer(cx, (log, scratch), (segment, piece), &bytes),
                None => scratch.free_piece(piece),
            }
            assert!(self.footers <= FOOTERS_MAX);
        }
        false
    }

    fn has_promoted(&self, segment: SegmentIndex) -> bool {
        let mut runs = self.runs_of(segment).into_iter();
        runs.any(|run| self.layers.was_promoted(run.layer))
    }

    /// What of a segment the next daemon can use, as its footer says it.
    fn named_runs(&self, geometry: Geometry, segment: SegmentIndex) -> Vec<Run> {
        let blocks = geometry.segment_blocks() as u32;
        let first = segment.0 * blocks;
        let runs = self.runs_of(segment).into_iter().filter_map(|run| {
            assert!(run.base - first < blocks, "a run lies in its segment");
            let (layer, own) = self.layers.named(run.layer)?;
            Some(Run {
                layer,
                own,
                line: u64::from(run.line),
                slot: run.base - first,
                bitmap: run.bitmap,
            })
        });
        let mut runs: Vec<Run> = runs.collect();
        // Runs that lost a block in the middle are two.
        runs.sort_unstable_by_key(|run| (run.own, run.slot));
        debug_assert!(
            runs.is_sorted_by(|a, b| a.own != b.own || a.slot + a.blocks() <= b.slot),
            "a block of a segment is of one run"
        );
        runs.truncate(runs_max(geometry));
        runs.sort_unstable_by_key(|run| run.slot);
        runs
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
