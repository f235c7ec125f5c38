//! A disk that does nothing behind the product's own messages: what the front end can do at most.
//!
//! Owns one thread for its rings. Always true: requests are looked at and answered, each round with
//! one interrupt at most; the thread looks at the rings all the time while there is something, and
//! sleeps soon after. So what is left is the cost of the rings and of the client.

use super::rings::Rings;
use crate::vhost_client::Wait;
use host::frontend::vhost_user::connection::Connections;
use host::frontend::vhost_user::guest_memory::GuestMemory;
use host::frontend::vhost_user::handler::Description;
use host::frontend::vhost_user::region::Region;
use host::frontend::vhost_user::{DataError, DataSide, RingStart};
use host::sys;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vring::Queue;
use vring::block::{Disk, Parsed, Scratch, Status};
use vring::chain::Batch;
use vring::config::Hints;
use vring::rings::{Rings as Device, Shared};

/// How long it looks at rings in which nothing happens.
const LOOK: Duration = Duration::from_micros(100);
const TAKE_MAX: usize = 64;
const DISK_SECTORS: u64 = 1 << 40;

enum Order {
    Memory(Arc<GuestMemory>),
    Region(Arc<Region>),
    Start(Box<RingStart>),
    Signal(Queue, Option<Arc<OwnedFd>>),
    Stop(Queue),
}

type Answer = Result<u16, DataError>;

/// The control side's end.
struct Side {
    orders: Sender<(Order, Sender<Answer>)>,
    /// Wakes the thread for an order.
    bell: Arc<EventFd>,
}

impl Side {
    fn order(&self, order: Order) -> Answer {
        let (answer, is_done) = channel();
        let sent = self.orders.send((order, answer));
        sent.map_err(|_| DataError::Stopped)?;
        // A bell that rings already rings.
        let _ = self.bell.write(1);
        is_done.recv().map_err(|_| DataError::Stopped)?
    }
}

impl DataSide for Side {
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        self.order(Order::Memory(memory)).map(drop)
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        self.order(Order::Region(region)).map(drop)
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        self.order(Order::Start(Box::new(ring))).map(drop)
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        _error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        self.order(Order::Signal(queue, call)).map(drop)
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        self.order(Order::Stop(queue))
    }

    fn write_cache(&mut self, _write_back: bool) -> Result<(), DataError> {
        Ok(())
    }

    fn end(&mut self, _in_order: bool) {
        // The thread ends when nobody can order any more.
    }
}

/// A ring that runs.
struct Lane {
    queue: Queue,
    kick: File,
    call: Option<File>,
}

/// The rings.
struct Null {
    disk: Disk,
    orders: Receiver<(Order, Sender<Answer>)>,
    bell: Arc<EventFd>,
    memory: Option<Arc<GuestMemory>>,
    region: Option<Arc<Region>>,
    rings: Option<Device>,
    lanes: Vec<Lane>,
    batch: Batch,
    scratch: Scratch,
}

/// A client with its disk; the disk ends with the client.
pub fn connect(queues: u16, depth: usize, wait: Wait) -> io::Result<Rings> {
    let (ours, theirs) = UnixStream::pair()?;
    let disk = Disk {
        capacity_sectors: DISK_SECTORS,
        block_bytes: 512,
        read_only: false,
        flush: true,
        discard: None,
        write_zeroes: None,
        data_bytes_max: 1 << 20,
        segments_max: 126,
        id: [0; 20],
    };
    let hints = Hints {
        physical_block_bytes: 4096,
        optimal_bytes: 0,
        queues,
        writeback: true,
    };
    let bell = Arc::new(EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?);
    let (orders, taken) = channel();
    let null = Null {
        disk: disk.clone(),
        orders: taken,
        bell: bell.clone(),
        memory: None,
        region: None,
        rings: None,
        lanes: Vec::new(),
        batch: Batch::default(),
        scratch: Scratch::default(),
    };
    thread::Builder::new()
        .name("bench-null".into())
        .spawn(move || null.run())?;
    let side = Side { orders, bell };
    let description = Description { disk, hints };
    let connections = Connections::new(1);
    let let_in = move |_| Ok((description, side));
    let connected = connections.connect("null", theirs, let_in);
    connected.map_err(io::Error::other)?;
    Rings::from_stream(ours, queues, depth, wait)
}

