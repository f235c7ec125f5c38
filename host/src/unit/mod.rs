//! The clustered volumes of this host: which of them it owns, and what it does to own one.
//!
//! Owns one thread, which feeds the machine of each unit ([`node::unit`]) with what has happened,
//! and threads that may wait, which do what the machines order. Always true: of one unit one order
//! that touches its volume is under way at a time, in the order in which they were given; a record
//! that may be linked is remembered in the state directory before it is. Deliberately absent: what
//! may be done, which the machines decide; how a volume is served, which the daemon does; and how
//! hosts are reached.

pub mod copies;
pub mod logs;
pub mod sides;

mod fence;
mod fetch;
mod give;
mod jobs;
mod kept;
mod owning;
mod proof;
mod remember;
mod replicas;
mod room;
mod shown;
mod standby;
mod streams;
mod window;

use crate::cluster::data::Outlet;
use crate::shard::control::Needs;
use crate::vault::Records;
use crate::waiting::Waiting;
use copies::{CopyShown, Replication, Wanted};
use engine::types::Uuid;
use logs::{Logs, Neighbour};
use node::message::{Body, Disk, Message};
use node::record::{Epoch, Record};
use node::unit::{Action, Cx, Drained, Event, Nonces, State, Unit};
use node::vault::Outcome;
use sides::{Membership, Sides};
use standby::Guests;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use window::Windows;

/// How often clients that wait are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often what is waited for is asked for again.
const TICK_EVERY: Duration = Duration::from_secs(1);
/// How long an administrator waits for a volume to be taken over or let go of.
const ASK_PATIENCE: Duration = Duration::from_secs(60);
/// Events that wait for the thread; a sender of more of them waits.
const EVENTS_MAX: usize = 1024;

/// A volume, as far as its unit has to know it.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub origin: PathBuf,
    /// Of ledgers and journals, if not beside the origin.
    pub journal_place: Option<PathBuf>,
    /// How long the storage may still work on what a kernel that is gone had under way.
    pub quiet: Duration,
    pub copies: Wanted,
}

/// What the daemon does with a volume by order of its unit. Each call may take long.
pub trait Volumes: Send + Sync {
    /// Serves it with ledger and journal of this epoch, or holds it; why it is held. Its flushes
    /// need all this from the first one on. Without an epoch nothing of its image is written,
    /// until it is called with one: then a volume that is served goes on with that.
    fn serve(&self, name: &str, epoch: Option<Epoch>, needs: &Needs) -> Result<(), String>;
    /// Lets go of it with everything at its origin, unless clients are connected. `at_rest`: only
    /// if that is so already.
    fn let_go(&self, name: &str, at_rest: bool) -> Drained;
    /// Lets no client in from now on, unless one is connected.
    fn rest(&self, name: &str) -> Drained;
    /// Lets clients in again.
    fn rest_no_more(&self, name: &str);
    /// Lets go of it at once: its origin is another host's. `given`: by this host.
    fn depose(&self, name: &str, owner: &str, given: bool);
    /// The disk that a client uses here now.
    fn used(&self, name: &str) -> Option<Disk>;
    /// Shows front ends that wait for it the disk that another host serves.
    fn show_away(&self, name: &str, disk: &Disk);
    /// Whether there are some.
    fn shows_away(&self, name: &str) -> bool;
    /// What the guest that is about to come believes of its cache, if its host has said so.
    fn set_mode(&self, name: &str, write_back: Option<bool>);
    /// The same of the guest that sleeps here.
    fn mode(&self, name: &str) -> Option<bool>;
    /// Whether its image is raw: of others copies are not in this version.
    fn is_raw(&self, name: &str) -> bool;
    /// Why it is not served, and whether an administrator has to do something about it.
    fn explain(&self, name: &str, reason: String, wrong: bool);
    /// Counts clients anew that wait for it.
    fn forget_gone(&self, name: &str);
    /// Bytes that have not reached its origin.
    fn dirty_bytes(&self, name: &str) -> u64;
}

/// How messages reach other hosts. False: there is no link.
pub trait Post: Send + Sync {
    fn send(&self, host: Uuid, body: Vec<u8>) -> bool;
    /// What an administrator calls it.
    fn name(&self, host: Uuid) -> Option<String>;
    /// Where batches for a host go.
    fn outlet(&self, host: Uuid) -> Option<Arc<dyn Outlet>>;
    /// What of the log here copies may take; other hosts are told.
    fn tell_room(&self, blocks: u64);
    /// Hosts that there is a link to.
    fn neighbours(&self) -> Vec<Neighbour>;
}

