//! The copies that this host keeps of units, its own one of each that it owns included.
//!
//! ```text
//! message ─▶ what the log does first ─▶ the machine ([`node::copy`]) ─▶ made durable ─▶ answered
//!            Open: keeps the replica     one message at a time,
//!            Freeze: freezes it          others wait
//!            Probe: tells its end
//! ```
//! Owns the machine of each copy, its file in the state directory, and where its writes are: a
//! replica in the log, or the volume that this host serves. Always true: the log takes nothing more
//! from the owner of before when the machine says so; what is answered is durable first; a copy
//! that is not there is absent, and never empty; one that no record names any more is kept until
//! the owner says that it is not needed, and is offered to all hosts until then.
//! Deliberately absent: batches, which go from the links to the log; see [`crate::shard`].

use super::copies::CopyShown;
use super::logs::InletFrom;
use super::owning::What;
use super::{Entry, Event as UnitEvent, Input, Manager, State, locked, remember};
use crate::marks::{self, Phase};
use engine::event::{Command, ReplicaSpec};
use engine::types::{Serial, Uuid, VolumeId};
use node::copy::{Action, Copy, Event};
use node::message::{About, Body, Health, Message, Status};
use node::record::Record;
use node::taker::{self, Ownership};
use node::vault::{Look, hex};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Messages about one copy that wait for what is under way. Their senders ask again.
const WAITING_MAX: usize = 32;
/// How often a copy without a stream is offered to the other hosts.
const OFFER_EVERY: Duration = Duration::from_secs(5);

/// Where the writes of a copy are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Replica(VolumeId),
    /// The volume of this name, which this host serves or did serve.
    Own(String),
}

/// One copy.
pub(super) struct Kept {
    pub machine: Copy,
    pub place: Place,
    /// Something of it is under way; messages wait.
    pub busy: bool,
    /// What this host served is being made a replica.
    retires: bool,
    waiting: VecDeque<(Uuid, Body)>,
    /// The session whose batches are let in.
    inlet: Option<(Uuid, Uuid)>,
    offered: Instant,
    /// When the records of its unit were looked at, for want of an owner that tells.
    looked: Instant,
    /// What it takes of the log, as of a moment ago.
    bytes: u64,
    /// The host that has frozen it, and the session in which it is sent all of it.
    pub sends: Option<(Uuid, Uuid)>,
}

/// What a thread that may wait has done for a copy.
pub(super) enum Step {
    Made(Box<Copy>, VolumeId),
    /// The log has done its part, or cannot; the copy ends here.
    Ready(Result<Serial, String>),
    Persisted,
    Removed,
    /// The volume that was served is a replica now.
    Retired(Result<VolumeId, String>),
}

/// Under which name the log has the replica of a copy. No volume may be called so.
pub(super) fn replica_name(copy: Uuid) -> String {
    format!("@{}", hex(copy))
}

/// The copy that a message is for.
fn copy_of(body: &Body) -> Option<Uuid> {
    match body {
        Body::Open { member, .. } => Some(member.copy),
        Body::Probe { copy }
        | Body::Resume { copy, .. }
        | Body::Adopt { copy, .. }
        | Body::Cut { copy, .. }
        | Body::Destaged { copy, .. }
        | Body::Keep { copy, .. }
        | Body::Freeze { copy, .. }
        | Body::Fetch { copy, .. }
        | Body::Drop { copy, .. } => Some(*copy),
        _ => None,
    }
}

/// The record that a message binds a copy to before the log may do its part.
fn binds(body: &Body) -> Option<&Record> {
    match body {
        Body::Open { record, .. } | Body::Freeze { record, .. } => Some(record),
        _ => None,
    }
}

