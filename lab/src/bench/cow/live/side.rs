//! Who serves a load: Tenuto on a clone, QEMU's qcow2 over a cache that does not know it, or QEMU
//! alone.
//!
//! Owns one slot: a daemon with an empty cache, a new clone, the load, and what was counted. Always
//! true: each side has the same cache, RAM, admission, policy and simulated storage, and the same
//! base file; where QEMU serves, its tables and data pass through volumes of that daemon, which
//! are uncached where no cache is compared; a slot of which the counters do not show its path is
//! not proven. Flash bytes are counted twice: by the daemon, blocks of data and fills without
//! headers; by the kernel, all that this process wrote without what went to the image and beside
//! it, the zeroes ahead of a new log included. Deliberately absent: a destage during the time that
//! is measured.

use super::case::Case;
use super::guest::{self, Carried};
use super::{Options, failed};
use crate::bench::micro::peer::device_bytes;
use crate::in_process::{self, Host, Sizes, make_clone, make_image};
use crate::place::Place;
use crate::qemu::{self, StorageDaemon};
use engine::event::Admission;
use engine::snapshot::Snapshot;
use engine::types::Policy;
use host::daemon::VolumeSettings;
use host::error::Result;
use host::origin::Format;
use image::create::Shape;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use workload::stacked::CLUSTER_BYTES;

const RAM_BYTES: u64 = 64 << 20;
const CLONE: &str = "clone";
pub const DELTA: &str = "delta";
pub const BASE: &str = "base";
/// An export cannot grow, so the delta has room for all that a clone can come to need.
pub const DELTA_FIFTHS: u64 = 6;
/// In write-back a destage makes at most such a part of the guest's writes while time is taken.
const DESTAGED_PART: u64 = 10;
/// What an empty clone is given at most, in bytes of its file.
const EMPTY_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Trdc,
    Tenuto,
    TrdcAgain,
    /// With clusters of 128 KiB and subclusters.
    Extended,
    /// QEMU without a cache.
    Qemu,
}

impl Side {
    pub const ALL: [Side; 5] = [
        Side::Trdc,
        Side::Tenuto,
        Side::TrdcAgain,
        Side::Extended,
        Side::Qemu,
    ];

    pub const fn key(self) -> &'static str {
        match self {
            Side::Trdc => "trdcache",
            Side::Tenuto => "tenuto",
            Side::TrdcAgain => "trdcache_again",
            Side::Extended => "tenuto_extended",
            Side::Qemu => "qemu",
        }
    }

    fn shape(self) -> Option<Shape> {
        match self {
            Side::Tenuto => Some(Shape::Plain),
            Side::Extended => Some(Shape::Extended),
            Side::Trdc | Side::TrdcAgain | Side::Qemu => None,
        }
    }

    fn policy(self, case: &Case) -> Policy {
        match self {
            Side::Qemu => Policy::Uncached,
            _ => case.policy,
        }
    }
}

/// What the daemon counted of all its volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub reads: u64,
    pub cache_hits: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub flash_read_bytes: u64,
    pub flash_write_bytes: u64,
    pub origin_reads: u64,
    pub origin_read_bytes: u64,
    pub origin_writes: u64,
    pub origin_write_bytes: u64,
    pub journal_bytes: u64,
    pub held_writes: u64,
    pub log_writes: u64,
    /// To the cache device, the image and what lies beside it.
    pub kernel_write_bytes: u64,
}

