//! One split virtqueue, seen by the device (virtio 1.2, section 2.7).
//!
//! Owns where the ring stands: what was taken from its available half, what is in flight, what was
//! put into its used half, and who wants to be woken. Always true: a head is in flight once at
//! most; used entries are written before the index that shows them; each of the two wishes to be
//! woken is written before what it waits for is looked at again. Deliberately absent: order over
//! queues and survival of a kill, see [`crate::rings`].
//!
//! ```text
//! start(base) -> running --take, complete, publish--> running --stop--> base
//!                   \--the guest breaks the rules--> broken: nothing is taken any more, what is in
//!                                                    flight still ends
//! ```

use crate::Head;
pub use crate::chain::Broken;
use crate::chain::{Batch, DESCRIPTOR_BYTES, Ends, Table};
use crate::memory::{Address, Memory, Outside};
use alloc::vec::Vec;

/// The largest queue, by the specification.
pub const SIZE_MAX: u16 = 32768;

const FLAGS: u64 = 0;
const INDEX: u64 = 2;
const ENTRIES: u64 = 4;
const AVAILABLE_ENTRY_BYTES: u64 = 2;
const USED_ENTRY_BYTES: u64 = 8;
/// In the available half: used entries need no interrupt. In the used half: available ones no kick.
const QUIET: u16 = 1;

/// Where a ring lies and what was negotiated for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub size: u16,
    pub descriptors: Address,
    pub available: Address,
    pub used: Address,
    /// VIRTIO_F_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC.
    pub indirect: bool,
}

/// Why a ring cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error("a queue of {0} descriptors; a power of two up to 32768 would be right")]
    Size(u16),
    #[error("a part of the ring at {0:#x}; descriptors are aligned to 16, available 2, used 4")]
    Alignment(u64),
    #[error("the ring: {0}")]
    Outside(#[from] Outside),
}

impl Setup {
    /// Bytes of the descriptor table, the available and the used half.
    pub fn bytes(&self) -> [u64; 3] {
        let size = u64::from(self.size);
        let event = if self.event_idx { 2 } else { 0 };
        [
            size * DESCRIPTOR_BYTES as u64,
            ENTRIES + size * AVAILABLE_ENTRY_BYTES + event,
            ENTRIES + size * USED_ENTRY_BYTES + event,
        ]
    }

    /// Every later access to the ring itself lies inside what is checked here.
    pub(crate) fn check(&self, memory: &impl Memory) -> Result<(), SetupError> {
        if !self.size.is_power_of_two() || self.size > SIZE_MAX {
            return Err(SetupError::Size(self.size));
        }
        let parts = [self.descriptors, self.available, self.used];
        for ((at, bytes), alignment) in parts.into_iter().zip(self.bytes()).zip([16, 2, 4]) {
            if at.0 % alignment != 0 {
                return Err(SetupError::Alignment(at.0));
            }
            if at.0.checked_add(bytes).is_none() {
                return Err(SetupError::Outside(Outside { at: at.0, bytes }));
            }
            memory.check(at, bytes)?;
        }
        Ok(())
    }

    pub(crate) fn slot(&self, index: u16) -> u64 {
        u64::from(index & (self.size - 1))
    }

    pub(crate) fn available_flags(&self) -> Address {
        self.available.plus(FLAGS)
    }

    pub(crate) fn available_index(&self) -> Address {
        self.available.plus(INDEX)
    }

    pub(crate) fn available_entry(&self, index: u16) -> Address {
        self.available
            .plus(ENTRIES + self.slot(index) * AVAILABLE_ENTRY_BYTES)
    }

    /// Where the driver says which used entry it wants to be woken for.
    pub(crate) fn used_event(&self) -> Address {
        self.available
            .plus(ENTRIES + u64::from(self.size) * AVAILABLE_ENTRY_BYTES)
    }

    pub(crate) fn used_flags(&self) -> Address {
        self.used.plus(FLAGS)
    }

    pub(crate) fn used_index(&self) -> Address {
        self.used.plus(INDEX)
    }

    pub(crate) fn used_entry(&self, index: u16) -> Address {
        self.used
            .plus(ENTRIES + self.slot(index) * USED_ENTRY_BYTES)
    }

