//! One copy of a unit on the host that keeps it for the owner.
//!
//! ```text
//!            Open, fresh                 Adopt: a record names it
//! None ──────────────────▶ Learner ──────────────────────────────▶ Member
//!   ▲                        │ ▲ Resume by the owner of this term      │
//!   │                 Freeze │ └───────────────────────────────┐       │ Freeze
//!   └── Drop ── any          └────────────▶ Frozen (base) ◀────┴───────┘
//! ```
//! Owns the term of the copy, its session, and what it answers. Always true: a term is adopted
//! durably, with its record, before anything is answered under it (C1), and it never falls; what
//! comes with a lower term gets `Deposed` with the record. A batch is taken only in the session
//! that was opened last, under the adopted term, and where the copy ends; a hole ends the session,
//! not the copy. After a freeze was taken no batch is, also over a restart, until the owner of the
//! term resumes it; the end that was answered is the end that stays. Generation and end belong to
//! the owner: a restart of this host changes neither (H20). A copy of another cache is absent, not
//! empty (C11). It is removed by `Drop` only (C12, correction 16).
//!
//! Deliberately absent: the writes and the log, which are the engine's; what the owner makes of a
//! copy that has too much or too little, which is [`crate::history::History::follow`].

use crate::broken::{Rule, has};
use crate::codec::{In, Out};
use crate::history::History;
use crate::message::{About, Body, Health, Status, put_history, take_history};
use crate::record::{Member, RECORD_BYTES, Record};
use crate::taker::Ownership;
use alloc::boxed::Box;
use alloc::vec::Vec;
use engine::event::Credit;
use engine::format::checksum;
use engine::types::{Serial, Uuid};

/// What of a copy lasts over a restart, beside its writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Durable {
    pub member: Member,
    /// The newest that was adopted; its number is the term.
    pub record: Record,
    /// Forks, and the end: after a restart the log says which writes are there.
    pub history: History,
    /// It has all writes of its history above this serial.
    pub from: Serial,
    /// No batch is taken until the owner of the record resumes the copy.
    pub frozen: bool,
    /// Of the volume.
    pub about: About,
}

impl Durable {
    /// As a host keeps it, with a checksum.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out(Vec::new());
        for id in [self.member.host, self.member.cache, self.member.copy] {
            out.uuid(id);
        }
        out.0.extend_from_slice(&self.record.encode());
        put_history(&mut out, &self.history);
        out.u64(self.from.0);
        out.u8(self.frozen.into());
        self.about.put(&mut out);
        let sum = checksum(&[&out.0]);
        out.u32(sum);
        out.0
    }

    /// None: it is damaged, or nothing of this kind.
    pub fn parse(bytes: &[u8]) -> Option<Durable> {
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        if checksum(&[body]) != u32::from_le_bytes(*sum) {
            return None;
        }
        let mut from = In(body);
        let mut id = || from.uuid().ok();
        let member = Member {
            host: id()?,
            cache: id()?,
            copy: id()?,
        };
        let durable = Durable {
            member,
            record: Record::parse(from.take(RECORD_BYTES).ok()?).ok()?,
            history: take_history(&mut from).ok()?,
            from: Serial(from.u64().ok()?),
            frozen: from.flag("frozen").ok()?,
            about: About::take(&mut from).ok()?,
        };
        from.0.is_empty().then_some(durable)
    }
}

/// What the host tells a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message of another host; batches have their own event.
    Heard { from: Uuid, body: Body },
    /// A batch whose checksums are right.
    Batch {
        from: Uuid,
        session: Uuid,
        term: u64,
        number: u64,
        before: Serial,
        last: Serial,
    },
    /// This host has the unit: it is the owner's copy from now on, with this fork.
    Own { owns: Box<Ownership> },
    /// The owner, which is this host, has given serials up to here.
    Given(Serial),
    /// [`Action::Persist`] is done.
    Persisted,
    /// All writes up to here are synced.
    Synced(Serial),
    /// The same of a host whose log takes the batches by itself: it looks before it answers.
    Reached(Serial),
    /// The log knows that the origin has all up to here.
    AtOrigin(Serial),
    /// A sync has failed, or something below the end cannot be read.
    Damaged,
    /// The log was read: the writes end here.
    Recovered(Serial),
    /// The connection to the owner has ended.
    Closed,
    /// What the log takes of the session that is about to be opened.
    Credit(Credit),
}

