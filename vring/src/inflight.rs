//! The in-flight region of vhost-user, for split rings: what survives a killed daemon.
//!
//! Owns its layout, its order of stores and its repair (vhost-user, "Inflight I/O tracking").
//! Always true, after any prefix of the stores: what the ring's used index does not show and was
//! taken is flagged, once [`Tracker::repair`] has run, and nothing else is; a flagged head carries
//! its own counter; no counter is given twice. Whoever opens a region checks all of it, because a
//! front end keeps it. Deliberately absent: packed rings, and whatever a request is about.
//!
//! ```text
//! take:    counter -> flag                    a kill between: not taken, the ring still has it
//! publish: next, last_batch_head (each head)  a kill: the list is longer than anybody will count
//!          -> used index of the ring          a kill: the two indices tell how much of the list
//!          -> flags of the list away          counts, and repair ends what was begun
//!          -> used_idx
//! ```
//!
//! The ring's index comes to `used_idx` last. Before the flags it would hide, after a kill between
//! the two, that flags are left over, and requests would be completed twice.

use crate::adversary::{Bug, has};
use crate::memory::{Address, Memory, Outside};
use crate::{Counter, Head, Queue};
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u16 = 1;
/// Queue regions begin at multiples of this, so that none shares a cache line with another.
const ALIGNMENT: u64 = 64;
/// Half of all; the other half is more than any daemon can use up.
const COUNTER_MAX: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    features: U64,
    version: U16,
    desc_num: U16,
    last_batch_head: U16,
    used_idx: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    inflight: u8,
    padding: [u8; 5],
    next: U16,
    counter: U64,
}

const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
const VERSION_AT: u64 = 8;
const LAST_BATCH_HEAD_AT: u64 = 12;
const USED_IDX_AT: u64 = 14;
const FLAG_AT: u64 = 0;
const NEXT_AT: u64 = 6;
const COUNTER_AT: u64 = 8;
const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);
const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES);
const _: () = assert!(core::mem::offset_of!(Header, version) as u64 == VERSION_AT);
const _: () = assert!(core::mem::offset_of!(Header, last_batch_head) as u64 == LAST_BATCH_HEAD_AT);
const _: () = assert!(core::mem::offset_of!(Header, used_idx) as u64 == USED_IDX_AT);
const _: () = assert!(core::mem::offset_of!(Entry, next) as u64 == NEXT_AT);
const _: () = assert!(core::mem::offset_of!(Entry, counter) as u64 == COUNTER_AT);

/// What is wrong with a region that somebody gave us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    #[error("{queues} queues of {size}; at least one, and a power of two up to 32768 is right")]
    Layout { queues: u16, size: u16 },
    #[error("the in-flight region of queue {0:?} has unknown features {1:#x}")]
    Features(Queue, u64),
    #[error("the in-flight region of queue {0:?} has version {1}; 1 is known")]
    Version(Queue, u16),
    #[error("the in-flight region of queue {0:?} is for {1} descriptors, the queue has {2}")]
    Size(Queue, u16, u16),
    #[error("the in-flight region of queue {0:?} names descriptor {1}, which there is not")]
    Head(Queue, u16),
    #[error("the in-flight region of queue {0:?} has a flag of {1}")]
    Flag(Queue, u8),
    #[error("the in-flight region of queue {0:?} counts up to {1:#x}")]
    Counter(Queue, u64),
    #[error("the in-flight region of queue {0:?} is {1} requests behind its ring, more than fit")]
    Batch(Queue, u16),
    #[error("the in-flight region: {0}")]
    Outside(#[from] Outside),
}

/// How many queues a region is for, and how large they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub queues: u16,
    pub size: u16,
}

