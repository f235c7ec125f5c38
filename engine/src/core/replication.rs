//! Replication: what guests write goes to peers as well.
//!
//! Always true: a flush is answered when the log of this host and each peer that counts have what
//! it covers, and a destage begins with nothing that one of them lacks; so any of them can go on
//! alone. What is sent names bytes of the stage, or of memory that is held until the batch is
//! acknowledged; the stage is not changed any more in the event that sends them, because sending is
//! its last step. What is queued keeps its places in the log alive; an evacuation drops the queues
//! first, so that none of them names what has moved. A frozen replica is sent likewise, up to its
//! end; a peer that gets it never counts.
//! Where the host orders it, a flush is answered when the origin has what it covers as well, which
//! is destaged for it at once.
//! A batch leaves when the peer has promised room for it. Where one that counts has none, guests
//! wait as at a dirty limit, what is at all peers is destaged, and the peer is asked.
//! Deliberately absent: links and hosts, and when a peer is given up; that is the host's.

use super::Core;
use crate::adversary::{Mark, mark};
use crate::event::{Action, Batch, BatchPart, Credit, LogRoom, Purpose, Refusal};
use crate::fetch::{Fetched, Owner, Want};
use crate::format::record::EntryKind;
use crate::log::{Log, QuotaOwner};
use crate::map::{Content, ExtentMap, Piece};
use crate::memory::Place;
use crate::outbox::Cx;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, EpochNumber, PeerId, Policy, RequestId, SECTOR_BYTES, Serial, Span,
    Time, Uuid, VolumeId,
};
use crate::volume::replica::PARTS_MAX;
use crate::volume::replication::{Cursor, Delta};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Volumes that have something to do with other hosts.
#[derive(Default)]
pub struct Replicas {
    /// Those with peers.
    pub sending: Vec<VolumeId>,
    /// Those of them that may have something to send, in turn; each once.
    marked: VecDeque<VolumeId>,
    /// By the number of the volume.
    turns: Vec<Turn>,
    /// Some wait for memory.
    short: Vec<VolumeId>,
    /// Replicas with batches that wait, in turn.
    pub taking: VecDeque<VolumeId>,
    /// Volumes of which epochs become one, in turn.
    pub joining: VecDeque<VolumeId>,
    pub recalls: super::recall::Recalls,
}

/// Whether a volume is to be looked at for something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// It has no peers.
    #[default]
    Alone,
    Idle,
    Marked,
}

impl Replicas {
    /// It has a peer.
    fn sends(&mut self, id: VolumeId) {
        let at = id.0 as usize;
        if self.turns.len() <= at {
            self.turns.resize(at + 1, Turn::Alone);
        }
        if self.turns[at] == Turn::Alone {
            self.turns[at] = Turn::Idle;
            self.sending.push(id);
        }
        assert!(self.sending.contains(&id));
        self.mark(id);
    }

    /// It has no peers any more.
    fn ends(&mut self, id: VolumeId) {
        if let Some(turn) = self.turns.get_mut(id.0 as usize) {
            *turn = Turn::Alone;
        }
        self.sending.retain(|it| *it != id);
        self.marked.retain(|it| *it != id);
        self.short.retain(|it| *it != id);
    }

    /// There may be something to send, if it has peers.
    pub fn mark(&mut self, id: VolumeId) {
        let turn = self.turns.get_mut(id.0 as usize);
        if let Some(turn) = turn.filter(|it| **it == Turn::Idle) {
            *turn = Turn::Marked;
            self.marked.push_back(id);
        }
        assert!(
            self.marked.len() <= self.sending.len(),
            "each is once there"
        );
    }

    fn next_marked(&mut self) -> Option<VolumeId> {
        let id = self.marked.pop_front()?;
        let turn = &mut self.turns[id.0 as usize];
        assert!(*turn == Turn::Marked, "marks and order agree");
        *turn = Turn::Idle;
        Some(id)
    }

    /// It waits for memory.
    fn is_short(&mut self, id: VolumeId) {
        if !self.short.contains(&id) {
            self.short.push(id);
        }
        assert!(self.short.len() <= self.sending.len());
    }

    /// There is memory again.
    fn try_short(&mut self) {
        while let Some(id) = self.short.pop() {
            self.mark(id);
        }
    }
}

