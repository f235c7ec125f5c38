//! The rings of one device, with what survives a kill of its daemon.
//!
//! Owns the order between a ring and its in-flight region, and the order in which requests run over
//! all queues. Always true: a request is noted before the host has it; everything that a killed
//! daemon left behind is handed out, in the order in which it was first taken over all queues,
//! before anything new; each request is completed exactly once, wherever between two stores a kill
//! hits, in a repair as well. Deliberately absent: what a request is, and whether it was done
//! before the kill. The host knows from its stage, by queue, head and counter, and then completes
//! it without doing it again.
//!
//! ```text
//! open -> start (each queue) -> take_again until it gives nothing -> take, complete, publish
//!                                        stop (each queue, when the host has nothing of it)
//! ```

use crate::adversary::{Bug, has};
use crate::chain::{Batch, Taken};
use crate::inflight::{Layout, RegionError, Tracker};
use crate::memory::Memory;
use crate::split::{Broken, Ring, Setup, SetupError};
use crate::{Counter, Head, Queue};
use alloc::vec::Vec;

/// The two memories of a device.
#[derive(Debug)]
pub struct Shared<'a, G, R> {
    pub guest: &'a G,
    /// The region of the front end, or one of our own that ends with us.
    pub region: &'a R,
}

/// Why a ring does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("there is no queue {0:?}")]
    Queue(Queue),
    #[error("queue {0:?} runs already")]
    Running(Queue),
    #[error("queue {0:?} has {1} descriptors, its in-flight region {2}")]
    Size(Queue, u16, u16),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Region(#[from] RegionError),
}

#[derive(Debug)]
struct Slot {
    tracker: Tracker,
    ring: Option<Ring>,
    /// Its region has requests of a killed daemon, and its ring has not started.
    owing: bool,
}

/// All queues of a device.
#[derive(Debug)]
pub struct Rings {
    layout: Layout,
    slots: Vec<Slot>,
    next_counter: u64,
    /// What a killed daemon left; the last is the next.
    again: Vec<Taken>,
}

impl Rings {
    /// Reads a region that is new (all zeroes) or was used by a daemon before us.
    pub fn open(layout: Layout, region: &impl Memory) -> Result<Rings, RegionError> {
        layout.check()?;
        region.check(crate::memory::Address(0), layout.bytes())?;
        let mut rings = Rings {
            layout,
            slots: Vec::new(),
            next_counter: 0,
            again: Vec::new(),
        };
        for queue in (0..layout.queues).map(Queue) {
            let tracker = Tracker::new(&layout, queue);
            let found = tracker.find(region)?;
            if !has(Bug::ReuseCounters) {
                rings.next_counter = rings.next_counter.max(found.counter_end);
            }
            rings.slots.push(Slot {
                tracker,
                ring: None,
                owing: !found.flagged.is_empty(),
            });
        }
        Ok(rings)
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Starts a ring. `base` is where its available half goes on; it counts only for a ring that
    /// never ran with this region, because the region knows better what a killed daemon had taken.
    pub fn start<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        setup: Setup,
        base: u16,
        shared: &Shared<G, R>,
    ) -> Result<(), StartError> {
        let size = self.layout.size;
        let slot = self.slots.get_mut(usize::from(queue.0));
        let slot = slot.ok_or(StartError::Queue(queue))?;
        if slot.ring.is_some() {
            return Err(StartError::Running(queue));
        }
        if setup.size > size {
            return Err(StartError::Size(queue, setup.size, size));
        }
        let mut ring = Ring::new(setup, shared.guest)?;
        let mut found = slot.tracker.find(shared.region)?;
        slot.tracker
            .repair(shared.region, &mut found, ring.used_index())?;
        if !found.used {
            ring.set_base(base);
        }
        for (head, counter) in found.flagged {
            if head.0 >= setup.size {
                return Err(RegionError::Head(queue, head.0).into());
            }
            ring.resume(head);
            let taken = Taken {
                queue,
                head,
                counter,
            };
            self.again.push(taken);
        }
        // Counters differ; in a region that somebody else wrote, the rest decides.
        self.again
            .sort_unstable_by_key(|it| core::cmp::Reverse((it.counter, it.queue, it.head)));
        if !has(Bug::ReuseCounters) {
            self.next_counter = self.next_counter.max(found.counter_end);
        }
        slot.owing = false;
        slot.ring = Some(ring);
        Ok(())
    }

