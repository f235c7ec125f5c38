//! One queue: its ring, its requests, its two events.
//!
//! Owns the slots, each a request that can be in flight. Always true: a slot is free, filled by its
//! taker, or in flight, and given back by whoever looked at its answer; the back end is kicked
//! exactly when it wants it.
//!
//! ```text
//! free --take--> taken --fill, offer--> in flight --reap--> ended --copy, give--> free
//! ```

use super::memory::{Frame, SharedMemory};
use super::{ClientError, Options, RANGES_MAX, Result, Wait};
use host::frontend::vhost_user::guest_memory::GuestMemory;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};
use vring::block::{self, HEADER_BYTES, ID_BYTES, RANGE_BYTES, SECTOR_BYTES, SectorRange};
use vring::driver::Driver;
use vring::memory::{Address, Memory, Segment};
use vring::split::Setup;

/// The flag of zeroes whose blocks may be given back.
const UNMAP: u32 = 1;
/// Of a status byte that nobody has written.
const NO_STATUS: u8 = 0xff;

/// A request that is taken or in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u16);

/// What a disk can be asked for.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    Read { sector: u64, sectors: u32 },
    Write { sector: u64, sectors: u32 },
    Flush,
    Discard(&'a [SectorRange]),
    WriteZeroes(&'a [SectorRange]),
    GetId,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub slot: Slot,
    pub status: u8,
    /// What the back end says that it wrote, status included.
    pub written: u32,
}

impl Ended {
    pub fn check(&self) -> Result<()> {
        match self.status {
            0 => Ok(()),
            status => Err(ClientError::Status(status)),
        }
    }
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    driver: Driver,
    memory: Arc<GuestMemory>,
    frames: Vec<Frame>,
    slot_bytes: u32,
    free: Vec<Slot>,
    /// Whose each head is.
    owners: Vec<Slot>,
    answers: u64,
    indirect: bool,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
}

impl Queue {
    pub(super) fn new(
        shared: &SharedMemory,
        options: &Options,
        index: u16,
        setup: Setup,
    ) -> Result<Queue> {
        let memory = shared.memory.clone();
        let driver = Driver::new(setup, 0, &*memory).expect("our own ring is right");
        let queue = Queue {
            frames: (0..options.slots)
                .map(|slot| shared.frame(index, slot))
                .collect(),
            slot_bytes: options.slot_bytes,
            free: (0..options.slots).rev().map(Slot).collect(),
            owners: vec![Slot(0); usize::from(setup.size)],
            answers: 0,
            indirect: setup.indirect,
            kick: EventFd::new(EFD_CLOEXEC)?,
            call: EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)?,
            driver,
            memory,
        };
        if options.wait == Wait::Polling {
            queue.driver.refuse_interrupts(&*queue.memory)?;
        }
        Ok(queue)
    }

    pub fn in_flight(&self) -> u16 {
        self.driver.in_flight()
    }

    /// Requests that have ended, of all times.
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    pub fn setup(&self) -> &Setup {
        self.driver.setup()
    }

    /// As the back end has left it.
    pub(super) fn used_index(&self) -> Result<u16> {
        let at = Address(self.setup().used.0 + 2);
        Ok(self.memory.load_u16(at)?)
    }

    /// A slot for one more request. `None` while all are taken.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Nobody looks at the payload any more.
    pub fn give(&mut self, slot: Slot) {
        self.free.push(slot);
        assert!(
            self.free.len() <= self.frames.len(),
            "a slot is given back once"
        );
    }

    fn frame(&self, slot: Slot) -> Frame {
        self.frames[usize::from(slot.0)]
    }

    /// Payload of a write.
    pub fn fill(&self, slot: Slot, at: usize, bytes: &[u8]) -> Result<()> {
        assert!(at + bytes.len() <= self.slot_bytes as usize);
        let start = Address(self.frame(slot).payload.0 + at as u64);
        Ok(self.memory.write(start, bytes)?)
    }

    /// Payload of a read.
    pub fn copy(&self, slot: Slot, into: &mut [u8]) -> Result<()> {
        assert!(into.len() <= self.slot_bytes as usize);
        Ok(self.memory.read(self.frame(slot).payload, into)?)
    }

    /// Puts a request into the ring; the back end sees it after [`Queue::show`].
    pub fn offer(&mut self, slot: Slot, request: &Request) -> Result<()> {
        let frame = self.frame(slot);
        let (kind, sector) = match request {
            Request::Read { sector, .. } => (block::IN, *sector),
            Request::Write { sector, .. } => (block::OUT, *sector),
            Request::Flush => (block::FLUSH, 0),
            Request::Discard(_) => (block::DISCARD, 0),
            Request::WriteZeroes(_) => (block::WRITE_ZEROES, 0),
            Request::GetId => (block::GET_ID, 0),
        };
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(frame.header, &header)?;
        self.memory.store_u8(frame.status, NO_STATUS)?;
        let part = |at, bytes| Segment { at, bytes };
        let head = part(frame.header, HEADER_BYTES as u32);
        let status = part(frame.status, 1);
        let payload = |sectors: u32| {
            let bytes = u64::from(sectors) * SECTOR_BYTES;
            assert!(bytes > 0 && bytes <= self.slot_bytes.into(), "it fits");
            part(frame.payload, bytes as u32)
        };
        let indirect = self.indirect.then_some(frame.table);
        let (driver, memory) = (&mut self.driver, &*self.memory);
        let offered = match request {
            Request::Read { sectors, .. } => {
                driver.offer(memory, &[head], &[payload(*sectors), status], indirect)
            }
            Request::Write { sectors, .. } => {
                driver.offer(memory, &[head, payload(*sectors)], &[status], indirect)
            }
            Request::Flush => driver.offer(memory, &[head], &[status], indirect),
            Request::Discard(ranges) | Request::WriteZeroes(ranges) => {
                let bytes = write_ranges(memory, frame.ranges, ranges)?;
                let ranges = part(frame.ranges, bytes);
                driver.offer(memory, &[head, ranges], &[status], indirect)
            }
            Request::GetId => {
                let id = part(frame.payload, ID_BYTES as u32);
                driver.offer(memory, &[head], &[id, status], indirect)
            }
        };
        let head = offered?.expect("a slot has its descriptors");
        self.owners[usize::from(head.0)] = slot;
        // As the drivers of guests do: one that polls may take it before more are offered.
        Ok(self.driver.reveal(&*self.memory)?)
    }

    /// Tells the back end of what was offered, with a kick if it wants that.
    pub fn show(&mut self) -> Result<()> {
        if self.driver.show(&*self.memory)? {
            self.kick()?;
        }
        Ok(())
    }

    pub(super) fn kick(&self) -> Result<()> {
        Ok(self.kick.write(1)?)
    }

    /// The next request that has ended.
    pub fn reap(&mut self) -> Result<Option<Ended>> {
        let Some((head, written)) = self.driver.reap(&*self.memory)? else {
            return Ok(None);
        };
        self.answers += 1;
        let slot = self.owners[usize::from(head.0)];
        let mut status = [0];
        self.memory.read(self.frame(slot).status, &mut status)?;
        Ok(Some(Ended {
            slot,
            status: status[0],
            written,
        }))
    }

    /// Asks to be called at the next answer. True if there is one already.
    pub(super) fn ask_for_call(&mut self) -> Result<bool> {
        Ok(self.driver.ask_for_interrupt(&*self.memory)?)
    }

    /// Takes a call, if there is one.
    pub(super) fn take_call(&self) {
        // Without a call it would wait, and says so.
        let _ = self.call.read();
    }
}

/// Returns how many bytes they take.
fn write_ranges(memory: &GuestMemory, at: Address, ranges: &[SectorRange]) -> Result<u32> {
    assert!((1..=RANGES_MAX).contains(&ranges.len()), "they fit");
    for (number, range) in ranges.iter().enumerate() {
        let sectors = u32::try_from(range.sectors).expect("a range of 32 bits");
        let flags = if range.unmap { UNMAP } else { 0 };
        let mut entry = [0; RANGE_BYTES];
        entry[..8].copy_from_slice(&range.sector.to_le_bytes());
        entry[8..12].copy_from_slice(&sectors.to_le_bytes());
        entry[12..].copy_from_slice(&flags.to_le_bytes());
        let place = Address(at.0 + (number * RANGE_BYTES) as u64);
        memory.write(place, &entry)?;
    }
    Ok((ranges.len() * RANGE_BYTES) as u32)
}
