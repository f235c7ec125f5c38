//! The owner's side of the copies of a unit: which of them must have a flush before it is
//! acknowledged, and how this set changes.
//!
//! ```text
//!          a member is unfit                    record without it decided
//! Full ─────────────────────▶ Waiting ────────────────────────────────────▶ Degraded
//!  ▲                                                                            │
//!  │  decided  ┌─ promote: durable there ≥ all flushes and cuts ◀─ live ◀─ learner opened
//!  └───────────┘
//! ```
//! Owns the record of the unit while this host is its owner, and the one change of it that may be
//! under way. Always true:
//!
//! - A flush is acknowledged, and a cut of the destage begun, up to what is durable at all members
//!   of the record, and of the record that is being made, from the moment before it is remembered
//!   until it is decided (C2, C8, corrections 1 and 2). A learner counts before it is proposed.
//! - A member is left out, or a learner taken in, by a record; what follows from it comes after
//!   the decision (C3).
//! - A learner is proposed only when it is complete and durable up to each flush that was
//!   acknowledged and each cut that was begun (C4, correction 1).
//! - What a peer has counts only after it has taken the forks of this ownership (C6).
//! - The origin is written under a record whose drainer is this host in this boot. Without one the
//!   unit is served, and no cut begins (C7, C10). The drainer of before is asked to say that it
//!   writes no more; its word counts only if it knew this ownership when it gave it, because then
//!   it can write again only by a record that ends this ownership (C9).
//! - A copy without room is left out by its host's own word, never for want of credit (correction
//!   13). It is dropped when the record without it is decided: what it has is what is short there.
//! - While the own device fails, the own copy is not complete: what it has may be gone. Once the
//!   origin has everything, the record names no other copy, and says that the origin has all; only
//!   then the origin is written without the log.
//! - The last complete copy is never left out. If it is unfit, the unit waits for it: after a
//!   takeover the owner's own copy is not complete until it has fetched what was left.
//! - No cut begins while the record says that a backup window is open, or is to say so.
//! - Fewer than p + 1 complete copies are shown as degraded, with the reason. After a takeover that
//!   is so until what the owner before has left is complete in p + 1 of them (correction 10).
//!
//! Deliberately absent: times, see [`crate::watch`]; where a copy goes, see [`crate::choice`]; the
//! stream itself.

mod at_origin;
mod drain;
mod give;
mod left;
mod own_log;
mod window;
mod wish;

pub use self::at_origin::breaks_window;
pub use self::window::{has_window, rests};

use self::at_origin::AtOrigin;
use self::left::Left;
pub use self::own_log::{OwnLog, of as own_log_of};
use self::wish::Wish;
use crate::broken::{Rule, has};
use crate::change::{Change, End, Order};
use crate::history::{History, Return};
use crate::message::{About, Body, Health, Status};
use crate::record::{Degraded, Epoch, Holder, MEMBERS_MAX, Member, Record};
use crate::taker::Ownership;
use crate::unit::Nonces;
use crate::vault::Outcome;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use engine::types::{Serial, Uuid};

/// Copies of owners before that are remembered at a time; they are offered again and again.
const OLD_MAX: usize = 64;

