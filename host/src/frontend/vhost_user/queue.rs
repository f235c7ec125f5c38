//! What a front end has said of one queue, and how its ring stands.
//!
//! Owns the plain data of it. Always true: `running` is what the data side serves right now; a
//! queue that does not run has its `base` where the ring would go on.
//!
//! ```text
//! stopped --kick--> started, not enabled --enable--> running --base is asked--> stopped
//!             \--enabled, or no protocol features--------^ |^
//!                         disabled, or not in the memory --+|  drained, goes on at the same base
//!                         enabled again, in the memory -----+
//! ```

use super::guest_memory::GuestMemory;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vring::split::Setup;

/// Where a ring lies, in the space of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// What is negotiated for all rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub event_idx: bool,
    pub indirect: bool,
}

/// Why a queue cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    #[error("queue {0} has no size")]
    Size(u16),
    #[error("queue {0} has no addresses")]
    Halves(u16),
    #[error("the ring of queue {0} is not in the guest's memory")]
    Outside(u16),
}

#[derive(Debug, Default)]
pub struct RingState {
    pub size: Option<u16>,
    pub base: u16,
    pub halves: Option<Halves>,
    /// Where the used half is noted in the log of dirty pages.
    pub used_log: Option<u64>,
    /// There from the message that starts the ring to the one that stops it.
    pub kick: Option<Arc<OwnedFd>>,
    pub call: Option<Arc<OwnedFd>>,
    pub error: Option<Arc<OwnedFd>>,
    pub enabled: bool,
    pub running: Option<Setup>,
}

impl RingState {
    /// The ring as it lies in this memory.
    pub fn setup(
        &self,
        queue: u16,
        options: Options,
        memory: &GuestMemory,
    ) -> Result<Setup, NotReady> {
        use vring::memory::Memory;
        let size = self.size.ok_or(NotReady::Size(queue))?;
        let halves = self.halves.ok_or(NotReady::Halves(queue))?;
        let translate = |user| memory.translate(user).ok_or(NotReady::Outside(queue));
        let setup = Setup {
            size,
            descriptors: translate(halves.descriptors)?,
            available: translate(halves.available)?,
            used: translate(halves.used)?,
            event_idx: options.event_idx,
            indirect: options.indirect,
        };
        let starts = [setup.descriptors, setup.available, setup.used];
        for (at, bytes) in starts.into_iter().zip(setup.bytes()) {
            let inside = memory.check(at, bytes);
            inside.map_err(|_| NotReady::Outside(queue))?;
        }
        Ok(setup)
    }

    /// As before the front end said anything.
    pub fn reset(&mut self) {
        assert!(self.running.is_none(), "a ring is stopped before");
        *self = RingState::default();
    }
}
