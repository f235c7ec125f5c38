//! Whether two trees are the same for a guest.
//!
//! Owns the proof of a copy ([`verify`]) and of the whole ([`check`]): names, content, streams,
//! attributes, times, access rights, short names, object ids, reparse points and hard links, read
//! through mounts, by another way than the one that copied them. In the check, the mount points
//! are followed by what is in them on the disk, so a wrong GUID or path is found.
//!
//! Always true: nothing is written; the first difference ends it.
//!
//! Deliberately absent: the time of the last change of a file's record and extended attributes,
//! which wimlib does not keep; attributes that say how content is stored (compressed, sparse);
//! the content of streams of reparse points, which ntfs-3g does not open: their lengths are
//! compared.

use super::error::{Error, Refused, io};
use super::list::Share;
use super::look::is_dirty;
use super::mount::{Access, PACKAGE, bound, mounted};
use super::register::HIVE;
use super::reparse::{self, Reparse};
use super::tree::{PAGE_FILE, entries, find, shown, streams};
use super::xattr;
use crate::programs::run;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirEntry, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const BUFFER_BYTES: usize = 1 << 20;
/// `FILE_ATTRIBUTE_SPARSE_FILE` and `_COMPRESSED`.
const HOW_STORED: u32 = 0x200 | 0x800;
/// Made, modified, accessed.
const TIMES_BYTES: usize = 24;

/// What was found to be the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Compared {
    pub directories: u64,
    pub files: u64,
    /// With those of streams.
    pub bytes: u64,
}

/// Compares what a volume got with what the source has there.
pub fn verify(source: &Path, target: &Path, share: &Share) -> Result<Compared, Error> {
    let volumes = [(source, Access::Read), (target, Access::Read)];
    mounted(&volumes, |places| {
        let (left, right) = (&places[0], &places[1]);
        let mut comparison = Comparison::new(left);
        let inner = share.inner.iter().map(|it| it.under(left));
        comparison.empty = inner.collect();
        for path in &share.paths {
            let (left, right) = (path.under(left), path.under(right));
            if !is_directory(&left) {
                return Err(Refused::NoDirectory(path.clone()).into());
            }
            if !is_directory(&right) {
                return Err(comparison.differs(&left, "it is not there"));
            }
            comparison.directory(left, right)?;
        }
        comparison.walk()?;
        Ok(comparison.compared)
    })
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_dir())
}

/// What differs by intent from the original, after [`register`](super::register).
#[derive(Clone, Copy, Debug, Default)]
pub struct Changed {
    pub registry: bool,
    pub page_file: bool,
}

/// Checks each file system, and that the system with its new volumes shows what the original does.
pub fn check(
    system: &Path,
    original: &Path,
    volumes: &[(Uuid, &Path)],
    changed: Changed,
) -> Result<Compared, Error> {
    let partitions = volumes.iter().map(|(_, it)| *it);
    let partitions: Vec<&Path> = std::iter::once(system).chain(partitions).collect();
    for partition in &partitions {
        file_system(partition)?;
    }
    let all = std::iter::once(original).chain(partitions);
    let all: Vec<(&Path, Access)> = all.map(|it| (it, Access::Read)).collect();
    mounted(&all, |places| {
        let (left, right) = (&places[0], &places[1]);
        let mut comparison = Comparison::new(left);
        let guids = volumes.iter().map(|(guid, _)| *guid);
        comparison.volumes = guids.zip(places[2..].iter().cloned()).collect();
        if changed.registry {
            comparison.written.extend(find(left, &HIVE)?);
        }
        if changed.page_file {
            comparison.gone.extend(find(left, &[PAGE_FILE])?);
        }
        comparison.pending.push((left.clone(), right.clone()));
        comparison.walk()?;
        Ok(comparison.compared)
    })
}

/// By the programs that know the structure: neither writes.
fn file_system(partition: &Path) -> Result<(), Error> {
    let faulty = |says: String| Error::Faulty {
        partition: partition.to_owned(),
        says,
    };
    let mut fix = bound("ntfsfix");
    let mut resize = bound("ntfsresize");
    fix.arg("-n").arg(partition);
    // Each cluster belongs to one file and is marked so.
    resize.args(["--check", "--force"]).arg(partition);
    for command in [&mut fix, &mut resize] {
        match run(PACKAGE, command) {
            Ok(_) => {}
            Err(crate::programs::Failure::Failed { says, .. }) => return Err(faulty(says)),
            Err(failure) => return Err(failure.into()),
        }
    }
    match is_dirty(partition)? {
        true => Err(faulty("it is marked dirty".to_owned())),
        false => Ok(()),
    }
}

