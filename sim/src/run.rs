//! One run from a seed to a verdict.
//!
//! Always true: the same options give the same trace hash. Deliberately absent: everything that
//! happens in between.

use crate::broken::Class;
use crate::guest::{Guest, Request};
use crate::host::Ending;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::trace::Counters;
use crate::world::{Broken, Sabotage, Step, World};
use engine::snapshot::{CacheState, State};
use engine::types::{Policy, Time};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use workload::check::Crash;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Guest requests in the whole run.
    pub operations: u64,
    /// Crashes and stops, further ones during recovery not counted.
    pub restarts: u32,
    /// A rule that the host is to break.
    pub sabotage: Option<Sabotage>,
    /// Let a power loss keep the last acknowledged write in part.
    pub tearing: bool,
    /// Tell every event and action on standard error.
    pub verbose: bool,
    /// Keep the last deeds and faults, for a failure.
    pub story: bool,
    /// Blocks of the log that rot after the first life, the only copies of what is in them; then
    /// one more life judges what is left.
    pub spoiled: u64,
    /// Instead of the plan of the seed.
    pub plan: Option<Plan>,
    /// Instead of the endings of the seed.
    pub endings: Vec<Ending>,
}

impl Options {
    /// As the tests run it: at least a thousand operations and one restart.
    pub fn from_seed(seed: u64) -> Options {
        Options {
            seed,
            operations: 1000,
            restarts: 1 + (seed % 4) as u32,
            sabotage: None,
            tearing: false,
            verbose: false,
            story: false,
            spoiled: 0,
            plan: None,
            endings: Vec::new(),
        }
    }
}

/// A run that kept all promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub trace_hash: u64,
    pub counters: Counters,
}

/// A run that did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub class: Class,
    pub message: String,
    pub seed: u64,
    pub step: u64,
    /// What was done last, if the options asked for it.
    pub story: Vec<String>,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            message,
            seed,
            step,
            ..
        } = self;
        let class = self.class.name();
        write!(f, "seed {seed}, step {step}: {class}: {message}")
    }
}

/// Runs a host with its guests through faults and restarts.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let plan = options
        .plan
        .clone()
        .unwrap_or_else(|| Plan::from_seed(options.seed));
    let mut world = World::new(plan, options.seed, options.sabotage, options.verbose);
    world.trace.note(format_args!("{:#?}", world.plan));
    if options.story {
        world.trace.keep_story();
    }
    if options.tearing {
        world.guests.iter_mut().for_each(Guest::allow_tearing);
    }
    // An assert of the engine is a finding like any other; where panics abort there is no report.
    let driven = catch_unwind(AssertUnwindSafe(|| drive(&mut world, options)));
    let driven = driven.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or(panic.downcast_ref::<&str>().copied());
        Err(Broken::crash(format!(
            "panic: {}",
            words.unwrap_or("without words")
        )))
    });
    match driven {
        Ok(()) => Ok(Outcome {
            trace_hash: world.trace.hash(),
            counters: world.trace.counters,
        }),
        Err(Broken { class, words }) => {
            let step = world.trace.counters.steps;
            Err(Failure {
                class,
                message: words,
                seed: options.seed,
                step,
                story: world.trace.story(),
            })
        }
    }
}

fn drive(world: &mut World, options: &Options) -> Result<(), Broken> {
    if options.spoiled > 0 {
        return crate::spoil::drive(world, options);
    }
    let mut rng = Rng::new(options.seed ^ 0xE4D);
    world.format()?;
    world.start()?;
    let lives = u64::from(options.restarts) + 1;
    for life in 0..u64::from(options.restarts) {
        let left = options
            .operations
            .saturating_sub(world.trace.counters.operations);
        let ending = match options.endings.get(life as usize) {
            Some(&ending) => ending,
            None => rng.pick(&[
                Ending::Kill,
                Ending::Kill,
                Ending::KillInMemory,
                Ending::KillInMemory,
                Ending::PowerLoss,
                Ending::PowerLoss,
                Ending::PowerLoss,
                Ending::Orderly { power_off: false },
                Ending::Orderly { power_off: true },
            ]),
        };
        world.live((left / (lives - life)).max(1), ending)?;
        world.ended(ending);
        world.start()?;
    }
    finish(world, options)
}

