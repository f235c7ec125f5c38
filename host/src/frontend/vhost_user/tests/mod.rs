//! A front end over a socket pair, and a data side that only notes what it is told.
//!
//! Always true: the data side holds the handler to its promises: nothing starts without memory and
//! region, outside of the memory or twice, nothing stops that does not run, and at the end nothing
//! runs. Tests that count descriptors and mappings run alone, the others beside each other.

// Tests may unwrap; the lint knows that only of functions with `#[test]`, not of their helpers.
#![allow(clippy::unwrap_used)]

mod cache;
mod channel;
mod connections;
mod memory;
mod messages;
mod negotiation;
mod random;

use super::connection::Connections;
use super::guest_memory::GuestMemory;
use super::handler::Description;
use super::region::Region;
use super::{DataError, DataSide, RingStart};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;
use vring::Queue;
use vring::block::{Disk, RangeLimits};
use vring::config::Hints;
use vring::memory::{Address, Memory};

pub const QUEUES: u16 = 4;
pub const SIZE: u16 = 64;
pub const GUEST: u64 = 0x10_0000;
pub const USER: u64 = 0x7f00_0000_0000;
pub const BYTES: u64 = 1 << 20;
/// Longer than any machine is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

static ALONE: RwLock<()> = RwLock::new(());

/// For as long as a test may make descriptors that another one counts.
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(|broken| broken.into_inner())
}

pub fn alone() -> std::sync::RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(|broken| broken.into_inner())
}

/// What the data side was told.
#[derive(Default)]
pub struct Told {
    pub memory: Option<Arc<GuestMemory>>,
    pub memories: usize,
    pub region: Option<Arc<Region>>,
    pub running: BTreeMap<u16, RingStart>,
    pub started: usize,
    pub write_back: Option<bool>,
    pub ended: Option<bool>,
    /// Stops wait as long as this is set.
    pub draining: bool,
    pub refuse_cache: bool,
    /// What a later connection of the same front end finds.
    pub kept: Option<bool>,
    pub refuse_keep: bool,
    pub refuse_start: bool,
    pub stopped: bool,
}

#[derive(Clone, Default)]
pub struct Fake(Arc<(Mutex<Told>, Condvar)>);

impl Fake {
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.0.lock().unwrap()
    }

    pub fn change(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told());
        self.0.1.notify_all();
    }

    pub fn memory(&self) -> Arc<GuestMemory> {
        self.told().memory.clone().expect("memory was given")
    }

    pub fn region(&self) -> Arc<Region> {
        self.told().region.clone().expect("a region was given")
    }

    pub fn wait_until(&self, what: impl Fn(&Told) -> bool) {
        let waited = self
            .0
            .1
            .wait_timeout_while(self.told(), PATIENCE, |told| !what(told));
        assert!(!waited.unwrap().1.timed_out(), "it never came");
    }

    fn done(&self) -> Result<(), DataError> {
        self.0.1.notify_all();
        match self.told().stopped {
            true => Err(DataError::Stopped),
            false => Ok(()),
        }
    }
}

impl DataSide for Fake {
    fn memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), DataError> {
        let mut told = self.told();
        told.memory = Some(memory);
        told.memories += 1;
        drop(told);
        self.done()
    }

    fn region(&mut self, region: Arc<Region>) -> Result<(), DataError> {
        assert!(self.told().running.is_empty(), "a region while a ring runs");
        self.told().region = Some(region);
        self.done()
    }

    fn start(&mut self, ring: RingStart) -> Result<(), DataError> {
        let mut told = self.told();
        if told.refuse_start {
            return Err(DataError::Refused("not now".into()));
        }
        let region = told.region.as_ref().expect("a region before a ring");
        assert!(ring.setup.size <= region.layout().size);
        assert!(ring.queue.0 < region.layout().queues);
        assert!(told.write_back.is_some(), "the cache mode before a ring");
        let memory = told.memory.as_ref().expect("memory before a ring");
        let setup = ring.setup;
        let starts = [setup.descriptors, setup.available, setup.used];
        for (at, bytes) in starts.into_iter().zip(setup.bytes()) {
            memory.check(at, bytes).expect("a ring is in the memory");
        }
        assert!(
            told.running.insert(ring.queue.0, ring).is_none(),
            "started twice"
        );
        told.started += 1;
        drop(told);
        self.done()
    }

    fn signal(
        &mut self,
        queue: Queue,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), DataError> {
        let mut told = self.told();
        let ring = told.running.get_mut(&queue.0).expect("a ring that runs");
        (ring.call, ring.error) = (call, error);
        drop(told);
        self.done()
    }

    fn stop(&mut self, queue: Queue) -> Result<u16, DataError> {
        self.wait_until(|told| !told.draining);
        self.done()?;
        let ring = self.told().running.remove(&queue.0);
        let ring = ring.expect("a ring that runs");
        // It may be gone, and we must not be.
        let used = Address(ring.setup.used.0 + 2);
        let fake: &Fake = self;
        let _ = fake.memory().store_u16(used, 1);
        let _ = fake.region().store_u8(Address(16), 1);
        self.0.1.notify_all();
        Ok(ring.base.wrapping_add(1))
    }

    fn write_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        if self.told().refuse_cache {
            return Err(DataError::Refused("the policy says otherwise".into()));
        }
        self.told().write_back = Some(write_back);
        self.done()
    }

    fn cache_kept(&mut self) -> Option<bool> {
        self.told().kept
    }

    fn keep_cache(&mut self, write_back: bool) -> Result<(), DataError> {
        if self.told().refuse_keep {
            return Err(DataError::Refused("no room".into()));
        }
        self.told().kept = Some(write_back);
        self.done()
    }

    fn end(&mut self, in_order: bool) {
        let mut told = self.told();
        assert!(
            told.stopped || told.running.is_empty(),
            "a ring runs at the end"
        );
        assert!(told.ended.replace(in_order).is_none(), "ended once");
        // As the data side does: with the front end goes what it has shared.
        (told.memory, told.region) = (None, None);
        told.running.clear();
        drop(told);
        self.0.1.notify_all();
    }
}