    /// Queues that must start before anything runs, because their region says that a killed daemon
    /// had requests of theirs.
    pub fn owing(&self) -> impl Iterator<Item = Queue> {
        let owing = self.slots.iter().enumerate().filter(|(_, slot)| slot.owing);
        owing.map(|(queue, _)| Queue(queue as u16))
    }

    /// How many requests of a killed daemon have not been handed out.
    pub fn again(&self) -> usize {
        self.again.len()
    }

    /// Hands out up to `limit` requests of a killed daemon, oldest first over all queues. Nothing
    /// while queues are owing. Where a guest has changed such a chain so that it is none, its ring
    /// is broken.
    pub fn take_again<G: Memory, R: Memory>(
        &mut self,
        shared: &Shared<G, R>,
        limit: usize,
        batch: &mut Batch,
    ) -> usize {
        if self.slots.iter().any(|slot| slot.owing) {
            return 0;
        }
        let mut given = 0;
        while given < limit {
            let oldest = match has(Bug::RunNewestFirst) {
                true => self.again.drain(..1).next(),
                false => self.again.pop(),
            };
            let Some(taken) = oldest else { break };
            let slot = &mut self.slots[usize::from(taken.queue.0)];
            let ring = slot.ring.as_mut().expect("what runs again is of a ring");
            if ring.broken().is_some() {
                continue;
            }
            match ring.walk(shared.guest, taken.head, batch) {
                Ok(ends) => {
                    ring.give(taken.head);
                    batch.push(taken, ends);
                    given += 1;
                }
                Err(reason) => ring.set_broken(reason),
            }
        }
        given
    }

