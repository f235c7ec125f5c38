//! The data side of a front end whose volume is served on another host, until it is served here.
//!
//! ```text
//! shown the disk ── a ring is started ─▶ waits ── the volume is served here ─▶ a guest
//! ```
//! Always true: who is only shown the disk asks for nothing, so that the guest that uses it on the
//! other host is not disturbed; from the first ring that is started until the volume is served here
//! it counts as one that waits. What it is told before is told again then. Deliberately absent: who
//! serves the volume.

use super::kept::Kept;
use super::side::GuestSide;
use crate::frontend::vhost_user::guest_memory::GuestMemory;
use crate::frontend::vhost_user::region::Region;
use crate::frontend::vhost_user::{DataError, DataSide, Open, RingStart};
use crate::waiting::{Ticket, Waiting};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use vring::Queue;

/// What opens it, and nothing while the volume is not served here.
pub type Opens<S> = Box<dyn Fn() -> Result<Option<GuestSide<S>>, DataError> + Send>;

pub struct StandbySide<S> {
    name: String,
    opens: Opens<S>,
    waiting: Waiting,
    kept: Kept,
    /// What another host has said of the guest's cache.
    handed: Box<dyn Fn() -> Option<bool> + Send>,
    /// Since when its rings wait.
    ticket: Option<(Ticket, Instant)>,
    side: Option<GuestSide<S>>,
}

impl<S> StandbySide<S> {
    pub fn new(
        name: String,
        opens: Opens<S>,
        waiting: Waiting,
        kept: Kept,
        handed: Box<dyn Fn() -> Option<bool> + Send>,
    ) -> StandbySide<S> {
        StandbySide {
            name,
            opens,
            waiting,
            kept,
            handed,
            ticket: None,
            side: None,
        }
    }

    fn side(&mut self) -> Result<&mut GuestSide<S>, DataError> {
        let elsewhere = || DataError::Refused("its volume is served on another host".into());
        self.side.as_mut().ok_or_else(elsewhere)
    }
}

impl<S: Send> DataSide for StandbySide<S> {
    fn open(&mut self) -> Result<Open, DataError> {
        if self.side.is_some() {
            return Ok(Open::Yes);
        }
        self.side = (self.opens)()?;
        if self.side.is_none() {
            let waiting = &self.waiting;
            self.ticket
                .get_or_insert_with(|| (waiting.enter(), Instant::now()));
            return Ok(Open::Later);
        }
        if let Some((_, since)) = self.ticket.take() {
            let (name, waited) = (&self.name, since.elapsed().as_millis());
            tracing::info!(
                volume = %name,
                "volume {name}: is served here for a guest that has come; it waited {waited} ms"
            );
        }
        Ok(Open::Now)
    }

    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        self.side.as_mut().map_or(Ok(()), |it| it.memory(memory))
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        self.side.as_mut().map_or(Ok(()), |it| it.region(region))
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        self.side()?.start(ring)
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        let side = self.side.as_mut();
        side.map_or(Ok(()), |it| it.signal(queue, call, error))
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        self.side()?.stop(queue)
    }

    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        let side = self.side.as_mut();
        side.map_or(Ok(()), |it| it.write_cache(write_back))
    }

    fn is_shared(&self) -> bool {
        self.side.as_ref().is_some_and(DataSide::is_shared)
    }

    fn cache_kept(&mut self) -> Option<bool> {
        self.kept.write_back()
    }

    fn cache_handed(&mut self) -> Option<bool> {
        (self.handed)()
    }

    fn keep_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        self.side()?.keep_cache(write_back)
    }

    fn end(&mut self, in_order: bool) {
        self.ticket = None;
        if let Some(side) = &mut self.side {
            side.end(in_order);
        }
    }
}
