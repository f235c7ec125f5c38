//! Requests and the files of NTFS images, from the outside.
//!
//! Always true: where a file lies is found by its bytes in the image, by no program that knows
//! NTFS. Images are made by the programs of ntfs-3g, without a mount where that is possible.

use super::{directory, document, have, run, run_in, skip};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use workload::rng::Rng;

const CLUSTER: usize = 4096;
const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// Of one damaged image, on a busy machine; the program itself allows ten minutes of a processor.
const DAMAGED_TIMEOUT: Duration = Duration::from_secs(120);
const DAMAGED: u64 = 300;
const READERS: [&str; 3] = ["partx", "prlimit", "fiwalk"];
const MAKERS: [&str; 2] = ["mkntfs", "ntfscp"];

pub(super) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

pub(super) fn makes(test: &str, more: &[&str]) -> bool {
    have(test, &[&READERS[..], &MAKERS, more].concat())
}

/// Whether file systems can be mounted here; notes a skip if not.
pub(super) fn may_mount(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let may = unsafe { libc::geteuid() } == 0 && Path::new("/dev/fuse").exists();
    if !may {
        skip(test, "mounting needs root and /dev/fuse");
    }
    may
}

/// The same of NTFS.
pub(super) fn mounts(test: &str) -> bool {
    may_mount(test) && makes(test, &["ntfs-3g", "umount"])
}

