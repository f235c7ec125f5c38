//! Commit: an overlay becomes the content of its image.
//!
//! ```text
//! Claim ─▶ Journal ─▶ (ledger says apply: decided) ─▶ Apply ─▶ Finish ─▶ reset ─▶ cut journal
//!             └─ fails ─▶ (as before)
//! ```
//!
//! The whole overlay goes through one redo journal beside the image, by the machine of a destage.
//! An image that is not raw gets a plan, and *Journal* writes what nothing in the file refers to.
//! So the word of the ledger is the one moment that decides: before it the image has the content
//! that it had, and the overlay has its usual fate; after it whoever opens the image next finishes
//! the journal, this daemon or another, with or without this cache. The first design made the
//! volume write-back for a while; then the overlay had to be written to the log once more before
//! anything of it was safe, and a power loss in between left a volume that its file calls
//! ephemeral and that owes its image.
//!
//! Always true: nobody is served meanwhile; the host holds the image alone, opened for writing,
//! and gives it back when the reply has come. The reset that follows voids the overlay durably
//! before the reply; one that a kill prevents is made up for when the volume is attached again,
//! because the ledger tells which serials the image has. Deliberately absent: in-place commits,
//! which a crash would leave in the middle.

use super::Core;
use super::checkpoint::Waiter;
use crate::adversary::{Mark, mark};
use crate::event::{Device, Op, Purpose, Refusal};
use crate::outbox::{Cx, Pending};
use crate::snapshot::State;
use crate::types::{DestageMode, RequestId, VolumeId};
use crate::volume::ledger::LedgerStep;

impl Core {
    /// An administrator's order, for a volume that was attached to be committed.
    pub(super) fn commit(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        let able = volume.may_commit() && volume.effective_destage() == DestageMode::Atomic;
        let refusal = match volume.state() {
            _ if !able => Some(Refusal::Policy),
            _ if volume.is_detaching() || volume.is_committing() => Some(Refusal::Gone),
            _ if volume.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ => None,
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        volume.order_commit(request);
    }

    /// The volume is there for nobody but the commit.
    pub(super) fn begin_commit(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        // The guard of an image that is not raw is cleared first.
        let waits = volume.is_ready() && volume.is_committing();
        let busy = volume.is_replaying() || volume.is_ledger_busy();
        if !waits || busy {
            return;
        }
        assert!(volume.epochs.len() <= 1, "an overlay is one epoch");
        assert!(!volume.is_in_part(), "no write is staged in part");
        assert!(
            !volume.has_reads() && !volume.has_waiting(),
            "nobody is served by a volume that is committed"
        );
        assert!(
            !volume.is_mapped() || volume.image_under().is_unknown(),
            "a plan changes what the overlay lies on"
        );
        if !volume.is_dirty() {
            return self.end_commit(cx, id, Ok(()));
        }
        volume.close();
        // The clock over there is read off the ledger.
        self.write_ledger(cx, id, LedgerStep::Claim);
    }

    /// The ledger is there. False if it was not a commit that wanted to know.
    pub(super) fn commit_claimed(&mut self, id: VolumeId) -> bool {
        let volume = self.volume(id);
        if !volume.is_committing() {
            return false;
        }
        self.destage_overlay(id);
        true
    }

    /// A commit that fails before it is decided is given up: there may be no room for its journal.
    pub(super) fn give_up_commit(&mut self, cx: &mut Cx<'_>, id: VolumeId, why: Refusal) {
        let volume = self.volume(id);
        assert!(volume.is_committing(), "checked by the caller");
        let destage = volume.drop_destage();
        assert!(
            destage.is_some_and(|it| it.is_idle() && !it.applies()),
            "nothing of the image refers to what was written"
        );
        let epoch = volume.epochs.front_mut().expect("it was being destaged");
        epoch.sealed = false;
        volume.recover_if_stalled();
        self.end_commit(cx, id, Err(why));
    }

    /// The ledger says that the image has it all: now the overlay goes. Or it says that nothing is
    /// pending beside an image that is not raw, and the commit begins.
    pub(super) fn commit_destaged(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        // One that has not begun waited for the guard of its image.
        if !volume.is_committing() || volume.is_ready() {
            return;
        }
        mark(Mark::Committed);
        assert!(!volume.is_dirty(), "all of it was destaged");
        self.begin_reset(cx, id);
        self.checkpoint.wait(Waiter::Commit(id));
    }

    /// The reset is durable; the journal has had its day.
    pub(super) fn commit_reset(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        assert!(
            self.find(id).is_some_and(|it| it.is_committing()),
            "a volume stays while it is committed"
        );
        let pending = Pending::CutJournal { volume: id };
        let device = Device::Journal(id);
        cx.order(pending, Purpose::Ledger, device, Op::Remove, 0, 0);
    }

    /// A journal that could not be cut only takes room.
    pub(super) fn journal_cut(&mut self, cx: &mut Cx<'_>, id: VolumeId, ok: bool) {
        if !ok {
            self.volume(id).counters.origin.errors += 1;
        }
        self.end_commit(cx, id, Ok(()));
    }

    fn end_commit(&mut self, cx: &mut Cx<'_>, id: VolumeId, result: Result<(), Refusal>) {
        let request = self.volume(id).take_commit();
        let request = request.expect("a commit is under way");
        cx.out.reply(request, result);
        self.open_for_requests(cx, id);
    }

    /// Lets go of a volume's files and keeps what the log has of it. One that writes its image owes
    /// it nothing by then, and its ledger says so.
    pub(super) fn suspend(&mut self, cx: &mut Cx<'_>, id: VolumeId, request: RequestId) {
        let volume = self.volume(id);
        let free = volume.is_attached()
            && !volume.is_detaching()
            && !volume.is_committing()
            && !volume.is_suspending();
        if !free {
            cx.out.reply(request, Err(Refusal::Gone));
            return;
        }
        if volume.prove_order().is_some() {
            // Its files are exchanged in a moment.
            cx.out.reply(request, Err(Refusal::Busy));
            return;
        }
        if volume.owes_when_suspended() {
            cx.out.reply(request, Err(Refusal::Dirty));
            return;
        }
        volume.begin_suspend(request);
    }

    /// Goes on with that when nothing of the volume is in flight any more.
    pub(super) fn suspend_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let failed = self.health.is_failed();
        let Some(volume) = self.find(id) else { return };
        if volume.is_suspending() && volume.misfit().is_some() {
            self.abandon_destage(id);
        }
        let volume = self.volume(id);
        // A write that has begun ends by itself, unless the device fails.
        let begun = volume.is_in_part() && !failed;
        let busy = begun
            || volume.has_requests()
            || volume.has_reads()
            || volume.is_destaging()
            || volume.is_ledger_busy();
        if !volume.is_suspending() || busy {
            return;
        }
        if volume.owes_when_suspended() {
            let request = volume.give_up_suspend();
            cx.out.reply(request, Err(Refusal::Dirty));
            return;
        }
        if !self.volume(id).said_clean() {
            return;
        }
        self.give_up_unfinished(id);
        self.end_given_up(id);
        self.stop_peers(cx, id);
        self.forget_quiesce(cx, id);
        let volume = self.volume(id);
        volume.leave_ledger();
        let map = volume.close_map();
        let left = volume.take_waiting().into_iter();
        let left = left.map(|waiting| waiting.request);
        let arrivals = volume.take_arrivals();
        let request = volume.let_go();
        for request in left.chain(arrivals) {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        cx.out.reply(request, Ok(()));
        if let Some(map) = map {
            self.maps.close(map);
        }
        self.count_writers();
    }
}
