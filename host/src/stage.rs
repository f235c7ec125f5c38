//! The stage: shared memory that keeps acknowledged writes while the daemon is gone.
//!
//! Owns the file `<dir>/tenuto-<cache uuid>` and its lock. Always true: every byte of the mapping
//! is allocated, because a full tmpfs would otherwise end the daemon at its next store; the file
//! is never made smaller, because its tail may hold what a former, larger configuration
//! acknowledged. Deliberately absent: what the bytes mean, and the decision that the file is of
//! an earlier boot.

use crate::buffer::Arena;
use crate::config::units::human_bytes;
use crate::fault::{Fault, Kind};
use crate::lock::{self, Mode, Patience};
use crate::sys;
use engine::types::Uuid;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a killed owner may take to end; no I/O of its can hold this lock.
const EXIT_WAIT: Duration = Duration::from_secs(5);

/// The stage file; keeps its lock while it lives.
#[derive(Debug)]
pub struct Stage {
    /// Carries the lock.
    file: File,
    path: PathBuf,
    /// Where it lies until it is shown.
    hidden: Option<PathBuf>,
    found: bool,
}

impl Stage {
    /// Opens or creates; the arena covers max(existing, wanted) bytes and goes to `HostMemory`.
    pub fn open(dir: &Path, uuid: Uuid, wanted_bytes: u64) -> Result<(Stage, Arena), Fault> {
        let path = dir.join(format!("tenuto-{uuid}"));
        let name = format!("stage {}", path.display());
        let found = fs::symlink_metadata(&path).is_ok();
        let file = open_file(&path, &name)?;
        let mut patience = Patience {
            wait: EXIT_WAIT,
            ..Patience::none()
        };
        lock::acquire(&file, &name, Mode::Exclusive, &mut patience)?;
        let meta = check(&file, &path, &name)?;
        let bytes = meta.len().max(wanted_bytes).next_multiple_of(4096);
        let limit = sys::file_bytes_max();
        if bytes > limit && bytes > meta.len() {
            if !found {
                // Best effort: an empty file in the way would do no harm.
                let _ = fs::remove_file(&path);
            }
            return Err(Fault::too_large(&name, bytes, limit));
        }
        // What fails half way takes all there is.
        let free = sys::free_bytes(&file).unwrap_or(0);
        let needed = bytes.saturating_sub(meta.blocks() * 512);
        let allocated = match sys::lacks(&file, needed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => sys::fallocate(&file, 0, 0, bytes),
        };
        if let Err(error) = allocated {
            let fault = full(&name, needed, free, error);
            if !found {
                // Best effort: an empty file in the way would do no harm.
                let _ = fs::remove_file(&path);
            }
            return Err(fault);
        }
        let arena = Arena::shared(&file, bytes).map_err(|e| Fault::io(&name, "map it", e))?;
        let stage = Stage {
            file,
            path,
            hidden: None,
            found,
        };
        Ok((stage, arena))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True when the file was there before.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Whether its path still leads to it. What cannot be told is taken for a yes.
    pub fn is_named(&self) -> bool {
        match (self.file.metadata(), fs::symlink_metadata(&self.path)) {
            (Ok(ours), Ok(named)) => ours.ino() == named.ino() && ours.dev() == named.dev(),
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => true,
        }
    }

    /// A file as large as this one, which somebody has removed: locked, allocated, and hidden until
    /// it holds what this one does.
    pub fn renew(&self) -> Result<Stage, Fault> {
        let name = format!("stage {}", self.path.display());
        let hidden = self.path.with_extension("new");
        let _ = fs::remove_file(&hidden);
        let file = open_file(&hidden, &name)?;
        lock::acquire(&file, &name, Mode::Exclusive, &mut Patience::none())?;
        let fresh = Stage {
            file,
            path: self.path.clone(),
            hidden: Some(hidden),
            found: false,
        };
        let meta = self.file.metadata();
        let bytes = meta
            .map_err(|error| Fault::io(&name, "stat it", error))?
            .len();
        let free = sys::free_bytes(&fresh.file).unwrap_or(0);
        let allocated = match sys::lacks(&fresh.file, bytes) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => sys::fallocate(&fresh.file, 0, 0, bytes),
        };
        allocated.map_err(|error| full(&name, bytes, free, error))?;
        Ok(fresh)
    }

    /// The file once more, for whoever maps it.
    pub fn file(&self) -> Result<File, Fault> {
        let name = format!("stage {}", self.path.display());
        let file = self.file.try_clone();
        file.map_err(|error| Fault::io(&name, "open it once more", error))
    }

    /// Gives a hidden file its name.
    pub fn show(&mut self) -> Result<(), Fault> {
        let Some(hidden) = self.hidden.take() else {
            return Ok(());
        };
        let name = format!("stage {}", self.path.display());
        let shown = fs::rename(&hidden, &self.path);
        shown.map_err(|error| Fault::io(&name, "name it", error))
    }

    /// Removes the file; a mapping of it lives on until it is dropped.
    pub fn remove(self) -> Result<(), Fault> {
        let name = format!("stage {}", self.path.display());
        fs::remove_file(&self.path).map_err(|error| Fault::io(&name, "remove it", error))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // Best effort: the next one that is made removes it as well.
            let _ = fs::remove_file(hidden);
        }
    }
}

