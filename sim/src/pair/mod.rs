//! Two hosts: one serves a volume and sends its writes, the other one keeps a replica.
//!
//! Owns one run: a guest with writes, zeroes and flushes, a link that breaks, daemons that are
//! killed and hosts that lose power on both sides, a peer that is given up and counted again; and
//! at the end the owner dies, the replica is taken over, what the old owner has is retired, and a
//! third host fetches that. The log of a host is small, and in some runs the peer has a guest of
//! its own, which writes as much as it can. The records of the cluster are a flag here: whether the
//! peer is a member, and whether the image has all that was promised, which the pair changes as the
//! rules for sets say.
//!
//! Always true: both engines are the product's own; nothing depends on anything but the seed. What
//! is judged: a guest finds all that a flush has promised, as the disk was after some number of
//! writes; after a kill, all that was acknowledged; and the next owner the same of flushes. A good
//! batch is never refused, and what the peer has promised is no guest's: its log never holds more
//! than it may.
//! Deliberately absent: real records, and more than one peer.

mod at_origin;
mod neighbour;

use crate::devices::Origin;
use crate::machine::{Machine, Sent, Shape, attach, expect, image, tuning};
use crate::model::Model;
use crate::rng::Rng;
use at_origin::AtOrigin;
use engine::event::{Command, Credit, Event, Refusal, ReplicaSpec, Tuning};
use engine::types::{PeerId, RequestId, Uuid, VolumeId};
use neighbour::Neighbour;
use std::collections::{BTreeMap, VecDeque};
use std::panic::catch_unwind;

const PEER: PeerId = PeerId(1);
/// Of the disk.
const SECTORS: u64 = 1024;
/// Of a log, of one in which a copy has room for all, and of one in which copies have room for
/// little more than the largest batch.
const SEGMENTS: u32 = 44;
const SEGMENTS_MAX: u32 = 100;
const SEGMENTS_MIN: u32 = 34;
/// Blocks that writes of guests may take beyond what they were admitted with.
const CUTS_MAX: u64 = 8;
/// Rounds in which a peer that counts may be without room before it is given up.
const SHORT_MAX: u32 = 2_000;
/// Rounds in which a peer gets what was recovered.
const BRING_UP_MAX: u32 = 20_000;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub steps: u32,
}

impl Options {
    pub fn from_seed(seed: u64) -> Options {
        Options { seed, steps: 1_500 }
    }
}

/// What happened. A run in which something never does proves nothing about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub writes: u64,
    pub flushes: u64,
    pub batches: u64,
    pub links: u64,
    pub broken_links: u64,
    pub resumed: u64,
    pub restarted: u64,
    pub owner_crashes: u64,
    pub peer_crashes: u64,
    pub given_up: u64,
    pub counted: u64,
    pub taken_over: u64,
    /// Of these: with flushes that the peer had to have.
    pub with_flushes: u64,
    pub destages: u64,
    pub spoiled: u64,
    /// A link that found no room for another copy, and a peer that had none for what it lacks.
    pub refused: u64,
    pub short: u64,
    /// Writes of the peer's own guest.
    pub neighbour: u64,
    /// Owners that were lost with their cache while the image had all that was promised.
    pub lost_owners: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.batches += other.batches;
        self.links += other.links;
        self.broken_links += other.broken_links;
        self.resumed += other.resumed;
        self.restarted += other.restarted;
        self.owner_crashes += other.owner_crashes;
        self.peer_crashes += other.peer_crashes;
        self.given_up += other.given_up;
        self.counted += other.counted;
        self.taken_over += other.taken_over;
        self.with_flushes += other.with_flushes;
        self.destages += other.destages;
        self.spoiled += other.spoiled;
        self.refused += other.refused;
        self.short += other.short;
        self.neighbour += other.neighbour;
        self.lost_owners += other.lost_owners;
    }
}

/// A request of the guest.
#[derive(Clone, Copy)]
enum Asked {
    Write { change: usize, fua: bool },
    Flush { covers: usize },
}

