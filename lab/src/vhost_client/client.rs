//! One disk of a back end.
//!
//! Owns the memory, the in-flight region, the queues and the connection. Always true: what is in
//! flight when the back end dies is answered by the next one, after [`Client::reconnect`]; the
//! helpers that ask and wait are for requests one at a time.

use super::memory::SharedMemory;
use super::queue::{Ended, Queue, Request};
use super::session::{Region, Session};
use super::{ClientError, Options, PATIENCE, QUEUES_MAX, Result, SLOTS_MAX, Wait};
use host::sys;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vring::block::{ID_BYTES, SECTOR_BYTES, SectorRange};
use vring::config::{self, CONFIG_BYTES};

/// Looks at the rings between two looks at the clock.
const LOOKS: u32 = 1 << 14;
/// Descriptors of a request without a table of its own.
const DESCRIPTORS: u16 = 3;
/// QEMU's largest queue.
const SIZE_MAX: u16 = 1024;

pub struct Client {
    path: Option<PathBuf>,
    options: Options,
    session: Session,
    shared: SharedMemory,
    region: Option<Region>,
    queues: Vec<Queue>,
    looks: u32,
    /// How many answers there had been at the last look at the clock, and when that was so first.
    heard: (u64, Instant),
}

impl Client {
    pub fn connect(path: &Path, options: Options) -> Result<Client> {
        let mut client = Client::over(open(path)?, options)?;
        client.path = Some(path.to_owned());
        Ok(client)
    }

    /// Over a socket that is connected.
    pub fn over(stream: UnixStream, options: Options) -> Result<Client> {
        check(&options)?;
        let mut session = Session::negotiate(stream, options.queues)?;
        let has = |feature| session.features & feature != 0;
        let (event_idx, indirect) = (has(config::EVENT_IDX), has(config::INDIRECT_DESC));
        let size = match indirect {
            true => options.slots.max(2),
            false => (options.slots * DESCRIPTORS).next_power_of_two(),
        };
        assert!(size <= SIZE_MAX);
        let shared = SharedMemory::new(&options, size)?;
        session.share(&shared)?;
        let region = session.region(None, options.queues, size)?;
        let queues = (0..options.queues).map(|index| {
            let setup = shared.setup(index, event_idx, indirect);
            Queue::new(&shared, &options, index, setup)
        });
        let mut client = Client {
            path: None,
            queues: queues.collect::<Result<_>>()?,
            options,
            session,
            shared,
            region,
            looks: 0,
            heard: (0, Instant::now()),
        };
        client.start()?;
        Ok(client)
    }

    /// Lets all rings run, from where the back end before has left them.
    fn start(&mut self) -> Result<()> {
        for (index, queue) in (0..).zip(&self.queues) {
            let base = queue.used_index()?;
            self.session.start(index, queue, base)?;
        }
        // What was shown to a back end that is gone is not shown again.
        self.queues.iter().try_for_each(Queue::kick)
    }

    /// Goes on with the next back end at the same path, with all that is in flight.
    pub fn reconnect(&mut self) -> Result<()> {
        let path = self.path.as_ref().ok_or(ClientError::Gone)?;
        let mut session = Session::negotiate(open(path)?, self.options.queues)?;
        if session.features != self.session.features {
            return Err(ClientError::Lacks("the features of the one before"));
        }
        session.share(&self.shared)?;
        let size = self.queues[0].setup().size;
        let kept = self.region.as_ref().map(Region::again).transpose()?;
        session.region(kept, self.options.queues, size)?;
        self.session = session;
        self.start()
    }

    /// Ends the rings in order, and says where each stands.
    pub fn stop(mut self) -> Result<Vec<u16>> {
        (0..self.options.queues)
            .map(|index| self.session.stop(index))
            .collect()
    }

    pub fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// Feature bits that were agreed upon.
    pub fn features(&self) -> u64 {
        self.session.features
    }

    pub fn protocol_features(&self) -> Protocol {
        self.session.protocol
    }

    /// The kernel's number of the file of the in-flight region, and its bytes.
    pub fn region(&self) -> Option<(RawFd, u64)> {
        let region = self.region.as_ref()?;
        Some((region.file.as_raw_fd(), region.place.mmap_size))
    }

