//! One daemon on one host: what `serve` starts and `stop` ends.
//!
//! Owns the order of a start: lock the cache device, map the stage, recover, run the shard
//! thread, join the volumes, open the sockets. Always true: nothing is served before recovery
//! has ended, and nothing of an earlier daemon is touched before its locks are free.
//! Deliberately absent: configuration files, defaults and the admin interface; the settings here
//! are already checked.

mod ahead;
mod backup;
mod cluster;
mod commit;
mod copies;
mod held;
mod hold;
mod host;
mod identity;
mod images;
mod lookout;
mod open;
mod opened;
mod places;
mod pool_ahead;
mod pool_cluster;
mod pool_health;
mod pool_moves;
mod pool_orders;
mod pool_words;
mod pools;
mod rebase;
mod resize;
mod rings;
mod snapshot;
mod sockets;
mod volumes;
mod watch;
mod window;

use crate::fault::FileId;
use crate::limit::GuestLimit;
use crate::origin::{Format, Place};
use crate::pool;
use crate::shard::control::{CommandError, Handle, ListenerScope, Needs, Stopped};
use crate::stage::Stage;
use crate::target::Target;
use crate::tls::SecureListener;
use crate::tls::certificates::{Settings as TlsSettings, Unfit};
use crate::unit::Units;
use crate::unit::copies::{CopyPlace, OnDegraded, Wanted};
use backup::Backups;
pub use backup::CheckpointShown;
use engine::engine::Report;
use engine::event::{Admission, Device, ResetOn, Share};
use engine::flow::FlowLimits;
use engine::types::{DestageMode, Policy, Uuid};
pub use hold::{Held, Hold, Why};
use images::Looks;
use lookout::Lookout;
pub use lookout::Noticed;
use node::record::Epoch;
pub use places::ImagePlaces;
use places::Ledgers;
pub use pool_cluster::HostShown;
use pools::Pools;
pub use pools::{MemberShown, PoolShown};
pub use rebase::{Below, Merged};
pub use resize::Resized;
pub use rings::FrontEndCounters;
use rings::FrontEnds;
use sockets::Sockets;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use volumes::Table;
pub use watch::Watched;
use watch::Watches;

/// Everything a daemon needs to start. Plain data, checked by whoever made it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the sockets; created if it is missing.
    pub run_dir: PathBuf,
    /// Directory of the stage, which must outlive the process.
    pub stage_dir: PathBuf,
    /// Directory of what this host keeps for itself: ledgers of origins beside which nothing lies.
    pub state_dir: PathBuf,
    /// File or block device that `cache create` has formatted.
    pub cache_path: PathBuf,
    pub ram_bytes: u64,
    pub stage_bytes: u64,
    pub overlay_ram_bytes: u64,
    /// Limit of the index of clean blocks; `None` = by the size of the cache.
    pub index_ram_bytes: Option<u64>,
    /// Limit of the tables of images that are not raw.
    pub image_ram_bytes: u64,
    pub host_name: String,
    /// Group of the sockets; `None` leaves the group of the process.
    pub group: Option<String>,
    pub nbd_tcp: Option<SocketAddr>,
    /// Certificates for it; `None` = it has no TLS.
    pub nbd_tls: Option<TlsSettings>,
    /// Where files below images may lie.
    pub images: ImagePlaces,
    pub volumes: Vec<VolumeSettings>,
    /// Clones of one image that are refreshed together.
    pub pools: Vec<pool::members::Settings>,
    /// The hosts of a cluster decide which of them serves a volume.
    pub clustered: bool,
    /// Destage dirty data of volumes that nobody names.
    pub adopt_orphans: bool,
    /// An image that cannot be opened ends the start; else its volume is held and tried again.
    pub strict: bool,
}

