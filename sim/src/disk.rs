//! One device or file that loses, tears and reorders what was not synced.
//!
//! Owns two images, what a read sees and what surely survives, and the changes between them.
//! Always true: a sector is old or new, never a mixture; a successful sync makes durable what had
//! completed before it was issued, and nothing resurrects an older value of a durable sector.
//! Deliberately absent: time and the choice of faults; the world decides both.
//!
//! ```text
//! start -> flying --finish--> completed --sync--> durable
//!             \                  \--failed sync--> durable | completed | doomed | dropped
//!              \--power loss: each sector lands or not, as do completed ones
//! ```

use crate::rng::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const SECTOR_BYTES: u64 = 512;

/// What a request does to the bytes.
#[derive(Clone, Debug)]
pub enum Change {
    Bytes {
        offset: u64,
        bytes: Vec<u8>,
    },
    Zero {
        offset: u64,
        bytes: u64,
    },
    /// Cuts the file to nothing.
    Cut,
    /// Gives the file so many bytes, durably: all of that happens, or nothing.
    Size(u64),
}

impl Change {
    fn range(&self) -> (u64, u64) {
        match self {
            Change::Bytes { offset, bytes } => (*offset, offset + bytes.len() as u64),
            Change::Zero { offset, bytes } => (*offset, offset + bytes),
            Change::Cut => (0, u64::MAX),
            Change::Size(bytes) => (*bytes, u64::MAX),
        }
    }

    fn sectors(&self) -> usize {
        let (first, end) = self.range();
        if end == u64::MAX {
            1
        } else {
            (end - first).div_ceil(SECTOR_BYTES) as usize
        }
    }

    /// Puts garbage in the place of one sector that lands. False if there is none to be spoiled.
    fn spoil(&mut self, live: &[bool], rng: &mut Rng) -> bool {
        let Change::Bytes { bytes, .. } = self else {
            return false;
        };
        let landing = live.iter().enumerate().filter(|(_, live)| **live);
        let landing: Vec<usize> = landing.map(|(part, _)| part).collect();
        let first = rng.pick(&landing) * SECTOR_BYTES as usize;
        let end = bytes.len().min(first + SECTOR_BYTES as usize);
        for byte in &mut bytes[first..end] {
            *byte = rng.word() as u8;
        }
        true
    }

    /// Applies the parts that `live` names; an empty list names all of them.
    fn apply(&self, image: &mut Image, live: &[bool]) {
        let (first, end) = self.range();
        if let Change::Cut = self {
            if live.first().copied().unwrap_or(true) {
                image.bytes = Arc::default();
            }
            return;
        }
        if let Change::Size(bytes) = self {
            if live.first().copied().unwrap_or(true) {
                Arc::make_mut(&mut image.bytes).resize(*bytes as usize, 0);
            }
            return;
        }
        // What is not there does not make the file longer either.
        let last = live.iter().rposition(|&live| live);
        if !live.is_empty() && last.is_none() {
            return;
        }
        let most = last.map_or(end, |last| first + (last as u64 + 1) * SECTOR_BYTES);
        let image = Arc::make_mut(&mut image.bytes);
        image.resize(image.len().max(end.min(most) as usize), 0);
        let (parts, step) = match live {
            [] => (1, end - first),
            _ => (self.sectors(), SECTOR_BYTES),
        };
        for part in 0..parts {
            if !live.get(part).copied().unwrap_or(true) {
                continue;
            }
            let from = first + part as u64 * step;
            let to = &mut image[from as usize..end.min(from + step) as usize];
            match self {
                Change::Bytes { bytes, .. } => {
                    to.copy_from_slice(&bytes[(from - first) as usize..][..to.len()]);
                }
                _ => to.fill(0),
            }
        }
    }
}

/// Contents and attributes; everything beyond the end reads as zeroes.
#[derive(Clone, Debug, Default)]
struct Image {
    /// Shared until one of those that look at it changes it: oracles ask copies what would be left.
    bytes: Arc<Vec<u8>>,
    mtime: u64,
}

impl Image {
    fn read(&self, offset: u64, to: &mut [u8]) {
        let first = (offset as usize).min(self.bytes.len());
        let have = &self.bytes[first..(first + to.len()).min(self.bytes.len())];
        to[..have.len()].copy_from_slice(have);
        to[have.len()..].fill(0);
    }
}

