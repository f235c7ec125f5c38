//! A disk that loses power, and a disk that is slow with single writes.
//!
//! Owns the bytes of one disk in this process, and a mount of it as a plain file by FUSE, on which
//! a loop device can sit. Always true: a flush covers exactly the writes that were answered before
//! it arrived; after [`Disk::cut_power`] nothing changes any more, and [`Disk::restore_power`]
//! continues from the synced bytes plus a seeded subset of the unsynced sectors, torn at 512
//! bytes. Writes that match a hold are parked without an answer until they are let go, as a path
//! to a far array does it; no other request waits for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, INodeNo, KernelConfig, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request, WriteFlags,
};

use super::fuse::{self, Mount, SECTOR};
use workload::rng::Rng;

const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the kernel may believe attributes; the size never changes.
const ATTRIBUTES_FOR: Duration = Duration::from_secs(3600);

/// A write without an answer.
struct Parked {
    offset: u64,
    payload: Vec<u8>,
    answer: Answer,
}

/// A read without an answer.
struct ParkedRead {
    from: usize,
    to: usize,
    reply: ReplyData,
}

/// Where the answer to a change goes.
enum Answer {
    Write(ReplyWrite, u32),
    Zero(ReplyEmpty),
}

impl Answer {
    fn give(self, result: Result<(), Errno>) {
        match (self, result) {
            (Answer::Write(reply, bytes), Ok(())) => reply.written(bytes),
            (Answer::Write(reply, _), Err(error)) => reply.error(error),
            (Answer::Zero(reply), Ok(())) => reply.ok(),
            (Answer::Zero(reply), Err(error)) => reply.error(error),
        }
    }
}

#[derive(Default)]
struct State {
    /// What a reader sees.
    now: Vec<u8>,
    /// What the last flush left.
    synced: Vec<u8>,
    /// Answered writes since the last flush, in order; replayed onto `synced` by the flush.
    unsynced: VecDeque<(usize, Vec<u8>)>,
    powered: bool,
    /// Every request fails, nothing is lost: a path that is down.
    unplugged: bool,
    /// Writes find no room.
    full: bool,
    hold_from: Option<(u64, u64)>,
    hold_reads: Option<(u64, u64)>,
    parked: Vec<Parked>,
    parked_reads: Vec<ParkedRead>,
}

/// Bytes with a power switch. Cheap to clone; all clones are the same disk.
#[derive(Clone)]
pub struct Disk {
    state: Arc<(Mutex<State>, Condvar)>,
}

/// What a power cut took and left.
#[derive(Debug, Default, Clone, Copy)]
pub struct Loss {
    pub unsynced_sectors: u64,
    pub kept_sectors: u64,
}

