//! A cache that gets another size, cut short at every step: torn at 512 bytes, unsynced writes
//! lost or garbage.

use engine::engine::{CacheInfo, OpenError, format_cache, geometry_for, inspect, resize_cache};
use engine::event::{Device, IoError, Stat};
use engine::format::checkpoint::{Checkpoint, VolumeRecord};
use engine::format::superblock::CHECKPOINT_AT;
use engine::media::Media;
use engine::types::{Generation, Policy, Serial, Uuid, VolumeId};
use std::collections::BTreeMap;
use workload::rng::Rng;

const SECTOR: usize = 512;
/// The run before.
const INCARNATION: u64 = 4;

/// A device that keeps what was synced, and takes so many calls.
#[derive(Clone, Default)]
struct Disk {
    sectors: BTreeMap<u64, [u8; SECTOR]>,
    unsynced: Vec<(u64, [u8; SECTOR])>,
    calls_left: usize,
}

impl Disk {
    fn call(&mut self) -> Result<(), IoError> {
        self.calls_left = self.calls_left.checked_sub(1).ok_or(IoError::Failed)?;
        Ok(())
    }

    /// What a power loss leaves: of each unsynced sector the new, the old, or garbage.
    fn lose_power(&mut self, mut chance: impl FnMut() -> u64) {
        for (at, bytes) in std::mem::take(&mut self.unsynced) {
            match chance() % 3 {
                0 => _ = self.sectors.insert(at, bytes),
                1 => _ = self.sectors.insert(at, [0xaa; SECTOR]),
                _ => {}
            }
        }
        self.calls_left = usize::MAX;
    }
}

impl Media for Disk {
    fn read(&mut self, _: Device, offset: u64, bytes: &mut [u8]) -> Result<(), IoError> {
        assert!(offset.is_multiple_of(512) && bytes.len().is_multiple_of(SECTOR));
        for (n, part) in bytes.chunks_exact_mut(SECTOR).enumerate() {
            let at = offset / 512 + n as u64;
            let newest = self.unsynced.iter().rev().find(|(sector, _)| *sector == at);
            let found = newest.map(|it| &it.1).or_else(|| self.sectors.get(&at));
            part.copy_from_slice(found.unwrap_or(&[0; SECTOR]));
        }
        Ok(())
    }

    fn write(&mut self, _: Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let parts = bytes.chunks_exact(SECTOR).enumerate();
        let parts =
            parts.map(|(n, part)| (offset / 512 + n as u64, part.try_into().expect("a sector")));
        self.unsynced.extend(parts);
        self.call()
    }

    fn zero(&mut self, _: Device, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.write(Device::Cache, offset, &vec![0; bytes as usize])
    }

    fn sync(&mut self, _: Device) -> Result<(), IoError> {
        self.call()?;
        self.sectors.extend(std::mem::take(&mut self.unsynced));
        Ok(())
    }

    fn stat(&mut self, _: Device) -> Result<Stat, IoError> {
        Err(IoError::Failed)
    }
}

fn volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(3),
        uuid: Uuid([9; 16]),
        generation: Generation(7),
        base_generation: Generation(2),
        policy: Policy::WriteBack,
        destage_in_place: false,
        journal_possible: true,
        ended: false,
        staged: false,
        stage_lost: false,
        damaged: false,
        first_serial: Serial(100),
        serial_next: Serial(120),
        destaged: Serial(119),
        merged_upto: Serial(0),
        standing: Default::default(),
        size_bytes: 1 << 30,
        name: "disk".into(),
        origin: "/images/disk.raw".into(),
        under: Default::default(),
    }
}

/// A cache of so many MiB whose checkpoint names a volume, with this sequence.
fn cache(mib: u64, sequence: u64) -> Disk {
    let mut disk = Disk {
        calls_left: usize::MAX,
        ..Disk::default()
    };
    let geometry = geometry_for(mib << 20).expect("large enough");
    format_cache(&mut disk, Uuid([5; 16]), geometry).expect("made");
    let superblock = inspect(&mut disk).expect("whole").superblock;
    let checkpoint = Checkpoint {
        cache: superblock.cache,
        boot: Uuid([6; 16]),
        sequence,
        incarnation: INCARNATION,
        stream_seq_next: 1000,
        segment_seq_next: 50,
        generation_next: 8,
        unwritten_from: 3,
        segments_total: superblock.geometry.segments,
        volumes: vec![volume()],
        segments: Vec::new(),
    };
    let at = CHECKPOINT_AT + sequence % 2 * superblock.checkpoint_slot_bytes;
    disk.write(Device::Cache, at, &checkpoint.encode())
        .expect("written");
    disk.sync(Device::Cache).expect("synced");
    disk
}

/// What is there, with its volume.
fn look(disk: &mut Disk) -> Result<CacheInfo, OpenError> {
    let info = inspect(disk)?;
    assert_eq!(info.damage, Vec::<String>::new());
    let volumes: Vec<_> = info.volumes.iter().map(|(it, ..)| it).collect();
    assert_eq!(volumes, [&volume()]);
    Ok(info)
}

#[test]
fn a_cache_that_gets_another_size_keeps_its_volumes_at_every_power_loss() {
    let mut torn = 0;
    for (old, new) in [
        (192, 256),
        (256, 8192),
        (8192, 256),
        (1024, 1023),
        (256, 256),
    ] {
        let geometry = geometry_for(new << 20).expect("large enough");
        for sequence in [10, 11] {
            let whole = cache(old, sequence);
            for calls in 0.. {
                let mut ended = false;
                for seed in 1..8 {
                    let mut disk = whole.clone();
                    disk.calls_left = calls;
                    ended = resize_cache(&mut disk, geometry).is_ok();
                    let mut rng = Rng::new(seed + calls as u64 * 8);
                    torn += u64::from(!disk.unsynced.is_empty());
                    disk.lose_power(|| rng.word());
                    let found = look(&mut disk).unwrap_or_else(|error| {
                        panic!("{old} to {new} MiB, sequence {sequence}, {calls} calls: {error}")
                    });
                    assert!(found.checkpoint_sequence >= sequence);
                    if ended {
                        assert_eq!(found.superblock.geometry, geometry);
                        // Of what has these numbers there is another one, and a stage of it.
                        assert!(found.checkpoint_sequence > sequence);
                        assert!(found.incarnation > INCARNATION);
                    }
                    // The same order again brings it to its end, from wherever it stands.
                    resize_cache(&mut disk, geometry).expect("a good device");
                    let found = look(&mut disk).expect("whole");
                    assert_eq!(found.superblock.geometry, geometry);
                }
                if ended {
                    break;
                }
            }
        }
    }
    assert!(torn > 100, "power was lost with writes under way: {torn}");
}
