//! Another size of the disk of an image that allocates: a larger one while its guest goes on.
//!
//! ```text
//! room: a destage of no epoch ─▶ journal ─▶ guard ─▶ (ledger says apply) ─▶ replay ─▶ idle
//! size: ledger forgets the time of the image ─▶ header read ─▶ written ─▶ synced
//! ```
//!
//! The room comes first: L1 has entries for the new disk, and what is behind the old end and may be
//! anything has become zeroes, by one plan that goes the way of every plan. Then one sector says
//! the new size. So a kill leaves the old disk or the new one, and never bytes of a base in what is
//! new; room that was made for a size that never came is of no harm, and is used by the next try.
//! Where the disk becomes smaller the same plans give back what its end has, part by part from the
//! end on, and the header follows; the host asks for that without a client.
//!
//! Always true: the header is written while the ledger says *idle* or *prepare* and no destage may
//! begin; the guest reads nothing behind the old end before the size is synced. A plan that fails
//! is given up with its order; once the header may have been written it is written until that is
//! synced. Deliberately absent: what a plan decides
//! ([`Planner`](crate::origin::Planner)).

use super::Core;
use crate::adversary::{Bug, has};
use crate::event::{Device, IoError, Op, Purpose, Refusal};
use crate::memory::Slice;
use crate::origin::Errand;
use crate::outbox::{Cx, Pending};
use crate::types::{BLOCK_BYTES, SECTOR_BYTES, Span, VolumeId};
use crate::volume::batch::Task;
use crate::volume::ledger::LedgerStep;
use crate::volume::resend::RETRY_MS;
use crate::volume::resize::Step;

/// Clusters of the end of a disk that one plan takes away.
const CUT_CLUSTERS_MAX: u64 = 1 << 18;

impl Core {
    /// Why an image that allocates cannot become so large.
    pub(super) fn growth_refusal(&mut self, id: VolumeId, new_bytes: u64) -> Option<Refusal> {
        let volume = self.volume(id);
        volume.map()?;
        let plans = self.volume(id).plans();
        match self.planner(id).map(|it| it.growth(new_bytes)) {
            None => Some(Refusal::Policy),
            _ if !plans => Some(Refusal::Policy),
            Some(None) => Some(Refusal::OutOfRange),
            Some(Some(_)) => None,
        }
    }

    /// Goes on when nothing writes the image and nothing of its ledger is on its way.
    pub(super) fn grow_image(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let volume = self.volume(id);
        let goes = volume.goes();
        let due = volume.resize_that_waits();
        let due = due.filter(|resize| cx.now >= resize.retry_at);
        let Some(resize) = due.filter(|_| !goes && !volume.is_between_states()) else {
            return;
        };
        if !resize.has_room && !has(Bug::SizeBeforeRoom) {
            return self.make_room(id);
        }
        if volume.written_ledger().image_is_written() {
            return self.write_ledger(cx, id, LedgerStep::Resize);
        }
        let Some(piece) = self.scratch.take_piece() else {
            return;
        };
        let resize = self.resizing(id);
        (resize.step, resize.piece) = (Step::HeaderRead, Some(piece));
        self.send_size(cx, id, Op::Read);
    }

    /// A plan for the room, or for a part of what goes.
    fn make_room(&mut self, id: VolumeId) {
        let (old, new) = (self.volume(id).size_bytes(), self.resizing(id).new_bytes);
        let task = match new < old {
            true => {
                // What is kept of the end does not outlive it, however this ends.
                let layer = self.volume(id).layer();
                let first = new.div_ceil(BLOCK_BYTES);
                self.lines.forget_blocks(
                    &mut self.ram,
                    layer,
                    first,
                    old.div_ceil(BLOCK_BYTES) - first,
                );
                self.cut_next(id)
            }
            false => {
                let exposed = self.planner(id).and_then(|it| it.growth(new));
                let exposed = exposed.expect("it was asked for before");
                Task::new(Errand::Grow(new), &[exposed])
            }
        };
        self.resizing(id).step = Step::Room;
        self.start_task(id, task);
    }

