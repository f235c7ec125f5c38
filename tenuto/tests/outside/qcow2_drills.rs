//! Drills on qcow2 images that are written: guests work on tops of many kinds over bases of many
//! kinds, the daemon dies with destages under way, and QEMU's own tools judge what is left.
//!
//! Always true of each top: it reads as its shadow, a raw copy to which everything that was
//! answered is written as well; of the one request that a kill left without an answer a write is
//! there as a whole or not at all, zeroes up to some point; no file below a top ever changes.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use workload::rng::Rng;
use workload::stamp;

use crate::common::load::Life;
use crate::common::marks::Marks;
use crate::common::nbd::{self, Client};
use crate::common::{Daemon, Rig, SetWhenDropped, copy_with_neighbours, count, have, run, seed};
use crate::qcow2_written::{
    APPLY, GUARD_ROUNDS_MAX, assert_same, check, convert, create, is_guarded, is_refused_by_qemu,
    shown, write,
};

const MIB: u64 = 1 << 20;
/// What one top takes before its data is brought home and looked at, without a kill.
const QUIET_REQUESTS: u64 = 40;
const READ_BYTES: u64 = MIB;

/// One request of a guest.
#[derive(Clone, Copy, Debug)]
struct Change {
    command: u16,
    sector: u64,
    sectors: u64,
    serial: u64,
}

impl Change {
    fn offset(self) -> u64 {
        self.sector * 512
    }

    /// What its range reads as afterwards.
    fn bytes(self, tag: u64) -> Vec<u8> {
        let mut bytes = vec![0; (self.sectors * 512) as usize];
        if self.command == nbd::CMD_WRITE {
            stamp::fill(&mut bytes, tag, self.sector, self.serial);
        }
        bytes
    }
}

/// A volume whose image is written, and what it must read as.
struct Top {
    name: String,
    image: PathBuf,
    shadow: fs::File,
    sectors: u64,
    tag: u64,
    serial: u64,
    random: Rng,
    /// Sent and not answered.
    open: Option<Change>,
    /// Its writes go past the log.
    direct: bool,
}

impl Top {
    /// Attaches an image as a volume of the daemon; one that is not there is made as a clone.
    fn attach(rig: &Rig, image: &Path, more: &[&str], random: &mut Rng) -> Top {
        let name = image.file_stem().unwrap().to_string_lossy().into_owned();
        let origin = format!("origin={}", image.display());
        let keys = ["policy=write-back", "export=nbd", "destage-after=1s"];
        let add = [&["volume", "add", &name, &origin], &keys[..], more].concat();
        rig.done(&add);
        let path = image.with_extension("raw");
        convert(("qcow2", image), ("raw", &path), &["-U"]);
        let shadow = fs::File::options().read(true).write(true).open(path);
        let shadow = shadow.expect("open the shadow");
        Top {
            name,
            image: image.to_owned(),
            sectors: shadow.metadata().unwrap().len() / 512,
            shadow,
            tag: 1 + random.below(1 << 20),
            serial: 0,
            random: random.fork(),
            open: None,
            direct: false,
        }
    }

    /// Sets its policy, while its daemon runs without a client.
    fn set_policy(&mut self, rig: &Rig) {
        let policies = ["write-back", "write-back", "write-through", "uncached"];
        let policy = self.random.pick(&policies);
        self.direct = policy != "write-back";
        let key = format!("policy={policy}");
        rig.done(&["volume", "set", &self.name, &key, "--wait"]);
    }

    fn shadow_path(&self) -> PathBuf {
        self.image.with_extension("raw")
    }

    /// A third of the changes go to a hot eighth; half of the zeroes are of whole clusters.
    fn next(&mut self) -> Change {
        let random = &mut self.random;
        let command = random.pick(&[
            nbd::CMD_WRITE,
            nbd::CMD_WRITE,
            nbd::CMD_WRITE,
            nbd::CMD_WRITE_ZEROES,
            nbd::CMD_TRIM,
        ]);
        let area = match random.below(3) {
            0 => self.sectors / 8,
            _ => self.sectors,
        };
        let most = random.pick(&[8, 64, 600]).min(area);
        let mut sectors = 1 + random.below(most);
        let mut sector = random.below(area - sectors + 1);
        if command != nbd::CMD_WRITE && random.below(2) == 0 {
            let unit = random.pick(&[8, 128, 256, 4096]);
            sector = sector / unit * unit;
            sectors = unit.min(self.sectors - sector);
        }
        self.serial += 1;
        Change {
            command,
            sector,
            sectors,
            serial: self.serial,
        }
    }

