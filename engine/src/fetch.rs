//! Fetches: bytes of the log brought to a place, checked.
//!
//! Always true: what a fetch delivers from the device has the checksum that was taken when it
//! was staged; a mismatch is judged on further reads, block by block and into memory that nobody
//! else can write, so that a fetch tells exactly which blocks are bad and no guest makes one so.
//! While a fetch runs, the segments it reads are pinned. Parts that are not whole blocks go through
//! bounce blocks, because only whole blocks can be checked; a fetch that finds none waits for its
//! turn.

use crate::adversary::{Bug, Mark, has, mark};
use crate::event::{Device, Op, Purpose};
use crate::log::Log;
use crate::memory::{Place, Slice};
use crate::outbox::{Cx, Pending};
use crate::scratch::Scratch;
use crate::slab::Slab;
use crate::types::{
    BLOCK_BYTES, BLOCK_SECTORS, LogAddr, PeerId, SECTOR_BYTES, SegmentIndex, VolumeId,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Requests of one fetch in flight.
const PARTS_IN_FLIGHT_MAX: u32 = 64;
/// Reads of a block after which it is bad.
pub const TRIES_MAX: u8 = 3;

/// Whom a fetch serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Read(u32),
    Destage {
        volume: VolumeId,
        job: u32,
    },
    Replay {
        volume: VolumeId,
        job: u32,
    },
    Peer {
        volume: VolumeId,
        peer: PeerId,
    },
    Evacuate,
    /// What another host asks for of its copy.
    Copy(u32),
    RetryRead,
    Scrub,
}

/// Bytes wanted: `sectors` from `addr` on to `to`. Lies inside one record.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub addr: LogAddr,
    pub sectors: u64,
    pub to: Place,
}

struct Part {
    want: Want,
    segment: SegmentIndex,
    bounce: Option<u32>,
    /// Reads that have failed. After the first one it is read past the memory that is asked for.
    tries: u8,
}

impl Part {
    /// Only whole blocks can be checked, and only where nobody changes them meanwhile.
    fn bounces(&self) -> bool {
        self.tries > 0 || !is_whole(&self.want)
    }
}

struct Fetch {
    owner: Owner,
    purpose: Purpose,
    parts: Vec<Part>,
    next: usize,
    in_flight: u32,
    bad: Vec<Want>,
    bytes: u64,
}

impl Fetch {
    /// Whole blocks are not what they should be: each is read again by itself.
    fn try_again(&mut self, log: &mut Log, want: Want) {
        mark(Mark::ReadAgain);
        for at in (0..want.sectors).step_by(BLOCK_SECTORS as usize) {
            let addr = want.addr.plus(at);
            self.parts.push(Part {
                want: Want {
                    addr,
                    sectors: BLOCK_SECTORS,
                    to: want.to.plus(at * SECTOR_BYTES),
                },
                segment: log.pin(addr),
                bounce: None,
                tries: 1,
            });
        }
    }
}

/// How a fetch ended.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub owner: Owner,
    /// Blocks, or parts of one, that could not be read, or were not what had been written.
    pub bad: Vec<Want>,
    pub ssd_bytes: u64,
}

impl Fetched {
    pub fn is_damaged(&self) -> bool {
        !self.bad.is_empty()
    }
}

#[derive(Default)]
pub struct Fetches {
    slab: Slab<Fetch>,
    /// Fetches that wait for bounce blocks.
    starved: VecDeque<u32>,
}

