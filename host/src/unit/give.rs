//! Units that this host gives to another one with what is dirty, because that host has a copy.
//!
//! ```text
//! another host has a client, or an administrator orders it
//!   └▶ no client here, and none is let in ─▶ all is durable at both ─▶ record of the new owner
//!        │ a client is here: denied            │ too late, or its copy is lost: clients are let in
//!        ▼                                     ▼ again, and all is brought to the origin instead
//! ```
//! Always true: a host is given only what its copy counts for; from the moment at which no client
//! is let in until the record is decided none is. Nothing goes to the origin for it: the new owner
//! gets the right to write there by the word of this host ([`super::proof`]). Deliberately absent:
//! when all is durable, which [`node::set`] decides.

use super::owning::Giving;
use super::standby::Guests;
use super::window::Windows;
use super::{Event, Job, Manager, State};
use engine::types::Uuid;
use node::message::Body;
use node::record::{HOST_NAME_BYTES_MAX, Holder};
use node::set;
use node::unit::Drained;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Until all that was written is durable at both. What takes longer goes to the origin.
const PATIENCE: Duration = Duration::from_secs(5);
/// So long after that it is not tried again.
const KEPT_FOR: Duration = Duration::from_secs(30);

impl Manager {
    /// An administrator's order; the answer is true if the host has it then, false if no host has.
    pub(super) fn give_to(
        &mut self,
        name: &str,
        host: &str,
        answer: SyncSender<Result<bool, String>>,
    ) {
        let refused = |why: String| drop(answer.send(Err(format!("volume {name}: {why}"))));
        let Some(entry) = self.entries.get(name) else {
            return refused("is not clustered".into());
        };
        if !self.is_here(name) {
            let owner = self.owner(name);
            let why = match owner {
                Some(owner) => format!("is served by {owner}; run this there"),
                None => "no host serves it; a client that connects is served".into(),
            };
            return refused(why);
        }
        if entry.mover.is_some() || entry.leaving {
            return refused("is being let go of already".into());
        }
        if entry.owning.is_none() && entry.has_window() {
            return refused(Windows(self).words());
        }
        let neighbours = self.post.neighbours().into_iter();
        let Some(to) = neighbours.into_iter().find(|it| it.name == host) else {
            let why = format!("there is no link to a host {host}; see `tenuto peer ls`");
            return refused(why);
        };
        let entry = self.entries.get_mut(name).expect("just seen");
        entry.mover = Some((to.host, answer));
        match &mut entry.owning {
            Some(owning) => {
                owning.asked_by = Some(to.host);
                self.let_go_with_copies(name);
            }
            None => {
                let (from, body) = (to.host, Body::Take { number: 0 });
                self.event(name, Event::Heard { from, body });
            }
        }
    }

    /// Why this host goes on with a volume that another one is to have.
    pub(super) fn why_stays(&self, done: Drained) -> String {
        let who = &self.member.me.name;
        match done {
            Drained::Busy => format!("a client on {who} uses it"),
            _ => format!("{who} cannot destage it; see `tenuto status -x` there"),
        }
    }

    /// Gives it to the host that asks for it, if that has a copy that counts. False: it does not.
    pub(super) fn give_to_who_asks(&mut self, name: &str) -> bool {
        let Some(owning) = self.owning(name) else {
            return false;
        };
        let lately = owning.kept.is_some_and(|it| it.elapsed() < KEPT_FOR);
        let Some(host) = owning.asked_by.filter(|_| owning.rests() && !lately) else {
            return false;
        };
        let counts = |set: &set::Set| {
            let shown = set.shown();
            let there = shown.iter().find(|it| it.member.host == host);
            there.is_some_and(|it| it.counts && it.streams && !it.unfit)
        };
        if !owning.set().is_some_and(counts) {
            return false;
        }
        let Some(to) = self.holder_of(host) else {
            return false;
        };
        let owning = self.owning(name).expect("just seen");
        owning.letting_go = true;
        owning.giving = Some(Giving { to, rests: None });
        self.queue(name, Job::Rest);
        true
    }

    /// The run of a host that has said so over its link.
    fn holder_of(&self, host: Uuid) -> Option<Holder> {
        let neighbours = self.post.neighbours();
        let found = neighbours.into_iter().find(|it| it.host == host)?;
        let mut name = found.name;
        while name.len() > HOST_NAME_BYTES_MAX {
            name.pop();
        }
        Some(Holder {
            host,
            cache: found.cache,
            boot: found.boot,
            // Of no run: the new owner serves under the record only after it has forked.
            session: Uuid::NIL,
            name,
        })
    }

    /// No client is let in, or one is there.
    pub(super) fn rested(&mut self, name: &str, rested: Drained) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let Some(giving) = owning.giving.as_mut() else {
            return;
        };
        if rested == Drained::Done {
            giving.rests = Some(Instant::now());
            let to = Some(giving.to.clone());
            let (host, unit) = (giving.to.host, owning.record().unit);
            Guests(self).hand_over(name, host, unit);
            // What was written last is known before, because a newer serial would end the order;
            // and it may be durable by now.
            self.look_at_streams();
            self.set_event(name, set::Event::Give(to));
            return self.look_at_streams();
        }
        (owning.giving, owning.letting_go) = (None, false);
        let (unit, asked_by) = (owning.record().unit, owning.asked_by.take());
        let why = self.why_stays(rested);
        if let Some(host) = asked_by {
            self.say(host, unit, Body::Denied { why: why.clone() });
        }
        self.end_move(name, Err(why));
    }

    /// The copy of the new owner was lost, or something takes too long: clients are let in again.
    /// Not while a record that gives it away may be in the vault.
    pub(super) fn give_up_giving(&mut self, name: &str) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        let Some(since) = owning.giving.as_ref().and_then(|it| it.rests) else {
            return;
        };
        if since.elapsed() >= PATIENCE {
            self.set_event(name, set::Event::Give(None));
        }
        let Some(owning) = self.owning(name) else {
            return;
        };
        if owning.set().is_none_or(|set| set.gives()) {
            return;
        }
        (owning.giving, owning.letting_go) = (None, false);
        owning.kept = Some(Instant::now());
        self.queue(name, Job::RestNoMore);
    }

    /// It was let go of, without copies.
    pub(super) fn end_move_if_gone(&mut self, name: &str) {
        let entry = self.entries.get(name).filter(|it| it.owning.is_none());
        let unit = entry.and_then(|it| it.unit.as_ref());
        let owner = unit.and_then(|(_, unit)| match unit.state() {
            State::Away => unit.newest().map(|newest| newest.owner.clone()),
            _ => None,
        });
        if let Some(owner) = owner {
            let host = owner.map_or(Uuid::NIL, |owner| owner.host);
            self.end_move(name, Ok(host));
        }
    }

    /// The unit has another owner, or none, or stays here: who has ordered that is told.
    pub(super) fn end_move(&mut self, name: &str, end: Result<Uuid, String>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if let Some((to, answer)) = entry.mover.take() {
            let end = end.map(|owner| owner == to);
            let _ = answer.send(end.map_err(|why| format!("volume {name}: {why}")));
        }
    }
}