/// Spends the rest, then shows that without faults everything comes to an end: all requests are
/// answered, all dirty data reaches its origin, and the volumes read as they should.
fn finish(world: &mut World, options: &Options) -> Result<(), Broken> {
    world.budget = options
        .operations
        .saturating_sub(world.trace.counters.operations);
    world.plan.rates.cache_gone = 0;
    world.wake_guests();
    // As in a life: faults may delay each of many requests, but somebody has to get on.
    while world.budget > 0 {
        let before = world.budget;
        if world.run_while(|world| world.budget == before, "guests")? == Step::Struck {
            break;
        }
    }
    world.quiet()?;
    for volume in 0..world.guests.len() {
        if world.guests[volume].rest.is_some() {
            world.submit(volume, Request::Resume)?;
        }
    }
    world.quiet()?;
    // An order to destage is refused as long as the device is not known to be good again.
    world.run_while(is_cache_bad, "the cache device")?;
    for volume in 0..world.guests.len() {
        let guest = &mut world.guests[volume];
        if guest.id.is_none() {
            continue;
        }
        guest.crash = Some(Crash::Kill);
        if guest.origin.is_some() {
            world.submit(volume, Request::Destage)?;
        }
    }
    world.quiet()?;
    dirty_is_gone(world)?;
    if world.verify()? != Step::Ran {
        return Err("the last check was struck".into());
    }
    world.run_while(|world| ills(world).is_some(), "everybody")?;
    let rests = world.on_tops();
    if world.plan.detaches {
        for volume in 0..world.guests.len() {
            if world.guests[volume].id.is_some() {
                world.submit(volume, Request::Detach)?;
            }
        }
        world.quiet()?;
    }
    world.rest(&rests)?;
    world.end(Ending::Kill)
}

/// A volume that is in no good state, a request that waits, or a device that is not trusted.
pub(crate) fn ills(world: &World) -> Option<String> {
    let snapshot = world.engine.as_ref()?.snapshot_at(Time(world.now));
    let cache = snapshot.cache_state;
    if cache != CacheState::Good {
        return Some(format!("the cache device is {cache:?}"));
    }
    let attached = snapshot.volumes.into_iter().filter(|it| !it.orphan);
    for it in attached {
        let good = matches!(it.state, State::Clean | State::Dirty);
        let strays = world.guests.iter().any(|guest| {
            let ordered = guest.plan.switches || guest.plan.policy != Policy::WriteBack;
            guest.id == Some(it.id) && !ordered && it.policy != Policy::WriteBack
        });
        if !good || strays || it.past_log || it.waiting_requests > 0 || it.switching_to.is_some() {
            return Some(format!(
                "{} is {} ({}), past its log: {}, {} requests wait, becomes {:?}",
                it.name,
                it.state.name(),
                it.reason.unwrap_or(""),
                it.past_log,
                it.waiting_requests,
                it.switching_to
            ));
        }
    }
    None
}

fn is_cache_bad(world: &World) -> bool {
    let engine = world.engine.as_ref();
    engine.is_some_and(|it| it.snapshot().cache_state != CacheState::Good)
}

fn dirty_is_gone(world: &World) -> Result<(), Broken> {
    let engine = world.engine.as_ref().expect("the engine is open");
    for volume in engine.snapshot().volumes {
        let destaged =
            |guest: &&crate::guest::Guest| guest.id == Some(volume.id) && guest.origin.is_some();
        if world.guests.iter().any(|guest| destaged(&guest)) && volume.dirty_bytes > 0 {
            let (name, dirty) = (volume.name, volume.dirty_bytes);
            return Err(Broken::stuck(format!(
                "{name} is destaged but still has {dirty} dirty bytes"
            )));
        }
    }
    Ok(())
}
