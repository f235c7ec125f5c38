//! Images that rest under their guests, and snapshots of qcow2 images, judged by QEMU's own tools.
//!
//! Always true of each: what was acknowledged before the order is in the frozen file, nothing of it
//! changes afterwards, and behind a kill at each step there is the image as it was or the snapshot
//! as it was to be.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use workload::rng::Rng;

use crate::common::marks::Marks;
use crate::common::{EXIT_FAILED, EXIT_USAGE, Rig, count, have, nbd, seed, text_of, wait_until};
use crate::qcow2_grown::change;
use crate::qcow2_written::{assert_same, check, convert, create, shown, write};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 48 * MIB;
/// Numbered writes go here, one behind the other.
const NUMBERED_AT: u64 = 32 * MIB;
const NUMBERED_BYTES: u64 = 512;
/// Of the marks: a step of a snapshot, and about so many of them; ledger and header.
const EXCHANGE: u64 = 8;
const STEPS: u64 = 7;
const DESTAGE: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(240);

/// A disk on a base, with a raw copy of what its guest has written.
struct Disk {
    image: PathBuf,
    shadow: PathBuf,
    client: Option<nbd::Client>,
    numbered: u64,
}

impl Disk {
    /// `kind`: how its first file is made.
    fn new(rig: &Rig, name: &str, kind: u64) -> Disk {
        let base = rig.dir.join("base.qcow2");
        if !base.exists() {
            create(&rig.dir, "base.qcow2", &["48M"]);
            write(&base, "qcow2", &["write -P 9 0 20M"]);
        }
        let options: &[&str] = match kind % 3 {
            0 => &["-o", "extended_l2=on,cluster_size=128k"],
            1 => &["-o", "cluster_size=4k"],
            _ => &[],
        };
        let below = ["-b", "base.qcow2", "-F", "qcow2", "48M"];
        let image = create(
            &rig.dir,
            &format!("{name}.qcow2"),
            &[options, &below].concat(),
        );
        let shadow = image.with_extension("raw");
        convert(("qcow2", &image), ("raw", &shadow), &[]);
        Disk {
            image,
            shadow,
            client: None,
            numbered: 0,
        }
    }

    fn add(&mut self, rig: &Rig, name: &str, keys: &[&str]) {
        let origin = format!("origin={}", shown(&self.image));
        rig.done(&[&["volume", "add", name, &origin], keys].concat());
        self.client = Some(rig.connect(name));
    }

    fn client(&mut self) -> &mut nbd::Client {
        self.client.as_mut().expect("its guest is there")
    }

    /// What has to be in each snapshot from now on.
    fn change(&mut self, random: &mut Rng) {
        let shadow = self.shadow.clone();
        change(self.client(), &shadow, random, |random, _| {
            512 * random.below((NUMBERED_AT - MIB) / 512)
        });
    }

    /// Its guest goes, and what it wrote gets to the image.
    fn end(&mut self, rig: &Rig, name: &str) {
        self.client.take().expect("it is there").disconnect();
        rig.gone_clients(name);
        rig.done(&["volume", "destage", name, "--wait"]);
    }

    /// Behind the end of the daemon: for QEMU it is what its guest has written.
    fn judge(&self) {
        check(&self.image);
        assert_same(("qcow2", &self.image), ("raw", &self.shadow));
    }

    /// The next of the numbered writes; false without an answer.
    fn write_number(&mut self) -> bool {
        let at = NUMBERED_AT + self.numbered * NUMBERED_BYTES;
        let bytes = number(self.numbered);
        // A guest that asks all the time is no part of this.
        std::thread::sleep(Duration::from_millis(1));
        let client = self.client();
        let sent = client.send(nbd::CMD_WRITE, 0, at, bytes.len() as u32, &bytes);
        let answer = sent.and_then(|_| client.answer());
        if !answer.is_ok_and(|answer| answer.error == 0) {
            return false;
        }
        let shadow = File::options().write(true).open(&self.shadow);
        let written = shadow.and_then(|it| it.write_all_at(&bytes, at));
        written.expect("write the shadow");
        self.numbered += 1;
        true
    }

