//! Units that this host owns and that have copies: the machines that decide which copies a flush
//! asks ([`node::taker`], [`node::set`]), fed with what the log and the links say.
//!
//! ```text
//! unit is lent ─▶ Taking ─ taken ─▶ own copy durable ─▶ Set ─ Drain ─▶ volume served
//! served, copies wanted ───────────▶ own copy durable ─▶ Set             │ each 50 ms: what the
//!        ▲                                                               ▼ log has, for the set
//!        └────────── another record ◀───────── Stop ◀──────────────── streams
//! ```
//! Always true: the log asks at least the copies that the set asks, before a client is let in and
//! until a record without a copy is decided; a copy is told to the set as live when the log has
//! counted it; what the set knows of a copy is what the log knew at one moment. The log answers
//! flushes by what the origin has from before a copy is asked no more, where the set says so.
//! Deliberately absent: what the machines decide; the copies themselves ([`super::kept`]).

use super::copies::{OnDegraded, Wanted};
use super::jobs::take_remover;
use super::kept::{Place, take_over};
use super::owning::{Owning, Step, What, now};
use super::standby::Guests;
use super::window::Windows;
use super::{Entry, Event as UnitEvent, Input, Job, Manager, Random};
use crate::shard::control::Needs;
use engine::event::Credit;
use engine::snapshot::CopySnapshot;
use engine::types::{Serial, Uuid, VolumeId};
use node::change::Order;
use node::history::History;
use node::message::{About, Body};
use node::record::{Epoch, Member, Record};
use node::set::{self, Set};
use node::taker::{self, Ownership, Taker};
use node::unit::Drained;
use node::vault::{Cas, Look, Outcome};
use std::sync::atomic::Ordering;
use std::time::Instant;

const UNWRITTEN: &str = "its record cannot be written into the vault; make room there, and see \
                         that this host reaches it and may write it";

/// What the set is told of the copies that its volume is to have.
fn wanted_events(copies: &Wanted) -> [set::Event; 2] {
    let through = copies.on_degraded == OnDegraded::WriteThrough;
    [
        set::Event::AtOrigin(through),
        set::Event::Wanted(copies.replicas),
    ]
}

