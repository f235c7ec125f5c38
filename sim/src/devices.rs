//! All devices of the simulated host and its storage, and blocking access to them.
//!
//! Owns the cache disk and, for each origin, image, journal and ledger. Always true: the same
//! disks serve the running engine and its recovery, so that what one leaves the other finds.
//! Deliberately absent: who may open what when; the world knows.

use crate::below::Below;
use crate::disk::{Change, Damage, Disk};
use crate::rng::Rng;
use engine::event::{Device, IoError, Op, Stat};
use engine::format::ledger::{LEDGER_BYTES, LEDGER_SLOTS, Ledger};
use engine::image::{Image, Marked, Named};
use engine::media::Media;
use engine::types::VolumeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them is the header of an image that is not raw.
const SECTOR_BYTES: usize = 512;
/// The wall clock at the begin of the run; any time that is not 0 will do.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// When the images were made.
pub const MADE_NS: u64 = EPOCH_NS - 86_400_000_000_000;
/// File systems stamp changes with the time of the last tick.
const MTIME_TICK_NS: u64 = 4_000_000;

/// An origin with what lies beside it.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    pub image: Disk,
    /// What it stands on, of an image that is not raw.
    pub below: Below,
    /// It is not raw, and volumes write it.
    pub top: bool,
    pub journal: Disk,
    pub ledger: Disk,
    /// How far the clock of its file server is ahead of the host's.
    pub skew_ns: u64,
    /// Which image it is, of those that lay there one after the other.
    pub version: u64,
    /// The number of its file; 0 where its storage tells nothing of its images.
    pub inode: u64,
    pub path: Path,
    /// Cut off behind so many bytes, until what was there is put back.
    pub cut: Option<u64>,
}

/// Where the path of an image leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    #[default]
    Here,
    /// The image was renamed, or removed.
    Gone,
    /// The same, and another file has its name.
    Elsewhere,
}

/// What a ledger of these bytes says.
pub fn ledger_of(bytes: &[u8]) -> Option<Ledger> {
    let mut slots = bytes.to_vec();
    slots.resize(LEDGER_BYTES * LEDGER_SLOTS as usize, 0);
    let ledger = Ledger::parse_file(&slots);
    ledger.ok().flatten()
}

/// The file system that all images lie on.
const FILE_SYSTEM: u64 = 7;

impl Origin {
    /// Whether a volume may go on with it.
    pub fn fits(&self) -> bool {
        self.path == Path::Here && self.cut.is_none()
    }

    /// The disk that it has; of one that allocates, what its header says.
    pub fn disk_bytes(&self) -> u64 {
        match self.top {
            true => crate::qcow2::size(self.image.landed()),
            false => self.image.size(),
        }
    }

    /// What its storage tells of it.
    pub fn image(&self) -> Option<Image> {
        (self.inode > 0).then(|| Image {
            device: FILE_SYSTEM,
            inode: self.inode,
            birth_ns: 0,
            size_bytes: self.bytes(),
            mtime_ns: self.image.mtime(),
            lasts: true,
            below: self.print_below(),
            marked: self.marked(),
        })
    }

    /// Where nothing below it is open, what its ledger knows of that is kept.
    fn print_below(&self) -> u64 {
        let kept = || ledger_of(self.ledger.landed()).map_or(0, |it| it.image.below);
        match self.below.has_choice() {
            true => self.below.print_open().unwrap_or_else(kept),
            false => 0,
        }
    }

    /// What an image that is not raw says of the volume that has written it.
    fn marked(&self) -> Marked {
        match self.image.landed().get(..SECTOR_BYTES) {
            Some(sector) if self.top => engine::chain::marked(sector),
            _ => Marked::Unknown,
        }
    }

    fn named(&self) -> Named {
        let Some(image) = self.image() else {
            return Named::Unknown;
        };
        match self.path {
            Path::Here => Named::To(image),
            Path::Gone => Named::Gone,
            Path::Elsewhere => Named::To(Image {
                inode: self.inode + 1,
                ..image
            }),
        }
    }

    fn bytes(&self) -> u64 {
        let all = self.image.size();
        self.cut.map_or(all, |cut| cut.min(all))
    }
}

/// One of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    Cache,
    Image(usize),
    /// A file below an image, by its number there.
    Base(usize, usize),
    Journal(usize),
    Ledger(usize),
}

impl File {
    /// The origin it belongs to.
    pub fn origin(self) -> Option<usize> {
        match self {
            File::Cache => None,
            File::Image(at) | File::Base(at, _) | File::Journal(at) | File::Ledger(at) => Some(at),
        }
    }
}

/// Everything that can hold bytes without power.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    pub cache: Disk,
    pub origins: Vec<Origin>,
    /// How far the host's wall clock is ahead of the time that has passed.
    pub wall_ns: i64,
    /// The origin of each volume that the engine has placed.
    pub places: BTreeMap<VolumeId, usize>,
}

