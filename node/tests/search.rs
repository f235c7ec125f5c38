//! Breadth-first search over the real units of several hosts: every order of messages, answers of
//! the vault, crashes and boots, up to the bounds that are stated here.
//!
//! A message that is lost is a step that is never taken, and so is one that is late. A link that is
//! under way may arrive at any later time, also after its host died. What is destaged by a host
//! that dies may land late, until that host has booted again and its storage is quiet, or until it
//! is fenced.
//!
//! What is searched for: two hosts that serve one unit, an epoch that two have had, an acknowledged
//! write that the server does not have, a write of the origin by a host whose right has ended, and
//! one while an administrator reads it in a backup window.

use engine::types::Uuid;
use node::message::Body;
use node::record::{Holder, Record};
use node::unit::{Action, Cx, Drained, Event, Nonces, State, Unit};
use node::vault::Outcome;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

const UNIT: Uuid = Uuid([9; 16]);

fn id(of: u8, number: u8) -> Uuid {
    let mut bytes = [0; 16];
    (bytes[0], bytes[1]) = (of, number);
    Uuid(bytes)
}

struct Counter<'a>(u8, &'a mut u8);

impl Nonces for Counter<'_> {
    fn fresh(&mut self) -> Uuid {
        *self.1 += 1;
        id(100 + self.0, *self.1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    /// None: its daemon does not run.
    unit: Option<Unit>,
    boot: u8,
    sessions: u8,
    nonces: u8,
    remembered: Option<(Record, bool)>,
    /// What it is to do, in no order.
    todo: Vec<Action>,
    /// Serves under this record.
    serves: Option<u64>,
    client: bool,
    /// Acknowledged and not destaged.
    log: BTreeSet<u8>,
    /// Under way to the origin when it died.
    late: bool,
    fenced: bool,
    /// Its image rests, and an administrator waits for that.
    rests: bool,
    opening: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    hosts: Vec<Host>,
    vault: Vec<Record>,
    links: Vec<Record>,
    mail: Vec<(u8, u8, Body)>,
    /// Epochs whose ledger is there.
    ledgers: BTreeSet<(u64, Uuid)>,
    origin: BTreeSet<u8>,
    written: u8,
    /// Of the last server: its epoch, host and boot.
    last: (u64, u8, u8),
    crashes: u8,
    boots: u8,
    clients: u8,
    fences: u8,
    windows: u8,
    /// An administrator was told that the image rests, and reads it.
    window: bool,
}

#[derive(Clone, Copy)]
struct Bounds {
    hosts: u8,
    writes: u8,
    crashes: u8,
    boots: u8,
    clients: u8,
    fences: u8,
    windows: u8,
    records: usize,
}

/// A rule that is left out, to see that the search notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Nothing,
    /// What was remembered is forgotten at a restart.
    Forget,
    /// A boot is not told from the one before.
    OneBoot,
    /// An owner that is silent is taken for one that writes no more.
    BelieveSilence,

    /// It is let go of before what is dirty is at the origin.
    LeaveDirty,
    /// A backup window is told to be open before its record is decided.
    WindowEarly,
    /// Who serves under a record with a window brings dirty data to the image.
    WindowIgnored,
}

impl World {
    fn new(bounds: Bounds) -> World {
        let host = Host {
            unit: None,
            boot: 0,
            sessions: 0,
            nonces: 0,
            remembered: None,
            todo: Vec::new(),
            serves: None,
            client: false,
            log: BTreeSet::new(),
            late: false,
            fenced: false,
            rests: false,
            opening: false,
        };
        World {
            hosts: vec![host; bounds.hosts.into()],
            vault: Vec::new(),
            links: Vec::new(),
            mail: Vec::new(),
            ledgers: BTreeSet::new(),
            origin: BTreeSet::new(),
            written: 0,
            last: (0, 0, 0),
            crashes: 0,
            boots: 0,
            clients: 0,
            fences: 0,
            windows: 0,
            window: false,
        }
    }

    fn holder(&self, at: u8, broken: Broken) -> Holder {
        let host = &self.hosts[usize::from(at)];
        let boot = match broken {
            Broken::OneBoot => 0,
            _ => host.boot,
        };
        Holder {
            host: id(1, at),
            cache: id(2, at),
            boot: id(3, boot),
            session: id(4, host.sessions),
            name: format!("host-{at}"),
        }
    }

