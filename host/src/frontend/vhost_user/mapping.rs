//! Memory of another process in our address space: the only unsafe code of this frontend.
//!
//! Owns each mapping and the raw pointers into it. Always true: a mapping keeps its address and
//! size until it is dropped; it begins at a multiple of 8 bytes and every access lies inside;
//! whatever others can change is read by atomic loads, once. Only memory files are mapped, because
//! a page of any other file may need a disk, or its owner, to answer before the shard goes on. What
//! happens when the owner takes the pages away is in `lost`. Deliberately absent: any knowledge of
//! what the bytes mean.

use super::lost::{self, Watch};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

/// Words are 8 bytes, and so is the alignment of everything that is mapped.
pub const ALIGNMENT: u64 = 8;
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Why a part of a file is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    #[error("no bytes to map")]
    Empty,
    #[error("a place of {0:#x} in a file; a multiple of 8 would be right")]
    Alignment(u64),
    #[error("{bytes} bytes at {offset:#x} of a file of {size} bytes")]
    FileTooSmall { offset: u64, bytes: u64, size: u64 },
    #[error("a file that is no memory; a memfd, tmpfs or hugetlbfs would be right")]
    NotMemory,
    #[error("more mappings of guests than this process can watch")]
    TooMany,
    #[error("map shared memory: {0}")]
    Io(#[from] io::Error),
}

/// A part of a memory file, shared with its other owners. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    base_bytes: usize,
    /// Of what was asked for, inside the mapping.
    start: usize,
    bytes: u64,
    watch: Option<Watch>,
}

// SAFETY: a mapping owns its address range; nothing in it is bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives out atomics and raw pointers only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file, which must have all of it now.
    pub fn new(file: &File, offset: u64, bytes: u64) -> Result<Mapping, MappingError> {
        if bytes == 0 {
            return Err(MappingError::Empty);
        }
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(MappingError::Alignment(offset));
        }
        let size = file.metadata()?.len();
        let end = offset.checked_add(bytes).filter(|&end| end <= size);
        let Some(end) = end else {
            return Err(MappingError::FileTooSmall {
                offset,
                bytes,
                size,
            });
        };
        // Both ends of a mapping of huge pages must be at their multiples.
        let page = page_bytes(file)?;
        let base_at = offset - offset % page;
        let base_bytes = (end - base_at).checked_next_multiple_of(page);
        let base_bytes = base_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let base_bytes = base_bytes.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let file_at = libc::off_t::try_from(base_at).map_err(io::Error::other)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base = unsafe {
            let anywhere = std::ptr::null_mut();
            let file = file.as_raw_fd();
            libc::mmap(anywhere, base_bytes, access, flags, file, file_at)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: the range was just mapped. Guests' data has no place in a core dump; a kernel
        // that does not know the advice changes nothing else.
        unsafe { libc::madvise(base, base_bytes, libc::MADV_DONTDUMP) };
        let mut mapping = Mapping {
            base: base.cast(),
            base_bytes,
            start: (offset - base_at) as usize,
            bytes,
            watch: None,
        };
        let watch = lost::watch(mapping.base as usize, base_bytes);
        mapping.watch = Some(watch.ok_or(MappingError::TooMany)?);
        Ok(mapping)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether its owner has taken pages away. Nothing in it means anything from then on.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_lost)
    }

    /// Pointer to a range; panics when the range leaves the mapping. Valid as long as `self`.
    pub fn pointer(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes);
        let inside = end.is_some_and(|end| end <= self.bytes);
        assert!(inside, "range {offset:#x}+{bytes} leaves its mapping");
        // SAFETY: `start + offset` lies in the mapping, checked above and in `new`.
        unsafe { self.base.add(self.start + offset as usize) }
    }

    pub fn byte(&self, offset: u64) -> &AtomicU8 {
        let at = self.pointer(offset, 1);
        // SAFETY: inside the mapping, which lives as long as `self`; any bits are a valid atomic.
        unsafe { AtomicU8::from_ptr(at) }
    }

    /// The offset is a multiple of 2.
    pub fn half_word(&self, offset: u64) -> &AtomicU16 {
        let at: *mut u16 = self.pointer(offset, 2).cast();
        assert!(at.is_aligned());
        // SAFETY: as in `byte`, and aligned.
        unsafe { AtomicU16::from_ptr(at) }
    }

    /// The offset is a multiple of 8.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let at: *mut u64 = self.pointer(offset, 8).cast();
        assert!(at.is_aligned());
        // SAFETY: as in `byte`, and aligned.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Copies out, each byte read once. A copy by the library may read twice, and a compiler that
    /// sees a plain one may go back to the source, where the guest has written something else.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let (head, words) = split(offset, into.len());
        let (first, rest) = into.split_at_mut(head);
        let (middle, last) = rest.split_at_mut(words * 8);
        let mut at = offset;
        for byte in first {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
        for eight in middle.chunks_exact_mut(8) {
            let word = self.word(at).load(Ordering::Relaxed);
            eight.copy_from_slice(&word.to_ne_bytes());
            at += 8;
        }
        for byte in last {
            *byte = self.byte(at).load(Ordering::Relaxed);
            at += 1;
        }
    }

    /// Copies in.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let (head, words) = split(offset, bytes.len());
        let (first, rest) = bytes.split_at(head);
        let (middle, last) = rest.split_at(words * 8);
        let mut at = offset;
        for &byte in first {
            self.byte(at).store(byte, Ordering::Relaxed);
            at += 1;
        }
        for eight in middle.chunks_exact(8) {
            let word = u64::from_ne_bytes(eight.try_into().expect("eight bytes"));
            self.word(at).store(word, Ordering::Relaxed);
            at += 8;
        }
        for &byte in last {
            self.byte(at).store(byte, Ordering::Relaxed);
            at += 1;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Nobody looks for the range any more when it is somebody else's.
        self.watch = None;
        // SAFETY: this mapping is ours, and whoever held a pointer into it borrowed it.
        unsafe { libc::munmap(self.base.cast(), self.base_bytes) };
    }
}

/// Bytes before the first word, and whole words after them.
fn split(offset: u64, bytes: usize) -> (usize, usize) {
    let head = (offset.next_multiple_of(8) - offset) as usize;
    let head = head.min(bytes);
    (head, (bytes - head) / 8)
}

/// Size of the pages of a memory file.
fn page_bytes(file: &File) -> Result<u64, MappingError> {
    let (kind, block_bytes) = crate::sys::file_system(file)?;
    let page = match kind {
        TMPFS_MAGIC => crate::sys::page_bytes(),
        HUGETLBFS_MAGIC => block_bytes,
        _ => return Err(MappingError::NotMemory),
    };
    assert!(page.is_power_of_two());
    Ok(page)
}
