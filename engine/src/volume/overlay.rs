//! What an overlay holds, and for whom the log counts it.
//!
//! Always true: only ephemeral volumes have a quota owner; the age of an overlay begins with its
//! first write. Deliberately absent: the end of an overlay (`core::overlay`), and room.

use super::Volume;
use crate::log::{Log, QuotaOwner, StreamKind};
use crate::types::{BLOCK_BYTES, Policy, Time};

/// Of an ephemeral volume.
#[derive(Default)]
pub struct Overlay {
    /// It answered a write for want of room, and has taken none since.
    full: bool,
    /// The write that is being staged goes beyond the overlay's share of RAM.
    spills: bool,
    /// When the overlay took its first write; not known of one that a recovery found.
    since: Option<Time>,
}

impl Volume {
    /// For whom the log counts what an overlay holds.
    #[inline]
    pub fn quota_owner(&self) -> QuotaOwner {
        self.quota_owner
    }

    /// An overlay whose blocks the log counts for nothing yet.
    pub fn lacks_quota(&self) -> bool {
        self.policy == Policy::Ephemeral && self.quota_owner == QuotaOwner::NONE
    }

    pub fn open_quota(&mut self, owner: QuotaOwner) {
        assert!(self.lacks_quota(), "an overlay has one owner at a time");
        assert!(owner != QuotaOwner::NONE, "the log has opened it");
        self.quota_owner = owner;
    }

    /// What it holds is void: it is counted for another owner from here on. The one before is the
    /// caller's to close.
    pub fn overlay_begins_anew(&mut self, owner: QuotaOwner) -> QuotaOwner {
        assert!(self.policy == Policy::Ephemeral, "only overlays are reset");
        assert!(owner != self.quota_owner, "an owner is for one life");
        self.overlay.since = None;
        core::mem::replace(&mut self.quota_owner, owner)
    }

    /// It takes a write: the age of an overlay is that of its first one.
    #[inline]
    pub fn takes_write(&mut self, now: Time) {
        assert!(!self.read_only, "no guest writes it");
        if !self.is_dirty() {
            self.overlay.since = Some(now);
        }
    }

    /// Where so many blocks of it go next: an overlay that fills its share of RAM writes to the
    /// device, so that what others have in RAM stays there.
    pub fn stream_of(&self, log: &Log, blocks: u64) -> StreamKind {
        let limit = self.tuning().overlay_ram_bytes / BLOCK_BYTES;
        match self.policy {
            Policy::Ephemeral if log.usage(self.quota_owner).ram + blocks > limit => {
                StreamKind::Spill
            }
            Policy::Ephemeral => StreamKind::Overlay,
            _ => StreamKind::Writes,
        }
    }

    pub fn overlay_since(&self) -> Option<Time> {
        self.overlay.since
    }

    /// The write that is being staged goes beyond its share of RAM, or does not.
    #[inline]
    pub fn overlay_spills(&mut self, spills: bool) {
        self.overlay.spills = spills;
    }

    #[inline]
    pub fn spills(&self) -> bool {
        self.overlay.spills
    }

    /// A write was answered for want of room.
    pub fn overlay_is_full(&mut self) {
        assert!(self.policy == Policy::Ephemeral, "others wait for room");
        self.overlay.full = true;
        self.counters.overlay_refused += 1;
    }

    /// It has taken a write.
    #[inline]
    pub fn overlay_takes(&mut self) {
        self.overlay.full = false;
    }

    /// It has answered a write for want of room, and has taken none since.
    pub fn is_overlay_full(&self) -> bool {
        self.overlay.full
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn an_overlay_is_full_until_it_takes_a_write() {
        let mut volume = volume();
        volume.policy = Policy::Ephemeral;
        assert!(!volume.is_overlay_full());
        volume.overlay_is_full();
        assert!(volume.is_overlay_full() && volume.counters.overlay_refused == 1);
        volume.overlay_takes();
        assert!(!volume.is_overlay_full());
    }

    #[test]
    fn a_reset_forgets_the_age_and_gives_back_the_owner() {
        let mut volume = volume();
        volume.policy = Policy::Ephemeral;
        assert!(volume.lacks_quota());
        volume.open_quota(QuotaOwner::of_test(2));
        volume.takes_write(Time(5));
        assert_eq!(
            volume.overlay_begins_anew(QuotaOwner::of_test(3)),
            QuotaOwner::of_test(2)
        );
        assert_eq!(volume.overlay_since(), None);
    }
}
