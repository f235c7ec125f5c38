//! Two hosts, or three: one serves a volume and sends its writes, the others keep replicas.
//!
//! Owns one run: a guest with writes, zeroes and flushes, a link that breaks, daemons that are
//! killed and hosts that lose power on both sides, a peer that is given up and counted again; and
//! at the end the owner dies, the replica is taken over, what the old owner has is retired, and a
//! third host fetches that. With two replicas the owner is lost more than once with its cache: one
//! is taken over, the other one stays a member, and an empty host takes the place. The log of a
//! host is small, and in some runs the peer has a guest of its own, which writes as much as it can.
//! The records of the cluster are a flag here: whether the peer is a member, and whether the image
//! has all that was promised, which the pair changes as the rules for sets say.
//!
//! Always true: both engines are the product's own; nothing depends on anything but the seed. What
//! is judged: a guest finds all that a flush has promised, as the disk was after some number of
//! writes; after a kill, all that was acknowledged; and the next owner the same of flushes. A good
//! batch is never refused, and what the peer has promised is no guest's: its log never holds more
//! than it may.
//! Deliberately absent: real records.

mod at_origin;
mod ends;
pub mod failing;
mod neighbour;
mod peer;

use crate::machine::{Machine, Shape, attach, expect, image, tuning};
use crate::model::Model;
use crate::rng::Rng;
use at_origin::AtOrigin;
use engine::event::{Command, Event, Refusal, ReplicaSpec, Tuning};
use engine::types::{PeerId, RequestId, Uuid, VolumeId};
use failing::Failing;
use neighbour::Neighbour;
use peer::{Answer, Coming, Peer};
use std::collections::BTreeMap;
use std::panic::catch_unwind;

const FIRST: PeerId = PeerId(1);
/// Owners that a run with two copies has.
const HOPS: u32 = 3;
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
    /// Hosts that may keep a replica.
    pub copies: u32,
    /// The cache device of the owner fails once.
    pub fails: bool,
}

impl Options {
    pub fn from_seed(seed: u64) -> Options {
        Options {
            seed,
            steps: 1_500,
            copies: 1,
            fails: false,
        }
    }

    /// Two hosts may keep one, and the owner is lost more than once.
    pub fn with_two(seed: u64) -> Options {
        Options {
            copies: 2,
            ..Options::from_seed(seed)
        }
    }

    /// The cache device of the owner fails, with one copy or two.
    pub fn with_failing(seed: u64) -> Options {
        Options {
            copies: 1 + (seed % 2) as u32,
            fails: true,
            steps: 500,
            ..Options::from_seed(seed)
        }
    }
}

/// Replicas that became the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takeovers {
    pub all: u64,
    /// Read before there was proof.
    pub before_proof: u64,
    /// With flushes that the peer had to have.
    pub with_flushes: u64,
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
    pub takeovers: Takeovers,
    pub destages: u64,
    pub spoiled: u64,
    /// A link that found no room for another copy, and a peer that had none for what it lacks.
    pub refused: u64,
    pub short: u64,
    /// Writes of the peer's own guest.
    pub neighbour: u64,
    pub failing: Failing,
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
        self.takeovers.all += other.takeovers.all;
        self.takeovers.before_proof += other.takeovers.before_proof;
        self.takeovers.with_flushes += other.takeovers.with_flushes;
        self.destages += other.destages;
        self.spoiled += other.spoiled;
        self.refused += other.refused;
        self.short += other.short;
        self.neighbour += other.neighbour;
        self.failing.add(&other.failing);
    }
}

/// A request of the guest.
#[derive(Clone, Copy)]
enum Asked {
    Write { change: usize, fua: bool },
    Flush { covers: usize },
}

