//! Volumes that come and go.
//!
//! Owns the way of a volume from its settings to the shard: lock the origin, finish its journal,
//! join, export. Always true: an origin is written by nobody before its lock is held and its
//! ledger has been read; a volume that did not join leaves nothing behind.

use super::held::{Held, Hold, refused};
use super::places::Ledgers;
use super::{Daemon, Exports, StartError, VolumeError, VolumeSettings, host, identity, open};
use crate::config::share;
use crate::fault::{Fault, FileId, Kind};
use crate::files::Files;
use crate::lock::Patience;
use crate::origin::file::{self, Access, OpenVolume};
use crate::origin::mapped::ImageShown;
use crate::origin::san::Params;
use crate::shard::control::{
    Attach, AttachError, CommandError, CommandReply, Export, ListenerScope,
};
use crate::shard::guest::kept;
use crate::waiting::Waiting;
use engine::engine::{OpenError, Otherwise, Settled, inspect_origin};
use engine::event::{Command, Device, Tuning, VolumeSpec};
use engine::origin::Map;
use engine::types::{DestageMode, Policy, Uuid, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::MutexGuard;
use std::time::Duration;

/// How long a change of a held volume waits for a try under way.
const TRY_WAIT: Duration = Duration::from_secs(30);
/// How long what a unit has ordered waits for another change of its volume.
const TURN_WAIT: Duration = Duration::from_secs(600);

/// What is attached, by name, and which names are being changed.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) held: BTreeMap<String, Held>,
    /// Clustered volumes, and the clients that wait for each.
    pub(super) away: BTreeMap<String, Waiting>,
    changing: BTreeSet<String>,
    /// The volumes that were named with each group, attached or not.
    groups: BTreeMap<String, BTreeSet<String>>,
}

impl Table {
    /// A volume is named with its group; it counts there until it is removed.
    pub(super) fn name_in_group(&mut self, settings: &VolumeSettings) {
        if !settings.group.is_empty() && !settings.read_only {
            let group = self.groups.entry(settings.group.clone()).or_default();
            group.insert(settings.name.clone());
        }
    }

    pub(super) fn leave_group(&mut self, name: &str) {
        self.groups.retain(|_, members| {
            members.remove(name);
            !members.is_empty()
        });
    }
}

/// Why a volume joins, where that is not to serve guests as its settings say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Joining {
    /// Only to be destaged; nobody is shown it.
    pub(super) orphan: bool,
    /// What the ledger says is dirty elsewhere is given up.
    pub(super) accept_loss: bool,
    /// What was in a stage that is gone is given up.
    pub(super) without_stage: bool,
    /// Only to be committed: alone, and with its image open for writing.
    pub(super) commit: bool,
    /// Its image was changed by us just now.
    pub(super) renewed: bool,
    /// What the log has of it goes to the image that is there, whichever that is.
    pub(super) overwrite: bool,
    /// A pending journal is finished before the volume is served.
    pub(super) journal_first: bool,
}

impl Joining {
    fn otherwise(self) -> Otherwise {
        match (self.overwrite, self.accept_loss) {
            (true, _) => Otherwise::KeepLog,
            (false, true) => Otherwise::KeepImage,
            (false, false) => Otherwise::Refuse,
        }
    }
}

/// The right to change one name, until it is dropped.
pub(super) struct Claim<'a> {
    daemon: &'a Daemon,
    pub(super) name: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.daemon.table().changing.remove(&self.name);
        self.daemon.unclaimed.notify_all();
    }
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) id: VolumeId,
    pub(super) settings: VolumeSettings,
    pub(super) size_bytes: u64,
    pub(super) image: Option<ImageShown>,
    /// Attached only so that its dirty data reaches its origin.
    orphan: bool,
}

impl Entry {
    /// Its image is no raw one, and is written.
    pub(super) fn is_written_image(&self) -> bool {
        let image = self.image.as_ref();
        image.is_some_and(|image| image.written)
    }

    pub(super) fn export(&self) -> Export {
        Export {
            volume: self.id,
            size_bytes: self.size_bytes,
            read_only: self.settings.read_only,
            shared: self.settings.shared,
            description: format!("{} volume", self.settings.policy.name()),
        }
    }
}

