//! One unit as one host sees it: whether it may be served here, and the way there.
//!
//! ```text
//! Looking ─ a record with copies, of this host or proved ─▶ Lent ─ ended ─▶ Away
//! Away ─ wanted ─▶ Looking ─┬─ no host owns it, or this host did before ──▶ Preparing
//!   ▲                       ├─ another host does and is heard ──▶ Asking ──▶ Looking
//!   │                       └─ another host does and is silent ─▶ Proof ─┬─ proved ─▶ Preparing
//!   │                                                                    └─ silent for long, and
//!   │                                                        other hosts have copies ─▶ Lent
//!   │  Preparing ─ ledger of the new epoch is there ─▶ Remembering ─▶ Deciding ─▶ Owner
//!   └── Deciding (record without owner) ◀─ Remembering ◀─ Draining ◀─ asked, and idle ── Owner
//! ```
//!
//! Always true: a unit is served, and its origin written, only under a record that names this host,
//! this cache and this boot. Such a record is made by a compare-and-swap (rule C7) on a record
//! whose owner is gone: it has let go of the unit with everything at its origin, it is an earlier
//! boot of this host, or there is proof that it writes no more (C9). The ledger of the new epoch is
//! made and synced before the record that names it. A record that may have been linked is
//! remembered durably before it is (C20), and while it is undecided nothing else is begun. What is
//! seen of the vault without a compare-and-swap, and what another host says, moves no right. No
//! clock gives a right (C19): times only begin another attempt. Where other hosts have copies, an
//! owner that is silent for long is replaced without proof, because one of its copies is frozen
//! first; the right to write the origin is not moved by that. Who was replaced says that it writes
//! the origin no more only if it has seen the record that says so, and has nothing undecided.
//! While a record with an open backup window is the newest, or one is under way, the unit is not
//! let go of; who gets it by another way gets the window with it ([`window`]).
//!
//! A machine that acts for a host which is gone ([`Alone`]) follows the one record that its caller
//! has judged, and those of its own, and no other.
//!
//! Deliberately absent: copies on other hosts. A record of this host that names copies, or one of a
//! host that writes no more, is handed over to [`crate::taker`] and [`crate::set`]; until they have
//! ended with another record this machine only waits. Without copies the owner is the only holder
//! of what it has not destaged, so a unit whose owner is silent waits for it, or for an
//! administrator.

use crate::message::Body;
use crate::record::{Epoch, Holder, Member, Record};
use crate::vault::Outcome;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use engine::types::Uuid;

/// Why a machine that acts for a host which is gone does not go on.
const JUDGED_ANEW: &str = "another host has made a record of it meanwhile, or there is none; run \
                           this again to see what is so now";

/// What the host tells a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The unit was named just now: what this host was the owner of it serves again.
    Begin,
    /// A client is here, or an administrator wants it.
    Wanted(bool),
    /// The newest record that is seen in the vault, or why none can be read.
    Seen(Result<Option<Record>, String>),
    /// The ledger of the epoch that was asked for is there and synced, or cannot be made.
    Prepared(Result<(), String>),
    /// What was to be remembered is durable.
    Remembered,
    /// How an attempt to make a record has ended.
    Decided(Outcome),
    /// A message of another host.
    Heard { from: Uuid, body: Body },
    /// There is a link to this host, or there is none any more.
    Link { host: Uuid, up: bool },
    /// The owner of this record writes no more: an administrator says so, or its fence.
    Proved { number: u64 },
    /// The owner of this record is silent for so long that a client need not wait for it, if others
    /// have what it has.
    Silent { number: u64 },
    /// The end of [`Action::Drain`].
    Drained(Drained),
    /// The unit, which this host owns and serves, is to have copies from now on.
    Lend,
    /// The image of the unit, which this host owns and serves, rests from now on, or is about to be
    /// written again: its record is to say so.
    Window(bool),
    /// The machines of its copies have come to this record, which is not theirs any more.
    Ended { record: Record },
    /// The daemon ends: what no client uses here and owes nothing is let go of.
    Leave,
    /// About each second: what is waited for is asked for again.
    Tick,
}

