//! The power-loss drill: the real binary over disks that forget what was not synced.
//!
//! The cache lies on one such disk, the images with their ledgers in a file system on another, a
//! journal on a third. In each round all lose power under load at once, the daemon dies, the stage
//! is gone; then the disks come back with what was synced and some of the rest, torn, and
//! everything flushed must be there, as a prefix. Two more tests take a sync out of the daemon and
//! must see the drill fail: that is what shows that it can.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use workload::check::{Crash, Promise};

use crate::common::disk::{Device, Disk, FileSystem, unmount};
use crate::common::load::{Load, Mix};
use crate::common::nbd;
use crate::common::{Rig, SetWhenDropped, copy_with_neighbours, count, may_mount, seed};
use workload::rng::Rng;

const CACHE_BYTES: usize = 128 << 20;
const ORIGIN_BYTES: usize = 160 << 20;
const JOURNAL_BYTES: usize = 64 << 20;
const VOLUME_BYTES: u64 = 16 << 20;
/// Rounds in which a daemon without a sync must have lost something.
const ROUNDS_TO_SEE_IT: u64 = 40;

const VOLUMES: [(&str, &str, &str, Promise); 3] = [
    (
        "atomic",
        "write-back",
        "destage = \"atomic\"\ndestage-after = \"1s\"",
        Promise::Prefix,
    ),
    (
        "in-place",
        "write-back",
        "destage = \"in-place\"\ndestage-after = \"1s\"",
        Promise::Prefix,
    ),
    ("uncached", "uncached", "", Promise::Sectors),
];

struct Drill {
    rig: Rig,
    cache: Disk,
    origin: Disk,
    journal: Disk,
    loads: Vec<Load>,
    random: Rng,
    lost_sectors: u64,
}

/// The cache as a block device, which may have another number each time.
fn on_device(rig: &mut Rig, cache: &Disk) -> Device {
    let device = Device::new(cache, &rig.dir.join("cache"));
    let sizes = "ram = \"8MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"";
    rig.cache(device.path(), "128MiB", sizes);
    device
}

/// The images and, on a disk of its own, the journal of one of them. On one disk the sync of a
/// ledger would cover a journal that nobody synced; on an NFS server it does not.
struct Origins {
    images: FileSystem,
    bound: PathBuf,
    _journal: FileSystem,
}

impl Origins {
    fn mount(rig: &Rig, images: &Disk, journal: &Disk) -> Origins {
        let images = FileSystem::mount(images, &rig.dir.join("origin"));
        let journal = FileSystem::mount(journal, &rig.dir.join("journal"));
        let bound = images.path().join("atomic.img.tenuto-journal");
        let file = journal.path().join("journal");
        for place in [&bound, &file] {
            std::fs::File::options()
                .create(true)
                .append(true)
                .open(place)
                .and_then(|file| file.sync_all())
                .expect("a journal to mount over");
        }
        let status = Command::new("mount")
            .arg("--bind")
            .args([&file, &bound])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "mount --bind");
        Origins {
            images,
            bound,
            _journal: journal,
        }
    }
}

impl Drop for Origins {
    fn drop(&mut self) {
        // Before the file systems on both sides of it.
        unmount(&self.bound);
    }
}

impl Drill {
    fn new(seed: u64) -> Drill {
        let mut rig = Rig::new();
        let (cache, origin) = (Disk::new(CACHE_BYTES), Disk::new(ORIGIN_BYTES));
        let journal = Disk::new(JOURNAL_BYTES);
        let device = on_device(&mut rig, &cache);
        let mut loads = Vec::new();
        FileSystem::make(&origin, &rig.dir.join("origin"));
        FileSystem::make(&journal, &rig.dir.join("journal"));
        let images = FileSystem::mount(&origin, &rig.dir.join("origin"));
        for (number, (name, policy, lines, promise)) in VOLUMES.into_iter().enumerate() {
            let image = images.path().join(format!("{name}.img"));
            // Written, not sparse: the drill is about the product, not about ext4's allocation.
            let file = std::fs::File::create(&image).expect("create an image");
            std::io::Write::write_all(&mut &file, &vec![0; VOLUME_BYTES as usize])
                .and_then(|()| file.sync_all())
                .expect("write an image");
            rig.volume(name, &image, policy, lines);
            let mut load = Load::new(number as u64 + 1, VOLUME_BYTES, promise, seed);
            load.mix = Mix {
                sectors_max: 256,
                flush_percent: 8,
                ..Mix::default()
            };
            loads.push(load);
        }
        drop(images);
        rig.write_config();
        let place = device.path().to_string_lossy().into_owned();
        rig.done(&["cache", "create", &place]);
        drop(device);
        Drill {
            rig,
            cache,
            origin,
            journal,
            loads,
            random: Rng::new(seed),
            lost_sectors: 0,
        }
    }

    fn origins(&self) -> Origins {
        Origins::mount(&self.rig, &self.origin, &self.journal)
    }

    /// One life under load, a power cut, and the judgment. The error says what was broken.
    fn round(&mut self) -> Result<(), String> {
        {
            let _cache = on_device(&mut self.rig, &self.cache);
            let _origins = self.origins();
            self.live_and_lose_power()?;
        }
        let cache = self.cache.restore_power(&mut self.random);
        let origin = self.origin.restore_power(&mut self.random);
        let journal = self.journal.restore_power(&mut self.random);
        for loss in [cache, origin, journal] {
            self.lost_sectors += loss.unsynced_sectors - loss.kept_sectors;
        }
        self.rig.lose_stage();
        let _cache = on_device(&mut self.rig, &self.cache);
        let origins = self.origins();
        self.examine_origin(&origins.images.path().join("atomic.img"))?;
        self.verify()
    }

