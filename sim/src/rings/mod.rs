//! The rings of a disk between a guest and a daemon that is killed between any two of its stores.
//!
//! Owns one run: a guest with one to four queues, a daemon that ends its requests in any order,
//! many lives of it, each ended by a kill, some while it repairs what the one before left behind.
//! Always true: `vring` is the product's own; a daemon that is dead stores nothing more and knows
//! nothing afterwards but the shared memories and its stage; a run follows from its seed.
//! Deliberately absent: what requests do to a disk, see [`crate::world`].

mod daemon;
mod guest;
mod memory;
mod oracle;

use crate::rng::Rng;
use daemon::Daemon;
use guest::Guest;
use memory::Machine;
use oracle::Oracle;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use vring::inflight::Layout;
use vring::{Counter, Head, Queue};

/// A rule that is broken on purpose, to see that the oracle notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Each life begins with an empty region.
    RegionIgnored,
    /// A head is flagged before its counter is there.
    CounterAfterFlag,
    /// A repair leaves `used_idx` as it was.
    UsedIndexNotRepaired,
    /// The list of a batch has no head.
    LastBatchHeadNotSet,
    /// `used_idx` says that the batch is settled while its flags are still there.
    FlagsAfterUsedIndex,
    /// What runs again does so queue by queue.
    OrderByQueue,
    /// A life gives counters again that another one gave to requests that have ended.
    CountersForgotten,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub lives: u32,
    pub sabotage: Option<Sabotage>,
}

impl Options {
    pub fn from_seed(seed: u64) -> Options {
        Options {
            seed,
            lives: 60,
            sabotage: None,
        }
    }
}

/// What happened. A run in which something never does proves nothing about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub requests: u64,
    pub kills: u64,
    /// Of these: before the first new request was taken.
    pub kills_in_repair: u64,
    pub run_again: u64,
    pub found_in_stage: u64,
    pub interrupts: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        self.requests += other.requests;
        self.kills += other.kills;
        self.kills_in_repair += other.kills_in_repair;
        self.run_again += other.run_again;
        self.found_in_stage += other.found_in_stage;
        self.interrupts += other.interrupts;
    }
}

/// What both sides share, and what outlives a daemon.
struct World {
    rng: Rng,
    layout: Layout,
    sabotage: Option<Sabotage>,
    machine: Rc<Machine>,
    /// The writes that were acknowledged in the stage, by the name that the rings gave them.
    stage: BTreeSet<(Queue, Head, Counter)>,
    oracle: Oracle,
    counters: Counters,
}

/// Steps of the last life in which the guest still asks for more: a wish to be woken that is lost
/// is found only where no next life looks by itself.
const LAST_STEPS: u32 = 2_000;
/// Steps after which everything that was asked for must have been answered.
const STEPS_MAX: u32 = 20_000;

/// One run. The error is what was noticed, and in which life.
pub fn run(options: &Options) -> Result<Counters, String> {
    let mut rng = Rng::new(options.seed);
    let layout = Layout {
        queues: rng.range(1, 5) as u16,
        size: 4 << rng.below(3),
    };
    let machine = Rc::new(Machine::new(layout, options.sabotage));
    let mut guest = Guest::new(&mut rng, layout, &machine.guest);
    let world = &mut World {
        rng,
        layout,
        sabotage: options.sabotage,
        machine,
        stage: BTreeSet::new(),
        oracle: Oracle::default(),
        counters: Counters::default(),
    };
    for life in 0..options.lives {
        live(world, &mut guest, true).map_err(|what| format!("life {life}: {what}"))?;
    }
    live(world, &mut guest, false).map_err(|what| format!("the last life: {what}"))?;
    Ok(world.counters)
}

/// A life of the daemon, to a kill, or until everything is answered and the guest knows.
fn live(world: &mut World, guest: &mut Guest, mortal: bool) -> Result<(), String> {
    // A quarter of the lives end while they repair what was left behind.
    let stores = match (mortal, world.rng.chance(250)) {
        (false, _) => u64::MAX,
        (true, true) => world.rng.below(20),
        (true, false) => world.rng.below(400),
    };
    world.machine.begin_life(stores, world.rng.word());
    world.oracle.begin_life();
    let daemon = Daemon::start(world, guest)?;
    let took_new = Rc::new(Cell::new(false));
    let Some(mut daemon) = daemon else {
        return end(world, &took_new);
    };
    let mut steps = 0;
    loop {
        let calm = !mortal && steps > LAST_STEPS;
        if calm && guest.is_quiet() {
            return Ok(());
        }
        steps += 1;
        if steps > STEPS_MAX {
            return Err(format!("nobody moves: {}", guest.describe()));
        }
        match world.rng.below(6) {
            0 if !calm => guest.offer(world, &mut daemon)?,
            0 | 1 => guest.reap(world)?,
            2 => daemon.take(world, &took_new)?,
            3 => daemon.apply(world)?,
            4 => daemon.complete(world)?,
            _ => daemon.publish(world, guest)?,
        }
        if world.machine.is_dead() {
            return end(world, &took_new);
        }
    }
}

fn end(world: &mut World, took_new: &Cell<bool>) -> Result<(), String> {
    world.counters.kills += 1;
    world.counters.kills_in_repair += u64::from(!took_new.get());
    Ok(())
}