/// How an order to let go of a unit has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drained {
    /// No request to the origin is under way, and the ledger of the epoch tells the rest: that
    /// everything is there, or which other host has some.
    Done,
    /// A client is here: it goes on.
    Busy,
    /// What is dirty cannot be brought to the origin: it goes on.
    Failed,
}

/// What the host is to do. Each but `Send` is answered by one event, before another one of its
/// kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Find the newest record, from this number on.
    Look {
        known: Option<Record>,
    },
    Send {
        host: Uuid,
        body: Body,
    },
    /// Make ledger and journal of an epoch as copies of those of the one before, and sync them.
    /// `whole`: the record that is replaced says that the origin has all that was promised, so the
    /// new ones tell of nothing that the owner before may have.
    Prepare {
        of: Option<Epoch>,
        epoch: Epoch,
        whole: bool,
    },
    /// Keep this over a restart in the place of what was remembered before.
    Remember {
        record: Record,
        undecided: bool,
    },
    /// Make this record. `again`: it may have been linked before.
    Decide {
        record: Record,
        again: bool,
    },
    /// Serve the unit with ledger and journal of this record.
    Serve {
        record: Record,
    },
    /// Bring everything to the origin and let go of it, unless clients are connected.
    Drain,
    /// Another host was given the unit: answer its requests with errors, write nothing.
    Stop,
    /// This record gives the unit to another host, which asks whether this one writes its origin no
    /// more: remember the record, and answer once nothing of this host is on its way there.
    Release {
        record: Record,
    },
    /// Its record names copies: go on with [`crate::taker`], and from there with [`crate::set`].
    Lend {
        record: Record,
    },
}

/// What is waited for, for people and for tests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not served here.
    Away,
    Looking,
    /// The owner was asked to let go of it.
    Asking {
        host: Uuid,
    },
    /// The owner is silent: nothing shows that it writes no more.
    Proof,
    Preparing(Record),
    Remembering(Record),
    Deciding(Record),
    Owner,
    Draining,
    /// The machines of its copies have it.
    Lent,
    /// A record cannot be read, or the vault has lost some that were there.
    Held(String),
}

/// What the owner of a unit says to a host that has a client for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Why it does not let go of it.
    Denied(String),
    /// It destages; so many bytes are left.
    Draining { bytes: u64 },
}

/// One unit on one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    cluster: Uuid,
    unit: Uuid,
    me: Holder,
    /// The newest record that is known.
    newest: Option<Record>,
    /// What a run before may have linked.
    doubt: Option<Record>,
    state: State,
    wanted: bool,
    /// Owners with a link.
    links: Vec<Uuid>,
    proved: Option<u64>,
    silent: Option<u64>,
    /// Who waits for this host to let go.
    asked_by: Option<Uuid>,
    /// What the owner has answered last.
    answer: Option<Answer>,
    /// The record that opens or closes a backup window.
    window: Option<window::Marking>,
    /// It has no links, and acts for a host that is gone: other copies are left out.
    alone: Option<Alone>,
}

/// What a machine goes by that acts for a host which is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Alone {
    /// Nonce of the record that the caller has judged: its owner and its drainer write no more, and
    /// it names what this cache has. No other record of another owner is followed.
    pub judged: Uuid,
    /// What this cache has is this copy, and no volume yet: the record that is made names it, so
    /// that who goes on after a crash finds it.
    pub copy: Option<Uuid>,
}

/// Where nonces come from.
pub trait Nonces {
    fn fresh(&mut self) -> Uuid;
}

/// The surroundings of one event.
pub struct Cx<'a> {
    pub nonces: &'a mut dyn Nonces,
    pub out: &'a mut Vec<Action>,
}

impl Unit {
    /// `remembered`: the record of the last [`Action::Remember`], and whether it was undecided.
    pub fn new(cluster: Uuid, unit: Uuid, me: Holder, remembered: Option<(Record, bool)>) -> Unit {
        let (newest, doubt) = match remembered {
            Some((record, true)) => (None, Some(record)),
            Some((record, false)) => (Some(record), None),
            None => (None, None),
        };
        Unit {
            cluster,
            unit,
            me,
            newest,
            doubt,
            state: State::Away,
            wanted: false,
            links: Vec::new(),
            proved: None,
            silent: None,
            asked_by: None,
            answer: None,
            window: None,
            alone: None,
        }
    }

