//! What was asked of a volume and what was answered, beside the log of what reached the disks.
//!
//! Owns the requests of one client and their answers, each with the length that the log had at that
//! moment, so that the model of any earlier moment can be made again. Always true: a request is
//! noted before it is sent and an answer after it came; so whatever the log had before a noted
//! answer was there when it was given. Deliberately absent: what a volume promises; that is in
//! `workload::check`.

use std::collections::HashMap;

use workload::check::{FlushPoint, Initial, Kind, Model, Promise};
use workload::stamp::{self, SECTOR_BYTES};

use super::nbd::{self, Client};
use super::shelf::Shelf;

#[derive(Clone, Copy)]
enum Noted {
    Submit {
        kind: Kind,
        sector: u64,
        sectors: u64,
        durable: bool,
    },
    Acknowledge(u64),
    FlushBegin,
    /// The flush that began as the n-th one.
    FlushDone(usize),
}

#[derive(Clone)]
enum Pending {
    Write {
        serial: u64,
        sector: u64,
        sectors: u64,
    },
    Flush(usize),
}

/// One volume and one connection to it.
#[derive(Clone)]
pub struct History {
    tag: u64,
    promise: Promise,
    initial: Initial,
    sectors: u64,
    shelf: Shelf,
    notes: Vec<(usize, Noted)>,
    writes: u64,
    flushes: usize,
    pending: HashMap<u64, Pending>,
}

impl History {
    pub fn new(tag: u64, sectors: u64, promise: Promise, shelf: &Shelf) -> History {
        History {
            tag,
            promise,
            initial: Initial::Zero,
            sectors,
            shelf: shelf.clone(),
            notes: Vec::new(),
            writes: 0,
            flushes: 0,
            pending: HashMap::new(),
        }
    }

    /// On an image whose sectors carry stamps of the volume from the start.
    pub fn on_stamps(mut self) -> History {
        self.initial = Initial::Stamped(self.tag);
        self
    }

    fn note(&mut self, noted: Noted) {
        self.notes.push((self.shelf.position(), noted));
    }

    /// Sends a write or zeroes and does not wait. False when the connection is broken.
    pub fn send(
        &mut self,
        client: &mut Client,
        kind: Kind,
        flags: u16,
        sector: u64,
        sectors: u64,
    ) -> bool {
        if self.promise == Promise::Sectors && self.touches(sector, sectors) {
            // Writes in flight together have no order there.
            if !self.settle(client) {
                return false;
            }
        }
        let durable = flags & nbd::FLAG_FUA != 0;
        self.note(Noted::Submit {
            kind,
            sector,
            sectors,
            durable,
        });
        self.writes += 1;
        let serial = self.writes;
        let (offset, length) = (
            sector * SECTOR_BYTES as u64,
            sectors as usize * SECTOR_BYTES,
        );
        let mut bytes = Vec::new();
        let command = match kind {
            Kind::Zero if serial.is_multiple_of(2) => nbd::CMD_TRIM,
            Kind::Zero => nbd::CMD_WRITE_ZEROES,
            Kind::Stamp => {
                bytes.resize(length, 0);
                stamp::fill(&mut bytes, self.tag, sector, serial);
                nbd::CMD_WRITE
            }
        };
        let pending = Pending::Write {
            serial,
            sector,
            sectors,
        };
        self.pending.insert(client.next_cookie(), pending);
        client
            .send(command, flags, offset, length as u32, &bytes)
            .is_ok()
    }

    pub fn send_flush(&mut self, client: &mut Client) -> bool {
        self.note(Noted::FlushBegin);
        let pending = Pending::Flush(self.flushes);
        self.flushes += 1;
        self.pending.insert(client.next_cookie(), pending);
        client.send(nbd::CMD_FLUSH, 0, 0, 0, &[]).is_ok()
    }

    /// Waits for all answers. False when the connection broke before; what was not answered stays
    /// so for ever.
    pub fn settle(&mut self, client: &mut Client) -> bool {
        while !self.pending.is_empty() {
            let Ok(answer) = client.answer() else {
                self.pending.clear();
                return false;
            };
            let pending = self.pending.remove(&answer.cookie);
            let pending = pending.expect("an answer to a request of ours");
            assert_eq!(answer.error, 0, "no request of this load is refused");
            match pending {
                Pending::Write { serial, .. } => self.note(Noted::Acknowledge(serial)),
                Pending::Flush(nth) => self.note(Noted::FlushDone(nth)),
            }
        }
        true
    }

    fn touches(&self, sector: u64, sectors: u64) -> bool {
        self.pending.values().any(|pending| match *pending {
            Pending::Write {
                sector: other,
                sectors: length,
                ..
            } => other < sector + sectors && sector < other + length,
            Pending::Flush(_) => false,
        })
    }

    /// The model as it was when the log had that many lines.
    pub fn model_at(&self, position: usize) -> Model {
        let mut model = Model::new(self.tag, self.sectors, self.promise, self.initial);
        let mut points: Vec<FlushPoint> = Vec::new();
        for (_, noted) in self.notes.iter().filter(|(at, _)| *at <= position) {
            match *noted {
                Noted::Submit {
                    kind,
                    sector,
                    sectors,
                    durable,
                } => {
                    model.submit(kind, sector, sectors, durable);
                }
                Noted::Acknowledge(serial) => model.acknowledge(serial),
                Noted::FlushBegin => points.push(model.flush_begin()),
                Noted::FlushDone(nth) => model.flush_done(points[nth]),
            }
        }
        model
    }

    /// The model with all that was ever noted.
    pub fn model(&self) -> Model {
        self.model_at(usize::MAX)
    }
}
