//! New qcow2 files that stand on another image.
//!
//! Always true: a file appears under its name whole and synced, or not at all; it never takes the
//! place of another one; what it stands on was opened and judged as it will be when it is served,
//! and is not changed. Deliberately absent: who asks for one, and what becomes of it.

use super::chain::{self, Rules, name_of};
use crate::cachedev::sync_directory;
use crate::fault::{Fault, Kind};
use crate::lock::Patience;
use crate::sys;
use image::create::{self, Backing, BackingFormat, NewFile, Shape};
use image::header::BackingName;
use image::{Format, error};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
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

/// Makes the file at `path`, a disk as large as that of the image below, with its content. Files
/// below have to lie in the directories of `allow`. Gives the size of the disk.
pub fn make(path: &Path, of: &CloneOf, allow: &[PathBuf]) -> Result<u64, Fault> {
    let shown = name_of(path);
    if fs::symlink_metadata(path).is_ok() {
        let message = format!("{shown}: exists already; choose another name, or remove it");
        return Err(Fault::new(Kind::Invalid, message));
    }
    let (backing, format, size_bytes) = below(path, of, allow)?;
    let shape = match of.plain {
        true => Shape::Plain,
        false => Shape::Extended,
    };
    let backing = Backing {
        name: &backing,
        format,
    };
    let new =
        create::create(size_bytes, shape, Some(backing)).map_err(|why| wrong(&shown, &why))?;
    let temporary = temporary(path);
    let made = write(&temporary, &new)
        .map_err(|error| Fault::io(&shown, "make it", error))
        .and_then(|()| judge(&temporary, path, allow))
        .and_then(|()| name(&temporary, path, &shown));
    if made.is_err() {
        // Its name is ours alone; what cannot be removed is no image.
        let _ = fs::remove_file(&temporary);
    }
    made.map(|()| size_bytes)
}

/// Takes a file away again that was made here.
pub fn remove(path: &Path) {
    let removed = fs::remove_file(path).and_then(|()| sync_directory(path));
    if let Err(error) = removed {
        tracing::warn!("{}: cannot remove it: {error}", name_of(path));
    }
}

/// The name of the image below as it will stand in the file, its format, and the size of its disk.
fn below(
    path: &Path,
    of: &CloneOf,
    allow: &[PathBuf],
) -> Result<(String, BackingFormat, u64), Fault> {
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
    let rules = Rules {
        top: None,
        allow: Some(allow),
    };
    let opened = chain::open(&directory.join(&of.image), &rules, &mut Patience::none())?;
    let size_bytes = opened.chain.size_bytes();
    let format = match &opened.links[0].format {
        Format::Raw => BackingFormat::Raw,
        Format::Qcow2(_) => BackingFormat::Qcow2,
    };
    Ok((name.to_owned(), format, size_bytes))
}

/// A name in the same directory that no other program uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", uuid::Uuid::new_v4()));
    path.with_file_name(name)
}

fn write(path: &Path, new: &NewFile) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    for extent in &new.extents {
        file.write_all_at(&extent.bytes, extent.at)?;
    }
    file.set_len(new.file_bytes)?;
    file.sync_all()
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
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let message = format!("{shown}: exists already; choose another name, or remove it");
            Fault::new(Kind::Invalid, message)
        }
        _ => Fault::io(shown, "give it its name", error),
    };
    sys::rename_new(temporary, path).map_err(failed)?;
    sync_directory(path).map_err(failed)
}

fn wrong(shown: &str, why: &error::Error) -> Fault {
    Fault::new(Kind::Invalid, format!("{shown}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(dir: &Path, name: &str, bytes: u64) -> PathBuf {
        let path = dir.join(name);
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("made");
        path
    }

    fn names(dir: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(dir).expect("there");
        let mut names: Vec<_> = entries
            .map(|it| it.expect("an entry").file_name())
            .collect();
        names.sort();
        names
    }

    fn of(image: impl Into<PathBuf>, plain: bool) -> CloneOf {
        CloneOf {
            image: image.into(),
            plain,
        }
    }

    #[test]
    fn a_clone_stands_on_its_image_by_the_name_that_was_given() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = raw(dir.path(), "base.img", 3 << 20);
        let allow = [dir.path().to_path_buf()];
        for (name, image, plain) in [
            ("one.qcow2", base.clone(), false),
            ("two.qcow2", PathBuf::from("base.img"), true),
            ("three.qcow2", PathBuf::from("one.qcow2"), false),
        ] {
            let path = dir.path().join(name);
            assert_eq!(
                make(&path, &of(&image, plain), &allow).expect("made"),
                3 << 20
            );
            let opened = chain::open(&path, &Rules::default(), &mut Patience::none());
            let opened = opened.expect("a chain");
            let header = opened.chain.files()[0].header().expect("qcow2");
            assert_eq!(header.backing.as_deref(), image.to_str());
            let stated = if name == "three.qcow2" {
                "qcow2"
            } else {
                "raw"
            };
            assert_eq!(header.backing_format.as_deref(), Some(stated));
            assert_eq!(
                header.cluster_bytes(),
                if plain { 64 << 10 } else { 128 << 10 }
            );
            assert_eq!(header.is_extended(), !plain);
        }
    }

    /// Fails when: a file is overwritten, or something is left of a clone that is not made.
    #[test]
    fn what_is_not_made_leaves_nothing_and_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("a directory");
        let base = raw(dir.path(), "base.img", 1 << 20);
        let far = raw(outside.path(), "far.img", 1 << 20);
        let there = raw(dir.path(), "there.qcow2", 512);
        let allow = [dir.path().to_path_buf()];
        let before = names(dir.path());
        let fresh = dir.path().join("new.qcow2");
        for (path, image, why) in [
            (&there, base, "exists already"),
            (&fresh, far, "[images] allow"),
            (&fresh, dir.path().join("none.img"), "none.img"),
            (&fresh, PathBuf::from("nbd:x"), "colon"),
        ] {
            let fault = make(path, &of(image, false), &allow).expect_err(why);
            assert!(fault.message.contains(why), "{fault}");
            assert!(!fault.message.contains("/.new"), "{fault}");
            assert_eq!(names(dir.path()), before);
        }
        assert_eq!(fs::metadata(&there).expect("stat").len(), 512);
    }
}
