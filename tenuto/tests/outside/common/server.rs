//! A file server whose handles can go stale, by FUSE.
//!
//! Owns a directory of files in this process. Always true: it makes no holes and knows of none; a
//! file keeps its number for as long as it has its name; what is opened before [`Server::forget`]
//! answers with an errno for good, what is opened after it works. Deliberately absent: more
//! directories, permissions, times.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::fuse::{self, Mount};

/// Nothing is believed for longer than this.
const NOW: Duration = Duration::ZERO;

struct File {
    number: u64,
    name: String,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    files: Vec<File>,
    numbers: u64,
    /// Handles carry the epoch in which they were opened.
    epoch: u64,
    /// What handles of earlier epochs answer.
    errno: i32,
    written: u64,
    /// Writes to this file fail.
    refused: Option<String>,
    /// While it is there, who closes a file waits here.
    closing: Option<Vec<ReplyEmpty>>,
}

impl State {
    fn named(&self, name: &OsStr) -> Option<&File> {
        self.files.iter().find(|file| *file.name == *name)
    }

    fn file(&mut self, number: INodeNo) -> Option<&mut File> {
        self.files.iter_mut().find(|file| file.number == number.0)
    }

    fn make(&mut self, name: &str, bytes: Vec<u8>) -> u64 {
        self.numbers += 1;
        // The root has number 1.
        let number = self.numbers + 1;
        let name = name.to_owned();
        self.files.push(File {
            number,
            name,
            bytes,
        });
        number
    }

    fn check(&self, handle: FileHandle) -> Result<(), Errno> {
        match handle.0 == self.epoch {
            true => Ok(()),
            false => Err(Errno::from_i32(self.errno)),
        }
    }
}

/// Cheap to clone; all clones are the same server.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<State>>);

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Makes a file, or puts another in its place.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.lock();
        state.files.retain(|file| file.name != name);
        state.make(name, bytes);
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.lock();
        let file = state.named(OsStr::new(name));
        file.expect("the file is there").bytes.clone()
    }

    pub fn names(&self) -> Vec<String> {
        let state = self.lock();
        state.files.iter().map(|file| file.name.clone()).collect()
    }

    /// All that is open now answers with this errno from here on.
    pub fn forget(&self, errno: i32) {
        let mut state = self.lock();
        state.epoch += 1;
        state.errno = errno;
    }

    /// From here on writes to this file fail; `None` ends that.
    pub fn refuse_writes(&self, name: Option<&str>) {
        self.lock().refused = name.map(str::to_owned);
    }

    /// Who closes a file waits until what this returns is dropped.
    pub fn hold_closes(&self) -> Closes<'_> {
        self.lock().closing = Some(Vec::new());
        Closes(self)
    }

    /// How many wait.
    pub fn closing(&self) -> usize {
        self.lock().closing.as_ref().map_or(0, Vec::len)
    }

    /// Bytes written so far, zeroes as well.
    pub fn written(&self) -> u64 {
        self.lock().written
    }
}

/// Closed files get no answer.
pub struct Closes<'a>(&'a Server);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        let waiting = self.0.lock().closing.take();
        waiting.into_iter().flatten().for_each(ReplyEmpty::ok);
    }
}

fn attributes(number: u64, bytes: u64) -> FileAttr {
    fuse::file(INodeNo(number), bytes, SystemTime::UNIX_EPOCH)
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.lock().named(name) {
            Some(file) => {
                let attr = attributes(file.number, file.bytes.len() as u64);
                reply.entry(&NOW, &attr, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if number == INodeNo::ROOT {
            return reply.attr(&NOW, &fuse::root());
        }
        match self.lock().file(number) {
            Some(file) => {
                let bytes = file.bytes.len() as u64;
                reply.attr(&NOW, &attributes(number.0, bytes));
            }
            None => reply.error(Errno::ESTALE),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let (Some(size), Some(file)) = (size, self.lock().file(number)) {
            file.bytes.resize(size as usize, 0);
        }
        self.getattr(request, number, handle, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let epoch = self.lock().epoch;
        reply.opened(FileHandle(epoch), FopenFlags::FOPEN_DIRECT_IO);
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
        let mut state = self.lock();
        let number = state.make(&name.to_string_lossy(), Vec::new());
        let handle = FileHandle(state.epoch);
        let attr = attributes(number, 0);
        reply.created(
            &NOW,
            &attr,
            Generation(0),
            handle,
            FopenFlags::FOPEN_DIRECT_IO,
        );
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.lock().files.retain(|file| *file.name != *name);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.lock();
        if let Err(error) = state.check(handle) {
            return reply.error(error);
        }
        let Some(file) = state.file(number) else {
            return reply.error(Errno::ESTALE);
        };
        reply.data(&file.bytes[fuse::readable(file.bytes.len(), offset, size)]);
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.lock();
        if let Err(error) = state.check(handle) {
            return reply.error(error);
        }
        let refused = state.refused.clone();
        let Some(file) = state.file(number) else {
            return reply.error(Errno::ESTALE);
        };
        if refused.is_some_and(|name| name == file.name) {
            return reply.error(Errno::EIO);
        }
        let (from, to) = (offset as usize, offset as usize + data.len());
        if to > file.bytes.len() {
            file.bytes.resize(to, 0);
        }
        file.bytes[from..to].copy_from_slice(data);
        state.written += data.len() as u64;
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        fuse::answer(reply, self.lock().check(handle));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        match &mut self.lock().closing {
            Some(waiting) => waiting.push(reply),
            None => reply.ok(),
        }
    }
}

/// The directory of a server, mounted. Unmounted when dropped.
pub fn mount(server: &Server, place: &Path) -> Mount {
    std::fs::create_dir_all(place).expect("make the mount point");
    Mount::new(server.clone(), place)
}