    fn frozen(&self, snapshot: &str) -> PathBuf {
        let stem = self.image.file_stem().expect("a name");
        let name = format!("{}.{snapshot}.qcow2", stem.to_string_lossy());
        self.image.with_file_name(name)
    }
}

fn number(n: u64) -> Vec<u8> {
    (n + 1).to_le_bytes().repeat(NUMBERED_BYTES as usize / 8)
}

/// How many of the numbered writes a raw copy has; all of them lie before the first that it has
/// not.
fn numbers_in(raw: &Path) -> u64 {
    let file = File::open(raw).expect("open the copy");
    let most = (DISK_BYTES - NUMBERED_AT) / NUMBERED_BYTES;
    let mut bytes = vec![0; NUMBERED_BYTES as usize];
    let mut has = |n: u64| {
        let at = NUMBERED_AT + n * NUMBERED_BYTES;
        file.read_exact_at(&mut bytes, at).expect("read the copy");
        assert!(
            bytes == number(n) || bytes.iter().all(|it| *it == 0),
            "write {n} is whole or not there"
        );
        bytes == number(n)
    };
    let found = (0..most).take_while(|n| has(*n)).count() as u64;
    assert!(
        (found..most).all(|n| !has(n)),
        "a hole behind write {found}"
    );
    found
}

/// A frozen file: whole for QEMU, with all of `before` but its numbered writes, of which it has a
/// prefix of at least `least`.
fn judge(frozen: &Path, before: &Path, least: u64) -> u64 {
    check(frozen);
    let raw = frozen.with_extension("copy");
    convert(("qcow2", frozen), ("raw", &raw), &[]);
    let found = numbers_in(&raw);
    assert!(found >= least, "{frozen:?} has {found} writes of {least}");
    let [one, other] = [&raw, before].map(|path| fs::read(path).expect("read a copy"));
    let [one, other] = [one, other].map(|it| it[..NUMBERED_AT as usize].to_vec());
    assert!(one == other, "{frozen:?} is not what was written before");
    fs::remove_file(&raw).expect("remove the copy");
    found
}

