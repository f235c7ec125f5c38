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
use crate::origin::mapped::Closed;
use crate::origin::san::Params;
use crate::sys;
use crate::target::{How, Target};
use engine::image::{self, Image, Named};
use std::path::PathBuf;
use std::sync::Arc;

/// A file as it was when it was open.
#[derive(Debug)]
struct Was {
    path: PathBuf,
    named: Option<PathBuf>,
    known: Image,
    read_only: bool,
    unlocked: bool,
    direct: bool,
    lasts: bool,
    image: bool,
}

/// The files of a volume, which nothing uses any more.
#[derive(Debug)]
pub struct Lost {
    /// As they were open; until they are closed.
    open: Option<OpenVolume>,
    origin: Was,
    ledger: Option<Was>,
    journal: Option<Was>,
    ledger_path: Option<PathBuf>,
    journal_path: Option<PathBuf>,
    san: Option<Params>,
    /// Of an image of a format: its files and how they stand on each other.
    mapped: Option<Closed<Was>>,
}

/// Why they are not open again.
#[derive(Debug)]
pub enum Trouble {
    /// It may work later.
    Away(String),
    /// The path leads to another file.
    Another(String),
}

impl Lost {
    /// Takes all files of a volume whose origin is one. `Err` gives another volume back.
    pub fn of(files: OpenVolume) -> Result<Box<Lost>, Box<OpenVolume>> {
        let Origin::File(origin) = &files.origin else {
            return Err(Box::new(files));
        };
        let beside = |target: &Option<Arc<Target>>| target.as_deref().map(|it| Was::of(it, false));
        let of_image = |target: &Target| Was::of(target, true);
        Ok(Box::new(Lost {
            origin: of_image(origin),
            ledger: beside(&files.ledger),
            journal: beside(&files.journal),
            ledger_path: files.ledger_path.clone(),
            journal_path: files.journal_path.clone(),
            san: files.san,
            mapped: files.mapped.as_ref().map(|mapped| mapped.closed(of_image)),
            open: Some(files),
        }))
    }

