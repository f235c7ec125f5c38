//! The size of a disk that can grow while front ends are connected to it.
//!
//! Owns the size that all front ends of a device share, and the configuration space of each, which
//! always has it. Always true: while a front end is connected the size only grows; a request is
//! judged by the size at the time it is taken; a front end whose rings run has read the size, or a
//! message on its channel tells it to, because one that connects again does not read by itself.
//! Deliberately absent: the channel (`channel`), and who changes the size.

use super::channel::Channel;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vring::block::Disk;
use vring::config::{Config, ConfigError, Hints};

/// Bytes of the configuration space that are the size.
const CAPACITY_BYTES: u32 = 8;

/// Sectors of one device, for all who serve it.
#[derive(Clone, Debug, Default)]
pub struct Capacity(Arc<AtomicU64>);

impl Capacity {
    pub fn sectors(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// The disk has so many at least.
    pub fn grow(&self, sectors: u64) {
        self.0.fetch_max(sectors, Ordering::AcqRel);
    }
}

/// A disk as it is at this moment.
#[derive(Clone, Debug)]
pub struct LiveDisk {
    disk: Disk,
    capacity: Capacity,
}

impl LiveDisk {
    pub fn new(disk: Disk, capacity: Capacity) -> LiveDisk {
        capacity.grow(disk.capacity_sectors);
        LiveDisk { disk, capacity }
    }

    pub fn is_read_only(&self) -> bool {
        self.disk.read_only
    }

    /// With the size that it has now.
    pub fn look(&mut self) -> &Disk {
        self.disk.capacity_sectors = self.capacity.sectors();
        &self.disk
    }
}

/// The configuration space that one front end reads, and how it hears that it is another one.
#[derive(Debug)]
pub(super) struct Space {
    config: Config,
    capacity: Capacity,
    channel: Arc<Channel>,
    /// The size that the front end has read, or was told to read.
    known: Option<u64>,
    /// A ring has run.
    runs: bool,
}

impl Space {
    pub fn new(disk: &Disk, hints: &Hints, capacity: Capacity, channel: Arc<Channel>) -> Space {
        capacity.grow(disk.capacity_sectors);
        Space {
            config: Config::new(disk, hints),
            capacity,
            channel,
            known: None,
            runs: false,
        }
    }

    pub fn read(&mut self, offset: u32, into: &mut [u8]) {
        let sectors = self.capacity.sectors();
        self.config.set_capacity(sectors);
        self.config.read(offset, into);
        if offset == 0 && into.len() >= CAPACITY_BYTES as usize {
            self.known = Some(sectors);
        }
    }

    pub fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<bool, ConfigError> {
        self.config.write(offset, bytes)
    }

    pub fn writeback(&self) -> bool {
        self.config.writeback()
    }

    pub fn set_writeback(&mut self, writeback: bool) {
        self.config.set_writeback(writeback);
    }

    /// The front end can be told from now on.
    pub fn set_channel(&mut self, channel: UnixStream) {
        self.channel.open(channel);
        if self.runs {
            self.tell_if_stale();
        }
    }

    /// A ring begins to run.
    pub fn ring_runs(&mut self) {
        self.runs = true;
        self.tell_if_stale();
    }

    /// The disk may have grown since the front end has read its size, also while it was away.
    fn tell_if_stale(&mut self) {
        let sectors = Some(self.capacity.sectors());
        if self.known != sectors && self.channel.tell() {
            self.known = sectors;
        }
    }
}
