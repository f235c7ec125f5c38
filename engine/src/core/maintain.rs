//! What is done after each event: the one ordered list of the shard.
//!
//! Always true: a step is cheap when it has nothing to do. Deliberately absent: what a step does.

use super::Core;
use crate::outbox::{Cx, Timer};
use crate::types::VolumeId;

/// How often ages, limits and failures are looked at while there is something to look at.
const HOUSEKEEPING_MS: u64 = 100;
/// Of the volumes with waiting requests, so many are tried after each event, in turn; thousands may
/// wait for the same. Housekeeping tries all of them.
const TURNS_PER_EVENT: usize = 32;

impl Core {
    /// Runs after each event. Each step is cheap when it has nothing to do.
    pub(super) fn maintain(&mut self, cx: &mut Cx<'_>) {
        self.continue_reads(cx);
        self.retry_waiting(cx, TURNS_PER_EVENT);
        self.pump_allocations(cx);
        self.give_destage_turns(cx);
        self.log.pump_writes(cx);
        self.log.pump_space(cx, &mut self.scratch);
        self.fetches.pump(cx, &self.log, &mut self.scratch);
        self.pump_evacuation(cx);
        self.pump_lines(cx);
        self.pump_scrub(cx);
        self.do_without_checkpoint(cx);
        self.pump_checkpoint(cx);
        self.sweep();
        self.pump_park(cx);
        // What is in flight may never end; then its age is to be known.
        let waits = cx.out.in_flight() > 0;
        if !cx.out.keeps_house() && (waits || self.has_chores()) {
            cx.out
                .timer(cx.now.plus_millis(HOUSEKEEPING_MS), Timer::Housekeeping);
        }
    }

    /// Whether time alone may bring something to do.
    fn has_chores(&self) -> bool {
        self.dirty_extents > 0
            || !self.held_fills.is_empty()
            || !self.held_reads.is_empty()
            || !self.deferred_free.is_empty()
            || !self.queue.is_empty()
            || !self.allocating.is_empty()
            || self.evacuation.is_some()
            || self.volumes.iter().flatten().any(|v| {
                // A request for an order that has failed is made again after a while.
                let ordered = v.switch.is_some() || v.resize.is_some();
                ordered || v.holds_for_exchange() || v.ledger_failed() || v.is_destaging()
            })
            || self.log.is_low()
            || self.health.has_chores()
            || self.parking.is_some()
            || self.checkpoint.is_due()
            || self.log.is_backing_off()
            || self.lines.has_chores()
    }

    pub(super) fn keep_house(&mut self, cx: &mut Cx<'_>) {
        self.log.retry_footers();
        self.retry_held_reads(cx);
        if self.log.is_low() && self.log.has_dead() {
            self.log.want_sync();
            self.checkpoint.wanted |= self.log.freeable() > 0;
        }
        self.look_at_cache(cx);
        self.look_at_origins(cx);
        self.windows.look(cx.now);
        self.retry_bad_reads(cx);
        #[cfg(feature = "adversary")]
        {
            self.check_counts();
            self.check_volumes();
        }
        for at in 0..self.volumes.len() {
            let id = VolumeId(at as u32);
            if self.volumes[at].is_none() {
                continue;
            }
            self.retry_ledger(cx, id);
            self.resize_progress(cx, id);
            self.quiesce_progress(cx, id);
            let volume = self.volume(id);
            // The gauges of a volume compare it with all others: not for nothing.
            if volume.is_dirty() || volume.flow.is_pressing() || !volume.waiting.is_empty() {
                self.look_at_flow(cx, id, 0);
            }
            self.time_out_waiting(cx, id);
            self.start_destage_if_due(cx, id);
            self.pump_destage(cx, id);
            self.pump_switch(cx, id);
            let volume = self.volume(id);
            if !volume.waiting.is_empty() && !volume.queued {
                volume.queued = true;
                self.queue.push_back(id);
            }
        }
        self.retry_waiting(cx, usize::MAX);
    }
}
