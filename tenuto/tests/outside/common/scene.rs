//! A small host on a shelf: one cache, a few volumes, and a load that is the same for one seed.
//!
//! Owns the files of such a host and the requests of its guests. Always true: everything that the
//! daemon writes to a device lies on the [`Shelf`] and is logged there, the stage alone lies in
//! shared memory; the log of the cache is so small that a few dozen requests fill it several times.
//! Deliberately absent: crashes, and what is wrong after one; those are the tests' own.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use engine::engine::format_cache;
use engine::event::{Device, IoError, Stat};
use engine::media::Media;
use engine::types::{Geometry, Uuid};
use workload::check::{Crash, Kind, Model, Promise, Violation};
use workload::stamp::SECTOR_BYTES;

use super::history::History;
use super::nbd::{self, Client};
use super::shelf::{Image, MountedShelf, Shelf};
use super::{Daemon, Rig};
use workload::rng::Rng;

/// A guest's disk, in sectors.
pub const SECTORS: u64 = 1024;
/// In the smallest one 36 chunks of 32 KiB hold records.
const fn geometry(segments: u32) -> Geometry {
    Geometry {
        chunk_blocks: 8,
        segment_chunks: 4,
        segments,
    }
}

pub const SEGMENTS_MIN: u32 = 12;
/// Rounds between two bursts on an overlay.
const OVERLAY_EVERY: u64 = 4;
/// The smallest that a configuration takes.
const SIZES: &str = "ram = \"4MiB\"\nstage = \"4MiB\"\noverlay-ram = \"4MiB\"";
pub const CACHE: &str = "cache";
const CACHE_UUID: Uuid = Uuid(*b"a cache on paper");

/// One volume of the host.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    pub name: &'static str,
    pub policy: &'static str,
    pub lines: &'static str,
    pub promise: Promise,
}

pub const ATOMIC: Volume = Volume {
    name: "atomic",
    policy: "write-back",
    lines: "destage = \"atomic\"\ndestage-after = \"10m\"",
    promise: Promise::Prefix,
};
pub const IN_PLACE: Volume = Volume {
    name: "in-place",
    policy: "write-back",
    lines: "destage = \"in-place\"\ndestage-after = \"10m\"",
    promise: Promise::Prefix,
};
pub const THROUGH: Volume = Volume {
    name: "through",
    policy: "write-through",
    lines: "",
    promise: Promise::Sectors,
};
pub const UNCACHED: Volume = Volume {
    name: "uncached",
    policy: "uncached",
    lines: "",
    promise: Promise::Sectors,
};
pub const OVERLAY: Volume = Volume {
    name: "overlay",
    policy: "ephemeral",
    lines: "",
    promise: Promise::Volatile,
};

/// The cache device while it is made.
struct Blank(Vec<u8>);