    /// Where the device says which available entry it wants to be kicked for.
    pub(crate) fn available_event(&self) -> Address {
        self.used
            .plus(ENTRIES + u64::from(self.size) * USED_ENTRY_BYTES)
    }
}

/// Whether the step of an index from `old` to `new` went over `event`, with all three wrapping.
pub(crate) fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A set of heads.
#[derive(Debug)]
struct Heads {
    words: Vec<u64>,
    count: u16,
}

impl Heads {
    fn new(size: u16) -> Heads {
        Heads {
            words: alloc::vec![0; usize::from(size).div_ceil(64)],
            count: 0,
        }
    }

    fn has(&self, head: Head) -> bool {
        self.words[usize::from(head.0) / 64] >> (head.0 % 64) & 1 == 1
    }

    fn insert(&mut self, head: Head) {
        assert!(!self.has(head));
        self.words[usize::from(head.0) / 64] |= 1 << (head.0 % 64);
        self.count += 1;
    }

    fn remove(&mut self, head: Head) {
        assert!(self.has(head));
        self.words[usize::from(head.0) / 64] &= !(1 << (head.0 % 64));
        self.count -= 1;
    }
}

/// A request that has ended and is not published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub head: Head,
    pub written: u32,
}

/// A running ring.
#[derive(Debug)]
pub(crate) struct Ring {
    setup: Setup,
    next_available: u16,
    next_used: u16,
    /// Taken, and not published.
    in_flight: Heads,
    /// Those of them that the host has: given to it, and not completed.
    with_host: Heads,
    done: Vec<Done>,
    /// The used index when the driver was last asked whether it wants an interrupt. A killed
    /// process may have published without one, so the first answer is always yes.
    signalled: Option<u16>,
    broken: Option<Broken>,
    scratch: Vec<u8>,
}

impl Ring {
    /// Reads the used index; the caller says where the available half goes on.
    pub fn new(setup: Setup, memory: &impl Memory) -> Result<Ring, SetupError> {
        setup.check(memory)?;
        let next_used = memory.load_u16(setup.used_index())?;
        Ok(Ring {
            setup,
            next_available: next_used,
            next_used,
            in_flight: Heads::new(setup.size),
            with_host: Heads::new(setup.size),
            done: Vec::with_capacity(usize::from(setup.size)),
            signalled: None,
            broken: None,
            scratch: Vec::new(),
        })
    }

    pub fn used_index(&self) -> u16 {
        self.next_used
    }

    pub fn base(&self) -> u16 {
        self.next_available
    }

    pub fn set_base(&mut self, base: u16) {
        assert!(self.in_flight.count == 0 && self.done.is_empty());
        self.next_available = base;
    }

    /// A head that was in flight when the process before this one ended.
    pub fn resume(&mut self, head: Head) {
        self.in_flight.insert(head);
        self.next_available = self.next_available.wrapping_add(1);
    }

    pub fn in_flight(&self) -> u16 {
        self.in_flight.count
    }

    /// Whether the host has nothing of this ring that it could still write to.
    pub fn is_idle(&self) -> bool {
        self.with_host.count == 0 && self.done.is_empty()
    }

    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// The first reason stays.
    pub fn set_broken(&mut self, reason: Broken) {
        self.broken.get_or_insert(reason);
    }

    /// How many entries the guest has made available that were not taken.
    pub fn waiting(&self, memory: &impl Memory) -> Result<u16, Broken> {
        let index = memory.load_u16(self.setup.available_index())?;
        let waiting = index.wrapping_sub(self.next_available);
        match waiting <= self.setup.size {
            true => Ok(waiting),
            false => Err(Broken::Jump {
                from: self.next_available,
                to: index,
            }),
        }
    }

    /// The next available entry, with its chain added to the batch. It counts as taken only after
    /// [`Ring::advance`], because it has to be noted before.
    pub fn peek(
        &mut self,
        memory: &impl Memory,
        batch: &mut Batch,
    ) -> Result<(Head, Ends), Broken> {
        let head = memory.load_u16(self.setup.available_entry(self.next_available))?;
        if head >= self.setup.size {
            return Err(Broken::Head { head });
        }
        if self.in_flight.has(Head(head)) {
            return Err(Broken::HeadInFlight { head });
        }
        Ok((Head(head), self.walk(memory, Head(head), batch)?))
    }

