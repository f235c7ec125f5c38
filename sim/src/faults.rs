//! Faults of the moment: what fails, hangs, is full, slow, dead or unreadable, and the clock.
//!
//! Owns the troubles of origins and of the cache device. Always true: a device that is to be
//! trusted again after two bad reads of a block is (the last good copy of something promised is
//! never destroyed); a healed host has no fault left, and delays are no faults. Deliberately
//! absent: when guests ask, which is when most faults begin ([`requests`](crate::requests)).

use crate::devices::File;
use crate::disk::Damage;
use crate::plan::VolumePlan;
use crate::world::World;
use engine::event::{Device, Io, IoError, Op, Purpose};
use engine::format::ledger::LEDGER_BYTES;
use engine::snapshot::State;
use engine::types::{BLOCK_BYTES, Policy};
use std::collections::BTreeMap;

/// Bad reads of one block in one life; the third must be good.
const BAD_READS_MAX: u8 = 2;
/// The wall clock goes back by up to a day at once.
const BACK_NS_MAX: u64 = 86_400_000_000_000;
/// And ahead by so much, or the host was suspended for so long, twice in a life: together less than
/// the ten minutes for which a journal under way may at least still change the time of its image.
const AHEAD_NS_MAX: u64 = 240_000_000_000;

/// How an origin misbehaves at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    hangs_until: u64,
    fails_until: u64,
    full_until: u64,
}

/// Everything that is wrong at the moment.
#[derive(Debug, Default)]
pub struct Faults {
    troubles: Vec<Trouble>,
    /// The cache device takes nothing until then, and perhaps gives nothing.
    dead_until: u64,
    dead_to_reads: bool,
    /// Time of the last fault that a guest may be told of.
    at: u64,
    /// Bad reads of blocks of the cache device in this life.
    bad_reads: BTreeMap<u64, u8>,
    /// Jumps of the wall clock ahead in this life.
    ahead: u32,
    /// Time in which the host stood still.
    leapt: u64,
}

impl Faults {
    pub fn new(origins: usize) -> Faults {
        Faults {
            troubles: vec![Trouble::default(); origins],
            ..Faults::default()
        }
    }

    /// A daemon ends, and with it what it remembers of its device.
    pub fn life_ends(&mut self) {
        self.bad_reads.clear();
        self.ahead = 0;
    }
}

/// What becomes of a request to a device.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    pub result: Result<(), IoError>,
    /// A read brings a bit that is not on the device.
    pub flipped: bool,
}

impl Fate {
    fn of(result: Result<(), IoError>) -> Fate {
        let flipped = false;
        Fate { result, flipped }
    }
}

impl World {
    pub(crate) fn is_dead(&self, io: &Io) -> bool {
        let reads = self.faults.dead_to_reads;
        let dead = self.now < self.faults.dead_until && (reads || io.op != Op::Read);
        io.device == Device::Cache && dead
    }

    /// What a request will come to.
    pub(crate) fn fate(&mut self, io: &Io) -> Fate {
        // No guest may ever be told of these.
        if io.purpose == Purpose::LineRead && self.rng.chance(self.plan.rates.rot / 4) {
            self.trace.counters.lines_rotten += 1;
            return Fate::of(Err(IoError::Failed));
        }
        if self.healthy {
            return Fate::of(Ok(()));
        }
        if self.is_dead(io) {
            self.faults.at = self.now;
            return Fate::of(Err(IoError::Failed));
        }
        match self.devices.file(io.device).origin() {
            None => self.fate_at_cache(io),
            Some(origin) => Fate::of(self.fate_at_origin(io, origin)),
        }
    }

    fn fate_at_cache(&mut self, io: &Io) -> Fate {
        let rates = &self.plan.rates;
        let counters = &mut self.trace.counters;
        let (rate, counter) = match io.op {
            Op::Write | Op::Zero { .. } => {
                (rates.cache_write_error, &mut counters.cache_write_errors)
            }
            Op::Sync => (rates.cache_sync_error, &mut counters.cache_sync_errors),
            Op::Read => return self.fate_of_read(io),
            Op::Unpack(_) | Op::Stat | Op::Remove | Op::Resize => return Fate::of(Ok(())),
        };
        let rate = match io.purpose {
            Purpose::Checkpoint => rate.max(rates.checkpoint_error),
            _ => rate,
        };
        if !self.rng.chance(rate) {
            return Fate::of(Ok(()));
        }
        *counter += 1;
        self.faults.at = self.now;
        Fate::of(Err(IoError::Failed))
    }

