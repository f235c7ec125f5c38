//! What is done after each event: the one ordered list of the shard, and in it the one of a volume.
//!
//! ```text
//! shard:  held reads ─▶ touched volumes ─▶ waiting requests ─▶ plans of direct writes ─▶ log
//!         ─▶ fetches ─▶ evacuation, clean blocks, scrub ─▶ orderly stop ─▶ checkpoint ─▶ sweep
//! volume: destage ─▶ switch ─▶ group ─▶ bypass ─▶ move, size, rest ─▶ guests let in ─▶ commit
//!         ─▶ suspend ─▶ release ─▶ detach ─▶ epochs join ─▶ turn given back ─▶ requests queued
//! ```
//!
//! No step is called by hand. What changes something marks its volume with [`Core::touch`]; the end
//! of a request, an order and a timer do so by themselves in `apply`. Each step looks whether it
//! has something to do, and all of them are asked. A step that changes what an earlier one looks at
//! touches the volume, and the list runs once more, until nothing is touched.
//!
//! Why this order. What writes the image comes first, because all else of a volume waits for its
//! end. A switch, a group and a bypass come before the orders that want the image alone, because
//! these decide what is still written. Guests are let in before a commit begins, which wants none.
//! Who goes comes last, so that all that can end has ended. Of the shard the volumes come first:
//! what they ask of the log, of fetches and of checkpoints goes out in the same event. Before each
//! volume those in line for memory or for a turn at a storage are asked, so that a volume whose
//! request has just ended does not overtake them.
//!
//! Always true: after an `apply` nothing is touched, unless a step touched its own volume again and
//! again; then the rest is done with the next event, and a test build stops. Deliberately absent:
//! what a step does.

use super::{Core, evacuate, recall};
use crate::outbox::{Cx, Timer};
use crate::types::VolumeId;

/// How often the list of a volume runs in one event before that counts as endless: far more often
/// than the longest way of an order through all its steps needs.
const ROUNDS_MAX: usize = 64;
/// How often ages, limits and failures are looked at while there is something to look at.
const HOUSEKEEPING_MS: u64 = 100;
/// Of the volumes with waiting requests, so many are tried after each event, in turn; thousands may
/// wait for the same. Housekeeping tries all of them.
const TURNS_PER_EVENT: usize = 32;

impl Core {
    /// The list of the shard, after each event. Each step is cheap when it has nothing to do.
    pub(super) fn maintain(&mut self, cx: &mut Cx<'_>) {
        let mut rounds = ROUNDS_MAX;
        loop {
            self.touched.begin();
            if self.touched.take_held_reads() {
                self.retry_held_reads(cx);
            }
            self.continue_reads(cx);
            match self.touched.is_marked() {
                true => self.maintain_volumes(cx, &mut rounds),
                false => self.give_destage_turns(cx),
            }
            let all = self.touched.take_waiting_requests();
            self.retry_waiting(cx, if all { usize::MAX } else { TURNS_PER_EVENT });
            self.pump_inboxes(cx);
            self.pump_joins();
            self.pump_allocations(cx);
            self.log.pump_writes(cx);
            self.log.pump_space(cx, &mut self.scratch);
            self.fetches.pump(cx, &self.log, &mut self.scratch);
            self.pump_evacuation(cx);
            self.pump_lines(cx);
            self.pump_scrub(cx);
            self.do_without_checkpoint(cx);
            self.pump_park(cx);
            self.pump_checkpoint(cx);
            self.extents.sweep(&mut self.log);
            // A guest's request that is taken at once touches nothing.
            if !self.touched.is_marked() || self.touched.is_over() || rounds == 0 {
                break;
            }
            rounds -= 1;
        }
        recall::pump(self, cx);
        self.pump_peers(cx);
        // What is in flight may never end; then its age is to be known.
        let waits = cx.out.in_flight() > 0;
        if !cx.out.keeps_house() && (waits || self.has_chores()) {
            cx.out
                .timer(cx.now.plus_millis(HOUSEKEEPING_MS), Timer::Housekeeping);
        }
    }

