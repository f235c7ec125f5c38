//! All open files of a shard, by the engine's names for them.
//!
//! Owns the descriptions and with them the locks. Always true: one description per device, the
//! same for blocking and for asynchronous requests. The blocking half (`Media`) serves recovery
//! and the offline tools; a read of many headers runs on a few short-lived threads, because
//! those thousands of independent reads are all that recovery waits for.

use crate::lock::Patience;
use crate::marks::{self, Phase};
use crate::origin::file::{OpenVolume, Sides};
use crate::origin::nbd::client::Client;
use crate::origin::san::San;
use crate::target::io_error;
pub use crate::target::{Target, misaligned};
use crate::{cachedev, fault::Kind};
use engine::engine::{OpenError, Otherwise, Settled, pending_journal, settle_for};
use engine::event::{Device, IoError, Stat};
use engine::media::Media;
use engine::types::{BLOCK_BYTES, Uuid, VolumeId};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Threads of one call with many requests: what an SSD needs to be busy, and little enough to start
/// at once.
const THREADS: usize = 32;
/// Fewer requests than this are not worth a thread.
const PER_THREAD_MIN: usize = 4;

/// Every open file of a shard.
#[derive(Debug, Default)]
pub struct Files {
    cache: Option<Arc<Target>>,
    volumes: BTreeMap<VolumeId, OpenVolume>,
    /// One for each set of parameters that a volume came with.
    sans: Vec<San>,
}

impl Files {
    pub fn new(cache: Target) -> Files {
        Files {
            cache: Some(Arc::new(cache)),
            volumes: BTreeMap::new(),
            sans: Vec::new(),
        }
    }

    /// For tools that work on an origin without a cache.
    pub fn without_cache() -> Files {
        Files::default()
    }

    /// `None`: no such volume, or its ledger or journal does not exist (see `ensure`).
    pub fn target(&self, device: Device) -> Option<&Target> {
        self.slot(device).map(Arc::as_ref)
    }

    /// The same for a worker thread.
    pub fn share(&self, device: Device) -> Option<Arc<Target>> {
        self.slot(device).cloned()
    }

    fn slot(&self, device: Device) -> Option<&Arc<Target>> {
        match device {
            Device::Cache => self.cache.as_ref(),
            Device::Origin(volume) => self.volumes.get(&volume)?.origin.file(),
            Device::Base(volume, file) => self.volumes.get(&volume)?.base(file),
            Device::Ledger(volume) => self.volumes.get(&volume)?.ledger.as_ref(),
            Device::Journal(volume) => self.volumes.get(&volume)?.journal.as_ref(),
            Device::Former(_) | Device::Peer(..) => None,
        }
    }

    /// Creates a missing ledger or journal (durably) and returns it.
    pub fn ensure(&mut self, device: Device) -> Result<&Target, IoError> {
        if self.slot(device).is_none() {
            self.create(device)?;
        }
        self.target(device).ok_or(IoError::Failed)
    }

    fn create(&mut self, device: Device) -> Result<(), IoError> {
        let (volume, ledger) = match device {
            Device::Ledger(volume) => (volume, true),
            Device::Journal(volume) => (volume, false),
            Device::Cache
            | Device::Origin(_)
            | Device::Base(..)
            | Device::Former(_)
            | Device::Peer(..) => {
                return Err(IoError::Failed);
            }
        };
        let open = self.volumes.get_mut(&volume).ok_or(IoError::Failed)?;
        if open.origin.read_only() {
            tracing::warn!(
                "{}: is open for reading, so no ledger is made",
                open.origin.name()
            );
            return Err(IoError::Failed);
        }
        let path = if ledger {
            &open.ledger_path
        } else {
            &open.journal_path
        };
        match open.side(path.as_deref(), true, &mut Patience::none()) {
            Ok(made) if ledger => open.ledger = made,
            Ok(made) => open.journal = made,
            Err(fault) => {
                tracing::warn!("{fault}");
                return Err(match fault.kind {
                    Kind::NoSpace => IoError::NoSpace,
                    _ => IoError::Failed,
                });
            }
        }
        Ok(())
    }

