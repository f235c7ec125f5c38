//! How long a move takes, by what is dirty.
//!
//! Owns two hosts between which a volume goes forth and back, and what is written before each move.
//! Always true: what the move before had to carry is at the image before anything is written; what
//! is dirty is on both hosts when the guest says goodbye; the first read is of a block that was
//! never written and that the host before has cached, so that it is the same for each amount.
//! Deliberately absent: the time in which a manager of guests starts the guest again.

use super::guest::{Guest, PIECE_BYTES, failed};
use super::run::{NAME, order_move, start, wait_until_settled};
use super::{Line, Options};
use crate::bench::hosts::{Hosts, wait_for};
use crate::bench::own_process::number;
use crate::bench::pipe::Pipe;
use crate::bench::work::{BLOCK_BYTES, Carrier, Verb, Walk, Work};
use crate::client::Client;
use crate::place::Place;
use host::admin::client::PATIENT;
use host::error::Result;
use std::time::{Duration, Instant};

/// Writes in flight.
pub const DEPTH: usize = 16;
/// Between blocks that are read first; what is read ahead of one is not another.
const STEP_BYTES: u64 = 64 << 10;
const WAIT_MAX: Duration = Duration::from_secs(600);

/// One move.
pub struct Switch {
    /// As the host counts it when the guest says goodbye.
    pub dirty_bytes: u64,
    /// From the goodbye until the order was carried out, and from there to the first answer.
    pub ordered: Duration,
    pub answered: Duration,
    /// The first answer came from the cache of the host before.
    pub remote: bool,
}

pub struct Stage {
    // The hosts end before their files go away.
    hosts: Hosts,
    _place: Place,
    owner: usize,
    /// The block that is read first after the next move.
    offset: u64,
    /// Reads from the host before, as each host has counted them when it was looked at last.
    remote: [u64; 2],
}

impl Switch {
    pub fn total(&self) -> Duration {
        self.ordered + self.answered
    }
}

impl Line {
    /// Moves after which the first answer came from the host before.
    pub fn remote(&self) -> usize {
        self.moves.iter().filter(|it| it.remote).count()
    }
}

impl Stage {
    pub fn new(place: &Place, options: &Options) -> Result<Stage> {
        let place = place.part("switch")?;
        let from = options.dirty_max().next_multiple_of(PIECE_BYTES);
        let moves = u64::from(options.rounds) * options.dirty.len() as u64;
        let bytes = from + ((moves + 1) * STEP_BYTES).next_multiple_of(PIECE_BYTES);
        let hosts = start(&place, options, from, bytes)?;
        // A volume is served from its first client on.
        Guest::at(&hosts.socket(0), NAME)?.read(from)?;
        Ok(Stage {
            hosts,
            _place: place,
            owner: 0,
            offset: from + STEP_BYTES,
            remote: [0; 2],
        })
    }

    /// Writes so much, and moves the volume to the host at which it is not.
    pub fn switch(&mut self, dirty_bytes: u64) -> Result<Switch> {
        let (from, to) = (self.owner, 1 - self.owner);
        self.empty()?;
        self.write(dirty_bytes)?;
        wait_until_settled(&self.hosts, from)?;
        let mut guest = Guest::at(&self.hosts.socket(from), NAME)?;
        guest.read(self.offset)?;
        let shown = self.hosts.served(from).volume(NAME)?;
        let dirty_bytes = number(&shown["dirty_bytes"])?;
        self.remote[from] = number(&shown["reads"]["remote"])?;
        let goodbye = Instant::now();
        drop(guest);
        order_move(&self.hosts, from)?;
        let ordered = goodbye.elapsed();
        Guest::at(&self.hosts.socket(to), NAME)?.read(self.offset)?;
        let answered = goodbye.elapsed() - ordered;
        self.owner = to;
        self.offset += STEP_BYTES;
        let remote = number(&self.hosts.served(to).volume(NAME)?["reads"]["remote"])?;
        // A host may count anew from when it has got a volume.
        let before = core::mem::replace(&mut self.remote[to], remote);
        let was = if remote < before { 0 } else { before };
        Ok(Switch {
            dirty_bytes,
            ordered,
            answered,
            remote: remote > was,
        })
    }

    /// Brings all to the image.
    fn empty(&self) -> Result<()> {
        wait_until_settled(&self.hosts, self.owner)?;
        let host = self.hosts.served(self.owner);
        let path = format!("/v1/volumes/{NAME}/destage?wait=true");
        host.client.post(&path, None, PATIENT)?;
        wait_for("a volume without dirty data", || {
            Ok(number(&host.volume(NAME)?["dirty_bytes"])? == 0)
        })
    }

    /// Blocks of 4 KiB, scattered where their number allows it, and a flush.
    fn write(&self, bytes: u64) -> Result<()> {
        let blocks = bytes / BLOCK_BYTES;
        if blocks == 0 {
            return Ok(());
        }
        let socket = self.hosts.socket(self.owner);
        let scattered = 1 << blocks.ilog2();
        let mut works = vec![(Walk::new(0..scattered), scattered)];
        if scattered < blocks {
            let rest = Walk::ascending(scattered..blocks, BLOCK_BYTES);
            works.push((rest, blocks - scattered));
        }
        let mut pipe = Pipe::connect(&socket, NAME, 1).map_err(failed)?;
        for (walk, count) in works {
            let mut work = Work::along(Verb::Write, walk, DEPTH);
            work.left = Some(count);
            pipe.carry(&mut work, WAIT_MAX).map_err(failed)?;
        }
        let mut client = Client::connect(&socket, NAME).map_err(failed)?;
        client.flush().map_err(failed)
    }
}