/// What the host is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Make it durable in the place of what was; answered by `Persisted`.
    Persist(Box<Durable>),
    Send {
        host: Uuid,
        body: Body,
    },
    /// Put the writes of the batch into the log; `Synced` follows.
    Write {
        last: Serial,
    },
    /// An epoch ends here.
    Seal(Serial),
    /// The origin has all up to here.
    Forget(Serial),
    /// The stream has a hole, or is not of this session: close the connection.
    Close {
        host: Uuid,
    },
    /// Remove it with all its writes.
    Remove,
}

/// The connection whose stream is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Session {
    host: Uuid,
    id: Uuid,
    /// The owner has said where to go on.
    resumed: bool,
    /// Of the last batch.
    batch: u64,
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    durable: Durable,
    health: Health,
    session: Option<Session>,
    /// Writes that are not synced yet end here.
    written: Serial,
    destaged: Serial,
    credit: Credit,
    /// A freeze that waits for the writes under way.
    freezing: Option<(Uuid, Box<Record>)>,
    /// Said when what was to be made durable is.
    answers: Option<Vec<(Uuid, Body)>>,
}

impl Copy {
    /// A copy that was there before this run: its end is known when its log was read.
    pub fn recover(durable: Durable) -> Copy {
        Copy::of(durable, Health::Recovering)
    }

    /// The copy of an owner that had none, or none with this name.
    pub fn begin(owns: &Ownership, about: About) -> Copy {
        let durable = Durable {
            member: owns.own,
            record: owns.record.clone(),
            history: owns.history.clone(),
            from: owns.from,
            frozen: false,
            about,
        };
        Copy::of(durable, Health::Whole)
    }

    /// A copy that is made by this `Open`, or None where it must not be.
    pub fn make(me: (Uuid, Uuid), open: &Body) -> Option<Copy> {
        let Body::Open {
            member,
            fresh: true,
            destaged,
            record,
            about,
            ..
        } = open
        else {
            return None;
        };
        let durable = Durable {
            member: *member,
            record: Record::clone(record),
            history: History::empty(*destaged),
            from: *destaged,
            frozen: false,
            about: about.clone(),
        };
        ((member.host, member.cache) == me).then(|| Copy::of(durable, Health::Whole))
    }

    fn of(durable: Durable, health: Health) -> Copy {
        Copy {
            written: durable.history.end(),
            durable,
            health,
            session: None,
            destaged: Serial(0),
            credit: Credit::default(),
            freezing: None,
            answers: None,
        }
    }

    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The name that its volume has on this host.
    pub fn call(&mut self, name: &str) {
        self.durable.about.name = name.into();
    }

    pub fn health(&self) -> Health {
        self.health
    }

    pub fn term(&self) -> u64 {
        self.durable.record.number
    }

    /// Its owner's record names it: an acknowledgment counts it.
    pub fn is_member(&self) -> bool {
        self.durable.record.members.contains(&self.durable.member)
    }

    /// The host and the session whose batches are taken.
    pub fn stream(&self) -> Option<(Uuid, Uuid)> {
        let session = self.session.filter(|it| it.resumed && !self.is_closed())?;
        Some((session.host, session.id))
    }

    pub fn status(&self) -> Status {
        Status {
            copy: self.durable.member.copy,
            term: self.term(),
            history: self.durable.history.clone(),
            from: self.durable.from,
            destaged: self.destaged,
            health: self.health,
        }
    }