    /// `Op::Remove`: cuts the journal to nothing; on the ledger removes both files.
    pub fn remove(&mut self, device: Device) -> Result<(), IoError> {
        let removed = match device {
            Device::Journal(volume) => self.cut_journal(volume),
            Device::Ledger(volume) => self.remove_sides(volume),
            Device::Cache
            | Device::Origin(_)
            | Device::Base(..)
            | Device::Former(_)
            | Device::Peer(..) => {
                panic!("{device:?} is never removed")
            }
        };
        removed.map_err(|error| {
            tracing::warn!("cannot remove {device:?}: {error}");
            io_error(&error)
        })
    }

    fn cut_journal(&mut self, volume: VolumeId) -> io::Result<()> {
        match self.slot(Device::Journal(volume)) {
            Some(journal) => journal.file.set_len(0),
            None => Ok(()),
        }
    }

    /// The journal goes first: a journal without its ledger could belong to anybody.
    fn remove_sides(&mut self, volume: VolumeId) -> io::Result<()> {
        let Some(open) = self.volumes.get_mut(&volume) else {
            return Ok(());
        };
        let journal = (open.journal.take(), open.journal_path.clone());
        let ledger = (open.ledger.take(), open.ledger_path.clone());
        for (target, path) in [journal, ledger] {
            // Still locked while it is unlinked, so that nobody else has just taken it over.
            if let (Some(_locked), Some(path)) = (target, path) {
                unlink(path)?;
            }
        }
        Ok(())
    }

    pub fn insert_volume(&mut self, volume: VolumeId, open: OpenVolume) {
        let before = self.volumes.insert(volume, open);
        assert!(before.is_none(), "volume {volume} has its files already");
    }

    /// The files of a volume, shared.
    pub fn volume(&self, volume: VolumeId) -> Option<&OpenVolume> {
        self.volumes.get(&volume)
    }

    /// Takes ledger and journal that were made for a volume meanwhile.
    pub fn take_sides(&mut self, volume: VolumeId, made: Sides) {
        if let Some(open) = self.volumes.get_mut(&volume) {
            open.ledger = made.ledger;
            open.journal = made.journal;
        }
    }

    pub fn remove_volume(&mut self, volume: VolumeId) -> Option<OpenVolume> {
        self.volumes.remove(&volume)
    }

    /// The connection of an origin that is no file, until the shard has taken it.
    fn client(&mut self, device: Device) -> Option<&mut Client> {
        let Device::Origin(volume) = device else {
            return None;
        };
        let origin = self.volumes.get_mut(&volume)?.origin.nbd_mut()?;
        origin.client.as_mut()
    }

    /// Settles the ledger of a volume. A pending journal of an origin without a fence is finished,
    /// or left to the engine of its `cache`, only when no earlier write can land any more.
    pub fn settle(
        &mut self,
        volume: VolumeId,
        otherwise: Otherwise,
        cache: Option<Uuid>,
        patience: &mut Patience,
    ) -> Result<Settled, OpenError> {
        let open = self.volumes.get(&volume);
        let unclean = open
            .and_then(|open| open.origin.nbd())
            .filter(|o| o.unclean)
            .map(|origin| (origin.quiet, origin.name()));
        let pending = pending_journal(self, volume)?;
        if let Some((quiet, name)) = unclean
            && pending.is_some()
        {
            crate::lock::stay_quiet(&name, quiet, patience);
            let open = self.volumes.get_mut(&volume).expect("was just there");
            open.origin.nbd_mut().expect("was just there").unclean = false;
        }
        let Some(bytes) = pending else {
            return settle_for(self, volume, otherwise, cache);
        };
        let open = self.volumes.get(&volume);
        let name = open.map_or_else(String::new, |open| open.origin.name());
        let mib = bytes >> 20;
        if cache.is_none() {
            tracing::info!(
                "{name}: finishing the journal beside it, {mib} MiB, before it is served"
            );
        }
        let settled = settle_for(self, volume, otherwise, cache)?;
        match &settled.journal_damage {
            _ if settled.journal_left => {
                tracing::info!("{name}: the journal beside it, {mib} MiB, is finished meanwhile");
            }
            None => tracing::info!("{name}: the journal beside it is finished"),
            Some(why) => tracing::warn!("{name}: {why}; only a log with the same data can go on"),
        }
        Ok(settled)
    }

