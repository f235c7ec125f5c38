//! A device and its guest in one process: memory, rings, drivers, and chance.
//!
//! Always true: ring parts, indirect tables and buffers do not overlap, so that whoever writes
//! elsewhere is seen.

// Not every suite needs all of it.
#![allow(dead_code)]

use vring::driver::Driver;
use vring::inflight::Layout;
use vring::memory::{Address, Bytes, Memory, Segment};
use vring::rings::{Rings, Shared};
use vring::split::Setup;
use vring::{Head, Queue};

pub const GUEST_BYTES: u64 = 1 << 20;
/// Below lie rings, above tables and buffers.
pub const TABLES: u64 = 0x40000;
pub const BUFFERS: u64 = 0x80000;
pub const RING_STRIDE: u64 = 0x4000;

pub fn setup(queue: u16, size: u16, event_idx: bool, indirect: bool) -> Setup {
    let at = RING_STRIDE * (u64::from(queue) + 1);
    Setup {
        size,
        descriptors: Address(at),
        available: Address(at + 0x1000),
        used: Address(at + 0x2000),
        event_idx,
        indirect,
    }
}

pub fn segment(at: u64, bytes: u32) -> Segment {
    let at = Address(at);
    Segment { at, bytes }
}

/// One queue with both of its ends.
pub struct Pair {
    pub guest: Bytes,
    pub region: Bytes,
    pub rings: Rings,
    pub driver: Driver,
}

pub const QUEUE: Queue = Queue(0);

impl Pair {
    pub fn new(setup: Setup, base: u16) -> Pair {
        let guest = Bytes::zeroed(GUEST_BYTES);
        let layout = Layout {
            queues: 1,
            size: setup.size,
        };
        let region = Bytes::zeroed(layout.bytes());
        let driver = Driver::new(setup, base, &guest).expect("a ring inside");
        let mut rings = Rings::open(layout, &region).expect("a new region");
        let shared = Shared {
            guest: &guest,
            region: &region,
        };
        rings
            .start(QUEUE, setup, base, &shared)
            .expect("a ring inside");
        Pair {
            guest,
            region,
            rings,
            driver,
        }
    }

    /// The daemon is killed, and another one comes.
    pub fn restart(&mut self) {
        let setup = *self.driver.setup();
        self.rings = Rings::open(self.rings.layout(), &self.region).expect("a good region");
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        let started = self.rings.start(QUEUE, setup, 0xbad, &shared);
        started.expect("a ring inside");
    }

    pub fn offer(&mut self, readable: &[Segment], writable: &[Segment]) -> Head {
        let offered = self.driver.offer(&self.guest, readable, writable, None);
        offered.expect("inside").expect("there is room")
    }

    /// A byte for us, a byte for the device, shown.
    pub fn offer_small(&mut self) -> Head {
        let head = self.offer(&[segment(BUFFERS, 1)], &[segment(BUFFERS + 1, 1)]);
        self.driver.show(&self.guest).expect("inside");
        head
    }

    /// Everything the ring gives, as heads.
    pub fn take(&mut self) -> Result<Vec<Head>, vring::split::Broken> {
        let mut batch = vring::chain::Batch::default();
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        self.rings.take_again(&shared, usize::MAX, &mut batch);
        self.rings.take(QUEUE, &shared, usize::MAX, &mut batch)?;
        Ok(batch.iter().map(|(taken, _)| taken.head).collect())
    }

    pub fn complete(&mut self, head: Head) {
        self.rings.complete(QUEUE, head, 1);
    }

    pub fn show(&mut self) {
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        self.rings.show(QUEUE, &shared).expect("inside");
        assert_eq!(self.rings.unshown(QUEUE), 0);
    }

    /// Whether the guest wants an interrupt.
    pub fn publish(&mut self) -> bool {
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        self.rings.publish(QUEUE, &shared).expect("inside")
    }

    pub fn reap(&mut self) -> Vec<Head> {
        let mut heads = Vec::new();
        while let Some((head, written)) = self.driver.reap(&self.guest).expect("a good device") {
            assert_eq!(written, 1);
            heads.push(head);
        }
        heads
    }

    pub fn store(&self, at: Address, value: u16) {
        self.guest.store_u16(at, value).expect("inside");
    }
}

pub fn plus(at: Address, bytes: u64) -> Address {
    Address(at.0 + bytes)
}
