//! Times in which the image of a volume rests: for a copy of it, or to put another file in its
//! place.
//!
//! ```text
//! Drain ─▶ Rest ─▶ (resumed)
//!            │ └──▶ (ended: the log needs its room)
//!            └─▶ Announce ─▶ Announced ─▶ Empty ─▶ Exchanged ─▶ Settle ─▶ (ended by the host)
//! ```
//!
//! *Drain*: what was written before the order goes to the image; of a group all members go to one
//! cut. *Rest*: the guest goes on in the log. *Announce*: the ledger says that another file with
//! the mark of this moment may take the place of the image, so that a start which finds either of
//! the two goes on with it ([`may_succeed`](crate::format::ledger::Ledger::may_succeed)). Then the
//! host makes that file and gives it the name of the image. *Empty*: no request to the image
//! begins, guests wait, and when the last one has ended the host exchanges the files. *Exchanged*:
//! guests go on; what was the image lies below the new one, so what is kept clean of it is kept as
//! a base. *Settle*: the ledger knows the new file.
//!
//! Always true: from *Rest* to the end nothing writes the image, its ledger says *idle*, it has no
//! guard, and no destage of its volume or of a member of its group begins; nothing is exchanged
//! while a request to the image is in flight or a table of it is on its way; from *Announce* on
//! only the host that exchanges can end it, and a volume whose cache device fails waits with its
//! way past the log. Where the log needs room, or its device fails, a rest ends by itself, because
//! a guest that waits for a backup is worse than a backup that has to be made again; who resumes is
//! told so. One that other hosts know of ends by order only (`core::kept_rest`). Deliberately
//! absent: what the host does with the files meanwhile, and volumes that write past the log.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Refusal;
use crate::format::ledger::Progress;
use crate::image::Image;
use crate::origin::Map;
use crate::outbox::{Cx, Timer};
use crate::types::{RequestId, Time, VolumeId};
use crate::volume::ledger::LedgerStep;
use crate::volume::quiesce::{Step, keeps_rest, want_end_of_rest};
use alloc::boxed::Box;

/// Guests do not wait longer than this for requests to an image that has to be exchanged.
const EMPTY_MS_MAX: u64 = 10_000;

impl Core {
    /// An administrator's order: the images of a volume and its group are to rest.
    pub(super) fn quiesce(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        if self.service.is_stopping() {
            return cx.out.reply(request, Err(Refusal::Gone));
        }
        if keeps_rest(self.volume(id)) {
            return cx.out.reply(request, Ok(()));
        }
        let failed = self.health.is_failed();
        let members = self.members(id);
        let mut refusals = members
            .iter()
            .map(|it| self.volume(*it).quiesce_refusal(failed));
        if let Some(refusal) = refusals.find_map(|it| it) {
            return cx.out.reply(request, Err(refusal));
        }
        let cut = self.newest_cut(id);
        for member in &members {
            let volume = self.volume(*member);
            volume.begin_quiesce(cut, (*member == id).then_some(request));
        }
        mark(Mark::Quiesced);
        for member in members {
            self.volume(member).read_bad_again(cx.now);
            self.touch(member);
        }
    }

    /// Whether a volume or a member of its group has something that its image has not.
    pub(super) fn group_owes(&mut self, id: VolumeId) -> bool {
        let members = self.members(id);
        members.iter().any(|it| self.volume(*it).owes())
    }

    /// Whether a volume that stands alone leaves what it has in the log.
    pub(super) fn stays_at_rest(&mut self, id: VolumeId) -> bool {
        let rests = self.volume(id).is_drained() && !has(Bug::DestageAtRest);
        rests && !self.ends_rest(id)
    }

    /// The same of a group whose oldest dirty cut is this.
    pub(super) fn group_stays_at_rest(&mut self, id: VolumeId, oldest: u64) -> bool {
        let members = self.members(id);
        let holds = |it: &VolumeId| {
            let cut = self.volume(*it).quiesce_cut();
            cut.is_some_and(|cut| cut < oldest)
        };
        let rests = members.iter().any(holds) && !has(Bug::DestageAtRest);
        rests && !self.ends_rest(id)
    }

