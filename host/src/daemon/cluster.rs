//! Clustered volumes as the daemon has them: away, served here, or let go of.
//!
//! Always true: a clustered volume has no file open and no lock taken unless its unit has said that
//! it may be served, and by which epoch; while it is away clients that come for it wait. It is let
//! go of only with no client connected. Deliberately absent: whether it may be served; see
//! [`crate::unit`].

use super::copies::ByShard;
use super::hold::{Hold, Why};
use super::volumes::{Claim, Entry};

use super::{Daemon, VolumeError, VolumeSettings, rings};
use crate::shard::control::{CommandError, Needs};
use crate::shard::guest::kept;
use crate::unit::sides::Membership;
use crate::unit::{Named, Post, Shown, Units, Volumes};
use crate::waiting::Waiting;
use engine::event::{Command, Refusal};
use engine::types::SECTOR_BYTES;
use node::message::Disk;
use node::record::Epoch;
use node::unit::Drained;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long an orderly stop waits for records of units that are let go of.
const LEAVE_WAIT: Duration = Duration::from_secs(10);

fn named(settings: &VolumeSettings) -> Named {
    Named {
        name: settings.name.clone(),
        origin: settings.origin.clone(),
        journal_place: settings.journal_dir.clone(),
        quiet: settings.origin_quiet,
        copies: settings.copies(),
    }
}

/// What units have done with volumes.
struct ByUnits(Weak<Daemon>);

impl Daemon {
    /// From now on the hosts of the cluster decide. Volumes that are away ask for nothing before.
    pub fn join_cluster(
        self: &Arc<Daemon>,
        member: Membership,
        post: Arc<dyn Post>,
    ) -> std::io::Result<()> {
        let volumes = Arc::new(ByUnits(Arc::downgrade(self)));
        let logs = Arc::new(ByShard::of(self, post.clone()));
        self.join_pools(&member, post.clone())?;
        let units = Units::start(member, self.state_dir.clone(), volumes, post, logs)?;
        let waiting: Vec<_> = self.table().away.clone().into_iter().collect();
        for (name, count) in waiting {
            let held = self.table().held.get(&name).cloned();
            if let Some(held) = held {
                units.add(named(&held.settings), count);
            }
        }
        let set = self.units.set(units);
        assert!(set.is_ok(), "a daemon joins one cluster, once");
        Ok(())
    }

    /// What cannot be done with a clustered volume yet.
    pub fn refuse_clustered(&self, name: &str, what: &str) -> Result<(), VolumeError> {
        match self.table().away.contains_key(name) {
            false => Ok(()),
            true => Err(VolumeError::Settings(format!(
                "volume {name}: {what} of a clustered volume is not in this version; its image can \
                 be changed by `qemu-img` while no host serves it"
            ))),
        }
    }

    /// Its copies would be of another history than the volume.
    pub(super) fn refuse_with_copies(&self, name: &str) -> Result<(), VolumeError> {
        let shown = self.units_shown().remove(name);
        match shown.is_some_and(|unit| unit.replication.is_some()) {
            false => Ok(()),
            true => Err(VolumeError::Refused(format!(
                "volume {name}: has copies on other hosts; write `replicas = 0` first"
            ))),
        }
    }

    pub fn units(&self) -> Option<&Units> {
        self.units.get()
    }

    /// What is known of clustered volumes.
    pub fn units_shown(&self) -> BTreeMap<String, Shown> {
        self.units().map(Units::shown).unwrap_or_default()
    }

    /// Names a volume that is served when its unit says so.
    pub(super) fn name_away(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let name = settings.name.clone();
        if !settings.group.is_empty() {
            return Err(VolumeError::Settings(format!(
                "volume {name}: group: not in this version of a clustered volume; leave it away"
            )));
        }
        if settings.journal_dir.is_some() {
            return Err(VolumeError::Settings(format!(
                "volume {name}: journal: not in this version of a clustered volume; leave it away"
            )));
        }
        let waiting = Waiting::default();
        self.table().away.insert(name.clone(), waiting.clone());
        self.go_away(&settings, &waiting)?;
        self.listen(&name, settings.exports)?;
        if let Some(units) = self.units() {
            units.add(named(&settings), waiting);
        }
        Ok(())
    }

