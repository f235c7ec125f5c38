//! The program that works inside a guest: loads on its disks, and the check of what they hold.
//!
//! Built by itself with nothing but the standard library and started as the guest's only program;
//! the tests include it as a module, for what both sides must agree on. Always true: whatever it
//! writes is stamped with its lane and a serial that only rises, and whatever it has read is looked
//! at, at once and again later, in the memory in which it was read; the first thing that is wrong,
//! an error of a disk above all, is said and ends the work. Deliberately absent: knowing what the
//! host does meanwhile.
//!
//! ```text
//! tenuto.step=work|check|late  tenuto.disks=vda:blocks,vdb:ext4,vdc:xfs, or vda1:root
//! says: disk …, found DISK SERIAL…, working, kept DISK SERIAL…, least N, passes N, sum DISK X,
//! over, error: …
//! ```
#![allow(dead_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::rng::Rng;
use super::stamp::{self, Reading, SECTOR_BYTES};

/// Of a disk of `blocks`: a library that nobody changes, and a part for each lane.
pub const LIBRARY_BYTES: usize = 8 << 20;
/// The queue depth.
const LANES: usize = 16;
const LANE_BLOCKS: u64 = 256;
pub const DISK_BYTES: u64 = LIBRARY_BYTES as u64 + LANES as u64 * LANE_BLOCKS * BLOCK as u64;
const BLOCK: usize = 4096;
const BLOCKS_MAX: u64 = 16;
const LIBRARY_TAG: u64 = 1000;
/// What is read of the library at a time, and kept to be looked at again.
const CHUNK: usize = 64 << 10;
const READERS: usize = 2;
const CHUNKS_KEPT: usize = 96;
/// Of a disk with a file system.
const WRITERS: usize = 2;
const FILES: u64 = 48;
const FILE_SECTORS_MAX: u64 = 256;
/// Where the step `late` reads, in the library.
pub const LATE_AT: u64 = 1 << 20;
pub const LATE_BYTES: u64 = CHUNK as u64;
const O_DIRECT: i32 = 0o40000;
const TOLD_EVERY: Duration = Duration::from_millis(200);

type Result<T> = std::result::Result<T, String>;

/// What a disk of `blocks` begins with.
pub fn library() -> Vec<u8> {
    let mut bytes = vec![0; LIBRARY_BYTES];
    stamp::fill(&mut bytes, LIBRARY_TAG, 0, 1);
    bytes
}

/// A number that stands for bytes, the same on both sides.
pub fn sum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(sum, |sum, word| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (sum ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29)
    })
}

fn say(text: impl std::fmt::Display) {
    println!("guest: {text}");
}

pub fn main() {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let word = |key: &str| {
        let found = line.split_whitespace().find_map(|it| it.strip_prefix(key));
        found.unwrap_or_default().to_owned()
    };
    let (step, disks) = (word("tenuto.step="), word("tenuto.disks="));
    let disks: Vec<(String, String)> = disks
        .split(',')
        .filter_map(|disk| disk.split_once(':'))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    describe();
    let done = match step.as_str() {
        "work" => work(&disks),
        "check" => check(&disks),
        "late" => late(),
        _ => Err(format!("there is no step {step:?}")),
    };
    match done {
        Ok(()) => say("over"),
        Err(error) => say(format!("error: {error}")),
    }
    // The console has it all before the machine is gone.
    let _ = File::open("/dev/console").map(|console| console.sync_all());
    let _ = Command::new("/bin/busybox")
        .args(["poweroff", "-f"])
        .status();
}