    /// It goes on with what this cache has, and without the other copies that its record names. The
    /// caller has seen that this cache has everything, and that no other host drains.
    pub fn alone(mut self, by: Alone) -> Unit {
        self.alone = Some(by);
        self
    }

    /// This machine is to follow this record, for a host that is gone.
    fn acts_after(&self, record: Option<&Record>) -> bool {
        let judged = |it: Alone| record.is_none_or(|record| record.nonce == it.judged);
        self.alone.is_some_and(judged)
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn newest(&self) -> Option<&Record> {
        self.newest.as_ref()
    }

    /// The epoch whose ledger is of no use to any host, now that the record of this one has ended
    /// so. A record that only changes the owner, or the members, has the epoch of before: that of
    /// the record which won may be the same, and its ledger is the only one then.
    pub fn spare_epoch(&self, outcome: &Outcome) -> Option<Epoch> {
        let State::Deciding(record) = &self.state else {
            return None;
        };
        let named = match outcome {
            Outcome::Lost(other) => Some(other.epoch),
            Outcome::Unwritten => self.newest.as_ref().map(|newest| newest.epoch),
            Outcome::Won(_) | Outcome::Damaged(_) => return None,
        };
        let spare = record.owner.is_some() && named != Some(record.epoch);
        spare.then_some(record.epoch)
    }

    /// A record names this host, or may come to do so: others would ask it for the unit.
    pub fn may_own(&self) -> bool {
        let under_way = matches!(
            self.state,
            State::Preparing(_) | State::Remembering(_) | State::Deciding(_) | State::Lent
        );
        let undecided = self.doubt.is_some() || self.window.is_some();
        under_way || undecided || self.is_mine()
    }

    /// What the owner has said to the last request for the unit.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub fn handle(&mut self, cx: &mut Cx<'_>, event: Event) {
        match event {
            Event::Begin => self.begin(cx),
            Event::Wanted(wanted) => self.want(cx, wanted),
            Event::Seen(seen) => self.seen(cx, seen),
            Event::Prepared(made) => self.prepared(cx, made),
            Event::Remembered if self.window.is_some() => self.window_remembered(cx),
            Event::Remembered => self.remembered(cx),
            Event::Decided(outcome) if self.window.is_some() => self.window_decided(cx, outcome),
            Event::Decided(outcome) => self.decided(cx, outcome),
            Event::Heard { from, body } => self.heard(cx, from, body),
            Event::Link { host, up } => self.link(cx, host, up),
            Event::Proved { number } => self.prove(cx, number),
            Event::Silent { number } => self.silent(cx, number),
            Event::Drained(done) => self.drained(cx, done),
            Event::Lend => self.lend(),
            Event::Window(open) => self.window(cx, open),
            Event::Ended { record } => self.ended(cx, record),
            Event::Leave => self.leave(cx),
            Event::Tick => self.tick(cx),
        }
        self.check();
    }

    fn check(&self) {
        if let State::Owner | State::Draining = self.state {
            let newest = self.newest.as_ref().expect("an owner has a record");
            assert!(self.names_me(newest), "an owner is named by its record");
            assert!(
                self.doubt.is_none(),
                "an owner serves under a decided record"
            );
        }
        if let State::Remembering(record) | State::Deciding(record) = &self.state {
            let newest = self.newest.as_ref().map_or(0, |newest| newest.number);
            assert!(record.number > newest, "a record follows what is known");
        }
    }

    /// The record gives the unit to this run of this host, or to one before it under one boot.
    fn names_me(&self, record: &Record) -> bool {
        let owner = record.owner.as_ref();
        owner.is_some_and(|owner| owner.is_same_host(&self.me) && owner.boot == self.me.boot)
    }

    /// By what is known the owner is this host, whichever run of it.
    fn is_mine(&self) -> bool {
        let owner = self.newest.as_ref().and_then(|it| it.owner.as_ref());
        owner.is_some_and(|owner| owner.is_same_host(&self.me))
    }

    /// This host is to be the owner, if only to let go of the unit in order.
    fn wants(&self) -> bool {
        self.wanted || self.asked_by.is_some()
    }