impl Daemon {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.volumes.lock().expect("no holder of this lock panics")
    }

    pub(super) fn claim(&self, name: &str) -> Result<Claim<'_>, VolumeError> {
        // A held one is tried again by itself, which no caller has to know.
        let tried =
            |table: &mut Table| table.held.contains_key(name) && table.changing.contains(name);
        self.claim_unless(name, TRY_WAIT, tried)
    }

    /// The same for a unit, which orders once: it waits for any other change of its volume.
    pub(super) fn claim_in_turn(&self, name: &str) -> Result<Claim<'_>, VolumeError> {
        self.claim_unless(name, TURN_WAIT, |table| table.changing.contains(name))
    }

    /// Waits so long while the table is not as it should be.
    fn claim_unless(
        &self,
        name: &str,
        patience: Duration,
        waits: impl FnMut(&mut Table) -> bool,
    ) -> Result<Claim<'_>, VolumeError> {
        let wait = self
            .unclaimed
            .wait_timeout_while(self.table(), patience, waits);
        let mut table = wait.expect("no holder of this lock panics").0;
        match table.changing.insert(name.to_owned()) {
            false => Err(VolumeError::Changing(name.to_owned())),
            true => Ok(Claim {
                daemon: self,
                name: name.to_owned(),
            }),
        }
    }

    pub(super) fn entry(&self, name: &str) -> Option<Entry> {
        self.table().entries.get(name).cloned()
    }

    pub(super) fn known(&self, name: &str) -> Result<Entry, VolumeError> {
        let unknown = || VolumeError::Unknown(name.to_owned());
        self.entry(name).ok_or_else(unknown)
    }

    pub fn volume_id(&self, name: &str) -> Option<VolumeId> {
        self.table().entries.get(name).map(|entry| entry.id)
    }

    /// What a volume was added with, for `volume show`.
    pub fn volume_settings(&self, name: &str) -> Option<VolumeSettings> {
        self.entry(name).map(|entry| entry.settings)
    }

    /// Of each volume whose image is not raw what is known of that.
    pub fn images(&self) -> BTreeMap<String, ImageShown> {
        let table = self.table();
        let entries = table.entries.iter();
        entries
            .filter_map(|(name, entry)| Some((name.clone(), entry.image.clone()?)))
            .collect()
    }

    /// True for a volume that nobody names, kept until its dirty data is at its origin.
    pub fn is_orphan(&self, name: &str) -> bool {
        self.entry(name).is_some_and(|entry| entry.orphan)
    }

    /// Opens the origin, finishes a pending journal, joins the volume and its socket. Waits for
    /// the last writes of a dead owner, and for as long as the origin takes.
    pub fn volume_add(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        if self.clustered && settings.is_clustered() {
            return self.add_away(settings);
        }
        self.volume_join(settings, None)
    }

    /// The same for a volume that the configuration names: one that cannot go on is held, as at a
    /// start, and the reason is returned.
    pub fn volume_add_or_hold(
        &self,
        settings: VolumeSettings,
    ) -> Result<Option<Hold>, VolumeError> {
        if self.clustered && settings.is_clustered() {
            return self.add_away(settings).map(|()| None);
        }
        let Err(error) = self.volume_join(settings.clone(), None) else {
            return Ok(None);
        };
        let hold = Hold::of(&settings.name, error)?;
        self.hold(settings, hold.clone())?;
        Ok(Some(hold))
    }

    /// The same for one whose origin may be open already.
    pub(super) fn volume_join(
        &self,
        settings: VolumeSettings,
        opened: Option<Opened>,
    ) -> Result<(), VolumeError> {
        let claim = self.claim(&settings.name)?;
        self.join_claimed(&claim, settings, opened)
    }

    pub(super) fn join_claimed(
        &self,
        claim: &Claim<'_>,
        settings: VolumeSettings,
        opened: Option<Opened>,
    ) -> Result<(), VolumeError> {
        match self.entry(&settings.name) {
            Some(entry) if entry.orphan => self.drop_orphan(&entry)?,
            Some(_) => return Err(VolumeError::Exists(settings.name)),
            None => {}
        }
        self.check_share(&settings)?;
        // A volume that is attached is not refused any more.
        let prepared = self.watches.prepare(&settings);
        prepared.map_err(|error| cannot_watch(&settings.name, &error))?;
        // A held one has its socket already, and is tried again.
        let held = self.table().held.contains_key(&claim.name);
        self.table().name_in_group(&settings);
        let joined = self.join_opened(settings, Joining::default(), opened);
        // A held one is waited for; one that is not added is not.
        if matches!(&joined, Err(error) if !matches!(error, VolumeError::Held(_))) && !held {
            self.table().leave_group(&claim.name);
        }
        let entry = joined.map_err(|error| match held {
            true => self.hold_on(&claim.name, error),
            false => error,
        })?;
        if !held && let Err(error) = self.listen(&claim.name, entry.settings.exports) {
            self.forget_clients(&claim.name)?;
            self.leave(&entry)?;
            return Err(error);
        }
        let watched = self.watch(&entry);
        if let Some(units) = self.units().filter(|_| entry.settings.epoch.is_some()) {
            units.served(&claim.name);
        }
        let mut table = self.table();
        table.held.remove(&claim.name);
        table.entries.insert(claim.name.clone(), entry);
        drop(table);
        watched
    }

    /// Watches the guest of a volume, or does not, as its settings say.
    fn watch(&self, entry: &Entry) -> Result<(), VolumeError> {
        let settings = &entry.settings;
        let begun = self
            .watches
            .set(entry.id, settings, &self.handle, &self.state_dir);
        begun.map_err(|error| cannot_watch(&settings.name, &error))
    }

    /// Joins a volume that only has to be destaged. One that cannot be opened stays in the log.
    pub(super) fn adopt(&self, settings: VolumeSettings) {
        let name = settings.name.clone();
        let joining = Joining {
            orphan: true,
            ..Joining::default()
        };
        match self.join(settings, joining) {
            Ok(entry) => {
                tracing::warn!(
                    volume = %name,
                    "volume {name}: is not configured, has dirty data; destaging it"
                );
                self.table().entries.insert(name, entry);
            }
            Err(error) => tracing::warn!(
                volume = %name,
                "{error}; {name} is not configured, and it has dirty data"
            ),
        }
    }

    /// A volume that nobody names any more: it is shown to nobody, and stays until
    /// [`Daemon::settle_orphan`]. Refused while clients are connected.
    pub fn volume_orphan(&self, name: &str) -> Result<(), VolumeError> {
        if self.remove_unit(name, false)? {
            return Ok(());
        }
        let claim = self.claim(name)?;
        let name = &claim.name;
        let mut entry = self.known(name)?;
        self.hold_alone(&entry)?;
        self.forget_clients(name)?;
        self.hide(name)?;
        self.watches.end(name, &self.handle, &self.state_dir);
        entry.orphan = true;
        self.table().entries.insert(name.clone(), entry);
        Ok(())
    }

    /// Volumes that nobody names, attached only for their dirty data.
    pub fn orphans(&self) -> Vec<String> {
        let table = self.table();
        let orphans = table.entries.iter().filter(|(_, entry)| entry.orphan);
        orphans.map(|(name, _)| name.clone()).collect()
    }

    /// Waits until all of an orphan is at its origin, and detaches it, unless it got a name
    /// meanwhile.
    pub fn settle_orphan(&self, name: &str) -> Result<(), VolumeError> {
        let Some(entry) = self.entry(name).filter(|entry| entry.orphan) else {
            return Ok(());
        };
        let volume = entry.id;
        self.command(name, Command::Destage { volume })?;
        let claim = self.claim(name)?;
        let Some(entry) = self.entry(name).filter(|entry| entry.orphan) else {
            return Ok(());
        };
        self.leave(&entry)?;
        self.table().entries.remove(&claim.name);
        self.count_group(&entry.settings)
    }

    /// What volumes reserve of the log is at most half of it (rule 5.2.8).
    fn check_share(&self, settings: &VolumeSettings) -> Result<(), VolumeError> {
        // To ask for the log is a look at all volumes.
        if settings.share.min_bytes == 0 {
            return Ok(());
        }
        let table = self.table();
        let others = table.entries.values().map(|entry| &entry.settings);
        let others = others.filter(|other| other.name != settings.name);
        let others: u64 = others.map(|other| other.share.min_bytes).sum();
        drop(table);
        let half = self.handle.snapshot()?.engine.dirty_bytes_max / 2;
        let left = half.saturating_sub(others);
        if settings.share.min_bytes <= left {
            return Ok(());
        }
        let wrong = share::too_much(settings.share.min_bytes, half, left);
        let (name, what, right) = (&settings.name, wrong.what, wrong.right);
        let message = format!("volume {name}: share: {what}; {right}");
        Err(VolumeError::Settings(message))
    }

    /// Makes room for a volume that takes the name of one nobody named.
    fn drop_orphan(&self, entry: &Entry) -> Result<(), VolumeError> {
        let (name, volume) = (&entry.settings.name, entry.id);
        self.command(name, Command::Destage { volume })?;
        self.leave(entry)?;
        self.table().entries.remove(name);
        Ok(())
    }

    pub(super) fn join(
        &self,
        settings: VolumeSettings,
        joining: Joining,
    ) -> Result<Entry, VolumeError> {
        self.join_opened(settings, joining, None)
    }

    fn join_opened(
        &self,
        settings: VolumeSettings,
        joining: Joining,
        opened: Option<Opened>,
    ) -> Result<Entry, VolumeError> {
        let name = settings.name.clone();
        let opened = opened.unwrap_or_else(|| open_settled(&settings, &self.ledgers, joining));
        let (files, mut settled) = opened.map_err(|error| self.name_owner(error))?;
        let id = self.handle.place(&name)?;
        let ledger = settled.ledger.clone();
        let stat = files.ledger.as_ref().and_then(|ledger| ledger.stat().ok());
        if joining.accept_loss {
            settled.accept_loss();
        }
        settled.without_stage = joining.without_stage;
        let size_bytes = files.size_bytes();
        let export = Export {
            volume: id,
            size_bytes,
            read_only: settings.read_only,
            shared: settings.shared,
            description: format!("{} volume", settings.policy.name()),
        };
        let shown = !joining.orphan && !joining.commit;
        let by_nbd = shown && settings.exports.nbd;
        let (image, chain, map) = described(&files)?;
        let members = self.group_members(&settings);
        let attach = Attach {
            id,
            spec: spec(&settings, &files, &chain, joining, members),
            map,
            files,
            settled,
            exports: by_nbd.then(|| (name.clone(), export)).into_iter().collect(),
            counts: settings.counts.clone(),
        };
        match self.handle.attach(attach) {
            Ok(()) => {
                let entry = Entry {
                    id,
                    settings,
                    size_bytes,
                    image,
                    orphan: joining.orphan,
                };
                if shown && entry.settings.exports.vhost_user {
                    self.front_ends.offer(&entry);
                }
                Ok(entry)
            }
            Err(AttachError::Open(OpenError::JournalFirst)) if !joining.journal_first => {
                let mut joining = joining;
                joining.journal_first = true;
                self.join(settings, joining)
            }
            Err(AttachError::Open(error)) => {
                // Beside what the log has of it a journal may be damaged.
                let damaged = matches!(error, OpenError::Damaged(_));
                let mut error = refused(&name, error, damaged);
                if let VolumeError::Held(hold) = &mut error {
                    hold.ledger = ledger;
                    hold.ledger_mtime_ns = stat.map(|stat| stat.mtime_ns);
                }
                Err(error)
            }
            Err(AttachError::Stopped(stopped)) => Err(stopped.into()),
        }
    }

    /// Of a file that is in use by a volume here, which one that is.
    fn name_owner(&self, error: VolumeError) -> VolumeError {
        let VolumeError::InUse {
            message,
            ours: Some(file),
        } = error
        else {
            return error;
        };
        let files = |entry: &Entry| {
            let image = entry.image.as_ref();
            let below = image.map_or(&[][..], |image| &image.chain);
            let files = below.iter().chain([&entry.settings.origin]);
            (entry.settings.name.clone(), files.cloned().collect())
        };
        // To look at a file may take long.
        let all: Vec<(String, Vec<PathBuf>)> = self.table().entries.values().map(files).collect();
        let is_it = |path: &PathBuf| {
            let meta = std::fs::metadata(path);
            meta.is_ok_and(|meta| FileId::of(&meta) == file)
        };
        let found = all.iter().find(|(_, files)| files.iter().any(is_it));
        match found {
            Some((name, _)) => {
                VolumeError::Taken(format!("{message} (volume {name} of this daemon)"))
            }
            None => VolumeError::InUse {
                message,
                ours: Some(file),
            },
        }
    }

    /// How many volumes were named with the group of one.
    fn group_members(&self, settings: &VolumeSettings) -> u32 {
        let table = self.table();
        let members = table.groups.get(&settings.group);
        members.map_or(0, |members| members.len() as u32)
    }

    /// One that its group waited for is gone: the others hear of it.
    fn count_group(&self, gone: &VolumeSettings) -> Result<(), VolumeError> {
        self.table().leave_group(&gone.name);
        let members = self.group_members(gone);
        let entries: Vec<Entry> = self.table().entries.values().cloned().collect();
        let of_group = |it: &&Entry| !gone.group.is_empty() && it.settings.group == gone.group;
        for entry in entries.iter().filter(of_group) {
            let (volume, tuning) = (entry.id, tuning(&entry.settings, members));
            self.command(&entry.settings.name, Command::Tune { volume, tuning })?;
        }
        Ok(())
    }

    fn leave(&self, entry: &Entry) -> Result<(), VolumeError> {
        let volume = entry.id;
        let discard_dirty = false;
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        self.command(&entry.settings.name, command)
    }

    /// Makes the sockets of a volume: all of them, or none.
    pub(super) fn listen(&self, name: &str, exports: Exports) -> Result<(), VolumeError> {
        let refused = |error| match error {
            StartError::InUse(message) => VolumeError::InUse {
                message,
                ours: None,
            },
            other => VolumeError::Settings(other.to_string()),
        };
        if exports.nbd {
            let listener = self.sockets.volume(name).map_err(refused)?;
            self.handle
                .listen(listener, ListenerScope::Volume(name.to_owned()))?;
        }
        if exports.vhost_user {
            let listener = match self.sockets.rings(name).map_err(refused) {
                Ok(listener) => listener,
                Err(error) => {
                    self.hide(name)?;
                    return Err(error);
                }
            };
            let greeter = self.front_ends.greeter(&self.handle, &self.state_dir, name);
            self.handle.hand_on(listener, name, greeter)?;
        }
        Ok(())
    }

    pub(super) fn command(&self, name: &str, command: Command) -> Result<(), VolumeError> {
        self.handle.command(command).map_err(|error| match error {
            CommandError::Stopped(stopped) => VolumeError::Stopped(stopped),
            error => VolumeError::Command {
                name: name.to_owned(),
                error,
            },
        })
    }

    /// Changes what can be changed while a volume runs: `write_cache`, `shared`, `replicas`,
    /// `destage`, `destage_after`, `dirty_limit_bytes`, `flow`, `origin_queue_depth`, `admission`,
    /// `overlay_timeout`, `overlay_ram_bytes`, `reset_on`, `origin_timeout`, and where it is
    /// exported.
    pub fn volume_tune(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let claim = self.claim(&settings.name)?;
        let name = &claim.name;
        let mut entry = self.known(name)?;
        if let Some(what) = needs_restart(&entry.settings, &settings) {
            return Err(VolumeError::Settings(format!(
                "volume {name}: {what} cannot change while it runs; remove the volume and add it"
            )));
        }
        self.check_share(&settings)?;
        let tuning = tuning(&settings, self.group_members(&settings));
        let volume = entry.id;
        self.command(name, Command::Tune { volume, tuning })?;
        if let Some(units) = self
            .units()
            .filter(|_| entry.settings.replicas != settings.replicas)
        {
            units.set_replicas(name, settings.replicas);
        }
        let exports = (entry.settings.exports, settings.exports);
        // The policy takes a while; `volume_switch` changes it.
        let policy = entry.settings.policy;
        let epoch = entry.settings.epoch;
        entry.settings = VolumeSettings {
            policy,
            epoch,
            ..settings
        };
        let shown = self.show(&entry, exports.0, exports.1);
        if shown.is_err() {
            entry.settings.exports = exports.0;
        }
        self.table().entries.insert(name.clone(), entry.clone());
        shown?;
        self.watch(&entry)
    }

    /// Orders another policy for a running volume; it is in effect when the reply has come. What
    /// write-back keeps beside the origin is made first.
    pub fn volume_switch(&self, name: &str, policy: Policy) -> Result<CommandReply, VolumeError> {
        let claim = self.claim(name)?;
        let mut entry = self.known(name)?;
        let old = entry.settings.policy;
        if policy != old && (policy == Policy::Ephemeral || old == Policy::Ephemeral) {
            let (old, new) = (old.name(), policy.name());
            return Err(VolumeError::Settings(format!(
                "volume {name}: cannot change from {old} to {new} while it runs; remove the \
                 volume and add it"
            )));
        }
        let volume = entry.id;
        let mut journal_possible = false;
        if policy == Policy::WriteBack && !entry.settings.read_only {
            journal_possible = self.make_sides(&claim.name, volume)?;
        }
        let command = Command::Switch {
            volume,
            policy,
            journal_possible,
        };
        let reply = self.handle.command_begin(command)?;
        entry.settings.policy = policy;
        if entry.settings.exports.vhost_user {
            // Safe before it is in effect: a guest that does not flush has each write made durable.
            self.front_ends.offer(&entry);
        }
        self.table().entries.insert(claim.name.clone(), entry);
        Ok(reply)
    }

    /// Makes ledger and journal on this thread: the shard does not wait for an origin.
    fn make_sides(&self, name: &str, volume: VolumeId) -> Result<bool, VolumeError> {
        let sides = self.handle.sides(volume)?;
        let mut sides = sides.ok_or_else(|| VolumeError::Unknown(name.to_owned()))?;
        if !sides.make(&mut Patience::none())? {
            let origin = &sides.origin;
            return Err(VolumeError::Settings(format!(
                "volume {name}: nothing can lie beside {origin}, where write-back keeps its \
                 ledger; remove the volume and add it with `journal`"
            )));
        }
        let journal_possible = sides.journal.is_some();
        self.handle.take_sides(volume, sides)?;
        Ok(journal_possible)
    }

    /// Shows a volume where it is to be seen from now on, as it is now. Clients that are there
    /// stay.
    fn show(&self, entry: &Entry, before: Exports, now: Exports) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        let fresh = Exports {
            vhost_user: now.vhost_user && !before.vhost_user,
            nbd: now.nbd && !before.nbd,
        };
        self.listen(name, fresh)?;
        self.show_again(entry)?;
        if before.nbd && !now.nbd {
            self.handle.export_remove(name)?;
            self.sockets.remove_volume(name);
            let scope = ListenerScope::Volume(name.to_owned());
            self.handle.unlisten(scope)?;
        }
        if before.vhost_user && !now.vhost_user {
            self.front_ends.withdraw(name);
            self.sockets.remove_rings(name);
            let scope = ListenerScope::Rings(name.to_owned());
            self.handle.unlisten(scope)?;
        }
        Ok(())
    }

    pub(super) fn hide(&self, name: &str) -> Result<(), VolumeError> {
        self.sockets.remove_volume(name);
        self.sockets.remove_rings(name);
        for scope in [ListenerScope::Volume, ListenerScope::Rings] {
            self.handle.unlisten(scope(name.to_owned()))?;
        }
        Ok(())
    }

    /// Forgets a volume; refused while clients are connected, and while it is dirty unless
    /// `discard_dirty`.
    pub fn volume_remove(&self, name: &str, discard_dirty: bool) -> Result<(), VolumeError> {
        if self.remove_unit(name, discard_dirty)? {
            return Ok(());
        }
        let _claim = self.claim(name)?;
        let held = self.table().held.get(name).cloned();
        if let Some(held) = held {
            self.release(&held, discard_dirty)?;
            return self.count_group(&held.settings);
        }
        let entry = self.known(name)?;
        let volume = entry.id;
        let clients = self.clients(&entry)?;
        if clients > 0 {
            let name = name.to_owned();
            return Err(VolumeError::Busy { name, clients });
        }
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        self.command(name, command)?;
        self.front_ends.withdraw(name);
        kept::forget(&self.state_dir, name);
        self.watches.end(name, &self.handle, &self.state_dir);
        self.hide(name)?;
        let mut table = self.table();
        table.leave_group(name);
        table.entries.remove(name);
        Ok(())
    }
}