impl Media for Blank {
    fn read(&mut self, _: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        bytes.copy_from_slice(&self.0[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn write(&mut self, _: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&mut self, _: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.0[offset as usize..][..bytes as usize].fill(0);
        Ok(())
    }

    fn sync(&mut self, _: Device) -> Result<(), IoError> {
        Ok(())
    }

    fn stat(&mut self, _: Device) -> Result<Stat, IoError> {
        Err(IoError::Failed)
    }
}

/// An empty cache of this shape, as `tenuto cache create` makes larger ones.
fn blank_cache(segments: u32) -> Vec<u8> {
    let geometry = geometry(segments);
    let bytes = engine::engine::device_bytes(geometry) as usize;
    let mut blank = Blank(vec![0; bytes]);
    format_cache(&mut blank, CACHE_UUID, geometry).expect("a cache is made");
    blank.0
}

pub struct Scene {
    pub rig: Rig,
    pub shelf: Shelf,
    pub volumes: Vec<Volume>,
    mounted: MountedShelf,
}

impl Scene {
    pub fn new(volumes: &[Volume]) -> Scene {
        Scene::with_log_of(SEGMENTS_MIN, volumes)
    }

    pub fn with_log_of(segments: u32, volumes: &[Volume]) -> Scene {
        let mut rig = Rig::new();
        let shelf = Shelf::default();
        let mounted = MountedShelf::new(&shelf, &rig.dir.join("shelf"));
        shelf.put(CACHE, blank_cache(segments));
        rig.cache(&mounted.path(CACHE), "128MiB", SIZES);
        for volume in volumes {
            let image = image_name(volume.name);
            shelf.put(&image, vec![0; SECTORS as usize * SECTOR_BYTES]);
            rig.volume(
                volume.name,
                &mounted.path(&image),
                volume.policy,
                volume.lines,
            );
        }
        rig.write_config();
        Scene {
            rig,
            shelf,
            volumes: volumes.to_vec(),
            mounted,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    pub fn histories(&self) -> Vec<History> {
        let volumes = self.volumes.iter().zip(1..);
        volumes
            .map(|(volume, tag)| History::new(tag, SECTORS, volume.promise, &self.shelf))
            .collect()
    }

    /// One connection to each volume; `None` where the daemon died before.
    pub fn clients(&self) -> Option<Vec<Client>> {
        let volumes = self.volumes.iter();
        let sockets = volumes.map(|volume| self.rig.socket(volume.name));
        sockets
            .map(|socket| Client::connect(&socket, "").ok())
            .collect()
    }

    /// Puts the host back: its devices, and its stage unless it lost power.
    pub fn load(&self, image: Image, stage: Option<&Stage>) {
        self.shelf.load(image);
        self.rig.lose_stage();
        if let Some(stage) = stage {
            self.rig.go_to_boot(stage.boot);
            for (name, bytes) in &stage.files {
                let path = self.rig.stage_dir().join(name);
                fs::write(&path, bytes).expect("put the stage back");
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(&path, mode).expect("it is ours alone");
            }
        }
    }

    pub fn stage(&self) -> Stage {
        let files = fs::read_dir(self.rig.stage_dir()).expect("list the stage directory");
        let files = files.map(|file| {
            let file = file.expect("an entry");
            let bytes = fs::read(file.path()).expect("read the stage");
            (file.file_name().to_string_lossy().into_owned(), bytes)
        });
        Stage {
            files: files.collect(),
            boot: self.rig.boot(),
        }
    }

    /// Starts, or says what was said instead.
    pub fn try_serve(&self) -> Result<Daemon, String> {
        let started = self.rig.try_serve();
        started.map_err(|(status, log)| format!("did not start, {status}\n{log}"))
    }

    /// Reads every sector of every volume and judges; the models go on from what is there.
    pub fn verify(&self, models: &mut [Model], crash: Crash) -> Result<(), String> {
        for (model, volume) in models.iter_mut().zip(&self.volumes) {
            let client = Client::connect(&self.rig.socket(volume.name), "");
            let mut client = client.map_err(|error| format!("{}: {error}", volume.name))?;
            let judged = verify(model, crash, &mut client);
            judged.map_err(|violation| format!("volume {}: {violation}", volume.name))?;
            client.disconnect();
        }
        Ok(())
    }

    /// As if the host were gone for good: the image with what lies beside it is all there is, and
    /// it must be a prefix of the writes.
    pub fn verify_alone(&self, model: &Model, volume: &str) -> Result<(), String> {
        let name = image_name(volume);
        let path = self.path(&name).to_string_lossy().into_owned();
        let output = self.rig.tenuto(&["origin", "replay", &path]);
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("replay of {name}: {said}"));
        }
        let files = self.shelf.image();
        let bytes = &files[&name].bytes;
        let found = model.examine(Promise::Prefix, |range, sectors| {
            let at = range.start as usize * SECTOR_BYTES;
            sectors.copy_from_slice(&bytes[at..at + sectors.len()]);
            Ok(())
        });
        match found {
            Ok(_) | Err(Violation::Lost { .. }) => Ok(()),
            Err(violation) => Err(format!("{name} by itself: {violation}")),
        }
    }
}

pub fn image_name(volume: &str) -> String {
    format!("{volume}.img")
}

fn verify(model: &mut Model, crash: Crash, client: &mut Client) -> Result<(), Violation> {
    let read = |range: std::ops::Range<u64>, bytes: &mut [u8]| {
        let read = client.try_read(range.start * SECTOR_BYTES as u64, bytes);
        read.map_err(|error| format!("read of sectors {range:?}: NBD error {error}"))
    };
    model.verify(crash, read).map(|_| ())
}

/// Shared memory as a daemon left it.
#[derive(Clone)]
pub struct Stage {
    pub files: BTreeMap<String, Vec<u8>>,
    /// The one that it is good for.
    boot: u32,
}

/// The requests of all guests, the same for one seed.
pub struct Script {
    random: Rng,
    /// Rounds between two destages of one volume.
    destage_every: u64,
}

impl Script {
    pub fn new(seed: u64, destage_every: u64) -> Script {
        Script {
            random: Rng::new(seed),
            destage_every,
        }
    }

    /// Some rounds of bursts, each ended by a flush. False when the daemon died.
    pub fn play(
        &mut self,
        scene: &Scene,
        histories: &mut [History],
        clients: &mut [Client],
        rounds: u64,
    ) -> bool {
        for round in 1..=rounds {
            let guests = histories.iter_mut().zip(clients.iter_mut());
            for ((history, client), volume) in guests.zip(&scene.volumes) {
                // What is never destaged stays in the log, which is small.
                let rests = volume.policy == "ephemeral" && round % OVERLAY_EVERY != 1;
                if !rests && !self.burst(history, client) {
                    return false;
                }
            }
            if round.is_multiple_of(self.destage_every) && !destage(scene) {
                return false;
            }
        }
        true
    }

    /// A few requests in flight together, the flush among them; some come behind it.
    fn burst(&mut self, history: &mut History, client: &mut Client) -> bool {
        let before = 1 + self.random.below(4);
        let sent = (0..before).all(|_| self.write(history, client));
        sent && history.settle(client)
            && self.write(history, client)
            && history.send_flush(client)
            && self.write(history, client)
            && history.settle(client)
    }

    fn write(&mut self, history: &mut History, client: &mut Client) -> bool {
        let mut sectors = 1 + self.random.below(40);
        let mut sector = self.random.below(SECTORS - 48);
        if self.random.below(2) == 0 {
            sector = sector / 8 * 8;
            sectors = sectors.next_multiple_of(8);
        }
        let kind = match self.random.below(8) {
            0 => Kind::Zero,
            _ => Kind::Stamp,
        };
        let flags = match self.random.below(8) {
            0 => nbd::FLAG_FUA,
            _ => 0,
        };
        history.send(client, kind, flags, sector, sectors)
    }
}

/// Brings all that is dirty to the images. False when the daemon died.
fn destage(scene: &Scene) -> bool {
    let dirty = scene.volumes.iter().filter(|it| it.policy == "write-back");
    for volume in dirty {
        let output = scene
            .rig
            .tenuto(&["volume", "destage", volume.name, "--wait"]);
        if !output.status.success() {
            return false;
        }
    }
    true
}
