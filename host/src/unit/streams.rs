//! Streams to the copies of units that this host owns, and when one of them is given up.
//!
//! Always true: a stream is opened for one copy in one session; what the set is told of a copy is
//! what the log knew at one moment; a copy that does not answer for too long, or has no stream, is
//! unfit, and a host that was lost again soon waits longer. Deliberately absent: which copies there
//! are, which [`super::replicas`] decides with its machines.

use super::Manager;
use super::logs::{Logs, Neighbour, StreamTo};
use super::owning::{Owning, Stream, asks, now};
use super::room;
use crate::shard::control::{CommandError, CommandReply};
use engine::event::{Command, Credit};
use engine::snapshot::CopySnapshot;
use engine::types::{PeerId, Serial, Uuid};
use node::choice::{Candidate, Wish, choose};
use node::message::Body;
use node::record::Member;
use node::set::{self, OwnLog, Set};
use node::watch::{Verdict, Watch};
use std::time::{Duration, Instant};

/// A host that would not keep a copy is not asked again for so long.
const REFUSED: Duration = Duration::from_secs(10);
/// A stream that ended is opened again after this.
const REOPEN: Duration = Duration::from_millis(100);
/// How long links have to come up.
const BEGIN_MAX: Duration = Duration::from_secs(3);
/// How long a host may take to make a copy.
const MAKE_MAX: Duration = Duration::from_secs(10);

/// The log answers flushes by what the origin has, or does no more, as the set says.
fn tell_origin(logs: &dyn Logs, owning: &mut Owning) {
    let on = owning.set().is_some_and(Set::answers_at_origin);
    if let (true, Some(volume)) = (owning.told_origin != on, owning.volume) {
        let telling = logs.begin(Command::AnswerAtOrigin { volume, on });
        (owning.told_origin, owning.telling) = (on, telling);
    }
}

/// Whether it does, if that is news for the set. What is seen while an order is not carried out may
/// be of before it.
fn obeying(owning: &mut Owning, view: &CopySnapshot) -> Option<bool> {
    if let Some(telling) = &mut owning.telling {
        if telling.take().is_some() {
            owning.telling = None;
        }
        return None;
    }
    let obeys = owning.told_origin && view.at_origin;
    let known = owning.set().is_some_and(Set::obeys);
    (obeys != known).then_some(obeys)
}

/// What the log of this host is good for.
fn own_log(view: &CopySnapshot) -> OwnLog {
    match (view.past_log, view.rescues) {
        (true, _) => OwnLog::Past,
        (false, true) => OwnLog::Fails,
        (false, false) => OwnLog::Good,
    }
}

impl Manager {
    pub(super) fn peer_id(&mut self, host: Uuid) -> PeerId {
        let next = self.peer_ids.len() as u32;
        PeerId(*self.peer_ids.entry(host).or_insert(next))
    }