fn spec(copy: Uuid, about: &About, body: &Body) -> Option<ReplicaSpec> {
    let Body::Open {
        session,
        record,
        destaged,
        ..
    } = body
    else {
        return None;
    };
    Some(ReplicaSpec {
        name: replica_name(copy),
        origin: about.origin.clone(),
        uuid: about.volume,
        size_bytes: about.size_bytes,
        lineage: *session,
        term: record.number,
        destaged: *destaged,
        fetched: false,
    })
}

impl Kept {
    pub fn of(machine: Copy, place: Place) -> Kept {
        Kept {
            machine,
            place,
            busy: false,
            retires: false,
            waiting: VecDeque::new(),
            inlet: None,
            offered: Instant::now(),
            looked: Instant::now(),
            bytes: 0,
            sends: None,
        }
    }

    pub(super) fn unit(&self) -> Uuid {
        self.machine.durable().record.unit
    }

    /// The host and the session whose batches are let in.
    pub(super) fn inlet(&self) -> Option<(Uuid, Uuid)> {
        self.inlet
    }
}

/// The copy that was frozen is not written to any more, and can become the volume.
fn own_waits_for(manager: &mut Manager, copy: Uuid) {
    let free = |it: &Kept| !it.busy && matches!(it.place, Place::Replica(_));
    if !manager.copies.get(&copy).is_some_and(free) {
        return;
    }
    let waits = |entry: &Entry| match entry.owning.as_ref().map(|it| &it.what) {
        Some(What::Taking(machine)) => match machine.state() {
            taker::State::Owning(owns) => owns.own.copy == copy,
            _ => false,
        },
        _ => false,
    };
    let found = manager.entries.iter().find(|(_, entry)| waits(entry));
    if let Some(name) = found.map(|(name, _)| name.clone()) {
        manager.taker_event(&name, taker::Event::Tick);
    }
}

impl Manager {
    /// Copies of runs before this one.
    pub(super) fn recover_copies(&mut self) {
        if self.member.alone.is_some() {
            // Those of this cache are another host's, which may be back with it.
            return;
        }
        let mut named = Vec::new();
        for durable in self.memory.copies() {
            let copy = durable.member.copy;
            let name = replica_name(copy);
            let own = durable.about.name.clone();
            let uuid = durable.about.volume;
            let known = |name: &str| {
                let found = self.logs.find(name)?;
                let view = self.logs.view(found)?;
                (view.uuid == uuid).then_some(found)
            };
            let place = match known(&name) {
                Some(volume) => Some((Place::Replica(volume), volume)),
                None => known(&own).map(|volume| (Place::Own(own), volume)),
            };
            let here = durable.member.cache == self.member.me.cache;
            let Some((place, volume)) = place.filter(|_| here) else {
                // Its file stays: the cache may be another one today.
                tracing::warn!(
                    "copy {copy} of {}: is not in this cache",
                    durable.about.name
                );
                continue;
            };
            named.push(name);
            let mut kept = Kept::of(Copy::recover(durable), place);
            let view = self.logs.view(volume);
            let end = view.as_ref().map_or(Serial(0), end_of);
            let mut out = Vec::new();
            if view.as_ref().is_some_and(|it| it.damaged) {
                kept.machine.handle(&mut out, Event::Damaged);
            }
            // What an owner has said of the origin is in the log only.
            let destaged = view.as_ref().map_or(Serial(0), |view| view.destaged);
            kept.machine.handle(&mut out, Event::AtOrigin(destaged));
            kept.machine.handle(&mut out, Event::Recovered(end));
            assert!(out.is_empty(), "a copy that was read has nothing to say");
            self.copies.insert(copy, kept);
        }
        // One that was made and not told of has nothing.
        for name in self.logs.replicas() {
            let volume = self.logs.find(&name).filter(|_| !named.contains(&name));
            let empty = |volume: &VolumeId| self.logs.view(*volume).is_some_and(|it| !it.dirty);
            match volume {
                Some(volume) if empty(&volume) => self.forget_replica(volume),
                Some(_) => tracing::warn!("replica {name}: its file is gone; it is kept"),
                None => {}
            }
        }
        self.show_copies();
    }

