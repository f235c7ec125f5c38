//! Looks at the images of volumes, and volumes that are held because theirs does not fit.
//!
//! ```text
//! look ─▶ fits ────────────────▶ (as before, or goes on)
//!   │ └─▶ a base was changed ──▶ a new layer
//!   └───▶ misfits ─▶ held ─▶ (looks go on) ─▶ fits ─▶ goes on
//! ```
//!
//! Always true: while a volume is held for its image no request to that image begins, guests
//! wait, a destage stays where it is and is not called ended; whoever waits for a destage is
//! refused. An image that a map describes and that is only read is held for any change, because
//! the tables that the map has seen may be others now. One look of a volume is under way at a
//! time; who asks meanwhile waits for that.
//! Deliberately absent: what the image is compared by ([`crate::image`]).

use super::Core;
use crate::adversary::{Bug, has};
use crate::event::{Device, Op, Purpose, Refusal, Stat};
use crate::format::ledger::{Ledger, Progress};
use crate::image::{Finding, Image, Marked, Named, compare};
use crate::outbox::{Cx, Pending};
use crate::types::{RequestId, SECTOR_BYTES, VolumeId};

/// Whether an image is the one that the ledger saw last.
pub fn of_ledger(ledger: &Ledger, image: &Image) -> Finding {
    let mut known = ledger.image;
    if known.is_unknown() || image.is_unknown() {
        return Finding::Same;
    }
    let succeeds = image.marked == Marked::By(ledger.successor());
    if ledger.may_succeed && succeeds && !has(Bug::RefuseSuccessor) {
        return Finding::Same;
    }
    // A size may change by order without a word of the ledger.
    if known.size_bytes != image.size_bytes || ledger.progress != Progress::Idle {
        known = known.written();
    }
    known.size_bytes = image.size_bytes;
    if !is_of_moment(ledger, image.marked) {
        return Finding::OtherMoment;
    }
    let late = ledger.progress != Progress::Idle && image.mtime_ns > ledger.mtime_limit_ns;
    match compare(&known, Some(image), Named::Unknown) {
        Finding::Same if late => Finding::ChangedInPlace,
        found => found,
    }
}

/// Whether an image with this mark is the one that the ledger saw last, or what the destage has
/// made of it that was under way. What has no mark is judged by the rest.
fn is_of_moment(ledger: &Ledger, now: Marked) -> bool {
    let (Marked::By(before), Marked::By(now)) = (ledger.image.marked, now.of(ledger.volume)) else {
        return true;
    };
    let most = match ledger.progress {
        Progress::Idle => return now == before,
        Progress::Prepare => ledger.destaged,
        Progress::Cut(upto) | Progress::Apply { upto, .. } => upto.max(ledger.destaged),
    };
    let later = before.generation != now.generation || before.serial <= now.serial;
    let written = now.generation == ledger.generation && later && now.serial <= most;
    now == before || written
}

impl Core {
    /// The host wants to know whether the image of a volume still fits.
    pub(super) fn look_command(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        let goes = volume.goes();
        let moved = volume.is_exchanging() && !volume.plans_move();
        if !volume.is_attached() || goes || moved {
            cx.out.reply(request, Ok(()));
            return;
        }
        if !volume.begin_look(request) {
            return;
        }
        volume.request_begins();
        let pending = Pending::LookAtImage { volume: id };
        cx.order(pending, Purpose::Ledger, Device::Origin(id), Op::Stat, 0, 0);
    }

    pub(super) fn image_seen(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: Option<Stat>) {
        let waiters = self.volume(id).look_has_ended();
        if let Some(stat) = stat {
            self.judge_image(cx, id, &stat);
        }
        let held = self.volume(id).misfit().is_some();
        let result = if held { Err(Refusal::Held) } else { Ok(()) };
        for request in waiters {
            cx.out.reply(request, result);
        }
    }

    /// Holds a volume whose image does not fit, and lets one go on whose image fits again. False
    /// if it is held.
    pub(super) fn judge_image(&mut self, cx: &mut Cx<'_>, id: VolumeId, stat: &Stat) -> bool {
        let volume = self.volume(id);
        let mut known = volume.seen_image();
        if known.is_unknown() {
            return volume.misfit().is_none();
        }
        let writes = volume.writes_image();
        if writes {
            // It has all of the volume, whatever else it has. Its time is our own doing.
            // One that allocates grows as it is written, and is never shorter. Another one may end
            // in the middle of a sector until that is written.
            let odd = known.size_bytes.next_multiple_of(SECTOR_BYTES) == volume.size_bytes();
            if !volume.is_mapped() && !odd {
                known.size_bytes = volume.size_bytes();
            }
            let now = stat.image.map_or(0, |image| image.size_bytes);
            if !volume.is_mapped() && known.size_bytes < now {
                volume.image_has_grown(now);
            }
            known = known.written();
        }
        let found = compare(&known, stat.image.as_ref(), stat.named);
        // The tables that a map has seen say nothing of an image that was written since.
        let mapped = volume.is_mapped() && !writes && found != Finding::Same;
        match found {
            Finding::Away => return volume.misfit().is_none(),
            _ if found.is_misfit() || mapped => self.hold_for_image(cx, id, found),
            Finding::Grown | Finding::ChangedInPlace if !writes => {
                self.base_changed(id, stat.image);
                self.go_on_with_image(cx, id);
            }
            _ => self.go_on_with_image(cx, id),
        }
        self.volume(id).misfit().is_none()
    }

    fn hold_for_image(&mut self, cx: &mut Cx<'_>, id: VolumeId, found: Finding) {
        let volume = self.volume(id);
        let begins = volume.image_misfits(found);
        // What was written of an epoch may be cut off: all of it is written again.
        let cut = found == Finding::Shrunk;
        if !has(Bug::GoOnBehindMisfit) {
            volume.destage_again_behind_misfit(cut);
        }
        volume.write_replay_again();
        // What was read of it before anybody looked may be zeroes, whatever its time says later.
        if begins && found == Finding::Shrunk && !has(Bug::KeepCutShort) {
            self.take_new_layer(id);
        }
        let volume = self.volume(id);
        for request in volume.take_destage_orders() {
            cx.out.reply(request, Err(Refusal::Held));
        }
        self.refuse_quiesce(cx, id, Refusal::Held);
        self.turns.rest(id);
    }

    /// Another host has the image from now on, whatever is seen of it. Nothing is written to it,
    /// and the volume is let go of; what is dirty stays in the log.
    pub(super) fn depose(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        if volume.is_gone() {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        if let Some(order) = volume.drop_proof() {
            cx.out.reply(order, Err(Refusal::Gone));
        }
        self.hold_for_image(cx, id, Finding::Deposed);
        self.forget_quiesce(cx, id);
        let volume = self.volume(id);
        assert!(volume.misfit() == Some(Finding::Deposed) || volume.lies_on_another());
        volume.begin_suspend(request);
    }

    /// The image fits: what waited goes on.
    fn go_on_with_image(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if self.volume(id).image_fits() {
            self.open_for_requests(cx, id);
        }
    }

    /// Somebody writes an image that volumes only read: nothing that is kept of it counts.
    fn base_changed(&mut self, id: VolumeId, image: Option<Image>) {
        self.volume(id).base_changes(image);
        if !has(Bug::KeepChangedBase) {
            self.take_new_layer(id);
        }
    }

    /// Nothing that is kept of an image counts for this volume any more, of a base either.
    fn take_new_layer(&mut self, id: VolumeId) {
        let layer = self.given.take_layer();
        let old = self.volume(id).change_layer(layer);
        self.lines.forget_layer(old);
    }
}