/// What the kernel makes of each disk.
fn describe() {
    let mut names: Vec<String> = std::fs::read_dir("/sys/block")
        .expect("the disks")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("vd"))
        .collect();
    names.sort();
    for name in names {
        let of = |file: &str| {
            let text = std::fs::read_to_string(format!("/sys/block/{name}/{file}"));
            text.unwrap_or_default().trim().to_owned()
        };
        let queues = std::fs::read_dir(format!("/sys/block/{name}/mq"));
        say(format!(
            "disk {name} serial={} cache={} logical={} physical={} discard={} zeroes={} queues={}",
            of("serial"),
            of("queue/write_cache"),
            of("queue/logical_block_size"),
            of("queue/physical_block_size"),
            of("queue/discard_max_bytes"),
            of("queue/write_zeroes_max_bytes"),
            queues.map(Iterator::count).unwrap_or(0)
        ));
    }
}

/// Memory at which a device may write by itself.
struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Buffer {
        let bytes = vec![0; length + BLOCK];
        let from = bytes.as_ptr().align_offset(BLOCK);
        Buffer {
            bytes,
            from,
            length,
        }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

fn open(path: &str) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_DIRECT)
        .open(path);
    file.map_err(|error| format!("open {path}: {error}"))
}

/// All sectors must carry this, from `sector` on.
fn judge(bytes: &[u8], tag: u64, sector: u64, serial: u64) -> Result<()> {
    for (sector, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
        let expected = Reading::Stamped {
            tag,
            sector,
            serial,
        };
        let found = stamp::read(bytes);
        if found != expected {
            return Err(format!("{found:?} instead of {expected:?}"));
        }
    }
    Ok(())
}

/// What all threads share.
#[derive(Default)]
struct Work {
    stop: AtomicBool,
    /// Of each thread, what it has done so far.
    counts: Mutex<Vec<Arc<AtomicU64>>>,
    /// How often each reader has looked at all that it had read.
    passes: Mutex<Vec<Arc<AtomicU64>>>,
}

/// One stream of writes: which serial of it was flushed last.
struct Lane {
    tag: u64,
    kept: AtomicU64,
}

struct Disk {
    name: String,
    kind: String,
    lanes: Vec<Arc<Lane>>,
}

impl Disk {
    fn open((name, kind): &(String, String)) -> Result<Disk> {
        let lanes = match kind.as_str() {
            "blocks" => LANES,
            _ => WRITERS,
        };
        let lanes = (0..lanes as u64).map(|tag| {
            let kept = AtomicU64::new(0);
            Arc::new(Lane { tag, kept })
        });
        let disk = Disk {
            name: name.clone(),
            kind: kind.clone(),
            lanes: lanes.collect(),
        };
        if kind != "blocks" {
            std::fs::create_dir_all(disk.directory()).map_err(|error| error.to_string())?;
        }
        match kind.as_str() {
            "blocks" => {}
            "root" => busybox(&["mount", "-o", "remount,rw", "/"])?,
            _ => busybox(&["mount", "-t", kind, &disk.path(), &disk.directory()])?,
        }
        // What is there is what the work goes on from.
        for lane in &disk.lanes {
            let newest = match kind.as_str() {
                "blocks" => survey(&open(&disk.path())?, lane)?.into_iter().max(),
                _ => Some(newest_file(&disk.directory(), lane.tag)?),
            };
            lane.kept.store(newest.unwrap_or(0), Ordering::SeqCst);
        }
        say(format!("found {}", disk.tell()));
        Ok(disk)
    }

    fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }

    fn directory(&self) -> String {
        format!("/mnt/{}", self.name)
    }

    fn tell(&self) -> String {
        let kept = self.lanes.iter().map(|lane| &lane.kept);
        let kept = kept.map(|kept| kept.load(Ordering::SeqCst).to_string());
        format!("{} {}", self.name, kept.collect::<Vec<_>>().join(" "))
    }

    fn start(&self, work: &Arc<Work>) -> Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        for lane in &self.lanes {
            let (lane, directory) = (lane.clone(), self.directory());
            threads.push(match self.kind.as_str() {
                "blocks" => {
                    let file = open(&self.path())?;
                    spawn(work, move |work, count| blocks(&file, &lane, work, count))
                }
                _ => spawn(work, move |work, count| {
                    files(&directory, &lane, work, count)
                }),
            });
        }
        if self.kind == "blocks" {
            for reader in 0..READERS {
                let file = open(&self.path())?;
                let pass = Arc::new(AtomicU64::new(0));
                work.passes.lock().unwrap().push(pass.clone());
                let read = move |work: &Work, count: &AtomicU64| {
                    readers(&file, reader as u64, work, count, &pass)
                };
                threads.push(spawn(work, read));
            }
        }
        Ok(threads)
    }

    fn end(&self) -> Result<()> {
        match self.kind.as_str() {
            "blocks" => {}
            "root" => return busybox(&["mount", "-o", "remount,ro", "/"]),
            _ => return busybox(&["umount", &self.directory()]),
        }
        let file = open(&self.path())?;
        let mut buffer = Buffer::new(1 << 20);
        let mut total = 0;
        for at in (0..DISK_BYTES).step_by(1 << 20) {
            let read = file.read_exact_at(buffer.get(), at);
            read.map_err(|error| format!("read at {at}: {error}"))?;
            total = sum(total, buffer.get());
        }
        say(format!("sum {} {total:016x}", self.name));
        Ok(())
    }
}

fn busybox(arguments: &[&str]) -> Result<()> {
    let status = Command::new("/bin/busybox").args(arguments).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("{arguments:?}: {other:?}")),
    }
}

fn spawn(
    work: &Arc<Work>,
    run: impl FnOnce(&Work, &AtomicU64) -> Result<()> + Send + 'static,
) -> JoinHandle<()> {
    let work = work.clone();
    let count = Arc::new(AtomicU64::new(0));
    work.counts.lock().unwrap().push(count.clone());
    thread::spawn(move || {
        if let Err(error) = run(&work, &count) {
            say(format!("error: {error}"));
        }
    })
}

/// Works until a line comes from the host.
fn work(disks: &[(String, String)]) -> Result<()> {
    let disks: Vec<Disk> = disks.iter().map(Disk::open).collect::<Result<_>>()?;
    let work = Arc::new(Work::default());
    let mut threads = Vec::new();
    for disk in &disks {
        threads.extend(disk.start(&work)?);
    }
    say("working");
    thread::scope(|scope| {
        scope.spawn(|| tell(&disks, &work));
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        work.stop.store(true, Ordering::SeqCst);
        read.map(|_| ()).map_err(|error| error.to_string())
    })?;
    for thread in threads {
        thread.join().map_err(|_| "a panic".to_owned())?;
    }
    disks.iter().try_for_each(Disk::end)
}

/// Says from time to time how far everybody is.
fn tell(disks: &[Disk], work: &Work) {
    let least = |counts: &Mutex<Vec<Arc<AtomicU64>>>| {
        let counts = counts.lock().unwrap();
        let counts = counts.iter().map(|count| count.load(Ordering::SeqCst));
        counts.min().unwrap_or(0)
    };
    let mut before = String::new();
    while !work.stop.load(Ordering::SeqCst) {
        for disk in disks {
            say(format!("kept {}", disk.tell()));
        }
        let now = format!(
            "passes {}\nguest: least {}",
            least(&work.passes),
            least(&work.counts)
        );
        if now != before {
            say(&now);
            before = now;
        }
        thread::sleep(TOLD_EVERY);
    }
}

/// Mounts, looks at everything and unmounts.
fn check(disks: &[(String, String)]) -> Result<()> {
    for disk in disks {
        Disk::open(disk)?.end()?;
    }
    Ok(())
}

fn place(lane: u64, block: u64) -> u64 {
    LIBRARY_BYTES as u64 + (lane * LANE_BLOCKS + block) * BLOCK as u64
}

