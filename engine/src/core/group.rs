//! Groups: the disks of one VM, which stand at one point in time.
//!
//! ```text
//! epochs of a:   [cut 1][cut 2]   [cut 4]  open
//! epochs of b:   [cut 1]   [cut 3][cut 4]  open
//!                      ╵      ╵  ╵      ╵ all members sealed in one step
//! ```
//!
//! When an epoch of one member is sealed, for whatever reason, the open epochs of all are, in the
//! same step. The epochs of one cut are destaged as one batch: each member prepares its own (for
//! an atomic one, until its journal is synced), and no ledger lets the origin be written before
//! all have. A command to one member is for all. Always true: at most one cut of a group is on its
//! way; the next begins when all members have ended it; nothing begins before all members that the
//! configuration names are attached, so what was recovered, which is one cut, arrives as one.
//!
//! Members write one stream of the log, so what a crash leaves of them is a prefix of what they
//! wrote together; nothing has to be done for that. Deliberately absent: one word that commits the
//! ledgers of all members at once. A host that is lost for good between the first and the last of
//! them leaves origins at two cuts next to each other. Usually that is a moment; a member whose
//! image is found not to fit just then makes it as long as that lasts.

use super::Core;
use crate::adversary::{Bug, Mark, has, mark};
use crate::event::Refusal;
use crate::log::QuotaOwner;
use crate::map::Change;
use crate::outbox::Cx;
use crate::snapshot::State;
use crate::types::{DestageMode, Policy, RequestId, Serial, VolumeId};
use crate::volume::Volume;
use alloc::string::String;
use alloc::vec::Vec;

pub struct Group {
    name: String,
    /// Members that the configuration names.
    wanted: u32,
    /// The cut that new writes belong to; what was recovered is cut 0.
    open: u64,
    /// Who waits until all members have destaged a cut.
    waiters: Vec<(VolumeId, RequestId, u64)>,
}

impl Volume {
    /// Counts as a member of its group.
    fn is_member(&self, group: usize) -> bool {
        self.group() == Some(group) && !self.is_detaching()
    }
}

impl Core {
    /// A volume joins its group as it is attached. What it has already is of the first cut. One
    /// that is still on its way to write-back is a member already.
    pub(super) fn join_group(&mut self, volume: &mut Volume, name: &str, wanted: Policy) {
        let owned = wanted == Policy::WriteBack && !volume.is_read_only();
        if name.is_empty() || !owned {
            return volume.stands_alone();
        }
        let at = self.groups.iter().position(|group| group.name == name);
        let at = at.unwrap_or_else(|| self.new_group(name));
        let group = &mut self.groups[at];
        group.wanted = group.wanted.max(volume.tuning().group_members);
        volume.join_group(at, group.open);
        // Those that a pending journal has are at the origin before any other is.
        let journaled = volume.journaled_epochs();
        self.merge_epochs(volume, journaled, Serial(u64::MAX));
        for epoch in &mut volume.epochs {
            (epoch.cut, epoch.sealed) = (0, true);
        }
    }

    /// The volumes that are named with a group have become more or fewer.
    pub(super) fn count_group(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let members = volume.tuning().group_members;
        if let Some(group) = volume.group() {
            self.groups[group].wanted = members;
        }
    }

