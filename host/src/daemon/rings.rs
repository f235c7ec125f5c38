//! Front ends of vhost-user, from the socket of a volume to the shard.
//!
//! Owns which volumes are offered to them, and as what. Always true: a front end that comes is
//! shown the disk as it is now; one that comes to a volume that is not offered (held, or changed
//! just now) is closed at once and may come again; nobody is counted out while he is connected.
//! Deliberately absent: what a front end says (`frontend::vhost_user`), and its requests
//! (`shard::guest`).

use super::volumes::Entry;
use super::{Daemon, VolumeError};
use crate::frontend::vhost_user::DataError;
use crate::frontend::vhost_user::capacity::{Capacity, LiveDisk};
pub use crate::frontend::vhost_user::connection::Counters as FrontEndCounters;
use crate::frontend::vhost_user::connection::{Connections, Heard};
use crate::frontend::vhost_user::handler::{Description, QUEUES_MAX};
use crate::peer::Peer;
use crate::shard::control::{Greeter, Handle};
use crate::shard::guest::kept::Kept;
use crate::shard::guest::side::{Comer, GuestSide};
use crate::sys;
use crate::waiting::{Ticket, Waiting};
use engine::types::{Policy, SECTOR_BYTES, VolumeId};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use vring::block::{Disk, ID_BYTES, RangeLimits};
use vring::config::Hints;

/// Front ends at a time; each has a thread.
const FRONT_ENDS_MAX: usize = 4096;
/// How long the requests of front ends that are sent away may take.
const DRAIN_WAIT: Duration = Duration::from_secs(10);
/// How long connections may take to end when nobody serves their rings any more.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// Front ends that wait for a volume which is served on another host.
const AWAITING_MAX: usize = 64;
/// Discards and zeroes of one request, and of one of its ranges.
const RANGES_MAX: u16 = 32;
const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Two descriptors fewer than the smallest common queue has, so that a request of this many fits
/// also where indirect descriptors were not agreed.
const SEGMENTS_MAX: u32 = 126;
const DATA_BYTES_MAX: u32 = 4 << 20;

#[derive(Clone)]
struct Offer {
    volume: VolumeId,
    description: Description,
    shared: bool,
}

/// The front ends of a daemon.
pub(super) struct FrontEnds {
    connections: Connections,
    /// By the name of the volume; the shard looks here, so nothing waits under this lock.
    offers: Arc<Mutex<BTreeMap<String, Offer>>>,
    away: Arc<Mutex<BTreeMap<String, Away>>>,
}

/// A volume that is served on another host, and who has come for it.
struct Away {
    waiting: Waiting,
    came: Vec<(OwnedFd, Ticket)>,
}

impl Default for FrontEnds {
    fn default() -> FrontEnds {
        FrontEnds {
            connections: Connections::new(FRONT_ENDS_MAX),
            offers: Arc::default(),
            away: Arc::default(),
        }
    }
}