/// The files of a volume, locked, and what its ledger says.
pub(super) type Opened = Result<(OpenVolume, Settled), VolumeError>;

/// The number of a volume among files that hold no other.
const ALONE: VolumeId = VolumeId(0);

/// Locks the files of a volume and finishes what its journal says, unless the log may have that as
/// well; a reader of the image does it as its writer first.
pub(super) fn open_settled(
    settings: &VolumeSettings,
    ledgers: &Ledgers,
    joining: Joining,
) -> Opened {
    let mut joining = joining;
    let reader = settings.read_only || settings.policy == Policy::Ephemeral;
    if !reader || joining.commit {
        return open_origin(settings, ledgers, Access::Write, joining);
    }
    joining.journal_first = true;
    match open_origin(settings, ledgers, Access::Read, joining) {
        Err(VolumeError::Unfinished(why)) => {
            tracing::info!("{why}; finishing it");
            let (files, _) = open_origin(settings, ledgers, Access::Bytes, joining)?;
            files.close();
            open_origin(settings, ledgers, Access::Read, joining)
        }
        Ok((files, _)) if files.is_guarded() => {
            // A commit was cut short before it was decided: only other programs mind.
            files.close();
            let cleared = open_origin(settings, ledgers, Access::Bytes, joining);
            match cleared {
                Ok((files, _)) => files.close(),
                Err(error) => tracing::warn!("{error}; the guard of its image stays"),
            }
            open_origin(settings, ledgers, Access::Read, joining)
        }
        opened => opened,
    }
}