    /// Takes up to `limit` requests that the guest has made available, and adds them to the batch.
    /// None while requests of a killed daemon wait, or the ring does not run.
    pub fn take<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        shared: &Shared<G, R>,
        limit: usize,
        batch: &mut Batch,
    ) -> Result<usize, Broken> {
        if !self.again.is_empty() || self.slots.iter().any(|slot| slot.owing) {
            return Ok(0);
        }
        let slot = &mut self.slots[usize::from(queue.0)];
        let Some(ring) = slot.ring.as_mut() else {
            return Ok(0);
        };
        if let Some(reason) = ring.broken() {
            return Err(reason);
        }
        let mut given = 0;
        let mut take_one = |ring: &mut Ring| {
            let (head, ends) = ring.peek(shared.guest, batch)?;
            let counter = Counter(self.next_counter);
            slot.tracker.mark(shared.region, head, counter)?;
            self.next_counter += 1;
            ring.advance(head);
            ring.give(head);
            let taken = Taken {
                queue,
                head,
                counter,
            };
            batch.push(taken, ends);
            given += 1;
            Ok(())
        };
        let taken = ring.waiting(shared.guest).and_then(|waiting| {
            let count = limit.min(usize::from(waiting));
            (0..count).try_for_each(|_| take_one(ring))
        });
        if let Err(reason) = taken {
            ring.set_broken(reason);
            if given == 0 {
                return Err(reason);
            }
        }
        Ok(given)
    }

    /// A request has ended, with so many bytes written from the start of its writable segments. The
    /// guest sees it with the next [`Rings::publish`].
    pub fn complete(&mut self, queue: Queue, head: Head, written: u32) {
        let slot = &mut self.slots[usize::from(queue.0)];
        let ring = slot.ring.as_mut().expect("a ring that gave a request runs");
        ring.complete(head, written);
    }

    /// How many requests were completed and not shown.
    pub fn unshown(&self, queue: Queue) -> usize {
        let ring = self.slots[usize::from(queue.0)].ring.as_ref();
        ring.map_or(0, |ring| ring.done().len())
    }

    /// Shows the guest what was completed so far, without an interrupt: [`Rings::publish`] comes
    /// when no more does, and speaks for all of it. A guest that looks by itself goes on at once.
    pub fn show<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        shared: &Shared<G, R>,
    ) -> Result<(), Broken> {
        self.with_ring(queue, (), |ring, tracker| {
            Self::show_ring(ring, tracker, shared)
        })
    }

    /// Shows the guest what was completed, all at once. Says whether it wants an interrupt; at the
    /// first call after a start always, because of what a killed daemon may have published.
    pub fn publish<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        shared: &Shared<G, R>,
    ) -> Result<bool, Broken> {
        self.with_ring(queue, false, |ring, tracker| {
            Self::show_ring(ring, tracker, shared)?;
            Ok(ring.wants_interrupt(shared.guest)?)
        })
    }

    /// What is shown on a ring; `without` where it does not run.
    fn with_ring<T>(
        &mut self,
        queue: Queue,
        without: T,
        show: impl FnOnce(&mut Ring, &mut Tracker) -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        let slot = &mut self.slots[usize::from(queue.0)];
        let Some(ring) = slot.ring.as_mut() else {
            return Ok(without);
        };
        show(ring, &mut slot.tracker).inspect_err(|reason| {
            ring.set_broken(*reason);
            // Nobody will ever be shown these; the end of the ring must not wait for that.
            ring.forget_done();
        })
    }

    fn show_ring<G: Memory, R: Memory>(
        ring: &mut Ring,
        tracker: &mut Tracker,
        shared: &Shared<G, R>,
    ) -> Result<(), Broken> {
        if ring.done().is_empty() {
            return Ok(());
        }
        ring.write_used(shared.guest)?;
        for done in ring.done() {
            tracker.link(shared.region, done.head)?;
        }
        ring.store_used_index(shared.guest)?;
        for done in ring.done().iter().filter(|_| !has(Bug::KeepFlag)) {
            tracker.clear(shared.region, done.head)?;
        }
        tracker.settle(shared.region, ring.used_index())?;
        ring.forget_done();
        Ok(())
    }

    /// Whether [`Rings::take`] would find something in this queue, or see that it is broken.
    pub fn has_more<G: Memory, R: Memory>(&self, queue: Queue, shared: &Shared<G, R>) -> bool {
        if !self.again.is_empty() || self.slots.iter().any(|slot| slot.owing) {
            return false;
        }
        let ring = self.slots[usize::from(queue.0)].ring.as_ref();
        let ring = ring.filter(|ring| ring.broken().is_none());
        ring.is_some_and(|ring| ring.waiting(shared.guest) != Ok(0))
    }

    /// Asks the guest for a kick at its next request. True if there is one already: then the host
    /// takes it instead of waiting.
    pub fn ask_for_kick<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        shared: &Shared<G, R>,
    ) -> Result<bool, Broken> {
        let Some(ring) = self.slots[usize::from(queue.0)].ring.as_mut() else {
            return Ok(false);
        };
        if let Some(reason) = ring.broken() {
            return Err(reason);
        }
        let asked = ring.ask_for_kick(shared.guest);
        asked.inspect_err(|reason| ring.set_broken(*reason))
    }

    /// Tells the guest not to kick, because the host looks by itself.
    pub fn refuse_kicks<G: Memory, R: Memory>(
        &mut self,
        queue: Queue,
        shared: &Shared<G, R>,
    ) -> Result<(), Broken> {
        let Some(ring) = self.slots[usize::from(queue.0)].ring.as_mut() else {
            return Ok(());
        };
        let refused = ring.refuse_kicks(shared.guest).map_err(Broken::from);
        refused.inspect_err(|reason| ring.set_broken(*reason))
    }

    /// Stops a ring and says where its available half would go on. None while the host has
    /// requests of it, or requests of a killed daemon wait; the ring then runs on.
    pub fn stop(&mut self, queue: Queue) -> Option<u16> {
        let slot = &mut self.slots[usize::from(queue.0)];
        let ring = slot.ring.as_ref()?;
        let done = ring.broken().is_some() || ring.in_flight() == 0;
        if !ring.is_idle() || !done {
            return None;
        }
        let base = ring.base();
        slot.ring = None;
        self.again.retain(|taken| taken.queue != queue);
        Some(base)
    }

    /// Why a ring stands still.
    pub fn broken(&self, queue: Queue) -> Option<Broken> {
        let ring = self.slots[usize::from(queue.0)].ring.as_ref();
        ring.and_then(Ring::broken)
    }

    pub fn is_running(&self, queue: Queue) -> bool {
        self.slots[usize::from(queue.0)].ring.is_some()
    }

    /// Requests of a queue that were taken and not published, those of a killed daemon included.
    pub fn in_flight(&self, queue: Queue) -> u16 {
        let ring = self.slots[usize::from(queue.0)].ring.as_ref();
        ring.map_or(0, Ring::in_flight)
    }
}