    /// Ends the rest of a volume, and of its group, where their guests would have to wait for it.
    pub(super) fn ends_rest(&mut self, id: VolumeId) -> bool {
        let failed = self.health.is_failed();
        let members = self.members(id);
        let ended = |core: &mut Core, member: &VolumeId| {
            let bypassed = !core.volume(*member).is_with_log();
            failed || bypassed || core.is_room_scarce(*member)
        };
        let rests = |it: &VolumeId| {
            let step = self.volume(*it).quiesce_step();
            step.is_none_or(|step| step == Step::Rest)
        };
        if !members.iter().all(rests) || !members.iter().any(|it| ended(self, it)) {
            return false;
        }
        if keeps_rest(self.volume(id)) {
            want_end_of_rest(self.volume(id));
            return false;
        }
        mark(Mark::RestEnded);
        for member in members {
            self.volume(member).break_rest();
        }
        true
    }

    /// Whether the image of this volume has all that was asked for.
    fn has_reached_rest(&mut self, id: VolumeId) -> bool {
        let members = self.members(id);
        let grouped = self.volume(id).group().is_some();
        let fronts = members
            .iter()
            .filter_map(|it| self.volume(*it).epochs.front().map(|epoch| epoch.cut));
        let oldest = fronts.min().unwrap_or(u64::MAX);
        let volume = self.volume(id);
        let cut = volume.quiesce_cut().unwrap_or(0);
        match grouped {
            true => oldest > cut,
            false => volume.is_drained(),
        }
    }