fn open_origin(
    settings: &VolumeSettings,
    ledgers: &Ledgers,
    access: Access,
    joining: Joining,
) -> Opened {
    let reader = access == Access::Read;
    if !reader && settings.journal_dir.is_none() {
        ledgers.make().map_err(|error| {
            let (name, path) = (&settings.name, ledgers.place.display());
            VolumeError::Origin(format!("volume {name}: cannot make {path}: {error}"))
        })?;
    }
    let request = file::Request {
        path: settings.origin.clone(),
        access,
        format: settings.format,
        allow: ledgers.images.allow(&settings.origin),
        journal_place: settings.journal_dir.clone(),
        ledger_place: Some(ledgers.place.clone()),
        quiet: settings.origin_quiet,
        create: false,
        keeps_end: joining.commit,
        epoch: settings.epoch,
    };
    let mut progress = |waiting: &str| tracing::info!("{waiting}");
    let mut patience = Patience {
        wait: open::LATE_WRITES_WAIT,
        progress: &mut progress,
    };
    let opened = file::open(&request, &mut patience)?;
    let journal = opened.journal_path.is_some();
    let first = joining.journal_first || opened.has_torn_header(&request);
    let mut files = Files::without_cache();
    files.insert_volume(ALONE, opened);
    if reader {
        refuse_unfinished(&mut files, &settings.name)?;
    }
    let cache = (!first).then_some(ledgers.cache);
    let mut settled = files
        .settle(ALONE, joining.otherwise(), cache, &mut patience)
        .map_err(|error| refused(&settings.name, error, true))?;
    let mut opened = files.remove_volume(ALONE).expect("was just inserted");
    open_below(&mut opened, settings, &request, &mut settled, &mut patience)?;
    files.insert_volume(ALONE, opened);
    let owned = matches!(settings.policy, Policy::WriteBack | Policy::Ephemeral);
    if owned && !reader && (journal || settings.policy == Policy::WriteBack) {
        let beside = [Device::Ledger(ALONE), Device::Journal(ALONE)];
        for device in beside.into_iter().take(if journal { 2 } else { 1 }) {
            files.ensure(device).map_err(|_| {
                let (name, origin) = (&settings.name, settings.origin.display());
                VolumeError::Origin(format!(
                    "volume {name}: cannot make a ledger and a journal beside {origin}; name a \
                     place with `journal`"
                ))
            })?;
        }
    }
    let mut opened = files.remove_volume(ALONE).expect("was just inserted");
    opened.san = settings.san.map(|san| Params {
        latency_ns: san.latency.as_nanos() as u64,
        iops: u64::from(san.iops.unwrap_or(0)),
        bytes_per_second: san.bandwidth_bytes.unwrap_or(0),
        ..Params::default()
    });
    Ok((opened, settled))
}