    fn start(&mut self, at: u8, broken: Broken) {
        let me = self.holder(at, broken);
        let others: Vec<u8> = (0..self.hosts.len() as u8).filter(|it| *it != at).collect();
        let host = &mut self.hosts[usize::from(at)];
        let remembered = match broken {
            Broken::Forget => None,
            _ => host.remembered.clone(),
        };
        host.unit = Some(Unit::new(id(0, 1), UNIT, me, remembered));
        host.sessions += 1;

        for other in others {
            let up = self.hosts[usize::from(other)].unit.is_some();
            if up {
                self.tell(
                    at,
                    Event::Link {
                        host: id(1, other),
                        up,
                    },
                );
                self.tell(
                    other,
                    Event::Link {
                        host: id(1, at),
                        up,
                    },
                );
            }
        }
        self.tell(at, Event::Begin);
    }

    fn stop(&mut self, at: u8) {
        let host = &mut self.hosts[usize::from(at)];
        host.unit = None;
        host.todo.clear();
        host.late |= host.serves.is_some() && !host.log.is_empty() && !host.rests;
        host.opening = false;
        host.serves = None;
        host.client = false;
        self.mail.retain(|(_, to, _)| *to != at);
        for other in 0..self.hosts.len() as u8 {
            if other != at && self.hosts[usize::from(other)].unit.is_some() {
                let up = false;
                self.tell(
                    other,
                    Event::Link {
                        host: id(1, at),
                        up,
                    },
                );
            }
        }
    }

    fn tell(&mut self, at: u8, event: Event) {
        let host = &mut self.hosts[usize::from(at)];
        let Some(unit) = &mut host.unit else {
            return;
        };
        let mut out = Vec::new();
        let mut nonces = Counter(at, &mut host.nonces);
        let mut cx = Cx {
            nonces: &mut nonces,
            out: &mut out,
        };
        unit.handle(&mut cx, event);
        for action in out {
            self.order(at, action);
        }
    }

    fn order(&mut self, at: u8, action: Action) {
        match action {
            Action::Send { host, body } => {
                let letter = (at, host.0[1], body);
                if !self.mail.contains(&letter) {
                    self.mail.push(letter);
                }
            }
            // Its answer is not waited for.
            Action::Remember {
                record,
                undecided: false,
            } => {
                let host = &mut self.hosts[usize::from(at)];
                host.remembered = Some((record, false));
            }
            Action::Stop => self.hosts[usize::from(at)].serves = None,
            other => {
                let todo = &mut self.hosts[usize::from(at)].todo;
                if !todo.contains(&other) {
                    todo.push(other);
                }
            }
        }
    }

    /// All that may happen next.
    fn next(&self, bounds: Bounds, broken: Broken) -> Vec<(String, Result<World, String>)> {
        let mut found = Vec::new();
        for at in 0..self.links.len() {
            let mut next = self.clone();
            let record = next.links.remove(at);
            let number = record.number;
            if next.vault.len() as u64 + 1 == number {
                next.vault.push(record);
            }
            found.push((format!("link {number} arrives"), Ok(next)));
        }
        for at in 0..self.mail.len() {
            let mut next = self.clone();
            let (from, to, body) = next.mail.remove(at);
            let text = format!("{to} hears {body:?} of {from}");
            next.tell(
                to,
                Event::Heard {
                    from: id(1, from),
                    body,
                },
            );
            found.push((text, Ok(next)));
        }
        for at in 0..self.hosts.len() as u8 {
            self.next_of_host(at, bounds, broken, &mut found);
        }
        found
    }

