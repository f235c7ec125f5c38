//! Slots on four volumes of one host, and what all hosts counted meanwhile.
//!
//! Owns the volumes, the connections of the guests, and the looks at counters. Always true: a slot
//! is looked at from before its first request until its closing flush is answered, and asks for no
//! more than one volume has room for; nothing of the slot before goes on in it; each log was
//! written around once before anything is measured, and each volume has content. Deliberately
//! absent: what follows from the figures.

use super::load::Load;
use super::{Limited, Options};
use crate::bench::hosts::{Hosts, wait_for};
use crate::bench::micro::peer::device_bytes;
use crate::bench::own_process::number;
use crate::bench::pipe::Pipe;
use crate::bench::rounds;
use crate::bench::wire;
use crate::bench::work::{Carrier, Tally, Work};
use crate::client::Client;
use crate::in_process::make_image;
use crate::interrupt::Interrupt;
use crate::place::Place;
use host::error::{Error, Result, cause};
use host::sys;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// RAM of each host: less for reads than a volume has, so that the device is asked.
pub const SIZES: &str = "ram = \"16MiB\"\nstage = \"64MiB\"";
/// The daemons: whose guest it is, and who keep the copies.
const OWNER: usize = 0;
const MEMBERS: [usize; 2] = [1, 2];
const HOSTS: [usize; 3] = [OWNER, 1, 2];
/// The volumes, and their slots in a round; the last slot is that of the first volume again.
const NAMES: [&str; 4] = ["alone", "copied", "twice", "through"];
pub const ALONE: usize = 0;
pub const COPIED: usize = 1;
pub const TWICE: usize = 2;
pub const THROUGH: usize = 3;
pub const AGAIN: usize = 4;
/// Volumes with copies.
const WITH_COPIES: [usize; 2] = [COPIED, TWICE];
/// Of the log each volume has so much for itself, or it would be destaged for want of room. With a
/// copy versions that were overwritten stay dirty, and are destaged in the end.
const SHARE_PER_SIZE: u64 = 9;
/// At most half of the log is for shares, and three volumes have one; a small cache has less log.
pub const CACHE_PER_SIZE: u64 = 96;
/// Of what a volume has written, links may say so much beside it.
const IDLE_WIRE_BYTES: u64 = 256 << 10;
const WAIT_MAX: Duration = Duration::from_secs(600);

/// What came of one slot.
pub struct Slot {
    tally: Tally,
    took: Duration,
    counted: Counted,
    /// Each volume had its copies, before and after.
    full: bool,
}

/// Alone, with a copy, with two, write-through, alone again.
pub struct Round([Slot; 5]);

/// Counters of one moment, or how they have grown.
#[derive(Clone, Copy, Default)]
struct Counted {
    requests: u64,
    writes: u64,
    write_bytes: u64,
    bytes: u64,
    held_writes: u64,
    origin_write_bytes: u64,
    /// Writes of the volumes with one copy and with two that all members have; told when a slot has
    /// settled.
    copied: [u64; 2],
    /// From the owner to the members, and back.
    wire: Option<(u64, u64)>,
    /// Of each host: time on processors, and bytes that the kernel has written for it.
    cpu: [Duration; 3],
    device: [Option<u64>; 3],
}

/// The guests of one load: of each volume its work and its connections.
pub struct Guests([(Vec<Work>, Vec<Pipe>); 4]);

pub struct Stage {
    hosts: Hosts,
    lasts: Duration,
    size_bytes: u64,
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench replicas: {}", cause(&error)))
}

/// Their images, and their tables in the configuration of each host.
pub fn volumes(place: &Place, options: &Options) -> Result<String> {
    let mut text = String::new();
    let room = (SHARE_PER_SIZE * options.size_bytes) >> 20;
    for (at, name) in NAMES.into_iter().enumerate() {
        // A destage is for storage elsewhere, and takes nothing from the device of the cache; what
        // is written through is as slow as that device.
        let image = match at {
            THROUGH => place.image(name),
            _ => place.stage_dir().join(format!("{name}.img")),
        };
        make_image(&image, options.size_bytes)?;
        text += &format!(
            "[[volume]]\nname = \"{name}\"\norigin = {image:?}\nformat = \"raw\"\nexport = \
             [\"nbd\"]\n"
        );
        text += &match at {
            THROUGH => "policy = \"write-through\"\n".to_owned(),
            _ => format!(
                "policy = \"write-back\"\ndestage-after = \"never\"\nreplicas = {}\ndirty-limit = \
                 \"{room}MiB\"\nshare = {{ min = \"{room}MiB\" }}\nflow = {{ dirty-bytes = \
                 \"90%\" }}\n",
                WITH_COPIES
                    .iter()
                    .position(|it| *it == at)
                    .map_or(0, |at| at + 1)
            ),
        };
        if at == COPIED {
            text += "place = [\"host-b\"]\n";
        }
    }
    Ok(text)
}