    /// Sends one change and waits for its answer; false when the connection is gone.
    fn step(&mut self, client: &mut Client) -> bool {
        let change = self.next();
        let bytes = change.bytes(self.tag);
        let payload = match change.command {
            nbd::CMD_WRITE => &bytes[..],
            _ => &[],
        };
        self.open = Some(change);
        let length = bytes.len() as u32;
        let sent = client.send(change.command, 0, change.offset(), length, payload);
        let Ok(answer) = sent.and_then(|_| client.answer()) else {
            return false;
        };
        assert_eq!(answer.error, 0, "{}: {change:?}", self.name);
        self.open = None;
        let kept = self.shadow.write_all_at(&bytes, change.offset());
        kept.expect("write the shadow");
        true
    }

    fn shadow_bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self.shadow.read_exact_at(&mut bytes, offset);
        read.expect("read the shadow");
        bytes
    }

    /// Puts into the shadow what is there of the change without an answer.
    fn settle(&mut self, client: &mut Client) {
        let Some(change) = self.open.take() else {
            return;
        };
        let new = change.bytes(self.tag);
        let old = self.shadow_bytes(change.offset(), new.len());
        let found = client.read(change.offset(), new.len());
        let whole = found == new || found == old;
        let up_to = |at: usize| found[..at] == new[..at] && found[at..] == old[at..];
        let sector_of_either = |at: usize| {
            let sector = &found[at..at + 512];
            sector == &old[at..at + 512] || sector == &new[at..at + 512]
        };
        let fits = match change.command {
            // As on a plain disk.
            _ if self.direct => (0..new.len()).step_by(512).all(sector_of_either),
            nbd::CMD_WRITE => whole,
            _ => whole || (0..new.len()).step_by(512).any(up_to),
        };
        assert!(fits, "{}: {change:?} is there in parts", self.name);
        let kept = self.shadow.write_all_at(&found, change.offset());
        kept.expect("write the shadow");
    }

    /// All of it, as a guest reads it.
    fn compare(&self, client: &mut Client) {
        let bytes = self.sectors * 512;
        for offset in (0..bytes).step_by(READ_BYTES as usize) {
            let length = READ_BYTES.min(bytes - offset) as usize;
            let (found, kept) = (
                client.read(offset, length),
                self.shadow_bytes(offset, length),
            );
            let other = |at: &usize| found[*at..*at + 512] != kept[*at..*at + 512];
            if let Some(at) = (0..length).step_by(512).find(other) {
                panic!(
                    "{}: sector {} is {:?} instead of {:?}",
                    self.name,
                    (offset as usize + at) / 512,
                    stamp::read(&found[at..at + 512]),
                    stamp::read(&kept[at..at + 512])
                );
            }
        }
    }
}

/// One daemon with its tops, from the first write to the removal of the volumes.
struct Drill {
    rig: Rig,
    marks: Marks,
    tops: Vec<Top>,
    below: Vec<(PathBuf, Vec<u8>)>,
    random: Rng,
    /// So many images had a guard when their daemon was dead.
    guards: u64,
}

impl Drill {
    fn new(seed: u64) -> Drill {
        let mut rig = Rig::new();
        let marks = Marks::new(&rig.dir.join("marks"));
        rig.env("TENUTO_MARKS", &shown(marks.path()));
        Drill {
            rig,
            marks,
            tops: Vec::new(),
            below: Vec::new(),
            random: Rng::new(seed),
            guards: 0,
        }
    }

    /// No byte of these changes from now on.
    fn watch(&mut self, below: &[PathBuf]) {
        let read = |path: &PathBuf| (path.clone(), fs::read(path).unwrap());
        self.below.extend(below.iter().map(read));
    }

    fn attach(&mut self, image: &Path, more: &[&str]) {
        let top = Top::attach(&self.rig, image, more, &mut self.random);
        self.tops.push(top);
    }

    fn destage(&self) {
        self.rig.done(&["volume", "destage", "--all", "--wait"]);
    }

