//! All names in the file systems of images, for a proposal of rules.
//!
//! Always true: names of one file system stand together, because numbers of files are its own.
//! Deliberately absent: how they are read.

use std::collections::BTreeMap;
use workload::trace::analyze::places::Name;

/// All names of a file system.
pub struct FileSystem {
    pub is_ntfs: bool,
    pub names: Vec<Name>,
    /// Paths that packages brought, where their lists are there.
    pub packages: Option<Vec<String>>,
}

/// The file systems of all images.
#[derive(Default)]
pub struct Contents {
    pub file_systems: Vec<FileSystem>,
}

impl Contents {
    /// Names with the sector at which their file system begins.
    pub fn of_ntfs(&mut self, names: Vec<(u64, Name)>) {
        let mut by_start: BTreeMap<u64, Vec<Name>> = BTreeMap::new();
        for (start, name) in names {
            by_start.entry(start).or_default().push(name);
        }
        let all = by_start.into_values().map(|names| FileSystem {
            is_ntfs: true,
            names,
            packages: None,
        });
        self.file_systems.extend(all);
    }
}