    pub fn handle(&mut self, out: &mut Vec<Action>, event: Event) {
        let term = self.term();
        match event {
            Event::Heard { from, body } => self.heard(out, from, body),
            Event::Batch {
                from,
                session,
                term,
                number,
                before,
                last,
            } => self.batch(out, from, (session, term), number, (before, last)),
            Event::Own { owns } => self.own(out, *owns),
            // An owner whose copy is frozen is none any more.
            Event::Given(end) if !self.is_closed() => self.written = self.written.max(end),
            Event::Given(_) => {}
            Event::Persisted => self.persisted(out),
            Event::Synced(end) => self.synced(out, end),
            Event::Reached(end) => self.reached(end),
            Event::AtOrigin(serial) => self.destaged = self.destaged.max(serial),
            Event::Damaged => self.damaged(out),
            Event::Recovered(end) => self.recovered(out, end),
            Event::Closed => self.session = None,
            Event::Credit(credit) => self.credit = credit,
        }
        assert!(self.term() >= term, "a term never falls");
        assert!(
            self.written >= self.durable.history.end(),
            "what is durable was written"
        );
        assert!(
            !self.durable.frozen || self.session.is_none_or(|it| !it.resumed),
            "a frozen copy takes no stream"
        );
    }

    /// [`Event::Own`] is durable with the next `Persisted`.
    fn own(&mut self, out: &mut Vec<Action>, owns: Ownership) {
        let known = self.durable.record.number;
        if owns.record.number < known || self.answers.is_some() || self.freezing.is_some() {
            return;
        }
        self.written = owns.history.end();
        self.session = None;
        self.durable.frozen = false;
        self.durable.record = owns.record;
        (self.durable.history, self.durable.from) = (owns.history, owns.from);
        self.persist(out, Vec::new());
    }

    fn heard(&mut self, out: &mut Vec<Action>, from: Uuid, body: Body) {
        match body {
            Body::Probe { .. } => {
                let status = self.status();
                let body = Body::Probed { status };
                out.push(Action::Send { host: from, body });
            }
            Body::Cut {
                session, serial, ..
            } if self.streams(from, session) => out.push(Action::Seal(serial)),
            Body::Destaged { serial, .. } if serial > self.destaged && self.is_of_owner(from) => {
                self.destaged = serial;
                out.push(Action::Forget(serial));
            }
            // One thing at a time is made durable; the sender asks again.
            _ if self.answers.is_some() || self.freezing.is_some() => {}
            Body::Open {
                member,
                session,
                record,
                destaged,
                ..
            } => self.open(out, from, (member, session), record, destaged),
            Body::Resume {
                session, history, ..
            } => self.resume(out, from, session, history),
            Body::Adopt {
                session, record, ..
            } => self.adopt(out, from, session, *record),
            Body::Freeze { record, .. } => self.freeze(out, from, record),
            Body::Keep {
                record, destaged, ..
            } => self.keep(out, from, &record, destaged),
            Body::Drop { record, .. } => self.drop(out, from, &record),
            _ => {}
        }
    }

    /// The owner after this copy's own has destaged so much of what the copy has as well.
    fn keep(&mut self, out: &mut Vec<Action>, from: Uuid, record: &Record, destaged: Serial) {
        let news = destaged > self.destaged && destaged <= self.durable.history.end();
        if self.accepts(out, from, record) && news && self.session.is_none() {
            self.destaged = destaged;
            out.push(Action::Forget(destaged));
        }
    }

    fn is_of_owner(&self, from: Uuid) -> bool {
        let owner = self.durable.record.owner.as_ref();
        owner.is_some_and(|owner| owner.host == from)
    }

    fn streams(&self, from: Uuid, session: Uuid) -> bool {
        let streams = |it: Session| it.resumed && it.host == from && it.id == session;
        self.session.is_some_and(streams)
    }

