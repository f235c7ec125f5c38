//! A unit that its owner gives to another host which has a copy, with what is dirty.
//!
//! ```text
//! Give ─▶ all that was written is durable here and there ─▶ record of the new owner ─ won ─▶ Stop
//!   └──── the copy there is lost, or something is written ─▶ nothing has changed
//! ```
//! Always true: the record is made only when the own copy and that of the new owner are durable up
//! to the newest serial that was given, so what a guest has written is there, flushed or not. All
//! copies stay members. The right to write the origin stays with the drainer of now: the new owner
//! gets it by the word of that host, as after a takeover. The host lets nothing be written from the
//! order on until it has ended: a record that gives the unit away may be in the vault.
//! Deliberately absent: how the new owner begins, which [`crate::taker`] does.

use super::{At, Cx, Set};
use crate::broken::{Rule, has};
use crate::record::{Holder, Record};

impl Set {
    pub(super) fn give(&mut self, to: Option<Holder>) {
        let mine = |to: &Holder| to.host == self.me.host;
        assert!(!to.as_ref().is_some_and(mine), "it has it");
        self.giving = to;
    }

    /// The order of before has not ended, or its record is not decided.
    pub fn gives(&self) -> bool {
        let other = self.changing().and_then(|record| record.owner.as_ref());
        self.giving.is_some() || other.is_some_and(|owner| !owner.is_same_host(&self.me))
    }

    /// Nothing is given any more whose copy does not count.
    pub(super) fn keep_if_lost(&mut self) {
        let peers = &self.peers;
        let lost = |to: &mut Holder| {
            let mut peers = peers.iter();
            let there = |host, cache| (host, cache) == (to.host, to.cache);
            !peers.any(|it| there(it.member.host, it.member.cache) && !it.unfit)
        };
        self.giving.take_if(lost);
    }

    /// The record that gives it away, once nothing is left behind.
    pub(super) fn give_away(&mut self, cx: &mut Cx<'_>) -> Option<Record> {
        let to = self.giving.clone()?;
        let end = self.history.end();
        let peer = self.peers.iter().find(|it| it.member.host == to.host)?;
        let streams = peer.at == At::Streaming && peer.from <= self.destaged;
        let has_all = peer.durable == Some(end) && self.own_durable == end;
        if !(streams && self.names(&peer.member) && (has_all || has(Rule::GivenHasAll))) {
            return None;
        }
        let mut record = self.draft(cx, self.record.members.clone());
        record.drainer = self.record.drainer().cloned();
        (record.owner, record.given) = (Some(to), record.number);
        record.at_origin = false;
        self.giving = None;
        Some(record)
    }
}