/// A batch that the peer has not answered yet.
struct Coming {
    request: RequestId,
    number: u64,
    buffer: engine::types::BufferId,
    /// A bit of it was changed on its way.
    spoiled: bool,
    /// Of which link it came by.
    link: u64,
}

struct Pair {
    rng: Rng,
    owner: Machine,
    peer: Machine,
    disk: VolumeId,
    replica: Option<VolumeId>,
    /// Names of replicas are used once.
    copies: u32,
    lineage: u8,
    linked: bool,
    /// The record names the peer.
    member: bool,
    counting: Option<RequestId>,
    wire: VecDeque<Sent>,
    coming: Vec<Coming>,
    acks: VecDeque<(u64, Credit)>,
    asked: BTreeMap<RequestId, (Asked, Option<engine::types::BufferId>)>,
    model: Model,
    counters: Counters,
    tuning: Tuning,
    /// A batch of this link was lost: what comes behind it is refused.
    gap: bool,
    neighbour: Option<Neighbour>,
    at_origin: AtOrigin,
    /// How many of the possible flushes there are, in a thousand.
    flushes: u64,
}

/// One run. The error is what was noticed, and in which step; an assert of the engine is one.
pub fn run(options: &Options) -> Result<Counters, String> {
    let driven = catch_unwind(|| drive(options));
    driven.unwrap_or_else(|payload| {
        let words = payload.downcast_ref::<String>().cloned();
        let words = words.or_else(|| payload.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        Err(words.unwrap_or_else(|| "a panic without words".to_owned()))
    })
}

fn drive(options: &Options) -> Result<Counters, String> {
    let mut pair = Pair::new(options.seed)?;
    for step in 0..options.steps {
        pair.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    pair.take_over()
        .map_err(|what| format!("the takeover: {what}"))?;
    Ok(pair.counters)
}

impl Pair {
    fn new(seed: u64) -> Result<Pair, String> {
        let mut rng = Rng::new(seed);
        let mut owner = Machine::new(&mut rng, Shape::without_lines(SEGMENTS))?;
        let segments = rng.pick(&[SEGMENTS_MIN, SEGMENTS, SEGMENTS_MAX]);
        let mut peer = Machine::new(&mut rng, Shape::without_lines(segments))?;
        owner.devices.origins.push(image(5, SECTORS));
        // The disk has the first place at both.
        peer.devices.origins.push(Origin::default());
        let tuning = tuning(&mut rng);
        let neighbour = match rng.chance(300) {
            true => Some(Neighbour::attach(&mut peer)?),
            false => None,
        };
        let flushes = rng.pick(&[20, 300, 1000]);
        let mut pair = Pair {
            rng,
            owner,
            peer,
            disk: VolumeId(0),
            replica: None,
            copies: 0,
            lineage: 1,
            linked: false,
            member: false,
            counting: None,
            wire: VecDeque::new(),
            coming: Vec::new(),
            acks: VecDeque::new(),
            asked: BTreeMap::new(),
            model: Model::new(SECTORS),
            counters: Counters::default(),
            tuning,
            gap: false,
            neighbour,
            at_origin: AtOrigin::of_seed(seed, tuning.destage),
            flushes,
        };
        pair.disk = attach(&mut pair.owner, "disk", (0, SECTORS), tuning)?;
        pair.name_lineage()?;
        Ok(pair)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(1000) {
            0..=199 => self.write(),
            200..=239 if self.rng.chance(self.flushes) => self.flush(),
            240..=499 => drop(self.owner.complete()),
            500..=699 => drop(self.peer.complete()),
            700..=799 => self.carry()?,
            800..=859 => self.acknowledge(),
            860..=909 => {
                let nanos = self.rng.pick(&[10_000, 1_000_000, 7_000_000, 150_000_000]);
                self.owner.pass(nanos);
                self.peer.pass(nanos);
            }
            910..=949 if !self.linked => self.link()?,
            950..=969 if self.linked && !self.member && self.counting.is_none() => self.count(),
            970..=973 if self.linked => self.cut()?,
            974..=975 if self.member || self.counting.is_some() => self.give_up()?,
            976..=977 => self.crash_owner()?,
            978..=979 => self.crash_peer()?,
            980..=989 => {
                let volume = self.disk;
                let request = self.owner.request();
                let command = Command::Destage { volume };
                self.owner.apply(Event::Admin { request, command });
                self.counters.destages += 1;
            }
            _ => self.write_beside(),
        }
        self.reap()?;
        at_origin::step(self)?;
        match self.rng.chance(100) {
            true => self.judge_room(),
            false => Ok(()),
        }
    }

    fn write_beside(&mut self) {
        if let Some(neighbour) = &mut self.neighbour {
            let writes = neighbour.write(&mut self.peer, &mut self.rng);
            self.counters.neighbour += writes;
        }
    }

    /// No more lives in the log of the peer than may. A write of a guest may cut an older one, and
    /// then takes some blocks more than it was admitted with.
    fn judge_room(&mut self) -> Result<(), String> {
        let shown = self.peer.engine().snapshot();
        let (live, max) = (shown.live_bytes / 4096, shown.dirty_bytes_max / 4096);
        match live <= max + CUTS_MAX {
            true => Ok(()),
            false => Err(format!("{live} blocks live in a log for {max}")),
        }
    }

    fn write(&mut self) {
        if self.asked.len() > 12 {
            return;
        }
        let sectors = match self.rng.below(10) {
            0 => self.rng.range(1, 9),
            1 => self.rng.range(1, 300),
            _ => 8 * self.rng.range(1, 5),
        };
        self.write_sectors(sectors);
    }

    fn write_sectors(&mut self, sectors: u64) {
        let sector = match self.rng.chance(600) {
            true => 8 * self.rng.below((SECTORS - sectors) / 8 + 1),
            false => self.rng.below(SECTORS - sectors + 1),
        };
        let (zero, fua) = (self.rng.chance(80), self.rng.chance(60));
        let (change, of) = self.model.write(sector, sectors, zero);
        let (request, buffer) = self.owner.write(self.disk, of, fua);
        let fua = fua || !self.tuning.write_cache;
        let asked = Asked::Write { change, fua };
        self.asked.insert(request, (asked, buffer));
        self.counters.writes += 1;
    }

    fn flush(&mut self) {
        let covers = self.model.acked();
        let (volume, request) = (self.disk, self.owner.request());
        self.asked.insert(request, (Asked::Flush { covers }, None));
        self.owner.apply(Event::Flush { volume, request });
    }

    /// A batch comes to the peer.
    fn carry(&mut self) -> Result<(), String> {
        self.wire.extend(self.owner.sent.drain(..));
        let Some(mut sent) = self.wire.pop_front().filter(|_| self.linked) else {
            return Ok(());
        };
        if self.rng.chance(3) {
            self.gap = true;
            return Ok(());
        }
        let volume = self.replica.ok_or("a link without a replica")?;
        let number = sent.number;
        let spoiled = !sent.bytes.is_empty() && self.rng.chance(5);
        if spoiled {
            crate::devices::flip(&mut sent.bytes, &mut self.rng);
            self.counters.spoiled += 1;
        }
        let (request, buffer) = self.peer.take(volume, sent);
        self.coming.push(Coming {
            request,
            number,
            buffer,
            spoiled,
            link: self.counters.links,
        });
        self.counters.batches += 1;
        Ok(())
    }

    fn acknowledge(&mut self) {
        if let Some((number, credit)) = self.acks.pop_front() {
            let (volume, peer) = (self.disk, PEER);
            self.owner.apply(Event::Replicated {
                volume,
                peer,
                number,
                credit,
            });
        }
    }

    /// What has been answered.
    fn reap(&mut self) -> Result<(), String> {
        let requests: Vec<RequestId> = self.asked.keys().copied().collect();
        for request in requests {
            let Some(answer) = self.owner.answer(request) else {
                continue;
            };
            let (asked, buffer) = self.asked.remove(&request).expect("just listed");
            if let Some(buffer) = buffer {
                self.owner.memory.buffer_remove(buffer);
            }
            answer.map_err(|refusal| format!("a guest is refused: {refusal}"))?;
            match asked {
                Asked::Write { change, fua } => {
                    self.model.ack(change);
                    if fua {
                        self.model.promise(change + 1);
                    }
                }
                Asked::Flush { covers } => {
                    self.model.promise(covers);
                    self.counters.flushes += 1;
                }
            }
        }
        while let Some(first) = self.coming.first() {
            let Some(answer) = self.peer.answer(first.request) else {
                break;
            };
            let coming = self.coming.remove(0);
            self.peer.memory.buffer_remove(coming.buffer);
            match answer {
                Ok(()) if coming.spoiled => {
                    return Err("a batch that was changed on its way is taken".to_owned());
                }
                _ if coming.link != self.counters.links => {}
                Err(Refusal::OutOfRange) if self.gap => {
                    if self.linked {
                        self.cut()?;
                    }
                    return Ok(());
                }
                Err(Refusal::Io) if coming.spoiled => {
                    if self.linked {
                        self.cut()?;
                    }
                    return Ok(());
                }
                Ok(()) if self.replica.is_none() => {}
                Ok(()) => {
                    let credit = self.credit()?;
                    self.acks.push_back((coming.number, credit));
                }
                Err(Refusal::Gone) => {}
                Err(refusal) => return Err(format!("a good batch is refused: {refusal}")),
            }
        }
        if let Some(request) = self.counting
            && let Some(answer) = self.owner.answer(request)
        {
            self.counting = None;
            // The record follows: from now on the peer may take over.
            self.member = answer.is_ok();
            self.counters.counted += u64::from(self.member);
            if self.member {
                at_origin::end(self)?;
            }
        }
        Ok(())
    }

    /// What the peer takes by now.
    fn credit(&mut self) -> Result<Credit, String> {
        let replica = self.replica.ok_or("a batch without a replica")?;
        let credit = self.peer.engine().credit(replica);
        credit.ok_or_else(|| "no replica".to_owned())
    }

    fn name_lineage(&mut self) -> Result<(), String> {
        let lineage = Uuid([self.lineage; 16]);
        let volume = self.disk;
        expect(self.owner.order(Command::NameLineage { volume, lineage }))
    }

    /// The owner comes to the peer: the replica goes on where it ends if all that it has seen is of
    /// the owner's history, else a new one begins.
    fn link(&mut self) -> Result<(), String> {
        let shown = self.owner.show(self.disk).ok_or("no volume")?;
        let found = self.replica.and_then(|id| self.peer.show(id));
        let goes_on = found.as_ref().is_some_and(|it| {
            let seen = it.replica.expect("it is one").seen;
            let before = Uuid([self.lineage - 1; 16]);
            let same = it.lineage == shown.lineage;
            same || it.lineage == before && seen <= shown.recovered_serial
        });
        if let Some(old) = self.replica.filter(|_| !goes_on) {
            if self.member || self.counting.is_some() {
                // It counts by what it had; first the record is changed.
                self.give_up()?;
            }
            let (volume, discard_dirty) = (old, true);
            let detached = self.peer.order(Command::Detach {
                volume,
                discard_dirty,
            });
            expect(detached)?;
            self.replica = None;
            self.counters.restarted += 1;
        } else {
            self.counters.resumed += u64::from(goes_on);
        }
        if self.replica.is_none() {
            self.copies += 1;
        }
        let name = format!("disk@{}", self.copies);
        let volume = self.peer.engine().place(&name);
        let spec = ReplicaSpec {
            name,
            origin: "/images/disk.raw".to_owned(),
            uuid: shown.uuid,
            size_bytes: shown.size_bytes,
            lineage: shown.lineage,
            term: 1,
            destaged: shown.destaged_serial,
            fetched: false,
        };
        let kept = self.peer.order(Command::KeepReplica { volume, spec })?;
        if kept == Err(Refusal::NoRoom) && self.replica.is_none() {
            self.counters.refused += 1;
            return Ok(());
        }
        expect(Ok(kept))?;
        self.reap()?;
        self.replica = Some(volume);
        let have = self.peer.show(volume).and_then(|it| it.replica);
        let (have, volume, peer) = (have.ok_or("no replica")?.end, self.disk, PEER);
        self.owner.sent.clear();
        self.wire.clear();
        self.acks.clear();
        let credit = self.credit()?;
        expect(self.owner.order(Command::StartPeer {
            volume,
            peer,
            have,
            credit,
        }))?;
        self.linked = true;
        self.counters.links += 1;
        self.gap = false;
        Ok(())
    }

    fn count(&mut self) {
        let (volume, peer, request) = (self.disk, PEER, self.owner.request());
        self.counting = Some(request);
        let command = Command::CountPeer { volume, peer };
        self.owner.apply(Event::Admin { request, command });
    }

    /// What is on the link is lost.
    fn cut(&mut self) -> Result<(), String> {
        let counts = self.member || self.counting.is_some();
        self.break_link();
        let (volume, peer) = (self.disk, PEER);
        expect(self.owner.order(Command::StopPeer {
            volume,
            peer,
            counts,
        }))?;
        // A peer that did not count yet is as one that never was.
        if let Some(request) = self.counting.take() {
            self.owner.answer(request);
            let counts = self.member;
            expect(self.owner.order(Command::StopPeer {
                volume,
                peer,
                counts,
            }))?;
        }
        self.counters.broken_links += 1;
        Ok(())
    }

    fn break_link(&mut self) {
        self.linked = false;
        self.wire.clear();
        self.owner.sent.clear();
        self.acks.clear();
    }

    /// The record is changed first: the peer may not take over any more.
    fn give_up(&mut self) -> Result<(), String> {
        self.member = false;
        self.break_link();
        let (volume, peer, counts) = (self.disk, PEER, false);
        expect(self.owner.order(Command::StopPeer {
            volume,
            peer,
            counts,
        }))?;
        if let Some(request) = self.counting.take() {
            self.owner.answer(request);
        }
        self.counters.given_up += 1;
        Ok(())
    }

    fn crash_peer(&mut self) -> Result<(), String> {
        if self.linked {
            self.cut()?;
        }
        let power = self.rng.chance(600);
        self.coming.clear();
        self.peer.crash(power)?;
        if let Some(neighbour) = &mut self.neighbour {
            *neighbour = Neighbour::attach(&mut self.peer)?;
        }
        self.counters.peer_crashes += 1;
        Ok(())
    }

    /// The owner dies and comes back. Its guest starts again, and finds what it must.
    fn crash_owner(&mut self) -> Result<(), String> {
        self.break_link();
        let power = self.rng.chance(600);
        let least = match power {
            true => self.model.promised(),
            false => self.model.acked(),
        };
        self.asked.clear();
        self.counting = None;
        self.owner.crash(power)?;
        self.disk = attach(&mut self.owner, "disk", (0, SECTORS), self.tuning)?;
        self.lineage += 1;
        self.name_lineage()?;
        if self.member {
            let (volume, peer, counts) = (self.disk, PEER, true);
            expect(self.owner.order(Command::StopPeer {
                volume,
                peer,
                counts,
            }))?;
        }
        at_origin::begin_again(self)?;
        self.counters.owner_crashes += 1;
        if self.member {
            self.bring_up()?;
        }
        let found = self.owner.read(self.disk, SECTORS)?;
        self.model.judge(&found, least).map(drop)
    }

    /// Before a guest sees what the owner has recovered, the peer has it as well, or is given up.
    fn bring_up(&mut self) -> Result<(), String> {
        if self.rng.chance(300) {
            return self.give_up();
        }
        self.link()?;
        if !self.member {
            return Ok(());
        }
        self.count();
        let mut short = 0;
        for _ in 0..BRING_UP_MAX {
            let shown = self.owner.engine().copy(self.disk).ok_or("no volume")?;
            short += u32::from(shown.peers.iter().any(|peer| peer.no_room));
            match (self.counting, self.linked) {
                // Its host says that it has no room.
                _ if short > SHORT_MAX => {
                    self.counters.short += 1;
                    return self.give_up();
                }
                (None, true) => return Ok(()),
                (None, false) => return self.give_up(),
                // A peer that does not answer is given up.
                _ if self.gap => return self.give_up(),
                _ => {}
            }
            self.carry()?;
            self.acknowledge();
            self.owner.complete();
            self.peer.complete();
            self.owner.pass(100_000);
            self.peer.pass(100_000);
            self.reap()?;
        }
        Err("a peer never has what was recovered".to_owned())
    }

    /// The owner dies for good. A replica that the record names is taken over; else the owner comes
    /// back once more.
    fn take_over(&mut self) -> Result<(), String> {
        match self.rng.below(4) {
            0 if self.member => self.last_moments()?,
            1 if self.member => self.last_write()?,
            2 | 3 if !self.member => self.count_late()?,
            _ => {}
        }
        if !self.member {
            return match at_origin::come(self)? {
                true => at_origin::lose_owner(self),
                false => self.crash_owner(),
            };
        }
        self.break_link();
        let promised = self.model.promised();
        self.owner.crash(true)?;
        self.coming.clear();
        if self.rng.chance(400) {
            self.peer.crash(true)?;
        }
        let volume = self.replica.ok_or("a member without a replica")?;
        expect(self.peer.order(Command::Freeze { volume, term: 2 }))?;
        let end = |peer: &Machine| peer.show(volume).and_then(|it| it.replica).map(|it| it.end);
        let said = end(&self.peer);
        if self.rng.chance(400) {
            self.peer.crash(true)?;
        }
        if end(&self.peer) != said {
            return Err(format!("a frozen replica ends at {said:?} no more"));
        }
        let name = "disk".to_owned();
        expect(self.peer.order(Command::TakeOver { volume, name }))?;
        if self.rng.chance(400) {
            self.peer.crash(true)?;
        }
        let old = self.disk;
        // The storage is one for both, and the old owner writes no more.
        self.peer.devices.origins[0] = self.owner.devices.origins.remove(0);
        std::mem::swap(&mut self.owner, &mut self.peer);
        self.neighbour = None;
        self.disk = attach(&mut self.owner, "disk", (0, SECTORS), self.tuning)?;
        self.judge_alone(promised)?;
        self.retire(old)?;
        self.counters.taken_over += 1;
        self.counters.with_flushes += u64::from(promised > 0);
        Ok(())
    }

    /// What the owner before has becomes a frozen replica, and a third host fetches it.
    fn retire(&mut self, volume: VolumeId) -> Result<(), String> {
        let (name, term) = ("old".to_owned(), 3);
        let there = &mut self.peer;
        expect(there.order(Command::Retire { volume, name, term }))?;
        let end = |host: &mut Machine, id| host.engine().copy(id).and_then(|it| it.replica);
        let said = end(there, volume).ok_or("it is no replica")?;
        if self.rng.chance(400) {
            there.crash(true)?;
        }
        if end(there, volume) != Some(said) {
            return Err(format!("what was retired is {said:?} no more"));
        }
        let shown = there.show(volume).ok_or("no volume")?;
        let mut third = Machine::new(&mut self.rng, Shape::without_lines(SEGMENTS))?;
        let replica = third.engine().place("third");
        let spec = ReplicaSpec {
            name: "third".to_owned(),
            origin: shown.origin,
            uuid: shown.uuid,
            size_bytes: shown.size_bytes,
            lineage: shown.lineage,
            term,
            destaged: shown.destaged_serial,
            fetched: true,
        };
        let (peer, have, credit) = (PEER, spec.destaged, Credit::ALL);
        let keep = Command::KeepReplica {
            volume: replica,
            spec,
        };
        expect(third.order(keep))?;
        expect(there.order(Command::StartPeer {
            volume,
            peer,
            have,
            credit,
        }))?;
        fetch(there, volume, (&mut third, replica))?;
        third.crash(true)?;
        let found = end(&mut third, replica).ok_or("no replica")?;
        match found.end == said.end {
            true => Ok(()),
            false => Err(format!("{said:?} was fetched as {found:?}")),
        }
    }

    /// The peer was away, and gets some of what it lacks.
    fn last_moments(&mut self) -> Result<(), String> {
        if self.linked {
            self.cut()?;
        }
        for _ in 0..60 {
            self.write();
            self.owner.complete();
            self.owner.pass(100_000);
            self.reap()?;
        }
        self.link()?;
        self.carry_some()
    }

    /// The peer has all, and gets some of a write that takes several batches.
    fn last_write(&mut self) -> Result<(), String> {
        if !self.linked {
            self.link()?;
        }
        for _ in 0..300 {
            self.carry()?;
            self.acknowledge();
            self.owner.complete();
            self.peer.complete();
            self.owner.pass(100_000);
            self.peer.pass(100_000);
            self.reap()?;
        }
        if self.linked && self.asked.len() < 8 {
            let sectors = 8 * self.rng.range(8, 40);
            self.write_sectors(sectors);
        }
        self.carry_some()
    }

    /// Some batches come, and are on media.
    fn carry_some(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.below(4) {
            self.carry()?;
            for _ in 0..40 {
                self.peer.complete();
                self.peer.pass(100_000);
            }
            self.acknowledge();
            self.reap()?;
        }
        Ok(())
    }

    /// A peer begins to count while a destage is under way with what it lacks.
    fn count_late(&mut self) -> Result<(), String> {
        if !self.linked {
            self.link()?;
        }
        for _ in 0..20 {
            self.write();
            self.owner.complete();
            self.reap()?;
        }
        let (volume, request) = (self.disk, self.owner.request());
        let command = Command::Destage { volume };
        self.owner.apply(Event::Admin { request, command });
        for _ in 0..self.rng.below(60) {
            self.owner.complete();
            self.owner.pass(50_000);
        }
        if self.linked && self.counting.is_none() {
            self.count();
        }
        self.reap()?;
        self.carry_some()
    }

    /// The next owner goes on by itself, through losses of power.
    fn judge_alone(&mut self, mut least: usize) -> Result<(), String> {
        (self.replica, self.member) = (None, false);
        self.asked.clear();
        for _ in 0..3 {
            let found = self.owner.read(self.disk, SECTORS)?;
            self.model.judge(&found, least)?;
            for _ in 0..200 {
                match self.rng.below(10) {
                    0..=2 => self.write(),
                    3 => self.flush(),
                    4..=7 => drop(self.owner.complete()),
                    _ => self.owner.pass(3_000_000),
                }
                self.reap()?;
            }
            least = self.model.promised();
            self.asked.clear();
            self.owner.crash(true)?;
            self.disk = attach(&mut self.owner, "disk", (0, SECTORS), self.tuning)?;
        }
        let found = self.owner.read(self.disk, SECTORS)?;
        self.model.judge(&found, least).map(drop)
    }
}

/// Brings all of a frozen replica to another host.
fn fetch(
    there: &mut Machine,
    volume: VolumeId,
    (third, replica): (&mut Machine, VolumeId),
) -> Result<(), String> {
    for _ in 0..BRING_UP_MAX {
        let copy = there.engine().copy(volume).ok_or("no volume")?;
        let peer = copy.peers.first().ok_or("the peer was stopped")?;
        if Some(peer.durable) == copy.replica.map(|it| it.end) {
            return Ok(());
        }
        let Some(sent) = there.sent.pop_front() else {
            if !there.complete() {
                there.pass(1_000_000);
            }
            continue;
        };
        let number = sent.number;
        let (request, buffer) = third.take(replica, sent);
        let answer = loop {
            match third.answer(request) {
                Some(answer) => break answer,
                None if third.complete() => {}
                None => third.pass(1_000_000),
            }
        };
        third.memory.buffer_remove(buffer);
        expect(Ok(answer))?;
        there.apply(Event::Replicated {
            volume,
            peer: PEER,
            number,
            credit: Credit::ALL,
        });
    }
    Err("a frozen replica is never fetched".to_owned())
}
