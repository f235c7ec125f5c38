//! A cache file that is removed under its daemon.
//!
//! ```text
//! removed ─▶ the daemon sees it ─▶ all goes to the origins, guests go on past the log
//!               │                   └─ found again ─▶ back to the log
//!               └─▶ a life ends: what only this file had is gone, and a new cache is made
//! ```
//!
//! Always true: after an orderly stop nothing is owed, so every volume comes with all that was
//! acknowledged; after any other end a volume comes so as well, or is refused, and then it has what
//! had reached its origin once its loss was accepted. Deliberately absent: a device that fails
//! ([`faults`](crate::faults)), which goes the same way.

use crate::devices::{Blocking, File};
use crate::disk::Disk;
use crate::guest::Guest;
use crate::requests::{CACHE_SEEN, HOST};
use crate::world::{Broken, Wake, World};
use engine::engine::{device_bytes, format_cache};
use engine::event::{Command, Event};
use engine::snapshot::VolumeSnapshot;
use engine::types::{ConnectionId, Policy, RequestId, Uuid};
use workload::check::Crash;

/// The daemon looks for its cache file at least as often.
const SEEN_NS: u64 = 5_000_000_000;
/// And it is found again after so long, if ever.
const BACK_NS: u64 = 20_000_000_000;

/// What became of the data that only a cache which is gone had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLost {
    /// There was none: its daemon had saved all of it.
    InOrder,
    Anyhow,
    /// The loss was accepted.
    Accepted,
}

impl World {
    /// Perhaps the cache file is removed.
    pub(crate) fn remove_cache(&mut self) {
        let rate = self.plan.rates.cache_gone;
        let may = rate > 0 && !self.healthy && !self.cache_gone && self.plan.hosts == 1;
        if !may || !self.rng.chance(rate) {
            return;
        }
        self.cache_gone = true;
        self.trace.counters.images.caches += 1;
        self.trace.tell(format_args!("the cache file is removed"));
        self.found_fault();
        let seen = self.rng.below(SEEN_NS);
        self.later(seen, Wake::Cache { found: false });
        if self.rng.chance(300) {
            let back = seen + self.rng.below(BACK_NS);
            self.later(back, Wake::Cache { found: true });
        }
    }

    /// The daemon has looked for its cache file.
    pub(crate) fn see_cache(&mut self, found: bool) -> Result<(), Broken> {
        self.cache_gone &= !found;
        let request = RequestId {
            connection: ConnectionId(HOST),
            number: CACHE_SEEN,
        };
        let gone = self.cache_gone;
        self.trace.tell(format_args!(
            "the daemon sees that its cache file is gone: {gone}"
        ));
        let command = Command::CacheGone { gone };
        self.apply(Event::Admin { request, command })
    }

    /// Before an orderly stop: what lies in a cache file without a name goes to the origins.
    pub(crate) fn save_from_removed_cache(&mut self) -> Result<(), Broken> {
        if !self.cache_gone {
            return Ok(());
        }
        self.see_cache(false)?;
        let owed = |world: &World| {
            let engine = world.engine.as_ref().expect("the engine is open");
            let mut volumes = engine.snapshot().volumes.into_iter();
            // It may be found again meanwhile.
            let logs = |it: &VolumeSnapshot| {
                let dirty = it.policy != Policy::Ephemeral && it.dirty_bytes > 0;
                !it.orphan && (dirty || it.policy == Policy::WriteBack)
            };
            world.cache_gone && volumes.any(|it| logs(&it))
        };
        self.run_while(owed, "what lies in a cache that was removed")
            .map(|_| ())
    }

    /// The file ends with its daemon, and another one is made.
    pub(crate) fn lose_cache(&mut self, in_order: bool) -> Result<(), Broken> {
        if !std::mem::take(&mut self.cache_gone) {
            return Ok(());
        }
        self.trace.counters.images.caches_lost += 1;
        self.trace.tell(format_args!("the cache is made anew"));
        self.devices.cache = Disk::new(vec![0; device_bytes(self.plan.geometry) as usize]);
        self.memory.lose_stage();
        let uuid = Uuid(self.rng.bytes16());
        let mut media = Blocking::new(&mut self.devices, &mut self.rng, &mut self.now);
        format_cache(&mut media, uuid, self.plan.geometry)
            .map_err(|error| format!("the cache cannot be formatted: {error}"))?;
        let point = self.devices.disk(File::Cache).sync_point();
        self.devices.disk(File::Cache).sync_done(point);
        for guest in &mut self.guests {
            guest.owed.clear();
            if guest.plan.policy == Policy::Ephemeral {
                guest.crash = Some(Crash::PowerLoss);
                continue;
            }
            guest.cache_lost = Some(match (in_order && guest.served, guest.cache_lost) {
                (_, Some(CacheLost::Accepted)) => CacheLost::Accepted,
                (true, None) => CacheLost::InOrder,
                _ => CacheLost::Anyhow,
            });
        }
        Ok(())
    }
}

impl Guest {
    /// It is refused for what a cache had that is gone. Whether that loss may be accepted.
    pub fn accepts_loss(&mut self) -> bool {
        let loses = matches!(
            self.cache_lost,
            Some(CacheLost::Anyhow | CacheLost::Accepted)
        );
        if loses {
            self.cache_lost = Some(CacheLost::Accepted);
        }
        loses
    }
}
