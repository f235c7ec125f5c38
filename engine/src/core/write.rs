//! The way of a write: admission, stage, serial, epoch, acknowledgment.
//!
//! Always true: a serial is given only when the bytes are staged, and whoever has one waits for
//! nobody; requests that are not admitted queue per volume, in order, and own nothing. When a
//! request is acknowledged is decided in [`Core::acknowledge`] and nowhere else. Writes of
//! uncached and write-through volumes leave this way at [`direct`](super::direct).

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Refusal;
use crate::format::record::EntryKind;
use crate::log::{Item, StreamKind, Waiter};
use crate::map::Piece;
use crate::memory::{Area, Place};
use crate::outbox::Cx;
use crate::snapshot::State;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, BufferId, ConnectionId, Policy, RequestId, SECTOR_BYTES, Span,
    StreamSeq, Tag, Time, VolumeId,
};
use crate::volume::share::Pool;
use crate::volume::{EPOCH_BYTES_MAX, WaitKind, Waiting};

/// Sectors of one zero entry; a longer discard is several.
const ZERO_SECTORS_MAX: u64 = crate::map::EXTENT_SECTORS_MAX - 7;
/// What the next piece of a waiting request would need.
pub(super) enum Gate {
    Open,
    /// Wait: for destage, evacuation, a sync, a slot.
    Shut,
}

impl Core {
    pub(super) fn write(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (sector, sectors): (u64, u64),
        (buffer, tag): (BufferId, Tag),
        fua: bool,
    ) {
        let span = Span::new(sector, sectors);
        if !self.check_write(cx, id, request, span) {
            return;
        }
        let volume = self.volume(id);
        volume.counters.writes.requests += 1;
        volume.counters.writes.bytes += sectors * SECTOR_BYTES;
        let kind = WaitKind::Write {
            span,
            buffer,
            offset: 0,
            fua,
            tag,
        };
        self.take_or_wait(cx, id, Waiting::new(request, kind, cx.now));
    }

    pub(super) fn zero(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (sector, sectors): (u64, u64),
        fua: bool,
        allocate: bool,
    ) {
        let span = Span::new(sector, sectors);
        if !self.check_write(cx, id, request, span) {
            return;
        }
        self.volume(id).counters.discards += 1;
        let kind = WaitKind::Zero {
            span,
            fua,
            allocate,
        };
        self.take_or_wait(cx, id, Waiting::new(request, kind, cx.now));
    }

    /// The origin had to write these zeroes; it is not asked to do so for a mere hint again.
    pub(super) fn zeroed(&mut self, id: VolumeId, bytes: u64) {
        if let Some(volume) = self.find(id) {
            volume.zeroes_were_written(bytes);
        }
    }

    /// Whether a discard is dropped as it comes, before it is in any map: what it names keeps its
    /// content, in the cache as at the origin. An overlay zeroes without its origin.
    pub(super) fn drops_discards(&mut self, id: VolumeId) -> bool {
        let volume = self.find(id);
        volume.is_some_and(|it| it.zeroes_dearly() && it.policy != Policy::Ephemeral)
    }

    pub(super) fn drop_discard(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (sector, sectors): (u64, u64),
    ) {
        if !self.check_write(cx, id, request, Span::new(sector, sectors)) {
            return;
        }
        let counters = &mut self.volume(id).counters;
        counters.discards += 1;
        counters.dropped_discards += 1;
        cx.out.reply(request, Ok(()));
    }

    pub(super) fn flush(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let Some(volume) = self.find(id) else {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        };
        volume.counters.flushes += 1;
        if volume.state() == State::Held {
            cx.out.reply(request, Err(Refusal::Held));
            return;
        }
        if !volume.serves() {
            self.wait(cx, id, Waiting::new(request, WaitKind::Flush, cx.now));
            return;
        }
        self.start_flush(cx, id, request);
    }

    fn start_flush(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        assert!(volume.serves(), "a flush waits for its volume");
        if volume.is_read_only() {
            cx.out.reply(request, Ok(()));
            return;
        }
        if volume.take_failed_sync() {
            cx.out.reply(request, Err(Refusal::Io));
            return;
        }
        match volume.policy {
            Policy::Uncached | Policy::WriteThrough => {
                self.sync_origin(cx, id, request);
            }
            Policy::Ephemeral => cx.out.reply(request, Ok(())),
            Policy::WriteBack => {
                let newest = volume
                    .epochs
                    .back()
                    .map_or(StreamSeq(0), |epoch| epoch.last_seq);
                self.acknowledge(cx, id, request, newest);
            }
        }
    }