/// What is shown of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub unit: Option<Uuid>,
    pub term: u64,
    pub epoch: u64,
    /// Number of the record that gave it to its owner, if that is told.
    pub given: u64,
    pub owner: Option<String>,
    /// The owner is this host, and serves.
    pub here: bool,
    /// The host that may write its image; none where no host owns it.
    pub drainer: Option<String>,
    /// `away`, `looking`, `asking`, `waiting-for-proof`, `taking`, `owner`, `releasing`, `held`.
    pub state: &'static str,
    pub reason: Option<String>,
    /// Of the owner whose right was taken: why it writes no more.
    pub proof: Option<&'static str>,
    /// Hosts that have what the volume cannot be served here without, and how much that is, if
    /// known.
    pub depends_on: Vec<(String, Option<u64>)>,
    /// Of a volume that is served here and has copies on other hosts, or shall have some.
    pub replication: Option<Replication>,
}

impl Shown {
    /// An administrator has to do something before the volume can be served here.
    pub fn is_wrong(&self) -> bool {
        matches!(self.state, "waiting-for-proof" | "held")
    }
}

enum Input {
    /// A client waits for a volume.
    Came,
    Add(Box<Named>, Waiting),
    Found(String, Result<(Sides, Uuid, Records), String>),
    Copy(Uuid, kept::Step, Option<(Uuid, Body)>),
    Own(String, owning::Step),
    Copies(String, Wanted),
    /// A data connection of this host has ended.
    DataDown(Uuid),
    /// What has come back on one.
    Data(Uuid, Body),
    Of(String, Box<Event>),
    /// Another host was given what this one has the dirty data of.
    Owed(String),
    Fenced(String, Result<(), String>),
    /// With the right to write its image, or without.
    Served(String, bool, Result<(), String>),
    /// One that was served without got the right, or did not.
    Proved(String, Result<(), String>),
    /// Nothing of this host is on its way to the image of the unit that this record gives to
    /// another one.
    LetGo(String, Option<Box<Record>>),
    /// No client is let in, or one is there.
    Rested(String, Drained),
    /// An administrator gives it to this host.
    Give(String, String, SyncSender<Result<bool, String>>),
    /// What was ordered is done; whether it was deposed.
    Done(String, bool),
    Heard(Uuid, Vec<u8>),
    Link(Uuid, bool),
    TakeOver(String, SyncSender<Result<(), String>>),
    /// An administrator opens or closes its backup window.
    Window(String, bool, SyncSender<window::Ended>),
    /// Lets go of a volume for good, and forgets it.
    Remove(String, SyncSender<Result<(), String>>),
    /// An administrator waits no more.
    GiveUp(String),
    /// Lets go of all that rests.
    Leave(SyncSender<()>),
}

/// An order that touches the volume itself.
#[derive(Clone)]
enum Job {
    Serve(Box<Record>, Needs),
    /// The same while another host may still write its image.
    ServeUnproved(Needs),
    /// It is served like that, and has the right by now.
    Prove(Box<Record>),
    LetGo,
    Rest,
    RestNoMore,
    /// Its new owner, and whether this host has given it to that one.
    Depose(String, bool),
}

struct Entry {
    settings: Named,
    waiting: Waiting,
    place: Option<(Sides, Records)>,
    unit: Option<(Uuid, Unit)>,
    problem: Option<String>,
    found_at: Instant,
    /// Its image is looked at.
    finding: bool,
    jobs: VecDeque<Job>,
    busy: bool,
    wanted: bool,
    /// Who waits for the volume to be taken over.
    taker: Option<SyncSender<Result<(), String>>>,
    remover: Option<SyncSender<Result<(), String>>>,
    /// Who waits for it to be given to this host.
    mover: Option<(Uuid, SyncSender<Result<bool, String>>)>,
    leaving: bool,
    /// It has dirty data that goes to the origin when the owner lets go.
    owes: bool,
    proof: Option<&'static str>,
    /// The record whose drainer was proved to write no more.
    proved: Option<u64>,
    fencing: fence::Fencing,
    /// Why it is held although this host owns it.
    held: Option<String>,
    /// It is served here.
    serves: bool,
    /// Whether it writes its image no more is being looked at.
    releasing: bool,
    /// Why it is not served, as it was told last: between two looks it is not told again.
    explained: Option<String>,
    /// What becomes a replica when it is deposed.
    retiring: Option<Uuid>,
    /// The host to which its guest may move.
    standby: Option<standby::Standby>,
    /// Its image is of a format that has no copies.
    unfit: bool,
    /// Its backup window, and who waits for that.
    window: window::Window,
    /// It has copies, which decide about it.
    owning: Option<owning::Owning>,
}

