//! What is right: volumes read from end to end, origins judged as if power failed now.
//!
//! Always true: judging changes neither disks nor engine; an origin is judged on a copy. The
//! promises themselves live in [`workload::check`]. Deliberately absent: any knowledge of how the
//! engine keeps them, but for one call of its own `settle`, which finishes a pending journal.

use crate::devices::{Blocking, Devices, Origin};
use crate::disk::Power;
use crate::guest::Whole;
use crate::tops;
use crate::unlinked::CacheLost;
use crate::world::{Broken, Step, World};
use engine::engine::settle;
use engine::event::{Device, Refusal};
use engine::media::Media;
use engine::types::VolumeId;
use std::ops::Range;
use workload::check::{Crash, Found, Model, Promise, Violation};
use workload::stamp::SECTOR_BYTES;

/// Sectors of one read of the check.
const PART_SECTORS: u64 = 256;
/// Reads of the check in flight.
const PARTS_FLYING: usize = 8;
/// Failed reads of the check before it gives up.
const TRIES_MAX: u32 = 100;
/// Virtual time after which a request without an answer counts as lost.
pub const ANSWER_NS_MAX: u64 = 600_000_000_000;

impl World {
    /// Reads each volume that has crashed through the engine, and judges it.
    pub fn verify(&mut self) -> Result<Step, Broken> {
        self.heal(true);
        if self.plan.rates.knows_images() && self.reset_misfits()? == Step::Struck {
            return Ok(Step::Struck);
        }
        let crashed =
            |at: &usize| self.guests[*at].crash.is_some() && self.guests[*at].id.is_some();
        let volumes: Vec<usize> = (0..self.guests.len()).filter(crashed).collect();
        for &volume in &volumes {
            let guest = &mut self.guests[volume];
            let sectors = guest.model.sectors();
            let size = part_sectors(self.spoiled);
            let parts = (0..sectors.div_ceil(size)).map(|part| part * size);
            let todo = parts.rev().collect();
            let image = vec![0xEE; sectors as usize * SECTOR_BYTES];
            guest.whole = Some(Whole {
                image,
                todo,
                tries: 0,
            });
        }
        self.wake_guests();
        let busy = |world: &World| world.guests.iter().any(|guest| !guest.whole_done());
        if self.run_while(busy, "the check of the volumes")? == Step::Struck {
            return Ok(Step::Struck);
        }
        let mut found = Vec::new();
        for volume in volumes {
            found.push((volume, self.judge(volume)?));
        }
        self.check_together(&found, "a crash")?;
        let laid = |at: &usize| self.guests[*at].doubts_origin && self.guests[*at].id.is_some();
        let laid: Vec<usize> = (0..self.guests.len()).filter(laid).collect();
        if self.bring_laid_home(&laid)? == Step::Struck {
            return Ok(Step::Struck);
        }
        for (volume, found) in found {
            // What was lost is expected no more.
            let times = self.guests[volume].times.iter_mut();
            times.skip(found.cut as usize).for_each(|it| it.1 = None);
        }
        self.heal(false);
        Ok(Step::Ran)
    }

    /// Runs until `busy` is false.
    pub fn run_while(&mut self, busy: impl Fn(&World) -> bool, what: &str) -> Result<Step, Broken> {
        let end = self.waking() + ANSWER_NS_MAX;
        while busy(self) {
            match self.step()? {
                Step::Struck => return Ok(Step::Struck),
                Step::Idle => {
                    let who = self.who_waits();
                    return Err(Broken::stuck(format!(
                        "{what}: nothing is left to do, but{who} waits"
                    )));
                }
                Step::Ran if self.waking() > end => {
                    let (seconds, who) = (ANSWER_NS_MAX / 1_000_000_000, self.who_waits());
                    return Err(Broken::stuck(format!(
                        "{what}: after {seconds} s there still waits{who}"
                    )));
                }
                Step::Ran => {}
            }
        }
        Ok(Step::Ran)
    }

    pub fn who_waits(&self) -> String {
        let mut who = String::new();
        if let Some(ills) = crate::run::ills(self) {
            who += &format!(" [{ills}]");
        }
        for (volume, guest) in self.guests.iter().enumerate() {
            let name = guest.plan.policy.name();
            for pending in guest.pending.values() {
                who += &format!(" [v{volume} ({name}): {}]", pending.name());
            }
        }
        who
    }