    /// The same for one that is added while the daemon runs.
    pub(super) fn add_away(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let claim = self.claim(&settings.name)?;
        let known = {
            let table = self.table();
            table.entries.contains_key(&claim.name) || table.held.contains_key(&claim.name)
        };
        match known {
            true => Err(VolumeError::Exists(settings.name)),
            false => self.name_away(settings),
        }
    }

    /// Lets clients of a volume wait.
    fn go_away(&self, settings: &VolumeSettings, waiting: &Waiting) -> Result<(), VolumeError> {
        let name = &settings.name;
        let mut settings = settings.clone();
        settings.needs = Needs::default();
        (settings.epoch, settings.unproved) = (None, false);
        let hold = Hold::because(Why::Away, format!("volume {name}: is served elsewhere"));
        let held = super::Held { settings, hold };
        self.table().held.insert(name.clone(), held);
        self.front_ends.set_away(name, waiting.clone());
        Ok(self.handle.export_away(name, waiting.clone())?)
    }

    /// Serves a volume with the ledger of this epoch, or without one while there is no proof, or
    /// holds it. One that is served without gets its ledger.
    fn serve_unit(
        &self,
        name: &str,
        epoch: Option<Epoch>,
        needs: &Needs,
    ) -> Result<(), VolumeError> {
        let claim = self.claim_in_turn(name)?;
        let unproved = self.entry(name).filter(|it| it.settings.unproved);
        if let (Some(epoch), Some(entry)) = (epoch, unproved) {
            return self.prove_claimed(&claim, entry, epoch);
        }
        let held = self.table().held.get(name).cloned();
        let held = held.ok_or_else(|| VolumeError::Unknown(name.to_owned()))?;
        let mut settings = held.settings;
        (settings.epoch, settings.unproved) = (epoch, epoch.is_none());
        settings.needs = needs.clone();
        if let Some(held) = self.table().held.get_mut(name) {
            held.settings = settings.clone();
            // Not tried again by itself before this try has ended.
            held.hold.why = Why::Away;
        }
        let joined = self.join_claimed(&claim, settings, None);
        if joined.is_err() {
            self.handle.export_hold(name)?;
        }
        self.greet_those_who_waited(name);
        if joined.is_ok() {
            self.show_window(name, needs);
        }
        joined
    }

    /// There is proof: a volume that is served goes on with ledger and journal of this epoch.
    fn prove_claimed(
        &self,
        claim: &Claim<'_>,
        entry: Entry,
        epoch: Epoch,
    ) -> Result<(), VolumeError> {
        let mut settings = entry.settings.clone();
        (settings.epoch, settings.unproved) = (Some(epoch), false);
        self.prove(&settings)?;
        let mut entry = entry;
        entry.settings = settings;
        let needs = entry.settings.needs.clone();
        self.table().entries.insert(claim.name.clone(), entry);
        self.show_window(&claim.name, &needs);
        Ok(())
    }

    /// Front ends that came while it was away are served, or closed.
    fn greet_those_who_waited(&self, name: &str) {
        let (came, shown) = self.front_ends.end_away(name);
        let grown =
            |it: &Entry| shown.is_some_and(|sectors| sectors * SECTOR_BYTES != it.size_bytes);
        if let Some(entry) = self.entry(name).filter(grown) {
            self.front_ends.grow(&entry);
        }
        let greeter = self.front_ends.greeter(&self.handle, &self.state_dir, name);
        came.into_iter().for_each(|socket| greeter(socket));
        self.front_ends.awaken(name);
    }

