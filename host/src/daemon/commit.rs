//! Committing an overlay to its image.
//!
//! Owns who may: nobody is connected, nobody else stands on the image, and it can be written
//! safely. Then the volume lets go of the image, takes it again alone and for writing, and gives
//! it back when the engine is done. Always true: its export refuses clients from before the first
//! look until the volume serves again; what was refused has changed nothing; one whose image
//! cannot be had back is held, with its overlay in the log. Deliberately absent: how the image
//! becomes what the overlay says; see the engine.

use super::opened::Joining;
use super::volumes::Entry;
use super::{Daemon, Hold, VolumeError, Why};
use crate::lock;
use crate::origin::Place;
use engine::event::Command;
use engine::types::Policy;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

impl Daemon {
    /// Makes the overlay of an ephemeral volume the content of its image. Returns when the image
    /// has it, synced, and the overlay is empty.
    pub fn volume_commit(&self, name: &str) -> Result<(), VolumeError> {
        let claim = self.claim(name)?;
        let name = &claim.name;
        let entry = self.known(name)?;
        self.check_commit(&entry)?;
        self.hold_alone(&entry)?;
        if let Err(error) = self.suspend(&entry) {
            self.show_again(&entry)?;
            return Err(error);
        }
        let committed = self.commit_alone(&entry);
        self.serve_again(&entry, committed.is_ok())?;
        committed
    }

    fn check_commit(&self, entry: &Entry) -> Result<(), VolumeError> {
        let settings = &entry.settings;
        let name = &settings.name;
        let refuse = |why: String| Err(VolumeError::Refused(format!("volume {name}: {why}")));
        if settings.policy != Policy::Ephemeral {
            let policy = settings.policy.name();
            return refuse(format!(
                "only an ephemeral volume is committed, and this one is {policy}; `destage` \
                 brings its data to the image"
            ));
        }
        if settings.read_only {
            return refuse("is read-only, so there is nothing to commit".into());
        }
        let others = self.others_on(entry)?;
        if !others.is_empty() {
            return refuse(format!(
                "{} on the same image, which a commit would change under them; remove them, or \
                 give this volume an image of its own",
                match others.as_slice() {
                    [one] => format!("volume {one} stands"),
                    all => format!("volumes {} stand", all.join(", ")),
                }
            ));
        }
        if let Some(why) = unwritable(&settings.origin) {
            return refuse(why);
        }
        let sides = self.handle.sides(entry.id)?;
        let sides = sides.ok_or_else(|| VolumeError::Unknown(name.clone()))?;
        if let Some(other) = sides.image_file().and_then(lock::sharer) {
            return refuse(format!(
                "its image is in use by {other}, under which a commit would change it; stop it \
                 first"
            ));
        }
        if !sides.has_journal_place() {
            return refuse(
                "a commit needs a journal, and none can lie beside this origin; remove the volume \
                 and add it with `journal`"
                    .into(),
            );
        }
        Ok(())
    }

    /// Names of other volumes that have this image as well, or data on top of it.
    fn others_on(&self, entry: &Entry) -> Result<Vec<String>, VolumeError> {
        let origin = &entry.settings.origin;
        let table = self.table();
        let entries = table.entries.values().map(|other| &other.settings);
        let held = table.held.values().map(|held| &held.settings);
        let named = entries.chain(held);
        let named = named.map(|other| (other.name.clone(), other.origin.clone()));
        let mut others: Vec<_> = named.collect();
        drop(table);
        // The log may know overlays of volumes that nobody names at present.
        let known = self.handle.snapshot()?.engine.volumes.into_iter();
        let left = known.filter(|volume| volume.orphan && volume.dirty_bytes > 0);
        others.extend(left.map(|volume| (volume.name, volume.origin.into())));
        others.retain(|(name, other)| *name != entry.settings.name && same(origin, other));
        let mut names: Vec<String> = others.into_iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn suspend(&self, entry: &Entry) -> Result<(), VolumeError> {
        let volume = entry.id;
        self.command(&entry.settings.name, Command::Suspend { volume })
    }

    /// With the image taken alone; it is let go of afterwards.
    fn commit_alone(&self, entry: &Entry) -> Result<(), VolumeError> {
        let joining = Joining {
            commit: true,
            ..Joining::default()
        };
        let joined = self.join(entry.settings.clone(), joining)?;
        let volume = joined.id;
        let done = self.command(&entry.settings.name, Command::Commit { volume });
        self.suspend(&joined)?;
        done
    }

    /// The volume as it was before, on an image that may be another one now.
    fn serve_again(&self, entry: &Entry, renewed: bool) -> Result<(), VolumeError> {
        let joining = Joining {
            renewed,
            ..Joining::default()
        };
        let settings = entry.settings.clone();
        let name = settings.name.clone();
        match self.join(settings.clone(), joining) {
            Ok(joined) => {
                self.table().entries.insert(name, joined);
                Ok(())
            }
            Err(VolumeError::Stopped(stopped)) => Err(stopped.into()),
            Err(error) => {
                self.table().entries.remove(&name);
                let hold = Hold::because(Why::Unopened, error.to_string());
                self.hold_silently(settings, hold);
                Err(error)
            }
        }
    }

    /// Refuses clients from now on; refused itself while some are there.
    pub(super) fn hold_alone(&self, entry: &Entry) -> Result<(), VolumeError> {
        let name = entry.settings.name.clone();
        // Nobody comes while they are counted.
        self.refuse_clients(&name)?;
        let clients = self.clients(entry)?;
        if clients == 0 {
            return Ok(());
        }
        self.show_again(entry)?;
        Err(VolumeError::Busy { name, clients })
    }
}

/// Whether two origins are one image.
fn same(one: &Path, other: &Path) -> bool {
    if let (Ok(Place::Nbd(one)), Ok(Place::Nbd(other))) = (Place::parse(one), Place::parse(other)) {
        return one.identity() == other.identity();
    }
    let identity = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        Some(match meta.file_type().is_block_device() {
            true => (0, meta.rdev()),
            false => (meta.dev(), meta.ino()),
        })
    };
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Why an image is not to be written. One without any right to write is a base that somebody has
/// put under protection, whoever we are.
fn unwritable(origin: &Path) -> Option<String> {
    let meta = fs::metadata(origin).ok()?;
    let shown = origin.display();
    if meta.permissions().mode() & 0o222 == 0 {
        return Some(format!(
            "its image {shown} is read-only; give yourself the right to write it first"
        ));
    }
    let opened = File::options().write(true).open(origin);
    let error = opened.err()?;
    Some(format!("its image {shown} cannot be written: {error}"))
}
