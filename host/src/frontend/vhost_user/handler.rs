//! One device as its front end sees it.
//!
//! Owns everything that the front end has said, and decides what the data side has to do for it.
//! Rings that are started while the disk is served on another host wait until it is served here.
//! Always true: a message that is refused has changed nothing, or the handler says that it has
//! [failed](Handler::has_failed) and the connection ends; a ring runs exactly while it has a kick,
//! is enabled, and lies in the memory, and the disk is served here; the data side is told the cache
//! mode before a ring runs; dirty pages are noted exactly while it was agreed and there is a log.
//! Deliberately absent: the wire (`messages`, `connection`).
//!
//! ```text
//! features, protocol features   any time; those of rings only while none is started
//! memory                        any time; a ring that the new table moves or loses is drained, and
//!                               goes on when a table has it again
//! region                        handed out or brought back while no ring runs; without one the
//!                               device makes its own, which ends with the connection
//! rings                         see `queue`
//! log                           taken any time, used while VHOST_F_LOG_ALL is agreed
//! reset                         rings drained, negotiation and rings as at first; memory and
//!                               region stay, because the front end does not send them again
//! ```

use super::advice::{self, Advice};
use super::cache::Belief;
use super::capacity::{Capacity, Space};
use super::channel::{self, Channel, NoChannel};
use super::dirty::{Dirty, Log, UsedLog};
use super::guest_memory::{GuestMemory, Place, TableError};
use super::mapping::MappingError;
use super::queue::{Halves, NotReady, Options, RingState};
use super::region::{Region, RegionError};
use super::{DataError, DataSide, Open, RingStart};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::VhostUserVirtioFeatures as Transport;
use vring::Queue;
use vring::block::Disk;
use vring::config::{self, ConfigError, Hints};
use vring::inflight::Layout;
use vring::split::SIZE_MAX;

/// A queue is named by one byte where a descriptor comes with it.
pub const QUEUES_MAX: u16 = 256;
/// Descriptors of a queue that a region of our own has room for, at least. QEMU's largest.
const OWN_REGION_SIZE: u16 = 1024;