    /// Writes that share a block of the device would undo each other in flight together, because
    /// it is read, changed and written; so such writes go alone.
    fn write_side_by_side(
        &mut self,
        device: Device,
        writes: &[(u64, &[u8])],
    ) -> Result<(), IoError> {
        if let Some(client) = self.client(device) {
            return client.write_many(writes);
        }
        let target = self.ensure(device)?;
        let partial =
            |&&(offset, bytes): &&(u64, &[u8])| misaligned(target, offset, bytes.len() as u64);
        let whole: Vec<_> = writes.iter().filter(|it| !partial(it)).collect();
        side_by_side(whole.chunks(per_thread(whole.len())), |part| {
            part.iter()
                .try_for_each(|(offset, bytes)| target.write(*offset, bytes))
        })?;
        let mut alone = writes.iter().filter(partial);
        alone.try_for_each(|(offset, bytes)| target.write(*offset, bytes))
    }

    /// The storage network of a volume, shared with all volumes of equal parameters.
    pub fn san(&mut self, volume: VolumeId) -> Option<&mut San> {
        let params = self.volumes.get(&volume)?.san?;
        let known = self.sans.iter().position(|san| san.params() == params);
        let at = known.unwrap_or_else(|| {
            self.sans.push(San::new(params));
            self.sans.len() - 1
        });
        Some(&mut self.sans[at])
    }
}

fn unlink(path: PathBuf) -> io::Result<()> {
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => cachedev::sync_directory(&path),
    }
}

/// A server tells no times: they are always zero, as those of a device.
pub fn stat_of_export(size_bytes: u64) -> Stat {
    Stat {
        size_bytes,
        mtime_ns: 0,
        now_ns: crate::target::wall_clock_ns(),
        print: None,
        image: None,
        named: engine::image::Named::Unknown,
    }
}

/// What a side file that does not exist reads as; an error for a device that must exist.
fn missing(device: Device) -> Result<(), IoError> {
    match device {
        Device::Ledger(_) | Device::Journal(_) => Ok(()),
        Device::Cache
        | Device::Origin(_)
        | Device::Base(..)
        | Device::Former(_)
        | Device::Peer(..) => Err(IoError::Failed),
    }
}

/// How many of so many requests one thread sends, one after the other.
fn per_thread(requests: usize) -> usize {
    requests.div_ceil(THREADS).max(PER_THREAD_MIN)
}

/// The parts at once, each on a thread of its own; a single part on this one.
fn side_by_side<P: Send>(
    mut parts: impl ExactSizeIterator<Item = P>,
    part_done: impl Fn(P) -> Result<(), IoError> + Sync,
) -> Result<(), IoError> {
    if parts.len() <= 1 {
        return parts.next().map_or(Ok(()), part_done);
    }
    let done = &part_done;
    std::thread::scope(|scope| {
        let workers: Vec<_> = parts.map(|part| scope.spawn(move || done(part))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .expect("a panic ends the process, it is not caught")
        })
    })
}

impl Media for Files {
    fn read(&mut self, device: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        marks::enter(Phase::Recovery);
        marks::middle(Phase::Recovery);
        if let Some(client) = self.client(device) {
            let result = client.read(offset, bytes);
            marks::leave(Phase::Recovery);
            return result;
        }
        let result = match self.target(device) {
            Some(target) => target.read(offset, bytes),
            None => {
                bytes.fill(0);
                missing(device)
            }
        };
        marks::leave(Phase::Recovery);
        result
    }