    fn rests(&self) -> bool {
        matches!(
            self.state,
            State::Away | State::Asking { .. } | State::Proof | State::Held(_)
        )
    }

    fn begin(&mut self, cx: &mut Cx<'_>) {
        if self.rests() {
            self.look(cx);
        }
    }

    fn want(&mut self, cx: &mut Cx<'_>, wanted: bool) {
        self.wanted = wanted;
        match (wanted, &self.state) {
            (true, State::Away) => self.look(cx),
            (false, State::Asking { .. } | State::Proof | State::Held(_)) => {
                self.state = State::Away;
                (self.answer, self.silent) = (None, None);
            }
            _ => {}
        }
    }

    /// What may have been linked is decided first.
    fn look(&mut self, cx: &mut Cx<'_>) {
        assert!(self.rests(), "one thing at a time");
        if self.window.is_some() {
            // It is decided first, and what is seen then is looked at with the next tick.
            return;
        }
        if let Some(record) = self.doubt.clone() {
            self.state = State::Deciding(record.clone());
            let again = true;
            cx.out.push(Action::Decide { record, again });
            return;
        }
        self.state = State::Looking;
        let known = self.newest.clone();
        cx.out.push(Action::Look { known });
    }

    fn seen(&mut self, cx: &mut Cx<'_>, seen: Result<Option<Record>, String>) {
        // What is on its way decides; a look of before says nothing then.
        if let State::Preparing(_) | State::Remembering(_) | State::Deciding(_) | State::Lent =
            self.state
        {
            return;
        }
        let seen = match seen {
            Ok(seen) => seen,
            Err(why) if self.state == State::Looking => return self.hold(cx, why),
            Err(_) => return,
        };
        if let Some(seen) = seen {
            let known = self.newest.as_ref();
            match known {
                Some(known) if known.number > seen.number => {}
                Some(known) if known.number == seen.number && known.nonce != seen.nonce => {
                    return self.hold(cx, "its records were replaced by others".into());
                }
                _ => self.newest = Some(seen),
            }
        } else if self.newest.is_some() && self.state == State::Looking {
            return self.hold(cx, "its records are not there any more".into());
        }
        match self.state {
            State::Looking => self.choose(cx),
            State::Owner | State::Draining => self.look_if_deposed(cx),
            _ => {}
        }
    }

    fn look_if_deposed(&mut self, cx: &mut Cx<'_>) {
        let newest = self.newest.as_ref().expect("an owner has a record");
        if !self.names_me(newest) {
            self.state = State::Away;
            cx.out.push(Action::Stop);
        }
    }

    fn hold(&mut self, cx: &mut Cx<'_>, why: String) {
        if let State::Owner | State::Draining = self.state {
            cx.out.push(Action::Stop);
        }
        self.state = State::Held(why);
    }

    /// The next step to be the owner, from what is known of the vault.
    fn choose(&mut self, cx: &mut Cx<'_>) {
        assert!(self.state == State::Looking && self.doubt.is_none());
        if !self.is_mine() {
            // There is nothing to let go of here.
            self.tell_who_asked(cx);
        }
        let acts = self.acts_after(self.newest.as_ref());
        if self.alone.is_some() && !self.is_mine() {
            // Only a record whose owner writes no more is followed.
            return match acts && self.newest.is_some() {
                true => self.prepare(cx),
                false => self.hold(cx, JUDGED_ANEW.into()),
            };
        }
        if !self.wants() && !self.is_mine() {
            self.state = State::Away;
            return;
        }
        let Some(newest) = self.newest.clone() else {
            return self.prepare(cx);
        };
        let copies = self.goes_on_with_copies(&newest);
        match &newest.owner {
            None => self.prepare(cx),
            Some(owner) if owner.is_same_host(&self.me) && !newest.members.is_empty() => {
                match self.alone {
                    Some(_) => self.prepare(cx),
                    None => self.hand_over(cx, newest),
                }
            }
            // Who has the order to write begins with a record that says so.
            Some(_) if self.names_me(&newest) && !(self.alone.is_some() && newest.quiesced) => {
                self.serve(cx, newest);
            }
            // An earlier boot of this host: it is the only one that has the data.
            Some(owner) if owner.is_same_host(&self.me) => self.prepare(cx),
            // This host has another cache by now, and the origin has everything.
            Some(owner) if owner.host == self.me.host && newest.at_origin && !copies => {
                self.prepare(cx);
            }
            Some(_) if self.proved == Some(newest.number) && copies => self.hand_over(cx, newest),
            Some(_) if self.proved == Some(newest.number) => self.prepare(cx),
            Some(owner) if self.links.contains(&owner.host) => {
                let (host, number) = (owner.host, newest.number);
                self.state = State::Asking { host };
                let body = Body::Take { number };
                cx.out.push(Action::Send { host, body });
            }
            Some(_) if self.silent == Some(newest.number) && copies && self.wanted => {
                self.hand_over(cx, newest);
            }
            Some(_) => self.state = State::Proof,
        }
    }