impl Stage {
    pub fn new(hosts: Hosts, options: &Options, interrupt: &Interrupt) -> Result<Stage> {
        let stage = Stage {
            hosts,
            lasts: Duration::from_secs_f64(options.seconds),
            size_bytes: options.size_bytes,
        };
        for at in [ALONE, THROUGH, COPIED, TWICE] {
            stage.write(at, options.size_bytes)?;
        }
        for at in WITH_COPIES {
            stage.hosts.wait_until_full(OWNER, NAMES[at])?;
        }
        // The first lap of a log writes zeroes ahead, later ones do not.
        for _ in 0..options.cache_bytes / options.size_bytes {
            interrupt.check()?;
            stage.write(TWICE, options.size_bytes)?;
        }
        Ok(stage)
    }

    /// From now on the devices are as slow as it says.
    pub fn limit(&self, limited: &mut Limited) -> Result<()> {
        let pids = HOSTS.map(|at| self.hosts.served(at).pid());
        pids.into_iter().try_for_each(|pid| limited.hold(pid))
    }

    /// So many bytes, one after the other, and a flush.
    fn write(&self, at: usize, bytes: u64) -> Result<()> {
        let mut works = Load::Fio.works(self.size_bytes);
        let mut pipes = self.pipes(at, works.len())?;
        bound(&mut works, bytes);
        carry(&mut works, &mut pipes, WAIT_MAX)?;
        self.client(at)?.flush().map_err(failed)
    }

    fn pipes(&self, at: usize, count: usize) -> Result<Vec<Pipe>> {
        let socket = self.hosts.socket(OWNER);
        let pipes = (0..count).map(|_| Pipe::connect(&socket, NAMES[at], 1));
        pipes.collect::<std::io::Result<_>>().map_err(failed)
    }

    fn client(&self, at: usize) -> Result<Client> {
        Client::connect(&self.hosts.socket(OWNER), NAMES[at]).map_err(failed)
    }

    pub fn guests(&self, load: Load) -> Result<Guests> {
        let of = |at: usize| -> Result<(Vec<Work>, Vec<Pipe>)> {
            let works = load.works(self.size_bytes);
            let pipes = self.pipes(at, works.len())?;
            Ok((works, pipes))
        };
        Ok(Guests([of(ALONE)?, of(COPIED)?, of(TWICE)?, of(THROUGH)?]))
    }

    pub fn round(&self, guests: &mut Guests, round: u32, interrupt: &Interrupt) -> Result<Round> {
        let mut slots = [None, None, None, None, None];
        for step in 0..slots.len() {
            interrupt.check()?;
            let slot = (round as usize + step) % slots.len();
            let at = if slot == AGAIN { ALONE } else { slot };
            slots[slot] = Some(self.slot(&mut guests.0[at], at)?);
        }
        Ok(Round(slots.map(|slot| slot.expect("each has its turn"))))
    }

    fn slot(&self, (works, pipes): &mut (Vec<Work>, Vec<Pipe>), at: usize) -> Result<Slot> {
        let mut flusher = self.client(at)?;
        let is_full = || -> Result<bool> {
            let mut full = true;
            for at in WITH_COPIES {
                full &= self.hosts.is_full(OWNER, NAMES[at])?;
            }
            Ok(full)
        };
        let copied = self.settle()?;
        let (full, before) = (is_full()?, self.count(at)?);
        // What is dirty stays below what a volume may have, however fast the machine is, and
        // nothing is overwritten before it was sent, which then would not be.
        bound(works, self.size_bytes);
        let begun = Instant::now();
        let tally = carry(works, pipes, self.lasts)?;
        flusher.flush().map_err(failed)?;
        let took = begun.elapsed();
        let mut counted = self.count(at)?.since(before);
        let full = full && is_full()?;
        let settled = self.settle()?;
        counted.copied = [0, 1].map(|of| settled[of].saturating_sub(copied[of]));
        Ok(Slot {
            tally,
            took,
            counted,
            full,
        })
    }