/// What the host tells the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This run has the unit just now.
    Begin,
    Heard {
        from: Uuid,
        body: Body,
    },
    /// A peer did not answer for too long; see [`crate::watch`].
    Unfit {
        host: Uuid,
    },
    /// It answers again, and has waited long enough.
    Fit {
        host: Uuid,
    },
    /// The answer to [`Action::Choose`]: host and cache.
    Chosen(Option<(Uuid, Uuid)>),
    /// What is sent to this peer is what is written now.
    Live {
        host: Uuid,
    },
    /// Serials up to here were given.
    Given(Serial),
    /// The own copy is durable up to here.
    Synced(Serial),
    /// The own copy has everything above this serial, after what was left was fetched.
    Fetched {
        from: Serial,
    },
    /// The ledger says that the origin has all up to here.
    Destaged(Serial),
    /// So many copies on other hosts are wanted.
    Wanted(u8),
    /// The guest may move to this host soon: it is to have a copy besides. None: not any more.
    Standby(Option<Uuid>),
    /// While copies are missing, flushes are to be answered when the origin has what they cover.
    AtOrigin(bool),
    /// The log answers as [`Set::answers_at_origin`] says, after all that was given so far.
    Obeys(bool),
    /// What the own log is good for.
    OwnLog(OwnLog),
    /// The image rests from now on, or is about to be written again: the record is to say so.
    Window(bool),
    /// The drainer of this epoch writes no more (C9).
    Proved(Epoch),
    /// The ledger of the epoch that was asked for is there and synced, or cannot be made.
    Prepared(Result<(), String>),
    Remembered,
    Decided(Outcome),
    /// A record that the vault has.
    Seen(Record),
    /// Everything is at the origin, no request is under way, no client is here: let go of it.
    Release,
    /// No client is here, and none is let in: this host is to be the owner. None: no more.
    Give(Option<Holder>),
    /// What was not answered is asked for again.
    Tick,
}

/// What the host is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Send {
        host: Uuid,
        body: Body,
    },
    Vault(Order),
    /// A place for another copy, on none of these hosts.
    Choose {
        not: Vec<Uuid>,
    },
    /// Send to this copy what is above `from`, in order.
    Stream {
        member: Member,
        from: Serial,
    },
    /// Send nothing more to this host.
    Close {
        host: Uuid,
    },
    /// Make ledger and journal of this epoch from those of the one before.
    Prepare {
        of: Epoch,
        epoch: Epoch,
    },
    /// Serve the unit; another host may still write its origin.
    Serve,
    /// Cuts may begin, with ledger and journal of this record.
    Drain {
        record: Record,
    },
    /// The unit is another host's, or no host's: serve and write nothing more.
    Stop {
        record: Record,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// p + 1 complete copies.
    Full,
    Degraded,
    /// A member is unfit, and the record without it is not decided yet.
    Waiting,
    /// Another record has ended this ownership.
    Ended,
}

/// A copy on another host, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerShown {
    pub member: Member,
    /// The record names it, or the one that is being made does.
    pub counts: bool,
    /// What it lacks is on its way to it.
    pub streams: bool,
    pub unfit: bool,
    pub durable: Option<Serial>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Closed,
    Opening,
    Resuming,
    Streaming,
}

/// A copy on another host, a member or the learner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    member: Member,
    at: At,
    /// None: it has not taken the forks of this ownership.
    durable: Option<Serial>,
    from: Serial,
    /// The stream to it has no backlog.
    live: bool,
    unfit: bool,
    /// No copy of this name was there before.
    fresh: bool,
    /// It has no room, or cannot go on.
    full: bool,
}

impl Peer {
    fn of(member: Member, at: At, from: Serial, fresh: bool) -> Peer {
        Peer {
            member,
            at,
            durable: None,
            from,
            live: false,
            unfit: false,
            fresh,
            full: false,
        }
    }
}

/// The surroundings of one event.
pub struct Cx<'a> {
    pub nonces: &'a mut dyn Nonces,
    pub out: &'a mut Vec<Action>,
}

impl Cx<'_> {
    fn send(&mut self, host: Uuid, body: Body) {
        self.out.push(Action::Send { host, body });
    }
}

/// The copies of one unit, at its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Set {
    me: Holder,
    own: Member,
    own_from: Serial,
    own_durable: Serial,
    /// Up to the newest serial that was given.
    history: History,
    record: Record,
    change: Option<Change>,
    peers: Vec<Peer>,
    left: Left,
    acknowledged: Serial,
    cut: Serial,
    destaged: Serial,
    wish: Wish,
    origin: AtOrigin,
    choosing: bool,
    proved: Option<Epoch>,
    preparing: Option<Epoch>,
    releasing: bool,
    giving: Option<Holder>,
    /// Something could not be written: it is tried again with the next [`Event::Tick`].
    paused: bool,
    /// What lies under the name of a change cannot be read: so is that.
    unread: bool,
    ended: bool,
}

