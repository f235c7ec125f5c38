//! What an owner may do next in the search: send, acknowledge, cut, take a learner in, leave a
//! member out, give the unit away, get the right to write the origin, answer at the origin, and
//! open and close a backup window.
//!
//! Always true: each step is one that the machine of the owner, or its host, may take in this
//! state; it changes a copy of the world. Deliberately absent: what must hold afterwards.

use super::*;

impl World {
    pub(super) fn owns(&self, steps: &mut Steps, at: u8, set: &Set, bounds: Bounds) {
        self.ticks(steps, at);
        let host = &self.hosts[usize::from(at)];
        let writes = self.writes < bounds.writes && self.changes <= bounds.changes;
        if writes && !set.gives() {
            let mut next = self.clone();
            next.write(at);
            if !bounds.lags {
                next.sync(at);
            }
            steps.push((format!("{at} writes {}", next.writes), next));
        }
        if bounds.lags {
            let mut next = self.clone();
            next.sync(at);
            if next != *self {
                steps.push((format!("{at} syncs"), next));
            }
        }
        for stream in &host.streams {
            let to = stream.member.host.0[1];
            self.exchange(steps, &format!("{at} sends to {to}"), (at, to), |next| {
                next.send(at, stream.member);
            });
            let learner = set.learner().is_some_and(|it| it.0 == stream.member);
            if learner {
                // What was sent last need not be there yet.
                let mut next = self.clone();
                let host = stream.member.host;
                next.tell(at, Told::Set(set::Event::Live { host }));
                next.deliver(0, |_| false);
                steps.push((format!("{to} is live for {at}"), next));
            }
            if self.changes < bounds.changes {
                self.exchange(
                    steps,
                    &format!("{to} is unfit for {at}"),
                    (at, to),
                    |next| {
                        let host = stream.member.host;
                        next.tell(at, Told::Set(set::Event::Unfit { host }));
                    },
                );
            }
        }
        let mut next = self.clone();
        if let Side::Owns(set) = &mut next.hosts[usize::from(at)].side
            && let Some(upto) = set.acknowledge()
        {
            let all = self.served(at);
            let new = all.iter().filter(|write| write.0 <= upto.0);
            next.acked.extend(new.map(|write| write.1));
            if next.acked != self.acked || next != *self {
                steps.push((format!("{at} acknowledges"), next));
            }
        }
        self.cuts(steps, at, set);
        if bounds.standby {
            self.standby(steps, at);
        }
        if bounds.origin {
            self.at_origin(steps, at, set);
        }
        if let Some(not) = &host.choosing
            && self.changes < bounds.changes
        {
            for to in (0..HOSTS).filter(|to| !not.contains(&id(1, *to))) {
                self.exchange(steps, &format!("{at} chooses {to}"), (at, to), |next| {
                    next.hosts[usize::from(at)].choosing = None;
                    let place = Some((id(1, to), id(2, to)));
                    next.tell(at, Told::Set(set::Event::Chosen(place)));
                });
            }
        }
        self.windows(steps, at, set, bounds);
        self.rights(steps, at, set, bounds);
        self.gives(steps, at, set, bounds);
    }

    /// A guest that goes on at another host has all that it wrote there, flushed or not.
    pub(super) fn hand_over(&mut self, record: &Record) {
        let owner = record.owner.as_ref().expect("it has one");
        for at in (0..HOSTS).filter(|at| owner.host != id(1, *at)) {
            if self.hosts[usize::from(at)].deciding.as_ref() == Some(record) {
                let all = self.served(at);
                self.acked.extend(all.iter().map(|write| write.1));
            }
        }
    }

    /// A guest that may move to the third host comes there, or goes again.
    fn standby(&self, steps: &mut Steps, at: u8) {
        for (name, host) in [
            ("hears of a guest", Some(id(1, 2))),
            ("hears of none", None),
        ] {
            let mut next = self.clone();
            next.tell(at, Told::Set(set::Event::Standby(host)));
            next.mail.clear();
            if next != *self {
                steps.push((format!("{at} {name}"), next));
            }
        }
    }

    /// The owner has no client, and another host has one.
    fn gives(&self, steps: &mut Steps, at: u8, set: &Set, bounds: Bounds) {
        if self.gives == bounds.gives || self.changes >= bounds.changes || set.gives() {
            return;
        }
        for peer in set.shown().into_iter().filter(|peer| peer.counts) {
            let to = peer.member.host.0[1];
            let mut next = self.clone();
            next.gives += 1;
            let session = next.hosts[usize::from(to)].session;
            next.tell(at, Told::Set(set::Event::Give(Some(holder(to, session)))));
            next.mail.clear();
            steps.push((format!("{at} gives it to {to}"), next));
        }
    }