    /// Waits until nothing of a slot goes on: destages of the volumes with copies, and the owner's
    /// look at the members, which is a moment old. The numbers of the last writes that all members
    /// have on media.
    fn settle(&self) -> Result<[u64; 2]> {
        let mut copied = [0; 2];
        for (of, at) in WITH_COPIES.into_iter().enumerate() {
            wait_for("an end of what goes on behind a slot", || {
                let volume = self.hosts.served(OWNER).volume(NAMES[at])?;
                let members = volume["replication"]["members"].as_array();
                let streams = |it: &&Value| it["state"] == "streaming";
                let members = members.into_iter().flatten().filter(streams);
                let has = members.map(|it| number(&it["durable_serial"]));
                let has = has.collect::<Result<Vec<u64>>>()?;
                copied[of] = has.iter().min().copied().unwrap_or(0);
                let flags = volume["flags"].as_array();
                let destages = flags.is_some_and(|all| all.contains(&json!("destaging")));
                let all = has.len() == of + 1;
                Ok(all && !destages && copied[of] >= number(&volume["acked_serial"])?)
            })?;
        }
        Ok(copied)
    }

    fn count(&self, at: usize) -> Result<Counted> {
        let owner = self.hosts.served(OWNER);
        let volume = owner.volume(NAMES[at])?;
        let of = |kind: &str, what: &str| number(&volume[kind][what]);
        let pids = HOSTS.map(|at| self.hosts.served(at).pid());
        let mut cpu = [Duration::ZERO; 3];
        for (at, pid) in pids.into_iter().enumerate() {
            cpu[at] = sys::process_cpu(Some(pid)).map_err(failed)?;
        }
        let members = MEMBERS.map(|at| self.hosts.listen(at));
        Ok(Counted {
            requests: of("reads", "requests")? + of("writes", "requests")?,
            writes: of("writes", "requests")?,
            write_bytes: of("writes", "bytes")?,
            bytes: of("reads", "bytes")? + of("writes", "bytes")?,
            held_writes: of("flow_control", "held_writes")?,
            origin_write_bytes: of("origin", "write_bytes")?,
            copied: [0; 2],
            wire: wire::sent_and_received(self.hosts.listen(OWNER), &members),
            cpu,
            device: pids.map(|pid| Some(device_bytes(Some(pid))?.1)),
        })
    }
}

/// No more than so many bytes until the next flush.
fn bound(works: &mut [Work], bytes: u64) {
    let each = bytes / works.len() as u64;
    for work in works {
        work.left = Some((each / work.bytes_max()).max(1));
    }
}

/// Each piece of work over its connection, all at the same time.
fn carry(works: &mut [Work], pipes: &mut [Pipe], lasts: Duration) -> Result<Tally> {
    let pairs = works.iter_mut().zip(pipes.iter_mut());
    let tallies: Vec<std::io::Result<Tally>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = pairs
            .map(|(work, pipe)| scope.spawn(move || pipe.carry(work, lasts)))
            .collect();
        jobs.into_iter()
            .map(|job| job.join().expect("a guest does not panic"))
            .collect()
    });
    let mut all: Option<Tally> = None;
    for tally in tallies {
        let tally = tally.map_err(failed)?;
        match &mut all {
            Some(all) => all.join(tally),
            None => all = Some(tally),
        }
    }
    Ok(all.expect("a load has at least one piece of work"))
}

impl Counted {
    fn since(self, before: Counted) -> Counted {
        let grown = |now: Option<(u64, u64)>, old: Option<(u64, u64)>| {
            let (now, old) = (now?, old?);
            Some((now.0.checked_sub(old.0)?, now.1.checked_sub(old.1)?))
        };
        let each = |at: usize| self.cpu[at].saturating_sub(before.cpu[at]);
        let device = |at: usize| self.device[at]?.checked_sub(before.device[at]?);
        Counted {
            requests: self.requests - before.requests,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            bytes: self.bytes - before.bytes,
            held_writes: self.held_writes - before.held_writes,
            origin_write_bytes: self.origin_write_bytes - before.origin_write_bytes,
            copied: [0; 2],
            // Connections that are new since then have counted less; then it is not known.
            wire: grown(self.wire, before.wire),
            cpu: HOSTS.map(each),
            device: HOSTS.map(device),
        }
    }
}

impl Slot {
    /// The figure of a load.
    pub fn figure(&self, load: Load) -> Option<f64> {
        let per_second = |count: u64| Some(count as f64 / self.took.as_secs_f64());
        match load {
            Load::Fio => per_second(self.counted.bytes).map(|it| it / f64::from(1 << 20)),
            Load::Jetstress | Load::Write => per_second(self.counted.requests),
            Load::WriteFlush => self.tally.quantile_us(50),
        }
    }

    /// Of something, for each 4 KiB written.
    fn each(&self, of: f64) -> Option<f64> {
        let blocks = self.counted.write_bytes as f64 / 4096.0;
        (blocks > 0.0).then_some(of / blocks)
    }

    pub fn owner_cpu_us(&self) -> Option<f64> {
        self.each(self.counted.cpu[OWNER].as_secs_f64() * 1e6)
    }

