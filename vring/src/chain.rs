//! Descriptor chains: from the head that a guest offers to the segments it names.
//!
//! Owns the walk (virtio 1.2, section 2.7.5), its limits, and the list that a batch of chains is
//! collected in. Always true: each descriptor is read once; a walk ends after as many steps as its
//! table has descriptors, so a loop is a chain that is too long; readable segments come before
//! writable ones; no segment wraps, and none is empty, because a descriptor without bytes names
//! nothing and is passed over. Deliberately not judged here: whether the addresses exist. The host
//! learns that when it translates them, and answers that one request with an error.

use crate::memory::{Address, Memory, Outside, Segment};
use crate::{Counter, Head, Queue};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Which rule a guest broke. Its ring stands still from then on; others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the available index went from {from} to {to}, by more than the queue has entries")]
    Jump { from: u16, to: u16 },
    #[error("the available ring names descriptor {head}, which is not in the table")]
    Head { head: u16 },
    #[error("descriptor {head} was made available again while in flight")]
    HeadInFlight { head: u16 },
    #[error("a chain goes on at descriptor {next}, which is not in its table")]
    Next { next: u16 },
    #[error("a chain is longer than its table, so it has a loop")]
    ChainLength,
    #[error("a chain of more than 4 GiB")]
    ChainBytes,
    #[error("{bytes} bytes at {at:#x} go beyond the last address")]
    Address { at: u64, bytes: u32 },
    #[error("a chain has a readable descriptor after a writable one")]
    ReadableAfterWritable,
    #[error("an indirect descriptor, which was not negotiated")]
    IndirectNotNegotiated,
    #[error("an indirect descriptor that also names a next one")]
    IndirectWithNext,
    #[error("an indirect descriptor inside an indirect table")]
    IndirectNested,
    #[error("an indirect table of {bytes} bytes; 16 for each of 1 to 1024 descriptors is right")]
    IndirectBytes { bytes: u32 },
    #[error("{0}")]
    Outside(#[from] Outside),
}

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// Descriptors in an indirect table. Linux makes tables longer than the queue, whatever the
/// specification says; this many is what other devices take as well.
pub const INDIRECT_MAX: usize = 1024;
/// Bytes of a chain, by the specification.
pub const CHAIN_BYTES_MAX: u64 = u32::MAX as u64;

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Descriptor {
    pub address: U64,
    pub bytes: U32,
    pub flags: U16,
    pub next: U16,
}

pub const DESCRIPTOR_BYTES: usize = 16;
const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES);

impl Descriptor {
    pub(crate) fn read(
        memory: &impl Memory,
        table: Address,
        at: u16,
    ) -> Result<Descriptor, Outside> {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        memory.read(
            table.plus(u64::from(at) * DESCRIPTOR_BYTES as u64),
            &mut bytes,
        )?;
        Ok(zerocopy::transmute!(bytes))
    }

    fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }
}

/// What a guest offers with one head.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// For us to read.
    pub readable: &'a [Segment],
    /// For us to write, all after the readable ones.
    pub writable: &'a [Segment],
}

/// A request that is in flight from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub queue: Queue,
    pub head: Head,
    pub counter: Counter,
}

/// Requests that were taken together. Kept and cleared by the host, so that taking allocates
/// nothing once it has grown.
#[derive(Debug, Default)]
pub struct Batch {
    taken: Vec<(Taken, Ends)>,
    pub(crate) segments: Vec<Segment>,
}

/// Where the segments of a chain end in those of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    first: usize,
    readable: usize,
    writable: usize,
}

impl Batch {
    pub fn clear(&mut self) {
        self.taken.clear();
        self.segments.clear();
    }

    pub fn len(&self) -> usize {
        self.taken.len()
    }

    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// In the order in which they were taken.
    pub fn iter(&self) -> impl Iterator<Item = (Taken, Chain<'_>)> {
        self.taken.iter().map(|(taken, ends)| {
            let chain = Chain {
                readable: &self.segments[ends.first..ends.readable],
                writable: &self.segments[ends.readable..ends.writable],
            };
            (*taken, chain)
        })
    }

    pub(crate) fn push(&mut self, taken: Taken, ends: Ends) {
        self.taken.push((taken, ends));
    }

