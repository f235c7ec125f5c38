//! Sealed epochs that need not be apart become one.
//!
//! ```text
//! apart ─▶ named: the checkpoint calls them one ─▶ moving, some extents in each event ─▶ one epoch
//!            └─ a destage begins, or the device fails ─▶ apart
//! ```
//! A peer that is behind, or comes back, ends the open epoch of its owner, and begins one in its
//! own log. What is written again and again would lie in each of them. So the oldest ones become
//! one, as if all of it had been written in one epoch: what newer ones replace takes no room.
//!
//! Always true: nothing moves before a checkpoint says up to where a recovery has one epoch,
//! because what was replaced may be gone by then; while extents move, the epochs count as one for
//! a destage, a peer and what the origin has, and these wait until it is one; a read finds the
//! newest first, wherever it is. Deliberately absent: groups, whose cuts end at one moment on all
//! volumes; epochs that are together more than one journal takes; damage, where all moves at once
//! ([`super::merge_damage`]).

use super::Core;
use super::checkpoint::Waiter;
use crate::adversary::{Mark, mark};
use crate::map::Change;
use crate::types::{Policy, SECTOR_BYTES, VolumeId};
use crate::volume::{EPOCH_BYTES_MAX, Epoch, Volume};

/// With so many it is worth a checkpoint.
const EPOCHS_MIN: usize = 3;
/// Extents that move in one event: some ten microseconds.
const EXTENTS_PER_EVENT: usize = 64;
/// And with each look of housekeeping, where there are few events.
pub(super) const EXTENTS_PER_LOOK: usize = 4096;

impl Volume {
    /// How many of its oldest epochs can become one; none if they are to stay apart now.
    fn joinable(&self) -> usize {
        let known = self.is_replica() && !self.is_frozen();
        let served = self.is_attached() && self.serves();
        let moves = self.is_destaging() || self.is_switching() || self.is_resizing();
        let moves = moves || self.is_rebasing() || self.is_quiescing() || self.is_committing();
        let leaves = self.is_detaching() || self.is_suspending() || self.is_settling();
        let logs = self.policy == Policy::WriteBack && self.is_with_log();
        let fits = logs && (known || served) && !moves && !leaves;
        if !fits || self.group().is_some() || self.is_commanded() || self.has_damaged_log() {
            return 0;
        }
        // What is being sent stays as it is.
        let sent = self.replication.sent_to_all();
        let sectors_max = EPOCH_BYTES_MAX / SECTOR_BYTES;
        let of_volume = self.size_bytes() / SECTOR_BYTES;
        let mut sectors = 0;
        let fits = |epoch: &&Epoch| {
            sectors += epoch.map.sectors();
            let small = sectors.min(of_volume) <= sectors_max;
            epoch.sealed && epoch.last_serial <= sent && small
        };
        self.epochs.iter().take_while(fits).count()
    }

    fn is_joining(&self) -> bool {
        self.epochs.iter().any(|epoch| epoch.joins)
    }
}

impl Core {
    /// Begins where enough of a volume can become one.
    pub(super) fn begin_join(&mut self, id: VolumeId) {
        let failed = self.health.is_failed();
        let Some(volume) = self.find(id) else { return };
        if volume.epochs.len() < EPOCHS_MIN || failed || volume.is_joining() {
            return;
        }
        let joined = volume.joinable();
        if joined < EPOCHS_MIN {
            return;
        }
        let newest = &volume.epochs[joined - 1];
        let (upto, last_seq) = (newest.last_serial, newest.last_seq);
        for epoch in volume.epochs.iter_mut().take(joined - 1) {
            epoch.joins = true;
            // It may have what lies there.
            epoch.last_seq = epoch.last_seq.max(last_seq);
        }
        // A replica may have lost what it had from a part of an earlier one on.
        volume.merge_upto(upto.max(volume.merged_upto()));
        self.checkpoint.wait(Waiter::Join(id));
    }

    /// A recovery would have one epoch.
    pub(super) fn join_named(&mut self, id: VolumeId) {
        if self.find(id).is_some_and(|it| it.is_joining()) {
            self.replicas.joining.push_back(id);
        }
    }

    /// The epochs of a volume are wanted: true if that has to wait. Those of which nothing has
    /// moved stay apart.
    pub(super) fn waits_for_join(&mut self, id: VolumeId) -> bool {
        if !self.volume(id).is_joining() {
            return false;
        }
        if !self.checkpoint.is_waited_for(Waiter::Join(id)) {
            return true;
        }
        self.forget_join(id);
        false
    }

    /// A volume goes, or no checkpoint can be written.
    pub(super) fn forget_join(&mut self, id: VolumeId) {
        self.checkpoint.forget(Waiter::Join(id));
        self.replicas.joining.retain(|it| *it != id);
        if let Some(volume) = self.find(id) {
            for epoch in &mut volume.epochs {
                epoch.joins = false;
            }
            self.replicas.mark(id);
        }
    }

    /// After each event.
    pub(super) fn pump_joins(&mut self) {
        self.move_joins(EXTENTS_PER_EVENT);
    }

    /// Moves so many extents.
    pub(super) fn move_joins(&mut self, extents: usize) {
        let mut left = extents;
        while left > 0 {
            let Some(id) = self.replicas.joining.front().copied() else {
                return;
            };
            if self.join_some(id, &mut left) {
                self.replicas.joining.pop_front();
            }
        }
    }

    /// Moves some extents of the oldest epochs that become one. True if there is nothing left.
    fn join_some(&mut self, id: VolumeId, left: &mut usize) -> bool {
        let Some(volume) = self.volumes.get_mut(id) else {
            return true;
        };
        let Some(at) = volume.epochs.iter().position(|epoch| epoch.joins) else {
            return true;
        };
        let quota_owner = volume.quota_owner();
        let (log, extents) = (&mut self.log, volume.dirty_extents() as i64);
        let mut pairs = volume.epochs.range_mut(at..=at + 1);
        let (older, newer) = (pairs.next(), pairs.next());
        let older = older.expect("just found");
        let newer = newer.expect("one that joins has a newer one");
        assert!(older.sealed && newer.sealed, "guests write into the newest");
        while *left > 0
            && let Some(piece) = newer.map.pop()
        {
            let mut charge = 0;
            older.map.insert(piece, &mut |change| {
                charge += log.account(quota_owner, change);
            });
            older.charge = older.charge.strict_add_signed(charge);
            let charge = log.account(quota_owner, Change::Removed(piece));
            newer.charge = newer.charge.strict_add_signed(charge);
            *left -= 1;
        }
        let empty = newer.map.is_empty();
        if empty {
            assert!(newer.charge == 0 && older.last_serial <= newer.last_serial);
            (older.number, older.last_serial) = (newer.number, newer.last_serial);
            older.last_seq = older.last_seq.max(newer.last_seq);
            older.writes += newer.writes;
            older.joins = newer.joins;
            volume.epochs.remove(at + 1);
        }
        let ends = empty && !volume.is_joining();
        let grown = volume.dirty_extents() as i64 - extents;
        self.extents.grow(grown);
        self.recount(id);
        if ends {
            mark(Mark::Joined);
            self.touch(id);
        }
        ends
    }
}
