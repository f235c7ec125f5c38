//! Requests of a volume that wait, in order, and guests that wait to be let in.
//!
//! Always true: a request that waits owns nothing and has no serial, but for the first one, of
//! which a part may be staged; its rest waits first until it ends. Deliberately absent: what they
//! wait for.

use super::Volume;
use crate::types::{BufferId, ConnectionId, RequestId, SECTOR_BYTES, Span, Tag, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A request that cannot be taken yet.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub request: RequestId,
    pub kind: WaitKind,
    pub since: Time,
    /// Flow control holds it until then.
    pub due: Time,
}

#[derive(Clone, Copy, Debug)]
pub enum WaitKind {
    Read {
        span: Span,
        buffer: BufferId,
    },
    /// `offset` is how far into the buffer the remaining span starts.
    Write {
        span: Span,
        buffer: BufferId,
        offset: u64,
        fua: bool,
        tag: Tag,
    },
    Zero {
        span: Span,
        fua: bool,
        allocate: bool,
    },
    Flush,
}

impl Waiting {
    /// Of a request that has just come; nothing holds it but what it waits for.
    pub fn new(request: RequestId, kind: WaitKind, now: Time) -> Waiting {
        Waiting {
            request,
            kind,
            since: now,
            due: Time(0),
        }
    }

    /// A write in part waits as a whole again.
    pub fn rewind(&mut self) {
        if let WaitKind::Write { span, offset, .. } = &mut self.kind {
            let sectors = *offset / SECTOR_BYTES;
            assert!(sectors <= span.sector, "a write began where its rest says");
            *span = Span::new(span.sector - sectors, span.sectors + sectors);
            *offset = 0;
        }
    }
}

#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<Waiting>,
    /// In the queue of volumes whose first waiting request wants another try.
    queued: bool,
    /// The first waiting write wants room that only a destage makes; not just a slot of the stage.
    wants_room: bool,
    /// Sectors of the first waiting write whose serial is given and which are not staged yet.
    left_in_part: u64,
    /// Of the newest serial some entries are missing for good, so a recovery drops the others. What
    /// they replace is kept until something newer speaks for the volume.
    given_up: bool,
    /// Guests that wait to be let in, and which of them have only slept.
    arrivals: Vec<(RequestId, bool)>,
}

impl Waiting {
    /// Blocks of the log that it will take; nothing for what is no write.
    pub fn blocks(&self) -> u64 {
        match self.kind {
            WaitKind::Write { span, .. } => span.blocks(),
            WaitKind::Zero { .. } => 1,
            WaitKind::Read { .. } | WaitKind::Flush => 0,
        }
    }
}

