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
use crate::types::{BLOCK_SECTORS, RequestId, SECTOR_BYTES, VolumeId};
use crate::volume::Resize;
use crate::volume::ledger::LedgerStep;
use crate::volume::resize::Step;

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
        let shrinks = new_bytes < volume.size_bytes();
        let gone = volume.is_gone() || volume.is_resizing() || volume.is_rebasing();
        let refusal = match volume.state() {
            _ if gone => Some(Refusal::Gone),
            _ if new_bytes == 0 || new_bytes > BYTES_MAX => Some(Refusal::OutOfRange),
            _ if !new_bytes.is_multiple_of(SECTOR_BYTES) => Some(Refusal::OutOfRange),
            // Others stand on the image.
            _ if volume.is_read_only() || !volume.owns_image() => Some(Refusal::Policy),
            // What lies behind the end is in a file that is not open.
            _ if volume.names_another() && new_bytes > volume.size_bytes() => Some(Refusal::Busy),
            _ if growth.is_some() => growth,
            _ if volume.misfit().is_some() => Some(Refusal::Held),
            State::Held => Some(Refusal::Held),
            _ if volume.is_quiescing() || volume.has_peers() => Some(Refusal::Busy),
            _ if failed || !volume.is_with_log() => Some(Refusal::CacheFailed),
            _ if shrinks && volume.is_dirty() && !has(Bug::ShrinkDirty) => Some(Refusal::Dirty),
            _ => None,
        };
        if let Some(refusal) = refusal {
            cx.out.reply(request, Err(refusal));
            return;
        }
        volume.begin_resize(request, new_bytes);
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
        let Some(resize) = volume.resize_that_waits() else {
            return;
        };
        let writes = destages || volume.is_ledger_busy();
        let shrinks = resize.new_bytes < resize.old_bytes;
        if !serves || writes || (shrinks && touched) {
            return;
        }
        assert!(
            resize.old_bytes == volume.size_bytes(),
            "a size changes once at a time"
        );
        if volume.is_mapped() {
            return self.grow_image(cx, id);
        }
        if volume.has_ledger() && volume.written_ledger().image_is_written() {
            self.write_ledger(cx, id, LedgerStep::Resize);
            return;
        }
        let bytes = volume.set_image_size();
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
        self.volume(id).resizing()
    }

    /// The image has its new size, durably.
    pub(super) fn has_size(&mut self, id: VolumeId) {
        let resize = self.volume(id).image_has_size();
        self.checkpoint.wait(Waiter::Resize(id));
        self.forget_end(id, &resize);
    }

    /// The image could not get the new size.
    pub(super) fn keep_size(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        let resize = self.volume(id).image_keeps_size();
        cx.out.reply(resize.request, Err(refusal));
        self.forget_end(id, &resize);
    }

    fn forget_end(&mut self, id: VolumeId, resize: &Resize) {
        let end = resize.old_bytes.min(resize.new_bytes);
        let longest = resize.old_bytes.max(resize.new_bytes);
        // Whatever is behind the shorter end reads as zeroes, should it come back.
        let layer = self.volume(id).layer();
        let first = match has(Bug::KeepCutBlock) {
            true => end.div_ceil(SECTOR_BYTES * BLOCK_SECTORS),
            false => end / SECTOR_BYTES / BLOCK_SECTORS,
        };
        let blocks = longest.div_ceil(SECTOR_BYTES * BLOCK_SECTORS) - first;
        assert!(first * BLOCK_SECTORS * SECTOR_BYTES <= longest);
        self.lines
            .forget_blocks(&mut self.ram, layer, first, blocks);
        self.touch(id);
    }

    /// A checkpoint names the new size.
    pub(super) fn resize_named(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        if let Some(order) = volume.size_is_named() {
            cx.out.reply(order, Ok(()));
            self.touch(id);
        }
    }
}
