//! Changing the size of a volume while its guest goes on.
//!
//! ```text
//! Wait ─▶ Set ─▶ Name ─▶ (done)
//!          └─ fails ─▶ (as before)
//!
//! an image that allocates ([`super::grow`]):
//! Wait ─▶ Room ─▶ HeaderRead ─▶ HeaderWrite ─▶ HeaderSync ─▶ Name ─▶ (done)
//! ```
//!
//! *Wait* is for a destage on its way, and when the volume becomes smaller for everything that
//! touches its image; *Set* gives the image its size and syncs it; *Name* is a checkpoint.
//!
//! Always true: no destage begins between *Wait* and the end of *Set*, because a journal counts
//! only for an image of the size that it was written for. Before *Set* the ledger forgets the time
//! of the image: two changes that come back to the size that it names would look like a write of
//! another program. A volume is never larger than its image:
//! the image grows first, and shrinks last. Killed at any time, the next start takes the size that
//! the image has. Deliberately absent: what is lost when a volume becomes smaller; the host asks
//! for that only when nobody is connected and nothing is dirty.

use super::Core;
use super::attach::BYTES_MAX;
use super::checkpoint::Waiter;
use crate::adversary::{Bug, has};
use crate::event::{Device, IoError, Op, Purpose, Refusal};
use crate::outbox::{Cx, Pending};
use crate::snapshot::State;
use crate::types::{BLOCK_SECTORS, RequestId, SECTOR_BYTES, Time, VolumeId};
use crate::volume::ledger::LedgerStep;
use crate::volume::resize::Step;
use crate::volume::{Bypass, Resize};

impl Core {
    /// An administrator's order.
    pub(super) fn resize(
        &mut self,
        cx: &mut Cx<'_>,
        id: VolumeId,
        request: RequestId,
        new_bytes: u64,
    ) {
        let failed = self.health.is_failed();
        let growth = self.growth_refusal(id, new_bytes);
        let volume = self.volume(id);
        let shrinks = new_bytes < volume.size_bytes;
        let gone = volume.is_gone() || volume.resize.is_some() || volume.image.rebase.is_some();
        let refusal = match volume.state() {
            _ if gone => Some(Refusal::Gone),
            _ if new_bytes == 0 || new_bytes > BYTES_MAX => Some(Refusal::OutOfRange),
            _ if !new_bytes.is_multiple_of(SECTOR_BYTES) => Some(Refusal::OutOfRange),
            // Others stand on the image.
            _ if volume.read_only || !volume.owns_image() => Some(Refusal::Policy),
            // What lies behind the end is in a file that is not open.
            _ if volume.names_another() && new_bytes > volume.size_bytes => Some(Refusal::Busy),
            _ if growth.is_some() => growth,
            _ if volume.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ if volume.quiesce.is_some() || volume.has_peers() => Some(Refusal::Busy),
            _ if failed || volume.bypass != Bypass::None => Some(Refusal::CacheFailed),
            _ if shrinks && volume.is_dirty() && !has(Bug::ShrinkDirty) => Some(Refusal::Dirty),
            _ => None,
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        volume.resize = Some(Resize {
            request,
            old_bytes: volume.size_bytes,
            new_bytes,
            step: Step::Wait,
            has_room: false,
            cut_end: volume.size_bytes,
            cut_next: volume.size_bytes,
            header_sent: false,
            piece: None,
            retry_at: Time(0),
        });
        if volume.is_between_states()
            && let Some(epoch) = volume.epochs.front()
        {
            let upto = epoch.last_serial;
            volume.want(upto);
        }
    }

    /// Goes on when nothing is in its way any more.
    pub(super) fn resize_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        let (serves, destages) = (volume.serves(), volume.is_destaging());
        let touched = volume.has_requests()
            || volume.has_reads()
            || volume.writes_directly()
            || volume.has_waiting();
        let waits = |it: &&mut Resize| matches!(it.step, Step::Wait | Step::Room);
        let Some(resize) = volume.resize.as_mut().filter(waits) else {
            return;
        };
        let ledger_writer = volume.ledger_writer.as_ref();
        let writes = destages || ledger_writer.is_some_and(|it| it.step.is_some());
        let shrinks = resize.new_bytes < resize.old_bytes;
        if !serves || writes || (shrinks && touched) {
            return;
        }
        assert!(
            resize.old_bytes == volume.size_bytes,
            "a size changes once at a time"
        );
        let bytes = resize.new_bytes;
        if volume.map.is_some() {
            return self.grow_image(cx, id);
        }
        if let Some(writer) = volume.ledger_writer.as_mut()
            && writer.ledger.image.mtime_ns != 0
        {
            writer.ledger.image = writer.ledger.image.written();
            self.write_ledger(cx, id, LedgerStep::Resize);
            return;
        }
        resize.step = Step::Set;
        if shrinks {
            volume.size_bytes = bytes;
        }
        volume.request_begins();
        let (pending, device) = (Pending::Resize { volume: id }, Device::Origin(id));
        cx.order(pending, Purpose::GuestWrite, device, Op::Resize, 0, bytes);
    }

