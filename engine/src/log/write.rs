//! The way from the stage to the device: log writes, syncs, and who waits for them.
//!
//! Always true: `durable` names a record only if every record up to it was on the device before a
//! sync that succeeded was issued. After a failed write or sync everything since the last good
//! sync is written again; syncing again alone would prove nothing. Deliberately absent: when a
//! guest is answered; a waiter comes back and its owner decides.

use super::{Log, StreamKind};
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::format::stage;
use crate::memory::{Area, Place, Slice};
use crate::outbox::{Cx, Pending, Timer};
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, RequestId, SegmentIndex, Serial, SlotIndex, StreamSeq, Time,
    VolumeId,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Log writes in flight at once; more would only wait inside the device.
const WRITES_IN_FLIGHT_MAX: u32 = 16;
/// Overlay chunks written at once because the log, not the stage, is short of room.
const SPILLS_IN_FLIGHT_LOW: usize = 2;
/// How long an open record may wait for more entries while nobody flushes.
const LINGER_MS: u64 = 5;
/// For so long after a flush each write starts its log write at once, so that the next flush
/// finds it under way.
const EAGER_MS: u64 = 50;
/// Idle time after which a record announces the last sync.
const ANNOUNCE_MS: u64 = 200;
/// What is on the device is synced after so many bytes, or so long, also if nobody asks: a start
/// after a kill writes again whatever no sync is known to cover.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;
const UNSYNCED_MS_MAX: u64 = 100;
/// Pause before a failed write or sync of the cache device is tried again.
const RETRY_MS: u64 = 100;

/// Who waits for a record to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A guest's flush, or its write that must be durable.
    Guest {
        volume: VolumeId,
        request: RequestId,
        /// What was written by then.
        upto: Serial,
    },
    /// The destager of a volume, or a replica whose host is to be told what it has.
    Volume(VolumeId),
    /// An orderly stop.
    Park,
}

#[derive(Default)]
pub struct WriteState {
    /// Counts failures: what was issued before the last one proves nothing any more.
    attempt: u32,
    in_flight: u32,
    /// Leading records of the tail that are on the device.
    written: usize,
    /// What the sync in flight covers.
    sync: Option<StreamSeq>,
    /// Written since a sync was issued, and since when.
    unsynced_bytes: u64,
    unsynced_since: Option<Time>,
    sync_timer_armed: bool,
    /// An announcement needs no sync of its own, or there would be no end of them.
    announcement: StreamSeq,
    wanted: StreamSeq,
    waiters: VecDeque<(StreamSeq, Waiter)>,
    to_issue: VecDeque<SlotIndex>,
    eager_until: Time,
    linger_armed: bool,
    retry_at: Option<Time>,
    spills_in_flight: u32,
    /// Overlay chunks and footers that are on the device and wait for a sync to cover them, and
    /// those that the sync in flight covers.
    unsynced: Unsynced,
    syncing: Unsynced,
}

/// What a failed sync would take along, besides the records in the tail.
#[derive(Default)]
struct Unsynced {
    slots: Vec<SlotIndex>,
    footers: Vec<SegmentIndex>,
}

impl Log {
    /// Registers a waiter for everything staged so far. True if it need not wait.
    pub fn wait_durable(&mut self, cx: &Cx<'_>, seq: StreamSeq, waiter: Waiter) -> bool {
        let guest = matches!(waiter, Waiter::Guest { .. });
        if self.durable >= seq || (guest && has(Bug::AcknowledgeBeforeLog)) {
            return true;
        }
        if guest {
            self.write.eager_until = cx.now.plus_millis(EAGER_MS);
        }
        assert!(seq <= self.newest(), "who waits has something staged");
        let last = self
            .write
            .waiters
            .back()
            .map_or(StreamSeq(0), |(seq, _)| *seq);
        // The queue stays sorted: who asks for less waits a little longer.
        self.write.waiters.push_back((seq.max(last), waiter));
        self.write.wanted = self.write.wanted.max(seq.max(last));
        false
    }

    /// A guest waits for the device, or for a sync of it.
    pub fn guests_wait(&self) -> bool {
        self.write.sync.is_some() || !self.write.waiters.is_empty()
    }

    /// Something failed and is tried again soon.
    pub fn is_backing_off(&self) -> bool {
        self.write.retry_at.is_some()
    }

    /// Some record is not known to be durable.
    pub fn has_unwritten(&self) -> bool {
        !self.tail.is_empty()
    }