    fn forget_replica(&self, volume: VolumeId) {
        let discard_dirty = true;
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        if let Err(why) = self.logs.run(command) {
            tracing::warn!("a replica cannot be forgotten: {why}");
        }
    }

    /// A message about a copy. False if it is for an owner or for a taker.
    pub(super) fn copy_heard(&mut self, from: Uuid, unit: Uuid, body: Body) -> bool {
        let Some(copy) = copy_of(&body) else {
            return false;
        };
        match self.copies.get_mut(&copy) {
            Some(kept) if kept.busy => {
                if kept.waiting.len() < WAITING_MAX {
                    kept.waiting.push_back((from, body));
                }
            }
            Some(_) => self.prepare_copy(copy, from, body),
            None => self.copy_unknown(from, unit, copy, body),
        }
        true
    }

    fn copy_unknown(&mut self, from: Uuid, unit: Uuid, copy: Uuid, body: Body) {
        let me = (self.member.me.host, self.member.me.cache);
        let made = Copy::make(me, &body);
        let Body::Open { about, .. } = &body else {
            return self.say_absent(from, unit, copy, &body);
        };
        let (Some(machine), Some(spec)) = (made, spec(copy, about, &body)) else {
            return self.say_absent(from, unit, copy, &body);
        };
        if self.making.contains(&copy) || !self.has_room_for_copy(from, unit, &body) {
            return;
        }
        self.making.insert(copy);
        let (logs, inputs) = (self.logs.clone(), self.inputs.clone());
        let memory = self.memory.clone();
        self.local.run(move |_| {
            let made = logs.keep(spec).and_then(|volume| {
                // So that a restart finds it.
                let written = memory.write_copy(machine.durable());
                if written.is_err() {
                    let discard_dirty = true;
                    let _ = logs.run(Command::Detach {
                        volume,
                        discard_dirty,
                    });
                }
                written.map(|()| volume)
            });
            let step = match made {
                Ok(volume) => Step::Made(Box::new(machine), volume),
                Err(why) => Step::Ready(Err(why)),
            };
            let _ = inputs.send(Input::Copy(copy, step, Some((from, body))));
        });
    }

    fn say_absent(&mut self, from: Uuid, unit: Uuid, copy: Uuid, body: &Body) {
        if !matches!(
            body,
            Body::Destaged { .. } | Body::Cut { .. } | Body::Keep { .. } | Body::Drop { .. }
        ) {
            self.say(from, unit, Body::Absent { copy });
        }
    }

    /// What the log has to do before the machine hears the message.
    fn prepare_copy(&mut self, copy: Uuid, from: Uuid, body: Body) {
        if let Body::Fetch { .. } = body {
            return self.send_copy(from, &body);
        }
        let kept = self.copies.get_mut(&copy).expect("just seen");
        let known = &kept.machine.durable().record;
        let obeys = binds(&body).is_some_and(|record| {
            let newer = record.number > known.number;
            let same = record.number == known.number && record.nonce == known.nonce;
            let theirs = record.owner.as_ref().is_some_and(|it| it.host == from);
            (newer || same) && theirs
        });
        let whole = kept.machine.health() != Health::Recovering;
        let Some(volume) = kept.volume() else {
            return match &body {
                Body::Freeze { .. } | Body::Open { .. } if obeys => {
                    self.end_own(copy, from, body);
                }
                _ => self.look_at_copy(copy, from, body),
            };
        };
        if !obeys || !whole {
            return self.look_at_copy(copy, from, body);
        }
        kept.busy = true;
        let (logs, inputs) = (self.logs.clone(), self.inputs.clone());
        let about = kept.machine.durable().about.clone();
        let frozen = matches!(body, Body::Freeze { .. });
        (kept.inlet, kept.sends) = (None, None);
        self.local.run(move |_| {
            // What an earlier session has under way is not acknowledged any more.
            logs.close_inlet(copy);
            let done = match (frozen, spec(copy, &about, &body)) {
                (false, Some(spec)) => logs.keep(spec).map(drop),
                _ => {
                    let term = binds(&body).map_or(0, |record| record.number);
                    logs.run(Command::Freeze { volume, term })
                }
            };
            let end = done.and_then(|()| {
                let view = logs.view(volume).ok_or("the log has lost it")?;
                Ok(end_of(&view))
            });
            let _ = inputs.send(Input::Copy(copy, Step::Ready(end), Some((from, body))));
        });
    }