    /// The last part of the disk that is there yet and goes. Each has a plan of its own, so that a
    /// journal stays short.
    fn cut_next(&mut self, id: VolumeId) -> Task {
        let cluster_bytes = self.planned_cluster(id).expect("it is written by plans");
        let resize = self.resizing(id);
        let (from, end) = (resize.new_bytes, resize.cut_end);
        let first = end
            .saturating_sub(CUT_CLUSTERS_MAX * cluster_bytes)
            .next_multiple_of(cluster_bytes)
            .max(from);
        assert!(first < end, "there is something to cut off");
        let span = Span::new(first / SECTOR_BYTES, (end - first) / SECTOR_BYTES);
        resize.cut_next = first;
        Task::new(Errand::Cut, &[span])
    }

    fn send_size(&mut self, cx: &mut Cx<'_>, id: VolumeId, op: Op) {
        let piece = self.resizing(id).piece;
        let volume = self.volume(id);
        assert!(!volume.is_destaging(), "one request writes the header");
        assert!(
            piece.is_some() == matches!(op, Op::Read | Op::Write),
            "what carries bytes has memory"
        );
        volume.request_begins();
        volume.counters.origin.journal_requests += 1;
        let (pending, device) = (Pending::Resize { volume: id }, Device::Origin(id));
        let purpose = Purpose::Ledger;
        let Some(piece) = piece else {
            return cx.order(pending, purpose, device, op, 0, 0);
        };
        let slice = Slice {
            place: self.scratch.piece(piece),
            bytes: SECTOR_BYTES,
        };
        cx.transfer(pending, purpose, device, op, 0, alloc::vec![slice]);
    }

    /// A request for the header has ended.
    pub(super) fn header_resized(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        result: Result<(), IoError>,
    ) {
        let volume = self.volume(id);
        assert!(volume.has_requests(), "a request was in flight");
        volume.request_ends();
        let resize = self.resizing(id);
        let (step, bytes, tried) = (resize.step, resize.new_bytes, resize.header_sent);
        let refusal = match (step, result) {
            (Step::HeaderRead, Ok(())) => match self.write_size(cx, id, bytes) {
                true => return,
                false => Some(Refusal::Contradicts),
            },
            (Step::HeaderWrite, Ok(())) => {
                self.free_size_piece(id);
                self.resizing(id).step = Step::HeaderSync;
                return self.send_size(cx, id, Op::sync_unless(Bug::SkipSizeSync));
            }
            (Step::HeaderSync, Ok(())) => {
                let planner = self.planner(id).expect("such an image has one");
                planner.set_size(bytes);
                return self.has_size(id);
            }
            (Step::HeaderRead, Err(_)) if !tried => Some(Refusal::Io),
            _ => None,
        };
        self.free_size_piece(id);
        self.volume(id).counters.origin.errors += 1;
        match refusal {
            Some(refusal) => self.keep_size(cx, id, refusal),
            None => {
                let resize = self.resizing(id);
                resize.step = Step::Room;
                resize.retry_at = cx.now.plus_millis(RETRY_MS);
            }
        }
    }

    fn free_size_piece(&mut self, id: VolumeId) {
        let piece = self.resizing(id).piece.take();
        if let Some(piece) = piece {
            self.scratch.free_piece(piece);
        }
    }

    /// False if what was read is no header of this image.
    fn write_size(&mut self, cx: &mut Cx<'_>, id: VolumeId, bytes: u64) -> bool {
        let piece = self.resizing(id).piece.expect("it was read to");
        let place = self.scratch.piece(piece);
        let mut sector = alloc::vec![0; SECTOR_BYTES as usize];
        cx.memory.load(place, &mut sector);
        let planner = self.planner(id).expect("such an image has one");
        let Some(sized) = planner.sized(&sector, bytes) else {
            return false;
        };
        assert_eq!(sized.len() as u64, SECTOR_BYTES, "one sector says it");
        cx.memory.store(place, &sized);
        let resize = self.resizing(id);
        (resize.step, resize.header_sent) = (Step::HeaderWrite, true);
        self.send_size(cx, id, Op::Write);
        true
    }
}
