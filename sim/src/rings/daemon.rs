//! One life of the daemon's side of the rings.
//!
//! Owns what a life has in its hands, which ends with it, and the use of the stage, which does not:
//! there a write leaves queue, head and counter when it is acknowledged, for ever. Always true: the
//! daemon looks at a queue only when it was kicked, or after it has found more; it runs requests in
//! the order in which they came and ends them in any.

use super::guest::Guest;
use super::memory::Mapped;
use super::{Sabotage, World};
use std::cell::Cell;
use std::rc::Rc;
use vring::block::{Command, Disk, Parsed, Reply, Scratch, Status};
use vring::chain::{Batch, Chain, Taken};
use vring::memory::{Address, Memory};
use vring::rings::{Rings, Shared};
use vring::{Counter, Head, Queue};

/// A request in the hands of this life.
struct Running {
    taken: Taken,
    id: u64,
    reply: Reply,
    is_write: bool,
    applied: bool,
}

pub struct Daemon {
    rings: Rings,
    guest: Mapped,
    region: Mapped,
    disk: Disk,
    scratch: Scratch,
    batch: Batch,
    running: Vec<Running>,
    kicked: Vec<bool>,
    /// Something may be there to publish, or the first interrupt is owed.
    unpublished: Vec<bool>,
}

fn disk() -> Disk {
    Disk {
        capacity_sectors: 1 << 40,
        block_bytes: 512,
        read_only: false,
        flush: true,
        discard: None,
        write_zeroes: None,
        data_bytes_max: 4096,
        segments_max: 8,
        id: [0; 20],
    }
}

impl Daemon {
    /// Starts all rings in any order. None if the kill comes before they run.
    pub fn start(world: &mut World, guest: &Guest) -> Result<Option<Daemon>, String> {
        let map = |is_region| Mapped {
            machine: Rc::clone(&world.machine),
            is_region,
        };
        let (memory, region) = (map(false), map(true));
        let queues = usize::from(world.layout.queues);
        sabotage_region(world);
        let rings = Rings::open(world.layout, &region);
        let mut daemon = Daemon {
            rings: rings.map_err(|error| error.to_string())?,
            guest: memory,
            region,
            disk: disk(),
            scratch: Scratch::default(),
            batch: Batch::default(),
            running: Vec::new(),
            kicked: vec![true; queues],
            unpublished: vec![true; queues],
        };
        let mut order: Vec<u16> = (0..world.layout.queues).collect();
        world.machine.repairing.set(true);
        while !order.is_empty() && !world.machine.is_dead() {
            let at = world.rng.below(order.len() as u64) as usize;
            let queue = Queue(order.swap_remove(at));
            daemon.start_ring(queue, guest)?;
        }
        world.machine.repairing.set(false);
        if world.machine.is_dead() {
            return Ok(None);
        }
        daemon.run_again(world)?;
        Ok((!world.machine.is_dead()).then_some(daemon))
    }

    /// The front end knows the used index only, when a daemon was killed.
    fn start_ring(&mut self, queue: Queue, guest: &Guest) -> Result<(), String> {
        let setup = guest.setup(queue);
        let index = self.guest.load_u16(Address(setup.used.0 + 2));
        let base = index.expect("a ring inside");
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        let started = self.rings.start(queue, setup, base, &shared);
        started.map_err(|error| error.to_string())
    }

    /// Everything that lives before this one left behind.
    fn run_again(&mut self, world: &mut World) -> Result<(), String> {
        let by_queue = world.sabotage == Some(Sabotage::OrderByQueue);
        while self.rings.again() > 0 {
            let limit = match by_queue {
                true => usize::MAX,
                false => world.rng.range(1, 6) as usize,
            };
            self.batch.clear();
            let shared = Shared {
                guest: &self.guest,
                region: &self.region,
            };
            self.rings.take_again(&shared, limit, &mut self.batch);
            let mut came = self.understand()?;
            if by_queue {
                came.sort_by_key(|it| (it.taken.queue, it.taken.counter));
            }
            for mut request in came {
                world.oracle.again(request.id)?;
                let staged = world.stage.contains(&name(&request.taken));
                world.oracle.looked_up(request.id, staged)?;
                request.applied = staged;
                world.counters.run_again += u64::from(!staged);
                world.counters.found_in_stage += u64::from(staged);
                self.running.push(request);
            }
        }
        Ok(())
    }

    pub fn kick(&mut self, queue: Queue) {
        self.kicked[usize::from(queue.0)] = true;
    }