    fn check_write(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        span: Span,
    ) -> bool {
        let refusal = match self.find(id) {
            None => Some(Refusal::Gone),
            Some(volume) if volume.is_detaching() => Some(Refusal::Gone),
            Some(volume) if volume.state() == State::Held => Some(Refusal::Held),
            Some(volume) if volume.is_read_only() => Some(Refusal::ReadOnly),
            Some(volume) => {
                let outside = span.sectors == 0
                    || span.sector >= volume.sectors()
                    || span.sectors > volume.sectors() - span.sector;
                outside.then_some(Refusal::OutOfRange)
            }
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
        }
        refusal.is_none()
    }

    fn take_or_wait(&mut self, cx: &mut Cx<'_>, id: VolumeId, mut waiting: Waiting) {
        let blocks = waiting.blocks();
        waiting.due = self.pace(cx, id, blocks);
        let volume = self.volume(id);
        let first = !volume.has_waiting() && volume.serves() && waiting.due <= cx.now;
        if first && self.advance(cx, id, &mut waiting) {
            self.volume(id).flow.admitted(cx.now, blocks);
        } else {
            self.wait(cx, id, waiting);
        }
    }

    /// Queues a request of a volume. Its owner may go; then it is forgotten.
    pub(super) fn wait(&mut self, cx: &mut Cx<'_>, id: VolumeId, waiting: Waiting) {
        let volume = self.volume(id);
        let starts = !volume.has_waiting()
            && volume.serves()
            && !volume.policy.is_direct()
            && waiting.due <= cx.now;
        volume.add_waiting(waiting);
        if starts {
            self.log.want_sync();
            self.touch(id);
        }
        self.enqueue(id);
    }

    /// Gives so many volumes with waiting requests a turn, each as long as one of them gets on.
    pub(super) fn retry_waiting(&mut self, cx: &mut Cx<'_>, volumes_max: usize) {
        for _ in 0..self.touched.tries().min(volumes_max) {
            let Some(id) = self.touched.next_try() else {
                return;
            };
            let Some(volume) = self.find(id) else {
                continue;
            };
            volume.dequeued();
            let mut goes_on = false;
            loop {
                if let Some(at) = self.volume(id).held_until(cx.now) {
                    self.wake_at(cx, id, at);
                    break;
                }
                let Some(mut waiting) = self.volume(id).take_first_waiting() else {
                    break;
                };
                let blocks = waiting.blocks();
                if !self.volume(id).serves() || !self.advance(cx, id, &mut waiting) {
                    self.volume(id).put_back(waiting);
                    self.enqueue(id);
                    break;
                }
                self.volume(id).flow.admitted(cx.now, blocks);
                goes_on = true;
            }
            if goes_on {
                self.touch_if_awaited(id);
            }
        }
    }

    /// Reads and flushes that waited for the volume do not wait for the writes between them: those
    /// are not acknowledged yet.
    pub(super) fn start_readers(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        for mut reader in self.volume(id).take_readers() {
            self.advance(cx, id, &mut reader);
        }
    }

    /// Takes a request as far as it is admitted. True when nothing of it waits any more.
    fn advance(&mut self, cx: &mut Cx<'_>, id: VolumeId, waiting: &mut Waiting) -> bool {
        let (request, since) = (waiting.request, waiting.since);
        let volume = self.volume(id);
        let direct = volume.policy.is_direct();
        let changes = matches!(waiting.kind, WaitKind::Write { .. } | WaitKind::Zero { .. });
        if changes && volume.holds_writes() {
            return false;
        }
        match &mut waiting.kind {
            WaitKind::Read { span, buffer } => {
                self.start_read(cx, id, request, *span, *buffer, since);
                true
            }
            WaitKind::Flush => {
                self.start_flush(cx, id, request);
                true
            }
            WaitKind::Write {
                span,
                buffer,
                offset,
                fua,
                ..
            } if direct => {
                let source = Place::new(Area::Buffer(*buffer), *offset);
                self.write_direct(cx, (id, request), *span, source, *fua)
            }
            WaitKind::Zero {
                span,
                fua,
                allocate,
            } if direct => self.zero_direct(cx, (id, request), *span, *fua, *allocate),
            WaitKind::Write {
                span,
                buffer,
                offset,
                fua,
                tag,
            } => {
                let mut seq = StreamSeq(0);
                while span.sectors > 0 {
                    let source = Place::new(Area::Buffer(*buffer), *offset);
                    let Some((taken, at)) = self.stage_write(cx, id, *span, source, *tag) else {
                        return false;
                    };
                    assert!(taken > 0 && taken <= span.sectors, "each step goes on");
                    *span = Span::new(span.sector + taken, span.sectors - taken);
                    *offset += taken * SECTOR_BYTES;
                    seq = at;
                }
                self.volume(id).overlay_takes();
                self.acknowledge_write(cx, id, request, seq, *fua);
                true
            }
            WaitKind::Zero {
                span,
                fua,
                allocate,
            } => {
                let kind = EntryKind::Zero {
                    allocate: *allocate,
                };
                let Some(seq) = self.stage_zeroes(cx, id, span, kind) else {
                    return false;
                };
                self.acknowledge_write(cx, id, request, seq, *fua);
                true
            }
        }
    }

