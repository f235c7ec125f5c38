//! The volumes of a shard, by their numbers.
//!
//! Always true: a volume stands at its own number. Deliberately absent: what volumes share, which
//! is in parts of `core` that are given this collection.

use super::Volume;
use crate::types::VolumeId;
use alloc::vec::Vec;

#[derive(Default)]
pub struct Volumes {
    /// By number; a number that is free has none.
    slots: Vec<Option<Volume>>,
}

impl From<Vec<Option<Volume>>> for Volumes {
    fn from(slots: Vec<Option<Volume>>) -> Volumes {
        Volumes { slots }
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
        let free = self.slots.iter().position(Option::is_none);
        free.map_or(self.end(), |at| VolumeId(at as u32))
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
}