impl Volume {
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.queue.waiting.is_empty()
    }

    /// Requests that wait, in order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        self.queue.waiting.iter()
    }

    pub fn first_waiting(&self) -> Option<&Waiting> {
        self.queue.waiting.front()
    }

    pub fn add_waiting(&mut self, waiting: Waiting) {
        self.queue.waiting.push_back(waiting);
    }

    pub fn take_first_waiting(&mut self) -> Option<Waiting> {
        self.queue.waiting.pop_front()
    }

    /// It waits first, as before.
    pub fn put_back(&mut self, waiting: Waiting) {
        self.queue.waiting.push_front(waiting);
    }

    pub fn take_waiting(&mut self) -> VecDeque<Waiting> {
        core::mem::take(&mut self.queue.waiting)
    }

    /// Reads and flushes that wait; writes go on waiting.
    pub fn take_readers(&mut self) -> VecDeque<Waiting> {
        let changes = |waiting: &Waiting| {
            matches!(waiting.kind, WaitKind::Write { .. } | WaitKind::Zero { .. })
        };
        let (writers, readers) = self.take_waiting().into_iter().partition(changes);
        self.queue.waiting = writers;
        readers
    }

    /// What waits of a connection that is gone, but for a write that is staged in part.
    pub fn take_waiting_of(&mut self, connection: ConnectionId) -> VecDeque<Waiting> {
        let kept = usize::from(self.is_in_part()).min(self.queue.waiting.len());
        let rest = self.queue.waiting.split_off(kept);
        let of_it = |it: &Waiting| it.request.connection == connection;
        let (gone, stays): (VecDeque<_>, VecDeque<_>) = rest.into_iter().partition(of_it);
        self.queue.waiting.extend(stays);
        self.queue.wants_room &= self.has_waiting();
        assert!(
            !self.is_in_part() || self.has_waiting(),
            "the rest of a write waits"
        );
        gone
    }

    /// Waiting for room starts now.
    pub fn wait_from(&mut self, now: Time) {
        for waiting in &mut self.queue.waiting {
            waiting.since = now;
        }
    }

    /// All of a write that is staged in part waits again.
    pub fn rewind_first(&mut self) {
        assert!(self.is_in_part(), "it has begun");
        let first = self.queue.waiting.front_mut().expect("its rest waits");
        assert!(
            matches!(first.kind, WaitKind::Write { .. }),
            "only writes are staged in part"
        );
        first.rewind();
    }

    /// Puts it in the queue of volumes. False if it is there.
    pub fn enqueue(&mut self) -> bool {
        !core::mem::replace(&mut self.queue.queued, true)
    }

    pub fn dequeued(&mut self) {
        self.queue.queued = false;
    }

    pub fn wants_room(&self) -> bool {
        self.queue.wants_room
    }

    pub fn want_room(&mut self) {
        self.queue.wants_room = true;
    }

    #[inline]
    pub fn has_room(&mut self) {
        self.queue.wants_room = false;
    }

    /// The first waiting write is staged in part.
    #[inline]
    pub fn is_in_part(&self) -> bool {
        self.queue.left_in_part > 0
    }

    /// Sectors of it that are not staged yet.
    #[inline]
    pub fn left_in_part(&self) -> u64 {
        self.queue.left_in_part
    }

    #[inline]
    pub fn set_left_in_part(&mut self, sectors: u64) {
        self.queue.left_in_part = sectors;
    }

    /// Of the newest serial some entries are missing for good.
    #[cfg(feature = "adversary")]
    pub fn is_given_up(&self) -> bool {
        self.queue.given_up
    }

    pub fn give_up(&mut self) {
        assert!(!self.is_in_part(), "nothing more of it is staged");
        self.queue.given_up = true;
    }

    #[inline]
    pub fn take_given_up(&mut self) -> bool {
        core::mem::take(&mut self.queue.given_up)
    }

    /// A guest waits to be let in; `goes_on`: it has only slept.
    pub fn guest_arrives(&mut self, request: RequestId, goes_on: bool) {
        self.queue.arrivals.push((request, goes_on));
    }

    pub fn has_arrivals(&self) -> bool {
        !self.queue.arrivals.is_empty()
    }

    /// One of those that wait has only slept.
    pub fn has_sleeper(&self) -> bool {
        self.queue.arrivals.iter().any(|(_, goes_on)| *goes_on)
    }

    pub fn take_arrivals(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        let arrivals = core::mem::take(&mut self.queue.arrivals);
        arrivals.into_iter().map(|(request, _)| request)
    }

    /// When the first waiting request of a volume has its turn, if that is not now.
    pub(crate) fn held_until(&self, now: Time) -> Option<Time> {
        let first = self.first_waiting()?;
        // A write that has begun is finished: all others wait for it.
        if self.is_in_part() {
            return None;
        }
        let at = match first.blocks() {
            0 => first.due,
            _ => first.due.max(self.flow.not_before()),
        };
        (at > now).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;

    fn request(connection: u64, number: u32) -> RequestId {
        RequestId {
            connection: ConnectionId(connection as _),
            number,
        }
    }

    fn write(number: u32) -> Waiting {
        let kind = WaitKind::Write {
            span: Span::new(8, 8),
            buffer: BufferId(0),
            offset: 0,
            fua: false,
            tag: Tag::NONE,
        };
        Waiting::new(request(1, number), kind, Time(0))
    }

    #[test]
    fn readers_overtake_writers_and_keep_their_order() {
        let mut volume = volume();
        let flush = |number| Waiting::new(request(1, number), WaitKind::Flush, Time(0));
        for it in [write(1), flush(2), write(3), flush(4)] {
            volume.add_waiting(it);
        }
        let numbers =
            |it: VecDeque<Waiting>| -> Vec<u32> { it.iter().map(|it| it.request.number).collect() };
        assert_eq!(numbers(volume.take_readers()), [2, 4]);
        assert_eq!(numbers(volume.take_waiting()), [1, 3]);
    }

    #[test]
    fn a_connection_that_goes_leaves_the_rest_of_a_write_that_has_begun() {
        let mut volume = volume();
        volume.add_waiting(write(1));
        volume.add_waiting(write(2));
        volume.set_left_in_part(4);
        volume.want_room();
        assert_eq!(volume.take_waiting_of(ConnectionId(2)).len(), 0);
        assert_eq!(volume.take_waiting_of(ConnectionId(1)).len(), 1);
        assert!(volume.has_waiting() && volume.wants_room());
        volume.set_left_in_part(0);
        assert_eq!(volume.take_waiting_of(ConnectionId(1)).len(), 1);
        assert!(!volume.has_waiting() && !volume.wants_room());
    }
}
