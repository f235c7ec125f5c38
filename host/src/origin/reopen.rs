//! Files of a volume that are opened again by their paths, because what was open is of no use.
//!
//! A file server that was moved or has exported anew answers old handles with ESTALE for good; one
//! that has lost our lock answers EIO. Always true: what was open is closed before anything is
//! opened, because its lock would keep the new description out; the new one carries the same locks
//! before it is used; a file that is another one by device and inode, or an image that has become
//! smaller, is not taken. Deliberately absent: when that is done, and that nothing is under way on
//! the old description by then, which the shard sees to (rule 5.2.1).

use crate::fault::Fault;
use crate::lock::{self, Mode, Patience};
use crate::origin::file::{OpenVolume, Origin};
use crate::origin::mapped::Mapped;
use crate::origin::san::Params;
use crate::sys;
use crate::target::{How, Target};
use std::path::PathBuf;
use std::sync::Arc;

/// A file as it was when it was open.
#[derive(Debug)]
struct Was {
    path: PathBuf,
    named: Option<PathBuf>,
    identity: (u64, u64),
    size_bytes: u64,
    read_only: bool,
    direct: bool,
    image: bool,
}

/// The files of a volume, closed.
#[derive(Debug)]
pub struct Closed {
    origin: Was,
    ledger: Option<Was>,
    journal: Option<Was>,
    ledger_path: Option<PathBuf>,
    journal_path: Option<PathBuf>,
    san: Option<Params>,
    /// Of an image of several files: how they stand on each other. They are locked for reading
    /// only, which keeps no other reader out.
    mapped: Option<Arc<Mapped>>,
}

/// Why they are not open again.
#[derive(Debug)]
pub enum Trouble {
    /// It may work later.
    Away(String),
    /// The path leads to another file.
    Another(String),
}

impl Closed {
    /// Closes all files of a volume whose origin is one. `Err` gives another volume back.
    pub fn of(files: OpenVolume) -> Result<Box<Closed>, Box<OpenVolume>> {
        let Origin::File(origin) = &files.origin else {
            return Err(Box::new(files));
        };
        let beside = |target: &Option<Arc<Target>>| target.as_deref().map(|it| Was::of(it, false));
        Ok(Box::new(Closed {
            origin: Was::of(origin, true),
            ledger: beside(&files.ledger),
            journal: beside(&files.journal),
            ledger_path: files.ledger_path,
            journal_path: files.journal_path,
            san: files.san,
            mapped: files.mapped,
        }))
    }

    /// Blocks for as long as the storage does.
    pub fn open(&self) -> Result<OpenVolume, Trouble> {
        let beside = |was: &Option<Was>| was.as_ref().map(Was::open).transpose();
        let mapped = self
            .mapped
            .as_ref()
            .map(|mapped| mapped.reopened(|target| Was::of(target, true).open()));
        let mapped = mapped.transpose()?.map(Arc::new);
        let origin = match &mapped {
            Some(mapped) => mapped.top().clone(),
            None => self.origin.open()?,
        };
        Ok(OpenVolume {
            origin: Origin::File(origin),
            mapped,
            ledger: beside(&self.ledger)?,
            journal: beside(&self.journal)?,
            ledger_path: self.ledger_path.clone(),
            journal_path: self.journal_path.clone(),
            san: self.san,
        })
    }

    /// The name of the image.
    pub fn name(&self) -> String {
        self.origin.path.display().to_string()
    }
}

impl Was {
    fn of(target: &Target, image: bool) -> Was {
        Was {
            path: target.path.clone(),
            named: target.named.clone(),
            identity: target.identity,
            size_bytes: target.size_bytes,
            read_only: target.read_only,
            direct: target.direct,
            image,
        }
    }

    fn open(&self) -> Result<Arc<Target>, Trouble> {
        let name = self.path.display().to_string();
        let away = |fault: Fault| Trouble::Away(fault.to_string());
        let how = How {
            write: !self.read_only,
            refuse_symlink: !self.image,
            ..How::default()
        };
        let opened = Target::open(&self.path, how);
        let mut target = opened.map_err(|error| away(Fault::io(&name, "open it again", error)))?;
        let mode = match self.read_only {
            true => Mode::Shared,
            false => Mode::Exclusive,
        };
        let mut patience = Patience::none();
        // As when it was opened first.
        if !self.read_only || !sys::is_nfs(&target.file) {
            lock::acquire(&target.file, &name, mode, &mut patience).map_err(away)?;
        }
        if self.image {
            lock::acquire_image(&target.file, &name, mode, &mut patience).map_err(away)?;
        }
        if target.identity != self.identity {
            let why = format!("{name}: is another file than the one that was open");
            return Err(Trouble::Another(why));
        }
        if self.image && target.size_bytes < self.size_bytes {
            let (now, before) = (target.size_bytes, self.size_bytes);
            let why = format!("{name}: has {now} bytes, and had {before}");
            return Err(Trouble::Another(why));
        }
        if target.direct && !self.direct {
            let gone = target.go_buffered();
            gone.map_err(|error| away(Fault::io(&name, "turn direct I/O off", error)))?;
        }
        target.named = self.named.clone();
        Ok(Arc::new(target))
    }
}