/// The serial of each block of a lane; 0 where nothing was written.
fn survey(file: &File, lane: &Lane) -> Result<Vec<u64>> {
    let mut buffer = Buffer::new(LANE_BLOCKS as usize * BLOCK);
    let at = place(lane.tag, 0);
    let read = file.read_exact_at(buffer.get(), at);
    read.map_err(|error| format!("lane {}: {error}", lane.tag))?;
    let blocks = buffer.get().chunks_exact(BLOCK).enumerate();
    let serials = blocks.map(|(block, bytes)| {
        let serial = match stamp::read(&bytes[..SECTOR_BYTES]) {
            Reading::Zero if bytes.iter().all(|&byte| byte == 0) => return Ok(0),
            Reading::Stamped { serial, .. } => serial,
            other => return Err(format!("lane {} block {block}: {other:?}", lane.tag)),
        };
        let sector = place(lane.tag, block as u64) / SECTOR_BYTES as u64;
        judge(bytes, lane.tag, sector, serial).map(|()| serial)
    });
    serials.collect()
}

/// Writes, reads and flushes at random in one lane.
fn blocks(file: &File, lane: &Lane, work: &Work, count: &AtomicU64) -> Result<()> {
    let mut serials = survey(file, lane)?;
    let mut serial = serials.iter().copied().max().unwrap_or(0);
    let mut random = Rng::new(serial << 8 | lane.tag);
    let mut buffer = Buffer::new(BLOCKS_MAX as usize * BLOCK);
    while !work.stop.load(Ordering::SeqCst) {
        let blocks = 1 + random.below(BLOCKS_MAX);
        let first = random.below(LANE_BLOCKS - BLOCKS_MAX);
        let at = place(lane.tag, first);
        let bytes = &mut buffer.get()[..blocks as usize * BLOCK];
        let range = first as usize..(first + blocks) as usize;
        let failed = |error| format!("lane {} at {at}: {error}", lane.tag);
        match random.below(100) {
            0..10 => {
                file.sync_data().map_err(failed)?;
                lane.kept.store(serial, Ordering::SeqCst);
            }
            10..30 => {
                file.read_exact_at(bytes, at).map_err(failed)?;
                for (block, bytes) in range.zip(bytes.chunks_exact(BLOCK)) {
                    let sector = place(lane.tag, block as u64) / SECTOR_BYTES as u64;
                    if serials[block] != 0 {
                        judge(bytes, lane.tag, sector, serials[block])?;
                    }
                }
            }
            _ => {
                serial += 1;
                stamp::fill(bytes, lane.tag, at / SECTOR_BYTES as u64, serial);
                file.write_all_at(bytes, at).map_err(failed)?;
                serials[range].fill(serial);
            }
        }
        count.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Reads the library into memory that no processor writes, and looks at it again much later: what
/// a device wrote there late, or what did not move to another machine, is seen only then.
fn readers(
    file: &File,
    reader: u64,
    work: &Work,
    count: &AtomicU64,
    pass: &AtomicU64,
) -> Result<()> {
    let mut random = Rng::new(reader);
    let mut kept: Vec<(Buffer, Option<u64>)> = Vec::new();
    kept.resize_with(CHUNKS_KEPT, || (Buffer::new(CHUNK), None));
    while !work.stop.load(Ordering::SeqCst) {
        for (buffer, has) in &mut kept {
            if let Some(at) = *has {
                judge(buffer.get(), LIBRARY_TAG, at / SECTOR_BYTES as u64, 1)
                    .map_err(|error| format!("in memory, read a while ago: {error}"))?;
            }
            if random.below(2) == 0 {
                let at = random.below((LIBRARY_BYTES / CHUNK) as u64) * CHUNK as u64;
                let read = file.read_exact_at(buffer.get(), at);
                read.map_err(|error| format!("library at {at}: {error}"))?;
                judge(buffer.get(), LIBRARY_TAG, at / SECTOR_BYTES as u64, 1)?;
                *has = Some(at);
            }
            count.fetch_add(1, Ordering::SeqCst);
        }
        pass.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

fn file_of(directory: &str, lane: u64, serial: u64) -> String {
    format!("{directory}/{lane}-{}", serial % FILES)
}

fn file_bytes(lane: u64, serial: u64) -> usize {
    let sectors = 1 + Rng::new(serial << 8 | lane).below(FILE_SECTORS_MAX);
    sectors as usize * SECTOR_BYTES
}

/// The newest file of a lane, when all the others that must be there are whole.
fn newest_file(directory: &str, lane: u64) -> Result<u64> {
    let mut found = Vec::new();
    for number in 0..FILES {
        let path = file_of(directory, lane, number);
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        let serial = match bytes.get(..SECTOR_BYTES).map(stamp::read) {
            Some(Reading::Stamped { serial, .. }) => serial,
            other => return Err(format!("{path}: {other:?}")),
        };
        let whole = bytes.len() == file_bytes(lane, serial) && serial % FILES == number;
        judge(&bytes, lane, 0, serial).map_err(|error| format!("{path}: {error}"))?;
        if !whole {
            return Err(format!("{path}: {} bytes of serial {serial}", bytes.len()));
        }
        found.push(serial);
    }
    let newest = found.iter().copied().max().unwrap_or(0);
    let oldest = (newest + 1).saturating_sub(FILES).max(1);
    match (oldest..=newest).find(|serial| !found.contains(serial)) {
        Some(lost) => Err(format!("file {lost} of {directory} {lane} is lost")),
        None => Ok(newest),
    }
}

/// Writes files under another name, flushes them, and lets them take the place of older ones.
fn files(directory: &str, lane: &Lane, work: &Work, count: &AtomicU64) -> Result<()> {
    let parent = File::open(directory).map_err(|error| error.to_string())?;
    let mut serial = lane.kept.load(Ordering::SeqCst);
    let mut buffer = Buffer::new(FILE_SECTORS_MAX as usize * SECTOR_BYTES);
    let mut random = Rng::new(lane.tag);
    while !work.stop.load(Ordering::SeqCst) {
        serial += 1;
        let path = file_of(directory, lane.tag, serial);
        let mut bytes = vec![0; file_bytes(lane.tag, serial)];
        stamp::fill(&mut bytes, lane.tag, 0, serial);
        let new = format!("{directory}/{}-new", lane.tag);
        File::create(&new)
            .and_then(|file| file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&new, &path))
            .and_then(|()| parent.sync_all())
            .map_err(|error| format!("{path}: {error}"))?;
        lane.kept.store(serial, Ordering::SeqCst);
        let earlier = serial - random.below(serial.min(FILES));
        again(directory, lane.tag, earlier, buffer.get())?;
        count.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Reads one of the files past the page cache.
fn again(directory: &str, lane: u64, serial: u64, buffer: &mut [u8]) -> Result<()> {
    let path = file_of(directory, lane, serial);
    let read = open(&path)?.read_at(buffer, 0);
    let read = read.map_err(|error| format!("{path}: {error}"))?;
    match read == file_bytes(lane, serial) {
        true => judge(&buffer[..read], lane, 0, serial).map_err(|error| format!("{path}: {error}")),
        false => Err(format!("{path}: {read} bytes of serial {serial}")),
    }
}

/// Reads once, takes the memory for something else, and looks at it when the host says so.
fn late() -> Result<()> {
    const OURS: u8 = 0x5a;
    let file = open("/dev/vda")?;
    let mut buffer = Buffer::new(LATE_BYTES as usize);
    say("reading");
    let read = file.read_exact_at(buffer.get(), LATE_AT);
    read.map_err(|error| format!("the read: {error}"))?;
    judge(buffer.get(), LIBRARY_TAG, LATE_AT / SECTOR_BYTES as u64, 1)?;
    buffer.get().fill(OURS);
    say("ours");
    let mut line = String::new();
    let heard = std::io::stdin().read_line(&mut line);
    heard.map_err(|error| error.to_string())?;
    match buffer.get().iter().position(|&byte| byte != OURS) {
        Some(at) => Err(format!("somebody wrote at byte {at}")),
        None => Ok(()),
    }
}