    fn next_of_host(
        &self,
        at: u8,
        bounds: Bounds,
        broken: Broken,
        found: &mut Vec<(String, Result<World, String>)>,
    ) {
        let host = &self.hosts[usize::from(at)];
        if host.late {
            let mut next = self.clone();
            let log = host.log.clone();
            next.hosts[usize::from(at)].late = false;
            let wrong = self.last.1 != at;
            next.origin.extend(log);
            let next = match wrong {
                true => Err("a write of a host lands after the right of another".into()),
                false => Ok(next),
            };
            found.push((format!("what {at} was writing lands late"), next));
        }
        let Some(unit) = &host.unit else {
            if host.fenced {
                return;
            }
            let mut next = self.clone();
            next.start(at, broken);
            found.push((format!("{at} starts"), Ok(next)));
            if self.boots < bounds.boots && host.sessions > 0 {
                let mut next = self.clone();
                next.boots += 1;
                next.hosts[usize::from(at)].boot += 1;
                next.start(at, broken);
                found.push((format!("{at} boots"), Ok(next)));
            }
            return;
        };
        if self.crashes < bounds.crashes {
            let mut next = self.clone();
            next.crashes += 1;
            next.stop(at);
            found.push((format!("{at} crashes"), Ok(next)));
        }
        if self.fences < bounds.fences
            && let Some(newest) = self.vault.last()
            && newest
                .owner
                .as_ref()
                .is_some_and(|owner| owner.host == id(1, at))
        {
            let mut next = self.clone();
            next.fences += 1;
            next.stop(at);
            let number = newest.number;
            let dead = &mut next.hosts[usize::from(at)];
            (dead.fenced, dead.late) = (true, false);
            // An administrator has given up what it had.
            next.origin.extend(dead.log.clone());
            next.links
                .retain(|it| it.owner.as_ref().is_none_or(|it| it.host != id(1, at)));
            for other in 0..next.hosts.len() as u8 {
                next.tell(other, Event::Proved { number });
            }
            found.push((format!("{at} is fenced"), Ok(next)));
        }
        if !host.client && self.clients < bounds.clients {
            let mut next = self.clone();
            next.clients += 1;
            next.hosts[usize::from(at)].client = true;
            next.tell(at, Event::Wanted(true));
            found.push((format!("a client comes to {at}"), Ok(next)));
        }
        if host.client {
            let mut next = self.clone();
            next.hosts[usize::from(at)].client = false;
            next.tell(at, Event::Wanted(false));
            found.push((format!("the client of {at} goes"), Ok(next)));
        }
        if broken == Broken::BelieveSilence && unit.state() == &State::Proof {
            let mut next = self.clone();
            let number = self.vault.len() as u64;
            next.tell(at, Event::Proved { number });
            found.push((format!("{at} believes silence"), Ok(next)));
        }
        if matches!(
            unit.state(),
            State::Asking { .. } | State::Proof | State::Away | State::Held(_)
        ) {
            let mut next = self.clone();
            next.tell(at, Event::Tick);
            found.push((format!("{at} ticks"), Ok(next)));
        }
        if let Some(record) = host.serves {
            if host.client && self.written < bounds.writes {
                let mut next = self.clone();
                next.written += 1;
                let write = next.written;
                next.hosts[usize::from(at)].log.insert(write);
                found.push((format!("{at} writes {write} under {record}"), Ok(next)));
            }
            if !host.log.is_empty() && !host.rests {
                let mut next = self.clone();
                let log = std::mem::take(&mut next.hosts[usize::from(at)].log);
                next.origin.extend(log);
                let next = match self.window {
                    true => Err(READ.to_owned()),
                    false => Ok(next),
                };
                found.push((format!("{at} destages under {record}"), next));
            }
            self.windows(at, unit, bounds, broken, found);
        }
        for order in 0..host.todo.len() {
            self.done(at, order, bounds, broken, found);
        }
    }

    /// An administrator opens a backup window, hears that it is open, and closes it.
    fn windows(
        &self,
        at: u8,
        unit: &Unit,
        bounds: Bounds,
        broken: Broken,
        found: &mut Vec<(String, Result<World, String>)>,
    ) {
        let host = &self.hosts[usize::from(at)];
        let decided = unit.newest().filter(|_| !unit.changes_window());
        let says = |open| decided.is_some_and(|it| it.quiesced == open);
        if self.windows < bounds.windows && !host.rests {
            let mut next = self.clone();
            next.windows += 1;
            let host = &mut next.hosts[usize::from(at)];
            let log = std::mem::take(&mut host.log);
            (host.rests, host.opening) = (true, true);
            next.origin.extend(log);
            next.tell(at, Event::Window(true));
            found.push((format!("{at} opens a window"), Ok(next)));
        }
        if host.opening && (says(true) || broken == Broken::WindowEarly) {
            let mut next = self.clone();
            next.hosts[usize::from(at)].opening = false;
            next.window = true;
            found.push((format!("{at} has opened it"), Ok(next)));
        }
        if self.window && says(true) {
            let mut next = self.clone();
            next.window = false;
            next.tell(at, Event::Window(false));
            found.push((format!("{at} closes the window"), Ok(next)));
        }
        if host.rests && says(false) && !host.opening {
            let mut next = self.clone();
            next.hosts[usize::from(at)].rests = false;
            found.push((format!("{at} has closed it"), Ok(next)));
        }
    }

