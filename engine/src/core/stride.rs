//! The pace of a destage that nothing but age asks for.
//!
//! Such a destage is in no hurry: its requests are spread over a part of the time that its data
//! was allowed to wait, so that shared storage sees a steady trickle and not a burst every time
//! that a volume comes of age. Always true: a destage that an order waits for, or want of room, or
//! anything else than age, is not held up here, also when that comes later than its beginning;
//! whoever is held up has a timer. Deliberately absent: queue depth and turns, which hold for all.

use super::Core;
use crate::outbox::{Cx, Timer};
use crate::types::{Policy, VolumeId};
use crate::volume::Volume;

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
        if let Some(destage) = volume.destage_if_any() {
            destage.pace.timer = None;
        }
        self.touch(id);
    }

    /// Whether more than its age asks for the destage of a volume.
    fn is_hurried(&mut self, id: VolumeId) -> bool {
        self.service.is_parking() || self.health.is_failed() || {
            let volume = self.volume(id);
            waits_for_destage(volume) || self.is_room_scarce(id)
        }
    }
}

fn waits_for_destage(volume: &Volume) -> bool {
    volume.is_commanded()
        || volume.policy != Policy::WriteBack
        || volume.group().is_some()
        || volume.is_switching()
        || volume.is_resizing()
        || volume.is_rebasing()
        || volume.is_detaching()
        || volume.is_suspending()
        || volume.is_committing()
        || volume.has_waiting()
}