    /// Runs the list of each touched volume, until none is.
    fn maintain_volumes(&mut self, cx: &mut Cx<'_>, rounds: &mut usize) {
        let mut left = 0;
        loop {
            for _ in 0..self.touched.take_places() {
                self.give_destage_memory(cx);
            }
            self.give_destage_turns(cx);
            if left == 0 {
                left = self.touched.len();
                if left == 0 || *rounds == 0 {
                    break;
                }
                *rounds -= 1;
            }
            left -= 1;
            if let Some(id) = self.touched.next() {
                self.maintain_volume(cx, id);
            }
        }
        #[cfg(feature = "adversary")]
        assert_eq!(
            self.touched.len(),
            0,
            "a step that changes nothing touches nothing"
        );
    }

    /// The list of a volume, in the order that the head of this file gives reasons for.
    fn maintain_volume(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        self.start_destage_if_due(cx, id);
        self.write_image(cx, id);
        self.pump_switch(cx, id);
        self.group_progress(cx, id);
        self.pump_bypass(cx, id);
        self.rebase_progress(cx, id);
        self.resize_progress(cx, id);
        self.quiesce_progress(cx, id);
        self.let_in(cx, id);
        self.begin_commit(cx, id);
        self.suspend_progress(cx, id);
        self.prove_progress(cx, id);
        self.release_if_clean(cx, id);
        self.replica_progress(cx, id);
        self.detach_progress(cx, id);
        self.begin_join(id);
        self.give_turn_back(id);
        self.enqueue_if_waiting(id);
        // Its epochs, or what the origin has of them, may be others.
        self.replicas.mark(id);
    }

    /// Takes what is on its way to the image as far as it goes without waiting.
    fn write_image(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        self.pump_replay(cx, id);
        self.pump_destage(cx, id);
    }

    /// Who writes nothing has no turn at its storage.
    fn give_turn_back(&mut self, id: VolumeId) {
        let idle = self.find(id).is_some_and(|it| !it.is_destaging());
        if idle {
            self.turns.rest_if_busy(id);
        }
    }

    /// Requests of the volume that wait may have what they wait for.
    fn enqueue_if_waiting(&mut self, id: VolumeId) {
        if self.find(id).is_some_and(|it| it.has_waiting()) {
            self.enqueue(id);
        }
    }

    /// Moves what lives in a segment, so that the segment can die.
    fn pump_evacuation(&mut self, cx: &mut Cx<'_>) {
        if self.evacuation.begin(cx, &mut self.log, &mut self.scratch) {
            self.drop_queues();
        }
        let parts = evacuate::Parts {
            volumes: &mut self.volumes,
            log: &mut self.log,
            scratch: &mut self.scratch,
            fetches: &mut self.fetches,
            swept: self.extents.is_swept(),
        };
        let moved = self.evacuation.pump(cx, parts);
        self.extents.grow(moved.extents_grown);
        for id in moved.volumes {
            self.recount(id);
        }
    }

    /// Gives back segments of clean blocks that are needed otherwise, and writes what waits.
    fn pump_lines(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..self.lines.sweep(&self.log) {
            let mut retired = self.lines.retire(cx.now, &mut self.log);
            while let Some(again) = self.lines.reappend(cx.now, &mut self.ram, &mut retired) {
                for part in again {
                    self.read_again(cx, part.layer, part.blocks, part.base);
                }
            }
        }
        if self.log.bury_retired() {
            self.checkpoint.wanted = true;
        }
        let parts = (&mut self.ram, &mut self.log, &mut self.scratch);
        self.lines.write(cx, parts, self.service.is_parking());
    }

    fn pump_scrub(&mut self, cx: &mut Cx<'_>) {
        let (scrub, sources, state) = self.of_scrub();
        scrub.pump(cx, sources, state);
    }

    /// Something of a volume has changed: its list runs in this event.
    pub(super) fn touch(&mut self, id: VolumeId) {
        self.touched.volume(id);
    }

