//! How a host becomes the owner of a unit that has copies: after another owner was lost, or after
//! its own restart.
//!
//! ```text
//! Probing ─ a member is whole, complete ─▶ Changing ─ won ─▶ Freezing ─ frozen ─▶ Owning ─▶ Done
//!    ▲                                        │ lost            ▲                    ▲
//!    └─────────── the newest record ◀─────────┘                 │ not yet forked     │ forked
//!                                restarted, the record names this host ──────────────┘
//! ```
//! Owns the record by which the unit is taken, and the order of the steps (C5): first the
//! compare-and-swap, then the freeze, and the end of the history is read at the freeze. So what the
//! owner before has acknowledged between both is in it. Always true: the fork of this ownership is
//! durable in the own copy before it is served. An own copy counts only after that; a restart
//! between the record and the fork freezes again. A copy whose host still reads its log, that is
//! damaged, or that is not complete is no source, and is not taken for an absent one either. The
//! other copies stay members, but for that of the owner before: each has all that was acknowledged,
//! so any of them can be frozen, and one counts again when it has taken the fork; see
//! [`crate::set`].
//! Serving and writing the origin are two rights: the record keeps the drainer of before, with its
//! epoch, until there is proof (C7, C9); see [`crate::set`].
//!
//! Deliberately absent: what makes a host want the unit, and whether its owner is silent. Neither
//! gives a right; a takeover of a living owner is safe, and not wanted.

use crate::broken::{Rule, has};
use crate::change::{Change, End, Order};
use crate::history::{Generation, History};
use crate::message::{Body, Health, Status};
use crate::record::{Degraded, Holder, Member, Record};
use crate::unit::Nonces;
use crate::vault::Outcome;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use engine::types::{Serial, Uuid};

/// What a host has that serves a unit: see [`crate::set`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ownership {
    pub record: Record,
    pub own: Member,
    /// With the fork of this ownership as its newest.
    pub history: History,
    /// The own copy has everything above this serial; what is below and not at the origin is at
    /// the copy that was frozen.
    pub from: Serial,
    pub destaged: Serial,
    /// The copy whose end the history goes on from: the own one, or the one that was frozen.
    pub source: Uuid,
}

impl Ownership {
    /// Of a host whose record names no copies yet: it has everything itself. `known`: the history
    /// of its copy, or how far its serials go. None: the term has no serials left.
    pub fn alone(record: Record, own: Member, known: &History, destaged: Serial) -> Option<Self> {
        assert!(record.members.is_empty(), "others may have more");
        let term = match record.given {
            0 => record.number,
            given => given,
        };
        Some(Ownership {
            history: known.fork(next_generation(known, term))?,
            from: Serial(0),
            source: own.copy,
            record,
            own,
            destaged,
        })
    }
}

/// Of an owner that begins, or begins again, under the record of this number.
fn next_generation(known: &History, term: u64) -> Generation {
    match known.generation() {
        Some(known) if known.term == term => known.restarted(),
        _ => Generation { term, restarts: 0 },
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Begin,
    Heard {
        from: Uuid,
        body: Body,
    },
    Remembered,
    Decided(Outcome),
    /// [`Action::Own`] is durable.
    Owned,
    /// What was not answered is asked for again.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Send {
        host: Uuid,
        body: Body,
    },
    Vault(Order),
    /// Make record and history of the own copy durable; the copy is made if it is not there.
    Own(Ownership),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A member is looked for that has everything.
    Probing,
    Changing(Change),
    /// The record names this host; what this copy has is read.
    Freezing(Member),
    Owning(Ownership),
    Done(Ownership),
    /// A copy has adopted a newer record than was seen: look again. A vault that does not have it
    /// went back, and the unit is held (C1).
    Behind {
        term: u64,
    },
    /// Another record was made: begin anew with it, if it is wanted still.
    Lost(Record),
    Held(String),
}

/// The surroundings of one event.
pub struct Cx<'a> {
    pub nonces: &'a mut dyn Nonces,
    pub out: &'a mut Vec<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taker {
    me: Holder,
    /// The newest record that is known.
    record: Record,
    /// What the own cache has, if the record names it.
    own: Option<Status>,
    /// What lies under the name of its change cannot be read: it is tried again.
    unread: bool,
    state: State,
}