    /// The origin has what a copy has up to there. One that streams hears that with its batches.
    fn let_go(&mut self, copy: Uuid, upto: Serial) {
        let kept = self.copies.get(&copy).filter(|kept| kept.inlet.is_none());
        let Some(Place::Replica(volume)) = kept.map(|kept| kept.place.clone()) else {
            return;
        };
        let logs = self.logs.clone();
        self.local.run(move |_| {
            let order = Command::TellDestaged { volume, upto };
            if let Err(why) = logs.run(order) {
                tracing::info!("copy {copy}: what the image has stays in the log: {why}");
            }
        });
    }

    /// What needs nothing of the log but a look at it.
    fn look_at_copy(&mut self, copy: Uuid, from: Uuid, body: Body) {
        self.refresh_copy(copy);
        self.feed_copy(copy, Event::Heard { from, body });
    }

    /// The machine knows how far the log has come.
    fn refresh_copy(&mut self, copy: Uuid) {
        let Some(kept) = self.copies.get(&copy) else {
            return;
        };
        let volume = match &kept.place {
            Place::Replica(volume) => Some(*volume),
            Place::Own(name) => self.logs.find(name),
        };
        let view = volume.and_then(|volume| self.logs.view(volume));
        if let Some(view) = view {
            if view.damaged && kept.machine.health() == Health::Whole {
                self.feed_copy(copy, Event::Damaged);
            }
            self.feed_copy(copy, Event::AtOrigin(view.destaged));
            self.feed_copy(copy, Event::Reached(end_of(&view)));
        }
    }

    /// What a copy says of itself now.
    pub(super) fn copy_status(&mut self, copy: Uuid) -> Option<Status> {
        self.refresh_copy(copy);
        let kept = self.copies.get(&copy)?;
        Some(kept.machine.status())
    }

    pub(super) fn copy_step(&mut self, copy: Uuid, step: Step, told: Option<(Uuid, Body)>) {
        match step {
            Step::Made(machine, volume) => {
                self.making.remove(&copy);
                let kept = Kept::of(*machine, Place::Replica(volume));
                self.copies.insert(copy, kept);
                if let Some((from, body)) = told {
                    self.feed_credit(copy);
                    self.look_at_copy(copy, from, body);
                }
            }
            Step::Ready(ready) => self.copy_ready(copy, ready, told),
            Step::Persisted => {
                self.unbusy(copy);
                self.feed_copy(copy, Event::Persisted);
                self.own_copy_is_durable(copy);
                self.next_of_copy(copy);
                own_waits_for(self, copy);
            }
            Step::Removed => {
                self.copies.remove(&copy);
                self.show_copies();
            }
            Step::Retired(retired) => self.retired(copy, retired, told),
        }
    }

    fn copy_ready(
        &mut self,
        copy: Uuid,
        ready: Result<Serial, String>,
        told: Option<(Uuid, Body)>,
    ) {
        self.making.remove(&copy);
        self.unbusy(copy);
        let Some((from, body)) = told else { return };
        match ready {
            Ok(end) => {
                self.feed_copy(copy, Event::Reached(end));
                self.feed_credit(copy);
                self.feed_copy(copy, Event::Heard { from, body });
            }
            Err(why) => {
                tracing::warn!("copy {copy}: cannot be kept: {why}");
                if let Some(unit) = binds(&body).map(|record| record.unit) {
                    self.say_absent(from, unit, copy, &body);
                }
            }
        }
        self.next_of_copy(copy);
    }