/// A change that is not durable.
#[derive(Clone, Debug)]
struct Open {
    change: Change,
    /// Position in the order of completion; 0 while in flight.
    order: u64,
    /// Which sectors it carries; empty = all.
    live: Vec<bool>,
    /// A failed sync has taken its chance: no later sync makes it durable.
    doomed: bool,
    time: u64,
}

impl Open {
    fn lives(&self) -> bool {
        self.live.is_empty() || self.live.iter().any(|&live| live)
    }

    /// Something newer is durable: where it is, the change may not come back.
    fn overtaken(&mut self, by: &Open) {
        let ((mine, my_end), (first, end)) = (self.change.range(), by.change.range());
        let cut = matches!(self.change, Change::Cut | Change::Size(_)) && end != u64::MAX;
        if end <= mine || my_end <= first || cut {
            return;
        }
        self.live.resize(self.change.sectors(), true);
        for (part, live) in self.live.iter_mut().enumerate() {
            let sector = mine + part as u64 * SECTOR_BYTES;
            let apart = sector + SECTOR_BYTES <= first || end <= sector;
            let theirs = (sector.max(first) - first) / SECTOR_BYTES;
            *live &= apart || !by.live.get(theirs as usize).copied().unwrap_or(true);
        }
    }
}

/// What lands last on a file server is stamped so much later.
const SERVED_NS: u64 = 4_000_000;
/// In a thousand changes that a power loss cuts short.
const GARBAGE: u64 = 150;

/// What a power loss has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    pub lost: u64,
    pub torn: u64,
    pub garbage: u64,
}

/// How a power loss treats what is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// The device loses power as well.
    Lost,
    /// Only the host does: what completed stays, what was in flight lands or not.
    Kept,
}

/// What a failed sync may do to the changes it was to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Some are durable, the others are as before.
    None,
    /// Some are beyond the reach of later syncs, though reads still see them.
    Doomed,
    /// Some are gone.
    Dropped,
}

/// The state of completed changes at the moment a sync was issued.
#[derive(Clone, Copy, Debug)]
pub struct SyncPoint(u64);

/// A device or file.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    seen: Image,
    safe: Image,
    completed: Vec<Open>,
    flying: BTreeMap<u64, Open>,
    completions: u64,
    tickets: u64,
    /// It lies on a file server, whose times of change several hosts rely on.
    pub served: bool,
    /// A power loss leaves no garbage in its first sector, which is the only copy of what is there,
    /// nor behind its end.
    pub keeps_head: bool,
}

impl Disk {
    /// A disk with these bytes on it, all durable.
    pub fn new(bytes: Vec<u8>) -> Disk {
        let bytes = Arc::new(bytes);
        let image = Image { bytes, mtime: 0 };
        Disk {
            seen: image.clone(),
            safe: image,
            ..Disk::default()
        }
    }

    pub fn size(&self) -> u64 {
        self.seen.bytes.len() as u64
    }

    /// Whether these bytes, which nothing unsynced covers, are there and not zero.
    pub fn has(&self, offset: u64, bytes: usize) -> bool {
        let mut found = vec![0; bytes];
        self.safe.read(offset, &mut found);
        found.iter().any(|&byte| byte != 0)
    }

    pub fn mtime(&self) -> u64 {
        self.seen.mtime
    }

    /// Another program writes, durably, and leaves the time of change as it was.
    pub fn put(&mut self, offset: u64, bytes: Vec<u8>) {
        let put = Open {
            change: Change::Bytes { offset, bytes },
            order: 0,
            live: Vec::new(),
            doomed: false,
            time: 0,
        };
        put.change.apply(&mut self.seen, &[]);
        put.change.apply(&mut self.safe, &[]);
        for earlier in &mut self.completed {
            earlier.overtaken(&put);
        }
        self.completed.retain(Open::lives);
    }

    /// Another program writes all of it anew, durably.
    pub fn replace(&mut self, bytes: Vec<u8>, time: u64) {
        assert!(self.flying.is_empty(), "who writes it has it alone");
        let (bytes, mtime) = (Arc::new(bytes), time);
        self.seen = Image { bytes, mtime };
        self.safe = self.seen.clone();
        self.completed.clear();
    }