pub fn description() -> Description {
    let limits = Some(RangeLimits {
        sectors_max: 1 << 20,
        ranges_max: 32,
    });
    Description {
        disk: Disk {
            capacity_sectors: 2048,
            block_bytes: 512,
            read_only: false,
            flush: true,
            discard: limits,
            write_zeroes: limits,
            data_bytes_max: 1 << 20,
            segments_max: 62,
            id: [b'x'; 20],
        },
        hints: Hints {
            physical_block_bytes: 4096,
            optimal_bytes: 65536,
            queues: QUEUES,
            writeback: true,
        },
    }
}

/// Memory that a front end could share.
pub fn memory_file(bytes: u64) -> File {
    crate::sys::memory_file(c"tenuto-test", bytes).unwrap()
}

pub fn info(guest: u64, user: u64, bytes: u64, file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: bytes,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

/// Where the ring of a queue lies: each in a page of its own.
pub fn ring_at(queue: u16, flags: u32, log: Option<u64>) -> VringConfigData {
    let base = USER + u64::from(queue) * 0x4000;
    VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags,
        desc_table_addr: base,
        avail_ring_addr: base + 0x1000,
        used_ring_addr: base + 0x2000,
        log_addr: log,
    }
}

/// A connected front end.
pub struct Guest {
    pub connections: Connections,
    pub fake: Fake,
    pub front: Frontend,
    pub file: File,
    pub kicks: Vec<EventFd>,
}

pub fn connect(connections: &Connections, device: &str) -> (Fake, UnixStream) {
    let fake = Fake::default();
    let theirs = connect_as(connections, device, fake.clone());
    (fake, theirs)
}

fn connect_as(connections: &Connections, device: &str, data: Fake) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    connections
        .connect(device, ours, |_| Ok((description(), data)))
        .unwrap();
    theirs
}

impl Guest {
    pub fn connect() -> Guest {
        Guest::connect_by(&Connections::new(8), memory_file(BYTES))
    }

    pub fn connect_by(connections: &Connections, file: File) -> Guest {
        Guest::connect_as(connections, file, Fake::default())
    }

    pub fn connect_as(connections: &Connections, file: File, fake: Fake) -> Guest {
        let theirs = connect_as(connections, "disk", fake.clone());
        let front = Frontend::from_stream(theirs, QUEUES.into());
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let kicks = (0..QUEUES).map(|_| EventFd::new(0).unwrap()).collect();
        Guest {
            connections: connections.clone(),
            fake,
            front,
            file,
            kicks,
        }
    }

    /// All that is offered, except the log of dirty pages.
    pub fn negotiate(&mut self) {
        let offered = self.front.get_features().unwrap();
        let protocol = self.front.get_protocol_features().unwrap();
        self.front.set_protocol_features(protocol).unwrap();
        self.front.set_owner().unwrap();
        self.front.set_features(offered & !(1 << 26)).unwrap();
    }

    pub fn share(&mut self) {
        let info = info(GUEST, USER, BYTES, &self.file);
        self.front.set_mem_table(&[info]).unwrap();
    }

    pub fn start(&mut self, queue: u16) {
        self.start_at(queue, 7);
    }

    pub fn start_at(&mut self, queue: u16, base: u16) {
        self.set_up_at(queue, base);
        let at = usize::from(queue);
        self.front.set_vring_enable(at, true).unwrap();
    }

    /// All but the last word.
    pub fn set_up(&mut self, queue: u16) {
        self.set_up_at(queue, 7);
    }

    fn set_up_at(&mut self, queue: u16, base: u16) {
        let at = usize::from(queue);
        self.front.set_vring_num(at, SIZE).unwrap();
        self.front.set_vring_base(at, base).unwrap();
        let ring = ring_at(queue, 0, None);
        self.front.set_vring_addr(at, &ring).unwrap();
        let call = EventFd::new(0).unwrap();
        self.front.set_vring_call(at, &call).unwrap();
        self.front.set_vring_kick(at, &self.kicks[at]).unwrap();
    }

    /// With one ring.
    pub fn running() -> Guest {
        let mut guest = Guest::connect();
        guest.negotiate();
        guest.share();
        guest.start(0);
        assert!(guest.runs(0));
        guest
    }

    pub fn started(&self) -> usize {
        self.fake.told().started
    }

    pub fn runs(&self, queue: u16) -> bool {
        self.fake.told().running.contains_key(&queue)
    }

    /// The connection has been closed at the other end.
    pub fn is_closed(&mut self) -> bool {
        self.front.get_features().is_err()
    }

    /// Goes, and waits until everything is drained.
    pub fn go(self) {
        let (fake, connections) = (self.fake.clone(), self.connections.clone());
        drop(self.front);
        fake.wait_until(|told| told.ended.is_some());
        wait_for(|| connections.count("disk") == 0);
    }
}

pub fn wait_for(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}

pub const ALL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::from_bits_retain(
    1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15,
);