    /// What the log promises to the owner that has just come.
    fn feed_credit(&mut self, copy: Uuid) {
        if let Some(volume) = self.copies.get(&copy).and_then(Kept::volume) {
            let credit = self.credit_here(volume);
            self.feed_copy(copy, Event::Credit(credit));
        }
    }

    fn unbusy(&mut self, copy: Uuid) {
        if let Some(kept) = self.copies.get_mut(&copy) {
            kept.busy = false;
        }
    }

    fn next_of_copy(&mut self, copy: Uuid) {
        while let Some(kept) = self.copies.get_mut(&copy).filter(|it| !it.busy)
            && let Some((from, body)) = kept.waiting.pop_front()
        {
            self.prepare_copy(copy, from, body);
        }
    }

    pub(super) fn feed_copy(&mut self, copy: Uuid, event: Event) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        let mut out = Vec::new();
        kept.machine.handle(&mut out, event);
        self.let_in(copy);
        for action in out {
            self.copy_order(copy, action);
        }
        self.show_copies();
    }

    /// Batches come in for as long as the machine takes a stream.
    fn let_in(&mut self, copy: Uuid) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        let Place::Replica(volume) = kept.place else {
            return;
        };
        let streams = kept.machine.stream();
        if kept.inlet == streams {
            return;
        }
        kept.inlet = streams;
        match streams {
            None => self.logs.close_inlet(copy),
            Some((host, session)) => self.logs.open_inlet(InletFrom {
                copy,
                session,
                host,
                volume,
                term: kept.machine.term(),
            }),
        }
    }

    fn copy_order(&mut self, copy: Uuid, action: Action) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        let unit = kept.unit();
        let (memory, inputs) = (self.memory.clone(), self.inputs.clone());
        match action {
            Action::Persist(durable) => {
                kept.busy = true;
                self.local.run(move |ends| {
                    let ends = || ends.load(Ordering::Acquire);
                    if remember::until_done(&ends, || memory.write_copy(&durable)) {
                        let _ = inputs.send(Input::Copy(copy, Step::Persisted, None));
                    }
                });
            }
            Action::Send { host, body } => self.say(host, unit, body),
            Action::Close { .. } => {
                kept.inlet = None;
                self.logs.close_inlet(copy);
            }
            Action::Remove => self.remove_copy(copy),
            Action::Forget(upto) => self.let_go(copy, upto),
            // The log seals epochs where the stream says so.
            Action::Write { .. } | Action::Seal(_) => {}
        }
    }

    /// Forgets a copy. Of one that is the volume itself only that it was one.
    pub(super) fn remove_copy(&mut self, copy: Uuid) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        kept.busy = true;
        let place = kept.place.clone();
        let (memory, inputs, logs) = (self.memory.clone(), self.inputs.clone(), self.logs.clone());
        self.local.run(move |_| {
            logs.close_inlet(copy);
            let discard_dirty = true;
            if let Place::Replica(volume) = place
                && let Err(why) = logs.run(Command::Detach {
                    volume,
                    discard_dirty,
                })
            {
                tracing::warn!("copy {copy}: cannot be forgotten: {why}");
            }
            memory.remove_copy(copy);
            let _ = inputs.send(Input::Copy(copy, Step::Removed, None));
        });
    }

    /// This host owns a unit from now on, and this copy is its own one: it is made if it is not
    /// there.
    pub(super) fn own_copy(&mut self, name: &str, owns: Ownership, about: About) {
        let copy = owns.own.copy;
        let place = Place::Own(name.to_owned());
        let stale = self.copies.iter().filter(|(_, kept)| kept.place == place);
        let stale: Vec<Uuid> = stale
            .map(|(copy, _)| *copy)
            .filter(|it| *it != copy)
            .collect();
        for other in stale {
            // One volume is one copy.
            self.copies.remove(&other);
            self.memory.remove_copy(other);
        }
        match self.copies.get_mut(&copy) {
            Some(kept) => {
                kept.machine.call(name);
                kept.place = Place::Own(name.to_owned());
                let owns = Box::new(owns);
                self.feed_copy(copy, Event::Own { owns });
            }
            None => {
                let kept = Kept::of(Copy::begin(&owns, about), Place::Own(name.to_owned()));
                let durable = Box::new(kept.machine.durable().clone());
                self.copies.insert(copy, kept);
                self.copy_order(copy, Action::Persist(durable));
            }
        }
    }

    /// The volume of this name is deposed, and no request of it is under way: it is a replica from
    /// now on, and what waited for that goes on.
    pub(super) fn retire_copy(&mut self, copy: Uuid) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        let Place::Own(name) = kept.place.clone() else {
            return;
        };
        let term = kept.machine.term();
        kept.busy = true;
        // The name may be another copy's when that is done.
        if core::mem::replace(&mut kept.retires, true) {
            return;
        }
        let (logs, inputs) = (self.logs.clone(), self.inputs.clone());
        self.local.run(move |_| {
            let retired = retire(&*logs, &name, replica_name(copy), term);
            let _ = inputs.send(Input::Copy(copy, Step::Retired(retired), None));
        });
    }

    fn retired(
        &mut self,
        copy: Uuid,
        retired: Result<VolumeId, String>,
        _told: Option<(Uuid, Body)>,
    ) {
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        (kept.busy, kept.retires) = (false, false);
        match retired {
            Ok(volume) => kept.place = Place::Replica(volume),
            Err(why) => {
                tracing::warn!("copy {copy}: {why}");
                // Who waits asks again.
                kept.waiting.clear();
            }
        }
        self.next_of_copy(copy);
        self.show_copies();
    }

    /// Another host takes the unit with the copy of this one, or was given it; this host may still
    /// be serving it.
    fn end_own(&mut self, copy: Uuid, from: Uuid, body: Body) {
        let kept = self.copies.get_mut(&copy).expect("just seen");
        let (Place::Own(name), Some(record)) = (kept.place.clone(), binds(&body).cloned()) else {
            return;
        };
        // First nothing more is acknowledged under the record of before.
        kept.waiting.push_back((from, body));
        kept.busy = true;
        if !self.depose_owner(&name, record) {
            self.retire_copy(copy);
        }
    }

    /// What this host had of a unit as its owner is a copy only, once another one owns it with
    /// copies of its own.
    pub(super) fn retire_old(&mut self, name: &str) {
        let entry = &self.entries[name];
        let Some((id, unit)) = &entry.unit else {
            return;
        };
        let newest = unit
            .newest()
            .filter(|_| entry.owning.is_none() && !entry.busy);
        let Some(newest) = newest.filter(|it| !it.members.is_empty() || it.owner.is_none()) else {
            return;
        };
        let theirs = newest.owner.as_ref();
        // Without an owner all of it is at the origin.
        let theirs = theirs.is_none_or(|it| !it.is_same_host(&self.member.me));
        let old = |kept: &Kept| -> bool {
            let own = kept.place == Place::Own(name.to_owned()) && !kept.busy;
            own && kept.unit() == *id && kept.machine.term() < newest.number
        };
        let old = self.copies.iter().find(|(_, kept)| old(kept));
        let Some(copy) = old.map(|(copy, _)| *copy).filter(|_| theirs) else {
            return;
        };
        let found = self.logs.find(name);
        let view = found.and_then(|volume| self.logs.view(volume));
        if view.is_none_or(|view| !view.attached) {
            self.retire_copy(copy);
        }
    }

    /// Copies without a stream are offered to all: the owner says which are not needed.
    pub(super) fn offer_copies(&mut self) {
        let due = |kept: &&mut Kept| kept.inlet.is_none() && kept.offered.elapsed() >= OFFER_EVERY;
        let volumes = self.copies.values().filter_map(Kept::volume).collect();
        let views = self.logs.views(volumes);
        let replicas = self.copies.values_mut().filter(|it| it.volume().is_some());
        for (kept, view) in replicas.zip(views) {
            kept.bytes = view.map_or(0, |view| view.dirty_bytes);
        }
        let mut offers = Vec::new();
        for kept in self.copies.values_mut().filter(due) {
            kept.offered = Instant::now();
            if let Place::Replica(_) = kept.place {
                let status = kept.machine.status();
                offers.push((kept.unit(), Body::Probed { status }));
            }
        }
        for (unit, body) in offers {
            let all = self.links.clone().into_iter().chain([self.member.me.host]);
            for host in all {
                self.say(host, unit, body.clone());
            }
        }
        self.show_copies();
    }

    /// A copy is offered that this host, as far as it knows, needs no more: since the record that
    /// it obeys, everything of its unit was at the origin.
    pub(super) fn answer_offer(&mut self, from: Uuid, unit: Uuid, status: &Status) {
        let found = self.entries.values().find_map(|entry| {
            let (id, machine) = entry.unit.as_ref()?;
            let newest = machine.newest().filter(|_| *id == unit)?;
            let mine = newest
                .owner
                .as_ref()
                .is_none_or(|owner| owner.host == self.member.me.host);
            let alone = newest.members.is_empty() && mine && entry.owning.is_none();
            let at_origin = newest.owner.is_none() || entry.is_served();
            (alone && at_origin && newest.number > status.term).then(|| newest.clone())
        });
        if let Some(record) = found {
            let (copy, record) = (status.copy, Box::new(record));
            self.say(from, unit, Body::Drop { copy, record });
        }
    }

    /// Says something to a host, which may be this one.
    pub(super) fn say(&mut self, host: Uuid, unit: Uuid, body: Body) {
        if host == self.member.me.host {
            self.later.push_back((unit, body));
        } else {
            // What does not arrive is asked for again.
            self.post.send(host, Message { unit, body }.encode());
        }
    }

    pub(super) fn show_copies(&mut self) {
        let shown = self.copies.values().filter_map(|kept| {
            let Place::Replica(_) = kept.place else {
                return None;
            };
            let durable = kept.machine.durable();
            let owner = durable.record.owner.as_ref();
            let state = match () {
                () if !kept.machine.is_member() => "retired",
                () if durable.frozen => "frozen",
                () => "member",
            };
            let state = match state {
                "retired" if kept.inlet.is_some() => "learner",
                state => state,
            };
            Some(CopyShown {
                name: durable.about.name.clone(),
                owner: owner.map(|it| it.name.clone()).unwrap_or_default(),
                state,
                end: durable.history.end().0,
                bytes: kept.bytes,
            })
        });
        let shown: Vec<CopyShown> = shown.collect();
        *locked(&self.copies_shown) = shown;
    }
}