    /// Once its owner writes no more, this record is followed by what a copy has. Where the origin
    /// has all that was promised, a copy that is neither here nor heard is not waited for.
    pub fn goes_on_with_copies(&self, record: &Record) -> bool {
        let owner = record.owner.as_ref().map(|owner| owner.host);
        let mut others = record.members.iter().filter(|it| Some(it.host) != owner);
        let is_here = |host, cache| (host, cache) == (self.me.host, self.me.cache);
        match record.at_origin {
            true => others.any(|it| is_here(it.host, it.cache) || self.links.contains(&it.host)),
            false => others.next().is_some(),
        }
    }

    fn hand_over(&mut self, cx: &mut Cx<'_>, record: Record) {
        assert!(self.doubt.is_none(), "what may be linked is decided first");
        self.state = State::Lent;
        self.answer = None;
        cx.out.push(Action::Lend { record });
    }

    fn lend(&mut self) {
        if self.state == State::Owner && self.window.is_none() {
            self.state = State::Lent;
        }
    }

    fn ended(&mut self, cx: &mut Cx<'_>, record: Record) {
        if self.state != State::Lent {
            return;
        }
        self.state = State::Away;
        if self
            .newest
            .as_ref()
            .is_none_or(|it| it.number <= record.number)
        {
            self.newest = Some(record);
        }
        self.tell_who_asked(cx);
        if self.wants() || self.is_mine() {
            self.look(cx);
        }
    }

    fn serve(&mut self, cx: &mut Cx<'_>, record: Record) {
        assert!(self.names_me(&record) && self.doubt.is_none());
        self.state = State::Owner;
        self.answer = None;
        cx.out.push(Action::Serve { record });
        if !self.wanted && self.asked_by.is_some() && !self.stays_for_window(cx) {
            self.state = State::Draining;
            cx.out.push(Action::Drain);
        }
    }

    fn prepare(&mut self, cx: &mut Cx<'_>) {
        let of = self.newest.as_ref().map(|newest| newest.epoch);
        let epoch = Epoch {
            number: of.map_or(0, |of| of.number) + 1,
            nonce: cx.nonces.fresh(),
        };
        let mut record = self.next_record(cx, Some(self.me.clone()), epoch);
        if let Some(copy) = self.alone.and_then(|it| it.copy) {
            let (host, cache) = (self.me.host, self.me.cache);
            record.members.push(Member { host, cache, copy });
            record.given = record.number;
        }
        self.state = State::Preparing(record);
        let of = of.filter(|of| of.number > 0);
        // What this host has itself is in its log.
        let newest = self.newest.as_ref().filter(|_| !self.is_mine());
        let whole = newest.is_some_and(|newest| newest.at_origin);
        cx.out.push(Action::Prepare { of, epoch, whole });
    }

    fn next_record(&self, cx: &mut Cx<'_>, owner: Option<Holder>, epoch: Epoch) -> Record {
        let newest = self.newest.as_ref();
        let owner_is = owner.is_some();
        Record {
            cluster: self.cluster,
            unit: self.unit,
            number: newest.map_or(0, |newest| newest.number) + 1,
            nonce: cx.nonces.fresh(),
            before: newest.map_or(Uuid([0; 16]), |newest| newest.nonce),
            owner,
            epoch,
            drainer: None,
            given: 0,
            wanted: newest.map_or(0, |newest| newest.wanted),
            degraded: None,
            at_origin: false,
            // Who acts for a host that is gone has the order to write.
            quiesced: owner_is && self.alone.is_none() && newest.is_some_and(|it| it.quiesced),
            members: Vec::new(),
        }
    }

