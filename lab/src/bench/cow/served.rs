//! One clone that is served again and again, each time without anything cached, and counted.
//!
//! Owns the file of the clone and who serves it: QEMU's qcow2 over two uncached raw volumes, or one
//! volume on the file. Always true: each start has an empty cache and empty table caches; requests
//! at the storage are those that the daemon counts of its origins, on both sides; a count is taken
//! when nothing is under way. Deliberately absent: latency of a storage, which no count depends on
//! with one request in flight.

use super::live::guest::{self, Carried};
use super::live::side::{BASE, DELTA, DELTA_FIFTHS, allocated, nodes};
use crate::in_process::{self, Host, Sizes, make_clone, make_image};
use crate::place::Place;
use crate::qemu::{self, StorageDaemon};
use crate::replay::machine::Ask;
use engine::event::Admission;
use engine::types::Policy;
use host::daemon::VolumeSettings;
use host::error::{Error, Result, cause};
use host::origin::Format;
use image::create::Shape;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workload::stacked::CLUSTER_BYTES;

const RAM_BYTES: u64 = 64 << 20;
const CLONE: &str = "clone";
/// Far beyond what any load takes.
const LASTS: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(20);

/// Who serves a clone, and how its clusters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Qemu(Shape),
    Tenuto(Shape, Policy),
}

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Qemu(Shape::Plain),
        Kind::Qemu(Shape::Extended),
        Kind::Tenuto(Shape::Plain, Policy::WriteBack),
        Kind::Tenuto(Shape::Extended, Policy::WriteBack),
        Kind::Tenuto(Shape::Plain, Policy::WriteThrough),
        Kind::Tenuto(Shape::Extended, Policy::WriteThrough),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Qemu(Shape::Plain) => "QEMU, 64 KiB",
            Kind::Qemu(Shape::Extended) => "QEMU, subclusters",
            Kind::Tenuto(Shape::Plain, Policy::WriteThrough) => "Tenuto wt, 64 KiB",
            Kind::Tenuto(Shape::Extended, Policy::WriteThrough) => "Tenuto wt, subclusters",
            Kind::Tenuto(Shape::Plain, _) => "Tenuto wb, 64 KiB",
            Kind::Tenuto(Shape::Extended, _) => "Tenuto wb, subclusters",
        }
    }

    pub fn shape(self) -> Shape {
        match self {
            Kind::Qemu(shape) | Kind::Tenuto(shape, _) => shape,
        }
    }

    pub fn is_write_back(self) -> bool {
        matches!(self, Kind::Tenuto(_, Policy::WriteBack))
    }
}

/// What came to the storage, and what was asked of the volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    /// Of the journal and the ledger, and of the header for the guard.
    pub beside: u64,
    pub beside_bytes: u64,
    pub syncs: u64,
    pub asked_reads: u64,
    pub asked_writes: u64,
    pub cache_hits: u64,
    pub dirty_bytes: u64,
}

impl Requests {
    /// All but syncs.
    pub fn all(&self) -> u64 {
        self.reads + self.writes + self.beside
    }

    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.write_bytes + self.beside_bytes
    }

    fn since(self, before: Requests) -> Requests {
        Requests {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            beside: self.beside - before.beside,
            beside_bytes: self.beside_bytes - before.beside_bytes,
            syncs: self.syncs - before.syncs,
            asked_reads: self.asked_reads - before.asked_reads,
            asked_writes: self.asked_writes - before.asked_writes,
            cache_hits: self.cache_hits - before.cache_hits,
            dirty_bytes: self.dirty_bytes,
        }
    }

    pub fn document(&self) -> Value {
        json!({
            "reads": self.reads,
            "read_bytes": self.read_bytes,
            "writes": self.writes,
            "write_bytes": self.write_bytes,
            "journal_and_ledger": self.beside,
            "journal_bytes": self.beside_bytes,
            "syncs": self.syncs,
            "asked_reads": self.asked_reads,
            "asked_writes": self.asked_writes,
            "cache_hits": self.cache_hits,
        })
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("bench cow: {}", cause(&error)))
}

/// A clone on its base; its files go away with the place.
pub struct Disk<'a> {
    place: &'a Place,
    kind: Kind,
    cache_bytes: u64,
    base: &'a Path,
    file: PathBuf,
}

/// It runs.
pub struct Served {
    host: Host,
    qemu: Option<StorageDaemon>,
    kind: Kind,
}