struct Pair {
    rng: Rng,
    owner: Machine,
    peers: Vec<Peer>,
    disk: VolumeId,
    /// Names of replicas are used once.
    copies: u32,
    lineage: u8,
    /// Of the record that gave the disk to its owner.
    term: u64,
    asked: BTreeMap<RequestId, (Asked, Option<engine::types::BufferId>)>,
    model: Model,
    counters: Counters,
    tuning: Tuning,
    at_origin: AtOrigin,
    recalls: Vec<failing::Recall>,
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
    let mut pair = Pair::new(*options)?;
    for step in 0..options.steps {
        pair.step().map_err(|what| format!("step {step}: {what}"))?;
        if options.fails && step == options.steps / 2 {
            let over = failing::run(&mut pair);
            if over.map_err(|what| format!("a device fails: {what}"))? {
                return Ok(pair.counters);
            }
        }
        let (hop, last) = (options.steps / HOPS, step + 1 == options.steps);
        if options.copies > 1 && !options.fails && (step + 1) % hop == 0 && !last {
            ends::go_over(&mut pair)
                .map_err(|what| format!("the takeover after step {step}: {what}"))?;
        }
    }
    ends::take_over(&mut pair).map_err(|what| format!("the takeover: {what}"))?;
    Ok(pair.counters)
}

impl Pair {
    fn new(
        Options {
            seed,
            copies,
            fails,
            ..
        }: Options,
    ) -> Result<Pair, String> {
        let mut rng = Rng::new(seed);
        let mut owner = Machine::new(&mut rng, Shape::without_lines(SEGMENTS))?;
        let segments = rng.pick(&[SEGMENTS_MIN, SEGMENTS, SEGMENTS_MAX]);
        let mut peer = Peer::new(&mut rng, FIRST, segments)?;
        owner.devices.origins.push(image(5, SECTORS));
        let tuning = tuning(&mut rng);
        if rng.chance(300) {
            peer.neighbour = Some(Neighbour::attach(&mut peer.host)?);
        }
        let flushes = rng.pick(&[20, 300, 1000]);
        let mut peers = vec![peer];
        let at_origin = match copies {
            1 if !fails => AtOrigin::of_seed(seed, tuning.destage),
            _ => AtOrigin::off(),
        };
        for id in 2..=copies {
            peers.push(Peer::new(&mut rng, PeerId(id), SEGMENTS)?);
        }
        let mut pair = Pair {
            rng,
            owner,
            peers,
            disk: VolumeId(0),
            copies: 0,
            lineage: 1,
            term: 1,
            asked: BTreeMap::new(),
            model: Model::new(SECTORS),
            counters: Counters::default(),
            tuning,
            at_origin,
            recalls: Vec::new(),
            flushes,
        };
        pair.disk = attach(&mut pair.owner, "disk", (0, SECTORS), tuning)?;
        pair.name_lineage()?;
        Ok(pair)
    }