/// One part of so many of the log may be kept alive for one peer that is behind.
const QUEUE_PART: u64 = 16;

/// What a batch carries, before its bytes are looked for.
struct Gathered {
    pieces: Vec<Piece>,
    /// Where the delta goes on.
    next: Option<u64>,
}

impl Gathered {
    fn cost(&self) -> LogRoom {
        let cost = |piece: &Piece| {
            let kind = match piece.content {
                Content::Data(_) => EntryKind::Write,
                Content::Zero { allocate, .. } => EntryKind::Zero { allocate },
            };
            BatchPart::cost(piece.span, kind)
        };
        let costs = self.pieces.iter().map(cost);
        costs.fold(LogRoom::default(), LogRoom::plus)
    }
}

/// The first pieces of a map from a sector on, as many as one batch takes of those that are sent.
fn gather(
    map: &ExtentMap,
    from: u64,
    blocks_max: u64,
    is_sent: impl Fn(&Piece) -> bool,
) -> Gathered {
    let (mut pieces, mut blocks) = (Vec::new(), 0);
    for piece in map.pieces_from(from).filter(is_sent) {
        let skipped = from.saturating_sub(piece.span.sector);
        let span = Span::new(piece.span.sector + skipped, piece.span.sectors - skipped);
        let content = piece.content.advance(skipped);
        let room = blocks_max - blocks;
        if pieces.len() == PARTS_MAX || room == 0 {
            let next = Some(span.sector);
            return Gathered { pieces, next };
        }
        let fits = match content {
            Content::Data(_) => room * BLOCK_SECTORS - span.sector % BLOCK_SECTORS,
            Content::Zero { .. } => span.sectors,
        };
        let taken = Span::new(span.sector, span.sectors.min(fits));
        if matches!(content, Content::Data(_)) {
            blocks += taken.blocks();
        }
        pieces.push(Piece {
            span: taken,
            content,
        });
        if taken.sectors < span.sectors {
            let next = Some(taken.end());
            return Gathered { pieces, next };
        }
    }
    Gathered { pieces, next: None }
}

/// Its bytes are in memory, or it has none.
fn is_staged(log: &Log, piece: &Piece) -> bool {
    match piece.content {
        Content::Data(addr) => log.staged(addr).is_some(),
        Content::Zero { .. } => true,
    }
}

/// The device does not give what it has, and the peer has all of that.
fn has_what_is_unread(core: &mut Core, id: VolumeId, peer: PeerId) -> bool {
    let (failed, durable) = (core.health.is_failed(), core.log.durable);
    let replication = &mut core.volume(id).replication;
    let logged = replication.logged().upto(durable);
    let has = replication
        .find(peer)
        .is_some_and(|it| it.durable() >= logged);
    failed && has
}

