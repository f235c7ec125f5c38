//! The memory of an engine whose payload is nobody's.
//!
//! Always true: what the engine stores to be read again (footers, journals, ledgers) is kept as it
//! is; guests' data is neither moved nor summed up, and all of it has one checksum, so that what
//! the engine compares is always equal. The stage is for a recovery, and none comes after this
//! engine: what a running engine puts there is not kept. Pages that nobody stores to never appear.

use engine::memory::{Area, Memory, Place};
use host::buffer::{Arena, BUFFER_BYTES_MAX, BufferPool, HostMemory};
use std::io;

pub struct Payloadless {
    host: HostMemory,
    /// Payload is moved and summed up after all, to compare.
    real: bool,
}

impl Payloadless {
    pub fn new(stage: u64, ram: u64, scratch: u64) -> io::Result<Payloadless> {
        let buffers = BufferPool::new(BUFFER_BYTES_MAX)?;
        let arenas = (
            Arena::anonymous(stage)?,
            Arena::anonymous(ram)?,
            Arena::anonymous(scratch)?,
        );
        let host = HostMemory::new(arenas.0, arenas.1, arenas.2, buffers);
        Ok(Payloadless::over(host, false))
    }

    pub fn over(host: HostMemory, real: bool) -> Payloadless {
        Payloadless { host, real }
    }
}

/// Read tier and requests hold guests' data alone, and nobody reads the stage.
fn is_read(place: Place) -> bool {
    !matches!(place.area, Area::Buffer(_) | Area::Ram | Area::Stage)
}

impl Memory for Payloadless {
    fn copy(&mut self, from: Place, to: Place, bytes: u64) {
        // What the engine copies is guests' data, wherever it lies.
        if self.real {
            self.host.copy(from, to, bytes);
        }
    }

    fn zero(&mut self, to: Place, bytes: u64) {
        if self.real || is_read(to) {
            self.host.zero(to, bytes);
        }
    }

    fn store(&mut self, to: Place, bytes: &[u8]) {
        if self.real || is_read(to) {
            self.host.store(to, bytes);
        }
    }

    fn load(&self, from: Place, bytes: &mut [u8]) {
        self.host.load(from, bytes);
    }

    fn stage_bytes(&self) -> u64 {
        self.host.stage_bytes()
    }

    fn checksum(&self, from: Place, bytes: u64) -> u32 {
        match self.real {
            true => self.host.checksum(from, bytes),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_kept_and_nothing_else_is() {
        let block = 4096;
        let mut memory = Payloadless::new(block, block, block).expect("there is memory");
        for real in [false, true] {
            memory.real = real;
            for area in [Area::Scratch, Area::Stage] {
                let place = Place::new(area, 0);
                memory.store(place, &[7; 8]);
                memory.copy(place, place.plus(8), 8);
                let mut bytes = [0; 16];
                memory.load(place, &mut bytes);
                let kept = area == Area::Scratch || real;
                assert_eq!(bytes[0] == 7, kept, "{area:?}");
                assert_eq!(bytes[8] == 7, real, "{area:?}");
                memory.zero(place, 16);
                memory.load(place, &mut bytes);
                assert_eq!(bytes, [0; 16], "{area:?}");
            }
        }
    }
}
