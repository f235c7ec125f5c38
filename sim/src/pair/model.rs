//! What a guest has written, and what of it must be there.
//!
//! Always true: a sector holds the number of the write that it is of, and writes get their serials
//! in the order in which the guest asks for them; so a disk is right if it is as it was after some
//! number of writes that is not smaller than what was promised.

use std::collections::BTreeSet;

pub const SECTORS: u64 = 1024;

/// A write, or zeroes.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub sector: u64,
    pub sectors: u64,
    /// 0 = zeroes.
    pub stamp: u64,
}

#[derive(Clone, Debug)]
pub struct Model {
    base: Vec<u64>,
    changes: Vec<Change>,
    next_stamp: u64,
    acked: BTreeSet<usize>,
    /// Changes from the first on that a flush has covered.
    promised: usize,
}

impl Model {
    pub fn new() -> Model {
        Model {
            base: vec![0; SECTORS as usize],
            changes: Vec::new(),
            next_stamp: 1,
            acked: BTreeSet::new(),
            promised: 0,
        }
    }

    /// A write that a guest asks for. Its number.
    pub fn write(&mut self, sector: u64, sectors: u64, zero: bool) -> (usize, Change) {
        let stamp = if zero { 0 } else { self.next_stamp };
        self.next_stamp += 1;
        let change = Change {
            sector,
            sectors,
            stamp,
        };
        self.changes.push(change);
        (self.changes.len() - 1, change)
    }

    pub fn ack(&mut self, change: usize) {
        self.acked.insert(change);
    }

    /// So many changes are covered by a flush that is asked for now.
    pub fn acked(&self) -> usize {
        self.acked.last().map_or(0, |last| last + 1)
    }

    pub fn promise(&mut self, changes: usize) {
        self.promised = self.promised.max(changes);
    }

    pub fn promised(&self) -> usize {
        self.promised
    }

    /// Judges a disk of which at least so many changes must be there, and goes on from it.
    pub fn judge(&mut self, bytes: &[u8], least: usize) -> Result<usize, String> {
        let mut found = Vec::new();
        for (at, sector) in bytes.chunks(512).enumerate() {
            let words: BTreeSet<&[u8]> = sector.chunks(8).collect();
            let word = words.first().filter(|_| words.len() == 1);
            let word = word.ok_or_else(|| format!("sector {at} is torn"))?;
            found.push(u64::from_le_bytes((*word).try_into().expect("eight bytes")));
        }
        let mut state = self.base.clone();
        let differs = |state: &[u64]| state.iter().zip(&found).position(|(a, b)| a != b);
        let mut first = None;
        for count in 0..=self.changes.len() {
            let different = differs(&state);
            if count >= least && different.is_none() {
                let promised = self.promised.min(count);
                *self = Model {
                    base: state,
                    next_stamp: self.next_stamp,
                    ..Model::new()
                };
                return Ok(count - promised);
            }
            if count == least {
                first = different.map(|at| (at, state[at], found[at]));
            }
            if let Some(change) = self.changes.get(count) {
                let (from, sectors) = (change.sector as usize, change.sectors as usize);
                state[from..from + sectors].fill(change.stamp);
            }
        }
        Err(format!(
            "no number of writes from {least} to {} leaves this disk; after {least}, sector, \
             wanted and found are {first:?}",
            self.changes.len()
        ))
    }
}
