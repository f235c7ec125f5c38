//! Backup windows that other hosts know of, and windows in which flushes are answered by the image.
//!
//! ```text
//! quiesce, clustered: image rests ─▶ the log keeps that ─▶ record with the window ─▶ told
//! resume, clustered:  record without it ─▶ image is written again ─▶ told
//! quiesce --through:  kept in the state directory ─▶ flushes wait for the image ─▶ all is there
//! resume:             the log alone again ─▶ forgotten in the state directory
//! ```
//! Always true: an image that a record calls resting is not written by this host before a record
//! without the window is decided; a volume whose window came with it, from another host or from the
//! run before, shows its backup here as long as it is the owner and the window is open. A window of
//! flushes is this host's alone: it outlives the daemon, and ends with a warning where the volume
//! goes to another host, because that one could not keep it before it has the right to write the
//! image. Deliberately absent: what an open window is (`backup`), the record ([`crate::unit`]).

use super::snapshot::check_policy;
use super::volumes::Entry;
use super::{Daemon, VolumeError, VolumeSettings};
use crate::cachedev::sync_directory;
use crate::shard::control::Needs;
use engine::event::Command;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

/// What the file of a window of flushes says. It is of one ownership of a clustered volume: another
/// host that had the volume since knew nothing of the window.
fn through(settings: &VolumeSettings, given: u64) -> String {
    let epoch = settings.epoch.unwrap_or_default();
    let (number, nonce) = (epoch.number, epoch.nonce);
    format!(
        "flushes are answered by the image until `tenuto volume resume`\n{number} {nonce} {given}\n"
    )
}

impl Daemon {
    fn is_united(&self, name: &str) -> bool {
        self.table().away.contains_key(name)
    }

    /// A clustered volume that another host serves has its window there.
    pub(super) fn refuse_elsewhere(&self, name: &str) -> Result<(), VolumeError> {
        let shown = self.units_shown().remove(name);
        let Some(shown) = shown.filter(|it| !it.here) else {
            return Ok(());
        };
        let who = match shown.owner {
            Some(owner) => format!("is served by {owner}; run this there"),
            None => "no host serves it, and nothing writes its image".to_owned(),
        };
        Err(VolumeError::Refused(format!("volume {name}: {who}")))
    }

