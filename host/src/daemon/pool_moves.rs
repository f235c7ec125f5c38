//! How a member of a pool gets another image.
//!
//! ```text
//! clients wait ─▶ none is there ─▶ overlay reset ─▶ let go ─▶ recorded ─▶ joined ─▶ clients let in
//! qcow2:                           destaged ─▶ let go ─▶ new file takes its name ─▶ recorded ─▶ …
//! ```
//!
//! Always true: a member that a client uses, or whose guest may come back, does not move; a kill in
//! between leaves it with the one image or the other, and its overlay empty or its own; one that
//! cannot have the new image has the one before again. The overlay of a qcow2 member stays beside
//! the new one until `pool finish`, and takes its name again when the pool goes back. Deliberately
//! absent: which members move; see [`super::pools`].

use super::pool_health::unix_ms_now;
use super::volumes::Entry;
use super::{Daemon, VolumeError, VolumeSettings};
use crate::config::units::human_bytes;
use crate::error::cause;
use crate::marks::{self, Phase};
use crate::origin::clone::{self, CloneOf};
use crate::origin::written;
use crate::pool::Record;
use crate::pool::members::CloneKind;
use crate::waiting::Waiting;
use engine::event::Command;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

/// The file beside an overlay under which it stays until `pool finish`.
fn former_of(image: &Path) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(".prev");
    PathBuf::from(name)
}

fn next_of(image: &Path) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(".tenuto-next");
    PathBuf::from(name)
}

impl Daemon {
    /// Gives a member its image, if no client is there.
    pub(super) fn move_member(&self, pool: &str, member: &str) {
        match self.try_move(pool, member) {
            Ok(false) => {}
            Ok(true) => self.note_move(pool, member, Ok(())),
            Err(error) => self.note_move(pool, member, Err(error.to_string())),
        }
    }

    /// False if a client is there.
    fn try_move(&self, pool: &str, member: &str) -> Result<bool, VolumeError> {
        let clones = self.pools.clones(pool);
        let record = self.pools.record(pool)?;
        let claim = self.claim_in_turn(member)?;
        let held = self.table().held.get(member).cloned();
        if let Some(held) = held {
            if clones == Some(CloneKind::Qcow2) {
                return Err(VolumeError::Held(Box::new(held.hold)));
            }
            self.drop_logged(member)?;
            self.record_move(pool, member)?;
            let mut settings = held.settings;
            settings.origin.clone_from(&record.image.path);
            if let Some(held) = self.table().held.get_mut(member) {
                held.settings = settings.clone();
            }
            self.join_claimed(&claim, settings, None)?;
            return Ok(true);
        }
        let entry = self.known(member)?;
        if !self.let_clients_wait(&entry)? {
            return Ok(false);
        }
        let moved = match clones {
            Some(CloneKind::Qcow2) => self.move_overlay(pool, &entry, &record),
            _ => self.move_ephemeral(pool, &entry, &record),
        };
        self.let_wait_no_more(member);
        moved.map(|()| true)
    }

    /// Clients that come now wait. False, and they do not, if some are there or may come back.
    fn let_clients_wait(&self, entry: &Entry) -> Result<bool, VolumeError> {
        let name = &entry.settings.name;
        let waiting = Waiting::default();
        self.front_ends.set_away(name, waiting.clone());
        self.handle.export_away(name, waiting)?;
        // A front end whose rings do not run yet has seen nothing.
        let clients = self.handle.clients_in(entry.id)?;
        // One may have come and lost its connection since its pool looked.
        let may_come_back = self.pools.note(name).is_there();
        if clients + self.backups.readers(name) == 0 && !may_come_back {
            return Ok(true);
        }
        self.let_wait_no_more(name);
        Ok(false)
    }

    /// Those who wait find the volume as it is now.
    pub(super) fn let_wait_no_more(&self, member: &str) {
        let shown = match self.entry(member) {
            // First those who wait in the middle of a message, because others are told by it.
            Some(entry) => {
                let came_in = self.handle.let_in(entry.id).map_err(VolumeError::from);
                came_in.and_then(|()| self.show_to_waiting(&entry))
            }
            None => self.handle.export_hold(member).map_err(VolumeError::from),
        };
        if let Err(error) = shown {
            tracing::error!(volume = %member, "{error}");
        }
    }

