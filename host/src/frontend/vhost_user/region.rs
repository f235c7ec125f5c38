//! The in-flight region: what outlives a killed daemon in the keeping of the front end.
//!
//! Owns its file and its mapping. Always true: one that we make has its memory allocated and its
//! size sealed before anybody else sees it; one that comes back is as large as its queues need, in
//! a file that has all of it. What it says is checked by [`vring::rings::Rings::open`]. One that we
//! make has a number behind its queues, by which a later daemon knows the requests of this region
//! from those of others; what is lost with a number is only that. Deliberately absent: its layout.

use super::mapping::{ALIGNMENT, Mapping, MappingError};
use crate::sys;
use std::fs::File;
use std::sync::atomic::Ordering;
use vring::inflight::Layout;
use vring::memory::{Address, Memory, Outside};

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error("an in-flight region for {queues} queues, of {size}; {queues_max} at most are right")]
    Layout {
        queues: u16,
        size: u16,
        queues_max: u16,
    },
    #[error("an in-flight region of {has} bytes; its queues need {needs}")]
    Short { has: u64, needs: u64 },
    #[error(transparent)]
    Mapping(#[from] MappingError),
    #[error("make an in-flight region: {0}")]
    Io(#[from] std::io::Error),
}

/// An in-flight region. Its addresses are offsets.
#[derive(Debug)]
pub struct Region {
    layout: Layout,
    mapping: Mapping,
    /// 0 in a region of others, which has none.
    number: u32,
}

/// Behind the queues: the magic, and the number.
const NUMBER_BYTES: u64 = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"tenutoIF");

impl Region {
    /// A new one, all zeroes, and the file to hand out.
    pub fn create(layout: Layout, queues_max: u16) -> Result<(Region, File), RegionError> {
        check(layout, queues_max)?;
        let queues = layout.bytes();
        let file = sys::memory_file(c"tenuto-in-flight", queues + NUMBER_BYTES)?;
        let mapping = Mapping::new(&file, 0, queues + NUMBER_BYTES)?;
        let number = (uuid::Uuid::new_v4().as_u128() as u32).max(1);
        let (magic, place) = (mapping.word(queues), mapping.word(queues + 8));
        place.store(u64::from(number).to_le(), Ordering::Release);
        magic.store(MAGIC.to_le(), Ordering::Release);
        let region = Region {
            layout,
            mapping,
            number,
        };
        Ok((region, file))
    }

    /// One that a front end has kept: `bytes` at `offset` of its file.
    pub fn open(
        layout: Layout,
        queues_max: u16,
        file: &File,
        offset: u64,
        bytes: u64,
    ) -> Result<Region, RegionError> {
        check(layout, queues_max)?;
        let needs = layout.bytes();
        if bytes < needs {
            return Err(RegionError::Short { has: bytes, needs });
        }
        let numbered = bytes >= needs + NUMBER_BYTES;
        let all = if numbered {
            needs + NUMBER_BYTES
        } else {
            needs
        };
        let mapping = Mapping::new(file, offset, all)?;
        let word = |at| u64::from_le(mapping.word(at).load(Ordering::Acquire));
        let number = match numbered && word(needs) == MAGIC {
            true => u32::try_from(word(needs + 8)).unwrap_or(0),
            false => 0,
        };
        Ok(Region {
            layout,
            mapping,
            number,
        })
    }

    /// Tells it from other regions; 0 where there is none.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether a ring ever ran with it. What cannot be read was, for all we know.
    pub fn was_used(&self) -> bool {
        self.layout.was_used(self).unwrap_or(true)
    }

    /// Bytes of one that we make.
    pub fn bytes(layout: Layout) -> u64 {
        layout.bytes() + NUMBER_BYTES
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The offset, if all of a range is inside.
    fn offset(&self, at: Address, bytes: u64) -> Result<u64, Outside> {
        let end = at.0.checked_add(bytes);
        let inside = end.is_some_and(|end| end <= self.layout.bytes());
        match inside && !self.mapping.is_lost() {
            true => Ok(at.0),
            false => Err(Outside { at: at.0, bytes }),
        }
    }

    fn aligned(&self, at: Address, bytes: u64) -> Result<u64, Outside> {
        let offset = self.offset(at, bytes)?;
        match offset.is_multiple_of(bytes) {
            true => Ok(offset),
            false => Err(Outside { at: at.0, bytes }),
        }
    }
}

const _: () = assert!(
    ALIGNMENT == 8,
    "numbers of a region are where its layout has them"
);

fn check(layout: Layout, queues_max: u16) -> Result<(), RegionError> {
    let Layout { queues, size } = layout;
    let sized = size.is_power_of_two() && size <= vring::split::SIZE_MAX;
    match queues > 0 && queues <= queues_max && sized {
        true => Ok(()),
        false => Err(RegionError::Layout {
            queues,
            size,
            queues_max,
        }),
    }
}

impl Memory for Region {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.offset(at, bytes).map(|_| ())
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        let offset = self.offset(at, into.len() as u64)?;
        self.mapping.read(offset, into);
        Ok(())
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        let offset = self.offset(at, bytes.len() as u64)?;
        self.mapping.write(offset, bytes);
        Ok(())
    }

    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        let value = self.mapping.half_word(self.aligned(at, 2)?);
        Ok(u16::from_le(value.load(Ordering::Acquire)))
    }

    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        let place = self.mapping.byte(self.aligned(at, 1)?);
        place.store(value, Ordering::Release);
        Ok(())
    }

    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        let place = self.mapping.half_word(self.aligned(at, 2)?);
        place.store(value.to_le(), Ordering::Release);
        Ok(())
    }

    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        let place = self.mapping.word(self.aligned(at, 8)?);
        place.store(value.to_le(), Ordering::Release);
        Ok(())
    }
}
