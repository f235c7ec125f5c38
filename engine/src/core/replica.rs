//! The way of a batch into the log of a host that keeps a replica.
//!
//! Always true: a batch is refused as a whole, or staged as a whole, in the order in which it came;
//! it is acknowledged when the log has it, durably, with all before it. Its entries go into the
//! ordinary stream of writes, so that one sync covers them and those of this host's guests. A
//! batch that has begun is staged to its end, whatever is ordered meanwhile. Room for a batch was
//! promised to its owner ([`super::room`]); it waits for the log to make it, which no guest's data
//! is in the way of. What waits for room owns nothing. What a copy has of the time before writes
//! that never came to it, because the image had them first, is let go of for good before newer ones
//! are staged.
//! Deliberately absent: what is said of it to other hosts, and who may freeze it.

use super::Core;
use super::checkpoint::Waiter as OfCheckpoint;
use super::room::batch_max;
use super::write::Gate;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Batch, LogRoom, Refusal, ReplicaSpec};
use crate::format::checkpoint::{NAME_BYTES_MAX, ORIGIN_BYTES_MAX};
use crate::format::record::EntryKind;
use crate::log::{Item, StreamKind, Waiter};
use crate::outbox::Cx;
use crate::types::{
    BLOCK_SECTORS, Policy, RequestId, SECTOR_BYTES, Serial, Span, StreamSeq, Tag, Time, VolumeId,
};
use crate::volume::Volume;
use alloc::string::String;
use alloc::vec::Vec;

/// Blocks of the log that a batch needs besides those of its bytes.
const HEADERS: u64 = 4;

/// What a batch takes of the log.
#[derive(Clone, Copy)]
struct Need {
    blocks: u64,
    parts: u64,
}

impl Need {
    fn of(batch: &Batch) -> Need {
        let data = batch.parts.iter().filter(|part| part.source.is_some());
        Need {
            blocks: data.map(|part| part.span.blocks()).sum(),
            parts: batch.parts.len() as u64,
        }
    }
}

impl Core {
    pub(super) fn keep_replica(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        spec: &ReplicaSpec,
    ) {
        let known = self.volumes.get(id);
        let kept = match known {
            _ if !Volume::is_serial_of_owner(spec.destaged) => Err(Refusal::OutOfRange),
            None if !spec.fetched
                && !self
                    .shares
                    .has_room_for_copy(self.budgets(), self.batch_max()) =>
            {
                Err(Refusal::NoRoom)
            }
            None => self.make_replica(id, spec),
            Some(it) if it.uuid() != spec.uuid || it.size_bytes() != spec.size_bytes => {
                Err(Refusal::Busy)
            }
            Some(_) => match self.volume(id).reopen_replica(spec) {
                true => Ok(()),
                false => Err(Refusal::Gone),
            },
        };
        if let Err(refusal) = kept {
            cx.out.reply(request, Err(refusal));
            return;
        }
        // A frozen one may be on its way to others.
        self.stop_peers(cx, id);
        if !self.volume(id).has_begun_batch() {
            self.drop_old(id, spec.destaged);
        }
        self.settle_replica(cx, id, request);
        self.count_writers();
        self.renew_credit(cx.now, id);
    }

    fn batch_max(&self) -> LogRoom {
        batch_max(self.scratch.piece_bytes())
    }

    fn renew_credit(&mut self, now: Time, id: VolumeId) {
        let (budgets, batch_max) = (self.budgets(), self.batch_max());
        let volume = self.volumes.known_mut(id);
        self.shares.renew_credit(now, volume, budgets, batch_max);
    }

    fn make_replica(&mut self, id: VolumeId, spec: &ReplicaSpec) -> Result<(), Refusal> {
        let fits = spec.name.len() <= NAME_BYTES_MAX && spec.origin.len() <= ORIGIN_BYTES_MAX;
        let sized = spec.size_bytes > 0 && spec.size_bytes.is_multiple_of(SECTOR_BYTES);
        let sized = sized && spec.size_bytes <= super::attach::BYTES_MAX;
        if !fits || !sized || id.0 >= self.superblock.volumes_max {
            return Err(Refusal::OutOfRange);
        }
        let mut volume = Volume::replica(id, spec);
        volume.set_generation(self.given.take_generation());
        volume.void_older();
        self.volumes.put(id, volume);
        Ok(())
    }

