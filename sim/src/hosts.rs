//! Several hosts after each other on one storage, and other programs that write to it between.
//!
//! Owns the hosts that do not serve, each with a cache and a machine of its own. Always true: one
//! host serves at a time, and one that ends to make way for another loses its power; a volume that
//! another host may hold dirty data of is refused by all but that one, and by nobody else, so its
//! ledger claims it as long as there is some; another program writes only images of which nothing
//! is owed. Deliberately absent: two hosts at once, whom the storage's locks keep apart.
//!
//! ```text
//! move:  guests ─▶ all is brought home ─▶ parked ─▶ power off ─▶ the next host starts
//! visit: power loss under load ─▶ the next host starts, refuses what it must, serves the rest,
//!        brings it home ─▶ power off ─▶ the first host comes back
//! ```

use crate::devices::{Blocking, ledger_of};
use crate::disk::{Change, Disk};
use crate::guest::Request;
use crate::host::Ending;
use crate::memory::SimMemory;
use crate::tops;
use crate::world::{Broken, Sabotage, World};
use engine::engine::{device_bytes, inspect_origin, read_superblock};
use engine::event::Device;
use engine::snapshot::State;
use engine::types::{Policy, Uuid, VolumeId};
use workload::check::Kind;
use workload::stamp;

/// Guest requests on the host that only helps out.
const VISIT_BUDGET: u64 = 60;
/// Writes of another program at most.
const FOREIGN_MAX: u64 = 4;
/// How long another program takes at least; times of images have ticks.
const FOREIGN_NS: u64 = 20_000_000;

/// A host that does not serve.
pub struct Idle {
    cache: Disk,
    memory: SimMemory,
    machine: Uuid,
    boot: Uuid,
    number: u32,
}

impl Idle {
    pub fn new(world: &mut World, memory: SimMemory, number: u32) -> Idle {
        Idle {
            cache: Disk::new(vec![0; device_bytes(world.plan.geometry) as usize]),
            memory,
            machine: Uuid(world.rng.bytes16()),
            boot: Uuid(world.rng.bytes16()),
            number,
        }
    }
}

impl World {
    /// The next host takes the place of this one.
    pub(crate) fn change_host(&mut self) {
        let mut next = self.idle.pop_front().expect("there is another host");
        std::mem::swap(&mut next.cache, &mut self.devices.cache);
        std::mem::swap(&mut next.memory, &mut self.memory);
        std::mem::swap(&mut next.machine, &mut self.machine);
        std::mem::swap(&mut next.boot, &mut self.boot);
        std::mem::swap(&mut next.number, &mut self.host);
        self.idle.push_back(next);
        let host = self.host;
        self.trace.tell(format_args!("host {host} takes over"));
    }

    /// Brings all that is owed to the origins, so that any other host may go on. False if a volume
    /// is not there to be brought home, or was held because the cache device failed.
    pub(crate) fn bring_home(&mut self) -> Result<bool, Broken> {
        self.quiet()?;
        for volume in 0..self.guests.len() {
            if self.guests[volume].id.is_some() && self.guests[volume].origin.is_some() {
                self.submit(volume, Request::Destage)?;
            }
        }
        self.quiet()?;
        let engine = self.engine.as_ref().expect("the engine is open");
        let clean = engine
            .snapshot()
            .volumes
            .iter()
            .all(|it| it.dirty_bytes == 0);
        Ok(clean && self.guests.iter().all(|guest| guest.id.is_some()))
    }

    /// Another host helps out while this one is down.
    pub(crate) fn visit(&mut self) -> Result<(), Broken> {
        self.change_host();
        self.trace.counters.visits += 1;
        self.start()?;
        let served = self.guests.iter().any(|guest| guest.id.is_some());
        let ending = Ending::Orderly { power_off: true };
        if served {
            self.live(VISIT_BUDGET, Ending::Move)?;
        } else {
            self.end(ending)?;
        }
        self.change_host();
        Ok(())
    }

    /// Whether the ledger beside an origin says that another cache may hold dirty data.
    pub(crate) fn is_owed_elsewhere(&mut self, id: VolumeId) -> bool {
        let mut rng = self.rng.fork();
        let mut now = self.now;
        let mut media = Blocking::new(&mut self.devices, &mut rng, &mut now);
        let here = read_superblock(&mut media).map(|it| it.cache);
        let ledger = inspect_origin(&mut media, id);
        match (ledger, here) {
            (Ok(Some(info)), Ok(here)) => info.ledger.dirty && info.ledger.cache != here,
            _ => false,
        }
    }

    /// A volume whose log has something that its image has not is claimed by its ledger, surely:
    /// else another host would serve its image without that.
    pub(crate) fn check_claims(&self) -> Result<(), Broken> {
        let Some(engine) = self.engine.as_ref() else {
            return Ok(());
        };
        let owing = engine.snapshot().volumes.into_iter();
        for owing in owing.filter(|it| it.dirty_bytes > 0 && it.policy == Policy::WriteBack) {
            let mut guests = self.guests.iter();
            let Some(guest) = guests.find(|it| it.id == Some(owing.id)) else {
                continue;
            };
            let ledger = &self.devices.origins[guest.plan.origin].ledger;
            let claimed = ledger_of(ledger.durable()).is_some_and(|it| it.dirty);
            if !claimed && !guest.plan.switches {
                let (name, dirty) = (owing.name, owing.dirty_bytes);
                let words = format!("{name} has {dirty} dirty bytes, and its ledger says none");
                return Err(words.into());
            }
        }
        Ok(())
    }

