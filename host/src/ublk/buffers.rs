//! The memory of the requests of a block device, one buffer for each tag.
//!
//! Owns the only `unsafe` of this folder. Always true: the kernel fills the buffer of a write
//! before it gives us the request, and reads that of a read after it was answered; in between the
//! buffer belongs to the connection. So one thread at a time has it, and who has it is decided by
//! [`super::requests`].

use libublk::helpers::IoBuf;
use std::slice;

pub struct Buffers(Vec<IoBuf<u8>>);

impl Buffers {
    pub fn new(depth: u16, bytes: u32) -> Buffers {
        let buffers = (0..depth).map(|_| {
            let mut buffer = IoBuf::<u8>::new(bytes as usize);
            // It comes with no bytes in it that could be read.
            buffer.zero_buf();
            buffer
        });
        Buffers(buffers.collect())
    }

    /// For the kernel, which is told of each once.
    pub fn all(&self) -> &Vec<IoBuf<u8>> {
        &self.0
    }

    /// What the kernel answers a read with, or has for a write.
    pub fn of(&self, tag: u16) -> &IoBuf<u8> {
        &self.0[usize::from(tag)]
    }

    /// Appends the payload of a write that is not answered.
    pub fn copy_to(&self, tag: u16, bytes: u32, to: &mut Vec<u8>) {
        let buffer = self.of(tag);
        let bytes = bytes as usize;
        assert!(bytes <= buffer.len(), "the kernel keeps to the limit");
        // SAFETY: the range lies in the buffer, and nothing writes to it while the write that it
        // belongs to is not answered; only the one thread that sends has it then.
        to.extend_from_slice(unsafe { slice::from_raw_parts(buffer.as_ptr(), bytes) });
    }

    /// Lets `fill` write the bytes of a read that is not answered.
    pub fn fill<T>(&self, tag: u16, bytes: u32, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        let buffer = self.of(tag);
        let bytes = bytes as usize;
        assert!(bytes <= buffer.len(), "the kernel keeps to the limit");
        // SAFETY: the range lies in the buffer, which is filled from the start; until the read is
        // answered neither the kernel nor another thread than the one that receives touches it.
        fill(unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr(), bytes) })
    }
}
