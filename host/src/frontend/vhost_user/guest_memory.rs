//! The memory of one guest, as its front end has shared it.
//!
//! Owns the table of regions and the translation of both kinds of addresses. Always true: a table
//! never changes once it is made, so a request in flight keeps the memory it began with alive;
//! regions do not overlap in the guest's space, and all their numbers are multiples of 8, so no
//! number in memory is cut by the end of a region; a range over regions that adjoin is one range.
//! Every store is noted in the log of dirty pages when there is one, after it is done: a front end
//! that takes a page off the log and copies it has all that was written before. Deliberately
//! absent: payload bytes.
//!
//! A front end can take pages away from under us; `lost` says how that ends. What it does not have
//! any more reads as zeroes once, and is [`Outside`] from then on.

use super::dirty::Dirty;
use super::mapping::{ALIGNMENT, Mapping, MappingError};
use crate::lent::{self, BufferId, Loans};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vring::memory::{Address, Memory, Outside, Segment};

/// Regions of one guest.
pub const REGIONS_MAX: usize = 256;

/// Where a region lies, as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Guest-physical.
    pub guest: u64,
    pub bytes: u64,
    /// In the space of the front end, in which it gives the addresses of rings.
    pub user: u64,
    /// In the file.
    pub offset: u64,
}

/// Why a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{0} regions of memory; at most 256 are taken")]
    TooMany(usize),
    #[error("a region of {bytes} bytes at {guest:#x}, user address {user:#x}: beyond the last one")]
    Overflow { guest: u64, user: u64, bytes: u64 },
    #[error(
        "a region of {bytes} bytes at {guest:#x}, user address {user:#x}; multiples of 8 are right"
    )]
    Alignment { guest: u64, user: u64, bytes: u64 },
    #[error("regions at {0:#x} and {1:#x} of the guest's memory overlap")]
    Overlap(u64, u64),
    #[error("there is no region of {bytes} bytes at {guest:#x}, user address {user:#x}")]
    NotThere { guest: u64, user: u64, bytes: u64 },
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

#[derive(Clone, Debug)]
struct Region {
    place: Place,
    mapping: Arc<Mapping>,
}

impl Region {
    fn new(place: Place, file: &File) -> Result<Region, TableError> {
        let Place {
            guest, bytes, user, ..
        } = place;
        let fits = |start: u64| start.checked_add(bytes).is_some();
        if !fits(guest) || !fits(user) {
            return Err(TableError::Overflow { guest, user, bytes });
        }
        let aligned = |number: u64| number.is_multiple_of(ALIGNMENT);
        if !aligned(guest) || !aligned(user) || !aligned(bytes) {
            return Err(TableError::Alignment { guest, user, bytes });
        }
        let mapping = Arc::new(Mapping::new(file, place.offset, bytes)?);
        Ok(Region { place, mapping })
    }

    fn end(&self) -> u64 {
        self.place.guest + self.place.bytes
    }
}

/// A part of a range that lies in one mapping.
struct Piece<'a> {
    mapping: &'a Mapping,
    offset: u64,
    bytes: u64,
}

/// The memory of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    /// In order of guest addresses.
    regions: Vec<Region>,
    dirty: Arc<Dirty>,
}

impl GuestMemory {
    /// No memory at all, before the front end has said anything.
    pub fn empty(dirty: Arc<Dirty>) -> GuestMemory {
        GuestMemory {
            regions: Vec::new(),
            dirty,
        }
    }

    /// The log is that of the front end, whatever table it shares.
    pub fn new(places: &[(Place, File)], dirty: Arc<Dirty>) -> Result<GuestMemory, TableError> {
        // Before anything is mapped.
        if places.len() > REGIONS_MAX {
            return Err(TableError::TooMany(places.len()));
        }
        let regions = places
            .iter()
            .map(|(place, file)| Region::new(*place, file))
            .collect::<Result<_, _>>()?;
        GuestMemory::of(regions, dirty)
    }

    fn of(mut regions: Vec<Region>, dirty: Arc<Dirty>) -> Result<GuestMemory, TableError> {
        if regions.len() > REGIONS_MAX {
            return Err(TableError::TooMany(regions.len()));
        }
        regions.sort_by_key(|region| region.place.guest);
        for pair in regions.windows(2) {
            if pair[0].end() > pair[1].place.guest {
                let [first, second] = [0, 1].map(|at: usize| pair[at].place.guest);
                return Err(TableError::Overlap(first, second));
            }
        }
        Ok(GuestMemory { regions, dirty })
    }

    /// The same with one region more. Mappings are shared with `self`.
    pub fn with(&self, place: Place, file: &File) -> Result<GuestMemory, TableError> {
        if self.regions.len() >= REGIONS_MAX {
            return Err(TableError::TooMany(self.regions.len() + 1));
        }
        let mut regions = self.regions.clone();
        regions.push(Region::new(place, file)?);
        GuestMemory::of(regions, self.dirty.clone())
    }

    /// The same without one region; its offset does not count.
    pub fn without(&self, place: Place) -> Result<GuestMemory, TableError> {
        let Place {
            guest, bytes, user, ..
        } = place;
        let named = |region: &Region| {
            let it = region.place;
            (it.guest, it.bytes, it.user) == (guest, bytes, user)
        };
        let at = self.regions.iter().position(named);
        let at = at.ok_or(TableError::NotThere { guest, user, bytes })?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        GuestMemory::of(regions, self.dirty.clone())
    }

