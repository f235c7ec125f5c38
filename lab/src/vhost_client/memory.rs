//! The memory that is shared with a back end, and what lies where in it.
//!
//! Always true: one memory file of fixed size; each queue has its ring in pages of its own, then
//! for each request a page with header, status and tables, and its payload; guest addresses and
//! those of the front end differ, so that a back end that confuses them fails.

use super::{Options, Result};
use host::frontend::vhost_user::guest_memory::{GuestMemory, Place};
use host::sys;
use std::fs::File;
use std::io;
use std::sync::Arc;
use vring::memory::Address;
use vring::split::Setup;

/// Where the memory begins for the guest, and in the space of its front end.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const PAGE: u64 = 4096;

/// Where a request lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub header: Address,
    /// The last byte of the page of the header.
    pub status: Address,
    /// An indirect table.
    pub table: Address,
    pub ranges: Address,
    pub payload: Address,
}

#[derive(Debug)]
pub(super) struct SharedMemory {
    pub file: File,
    pub bytes: u64,
    pub memory: Arc<GuestMemory>,
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    size: u16,
    slots: u16,
    slot_bytes: u64,
}

impl Layout {
    fn halves(&self) -> [u64; 3] {
        // With room for the events, whether they are agreed upon or not.
        self.setup(0, true, true)
            .bytes()
            .map(|bytes| bytes.next_multiple_of(PAGE))
    }

    fn frame_bytes(&self) -> u64 {
        PAGE + self.slot_bytes.next_multiple_of(PAGE)
    }

    fn queue_bytes(&self) -> u64 {
        self.halves().iter().sum::<u64>() + u64::from(self.slots) * self.frame_bytes()
    }

    /// A ring that begins here.
    fn setup(&self, at: u64, event_idx: bool, indirect: bool) -> Setup {
        let mut setup = Setup {
            size: self.size,
            descriptors: Address(at),
            available: Address(at),
            used: Address(at),
            event_idx,
            indirect,
        };
        let [descriptors, available, _] = setup.bytes().map(|it| it.next_multiple_of(PAGE));
        setup.available = Address(at + descriptors);
        setup.used = Address(at + descriptors + available);
        setup
    }
}

impl SharedMemory {
    /// For rings of `size` descriptors.
    pub fn new(options: &Options, size: u16) -> Result<SharedMemory> {
        let layout = Layout {
            size,
            slots: options.slots,
            slot_bytes: options.slot_bytes.into(),
        };
        let bytes = layout.queue_bytes() * u64::from(options.queues);
        let file = sys::memory_file(c"tenuto-vhost-client", bytes)?;
        let place = Place {
            guest: GUEST,
            bytes,
            user: USER,
            offset: 0,
        };
        let region = [(place, file.try_clone()?)];
        let memory = GuestMemory::new(&region, Arc::default()).map_err(io::Error::other)?;
        Ok(SharedMemory {
            file,
            bytes,
            memory: Arc::new(memory),
            layout,
        })
    }

    /// Where the memory begins: for the guest, and for the front end.
    pub const fn starts() -> (u64, u64) {
        (GUEST, USER)
    }

    /// The address of the front end for one of the guest.
    pub const fn user(at: Address) -> u64 {
        at.0 - GUEST + USER
    }

    fn queue(&self, queue: u16) -> u64 {
        GUEST + u64::from(queue) * self.layout.queue_bytes()
    }

    pub fn setup(&self, queue: u16, event_idx: bool, indirect: bool) -> Setup {
        self.layout.setup(self.queue(queue), event_idx, indirect)
    }

    pub fn frame(&self, queue: u16, slot: u16) -> Frame {
        let frames = self.queue(queue) + self.layout.halves().iter().sum::<u64>();
        let at = frames + u64::from(slot) * self.layout.frame_bytes();
        Frame {
            header: Address(at),
            status: Address(at + PAGE - 1),
            table: Address(at + 64),
            ranges: Address(at + 1024),
            payload: Address(at + PAGE),
        }
    }
}
