//! Breadth-first search over the real machines of the copies on three hosts: [`crate::copy`],
//! [`crate::set`] and [`crate::taker`], up to the bounds that are stated below.
//!
//! A message that is lost or late is a step that is not taken, or an exchange that ends after any
//! of its messages; within a connection there is no other order. A link that is under way to the
//! vault may arrive at any later time, also after its host died. A copy holds what it was sent;
//! one write is one serial and knows the one before, so a mixed history is seen.
//!
//! What is searched for, in each state: (1) the newest owner has all acknowledged flushes, (2) one
//! history, (3) all that the origin may have, (4) so has each complete member of the newest record
//! of the vault, so any of them can be frozen, (5) no host begins a cut without the right, (6) the
//! origin has them all where the newest record says so, and (7) none begins one while a backup
//! window is open.

extern crate std;

use crate::broken::{Rule, leave_out};
use crate::change::Order;
use crate::copy::{self, Copy, Durable};
use crate::history::History;
use crate::message::{About, Body, Status};
use crate::record::{Epoch, Holder, Member, Record};
use crate::set::{self, Set, State};
use crate::taker::{self, Ownership, Taker};
use crate::unit::Nonces;
use crate::vault::Outcome;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use engine::types::{Serial, Uuid};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::println;

const HOSTS: u8 = 3;

fn id(of: u8, number: u8) -> Uuid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (of, number);
    Uuid(bytes)
}

fn holder(at: u8, session: u8) -> Holder {
    Holder {
        host: id(1, at),
        cache: id(2, at),
        boot: id(3, 0),
        session: id(4, session),
        name: String::new(),
    }
}

struct Counter<'a>(u8, &'a mut u8);

impl Nonces for Counter<'_> {
    fn fresh(&mut self) -> Uuid {
        *self.1 += 1;
        id(100 + self.0, *self.1)
    }
}