impl Layout {
    /// Bytes of one queue's part.
    fn stride(&self) -> u64 {
        (HEADER_BYTES + u64::from(self.size) * ENTRY_BYTES).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a region, which is to be all zeroes when it is new.
    pub fn bytes(&self) -> u64 {
        self.stride() * u64::from(self.queues)
    }

    /// Whether a ring ever ran with this region.
    pub fn was_used(&self, region: &impl Memory) -> Result<bool, Outside> {
        for queue in 0..self.queues {
            let version = Address(self.stride() * u64::from(queue)).plus(VERSION_AT);
            if region.load_u16(version)? != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn check(&self) -> Result<(), RegionError> {
        let Layout { queues, size } = *self;
        let good = queues > 0 && size.is_power_of_two() && size <= crate::split::SIZE_MAX;
        match good {
            true => Ok(()),
            false => Err(RegionError::Layout { queues, size }),
        }
    }
}

/// One queue's part as it was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Whether a ring ever ran with it.
    pub used: bool,
    /// Flagged heads and their counters, in order of heads.
    pub flagged: Vec<(Head, Counter)>,
    /// Above every counter that was given, also to requests that have ended.
    pub counter_end: u64,
    last_batch_head: u16,
    used_idx: u16,
    next: Vec<u16>,
}

/// One queue's part, of which we are the only one who writes.
#[derive(Debug)]
pub(crate) struct Tracker {
    at: Address,
    queue: Queue,
    size: u16,
    last_batch_head: u16,
}

impl Tracker {
    pub fn new(layout: &Layout, queue: Queue) -> Tracker {
        assert!(queue.0 < layout.queues);
        Tracker {
            at: Address(layout.stride() * u64::from(queue.0)),
            queue,
            size: layout.size,
            last_batch_head: 0,
        }
    }

    fn entry(&self, head: Head) -> Address {
        assert!(head.0 < self.size);
        self.at.plus(HEADER_BYTES + u64::from(head.0) * ENTRY_BYTES)
    }

    /// Reads and checks all of it, once. Nothing in it counts before a ring ran with it.
    pub fn find(&self, region: &impl Memory) -> Result<Found, RegionError> {
        let queue = self.queue;
        let mut bytes =
            alloc::vec![0; (HEADER_BYTES + u64::from(self.size) * ENTRY_BYTES) as usize];
        region.read(self.at, &mut bytes)?;
        let (header, entries) = Header::ref_from_prefix(&bytes).expect("a header is there");
        let entries = <[Entry]>::ref_from_bytes(entries).expect("entries are there");
        let (features, version) = (header.features.get(), header.version.get());
        if features != 0 {
            return Err(RegionError::Features(queue, features));
        }
        if version == 0 {
            return Ok(Found::default());
        }
        if version != VERSION {
            return Err(RegionError::Version(queue, version));
        }
        if header.desc_num.get() != self.size {
            return Err(RegionError::Size(queue, header.desc_num.get(), self.size));
        }
        let mut found = Found {
            used: true,
            last_batch_head: header.last_batch_head.get(),
            used_idx: header.used_idx.get(),
            next: entries.iter().map(|entry| entry.next.get()).collect(),
            ..Found::default()
        };
        self.check_head(found.last_batch_head)?;
        for (head, entry) in entries.iter().enumerate() {
            let counter = entry.counter.get();
            if counter > COUNTER_MAX {
                return Err(RegionError::Counter(queue, counter));
            }
            found.counter_end = found.counter_end.max(counter + 1);
            match entry.inflight {
                0 => {}
                1 => found.flagged.push((Head(head as u16), Counter(counter))),
                other => return Err(RegionError::Flag(queue, other)),
            }
        }
        Ok(found)
    }

    fn check_head(&self, head: u16) -> Result<(), RegionError> {
        match head < self.size {
            true => Ok(()),
            false => Err(RegionError::Head(self.queue, head)),
        }
    }

    /// Makes the part say what the ring says. What is left in `found` is in flight.
    pub fn repair(
        &mut self,
        region: &impl Memory,
        found: &mut Found,
        used_index: u16,
    ) -> Result<(), RegionError> {
        if !found.used {
            return self.create(region, used_index);
        }
        self.last_batch_head = found.last_batch_head;
        let behind = used_index.wrapping_sub(found.used_idx);
        if behind != 0 && !found.flagged.is_empty() {
            // Without a flag nothing can be lost or repeated, and the ring may be another one.
            if behind > self.size {
                return Err(RegionError::Batch(self.queue, behind));
            }
            let mut ended = alloc::vec![false; usize::from(self.size)];
            let mut head = found.last_batch_head;
            for _ in 0..behind {
                self.check_head(head)?;
                self.clear(region, Head(head))?;
                ended[usize::from(head)] = true;
                head = found.next[usize::from(head)];
            }
            found
                .flagged
                .retain(|(head, _)| !ended[usize::from(head.0)] || has(Bug::RunHeadTwice));
        }
        if behind != 0 {
            region.store_u16(self.at.plus(USED_IDX_AT), used_index)?;
        }
        Ok(())
    }

    /// The version comes last, so that a kill leaves a part that nobody believes.
    fn create(&mut self, region: &impl Memory, used_index: u16) -> Result<(), RegionError> {
        for head in 0..self.size {
            region.write(self.entry(Head(head)), &[0; ENTRY_BYTES as usize])?;
        }
        let header = Header {
            features: U64::ZERO,
            version: U16::ZERO,
            desc_num: U16::new(self.size),
            last_batch_head: U16::ZERO,
            used_idx: U16::new(used_index),
        };
        self.last_batch_head = 0;
        region.write(self.at, header.as_bytes())?;
        region.store_u16(self.at.plus(VERSION_AT), VERSION)?;
        Ok(())
    }

    /// From here on the request survives us.
    pub fn mark(&self, region: &impl Memory, head: Head, counter: Counter) -> Result<(), Outside> {
        let entry = self.entry(head);
        if has(Bug::TakeUnmarked) {
            return Ok(());
        }
        region.store_u64(entry.plus(COUNTER_AT), counter.0)?;
        region.store_u8(entry.plus(FLAG_AT), 1)
    }

    /// Puts a head in front of the list of the batch that is about to be published.
    pub fn link(&mut self, region: &impl Memory, head: Head) -> Result<(), Outside> {
        region.store_u16(self.entry(head).plus(NEXT_AT), self.last_batch_head)?;
        region.store_u16(self.at.plus(LAST_BATCH_HEAD_AT), head.0)?;
        self.last_batch_head = head.0;
        Ok(())
    }

    /// The ring shows this head as used.
    pub fn clear(&self, region: &impl Memory, head: Head) -> Result<(), Outside> {
        region.store_u8(self.entry(head).plus(FLAG_AT), 0)
    }

    /// The whole batch is cleared.
    pub fn settle(&self, region: &impl Memory, used_index: u16) -> Result<(), Outside> {
        region.store_u16(self.at.plus(USED_IDX_AT), used_index)
    }
}