    /// Gives back what a walk has collected that came to nothing.
    pub(crate) fn drop_walk(&mut self) {
        let end = self.taken.last().map_or(0, |(_, ends)| ends.writable);
        self.segments.truncate(end);
    }
}

/// A descriptor table with what was negotiated for it.
pub(crate) struct Table {
    pub at: Address,
    pub size: u16,
    pub indirect: bool,
}

/// One walk, adding to the segments of a batch.
struct Walk<'a> {
    segments: &'a mut Vec<Segment>,
    /// Where writable segments begin, once there is one.
    writable: Option<usize>,
    bytes: u64,
}

impl Walk<'_> {
    fn add(&mut self, descriptor: &Descriptor) -> Result<(), Broken> {
        let (at, bytes) = (descriptor.address.get(), descriptor.bytes.get());
        if descriptor.has(WRITE) {
            self.writable.get_or_insert(self.segments.len());
        } else if self.writable.is_some() {
            return Err(Broken::ReadableAfterWritable);
        }
        if bytes == 0 {
            return Ok(());
        }
        if at.checked_add(u64::from(bytes)).is_none() {
            return Err(Broken::Address { at, bytes });
        }
        self.bytes += u64::from(bytes);
        if self.bytes > CHAIN_BYTES_MAX {
            return Err(Broken::ChainBytes);
        }
        let at = Address(at);
        self.segments.push(Segment { at, bytes });
        Ok(())
    }
}

impl Table {
    /// Collects the chain of `head`, which lies in the table.
    pub fn walk(
        &self,
        memory: &impl Memory,
        head: Head,
        segments: &mut Vec<Segment>,
        scratch: &mut Vec<u8>,
    ) -> Result<Ends, Broken> {
        assert!(head.0 < self.size);
        let first = segments.len();
        let mut walk = Walk {
            segments,
            writable: None,
            bytes: 0,
        };
        let mut at = head.0;
        for _ in 0..self.size {
            let descriptor = Descriptor::read(memory, self.at, at)?;
            if descriptor.has(INDIRECT) {
                self.indirect(memory, &descriptor, &mut walk, scratch)?;
                return Ok(walk.ends(first));
            }
            walk.add(&descriptor)?;
            if !descriptor.has(NEXT) {
                return Ok(walk.ends(first));
            }
            at = descriptor.next.get();
            if at >= self.size {
                return Err(Broken::Next { next: at });
            }
        }
        Err(Broken::ChainLength)
    }

    /// The table that `entry` names is read as a whole: one translation, and nobody can change a
    /// part of it that was already seen.
    fn indirect(
        &self,
        memory: &impl Memory,
        entry: &Descriptor,
        walk: &mut Walk,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        if !self.indirect {
            return Err(Broken::IndirectNotNegotiated);
        }
        if entry.has(NEXT) {
            return Err(Broken::IndirectWithNext);
        }
        let (at, bytes) = (entry.address.get(), entry.bytes.get());
        let count = bytes as usize / DESCRIPTOR_BYTES;
        let whole = (bytes as usize).is_multiple_of(DESCRIPTOR_BYTES);
        if !whole || count == 0 || count > INDIRECT_MAX {
            return Err(Broken::IndirectBytes { bytes });
        }
        if scratch.len() < bytes as usize {
            scratch.resize(bytes as usize, 0);
        }
        memory.read(Address(at), &mut scratch[..bytes as usize])?;
        let table = <[Descriptor]>::ref_from_bytes(&scratch[..bytes as usize])
            .expect("a whole number of descriptors, which need no alignment");
        let mut at = 0;
        for _ in 0..count {
            let descriptor = &table[at];
            if descriptor.has(INDIRECT) {
                return Err(Broken::IndirectNested);
            }
            walk.add(descriptor)?;
            if !descriptor.has(NEXT) {
                return Ok(());
            }
            at = usize::from(descriptor.next.get());
            if at >= count {
                return Err(Broken::Next { next: at as u16 });
            }
        }
        Err(Broken::ChainLength)
    }
}

impl Walk<'_> {
    fn ends(&self, first: usize) -> Ends {
        let end = self.segments.len();
        Ends {
            first,
            readable: self.writable.unwrap_or(end),
            writable: end,
        }
    }
}
