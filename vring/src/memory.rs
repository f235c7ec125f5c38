//! Memory that somebody else can see and change: a guest's, and the in-flight region.
//!
//! Owns the interface to it. Always true: a range outside is an error, never a panic; numbers are
//! little-endian in memory. A kill leaves a prefix of the stores ([`Memory::store_u8`] and its
//! sisters) in the order of the program, each whole. [`Memory::write`] is only sure to come before
//! the next store, and may be cut anywhere. Deliberately absent: translation. The addresses of
//! rings, which a front end gives in its own space, are made guest-physical by the host.

use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::{Ordering, fence};

/// Guest-physical, or an offset in an in-flight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// Only for parts of a range that was checked.
    pub(crate) const fn plus(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// Bytes that are next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub at: Address,
    pub bytes: u32,
}

/// A range that is not all inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at:#x} are not in the shared memory")]
pub struct Outside {
    pub at: u64,
    pub bytes: u64,
}

/// Shared memory. All of it takes `&self`, because we are never the only one who writes.
///
/// A range may lie in more than one mapping; to join them is the implementation's affair, as is the
/// log of dirty pages. Numbers are asked for at multiples of their size only.
pub trait Memory {
    /// Whether all of the range is inside.
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside>;
    /// Copies bytes out, each read once.
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside>;
    /// Copies bytes in.
    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside>;
    /// An acquiring load: what the other side wrote before its store of this number is seen.
    fn load_u16(&self, at: Address) -> Result<u16, Outside>;
    /// A releasing store, as the next two are.
    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside>;
    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside>;
    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside>;
    /// Stores before it are seen by others before loads after it are done.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Memory of this process alone: the region of a front end that keeps none for us, and tests.
#[derive(Debug)]
pub struct Bytes {
    bytes: RefCell<Vec<u8>>,
}

impl Bytes {
    pub fn new(bytes: Vec<u8>) -> Bytes {
        Bytes {
            bytes: RefCell::new(bytes),
        }
    }

    pub fn zeroed(bytes: u64) -> Bytes {
        Bytes::new(alloc::vec![0; bytes as usize])
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.bytes.into_inner()
    }

    fn end(&self, at: Address, bytes: u64) -> Result<usize, Outside> {
        let end = at.0.checked_add(bytes);
        end.filter(|&end| end <= self.bytes.borrow().len() as u64)
            .map(|end| end as usize)
            .ok_or(Outside { at: at.0, bytes })
    }
}

impl Memory for Bytes {
    fn check(&self, at: Address, bytes: u64) -> Result<(), Outside> {
        self.end(at, bytes).map(|_| ())
    }

    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Outside> {
        let end = self.end(at, into.len() as u64)?;
        into.copy_from_slice(&self.bytes.borrow()[at.0 as usize..end]);
        Ok(())
    }

    fn write(&self, at: Address, bytes: &[u8]) -> Result<(), Outside> {
        let end = self.end(at, bytes.len() as u64)?;
        self.bytes.borrow_mut()[at.0 as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn load_u16(&self, at: Address) -> Result<u16, Outside> {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store_u8(&self, at: Address, value: u8) -> Result<(), Outside> {
        self.write(at, &[value])
    }

    fn store_u16(&self, at: Address, value: u16) -> Result<(), Outside> {
        self.write(at, &value.to_le_bytes())
    }

    fn store_u64(&self, at: Address, value: u64) -> Result<(), Outside> {
        self.write(at, &value.to_le_bytes())
    }
}
