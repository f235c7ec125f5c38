//! Mount points in place of what moved.
//!
//! Always true: a directory keeps itself (its access rights, its short name, its times) when it is
//! emptied, and becomes a mount point only when it is empty, because Windows refuses others,
//! though ntfs-3g does not. What was written is read back through a second mount.
//!
//! Deliberately absent: a mount point whose target is a drive letter, which Windows may give away.

use super::error::{Error, Refused, io};
use super::mount::{Access, mounted};
use super::path::WindowsPath;
use super::tree::{entries, sync};
use super::{reparse, xattr};
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Removes what is below each path. What is a mount point already was emptied before.
pub fn empty(partition: &Path, paths: &[WindowsPath]) -> Result<(), Error> {
    mounted(&[(partition, Access::Write)], |places| {
        for path in paths {
            let place = require_directory(&places[0], path)?;
            if is_reparse_point(&place)? {
                continue;
            }
            let times = xattr::get(&place, xattr::TIMES)?;
            for entry in entries(&place)? {
                let entry = entry.path();
                // A mount point or a link inside is removed, and not what it leads to.
                let removed = match fs::symlink_metadata(&entry) {
                    Ok(it) if it.is_dir() => fs::remove_dir_all(&entry),
                    Ok(_) => fs::remove_file(&entry),
                    Err(error) => Err(error),
                };
                removed.map_err(io(&entry, "it can not be removed"))?;
            }
            if let Some(times) = times {
                xattr::set(&place, xattr::TIMES, &times)?;
            }
        }
        Ok(())
    })?;
    sync(partition)
}

/// Makes a mount point of each path, which leads to the same path on the volume of that GUID.
pub fn link(partition: &Path, links: &[(WindowsPath, Uuid)]) -> Result<(), Error> {
    let mut wanted = Vec::new();
    for (path, guid) in links {
        let data = reparse::mount_point(*guid, path);
        let data = data.ok_or_else(|| Refused::Unmovable {
            path: path.to_string(),
            why: "its path is too long for a mount point; name a directory above it",
        })?;
        wanted.push((path, data));
    }
    mounted(&[(partition, Access::Write)], |places| {
        for (path, data) in &wanted {
            let place = require_directory(&places[0], path)?;
            if is_reparse_point(&place)? {
                require_same(path, &place, data)?;
                continue;
            }
            if !entries(&place)?.is_empty() {
                return Err(Refused::NotEmpty((*path).clone()).into());
            }
            xattr::set(&place, xattr::REPARSE, data)?;
        }
        Ok(())
    })?;
    // The mount that wrote it goes on to show the directory; only another one shows what is there.
    mounted(&[(partition, Access::Read)], |places| {
        for (path, data) in &wanted {
            require_same(path, &path.under(&places[0]), data)?;
        }
        Ok(())
    })?;
    sync(partition)
}

fn require_same(path: &WindowsPath, place: &Path, data: &[u8]) -> Result<(), Error> {
    match xattr::get(place, xattr::REPARSE)? {
        Some(found) if found == data => Ok(()),
        _ => Err(Refused::OtherReparse(path.clone()).into()),
    }
}

fn is_reparse_point(place: &Path) -> Result<bool, Error> {
    let metadata = fs::symlink_metadata(place).map_err(io(place, "it can not be read"))?;
    Ok(metadata.is_symlink())
}

/// A directory, or what it became.
fn require_directory(root: &Path, path: &WindowsPath) -> Result<PathBuf, Error> {
    let place = path.under(root);
    match fs::symlink_metadata(&place) {
        Ok(it) if it.is_dir() || it.is_symlink() => Ok(place),
        Ok(_) => Err(Refused::NoDirectory(path.clone()).into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Refused::NoDirectory(path.clone()).into())
        }
        Err(error) => Err(io(&place, "it can not be read")(error)),
    }
}
