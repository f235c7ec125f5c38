//! What a guest has written, and what of it must be there.
//!
//! Always true: a sector holds the number of the write that it is of, and writes get their serials
//! in the order in which the guest asks for them; so a disk is right if it is as it was after some
//! number of writes that is not smaller than what was promised.

use std::collections::BTreeSet;

/// A write, or zeroes.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub sector: u64,
    pub sectors: u64,
    /// 0 = zeroes.
    pub stamp: u64,
}

impl Change {
    fn lay_on(&self, state: &mut [u64]) {
        let (from, sectors) = (self.sector as usize, self.sectors as usize);
        state[from..from + sectors].fill(self.stamp);
    }
}

/// The number that a sector is full of; none of one that is torn.
pub fn stamp_of(sector: &[u8]) -> Option<u64> {
    let (first, _) = sector.split_first_chunk::<8>()?;
    let whole = sector.chunks(8).all(|word| word == first);
    whole.then(|| u64::from_le_bytes(*first))
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
    /// Of a disk of so many sectors, all zero.
    pub fn new(sectors: u64) -> Model {
        Model::on(vec![0; sectors as usize])
    }

    fn on(base: Vec<u64>) -> Model {
        Model {
            base,
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

    pub fn change(&self, number: usize) -> Change {
        self.changes[number]
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

    /// What each sector holds if nothing is lost.
    pub fn newest(&self) -> Vec<u64> {
        let mut state = self.base.clone();
        self.changes.iter().for_each(|it| it.lay_on(&mut state));
        state
    }

    /// All of it was promised, and none of it can be lost: goes on from there.
    pub fn settle(&mut self) -> Result<(), String> {
        if self.promised < self.changes.len() {
            let (promised, all) = (self.promised, self.changes.len());
            return Err(format!("{promised} of {all} writes were promised"));
        }
        self.go_on_from(self.newest());
        Ok(())
    }

    fn go_on_from(&mut self, base: Vec<u64>) {
        *self = Model {
            next_stamp: self.next_stamp,
            ..Model::on(base)
        };
    }

    /// Judges a disk of which at least so many changes must be there, and goes on from it.
    pub fn judge(&mut self, bytes: &[u8], least: usize) -> Result<usize, String> {
        let mut found = Vec::new();
        for (at, sector) in bytes.chunks(512).enumerate() {
            let stamp = stamp_of(sector);
            found.push(stamp.ok_or_else(|| format!("sector {at} is torn"))?);
        }
        let mut state = self.base.clone();
        let differs = |state: &[u64]| state.iter().zip(&found).position(|(a, b)| a != b);
        let mut first = None;
        for count in 0..=self.changes.len() {
            let different = (count >= least).then(|| differs(&state)).flatten();
            if count >= least && different.is_none() {
                let promised = self.promised.min(count);
                self.go_on_from(state);
                return Ok(count - promised);
            }
            if count == least {
                first = different.map(|at| (at, state[at], found[at]));
            }
            if let Some(change) = self.changes.get(count) {
                change.lay_on(&mut state);
            }
        }
        Err(format!(
            "no number of writes from {least} to {} leaves this disk; after {least}, sector, \
             wanted and found are {first:?}",
            self.changes.len()
        ))
    }
}