    /// The record is to say that the image rests, which it does. Where it cannot, the image is
    /// written again.
    pub(super) fn tell_window(&self, entry: &Entry) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        let Some(units) = self.units().filter(|_| self.is_united(name)) else {
            return Ok(());
        };
        let (volume, begins) = (entry.id, false);
        self.command(name, Command::KeepRest { volume, begins })?;
        let Err(why) = units.set_window(name, true) else {
            return Ok(());
        };
        let still = match units.set_window(name, false) {
            Ok(_) => {
                // Its first error is the one to tell.
                let _ = self.end_quiesce(name);
                ""
            }
            Err(_) => "; its image rests until `tenuto volume resume` can say that it does not",
        };
        Err(VolumeError::Refused(format!("{why}{still}")))
    }

    /// A window that the administrator asks for again may lack its record.
    pub fn volume_quiesce_again(&self, name: &str) -> Result<(), VolumeError> {
        self.refuse_elsewhere(name)?;
        self.tell_window(&self.known(name)?)
    }

    /// The image is written again, after the record says so.
    pub(super) fn end_window(&self, name: &str) -> Result<(), VolumeError> {
        let Some(units) = self.units().filter(|_| self.is_united(name)) else {
            return self.end_quiesce(name);
        };
        let open = units
            .set_window(name, false)
            .map_err(VolumeError::Refused)?;
        let ended = self.end_quiesce(name);
        match open && ended.is_ok() {
            true => Ok(()),
            false => Err(VolumeError::Refused(format!(
                "volume {name}: no backup window of it is open: none was opened, or the log needed \
                 its room, or its flushes had to go to the image because copies are missing; a \
                 copy that was made meanwhile may be of no single moment"
            ))),
        }
    }

    /// The window came with the volume: its backup is shown here too.
    pub(super) fn show_window(&self, name: &str, needs: &Needs) {
        let rests = needs.rests && self.entry(name).is_some_and(|it| !it.settings.unproved);
        if !rests {
            return;
        }
        if let Err(error) = self.reopen_window(name) {
            tracing::warn!(
                volume = %name,
                "{error}; its image rests, and its backup is not shown as an export"
            );
        }
    }

    fn kept_at(&self, name: &str) -> PathBuf {
        self.state_dir.join("through").join(name)
    }

    /// Its flushes are answered by its image until the administrator ends that. A window of another
    /// ownership has ended.
    pub(super) fn flushes_through(&self, settings: &VolumeSettings) -> bool {
        let name = &settings.name;
        let kept = fs::read_to_string(self.kept_at(name));
        let given = settings.needs.given;
        let known = kept
            .as_ref()
            .is_ok_and(|kept| *kept == through(settings, given));
        if kept.is_ok() && !known {
            self.lose_through(name);
        }
        known
    }

    fn keep_through(&self, settings: &VolumeSettings) -> io::Result<()> {
        let path = self.kept_at(&settings.name);
        // Copies may have begun since the volume was attached.
        let given = self.units_shown().remove(&settings.name);
        let given = given.map_or(0, |shown| shown.given);
        let directory = self.state_dir.join("through");
        fs::create_dir_all(&directory)?;
        let mut file = File::create(path)?;
        file.write_all(through(settings, given).as_bytes())?;
        file.sync_all()?;
        sync_directory(&directory)?;
        sync_directory(&self.state_dir)
    }

    fn forget_through(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.kept_at(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_directory(&self.state_dir.join("through")),
        }
    }

    /// Returns when the image of a volume, and of each member of its group, has all that was
    /// written before. From then on it has what a flush covers before the flush is answered.
    pub fn volume_quiesce_through(&self, name: &str) -> Result<(), VolumeError> {
        self.refuse_elsewhere(name)?;
        let entry = self.known(name)?;
        check_policy(&entry, "quiesced")?;
        let members = self.resting_with(&entry);
        let rests = self.handle.snapshot()?.engine.volumes;
        let rests = |it: &Entry| rests.iter().any(|shown| shown.id == it.id && shown.rests);
        if members.iter().any(rests) {
            return Err(VolumeError::Refused(format!(
                "volume {name}: its image rests in a backup window; `tenuto volume resume {name}` \
                 closes that"
            )));
        }
        let done = self.begin_through(&entry, &members);
        if done.is_err() {
            self.end_through(&members)?;
        }
        done
    }

    fn begin_through(&self, entry: &Entry, members: &[Entry]) -> Result<(), VolumeError> {
        for member in members {
            let (name, volume) = (&member.settings.name, member.id);
            let kept = self.keep_through(&member.settings);
            kept.map_err(|error| not_kept(name, &error))?;
            self.command(name, Command::FlushThrough { volume, on: true })?;
        }
        let volume = entry.id;
        self.command(&entry.settings.name, Command::Destage { volume })
    }

    fn end_through(&self, members: &[Entry]) -> Result<(), VolumeError> {
        let mut first = Ok(());
        for member in members {
            let (name, volume) = (&member.settings.name, member.id);
            // One that is not write-back any more has no log to go back to.
            let _ = self.command(name, Command::FlushThrough { volume, on: false });
            let forgotten = self.forget_through(name);
            first = first.and(forgotten.map_err(|error| not_kept(name, &error)));
        }
        first
    }

    /// What a rest would keep from the image is promised to be there.
    pub(super) fn refuse_through(&self, entry: &Entry) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        if self.kept_at(name).exists() {
            return Err(VolumeError::Refused(format!(
                "volume {name}: its flushes are answered by its image in a backup window; `tenuto \
                 volume resume {name}` closes that"
            )));
        }
        let shown = self.units_shown().remove(name);
        let copies = shown.and_then(|it| it.replication);
        match copies.is_some_and(|copies| copies.at_origin) {
            false => Ok(()),
            true => Err(VolumeError::Refused(format!(
                "volume {name}: copies are missing, and its flushes are answered by its image as \
                 `on-degraded` says, so the image cannot rest; wait for a copy, or use `tenuto \
                 volume quiesce {name} --through`"
            ))),
        }
    }

    /// The record may say so still, because it could not be changed.
    pub(super) fn is_kept(&self, name: &str) -> Result<bool, VolumeError> {
        let Some(entry) = self.entry(name).filter(|_| self.is_united(name)) else {
            return Ok(false);
        };
        let shown = self.handle.snapshot()?.engine.volumes;
        Ok(shown.iter().any(|it| it.id == entry.id && it.rests))
    }

    /// Ends the window of flushes of a volume and its group; false if there is none.
    pub(super) fn resume_through(&self, name: &str) -> Result<bool, VolumeError> {
        if !self.kept_at(name).exists() {
            return Ok(false);
        }
        let entry = self.known(name)?;
        self.end_through(&self.resting_with(&entry))?;
        Ok(true)
    }

    /// The volume goes to another host, or is forgotten: its windows are none of this one.
    pub(super) fn forget_windows(&self, name: &str) {
        self.backups.forget_window(name);
        if self.kept_at(name).exists() {
            self.lose_through(name);
        }
    }

    fn lose_through(&self, name: &str) {
        tracing::warn!(
            volume = %name,
            "volume {name}: its backup window has ended, because another host may have served it \
             since: what is flushed from now on may be missing at its image"
        );
        if let Err(error) = self.forget_through(name) {
            tracing::error!(volume = %name, "{}", not_kept(name, &error));
        }
    }
}

fn not_kept(name: &str, error: &io::Error) -> VolumeError {
    VolumeError::Origin(format!(
        "volume {name}: whether its flushes go to its image cannot be written: {error}; state-dir \
         must have room and be writable"
    ))
}
