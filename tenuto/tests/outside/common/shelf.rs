//! A directory in memory whose every change is logged, and that can be put back to any moment.
//!
//! Owns the files of one crash experiment, cache device, images, ledgers and journals alike, in one
//! FUSE mount, and one log of all that was done to them, in the order in which it was done. Always
//! true: a sync covers the changes of its own file that were answered before it arrived, a new
//! name lasts from the sync of the directory on, and the log says so; no answer is believed by the
//! kernel for longer than it takes, so that the files can be replaced between two daemons. A trap
//! kills a process when the n-th request arrives, and that request is done or not done, as the
//! trap says. Deliberately absent: what lies in the files, and who uses them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::fuse::{self, Mount, SECTOR};
use workload::rng::Rng;

/// Between the start of a process and its name.
const AIM_TIMEOUT: Duration = Duration::from_secs(20);
/// Nothing is remembered by the kernel: the files may be other ones in the next moment.
const NOT_KEPT: Duration = Duration::ZERO;
/// The first number of a file; 1 is the directory.
const FIRST_INODE: u64 = 2;

/// One file as it is at a moment.
#[derive(Clone, Debug)]
pub struct Stored {
    pub bytes: Vec<u8>,
    pub modified: SystemTime,
}

/// All files at a moment, by name.
pub type Image = BTreeMap<String, Stored>;

/// What was done to a file.
#[derive(Clone, Debug)]
pub enum Change {
    Write {
        offset: usize,
        bytes: Vec<u8>,
    },
    Zero {
        offset: usize,
        bytes: usize,
    },
    Size(usize),
    Sync,
    Make,
    Remove,
    /// The names in the directory.
    SyncNames,
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Logged {
    pub file: String,
    pub change: Change,
    pub at: SystemTime,
}

/// Kills a process at the n-th request, of all or of those of one kind.
#[derive(Clone, Debug)]
struct Trap {
    kind: Option<&'static str>,
    left: u64,
    /// Not known before the process is there; its requests wait until then.
    pid: Option<u32>,
    /// Whether the request at which the process dies is done all the same.
    lands: bool,
}

#[derive(Default)]
struct State {
    files: Image,
    /// Numbers of files, by name; a name keeps its number for ever.
    inodes: Vec<String>,
    log: Vec<Logged>,
    trap: Option<Trap>,
    sprung: Option<String>,
}

/// The directory. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Shelf {
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// For a request that counts: waits until a trap that is set knows its process.
    fn enter(&self) -> MutexGuard<'_, State> {
        let not_aimed = |state: &mut State| matches!(state.trap, Some(Trap { pid: None, .. }));
        let (state, timeout) = self
            .state
            .1
            .wait_timeout_while(self.lock(), AIM_TIMEOUT, not_aimed)
            .unwrap();
        assert!(!timeout.timed_out(), "a trap is aimed at once");
        state
    }

    /// Puts all files as they are in an image, with an empty log. Nobody may use them.
    pub fn load(&self, image: Image) {
        let mut state = self.lock();
        state.files = image;
        state.log.clear();
        state.trap = None;
        state.sprung = None;
    }

    pub fn image(&self) -> Image {
        self.lock().files.clone()
    }

    /// Puts a file there before anybody uses it.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let modified = SystemTime::now();
        let stored = Stored { bytes, modified };
        self.lock().files.insert(name.to_owned(), stored);
    }

    /// A file that nobody has changed for an hour.
    pub fn put_old(&self, name: &str, bytes: Vec<u8>) {
        let modified = SystemTime::now() - Duration::from_secs(3600);
        let stored = Stored { bytes, modified };
        self.lock().files.insert(name.to_owned(), stored);
    }

    /// The log so far.
    pub fn log(&self) -> Vec<Logged> {
        self.lock().log.clone()
    }

    /// Lines of the log so far.
    pub fn position(&self) -> usize {
        self.lock().log.len()
    }

    pub fn take_log(&self) -> Vec<Logged> {
        std::mem::take(&mut self.lock().log)
    }

    /// The process that is started next dies when its `nth` request arrives, counted from 1; of
    /// those of one kind, as in `write of cache`, if it is named. The requests wait until the
    /// process is named by [`Shelf::aim`].
    pub fn set_trap(&self, kind: Option<&'static str>, nth: u64, lands: bool) {
        let mut state = self.lock();
        state.sprung = None;
        state.trap = Some(Trap {
            kind,
            left: nth,
            pid: None,
            lands,
        });
    }

    pub fn aim(&self, pid: u32) {
        let mut state = self.lock();
        state.trap.as_mut().expect("a trap is set").pid = Some(pid);
        self.state.1.notify_all();
    }

    /// Takes the trap away; what the process was doing if it died in it.
    pub fn sprung(&self) -> Option<String> {
        let mut state = self.lock();
        state.trap = None;
        state.sprung.take()
    }
}