fn unread_below(settings: &VolumeSettings) -> VolumeError {
    let (name, image) = (&settings.name, settings.origin.display());
    VolumeError::Origin(format!(
        "volume {name}: the files below {image} cannot be looked at; try again when their storage \
         answers"
    ))
}

/// Opens the files below an image that is written, when what was pending beside it is settled. They
/// were not open when its first file was looked at.
fn open_below(
    files: &mut OpenVolume,
    settings: &VolumeSettings,
    request: &file::Request,
    settled: &mut Settled,
    patience: &mut Patience,
) -> Result<(), VolumeError> {
    if !settled.journal_left && request.access != Access::Read {
        files.clear_guard()?;
    }
    files.open_below(request, !settled.journal_left, patience)?;
    let written = files.mapped.as_ref().filter(|mapped| mapped.is_written());
    if let Some(mapped) = files
        .mapped
        .as_ref()
        .filter(|_| settings.policy == Policy::Ephemeral)
    {
        let stat = match written {
            Some(_) => mapped.stat_to_read(),
            None => mapped.stat_to_write(),
        };
        settled.image_otherwise = stat.ok().and_then(|stat| stat.image);
    }
    if let Some(image) = &mut settled.image {
        // Without it a file below that was changed later would look as it was.
        let below = written.map(|mapped| mapped.print_below()).transpose();
        image.below = below.map_err(|_| unread_below(settings))?.unwrap_or(0);
    }
    Ok(())
}