impl Counts {
    fn of(snapshot: &Snapshot) -> Counts {
        let mut counts = Counts {
            log_writes: snapshot.log_writes,
            kernel_write_bytes: device_bytes(None).map_or(0, |it| it.1),
            ..Counts::default()
        };
        for volume in &snapshot.volumes {
            let of = &volume.counters;
            counts.reads += of.reads.requests;
            counts.cache_hits += of.reads.ram_hits + of.reads.ssd_hits;
            counts.writes += of.writes.requests;
            counts.write_bytes += of.writes.bytes;
            counts.flushes += of.flushes;
            counts.flash_read_bytes += of.ssd_read_bytes;
            counts.flash_write_bytes += of.ssd_write_bytes;
            counts.origin_reads += of.origin.reads;
            counts.origin_read_bytes += of.origin.read_bytes;
            counts.origin_writes += of.origin.writes;
            counts.origin_write_bytes += of.origin.write_bytes;
            counts.journal_bytes += of.origin.journal_bytes;
            counts.held_writes += volume.flow.held_writes;
        }
        counts
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            cache_hits: self.cache_hits - before.cache_hits,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            flushes: self.flushes - before.flushes,
            flash_read_bytes: self.flash_read_bytes - before.flash_read_bytes,
            flash_write_bytes: self.flash_write_bytes - before.flash_write_bytes,
            origin_reads: self.origin_reads - before.origin_reads,
            origin_read_bytes: self.origin_read_bytes - before.origin_read_bytes,
            origin_writes: self.origin_writes - before.origin_writes,
            origin_write_bytes: self.origin_write_bytes - before.origin_write_bytes,
            journal_bytes: self.journal_bytes - before.journal_bytes,
            held_writes: self.held_writes - before.held_writes,
            log_writes: self.log_writes - before.log_writes,
            kernel_write_bytes: self.kernel_write_bytes - before.kernel_write_bytes,
        }
    }

    /// What the kernel wrote for the cache device.
    fn kernel_flash_bytes(&self) -> u64 {
        let beside = self.origin_write_bytes + self.journal_bytes;
        self.kernel_write_bytes.saturating_sub(beside)
    }

    fn document(&self) -> Value {
        json!({
            "reads": self.reads,
            "cache_hits": self.cache_hits,
            "writes": self.writes,
            "write_bytes": self.write_bytes,
            "flushes": self.flushes,
            "flash_read_bytes": self.flash_read_bytes,
            "flash_write_bytes": self.flash_write_bytes,
            "origin_reads": self.origin_reads,
            "origin_read_bytes": self.origin_read_bytes,
            "origin_writes": self.origin_writes,
            "origin_write_bytes": self.origin_write_bytes,
            "journal_bytes": self.journal_bytes,
            "held_writes": self.held_writes,
            "log_writes": self.log_writes,
            "kernel_write_bytes": self.kernel_write_bytes,
            "kernel_flash_write_bytes": self.kernel_flash_bytes(),
        })
    }
}

/// What a destage behind the time has moved.
#[derive(Clone, Copy, Debug)]
pub struct Destaged {
    /// To the image and its journal.
    pub bytes: u64,
    pub seconds: f64,
}

/// What came of one side in a round.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub side: Side,
    pub carried: Carried,
    pub counts: Counts,
    /// By an order behind the time, where there is one.
    pub destaged: Option<Destaged>,
    /// Bytes that the file of the clone has been given on its file system.
    pub allocated_bytes: u64,
    proven: bool,
}

impl Slot {
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// So much of a count for each request of the guest.
    pub fn each(&self, count: u64) -> Option<f64> {
        let requests = self.carried.requests;
        (requests > 0).then(|| count as f64 / requests as f64)
    }

    pub fn flash_each(&self) -> Option<f64> {
        self.each(self.counts.flash_write_bytes)
    }

    pub fn kernel_flash_each(&self) -> Option<f64> {
        self.each(self.counts.kernel_flash_bytes())
    }

    pub fn document(&self) -> Value {
        let destaged = self.destaged.map(|it| {
            json!({
                "bytes": it.bytes,
                "seconds": it.seconds,
            })
        });
        json!({
            "proven": self.proven,
            "requests_per_second": self.carried.per_second(),
            "requests": self.carried.requests,
            "seconds": self.carried.took.as_secs_f64(),
            "guest_writes": self.carried.writes,
            "guest_write_bytes": self.carried.write_bytes,
            "guest_flushes": self.carried.flushes,
            "clusters_written": self.carried.clusters,
            "daemon": self.counts.document(),
            "destaged": destaged,
            "allocated_bytes": self.allocated_bytes,
        })
    }
}