/// One volume, as the configuration or `volume add` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeSettings {
    pub name: String,
    /// Path of a raw image or block device, or URL of an NBD export.
    pub origin: PathBuf,
    pub policy: Policy,
    pub read_only: bool,
    /// Several clients may write at once.
    pub shared: bool,
    pub write_cache: bool,
    /// Copies of its dirty data on other hosts.
    pub replicas: u8,
    pub on_degraded: OnDegraded,
    /// Of its copies; none: as the cluster says.
    pub place: Option<CopyPlace>,
    pub destage: DestageMode,
    /// `None` = never.
    pub destage_after: Option<Duration>,
    /// Directory of ledger and journal where they cannot lie beside the origin.
    pub journal_dir: Option<PathBuf>,
    /// How long writes may take to land after the connection to an NBD origin has ended
    /// uncleanly; what they touch is not written again before.
    pub origin_quiet: Duration,
    /// How long reads wait for an origin that does not answer; `None` = for ever.
    pub origin_timeout: Option<Duration>,
    /// False looks at the first bytes of an NBD origin; those of files were looked at before.
    pub format: Format,
    pub dirty_limit_bytes: u64,
    /// When guests are slowed before that.
    pub flow: FlowLimits,
    /// What it has of the log, and of a storage that other volumes destage to.
    pub share: Share,
    /// Logical block that guests are shown.
    pub block_bytes: u32,
    /// Of its guest.
    pub limit: GuestLimit,
    /// Volumes of one name stand at one point in time; empty = this one alone.
    pub group: String,
    pub origin_queue_depth: u32,
    pub admission: Admission,
    pub overlay_timeout: Duration,
    /// RAM of the overlay; beyond it writes go to the log.
    pub overlay_ram_bytes: u64,
    pub reset_on: ResetOn,
    /// Monitor of the guest, where it is watched.
    pub qmp: Option<PathBuf>,
    pub exports: Exports,
    /// Delays requests to the origin and to what lies beside it like a storage network, which
    /// all volumes with equal settings share; used by `demo` and `bench`.
    pub san: Option<SanSettings>,
    /// Whose ledger and journal it has, of a clustered volume that is served here.
    pub epoch: Option<Epoch>,
    /// Another host may still write its image, so it is served from the log alone.
    pub unproved: bool,
    pub needs: Needs,
}

impl VolumeSettings {
    /// Whether the hosts of a cluster decide which of them serves it: all that are written, on
    /// files. What is only read, and overlays, are each host's own.
    pub fn is_clustered(&self) -> bool {
        let file = matches!(Place::parse(&self.origin), Ok(Place::File(_)));
        // A device that is not there yet is one all the same.
        let device = std::fs::metadata(&self.origin)
            .map_or(self.origin.starts_with("/dev"), |meta| !meta.is_file());
        let written = !self.read_only && self.policy != Policy::Ephemeral;
        written && file && !device
    }

    /// The copies on other hosts that it is to have.
    pub fn copies(&self) -> Wanted {
        Wanted {
            replicas: self.replicas,
            on_degraded: self.on_degraded,
            place: self.place.clone(),
        }
    }
}

/// The sockets at which guests find a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exports {
    pub vhost_user: bool,
    pub nbd: bool,
}