    /// One of the hosts that may keep a replica.
    fn any(&mut self) -> usize {
        match self.peers.len() {
            1 => 0,
            all => self.rng.below(all as u64) as usize,
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let at = self.any();
        let Peer { linked, member, .. } = self.peers[at];
        let (counting, counts) = (self.peers[at].counting.is_some(), self.peers[at].counts());
        match self.rng.below(1000) {
            0..=199 => self.write(),
            200..=239 if self.rng.chance(self.flushes) => self.flush(),
            240..=499 => drop(self.owner.complete()),
            500..=699 => drop(self.peers[at].host.complete()),
            700..=799 => self.carry(at)?,
            800..=859 => self.acknowledge(at),
            860..=909 => {
                let nanos = self.rng.pick(&[10_000, 1_000_000, 7_000_000, 150_000_000]);
                self.pass(nanos);
            }
            910..=949 if !linked => self.link(at)?,
            950..=969 if linked && !member && !counting => self.count(at),
            970..=973 if linked => self.cut(at)?,
            974..=975 if counts => self.give_up(at)?,
            976..=977 => self.crash_owner()?,
            978..=979 => self.crash_peer(at)?,
            980..=989 => {
                let volume = self.disk;
                let request = self.owner.request();
                let command = Command::Destage { volume };
                self.owner.apply(Event::Admin { request, command });
                self.counters.destages += 1;
            }
            _ => self.write_beside(at),
        }
        self.reap()?;
        at_origin::step(self)?;
        match self.rng.chance(100) {
            true => self.judge_room(at),
            false => Ok(()),
        }
    }

    fn pass(&mut self, nanos: u64) {
        self.owner.pass(nanos);
        self.peers.iter_mut().for_each(|it| it.host.pass(nanos));
    }

    fn write_beside(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if let Some(neighbour) = &mut peer.neighbour {
            let writes = neighbour.write(&mut peer.host, &mut self.rng);
            self.counters.neighbour += writes;
        }
    }

    /// No more lives in the log of the peer than may. A write of a guest may cut an older one, and
    /// then takes some blocks more than it was admitted with.
    fn judge_room(&mut self, at: usize) -> Result<(), String> {
        let peer = &mut self.peers[at];
        let shown = peer.host.engine().snapshot();
        let (live, max) = (shown.live_bytes / 4096, shown.dirty_bytes_max / 4096);
        if live <= max {
            peer.recovered = 0;
        }
        match live <= max.max(peer.recovered) + CUTS_MAX {
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
    fn carry(&mut self, at: usize) -> Result<(), String> {
        for sent in self.owner.sent.drain(..) {
            let peer = self.peers.iter_mut().find(|it| it.id == sent.peer);
            peer.ok_or("a batch for no host")?.wire.push_back(sent);
        }
        let peer = &mut self.peers[at];
        let Some(mut sent) = peer.wire.pop_front().filter(|_| peer.linked) else {
            return Ok(());
        };
        if self.rng.chance(3) {
            peer.gap = true;
            return Ok(());
        }
        let volume = peer.replica.ok_or("a link without a replica")?;
        let number = sent.number;
        let spoiled = !sent.bytes.is_empty() && self.rng.chance(5);
        if spoiled {
            crate::devices::flip(&mut sent.bytes, &mut self.rng);
            self.counters.spoiled += 1;
        }
        let (request, buffer) = peer.host.take(volume, sent);
        peer.coming.push(Coming {
            request,
            number,
            buffer,
            spoiled,
            link: peer.link,
        });
        self.counters.batches += 1;
        Ok(())
    }

    fn acknowledge(&mut self, at: usize) {
        let (volume, peer) = (self.disk, self.peers[at].id);
        if let Some((number, credit)) = self.peers[at].acks.pop_front() {
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
        (0..self.peers.len()).try_for_each(|at| self.reap_peer(at))
    }

    fn reap_peer(&mut self, at: usize) -> Result<(), String> {
        while let Some(answer) = self.peers[at].answered()? {
            if let Answer::Cut = answer {
                if self.peers[at].linked {
                    self.cut(at)?;
                }
                return Ok(());
            }
        }
        let waits = self.is_behind_the_image(at);
        let peer = &mut self.peers[at];
        if let Some(request) = peer.counting.filter(|_| !waits)
            && let Some(answer) = self.owner.answer(request)
        {
            peer.counting = None;
            // The record follows: from now on the peer may take over.
            peer.member = answer.is_ok();
            self.counters.counted += u64::from(peer.member);
            if peer.member {
                at_origin::end(self)?;
            }
        }
        Ok(())
    }

    /// The log relies on the image for what this peer has not: no record names it before it has.
    fn is_behind_the_image(&mut self, at: usize) -> bool {
        let shown = self.owner.engine().copy(self.disk);
        let id = self.peers[at].id;
        shown.is_some_and(|shown| {
            let mut peers = shown.peers.iter();
            peers.any(|it| it.peer == id && it.durable < shown.destaged)
        })
    }

    fn name_lineage(&mut self) -> Result<(), String> {
        let lineage = Uuid([self.lineage; 16]);
        let volume = self.disk;
        expect(self.owner.order(Command::NameLineage { volume, lineage }))
    }

    /// The owner comes to the peer: the replica goes on where it ends if all that it has seen is of
    /// the owner's history, else a new one begins.
    fn link(&mut self, at: usize) -> Result<(), String> {
        let shown = self.owner.show(self.disk).ok_or("no volume")?;
        let of = &mut self.peers[at];
        let found = of.replica.and_then(|id| of.host.show(id));
        let goes_on = found.as_ref().is_some_and(|it| {
            let seen = it.replica.expect("it is one").seen;
            let before = Uuid([self.lineage - 1; 16]);
            let same = it.lineage == shown.lineage;
            same || it.lineage == before && seen <= shown.recovered_serial
        });
        match goes_on {
            true => self.counters.resumed += 1,
            false => self.forget(at)?,
        }
        let of = &mut self.peers[at];
        if of.replica.is_none() {
            self.copies += 1;
            of.copy = self.copies;
        }
        let name = format!("disk@{}", of.copy);
        let volume = of.host.engine().place(&name);
        let spec = ReplicaSpec {
            name,
            origin: "/images/disk.raw".to_owned(),
            uuid: shown.uuid,
            size_bytes: shown.size_bytes,
            lineage: shown.lineage,
            term: self.term,
            destaged: shown.destaged_serial,
            fetched: false,
        };
        let kept = of.host.order(Command::KeepReplica { volume, spec })?;
        if kept == Err(Refusal::NoRoom) && of.replica.is_none() {
            self.counters.refused += 1;
            return Ok(());
        }
        if kept == Err(Refusal::Gone) && of.replica.is_some() {
            // It has a part of a delta of another owner: the next link begins anew.
            return self.forget(at);
        }
        expect(Ok(kept))?;
        self.reap()?;
        let of = &mut self.peers[at];
        of.replica = Some(volume);
        let have = of.host.show(volume).and_then(|it| it.replica);
        let (have, volume, peer) = (have.ok_or("no replica")?.end, self.disk, of.id);
        of.break_link(&mut self.owner);
        let credit = of.credit()?;
        expect(self.owner.order(Command::StartPeer {
            volume,
            peer,
            have,
            credit,
        }))?;
        self.counters.links += 1;
        (of.linked, of.link, of.gap) = (true, self.counters.links, false);
        Ok(())
    }

    /// The replica is given up, and another one may be made.
    fn forget(&mut self, at: usize) -> Result<(), String> {
        let Some(volume) = self.peers[at].replica.take() else {
            return Ok(());
        };
        if self.peers[at].counts() {
            // It counts by what it had; first the record is changed.
            self.give_up(at)?;
        }
        let discard_dirty = true;
        let host = &mut self.peers[at].host;
        expect(host.order(Command::Detach {
            volume,
            discard_dirty,
        }))?;
        self.counters.restarted += 1;
        Ok(())
    }

    fn count(&mut self, at: usize) {
        let (volume, peer, request) = (self.disk, self.peers[at].id, self.owner.request());
        self.peers[at].counting = Some(request);
        let command = Command::CountPeer { volume, peer };
        self.owner.apply(Event::Admin { request, command });
    }

    fn stop_peer(&mut self, at: usize, counts: bool) -> Result<(), String> {
        let (volume, peer) = (self.disk, self.peers[at].id);
        expect(self.owner.order(Command::StopPeer {
            volume,
            peer,
            counts,
        }))
    }

    fn break_link(&mut self, at: usize) {
        self.peers[at].break_link(&mut self.owner);
    }

    fn cut(&mut self, at: usize) -> Result<(), String> {
        let counts = self.peers[at].counts();
        self.break_link(at);
        self.stop_peer(at, counts)?;
        // A peer that did not count yet is as one that never was.
        if let Some(request) = self.peers[at].counting.take() {
            self.owner.answer(request);
            self.stop_peer(at, self.peers[at].member)?;
        }
        self.counters.broken_links += 1;
        Ok(())
    }

    /// The record is changed first: the peer may not take over any more.
    fn give_up(&mut self, at: usize) -> Result<(), String> {
        self.peers[at].member = false;
        self.break_link(at);
        self.stop_peer(at, false)?;
        if let Some(request) = self.peers[at].counting.take() {
            self.owner.answer(request);
        }
        self.counters.given_up += 1;
        Ok(())
    }

    fn crash_peer(&mut self, at: usize) -> Result<(), String> {
        if self.peers[at].linked {
            self.cut(at)?;
        }
        let power = self.rng.chance(600);
        let peer = &mut self.peers[at];
        peer.coming.clear();
        peer.host.crash(power)?;
        if let Some(neighbour) = &mut peer.neighbour {
            *neighbour = Neighbour::attach(&mut peer.host)?;
        }
        peer.recovered = peer.host.engine().snapshot().live_bytes / 4096;
        self.counters.peer_crashes += 1;
        Ok(())
    }

    /// The owner dies and comes back. Its guest starts again, and finds what it must.
    fn crash_owner(&mut self) -> Result<(), String> {
        let all = 0..self.peers.len();
        all.for_each(|at| self.break_link(at));
        let power = self.rng.chance(600);
        let least = match power {
            true => self.model.promised(),
            false => self.model.acked(),
        };
        self.asked.clear();
        self.peers.iter_mut().for_each(|it| it.counting = None);
        self.owner.crash(power)?;
        self.disk = attach(&mut self.owner, "disk", (0, SECTORS), self.tuning)?;
        self.counters.owner_crashes += 1;
        self.begin_again()?;
        let found = self.owner.read(self.disk, SECTORS)?;
        self.model.judge(&found, least).map(drop)
    }

    /// The disk is opened anew, and those that count must have what it has.
    fn begin_again(&mut self) -> Result<(), String> {
        self.lineage += 1;
        self.name_lineage()?;
        let members = (0..self.peers.len()).filter(|at| self.peers[*at].member);
        let members: Vec<usize> = members.collect();
        members
            .iter()
            .try_for_each(|at| self.stop_peer(*at, true))?;
        at_origin::begin_again(self)?;
        members.into_iter().try_for_each(|at| self.bring_up(at))
    }

    /// Nothing fails: a batch comes and is acknowledged, and devices do their work.
    fn advance(&mut self, at: usize) -> Result<(), String> {
        self.carry(at)?;
        self.acknowledge(at);
        self.owner.complete();
        self.peers[at].host.complete();
        self.pass(100_000);
        self.reap()
    }

    /// Before a guest sees what the owner has recovered, the peer has it as well, or is given up.
    fn bring_up(&mut self, at: usize) -> Result<(), String> {
        if self.rng.chance(300) {
            return self.give_up(at);
        }
        self.link(at)?;
        if !self.peers[at].member {
            return Ok(());
        }
        self.count(at);
        let mut short = 0;
        for _ in 0..BRING_UP_MAX {
            let shown = self.owner.engine().copy(self.disk).ok_or("no volume")?;
            let peer = &self.peers[at];
            let mut peers = shown.peers.iter();
            short += u32::from(peers.any(|it| it.peer == peer.id && it.no_room));
            match (peer.counting, peer.linked) {
                // Its host says that it has no room.
                _ if short > SHORT_MAX => {
                    self.counters.short += 1;
                    return self.give_up(at);
                }
                (None, true) => return Ok(()),
                (None, false) => return self.give_up(at),
                // A peer that does not answer is given up.
                _ if peer.gap => return self.give_up(at),
                _ => {}
            }
            self.advance(at)?;
        }
        Err("a peer never has what was recovered".to_owned())
    }

    /// The next owner goes on by itself, through losses of power.
    fn judge_alone(&mut self, mut least: usize) -> Result<(), String> {
        self.peers.clear();
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
