//! One daemon on one host: what `serve` starts and `stop` ends.
//!
//! Owns the order of a start: lock the cache device, map the stage, recover, run the shard
//! thread, join the volumes, open the sockets. Always true: nothing is served before recovery
//! has ended, and nothing of an earlier daemon is touched before its locks are free.
//! Deliberately absent: configuration files, defaults and the admin interface; the settings here
//! are already checked.

use crate::shard::control::{CommandError, Handle};
use engine::engine::Report;
use engine::types::{DestageMode, Policy, VolumeId};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything a daemon needs to start. Plain data, checked by whoever made it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the sockets; created if it is missing.
    pub run_dir: PathBuf,
    /// Directory of the stage, which must outlive the process.
    pub stage_dir: PathBuf,
    /// File or block device that `cache create` has formatted.
    pub cache_path: PathBuf,
    pub ram_bytes: u64,
    pub stage_bytes: u64,
    pub overlay_ram_bytes: u64,
    pub host_name: String,
    /// Group of the sockets; `None` leaves the group of the process.
    pub group: Option<String>,
    pub nbd_tcp: Option<SocketAddr>,
    pub volumes: Vec<VolumeSettings>,
}

/// One volume, as the configuration or `volume add` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeSettings {
    pub name: String,
    /// Path of a raw image or block device.
    pub origin: PathBuf,
    pub policy: Policy,
    pub read_only: bool,
    pub write_cache: bool,
    pub destage: DestageMode,
    /// `None` = never.
    pub destage_after: Option<Duration>,
    /// Directory of ledger and journal where they cannot lie beside the origin.
    pub journal_dir: Option<PathBuf>,
    pub dirty_limit_bytes: u64,
    pub origin_queue_depth: u32,
    pub overlay_timeout: Duration,
    /// False keeps the volume off the NBD sockets.
    pub export_nbd: bool,
    /// Delays origin requests like a storage network; used by `demo` and `bench`.
    pub san: Option<SanSettings>,
}

/// A storage network that is not there: what its arrays and wires would allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanSettings {
    pub latency: Duration,
    /// Requests per second; `None` = no limit.
    pub iops: Option<u32>,
    /// Bytes per second; `None` = no limit.
    pub bandwidth_bytes: Option<u64>,
}

/// Why a daemon did not start. Nothing is served and no lock is held.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings or what they name: exit code 2.
    #[error("{0}")]
    Settings(String),
    /// Another daemon holds the cache, the origin or the socket.
    #[error("{0}")]
    InUse(String),
    /// The cache is foreign, of another version or damaged.
    #[error("{0}")]
    Cache(String),
    #[error("{0}")]
    Io(String),
}

/// Why a volume was not added, changed or removed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {0}: not known; see `tenuto volume ls`")]
    Unknown(String),
    #[error("volume {0}: exists already")]
    Exists(String),
    /// Clients are connected.
    #[error("volume {name}: {clients} client(s) connected; disconnect them first")]
    Busy { name: String, clients: u64 },
    /// The origin or its ledger does not open; another writer has it, or it is not there.
    #[error("{0}")]
    Origin(String),
    #[error("volume {name}: {error}")]
    Command { name: String, error: CommandError },
}

/// A running daemon. Dropping it without `stop` leaves the process to the kernel, as a kill does.
pub struct Daemon {
    handle: Handle,
    report: Report,
    recovery: Duration,
}

impl Daemon {
    /// Starts everything; ready to serve when this returns.
    pub fn start(_settings: Settings) -> Result<Daemon, StartError> {
        todo!()
    }

    /// The shard: snapshots, commands, listeners, exports.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// What recovery found at start.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// How long recovery took.
    pub fn recovery_time(&self) -> Duration {
        self.recovery
    }

    pub fn volume_id(&self, _name: &str) -> Option<VolumeId> {
        todo!()
    }

    /// What a volume was added with, for `volume show`.
    pub fn volume_settings(&self, _name: &str) -> Option<VolumeSettings> {
        todo!()
    }

    /// Opens the origin, finishes a pending journal, joins the volume and its socket.
    pub fn volume_add(&self, _settings: VolumeSettings) -> Result<(), VolumeError> {
        todo!()
    }

    /// Changes what can be changed while a volume runs: `write_cache`, `destage`,
    /// `destage_after`, `dirty_limit_bytes`, `origin_queue_depth`, `overlay_timeout`.
    pub fn volume_tune(&self, _settings: VolumeSettings) -> Result<(), VolumeError> {
        todo!()
    }

    /// Forgets a volume; refused while clients are connected, and while it is dirty unless
    /// `discard_dirty`.
    pub fn volume_remove(&self, _name: &str, _discard_dirty: bool) -> Result<(), VolumeError> {
        todo!()
    }

    /// Orderly end: everything acknowledged is in the log, sockets are gone. Dirty data stays.
    pub fn stop(&self) -> Result<(), StartError> {
        todo!()
    }
}
