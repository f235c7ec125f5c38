//! A guest that drives its queues, and sleeps until it is woken.
//!
//! Owns the driver's end of all queues and what each request looks like. Always true: the guest
//! looks at used entries only after an interrupt, and kicks only when it is asked to, so that a
//! lost wish to be woken shows as a guest that waits for ever; the bytes of a request lie where no
//! other's do while it is in flight.

use super::World;
use super::daemon::Daemon;
use crate::rng::Rng;
use vring::block::{IN, OUT};
use vring::driver::Driver;
use vring::inflight::Layout;
use vring::memory::{Address, Bytes, Memory, Segment};
use vring::split::Setup;
use vring::{Head, Queue};

const RING_STRIDE: u64 = 0x4000;
const BUFFERS: u64 = 0x20000;
const QUEUE_BUFFERS: u64 = 0x10000;
const BUFFER_STRIDE: u64 = 1024;
/// Header, one sector of payload, status, and a table, in this order.
const PAYLOAD: u64 = 16;
const STATUS: u64 = PAYLOAD + 512;
const TABLE: u64 = 640;
const NO_STATUS: u8 = 0xff;

struct Line {
    driver: Driver,
    /// Request and buffer of each head in flight.
    requests: Vec<Option<(u64, u32, u64)>>,
    buffers: Vec<u64>,
    interrupted: bool,
}

pub struct Guest {
    lines: Vec<Line>,
    next_id: u64,
}

impl Guest {
    pub fn new(rng: &mut Rng, layout: Layout, memory: &Bytes) -> Guest {
        let (event_idx, indirect) = (rng.chance(500), rng.chance(500));
        let lines = (0..u64::from(layout.queues)).map(|queue| {
            let at = RING_STRIDE * (queue + 1);
            let setup = Setup {
                size: layout.size,
                descriptors: Address(at),
                available: Address(at + 0x1000),
                used: Address(at + 0x2000),
                event_idx,
                indirect,
            };
            // Near the end of the indices, or anywhere.
            let anywhere = rng.word() as u16;
            let base = rng.pick(&[0, 65530, anywhere]);
            let first = BUFFERS + QUEUE_BUFFERS * queue;
            let buffers = (0..u64::from(layout.size)).map(|at| first + at * BUFFER_STRIDE);
            Line {
                driver: Driver::new(setup, base, memory).expect("a ring inside"),
                requests: vec![None; usize::from(layout.size)],
                buffers: buffers.collect(),
                interrupted: false,
            }
        });
        Guest {
            lines: lines.collect(),
            next_id: 0,
        }
    }

    pub fn setup(&self, queue: Queue) -> Setup {
        *self.lines[usize::from(queue.0)].driver.setup()
    }

    /// Everything asked for is answered.
    pub fn is_quiet(&self) -> bool {
        self.lines.iter().all(|line| line.driver.in_flight() == 0)
    }

    pub fn describe(&self) -> String {
        let lines = self.lines.iter();
        let counts: Vec<u16> = lines.map(|line| line.driver.in_flight()).collect();
        format!("{counts:?} requests of the queues wait for an answer")
    }

    pub fn interrupt(&mut self, queue: Queue) {
        self.lines[usize::from(queue.0)].interrupted = true;
    }

    /// A few requests on one queue, shown together.
    pub fn offer(&mut self, world: &mut World, daemon: &mut Daemon) -> Result<(), String> {
        let queue = world.rng.below(self.lines.len() as u64) as usize;
        for _ in 0..world.rng.range(1, 4) {
            self.offer_one(world, queue);
        }
        let line = &mut self.lines[queue];
        let kick = line.driver.show(&world.machine.guest);
        if kick.expect("a ring inside") {
            daemon.kick(Queue(queue as u16));
        }
        Ok(())
    }

    fn offer_one(&mut self, world: &mut World, queue: usize) {
        let line = &mut self.lines[queue];
        let memory = &world.machine.guest;
        let Some(buffer) = line.buffers.pop() else {
            return;
        };
        let id = self.next_id;
        let kind = world.rng.pick(&[IN, OUT, OUT]);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&id.to_le_bytes());
        memory.write(Address(buffer), &header).expect("inside");
        let status = Address(buffer + STATUS);
        memory.store_u8(status, NO_STATUS).expect("inside");
        let cut = match kind {
            OUT => STATUS,
            _ => PAYLOAD,
        };
        let readable = pieces(&mut world.rng, buffer, 0, cut);
        let writable = pieces(&mut world.rng, buffer, cut, STATUS + 1);
        let indirect = line.driver.setup().indirect && world.rng.chance(700);
        let table = indirect.then_some(Address(buffer + TABLE));
        let offered = line.driver.offer(memory, &readable, &writable, table);
        match offered.expect("a ring inside") {
            Some(head) => {
                line.requests[usize::from(head.0)] = Some((id, kind, buffer));
                self.next_id += 1;
                world.oracle.offered(id);
                world.counters.requests += 1;
            }
            None => line.buffers.push(buffer),
        }
    }

    /// Looks at what is used, on a queue that was interrupted.
    pub fn reap(&mut self, world: &mut World) -> Result<(), String> {
        let queue = world.rng.below(self.lines.len() as u64) as usize;
        let memory = &world.machine.guest;
        if !std::mem::take(&mut self.lines[queue].interrupted) {
            return Ok(());
        }
        world.counters.interrupts += 1;
        loop {
            let line = &mut self.lines[queue];
            let used = line.driver.reap(memory);
            let used = used.map_err(|error| format!("queue {queue}: {error}"))?;
            let Some((head, written)) = used else {
                let in_flight = u64::from(line.driver.in_flight());
                let count = 1 + world.rng.below(in_flight.max(1)) as u16;
                let more = line.driver.ask_for_interrupt_after(memory, count);
                if !more.expect("a ring inside") {
                    return Ok(());
                }
                continue;
            };
            let id = line.answered(memory, head, written)?;
            world.oracle.answered(id)?;
        }
    }
}

impl Line {
    /// Checks an answer, and gives its buffer back.
    fn answered(&mut self, memory: &Bytes, head: Head, written: u32) -> Result<u64, String> {
        let request = self.requests[usize::from(head.0)].take();
        let (id, kind, buffer) = request.expect("the driver knows its heads");
        let mut status = [0];
        let at = Address(buffer + STATUS);
        memory.read(at, &mut status).expect("inside");
        let expected = if kind == IN { 513 } else { 1 };
        if (status, written) != ([0], expected) {
            return Err(format!(
                "request {id} ends with status {status:?} and {written} bytes"
            ));
        }
        self.buffers.push(buffer);
        Ok(id)
    }
}

/// The bytes from `first` to `end` of a buffer, in one or two segments.
fn pieces(rng: &mut Rng, buffer: u64, first: u64, end: u64) -> Vec<Segment> {
    let segment = |first: u64, end: u64| Segment {
        at: Address(buffer + first),
        bytes: (end - first) as u32,
    };
    match end - first > 1 && rng.chance(500) {
        true => {
            let cut = rng.range(first + 1, end);
            vec![segment(first, cut), segment(cut, end)]
        }
        false => vec![segment(first, end)],
    }
}