impl Taker {
    /// `own`: what the cache of this host says of the copy that the record names. `doubt`: a record
    /// that an earlier run may have linked.
    pub fn new(me: Holder, record: Record, own: Option<Status>, doubt: Option<Record>) -> Taker {
        assert!(
            !record.members.is_empty(),
            "without members there is nothing to take"
        );
        let state = match doubt {
            Some(doubt) => State::Changing(Change::again(doubt).0),
            None => State::Probing,
        };
        Taker {
            me,
            record,
            own,
            unread: false,
            state,
        }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The record that is being made.
    pub fn changing(&self) -> Option<&Record> {
        match &self.state {
            State::Changing(change) => Some(change.record()),
            _ => None,
        }
    }

    fn is_mine(&self) -> bool {
        let owner = self.record.owner.as_ref();
        owner.is_some_and(|owner| owner.is_same_host(&self.me))
    }

    fn own_member(&self) -> Option<Member> {
        let own = self.record.member(self.me.host).copied();
        own.filter(|own| own.cache == self.me.cache)
    }

    pub fn handle(&mut self, cx: &mut Cx<'_>, event: Event) {
        let number = self.record.number;
        match event {
            Event::Begin => match &self.state {
                State::Changing(change) => {
                    let order = Change::again(change.record().clone()).1;
                    cx.out.push(Action::Vault(order));
                }
                _ => self.begin(cx),
            },
            Event::Heard { from, body } => self.heard(cx, from, body),
            Event::Remembered => {
                if let State::Changing(change) = &mut self.state {
                    cx.out.extend(change.remembered().map(Action::Vault));
                }
            }
            Event::Decided(outcome) => self.decided(cx, outcome),
            Event::Owned => {
                if let State::Owning(owns) = self.state.clone() {
                    self.state = State::Done(owns);
                }
            }
            Event::Tick => self.ask(cx),
        }
        assert!(self.record.number >= number, "a term never falls");
        if let State::Freezing(_) | State::Owning(_) | State::Done(_) = self.state {
            assert!(self.is_mine(), "the record comes before the freeze");
        }
    }

    /// The record may name this host already: then it goes on, or freezes again.
    fn begin(&mut self, cx: &mut Cx<'_>) {
        if !self.is_mine() {
            self.state = State::Probing;
            return self.ask(cx);
        }
        let Some(own) = self.own_member() else {
            self.state = State::Held("its record names another cache of this host".into());
            return;
        };
        let status = self.own.as_ref().filter(|it| it.copy == own.copy);
        if let Some(status) = status
            && status.term > self.record.number
        {
            let term = status.term;
            self.state = State::Behind { term };
            return;
        }
        match status {
            Some(status) if status.health == Health::Whole && self.has_forked(status) => {
                let status = status.clone();
                self.own(cx, own, &status);
            }
            _ => {
                // The owner before has given it to this host, whose copy has all of it. One that is
                // being fetched has no generation.
                let given = |it: &&Status| {
                    let begun = it.history.generation().is_some();
                    begun && it.is_complete() && it.health == Health::Whole
                };
                let mut others = self.record.members.iter().filter(|it| **it != own);
                let other = others.next().copied().unwrap_or(own);
                let source = status.filter(given).map_or(other, |_| own);
                self.state = State::Freezing(source);
                self.ask(cx);
            }
        }
    }

    /// This copy was written under the ownership of the record: it was its owner's.
    fn has_forked(&self, status: &Status) -> bool {
        let generation = status.history.generation();
        generation.is_some_and(|it| it.term == self.record.given) || has(Rule::RestartFreezes)
    }

    /// The first of them that answers is gone on from. The own one is asked alone.
    fn freezes(&self, source: &Member, member: &Member) -> bool {
        source == member || source.host != self.me.host && member.host != self.me.host
    }

    fn ask(&mut self, cx: &mut Cx<'_>) {
        match &self.state {
            State::Probing => {
                for Member { host, copy, .. } in self.record.members.iter().copied() {
                    let body = Body::Probe { copy };
                    cx.out.push(Action::Send { host, body });
                }
            }
            State::Freezing(source) => {
                let sources = self
                    .record
                    .members
                    .iter()
                    .filter(|it| self.freezes(source, it));
                for Member { host, copy, .. } in sources.copied() {
                    let record = Box::new(self.record.clone());
                    let body = Body::Freeze { copy, record };
                    cx.out.push(Action::Send { host, body });
                }
            }
            State::Owning(owns) => cx.out.push(Action::Own(owns.clone())),
            State::Changing(change) if self.unread => {
                self.unread = false;
                let order = Change::again(change.record().clone()).1;
                cx.out.push(Action::Vault(order));
            }
            _ => {}
        }
    }

    fn heard(&mut self, cx: &mut Cx<'_>, from: Uuid, body: Body) {
        match body {
            Body::Probed { status } if self.state == State::Probing => {
                self.probed(cx, from, &status);
            }
            Body::Frozen { status, .. } => self.frozen(cx, from, &status),
            // Of a copy, also of the own one that another host has frozen.
            Body::Deposed { record } if record.number > self.record.number => {
                self.record = *record;
                // What may have been linked is decided before anything else.
                if !matches!(self.state, State::Changing(_)) {
                    self.state = State::Lost(self.record.clone());
                }
            }
            _ => {}
        }
    }

    fn probed(&mut self, cx: &mut Cx<'_>, from: Uuid, status: &Status) {
        let mut members = self.record.members.iter();
        let named = members.find(|it| it.host == from && it.copy == status.copy);
        let Some(source) = named.copied() else {
            return;
        };
        if status.term > self.record.number {
            let term = status.term;
            self.state = State::Behind { term };
            return;
        }
        let owner = self.record.owner.as_ref().expect("members have an owner");
        // The copy of an owner that had not forked yet has nothing of what its members have.
        let counts = source.host != owner.host || self.has_forked(status);
        if counts && (status.is_complete() || has(Rule::SourceIsComplete)) {
            self.take(cx, source);
        }
    }

    fn take(&mut self, cx: &mut Cx<'_>, source: Member) {
        assert!(self.state == State::Probing && !self.is_mine());
        let own = Member {
            host: self.me.host,
            cache: self.me.cache,
            copy: cx.nonces.fresh(),
        };
        let mut members = match source.host == self.me.host {
            true => alloc::vec![source],
            false => alloc::vec![own, source],
        };
        members.extend(self.others_than(&source));
        let record = &self.record;
        let number = record.number + 1;
        let record = Record {
            number,
            nonce: cx.nonces.fresh(),
            before: record.nonce,
            owner: Some(self.me.clone()),
            drainer: record.drainer().cloned(),
            given: number,
            degraded: (record.wanted > 0).then_some(Degraded::TakenOver),
            at_origin: false,
            quiesced: record.quiesced && !has(Rule::WindowIsTaken),
            members,
            ..*record
        };
        let (change, order) = Change::new(record);
        self.state = State::Changing(change);
        cx.out.push(Action::Vault(order));
    }

    /// Members that stay beside this one. The owner before may have more than all of them.
    fn others_than(&self, source: &Member) -> impl Iterator<Item = Member> {
        let owner = self.record.owner.as_ref().map(|owner| owner.host);
        let not = [Some(source.host), Some(self.me.host), owner];
        let members = self.record.members.iter().copied();
        members.filter(move |it| !not.contains(&Some(it.host)))
    }

    fn decided(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        let State::Changing(change) = &self.state else {
            return;
        };
        let Some(end) = change.decided(outcome) else {
            self.unread = true;
            return;
        };
        let record = match end {
            End::Won(record) | End::Lost(record) => record,
            End::Unwritten => {
                self.state = State::Probing;
                return;
            }
        };
        // What was in doubt may be older than what was seen since.
        if record.number > self.record.number {
            self.record = record;
        }
        let record = self.record.clone();
        let undecided = false;
        cx.out
            .push(Action::Vault(Order::Remember { record, undecided }));
        if self.record.members.is_empty() || !self.is_mine() {
            self.state = State::Lost(self.record.clone());
            return;
        }
        self.begin(cx);
    }

    fn frozen(&mut self, cx: &mut Cx<'_>, from: Uuid, status: &Status) {
        let State::Freezing(source) = self.state else {
            return;
        };
        let mut members = self.record.members.iter();
        let answers = |it: &&Member| it.host == from && it.copy == status.copy;
        let found = members.find(|it| answers(it) && self.freezes(&source, it));
        if found.is_none() || status.term != self.record.number {
            return;
        }
        if !status.is_complete() && !has(Rule::SourceIsComplete) {
            let mut members = self.record.members.iter();
            if !members.any(|it| it.host != from && self.freezes(&source, it)) {
                self.state = State::Held("the copy that was frozen is damaged".into());
            }
            return;
        }
        let own = self.own_member().expect("the record names this host");
        self.own(cx, own, status);
    }

    /// Forks where this copy ends.
    fn own(&mut self, cx: &mut Cx<'_>, own: Member, status: &Status) {
        let generation = next_generation(&status.history, self.record.given);
        let Some(history) = status.history.fork(generation) else {
            self.state = State::Held("its term has no serials left".into());
            return;
        };
        let from = match status.copy == own.copy {
            true => status.from,
            // What is below is at the copy that was frozen, and at the origin.
            false => history.end(),
        };
        let owns = Ownership {
            record: self.record.clone(),
            own,
            from,
            destaged: status.destaged,
            source: status.copy,
            history,
        };
        cx.out.push(Action::Own(owns.clone()));
        self.state = State::Owning(owns);
    }
}

#[cfg(test)]
#[path = "taker_tests.rs"]
mod tests;
