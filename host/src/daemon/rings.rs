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
use crate::frontend::vhost_user::connection::{Awake, Connections, Heard, Refused};
use crate::frontend::vhost_user::handler::{Description, QUEUES_MAX};
use crate::peer::Peer;
use crate::shard::control::{Greeter, Handle};
use crate::shard::guest::kept::Kept;
use crate::shard::guest::side::{Comer, GuestSide};
use crate::shard::guest::standby::StandbySide;
use crate::sys;
use crate::waiting::{Ticket, Waiting};
use engine::types::{Policy, SECTOR_BYTES, VolumeId};
use node::message::Disk as Shape;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
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
    /// What the guest of a volume that sleeps here, or is about to come, believes of its cache.
    modes: Arc<Mutex<BTreeMap<String, bool>>>,
}

/// A volume that is served on another host, and who has come for it.
struct Away {
    waiting: Waiting,
    came: Vec<(OwnedFd, Ticket)>,
    /// Who comes is shown it like this: its guest may move here.
    shown: Option<Description>,
}

impl Default for FrontEnds {
    fn default() -> FrontEnds {
        FrontEnds {
            connections: Connections::new(FRONT_ENDS_MAX),
            offers: Arc::default(),
            away: Arc::default(),
            modes: Arc::default(),
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
        let away = Away {
            waiting,
            came: Vec::new(),
            shown: None,
        };
        self.away().insert(name.to_owned(), away);
        self.withdraw(name);
    }

    /// No front end waits for this volume any more; those that did, and the sectors of the disk
    /// that others were shown.
    pub fn end_away(&self, name: &str) -> (Vec<OwnedFd>, Option<u64>) {
        let Some(away) = self.away().remove(name) else {
            return (Vec::new(), None);
        };
        let came = away.came.into_iter().map(|(socket, _)| socket);
        let shown = away.shown.map(|shown| shown.disk.capacity_sectors);
        (came.collect(), shown)
    }

    /// Those who wait, and those who come from now on, are shown the disk that another host serves,
    /// and are served when their rings start.
    pub fn show_away(&self, door: &Door, shape: &Shape) {
        let name = &door.name;
        let shown = description(name, shape);
        let mut all = self.away();
        let Some(away) = all.get_mut(name) else {
            return;
        };
        away.shown = Some(shown.clone());
        let (came, waiting) = (std::mem::take(&mut away.came), away.waiting.clone());
        drop(all);
        for (socket, _ticket) in came {
            door.stand_by(socket, shown.clone(), waiting.clone());
        }
    }

    /// Whether front ends are connected to a volume that is served on another host.
    pub fn shows_away(&self, name: &str) -> bool {
        let away = self.away();
        let shown = away.get(name).is_some_and(|away| away.shown.is_some());
        shown && self.connections.count(name) > 0
    }

    /// Lets no ring of a volume start from now on, unless a guest is there that does not sleep.
    pub fn rest(&self, name: &str) -> Result<(), Awake> {
        let mode = self.connections.rest(name)?;
        self.set_mode(name, mode);
        Ok(())
    }

    /// Rings that wait start.
    pub fn awaken(&self, name: &str) {
        self.connections.awaken(name);
    }

    /// Front ends that are not in the way when the volume goes to another host.
    pub fn out_of_the_way(&self, name: &str) -> u64 {
        self.connections.out_of_the_way(name) as u64
    }

    /// Nothing of an earlier guest is left.
    pub fn set_mode(&self, name: &str, write_back: Option<bool>) {
        let mut modes = self.modes.lock().expect("no holder of this lock panics");
        match write_back {
            Some(mode) => modes.insert(name.to_owned(), mode),
            None => modes.remove(name),
        };
    }

    pub fn mode(&self, name: &str) -> Option<bool> {
        let modes = self.modes.lock().expect("no holder of this lock panics");
        modes.get(name).copied()
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
            description: description(&entry.settings.name, &disk_of(entry)),
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

    pub fn door(&self, handle: &Handle, state_dir: &Path, name: &str) -> Door {
        Door {
            handle: handle.clone(),
            connections: self.connections.clone(),
            offers: self.offers.clone(),
            away: self.away.clone(),
            modes: self.modes.clone(),
            state_dir: state_dir.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Takes whoever comes to the socket of this volume.
    pub fn greeter(&self, handle: &Handle, state_dir: &Path, name: &str) -> Greeter {
        let door = self.door(handle, state_dir, name);
        Arc::new(move |socket: OwnedFd| door.greet(socket))
    }
}

/// The socket of one volume, and what is behind it.
#[derive(Clone)]
pub(super) struct Door {
    handle: Handle,
    connections: Connections,
    offers: Arc<Mutex<BTreeMap<String, Offer>>>,
    away: Arc<Mutex<BTreeMap<String, Away>>>,
    modes: Arc<Mutex<BTreeMap<String, bool>>>,
    state_dir: PathBuf,
    name: String,
}

impl Door {
    fn greet(&self, socket: OwnedFd) {
        let name = &self.name;
        let offers = self.offers.lock().expect("no holder of this lock panics");
        let Some(shared) = offers.get(name).map(|offer| offer.shared) else {
            let mut away = self.away.lock().expect("no holder of this lock panics");
            let away = away.get_mut(name);
            match away.filter(|it| it.came.len() < AWAITING_MAX) {
                Some(Away {
                    shown: Some(shown),
                    waiting,
                    ..
                }) => {
                    let (shown, waiting) = (shown.clone(), waiting.clone());
                    drop(offers);
                    self.stand_by(socket, shown, waiting);
                }
                Some(away) => away.came.push((socket, away.waiting.enter())),
                None => tracing::debug!(
                    volume = %name,
                    "volume {name}: a front end comes, and it is not served"
                ),
            }
            return;
        };
        drop(offers);
        let peer = Peer::of(&socket);
        let door = self.clone();
        let let_in = move |capacity: Capacity| {
            // As it is now: a change of its size from here on finds the front end.
            let gone = || DataError::Refused("its volume is not served".into());
            let offer = door.offer().ok_or_else(gone)?;
            let comer = Comer {
                shared,
                ..door.comer(peer)
            };
            let description = offer.description;
            let disk = LiveDisk::new(description.disk.clone(), capacity);
            let queues = description.hints.queues;
            let side = GuestSide::open(door.handle, offer.volume, disk, queues, comer)?;
            Ok((description, side))
        };
        self.refused(self.connections.connect(name, socket.into(), let_in));
    }

    fn offer(&self) -> Option<Offer> {
        let offers = self.offers.lock().expect("no holder of this lock panics");
        offers.get(&self.name).cloned()
    }

    fn comer(&self, peer: Peer) -> Comer {
        Comer {
            kept: Kept::new(&self.state_dir, &self.name, &peer),
            shared: false,
            peer,
        }
    }

    fn refused(&self, connected: Result<(), Refused>) {
        let name = &self.name;
        if let Err(refused) = connected {
            tracing::warn!(volume = %name, "volume {name}: a front end is refused: {refused}");
        }
    }

    /// Shows a front end the disk as it is where its guest runs.
    fn stand_by(&self, socket: OwnedFd, shown: Description, waiting: Waiting) {
        let peer = Peer::of(&socket);
        let door = self.clone();
        let let_in = move |capacity: Capacity| {
            let comer = door.comer(peer.clone());
            let (modes, name) = (door.modes.clone(), door.name.clone());
            let of = name.clone();
            let handed = move || {
                let modes = modes.lock().expect("no holder of this lock panics");
                modes.get(&of).copied()
            };
            let disk = shown.disk.clone();
            let opens = move || {
                let Some(offer) = door.offer() else {
                    return Ok(None);
                };
                let disk = LiveDisk::new(disk.clone(), capacity.clone());
                let (handle, shared) = (door.handle.clone(), offer.shared);
                let comer = Comer {
                    shared,
                    ..door.comer(peer.clone())
                };
                GuestSide::open(handle, offer.volume, disk, QUEUES_MAX, comer).map(Some)
            };
            let side =
                StandbySide::new(name, Box::new(opens), waiting, comer.kept, Box::new(handed));
            Ok((shown, side))
        };
        self.refused(self.connections.connect(&self.name, socket.into(), let_in));
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

/// What another host has to know to show the same disk.
pub(super) fn disk_of(entry: &Entry) -> Shape {
    let settings = &entry.settings;
    Shape {
        size_bytes: entry.size_bytes,
        block_bytes: settings.block_bytes,
        read_only: settings.read_only,
        // Where every write is durable anyway, guests need not flush.
        write_back: settings.write_cache && settings.policy != Policy::WriteThrough,
    }
}

/// A volume as its guest sees it.
fn description(name: &str, shape: &Shape) -> Description {
    let mut id = [0; ID_BYTES];
    let name = name.as_bytes();
    let length = name.len().min(ID_BYTES);
    id[..length].copy_from_slice(&name[..length]);
    let ranges = RangeLimits {
        sectors_max: RANGE_SECTORS_MAX,
        ranges_max: RANGES_MAX,
    };
    let ranges = (!shape.read_only).then_some(ranges);
    Description {
        disk: Disk {
            capacity_sectors: shape.size_bytes / SECTOR_BYTES,
            block_bytes: shape.block_bytes,
            read_only: shape.read_only,
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
            writeback: shape.write_back,
        },
    }
}
