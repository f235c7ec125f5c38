//! Backup windows of units: the record says that the image rests, as long as it does.
//!
//! ```text
//! image rests, Order(open) ─▶ record with the window ─▶ told: open
//! Order(closed) ─▶ record without it ─▶ told: closed ─▶ the image is written again
//! the log needs its room, or a copy is missing that the image has to stand for ─▶ record without
//!    it ─▶ the log is told that the rest is broken
//! ```
//! Always true: the log ends a rest that a record knows of only after a record without it is
//! decided; the one who has ordered a window hears that it is open only after a record with it is;
//! a host that does not own the unit changes no window of it. Where the vault does not answer the
//! window stays as it is, and guests wait where the log has no room. Deliberately absent: the
//! record, which the machines make ([`node::unit`], [`node::set`]); how an image comes to rest.

use super::owning::What;
use super::{Entry, Event as UnitEvent, Manager, State};
use crate::shard::control::Needs;
use engine::event::Command;
use node::message::Body;
use node::record::Record;
use node::set;
use std::sync::mpsc::SyncSender;

/// How an order has ended: whether a window was open before.
pub(super) type Ended = Result<bool, String>;

/// What is to become of the window of a unit.
#[derive(Default)]
pub(super) struct Window {
    /// Open or closed, whether it was open before, and who waits for it.
    order: Option<(bool, bool, SyncSender<Ended>)>,
    /// It is broken, once the record says so.
    breaks: bool,
}

/// What a volume that is served without copies needs.
pub(super) fn needs_of(record: &Record) -> Needs {
    Needs {
        rests: record.quiesced,
        given: record.given,
        ..Needs::default()
    }
}

/// The decided record has a window, or has none; none while that changes, or nothing is known.
fn decided(entry: &Entry) -> Option<bool> {
    match entry.owning.as_ref().map(|owning| &owning.what) {
        Some(What::Set(set)) => [true, false]
            .into_iter()
            .find(|open| set::has_window(set, *open)),
        Some(_) => None,
        None => {
            let (_, unit) = entry.unit.as_ref()?;
            let newest = unit.newest().filter(|_| !unit.changes_window())?;
            (*unit.state() == State::Owner).then_some(newest.quiesced)
        }
    }
}

impl Entry {
    /// By what is known of its record its image rests.
    pub(super) fn has_window(&self) -> bool {
        match (&self.owning, &self.unit) {
            (Some(owning), _) => owning.set().map_or(owning.record().quiesced, set::rests),
            (None, Some((_, unit))) => {
                let newest = unit.newest().is_some_and(|newest| newest.quiesced);
                newest || unit.changes_window()
            }
            (None, None) => false,
        }
    }
}

/// The windows of the units.
pub(super) struct Windows<'a>(pub &'a mut Manager);