    /// Asks for the next parts of a volume that is being read.
    pub fn read_on(&mut self, volume: usize) -> Result<(), Broken> {
        loop {
            let guest = &mut self.guests[volume];
            let room = guest.pending.len() < PARTS_FLYING;
            let Some(whole) = &mut guest.whole else {
                return Ok(());
            };
            let Some(sector) = whole.todo.pop_if(|_| room) else {
                return Ok(());
            };
            let sectors = part_sectors(self.spoiled).min(guest.model.sectors() - sector);
            self.read_part(volume, sector, sectors)?;
            if self.struck {
                return Ok(());
            }
        }
    }

    pub fn part_read(
        &mut self,
        volume: usize,
        sector: u64,
        result: Result<(), Refusal>,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let Some(whole) = &mut self.guests[volume].whole else {
            return Ok(());
        };
        if result.is_err() && self.spoiled {
            self.part_lost(volume, sector);
            return Ok(());
        }
        if let Err(refusal) = result {
            whole.tries += 1;
            whole.todo.push(sector);
            if whole.tries > TRIES_MAX {
                return Err(format!("cannot be read after a restart: {refusal}").into());
            }
            return Ok(());
        }
        whole.image[sector as usize * SECTOR_BYTES..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn judge(&mut self, volume: usize) -> Result<Found, Broken> {
        let guest = &mut self.guests[volume];
        let crash = guest.crash.take().expect("only such volumes are judged");
        let whole = guest.whole.take().expect("the volume was read");
        let read = |sectors: Range<u64>, bytes: &mut [u8]| {
            bytes.copy_from_slice(
                &whole.image[sectors.start as usize * SECTOR_BYTES..][..bytes.len()],
            );
            Ok(())
        };
        guest.doubts_origin |= guest.laid.is_some();
        guest.replaced = None;
        let found = match guest.laid.take() {
            Some(it) => {
                let laid = |sector: u64| it.laid[sector as usize];
                guest
                    .model
                    .verify_laid(crash, (it.tag, &it.old), laid, read)
            }
            None if guest.cache_lost == Some(CacheLost::Accepted) => guest.verify_given_up(read),
            None => guest.model.verify(crash, read),
        };
        guest.cache_lost = None;
        let name = guest.plan.policy.name();
        let found = found.map_err(|it| format!("v{volume} ({name}) after {crash:?}: {it}"))?;
        if let Some(origin) = &mut guest.origin {
            if guest.plan.switches && crash == Crash::PowerLoss {
                origin.doubt();
            } else {
                origin.void_after(&found);
            }
        }
        self.trace.counters.volumes_verified += 1;
        self.trace.add(&[volume as u64, found.cut, found.floor]);
        self.trace
            .note(format_args!("v{volume} after {crash:?}: {found:?}"));
        Ok(found)
    }

    /// The volumes of a group stand at one point in time: where a write of one is found, all that
    /// were acknowledged before it was asked for are, on whichever volume.
    fn check_together(&self, found: &[(usize, Found)], after: &str) -> Result<(), Broken> {
        for (at, here) in found {
            let Some(present) = here.least else { continue };
            if self.guests[*at].plan.switches {
                // Past the log each disk stands for itself, as it would without a cache.
                continue;
            }
            let (asked, _) = self.guests[*at].times[present as usize - 1];
            let others = found.iter().filter(|(other, _)| other != at);
            for (other, there) in others.filter(|it| self.members(*at).any(|m| m == it.0)) {
                let times = self.guests[*other].times.iter().enumerate();
                let mut missing = times.skip(there.cut as usize);
                let lost = missing.find(|(_, it)| it.1.is_some_and(|heard| heard < asked));
                if let Some((lost, _)) = lost {
                    return Err(format!(
                        "after {after} v{at} has write #{present}, and v{other} ends at #{} \
                         without #{}, which was acknowledged before",
                        there.cut,
                        lost + 1
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    /// After an orderly destage the origins of a group are at one cut.
    pub fn check_cut(&mut self, volume: usize) -> Result<(), Broken> {
        let members: Vec<usize> = self.members(volume).collect();
        if members.iter().any(|it| self.guests[*it].is_shrinking()) {
            return Ok(());
        }
        let mut found = Vec::new();
        for &member in members.iter().filter(|_| members.len() > 1) {
            let mut origin = self.devices.origins[self.guests[member].plan.origin].clone();
            let mut rng = self.rng.fork();
            // As it is when it was put back.
            (origin.path, origin.cut) = Default::default();
            for disk in [&mut origin.image, &mut origin.journal, &mut origin.ledger] {
                disk.power_loss(Power::Kept, false, &mut rng);
            }
            found.push((member, self.judge_origin_of(member, origin)?));
        }
        self.trace.counters.cuts_verified += u64::from(!found.is_empty());
        self.check_together(&found, "a destage, at the origins,")
    }

    /// Judges all origins as a power loss at this moment would leave them; with `kept` only the
    /// host loses power, so that everything that completed is there.
    pub fn check_origins(&mut self, kept: bool) -> Result<(), Broken> {
        for volume in 0..self.guests.len() {
            let guest = &self.guests[volume];
            let other = guest.replaced.is_some() || guest.laid.is_some() || guest.doubts_origin;
            // What of its end a raw image has is known when it was cut off.
            let top = self.devices.origins[guest.plan.origin].top;
            let shrinks = guest.is_shrinking() && !top;
            if guest.origin.is_none() || shrinks || other {
                continue;
            }
            let mut origin = self.devices.origins[self.guests[volume].plan.origin].clone();
            let mut rng = self.rng.fork();
            let power = if kept || rng.chance(300) {
                Power::Kept
            } else {
                Power::Lost
            };
            // As it is when it was put back.
            (origin.path, origin.cut) = Default::default();
            for disk in [&mut origin.image, &mut origin.journal, &mut origin.ledger] {
                disk.power_loss(power, false, &mut rng);
            }
            self.check_origin(volume, origin)?;
        }
        Ok(())
    }

    fn check_origin(&mut self, volume: usize, origin: Origin) -> Result<(), Broken> {
        let found = self.judge_origin_of(volume, origin)?;
        self.trace.counters.origins_verified += 1;
        self.trace.add(&[volume as u64, found.cut]);
        Ok(())
    }

    fn judge_origin_of(&mut self, volume: usize, origin: Origin) -> Result<Found, Broken> {
        let guest = &self.guests[volume];
        let model = guest.origin.as_ref().expect("only such volumes have one");
        let at = |broken: Broken| broken.at(format_args!("origin of v{volume} with its journal"));
        let left = origin.top.then(|| tops::judge_left(&origin)).transpose();
        let left = left.map_err(|it| at(it.into()))?;
        let rng = self.rng.fork();
        // Of the end that goes nothing is promised meanwhile.
        let kept = guest.kept_sectors().map(|sectors| {
            let mut kept = model.clone();
            kept.resize(sectors);
            kept
        });
        let model = kept.as_ref().unwrap_or(model);
        let found = judge_origin(origin, model, guest.origin_promise(), rng).map_err(at)?;
        self.count_left(left);
        Ok(found)
    }
}

impl crate::guest::Guest {
    /// What reached its origin is there, and from now on that is all there ever was.
    fn verify_given_up<R>(&mut self, mut read: R) -> Result<Found, Violation>
    where
        R: FnMut(Range<u64>, &mut [u8]) -> Result<(), String>,
    {
        let promise = self.origin_promise();
        let origin = self.origin.as_mut().expect("it had a log");
        let found = origin.examine(promise, &mut read)?;
        self.model.given_up(read)?;
        *origin = self.model.clone();
        Ok(found)
    }

    fn whole_done(&self) -> bool {
        let asked = self
            .pending
            .values()
            .any(|it| matches!(it, crate::guest::Pending::Part { .. }));
        self.whole
            .as_ref()
            .is_none_or(|whole| whole.todo.is_empty() && !asked)
    }
}

fn part_sectors(spoiled: bool) -> u64 {
    if spoiled {
        crate::spoil::PART_SECTORS
    } else {
        PART_SECTORS
    }
}

/// Finishes the pending journal of an origin and judges what it holds then. Returns what was found.
pub fn judge_origin(
    origin: Origin,
    model: &Model,
    promise: Promise,
    mut rng: crate::rng::Rng,
) -> Result<Found, Broken> {
    let id = VolumeId(0);
    let mut devices = Devices {
        origins: vec![origin],
        ..Devices::default()
    };
    devices.places.insert(id, 0);
    let mut now = 0;
    let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
    settle(&mut media, id).map_err(|it| format!("cannot be settled: {it}"))?;
    let origin = &media.devices.origins[0];
    if origin.top {
        tops::judge(origin).map_err(|it| format!("when it is settled: {it}"))?;
        let disk = tops::disk(origin, model.sectors() as usize * SECTOR_BYTES)?;
        let found = model.examine(promise, |sectors, bytes| {
            bytes.copy_from_slice(&disk[sectors.start as usize * SECTOR_BYTES..][..bytes.len()]);
            Ok(())
        });
        return found.map_err(|violation| violation.to_string().into());
    }
    let found = model.examine(promise, |sectors, bytes| {
        let offset = sectors.start * SECTOR_BYTES as u64;
        media
            .read(Device::Origin(id), offset, bytes)
            .map_err(|_| "unreadable".to_owned())
    });
    found.map_err(|violation| violation.to_string().into())
}
