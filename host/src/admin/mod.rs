//! The administrator's side of a running daemon.
//!
//! Owns the set of configured volumes while the daemon runs, and the rules of changing it: what
//! is refused because it would lose data or disturb a guest, and what is kept over a restart.
//! Always true: a change is on stable media before it is reported; an order that is refused has
//! changed nothing. Reads the engine only as plain data. Deliberately absent: HTTP, which is
//! [`server`]; the shard, which is behind [`Machine`].

mod advice;
mod changes;
mod checkpoints;
pub mod client;
mod clone;
mod cluster;
pub mod copies;
pub mod drain;
pub mod events;
pub mod held;
pub mod history;
pub mod json;
mod listener;
mod map;
pub mod metrics;
pub mod observer;
pub mod pools;
pub mod promise;
pub mod rebase;
pub mod record;
mod reload;
mod resize;
mod rest;
pub mod server;
mod tcp;
#[cfg(test)]
mod tests;
mod values;
mod web;

use crate::backup::bitmap::Bitmap;
use crate::cluster::{Links, PeerView};
use crate::config::{self, Config, Volume, check, keys, parse, state, units};
use crate::daemon::{
    Below, CheckpointShown, Merged, Noticed, PoolShown, Resized, VolumeSettings, Watched, Why,
};
use crate::error::{Error, Kind, Result};
use crate::latency::Latency;
use crate::limit::Waits;
use crate::origin::clone::CloneOf;
use crate::origin::mapped::ImageShown;
use crate::unit::Shown;
use crate::unit::copies::CopyShown;
use engine::chart::Spot;
use engine::sample::Samples;
use engine::snapshot::{Snapshot, State, VolumeSnapshot};
use engine::types::{Policy, VolumeId};
use events::Notice;
pub use held::Held;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
pub use values::values_from_json;

/// An order that was taken: waits until it is carried out.
pub type Started = Box<dyn FnOnce() -> Result<()> + Send>;

