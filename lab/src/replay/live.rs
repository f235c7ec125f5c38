//! A trace against a live volume, at the times of the trace.
//!
//! Owns what is sent to each volume, and when. Always true: a request leaves at its time whether
//! earlier ones are answered or not, but for two reasons that are counted: so many are in flight
//! that no more are, or it touches what a write in flight touches, which no file system would do;
//! every sector that is written carries its name, and the last write of each is told from all
//! others when the volume is read back. Deliberately absent: the connections, which are in `wire`,
//! and what the volume is for: its content is gone.

use super::wire::{Door, Request, Sent, Shared, Wire};
use engine::snapshot::Histogram;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workload::stamp::{self, Reading};
use workload::trace::{Op, Record, SECTOR_BYTES};

const BLOCK_SECTORS: u64 = 8;

/// One volume under replay.
pub struct Lane {
    door: Door,
    wire: Box<dyn Wire>,
    shared: Arc<Shared>,
    size_sectors: u64,
    tag: u64,
    cookie: u64,
    serial: u64,
    payload: Vec<u8>,
    blocks: Blocks,
    told: Told,
}

/// Serial of the last write of each sector, by block; what was discarded is zero.
type Blocks = HashMap<u64, [Option<u64>; BLOCK_SECTORS as usize]>;

/// What a lane has left on its volume.
pub struct Written {
    door: Door,
    size_sectors: u64,
    tag: u64,
    blocks: Blocks,
    pub told: Told,
}

/// What came of a lane.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub requests: u64,
    pub bytes: u64,
    /// Beyond the end of the volume, and so not sent.
    pub outside: u64,
    /// Waited for a place, or for a write that they overlap.
    pub crowded: u64,
    pub overlapping: u64,
    /// How late requests left.
    pub lag: Histogram,
    pub lag_max: Duration,
    pub errors: u64,
    pub latency: [Histogram; 3],
    pub verified_sectors: u64,
    pub wrong_sectors: u64,
    pub first_wrong: Option<u64>,
}

impl Lane {
    /// `tag` tells the data of this replay from that of others.
    pub fn connect(door: Door, size_bytes: u64, tag: u64) -> io::Result<Lane> {
        let shared = Arc::new(Shared::default());
        Ok(Lane {
            wire: door.connect(&shared)?,
            door,
            shared,
            size_sectors: size_bytes / SECTOR_BYTES,
            tag,
            cookie: 0,
            serial: 0,
            payload: Vec::new(),
            blocks: Blocks::new(),
            told: Told::default(),
        })
    }

    /// Sends a request of the trace that is due at `due`.
    pub fn send(&mut self, record: &Record, due: Instant) -> io::Result<()> {
        let (mut sector, end) = (record.sector, record.sector + u64::from(record.sectors));
        if end > self.size_sectors {
            self.told.outside += 1;
            return Ok(());
        }
        self.told.requests += 1;
        self.told.bytes += u64::from(record.sectors) * SECTOR_BYTES;
        loop {
            let sectors = (end - sector).min(self.wire.sectors_max(record.op));
            let request = Request {
                op: record.op,
                sector,
                sectors,
            };
            self.wait_for_place(&request)?;
            let lag = Instant::now().saturating_duration_since(due);
            self.told.lag.add_ns(lag.as_nanos() as u64);
            self.told.lag_max = self.told.lag_max.max(lag);
            self.put(request)?;
            sector += sectors;
            if sector >= end {
                return Ok(());
            }
        }
    }

    fn put(&mut self, request: Request) -> io::Result<()> {
        let Request {
            op,
            sector,
            sectors,
        } = request;
        self.cookie += 1;
        self.payload.clear();
        if matches!(op, Op::Write | Op::Discard) {
            self.serial += 1;
            let serial = (op == Op::Write).then_some(self.serial);
            self.note(sector, sectors, serial);
        }
        if op == Op::Write {
            self.payload.resize((sectors * SECTOR_BYTES) as usize, 0);
            stamp::fill(&mut self.payload, self.tag, sector, self.serial);
        }
        let at = Instant::now();
        let sent = Sent { request, at };
        self.shared.flight().sent.insert(self.cookie, sent);
        self.wire.send(self.cookie, &request, &self.payload)
    }

