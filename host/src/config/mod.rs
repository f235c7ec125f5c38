//! The configuration: what a host is told to be.
//!
//! Owns the typed form of `tenuto.toml` and where it is looked for. Always true: a [`Config`]
//! that exists was checked key by key, and everything it holds is something this version does.
//! Deliberately absent: looking at the disk, which is [`check`]; the text, which is [`parse`].

pub mod check;
pub mod cluster;
pub mod explain;
pub mod keys;
mod limit;
pub mod parse;
mod place;
pub mod pool;
pub mod share;
pub mod state;
#[cfg(test)]
mod tests;
pub mod token;
pub mod units;
pub(crate) mod values;

pub use cluster::Cluster;
pub use pool::Pool;
pub use values::Value;

use crate::daemon::{Exports, ImagePlaces, Settings, VolumeSettings};
use crate::error::{Error, Kind, Result, cause};
use crate::limit::GuestLimit;
pub use crate::origin::Format;
use crate::sys;
use crate::tls::certificates::Settings as Certificates;
use crate::unit::copies::{CopyPlace, OnDegraded};
use engine::event::{Admission, ResetOn, Share};
use engine::flow::FlowLimits;
use engine::types::{DestageMode, Policy};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the configuration lies if neither `-c` nor `$TENUTO_CONFIG` says so.
pub const DEFAULT_PATH: &str = "/etc/tenuto/tenuto.toml";
/// A configuration longer than this is not one.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a value was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nowhere: it is the default.
    #[default]
    Default,
    /// A line of the file.
    Line(usize),
    /// A line of the `[defaults]` of the file.
    Defaults(usize),
    /// Given on a command line or through the admin socket.
    Command,
}

impl Source {
    /// The line to blame, if there is one.
    pub fn line(&self) -> Option<usize> {
        match self {
            Source::Line(line) | Source::Defaults(line) => Some(*line),
            Source::Default | Source::Command => None,
        }
    }
}

/// The tables of images take one part of so many of the read tier, and at least so much.
const IMAGE_RAM_PART: u64 = 16;
const IMAGE_RAM_MIN: u64 = 16 << 20;

/// What was written where; keys that are not in it have their defaults.
pub type Sources = BTreeMap<&'static str, Source>;

/// How the lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub name: String,
    /// Asked for by name, the group must exist; the default is used where it does.
    pub group: String,
    pub run_dir: PathBuf,
    pub stage_dir: PathBuf,
    pub state_dir: PathBuf,
    pub log_format: LogFormat,
    pub sources: Sources,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    pub path: PathBuf,
    /// Used when `serve` creates the cache file.
    pub size_bytes: u64,
    pub ram_bytes: u64,
    pub stage_bytes: u64,
    pub overlay_ram_bytes: u64,
    /// `None` = by the size of the cache.
    pub index_ram_bytes: Option<u64>,
    /// `None` = by the size of the read tier.
    pub image_ram_bytes: Option<u64>,
    pub sources: Sources,
}

/// TCP listeners; none unless asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listen {
    pub nbd: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The web page; never without a token.
    pub web: Option<SocketAddr>,
    pub web_token_file: Option<PathBuf>,
    /// Certificates of the NBD server; `None` = it has no TLS.
    pub tls: Option<Certificates>,
    /// NBD without TLS may be reached by other hosts.
    pub insecure: bool,
    pub sources: Sources,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    pub allow: Vec<PathBuf>,
    pub sources: Sources,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    pub name: String,
    pub origin: PathBuf,
    pub format: Format,
    pub policy: Policy,
    pub write_cache: bool,
    /// Copies of its dirty data on other hosts; more than 0 in a cluster only.
    pub replicas: u8,
    pub on_degraded: OnDegraded,
    /// Of its copies; none: as the cluster says.
    pub place: Option<CopyPlace>,
    /// `None` = never.
    pub destage_after_ms: Option<u64>,
    pub destage: DestageMode,
    pub journal: Option<PathBuf>,
    pub origin_quiet_ms: u64,
    /// `None` = hold for ever.
    pub origin_timeout_ms: Option<u64>,
    pub origin_queue_depth: u32,
    pub admission: Admission,
    pub dirty_limit_bytes: u64,
    pub flow: FlowLimits,
    pub share: Share,
    /// The daemon chooses its weight, from what it writes.
    pub share_auto: bool,
    /// Logical block that guests are shown.
    pub block_bytes: u32,
    pub limit: GuestLimit,
    /// Empty = it stands alone.
    pub group: String,
    pub overlay_ram_bytes: u64,
    pub overlay_timeout_ms: u64,
    pub reset_on: ResetOn,
    pub qmp: Option<PathBuf>,
    pub read_only: bool,
    pub shared: bool,
    pub exports: Exports,
    /// Line of its `[[volume]]`, or `None` if it was added at run time.
    pub line: Option<usize>,
    pub sources: Sources,
}

