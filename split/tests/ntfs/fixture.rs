//! A Windows-like volume, made by mkntfs and ntfs-3g, with a registry hive made here.
//!
//! Always true: mounts are in the namespace of one thread and end before it does.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 14] = [
    "diff",
    "getfattr",
    "hivexregedit",
    "mkntfs",
    "ntfs-3g",
    "ntfs-3g.probe",
    "ntfscat",
    "ntfsfix",
    "ntfsinfo",
    "ntfsresize",
    "umount",
    "unshare",
    "wimapply",
    "wimcapture",
];

/// Of the directory with the most in it, without that of another volume inside.
pub const BOB_LOCAL_FILES: u64 = 15;
pub const BOB_LOCAL_BYTES: u64 =
    5 + 10 + 4 + 70_000 + 9 + 6 + 3 + 7 + (1 << 20) + 60_000 + 2 + 2 + 4 + 5 + 6;
pub const C_DRIVE: &str = "\"\\\\DosDevices\\\\C:\"=hex(3):44,4d,49,4f,3a,49,44,3a,\
                           00,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f";

/// Whether a test can run; why not is printed, and noted for the runner.
pub fn have_all(test: &str) -> bool {
    if !have(test, &PROGRAMS) {
        return false;
    }
    let mounts = Command::new("unshare").args(["-m", "true"]).output();
    if !mounts.is_ok_and(|it| it.status.success()) || !Path::new("/dev/fuse").exists() {
        return skip(test, "mounting needs root and /dev/fuse");
    }
    true
}

pub fn have(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&&str| std::env::split_paths(&path).any(|it| it.join(name).is_file());
    match programs.iter().find(|it| !is_there(it)) {
        Some(missing) => skip(test, &format!("{missing} is not installed")),
        None => true,
    }
}

fn skip(test: &str, why: &str) -> bool {
    eprintln!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("TENUTO_SKIPS") {
        use std::io::Write as _;
        let file = fs::File::options().append(true).create(true).open(path);
        writeln!(file.expect("opened"), "{test}: {why}").expect("written");
    }
    false
}

/// What a program prints; it must succeed.
pub fn output(command: &mut Command) -> Vec<u8> {
    let output = command.env("LC_ALL", "C.UTF-8").output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output.stdout
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Numbers below a bound.
pub fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    }
}

/// Whether it ended well before the kill; it must not end otherwise.
pub fn killed_after(command: &mut Command, milliseconds: u64, place: &Path) -> bool {
    let output = Stdio::piped();
    let mut child = command.stdout(output).spawn().expect("it runs");
    // When it is killed is what is tried.
    std::thread::sleep(Duration::from_millis(milliseconds));
    child.kill().expect("it is ours");
    let output = child.wait_with_output().expect("it ended");
    wait_for_programs(place);
    let is_killed = output.status.code().is_none();
    assert!(
        is_killed || output.status.success(),
        "{}",
        text(&output.stdout)
    );
    !is_killed
}

/// Kills at random times, each later than the one before can be, so that it ends. How often.
pub fn until_it_ends(first: u64, more: u64, child: impl Fn(u64) -> bool) -> u64 {
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let mut random = random(seed);
    let mut kills = 0;
    while !child(random(first + more * kills)) {
        kills += 1;
        assert!(kills < 100, "it never ends");
    }
    kills
}

/// Until no program works on a file in this directory any more.
pub fn wait_for_programs(place: &Path) {
    let place = place.as_os_str().as_bytes();
    let start = Instant::now();
    let works = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line.windows(place.len()).any(|it| it == place)
    };
    while fs::read_dir("/proc")
        .expect("there")
        .flatten()
        .any(|it| works(&it))
    {
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(20), "a program goes on");
        std::thread::yield_now();
    }
}

/// Runs on a thread whose mounts are its own.
pub fn in_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: it concerns this thread only.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
            assert_eq!(result, 0, "a namespace");
            output(Command::new("mount").args(["--make-rprivate", "/"]));
            work()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A volume that is mounted until this goes.
pub struct Mounted {
    pub place: PathBuf,
}

pub fn mount(partition: &Path, place: &Path, options: &str) -> Mounted {
    fs::create_dir_all(place).expect("made");
    let mut command = Command::new("ntfs-3g");
    output(command.args(["-o", options]).args([partition, place]));
    let place = place.to_owned();
    Mounted { place }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.place).output().ok();
    }
}