/// Fails when: a snapshot lacks what was acknowledged before it or has something of later without
/// what was before that; a kill leaves a file that QEMU finds wrong, a volume that is held, half of
/// a snapshot, or loses what was acknowledged.
#[test]
fn a_snapshot_is_of_one_moment_and_a_kill_at_each_step_leaves_the_image_or_the_snapshot() {
    let test =
        "a_snapshot_is_of_one_moment_and_a_kill_at_each_step_leaves_the_image_or_the_snapshot";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let marks = Marks::new(&rig.dir.join("marks"));
    rig.env("TENUTO_MARKS", &shown(marks.path()));
    let mut random = Rng::new(seed(41));
    let (mut taken, mut undone, mut found) = (0, 0, 0);
    // Each step once, and each kind of file once without a kill.
    let rounds = count("TENUTO_DRILL_ROUNDS", STEPS + 4);
    for round in 0..rounds {
        let mut disk = Disk::new(&rig, &format!("disk-{round}"), round);
        let mut daemon = rig.serve();
        disk.add(&rig, "disk", &["destage-after=never"]);
        disk.change(&mut random);
        let before = disk.shadow.with_extension("before");
        fs::copy(&disk.shadow, &before).expect("copy the shadow");
        for _ in 0..4 {
            assert!(disk.write_number(), "nothing is armed");
        }
        let least = disk.numbered;
        let (phase, nth) = match round {
            0..STEPS => (EXCHANGE, 1 + round),
            _ => (DESTAGE, 1 + random.below(24)),
        };
        if round + 2 < rounds {
            marks.arm(phase, nth);
        }
        let mut order = rig.spawn(&["volume", "snapshot", "disk", "s1"]);
        let mut status = None;
        wait_until("the snapshot or its end", PATIENCE, || {
            disk.write_number();
            status = order.try_wait().expect("look at the order");
            status.is_some()
        });
        marks.disarm();
        let done = status.is_some_and(|it| it.success());
        let when = format!("round {round}, entry {nth} of phase {phase}");
        match done {
            true => assert!(daemon.is_alive(), "{when}"),
            // Its sockets close a moment before it is gone.
            false => wait_until("the daemon is dead", PATIENCE, || !daemon.is_alive()),
        }
        drop(disk.client.take());
        daemon.kill();

        let frozen = disk.frozen("s1");
        if round % 2 == 1 {
            // As on another host, which has only the SSD and the storage.
            rig.done(&["recover", "--cache", &shown(&rig.cache_path())]);
            disk.judge();
        }
        let daemon = rig.serve();
        let there = frozen.exists();
        assert!(there || !done, "{when}: it was taken");
        (taken, undone) = (taken + u64::from(done), undone + u64::from(!there));
        found += u64::from(there && !done);
        let chain = rig.show("disk")["image"]["chain"].clone();
        let files = chain.as_array().expect("a chain").len();
        assert_eq!(files, 2 + usize::from(there), "{when}: {chain}");
        let left = disk.image.with_extension("qcow2.tenuto-new");
        assert!(!left.exists(), "{when}: {left:?} is left");
        if there {
            judge(&frozen, &before, least);
        }
        let frozen_bytes = there.then(|| fs::read(&frozen).expect("read it"));
        disk.client = Some(rig.connect("disk"));
        disk.change(&mut random);
        assert!(disk.write_number(), "{when}: the guest goes on");
        disk.end(&rig, "disk");
        rig.done(&["volume", "rm", "disk"]);
        daemon.stop();
        disk.judge();
        if let Some(bytes) = frozen_bytes {
            let now = fs::read(&frozen).expect("read it");
            assert!(bytes == now, "{when}: {frozen:?} has changed");
        }
        for path in [&disk.shadow, &before] {
            fs::remove_file(path).expect("remove a copy");
        }
    }
    assert!(
        taken >= 2 && undone > 1 && found > 1,
        "{taken} taken, {undone} undone, {found} found at the start"
    );
}

/// Fails when: the frozen files of a group are of different moments.
#[test]
fn the_disks_of_a_group_are_frozen_at_one_cut() {
    let test = "the_disks_of_a_group_are_frozen_at_one_cut";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let mut random = Rng::new(seed(42));
    let daemon = rig.serve();
    let names = ["one", "other"];
    let mut disks = names.map(|name| Disk::new(&rig, name, random.below(3)));
    for (disk, name) in disks.iter_mut().zip(names) {
        disk.add(&rig, name, &["destage-after=1s", "group=vm"]);
    }
    let mut order = rig.spawn(&["volume", "snapshot", "other", "s1"]);
    wait_until("the snapshot", PATIENCE, || {
        // One behind the other.
        assert!(disks.iter_mut().all(Disk::write_number), "guests go on");
        let status = order.try_wait().expect("look at the order");
        assert!(status.is_none_or(|it| it.success()), "{}", daemon.log());
        status.is_some()
    });
    let found = disks.each_ref().map(|disk| {
        let frozen = disk.frozen("s1");
        check(&frozen);
        let raw = frozen.with_extension("copy");
        convert(("qcow2", &frozen), ("raw", &raw), &[]);
        numbers_in(&raw)
    });
    let [one, other] = found;
    assert!(one == other || one == other + 1, "{found:?}");
    for (disk, name) in disks.iter_mut().zip(names) {
        disk.end(&rig, name);
    }
    daemon.stop();
    disks.iter().for_each(Disk::judge);
}