impl<'a> Disk<'a> {
    /// An empty one of this size.
    pub fn new(
        place: &'a Place,
        kind: Kind,
        (bytes, cache_bytes): (u64, u64),
        base: &'a Path,
    ) -> Result<Disk<'a>> {
        let file = place.path("clone");
        // Of the one before; if there is none, all is well.
        let _ = fs::remove_file(&file);
        let disk = Disk {
            place,
            kind,
            cache_bytes,
            base,
            file,
        };
        match kind {
            Kind::Tenuto(shape, _) => make_clone(&disk.file, bytes, shape, base)?,
            Kind::Qemu(shape) => {
                let room = bytes * DELTA_FIFTHS / 5;
                make_image(&disk.file, room.next_multiple_of(CLUSTER_BYTES))?;
                let host = disk.host()?;
                let options = match shape {
                    Shape::Plain => "cluster_size=65536",
                    Shape::Extended => "cluster_size=131072,extended_l2=on",
                };
                let made = qemu::clone_through(host.socket(), (DELTA, BASE), bytes, options);
                host.stop()?;
                made?;
            }
        }
        Ok(disk)
    }

    /// Its file, as a qcow2 image.
    pub fn file(&self) -> &Path {
        &self.file
    }

    pub fn allocated_bytes(&self) -> Result<u64> {
        allocated(&self.file)
    }

    fn volume(&self, name: &str, file: PathBuf, policy: Policy) -> VolumeSettings {
        VolumeSettings {
            destage_after: None,
            admission: Admission::All,
            ..in_process::volume(name, file, policy)
        }
    }

    fn host(&self) -> Result<Host> {
        let volumes = match self.kind {
            Kind::Tenuto(_, policy) => vec![VolumeSettings {
                format: Format::Qcow2,
                ..self.volume(CLONE, self.file.clone(), policy)
            }],
            Kind::Qemu(_) => {
                let base = VolumeSettings {
                    read_only: true,
                    ..self.volume(BASE, self.base.to_owned(), Policy::Uncached)
                };
                let delta = self.volume(DELTA, self.file.clone(), Policy::Uncached);
                vec![delta, base]
            }
        };
        let sizes = Sizes {
            cache_bytes: self.cache_bytes,
            ram_bytes: RAM_BYTES,
        };
        Host::start(self.place, sizes, volumes)
    }

    /// Serves it, with nothing in any cache.
    pub fn serve(&self) -> Result<Served> {
        let host = self.host()?;
        let qemu = match self.kind {
            Kind::Tenuto(..) => None,
            Kind::Qemu(_) => {
                let nodes = nodes(host.socket());
                Some(StorageDaemon::start(&self.place.path("qsd.sock"), &nodes)?)
            }
        };
        let kind = self.kind;
        let served = Served { host, qemu, kind };
        // What an open reads is no request of a guest.
        served.quiet()?;
        Ok(served)
    }
}

impl Served {
    fn requests(&self) -> Result<Requests> {
        let mut requests = Requests::default();
        for volume in &self.host.snapshot()?.volumes {
            let of = &volume.counters;
            requests.reads += of.origin.reads;
            requests.read_bytes += of.origin.read_bytes;
            requests.writes += of.origin.writes;
            requests.write_bytes += of.origin.write_bytes;
            requests.beside += of.origin.journal_requests;
            requests.beside_bytes += of.origin.journal_bytes;
            requests.syncs += of.origin.syncs;
            requests.asked_reads += of.reads.requests;
            requests.asked_writes += of.writes.requests;
            requests.cache_hits += of.reads.ram_hits + of.reads.ssd_hits;
            requests.dirty_bytes += volume.dirty_bytes;
        }
        Ok(requests)
    }

    /// Waits until two looks are alike.
    fn quiet(&self) -> Result<Requests> {
        let begun = Instant::now();
        let mut last = self.requests()?;
        loop {
            std::thread::sleep(LOOK);
            let now = self.requests()?;
            if now == last {
                return Ok(now);
            }
            if begun.elapsed() > LASTS {
                return Err(Error::failed("bench cow: the storage is not left alone"));
            }
            last = now;
        }
    }

    /// Answers all of a load, so many at once, and brings what it has left behind to the storage:
    /// tables with a flush, and dirty data with a destage.
    pub fn carry(&self, asks: &[Ask], depth: usize) -> Result<(Carried, Requests)> {
        let at = match &self.qemu {
            Some(qemu) => (qemu.socket(), StorageDaemon::EXPORT),
            None => (self.host.socket(), CLONE),
        };
        let before = self.quiet()?;
        let carried = guest::carry(at, asks, depth, LASTS).map_err(failed)?;
        if carried.writes > 0 {
            guest::carry(at, &[Ask::Flush], 1, LASTS).map_err(failed)?;
            if self.kind.is_write_back() {
                self.host.destage(CLONE)?;
            }
        }
        Ok((carried, self.quiet()?.since(before)))
    }

    pub fn stop(self) -> Result<()> {
        // In this order: QEMU writes its tables to the volumes.
        let ended = self.qemu.map_or(Ok(()), StorageDaemon::stop);
        let stopped = self.host.stop();
        ended.and(stopped)
    }
}
