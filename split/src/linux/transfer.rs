//! Moves the data of paths: copies it, compares it, takes it away where it was.
//!
//! Always true: a copy is made by one call, so that files with several names stay one file; what
//! stays below a moved path is not compared and not taken away. Deliberately absent: mounts, which
//! the caller has made.

use super::paths::inside;
use crate::error::{Error, Result};
use crate::kind::Moved;
use crate::programs::run;
use std::ffi::OsString;
use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A path as a program takes it that runs in the root of the file system.
fn relative(path: &str) -> OsString {
    format!(".{path}").into()
}

/// What of a moved path does not go where it goes.
fn stays(moved: &Moved) -> impl Iterator<Item = &String> {
    moved.kept.iter().chain(&moved.nested)
}

/// Copies paths from one root to the same places of another one, which is empty.
pub fn copy(from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["-a", "--sparse=always", "--parents", "--target-directory"]);
    command
        .arg(to)
        .arg("--")
        .args(moved.iter().map(|it| relative(&it.path)));
    run("coreutils", command.current_dir(from))?;
    // What stays is a place to mount something on.
    for path in moved.iter().flat_map(|it| stays(it)) {
        let place = inside(to, path)?;
        if place.is_dir() {
            keeping_times(&place, || clear(&place, &[]))?;
        }
    }
    // A file that each clone has for itself is not emptied, here and on the system disk: who reads
    // it before it is mounted finds what the image has, and not a file that is half there.
    for path in moved.iter().flat_map(|it| &it.kept) {
        let place = inside(to, path)?;
        if place.is_file() {
            std::fs::write(&place, "").map_err(|error| Error::io(&place, &error))?;
        }
    }
    Ok(())
}

/// Fails where two roots differ in what a copy keeps.
pub fn verify(from: &Path, to: &Path, moved: &[&Moved]) -> Result<()> {
    let mut excluded = Vec::new();
    for path in moved.iter().flat_map(|it| stays(it)) {
        excluded.push(exclude_below(path, from));
    }
    let paths: Vec<OsString> = moved.iter().map(|it| relative(&it.path)).collect();
    compare(from, to, &paths, &excluded)
}

/// Does something to a directory whose times stay.
pub fn keeping_times(directory: &Path, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let fail = |error: std::io::Error| Error::io(directory, &error);
    let file = File::open(directory).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    let times = FileTimes::new()
        .set_accessed(about.accessed().map_err(fail)?)
        .set_modified(about.modified().map_err(fail)?);
    work()?;
    file.set_times(times).map_err(fail)
}

/// Leaves out what is below a directory, or all of a file.
fn exclude_below(path: &str, root: &Path) -> OsString {
    match inside(root, path).is_ok_and(|it| it.is_dir()) {
        true => format!("--exclude={}/**", escaped(path)).into(),
        false => exclude(path),
    }
}

/// Leaves out a path with all below it.
pub fn exclude(path: &str) -> OsString {
    // Without a star a backslash stands for itself.
    let pattern = match path.contains(['*', '?', '[']) {
        true => escaped(path),
        false => path.to_owned(),
    };
    format!("--exclude={pattern}").into()
}

fn escaped(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    for letter in path.chars() {
        if matches!(letter, '\\' | '*' | '?' | '[') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

/// Compares paths of two roots: names, kinds, data, owners, rights, times, links, attributes.
pub fn compare(from: &Path, to: &Path, paths: &[OsString], options: &[OsString]) -> Result<()> {
    let mut command = Command::new("rsync");
    command
        .args([
            "-aHAXnR",
            "--checksum",
            "--delete",
            "--itemize-changes",
            "--no-implied-dirs",
        ])
        .args(options)
        .arg("--")
        .args(paths)
        .arg(to)
        .current_dir(from);
    let output = run("rsync", &mut command)?;
    let said = String::from_utf8_lossy(&output.stdout);
    let Some(first) = said.lines().next() else {
        return Ok(());
    };
    let count = said.lines().count();
    Err(Error::failed(format!(
        "the copy differs in {count} places, one is {:?} (as rsync names it); is the disk below \
         it sound?",
        first.trim()
    )))
}

/// Takes away what lies below a path on the system disk.
pub fn empty(system: &Path, moved: &Moved) -> Result<()> {
    let kept: Result<Vec<PathBuf>> = moved.kept.iter().map(|it| inside(system, it)).collect();
    let place = inside(system, &moved.path)?;
    // A path above it was emptied before, or it is a file, which is mounted on what it was.
    match place.is_dir() {
        true => clear(&place, &kept?),
        false => Ok(()),
    }
}

/// Removes all below a directory but some paths. No link is followed.
fn clear(directory: &Path, kept: &[PathBuf]) -> Result<()> {
    let fail = |error: std::io::Error| Error::io(directory, &error);
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let path = entry.path();
        if kept.contains(&path) {
            continue;
        }
        let is_directory = entry.file_type().map_err(fail)?.is_dir();
        if is_directory && kept.iter().any(|it| it.starts_with(&path)) {
            clear(&path, kept)?;
            continue;
        }
        let removed = match is_directory {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
        removed.map_err(|error| Error::io(&path, &error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rsync_leaves_out_is_named_by_letter() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("a*\\b")).unwrap();
        assert_eq!(
            exclude_below("/a*\\b", root.path()),
            "--exclude=/a\\*\\\\b/**"
        );
        assert_eq!(exclude("/c\\d"), "--exclude=/c\\d");
        assert_eq!(exclude("/c[d"), "--exclude=/c\\[d");
    }

    /// Fails when: what stays is taken away, or something else stays.
    #[test]
    fn all_but_what_is_kept_is_taken_away() {
        let root = tempfile::tempdir().unwrap();
        for path in ["c/keep/x", "c/deep/keep", "c/deep/go", "c/go/deep", "d"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        std::os::unix::fs::symlink("../d", root.path().join("c/link")).unwrap();
        let moved = Moved {
            path: "/c".to_owned(),
            class: crate::kind::Class::Never,
            kept: vec!["/c/keep".to_owned(), "/c/deep/keep".to_owned()],
            nested: Vec::new(),
            files: 0,
            bytes: 0,
            symlink: false,
        };
        empty(root.path(), &moved).unwrap();
        empty(root.path(), &moved).unwrap();
        for (path, is) in [
            ("c/keep/x", true),
            ("c/deep/keep", true),
            ("c/deep/go", false),
            ("c/go", false),
            ("c/link", false),
            ("d", true),
        ] {
            assert_eq!(root.path().join(path).exists(), is, "{path}");
        }
    }
}