impl Null {
    /// Until the control side is gone.
    fn run(mut self) {
        let mut busy = Instant::now();
        loop {
            match self.orders.try_recv() {
                Ok((order, answer)) => {
                    let done = self.carry_out(order);
                    // Nobody may wait for it any more.
                    let _ = answer.send(done);
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            if self.round() {
                busy = Instant::now();
            } else if busy.elapsed() > LOOK && !self.sleep() {
                return;
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Answer {
        match order {
            Order::Memory(memory) => self.memory = Some(memory),
            Order::Region(region) => {
                self.rings = Some(Device::open(region.layout(), &*region)?);
                self.region = Some(region);
            }
            Order::Start(start) => {
                let (queue, setup, base) = (start.queue, start.setup, start.base);
                let (rings, shared) = self.parts().ok_or(DataError::Stopped)?;
                rings.start(queue, setup, base, &shared)?;
                self.lanes.push(Lane {
                    queue,
                    kick: file(&start.kick)?,
                    call: start.call.as_ref().map(file).transpose()?,
                });
            }
            Order::Signal(queue, call) => {
                let call = call.as_ref().map(file).transpose()?;
                let lane = self.lanes.iter_mut().find(|lane| lane.queue == queue);
                lane.ok_or(DataError::Stopped)?.call = call;
            }
            Order::Stop(queue) => {
                self.lanes.retain(|lane| lane.queue != queue);
                let rings = self.rings.as_mut().ok_or(DataError::Stopped)?;
                // Everything that was taken has been answered in its round.
                return Ok(rings.stop(queue).unwrap_or(0));
            }
        }
        Ok(0)
    }

    fn parts(&mut self) -> Option<(&mut Device, Shared<'_, GuestMemory, Region>)> {
        let shared = Shared {
            guest: &**self.memory.as_ref()?,
            region: &**self.region.as_ref()?,
        };
        Some((self.rings.as_mut()?, shared))
    }

    /// Answers what there is. True if there was something.
    fn round(&mut self) -> bool {
        let (Some(memory), Some(region)) = (&self.memory, &self.region) else {
            return false;
        };
        let shared = Shared {
            guest: &**memory,
            region: &**region,
        };
        let Some(rings) = self.rings.as_mut() else {
            return false;
        };
        let mut found = false;
        for lane in &self.lanes {
            self.batch.clear();
            // A ring that is broken stands still, and its client says so after a while.
            let taken = rings.take(lane.queue, &shared, TAKE_MAX, &mut self.batch);
            if !matches!(taken, Ok(1..)) {
                continue;
            }
            found = true;
            for (taken, chain) in self.batch.iter() {
                let (status, reply) = match self.disk.parse(&chain, &**memory, &mut self.scratch) {
                    Parsed::Answer { status, reply } => (status, reply),
                    Parsed::Run { reply, .. } => (Status::Ok, reply),
                };
                let written = reply.finish(&**memory, status);
                rings.complete(taken.queue, taken.head, written);
            }
            if rings.publish(lane.queue, &shared) == Ok(true)
                && let Some(mut call) = lane.call.as_ref()
            {
                // A client that is gone needs no call.
                let _ = call.write(&1u64.to_ne_bytes());
            }
        }
        found
    }

    /// Waits for a kick or an order. False when that never comes.
    fn sleep(&mut self) -> bool {
        let queues: Vec<Queue> = self.lanes.iter().map(|lane| lane.queue).collect();
        if let Some((rings, shared)) = self.parts()
            && queues
                .iter()
                .any(|&queue| rings.ask_for_kick(queue, &shared) == Ok(true))
        {
            return true;
        }
        let kicks = self.lanes.iter().map(|lane| lane.kick.as_raw_fd());
        let all = kicks.chain([self.bell.as_raw_fd()]);
        let Ok(rung) = sys::wait_any(all, Duration::from_secs(3600)) else {
            return false;
        };
        // What has been taken by nobody else is there, and the bell need not ring.
        let _ = match rung.and_then(|at| self.lanes.get(at)) {
            Some(lane) => (&lane.kick).read(&mut [0; 8]),
            None => self.bell.read().map(|_| 0),
        };
        true
    }
}

fn file(event: &Arc<OwnedFd>) -> Result<File, DataError> {
    let copy = event.try_clone();
    copy.map(File::from)
        .map_err(|error| DataError::Refused(error.to_string()))
}
