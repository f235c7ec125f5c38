//! Units that are taken over before there is proof that the owner of before writes their image no
//! more, and the word of a host that was replaced.
//!
//! ```text
//! new owner:  silence ─▶ taken over ─▶ served without the right ─ proof ─▶ served with it
//! replaced:   asked ─▶ the record is remembered ─▶ the image was locked once ─▶ says so
//! ```
//! Always true: a host says that it writes no more only after it has remembered the record that
//! says so, so that it does not forget it over a restart; after its volume was let go of; and after
//! it has had the lock of the image, so that what a killed daemon of it had under way has landed
//! (C9.1), and after a new boot once the storage is quiet. What it has said of one record is said
//! of no other. A volume that does not get the right is served without it, and tried again.
//! Deliberately absent: fences ([`super::fence`]), and what the right is; see [`node::set`].

use super::owning::What;
use super::{Event, Input, Job, Manager, State};
use engine::types::Uuid;
use node::message::{Body, Message};
use node::record::Record;
use node::taker;
use node::unit::Answer;
use std::time::Duration;

/// An owner is silent for so long before a client that waits is served without it, where others
/// have copies. A link that is down for a moment is no reason.
const SILENCE: Duration = Duration::from_secs(1);
/// The same of one that has said that its own client uses the volume: only that it lives may have
/// become invisible.
const SILENCE_IN_USE: Duration = Duration::from_secs(30);
const WORD: &str = "released by its host";

impl Manager {
    /// Tells units of owners that are silent for too long.
    pub(super) fn look_for_silence(&mut self) {
        let mut silent = Vec::new();
        for (name, entry) in &self.entries {
            let Some((_, unit)) = &entry.unit else {
                continue;
            };
            let waits = entry.waiting.count() > 0 || entry.taker.is_some();
            if *unit.state() != State::Proof || !waits {
                continue;
            }
            let newest = unit.newest().filter(|it| unit.goes_on_with_copies(it));
            let Some((record, owner)) = newest.and_then(|it| Some((it, it.owner.as_ref()?))) else {
                continue;
            };
            let least = match unit.answer() {
                Some(Answer::Denied(_)) => SILENCE_IN_USE,
                _ => SILENCE,
            };
            let since = self.silent_since.get(&owner.host);
            if since.unwrap_or(&self.began).elapsed() >= least {
                silent.push((name.clone(), record.number));
            }
        }
        for (name, number) in silent {
            self.event(&name, Event::Silent { number });
        }
    }

    /// A unit that is being taken without proof, and of which nothing is changed yet, is left to an
    /// owner that is heard again, and where no client waits any more, and is looked at anew where
    /// no copy is left that it needs. True if it was.
    pub(super) fn gives_up_taking(&mut self, name: &str) -> bool {
        let Some(entry) = self.entries.get(name) else {
            return false;
        };
        let Some(What::Taking(machine)) = entry.owning.as_ref().map(|it| &it.what) else {
            return false;
        };
        let record = machine.record();
        let owner = record.owner.as_ref().map(|it| it.host);
        let other = owner.filter(|host| *host != self.member.me.host);
        let heard = other.is_some_and(|host| self.links.contains(&host));
        let proved = entry.proved == Some(record.number);
        let unit = entry.unit.as_ref().map(|(_, unit)| unit);
        // Its copies were lost since, and the image has what they have.
        let copies = unit.is_some_and(|unit| unit.goes_on_with_copies(record));
        let idle = *machine.state() == taker::State::Probing && (!proved || !copies);
        let goes_on = entry.wanted && !heard && copies;
        if other.is_none() || !idle || goes_on {
            return false;
        }
        let record = record.clone();
        self.end_owning(name, record);
        true
    }

    /// The host that may still write the image of a volume that is served here.
    pub(super) fn waits_for(&self, name: &str) -> Option<String> {
        let owning = self.entries.get(name)?.owning.as_ref()?;
        owning.waits_for().map(|it| it.name.clone())
    }