impl Disk {
    pub fn new(bytes: usize) -> Disk {
        assert_eq!(bytes % SECTOR, 0);
        let state = State {
            now: vec![0; bytes],
            synced: vec![0; bytes],
            powered: true,
            ..State::default()
        };
        Disk {
            state: Arc::new((Mutex::new(state), Condvar::new())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Puts bytes on the disk before anybody uses it.
    pub fn fill(&self, at: usize, bytes: &[u8]) {
        let mut state = self.lock();
        state.now[at..at + bytes.len()].copy_from_slice(bytes);
        state.synced[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.lock().now.clone()
    }

    /// While unplugged every request fails; what was written stays.
    pub fn unplug(&self, unplugged: bool) {
        self.lock().unplugged = unplugged;
    }

    /// While full every write fails for want of room.
    pub fn fill_up(&self, full: bool) {
        self.lock().full = full;
    }

    /// From now on every request fails and nothing changes. Requests that wait stay unanswered
    /// and never land.
    pub fn cut_power(&self) {
        let mut state = self.lock();
        state.powered = false;
        state.parked.clear();
        state.parked_reads.clear();
        (state.hold_from, state.hold_reads) = (None, None);
    }

    /// Continues from what a power cut leaves: synced bytes and some of the unsynced sectors.
    pub fn restore_power(&self, random: &mut Rng) -> Loss {
        let mut guard = self.lock();
        let state = &mut *guard;
        assert!(!state.powered, "power is restored only after a cut");
        let mut loss = Loss::default();
        // One share per cut, so that some cuts keep almost everything and some almost nothing.
        let keep_percent = [0, 20, 50, 80, 97][random.below(5) as usize];
        for (offset, payload) in state.unsynced.drain(..) {
            let whole = random.below(100) < 50;
            let kept = random.below(100) < keep_percent;
            for (index, sector) in payload.chunks(SECTOR).enumerate() {
                loss.unsynced_sectors += 1;
                let keep = if whole {
                    kept
                } else {
                    random.below(100) < keep_percent
                };
                if keep {
                    loss.kept_sectors += 1;
                    let at = offset + index * SECTOR;
                    state.synced[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        state.now = state.synced.clone();
        state.powered = true;
        loss
    }

    /// Parks every later write that touches this range.
    pub fn hold_writes(&self, from: u64, to: u64) {
        self.lock().hold_from = Some((from, to));
    }

    /// Parks every later read that touches this range.
    pub fn hold_reads(&self, from: u64, to: u64) {
        self.lock().hold_reads = Some((from, to));
    }

    /// Waits until that many requests are parked. False when it takes longer than `timeout`.
    pub fn wait_parked(&self, count: usize, timeout: Duration) -> bool {
        let (mutex, changed) = &*self.state;
        let guard = mutex.lock().unwrap();
        let (guard, _) = changed
            .wait_timeout_while(guard, timeout, |state| state.parked() < count)
            .unwrap();
        guard.parked() >= count
    }

    /// Later requests pass again; the parked ones stay parked.
    pub fn hold_no_more(&self) {
        let mut state = self.lock();
        (state.hold_from, state.hold_reads) = (None, None);
    }

    pub fn parked(&self) -> usize {
        self.lock().parked()
    }

    /// Ends the hold: parked requests land now, late, and are answered. Returns how many.
    pub fn let_go(&self) -> usize {
        let mut state = self.lock();
        (state.hold_from, state.hold_reads) = (None, None);
        let count = state.parked();
        for read in std::mem::take(&mut state.parked_reads) {
            read.reply.data(&state.now[read.from..read.to]);
        }
        let parked = std::mem::take(&mut state.parked);
        for write in parked {
            state.write(write.offset as usize, write.payload);
            // Whoever asked may be gone; the bytes have landed all the same.
            write.answer.give(Ok(()));
        }
        count
    }

    fn take_write(&self, offset: u64, payload: Vec<u8>, answer: Answer) {
        let mut state = self.lock();
        let end = offset + payload.len() as u64;
        let held = state
            .hold_from
            .is_some_and(|(from, to)| offset < to && from < end);
        if !state.answers() || end > state.now.len() as u64 {
            drop(state);
            answer.give(Err(Errno::EIO));
        } else if state.full {
            drop(state);
            answer.give(Err(Errno::ENOSPC));
        } else if held {
            state.parked.push(Parked {
                offset,
                payload,
                answer,
            });
            self.state.1.notify_all();
        } else {
            state.write(offset as usize, payload);
            drop(state);
            answer.give(Ok(()));
        }
    }

    fn attributes(&self) -> FileAttr {
        let size = self.lock().now.len() as u64;
        fuse::file(INodeNo::ROOT, size, SystemTime::UNIX_EPOCH)
    }
}

/// The disk as the only file of a file system. The calls answer at once or park.
impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        fuse::side_by_side(config)
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_FOR, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), fuse::DIRECT);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.lock();
        let Range {
            start: from,
            end: to,
        } = fuse::readable(state.now.len(), offset, size);
        let held = state
            .hold_reads
            .is_some_and(|held| (from as u64) < held.1 && held.0 < to as u64);
        if !state.answers() {
            reply.error(Errno::EIO);
        } else if held {
            state.parked_reads.push(ParkedRead { from, to, reply });
            self.state.1.notify_all();
        } else {
            reply.data(&state.now[from..to]);
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let answer = Answer::Write(reply, data.len() as u32);
        self.take_write(offset, data.to_vec(), answer);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            reply.error(Errno::EOPNOTSUPP);
            return;
        }
        self.take_write(offset, vec![0; length as usize], Answer::Zero(reply));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.lock();
        if !state.answers() {
            reply.error(Errno::EIO);
            return;
        }
        state.flush();
        drop(state);
        reply.ok();
    }

    /// The end of a descriptor; nothing is kept back until then.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

impl State {
    fn parked(&self) -> usize {
        self.parked.len() + self.parked_reads.len()
    }

    fn answers(&self) -> bool {
        self.powered && !self.unplugged
    }

    fn write(&mut self, offset: usize, payload: Vec<u8>) {
        self.now[offset..offset + payload.len()].copy_from_slice(&payload);
        self.unsynced.push_back((offset, payload));
    }

    fn flush(&mut self) {
        for (offset, payload) in self.unsynced.drain(..) {
            self.synced[offset..offset + payload.len()].copy_from_slice(&payload);
        }
    }
}

/// The disk as a plain file, by FUSE. Unmounted when dropped.
pub struct Mounted(Mount);

impl Mounted {
    /// Mounts `disk` over `file`, which is created.
    pub fn new(disk: &Disk, file: &Path) -> Mounted {
        std::fs::write(file, []).expect("create the file to mount over");
        Mounted(Mount::new(disk.clone(), file))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A loop device on a file. Detached when dropped.
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    pub fn new(file: &Path) -> Loop {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()
            .expect("run losetup");
        assert!(
            output.status.success(),
            "losetup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let device = String::from_utf8(output.stdout).expect("a path from losetup");
        Loop {
            device: PathBuf::from(device.trim()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

/// The disk as a block device: a loop device on its mount. Direct input and output passes through
/// both, so that a request of a killed process stays under way without the process.
pub struct Device {
    device: Option<Loop>,
    _below: Mounted,
}

impl Device {
    pub fn new(disk: &Disk, base: &Path) -> Device {
        let below = Mounted::new(disk, base);
        Device {
            device: Some(Loop::new(below.path())),
            _below: below,
        }
    }

    pub fn path(&self) -> &Path {
        self.device
            .as_ref()
            .expect("taken only when dropped")
            .path()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Before the file under it goes.
        self.device.take();
    }
}

/// A file system on a disk: mount, loop device and ext4, in this order, taken down in reverse.
pub struct FileSystem {
    directory: PathBuf,
    device: Option<Loop>,
    below: Option<Mounted>,
}

impl FileSystem {
    /// Makes the file system; everything written so far is synced afterwards.
    pub fn make(disk: &Disk, base: &Path) {
        let below = Mounted::new(disk, base);
        let status = Command::new("mkfs.ext4")
            .args([
                "-q",
                "-F",
                "-b",
                "4096",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
            ])
            .arg(below.path())
            .status()
            .expect("run mkfs.ext4");
        assert!(status.success(), "mkfs.ext4");
        drop(below);
        disk.lock().flush();
    }

    /// Mounts it at `base` with the extension `dir`; its own journal is replayed by that.
    pub fn mount(disk: &Disk, base: &Path) -> FileSystem {
        let below = Mounted::new(disk, base);
        let device = Loop::new(below.path());
        let directory = base.with_extension("dir");
        std::fs::create_dir_all(&directory).expect("create the mount point");
        let status = Command::new("mount")
            .args(["-t", "ext4", "-o", "noatime,errors=remount-ro"])
            .arg(device.path())
            .arg(&directory)
            .status()
            .expect("run mount");
        assert!(status.success(), "the file system on the disk mounts");
        FileSystem {
            directory,
            device: Some(device),
            below: Some(below),
        }
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }
}

/// Waits until nobody holds it any more. Not lazily: a file system that is still mounted would be
/// mounted a second time by the next round, with the first one's pages.
pub fn unmount(place: &Path) {
    let start = Instant::now();
    while !Command::new("umount")
        .arg(place)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        if start.elapsed() > UNMOUNT_TIMEOUT {
            eprintln!("{} could not be unmounted", place.display());
            break;
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        unmount(&self.directory);
        self.device.take();
        self.below.take();
    }
}