    /// Guests work, all of it is brought home, and QEMU reads of each volume what it must.
    fn quiet(&mut self) {
        for top in &mut self.tops {
            let mut client = self.rig.connect(&top.name);
            for _ in 0..QUIET_REQUESTS {
                assert!(top.step(&mut client), "{}: no answer", top.name);
            }
            client.flush();
            client.disconnect();
        }
        self.destage();
        for top in &self.tops {
            assert!(!is_guarded(&top.image), "the guard of {}", top.name);
            // Also where one was found at the start.
            let shown = &self.rig.show(&top.name)["image"]["guard"];
            assert_eq!(*shown, false, "the guard of {}", top.name);
            let mut client = self.rig.connect(&top.name);
            top.compare(&mut client);
            client.disconnect();
        }
    }

    /// Guests work until the daemon dies: in the nth entry of a phase, or when `life` is over.
    fn die(&mut self, daemon: Daemon, mark: Option<(u64, u64)>, life: Life) {
        let answers = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        let clients: Vec<Client> = self
            .tops
            .iter()
            .map(|top| self.rig.connect(&top.name))
            .collect();
        if let Some((phase, nth)) = mark {
            self.marks.arm(phase, nth);
        }
        let (rig, begun) = (&self.rig, Instant::now());
        std::thread::scope(|scope| {
            let destages = scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    rig.tenuto(&["volume", "destage", "--all", "--wait"]);
                }
            });
            let _over = SetWhenDropped(&over);
            let guests = self.tops.iter_mut().zip(clients).map(|(top, mut client)| {
                let (answers, daemon) = (&answers, &daemon);
                scope.spawn(move || {
                    while top.step(&mut client) {
                        if life.is_over(answers.fetch_add(1, Ordering::SeqCst), begun) {
                            daemon.signal(libc::SIGKILL);
                        }
                    }
                })
            });
            for guest in guests.collect::<Vec<_>>() {
                guest.join().expect("a guest's requests are answered well");
            }
            over.store(true, Ordering::SeqCst);
            destages.join().expect("the destages");
        });
        daemon.kill();
        self.marks.disarm();
        let refused = self
            .tops
            .iter()
            .filter(|top| is_refused_by_qemu(&top.image));
        self.guards += refused.count() as u64;
    }

    /// A copy of one top is made whole by hand, as on a host that has nothing but the storage.
    fn replay_a_copy(&mut self) {
        let top = &self.tops[self.random.below(self.tops.len() as u64) as usize];
        let copy = self.rig.dir.join("copy.qcow2");
        copy_with_neighbours(&top.image, &copy);
        self.rig.done(&["origin", "replay", &shown(&copy)]);
        if top.direct {
            // A volume frees what leaked when it opens the image, and so does QEMU when it is told.
            let repair = ["check", "-q", "-r", "leaks", "-f", "qcow2", &shown(&copy)];
            run("qemu-img", &repair);
        }
        check(&copy);
    }

    /// What every guest was told is there.
    fn is_there(&mut self) {
        for top in &mut self.tops {
            let mut client = self.rig.connect(&top.name);
            top.settle(&mut client);
            top.compare(&mut client);
            client.disconnect();
        }
    }

    /// Brings all home and stops; QEMU finds nothing wrong, and nothing of the product is left
    /// beside an image when its volume is gone.
    fn end(&mut self, daemon: Daemon) {
        self.destage();
        daemon.stop();
        for top in &self.tops {
            check(&top.image);
            assert_same(("qcow2", &top.image), ("raw", &top.shadow_path()));
            assert!(!is_guarded(&top.image), "the guard of {}", top.name);
        }
        for (path, bytes) in &self.below {
            assert!(fs::read(path).unwrap() == *bytes, "{path:?} was written");
        }
        let daemon = self.rig.serve();
        for top in &self.tops {
            self.rig.done(&["volume", "rm", &top.name]);
            for ending in ["tenuto", "tenuto-journal"] {
                let beside = format!("{}.{ending}", top.image.display());
                assert!(!Path::new(&beside).exists(), "{beside} is left");
            }
        }
        daemon.stop();
    }

    fn run(&mut self, mut daemon: Daemon) {
        let rounds = count("TENUTO_DRILL_ROUNDS", 4);
        let mut round = 0;
        while round < rounds || self.guards == 0 {
            assert!(round < rounds + GUARD_ROUNDS_MAX, "no kill met a guard");
            for top in &mut self.tops {
                top.set_policy(&self.rig);
            }
            self.quiet();
            // In a destage, in its journal, while that is applied, or at any moment.
            let mark = match (round < rounds, round % 4) {
                (true, 3) => None,
                (true, phase) => Some((3 + phase, 1 + self.random.below(24))),
                (false, _) => Some((APPLY, 1)),
            };
            let least = self.tops.len() as u64 * 8;
            let life = match round < rounds {
                true => Life::Answers(least + self.random.below(least * 5)),
                false => Life::UntilMark,
            };
            self.die(daemon, mark, life);
            self.replay_a_copy();
            daemon = self.rig.serve();
            self.is_there();
            round += 1;
        }
        eprintln!("{} images had a guard after {round} kills", self.guards);
        self.end(daemon);
    }
}