    /// Another program sets the time of change.
    pub fn touch(&mut self, time: u64) {
        self.seen.mtime = time;
        self.safe.mtime = time;
    }

    /// Reads what is visible now; of changes in flight each sector shows the old or the new.
    pub fn read(&self, offset: u64, to: &mut [u8], rng: &mut Rng) {
        self.seen.read(offset, to);
        let end = offset + to.len() as u64;
        for open in self.flying.values() {
            let (first, last) = open.change.range();
            let mut at = offset.max(first);
            while at < end.min(last) {
                let next = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
                let next = next.min(end).min(last);
                if rng.chance(500) {
                    let to = &mut to[(at - offset) as usize..(next - offset) as usize];
                    match &open.change {
                        Change::Bytes { bytes, .. } => {
                            to.copy_from_slice(&bytes[(at - first) as usize..][..to.len()]);
                        }
                        Change::Zero { .. } | Change::Cut | Change::Size(_) => to.fill(0),
                    }
                }
                at = next;
            }
        }
    }

    /// Reads what has completed, whatever is in flight.
    pub fn read_landed(&self, offset: u64, to: &mut [u8]) {
        self.seen.read(offset, to);
    }

    /// Reads what surely survives.
    pub fn read_durable(&self, offset: u64, to: &mut [u8]) {
        self.safe.read(offset, to);
    }

    /// All that has completed.
    pub fn landed(&self) -> &[u8] {
        &self.seen.bytes
    }

    /// All that surely survives.
    pub fn durable(&self) -> &[u8] {
        &self.safe.bytes
    }

    /// Takes a change under way. The ticket names it until it ends.
    pub fn start(&mut self, change: Change) -> u64 {
        self.tickets += 1;
        let open = Open {
            change,
            order: 0,
            live: Vec::new(),
            doomed: false,
            time: 0,
        };
        self.flying.insert(self.tickets, open);
        self.tickets
    }

    /// The memory of a change in flight is not what it was at the start: the device has read each
    /// sector at a time of its own.
    pub fn refresh(&mut self, ticket: u64, now: &[u8], rng: &mut Rng) {
        let open = self
            .flying
            .get_mut(&ticket)
            .expect("the change is in flight");
        if let Change::Bytes { bytes, .. } = &mut open.change {
            let parts = bytes.chunks_mut(SECTOR_BYTES as usize);
            for (old, new) in parts.zip(now.chunks(SECTOR_BYTES as usize)) {
                if rng.chance(500) {
                    old.copy_from_slice(new);
                }
            }
        }
    }

    /// The change has completed at `time`. With `failed` it has for some sectors only.
    pub fn finish(&mut self, ticket: u64, failed: bool, time: u64, rng: &mut Rng) {
        let mut open = self.flying.remove(&ticket).expect("a change ends once");
        let sizes = matches!(open.change, Change::Size(_));
        if sizes && failed {
            return;
        }
        self.completions += 1;
        let order = self.completions;
        open.order = order;
        open.time = time;
        if failed {
            open.live = (0..open.change.sectors())
                .map(|_| rng.chance(500))
                .collect();
        }
        open.change.apply(&mut self.seen, &open.live);
        // The clock may have been set back.
        self.seen.mtime = time;
        self.completed.push(open);
        if sizes {
            self.harden_where(|open| open.order == order);
        }
    }

    /// Whether changes that were made, or begun, after this point are not durable. Those that a
    /// failed sync has put beyond the reach of later ones do not count: they are made again.
    pub fn is_unsynced_since(&self, point: SyncPoint) -> bool {
        let open = |open: &Open| open.order > point.0 && !open.doomed;
        !self.flying.is_empty() || self.completed.iter().any(open)
    }

    /// Changes in flight, oldest first.
    pub fn flying(&self) -> Vec<u64> {
        self.flying.keys().copied().collect()
    }

    pub fn sync_point(&self) -> SyncPoint {
        SyncPoint(self.completions)
    }

    pub fn sync_done(&mut self, point: SyncPoint) {
        self.harden_where(|open| open.order <= point.0 && !open.doomed);
    }

