//! Paths of a mounted file system of a guest, and what patterns mean there.
//!
//! Always true: no symbolic link is followed, so that no path leads out of the file system.
//! Deliberately absent: what is done with a path.

use crate::error::{Error, Result};
use crate::rules::{Pattern, matches_name};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The place of a path below a mount point. Refuses a link on the way, which could lead anywhere.
pub fn inside(root: &Path, path: &str) -> Result<PathBuf> {
    let mut place = root.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::RootDir => continue,
            Component::Normal(name) => place.push(name),
            _ => return Err(Error::refused(format!("{path}: is no plain path"))),
        }
        if std::fs::symlink_metadata(&place).is_ok_and(|it| it.is_symlink()) {
            let shown = place.strip_prefix(root).unwrap_or(&place).display();
            return Err(Error::refused(format!(
                "{path}: /{shown} is a symbolic link; name the path that it leads to"
            )));
        }
    }
    Ok(place)
}

/// Whether a path is another one, or lies below it.
pub fn is_at_or_below(path: &str, of: &str) -> bool {
    path.strip_prefix(of)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// All paths that a pattern means and that are files or directories.
pub fn expand(
    root: &Path,
    pattern: &Pattern,
    warnings: &mut Vec<String>,
) -> Result<Vec<(String, bool)>> {
    let mut found: Vec<(String, bool)> = vec![(String::new(), true)];
    for name in &pattern.names {
        let mut next = Vec::new();
        for (path, _) in found.into_iter().filter(|(_, is_directory)| *is_directory) {
            children(root, &path, name, &mut next, warnings)?;
        }
        found = next;
    }
    Ok(found)
}

/// The children of a directory that a name of a pattern means.
fn children(
    root: &Path,
    path: &str,
    pattern: &str,
    found: &mut Vec<(String, bool)>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let place = root.join(path.trim_start_matches('/'));
    let mut take = |name: &OsStr| {
        let child = place.join(name);
        let Ok(about) = std::fs::symlink_metadata(&child) else {
            return;
        };
        let shown = format!("{path}/{}", name.to_string_lossy());
        if about.is_symlink() {
            warnings.push(format!("{shown} is a symbolic link, which stays as it is"));
        } else if name.to_str().is_none() {
            warnings.push(format!(
                "{shown} stays: a mount of a name that is not UTF-8 is unsafe"
            ));
        } else {
            found.push((shown, about.is_dir()));
        }
    };
    if !pattern.contains('*') {
        take(OsStr::new(pattern));
        return Ok(());
    }
    let entries = std::fs::read_dir(&place).map_err(|error| Error::io(&place, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(
            entry
                .map_err(|error| Error::io(&place, &error))?
                .file_name(),
        );
    }
    // The order of a directory is that of its hashes.
    names.sort();
    let meant = names
        .iter()
        .filter(|it| matches_name(pattern, it.as_bytes(), false));
    meant.for_each(|it| take(it));
    Ok(())
}