    pub fn config(&mut self) -> Result<Vec<u8>> {
        self.session.config(0, CONFIG_BYTES)
    }

    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        self.session.set_config(offset, bytes)
    }

    pub fn capacity_sectors(&mut self) -> Result<u64> {
        let space = self.session.config(0, 8)?;
        let number = space
            .first_chunk()
            .ok_or(ClientError::Lacks("a capacity"))?;
        Ok(u64::from_le_bytes(*number))
    }

    /// For whoever found nothing to reap: returns when there may be something. An error when the
    /// back end has ended, or has been silent for too long.
    pub fn wait(&mut self) -> Result<()> {
        match self.options.wait {
            Wait::Polling => self.look_again(),
            Wait::Events => self.sleep(PATIENCE),
        }
    }

    fn look_again(&mut self) -> Result<()> {
        std::hint::spin_loop();
        self.looks = (self.looks + 1) % LOOKS;
        if self.looks != 0 {
            return Ok(());
        }
        if self.session.is_gone() {
            return Err(ClientError::Gone);
        }
        let answers = self.queues.iter().map(Queue::answers).sum();
        let (before, since) = self.heard;
        if answers != before {
            self.heard = (answers, Instant::now());
        } else if since.elapsed() > PATIENCE {
            return Err(ClientError::Silent("requests"));
        }
        Ok(())
    }

    fn sleep(&mut self, at_most: Duration) -> Result<()> {
        for queue in &mut self.queues {
            if queue.in_flight() > 0 && queue.ask_for_call()? {
                return Ok(());
            }
        }
        let ready = sys::wait_any(self.events(), at_most)?;
        match ready {
            Some(at) if at == self.queues.len() => Err(ClientError::Gone),
            Some(at) => {
                self.queues[at].take_call();
                Ok(())
            }
            None => Err(ClientError::Silent("requests")),
        }
    }

    /// What is ready when there is something to reap: the call of each queue, and at last the
    /// connection, when the back end has ended. For a thread that waits while another one offers.
    pub fn events(&self) -> impl Iterator<Item = RawFd> {
        let calls = self.queues.iter().map(|queue| queue.call.as_raw_fd());
        calls.chain([self.session.socket().as_raw_fd()])
    }

    /// Asks for a call at the next answer, also of what is offered later. True if there is one
    /// already.
    pub fn ask_for_calls(&mut self) -> Result<bool> {
        for queue in &mut self.queues {
            if queue.ask_for_call()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes the calls that are there.
    pub fn take_calls(&self) {
        self.queues.iter().for_each(Queue::take_call);
    }

    /// Asks for one thing and waits for it; nothing else is in flight in this queue.
    pub fn ask(&mut self, queue: u16, request: &Request, payload: &[u8]) -> Result<Ended> {
        let at = usize::from(queue);
        let lane = &mut self.queues[at];
        assert_eq!(lane.in_flight(), 0, "one at a time");
        let slot = lane.take().expect("nothing is in flight");
        lane.fill(slot, 0, payload)?;
        lane.offer(slot, request)?;
        lane.show()?;
        self.heard.1 = Instant::now();
        loop {
            if let Some(ended) = self.queues[at].reap()? {
                return Ok(ended);
            }
            self.wait()?;
        }
    }

    /// The same, where the status is all that is wanted.
    fn done(&mut self, queue: u16, request: &Request, payload: &[u8]) -> Result<()> {
        let ended = self.ask(queue, request, payload)?;
        self.queues[usize::from(queue)].give(ended.slot);
        ended.check()
    }

    fn filled(&mut self, queue: u16, request: &Request, into: &mut [u8]) -> Result<()> {
        let ended = self.ask(queue, request, &[])?;
        let lane = &mut self.queues[usize::from(queue)];
        lane.copy(ended.slot, into)?;
        lane.give(ended.slot);
        ended.check()
    }

    pub fn read(&mut self, queue: u16, sector: u64, into: &mut [u8]) -> Result<()> {
        let sectors = sectors(into);
        self.filled(queue, &Request::Read { sector, sectors }, into)
    }

    pub fn write(&mut self, queue: u16, sector: u64, bytes: &[u8]) -> Result<()> {
        let sectors = sectors(bytes);
        self.done(queue, &Request::Write { sector, sectors }, bytes)
    }

    pub fn flush(&mut self, queue: u16) -> Result<()> {
        self.done(queue, &Request::Flush, &[])
    }

    pub fn discard(&mut self, queue: u16, ranges: &[SectorRange]) -> Result<()> {
        self.done(queue, &Request::Discard(ranges), &[])
    }

    pub fn write_zeroes(&mut self, queue: u16, ranges: &[SectorRange]) -> Result<()> {
        self.done(queue, &Request::WriteZeroes(ranges), &[])
    }

    /// The name of the disk, padded with zero bytes.
    pub fn id(&mut self, queue: u16) -> Result<[u8; ID_BYTES]> {
        let mut id = [0; ID_BYTES];
        self.filled(queue, &Request::GetId, &mut id)?;
        Ok(id)
    }
}

fn open(path: &Path) -> Result<UnixStream> {
    UnixStream::connect(path).map_err(|source| ClientError::Connect {
        path: path.to_owned(),
        source,
    })
}

fn sectors(bytes: &[u8]) -> u32 {
    let sectors = bytes.len() as u64 / SECTOR_BYTES;
    assert_eq!(sectors * SECTOR_BYTES, bytes.len() as u64, "whole sectors");
    sectors as u32
}

fn check(options: &Options) -> Result<()> {
    let wrong = |what, value, right| Err(ClientError::Options { what, value, right });
    if !(1..=QUEUES_MAX).contains(&options.queues) {
        return wrong("queues", options.queues.into(), "1 to 16");
    }
    if !options.slots.is_power_of_two() || options.slots > SLOTS_MAX {
        let right = "a power of two up to 256";
        return wrong("requests in flight", options.slots.into(), right);
    }
    let bytes = u64::from(options.slot_bytes);
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) || bytes > 4 << 20 {
        return wrong("payload", bytes, "whole sectors up to 4 MiB");
    }
    Ok(())
}

const _: () = assert!(SLOTS_MAX * DESCRIPTORS <= SIZE_MAX);
