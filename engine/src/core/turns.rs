//! When a destage may write its storage: in turn with the others, and beside the reads of guests.
//!
//! Always true: what was sent to a storage counts in its window until it has ended; a volume that
//! may not write stands in the queue once. Deliberately absent: memory, and pace, which are asked
//! besides.

use crate::round_robin::{PATIENCE_NS, QUANTUM_BYTES, RoundRobin};
use crate::types::{Time, VolumeId};
use crate::window::Windows;

pub struct Turns {
    /// Whose destage may write its origin, and who waits for that or for memory.
    order: RoundRobin,
    /// What the destages on one storage may have there beside the reads of guests.
    windows: Windows,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns {
            order: RoundRobin::new(QUANTUM_BYTES, PATIENCE_NS),
            windows: Windows::default(),
        }
    }
}

impl Turns {
    /// Whether a volume may send its next request to its storage; if not, it stands in the queue.
    pub fn ask(&mut self, now: Time, id: VolumeId, storage: u64, weight: u32) -> bool {
        self.order.join(now, id, storage, weight);
        let may = self.order.may(now, id);
        if !may {
            self.order.enqueue(id);
        }
        may
    }

    /// A request of so many bytes goes to storage, or to memory that others wait for.
    pub fn spend(&mut self, now: Time, id: VolumeId, bytes: u64) {
        self.order.spend(now, id, bytes);
    }

    /// Something of its destage has ended.
    pub fn moved(&mut self, now: Time, id: VolumeId) {
        self.order.moved(now, id);
    }

    /// Its destage sends nothing for a while: others do not wait for it.
    pub fn rest(&mut self, id: VolumeId) {
        self.order.rest(id);
    }

    /// The same of one that has a turn, or waits for one.
    pub fn rest_if_busy(&mut self, id: VolumeId) {
        if self.order.is_busy(id) {
            self.order.rest(id);
        }
        assert!(!self.order.is_busy(id), "it has given its turn back");
    }

    pub fn forget(&mut self, id: VolumeId) {
        self.order.forget(id);
    }

    /// It waits for memory, or for its window.
    pub fn enqueue(&mut self, id: VolumeId) {
        self.order.enqueue(id);
    }

    pub fn dequeue(&mut self) -> Option<VolumeId> {
        self.order.dequeue()
    }

    pub fn queue_len(&self) -> usize {
        self.order.queue_len()
    }

    /// A round has begun, or a volume has left it: all in the queue may ask.
    pub fn take_opened(&mut self) -> bool {
        self.order.take_opened()
    }

    /// Whether the window of a storage is open for a volume whose log is so full.
    pub fn is_open(&mut self, now: Time, storage: u64, fill: u64) -> bool {
        self.windows.is_open(now, storage, fill)
    }

    /// So many requests of a destage are at its storage.
    pub fn sent(&mut self, now: Time, id: VolumeId, storage: u64, width: u32) {
        assert!(width > 0, "something was sent");
        self.windows.sent(now, id, storage, width);
    }

    pub fn done(&mut self, now: Time, id: VolumeId, width: u32) {
        assert!(width > 0, "something has ended");
        self.windows.done(now, id, width);
    }

    /// A guest reads a storage.
    pub fn read_sent(&mut self, now: Time, storage: u64) {
        self.windows.read_sent(now, storage);
    }

    pub fn read_done(&mut self, now: Time, storage: u64, latency_ns: u64) {
        self.windows.read_done(now, storage, latency_ns);
    }

    /// Windows of storages that nothing was sent to for long are forgotten.
    pub fn look(&mut self, now: Time) {
        self.windows.look(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_may_not_write_stands_in_the_queue() {
        let mut turns = Turns::default();
        let (one, other) = (VolumeId(1), VolumeId(2));
        assert!(turns.ask(Time(0), one, 7, 100));
        turns.spend(Time(0), one, 1 << 40);
        assert!(turns.ask(Time(0), other, 7, 100));
        assert!(!turns.ask(Time(0), one, 7, 100));
        assert_eq!((turns.queue_len(), turns.dequeue()), (1, Some(one)));
        turns.rest_if_busy(one);
        turns.rest_if_busy(one);
        turns.forget(one);
    }
}
