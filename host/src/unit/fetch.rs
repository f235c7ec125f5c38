//! How a host that takes a unit over gets what another host's copy has, when it has none itself.
//!
//! ```text
//! taker: own replica kept ─▶ Fetch ─▶ batches come ─ all there ─▶ frozen, and made the volume
//! holder of the frozen copy:   └──▶ streams all that is dirty, from where the taker's has ended
//! ```
//! Always true: only a copy that was frozen by the record of who asks is sent; the unit is served
//! when all of it has come; an attempt without progress is begun anew where the replica has ended.
//! Where the host that sends is lost, and another one has a copy, the unit is taken anew with that.
//! What came from the first goes on as a part of the other, but not where it has more than that, or
//! ends within a delta: then the own replica is begun anew.
//! Deliberately absent: that the taker's copy is a member, which its record says before.

use super::kept::{Kept, Place, replica_name, take_over};
use super::logs::{InletFrom, Logs, StreamTo};
use super::owning::{Fetch, Step};
use super::{Input, Manager, fresh};
use engine::event::{Command, Credit, ReplicaSpec};
use engine::types::{Serial, Uuid, VolumeId};
use node::copy::Copy;
use node::message::Body;
use node::taker::Ownership;
use std::time::{Duration, Instant};

/// Without progress for so long an attempt is begun anew: a delta may be a gigabyte, and counts as
/// a whole. What ends earlier is told.
const STUCK: Duration = Duration::from_secs(120);

/// The host that sends is silent for so long before another copy is looked for. A link that is down
/// for a moment is no reason.
const LOST: Duration = Duration::from_secs(1);

/// The own replica, of which nothing is behind this serial.
fn keep_own(logs: &dyn Logs, spec: &ReplicaSpec, most: Serial) -> Result<VolumeId, String> {
    let kept = logs.keep(spec.clone());
    let found = logs.find(&spec.name);
    let Some((volume, view)) = found.and_then(|it| Some((it, logs.view(it)?))) else {
        return kept;
    };
    // One that obeys a newer record is another owner's.
    let replica = view.replica.filter(|it| it.term <= spec.term);
    if !replica.is_some_and(|it| it.torn || it.seen > most) {
        return kept;
    }
    tracing::info!(
        "{}, which has a part of another copy, is begun anew",
        spec.name
    );
    let discard_dirty = true;
    logs.run(Command::Detach {
        volume,
        discard_dirty,
    })?;
    logs.keep(spec.clone())
}

impl Manager {
    /// The copy that was frozen is another host's, and this one has nothing of it.
    pub(super) fn begin_fetch(&mut self, name: &str, owns: Ownership) {
        let Some(owning) = self.owning(name) else {
            return;
        };
        if owning.fetch.is_some() {
            return;
        }
        let own = owns.own;
        let members = owns.record.members.iter();
        let others = members.filter(|member| member.copy != own.copy);
        let source = others.max_by_key(|member| member.copy == owns.source);
        let Some(source) = source.copied() else {
            owning.problem = Some("its only copy is gone with the cache of this host".into());
            return;
        };
        (owning.own, owning.problem) = (own.copy, None);
        owning.fetch = Some(Fetch {
            owns: Box::new(owns),
            source,
            about: owning.about.clone(),
            volume: None,
            end: Serial(0),
            moved: Instant::now(),
            ending: false,
        });
        self.fetch_again(name);
    }

    /// Keeps the own replica, from where it ends, and asks for the rest.
    fn fetch_again(&mut self, name: &str) {
        let session = fresh();
        let Some(fetch) = self.owning(name).and_then(|it| it.fetch.as_mut()) else {
            return;
        };
        (fetch.moved, fetch.volume) = (Instant::now(), None);
        let (owns, about) = (&fetch.owns, &fetch.about);
        let copy = owns.own.copy;
        let destaged = owns.destaged.max(fetch.end);
        let open = Body::Open {
            member: owns.own,
            session,
            fresh: true,
            destaged,
            record: Box::new(owns.record.clone()),
            about: about.clone(),
        };
        let spec = ReplicaSpec {
            name: replica_name(copy),
            origin: about.origin.clone(),
            uuid: about.volume,
            size_bytes: about.size_bytes,
            // An attempt goes on where the one before has ended, also within a delta.
            lineage: fetch.source.copy,
            term: owns.record.number,
            destaged: owns.destaged,
            fetched: true,
        };
        let machine = Copy::make((owns.own.host, owns.own.cache), &open);
        let machine = machine.expect("it is of this host and this cache");
        let most = owns.history.end();
        let known = self.copies.contains_key(&copy);
        let (logs, inputs, memory) = (self.logs.clone(), self.inputs.clone(), self.memory.clone());
        let name = name.to_owned();
        self.local.run(move |_| {
            logs.close_inlet(copy);
            let kept = keep_own(&*logs, &spec, most).and_then(|volume| {
                if !known {
                    memory.write_copy(machine.durable())?;
                }
                Ok((volume, session, Box::new(machine)))
            });
            let _ = inputs.send(Input::Own(name, Step::Fetching(kept)));
        });
    }