    /// All ends that an order may have.
    fn done(
        &self,
        at: u8,
        order: usize,
        bounds: Bounds,
        broken: Broken,
        found: &mut Vec<(String, Result<World, String>)>,
    ) {
        let mut base = self.clone();
        let action = base.hosts[usize::from(at)].todo.remove(order);
        match action {
            Action::Look { known } => {
                // A look may be late, but never before what it knows.
                let from = known.map_or(0, |known| known.number as usize);
                for seen in from..=self.vault.len() {
                    let mut next = base.clone();
                    let record = seen.checked_sub(1).map(|it| self.vault[it].clone());
                    next.tell(at, Event::Seen(Ok(record)));
                    found.push((format!("{at} sees {seen}"), Ok(next)));
                }
            }
            Action::Prepare { of, epoch, .. } => {
                let mut next = base.clone();
                // What a boot before had under way has landed: the storage is quiet.
                next.hosts[usize::from(at)].late &= broken == Broken::OneBoot;
                next.ledgers.insert((epoch.number, epoch.nonce));
                next.tell(at, Event::Prepared(Ok(())));

                let known = of.is_none_or(|of| self.ledgers.contains(&(of.number, of.nonce)));
                let next = match known {
                    true => Ok(next),
                    false => Err("the ledger before is not there".to_string()),
                };
                found.push((format!("{at} has prepared {}", epoch.number), next));
            }
            Action::Remember { record, .. } => {
                let mut next = base.clone();
                next.hosts[usize::from(at)].remembered = Some((record, true));
                next.tell(at, Event::Remembered);
                found.push((format!("{at} remembers"), Ok(next)));
            }
            Action::Decide { record, again } => {
                self.decide(at, base, (record, again), bounds, found);
            }
            Action::Serve { record } => {
                let next = base.clone().serve(at, &record, broken);
                found.push((format!("{at} serves under {}", record.number), next));
            }
            Action::Drain => {
                let mut next = base.clone();
                let busy = self.hosts[usize::from(at)].client;
                if self.window && !busy {
                    found.push((format!("{at} drains"), Err(READ.to_owned())));
                    return;
                }
                let host = &mut next.hosts[usize::from(at)];
                let waits = host
                    .todo
                    .iter()
                    .any(|it| matches!(it, Action::Serve { .. }));
                if waits {
                    return;
                }
                if !busy {
                    let log = std::mem::take(&mut host.log);
                    host.serves = None;
                    match broken == Broken::LeaveDirty {
                        true => host.log = log,
                        false => next.origin.extend(log),
                    }
                }
                let drained = match busy {
                    true => Drained::Busy,
                    false => Drained::Done,
                };
                next.tell(at, Event::Drained(drained));
                found.push((format!("{at} drained: {}", !busy), Ok(next)));
            }
            Action::Lend { .. } | Action::Release { .. } => {
                unreachable!("no record of this search has copies")
            }
            Action::Send { .. } | Action::Stop => unreachable!("done at once"),
        }
    }

    fn decide(
        &self,
        at: u8,
        base: World,
        (record, again): (Record, bool),
        bounds: Bounds,
        found: &mut Vec<(String, Result<World, String>)>,
    ) {
        let number = record.number as usize;
        if number > bounds.records {
            return;
        }
        if let Some(there) = self.vault.get(number - 1) {
            let mut next = base;
            let outcome = match there.nonce == record.nonce {
                true => Outcome::Won(there.clone()),
                false => Outcome::Lost(there.clone()),
            };
            next.tell(at, Event::Decided(outcome));
            found.push((format!("{at} hears how {number} was decided"), Ok(next)));
        } else if !self.links.contains(&record) {
            let mut next = self.clone();
            next.links.push(record);
            found.push((format!("{at} links {number} again={again}"), Ok(next)));
        }
    }

    fn serve(mut self, at: u8, record: &Record, broken: Broken) -> Result<World, String> {
        for (other, host) in self.hosts.iter().enumerate() {
            if other != usize::from(at) && host.serves.is_some() {
                return Err(format!("{at} and {other} serve at once"));
            }
        }
        let host = &self.hosts[usize::from(at)];
        let me = (record.epoch.number, at, host.boot);
        if me.0 < self.last.0 || (me.0 == self.last.0 && self.last.0 > 0 && me != self.last) {
            return Err(format!("epoch {} of {:?} again by {me:?}", me.0, self.last));
        }
        let epoch = (record.epoch.number, record.epoch.nonce);
        if !self.ledgers.contains(&epoch) {
            return Err("its ledger is not there".into());
        }
        let lost =
            (1..=self.written).find(|it| !self.origin.contains(it) && !host.log.contains(it));
        if let Some(write) = lost {
            return Err(format!("{at} serves without write {write}"));
        }
        self.last = me;
        let host = &mut self.hosts[usize::from(at)];
        host.serves = Some(record.number);
        host.rests = record.quiesced && broken != Broken::WindowIgnored;
        // Under one boot it has the lock that the late writes were made under.
        host.late = false;
        Ok(self)
    }
}