    /// Why a volume that is served here cannot be let go of: what it has cannot be brought home.
    pub(super) fn why_kept(&self, name: &str) -> Option<String> {
        let waits = self.waits_for(name)?;
        Some(format!(
            "nothing shows yet that {waits} writes its image no more; start it, or when it can \
             write no more run `tenuto volume takeover {name} --fenced`"
        ))
    }

    /// How a volume that was served without the right has got it.
    pub(super) fn proved(&mut self, name: &str, proved: Result<(), String>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.held = proved.clone().err();
        if proved.is_ok() {
            entry.owes = false;
        }
        if let Some(owning) = &mut entry.owning {
            owning.drains |= proved.is_ok();
            let volume = owning.volume.filter(|_| proved.is_ok());
            if let (Some(volume), Some(host)) = (volume, owning.former.take()) {
                self.logs.open_former(volume, host);
            }
        }
        if let Some(taker) = entry.taker.take() {
            let _ = taker.send(proved);
        }
        self.show(name);
    }

    /// One that did not get it is tried again.
    pub(super) fn prove_again(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        let Some(owning) = &entry.owning else { return };
        let right = owning.set().is_some_and(|set| set.may_drain());
        if right && owning.rests() && !owning.drains && !entry.busy && entry.jobs.is_empty() {
            let record = owning.record().clone();
            self.queue(name, Job::Prove(Box::new(record)));
        }
    }

    /// The drainer of before says that it writes no more.
    pub(super) fn hear_released(&mut self, name: &str, from: Uuid, body: Body) {
        let owning = self.owning(name).filter(|it| it.set().is_none());
        if let Some(owning) = owning {
            owning.early_word = Some((from, body));
            return;
        }
        let waited = self.waits_for(name);
        self.set_event(name, node::set::Event::Heard { from, body });
        if let (Some(host), None) = (waited, self.waits_for(name)) {
            tracing::info!(volume = %name, "volume {name}: {host} writes its image no more");
            if let Some(entry) = self.entries.get_mut(name) {
                entry.proof = Some(WORD);
                entry
                    .owning
                    .iter_mut()
                    .for_each(|it| it.former = Some(from));
            }
            self.show(name);
        }
    }

    /// Another host owns the unit by this record, and asks whether this one writes its image no
    /// more.
    pub(super) fn release_to(&mut self, name: &str, record: Record) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let gone = !entry.serves && !entry.busy && entry.jobs.is_empty() && !entry.releasing;
        let Some((sides, _)) = entry.place.clone().filter(|_| gone) else {
            // It is asked for again.
            return;
        };
        if !self.memory.write(record.unit, &record, false, &|| true) {
            return;
        }
        entry.releasing = true;
        let booted = record
            .drainer()
            .is_some_and(|it| it.boot != self.member.me.boot);
        let quiet = entry.settings.quiet;
        let (name, inputs) = (name.to_owned(), self.inputs.clone());
        self.workers.run(move |ends| {
            if booted {
                super::jobs::wait_for_quiet(quiet, ends);
            }
            let released = sides.has_no_writer();
            if let Err(why) = &released {
                tracing::warn!(volume = %name, "volume {name}: {why}; it is not let go of yet");
            }
            let record = released.is_ok().then(|| Box::new(record));
            let _ = inputs.send(Input::LetGo(name, record));
        });
    }

    /// The image was locked by this host, and by none of its daemons before.
    pub(super) fn say_released(&mut self, name: &str, record: Option<&Record>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.releasing = false;
        let gone = !entry.serves && !entry.busy && entry.jobs.is_empty();
        let Some((_, unit)) = entry.unit.as_ref().filter(|_| gone) else {
            return;
        };
        let Some(record) = record.filter(|it| unit.has_let_go(it)) else {
            return;
        };
        let (number, epoch) = (record.number, record.epoch);
        let (unit, owner) = (record.unit, record.owner.as_ref().map(|it| it.host));
        if let Some(host) = owner {
            let body = Body::Released { number, epoch };
            self.post.send(host, Message { unit, body }.encode());
        }
    }
}
