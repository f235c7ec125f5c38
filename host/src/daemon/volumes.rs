//! Volumes that come and go.
//!
//! Owns the way of a volume from its settings to the shard: lock the origin, finish its journal,
//! join, export. Always true: an origin is written by nobody before its lock is held and its
//! ledger has been read; a volume that did not join leaves nothing behind.

use super::hold::{Held, Hold, refused};
use super::opened::{Joining, Opened, described, open_settled, spec, tuning};
use super::{Daemon, Exports, StartError, VolumeError, VolumeSettings};
use crate::config::share;
use crate::fault::{Fault, FileId, Kind};
use crate::lock::Patience;
use crate::origin::mapped::ImageShown;
use crate::shard::control::{
    Attach, AttachError, CommandError, CommandReply, Export, ListenerScope, Needs,
};
use crate::shard::guest::kept;
use crate::waiting::Waiting;
use engine::engine::OpenError;
use engine::event::Command;
use engine::types::{Policy, VolumeId};
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
            block_bytes: self.settings.block_bytes,
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
        let settings = self.as_member(settings);
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
        let settings = self.as_member(settings);
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
        let proved = entry.settings.epoch.is_some();
        if let Some(units) = self.units().filter(|_| proved || entry.settings.unproved) {
            units.served(&claim.name, proved);
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
        // No increment of it is asked for.
        self.backups.forget(&settings.name);
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
        self.handle.track(entry.id, Vec::new())?;
        self.forget_windows(name);
        self.backups.forget(name);
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
        if opened.is_none() {
            self.backups.load(&settings);
        }
        let opened = opened.unwrap_or_else(|| open_settled(&settings, &self.ledgers, joining));
        let placing = self.placing.lock().expect("no holder of this lock panics");
        let (attach, image) = self.attachment(&settings, joining, opened)?;
        let (id, size_bytes) = (attach.id, attach.files.size_bytes());
        let ledger = attach.settled.ledger.clone();
        let beside = attach.files.ledger.as_ref();
        let stat = beside.and_then(|ledger| ledger.stat().ok());
        let shown = !joining.orphan && !joining.commit;
        let attached = self.handle.attach(attach);
        drop(placing);
        match attached {
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
            Err(AttachError::Refused(_)) => Err(VolumeError::Origin(format!(
                "volume {name}: something else is being done with it"
            ))),
            Err(AttachError::Stopped(stopped)) => Err(stopped.into()),
        }
    }

    /// What the shard gets of a volume that joins, and what is told of its image.
    fn attachment(
        &self,
        settings: &VolumeSettings,
        joining: Joining,
        opened: Opened,
    ) -> Result<(Attach, Option<ImageShown>), VolumeError> {
        let name = &settings.name;
        let (files, mut settled) = opened.map_err(|error| self.name_owner(error))?;
        check_blocks(settings, files.size_bytes())?;
        let id = self.handle.place(name)?;
        if joining.accept_loss {
            settled.accept_loss();
        }
        settled.without_stage = joining.without_stage;
        let export = Export {
            volume: id,
            size_bytes: files.size_bytes(),
            read_only: settings.read_only,
            shared: settings.shared,
            block_bytes: settings.block_bytes,
            description: format!("{} volume", settings.policy.name()),
        };
        let shown = !joining.orphan && !joining.commit;
        let by_nbd = shown && settings.exports.nbd;
        let (image, chain, map) = described(&files)?;
        let members = self.group_members(settings);
        let lives = self.backups.joins(settings, image.as_ref())?;
        let attach = Attach {
            id,
            spec: spec(settings, &files, &chain, joining, members),
            map,
            files,
            settled,
            exports: by_nbd.then(|| (name.clone(), export)).into_iter().collect(),
            limit: settings.limit,
            needs: Needs {
                through: shown && self.flushes_through(settings),
                ..settings.needs.clone()
            },
            lives,
            pooled: shown.then(|| self.pools.pooled(name)).flatten(),
        };
        Ok((attach, image))
    }

    /// Gives a volume that was served without proof the files that it may write.
    pub(super) fn prove(&self, settings: &VolumeSettings) -> Result<(), VolumeError> {
        let mut joining = Joining::default();
        loop {
            let opened = open_settled(settings, &self.ledgers, joining);
            let (mut attach, _) = self.attachment(settings, joining, opened)?;
            attach.settled.former = true;
            match self.handle.prove(attach) {
                Ok(()) => return Ok(()),
                Err(AttachError::Open(OpenError::JournalFirst)) if !joining.journal_first => {
                    joining.journal_first = true;
                }
                Err(AttachError::Open(error)) => return Err(refused(&settings.name, error, false)),
                Err(AttachError::Refused(refusal)) => {
                    let name = settings.name.clone();
                    let error = refusal.into();
                    return Err(VolumeError::Command { name, error });
                }
                Err(AttachError::Stopped(stopped)) => return Err(stopped.into()),
            }
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

    pub(super) fn leave(&self, entry: &Entry) -> Result<(), VolumeError> {
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

    /// Changes what can be changed while a volume runs: `block_bytes` without clients,
    /// `write_cache`, `shared`, `replicas`, `on_degraded`, `destage`, `destage_after`,
    /// `dirty_limit_bytes`, `flow`, `limit`, `origin_queue_depth`, `admission`, `overlay_timeout`,
    /// `overlay_ram_bytes`, `reset_on`, `origin_timeout`, and where it is exported.
    pub fn volume_tune(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let claim = self.claim(&settings.name)?;
        let name = &claim.name;
        let mut entry = self.known(name)?;
        let settings = self.as_member(settings);
        if let Some(what) = needs_restart(&entry.settings, &settings) {
            return Err(VolumeError::Settings(format!(
                "volume {name}: {what} cannot change while it runs; remove the volume and add it"
            )));
        }
        self.check_share(&settings)?;
        check_blocks(&settings, entry.size_bytes)?;
        if entry.settings.block_bytes != settings.block_bytes {
            // A guest that runs cannot learn of it, and its requests would fail.
            self.hold_alone(&entry)?;
        }
        let tuning = tuning(&settings, self.group_members(&settings));
        let volume = entry.id;
        if let Err(error) = self.command(name, Command::Tune { volume, tuning }) {
            self.show_again(&entry)?;
            return Err(error);
        }
        self.handle.limit(volume, settings.limit)?;
        let copies = settings.copies();
        if let Some(units) = self.units().filter(|_| entry.settings.copies() != copies) {
            units.set_copies(name, copies);
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
        let clients = self.clients(&entry)? + self.backups.readers(name);
        if clients > 0 {
            let name = name.to_owned();
            return Err(VolumeError::Busy { name, clients });
        }
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        self.command(name, command)?;
        self.forget_windows(name);
        self.backups.forget(name);
        self.front_ends.withdraw(name);
        kept::forget(&self.state_dir, name);
        if self.pools.of(name).is_some() {
            self.pools.note(name).remove();
        }
        self.watches.end(name, &self.handle, &self.state_dir);
        self.hide(name)?;
        let mut table = self.table();
        table.leave_group(name);
        table.entries.remove(name);
        Ok(())
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

/// A disk is whole blocks of the size that its guest is shown.
pub(super) fn check_blocks(settings: &VolumeSettings, size_bytes: u64) -> Result<(), VolumeError> {
    let (name, block_bytes) = (&settings.name, settings.block_bytes);
    match size_bytes.is_multiple_of(block_bytes.into()) {
        true => Ok(()),
        false => Err(VolumeError::Settings(format!(
            "volume {name}: a disk of {size_bytes} bytes is no whole number of blocks of \
             {block_bytes}; give it a size that is, or leave block-size at 512"
        ))),
    }
}
