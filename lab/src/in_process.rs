//! A daemon in this process: what `serve` starts, with volumes made for a benchmark or a
//! demonstration.
//!
//! Always true: clients reach it through its sockets only; it begins with an empty cache, and its
//! files go away with its place.

use crate::place::{Place, make_cache};
use engine::event::Command;
use engine::flow::FlowLimits;
use engine::snapshot::{Snapshot, VolumeSnapshot};
use engine::types::{DestageMode, Policy};
use host::daemon::{Daemon, Exports, ImagePlaces, SanSettings, Settings, VolumeSettings};
use host::error::{Error, Result};
use host::origin::Format;
use image::create::{Backing, BackingFormat, Shape, create};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

pub const STAGE_BYTES: u64 = 64 << 20;

/// Sizes of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub cache_bytes: u64,
    pub ram_bytes: u64,
}

pub struct Host {
    daemon: Daemon,
    cache_path: PathBuf,
    stage_dir: PathBuf,
    socket: PathBuf,
}

impl Host {
    pub fn start(place: &Place, sizes: Sizes, volumes: Vec<VolumeSettings>) -> Result<Host> {
        let (cache_path, run_dir) = (place.path("cache"), place.path("run"));
        let stage_dir = place.stage_dir().join("stage");
        make_cache(&cache_path, sizes.cache_bytes)?;
        let made = fs::create_dir_all(&stage_dir);
        made.map_err(|error| Error::failed(format!("{}: {error}", stage_dir.display())))?;
        let daemon = Daemon::start(Settings {
            stage_dir: stage_dir.clone(),
            ..settings("bench", place, sizes.ram_bytes, volumes)
        });
        Ok(Host {
            daemon: daemon.map_err(|error| Error::failed(error.to_string()))?,
            cache_path,
            stage_dir,
            socket: run_dir.join("nbd.sock"),
        })
    }

    /// Of all exports.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Of one volume that is exported through rings.
    pub fn rings(&self, name: &str) -> PathBuf {
        self.socket.with_file_name(format!("{name}.vhost.sock"))
    }

    pub fn snapshot(&self) -> Result<Snapshot> {
        let snapshot = self.daemon.handle().snapshot();
        let snapshot = snapshot.map_err(|error| Error::failed(error.to_string()))?;
        Ok(snapshot.engine)
    }

    pub fn volume(&self, name: &str) -> Result<VolumeSnapshot> {
        let volumes = self.snapshot()?.volumes.into_iter();
        let found = volumes.into_iter().find(|volume| volume.name == name);
        found.ok_or_else(|| Error::failed(format!("volume {name}: is gone")))
    }

    /// Begins a destage of everything written so far; the result waits for its end.
    pub fn destage_begin(&self, name: &str) -> Result<impl FnOnce() -> Result<()> + use<>> {
        let failed = |error: String| Error::failed(format!("destage: {error}"));
        let volume = self.daemon.volume_id(name).expect("added at the start");
        let begun = self
            .daemon
            .handle()
            .command_begin(Command::Destage { volume });
        let reply = begun.map_err(|error| failed(error.to_string()))?;
        Ok(move || reply.wait().map_err(|error| failed(error.to_string())))
    }

    pub fn destage(&self, name: &str) -> Result<()> {
        self.destage_begin(name)?()
    }

    pub fn stop(self) -> Result<()> {
        let stopped = self.daemon.stop();
        // They go away with their place anyway; this only keeps the peak low, and a stage may lie
        // in memory.
        let _ = fs::remove_file(self.cache_path);
        let _ = fs::remove_dir_all(self.stage_dir);
        stopped.map_err(|error| Error::failed(format!("stop: {error}")))
    }
}

