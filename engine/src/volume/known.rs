//! What a volume knows of its image.
//!
//! Always true: of an image that the volume writes no time is known.
//! Deliberately absent: the looks at it (`core::image`).

use super::{Rebase, Volume};
use crate::adversary::{Bug, has};
use crate::image::{Finding, Image};
use crate::types::RequestId;
use alloc::vec::Vec;

/// What a volume knows of its image.
#[derive(Default)]
pub struct Known {
    /// As it was when the volume was attached, or seen last. Of an image that the volume writes
    /// without its time.
    pub seen: Image,
    /// What the overlay lies on, as checkpoints name it.
    pub under: Image,
    /// Held for this.
    pub misfit: Option<Finding>,
    /// The overlay lies on another image than the one that is there.
    pub overlay_misfits: bool,
    /// A base was changed where it lies, in this life.
    pub base_changed: bool,
    pub looking: bool,
    pub waiters: Vec<RequestId>,
    /// It gets more of the disk, or moves to another file.
    pub rebase: Option<Rebase>,
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
        self.is_ready() && self.misfit().is_none() && !self.holds_for_exchange()
    }

    /// The volume is the only one that writes its image.
    pub(crate) fn writes_image(&self) -> bool {
        !self.read_only && self.owns_image() || self.is_committing()
    }
}