pub fn set(path: &Path, name: &str, value: &[u8]) {
    let c_path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
    let name = CString::new(name).expect("no zero");
    let (value, length) = (value.as_ptr().cast(), value.len());
    // SAFETY: the names end with zeroes, and the value is as long as said.
    let result = unsafe { libc::lsetxattr(c_path.as_ptr(), name.as_ptr(), value, length, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!(result, 0, "{}: {name:?}: {error}", path.display());
}

pub fn get(path: &Path, name: &str) -> Vec<u8> {
    let c_path = CString::new(path.as_os_str().as_bytes()).expect("no zero");
    let name = CString::new(name).expect("no zero");
    let mut value = vec![0_u8; 65536];
    let (place, length) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: the names end with zeroes, and the value is as long as said.
    let result = unsafe { libc::lgetxattr(c_path.as_ptr(), name.as_ptr(), place, length) };
    value.truncate(usize::try_from(result).expect("it has one"));
    value
}

/// One partition, in a directory of its own.
pub struct Tree {
    pub directory: tempfile::TempDir,
    pub partition: PathBuf,
}

impl Tree {
    pub fn new(mib: u64, make: impl FnOnce(&Path) + Send) -> Tree {
        let directory = tempfile::tempdir().expect("made");
        let partition = directory.path().join("partition.img");
        let file = fs::File::create(&partition).expect("made");
        file.set_len(mib << 20).expect("grown");
        let mut command = Command::new("mkntfs");
        command.args("-q -Q -F -s 512 -p 2048 -H 0 -S 0 -L SYSTEM".split(' '));
        output(command.arg(&partition));
        in_namespace(|| {
            let options = "streams_interface=windows,compression,efs_raw";
            let volume = mount(&partition, &directory.path().join("mount"), options);
            make(&volume.place);
        });
        Tree {
            directory,
            partition,
        }
    }

    pub fn windows() -> Tree {
        Tree::new(48, windows)
    }
}

/// Owner and group are the administrators; four entries, one of them inherited.
pub fn access() -> Vec<u8> {
    let mut access = vec![1, 0, 0x04, 0x84];
    let everyone = [1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let administrators = [1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x20, 2, 0, 0];
    let users = [1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 0x21, 2, 0, 0];
    let system = [1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0];
    let mut entries = Vec::new();
    for (flags, mask, who) in [
        (0_u8, 0x001f_01ff_u32, &administrators[..]),
        (3, 0x001f_01ff, &system),
        (0x10, 0x0012_00a9, &users),
        (0, 0x0012_0089, &everyone),
    ] {
        let length = 8 + who.len() as u16;
        entries.extend([0, flags]);
        entries.extend(length.to_le_bytes());
        entries.extend(mask.to_le_bytes());
        entries.extend(who);
    }
    let list = 20 + 2 * administrators.len() as u32;
    for offset in [20, 36, 0, 52_u32] {
        access.extend(offset.to_le_bytes());
    }
    assert_eq!(list, 52);
    access.extend(administrators);
    access.extend(administrators);
    access.extend([2, 0]);
    access.extend((8 + entries.len() as u16).to_le_bytes());
    access.extend([4, 0, 0, 0]);
    access.extend(entries);
    access
}

/// Of 9 September 2001 at 01:46:40, made a day before and read a day after, and so much more.
pub fn times(more: u64) -> Vec<u8> {
    const DAY: u64 = 864_000_000_000;
    let modified = (1_000_000_000 + 11_644_473_600) * 10_000_000 + more;
    let times = [modified - DAY, modified, modified + DAY, modified];
    times.iter().flat_map(|it| it.to_le_bytes()).collect()
}

pub fn windows(root: &Path) {
    let write = |name: &str, content: &[u8]| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(&path, content).expect("written");
        path
    };
    write("Windows/System32/config/SYSTEM", &hive());
    write("Windows/System32/config/SYSTEM.LOG1", &[0; 4096]);
    write("Windows/System32/kernel.dll", &[7; 50_000]);
    write("Windows/Temp/odd  name.tmp", b"temporary");
    write("Windows/Logs/cbs.log", b"log");
    write("pagefile.sys", &[0; 100_000]);
    write("Users/Default/AppData/Local/kept", b"kept");
    write(
        "Users/jörg müller 😀/AppData/Local/Übergröße.txt",
        "größer".as_bytes(),
    );
    write("Users/jörg müller 😀/AppData/Local/Temp/ß", b"s");
    write("Users/bob/Documents/letter.txt", b"Dear");
    local(root, &write);
    for name in ["Users/bob/AppData/Local", "Windows/Temp", "Windows/Logs"] {
        set(&root.join(name), "system.ntfs_acl", &access());
    }
    set(
        &root.join("Windows/System32/config/SYSTEM"),
        "system.ntfs_acl",
        &access(),
    );
    set(
        &root.join("Users/bob/AppData/Local"),
        "system.ntfs_dos_name",
        b"LOC~1",
    );
    junction(
        &root.join("Users/bob/Local Settings"),
        "\\??\\C:\\Users\\bob\\AppData\\Local",
    );
    for name in [
        "Windows/Logs/cbs.log",
        "Windows/Logs",
        "Users/bob/AppData/Local",
    ] {
        set(&root.join(name), "system.ntfs_times", &times(0));
    }
}

/// Fifteen files and links: with streams, short names, links, attributes, rights, holes.
fn local(root: &Path, write: &dyn Fn(&str, &[u8]) -> PathBuf) {
    let local = root.join("Users/bob/AppData/Local");
    let name = |name: &str| format!("Users/bob/AppData/Local/{name}");
    let plain = write(&name("plain.txt"), b"plain");
    set(&plain, "system.ntfs_acl", &access());
    set(&plain, "system.ntfs_times", &times(0));
    let streamed = write(&name("streamed.txt"), b"10 letters");
    fs::write(local.join("streamed.txt:Zone.Identifier"), "zone").expect("written");
    fs::write(local.join("streamed.txt:big"), vec![3; 70_000]).expect("written");
    set(&streamed, "system.ntfs_acl", &access());
    let long = write(&name("a long name with  spaces.text"), b"long name");
    set(&long, "system.ntfs_dos_name", b"ALONGN~1.TEX");
    let hidden = write(&name("hidden"), b"hidden");
    // Read-only, hidden, system, to be archived.
    set(&hidden, "system.ntfs_attrib", &0x27_u32.to_le_bytes());
    let one = write(&name("one"), b"one");
    fs::hard_link(&one, local.join("two")).expect("linked");
    set(&one, "system.ntfs_acl", &access());
    set(&one, "system.ntfs_times", &times(0));
    let extended = write(&name("extended"), b"with EA");
    let value = [
        &[20, 0, 0, 0, 0, 5, 4, 0][..],
        b"LXUID\0",
        &[1, 0, 0, 0],
        &[0, 0],
    ]
    .concat();
    set(&extended, "system.ntfs_ea", &value);
    let holed = fs::File::create(local.join("holed")).expect("made");
    holed.set_len(1 << 20).expect("grown");
    fs::create_dir(local.join("pressed")).expect("made");
    set(
        &local.join("pressed"),
        "system.ntfs_attrib",
        &0x810_u32.to_le_bytes(),
    );
    write(&name("pressed/zeroes"), &[0; 60_000]);
    write(&name("😀 Ä & 'quoted' [x];#"), b"22");
    write(&name("relative"), b"");
    // A stream of a link is written before it is one.
    fs::write(local.join("relative:of a link"), "4444").expect("written");
    symlink(&local.join("relative"), "pressed\\zeroes", true);
    write(&name("space at the end "), b"55555");
    write(&name("Signatures/mail.htm"), b"666666");
    junction(
        &local.join("Application Data"),
        "\\??\\C:\\Users\\bob\\AppData\\Local",
    );
    fs::create_dir(local.join("with stream")).expect("made");
    fs::write(local.join("with stream:of directory"), "33").expect("written");
    write(&name("empty"), b"");
    write(&name("Temp/t1"), b"temporary");
    write(&name("Temp/deeper/t2"), b"temporary2");
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn reparse(path: &Path, tag: u32, flags: &[u8], target: &str) {
    let name = utf16(target);
    let mut data = Vec::new();
    for number in [0, name.len(), name.len() + 2, 0] {
        data.extend((number as u16).to_le_bytes());
    }
    data.extend(flags);
    data.extend(&name);
    data.extend([0; 4]);
    let mut value = tag.to_le_bytes().to_vec();
    value.extend((data.len() as u32).to_le_bytes());
    value.extend(data);
    set(path, "system.ntfs_reparse_data", &value);
}

pub fn junction(path: &Path, target: &str) {
    fs::create_dir(path).expect("made");
    reparse(path, 0xa000_0003, &[], target);
}

pub fn symlink(path: &Path, target: &str, is_relative: bool) {
    if !path.exists() {
        fs::write(path, "").expect("made");
    }
    reparse(path, 0xa000_000c, &[u8::from(is_relative), 0, 0, 0], target);
}

/// Marks a file as EFS does, in the first attribute of its record.
pub fn encrypt(partition: &Path, name: &str) {
    let mut image = fs::read(partition).expect("read");
    let name = utf16(name);
    let is_file = |it: &&mut [u8]| {
        it.starts_with(b"FILE") && it[0x16] == 1 && it.windows(name.len()).any(|it| it == name)
    };
    let record = image
        .chunks_mut(1024)
        .find(is_file)
        .expect("it has a record");
    let attribute = usize::from(record[0x14]);
    assert_eq!(record[attribute], 0x10, "$STANDARD_INFORMATION");
    let value = attribute + usize::from(record[attribute + 0x14]);
    record[value + 0x21] |= 0x40;
    fs::write(partition, image).expect("written");
}

/// Two restart pages that say that a client, Windows, has the journal open.
pub fn leave_journal_open(partition: &Path) {
    let mut image = fs::read(partition).expect("read");
    // mkntfs fills the journal with ones; nothing else is so long.
    let clusters: Vec<bool> = image
        .chunks(4096)
        .map(|it| it.iter().all(|it| *it == 0xff))
        .collect();
    let first = clusters.windows(64).position(|it| it.iter().all(|it| *it));
    let first = first.expect("a journal") * 4096;
    let length = clusters[first / 4096..]
        .iter()
        .take_while(|it| **it)
        .count() as u64
        * 4096;
    let mut page = vec![0; 4096];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"RSTR");
    put(4, &[0x1e, 0, 9, 0]);
    put(16, &[0, 16, 0, 0, 0, 16, 0, 0, 0x30, 0, 1, 0, 1, 0]);
    // The number that stands at the end of each sector.
    put(0x1e, &[1, 0]);
    let area = 0x30;
    // One client, none free, the first in use, not clean.
    put(area + 8, &[1, 0, 0xff, 0xff, 0, 0, 0, 0]);
    put(
        area + 16,
        &(67 - (64 - length.leading_zeros())).to_le_bytes(),
    );
    put(area + 20, &[0xe0, 0, 0x40, 0]);
    put(area + 24, &length.to_le_bytes());
    put(area + 36, &[0x30, 0, 0x40, 0]);
    let client = area + 0x40;
    put(client + 16, &[0xff, 0xff, 0xff, 0xff]);
    put(client + 28, &[8, 0, 0, 0]);
    put(client + 32, &utf16("NTFS"));
    for sector in 1..=8 {
        put(sector * 512 - 2, &[1, 0]);
    }
    image[first..first + 4096].copy_from_slice(&page);
    image[first + 4096..first + 8192].copy_from_slice(&page);
    fs::write(partition, image).expect("written");
}

struct Node {
    name: &'static str,
    values: Vec<(&'static str, u32, Vec<u8>)>,
    below: Vec<Node>,
}

fn node(name: &'static str, below: Vec<Node>) -> Node {
    let values = Vec::new();
    Node {
        name,
        values,
        below,
    }
}

/// A hive of 8 KiB with what the page file and the letters need.
pub fn hive() -> Vec<u8> {
    let set = |name| {
        let memory = Node {
            name: "Memory Management",
            values: vec![
                ("PagingFiles", 7, utf16("C:\\pagefile.sys 0 0\0\0")),
                ("ClearPageFileAtShutdown", 4, vec![0; 4]),
            ],
            below: Vec::new(),
        };
        node(
            name,
            vec![node("Control", vec![node("Session Manager", vec![memory])])],
        )
    };
    let drive = |first: u8| [&b"DMIO:ID:"[..], &(first..first + 16).collect::<Vec<u8>>()].concat();
    let devices = Node {
        name: "MountedDevices",
        values: vec![
            ("\\DosDevices\\C:", 3, drive(0)),
            ("\\DosDevices\\E:", 3, drive(16)),
        ],
        below: Vec::new(),
    };
    let below = vec![
        set("ControlSet001"),
        set("ControlSet002"),
        devices,
        node("Select", vec![]),
    ];
    Cells::hive(&node("ROOT", below))
}

const NONE: u32 = u32::MAX;

/// The bin of a hive.
#[derive(Default)]
struct Cells {
    bytes: Vec<u8>,
    security: u32,
}

impl Cells {
    fn hive(root: &Node) -> Vec<u8> {
        let mut cells = Cells::default();
        let access = access();
        let words = [0, 0, 1, access.len() as u32]
            .map(u32::to_le_bytes)
            .concat();
        cells.security = cells.add(&[b"sk\0\0", &words[..], &access].concat());
        // It is the only one of its ring.
        for at in [8, 12] {
            cells.put(cells.security, at, cells.security);
        }
        let root = cells.node(root, 0x2c);
        let size = (32 + cells.bytes.len() + 8).next_multiple_of(4096);
        let free = size - 32 - cells.bytes.len();
        let mut hive = vec![0; 4096];
        let words = [7, 7, 0, 0, 1, 5, 0, 1, root, size as u32, 1]
            .map(u32::to_le_bytes)
            .concat();
        hive[..4].copy_from_slice(b"regf");
        hive[4..4 + words.len()].copy_from_slice(&words);
        let words = hive[..508]
            .chunks(4)
            .map(|it| u32::from_le_bytes(it.try_into().expect("4")));
        let sum = words.fold(0, |sum, word| sum ^ word);
        hive[508..512].copy_from_slice(&sum.to_le_bytes());
        hive.extend(
            [
                &b"hbin"[..],
                &[0; 4],
                &(size as u32).to_le_bytes(),
                &[0; 20],
            ]
            .concat(),
        );
        hive.extend(cells.bytes);
        hive.extend((free as u32).to_le_bytes());
        hive.resize(4096 + size, 0);
        hive
    }

    fn add(&mut self, content: &[u8]) -> u32 {
        let offset = 32 + self.bytes.len() as u32;
        let length = (4 + content.len()).next_multiple_of(8);
        self.bytes.extend((-(length as i32)).to_le_bytes());
        self.bytes.extend(content);
        self.bytes.resize(offset as usize - 32 + length, 0);
        offset
    }

    fn put(&mut self, cell: u32, at: usize, word: u32) {
        let at = cell as usize - 32 + at;
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    fn value(&mut self, (name, kind, data): &(&str, u32, Vec<u8>)) -> u32 {
        let (size, place) = match data.len() {
            0..=4 => (data.len() as u32 | 1 << 31, 0),
            length => (length as u32, self.add(data)),
        };
        let words = [size, place, *kind].map(u32::to_le_bytes).concat();
        let length = (name.len() as u16).to_le_bytes();
        self.add(&[b"vk", &length[..], &words, &[1, 0, 0, 0], name.as_bytes()].concat())
    }

    fn node(&mut self, node: &Node, flags: u16) -> u32 {
        let values: Vec<u32> = node.values.iter().map(|it| self.value(it)).collect();
        let below: Vec<u32> = node.below.iter().map(|it| self.node(it, 0x20)).collect();
        let words = |words: &[u32]| {
            words
                .iter()
                .flat_map(|it| it.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let value_list = match values.is_empty() {
            true => NONE,
            false => self.add(&words(&values)),
        };
        let key_list = match below.is_empty() {
            true => NONE,
            false => {
                let mut list = [&b"lf"[..], &(below.len() as u16).to_le_bytes()].concat();
                for (offset, key) in below.iter().zip(&node.below) {
                    list.extend(offset.to_le_bytes());
                    list.extend(&key.name.as_bytes()[..4]);
                }
                self.add(&list)
            }
        };
        let mut content = [&b"nk"[..], &flags.to_le_bytes(), &[0; 16]].concat();
        let (keys, values) = (below.len() as u32, values.len() as u32);
        content.extend(words(&[
            keys,
            0,
            key_list,
            NONE,
            values,
            value_list,
            self.security,
            NONE,
        ]));
        content.extend([0; 20]);
        content.extend((node.name.len() as u32).to_le_bytes());
        content.extend(node.name.as_bytes());
        let offset = self.add(&content);
        for key in below {
            self.put(key, 20, offset);
        }
        offset
    }
}