    /// The sync failed: each change it was to cover is durable, as before, beyond the reach of
    /// later syncs, or gone.
    pub fn sync_failed(&mut self, point: SyncPoint, worst: Damage, rng: &mut Rng) {
        self.harden_where(|open| open.order <= point.0 && !open.doomed && rng.chance(250));
        self.completed.retain_mut(|open| {
            if open.order <= point.0 {
                open.doomed |= worst != Damage::None && rng.chance(330);
                return worst != Damage::Dropped || !rng.chance(330);
            }
            true
        });
        let mtime = self.seen.mtime;
        self.seen = self.safe.clone();
        for open in &self.completed {
            open.change.apply(&mut self.seen, &open.live);
        }
        self.seen.mtime = mtime;
    }

    /// Makes changes durable, in order of completion. What stays behind may not undo them.
    fn harden_where(&mut self, mut durable: impl FnMut(&Open) -> bool) {
        let mut behind: Vec<Open> = Vec::new();
        for open in std::mem::take(&mut self.completed) {
            if !durable(&open) {
                behind.push(open);
                continue;
            }
            open.change.apply(&mut self.safe, &open.live);
            self.safe.mtime = open.time;
            for earlier in &mut behind {
                earlier.overtaken(&open);
            }
        }
        behind.retain(Open::lives);
        self.completed = behind;
    }

    /// Decides what is left after the host, and perhaps the device, has lost power.
    /// Returns how many changes of those that were not durable are gone, and how many are there in
    /// part. `garbage`: a sector that was being written may be neither old nor new.
    pub fn power_loss(&mut self, power: Power, garbage: bool, rng: &mut Rng) -> Loss {
        let mut loss = Loss::default();
        let luck = rng.pick(&[0, 100, 500, 900, 1000]);
        let mut flying: Vec<Open> = std::mem::take(&mut self.flying).into_values().collect();
        for at in (1..flying.len()).rev() {
            flying.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let completed = std::mem::take(&mut self.completed);
        if power == Power::Kept {
            for open in &completed {
                open.change.apply(&mut self.safe, &open.live);
            }
            self.safe.mtime = self.seen.mtime;
        }
        let lost = completed.into_iter().filter(|_| power == Power::Lost);
        let mut landed_late = 0;
        for mut open in lost.chain(flying) {
            let torn = rng.chance(300);
            open.live.resize(open.change.sectors(), true);
            let before = open.live.iter().filter(|live| **live).count();
            let whole = rng.chance(luck);
            for live in &mut open.live {
                *live &= if torn { rng.chance(500) } else { whole };
            }
            let landed = open.live.iter().filter(|live| **live).count();
            landed_late += landed;
            loss.lost += u64::from(landed == 0 && before > 0);
            loss.torn += u64::from(landed > 0 && landed < before);
            // A file becomes longer only when what is there was written.
            let (first, end) = (open.change.range().0, self.safe.bytes.len() as u64);
            let kept = self.keeps_head && (first == 0 || first >= end);
            if garbage && landed > 0 && rng.chance(GARBAGE) && !kept {
                loss.garbage += u64::from(open.change.spoil(&open.live, rng));
            }
            open.change.apply(&mut self.safe, &open.live);
        }
        // The time of change is written when the file system likes, not with the bytes; by a file
        // server that goes on it is written.
        if self.served && landed_late > 0 {
            self.safe.mtime = self.seen.mtime + SERVED_NS;
        } else if rng.chance(500) || self.served {
            self.safe.mtime = self.seen.mtime;
        }
        self.seen = self.safe.clone();
        loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: &mut Disk, offset: u64, value: u8, rng: &mut Rng) {
        let ticket = disk.start(Change::Bytes {
            offset,
            bytes: vec![value; 1024],
        });
        disk.finish(ticket, false, 1, rng);
    }

    fn bytes(disk: &Disk) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        disk.read(0, &mut bytes, &mut Rng::new(0));
        bytes
    }

