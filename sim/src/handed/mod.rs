//! A volume that goes from host to host and back while its guest goes on: what the host before has
//! kept clean of the image is asked for, and never where the image has something else by now.
//!
//! Owns one run: a guest that writes, reads and flushes all the time, destages, two hosts of which
//! one serves the volume and the other keeps a copy and what is left of its own time; hand-overs
//! with dirty data, some in the middle of a destage; daemons that are killed and hosts that lose
//! power on both sides. What is asked of the other host takes any time, or does not get there.
//! The records of the cluster are a number here, which grows with each hand-over.
//!
//! ```text
//! serves ─▶ copy counts ─▶ guest waits, all is flushed ─▶ deposed, retired here; frozen, taken
//!  ▲  ▲                                                   over, attached there
//!  │  └────────────────────── with proof ──────────────────────────┤
//!  └── proved ◀── serves without the right to write the image ◀────┘
//! ```
//!
//! Always true: both engines are the product's own; nothing depends on anything but the seed. What
//! is judged: each read, sector by sector; after a kill, all that was acknowledged, and after a
//! loss of power, all that was flushed; at the end the whole disk, and the image when all is
//! destaged. A host that has let go of the image writes nothing to it.
//! Deliberately absent: links that break and go on, peers that are given up, and owners that are
//! lost; the [pair](crate::pair) has them.

mod asks;
mod guest;
mod hand_over;
mod link;

use crate::devices::Origin;
use crate::machine::{Machine, Shape, image, tuning};
use crate::model::stamp_of;
use crate::rng::Rng;
use asks::Asks;
use engine::event::{Admission, Command, Event, Tuning};
use engine::types::VolumeId;
use guest::Guest;
use link::Link;
use std::panic::catch_unwind;

/// Of the disk, which ends within a block.
const SECTORS: u64 = 8 * 512 + 4;
/// Of each log: clean blocks have room beside what is dirty.
const SEGMENTS: u32 = 44;
/// Reads under way while all of the disk is read.
const PIECES_MAX: usize = 3;
/// A host forgets what is left there of a volume that went so long ago.
const LEFT_NS: u64 = 3_600_000_000_000;
/// No request hangs for as long as a part of that.
const REST_PARTS: u64 = 30;
/// Rounds in which something must come to its end while nothing fails.
const ROUNDS_MAX: u32 = 40_000;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub hand_overs: u32,
    /// Between two of them.
    pub steps: u32,
}

impl Options {
    pub fn from_seed(seed: u64) -> Options {
        Options {
            seed,
            hand_overs: 6,
            steps: 240,
        }
    }
}

/// What happened. A run in which something never does proves nothing about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub writes: u64,
    pub flushes: u64,
    pub reads: u64,
    pub destages: u64,
    pub hand_overs: u64,
    /// Of these: with a destage that has written a part of the image.
    pub in_destage: u64,
    /// And those after which the volume was served without the right to write the image.
    pub unproved: u64,
    /// Reads that the other host has answered with what is left there.
    pub served: u64,
    /// Of these, those that the owner has heard of; and those that gave nothing.
    pub remote: u64,
    pub refused: u64,
    pub owner_crashes: u64,
    /// Of these: the owner asks the other host once more.
    pub asks_again: u64,
    pub peer_crashes: u64,
    /// Times in which nothing happens for so long that the other host forgets what it had.
    pub rests: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.reads += other.reads;
        self.destages += other.destages;
        self.hand_overs += other.hand_overs;
        self.in_destage += other.in_destage;
        self.unproved += other.unproved;
        self.served += other.served;
        self.remote += other.remote;
        self.refused += other.refused;
        self.owner_crashes += other.owner_crashes;
        self.asks_again += other.asks_again;
        self.peer_crashes += other.peer_crashes;
        self.rests += other.rests;
    }
}

struct Handed {
    rng: Rng,
    owner: Machine,
    peer: Machine,
    disk: VolumeId,
    /// The owner may write the image.
    proved: bool,
    /// At the peer: what it has kept dirty of its own time.
    retired: Option<VolumeId>,
    link: Link,
    guest: Guest,
    asks: Asks,
    /// How often something that was asked for goes on, and how often the guest writes, both in a
    /// thousand.
    pace: u64,
    busy: u64,
    tuning: Tuning,
    /// The number of the record.
    term: u64,
    lineages: u128,
    counters: Counters,
}

