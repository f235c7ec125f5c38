//! Copies that no record names: what a learner can go on with, and what is dropped.
//!
//! Always true: a copy is dropped only when it is not used and the origin has all that it has, when
//! it takes room that its host is short of, or when the copies that count are complete; what is
//! remembered of copies is bounded.
//! Deliberately absent: which copies count.

use super::{Cx, MEMBERS_MAX, OLD_MAX, Peer, Set};
use crate::message::{Body, Status};
use crate::record::{Member, Record};
use alloc::boxed::Box;
use alloc::vec::Vec;
use engine::types::Uuid;

/// What is known of copies that no record names, at most one of each sort on each host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Left {
    /// The next learner there may go on with one.
    members: Vec<Member>,
    /// Those of owners before this one, by host: nothing goes on with them.
    old: Vec<(Uuid, Uuid)>,
    /// Those that were left out because their hosts had no room for them, or could not go on with
    /// them.
    full: Vec<(Uuid, Uuid)>,
}

impl Left {
    pub fn leave(&mut self, member: Member) {
        self.members.retain(|left| left.host != member.host);
        self.members.push(member);
        if self.members.len() > MEMBERS_MAX {
            self.members.remove(0);
        }
    }

    /// It has no room at its host.
    fn leave_full(&mut self, host: Uuid, copy: Uuid) {
        self.full.retain(|(at, _)| *at != host);
        self.full.push((host, copy));
    }

    /// Nothing can go on with it.
    pub fn forget(&mut self, copy: Uuid) {
        self.members.retain(|left| left.copy != copy);
    }

    /// What a learner on this host, with this cache, goes on with.
    pub fn take(&mut self, host: Uuid, cache: Uuid) -> Option<Member> {
        let mut members = self.members.iter();
        let at = members.position(|left| (left.host, left.cache) == (host, cache));
        at.map(|at| self.members.remove(at))
    }

    /// A host has a copy that no record names any more: it is told when it is not needed.
    pub fn find(&mut self, host: Uuid, copy: Uuid) {
        let known = self.members.iter().any(|left| left.copy == copy);
        if !known && !self.old.contains(&(host, copy)) && self.old.len() < OLD_MAX {
            self.old.push((host, copy));
        }
    }

    /// All but those without room, which were dropped: host and copy.
    pub fn take_all(&mut self) -> impl Iterator<Item = (Uuid, Uuid)> + use<> {
        let members = core::mem::take(&mut self.members).into_iter();
        let members = members.map(|it| (it.host, it.copy));
        members.chain(core::mem::take(&mut self.old))
    }
}

/// By this record the copy is not needed.
pub(super) fn drop_copy(cx: &mut Cx<'_>, record: &Record, (host, copy): (Uuid, Uuid)) {
    let record = Box::new(record.clone());
    cx.send(host, Body::Drop { copy, record });
}

impl Set {
    /// A copy takes room that is short, or all that it has is at the origin (C12).
    pub(super) fn is_useless(&self, from: Uuid, status: &Status) -> bool {
        let copy = status.copy;
        let used = copy == self.own.copy || self.peers.iter().any(|it| it.member.copy == copy);
        let at_origin = status.history.end() <= self.destaged && status.term <= self.record.number;
        !used && (at_origin || self.left.full.contains(&(from, copy)))
    }

    /// A copy that is not used may let go of what the origin has (C12). What it has up to there is
    /// what this host had destaged, if the one history is a part of the other.
    pub(super) fn keep(&self, cx: &mut Cx<'_>, from: Uuid, status: &Status) {
        let (copy, destaged) = (status.copy, self.destaged);
        let news = destaged > status.destaged && destaged <= status.history.end();
        let common = self.history.contains(&status.history.upto(destaged));
        let older = status.term <= self.record.number && copy != self.own.copy;
        if older && news && common {
            let record = Box::new(self.record.clone());
            let body = Body::Keep {
                copy,
                record,
                destaged,
            };
            cx.send(from, body);
        }
    }

    /// What a copy without room has is what is short there, and another has all of it: it goes at
    /// once, as one does that cannot go on. Others may go on where they end.
    pub(super) fn leave_peer(&mut self, cx: &mut Cx<'_>, peer: &Peer) {
        let Member { host, copy, .. } = peer.member;
        if !peer.full {
            return self.left.leave(peer.member);
        }
        self.left.leave_full(host, copy);
        drop_copy(cx, &self.record, (host, copy));
    }

    /// Everything is at the origin: what other hosts have is not needed.
    pub(super) fn drop_all(&mut self, cx: &mut Cx<'_>, record: &Record) {
        let peers = self.peers.iter().map(|peer| peer.member);
        let peers: Vec<(Uuid, Uuid)> = peers.map(|it| (it.host, it.copy)).collect();
        let copies = peers.into_iter().chain(self.left.take_all());
        copies.for_each(|it| drop_copy(cx, record, it));
    }
}