    fn cuts(&self, steps: &mut Steps, at: u8, set: &Set) {
        let mut next = self.clone();
        let Side::Owns(begins) = &mut next.hosts[usize::from(at)].side else {
            return;
        };
        let Some(upto) = begins.begin_cut() else {
            return;
        };
        let all = self.served(at);
        let new = all.iter().filter(|write| write.0 <= upto.0);
        next.origin.extend(new.map(|write| write.1));
        // The right of another host is in the vault, or this one never had it.
        let epochs = self.vault.iter().map(|record| record.epoch.number);
        let has = set.record().epoch.number == epochs.max().expect("there is one")
            && set
                .record()
                .drainer()
                .is_some_and(|it| it.host == id(1, at));
        if !has {
            next.wrong = Some(format!("{at} begins a cut without the right"));
        }
        if self.window {
            next.wrong = Some(format!("{at} begins a cut while the image is read"));
        }
        steps.push((format!("{at} begins a cut"), next));
    }

    /// An administrator opens a backup window, hears that it is open, and closes it.
    fn windows(&self, steps: &mut Steps, at: u8, set: &Set, bounds: Bounds) {
        let opening = self.hosts[usize::from(at)].opening;
        if self.windows < bounds.windows && !set::rests(set) {
            let mut next = self.clone();
            next.windows += 1;
            next.hosts[usize::from(at)].opening = true;
            next.tell(at, Told::Set(set::Event::Window(true)));
            next.mail.clear();
            steps.push((format!("{at} opens a window"), next));
        }
        if opening && set::has_window(set, true) {
            let mut next = self.clone();
            next.hosts[usize::from(at)].opening = false;
            next.window = true;
            steps.push((format!("{at} has opened it"), next));
        }
        if self.window && set::rests(set) {
            let mut next = self.clone();
            next.window = false;
            next.tell(at, Told::Set(set::Event::Window(false)));
            next.mail.clear();
            steps.push((format!("{at} closes the window"), next));
        }
    }

    /// Flushes of a unit that lacks a copy are to be answered by what the origin has.
    fn at_origin(&self, steps: &mut Steps, at: u8, set: &Set) {
        if set.cut() > set.destaged() {
            let (upto, all) = (set.cut(), self.served(at));
            let mut next = self.clone();
            let new = all.iter().filter(|write| write.0 <= upto.0);
            next.home.extend(new.map(|write| write.1));
            next.tell(at, Told::Set(set::Event::Destaged(upto)));
            next.mail.clear();
            steps.push((format!("{at} destages"), next));
        }
        if set.answers_at_origin() && !set.obeys() {
            let mut next = self.clone();
            next.tell(at, Told::Set(set::Event::Obeys(true)));
            next.mail.clear();
            steps.push((format!("the log of {at} obeys"), next));
        }
        // A log that does not yet answers what the set hears of later.
        if !set.obeys() && !set.record().at_origin {
            let mut unseen = set.clone();
            let upto = unseen.acknowledge().unwrap_or(Serial(0));
            let mut next = self.clone();
            let all = self.served(at);
            let new = all.iter().filter(|write| write.0 <= upto.0);
            next.acked.extend(new.map(|write| write.1));
            if next.acked != self.acked {
                steps.push((format!("the log of {at} answers"), next));
            }
        }
    }

    fn rights(&self, steps: &mut Steps, at: u8, set: &Set, bounds: Bounds) {
        let drainer = set.record().drainer().expect("it has one").host;
        let dead = !self.hosts[self.at(drainer)].up;
        if self.proofs < bounds.proofs && dead {
            let mut next = self.clone();
            next.proofs += 1;
            let epoch = set.record().epoch;
            next.tell(at, Told::Set(set::Event::Proved(epoch)));
            // It is fenced: it never starts again.
            next.links
                .retain(|it| it.owner.as_ref().is_none_or(|it| it.host != drainer));
            next.hosts[self.at(drainer)].session = u8::MAX;
            next.mail.clear();
            steps.push((format!("{at} has proof"), next));
        }
        if self.hosts[usize::from(at)].preparing {
            let mut next = self.clone();
            next.hosts[usize::from(at)].preparing = false;
            next.tell(at, Told::Set(set::Event::Prepared(Ok(()))));
            next.mail.clear();
            steps.push((format!("{at} has prepared"), next));
        }
    }
}
