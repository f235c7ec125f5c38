//! The data side of a front end, as its control side calls it from a thread of its own.
//!
//! Always true: a call returns when the shard has done it; after the shard has ended every call
//! says so. The shard learns of a front end with the first thing that it is told of it.

use super::Order;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::frontend::vhost_user::region::Region;
use crate::frontend::vhost_user::{DataError, DataSide, RingStart};
use crate::shard::control::{GuestOpen, Handle, Stopped};
use engine::types::VolumeId;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::Queue;
use vring::block::Disk;

/// One front end of one volume.
pub struct GuestSide<S> {
    handle: Handle<S>,
    volume: VolumeId,
    disk: Disk,
    queues: u16,
    slot: Option<u32>,
}

impl From<Stopped> for DataError {
    fn from(_: Stopped) -> DataError {
        DataError::Stopped
    }
}

impl<S> GuestSide<S> {
    pub fn new(handle: Handle<S>, volume: VolumeId, disk: Disk, queues: u16) -> GuestSide<S> {
        GuestSide {
            handle,
            volume,
            disk,
            queues,
            slot: None,
        }
    }

    /// Tells the shard of the front end, if it does not know of it.
    fn slot(&mut self) -> Result<u32, DataError> {
        if let Some(slot) = self.slot {
            return Ok(slot);
        }
        let open = GuestOpen {
            volume: self.volume,
            disk: self.disk.clone(),
            queues: self.queues,
            memory: Arc::new(GuestMemory::empty(Arc::default())),
        };
        let slot = self.handle.guest_open(open)??;
        self.slot = Some(slot);
        Ok(slot)
    }
}

impl<S: Send> DataSide for GuestSide<S> {
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        let slot = self.slot()?;
        let order = |answer| Order::Memory(memory, answer);
        Ok(self.handle.guest(slot, order)?)
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        let slot = self.slot()?;
        self.handle
            .guest(slot, |answer| Order::Region(region, answer))?
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        let slot = self.slot()?;
        self.handle
            .guest(slot, |answer| Order::Start(ring, answer))?
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        let slot = self.slot()?;
        let signal = |answer| Order::Signal(queue, call, error, answer);
        Ok(self.handle.guest(slot, signal)?)
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        let slot = self.slot()?;
        Ok(self
            .handle
            .guest(slot, |answer| Order::Stop(queue, answer))?)
    }

    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        let slot = self.slot()?;
        let order = |answer| Order::WriteCache(write_back, answer);
        Ok(self.handle.guest(slot, order)?)
    }

    fn end(&mut self, in_order: bool) {
        if let Some(slot) = self.slot.take() {
            self.handle.guest_end(slot, in_order);
        }
    }
}