impl Manager {
    pub(super) fn set_copies(&mut self, name: &str, copies: Wanted) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.settings.copies = copies.clone();
        }
        for event in wanted_events(&copies) {
            self.set_event(name, event);
        }
        self.begin_copies(name);
    }

    /// A unit that is served here gets copies, if it is to have some.
    pub(super) fn begin_copies(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        let Some((_, unit)) = &entry.unit else { return };
        let owner = *unit.state() == super::State::Owner && !unit.changes_window();
        let served = owner && entry.is_served();
        let wanted = entry.settings.copies.replicas > 0 || entry.standby.is_some();
        let begins = served && wanted && entry.owning.is_none();
        if !begins || entry.busy || entry.leaving {
            return;
        }
        if !self.volumes.is_raw(name) {
            let entry = self.entries.get_mut(name).expect("just seen");
            if !core::mem::replace(&mut entry.unfit, true) {
                self.show(name);
            }
            return;
        }
        let record = unit.newest().cloned().expect("an owner has a record");
        let found = self.logs.find(name);
        let Some(view) = found.and_then(|volume| self.logs.view(volume)) else {
            return;
        };
        let me = &self.member.me;
        let own = Member {
            host: me.host,
            cache: me.cache,
            copy: super::fresh(),
        };
        let known = History::empty(view.written);
        let Some(owns) = Ownership::alone(record, own, &known, view.destaged) else {
            return;
        };
        let about = self.about(name, &view);
        let what = What::Beginning(Box::new(owns.clone()));
        let mut owning = Owning::of(what, own.copy, about.clone());
        (owning.served, owning.drains, owning.volume) = (true, true, found);
        let entry = self.entries.get_mut(name).expect("just seen");
        entry.owning = Some(owning);
        self.event(name, UnitEvent::Lend);
        self.own_copy(name, owns, about);
    }

    fn about(&self, name: &str, view: &CopySnapshot) -> About {
        let origin = &self.entries[name].settings.origin;
        About {
            name: name.to_owned(),
            origin: origin.display().to_string(),
            volume: view.uuid,
            size_bytes: view.size_bytes,
        }
    }

    /// The unit has a record with copies: this host becomes its owner, or goes on as such.
    pub(super) fn begin_taking(&mut self, name: &str, record: Record) {
        let own = self.own_of(&record);
        let status = own.and_then(|own| self.copy_status(own.copy));
        let (copy, about) = match own.and_then(|own| self.copies.get(&own.copy)) {
            Some(kept) => {
                let durable = kept.machine.durable();
                (durable.member.copy, durable.about.clone())
            }
            None => (Uuid::NIL, About::default()),
        };
        let taker = Taker::new(self.member.me.clone(), record, status, None);
        let owning = Owning::of(What::Taking(Box::new(taker)), copy, about);
        if let Some(entry) = self.entries.get_mut(name) {
            entry.owning = Some(owning);
        }
        self.taker_event(name, taker::Event::Begin);
    }

    fn own_of(&self, record: &Record) -> Option<Member> {
        let me = &self.member.me;
        let own = record.member(me.host).copied();
        own.filter(|own| own.cache == me.cache)
    }

    pub(super) fn taker_event(&mut self, name: &str, event: taker::Event) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let What::Taking(machine) = &mut owning.what else {
            return;
        };
        let mut out = Vec::new();
        let mut cx = taker::Cx {
            nonces: &mut Random,
            out: &mut out,
        };
        machine.handle(&mut cx, event);
        for action in out {
            self.taker_order(name, action);
        }
        self.follow_taker(name);
        self.show(name);
    }

    fn taker_order(&mut self, name: &str, action: taker::Action) {
        match action {
            taker::Action::Send { host, body } => self.ask_copy(name, host, body),
            taker::Action::Vault(order) => self.vault_order(name, order),
            taker::Action::Own(owns) => self.take_own(name, owns),
        }
    }

    /// Where this host has a copy itself, no other one is asked for theirs.
    fn ask_copy(&mut self, name: &str, host: Uuid, body: Body) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let record = owning.record().clone();
        let mine = self.own_of(&record);
        let usable = mine.and_then(|own| self.copy_status(own.copy));
        let usable = usable.is_some_and(|status| status.is_complete());
        let probes = matches!(body, Body::Probe { .. });
        if !(probes && usable && host != self.member.me.host) {
            self.say(host, record.unit, body);
        }
    }

    /// The copy that was frozen becomes the volume.
    fn take_own(&mut self, name: &str, owns: Ownership) {
        let copy = owns.own.copy;
        let fetches = self.owning(name).is_some_and(|it| it.fetch.is_some());
        let Some(kept) = self.copies.get_mut(&copy).filter(|_| !fetches) else {
            return self.begin_fetch(name, owns);
        };
        if kept.busy {
            // See `own_waits_for`.
            return;
        }
        let about = kept.machine.durable().about.clone();
        if let Some(owning) = self.owning(name) {
            (owning.own, owning.about) = (copy, about.clone());
        }
        let kept = &self.copies[&copy];
        if owns.source != copy {
            if kept.machine.durable().history.generation().is_none() {
                // A fetch of a run before this one has begun it.
                return self.begin_fetch(name, owns);
            }
            let why = "what this host has of it is damaged or too old, and another host has all \
                       of it: a client that comes there is served";
            return self.set_problem(name, why.into());
        }
        let Place::Replica(volume) = kept.place else {
            return self.own_copy(name, owns, about);
        };
        let place = Place::Own(name.to_owned());
        let mut others = self.copies.iter();
        if let Some((&old, _)) = others.find(|(_, kept)| kept.place == place) {
            // Of an ownership before: it goes on under its own name.
            return self.retire_copy(old);
        }
        if let Some(kept) = self.copies.get_mut(&copy) {
            kept.busy = true;
        }
        let (logs, inputs) = (self.logs.clone(), self.inputs.clone());
        let name = name.to_owned();
        self.local.run(move |_| {
            let term = owns.record.number;
            let taken = take_over(&*logs, volume, &name, term).map(|()| Box::new(owns));
            let _ = inputs.send(Input::Own(name, Step::Taken(copy, taken)));
        });
    }

    fn set_problem(&mut self, name: &str, why: String) {
        if let Some(owning) = self.owning(name) {
            owning.problem = Some(why);
        }
        self.show(name);
    }

    /// The taker has come to an end.
    fn follow_taker(&mut self, name: &str) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let What::Taking(machine) = &owning.what else {
            return;
        };
        match machine.state().clone() {
            taker::State::Lost(record) => self.end_owning(name, record),
            taker::State::Behind { term } => {
                owning.problem = Some(format!(
                    "a copy obeys record {term}, which its vault does not have; if the vault was \
                     put back to an older state, bring back the newer one"
                ));
            }
            taker::State::Held(why) => owning.problem = Some(why),
            _ => {}
        }
    }

    /// The own copy is durable under the fork of this ownership.
    pub(super) fn own_copy_is_durable(&mut self, copy: Uuid) {
        let owns = |it: &&Owning| it.own == copy;
        let mut entries = self.entries.iter();
        let found = entries.find(|(_, entry)| entry.owning.as_ref().is_some_and(|it| owns(&it)));
        let Some(name) = found.map(|(name, _)| name.clone()) else {
            return;
        };
        if !self.has_fork(&name, copy) {
            // What was made durable is a freeze, or a record.
            return;
        }
        self.taker_event(&name, taker::Event::Owned);
        let Some(owning) = self.owning(&name) else {
            return;
        };
        let owns = match &owning.what {
            What::Beginning(owns) => Ownership::clone(owns),
            What::Taking(machine) => match machine.state() {
                taker::State::Done(owns) => owns.clone(),
                _ => return,
            },
            What::Set(_) => return,
        };
        // What was fetched is here by now.
        let mut owns = owns;
        if let Some(kept) = self.copies.get(&copy) {
            owns.from = kept.machine.durable().from;
        }
        self.begin_set(&name, owns);
    }

    /// The copy is the volume of this name, under the fork with which this host begins.
    fn has_fork(&self, name: &str, copy: Uuid) -> bool {
        let owning = self.entries.get(name).and_then(|it| it.owning.as_ref());
        let owns = owning.and_then(|owning| match &owning.what {
            What::Beginning(owns) => Some(&**owns),
            What::Taking(machine) => match machine.state() {
                taker::State::Owning(owns) => Some(owns),
                _ => None,
            },
            What::Set(_) => None,
        });
        let (Some(owns), Some(kept)) = (owns, self.copies.get(&copy)) else {
            return false;
        };
        let durable = kept.machine.durable();
        let forked = durable.history.generation() == owns.history.generation();
        forked && !durable.frozen && kept.place == Place::Own(name.to_owned())
    }

    /// The drainer of the record of before writes no more.
    pub(super) fn prove_to_set(&mut self, name: &str, number: u64) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let record = owning.record();
        // Records of this ownership, and the one that it has replaced, have one drainer.
        if (record.given.saturating_sub(1)..=record.number).contains(&number) {
            let epoch = record.epoch;
            self.set_event(name, set::Event::Proved(epoch));
        }
    }

    fn begin_set(&mut self, name: &str, owns: Ownership) {
        let me = self.member.me.clone();
        let epoch = owns.record.epoch;
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let (wanted, standby) = (entry.settings.copies.clone(), entry.standby_host());
        // Of the record before the one that gave the unit to this host: no other host has made one
        // between them.
        let proved = entry.proved.is_some_and(|of| of + 1 == owns.record.given);
        if !proved {
            entry.proof = None;
        }
        let owning = entry.owning.as_mut().expect("it has begun");
        owning.what = What::Set(Box::new(Set::new(me, owns)));
        owning.begun = Instant::now();
        for event in wanted_events(&wanted) {
            self.set_event(name, event);
        }
        self.set_event(name, set::Event::Standby(standby));
        if proved {
            self.set_event(name, set::Event::Proved(epoch));
        }
        self.tell_newer(name);
        self.set_event(name, set::Event::Begin);
        let early = self.owning(name).and_then(|it| it.early_word.take());
        if let Some((from, word)) = early {
            self.hear_released(name, from, word);
        }
    }

    /// Others show who has it.
    fn tell_newer(&mut self, name: &str) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let (unit, number) = (owning.record().unit, owning.record().number);
        for host in self.links.clone() {
            self.say(host, unit, Body::Newer { number });
        }
    }

    pub(super) fn owning(&mut self, name: &str) -> Option<&mut Owning> {
        self.entries.get_mut(name)?.owning.as_mut()
    }

    /// Feeds the set. What follows from that may feed it again: it has one event at a time.
    pub(super) fn set_event(&mut self, name: &str, event: set::Event) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        owning.events.push_back(event);
        if core::mem::replace(&mut owning.feeding, true) {
            return;
        }
        while let Some(owning) = self.owning(name) {
            let Some(event) = owning.events.pop_front() else {
                owning.feeding = false;
                break;
            };
            let What::Set(machine) = &mut owning.what else {
                continue;
            };
            let mut out = Vec::new();
            let mut cx = set::Cx {
                nonces: &mut Random,
                out: &mut out,
            };
            machine.handle(&mut cx, event);
            for action in out {
                self.set_order(name, action);
            }
        }
        self.count_copies(name);
        self.show(name);
    }

    fn set_order(&mut self, name: &str, action: set::Action) {
        match action {
            set::Action::Send { host, body } => {
                let Some(owning) = self.owning(name) else {
                    return;
                };
                let (unit, known) = (owning.record().unit, owning.about.clone());
                let mut body = body;
                if let Body::Open { member, about, .. } = &mut body {
                    *about = known;
                    let peer = self.peer_id(member.host);
                    self.stream_of(name, *member, peer);
                }
                self.say(host, unit, body);
            }
            set::Action::Vault(order) => self.vault_order(name, order),
            set::Action::Choose { not } => {
                let place = self.choose_place(name, &not);
                self.set_event(name, set::Event::Chosen(place));
            }
            set::Action::Stream { member, from } => match self.owning(name) {
                Some(owning) if !owning.served => owning.pending.push((member, from)),
                Some(_) => self.start_stream(name, member, from),
                None => {}
            },
            set::Action::Close { host } => self.stop_stream(name, host),
            set::Action::Prepare { of, epoch } => self.prepare_epoch(name, of, epoch),
            set::Action::Serve => self.serve_with_copies(name, None),
            set::Action::Drain { record } => self.serve_with_copies(name, Some(record)),
            set::Action::Stop { record } => self.end_owning(name, record),
        }
    }

    fn vault_order(&mut self, name: &str, order: Order) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        let Some((_, records)) = entry.place.clone() else {
            return;
        };
        let (memory, inputs) = (self.memory.clone(), self.inputs.clone());
        let name = name.to_owned();
        let workers = match &order {
            Order::Remember { record, undecided } => {
                if !undecided {
                    // Before what is remembered next.
                    memory.write(record.unit, record, false, &|| true);
                    return;
                }
                &self.local
            }
            Order::Decide { .. } => &self.workers,
        };
        workers.run(move |ends| {
            let ends = || ends.load(Ordering::Acquire);
            let step = match order {
                Order::Remember { record, undecided } => {
                    let written = memory.write(record.unit, &record, undecided, &ends);
                    written.then_some(Step::Remembered(record.nonce))
                }
                Order::Decide { record, again } => {
                    let nonce = record.nonce;
                    let cas = match again {
                        true => Cas::again(record),
                        false => Cas::new(record),
                    };
                    let decided = records.decide(cas, &ends);
                    decided.map(|outcome| Step::Decided(nonce, outcome))
                }
            };
            if let Some(step) = step {
                let _ = inputs.send(Input::Own(name, step));
            }
        });
    }

    fn prepare_epoch(&mut self, name: &str, of: Epoch, epoch: Epoch) {
        let entry = &self.entries[name];
        let Some((sides, _)) = entry.place.clone() else {
            return;
        };
        let (quiet, inputs) = (entry.settings.quiet, self.inputs.clone());
        let name = name.to_owned();
        self.workers.run(move |ends| {
            super::jobs::wait_for_quiet(quiet, ends);
            let of = Some(of).filter(|of| of.number > 0);
            // What this host has of it is in its log.
            let prepared = sides.prepare(of, epoch, false);
            if prepared.is_err() {
                sides.remove(epoch);
            }
            let _ = inputs.send(Input::Own(name, Step::Prepared(prepared)));
        });
    }

    pub(super) fn own_step(&mut self, name: &str, step: Step) {
        let taking = self
            .owning(name)
            .is_some_and(|owning| matches!(owning.what, What::Taking(_)));
        let changing = self.owning(name).and_then(|owning| match &owning.what {
            What::Taking(machine) => machine.changing().map(|record| record.nonce),
            What::Set(machine) => machine.changing().map(|record| record.nonce),
            What::Beginning(_) => None,
        });
        match step {
            // Of a change that another record has ended.
            Step::Remembered(of) | Step::Decided(of, _) if changing != Some(of) => {}
            Step::Remembered(_) if taking => self.taker_event(name, taker::Event::Remembered),
            Step::Remembered(_) => self.set_event(name, set::Event::Remembered),
            Step::Decided(_, outcome) => {
                let why = match &outcome {
                    Outcome::Damaged(why) => Some(why.clone()),
                    Outcome::Unwritten => Some(UNWRITTEN.to_owned()),
                    Outcome::Won(_) | Outcome::Lost(_) => None,
                };
                if let Some(owning) = self.owning(name) {
                    owning.problem = why;
                }
                match taking {
                    true => self.taker_event(name, taker::Event::Decided(outcome)),
                    false => self.set_event(name, set::Event::Decided(outcome)),
                }
            }
            Step::Prepared(made) => {
                if let Err(why) = &made {
                    self.set_problem(name, why.clone());
                }
                self.set_event(name, set::Event::Prepared(made));
            }
            Step::Taken(copy, taken) => self.taken(name, copy, taken),
            Step::Fetching(Ok((volume, session, of))) => self.fetching(name, volume, session, *of),
            Step::Fetching(Err(why)) => {
                if let Some(owning) = self.owning(name) {
                    owning.fetch = None;
                }
                self.set_problem(name, why);
            }
            Step::Seen(record) => {
                self.set_event(name, set::Event::Seen(record.clone()));
                let record = Box::new(record);
                let from = self.member.me.host;
                let body = Body::Deposed { record };
                self.taker_event(name, taker::Event::Heard { from, body });
            }
        }
    }

    fn taken(&mut self, name: &str, copy: Uuid, taken: Result<Box<Ownership>, String>) {
        if let Some(kept) = self.copies.get_mut(&copy) {
            kept.busy = false;
        }
        if let Some(owning) = self.owning(name) {
            owning.fetch = None;
        }
        match taken {
            Ok(owns) => {
                let about = self
                    .owning(name)
                    .map(|owning| owning.about.clone())
                    .unwrap_or_default();
                self.own_copy(name, *owns, about);
            }
            Err(why) => self.set_problem(name, why),
        }
    }

    /// Serves the volume with the copies that its flushes need; with this record, which gives the
    /// right to write its image, or without the right.
    fn serve_with_copies(&mut self, name: &str, record: Option<Record>) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        if owning.served || owning.serving {
            // It is, or is about to be, without the right.
            if let Some(record) = record.filter(|_| !owning.drains) {
                self.queue(name, Job::Prove(Box::new(record)));
            }
            return;
        }
        owning.serving = true;
        owning.told_origin = owning.set().is_some_and(Set::answers_at_origin);
        let counts = owning.set().map(Set::must_have).unwrap_or_default();
        let at_origin = owning.told_origin;
        let (own, given) = (owning.own, owning.record().given);
        let others = counts.into_iter().filter(|member| member.copy != own);
        let others: Vec<Member> = others.collect();
        let mut peers = Vec::new();
        for member in others {
            let peer = self.peer_id(member.host);
            peers.push(peer);
            self.stream_of(name, member, peer).counted = true;
        }
        let needs = Needs {
            peers,
            at_origin,
            rests: self.entries[name].has_window(),
            given,
            ..Needs::default()
        };
        let job = match record {
            Some(record) => Job::Serve(Box::new(record), needs),
            None => Job::ServeUnproved(needs),
        };
        self.queue(name, job);
    }

    /// The volume is served, and what waited for that goes on.
    pub(super) fn served_with_copies(&mut self, name: &str, proved: bool, served: bool) {
        let volume = self.logs.find(name);
        let Some(owning) = self.owning(name) else {
            return;
        };
        owning.serving = false;
        owning.drains |= proved && served;
        if !served || core::mem::replace(&mut owning.served, true) {
            return;
        }
        (owning.begun, owning.volume) = (Instant::now(), volume);
        for (member, from) in core::mem::take(&mut owning.pending) {
            self.start_stream(name, member, from);
        }
    }

    pub(super) fn volume_of(&self, name: &str) -> Option<VolumeId> {
        let owning = self.entries.get(name).and_then(|it| it.owning.as_ref());
        owning
            .and_then(|it| it.volume)
            .or_else(|| self.logs.find(name))
    }

    /// A message that is for the owner of a unit, or for who takes it. False if it is for neither.
    pub(super) fn owner_heard(&mut self, name: &str, from: Uuid, body: Body) -> bool {
        let Some(owning) = self.owning(name) else {
            return false;
        };
        match body {
            Body::Take { number } => self.asked_for(name, from, number),
            // This host may not know yet that it was replaced.
            Body::Release { number, .. } => {
                if number > owning.record().number {
                    self.look_for_newer(name);
                }
            }
            released @ Body::Released { .. } => self.hear_released(name, from, released),
            Body::Newer { number } | Body::NotMine { number } => {
                if number > owning.record().number {
                    self.look_for_newer(name);
                }
            }
            Body::NoRoom { .. } => self.heard_no_room(name, from, body),
            body => {
                if let Body::Failed { copy, .. } = &body {
                    self.fetch_failed(name, from, *copy);
                }
                let Some(owning) = self.owning(name) else {
                    return true;
                };
                if let Body::Absent { .. } | Body::Failed { .. } = &body {
                    owning.refused.insert(from, Instant::now());
                    if let Some(stream) = owning.streams.get_mut(&from) {
                        stream.watch.fail(now());
                    }
                }
                if let Body::Frozen { about, .. } = &body
                    && owning.about == About::default()
                {
                    owning.about = about.clone();
                }
                if let Body::Opened { credit, .. } = &body
                    && let Some(stream) = owning.streams.get_mut(&from)
                {
                    stream.credit = *credit;
                }
                let (event, body) = (body.clone(), body);
                self.taker_event(name, taker::Event::Heard { from, body: event });
                self.set_event(name, set::Event::Heard { from, body });
            }
        }
        true
    }

    fn look_for_newer(&mut self, name: &str) {
        let entry = &self.entries[name];
        let (Some((_, records)), Some(owning)) = (entry.place.clone(), &entry.owning) else {
            return;
        };
        let known = owning.record().clone();
        let (unit, inputs, name) = (known.unit, self.inputs.clone(), name.to_owned());
        self.workers.run(move |_| {
            if let Ok(Some(seen)) = records.look(Look::new(unit, Some(known))) {
                let _ = inputs.send(Input::Own(name, Step::Seen(seen)));
            }
        });
    }

    /// Another host has a client for the unit: everything goes to the origin, and the unit is let
    /// go of, if no client is here.
    fn asked_for(&mut self, name: &str, from: Uuid, _number: u64) {
        let unit = self.entries[name].unit.as_ref().map(|(id, _)| *id);
        let Some(unit) = unit else { return };
        let bytes = self.volumes.dirty_bytes(name);
        self.say(from, unit, Body::Draining { bytes });
        if let Some(owning) = self.owning(name) {
            owning.asked_by = Some(from);
        }
        self.let_go_with_copies(name);
    }

    /// Lets go of the volume, if that is asked for and nothing else is under way.
    pub(super) fn let_go_with_copies(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        let (busy, leaving) = (entry.busy || !entry.jobs.is_empty(), entry.leaving);
        let held = entry.held.clone();
        if !busy && (self.give_to_who_asks(name) || Guests(self).waits_for_copy(name)) {
            return;
        }
        let Some(owning) = self.owning(name) else {
            return;
        };
        let asked = owning.asked_by.is_some() || leaving;
        if asked && owning.set().is_some_and(set::rests) {
            // What is under way may end with a copy there, to which it goes as it is.
            if !busy && owning.rests() {
                Windows(self).stay(name);
            }
            return;
        }
        let rests = owning.rests() && owning.set().is_some() && owning.drains && !busy;
        if asked && rests {
            owning.letting_go = true;
            return self.queue(name, Job::LetGo);
        }
        let unit = owning.record().unit;
        let waits = owning.waits_for().map(|it| it.name.clone());
        let waits =
            waits.map(|name| format!("nothing shows yet that {name} writes its image no more"));
        if let Some(why) = held.or(waits)
            && let Some(host) = owning.asked_by.take()
        {
            self.say(host, unit, Body::Denied { why: why.clone() });
            self.end_move(name, Err(why));
        }
    }

    /// The end of that.
    pub(super) fn let_go_of_copies(&mut self, name: &str, done: Drained) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        owning.letting_go = false;
        let unit = owning.record().unit;
        if done == Drained::Done {
            owning.releasing = true;
            (owning.served, owning.serving, owning.drains) = (false, false, false);
            let entry = self.entries.get_mut(name).expect("just seen");
            (entry.serves, entry.proof) = (false, None);
            Guests(self).hand_over_home(name);
            return self.release(name);
        }
        let asked_by = owning.asked_by.take();
        let why = self.why_stays(done);
        if let Some(host) = asked_by {
            self.say(host, unit, Body::Denied { why: why.clone() });
        }
        self.end_move(name, Err(why.clone()));
        let entry = self.entries.get_mut(name);
        if let Some(remover) = entry.and_then(take_remover) {
            let _ = remover.send(Err(why));
        }
    }

    /// Tells the set that all is at the origin, until the record that says so is made.
    pub(super) fn release(&mut self, name: &str) {
        let view = self
            .volume_of(name)
            .and_then(|volume| self.logs.view(volume));
        let Some(view) = view.filter(|view| !view.dirty && !view.attached) else {
            return;
        };
        let end = view.written.max(view.destaged);
        self.set_event(name, set::Event::Given(end));
        self.set_event(name, set::Event::Synced(end));
        let (session, own) = (self.member.me.session, self.owning(name).map(|it| it.own));
        let asked = match self.owning(name).and_then(|it| it.set()) {
            Some(set) => set.must_have(),
            None => return,
        };
        let number = self.owning(name).map_or(0, |it| it.record().number);
        // Nothing was destaged that a copy that counts does not have.
        for member in asked.into_iter().filter(|it| Some(it.copy) != own) {
            let body = Body::Ack {
                copy: member.copy,
                session,
                term: number,
                durable: end,
                batch: 0,
                credit: Credit::default(),
            };
            let from = member.host;
            self.set_event(name, set::Event::Heard { from, body });
        }
        self.tell_destaged(name, end);
        self.set_event(name, set::Event::Release);
    }

    pub(super) fn tell_destaged(&mut self, name: &str, destaged: Serial) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let What::Set(set) = &mut owning.what else {
            return;
        };
        set.acknowledge();
        set.begin_cut();
        let destaged = destaged.min(set.cut());
        if destaged > set.destaged() {
            self.set_event(name, set::Event::Destaged(destaged));
        }
    }

    /// The unit is another host's by this record, or no host's.
    pub(super) fn end_owning(&mut self, name: &str, record: Record) {
        let hosts: Vec<Uuid> = self
            .owning(name)
            .map(|owning| owning.streams.keys().copied().collect())
            .unwrap_or_default();
        for host in hosts {
            if let (Some(volume), peer) = (self.volume_of(name), self.peer_id(host)) {
                // The log goes on to ask them: what waits for them is refused when it lets go.
                self.logs.close_stream(volume, peer);
            }
        }
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let acts = entry.acts();
        let Some(owning) = entry.owning.take() else {
            return;
        };
        let asked_by = owning.asked_by;
        let own = owning.own;
        let (unit, number) = (record.unit, record.number);
        match &record.owner {
            None => self.remove_own_copy(own),
            Some(owner) if owner.is_same_host(&self.member.me) => {}
            Some(owner) => {
                let owner = owner.name.clone();
                match acts {
                    true => {
                        entry.retiring = Some(own);
                        let given = owning.giving.is_some();
                        self.queue(name, Job::Depose(owner, given));
                    }
                    false => self.retire_copy(own),
                }
            }
        }
        if let Some(fetch) = &owning.fetch {
            self.end_of_fetch(fetch.owns.own.copy);
        }
        let owner = record.owner.as_ref().map_or(Uuid::NIL, |it| it.host);
        self.event(name, UnitEvent::Ended { record });
        if owner != self.member.me.host {
            self.end_move(name, Ok(owner));
        }
        if let Some(host) = asked_by {
            self.say(host, unit, Body::Newer { number });
        }
        self.tell_links_newer(unit, number);
        self.show(name);
    }

    fn tell_links_newer(&mut self, unit: Uuid, number: u64) {
        for host in self.links.clone() {
            self.say(host, unit, Body::Newer { number });
        }
    }

    /// All is at the origin: the volume is no copy any more.
    fn remove_own_copy(&mut self, own: Uuid) {
        let is_own = |place: &Place| matches!(place, Place::Own(_));
        if self
            .copies
            .get(&own)
            .is_some_and(|kept| is_own(&kept.place))
        {
            self.remove_copy(own);
        }
    }

    /// A copy of this host was frozen by this record: what it owns with it ends. True if the volume
    /// is let go of first, which [`Manager::retire_copy`] follows.
    pub(super) fn depose_owner(&mut self, name: &str, record: Record) -> bool {
        let acts = self.entries.get(name).is_some_and(Entry::acts);
        self.own_step(name, Step::Seen(record));
        acts && self.owning(name).is_none()
    }

    /// About each second.
    pub(super) fn tick_copies(&mut self, name: &str) {
        let Some(owning) = self.owning(name) else {
            return self.begin_copies(name);
        };
        let stuck = match &owning.what {
            What::Taking(machine) => matches!(
                machine.state(),
                taker::State::Behind { .. } | taker::State::Held(_)
            ),
            _ => false,
        };
        if stuck {
            // The vault is looked at anew.
            let record = owning.record().clone();
            return self.end_owning(name, record);
        }
        if self.gives_up_taking(name) {
            return;
        }
        if self.owning(name).is_some_and(|it| it.is_probing()) {
            // Its copies may be gone for good, and what they had is at the image by another host.
            self.look_for_newer(name);
        }
        self.prove_again(name);
        let Some(owning) = self.owning(name) else {
            return;
        };
        let releasing = owning.releasing;
        self.taker_event(name, taker::Event::Tick);
        self.set_event(name, set::Event::Tick);
        self.give_up_giving(name);
        match releasing {
            true => self.release(name),
            false => self.let_go_with_copies(name),
        }
    }
}