    /// Volumes of which nothing is owed to their images, now that all is parked.
    pub(crate) fn owed_nothing(&self) -> Vec<usize> {
        let Some(engine) = self.engine.as_ref().filter(|_| self.parked) else {
            return Vec::new();
        };
        let clean = engine.snapshot().volumes.into_iter();
        let clean = clean.filter(|it| it.dirty_bytes == 0 && it.state == State::Clean);
        let clean: Vec<VolumeId> = clean.map(|it| it.id).collect();
        let plain = |at: &usize| {
            let guest = &self.guests[*at];
            let writes = guest.plan.policy != engine::types::Policy::Ephemeral;
            let known = guest.id.is_some_and(|id| clean.contains(&id));
            writes && known && !guest.plan.switches && guest.plan.group.is_empty()
        };
        (0..self.guests.len()).filter(plain).collect()
    }

    /// While no daemon has them another program writes some of these images.
    pub(crate) fn foreign_writes(&mut self, volumes: &[usize]) {
        for &at in volumes {
            if self.plan.rates.foreign == 0 || !self.rng.chance(self.plan.rates.foreign) {
                continue;
            }
            self.now += FOREIGN_NS + self.rng.below(FOREIGN_NS);
            if self.devices.origins[self.guests[at].plan.origin].top {
                self.make_anew(at);
                continue;
            }
            for _ in 0..1 + self.rng.below(FOREIGN_MAX) {
                self.foreign_write(at);
            }
        }
    }

    /// Another program makes an image that allocates anew, with one write more.
    fn make_anew(&mut self, at: usize) {
        let (sector, serial, bytes) = self.foreign_bytes(at);
        let origin = self.guests[at].plan.origin;
        let file = crate::devices::File::Image(origin);
        let (time, seed) = (self.devices.stamp(file, self.now), self.rng.word());
        let here = &mut self.devices.origins[origin];
        let mut disk = tops::disk(here, here.disk_bytes() as usize).expect("it was judged");
        disk[sector as usize * stamp::SECTOR_BYTES..][..bytes.len()].copy_from_slice(&bytes);
        let top = here.below.image_over(&disk, seed);
        here.image.replace(top, time);
        self.trace.counters.images.tops.foreign += 1;
        self.trace.tell(format_args!(
            "another program makes the image of v{at} anew, with #{serial}"
        ));
    }

    /// What another program writes.
    fn foreign_bytes(&mut self, at: usize) -> (u64, u64, Vec<u8>) {
        let clock = self.clock();
        let sectors = self.guests[at].model.sectors();
        let count = self.rng.range(1, 65).min(sectors);
        let sector = self.rng.below(sectors - count + 1);
        let guest = &mut self.guests[at];
        let serial = guest.submit(clock, Kind::Stamp, (sector, count), true);
        guest.acknowledge(clock, serial);
        if let Some(origin) = &mut guest.origin {
            let point = origin.flush_begin();
            origin.flush_done(point);
        }
        let mut bytes = vec![0; count as usize * stamp::SECTOR_BYTES];
        stamp::fill(&mut bytes, guest.tag, sector, serial);
        (sector, serial, bytes)
    }

    /// To its guest it is as if a write of its own had been answered and flushed.
    fn foreign_write(&mut self, at: usize) {
        let (sector, serial, bytes) = self.foreign_bytes(at);
        let file = crate::devices::File::Image(self.guests[at].plan.origin);
        let mut time = self.devices.stamp(file, self.now);
        if self.sabotage == Some(Sabotage::SameTimes) {
            time = self.devices.disk(file).mtime();
        }
        let disk = self.devices.disk(file);
        let offset = sector * stamp::SECTOR_BYTES as u64;
        let count = bytes.len() / stamp::SECTOR_BYTES;
        let ticket = disk.start(Change::Bytes { offset, bytes });
        disk.finish(ticket, false, time, &mut self.rng);
        let point = disk.sync_point();
        disk.sync_done(point);
        self.trace.counters.foreign_writes += 1;
        self.trace.tell(format_args!(
            "another program writes #{serial} to the image of v{at}, {count} sectors from {sector}"
        ));
    }

    /// What a volume leaves beside its image when it is detached: nothing.
    pub(crate) fn check_left(&mut self, volume: usize, id: VolumeId) -> Result<(), Broken> {
        self.trace.counters.detaches += 1;
        let beside = [Device::Ledger(id), Device::Journal(id)];
        for device in beside {
            let file = self.devices.file(device);
            let bytes = self.devices.disk(file).size();
            if bytes > 0 {
                return Err(
                    format!("v{volume} was detached and leaves {bytes} bytes: {device:?}").into(),
                );
            }
        }
        Ok(())
    }
}
