//! What units order, done on threads that may wait.
//!
//! Always true: at most [`WORKERS`] calls into vaults are under way, and for each volume one that
//! touches it. Deliberately absent: what is ordered.

use super::kept::{set_aside, stand_in};
use super::window::{Windows, needs_of};
use super::{Action, Entry, Event, Input, Job, Manager, Shown, State, locked};
use crate::config::units::human_bytes;
use crate::marks::{self, Phase};
use crate::shard::control::Needs;
use crate::vault::Records;
use engine::types::Uuid;
use node::message::{Body, Message};
use node::record::Record;
use node::unit::{Answer, Unit};
use node::vault::{Cas, Look, Outcome};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A vault that hangs holds up what wants it, so there are some more than a disk needs.
const WORKERS: usize = 16;

type Work = Box<dyn FnOnce(&AtomicBool) + Send>;

/// Threads that call into vaults. What waits for one is at most one call of each unit.
pub(super) struct Workers {
    queue: Arc<(Mutex<VecDeque<Work>>, Condvar)>,
}

impl Workers {
    pub fn start(ends: Arc<AtomicBool>) -> io::Result<Workers> {
        let queue: Arc<(Mutex<VecDeque<Work>>, Condvar)> = Arc::default();
        for _ in 0..WORKERS {
            let (queue, ends) = (queue.clone(), ends.clone());
            let thread = std::thread::Builder::new().name("vault".into());
            thread.spawn(move || {
                loop {
                    let (waiting, came) = &*queue;
                    let taken = came.wait_while(locked(waiting), |it| it.is_empty());
                    let work = taken.ok().and_then(|mut it| it.pop_front());
                    if let Some(work) = work {
                        work(&ends);
                    }
                }
            })?;
        }
        Ok(Workers { queue })
    }

    pub fn run(&self, work: impl FnOnce(&AtomicBool) + Send + 'static) {
        let (waiting, came) = &*self.queue;
        locked(waiting).push_back(Box::new(work));
        came.notify_one();
    }
}

/// Who has ordered to forget a volume, and is told now how that has ended.
pub(super) fn take_remover(entry: &mut Entry) -> Option<SyncSender<Result<(), String>>> {
    let remover = entry.remover.take()?;
    entry.leaving = false;
    Some(remover)
}

/// None: the daemon ends.
fn decide(records: &Records, record: Record, again: bool, ends: &AtomicBool) -> Option<Outcome> {
    let cas = match again {
        true => Cas::again(record),
        false => Cas::new(record),
    };
    marks::passed(Phase::Surrogate);
    let decided = records.decide(cas, &|| ends.load(Ordering::Acquire));
    marks::passed(Phase::Surrogate);
    decided
}

