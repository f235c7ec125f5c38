//! The guest's end of a split virtqueue (virtio 1.2, sections 2.7.13 and 2.7.14).
//!
//! Owns the free descriptors, what was offered, and the wish to be kicked or woken as a guest sees
//! it. Always true: a descriptor is in at most one chain; a head that comes back was offered and
//! had not come back. Simulator, tests and built-in clients drive disks with it. Deliberately
//! absent: memory for the payload; the caller names it.

use crate::Head;
use crate::chain::{DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, WRITE};
use crate::memory::{Address, Memory, Outside, Segment};
use crate::split::{Setup, SetupError, passes};
use alloc::vec::Vec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// What a device did that it must not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("the used ring names {0}, which was not offered or came back before")]
    Head(u32),
    #[error("the used index went from {from} to {to}, by more than is in flight")]
    Jump { from: u16, to: u16 },
    #[error("{0}")]
    Outside(#[from] Outside),
}

/// One queue.
#[derive(Debug)]
pub struct Driver {
    setup: Setup,
    free: Vec<u16>,
    /// The descriptors of each offered head, in its place.
    offered: Vec<Option<Vec<u16>>>,
    in_flight: u16,
    next_available: u16,
    /// Made visible.
    shown: u16,
    seen_used: u16,
}

impl Driver {
    /// Lays out an empty ring whose indices stand at `base`.
    pub fn new(setup: Setup, base: u16, memory: &impl Memory) -> Result<Driver, SetupError> {
        setup.check(memory)?;
        for flags in [setup.available_flags(), setup.used_flags()] {
            memory.store_u16(flags, 0)?;
        }
        for index in [setup.available_index(), setup.used_index()] {
            memory.store_u16(index, base)?;
        }
        if setup.event_idx {
            memory.store_u16(setup.used_event(), base)?;
            memory.store_u16(setup.available_event(), base)?;
        }
        Ok(Driver {
            setup,
            free: (0..setup.size).rev().collect(),
            offered: alloc::vec![None; usize::from(setup.size)],
            in_flight: 0,
            next_available: base,
            shown: base,
            seen_used: base,
        })
    }

    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Adds a chain, through an indirect table at `indirect` if one is given, which then takes 16
    /// bytes for each segment. None if there are not enough free descriptors. The device sees it
    /// after [`Driver::show`].
    pub fn offer(
        &mut self,
        memory: &impl Memory,
        readable: &[Segment],
        writable: &[Segment],
        indirect: Option<Address>,
    ) -> Result<Option<Head>, Outside> {
        let count = readable.len() + writable.len();
        assert!(count > 0);
        let own = if indirect.is_some() { 1 } else { count };
        if self.free.len() < own {
            return Ok(None);
        }
        let chain = self.free.split_off(self.free.len() - own);
        let segments = readable.iter().map(|segment| (segment, 0));
        let segments = segments.chain(writable.iter().map(|segment| (segment, WRITE)));
        for (at, (segment, mut flags)) in segments.enumerate() {
            let last = at + 1 == count;
            flags |= if last { 0 } else { NEXT };
            let (table, place, next) = match indirect {
                Some(table) => (table, at as u16, at as u16 + 1),
                None => {
                    let next = chain.get(at + 1).copied().unwrap_or(0);
                    (self.setup.descriptors, chain[at], next)
                }
            };
            write_descriptor(memory, table, place, *segment, flags, next)?;
        }
        if let Some(at) = indirect {
            let bytes = (count * DESCRIPTOR_BYTES) as u32;
            let segment = Segment { at, bytes };
            let table = self.setup.descriptors;
            write_descriptor(memory, table, chain[0], segment, INDIRECT, 0)?;
        }
        let head = chain[0];
        memory.store_u16(self.setup.available_entry(self.next_available), head)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.offered[usize::from(head)] = Some(chain);
        self.in_flight += 1;
        Ok(Some(Head(head)))
    }

    /// Lets a device that looks by itself see what was offered. [`Driver::show`] is still due.
    pub fn reveal(&self, memory: &impl Memory) -> Result<(), Outside> {
        memory.store_u16(self.setup.available_index(), self.next_available)
    }

    /// Lets the device see what was offered. Says whether it wants a kick.
    pub fn show(&mut self, memory: &impl Memory) -> Result<bool, Outside> {
        let old = core::mem::replace(&mut self.shown, self.next_available);
        memory.store_u16(self.setup.available_index(), self.shown)?;
        memory.fence();
        if self.setup.event_idx {
            let event = memory.load_u16(self.setup.available_event())?;
            return Ok(passes(event, old, self.shown));
        }
        Ok(old != self.shown && memory.load_u16(self.setup.used_flags())? == 0)
    }

    /// The next request that the device has ended, and how many bytes it says it wrote.
    pub fn reap(&mut self, memory: &impl Memory) -> Result<Option<(Head, u32)>, DeviceError> {
        let to = memory.load_u16(self.setup.used_index())?;
        let from = self.seen_used;
        if to == from {
            return Ok(None);
        }
        if to.wrapping_sub(from) > self.in_flight {
            return Err(DeviceError::Jump { from, to });
        }
        let mut entry = [0; 8];
        memory.read(self.setup.used_entry(from), &mut entry)?;
        let [id, written]: [[u8; 4]; 2] = zerocopy::transmute!(entry);
        let (id, written) = (u32::from_le_bytes(id), u32::from_le_bytes(written));
        let chain = self.offered.get_mut(id as usize).and_then(Option::take);
        self.free.extend(chain.ok_or(DeviceError::Head(id))?);
        self.in_flight -= 1;
        self.seen_used = from.wrapping_add(1);
        Ok(Some((Head(id as u16), written)))
    }

    /// Asks for an interrupt at the next used entry. True if there is one already, for which none
    /// may come.
    pub fn ask_for_interrupt(&mut self, memory: &impl Memory) -> Result<bool, Outside> {
        self.ask_for_interrupt_after(memory, 1)
    }

    /// The same, at the `count`th next used entry, where events make that possible.
    pub fn ask_for_interrupt_after(
        &mut self,
        memory: &impl Memory,
        count: u16,
    ) -> Result<bool, Outside> {
        assert!(count > 0);
        let at = self.seen_used.wrapping_add(count - 1);
        if self.setup.event_idx {
            memory.store_u16(self.setup.used_event(), at)?;
        } else {
            memory.store_u16(self.setup.available_flags(), 0)?;
        }
        memory.fence();
        let used = memory.load_u16(self.setup.used_index())?;
        Ok(used.wrapping_sub(self.seen_used) >= count)
    }

    /// Asks for no interrupts.
    pub fn refuse_interrupts(&self, memory: &impl Memory) -> Result<(), Outside> {
        match self.setup.event_idx {
            true => Ok(()),
            false => memory.store_u16(self.setup.available_flags(), 1),
        }
    }
}

fn write_descriptor(
    memory: &impl Memory,
    table: Address,
    at: u16,
    segment: Segment,
    flags: u16,
    next: u16,
) -> Result<(), Outside> {
    let descriptor = Descriptor {
        address: U64::new(segment.at.0),
        bytes: U32::new(segment.bytes),
        flags: U16::new(flags),
        next: U16::new(next),
    };
    let at = Address(table.0 + u64::from(at) * DESCRIPTOR_BYTES as u64);
    memory.write(at, descriptor.as_bytes())
}