    fn read_many(&mut self, device: Device, reads: &mut [(u64, &mut [u8])]) -> Result<(), IoError> {
        if self.client(device).is_some() {
            let mut reads = reads.iter_mut();
            return reads.try_for_each(|(offset, bytes)| self.read(device, *offset, bytes));
        }
        let Some(target) = self.target(device) else {
            reads.iter_mut().for_each(|(_, bytes)| bytes.fill(0));
            return missing(device);
        };
        marks::enter(Phase::Recovery);
        marks::middle(Phase::Recovery);
        let per_thread = per_thread(reads.len());
        let result = side_by_side(reads.chunks_mut(per_thread), |part| {
            part.iter_mut()
                .try_for_each(|(offset, bytes)| target.read(*offset, bytes))
        });
        marks::leave(Phase::Recovery);
        result
    }

    fn write(&mut self, device: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        marks::enter(Phase::Recovery);
        if let Some(client) = self.client(device) {
            marks::middle(Phase::Recovery);
            let result = client.write(offset, bytes);
            marks::leave(Phase::Recovery);
            return result;
        }
        let target = self.ensure(device)?;
        // A driver may kill us in the middle: then a part of the blocks is written.
        let half = match marks::on() {
            true => bytes.len() / 2 / BLOCK_BYTES as usize * BLOCK_BYTES as usize,
            false => 0,
        };
        let result = target.write(offset, &bytes[..half]).and_then(|()| {
            marks::middle(Phase::Recovery);
            target.write(offset + half as u64, &bytes[half..])
        });
        marks::leave(Phase::Recovery);
        result
    }

    fn write_many(&mut self, device: Device, writes: &[(u64, &[u8])]) -> Result<(), IoError> {
        marks::enter(Phase::Recovery);
        // A driver may kill us in the middle: then a part of them is written.
        let half = if marks::on() { writes.len() / 2 } else { 0 };
        let (before, after) = writes.split_at(half);
        let result = self.write_side_by_side(device, before).and_then(|()| {
            marks::middle(Phase::Recovery);
            self.write_side_by_side(device, after)
        });
        marks::leave(Phase::Recovery);
        result
    }

    fn zero(&mut self, device: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        match self.client(device) {
            Some(client) => client.zero(offset, bytes, true),
            None => self.ensure(device)?.zero(offset, bytes, true).map(drop),
        }
    }

    fn sync(&mut self, device: Device) -> Result<(), IoError> {
        marks::enter(Phase::Recovery);
        marks::middle(Phase::Recovery);
        if let Some(client) = self.client(device) {
            let result = client.sync();
            marks::leave(Phase::Recovery);
            return result;
        }
        let result = match self.target(device) {
            Some(_) if crate::drill::leaves_out_sync(device) => Ok(()),
            Some(target) => target.sync(),
            None => missing(device),
        };
        marks::leave(Phase::Recovery);
        result
    }