/// A journal that was left in the middle is no reader's to finish.
fn refuse_unfinished(files: &mut Files, name: &str) -> Result<(), VolumeError> {
    let info = inspect_origin(files, ALONE).map_err(|error| refused(name, error, true))?;
    match info.is_some_and(|info| matches!(info.journal, Some(Ok(_)))) {
        false => Ok(()),
        true => Err(VolumeError::Unfinished(format!(
            "volume {name}: the journal of its image is not finished"
        ))),
    }
}

fn spec(
    settings: &VolumeSettings,
    files: &OpenVolume,
    chain: &[Uuid],
    joining: Joining,
    group_members: u32,
) -> VolumeSpec {
    // The times of an image that was written a moment ago may say nothing.
    let identity = || match chain.first() {
        _ if joining.renewed => Some(host::fresh()),
        Some(top) => Some(*top),
        None => identity::of(files),
    };
    VolumeSpec {
        name: settings.name.clone(),
        origin: files.origin.name(),
        new_uuid: host::fresh(),
        policy: settings.policy,
        size_bytes: files.size_bytes(),
        read_only: settings.read_only,
        base_layer: files.origin.read_only().then(identity).flatten(),
        journal_possible: files.journal.is_some(),
        commit: joining.commit,
        storage: identity::storage(&settings.origin, files),
        group: settings.group.clone(),
        tuning: Tuning {
            // A commit is whole or not at all, however the volume would be destaged.
            destage: match joining.commit {
                true => DestageMode::Atomic,
                false => settings.destage,
            },
            ..tuning(settings, group_members)
        },
    }
}