    /// Whether this record may be adopted; says so if it is too old, or of a vault that went back.
    fn accepts(&self, out: &mut Vec<Action>, from: Uuid, record: &Record) -> bool {
        let known = &self.durable.record;
        let newer = record.number > known.number;
        let same = record.number == known.number && record.nonce == known.nonce;
        let ours = record.owner.as_ref().is_some_and(|it| it.host == from);
        if !(newer || same) {
            let record = Box::new(known.clone());
            let body = Body::Deposed { record };
            out.push(Action::Send { host: from, body });
        }
        (newer || same) && ours
    }

    fn persist(&mut self, out: &mut Vec<Action>, answers: Vec<(Uuid, Body)>) {
        assert!(
            self.answers.is_none(),
            "one thing at a time is made durable"
        );
        self.answers = Some(answers);
        out.push(Action::Persist(Box::new(self.durable.clone())));
    }

    fn persisted(&mut self, out: &mut Vec<Action>) {
        let answers = self.answers.take().into_iter().flatten();
        for (host, body) in answers.chain(self.ack()) {
            out.push(Action::Send { host, body });
        }
        self.freeze_if_quiet(out);
    }

    fn open(
        &mut self,
        out: &mut Vec<Action>,
        from: Uuid,
        (member, session): (Member, Uuid),
        record: Box<Record>,
        destaged: Serial,
    ) {
        if member != self.durable.member {
            // A wiped cache, or another host of the same name.
            let body = Body::Absent { copy: member.copy };
            return out.push(Action::Send { host: from, body });
        }
        let writes = self.written > self.durable.history.end();
        if writes || self.health == Health::Recovering || !self.accepts(out, from, &record) {
            return;
        }
        self.session = Some(Session {
            host: from,
            id: session,
            resumed: false,
            batch: 0,
        });
        if record.number > self.term() {
            // The old owner's stream has ended; where it goes on is for the new one to say.
            self.durable.frozen = true;
        }
        self.durable.record = *record;
        self.destaged = self.destaged.max(destaged);
        let body = Body::Opened {
            session,
            credit: self.credit,
            status: self.status(),
        };
        self.persist(out, alloc::vec![(from, body)]);
    }

    fn resume(&mut self, out: &mut Vec<Action>, from: Uuid, session: Uuid, history: History) {
        let Some(open) = self.session.as_mut() else {
            return;
        };
        let end = self.durable.history.end();
        let known = &self.durable.history;
        let follows = match known.generation() {
            None => history.end() == end,
            Some(_) => history.end() == end && history.contains(known),
        };
        if open.host != from || open.id != session || !follows || self.health != Health::Whole {
            self.session = None;
            return out.push(Action::Close { host: from });
        }
        open.resumed = true;
        self.durable.frozen = false;
        self.durable.history = history;
        let copy = self.durable.member.copy;
        let body = Body::Resumed { copy, session, end };
        self.persist(out, alloc::vec![(from, body)]);
    }

    /// The owner of the session made a newer record.
    fn adopt(&mut self, out: &mut Vec<Action>, from: Uuid, session: Uuid, record: Record) {
        if self.accepts(out, from, &record) && self.streams(from, session) {
            self.durable.record = record;
            self.persist(out, Vec::new());
        }
    }

    fn batch(
        &mut self,
        out: &mut Vec<Action>,
        from: Uuid,
        (session, term): (Uuid, u64),
        number: u64,
        (before, last): (Serial, Serial),
    ) {
        if term < self.term() {
            let record = Box::new(self.durable.record.clone());
            let body = Body::Deposed { record };
            return out.push(Action::Send { host: from, body });
        }
        let streams = self.streams(from, session) && term == self.term();
        let next = self.session.is_some_and(|it| number == it.batch + 1);
        if !streams || !next || before != self.written || last <= before || self.is_closed() {
            self.session = None;
            return out.push(Action::Close { host: from });
        }
        let open = self.session.as_mut().expect("it streams");
        open.batch = number;
        self.written = last;
        out.push(Action::Write { last });
    }