    fn stat(&mut self, device: Device) -> Result<Stat, IoError> {
        if let Some(client) = self.client(device) {
            return Ok(stat_of_export(client.export().size_bytes));
        }
        if let Device::Origin(volume) = device
            && let Some(stat) = self.volume(volume).and_then(OpenVolume::stat)
        {
            return stat;
        }
        match self.target(device) {
            Some(target) => target.stat(),
            None => missing(device).map(|()| Stat {
                size_bytes: 0,
                mtime_ns: 0,
                now_ns: crate::target::wall_clock_ns(),
                print: None,
                image: None,
                named: engine::image::Named::Unknown,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Format;
    use crate::origin::file::{Access, Request, open};

    const VOLUME: VolumeId = VolumeId(3);

    fn volume(dir: &tempfile::TempDir, create: bool) -> Files {
        let path = dir.path().join("disk.img");
        if !path.exists() {
            let file = std::fs::File::create(&path).expect("made");
            file.set_len(32 << 20).expect("sized");
        }
        let request = Request {
            path,
            access: Access::Write,
            format: Format::Auto,
            allow: Vec::new(),
            journal_place: None,
            ledger_place: None,
            quiet: std::time::Duration::ZERO,
            create,
            keeps_end: false,
            epoch: None,
        };
        let mut files = Files::without_cache();
        let open = open(&request, &mut Patience::none()).expect("opened");
        files.insert_volume(VOLUME, open);
        files
    }

    #[test]
    fn a_missing_ledger_reads_as_empty_and_is_made_by_the_first_write() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = volume(&dir, false);
        let ledger = Device::Ledger(VOLUME);
        let mut bytes = [1u8; 600];
        files.read(ledger, 0, &mut bytes).expect("empty");
        assert_eq!(bytes, [0; 600]);
        assert_eq!(files.stat(ledger).expect("empty").size_bytes, 0);
        assert!(!dir.path().join("disk.img.tenuto").exists());
        files.write(ledger, 0, &[5; 600]).expect("made");
        files.read(ledger, 0, &mut bytes).expect("read");
        assert_eq!(bytes, [5; 600]);
        files
            .write(Device::Journal(VOLUME), 4096, &[6; 4096])
            .expect("made");
        files.remove(Device::Journal(VOLUME)).expect("cut");
        assert_eq!(
            files
                .stat(Device::Journal(VOLUME))
                .expect("there")
                .size_bytes,
            0
        );
        files.remove(ledger).expect("removed");
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("there").collect();
        assert_eq!(left.len(), 1, "only the image is left");
        assert!(files.target(ledger).is_none());
        assert_eq!(
            files.read(Device::Cache, 0, &mut bytes),
            Err(IoError::Failed)
        );
    }

    #[test]
    fn many_reads_find_their_own_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = volume(&dir, false);
        let origin = Device::Origin(VOLUME);
        let pattern: Vec<u8> = (0..32u32 << 20).map(|at| (at >> 12) as u8).collect();
        files.write(origin, 0, &pattern).expect("written");
        for count in [1usize, 3, 4096] {
            let mut memory = vec![vec![0u8; 512]; count];
            let offsets = (0..count as u64).map(|n| n * 2731 % 8192 * 4096);
            let mut reads: Vec<(u64, &mut [u8])> = offsets
                .zip(memory.iter_mut().map(Vec::as_mut_slice))
                .collect();
            files.read_many(origin, &mut reads).expect("read");
            for (offset, bytes) in &reads {
                assert!(bytes.iter().all(|&byte| byte == (offset >> 12) as u8));
            }
        }
    }

    /// Also of many that share a block of the device, which is read, changed and written.
    #[test]
    fn many_writes_find_their_own_places() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = volume(&dir, false);
        let origin = Device::Origin(VOLUME);
        for (count, bytes, apart) in [
            (1, 512, 512),
            (3, 4096, 8192),
            (4096, 512, 1024),
            (157 * THREADS, 100, 100),
        ] {
            let memory: Vec<_> = (0..count).map(|n| vec![n as u8 | 1; bytes]).collect();
            // Neighbours go to different threads, which reach them at the same time.
            let per_thread = per_thread(count);
            let threads = count.div_ceil(per_thread);
            let place = |n| n % per_thread * threads + n / per_thread;
            let offsets = (0..count).map(|n| place(n) as u64 * apart);
            let writes: Vec<_> = offsets.zip(memory.iter().map(Vec::as_slice)).collect();
            files.write(origin, 0, &vec![0; 8 << 20]).expect("cleared");
            files.write_many(origin, &writes).expect("written");
            let mut found = vec![0; 8 << 20];
            files.read(origin, 0, &mut found).expect("read");
            for (at, wanted) in writes {
                let (own, behind) = found[at as usize..][..apart as usize].split_at(bytes);
                assert_eq!(
                    (own, behind),
                    (wanted, &vec![0; apart as usize - bytes][..]),
                    "at {at}"
                );
            }
        }
    }
}