    /// The image has its new size, or could not get it.
    pub(super) fn resized(&mut self, cx: &mut Cx<'_>, id: VolumeId, result: Result<(), IoError>) {
        if self.resizing(id).step != Step::Set {
            return self.header_resized(cx, id, result);
        }
        let volume = self.volume(id);
        volume.request_ends();
        match result {
            Ok(()) => self.has_size(id),
            Err(error) => {
                volume.counters.origin.errors += 1;
                let refusal = match error {
                    IoError::NoSpace => Refusal::OriginFull,
                    IoError::Failed | IoError::Away | IoError::Damaged => Refusal::Io,
                };
                self.keep_size(cx, id, refusal);
            }
        }
    }

    pub(super) fn resizing(&mut self, id: VolumeId) -> &mut Resize {
        let resize = self.volume(id).resize.as_mut();
        resize.expect("a change of size is under way")
    }

    /// The image has its new size, durably.
    pub(super) fn has_size(&mut self, id: VolumeId) {
        let resize = self.resizing(id);
        assert!(resize.step != Step::Name, "a size is named once");
        resize.step = Step::Name;
        let resize = *resize;
        self.volume(id).size_bytes = resize.new_bytes;
        self.checkpoint.wait(Waiter::Resize(id));
        self.forget_end(id, &resize);
    }

    /// The image could not get the new size.
    pub(super) fn keep_size(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        let volume = self.volume(id);
        let resize = volume.resize.take().expect("a change of size is under way");
        volume.size_bytes = resize.old_bytes;
        cx.out.reply(resize.request, Err(refusal));
        self.forget_end(id, &resize);
    }

    fn forget_end(&mut self, id: VolumeId, resize: &Resize) {
        let end = resize.old_bytes.min(resize.new_bytes);
        let longest = resize.old_bytes.max(resize.new_bytes);
        // Whatever is behind the shorter end reads as zeroes, should it come back.
        let layer = self.volume(id).layer;
        let first = match has(Bug::KeepCutBlock) {
            true => end.div_ceil(SECTOR_BYTES * BLOCK_SECTORS),
            false => end / SECTOR_BYTES / BLOCK_SECTORS,
        };
        let blocks = longest.div_ceil(SECTOR_BYTES * BLOCK_SECTORS) - first;
        assert!(first * BLOCK_SECTORS * SECTOR_BYTES <= longest);
        self.forget_blocks(layer, first, blocks);
        self.touch(id);
    }

    /// A checkpoint names the new size.
    pub(super) fn resize_named(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        if let Some(resize) = volume.resize.take() {
            assert!(resize.step == Step::Name, "its image has the new size");
            cx.out.reply(resize.request, Ok(()));
            self.touch(id);
        }
    }
}
