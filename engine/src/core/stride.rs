//! The pace of a destage that nothing but age asks for.
//!
//! Such a destage is in no hurry: its requests are spread over a part of the time that its data
//! was allowed to wait, so that shared storage sees a steady trickle and not a burst every time
//! that a volume comes of age. Always true: a destage that an order waits for, or want of room, or
//! anything else than age, is not held up here, also when that comes later than its beginning;
//! whoever is held up has a timer. Deliberately absent: queue depth and turns, which hold for all.

use super::Core;
use crate::outbox::{Cx, Timer};
use crate::types::{Policy, Time, VolumeId};
use crate::volume::Volume;

/// Journal and origin are each written over this part of the age limit at most.
const PART_OF_AGE: u64 = 8;
/// A guest may have to wait for a destage under way, so it is not drawn out for ever.
const PHASE_MS_MAX: u64 = 30_000;
/// So many requests that were held up for want of memory or turns may follow at once.
const CATCH_UP: u64 = 8;

/// When the next request of a destage may start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    gap_ns: u64,
    next: Time,
    timer: Option<Time>,
}

impl Pace {
    /// Of an epoch of so many extents, each of which has its part of the time: a request takes as
    /// much as the extents that it carries. The more epochs there are, it and those behind it, the
    /// less time each has.
    pub fn new(age_ms: Option<u64>, extents: u64, epochs: u64) -> Pace {
        let phase_ms = (age_ms.unwrap_or(0) / PART_OF_AGE).min(PHASE_MS_MAX);
        let phase_ms = phase_ms / epochs.max(1);
        Pace {
            gap_ns: phase_ms * 1_000_000 / extents.max(1),
            next: Time(0),
            timer: None,
        }
    }

    /// A request with so many extents starts.
    pub fn spend(&mut self, now: Time, extents: u64) {
        assert!(extents > 0, "a request carries something");
        let earliest = Time(now.0.saturating_sub(self.gap_ns * CATCH_UP));
        self.next = Time(self.next.max(earliest).0 + self.gap_ns * extents);
    }
}

impl Core {
    /// Whether the next request of a destage has to wait; then a timer is set for it.
    pub(super) fn is_paced(&mut self, cx: &mut Cx<'_>, id: VolumeId) -> bool {
        let pace = self.phase(id).pace;
        if pace.next <= cx.now || self.is_hurried(id) {
            return false;
        }
        if pace.timer.is_none_or(|set| set > pace.next) {
            self.phase(id).pace.timer = Some(pace.next);
            cx.out.timer(pace.next, Timer::Pace(id));
        }
        // Nobody waits for it meanwhile.
        self.turns.rest(id);
        true
    }

    pub(super) fn pace_due(&mut self, id: VolumeId) {
        let Some(volume) = self.find(id) else { return };
        if let Some(destage) = volume.destage.as_mut() {
            destage.pace.timer = None;
        }
        self.touch(id);
    }

    /// Whether more than its age asks for the destage of a volume.
    fn is_hurried(&mut self, id: VolumeId) -> bool {
        self.parking.is_some() || self.health.is_failed() || {
            let volume = self.volume(id);
            waits_for_destage(volume) || self.is_room_scarce(id)
        }
    }
}

fn waits_for_destage(volume: &Volume) -> bool {
    volume.destage_upto > volume.destaged
        || volume.policy != Policy::WriteBack
        || volume.group.is_some()
        || volume.switch.is_some()
        || volume.resize.is_some()
        || volume.image.rebase.is_some()
        || volume.detaching.is_some()
        || volume.suspending.is_some()
        || volume.committing.is_some()
        || !volume.waiting.is_empty()
}
