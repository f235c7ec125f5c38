//! Reads under way, the fills that they wait for, and what of both is tried again later.
//!
//! Always true: a read, or a fill, has one number from its beginning to its end; what is held is
//! under way; of each block that a guest reads the sampler is told once. Deliberately absent: where
//! a part of a read comes from ([`super::read`], [`super::fill`]).

use super::fill::Fill;
use super::read_op::ReadOp;
use crate::ram::Layer;
use crate::sample::Sampler;
use crate::slab::Slab;
use crate::types::{Span, VolumeId};
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Default)]
pub struct Reading {
    reads: Slab<ReadOp>,
    fills: Slab<Fill>,
    /// Fills whose origin did not answer; due again at housekeeping.
    held_fills: Vec<u32>,
    /// The same for reads past the tier, with the part that is missing.
    held_reads: Vec<(u32, Span)>,
    pub sampler: Sampler,
}

impl Reading {
    pub fn new(hash_seed: u64) -> Reading {
        Reading {
            sampler: Sampler::new(hash_seed),
            ..Reading::default()
        }
    }

    /// A read takes these blocks of this layer, from wherever they come.
    #[inline]
    pub fn sample(&mut self, read: u32, layer: Layer, blocks: Range<u64>) {
        let op = self.reads.get(read);
        if op.is_guests() {
            self.sampler.read(op.volume, layer, blocks);
        }
    }

    pub fn begin_read(&mut self, op: ReadOp) -> u32 {
        assert!(op.waits > 0, "it waits for itself at least");
        self.reads.insert(op)
    }

    #[inline]
    pub fn read(&mut self, read: u32) -> &mut ReadOp {
        self.reads.get(read)
    }

    pub fn end_read(&mut self, read: u32) -> ReadOp {
        let op = self.reads.take(read);
        assert!(op.waits == 0, "nothing of it is under way");
        op
    }

    pub fn begin_fill(&mut self, fill: Fill) -> u32 {
        self.fills.insert(fill)
    }

    #[inline]
    pub fn fill(&mut self, fill: u32) -> &mut Fill {
        self.fills.get(fill)
    }

    pub fn end_fill(&mut self, fill: u32) -> Fill {
        self.fills.take(fill)
    }

    pub fn fills(&mut self) -> impl Iterator<Item = &mut Fill> {
        self.fills.iter_mut()
    }

    #[cfg(test)]
    pub fn fills_len(&self) -> usize {
        self.fills.len()
    }

    /// A fill from the origin of this volume is under way.
    pub fn is_filling(&self, origin: VolumeId) -> bool {
        let mut fills = self.fills.iter();
        fills.any(|fill| fill.origin() == Some(origin))
    }

    /// A fill is tried again later. False if that was so before.
    pub fn hold_fill(&mut self, fill: u32) -> bool {
        self.held_fills.push(fill);
        !core::mem::replace(&mut self.fills.get(fill).held, true)
    }

    /// A part of a read is tried again later: of which volume it is, and whether it is the first
    /// part.
    pub fn hold_read(&mut self, read: u32, part: Span) -> (VolumeId, bool) {
        assert!(part.sectors > 0, "a part has something");
        self.held_reads.push((read, part));
        let op = self.reads.get(read);
        assert!(op.waits > 0, "a part of it is under way");
        (op.volume, !core::mem::replace(&mut op.held, true))
    }

    /// They are tried again now, or held again.
    pub fn take_held_fills(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.held_fills)
    }

    pub fn take_held_reads(&mut self) -> Vec<(u32, Span)> {
        core::mem::take(&mut self.held_reads)
    }

    /// Its image is not to be asked yet.
    pub fn hold_fill_again(&mut self, fill: u32) {
        assert!(self.fills.get(fill).held, "it was held before");
        self.held_fills.push(fill);
    }

    pub fn hold_read_again(&mut self, read: u32, part: Span) {
        assert!(self.reads.get(read).held, "it was held before");
        self.held_reads.push((read, part));
    }

    pub fn has_held(&self) -> bool {
        !self.held_fills.is_empty() || !self.held_reads.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_op::Goal;
    use super::*;
    use crate::types::{BufferId, ConnectionId, RequestId, Time};

    #[test]
    fn a_read_is_held_once_for_all_of_its_parts() {
        let mut reading = Reading::default();
        let goal = Goal::Guest {
            request: RequestId {
                connection: ConnectionId(1),
                number: 1,
            },
            buffer: BufferId(0),
        };
        let op = ReadOp::new(VolumeId(3), goal, Span::new(0, 16), Time(0));
        let read = reading.begin_read(op);
        assert_eq!(
            reading.hold_read(read, Span::new(0, 8)),
            (VolumeId(3), true)
        );
        assert_eq!(
            reading.hold_read(read, Span::new(8, 8)),
            (VolumeId(3), false)
        );
        assert!(reading.has_held());
        assert_eq!(reading.take_held_reads().len(), 2);
        assert!(!reading.has_held());
        reading.read(read).waits = 0;
        assert!(reading.end_read(read).held);
    }
}
