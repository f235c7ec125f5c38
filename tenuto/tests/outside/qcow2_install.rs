//! A guest installs itself on a qcow2 image over a base: file system, trees of files, sums of them.
//!
//! Meanwhile its daemon is killed, and the guest sees a pause; then the host loses power, and what
//! is left of cache and image must hold everything that the guest had synced, for its file system
//! and its sums. Always true at the end: `qemu-img check` finds nothing, the image has the bytes
//! that the guest's disk had before the last destage, no file below has changed, and the guest
//! starts from the image under QEMU alone. Needs root: the disks that lose power are mounts.
//!
//! Another guest is frozen twice while it works; the frozen files have what it had synced.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use workload::rng::Rng;

use crate::common::disk::{Device, Disk as Lossy, FileSystem};
use crate::common::guest::{Machine, with_libraries};
use crate::common::vm::{Disk, Shape, Vm};
use crate::common::{Daemon, Rig, copy_with_neighbours, count, may_mount, run, seed};
use crate::qcow2_written::{assert_same, check, convert, create, shown, write};
use crate::vhost_guest::vhost;

const MIB: u64 = 1 << 20;
const CACHE_BYTES: usize = 128 << 20;
const ORIGIN_BYTES: usize = 288 << 20;
const DISK_BYTES: u64 = 128 << 20;
/// The partition with the tree to install, and the one that it is installed on.
const MEDIA: (u64, u64) = (MIB, 24 * MIB);
const ROOT: (u64, u64) = (25 * MIB, DISK_BYTES - 25 * MIB);
/// Old bytes of the base below the new file system.
const GARBAGE_BYTES: usize = 24 << 20;
const FILES: u64 = 90;
/// Between two kills the guest gets on by at most so many steps.
const STEPS: u64 = 3;

/// What the image stands on.
#[derive(Clone, Copy)]
enum Base {
    Plain,
    Packed,
    Raw,
    /// The top is file 8.
    Deep,
    /// It ends within a cluster, and within a block of the cache.
    Short,
    Long,
}

/// How the image is made.
#[derive(Clone, Copy)]
enum Top {
    /// By the product, with these words.
    Clone(&'static [&'static str]),
    /// By QEMU, with these options.
    Made(&'static str),
}

const KINDS: [(&str, Base, Top); 9] = [
    ("extended L2", Base::Plain, Top::Clone(&[])),
    ("64 KiB", Base::Plain, Top::Clone(&["--plain"])),
    ("4 KiB clusters", Base::Plain, Top::Made("cluster_size=4k")),
    ("2 MiB clusters", Base::Plain, Top::Made("cluster_size=2M")),
    ("compressed base", Base::Packed, Top::Clone(&[])),
    ("raw base", Base::Raw, Top::Clone(&["--plain"])),
    ("chain of 8", Base::Deep, Top::Clone(&[])),
    ("short backing", Base::Short, Top::Made("cluster_size=64k")),
    ("long backing", Base::Long, Top::Made("cluster_size=64k")),
];

/// Words of the guest's shell. `step` counts on; what is older than three trees is removed.
const TOOLS: &str = r#"
say() { echo "guest: $*" >/dev/console; }
step() { steps=$((steps + 1)); say step $steps; }
sums() { (cd /mnt/tree-$1 && find . -type f | sort | xargs sha256sum); }
mounts() {
    mkdir -p /media /mnt
    mount -t ext4 -o ro /dev/vda1 /media && mount -t ext4 /dev/vda2 /mnt || say error: mount
}
install() {
    step
    /e2/mke2fs -t ext4 -q -F -b 4096 /dev/vda2 </dev/null || say error: mke2fs
    step
    mounts
    work 1
}
work() {
    number=$1
    while [ ! -e /stop ]; do
        step
        rm -rf /mnt/tree-$number /mnt/tree-$((number - 4)) /mnt/sums-$((number - 4))
        mkdir /mnt/tree-$number
        tar -x -f /media/tree.tar -C /mnt/tree-$number || say error: tar
        step
        for file in 1 2 3; do
            dd if=/dev/urandom of=/mnt/tree-$number/new-$file bs=37k count=$file conv=fsync
        done
        sums $number >/mnt/sums-$number
        step
        sync
        say synced $number
        number=$((number + 1))
    done
    say ended
}
repair() {
    /e2/e2fsck -p /dev/vda2
    [ $? -le 1 ] && /e2/e2fsck -f -n /dev/vda2 && mounts
}
same() { (cd /mnt/tree-$1 && sha256sum -c /mnt/sums-$1); }
off() { umount /mnt && umount /media && /e2/e2fsck -f -n /dev/vda2; }
"#;