impl Exports {
    pub const NONE: Exports = Exports {
        vhost_user: false,
        nbd: false,
    };
    /// What benches and demonstrations talk to.
    pub const NBD: Exports = Exports {
        vhost_user: false,
        nbd: true,
    };
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

/// What is not known otherwise about how long late writes to an NBD origin take.
pub const DEFAULT_QUIET: Duration = Duration::from_secs(30);

/// Why a daemon did not start. Nothing is served and no lock is held.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings or what they name: exit code 2.
    #[error("{0}")]
    Settings(String),
    /// Another daemon holds the cache, the origin or the socket.
    #[error("{0}")]
    InUse(String),
    /// The cache is foreign or of another version.
    #[error("{0}")]
    Cache(String),
    /// The cache is ours, and what it must hold is not there or is wrong.
    #[error("{0}")]
    Damaged(String),
    /// Going on would lose dirty data, here or on another host.
    #[error("{0}")]
    Refused(String),
    /// An origin or its ledger does not open.
    #[error("{0}")]
    Origin(String),
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
    #[error("volume {0}: is being changed; try again")]
    Changing(String),
    /// Clients are connected.
    #[error("volume {name}: {clients} client(s) connected; disconnect them first")]
    Busy { name: String, clients: u64 },
    /// What was asked for cannot be; the message says what would be right.
    #[error("{0}")]
    Settings(String),
    /// An image is not there, or is no disk; the message says what would be right.
    #[error("{0}")]
    Image(String),
    /// What was asked for would lose or change data of others.
    #[error("{0}")]
    Refused(String),
    /// A journal beside the origin has to be finished first.
    #[error("{0}")]
    Unfinished(String),
    /// Another program or host has a file of the origin, or we have, by which file.
    #[error("{message}")]
    InUse {
        message: String,
        ours: Option<FileId>,
    },
    /// A volume of this daemon has a file of the origin; the message names it.
    #[error("{0}")]
    Taken(String),
    /// Going on would lose dirty data, here or on another host, or invent some.
    #[error("{0}")]
    Held(Box<Hold>),
    /// The origin or its ledger does not open.
    #[error("{0}")]
    Origin(String),
    #[error("volume {name}: {error}")]
    Command { name: String, error: CommandError },
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A running daemon. Dropping it without `stop` leaves the process to the kernel, as a kill does.
pub struct Daemon {
    handle: Handle,
    report: Report,
    recovery: Duration,
    sockets: Sockets,
    /// A lock, because changes come from several threads and wait for slow origins: it is held
    /// for moments only, and a change in progress is noted in the table.
    volumes: Mutex<Table>,
    /// A name may be changed again.
    unclaimed: Condvar,
    clustered: bool,
    state_dir: PathBuf,
    ledgers: Ledgers,
    watches: Watches,
    front_ends: FrontEnds,
    /// Held from when a place in the log is found until it is taken.
    placing: Arc<Mutex<()>>,
    secure: OnceLock<SecureListener>,
    looks: Looks,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Keeps its lock. Under a mutex, because one that is removed is made again.
    stage: Mutex<Stage>,
    /// As long as the shard has it open.
    cache: Weak<Target>,
    cache_id: Uuid,
    lookout: Lookout,
    /// Of the cluster that it is in.
    units: OnceLock<Units>,
    backups: Backups,
    pools: Pools,
}

impl Daemon {
    /// Starts everything; ready to serve when this returns. Blocks, and must not be called from
    /// asynchronous code, like all methods that change something.
    pub fn start(settings: Settings) -> Result<Daemon, StartError> {
        host::allow_descriptors(&settings.volumes)?;
        let sockets = Sockets::new(&settings)?;
        let boot = format!("{:?}", host::boot());
        let pools = Pools::new(&settings.pools, &settings.state_dir, boot);
        let pools = pools.map_err(StartError::Settings)?;
        let begun = Instant::now();
        let opened = open::open(&settings)?;
        let recovery = begun.elapsed();
        let orphans = open::orphans(&opened.parts.engine, &settings);
        let cache_id = opened.parts.engine.cache();
        let ledgers = Ledgers::new(&settings.state_dir, cache_id, settings.images.clone());
        let cache = opened.parts.files.share(Device::Cache);
        let cache = Arc::downgrade(&cache.expect("it was just opened"));
        let started = crate::shard::start(opened.parts);
        let (handle, thread) =
            started.map_err(|error| StartError::Io(format!("cannot start the ring: {error}")))?;
        let looks = Looks::start(handle.clone());
        let looks = looks.map_err(|error| {
            StartError::Io(format!(
                "cannot start a thread that looks at images: {error}"
            ))
        })?;
        let backups = Backups::new(&settings, cache_id);
        let daemon = Daemon {
            looks,
            handle,
            report: opened.report,
            recovery,
            sockets,
            volumes: Mutex::new(Table::default()),
            unclaimed: Condvar::new(),
            clustered: settings.clustered,
            state_dir: settings.state_dir.clone(),
            ledgers,
            watches: Watches::default(),
            front_ends: FrontEnds::default(),
            placing: Arc::default(),
            secure: OnceLock::new(),
            thread: Mutex::new(Some(thread)),
            stage: Mutex::new(opened.stage),
            cache,
            cache_id,
            lookout: Lookout::default(),
            units: OnceLock::new(),
            backups,
            pools,
        };
        match daemon.open_to_clients(settings, orphans) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                // The first error is the one to tell; nothing was acknowledged yet.
                let _ = daemon.stop();
                Err(error)
            }
        }
    }

    fn open_to_clients(
        &self,
        settings: Settings,
        orphans: Vec<VolumeSettings>,
    ) -> Result<(), StartError> {
        // Nothing of a group is destaged before all of it is there.
        for volume in &settings.volumes {
            self.table().name_in_group(volume);
        }
        let decided = |it: &&VolumeSettings| settings.clustered && it.is_clustered();
        for volume in settings.volumes.iter().filter(decided) {
            self.name_away(volume.clone())?;
        }
        let own = settings.volumes.iter().filter(|it| !decided(it));
        let own: Vec<VolumeSettings> = own.cloned().collect();
        self.backups.load_all(&own);
        ahead::in_order(&own, &self.ledgers, |volume, opened| {
            match self.volume_join(volume.clone(), opened) {
                Ok(()) => Ok(()),
                Err(VolumeError::Held(hold)) => Ok(self.hold(volume, *hold)?),
                Err(error) if settings.strict => Err(error.into()),
                // One that cannot go on does not stop the others.
                Err(error) => match Hold::of(&volume.name, error) {
                    Ok(hold) => Ok(self.hold(volume, hold)?),
                    Err(error) => Err(error.into()),
                },
            }
        })?;
        for orphan in orphans {
            self.adopt(orphan);
        }
        let gone = |_| StartError::Io("the shard has stopped".into());
        let listener = self.sockets.all()?;
        self.handle
            .listen(listener, ListenerScope::All)
            .map_err(gone)?;
        match (settings.nbd_tcp, settings.nbd_tls) {
            (Some(address), Some(tls)) => self.open_secure(address, tls)?,
            (Some(address), None) => {
                let listener = sockets::tcp(address)?;
                let listens = self.handle.listen(listener, ListenerScope::Network);
                listens.map_err(gone)?;
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn open_secure(&self, address: SocketAddr, tls: TlsSettings) -> Result<(), StartError> {
        let certificates = tls.read();
        let certificates = certificates.map_err(|unfit| StartError::Settings(unfit.to_string()))?;
        let listener = sockets::tcp(address)?;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let handle = self.handle.clone();
        let started = SecureListener::start(listener, tls, certificates, handle, cores);
        let started =
            started.map_err(|error| StartError::Io(format!("threads of NBD over TLS: {error}")))?;
        assert!(self.secure.set(started).is_ok(), "it is opened once");
        Ok(())
    }

    /// Reads the certificates of NBD over TLS again; what has become of them, if there is news.
    pub fn renew_certificates(&self) -> Result<Option<String>, Unfit> {
        let Some(secure) = self.secure.get() else {
            return Ok(None);
        };
        let changed = secure.renew()?;
        Ok(changed.then(|| "tls: new clients find the new certificates".to_owned()))
    }

    /// The shard: snapshots, commands, listeners, exports.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Looks now whether the image of each volume is still the one that it knows. Returns at once.
    pub fn look_at_images(&self) {
        self.looks.now();
    }

    /// The guests that are watched, by volume.
    pub fn watched(&self) -> std::collections::BTreeMap<String, Watched> {
        self.watches.shown()
    }

    /// Identity of the cache device.
    pub fn cache_id(&self) -> Uuid {
        self.cache_id
    }

    /// The boot that this host is in.
    pub fn boot(&self) -> Uuid {
        host::boot()
    }

    /// What recovery found at start.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// How long it took to open the cache, the wait for a dead owner's last writes included.
    pub fn recovery_time(&self) -> Duration {
        self.recovery
    }

    /// Orderly end: everything acknowledged is in the log, sockets are gone. Dirty data stays.
    pub fn stop(&self) -> Result<(), CommandError> {
        self.leave_cluster();
        self.backups.cut_all();
        self.sockets.remove_all();
        self.secure
            .get()
            .into_iter()
            .for_each(SecureListener::close);
        self.save_from_removed_cache();
        let parked = self.handle.stop();
        self.secure.get().into_iter().for_each(SecureListener::stop);
        self.front_ends.stop();
        let thread = self
            .thread
            .lock()
            .expect("no holder of this lock panics")
            .take();
        if let Some(thread) = thread {
            thread
                .join()
                .expect("a panic of the shard ends the process");
            self.backups.keep_all();
        }
        parked
    }
}

impl From<VolumeError> for StartError {
    fn from(error: VolumeError) -> StartError {
        let message = error.to_string();
        match error {
            VolumeError::InUse { .. } | VolumeError::Taken(_) => StartError::InUse(message),
            VolumeError::Settings(_) | VolumeError::Image(_) | VolumeError::Exists(_) => {
                StartError::Settings(message)
            }
            VolumeError::Held(_) => StartError::Refused(message),
            VolumeError::Origin(_) => StartError::Origin(message),
            _ => StartError::Io(message),
        }
    }
}