    /// Stages the start of a write. All its pieces have one serial, which counts after a crash
    /// only if the last piece is there; so a write is admitted as a whole, and the volume's epoch
    /// stays open until it is staged as a whole. Only a write that is larger than the volume's
    /// share of the log, and for which there is no room beyond it, is taken in parts.
    fn stage_write(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        span: Span,
        source: Place,
        tag: Tag,
    ) -> Option<(u64, StreamSeq)> {
        let begun = self.volume(id).left_in_part();
        assert!(
            begun <= span.sectors,
            "what is left to stage is in the request"
        );
        assert!(begun == 0 || self.log.unfinished > 0);
        let mut whole = if begun > 0 { begun } else { span.sectors };
        let mut open = begun > 0 || self.opens(cx.now, id, span);
        let part_blocks = self
            .volume(id)
            .part(Pool::Log)
            .min(self.log.gauge().capacity / 8);
        let share_sectors = (part_blocks.max(2) - 1) * BLOCK_SECTORS;
        if !open && whole > share_sectors {
            whole = share_sectors;
            open = self.opens(cx.now, id, Span::new(span.sector, whole));
        }
        if !open {
            return None;
        }
        let part = Span::new(span.sector, whole);
        // A part is no write: only the last one speaks for it.
        let tag = if whole == span.sectors || has(Bug::TagParts) {
            tag
        } else {
            Tag::NONE
        };
        let staged = self.stage(
            cx,
            id,
            part,
            EntryKind::Write,
            Some((source, tag)),
            begun > 0,
        )?;
        let left = whole - staged.0;
        self.volume(id).set_left_in_part(left);
        match (begun > 0, left > 0) {
            (false, true) => {
                mark(Mark::StagedInPart);
                self.log.unfinished += 1;
            }
            (true, false) => self.log.unfinished -= 1,
            _ => {}
        }
        if left == 0 || has(Bug::SerialForEachPiece) {
            self.finish_serial(id);
        }
        Some(staged)
    }

    /// Stages as much of a zero range as is admitted, and takes it off `span`. The record of its
    /// last part when all of it is staged.
    fn stage_zeroes(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        span: &mut Span,
        kind: EntryKind,
    ) -> Option<StreamSeq> {
        let mut seq = StreamSeq(0);
        while span.sectors > 0 && !has(Bug::ForgetDiscard) {
            let part = Span::new(span.sector, span.sectors.min(ZERO_SECTORS_MAX));
            if matches!(self.gate(cx.now, id, part, kind), Gate::Shut) {
                return None;
            }
            self.choose_stream(id, 1);
            let (taken, at) = self.stage(cx, id, part, kind, None, false)?;
            assert!(taken > 0 && taken <= part.sectors, "each step goes on");
            self.finish_serial(id);
            *span = Span::new(span.sector + taken, span.sectors - taken);
            seq = at;
        }
        Some(seq)
    }

    /// Whether a write may begin: it is admitted, and the log has room for all of it, so that
    /// once begun it waits for the stage only, which empties by itself.
    fn opens(&mut self, now: Time, id: VolumeId, span: Span) -> bool {
        let stream = self.choose_stream(id, span.blocks());
        let quarter = self.log.gauge().capacity / 4;
        let open = span.blocks() <= quarter
            && matches!(self.gate(now, id, span, EntryKind::Write), Gate::Open);
        let room = self.log.has_room(stream, span.blocks()) || has(Bug::BeginWithoutRoom);
        if open && !room {
            self.volume(id).want_room();
        }
        open && room
    }

    /// Decides that for a whole write: its pieces have room where it was looked for.
    fn choose_stream(&mut self, id: VolumeId, blocks: u64) -> StreamKind {
        let volume = self.volumes.known(id);
        let stream = volume.stream_of(&self.log, blocks);
        self.volume(id).overlay_spills(stream == StreamKind::Spill);
        stream
    }

