//! The bare file: direct input and output through io_uring, from this process.
//!
//! Owns the file and the buffers of the requests in flight. Always true: no page cache is in
//! between, and blocks are written before anything is measured, because a sync into merely
//! allocated ones costs twice.

use super::pipe::noise;
use super::work::{BLOCK_BYTES, Carrier, Slot, Tally, Verb, Work};
use engine::memory::{Area, Place};
use engine::types::BufferId;
use host::buffer::{Arena, BUFFER_BYTES_MAX, BufferPool, HostMemory};
use host::ring::{Completed, Ring, Span};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const RING_ENTRIES: u32 = 512;

pub struct Direct {
    file: File,
    ring: Ring,
    memory: HostMemory,
    buffers: Vec<BufferId>,
    completed: Vec<Completed>,
}

impl Direct {
    pub fn open(path: &Path) -> io::Result<Direct> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        let none = || Arena::anonymous(BLOCK_BYTES);
        let buffers = BufferPool::new(BUFFER_BYTES_MAX)?;
        Ok(Direct {
            file: options.open(path)?,
            ring: Ring::new(RING_ENTRIES)?,
            memory: HostMemory::new(none()?, none()?, none()?, buffers),
            buffers: Vec::new(),
            completed: Vec::new(),
        })
    }

    fn start(&mut self, number: usize, slot: &Slot) {
        let fd = self.file.as_raw_fd();
        let tag = number as u64;
        let place = Place::new(Area::Buffer(self.buffers[number]), 0);
        let span = Span::place(&self.memory, place, BLOCK_BYTES);
        let offset = slot.block * BLOCK_BYTES;
        match slot.verb {
            Verb::Read => self.ring.read(tag, fd, offset, &[span]),
            Verb::Flush => self.ring.sync(tag, fd, true),
            Verb::Sealed if slot.written => self.ring.sync(tag, fd, true),
            Verb::Write | Verb::Sealed => self.ring.write(tag, fd, offset, &[span]),
        }
    }

    fn ask(&mut self, number: usize, slots: &mut [Slot], work: &mut Work, now: Instant) -> bool {
        let Some(slot) = work.next(now) else {
            return false;
        };
        assert_eq!(slot.bytes, BLOCK_BYTES, "its buffers are of this size");
        slots[number] = slot;
        self.start(number, &slots[number]);
        true
    }
}

impl Carrier for Direct {
    fn carry(&mut self, work: &mut Work, lasts: Duration) -> io::Result<Tally> {
        while self.buffers.len() < work.depth {
            let buffer = self.memory.buffers.allocate(BLOCK_BYTES);
            let buffer = buffer.ok_or(io::ErrorKind::OutOfMemory)?;
            self.memory.buffers.bytes(buffer).copy_from_slice(&noise());
            self.buffers.push(buffer);
        }
        let began = Instant::now();
        let until = began + lasts;
        let mut tally = Tally::new(began, lasts);
        let mut slots = vec![Slot::idle(began); work.depth];
        let numbers = 0..work.depth;
        let mut open = numbers
            .filter(|&it| self.ask(it, &mut slots, work, began))
            .count();
        let mut failed = None;
        while open > 0 {
            self.ring.wait(None)?;
            let mut completed = std::mem::take(&mut self.completed);
            self.ring.reap(&mut completed);
            let now = Instant::now();
            for completed in completed.drain(..) {
                let number = completed.tag as usize;
                if let Err(errno) = completed.result {
                    failed = Some(io::Error::from_raw_os_error(errno));
                }
                let slot = &mut slots[number];
                if slot.verb == Verb::Sealed && !slot.written && failed.is_none() {
                    slot.written = true;
                    let slot = *slot;
                    self.start(number, &slot);
                    continue;
                }
                tally.add(slot.sent, now);
                let goes_on = now < until && failed.is_none();
                let more = goes_on && self.ask(number, &mut slots, work, now);
                open -= usize::from(!more);
            }
            self.completed = completed;
        }
        failed.map_or(Ok(tally), Err)
    }
}