    /// Brings everything of a volume to its origin and lets go of it.
    fn let_go_of_unit(&self, name: &str, at_rest: bool) -> Result<Drained, VolumeError> {
        loop {
            let claim = self.claim_in_turn(name)?;
            let Some(entry) = self.entry(name) else {
                return self.away_again(name).map(|()| Drained::Done);
            };
            drop(claim);
            let volume = entry.id;
            if !at_rest {
                self.command(name, Command::Destage { volume })?;
            }
            let claim = self.claim_in_turn(name)?;
            let entry = self.known(name)?;
            if self.is_in_use(&entry)? || self.is_resting(&entry)? {
                self.show_to_waiting(&entry)?;
                return Ok(Drained::Busy);
            }
            // Of guests that have gone elsewhere.
            self.front_ends.disconnect(name);
            match self.handle.command(Command::Suspend { volume }) {
                Ok(()) => {}
                Err(CommandError::Refused(Refusal::Dirty)) => {
                    self.show_to_waiting(&entry)?;
                    if at_rest {
                        return Ok(Drained::Busy);
                    }
                    continue;
                }
                Err(error) => {
                    self.show_to_waiting(&entry)?;
                    let name = name.to_owned();
                    return Err(VolumeError::Command { name, error });
                }
            }
            kept::forget(&self.state_dir, name);
            self.forget_windows(name);
            self.watches.end(name, &self.handle, &self.state_dir);
            self.table().entries.remove(&claim.name);
            self.go_away(&entry.settings, &self.counted(name))?;
            return Ok(Drained::Done);
        }
    }

    /// In a backup window what is dirty cannot be brought to the image.
    fn is_resting(&self, entry: &Entry) -> Result<bool, VolumeError> {
        let volumes = self.handle.snapshot()?.engine.volumes;
        Ok(volumes.iter().any(|it| it.id == entry.id && it.rests))
    }

    /// Lets clients that come from now on wait, and tells whether some are there.
    fn is_in_use(&self, entry: &Entry) -> Result<bool, VolumeError> {
        let name = &entry.settings.name;
        let waiting = self.counted(name);
        self.front_ends.set_away(name, waiting.clone());
        self.handle.export_away(name, waiting)?;
        let awake = self.front_ends.rest(name).is_err();
        Ok(awake || self.clients_awake(entry)? > 0)
    }

    /// Clients but for front ends whose guests went to sleep, to go on elsewhere.
    fn clients_awake(&self, entry: &Entry) -> Result<u64, VolumeError> {
        let asleep = self.front_ends.out_of_the_way(&entry.settings.name);
        Ok(self.clients(entry)?.saturating_sub(asleep))
    }

    /// The disk that a client uses here, for hosts to which its guest may move.
    fn used(&self, name: &str) -> Option<Disk> {
        let entry = self.entry(name)?;
        let awake = self.clients_awake(&entry).unwrap_or(0);
        (awake > 0).then(|| rings::disk_of(&entry))
    }

    /// Lets no client in until it is deposed, or [`Daemon::let_clients_in`] is called; not if one
    /// is connected.
    fn rest_unit(&self, name: &str) -> Result<Drained, VolumeError> {
        let _claim = self.claim_in_turn(name)?;
        let entry = self.known(name)?;
        if self.is_in_use(&entry)? {
            self.show_to_waiting(&entry)?;
            return Ok(Drained::Busy);
        }
        Ok(Drained::Done)
    }

    fn let_clients_in(&self, name: &str) -> Result<(), VolumeError> {
        let _claim = self.claim_in_turn(name)?;
        let entry = self.known(name)?;
        self.show_to_waiting(&entry)
    }

    /// Gives a volume that is served here to another host: true if that host has it then, false if
    /// it was brought to its image and no host has it.
    pub fn volume_move(&self, name: &str, host: &str) -> Result<bool, VolumeError> {
        let none = || VolumeError::Settings(format!("volume {name}: is not clustered"));
        let units = self.units().ok_or_else(none)?;
        units.give(name, host).map_err(VolumeError::Refused)
    }

    /// It is not let go of: those who have come meanwhile are let in.
    pub(super) fn show_to_waiting(&self, entry: &Entry) -> Result<(), VolumeError> {
        self.show_again(entry)?;
        self.greet_those_who_waited(&entry.settings.name);
        Ok(())
    }