/// The first host serves a client, and the second one is there.
fn begun(bounds: Bounds, broken: Broken) -> World {
    let mut world = World::new(bounds);
    for step in [
        "0 starts",
        "0 sees 0",
        "1 starts",
        "1 sees 0",
        "a client comes to 0",
        "0 sees 0",
        "0 has prepared 1",
        "0 remembers",
        "0 links 1 again=false",
        "link 1 arrives",
        "0 hears how 1 was decided",
        "0 serves under 1",
    ] {
        let next = world.next(bounds, broken).into_iter();
        let mut next = next.filter(|(name, _)| name == step).map(|(_, next)| next);
        let next = next
            .next_back()
            .unwrap_or_else(|| panic!("no step: {step}"));
        world = next.expect("nothing is wrong");
    }
    world
}

fn hash(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Searches all states; the number of them, or the steps to the first that must not be.
fn search(bounds: Bounds, broken: Broken, states_max: usize) -> Result<(usize, bool), Vec<String>> {
    let first = match broken {
        Broken::Nothing if bounds.writes == 1 => World::new(bounds),
        _ => begun(bounds, broken),
    };
    let mut from: HashMap<u64, Option<(u64, String)>> = HashMap::from([(hash(&first), None)]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        let here = hash(&world);
        for (step, next) in world.next(bounds, broken) {
            let next = match next {
                Ok(next) => next,
                Err(why) => {
                    let mut steps = vec![format!("{step}: {why}")];
                    let mut at = here;
                    while let Some(Some((before, step))) = from.get(&at) {
                        steps.push(step.clone());
                        at = *before;
                    }
                    steps.reverse();
                    return Err(steps);
                }
            };
            let there = hash(&next);
            if let std::collections::hash_map::Entry::Vacant(slot) = from.entry(there) {
                slot.insert(Some((here, step)));
                queue.push_back(next);
            }
        }
        if from.len() > states_max {
            return Ok((from.len(), false));
        }
    }
    Ok((from.len(), true))
}

const SMALL: Bounds = Bounds {
    hosts: 2,
    writes: 1,
    crashes: 1,
    boots: 1,
    clients: 2,
    fences: 0,
    windows: 0,
    records: 3,
};

const READ: &str = "the image is written while it is read";

const WINDOW: Bounds = Bounds {
    clients: 2,
    writes: 2,
    fences: 1,
    windows: 1,
    records: 5,
    ..SMALL
};

const LARGER: Bounds = Bounds {
    clients: 3,
    writes: 2,
    records: 4,
    ..SMALL
};

#[test]
fn no_order_of_steps_gives_a_unit_to_two_hosts_or_loses_a_write() {
    let most = std::env::var("TENUTO_SEARCH_STATES");
    let most = most.ok().and_then(|it| it.parse().ok()).unwrap_or(150_000);
    let found = search(SMALL, Broken::Nothing, most);
    let (states, whole) = found.unwrap_or_else(|steps| panic!("{}", steps.join("\n")));
    println!("{states} states, whole: {whole}");
    assert!(states > 10_000, "only {states}");
    let found = search(WINDOW, Broken::Nothing, most);
    let (states, whole) = found.unwrap_or_else(|steps| panic!("{}", steps.join("\n")));
    println!("with a backup window: {states} states, whole: {whole}");
    assert!(states > 10_000, "only {states}");
}

#[test]
fn a_rule_that_is_left_out_is_noticed() {
    for broken in [
        Broken::Forget,
        Broken::OneBoot,
        Broken::BelieveSilence,
        Broken::LeaveDirty,
        Broken::WindowEarly,
        Broken::WindowIgnored,
    ] {
        let bounds = match broken {
            Broken::WindowEarly | Broken::WindowIgnored => WINDOW,
            _ => LARGER,
        };
        let found = search(bounds, broken, 1_500_000);
        let (kind, steps) = (format!("{broken:?}"), found.err());
        let steps = steps.unwrap_or_else(|| panic!("{kind} is not noticed"));
        println!(
            "{kind}: after {} steps: {}",
            steps.len(),
            steps[steps.len() - 1]
        );
    }
}