/// What the shard can be asked for. All calls block.
pub trait Machine: Send + Sync + 'static {
    fn look(&self) -> Result<Look>;
    fn add(&self, settings: VolumeSettings) -> Result<()>;
    /// The same for one that the configuration names: if it cannot go on it is held, and the reason
    /// is returned.
    fn add_or_hold(&self, settings: VolumeSettings) -> Result<Option<String>>;
    fn tune(&self, settings: VolumeSettings) -> Result<()>;
    /// What guests have read since it was asked before.
    fn take_samples(&self) -> Result<Samples> {
        Ok(Samples::default())
    }
    fn remove(&self, name: &str, discard_dirty: bool) -> Result<()>;
    /// Orders another policy; returns when the order is taken, what it returns when it is done.
    fn switch(&self, name: &str, policy: Policy) -> Result<Started>;
    /// Returns when everything written before the call is at the origin.
    fn destage(&self, volume: VolumeId) -> Result<()>;
    fn reset(&self, volume: VolumeId) -> Result<()>;
    /// Makes an overlay the content of its image; returns when it is.
    fn commit(&self, name: &str) -> Result<()>;
    /// Returns when the image of a volume rests, and that of each member of its group.
    fn quiesce(&self, name: &str, checkpoint: Option<&str>) -> Result<()>;
    /// Returns when its image, and that of each member of its group, has all that was written; from
    /// then on it has what a flush covers before the flush is answered.
    fn quiesce_through(&self, name: &str) -> Result<()>;
    /// Of a volume whose image rests: other hosts are to know it too, if some have to.
    fn quiesce_again(&self, _name: &str) -> Result<()> {
        Ok(())
    }
    fn resume(&self, name: &str, force: bool) -> Result<()>;
    /// From the oldest to the newest.
    fn checkpoints(&self, name: &str) -> Result<Vec<CheckpointShown>>;
    /// What has changed since a checkpoint.
    fn changes(&self, name: &str, checkpoint: &str) -> Result<Bitmap>;
    fn forget_checkpoint(&self, name: &str, checkpoint: &str) -> Result<()>;
    /// Freezes the images of a volume and its group under the name of a snapshot; the new names.
    fn snapshot(&self, name: &str, snapshot: &str, plain: bool) -> Result<Vec<PathBuf>>;
    /// Lets the image of a volume stand on something else; gives the bytes that it got of the disk.
    /// `changes`: without comparing.
    fn rebase(&self, name: &str, below: &Below, changes: bool) -> Result<u64>;
    /// Gives the image what its backing has; `remove`: that goes if nothing else needs it.
    fn merge(&self, name: &str, remove: bool) -> Result<Merged>;
    /// Returns when the volume and its image have this size; which clients know it.
    fn resize(&self, name: &str, size_bytes: u64) -> Result<Resized>;
    /// Keeps a volume for as long as its dirty data takes to its origin, and shows it to nobody;
    /// returns at once.
    fn orphan(&self, name: &str) -> Result<()>;
    /// What of a volume lies where on this host.
    fn chart(&self, volume: VolumeId) -> Result<Vec<Spot>>;
    /// Orders that all on the cache device is compared with its checksums; what it returns waits
    /// for the end.
    fn scrub(&self) -> Result<Started>;
    /// Begins to record what guests ask of these volumes; it ends when what it returns is dropped.
    fn record(&self, names: &[String]) -> Result<Box<dyn record::Tap>>;
    /// Goes on without what a held volume has lost.
    fn accept_loss(&self, name: &str) -> Result<()>;
    /// Looks whether held volumes whose images could not be opened can be served now; which are.
    fn try_held(&self) -> Vec<String>;
    /// Looks now at what may have been removed under the daemon.
    fn look_around(&self) {}
    /// Reads the certificates of clients that come from now on; says so if they are others.
    fn renew_certificates(&self) -> Result<Option<String>> {
        Ok(None)
    }
    /// Lays what the log has of a held volume over the image that is there.
    fn overwrite(&self, name: &str) -> Result<()>;
    /// Other settings for a volume that another host serves.
    fn change_away(&self, _settings: VolumeSettings) -> Result<()> {
        Ok(())
    }
    /// Takes a clustered volume from an owner that can write no more.
    fn take_over_fenced(&self, name: &str) -> Result<()> {
        Err(Error::usage(format!("volume {name}: is not clustered")).about(name))
    }
    /// Gives a clustered volume to another host; false if no host has it then.
    fn volume_move(&self, name: &str, _host: &str) -> Result<bool> {
        Err(Error::usage(format!("volume {name}: is not clustered")).about(name))
    }
    /// Looks whether images are still those that their volumes know. Returns at once.
    fn look_at_images(&self);
    /// Lets the members of a pool move to another image.
    fn pool_refresh(&self, name: &str, _refresh: pools::Refresh) -> Result<()> {
        Err(Error::usage(format!("pool {name}: not known")).about(name))
    }
    /// Lets them go back.
    fn pool_rollback(&self, name: &str) -> Result<()> {
        Err(Error::usage(format!("pool {name}: not known")).about(name))
    }
    /// Lets go of the image before.
    fn pool_finish(&self, name: &str) -> Result<()> {
        Err(Error::usage(format!("pool {name}: not known")).about(name))
    }
    /// The guest of a volume is not waited for any more.
    fn was_reset(&self, _name: &str) {}
}

/// The daemon at one instant.
#[derive(Clone, Debug)]
pub struct Look {
    pub engine: Snapshot,
    /// How long guests wait, of volumes that had some under the policy in effect.
    pub latency: BTreeMap<VolumeId, Latency>,
    /// Connections by volume, in the order of volumes; one that is not in it has none.
    pub clients: Vec<(VolumeId, u64)>,
    /// Of guests for the limits of their volumes, of those that had to.
    pub waits: BTreeMap<VolumeId, Waits>,
    pub held: Vec<Held>,
    /// Images that are not raw, by volume.
    pub images: BTreeMap<String, ImageShown>,
    /// Guests that are watched, by volume.
    pub watched: BTreeMap<String, Watched>,
    /// Files and sockets of the daemon that were removed under it.
    pub noticed: Noticed,
    /// Volumes of which the hosts of a cluster decide who serves them.
    pub units: BTreeMap<String, Shown>,
    /// What this host keeps for others of the cluster.
    pub copies: Vec<CopyShown>,
    pub pools: BTreeMap<String, PoolShown>,
    pub recovery: Recovery,
    /// Counters of the host side: name, meaning, value.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// What happened before the daemon was ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    pub ms: u64,
    pub tail_bytes_discarded: u64,
    pub records_replayed: u64,
    pub damage: Vec<String>,
}

