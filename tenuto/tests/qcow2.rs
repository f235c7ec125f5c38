//! Random qcow2 images made by QEMU's tools: three readers have to agree.
//!
//! Owns a generator over everything that `qemu-img create` and `qemu-io` can vary, and the
//! comparison of the product's reader with `qemu-img` and with a second reader that shares no code
//! with it: verdict, leaks, content, and what lies where. Then bytes of the tables are changed, and
//! the verdicts have to agree again. `TENUTO_IMAGES` sets how many, `TENUTO_SEED` where they begin.

#[path = "qcow2/verbs.rs"]
mod verbs;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use host::fault::{Fault, Kind};
use host::lock::Patience;
use host::origin::chain::{self, Opened, Rules, Stated};
use host::origin::content::Metadata;
use host::origin::inflate::inflate;
use image::check::check;
use image::header::{Compression, bytes_wanted};
use image::map::Walk;
use image::resolve::{Content, Part};
use image::types::FileIndex;
use image::{Error, Header};
use serde_json::Value;
use sim::qcow2::{self, Layer};
use workload::rng::Rng;

const IMAGES: u64 = 30;
/// Of each image so many copies are damaged.
const DAMAGED: u64 = 4;
/// Damage can make a disk larger than a test may read.
const SIZE_MAX: u64 = 8 << 20;
const SECTOR: u64 = 512;
const KIB: u64 = 1024;

fn count(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a decimal number"))
}

/// Notes a skip for the runner where QEMU's tools are missing.
fn has_qemu(test: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let here = |program| {
        path.split(':')
            .any(|it| Path::new(it).join(program).is_file())
    };
    if ["qemu-img", "qemu-io"].into_iter().all(here) {
        return true;
    }
    if let Some(path) = std::env::var_os("TENUTO_SKIPS") {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        let mut file = file.expect("open the file of skips");
        writeln!(file, "{test}: qemu-img or qemu-io is not installed").expect("note the skip");
    }
    false
}

fn run(directory: &Path, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).args(arguments);
    command.output().expect("it runs")
}

fn must(directory: &Path, program: &str, arguments: &[&str]) -> Output {
    let done = run(directory, program, arguments);
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    done
}

/// How an image was made, for a failure to say.
struct Made {
    directory: tempfile::TempDir,
    /// From the top down.
    files: Vec<(String, bool)>,
    story: String,
}

impl Made {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        let read = |(name, _): &(String, bool)| std::fs::read(self.path().join(name));
        self.files
            .iter()
            .map(|it| read(it).expect("a file"))
            .collect()
    }

    fn run(&mut self, program: &str, arguments: &[&str]) -> bool {
        let done = run(self.path(), program, arguments);
        let line = format!("{program} {}", arguments.join(" "));
        let code = done.status.code();
        writeln!(self.story, "{line} -> {code:?}").expect("a text");
        done.status.success()
    }
}

/// What `qemu-img create` is told.
struct Knobs {
    options: String,
    cluster_bytes: u64,
    refcount_bits: u64,
}

fn knobs(rng: &mut Rng) -> Knobs {
    let old = rng.below(5) == 0;
    let extended = !old && rng.below(3) == 0;
    let bits = match extended {
        true => 14 + rng.below(8),
        false => 9 + rng.below(13),
    };
    let refcount_bits = if old { 16 } else { 1 << rng.below(7) };
    let mut options = format!("cluster_size={}", 1_u64 << bits);
    if old {
        options += ",compat=0.10";
    } else {
        let zstd = if rng.below(2) == 0 { "zstd" } else { "zlib" };
        let lazy = if rng.below(4) == 0 { "on" } else { "off" };
        let extended = if extended { "on" } else { "off" };
        write!(
            options,
            ",refcount_bits={refcount_bits},compression_type={zstd},lazy_refcounts={lazy},\
             extended_l2={extended}"
        )
        .expect("a text");
    }
    Knobs {
        options,
        cluster_bytes: 1 << bits,
        refcount_bits,
    }
}

