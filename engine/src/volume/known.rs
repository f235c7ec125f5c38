//! What a volume knows of its image.
//!
//! Always true: of an image that the volume writes no time is known.
//! Deliberately absent: the looks at it (`core::image`).

use super::{Rebase, Volume};
use crate::adversary::{Bug, has};
use crate::event::ResetOn;
use crate::format::ledger::Progress;
use crate::image::{Finding, Image, Mark};
use crate::snapshot::WrittenSnapshot;
use crate::types::{Policy, RequestId, Serial};
use alloc::vec::Vec;

/// What a volume knows of its image.
#[derive(Default)]
pub struct Known {
    /// As it was when the volume was attached, or seen last. Of an image that the volume writes
    /// without its time.
    seen: Image,
    /// What the overlay lies on, as checkpoints name it.
    under: Image,
    /// Held for this.
    misfit: Option<Finding>,
    /// The overlay lies on another image than the one that is there.
    overlay_misfits: bool,
    /// A base was changed where it lies, in this life.
    base_changed: bool,
    looking: bool,
    waiters: Vec<RequestId>,
    /// It gets more of the disk, or moves to another file.
    pub(super) rebase: Option<Rebase>,
}

impl Known {
    /// Of a volume that only the log knows.
    pub fn under(image: Image) -> Known {
        Known {
            under: image,
            ..Known::default()
        }
    }
}

impl Volume {
    /// It is attached, and knows its image by this. `under`: what the overlay lies on, which may be
    /// another one.
    pub fn knows_image(&mut self, seen: Image, under: Image, overlay_misfits: bool) {
        assert!(self.is_attached() && !self.is_ready(), "it has just come");
        let lies = !overlay_misfits || self.is_dirty();
        assert!(lies, "an overlay that holds nothing lies on any image");
        self.image = Known {
            seen,
            under,
            overlay_misfits,
            ..Known::default()
        };
        if overlay_misfits && self.tuning.reset_on != ResetOn::Command {
            // The next guest to come finds it reset.
            self.guest_ends();
        }
    }

    /// The image as it was when the volume was attached, or seen last.
    pub fn seen_image(&self) -> Image {
        self.image.seen
    }

    /// What the overlay lies on, as checkpoints name it.
    pub fn image_under(&self) -> Image {
        self.image.under
    }

    /// The overlay lies on another image than the one that is there.
    pub fn lies_on_another(&self) -> bool {
        self.image.overlay_misfits
    }

    /// A base was changed where it lies, in this life.
    pub fn base_has_changed(&self) -> bool {
        self.image.base_changed
    }

    /// What its overlay held is void: the next one lies on the image that is there.
    pub fn overlay_lies_anew(&mut self) {
        assert!(self.policy == Policy::Ephemeral, "only overlays are reset");
        self.image.overlay_misfits = false;
        self.image.under = self.image.seen.kept();
    }

    /// The image is to be looked at for this order. False if a look is under way.
    pub fn begin_look(&mut self, order: RequestId) -> bool {
        assert!(
            self.is_attached(),
            "images of attached volumes are looked at"
        );
        self.image.waiters.push(order);
        !core::mem::replace(&mut self.image.looking, true)
    }

    /// A look has ended: who waited for it.
    pub fn look_has_ended(&mut self) -> Vec<RequestId> {
        assert!(
            self.image.looking && self.has_requests(),
            "a look was under way"
        );
        self.request_ends();
        self.image.looking = false;
        core::mem::take(&mut self.image.waiters)
    }

    /// The image was found longer than the disk, or than it was known to be: as far as the disk
    /// goes that is known from now on.
    pub fn image_has_grown(&mut self, bytes: u64) {
        assert!(bytes > 0, "what has grown has a size");
        self.image.seen.size_bytes = bytes.min(self.size_bytes);
    }

    /// The image does not fit. False if that was known before.
    pub fn image_misfits(&mut self, found: Finding) -> bool {
        assert!(
            self.is_attached(),
            "images of attached volumes are looked at"
        );
        assert!(found != Finding::Same, "an image that fits is none");
        self.image.misfit.replace(found).is_none()
    }

    /// The image fits. Whether requests that have waited for that may begin now.
    pub fn image_fits(&mut self) -> bool {
        if self.image.misfit == Some(Finding::Deposed) {
            return false;
        }
        let before = self.image.misfit.take();
        before.is_some() && self.misfit().is_none() && self.is_ready()
    }

    /// An image that volumes only read was written where it lies.
    pub fn base_changes(&mut self, image: Option<Image>) {
        assert!(!self.writes_image(), "its own writes change nothing else");
        self.image.seen = image.unwrap_or_default();
        self.image.base_changed = true;
    }

    /// Another file is its image from here on, which it writes.
    pub fn sees_written(&mut self, image: &Image) {
        self.image.seen = self.written_image(image);
    }

    /// What is known of an image that it writes: not its time, and no mark of another volume.
    pub fn written_image(&self, image: &Image) -> Image {
        Image {
            marked: image.marked.of(self.uuid),
            ..image.written()
        }
    }

    /// Why it is held for its image.
    pub fn misfit(&self) -> Option<Finding> {
        if has(Bug::AskMisfit) {
            return None;
        }
        // One whose guest has ended is reset before anybody reads it.
        let overlay = self.image.overlay_misfits && !self.ended;
        let overlay = overlay.then_some(Finding::Replaced);
        self.image.misfit.or(overlay)
    }

    /// The image says so, as it was written.
    pub fn sees_mark(&mut self, image: &Image) {
        self.image.seen.marked = image.marked.of(self.uuid);
    }

    /// Requests may begin.
    pub fn serves(&self) -> bool {
        let waits = self.holds_for_exchange() || self.holds_for_proof();
        self.is_ready() && self.misfit().is_none() && !waits
    }

    /// The volume is the only one that writes its image.
    pub(crate) fn writes_image(&self) -> bool {
        !self.read_only && self.owns_image() || self.is_committing()
    }

    /// What an image says that has all writes of the volume up to this one.
    pub fn mark(&self, serial: Serial) -> Mark {
        Mark {
            volume: self.uuid(),
            generation: self.generation(),
            serial,
        }
    }

    /// What is to be shown of an image that it writes.
    pub fn written(&self) -> Option<WrittenSnapshot> {
        let writes = self.policy != Policy::Ephemeral && !self.is_read_only();
        self.map().filter(|_| writes)?;
        let destage = self.destage();
        let replay = self.pending_journal();
        let ledger = self.ledger();
        Some(WrittenSnapshot {
            guarded: destage.is_some_and(|it| it.guarded)
                || replay.is_some_and(|it| it.reached || it.upto > Serial(0)),
            journal_bytes: match ledger.map(|it| it.progress) {
                Some(Progress::Apply { journal_bytes, .. }) => journal_bytes,
                _ => 0,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn an_image_that_fits_again_lets_requests_begin_once() {
        let mut volume = volume();
        volume.has_come();
        volume.open();
        assert!(!volume.image_fits(), "nothing has waited");
        assert!(volume.image_misfits(Finding::Shrunk));
        assert!(!volume.image_misfits(Finding::Replaced) && !volume.serves());
        assert!(volume.image_fits() && volume.serves());
        assert!(!volume.image_fits());
    }

    #[test]
    fn a_volume_of_another_host_does_not_go_on_whatever_is_seen() {
        let mut volume = volume();
        volume.has_come();
        volume.open();
        volume.image_misfits(Finding::Deposed);
        assert!(!volume.image_fits());
        assert_eq!(volume.misfit(), Some(Finding::Deposed));
    }
}