    /// Takes the requests of the guests of a volume out of what waits.
    pub fn take_guests(&mut self, of: VolumeId) -> Vec<RequestId> {
        let mut taken = Vec::new();
        self.write.waiters.retain(|(_, waiter)| match *waiter {
            Waiter::Guest {
                volume, request, ..
            } if volume == of => {
                taken.push(request);
                false
            }
            _ => true,
        });
        taken
    }

    /// Makes everything staged so far durable soon, for nobody in particular.
    pub fn want_sync(&mut self) {
        self.write.wanted = self.write.wanted.max(self.newest());
    }

    /// Seals, issues and syncs whatever is due. Cheap when nothing is.
    pub fn pump_writes(&mut self, cx: &mut Cx<'_>) {
        self.seal_if_due(cx);
        if self.write.retry_at.is_some_and(|at| cx.now < at) {
            return;
        }
        self.write.retry_at = None;
        while self.write.in_flight < WRITES_IN_FLIGHT_MAX {
            let Some(slot) = self.write.to_issue.pop_front() else {
                break;
            };
            self.issue_slot(cx, slot, StreamKind::Writes);
        }
        self.spill(cx);
        self.sync_if_due(cx);
    }

    fn seal_if_due(&mut self, cx: &mut Cx<'_>) {
        let Some(open) = &self.streams[StreamKind::Writes as usize].open else {
            return;
        };
        let Some(record) = &open.record else { return };
        let due_at = record.opened.plus_millis(LINGER_MS);
        let wanted = self.write.wanted.0 >= record.identity.stream_seq;
        let eager = self.write.in_flight == 0 && cx.now < self.write.eager_until;
        if wanted || eager || cx.now >= due_at {
            self.seal_writes(cx);
        } else if !self.write.linger_armed {
            self.write.linger_armed = true;
            cx.out.timer(due_at, Timer::Linger);
        }
    }

    pub fn linger_over(&mut self) {
        self.write.linger_armed = false;
    }

    fn seal_writes(&mut self, cx: &mut Cx<'_>) {
        self.seal_open_record(cx, StreamKind::Writes);
        let open = self.streams[StreamKind::Writes as usize].open.as_ref();
        if open.is_some_and(|open| open.next_block + 2 > self.geometry.chunk_blocks) {
            self.close_chunk(StreamKind::Writes);
        }
    }

    /// A slot has sealed blocks that are not on their way yet.
    pub(super) fn queue_slot(&mut self, slot: SlotIndex) {
        if self.write.to_issue.back() != Some(&slot) {
            self.write.to_issue.push_back(slot);
        }
    }

    fn issue_slot(&mut self, cx: &mut Cx<'_>, slot_at: SlotIndex, stream: StreamKind) {
        let slot = &mut self.slots[slot_at.0 as usize];
        // Beside an older write to the same place nothing is stable, whatever a sync says.
        if slot.sealed == slot.issued || (slot.late > 0 && !has(Bug::WriteOverLate)) {
            return;
        }
        let chunk = slot.chunk.expect("a slot with records mirrors a chunk");
        let (from, upto) = (slot.issued, slot.sealed);
        assert!(
            slot.synced <= from && from < upto && upto <= self.geometry.chunk_blocks,
            "what is written follows what is synced"
        );
        slot.issued = upto;
        slot.in_flight += 1;
        let base = stage::slot_at(
            slot_at.0,
            self.stage_slots_total,
            self.geometry.chunk_blocks,
        );
        let place = Place::new(Area::Stage, base).plus(u64::from(from) * BLOCK_BYTES);
        let bytes = u64::from(upto - from) * BLOCK_BYTES;
        let addr = self
            .geometry
            .chunk_addr(chunk)
            .plus(u64::from(from) * BLOCK_SECTORS);
        let segment = self.pin(addr);
        match stream {
            StreamKind::Writes => self.write.in_flight += 1,
            StreamKind::Overlay | StreamKind::Spill => self.write.spills_in_flight += 1,
        }
        assert!(self.write.in_flight <= WRITES_IN_FLIGHT_MAX);
        self.counters.write_bytes += bytes;
        let attempt = self.write.attempt;
        let pending = Pending::Log {
            slot: slot_at,
            stream,
            segment,
            attempt,
            from,
            upto,
        };
        let at = self.device_at(addr);
        cx.transfer(
            pending,
            Purpose::Log,
            Device::Cache,
            Op::Write,
            at,
            alloc::vec![Slice { place, bytes }],
        );
    }

    /// A request that has ended, and how long it took.
    pub fn count_write(&mut self, ns: u64) {
        self.counters.writes += 1;
        self.counters.write_ns += ns;
    }

