//! What a kind of file system does for a split.
//!
//! Owns the trait that ext4, xfs and NTFS implement, and the plain data that goes through it.
//! Always true: each call is given partitions as ordinary files and leaves them closed; a call
//! may be repeated after a kill, and what it changes is then the same. Deliberately absent: disks
//! and partition tables, the order of the calls, and the files in which they are remembered.

pub use crate::class::Class;
use crate::error::Result;
use crate::rules::Rules;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A path that gets a disk of its class, with all below it. Of class keep it may be a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// From the root of the file system, with `/` in front and between names.
    pub path: String,
    pub class: Class,
    /// Paths below it that stay on the system disk, in the same form.
    pub kept: Vec<String>,
    /// Paths below it that move to another class, in the same form.
    pub nested: Vec<String>,
    pub files: u64,
    /// Bytes that its data takes.
    pub bytes: u64,
    /// Reached by a symbolic link, where there would be too many mounts.
    #[serde(default)]
    pub symlink: bool,
}

/// Where the guest swaps today.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageFile {
    /// A path from the root of the file system, or what names a partition.
    pub what: String,
    pub bytes: u64,
    /// A file is removed from the system disk; a partition stays.
    pub is_file: bool,
}

/// Data of a user that a relaxed class may lose, known by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AtRisk {
    pub path: String,
    pub class: Class,
    pub bytes: u64,
}

/// What a file system holds, as far as the rules ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub moved: Vec<Moved>,
    pub page_files: Vec<PageFile>,
    /// Files and bytes that stay on the system disk.
    pub system_files: u64,
    pub system_bytes: u64,
    pub at_risk: Vec<AtRisk>,
    /// Why this image cannot be split with these rules; each names what is to be done.
    pub refusals: Vec<String>,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// Files by which a guest knows itself, and which it makes anew as each clone needs them.
    #[serde(default)]
    pub forgotten: Vec<String>,
}

/// Why a split is refused whose pool keeps a path that the image does not have.
pub fn not_there(path: &str) -> String {
    format!(
        "{path}: [pool] keeps it, and the image does not have it, so each reset would take it; \
         make it in the guest, or take it out of keep"
    )
}

/// The note about a pattern of a pool by which nothing is kept.
pub fn means_nothing(pattern: &str) -> String {
    format!("{pattern}: [pool] keeps nothing by it: the image has no such path")
}

/// One new disk, with one partition for its file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    pub class: Class,
    /// Of the partition that has the file system, chosen before it is made.
    pub partition_uuid: String,
    /// Of the file system, where its kind lets us choose.
    pub file_system_uuid: String,
    pub start_bytes: u64,
    pub bytes: u64,
    /// A second partition for swap, or the room of a page file.
    pub swap: Option<Swap>,
}

/// The file of the system disk.
pub const SYSTEM_FILE: &str = "system.qcow2";

impl Volume {
    /// The file of its disk.
    pub fn file(&self) -> String {
        format!("{}.raw", self.class.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    pub partition_uuid: String,
    pub uuid: String,
    pub start_bytes: u64,
    pub bytes: u64,
}

/// What was decided before the first byte was copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub listing: Listing,
    pub volumes: Vec<Volume>,
    /// Windows: the letter of the volume with the page file.
    pub letter: Option<char>,
}

impl Layout {
    pub fn moved_to(&self, class: Class) -> impl Iterator<Item = &Moved> {
        let moved = self.listing.moved.iter();
        moved.filter(move |it| it.class == class)
    }

    pub fn volume(&self, class: Class) -> Option<&Volume> {
        self.volumes.iter().find(|it| it.class == class)
    }

    /// The volume that has the swap partition or the page file.
    pub fn swap(&self) -> Option<(&Volume, &Swap)> {
        let mut volumes = self.volumes.iter();
        volumes.find_map(|it| Some((it, it.swap.as_ref()?)))
    }
}

/// The partitions of a split, each as a file.
#[derive(Clone, Debug)]
pub struct Partitions {
    /// Of the image, which cannot be written.
    pub input: PathBuf,
    /// Of the system disk.
    pub system: PathBuf,
    /// In the order of [`Layout::volumes`].
    pub volumes: Vec<PathBuf>,
}

/// A kind of file system.
pub trait FileSystem {
    /// What `blkid` calls it.
    fn name(&self) -> &'static str;

    /// Whether a partition holds the system of the guest. Refuses what cannot be read.
    fn is_system(&self, partition: &Path) -> Result<bool>;

    /// What the rules move, and all that stands against it. `swaps` are other partitions of the
    /// disk that hold swap.
    fn list(&self, partition: &Path, rules: &Rules, swaps: &[SwapPartition]) -> Result<Listing>;

    /// The fewest bytes of a new file system.
    fn smallest_bytes(&self) -> u64;

    /// Whether a page file needs a partition of its own.
    fn swaps_to_partition(&self) -> bool;

    /// Makes the empty file system of a new disk.
    fn make_volume(&self, partition: &Path, volume: &Volume) -> Result<()>;

    /// Makes the swap partition of a new disk.
    fn make_swap(&self, partition: &Path, swap: &Swap) -> Result<()>;

    /// Copies paths to the same places of an empty file system.
    fn copy(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()>;

    /// Compares names, data, and all that a copy keeps.
    fn verify(&self, from: &Path, to: &Path, moved: &[&Moved]) -> Result<()>;

    /// Removes what lies below the moved paths.
    fn empty(&self, system: &Path, layout: &Layout) -> Result<()>;

    /// Makes the paths lead to the new disks, and the guest swap there.
    fn link(&self, partitions: &Partitions, layout: &Layout) -> Result<()>;

    /// Checks all file systems, and compares what the guest will see with the image.
    fn check(&self, partitions: &Partitions, layout: &Layout) -> Result<()>;
}

/// A partition of the image that holds swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPartition {
    pub number: u32,
    pub uuid: Option<String>,
    pub label: Option<String>,
    pub partition_uuid: Option<String>,
    pub bytes: u64,
    /// It holds the memory of a machine that sleeps.
    pub is_hibernated: bool,
}