    /// Closes them and opens them again. Blocks for as long as the storage does.
    pub fn open(&mut self) -> Result<OpenVolume, Trouble> {
        drop(self.open.take());
        let beside = |was: &Option<Was>| was.as_ref().map(Was::open).transpose();
        let again = |mapped: &Closed<Was>| mapped.open(Was::open).map(Arc::new);
        let mapped = self.mapped.as_ref().map(again).transpose()?;
        let origin = match &mapped {
            Some(mapped) => mapped.top().clone(),
            None => self.origin.open()?,
        };
        Ok(OpenVolume {
            origin: Origin::File(origin),
            mapped,
            below: 0,
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
            known: known_by(target, image),
            read_only: target.read_only,
            unlocked: target.unlocked,
            direct: target.direct,
            lasts: target.lasts,
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
        target.unlocked = self.unlocked;
        if !self.unlocked && (!self.read_only || !sys::is_nfs(&target.file)) {
            lock::acquire(&target.file, &name, mode, &mut patience).map_err(away)?;
        }
        if self.image && !self.unlocked {
            lock::acquire_image(&target.file, &name, mode, &mut patience).map_err(away)?;
        }
        let found = known_by(&target, self.image);
        let finding = image::compare(&self.known, Some(&found), Named::Unknown);
        if finding.is_misfit() {
            return Err(Trouble::Another(format!("{name}: {}", finding.words())));
        }
        if target.direct && !self.direct {
            let gone = target.go_buffered();
            gone.map_err(|error| away(Fault::io(&name, "turn direct I/O off", error)))?;
        }
        target.named = self.named.clone();
        target.lasts = self.lasts;
        Ok(Arc::new(target))
    }
}

/// What an open file is known by. Of a ledger and a journal the size says nothing.
fn known_by(target: &Target, image: bool) -> Image {
    let (device, inode) = target.identity;
    Image {
        device,
        inode,
        size_bytes: if image { target.size_bytes } else { 0 },
        ..Image::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::testing::freed;
    use crate::origin::Format;
    use crate::origin::clone::{self, CloneOf};
    use crate::origin::file::{self, Access, Request};
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::{Duration, Instant};

    /// Another test that starts a program has a copy of every descriptor, and of its lock, until
    /// the program runs.
    fn again(lost: &mut Lost) -> Result<OpenVolume, Trouble> {
        let start = Instant::now();
        loop {
            match lost.open() {
                Err(Trouble::Away(_)) if start.elapsed() < Duration::from_secs(60) => {
                    std::thread::yield_now();
                }
                opened => return opened,
            }
        }
    }

    fn lost(path: &Path) -> Box<Lost> {
        lost_of(path, Format::Raw, &[])
    }

    fn lost_of(path: &Path, format: Format, allow: &[PathBuf]) -> Box<Lost> {
        let request = Request {
            path: path.to_owned(),
            access: Access::Write,
            format,
            allow: allow.to_vec(),
            journal_place: None,
            ledger_place: None,
            quiet: Duration::ZERO,
            create: true,
            keeps_end: false,
            epoch: None,
        };
        let mut files = freed(|| file::open(&request, &mut Patience::none()));
        let below = files.open_below(&request, false, &mut Patience::none());
        below.expect("open what lies below");
        Lost::of(files).expect("its origin is a file")
    }

    /// What is known of an image must not change with the loss, or it looks like another one.
    #[test]
    fn an_image_that_is_written_is_opened_again_and_known_by_the_same() {
        let dir = tempfile::tempdir().expect("make a directory");
        let allow = [dir.path().to_owned()];
        let (base, path) = (dir.path().join("base.raw"), dir.path().join("disk.qcow2"));
        size(&base, 1 << 20);
        let of = CloneOf {
            image: base,
            plain: false,
        };
        clone::make(&path, &of, &allow).expect("make the image");
        let known = |files: &OpenVolume| {
            let stat = files.stat().expect("its origin is a file");
            stat.expect("it can be looked at").image
        };
        let mut lost = lost_of(&path, Format::Qcow2, &allow);
        let before = lost.open.as_ref().and_then(known);
        assert!(before.is_some_and(|image| image.lasts && image.below != 0));
        for _ in 0..2 {
            let files = again(&mut lost).expect("open it again");
            assert_eq!(known(&files), before);
            let second = File::open(&path).expect("open the image");
            assert!(second.try_lock().is_err(), "it is locked");
            lost = Lost::of(files).expect("its origin is a file");
        }
    }

    fn size(path: &Path, bytes: u64) {
        let mut how = File::options();
        let file = how.write(true).create(true).truncate(false).open(path);
        let file = file.expect("open the image");
        file.set_len(bytes).expect("size the image");
    }

    #[test]
    fn files_are_closed_and_opened_again_with_their_locks() {
        let dir = tempfile::tempdir().expect("make a directory");
        let path = dir.path().join("disk.img");
        size(&path, 8192);
        let mut lost = lost(&path);
        size(&path, 16_384);
        let files = again(&mut lost).expect("open it again");
        assert!(files.ledger.is_some() && files.journal.is_some());
        let second = File::open(&path).expect("open the image");
        assert!(second.try_lock().is_err(), "it is locked");
    }

    #[test]
    fn an_image_that_is_another_one_or_smaller_is_not_taken() {
        let dir = tempfile::tempdir().expect("make a directory");
        let path = dir.path().join("disk.img");
        let trouble = |lost: &mut Lost| match again(lost) {
            Err(Trouble::Another(why)) => why,
            other => panic!("{other:?}"),
        };
        size(&path, 8192);
        let mut shrunk = lost(&path);
        size(&path, 4096);
        let why = trouble(&mut shrunk);
        assert!(why.ends_with("disk.img: has shrunk"), "{why}");
        size(&path, 8192);
        again(&mut shrunk).expect("it has its size again");
        let mut replaced = lost(&path);
        let other = dir.path().join("other.img");
        size(&other, 8192);
        fs::rename(&other, &path).expect("put another file there");
        let why = trouble(&mut replaced);
        assert!(why.ends_with("was replaced by another file"), "{why}");
    }
}
