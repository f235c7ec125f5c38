use engine::memory::{Memory, Place};
use engine::types::BufferId;
use std::fs::File;
use std::io;

/// A page-aligned mapping of fixed size, unmapped on drop.
pub struct Arena {
    base: *mut u8,
    bytes: usize,
}

impl Arena {
    pub fn anonymous(_bytes: u64) -> io::Result<Arena> {
        todo!()
    }

    /// Maps the first `bytes` of a file MAP_SHARED.
    pub fn shared(_file: &File, _bytes: u64) -> io::Result<Arena> {
        todo!()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

/// Payload buffers of guest requests.
pub struct BufferPool {}

pub const BUFFER_BYTES_MIN: u64 = 4 << 10;
pub const BUFFER_BYTES_MAX: u64 = 32 << 20;
pub const POOL_BYTES_DEFAULT: u64 = 256 << 20;

impl BufferPool {
    pub fn new(_budget_bytes: u64) -> io::Result<BufferPool> {
        todo!()
    }

    /// `None` when the budget is spent (wait for a `free`) or `bytes` > `BUFFER_BYTES_MAX`.
    pub fn allocate(&mut self, _bytes: u64) -> Option<BufferId> {
        todo!()
    }

    pub fn free(&mut self, _buffer: BufferId) {
        todo!()
    }

    /// Exactly the bytes asked for at `allocate`.
    pub fn bytes(&mut self, _buffer: BufferId) -> &mut [u8] {
        todo!()
    }

    pub fn used_bytes(&self) -> u64 {
        todo!()
    }
}

/// The areas of the engine.
pub struct HostMemory {
    pub buffers: BufferPool,
}

impl HostMemory {
    pub fn new(_stage: Arena, _ram: Arena, _scratch: Arena, _buffers: BufferPool) -> HostMemory {
        todo!()
    }

    /// For scatter lists; panics when the range leaves its area.
    pub fn pointer(&self, _place: Place, _bytes: u64) -> *mut u8 {
        todo!()
    }
}

impl Memory for HostMemory {
    fn copy(&mut self, _from: Place, _to: Place, _bytes: u64) {
        todo!()
    }
    fn zero(&mut self, _to: Place, _bytes: u64) {
        todo!()
    }
    fn store(&mut self, _to: Place, _bytes: &[u8]) {
        todo!()
    }
    fn load(&self, _from: Place, _bytes: &mut [u8]) {
        todo!()
    }
    fn checksum(&self, _from: Place, _bytes: u64) -> u32 {
        todo!()
    }
}
