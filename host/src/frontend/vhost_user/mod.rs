//! vhost-user-blk, the control side: what a front end says of its guest's memory and rings.
//!
//! Owns the messages, the guest's memory, the in-flight region and a thread for each front end. The
//! data side, which serves the rings, is whoever implements [`DataSide`]; it belongs to the shard.
//! Always true: a ring runs on the data side only between [`DataSide::start`] and
//! [`DataSide::stop`], with memory and region given before and all of the ring inside that memory.
//! Deliberately absent: requests, payload, and waiting for kicks.
//!
//! ```text
//! front end --messages--> connection --> messages --> handler --DataSide--> the shard
//!           --memfds----> guest_memory, region: shared by `Arc` with every request in flight
//! ```

mod advice;
mod cache;
pub mod capacity;
mod channel;
pub mod connection;
pub mod dirty;
pub mod guest_memory;
pub mod handler;
mod lost;
mod mapping;
mod messages;
pub mod queue;
pub mod region;
#[cfg(test)]
mod tests;
mod turn;

use guest_memory::GuestMemory;
use region::Region;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::Queue;
use vring::split::Setup;

/// A ring that is to run.
///
/// Each descriptor is an eventfd, which the front end holds as well: it can make every read and
/// write of it wait, whatever flags it had when it came. So the data side waits for kicks and
/// signals calls through its io_uring and never by a system call of its own.
#[derive(Clone, Debug)]
pub struct RingStart {
    pub queue: Queue,
    pub setup: Setup,
    /// For [`vring::rings::Rings::start`].
    pub base: u16,
    pub kick: Arc<OwnedFd>,
    /// Without it the guest looks by itself.
    pub call: Option<Arc<OwnedFd>>,
    /// Is signalled when the guest has broken the ring.
    pub error: Option<Arc<OwnedFd>>,
    /// The guest has used its rings before, here or elsewhere, and goes on with them.
    pub goes_on: bool,
}

/// Why the data side did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    #[error("the daemon is stopping")]
    Stopped,
    #[error(transparent)]
    Start(#[from] vring::rings::StartError),
    #[error(transparent)]
    Region(#[from] vring::inflight::RegionError),
    #[error("{0}")]
    Refused(String),
    /// Another client writes the disk.
    #[error("{0}")]
    Taken(String),
}

/// Whether a disk can be served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    Yes,
    /// From this call on: it knows nothing yet of what was said before.
    Now,
    /// Rings that are started wait until [`connection::Connections::awaken`].
    Later,
}

/// What serves the rings of one device. Every call returns when it has been done, so what the front
/// end hears of it is true; what fails has changed nothing.
pub trait DataSide: Send {
    /// Asked before a ring starts. Until it is open nothing else that is told counts.
    fn open(&mut self) -> Result<Open, DataError> {
        Ok(Open::Yes)
    }
    /// Requests taken from now on lie in this memory; those in flight keep theirs. Comes as well
    /// when the log of dirty pages went on or off, so that nobody who stores goes on without it.
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError>;
    /// Rings started from now on are tracked here. None runs.
    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError>;
    /// Serves a ring that does not run.
    fn start(&mut self, ring: RingStart) -> Result<(), DataError>;
    /// A ring that runs signals its completions, or the breach of its rules, elsewhere.
    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError>;
    /// Takes nothing more from a ring that runs, waits until all of its requests have ended, and
    /// says where its available half goes on.
    fn stop(&mut self, queue: Queue) -> Result<u16, DataError>;
    /// Whether the guest's cache is write-back. Where it is not, a write has ended when it is as
    /// durable as a flush makes it.
    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError>;
    /// Whether rings of several front ends may run at a time.
    fn is_shared(&self) -> bool {
        false
    }
    /// What this front end believes of the guest's cache, from an earlier connection.
    fn cache_kept(&mut self) -> Option<bool> {
        None
    }
    /// Keeps that for its next connection; returns when it is durable.
    fn keep_cache(&mut self, _write_back: bool) -> Result<(), DataError> {
        Ok(())
    }
    /// What its guest believed of the cache where it ran before, if another host has said so.
    fn cache_handed(&mut self) -> Option<bool> {
        None
    }
    /// Its rings have stopped and all that it wrote is durable: its guest goes on elsewhere, or
    /// later, and believes this of the cache.
    fn sleep(&mut self, _write_back: bool) {}
    /// The front end is gone, and no ring runs. In order: it had stopped all of them itself, and
    /// its guest does not go on elsewhere or later.
    fn end(&mut self, in_order: bool);
}
