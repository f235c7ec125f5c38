//! The last copy of dirty data destroyed on purpose: blocks of the log rot while a host is down.
//!
//! Everything acknowledged is in the log and synced, the stage is gone with the power, and then
//! bits of some blocks of the log flip for good. Always true: what a guest can still read is right,
//! sector by sector; what it cannot read is an error, its volume
//! is `damaged` or `held`, or recovery
//! has
//! told of damage or refused to start; a destage that is answered has brought all of it; and an
//! origin stays a prefix of the guest's writes. Deliberately absent: what may be lost.

use crate::devices::flip;
use crate::disk::Change;
use crate::guest::Request;
use crate::host::Ending;
use crate::run::Options;
use crate::world::{Broken, Step, World};
use engine::engine::device_bytes;
use engine::snapshot::State;
use engine::types::BLOCK_BYTES;
use workload::stamp::SECTOR_BYTES;

/// Sectors of one read of the check: what lies beside a bad block is still read.
pub const PART_SECTORS: u64 = 8;
/// Time for destages that meet damage.
const AFTER_NS: u64 = 150_000_000_000;

/// One life, the damage, and another life.
pub fn drive(world: &mut World, options: &Options) -> Result<(), Broken> {
    world.format()?;
    world.start()?;
    world.live(options.operations, Ending::Orderly { power_off: true })?;
    world.spoil(options.spoiled);
    world.plan.rates.crash_in_recovery = 0;
    if let Err(broken) = world.start() {
        // A log that lacks what was flushed may be refused as a whole, with words.
        let told = broken.words.starts_with("recovery refuses");
        world.trace.counters.spoiled_told += u64::from(told);
        return if told { Ok(()) } else { Err(broken) };
    }
    world.check_told()?;
    for volume in 0..world.guests.len() {
        // What a held volume still has is no prefix; it goes to the origin by order alone, which is
        // how its administrator accepts the loss.
        if world.state_of(volume).is_some_and(|it| it != State::Held) {
            world.submit(volume, Request::Destage)?;
        }
    }
    let end = world.now + AFTER_NS;
    while world.now < end && world.step()? == Step::Ran {}
    world.check_origins(true)
}

impl World {
    /// Bits flip, for good, in so many blocks of the log that hold something.
    fn spoil(&mut self, blocks: u64) {
        let first =
            (device_bytes(self.plan.geometry) - self.plan.geometry.log_bytes()) / BLOCK_BYTES;
        let all = self.devices.cache.size() / BLOCK_BYTES;
        let used = |at: &u64| {
            self.devices
                .cache
                .has(at * BLOCK_BYTES, BLOCK_BYTES as usize)
        };
        let used: Vec<u64> = (first..all).filter(used).collect();
        for _ in 0..blocks.min(used.len() as u64) {
            let offset = self.rng.pick(&used) * BLOCK_BYTES;
            let mut bytes = vec![0; BLOCK_BYTES as usize];
            self.devices.cache.read_landed(offset, &mut bytes);
            flip(&mut bytes, &mut self.rng);
            let change = Change::Bytes { offset, bytes };
            let ticket = self.devices.cache.start(change);
            self.devices
                .cache
                .finish(ticket, false, self.now, &mut self.rng);
            let point = self.devices.cache.sync_point();
            self.devices.cache.sync_done(point);
            self.trace.counters.spoiled_blocks += 1;
            self.trace
                .tell(format_args!("a block of the log rots: {offset}"));
        }
        self.spoiled = true;
        self.found_fault();
    }

    /// A part of a volume cannot be read: it is judged as if it were right, and has to be told.
    pub(crate) fn part_lost(&mut self, volume: usize, sector: u64) {
        let guest = &mut self.guests[volume];
        let sectors = PART_SECTORS.min(guest.model.sectors() - sector);
        let whole = guest.whole.as_mut().expect("it is being read");
        let bytes = &mut whole.image[sector as usize * SECTOR_BYTES..];
        let bytes = &mut bytes[..sectors as usize * SECTOR_BYTES];
        guest.model.fill_newest(sector, bytes);
        guest.lost += sectors;
        self.trace.counters.spoiled_sectors += sectors;
    }

    fn state_of(&self, volume: usize) -> Option<State> {
        let id = self.guests[volume].id?;
        let volumes = self.engine.as_ref()?.snapshot().volumes;
        volumes
            .into_iter()
            .find(|it| it.id == id)
            .map(|it| it.state)
    }

    /// Who cannot read something is told so by the state of the volume.
    fn check_told(&mut self) -> Result<(), Broken> {
        for (at, guest) in self.guests.iter().enumerate().filter(|it| it.1.lost > 0) {
            let state = self.state_of(at);
            // A pending journal may have had it, and has brought it to the image since.
            let had_copy = guest.journal_left && state == Some(State::Clean);
            if !matches!(state, Some(State::Damaged | State::Held)) && !had_copy {
                let lost = guest.lost;
                return Err(format!("v{at} cannot read {lost} sectors and is {state:?}").into());
            }
            self.trace.counters.spoiled_told += 1;
        }
        Ok(())
    }
}