impl State {
    fn inode(&mut self, name: &str) -> INodeNo {
        let known = self.inodes.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.inodes.push(name.to_owned());
            self.inodes.len() - 1
        });
        INodeNo(FIRST_INODE + at as u64)
    }

    fn name(&self, inode: INodeNo) -> Option<String> {
        let at = inode.0.checked_sub(FIRST_INODE)?;
        self.inodes.get(at as usize).cloned()
    }

    /// Counts a request. False when it must not be done, because its process has died in it.
    fn admit(&mut self, what: &str, inode: INodeNo) -> bool {
        let name = self.name(inode).unwrap_or_default();
        let Some(trap) = self.trap.as_mut() else {
            return true;
        };
        let request = format!("{what} of {name}");
        let counts = trap.kind.is_none_or(|kind| kind == request);
        trap.left -= u64::from(self.sprung.is_none() && counts);
        if self.sprung.is_none() && trap.left == 0 {
            self.sprung = Some(request);
            let pid = trap.pid.expect("it was waited for");
            // SAFETY: plain call with the id of a child that its owner has not waited for.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        self.sprung.is_none() || trap.lands
    }

    fn change(&mut self, inode: INodeNo, change: Change) -> Result<(), Errno> {
        let file = self.name(inode).ok_or(Errno::ENOENT)?;
        let at = SystemTime::now();
        let logged = Logged { file, change, at };
        apply(&mut self.files, &logged);
        self.log.push(logged);
        Ok(())
    }

    fn attributes(&mut self, inode: INodeNo) -> Option<FileAttr> {
        if inode == INodeNo::ROOT {
            return Some(fuse::root());
        }
        let stored = self.files.get(&self.name(inode)?)?;
        let bytes = stored.bytes.len() as u64;
        Some(fuse::file(inode, bytes, stored.modified))
    }
}

/// Does to an image what a line of the log says; syncs change nothing that can be read.
pub fn apply(image: &mut Image, logged: &Logged) {
    let name = &logged.file;
    match &logged.change {
        Change::Make => {
            let empty = Stored {
                bytes: Vec::new(),
                modified: logged.at,
            };
            image.entry(name.clone()).or_insert(empty);
            return;
        }
        Change::Remove => {
            image.remove(name);
            return;
        }
        Change::Sync | Change::SyncNames => return,
        Change::Write { .. } | Change::Zero { .. } | Change::Size(_) => {}
    }
    if let Some(stored) = image.get_mut(name) {
        change_bytes(stored, &logged.change, |_| true);
        stored.modified = logged.at;
    }
}

/// Changes the bytes of a file, sector by sector where `keep` says so.
fn change_bytes(stored: &mut Stored, change: &Change, mut keep: impl FnMut(usize) -> bool) {
    let zeroes;
    let (offset, bytes) = match change {
        Change::Write { offset, bytes } => (*offset, &bytes[..]),
        Change::Zero { offset, bytes } => {
            zeroes = vec![0; *bytes];
            (*offset, &zeroes[..])
        }
        Change::Size(size) => {
            if keep(0) {
                stored.bytes.resize(*size, 0);
            }
            return;
        }
        _ => return,
    };
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if keep(index) {
            let at = offset + index * SECTOR;
            let end = at + sector.len();
            if stored.bytes.len() < end {
                stored.bytes.resize(end, 0);
            }
            stored.bytes[at..end].copy_from_slice(sector);
        }
    }
}

/// What was there, and all that was done to it.
pub struct Tape {
    pub start: Image,
    pub log: Vec<Logged>,
}

/// Sectors at a loss of power that were not synced, and those of them that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    pub unsynced_sectors: u64,
    pub lost_sectors: u64,
}

impl Tape {
    /// The files after the first `upto` lines.
    pub fn prefix(&self, upto: usize) -> Image {
        let mut image = self.start.clone();
        self.log[..upto].iter().for_each(|it| apply(&mut image, it));
        image
    }