    fn prepared(&mut self, cx: &mut Cx<'_>, made: Result<(), String>) {
        let State::Preparing(record) = self.state.clone() else {
            return;
        };
        match made {
            Ok(()) => self.remember(cx, record),
            Err(why) => self.hold(cx, why),
        }
    }

    fn remember(&mut self, cx: &mut Cx<'_>, record: Record) {
        self.state = State::Remembering(record.clone());
        let undecided = true;
        cx.out.push(Action::Remember { record, undecided });
    }

    fn remembered(&mut self, cx: &mut Cx<'_>) {
        let State::Remembering(record) = self.state.clone() else {
            return;
        };
        self.doubt = Some(record.clone());
        self.state = State::Deciding(record.clone());
        let again = false;
        cx.out.push(Action::Decide { record, again });
    }

    fn decided(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        let State::Deciding(record) = self.state.clone() else {
            return;
        };
        self.state = State::Away;
        match outcome {
            Outcome::Won(won) => {
                assert_eq!(won, record, "what was won is what was made");
                self.take_decision(cx, won);
            }
            Outcome::Lost(other) => {
                self.take_decision(cx, other);
                let acts = self.alone.is_some() && record.owner.is_some();
                if acts && self.state == State::Away {
                    // Who waits hears that another host has it.
                    self.look(cx);
                }
            }
            Outcome::Unwritten => {
                self.doubt = None;
                let why = "its record cannot be written into the vault; make room there, and see \
                           that this host reaches it and may write it";
                self.hold(cx, why.into());
            }
            // Undecided for as long as the name cannot be read.
            Outcome::Damaged(why) => self.hold(cx, why),
        }
        self.tell_who_asked(cx);
    }

    /// What was in doubt is not any more; `record` is what its number has.
    fn take_decision(&mut self, cx: &mut Cx<'_>, record: Record) {
        self.doubt = None;
        self.newest = Some(record.clone());
        let (serves, undecided) = (self.names_me(&record), false);
        cx.out.push(Action::Remember {
            record: record.clone(),
            undecided,
        });
        match serves && record.owner.as_ref() == Some(&self.me) {
            true => self.serve(cx, record),
            _ if self.wants() || self.is_mine() => self.look(cx),
            _ => {}
        }
    }

    /// Who has waited may look again.
    fn tell_who_asked(&mut self, cx: &mut Cx<'_>) {
        let number = self.newest.as_ref().map_or(0, |newest| newest.number);
        if !self.is_mine()
            && let Some(host) = self.asked_by.take()
        {
            let body = Body::Newer { number };
            cx.out.push(Action::Send { host, body });
        }
    }

    fn heard(&mut self, cx: &mut Cx<'_>, from: Uuid, body: Body) {
        match body {
            Body::Take { number } => self.asked(cx, from, number),
            Body::Denied { why } if self.state == (State::Asking { host: from }) => {
                self.answer = Some(Answer::Denied(why));
            }
            Body::Draining { bytes } if self.state == (State::Asking { host: from }) => {
                self.answer = Some(Answer::Draining { bytes });
            }
            Body::Newer { .. } | Body::NotMine { .. } => {
                let asked = self.state == (State::Asking { host: from });
                if asked || self.state == State::Away {
                    self.look(cx);
                } else if let State::Owner | State::Draining = self.state {
                    let known = self.newest.clone();
                    cx.out.push(Action::Look { known });
                }
            }
            Body::Release { number, epoch } => self.asked_to_release(cx, from, number, epoch),
            // Not asked for, or about copies: not for this machine.
            _ => {}
        }
    }