/// Whole sectors, up to 4 MiB.
fn size(rng: &mut Rng) -> u64 {
    let most = [64 * KIB, 1024 * KIB, 4096 * KIB][rng.below(3) as usize];
    (1 + rng.below(most / SECTOR)) * SECTOR
}

/// Commands of `qemu-io`, inside a disk of this size.
fn requests(rng: &mut Rng, size: u64, cluster: u64, qcow2: bool) -> Vec<String> {
    let mut list = Vec::new();
    for _ in 0..2 + rng.below(10) {
        let align = [SECTOR, 4 * KIB, cluster][rng.below(3) as usize];
        let at = rng.below(size.div_ceil(align)) * align;
        let most = [8 * KIB, 64 * KIB, cluster * 2, 512 * KIB][rng.below(4) as usize];
        let bytes = (1 + rng.below(most.div_ceil(SECTOR))) * SECTOR;
        let bytes = bytes.min(size - at);
        let byte = 1 + rng.below(255);
        list.push(match rng.below(9) {
            0 => format!("write -z {at} {bytes}"),
            1 => format!("write -z -u {at} {bytes}"),
            2 => format!("discard {at} {bytes}"),
            3 | 4 if qcow2 => {
                let at = at / cluster * cluster;
                let bytes = cluster.min(size - at);
                format!("write -c -P {byte} {at} {bytes}")
            }
            _ => format!("write -P {byte} {at} {bytes}"),
        });
    }
    list
}

fn fill(made: &mut Made, rng: &mut Rng, name: &str, size: u64, cluster: u64, qcow2: bool) {
    let mut arguments = vec!["-f", if qcow2 { "qcow2" } else { "raw" }];
    // What `discard` frees reads as zeroes, or as what lies below.
    arguments.extend(["-d", "unmap"]);
    let list = requests(rng, size, cluster, qcow2);
    list.iter().for_each(|it| arguments.extend(["-c", it]));
    arguments.push(name);
    made.run("qemu-io", &arguments);
}

/// QEMU's tools sync what they write, which takes most of the time on a disk.
fn in_memory() -> tempfile::TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.expect("a directory")
}

fn make(seed: u64) -> Made {
    let rng = &mut Rng::new(seed);
    let mut made = Made {
        directory: in_memory(),
        files: Vec::new(),
        story: String::new(),
    };
    let depth = rng.below(4);
    let top_size = size(rng);
    for level in 0..=depth {
        let name = format!("f{level}");
        let raw = level == 0 && depth > 0 && rng.below(2) == 0;
        // Shorter, longer, or as long as what lies above it.
        let size = if level == depth || rng.below(3) == 0 {
            top_size
        } else {
            size(rng)
        };
        if raw {
            made.run(
                "qemu-img",
                &["create", "-f", "raw", &name, &size.to_string()],
            );
            fill(&mut made, rng, &name, size, 64 * KIB, false);
        } else {
            layer(&mut made, rng, &name, size);
        }
        made.files.insert(0, (name, raw));
    }
    made
}

fn layer(made: &mut Made, rng: &mut Rng, name: &str, size: u64) {
    let Knobs {
        options,
        cluster_bytes,
        refcount_bits,
    } = knobs(rng);
    let text = size.to_string();
    let mut arguments = vec!["create", "-f", "qcow2", "-o", &options];
    let below = made.files.first().cloned();
    if let Some((below, raw)) = &below {
        let format = if *raw { "raw" } else { "qcow2" };
        arguments.extend(["-b", below, "-F", format]);
    }
    arguments.extend([name, &text]);
    assert!(made.run("qemu-img", &arguments), "{}", made.story);
    fill(made, rng, name, size, cluster_bytes, true);
    for number in 0..rng.below(3) {
        if refcount_bits > 1 {
            let snapshot = format!("s{number}");
            made.run("qemu-img", &["snapshot", "-c", &snapshot, name]);
            fill(made, rng, name, size, cluster_bytes, true);
        }
    }
    if rng.below(4) == 0 {
        let size = self::size(rng).to_string();
        made.run(
            "qemu-img",
            &["resize", "--shrink", "-f", "qcow2", name, &size],
        );
    }
}