    /// All entries of the next serial are staged.
    fn finish_serial(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        assert!(
            !volume.is_in_part() || has(Bug::SerialForEachPiece),
            "all pieces of a write have one serial"
        );
        volume.give_serial();
        self.end_given_up(id);
    }

    /// The first waiting write will never be staged to its end. What is staged of it stays: it
    /// was never acknowledged, and its serial is not given again.
    pub(super) fn give_up_unfinished(&mut self, id: VolumeId) {
        if self.volume(id).is_in_part() {
            assert!(
                self.log.unfinished > 0,
                "the log counts what is staged in part"
            );
            self.volume(id).set_left_in_part(0);
            self.log.unfinished -= 1;
            self.finish_serial(id);
            self.volume(id).give_up();
            self.log.given_up += 1;
        }
    }

    /// What such a write has replaced is not needed any more: a newer one is whole, so a recovery
    /// does not drop it; or it is at the origin; or the volume ends.
    pub(super) fn end_given_up(&mut self, id: VolumeId) {
        if self.volume(id).take_given_up() {
            assert!(self.log.given_up > 0, "the log counts what stays in part");
            self.log.given_up -= 1;
        }
    }

    /// An epoch ends before a write that would make it too large for one journal.
    fn seal_if_full(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        assert!(!volume.is_in_part(), "an epoch ends between two writes");
        let open = volume.epochs.back().filter(|epoch| !epoch.sealed);
        let full = open.is_some_and(|epoch| {
            let full = epoch.map.sectors() * SECTOR_BYTES >= EPOCH_BYTES_MAX;
            full || epoch.charge >= volume.flow.epoch_blocks()
        });
        if full && volume.policy == Policy::WriteBack {
            self.seal(id);
        }
    }

    /// Stages the start of a range: bytes, entry and map in one step. `None` when there is no
    /// room; nothing has happened then.
    fn stage(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        span: Span,
        kind: EntryKind,
        source: Option<(Place, Tag)>,
        begun: bool,
    ) -> Option<(u64, StreamSeq)> {
        if !begun {
            self.seal_if_full(id);
        }
        let volume = self.volumes.known_mut(id);
        let (generation, serial) = (volume.generation(), volume.serial_next());
        assert!(serial > volume.destaged() && !volume.policy.is_direct());
        let item = Item {
            volume: id,
            generation,
            serial,
            span,
            kind,
            more: false,
            epoch: volume.next_epoch(),
            tag: source.map_or(Tag::NONE, |(_, tag)| tag),
        };
        let source = source.map(|(place, _)| place);
        let stream = match volume.policy {
            Policy::Ephemeral if volume.spills() => StreamKind::Spill,
            Policy::Ephemeral => StreamKind::Overlay,
            _ => StreamKind::Writes,
        };
        self.append_item(cx, (id, stream), item, source, begun)
    }

    /// Appends the start of an item, and maps it; `begun`: it is not the first of its write.
    pub(super) fn append_item(
        &mut self,
        cx: &mut Cx<'_>,
        (id, stream): (VolumeId, StreamKind),
        item: Item,
        source: Option<Place>,
        begun: bool,
    ) -> Option<(u64, StreamSeq)> {
        let appended = self.log.append(cx, stream, item, source, false)?;
        let volume = self.volumes.known_mut(id);
        volume.takes_write(cx.now);
        let quota_owner = volume.quota_owner();
        volume.has_room();
        let epoch = volume.open_epoch(cx.now, item.serial);
        assert_eq!(epoch.number, item.epoch, "the log names the epoch");
        assert!(epoch.last_serial <= item.serial, "serials only grow");
        epoch.last_serial = item.serial;
        epoch.last_seq = appended.seq;
        epoch.writes += u64::from(!begun);
        let (before, extents) = (epoch.map.sectors(), epoch.map.len());
        let piece = Piece {
            span: appended.span,
            content: appended.content,
        };
        let (log, mut charge) = (&mut self.log, 0);
        epoch.map.insert(piece, &mut |change| {
            charge += log.account(quota_owner, change)
        });
        let overwritten = before + appended.span.sectors - epoch.map.sectors();
        let grown = epoch.map.len() as i64 - extents as i64;
        epoch.charge = epoch.charge.strict_add_signed(charge);
        volume.counters.writes.elided_bytes += overwritten * SECTOR_BYTES;
        if source.is_some() {
            volume.counters.ssd_write_bytes += appended.span.blocks() * BLOCK_BYTES;
        }
        let replicates = !volume.replication.is_empty();
        self.extents.grow(grown);
        if replicates {
            let (logged, seq) = (volume.replication.logged(), appended.seq);
            logged.stages(item.serial, seq, self.log.durable);
            self.queue_for_peers(id, piece, item.epoch, begun);
        }
        self.recount(id);
        let blocks = appended.span.blocks();
        self.shares
            .spend(cx.now, id, if source.is_some() { blocks } else { 1 });
        Some((appended.span.sectors, appended.seq))
    }

