//! Flow control as the core drives it: gauges in, held writes out.
//!
//! Owns what the controller of a volume is told and when the first waiting write of a volume has
//! its turn. Always true: a held write owns nothing and a timer is set for it; a write whose
//! serial is given is never held. Deliberately absent: how long a delay is
//! ([`Flow`](crate::flow::Flow)).

use super::{Core, Timer};
use crate::flow::Gauges;
use crate::outbox::{Cx, Pending};
use crate::types::{Policy, Time, VolumeId};
use crate::volume::Waiting;
use crate::volume::share::Pool;
use alloc::vec::Vec;

impl Core {
    /// Counts a write that arrives at a ready volume, and says when it may be admitted.
    pub(super) fn pace(&mut self, cx: &mut Cx<'_>, id: VolumeId, blocks: u64) -> Time {
        let volume = self.volume(id);
        if volume.policy != Policy::WriteBack || !volume.is_ready() {
            return Time(0);
        }
        if volume.flow.arrives(cx.now, blocks) {
            self.look_at_flow(cx, id, blocks);
        }
        let flow = &mut self.volume(id).flow;
        flow.due(cx.now, blocks).max(flow.not_before())
    }

    /// Shows the controller of a volume its gauges, and calls the destager if it wants it.
    pub(super) fn look_at_flow(&mut self, cx: &mut Cx<'_>, id: VolumeId, arriving: u64) {
        if self.volume(id).policy != Policy::WriteBack {
            self.volume(id).flow.reset();
            return;
        }
        let gauges = self.gauges(id, arriving);
        let volume = self.volume(id);
        volume.look_at_flow(cx.now, &gauges);
        if volume.flow.is_pressing() && !volume.is_destaging() {
            self.touch(id);
        }
    }

    fn gauges(&self, id: VolumeId, arriving: u64) -> Gauges {
        let volume = self.volumes.known(id);
        let (charge, extents) = (volume.charge(), volume.dirty_extents());
        let budgets = self.budgets();
        let [room, extents_room] =
            [Pool::Log, Pool::Map].map(|pool| self.shares.most(volume, budgets, pool));
        let limit = volume.dirty_limit_blocks();
        let of_peers = volume.room_of_peers();
        let held: u64 = volume.waiting().map(Waiting::blocks).sum();
        let batch = volume.epochs.front().map_or(0, |epoch| epoch.charge);
        let moved = volume.destage().map_or(0, |it| it.moved_halves() / 2);
        Gauges {
            dirty_blocks: charge,
            room_blocks: room.min(limit).min(of_peers.blocks),
            peers_limit: of_peers.blocks < room.min(limit) || of_peers.extents < extents_room,
            dirty_writes: volume.epochs.iter().map(|epoch| epoch.writes).sum(),
            dirty_extents: extents,
            extents_room: extents_room.min(of_peers.extents),
            batch_left_blocks: batch.saturating_sub(moved),
            held_blocks: held + arriving,
            queue_depth: u64::from(volume.tuning().origin_queue_depth),
        }
    }

    /// Sets the timer for the first held write of a volume.
    pub(super) fn wake_at(&mut self, cx: &mut Cx<'_>, id: VolumeId, at: Time) {
        assert!(at > cx.now, "what is due now is not waited for");
        let flow = &mut self.volume(id).flow;
        if flow.timer.is_none_or(|set| set > at) {
            flow.timer = Some(at);
            cx.out.timer(at, Timer::Flow(id));
        }
    }

    /// The timer of a volume's first held write. One that was set for a later write before an
    /// earlier one came rings in vain.
    pub(super) fn flow_due(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        if volume.flow.timer.is_none_or(|set| set > cx.now) {
            return;
        }
        volume.flow.timer = None;
        if volume.has_waiting() {
            self.look_at_flow(cx, id, 0);
            self.touch(id);
        }
    }

    /// The volume to whose origin a request went, and its blocks if its time tells the latency.
    fn origin_of(&mut self, pending: &Pending) -> Option<(VolumeId, u64)> {
        match *pending {
            // Guests read about as much at once as they write.
            Pending::Fill { fill } => self.reading.fill(fill).origin().map(|id| (id, 1)),
            Pending::OriginRead { read, .. } => Some((self.reading.read(read).volume, 1)),
            Pending::Destage { volume, job } => Some((volume, self.volume(volume).job_blocks(job))),
            Pending::Direct { call } => Some((self.direct.get(call).volume(), 0)),
            _ => pending.volume().map(|id| (id, 0)),
        }
    }

    /// A request has ended; if it went to an origin, its controller hears of it.
    pub(super) fn time_origin(&mut self, now: Time, pending: &Pending, started: Time, ok: bool) {
        if let Some((id, blocks)) = self.origin_of(pending) {
            let blocks = if ok { blocks } else { 0 };
            let volume = self.volume(id);
            volume.flow.origin_done(started, now, blocks);
            let storage = volume.storage();
            if ok && matches!(pending, Pending::Fill { .. } | Pending::OriginRead { .. }) {
                self.turns.read_done(now, storage, now.since(started));
            }
        }
    }

    /// Finds the oldest request of each origin that has not ended.
    pub(super) fn look_at_origins(&mut self, cx: &Cx<'_>) {
        let mut oldest: Vec<Option<Time>> = alloc::vec![None; self.volumes.end().0 as usize];
        for (pending, started) in cx.out.outstanding() {
            if let Some((id, _)) = self.origin_of(pending) {
                let seen = &mut oldest[id.0 as usize];
                *seen = Some(seen.map_or(started, |before| before.min(started)));
            }
        }
        for volume in self.volumes.iter_mut() {
            volume.flow.outstanding(oldest[volume.id().0 as usize]);
        }
    }

    /// Whether the destage of a volume may send its next request while guests read from its
    /// storage; if not, it stands in line.
    pub(super) fn has_place(&mut self, now: Time, id: VolumeId) -> bool {
        let open = self.is_place_free(now, id);
        if !open {
            if self.volume(id).held_pieces() == 0 {
                // It waits for the requests of others: it does not hang.
                self.turns.moved(now, id);
            }
            self.turns.enqueue(id);
        }
        open
    }

    pub(super) fn is_place_free(&mut self, now: Time, id: VolumeId) -> bool {
        let log = self.log.gauge();
        let log_fill = log.live * 1000 / log.capacity.max(1);
        let volume = self.volume(id);
        let (storage, fill) = (volume.storage(), volume.dirty_fill().max(log_fill));
        self.turns.is_open(now, storage, fill)
    }
}