/// Of an image that is not raw: what is told of it, the names of its files, and how its bytes are
/// found.
fn described(files: &OpenVolume) -> Result<Described, Fault> {
    let Some(mapped) = &files.mapped else {
        return Ok((None, Vec::new(), None));
    };
    let chain = identity::of_chain(mapped);
    let (tables, layers) = identity::names(mapped, &chain);
    let map = mapped.map(tables, layers)?;
    Ok((Some(mapped.shown()), chain, Some(map)))
}

type Described = (Option<ImageShown>, Vec<Uuid>, Option<Box<dyn Map>>);

fn tuning(settings: &VolumeSettings, group_members: u32) -> Tuning {
    Tuning {
        write_cache: settings.write_cache,
        destage_after_ms: settings.destage_after.map(|age| age.as_millis() as u64),
        destage: settings.destage,
        dirty_limit_bytes: settings.dirty_limit_bytes,
        flow: settings.flow,
        origin_queue_depth: settings.origin_queue_depth,
        admission: settings.admission,
        origin_timeout_ms: settings
            .origin_timeout
            .map(|limit| limit.as_millis() as u64),
        overlay_timeout_ms: settings.overlay_timeout.as_millis() as u64,
        overlay_ram_bytes: settings.overlay_ram_bytes,
        reset_on: settings.reset_on,
        share: settings.share,
        group_members,
    }
}

fn cannot_watch(name: &str, error: &std::io::Error) -> VolumeError {
    VolumeError::Settings(format!("volume {name}: cannot watch its guest: {error}"))
}

/// The first thing that differs and cannot change in place.
fn needs_restart(old: &VolumeSettings, new: &VolumeSettings) -> Option<&'static str> {
    let differing = [
        ("origin", old.origin != new.origin),
        ("read-only", old.read_only != new.read_only),
        ("journal", old.journal_dir != new.journal_dir),
        ("group", old.group != new.group),
        ("origin-quiet", old.origin_quiet != new.origin_quiet),
        ("qmp", old.qmp != new.qmp),
    ];
    let first = differing.into_iter().find(|(_, differs)| *differs);
    first.map(|(what, _)| what)
}

impl From<Fault> for VolumeError {
    fn from(fault: Fault) -> VolumeError {
        let message = fault.to_string();
        match fault.kind {
            Kind::InUse => VolumeError::InUse {
                message,
                ours: fault.ours,
            },
            Kind::NotFound | Kind::Invalid => VolumeError::Image(message),
            _ => VolumeError::Origin(message),
        }
    }
}
