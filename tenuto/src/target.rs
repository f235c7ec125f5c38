use engine::event::{IoError, Stat};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

/// One open file description that carries I/O, and what it can take.
#[derive(Debug)]
pub struct Target {
    pub file: File,
    pub path: PathBuf,
    /// Opened O_DIRECT: offset, length and memory must be aligned.
    pub direct: bool,
    /// Alignment of offset and length (1 when not direct).
    pub dio_align: u32,
    /// Alignment of memory (1 when not direct).
    pub mem_align: u32,
    /// At open; ledgers and journals grow.
    pub size_bytes: u64,
    pub block_device: bool,
    pub read_only: bool,
    /// `zero` writes real zeroes (cache: a sync into merely allocated blocks costs twice).
    pub zero_by_writing: bool,
}

impl Target {
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Blocking, any alignment, zeroes beyond the end.
    pub fn read(&self, _offset: u64, _bytes: &mut [u8]) -> Result<(), IoError> {
        todo!()
    }

    /// Blocking, any alignment (read-modify-write where the device asks for more).
    pub fn write(&self, _offset: u64, _bytes: &[u8]) -> Result<(), IoError> {
        todo!()
    }

    /// Blocking; falls back to writing zeroes.
    pub fn zero(&self, _offset: u64, _bytes: u64, _allocate: bool) -> Result<(), IoError> {
        todo!()
    }

    pub fn sync(&self) -> Result<(), IoError> {
        todo!()
    }

    pub fn stat(&self) -> Result<Stat, IoError> {
        todo!()
    }

    /// Whether an asynchronous request with this memory can go to the file as it is.
    pub fn takes(&self, _offset: u64, _slices: &[libc::iovec]) -> bool {
        todo!()
    }
}

/// True when the range must go by the blocking path (`Target::read` and `Target::write`).
pub fn misaligned(_target: &Target, _offset: u64, _bytes: u64) -> bool {
    todo!()
}
