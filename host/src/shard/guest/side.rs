//! The data side of a front end, as its control side calls it from a thread of its own.
//!
//! Always true: a call returns when the shard has done it; after the shard has ended every call
//! says so.

use super::Order;
use super::kept::Kept;
use crate::frontend::vhost_user::capacity::LiveDisk;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::frontend::vhost_user::region::Region;
use crate::frontend::vhost_user::{DataError, DataSide, RingStart};
use crate::peer::Peer;
use crate::shard::control::{Answer, GuestOpen, Handle, Stopped};
use engine::types::VolumeId;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vring::Queue;

/// How long a ring waits for a client that writes and is just going.
const GOING_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether it has gone.
const LOOK: Duration = Duration::from_millis(50);

/// One front end of one volume.
pub struct GuestSide<S> {
    handle: Handle<S>,
    slot: u32,
    kept: Kept,
    shared: bool,
}

/// The front end, and what its volume allows.
pub struct Comer {
    pub peer: Peer,
    pub kept: Kept,
    pub shared: bool,
}

impl From<Stopped> for DataError {
    fn from(_: Stopped) -> DataError {
        DataError::Stopped
    }
}

impl<S> GuestSide<S> {
    pub fn open(
        handle: Handle<S>,
        volume: VolumeId,
        disk: LiveDisk,
        queues: u16,
        comer: Comer,
    ) -> Result<GuestSide<S>, DataError> {
        let Comer { peer, kept, shared } = comer;
        let open = GuestOpen {
            peer,
            shared,
            volume,
            disk,
            queues,
            memory: Arc::new(GuestMemory::empty(Arc::default())),
        };
        let slot = handle.guest_open(open)??;
        Ok(GuestSide {
            handle,
            slot,
            kept,
            shared,
        })
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
        let until = Instant::now() + GOING_WAIT;
        loop {
            let started = self.ask(|answer| Order::Start(ring.clone(), answer))?;
            match started {
                Err(DataError::Taken(_)) if Instant::now() < until => sleep(LOOK),
                Err(DataError::Taken(why)) => {
                    tracing::warn!("a front end is refused: {why}");
                    return Err(DataError::Taken(why));
                }
                started => return started,
            }
        }
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

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn cache_kept(&mut self) -> Option<bool> {
        self.kept.write_back()
    }

    fn keep_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        let kept = self.kept.keep(write_back);
        kept.map_err(|error| DataError::Refused(format!("keep its cache mode: {error}")))
    }

    fn end(&mut self, in_order: bool) {
        self.handle.guest_end(self.slot, in_order);
    }
}