/// Settings of a daemon whose cache is `cache` at the place.
pub fn settings(
    host_name: &str,
    place: &Place,
    ram_bytes: u64,
    volumes: Vec<VolumeSettings>,
) -> Settings {
    Settings {
        run_dir: place.path("run"),
        stage_dir: place.stage_dir().to_owned(),
        state_dir: place.stage_dir().to_owned(),
        cache_path: place.path("cache"),
        ram_bytes,
        stage_bytes: STAGE_BYTES,
        overlay_ram_bytes: 16 << 20,
        index_ram_bytes: None,
        image_ram_bytes: 16 << 20,
        host_name: host_name.into(),
        group: None,
        nbd_tcp: None,
        nbd_tls: None,
        clustered: false,
        adopt_orphans: true,
        strict: true,
        pools: Vec::new(),
        images: ImagePlaces {
            of_origins: vec![place.directory().to_owned()],
            ..Default::default()
        },
        volumes,
    }
}

/// Does the work while another thread looks every so often; a look may fail.
pub fn watched<T, L: Send>(
    every: Duration,
    look: impl Fn() -> Option<L> + Send,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<L>)> {
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut looks = Vec::new();
            loop {
                looks.extend(look());
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return looks;
                }
            }
        });
        let result = work();
        drop(end);
        let looks = watcher.join().expect("a panic ends the process");
        Ok((result?, looks))
    })
}

/// A sparse image.
pub fn make_image(path: &Path, bytes: u64) -> Result<()> {
    let made = File::create(path).and_then(|file| file.set_len(bytes));
    made.map_err(|error| Error::failed(format!("{}: {error}", path.display())))
}

/// A qcow2 image without data that stands on no other one, with clusters of 64 KiB.
pub fn make_qcow2(path: &Path, bytes: u64) -> Result<()> {
    make_shaped(path, bytes, Shape::Plain, None)
}

/// An empty qcow2 image over this qcow2 base.
pub fn make_clone(path: &Path, bytes: u64, shape: Shape, base: &Path) -> Result<()> {
    let name = base.display().to_string();
    let format = BackingFormat::Qcow2;
    let backing = Backing {
        name: &name,
        format,
    };
    make_shaped(path, bytes, shape, Some(backing))
}

fn make_shaped(path: &Path, bytes: u64, shape: Shape, backing: Option<Backing>) -> Result<()> {
    let failed = |why: String| Error::failed(format!("{}: {why}", path.display()));
    let new = create(bytes, shape, backing).map_err(|why| failed(why.to_string()))?;
    let made = File::create_new(path).and_then(|file| {
        for extent in &new.extents {
            file.write_all_at(&extent.bytes, extent.at)?;
        }
        file.set_len(new.file_bytes)
    });
    made.map_err(|error| failed(error.to_string()))
}

/// A volume with the defaults of the product, and an age limit that no run reaches.
pub fn volume(name: &str, origin: PathBuf, policy: Policy) -> VolumeSettings {
    VolumeSettings {
        name: name.into(),
        origin,
        policy,
        read_only: false,
        shared: false,
        write_cache: true,
        replicas: 0,
        on_degraded: Default::default(),
        place: None,
        destage: DestageMode::Atomic,
        destage_after: Some(Duration::from_secs(24 * 3600)),
        journal_dir: None,
        origin_quiet: Duration::ZERO,
        origin_timeout: None,
        format: Format::Raw,
        dirty_limit_bytes: 4 << 30,
        flow: FlowLimits::default(),
        share: Default::default(),
        block_bytes: 512,
        limit: Default::default(),
        group: String::new(),
        origin_queue_depth: 32,
        admission: engine::event::Admission::Reuse,
        overlay_timeout: Duration::from_secs(30),
        overlay_ram_bytes: 256 << 20,
        reset_on: engine::event::ResetOn::Command,
        qmp: None,
        exports: Exports::NBD,
        san: None,
        epoch: None,
        unproved: false,
        needs: Default::default(),
    }
}

/// A storage network of this latency and so many requests per second.
pub fn san(latency: Duration, iops: u32) -> SanSettings {
    SanSettings {
        latency,
        iops: Some(iops),
        bandwidth_bytes: None,
    }
}
