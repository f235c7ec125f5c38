//! A new file in the place of an image that is written, which goes on right below it.
//!
//! ```text
//! made:     IMAGE             IMAGE.tenuto-new ─▶ (names FROZEN as its backing)
//! linked:   IMAGE = FROZEN    IMAGE.tenuto-new
//! in place: IMAGE ─▶ FROZEN
//! ```
//!
//! Always true: at each moment IMAGE is a whole file, the one before or the one after, and both are
//! the same disk; each step is on media before the next one begins; no file that is there is
//! replaced but IMAGE itself. A start that finds IMAGE.tenuto-new was preceded by a kill before the
//! last step, and takes both names away again ([`remove_leavings`]). The new file says by its mark
//! which moment of which volume it belongs to. Deliberately absent: what its volume does meanwhile,
//! and that its ledger knows of it.

use super::chain::{self, name_of};
use super::{beside, clone, written};
use crate::cachedev::sync_directory;
use crate::fault::{Fault, Kind};
use crate::lock::{self, Mode, Patience};
use crate::marks::{self, Phase};
use crate::sys;
use crate::target::{How, Target};
use ::image::create::{self, Backing, BackingFormat, Shape};
use ::image::format::mark::Mark;
use ::image::header::{BackingName, Header};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file that takes the place of an image.
#[derive(Debug)]
pub struct Successor {
    /// Where the image lies.
    image: PathBuf,
    frozen: PathBuf,
    made: PathBuf,
    /// Of the image: device and inode.
    identity: (u64, u64),
    /// The new file, locked for us alone.
    pub top: Arc<Target>,
    pub header: Box<Header>,
}

/// What the image is to be called from now on, and what its successor is like.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The name under which the image was asked for.
    pub named: &'a Path,
    /// The name that the image gets, in the same directory.
    pub frozen: &'a str,
    /// No extended L2 entries.
    pub plain: bool,
    pub size_bytes: u64,
    pub mark: Mark,
}

/// The name that an image gets by a snapshot of this name, in the same directory.
pub fn frozen_name(image: &Path, snapshot: &str) -> Option<String> {
    let stem = image.file_stem()?.to_str()?;
    Some(match image.extension() {
        Some(extension) => format!("{stem}.{snapshot}.{}", extension.to_str()?),
        None => format!("{stem}.{snapshot}"),
    })
}

/// Whether the names allow it. Said before anything is done.
pub fn check(plan: &Plan, allow: &[PathBuf]) -> Result<(), Fault> {
    let Plan { named, frozen, .. } = plan;
    let shown = name_of(named);
    let invalid = |why: String| Err(Fault::new(Kind::Invalid, format!("{shown}: {why}")));
    if fs::symlink_metadata(named).is_ok_and(|meta| meta.is_symlink()) {
        return invalid(
            "is a symbolic link, so that names beside it are others than beside its file; name \
             the file itself as origin"
                .into(),
        );
    }
    if BackingName::of(frozen) != BackingName::Path(frozen) {
        return invalid(format!(
            "{frozen:?} cannot be named as a backing; choose a name without a colon"
        ));
    }
    let path = named.with_file_name(frozen);
    if fs::symlink_metadata(&path).is_ok() {
        return invalid(format!(
            "{} exists already; choose another name, or remove it",
            path.display()
        ));
    }
    let path = std::path::absolute(named).unwrap_or_else(|_| named.to_path_buf());
    let place = path.parent().and_then(|place| fs::canonicalize(place).ok());
    if !place.is_some_and(|place| allow.iter().any(|it| chain::is_below(&place, it))) {
        return invalid(
            "its directory lies outside of [images] allow, so that it could not be the backing of \
             a file; add that directory there"
                .into(),
        );
    }
    Ok(())
}

impl Successor {
    /// Makes and locks the new file, beside the image that is open here.
    pub fn make(image: &Target, plan: &Plan) -> Result<Successor, Fault> {
        let shown = name_of(&image.path);
        let failed = |doing: &str, error| Fault::io(&shown, doing, error);
        let wrong = |why: String| Fault::new(Kind::Invalid, format!("{shown}: {why}"));
        let shape = match plan.plain {
            true => Shape::Plain,
            false => Shape::Extended,
        };
        let backing = Backing {
            name: plan.frozen,
            format: BackingFormat::Qcow2,
        };
        let new = create::create(plan.size_bytes, shape, Some(backing))
            .and_then(|new| new.with_mark(&plan.mark));
        let new = new.map_err(|why| wrong(why.to_string()))?;
        let made = beside::beside(&image.path, beside::NEW);
        let rights = clone::Rights::of(&image.file).map_err(|error| failed("stat it", error))?;
        let written = clone::write(&made, &new, &rights);
        written.map_err(|error| cannot_make(&made, error))?;
        let opened = sync_name(&made)
            .and_then(|()| open(&made, image, plan.named))
            .and_then(|top| Ok((chain::qcow2(&top, &shown)?, top)));
        let (header, top) = opened.inspect_err(|_| {
            let _ = remove(&made);
        })?;
        marks::passed(Phase::Exchange);
        Ok(Successor {
            image: image.path.clone(),
            frozen: image.path.with_file_name(plan.frozen),
            made,
            identity: image.identity,
            top: Arc::new(top),
            header,
        })
    }