/// The units of a daemon.
pub struct Units {
    inputs: SyncSender<Input>,
    shown: Arc<Mutex<BTreeMap<String, Shown>>>,
    copies_shown: Arc<Mutex<Vec<CopyShown>>>,
    ends: Arc<AtomicBool>,
}

struct Random;

impl Nonces for Random {
    fn fresh(&mut self) -> Uuid {
        fresh()
    }
}

fn fresh() -> Uuid {
    Uuid(uuid::Uuid::new_v4().into_bytes())
}

impl Units {
    pub fn start(
        member: Membership,
        state_dir: PathBuf,
        volumes: Arc<dyn Volumes>,
        post: Arc<dyn Post>,
        logs: Arc<dyn Logs>,
    ) -> std::io::Result<Units> {
        let (inputs, events) = sync_channel(EVENTS_MAX);
        let shown = Arc::default();
        let copies_shown = Arc::default();
        let ends = Arc::new(AtomicBool::new(false));
        let mut manager = Manager {
            member,
            memory: remember::Memory::open(&state_dir)?,
            volumes,
            post,
            inputs: inputs.clone(),
            workers: jobs::Workers::start(ends.clone())?,
            local: jobs::Workers::start(ends.clone())?,
            entries: BTreeMap::new(),
            links: BTreeSet::new(),
            silent_since: BTreeMap::new(),
            began: Instant::now(),
            shown: Arc::clone(&shown),
            logs,
            copies: BTreeMap::new(),
            making: BTreeSet::new(),
            peer_ids: BTreeMap::new(),
            later: VecDeque::new(),
            copies_shown: Arc::clone(&copies_shown),
        };
        manager.recover_copies();
        let thread = std::thread::Builder::new().name("units".into());
        let ending = ends.clone();
        thread.spawn(move || manager.run(&events, &ending))?;
        Ok(Units {
            inputs,
            shown,
            copies_shown,
            ends,
        })
    }

    fn put(&self, input: Input) {
        // The thread ends with the process only.
        let _ = self.inputs.send(input);
    }

    /// A volume that is served here when a client comes for it.
    pub fn add(&self, settings: Named, waiting: Waiting) {
        self.put(Input::Add(Box::new(settings), waiting));
    }

    pub fn link(&self, host: Uuid, up: bool) {
        self.put(Input::Link(host, up));
    }

    pub fn heard(&self, host: Uuid, body: Vec<u8>) {
        self.put(Input::Heard(host, body));
    }

    /// A data connection that this host has made has ended.
    pub fn data_down(&self, host: Uuid) {
        self.put(Input::DataDown(host));
    }

    /// What has come back on a data connection.
    pub fn data(&self, host: Uuid, body: Body) {
        self.put(Input::Data(host, body));
    }

    /// These copies are wanted from now on.
    pub fn set_copies(&self, name: &str, copies: Wanted) {
        self.put(Input::Copies(name.to_owned(), copies));
    }

    /// Goes on without the owner, which an administrator says to write no more.
    pub fn take_over(&self, name: &str) -> Result<(), String> {
        self.ask(name, |answer| Input::TakeOver(name.to_owned(), answer))
    }

    /// Gives a volume that is served here to another host: true if that host has it then, false if
    /// no host has it.
    pub fn give(&self, name: &str, host: &str) -> Result<bool, String> {
        let (answer, result) = sync_channel(1);
        self.put(Input::Give(name.to_owned(), host.to_owned(), answer));
        let stops = || Err(format!("volume {name}: the daemon is stopping"));
        result.recv().unwrap_or_else(|_| stops())
    }

    /// The record of a volume that is served here says from now on that its image rests, or that it
    /// does no more. Whether it said so before.
    pub fn set_window(&self, name: &str, open: bool) -> Result<bool, String> {
        self.ask(name, |answer| Input::Window(name.to_owned(), open, answer))
    }