/// Everything that is shown about a daemon: the engine's side and the configuration's.
#[derive(Clone, Debug)]
pub struct View {
    pub look: Look,
    pub host_name: String,
    pub run_dir: PathBuf,
    pub cache_path: PathBuf,
    pub ram_bytes: u64,
    pub stage_bytes: u64,
    pub overlay_ram_bytes: u64,
    pub uptime: Duration,
    /// Volumes as configured; those of the engine that are not here are orphans.
    pub volumes: Vec<Volume>,
    pub drained: bool,
    /// Other hosts of the cluster.
    pub peers: Vec<PeerView>,
    /// It is in a cluster, and its links could not be started.
    pub has_no_links: bool,
    /// Where in `volumes` each is: every document asks for each volume several times.
    places: HashMap<String, usize>,
}

impl View {
    pub fn volume(&self, name: &str) -> Option<&VolumeSnapshot> {
        self.shown().find(|volume| volume.name == name)
    }

    pub fn configured(&self, name: &str) -> Option<&Volume> {
        self.places.get(name).map(|at| &self.volumes[*at])
    }

    /// Volumes worth showing: those that are attached, those that are configured, and those that
    /// are not named any more but still own data. The log may know others: history, and copies
    /// of volumes of other hosts.
    pub fn shown(&self) -> impl Iterator<Item = &VolumeSnapshot> {
        let volumes = self.look.engine.volumes.iter();
        let own = volumes.filter(|volume| volume.replica.is_none());
        own.filter(|volume| {
            let named = self.configured(&volume.name).is_some();
            named || !volume.orphan || volume.dirty_bytes > 0
        })
    }

    pub fn is_orphan(&self, volume: &VolumeSnapshot) -> bool {
        volume.orphan || self.configured(&volume.name).is_none()
    }

    pub fn clients(&self, volume: VolumeId) -> u64 {
        let clients = &self.look.clients;
        let of = clients.binary_search_by_key(&volume, |(id, _)| *id);
        of.map_or(0, |at| clients[at].1)
    }
}

/// What a change says beside "done".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Things the administrator would want to know, one line each.
    pub notes: Vec<String>,
}

/// The administrator's side of one daemon.
pub struct Admin {
    machine: Box<dyn Machine>,
    started: Instant,
    /// Changes happen strictly one after the other; each may take as long as an origin does.
    order: Mutex<()>,
    /// A mutex, not a message: held only to copy or to set plain data, never while the machine
    /// works, so that looking never waits for a change. The data path never takes it.
    known: Mutex<Known>,
    /// What happened, and how the figures went. Nothing here reads them.
    pub events: Arc<events::Events>,
    /// Whoever has the admin socket is to look for it.
    pub socket_look: tokio::sync::Notify,
    pub history: history::History,
    pub recordings: record::Recordings,
    advisor: advice::Advisor,
    links: OnceLock<Arc<Links>>,
}

#[derive(Clone)]
struct Known {
    config: Config,
    volumes: Vec<Volume>,
    /// Volumes that are write-back by order are write-through until this ends.
    drained: bool,
}

impl Admin {
    /// `volumes` are the ones the machine was started with.
    pub fn new(config: Config, volumes: Vec<Volume>, machine: Box<dyn Machine>) -> Admin {
        let drained = drain::was_drained(&config);
        let known = Mutex::new(Known {
            config,
            volumes,
            drained,
        });
        Admin {
            machine,
            started: Instant::now(),
            order: Mutex::new(()),
            known,
            events: Arc::new(events::Events::new(events::unix_ms_now())),
            socket_look: tokio::sync::Notify::new(),
            history: history::History::default(),
            recordings: record::Recordings::default(),
            advisor: advice::Advisor::default(),
            links: OnceLock::new(),
        }
    }

    fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic ends the process; a poisoned lock is met by tests only.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks now for files and sockets that were removed, and makes them again where it can.
    pub fn look_around(&self) {
        self.machine.look_around();
        self.socket_look.notify_one();
    }

    /// The daemon with its held volumes among the others.
    fn look(&self) -> Result<Look> {
        let mut look = self.machine.look()?;
        held::show(&mut look);
        look.counters.extend(self.link_counters());
        Ok(look)
    }

    pub fn view(&self) -> Result<View> {
        let look = self.look()?;
        let known = self.known();
        let names = known.volumes.iter().map(|volume| volume.name.clone());
        Ok(View {
            places: names.zip(0..).collect(),
            look,
            host_name: known.config.host.name.clone(),
            run_dir: known.config.host.run_dir.clone(),
            cache_path: known.config.cache.path.clone(),
            ram_bytes: known.config.cache.ram_bytes,
            stage_bytes: known.config.cache.stage_bytes,
            overlay_ram_bytes: known.config.cache.overlay_ram_bytes,
            uptime: self.started.elapsed(),
            volumes: known.volumes.clone(),
            drained: known.drained,
            peers: self.peer_views(),
            has_no_links: known.config.cluster.is_some() && self.links.get().is_none(),
        })
    }

    /// Sees an order to its end that nobody waits for, and tells of it if it fails.
    fn go_on(&self, what: &str, volume: Option<&str>, started: Started) {
        let events = self.events.clone();
        let (what, volume) = (what.to_owned(), volume.map(str::to_owned));
        let thread = std::thread::Builder::new().name("order".into());
        let waits = thread.spawn(move || {
            let result = started();
            if let Err(error) = &result {
                tracing::warn!(volume, "{error}");
                events.tell(Notice::order(&what, volume.as_deref(), &result));
            }
        });
        // The order is carried out all the same; only its failure would not be told.
        if let Err(error) = waits {
            tracing::warn!("the failure of an order will not be reported: {error}");
        }
    }

    /// Attaches a volume and keeps it for the next start.
    pub fn add(&self, name: &str, values: &[(String, config::Value)]) -> Result<Outcome> {
        self.add_new(name, values, None)
    }

    /// The same; the file of its origin is made first where it is a clone, and goes again where the
    /// volume is not attached.
    pub fn add_new(
        &self,
        name: &str,
        values: &[(String, config::Value)],
        clone: Option<&CloneOf>,
    ) -> Result<Outcome> {
        self.refuse_drained(name)?;
        let _order = self.order();
        let mut known = self.known().clone();
        pools::renew_members(&mut known, &self.look()?);
        let (defaults, pools) = (&known.config.defaults, &known.config.pools);
        let volume = parse::new_volume_among(defaults, name, values, pools);
        let volume = volume.map_err(|error| of_volume(name, error.into()))?;
        if known.volumes.iter().any(|other| other.name == name) {
            let message = format!(
                "volume {name}: exists already; choose another name, or change it with `tenuto \
                 volume set {name}`"
            );
            return Err(Error::new(Kind::Exists, message).about(name));
        }
        let (volume, made) = match clone {
            None => (volume, None),
            Some(of) => {
                let (volume, made) = clone::make(&known, volume, of)?;
                (volume, Some(made))
            }
        };
        let added = self.attach_new(&known, &volume);
        if let (Err(_), Some(made)) = (&added, made) {
            made.remove();
        }
        added?;
        known.volumes.push(volume);
        *self.known() = known;
        Ok(Outcome::default())
    }

    fn attach_new(&self, known: &Known, volume: &Volume) -> Result<()> {
        let name = &volume.name;
        check_against(known, volume).map_err(|error| of_volume(name, error))?;
        if let Err(error) = state::save(&known.config, volume) {
            // It may have its name already; what could not be written may not be there to remove.
            let _ = state::remove(&known.config, name);
            return Err(error);
        }
        self.machine.add(volume.settings()).map_err(|mut error| {
            if let Err(left) = state::remove(&known.config, name) {
                error.message += &format!("; it would be tried again at the next start: {left}");
            }
            error
        })
    }