    /// Whether the unit of a volume says that this host serves it, where it has one.
    pub(super) fn may_serve(&self, settings: &VolumeSettings) -> bool {
        let shown = || self.units_shown().remove(&settings.name);
        let clustered = settings.epoch.is_some() || settings.unproved;
        !clustered || shown().is_some_and(|unit| unit.here)
    }

    /// Other settings for a volume that is away, in effect when it is served next.
    pub fn change_away(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let claim = self.claim(&settings.name)?;
        let name = &claim.name;
        let mut table = self.table();
        let away = table
            .held
            .get_mut(name)
            .filter(|it| it.hold.why == Why::Away);
        let Some(held) = away else {
            return Ok(());
        };
        let old = std::mem::replace(&mut held.settings, settings.clone());
        drop(table);
        let moved = old.origin != settings.origin || old.origin_quiet != settings.origin_quiet;
        if let Some(units) = self.units().filter(|_| moved) {
            let refused = |why| VolumeError::Refused(format!("volume {name}: {why}"));
            units.remove(name).map_err(refused)?;
            units.add(named(&settings), self.counted(name));
        } else if let Some(units) = self.units().filter(|_| old.copies() != settings.copies()) {
            units.set_copies(name, settings.copies());
        }
        Ok(())
    }

    fn counted(&self, name: &str) -> Waiting {
        self.table().away.get(name).cloned().unwrap_or_default()
    }

    /// One that could not be served is another host's.
    fn away_again(&self, name: &str) -> Result<(), VolumeError> {
        let held = self.table().held.get(name).cloned();
        let held = held.ok_or_else(|| VolumeError::Unknown(name.to_owned()))?;
        self.go_away(&held.settings, &self.counted(name))
    }

    /// Another host was given the volume: its clients hear errors, and what it had stays in the
    /// log.
    fn depose_unit(&self, name: &str, owner: &str, given: bool) -> Result<(), VolumeError> {
        let _claim = self.claim_in_turn(name)?;
        let Some(entry) = self.entry(name) else {
            return self.away_again(name);
        };
        match given {
            true => tracing::info!(volume = %name, "volume {name}: {owner} has it now"),
            false => tracing::error!(
                volume = %name,
                "volume {name}: {owner} was given it; it is let go of"
            ),
        }
        self.refuse_clients(name)?;
        self.front_ends.disconnect(name);
        // A guest that comes back may believe something else by then.
        kept::forget(&self.state_dir, name);
        self.forget_windows(name);
        let volume = entry.id;
        self.command(name, Command::Depose { volume })?;
        self.handle.disconnect(volume)?;
        self.watches.end(name, &self.handle, &self.state_dir);
        self.table().entries.remove(name);
        self.go_away(&entry.settings, &self.counted(name))
    }

    /// Goes on without the owner of a volume, which can write no more. What that loses has to be
    /// accepted afterwards.
    pub fn take_over_fenced(&self, name: &str) -> Result<(), VolumeError> {
        let none = || VolumeError::Settings(format!("volume {name}: is not clustered"));
        let units = self.units().ok_or_else(none)?;
        units.take_over(name).map_err(VolumeError::Refused)
    }

    /// Lets go of a clustered volume that is not named any more.
    pub(super) fn remove_unit(&self, name: &str, discard: bool) -> Result<bool, VolumeError> {
        let Some(units) = self
            .units()
            .filter(|_| self.table().away.contains_key(name))
        else {
            return Ok(false);
        };
        units
            .remove(name)
            .map_err(|why| VolumeError::Refused(format!("volume {name}: {why}")))?;
        let _claim = self.claim(name)?;
        if discard {
            // What another host was given without it.
            self.drop_logged(name)?;
        }
        self.forget_clients(name)?;
        self.front_ends.end_away(name);
        self.hide(name)?;
        let mut table = self.table();
        table.held.remove(name);
        table.away.remove(name);
        Ok(true)
    }

