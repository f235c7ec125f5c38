//! A directory of records that lies as NFS may, by FUSE.
//!
//! Owns directories, files and their names in this process. Always true: a name has what was linked
//! to it first, for ever; what is answered to a link or a sync says nothing about whether it was
//! done, and a name that was looked up in vain may seem absent for a while. All lies come from one
//! seed, and are counted. Deliberately absent: what the storage of a server loses.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use workload::rng::Rng;

use super::fuse::{self, Mount};

const NOW: Duration = Duration::ZERO;
/// How long a name that is not there is believed not to be there.
const STALE: Duration = Duration::from_millis(300);

enum Kind {
    Directory,
    File(Vec<u8>),
}

struct Name {
    place: u64,
    name: String,

    node: u64,
}

struct State {
    /// By number; the root has the first one.
    nodes: Vec<Kind>,
    names: Vec<Name>,
    random: Rng,
    lies: bool,
    counts: Lies,
}

/// How often it has lied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lies {
    /// A link was made, and EEXIST was answered.
    pub exists: u64,
    /// A link was made, and EIO was answered.
    pub failed: u64,
    /// No link was made, and EIO was answered.
    pub unmade: u64,
    /// EIO was answered where nothing changes.
    pub refused: u64,
}

impl State {
    fn find(&self, place: INodeNo, name: &OsStr) -> Option<INodeNo> {
        let is = |it: &&Name| it.place == place.0 && *it.name == *name;
        self.names.iter().find(is).map(|it| INodeNo(it.node))
    }

    fn make(&mut self, place: INodeNo, name: &OsStr, kind: Kind) -> INodeNo {
        self.nodes.push(kind);
        let node = INodeNo(self.nodes.len() as u64);
        self.name(place, name, node);
        node
    }

    fn name(&mut self, place: INodeNo, name: &OsStr, node: INodeNo) {
        let name = name.to_string_lossy().into_owned();
        let (place, node) = (place.0, node.0);
        self.names.push(Name { place, name, node });
    }

    fn attributes(&self, node: INodeNo) -> FileAttr {
        match &self.nodes[node.0 as usize - 1] {
            Kind::File(bytes) => fuse::file(node, bytes.len() as u64, SystemTime::UNIX_EPOCH),
            Kind::Directory => FileAttr {
                ino: node,
                ..fuse::root()
            },
        }
    }

    fn bytes(&mut self, node: INodeNo) -> &mut Vec<u8> {
        match &mut self.nodes[node.0 as usize - 1] {
            Kind::File(bytes) => bytes,
            Kind::Directory => panic!("a directory has no bytes"),
        }
    }

    /// One of so many times, while it lies.
    fn lies(&mut self, of: u64) -> bool {
        self.lies && self.random.below(of) == 0
    }

    /// The answer to something that changes nothing.
    fn refuses(&mut self) -> Result<(), Errno> {
        if !self.lies(8) {
            return Ok(());
        }
        self.counts.refused += 1;
        Err(Errno::EIO)
    }
}

/// Cheap to clone; all clones are the same directory.
#[derive(Clone)]
pub struct Vault(Arc<Mutex<State>>);

impl Vault {
    /// One that tells the truth so far.
    pub fn new(seed: u64) -> Vault {
        Vault(Arc::new(Mutex::new(State {
            nodes: vec![Kind::Directory],
            names: Vec::new(),
            random: Rng::new(seed),
            lies: false,
            counts: Lies::default(),
        })))
    }

    pub fn mount(&self, place: &Path) -> Mount {
        std::fs::create_dir_all(place).expect("make the mount point");
        Mount::new(self.clone(), place)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn lie(&self, lies: bool) {
        self.lock().lies = lies;
    }

    pub fn lies(&self) -> Lies {
        self.lock().counts
    }
}

impl Filesystem for Vault {
    fn lookup(&self, _: &Request, place: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.lock();
        match state.find(place, name) {
            Some(node) => reply.entry(&NOW, &state.attributes(node), Generation(0)),
            // An entry without a node is kept by the kernel as one that is not there.
            None if state.lies => reply.entry(
                &STALE,
                &fuse::file(INodeNo(0), 0, SystemTime::UNIX_EPOCH),
                Generation(0),
            ),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&NOW, &self.lock().attributes(node));
    }

    fn mkdir(&self, _: &Request, place: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let mut state = self.lock();
        if state.find(place, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        let node = state.make(place, name, Kind::Directory);
        reply.entry(&NOW, &state.attributes(node), Generation(0));
    }

    fn create(
        &self,
        _: &Request,
        place: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.lock();
        let node = match state.find(place, name) {
            Some(_) if flags & libc::O_EXCL != 0 => return reply.error(Errno::EEXIST),
            Some(node) => node,
            None => state.make(place, name, Kind::File(Vec::new())),
        };
        let direct = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(
            &NOW,
            &state.attributes(node),
            Generation(0),
            FileHandle(0),
            direct,
        );
    }

    fn link(&self, _: &Request, node: INodeNo, place: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut state = self.lock();
        if state.find(place, name).is_some() {
            return reply.error(Errno::EEXIST);
        }
        if state.lies(4) {
            state.counts.unmade += 1;
            return reply.error(Errno::EIO);
        }
        state.name(place, name, node);
        if state.lies(3) {
            state.counts.exists += 1;
            return reply.error(Errno::EEXIST);
        }
        if state.lies(2) {
            state.counts.failed += 1;
            return reply.error(Errno::EIO);
        }
        reply.entry(&NOW, &state.attributes(node), Generation(0));
    }

    fn unlink(&self, _: &Request, place: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let is = |it: &Name| it.place == place.0 && *it.name == *name;
        let mut state = self.lock();
        let before = state.names.len();
        state.names.retain(|it| !is(it));
        match state.names.len() < before {
            true => reply.ok(),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            self.lock().bytes(node).resize(size as usize, 0);
        }
        self.getattr(request, node, handle, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.lock().refuses() {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.lock();
        let bytes = state.bytes(node);
        reply.data(&bytes[fuse::readable(bytes.len(), offset, size)]);
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut state = self.lock();
        let bytes = state.bytes(node);
        let (from, to) = (offset as usize, offset as usize + data.len());
        bytes.resize(bytes.len().max(to), 0);
        bytes[from..to].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        fuse::answer(reply, self.lock().refuses());
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        fuse::answer(reply, self.lock().refuses());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        place: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.lock();
        let names = state.names.iter().filter(|it| it.place == place.0);
        for (at, it) in names.enumerate().skip(offset as usize) {
            let kind = match state.nodes[it.node as usize - 1] {
                Kind::Directory => FileType::Directory,
                Kind::File(_) => FileType::RegularFile,
            };
            if reply.add(INodeNo(it.node), at as u64 + 1, kind, &it.name) {
                break;
            }
        }
        reply.ok();
    }
}