impl Windows<'_> {
    /// An administrator opens or closes a window. The image rests meanwhile.
    pub(super) fn order(&mut self, name: &str, open: bool, answer: SyncSender<Ended>) {
        let refused = |why: String| drop(answer.send(Err(format!("volume {name}: {why}"))));
        if let Some(why) = self.why_not_here(name) {
            return refused(why);
        }
        let Some(entry) = self.0.entries.get_mut(name) else {
            return refused("is not clustered".into());
        };
        let leaves = entry.owning.as_ref().is_some_and(|it| it.leaves());
        if leaves || entry.mover.is_some() || entry.leaving {
            return refused("is being let go of; try again".into());
        }
        if entry.window.order.is_some() {
            return refused("its backup window is being changed; wait until that has ended".into());
        }
        let was = entry.has_window();
        entry.window.order = Some((open, was, answer));
        self.wish(name, open);
        self.look(name);
    }

    /// Why this host may not change the window of a volume.
    fn why_not_here(&self, name: &str) -> Option<String> {
        let known = self.0.entries.contains_key(name);
        match self
            .0
            .owner(name)
            .filter(|_| known && !self.0.is_here(name))
        {
            Some(owner) if owner != self.0.member.me.name => {
                Some(format!("is served by {owner}; run this there"))
            }
            _ if !known || self.0.is_here(name) => None,
            _ => Some("no host serves it; a client that connects is served".into()),
        }
    }

    fn wish(&mut self, name: &str, open: bool) {
        let owning = self.0.owning(name).is_some();
        if owning {
            // What was destaged last is told before nothing is any more.
            self.0.look_at_streams();
            return self.0.set_event(name, set::Event::Window(open));
        }
        self.0.event(name, UnitEvent::Window(open));
    }

    /// Tells those who wait what has become of the window.
    pub(super) fn look(&mut self, name: &str) {
        let lost = self.why_not_here(name);
        let Some(entry) = self.0.entries.get_mut(name) else {
            return;
        };
        let known = decided(entry);
        let asked = entry
            .window
            .order
            .take_if(|(open, ..)| known == Some(*open) || lost.is_some());
        if let Some((_, was, answer)) = asked {
            let ended = lost.map_or(Ok(was), |why| Err(format!("volume {name}: {why}")));
            let _ = answer.send(ended);
        }
        let ended = known == Some(false);
        if entry.window.breaks && ended {
            entry.window.breaks = false;
            tracing::warn!(volume = %name, "volume {name}: its backup window was broken");
            if let Some(volume) = self.0.logs.find(name) {
                // The log says by itself that it is over.
                let _ = self.0.logs.begin(Command::BreakRest { volume });
            }
        }
    }

    /// About each 50 ms: windows that the log has no room for, and those that are in the way of
    /// what was promised for the time without copies.
    pub(super) fn look_at_all(&mut self) {
        for name in self.0.names() {
            let entry = &self.0.entries[&name];
            if !entry.has_window() || entry.window.breaks || !entry.is_served() {
                continue;
            }
            let set = entry.owning.as_ref().and_then(|it| it.set());
            let may = entry.owning.as_ref().is_none_or(|it| it.drains);
            let promised = set.is_some_and(set::breaks_window);
            let short = || {
                let volume = self.0.logs.find(&name)?;
                self.0.logs.view(volume).filter(|view| view.rest_is_short)
            };
            if may && (promised || short().is_some()) {
                self.0
                    .entries
                    .get_mut(&name)
                    .expect("just seen")
                    .window
                    .breaks = true;
                self.wish(&name, false);
            }
        }
    }

    /// About each second: what a machine could not begin is ordered again.
    pub(super) fn wish_again(&mut self, name: &str) {
        let window = self.0.entries.get(name).map(|entry| &entry.window);
        let wish = window.and_then(|it| match &it.order {
            _ if it.breaks => Some(false),
            Some((open, ..)) => Some(*open),
            None => None,
        });
        if let Some(open) = wish {
            self.wish(name, open);
        }
        self.look(name);
    }

    /// It is not waited for any more.
    pub(super) fn forget_order(&mut self, name: &str) {
        if let Some(entry) = self.0.entries.get_mut(name) {
            entry.window.order = None;
        }
    }

    /// To let go of a unit with copies would bring what is dirty to its image: who waits is told.
    pub(super) fn stay(&mut self, name: &str) {
        let why = self.words();
        let Some(owning) = self.0.owning(name) else {
            return;
        };
        let (unit, asked_by) = (owning.record().unit, owning.asked_by.take());
        if let Some(host) = asked_by {
            let why = why.clone();
            self.0.say(host, unit, Body::Denied { why });
        }
        self.0.end_move(name, Err(why.clone()));
        let entry = self.0.entries.get_mut(name);
        if let Some((entry, remover)) = entry.and_then(|it| it.remover.take().map(|by| (it, by))) {
            entry.leaving = false;
            let _ = remover.send(Err(why));
        }
    }

    /// Why a unit with a window stays with this host.
    pub(super) fn words(&self) -> String {
        let who = &self.0.member.me.name;
        format!("a backup window of it is open on {who}; `tenuto volume resume` there closes it")
    }
}
