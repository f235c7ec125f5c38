//! Directories and files of a mounted NTFS, as the steps of a split ask for them.
//!
//! Always true: names come in one order, so that two runs say the same. Deliberately absent: what a
//! step does with them.

use super::error::{Error, io};
use super::path::folded;
use super::xattr;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

pub(super) const PAGE_FILE: &str = "PAGEFILE.SYS";

/// In the order of their names, so that two runs say the same.
pub(super) fn entries(directory: &Path) -> Result<Vec<DirEntry>, Error> {
    let read = || -> std::io::Result<Vec<DirEntry>> { fs::read_dir(directory)?.collect() };
    let mut entries = read().map_err(io(directory, "it can not be read"))?;
    entries.sort_by_key(DirEntry::file_name);
    Ok(entries)
}

/// The named streams of a file, as paths.
pub(super) fn streams(path: &Path) -> Result<Vec<PathBuf>, Error> {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let names = xattr::get(path, xattr::STREAMS)?.unwrap_or_default();
    let names = names.split(|it| *it == 0).filter(|it| !it.is_empty());
    let mut streams: Vec<PathBuf> = names
        .map(|name| {
            let mut stream = path.as_os_str().as_bytes().to_vec();
            stream.push(b':');
            stream.extend_from_slice(name);
            PathBuf::from(std::ffi::OsString::from_vec(stream))
        })
        .collect();
    streams.sort();
    Ok(streams)
}

/// A mounted path as Windows would write it.
pub(super) fn shown(root: &Path, path: &Path) -> String {
    let inner = path.strip_prefix(root).unwrap_or(path);
    let components = inner.components();
    components
        .map(|it| format!("\\{}", it.as_os_str().to_string_lossy()))
        .collect()
}

/// The file or directory of these names, which are in upper case; the disk has its own case.
pub(super) fn find(root: &Path, names: &[&str]) -> Result<Option<PathBuf>, Error> {
    let mut place = root.to_owned();
    for (depth, name) in names.iter().enumerate() {
        let mut found = entries(&place)?.into_iter();
        let found = found.find(|it| {
            it.file_name()
                .to_str()
                .is_some_and(|it| folded(it) == *name)
        });
        let Some(found) = found else {
            return Ok(None);
        };
        let kind = found
            .file_type()
            .map_err(io(&found.path(), "it can not be read"))?;
        if kind.is_symlink() || kind.is_dir() != (depth + 1 < names.len()) {
            return Ok(None);
        }
        place = found.path();
    }
    Ok(Some(place))
}

pub(super) fn sync(partition: &Path) -> Result<(), Error> {
    let synced = fs::File::open(partition).and_then(|it| it.sync_all());
    synced.map_err(io(partition, "it can not be synced"))
}