impl Core {
    pub(super) fn name_lineage(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        lineage: Uuid,
    ) {
        if self.volume(id).is_replica() {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        self.volume(id).name_lineage(lineage);
        self.checkpoint
            .wait(super::checkpoint::Waiter::Replica(request));
    }

    pub(super) fn start_peer(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (peer, have, credit): (PeerId, Serial, Credit),
    ) {
        let volume = self.volume(id);
        let replicates = volume.policy == Policy::WriteBack && !volume.is_read_only();
        let alone = volume.group().is_none() && !volume.is_switching() && !volume.is_resizing();
        let alone = alone && !volume.is_rebasing();
        let started = volume
            .replication
            .find(peer)
            .is_some_and(|it| !it.is_stopped());
        let frozen = volume.is_frozen() && !volume.is_detaching();
        let refusal = if !frozen && (volume.is_gone() || volume.is_replica()) {
            Some(Refusal::Gone)
        } else if frozen && volume.has_damaged_log() {
            // What is missing of it is not known.
            Some(Refusal::Damaged)
        } else if !replicates || !alone {
            Some(Refusal::Policy)
        } else if started || volume.is_settling() {
            Some(Refusal::Busy)
        } else {
            (have > volume.history_end()).then_some(Refusal::OutOfRange)
        };
        if refusal.is_none() {
            volume.start_peer(cx.now, peer, have, credit);
            self.replicas.sends(id);
        }
        cx.out.reply(request, refusal.map_or(Ok(()), Err));
    }

    pub(super) fn count_peer(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        peer: PeerId,
    ) {
        let volume = self.volume(id);
        let logs = volume.policy == Policy::WriteBack && volume.is_with_log();
        let logs = logs && !volume.is_replica();
        if !logs || !volume.count_peer(peer, request) {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        self.peers_have_more(cx, id);
    }

    pub(super) fn stop_peer(&mut self, cx: &mut Cx<'_>, id: VolumeId, peer: PeerId, counts: bool) {
        let counts = counts && !self.volume(id).is_replica();
        let Some(stopped) = self.volume(id).stop_peer(peer, counts) else {
            let volume = self.volume(id);
            if counts && !volume.is_gone() {
                volume.need_peer(peer);
                self.replicas.sends(id);
            }
            return;
        };
        for delta in stopped.deltas {
            self.extents.free_later(delta.map);
        }
        for piece in stopped.pieces {
            self.scratch.free_piece(piece);
        }
        if let Some(request) = stopped.counting {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        self.peers_have_more(cx, id);
    }

    /// The volume goes, or its host lets go of it.
    pub(super) fn stop_peers(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        for request in self.volume(id).take_waiting_for_peers() {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        for peer in self.volume(id).replication.ids() {
            self.stop_peer(cx, id, peer, false);
        }
        self.volume(id).replication.answer_at_origin(false);
        self.volume(id).replication.flush_through(false);
        self.replicas.ends(id);
    }

    pub(super) fn replicated(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        peer: PeerId,
        (number, credit): (u64, Credit),
    ) {
        let Some(volume) = self.find(id) else { return };
        let other = volume.replication.find(peer);
        let other = other.is_some_and(|it| !it.is_stopped() && it.purse().hear(credit));
        for piece in volume.peer_has(cx.now, peer, number) {
            self.scratch.free_piece(piece);
        }
        if other && !self.volume(id).is_replica() {
            self.look_at_flow(cx, id, 0);
        }
        self.peers_have_more(cx, id);
    }

    /// Some time has passed: peers that had no room are asked whether they have some.
    pub(super) fn ask_peers_for_room(&mut self) {
        for at in 0..self.replicas.sending.len() {
            let id = self.replicas.sending[at];
            if self.volume(id).ask_for_room() {
                self.replicas.mark(id);
            }
        }
    }

    /// Some peer waits for room.
    pub(super) fn waits_for_room_of_peers(&self) -> bool {
        let mut sending = self.replicas.sending.iter();
        sending.any(|id| {
            let volume = self.volumes.get(*id);
            volume.is_some_and(|it| it.replication.is_short())
        })
    }

    /// A peer or the origin has more, or is not relied on any more: who waited for that may go on.
    pub(super) fn peers_have_more(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        for (upto, request) in self.volume(id).take_replicated() {
            self.volume(id).promise(upto);
            cx.out.reply(request, Ok(()));
        }
        for request in self.volume(id).take_counted() {
            cx.out.reply(request, Ok(()));
        }
        self.touch(id);
    }

    /// What a guest waits for is durable here: it is answered when it is at the peers as well.
    pub(super) fn durable_here(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        upto: Serial,
    ) {
        let Some(volume) = self.find(id) else {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        };
        if volume.may_promise(upto) {
            volume.promise(upto);
            cx.out.reply(request, Ok(()));
            return;
        }
        let at_origin = volume.replication.answers_at_origin();
        volume.wait_for_peers(upto, request);
        if at_origin {
            mark(Mark::WaitedForOrigin);
            self.want_destage(id);
        } else {
            mark(Mark::WaitedForPeer);
            // What is queued does not wait for more.
            self.replicas.mark(id);
        }
    }

    /// Who waits for peers waits for the origin from now on, or the reverse.
    pub(super) fn answer_at_origin(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        (on, by_order): (bool, bool),
    ) {
        let volume = self.volume(id);
        let logs = volume.policy == Policy::WriteBack || volume.bypass().is_past_log();
        if volume.is_gone() || !logs || volume.is_replica() {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        match by_order {
            true => volume.replication.flush_through(on),
            false => volume.replication.answer_at_origin(on),
        }
        if on {
            // What was answered before counts as well.
            self.want_destage(id);
        }
        cx.out.reply(request, Ok(()));
        self.peers_have_more(cx, id);
    }

    /// What one peer that is behind may keep alive in the log.
    fn queue_bytes_max(&self) -> u64 {
        self.log.gauge().capacity / QUEUE_PART * BLOCK_BYTES
    }

    /// A peer of a volume would never have all that its guests write, unless these wait.
    pub(super) fn waits_for_peers_behind(&mut self, now: Time, id: VolumeId) -> bool {
        if !self.volume(id).has_peers() {
            return false;
        }
        let bytes_max = self.queue_bytes_max();
        self.volume(id).waits_for_peers_behind(now, bytes_max)
    }

    /// A piece of a write was staged; `begun`: not its first one.
    pub(super) fn queue_for_peers(
        &mut self,
        id: VolumeId,
        piece: Piece,
        epoch: EpochNumber,
        begun: bool,
    ) {
        self.replicas.mark(id);
        let kept_max = self.queue_bytes_max();
        let full_sectors = self.scratch.piece_bytes() / SECTOR_BYTES / 2;
        let volume = self.volumes.known_mut(id);
        let acked = volume.acked();
        let mut dropped = Vec::new();
        for peer in volume.replication.peers() {
            // Zeroes carry nothing.
            let carried = match piece.content {
                Content::Data(_) => piece.span.sectors,
                Content::Zero { .. } => BLOCK_SECTORS,
            };
            peer.count_written(carried);
            if !peer.takes_new() {
                continue;
            }
            let queue = peer.queue();
            let open = queue.back_mut().filter(|delta| delta.upto.is_none());
            let goes_on = open.is_some_and(|delta| {
                let full = !begun && delta.map.sectors() >= full_sectors;
                let goes_on = delta.epoch == epoch && !full;
                if !goes_on {
                    delta.upto = Some(acked);
                }
                goes_on
            });
            if !goes_on {
                queue.push_back(Delta {
                    map: ExtentMap::new(),
                    epoch,
                    upto: None,
                });
            }
            let map = &mut queue.back_mut().expect("one was just pushed").map;
            let (before, log) = (map.len() as i64, &mut self.log);
            map.insert(piece, &mut |change| {
                log.account(QuotaOwner::NONE, change);
            });
            let grown = map.len() as i64 - before;
            self.extents.grow(grown);
            peer.count_queued(carried);
            if peer.is_overfull(kept_max) {
                mark(Mark::PeerFellBehind);
                dropped.extend(peer.drop_queue());
            }
        }
        dropped
            .into_iter()
            .for_each(|delta| self.extents.free_later(delta.map));
    }

    /// Epochs of a volume have become one.
    pub(super) fn restart_rounds(&mut self, id: VolumeId) {
        let mut dropped = Vec::new();
        for peer in self.volume(id).replication.peers() {
            dropped.extend(peer.restart_round());
        }
        for delta in dropped {
            self.extents.free_later(delta.map);
        }
        self.replicas.mark(id);
    }

    /// What is queued for peers is not any more: they get it from the epochs.
    pub(super) fn drop_queues(&mut self) {
        for at in 0..self.replicas.sending.len() {
            let id = self.replicas.sending[at];
            self.replicas.mark(id);
            let mut dropped = Vec::new();
            for peer in self.volume(id).replication.peers() {
                dropped.extend(peer.drop_queue());
            }
            dropped
                .into_iter()
                .for_each(|delta| self.extents.free_later(delta.map));
        }
    }

    /// Sends what peers have not. The last step of an event. Only volumes are looked at that were
    /// marked: by a new write, by a peer that has more, is started or counted, by whatever touches
    /// the volume, and by memory that one has waited for.
    pub(super) fn pump_peers(&mut self, cx: &mut Cx<'_>) {
        if self.scratch.has_spare_piece() {
            self.replicas.try_short();
        }
        // What is marked meanwhile has been looked at.
        for _ in 0..self.replicas.marked.len() {
            let Some(id) = self.replicas.next_marked() else {
                return;
            };
            let mut at = 0;
            while let Some(peer) = self.volume(id).replication.id_at(at) {
                while self.send_next(cx, id, peer) {}
                at += 1;
            }
        }
    }

    /// Sends one batch. False if there is nothing to send, or it has to wait.
    fn send_next(&mut self, cx: &mut Cx<'_>, id: VolumeId, peer: PeerId) -> bool {
        let may = |it: &&mut crate::volume::replication::Peer| it.may_send();
        if self.volume(id).replication.find(peer).filter(may).is_none() {
            return false;
        }
        let Some((cursor, gathered)) = self.next_delta(id, peer) else {
            self.needs_no_room(id, peer);
            if self.peer(id, peer).has_all_that_was_sent() {
                self.peers_have_more(cx, id);
            }
            return self.tell_destaged(cx, id, peer);
        };
        if !self.peer(id, peer).purse().allows(gathered.cost()) {
            return self.wait_for_room(cx, id, peer);
        }
        let mut pieces = gathered.pieces.iter();
        let here = pieces.all(|piece| is_staged(&self.log, piece));
        let piece = match here {
            true => None,
            false if self.peer(id, peer).holds_piece() => return false,
            false => match self.scratch.take_spare_piece() {
                Some(piece) => Some(piece),
                None => {
                    self.replicas.is_short(id);
                    return false;
                }
            },
        };
        let batch = self.make_batch(cx, id, peer, (cursor, &gathered), piece);
        match piece {
            None => self.send(cx, id, peer, batch, None),
            Some(piece) => self.read_batch(cx, (id, peer), (piece, batch), &gathered),
        }
        true
    }

    /// What is to be sent next has no room there. While something is under way its answer may bring
    /// some. True if something was sent all the same.
    fn wait_for_room(&mut self, cx: &mut Cx<'_>, id: VolumeId, peer: PeerId) -> bool {
        let it = self.peer(id, peer);
        if it.is_idle() && it.purse().is_empty_now() && it.has_no_room() {
            mark(Mark::PeerHasNoRoom);
            self.volume(id).want_room();
            self.touch(id);
        }
        self.tell_destaged(cx, id, peer)
    }

    /// What is to be sent has room, or there is nothing.
    fn needs_no_room(&mut self, id: VolumeId, peer: PeerId) {
        if self.peer(id, peer).has_no_room() {
            self.volume(id).has_room();
            self.touch(id);
        }
        self.peer(id, peer).purse().is_not_needed();
    }

    fn peer(&mut self, id: VolumeId, peer: PeerId) -> &mut crate::volume::replication::Peer {
        let found = self.volume(id).replication.find(peer);
        found.expect("checked by the caller")
    }

    /// What a peer gets next. Ends rounds, and begins them.
    fn next_delta(&mut self, id: VolumeId, peer_id: PeerId) -> Option<(Cursor, Gathered)> {
        let blocks_max = self.scratch.piece_bytes() / BLOCK_BYTES;
        loop {
            let peer = self.peer(id, peer_id);
            let (sent, cursor) = (peer.sent(), peer.cursor());
            let Some(upto) = peer.catches_up_to() else {
                return self.next_queued(id, peer_id, blocks_max);
            };
            let epochs = &self.volume(id).epochs;
            let next = epochs.iter().position(|it| it.last_serial > sent);
            let next = next.filter(|at| epochs[*at].last_serial <= upto);
            if let Some(at) = next {
                let epoch = &epochs[at];
                if epoch.joins || at > 0 && epochs[at - 1].joins {
                    return None;
                }
                assert!(epoch.sealed, "what a round sends is not written any more");
                let goes_on = cursor.filter(|it| it.upto == epoch.last_serial);
                let cursor = goes_on.unwrap_or(Cursor {
                    upto: epoch.last_serial,
                    epoch: epoch.number,
                    part: 0,
                    from: 0,
                });
                let only_staged = has_what_is_unread(self, id, peer_id);
                let epoch = &self.volumes.known(id).epochs[at];
                let is_sent = |piece: &Piece| !only_staged || is_staged(&self.log, piece);
                let gathered = gather(&epoch.map, cursor.from, blocks_max, is_sent);
                assert!(
                    !gathered.pieces.is_empty(),
                    "what the peer lacks of it is staged"
                );
                mark(Mark::SentEpoch);
                return Some((cursor, gathered));
            }
            if self.peer(id, peer_id).end_round() {
                continue;
            }
            let volume = self.volume(id);
            if volume.is_in_part() {
                return None;
            }
            let upto = volume.history_end();
            if volume.epochs.back().is_some_and(|epoch| !epoch.sealed) {
                self.seal(id);
            }
            self.peer(id, peer_id).begin_round(upto);
        }
    }

    /// The first delta of a peer's queue. One that is open is closed for it, between two writes.
    fn next_queued(
        &mut self,
        id: VolumeId,
        peer_id: PeerId,
        blocks_max: u64,
    ) -> Option<(Cursor, Gathered)> {
        let waited = self.log.guests_wait();
        let volume = self.volume(id);
        let (acked, in_part) = (volume.acked(), volume.is_in_part());
        let waited = waited || volume.replication.is_waited_for();
        let peer = self.peer(id, peer_id);
        let goes = peer.is_idle() || peer.is_eager() || waited;
        let cursor = peer.cursor();
        let front = peer.queue().front_mut()?;
        if front.upto.is_none() && (in_part || !goes) {
            return None;
        }
        let upto = *front.upto.get_or_insert(acked);
        let cursor = cursor.unwrap_or(Cursor {
            upto,
            epoch: front.epoch,
            part: 0,
            from: 0,
        });
        let gathered = gather(&front.map, cursor.from, blocks_max, |_| true);
        Some((cursor, gathered))
    }

    /// The batch of what was gathered, and where its peer goes on behind it.
    fn make_batch(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        peer_id: PeerId,
        (cursor, gathered): (Cursor, &Gathered),
        piece: Option<u32>,
    ) -> Batch {
        let mut parts = Vec::new();
        let mut at = piece.map(|piece| self.scratch.piece(piece));
        for piece in &gathered.pieces {
            let (kind, source) = match (piece.content, &mut at) {
                (Content::Zero { allocate, .. }, _) => (EntryKind::Zero { allocate }, None),
                (Content::Data(_), Some(at)) => {
                    let phase = piece.span.sector % BLOCK_SECTORS;
                    let place = at.plus(phase * SECTOR_BYTES);
                    *at = at.plus(piece.span.blocks() * BLOCK_BYTES);
                    (EntryKind::Write, Some(place))
                }
                (Content::Data(addr), None) => (EntryKind::Write, self.log.staged(addr)),
            };
            let bytes = piece.span.sectors * SECTOR_BYTES;
            let sum = |place: Place| cx.memory.checksum(place, bytes);
            parts.push(BatchPart {
                span: piece.span,
                kind,
                source,
                sum: source.filter(|_| at.is_none()).map_or(0, sum),
            });
        }
        let destaged = self.volume(id).destaged();
        let catches_up = self.peer(id, peer_id).catches_up_to().is_some();
        let peer = self.peer(id, peer_id);
        let begins = cursor.part == 0;
        let after = peer.given();
        let begins_epoch = begins && peer.begins(cursor.epoch);
        peer.set_cursor(gathered.next.map(|from| Cursor {
            from,
            part: cursor.part + 1,
            ..cursor
        }));
        if gathered.next.is_none() && !catches_up {
            let sent = peer.take_front();
            self.extents.free_later(sent.map);
        }
        Batch {
            after,
            upto: cursor.upto,
            part: cursor.part,
            ends: gathered.next.is_none(),
            begins_epoch,
            // What the origin has of the delta itself is told with a later one.
            destaged: destaged.min(Serial(cursor.upto.0 - 1)),
            parts,
        }
    }

    /// Brings the bytes of a batch together that the stage has no more.
    fn read_batch(
        &mut self,
        cx: &mut Cx<'_>,
        (id, peer): (VolumeId, PeerId),
        (piece, batch): (u32, Batch),
        gathered: &Gathered,
    ) {
        let places = batch.parts.iter().map(|part| part.source);
        let wants: Vec<Want> = gathered
            .pieces
            .iter()
            .zip(places)
            .filter_map(|(piece, place)| match (piece.content, place) {
                (Content::Data(addr), Some(to)) => Some(Want {
                    addr,
                    sectors: piece.span.sectors,
                    to,
                }),
                _ => None,
            })
            .collect();
        self.peer(id, peer).begin_reading(piece, batch);
        let owner = Owner::Peer { volume: id, peer };
        let parts = (&mut self.log, &mut self.scratch);
        if !self
            .fetches
            .start(cx, parts, owner, Purpose::Replicate, &wants)
        {
            self.batch_is_read(cx, id, peer, true);
        }
    }

    pub(super) fn batch_fetched(
        &mut self,
        cx: &mut Cx<'_>,
        (id, peer): (VolumeId, PeerId),
        fetched: &Fetched,
    ) {
        if fetched.is_damaged() {
            let bad = fetched.bad.iter().map(|want| want.addr);
            self.volume(id).meets_damage(cx.now, bad);
        }
        self.volume(id).counters.ssd_read_bytes += fetched.ssd_bytes;
        self.batch_is_read(cx, id, peer, !fetched.is_damaged());
    }

    /// The bytes of a batch are there, or cannot be read. What this host has lost of a volume it
    /// cannot give to a peer, which stays where it is.
    fn batch_is_read(&mut self, cx: &mut Cx<'_>, id: VolumeId, peer: PeerId, good: bool) {
        self.replicas.mark(id);
        let reading = self.peer(id, peer).take_reading().expect("it was read");
        match reading.batch {
            Some(mut batch) if good => {
                for part in &mut batch.parts {
                    let bytes = part.span.sectors * SECTOR_BYTES;
                    let sum = |place| cx.memory.checksum(place, bytes);
                    part.sum = part.source.map_or(0, sum);
                }
                self.send(cx, id, peer, batch, Some(reading.piece));
            }
            batch => {
                self.scratch.free_piece(reading.piece);
                let counts = self.peer(id, peer).counts();
                if batch.is_some() {
                    self.stop_peer(cx, id, peer, counts);
                }
                self.volume(id).replication.forget_gone();
                // A volume that goes may wait for it.
                self.touch(id);
            }
        }
    }

    fn send(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        peer: PeerId,
        batch: Batch,
        piece: Option<u32>,
    ) {
        let number = self.volume(volume).replication.next_number();
        let destaged = batch.destaged;
        if !batch.parts.is_empty() {
            self.needs_no_room(volume, peer);
        }
        let counted = self.peer(volume, peer);
        counted.purse().spend(batch.cost());
        counted.count_sent(batch.carried_sectors());
        let delta = match batch.parts.is_empty() {
            true => (counted.given(), true),
            false => (batch.upto, batch.ends),
        };
        counted.leaves(number, delta, destaged, piece);
        cx.out.act(Action::Send {
            volume,
            peer,
            number,
            batch,
        });
    }

    /// A peer that has all may let go of what the origin has. True if it was told so.
    fn tell_destaged(&mut self, cx: &mut Cx<'_>, id: VolumeId, peer: PeerId) -> bool {
        let destaged = self.volume(id).destaged();
        let it = self.peer(id, peer);
        let upto = it.sent();
        let destaged = destaged.min(upto);
        if !it.is_untold(destaged) {
            return false;
        }
        let after = it.given();
        let batch = Batch {
            after,
            upto,
            ends: true,
            destaged,
            ..Batch::default()
        };
        self.send(cx, id, peer, batch, None);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_with_peers_are_marked_and_each_comes_once_in_turn() {
        let mut replicas = Replicas::default();
        let [a, b, alone] = [3, 1, 2].map(VolumeId);
        replicas.mark(alone);
        assert_eq!(replicas.next_marked(), None);
        replicas.sends(a);
        replicas.sends(b);
        replicas.mark(a);
        replicas.mark(alone);
        assert_eq!(replicas.next_marked(), Some(a));
        replicas.mark(a);
        let rest: Vec<VolumeId> = core::iter::from_fn(|| replicas.next_marked()).collect();
        assert_eq!(rest, [b, a]);
        replicas.is_short(b);
        assert_eq!(replicas.next_marked(), None, "it waits");
        replicas.try_short();
        assert_eq!(replicas.next_marked(), Some(b));
        replicas.mark(b);
        replicas.is_short(b);
        replicas.ends(b);
        replicas.try_short();
        assert_eq!((replicas.next_marked(), replicas.sending.len()), (None, 1));
    }
}
