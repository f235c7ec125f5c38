//! Guests that may move between hosts while they run: front ends that have come here for a volume
//! which a client uses on another host, and what its owner does for them.
//!
//! ```text
//! here: a front end comes ── Take ─▶ owner: a client uses it ── Denied, Standby ─▶
//! here: it is shown the disk ── Attach, each second ─▶ owner: this host gets a copy
//! owner: the rings of its guest sleep     here: a ring starts ── Take ─▶ owner: HandOver, given
//! ```
//! Always true: a front end that is only shown the disk does not disturb the guest that uses it; a
//! host gets a copy for it only while it says that one is there, and one host at a time; what it is
//! said to believe of its cache comes before the record that gives the unit away, and if it does
//! not come, the cache is off. Deliberately absent: rings (`frontend::vhost_user`), and how a unit
//! is given ([`super::give`]).

use super::{Entry, Manager, State};
use engine::types::Uuid;
use node::message::{Body, Disk};
use node::set;
use std::time::{Duration, Instant};

/// A host that has not said so for so long has no front end any more.
const ATTACHED_FOR: Duration = Duration::from_secs(5);
/// How long its guest waits for the copy there; then everything goes to the image first.
const COPY_WAIT: Duration = Duration::from_secs(30);

/// What a manager does for guests that move.
pub(super) struct Guests<'a>(pub &'a mut Manager);

/// A host to which a guest may move.
pub(super) struct Standby {
    pub host: Uuid,
    said: Instant,
    /// Its guest has gone there, and waits for the copy.
    asked: Option<Instant>,
}

impl Entry {
    pub(super) fn standby_host(&self) -> Option<Uuid> {
        self.standby.as_ref().map(|standby| standby.host)
    }
}

impl Guests<'_> {
    fn host(&self, name: &str) -> Option<Uuid> {
        self.0.entries.get(name).and_then(Entry::standby_host)
    }

    /// A message about a unit; whether it was one for this part.
    pub fn heard(&mut self, name: &str, from: Uuid, unit: Uuid, body: &Body) -> bool {
        match body {
            Body::Take { .. } => return self.stays_for_client(name, from, unit),
            Body::Standby { disk } => self.shown_disk(name, from, disk),
            Body::Attach => self.attached(name, from),
            Body::HandOver { write_back } => self.handed_over(name, from, *write_back),
            _ => return false,
        }
        true
    }

    /// Another host has a client for a unit. True: it stays, because one uses it here.
    fn stays_for_client(&mut self, name: &str, from: Uuid, unit: Uuid) -> bool {
        let served = self.0.entries.get(name).is_some_and(|it| it.is_served());
        let Some(disk) = self.0.volumes.used(name).filter(|_| served) else {
            return false;
        };
        let why = format!("a client on {} uses it", self.0.member.me.name);
        self.0.say(from, unit, Body::Denied { why });
        self.0.say(from, unit, Body::Standby { disk });
        true
    }

    /// The owner has shown its disk.
    fn shown_disk(&mut self, name: &str, from: Uuid, disk: &Disk) {
        if !self.is_owner(name, from) {
            return;
        }
        self.0.volumes.show_away(name, disk);
        let unit = self.0.entries.get(name).and_then(|it| it.unit.as_ref());
        if unit.is_some_and(|(_, unit)| *unit.state() == State::Asking { host: from }) {
            self.attach(name);
        }
    }

    /// By the newest record that is known here.
    fn is_owner(&self, name: &str, host: Uuid) -> bool {
        let unit = self.0.entries.get(name).and_then(|it| it.unit.as_ref());
        let newest = unit.and_then(|(_, unit)| unit.newest());
        let owner = newest.and_then(|newest| newest.owner.as_ref());
        owner.is_some_and(|owner| owner.host == host)
    }

    /// Tells the owner that a front end is here, if one is.
    fn attach(&mut self, name: &str) {
        let Some((id, unit)) = self.0.entries.get(name).and_then(|it| it.unit.as_ref()) else {
            return;
        };
        let (id, newest) = (*id, unit.newest());
        let owner = newest.and_then(|it| it.owner.as_ref());
        if let Some(host) = owner.map(|owner| owner.host)
            && host != self.0.member.me.host
            && self.0.links.contains(&host)
            && self.0.volumes.shows_away(name)
        {
            self.0.say(host, id, Body::Attach);
        }
    }

    /// What the guest believes that went to sleep on the owner's host.
    fn handed_over(&self, name: &str, from: Uuid, write_back: bool) {
        if self.is_owner(name, from) {
            self.0.volumes.set_mode(name, Some(write_back));
        }
    }

    /// A guest is about to come: what was said of one before it is not about this one.
    pub fn forget_mode(&mut self, name: &str) {
        if !self.0.is_here(name) {
            self.0.volumes.set_mode(name, None);
        }
    }

    /// No client is let in any more: the host that gets the unit hears what its guest believes.
    pub fn hand_over(&mut self, name: &str, to: Uuid, unit: Uuid) {
        if let Some(write_back) = self.0.volumes.mode(name) {
            self.0.say(to, unit, Body::HandOver { write_back });
        }
    }

    /// The same where everything was brought to the image.
    pub fn hand_over_home(&mut self, name: &str) {
        let unit = self.0.entries.get(name).and_then(|it| it.unit.as_ref());
        if let (Some((unit, _)), Some(to)) = (unit, self.host(name)) {
            self.hand_over(name, to, *unit);
        }
    }

    /// A host has a front end to which a guest may move that runs here.
    fn attached(&mut self, name: &str, from: Uuid) {
        let here = self.0.is_here(name);
        let Some(entry) = self.0.entries.get_mut(name).filter(|_| here) else {
            return;
        };
        match &mut entry.standby {
            Some(standby) if standby.host == from => standby.said = Instant::now(),
            // The first one has it until it goes.
            Some(_) => {}
            None => {
                entry.standby = Some(Standby {
                    host: from,
                    said: Instant::now(),
                    asked: None,
                });
                self.tell_standby(name);
            }
        }
    }

    fn tell_standby(&mut self, name: &str) {
        let standby = self.host(name);
        self.0.set_event(name, set::Event::Standby(standby));
        self.0.begin_copies(name);
    }

    /// About each second.
    pub fn look(&mut self, name: &str) {
        self.attach(name);
        let here = self.0.is_here(name);
        let Some(entry) = self.0.entries.get_mut(name) else {
            return;
        };
        let gone = |it: &mut Standby| it.said.elapsed() >= ATTACHED_FOR || !here;
        if entry.standby.take_if(gone).is_some() {
            self.tell_standby(name);
        }
    }

    /// The guest has gone to a host that has no copy yet, and soon has.
    pub fn waits_for_copy(&mut self, name: &str) -> bool {
        let Some(entry) = self.0.entries.get_mut(name) else {
            return false;
        };
        let (unfit, owning) = (entry.unfit, entry.owning.as_ref());
        let to = owning
            .filter(|it| it.kept.is_none())
            .and_then(|it| it.asked_by);
        let Some(standby) = entry.standby.as_mut().filter(|it| Some(it.host) == to) else {
            return false;
        };
        let since = standby.asked.get_or_insert_with(Instant::now);
        !unfit && since.elapsed() < COPY_WAIT
    }
}
