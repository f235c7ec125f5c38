//! The volumes of a shard, by their numbers.
//!
//! Always true: a volume stands at its own number; that of one which goes is given to no other
//! before the host has been told that it is gone, because the host has its files under it until
//! then. Deliberately absent: what volumes share, which
//! is in parts of `core` that are given this collection.

use super::Volume;
use crate::types::VolumeId;
use alloc::vec::Vec;

#[derive(Default)]
pub struct Volumes {
    /// By number; a number that is free has none.
    slots: Vec<Option<Volume>>,
    /// Numbers of volumes that are gone, and of which the host has not been told.
    going: Vec<VolumeId>,
}

impl From<Vec<Option<Volume>>> for Volumes {
    fn from(slots: Vec<Option<Volume>>) -> Volumes {
        Volumes {
            slots,
            going: Vec::new(),
        }
    }
}

impl Volumes {
    /// The numbers from 0 up to the largest that was given.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.end().0).map(VolumeId)
    }

    /// The number behind the largest that was given.
    pub fn end(&self) -> VolumeId {
        VolumeId(self.slots.len() as u32)
    }

    #[inline]
    pub fn get(&self, id: VolumeId) -> Option<&Volume> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: VolumeId) -> Option<&mut Volume> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// A volume that is known to be there, because something of it was in flight.
    #[inline]
    pub fn known(&self, id: VolumeId) -> &Volume {
        let volume = self.slots[id.0 as usize].as_ref();
        volume.expect("a volume stays while work of it is in flight")
    }

    #[inline]
    pub fn known_mut(&mut self, id: VolumeId) -> &mut Volume {
        let volume = self.slots[id.0 as usize].as_mut();
        volume.expect("a volume stays while work of it is in flight")
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Volume> {
        self.slots.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Volume> {
        self.slots.iter_mut().flatten()
    }

    /// The smallest number that is free.
    pub fn free_id(&self) -> VolumeId {
        let free = |id: &VolumeId| self.get(*id).is_none() && !self.going.contains(id);
        self.ids().find(free).unwrap_or(self.end())
    }

    /// A volume goes for good; its number does when the host is told.
    pub fn leave(&mut self, id: VolumeId) -> Option<Volume> {
        let volume = self.take(id)?;
        assert!(!self.going.contains(&id), "a number is given once");
        self.going.push(id);
        Some(volume)
    }

    /// The host is told.
    pub fn left(&mut self, id: VolumeId) {
        self.going.retain(|other| *other != id);
    }

    pub fn put(&mut self, id: VolumeId, volume: Volume) {
        assert!(volume.id() == id, "a volume stands at its number");
        let at = id.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        assert!(self.slots[at].is_none(), "its number is free");
        self.slots[at] = Some(volume);
    }

    pub fn take(&mut self, id: VolumeId) -> Option<Volume> {
        let volume = self.slots.get_mut(id.0 as usize)?.take()?;
        assert!(volume.id() == id, "a volume stands at its number");
        Some(volume)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::format::checkpoint::VolumeRecord;
    use crate::types::Uuid;

    #[test]
    fn a_number_that_was_given_back_is_given_first() {
        let mut volumes = Volumes::default();
        assert_eq!(volumes.free_id(), VolumeId(0));
        assert!(volumes.take(VolumeId(7)).is_none() && volumes.get(VolumeId(7)).is_none());
        let of = volume();
        let id = of.id();
        volumes.put(id, of);
        assert_eq!(volumes.known(id).id(), id);
        assert_eq!(volumes.iter().count(), 1);
        assert!(volumes.take(id).is_some());
        assert_eq!(volumes.free_id(), VolumeId(0));
    }

    /// Fails when: a number is given while the host has files of a volume under it.
    #[test]
    fn a_number_is_given_again_when_the_host_was_told_that_its_volume_is_gone() {
        let mut volumes = Volumes::from(Vec::new());
        let of = VolumeRecord::unwritten(VolumeId(0), Uuid([1; 16]));
        volumes.put(VolumeId(0), Volume::known(of));
        assert!(volumes.leave(VolumeId(0)).is_some());
        assert_eq!(volumes.free_id(), VolumeId(1));
        volumes.left(VolumeId(0));
        assert_eq!(volumes.free_id(), VolumeId(0));
    }
}
