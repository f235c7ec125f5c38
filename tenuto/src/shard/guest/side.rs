//! The data side of a front end, as its control side calls it from a thread of its own.
//!
//! Always true: a call returns when the shard has done it; after the shard has ended every call
//! says so.

use super::Order;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::frontend::vhost_user::region::Region;
use crate::frontend::vhost_user::{DataError, DataSide, RingStart};
use crate::shard::control::{Answer, GuestOpen, Handle, Stopped};
use engine::types::VolumeId;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::Queue;
use vring::block::Disk;

/// One front end of one volume.
pub struct GuestSide<S> {
    handle: Handle<S>,
    slot: u32,
}

impl From<Stopped> for DataError {
    fn from(_: Stopped) -> DataError {
        DataError::Stopped
    }
}

impl<S> GuestSide<S> {
    /// Returns when the volume lets the front end in.
    pub fn open(
        handle: Handle<S>,
        volume: VolumeId,
        disk: Disk,
        queues: u16,
    ) -> Result<GuestSide<S>, DataError> {
        let open = GuestOpen {
            volume,
            disk,
            queues,
            memory: Arc::new(GuestMemory::empty(Arc::default())),
        };
        let slot = handle.guest_open(open)??;
        Ok(GuestSide { handle, slot })
    }

    fn ask<T>(&self, order: impl FnOnce(Answer<T>) -> Order) -> Result<T, DataError> {
        Ok(self.handle.guest(self.slot, order)?)
    }
}

impl<S: Send> DataSide for GuestSide<S> {
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        self.ask(|answer| Order::Memory(memory, answer))
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        self.ask(|answer| Order::Region(region, answer))?
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        self.ask(|answer| Order::Start(ring, answer))?
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        self.ask(|answer| Order::Signal(queue, call, error, answer))
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        self.ask(|answer| Order::Stop(queue, answer))
    }

    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        self.ask(|answer| Order::WriteCache(write_back, answer))?
    }

    fn end(&mut self, in_order: bool) {
        self.handle.guest_end(self.slot, in_order);
    }
}
