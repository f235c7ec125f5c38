//! Whose rings run, of the front ends that are connected to one device.
//!
//! Always true: rings of two front ends never run at a time, unless the device is shared. The first
//! ring that starts takes the turn, the last that stops gives it back. A front end that wants it
//! while another one lives and has it waits a moment, for one that is just stopping, and is refused
//! then; one that comes after a front end that is gone waits until the rings of that one are
//! drained. While the device rests, because its volume goes to another host, no ring starts.
//!
//! ```text
//! nobody --start--> first --all stopped, or drained after its end--> nobody --start--> second
//! ```

use super::connection::{Shared, State};
use super::guest_memory::GuestMemory;
use super::region::Region;
use super::{DataError, DataSide, Open, RingStart};
use crate::sys;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vring::Queue;

/// How long the rings of a front end that lives may take to stop.
const STOPPING_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked whether it lives.
const LOOK: Duration = Duration::from_millis(50);

/// A data side that runs rings only in its turn.
pub(super) struct Turn<D> {
    shared: Arc<Shared>,
    device: String,
    id: u64,
    data: D,
    running: BTreeSet<u16>,
}

impl<D> Turn<D> {
    pub fn new(shared: Arc<Shared>, device: String, id: u64, data: D) -> Turn<D> {
        Turn {
            shared,
            device,
            id,
            data,
            running: BTreeSet::new(),
        }
    }

    fn take(&self) -> Result<(), DataError>
    where
        D: DataSide,
    {
        if self.data.is_shared() {
            return Ok(());
        }
        let until = Instant::now() + STOPPING_WAIT;
        let mut state = self.shared.state();
        loop {
            let seats = state.seats.get_mut(&self.device);
            let seats = seats.expect("a seat until we stand up");
            if seats.runs.is_none_or(|id| id == self.id) {
                seats.runs = Some(self.id);
                return Ok(());
            }
            let runs = seats.all.iter().find(|seat| seats.runs == Some(seat.id));
            let lives = runs.is_some_and(|seat| !sys::reader_is_gone(&seat.stream));
            if lives && Instant::now() >= until {
                let why = "the rings of another front end of this volume run";
                let name = &self.device;
                tracing::warn!(volume = %name, "volume {name}: a front end is refused: {why}");
                return Err(DataError::Refused(why.into()));
            }
            let waited = self.shared.ended.wait_timeout(state, LOOK);
            state = waited.expect("no panic with this lock").0;
        }
    }

    fn give_back(&self) {
        let mut state: std::sync::MutexGuard<'_, State> = self.shared.state();
        if let Some(seats) = state.seats.get_mut(&self.device)
            && seats.runs == Some(self.id)
        {
            seats.runs = None;
        }
        drop(state);
        self.shared.ended.notify_all();
    }
}

impl<D: DataSide> DataSide for Turn<D> {
    fn open(&mut self) -> Result<Open, DataError> {
        match self.shared.rests(&self.device) {
            true => Ok(Open::Later),
            false => self.data.open(),
        }
    }

    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        self.data.memory(memory)
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        self.data.region(region)
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        let queue = ring.queue.0;
        if self.running.is_empty() {
            self.take()?;
        }
        let started = self.data.start(ring);
        if started.is_ok() {
            self.shared.has_run(&self.device, self.id);
            self.running.insert(queue);
        } else if self.running.is_empty() {
            self.give_back();
        }
        started
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        self.data.signal(queue, call, error)
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        let base = self.data.stop(queue)?;
        self.running.remove(&queue.0);
        if self.running.is_empty() {
            self.give_back();
        }
        Ok(base)
    }

    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        self.data.write_cache(write_back)
    }

    fn is_shared(&self) -> bool {
        self.data.is_shared()
    }

    fn cache_kept(&mut self) -> Option<bool> {
        self.data.cache_kept()
    }

    fn keep_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        self.data.keep_cache(write_back)
    }

    fn cache_handed(&mut self) -> Option<bool> {
        self.data.cache_handed()
    }

    fn sleep(&mut self, write_back: bool) {
        self.data.sleep(write_back);
        self.shared.sleeps(&self.device, self.id, write_back);
    }

    fn end(&mut self, in_order: bool) {
        self.data.end(in_order);
        self.give_back();
    }
}