    /// The end of a log write.
    pub fn write_done(
        &mut self,
        cx: &mut Cx<'_>,
        (slot_at, stream, segment): (SlotIndex, StreamKind, SegmentIndex),
        (attempt, from, upto): (u32, u32, u32),
        ok: bool,
    ) {
        self.unpin(segment);
        match stream {
            StreamKind::Writes => self.write.in_flight -= 1,
            StreamKind::Overlay | StreamKind::Spill => self.write.spills_in_flight -= 1,
        }
        let slot = &mut self.slots[slot_at.0 as usize];
        assert!(
            slot.in_flight > 0 && from < upto && upto <= slot.sealed,
            "what ends was issued, and is in the slot still"
        );
        slot.in_flight -= 1;
        match (stream, ok) {
            (StreamKind::Writes, true) if attempt == self.write.attempt => {
                slot.written += upto - from;
                assert!(slot.written <= slot.issued);
                self.mark_written(slot_at, from, upto);
                self.write.unsynced_bytes += u64::from(upto - from) * BLOCK_BYTES;
            }
            (StreamKind::Writes, false) if attempt == self.write.attempt => self.write_again(cx),
            (StreamKind::Writes, _) => {
                slot.late -= 1;
                assert!(slot.late <= slot.in_flight);
                if slot.late == 0 {
                    self.queue_slot(slot_at);
                }
            }
            (_, true) if attempt == self.write.attempt => {
                assert!(
                    from == 0 && upto == slot.sealed,
                    "a chunk of an overlay is written at once"
                );
                slot.written = upto;
                self.write.unsynced.slots.push(slot_at);
            }
            (_, _) => {
                slot.issued = 0;
                self.counters.cache_errors += 1;
                self.spill_again(slot_at);
                self.back_off(cx);
            }
        }
        self.slot_progress(slot_at);
    }

    /// Marks the records of a slot between two blocks. The tail is in order of sequence, so those
    /// of one write lie side by side.
    fn mark_written(&mut self, slot: SlotIndex, from: u32, upto: u32) {
        let inside = |tail: &super::Tail| {
            tail.slot == slot && tail.end_block > from && tail.end_block <= upto
        };
        let start = self.write.written;
        let mut seen = false;
        for tail in self.tail.range_mut(start..) {
            if inside(tail) {
                tail.written = true;
                seen = true;
            } else if seen {
                break;
            }
        }
        while self
            .tail
            .get(self.write.written)
            .is_some_and(|tail| tail.written)
        {
            self.write.written += 1;
        }
        assert!(self.write.written <= self.tail.len());
    }

    /// The last record of the leading ones that are on the device.
    fn written_upto(&self) -> StreamSeq {
        match self.write.written.checked_sub(1) {
            Some(last) => self.tail[last].seq,
            None => self.durable,
        }
    }

    fn sync_if_due(&mut self, cx: &mut Cx<'_>) {
        let upto = self.written_upto();
        assert!(upto >= self.durable, "what is durable was written");
        let overlay = &self.streams[StreamKind::Overlay as usize];
        let overlay_at_hand = overlay.free_slots.len() + overlay.reusable.len();
        let spilled = !self.write.unsynced.slots.is_empty()
            && (overlay_at_hand <= overlay.slots_low || self.is_low());
        if self.write.sync.is_some() || (upto <= self.durable && !spilled) {
            return;
        }
        let first = self.write.waiters.front().map(|(seq, _)| *seq);
        let wanted = self.write.wanted > self.durable && self.write.wanted <= upto;
        let stage = &self.streams[StreamKind::Writes as usize];
        let pressed = stage.free_slots.len() + stage.reusable.len() <= stage.slots_low;
        let waited = first.is_some_and(|seq| seq <= upto);
        let asked = wanted || pressed || spilled || waited;
        if asked || self.is_unsynced_too_long(cx, upto) {
            (self.write.unsynced_bytes, self.write.unsynced_since) = (0, None);
            self.write.sync = Some(upto);
            self.write.syncing = core::mem::take(&mut self.write.unsynced);
            let pending = Pending::CacheSync {
                attempt: self.write.attempt,
            };
            let op = Op::sync_unless(Bug::SkipLogSync);
            cx.order(pending, Purpose::Log, Device::Cache, op, 0, 0);
        }
    }

