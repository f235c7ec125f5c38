//! The numbers of a volume's writes: which are given, which are at its image, and who waits for
//! that.
//!
//! Always true: serials are given in order and never twice; what is destaged was given; a
//! generation only grows. Deliberately absent: the writes themselves ([`super::Epoch`]).

use super::Volume;
use crate::adversary::{Bug, has};
use crate::format::checkpoint::VolumeRecord;
use crate::types::{Generation, RequestId, Serial};
use alloc::vec::Vec;

pub struct Serials {
    generation: Generation,
    /// What the log has of older ones is void.
    base_generation: Generation,
    /// Serials before it are not asked for by a recovery.
    first: Serial,
    next: Serial,
    destaged: Serial,
    /// See [`VolumeRecord::merged_upto`].
    merged_upto: Serial,
    /// Destage at least to here, whatever the triggers say.
    wanted: Serial,
    /// Who waits until this serial is at the image.
    orders: Vec<(RequestId, Serial)>,
}

impl Serials {
    pub(super) fn of(record: &VolumeRecord) -> Serials {
        Serials {
            generation: record.generation,
            base_generation: record.base_generation,
            first: record.first_serial,
            next: record.serial_next,
            destaged: record.destaged,
            merged_upto: record.merged_upto,
            wanted: Serial(0),
            orders: Vec::new(),
        }
    }
}

impl Volume {
    pub fn generation(&self) -> Generation {
        self.serials.generation
    }

    pub fn base_generation(&self) -> Generation {
        self.serials.base_generation
    }

    /// Serials before it are not asked for by a recovery.
    pub fn first_serial(&self) -> Serial {
        self.serials.first
    }

    #[inline]
    pub fn serial_next(&self) -> Serial {
        self.serials.next
    }

    /// The newest serial that was given.
    pub fn acked(&self) -> Serial {
        Serial(self.serials.next.0 - 1)
    }

    /// The image has all writes up to here.
    pub fn destaged(&self) -> Serial {
        self.serials.destaged
    }

    pub fn merged_upto(&self) -> Serial {
        self.serials.merged_upto
    }

    /// What recovery found up to here, or met damage, is one epoch.
    pub fn merge_upto(&mut self, upto: Serial) {
        self.serials.merged_upto = upto;
    }

    pub fn set_generation(&mut self, generation: Generation) {
        self.serials.generation = generation;
    }

    /// What the log has of older generations counts no more.
    pub fn void_older(&mut self) {
        self.serials.base_generation = self.serials.generation;
    }

    /// Nothing of what the log has counts, and no write before this moment is asked for.
    pub fn begin_anew(&mut self, generation: Generation) {
        assert!(self.generation() < generation, "a generation is given once");
        self.set_generation(generation);
        self.void_older();
        self.serials.first = self.serials.next;
    }

    /// Another image: nothing is known to be there.
    pub fn forget_destaged(&mut self) {
        self.serials.destaged = Serial(0);
    }

    /// Goes on behind what was seen, accepted or not.
    pub fn go_on_behind(&mut self, seen: Serial) {
        let seen = seen.max(self.serials.destaged);
        self.skip_to(seen);
        self.serials.first = self.serials.next;
    }

    /// Serials up to here were given, by this host or another.
    pub fn skip_to(&mut self, given: Serial) {
        self.serials.next = self.serials.next.max(Serial(given.0 + 1));
    }

    /// The serial of a write that is staged is given.
    #[inline]
    pub fn give_serial(&mut self) -> Serial {
        let given = self.serials.next;
        self.serials.next = Serial(given.0 + 1);
        assert!(given > self.serials.destaged, "what is destaged was given");
        given
    }

    /// The image has all writes up to here.
    pub fn reach(&mut self, upto: Serial) {
        self.serials.destaged = self.serials.destaged.max(upto);
    }

    /// The image has all that was ever written.
    pub fn has_reached_all(&self) -> bool {
        self.serials.destaged.0 + 1 == self.serials.next.0
    }

    /// Destage at least to here, whatever the triggers say. True if that is more than before.
    pub fn want(&mut self, upto: Serial) -> bool {
        let more = upto > self.serials.wanted;
        self.serials.wanted = self.serials.wanted.max(upto);
        more
    }

    /// Orders want more than the image has.
    pub fn is_commanded(&self) -> bool {
        self.serials.wanted > self.serials.destaged
    }

    /// A request is replied to when the image has all writes up to here.
    pub fn order_destage(&mut self, request: RequestId, upto: Serial) {
        assert!(
            upto <= self.serials.next,
            "what was given, or is being staged, is waited for"
        );
        self.want(upto);
        self.serials.orders.push((request, upto));
    }

    /// All who wait, to be answered at once.
    pub fn take_destage_orders(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        let orders = core::mem::take(&mut self.serials.orders);
        orders.into_iter().map(|(request, _)| request)
    }

    /// Those who waited for what the image has by now; all of them if nothing is dirty.
    pub fn take_reached_orders(&mut self) -> impl Iterator<Item = RequestId> + use<> {
        let (clean, destaged) = (!self.is_dirty(), self.destaged());
        let orders = core::mem::take(&mut self.serials.orders);
        let (reached, left): (Vec<_>, Vec<_>) = orders
            .into_iter()
            .partition(|(_, upto)| *upto <= destaged || clean);
        self.serials.orders = left;
        reached.into_iter().map(|(request, _)| request)
    }

    pub(super) fn check_serials(&self) {
        let Serials {
            first,
            next,
            destaged,
            ..
        } = self.serials;
        assert!(
            destaged < next && first <= next || has(Bug::ReuseSerials),
            "the next serial is above all that was given"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::volume;
    use super::*;
    use crate::types::ConnectionId;

    #[test]
    fn orders_end_when_the_image_has_their_writes() {
        let mut volume = volume();
        let request = |number| RequestId {
            connection: ConnectionId(1),
            number,
        };
        let given: Vec<Serial> = (0..3).map(|_| volume.give_serial()).collect();
        assert_eq!(given, [Serial(1), Serial(2), Serial(3)]);
        volume.open_epoch(crate::types::Time(1), Serial(3));
        volume.order_destage(request(1), Serial(1));
        volume.order_destage(request(3), Serial(3));
        assert!(volume.is_commanded() && !volume.want(Serial(2)));
        volume.reach(Serial(1));
        let ended: Vec<_> = volume.take_reached_orders().collect();
        assert_eq!(ended, [request(1)]);
        volume.reach(Serial(3));
        assert!(volume.has_reached_all() && !volume.is_commanded());
        assert_eq!(volume.take_reached_orders().count(), 1);
    }

    #[test]
    fn what_was_seen_is_not_given_again() {
        let mut volume = volume();
        volume.reach(Serial(0));
        volume.go_on_behind(Serial(7));
        assert_eq!(volume.first_serial(), Serial(8));
        assert_eq!(volume.give_serial(), Serial(8));
        volume.begin_anew(Generation(9));
        assert_eq!(
            (volume.base_generation(), volume.first_serial()),
            (Generation(9), Serial(9))
        );
    }
}