    pub(super) fn freeze(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId, term: u64) {
        if !self.volume(id).freeze(term) {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        self.settle_replica(cx, id, request);
    }

    /// The order is replied to when nothing of the replica is under way, and all of it is durable.
    fn settle_replica(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let gone: Vec<RequestId> = self.volume(id).take_batches().collect();
        for batch in gone {
            cx.out.reply(batch, Err(Refusal::Gone));
        }
        self.volume(id).settle(request);
        self.recount(id);
        self.touch(id);
    }

    /// Goes on with that.
    pub(super) fn replica_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id).filter(|it| it.is_settling()) else {
            return;
        };
        if volume.has_batches() {
            return;
        }
        if self.waits_for_join(id) {
            return;
        }
        self.drop_partial(id);
        let volume = self.volume(id);
        if volume.is_torn() && !volume.is_frozen() {
            mark(Mark::TornReplica);
            let request = volume.take_settling().expect("just seen");
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        let newest = volume.epochs.back().map_or(StreamSeq(0), |it| it.last_seq);
        let waiter = Waiter::Volume(id);
        if has(Bug::FreezeUnsynced) || self.log.wait_durable(cx, newest, waiter) {
            let request = self.volume(id).take_settling().expect("just seen");
            self.checkpoint.wait(OfCheckpoint::Replica(request));
        }
    }

    fn drop_partial(&mut self, id: VolumeId) {
        if let Some(map) = self.volume(id).drop_partial() {
            mark(Mark::DroppedPartialDelta);
            self.extents.free_later(map);
            self.recount(id);
        }
    }

    /// What the origin has is not needed here any more.
    fn drop_old(&mut self, id: VolumeId, destaged: Serial) {
        for map in self.volume(id).replica_destaged(destaged) {
            self.extents.free_later(map);
        }
        self.recount(id);
    }

    /// Of a replica to which no owner sends anything.
    pub(super) fn tell_replica(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        upto: Serial,
    ) {
        let volume = self.volume(id);
        let told = match () {
            () if !volume.is_replica() || volume.is_detaching() => Err(Refusal::Gone),
            () if volume.has_batches() || volume.is_settling() => Err(Refusal::Busy),
            () if upto > volume.history_end() => Err(Refusal::OutOfRange),
            () => Ok(()),
        };
        if told.is_ok() {
            self.drop_partial(id);
            self.drop_old(id, upto);
            self.restart_rounds(id);
            self.touch(id);
        }
        cx.out.reply(request, told);
    }

    pub(super) fn take_over_replica(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        name: String,
    ) {
        let taken = self.volumes.iter().any(|it| it.name() == name);
        let volume = self.volume(id);
        let ready = volume.is_frozen() && !volume.is_settling() && volume.can_fork();
        if taken || !ready || name.len() > NAME_BYTES_MAX {
            cx.out.reply(request, Err(Refusal::Busy));
            return;
        }
        mark(Mark::TookOver);
        self.stop_peers(cx, id);
        self.volume(id).own_replica(name);
        self.count_writers();
        self.checkpoint.wait(OfCheckpoint::Replica(request));
    }