pub(super) fn empty_volume(image: &Path, mib: u64) {
    let file = fs::File::create(image).expect("made");
    file.set_len(mib << 20).expect("grown");
    // The geometry is said, because a file has none.
    let output = Command::new("mkntfs")
        .args("-q -F -c 4096 -s 512 -p 0 -H 0 -S 0".split(' '))
        .arg(image)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

/// Whether there was room.
fn copy(image: &Path, name: &str, content: &[u8]) -> bool {
    let source = image.with_extension("source");
    fs::write(&source, content).expect("written");
    let output = Command::new("ntfscp")
        .args([image, &source, Path::new(name)])
        .output();
    output.expect("it runs").status.success()
}

/// Sectors of the clusters that hold a file, in the order of the file.
pub(super) fn sectors(image: &[u8], content: &[u8]) -> Vec<u64> {
    let clusters = image.chunks(CLUSTER).enumerate();
    let places: HashMap<&[u8], usize> = clusters.map(|(at, bytes)| (bytes, at)).collect();
    let clusters = content.chunks_exact(CLUSTER);
    let found = clusters.map(|bytes| *places.get(bytes).expect("it is in the image"));
    found.map(|at| (at * CLUSTER / 512) as u64).collect()
}

/// Requests by path; those without one are `-`.
fn paths(place: &Path, image: &str, sectors: &[u64]) -> BTreeMap<String, u64> {
    let lines = sectors.iter().enumerate();
    let lines: String = lines
        .map(|(at, sector)| format!("1,{at},2a,512,{sector}\n"))
        .collect();
    fs::write(place.join("vm.csv"), lines).expect("written");
    let image = format!("vm={image}");
    let shown = document(place, &["trace", "analyze", "vm.csv", "--image", &image]);
    let all = shown["paths"].as_array().expect("paths").iter();
    let mut found: BTreeMap<String, u64> = all
        .map(|it| {
            let path = it["path"].as_str().expect("a path").to_owned();
            (path, it["requests"].as_u64().expect("a count"))
        })
        .collect();
    let categories = shown["categories"].as_array().expect("categories");
    if let Some(unknown) = categories.iter().find(|it| it["name"] == "unknown") {
        found.insert("-".to_owned(), unknown["requests"].as_u64().expect("some"));
    }
    found
}

/// A full disk of which every second neighbour goes, so that the next file lies in their places.
fn fragmented(image: &Path, long: &str) -> BTreeMap<String, Vec<u8>> {
    empty_volume(image, 8);
    let mut files = BTreeMap::new();
    let small = bytes(1, 200);
    assert!(copy(image, "small", &small));
    files.insert("small".to_owned(), small);
    let content = bytes(2, 3 * CLUSTER);
    assert!(copy(image, long, &content));
    files.insert(long.to_owned(), content);
    let mut fillers = 0;
    while copy(
        image,
        &format!("filler {fillers}"),
        &bytes(100 + fillers, 32 << 10),
    ) {
        fillers += 1;
        assert!(fillers < 1000, "the disk ends");
    }
    assert!(fillers > 50, "{fillers}");
    // Their places are alternately in one half of the disk and in the other.
    for number in (0..fillers).filter(|it| it % 4 < 2) {
        assert!(copy(image, &format!("filler {number}"), b""));
    }
    let big = bytes(3, 50 * (32 << 10));
    // It grows, because so many small holes are not given to a file at once.
    for end in (1..=25).map(|it| it * (64 << 10)) {
        assert!(copy(image, "big", &big[..end]));
    }
    files.insert("big".to_owned(), big);
    files.insert("filler 2".to_owned(), bytes(102, 32 << 10));
    files
}

/// The same file system in the first partition of a disk.
fn partitioned(disk: &Path, label: &str, volume: &[u8]) {
    let mut image = vec![0; 1 << 20];
    image.extend_from_slice(volume);
    image.resize(image.len() + (1 << 20), 0);
    fs::write(disk, image).expect("written");
    let mut child = Command::new("sfdisk")
        .args(["--quiet", "--no-reread", "--no-tell-kernel"])
        .arg(disk)
        .stdin(Stdio::piped())
        .spawn()
        .expect("it runs");
    let script = format!("label: {label}\nstart=2048, size={}\n", volume.len() / 512);
    let mut input = child.stdin.take().expect("asked for");
    input.write_all(script.as_bytes()).expect("it reads");
    drop(input);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn requests_find_the_file_of_an_ntfs_image() {
    if !makes(
        "requests_find_the_file_of_an_ntfs_image",
        &["sfdisk", "debugfs"],
    ) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let long = format!("a <long> & 'odd' name {}", "x".repeat(220));
    let files = fragmented(&place.join("fs.img"), &long);
    let volume = fs::read(place.join("fs.img")).expect("read");
    let of_file = |name: &str| sectors(&volume, &files[name]);
    let big = of_file("big");
    let runs = 1 + big.windows(2).filter(|it| it[1] != it[0] + 8).count();
    assert!(runs >= 20, "{runs} runs");
    // Inside the table of files; the rest of its bytes would be found as well.
    let small = volume
        .windows(32)
        .position(|it| it == &files["small"][..32]);
    let small = small.expect("it is in the image") as u64 / 512;
    let mut asked: Vec<u64> = big.iter().flat_map(|it| [*it, it + 7]).collect();
    asked.extend(of_file(&long));
    asked.extend(of_file("filler 2"));
    asked.extend([small, (volume.len() / 512) as u64 + 9]);
    let expected = BTreeMap::from([
        ("/big".to_owned(), 2 * big.len() as u64),
        (format!("/{long}"), 3),
        ("/filler 2".to_owned(), 8),
        ("/$MFT".to_owned(), 1),
        ("-".to_owned(), 1),
    ]);
    assert_eq!(paths(place, "fs.img", &asked), expected);
    for label in ["dos", "gpt"] {
        partitioned(&place.join("disk.img"), label, &volume);
        let asked: Vec<u64> = asked.iter().map(|it| it + 2048).collect();
        assert_eq!(paths(place, "disk.img", &asked), expected, "{label}");
    }
}

/// A volume that is mounted until this goes.
pub(super) struct Mounted {
    child: Child,
    pub(super) place: PathBuf,
}

impl Mounted {
    pub(super) fn new(image: &Path, place: PathBuf) -> Mounted {
        fs::create_dir_all(&place).expect("made");
        // In the foreground, so that its end says that all is written.
        let child = Command::new("ntfs-3g")
            .args(["-o", "no_detach"])
            .args([image, &place])
            .spawn()
            .expect("it runs");
        let mounted = Mounted { child, place };
        let start = Instant::now();
        while !mounted.is_there() {
            assert!(start.elapsed() < MOUNT_TIMEOUT, "it is mounted");
            std::thread::yield_now();
        }
        mounted
    }

    fn is_there(&self) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").expect("read");
        let place = fs::canonicalize(&self.place);
        place.is_ok_and(|it| mounts.contains(&format!(" {} ", it.display())))
    }

    fn unmount(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new("umount");
        command.args(arguments).arg(&self.place);
        let status = command.stderr(Stdio::null()).status();
        status.is_ok_and(|it| it.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let start = Instant::now();
        while !self.unmount(&[]) && self.is_there() {
            if start.elapsed() > MOUNT_TIMEOUT {
                self.unmount(&["--lazy"]);
                self.child.kill().ok();
                break;
            }
        }
        self.child.wait().ok();
    }
}

#[test]
fn directories_holes_and_second_names_of_an_ntfs_image_are_known() {
    let test = "directories_holes_and_second_names_of_an_ntfs_image_are_known";
    if !mounts(test) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let image = place.join("fs.img");
    empty_volume(&image, 16);
    let (plain, ends) = (bytes(1, 5 * CLUSTER), bytes(2, 4 * CLUSTER));
    {
        let mounted = Mounted::new(&image, place.join("mount"));
        let home = mounted.place.join("Söhne/日本");
        fs::create_dir_all(&home).expect("made");
        fs::write(home.join("plain"), &plain).expect("written");
        fs::hard_link(home.join("plain"), mounted.place.join("zz")).expect("linked");
        let mut holed = fs::File::create(home.join("holed")).expect("made");
        holed.write_all(&ends[..2 * CLUSTER]).expect("written");
        holed.seek(SeekFrom::Start(1 << 20)).expect("moved");
        holed.write_all(&ends[2 * CLUSTER..]).expect("written");
    }
    let volume = fs::read(&image).expect("read");
    let asked = [sectors(&volume, &plain), sectors(&volume, &ends)].concat();
    let found = paths(place, "fs.img", &asked);
    let of = |name: &str| found.get(&format!("/Söhne/日本/{name}"));
    assert_eq!(
        (of("plain"), of("holed")),
        (Some(&5), Some(&4)),
        "{found:?}"
    );
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Zeroes, bits or whole records, in the boot sector, in the table of files or anywhere.
fn damage(image: &mut [u8], seed: u64) {
    let mut rng = Rng::new(seed);
    let table = image[0x30..0x38].try_into().expect("eight bytes");
    let table = u64::from_le_bytes(table) as usize * CLUSTER;
    let (first, end) = match seed % 4 {
        // Behind the name, without which nobody takes it for NTFS.
        0 => (11, 512),
        1 => (table, table + (32 << 10)),
        2 => (table, table + (128 << 10)),
        _ => (11, image.len()),
    };
    let mut below = |bound: usize| rng.below(bound as u64) as usize;
    for _ in 0..[1, 4, 30, 300][below(4)] {
        let at = first + below(end - first);
        match below(4) {
            0 => image[at] = 0,
            1 => image[at] = 0xff,
            2 => image[at] ^= 1 << below(8),
            _ => image[at] = below(256) as u8,
        }
    }
    if seed % 4 == 2 {
        let at = first + below(128) * 1024;
        image[at..at + 1024].fill(0);
    }
}

/// How many of the damaged images were read, and how many refused.
fn try_damaged(good: &[u8], seeds: impl Iterator<Item = u64>) -> (u64, u64) {
    let directory = directory();
    let place = directory.path();
    fs::write(place.join("vm.csv"), "1,1,2a,1024,40\n").expect("written");
    let (mut read, mut refused) = (0, 0);
    for seed in seeds {
        let mut image = good.to_vec();
        damage(&mut image, seed);
        fs::write(place.join("fs.img"), image).expect("written");
        let start = Instant::now();
        let asked = ["trace", "analyze", "vm.csv", "--image", "vm=fs.img"];
        // It fails where the program is ended by a signal.
        let (code, out, err) = run(place, &asked);
        assert!(start.elapsed() < DAMAGED_TIMEOUT, "seed {seed}");
        match code {
            0 => {
                assert!(!out.is_empty(), "seed {seed}");
                read += 1;
            }
            1 => {
                let words = "fs.img: what should be NTFS in it can not be read";
                assert!(err.contains(words), "seed {seed}: {err}");
                assert_eq!(err.lines().count(), 1, "seed {seed}: {err}");
                refused += 1;
            }
            _ => panic!("seed {seed}: {code}: {err}"),
        }
    }
    (read, refused)
}

#[test]
fn a_damaged_ntfs_image_is_read_or_refused() {
    if !makes("a_damaged_ntfs_image_is_read_or_refused", &[]) {
        return;
    }
    let directory = directory();
    let image = directory.path().join("fs.img");
    empty_volume(&image, 2);
    for number in 0..40 {
        let content = bytes(number, 100 + number as usize * 200);
        assert!(copy(&image, &format!("file {number}"), &content));
    }
    let good = fs::read(&image).expect("read");
    let halves = std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let seeds = (0..DAMAGED).filter(move |seed| seed % 2 == half);
            scope.spawn(|| try_damaged(&good, seeds))
        });
        halves.map(|it| it.join().expect("none fails"))
    });
    let (read, refused) = (halves[0].0 + halves[1].0, halves[0].1 + halves[1].1);
    eprintln!("{read} were read, {refused} refused");
    assert!(
        read >= 30 && refused >= 30,
        "{read} read, {refused} refused"
    );
}