/// Fails when: an image at rest lacks what was acknowledged, changes before it is resumed, or the
/// guest has to wait.
#[test]
fn an_image_that_rests_can_be_copied_while_its_guest_goes_on() {
    let test = "an_image_that_rests_can_be_copied_while_its_guest_goes_on";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let mut random = Rng::new(seed(43));
    let daemon = rig.serve();
    let mut disk = Disk::new(&rig, "disk", random.below(3));
    disk.add(&rig, "disk", &["destage-after=1s"]);
    disk.change(&mut random);
    assert!(disk.write_number());
    rig.done(&["volume", "quiesce", "disk"]);
    let least = disk.numbered;
    let before = disk.shadow.with_extension("before");
    fs::copy(&disk.shadow, &before).expect("copy the shadow");
    let flags = rig.show("disk")["flags"].clone();
    assert!(flags.to_string().contains("quiesced"), "{flags}");
    let copy = rig.dir.join("copy.qcow2");
    fs::copy(&disk.image, &copy).expect("copy the image");
    disk.change(&mut random);
    let start = std::time::Instant::now();
    // Longer than what is dirty may wait.
    while start.elapsed() < Duration::from_secs(3) {
        assert!(disk.write_number());
    }
    let [one, other] = [&copy, &disk.image].map(|path| fs::read(path).expect("read it"));
    assert!(one == other, "the image was written while it rested");
    rig.done(&["volume", "resume", "disk"]);
    assert_eq!(judge(&copy, &before, least), least);
    let said = rig.refused(&["volume", "resume", "disk"], EXIT_FAILED);
    assert!(said.contains("its image does not rest"), "{said}");
    disk.end(&rig, "disk");
    daemon.stop();
    disk.judge();
}

/// What a new clone of an image asks of the storage for what its guest reads.
fn reads_as_a_clone(rig: &Rig, image: &Path, read: impl Fn(&mut nbd::Client)) -> u64 {
    let origin = format!("origin={}", shown(&image.with_extension("clone.qcow2")));
    let add = ["volume", "add", "clone", "--clone-of", &shown(image)];
    rig.done(&[&add[..], &[&origin, "policy=ephemeral"]].concat());
    let mut client = rig.connect("clone");
    read(&mut client);
    client.disconnect();
    let clone = rig.show("clone");
    clone["origin"]["read_bytes"].as_u64().expect("told")
}

/// The locks keep a program out that wants to write a file of a volume.
fn assert_no_writer(image: &Path) {
    let arguments = ["-f", "qcow2", "-c", "write 0 512", &shown(image)];
    let output = Command::new("qemu-io").args(arguments).output();
    let said = text_of(&output.expect("run qemu-io"));
    assert!(said.contains("\"write\" lock"), "{image:?}: {said}");
}

/// Fails when: what was cached of an image is read from the storage again after a snapshot, after
/// the next start of the daemon, or by a clone of what is frozen; or a program may write these.
#[test]
fn the_cache_stays_warm_over_snapshots_and_the_next_start() {
    let test = "the_cache_stays_warm_over_snapshots_and_the_next_start";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let mut rig = Rig::new();
    let cache = rig.cache_path();
    rig.cache(&cache, "512MiB", "ram = \"8MiB\"\nstage = \"16MiB\"");
    let disk = Disk::new(&rig, "disk", 0);
    // Times of a file that was made a moment ago do not tell whether it is the same.
    wait_until("the base is older", PATIENCE, || {
        let changed = fs::metadata(rig.dir.join("base.qcow2")).expect("stat it");
        let now = std::time::SystemTime::now();
        let age = now.duration_since(std::time::UNIX_EPOCH).expect("a time");
        age.as_secs() as i64 > changed.ctime() + 4
    });
    let keys = "destage-after = \"never\"\nadmission = \"all\"";
    rig.qcow2_volume("disk", &disk.image, "write-back", keys);
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    client.write(4 * MIB, &vec![7; 2 * MIB as usize]);
    rig.done(&["volume", "destage", "disk", "--wait"]);
    let read = |client: &mut nbd::Client| {
        for at in 0..16 {
            let bytes = client.read(at * MIB, MIB as usize);
            let right = if (4..6).contains(&at) { 7 } else { 9 };
            assert!(bytes.iter().all(|it| *it == right), "at {at} MiB");
        }
    };
    let from_storage = |rig: &Rig| {
        rig.show("disk")["origin"]["read_bytes"]
            .as_u64()
            .expect("told")
    };
    // More than RAM has: in the end all of it comes from the SSD.
    let mut before = 0;
    wait_until("all of it is kept", PATIENCE, || {
        let last = std::mem::replace(&mut before, from_storage(&rig));
        read(&mut client);
        last > 0 && before == last && from_storage(&rig) == before
    });
    for snapshot in ["monday", "tuesday"] {
        let before = from_storage(&rig);
        rig.done(&["volume", "snapshot", "disk", snapshot]);
        assert_no_writer(&disk.frozen(snapshot));
        assert_no_writer(&disk.image);
        read(&mut client);
        // Tables of the new chain alone.
        let after = from_storage(&rig) - before;
        assert!(after <= MIB, "{after} bytes were read again");
    }
    client.disconnect();
    daemon.stop();
    let daemon = rig.serve();
    let mut client = rig.connect("disk");
    read(&mut client);
    let again = from_storage(&rig);
    assert!(again <= MIB, "{again} bytes were read after the start");
    let own = reads_as_a_clone(&rig, &disk.frozen("monday"), read);
    assert!(
        own <= MIB,
        "{own} bytes were read by a clone of what is frozen"
    );
    client.disconnect();
    daemon.stop();
}

