//! Where a trial takes place: a private directory with a cache, a configuration and sockets.
//!
//! Always true: the directory is new and only its user may enter it; the configuration in it is
//! all that `tenuto recover` needs. The cache lies below `$TMPDIR`, else below `/var/tmp`, which is
//! there after the host comes back; the RAM stage lies in shared memory where there is room.
//! Deliberately absent: a decision when the directory may go.

use crate::config::check::SOCKET_PATH_MAX;
use crate::config::keys::CACHE_BYTES_MIN;
use crate::config::units::{human_bytes, show_size};
use crate::daemon::ImagePlaces;
use crate::error::{Error, Result, cause};
use crate::origin::nbd::uri::{Server, Uri};
use crate::sys;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use toml::Value;

/// The volume of every trial.
pub const DISK: &str = "disk";
const MIB: u64 = 1 << 20;
const CACHE_BYTES: u64 = 4 << 30;
/// Of the free space, the part that is left to others.
const FREE_PART: u64 = 2;
const SHARED_MEMORY: &str = "/dev/shm";
/// Shared memory that is left to others beyond the stage.
const SHARED_FREE_MIN: u64 = 512 * MIB;
const RAM_BYTES: u64 = 128 * MIB;
const STAGE_BYTES: u64 = 64 * MIB;
/// Of an ephemeral trial; beyond it the overlay spills to the cache.
const OVERLAY_BYTES: u64 = 256 * MIB;
/// Of the others, which have no overlay.
const NO_OVERLAY_BYTES: u64 = 16 * MIB;

/// What was asked for.
pub struct Wanted<'a> {
    pub image: &'a str,
    /// `None` = by the free space.
    pub cache_bytes: Option<u64>,
    pub allow: &'a [PathBuf],
}

pub struct Place {
    directory: PathBuf,
    stage_dir: PathBuf,
    cache_bytes: u64,
    overlay_bytes: u64,
    /// Where files below the image may lie.
    allow: Vec<PathBuf>,
}

