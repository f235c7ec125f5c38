//! Another file below an image, or none.
//!
//! ```text
//! parts of the disk that are to be the image's own:
//! Wait ─▶ Plan ─▶ (done)
//!
//! the image moves to another file:
//! Wait ─▶ Plan ─▶ Moved ─▶ Empty ─▶ Exchanged ─▶ Claim ─▶ (done)
//!           │       └── the host gives it up ──────▶ Claim ─▶ (as before, until the next start)
//!           └── fails ─────────────────────────────▶ Claim ─▶ (refused)
//! ```
//!
//! First the host compares the disk through the files below the image with the disk through the
//! other ones, and orders the parts that differ to be the image's own, batch by batch; each is a
//! plan ([`super::task`]) that changes nothing of the disk. Then the last plan puts the name of the
//! other file into the header, and the host exchanges the map.
//!
//! Always true: nothing of the volume is dirty and no guest is served from the order of a move to
//! its end. So long the ledger says that all of the log is at the image, and names no files below
//! it: a kill before the journal of the last plan is decided leaves the image on the file before, a
//! kill after it on the other one, for this host or another. Guests are served again when the
//! ledger has been claimed once more. Deliberately absent: which parts differ, and opening files.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Refusal;
use crate::image::Image;
use crate::origin::{Map, Move};
use crate::outbox::Cx;
use crate::snapshot::State;
use crate::types::{RequestId, SECTOR_BYTES, VolumeId};
use crate::volume::ledger::LedgerStep;
use crate::volume::rebase::Step;
use alloc::boxed::Box;

impl Core {
    /// An administrator's order.
    pub(super) fn rebase(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        order: Move,
    ) {
        let failed = self.health.is_failed();
        let plans = self.volume(id).plans();
        let volume = self.volume(id);
        let busy = volume.is_resizing() || volume.is_quiescing() || volume.is_rebasing();
        let size = volume.size_bytes() / SECTOR_BYTES;
        let inside = order.own.iter().all(|it| it.end() <= size);
        let refusal = match volume.state() {
            _ if volume.is_gone() => Some(Refusal::Gone),
            _ if volume.is_read_only() || !volume.owns_image() || !plans => Some(Refusal::Policy),
            _ if !inside => Some(Refusal::OutOfRange),
            _ if volume.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ if busy || volume.is_switching() || volume.has_peers() => Some(Refusal::Busy),
            _ if failed || !volume.is_with_log() => Some(Refusal::CacheFailed),
            _ if volume.is_dirty() || volume.is_between_states() => Some(Refusal::Dirty),
            _ => None,
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        volume.order_rebase(order, request);
    }

    /// Goes on when nothing is in its way any more.
    pub(super) fn rebase_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        self.end_misfit_task(cx, id);
        let Some(step) = self.find(id).and_then(|it| it.rebase_step()) else {
            return;
        };
        let filling = self.reading.is_filling(id);
        if step == Step::Wait {
            // Another policy may have come first, or another image.
            let held = self.volume(id).misfit().is_some();
            let refusal = match self.volume(id).plans() {
                _ if held => Some(Refusal::Held),
                false => Some(Refusal::Policy),
                true => None,
            };
            if let Some(refusal) = refusal {
                return self.refuse_rebase(cx, id, refusal);
            }
        }
        let Some(volume) = self.find(id) else { return };
        let (destages, touched) = (
            volume.is_destaging(),
            volume.has_requests() || volume.has_reads() || filling,
        );
        let serves = volume.is_ready() && !volume.is_detaching();
        if !serves || destages || volume.is_ledger_busy() {
            return;
        }
        match step {
            Step::Wait => {
                let task = volume.plan_rebase();
                self.start_task(id, task);
            }
            Step::Reached => {
                let request = volume.end_rebase_plan();
                cx.out.reply(request, Ok(()));
                self.touch(id);
            }
            Step::Empty if !touched => {
                let request = volume.is_empty_to_move();
                request.into_iter().for_each(|it| cx.out.reply(it, Ok(())));
            }
            Step::Plan | Step::Moved | Step::Empty | Step::Exchanged | Step::Claim => {}
        }
    }

    /// The plan is at the image; its guard is left.
    pub(super) fn rebase_reached(&mut self, id: VolumeId) {
        let (moves, changes) = self.volume(id).rebase_is_reached();
        mark(match moves {
            true => Mark::ImageMoved,
            false => Mark::MadeOwn,
        });
        if moves && changes {
            // A block of which the image has a part alone may be another one.
            self.renew_layer(id);
        }
    }

    /// Its plan was given up: the image is as it was.
    pub(super) fn refuse_rebase(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        match self.volume(id).refuse_rebase(refusal) {
            Some(request) => cx.out.reply(request, Err(refusal)),
            None => {
                mark(Mark::MoveRefused);
                self.claim_again(cx, id);
            }
        }
    }

    /// The host has what is open of the other files.
    pub(super) fn empty_to_move(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        if !self.volume(id).begin_to_move(request) {
            cx.out.reply(request, Err(Refusal::Busy));
        }
    }

    /// The host has exchanged what is open: from now on the image is read through this map.
    pub(super) fn moved(&mut self, id: VolumeId, map: Box<dyn Map>, image: Image) {
        let name = map.tables()[0];
        let volume = self.volume(id);
        volume.image_is_moved(&image);
        if has(Bug::KeepMovedMap) {
            return;
        }
        let before = volume.close_map().expect("it is an image of a format");
        self.maps.close(before);
        let map = self.maps.open(name, map);
        self.volume(id).open_map(map);
    }

    /// The host has exchanged what is open, or has given that up.
    pub(super) fn end_move(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let Some((before, given_up)) = self.volume(id).end_move(request) else {
            return cx.out.reply(request, Err(Refusal::Busy));
        };
        if let Some(order) = before {
            cx.out.reply(order, Err(Refusal::Io));
        }
        if given_up {
            mark(Mark::MoveLeft);
        }
        self.claim_again(cx, id);
    }

    /// The ledger is to say as before that the log may have more than the image.
    fn claim_again(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        self.volume(id).claim_again();
        self.write_ledger(cx, id, LedgerStep::Move);
    }

    /// It says so.
    pub(super) fn move_said(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let (request, answer) = self.volume(id).move_is_told();
        cx.out.reply(request, answer);
        self.open_for_requests(cx, id);
    }
}
