//! Directories that a daemon uses beside those of its cache: where ledgers lie that lie beside no
//! origin, and where files below images may lie.
//!
//! Always true: the directory of ledgers is there, and will be after a power loss, before the first
//! volume is opened that may need it. Deliberately absent: what lies there.

use engine::types::Uuid;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The directory of ledgers that lie beside no origin; made when the first volume may need it.
pub(super) struct Ledgers {
    pub(super) place: PathBuf,
    /// Of the log that may have what their journals have.
    pub(super) cache: Uuid,
    /// It is there, and will be after a power loss.
    made: AtomicBool,
    pub images: ImagePlaces,
}

/// Where files below images may lie.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImagePlaces {
    /// Directories that an administrator has named.
    pub named: Vec<PathBuf>,
    /// Without those: the directories of all origins of the configuration.
    pub of_origins: Vec<PathBuf>,
}

impl ImagePlaces {
    /// Those for an image at this path, also for one that is not made yet.
    pub fn allow(&self, origin: &Path) -> Vec<PathBuf> {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let own = match origin.canonicalize() {
            Ok(path) => path.parent().map(Path::to_path_buf),
            Err(_) => origin.parent().and_then(|place| place.canonicalize().ok()),
        };
        self.of_origins.iter().cloned().chain(own).collect()
    }
}

impl Ledgers {
    pub fn new(state_dir: &Path, cache: Uuid, images: ImagePlaces) -> Ledgers {
        Ledgers {
            images,
            place: state_dir.join("ledgers"),
            cache,
            made: AtomicBool::new(false),
        }
    }

    pub(super) fn make(&self) -> std::io::Result<()> {
        if self.made.load(Ordering::Acquire) && self.place.is_dir() {
            return Ok(());
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.place)?;
        crate::cachedev::sync_directory(&self.place)?;
        self.made.store(true, Ordering::Release);
        Ok(())
    }
}
