//! Changing the size of a volume and of its image.
//!
//! Owns which images can change here: files, of a volume that has its image alone. Always true:
//! clients that come are shown the size that volume and image have; front ends that are there are
//! told of a larger one when requests of it are taken; clients of NBD keep the size they were
//! shown, because their protocol has no way to tell them; a volume becomes smaller only without
//! clients. Deliberately absent: the order of the steps; see the engine.

use super::volumes::{Entry, check_blocks};
use super::{Daemon, VolumeError};
use crate::frontend::vhost_user::connection::Heard;
use crate::shard::control::CommandError;
use engine::event::{Command, Refusal};
use engine::types::Policy;

/// Clients that were connected to a volume when it got its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resized {
    /// Front ends of vhost-user that were told.
    pub told: u64,
    /// Those that could not be told.
    pub untold: u64,
    pub by_nbd: u64,
}

impl Daemon {
    /// Returns when volume and image have the size, durably, and who has heard of it.
    pub fn volume_resize(&self, name: &str, size_bytes: u64) -> Result<Resized, VolumeError> {
        let claim = self.claim(name)?;
        let name = &claim.name;
        let mut entry = self.known(name)?;
        self.check_resize(&entry, size_bytes)?;
        if size_bytes < entry.size_bytes {
            self.hold_alone(&entry)?;
        }
        let volume = entry.id;
        self.backups.resizes(name, entry.size_bytes, size_bytes);
        let resized = self.command(name, Command::Resize { volume, size_bytes });
        let resized = resized.map_err(|error| too_large(&entry, error));
        if resized.is_ok() {
            entry.size_bytes = size_bytes;
            self.table().entries.insert(name.clone(), entry.clone());
        }
        self.show_again(&entry)?;
        resized?;
        let Heard { told, untold } = self.front_ends.grow(&entry);
        let by_nbd = self.handle.clients(volume)?.saturating_sub(told + untold);
        Ok(Resized {
            told,
            untold,
            by_nbd,
        })
    }

    fn check_resize(&self, entry: &Entry, size_bytes: u64) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        check_blocks(&entry.settings, size_bytes)?;
        let shown = entry.image.as_ref().filter(|image| image.written);
        let holds = shown.is_some_and(|image| !image.snapshots.is_empty());
        if holds && size_bytes < entry.size_bytes {
            return Err(VolumeError::Settings(format!(
                "volume {name}: its image has internal snapshots, which are as large as the disk; \
                 delete them with `qemu-img snapshot -d` while the volume is removed"
            )));
        }
        if entry.is_written_image() && entry.settings.policy != Policy::WriteBack {
            return Err(VolumeError::Settings(format!(
                "volume {name}: the disk of a qcow2 image is resized with policy = \"write-back\"; \
                 set that with `tenuto volume set {name} policy=write-back --wait`, and the other \
                 one again when it has its size"
            )));
        }
        let sides = self.handle.sides(entry.id)?;
        let sides = sides.ok_or_else(|| VolumeError::Unknown(name.clone()))?;
        let image = sides.image_file().and_then(|file| file.metadata().ok());
        match image.is_some_and(|meta| meta.is_file()) {
            true => Ok(()),
            false => Err(VolumeError::Settings(format!(
                "volume {name}: its origin {} is not a file; change its size where it is, then \
                 remove the volume and add it",
                entry.settings.origin.display()
            ))),
        }
    }
}

/// What it means that an image that allocates has no room.
fn too_large(entry: &Entry, error: VolumeError) -> VolumeError {
    let is_range = matches!(
        error,
        VolumeError::Command {
            error: CommandError::Refused(Refusal::OutOfRange),
            ..
        }
    );
    match is_range && entry.is_written_image() {
        true => VolumeError::Settings(format!(
            "volume {}: its image cannot have so large a disk with clusters of this size; \
             `qemu-img convert` makes one with larger clusters, and the most is 256 TiB",
            entry.settings.name
        )),
        false => error,
    }
}