fn parse(file: &[u8]) -> Result<Header, Error> {
    let wanted = bytes_wanted(file)?.min(file.len());
    Header::parse(&file[..wanted], file.len() as u64)
}

/// Corruptions and leaks in each reader's eyes; corruptions of a file that does not open are one.
fn ours(file: &[u8]) -> (u64, u64, String) {
    match parse(file) {
        Err(error) => (1, 0, error.to_string()),
        Ok(header) => {
            let report = check(&header, file.len() as u64, &mut &file[..]);
            let report = report.expect("memory is read");
            (
                report.corruptions,
                report.leaks,
                format!("{:?}", report.findings),
            )
        }
    }
}

fn of_qemu(directory: &Path, name: &str) -> (u64, u64, String) {
    let done = run(
        directory,
        "qemu-img",
        &["check", "-f", "qcow2", "--output=json", name],
    );
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let document: Value = match serde_json::from_slice(&done.stdout) {
        Ok(document) => document,
        Err(_) => return (1, 0, said),
    };
    let field = |key: &str| document[key].as_u64().unwrap_or(0);
    let failed = field("check-errors") + u64::from(done.status.code() == Some(1));
    (field("corruptions") + failed, field("leaks"), said)
}

/// The second reader over all files of an image.
fn second_view(files: &[(Vec<u8>, bool)], size: usize) -> Result<Vec<u8>, String> {
    let last = RefCell::new((std::ptr::null(), Vec::new()));
    let unpack = |zstd: bool, packed: &[u8], bytes: usize| {
        let mut last = last.borrow_mut();
        if last.0 != packed.as_ptr() {
            let how = if zstd {
                Compression::Zstd
            } else {
                Compression::Zlib
            };
            let mut cluster = vec![0; bytes];
            inflate(how, packed, &mut cluster).ok()?;
            *last = (packed.as_ptr(), cluster);
        }
        Some(last.1.clone())
    };
    let layers: Vec<Layer> = files
        .iter()
        .map(|(bytes, raw)| Layer { bytes, raw: *raw })
        .collect();
    let mut seen = vec![0; size];
    qcow2::view(&layers, 0, &mut seen, &unpack)?;
    Ok(seen)
}

/// As what it was made as: damage can hide that.
fn open(path: &Path) -> Result<Opened, Fault> {
    let rules = Rules {
        top: Some(Stated::Qcow2),
        allow: None,
    };
    chain::open(path, &rules, &mut Patience::none())
}

fn our_view(path: &Path) -> Result<Vec<u8>, Fault> {
    let opened = open(path)?;
    let mut seen = vec![0; opened.chain.size_bytes() as usize];
    for part in our_map(path)? {
        let at = part.span.at as usize;
        let into = &mut seen[at..at + part.span.bytes as usize];
        if let Some(index) = part.file {
            fetch(&opened, index, &part, into)?;
        }
    }
    Ok(seen)
}

/// The bytes of a run that lies in a file. Runs of compressed clusters are one cluster each.
fn fetch(opened: &Opened, index: FileIndex, part: &Part, into: &mut [u8]) -> Result<(), Fault> {
    let link = &opened.links[usize::from(index.0)];
    let name = chain::name_of(&link.path);
    match part.content {
        Content::Zero => {}
        Content::Data { at } => {
            into.copy_from_slice(&chain::read(&link.target, &name, at, into.len())?);
        }
        Content::Compressed { from, cluster_at } => {
            let header = opened.chain.file(index).header().expect("a qcow2 file");
            let bytes = chain::read(&link.target, &name, from.at, from.bytes as usize)?;
            let mut cluster = vec![0; header.cluster_bytes() as usize];
            inflate(header.compression, &bytes, &mut cluster)
                .map_err(|why| Fault::new(Kind::Invalid, format!("{name}: a cluster {why}")))?;
            let skip = (part.span.at - cluster_at) as usize;
            into.copy_from_slice(&cluster[skip..skip + into.len()]);
        }
    }
    Ok(())
}

