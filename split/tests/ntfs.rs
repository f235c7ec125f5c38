//! A Windows-like volume is split, from the outside.
//!
//! Always true: what is expected is read by other programs than those that made it, or by the same
//! ones in another way (`diff`, `getfattr`, `wimdir`, `hivexregedit --export`, `ntfscat`). Mounts
//! are in a namespace of their own and end with the test.
//!
//! Deliberately absent: a Windows that starts, which no machine of the tests has.

#[path = "ntfs/fixture.rs"]
mod fixture;
#[path = "ntfs/refusals.rs"]
mod refusals;
#[path = "ntfs/whole.rs"]
mod whole;

use fixture::{Tree, have_all, in_namespace, mount, output, set, text};
use split::ntfs::{
    Changed, Error, Found, NewVolume, PageFile, Pattern, Rule, Share, VolumeIndex, WindowsPath,
    check, copy, empty, link, list, look, look_registry, make_volume, register, verify,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use uuid::Uuid;

const WRITE_BACK: VolumeIndex = VolumeIndex(0);
const NEVER: VolumeIndex = VolumeIndex(1);
const MIB: u64 = 1 << 20;

fn guids() -> [Uuid; 2] {
    [
        Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888),
        Uuid::from_u128(0xaaaa_bbbb_cccc_dddd_eeee_ffff_0102_0304),
    ]
}

fn path(text: &str) -> WindowsPath {
    WindowsPath::parse(text).expect("it is a path")
}

fn rules(rules: &[(&str, Option<VolumeIndex>)]) -> Vec<Rule> {
    let rule = |(pattern, volume): &(&str, Option<VolumeIndex>)| Rule {
        pattern: Pattern::parse(pattern).expect("it is a pattern"),
        volume: *volume,
    };
    rules.iter().map(rule).collect()
}

fn windows_rules() -> Vec<Rule> {
    rules(&[
        ("\\Users\\*\\AppData\\Local", Some(WRITE_BACK)),
        ("\\users\\*\\appdata\\LOCAL\\temp", Some(NEVER)),
        ("\\Windows\\Temp", Some(NEVER)),
        ("\\Windows\\Logs", Some(WRITE_BACK)),
        ("\\Users\\*\\AppData\\Roaming", Some(WRITE_BACK)),
        ("\\ProgramData\\Sophos", Some(NEVER)),
        ("\\Users\\Default\\AppData\\Local", None),
    ])
}

/// A split of the fixture, one partition a file.
struct Split {
    /// It is removed with the split.
    _tree: Option<Tree>,
    place: PathBuf,
    original: PathBuf,
    system: PathBuf,
    parts: [PathBuf; 2],
    found: Found,
}

impl Split {
    fn new() -> Split {
        let tree = Tree::windows();
        let place = tree.directory.path();
        fs::copy(&tree.partition, place.join("system.img")).expect("copied");
        for part in ["write-back.img", "never.img"] {
            let file = fs::File::create(place.join(part)).expect("made");
            file.set_len(48 * MIB).expect("grown");
        }
        let split = Split::at(place);
        Split {
            _tree: Some(tree),
            ..split
        }
    }

    /// One that was begun.
    fn at(place: &Path) -> Split {
        let original = place.join("partition.img");
        let found = list(&original, &windows_rules()).expect("listed");
        Split {
            _tree: None,
            place: place.to_owned(),
            original,
            system: place.join("system.img"),
            parts: ["write-back.img", "never.img"].map(|it| place.join(it)),
            found,
        }
    }

    fn shares(&self) -> [Share; 2] {
        [WRITE_BACK, NEVER].map(|it| self.found.share(it))
    }

    fn links(&self, links: &[(WindowsPath, VolumeIndex)]) -> Vec<(WindowsPath, Uuid)> {
        let links = links.iter();
        links
            .map(|(path, at)| (path.clone(), guids()[at.0]))
            .collect()
    }

    fn copy(&self) {
        for ((part, share), label) in self.parts.iter().zip(self.shares()).zip(["WB", "NEVER"]) {
            let new = NewVolume {
                label,
                start_sector: 2048,
            };
            make_volume(part, &new).expect("made");
            copy(&self.original, part, &share).expect("copied");
        }
    }

