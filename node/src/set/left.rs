//! Copies that no record names: what a learner can go on with, and what is dropped.
//!
//! Always true: a copy is dropped only when it is not used and the origin has all that it has, when
//! it takes room that its host is short of, or when the copies that count are complete.
//! Deliberately absent: which copies count.

use super::{Cx, MEMBERS_MAX, OLD_MAX, Peer, Set};
use crate::message::{Body, Status};
use crate::record::{Member, Record};
use alloc::boxed::Box;
use engine::types::Uuid;

impl Set {
    /// A copy takes room that is short, or all that it has is at the origin (C12).
    pub(super) fn is_useless(&self, from: Uuid, status: &Status) -> bool {
        let copy = status.copy;
        let used = copy == self.own.copy || self.peers.iter().any(|it| it.member.copy == copy);
        let at_origin = status.history.end() <= self.destaged && status.term <= self.record.number;
        !used && (at_origin || self.full.contains(&(from, copy)))
    }

    /// A host has a copy that no record names any more: it is told when it is not needed.
    pub(super) fn found(&mut self, from: Uuid, status: &Status) {
        let copy = status.copy;
        let known = copy == self.own.copy || self.left.iter().any(|left| left.copy == copy);
        let known = known || self.old.contains(&(from, copy)) || self.old.len() == OLD_MAX;
        if !known && status.term <= self.record.number {
            self.old.push((from, copy));
        }
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
    /// once. Others may go on where they end.
    pub(super) fn leave_peer(&mut self, cx: &mut Cx<'_>, peer: &Peer) {
        let Member { host, copy, .. } = peer.member;
        if !peer.full {
            return self.leave(peer.member);
        }
        self.full.retain(|(at, _)| *at != host);
        self.full.push((host, copy));
        self.drop_copy(cx, host, copy);
    }

    pub(super) fn drop_copy(&self, cx: &mut Cx<'_>, host: Uuid, copy: Uuid) {
        let record = Box::new(self.record.clone());
        cx.send(host, Body::Drop { copy, record });
    }

    pub(super) fn leave(&mut self, member: Member) {
        self.left.retain(|left| left.host != member.host);
        self.left.push(member);
        if self.left.len() > MEMBERS_MAX {
            self.left.remove(0);
        }
    }

    /// Everything is at the origin: what other hosts have is not needed.
    pub(super) fn drop_all(&mut self, cx: &mut Cx<'_>, record: &Record) {
        let peers = self.peers.iter().map(|peer| peer.member);
        let copies = peers.chain(core::mem::take(&mut self.left));
        let copies = copies.map(|it| (it.host, it.copy));
        for (host, copy) in copies.chain(core::mem::take(&mut self.old)) {
            let record = Box::new(record.clone());
            cx.send(host, Body::Drop { copy, record });
        }
    }
}