impl Kept {
    pub(super) fn volume(&self) -> Option<VolumeId> {
        match self.place {
            Place::Replica(volume) => Some(volume),
            Place::Own(_) => None,
        }
    }
}

/// What of a volume or of a replica is durable, in order and without a gap.
fn end_of(view: &engine::snapshot::CopySnapshot) -> Serial {
    view.end.max(view.destaged)
}

fn retire(
    logs: &dyn super::logs::Logs,
    name: &str,
    to: String,
    term: u64,
) -> Result<VolumeId, String> {
    let volume = logs.find(name).ok_or("the log does not know it")?;
    logs.run(Command::Retire {
        volume,
        name: to,
        term,
    })?;
    Ok(volume)
}

/// The owner of a copy without a stream may be gone for good, and with it who would say that the
/// copy is not needed: the records tell. One is looked at each second, however many there are.
pub(super) fn look_for_owners(manager: &mut Manager) {
    let rests = |kept: &Kept| {
        let free = kept.inlet.is_none() && !kept.busy && kept.looked.elapsed() >= OFFER_EVERY;
        free && matches!(kept.place, Place::Replica(_))
    };
    let resting = manager.copies.values_mut().filter(|kept| rests(kept));
    let Some(kept) = resting.min_by_key(|kept| kept.looked) else {
        return;
    };
    kept.looked = Instant::now();
    let id = kept.unit();
    let away = manager.entries.iter().find_map(|(name, entry)| {
        let (of, unit) = entry.unit.as_ref().filter(|(of, _)| *of == id)?;
        let away = *unit.state() == State::Away && entry.owning.is_none();
        let (_, records) = entry.place.clone().filter(|_| away)?;
        Some((*of, name.clone(), unit.newest().cloned(), records))
    });
    let Some((unit, name, known, records)) = away else {
        return;
    };
    let inputs = manager.inputs.clone();
    manager.workers.run(move |_| {
        if let Ok(Some(seen)) = records.look(Look::new(unit, known)) {
            let seen = Box::new(UnitEvent::Seen(Ok(Some(seen))));
            let _ = inputs.send(Input::Of(name, seen));
        }
    });
}