    /// Guests that wait with their first ring come in, to whatever is there.
    pub(super) fn let_guests_in(&self, member: &str) {
        let came_in = self.entry(member).map(|entry| self.handle.let_in(entry.id));
        if let Some(Err(error)) = came_in {
            tracing::error!(volume = %member, "{error}");
        }
    }

    fn record_move(&self, pool: &str, member: &str) -> Result<(), VolumeError> {
        let change = |it: &mut Record| it.has_come(member, unix_ms_now());
        self.pools.change(pool, change).map(drop)
    }

    fn move_ephemeral(
        &self,
        pool: &str,
        entry: &Entry,
        record: &Record,
    ) -> Result<(), VolumeError> {
        let member = &entry.settings.name;
        let volume = entry.id;
        // What the guest before has written is void from here on, whatever follows.
        self.command(member, Command::Reset { volume })?;
        marks::passed(Phase::Exchange);
        self.command(member, Command::Suspend { volume })?;
        self.record_move(pool, member)?;
        marks::passed(Phase::Exchange);
        let settings = VolumeSettings {
            origin: record.image.path.clone(),
            ..entry.settings.clone()
        };
        let error = match self.join_again(settings) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        self.pools.change(pool, |it| {
            it.moved.remove(member);
        })?;
        self.join_or_hold_member(entry.settings.clone())?;
        Err(error)
    }

    /// Joins a member that was let go of.
    fn join_again(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let name = settings.name.clone();
        let joined = self.join(settings, Default::default())?;
        let before = self.table().entries.insert(name, joined.clone());
        if before.is_some_and(|before| before.size_bytes != joined.size_bytes) {
            self.front_ends.grow(&joined);
        }
        Ok(())
    }

    /// The same; one that cannot be had back is held.
    fn join_or_hold_member(&self, settings: VolumeSettings) -> Result<(), VolumeError> {
        let name = settings.name.clone();
        let Err(error) = self.join_again(settings.clone()) else {
            return Ok(());
        };
        self.table().entries.remove(&name);
        let hold = super::Hold::of(&name, error)?;
        self.hold_silently(settings, hold);
        Ok(())
    }

    /// Gives a member an empty overlay on the new image.
    fn move_overlay(&self, pool: &str, entry: &Entry, record: &Record) -> Result<(), VolumeError> {
        let settings = entry.settings.clone();
        let member = &settings.name;
        let volume = entry.id;
        if backing_is(&settings.origin, &record.image.path) {
            // The daemon ended between the exchange and its record.
            self.end_exchange(&settings.origin)?;
            return self.record_move(pool, member);
        }
        self.command(member, Command::Destage { volume })?;
        let discard_dirty = false;
        let command = Command::Detach {
            volume,
            discard_dirty,
        };
        self.command(member, command)?;
        marks::passed(Phase::Exchange);
        self.backups.forget(member);
        self.table().entries.remove(member);
        let exchanged = self.exchange_overlay(&settings, &record.image.path);
        self.join_or_hold_member(settings.clone())?;
        exchanged?;
        marks::passed(Phase::Exchange);
        self.record_move(pool, member)
    }