fn our_map(path: &Path) -> Result<Vec<Part>, Fault> {
    let opened = open(path)?;
    let (mut walk, mut metadata) = (Walk::default(), Metadata::default());
    let mut runs = Vec::new();
    while let Err(stop) = walk.go(&opened.chain, &mut metadata, |run| runs.push(run)) {
        metadata.meet(&opened, stop)?;
    }
    Ok(runs)
}

/// What QEMU calls data lies where we say; what we call zeroes QEMU calls so as well. The other
/// way round is open: QEMU asks the file system for holes.
fn assert_maps_agree(made: &Made, top: &str) {
    let map = must(
        made.path(),
        "qemu-img",
        &["map", "--output=json", "-f", "qcow2", top],
    );
    let map: Value = serde_json::from_slice(&map.stdout).expect("a map");
    let runs = our_map(&made.path().join(top)).expect("it opens");
    for extent in map.as_array().expect("a list") {
        let field = |key: &str| extent[key].as_u64();
        let (start, length) = (field("start").expect("it"), field("length").expect("it"));
        let zero = extent["zero"] == true;
        let touched = runs
            .iter()
            .filter(|it| it.span.at < start + length && it.span.end() > start);
        for run in touched {
            let why = format!("{}\n{extent}\n{run:?}", made.story);
            let shift = start.max(run.span.at);
            match run.content {
                Content::Zero => assert!(zero, "{why}"),
                _ if zero => {}
                Content::Data { at } => {
                    let place = field("offset").expect("data has a place") + (shift - start);
                    assert_eq!(at + (shift - run.span.at), place, "{why}");
                    let depth = run.file.map(|FileIndex(depth)| u64::from(depth));
                    assert_eq!(depth, field("depth"), "{why}");
                }
                Content::Compressed { .. } => assert_eq!(field("offset"), None, "{why}"),
            }
        }
    }
}

fn assert_verdicts_agree(made: &Made, name: &str, file: &[u8]) {
    let (ours, qemu) = (ours(file), of_qemu(made.path(), name));
    let second = qcow2::judge(file);
    let why = format!("{}{name}: {ours:?}\n{qemu:?}\n{second:?}", made.story);
    assert_eq!((ours.0 > 0, ours.1), (qemu.0 > 0, qemu.1), "{why}");
    assert_eq!(
        (ours.0 > 0, ours.1),
        (!second.errors.is_empty(), second.leaks.len() as u64),
        "{why}"
    );
}

fn assert_content_agrees(made: &Made, files: &[(Vec<u8>, bool)], top: &str) {
    let arguments = ["convert", "-f", "qcow2", "-O", "raw", top, "content"];
    must(made.path(), "qemu-img", &arguments);
    let content = std::fs::read(made.path().join("content")).expect("it was made");
    let ours = our_view(&made.path().join(top)).unwrap_or_else(|it| panic!("{it}\n{}", made.story));
    let differs = |one: &[u8], other: &[u8]| one.iter().zip(other).position(|(a, b)| a != b);
    assert_eq!(ours.len(), content.len(), "{}", made.story);
    assert_eq!(differs(&ours, &content), None, "{}", made.story);
    let second = second_view(files, content.len()).expect("it reads");
    assert_eq!(differs(&second, &content), None, "{}", made.story);
}