impl Place {
    /// Decides where it is to be, and makes nothing.
    pub fn plan(wanted: &Wanted<'_>) -> Result<Place> {
        let parent = parent();
        let name = uuid::Uuid::new_v4().simple().to_string();
        let directory = parent.join(format!("tenuto-try-{}", &name[..8]));
        let longest = directory.join("run").join(format!("{DISK}.vhost.sock"));
        if longest.as_os_str().len() > SOCKET_PATH_MAX || longest.to_str().is_none() {
            return Err(Error::usage(format!(
                "{}: no path for sockets, which have at most {SOCKET_PATH_MAX} bytes of UTF-8; set \
                 TMPDIR to a shorter directory",
                parent.display()
            )));
        }
        let mut allow = Vec::new();
        for path in wanted.allow {
            allow.push(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        }
        let image = Path::new(wanted.image).canonicalize().ok();
        allow.extend(image.and_then(|it| it.parent().map(Path::to_path_buf)));
        Ok(Place {
            cache_bytes: cache_bytes(&parent, wanted.cache_bytes)?,
            stage_dir: stage_dir(&directory),
            overlay_bytes: NO_OVERLAY_BYTES,
            directory,
            allow,
        })
    }

    /// Makes the directory and what has to be there before the daemon starts.
    pub fn make(&mut self, ephemeral: bool) -> Result<()> {
        if ephemeral {
            self.overlay_bytes = OVERLAY_BYTES;
        }
        let text = self.text()?;
        let private = |path| DirBuilder::new().mode(0o700).create(path);
        private(&self.directory).map_err(|error| self.unfit(&error))?;
        let inside = || {
            if self.stage_dir != self.directory {
                private(&self.stage_dir)?;
            }
            fs::create_dir(self.state_dir())?;
            fs::write(self.config_path(), text)
        };
        inside().map_err(|error| {
            let error = self.unfit(&error);
            self.remove();
            error
        })
    }

    fn unfit(&self, error: &std::io::Error) -> Error {
        let parent = self.directory.parent().unwrap_or(&self.directory);
        Error::usage(format!(
            "{}: {}; set TMPDIR to a directory on a local disk in which this user may make files",
            parent.display(),
            cause(error)
        ))
    }

    /// The configuration.
    pub fn text(&self) -> Result<String> {
        let quote = |path: &Path| match path.to_str() {
            Some(text) => Ok(Value::String(text.into()).to_string()),
            None => {
                let right = "use names in UTF-8";
                Err(Error::usage(format!(
                    "{}: is no name in UTF-8; {right}",
                    path.display()
                )))
            }
        };
        let allow = self.allow.iter().map(|path| quote(path));
        let allow = allow.collect::<Result<Vec<String>>>()?.join(", ");
        Ok(format!(
            "# Of a trial. What it holds for its image is brought there by\n\
             # tenuto recover --cache {} -c {}\n\
             [host]\ngroup = \"{}\"\nrun-dir = {}\nstage-dir = {}\nstate-dir = {}\n\n\
             [cache]\npath = {}\nsize = \"{}\"\nram = \"{}\"\nstage = \"{}\"\n\
             overlay-ram = \"{}\"\n\n\
             [images]\nallow = [{allow}]\n",
            self.cache_path().display(),
            self.config_path().display(),
            own_group(),
            quote(&self.run_dir())?,
            quote(&self.stage_dir)?,
            quote(&self.state_dir())?,
            quote(&self.cache_path())?,
            show_size(self.cache_bytes),
            show_size(RAM_BYTES),
            show_size(STAGE_BYTES),
            show_size(self.overlay_bytes),
        ))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directories, which a user removes by hand where the trial cannot.
    pub fn all(&self) -> Vec<String> {
        let mut all = vec![&self.directory, &self.stage_dir];
        all.dedup();
        all.iter().map(|path| path.display().to_string()).collect()
    }

    pub fn config_path(&self) -> PathBuf {
        self.directory.join("tenuto.toml")
    }

    pub fn cache_path(&self) -> PathBuf {
        self.directory.join("cache")
    }

    pub fn log_path(&self) -> PathBuf {
        self.directory.join("log")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.directory.join("state")
    }

    pub fn stage_dir(&self) -> &Path {
        &self.stage_dir
    }

    pub fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn run_dir(&self) -> PathBuf {
        self.directory.join("run")
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.run_dir().join("tenuto.sock")
    }

    /// What NBD clients call the disk.
    pub fn uri(&self) -> String {
        let uri = Uri {
            server: Server::Unix(self.run_dir().join("nbd.sock")),
            export: DISK.into(),
        };
        uri.to_string()
    }

    pub fn images(&self) -> ImagePlaces {
        ImagePlaces {
            named: self.allow.clone(),
            of_origins: Vec::new(),
        }
    }

    /// Removes everything. What cannot be removed is of no more use to anyone, and in a directory
    /// for temporary files.
    pub fn remove(&self) {
        for directory in self.all() {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

/// The directory for large temporary files.
fn parent() -> PathBuf {
    let asked = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    match asked {
        Some(dir) => std::path::absolute(&dir).unwrap_or_else(|_| dir.into()),
        None if Path::new("/var/tmp").is_dir() => "/var/tmp".into(),
        None => "/tmp".into(),
    }
}

/// The size of the cache, which is allocated when it is made.
fn cache_bytes(parent: &Path, asked: Option<u64>) -> Result<u64> {
    if let Some(bytes) = asked {
        return Ok(bytes);
    }
    let free = File::open(parent).and_then(|it| sys::free_bytes(&it));
    let free = free.unwrap_or(CACHE_BYTES);
    let bytes = (free / FREE_PART).min(CACHE_BYTES) / MIB * MIB;
    match bytes >= CACHE_BYTES_MIN {
        true => Ok(bytes),
        false => Err(Error::usage(format!(
            "{}: {} are free, and a cache needs {}; set TMPDIR to a directory with more room",
            parent.display(),
            human_bytes(free),
            human_bytes(CACHE_BYTES_MIN * FREE_PART)
        ))),
    }
}

fn stage_dir(otherwise: &Path) -> PathBuf {
    let free = File::open(SHARED_MEMORY).and_then(|it| sys::free_bytes(&it));
    let roomy = free.is_ok_and(|free| free >= SHARED_FREE_MIN);
    match (otherwise.file_name(), tempfile::tempfile_in(SHARED_MEMORY)) {
        (Some(name), Ok(_)) if roomy => Path::new(SHARED_MEMORY).join(name),
        _ => otherwise.into(),
    }
}

/// The group of this user: there is no need to be in any other.
fn own_group() -> u32 {
    fs::metadata("/proc/self").map_or(0, |meta| meta.gid())
}
