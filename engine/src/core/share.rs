//! What a volume has of the log and of the map of dirty extents.
//!
//! Half of both is divided among the volumes that write, and nobody can take another's part: each
//! has what it reserved; of the rest one half goes evenly, one half by weight. The other half goes
//! to who comes, and when it is short in turn, by bytes and weight. So one that cannot destage
//! stops itself only, and one with little weight is never without a share.
//!
//! Always true: all parts together are at most half of a budget (rule 5.2.8); a write within its
//! volume's part waits for nobody. That reserves fit is for the host to check; too many shrink.
//! Deliberately absent: the volume's own limit, and room in segments.

use super::Core;
use crate::event::Share;
use crate::types::{BLOCK_BYTES, Time, VolumeId};
use crate::volume::Volume;

/// Room that the heaviest of those who wait gets in one round.
pub const QUANTUM_BYTES: u64 = 1 << 20;
/// Room that nobody takes for so long is for who comes first.
pub const PATIENCE_NS: u64 = 50_000_000;

/// Of all volumes that may hold dirty data.
#[derive(Clone, Copy, Default)]
pub struct Reserved {
    writers: u64,
    weights: u64,
    blocks: u64,
}

/// Something that all volumes take from.
#[derive(Clone, Copy)]
pub struct Budget {
    pub capacity: u64,
    pub used: u64,
}

/// Where there is room for a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    None,
    /// Only in what is nobody's own.
    Common,
    Own,
}

fn min_blocks(share: Share) -> u64 {
    share.min_bytes.div_ceil(BLOCK_BYTES)
}

impl Core {
    pub(super) fn count_writers(&mut self) {
        let mut reserved = Reserved::default();
        for volume in self.volumes.iter().flatten().filter(|v| v.takes_log()) {
            reserved.writers += 1;
            reserved.weights += u64::from(volume.tuning.share.weight);
            reserved.blocks += min_blocks(volume.tuning.share);
        }
        self.reserved = reserved;
    }

    /// The part of a budget that nobody can take from a volume that writes.
    fn part(&self, volume: &Volume, capacity: u64) -> u64 {
        let log_half = (self.log.gauge().capacity / 2).max(1);
        let Reserved {
            writers,
            weights,
            blocks,
        } = self.reserved;
        // A volume that was attached with a reserve that does not fit any more has less.
        let min = min_blocks(volume.tuning.share) * log_half / blocks.max(log_half);
        let rest = log_half.saturating_sub(blocks);
        let weight = u64::from(volume.tuning.share.weight);
        let even = rest / 2 / writers.max(1);
        let weighted = rest / 2 * weight / weights.max(weight);
        let of_log = u128::from(min + even + weighted);
        (of_log * u128::from(capacity / 2) / u128::from(log_half)) as u64
    }

    /// Blocks of the log that a volume can count on.
    pub(super) fn share(&self, id: VolumeId) -> u64 {
        let volume = self.volumes[id.0 as usize].as_ref();
        let volume = volume.expect("checked by the caller");
        self.part(volume, self.log.gauge().capacity)
    }

    /// What a volume may have of a budget in all: its part, and what is left when the others have
    /// theirs.
    pub(super) fn most(&self, id: VolumeId, budget: Budget, of: fn(&Volume) -> u64) -> u64 {
        let volume = self.volumes[id.0 as usize].as_ref();
        let volume = volume.expect("checked by the caller");
        let part = self.part(volume, budget.capacity);
        let kept = self.kept_for_others(id, budget.capacity, of);
        part.max((of(volume) + budget.capacity).saturating_sub(budget.used + kept))
    }

    /// What the parts of all volumes but one still have to give.
    fn kept_for_others(&self, id: VolumeId, capacity: u64, of: fn(&Volume) -> u64) -> u64 {
        let others = self.volumes.iter().flatten().filter(|v| v.id != id);
        let writers = others.filter(|v| v.takes_log());
        let left = writers.map(|volume| self.part(volume, capacity).saturating_sub(of(volume)));
        left.sum()
    }

    /// Whether a volume may take `need` more of a budget.
    pub(super) fn room_for(
        &self,
        id: VolumeId,
        budget: Budget,
        need: u64,
        of: fn(&Volume) -> u64,
    ) -> Room {
        // All parts together are half of the budget, so below it none is in danger.
        if budget.used + need <= budget.capacity / 2 {
            return Room::Own;
        }
        let volume = self.volumes[id.0 as usize].as_ref();
        let volume = volume.expect("checked by the caller");
        let (part, mine) = (self.part(volume, budget.capacity), of(volume));
        if mine + need <= part {
            return Room::Own;
        }
        let kept = self.kept_for_others(id, budget.capacity, of);
        if budget.used + need + kept <= budget.capacity {
            Room::Common
        } else {
            Room::None
        }
    }

    /// Whether a volume may take of the room that is nobody's own: at once while nobody waits for
    /// it, else in turn.
    pub(super) fn may_take_common(&mut self, now: Time, id: VolumeId, room: Room) -> bool {
        if room == Room::Own || (room == Room::Common && !self.admission.is_contended(now)) {
            return true;
        }
        let weight = self.volume(id).tuning.share.weight;
        if !self.admission.is_at_work(now, id) {
            // What it did not take in time is not its own any more.
            self.admission.rest(id);
        }
        self.admission.join(now, id, 0, weight);
        room == Room::Common && self.admission.may(now, id)
    }

    /// A volume is at work in the common room: its turn is used.
    pub(super) fn spend_admission(&mut self, now: Time, id: VolumeId, blocks: u64) {
        if self.admission.is_at_work(now, id) {
            self.admission.spend(now, id, blocks * BLOCK_BYTES);
        }
    }
}