    /// A volume that was held is served now, with the right to write its image or without.
    pub fn served(&self, name: &str, proved: bool) {
        self.put(Input::Served(name.to_owned(), proved, Ok(())));
    }

    /// Lets go of a volume that is not named any more.
    pub fn remove(&self, name: &str) -> Result<(), String> {
        self.ask(name, |answer| Input::Remove(name.to_owned(), answer))
    }

    /// Others wait for what an administrator waits for, so that ends.
    fn ask<T>(
        &self,
        name: &str,
        input: impl FnOnce(SyncSender<Result<T, String>>) -> Input,
    ) -> Result<T, String> {
        let (answer, result) = sync_channel(1);
        self.put(input(answer));
        match result.recv_timeout(ASK_PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err("the daemon is stopping".into()),
            Err(RecvTimeoutError::Timeout) => {
                self.put(Input::GiveUp(name.to_owned()));
                let shown = self.shown().remove(name).unwrap_or_default();
                let reason = shown.reason.unwrap_or_else(|| shown.state.to_owned());
                Err(format!(
                    "volume {name}: {reason}; nothing is changed, try again"
                ))
            }
        }
    }

    /// Lets go of what no client uses and owes nothing, so that another host need not ask.
    pub fn leave(&self, patience: Duration) {
        let (answer, result) = sync_channel(1);
        self.put(Input::Leave(answer));
        let _ = result.recv_timeout(patience);
        self.ends.store(true, Ordering::Release);
    }

    pub fn shown(&self) -> BTreeMap<String, Shown> {
        locked(&self.shown).clone()
    }