    fn system_paths(&self) -> Vec<WindowsPath> {
        let links = self.found.system_links();
        links.into_iter().map(|(path, _)| path).collect()
    }

    fn link(&self) {
        let links = self.links(&self.found.system_links());
        link(&self.system, &links).expect("linked");
        for (part, volume) in self.parts.iter().zip([WRITE_BACK, NEVER]) {
            link(part, &self.links(&self.found.inner_links(volume))).expect("linked");
        }
    }

    fn register(&self) {
        register(&self.system, &self.original, &guids(), Some(&page_file())).expect("written");
    }

    fn check(&self) -> Result<split::ntfs::Compared, Error> {
        let volumes: Vec<(Uuid, &Path)> = guids()
            .into_iter()
            .zip(self.parts.iter().map(PathBuf::as_path))
            .collect();
        let changed = Changed {
            registry: true,
            page_file: true,
        };
        check(&self.system, &self.original, &volumes, changed)
    }

    fn step(&self, step: Step) {
        match step {
            Step::Copy => self.copy(),
            Step::Verify => {
                for (part, share) in self.parts.iter().zip(self.shares()) {
                    verify(&self.original, part, &share).expect("the same");
                }
            }
            Step::Empty => empty(&self.system, &self.system_paths()).expect("emptied"),
            Step::Link => self.link(),
            Step::Register => self.register(),
        }
    }
}

#[derive(Clone, Copy)]
enum Step {
    Copy,
    Verify,
    Empty,
    Link,
    Register,
}

const STEPS: [Step; 5] = [
    Step::Copy,
    Step::Verify,
    Step::Empty,
    Step::Link,
    Step::Register,
];

fn page_file() -> PageFile {
    PageFile {
        guid: guids()[1],
        letter: 't',
        mebibytes: Some(4096),
    }
}

/// Fails when: a volume of a fresh Windows is refused, or its sizes are read wrongly.
#[test]
fn a_clean_volume_may_be_split() {
    if !have_all("a_clean_volume_may_be_split") {
        return;
    }
    let tree = Tree::new(16, |_| {});
    let looked = look(&tree.partition).expect("it may");
    assert_eq!(looked.cluster_bytes, 4096);
    // The last sector is a copy of the first.
    assert_eq!(looked.volume_bytes, 16 * MIB - 512);
}

/// Fails when: a star, the case of a name, a nested rule, a kept directory or a count is wrong.
#[test]
fn rules_find_what_is_in_the_volume() {
    if !have_all("rules_find_what_is_in_the_volume") {
        return;
    }
    let split = Split::new();
    let found = &split.found;
    let moved: Vec<(String, usize, usize)> = found
        .moved
        .iter()
        .map(|it| (it.path.to_string(), it.volume.0, it.rule))
        .collect();
    let expected = [
        ("\\Users\\bob\\AppData\\Local", 0, 0),
        ("\\Users\\bob\\AppData\\Local\\Temp", 1, 1),
        ("\\Users\\jörg müller 😀\\AppData\\Local", 0, 0),
        ("\\Users\\jörg müller 😀\\AppData\\Local\\Temp", 1, 1),
        ("\\Windows\\Logs", 0, 3),
        ("\\Windows\\Temp", 1, 2),
    ];
    let expected = expected.map(|(path, volume, rule)| (path.to_owned(), volume, rule));
    assert_eq!(moved, expected);
    assert_eq!(found.unmatched, [4, 5]);
    assert_eq!(found.moved[1].outer, Some(0));
    assert_eq!(found.moved[1].files, 2);
    assert_eq!(found.moved[1].bytes, 9 + 10);
    // A file of two names is counted once, with its streams.
    assert_eq!(found.moved[0].bytes, fixture::BOB_LOCAL_BYTES);
    assert_eq!(found.moved[0].files, fixture::BOB_LOCAL_FILES);
    assert_eq!(found.extended_attributes, 1);
    assert_eq!(found.page_file_bytes, Some(100_000));
    // The hive and its log, a program, the page file, what was kept, and a letter.
    assert_eq!(found.system_files, 6);
    assert_eq!(found.system_bytes, 8192 + 4096 + 50_000 + 100_000 + 4 + 4);
    let valued: Vec<(&str, u64)> = found
        .valued
        .iter()
        .map(|it| (it.path.as_str(), it.bytes))
        .collect();
    assert_eq!(valued, [("\\Users\\bob\\AppData\\Local\\Signatures", 6)]);
    let into: Vec<&str> = found.links_into.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(into, ["\\Users\\bob\\Local Settings"]);
    let json = serde_json::to_string(found).expect("written");
    let again: Found = serde_json::from_str(&json).expect("read");
    assert_eq!(again.moved, found.moved);
}