    /// The overlay on this image takes the name of the one that is there, and gives it its own: one
    /// that stayed from before, else an empty one.
    fn exchange_overlay(&self, settings: &VolumeSettings, image: &Path) -> Result<(), VolumeError> {
        let (overlay, former) = (&settings.origin, former_of(&settings.origin));
        let next = next_of(overlay);
        let failed = |what: &str, error: std::io::Error| {
            let (overlay, cause) = (overlay.display(), cause(&error));
            VolumeError::Origin(format!("{overlay}: cannot {what}: {cause}"))
        };
        if let Err(error) = fs::remove_file(&next)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(failed(
                "remove what a move that was cut short has left",
                error,
            ));
        }
        if backing_is(&former, image) {
            // What the guest had there before. The other one has a second name at each moment.
            fs::hard_link(overlay, &next).map_err(|error| failed("keep it", error))?;
            marks::passed(Phase::Exchange);
            fs::rename(&former, overlay).map_err(|error| failed("exchange it", error))?;
            marks::passed(Phase::Exchange);
            fs::rename(&next, &former).map_err(|error| failed("keep it", error))?;
        } else {
            self.make_next(overlay, &next, image)?;
            // A move that was cut short may have linked it.
            if !is_same(overlay, &former) {
                let linked = fs::hard_link(overlay, &former);
                linked.map_err(|error| failed("keep it as IMAGE.prev", error))?;
            }
            marks::passed(Phase::Exchange);
            fs::rename(&next, overlay).map_err(|error| failed("exchange it", error))?;
        }
        let place = overlay.parent().unwrap_or(Path::new("/"));
        File::open(place)
            .and_then(|place| place.sync_all())
            .map_err(|error| failed("sync its directory", error))
    }

    /// An empty overlay on this image, with the rights of the one that is there.
    fn make_next(&self, overlay: &Path, next: &Path, image: &Path) -> Result<(), VolumeError> {
        let of = CloneOf {
            image: image.to_owned(),
            plain: false,
        };
        let allow = self.ledgers.images.allow(overlay);
        clone::make(next, &of, &allow)?;
        let given = fs::metadata(overlay).and_then(|rights| {
            fs::set_permissions(next, rights.permissions())?;
            chown(next, Some(rights.uid()), Some(rights.gid()))
        });
        given.map_err(|error| {
            let (next, cause) = (next.display(), cause(&error));
            VolumeError::Origin(format!(
                "{next}: cannot have the rights of its image: {cause}"
            ))
        })
    }

    /// A daemon that ended in the middle of an exchange has left the other overlay under a third
    /// name.
    fn end_exchange(&self, overlay: &Path) -> Result<(), VolumeError> {
        let (former, next) = (former_of(overlay), next_of(overlay));
        if former.exists() || !next.exists() {
            return Ok(());
        }
        fs::rename(&next, &former).map_err(|error| {
            let (next, cause) = (next.display(), cause(&error));
            VolumeError::Origin(format!("{next}: cannot keep it as IMAGE.prev: {cause}"))
        })
    }

    /// A refresh throws away what guests have in overlays of their own.
    pub(super) fn check_overlays(
        &self,
        pool: &str,
        record: &Record,
        members: &[String],
        discard: bool,
    ) -> Result<(), VolumeError> {
        if self.pools.clones(pool) != Some(CloneKind::Qcow2) {
            return Ok(());
        }
        if record.previous.is_some() {
            return Err(VolumeError::Settings(format!(
                "pool {pool}: overlays of the image before are kept still; run `tenuto pool finish \
                 {pool}` first"
            )));
        }
        let entries = || members.iter().filter_map(|it| self.entry(it));
        let mut former = entries().map(|entry| former_of(&entry.settings.origin));
        if let Some(former) = former.find(|it| fs::symlink_metadata(it).is_ok()) {
            let former = former.display();
            return Err(VolumeError::Settings(format!(
                "pool {pool}: {former} is in the way of what stays from before; move it elsewhere"
            )));
        }
        let bytes = entries().map(|entry| {
            let meta = fs::metadata(&entry.settings.origin);
            meta.map_or(0, |meta| meta.blocks() * 512)
        });
        let bytes: u64 = bytes.sum();
        match discard {
            true => Ok(()),
            false => Err(VolumeError::Refused(format!(
                "pool {pool}: the overlays of {} members ({}) would be exchanged for empty ones; \
                 their files stay as IMAGE.prev until `pool finish`; order it with \
                 --discard-changes",
                members.len(),
                human_bytes(bytes)
            ))),
        }
    }

    /// Removes what stayed of overlays on the image before.
    pub(super) fn remove_former_overlays(&self, pool: &str) -> Result<(), VolumeError> {
        if self.pools.clones(pool) != Some(CloneKind::Qcow2) {
            return Ok(());
        }
        for member in self.members(pool)? {
            let Some(entry) = self.entry(&member) else {
                continue;
            };
            let former = former_of(&entry.settings.origin);
            match fs::remove_file(&former) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let (former, cause) = (former.display(), cause(&error));
                    return Err(VolumeError::Origin(format!(
                        "pool {pool}: {former}: cannot remove it: {cause}"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    identity(one).is_ok_and(|it| identity(other).is_ok_and(|other| it == other))
}

/// Whether an overlay stands on this file.
fn backing_is(overlay: &Path, image: &Path) -> bool {
    let Ok(header) = written::look(overlay) else {
        return false;
    };
    let Ok(Some(backing)) = crate::origin::chain::backing_of(overlay, &header) else {
        return false;
    };
    is_same(&backing, image)
}