    /// Gives the image its new name, and the new file its place. When this fails all is as before.
    pub fn take_place(&self) -> Result<(), Fault> {
        let link = fs::hard_link(&self.image, &self.frozen);
        link.map_err(|error| self.cannot_link(error))?;
        marks::passed(Phase::Exchange);
        let renamed = sync_name(&self.frozen).and_then(|()| {
            marks::passed(Phase::Exchange);
            let shown = name_of(&self.image);
            let renamed = fs::rename(&self.made, &self.image);
            renamed.map_err(|error| Fault::io(&shown, "put a new file in its place", error))?;
            marks::passed(Phase::Exchange);
            sync_name(&self.image)
        });
        match renamed {
            Ok(()) => {
                marks::passed(Phase::Exchange);
                Ok(())
            }
            Err(fault) => {
                self.undo()?;
                Err(fault)
            }
        }
    }

    fn cannot_link(&self, error: io::Error) -> Fault {
        let shown = name_of(&self.frozen);
        let unable = [libc::EPERM, libc::EOPNOTSUPP, libc::ENOSYS, libc::EMLINK];
        let unable = error.raw_os_error().is_some_and(|it| unable.contains(&it));
        let mut fault = Fault::io(&shown, "give the image this name", error);
        // What cannot be removed now is at the next start.
        let _ = remove(&self.made);
        if unable {
            fault.message += "; a snapshot needs a file system with hard links";
        }
        fault
    }

    /// Where the new file is in the place of the image: that comes back. Nothing is lost by it as
    /// long as nothing was written to the new file.
    pub fn undo(&self) -> Result<(), Fault> {
        let failed = |error| Fault::io(&name_of(&self.image), "undo a snapshot", error);
        let identity = |path: &Path| {
            let meta = fs::symlink_metadata(path).ok()?;
            Some((meta.dev(), meta.ino()))
        };
        let frozen = identity(&self.frozen) == Some(self.identity);
        if frozen && identity(&self.image) == Some(self.top.identity) {
            fs::rename(&self.frozen, &self.image).map_err(failed)?;
        } else if frozen && identity(&self.image) == Some(self.identity) {
            fs::remove_file(&self.frozen).map_err(failed)?;
        }
        remove(&self.made).map_err(failed)?;
        sync_name(&self.image)
    }

    /// The name that the image has now.
    pub fn frozen(&self) -> &Path {
        &self.frozen
    }
}

/// Takes away what a snapshot has left beside an image that is open for writing here, because a
/// kill came before its last step. A qcow2 file under that name without a mark is none of ours, and
/// stays.
pub fn remove_leavings(image: &Target) -> Result<(), Fault> {
    let made = beside::beside(&image.path, beside::NEW);
    if fs::symlink_metadata(&made).is_err() {
        return Ok(());
    }
    let shown = name_of(&made);
    let failed = |error| Fault::io(&shown, "remove it", error);
    // A file whose header cannot be read was not whole, and then no link was made.
    let header = written::look(&made).ok();
    if header
        .as_ref()
        .is_some_and(|header| header.mark().is_none())
    {
        tracing::warn!("{shown}: was not made by a snapshot; move it away before the next one");
        return Ok(());
    }
    let backing = header.and_then(|header| header.backing);
    if let Some(frozen) = backing.map(|name| image.path.with_file_name(name)) {
        let meta = fs::symlink_metadata(&frozen).ok();
        let linked = meta.is_some_and(|meta| (meta.dev(), meta.ino()) == image.identity);
        if linked && frozen != image.path {
            fs::remove_file(&frozen).map_err(failed)?;
        }
    }
    tracing::warn!("{shown}: is left of a snapshot that did not come to its end; removing it");
    remove(&made).map_err(failed)?;
    sync_name(&image.path)
}

fn cannot_make(made: &Path, error: io::Error) -> Fault {
    let foreign = error.kind() == io::ErrorKind::AlreadyExists;
    let mut fault = Fault::io(&name_of(made), "make it", error);
    match foreign {
        true => fault.message += "; move it away",
        // What cannot be removed now is at the next start.
        false => drop(remove(made)),
    }
    fault
}

fn open(made: &Path, image: &Target, named: &Path) -> Result<Target, Fault> {
    let shown = name_of(made);
    let how = How {
        write: true,
        refuse_symlink: true,
        ..How::default()
    };
    let opened = Target::open(made, how);
    let mut top = opened.map_err(|error| Fault::io(&shown, "open it", error))?;
    let mut patience = Patience::none();
    lock::acquire(&top.file, &shown, Mode::Exclusive, &mut patience)?;
    lock::acquire_image(&top.file, &shown, Mode::Exclusive, &mut patience)?;
    top.path = image.path.clone();
    top.named = std::path::absolute(named).ok();
    top.lasts = !sys::forgets_inodes(&top.file);
    Ok(top)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_name(path: &Path) -> Result<(), Fault> {
    let synced = sync_directory(path);
    synced.map_err(|error| Fault::io(&name_of(path), "sync its directory", error))
}

#[cfg(test)]
#[path = "successor_tests.rs"]
mod tests;