    /// A read of the log fails or brings a wrong bit, but not for long.
    fn fate_of_read(&mut self, io: &Io) -> Fate {
        let rates = &self.plan.rates;
        let rate = match io.purpose {
            // Those of clean blocks and of scrubs have rates of their own.
            Purpose::LineRead => 0,
            Purpose::Scrub => rates.rot / 20,
            _ => rates.cache_read_error,
        };
        let good = Fate::of(Ok(()));
        if rate == 0 || !self.rng.chance(rate) {
            return good;
        }
        let bad = &mut self.faults.bad_reads;
        let blocks = io.offset / BLOCK_BYTES..(io.offset + io.bytes).div_ceil(BLOCK_BYTES);
        let worn = |block| bad.get(&block).is_some_and(|&it| it >= BAD_READS_MAX);
        if blocks.clone().any(worn) {
            return good;
        }
        for block in blocks {
            *bad.entry(block).or_default() += 1;
        }
        self.trace.counters.cache_read_errors += 1;
        let flipped = self.rng.chance(500);
        let result = if flipped {
            Ok(())
        } else {
            Err(IoError::Failed)
        };
        Fate { result, flipped }
    }

    fn fate_at_origin(&mut self, io: &Io, origin: usize) -> Result<(), IoError> {
        let longer = self.makes_longer(io, origin);
        let counters = &mut self.trace.counters;
        let trouble = self.faults.troubles[origin];
        if self.now < trouble.fails_until && self.rng.chance(700) {
            counters.origin_errors += 1;
            self.faults.at = self.now;
            return Err(IoError::Failed);
        }
        let grows = match io.device {
            Device::Journal(_) => true,
            Device::Origin(_) => self.plan.rates.all_full || longer,
            Device::Ledger(_) => self.plan.rates.all_full,
            Device::Cache | Device::Base(..) | Device::Former(_) | Device::Peer(..) => false,
        };
        let writes = io.op == Op::Write || longer;
        if grows && writes && self.now < trouble.full_until {
            counters.origin_full += 1;
            self.faults.at = self.now;
            return Err(IoError::NoSpace);
        }
        Ok(())
    }

    pub(crate) fn latency(&mut self, io: &Io) -> u64 {
        let file = self.devices.file(io.device);
        let times = self.slowness(file);
        let rng = &mut self.rng;
        let slow = rng.chance(20);
        match file.origin() {
            None if slow => times * rng.range(200_000, 20_000_000),
            None => times * rng.range(20_000, 200_000),
            Some(origin) => {
                let time = match slow {
                    true => rng.range(5_000_000, 300_000_000),
                    false => rng.range(300_000, 5_000_000),
                };
                let hangs = self.faults.troubles[origin].hangs_until;
                hangs.saturating_sub(self.now) + times * time
            }
        }
    }

    /// By how much everything takes longer now: all the time, or in bursts.
    fn slowness(&self, file: File) -> u64 {
        let rates = &self.plan.rates;
        let burst = rates.burst_ns == 0 || self.now / rates.burst_ns % 2 == 1;
        match file {
            _ if self.healthy || !burst => 1,
            File::Cache => rates.cache_slow,
            _ => rates.origin_slow,
        }
    }

    /// What a failed sync may do. Without a cache nobody but the guest could write again; and
    /// spilled overlays are never synced, so a device that drops them has lost them.
    pub(crate) fn damage(&self, file: File) -> Damage {
        let any = |kind: fn(&VolumePlan) -> bool| {
            let mine = |origin| file.origin().is_none_or(|at| at == origin);
            let plans = self.guests.iter().map(|guest| &guest.plan);
            plans
                .into_iter()
                .any(|plan| kind(plan) && mine(plan.origin))
        };
        match file {
            File::Cache if any(|plan| plan.policy == Policy::Ephemeral) => Damage::Doomed,
            File::Image(_) if any(VolumePlan::goes_direct) => Damage::None,
            _ => Damage::Dropped,
        }
    }

    /// Whether a power loss may leave garbage in a sector that was being written: where whoever
    /// wrote it writes it again, or knows that it may be torn.
    pub(crate) fn takes_garbage(&self, file: File) -> bool {
        let origin = match file {
            // Of the first one ever written there is no other copy.
            File::Ledger(origin) => {
                let ledger = &self.devices.origins[origin].ledger;
                let bytes = LEDGER_BYTES as u64;
                return ledger.has(0, LEDGER_BYTES) && ledger.has(bytes, LEDGER_BYTES);
            }
            // After a kill recovery writes the stage to the log again, because a sync may have
            // failed before: of what was flushed that is the last copy.
            File::Cache => return self.served,
            File::Journal(_) => return true,
            File::Base(..) => return false,
            File::Image(origin) => origin,
        };
        let mut guests = self.guests.iter().filter(|it| it.plan.origin == origin);
        guests.all(|it| it.plan.policy == Policy::WriteBack && it.is_atomic())
    }

