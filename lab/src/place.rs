//! Where a run takes place: directories of this process, and the cache in them.
//!
//! Always true: a directory goes away with its owner, and one whose owner was killed is swept by
//! the next demonstration.

use engine::engine::{format_cache, geometry_for};
use engine::types::Uuid;
use host::cachedev;
use host::error::{Error, Result, cause};
use host::files::Files;
use host::lock::{self, Patience};
use host::sys;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Shared memory beyond the stage, which other programs may want.
const SHM_FREE_MIN: u64 = 512 << 20;
const PREFIX: &str = "tenuto-demo-";

/// A directory that goes away with its owner.
pub struct Directory(PathBuf);

impl Directory {
    fn new(parent: &Path) -> Result<Directory> {
        sweep(parent);
        Directory::made(parent, &format!("{PREFIX}{}", std::process::id()))
    }

    fn inner(&self, name: &str) -> Result<Directory> {
        Directory::made(&self.0, name)
    }

    fn made(parent: &Path, name: &str) -> Result<Directory> {
        let path = parent.join(name);
        let made = fs::create_dir(&path);
        made.map_err(|error| {
            Error::failed(format!(
                "{}: {}; name a directory in which this user may make files",
                parent.display(),
                cause(&error)
            ))
        })?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is swept by the next demonstration.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what demonstrations left that were killed.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok())
            && !lock::alive(pid)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Where the runs take place.
pub struct Place {
    disk: Directory,
    memory: Option<Directory>,
}

impl Place {
    pub fn new() -> Result<Place> {
        Place::below(&std::env::temp_dir())
    }

    /// With the files that should not lie in memory in a directory of this one.
    pub fn below(parent: &Path) -> Result<Place> {
        let shm = Path::new("/dev/shm");
        let roomy = File::open(shm)
            .ok()
            .and_then(|it| sys::free_bytes(&it).ok());
        let memory = match roomy {
            Some(free) if free >= SHM_FREE_MIN => Directory::new(shm).ok(),
            _ => None,
        };
        Ok(Place {
            disk: Directory::new(parent)?,
            memory,
        })
    }

    /// A place inside of this one, which goes away before it.
    pub fn part(&self, name: &str) -> Result<Place> {
        let memory = self.memory.as_ref();
        Ok(Place {
            disk: self.disk.inner(name)?,
            memory: memory.map(|memory| memory.inner(name)).transpose()?,
        })
    }

    /// The directory of everything that is not in memory.
    pub fn directory(&self) -> &Path {
        &self.disk.0
    }

    pub fn stage_dir(&self) -> &Path {
        let memory = self.memory.as_ref();
        memory.map_or(self.disk.0.as_path(), |memory| memory.0.as_path())
    }

    /// Whether what lies in `stage_dir` is in memory.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// A path for a file of a run; it goes away with the place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.disk.0.join(name)
    }

    /// The image of a volume.
    pub fn image(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.img"))
    }
}

/// An empty cache of this size.
pub fn make_cache(path: &Path, bytes: u64) -> Result<()> {
    let failed = |why: String| Error::failed(format!("cache {}: {why}", path.display()));
    let geometry = geometry_for(bytes).map_err(failed)?;
    let claimed = cachedev::claim(path, false, &mut Patience::none());
    let target = claimed.and_then(|claimed| claimed.allocate(bytes));
    let target = target.map_err(|fault| failed(fault.to_string()))?;
    let uuid = Uuid(*uuid::Uuid::new_v4().as_bytes());
    let formatted = format_cache(&mut Files::new(target), uuid, geometry);
    formatted.map_err(|error| failed(error.to_string()))
}