fn open_file(path: &Path, name: &str) -> Result<File, Fault> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    // /dev/shm is writable for everyone: a link there may point at anything, and opening a FIFO
    // that somebody made must not block.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => Fault::new(
                Kind::Foreign,
                format!("{name}: is a symbolic link; remove it"),
            ),
            _ => Fault::io(name, "open it", error),
        })
}

/// The file is ours alone, and still the one the path names.
fn check(file: &File, path: &Path, name: &str) -> Result<fs::Metadata, Fault> {
    let meta = file
        .metadata()
        .map_err(|error| Fault::io(name, "stat it", error))?;
    let uid = sys::effective_uid();
    if !meta.is_file() || meta.nlink() > 1 {
        return Err(Fault::new(
            Kind::Foreign,
            format!("{name}: is not a regular file with one name; remove it"),
        ));
    }
    if meta.uid() != uid {
        return Err(Fault::new(
            Kind::Foreign,
            format!(
                "{name}: belongs to user {}, not to {uid}; remove it",
                meta.uid()
            ),
        ));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(Fault::new(
            Kind::Foreign,
            format!(
                "{name}: mode {:o} lets others change it; should be 600",
                meta.mode() & 0o777
            ),
        ));
    }
    let named = fs::symlink_metadata(path);
    if !named.is_ok_and(|found| found.ino() == meta.ino() && found.dev() == meta.dev()) {
        return Err(Fault::new(
            Kind::InUse,
            format!("{name}: was replaced while it was opened; start again"),
        ));
    }
    Ok(meta)
}

fn full(name: &str, needed: u64, free: u64, error: io::Error) -> Fault {
    let (needed, free) = (human_bytes(needed), human_bytes(free));
    if !matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        return Fault::io(name, &format!("allocate {needed}"), error);
    }
    Fault {
        kind: Kind::NoSpace,
        message: format!(
            "{name}: needs {needed} more, {free} are free on its file system; \
             make that larger, or cache.stage or cache.overlay-ram smaller"
        ),
        ours: None,
        source: Some(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::testing::freed;
    use std::os::unix::fs::symlink;

    const UUID: Uuid = Uuid([7; 16]);

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").expect("a directory in shared memory")
    }

    #[test]
    fn the_content_outlives_its_mapping_and_the_file_only_grows() {
        let dir = dir();
        let (stage, arena) = Stage::open(dir.path(), UUID, 64 << 10).expect("made");
        assert!(!stage.found());
        let last = arena.words().len() - 1;
        arena.words()[last].store(42, std::sync::atomic::Ordering::SeqCst);
        let mode = fs::metadata(stage.path()).expect("there").mode();
        assert_eq!(mode & 0o777, 0o600);
        drop((stage, arena));
        let (stage, arena) = freed(|| Stage::open(dir.path(), UUID, 4096));
        assert!(stage.found());
        assert_eq!(arena.bytes(), 64 << 10);
        assert_eq!(
            arena.words()[last].load(std::sync::atomic::Ordering::SeqCst),
            42
        );
        drop((stage, arena));
        let (stage, arena) = freed(|| Stage::open(dir.path(), UUID, 128 << 10));
        assert_eq!(arena.bytes(), 128 << 10);
        let path = stage.path().to_path_buf();
        assert_eq!(
            fs::metadata(&path).expect("there").blocks() * 512,
            128 << 10
        );
        stage.remove().expect("removed");
        assert!(!path.exists());
    }

    #[test]
    fn a_symlink_or_an_open_mode_is_refused() {
        let dir = dir();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").expect("written");
        let path = dir.path().join(format!("tenuto-{UUID}"));
        symlink(&victim, &path).expect("linked");
        let fault = Stage::open(dir.path(), UUID, 4096).expect_err("refused");
        assert!(fault.message.contains("symbolic link"), "{fault}");
        assert_eq!(fs::read(&victim).expect("there"), b"precious");
        fs::remove_file(&path).expect("removed");
        fs::hard_link(&victim, &path).expect("linked");
        let fault = Stage::open(dir.path(), UUID, 4096).expect_err("refused");
        assert!(fault.message.contains("one name"), "{fault}");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "x").expect("written");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .expect("changed");
        let fault = Stage::open(dir.path(), UUID, 4096).expect_err("refused");
        assert!(fault.message.contains("should be 600"), "{fault}");
    }

    #[test]
    fn a_second_daemon_is_refused_by_the_name_of_the_first() {
        let dir = dir();
        let _first = Stage::open(dir.path(), UUID, 4096).expect("made");
        let fault = Stage::open(dir.path(), UUID, 4096).expect_err("refused");
        assert_eq!(fault.kind, Kind::InUse);
        assert!(
            fault
                .message
                .contains(&format!("pid {}", std::process::id())),
            "{fault}"
        );
    }

    #[test]
    fn a_full_file_system_says_what_is_needed_and_what_is_free() {
        let dir = dir();
        let fault = Stage::open(dir.path(), UUID, 1 << 50).expect_err("refused");
        assert_eq!(fault.kind, Kind::NoSpace);
        assert!(fault.message.contains("are free"), "{fault}");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
    }
}