    /// Ends all faults of devices, for good or until the guests go on.
    pub fn heal(&mut self, healthy: bool) {
        self.healthy = healthy;
        self.faults.troubles.fill(Trouble::default());
        self.faults.dead_until = 0;
        self.put_back_soon();
    }

    /// Perhaps the cache device dies, an origin begins to hang, to fail or to be full, or the
    /// clock jumps.
    pub fn make_trouble(&mut self) {
        if self.now < self.faults.dead_until {
            self.look_at_dead_cache();
        } else if !self.healthy && self.rng.chance(self.plan.rates.cache_dies) {
            let seconds = self.rng.pick(&[5, 20, 60, 120]);
            self.faults.dead_until = self.now + self.rng.below(seconds * 1_000_000_000);
            self.faults.dead_to_reads = self.rng.chance(500);
            self.trace.counters.cache_deaths += 1;
            let words = match self.faults.dead_to_reads {
                true => "",
                false => " to writes",
            };
            let until = self.faults.dead_until as f64 / 1e6;
            self.trace.tell(format_args!(
                "the cache device is dead{words} until {until:.3}"
            ));
        }
        let jumps = self.plan.rates.clock_jumps;
        if jumps > 0 && !self.healthy && self.rng.chance(jumps) {
            self.clock_jumps();
        }
        if self.healthy || !self.rng.chance(self.plan.rates.origin_trouble) {
            return;
        }
        let origin = self.rng.below(self.faults.troubles.len() as u64) as usize;
        let until = self.now + self.rng.below(5_000_000_000);
        let trouble = &mut self.faults.troubles[origin];
        match self.rng.below(3) {
            0 => {
                trouble.hangs_until = until + self.rng.below(10_000_000_000);
                // A read may end before its origin answers.
                self.faults.at = self.now;
            }
            1 => trouble.fails_until = until,
            _ => trouble.full_until = until,
        }
        let trouble = *trouble;
        self.trace
            .tell(format_args!("origin {origin}: {trouble:?}"));
    }

    /// The wall clock is set, or the host stood still for a while.
    fn clock_jumps(&mut self) {
        let counters = &mut self.trace.counters;
        counters.clock_jumps += 1;
        let sort = self.rng.below(3);
        let ahead = self.faults.ahead < 2;
        self.faults.ahead += u32::from(ahead && sort < 2);
        if ahead && sort == 0 {
            self.devices.wall_ns += self.rng.below(AHEAD_NS_MAX) as i64;
        } else if ahead && sort == 1 && self.plan.rates.cache_sync_error == 0 {
            // Behind errors of the cache device it would look as if that were dead for as long.
            let leap = self.rng.below(AHEAD_NS_MAX);
            self.now += leap;
            self.faults.leapt += leap;
        } else {
            self.devices.wall_ns -= self.rng.below(BACK_NS_MAX) as i64;
        }
        let wall = self.devices.wall_ns as f64 / 1e9;
        self.trace.tell(format_args!(
            "the clock jumps: wall clock off by {wall:.0} s"
        ));
    }

    /// While nothing runs the wall clock may become any other.
    pub(crate) fn clock_is_set(&mut self) {
        if self.plan.rates.clock_jumps > 0 && self.rng.chance(300) {
            self.trace.counters.clock_jumps += 1;
            let by = self.rng.below(20 * BACK_NS_MAX) as i64;
            self.devices.wall_ns = by - 10 * BACK_NS_MAX as i64;
        }
    }

    fn look_at_dead_cache(&mut self) {
        let Some(engine) = &self.engine else { return };
        let counters = &mut self.trace.counters;
        for volume in engine.snapshot().volumes {
            counters.seen_past_log += u64::from(volume.past_log);
            counters.seen_held += u64::from(volume.state == State::Held);
        }
    }

    /// Time in which something could have happened.
    pub(crate) fn waking(&self) -> u64 {
        self.now - self.faults.leapt
    }

    /// From now on a guest may be told of a fault.
    pub(crate) fn found_fault(&mut self) {
        self.faults.at = self.now;
    }

    /// Whether a device has failed since the run began, so that a guest may be told of it.
    pub fn faulty(&self) -> bool {
        self.faults.at > 0
    }
}