    /// Before the end of the daemon: what rests is let go of, so that other hosts need not ask.
    pub fn leave_cluster(&self) {
        if let Some(units) = self.units() {
            units.leave(LEAVE_WAIT);
        }
    }
}

impl Volumes for ByUnits {
    fn serve(&self, name: &str, epoch: Option<Epoch>, needs: &Needs) -> Result<(), String> {
        let stopped = || "the daemon is stopping".to_owned();
        let daemon = self.0.upgrade().ok_or_else(stopped)?;
        let served = daemon.serve_unit(name, epoch, needs);
        served.map_err(|error| error.to_string())
    }

    fn let_go(&self, name: &str, at_rest: bool) -> Drained {
        let Some(daemon) = self.0.upgrade() else {
            return Drained::Busy;
        };
        daemon
            .let_go_of_unit(name, at_rest)
            .unwrap_or_else(|error| {
                tracing::warn!(volume = %name, "{error}; it is not let go of");
                Drained::Failed
            })
    }

    fn rest(&self, name: &str) -> Drained {
        let rested = self.0.upgrade().map(|daemon| daemon.rest_unit(name));
        rested.unwrap_or(Ok(Drained::Busy)).unwrap_or_else(|error| {
            tracing::warn!(volume = %name, "{error}; it is not let go of");
            Drained::Failed
        })
    }

    fn rest_no_more(&self, name: &str) {
        if let Some(daemon) = self.0.upgrade()
            && let Err(error) = daemon.let_clients_in(name)
        {
            tracing::error!(volume = %name, "{error}");
        }
    }

    fn depose(&self, name: &str, owner: &str, given: bool) {
        if let Some(daemon) = self.0.upgrade()
            && let Err(error) = daemon.depose_unit(name, owner, given)
        {
            tracing::error!(volume = %name, "{error}");
        }
    }

    fn explain(&self, name: &str, reason: String, wrong: bool) {
        let Some(daemon) = self.0.upgrade() else {
            return;
        };
        match wrong {
            true => tracing::warn!(volume = %name, "volume {name}: {reason}"),
            false => tracing::info!(volume = %name, "volume {name}: {reason}"),
        }
        let mut table = daemon.table();
        if let Some(held) = table.held.get_mut(name)
            && held.hold.why == Why::Away
        {
            held.hold.reason = format!("volume {name}: {reason}");
        }
    }

    fn used(&self, name: &str) -> Option<Disk> {
        self.0.upgrade().and_then(|daemon| daemon.used(name))
    }

    fn show_away(&self, name: &str, disk: &Disk) {
        if let Some(daemon) = self.0.upgrade() {
            let front_ends = &daemon.front_ends;
            let door = front_ends.door(&daemon.handle, &daemon.state_dir, name);
            front_ends.show_away(&door, disk);
        }
    }

    fn shows_away(&self, name: &str) -> bool {
        let daemon = self.0.upgrade();
        daemon.is_some_and(|daemon| daemon.front_ends.shows_away(name))
    }

    fn set_mode(&self, name: &str, write_back: Option<bool>) {
        if let Some(daemon) = self.0.upgrade() {
            daemon.front_ends.set_mode(name, write_back);
        }
    }

    fn mode(&self, name: &str) -> Option<bool> {
        self.0.upgrade()?.front_ends.mode(name)
    }

    fn is_raw(&self, name: &str) -> bool {
        let entry = self.0.upgrade().and_then(|daemon| daemon.entry(name));
        entry.is_none_or(|entry| entry.image.is_none())
    }

    fn forget_gone(&self, name: &str) {
        if let Some(daemon) = self.0.upgrade() {
            daemon.front_ends.forget_gone(name);
        }
    }

    fn dirty_bytes(&self, name: &str) -> u64 {
        let shown = self.0.upgrade().and_then(|it| it.handle.snapshot().ok());
        let volumes = shown.map(|shown| shown.engine.volumes);
        let found = volumes.into_iter().flatten().find(|it| it.name == name);
        found.map_or(0, |volume| volume.dirty_bytes)
    }
}