impl Manager {
    pub(super) fn order(&mut self, name: &str, action: Action) {
        let inputs = self.inputs.clone();
        let prepares = matches!(action, Action::Prepare { .. });
        let aside = prepares.then(|| set_aside(self, name)).flatten();
        let entry = self.entries.get_mut(name).expect("it has ordered this");
        let unit = entry.unit.as_ref().expect("it has ordered this").0;
        let (sides, records) = entry.place.clone().expect("found with its unit");
        let owned = name.to_owned();
        let tell = move |event| drop(inputs.send(Input::Of(owned, Box::new(event))));
        match action {
            Action::Look { known } => self.workers.run(move |_| {
                let seen = records.look(Look::new(unit, known));
                tell(Event::Seen(seen));
            }),
            Action::Send { host, body } => {
                let body = match body {
                    Body::Draining { .. } => {
                        let bytes = self.volumes.dirty_bytes(name);
                        Body::Draining { bytes }
                    }
                    body => body,
                };
                // One that does not arrive is asked for again.
                self.post.send(host, Message { unit, body }.encode());
            }
            Action::Prepare { of, epoch, whole } => {
                let quiet = entry.settings.quiet;
                self.workers.run(move |ends| {
                    if let Some(aside) = aside {
                        aside();
                    }
                    wait_for_quiet(quiet, ends);
                    tell(Event::Prepared(sides.prepare(of, epoch, whole)));
                });
            }
            Action::Remember { record, undecided } => {
                let memory = self.memory.clone();
                if !undecided {
                    memory.write(unit, &record, false, &|| true);
                    return;
                }
                self.workers.run(move |ends| {
                    let ends = || ends.load(Ordering::Acquire);
                    if memory.write(unit, &record, true, &ends) {
                        tell(Event::Remembered);
                    }
                });
            }
            Action::Decide { record, again } => self.workers.run(move |ends| {
                if let Some(outcome) = decide(&records, record, again, ends) {
                    tell(Event::Decided(outcome));
                }
            }),
            Action::Serve { record } => {
                let needs = needs_of(&record);
                self.queue(name, Job::Serve(Box::new(record), needs));
            }
            Action::Release { record } => self.release_to(name, record),
            Action::Lend { record } => self.begin_taking(name, record),
            Action::Drain => self.queue(name, Job::LetGo),
            Action::Stop => {
                let owner = self.owner(name);
                let owner = owner.unwrap_or_else(|| "another host".into());
                self.queue(name, Job::Depose(owner, false));
            }
        }
    }

    pub(super) fn queue(&mut self, name: &str, job: Job) {
        let entry = self.entries.get_mut(name).expect("it has ordered this");
        entry.jobs.push_back(job);
        if !entry.busy {
            self.next_job(name);
        }
    }

    pub(super) fn next_job(&mut self, name: &str) {
        let entry = self.entries.get_mut(name).expect("just seen");
        let Some(job) = entry.jobs.front().cloned().filter(|_| !entry.busy) else {
            return;
        };
        let (sides, _) = entry.place.clone().expect("found with its unit");
        let at_rest = entry.leaving && entry.remover.is_none();
        let deposes = matches!(job, Job::Depose(..));
        let (inputs, volumes) = (self.inputs.clone(), self.volumes.clone());
        let (logs, member) = (self.logs.clone(), self.member.clone());
        let owned = name.to_owned();
        let work = move || {
            match job {
                Job::Serve(record, needs) => {
                    let copy = member.stands_in_by(record.unit);
                    let stood =
                        copy.map_or(Ok(()), |copy| stand_in(&*logs, copy, &owned, record.number));
                    let served =
                        stood.and_then(|()| volumes.serve(&owned, Some(record.epoch), &needs));
                    if served.is_ok() {
                        sides.remove_before(record.epoch);
                    }
                    let _ = inputs.send(Input::Served(owned.clone(), true, served));
                }
                Job::ServeUnproved(needs) => {
                    let served = volumes.serve(&owned, None, &needs);
                    let _ = inputs.send(Input::Served(owned.clone(), false, served));
                }
                Job::Prove(record) => {
                    let proved = volumes.serve(&owned, Some(record.epoch), &Needs::default());
                    if proved.is_ok() {
                        sides.remove_before(record.epoch);
                    }
                    let _ = inputs.send(Input::Proved(owned.clone(), proved));
                }
                Job::LetGo => {
                    let drained = volumes.let_go(&owned, at_rest);
                    let _ =
                        inputs.send(Input::Of(owned.clone(), Box::new(Event::Drained(drained))));
                }
                Job::Rest => {
                    let _ = inputs.send(Input::Rested(owned.clone(), volumes.rest(&owned)));
                }
                Job::RestNoMore => volumes.rest_no_more(&owned),
                Job::Depose(owner, given) => volumes.depose(&owned, &owner, given),
            }
            let _ = inputs.send(Input::Done(owned, deposes));
        };
        let thread = std::thread::Builder::new().name("unit".into());
        match thread.spawn(work) {
            Ok(_) => {
                entry.busy = true;
                entry.jobs.pop_front();
            }
            // It is tried again each second.
            Err(error) => {
                tracing::error!(volume = %name, "volume {name}: no thread can be started: {error}");
            }
        }
    }