/// A serial, the write, and the write before.
type Write = (u64, u8, u8);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Holding {
    /// None: its daemon does not run.
    copy: Option<Copy>,
    durable: Option<Durable>,
    writes: Vec<Write>,
    /// Up to this serial they are durable.
    synced: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Side {
    Idle,
    Takes(Taker),
    Owns(Set),
}

/// What an owner sends to a copy.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Stream {
    member: Member,
    sent: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Host {
    up: bool,
    session: u8,
    nonces: u8,
    side: Side,
    holdings: Vec<Holding>,
    streams: Vec<Stream>,
    remembered: Option<(Record, bool)>,
    deciding: Option<Record>,
    choosing: Option<Vec<Uuid>>,
    preparing: bool,
    /// An administrator waits for a backup window.
    opening: bool,
    /// What the owner reads from the copy that was frozen.
    base: Vec<Write>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    hosts: Vec<Host>,
    vault: Vec<Record>,
    links: Vec<Record>,
    mail: VecDeque<(u8, u8, Body)>,
    acked: BTreeSet<u8>,
    origin: BTreeSet<u8>,
    /// What the origin has for certain.
    home: BTreeSet<u8>,
    writes: u8,
    takeovers: u8,
    changes: u8,
    crashes: u8,
    proofs: u8,
    gives: u8,
    windows: u8,
    /// An administrator was told that the image rests, and reads it.
    window: bool,
    /// Number of the newest record under which a history was forked.
    newest: u64,
    wrong: Option<String>,
}

#[derive(Clone, Copy)]
struct Bounds {
    writes: u8,
    takeovers: u8,
    changes: u8,
    crashes: u8,
    proofs: u8,
    gives: u8,
    windows: u8,
    /// The own log is synced later than a write is given.
    lags: bool,
    /// Cuts end, and logs obey or do not yet.
    origin: bool,
    /// Its guest may move to the third host.
    standby: bool,
    /// On other hosts, at the begin.
    copies: u8,
}

type Steps = Vec<(String, World)>;

impl World {
    /// The first host owns the unit with copies on so many others; nothing was written.
    fn new(copies: u8) -> World {
        let member = |at: u8| Member {
            host: id(1, at),
            cache: id(2, at),
            copy: id(5, at),
        };
        let record = Record {
            cluster: id(0, 1),
            unit: id(0, 2),
            number: 1,
            nonce: id(99, 1),
            before: Uuid::NIL,
            owner: Some(holder(0, 1)),
            epoch: Epoch {
                number: 1,
                nonce: id(98, 1),
            },
            drainer: None,
            given: 1,
            wanted: copies,
            degraded: None,
            at_origin: false,
            quiesced: false,
            members: (0..=copies).map(member).collect(),
        };
        let mut world = World {
            hosts: (0..HOSTS).map(|_| Host::new()).collect(),
            vault: vec![record.clone()],
            links: vec![],
            mail: VecDeque::new(),
            acked: BTreeSet::new(),
            origin: BTreeSet::new(),
            home: BTreeSet::new(),
            writes: 0,
            takeovers: 0,
            changes: 0,
            crashes: 0,
            proofs: 0,
            gives: 0,
            windows: 0,
            window: false,
            newest: 1,
            wrong: None,
        };
        let alone = Record {
            members: vec![],
            ..record.clone()
        };
        let empty = History::empty(Serial(0));
        let owns = Ownership::alone(alone, member(0), &empty, Serial(0)).expect("serials");
        let owns = Ownership { record, ..owns };
        world.hosts[0].holdings = vec![Holding::of(Copy::begin(&owns, About::default()))];
        for at in 1..=copies {
            let mut other = Copy::begin(&owns, About::default()).durable().clone();
            (other.member, other.history) = (member(at), owns.history.upto(Serial(0)));
            let mut copy = Copy::recover(other);
            copy.handle(&mut vec![], copy::Event::Recovered(Serial(0)));
            world.hosts[usize::from(at)].holdings = vec![Holding::of(copy)];
        }
        world.hosts[0].side = Side::Owns(Set::new(holder(0, 1), owns));
        world.tell(0, Told::Set(set::Event::Begin));
        world.deliver(usize::MAX, |_| true);
        world
    }

    fn at(&self, host: Uuid) -> usize {
        usize::from(host.0[1])
    }

    /// One event for a machine of a host, with all that follows on this host.
    fn tell(&mut self, at: u8, told: Told) {
        let host = &mut self.hosts[usize::from(at)];
        let mut nonces = Counter(at, &mut host.nonces);
        let nonces: &mut dyn Nonces = &mut nonces;
        match (&mut host.side, told) {
            (Side::Owns(set), Told::Set(event)) => {
                let out = &mut Vec::new();
                set.handle(&mut set::Cx { nonces, out }, event);
                for action in core::mem::take(out) {
                    self.set_orders(at, action);
                }
            }
            (Side::Takes(taker), Told::Taker(event)) => {
                let out = &mut Vec::new();
                taker.handle(&mut taker::Cx { nonces, out }, event);
                for action in core::mem::take(out) {
                    self.taker_orders(at, action);
                }
                self.settle(at);
            }
            _ => {}
        }
    }

    fn vault_orders(&mut self, at: u8, order: Order) {
        let host = &mut self.hosts[usize::from(at)];
        match order {
            Order::Remember { record, undecided } => {
                host.remembered = Some((record, undecided));
                if undecided {
                    self.changes += 1;
                    self.tell(at, Told::Set(set::Event::Remembered));
                    self.tell(at, Told::Taker(taker::Event::Remembered));
                }
            }
            Order::Decide { record, .. } => host.deciding = Some(record),
        }
    }

    fn set_orders(&mut self, at: u8, action: set::Action) {
        let host = &mut self.hosts[usize::from(at)];
        match action {
            set::Action::Send { host, body } => {
                let to = self.at(host) as u8;
                self.mail.push_back((at, to, body));
            }
            set::Action::Vault(order) => self.vault_orders(at, order),
            set::Action::Choose { not } => host.choosing = Some(not),
            set::Action::Stream { member, .. } => {
                host.streams.retain(|it| it.member.host != member.host);
                host.streams.push(Stream { member, sent: 0 });
            }
            set::Action::Close { host: peer } => host.streams.retain(|it| it.member.host != peer),
            set::Action::Prepare { .. } => host.preparing = true,
            set::Action::Serve | set::Action::Drain { .. } => {}
            set::Action::Stop { .. } => host.idle(),
        }
    }

    fn taker_orders(&mut self, at: u8, action: taker::Action) {
        match action {
            taker::Action::Send { host, body } => {
                let to = self.at(host) as u8;
                self.mail.push_back((at, to, body));
            }
            taker::Action::Vault(order) => self.vault_orders(at, order),
            taker::Action::Own(owns) => self.own(at, owns),
        }
    }

    /// The own copy gets the fork; what is below is read from the source.
    fn own(&mut self, at: u8, owns: Ownership) {
        let end = owns.history.end().0;
        let all = self.hosts.iter().flat_map(|host| &host.holdings);
        let named = all.filter(|it| owns.record.members.contains(&it.durable().member));
        let has = |it: &&Holding| it.durable().from <= Serial(0);
        // What was frozen; of an owner that begins again, what it had been.
        let frozen = |it: &&Holding| it.durable().member.copy == owns.source;
        let whole = named
            .filter(has)
            .max_by_key(|it| (frozen(it), it.writes.len()));
        let base: Vec<Write> = whole.map_or(vec![], |it| it.writes.clone());
        let base = base.into_iter().filter(|it| it.0 <= owns.from.0).collect();
        let host = &mut self.hosts[usize::from(at)];
        let mut out = vec![];
        let mut holdings = host.holdings.iter_mut();
        match holdings.find(|it| it.durable().member == owns.own) {
            Some(holding) => {
                holding.writes.retain(|write| write.0 <= end);
                holding.synced = holding.synced.min(end);
                let owns = Box::new(owns.clone());
                let copy = holding.copy.as_mut().expect("it runs");
                copy.handle(&mut out, copy::Event::Own { owns });
            }
            None => host
                .holdings
                .push(Holding::of(Copy::begin(&owns, About::default()))),
        }
        host.base = base;
        let took = host
            .holding(owns.own.copy)
            .map(|it| it.copy.as_ref().map(Copy::term));
        assert_eq!(
            took,
            Some(Some(owns.record.number)),
            "the own copy takes it"
        );
        for action in out {
            self.copy_orders(at, owns.own.copy, action);
        }
        self.tell(at, Told::Taker(taker::Event::Owned));
    }

    fn settle(&mut self, at: u8) {
        let host = &mut self.hosts[usize::from(at)];
        let Side::Takes(taker) = &host.side else {
            return;
        };
        match taker.state().clone() {
            taker::State::Done(owns) => {
                self.newest = self.newest.max(owns.record.given);
                host.side = Side::Owns(Set::new(holder(at, host.session), owns));
                self.tell(at, Told::Set(set::Event::Begin));
            }
            taker::State::Lost(_) | taker::State::Held(_) | taker::State::Behind { .. } => {
                host.idle();
            }
            _ => {}
        }
    }

    fn copy_event(&mut self, at: u8, copy: Uuid, event: copy::Event) {
        let mut out = vec![];
        if let Some(holding) = self.hosts[usize::from(at)].holding(copy)
            && let Some(copy) = &mut holding.copy
        {
            copy.handle(&mut out, event);
        }
        for action in out {
            self.copy_orders(at, copy, action);
        }
    }

    fn copy_orders(&mut self, at: u8, copy: Uuid, action: copy::Action) {
        match action {
            copy::Action::Persist(durable) => {
                let holding = self.hosts[usize::from(at)].holding(copy);
                holding.expect("it is there").durable = Some(*durable);
                self.copy_event(at, copy, copy::Event::Persisted);
            }
            copy::Action::Send { host, body } => {
                let to = self.at(host) as u8;
                self.mail.push_back((at, to, body));
            }
            copy::Action::Write { last } => self.copy_event(at, copy, copy::Event::Synced(last)),
            copy::Action::Close { host } => {
                // The owner sees that its connection has ended.
                let owner = &mut self.hosts[usize::from(host.0[1])];
                owner.streams.retain(|it| it.member.host != id(1, at));
                let host_of_copy = id(1, at);
                self.tell(host.0[1], Told::Set(set::Event::Fit { host: host_of_copy }));
            }
            copy::Action::Remove => {
                let host = &mut self.hosts[usize::from(at)];
                host.holdings.retain(|it| it.durable().member.copy != copy);
            }
            copy::Action::Seal(_) | copy::Action::Forget(_) => {}
        }
    }

    fn hears(&mut self, from: u8, to: u8, body: Body) {
        if !self.hosts[usize::from(to)].up {
            return;
        }
        let from = id(1, from);
        let copy = match &body {
            Body::Probe { copy }
            | Body::Resume { copy, .. }
            | Body::Adopt { copy, .. }
            | Body::Freeze { copy, .. }
            | Body::Cut { copy, .. }
            | Body::Destaged { copy, .. }
            | Body::Keep { copy, .. }
            | Body::Drop { copy, .. } => *copy,
            Body::Open { member, .. } => member.copy,
            _ => {
                let again = body.clone();
                self.tell(to, Told::Set(set::Event::Heard { from, body: again }));
                return self.tell(to, Told::Taker(taker::Event::Heard { from, body }));
            }
        };
        let host = &mut self.hosts[usize::from(to)];
        if host.holding(copy).is_none() {
            match Copy::make((id(1, to), id(2, to)), &body) {
                Some(copy) => host.holdings.push(Holding::of(copy)),
                None => return,
            }
        }
        // An owner whose copy is frozen, or opened by another one, is none any more.
        if let Body::Freeze { record, .. } | Body::Open { record, .. } = &body
            && *record.owner.as_ref().expect("a taker") != holder(to, host.session)
        {
            let seen = Record::clone(record);
            self.tell(to, Told::Set(set::Event::Seen(seen)));
            let record = record.clone();
            let body = Body::Deposed { record };
            self.tell(to, Told::Taker(taker::Event::Heard { from, body }));
        }
        self.copy_event(to, copy, copy::Event::Heard { from, body });
    }

    /// So many messages arrive, between hosts that pass; the others are lost. The number of all.
    fn deliver(&mut self, most: usize, pass: impl Fn(u8) -> bool) -> usize {
        let mut count = 0;
        while let Some((from, to, body)) = self.mail.pop_front() {
            if from == to {
                self.hears(from, to, body);
            } else if pass(from) && pass(to) {
                count += 1;
                if count <= most {
                    self.hears(from, to, body);
                }
            }
            assert!(count < 1000, "an exchange ends");
        }
        count
    }

    /// All ends that an exchange between these two hosts may have.
    fn exchange(&self, steps: &mut Steps, name: &str, with: (u8, u8), first: impl Fn(&mut World)) {
        for most in 0.. {
            let mut next = self.clone();
            first(&mut next);
            let all = next.deliver(most, |at| at == with.0 || at == with.1);
            steps.push((format!("{name}, {most} of {all} messages"), next));
            if most >= all {
                return;
            }
        }
    }

    fn next(&self, bounds: Bounds) -> Steps {
        let mut steps = vec![];
        for at in 0..self.links.len() {
            let mut next = self.clone();
            let record = next.links.remove(at);
            let (number, landed) = (record.number, next.vault.len() as u64 + 1 == record.number);
            if landed {
                next.hand_over(&record);
                next.vault.push(record);
            }
            steps.push((format!("link {number} arrives: {landed}"), next));
        }
        for at in 0..HOSTS {
            let host = &self.hosts[usize::from(at)];
            if !host.up {
                self.restarts(&mut steps, at);
                continue;
            }
            if self.crashes < bounds.crashes {
                let mut next = self.clone();
                next.crashes += 1;
                next.hosts[usize::from(at)].crash();
                steps.push((format!("{at} crashes"), next));
            }
            self.decides(&mut steps, at);
            match &host.side {
                Side::Idle => {
                    self.takes(&mut steps, at, bounds);
                    self.begins(&mut steps, at);
                }
                Side::Takes(_) => self.ticks(&mut steps, at),
                Side::Owns(set) => self.owns(&mut steps, at, set, bounds),
            }
        }
        steps
    }

    fn restarts(&self, steps: &mut Steps, at: u8) {
        let mut base = self.clone();
        base.hosts[usize::from(at)].start();
        let copies: Vec<(Uuid, u64)> = base.hosts[usize::from(at)].ends();
        for (copy, end) in copies {
            base.copy_event(at, copy, copy::Event::Recovered(Serial(end)));
        }
        let (known, doubt) = match &base.hosts[usize::from(at)].remembered {
            Some((record, true)) => (record.number - 1, Some(record.clone())),
            Some((record, false)) => (record.number, None),
            None => (1, None),
        };
        // What it sees of the vault may be late, but not before what it knows.
        for seen in known..=self.vault.len() as u64 {
            let mut next = base.clone();
            let record = &self.vault[seen as usize - 1];
            let owner = record.owner.as_ref().expect("it has one");
            if owner.host == id(1, at) || doubt.is_some() {
                next.take(at, record, doubt.clone());
                next.mail.clear();
            }
            steps.push((format!("{at} starts and sees {seen}"), next));
        }
    }

    fn take(&mut self, at: u8, record: &Record, doubt: Option<Record>) {
        let host = &mut self.hosts[usize::from(at)];
        let own = record.member(id(1, at));
        let own: Option<Status> = own.and_then(|own| {
            let holding = host.holding(own.copy)?;
            Some(holding.copy.as_ref()?.status())
        });
        let me = holder(at, host.session);
        host.side = Side::Takes(Taker::new(me, record.clone(), own, doubt));
        self.tell(at, Told::Taker(taker::Event::Begin));
    }

    fn decides(&self, steps: &mut Steps, at: u8) {
        let Some(record) = self.hosts[usize::from(at)].deciding.clone() else {
            return;
        };
        let number = record.number as usize;
        let mut next = self.clone();
        if let Some(there) = self.vault.get(number - 1) {
            next.hosts[usize::from(at)].deciding = None;
            let outcome = match there.nonce == record.nonce {
                true => Outcome::Won(there.clone()),
                false => Outcome::Lost(there.clone()),
            };
            let again = outcome.clone();
            next.tell(at, Told::Set(set::Event::Decided(again)));
            next.tell(at, Told::Taker(taker::Event::Decided(outcome)));
            next.deliver(usize::MAX, |_| false);
            steps.push((format!("{at} hears how {number} was decided"), next));
        } else if !self.links.contains(&record) {
            next.links.push(record);
            steps.push((format!("{at} links {number}"), next));
        }
    }

    fn takes(&self, steps: &mut Steps, at: u8, bounds: Bounds) {
        let record = self.vault.last().expect("there is one");
        let owner = record.owner.as_ref().expect("it has one");
        let waits = self.hosts[usize::from(at)].deciding.is_some();
        if self.takeovers >= bounds.takeovers || owner.host == id(1, at) || waits {
            return;
        }
        for with in 0..HOSTS {
            self.exchange(
                steps,
                &format!("{at} takes with {with}"),
                (at, with),
                |next| {
                    next.takeovers += 1;
                    next.take(at, record, None);
                },
            );
        }
    }

    /// It was given the unit, and sees that.
    fn begins(&self, steps: &mut Steps, at: u8) {
        let record = self.vault.last().expect("there is one");
        let owner = record.owner.as_ref().expect("it has one");
        if owner.host != id(1, at) || self.hosts[usize::from(at)].deciding.is_some() {
            return;
        }
        for with in 0..HOSTS {
            let name = format!("{at} was given it, and asks {with}");
            self.exchange(steps, &name, (at, with), |next| {
                next.take(at, record, None);
            });
        }
    }

    fn ticks(&self, steps: &mut Steps, at: u8) {
        for with in 0..HOSTS {
            let name = format!("{at} asks {with}");
            self.exchange(steps, &name, (at, with), |next| {
                next.tell(at, Told::Taker(taker::Event::Tick));
                next.tell(at, Told::Set(set::Event::Tick));
            });
        }
    }

    fn write(&mut self, at: u8) {
        self.writes += 1;
        let write = self.writes;
        let before = self.served(at).last().map_or(0, |it| it.1);
        let host = &mut self.hosts[usize::from(at)];
        let Side::Owns(set) = &host.side else {
            return;
        };
        let own = own_of(set, at);
        let holding = host.holding(own).expect("an owner has a copy");
        let history = &holding.copy.as_ref().expect("it runs").status().history;
        let first = history.forks().last().expect("an owner has forked").first;
        let last = holding.writes.last().map_or(0, |it| it.0);
        let serial = first.0.max(last + 1);
        holding.writes.push((serial, write, before));
        let serial = Serial(serial);
        self.copy_event(at, own, copy::Event::Given(serial));
        self.tell(at, Told::Set(set::Event::Given(serial)));
        self.mail.clear();
    }

    fn sync(&mut self, at: u8) {
        let host = &mut self.hosts[usize::from(at)];
        let Side::Owns(set) = &host.side else {
            return;
        };
        let own = own_of(set, at);
        let holding = host.holding(own).expect("an owner has a copy");
        let last = holding.writes.last().map_or(0, |it| it.0);
        if last <= holding.synced {
            return;
        }
        holding.synced = last;
        let serial = Serial(last);
        self.copy_event(at, own, copy::Event::Synced(serial));
        self.tell(at, Told::Set(set::Event::Synced(serial)));
        self.mail.clear();
    }

    /// The next write goes to this copy.
    fn send(&mut self, at: u8, member: Member) {
        let all = self.served(at);
        let host = &self.hosts[usize::from(at)];
        let Side::Owns(set) = &host.side else {
            return;
        };
        let term = set.record().number;
        let peer = &self.hosts[self.at(member.host)];
        let mut there = peer
            .holdings
            .iter()
            .filter(|it| peer.up && it.durable().member == member);
        let Some(there) = there.next().and_then(|it| it.copy.as_ref()) else {
            return;
        };
        let end = there.status().history.end().0;
        let Some(next) = all.iter().find(|it| it.0 > end).copied() else {
            return;
        };
        let mut streams = self.hosts[usize::from(at)].streams.iter_mut();
        let stream = streams.find(|it| it.member == member).expect("it streams");
        stream.sent += 1;
        let event = copy::Event::Batch {
            from: id(1, at),
            session: holder(at, self.hosts[usize::from(at)].session).session,
            term,
            number: self.hosts[usize::from(at)].sent(member),
            before: Serial(end),
            last: Serial(next.0),
        };
        let to = member.host.0[1];
        let mut out = vec![];
        let holding = self.hosts[usize::from(to)]
            .holding(member.copy)
            .expect("seen above");
        holding
            .copy
            .as_mut()
            .expect("it runs")
            .handle(&mut out, event);
        if out.contains(&copy::Action::Write {
            last: Serial(next.0),
        }) {
            holding.writes.push(next);
            holding.synced = next.0;
        }
        for action in out {
            self.copy_orders(to, member.copy, action);
        }
    }

    /// What an owner serves, from its base and its own copy.
    fn served(&self, at: u8) -> Vec<Write> {
        let host = &self.hosts[usize::from(at)];
        let Side::Owns(set) = &host.side else {
            return vec![];
        };
        let own = own_of(set, at);
        let mut all = host.base.clone();
        let mut holdings = host.holdings.iter();
        let holding = holdings.find(|it| it.durable().member.copy == own);
        let last = all.last().map_or(0, |it| it.0);
        let more = holding.map_or(&[][..], |it| &it.writes[..]);
        all.extend(more.iter().filter(|it| it.0 > last));
        all
    }

    fn check(&self) -> Option<String> {
        if self.wrong.is_some() {
            return self.wrong.clone();
        }
        for at in 0..HOSTS {
            let Side::Owns(set) = &self.hosts[usize::from(at)].side else {
                continue;
            };
            if set.record().given < self.newest || set.state() == State::Ended {
                continue;
            }
            let all = self.served(at);
            let mixed =
                |(at, it): (usize, &Write)| it.2 != at.checked_sub(1).map_or(0, |p| all[p].1);
            if all.iter().enumerate().any(mixed) {
                return Some(format!("the history of {at} is mixed: {all:?}"));
            }
            let has = |write: &u8| all.iter().any(|it| it.1 == *write);
            if let Some(write) = self.acked.iter().find(|it| !has(it)) {
                return Some(format!("{at} serves without the flush {write}"));
            }
            if let Some(write) = self.origin.iter().find(|it| !has(it)) {
                return Some(format!("the origin has {write}, which {at} has not"));
            }
            let alone = set.real() == 0 && set.record().number == self.vault.len() as u64;
            if alone && set.record().degraded.is_none() && set.record().wanted > 0 {
                return Some(format!(
                    "{at} has one complete copy, and the record says nothing"
                ));
            }
        }
        self.check_members()
    }

    /// Any complete member of the newest record may be frozen next.
    fn check_members(&self) -> Option<String> {
        let record = self.vault.last().expect("there is one");
        let mut away = self.acked.difference(&self.home);
        if let Some(write) = away.next().filter(|_| record.at_origin) {
            let number = record.number;
            return Some(format!(
                "{number} says that the origin has the flush {write}"
            ));
        }
        for member in &record.members {
            let host = &self.hosts[self.at(member.host)];
            let mut holdings = host.holdings.iter();
            let Some(holding) = holdings.find(|it| it.durable().member == *member) else {
                // The copy of an owner that has not forked yet, or else it was removed.
                if record
                    .owner
                    .as_ref()
                    .is_some_and(|it| it.host == member.host)
                {
                    continue;
                }
                return Some(format!("a member of {} is gone", record.number));
            };
            if holding.durable().from > Serial(0) {
                continue;
            }
            let has = |write: &u8| holding.writes.iter().any(|it| it.1 == *write);
            let mut all = self.acked.iter().chain(&self.origin);
            if let Some(write) = all.find(|it| !has(it)) {
                let number = record.number;
                return Some(format!("a member of {number} has not {write}"));
            }
        }
        None
    }
}

enum Told {
    Set(set::Event),
    Taker(taker::Event),
}

fn own_of(set: &Set, at: u8) -> Uuid {
    let own = set.record().member(id(1, at));
    own.expect("an owner has a copy").copy
}

impl Holding {
    fn of(copy: Copy) -> Holding {
        Holding {
            durable: Some(copy.durable().clone()),
            copy: Some(copy),
            writes: vec![],
            synced: 0,
        }
    }

    fn durable(&self) -> &Durable {
        self.durable.as_ref().expect("a copy is durable")
    }
}

impl Host {
    fn new() -> Host {
        Host {
            up: true,
            session: 1,
            nonces: 0,
            side: Side::Idle,
            holdings: vec![],
            streams: vec![],
            remembered: None,
            deciding: None,
            choosing: None,
            preparing: false,
            opening: false,
            base: vec![],
        }
    }

    fn holding(&mut self, copy: Uuid) -> Option<&mut Holding> {
        let mut holdings = self.holdings.iter_mut();
        holdings.find(|it| it.durable().member.copy == copy)
    }

    fn sent(&self, member: Member) -> u64 {
        let mut streams = self.streams.iter();
        let stream = streams.find(|it| it.member == member);
        stream.map_or(0, |it| it.sent)
    }

    fn ends(&self) -> Vec<(Uuid, u64)> {
        let end = |it: &Holding| {
            let end = it.writes.last().map_or(0, |write| write.0);
            (
                it.durable().member.copy,
                end.max(it.durable().history.end().0),
            )
        };
        self.holdings.iter().map(end).collect()
    }

    fn idle(&mut self) {
        (self.side, self.choosing) = (Side::Idle, None);
        (self.preparing, self.opening) = (false, false);
        self.streams.clear();
        self.base.clear();
    }

    fn crash(&mut self) {
        self.idle();
        self.deciding = None;
        self.up = false;
        for holding in &mut self.holdings {
            holding.copy = None;
            let synced = holding.synced;
            holding.writes.retain(|it| it.0 <= synced);
        }
    }

    fn start(&mut self) {
        self.up = self.session < u8::MAX;
        if self.up {
            self.session += 1;
        }
        for holding in &mut self.holdings {
            holding.copy = holding.durable.clone().map(Copy::recover);
        }
    }
}

#[path = "search_owner_tests.rs"]
mod owner;
#[path = "search_run_tests.rs"]
mod run;
