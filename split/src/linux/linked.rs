//! Makes the paths of the system disk lead to the new disks.
//!
//! Always true: the new table is made of the image's own one, so that doing it twice is the same as
//! doing it once; times of directories that get a new entry stay.

use super::fstab::{self, MOUNTS, SYSTEM, mount_point};
use super::paths::inside;
use super::transfer::keeping_times;
use crate::error::{Error, Result};
use crate::kind::{Layout, Moved};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Of the table, where the image has none.
const MODE: u32 = 0o644;

/// The bytes of the table below a root; none where there is no table.
pub fn table(root: &Path) -> Result<Vec<u8>> {
    let place = inside(root, "/etc/fstab")?;
    match std::fs::read(&place) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| Error::io(&place, &error)),
    }
}

pub fn link(input: &Path, system: &Path, layout: &Layout, kind: &str) -> Result<()> {
    keeping_times(system, || {
        let mounts = layout.volumes.iter().map(|it| mount_point(it.class));
        let keeps = layout.listing.moved.iter().any(|it| !it.kept.is_empty());
        let system_mount = keeps.then(|| SYSTEM.to_owned());
        for path in std::iter::once(MOUNTS.to_owned())
            .chain(mounts)
            .chain(system_mount)
        {
            let place = inside(system, &path)?;
            match std::fs::create_dir(&place) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(|error| Error::io(&place, &error))?,
            }
        }
        Ok(())
    })?;
    for moved in layout.listing.moved.iter().filter(|it| it.symlink) {
        symlink(system, moved)?;
    }
    for file in layout.listing.page_files.iter().filter(|it| it.is_file) {
        remove(system, &file.what)?;
    }
    let table = fstab::changed(&table(input)?, layout, kind);
    keeping_times(&system.join("etc"), || write(system, &table))
}

/// Writes the table in its place, so that owner, rights and labels stay.
fn write(system: &Path, table: &[u8]) -> Result<()> {
    let place = inside(system, "/etc/fstab")?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options
        .custom_flags(libc::O_NOFOLLOW)
        .open(&place)
        .map_err(|error| Error::io(&place, &error))?;
    let written = file.write_all(table).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io(&place, &error))
}

fn parent<'a>(path: &'a str, name: &'a str) -> &'a str {
    path.strip_suffix(name)
        .map_or("/", |it| it.trim_end_matches('/'))
}

fn symlink(system: &Path, moved: &Moved) -> Result<()> {
    let name = moved.path.rsplit('/').next().unwrap_or_default();
    let directory = inside(system, parent(&moved.path, name))?;
    let place = directory.join(name);
    let target = format!("{}{}", mount_point(moved.class), moved.path);
    if std::fs::read_link(&place).is_ok_and(|it| it == Path::new(&target)) {
        return Ok(());
    }
    keeping_times(&directory, || {
        let made = match std::fs::remove_dir(&place) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => std::os::unix::fs::symlink(&target, &place),
        };
        made.map_err(|error| Error::io(&place, &error))
    })
}

pub fn remove(system: &Path, path: &str) -> Result<()> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let place = inside(system, path)?;
    let directory = inside(system, parent(path, name))?;
    keeping_times(&directory, || match std::fs::remove_file(&place) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(&place, &error))
        }
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::parent;

    #[test]
    fn the_parent_of_a_path_is_the_path_without_its_last_name() {
        assert_eq!(parent("/swapfile", "swapfile"), "");
        assert_eq!(parent("/a/b/c", "c"), "/a/b");
    }
}