    pub fn walk(
        &mut self,
        memory: &impl Memory,
        head: Head,
        batch: &mut Batch,
    ) -> Result<Ends, Broken> {
        let table = Table {
            at: self.setup.descriptors,
            size: self.setup.size,
            indirect: self.setup.indirect,
        };
        let ends = table.walk(memory, head, &mut batch.segments, &mut self.scratch);
        if ends.is_err() {
            batch.drop_walk();
        }
        ends
    }

    pub fn advance(&mut self, head: Head) {
        self.in_flight.insert(head);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// The host has the request now.
    pub fn give(&mut self, head: Head) {
        assert!(self.in_flight.has(head));
        self.with_host.insert(head);
    }

    /// It must have been given, and not completed.
    pub fn complete(&mut self, head: Head, written: u32) {
        self.with_host.remove(head);
        self.done.push(Done { head, written });
        assert!(self.done.len() <= usize::from(self.in_flight.count));
    }

    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// Writes the used entries of what is done; nobody sees them yet.
    pub fn write_used(&self, memory: &impl Memory) -> Result<(), Outside> {
        let mut at = self.next_used;
        for done in &self.done {
            let mut entry = [0; USED_ENTRY_BYTES as usize];
            entry[..4].copy_from_slice(&u32::from(done.head.0).to_le_bytes());
            entry[4..].copy_from_slice(&done.written.to_le_bytes());
            memory.write(self.setup.used_entry(at), &entry)?;
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Shows them, all in one store.
    pub fn store_used_index(&mut self, memory: &impl Memory) -> Result<(), Outside> {
        let index = self.next_used.wrapping_add(self.done.len() as u16);
        memory.store_u16(self.setup.used_index(), index)?;
        self.next_used = index;
        Ok(())
    }

    /// What was published is not in flight any more; the guest may use these heads again.
    pub fn forget_done(&mut self) {
        for done in self.done.drain(..) {
            self.in_flight.remove(done.head);
        }
    }

    /// Whether the driver wants an interrupt for what was published since the last call.
    pub fn wants_interrupt(&mut self, memory: &impl Memory) -> Result<bool, Outside> {
        let new = self.next_used;
        let Some(old) = self.signalled.replace(new) else {
            return Ok(true);
        };
        if old == new {
            return Ok(false);
        }
        // The index must be seen before the wish is read, or each side waits for the other.
        memory.fence();
        if self.setup.event_idx {
            let event = memory.load_u16(self.setup.used_event())?;
            return Ok(passes(event, old, new));
        }
        Ok(memory.load_u16(self.setup.available_flags())? & QUIET == 0)
    }

    /// Asks for a kick at the next available entry. True if there is one already, for which none
    /// may come.
    pub fn ask_for_kick(&mut self, memory: &impl Memory) -> Result<bool, Broken> {
        memory.store_u16(self.setup.used_flags(), 0)?;
        if self.setup.event_idx {
            memory.store_u16(self.setup.available_event(), self.next_available)?;
        }
        memory.fence();
        Ok(self.waiting(memory)? > 0)
    }

    /// Asks for no kicks, for a host that looks by itself. With events there is nothing to say: one
    /// comes when an entry is passed that was asked for, and none is.
    pub fn refuse_kicks(&self, memory: &impl Memory) -> Result<(), Outside> {
        if self.setup.event_idx {
            return Ok(());
        }
        memory.store_u16(self.setup.used_flags(), QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn a_step_passes_an_event_when_it_shows_the_entry_of_that_number() {
        assert!(passes(0, 0, 1) && passes(5, 3, 6) && passes(65535, 65535, 0));
        assert!(passes(65534, 65530, 3) && passes(2, 65530, 3));
        assert!(!passes(6, 3, 6) && !passes(2, 3, 6) && !passes(3, 65530, 3));
        assert!(!passes(4, 4, 4));
    }
}
