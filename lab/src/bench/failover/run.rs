//! Kills, and what a guest sees of them.
//!
//! Owns the order of a round, and its moments. Always true: a time begins before the signal is
//! sent; a host is started again by the thread that lives longest, because it ends with it.
//! Deliberately absent: what is made of the times.

use super::Options;
use super::guest::{End, Guest, Meter, Stopping};
use crate::bench::hosts::{Hosts, wait_for};
use crate::bench::own_process::number;
use crate::bench::work::BLOCK_BYTES;
use crate::client::Client;
use crate::in_process::make_image;
use crate::interrupt::Interrupt;
use crate::place::Place;
use host::error::{Error, Result, cause};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use workload::rng::Rng;

const NAME: &str = "disk";
const SIZES: &str = "ram = \"64MiB\"\nstage = \"64MiB\"";
/// Of the log the volume has half, and what is dirty takes at most half of that.
pub const CACHE_PER_SIZE: u64 = 4;
/// How often the guest's answers are counted.
const LOOK: Duration = Duration::from_millis(20);
/// The owner is killed after so many answers and, drawn anew each time, up to so many more.
const ANSWERS_MIN: u64 = 100;
const ANSWERS_MORE: u64 = 4000;
/// A client that finds no daemon asks again.
const AGAIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_secs(120);

/// What came of the death of the peer.
pub struct PeerKilled {
    pub longest_flush: Duration,
    /// Before it, in a time in which nothing was killed.
    pub longest_flush_before: Duration,
    /// From the kill until the peer was left out.
    pub degraded: Duration,
    /// From the start of its daemon until the copy was complete, and from the kill.
    pub full: Duration,
    pub full_since_kill: Duration,
    pub dirty_bytes: u64,
    /// Answers per second: the median of short times before, in both halves of that, and from the
    /// kill until the copy was complete; and of the last the part in which the copy was made.
    pub before: Option<f64>,
    pub halves: [Option<f64>; 2],
    pub during: Option<f64>,
    pub copying: Option<f64>,
}

/// What came of the death of the owner.
pub struct OwnerKilled {
    /// From the kill to the first answer at the other host, and the same without a kill: a new
    /// connection to a host that serves.
    pub first_answer: Duration,
    pub first_answer_before: Duration,
    /// What proved that the owner writes no more.
    pub proof: Value,
    /// Numbers of the last write that was flushed, and of the last that was found.
    pub flushed: u64,
    pub found: u64,
    pub submitted: u64,
    pub flushes: u64,
    pub checked_bytes: u64,
    /// From the start of its daemon until it has a complete copy.
    pub full: Duration,
}

pub struct Round {
    /// Who was the owner at its begin.
    pub owner: usize,
    pub peer_killed: PeerKilled,
    pub owner_killed: OwnerKilled,
}

pub struct Stage {
    hosts: Hosts,
    guest: Guest,
    random: Rng,
    owner: usize,
    size_bytes: u64,
    watched: Duration,
}

/// Answers until a moment.
type Sample = (Instant, u64);

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench failover: {}", cause(&error)))
}

impl Stage {
    pub fn new(place: &Place, options: &Options) -> Result<Stage> {
        let image = place.image(NAME);
        make_image(&image, options.size_bytes)?;
        let room = (2 * options.size_bytes) >> 20;
        let volumes = format!(
            "[[volume]]\nname = \"{NAME}\"\norigin = {image:?}\nformat = \"raw\"\nexport = \
             [\"nbd\"]\npolicy = \"write-back\"\ndestage-after = \"never\"\nreplicas = \
             1\ndirty-limit = \"{room}MiB\"\n"
        );
        let hosts = Hosts::start(place, options.cache_bytes, SIZES, &volumes)?;
        let mut guest = Guest::new(options.size_bytes, options.seed);
        guest.fill(&hosts.socket(0), NAME)?;
        Ok(Stage {
            hosts,
            guest,
            random: Rng::new(!options.seed),
            owner: 0,
            size_bytes: options.size_bytes,
            watched: Duration::from_secs_f64(options.seconds),
        })
    }

    pub fn round(&mut self, interrupt: &Interrupt) -> Result<Round> {
        let owner = self.owner;
        self.hosts.wait_until_full(owner, NAME)?;
        let peer_killed = self.kill_peer()?;
        interrupt.check()?;
        let owner_killed = self.kill_owner()?;
        Ok(Round {
            owner,
            peer_killed,
            owner_killed,
        })
    }