    /// The last address and one, which a log of dirty pages must reach.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, Region::end)
    }

    /// Makes an address of the front end guest-physical. Where it has shared the same memory twice,
    /// the lower guest address is taken; both lead to the same bytes.
    pub fn translate(&self, user: u64) -> Option<Address> {
        let inside = |region: &&Region| user.wrapping_sub(region.place.user) < region.place.bytes;
        let region = self
            .regions
            .iter()
            .filter(|it| user >= it.place.user)
            .find(inside)?;
        Some(Address(region.place.guest + (user - region.place.user)))
    }

    /// Where the bytes of a range are, in order. Valid as long as `self`; what is written there by
    /// other means than this type is to be marked afterwards.
    pub fn pieces(
        &self,
        at: Address,
        bytes: u64,
    ) -> Result<impl Iterator<Item = (*mut u8, u64)>, Outside> {
        self.check(at, bytes)?;
        let pieces = self.walk(at, bytes);
        Ok(pieces.map(|piece| {
            let piece = piece.expect("all of the range is inside");
            let pointer = piece.mapping.pointer(piece.offset, piece.bytes);
            (pointer, piece.bytes)
        }))
    }

    /// A buffer of the engine of all these bytes in a row; `None` where one is outside. `pieces` is
    /// a list to use, for its memory.
    pub fn lend(
        self: &Arc<Self>,
        data: &[Segment],
        pieces: &mut Vec<lent::Piece>,
        loans: &mut Loans,
    ) -> Option<BufferId> {
        pieces.clear();
        for segment in data {
            let found = self.pieces(segment.at, u64::from(segment.bytes)).ok()?;
            pieces.extend(found.map(|(pointer, bytes)| lent::Piece { pointer, bytes }));
        }
        let pieces = pieces.iter().copied();
        // SAFETY: the pieces lie in mappings that this memory keeps, and nobody makes references to
        // a guest's bytes.
        Some(unsafe { loans.lend(pieces, self.clone()) })
    }

    /// Notes that these bytes were written, by a device for example.
    pub fn mark(&self, at: Address, bytes: u64) {
        if self.dirty.is_on() {
            self.dirty.mark(at, bytes);
        }
    }

    /// Parts of a range, and an error in the place of the first that is outside.
    fn walk(&self, at: Address, bytes: u64) -> impl Iterator<Item = Result<Piece<'_>, Outside>> {
        let outside = Outside { at: at.0, bytes };
        let mut index = self.regions.partition_point(|region| region.end() <= at.0);
        let mut next = at.0;
        let mut left = bytes;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let region = self.regions.get(index);
            let region = region.filter(|it| it.place.guest <= next);
            let Some(region) = region else {
                left = 0;
                return Some(Err(outside));
            };
            let part = left.min(region.end() - next);
            let piece = Piece {
                mapping: &region.mapping,
                offset: next - region.place.guest,
                bytes: part,
            };
            index += 1;
            // At the very end of the address space nothing is left.
            next = next.wrapping_add(part);
            left -= part;
            Some(Ok(piece))
        })
    }

    /// The same, with what is lost outside.
    fn live(&self, at: Address, bytes: u64) -> impl Iterator<Item = Result<Piece<'_>, Outside>> {
        self.walk(at, bytes).map(move |piece| match piece {
            Ok(piece) if piece.mapping.is_lost() => Err(Outside { at: at.0, bytes }),
            other => other,
        })
    }

    /// The place of a number, which no end of a region cuts.
    fn number(&self, at: Address, bytes: u64) -> Result<Piece<'_>, Outside> {
        let outside = Outside { at: at.0, bytes };
        if !at.0.is_multiple_of(bytes) {
            return Err(outside);
        }
        let piece = self.live(at, bytes).next().unwrap_or(Err(outside))?;
        match piece.bytes == bytes {
            true => Ok(piece),
            false => Err(outside),
        }
    }
}

impl Memory for GuestMemory {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.live(at, bytes).try_for_each(|piece| piece.map(|_| ()))
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        let mut rest = into;
        for piece in self.live(at, rest.len() as u64) {
            let piece = piece?;
            let (part, after) = rest.split_at_mut(piece.bytes as usize);
            piece.mapping.read(piece.offset, part);
            rest = after;
        }
        Ok(())
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        self.check(at, bytes.len() as u64)?;
        let mut rest = bytes;
        for piece in self.live(at, bytes.len() as u64) {
            let piece = piece?;
            let (part, after) = rest.split_at(piece.bytes as usize);
            piece.mapping.write(piece.offset, part);
            rest = after;
        }
        self.mark(at, bytes.len() as u64);
        Ok(())
    }

    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        let piece = self.number(at, 2)?;
        let value = piece.mapping.half_word(piece.offset);
        Ok(u16::from_le(value.load(Ordering::Acquire)))
    }

    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        let piece = self.number(at, 1)?;
        let place = piece.mapping.byte(piece.offset);
        place.store(value, Ordering::Release);
        self.mark(at, 1);
        Ok(())
    }

    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        let piece = self.number(at, 2)?;
        let place = piece.mapping.half_word(piece.offset);
        place.store(value.to_le(), Ordering::Release);
        self.mark(at, 2);
        Ok(())
    }

    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        let piece = self.number(at, 8)?;
        let place = piece.mapping.word(piece.offset);
        place.store(value.to_le(), Ordering::Release);
        self.mark(at, 8);
        Ok(())
    }
}