impl FrontEnds {
    fn offers(&self) -> MutexGuard<'_, BTreeMap<String, Offer>> {
        self.offers.lock().expect("no holder of this lock panics")
    }

    fn away(&self) -> MutexGuard<'_, BTreeMap<String, Away>> {
        self.away.lock().expect("no holder of this lock panics")
    }

    /// Lets those who come from now on wait.
    pub fn set_away(&self, name: &str, waiting: Waiting) {
        let came = Vec::new();
        self.away().insert(name.to_owned(), Away { waiting, came });
        self.withdraw(name);
    }

    /// No front end waits for this volume any more; those that did.
    pub fn end_away(&self, name: &str) -> Vec<OwnedFd> {
        let away = self.away().remove(name);
        let came = away.into_iter().flat_map(|away| away.came);
        came.map(|(socket, _)| socket).collect()
    }

    /// Forgets those who have gone while they waited.
    pub fn forget_gone(&self, name: &str) {
        if let Some(away) = self.away().get_mut(name) {
            away.came.retain(|(socket, _)| !sys::has_hung_up(socket));
        }
    }

    /// Serves those who come from now on.
    pub fn offer(&self, entry: &Entry) {
        let offer = Offer {
            volume: entry.id,
            description: description(entry),
            shared: entry.settings.shared,
        };
        self.offers().insert(entry.settings.name.clone(), offer);
    }

    /// Serves nobody from now on who is not connected.
    pub fn withdraw(&self, name: &str) {
        self.offers().remove(name);
    }

    /// The disk of this volume is larger now, and those who come are shown so already.
    pub fn grow(&self, entry: &Entry) -> Heard {
        let sectors = entry.size_bytes / SECTOR_BYTES;
        self.connections.grow(&entry.settings.name, sectors)
    }

    pub fn count(&self, name: &str) -> u64 {
        self.connections.count(name) as u64
    }

    pub fn counters(&self) -> FrontEndCounters {
        self.connections.counters()
    }

    /// Sends those who are connected away, after their requests have ended.
    pub fn disconnect(&self, name: &str) {
        if !self.connections.disconnect(name, DRAIN_WAIT) {
            tracing::warn!(volume = %name, "volume {name}: requests of a front end do not end");
        }
    }

    /// The shard has stopped; guests wait for the next daemon, which knows from the in-flight
    /// regions what it owes them.
    pub fn stop(&self) {
        if !self.connections.stop(STOP_WAIT) {
            tracing::warn!("the connection of a front end does not end");
        }
    }

    /// Takes whoever comes to the socket of this volume.
    pub fn greeter(&self, handle: &Handle, state_dir: &Path, name: &str) -> Greeter {
        let (handle, connections) = (handle.clone(), self.connections.clone());
        let (offers, away) = (self.offers.clone(), self.away.clone());
        let name = name.to_owned();
        let state_dir = state_dir.to_owned();
        Arc::new(move |socket: OwnedFd| {
            let known = offers.lock().expect("no holder of this lock panics");
            let Some(shared) = known.get(&name).map(|offer| offer.shared) else {
                let mut away = away.lock().expect("no holder of this lock panics");
                if let Some(away) = away
                    .get_mut(&name)
                    .filter(|it| it.came.len() < AWAITING_MAX)
                {
                    away.came.push((socket, away.waiting.enter()));
                    return;
                }
                tracing::debug!(
                    volume = %name,
                    "volume {name}: a front end comes, and it is not served"
                );
                return;
            };
            drop(known);
            let handle = handle.clone();
            let peer = Peer::of(&socket);
            let comer = Comer {
                kept: Kept::new(&state_dir, &name, &peer),
                shared,
                peer,
            };
            let (offers, of) = (offers.clone(), name.clone());
            let let_in = move |capacity: Capacity| {
                // As it is now: a change of its size from here on finds the front end.
                let known = offers.lock().expect("no holder of this lock panics");
                let offer = known.get(&of).cloned();
                drop(known);
                let Offer {
                    volume,
                    description,
                    ..
                } = offer.ok_or_else(|| DataError::Refused("its volume is not served".into()))?;
                let queues = description.hints.queues;
                let disk = LiveDisk::new(description.disk.clone(), capacity);
                let side = GuestSide::open(handle, volume, disk, queues, comer)?;
                Ok((description, side))
            };
            let connected = connections.connect(&name, UnixStream::from(socket), let_in);
            if let Err(refused) = connected {
                tracing::warn!(volume = %name, "volume {name}: a front end is refused: {refused}");
            }
        })
    }
}

impl Daemon {
    /// What front ends have done so far.
    pub fn front_ends(&self) -> FrontEndCounters {
        self.front_ends.counters()
    }

    /// Nobody who is not connected is let in from now on.
    pub(super) fn refuse_clients(&self, name: &str) -> Result<(), VolumeError> {
        self.front_ends.withdraw(name);
        Ok(self.handle.export_hold(name)?)
    }

    /// The same for a name that nobody knows any more.
    pub(super) fn forget_clients(&self, name: &str) -> Result<(), VolumeError> {
        self.front_ends.withdraw(name);
        Ok(self.handle.export_remove(name)?)
    }

    /// Lets clients in, and shows them the volume as it is.
    pub(super) fn show_again(&self, entry: &Entry) -> Result<(), VolumeError> {
        let (name, exports) = (&entry.settings.name, entry.settings.exports);
        if exports.vhost_user {
            self.front_ends.offer(entry);
        }
        if exports.nbd {
            self.handle.export_set(name, entry.export())?;
        }
        Ok(())
    }

    /// Clients of a volume, those included who are connected and have not asked for anything.
    pub(super) fn clients(&self, entry: &Entry) -> Result<u64, VolumeError> {
        let asking = self.handle.clients(entry.id)?;
        Ok(asking.max(self.front_ends.count(&entry.settings.name)))
    }
}

/// A volume as its guest sees it.
fn description(entry: &Entry) -> Description {
    let settings = &entry.settings;
    let mut id = [0; ID_BYTES];
    let name = settings.name.as_bytes();
    let length = name.len().min(ID_BYTES);
    id[..length].copy_from_slice(&name[..length]);
    let ranges = RangeLimits {
        sectors_max: RANGE_SECTORS_MAX,
        ranges_max: RANGES_MAX,
    };
    let ranges = (!settings.read_only).then_some(ranges);
    Description {
        disk: Disk {
            capacity_sectors: entry.size_bytes / SECTOR_BYTES,
            block_bytes: settings.block_bytes,
            read_only: settings.read_only,
            flush: true,
            discard: ranges,
            write_zeroes: ranges,
            data_bytes_max: DATA_BYTES_MAX,
            segments_max: SEGMENTS_MAX,
            id,
        },
        hints: Hints {
            physical_block_bytes: 4096,
            optimal_bytes: 0,
            queues: QUEUES_MAX,
            // Where every write is durable anyway, guests need not flush.
            writeback: settings.write_cache && settings.policy != Policy::WriteThrough,
        },
    }
}