    pub fn member_cpu_us(&self) -> Option<f64> {
        let all: Duration = MEMBERS.iter().map(|at| self.counted.cpu[*at]).sum();
        self.each(all.as_secs_f64() * 1e6)
    }

    pub fn wire_bytes(&self) -> Option<f64> {
        let (sent, received) = self.counted.wire?;
        self.each((sent + received) as f64)
    }

    pub fn origin_bytes(&self) -> Option<f64> {
        self.each(self.counted.origin_write_bytes as f64)
    }

    pub fn owner_device_bytes(&self) -> Option<f64> {
        self.each(self.counted.device[OWNER]? as f64)
    }

    pub fn member_device_bytes(&self) -> Option<f64> {
        self.each(self.members_device_bytes()? as f64)
    }

    fn members_device_bytes(&self) -> Option<u64> {
        MEMBERS.iter().map(|at| self.counted.device[*at]).sum()
    }

    /// Nothing of it went to other hosts, and nothing to the origin.
    fn is_alone(&self) -> bool {
        let it = &self.counted;
        let quiet = it.wire.is_none_or(|(sent, _)| sent < IDLE_WIRE_BYTES);
        it.writes > 0 && it.copied == [0; 2] && it.origin_write_bytes == 0 && quiet
    }

    /// All of it did, to so many. What has come to the origin, or was overwritten, before it left
    /// need not; at random that is less than half.
    fn is_copied(&self, copies: usize) -> bool {
        let it = &self.counted;
        let due = copies as u64 * it.write_bytes.saturating_sub(it.origin_write_bytes);
        let sent = it.wire.is_none_or(|(sent, _)| sent > 0 && 2 * sent >= due);
        let (of, other) = (it.copied[copies - 1], it.copied[2 - copies]);
        it.writes > 0 && of >= it.writes && other == 0 && sent && self.full
    }

    fn is_through(&self) -> bool {
        let it = &self.counted;
        it.copied == [0; 2] && it.writes > 0 && it.origin_write_bytes >= it.write_bytes
    }

    fn document(&self, load: Load) -> Value {
        let it = &self.counted;
        json!({
            load.figure(): self.figure(load),
            "p50_us": self.tally.quantile_us(50),
            "p99_us": self.tally.quantile_us(99),
            "seconds": self.took.as_secs_f64(),
            "requests": it.requests,
            "writes": it.writes,
            "write_bytes": it.write_bytes,
            "held_writes": it.held_writes,
            "origin_write_bytes": it.origin_write_bytes,
            "copied_writes": it.copied,
            "full": self.full,
            "wire_sent_bytes": it.wire.map(|it| it.0),
            "wire_received_bytes": it.wire.map(|it| it.1),
            "owner_cpu_us": it.cpu[OWNER].as_micros() as u64,
            "member_cpu_us": MEMBERS.map(|at| it.cpu[at].as_micros() as u64),
            "owner_device_bytes": it.device[OWNER],
            "member_device_bytes": MEMBERS.map(|at| it.device[at]),
        })
    }
}

impl Round {
    pub fn slot(&self, at: usize) -> &Slot {
        &self.0[at]
    }

    pub fn is_proven(&self) -> bool {
        let [alone, copied, twice, through, again] = &self.0;
        // Of a slot in which a write had no time for its flush there is no figure.
        let answered = self
            .0
            .iter()
            .all(|slot| slot.tally.quantile_us(50).is_some());
        let copies = answered && copied.is_copied(1) && twice.is_copied(2);
        alone.is_alone() && again.is_alone() && copies && through.is_through()
    }

    pub fn document(&self, load: Load) -> Value {
        let [alone, copied, twice, through, again] = self.0.each_ref().map(|it| it.document(load));
        json!({
            "proven": self.is_proven(),
            "alone": alone,
            "copied": copied,
            "twice": twice,
            "write_through": through,
            "alone_again": again,
        })
    }
}

/// What a figure of two kinds of slots says, round by round.
pub fn ratio<'a>(
    all: impl Iterator<Item = &'a Round> + Clone,
    (over, under): (usize, usize),
    figure: impl Fn(&Slot) -> Option<f64>,
) -> Option<rounds::Spread> {
    let column = |at: usize| -> Vec<Option<f64>> {
        let all = all.clone();
        all.map(|round| figure(round.slot(at))).collect()
    };
    rounds::ratios(&column(over), &column(under))
}

pub fn median<'a>(
    all: impl Iterator<Item = &'a Round>,
    at: usize,
    figure: impl Fn(&Slot) -> Option<f64>,
) -> Option<rounds::Spread> {
    rounds::Spread::of(all.filter_map(|round| figure(round.slot(at))))
}