    pub(super) fn done(&mut self, name: &str, deposed: bool) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.busy = false;
        if deposed {
            (entry.serves, entry.proof) = (false, None);
            if let Some(copy) = entry.retiring.take() {
                self.retire_copy(copy);
            }
        }
        self.next_job(name);
        self.end_if_removed(name);
        // The new owner has asked too early, and would ask again in a second.
        let entry = self.entries.get(name).filter(|_| deposed);
        let unit = entry.and_then(|it| it.unit.as_ref()).map(|(_, unit)| unit);
        let newest = unit.and_then(|it| it.newest().filter(|record| it.has_let_go(record)));
        let me = self.member.me.host;
        let drainer = |it: &&Record| it.drainer().is_some_and(|drainer| drainer.host == me);
        if let Some(record) = newest.filter(drainer).cloned() {
            self.release_to(name, record);
        }
    }

    /// How the volume has begun to be served here.
    pub(super) fn served(&mut self, name: &str, proved: bool, served: Result<(), String>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.held = served.clone().err();
        entry.owes = false;
        entry.serves = served.is_ok();
        let serves = served.is_ok();
        if let Some(taker) = entry.taker.take_if(|_| proved || !serves) {
            let _ = taker.send(served);
        }
        self.served_with_copies(name, proved, serves);
        self.begin_copies(name);
        self.show(name);
    }

    /// A volume that is to be forgotten is, once nothing of it is under way.
    pub(super) fn end_if_removed(&mut self, name: &str) {
        let words = Windows(self).words();
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let state = entry.unit.as_ref().map(|(_, unit)| unit.state().clone());
        let ended = match state {
            Some(State::Owner) if entry.has_window() => Some(Err(words)),
            Some(State::Owner) if !entry.busy => Some(Err("clients are connected".to_owned())),
            Some(State::Away) if !entry.busy => Some(Ok(())),
            Some(State::Held(why)) if !entry.busy => Some(Err(why)),
            _ => None,
        };
        if let Some(ended) = ended
            && let Some(remover) = take_remover(entry)
        {
            if ended.is_ok() {
                self.forget(name);
            }
            let _ = remover.send(ended);
        }
    }

    pub(super) fn owner(&self, name: &str) -> Option<String> {
        let entry = self.entries.get(name)?;
        let unit = entry.unit.as_ref()?;
        let owning = entry.owning.as_ref().map(|it| it.record());
        let owner = owning.or(unit.1.newest())?.owner.as_ref()?;
        Some(owner.name.clone())
    }

    pub(super) fn host(&self, host: Uuid) -> String {
        if host == self.member.me.host {
            return self.member.me.name.clone();
        }
        self.post.name(host).unwrap_or_else(|| host.to_string())
    }

    /// Sets what is shown of a unit, and why its volume is not served.
    pub(super) fn show(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else {
            return;
        };
        let shown = self.describe(name, entry);
        let before = locked(&self.shown).insert(name.to_owned(), shown.clone());
        if before.as_ref() != Some(&shown)
            && let Some(entry) = self.entries.get_mut(name)
        {
            let wrong = shown.is_wrong();
            let told = !shown.here || wrong;
            match shown.reason.filter(|_| told) {
                Some(reason) if entry.explained.as_ref() != Some(&reason) => {
                    entry.explained = Some(reason.clone());
                    self.volumes.explain(name, reason, wrong);
                }
                None if shown.here => entry.explained = None,
                _ => {}
            }
        }
        self.end_takeover(name);
        Windows(self).look(name);
    }

    /// An administrator who takes a volume over need not wait for what does not go on.
    fn end_takeover(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let state = entry.unit.as_ref().map(|(_, unit)| unit.state());
        let problem = entry.owning.as_ref().and_then(|it| it.problem.as_ref());
        let why = match (state, problem) {
            (Some(State::Held(why)), _) => why.clone(),
            (Some(State::Lent), Some(why)) => why.clone(),
            _ => return,
        };
        if let Some(taker) = entry.taker.take() {
            let _ = taker.send(Err(format!("volume {name}: {why}")));
        }
    }

    /// Why a unit whose owner is silent waits.
    fn describe_silence(&self, name: &str, entry: &Entry, unit: &Unit) -> String {
        let owner = self.owner(name);
        let silent = owner.as_deref().unwrap_or("its owner");
        let tried = entry.fencing.trouble.as_deref();
        let tried = tried.map_or(String::new(), |it| format!(" ({it})"));
        let copies = unit.newest().is_some_and(Record::has_copies_elsewhere);
        let mine = unit.newest().and_then(|newest| newest.owner.as_ref());
        let mine = mine.is_some_and(|it| it.host == self.member.me.host);
        let whole = unit.newest().is_some_and(|newest| newest.at_origin);
        let has = match copies || whole {
            true => "nothing is lost, but nothing shows that it writes no more",
            false => "has what it has not destaged",
        };
        let silent = match mine {
            true => format!("{silent} with the cache that it had before"),
            false => silent.to_owned(),
        };
        format!(
            "{silent} does not answer, and {has}{tried}; start it, or when it can write no more \
             run `tenuto volume takeover {name} --fenced`"
        )
    }

    fn describe(&self, name: &str, entry: &Entry) -> Shown {
        let Some((id, unit)) = &entry.unit else {
            return Shown {
                state: "held",
                reason: entry.problem.clone(),
                ..Shown::default()
            };
        };
        let owner = self.owner(name);
        let drainer = entry.owning.as_ref().and_then(|it| it.waits_for());
        let drainer = drainer.map(|it| it.name.clone()).or(owner.clone());
        let (state, reason) = match unit.state() {
            State::Away => (
                "away",
                Some(match &owner {
                    Some(owner) if self.volumes.shows_away(name) => {
                        format!("is served by {owner}; a guest that runs there may move here")
                    }
                    Some(owner) => format!("is served by {owner}"),
                    None => "is served when a client comes".into(),
                }),
            ),
            State::Looking => ("looking", None),
            State::Asking { host } => {
                let host = self.host(*host);
                let says = match unit.answer() {
                    Some(Answer::Denied(why)) => why.clone(),
                    Some(Answer::Draining { bytes }) => {
                        let left = human_bytes(*bytes);
                        format!("{host} destages it first; {left} are left")
                    }
                    None => format!("{host} was asked for it"),
                };
                ("asking", Some(says))
            }
            State::Proof => (
                "waiting-for-proof",
                Some(self.describe_silence(name, entry, unit)),
            ),
            State::Preparing(_) | State::Remembering(_) => ("taking", None),
            State::Deciding(record) if record.owner.is_some() => ("taking", None),
            State::Deciding(_) | State::Draining => ("releasing", None),
            State::Owner => ("owner", entry.held.clone()),
            State::Held(why) => ("held", Some(why.clone())),
            State::Lent => self.describe_lent(entry),
        };
        let owning = entry.owning.as_ref();
        let newest = owning.map(|it| it.record()).or(unit.newest());
        Shown {
            unit: Some(*id),
            term: newest.map_or(0, |newest| newest.number),
            epoch: newest.map_or(0, |newest| newest.epoch.number),
            given: newest.map_or(0, |newest| newest.given),
            owner,
            here: self.is_here(name),
            drainer,
            state,
            reason,
            proof: entry.proof,
            depends_on: self.describe_needs(entry, unit),
            replication: self.describe_copies(entry),
        }
    }
}

/// A storage may still work on what the kernel of before had under way (C9).
pub(super) fn wait_for_quiet(quiet: Duration, ends: &AtomicBool) {
    loop {
        let up = crate::sys::uptime();
        if up >= quiet || ends.load(Ordering::Acquire) {
            return;
        }
        std::thread::sleep((quiet - up).min(Duration::from_millis(100)));
    }
}