    pub(super) fn choose_place(&mut self, name: &str, not: &[Uuid]) -> Option<(Uuid, Uuid)> {
        let neighbours = self.logs.neighbours();
        let entry = self.entries.get(name)?;
        let standby = entry.standby_host().filter(|host| !not.contains(host));
        let place = entry.settings.copies.place.as_ref();
        let place = place.unwrap_or(&self.member.place).clone();
        let owning = self.owning(name)?;
        owning.refused.retain(|_, since| since.elapsed() < REFUSED);
        let unfit = owning.streams.iter().filter(|(_, it)| !it.watch.is_fit());
        let unfit = unfit.map(|(host, _)| *host);
        let refused: Vec<Uuid> = owning.refused.keys().copied().chain(unfit).collect();
        let standby = standby.filter(|host| !refused.contains(host));
        if let Some(there) = neighbours.iter().find(|it| Some(it.host) == standby) {
            return Some((there.host, there.cache));
        }
        let domain = self.member.domain.clone();
        let members: Vec<Uuid> = self
            .owning(name)?
            .record()
            .members
            .iter()
            .map(|it| it.host)
            .collect();
        let taken = neighbours.iter().filter(|it| members.contains(&it.host));
        let domains: Vec<String> = taken.map(|it| it.domain.clone()).chain([domain]).collect();
        let asked = neighbours.iter().filter(|it| !not.contains(&it.host));
        let asked = asked.filter(|it| place.allows(&it.name));
        let asked: Vec<Neighbour> = asked.cloned().collect();
        let (wanted, rooms) = self.rooms(name, &asked);
        let copies = |host: Uuid| {
            let owned = self
                .entries
                .values()
                .filter_map(|entry| entry.owning.as_ref());
            owned.filter(|it| it.streams.contains_key(&host)).count() as u32
        };
        let candidates = asked.iter().filter(|it| !refused.contains(&it.host));
        let candidates: Vec<Candidate> = candidates
            .map(|it| Candidate {
                host: it.host,
                cache: it.cache,
                domain: it.domain.clone(),
                reaches_datastore: true,
                reserve_blocks: rooms.get(&it.host).copied().unwrap_or(0),
                copies: copies(it.host),
            })
            .collect();
        let wish = Wish {
            not,
            domains: &domains,
            spread: place.spread(),
            least_blocks: room::AHEAD_BLOCKS,
            blocks: wanted,
        };
        choose(&candidates, &wish).map(|choice| (choice.host, choice.cache))
    }

    pub(super) fn stream_of(&mut self, name: &str, member: Member, peer: PeerId) -> &mut Stream {
        let timeout = self.member.peer_timeout;
        let owning = self.owning(name).expect("it has streams");
        let stream = owning.streams.entry(member.host);
        let stream = stream.or_insert_with(|| Stream {
            peer,
            member,
            watch: Watch::new(now(), timeout),
            open: false,
            since: Instant::now(),
            reopen: None,
            counting: None,
            counted: false,
            credit: Credit::default(),
            short: false,
            dropped: false,
        });
        stream.member = member;
        stream
    }

    pub(super) fn start_stream(&mut self, name: &str, member: Member, from: Serial) {
        let (Some(volume), peer) = (self.volume_of(name), self.peer_id(member.host)) else {
            return;
        };
        let (session, Some(owning)) = (self.member.me.session, self.owning(name)) else {
            return;
        };
        let term = owning.record().number;
        let counts = asks(owning, &member);
        let stream = owning.streams.get(&member.host);
        let credit = stream.map(|it| it.credit).unwrap_or_default();
        let to = StreamTo {
            volume,
            peer,
            host: member.host,
            copy: member.copy,
            session,
            term,
            credit,
        };
        self.logs.stop_stream(volume, peer, counts);
        let started = self.logs.start_stream(to, from);
        let stream = self.stream_of(name, member, peer);
        (stream.open, stream.since) = (started.is_ok(), Instant::now());
        (stream.counting, stream.counted, stream.reopen) = (None, counts, None);
        (stream.short, stream.dropped) = (false, false);
        stream.watch.closed();
        stream.watch.heard(now());
        if let Err(why) = started {
            tracing::warn!(volume = %name, "volume {name}: {why}");
        }
    }

    pub(super) fn stop_stream(&mut self, name: &str, host: Uuid) {
        let Some(volume) = self.volume_of(name) else {
            return;
        };
        let Some(owning) = self.owning(name) else {
            return;
        };
        let Some(stream) = owning.streams.get(&host) else {
            return;
        };
        let (peer, counts) = (stream.peer, asks(owning, &stream.member));
        if let Some(stream) = owning.streams.get_mut(&host) {
            (stream.open, stream.since) = (false, Instant::now());
            (stream.counting, stream.counted) = (None, counts);
        }
        self.logs.stop_stream(volume, peer, counts);
    }