    fn kill_peer(&mut self) -> Result<PeerKilled> {
        let (owner, peer, meter) = (self.owner, 1 - self.owner, Meter::default());
        let (hosts, guest, watched) = (&mut self.hosts, &mut self.guest, self.watched);
        let socket = hosts.socket(owner);
        std::thread::scope(|scope| {
            let running = scope.spawn(|| guest.run(&socket, NAME, &meter));
            let watching = scope.spawn(|| watch(&meter));
            let stopping = Stopping(&meter);
            std::thread::sleep(watched);
            let longest_flush_before = meter.take_longest_flush();
            let killed = Instant::now();
            hosts.kill(peer);
            hosts.wait_until_degraded(owner, NAME)?;
            let degraded = killed.elapsed();
            let started = Instant::now();
            hosts.restart(peer)?;
            hosts.wait_until_full(owner, NAME)?;
            let full = Instant::now();
            let dirty_bytes = number(&hosts.served(owner).volume(NAME)?["dirty_bytes"])?;
            drop(stopping);
            match running.join().expect("a guest does not panic")? {
                End::Stopped => {}
                End::Broken => {
                    let message = "bench failover: the guest has lost its host with the peer";
                    return Err(Error::failed(message));
                }
            }
            let samples = watching.join().expect("a watcher does not panic");
            let begun = samples.first().map_or(killed, |sample| sample.0);
            let middle = begun + (killed - begun) / 2;
            let speed = |from, to| median_speed(&samples, from, to);
            Ok(PeerKilled {
                longest_flush: meter.take_longest_flush(),
                longest_flush_before,
                degraded,
                full: full - started,
                full_since_kill: full - killed,
                dirty_bytes,
                before: speed(begun, killed),
                halves: [speed(begun, middle), speed(middle, killed)],
                during: speed(killed, full),
                copying: speed(started, full),
            })
        })
    }

    fn kill_owner(&mut self) -> Result<OwnerKilled> {
        let (owner, other, meter) = (self.owner, 1 - self.owner, Meter::default());
        let first_answer_before = first_answer(&self.hosts.socket(owner), Instant::now())?.1;
        let answers = ANSWERS_MIN + self.random.scaled(ANSWERS_MORE);
        let (hosts, guest) = (&mut self.hosts, &mut self.guest);
        let socket = hosts.socket(owner);
        let flushes = guest.flushes;
        let killed = std::thread::scope(|scope| {
            let running = scope.spawn(|| guest.run(&socket, NAME, &meter));
            let _stopping = Stopping(&meter);
            wait_for("answers to the guest", || {
                Ok(meter.answered.load(Ordering::SeqCst) > answers || running.is_finished())
            })?;
            let killed = Instant::now();
            hosts.kill(owner);
            match running.join().expect("a guest does not panic")? {
                End::Broken => Ok(killed),
                End::Stopped => Err(Error::failed("bench failover: no request was under way")),
            }
        })?;
        let (mut client, first_answer) = first_answer(&hosts.socket(other), killed)?;
        let found = guest.check(&mut client)?;
        let started = Instant::now();
        hosts.restart(owner)?;
        hosts.wait_until_full(other, NAME)?;
        let full = started.elapsed();
        self.owner = other;
        let mut proof = Value::Null;
        wait_for("proof that the killed host writes no more", || {
            proof = self.hosts.served(other).volume(NAME)?["drain"]["proof"].clone();
            Ok(!proof.is_null())
        })?;
        Ok(OwnerKilled {
            first_answer,
            first_answer_before,
            proof,
            flushed: found.floor,
            found: found.cut,
            submitted: found.newest,
            flushes: self.guest.flushes - flushes,
            checked_bytes: self.size_bytes,
            full,
        })
    }
}

/// Connects until it is served; the client and the time since this moment.
fn first_answer(socket: &Path, since: Instant) -> Result<(Client, Duration)> {
    let mut block = [0; BLOCK_BYTES as usize];
    loop {
        let asked = Client::connect(socket, NAME).and_then(|mut client| {
            client.read(0, &mut block)?;
            Ok(client)
        });
        match asked {
            Ok(client) => return Ok((client, since.elapsed())),
            Err(error) if since.elapsed() > WAIT_MAX => return Err(failed(error)),
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

/// Counts the answers now and then, until the guest is told to stop.
fn watch(meter: &Meter) -> Vec<Sample> {
    let mut samples = Vec::new();
    while !meter.stop.load(Ordering::SeqCst) {
        let answered = meter.answered.load(Ordering::SeqCst);
        samples.push((Instant::now(), answered));
        std::thread::sleep(LOOK);
    }
    samples
}

/// The median of the speeds between two samples each, in answers per second.
fn median_speed(samples: &[Sample], from: Instant, to: Instant) -> Option<f64> {
    let inside = |pair: &&[Sample]| pair[0].0 >= from && pair[1].0 <= to;
    let speeds = samples.windows(2).filter(inside).map(|pair| {
        let seconds = (pair[1].0 - pair[0].0).as_secs_f64();
        (pair[1].1 - pair[0].1) as f64 / seconds
    });
    crate::bench::rounds::Spread::of(speeds).map(|it| it.median)
}