    /// The files after a loss of power behind the first `upto` lines: what was synced, and of the
    /// rest a seeded choice, torn at sectors.
    pub fn torn(&self, upto: usize, random: &mut Rng) -> (Image, Loss) {
        let mut synced = self.start.clone();
        let mut pending: Vec<&Logged> = Vec::new();
        for logged in &self.log[..upto] {
            let names = matches!(logged.change, Change::SyncNames);
            if !names && !matches!(logged.change, Change::Sync) {
                pending.push(logged);
                continue;
            }
            let mut rest = Vec::new();
            for it in std::mem::take(&mut pending) {
                let of_names = matches!(it.change, Change::Make | Change::Remove);
                if of_names == names && (names || it.file == logged.file) {
                    apply(&mut synced, it);
                } else {
                    rest.push(it);
                }
            }
            pending = rest;
        }
        let mut loss = Loss::default();
        let keep_percent = [0, 20, 50, 80, 97][random.below(5) as usize];
        for it in pending {
            let whole = random.below(2) == 0;
            let kept = random.below(100) < keep_percent;
            if matches!(it.change, Change::Make | Change::Remove) {
                if kept {
                    apply(&mut synced, it);
                }
                continue;
            }
            // Of a file whose name did not last there is nothing.
            let Some(stored) = synced.get_mut(&it.file) else {
                continue;
            };
            change_bytes(stored, &it.change, |_| {
                let keep = match whole {
                    true => kept,
                    false => random.below(100) < keep_percent,
                };
                loss.unsynced_sectors += 1;
                loss.lost_sectors += u64::from(!keep);
                keep
            });
            // A file system may have written the time of a change whose bytes it lost.
            if kept {
                stored.modified = it.at;
            }
        }
        (synced, loss)
    }
}

impl Filesystem for Shelf {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        fuse::side_by_side(config)
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.lock();
        let name = name.to_string_lossy().into_owned();
        let inode = state.inode(&name);
        match state.attributes(inode) {
            Some(attributes) => reply.entry(&NOT_KEPT, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.lock().attributes(inode) {
            Some(attributes) => reply.attr(&NOT_KEPT, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.enter();
        let done = match size {
            Some(_) if !state.admit("size", inode) => Err(Errno::EIO),
            Some(size) => state.change(inode, Change::Size(size as usize)),
            // Whose a file is and who may use it does not matter here.
            None => Ok(()),
        };
        let attributes = state.attributes(inode).ok_or(Errno::ENOENT);
        match done.and(attributes) {
            Ok(attributes) => reply.attr(&NOT_KEPT, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), fuse::DIRECT);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.enter();
        let inode = state.inode(&name.to_string_lossy());
        let done = match state.admit("make", inode) {
            true => state.change(inode, Change::Make),
            false => Err(Errno::EIO),
        };
        let attributes = state.attributes(inode).ok_or(Errno::EIO);
        match done.and(attributes) {
            Ok(attributes) => reply.created(
                &NOT_KEPT,
                &attributes,
                Generation(0),
                FileHandle(0),
                fuse::DIRECT,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.enter();
        let inode = state.inode(&name.to_string_lossy());
        answer(&mut state, inode, "removal", Change::Remove, reply);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.enter();
        if !state.admit("read", inode) {
            reply.error(Errno::EIO);
            return;
        }
        let name = state.name(inode).unwrap_or_default();
        match state.files.get(&name) {
            Some(stored) => {
                let asked = fuse::readable(stored.bytes.len(), offset, size);
                reply.data(&stored.bytes[asked]);
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.enter();
        let change = Change::Write {
            offset: offset as usize,
            bytes: data.to_vec(),
        };
        let done = match state.admit("write", inode) {
            true => state.change(inode, change),
            false => Err(Errno::EIO),
        };
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
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
        let change = Change::Zero {
            offset: offset as usize,
            bytes: length as usize,
        };
        answer(&mut self.enter(), inode, "zeroes", change, reply);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(&mut self.enter(), inode, "sync", Change::Sync, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.enter();
        let names = state.inode("");
        answer(&mut state, names, "sync", Change::SyncNames, reply);
    }

    /// The end of a descriptor; nothing is kept back until then.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn answer(state: &mut State, inode: INodeNo, what: &str, change: Change, reply: ReplyEmpty) {
    let done = match state.admit(what, inode) {
        true => state.change(inode, change),
        false => Err(Errno::EIO),
    };
    fuse::answer(reply, done);
}

/// The shelf as a directory. Unmounted when dropped.
pub struct MountedShelf(Mount);

impl MountedShelf {
    pub fn new(shelf: &Shelf, directory: &Path) -> MountedShelf {
        std::fs::create_dir_all(directory).expect("a directory to mount on");
        MountedShelf(Mount::new(shelf.clone(), directory))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