struct Comparison<'a> {
    root: &'a Path,
    /// Directories that were compared themselves, but not what is in them.
    pending: Vec<(PathBuf, PathBuf)>,
    /// Where the right side is to be empty, because another volume has what is in them.
    empty: HashSet<PathBuf>,
    /// Files of the left side whose content the right side changed.
    written: HashSet<PathBuf>,
    /// Files that only the left side has.
    gone: HashSet<PathBuf>,
    volumes: HashMap<Uuid, PathBuf>,
    /// Of files with several names, by inode, and by device and inode.
    left_links: HashMap<u64, (u64, u64)>,
    right_links: HashMap<(u64, u64), u64>,
    compared: Compared,
    buffers: [Vec<u8>; 2],
}

impl Comparison<'_> {
    fn new(root: &Path) -> Comparison<'_> {
        Comparison {
            root,
            pending: Vec::new(),
            empty: HashSet::new(),
            written: HashSet::new(),
            gone: HashSet::new(),
            volumes: HashMap::new(),
            left_links: HashMap::new(),
            right_links: HashMap::new(),
            compared: Compared::default(),
            buffers: [vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]],
        }
    }

    fn differs(&self, left: &Path, what: &'static str) -> Error {
        let path = shown(self.root, left);
        Error::Differs { path, what }
    }

    fn walk(&mut self) -> Result<(), Error> {
        while let Some((left, right)) = self.pending.pop() {
            let mut others: BTreeMap<OsString, DirEntry> = BTreeMap::new();
            for entry in entries(&right)? {
                others.insert(entry.file_name(), entry);
            }
            for entry in entries(&left)? {
                let path = entry.path();
                match others.remove(&entry.file_name()) {
                    Some(other) => self.entry(&entry, &other)?,
                    None if self.gone.contains(&path) => {}
                    None => return Err(self.differs(&path, "it is not there")),
                }
            }
            if let Some(name) = others.keys().next() {
                let path = left.join(name);
                return Err(self.differs(&path, "it was not there before"));
            }
        }
        Ok(())
    }

    fn entry(&mut self, left: &DirEntry, right: &DirEntry) -> Result<(), Error> {
        let kind = |it: &DirEntry| {
            let kind = it.file_type();
            kind.map_err(io(&it.path(), "it can not be read"))
        };
        let (left_kind, right_kind) = (kind(left)?, kind(right)?);
        let (left, right) = (left.path(), right.path());
        if left_kind.is_dir() && right_kind.is_symlink() {
            let Some(right) = self.followed(&right)? else {
                return Err(self.differs(&left, "a wrong mount point is in its place"));
            };
            return self.directory(left, right);
        }
        if left_kind != right_kind {
            return Err(self.differs(&left, "it is of another kind"));
        }
        if left_kind.is_dir() {
            return self.directory(left, right);
        }
        self.metadata(&left, &right)?;
        if left_kind.is_symlink() {
            return self.same(
                &left,
                &right,
                xattr::REPARSE,
                "its reparse point is another",
            );
        }
        self.links(&left, &right)?;
        self.compared.files += 1;
        match self.written.contains(&left) {
            true => Ok(()),
            false => self.content(&left, &right, "its content is another"),
        }
    }

    fn directory(&mut self, left: PathBuf, right: PathBuf) -> Result<(), Error> {
        self.metadata(&left, &right)?;
        self.compared.directories += 1;
        if !self.empty.contains(&left) {
            self.pending.push((left, right));
            return Ok(());
        }
        match entries(&right)?.is_empty() {
            true => Ok(()),
            false => Err(self.differs(&left, "it is not empty on the outer volume")),
        }
    }

    /// The directory that a mount point leads to.
    fn followed(&self, right: &Path) -> Result<Option<PathBuf>, Error> {
        let data = xattr::get(right, xattr::REPARSE)?.unwrap_or_default();
        let Reparse::MountPoint(target) = reparse::read(&data) else {
            return Ok(None);
        };
        let Some((guid, path)) = reparse::volume_of(&target) else {
            return Ok(None);
        };
        let root = self.volumes.get(&guid);
        let directory = root.map(|it| path.under(it));
        Ok(directory.filter(|it| is_directory(it)))
    }

    fn metadata(&mut self, left: &Path, right: &Path) -> Result<(), Error> {
        let attributes = |path| xattr::attributes(path).map(|it| it & !HOW_STORED);
        if attributes(left)? != attributes(right)? {
            return Err(self.differs(left, "its attributes are others"));
        }
        if !self.written.contains(left) {
            let times = |path| -> Result<_, Error> {
                let mut times = xattr::get(path, xattr::TIMES)?.unwrap_or_default();
                times.truncate(TIMES_BYTES);
                Ok(times)
            };
            if times(left)? != times(right)? {
                return Err(self.differs(left, "its times are others"));
            }
        }
        self.same(left, right, xattr::ACCESS, "its access rights are others")?;
        self.same(left, right, xattr::SHORT_NAME, "its short name is another")?;
        self.same(left, right, xattr::OBJECT_ID, "its object id is another")?;
        let (mine, others) = (streams(left)?, streams(right)?);
        if mine.len() != others.len() {
            return Err(self.differs(left, "its streams are others"));
        }
        for (mine, other) in mine.iter().zip(&others) {
            if stream(mine) != stream(other) {
                return Err(self.differs(left, "its streams are others"));
            }
            if fs::symlink_metadata(left).is_ok_and(|it| it.is_symlink()) {
                self.length(mine, other)?;
            } else {
                self.content(mine, other, "the content of this stream is another")?;
            }
        }
        Ok(())
    }

    fn same(
        &self,
        left: &Path,
        right: &Path,
        name: &std::ffi::CStr,
        what: &'static str,
    ) -> Result<(), Error> {
        match xattr::get(left, name)? == xattr::get(right, name)? {
            true => Ok(()),
            false => Err(self.differs(left, what)),
        }
    }

    /// Names of one file on the left are names of one file on the right, and no other file's.
    fn links(&mut self, left: &Path, right: &Path) -> Result<(), Error> {
        let read = |path| fs::symlink_metadata(path).map_err(io(path, "it can not be read"));
        let (mine, other) = (read(left)?, read(right)?);
        if mine.nlink() == 1 && other.nlink() == 1 {
            return Ok(());
        }
        let other = (other.dev(), other.ino());
        let mine = mine.ino();
        let is_same = *self.left_links.entry(mine).or_insert(other) == other
            && *self.right_links.entry(other).or_insert(mine) == mine;
        match is_same {
            true => Ok(()),
            false => Err(self.differs(left, "its hard links are others")),
        }
    }

    /// Of streams of a reparse point, which ntfs-3g does not open.
    fn length(&self, left: &Path, right: &Path) -> Result<(), Error> {
        let length = |path| {
            let metadata = fs::metadata(path).map_err(io(path, "it can not be read"))?;
            Ok::<u64, Error>(metadata.len())
        };
        match length(left)? == length(right)? {
            true => Ok(()),
            false => Err(self.differs(left, "the length of this stream is another")),
        }
    }

    fn content(&mut self, left: &Path, right: &Path, what: &'static str) -> Result<(), Error> {
        let open = |path| File::open(path).map_err(io(path, "it can not be opened"));
        let (mut mine, mut other) = (open(left)?, open(right)?);
        let length = |file: &File, path| {
            let metadata = file.metadata().map_err(io(path, "it can not be read"))?;
            Ok::<u64, Error>(metadata.len())
        };
        let bytes = length(&mine, left)?;
        if bytes != length(&other, right)? {
            return Err(self.differs(left, what));
        }
        let mut missing = bytes;
        let mut buffers = std::mem::take(&mut self.buffers);
        while missing > 0 {
            let count = buffers[0]
                .len()
                .min(usize::try_from(missing).unwrap_or(usize::MAX));
            let [a, b] = &mut buffers;
            let (a, b) = (&mut a[..count], &mut b[..count]);
            mine.read_exact(a).map_err(io(left, "it can not be read"))?;
            other
                .read_exact(b)
                .map_err(io(right, "it can not be read"))?;
            if a != b {
                return Err(self.differs(left, what));
            }
            missing -= count as u64;
        }
        self.buffers = buffers;
        self.compared.bytes += bytes;
        Ok(())
    }
}

/// The name behind the last colon.
fn stream(path: &Path) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = path.as_os_str().as_bytes();
    bytes.rsplit(|it| *it == b':').next().map(<[u8]>::to_vec)
}