    /// Another host serves the volume from here on; what is here of it is as a copy of that.
    pub(super) fn retire(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (name, term): (String, u64),
    ) {
        let taken = self.volumes.iter().any(|it| it.name() == name);
        let volume = self.volume(id);
        let refusal = if volume.is_replica() || volume.is_detaching() {
            Some(Refusal::Gone)
        } else if taken || !volume.may_retire() {
            Some(Refusal::Busy)
        } else if volume.policy != Policy::WriteBack || volume.is_read_only() {
            Some(Refusal::Policy)
        } else if name.len() > NAME_BYTES_MAX {
            Some(Refusal::OutOfRange)
        } else {
            (volume.standing().term > term).then_some(Refusal::Gone)
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        self.stop_peers(cx, id);
        self.leave_group(cx, id);
        let volume = self.volume(id);
        let waiting = volume.take_waiting().into_iter().map(|it| it.request);
        let orders = volume.take_destage_orders().chain(volume.take_arrivals());
        let others = volume.resize_order().into_iter();
        for gone in waiting
            .chain(orders)
            .chain(others.chain(volume.rebase_order()))
        {
            cx.out.reply(gone, Err(Refusal::Gone));
        }
        self.checkpoint.forget(OfCheckpoint::Resize(id));
        let volume = self.volumes.take(id).expect("just seen");
        let left = (volume.layer(), volume.destaged());
        self.lines.leave(cx.now, volume.uuid(), left);
        self.turns.forget(id);
        self.shares.forget(id);
        self.volumes.put(id, volume.retired(name, term));
        self.count_writers();
        self.settle_replica(cx, id, request);
    }

    /// A batch has come. It is looked at before anything of it counts.
    pub(super) fn replicate(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        batch: Batch,
    ) {
        let checked = match self.find(id) {
            None => Err(Refusal::Gone),
            Some(volume) => volume.check_batch(&batch),
        };
        let whole = |part: &crate::event::BatchPart| match (part.kind, part.source) {
            (EntryKind::Write, Some(place)) => {
                let sum = cx.memory.checksum(place, part.span.sectors * SECTOR_BYTES);
                sum == part.sum || has(Bug::BelieveBatch)
            }
            (EntryKind::Zero { .. }, None) => true,
            _ => false,
        };
        let checked = checked.and_then(|()| match batch.parts.iter().all(whole) {
            true => Ok(()),
            false => Err(Refusal::Io),
        });
        if let Err(refusal) = checked {
            cx.out.reply(request, Err(refusal));
            self.break_replica(cx, id);
            return;
        }
        // What the origin has makes room for what waits.
        let (destaged, end) = (batch.destaged, self.volume(id).history_end());
        let known = self.volume(id).destaged();
        if !self.volume(id).has_begun_batch() {
            self.drop_old(id, destaged.min(end));
        }
        let volume = self.volume(id);
        match destaged > known || !batch.parts.is_empty() {
            true => volume.room_promise_mut().moves(),
            false => volume.room_promise_mut().is_asked(),
        }
        volume.add_batch(request, batch);
        self.recount(id);
        if !self.replicas.taking.contains(&id) {
            self.replicas.taking.push_back(id);
        }
    }

    /// Nothing behind a batch that was refused is taken: it would leave a gap.
    fn break_replica(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        // What an earlier link has left says nothing of the next one.
        if volume.is_settling() || !volume.is_replica() {
            return;
        }
        for request in volume.break_replica() {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        self.recount(id);
    }

    /// Stages what has come, for each replica as far as there is room.
    pub(super) fn pump_inboxes(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..self.replicas.taking.len() {
            let Some(id) = self.replicas.taking.pop_front() else {
                return;
            };
            while self.take_batch(cx, id) {}
            if self.find(id).is_some_and(|it| it.has_batches()) {
                self.replicas.taking.push_back(id);
            }
        }
    }

    /// Takes the first batch of a replica. False if there is none, or it has to wait.
    fn take_batch(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let Some(volume) = self.find(id) else {
            return false;
        };
        let Some(incoming) = volume.as_replica().first_batch() else {
            return false;
        };
        let (begun, request) = (incoming.begun, incoming.request);
        let untouched = incoming.parts_done == 0 && incoming.sectors_done == 0;
        let need = Need::of(&incoming.batch);
        if !begun && !volume.follows_first() {
            volume.end_refused();
            cx.out.reply(request, Err(Refusal::OutOfRange));
            self.break_replica(cx, id);
            return true;
        }
        // A recovery that found what lies before writes left out would lay it over the image, below
        // the newer writes of this batch. A checkpoint lets go of it before anything is staged.
        if let Some(destaged) = volume.as_replica().leaves_out() {
            mark(Mark::LeftOut);
            volume.as_replica().begin_cover();
            self.drop_old(id, destaged);
            self.checkpoint.wait(OfCheckpoint::Cover(id));
        }
        if self.volume(id).as_replica().is_covering() {
            return false;
        }
        // It has no claim to room before something of it is there.
        if untouched && !self.has_room_for(cx, id, need) {
            return false;
        }
        if !begun {
            self.begin_batch(id);
        }
        let resumed = self
            .volume(id)
            .as_replica()
            .first_batch()
            .expect("just seen");
        let resumed = resumed.parts_done > 0 || resumed.sectors_done > 0;
        if !self.stage_batch(cx, id) {
            let begun = self
                .volume(id)
                .as_replica()
                .first_batch()
                .expect("just seen");
            if !resumed && (begun.parts_done > 0 || begun.sectors_done > 0) {
                self.log.unfinished += 1;
            }
            return false;
        }
        if resumed {
            self.log.unfinished -= 1;
        }
        let incoming = self.volume(id).end_batch();
        let newest = self.volume(id).epochs.back();
        let newest = newest.map_or(StreamSeq(0), |it| it.last_seq);
        self.renew_credit(cx.now, id);
        self.acknowledge(cx, id, incoming.request, newest);
        self.touch(id);
        true
    }

    /// Whether the log has room for all of a batch.
    fn has_room_for(&mut self, cx: &Cx<'_>, id: VolumeId, need: Need) -> bool {
        if need.parts == 0 {
            return true;
        }
        let blocks = need.blocks.max(3 * need.parts) + HEADERS;
        let span = Span::new(0, blocks * BLOCK_SECTORS);
        let open = match self.volume(id).is_copy() {
            // It was promised; a write that has begun is finished first.
            true => self.log.unfinished == 0,
            false => matches!(self.gate(cx.now, id, span, EntryKind::Write), Gate::Open),
        };
        open && self.log.has_room(StreamKind::Writes, blocks)
    }

    fn begin_batch(&mut self, id: VolumeId) {
        let incoming = self
            .volume(id)
            .as_replica()
            .first_batch()
            .expect("it has come");
        let batch = &incoming.batch;
        let begins = batch.part == 0 && !batch.parts.is_empty();
        let destaged = batch.destaged;
        self.drop_old(id, destaged);
        if begins {
            self.drop_partial(id);
        }
        if self.volume(id).begin_batch() && self.volume(id).is_dirty() {
            self.seal(id);
        }
    }

    /// Stages the rest of the first batch. False if the stage has no room now; it empties by
    /// itself.
    fn stage_batch(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        loop {
            let volume = self.volume(id);
            let (generation, epoch) = (volume.generation(), volume.next_epoch());
            let incoming = volume.as_replica().first_batch().expect("it has begun");
            let Some(part) = incoming.batch.parts.get(incoming.parts_done).copied() else {
                return true;
            };
            let last = incoming.parts_done + 1 == incoming.batch.parts.len();
            let (done, begun) = (incoming.sectors_done, incoming.parts_done > 0);
            let item = Item {
                volume: id,
                generation,
                serial: incoming.batch.upto,
                span: Span::new(part.span.sector + done, part.span.sectors - done),
                kind: part.kind,
                more: !(last && incoming.batch.ends),
                epoch,
                tag: Tag::NONE,
            };
            let source = part.source.map(|it| it.plus(done * SECTOR_BYTES));
            let staged = self.append_item(cx, (id, StreamKind::Writes), item, source, begun);
            let Some((taken, _)) = staged else {
                return false;
            };
            let incoming = self
                .volume(id)
                .as_replica()
                .first_batch()
                .expect("it has begun");
            incoming.sectors_done += taken;
            if incoming.sectors_done == part.span.sectors {
                incoming.parts_done += 1;
                incoming.sectors_done = 0;
            }
        }
    }
}