/// Fails when: what cannot be frozen or brought to rest is, or is refused without a word of what
/// would be right.
#[test]
fn what_cannot_be_frozen_is_refused_with_what_would_be_right() {
    let test = "what_cannot_be_frozen_is_refused_with_what_would_be_right";
    if !have(test, &["qemu-img", "qemu-io"]) {
        return;
    }
    let rig = Rig::new();
    let daemon = rig.serve();
    let raw = rig.image("raw.img", 4 * MIB);
    let through = create(&rig.dir, "through.qcow2", &["4M"]);
    let base = create(&rig.dir, "gold.qcow2", &["4M"]);
    let mut disk = Disk::new(&rig, "disk", 0);
    disk.add(&rig, "disk", &["policy=write-back"]);
    let real = create(&rig.dir, "real.qcow2", &["4M"]);
    let link = rig.dir.join("link.qcow2");
    std::os::unix::fs::symlink(&real, &link).expect("make a link");
    for (name, path, policy) in [
        ("raw", &raw, "policy=write-back"),
        ("through", &through, "policy=write-through"),
        ("overlay", &base, "policy=ephemeral"),
        ("reads", &base, "read-only=true"),
        ("link", &link, "policy=write-back"),
    ] {
        let origin = format!("origin={}", shown(path));
        rig.done(&["volume", "add", name, &origin, policy]);
    }
    fs::write(disk.frozen("there"), "mine").expect("make a file");
    for (name, snapshot, part) in [
        ("raw", "s1", "qemu-img convert -O qcow2"),
        ("through", "s1", "tenuto volume set"),
        ("overlay", "s1", "only a write-back volume"),
        ("reads", "s1", "only a write-back volume"),
        ("link", "s1", "is a symbolic link"),
        ("disk", "there", "exists already"),
        ("disk", "a b", "is no name of a snapshot"),
    ] {
        let said = rig.refused(&["volume", "snapshot", name, snapshot], EXIT_USAGE);
        assert!(said.contains(part), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for name in ["through", "overlay", "reads"] {
        let said = rig.refused(&["volume", "quiesce", name], EXIT_USAGE);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    rig.done(&["volume", "quiesce", "raw"]);
    let said = rig.refused(&["volume", "snapshot", "raw"], EXIT_USAGE);
    assert!(said.contains("raw"), "{said}");
    rig.done(&["volume", "quiesce", "disk"]);
    let said = rig.refused(&["volume", "snapshot", "disk"], EXIT_FAILED);
    assert!(said.contains("tenuto volume resume"), "{said}");
    rig.done(&["volume", "resume", "disk"]);
    let shown = rig.json(&["volume", "snapshot", "disk"]);
    let notes = shown["notes"][0].as_str().expect("a note");
    assert!(notes.contains("disk.20"), "{notes}");
    assert_eq!(fs::read(disk.frozen("there")).expect("read it"), b"mine");
    drop(disk.client.take());
    daemon.stop();
}