    /// A place for a group; one that nobody is in is used again.
    fn new_group(&mut self, name: &str) -> usize {
        let group = Group {
            name: name.into(),
            wanted: 0,
            open: 1,
            waiters: Vec::new(),
        };
        let used = |at: usize| self.volumes.iter().any(|v| v.group() == Some(at));
        match (0..self.groups.len()).find(|at| !used(*at)) {
            Some(at) => {
                self.groups[at] = group;
                at
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        }
    }

    /// What recovery found from this epoch on is one batch, as far as this serial lies in it: its
    /// parts are no points in time of a group, and none between the states of an origin.
    pub(super) fn merge_epochs(&mut self, volume: &mut Volume, from: usize, upto: Serial) {
        assert!(volume.epochs.iter().all(|epoch| !epoch.joins), "none moves");
        let early = |volume: &Volume| {
            let first = volume.epochs.get(from);
            first.is_some_and(|it| it.last_serial < upto)
        };
        while volume.epochs.len() > from + 1 && early(volume) {
            let mut newer = volume.epochs.remove(from + 1).expect("there are two");
            let oldest = &mut volume.epochs[from];
            assert!(
                oldest.last_serial <= newer.last_serial,
                "epochs are in order of their serials"
            );
            let (log, extents) = (&mut self.log, oldest.map.len());
            let upto = newer.last_serial;
            let (mut at, mut charge) = (0, 0);
            while let Some(piece) = newer.map.at_or_after(at) {
                at = piece.span.end();
                let account = &mut |change| charge += log.account(QuotaOwner::NONE, change);
                oldest.map.insert(piece, account);
            }
            oldest.charge = oldest.charge.strict_add_signed(charge);
            (oldest.number, oldest.last_serial) = (newer.number, newer.last_serial);
            oldest.last_seq = oldest.last_seq.max(newer.last_seq);
            oldest.writes += newer.writes;
            self.extents.merged(&newer.map, extents, oldest.map.len());
            while let Some(piece) = newer.map.pop() {
                self.log.account(QuotaOwner::NONE, Change::Removed(piece));
            }
            volume.merge_upto(upto);
        }
    }

    /// The members of the group of a volume, itself included; it alone if it has none.
    pub(super) fn members(&self, id: VolumeId) -> Vec<VolumeId> {
        let volume = self.volumes.get(id);
        match volume.and_then(|volume| volume.group()) {
            None => alloc::vec![id],
            Some(group) => {
                let all = self.volumes.iter();
                all.filter(|it| it.is_member(group))
                    .map(|it| it.id())
                    .collect()
            }
        }
    }

    /// Seals the open epoch of a volume, and with it those of its group.
    pub(super) fn seal(&mut self, id: VolumeId) {
        for member in self.members(id) {
            let volume = self.volume(member);
            assert!(!volume.is_in_part(), "a write is in one cut as a whole");
            volume.cut += 1;
            let forgotten = member != id && has(Bug::SealAlone);
            debug_assert!(
                volume.epochs.iter().rev().skip(1).all(|it| it.sealed),
                "one epoch is open"
            );
            if let Some(epoch) = volume.epochs.back_mut().filter(|_| !forgotten) {
                epoch.sealed = true;
            }
        }
        if let Some(group) = self.volume(id).group() {
            let group = &mut self.groups[group];
            mark(Mark::CutOfGroup);
            group.open += 1;
            let open = group.open;
            assert!(
                self.members(id)
                    .into_iter()
                    .all(|it| self.volume(it).cut == open)
            );
        }
    }

    /// A write of some member is staged in part: nothing can be sealed.
    pub(super) fn is_between(&self, members: &[VolumeId]) -> bool {
        let volumes = self.volumes.iter();
        volumes
            .filter(|volume| members.contains(&volume.id()))
            .any(|volume| volume.is_in_part())
    }

    /// Begins to destage the oldest cut of a group, if it is due and nothing is in its way.
    pub(super) fn start_group(&mut self, cx: &mut Cx<'_>, id: VolumeId, group: usize) {
        let members = self.members(id);
        if (members.len() as u32) < self.groups[group].wanted {
            return;
        }
        let owing: Vec<VolumeId> = members
            .iter()
            .copied()
            .filter(|member| self.volume(*member).owes())
            .collect();
        let busy = |it: &Volume| {
            it.is_destaging() || !it.is_attached() || !it.serves() || it.holds_destage()
        };
        if owing.is_empty() || members.iter().any(|member| busy(self.volume(*member))) {
            return;
        }
        let held = members
            .iter()
            .any(|it| self.volume(*it).state() == State::Held);
        let due = |core: &mut Core, member: VolumeId| {
            let volume = core.volume(member);
            let commanded = volume.is_commanded();
            commanded || (!held && core.is_destage_due(cx.now, member))
        };
        if !owing.iter().any(|member| due(self, *member)) {
            return;
        }
        let front = |core: &mut Core, member: VolumeId| {
            let epoch = core.volume(member).epochs.front().expect("it owes");
            (epoch.cut, epoch.sealed)
        };
        let fronts: Vec<_> = owing.iter().map(|member| front(self, *member)).collect();
        let (oldest, sealed) = *fronts.iter().min().expect("somebody owes");
        if self.group_stays_at_rest(id, oldest) {
            return;
        }
        if !sealed {
            if self.is_between(&members) {
                return;
            }
            self.seal(id);
        }
        let batch = owing.into_iter().zip(fronts);
        for (member, _) in batch.filter(|(_, front)| front.0 == oldest) {
            self.begin_destage(member);
            self.touch(member);
        }
    }

    /// Whether all members have prepared their part of the cut that is on its way.
    pub(super) fn is_prepared(&self, id: VolumeId) -> bool {
        let early = |volume: &Volume| volume.destage().is_some_and(|it| it.is_preparing());
        let members = self.members(id);
        let mut volumes = self.volumes.iter();
        !volumes.any(|volume| members.contains(&volume.id()) && early(volume))
    }

    /// Whether all members of a cut have prepared theirs; then they all go on.
    pub(super) fn pass_gate(&mut self, id: VolumeId) -> bool {
        if !self.is_prepared(id) && !has(Bug::PassGateEarly) {
            mark(Mark::GateWaits);
            // Nobody waits for its turn meanwhile.
            self.turns.rest(id);
            return false;
        }
        for member in self.members(id) {
            if member != id && self.volume(member).open_gate() {
                self.touch(member);
            }
        }
        self.volume(id).open_gate()
    }

    /// An order to destage one member is for all: what they have now. False if all of it is there.
    pub(super) fn command_group(&mut self, id: VolumeId, request: RequestId, group: usize) -> bool {
        let mut upto = None;
        for member in self.members(id) {
            let volume = self.volume(member);
            if let Some(epoch) = volume
                .epochs
                .back()
                .filter(|_| volume.policy == Policy::WriteBack)
            {
                let (last, cut) = (epoch.last_serial, epoch.cut);
                volume.want(last);
                upto = upto.max(Some(cut));
            }
        }
        let Some(cut) = upto else { return false };
        self.groups[group].waiters.push((id, request, cut));
        true
    }

    /// The newest cut that something is dirty of; the one before the open cut if nothing is.
    pub(super) fn newest_cut(&mut self, id: VolumeId) -> u64 {
        let Some(group) = self.volume(id).group() else {
            return 0;
        };
        let members = self.members(id);
        let backs = members
            .iter()
            .filter_map(|it| self.volume(*it).epochs.back().map(|epoch| epoch.cut));
        let newest = backs.max();
        assert!(newest <= Some(self.groups[group].open), "no cut is ahead");
        newest.unwrap_or(self.groups[group].open - 1)
    }

    /// A member has destaged something, or is gone.
    pub(super) fn group_progress(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(group) = self.volume(id).group() else {
            return;
        };
        let members = self.members(id);
        let fronts = members
            .iter()
            .filter_map(|it| self.volume(*it).epochs.front().map(|e| e.cut));
        let oldest = fronts.min().unwrap_or(u64::MAX);
        let waiters = core::mem::take(&mut self.groups[group].waiters);
        for (volume, request, cut) in waiters {
            if cut < oldest {
                cx.out.reply(request, Ok(()));
            } else {
                self.groups[group].waiters.push((volume, request, cut));
            }
        }
    }

    /// The oldest cut of a group cannot be brought to its origins.
    pub(super) fn refuse_group(&mut self, cx: &mut Cx<'_>, id: VolumeId, refusal: Refusal) {
        if let Some(group) = self.volume(id).group() {
            for (_, request, _) in core::mem::take(&mut self.groups[group].waiters) {
                cx.out.reply(request, Err(refusal));
            }
        }
    }

    /// A volume goes: its group is of the others, who may have waited for it.
    pub(super) fn leave_group(&mut self, cx: &mut Cx<'_>, id: VolumeId) {
        let Some(group) = self.volume(id).leave_group() else {
            return;
        };
        self.groups[group].wanted = self.groups[group].wanted.saturating_sub(1);
        let waiters = core::mem::take(&mut self.groups[group].waiters);
        let (gone, stay): (Vec<_>, Vec<_>) = waiters.into_iter().partition(|it| it.0 == id);
        self.groups[group].waiters = stay;
        for (_, request, _) in gone {
            cx.out.reply(request, Err(Refusal::Gone));
        }
        let others = self.volumes.iter();
        for other in others.filter(|it| it.is_member(group)) {
            self.touched.volume(other.id());
        }
    }

    pub(super) fn group_name(&self, volume: &Volume) -> String {
        let group = volume.group().map(|at| self.groups[at].name.clone());
        group.unwrap_or_default()
    }

    /// Whether members of a volume's group are missing, and whether any is destaged in place.
    pub(super) fn group_state(&self, volume: &Volume) -> (bool, bool) {
        let Some(group) = volume.group() else {
            return (false, false);
        };
        let all = self.volumes.iter();
        let members: Vec<&Volume> = all.filter(|it| it.is_member(group)).collect();
        let in_place = |it: &&Volume| it.effective_destage() == DestageMode::InPlace;
        let waits = (members.len() as u32) < self.groups[group].wanted;
        (waits, members.iter().any(in_place))
    }
}