/// Fails when: any step fails, is not the same when run twice, or changes what a guest sees.
#[test]
fn a_split_volume_shows_what_the_whole_one_did() {
    if !have_all("a_split_volume_shows_what_the_whole_one_did") {
        return;
    }
    let split = Split::new();
    let original = fs::read(&split.original).expect("read");
    for step in STEPS {
        (0..2).for_each(|_| split.step(step));
    }
    let compared = split.check().expect("the same");
    assert_eq!(split.check().expect("the same"), compared);
    assert!(
        compared.files > 15 && compared.directories > 15,
        "{compared:?}"
    );
    assert!(
        original == fs::read(&split.original).expect("read"),
        "the image is not written"
    );
    for partition in split.parts.iter().chain([&split.system]) {
        output(Command::new("ntfsfix").arg("-n").arg(partition));
    }
    in_namespace(|| same_for_diff(&split));
    in_namespace(|| same_attributes(&split));
    reparse_points_are_on_the_disk(&split);
}

/// By `diff`, through the links of ntfs-3g, with the new volumes at the names it looks for.
fn same_for_diff(split: &Split) {
    let place = |name: &str| split.place.join(name);
    let copy = place("copy.img");
    fs::copy(&split.system, &copy).expect("copied");
    let original = mount(&split.original, &place("o"), "ro");
    let system = mount(&copy, &place("s"), "rw");
    let volumes = system.place.join(".NTFS-3G");
    fs::create_dir(&volumes).expect("made");
    let mut mounted = Vec::new();
    for (number, guid) in guids().iter().enumerate() {
        // The outer one has a mount point as well, which is looked up in its own directory.
        let other = place(&format!("copy{number}.img"));
        fs::copy(&split.parts[number], &other).expect("copied");
        let volume = mount(&other, &place(&format!("v{number}")), "rw");
        std::os::unix::fs::symlink(&volume.place, volumes.join(format!("Volume{{{guid}}}")))
            .expect("linked");
        mounted.push(volume);
    }
    let inner = mounted[0].place.join(".NTFS-3G");
    fs::create_dir(&inner).expect("made");
    std::os::unix::fs::symlink(
        &mounted[1].place,
        inner.join(format!("Volume{{{}}}", guids()[1])),
    )
    .expect("linked");
    let found = Command::new("diff")
        .args(["-r", "-x", ".NTFS-3G", "-x", "Application Data"])
        .args([&original.place, &system.place])
        .env("LC_ALL", "C.UTF-8")
        .output()
        .expect("it runs");
    let found = String::from_utf8_lossy(&found.stdout).into_owned() + &text(&found.stderr);
    let (o, s) = (original.place.display(), system.place.display());
    let hive = "Windows/System32/config/SYSTEM";
    let expected =
        format!("Binary files {o}/{hive} and {s}/{hive} differ\nOnly in {o}: pagefile.sys\n");
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    let mut expected: Vec<&str> = expected.lines().collect();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

/// What `getfattr` says of both sides: streams as `user.…`, access rights, attributes, times.
fn same_attributes(split: &Split) {
    let place = |name: &str| split.place.join(name);
    let original = mount(&split.original, &place("o"), "ro,streams_interface=xattr");
    let volumes = [0, 1].map(|it| {
        let place = place(&format!("v{it}"));
        mount(&split.parts[it], &place, "ro,streams_interface=xattr")
    });
    let shown = |root: &Path, inner: &str| {
        let mut shown = String::new();
        for what in [
            &["-m", "^user", "-d"][..],
            &["-n", "system.ntfs_acl"],
            &["-n", "system.ntfs_attrib"],
            &["-n", "system.ntfs_crtime"],
        ] {
            let mut command = Command::new("getfattr");
            command
                .args(["-R", "-h", "-e", "hex"])
                .args(what)
                .arg(inner)
                .current_dir(root);
            let found = command.env("LC_ALL", "C.UTF-8").output().expect("it runs");
            let found = text(&found.stdout);
            shown += &found;
        }
        assert!(shown.contains("system.ntfs_acl=0x"), "{shown}");
        shown
    };
    for (volume, inner) in [
        (1, "Users/bob/AppData/Local/Temp"),
        (1, "Windows/Temp"),
        (0, "Windows/Logs"),
    ] {
        let (left, right) = (
            shown(&original.place, inner),
            shown(&volumes[volume].place, inner),
        );
        assert_eq!(left, right, "{inner}");
    }
    let inner = "Users/bob/AppData/Local/streamed.txt";
    let left = shown(&original.place, inner);
    assert!(left.contains("user.Zone.Identifier="), "{left}");
    assert_eq!(left, shown(&volumes[0].place, inner));
    let names = ["Users/bob/AppData/Local/one", "Users/bob/AppData/Local/two"];
    use std::os::unix::fs::MetadataExt as _;
    let inodes = names.map(|it| {
        fs::metadata(volumes[0].place.join(it))
            .expect("there")
            .ino()
    });
    assert_eq!(inodes[0], inodes[1], "one file with two names");
    let times = |root: &Path| {
        let metadata = fs::metadata(root.join("Windows/Logs/cbs.log")).expect("there");
        (metadata.mtime(), metadata.mtime_nsec())
    };
    assert_eq!(times(&original.place), times(&volumes[0].place));
    assert_eq!(times(&original.place).0, 1_000_000_000);
}

/// By a program that does not mount.
fn reparse_points_are_on_the_disk(split: &Split) {
    for (partition, inner, guid) in [
        (&split.system, "Windows/Temp", guids()[1]),
        (&split.system, "Users/bob/AppData/Local", guids()[0]),
        (&split.parts[0], "Users/bob/AppData/Local/Temp", guids()[1]),
    ] {
        let mut command = Command::new("ntfscat");
        let found = output(command.args(["-a", "0xC0"]).arg(partition).arg(inner));
        let target = format!("\\??\\Volume{{{guid}}}\\{}\\", inner.replace('/', "\\"));
        let target: Vec<u8> = target.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(
            found.windows(target.len()).any(|it| it == target),
            "{inner}"
        );
        assert_eq!(found[..4], 0xa000_0003_u32.to_le_bytes(), "{inner}");
    }
}

/// Fails when: the registry names another partition, letter or size, or loses a value.
#[test]
fn the_registry_names_the_new_volumes_and_the_page_file() {
    if !have_all("the_registry_names_the_new_volumes_and_the_page_file") {
        return;
    }
    let split = Split::new();
    look_registry(&split.original, Some(&page_file())).expect("it can");
    split.register();
    let hive = |name: &str| {
        let place = split.place.join(name);
        let found = output(
            Command::new("ntfscat")
                .arg(&split.system)
                .arg("Windows/System32/config/SYSTEM"),
        );
        fs::write(&place, found).expect("written");
        place
    };
    let first = hive("hive");
    split.register();
    assert_eq!(
        fs::read(&first).expect("read"),
        fs::read(hive("again")).expect("read")
    );
    let exported = output(
        Command::new("hivexregedit")
            .arg("--export")
            .args([&first])
            .arg("\\"),
    );
    let exported = text(&exported);
    let letter = "44,4d,49,4f,3a,49,44,3a,bb,bb,aa,aa,cc,cc,dd,dd,ee,ee,ff,ff,01,02,03,04";
    let paging: Vec<String> = "T:\\pagefile.sys 4096 4096\0\0"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .map(|it| format!("{it:02x}"))
        .collect();
    let paging = format!("\"PagingFiles\"=hex(7):{}", paging.join(","));
    let devices = format!("\"\\\\DosDevices\\\\T:\"=hex(3):{letter}");
    let volume =
        format!("\"\\\\??\\\\Volume{{aaaabbbb-cccc-dddd-eeee-ffff01020304}}\"=hex(3):{letter}");
    for (line, count) in [
        (paging.as_str(), 2),
        (devices.as_str(), 1),
        (volume.as_str(), 1),
        ("\"ClearPageFileAtShutdown\"=dword:00000000", 2),
        (fixture::C_DRIVE, 1),
    ] {
        let found = exported.lines().filter(|it| *it == line).count();
        assert_eq!(found, count, "{line}\n{exported}");
    }
    assert_eq!(exported.matches("Volume{").count(), 2, "{exported}");
    in_namespace(|| {
        let system = mount(&split.system, &split.place.join("m"), "ro");
        assert!(!system.place.join("pagefile.sys").exists());
        let hive = system.place.join("Windows/System32/config/SYSTEM");
        assert_eq!(fixture::get(&hive, "system.ntfs_acl"), fixture::access());
    });
}

/// Says the test below where the child works.
const PLACE: &str = "TENUTO_SPLIT_PLACE";

/// Does what is not done yet, and writes down what is.
#[test]
fn the_steps_that_are_killed() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let split = Split::at(&place);
    let done = fs::read_to_string(place.join("done")).map_or(0, |it| it.len());
    for (number, step) in STEPS.iter().enumerate().skip(done) {
        split.step(*step);
        // Each step is a letter.
        fs::write(place.join("new"), "x".repeat(number + 1)).expect("written");
        fs::rename(place.join("new"), place.join("done")).expect("renamed");
    }
}