    /// Copies that this host keeps for others.
    pub fn copies_shown(&self) -> Vec<CopyShown> {
        locked(&self.copies_shown).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Manager {
    member: Membership,
    memory: remember::Memory,
    volumes: Arc<dyn Volumes>,
    post: Arc<dyn Post>,
    inputs: SyncSender<Input>,
    workers: jobs::Workers,
    /// What needs this host alone: what hangs elsewhere does not hold it up.
    local: jobs::Workers,
    entries: BTreeMap<String, Entry>,
    links: BTreeSet<Uuid>,
    /// Since when there is no link any more.
    silent_since: BTreeMap<Uuid, Instant>,
    began: Instant,
    /// Held to copy or to set plain data.
    shown: Arc<Mutex<BTreeMap<String, Shown>>>,
    logs: Arc<dyn Logs>,
    /// By the name of the copy.
    copies: BTreeMap<Uuid, kept::Kept>,
    /// Copies that are being made.
    making: BTreeSet<Uuid>,
    /// How the log calls other hosts.
    peer_ids: BTreeMap<Uuid, u32>,
    /// What this host says to itself.
    later: VecDeque<(Uuid, Body)>,
    copies_shown: Arc<Mutex<Vec<CopyShown>>>,
}

impl Manager {
    fn run(mut self, events: &Receiver<Input>, ends: &AtomicBool) {
        let (mut ticked, mut looked) = (Instant::now(), Instant::now());
        let mut leavers = Vec::new();
        while !ends.load(Ordering::Acquire) {
            match events.recv_timeout(LOOK_EVERY) {
                Ok(Input::Leave(answer)) => {
                    leavers.push(answer);
                    self.leave();
                }
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.hear_oneself();
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look_for_clients();
                self.look_for_silence();
                self.look_at_streams();
                Windows(&mut self).look_at_all();
            }
            if ticked.elapsed() >= TICK_EVERY {
                ticked = Instant::now();
                self.tick();
            }
            if !leavers.is_empty() && self.entries.values().all(Entry::has_left) {
                for answer in leavers.drain(..) {
                    let _ = answer.send(());
                }
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Came => self.look_for_clients(),
            Input::Add(settings, waiting) => self.add(*settings, waiting),
            Input::Found(name, found) => self.found(&name, found),
            Input::Of(name, event) => self.event(&name, *event),
            Input::Copy(copy, step, told) => self.copy_step(copy, step, told),
            Input::Own(name, step) => self.own_step(&name, step),
            Input::Copies(name, copies) => self.set_copies(&name, copies),
            Input::DataDown(host) => self.data_down(host),
            Input::Data(host, body) => self.heard_data(host, body),
            Input::Owed(name) => {
                if let Some(entry) = self.entries.get_mut(&name) {
                    entry.owes = true;
                }
            }
            Input::Fenced(name, fenced) => self.fenced(&name, fenced),
            Input::Served(name, proved, served) => self.served(&name, proved, served),
            Input::Proved(name, proved) => self.proved(&name, proved),
            Input::LetGo(name, record) => self.say_released(&name, record.as_deref()),
            Input::Rested(name, rested) => self.rested(&name, rested),
            Input::Give(name, host, answer) => self.give_to(&name, &host, answer),
            Input::Done(name, deposed) => self.done(&name, deposed),
            Input::Heard(host, body) => self.heard(host, &body),
            Input::Link(host, up) => self.link(host, up),
            Input::TakeOver(name, answer) => self.take_over(&name, answer),
            Input::Window(name, open, answer) => Windows(self).order(&name, open, answer),
            Input::Remove(name, answer) => self.remove(&name, answer),
            Input::GiveUp(name) => self.give_up(&name),
            Input::Leave(_) => unreachable!("taken by the caller"),
        }
    }

    fn add(&mut self, settings: Named, waiting: Waiting) {
        let name = settings.name.clone();
        let inputs = self.inputs.clone();
        // One that is not told of is found at the next look.
        waiting.tell(move || drop(inputs.try_send(Input::Came)));
        let entry = Entry {
            settings,
            waiting,
            place: None,
            unit: None,
            problem: None,
            found_at: Instant::now(),
            finding: false,
            jobs: VecDeque::new(),
            busy: false,
            wanted: false,
            taker: None,
            remover: None,
            mover: None,
            leaving: false,
            owes: false,
            proof: None,
            proved: None,
            fencing: fence::Fencing::default(),
            held: None,
            serves: false,
            releasing: false,
            explained: None,
            retiring: None,
            standby: None,
            unfit: false,
            window: window::Window::default(),
            owning: None,
        };
        self.entries.insert(name.clone(), entry);
        self.find(&name);
    }

    /// Looks which unit the image is, or makes it one.
    fn find(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if core::mem::replace(&mut entry.finding, true) {
            return;
        }
        entry.found_at = Instant::now();
        let (settings, member) = (entry.settings.clone(), self.member.clone());
        let (inputs, name) = (self.inputs.clone(), name.to_owned());
        self.workers.run(move |_| {
            let sides = Sides::of(&settings.origin, settings.journal_place.as_deref());
            let found = sides.and_then(|sides| {
                let found = sides.find(&member, &fresh)?;
                Ok((sides, found.unit, found.records))
            });
            let _ = inputs.send(Input::Found(name, found));
        });
    }

    fn found(&mut self, name: &str, found: Result<(Sides, Uuid, Records), String>) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        entry.finding = false;
        match found {
            Ok(_) if entry.unit.is_some() => {}
            Ok((sides, unit, records)) => {
                let remembered = match self.memory.read(unit) {
                    Ok(remembered) => remembered,
                    Err(why) => return self.found(name, Err(why)),
                };
                let machine = self.member.unit(unit, remembered);
                entry.place = Some((sides, records));
                entry.unit = Some((unit, machine));
                entry.problem = None;
                for host in self.links.clone() {
                    self.event(name, Event::Link { host, up: true });
                }
                self.event(name, Event::Begin);
            }
            Err(why) => {
                entry.problem = Some(why);
                self.show(name);
            }
        }
    }

    /// Feeds one unit, and does what it orders.
    fn event(&mut self, name: &str, event: Event) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        if let (Event::Drained(done), Some(_)) = (&event, &entry.owning) {
            return self.let_go_of_copies(name, *done);
        }
        if let Event::Proved { number } = event {
            entry.proved = Some(number).filter(|number| *number > 0);
            self.prove_to_set(name, number);
        } else if let Event::Drained(Drained::Done) = event {
            (entry.serves, entry.proof) = (false, None);
            Guests(self).hand_over_home(name);
        }
        if let Event::Drained(done @ (Drained::Busy | Drained::Failed)) = event {
            self.end_move(name, Err(self.why_stays(done)));
        }
        let Some(entry) = self.entries.get(name).filter(|it| it.unit.is_some()) else {
            return;
        };
        if let (Event::Seen(Ok(Some(seen))), Some((sides, _))) = (&event, entry.place.clone()) {
            self.look_what_is_owed(name, seen, sides);
        }
        let Some((_, unit)) = self.entries.get_mut(name).and_then(|it| it.unit.as_mut()) else {
            return;
        };
        let lost = match &event {
            Event::Decided(outcome) => unit.spare_epoch(outcome),
            _ => None,
        };
        // So that others show who has it.
        let won = match &event {
            Event::Decided(Outcome::Won(record)) => {
                let (unit, number) = (record.unit, record.number);
                let body = Body::Newer { number };
                Some(Message { unit, body }.encode())
            }
            _ => None,
        };
        let mut out = Vec::new();
        let mut cx = Cx {
            nonces: &mut Random,
            out: &mut out,
        };
        unit.handle(&mut cx, event);
        let place = self.entries.get(name).and_then(|entry| entry.place.clone());
        if let (Some(epoch), Some((sides, _))) = (lost, place) {
            self.workers.run(move |_| sides.remove(epoch));
        }
        if let Some(body) = won {
            for host in self.links.clone() {
                self.post.send(host, body.clone());
            }
        }
        // Who is ordered to do something may look what it is for.
        self.show(name);
        for action in out {
            self.order(name, action);
        }
        self.end_move_if_gone(name);
        self.end_if_removed(name);
    }

    /// Another host was given a unit of which this one may have what is not at the origin.
    fn look_what_is_owed(&self, name: &str, seen: &Record, sides: Sides) {
        let owner = seen.owner.as_ref();
        let mine = owner.is_some_and(|it| it.is_same_host(&self.member.me));
        // Members have all of it.
        if mine || !seen.members.is_empty() {
            return;
        }
        let (cache, epoch) = (self.member.me.cache, seen.epoch);
        let (inputs, name) = (self.inputs.clone(), name.to_owned());
        self.workers.run(move |_| {
            if sides.owes_to(cache, epoch) {
                let _ = inputs.send(Input::Owed(name));
            }
        });
    }

    fn heard(&mut self, from: Uuid, body: &[u8]) {
        match Message::parse(body) {
            Ok(Message { unit, body }) => self.take_message(from, unit, body),
            Err(_) => tracing::warn!("a host sends what is no message about a volume"),
        }
    }

    /// What this host has said to itself.
    fn hear_oneself(&mut self) {
        while let Some((unit, body)) = self.later.pop_front() {
            self.take_message(self.member.me.host, unit, body);
        }
    }

    fn take_message(&mut self, from: Uuid, unit: Uuid, body: Body) {
        if self.copy_heard(from, unit, body.clone()) {
            return;
        }
        let of = |entry: &Entry| entry.unit.as_ref().is_some_and(|(id, _)| *id == unit);
        let found = self.entries.iter().find(|(_, entry)| of(entry));
        match found.map(|(name, _)| name.clone()) {
            Some(name) => {
                if Guests(self).heard(&name, from, unit, &body)
                    || self.owner_heard(&name, from, body.clone())
                {
                    return;
                }
                if let Body::Probed { status } = &body {
                    self.answer_offer(from, unit, status);
                }
                self.event(&name, Event::Heard { from, body });
            }
            None if matches!(body, Body::Take { .. }) => {
                let name = &self.member.me.name;
                let why = format!("{name} does not name this volume; name it there again");
                let body = Body::Denied { why };
                self.post.send(from, Message { unit, body }.encode());
            }
            None => {}
        }
    }

    fn link(&mut self, host: Uuid, up: bool) {
        match up {
            true => {
                self.links.insert(host);
                self.silent_since.remove(&host);
            }
            false => {
                self.links.remove(&host);
                self.silent_since.entry(host).or_insert_with(Instant::now);
            }
        }
        for name in self.names() {
            self.event(&name, Event::Link { host, up });
        }
    }

    fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    fn look_for_clients(&mut self) {
        for name in self.names() {
            let entry = self.entries.get_mut(&name).expect("just listed");
            let wanted = entry.waiting.count() > 0 || entry.taker.is_some() || entry.owes;
            if entry.wanted != wanted && entry.unit.is_some() && !entry.leaving {
                entry.wanted = wanted;
                if wanted {
                    Guests(self).forget_mode(&name);
                }
                self.event(&name, Event::Wanted(wanted));
            }
        }
    }

    fn tick(&mut self) {
        // Before what is waited for is looked at again.
        self.fence();
        for name in self.names() {
            self.volumes.forget_gone(&name);
            self.next_job(&name);
            let entry = &self.entries[&name];
            if entry.unit.is_none() && entry.found_at.elapsed() >= TICK_EVERY {
                self.find(&name);
            }
            if !entry_leaves(&self.entries, &name) {
                self.event(&name, Event::Tick);
                self.retire_old(&name);
            }
            Guests(self).look(&name);
            Windows(self).wish_again(&name);
            self.tick_copies(&name);
            self.end_if_removed(&name);
        }
        self.offer_copies();
        kept::look_for_owners(self);
        self.look_at_room();
    }

    fn take_over(&mut self, name: &str, answer: SyncSender<Result<(), String>>) {
        let Some(entry) = self.entries.get_mut(name) else {
            let _ = answer.send(Err(format!("volume {name}: is not clustered")));
            return;
        };
        let newest = entry.unit.as_ref().and_then(|(_, unit)| unit.newest());
        let owned = entry.owning.as_ref().map(|owning| owning.record());
        let Some(record) = owned.or(newest).filter(|record| record.owner.is_some()) else {
            let why = "has no owner; a client that connects is served";
            let _ = answer.send(Err(format!("volume {name}: {why}")));
            return;
        };
        let number = record.number;
        if self.is_here(name) && self.waits_for(name).is_none() {
            let _ = answer.send(Err(format!("volume {name}: is served here already")));
            return;
        }
        let entry = self.entries.get_mut(name).expect("just seen");
        entry.taker = Some(answer);
        entry.proof = Some("fenced by an administrator");
        self.event(name, Event::Proved { number });
    }

    fn give_up(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        (entry.taker, entry.remover, entry.leaving) = (None, None, false);
        Windows(self).forget_order(name);
        // What was said of the owner is not said any more.
        self.event(name, Event::Proved { number: 0 });
    }

    fn is_here(&self, name: &str) -> bool {
        let unit = self.entries.get(name).and_then(|it| it.unit.as_ref());
        let owner = unit.is_some_and(|(_, unit)| {
            let state = unit.state();
            matches!(state, State::Owner | State::Draining)
        });
        let owning = self.entries.get(name).and_then(|it| it.owning.as_ref());
        owner || owning.is_some_and(owning::Owning::is_here)
    }

    fn remove(&mut self, name: &str, answer: SyncSender<Result<(), String>>) {
        if let Some(why) = self.why_kept(name) {
            let _ = answer.send(Err(why));
            return;
        }
        let here = self.is_here(name);
        match self.entries.get_mut(name) {
            Some(entry) if here => {
                entry.remover = Some(answer);
                entry.leaving = true;
                self.event(name, Event::Leave);
                self.let_go_with_copies(name);
            }
            Some(entry) if entry.may_own() => {
                let why = "this host may own it, and cannot let go of it now; try again";
                let _ = answer.send(Err(why.into()));
            }
            _ => {
                self.forget(name);
                let _ = answer.send(Ok(()));
            }
        }
    }

    fn forget(&mut self, name: &str) {
        self.entries.remove(name);
        locked(&self.shown).remove(name);
    }

    fn leave(&mut self) {
        for name in self.names() {
            let entry = self.entries.get_mut(&name).expect("just listed");
            entry.leaving = true;
            self.event(&name, Event::Leave);
            self.let_go_with_copies(&name);
        }
    }
}

fn entry_leaves(entries: &BTreeMap<String, Entry>, name: &str) -> bool {
    entries.get(name).is_none_or(|entry| entry.leaving)
}

impl Entry {
    /// Others would ask this host for it.
    fn may_own(&self) -> bool {
        let unit = self.unit.as_ref();
        unit.is_some_and(|(_, unit)| unit.may_own())
    }

    /// An orderly end need not wait for it.
    fn has_left(&self) -> bool {
        let state = self.unit.as_ref().map(|(_, unit)| unit.state());
        let busy = matches!(
            state,
            Some(State::Draining | State::Remembering(_) | State::Deciding(_))
        );
        let leaves = self.owning.as_ref().is_some_and(owning::Owning::leaves);
        !busy && !self.busy && !leaves
    }

    /// Its volume is open here, or may be at any moment: one that is held is tried again.
    fn acts(&self) -> bool {
        let serves = |it: &owning::Owning| it.served || it.serving || it.letting_go;
        self.held.is_some() || self.owning.as_ref().is_some_and(serves)
    }

    /// Its volume is served here now.
    fn is_served(&self) -> bool {
        self.serves
    }
}