    fn note(&mut self, sector: u64, sectors: u64, serial: Option<u64>) {
        for sector in sector..sector + sectors {
            let block = self.blocks.entry(sector / BLOCK_SECTORS);
            let block = block.or_insert([Some(0); BLOCK_SECTORS as usize]);
            block[(sector % BLOCK_SECTORS) as usize] = serial;
        }
    }

    /// Waits until there is a place, and no write in flight that this one overlaps.
    fn wait_for_place(&mut self, next: &Request) -> io::Result<()> {
        let changes = |op| matches!(op, Op::Write | Op::Discard);
        let overlaps = |sent: &Sent| {
            let it = &sent.request;
            let meets =
                it.sector < next.sector + next.sectors && next.sector < it.sector + it.sectors;
            meets && changes(next.op) && it.op != Op::Read && it.sectors > 0
        };
        let in_flight_max = self.wire.in_flight_max();
        let (mut flight, mut crowded, mut overlapping) = (self.shared.flight(), 0, 0);
        loop {
            let full = flight.sent.len() >= in_flight_max;
            let meets = flight.sent.values().any(overlaps);
            if !full && !meets {
                break;
            }
            crowded |= u64::from(full);
            overlapping |= u64::from(meets);
            flight = self.shared.wait(flight)?;
        }
        drop(flight);
        self.told.crowded += crowded;
        self.told.overlapping += overlapping;
        Ok(())
    }

    /// Waits until all that was sent is answered, and ends the connection in order.
    pub fn settle(mut self) -> io::Result<Written> {
        let mut flight = self.shared.flight();
        while !flight.sent.is_empty() {
            flight = self.shared.wait(flight)?;
        }
        self.told.errors = flight.errors;
        self.told.latency = flight.latency;
        drop(flight);
        self.wire.close()?;
        Ok(Written {
            door: self.door,
            size_sectors: self.size_sectors,
            tag: self.tag,
            blocks: self.blocks,
            told: self.told,
        })
    }
}

impl Written {
    /// Reads back every block that was written, through a connection of its own.
    pub fn verify(&mut self) -> io::Result<()> {
        let mut reader = self.door.reader()?;
        let mut blocks: Vec<u64> = self.blocks.keys().copied().collect();
        blocks.sort_unstable();
        let most = reader.sectors_max() / BLOCK_SECTORS;
        let mut bytes = vec![0; (most * BLOCK_SECTORS * SECTOR_BYTES) as usize];
        let mut at = 0;
        while let Some(&first) = blocks.get(at) {
            let run = blocks[at..].iter().take(most as usize).enumerate();
            let count = run
                .take_while(|(n, block)| **block == first + *n as u64)
                .count();
            let from = first * BLOCK_SECTORS;
            let upto = ((first + count as u64) * BLOCK_SECTORS).min(self.size_sectors);
            let bytes = &mut bytes[..((upto - from) * SECTOR_BYTES) as usize];
            reader.read(from, bytes)?;
            for (sector, found) in (from..upto).zip(bytes.chunks_exact(SECTOR_BYTES as usize)) {
                self.judge(sector, found);
            }
            at += count;
        }
        Ok(())
    }

    fn judge(&mut self, sector: u64, found: &[u8]) {
        let block = &self.blocks[&(sector / BLOCK_SECTORS)];
        let right = match block[(sector % BLOCK_SECTORS) as usize] {
            // It was there before.
            Some(0) => return,
            Some(serial) => {
                let tag = self.tag;
                stamp::read(found)
                    == Reading::Stamped {
                        tag,
                        sector,
                        serial,
                    }
            }
            None => stamp::read(found) == Reading::Zero,
        };
        self.told.verified_sectors += 1;
        if !right {
            self.told.wrong_sectors += 1;
            self.told.first_wrong.get_or_insert(sector);
        }
    }
}