    /// The own replica is there.
    pub(super) fn fetching(&mut self, name: &str, volume: VolumeId, session: Uuid, of: Copy) {
        let copy = of.durable().member.copy;
        let kept = self
            .copies
            .entry(copy)
            .or_insert_with(|| Kept::of(of, Place::Replica(volume)));
        kept.busy = true;
        if self.owning(name).is_none_or(|it| it.fetch.is_none()) {
            return self.end_of_fetch(copy);
        }
        let end = self.logs.view(volume).map_or(Serial(0), |view| view.end);
        let owning = self.owning(name).expect("just seen");
        let (unit, term) = (owning.record().unit, owning.record().number);
        let fetch = owning.fetch.as_mut().expect("just seen");
        fetch.volume = Some(volume);
        let source = fetch.source;
        fetch.end = end;
        let have = fetch.owns.destaged.max(fetch.end);
        self.logs.open_inlet(InletFrom {
            copy,
            session,
            host: source.host,
            volume,
            term,
        });
        let body = Body::Fetch {
            copy: source.copy,
            into: copy,
            session,
            term,
            destaged: have,
        };
        self.say(source.host, unit, body);
    }

    /// What was fetched has its copy back, be it whole or not.
    pub(super) fn end_of_fetch(&mut self, copy: Uuid) {
        self.logs.close_inlet(copy);
        if let Some(kept) = self.copies.get_mut(&copy) {
            kept.busy = false;
        }
    }

    /// The host that sends cannot go on with it.
    pub(super) fn fetch_failed(&mut self, name: &str, from: Uuid, copy: Uuid) {
        let fetch = self.owning(name).and_then(|it| it.fetch.as_ref());
        let is_its = |fetch: &&Fetch| fetch.source.host == from && fetch.source.copy == copy;
        let running = fetch.filter(is_its);
        if running.is_some_and(|it| it.volume.is_some() && !it.ending) {
            self.fetch_again(name);
        }
    }

    /// Looks how far it has come.
    pub(super) fn look_at_fetch(&mut self, name: &str) {
        let logs = self.logs.clone();
        let owning = self.entries.get_mut(name).and_then(|it| it.owning.as_mut());
        let Some(fetch) = owning.and_then(|it| it.fetch.as_mut()) else {
            return;
        };
        let Some(volume) = fetch.volume.filter(|_| !fetch.ending) else {
            return;
        };
        let end = logs.view(volume).map_or(fetch.end, |view| view.end);
        if end > fetch.end {
            (fetch.end, fetch.moved) = (end, Instant::now());
        }
        if end >= fetch.owns.history.end() {
            fetch.ending = true;
            return self.end_fetch(name, volume);
        }
        let silence = self.silent_since.get(&fetch.source.host);
        let lost = silence.is_some_and(|since| since.elapsed() >= LOST);
        if lost && let Some(other) = fetch.other_source(&self.links) {
            let (source, record) = (fetch.source.host, fetch.owns.record.clone());
            let (lost, other) = (self.host(source), self.host(other));
            tracing::info!(
                volume = %name,
                "volume {name}: {lost}, which sent its copy, is lost; goes on with that of {other}"
            );
            return self.end_owning(name, record);
        }
        if fetch.moved.elapsed() >= STUCK {
            self.fetch_again(name);
        }
    }

    fn end_fetch(&mut self, name: &str, volume: VolumeId) {
        let Some(fetch) = self.owning(name).and_then(|it| it.fetch.as_mut()) else {
            return;
        };
        let mut owns = fetch.owns.clone();
        // What was frozen was complete, and all of it is here.
        owns.from = owns.destaged;
        let (copy, term) = (owns.own.copy, owns.record.number);
        let (logs, inputs) = (self.logs.clone(), self.inputs.clone());
        let name = name.to_owned();
        self.local.run(move |_| {
            logs.close_inlet(copy);
            let taken = logs
                .run(Command::Freeze { volume, term })
                .and_then(|()| take_over(&*logs, volume, &name, term))
                .map(|()| owns);
            let _ = inputs.send(Input::Own(name, Step::Taken(copy, taken)));
        });
    }

    /// A host that has frozen a copy of this one wants what it has.
    pub(super) fn send_copy(&mut self, from: Uuid, body: &Body) {
        let Body::Fetch {
            copy,
            into,
            session,
            term,
            destaged,
        } = *body
        else {
            return;
        };
        let peer = self.peer_id(from);
        let Some(kept) = self.copies.get_mut(&copy) else {
            return;
        };
        let durable = kept.machine.durable();
        let owner = durable.record.owner.as_ref();
        let theirs = owner.is_some_and(|owner| owner.host == from);
        let (Place::Replica(volume), true) = (&kept.place, theirs && durable.frozen) else {
            return;
        };
        if kept.machine.term() != term || kept.sends == Some((from, session)) {
            return;
        }
        kept.sends = Some((from, session));
        let volume = *volume;
        self.logs.stop_stream(volume, peer, false);
        let to = StreamTo {
            volume,
            peer,
            host: from,
            copy: into,
            session,
            term,
            // It is to be a volume there.
            credit: Credit::ALL,
        };
        if let Err(why) = self.logs.start_stream(to, destaged) {
            tracing::warn!("copy {copy}: cannot be sent: {why}");
        }
    }
}