    /// The log asks no copy any more that the set does not ask.
    pub(super) fn count_copies(&mut self, name: &str) {
        let logs = self.logs.clone();
        let Some(owning) = self.owning(name).filter(|it| it.served) else {
            return;
        };
        tell_origin(&*logs, owning);
        let Some(set) = owning.set() else { return };
        let asked = set.must_have();
        let streams = owning.streams.iter().filter(|(_, stream)| {
            stream.counted && stream.counting.is_none() && !asked.contains(&stream.member)
        });
        let more: Vec<Uuid> = streams.map(|(host, _)| *host).collect();
        for host in more {
            self.stop_stream(name, host);
        }
    }

    /// Feeds the sets with what the log knows, and streams with what they are to do.
    pub(super) fn look_at_streams(&mut self) {
        let mut served = Vec::new();
        for name in self.names() {
            self.look_at_fetch(&name);
            let owning = self.owning(&name);
            let Some(owning) = owning.filter(|it| it.served && it.set().is_some()) else {
                continue;
            };
            if let Some(volume) = owning.volume {
                served.push((name, volume));
            }
        }
        if served.is_empty() {
            return;
        }
        let views = self
            .logs
            .views(served.iter().map(|(_, volume)| *volume).collect());
        for ((name, _), view) in served.iter().zip(views) {
            if let Some(view) = view.filter(|view| view.attached) {
                self.look_at_stream(name, &view);
            }
            // A guest waits.
            if self.owning(name).is_some_and(|it| it.asked_by.is_some()) {
                self.let_go_with_copies(name);
            }
        }
    }

    fn look_at_stream(&mut self, name: &str, view: &CopySnapshot) {
        self.feed_serials(name, view);
        let hosts: Vec<Uuid> = match self.owning(name) {
            Some(owning) => owning.streams.keys().copied().collect(),
            None => return,
        };
        for host in hosts {
            self.look_at_peer(name, host, view);
        }
    }

    fn feed_serials(&mut self, name: &str, view: &CopySnapshot) {
        let session = self.member.me.session;
        let Some(owning) = self.owning(name) else {
            return;
        };
        let Some(set) = owning.set() else { return };
        let number = set.record().number;
        let known = set.history().end();
        let mut acks = Vec::new();
        for (host, stream) in owning.streams.iter().filter(|(_, stream)| stream.open) {
            let peer = view.peers.iter().find(|peer| peer.peer == stream.peer);
            if let Some(peer) = peer {
                let body = Body::Ack {
                    copy: stream.member.copy,
                    session,
                    term: number,
                    // Void serials, which no write has, are nowhere.
                    durable: peer.durable.min(view.written),
                    batch: 0,
                    credit: Credit::default(),
                };
                acks.push((*host, body));
            }
        }
        if view.written > known {
            self.set_event(name, set::Event::Given(view.written));
        }
        self.set_event(name, set::Event::Synced(view.end.min(view.written)));
        for (from, body) in acks {
            self.set_event(name, set::Event::Heard { from, body });
        }
        self.tell_destaged(name, view.destaged);
        if let Some(obeys) = self.owning(name).and_then(|it| obeying(it, view)) {
            self.set_event(name, set::Event::Obeys(obeys));
        }
        let log = own_log(view);
        let known = self
            .owning(name)
            .and_then(|it| it.set().map(set::own_log_of));
        if known.is_some_and(|known| known != log) {
            self.set_event(name, set::Event::OwnLog(log));
        }
    }