    /// Something of the volume has ended: goes on with its rest.
    pub(super) fn quiesce_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(step) = self.find(id).and_then(|it| it.quiesce_step()) else {
            return;
        };
        match step {
            Step::Drain => self.begin_rest(cx, id),
            Step::Empty { until } => self.emptied(cx, id, until),
            _ => {}
        }
    }

    fn begin_rest(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let members = self.members(id);
        // One that has joined the group meanwhile rests from its begin on.
        let still = |it: &VolumeId| {
            let volume = self.volume(*it);
            volume.is_still() || !volume.is_quiescing()
        };
        let reached = members.iter().all(still) && self.has_reached_rest(id);
        if !reached && !has(Bug::RestUnfinished) {
            return;
        }
        // Who waits for more than that would wait for the end of the rest.
        self.refuse_group(cx, id, Refusal::Busy);
        for member in members {
            let volume = self.volume(member);
            for order in volume.take_destage_orders() {
                cx.out.reply(order, Err(Refusal::Busy));
            }
            if let Some(order) = volume.begin_rest() {
                cx.out.reply(order, Ok(()));
            }
        }
    }

    /// The image of a volume or of a member of its group cannot be brought to rest.
    pub(super) fn refuse_quiesce(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        for member in self.members(id) {
            if let Some(order) = self.volume(member).refuse_quiesce() {
                cx.out.reply(order, Err(refusal));
            }
        }
    }

    /// A volume goes, and with it what was ordered of its image.
    pub(super) fn forget_quiesce(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if let Some(order) = self.volume(id).forget_quiesce() {
            cx.out.reply(order, Err(Refusal::Gone));
        }
    }

    /// An administrator's order: the images are written again as before. Refused where they have
    /// not come to rest, which is given up.
    pub(super) fn resume(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let step = self.volume(id).quiesce_step();
        let answer = match step {
            _ if self.service.is_stopping() => Err(Refusal::Gone),
            None | Some(Step::Drain) => Err(Refusal::NotQuiesced),
            Some(Step::Rest) => Ok(()),
            Some(_) => Err(Refusal::Busy),
        };
        if !self.service.is_stopping() && matches!(step, Some(Step::Drain | Step::Rest)) {
            self.refuse_quiesce(cx, id, Refusal::NotQuiesced);
            for member in self.members(id) {
                self.volume(member).resume();
                self.touch(member);
            }
        }
        cx.out.reply(request, answer);
    }

    /// Another file is about to take the place of the image.
    pub(super) fn announce_exchange(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let stopping = self.service.is_stopping();
        let volume = self.volume(id);
        let rests = volume.quiesce_step() == Some(Step::Rest);
        let refusal = match volume.ledger() {
            _ if !rests => Refusal::NotQuiesced,
            _ if !volume.is_still() || !volume.is_mapped() => Refusal::Busy,
            Some(ledger) if ledger.progress == Progress::Idle && !stopping => {
                return self.succeed(cx, id, Step::Announce, request);
            }
            _ => Refusal::Busy,
        };
        cx.out.reply(request, Err(refusal));
    }

    /// The host has exchanged the files, or has given it up.
    pub(super) fn end_exchange(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        if self.volume(id).is_moving() && !self.service.is_stopping() {
            return self.end_move(cx, id, request);
        }
        let refusal = match self.volume(id).quiesce_step() {
            // The next start finds either of the two files.
            _ if self.service.is_stopping() => Refusal::Gone,
            None | Some(Step::Drain | Step::Rest) => Refusal::NotQuiesced,
            Some(Step::Announced | Step::Empty { .. } | Step::Exchanged) => {
                if let Some(order) = self.volume(id).take_exchange_order() {
                    cx.out.reply(order, Err(Refusal::Io));
                }
                self.succeed(cx, id, Step::Settle, request);
                return self.open_for_requests(cx, id);
            }
            Some(Step::Announce | Step::Settle) => Refusal::Busy,
        };
        cx.out.reply(request, Err(refusal));
    }

    /// Writes the ledger with or without a successor.
    fn succeed(&mut self, cx: &mut Cx<'_>, id: VolumeId, step: Step, request: RequestId) {
        self.volume(id).tell_exchange(step, request);
        self.write_ledger(cx, id, LedgerStep::Exchange);
    }

    /// The ledger says so.
    pub(super) fn exchange_said(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        if let Some(order) = self.volume(id).exchange_is_told() {
            cx.out.reply(order, Ok(()));
        }
    }

    /// The new file is there: the host wants to exchange what is open.
    pub(super) fn empty_for_exchange(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let until = cx.now.plus_millis(EMPTY_MS_MAX);
        if self.service.is_stopping() {
            return cx.out.reply(request, Err(Refusal::Gone));
        }
        if self.volume(id).is_moving() {
            return self.empty_to_move(cx, id, request);
        }
        if !self.volume(id).begin_to_empty(until, request) {
            return cx.out.reply(request, Err(Refusal::NotQuiesced));
        }
        cx.out.timer(until, Timer::Housekeeping);
    }

    /// Nothing of the image is on its way, or something is for too long.
    fn emptied(&mut self, cx: &mut Cx<'_>, id: VolumeId, until: Time) {
        // One that is asked for again lies where the files before had it.
        let filling = self.reading.is_filling(id);
        let stopping = self.service.is_stopping();
        let volume = self.volume(id);
        let busy = filling || volume.has_requests() || volume.has_reads();
        let busy = busy && !has(Bug::ExchangeUnderReads);
        if busy && cx.now < until && !stopping {
            return;
        }
        let Some(order) = volume.take_exchange_order() else {
            return;
        };
        if !busy && !stopping {
            return cx.out.reply(order, Ok(()));
        }
        volume.stay_announced();
        cx.out.reply(order, Err(Refusal::Io));
        if !stopping {
            self.open_for_requests(cx, id);
        }
    }

    /// The host has exchanged the files of a volume that is [empty](Self::empty_for_exchange):
    /// the one below the first of the new map is what was the image, if that does not move.
    pub fn exchange(&mut self, cx: &mut Cx<'_>, id: VolumeId, mut map: Box<dyn Map>, image: Image) {
        let written = map.planner().is_some();
        assert!(
            map.tables().len() == map.layers().len() + 1,
            "one name for each file, and one layer for each below"
        );
        if self.volume(id).is_moving() {
            return self.moved(id, map, image);
        }
        let (name, below) = (map.tables()[0], map.layers()[0]);
        let own = self.given.take_layer();
        let volume = self.volume(id);
        assert!(written && volume.holds_for_exchange(), "the host was told");
        assert!(!volume.is_destaging(), "the image has rested all the time");
        let old = volume.change_layer(own);
        volume.sees_written(&image);
        volume.image_is_exchanged();
        volume.written_ledger().sees_image(&image);
        let before = volume.close_map().expect("it is an image of a format");
        self.maps.close(before);
        let map = self.maps.open(name, map);
        self.volume(id).open_map(map);
        if let Some(base) = self.lines.promote(&mut self.ram, old, below) {
            self.reading.fills().for_each(|fill| fill.rename(old, base));
        }
        self.open_for_requests(cx, id);
    }
}
