//! Destages that bring no epoch: what an order changes of an image that allocates.
//!
//! ```text
//! order ─▶ task ─▶ plan ─▶ journal ─▶ guard ─▶ (ledger says apply) ─▶ replay ─▶ idle
//!            └── fails before that ─▶ refused
//! ```
//!
//! Always true: a task goes the way of every plan, with the volume's last destaged write as its
//! mark; one of a volume is under way at a time, and no destage of an epoch beside it; before its
//! journal is decided it is given up with its order, afterwards it goes to its end. Deliberately
//! absent: what a plan decides ([`Planner`](crate::origin::Planner)), and the orders
//! ([`super::grow`], [`super::rebase`]).

use super::Core;
use crate::event::Refusal;
use crate::outbox::Cx;
use crate::types::{Time, VolumeId};
use crate::volume::Destage;
use crate::volume::batch::{Task, journal_room};
use crate::volume::destage::Phase;

impl Destage {
    /// It has failed before the ledger said *apply*, and nothing of it is under way: one that an
    /// order waits for can be given up.
    pub(super) fn is_in_vain(&self) -> bool {
        // A phase starts again, requests have failed again and again, or there is no room for them.
        let failed = self.retry_at > Time(0) || self.resend.is_hopeless();
        let in_step = matches!(self.phase, Phase::Prepare | Phase::Begin);
        failed && self.is_idle() && !in_step && !self.applying
    }

    pub(super) fn why_in_vain(&self) -> Refusal {
        match self.full {
            true => Refusal::OriginFull,
            false => Refusal::Io,
        }
    }
}

impl Core {
    pub(super) fn start_task(&mut self, id: VolumeId, task: Task) {
        let (piece_bytes, cluster_bytes) = (self.scratch.piece_bytes(), self.planned_cluster(id));
        let room = journal_room(&task.map, piece_bytes, cluster_bytes);
        let volume = self.volume(id);
        let sequence = volume.ledger().map_or(0, |it| it.sequence);
        // It brings no write to the image.
        let destage = Destage::new(Phase::Look, volume.destaged(), sequence, room);
        let task = Some(task);
        volume.begin_destage(Destage { task, ..destage });
        self.touch(id);
    }

    /// The plan is at the image.
    pub(super) fn task_reached(&mut self, id: VolumeId) {
        // One that goes was left without its order.
        if self.volume(id).is_resizing() {
            self.volume(id).room_made();
        }
        if self.volume(id).is_rebasing() {
            self.rebase_reached(id);
        }
    }

    /// The image does not fit any more: what is not decided is given up, because nothing tells when
    /// it will.
    pub(super) fn end_misfit_task(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id).filter(|it| it.misfit().is_some()) else {
            return;
        };
        let early = volume.destage().is_some_and(|it| {
            let in_step = matches!(it.phase, Phase::Prepare | Phase::Begin);
            it.task.is_some() && it.is_idle() && !it.waiting && !it.applying && !in_step
        });
        if early && !volume.is_ledger_busy() && !volume.is_detaching() {
            self.refuse_task(cx, id, Refusal::Held);
        }
    }

    /// A request for it has failed, and the image is as it was.
    pub(super) fn give_up_task(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let why = self.phase(id).why_in_vain();
        self.refuse_task(cx, id, why);
    }

    pub(super) fn refuse_task(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        let destage = self.phase(id);
        assert!(
            destage.task.is_some() && destage.is_idle(),
            "nothing of it is in flight"
        );
        let upto = destage.upto;
        let volume = self.volume(id);
        volume.drop_destage();
        volume.recover_if_stalled();
        let as_it_is = volume.mark(upto);
        let resize = volume.give_up_resize();
        // The disk is as the file says.
        self.planner(id).expect("it has planned").begin(as_it_is);
        self.turns.rest(id);
        match resize {
            Some(order) => cx.out.reply(order, Err(refusal)),
            None => self.refuse_rebase(cx, id, refusal),
        }
        self.touch(id);
    }
}