impl Set {
    /// What an earlier run may have linked is decided: [`crate::taker`] does that first.
    pub fn new(me: Holder, owns: Ownership) -> Set {
        let end = owns.history.end();
        // A record that is not degraded vouches for its members until they say more.
        let whole = owns.record.degraded.is_none();
        let from = Serial(if whole { 0 } else { u64::MAX });
        let believed = has(Rule::MembersTakeForks).then_some(end);
        let peer = |member: &Member| Peer {
            durable: believed,
            ..Peer::of(*member, At::Closed, from, false)
        };
        let others = owns.record.members.iter();
        let others = others.filter(|member| **member != owns.own);
        Set {
            own: owns.own,
            own_from: owns.from,
            own_durable: end,
            peers: others.map(peer).collect(),
            wish: Wish {
                window: owns.record.quiesced,
                ..Wish::new(owns.record.wanted)
            },
            origin: AtOrigin::new(owns.record.at_origin),
            change: None,
            record: owns.record,
            left: Left::default(),
            // An earlier run may have said so, and begun a cut.
            acknowledged: end,
            cut: end,
            destaged: owns.destaged,
            history: owns.history,
            choosing: false,
            proved: None,
            preparing: None,
            releasing: false,
            giving: None,
            paused: false,
            unread: false,
            ended: false,
            me,
        }
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The record that is being made.
    pub fn changing(&self) -> Option<&Record> {
        self.change.as_ref().map(Change::record)
    }

    pub fn state(&self) -> State {
        let waits = |peer: &Peer| peer.unfit && self.counts(&peer.member);
        match self.degraded(&self.record.members) {
            _ if self.ended => State::Ended,
            _ if self.peers.iter().any(waits) => State::Waiting,
            None => State::Full,
            Some(_) => State::Degraded,
        }
    }

    /// The copy that is being made, and what of it is durable.
    pub fn learner(&self) -> Option<(Member, Option<Serial>)> {
        let peer = self.peers.iter().find(|peer| !self.names(&peer.member))?;
        Some((peer.member, peer.durable))
    }

    pub fn shown(&self) -> Vec<PeerShown> {
        let shown = self.peers.iter().map(|peer| PeerShown {
            member: peer.member,
            counts: self.counts(&peer.member),
            streams: peer.at == At::Streaming,
            unfit: peer.unfit,
            durable: peer.durable,
        });
        shown.collect()
    }

    /// Up to here the origin may have it.
    pub fn cut(&self) -> Serial {
        self.cut
    }

    /// The origin has all up to here.
    pub fn destaged(&self) -> Serial {
        self.destaged
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Complete copies beyond the owner's: what p is in truth.
    pub fn real(&self) -> usize {
        self.complete(&self.record.members).saturating_sub(1)
    }

    /// The members of the record, of the one that is being made, and a learner that is about to be
    /// proposed.
    pub fn must_have(&self) -> Vec<Member> {
        let mut all = self.record.members.clone();
        if all.is_empty() {
            // The record is of before there were copies.
            all.push(self.own);
        }
        let change = self.change.as_ref().map_or(&[][..], Change::members);
        let live = self.peers.iter().filter(|peer| peer.live && !peer.unfit);
        let live = live.map(|peer| &peer.member);
        for member in change.iter().chain(live) {
            if !all.contains(member) {
                all.push(*member);
            }
        }
        all
    }

    /// A flush up to here may be answered now; from then on it counts as acknowledged.
    pub fn acknowledge(&mut self) -> Option<Serial> {
        let safe = self.durable_at(&self.asked_for(Rule::FlushesAskBoth))?;
        let safe = self.within_origin(safe);
        self.acknowledged = self.acknowledged.max(safe);
        Some(safe)
    }

    /// A cut up to here may begin now; from then on the origin may have it. None: nothing new, or
    /// another host may write the origin.
    pub fn begin_cut(&mut self) -> Option<Serial> {
        let mut asked = self.asked_for(Rule::CutsAskBoth);
        if has(Rule::CutsAskMembers) {
            asked.retain(|member| *member == self.own);
        }
        let safe = self.durable_at(&asked)?;
        if !self.may_drain() || safe <= self.cut || rests(self) {
            return None;
        }
        self.cut = safe;
        Some(safe)
    }

    fn asked_for(&self, both: Rule) -> Vec<Member> {
        match has(both) {
            true => self.record.members.clone(),
            false => self.must_have(),
        }
    }

    fn durable_at(&self, all: &[Member]) -> Option<Serial> {
        if self.ended {
            return None;
        }
        let durable = |member: &Member| match *member == self.own {
            true => Some(self.own_durable),
            false => {
                let peer = self.peers.iter().find(|peer| peer.member == *member);
                peer.and_then(|peer| peer.durable)
            }
        };
        assert!(all.contains(&self.own), "the owner has a copy");
        all.iter()
            .map(durable)
            .try_fold(Serial(u64::MAX), |least, one| one.map(|one| least.min(one)))
    }

    fn names(&self, member: &Member) -> bool {
        self.record.members.contains(member)
    }

    /// An acknowledgment counts it.
    fn counts(&self, member: &Member) -> bool {
        let changed = self.change.as_ref().map_or(&[][..], Change::members);
        self.names(member) || changed.contains(member)
    }

    fn complete(&self, members: &[Member]) -> usize {
        let is = |member: &&Member| match **member == self.own {
            true => self.own_from <= self.destaged && own_log::has_copy(self),
            false => {
                let peer = self.peers.iter().find(|peer| peer.member == **member);
                peer.is_some_and(|peer| peer.from <= self.destaged)
            }
        };
        members.iter().filter(is).count()
    }

    fn degraded(&self, members: &[Member]) -> Option<Degraded> {
        if self.complete(members) > usize::from(self.wish.copies) {
            return None;
        }
        let lost = |member: &Member| !members.contains(member);
        match self.record.degraded {
            Some(Degraded::TakenOver) => Some(Degraded::TakenOver),
            _ if self.record.members.iter().any(lost) => Some(Degraded::PeerLost),
            known => Some(known.unwrap_or(Degraded::TooFew)),
        }
    }

    pub fn handle(&mut self, cx: &mut Cx<'_>, event: Event) {
        if self.ended {
            return;
        }
        match event {
            Event::Begin => self.begin(cx),
            Event::Heard { from, body } => self.heard(cx, from, body),
            Event::Unfit { host } => self.unfit(cx, host),
            Event::Fit { host } => self.fit(cx, host),
            Event::Chosen(place) => self.chosen(cx, place),
            Event::Live { host } => self.live(host),
            Event::Given(serial) => {
                self.history.grow(serial);
                (self.releasing, self.giving) = (false, None);
            }
            Event::Synced(serial) => self.own_durable = self.own_durable.max(serial),
            Event::Fetched { from } => self.own_from = self.own_from.min(from),
            Event::Destaged(serial) => self.destage(cx, serial),
            Event::Wanted(wanted) => self.wish.want(wanted),
            Event::Standby(host) => self.wish.standby = host.filter(|it| *it != self.me.host),
            Event::AtOrigin(wanted) => self.origin.want(wanted),
            Event::Obeys(obeys) => {
                if self.origin.obey(obeys) {
                    self.acknowledged = self.acknowledged.max(self.history.end());
                }
            }
            Event::OwnLog(log) => self.origin.own_log = log,
            Event::Window(open) => self.wish.window = open,
            Event::Proved(epoch) => self.proved = Some(epoch),
            Event::Prepared(made) => self.prepared(cx, made),
            Event::Remembered => {
                let order = self.change.as_mut().and_then(Change::remembered);
                cx.out.extend(order.map(Action::Vault));
            }
            Event::Decided(outcome) => self.decided(cx, outcome),
            Event::Seen(record) => self.seen(cx, record),
            Event::Release => self.releasing = self.may_drain() && !rests(self),
            Event::Give(to) => self.give(to),
            Event::Tick => self.tick(cx),
        }
        self.step(cx);
        self.origin.forget_unless(self.answers_at_origin());
        self.check();
    }

    fn check(&self) {
        assert!(
            self.own_durable <= self.history.end(),
            "what is durable was given"
        );
        assert!(self.record.number > 0 && self.peers.len() < 2 * MEMBERS_MAX);
        if let Some(change) = &self.change {
            assert!(
                change.record().number == self.record.number + 1,
                "a change follows the record"
            );
        }
        let alone = self.record.members.is_empty();
        assert!(
            self.ended || alone || self.names(&self.own),
            "the owner has a copy"
        );
    }

    fn begin(&mut self, cx: &mut Cx<'_>) {
        // No guest may see what the record says not to be there for the next owner.
        let ahead = self.record.at_origin && self.acknowledged > self.destaged;
        if !self.origin.begin(ahead) {
            return self.tick(cx);
        }
        match self.may_drain() {
            true => {
                let record = self.record.clone();
                cx.out.push(Action::Drain { record });
            }
            false => cx.out.push(Action::Serve),
        }
        self.tick(cx);
    }

    fn tick(&mut self, cx: &mut Cx<'_>) {
        (self.choosing, self.paused) = (false, false);
        let (number, epoch) = (self.record.number, self.record.epoch);
        if let Some(host) = self.waits_for().map(|it| it.host) {
            cx.send(host, Body::Release { number, epoch });
        }
        if let Some(change) = self.change.as_ref().filter(|_| self.unread) {
            self.unread = false;
            let order = Change::again(change.record().clone()).1;
            cx.out.push(Action::Vault(order));
        }
        for at in 0..self.peers.len() {
            if self.peers[at].at != At::Streaming && !self.peers[at].unfit {
                self.open(cx, at);
            }
        }
    }

    fn open(&mut self, cx: &mut Cx<'_>, at: usize) {
        let peer = &mut self.peers[at];
        peer.at = At::Opening;
        let Peer { member, fresh, .. } = *peer;
        let body = Body::Open {
            member,
            session: self.me.session,
            fresh,
            destaged: self.destaged,
            record: Box::new(self.record.clone()),
            about: About::default(),
        };
        cx.send(member.host, body);
    }

    fn heard(&mut self, cx: &mut Cx<'_>, from: Uuid, body: Body) {
        let at = |copy: Uuid| {
            let mut peers = self.peers.iter();
            peers.position(|peer| peer.member.copy == copy && peer.member.host == from)
        };
        match body {
            Body::Opened {
                session, status, ..
            } if session == self.me.session => {
                if let Some(at) = at(status.copy) {
                    self.opened(cx, at, &status);
                }
            }
            Body::Resumed { copy, session, end } if session == self.me.session => {
                if let Some(at) = at(copy) {
                    self.resumed(cx, at, end);
                }
            }
            Body::Ack {
                copy,
                session,
                term,
                durable,
                ..
            } if session == self.me.session && durable <= self.history.end() => {
                let streams = at(copy).map(|at| &mut self.peers[at]);
                let streams = streams.filter(|peer| peer.at == At::Streaming);
                // A term of this owner: it has made all records since it has the unit.
                if let Some(peer) = streams.filter(|_| term >= self.record.given) {
                    peer.durable = peer.durable.max(Some(durable));
                }
            }
            Body::Failed { session, .. } if session == self.me.session => self.unfit(cx, from),
            Body::NoRoom { copy, session } if session == self.me.session => {
                if let Some(at) = at(copy) {
                    self.peers[at].full = true;
                    self.unfit(cx, from);
                }
            }
            Body::Absent { copy } => {
                if let Some(at) = at(copy) {
                    // It cannot be gone on with: what is left of it takes room that another needs.
                    self.peers[at].full = true;
                    self.unfit(cx, from);
                }
            }
            Body::Probed { status } if self.is_useless(from, &status) => {
                self.left.forget(status.copy);
                left::drop_copy(cx, &self.record, (from, status.copy));
            }
            Body::Probed { status } if at(status.copy).is_none() => {
                if status.copy != self.own.copy && status.term <= self.record.number {
                    self.left.find(from, status.copy);
                }
                self.keep(cx, from, &status);
            }
            Body::Released { number, epoch } => self.released(from, number, epoch),
            Body::Deposed { record } => self.seen(cx, *record),
            _ => {}
        }
    }

    fn opened(&mut self, cx: &mut Cx<'_>, at: usize, status: &Status) {
        let Peer { member, .. } = self.peers[at];
        if self.peers[at].at != At::Opening {
            return;
        }
        let lost = self.peers[at].durable > Some(status.history.end());
        if status.health != Health::Whole || lost {
            // Also a device that has lost what it said to have synced.
            return self.unfit(cx, member.host);
        }
        match self.history.follow(&status.history, self.destaged) {
            Return::Resume(from) => {
                (self.peers[at].at, self.peers[at].from) = (At::Resuming, status.from);
                let body = Body::Resume {
                    copy: member.copy,
                    session: self.me.session,
                    history: self.history.upto(from),
                };
                cx.send(member.host, body);
            }
            // It has what this history has not: it must not be counted, nor changed.
            Return::Restart if self.counts(&member) => self.unfit(cx, member.host),
            Return::Restart => {
                self.left.leave(member);
                let peer = &mut self.peers[at];
                (peer.member.copy, peer.fresh) = (cx.nonces.fresh(), true);
                self.open(cx, at);
            }
        }
    }

    fn resumed(&mut self, cx: &mut Cx<'_>, at: usize, end: Serial) {
        let peer = &mut self.peers[at];
        if peer.at != At::Resuming {
            return;
        }
        peer.at = At::Streaming;
        peer.durable = peer.durable.max(Some(end));
        let (member, from) = (peer.member, end);
        cx.out.push(Action::Stream { member, from });
        self.adopt(cx, at);
    }

    /// The stream goes on under the record of now.
    fn adopt(&mut self, cx: &mut Cx<'_>, at: usize) {
        let peer = &self.peers[at];
        if peer.at == At::Streaming {
            let body = Body::Adopt {
                copy: peer.member.copy,
                session: self.me.session,
                record: Box::new(self.record.clone()),
            };
            cx.send(peer.member.host, body);
        }
    }

    fn live(&mut self, host: Uuid) {
        let mut peers = self.peers.iter_mut();
        if let Some(peer) = peers.find(|peer| peer.member.host == host) {
            peer.live |= peer.at == At::Streaming;
        }
    }

    fn unfit(&mut self, cx: &mut Cx<'_>, host: Uuid) {
        let Some(at) = self.peers.iter().position(|it| it.member.host == host) else {
            return;
        };
        let member = self.peers[at].member;
        cx.out.push(Action::Close { host });
        if self.counts(&member) {
            let peer = &mut self.peers[at];
            (peer.at, peer.live, peer.unfit) = (At::Closed, false, true);
        } else {
            let peer = self.peers.remove(at);
            self.leave_peer(cx, &peer);
        }
    }

    /// The stream has ended, or a peer answers again: it goes on where the copy ends.
    fn fit(&mut self, cx: &mut Cx<'_>, host: Uuid) {
        if let Some(at) = self.peers.iter().position(|it| it.member.host == host) {
            let peer = &mut self.peers[at];
            (peer.unfit, peer.live, peer.full) = (false, false, false);
            self.open(cx, at);
        }
    }

    fn chosen(&mut self, cx: &mut Cx<'_>, place: Option<(Uuid, Uuid)>) {
        let (true, Some((host, cache))) = (self.choosing, place) else {
            return;
        };
        let known = self.peers.iter().any(|peer| peer.member.host == host);
        let takes = self.wish.takes(&self.record.members, host);
        if known || host == self.me.host || !self.wants_learner() || !takes {
            // Another one is asked for with the next tick.
            return;
        }
        self.choosing = false;
        let left = self.left.take(host, cache);
        let fresh = left.is_none();
        let member = left.unwrap_or_else(|| Member {
            host,
            cache,
            copy: cx.nonces.fresh(),
        });
        let nothing = Serial(u64::MAX);
        self.peers
            .push(Peer::of(member, At::Opening, nothing, fresh));
        self.open(cx, self.peers.len() - 1);
    }

    fn destage(&mut self, cx: &mut Cx<'_>, serial: Serial) {
        assert!(serial <= self.cut, "what is destaged was cut");
        self.destaged = self.destaged.max(serial);
        for peer in self.peers.iter().filter(|peer| peer.at == At::Streaming) {
            let copy = peer.member.copy;
            let serial = self.destaged;
            cx.send(peer.member.host, Body::Destaged { copy, serial });
        }
    }

    fn seen(&mut self, cx: &mut Cx<'_>, record: Record) {
        if record.number > self.record.number && !self.owns(&record) {
            self.end(cx, record);
        }
    }

    /// This host is the owner by this record.
    fn owns(&self, record: &Record) -> bool {
        let owner = record.owner.as_ref();
        owner.is_some_and(|it| it.is_same_host(&self.me))
    }

    fn end(&mut self, cx: &mut Cx<'_>, record: Record) {
        self.ended = true;
        cx.out.push(Action::Stop { record });
    }

    /// The next record, with everything but the members as it is.
    fn draft(&mut self, cx: &mut Cx<'_>, members: Vec<Member>) -> Record {
        let record = &self.record;
        let given = match record.given {
            0 => record.number,
            given => given,
        };
        let drainer = match self.may_drain() {
            true => None,
            false => record.drainer().cloned(),
        };
        Record {
            number: record.number + 1,
            nonce: cx.nonces.fresh(),
            before: record.nonce,
            owner: Some(self.me.clone()),
            drainer,
            given,
            wanted: self.wish.copies,
            degraded: self.degraded(&members),
            at_origin: self.at_origin_with(&members),
            quiesced: window::is_wanted(self),
            members,
            ..*record
        }
    }

    fn propose(&mut self, cx: &mut Cx<'_>, record: Record) {
        assert!(self.change.is_none(), "one change at a time");
        let (change, order) = Change::new(record);
        self.change = Some(change);
        cx.out.push(Action::Vault(order));
    }

    fn decided(&mut self, cx: &mut Cx<'_>, outcome: Outcome) {
        let Some(change) = &self.change else { return };
        let Some(end) = change.decided(outcome) else {
            self.unread = true;
            return;
        };
        self.change = None;
        let record = match end {
            End::Unwritten => {
                self.paused = true;
                return self.sort_peers(cx);
            }
            End::Won(record) | End::Lost(record) => record,
        };
        let undecided = false;
        cx.out.push(Action::Vault(Order::Remember {
            record: record.clone(),
            undecided,
        }));
        let ours = self.owns(&record);
        let alone = record.members.is_empty();
        if record.owner.is_none() {
            self.drop_all(cx, &record);
        }
        if !ours || !(alone || record.members.contains(&self.own)) {
            return self.end(cx, record);
        }
        let drained = self.may_drain();
        self.record = record;
        if self.origin.is_unbegun() {
            self.begin(cx);
        } else if self.may_drain() && !drained {
            let record = self.record.clone();
            cx.out.push(Action::Drain { record });
        }
        self.sort_peers(cx);
    }

    /// Peers are those that the record names, and the learner.
    fn sort_peers(&mut self, cx: &mut Cx<'_>) {
        let (gone, kept): (Vec<Peer>, Vec<Peer>) = self
            .peers
            .drain(..)
            .partition(|peer| !self.record.members.contains(&peer.member) && peer.unfit);
        self.peers = kept;
        for peer in gone {
            cx.out.push(Action::Close {
                host: peer.member.host,
            });
            self.leave_peer(cx, &peer);
        }
        for at in 0..self.peers.len() {
            self.adopt(cx, at);
        }
    }

    fn wants_learner(&self) -> bool {
        let members = &self.record.members;
        let source = self.own_from <= self.destaged;
        let begun = !members.is_empty() && own_log::is_good(self);
        begun && self.wish.lacks(members) && self.learner().is_none() && source
    }

    /// What is to be changed next, one thing at a time.
    fn step(&mut self, cx: &mut Cx<'_>) {
        self.keep_if_lost();
        let busy = self.change.is_some() || self.preparing.is_some();
        if self.ended || busy || self.paused {
            return;
        }
        if let Some((learner, _)) = self.learner()
            && (!self.wish.takes(&self.record.members, learner.host) || !own_log::is_good(self))
        {
            return self.unfit(cx, learner.host);
        }
        if let Some(members) = self.fit_members() {
            let record = self.draft(cx, members);
            return self.propose(cx, record);
        }
        if self.releasing && self.destaged == self.history.end() && !rests(self) {
            let mut record = self.draft(cx, Vec::new());
            (record.owner, record.drainer, record.given) = (None, None, 0);
            (record.degraded, record.at_origin) = (None, false);
            return self.propose(cx, record);
        }
        if let Some(record) = self.give_away(cx) {
            return self.propose(cx, record);
        }
        let drainer = self
            .record
            .drainer()
            .expect("an owner's record has a drainer");
        if !self.may_drain() && (self.is_proved() || drainer.host == self.me.host) {
            return self.prepare(cx);
        }
        if let Some(members) = self.with_learner() {
            let record = self.draft(cx, members);
            return self.propose(cx, record);
        }
        let members = self.record.members.clone();
        let states = self.degraded(&members) != self.record.degraded;
        let origin = self.at_origin_with(&members) != self.record.at_origin;
        let window = window::is_wanted(self) != self.record.quiesced;
        if states || origin || window || self.wish.copies != self.record.wanted {
            let record = self.draft(cx, members);
            return self.propose(cx, record);
        }
        self.seek(cx);
    }

    /// The members without those that are unfit, or too many.
    fn fit_members(&self) -> Option<Vec<Member>> {
        let mut members = self.record.members.clone();
        if members.is_empty() && self.wish.is_any() {
            members.push(self.own);
        }
        let unfit = |member: &Member| {
            let mut peers = self.peers.iter();
            peers.any(|peer| peer.member == *member && peer.unfit)
        };
        members.retain(|member| !unfit(member));
        if own_log::is_past(self) {
            // What is written from here on is in none of the others.
            members.retain(|member| *member == self.own);
        }
        while let Some(at) = self.wish.spare(&members, &self.own) {
            members.remove(at);
        }
        // What the owner before has left may be in one copy only, and not in the owner's.
        let kept = self.complete(&members) > 0 || has(Rule::LastCompleteStays);
        (kept && members != self.record.members).then_some(members)
    }

    /// The members and the learner, if it has all that was acknowledged and all that the origin
    /// may have.
    fn with_learner(&self) -> Option<Vec<Member>> {
        let learner = self.peers.iter().find(|peer| !self.names(&peer.member))?;
        let durable = learner.durable?;
        let complete = learner.from <= self.destaged;
        let has_flushes = durable >= self.acknowledged || has(Rule::LearnerHasFlushes);
        let has_all = has_flushes && (durable >= self.cut || has(Rule::LearnerHasCuts));
        let room = self.wish.takes(&self.record.members, learner.member.host);
        let joins =
            own_log::is_good(self) && learner.live && learner.at == At::Streaming && !learner.unfit;
        if !(complete && has_all && room && joins) {
            return None;
        }
        let mut members = self.record.members.clone();
        members.push(learner.member);
        Some(members)
    }

    /// Another copy is begun, or what is not needed any more is dropped.
    fn seek(&mut self, cx: &mut Cx<'_>) {
        if self.wants_learner() && !self.choosing {
            self.choosing = true;
            let hosts = self.peers.iter().map(|peer| peer.member.host);
            let not = hosts.chain([self.me.host]).collect();
            cx.out.push(Action::Choose { not });
        }
        if self.record.degraded.is_none()
            && self.complete(&self.record.members) > self.wish.copies.into()
        {
            let left = self.left.take_all();
            left.for_each(|it| left::drop_copy(cx, &self.record, it));
        }
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