impl Devices {
    /// The disk behind a device of the engine.
    pub fn file(&self, device: Device) -> File {
        let place = |id| {
            *self
                .places
                .get(&id)
                .unwrap_or_else(|| panic!("{id:?} was never placed"))
        };
        match device {
            Device::Cache => File::Cache,
            Device::Origin(id) => File::Image(place(id)),
            Device::Base(id, file) => {
                let at = place(id);
                File::Base(at, self.origins[at].below.opened(file))
            }
            Device::Journal(id) => File::Journal(place(id)),
            Device::Ledger(id) => File::Ledger(place(id)),
            Device::Former(id) | Device::Peer(id, _) => panic!("{id:?} has no other host here"),
        }
    }

    pub fn disk(&mut self, file: File) -> &mut Disk {
        match file {
            File::Cache => &mut self.cache,
            File::Image(at) => &mut self.origins[at].image,
            File::Base(at, file) => self.origins[at].below.disk(file),
            File::Journal(at) => &mut self.origins[at].journal,
            File::Ledger(at) => &mut self.origins[at].ledger,
        }
    }

    pub fn files(&self) -> Vec<File> {
        let beside = |at| [File::Image(at), File::Journal(at), File::Ledger(at)];
        let origins = (0..self.origins.len()).flat_map(beside);
        std::iter::once(File::Cache).chain(origins).collect()
    }

    /// The time a device stamps on a change made at `now`.
    pub fn stamp(&self, file: File, now: u64) -> u64 {
        let skew = file.origin().map_or(0, |at| self.origins[at].skew_ns);
        // A file server has a clock of its own.
        let clock = match skew {
            0 => self.wall(now),
            skew => EPOCH_NS + now + skew,
        };
        clock / MTIME_TICK_NS * MTIME_TICK_NS
    }

    fn wall(&self, now: u64) -> u64 {
        (EPOCH_NS + now).saturating_add_signed(self.wall_ns)
    }

    pub fn stat(&mut self, file: File, now: u64) -> Stat {
        let now_ns = self.wall(now);
        let known = match file {
            File::Image(at) => Some(&self.origins[at]),
            _ => None,
        };
        let image = known.and_then(Origin::image);
        let named = known.map_or(Named::Unknown, Origin::named);
        let inode = known.map_or(0, |it| it.inode);
        let cut = known.map(Origin::bytes);
        let disk = self.disk(file);
        Stat {
            size_bytes: cut.unwrap_or(disk.size()),
            mtime_ns: disk.mtime(),
            now_ns,
            print: Some(inode),
            image,
            named,
        }
    }
}

/// The change that an operation makes, if it is one that changes bytes.
pub fn change(
    op: Op,
    offset: u64,
    bytes: u64,
    content: impl FnOnce() -> Vec<u8>,
) -> Option<Change> {
    match op {
        Op::Write => Some(Change::Bytes {
            offset,
            bytes: content(),
        }),
        Op::Zero { .. } => Some(Change::Zero { offset, bytes }),
        Op::Remove => Some(Change::Cut),
        Op::Resize => Some(Change::Size(bytes)),
        Op::Read | Op::Unpack(_) | Op::Sync | Op::Stat => None,
    }
}

/// A bit that changes on the way: a second read is good.
pub fn flip(bytes: &mut [u8], rng: &mut Rng) {
    let at = rng.below(bytes.len() as u64) as usize;
    bytes[at] ^= 1 << rng.below(8);
}

/// What a device does to a range by itself: a flipped bit, a block that never arrived and shows
/// zeroes, or what was there before if that is given, or two blocks in each other's place.
pub fn rot(
    disk: &mut Disk,
    offset: u64,
    (bytes, before): (u64, Option<&[u8]>),
    time: u64,
    rng: &mut Rng,
) {
    const BLOCK: u64 = 4096;
    let place = |rng: &mut Rng| offset + rng.below(bytes / BLOCK) * BLOCK;
    let read = |disk: &Disk, at: u64, rng: &mut Rng| {
        let mut block = vec![0; BLOCK as usize];
        disk.read(at, &mut block, rng);
        block
    };
    let (one, other) = (place(rng), place(rng));
    let (mut here, there) = (read(disk, one, rng), read(disk, other, rng));
    let changes = match rng.below(3) {
        0 => {
            here[rng.below(BLOCK) as usize] ^= 1 << rng.below(8);
            vec![(one, here)]
        }
        1 => {
            let kept = before.map(|it| it[(one - offset) as usize..][..BLOCK as usize].to_vec());
            vec![(one, kept.unwrap_or_else(|| vec![0; BLOCK as usize]))]
        }
        _ => vec![(one, there), (other, here)],
    };
    for (offset, bytes) in changes {
        let ticket = disk.start(Change::Bytes { offset, bytes });
        disk.finish(ticket, false, time, rng);
    }
}

/// How often a blocking call takes how long: a few hundred microseconds.
const CALL_NS: u64 = 200_000;

