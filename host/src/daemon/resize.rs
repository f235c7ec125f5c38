//! Changing the size of a volume and of its image.
//!
//! Owns which images can change here: raw files, of a volume that has its image alone. Always true:
//! clients that come are shown the size that volume and image have; those that are there keep the
//! size they were shown, because NBD has no way to tell them, and a volume becomes smaller only
//! when nobody is there. Deliberately absent: the order of the steps; see the engine.

use super::volumes::Entry;
use super::{Daemon, VolumeError};
use engine::event::Command;

impl Daemon {
    /// Returns when volume and image have the size, durably.
    pub fn volume_resize(&self, name: &str, size_bytes: u64) -> Result<(), VolumeError> {
        let claim = self.claim(name)?;
        let name = &claim.name;
        let mut entry = self.known(name)?;
        self.check_resize(&entry)?;
        if size_bytes < entry.size_bytes {
            self.hold_alone(&entry)?;
        }
        let volume = entry.id;
        let resized = self.command(name, Command::Resize { volume, size_bytes });
        if resized.is_ok() {
            entry.size_bytes = size_bytes;
            self.table().entries.insert(name.clone(), entry.clone());
        }
        self.show_again(&entry)?;
        resized
    }

    fn check_resize(&self, entry: &Entry) -> Result<(), VolumeError> {
        let name = &entry.settings.name;
        if entry.is_written_image() {
            return Err(VolumeError::Settings(format!(
                "volume {name}: to change the size of a qcow2 image is not in this version; remove \
                 the volume, use `qemu-img resize`, and add it"
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