    /// Changes tunables of a running volume, and its policy. What it returns beside waits until
    /// the policy is in effect; the tunables are at once.
    pub fn set(
        &self,
        name: &str,
        values: &[(String, config::Value)],
    ) -> Result<(Outcome, Option<Started>)> {
        let _order = self.order();
        let mut known = self.known().clone();
        let Some(at) = known.volumes.iter().position(|volume| volume.name == name) else {
            return Err(Error::no_volume(name));
        };
        let away = is_away(&self.look()?, name);
        if !away || values.iter().any(|(key, _)| key == "policy") {
            refuse_held(&self.look()?, name)?;
        }
        let mut volume = known.volumes[at].clone();
        parse::apply(&mut volume, values).map_err(|error| of_volume(name, error.into()))?;
        check::check_reset(&volume).map_err(|wrong| {
            Error::usage(format!("reset-on: {}; {}", wrong.what, wrong.right)).about(name)
        })?;
        for (key, _) in values {
            if key != "policy" && !keys::TUNABLES.contains(&key.as_str()) {
                return Err(Error::usage(format!(
                    "volume {name}: {key} cannot be changed while it is attached; write it in the \
                     configuration and restart, or remove and add the volume"
                ))
                .about(name));
            }
        }
        let refused = |wrong: config::Wrong| {
            let message = format!("volume {name}: {}; {}", wrong.what, wrong.right);
            Error::refused(message).about(name)
        };
        check::check_group(&volume).map_err(refused)?;
        check::check_replicas(&known.config, &volume).map_err(refused)?;
        let ordered = values.iter().any(|(key, _)| key == "policy");
        if ordered {
            self.refuse_drained(name)?;
        }
        let (old, new) = (known.volumes[at].policy, volume.policy);
        let crosses = old != new && (old == Policy::Ephemeral || new == Policy::Ephemeral);
        if crosses {
            return Err(no_way(name, old, new));
        }
        if volume.block_bytes != known.volumes[at].block_bytes && !away {
            let look = self.look()?;
            refuse_connected(&look, find(&look, name)?, "set the block-size of")?;
        }
        match away {
            true => self.machine.change_away(volume.settings())?,
            false => self.machine.tune(volume.settings())?,
        }
        let started = match ordered {
            true => Some(self.machine.switch(name, new)?),
            false => None,
        };
        let outcome = match known.config.volumes.iter().find(|named| named.name == name) {
            Some(named) => Outcome {
                notes: vec![stays_in_file(&known.config, named)],
            },
            None => {
                state::save(&known.config, &volume)?;
                Outcome::default()
            }
        };
        known.volumes[at] = volume;
        *self.known() = known;
        Ok((outcome, started))
    }

    /// Detaches and forgets a volume. Its origin's data is never touched.
    pub fn remove(&self, name: &str, discard: Option<&str>) -> Result<Outcome> {
        check_named_again(name, discard)?;
        let _order = self.order();
        let mut known = self.known().clone();
        let look = self.look()?;
        let snapshot = look
            .engine
            .volumes
            .iter()
            .find(|volume| volume.name == name);
        if snapshot.is_none() && known.volumes.iter().all(|volume| volume.name != name) {
            return Err(Error::no_volume(name));
        }
        let mut discard_dirty = discard.is_some();
        if let Some(snapshot) = snapshot {
            refuse_connected(&look, snapshot, "remove")?;
            if snapshot.policy == Policy::Ephemeral {
                // Nothing is owed for an overlay: to throw it away is what it is for.
                discard_dirty = true;
            } else if snapshot.dirty_bytes > 0 && !discard_dirty {
                return Err(dirty_refusal(snapshot));
            }
        }
        self.machine.remove(name, discard_dirty)?;
        state::remove(&known.config, name)?;
        known.volumes.retain(|volume| volume.name != name);
        let named = known.config.volumes.iter().find(|named| named.name == name);
        let notes = named.map(|named| stays_in_file(&known.config, named));
        let notes = notes.into_iter().collect();
        *self.known() = known;
        Ok(Outcome { notes })
    }