    /// Whether so much is on the device, or for so long, that it is to be synced for nobody.
    fn is_unsynced_too_long(&mut self, cx: &mut Cx<'_>, upto: StreamSeq) -> bool {
        if upto <= self.durable.max(self.write.announcement) {
            return false;
        }
        let since = *self.write.unsynced_since.get_or_insert(cx.now);
        let due_at = since.plus_millis(UNSYNCED_MS_MAX);
        if !self.write.sync_timer_armed && cx.now < due_at {
            self.write.sync_timer_armed = true;
            cx.out.timer(due_at, Timer::Sync);
        }
        let full = self.write.unsynced_bytes >= UNSYNCED_BYTES_MAX;
        full || cx.now >= due_at
    }

    pub fn sync_timer_over(&mut self) {
        self.write.sync_timer_armed = false;
    }

    /// The end of a device sync. Returns who no longer waits.
    pub fn sync_done(&mut self, cx: &mut Cx<'_>, attempt: u32, ok: bool) -> Vec<Waiter> {
        let covers = self
            .write
            .sync
            .take()
            .expect("one sync is in flight at a time");
        let before_failure = attempt != self.write.attempt && !has(Bug::CountOldSync);
        if !ok || before_failure {
            if !ok && !has(Bug::SyncAgainOnly) {
                self.write_again(cx);
            }
            return Vec::new();
        }
        assert!(covers >= self.durable, "durable only grows");
        self.durable = covers;
        let synced = core::mem::take(&mut self.write.syncing);
        for slot_at in synced.slots {
            let slot = &mut self.slots[slot_at.0 as usize];
            assert!(
                slot.written == slot.sealed,
                "a sync covers only what was written"
            );
            slot.synced = slot.sealed;
            self.slot_progress(slot_at);
        }
        for segment in synced.footers {
            self.footer_synced(segment);
        }
        while self.tail.front().is_some_and(|tail| tail.seq <= covers) {
            let tail = self.tail.pop_front().expect("just seen");
            assert!(tail.written, "a sync covers only what was written");
            self.write.written -= 1;
            self.slots[tail.slot.0 as usize].synced = tail.end_block;
            self.slot_progress(tail.slot);
        }
        cx.out
            .timer(cx.now.plus_millis(ANNOUNCE_MS), Timer::Announce);
        let mut done = Vec::new();
        while self
            .write
            .waiters
            .front()
            .is_some_and(|(seq, _)| *seq <= covers)
        {
            done.extend(self.write.waiters.pop_front().map(|(_, waiter)| waiter));
        }
        done
    }

    /// A footer is on the device.
    pub(super) fn footer_written(&mut self, segment: SegmentIndex) {
        let state = self.segments[segment.0 as usize].state;
        assert!(state == super::SegmentState::Footered);
        self.write.unsynced.footers.push(segment);
    }

    /// Everything that no good sync covers goes to the device once more; where a write is still
    /// on its way, behind that.
    pub fn write_again(&mut self, cx: &mut Cx<'_>) {
        mark(Mark::WrittenAgain);
        self.counters.cache_errors += 1;
        self.write.attempt += 1;
        self.write.written = 0;
        self.write.to_issue.clear();
        for at in 0..self.tail.len() {
            self.tail[at].written = false;
            let slot_at = self.tail[at].slot;
            let slot = &mut self.slots[slot_at.0 as usize];
            slot.issued = slot.synced;
            slot.written = slot.synced;
            slot.late = slot.in_flight;
            self.queue_slot(slot_at);
        }
        for unsynced in [
            core::mem::take(&mut self.write.syncing),
            core::mem::take(&mut self.write.unsynced),
        ] {
            for slot_at in unsynced.slots {
                let slot = &mut self.slots[slot_at.0 as usize];
                (slot.issued, slot.written) = (0, 0);
                self.spill_again(slot_at);
            }
            for segment in unsynced.footers {
                self.footer_again(segment);
            }
        }
        self.back_off(cx);
    }

    pub(super) fn back_off(&mut self, cx: &mut Cx<'_>) {
        let at = cx.now.plus_millis(RETRY_MS);
        self.write.retry_at = Some(at);
        cx.out.timer(at, Timer::Housekeeping);
    }