/// Places of bytes that say what lies where, without the file's content.
fn metadata_bytes(file: &[u8], rng: &mut Rng) -> Option<u64> {
    let header = parse(file).ok()?;
    let word = |at: u64| {
        let bytes = file.get(at as usize..at as usize + 8).unwrap_or(&[0; 8]);
        u64::from_be_bytes(bytes.try_into().expect("eight"))
    };
    let l1 = header.l1();
    let entry = |rng: &mut Rng, at: u64, entries: u64| word(at + rng.below(entries.max(1)) * 8);
    let range = match rng.below(8) {
        0 => (0, 112),
        1 => (l1.at, l1.bytes),
        2 => (
            header.refcount_table.at,
            64.min(header.refcount_table.bytes),
        ),
        3 | 4 => (
            entry(rng, header.refcount_table.at, 1),
            header.cluster_bytes().min(512),
        ),
        5 if header.snapshots > 0 => (header.snapshots_at, 64),
        _ => {
            let table = entry(rng, l1.at, u64::from(header.l1_entries)) & 0x00ff_ffff_ffff_fe00;
            (table, header.cluster_bytes().min(4 * KIB))
        }
    };
    Some(range.0 + rng.below(range.1.max(1)))
}

#[test]
fn three_readers_agree_on_random_images() {
    if !has_qemu("three_readers_agree_on_random_images") {
        return;
    }
    let seed = count("TENUTO_SEED", 1);
    let (mut damaged, mut errors, mut broken) = (0, 0, 0);
    for seed in seed..seed + count("TENUTO_IMAGES", IMAGES) {
        let mut made = make(seed);
        writeln!(made.story, "replay with TENUTO_SEED={seed} TENUTO_IMAGES=1").expect("a text");
        let bytes = made.bytes();
        let raws = made.files.iter().map(|(_, raw)| *raw);
        let files: Vec<(Vec<u8>, bool)> = bytes.into_iter().zip(raws).collect();
        let top = made.files[0].0.clone();
        for ((name, raw), (bytes, _)) in made.files.iter().zip(&files) {
            if !raw {
                assert_verdicts_agree(&made, name, bytes);
                let (errors, _, said) = ours(bytes);
                if errors > 0 {
                    broken += 1;
                    println!("{}{name}: {said}", made.story);
                }
            }
        }
        assert_content_agrees(&made, &files, &top);
        assert_maps_agree(&made, &top);
        let rng = &mut Rng::new(seed ^ 0xda3a);
        for _ in 0..count("TENUTO_DAMAGED", DAMAGED) {
            let Some((file, place)) = damage(&files[0].0, rng) else {
                continue;
            };
            damaged += 1;
            errors += u64::from(judge_damaged(&made, &files, &file, &place));
        }
    }
    println!("{damaged} damaged, {errors} with errors, {broken} that QEMU made so");
    assert!(
        errors * 3 > damaged,
        "{errors} of {damaged}: the damage is not seen"
    );
    assert!(damaged > 0 && errors < damaged, "some changes do no harm");
}

/// A copy with some bytes changed, and which.
fn damage(file: &[u8], rng: &mut Rng) -> Option<(Vec<u8>, String)> {
    let (mut file, mut places) = (file.to_vec(), String::new());
    for _ in 0..1 + rng.below(2) {
        let at = metadata_bytes(&file, rng)?;
        let flip = 1_u8 << rng.below(8);
        *file.get_mut(at as usize)? ^= flip;
        write!(places, "byte {at:#x} ^ {flip:#x}, ").expect("a text");
    }
    Some((file, places))
}

/// What our reader refuses although QEMU does not: limits of ours, and names that are no text.
fn is_stricter(error: &Error) -> bool {
    matches!(
        error,
        Error::Name { .. }
            | Error::ExtensionTwice { .. }
            | Error::ExtensionsMany
            | Error::HeaderBytes(_)
            | Error::VirtualSize(_)
            | Error::Outside { .. }
    )
}

