//! What the next run of the list in [`super::maintain`] has to look at.
//!
//! Always true: a volume that is marked stands in the order once, however often it is marked, and
//! comes out in the order in which it was marked first. Deliberately absent: what is done then; a
//! mark says that something may have changed, never what.

use crate::types::VolumeId;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Volumes of which something has changed, and what the whole shard is to try again.
#[derive(Default)]
pub struct Touched {
    /// One look tells whether there may be something.
    any: bool,
    order: VecDeque<VolumeId>,
    /// By the number of the volume: whether it stands in the order.
    marked: Vec<bool>,
    shard: bool,
    reads: bool,
    requests: bool,
    places: usize,
    /// Volumes whose first waiting request wants another try, in turn.
    tries: VecDeque<VolumeId>,
}

impl Touched {
    /// Something of this volume has changed.
    pub fn volume(&mut self, id: VolumeId) {
        let at = id.0 as usize;
        if self.marked.len() <= at {
            self.marked.resize(at + 1, false);
        }
        if !core::mem::replace(&mut self.marked[at], true) {
            self.order.push_back(id);
        }
        self.any = true;
        assert!(
            self.order.len() <= self.marked.len(),
            "a volume is in the order once"
        );
    }

    /// The steps of the shard have something to do once more.
    pub fn shard(&mut self) {
        self.shard = true;
        self.any = true;
    }

    /// Reads that their origin did not give are to be tried again.
    pub fn held_reads(&mut self) {
        self.reads = true;
        self.any = true;
    }

    /// All volumes with waiting requests are to be tried, not just some.
    pub fn waiting_requests(&mut self) {
        self.requests = true;
        self.any = true;
    }

    /// Memory of the destager, or a place at a storage, was given back so many times: as many of
    /// those in line may try.
    pub fn places(&mut self, count: usize) {
        self.places += count;
        self.any = true;
    }

    /// The first waiting request of a volume, which stands here no other time, wants another try.
    pub fn wants_try(&mut self, id: VolumeId) {
        debug_assert!(!self.tries.contains(&id), "a volume is in the queue once");
        self.tries.push_back(id);
    }

    pub fn next_try(&mut self) -> Option<VolumeId> {
        self.tries.pop_front()
    }

    /// Volumes whose requests want another try.
    pub fn tries(&self) -> usize {
        self.tries.len()
    }

    /// The next volume in order.
    pub fn next(&mut self) -> Option<VolumeId> {
        let id = self.order.pop_front()?;
        let marked = core::mem::replace(&mut self.marked[id.0 as usize], false);
        assert!(marked, "marks and order agree");
        Some(id)
    }

    /// Volumes in the order.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn take_held_reads(&mut self) -> bool {
        core::mem::take(&mut self.reads)
    }

    pub fn take_waiting_requests(&mut self) -> bool {
        core::mem::take(&mut self.requests)
    }

    pub fn take_places(&mut self) -> usize {
        core::mem::take(&mut self.places)
    }

    /// The shard is about to run its steps.
    pub fn begin(&mut self) {
        self.shard = false;
    }

    /// Something was marked since nothing was left.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.any
    }

    /// Whether nothing is left to be looked at.
    pub fn is_over(&mut self) -> bool {
        let again = self.shard || self.reads || self.requests || self.places > 0;
        self.any = again || !self.order.is_empty();
        !self.any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_come_out_once_in_the_order_of_their_first_mark() {
        let mut touched = Touched::default();
        for id in [7, 2, 7, 2, 0] {
            touched.volume(VolumeId(id));
        }
        assert_eq!(touched.next(), Some(VolumeId(7)));
        // One that is marked again while the others wait comes behind them.
        touched.volume(VolumeId(7));
        let rest: Vec<u32> = core::iter::from_fn(|| touched.next().map(|id| id.0)).collect();
        assert_eq!(rest, [2, 0, 7]);
        assert!(touched.is_over() && !touched.is_marked());
    }

    #[test]
    fn what_the_shard_is_to_do_again_is_taken_once() {
        let mut touched = Touched::default();
        touched.held_reads();
        touched.places(2);
        touched.places(1);
        assert!(touched.is_marked() && !touched.is_over());
        assert!(touched.take_held_reads() && !touched.take_held_reads());
        assert_eq!((touched.take_places(), touched.take_places()), (3, 0));
        touched.shard();
        assert!(touched.is_marked() && !touched.is_over());
        touched.begin();
        assert!(touched.is_over() && !touched.is_marked());
    }
}
