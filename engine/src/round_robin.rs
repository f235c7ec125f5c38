//! Whose turn it is: deficit round robin, in bytes and by weight.
//!
//! Members that have work on one *lane* (one storage behind several volumes) spend credit for it.
//! When all have spent theirs a round begins: each gets a quantum by its weight, the heaviest
//! a fixed one. A request may be larger than what is left; the debt is paid in later rounds.
//!
//! Always true: over any time in which two members both have work, what they spent differs from
//! their weights by a quantum and a request each; who is idle keeps a debt but no credit; a round
//! ends when all have spent or have not moved for a while, so one that hangs holds the
//! others up once, and then no more until it moves. Deliberately absent: what the bytes are, and
//! who carries them.
//!
//! Smaller quanta were tried on paper: a volume waits for syncs between two batches, and the others
//! must have credit for so long, or the storage idles.

use crate::types::{Time, VolumeId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Destage: about one batch through a journal.
pub const QUANTUM_BYTES: u64 = 8 << 20;
/// Destage: longer than the syncs of a slow storage.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Weights go from 1 to this.
pub const WEIGHT_MAX: u32 = 10_000;
/// The weight of a volume that was given none.
pub const WEIGHT_DEFAULT: u32 = 100;

const _: () = assert!(WEIGHT_DEFAULT > 0 && WEIGHT_DEFAULT <= WEIGHT_MAX);
const _: () = assert!(
    QUANTUM_BYTES >= WEIGHT_MAX as u64,
    "the lightest gets something"
);

#[derive(Clone, Copy)]
struct Member {
    lane: u64,
    weight: u32,
    /// It has work.
    busy: bool,
    credit: i64,
    moved: Time,
    in_line: bool,
}

/// Members are volumes, by their index: there are never more than a cache has.
pub struct RoundRobin {
    quantum_bytes: u64,
    patience_ns: u64,
    members: Vec<Option<Member>>,
    /// Who wants to be asked again, in turn.
    line: VecDeque<VolumeId>,
    /// Somebody in the line may have credit now.
    opened: bool,
}

impl RoundRobin {
    /// The heaviest member gets `quantum_bytes` in a round; one that has not moved for
    /// `patience_ns` is not waited for.
    pub fn new(quantum_bytes: u64, patience_ns: u64) -> RoundRobin {
        assert!(quantum_bytes > 0 && patience_ns > 0);
        RoundRobin {
            quantum_bytes,
            patience_ns,
            members: Vec::new(),
            line: VecDeque::new(),
            opened: false,
        }
    }

    /// A member has work from now on; it may have had some before.
    pub fn join(&mut self, now: Time, id: VolumeId, lane: u64, weight: u32) {
        assert!((1..=WEIGHT_MAX).contains(&weight), "weights are checked");
        let at = id.0 as usize;
        if self.members.len() <= at {
            self.members.resize(at + 1, None);
        }
        let member = self.members[at].get_or_insert(Member {
            lane,
            weight,
            busy: false,
            credit: 0,
            moved: now,
            in_line: false,
        });
        if !member.busy || member.lane != lane {
            member.moved = now;
            member.credit = member.credit.min(0);
        }
        (member.lane, member.weight, member.busy) = (lane, weight, true);
    }

    /// A member has no work any more: what it had not spent is gone.
    pub fn rest(&mut self, id: VolumeId) {
        let Some(member) = self.find(id) else { return };
        member.busy = false;
        member.credit = member.credit.min(0);
        if core::mem::take(&mut member.in_line) {
            self.line.retain(|waiting| *waiting != id);
        }
        self.opened = true;
    }

    /// A member has work.
    pub fn is_busy(&self, id: VolumeId) -> bool {
        let member = self.members.get(id.0 as usize).copied().flatten();
        member.is_some_and(|member| member.busy)
    }

    /// A volume is gone for good.
    pub fn forget(&mut self, id: VolumeId) {
        self.rest(id);
        if let Some(member) = self.members.get_mut(id.0 as usize) {
            *member = None;
        }
        debug_assert!(!self.line.contains(&id), "who is gone is not in line");
    }

    /// Whether a member may do its next piece of work now.
    pub fn may(&mut self, now: Time, id: VolumeId) -> bool {
        if self.member(id).credit > 0 {
            return true;
        }
        let lane = self.member(id).lane;
        if self.is_spent(now, lane) {
            self.begin_round(now, id);
        }
        self.member(id).credit > 0
    }

    /// A member does so much of its work.
    pub fn spend(&mut self, now: Time, id: VolumeId, bytes: u64) {
        let member = self.member(id);
        assert!(member.busy, "only members with work spend");
        assert!(bytes > 0, "work has bytes");
        member.credit -= bytes as i64;
        member.moved = now;
    }

    /// Something of a member's work has ended: it does not hang.
    pub fn moved(&mut self, now: Time, id: VolumeId) {
        if let Some(member) = self.find(id) {
            member.moved = now;
        }
    }

    pub fn enqueue(&mut self, id: VolumeId) {
        if !core::mem::replace(&mut self.member(id).in_line, true) {
            self.line.push_back(id);
        }
        assert!(
            self.line.len() <= self.members.len(),
            "a member is in line once"
        );
    }

    pub fn dequeue(&mut self) -> Option<VolumeId> {
        let id = self.line.pop_front()?;
        let was_in_line = core::mem::replace(&mut self.member(id).in_line, false);
        assert!(was_in_line, "line and members agree");
        Some(id)
    }

    pub fn queue_len(&self) -> usize {
        self.line.len()
    }

    /// Whether those in line should be asked now; true once.
    pub fn take_opened(&mut self) -> bool {
        core::mem::take(&mut self.opened) && !self.line.is_empty()
    }

    fn find(&mut self, id: VolumeId) -> Option<&mut Member> {
        self.members.get_mut(id.0 as usize)?.as_mut()
    }

    fn member(&mut self, id: VolumeId) -> &mut Member {
        self.find(id).expect("only members are asked about")
    }

    fn is_waited_for(&self, member: &Member, now: Time) -> bool {
        member.busy && now.since(member.moved) < self.patience_ns
    }

    /// Whether a member has work and is at it.
    pub fn is_at_work(&self, now: Time, id: VolumeId) -> bool {
        let member = self.members.get(id.0 as usize).copied().flatten();
        member.is_some_and(|member| self.is_waited_for(&member, now))
    }

    /// Whether anybody has work on some lane.
    pub fn is_contended(&self, now: Time) -> bool {
        let mut members = self.members.iter().flatten();
        members.any(|member| self.is_waited_for(member, now))
    }

    /// Nobody on a lane has credit that it will still spend.
    fn is_spent(&self, now: Time, lane: u64) -> bool {
        let members = self.members.iter().flatten();
        let mut lane = members.filter(|member| member.lane == lane);
        !lane.any(|member| member.credit > 0 && self.is_waited_for(member, now))
    }

    /// Gives quanta until somebody on the lane of `id` may go on: after a large request a light
    /// member needs several.
    fn begin_round(&mut self, now: Time, id: VolumeId) {
        // Who asks does not hang.
        self.moved(now, id);
        let lane = self.member(id).lane;
        let of_lane = |member: &&Member| member.lane == lane && member.busy;
        let busy = || self.members.iter().flatten().filter(of_lane);
        // One that rests for a moment counts, so that a light one alone takes no large quantum.
        let lately = |it: &&Member| it.lane == lane && now.since(it.moved) < self.patience_ns;
        let heaviest = self.members.iter().flatten().filter(lately);
        let heaviest = heaviest.map(|member| member.weight).max().unwrap_or(1);
        let quantum_bytes = self.quantum_bytes;
        let quantum = |member: &Member| {
            (quantum_bytes * u64::from(member.weight) / u64::from(heaviest)).max(1) as i64
        };
        let wanted = busy().filter(|member| self.is_waited_for(member, now));
        let rounds = wanted
            .map(|member| (quantum(member) - member.credit) / quantum(member))
            .min()
            .expect("the one who asks has work");
        assert!(rounds > 0, "nobody who is waited for has credit");
        let members = self.members.iter_mut().flatten();
        for member in members.filter(|member| member.lane == lane) {
            let most = if member.busy { quantum(member) } else { 0 };
            let gets = quantum(member).saturating_mul(rounds);
            member.credit = member
                .credit
                .saturating_add(gets)
                .min(most.max(member.credit));
        }
        assert!(
            !self.is_spent(now, lane),
            "a member may go on after a round"
        );
        self.opened = true;
    }
}