/// What the second reader does not look at.
fn is_unseen(error: &Error) -> bool {
    let name = matches!(error, Error::Outside { what, .. } | Error::TooLarge { what, .. }
        if *what == "backing name");
    name || matches!(
        error,
        Error::Extension { .. }
            | Error::ExtensionTwice { .. }
            | Error::NoEncryptionHeader
            | Error::DataFileUnnamed
            | Error::Name { .. }
    )
}

/// A damaged file with those that it stands on: the name in it may lead to another one of them.
fn chain_of(made: &Made, files: &[(Vec<u8>, bool)], file: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let named = parse(file).ok().and_then(|header| header.backing);
    let is_named = |(name, _): &(String, bool)| named.as_ref() == Some(name);
    let next = made.files.iter().position(is_named).unwrap_or(files.len());
    [&[(file.to_vec(), false)], &files[next..]].concat()
}

/// Whether an error was seen. Where nothing is wrong, the content is what QEMU reads.
fn judge_damaged(made: &Made, files: &[(Vec<u8>, bool)], file: &[u8], place: &str) -> bool {
    let path = made.path().join("damaged");
    std::fs::write(&path, file).expect("written");
    let (ours, qemu) = (ours(file), of_qemu(made.path(), "damaged"));
    let (second, refused) = (qcow2::judge(file), parse(file).err());
    let why = format!("{}{place}\n{ours:?}\n{qemu:?}\n{second:?}", made.story);
    // QEMU opens the backing as well; its name or format was changed.
    if qemu.2.contains("Could not open backing file") {
        assert!(our_view(&path).is_err(), "{why}");
        return ours.0 > 0;
    }
    // Our own bit, which QEMU refuses so that our message is shown.
    if parse(file).is_ok_and(|header| header.is_guarded()) {
        assert!(qemu.2.contains("Unsupported qcow2 feature"), "{why}");
        return false;
    }
    let unseen = refused.as_ref().is_some_and(is_unseen) && second.errors.is_empty();
    // It calls itself encrypted: QEMU wants a key before it looks at anything, and has no verdict.
    if qemu.2.contains("encrypt.key-secret") {
        assert!(our_view(&path).is_err(), "{why}");
        assert!((ours.0 > 0) != second.errors.is_empty() || unseen, "{why}");
        return ours.0 > 0;
    }
    let wrong = [ours.0 > 0, qemu.0 > 0, !second.errors.is_empty()];
    let stricter = refused.as_ref().is_some_and(is_stricter) && !wrong[1];
    assert!(wrong[0] == wrong[1] || stricter, "{why}");
    assert!(wrong[0] == wrong[2] || unseen, "{why}");
    if !wrong[0] {
        assert_eq!(
            (ours.1, ours.1),
            (qemu.1, second.leaks.len() as u64),
            "{why}"
        );
    }
    let size = parse(file).map_or(0, |header| header.size_bytes);
    if size > SIZE_MAX {
        return wrong[0];
    }
    // Whatever is wrong, it is read or refused. A check does not look at all that a reader needs.
    let convert = ["convert", "-f", "qcow2", "-O", "raw", "damaged", "content"];
    let content = match our_view(&path) {
        Ok(content) => content,
        // A backing that QEMU would believe without being told what it is.
        Err(fault) if fault.kind == Kind::Foreign => return wrong[0],
        Err(_) => {
            let qemu = run(made.path(), "qemu-img", &convert);
            assert!(wrong[0] || !qemu.status.success(), "{why}");
            return wrong[0];
        }
    };
    let seen = second_view(&chain_of(made, files, file), content.len());
    assert_eq!(seen.map(|it| it == content), Ok(true), "{why}");
    if !wrong[0] {
        must(made.path(), "qemu-img", &convert);
        let seen = std::fs::read(made.path().join("content")).expect("it was made");
        assert!(seen == content, "{why}");
    }
    wrong[0]
}