/// One run. The error is what was noticed, and when; an assert of the engine is one.
pub fn run(options: &Options) -> Result<Counters, String> {
    let driven = catch_unwind(|| drive(options));
    driven.unwrap_or_else(|payload| {
        let words = payload.downcast_ref::<String>().cloned();
        let words = words.or_else(|| payload.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        Err(words.unwrap_or_else(|| "a panic without words".to_owned()))
    })
}

fn drive(options: &Options) -> Result<Counters, String> {
    let mut handed = Handed::new(options.seed)?;
    for stay in 0..=options.hand_overs {
        for step in 0..options.steps {
            let done = handed.step();
            done.map_err(|what| format!("stay {stay}, step {step}: {what}"))?;
        }
        let left = match stay == options.hand_overs {
            false => handed.hand_over(),
            true => handed.end(),
        };
        left.map_err(|what| format!("the end of stay {stay}: {what}"))?;
    }
    Ok(handed.counters)
}

impl Handed {
    fn new(seed: u64) -> Result<Handed, String> {
        let mut rng = Rng::new(seed);
        let shape = Shape {
            segments: SEGMENTS,
            ram_blocks: rng.pick(&[16, 64, 256]),
            index_bytes_max: 1 << 20,
        };
        let mut owner = Machine::new(&mut rng, shape)?;
        let mut peer = Machine::new(&mut rng, shape)?;
        owner.devices.origins.push(image(5, SECTORS));
        // The disk has the first place at both, and the image is where it is served.
        peer.devices.origins.push(Origin::default());
        let tuning = Tuning {
            admission: rng.pick(&[Admission::Reuse, Admission::All, Admission::All]),
            ..tuning(&mut rng)
        };
        let mut handed = Handed {
            rng,
            owner,
            peer,
            disk: VolumeId(0),
            proved: true,
            retired: None,
            link: Link::default(),
            guest: Guest::new(tuning.write_cache),
            asks: Asks::default(),
            pace: 0,
            busy: 0,
            tuning,
            term: 1,
            lineages: 0,
            counters: Counters::default(),
        };
        handed.begin_stay();
        handed.attach(false, false)?;
        Ok(handed)
    }

    /// Habits of the time until the next hand-over.
    fn begin_stay(&mut self) {
        self.pace = self.rng.pick(&[1_000, 500, 30]);
        self.busy = self.rng.pick(&[1_000, 1_000, 300, 60]);
        match self.rng.below(10) {
            0..=1 => self.guest.move_windows(&mut self.rng),
            2..=6 => self.guest.write_what_it_read(),
            _ => {}
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let (owner, disk) = (&mut self.owner, self.disk);
        match self.rng.below(1000) {
            0..=179 if self.rng.chance(self.busy) => {
                self.guest.write(owner, disk, &mut self.rng);
            }
            180..=199 => self.guest.flush(owner, disk),
            200..=359 => {
                self.guest.read(owner, disk, &mut self.rng);
            }
            360..=559 => self.complete(),
            560..=689 => self.carry(),
            690..=749 => self.acknowledge(),
            750..=889 if self.rng.chance(self.pace) => self.move_asks()?,
            890..=939 => self.pass(),
            940..=949 => self.destage(),
            950..=969 if !self.link.is_there() => self.link()?,
            970..=979 if self.link.is_there() && !self.link.is_counting() => self.count(),
            980..=984 => self.drop_retired()?,
            985 => self.guest.move_windows(&mut self.rng),
            990 => self.crash_owner()?,
            991 if self.rng.chance(600) => self.crash_peer()?,
            992..=996 => self.prove()?,
            997 if self.rng.chance(60) => self.rest(),
            _ => {}
        }
        self.reap(false)
    }

    /// Some requests to devices end.
    fn complete(&mut self) {
        for _ in 0..self.rng.range(1, 6) {
            self.owner.complete();
            self.peer.complete();
        }
    }

    fn pass(&mut self) {
        let nanos = self.rng.pick(&[10_000, 1_000_000, 7_000_000, 150_000_000]);
        self.owner.pass(nanos);
        self.peer.pass(nanos);
    }

    /// What is left at the other host becomes too old. Devices answer all the time.
    fn rest(&mut self) {
        for _ in 0..REST_PARTS {
            (0..40).for_each(|_| self.complete());
            self.owner.pass(LEFT_NS / REST_PARTS);
            self.peer.pass(LEFT_NS / REST_PARTS);
        }
        self.counters.rests += 1;
    }

    fn destage(&mut self) {
        let (volume, request) = (self.disk, self.owner.request());
        let command = Command::Destage { volume };
        self.owner.apply(Event::Admin { request, command });
        self.counters.destages += 1;
    }

    fn reap(&mut self, leaves: bool) -> Result<(), String> {
        self.guest
            .reap(&mut self.owner, &mut self.counters, leaves)?;
        self.reap_link()
    }

    /// A little of all that is under way goes on, and nothing new begins.
    fn turn(&mut self, leaves: bool) -> Result<(), String> {
        self.carry();
        self.acknowledge();
        self.move_asks()?;
        self.complete();
        self.owner.pass(100_000);
        self.peer.pass(100_000);
        self.reap(leaves)
    }

    /// Nothing new begins until this holds.
    fn until(&mut self, what: &str, holds: impl Fn(&mut Handed) -> bool) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if holds(self) {
                return Ok(());
            }
            self.turn(false)?;
        }
        Err(format!("it never comes to this: {what}"))
    }

    /// All of the disk, some pieces at a time.
    fn read_all(&mut self) -> Result<Vec<u8>, String> {
        let (mut found, mut sector) = (Vec::new(), 0);
        while sector < SECTORS {
            let mut pieces = Vec::new();
            while sector < SECTORS && pieces.len() < PIECES_MAX {
                let sectors = (8 * self.rng.range(1, 9)).min(SECTORS - sector);
                pieces.push(self.owner.begin_read(self.disk, sector, sectors));
                sector += sectors;
            }
            for (request, buffer) in pieces {
                let answer = (0..ROUNDS_MAX).find_map(|_| match self.owner.answer(request) {
                    Some(answer) => Some(Ok(answer)),
                    None => self.turn(false).err().map(Err),
                });
                let answer = answer.ok_or("a read is never answered")??;
                answer.map_err(|refusal| format!("not read: {refusal}"))?;
                found.extend(self.owner.memory.buffer_remove(buffer));
            }
        }
        Ok(found)
    }

    /// Everything comes to its end, and is where it belongs.
    fn end(&mut self) -> Result<(), String> {
        // What is dirty may need its room.
        self.prove()?;
        self.until("the guest has all answers", |it| it.guest.is_idle())?;
        self.judge_disk()?;
        self.bring_home()?;
        self.judge_disk()?;
        let image = self.owner.devices.origins[0].image.landed();
        self.judge_bytes(image)
            .map_err(|what| format!("the image: {what}"))?;
        self.judge_image_of_peer()
    }

    fn judge_disk(&mut self) -> Result<(), String> {
        let found = self.read_all()?;
        self.judge_bytes(&found)
    }

    /// All of the disk is exactly what was written.
    fn judge_bytes(&self, found: &[u8]) -> Result<(), String> {
        let wanted = self.guest.model.newest();
        if found.len() != wanted.len() * 512 {
            return Err(format!("{} bytes are there", found.len()));
        }
        let found = found.chunks(512).map(stamp_of);
        let mut both = found.zip(wanted).enumerate();
        match both.find(|(_, (found, wanted))| *found != Some(*wanted)) {
            None => Ok(()),
            Some((sector, (found, wanted))) => Err(format!(
                "sector {sector} has {found:?}, and {wanted} was written"
            )),
        }
    }

    /// Who does not serve the volume has written nothing.
    fn judge_image_of_peer(&self) -> Result<(), String> {
        let idle = &self.peer.devices.origins[0];
        let disks = [&idle.image, &idle.journal, &idle.ledger];
        match disks.iter().all(|it| it.size() == 0) {
            true => Ok(()),
            false => Err("a host writes an image that it has let go of".to_owned()),
        }
    }
}
