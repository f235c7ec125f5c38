//! The end of an overlay: a reset by command, or at the arrival of the next guest.
//!
//! ```text
//! guest ends in order ─▶ ended (in the next checkpoint) ─▶ next guest arrives ─▶ reset ─▶ let in
//!                                                     └─▶ it has only slept ─▶ not ended ─▶ let in
//! ```
//!
//! Always true: a reset is a new generation, durable before anybody hears of it, and costs the
//! same however much the overlay holds. That a guest has ended is kept in the checkpoint, and goes
//! with the reset that follows it in one step, so a restart in between neither forgets it nor
//! resets twice; that it goes on after all is as durable before it is let in. Whether a guest has
//! ended the host knows: it sees connections. Deliberately absent: what an end is; see the host's
//! connections and its watch over guests.

use super::Core;
use super::checkpoint::Waiter;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Refusal, ResetOn};
use crate::outbox::Cx;
use crate::types::{Policy, RequestId, VolumeId};

impl Core {
    /// Throws an overlay away by command: durable before the reply.
    pub(super) fn reset(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        if volume.policy != Policy::Ephemeral {
            cx.out.reply(request, Err(Refusal::Policy));
            return;
        }
        let gone = !volume.is_attached() || volume.goes();
        let comes = !gone && !volume.is_ready() && !volume.is_committing();
        if comes && !volume.is_dirty() {
            // It has just come, with nothing to throw away: the checkpoint that names it says so.
            self.checkpoint.wait(Waiter::Leave(request));
            return;
        }
        if gone || !volume.is_ready() {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        self.begin_reset(cx, id);
        if has(Bug::AnswerResetEarly) {
            cx.out.reply(request, Ok(()));
            return self.open_for_requests(cx, id);
        }
        let volume = id;
        self.checkpoint.wait(Waiter::Reset { volume, request });
    }

    /// The guest of a volume has ended in order, for the reason given.
    pub(super) fn leave(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        why: ResetOn,
    ) {
        let volume = self.volume(id);
        let counts = volume.policy == Policy::Ephemeral && volume.tuning().reset_on == why;
        if !counts || !volume.is_dirty() {
            cx.out.reply(request, Ok(()));
            return;
        }
        volume.guest_ends();
        self.checkpoint.wait(Waiter::Leave(request));
    }

    /// A guest arrives where none was. The reply lets it in.
    pub(super) fn arrive(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        goes_on: bool,
    ) {
        let volume = self.volume(id);
        if volume.is_detaching() {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        volume.guest_arrives(request, goes_on);
    }

    /// Guests that have arrived find the disk as it has to be, or it is made so first.
    pub(super) fn let_in(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let here = self.find(id).filter(|volume| volume.is_ready());
        let Some(volume) = here.filter(|volume| volume.has_arrivals()) else {
            return;
        };
        // The order to reset may have been taken back meanwhile.
        let goes_on = volume.has_sleeper() && !has(Bug::ResetUnderSleeper);
        if volume.is_to_be_reset() && !goes_on {
            mark(Mark::ResetAtArrival);
            self.begin_reset(cx, id);
            self.checkpoint.wait(Waiter::Renew(id));
            return;
        }
        let ended = volume.take_end();
        for request in volume.take_arrivals() {
            match ended {
                // A checkpoint may say that it had ended; nobody goes on before another does not.
                true => self.checkpoint.wait(Waiter::Leave(request)),
                false => cx.out.reply(request, Ok(())),
            }
        }
    }

    /// Everything the overlay holds is void with the next checkpoint; until it is durable
    /// requests wait.
    pub(super) fn begin_reset(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let generation = self.given.take_generation();
        // A write of which a part lies in what goes cannot be completed.
        if self.volume(id).is_in_part() {
            self.give_up_unfinished(id);
            self.end_given_up(id);
            let half = self.volume(id).take_first_waiting();
            let half = half.expect("a write that has begun waits first");
            cx.out.reply(half.request, Err(Refusal::Io));
        }
        let quota_owner = self.log.open_quota();
        let volume = self.volume(id);
        assert!(
            volume.policy == Policy::Ephemeral && volume.destage().is_none(),
            "only overlays are reset, and none that is being committed"
        );
        volume.close();
        volume.take_end();
        volume.overlay_lies_anew();
        volume.begin_anew(generation);
        volume.recover();
        let old = volume.overlay_begins_anew(quota_owner);
        let epochs = core::mem::take(&mut volume.epochs);
        self.log.close_quota(old);
        assert!(epochs.len() <= 1, "an overlay is one epoch");
        for epoch in epochs {
            self.checkpoint.free_after_checkpoint(epoch.map);
        }
        self.recount(id);
    }
}
