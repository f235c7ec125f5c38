//! Requests of a replay over the rings of a vhost-user disk, as a guest sends them.
//!
//! Owns a front end without a guest, with one queue. Always true: this thread offers and kicks,
//! another sleeps until it is called and takes the answers; the front end is locked by either for
//! a few steps, never while one waits. A slot is free again before its request counts as answered.

use super::{Reader, Request, Shared, Wire};
use crate::vhost_client::{self, Client, ClientError, Options, SLOTS_MAX, Wait};
use host::sys;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EventFd};
use vring::block::SectorRange;
use workload::trace::{Op, SECTOR_BYTES};

/// What a guest's kernel asks for at once is not more.
const SLOT_BYTES: u32 = 1 << 20;
/// A range has no payload; this is what an NBD client trims at once too.
const DISCARD_SECTORS_MAX: u64 = (32 << 20) / SECTOR_BYTES;
/// Whoever waits for a lost answer gives up earlier than this.
const NAP: Duration = Duration::from_secs(3600);

const OPTIONS: Options = Options {
    queues: 1,
    slots: SLOTS_MAX,
    slot_bytes: SLOT_BYTES,
    wait: Wait::Events,
};

pub struct Rings {
    ring: Arc<Ring>,
    answers: JoinHandle<()>,
}

/// What both threads use.
struct Ring {
    front: Mutex<Front>,
    /// There is something else to do than to wait for answers.
    wake: EventFd,
    over: AtomicBool,
}

struct Front {
    client: Client,
    /// Whose each slot is.
    cookies: Vec<u64>,
}

fn failed(error: ClientError) -> io::Error {
    match error {
        ClientError::Io(error) => error,
        ClientError::Connect { source, .. } => source,
        ClientError::Gone | ClientError::Closed(_) => io::ErrorKind::UnexpectedEof.into(),
        error => io::Error::other(error),
    }
}

impl Rings {
    pub fn connect(socket: &Path, shared: &Arc<Shared>) -> io::Result<Rings> {
        let ring = Arc::new(Ring {
            front: Mutex::new(Front {
                client: Client::connect(socket, OPTIONS).map_err(failed)?,
                cookies: vec![0; usize::from(SLOTS_MAX)],
            }),
            wake: EventFd::new(EFD_CLOEXEC)?,
            over: AtomicBool::new(false),
        });
        let (seen, shared) = (ring.clone(), shared.clone());
        let answers = std::thread::Builder::new()
            .name("replay-answers".into())
            .spawn(move || shared.end(seen.take_answers(&shared)))?;
        Ok(Rings { ring, answers })
    }
}

impl Wire for Rings {
    fn sectors_max(&self, op: Op) -> u64 {
        match op {
            Op::Discard => DISCARD_SECTORS_MAX,
            _ => u64::from(SLOT_BYTES) / SECTOR_BYTES,
        }
    }

    fn in_flight_max(&self) -> usize {
        usize::from(SLOTS_MAX)
    }

    fn send(&mut self, cookie: u64, request: &Request, payload: &[u8]) -> io::Result<()> {
        let mut front = self.ring.front();
        front.offer(cookie, request, payload).map_err(failed)
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.ring.over.store(true, Ordering::SeqCst);
        self.ring.wake.write(1)?;
        self.answers.join().expect("a panic ends the process");
        let ring = Arc::into_inner(self.ring).expect("the other thread has ended");
        let front = ring.front.into_inner();
        let client = front.unwrap_or_else(PoisonError::into_inner).client;
        client.stop().map_err(failed)?;
        Ok(())
    }
}

impl Ring {
    fn front(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_answers(&self, shared: &Shared) -> io::Result<()> {
        let mut ended = Vec::new();
        while !self.over.load(Ordering::SeqCst) {
            let events = self.front().reap(&mut ended).map_err(failed)?;
            if !ended.is_empty() {
                for (cookie, is_failed) in ended.drain(..) {
                    shared.land(cookie, is_failed);
                }
                continue;
            }
            let Some([call, socket]) = events else {
                continue;
            };
            let wake = self.wake.as_raw_fd();
            match sys::wait_any([call, wake, socket].into_iter(), NAP)? {
                Some(0) => self.front().client.take_calls(),
                Some(2) => return Err(failed(ClientError::Gone)),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Front {
    fn offer(
        &mut self,
        cookie: u64,
        request: &Request,
        payload: &[u8],
    ) -> vhost_client::Result<()> {
        let queue = &mut self.client.queues()[0];
        let slot = queue.take().expect("no more are in flight than slots");
        self.cookies[usize::from(slot.0)] = cookie;
        let (sector, sectors) = (request.sector, request.sectors as u32);
        let range = [SectorRange {
            sector,
            sectors: request.sectors,
            unmap: false,
        }];
        queue.fill(slot, 0, payload)?;
        let request = match request.op {
            Op::Read => vhost_client::Request::Read { sector, sectors },
            Op::Write => vhost_client::Request::Write { sector, sectors },
            Op::Flush => vhost_client::Request::Flush,
            Op::Discard => vhost_client::Request::Discard(&range),
        };
        queue.offer(slot, &request)?;
        queue.show()
    }

    /// Takes what has ended, with whether it failed. Where there is nothing it says what to wait
    /// for, the call and the connection.
    fn reap(&mut self, ended: &mut Vec<(u64, bool)>) -> vhost_client::Result<Option<[RawFd; 2]>> {
        let queue = &mut self.client.queues()[0];
        while let Some(it) = queue.reap()? {
            queue.give(it.slot);
            ended.push((self.cookies[usize::from(it.slot.0)], it.status != 0));
        }
        if !ended.is_empty() || self.client.ask_for_calls()? {
            return Ok(None);
        }
        let mut events = self.client.events();
        Ok(events
            .next()
            .zip(events.next())
            .map(|(call, socket)| [call, socket]))
    }
}

pub fn reader(socket: &Path) -> io::Result<impl Reader + use<>> {
    Client::connect(socket, OPTIONS).map_err(failed)
}

impl Reader for Client {
    fn sectors_max(&self) -> u64 {
        u64::from(SLOT_BYTES) / SECTOR_BYTES
    }

    fn read(&mut self, sector: u64, bytes: &mut [u8]) -> io::Result<()> {
        Client::read(self, 0, sector, bytes).map_err(failed)
    }
}
