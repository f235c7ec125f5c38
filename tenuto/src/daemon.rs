//! One daemon on one host: what `serve` starts and `stop` ends.
//!
//! Owns the order of a start: lock the cache device, map the stage, recover, run the shard
//! thread, join the volumes, open the sockets. Always true: nothing is served before recovery
//! has ended, and nothing of an earlier daemon is touched before its locks are free.
//! Deliberately absent: configuration files, defaults and the admin interface; the settings here
//! are already checked.

use engine::types::{DestageMode, Policy};
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