    fn look_at_peer(&mut self, name: &str, host: Uuid, view: &CopySnapshot) {
        let linked = self.links.contains(&host);
        let timeout = self.member.peer_timeout;
        let Some(owning) = self.owning(name) else {
            return;
        };
        let begun = owning.begun.elapsed() >= BEGIN_MAX;
        let Some(member) = owning.streams.get(&host).map(|it| it.member) else {
            return;
        };
        let counts = asks(owning, &member);
        let shown = owning.set().map(|set| set.shown()).unwrap_or_default();
        let known = shown.iter().any(|peer| peer.member == member);
        let stream = owning.streams.get_mut(&host).expect("just seen");
        let peer = view.peers.iter().find(|peer| peer.peer == stream.peer);
        if linked || !begun {
            stream.watch.heard(now());
        }
        let mut live = false;
        if let Some(peer) = peer.filter(|_| stream.open) {
            stream.watch.sent(now(), peer.sent);
            stream.watch.acked(now(), peer.durable);
            stream.short = peer.no_room;
            live = peer.live && !stream.counted && stream.counting.is_none();
        }
        let patience = match counts {
            // A copy that counts, and has no stream.
            true => Duration::from_millis(timeout.ms),
            false => MAKE_MAX,
        };
        let late = known && !stream.open && stream.since.elapsed() >= patience && begun;
        let verdict = match late {
            true => stream.watch.fail(now()),
            false => stream.watch.tick(now()),
        };
        let again = stream.reopen.is_some_and(|it| it <= Instant::now());
        let counting = stream.counting.as_mut().and_then(CommandReply::take);
        match verdict {
            Verdict::Lost => self.set_event(name, set::Event::Unfit { host }),
            Verdict::Back => self.reopen(name, host),
            Verdict::Same if live => self.count_peer(name, host),
            Verdict::Same if counting.is_some() => self.counted(name, host, counting),
            Verdict::Same if again && linked => self.reopen(name, host),
            Verdict::Same => {}
        }
    }

    fn reopen(&mut self, name: &str, host: Uuid) {
        if let Some(stream) = self.owning(name).and_then(|it| it.streams.get_mut(&host)) {
            (stream.reopen, stream.since) = (None, Instant::now());
        }
        self.set_event(name, set::Event::Fit { host });
    }

    fn count_peer(&mut self, name: &str, host: Uuid) {
        let (Some(volume), peer) = (self.volume_of(name), self.peer_id(host)) else {
            return;
        };
        let reply = self.logs.begin(Command::CountPeer { volume, peer });
        if let Some(stream) = self.owning(name).and_then(|it| it.streams.get_mut(&host)) {
            stream.counting = reply;
        }
    }

    /// The log has counted a copy: it has all that was relied on so far.
    fn counted(&mut self, name: &str, host: Uuid, reply: Option<Result<(), CommandError>>) {
        let stream = self.owning(name).and_then(|it| it.streams.get_mut(&host));
        let Some(stream) = stream else { return };
        stream.counting = None;
        if let Some(Ok(())) = reply {
            stream.counted = true;
            self.set_event(name, set::Event::Live { host });
        }
    }

    /// What has come back on a data connection.
    pub(super) fn heard_data(&mut self, from: Uuid, body: Body) {
        let Body::Failed { copy, .. } = &body else {
            return;
        };
        let sends = |owning: &Owning| {
            let stream = owning.streams.get(&from);
            stream.is_some_and(|stream| stream.member.copy == *copy)
        };
        let mut entries = self.entries.iter();
        let found = entries.find(|(_, entry)| entry.owning.as_ref().is_some_and(sends));
        if let Some(name) = found.map(|(name, _)| name.clone()) {
            self.owner_heard(&name, from, body);
        }
    }

    /// The data connection to a host has ended.
    pub(super) fn data_down(&mut self, host: Uuid) {
        let mut told = Vec::new();
        for (copy, kept) in &mut self.copies {
            if let Some((_, session)) = kept.sends.take_if(|(to, _)| *to == host) {
                told.push((*copy, session, kept.machine.durable().record.unit));
            }
        }
        for (copy, session, unit) in told {
            self.say(host, unit, Body::Failed { copy, session });
        }
        for name in self.names() {
            let open = self
                .owning(&name)
                .and_then(|it| it.streams.get(&host))
                .is_some_and(|stream| stream.open);
            if open {
                self.stop_stream(&name, host);
                if let Some(stream) = self.owning(&name).and_then(|it| it.streams.get_mut(&host)) {
                    stream.reopen = Some(Instant::now() + REOPEN);
                }
            }
        }
    }
}