    /// A slot may have become safe, its chunk complete, its segment ready for a footer.
    pub(super) fn slot_progress(&mut self, slot_at: SlotIndex) {
        let slot = &mut self.slots[slot_at.0 as usize];
        let Some(chunk) = slot.chunk else { return };
        // A footer says that its segment is complete: of overlays nothing else will, so it waits
        // for the sync; records of the write stream are believed by what syncs say of them.
        let complete = match slot.stream {
            StreamKind::Writes => slot.written == slot.sealed,
            _ => slot.written == slot.sealed && slot.synced == slot.sealed,
        };
        if slot.closed && complete && !slot.counted {
            slot.counted = true;
            let segment = SegmentIndex(chunk.0 / self.geometry.segment_chunks);
            assert!(self.segments[segment.0 as usize].unwritten_chunks > 0);
            self.segments[segment.0 as usize].unwritten_chunks -= 1;
            self.footer_if_due(segment);
        }
        let slot = &mut self.slots[slot_at.0 as usize];
        let safe = slot.synced == slot.sealed || has(Bug::ReuseSlotEarly);
        let idle = slot.closed && slot.written == slot.sealed && slot.in_flight == 0;
        if idle && safe && !slot.reusable {
            assert!(
                slot.late == 0,
                "nothing writes over a slot that is used again"
            );
            slot.reusable = true;
            self.streams[slot.stream as usize]
                .reusable
                .push_back(slot_at);
            self.spilled(slot_at);
        }
    }

    /// The device did not take a chunk of an overlay, or may have lost it.
    fn spill_again(&mut self, slot_at: SlotIndex) {
        mark(Mark::SpilledAgain);
        let slot = &self.slots[slot_at.0 as usize];
        assert!(
            slot.stream == StreamKind::Overlay && slot.closed && slot.issued == 0,
            "only full chunks of overlays are spilled"
        );
        let kind = match self.slots[slot_at.0 as usize].spilling {
            true => StreamKind::Spill,
            false => StreamKind::Overlay,
        };
        self.streams[kind as usize].unspilled.push_front(slot_at);
    }

    /// Writes chunks of overlays out: those beyond their volume's RAM at once, the oldest of the
    /// others when slots run short, or when the log does: a segment can be emptied only when all
    /// its chunks are on the device. Chunks in which nothing lives any more are just let go.
    fn spill(&mut self, cx: &mut Cx<'_>) {
        let low = self.is_low();
        loop {
            let coming = self.write.spills_in_flight as usize
                + self.write.unsynced.slots.len()
                + self.write.syncing.slots.len();
            let beyond = &mut self.streams[StreamKind::Spill as usize].unspilled;
            if self.write.spills_in_flight < WRITES_IN_FLIGHT_MAX
                && let Some(slot_at) = beyond.pop_front()
            {
                self.spill_slot(cx, slot_at);
                continue;
            }
            let stream = &mut self.streams[StreamKind::Overlay as usize];
            let at_hand = stream.free_slots.len() + stream.reusable.len() + coming;
            let wanted = at_hand < stream.slots_low || (low && coming < SPILLS_IN_FLIGHT_LOW);
            if !wanted {
                return;
            }
            let Some(slot_at) = stream.unspilled.pop_front() else {
                return;
            };
            self.spill_slot(cx, slot_at);
        }
    }

    fn spill_slot(&mut self, cx: &mut Cx<'_>, slot_at: SlotIndex) {
        let whole = self.is_whole() || has(Bug::LetGoForUnfinished);
        let slot = &mut self.slots[slot_at.0 as usize];
        let chunk = slot.chunk.expect("an unspilled slot mirrors a chunk");
        assert!(
            slot.closed && slot.issued == 0 && slot.written == 0,
            "a chunk is spilled once at a time"
        );
        // The first chunk is written in any case: its first record names the segment's life.
        // So is one that died of a write which is not whole yet, and may never be.
        let first = chunk.0.is_multiple_of(self.geometry.segment_chunks);
        let first = first && !has(Bug::LetGoFirstChunk);
        if self.chunk_live[chunk.0 as usize] == 0 && !first && whole {
            mark(Mark::LetGo);
            (slot.issued, slot.written) = (slot.sealed, slot.sealed);
            slot.synced = slot.sealed;
            self.slot_progress(slot_at);
        } else {
            mark(Mark::Spilled);
            self.issue_slot(cx, slot_at, StreamKind::Overlay);
        }
    }

    /// An empty record says after an idle flush what is durable, so that recovery can tell a
    /// damaged last record from one that never was.
    pub fn announce(&mut self, cx: &mut Cx<'_>) {
        assert!(
            self.announced <= self.durable,
            "only what is durable is announced"
        );
        if self.announced == self.durable || self.newest() != self.durable {
            return;
        }
        // It might take the segment that a write which has begun counts on; then that write, and
        // everybody behind it, would wait for ever.
        if self.unfinished > 0 {
            cx.out
                .timer(cx.now.plus_millis(ANNOUNCE_MS), Timer::Announce);
            return;
        }
        if self.open_record(cx, StreamKind::Writes, 0, false).is_some() {
            mark(Mark::Announced);
            self.announced = self.durable;
            self.write.announcement = self.newest();
            self.seal_writes(cx);
        }
    }
}
