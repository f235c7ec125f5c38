//! What a volume is called, how large it is, and what its host has ordered of it.
//!
//! Always true: only a host that attaches it changes its name, its origin and its storage, or one
//! that takes it over its name; its size changes with [`super::Resize`] alone; its uuid is that of
//! the ledger, once one was found.
//! Deliberately absent: which names are allowed (the host says so).

use super::Volume;
use crate::event::{ResetOn, Tuning};
use crate::origin::MapId;
use crate::ram::Layer;
use crate::types::{Generation, Policy, Uuid, VolumeId};

impl Volume {
    #[inline]
    pub fn id(&self) -> VolumeId {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Volumes with one number here take turns at destage: their origins are one storage.
    pub fn storage(&self) -> u64 {
        self.storage
    }

    /// There is a place for a journal, so a destage may be atomic.
    pub fn has_journal_place(&self) -> bool {
        self.journal_possible
    }

    /// An order has looked whether there is a place for a journal.
    pub fn journal_place_found(&mut self, possible: bool) {
        assert!(self.is_attached(), "orders are for volumes that are there");
        assert!(
            self.policy.is_direct(),
            "a volume with a log has looked before"
        );
        self.journal_possible = possible;
    }

    #[inline]
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Its host has changed its mind.
    pub fn tune(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }

    /// The image is another one than the log knows: nothing that the log has of it counts.
    pub fn becomes(&mut self, uuid: Uuid) {
        assert!(!self.is_attached(), "one that is there keeps its image");
        self.uuid = uuid;
    }

    /// Index of its group among the shard's.
    pub fn group(&self) -> Option<usize> {
        self.group
    }

    /// It is a member of a group from here on, whose cut this is.
    pub fn join_group(&mut self, group: usize, cut: u64) {
        assert!(!self.read_only, "only what is written has cuts");
        assert!(cut > 0, "cut 0 is of what was recovered");
        (self.group, self.cut) = (Some(group), cut);
    }

    /// The group that it was in; it stands alone from here on.
    pub fn leave_group(&mut self) -> Option<usize> {
        self.group.take()
    }

    /// It was named with no group.
    pub fn stands_alone(&mut self) {
        (self.group, self.cut) = (None, 0);
    }

    /// Where its bytes lie in the files of its image; none = raw.
    #[inline]
    pub fn map(&self) -> Option<MapId> {
        self.map
    }

    /// Its image is of a format.
    #[inline]
    pub fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    pub fn open_map(&mut self, map: MapId) {
        assert!(self.map.is_none(), "one map at a time");
        self.map = Some(map);
    }

    /// The one that it had, which the caller closes.
    pub fn close_map(&mut self) -> Option<MapId> {
        self.map.take()
    }

    /// Under which its clean blocks are kept.
    #[inline]
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// It was attached, and finds what is kept clean of it here.
    pub fn finds_layer(&mut self, layer: Layer) {
        self.layer = layer;
    }

    /// What is kept clean of it counts under this layer only; the one before is the caller's.
    pub fn change_layer(&mut self, layer: Layer) -> Layer {
        assert!(layer != self.layer, "a layer is used once");
        core::mem::replace(&mut self.layer, layer)
    }

    /// Of its ledger on its medium; 0 while there is none.
    pub fn ledger_generation(&self) -> Generation {
        self.ledger_generation
    }

    /// The last guest has ended, so that the next one finds a clean disk.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    pub fn guest_ends(&mut self) {
        self.ended = true;
    }

    /// Whether the last guest had ended. The next one finds the disk as it is now.
    pub fn take_end(&mut self) -> bool {
        core::mem::take(&mut self.ended)
    }

    /// The next guest finds a clean disk: the last one has ended, and not by an order alone.
    pub fn is_to_be_reset(&self) -> bool {
        self.ended && self.tuning.reset_on != ResetOn::Command
    }

    /// Acknowledged writes may have gone with the stage.
    pub fn lost_stage(&self) -> bool {
        self.stage_lost
    }

    pub fn stage_is_lost(&mut self) {
        assert!(!self.is_attached(), "a recovery finds that out");
        self.stage_lost = true;
    }

    /// Its host has been told, and goes on.
    pub fn loss_is_accepted(&mut self) {
        assert!(!self.is_attached(), "a host accepts it as it attaches");
        self.stage_lost = false;
    }

    /// Flushed records are missing, which may be its own.
    pub fn has_damaged_log(&self) -> bool {
        self.log_damaged
    }

    pub fn log_is_damaged(&mut self) {
        assert!(!self.is_attached(), "a recovery finds that out");
        self.log_damaged = true;
    }

    /// The origin writes zeroes where others make a hole.
    pub fn zeroes_dearly(&self) -> bool {
        self.zeroes_dearly
    }

    /// It had to write so many of them.
    pub fn zeroes_were_written(&mut self, bytes: u64) {
        self.zeroes_dearly = true;
        self.counters.origin.zeroed_bytes += bytes;
    }

    /// The image of the volume is written by plans: by its destages, or by its commit.
    pub(crate) fn plans(&self) -> bool {
        let writes = self.policy == Policy::WriteBack || self.may_commit();
        writes && self.is_mapped()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    #[test]
    fn a_guest_that_goes_on_after_all_finds_its_disk() {
        let mut volume = volume();
        volume.guest_ends();
        assert!(volume.has_ended());
        assert!(!volume.is_to_be_reset(), "only an order resets it");
        assert!(volume.take_end() && !volume.has_ended());
        assert!(!volume.take_end());
    }

    #[test]
    fn a_volume_leaves_its_group_once() {
        let mut volume = volume();
        volume.join_group(3, 7);
        assert_eq!((volume.group(), volume.cut), (Some(3), 7));
        assert_eq!(volume.leave_group(), Some(3));
        assert_eq!(volume.leave_group(), None);
    }

    #[test]
    fn each_layer_is_given_back_when_another_takes_its_place() {
        let mut volume = volume();
        let first = volume.change_layer(Layer(5));
        assert_eq!(volume.change_layer(Layer(6)), Layer(5));
        assert!(first != volume.layer());
    }
}
