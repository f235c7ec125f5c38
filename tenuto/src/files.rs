use crate::origin::file::OpenVolume;
use crate::origin::san::San;
pub use crate::target::{Target, misaligned};
use engine::event::{Device, IoError, Stat};
use engine::media::Media;
use engine::types::VolumeId;
use std::sync::Arc;

/// Every open file of a shard.
pub struct Files {}

impl Files {
    pub fn new(_cache: Target) -> Files {
        todo!()
    }

    /// For tools that work on an origin without a cache.
    pub fn without_cache() -> Files {
        todo!()
    }

    /// `None`: no such volume, or its ledger or journal does not exist (see `ensure`).
    pub fn target(&self, _device: Device) -> Option<&Target> {
        todo!()
    }

    /// The same for a worker thread.
    pub fn share(&self, _device: Device) -> Option<Arc<Target>> {
        todo!()
    }

    /// Creates a missing ledger or journal (durably) and returns it.
    pub fn ensure(&mut self, _device: Device) -> Result<&Target, IoError> {
        todo!()
    }

    /// `Op::Remove`: cuts the journal to nothing; on the ledger removes both files.
    pub fn remove(&mut self, _device: Device) -> Result<(), IoError> {
        todo!()
    }

    pub fn insert_volume(&mut self, _volume: VolumeId, _open: OpenVolume) {
        todo!()
    }

    pub fn remove_volume(&mut self, _volume: VolumeId) -> Option<OpenVolume> {
        todo!()
    }

    pub fn san(&mut self, _volume: VolumeId) -> Option<&mut San> {
        todo!()
    }
}

impl Media for Files {
    fn read(&mut self, _d: Device, _offset: u64, _bytes: &mut [u8]) -> Result<(), IoError> {
        todo!()
    }
    fn write(&mut self, _d: Device, _offset: u64, _bytes: &[u8]) -> Result<(), IoError> {
        todo!()
    }
    fn zero(&mut self, _d: Device, _offset: u64, _bytes: u64) -> Result<(), IoError> {
        todo!()
    }
    fn sync(&mut self, _device: Device) -> Result<(), IoError> {
        todo!()
    }
    fn stat(&mut self, _device: Device) -> Result<Stat, IoError> {
        todo!()
    }
}