/// Fails when: a step that was killed is not made whole by another run, or leaves a program behind
/// that goes on to write.
#[test]
fn a_split_that_is_killed_goes_on() {
    if !have_all("a_split_that_is_killed_goes_on") {
        return;
    }
    let split = Split::new();
    let temporary = split.place.join("temporary");
    fs::create_dir(&temporary).expect("made");
    let child = |milliseconds| {
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command.args(["--exact", "the_steps_that_are_killed"]);
        command.env(PLACE, &split.place).env("TMPDIR", &temporary);
        fixture::killed_after(&mut command, milliseconds, &split.place)
    };
    let kills = fixture::until_it_ends(150, 40, child);
    let done = fs::read_to_string(split.place.join("done")).expect("there");
    assert_eq!(done.len(), STEPS.len());
    eprintln!("{kills} kills");
    assert!(kills > 2);
    split.check().expect("the same");
}

/// What is said of a change, and the change, in a directory of a new volume.
type Change = (&'static str, fn(&Path));

const CHANGES: [Change; 9] = [
    ("its content is another", |it| {
        fs::write(it.join("plain.txt"), "Plain").expect("written");
    }),
    ("the content of this stream is another", |it| {
        fs::write(it.join("streamed.txt:Zone.Identifier"), "Zone").expect("written");
    }),
    ("its access rights are others", |it| {
        let mut access = fixture::access();
        access[44] ^= 1;
        set(&it.join("plain.txt"), "system.ntfs_acl", &access);
    }),
    ("its attributes are others", |it| {
        let hidden = 0x22_u32.to_le_bytes();
        set(&it.join("plain.txt"), "system.ntfs_attrib", &hidden);
    }),
    ("its times are others", |it| {
        let times = fixture::times(7);
        set(&it.join("plain.txt"), "system.ntfs_times", &times);
    }),
    ("its streams are others", |it| {
        fs::write(it.join("plain.txt:new"), "").expect("written");
    }),
    ("it is not there", |it| {
        fs::remove_file(it.join("plain.txt")).expect("removed");
    }),
    ("it was not there before", |it| {
        fs::write(it.join("new"), "").expect("written");
    }),
    ("its hard links are others", |it| {
        fs::remove_file(it.join("two")).expect("removed");
        fs::copy(it.join("one"), it.join("two")).expect("copied");
        let archive = 0x20_u32.to_le_bytes();
        for name in ["one", "two"] {
            set(&it.join(name), "system.ntfs_acl", &fixture::access());
            set(&it.join(name), "system.ntfs_attrib", &archive);
            set(&it.join(name), "system.ntfs_times", &fixture::times(0));
        }
    }),
];

/// Fails when: the comparison of a copy or the check of the whole overlooks a difference.
#[test]
fn a_difference_after_the_split_is_found() {
    if !have_all("a_difference_after_the_split_is_found") {
        return;
    }
    let split = Split::new();
    let part = &split.parts[0];
    split.step(Step::Copy);
    split.step(Step::Verify);
    let copied = fs::read(part).expect("read");
    STEPS[2..].iter().for_each(|it| split.step(*it));
    split.check().expect("the same");
    let linked = fs::read(part).expect("read");
    for (says, change) in CHANGES {
        let changed = |volume: &[u8]| {
            fs::write(part, volume).expect("written");
            in_namespace(|| change_in_volume(part, &split.place.join("m"), says, change));
        };
        let is_said = |error: String| {
            let says = format!(" is not as it was: {says};");
            assert!(error.contains(&says), "{says}: {error}");
        };
        changed(&copied);
        let verified = verify(&split.original, part, &split.shares()[0]);
        is_said(verified.expect_err(says).to_string());
        changed(&linked);
        is_said(split.check().expect_err(says).to_string());
    }
}

/// Only that is changed, and no time but where that is the change.
fn change_in_volume(part: &Path, place: &Path, says: &str, change: fn(&Path)) {
    let volume = mount(part, place, "streams_interface=windows");
    let inner = volume.place.join("Users/bob/AppData/Local");
    let names = ["", "plain.txt", "streamed.txt"];
    let times = names.map(|it| fixture::get(&inner.join(it), "system.ntfs_times"));
    change(&inner);
    for (name, times) in names.iter().zip(times) {
        let is_meant = *name == "plain.txt" && says.contains("times");
        if inner.join(name).exists() && !is_meant {
            set(&inner.join(name), "system.ntfs_times", &times);
        }
    }
}

/// Fails when: a mount point with a wrong target is taken for the right one.
#[test]
fn a_wrong_mount_point_is_found() {
    if !have_all("a_wrong_mount_point_is_found") {
        return;
    }
    let split = Split::new();
    split.copy();
    empty(&split.system, &split.system_paths()).expect("emptied");
    let mut links = split.links(&split.found.system_links());
    // Two volumes change places.
    links.iter_mut().for_each(|(_, guid)| {
        *guid = guids()[usize::from(*guid == guids()[0])];
    });
    link(&split.system, &links).expect("linked");
    split.register();
    let error = split.check().expect_err("wrong").to_string();
    let says = "a wrong mount point is in its place; run the split again from the untouched image";
    assert!(error.ends_with(says), "{error}");
    let error = link(&split.system, &split.links(&split.found.system_links()));
    let says = "\\Users\\bob\\AppData\\Local is a reparse point already, but another one; keep it \
                out of the rules";
    assert_eq!(error.expect_err("another").to_string(), says);
}

/// Fails when: bytes of a hive or of a boot sector make the code panic or run for ever.
#[test]
fn damaged_volumes_and_hives_are_read_or_refused() {
    if !have_all("damaged_volumes_and_hives_are_read_or_refused") {
        return;
    }
    let tree = Tree::windows();
    let good = fs::read(&tree.partition).expect("read");
    let table = 4 * 4096;
    let mut random = fixture::random(7);
    let mut random = move |bound: usize| random(bound as u64) as usize;
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..24 {
        let mut bad = good.clone();
        let (first, end) = [(11, 512), (table, table + (96 << 10))][seed % 2];
        for _ in 0..[1, 8, 60][seed % 3] {
            bad[first + random(end - first)] = random(256) as u8;
        }
        fs::write(&tree.partition, bad).expect("written");
        let looked = look(&tree.partition).map(|_| ());
        match looked.and_then(|()| list(&tree.partition, &windows_rules()).map(|_| ())) {
            Ok(()) => taken += 1,
            Err(error) => {
                refused += 1;
                assert_eq!(error.to_string().lines().count(), 1, "seed {seed}: {error}");
            }
        }
    }
    eprintln!("{taken} were taken, {refused} refused");
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}