    fn live_and_lose_power(&mut self) -> Result<(), String> {
        let daemon = self
            .rig
            .try_serve()
            .map_err(|(status, log)| format!("{status}\n{log}"))?;
        let patience = 50 + self.random.below(800);
        let over = AtomicBool::new(false);
        let (rig, cache) = (&self.rig, &self.cache);
        let (origin, journal) = (&self.origin, &self.journal);
        let ends: Vec<_> = std::thread::scope(|scope| {
            let (daemon, over) = (&daemon, &over);
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    rig.tenuto(&["volume", "destage", "--all", "--wait"]);
                }
            });
            let loads: Vec<_> = self
                .loads
                .iter_mut()
                .zip(VOLUMES)
                .map(|(load, (name, ..))| {
                    let client = rig.connect(name);
                    let before = load.counts.answered;
                    scope.spawn(move || {
                        let _over = SetWhenDropped(over);
                        load.run(client, |counts| {
                            if counts.answered - before > patience {
                                // The cache first: what it acknowledges after the cut of the
                                // origin would be more than a real host could.
                                cache.cut_power();
                                origin.cut_power();
                                journal.cut_power();
                                daemon.signal(libc::SIGKILL);
                            }
                            true
                        })
                    })
                })
                .collect();
            loads
                .into_iter()
                .map(|load| load.join().expect("no panic under load"))
                .collect()
        });
        daemon.kill();
        for end in ends {
            end.map_err(|violation| format!("under load: {violation}"))?;
        }
        Ok(())
    }

    /// As if the host were gone for good: the image and what lies beside it are all there is.
    fn examine_origin(&self, image: &Path) -> Result<(), String> {
        let copy = self.rig.dir.join("copy.img");
        copy_with_neighbours(image, &copy);
        let output = self
            .rig
            .tenuto(&["origin", "replay", &copy.to_string_lossy()]);
        if !output.status.success() {
            return Err(format!(
                "replay: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        match self.loads[0].examine(&copy) {
            Ok(_) => Ok(()),
            Err(violation) => Err(format!("the origin by itself: {violation}")),
        }
    }

    fn verify(&mut self) -> Result<(), String> {
        let daemon = self
            .rig
            .try_serve()
            .map_err(|(status, log)| format!("{status}\n{log}"))?;
        for (load, (name, policy, ..)) in self.loads.iter_mut().zip(VOLUMES) {
            // A volume that is held is something broken too.
            let connected = nbd::Client::connect(&self.rig.socket(name), "");
            let mut client = connected
                .map_err(|error| format!("connect to {name}: {error}\n{}", daemon.log()))?;
            load.verify(Crash::PowerLoss, &mut client)
                .map_err(|violation| format!("volume {name}: {violation}\n{}", daemon.log()))?;
            client.disconnect();
            if policy == "write-back" {
                // The models start anew from here, and so must the images.
                self.rig.done(&["volume", "destage", name, "--wait"]);
            }
        }
        daemon.stop();
        Ok(())
    }
}

/// Fails when: the log takes its records for durable without a sync (`SkipLogSync`).
#[test]
fn everything_flushed_survives_a_power_loss_of_cache_and_origin() {
    if !may_mount("everything_flushed_survives_a_power_loss_of_cache_and_origin") {
        return;
    }
    let mut drill = Drill::new(seed(3));
    let rounds = count("TENUTO_DRILL_ROUNDS", 6);
    for round in 0..rounds {
        drill
            .round()
            .unwrap_or_else(|broken| panic!("round {round}: {broken}"));
    }
    assert!(drill.lost_sectors > 0, "the disks never lost anything");
    eprintln!(
        "{rounds} rounds, {} unsynced sectors lost",
        drill.lost_sectors
    );
}

/// The rounds until the drill sees a daemon that leaves this sync out.
fn is_seen_without(sync: &str, seed: u64) {
    let mut drill = Drill::new(seed);
    let marks = drill.rig.dir.join("marks");
    drill.rig.env("TENUTO_DRILL_SKIP_SYNC", sync);
    drill
        .rig
        .env("TENUTO_MARKS", marks.to_str().expect("a plain path"));
    for round in 0..ROUNDS_TO_SEE_IT {
        if let Err(broken) = drill.round() {
            eprintln!("seen in round {round}: {broken}");
            return;
        }
    }
    panic!("{ROUNDS_TO_SEE_IT} power losses without the {sync} sync went unnoticed");
}

#[test]
fn the_power_loss_drill_notices_a_missing_device_sync() {
    if may_mount("the_power_loss_drill_notices_a_missing_device_sync") {
        is_seen_without("cache", seed(4));
    }
}

#[test]
fn the_power_loss_drill_notices_a_missing_journal_sync() {
    if may_mount("the_power_loss_drill_notices_a_missing_journal_sync") {
        is_seen_without("journal", seed(5));
    }
}

/// Fails when: what the device has of an overlay is believed without its stage.
#[test]
fn an_ephemeral_volume_is_clean_after_a_power_loss() {
    let seed = seed(6);
    let mut rig = Rig::new();
    let image = rig.image("base.img", 8 << 20);
    rig.volume("clone", &image, "ephemeral", "");
    let mut load = Load::new(1, 8 << 20, Promise::Volatile, seed);
    let daemon = rig.serve();
    let end = load.run(rig.connect("clone"), |counts| {
        if counts.answered > 500 {
            daemon.signal(libc::SIGKILL);
        }
        true
    });
    end.expect("reads are right");
    daemon.kill();
    rig.lose_stage();
    let daemon = rig.serve();
    let mut client = rig.connect("clone");
    load.verify(Crash::PowerLoss, &mut client)
        .expect("a clean start");
    daemon.stop();
}