    /// Takes from a queue that was kicked, and asks for the next kick when it has nothing more.
    pub fn take(&mut self, world: &mut World, took_new: &Cell<bool>) -> Result<(), String> {
        let queue = Queue(world.rng.below(self.kicked.len() as u64) as u16);
        if !self.kicked[usize::from(queue.0)] {
            return Ok(());
        }
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        if world.rng.chance(200) {
            let refused = self.rings.refuse_kicks(queue, &shared);
            refused.map_err(|error| error.to_string())?;
        }
        self.batch.clear();
        let limit = world.rng.range(1, 5) as usize;
        let taken = self.rings.take(queue, &shared, limit, &mut self.batch);
        let taken = taken.map_err(|error| format!("{queue:?}: {error}"))?;
        if taken == 0 {
            let more = self.rings.ask_for_kick(queue, &shared);
            self.kicked[usize::from(queue.0)] = more.map_err(|error| error.to_string())?;
        }
        let alive = !world.machine.is_dead();
        for request in self.understand()? {
            world.oracle.taken(request.id, alive)?;
            took_new.set(true);
            self.running.push(request);
        }
        Ok(())
    }

    /// The requests of the batch.
    fn understand(&mut self) -> Result<Vec<Running>, String> {
        let mut came = Vec::new();
        for (taken, chain) in self.batch.iter() {
            came.push(parse(
                &self.disk,
                &self.guest,
                &mut self.scratch,
                taken,
                &chain,
            )?);
        }
        Ok(came)
    }

    /// The effect of a request, in one step: for a write, the entry in the stage.
    pub fn apply(&mut self, world: &mut World) -> Result<(), String> {
        let Some(at) = any(world, self.running.len()) else {
            return Ok(());
        };
        let request = &mut self.running[at];
        if !request.applied {
            request.applied = true;
            world.oracle.applied(request.id, request.is_write)?;
            if request.is_write {
                world.stage.insert(name(&request.taken));
            }
        }
        Ok(())
    }

    /// Ends a request that was applied; the guest cannot see it yet, or sees it without a call.
    pub fn complete(&mut self, world: &mut World) -> Result<(), String> {
        let Some(at) = any(world, self.running.len()) else {
            return Ok(());
        };
        if self.running[at].applied {
            let request = self.running.swap_remove(at);
            let written = request.reply.finish(&self.guest, Status::Ok);
            let Taken { queue, head, .. } = request.taken;
            self.rings.complete(queue, head, written);
            self.unpublished[usize::from(queue.0)] = true;
            if world.rng.chance(300) {
                let shared = Shared {
                    guest: &self.guest,
                    region: &self.region,
                };
                // The interrupt comes later, and for all that was shown till then.
                let shown = self.rings.show(queue, &shared);
                shown.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// An interrupt that a killed daemon did not send is lost.
    pub fn publish(&mut self, world: &mut World, guest: &mut Guest) -> Result<(), String> {
        let queue = Queue(world.rng.below(self.unpublished.len() as u64) as u16);
        if !std::mem::take(&mut self.unpublished[usize::from(queue.0)]) {
            return Ok(());
        }
        let shared = Shared {
            guest: &self.guest,
            region: &self.region,
        };
        let wanted = self.rings.publish(queue, &shared);
        let wanted = wanted.map_err(|error| error.to_string())?;
        if wanted && !world.machine.is_dead() {
            guest.interrupt(queue);
        }
        Ok(())
    }
}

fn name(taken: &Taken) -> (Queue, Head, Counter) {
    (taken.queue, taken.head, taken.counter)
}

fn any(world: &mut World, count: usize) -> Option<usize> {
    (count > 0).then(|| world.rng.below(count as u64) as usize)
}

/// The sector of a request is its name.
fn parse(
    disk: &Disk,
    memory: &Mapped,
    scratch: &mut Scratch,
    taken: Taken,
    chain: &Chain,
) -> Result<Running, String> {
    let (id, is_write, reply) = match disk.parse(chain, memory, scratch) {
        Parsed::Run { command, reply } => match command {
            Command::Read { sector, .. } => (sector, false, reply),
            Command::Write { sector, .. } => (sector, true, reply),
            other => return Err(format!("nobody asked for {other:?}")),
        },
        Parsed::Answer { status, .. } => return Err(format!("a good request is {status:?}")),
    };
    Ok(Running {
        taken,
        id,
        reply,
        is_write,
        applied: false,
    })
}

/// What a sabotage does to a region between two lives.
fn sabotage_region(world: &World) {
    let region = &world.machine.region;
    let queues = u64::from(world.layout.queues);
    let stride = world.layout.bytes() / queues;
    match world.sabotage {
        Some(Sabotage::RegionIgnored) => {
            let zeroes = vec![0; world.layout.bytes() as usize];
            region.write(Address(0), &zeroes).expect("inside");
        }
        Some(Sabotage::CountersForgotten) => {
            for queue in 0..queues {
                for head in 0..u64::from(world.layout.size) {
                    let entry = queue * stride + 16 + 16 * head;
                    let mut flag = [0];
                    region.read(Address(entry), &mut flag).expect("inside");
                    if flag == [0] {
                        region.store_u64(Address(entry + 8), 0).expect("inside");
                    }
                }
            }
        }
        _ => {}
    }
}