/// All files of one slot; they go away with it.
struct Files(PathBuf);

impl Files {
    fn new(place: &Place) -> Result<Files> {
        let path = place.path("slot");
        fs::create_dir(&path).map_err(failed)?;
        Ok(Files(path))
    }

    fn of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What is left goes away with the place.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the slots of a run share.
pub struct Bench<'a> {
    pub place: &'a Place,
    pub options: &'a Options,
    /// A full qcow2 file.
    pub base: PathBuf,
}

/// A daemon with the disk that the guest is to be asked at.
struct Served {
    host: Host,
    qemu: Option<StorageDaemon>,
    clone: PathBuf,
}

impl Bench<'_> {
    /// Serves a load once. Where `destages` a destage follows the time that is measured.
    pub fn slot(&self, case: &Case, side: Side, seed: u64, destages: bool) -> Result<Slot> {
        let files = Files::new(self.place)?;
        let served = match side.shape() {
            Some(shape) => self.tenuto(&files, case, shape)?,
            None => self.stacked(&files, side.policy(case))?,
        };
        let slot = self.measure(&served, case, side, (seed, destages));
        // In this order: QEMU writes its tables to the volumes.
        let ended = served.qemu.map_or(Ok(()), StorageDaemon::stop);
        let stopped = served.host.stop();
        let slot = slot?;
        ended.and(stopped).map(|()| slot)
    }

    fn measure(
        &self,
        served: &Served,
        case: &Case,
        side: Side,
        (seed, destages): (u64, bool),
    ) -> Result<Slot> {
        let disk_bytes = self.options.disk_bytes;
        let at = match &served.qemu {
            Some(qemu) => (qemu.socket(), StorageDaemon::EXPORT),
            None => (served.host.socket(), CLONE),
        };
        let asks = case.asks(disk_bytes, seed);
        guest::warm(at.0, at.1, case.warm_bytes(disk_bytes)).map_err(failed)?;
        let before = Counts::of(&served.host.snapshot()?);
        let given = allocated(&served.clone)?;
        let lasts = Duration::from_secs_f64(self.options.seconds);
        let carried = guest::carry(at, &asks, self.options.depth, lasts).map_err(failed)?;
        let counts = Counts::of(&served.host.snapshot()?).since(before);
        let destaged = match destages && side.policy(case) == Policy::WriteBack {
            true => Some(destage(served)?),
            false => None,
        };
        let mut slot = Slot {
            side,
            carried,
            counts,
            destaged,
            allocated_bytes: allocated(&served.clone)?.saturating_sub(given),
            proven: false,
        };
        slot.proven = is_proven(&slot, side.policy(case));
        Ok(slot)
    }

    fn volume(&self, name: &str, file: PathBuf, policy: Policy) -> VolumeSettings {
        let (latency, iops) = (self.options.origin_latency, self.options.origin_iops);
        VolumeSettings {
            destage_after: None,
            admission: Admission::All,
            san: Some(in_process::san(latency, iops)),
            ..in_process::volume(name, file, policy)
        }
    }

    fn host(&self, volumes: Vec<VolumeSettings>) -> Result<Host> {
        let sizes = Sizes {
            cache_bytes: self.options.cache_bytes,
            ram_bytes: RAM_BYTES,
        };
        Host::start(self.place, sizes, volumes)
    }

    fn tenuto(&self, files: &Files, case: &Case, shape: Shape) -> Result<Served> {
        let clone = files.of(CLONE);
        make_clone(&clone, self.options.disk_bytes, shape, &self.base)?;
        let volume = VolumeSettings {
            format: Format::Qcow2,
            ..self.volume(CLONE, clone.clone(), case.policy)
        };
        Ok(Served {
            host: self.host(vec![volume])?,
            qemu: None,
            clone,
        })
    }

    /// QEMU's qcow2 over two raw volumes.
    fn stacked(&self, files: &Files, policy: Policy) -> Result<Served> {
        let delta = files.of(DELTA);
        let bytes = self.options.disk_bytes * DELTA_FIFTHS / 5;
        make_image(&delta, bytes.next_multiple_of(CLUSTER_BYTES))?;
        let base = VolumeSettings {
            read_only: true,
            ..self.volume(BASE, self.base.clone(), policy)
        };
        let host = self.host(vec![self.volume(DELTA, delta.clone(), policy), base])?;
        let socket = host.socket();
        let bytes = self.options.disk_bytes;
        qemu::clone_through(socket, (DELTA, BASE), bytes, "cluster_size=65536")?;
        let nodes = nodes(socket);
        let qemu = StorageDaemon::start(&self.place.path("qsd.sock"), &nodes)?;
        Ok(Served {
            qemu: Some(qemu),
            host,
            clone: delta,
        })
    }
}