/// The tree to install, with the program that starts it, packed.
fn tree(dir: &Path, random: &mut Rng) -> PathBuf {
    let root = dir.join("tree");
    with_libraries(&root, &[]);
    for number in 0..FILES {
        let place = root.join(format!("d{}/e{}", number % 7, number % 3));
        fs::create_dir_all(&place).expect("make a directory");
        let length = random.below([300, 5000, 70_000][(number % 3) as usize]);
        let mut bytes = vec![0; length as usize];
        random.fill(&mut bytes);
        fs::write(place.join(format!("f{number}")), bytes).expect("write a file");
    }
    let media = dir.join("media");
    fs::create_dir_all(&media).expect("make a directory");
    let packed = media.join("tree.tar");
    run(
        "tar",
        &["-c", "-f", &shown(&packed), "-C", &shown(&root), "."],
    );
    media
}

/// A disk with both partitions, the first one filled.
fn whole(dir: &Path, random: &mut Rng) -> PathBuf {
    let part = dir.join("media.img");
    Machine::image_of(&tree(dir, random), &part, MEDIA.1);
    let path = dir.join("whole.raw");
    let file = fs::File::create(&path).expect("create a disk");
    file.set_len(DISK_BYTES).expect("size a disk");
    let mut table = [0; 512];
    for (number, (at, bytes)) in [MEDIA, ROOT].into_iter().enumerate() {
        let entry = &mut table[446 + number * 16..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&((at / 512) as u32).to_le_bytes());
        entry[12..16].copy_from_slice(&((bytes / 512) as u32).to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut garbage = vec![0; GARBAGE_BYTES];
    random.fill(&mut garbage);
    let media = fs::read(part).expect("read the partition");
    for (at, bytes) in [(0, &table[..]), (MEDIA.0, &media), (ROOT.0, &garbage)] {
        file.write_all_at(bytes, at).expect("write a disk");
    }
    path
}

impl Base {
    /// Makes it of a raw disk; its top file, and the format of that.
    fn make(self, dir: &Path, whole: &Path) -> (PathBuf, &'static str) {
        let base = dir.join("base.qcow2");
        let size = |bytes| {
            let file = fs::File::options().write(true).open(whole);
            file.and_then(|file| file.set_len(bytes))
                .expect("size a disk");
        };
        match self {
            Base::Raw => return (whole.to_owned(), "raw"),
            Base::Short => size(ROOT.0 + 17 * MIB + 1536),
            Base::Long => size(DISK_BYTES + 24 * MIB),
            Base::Plain | Base::Packed | Base::Deep => {}
        }
        let packed: &[&str] = match self {
            Base::Packed => &["-c"],
            _ => &[],
        };
        convert(("raw", whole), ("qcow2", &base), packed);
        match self {
            Base::Long => write(&base, "qcow2", &["write -P 7 128M 24M"]),
            Base::Deep => return (deep(dir), "qcow2"),
            _ => {}
        }
        (base, "qcow2")
    }
}

/// Six more files above the base, each with something of its own.
fn deep(dir: &Path) -> PathBuf {
    let mut below = "base.qcow2".to_owned();
    for depth in 0..6 {
        let name = format!("deep{depth}.qcow2");
        let image = create(dir, &name, &["-b", &below, "-F", "qcow2", "128M"]);
        let at = format!("write -P {} {}M 1M", 0x40 + depth, 30 + depth * 5);
        write(&image, "qcow2", &[&at]);
        below = name;
    }
    dir.join(below)
}

/// A host whose cache and storage forget what was not synced when it loses power.
struct Host {
    rig: Rig,
    machine: Machine,
    cache: Lossy,
    origin: Lossy,
    below: Vec<(PathBuf, Vec<u8>)>,
}

/// It has power, and its disks are there.
struct Powered {
    files: FileSystem,
    _cache: Device,
}

impl Host {
    fn new(test: &str) -> Option<Host> {
        let rig = Rig::new();
        let root = rig.dir.join("initramfs");
        fs::create_dir_all(&root).expect("make a directory");
        if may_mount(test) {
            with_libraries(&root, &["mke2fs", "e2fsck"]);
        } else {
            return None;
        }
        let machine = Machine::with_shell(test, &rig.dir, TOOLS, &[])?;
        Some(Host {
            rig,
            machine,
            cache: Lossy::new(CACHE_BYTES),
            origin: Lossy::new(ORIGIN_BYTES),
            below: Vec::new(),
        })
    }

    /// The cache may have another device each time.
    fn switch_on(&mut self) -> Powered {
        let cache = Device::new(&self.cache, &self.rig.dir.join("cache"));
        let sizes = "ram = \"16MiB\"\nstage = \"8MiB\"\noverlay-ram = \"8MiB\"";
        self.rig.cache(cache.path(), "128MiB", sizes);
        let files = FileSystem::mount(&self.origin, &self.rig.dir.join("origin"));
        Powered {
            files,
            _cache: cache,
        }
    }

    /// Makes base and image, and a volume on that.
    fn install(&mut self, base: Base, top: Top, random: &mut Rng) -> (Powered, Daemon) {
        FileSystem::make(&self.origin, &self.rig.dir.join("origin"));
        let dir = self.rig.dir.join("bases");
        fs::create_dir(&dir).expect("make a directory");
        let (base, format) = base.make(&dir, &whole(&dir, random));
        for entry in fs::read_dir(&dir).expect("list the bases").flatten() {
            if entry.file_type().is_ok_and(|it| it.is_file()) {
                let bytes = fs::read(entry.path()).expect("read a base");
                self.below.push((entry.path(), bytes));
            }
        }
        let place = self.rig.dir.display().to_string();
        self.rig
            .section(&format!("[images]\nallow = [\"{place}\"]\n"));
        let on = self.switch_on();
        self.rig.write_config();
        let device = on._cache.path().to_string_lossy().into_owned();
        self.rig.done(&["cache", "create", &device]);
        let daemon = self.rig.serve();
        let (origin, base) = (format!("origin={}", image(&on).display()), shown(&base));
        let keys = ["policy=write-back", "destage-after=1s"];
        let mut add = vec!["volume", "add", "guest", &origin];
        add.extend(keys);
        match top {
            Top::Clone(words) => add.extend([&["--clone-of", &base], words].concat()),
            Top::Made(options) => {
                let below = ["-o", options, "-b", &base, "-F", format, "128M"];
                create(on.files.path(), "top.qcow2", &below);
            }
        }
        self.rig.done(&add);
        (on, daemon)
    }

    fn boot(&self, name: &str, disk: Disk) -> Guest {
        let shape = Shape {
            name: name.to_owned(),
            disks: vec![disk],
            uses: &[],
            step: "",
            processors: 2,
            words: "",
            incoming: None,
        };
        let mut vm = Vm::start(&self.machine, &self.rig.dir, &shape);
        // What is typed before is lost.
        vm.wait_for("its shell", |vm| !vm.said("ready").is_empty());
        Guest(vm)
    }

    /// The guest and the daemon are gone, and so is what was not synced; a copy of what is left of
    /// the image is right for QEMU when its journal is finished.
    fn lose_power(
        &mut self,
        on: Powered,
        daemon: Daemon,
        guest: Guest,
        random: &mut Rng,
    ) -> Powered {
        // The cache first: what it acknowledges after the cut of the origin would be more than a
        // real host could.
        self.cache.cut_power();
        self.origin.cut_power();
        guest.0.kill();
        daemon.kill();
        drop(on);
        for disk in [&self.cache, &self.origin] {
            let loss = disk.restore_power(random);
            eprintln!("{loss:?}");
        }
        self.rig.lose_stage();
        let on = self.switch_on();
        let copy = self.rig.dir.join("copy.qcow2");
        copy_with_neighbours(&image(&on), &copy);
        self.rig.done(&["origin", "replay", &shown(&copy)]);
        check(&copy);
        on
    }
}

fn image(on: &Powered) -> PathBuf {
    on.files.path().join("top.qcow2")
}

/// A guest with a shell.
struct Guest(Vm);

impl Guest {
    /// Runs a line that must succeed.
    fn run(&mut self, line: &str) {
        let did = self.0.said("did").len();
        self.0.type_line(line);
        self.0.wait_for(line, |vm| vm.said("did").len() > did);
        assert_eq!(
            self.0.said("did")[did],
            "0",
            "{line}:\n{}",
            self.0.console()
        );
    }

    fn goes_on(&mut self, word: &str, by: u64) {
        let goal = self.0.number(word) + by;
        self.0.wait_for(word, |vm| vm.number(word) >= goal);
    }

    /// The file system is whole, and what was synced is there.
    fn finds(&mut self, synced: u64) {
        self.run("repair");
        for number in [synced, synced - 1] {
            self.run(&format!("same {number}"));
        }
        self.run(&format!("chroot /mnt/tree-{synced} /bin/busybox true"));
    }

    fn off(mut self) {
        self.run("off");
        self.0.type_line("say over; poweroff -f");
        self.0.wait_off();
    }
}

fn drill(test: &str, (kind, base, top): (&str, Base, Top), random: &mut Rng) -> Option<()> {
    let (kills, cuts) = (
        count("TENUTO_INSTALL_KILLS", 2),
        count("TENUTO_INSTALL_CUTS", 1),
    );
    let mut host = Host::new(test)?;
    let (mut on, mut daemon) = host.install(base, top, random);
    let mut guest = host.boot("guest", vhost(&host.rig, "guest"));
    guest.0.type_line("install &");
    let (mut hits, mut synced) = (0, 0);
    for cut in 0..cuts {
        for _ in kills * cut / cuts..kills * (cut + 1) / cuts {
            guest.goes_on("step", random.below(STEPS));
            guest.0.wait_for("a request", |vm| vm.in_flight() > 0);
            daemon.kill();
            hits += u64::from(guest.0.in_flight() > 0);
            daemon = host.rig.serve();
        }
        guest
            .0
            .wait_for("two trees", |vm| vm.number("synced") > synced + 1);
        guest.goes_on("step", random.below(STEPS));
        synced = guest.0.number("synced");
        on = host.lose_power(on, daemon, guest, random);
        daemon = host.rig.serve();
        guest = host.boot(&format!("guest{cut}"), vhost(&host.rig, "guest"));
        guest.finds(synced);
        guest.run(&format!("work {} &", synced + 1));
    }
    guest.goes_on("step", STEPS);
    guest.run("touch /stop");
    guest
        .0
        .wait_for("its end", |vm| !vm.said("ended").is_empty());
    synced = guest.0.number("synced");
    guest.off();
    eprintln!("{kind}: {kills} kills, {hits} with requests in flight, {cuts} cuts, {synced} trees");
    host.end(&on, daemon, synced);
    Some(())
}

impl Host {
    /// The image alone is what the guest's disk was.
    fn end(&self, on: &Powered, daemon: Daemon, synced: u64) {
        let (image, shadow) = (image(on), self.rig.dir.join("shadow.raw"));
        self.rig.gone_clients("guest");
        let uri = self.rig.uri("guest");
        run(
            "qemu-img",
            &["convert", "-f", "raw", "-O", "raw", &uri, &shown(&shadow)],
        );
        self.rig.done(&["volume", "destage", "guest", "--wait"]);
        daemon.stop();
        check(&image);
        assert_same(("qcow2", &image), ("raw", &shadow));
        for (path, bytes) in &self.below {
            assert!(fs::read(path).unwrap() == *bytes, "{path:?} was written");
        }
        let mut alone = self.boot("alone", Disk::Qcow2(image.clone()));
        alone.finds(synced);
        alone.off();
        check(&image);
    }
}

/// Fails when: a part of a cluster is taken from the wrong place of a base, a flush is answered too
/// early, or a request is lost or done twice over a kill.
#[test]
fn a_guest_that_installs_itself_on_a_clone_survives_kills_and_power_losses() {
    let test = "a_guest_that_installs_itself_on_a_clone_survives_kills_and_power_losses";
    // Each run has another kind, and a long one has all.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed(now.expect("a time after 1970").as_secs());
    let mut random = Rng::new(seed);
    let kinds = count("TENUTO_INSTALL_KINDS", 1);
    for number in seed..seed + kinds {
        let kind = KINDS[number as usize % KINDS.len()];
        eprintln!("{}", kind.0);
        if drill(test, kind, &mut random).is_none() {
            return;
        }
    }
}

/// What the frozen file system has: it is whole when its journal is replayed, and so are the trees
/// that were synced before.
fn judge_frozen(dir: &Path, frozen: &Path, synced: u64) {
    check(frozen);
    let (raw, part) = (dir.join("frozen.raw"), dir.join("frozen.ext4"));
    convert(("qcow2", frozen), ("raw", &raw), &[]);
    let mut bytes = vec![0; ROOT.1 as usize];
    let disk = fs::File::open(&raw).expect("open the copy");
    disk.read_exact_at(&mut bytes, ROOT.0)
        .expect("read the copy");
    fs::write(&part, bytes).expect("write the partition");
    let replay = std::process::Command::new("e2fsck")
        .args(["-p", &shown(&part)])
        .output();
    let replay = replay.expect("run e2fsck");
    assert!(replay.status.code().is_some_and(|it| it <= 1), "{replay:?}");
    run("e2fsck", &["-f", "-n", &shown(&part)]);
    for number in [synced, synced - 1] {
        let found = dir.join("found");
        fs::create_dir_all(&found).expect("make a directory");
        for what in ["tree", "sums"] {
            let dump = format!("rdump /{what}-{number} {}", shown(&found));
            run("debugfs", &["-R", &dump, &shown(&part)]);
        }
        let sums = found.join(format!("sums-{number}"));
        let sums = fs::read_to_string(&sums).expect("the sums are there");
        assert!(sums.lines().count() as u64 > FILES, "of all files");
        let tree = found.join(format!("tree-{number}"));
        let words = format!(
            "cd {} && sha256sum -c --quiet ../sums-{number}",
            shown(&tree)
        );
        run("sh", &["-c", &words]);
    }
}

/// Fails when: a file system that is frozen under its guest lacks what was synced or is no state
/// that it had, or the guest does not go on as if nothing had been.
#[test]
fn a_guest_that_installs_itself_is_frozen_and_goes_on() {
    let test = "a_guest_that_installs_itself_is_frozen_and_goes_on";
    let mut random = Rng::new(seed(44));
    let Some(mut host) = Host::new(test) else {
        return;
    };
    let (on, daemon) = host.install(Base::Plain, Top::Clone(&[]), &mut random);
    let mut guest = host.boot("guest", vhost(&host.rig, "guest"));
    guest.0.type_line("install &");
    for snapshot in ["s1", "s2"] {
        guest.0.wait_for("two trees", |vm| vm.number("synced") > 1);
        guest.goes_on("step", random.below(STEPS));
        let synced = guest.0.number("synced");
        host.rig.done(&["volume", "snapshot", "guest", snapshot]);
        guest.goes_on("step", STEPS);
        let frozen = on.files.path().join(format!("top.{snapshot}.qcow2"));
        judge_frozen(&host.rig.dir, &frozen, synced);
    }
    guest.run("touch /stop");
    guest
        .0
        .wait_for("its end", |vm| !vm.said("ended").is_empty());
    let synced = guest.0.number("synced");
    guest.off();
    host.end(&on, daemon, synced);
}
