//! Guests that have taken as much as their volume's limit allows, and wait.
//!
//! Always true: who waits is told when the next request may be taken, or the limit is another one;
//! nothing of theirs is under way for it. Deliberately absent: how much that is ([`crate::limit`]).

use super::{Alarm, Decide, Shard, guest, timer};
use crate::limit::{GuestLimit, Meter, Waits};
use engine::types::{Time, VolumeId};

/// The limit of a volume, and who waits for it.
#[derive(Default)]
pub(super) struct Throttle {
    meter: Meter,
    /// Tells those who wait; and since when the first of them does.
    alarm: Option<(timer::Key, Time)>,
    waits: Waits,
    /// Slots of connections and of guests, each once.
    waiting: Vec<u32>,
}

impl Throttle {
    /// A request was taken.
    pub fn charge(&mut self, now: Time, bytes: u64) {
        self.meter.charge(now, bytes);
    }

    pub fn waits(&self) -> Waits {
        self.waits
    }

    pub fn of(limit: GuestLimit) -> Throttle {
        Throttle {
            meter: Meter::of(limit),
            ..Throttle::default()
        }
    }
}

impl<E: Decide> Shard<E> {
    /// Whether a connection may take one request of its client. If not, it is driven later.
    pub(super) fn may_take(&mut self, volume: VolumeId, slot: u32) -> bool {
        self.allowance(volume, slot, 1) > 0
    }

    /// How many requests may be taken, at most `most`. None: who asks is served later.
    pub(super) fn allowance(&mut self, id: VolumeId, waiter: u32, most: usize) -> usize {
        let now = self.now;
        let Some(volume) = self.volumes.get_mut(&id) else {
            return most;
        };
        let throttle = &mut volume.throttle;
        let allowed = throttle.meter.allows(now, most);
        if allowed == 0 {
            if !throttle.waiting.contains(&waiter) {
                throttle.waiting.push(waiter);
            }
            if throttle.alarm.is_none() {
                let alarm = self.timers.set(throttle.meter.next(), Alarm::Limit(id));
                throttle.alarm = Some((alarm, now));
            }
        }
        allowed
    }

    pub(super) fn set_limit(&mut self, id: VolumeId, limit: GuestLimit) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            volume.throttle.meter.set(limit);
            self.end_limit(id);
        }
    }

    /// Those who wait look again. Some may have left, and others may have their places.
    pub(super) fn end_limit(&mut self, id: VolumeId) {
        let now = self.now;
        let Some(volume) = self.volumes.get_mut(&id) else {
            return;
        };
        if let Some((alarm, since)) = volume.throttle.alarm.take() {
            self.timers.cancel(alarm);
            let waits = &mut volume.throttle.waits;
            (waits.count, waits.nanos) = (waits.count + 1, waits.nanos + now.since(since));
        }
        for waiter in std::mem::take(&mut volume.throttle.waiting) {
            match waiter & guest::MARK {
                0 => self.to_drive.push_back(waiter),
                _ => self.with_guest(waiter & !guest::MARK, |shard, guest| {
                    shard.serve_soon(waiter & !guest::MARK, guest);
                }),
            }
        }
    }
}