    #[test]
    fn synced_bytes_survive_and_others_survive_vanish_or_tear_by_sector() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![0; 4096]);
            write(&mut disk, 0, 1, &mut rng);
            let point = disk.sync_point();
            write(&mut disk, 2048, 2, &mut rng);
            disk.sync_done(point);
            disk.power_loss(Power::Lost, false, &mut rng);
            let found = bytes(&disk);
            assert_eq!(found[..1024], [1; 1024]);
            assert!(found[2048..2560].iter().all(|&byte| byte == found[2048]));
            assert!(found[2560..3072].iter().all(|&byte| byte == found[2560]));
            outcomes.insert((found[2048], found[2560]));
        }
        assert_eq!(outcomes.len(), 4, "{outcomes:?}");
    }

    #[test]
    fn a_later_sync_does_not_repair_a_failed_one() {
        let lost = (0..200).filter(|&seed| {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![0; 4096]);
            write(&mut disk, 0, 1, &mut rng);
            disk.sync_failed(disk.sync_point(), Damage::Dropped, &mut rng);
            disk.sync_done(disk.sync_point());
            disk.power_loss(Power::Lost, false, &mut rng);
            bytes(&disk)[0] == 0
        });
        assert!(lost.count() > 20);
    }

    #[test]
    fn writing_again_and_syncing_repairs_it_for_good() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![0; 4096]);
            write(&mut disk, 0, 1, &mut rng);
            write(&mut disk, 512, 2, &mut rng);
            disk.sync_failed(disk.sync_point(), Damage::Dropped, &mut rng);
            write(&mut disk, 0, 3, &mut rng);
            write(&mut disk, 1024, 4, &mut rng);
            disk.sync_done(disk.sync_point());
            disk.power_loss(Power::Lost, false, &mut rng);
            let found = bytes(&disk);
            assert_eq!(
                (found[0], found[512], found[1024], found[1536]),
                (3, 3, 4, 4)
            );
        }
    }

    #[test]
    fn a_change_that_failed_in_part_overtakes_in_part() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![0; 4096]);
            write(&mut disk, 0, 1, &mut rng);
            let ticket = disk.start(Change::Bytes {
                offset: 0,
                bytes: vec![2; 1024],
            });
            disk.finish(ticket, true, 1, &mut rng);
            let before = bytes(&disk);
            disk.sync_failed(disk.sync_point(), Damage::None, &mut rng);
            assert_eq!(bytes(&disk), before);
        }
    }

    #[test]
    fn a_device_that_keeps_its_power_loses_only_what_was_in_flight() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![0; 4096]);
            write(&mut disk, 0, 1, &mut rng);
            disk.start(Change::Zero {
                offset: 0,
                bytes: 512,
            });
            disk.power_loss(Power::Kept, false, &mut rng);
            assert!(bytes(&disk)[0] <= 1);
            assert_eq!(bytes(&disk)[512], 1);
        }
    }

    #[test]
    fn a_read_sees_completed_changes_and_of_flying_ones_old_or_new() {
        let mut rng = Rng::new(5);
        let mut disk = Disk::new(vec![0; 4096]);
        write(&mut disk, 0, 1, &mut rng);
        disk.start(Change::Bytes {
            offset: 512,
            bytes: vec![2; 512],
        });
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let mut bytes = vec![9; 1536];
            disk.read(0, &mut bytes, &mut rng);
            assert_eq!((bytes[0], bytes[1024]), (1, 0));
            seen.insert(bytes[512]);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_size_is_durable_at_once_and_what_was_behind_the_end_does_not_come_back() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(vec![1; 4096]);
            write(&mut disk, 512, 2, &mut rng);
            for bytes in [1024, 4096] {
                let ticket = disk.start(Change::Size(bytes));
                disk.finish(ticket, false, 1, &mut rng);
            }
            disk.power_loss(Power::Lost, false, &mut rng);
            assert_eq!(disk.size(), 4096);
            let found = bytes(&disk);
            assert!(found[512] == 1 || found[512] == 2);
            assert_eq!(found[1024..], [0; 3072]);
            let ticket = disk.start(Change::Size(512));
            disk.finish(ticket, true, 1, &mut rng);
            assert_eq!(disk.size(), 4096);
        }
    }

    #[test]
    fn a_file_grows_by_writes_and_is_cut_to_nothing() {
        let mut rng = Rng::new(6);
        let mut disk = Disk::default();
        write(&mut disk, 100, 1, &mut rng);
        assert_eq!(disk.size(), 1124);
        let ticket = disk.start(Change::Cut);
        disk.finish(ticket, false, 2, &mut rng);
        assert_eq!((disk.size(), disk.mtime()), (0, 2));
        assert_eq!(bytes(&disk), vec![0; 4096]);
    }
}