impl Fetches {
    /// Copies what the stage mirrors at once and asks the device for the rest. Returns false if
    /// nothing had to be asked: the bytes are there.
    pub fn start(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&mut Log, &mut Scratch),
        owner: Owner,
        purpose: Purpose,
        wants: &[Want],
    ) -> bool {
        let mut parts = Vec::new();
        for want in wants {
            match log.staged(want.addr) {
                Some(place) => cx.memory.copy(place, want.to, want.sectors * SECTOR_BYTES),
                None => split(log, *want, &mut parts),
            }
        }
        if parts.is_empty() {
            return false;
        }
        let fetch = Fetch {
            owner,
            purpose,
            parts,
            next: 0,
            in_flight: 0,
            bad: Vec::new(),
            bytes: 0,
        };
        let id = self.slab.insert(fetch);
        self.issue(cx, log, scratch, id);
        true
    }

    fn issue(&mut self, cx: &mut Cx<'_>, log: &Log, scratch: &mut Scratch, id: u32) {
        let fetch = self.slab.get(id);
        while fetch.next < fetch.parts.len() && fetch.in_flight < PARTS_IN_FLIGHT_MAX {
            let part = &mut fetch.parts[fetch.next];
            if part.bounces() {
                let Some(block) = scratch.take_block() else {
                    self.starved.push_back(id);
                    return;
                };
                part.bounce = Some(block);
            }
            fetch.bytes += read_part(cx, log, scratch, part, fetch.purpose, id, fetch.next as u32);
            fetch.next += 1;
            fetch.in_flight += 1;
        }
    }

    /// The end of one part. Returns the fetch when it was the last.
    pub fn part_done(
        &mut self,
        cx: &mut Cx<'_>,
        (log, scratch): (&mut Log, &mut Scratch),
        (id, at): (u32, u32),
        ok: bool,
    ) -> Option<Fetched> {
        let fetch = self.slab.get(id);
        let part = &mut fetch.parts[at as usize];
        let good = ok && is_good(cx, log, scratch, part);
        part.tries += u8::from(!good);
        if !good && has(Bug::JudgeAtFirstRead) {
            part.tries = TRIES_MAX;
        }
        if !good && part.tries < TRIES_MAX && part.bounce.is_some() {
            fetch.bytes += read_part(cx, log, scratch, part, fetch.purpose, id, at);
            return None;
        }
        if let Some(block) = part.bounce.take() {
            if good {
                let offset = (part.want.addr.0 % BLOCK_SECTORS) * SECTOR_BYTES;
                let from = scratch.block(block).plus(offset);
                cx.memory
                    .copy(from, part.want.to, part.want.sectors * SECTOR_BYTES);
            }
            scratch.free_block(block);
        }
        log.unpin(part.segment);
        fetch.in_flight -= 1;
        if !good {
            let (want, tries) = (part.want, part.tries);
            match tries {
                TRIES_MAX => fetch.bad.push(want),
                _ => fetch.try_again(log, want),
            }
        }
        if fetch.next < fetch.parts.len() {
            if !self.starved.contains(&id) {
                self.issue(cx, log, scratch, id);
            }
            return None;
        }
        if self.slab.get(id).in_flight > 0 {
            return None;
        }
        let fetch = self.slab.take(id);
        Some(Fetched {
            owner: fetch.owner,
            bad: fetch.bad,
            ssd_bytes: fetch.bytes,
        })
    }

    /// Gives fetches that wait for bounce blocks another try.
    pub fn pump(&mut self, cx: &mut Cx<'_>, log: &Log, scratch: &mut Scratch) {
        for _ in 0..self.starved.len() {
            let Some(id) = self.starved.pop_front() else {
                return;
            };
            self.issue(cx, log, scratch, id);
        }
    }
}

fn is_whole(want: &Want) -> bool {
    want.addr.0.is_multiple_of(BLOCK_SECTORS) && want.sectors.is_multiple_of(BLOCK_SECTORS)
}

/// Cuts a want into its partial first block, its whole blocks and its partial last block.
fn split(log: &mut Log, want: Want, parts: &mut Vec<Part>) {
    let (mut addr, mut left, mut to) = (want.addr, want.sectors, want.to);
    while left > 0 {
        let phase = addr.0 % BLOCK_SECTORS;
        let sectors = if phase > 0 || left < BLOCK_SECTORS {
            left.min(BLOCK_SECTORS - phase)
        } else {
            left - left % BLOCK_SECTORS
        };
        let segment = log.pin(addr);
        let want = Want { addr, sectors, to };
        parts.push(Part {
            want,
            segment,
            bounce: None,
            tries: 0,
        });
        addr = addr.plus(sectors);
        to = to.plus(sectors * SECTOR_BYTES);
        left -= sectors;
    }
}

fn read_part(
    cx: &mut Cx<'_>,
    log: &Log,
    scratch: &Scratch,
    part: &Part,
    purpose: Purpose,
    fetch: u32,
    at: u32,
) -> u64 {
    let first = LogAddr(part.want.addr.block() * BLOCK_SECTORS);
    let slice = match part.bounce {
        Some(block) => Slice {
            place: scratch.block(block),
            bytes: BLOCK_BYTES,
        },
        None => Slice {
            place: part.want.to,
            bytes: part.want.sectors * SECTOR_BYTES,
        },
    };
    let pending = Pending::Fetch { fetch, part: at };
    let offset = log.device_at(first);
    cx.transfer(
        pending,
        purpose,
        Device::Cache,
        Op::Read,
        offset,
        alloc::vec![slice],
    );
    slice.bytes
}

fn is_good(cx: &Cx<'_>, log: &Log, scratch: &Scratch, part: &Part) -> bool {
    let (place, blocks) = match part.bounce {
        Some(block) => (scratch.block(block), 1),
        None => (part.want.to, part.want.sectors / BLOCK_SECTORS),
    };
    let sums = log.sums(part.want.addr, blocks);
    sums.iter().zip(0..).all(|(right, n)| {
        let sum = cx.memory.checksum(place.plus(n * BLOCK_BYTES), BLOCK_BYTES);
        sum == *right || has(Bug::DropLogSum)
    })
}
