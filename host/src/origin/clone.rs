//! New qcow2 files that stand on another image.
//!
//! Always true: a file appears under its name whole and synced, or not at all; it never takes the
//! place of another one; what it stands on was opened and judged as it will be when it is served,
//! and is not changed. Deliberately absent: who asks for one, and what becomes of it.

use super::chain::{self, Rules, name_of};
use super::{mapped, written};
use crate::cachedev::sync_directory;
use crate::fault::{Fault, Kind};
use crate::lock::Patience;
use crate::sys;
use image::Format;
use image::create::{self, Backing, BackingFormat, NewFile, Shape};
use image::header::BackingName;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// What is cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneOf {
    /// The image below: absolute, or relative to the directory of the new file. It stands so in
    /// the file.
    pub image: PathBuf,
    /// Clusters of 64 KiB without subclusters, for readers that do not know these.
    pub plain: bool,
}

/// A file that was made here and has its name.
#[derive(Debug)]
pub struct Made {
    pub size_bytes: u64,
    path: PathBuf,
    /// As long as it is open no other file has its number.
    file: File,
}

impl Made {
    /// Takes it away again, unless another file has its name by now.
    pub fn remove(self) {
        let Made { path, file, .. } = self;
        let identity = |meta: Metadata| (meta.dev(), meta.ino());
        let ours = file.metadata().map(identity).ok();
        if ours.is_none() || ours != fs::symlink_metadata(&path).map(identity).ok() {
            tracing::warn!("{}: is not the file any more that was made", name_of(&path));
            return;
        }
        // NFS keeps a file under another name as long as it is open.
        drop(file);
        let removed = fs::remove_file(&path).and_then(|()| sync_directory(&path));
        if let Err(error) = removed {
            tracing::warn!("{}: cannot remove it: {error}", name_of(&path));
        }
    }
}

/// Makes the file at `path`, a disk as large as that of the image below, with its content. Files
/// below have to lie in the directories of `allow`.
pub fn make(path: &Path, of: &CloneOf, allow: &[PathBuf]) -> Result<Made, Fault> {
    make_with(path, of, allow, sync_directory)
}

fn make_with(
    path: &Path,
    of: &CloneOf,
    allow: &[PathBuf],
    sync_name: impl Fn(&Path) -> io::Result<()>,
) -> Result<Made, Fault> {
    let shown = name_of(path);
    if fs::symlink_metadata(path).is_ok() {
        return Err(exists(&shown));
    }
    let below = below(path, of, allow)?;
    let shape = match of.plain {
        true => Shape::Plain,
        false => Shape::Extended,
    };
    let backing = Backing {
        name: &below.name,
        format: below.format,
    };
    let new = create::create(below.size_bytes, shape, Some(backing))
        .map_err(|why| Fault::new(Kind::Invalid, format!("{shown}: {why}")))?;
    remove_leavings(path);
    let temporary = temporary(path);
    let made = write(&temporary, &new, &below.rights)
        .map_err(|error| cannot_make(path, error))
        .and_then(|file| judge(&temporary, path, allow).map(|()| file))
        .and_then(|file| name(&temporary, path, &shown).map(|()| file));
    let made = made.map(|file| Made {
        size_bytes: below.size_bytes,
        path: path.to_path_buf(),
        file,
    });
    let made = made.inspect_err(|_| {
        // Its name is ours alone; what cannot be removed is no image.
        let _ = fs::remove_file(&temporary);
    })?;
    match sync_name(path) {
        Ok(()) => Ok(made),
        Err(error) => {
            made.remove();
            Err(Fault::io(&shown, "give it its name", error))
        }
    }
}

/// What the new file stands on.
struct Below {
    /// As it will stand in the file.
    name: String,
    format: BackingFormat,
    /// Of its disk.
    size_bytes: u64,
    rights: Rights,
}