/// Why a message is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("features {0:#x} that were not offered")]
    Features(u64),
    #[error("protocol features {0:#x} that were not offered")]
    ProtocolFeatures(u64),
    #[error("features {0:#x} cannot change while a ring is started")]
    FeaturesOfRings(u64),
    #[error("there is no queue {0}")]
    Queue(u32),
    #[error("queue {queue}: {what} cannot change while its ring runs")]
    Running { queue: u16, what: &'static str },
    #[error("a queue of {0} descriptors; a power of two up to 32768 would be right")]
    Size(u32),
    #[error("a ring that goes on at {0}; 16 bits are right")]
    Base(u32),
    #[error("a kick without a descriptor; we do not poll")]
    NoKick,
    #[error("a descriptor that is no eventfd")]
    NotAnEvent,
    #[error("a queue of {0} descriptors, and an in-flight region for {1}")]
    RegionSize(u16, u16),
    #[error("queue {0}, and an in-flight region for {1} queues")]
    RegionQueues(u16, u16),
    #[error("an in-flight region while a ring runs")]
    RegionInUse,
    #[error("a log that does not reach the end of memory, {0:#x}")]
    LogTooShort(u64),
    #[error("the log of dirty pages: {0}")]
    Log(#[from] MappingError),
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Channel(#[from] NoChannel),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
}

/// The disk that the guest is told of.
#[derive(Clone, Debug)]
pub struct Description {
    pub disk: Disk,
    pub hints: Hints,
}

/// The control side of one device, for as long as a front end is connected.
pub struct Handler<D: DataSide> {
    description: Description,
    space: Space,
    data: D,
    features: u64,
    protocol: Protocol,
    memory: Arc<GuestMemory>,
    dirty: Arc<Dirty>,
    region: Option<Arc<Region>>,
    /// Whether the front end keeps that region.
    region_kept: bool,
    /// Whether a ring had run with it when it came.
    region_used: bool,
    queues: Vec<RingState>,
    /// What the data side was told last of the cache.
    write_back: Option<bool>,
    belief: Belief,
    /// The rings were stopped while dirty pages were noted: the guest goes on elsewhere, or later.
    sleeps: bool,
    /// Whether the front end has seen that it can ask for answers.
    features_read: bool,
    failed: bool,
    /// The process of the front end, where it is known.
    peer: Option<u32>,
    /// What is to be said of the memory that it shares.
    advice: Option<Advice>,
    advised: bool,
}

impl<D: DataSide> Handler<D> {
    pub fn new(description: Description, mut data: D) -> Handler<D> {
        let Description { disk, hints } = &description;
        assert!(hints.queues > 0 && hints.queues <= QUEUES_MAX);
        let alone = Arc::new(Channel::new(""));
        let space = Space::new(disk, hints, Capacity::default(), alone);
        let queues = (0..hints.queues).map(|_| RingState::default()).collect();
        let dirty = Arc::new(Dirty::default());
        let belief = Belief::of(data.cache_kept());
        Handler {
            description,
            space,
            data,
            features: 0,
            protocol: Protocol::empty(),
            memory: Arc::new(GuestMemory::empty(dirty.clone())),
            dirty,
            region: None,
            region_kept: false,
            region_used: false,
            queues,
            write_back: None,
            belief,
            sleeps: false,
            features_read: false,
            failed: false,
            peer: None,
            advice: None,
            advised: false,
        }
    }

    /// The same for a front end that is this process and shares the size of its device with others.
    pub(super) fn of_peer(
        mut self,
        peer: Option<u32>,
        capacity: Capacity,
        channel: Arc<Channel>,
    ) -> Handler<D> {
        self.peer = peer;
        let Description { disk, hints } = &self.description;
        self.space = Space::new(disk, hints, capacity, channel);
        self
    }

    /// The front end gives the descriptor on which it is told of changes.
    pub fn set_channel(&mut self, files: Vec<File>) -> Result<(), Refusal> {
        if !self.protocol.contains(Protocol::BACKEND_REQ) {
            return Err(NoChannel::NotAgreed.into());
        }
        self.space.set_channel(channel::socket(files)?);
        Ok(())
    }

    /// What its user should know of the guest's memory.
    pub fn take_advice(&mut self) -> Option<Advice> {
        self.advice.take()
    }

    fn advise<'f>(&mut self, files: impl Iterator<Item = &'f File>) {
        if !std::mem::replace(&mut self.advised, true) {
            self.advice = advice::advice(files, self.peer);
        }
    }

    pub fn data(&self) -> &D {
        &self.data
    }

    pub fn queues(&self) -> u16 {
        self.description.hints.queues
    }

    pub fn offered_features(&self) -> u64 {
        let transport = Transport::PROTOCOL_FEATURES | Transport::LOG_ALL;
        config::features(&self.description.disk, self.queues()) | transport.bits()
    }

    pub fn offered_protocol_features(&self) -> Protocol {
        Protocol::MQ
            | Protocol::LOG_SHMFD
            | Protocol::REPLY_ACK
            | Protocol::BACKEND_REQ
            | Protocol::CONFIG
            | Protocol::INFLIGHT_SHMFD
            | Protocol::RESET_DEVICE
            | Protocol::CONFIGURE_MEM_SLOTS
    }

    /// The front end reads what is offered.
    pub fn read_features(&mut self) -> u64 {
        self.features_read = true;
        self.offered_features()
    }

    /// Whether the front end gets an answer, where it asks for one, to messages that have none.
    pub fn acknowledges(&self) -> bool {
        self.features_read && self.protocol.contains(Protocol::REPLY_ACK)
    }

    /// Whether the data side did not follow in the middle of a message, so that nothing that the
    /// front end knows is sure any more.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    fn options(&self) -> Options {
        Options {
            event_idx: self.has(config::EVENT_IDX),
            indirect: self.has(config::INDIRECT_DESC),
        }
    }

    fn any_runs(&self) -> bool {
        self.queues.iter().any(|queue| queue.running.is_some())
    }

    fn queue(&mut self, index: u32) -> Result<(u16, &mut RingState), Refusal> {
        let at = usize::try_from(index).ok();
        let queue = at.and_then(|at| self.queues.get_mut(at));
        let queue = queue.ok_or(Refusal::Queue(index))?;
        Ok((index as u16, queue))
    }

    /// The same, for what may not change while the ring runs.
    fn idle(&mut self, index: u32, what: &'static str) -> Result<&mut RingState, Refusal> {
        let (queue, state) = self.queue(index)?;
        match state.running {
            Some(_) => Err(Refusal::Running { queue, what }),
            None => Ok(state),
        }
    }

    /// What the data side answered.
    fn tell<T>(&mut self, call: impl FnOnce(&mut D) -> Result<T, DataError>) -> Result<T, Refusal> {
        let answer = call(&mut self.data);
        self.failed |= matches!(answer, Err(DataError::Stopped));
        Ok(answer?)
    }

    pub fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        let unknown = features & !self.offered_features();
        if unknown != 0 {
            return Err(Refusal::Features(unknown));
        }
        let log = Transport::LOG_ALL.bits();
        let changed = features ^ self.features;
        let started = self.queues.iter().any(|queue| queue.kick.is_some());
        if started && changed & !log != 0 {
            return Err(Refusal::FeaturesOfRings(changed & !log));
        }
        let end = self.memory.end();
        if features & log != 0 && self.dirty.is_short_of(end) {
            return Err(Refusal::LogTooShort(end));
        }
        let before = std::mem::replace(&mut self.features, features);
        let told = self.tell_cache().and_then(|()| match changed & log {
            0 => Ok(()),
            _ => self.switch_log(),
        });
        if told.is_err() {
            self.features = before;
            self.dirty.set_on(before & log != 0);
        } else if changed & before & log != 0 {
            self.dirty.set_log(None);
        }
        told
    }

    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), Refusal> {
        let unknown = features & !self.offered_protocol_features().bits();
        if unknown != 0 {
            return Err(Refusal::ProtocolFeatures(unknown));
        }
        self.protocol = Protocol::from_bits_truncate(features);
        Ok(())
    }

    /// A guest that cannot flush must find every write durable (virtio 1.2, section 5.2.6.2).
    fn tell_cache(&mut self) -> Result<(), Refusal> {
        let write_back = self.has(config::FLUSH) && self.space.writeback();
        if self.write_back == Some(write_back) {
            return Ok(());
        }
        self.tell(|data| data.write_cache(write_back))?;
        self.write_back = Some(write_back);
        Ok(())
    }

    pub fn read_config(&mut self, offset: u32, bytes: u32) -> Vec<u8> {
        if self.belief.read() {
            self.space.set_writeback(self.begins_write_back());
        }
        let mut space = vec![0; bytes as usize];
        self.space.read(offset, &mut space);
        space
    }

    pub fn write_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        let before = self.space.writeback();
        let write_back = self.space.write(offset, bytes)?;
        // That it is off must be known to whoever serves this guest next, before it relies on it.
        // That it is on is kept when rings begin with it: the answer may not reach its guest.
        let kept = match write_back {
            true => Ok(()),
            false => self.keep_cache(false),
        };
        let told = kept.and_then(|()| self.tell_cache());
        match told {
            Ok(()) => self.belief.set(write_back),
            Err(_) => self.space.set_writeback(before),
        }
        told
    }

    /// The cache mode that its guest begins with.
    fn begins_write_back(&self) -> bool {
        self.description.disk.flush && self.description.hints.writeback
    }

    fn keep_cache(&mut self, write_back: bool) -> Result<(), Refusal> {
        if !self.belief.is_kept_as(write_back) {
            self.tell(|data| data.keep_cache(write_back))?;
            self.belief.was_kept(write_back);
        }
        Ok(())
    }

    /// Whether the guest has used rings that are started before.
    fn goes_on(&self) -> bool {
        let mut started = self.queues.iter().filter(|queue| queue.kick.is_some());
        self.region_used || started.any(|queue| queue.base != 0)
    }

    /// The cache as the guest believes it to be, before its first ring runs.
    fn judge_cache(&mut self) -> Result<(), Refusal> {
        if self.any_runs() {
            return Ok(());
        }
        let (goes_on, first) = (self.goes_on(), self.begins_write_back());
        let can_change = self.has(config::CONFIG_WCE);
        let mode = self.belief.judge(goes_on, can_change, first);
        if let Some(Err(error)) = mode.map(|mode| self.keep_cache(mode)) {
            // Nothing is wrong as long as nobody finds that it is on.
            if self.failed || self.belief.is_kept_as(true) {
                return Err(error);
            }
            tracing::warn!("the cache mode of a guest cannot be kept: {error}");
        }
        if mode.is_none() {
            let why = "its guest ran before, and its cache mode is not known here";
            tracing::info!("a front end is served without a write cache: {why}");
        }
        self.space.set_writeback(mode == Some(true) && first);
        Ok(())
    }

    pub fn set_memory(&mut self, regions: &[(Place, File)]) -> Result<(), Refusal> {
        let memory = GuestMemory::new(regions, self.dirty.clone())?;
        self.take_memory(memory)?;
        self.advise(regions.iter().map(|(_, file)| file));
        Ok(())
    }

    pub fn add_memory(&mut self, place: Place, file: &File) -> Result<(), Refusal> {
        let memory = self.memory.with(place, file)?;
        self.take_memory(memory)?;
        self.advise([file].into_iter());
        Ok(())
    }

    pub fn remove_memory(&mut self, place: Place) -> Result<(), Refusal> {
        let memory = self.memory.without(place)?;
        self.take_memory(memory)
    }

    /// Rings that are elsewhere in the new table, or nowhere, are drained before it counts.
    fn take_memory(&mut self, memory: GuestMemory) -> Result<(), Refusal> {
        let end = memory.end();
        if self.has(Transport::LOG_ALL.bits()) && self.dirty.is_short_of(end) {
            return Err(Refusal::LogTooShort(end));
        }
        let options = self.options();
        for index in 0..self.queues() {
            let state = &self.queues[usize::from(index)];
            if state.running.is_none() {
                continue;
            }
            let setup = state.setup(index, options, &memory);
            if setup.ok() != state.running {
                self.stop(index).inspect_err(|_| self.failed = true)?;
            }
        }
        let memory = Arc::new(memory);
        let told = self.tell(|data| data.memory(memory.clone()));
        told.inspect_err(|_| self.failed = true)?;
        self.memory = memory;
        for index in 0..self.queues() {
            let state = &self.queues[usize::from(index)];
            if state.setup(index, options, &self.memory).is_ok() {
                self.run(index).inspect_err(|_| self.failed = true)?;
            }
        }
        Ok(())
    }

    pub fn set_size(&mut self, index: u32, size: u32) -> Result<(), Refusal> {
        let state = self.idle(index, "its size")?;
        let fits = size.is_power_of_two() && size <= u32::from(SIZE_MAX);
        if !fits {
            return Err(Refusal::Size(size));
        }
        state.size = Some(size as u16);
        Ok(())
    }

    pub fn set_base(&mut self, index: u32, base: u32) -> Result<(), Refusal> {
        let state = self.idle(index, "its base")?;
        state.base = u16::try_from(base).map_err(|_| Refusal::Base(base))?;
        Ok(())
    }

    /// A ring that runs can only change how it is noted.
    pub fn set_halves(
        &mut self,
        index: u32,
        halves: Halves,
        used_log: Option<u64>,
    ) -> Result<(), Refusal> {
        let (queue, state) = self.queue(index)?;
        if state.running.is_some() && state.halves != Some(halves) {
            let what = "its addresses";
            return Err(Refusal::Running { queue, what });
        }
        state.halves = Some(halves);
        state.used_log = used_log;
        self.note_used_rings();
        Ok(())
    }

    pub fn set_kick(&mut self, index: u32, kick: Option<File>) -> Result<(), Refusal> {
        let kick = event(kick)?.ok_or(Refusal::NoKick)?;
        let (queue, state) = self.queue(index)?;
        let ran = state.running.is_some();
        if ran {
            self.stop(queue)?;
        }
        let state = &mut self.queues[usize::from(queue)];
        let before = state.kick.replace(kick);
        let run = self.run(queue);
        if run.is_err() {
            self.queues[usize::from(queue)].kick = before;
            self.failed |= ran;
        }
        run
    }

    pub fn set_call(&mut self, index: u32, call: Option<File>) -> Result<(), Refusal> {
        let call = event(call)?;
        let (queue, state) = self.queue(index)?;
        let error = state.error.clone();
        self.set_signals(queue, call, error)
    }

    pub fn set_error(&mut self, index: u32, error: Option<File>) -> Result<(), Refusal> {
        let error = event(error)?;
        let (queue, state) = self.queue(index)?;
        let call = state.call.clone();
        self.set_signals(queue, call, error)
    }

    fn set_signals(
        &mut self,
        queue: u16,
        call: Option<Arc<OwnedFd>>,
        error: Option<Arc<OwnedFd>>,
    ) -> Result<(), Refusal> {
        if self.queues[usize::from(queue)].running.is_some() {
            self.tell(|data| data.signal(Queue(queue), call.clone(), error.clone()))?;
        }
        let state = &mut self.queues[usize::from(queue)];
        (state.call, state.error) = (call, error);
        Ok(())
    }

    pub fn enable(&mut self, index: u32, enabled: bool) -> Result<(), Refusal> {
        let (queue, state) = self.queue(index)?;
        let before = std::mem::replace(&mut state.enabled, enabled);
        let done = match enabled {
            true => self.run(queue),
            false => self.stop(queue),
        };
        if done.is_err() {
            self.queues[usize::from(queue)].enabled = before;
        }
        done
    }

    /// Stops a ring for good: it needs another kick to start. Whom it calls stays, because not
    /// every front end says it again.
    pub fn base(&mut self, index: u32) -> Result<u16, Refusal> {
        let (queue, _) = self.queue(index)?;
        self.stop(queue)?;
        let state = &mut self.queues[usize::from(queue)];
        state.kick = None;
        Ok(state.base)
    }

    /// Starts a ring if the front end wants it to run, and it does not, and may.
    pub(super) fn run(&mut self, queue: u16) -> Result<(), Refusal> {
        let negotiated = self.has(Transport::PROTOCOL_FEATURES.bits());
        let state = &self.queues[usize::from(queue)];
        let Some(kick) = state.kick.clone() else {
            return Ok(());
        };
        if state.running.is_some() || (negotiated && !state.enabled) || !self.opens()? {
            return Ok(());
        }
        let state = &self.queues[usize::from(queue)];
        let setup = state.setup(queue, self.options(), &self.memory);
        if matches!(setup, Err(NotReady::Outside(_))) {
            self.advice = Some(Advice::RingOutside);
        }
        let setup = setup?;
        let ring = RingStart {
            queue: Queue(queue),
            setup,
            base: state.base,
            kick,
            call: state.call.clone(),
            error: state.error.clone(),
            goes_on: self.goes_on(),
        };
        self.judge_cache()?;
        self.tell_cache()?;
        self.need_region(queue, setup.size)?;
        self.tell(|data| data.start(ring))?;
        self.sleeps = false;
        self.queues[usize::from(queue)].running = Some(setup);
        self.note_used_rings();
        self.space.ring_runs();
        Ok(())
    }

    /// Whether the disk is served here. One that is from now on hears what was said before.
    fn opens(&mut self) -> Result<bool, Refusal> {
        match self.tell(DataSide::open)? {
            Open::Yes => return Ok(true),
            Open::Later => return Ok(false),
            Open::Now => {}
        }
        let (kept, handed) = (self.data.cache_kept(), self.data.cache_handed());
        self.belief.learn(kept, handed);
        self.write_back = None;
        let (memory, region) = (self.memory.clone(), self.region.clone());
        let told = self.tell(|data| {
            data.memory(memory)?;
            region.map_or(Ok(()), |region| data.region(region))
        });
        told.inspect_err(|_| self.failed = true)?;
        Ok(true)
    }

    /// All rings have stopped while dirty pages are noted. Who serves the guest next finds all that
    /// was answered, whatever becomes of this host.
    fn fall_asleep(&mut self) {
        let write_back = self.space.writeback();
        // So that it is as durable as a flush makes it.
        let flushed = self.tell(|data| data.write_cache(false));
        self.write_back = Some(false);
        match flushed {
            Ok(()) => self.data.sleep(write_back),
            Err(error) => tracing::warn!("what a guest wrote before it moves: {error}"),
        }
    }

    fn stop(&mut self, queue: u16) -> Result<(), Refusal> {
        if self.queues[usize::from(queue)].running.is_none() {
            return Ok(());
        }
        let base = self.tell(|data| data.stop(Queue(queue)))?;
        self.sleeps |= self.has(Transport::LOG_ALL.bits());
        let state = &mut self.queues[usize::from(queue)];
        state.base = base;
        state.running = None;
        self.note_used_rings();
        if self.has(Transport::LOG_ALL.bits()) && !self.any_runs() {
            self.fall_asleep();
        }
        Ok(())
    }

    /// A region with room for such a queue. Where the front end keeps none it is one of our own,
    /// and a new one when nothing runs: what a broken ring has left in it is of no use to anybody.
    fn need_region(&mut self, queue: u16, size: u16) -> Result<(), Refusal> {
        if let Some(region) = &self.region
            && (self.region_kept || self.any_runs())
        {
            let Layout { queues, size: has } = region.layout();
            return match (queue < queues, size <= has) {
                (true, true) => Ok(()),
                (false, _) => Err(Refusal::RegionQueues(queue, queues)),
                (true, false) => Err(Refusal::RegionSize(size, has)),
            };
        }
        let layout = Layout {
            queues: self.queues(),
            size: size.max(OWN_REGION_SIZE),
        };
        let (region, _) = Region::create(layout, self.queues())?;
        self.take_region(region, false)
    }

    fn take_region(&mut self, region: Region, kept: bool) -> Result<(), Refusal> {
        let region = Arc::new(region);
        let used = kept && region.was_used();
        self.tell(|data| data.region(region.clone()))?;
        self.region = Some(region);
        self.region_used = used;
        self.region_kept = kept;
        Ok(())
    }

    /// Makes a region for the front end to keep. It counts at once, because not every front end
    /// brings it back before it starts its rings.
    pub fn make_region(&mut self, layout: Layout) -> Result<(File, u64), Refusal> {
        if self.any_runs() {
            return Err(Refusal::RegionInUse);
        }
        let (region, file) = Region::create(layout, self.queues())?;
        self.take_region(region, true)?;
        Ok((file, Region::bytes(layout)))
    }

    pub fn set_region(
        &mut self,
        layout: Layout,
        file: &File,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Refusal> {
        if self.any_runs() {
            return Err(Refusal::RegionInUse);
        }
        let region = Region::open(layout, self.queues(), file, offset, bytes)?;
        self.take_region(region, true)
    }

    pub fn set_log(&mut self, file: &File, offset: u64, bytes: u64) -> Result<(), Refusal> {
        let log = Log::new(file, offset, bytes)?;
        let end = self.memory.end();
        if !log.reaches(end) {
            return Err(Refusal::LogTooShort(end));
        }
        self.dirty.set_log(Some(log));
        match self.has(Transport::LOG_ALL.bits()) {
            true => self.switch_log(),
            false => Ok(()),
        }
    }

    /// Notes dirty pages from now on, or not. The data side knows when this returns.
    fn switch_log(&mut self) -> Result<(), Refusal> {
        let on = self.has(Transport::LOG_ALL.bits());
        self.note_used_rings();
        self.dirty.set_on(on);
        let memory = self.memory.clone();
        self.tell(|data| data.memory(memory))
    }

    fn note_used_rings(&mut self) {
        let running = self.queues.iter().filter_map(|state| {
            let setup = state.running?;
            Some(UsedLog {
                used: setup.used,
                bytes: setup.bytes()[2],
                at: state.used_log?,
            })
        });
        self.dirty.set_used(running.collect());
    }

    /// All rings stopped, as after their bases were asked for.
    pub fn disown(&mut self) -> Result<(), Refusal> {
        (0..self.queues()).try_for_each(|queue| self.stop(queue))?;
        self.queues.iter_mut().for_each(|state| state.kick = None);
        Ok(())
    }

    pub fn reset(&mut self) -> Result<(), Refusal> {
        self.disown()?;
        self.queues.iter_mut().for_each(RingState::reset);
        self.belief.reset();
        self.dirty.set_log(None);
        self.set_features(0)
    }

    /// The front end is gone. What it left running is drained.
    pub fn end(&mut self) {
        let in_order = !self.any_runs() && !self.sleeps;
        // It goes on nowhere.
        self.features &= !Transport::LOG_ALL.bits();
        for queue in 0..self.queues() {
            // Nobody looks at its events, so no end waits for one.
            let _ = self.set_signals(queue, None, None);
            if self.stop(queue).is_err() {
                // Nobody serves the ring any more.
                self.queues[usize::from(queue)].running = None;
            }
        }
        self.dirty.set_on(false);
        self.dirty.set_log(None);
        self.data.end(in_order);
    }
}

/// A descriptor that came with a message.
fn event(file: Option<File>) -> Result<Option<Arc<OwnedFd>>, Refusal> {
    let Some(file) = file else {
        return Ok(None);
    };
    match crate::sys::is_event(&file) {
        true => Ok(Some(Arc::new(OwnedFd::from(file)))),
        false => Err(Refusal::NotAnEvent),
    }
}