    /// Checks the cache device beside the guests; returns how far it is, with `wait` at its end.
    pub fn scrub(&self, wait: bool) -> Result<serde_json::Value> {
        let started = self.machine.scrub()?;
        match wait {
            true => started()?,
            false => self.go_on("cache scrub", None, started),
        }
        Ok(json::scrub(&self.view()?))
    }

    /// Brings everything written so far to the origin; returns when it is there.
    pub fn destage(&self, name: &str) -> Result<Outcome> {
        let volume = self.check_destage(name)?;
        let destaged = self.machine.destage(volume);
        destaged.map_err(|error| self.with_damage(name, error))?;
        Ok(Outcome::default())
    }

    /// An error of damage names the ranges that it is about.
    fn with_damage(&self, name: &str, error: Error) -> Error {
        let look = self.look().ok().filter(|_| error.kind == Kind::Damaged);
        let ranges = look.and_then(|look| Some(json::damaged_ranges(find(&look, name).ok()?)));
        match ranges.filter(|ranges| !ranges.is_empty()) {
            None => error,
            Some(ranges) => Error::new(
                Kind::Damaged,
                format!(
                    "volume {name}: dirty data cannot be read from the cache device any \
                     more{ranges}; it can be destaged when these blocks were overwritten or \
                     can be read again"
                ),
            )
            .about(name),
        }
    }

    /// Whether a destage makes sense, without starting one.
    pub fn check_destage(&self, name: &str) -> Result<VolumeId> {
        let look = self.look()?;
        let snapshot = find(&look, name)?;
        refuse_held(&look, name)?;
        if snapshot.policy == Policy::Ephemeral {
            return Err(Error::refused(format!(
                "volume {name}: an ephemeral volume never writes its origin; to make its overlay \
                 the content of the image use `tenuto volume commit {name}`"
            ))
            .about(name));
        }
        let unit = look.units.get(name).filter(|it| it.here && it.is_wrong());
        match unit.and_then(|unit| unit.reason.as_ref()) {
            Some(why) => {
                let why = format!("volume {name}: {why}");
                Err(Error::new(Kind::Failed, why).about(name))
            }
            None => Ok(snapshot.id),
        }
    }

    /// Goes on with a clustered volume without its owner, which an administrator says to be fenced.
    pub fn take_over_fenced(&self, name: &str, _again: Option<&str>) -> Result<Outcome> {
        find(&self.look()?, name)?;
        self.machine.take_over_fenced(name)?;
        Ok(Outcome::default())
    }

    /// Gives a clustered volume without clients to another host.
    pub fn volume_move(&self, name: &str, host: &str) -> Result<Outcome> {
        find(&self.look()?, name)?;
        let notes = match self.machine.volume_move(name, host)? {
            true => Vec::new(),
            false => vec![format!(
                "{host} has no copy of it that is complete, so it was destaged; no host owns it \
                 until a client connects"
            )],
        };
        Ok(Outcome { notes })
    }

    /// Throws the overlay of an ephemeral volume away.
    pub fn reset(&self, name: &str) -> Result<Outcome> {
        let look = self.look()?;
        let snapshot = find(&look, name)?;
        let held = look.held(name).map(|held| held.why);
        // Its overlay is gone already, and this says that it may be.
        if snapshot.policy == Policy::Ephemeral && held == Some(Why::StageLost) {
            self.machine.accept_loss(name)?;
            return Ok(Outcome::default());
        }
        if !snapshot.overlay_misfits {
            refuse_held(&look, name)?;
        }
        if snapshot.policy != Policy::Ephemeral {
            return Err(Error::refused(format!(
                "volume {name}: reset would discard the data of a {} volume; \
                 only ephemeral volumes are reset",
                snapshot.policy.name()
            ))
            .about(name));
        }
        refuse_connected(&look, snapshot, "reset")?;
        self.machine.reset(snapshot.id)?;
        self.machine.was_reset(name);
        Ok(Outcome::default())
    }