/// Looks at the image below.
fn below(path: &Path, of: &CloneOf, allow: &[PathBuf]) -> Result<Below, Fault> {
    let invalid = |message: String| Err(Fault::new(Kind::Invalid, message));
    let named = of.image.to_str();
    let Some(name) = named.filter(|name| BackingName::of(name) == BackingName::Path(name)) else {
        return invalid(format!(
            "{}: cannot be named in a file; give it a path in UTF-8 without a colon in its first \
             part",
            name_of(&of.image)
        ));
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    let image = directory.join(&of.image);
    refuse_guess(&image)?;
    let rules = Rules {
        top: None,
        allow: Some(allow),
    };
    let opened = chain::open(&image, &rules, &mut Patience::none());
    let opened = opened.map_err(|fault| match fault.kind {
        Kind::NotFound => not_there(&image, fault),
        _ => fault,
    })?;
    let top = &opened.links[0];
    let format = match &top.format {
        Format::Raw => BackingFormat::Raw,
        Format::Qcow2(_) => BackingFormat::Qcow2,
    };
    let rights = Rights::of(&top.target.file);
    Ok(Below {
        name: name.to_owned(),
        format,
        size_bytes: opened.chain.size_bytes(),
        rights: rights.map_err(|error| Fault::io(&name_of(&image), "stat it", error))?,
    })
}

/// A guest can write the header of a qcow2 image, with the name of any file below it, into its raw
/// disk. Said before any file is opened that it may have named.
pub(crate) fn refuse_guess(image: &Path) -> Result<(), Fault> {
    let ledger = written::ledger_beside(image);
    if !ledger.as_ref().is_some_and(written::is_of_raw) || !mapped::begins_as_qcow2(image) {
        return Ok(());
    }
    let message = format!(
        "{}: its first bytes look like qcow2, and it was written as a raw image before; make the \
         new file with `qemu-img create -f qcow2 -b {} -F raw FILE` if a guest wrote them, or with \
         -F qcow2 if you made it anew, and add that without clone-of",
        name_of(image),
        image.display()
    );
    Err(Fault::new(Kind::Foreign, message))
}

/// The image below is not there, or a file that it stands on, of which the message says what to do.
pub(crate) fn not_there(image: &Path, mut fault: Fault) -> Fault {
    if !image.exists() {
        fault.message += "; name an image that is there";
    }
    fault
}

/// Mode and owner of a new file: those of the image below, because the users of that have to be
/// able to use this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    mode: u32,
    user: u32,
    group: u32,
}

impl Rights {
    pub(super) fn of(file: &File) -> io::Result<Rights> {
        let meta = file.metadata()?;
        Ok(Rights {
            mode: meta.mode(),
            user: meta.uid(),
            group: meta.gid(),
        })
    }

    /// The owner may write it, which is what it is for; no other user may do what the image below
    /// does not let him. Without its group a member of that counts as one of all the others.
    fn mode(&self, has_group: bool) -> u32 {
        let others = match has_group {
            true => self.mode & 0o066,
            false => {
                let both = self.mode & (self.mode >> 3) & 0o006;
                both << 3 | both
            }
        };
        0o600 | others
    }

    /// As far as this process may give files away.
    fn give(&self, file: &File) -> io::Result<()> {
        let has_group = fchown(file, Some(self.user), Some(self.group)).is_ok()
            || fchown(file, None, Some(self.group)).is_ok();
        file.set_permissions(Permissions::from_mode(self.mode(has_group)))
    }
}

/// How the name of a file ends that is not done.
const UNDONE: &str = "tenuto-new";

/// A name in the same directory that no other program uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = begins(path);
    name.push(format!("{}.{UNDONE}", uuid::Uuid::new_v4()));
    path.with_file_name(name)
}

fn begins(path: &Path) -> OsString {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".");
    name
}

/// What is left of earlier tries to make the same file, by daemons that were killed. Of two that
/// try now at most one fails, as it would without this.
fn remove_leavings(path: &Path) {
    let begins = begins(path);
    let is_left = |name: &OsStr| {
        let rest = name.as_bytes().strip_prefix(begins.as_bytes());
        let rest = rest.and_then(|rest| std::str::from_utf8(rest).ok());
        let number = rest.and_then(|rest| rest.strip_suffix(UNDONE)?.strip_suffix('.'));
        number.is_some_and(|number| uuid::Uuid::try_parse(number).is_ok())
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // What cannot be looked at is told when the new file is made.
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_left(&entry.file_name())) {
        if let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!("{}: cannot remove it: {error}", name_of(&entry.path()));
        }
    }
}

pub(super) fn write(path: &Path, new: &NewFile, rights: &Rights) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    for extent in &new.extents {
        file.write_all_at(&extent.bytes, extent.at)?;
    }
    file.set_len(new.file_bytes)?;
    rights.give(&file)?;
    file.sync_all()?;
    Ok(file)
}

fn cannot_make(path: &Path, error: io::Error) -> Fault {
    let mut fault = Fault::io(&name_of(path), "make it", error);
    if fault.kind == Kind::NotFound {
        fault.message += "; make its directory first, or name another one";
    }
    fault
}

/// Opens it as it will be opened.
fn judge(temporary: &Path, path: &Path, allow: &[PathBuf]) -> Result<(), Fault> {
    let rules = Rules {
        top: Some(chain::Stated::Qcow2),
        allow: Some(allow),
    };
    let opened = chain::open(temporary, &rules, &mut Patience::none());
    opened.map(drop).map_err(|mut fault| {
        let (ours, theirs) = (name_of(temporary), name_of(path));
        fault.message = fault.message.replace(&ours, &theirs);
        fault
    })
}

fn name(temporary: &Path, path: &Path, shown: &str) -> Result<(), Fault> {
    sys::rename_new(temporary, path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(shown),
        _ => Fault::io(shown, "give it its name", error),
    })
}

fn exists(shown: &str) -> Fault {
    let message = format!("{shown}: exists already; choose another name, or remove it");
    Fault::new(Kind::Invalid, message)
}

#[cfg(test)]
#[path = "clone_tests.rs"]
mod tests;