#[test]
fn what_is_no_file_system_is_said_to_be_none() {
    if !have(
        "what_is_no_file_system_is_said_to_be_none",
        &["partx", "debugfs"],
    ) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    let text = "1,1,2a,1024,40\n".repeat(5000);
    for image in [text.as_bytes(), b"", b"x\n", &bytes(1, 100_000), &[0; 4096]] {
        fs::write(place.join("vm.csv"), &text).expect("written");
        fs::write(place.join("image"), image).expect("written");
        let (code, _, err) = run(
            place,
            &["trace", "analyze", "vm.csv", "--image", "vm=image"],
        );
        assert_eq!(code, 1, "{err}");
        let words = "image: no ext2, ext3, ext4 or NTFS file system is in it";
        assert!(err.contains(words) && err.lines().count() == 1, "{err}");
    }
}

#[test]
fn a_reader_of_ntfs_that_is_missing_or_dies_is_an_error_in_words() {
    let test = "a_reader_of_ntfs_that_is_missing_or_dies_is_an_error_in_words";
    if !have(test, &["partx", "prlimit"]) {
        return;
    }
    let directory = directory();
    let place = directory.path();
    fs::write(place.join("vm.csv"), "1,1,2a,1024,40\n").expect("written");
    fs::write(
        place.join("image"),
        [b"abcNTFS    ", &[0; 5000][..]].concat(),
    )
    .expect("written");
    let programs = place.join("programs");
    fs::create_dir(&programs).expect("made");
    let path = std::env::var_os("PATH").expect("it is set");
    for program in ["partx", "prlimit"] {
        let all = std::env::split_paths(&path).map(|it| it.join(program));
        let found = all.into_iter().find(|it| it.is_file()).expect("it runs");
        std::os::unix::fs::symlink(found, programs.join(program)).expect("linked");
    }
    let asked = ["trace", "analyze", "vm.csv", "--image", "vm=image"];
    let tried = |script: &str| {
        use std::os::unix::fs::PermissionsExt;
        let fiwalk = programs.join("fiwalk");
        if !script.is_empty() {
            fs::write(&fiwalk, format!("#!/bin/sh\n{script}\n")).expect("written");
            fs::set_permissions(&fiwalk, fs::Permissions::from_mode(0o755)).expect("set");
        }
        let (code, _, err) = run_in(place, Some(&programs), &asked);
        assert_eq!((code, err.lines().count()), (1, 1), "{err}");
        err
    };
    let err = tried("");
    assert!(err.contains("fiwalk: no such file"), "{err}");
    assert!(err.contains("from the package sleuthkit"), "{err}");
    for (script, words) in [
        ("kill -SEGV $$", "ended by signal 11"),
        (
            "ulimit -t >limits; ulimit -v >>limits; exit 3",
            "ended with 3",
        ),
        (
            "echo '<ftype_str>ntfs</ftype_str>'",
            "no files in the one at sector 0",
        ),
    ] {
        let err = tried(script);
        assert!(err.contains("image: what should be NTFS"), "{err}");
        assert!(err.contains(words), "{words}: {err}");
    }
    let limits = fs::read_to_string(place.join("limits")).expect("written");
    assert_eq!(limits, "600\n4194304\n", "seconds, and KiB");
}