    /// A request has ended that matters only to an order, or to requests that wait.
    pub(super) fn touch_if_awaited(&mut self, id: VolumeId) {
        let parks = self.service.is_parking();
        if self.find(id).is_some_and(|it| parks || it.is_awaited()) {
            self.touch(id);
        }
    }

    pub(super) fn touch_all(&mut self) {
        for volume in self.volumes.iter() {
            self.touched.volume(volume.id());
        }
    }

    /// Memory was given back, and a place at a storage: the volumes in line try in turn, until one
    /// has got some.
    fn give_destage_memory(&mut self, cx: &mut Cx<'_>) {
        for _ in 0..self.turns.queue_len() {
            let Some(id) = self.turns.dequeue() else {
                return;
            };
            let held = self.volume(id).held_pieces();
            if !self.scratch.may_take_destage_piece(held) || !self.is_place_free(cx.now, id) {
                self.turns.enqueue(id);
                continue;
            }
            let taken = self.scratch.destage_pieces();
            self.write_image(cx, id);
            if self.scratch.destage_pieces() > taken {
                return;
            }
        }
    }

    /// A round of turns has begun, or a volume has left it: all in line try.
    fn give_destage_turns(&mut self, cx: &mut Cx<'_>) {
        // Where memory is short, who gives some back calls the next.
        while self.scratch.may_take_destage_piece(0) && self.turns.take_opened() {
            for _ in 0..self.turns.queue_len() {
                let Some(id) = self.turns.dequeue() else {
                    break;
                };
                match self.is_place_free(cx.now, id) {
                    true => self.write_image(cx, id),
                    false => self.turns.enqueue(id),
                }
            }
        }
    }

    /// Whether time alone may bring something to do.
    fn has_chores(&self) -> bool {
        self.extents.count() > 0
            || self.touched.is_marked()
            || self.reading.has_held()
            || !self.extents.is_swept()
            || self.touched.tries() > 0
            || self.direct.is_allocating()
            || !self.replicas.taking.is_empty()
            || !self.replicas.joining.is_empty()
            || self.replicas.recalls.has_chores()
            || self.waits_for_room_of_peers()
            || self.evacuation.is_running()
            || self.volumes.iter().any(|v| {
                // A request for an order that has failed is made again after a while.
                let ordered = v.is_switching() || v.is_resizing();
                ordered || v.holds_for_exchange() || v.ledger_failed() || v.is_destaging()
            })
            || self.log.is_low()
            || self.health.has_chores()
            || self.service.is_parking()
            || self.checkpoint.is_due()
            || self.log.is_backing_off()
            || self.lines.has_chores()
    }

    pub(super) fn keep_house(&mut self, cx: &mut Cx<'_>) {
        self.log.retry_footers();
        self.touched.held_reads();
        if self.log.is_low() && self.log.has_dead() {
            self.log.want_sync();
            self.checkpoint.wanted |= self.log.freeable() > 0;
        }
        self.look_at_cache(cx);
        self.look_at_origins(cx);
        self.turns.look(cx.now);
        self.lines.forget_old(cx.now);
        self.retry_bad_reads(cx);
        self.ask_peers_for_room();
        self.move_joins(super::join::EXTENTS_PER_LOOK);
        #[cfg(feature = "adversary")]
        {
            let budgets = self.budgets();
            self.shares.check(&mut self.volumes, budgets);
            self.check_volumes();
        }
        for id in self.volumes.ids() {
            if self.volumes.get(id).is_none() {
                continue;
            }
            self.retry_ledger(cx, id);
            let volume = self.volume(id);
            // The gauges of a volume compare it with all others: not for nothing.
            if volume.is_dirty() || volume.flow.is_pressing() || volume.has_waiting() {
                self.look_at_flow(cx, id, 0);
            }
            self.time_out_waiting(cx, id);
            self.touch(id);
        }
        self.touched.waiting_requests();
    }
}
