//! Volumes that are named but not served, because going on would lose or invent data.
//!
//! Owns why each is held, what the ledger beside its origin says, and the way out of it. Always
//! true: a held volume has no file open and no lock taken, so that whoever has its data can bring
//! it home; its export refuses with words; it joins only by another try that succeeds, or after
//! the administrator has given its lost writes up by name. A host of many volumes is not stopped
//! by one. Deliberately absent: asking for the confirmation, which `admin` does.

use super::hold::{Held, Hold, Why};
use super::opened::Joining;
use super::volumes::Entry;
use super::{Daemon, VolumeError, VolumeSettings};
use crate::backup::file::Reason;
use crate::origin::Place;
use engine::event::Command;
use engine::snapshot::State;
use std::{fs, io};

/// Nothing is given up for an image that is not there.
fn has_image(settings: &VolumeSettings) -> Result<(), VolumeError> {
    let (name, path) = (&settings.name, &settings.origin);
    let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    match Place::parse(path) {
        Ok(Place::File(_)) if fs::metadata(path).is_err_and(gone) => {
            Err(VolumeError::Origin(format!(
                "volume {name}: its image {} is not there; put one there first",
                path.display()
            )))
        }
        _ => Ok(()),
    }
}

impl Daemon {
    /// The volumes that are held, in the order of their names.
    pub fn held(&self) -> Vec<Held> {
        self.table().held.values().cloned().collect()
    }

    /// Keeps a volume that must not join, and answers its clients with words.
    pub(super) fn hold(&self, settings: VolumeSettings, hold: Hold) -> Result<(), VolumeError> {
        let name = settings.name.clone();
        tracing::error!(volume = %name, "{hold}; it is held, the other volumes are served");
        self.refuse_clients(&name)?;
        self.listen(&name, settings.exports)?;
        self.table().held.insert(name, Held { settings, hold });
        Ok(())
    }

    /// The same for one whose socket is there and whose export refuses already.
    pub(super) fn hold_silently(&self, settings: VolumeSettings, hold: Hold) {
        let name = settings.name.clone();
        tracing::error!(volume = %name, "{hold}; it is held, the other volumes are served");
        self.table().held.insert(name, Held { settings, hold });
    }

    /// Looks again at held volumes whose images could not be opened; which are served now.
    pub fn try_held(&self) -> Vec<String> {
        let waiting = self
            .held()
            .into_iter()
            .filter(|held| held.hold.why == Why::Unopened);
        let names: Vec<String> = waiting.map(|held| held.settings.name).collect();
        let served = |name: &String| matches!(self.try_one(name), Ok(true));
        names.into_iter().filter(served).collect()
    }

    /// False if it is not held any more, or is being changed.
    fn try_one(&self, name: &str) -> Result<bool, VolumeError> {
        let claim = self.claim(name)?;
        let held = self.table().held.get(name).cloned();
        let held = held.filter(|held| self.may_serve(&held.settings));
        match held.filter(|held| held.hold.why == Why::Unopened) {
            Some(held) => self
                .join_claimed(&claim, held.settings, None)
                .map(|()| true),
            None => Ok(false),
        }
    }

    /// A held volume did not join again: it may be for another reason now.
    pub(super) fn hold_on(&self, name: &str, error: VolumeError) -> VolumeError {
        let again = match Hold::of(name, error) {
            Ok(hold) => hold,
            Err(error) => return error,
        };
        if let Some(held) = self.table().held.get_mut(name)
            && held.hold.reason != again.reason
        {
            tracing::error!(volume = %name, "{again}; it is held");
            held.hold = again.clone();
        }
        VolumeError::Held(Box::new(again))
    }

    /// Forgets a held volume. What lies beside its origin stays; dirty data that the log has of
    /// it is dropped only where `discard_dirty` says so.
    pub(super) fn release(&self, held: &Held, discard_dirty: bool) -> Result<(), VolumeError> {
        let name = &held.settings.name;
        if discard_dirty {
            self.drop_logged(name)?;
        }
        self.forget_clients(name)?;
        self.hide(name)?;
        self.table().held.remove(name);
        Ok(())
    }

    /// Drops what the log has of a volume that is not attached.
    pub(super) fn drop_logged(&self, name: &str) -> Result<(), VolumeError> {
        let known = self.handle.snapshot()?.engine.volumes;
        let known = known.iter().find(|volume| volume.name == *name);
        let Some(volume) = known.filter(|volume| volume.orphan).map(|known| known.id) else {
            return Ok(());
        };
        let discard_dirty = true;
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        self.command(name, command)
    }