/// A qcow2 node over an export, whose tables are as in the paper's baseline.
pub fn nodes(socket: &Path) -> Vec<String> {
    let path = qemu::escaped(socket);
    let below = |name: &str, more: &str| {
        format!(
            "driver=nbd,node-name={name}-file,server.type=unix,server.path={path},\
             export={name}{more}"
        )
    };
    // 1 MiB and 256 KiB; a unit is not understood here.
    let tables = "l2-cache-size=1048576,l2-cache-entry-size=65536,refcount-cache-size=262144";
    vec![
        below(BASE, ",read-only=on"),
        format!("driver=qcow2,node-name={BASE},file={BASE}-file,read-only=on,{tables}"),
        below(DELTA, ""),
        format!(
            "driver=qcow2,node-name={},file={DELTA}-file,backing={BASE},{tables}",
            StorageDaemon::EXPORT
        ),
    ]
}

pub fn allocated(file: &Path) -> Result<u64> {
    let metadata = fs::metadata(file).map_err(failed)?;
    Ok(metadata.blocks() * 512)
}

fn destage(served: &Served) -> Result<Destaged> {
    let moved = || -> Result<u64> {
        let counts = Counts::of(&served.host.snapshot()?);
        Ok(counts.origin_write_bytes + counts.journal_bytes)
    };
    let (before, begun) = (moved()?, std::time::Instant::now());
    let name = match served.qemu {
        Some(_) => DELTA,
        None => CLONE,
    };
    served.host.destage(name)?;
    Ok(Destaged {
        bytes: moved()? - before,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Whether the counters show the path that this side must have gone.
fn is_proven(slot: &Slot, policy: Policy) -> bool {
    let (counts, carried) = (&slot.counts, &slot.carried);
    let some = carried.requests > 0 && carried.writes > 0;
    // Where QEMU allocates, more than what the guest wrote comes to the volumes, or as much.
    let came = counts.write_bytes >= carried.write_bytes && counts.writes > 0;
    let path = match policy {
        // Bytes for the log may still be in the stage, and a destage may have begun; no request
        // of the guest waits for either.
        Policy::WriteBack => {
            let logged = counts.flash_write_bytes > 0;
            logged && counts.origin_writes * DESTAGED_PART <= carried.writes
        }
        Policy::WriteThrough => counts.origin_writes > 0,
        _ => counts.origin_writes > 0 && counts.flash_write_bytes == 0 && counts.cache_hits == 0,
    };
    let destaged = slot.destaged.is_none_or(|it| {
        let least = carried.write_bytes.min(EMPTY_BYTES_MAX);
        it.bytes > 0 && slot.allocated_bytes >= least.min(carried.clusters * 4096)
    });
    some && came && path && destaged
}