/// Blocking access, as recovery has it, with a crash between or within any two calls.
pub struct Blocking<'a> {
    pub devices: &'a mut Devices,
    pub rng: &'a mut Rng,
    pub now: &'a mut u64,
    /// Calls until the crash.
    pub fuse: Option<u64>,
    /// The kill may strike at the stage as well.
    pub killed: Arc<AtomicBool>,
    /// The crash has come: nothing that was returned since counts.
    pub crashed: bool,
    /// Calls in a thousand that fail without a crash.
    pub errors: u64,
    pub failed: u64,
    pub calls: u64,
}

impl<'a> Blocking<'a> {
    /// Access without any fault.
    pub fn new(devices: &'a mut Devices, rng: &'a mut Rng, now: &'a mut u64) -> Blocking<'a> {
        Blocking {
            devices,
            rng,
            now,
            fuse: None,
            killed: Arc::default(),
            crashed: false,
            errors: 0,
            failed: 0,
            calls: 0,
        }
    }

    /// Counts a call; `Err` when it fails.
    fn enter(&mut self) -> Result<(), IoError> {
        *self.now += 1 + self.rng.below(CALL_NS);
        self.calls += 1;
        self.crashed |= self.killed.load(Ordering::Relaxed);
        if self.crashed {
            return Err(IoError::Failed);
        }
        match &mut self.fuse {
            Some(0) => {
                self.crashed = true;
                return Err(IoError::Failed);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        if self.rng.chance(self.errors) {
            self.failed += 1;
            return Err(IoError::Failed);
        }
        Ok(())
    }

    fn change(&mut self, device: Device, change: Change) -> Result<(), IoError> {
        let before = self.crashed || self.killed.load(Ordering::Relaxed);
        let entered = self.enter();
        if before {
            return entered;
        }
        let file = self.devices.file(device);
        let time = self.devices.stamp(file, *self.now);
        let disk = self.devices.disk(file);
        let ticket = disk.start(change);
        // A crash leaves the change in flight; whether it lands is decided with the others.
        if !self.crashed {
            disk.finish(ticket, entered.is_err(), time, self.rng);
        }
        entered
    }
}

impl Media for Blocking<'_> {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        self.enter()?;
        let file = self.devices.file(device);
        self.devices.disk(file).read(offset, bytes, self.rng);
        Ok(())
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.change(
            device,
            Change::Bytes {
                offset,
                bytes: bytes.to_vec(),
            },
        )
    }

    /// In an order of chance, so that a kill in the middle leaves any part of them.
    fn write_many(&mut self, device: Device, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        let mut left: Vec<usize> = (0..writes.len()).collect();
        while !left.is_empty() {
            let at = self.rng.below(left.len() as u64) as usize;
            let (offset, bytes) = writes[left.swap_remove(at)];
            self.write(device, offset, bytes)?;
        }
        Ok(())
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.change(device, Change::Zero { offset, bytes })
    }

    fn sync(&mut self, device: Device) -> Result<(), IoError> {
        let before = self.crashed || self.killed.load(Ordering::Relaxed);
        let entered = self.enter();
        let file = self.devices.file(device);
        let disk = self.devices.disk(file);
        let point = disk.sync_point();
        match entered {
            Ok(()) => disk.sync_done(point),
            Err(_) if !before && !self.crashed => disk.sync_failed(point, Damage::Doomed, self.rng),
            Err(_) => {}
        }
        entered
    }

    fn stat(&mut self, device: Device) -> Result<Stat, IoError> {
        self.enter()?;
        let file = self.devices.file(device);
        Ok(self.devices.stat(file, *self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_device_after_the_crash() {
        let mut devices = Devices::default();
        let mut rng = Rng::new(1);
        let mut now = 0;
        let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
        media.fuse = Some(2);
        assert!(media.write(Device::Cache, 0, &[1; 512]).is_ok());
        assert!(media.sync(Device::Cache).is_ok());
        assert!(media.write(Device::Cache, 512, &[2; 512]).is_err());
        assert!(media.crashed);
        assert!(media.write(Device::Cache, 1024, &[3; 512]).is_err());
        assert!(media.read(Device::Cache, 0, &mut [0; 512]).is_err());
        assert_eq!(devices.cache.flying().len(), 1);
        assert_eq!(devices.cache.size(), 512);
    }

    #[test]
    fn files_that_do_not_exist_read_as_empty() {
        let mut devices = Devices {
            origins: vec![Origin::default()],
            ..Devices::default()
        };
        devices.places.insert(VolumeId(3), 0);
        let mut rng = Rng::new(1);
        let mut now = 0;
        let mut media = Blocking::new(&mut devices, &mut rng, &mut now);
        let mut bytes = [9; 8];
        assert!(
            media
                .read(Device::Ledger(VolumeId(3)), 0, &mut bytes)
                .is_ok()
        );
        assert_eq!(bytes, [0; 8]);
        assert_eq!(
            media
                .stat(Device::Ledger(VolumeId(3)))
                .map(|it| it.size_bytes),
            Ok(0)
        );
    }
}