/// Fails when: clusters of some size, of a snapshot or packed ones are changed in place or counted
/// wrong after a kill, or a guard is shown that is not there.
#[test]
fn tops_of_each_kind_are_whole_for_qemu_after_kills_with_destages_under_way() {
    let test = "tops_of_each_kind_are_whole_for_qemu_after_kills_with_destages_under_way";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut drill = Drill::new(seed(110));
    let dir = drill.rig.dir.clone();
    let base = create(&dir, "base.qcow2", &["12M"]);
    let data = ["write -P 1 0 3M", "write -z 6M 1M", "write -P 3 9M 4k"];
    write(&base, "qcow2", &data);
    drill.watch(std::slice::from_ref(&base));
    let daemon = drill.rig.serve();
    drill.attach(&dir.join("clone.qcow2"), &["--clone-of", &shown(&base)]);
    for (name, options) in [
        ("plain", "cluster_size=64k"),
        ("small", "cluster_size=4k"),
        ("large", "cluster_size=2M"),
        ("narrow", "refcount_bits=1"),
        ("wide", "refcount_bits=64"),
    ] {
        let below = ["-o", options, "-b", "base.qcow2", "-F", "qcow2", "12M"];
        let image = create(&dir, &format!("{name}.qcow2"), &below);
        drill.attach(&image, &[]);
    }
    let below = ["-b", "base.qcow2", "-F", "qcow2", "12M"];
    let kept = create(&dir, "kept.qcow2", &below);
    write(&kept, "qcow2", &["write -P 4 1M 5M", "write -P 5 8M 2M"]);
    let before = dir.join("before.raw");
    convert(("qcow2", &kept), ("raw", &before), &[]);
    run("qemu-img", &["snapshot", "-c", "before", &shown(&kept)]);
    let packed = dir.join("packed.qcow2");
    let on_base = ["-c", "-B", "base.qcow2", "-F", "qcow2"];
    convert(("qcow2", &kept), ("qcow2", &packed), &on_base);
    drill.attach(&kept, &[]);
    drill.attach(&packed, &[]);
    drill.run(daemon);
    run("qemu-img", &["snapshot", "-a", "before", &shown(&kept)]);
    assert_same(("qcow2", &kept), ("raw", &before));
}

/// A base of each kind; with each the name of its format.
fn bases(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    let data = ["write -P 1 0 3M", "write -z 4M 1M", "write -P 3 5M 4k"];
    let plain = create(dir, "whole.qcow2", &["12M"]);
    write(&plain, "qcow2", &data);
    let raw = dir.join("unpacked.raw");
    convert(("qcow2", &plain), ("raw", &raw), &[]);
    let packed = dir.join("packed.qcow2");
    convert(("qcow2", &plain), ("qcow2", &packed), &["-c"]);
    // It ends within a cluster, and within a block of the cache.
    let shorter = create(dir, "shorter.qcow2", &["6292992"]);
    write(
        &shorter,
        "qcow2",
        &[&data[..], &["write -P 6 6M 1536"]].concat(),
    );
    let longer = create(dir, "longer.qcow2", &["20M"]);
    write(&longer, "qcow2", &["write -P 7 2M 16M"]);
    let mut below = "whole.qcow2".to_owned();
    for depth in 0..7 {
        let name = format!("deep{depth}.qcow2");
        let options = ["-b", &below, "-F", "qcow2", "12M"];
        let at = format!("write -P {} {depth}M 12k", 0x40 + depth);
        write(&create(dir, &name, &options), "qcow2", &[&at]);
        below = name;
    }
    vec![
        (plain, "qcow2"),
        (raw, "raw"),
        (packed, "qcow2"),
        (shorter, "qcow2"),
        (longer, "qcow2"),
        (dir.join(below), "qcow2"),
    ]
}