    /// Goes on from the last destaged state, without what was dirty; or where only the stage is
    /// gone, with all that the log has. As a new generation, which is in the ledger before the
    /// first request is answered.
    pub fn accept_loss(&self, name: &str) -> Result<(), VolumeError> {
        self.refuse_with_copies(name)?;
        let claim = self.claim(name)?;
        let held = self.table().held.get(name).cloned();
        let stage_lost = held
            .as_ref()
            .is_some_and(|held| held.hold.why == Why::StageLost);
        let settings = match held {
            Some(held) if matches!(held.hold.why, Why::Damaged | Why::Unopened | Why::Away) => {
                let hold = Box::new(held.hold);
                return Err(VolumeError::Held(hold));
            }
            Some(held) if stage_lost => held.settings,
            Some(held) => {
                has_image(&held.settings)?;
                self.drop_logged(name)?;
                held.settings
            }
            None => self.let_go_of_stopped(name)?,
        };
        self.backups.lose(name, Reason::Chosen);
        let joining = Joining {
            accept_loss: !stage_lost,
            without_stage: stage_lost,
            ..Joining::default()
        };
        let entry = self.join_or_hold(settings, joining)?;
        self.table().held.remove(&claim.name);
        self.table().entries.insert(claim.name.clone(), entry);
        let from = match stage_lost {
            true => "with what the log has",
            false => "from its last destaged state",
        };
        tracing::warn!(volume = %name, "volume {name}: goes on {from}");
        if let Some(units) = self.units() {
            units.served(name, true);
        }
        Ok(())
    }

    /// Lays what the log has of a held volume over the image that is there: the log wins.
    pub fn overwrite(&self, name: &str) -> Result<(), VolumeError> {
        self.refuse_with_copies(name)?;
        let claim = self.claim(name)?;
        let held = self.table().held.get(name).cloned();
        let settings = match held {
            Some(held) => held.settings,
            None => {
                let entry = self.known(name)?;
                has_image(&entry.settings)?;
                self.front_ends.withdraw(name);
                self.front_ends.disconnect(name);
                let volume = entry.id;
                self.command(name, Command::Suspend { volume })?;
                self.table().entries.remove(name);
                entry.settings
            }
        };
        self.backups.lose(name, Reason::Chosen);
        let joining = Joining {
            overwrite: true,
            ..Joining::default()
        };
        let entry = self.join_or_hold(settings, joining)?;
        self.table().held.remove(&claim.name);
        self.table().entries.insert(claim.name.clone(), entry);
        tracing::warn!(volume = %name, "volume {name}: the log is written over the present image");
        Ok(())
    }

    /// Joins a volume that was let go of; one that cannot be had back stays named.
    fn join_or_hold(
        &self,
        settings: VolumeSettings,
        joining: Joining,
    ) -> Result<Entry, VolumeError> {
        let joined = self.join(settings.clone(), joining);
        if let Err(error) = &joined {
            let hold = match error {
                VolumeError::Held(hold) => (**hold).clone(),
                other => Hold::because(Why::Unopened, other.to_string()),
            };
            self.hold_silently(settings, hold);
        }
        joined
    }

    /// Detaches a volume whose flushed records were missing from the log at the start, or whose
    /// image is not the one that it knows.
    fn let_go_of_stopped(&self, name: &str) -> Result<VolumeSettings, VolumeError> {
        let entry = self.entry(name);
        let entry = entry.ok_or_else(|| VolumeError::Unknown(name.to_owned()))?;
        let volumes = self.handle.snapshot()?.engine.volumes;
        let stopped = |volume: &&engine::snapshot::VolumeSnapshot| volume.state == State::Held;
        let volume = volumes.iter().find(|volume| volume.id == entry.id);
        if volume.filter(stopped).is_none() {
            let message = format!("volume {name}: is not held; there is no loss to accept");
            return Err(VolumeError::Settings(message));
        }
        has_image(&entry.settings)?;
        // Guests of vhost-user come back by themselves, to what will be there then.
        self.front_ends.withdraw(name);
        self.front_ends.disconnect(name);
        let command = Command::Detach {
            volume: entry.id,
            discard_dirty: true,
        };
        self.command(name, command)?;
        self.table().entries.remove(name);
        Ok(entry.settings)
    }
}