    /// Another host has a client for the unit. One with copies is let go of by their machines.
    fn asked(&mut self, cx: &mut Cx<'_>, from: Uuid, number: u64) {
        let known = self.newest.as_ref().map_or(0, |newest| newest.number);
        let knows = known >= number && !self.is_mine();
        if knows && self.rests() {
            let number = known;
            let body = Body::NotMine { number };
            cx.out.push(Action::Send { host: from, body });
            return;
        }
        if self.state == State::Lent {
            return;
        }
        self.asked_by = Some(from);
        if self.state == State::Owner && self.stays_for_window(cx) {
            return;
        }
        let body = Body::Draining { bytes: 0 };
        cx.out.push(Action::Send { host: from, body });
        if self.state == State::Owner {
            self.state = State::Draining;
            cx.out.push(Action::Drain);
        } else if self.rests() {
            self.look(cx);
        }
    }

    fn link(&mut self, cx: &mut Cx<'_>, host: Uuid, up: bool) {
        self.links.retain(|link| *link != host);
        if up {
            self.links.push(host);
            self.links.sort();
            self.silent = None;
        }
        match self.state {
            State::Proof if up => self.look(cx),
            // It may not know yet that another host was given the unit.
            State::Owner | State::Draining if up => {
                let number = self.newest.as_ref().map_or(0, |newest| newest.number);
                let body = Body::Newer { number };
                cx.out.push(Action::Send { host, body });
            }
            State::Asking { host: asked } if asked == host && !up => self.look(cx),
            _ => {}
        }
    }

    fn prove(&mut self, cx: &mut Cx<'_>, number: u64) {
        self.proved = Some(number);
        if let State::Proof | State::Asking { .. } = self.state {
            self.look(cx);
        }
    }

    fn silent(&mut self, cx: &mut Cx<'_>, number: u64) {
        self.silent = Some(number);
        if self.state == State::Proof {
            self.look(cx);
        }
    }

    /// The owner of a record asks whether this host writes the origin no more.
    fn asked_to_release(&mut self, cx: &mut Cx<'_>, from: Uuid, number: u64, epoch: Epoch) {
        let newest = self.newest.as_ref().filter(|it| it.number >= number);
        let Some(newest) = newest else {
            let known = self.newest.clone();
            match self.state {
                State::Owner | State::Draining => cx.out.push(Action::Look { known }),
                _ if self.rests() => self.look(cx),
                _ => {}
            }
            return;
        };
        let owns = newest.owner.as_ref().is_some_and(|it| it.host == from);
        let drainer = newest.drainer();
        // Also with a cache that was made anew since.
        let drains = drainer.is_some_and(|it| it.host == self.me.host);
        if owns && drains && newest.epoch == epoch && self.has_let_go(newest) {
            let record = newest.clone();
            cx.out.push(Action::Release { record });
        }
    }

    /// By this record, which is the newest that is known, another host owns the unit, and this one
    /// makes none.
    pub fn has_let_go(&self, record: &Record) -> bool {
        let newest = self.newest.as_ref() == Some(record);
        let undecided = self.doubt.is_some() || self.window.is_some();
        newest && !self.is_mine() && self.rests() && !undecided
    }

    fn drained(&mut self, cx: &mut Cx<'_>, done: Drained) {
        if self.state != State::Draining {
            return;
        }
        if let Drained::Busy | Drained::Failed = done {
            self.state = State::Owner;
            if let Some(host) = self.asked_by.take() {
                let name = &self.me.name;
                let why = match done {
                    Drained::Busy => format!("a client on {name} uses it"),
                    _ => format!("{name} cannot destage it; see `tenuto status -x` there"),
                };
                let body = Body::Denied { why };
                cx.out.push(Action::Send { host, body });
            }
            return;
        }
        let newest = self.newest.as_ref().expect("an owner has a record");
        let record = self.next_record(cx, None, newest.epoch);
        self.remember(cx, record);
    }

    fn leave(&mut self, cx: &mut Cx<'_>) {
        self.wanted = false;
        if self.state == State::Owner && !self.stays_for_window(cx) {
            self.state = State::Draining;
            cx.out.push(Action::Drain);
        }
    }

    fn tick(&mut self, cx: &mut Cx<'_>) {
        self.window_again(cx);
        let newest = self.newest.as_ref();
        let acts = self.wants() || self.is_mine() || self.acts_after(newest);
        if self.rests() && (acts || self.doubt.is_some()) {
            self.look(cx);
        }
    }
}

#[path = "unit/window.rs"]
mod window;

#[cfg(test)]
#[path = "unit_tests.rs"]
mod tests;
