//! The load of a guest with a vhost-user disk: rings, no guest.
//!
//! Owns its front end. Always true: requests are spread over all queues and driven by one thread;
//! each is shown when it is offered, as a guest's driver does, and a turn ends with one kick at
//! most; payload is there before anything is measured, as it is in a guest, and only its first
//! bytes change. Deliberately absent: a look at the bytes of a read; the drills look at those.

use super::pipe::noise;
use super::work::{BLOCK_BYTES, Carrier, Slot, Tally, Verb, Work};
use crate::vhost_client::{self, Client, ClientError, Options, Request, SLOTS_MAX, Wait};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const SECTORS: u64 = BLOCK_BYTES / 512;

pub struct Rings {
    client: Client,
    slots: Vec<Slot>,
    /// Whose each slot of each queue is.
    owners: Vec<Vec<usize>>,
    writes: u64,
}

/// Room for so many requests in flight, spread over the queues.
fn options(queues: u16, depth: usize, wait: Wait) -> Options {
    let each = depth.div_ceil(usize::from(queues)).next_power_of_two();
    Options {
        queues,
        slots: (each as u16).min(SLOTS_MAX),
        slot_bytes: BLOCK_BYTES as u32,
        wait,
    }
}

pub fn failed(error: ClientError) -> io::Error {
    match error {
        ClientError::Io(error) => error,
        // Whoever waits for a back end that starts looks at the kind.
        ClientError::Connect { source, .. } => source,
        error => io::Error::other(error),
    }
}

impl Rings {
    pub fn connect(socket: &Path, queues: u16, depth: usize, wait: Wait) -> io::Result<Rings> {
        let client = Client::connect(socket, options(queues, depth, wait));
        Rings::over(client.map_err(failed)?)
    }

    /// Over a socket that is connected.
    pub fn from_stream(
        stream: UnixStream,
        queues: u16,
        depth: usize,
        wait: Wait,
    ) -> io::Result<Rings> {
        let client = Client::over(stream, options(queues, depth, wait));
        Rings::over(client.map_err(failed)?)
    }

    fn over(mut client: Client) -> io::Result<Rings> {
        let payload = noise();
        for queue in client.queues() {
            let all: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
            for slot in all.into_iter().rev() {
                queue.fill(slot, 0, &payload).map_err(failed)?;
                queue.give(slot);
            }
        }
        let queues = client.queues().len();
        Ok(Rings {
            client,
            slots: Vec::new(),
            owners: vec![vec![0; usize::from(SLOTS_MAX)]; queues],
            writes: 0,
        })
    }

    /// Offers the next request. False if there are no more.
    fn ask(&mut self, number: usize, work: &mut Work, now: Instant) -> io::Result<bool> {
        let Some(slot) = work.next(now) else {
            return Ok(false);
        };
        assert_eq!(slot.bytes, BLOCK_BYTES, "its buffers are of this size");
        self.slots[number] = slot;
        self.offer(number).map_err(failed)?;
        Ok(true)
    }

    fn offer(&mut self, number: usize) -> vhost_client::Result<()> {
        let Slot {
            verb,
            block,
            written,
            ..
        } = self.slots[number];
        let (sector, sectors) = (block * SECTORS, SECTORS as u32);
        let request = match verb {
            Verb::Read => Request::Read { sector, sectors },
            Verb::Flush => Request::Flush,
            Verb::Sealed if written => Request::Flush,
            Verb::Write | Verb::Sealed => Request::Write { sector, sectors },
        };
        let at = number % self.owners.len();
        let queue = &mut self.client.queues()[at];
        let slot = queue.take().expect("room for all that is in flight");
        if matches!(request, Request::Write { .. }) {
            self.writes += 1;
            queue.fill(slot, 0, &self.writes.to_le_bytes())?;
        }
        self.owners[at][usize::from(slot.0)] = number;
        queue.offer(slot, &request)
    }

    /// Takes what has ended, into `ended`.
    fn reap(&mut self, ended: &mut Vec<usize>) -> vhost_client::Result<()> {
        for (queue, owners) in self.client.queues().iter_mut().zip(&self.owners) {
            while let Some(it) = queue.reap()? {
                it.check()?;
                queue.give(it.slot);
                ended.push(owners[usize::from(it.slot.0)]);
            }
        }
        Ok(())
    }

    fn show(&mut self) -> io::Result<()> {
        let mut queues = self.client.queues().iter_mut();
        queues.try_for_each(|queue| queue.show()).map_err(failed)
    }
}

impl Carrier for Rings {
    fn carry(&mut self, work: &mut Work, lasts: Duration) -> io::Result<Tally> {
        let began = Instant::now();
        let until = began + lasts;
        let mut tally = Tally::new(began, lasts);
        self.slots = vec![Slot::idle(began); work.depth];
        let mut open = 0;
        for number in 0..work.depth {
            open += usize::from(self.ask(number, work, began)?);
        }
        self.show()?;
        let mut ended = Vec::new();
        while open > 0 {
            self.reap(&mut ended).map_err(failed)?;
            if ended.is_empty() {
                self.client.wait().map_err(failed)?;
                continue;
            }
            let now = Instant::now();
            for number in ended.drain(..) {
                let slot = &mut self.slots[number];
                if slot.verb == Verb::Sealed && !slot.written {
                    slot.written = true;
                    self.offer(number).map_err(failed)?;
                    continue;
                }
                tally.add(slot.sent, now);
                let more = now < until && self.ask(number, work, now)?;
                open -= usize::from(!more);
            }
            self.show()?;
        }
        Ok(tally)
    }
}