impl Volume {
    /// Whether this volume ever writes its origin.
    pub fn writes_origin(&self) -> bool {
        !self.read_only && self.policy != Policy::Ephemeral
    }

    pub fn settings(&self) -> VolumeSettings {
        VolumeSettings {
            name: self.name.clone(),
            origin: self.origin.clone(),
            policy: self.policy,
            read_only: self.read_only,
            shared: self.shared,
            write_cache: self.write_cache,
            replicas: self.replicas,
            on_degraded: self.on_degraded,
            place: self.place.clone(),
            destage: self.destage,
            destage_after: self.destage_after_ms.map(Duration::from_millis),
            journal_dir: self.journal.clone(),
            origin_quiet: Duration::from_millis(self.origin_quiet_ms),
            origin_timeout: self.origin_timeout_ms.map(Duration::from_millis),
            format: self.format,
            dirty_limit_bytes: self.dirty_limit_bytes,
            flow: self.flow,
            share: self.share,
            block_bytes: self.block_bytes,
            limit: self.limit,
            group: self.group.clone(),
            origin_queue_depth: self.origin_queue_depth,
            admission: self.admission,
            overlay_timeout: Duration::from_millis(self.overlay_timeout_ms),
            overlay_ram_bytes: self.overlay_ram_bytes,
            reset_on: self.reset_on,
            qmp: self.qmp.clone(),
            exports: self.exports,
            san: None,
            epoch: None,
            unproved: false,
            needs: Default::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file as the user named it; errors repeat it.
    pub path: PathBuf,
    pub host: Host,
    pub cache: Cache,
    pub listen: Listen,
    pub images: Images,
    /// `None` = this host is in no cluster.
    pub cluster: Option<Cluster>,
    /// A volume with only the `[defaults]` in it; its name and origin are empty.
    pub defaults: Volume,
    /// Clones of one image that are refreshed together.
    pub pools: Vec<Pool>,
    pub volumes: Vec<Volume>,
}

impl Config {
    /// Reads and checks the file, without looking at what it names.
    pub fn load(path: &Path) -> Result<Config> {
        let unreadable = |why: String| {
            let file = path.display().to_string();
            let right = "name a configuration with -c FILE or $TENUTO_CONFIG";
            let message = format!("{file}: cannot be read: {why}; {right}");
            Error::new(Kind::Config, message).about(file)
        };
        let meta = std::fs::metadata(path).map_err(|error| unreadable(cause(&error)))?;
        if meta.len() > FILE_BYTES_MAX {
            return Err(unreadable("it is larger than 16 MiB".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(cause(&error)))?;
        parse::parse(path, &text).map_err(Error::from)
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.host.run_dir.join("tenuto.sock")
    }

    /// What the daemon is started with. Volumes of the state directory come on top.
    pub fn settings(&self, volumes: &[Volume]) -> Settings {
        let auto_image_ram = (self.cache.ram_bytes / IMAGE_RAM_PART).max(IMAGE_RAM_MIN);
        Settings {
            run_dir: self.host.run_dir.clone(),
            stage_dir: self.host.stage_dir.clone(),
            state_dir: self.host.state_dir.clone(),
            cache_path: self.cache.path.clone(),
            ram_bytes: self.cache.ram_bytes,
            stage_bytes: self.cache.stage_bytes,
            overlay_ram_bytes: self.cache.overlay_ram_bytes,
            index_ram_bytes: self.cache.index_ram_bytes,
            image_ram_bytes: self.cache.image_ram_bytes.unwrap_or(auto_image_ram),
            host_name: self.host.name.clone(),
            group: self.socket_group(),
            nbd_tcp: self.listen.nbd,
            nbd_tls: self.listen.tls.clone(),
            clustered: self.cluster.is_some(),
            adopt_orphans: true,
            strict: false,
            images: self.image_places(volumes),
            volumes: volumes.iter().map(Volume::settings).collect(),
            pools: self.pools.iter().map(Pool::settings).collect(),
        }
    }

    /// Where files below images may lie.
    pub fn image_places(&self, volumes: &[Volume]) -> ImagePlaces {
        let place = |volume: &Volume| {
            let path = volume.origin.canonicalize().ok()?;
            path.parent().map(Path::to_path_buf)
        };
        let mut of_origins: Vec<PathBuf> = volumes.iter().filter_map(place).collect();
        of_origins.sort();
        of_origins.dedup();
        ImagePlaces {
            named: self.images.allow.clone(),
            of_origins,
        }
    }

    /// The group of the sockets: the one asked for, or the default one where it exists and this
    /// process may give sockets to it.
    pub fn socket_group(&self) -> Option<String> {
        let usable = || check::group_id(&self.host.group).is_some_and(sys::may_give_to_group);
        (self.asks_for_group() || usable()).then(|| self.host.group.clone())
    }

    pub fn asks_for_group(&self) -> bool {
        self.host.sources.contains_key("group")
    }
}

/// The admin socket of the daemon that runs with a file, also where that has since become wrong:
/// the daemon goes on, and must be spoken to. Without one the error is that of the file.
pub fn admin_socket(path: &Path) -> Result<PathBuf> {
    let loaded = Config::load(path);
    let Err(error) = loaded else {
        return loaded.map(|config| config.admin_socket());
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let Ok(document) = text.parse::<toml::Table>() else {
        return Err(error);
    };
    let section = document.get("host").and_then(toml::Value::as_table);
    let named = section.and_then(|host| host.get("run-dir"));
    let run_dir = match named {
        Some(toml::Value::String(path)) if path.starts_with('/') => path.into(),
        Some(_) => return Err(error),
        None => default_run_dir(),
    };
    let socket = run_dir.join("tenuto.sock");
    match socket.exists() {
        true => Ok(socket),
        false => Err(error),
    }
}

/// The file to read: `-c`, else `$TENUTO_CONFIG`, else the default place.
pub fn locate(asked: Option<&Path>) -> PathBuf {
    let from_environment = || std::env::var_os("TENUTO_CONFIG").filter(|path| !path.is_empty());
    match asked {
        Some(path) => path.to_path_buf(),
        None => from_environment().map_or_else(|| DEFAULT_PATH.into(), PathBuf::from),
    }
}

/// Directory of the sockets if nobody names one.
pub fn default_run_dir() -> PathBuf {
    if user_id() == 0 {
        return "/run/tenuto".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("tenuto"),
        None => format!("/run/user/{}/tenuto", user_id()).into(),
    }
}

/// The user this process runs as: the owner of its own entry in `/proc`.
fn user_id() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").map_or(0, |meta| meta.uid())
}

/// One error in a configuration: `FILE:LINE: KEY: what is wrong; what would be right`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// `None` for values given on a command line.
    pub file: Option<PathBuf>,
    pub line: Option<usize>,
    pub key: String,
    pub wrong: Wrong,
}

/// What is wrong with a value, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub what: String,
    pub right: String,
    /// The value is right, but for a later version.
    pub later: bool,
}

impl Wrong {
    pub fn new(what: impl Into<String>, right: impl Into<String>) -> Wrong {
        Wrong {
            what: what.into(),
            right: right.into(),
            later: false,
        }
    }

    /// `what` with its verb, as in "replicas are".
    pub fn later(what: impl fmt::Display, right: impl Into<String>) -> Wrong {
        Wrong {
            what: format!("{what} not in this version"),
            right: right.into(),
            later: true,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        // A message is one line, whatever somebody has put into a key.
        for letter in self.key.chars() {
            match letter.is_control() {
                true => write!(f, "{}", letter.escape_default())?,
                false => write!(f, "{letter}")?,
            }
        }
        write!(f, ": {}; {}", self.wrong.what, self.wrong.right)
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        let kind = match (error.wrong.later, &error.file) {
            (true, _) => Kind::NotInThisVersion,
            (false, Some(_)) => Kind::Config,
            (false, None) => Kind::Usage,
        };
        Error::new(kind, error.to_string()).about(error.key.clone())
    }
}