    /// Makes the overlay of an ephemeral volume the content of its image.
    pub fn commit(&self, name: &str) -> Result<Outcome> {
        let _order = self.order();
        let look = self.look()?;
        let snapshot = find(&look, name)?;
        refuse_held(&look, name)?;
        refuse_connected(&look, snapshot, "commit")?;
        self.machine.commit(name)?;
        Ok(Outcome::default())
    }
}

/// An error of a key says of which volume it is.
fn of_volume(name: &str, error: Error) -> Error {
    let message = match error.message.starts_with("volume ") {
        true => error.message,
        false => format!("volume {name}: {}", error.message),
    };
    Error { message, ..error }
}

fn stays_in_file(config: &Config, volume: &Volume) -> String {
    format!(
        "volume {}: {}:{} names it, and wins at the next start",
        volume.name,
        config.path.display(),
        volume.line.unwrap_or(0)
    )
}

/// What is thrown away is named twice.
fn check_named_again(name: &str, discard: Option<&str>) -> Result<()> {
    match discard.filter(|other| *other != name) {
        None => Ok(()),
        Some(other) => Err(Error::usage(format!(
            "volume {name}: --discard-dirty names {other}; write --discard-dirty={name}"
        ))
        .about(name)),
    }
}

/// Looks at the image of a new volume, and at those it might collide with.
fn check_against(known: &Known, volume: &Volume) -> Result<()> {
    let others: Vec<(&Volume, check::Identity)> = known
        .volumes
        .iter()
        .map(|other| (other, check::Identity::of(&other.origin)))
        .collect();
    check::check_volume(&known.config, volume, &others)?;
    Ok(())
}

fn find<'a>(look: &'a Look, name: &str) -> Result<&'a VolumeSnapshot> {
    let found = look
        .engine
        .volumes
        .iter()
        .find(|volume| volume.name == name);
    found.ok_or_else(|| Error::no_volume(name))
}

fn no_way(name: &str, old: Policy, new: Policy) -> Error {
    let (old, new) = (old.name(), new.name());
    Error::refused(format!(
        "volume {name}: cannot change from {old} to {new} while it runs; what an ephemeral volume \
         holds is not owed to its origin: remove the volume and add it"
    ))
    .about(name)
}

/// Another host serves it, or none: what is set counts when it is served here next.
fn is_away(look: &Look, name: &str) -> bool {
    look.held(name).is_some_and(|held| held.why == Why::Away)
}

fn refuse_held(look: &Look, name: &str) -> Result<()> {
    let message = match look.held(name) {
        Some(held) => format!("{}; {}", held.reason, held.way_out()),
        None if find(look, name)?.state == State::Held => {
            format!("volume {name}: is held; see `tenuto status -x`")
        }
        None => return Ok(()),
    };
    Err(Error::refused(message).about(name))
}

fn refuse_connected(look: &Look, volume: &VolumeSnapshot, verb: &str) -> Result<()> {
    let clients = look.clients.iter().find(|(id, _)| *id == volume.id);
    match clients.map_or(0, |(_, clients)| *clients) {
        0 => Ok(()),
        clients => {
            let name = &volume.name;
            let noun = if clients == 1 {
                "client is"
            } else {
                "clients are"
            };
            Err(Error::refused(format!(
                "volume {name}: {clients} {noun} connected; disconnect first, then {verb} it"
            ))
            .about(name.clone()))
        }
    }
}

fn dirty_refusal(volume: &VolumeSnapshot) -> Error {
    let name = &volume.name;
    let bytes = volume.dirty_bytes;
    let age = match volume.oldest_dirty_ns {
        Some(nanos) => format!(
            ", {} {} old,",
            match volume.dirty_before_start {
                true => "more than",
                false => "up to",
            },
            units::human_seconds(nanos / 1_000_000_000)
        ),
        None => String::new(),
    };
    Error::refused(format!(
        "volume {name}: {bytes} bytes ({}){age} are not at the origin and would be lost; \
         run `tenuto volume destage {name} --wait` first, or force it with --discard-dirty={name}",
        units::human_bytes(bytes)
    ))
    .about(name.clone())
}
