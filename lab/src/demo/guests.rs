//! What real guests do in a run: one boots alone, then all others together, then all work.
//!
//! Owns the order of it and the time each part may take. Always true: all runs let the same guests
//! do the same; the work begins when all have booted, so boots and work can be told apart at the
//! origin; a guest that finds wrong bytes, ends early or is late ends the run with its last words.

use super::run::Watch;
use super::side::Disk;
use crate::guest::{Guest, Heard, Machine, What, console};
use host::error::{Error, Result};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Rounds of work: a file of 48 KiB is made, 16 records of a log are written, each synced.
pub const ROUNDS: u64 = 6;
/// After this a guest begins no further round, so that a slow machine comes to an end as well.
const WORK_TIME_MAX: Duration = Duration::from_secs(6);
const WORK_TIME_MIN: Duration = Duration::from_secs(4);
/// What is left of a run's time after the work, for the last reads, destage and comparison.
const AFTER_WORK: Duration = Duration::from_secs(8);
/// Steps of the progress bar.
const STEPS_UP: u64 = 5;
const STEPS_BOOTED: u64 = 15;
const STEPS_VERIFIED: u64 = 5;
/// Between two looks at the user's wish to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Steps of one run of so many guests.
pub const fn steps(guests: u64) -> u64 {
    guests * (STEPS_UP + STEPS_BOOTED + ROUNDS + STEPS_VERIFIED)
}

/// A guest from the start of its QEMU until it had read its system.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    pub started: Instant,
    pub ended: Instant,
}

pub struct Fleet<'a> {
    machine: &'a Machine<'a>,
    disks: &'a [Disk],
    guests: Vec<Guest>,
    /// What each guest said and nobody asked for yet.
    inbox: Vec<Vec<(Instant, String)>>,
    /// Last line of each console that was not for us.
    noise: Vec<String>,
    ended: Vec<bool>,
    sender: SyncSender<Heard>,
    heard: Receiver<Heard>,
    watch: Watch<'a>,
}

impl<'a> Fleet<'a> {
    pub fn new(machine: &'a Machine<'a>, disks: &'a [Disk], watch: Watch<'a>) -> Fleet<'a> {
        let (sender, heard) = console();
        Fleet {
            machine,
            disks,
            guests: Vec::new(),
            inbox: vec![Vec::new(); disks.len()],
            noise: vec![String::new(); disks.len()],
            ended: vec![false; disks.len()],
            sender,
            heard,
            watch,
        }
    }

    /// One boots alone, as when an administrator tries the image, then all others at once.
    pub fn boot(&mut self) -> Result<Vec<Boot>> {
        self.start(0)?;
        let mut ended = self.expect(0..1, "booted")?;
        for number in 1..self.disks.len() {
            self.start(number)?;
        }
        ended.extend(self.expect(1..self.disks.len(), "booted")?);
        let boots = self.guests.iter().zip(ended);
        Ok(boots
            .map(|(guest, (ended, _))| Boot {
                started: guest.started,
                ended,
            })
            .collect())
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let node = self.disks[number].node.as_str();
        let guest = self.machine.start(number, &[node], self.sender.clone())?;
        self.guests.push(guest);
        Ok(())
    }

    /// When each guest had done its work, and how many rounds of it.
    pub fn work(&mut self) -> Result<Vec<(Instant, u64)>> {
        let left = self
            .watch
            .deadline()
            .saturating_duration_since(Instant::now());
        let time = left.saturating_sub(AFTER_WORK);
        let time = time.clamp(WORK_TIME_MIN, WORK_TIME_MAX);
        let line = format!("work {ROUNDS} {}", time.as_secs());
        self.tell(0..self.disks.len(), &line)?;
        let worked = self.expect(0..self.disks.len(), "worked")?;
        let worked = worked.into_iter();
        let worked: Vec<(Instant, u64)> = worked
            .map(|(at, rounds)| (at, rounds.parse().unwrap_or(0)))
            .collect();
        // Each reads again what it wrote, from the disk, and says whether it was that.
        self.expect(0..self.disks.len(), "verified")?;
        Ok(worked)
    }

    /// The checksum of the last guest's whole disk as that guest reads it. Ends all guests.
    pub fn finish(mut self) -> Result<String> {
        let last = self.disks.len() - 1;
        self.tell(0..last, "off")?;
        self.tell(last..last + 1, "sum")?;
        let mut sums = self.expect(last..last + 1, "sum")?;
        Ok(sums.remove(0).1)
    }

    fn tell(&mut self, who: std::ops::Range<usize>, line: &str) -> Result<()> {
        for number in who {
            let told = self.guests[number].tell(line);
            told.map_err(|_| self.failed(number, "its console is closed"))?;
        }
        Ok(())
    }

    /// Waits until each of these has said this word; when, and what followed it.
    fn expect(
        &mut self,
        who: std::ops::Range<usize>,
        word: &str,
    ) -> Result<Vec<(Instant, String)>> {
        loop {
            let missing = who.clone().find(|&it| self.find(it, word).is_none());
            let Some(missing) = missing else {
                let all = who.filter_map(|it| self.find(it, word)).collect();
                for inbox in &mut self.inbox {
                    // A quick guest may have said its next word already.
                    inbox.retain(|(_, said)| !said.starts_with(word));
                }
                return Ok(all);
            };
            self.watch.interrupt.check()?;
            if Instant::now() > self.watch.deadline() {
                return Err(self.failed(missing, &format!("is late with \"{word}\"")));
            }
            if self.ended[missing] {
                return Err(self.failed(missing, &format!("ended before \"{word}\"")));
            }
            match self.heard.recv_timeout(LOOK) {
                Ok(heard) => self.take(heard)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
        }
    }

    fn find(&self, guest: usize, word: &str) -> Option<(Instant, String)> {
        self.inbox[guest].iter().find_map(|(at, said)| {
            let rest = said.strip_prefix(word)?;
            Some((*at, rest.trim().to_owned()))
        })
    }

    fn take(&mut self, heard: Heard) -> Result<()> {
        match heard.what {
            What::Ended => self.ended[heard.guest] = true,
            What::Noise(line) if line.is_empty() => {}
            // What comes after it is a trace of calls.
            What::Noise(_) if self.noise[heard.guest].contains("panic") => {}
            What::Noise(line) => self.noise[heard.guest] = line,
            What::Said(said) => {
                let word = said.split(' ').next().unwrap_or_default();
                self.watch.bar.inc(match word {
                    "wrong" => return Err(self.failed(heard.guest, &format!("found {said}"))),
                    "up" => STEPS_UP,
                    "booted" => STEPS_BOOTED,
                    "round" => 1,
                    "verified" => STEPS_VERIFIED,
                    _ => 0,
                });
                if word != "round" {
                    self.inbox[heard.guest].push((heard.at, said));
                }
            }
        }
        Ok(())
    }

    fn failed(&self, guest: usize, what: &str) -> Error {
        let last = match self.noise[guest].as_str() {
            "" => String::new(),
            line => format!("; last on its console: {line}"),
        };
        let name = &self.disks[guest].name;
        Error::failed(format!("guest {name}: {what}{last}")).about(name)
    }
}