    /// Takes no writes, whichever session they are of.
    fn is_closed(&self) -> bool {
        self.durable.frozen || self.freezing.is_some() || self.health != Health::Whole
    }

    fn synced(&mut self, out: &mut Vec<Action>, end: Serial) {
        assert!(end <= self.written, "what is synced was written");
        self.durable
            .history
            .grow(end.max(self.durable.history.end()));
        if self.answers.is_none()
            && let Some((host, body)) = self.ack()
        {
            out.push(Action::Send { host, body });
        }
        self.freeze_if_quiet(out);
    }

    fn reached(&mut self, end: Serial) {
        // What is there above the answer to a freeze does not count.
        if end > self.durable.history.end() && !self.durable.frozen {
            self.durable.history.grow(end);
            self.written = self.written.max(end);
        }
    }

    /// Only what is durable is vouched for, under the term that is.
    fn ack(&self) -> Option<(Uuid, Body)> {
        let session = self.session.filter(|it| it.resumed)?;
        if self.is_closed() {
            return None;
        }
        let body = Body::Ack {
            copy: self.durable.member.copy,
            session: session.id,
            term: self.term(),
            durable: self.durable.history.end(),
            batch: session.batch,
            credit: self.credit,
        };
        Some((session.host, body))
    }

    fn freeze(&mut self, out: &mut Vec<Action>, from: Uuid, record: Box<Record>) {
        if !self.accepts(out, from, &record) || self.health == Health::Recovering {
            return;
        }
        if has(Rule::FreezeEndsStream) {
            let status = self.status();
            let term = record.number;
            let status = Status { term, ..status };
            let about = self.durable.about.clone();
            let body = Body::Frozen { status, about };
            return out.push(Action::Send { host: from, body });
        }
        self.session = None;
        self.freezing = Some((from, record));
        self.freeze_if_quiet(out);
    }

    /// The end is told when no write is under way that could still change it.
    fn freeze_if_quiet(&mut self, out: &mut Vec<Action>) {
        let writes = self.written > self.durable.history.end() && self.health == Health::Whole;
        if writes || self.answers.is_some() {
            return;
        }
        let Some((from, record)) = self.freezing.take() else {
            return;
        };
        assert!(record.number >= self.term(), "a term never falls");
        self.durable.record = *record;
        self.durable.frozen = true;
        let status = self.status();
        let about = self.durable.about.clone();
        self.persist(out, alloc::vec![(from, Body::Frozen { status, about })]);
    }

    fn damaged(&mut self, out: &mut Vec<Action>) {
        self.health = Health::Damaged;
        if let Some(Session { host, id, .. }) = self.session.take() {
            let copy = self.durable.member.copy;
            let body = Body::Failed { copy, session: id };
            out.push(Action::Send { host, body });
        }
        self.freeze_if_quiet(out);
    }

    /// Less than what was made durable is damage: the device has lost what it said to have synced.
    fn recovered(&mut self, out: &mut Vec<Action>, end: Serial) {
        let known = self.durable.history.end();
        if self.health == Health::Recovering {
            self.health = match end < known {
                true => Health::Damaged,
                false => Health::Whole,
            };
        }
        // What is there above the answer to a freeze does not count.
        if end > known && !self.durable.frozen {
            self.durable.history.grow(end);
        }
        self.written = self.durable.history.end();
        self.freeze_if_quiet(out);
    }

    fn drop(&mut self, out: &mut Vec<Action>, from: Uuid, record: &Record) {
        let named = record.members.contains(&self.durable.member);
        // An owner lets go of a unit with everything at its origin: any host may tell so.
        let released = record.owner.is_none() && record.number > self.term();
        if (released || self.accepts(out, from, record)) && !named {
            self.session = None;
            out.push(Action::Remove);
        }
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