/// A unit is to be owned here anew that no host owns, with everything at its origin. What this host
/// had of it before may have writes that no flush has covered and that its image is without: it is
/// a copy from then on, which is let go of as any other one. Returns what does that.
pub(super) fn set_aside(manager: &mut Manager, name: &str) -> Option<Box<dyn FnOnce() + Send>> {
    let (id, unit) = manager.entries.get(name)?.unit.as_ref()?;
    let newest = unit.newest().filter(|newest| newest.owner.is_none())?;
    let place = Place::Own(name.to_owned());
    let mut kept = manager.copies.iter_mut();
    let (copy, kept) = kept.find(|(_, kept)| {
        let old = kept.unit() == *id && kept.machine.term() < newest.number;
        old && kept.place == place && !kept.busy
    })?;
    (kept.busy, kept.retires) = (true, true);
    let (copy, term, name) = (*copy, kept.machine.term(), name.to_owned());
    let (logs, inputs) = (manager.logs.clone(), manager.inputs.clone());
    Some(Box::new(move || {
        let retired = retire(&*logs, &name, replica_name(copy), term);
        let _ = inputs.send(Input::Copy(copy, Step::Retired(retired), None));
    }))
}

/// Makes the copy of a host that is gone the volume of this name, once a record says so: it obeys
/// that record from here on. One that a run before this one has made is there by its name.
pub(super) fn stand_in(
    logs: &dyn super::logs::Logs,
    copy: Uuid,
    name: &str,
    term: u64,
) -> Result<(), String> {
    let Some(volume) = logs.find(&replica_name(copy)) else {
        return Ok(());
    };
    logs.run(Command::Freeze { volume, term })?;
    marks::passed(Phase::Surrogate);
    take_over(logs, volume, name, term)?;
    marks::passed(Phase::Surrogate);
    Ok(())
}

/// Makes a frozen replica the volume of this name. What the log has under this name from before is
/// another copy, and stays one if it is dirty.
pub(super) fn take_over(
    logs: &dyn super::logs::Logs,
    volume: VolumeId,
    name: &str,
    term: u64,
) -> Result<(), String> {
    if let Some(old) = logs.find(name).filter(|old| *old != volume) {
        let dirty = logs.view(old).is_none_or(|view| view.dirty);
        match dirty {
            true => {
                let aside = replica_name(super::fresh());
                retire(logs, name, aside, term)?;
            }
            false => logs.run(Command::Detach {
                volume: old,
                discard_dirty: false,
            })?,
        }
    }
    let name = name.to_owned();
    logs.run(Command::TakeOver { volume, name })
}