/// Fails when: the rest of a cluster is taken from the wrong place of some kind of base, or from
/// behind its end.
#[test]
fn tops_over_each_kind_of_base_are_whole_for_qemu_after_kills_with_destages_under_way() {
    let test = "tops_over_each_kind_of_base_are_whole_for_qemu_after_kills_with_destages_under_way";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut drill = Drill::new(seed(112));
    let dir = drill.rig.dir.clone();
    let bases = bases(&dir);
    let files: Vec<PathBuf> = bases.iter().map(|(path, _)| path.clone()).collect();
    drill.watch(&files);
    let daemon = drill.rig.serve();
    for (number, (base, format)) in bases.iter().enumerate() {
        let image = dir.join(format!("top{number}.qcow2"));
        let kind = drill.random.pick(&[
            "--clone-of",
            "cluster_size=64k",
            "cluster_size=4k",
            "cluster_size=2M",
            "extended_l2=on,cluster_size=16k",
        ]);
        eprintln!("{kind} over {base:?}");
        if kind == "--clone-of" {
            drill.attach(&image, &[kind, &shown(base)]);
            continue;
        }
        let name = image.file_name().unwrap().to_string_lossy();
        let below = ["-o", kind, "-b", &shown(base), "-F", format, "12M"];
        create(&dir, &name, &below);
        drill.attach(&image, &[]);
    }
    drill.run(daemon);
}

/// Fails when: what one clone has read of the image below is asked for again by another one, or by
/// an ephemeral volume on that image.
#[test]
fn what_a_clone_has_read_of_its_image_other_clones_and_volumes_on_it_find() {
    let test = "what_a_clone_has_read_of_its_image_other_clones_and_volumes_on_it_find";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let base = create(&rig.dir, "base.qcow2", &["48M"]);
    write(&base, "qcow2", &["write -P 5 0 20M"]);
    let cache = rig.cache_path();
    rig.cache(&cache, "256MiB", "ram = \"64MiB\"");
    let daemon = rig.serve();
    let add = |volume: &str, image: &Path, keys: &[&str]| {
        let origin = format!("origin={}", image.display());
        let add = ["volume", "add", volume, &origin, "export=nbd"];
        rig.done(&[&add[..], keys].concat());
    };
    let below = shown(&base);
    for volume in ["one", "two"] {
        let image = rig.dir.join(format!("{volume}.qcow2"));
        let keys = ["policy=write-back", "--clone-of", &below];
        add(volume, &image, &keys);
    }
    add("base", &base, &["policy=ephemeral"]);
    // Overlays of its own, which are only read.
    for (volume, key) in [("three", "policy=ephemeral"), ("four", "read-only=true")] {
        let below = ["-b", "base.qcow2", "-F", "qcow2", "48M"];
        let image = create(&rig.dir, &format!("{volume}.qcow2"), &below);
        add(volume, &image, &[key]);
    }
    let read = |volume: &str| {
        let mut client = rig.connect(volume);
        for offset in (0..20 * MIB).step_by(MIB as usize) {
            assert!(client.read(offset, MIB as usize) == vec![5; MIB as usize]);
        }
        client.disconnect();
        let shown = rig.show(volume);
        let [misses, bytes] = [&shown["reads"]["origin"], &shown["origin"]["read_bytes"]]
            .map(|it| it.as_u64().unwrap());
        eprintln!("{volume}: {misses} misses, {bytes} bytes of the origin");
        (misses, bytes)
    };
    let (misses, bytes) = read("one");
    assert!(misses > 0 && bytes >= 20 * MIB);
    // Of its own file it reads the tables.
    let (misses, bytes) = read("two");
    assert!(misses == 0 && bytes < MIB);
    assert_eq!(read("base"), (0, 0));
    for volume in ["three", "four"] {
        let (misses, bytes) = read(volume);
        assert!(misses == 0 && bytes < MIB, "{volume}");
    }
    daemon.stop();
}