    /// Answers what of a connection that is gone owns nothing yet.
    pub(super) fn drop_waiting(&mut self, cx: &mut Cx<'_>, connection: ConnectionId) {
        for volume in self.volumes.iter_mut() {
            let gone = volume.take_waiting_of(connection);
            if !gone.is_empty() {
                self.touched.volume(volume.id());
            }
            for waiting in gone {
                cx.out.reply(waiting.request, Err(Refusal::Gone));
            }
        }
    }

    /// Whether a volume may take this much more of the log and of the map. Each volume that
    /// writes has a share of both that nobody can take from it, see [`share`](super::share). So a
    /// volume that cannot destage stops itself and nobody else.
    pub(super) fn gate(&mut self, now: Time, id: VolumeId, span: Span, kind: EntryKind) -> Gate {
        let chunk_blocks = u64::from(self.log.geometry.chunk_blocks);
        let blocks = match kind {
            EntryKind::Write => span.blocks(),
            EntryKind::Zero { .. } => 1,
        };
        // A write that has begun is finished first: nothing takes the room that it counts on.
        if self.log.unfinished > 0 {
            return Gate::Shut;
        }
        let volume = self.volume(id);
        if !volume.has_switch_room(blocks) {
            return Gate::Shut;
        }
        let charge = volume.charge();
        let limit = volume.dirty_limit_blocks();
        let limited = volume.policy == Policy::WriteBack && charge + blocks > limit;
        if limited && charge > 0 {
            mark(Mark::DirtyLimit);
            volume.hit_hard_limit();
            return Gate::Shut;
        }
        if self.volume(id).waits_for_room_of_peers() {
            mark(Mark::WaitedForRoomOfPeer);
            self.volume(id).hit_hard_limit();
            return Gate::Shut;
        }
        if self.waits_for_peers_behind(now, id) {
            return Gate::Shut;
        }
        // A write adds an extent for each chunk it begins, and one where it cuts an old one.
        let pieces = blocks / (chunk_blocks - 1) + 3;
        let (volume, budgets) = (self.volumes.known(id), self.budgets());
        let room_for = |pool, need| self.shares.room_for(volume, budgets, pool, need);
        let room = room_for(Pool::Log, blocks).min(room_for(Pool::Map, pieces));
        let weight = volume.tuning().share.weight;
        if self.shares.may_take_common(now, id, room, weight) {
            return Gate::Open;
        }
        mark(Mark::LogFull);
        self.volume(id).hit_hard_limit();
        Gate::Shut
    }

    fn acknowledge_write(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        seq: StreamSeq,
        fua: bool,
    ) {
        let volume = self.volume(id);
        let must_be_durable = (fua || !volume.tuning().write_cache) && !has(Bug::IgnoreFua);
        if must_be_durable && volume.policy == Policy::WriteBack {
            self.acknowledge(cx, id, request, seq);
        } else {
            cx.out.reply(request, Ok(()));
        }
    }

    /// Answers when the log is durable up to `seq`, and peers that count have all that was written.
    pub(super) fn acknowledge(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        seq: StreamSeq,
    ) {
        let upto = self.volume(id).acked();
        // Peers do not wait for more either.
        self.replicas.mark(id);
        let waiter = Waiter::Guest {
            volume: id,
            request,
            upto,
        };
        if self.log.wait_durable(cx, seq, waiter) {
            self.durable_here(cx, id, request, upto);
        }
    }

    /// Ephemeral writes that found no space for too long fail; the rest of the queue goes on
    /// waiting for its own time.
    pub(super) fn time_out_waiting(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        // A write that has begun has its room, and ends by itself; given up in the middle it would
        // hide what lies under it until a crash, and lose it then.
        let begun = volume.is_in_part();
        let patient = begun || has(Bug::NeverAnswerFull);
        if volume.policy != Policy::Ephemeral || !volume.serves() || patient {
            return;
        }
        let limit = volume.tuning().overlay_timeout_ms;
        while let Some(waiting) = self.volume(id).first_waiting().copied() {
            if cx.now < waiting.since.plus_millis(limit) {
                return;
            }
            let volume = self.volume(id);
            volume.take_first_waiting();
            volume.overlay_is_full();
            mark(Mark::NoSpace);
            let refusal = Err(Refusal::NoSpace);
            cx.out.reply(waiting.request, refusal);
        }
    }
}
